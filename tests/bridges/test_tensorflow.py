"""The TensorFlow bridge: tensors that share the loader's memory, and the loader as a
tf.data.Dataset."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import gc
import importlib.util
import json
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow")

import gpuload as gl  # noqa: E402
from gpuload.bridges import tensorflow as gltf  # noqa: E402
from gpuload.bridges.tensorflow import data, plugin  # noqa: E402
from gpuload.errors import DeviceError, RecordError, SpecError  # noqa: E402
from gpuload.order import Position  # noqa: E402
from gpuload.sources.base import Source  # noqa: E402
from gpuload.spec import Field, Spec  # noqa: E402
from gpuload.testing.bridges import BridgeContract, TensorsContract  # noqa: E402
from tests import imagefiles, simdevice  # noqa: E402
from tests.sources.tfrecordfiles import example, write  # noqa: E402
from tests.threads import none_left  # noqa: E402

IMAGES = np.arange(10 * 6, dtype=np.float32).reshape(10, 3, 2)
LABELS = np.arange(10)


TEXTS = frozenset({"text", "long text"})


class TestTensors(TensorsContract):
    module, package, extra = "gpuload.bridges.tensorflow", "tensorflow", "tensorflow"
    align_bytes, takes = 64, TEXTS

    def batches(self, loader: gl.Loader) -> Any:
        return gltf.tensors(loader)

    def address(self, tensor: Any) -> int:
        return memory(tensor)


class TestDataset(BridgeContract):
    takes, errors, ends_with_error = TEXTS, (tf.errors.OpError,), True

    def batches(self, loader: gl.Loader) -> Any:
        return gltf.dataset(loader)


def loader_of(output: Any = ("image", "label"), **arguments: Any) -> gl.Loader:
    """A loader of 10 records, 4 a batch, in order."""
    source = gl.arrays(image=IMAGES, label=LABELS)
    return gl.Loader(source, **{"batch_size": 4, "output": output, "device": "cpu", **arguments})


def memory(tensor: Any) -> int:
    """The address of an eager tensor on the host."""
    return int(np.asarray(memoryview(tensor)).ctypes.data)


def labels_of(batches: Any) -> list[list[int]]:
    return [np.asarray(labels).tolist() for _, labels in batches]


class Damaged(Source):
    """Ten records, of which record 6 is damaged."""

    def __init__(self) -> None:
        self._whole = gl.arrays(x=np.arange(10))
        super().__init__(self._whole.groups)

    def __len__(self) -> int:
        return 10

    def _where(self, number: int) -> str:
        return f"numbers.bin, record {number}"

    def _digest(self) -> str:
        return "damaged"

    def _resolve(self, numbers: Any) -> Any:
        if 6 in numbers:
            raise RecordError(
                "numbers.bin, record 6: it is damaged",
                cause="a flipped bit",
                remedy="copy it again",
            )
        return self._whole.resolve(numbers)


# tensors


def test_tensors_are_the_batches_in_order_as_output_arranges_them() -> None:
    batches = list(gltf.tensors(loader_of()))

    assert [len(batch) for batch in batches] == [2, 2, 2]
    np.testing.assert_array_equal(np.concatenate([images.numpy() for images, _ in batches]), IMAGES)
    assert labels_of(batches) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_tensors_without_output_are_all_fields() -> None:
    batch = next(iter(gltf.tensors(loader_of(None))))

    assert sorted(batch.keys()) == ["image", "label"]
    np.testing.assert_array_equal(batch["label"], LABELS[:4])


def test_a_batch_of_tensors_says_which_records_it_holds_and_which_of_them_are_valid() -> None:
    shards = [loader_of(batch_size=2, num_shards=3, shard_id=i, last_batch="pad") for i in range(3)]
    batches = [batch for shard in shards for batch in gltf.tensors(shard)]

    valid = [record for batch in batches for record in batch.records[batch.valid].tolist()]
    assert sorted(valid) == list(range(10))
    assert [(batch.epoch, batch.step) for batch in batches] == [(0, 0), (0, 1)] * 3
    assert all(batch["label"].numpy().tolist() == batch.records.tolist() for batch in batches)


def test_a_nest_keeps_its_lists_and_dicts() -> None:
    batch = next(
        iter(gltf.tensors(loader_of({"inputs": ["image", {"again": "image"}], "target": "label"})))
    ).output

    assert batch["inputs"][1]["again"] is batch["inputs"][0]
    np.testing.assert_array_equal(batch["inputs"][0], IMAGES[:4])
    np.testing.assert_array_equal(batch["target"], LABELS[:4])


def test_each_loop_over_tensors_is_the_next_epoch() -> None:
    batches = gltf.tensors(loader_of(shuffle=True))
    expected = loader_of(shuffle=True)

    for _ in range(3):
        assert labels_of(batches) == [batch["label"].tolist() for batch in expected]
    assert len(batches) == 3


def test_a_tensor_is_the_memory_of_the_batch() -> None:
    batches = gltf.tensors(loader_of())
    array = batches.loader.batch_at(0)["image"]

    tensor = batches._convert(array)

    assert memory(tensor) == array.ctypes.data
    array[0, 0, 0] = 77
    assert tensor.numpy()[0, 0, 0] == 77


def test_numeric_tensors_are_shared_and_none_is_copied() -> None:
    loader = loader_of()

    list(gltf.tensors(loader))

    assert (loader.stats()["tensors_shared"], loader.stats()["tensors_copied"]) == (6, 0)


def test_all_tensors_of_many_epochs_hold_what_they_were_after_the_loader_is_gone() -> None:
    loader = loader_of(shuffle=True, batch_size=1)
    batches = gltf.tensors(loader)
    held_batches = [pair for _ in range(10) for pair in batches]
    for _ in range(
        3
    ):  # more batches, which would be written over memory that was given back too early
        list(batches)
    loader.close()
    del loader, batches
    gc.collect()

    with loader_of(shuffle=True, batch_size=1) as again:
        expected = [batch for _ in range(10) for batch in again]
        for (image, label), batch in zip(held_batches, expected, strict=True):
            np.testing.assert_array_equal(image, batch["image"])
            np.testing.assert_array_equal(label, batch["label"])


def test_a_loop_that_drops_its_tensors_uses_its_slots_again() -> None:
    loader = loader_of(batch_size=1).replace(prefetch=2)
    batches = gltf.tensors(loader)
    for _ in batches:
        pass
    result = loader.stats()["slots_made"]

    for epoch in range(2, 7):
        for _ in batches:
            pass
        assert loader.stats()["slots_made"] <= epoch * (
            result + 1
        )  # memory is given back between epochs

    assert loader.stats()["slots_reused"] > 30


@pytest.mark.parametrize("code", "?bBhHiIlLefdFD")
def test_every_numeric_dtype_is_shared(code: str) -> None:
    values = np.array([0, 1, 1, 0, 1]).astype(code)
    loader = gl.Loader(gl.arrays(x=values), batch_size=5, output="x", device="cpu")

    [(tensor,)] = gltf.tensors(loader)

    assert tensor.dtype == tf.as_dtype(values.dtype)
    np.testing.assert_array_equal(tensor, values)
    assert loader.stats()["tensors_shared"] == 1


def _aligned(size: int) -> np.ndarray[Any, Any]:
    raw = np.zeros(8 * size + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    return raw[begin : begin + 8 * size].view(np.int64)


def _read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array.flags.writeable = False
    return array


UNSHAREABLE = {
    "not aligned": lambda: _aligned(17)[1:],
    "strided": lambda: _aligned(16)[::2],
    "columns first": lambda: _aligned(16).reshape(4, 4).T,
    "read-only": lambda: _read_only(_aligned(16)),
    "empty": lambda: _aligned(0),
}


@pytest.mark.parametrize("kind", UNSHAREABLE)
def test_an_array_that_tensorflow_cannot_take_is_copied_and_counted(kind: str) -> None:
    batches = gltf.tensors(loader_of())
    array = UNSHAREABLE[kind]()
    if array.flags.writeable:
        array[...] = np.arange(array.size).reshape(array.shape)

    tensor = batches._convert(array)

    np.testing.assert_array_equal(
        tensor + 1, array + 1
    )  # TensorFlow 2.21 aborts here on memory that is not aligned
    assert batches.loader.stats()["tensors_copied"] == 1
    assert batches.loader.stats()["tensors_shared"] == 0


def test_text_becomes_utf8_strings_and_bytes_stay_bytes() -> None:
    source = gl.arrays(text=np.array(["ä", "bc", ""]), data=np.array([b"x", b"yz", b""]))
    loader = gl.Loader(source, batch_size=3, device="cpu")

    (batch,) = gltf.tensors(loader)
    (element,) = gltf.dataset(loader)

    for nest in (batch, element):
        assert nest["text"].dtype == nest["data"].dtype == tf.string
        assert nest["text"].numpy().tolist() == ["ä".encode(), b"bc", b""]
        assert nest["data"].numpy().tolist() == [b"x", b"yz", b""]
    assert loader.stats()["tensors_copied"] == 4


TEXTS = {
    "text": tf.io.FixedLenFeature([], tf.string),
    "pair": tf.io.FixedLenFeature([2], tf.string),
    "words": tf.io.RaggedFeature(tf.string),
}


def texts_of(folder: Path) -> tuple[gl.Source, Any]:
    """Return a source of texts of any length, and what TensorFlow makes of its records."""
    payloads = [
        example(
            text=b"\xff\0" + b"t" * 400 * number, pair=[b"a", "ä".encode()], words=[b"w"] * number
        )
        for number in range(7)
    ]
    path = write(folder / "texts.tfrecord", payloads)
    return gl.tfrecord(path, TEXTS), tf.io.parse_example(payloads, TEXTS)


@pytest.mark.parametrize("hand_over", [gltf.tensors, gltf.dataset])
def test_texts_of_any_length_become_strings_as_in_parse_example(
    tmp_path: Path, hand_over: Any
) -> None:
    source, expected = texts_of(tmp_path)
    loader = gl.Loader(source, batch_size=3, device="cpu")

    batches = list(hand_over(loader))

    for name, whole in expected.items():
        entries = [
            item.to_list() if name == "words" else item.numpy().tolist()
            for item in [whole, *(b[name] for b in batches)]
        ]
        assert all(batch[name].dtype == tf.string for batch in batches)
        assert [value for values in entries[1:] for value in values] == entries[0]


def test_texts_of_any_length_have_no_form_in_the_plugin(tmp_path: Path) -> None:
    loader = gl.Loader(texts_of(tmp_path)[0], batch_size=3, device="cpu", output="text")

    with pytest.raises(
        SpecError, match=r"field 'text' \(text: bytes \(\)\) in DALI's TensorFlow plugin"
    ):
        gltf.dataset(loader, via="plugin")


@pytest.mark.parametrize("hand_over", [gltf.tensors, gltf.dataset])
def test_dates_are_refused_when_the_bridge_is_made(hand_over: Any) -> None:
    loader = gl.Loader(gl.arrays(day=np.array(["2024-01-01"], "M8[D]")), batch_size=1, device="cpu")

    with pytest.raises(
        SpecError, match=r"'day'.*cannot be a tf.Tensor[\s\S]*no dates[\s\S]*gl.ops.Cast"
    ):
        hand_over(loader)


@pytest.mark.parametrize("hand_over", [gltf.tensors, gltf.dataset])
def test_a_field_of_varying_shape_is_refused_when_the_bridge_is_made(hand_over: Any) -> None:
    loader = SimpleNamespace(
        output=None, spec_out=Spec((Field("x", np.dtype("f4"), (None, None)),)), device="cpu"
    )

    with pytest.raises(SpecError, match=r"'x'.*cannot be a tf.Tensor[\s\S]*varies"):
        hand_over(loader)


def ragged_files(folder: Path) -> gl.Loader:
    for number in range(7):
        np.save(
            folder / f"{number}.npy", np.arange(number * 2, dtype=np.float32).reshape(number, 2)
        )
    return gl.Loader(
        gl.npy(folder / "*.npy", record="file"), batch_size=3, output="x", device="cpu"
    )


def test_a_field_of_which_the_first_axis_varies_is_a_ragged_tensor(tmp_path: Path) -> None:
    results = [tensor.to_list() for (tensor,) in gltf.tensors(ragged_files(tmp_path))]
    expected = [[np.arange(n * 2, dtype=np.float32).reshape(n, 2).tolist() for n in range(i, min(i + 3, 7))]
                for i in (0, 3, 6)]  # fmt: skip

    assert results == expected


def test_a_dataset_of_ragged_values_is_that_of_the_tensors(tmp_path: Path) -> None:
    loader = ragged_files(tmp_path)
    data = gltf.dataset(loader)

    assert data.element_spec == tf.RaggedTensorSpec((None, None, 2), tf.float32, ragged_rank=1)
    assert [item.to_list() for item in data] == [item.to_list() for (item,) in gltf.tensors(loader)]


@pytest.mark.parametrize(
    "loop", [list, lambda loader: list(gltf.tensors(loader))], ids=["for", "tensors"]
)
def test_a_dataset_goes_on_after_a_loop_that_was_completed(loop: Any) -> None:
    loader = loader_of(shuffle=True)
    loop(loader)
    data = gltf.dataset(loader)

    results = [np.concatenate([label for _, label in data]).tolist() for _ in range(3)]

    expected = [
        np.concatenate([batch["label"] for batch in loader.epoch(number)]).tolist()
        for number in (1, 2, 3)
    ]
    assert results == expected
    assert loader.position.epoch == 4


def test_bfloat16_fields_are_bfloat16_tensors() -> None:
    bfloat16 = tf.bfloat16.as_numpy_dtype
    values = np.arange(20, dtype=np.float32).reshape(10, 2).astype(bfloat16)
    loader = gl.Loader(gl.arrays(x=values), 4, device="cpu", output="x")

    for batches in ([batch["x"] for batch in gltf.tensors(loader)], list(gltf.dataset(loader))):
        assert {item.dtype for item in batches} == {tf.bfloat16}
        np.testing.assert_array_equal(np.concatenate([item.numpy() for item in batches]), values)
    assert loader.stats()["tensors_shared"] >= 3


def test_complex_fields_are_complex_tensors() -> None:
    values = (np.arange(10) + 1j * np.arange(10)[::-1]).astype(np.complex64)
    loader = gl.Loader(gl.arrays(x=values), 4, device="cpu", output="x")

    for batches in ([batch["x"] for batch in gltf.tensors(loader)], list(gltf.dataset(loader))):
        np.testing.assert_array_equal(np.concatenate([item.numpy() for item in batches]), values)


def test_encoded_images_are_refused_with_the_op_that_decodes_them() -> None:
    field = Field("image", np.dtype(np.uint8), (None,), encoded=True)
    loader = SimpleNamespace(output="image", spec_out=Spec((field,)), device="cpu")

    with pytest.raises(SpecError, match=r"encoded image[\s\S]*gl.ops.Decode"):
        gltf.tensors(loader)


def test_a_gpu_that_tensorflow_does_not_see_is_an_error() -> None:
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("TensorFlow sees a GPU")
    loader = SimpleNamespace(
        output="x", spec_out=Spec((Field("x", np.dtype("f4"), ()),)), device="gpu:0"
    )

    with pytest.raises(DeviceError, match="TensorFlow sees 0 GPUs"):
        gltf.tensors(loader)


def test_leaving_a_loop_over_tensors_leaves_no_thread() -> None:
    with none_left():
        batches = gltf.tensors(loader_of())
        for _ in batches:
            break


# dataset


@pytest.mark.parametrize(
    ("last_batch", "num_steps", "axis"), [("partial", 3, None), ("drop", 2, 4), ("pad", 3, 4)]
)
def test_the_element_spec_and_the_cardinality_are_those_of_the_loader(
    last_batch: str, num_steps: int, axis: int | None
) -> None:
    data = gltf.dataset(loader_of(last_batch=last_batch))

    assert data.element_spec == (
        tf.TensorSpec((axis, 3, 2), tf.float32),
        tf.TensorSpec((axis,), tf.int64),
    )
    assert int(data.cardinality()) == num_steps
    assert len(list(data)) == num_steps


def test_a_dataset_has_the_values_of_the_loader_epoch_after_epoch() -> None:
    data, expected = gltf.dataset(loader_of(shuffle=True)), loader_of(shuffle=True)

    for _ in range(3):
        for (images, labels), batch in zip(data, expected, strict=True):
            np.testing.assert_array_equal(images, batch["image"])
            np.testing.assert_array_equal(labels, batch["label"])


def test_lists_in_output_become_tuples_in_a_dataset() -> None:
    data = gltf.dataset(loader_of({"pair": ["image", "label"]}))

    assert isinstance(next(iter(data))["pair"], tuple)


def test_a_dataset_takes_the_memory_of_the_batch_without_a_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handed_out: list[int] = []
    on_host = data._on_host

    def noted(loader: Any, array: Any) -> Any:
        handed_out.append(array.ctypes.data)
        return on_host(loader, array)

    monkeypatch.setattr(data, "_on_host", noted)

    results = [memory(tensor) for pair in gltf.dataset(loader_of()) for tensor in pair]

    assert results == handed_out


def test_all_elements_of_a_dataset_hold_what_they_were() -> None:
    loader = loader_of(shuffle=True, batch_size=1)
    data = gltf.dataset(loader)
    held_batches = [pair for _ in range(10) for pair in data]
    loader.close()

    expected = loader_of(shuffle=True, batch_size=1)
    batches = [batch for _ in range(10) for batch in expected]
    for (image, label), batch in zip(held_batches, batches, strict=True):
        np.testing.assert_array_equal(image, batch["image"])
        np.testing.assert_array_equal(label, batch["label"])


def test_a_dataset_reads_nothing_ahead_of_what_is_asked_of_it() -> None:
    loader = loader_of(batch_size=1)
    elements = iter(gltf.dataset(loader))

    next(elements), next(elements)
    threading.Event().wait(0.2)  # the time in which a dataset that reads ahead would do it

    assert loader.port.delivery_position.step == 2
    assert loader.position.step == 2


@pytest.mark.parametrize("change", [lambda data: data, lambda data: data.prefetch(1)])
def test_with_restart_every_iterator_begins_at_the_position_which_moves_with_the_last_batch(
    change: Any, caplog: pytest.LogCaptureFixture
) -> None:
    loader = loader_of(shuffle=True)
    data = change(gltf.dataset(loader, restart=True))
    expected = [labels_of(loader_of(shuffle=True).epoch(n)) for n in range(2)]
    for _ in range(3):
        assert next(iter(data))[1].numpy().tolist() == expected[0][0]
        assert labels_of(data.take(1)) == expected[0][:1]
    assert (loader.position.epoch, loader.position.step) == (0, 0)
    assert labels_of(data) == expected[0]
    assert (loader.position.epoch, loader.position.step) == (1, 0)
    assert labels_of(data.prefetch(8)) == expected[1]
    assert (loader.position.epoch, loader.position.step) == (2, 0)
    assert not caplog.records


def test_on_a_gpu_a_dataset_with_weights_goes_through_the_host_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    simdevice.install(monkeypatch, seed=5)

    with loader_of(device="gpu", executor="array") as loader:
        gltf.dataset(loader, weights=True)

        assert (
            "by a generator, through the host (the weights come from the host)" in loader.describe()
        )
    assert "tf.data copies the batches from gpu:0 to the host and back" in caplog.text
    assert "a loader with device='cpu' has them copied to the GPU alone" in caplog.text


def test_a_dataset_on_a_gpu_has_the_images_that_the_host_decodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for number in range(8):
        (tmp_path / f"{number}.jpg").write_bytes(imagefiles.jpeg(30 + number, 40))
    ops = [gl.ops.Decode(), gl.ops.RandomResizedCrop(16, 16), gl.ops.RandomFlip()]
    words: dict[str, Any] = {
        "source": gl.images(tmp_path, labels=None),
        "ops": ops,
        "output": "image",
    }
    with gl.Loader(batch_size=4, device="cpu", **words) as cpu:
        expected = [images.numpy() for images in gltf.dataset(cpu)]
    simdevice.install(monkeypatch, seed=5)

    with gl.Loader(batch_size=4, device="gpu", executor="array", **words) as loader:
        results = [images.numpy() for images in gltf.dataset(loader, via="generator")]
        is_for_plugin = plugin.why_not(loader, ("image",)) is None or not HAS_PLUGIN
    words["ops"] = [*ops, gl.ops.Normalize(9, 3)]
    with gl.Loader(batch_size=4, device="gpu", executor="array", **words) as loader:
        problem = plugin.why_not(loader, ("image",))

    for result, images in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, images)
    assert is_for_plugin  # all ops run on the host
    assert problem is not None
    assert "write decode='host' in place of executor='array'" in problem.remedy


HAS_PLUGIN = importlib.util.find_spec("nvidia.dali_tf_plugin") is not None
NEEDS_PLUGIN = pytest.mark.skipif(
    not HAS_PLUGIN, reason="DALI's TensorFlow plugin is not installed"
)
VIAS = ["generator", pytest.param("plugin", marks=NEEDS_PLUGIN)]


@pytest.mark.parametrize("via", VIAS)
def test_a_loop_over_a_dataset_that_was_left_goes_on_and_looking_at_a_batch_costs_nothing(
    via: Any,
) -> None:
    loader = counting(ops=[gl.ops.Normalize(0.0, 1.0, on="x")] if via == "plugin" else [])
    data, values, whole = gltf.dataset(loader, via=via), [], in_loops(5 * NUM_STEPS)

    for size in (2, 7, 17, 3, 29, 30, 2):  # ends one step before an epoch, with it, and behind it
        next(iter(data))  # somebody looks
        for number, (_, y) in enumerate(data, 1):
            values.append(y.numpy()[:, 0].astype(int).tolist())
            if number == size:
                break
        assert loader.position == loader.port.after(Position(), len(values))

    assert values == whole[: len(values)]
    assert len(values) == 2 + 7 + 17 + 3 + 1 + 30 + 2  # at most what is left of an epoch


@pytest.mark.parametrize("via", VIAS)
def test_what_is_taken_of_a_dataset_goes_on_and_so_does_its_repetition(via: Any) -> None:
    loader = counting()
    data, whole = gltf.dataset(loader, via=via), in_loops(4 * NUM_STEPS)

    def take(dataset: Any) -> list[list[int]]:
        return [y.numpy()[:, 0].astype(int).tolist() for _, y in dataset]

    parts = [
        take(data.take(12)),
        take(data.take(12)),
        take(data.take(12)),
        take(data.repeat().take(40)),
    ]
    assert [len(part) for part in parts] == [12, 12, 6, 40]
    assert sum(parts, []) == whole[:70]  # noqa: RUF017  four of them
    assert take(data.take(1)) == take(data.take(1)) == whole[70:71]  # looks
    assert int(data.take(12).cardinality()) == 12
    assert int(data.repeat().cardinality()) == tf.data.INFINITE_CARDINALITY


def test_a_dataset_that_goes_on_in_mid_epoch_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    loader = counting()
    for _ in range(3):
        list(gltf.dataset(loader).take(2))
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1
    assert "begins at epoch 0, step 2 of 30, behind the batches" in messages[0]
    assert "dataset(loader, restart=True)" in messages[0]


def test_batches_that_come_again_behind_something_that_reads_ahead_are_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loader, data = counting(), gltf.dataset(counting()).prefetch(2)
    assert labels_of(data.take(4)) == labels_of(data.take(4))
    data = gltf.dataset(loader)
    for _ in range(3):
        assert len(list(data.map(lambda x, y: y).take(4))) == 4
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2  # of each loader
    assert "begins at epoch 0, step 0 of 30, where the one before it began" in messages[1]
    assert "gltf.checkpoint(loader, path)" in messages[1]
    assert loader.position.step == 0


def test_a_single_batch_that_comes_for_the_third_time_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = gltf.dataset(counting())
    next(iter(data)), next(iter(data))
    assert not caplog.records
    next(iter(data)), next(iter(data))
    (messages,) = [record.getMessage() for record in caplog.records]
    assert "counts as one that looks" in messages
    assert "loader.peek()" in messages


def test_an_evaluation_behind_a_look_at_the_loader_says_once_that_a_batch_is_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loader = counting()
    next(iter(loader))
    assert len(list(gltf.dataset(loader))) == NUM_STEPS - 1
    assert len(list(gltf.dataset(loader))) == NUM_STEPS
    next(iter(loader))
    assert len(list(loader)) == NUM_STEPS - 1
    (messages,) = [record.getMessage() for record in caplog.records]
    assert "epoch 0 goes on at step 1 of 30" in messages
    assert "loader.peek()" in messages
    caplog.clear()
    loader.load_state_dict(loader.state_dict(0, 1))
    list(counting(batch_size=60)), list(loader)
    assert not caplog.records


def test_a_dataset_keeps_its_loader_and_nothing_keeps_it_longer() -> None:
    loader = loader_of()
    data = gltf.dataset(loader).map(lambda image, label: label).prefetch(1)
    gone = weakref.ref(loader)
    del loader
    gc.collect()
    assert len(list(data)) == 3
    del data
    gc.collect()
    assert gone() is None


def test_a_named_tuple_is_one_in_a_dataset_and_a_dataclass_is_refused() -> None:
    pair = collections.namedtuple("pair", "x y")
    assert next(iter(gltf.dataset(loader_of(pair("image", "label"))))).y.numpy().tolist() == [
        0,
        1,
        2,
        3,
    ]
    kind = dataclasses.make_dataclass("kind", ["x", "y"])
    with pytest.raises(SpecError, match="no dataclasses"):
        gltf.dataset(loader_of(kind("image", "label")))


@pytest.mark.parametrize(
    "hand_over", [gltf.tensors, gltf.dataset, lambda item: gltf.checkpoint(item, "state.json")]
)
@pytest.mark.parametrize("item", [gl.arrays(x=LABELS), None, [1, 2]])
def test_what_is_no_loader_is_refused_with_what_to_write(hand_over: Any, item: Any) -> None:
    with pytest.raises(SpecError, match=r"gl\.Loader\(source, batch_size=256\)"):
        hand_over(item)


def test_a_resumed_dataset_gives_the_rest_of_its_epoch_and_then_whole_epochs() -> None:
    first_part = loader_of(shuffle=True)
    next(iter(first_part))
    later, whole = loader_of(shuffle=True), loader_of(shuffle=True)
    data = gltf.dataset(later)
    later.load_state_dict(first_part.state_dict())

    epochs = [labels_of(data), labels_of(data)]

    expected = [[batch["label"].tolist() for batch in whole] for _ in range(2)]
    assert epochs == [expected[0][1:], expected[1]]


@pytest.mark.parametrize("change", [lambda data: data, lambda data: data.prefetch(1)])
def test_an_iterator_of_a_dataset_says_that_a_state_was_loaded_and_moves_nothing(
    change: Any,
) -> None:
    loader = loader_of(shuffle=True, batch_size=1)
    data = change(gltf.dataset(loader))
    run, rest = iter(data), iter(data)
    next(run)

    loader.load_state_dict(loader.state_dict(2, 4))

    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"SpecError: the loader is at epoch 2, step 4[\s\S]*make a new",
    ):
        list(run)
    assert (loader.position.epoch, loader.position.step) == (2, 4)
    assert next(rest)[1].numpy().tolist() == loader.batch_at(4, 2)["label"].tolist()


def test_dropping_an_iterator_of_a_dataset_in_mid_epoch_leaves_no_thread() -> None:
    with none_left():
        data = gltf.dataset(loader_of())
        for _ in data:
            break


def test_an_iterator_that_is_not_read_takes_no_epoch() -> None:
    data = gltf.dataset(loader_of(shuffle=True))
    iter(data)

    actual = labels_of(data)

    assert actual == [batch["label"].tolist() for batch in loader_of(shuffle=True)]


def test_an_error_in_the_loader_surfaces_with_its_text_at_its_step() -> None:
    elements = iter(gltf.dataset(gl.Loader(Damaged(), batch_size=2, output="x", device="cpu")))
    values = [next(elements).numpy().tolist() for _ in range(3)]

    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"RecordError: numbers\.bin, record 6: it is damaged"
    ):
        next(elements)

    assert values == [[0, 1], [2, 3], [4, 5]]


def test_weights_are_zero_where_the_batch_is_padded() -> None:
    data = gltf.dataset(loader_of(last_batch="pad"), weights=True)

    weights = [weight.numpy().tolist() for _, _, weight in data]

    assert data.element_spec[2] == tf.TensorSpec((4,), tf.float32)
    assert weights == [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]]


def test_weights_need_a_pair() -> None:
    with pytest.raises(SpecError, match="sample weights come third"):
        gltf.dataset(loader_of("image"), weights=True)


# Keras


def line_model() -> Any:
    """A model that can learn y = 2 x, and a loader of that."""
    keras = tf.keras
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.4), loss="mse")
    return model


def line_loader(**arguments: Any) -> gl.Loader:
    x = np.linspace(-1, 1, 10, dtype=np.float32)[:, None]
    source = gl.arrays(x=x, y=2 * x)
    return gl.Loader(
        source,
        **{"batch_size": 4, "output": ("x", "y"), "shuffle": True, "device": "cpu", **arguments},
    )


@pytest.mark.parametrize("steps_per_epoch", [3, pytest.param(None, marks=pytest.mark.slow)])
def test_keras_fits_any_number_of_epochs_with_validation(steps_per_epoch: int | None) -> None:
    model, loader, validation = line_model(), line_loader(), line_loader(shuffle=False)

    history = model.fit(
        gltf.dataset(loader), epochs=8, steps_per_epoch=steps_per_epoch, shuffle=False, verbose=0,
        validation_data=gltf.dataset(validation),
    )  # fmt: skip

    assert history.history["val_loss"][-1] < 0.01 < history.history["val_loss"][0]
    assert loader.stats()["batches"] == validation.stats()["batches"] == 24
    assert loader.state_dict()["epoch"] == 8


def test_keras_sees_the_same_batches_as_a_loop() -> None:
    by_fit, by_loop = line_model(), line_model()

    by_fit.fit(gltf.dataset(line_loader()), epochs=2, shuffle=False, verbose=0)
    batches = gltf.tensors(line_loader())
    for _ in range(2):
        for x, y in batches:
            by_loop.train_on_batch(x, y)

    np.testing.assert_array_equal(by_fit.get_weights()[0], by_loop.get_weights()[0])


NUM_STEPS = 30  # of an epoch of `counting`


class Recording(tf.keras.Model):  # type: ignore[misc]
    """Notes which records each step was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.trained: list[list[int]] = []
        self.layer = tf.keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.layer(x / 60)

    def train_step(self, data: Any) -> Any:
        tf.py_function(
            lambda x: self.trained.append([int(value) for value in x.numpy()[:, 0]]), [data[0]], []
        )
        return super().train_step(data)


