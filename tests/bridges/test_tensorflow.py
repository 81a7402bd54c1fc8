"""The TensorFlow bridge: tensors that share the loader's memory, and the loader as a tf.data.Dataset."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow")

import gpuload as gl  # noqa: E402
from gpuload.bridges import tensorflow as gltf  # noqa: E402
from gpuload.errors import DeviceError, RecordError, SpecError  # noqa: E402
from gpuload.sources.base import Source  # noqa: E402
from gpuload.spec import Field, Spec  # noqa: E402

IMAGES = np.arange(10 * 6, dtype=np.float32).reshape(10, 3, 2)
LABELS = np.arange(10)


def loader_of(output: Any = ("image", "label"), **arguments: Any) -> gl.Loader:
    """A loader of 10 records, 4 a batch, in order."""
    source = gl.arrays(image=IMAGES, label=LABELS)
    return gl.Loader(source, **{"batch_size": 4, "output": output, "device": "cpu", **arguments})


def memory(tensor: Any) -> int:
    """The address of an eager tensor on the host."""
    return int(np.asarray(memoryview(tensor)).ctypes.data)


def labels_of(batches: Any) -> list[list[int]]:
    return [labels.numpy().tolist() for _, labels in batches]


def no_threads_are_left() -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        gc.collect()
        if not any(thread.name.startswith("gpuload-") for thread in threading.enumerate()):
            return True
        threading.Event().wait(0.01)
    return False


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
            raise RecordError("numbers.bin, record 6: it is damaged", cause="a flipped bit", remedy="copy it again")
        return self._whole.resolve(numbers)


# tensors


def test_tensors_are_the_batches_in_order_as_output_arranges_them() -> None:
    batches = list(gltf.tensors(loader_of()))

    assert [type(batch) for batch in batches] == [tuple, tuple, tuple]
    np.testing.assert_array_equal(np.concatenate([images.numpy() for images, _ in batches]), IMAGES)
    assert labels_of(batches) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_tensors_without_output_are_a_dict_of_all_fields() -> None:
    batch = next(iter(gltf.tensors(loader_of(None))))

    assert sorted(batch) == ["image", "label"]
    np.testing.assert_array_equal(batch["label"], LABELS[:4])


def test_a_nest_keeps_its_lists_and_dicts() -> None:
    batch = next(iter(gltf.tensors(loader_of({"inputs": ["image", {"again": "image"}], "target": "label"}))))

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
    batches = gltf.Tensors(loader_of())
    array = batches.loader.batch_at(0)["image"]

    tensor = batches._tensor(array)

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
    kept = [pair for _ in range(10) for pair in batches]
    for _ in range(3):  # more batches, which would be written over memory that was given back too early
        list(batches)
    loader.close()
    del loader, batches
    gc.collect()

    with loader_of(shuffle=True, batch_size=1) as again:
        expected = [batch for _ in range(10) for batch in again]
        for (image, label), batch in zip(kept, expected, strict=True):
            np.testing.assert_array_equal(image, batch["image"])
            np.testing.assert_array_equal(label, batch["label"])


def test_a_loop_that_drops_its_tensors_uses_its_slots_again() -> None:
    loader = loader_of(batch_size=1).replace(prefetch=2)
    batches = gltf.tensors(loader)
    for _ in batches:
        pass
    made = loader.stats()["slots_made"]

    for epoch in range(2, 7):
        for _ in batches:
            pass
        assert loader.stats()["slots_made"] <= epoch * (made + 1)  # memory is given back between epochs

    assert loader.stats()["slots_reused"] > 30


@pytest.mark.parametrize("code", "?bBhHiIlLefdFD")
def test_every_numeric_dtype_is_shared(code: str) -> None:
    values = np.array([0, 1, 1, 0, 1]).astype(code)
    loader = gl.Loader(gl.arrays(x=values), batch_size=5, output="x", device="cpu")

    (tensor,) = gltf.tensors(loader)

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
    batches = gltf.Tensors(loader_of())
    array = UNSHAREABLE[kind]()
    if array.flags.writeable:
        array[...] = np.arange(array.size).reshape(array.shape)

    tensor = batches._tensor(array)

    np.testing.assert_array_equal(tensor + 1, array + 1)  # TensorFlow 2.21 aborts here on memory that is not aligned
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


@pytest.mark.parametrize("hand_over", [gltf.tensors, gltf.dataset])
def test_dates_are_refused_when_the_bridge_is_made(hand_over: Any) -> None:
    loader = gl.Loader(gl.arrays(day=np.array(["2024-01-01"], "M8[D]")), batch_size=1, device="cpu")

    with pytest.raises(SpecError, match=r"'day'.*cannot be a tf.Tensor[\s\S]*no dates[\s\S]*gl.ops.Cast"):
        hand_over(loader)


@pytest.mark.parametrize("hand_over", [gltf.tensors, gltf.dataset])
def test_a_field_of_varying_shape_is_refused_when_the_bridge_is_made(hand_over: Any) -> None:
    loader = SimpleNamespace(output=None, spec_out=Spec((Field("x", np.dtype("f4"), (None, None)),)), device="cpu")

    with pytest.raises(SpecError, match=r"'x'.*cannot be a tf.Tensor[\s\S]*varies"):
        hand_over(loader)


def ragged_files(folder: Path) -> gl.Loader:
    for number in range(7):
        np.save(folder / f"{number}.npy", np.arange(number * 2, dtype=np.float32).reshape(number, 2))
    return gl.Loader(gl.npy(folder / "*.npy", record="file"), batch_size=3, output="x", device="cpu")


def test_a_field_of_which_the_first_axis_varies_is_a_ragged_tensor(tmp_path: Path) -> None:
    found = [row.to_list() for tensor in gltf.tensors(ragged_files(tmp_path)) for row in [tensor]]
    expected = [[np.arange(n * 2, dtype=np.float32).reshape(n, 2).tolist() for n in range(i, min(i + 3, 7))]
                for i in (0, 3, 6)]  # fmt: skip

    assert found == expected


def test_a_dataset_of_ragged_values_is_that_of_the_tensors(tmp_path: Path) -> None:
    loader = ragged_files(tmp_path)
    data = gltf.dataset(loader)

    assert data.element_spec == tf.RaggedTensorSpec((None, None, 2), tf.float32, ragged_rank=1)
    assert [one.to_list() for one in data] == [one.to_list() for one in gltf.tensors(loader)]


def test_encoded_images_are_refused_with_the_op_that_decodes_them() -> None:
    field = Field("image", np.dtype(np.uint8), (None,), encoded=True)
    loader = SimpleNamespace(output="image", spec_out=Spec((field,)), device="cpu")

    with pytest.raises(SpecError, match=r"encoded image[\s\S]*gl.ops.Decode"):
        gltf.tensors(loader)


def test_a_gpu_that_tensorflow_does_not_see_is_an_error() -> None:
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("TensorFlow sees a GPU")
    loader = SimpleNamespace(output="x", spec_out=Spec((Field("x", np.dtype("f4"), ()),)), device="gpu:0")

    with pytest.raises(DeviceError, match="TensorFlow sees 0 GPUs"):
        gltf.tensors(loader)


def test_leaving_a_loop_over_tensors_leaves_no_thread() -> None:
    batches = gltf.tensors(loader_of())
    for _ in batches:
        break

    assert no_threads_are_left()


# dataset


@pytest.mark.parametrize(("last_batch", "num_steps", "axis"), [("partial", 3, None), ("drop", 2, 4), ("pad", 3, 4)])
def test_the_element_spec_and_the_cardinality_are_those_of_the_loader(
    last_batch: str, num_steps: int, axis: int | None
) -> None:
    data = gltf.dataset(loader_of(last_batch=last_batch))

    assert data.element_spec == (tf.TensorSpec((axis, 3, 2), tf.float32), tf.TensorSpec((axis,), tf.int64))
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


def test_a_dataset_takes_the_memory_of_the_batch_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    handed_out: list[int] = []
    on_host = gltf._on_host

    def noted(loader: Any, array: Any) -> Any:
        handed_out.append(array.ctypes.data)
        return on_host(loader, array)

    monkeypatch.setattr(gltf, "_on_host", noted)

    got = [memory(tensor) for pair in gltf.dataset(loader_of()) for tensor in pair]

    assert got == handed_out


def test_all_elements_of_a_dataset_hold_what_they_were() -> None:
    loader = loader_of(shuffle=True, batch_size=1)
    data = gltf.dataset(loader)
    kept = [pair for _ in range(10) for pair in data]
    loader.close()

    expected = loader_of(shuffle=True, batch_size=1)
    batches = [batch for _ in range(10) for batch in expected]
    for (image, label), batch in zip(kept, batches, strict=True):
        np.testing.assert_array_equal(image, batch["image"])
        np.testing.assert_array_equal(label, batch["label"])


def test_the_state_is_what_was_asked_of_the_dataset_and_nothing_read_ahead() -> None:
    loader = loader_of(batch_size=1)
    elements = iter(gltf.dataset(loader))

    next(elements), next(elements)
    threading.Event().wait(0.2)  # the time in which a dataset that reads ahead would do it

    assert loader.state_dict()["step"] == 2


def test_a_resumed_dataset_gives_the_rest_of_its_epoch_and_then_whole_epochs() -> None:
    stopped = loader_of(shuffle=True)
    next(iter(stopped))
    resumed, whole = loader_of(shuffle=True), loader_of(shuffle=True)
    data = gltf.dataset(resumed)
    resumed.load_state_dict(stopped.state_dict())

    epochs = [labels_of(data), labels_of(data)]

    expected = [[batch["label"].tolist() for batch in whole] for _ in range(2)]
    assert epochs == [expected[0][1:], expected[1]]


def test_dropping_an_iterator_of_a_dataset_in_mid_epoch_leaves_no_thread() -> None:
    data = gltf.dataset(loader_of())
    for _ in data:
        break

    assert no_threads_are_left()


def test_an_iterator_that_is_not_read_takes_no_epoch() -> None:
    data = gltf.dataset(loader_of(shuffle=True))
    iter(data)

    got = labels_of(data)

    assert got == [batch["label"].tolist() for batch in loader_of(shuffle=True)]


def test_an_error_in_the_loader_surfaces_with_its_text_at_its_step() -> None:
    elements = iter(gltf.dataset(gl.Loader(Damaged(), batch_size=2, output="x", device="cpu")))
    seen = [next(elements).numpy().tolist() for _ in range(3)]

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"RecordError: numbers\.bin, record 6: it is damaged"):
        next(elements)

    assert seen == [[0, 1], [2, 3], [4, 5]]


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
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    return model


def line_loader(**arguments: Any) -> gl.Loader:
    x = np.linspace(-1, 1, 10, dtype=np.float32)[:, None]
    source = gl.arrays(x=x, y=2 * x)
    return gl.Loader(source, **{"batch_size": 4, "output": ("x", "y"), "shuffle": True, "device": "cpu", **arguments})


@pytest.mark.parametrize("steps_per_epoch", [None, 3])
def test_keras_fits_any_number_of_epochs_with_validation(steps_per_epoch: int | None) -> None:
    model, loader, validation = line_model(), line_loader(), line_loader(shuffle=False)

    history = model.fit(
        gltf.dataset(loader), epochs=30, steps_per_epoch=steps_per_epoch, shuffle=False, verbose=0,
        validation_data=gltf.dataset(validation),
    )  # fmt: skip

    assert history.history["val_loss"][-1] < 0.01 < history.history["val_loss"][0]
    assert loader.stats()["batches"] == validation.stats()["batches"] == 90
    assert loader.state_dict()["epoch"] == 30


def test_keras_sees_the_same_batches_as_a_loop() -> None:
    by_fit, by_loop = line_model(), line_model()

    by_fit.fit(gltf.dataset(line_loader()), epochs=2, shuffle=False, verbose=0)
    batches = gltf.tensors(line_loader())
    for _ in range(2):
        for x, y in batches:
            by_loop.train_on_batch(x, y)

    np.testing.assert_array_equal(by_fit.get_weights()[0], by_loop.get_weights()[0])


def test_padding_does_not_count_in_weighted_metrics() -> None:
    model = line_model()
    model.compile(optimizer="sgd", loss="mse", weighted_metrics=["mse"])

    padded = model.evaluate(gltf.dataset(line_loader(last_batch="pad"), weights=True), verbose=0, return_dict=True)
    whole = model.evaluate(gltf.dataset(line_loader(batch_size=10)), verbose=0, return_dict=True)

    assert padded["mse"] == pytest.approx(whole["mse"], rel=1e-5)  # float32 sums in another order


@pytest.mark.gpu
def test_tensors_on_a_gpu_hold_what_they_were_while_further_batches_come() -> None:
    loader = loader_of(device="gpu", batch_size=1, shuffle=True)
    batches = gltf.tensors(loader)
    sums = []
    kept = []
    for _ in range(20):
        for image, label in batches:
            assert "GPU" in image.device
            sums.append(tf.reduce_sum(image))  # queued, while the array is given back
            kept.append((image, label))

    expected = loader_of(batch_size=1, shuffle=True)
    for total, (image, label), batch in zip(sums, kept, [b for _ in range(20) for b in expected], strict=True):
        np.testing.assert_array_equal(image, batch["image"])
        np.testing.assert_array_equal(label, batch["label"])
        assert float(total) == batch["image"].sum()


@pytest.mark.gpu
def test_a_dataset_of_a_loader_on_a_gpu_has_the_same_values() -> None:
    data, expected = gltf.dataset(loader_of(device="gpu")), loader_of()

    for (images, labels), batch in zip(data, expected, strict=True):
        np.testing.assert_array_equal(images, batch["image"])
        np.testing.assert_array_equal(labels, batch["label"])
