"""The DALI bridge: a loader as the reader of a pipeline, and as a source of it."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

dali = pytest.importorskip("nvidia.dali")

from nvidia.dali import fn, pipeline_def, types  # noqa: E402
from nvidia.dali.plugin.base_iterator import LastBatchPolicy  # noqa: E402

import gpuload as gl  # noqa: E402
from gpuload import rng  # noqa: E402
from gpuload.bridges import dali as gldali  # noqa: E402
from gpuload.bridges.dali import columns, feed, nodes  # noqa: E402
from gpuload.errors import ClosedError, DeviceError, RecordError, SpecError  # noqa: E402
from gpuload.sources.base import Source  # noqa: E402
from gpuload.spec import Field, Spec  # noqa: E402
from gpuload.testing.bridges import BridgeContract  # noqa: E402
from tests import codeblocks, imagefiles, simdevice  # noqa: E402
from tests.threads import none_left, threads  # noqa: E402

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "dali.md"
IMAGES = np.arange(11 * 6, dtype=np.float32).reshape(11, 3, 2)
LABELS = np.arange(11)


class Runs:
    """The runs of a pipeline that is nothing but a reader; a loop over them ends with the epoch."""

    def __init__(self, loader: gl.Loader) -> None:
        # Anything else than a loader has no batch size, and is refused by the reader.
        batch_size = getattr(loader, "batch_size", 1)

        @pipeline_def(batch_size=batch_size, num_threads=1, device_id=None)
        def defined() -> Any:
            return gldali.reader(loader)

        self._pipeline = defined()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        self._pipeline.reset()
        with contextlib.suppress(StopIteration):
            while True:
                outputs = self._pipeline.run()
                yield tuple(np.array(output.as_tensor()) for output in outputs)


class TestReader(BridgeContract):
    module, package, extra = "gpuload.bridges.dali", "nvidia.dali", "cpu"
    takes = frozenset({"axes that vary", "encoded images"})
    nests, ends_with_error = False, True

    def batches(self, loader: gl.Loader) -> Any:
        return Runs(loader)


def loader_of(**arguments: Any) -> gl.Loader:
    """A loader of 11 records, 4 a batch, shuffled."""
    return gl.Loader(
        gl.arrays(image=IMAGES, label=LABELS),
        **{
            "batch_size": 4,
            "output": ("image", "label"),
            "shuffle": True,
            "seed": 5,
            "device": "cpu",
            **arguments,
        },
    )


def pipeline(
    loader: gl.Loader,
    graph: Any = None,
    *,
    name: str | None = None,
    draws: Any = None,
    **settings: Any,
) -> Any:
    """A pipeline of what `reader` makes, as it is or as ``graph`` changes it."""

    @pipeline_def(
        **{"batch_size": loader.batch_size, "num_threads": 2, "device_id": None, **settings}
    )
    def defined() -> Any:
        nodes = gldali.reader(loader, name=name, draws=draws)
        nodes = nodes if isinstance(nodes, tuple) else (nodes,)
        return nodes if graph is None else graph(*nodes)

    return defined()


def arrays(outputs: Any) -> list[Any]:
    """The outputs of a run, each an array or a list of arrays."""
    return [
        np.asarray(output.as_tensor())
        if output.is_dense_tensor()
        else list(map(np.asarray, output))
        for output in outputs
    ]


def runs(pipe: Any, num_epochs: int = 1) -> list[list[list[Any]]]:
    """The batches of some epochs as lists of arrays."""
    epochs = []
    for _ in range(num_epochs):
        batches = []
        while True:
            try:
                batches.append(arrays(pipe.run()))
            except StopIteration:
                break
        pipe.reset()
        epochs.append(batches)
    return epochs


def labels_of(pipe: Any, num_epochs: int = 1) -> list[list[list[int]]]:
    return [[batch[-1].tolist() for batch in batches] for batches in runs(pipe, num_epochs)]


def expected(num_epochs: int, **arguments: Any) -> list[list[list[int]]]:
    """The labels of some epochs, as loops over the loader give them."""
    with loader_of(**arguments) as loader:
        return [[batch["label"].tolist() for batch in loader] for _ in range(num_epochs)]


def flat(lists: Any) -> list[Any]:
    """The lists one after the other."""
    return list(chain.from_iterable(lists))


def run_into(labels: list[Any], pipe: Any) -> None:
    """Run a pipeline of one output, for ever."""
    while True:
        labels.append(arrays(pipe.run())[0].tolist())


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


def damaged_loader(**arguments: Any) -> gl.Loader:
    return gl.Loader(Damaged(), **{"batch_size": 2, "output": "x", "device": "cpu", **arguments})


def photos(
    folder: Path,
    sizes: Any = ((40, 60), (64, 48), (33, 35), (80, 96), (50, 50), (41, 77), (64, 64)),
) -> Any:
    """A source of JPEG files, each with a number as its label."""
    for number, (height, width) in enumerate(sizes):
        (folder / f"{number}.jpg").write_bytes(imagefiles.jpeg(height, width))
    return gl.images(folder, labels=np.arange(len(sizes)))


# fields


def test_the_batches_of_a_pipeline_are_those_of_the_loader_epoch_after_epoch() -> None:
    pipe = pipeline(loader_of())

    with loader_of() as whole:
        for batches in runs(pipe, 3):
            for (images, labels), batch in zip(batches, whole, strict=True):
                np.testing.assert_array_equal(images, batch["image"])
                np.testing.assert_array_equal(labels, batch["label"])


def test_the_nodes_come_in_the_order_of_output_and_one_alone_is_a_node() -> None:
    dtypes = {}

    @pipeline_def(batch_size=4, num_threads=1, device_id=None)
    def defined(output: Any) -> Any:
        dtypes["nodes"] = gldali.reader(loader_of(output=output))
        return dtypes["nodes"]

    for output, kinds in ((("label", "image"), (types.INT64, types.FLOAT)), ({"y": "image"}, (types.FLOAT,)),
                          ("label", (types.INT64,)), (None, (types.FLOAT, types.INT64))):  # fmt: skip
        dtypes_of_nodes = tuple(tensors.dtype for tensors in defined(output).run())
        assert dtypes_of_nodes == kinds
        assert isinstance(dtypes["nodes"], tuple) == (len(kinds) > 1)


@pytest.mark.parametrize("name", ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
                                  "float16", "float32", "float64"])  # fmt: skip
def test_every_dtype_of_dali_is_told_to_it_and_comes_out_as_it_was(name: str) -> None:
    values = np.array([[0, 1, 1], [1, 0, 1], [0, 0, 1]]).astype(name)
    loader = gl.Loader(gl.arrays(x=values), batch_size=3, device="cpu")

    [[[result]]] = runs(pipeline(loader))

    assert result.dtype == values.dtype
    np.testing.assert_array_equal(result, values)


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        (np.array(["a", "bc"]), "boolean, integer and float"),
        (np.array([b"a", b"bc"]), "boolean, integer and float"),
        (np.array(["2024-01-01"], "M8[D]"), "boolean, integer and float"),
        (np.array([1j]), "boolean, integer and float"),
    ],
    ids=["text", "bytes", "dates", "complex"],
)
def test_a_field_that_dali_has_not_is_refused_when_the_pipeline_is_defined(
    values: Any, cause: str
) -> None:
    loader = gl.Loader(gl.arrays(x=values, y=np.zeros(len(values))), batch_size=1, device="cpu")

    with pytest.raises(
        SpecError, match=rf"field 'x'[\s\S]*cannot be a DataNode[\s\S]*{cause}[\s\S]*output="
    ):
        pipeline(loader)
    pipeline(loader.replace(output="y"))


def test_a_field_whose_rank_varies_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of(output="image")
    monkeypatch.setattr(loader, "spec_out", Spec((Field("image", np.dtype("f4"), None),)))

    with pytest.raises(SpecError, match="its rank varies"):
        pipeline(loader)


def test_axes_that_are_known_are_the_layout(tmp_path: Path) -> None:
    loader = gl.Loader(
        photos(tmp_path), 3, ops=[gl.ops.Decode(), gl.ops.Resize(8, 8)], device="cpu"
    )

    images, labels = pipeline(loader).run()

    assert (images.layout(), labels.layout()) == ("HWC", "")
    np.testing.assert_array_equal(np.asarray(images.as_tensor()), loader.batch_at(0)["image"])


def test_images_of_different_sizes_and_ragged_values_are_lists(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    for number in range(5):
        np.save(
            tmp_path / "rows" / f"{number}.npy",
            np.arange(number * 2, dtype=np.float32).reshape(number, 2),
        )
    rows = gl.Loader(
        gl.npy(tmp_path / "rows" / "*.npy", record="file"), batch_size=3, output="x", device="cpu"
    )
    image_loader = gl.Loader(
        photos(tmp_path), batch_size=4, ops=[gl.ops.Decode()], output="image", device="cpu"
    )

    for loader in (rows, image_loader):
        (batches,) = runs(pipeline(loader))
        for (values,), batch in zip(batches, loader.epoch(0), strict=True):
            assert len(values) == len(batch[0])
            for row, expectation in zip(values, batch[0], strict=True):
                np.testing.assert_array_equal(row, expectation)


def test_encoded_images_are_decoded_by_the_pipeline_of_the_user(tmp_path: Path) -> None:
    source = photos(tmp_path)
    loader = gl.Loader(source, batch_size=3, shuffle=True, device="cpu")
    decoded = gl.Loader(source, batch_size=3, shuffle=True, device="cpu", ops=[gl.ops.Decode()])

    (batches,) = runs(pipeline(loader, lambda jpegs, labels: (fn.decoders.image(jpegs), labels)))

    for (images, labels), batch in zip(batches, decoded, strict=True):
        assert labels.tolist() == batch["label"].tolist()
        for image, expectation in zip(images, batch["image"], strict=True):
            np.testing.assert_array_equal(image, expectation)


def test_a_pipeline_on_the_cpu_reads_the_memory_of_the_loader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loader_addresses: list[int] = []
    dali_addresses: list[int] = []
    values = columns.Columns.values

    def noted(self: Any, batch: Any) -> Any:
        loader_addresses.append(batch["image"].ctypes.data)
        return values(self, batch)

    def look(image: Any) -> Any:
        dali_addresses.append(image.__array_interface__["data"][0])
        return image

    monkeypatch.setattr(columns.Columns, "values", noted)
    loader = loader_of(output="image", batch_size=1)
    runs(pipeline(loader, lambda images: fn.python_function(images, function=look)))

    assert dali_addresses == loader_addresses


@pytest.mark.parametrize(
    "graph", [None, lambda x, y: (fn.reshape(x, shape=[6]), fn.copy(y))], ids=["as it is", "view"]
)
def test_all_outputs_hold_what_they_were_while_further_batches_come(graph: Any) -> None:
    loader = loader_of(batch_size=1)
    pipe = pipeline(loader, graph, prefetch_queue_depth=3)

    held_batches = [batch for batches in runs(pipe, 20) for batch in batches]
    del pipe
    loader.close()

    with loader_of(batch_size=1) as whole:
        expectation = [batch for _ in range(20) for batch in whole]
        for (images, labels), batch in zip(held_batches, expectation, strict=True):
            np.testing.assert_array_equal(images.reshape(1, 3, 2), batch["image"])
            np.testing.assert_array_equal(labels, batch["label"])


EXECUTORS = {
    "default": {},
    "no queue": {"prefetch_queue_depth": 1},
    "deep queue": {"prefetch_queue_depth": 9},
    "legacy": {"exec_dynamic": False},
    "separated": {"exec_dynamic": False, "prefetch_queue_depth": {"cpu_size": 3, "gpu_size": 2}},
    "simple": {"exec_dynamic": False, "exec_pipelined": False, "exec_async": False},
    "conditionals": {"enable_conditionals": True},
}


@pytest.mark.parametrize("settings", EXECUTORS.values(), ids=EXECUTORS)
def test_order_and_position_are_the_same_with_every_executor_of_dali(settings: Any) -> None:
    loader = loader_of(batch_size=3)
    pipe = pipeline(loader, lambda images, labels: (images + 1, labels), **settings)
    label_lists, positions = [], []

    for _ in range(2):
        while True:
            try:
                label_lists.append(np.asarray(pipe.run()[1].as_tensor()).tolist())
            except StopIteration:
                break
            positions.append((loader.position.epoch, loader.position.step))
        pipe.reset()

    assert label_lists == flat(expected(2, batch_size=3))
    assert positions == [(0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]


def test_a_reader_may_be_called_where_dali_rewrites_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    callers, current = [], nodes.current_pipeline

    def noted(loader: gl.Loader) -> Any:
        callers.append(sys._getframe(1).f_code.co_filename)
        return current(loader)

    monkeypatch.setattr(nodes, "current_pipeline", noted)

    @pipeline_def(batch_size=4, num_threads=2, device_id=None, enable_conditionals=True)
    def defined(loader: gl.Loader) -> Any:
        images, labels, flip = gldali.reader(loader, draws={"flip": gldali.coin_flip(0.5)})
        if flip:
            images = -images
        else:
            images = images + 0
        return images, labels, flip

    loader = loader_of()
    (batches,) = runs(defined(loader))

    for (images, labels, flip), batch in zip(batches, loader.epoch(0), strict=True):
        assert labels.tolist() == batch["label"].tolist()
        np.testing.assert_array_equal(images, batch["image"] * np.where(flip, -1, 1)[:, None, None])
    assert {0, 1} <= set(np.concatenate([batch[2] for batch in batches]).tolist())
    assert callers == [nodes.__file__]


def test_fields_and_draws_need_not_be_used() -> None:
    pipe = pipeline(
        loader_of(), lambda images, labels, number: labels, draws={"number": gldali.uniform(0, 1)}
    )

    assert labels_of(pipe, 2) == expected(2)


# position and state


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_a_state_saved_at_any_step_goes_on_with_the_next_one_exactly(depth: int) -> None:
    loader, states = loader_of(), []
    pipe, labels = pipeline(loader, prefetch_queue_depth=depth), []
    for _ in range(2):
        states.append(json.loads(json.dumps(loader.state_dict())))
        for _ in range(3):
            labels.append(np.asarray(pipe.run()[1].as_tensor()).tolist())
            states.append(json.loads(json.dumps(loader.state_dict())))
        with pytest.raises(StopIteration):
            pipe.run()
        pipe.reset()

    assert labels == flat(expected(2))
    for state in states:
        later = loader_of()
        later.load_state_dict(state)
        num_steps = 3 * state["epoch"] + state["step"]
        assert (
            flat(labels_of(pipeline(later, prefetch_queue_depth=depth), 3))[: 6 - num_steps]
            == labels[num_steps:]
        )


def test_a_run_goes_on_with_another_batch_size_and_number_of_shards() -> None:
    loader = loader_of(batch_size=2)
    pipe = pipeline(loader)
    labels = [np.asarray(pipe.run()[1].as_tensor()).tolist() for _ in range(3)]
    state = loader.state_dict()

    rest = []
    for shard in range(2):
        later = loader_of(batch_size=1, num_shards=2, shard_id=shard)
        later.load_state_dict(state)
        pipe = pipeline(later)
        rest += labels_of(pipe)[0]
        assert (later.position.epoch, later.position.step) == (1, 0)

    valid = flat(labels) + flat(rest)
    assert sorted(set(valid)) == list(range(11))
    assert (
        len(valid) == 12
    )  # of an odd number of records the second shard has one again: last_batch="partial"


def test_a_pipeline_that_is_left_in_mid_epoch_leaves_the_loader_there_for_the_next_one() -> None:
    loader = loader_of()
    pipe = pipeline(loader)
    first = np.asarray(pipe.run()[1].as_tensor()).tolist()
    del pipe

    assert [[first], *labels_of(pipeline(loader), 2)] == [
        [expected(1)[0][0]],
        expected(1)[0][1:],
        expected(2)[1],
    ]


def test_a_state_that_is_loaded_after_the_pipeline_read_ahead_is_an_error_that_says_so() -> None:
    loader = loader_of()
    pipe = pipeline(loader)
    pipe.run()
    loader.load_state_dict(loader.state_dict(3, 1))

    for _ in range(2):
        with pytest.raises(
            SpecError,
            match=r"is at epoch 3, step 1[\s\S]*left it at epoch 0, step 1[\s\S]*before the",
        ):
            pipe.run()
    assert (loader.position.epoch, loader.position.step) == (3, 1)
    assert labels_of(pipeline(loader))[0] == expected(4)[3][1:]


def test_a_state_may_be_loaded_between_two_epochs() -> None:
    loader = loader_of()
    pipe = pipeline(loader)
    labels_of(pipe)
    loader.load_state_dict(loader.state_dict(5, 1))

    assert labels_of(pipe, 2) == [expected(6)[5][1:], expected(7)[6]]


def test_two_pipelines_that_share_a_loader_are_an_error() -> None:
    loader = loader_of()
    first, second = pipeline(loader), pipeline(loader)
    first.run(), second.run()

    with pytest.raises(SpecError, match="give each pipeline a loader of its own"):
        first.run()


def test_looking_at_a_batch_by_batch_at_moves_nothing() -> None:
    loader = loader_of()
    pipe = pipeline(loader)
    first = np.asarray(pipe.run()[1].as_tensor()).tolist()

    assert loader.batch_at(0)["label"].tolist() == first
    assert labels_of(pipe)[0] == expected(1)[0][1:]


def test_reset_before_the_end_changes_nothing() -> None:
    pipe = pipeline(loader_of())
    first = np.asarray(pipe.run()[1].as_tensor()).tolist()
    pipe.reset()

    assert [first, *labels_of(pipe)[0]] == expected(1)[0]


def test_a_source_of_the_users_that_ends_before_the_loader_loses_no_batch() -> None:
    loader, num_calls = loader_of(batch_size=1), Counter()

    def ten(info: Any) -> Any:
        num_calls[info.epoch_idx] += 1
        if info.iteration == 10:
            raise StopIteration
        return np.full((1, 1), info.iteration)

    def graph(images: Any, labels: Any) -> Any:
        return fn.external_source(ten, batch_info=True, dtype=types.INT64, ndim=1), labels

    epochs = labels_of(pipeline(loader, graph, prefetch_queue_depth=2), 3)

    label_list = flat(flat(epochs))
    assert [len(epoch) for epoch in epochs] == [
        10,
        1,
        10,
    ]  # the first ends with the other source, the second with the loader
    assert label_list == flat(flat(expected(2, batch_size=1)))[:21]
    assert (loader.position.epoch, loader.position.step) == (1, 10)


# DALI's iterators


def torch_iterator(*args: Any, **arguments: Any) -> Any:
    pytest.importorskip("torch")
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    return DALIGenericIterator(*args, output_map=["image", "label"], **arguments)


@pytest.mark.parametrize("last_batch", ["partial", "drop", "pad"])
@pytest.mark.parametrize("auto_reset", [True, False])
def test_an_iterator_without_reader_name_ends_where_the_loader_does(
    last_batch: str, auto_reset: bool
) -> None:
    loader = loader_of(last_batch=last_batch)
    batches = torch_iterator(pipeline(loader), auto_reset=auto_reset)

    for number, expectation in enumerate(expected(3, last_batch=last_batch)):
        assert [batch[0]["label"].tolist() for batch in batches] == expectation
        assert (loader.position.epoch, loader.position.step) == (number + 1, 0)
        if not auto_reset:
            batches.reset()


def test_the_state_is_that_of_what_the_iterator_gave() -> None:
    loader = loader_of()
    batches = torch_iterator(pipeline(loader), auto_reset=True)
    labels, states = [], []
    for _ in range(2):
        for batch in batches:
            labels.append(batch[0]["label"].tolist())
            states.append(loader.state_dict())

    for num_batches, state in enumerate(states, 1):
        later = loader_of()
        later.load_state_dict(state)
        rest = torch_iterator(pipeline(later), auto_reset=True)
        again = [batch[0]["label"].tolist() for _ in range(3) for batch in rest]
        assert again[: 6 - num_batches] == labels[num_batches:]


def test_a_loop_over_an_iterator_that_was_left_goes_on_where_it_was_left() -> None:
    batches = torch_iterator(pipeline(loader_of()), auto_reset=True)
    labels = [next(iter(batches))[0]["label"].tolist() for _ in range(2)]

    assert labels + [batch[0]["label"].tolist() for batch in batches] == expected(1)[0]


WANTED = {  # of 11 records by 4: what comes out as the last batch
    ("partial", LastBatchPolicy.FILL): (3, [4, 4, 4]),
    ("partial", LastBatchPolicy.PARTIAL): (3, [4, 4, 3]),
    ("partial", LastBatchPolicy.DROP): (2, [4, 4]),
    **{("drop", policy): (2, [4, 4]) for policy in LastBatchPolicy},
    **{("pad", policy): (3, [4, 4, 4]) for policy in LastBatchPolicy},
}


@pytest.mark.parametrize(
    ("last_batch", "policy"), WANTED, ids=lambda value: getattr(value, "name", value)
)
def test_with_reader_name_the_policy_of_the_iterator_says_what_becomes_of_a_partial_batch(
    last_batch: str, policy: Any
) -> None:
    loader = loader_of(last_batch=last_batch)
    batches = torch_iterator(
        pipeline(loader, name="Reader"),
        reader_name="Reader",
        last_batch_policy=policy,
        auto_reset=True,
    )
    num_steps, sizes = WANTED[last_batch, policy]

    for number, expectation in enumerate(expected(3, last_batch=last_batch)):
        labels = [batch[0]["label"].tolist() for batch in batches]
        assert len(batches) == num_steps
        assert [len(batch) for batch in labels] == sizes
        for batch, records in zip(labels, expectation, strict=False):
            assert batch == [*records, *records[-1:] * (len(batch) - len(records))]
        assert (loader.position.epoch, loader.position.step) == (number + 1, 0)


@pytest.mark.parametrize("policy", LastBatchPolicy, ids=lambda value: value.name)
@pytest.mark.parametrize("length", [8, 9, 10, 11, 13, 14, 15, 16])
@pytest.mark.parametrize("num_shards", [2, 3, 4])
def test_shards_with_reader_name_take_as_many_steps_and_visit_every_record_as_the_policy_says(
    num_shards: int, length: int, policy: Any
) -> None:
    source = gl.arrays(image=np.zeros(length, np.float32), label=np.arange(length))
    dropped = "drop" if policy == LastBatchPolicy.DROP else "partial"
    labels, steps = [], set()
    for shard in range(num_shards):
        loader = gl.Loader(
            source, 2, shard_id=shard, num_shards=num_shards, shuffle=True, device="cpu"
        )
        batches = torch_iterator(
            pipeline(loader, name="Reader"),
            reader_name="Reader",
            last_batch_policy=policy,
            auto_reset=True,
        )
        epochs = [[batch[0]["label"].tolist() for batch in batches] for _ in range(3)]
        steps |= {len(epoch) for epoch in epochs}
        labels += flat(epochs)
        for epoch, whole in zip(
            epochs,
            [list(loader.replace(last_batch=dropped).epoch(n)) for n in range(3)],
            strict=True,
        ):
            expectation = [batch["label"][batch.valid].tolist() for batch in whole]
            if policy == LastBatchPolicy.FILL:
                assert {len(batch) for batch in epoch} == {2}
                epoch = [
                    batch[: max(len(records), 1)]
                    for batch, records in zip(epoch, expectation, strict=True)
                ]
                expectation = [
                    records or batch for batch, records in zip(epoch, expectation, strict=True)
                ]
            assert epoch == expectation

    assert len(steps) == 1
    if policy == LastBatchPolicy.PARTIAL:
        assert Counter(flat(labels)) == Counter(dict.fromkeys(range(length), 3))


@pytest.mark.parametrize("policy", LastBatchPolicy, ids=lambda value: value.name)
def test_several_pipelines_in_one_iterator_are_the_shards_of_one_order(policy: Any) -> None:
    def pipes() -> Any:
        return [
            pipeline(loader_of(batch_size=2, shard_id=shard, num_shards=2), name="Reader")
            for shard in range(2)
        ]

    batches = torch_iterator(
        pipes(), reader_name="Reader", last_batch_policy=policy, auto_reset=True
    )
    expectation = [expected(2, batch_size=2, shard_id=shard, num_shards=2) for shard in range(2)]

    for number in range(2):
        epoch = [[part["label"].tolist() for part in batch] for batch in batches]
        for shard in range(2):
            labels = [batch[shard] for batch in epoch]
            assert labels[:2] == expectation[shard][number][:2]
            if policy == LastBatchPolicy.PARTIAL:
                assert labels == expectation[shard][number]
        assert len(epoch) == (2 if policy == LastBatchPolicy.DROP else 3)


def test_dali_is_told_the_sizes_of_a_reader_that_has_a_name() -> None:
    pipe = pipeline(loader_of(shard_id=1, num_shards=2), name="Reader")
    meta = {
        "epoch_size": 11, "epoch_size_padded": 16, "number_of_shards": 2, "shard_id": 0, "pad_last_batch": True,
        "stick_to_shard": True,
    }  # fmt: skip

    assert pipe.reader_meta("Reader") == meta
    assert pipe.reader_meta() == {"Reader": meta}
    assert (pipe.epoch_size("Reader"), pipe.epoch_size()) == (16, {"Reader": 16})
    assert (pipeline(loader_of()).reader_meta(), pipeline(loader_of()).epoch_size()) == ({}, {})


@pytest.mark.parametrize("name", [None, "Other"])
def test_a_reader_name_that_no_reader_has_is_an_error_with_both_remedies(name: str | None) -> None:
    with pytest.raises(
        SpecError, match=r"reader\(loader, name='Reader'\), or leave reader_name= out"
    ):
        torch_iterator(pipeline(loader_of(), name=name), reader_name="Reader")


def test_an_epoch_cannot_be_gone_on_with_in_the_middle_where_the_iterator_counts() -> None:
    loader = loader_of()
    loader.load_state_dict(loader.state_dict(2, 1))
    with pytest.raises(
        SpecError, match=r"epoch 2, step 1[\s\S]*whole epochs only[\s\S]*leave out name="
    ):
        pipeline(loader, name="Reader")

    loader.load_state_dict(loader.state_dict(2))
    pipe = pipeline(loader, name="Reader")
    loader.load_state_dict(loader.state_dict(2, 1))
    with pytest.raises(SpecError, match="whole epochs only"):
        pipe.run()


def test_the_ragged_iterator_of_pytorch_gives_lists(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from nvidia.dali.plugin.pytorch import DALIRaggedIterator

    loader = gl.Loader(photos(tmp_path), batch_size=3, ops=[gl.ops.Decode()], device="cpu")
    tags = [DALIRaggedIterator.SPARSE_LIST_TAG, DALIRaggedIterator.DENSE_TAG]
    batches = DALIRaggedIterator(pipeline(loader), ["image", "label"], output_types=tags)

    for batch, expectation in zip(batches, loader.epoch(0), strict=True):
        assert batch[0]["label"].tolist() == expectation["label"].tolist()
        assert [tuple(image.shape) for image in batch[0]["image"]] == [
            image.shape for image in expectation["image"]
        ]


def test_the_iterator_of_jax_gives_the_batches_of_the_loader() -> None:
    pytest.importorskip("jax")
    from nvidia.dali.plugin.jax import DALIGenericIterator

    loader = loader_of()
    batches = DALIGenericIterator([pipeline(loader)], ["image", "label"], auto_reset=True)
    named = DALIGenericIterator(
        [pipeline(loader_of(), name="Reader")],
        ["image", "label"],
        reader_name="Reader",
        auto_reset=True,
    )

    for number, expectation in enumerate(expected(3)):
        assert [np.asarray(batch["label"]).tolist() for batch in batches] == expectation
        assert (loader.position.epoch, loader.position.step) == (number + 1, 0)
        filled = [*expectation[:2], [*expectation[2], expectation[2][-1]]]
        assert [np.asarray(batch["label"]).tolist() for batch in named] == filled


def test_a_dataset_of_dalis_tensorflow_plugin_says_what_to_use() -> None:
    tf = pytest.importorskip("tensorflow")
    plugin = pytest.importorskip("nvidia.dali.plugin.tf")

    with (
        tf.device("cpu:0"),
        pytest.raises(SpecError, match=r"TensorFlow plugin[\s\S]*gltf\.dataset\(loader"),
    ):
        plugin.experimental.DALIDatasetWithInputs(
            pipeline=pipeline(loader_of()),
            batch_size=4,
            output_dtypes=(tf.float32, tf.int64),
            device_id=None,
        )


# draws


def test_numbers_are_those_of_seed_epoch_record_and_name() -> None:
    draws = {
        "angle": gldali.uniform(-10, 30),
        "box": gldali.integers(3, 9, shape=(2, 1)),
        "flip": gldali.coin_flip(0.3),
    }
    loader = loader_of(output="label")

    for epoch, batches in enumerate(runs(pipeline(loader, draws=draws), 2)):
        for labels, angle, box, flip in batches:
            key: dict[str, Any] = {"seed": 5, "epoch": epoch, "records": labels}
            u = {}
            for name in draws:  # the stream is the first 8 bytes of SHA-256 of "draw:" and the name
                digest = hashlib.sha256(f"draw:{name}".encode()).digest()
                u[name] = rng.uniform(2, **key, stream=int.from_bytes(digest[:8], "little"))
            np.testing.assert_array_equal(angle, (-10 + 40 * u["angle"][:, 0]).astype(np.float32))
            np.testing.assert_array_equal(box[..., 0], 3 + np.floor(6 * u["box"]))
            np.testing.assert_array_equal(flip, u["flip"][:, 0] < 0.3)
            assert (angle.dtype, box.dtype, flip.dtype) == (np.float32, np.int32, np.int32)


def numbers_of(**arguments: Any) -> dict[tuple[int, int], tuple[float, int]]:
    """The draws of two epochs, by epoch and record."""
    loader = loader_of(output="label", **arguments)
    draws = {"angle": gldali.uniform(-10, 10), "flip": gl.ops.RandomFlip(on="label")}
    numbers = {}
    for epoch, batches in enumerate(runs(pipeline(loader, flat_nodes, draws=draws), 2)):
        for labels, angles, flips in batches:
            rows = zip(labels.tolist(), angles.tolist(), flips.tolist(), strict=True)
            numbers |= {(epoch, label): (angle, flip) for label, angle, flip in rows}
    return numbers


def flat_nodes(labels: Any, angle: Any, flip: Any) -> Any:
    return labels, angle, flip["horizontal"]


def test_draws_do_not_depend_on_batch_size_shards_prefetch_or_resuming(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        gl.ops.RandomFlip, "field_after", lambda self, field: field
    )  # labels are easier to look at
    whole = numbers_of()

    assert len(set(whole.values())) == 22
    assert numbers_of(batch_size=3) == numbers_of(batch_size=11) == whole
    shards = [numbers_of(batch_size=2, num_shards=3, shard_id=shard) for shard in range(3)]
    assert shards[0] | shards[1] | shards[2] == whole

    later = loader_of(output="label")
    later.load_state_dict(later.state_dict(1, 2))
    pipe = pipeline(
        later,
        flat_nodes,
        draws={"angle": gldali.uniform(-10, 10), "flip": gl.ops.RandomFlip(on="label")},
    )
    labels, angles, flips = arrays(pipe.run())
    rows = zip(labels.tolist(), angles.tolist(), flips.tolist(), strict=True)
    assert {(1, label): (angle, flip) for label, angle, flip in rows}.items() <= whole.items()


def test_an_op_draws_what_it_would_draw_as_the_next_one_of_the_loader(tmp_path: Path) -> None:
    source, size = photos(tmp_path), (24, 20)
    ops = [
        gl.ops.Decode(),
        gl.ops.RandomResizedCrop(*size),
        gl.ops.RandomFlip(vertical=True),
        gl.ops.RandomFlip(),
    ]
    whole = gl.Loader(source, 3, shuffle=True, seed=8, ops=ops, executor="dali", device="cpu")
    encoded = gl.Loader(source, 3, shuffle=True, seed=8, device="cpu")

    def graph(jpegs: Any, labels: Any, crop: Any, first: Any, second: Any) -> Any:
        images = fn.decoders.image_slice(jpegs, **crop, axes=[0, 1], jpeg_fancy_upsampling=True)
        images = fn.resize(images, size=size, interp_type=types.INTERP_LINEAR, antialias=True)
        return fn.flip(fn.flip(images, **first), **second), labels

    pipe = pipeline(encoded, graph, draws={"crop": ops[1], "first": ops[2], "second": ops[3]})
    for batches in runs(pipe, 2):
        for (images, labels), batch in zip(batches, whole, strict=True):
            assert labels.tolist() == batch["label"].tolist()
            np.testing.assert_array_equal(images, batch["image"])


def test_the_ops_of_the_loader_come_first_and_a_second_op_of_a_kind_draws_its_own_numbers() -> None:
    images = np.arange(8 * 4 * 4 * 3, dtype=np.uint8).reshape(8, 4, 4, 3)
    source, flip = gl.arrays(image=images), gl.ops.RandomFlip()
    twice = gl.Loader(source, 8, ops=[flip, flip], device="cpu")

    loader = gl.Loader(source, 8, ops=[flip], device="cpu")
    pipe = pipeline(loader, lambda x, draw: fn.flip(x, **draw), draws={"again": flip})

    [[[result]]] = runs(pipe)
    np.testing.assert_array_equal(result, twice.batch_at(0)["image"])
    assert (result != images).any()


def test_an_op_that_cannot_draw_for_an_image_names_its_file(tmp_path: Path) -> None:
    loader = gl.Loader(photos(tmp_path), batch_size=1, device="cpu")
    pipe = pipeline(loader, lambda jpegs, labels, crop: (jpegs, labels, crop["start"]),
                    draws={"crop": gl.ops.RandomCrop(40, 40)})  # fmt: skip

    pipe.run(), pipe.run()
    with pytest.raises((RecordError, SpecError), match=r"2\.jpg|33"):
        pipe.run()


MISTAKES = {
    "a list": ([gl.ops.RandomFlip()], "draws have names"),
    "an interval": ({"angle": (-10, 10)}, r"uniform\(-10, 10\)"),
    "a class": ({"flip": gl.ops.RandomFlip}, r"gl\.ops\.RandomFlip\(\)"),
    "an op without draws": ({"size": gl.ops.Normalize(0, 1)}, "draws nothing"),
    "a number for a name": ({3: gldali.uniform(0, 1)}, "draws\\[3\\]"),
    "an op that does not fit": ({"x": gl.ops.RandomFlip(on="mask")}, "no field 'mask'"),
}


@pytest.mark.parametrize(("draws", "match"), MISTAKES.values(), ids=MISTAKES)
def test_draws_that_are_none_are_refused_with_what_to_write(draws: Any, match: str) -> None:
    with pytest.raises((SpecError, KeyError), match=match):
        pipeline(loader_of(), draws=draws)


@pytest.mark.parametrize(
    "make",
    [
        lambda: gldali.uniform(1, 0),
        lambda: gldali.uniform(0, float("nan")),
        lambda: gldali.uniform("0", "1"),
        lambda: gldali.integers(0, 0),
        lambda: gldali.integers(0.5, 2),
        lambda: gldali.integers(0, 2**40),
        lambda: gldali.coin_flip(1.5),
        lambda: gldali.coin_flip(None),
        lambda: gldali.uniform(0, 10**400),
        lambda: gldali.uniform(0, 1e39),
        lambda: gldali.uniform(0, 1, shape=None),
        lambda: gldali.uniform(0, 1, shape="3"),
        lambda: gldali.uniform(0, 1, shape=0),
        lambda: gldali.uniform(0, 1, shape=(2, 1.5)),
    ],
)
def test_numbers_that_there_cannot_be_are_refused_when_they_are_named(make: Any) -> None:
    with pytest.raises(SpecError):
        make()


def test_a_coin_of_probability_0_and_1_always_shows_the_same() -> None:
    u = np.array([[0.0], [0.5], [np.nextafter(1.0, 0)]])

    assert gldali.coin_flip(0).of(u).tolist() == [0, 0, 0]
    assert gldali.coin_flip(1).of(u).tolist() == [1, 1, 1]
    assert gldali.integers(-2, 5).of(u).tolist() == [-2, 1, 4]
    assert gldali.integers(-(2**31), 2**31).of(u).tolist() == [-(2**31), 0, 2**31 - 1]


# errors


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_an_error_of_the_loader_is_raised_as_itself_at_its_step_and_reset_goes_on_behind_it(
    depth: int,
) -> None:
    loader, rows = damaged_loader(), []
    pipe = pipeline(loader, prefetch_queue_depth=depth)

    with pytest.raises(RecordError, match=r"numbers\.bin, record 6: it is damaged"):
        run_into(rows, pipe)
    at = loader.position
    pipe.reset()
    rest = [[values.tolist() for (values,) in batches] for batches in runs(pipe)]

    assert rows == [[0, 1], [2, 3], [4, 5]]
    assert (at.epoch, at.step) == (0, 3)
    assert rest == [[[8, 9]]]
    assert (loader.position.epoch, loader.position.step) == (1, 0)


def test_an_error_comes_through_the_iterator_of_pytorch_as_itself() -> None:
    pytest.importorskip("torch")
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    batches = DALIGenericIterator(pipeline(damaged_loader()), ["x"], auto_reset=True)
    rows: list[Any] = []
    with pytest.raises(RecordError, match="record 6"):
        rows.extend(batch[0]["x"].tolist() for batch in batches)
    batches.reset()

    assert rows == [[0, 1], [2, 3], [4, 5]]
    assert [batch[0]["x"].tolist() for batch in batches] == [[8, 9]]


@pytest.mark.parametrize("num_batches", [1, 2, 3])
def test_an_error_that_is_still_inside_is_not_lost_by_a_reset(num_batches: int) -> None:
    pipe, rows = pipeline(damaged_loader()), []
    for _ in range(num_batches):
        rows.append(arrays(pipe.run())[0].tolist())
    pipe.reset()

    with pytest.raises(RecordError, match="record 6"):
        run_into(rows, pipe)
    assert rows == [[0, 1], [2, 3], [4, 5]]


def test_an_error_of_a_function_in_the_ops_of_the_loader_is_that_error() -> None:
    class OwnError(Exception):
        pass

    def function(x: Any) -> Any:
        if x == 6:
            raise OwnError("seven")
        return x

    ops = [gl.ops.Python(function, out={"dtype": "int64"})]
    pipe = pipeline(gl.Loader(gl.arrays(x=np.arange(10)), 2, ops=ops, device="cpu"))

    rows: list[Any] = []
    with pytest.raises(OwnError, match="seven") as caught:
        run_into(rows, pipe)
    assert rows == [[0, 1], [2, 3], [4, 5]]
    assert any("gl.ops.Python" in note for note in caught.value.__notes__)


def test_an_error_of_an_operator_of_dali_says_in_which_step_and_the_next_batch_comes(
    tmp_path: Path,
) -> None:
    photos(tmp_path)
    (tmp_path / "2.jpg").write_bytes(b"\xff\xd8 no image")
    loader = gl.Loader(gl.images(tmp_path, labels=np.arange(7)), batch_size=1, device="cpu")
    pipe = pipeline(loader, lambda jpegs, labels: (fn.decoders.image(jpegs), labels))
    labels = [arrays(pipe.run())[1].tolist() for _ in range(2)]

    with pytest.raises(RuntimeError, match=r"decode|nvImageCodec") as caught:
        pipe.run()
    before = loader.position
    labels += [arrays(pipe.run())[1].tolist() for _ in range(4)]

    assert labels == [[0], [1], [3], [4], [5], [6]]
    assert any("epoch 0, step 2, of the records 2; loader.batch_at(step=2, epoch=0)" in note
               for note in caught.value.__notes__)  # fmt: skip
    assert (before.epoch, before.step) == (0, 2)
    assert (loader.position.epoch, loader.position.step) == (1, 0)


def test_a_loader_that_was_closed_is_an_error_at_the_next_batch_that_is_read() -> None:
    loader = loader_of(batch_size=1)
    pipe = pipeline(loader)
    pipe.run()
    loader.close()

    pipe.run()  # which was read before
    with pytest.raises(ClosedError, match="the loader is closed"):
        pipe.run()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeoutError])
def test_an_interrupt_while_a_batch_is_read_loses_no_batch(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    loader, labels, calls = loader_of(batch_size=1), [], Counter()
    values = feed.Columns.values

    def interrupted(self: Any, batch: Any) -> Any:
        calls["values"] += 1
        if calls["values"] % 2:
            raise_signal()
        return values(self, batch)

    def raise_signal() -> None:
        if kind is KeyboardInterrupt:
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGALRM)

    def ring(*_: Any) -> None:
        raise kind

    before = signal.signal(signal.SIGALRM, ring)
    monkeypatch.setattr(feed.Columns, "values", interrupted)
    pipe = pipeline(loader)
    try:
        while len(labels) < 11:
            try:
                labels += arrays(pipe.run())[1].tolist()
            except kind:
                assert loader.position.step == len(labels)
    finally:
        signal.signal(signal.SIGALRM, before)

    assert labels == flat(expected(1, batch_size=1)[0])


# mistakes


def test_reader_is_called_while_a_pipeline_is_defined() -> None:
    with pytest.raises(SpecError, match=r"outside of a pipeline[\s\S]*@pipeline_def"):
        gldali.reader(loader_of())


@pytest.mark.parametrize("argument", [None, LABELS, "photos"])
@pytest.mark.parametrize("function", [gldali.reader, gldali.source])
def test_what_is_no_loader_is_refused(function: Any, argument: Any) -> None:
    with pytest.raises(SpecError, match=r"gl\.Loader\(source, batch_size=256\)"):
        function(argument)


def test_the_batch_size_of_the_pipeline_is_that_of_the_loader() -> None:
    with pytest.raises(
        SpecError,
        match=r"batch_size=8 with a loader of batch_size=4[\s\S]*batch_size=loader.batch_size",
    ):
        pipeline(loader_of(), batch_size=8)


def test_a_pipeline_has_one_reader() -> None:
    def graph(*nodes: Any) -> Any:
        return gldali.reader(loader_of())

    with pytest.raises(SpecError, match=r"gl\.zip"):
        pipeline(loader_of(), graph)


def test_a_pipeline_with_debug_is_refused() -> None:
    @dali.pipeline.experimental.pipeline_def(
        batch_size=4, num_threads=1, device_id=None, debug=True
    )
    def defined() -> Any:
        return gldali.reader(loader_of())

    with pytest.raises(SpecError, match="leave debug=True out"):
        defined().run()


@pytest.mark.parametrize("name", ["", 3, b"Reader"])
def test_the_name_of_a_reader_is_a_text(name: Any) -> None:
    with pytest.raises(SpecError, match='name="Reader"'):
        pipeline(loader_of(), name=name)


def test_loader_and_pipeline_are_on_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of()
    monkeypatch.setattr(loader, "device", "gpu:1")

    with pytest.raises(
        DeviceError, match=r'device_id=0 with a loader on gpu:1[\s\S]*device="gpu:0"'
    ):
        pipeline(loader, device_id=0)


def test_a_pipeline_of_a_class_of_the_users_stays_one() -> None:
    class OwnPipeline(dali.pipeline.Pipeline):
        def iter_setup(self) -> None:
            self.num_set_up = getattr(self, "num_set_up", 0) + 1

    pipe = OwnPipeline(4, 2, None)
    with pipe:
        pipe.set_outputs(*gldali.reader(loader_of()))

    assert labels_of(pipe, 2) == expected(2)
    assert isinstance(pipe, OwnPipeline)
    assert pipe.num_set_up == 6


# endings


def test_dropping_a_pipeline_in_mid_epoch_leaves_no_thread_and_no_loader() -> None:
    with none_left():
        loader = loader_of(batch_size=1)
        gone, pipe = weakref.ref(loader), pipeline(loader)
        pipe.run()
        assert threads()
        del pipe, loader

    assert gone() is None


def test_an_exception_in_the_model_leaves_no_thread() -> None:
    def train() -> None:
        for _ in torch_iterator(pipeline(loader_of(batch_size=1)), auto_reset=True):
            raise ZeroDivisionError("in the model")

    with none_left(), pytest.raises(ZeroDivisionError):
        train()


SCRIPT = """
import numpy as np, sys
import gpuload as gl
from gpuload.bridges import dali as gldali
from nvidia.dali import pipeline_def