@functools.cache
def _recording(strategy: str, options: tuple[tuple[str, Any], ...]) -> Recording:
    with STRATEGIES[strategy]():
        model = Recording()
        model.compile(optimizer="sgd", loss="mse", **dict(options))
    return model


def recording(strategy: str = "plain", **options: Any) -> Recording:
    """Return the one model with these options, as new: TensorFlow needs half a second to trace the
    step of a model."""
    model = _recording(strategy, tuple(options.items()))
    model.trained.clear()
    model._initial_epoch = None  # in which `fit` begins: Keras never forgets it
    return model


def counting(**arguments: Any) -> gl.Loader:
    """A loader of records that hold their numbers, 2 a batch."""
    x = np.arange(2 * NUM_STEPS, dtype=np.float32)[:, None]
    source = gl.arrays(x=x, y=x)
    return gl.Loader(
        source,
        **{"batch_size": 2, "output": ("x", "y"), "shuffle": True, "device": "cpu", **arguments},
    )


def in_loops(num_steps: int, start: int = 0) -> list[list[int]]:
    """Return the records of some steps, as loops over the loader give them."""
    with counting() as loader:
        batches = [batch.records.tolist() for _ in range(6) for batch in loader]
    return batches[start : start + num_steps]


STRATEGIES = {
    "plain": contextlib.nullcontext,
    "one mirror": lambda: tf.distribute.MirroredStrategy(["CPU:0"]).scope(),
}
CHANGES = {"as it is": lambda data: data, "prefetch": lambda data: data.prefetch(8)}
STARTS, STEPS_PER_EXECUTION = (0, 10), (1, 4)  # more is left than is read ahead


@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
@pytest.mark.filterwarnings("ignore:.*jit_compile:UserWarning")
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("steps_per_execution", STEPS_PER_EXECUTION)
def test_fit_trains_on_every_step_once_fresh_and_resumed_and_the_callback_knows_which(
    start: int, strategy: str, change: str, steps_per_execution: int, tmp_path: Path
) -> None:
    loader = counting()
    loader.load_state_dict(loader.state_dict(0, start))
    callback, states = gltf.checkpoint(loader, tmp_path / "state.json", every_steps=4), []
    look = tf.keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: states.append(callback.state())
    )
    model = recording(strategy, steps_per_execution=steps_per_execution, jit_compile=False)
    data = CHANGES[change](gltf.dataset(loader))

    for _ in range(2):
        model.fit(data, epochs=1, shuffle=False, verbose=0, callbacks=[callback, look])

    num_trained = 2 * NUM_STEPS - start
    assert model.trained == in_loops(num_trained, start)
    assert json.loads((tmp_path / "state.json").read_text()) == loader.state_dict(2)
    values = [state["epoch"] * NUM_STEPS + state["step"] - start for state in states]
    assert values[-1] == num_trained
    assert values == sorted(values)
    if steps_per_execution == 1:
        assert values == list(range(1, num_trained + 1))
    assert list(tmp_path.iterdir()) == [tmp_path / "state.json"]