@pipeline_def(batch_size=2, num_threads=2, device_id=None)
def training(loader):
    return gldali.reader(loader)

def read(indices):
    return {{"x": np.asarray(indices)}}

loader = gl.Loader(gl.records(100000, read, version="1"), batch_size=2, device="cpu", num_threads=2)
pipe = training(loader)
pipe.run()
{end}
"""
ENDS = {
    "the end of the script": ("", 0),
    "an exception": ("raise ValueError('in the model')", 1),
    "sys.exit": ("sys.exit(3)", 3),
    "Ctrl-C in the training": (
        "print('ready', flush=True)\nwhile True: pipe.run()",
        -signal.SIGINT,
    ),
}
QUICK_ENDS = ("the end of the script", "Ctrl-C in the training")


@pytest.mark.parametrize(
    "end", [pytest.param(end, marks=() if end in QUICK_ENDS else pytest.mark.slow) for end in ENDS]
)
def test_a_script_ends_whatever_ends_it(end: str) -> None:
    code, expectation = ENDS[end]
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(end=code)], cwd=ROOT, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        if "ready" in code:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()

    assert process.returncode == expectation, errors
    assert ("Traceback" in errors) == (expectation in (1, -signal.SIGINT))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is told by Linux")
@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_epochs_of_a_tiny_set_take_no_more_memory_threads_or_files(count: int) -> None:
    loader = loader_of(batch_size=4)
    pipe = pipeline(loader, draws={"angle": gldali.uniform(0, 1)})
    warm_up = count // 5
    runs(pipe, warm_up)
    before = resident_bytes(), threading.active_count(), len(os.listdir("/proc/self/fd"))

    for _ in range(count):
        while True:
            try:
                pipe.run()
            except StopIteration:
                break
        pipe.reset()

    assert resident_bytes() - before[0] < 8e6
    assert threading.active_count() <= before[1]
    assert len(os.listdir("/proc/self/fd")) <= before[2]
    assert loader.position.epoch == warm_up + count


# source


def fed_by(batches: Any, *, parallel: bool = False, **settings: Any) -> Any:
    @pipeline_def(
        **{"batch_size": batches.loader.batch_size, "num_threads": 2, "device_id": None, **settings}
    )
    def defined() -> Any:
        return tuple(fn.external_source(batches, **batches.arguments, parallel=parallel))

    return defined()


def test_a_source_has_the_batches_of_the_loader_and_moves_nothing() -> None:
    loader = loader_of()

    assert labels_of(fed_by(gldali.source(loader)), 3) == expected(3)
    assert (loader.position.epoch, loader.position.step) == (0, 0)


def test_a_source_begins_where_the_loader_was_also_with_another_batch_size() -> None:
    loader = loader_of(batch_size=3)
    loader.load_state_dict(loader_of(batch_size=4).state_dict(1, 1))

    epochs = labels_of(fed_by(pickle.loads(pickle.dumps(gldali.source(loader)))), 2)

    order = flat(expected(2)[1])
    assert epochs == [[order[4:7], order[7:10], order[10:]], expected(3, batch_size=3)[2]]


def test_batches_of_a_source_may_be_asked_for_in_any_order_and_end_for_ever() -> None:
    batches = gldali.source(loader_of())
    results = {}
    for epoch, step in [(1, 2), (0, 1), (1, 0), (0, 0), (1, 1), (0, 2)]:
        images, labels = batches(types.BatchInfo(step, epoch))
        results[epoch, step] = [int(label) for label in labels]
        assert [image.shape for image in images] == [(3, 2)] * len(labels)
    for step in (3, 4, 100):
        with pytest.raises(StopIteration):
            batches(types.BatchInfo(step, 1))

    expectation = expected(2)
    assert results == {
        (epoch, step): expectation[epoch][step] for epoch in range(2) for step in range(3)
    }


def test_a_source_has_draws(tmp_path: Path) -> None:
    loader = gl.Loader(photos(tmp_path), batch_size=3, device="cpu")
    draws = {"crop": gl.ops.RandomResizedCrop(8), "angle": gldali.uniform(0, 1)}
    pipe = pipeline(
        loader,
        lambda jpegs, labels, crop, angle: (labels, crop["start"], crop["shape"], angle),
        draws=draws,
    )

    (by_reader,) = runs(pipe)
    (by_source,) = runs(fed_by(gldali.source(loader.replace(), draws=draws)))

    for values, source_values in zip(by_reader, by_source, strict=True):
        for column, expectation in zip(values, source_values[1:], strict=True):
            np.testing.assert_array_equal(column, expectation)


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # DALI 2.4 does not close its sockets
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_worker_processes_give_the_batches_of_a_source(tmp_path: Path) -> None:
    loader = gl.Loader(photos(tmp_path), batch_size=3, shuffle=True, device="cpu")
    loader.load_state_dict(loader.state_dict(1, 1))
    pipe = fed_by(gldali.source(loader), parallel=True, py_num_workers=2, py_start_method="spawn")

    epochs = labels_of(pipe, 2)

    expectation = [[batch["label"].tolist() for batch in loader] for _ in range(2)]
    assert epochs == expectation
    assert len(multiprocessing.active_children()) == 2
    del pipe
    gc.collect()
    assert multiprocessing.active_children() == []


def test_a_source_in_a_forked_process_says_how_to_start_it(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = gldali.source(loader_of())
    monkeypatch.setattr(os, "getpid", lambda: -1)

    with pytest.raises(ClosedError, match='py_start_method="spawn"'):
        batches(types.BatchInfo(0, 0))


@pytest.mark.parametrize("info", [0, types.SampleInfo(0, 0, 0, 0)], ids=["a number", "a sample"])
def test_a_source_that_is_not_told_the_epoch_says_what_to_write(info: Any) -> None:
    with pytest.raises(SpecError, match=r"\*\*batches\.arguments"):
        gldali.source(loader_of())(info)


def test_a_source_goes_on_from_a_checkpoint_of_dali() -> None:
    pipe = fed_by(gldali.source(loader_of()), enable_checkpointing=True)
    labels_of(pipe)
    pipe.run(), pipe.run()
    saved = pipe.checkpoint()

    epochs = labels_of(
        fed_by(gldali.source(loader_of()), enable_checkpointing=True, checkpoint=saved), 2
    )

    assert epochs == [expected(2)[1][2:], expected(3)[2]]


def test_a_source_on_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of()
    monkeypatch.setattr(loader, "device", "gpu:0")

    with pytest.raises(
        DeviceError, match=r"worker processes[\s\S]*reader\(loader\) may be on a GPU"
    ):
        gldali.source(loader)


# on a GPU


def test_dali_is_given_plain_arrays_of_cupy_whose_memory_comes_back_behind_its_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DALI itself cannot run on the simulated device: what it is told, and what it does with it, is
    copied from it."""
    sim = simdevice.install(monkeypatch, seed=3)
    loader = loader_of(device="gpu", batch_size=3)
    dali_columns = columns.Columns(loader, {"angle": gldali.uniform(0, 1)})
    assert [entry.device for entry in dali_columns.inputs] == ["gpu", "gpu", "cpu"]

    stream, copies = sim.cupy.cuda.Stream(), []
    with stream:
        for batch in loader.port.manual_epoch():
            images, labels, angles = dali_columns.values(batch)
            assert (
                type(images) is type(labels) is sim.cupy.ndarray
            )  # DALI knows CuPy by the name of the class
            assert images.data.ptr == batch["image"].data.ptr
            assert isinstance(angles, np.ndarray)
            assert images.__cuda_array_interface__["shape"] == (len(angles), 3, 2)
            copies.append(
                (images.copy(), labels.copy())
            )  # queued on CuPy's current stream, as DALI's copy is
            del batch, images, labels
            gc.collect()
    stream.synchronize()

    with loader_of(batch_size=3) as whole:
        for (images, labels), batch in zip(copies, whole, strict=True):
            np.testing.assert_array_equal(sim.cupy.asnumpy(images), batch["image"])
            np.testing.assert_array_equal(sim.cupy.asnumpy(labels), batch["label"])
    loader.close()
    sim.finish()