@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
@pytest.mark.parametrize("steps_per_epoch", [7, 15, 30])
def test_epochs_of_keras_may_be_shorter_than_those_of_the_loader(
    steps_per_epoch: int, tmp_path: Path
) -> None:
    loader, model = counting(), recording()
    callback = gltf.checkpoint(loader, tmp_path / "state.json")

    model.fit(
        gltf.dataset(loader).repeat(),
        epochs=5,
        steps_per_epoch=steps_per_epoch,
        shuffle=False,
        verbose=0,
        callbacks=[callback],
    )

    num_trained = 5 * steps_per_epoch
    assert model.trained == in_loops(num_trained)
    assert json.loads((tmp_path / "state.json").read_text()) == loader.state_dict(
        *divmod(num_trained, NUM_STEPS)
    )


def test_the_state_of_a_run_that_goes_on_with_another_batch_size_is_right_also_when_all_was_read_ahead(
    tmp_path: Path,
) -> None:
    loader, model, states = counting(batch_size=7), recording(), []
    loader.load_state_dict(counting(batch_size=2).state_dict(0, 5))  # 10 records were trained
    callback = gltf.checkpoint(loader, tmp_path / "state.json")
    look = tf.keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: states.append(callback.state())
    )

    data = gltf.dataset(loader).prefetch(20)
    model.fit(
        data, epochs=1, steps_per_epoch=6, shuffle=False, verbose=0, callbacks=[callback, look]
    )

    assert [state["position"] for state in states] == [10 + 7 * (step + 1) for step in range(6)]


def test_a_part_of_a_dataset_is_the_next_part_in_each_epoch_of_keras(tmp_path: Path) -> None:
    loader, model = counting(), recording()
    callback = gltf.checkpoint(loader, tmp_path / "state.json")

    for epochs, steps in ((1, 5), (2, 15)):
        model.fit(
            gltf.dataset(loader).take(5),
            epochs=epochs,
            shuffle=False,
            verbose=0,
            callbacks=[callback],
        )
        assert json.loads((tmp_path / "state.json").read_text())["step"] == steps

    assert model.trained == in_loops(15)


@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
@pytest.mark.parametrize("make", ["each time", "once"])
@pytest.mark.parametrize("via", VIAS)
def test_fit_with_steps_per_epoch_called_again_trains_on_the_next_batches(
    via: Any, make: str
) -> None:
    loader, model = counting(), recording(**({"steps_per_execution": 2} if make == "once" else {}))
    data = gltf.dataset(loader, via=via).repeat()

    for steps in (
        (6, 8, 2, 6) if make == "once" else (7, 8, 2, 5)
    ):  # then the second ends behind the first batch
        data = data if make == "once" else gltf.dataset(loader, via=via).repeat()
        model.fit(
            data, steps_per_epoch=steps, epochs=3 if steps == 8 else 1, shuffle=False, verbose=0
        )

    assert model.trained == in_loops(38)
    assert (loader.position.epoch, loader.position.step) == (1, 8)