@pytest.mark.gpu
def test_a_loader_on_a_gpu_feeds_a_pipeline_on_that_gpu() -> None:
    loader = loader_of(device="gpu", batch_size=1)
    pipe = pipeline(loader, lambda images, labels: (images + 1, labels), device_id=0)

    with loader_of(batch_size=1) as whole:
        for _ in range(20):
            for batch in whole:
                images, labels = (
                    np.asarray(tensors.as_cpu().as_tensor()) for tensors in pipe.run()
                )
                np.testing.assert_array_equal(images, batch["image"] + 1)
                np.testing.assert_array_equal(labels, batch["label"])
            with pytest.raises(StopIteration):
                pipe.run()
            pipe.reset()


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_encoded_images_are_decoded_on_the_gpu(device: str, tmp_path: Path) -> None:
    source = photos(tmp_path)
    loader = gl.Loader(source, batch_size=3, shuffle=True, device=device)
    crop = gl.ops.RandomResizedCrop(24, 20)

    def graph(jpegs: Any, labels: Any, crop: Any) -> Any:
        # Whole, as nvImageCodec 0.9.0 is reported to end the process at a region of a JPEG on a
        # GPU.
        images = fn.decoders.image(
            jpegs, device="mixed", jpeg_fancy_upsampling=True, hw_decoder_load=0.0
        )
        return fn.resize(fn.slice(images, **crop, axes=[0, 1]), size=(24, 20)), labels.gpu()

    pipe = pipeline(loader, graph, draws={"crop": crop}, device_id=0)
    whole = gl.Loader(source, 3, shuffle=True, ops=[gl.ops.Decode(), crop], device="cpu")
    for _ in range(3):
        for batch in whole:
            images, labels = (np.asarray(tensors.as_cpu().as_tensor()) for tensors in pipe.run())
            assert labels.tolist() == batch["label"].tolist()
            # nvJPEG is not libjpeg-turbo: on noise, the hardest image there is, its levels differ
            # by a few.
            assert np.abs(images.astype(int) - batch["image"]).mean() < 4
        with pytest.raises(StopIteration):
            pipe.run()
        pipe.reset()