def test_fit_with_steps_per_epoch_and_a_callback_is_exact_whatever_was_read_ahead(
    tmp_path: Path,
) -> None:
    loader, model = counting(), recording()
    callback = gltf.checkpoint(loader, tmp_path / "state.json")

    for _ in range(5):
        data = gltf.dataset(loader).prefetch(4).repeat()
        model.fit(data, steps_per_epoch=7, shuffle=False, verbose=0, callbacks=[callback])

    assert model.trained == in_loops(35)
    assert (loader.position.epoch, loader.position.step) == (1, 5)


def test_validation_steps_see_the_same_batches_with_restart() -> None:
    class Evaluating(Recording):
        def test_step(self, data: Any) -> Any:
            tf.py_function(
                lambda x: values.append(x.numpy()[:, 0].astype(int).tolist()), [data[0]], []
            )
            return super().test_step(data)

    values: list[list[int]] = []
    model = Evaluating()
    model.compile(optimizer="sgd", loss="mse")
    validation = gltf.dataset(counting(), restart=True)

    model.fit(
        gltf.dataset(counting()),
        epochs=2,
        shuffle=False,
        verbose=0,
        validation_data=validation,
        validation_steps=3,
    )

    assert values == 2 * in_loops(3)


TORCH_FIT = """
import json, sys
import numpy as np
import keras
import gpuload as gl
from gpuload.bridges import tensorflow as gltf
assert keras.backend.backend() == "torch"
x = np.arange(60, dtype=np.float32)[:, None]
loader = gl.Loader(gl.arrays(x=x, y=x), batch_size=2, output=("x", "y"), shuffle=True, device="cpu")
loader.load_state_dict(loader.state_dict(0, int(sys.argv[1])))
trained = []

class Recording(keras.Sequential):
    def train_step(self, data):
        trained.append(data[0].cpu().numpy()[:, 0].astype(int).tolist())
        return super().train_step(data)

model = Recording([keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
model.fit(gltf.dataset(loader), epochs=2, shuffle=False, verbose=0)
print(json.dumps(trained))
"""


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, 20])
def test_keras_on_torch_trains_on_every_step_once_fresh_and_resumed(start: int) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-W", "ignore", "-c", TORCH_FIT, str(start)]
    process = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "KERAS_BACKEND": "torch"}
    )
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout.splitlines()[-1]) == in_loops(2 * NUM_STEPS - start, start)