# the example


def run_example(name: str, folder: Path, *arguments: str) -> list[str]:
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), "photos", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=110
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


def epochs_of(lines: list[str]) -> dict[int, tuple[int, str]]:
    """The number of images and the last loss of each epoch that an example printed."""
    matches = [re.fullmatch(r"epoch (\d): (\d+) images, .* loss (\S+)", line) for line in lines]
    return {int(match[1]): (int(match[2]), match[3]) for match in matches if match}


@pytest.mark.slow
@pytest.mark.timeout(300)  # several processes, each of which imports DALI and PyTorch
def test_the_example_that_was_moved_sees_as_many_images_as_before(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for name in ("dali_imagenet_before", "dali_imagenet"):
        epochs = epochs_of(run_example(name, tmp_path))
        assert [num_images for num_images, _ in epochs.values()] == [150, 150, 150]


@pytest.mark.slow
@pytest.mark.timeout(300)  # several processes, each of which imports DALI and PyTorch
def test_the_example_that_was_moved_goes_on_exactly(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    whole = epochs_of(run_example("dali_imagenet", tmp_path))
    (tmp_path / "photos.pt").unlink()

    stopped, rest = (
        run_example("dali_imagenet", tmp_path, "7"),
        run_example("dali_imagenet", tmp_path),
    )

    assert stopped[-1] == "stopped at epoch 1, step 2"
    assert rest[0] == "goes on at epoch 1, step 2"
    assert epochs_of(stopped) == {0: whole[0]}
    assert epochs_of(rest) == {1: (150 - 2 * 32, whole[1][1]), 2: whole[2]}


def statements(path: Path) -> str:
    """The text of a file with each run of white space as one space, and none behind and before
    brackets."""
    return re.sub(r"(?<=[(\[{]) | (?=[)\]}])", "", " ".join(path.read_text().split()))


def test_the_page_shows_the_five_lines_of_the_example_that_changed() -> None:
    (diff,) = re.findall(r"```diff\n(.*?)```", PAGE.read_text(), re.DOTALL)
    before, after = (
        statements(ROOT / "examples" / f"{name}.py")
        for name in ("dali_imagenet_before", "dali_imagenet")
    )
    old = [line[1:].strip() for line in diff.splitlines() if line.startswith("-")]
    new = [line[1:].strip() for line in diff.splitlines() if line.startswith("+")]

    assert len(new) == 5
    assert all(line in before and line not in after for line in old), old
    assert all(line in after and line not in before for line in new), new


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        photos(tmp_path / "photos" / name)

    codeblocks.run(PAGE, codeblocks.blocks_of(PAGE), {}, tmp_path)

    assert codeblocks.without_comment(PAGE) == 0