def test_padding_does_not_count_in_weighted_metrics() -> None:
    model = line_model()
    model.compile(optimizer="sgd", loss="mse", weighted_metrics=["mse"])

    full = model.evaluate(
        gltf.dataset(line_loader(last_batch="pad"), weights=True), verbose=0, return_dict=True
    )
    whole = model.evaluate(gltf.dataset(line_loader(batch_size=10)), verbose=0, return_dict=True)

    assert full["mse"] == pytest.approx(whole["mse"], rel=1e-5)  # float32 sums in another order


@pytest.mark.gpu
def test_tensors_on_a_gpu_hold_what_they_were_while_further_batches_come() -> None:
    loader = loader_of(device="gpu", batch_size=1, shuffle=True)
    batches = gltf.tensors(loader)
    sums = []
    held_batches = []
    for _ in range(20):
        for image, label in batches:
            assert "GPU" in image.device
            sums.append(tf.reduce_sum(image))  # queued, while the array is given back
            held_batches.append((image, label))

    expected = loader_of(batch_size=1, shuffle=True)
    for total, (image, label), batch in zip(
        sums, held_batches, [b for _ in range(20) for b in expected], strict=True
    ):
        np.testing.assert_array_equal(image, batch["image"])
        np.testing.assert_array_equal(label, batch["label"])
        assert float(total) == batch["image"].sum()


@pytest.mark.gpu
def test_a_dataset_of_a_loader_on_a_gpu_has_the_same_values() -> None:
    data, expected = gltf.dataset(loader_of(device="gpu")), loader_of()

    for (images, labels), batch in zip(data, expected, strict=True):
        np.testing.assert_array_equal(images, batch["image"])
        np.testing.assert_array_equal(labels, batch["label"])
