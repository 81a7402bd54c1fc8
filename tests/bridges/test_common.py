"""What holds for every bridge that hands out tensors: the loader's batches, shared, safe, and
errors as themselves."""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpuload as gl
from gpuload.bridges import common
from gpuload.errors import MissingPackageError, RecordError, SpecError, StateError
from gpuload.spec import Field, Spec
from tests.threads import none_left, threads, until

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault(
    "XLA_PYTHON_CLIENT_PREALLOCATE", "false"
)  # or JAX takes most of a GPU when it first sees it
ROOT = Path(__file__).parents[2]
FRAMEWORKS = ("tensorflow", "torch", "jax")
KINDS = {"tensorflow": "a tf.Tensor", "torch": "a torch.Tensor", "jax": "a jax.Array"}
ALIGNMENT_BYTES = {"tensorflow": 64, "torch": 1, "jax": 64}
IMAGES = np.arange(10 * 6, dtype=np.float32).reshape(10, 3, 2)
LABELS = np.arange(10, dtype=np.int32)


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param)
    return str(request.param)


@pytest.fixture
def tensors(framework: str) -> Any:
    return importlib.import_module(f"gpuload.bridges.{framework}").tensors


def loader_of(output: Any = ("image", "label"), **arguments: Any) -> gl.Loader:
    """A loader of 10 records, 4 a batch, in order."""
    source = gl.arrays(image=IMAGES, label=LABELS)
    return gl.Loader(source, **{"batch_size": 4, "output": output, "device": "cpu", **arguments})


def labels_of(batches: Any) -> list[list[int]]:
    return [np.asarray(labels).tolist() for _, labels in batches]


def address(framework: str, tensor: Any) -> int:
    if framework == "tensorflow":
        return int(np.asarray(memoryview(tensor)).ctypes.data)
    return int(tensor.data_ptr() if framework == "torch" else tensor.unsafe_buffer_pointer())


# what is handed out


def test_batches_come_in_order_as_output_arranges_them(tensors: Any) -> None:
    batches = list(tensors(loader_of()))

    assert [len(batch) for batch in batches] == [2, 2, 2]
    np.testing.assert_array_equal(
        np.concatenate([np.asarray(images) for images, _ in batches]), IMAGES
    )
    assert labels_of(batches) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_nest_keeps_its_lists_and_dicts_and_a_field_in_two_places_is_one_tensor(
    tensors: Any,
) -> None:
    batch = next(
        iter(tensors(loader_of({"inputs": ["image", {"again": "image"}], "target": "label"})))
    ).output

    assert batch["inputs"][1]["again"] is batch["inputs"][0]
    np.testing.assert_array_equal(np.asarray(batch["inputs"][0]), IMAGES[:4])
    np.testing.assert_array_equal(np.asarray(batch["target"]), LABELS[:4])


def test_a_batch_is_that_of_the_loader(tensors: Any) -> None:
    shards = [
        loader_of(None, batch_size=2, num_shards=3, shard_id=i, last_batch="pad") for i in range(3)
    ]
    batches = [batch for shard in shards for batch in tensors(shard)]

    valid = [record for batch in batches for record in batch.records[batch.valid].tolist()]
    assert sorted(valid) == list(range(10))
    assert [(batch.epoch, batch.step) for batch in batches] == [(0, 0), (0, 1)] * 3
    assert all(np.asarray(batch["label"]).tolist() == batch.records.tolist() for batch in batches)
    assert sorted(batches[0].keys()) == ["image", "label"]


def test_each_loop_is_the_next_epoch_and_goes_on_where_one_was_left(tensors: Any) -> None:
    batches, expected = (
        tensors(loader_of(shuffle=True)),
        [labels_of(loader_of(shuffle=True).epoch(n)) for n in range(3)],
    )

    for number, (_, labels) in enumerate(batches):
        assert np.asarray(labels).tolist() == expected[0][number]
        if number == 1:
            break

    assert [labels_of(batches) for _ in range(3)] == [expected[0][2:], *expected[1:]]
    assert len(batches) == 3


def test_the_state_of_the_batches_goes_on_in_another_loop(tensors: Any) -> None:
    first_part, whole = (
        tensors(loader_of(shuffle=True)),
        labels_of(loader_of(shuffle=True).epoch(0)),
    )
    next(iter(first_part))
    state = json.loads(json.dumps(first_part.state_dict()))

    later = tensors(loader_of(shuffle=True))
    later.load_state_dict(state)

    assert labels_of(later) == whole[1:]
    with pytest.raises(StateError, match="the seed"):
        tensors(loader_of(shuffle=True, seed=1)).load_state_dict(state)


@pytest.mark.parametrize("num_taken", [0, 2])
def test_a_loop_that_began_before_a_state_was_loaded_goes_on_there(
    tensors: Any, num_taken: int
) -> None:
    batches, whole = tensors(loader_of(shuffle=True)), labels_of(loader_of(shuffle=True).epoch(3))
    loop = iter(batches)
    for _ in range(num_taken):
        next(loop)

    batches.load_state_dict(batches.loader.state_dict(3, 1))

    assert labels_of(loop) == whole[1:]
    assert (batches.loader.position.epoch, batches.loader.position.step) == (4, 0)


def test_to_peek_gives_the_next_batch_and_moves_nothing(tensors: Any, framework: str) -> None:
    batches, whole = tensors(loader_of(shuffle=True)), labels_of(loader_of(shuffle=True).epoch(0))
    next(iter(batches))
    state = batches.state_dict()

    peeks = [batches.peek() for _ in range(2)]

    assert labels_of(peeks) == [whole[1]] * 2
    assert type(peeks[0]["label"]).__name__ == type(next(iter(batches))["label"]).__name__
    assert state["step"] == 1
    assert labels_of(batches) == whole[2:]


# memory


def test_a_tensor_is_the_memory_of_the_batch(framework: str, tensors: Any) -> None:
    batches = tensors(loader_of())
    array = batches.loader.batch_at(0)["image"]

    tensor = batches._convert(array)

    assert address(framework, tensor) == array.ctypes.data
    assert (batches.loader.stats()["tensors_shared"], batches.loader.stats()["tensors_copied"]) == (
        1,
        0,
    )


def test_of_all_batches_every_tensor_is_shared(tensors: Any) -> None:
    loader = loader_of(shuffle=True, batch_size=3)

    list(tensors(loader))

    assert (loader.stats()["tensors_shared"], loader.stats()["tensors_copied"]) == (8, 0)


def test_kept_tensors_hold_what_they_were_after_the_loader_is_gone(tensors: Any) -> None:
    loader = loader_of(shuffle=True, batch_size=1)
    batches = tensors(loader)
    held_batches = [pair for _ in range(10) for pair in batches]
    for _ in range(
        3
    ):  # more batches, which would be written over memory that was given back too early
        list(batches)
    loader.close()
    del loader, batches
    gc.collect()

    with loader_of(shuffle=True, batch_size=1) as again:
        for (image, label), batch in zip(
            held_batches, [batch for _ in range(10) for batch in again], strict=True
        ):
            np.testing.assert_array_equal(np.asarray(image), batch["image"])
            np.testing.assert_array_equal(np.asarray(label), batch["label"])


def aligned(size: int) -> np.ndarray[Any, Any]:
    raw = np.zeros(4 * size + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    return raw[begin : begin + 4 * size].view(np.int32)


def read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array.flags.writeable = False
    return array


UNSHAREABLE = {
    "strided": lambda: aligned(16)[::2],
    "backwards": lambda: aligned(16)[::-1],
    "columns first": lambda: aligned(16).reshape(4, 4).T,
    "read-only": lambda: read_only(aligned(16)),
    "empty": lambda: aligned(0),
    "not aligned": lambda: aligned(17)[1:],
}


@pytest.mark.parametrize("kind", UNSHAREABLE)
def test_an_array_that_cannot_be_shared_is_copied_and_counted(
    kind: str, framework: str, tensors: Any
) -> None:
    batches = tensors(loader_of())
    array = UNSHAREABLE[kind]()
    if array.flags.writeable:
        array[...] = np.arange(array.size).reshape(array.shape)

    tensor = batches._convert(array)

    np.testing.assert_array_equal(np.asarray(tensor + 1), array + 1)
    counts = batches.loader.stats()
    shared = kind == "not aligned" and ALIGNMENT_BYTES[framework] == 1
    assert (counts["tensors_shared"], counts["tensors_copied"]) == (shared, not shared)


EPOCHS = """
import pathlib, sys
from importlib import import_module
import numpy as np
import gpuload as gl
from benchmarks import leaks

def make(folder):
    arrays = {"x": np.zeros((10, 3), np.float32), "y": np.arange(10, dtype=np.int32)}
    return gl.Loader(gl.arrays(**arrays), batch_size=4, shuffle=True, device="cpu")

if __name__ == "__main__":
    leaks.LANES["bridge"] = (make, getattr(import_module("gpuload.bridges." + sys.argv[1]), sys.argv[2]))
    growth = leaks.growth(leaks.watch("bridge", "epochs", 1000, pathlib.Path()))
    print([f"{what} grows by {by}" for what, by in growth.items() if by > leaks.MAY_GROW[what]])
"""
FACES = [(framework, "tensors") for framework in FRAMEWORKS] + [("torch", "dataset")]


@pytest.mark.slow
@pytest.mark.parametrize(("package", "face"), FACES)
def test_nothing_stays_behind_after_a_thousand_epochs(package: str, face: str) -> None:
    pytest.importorskip(package)
    command = [sys.executable, "-W", "ignore", "-c", EPOCHS, package, face]

    process = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    assert process.stdout.splitlines()[-1:] == ["[]"], process.stdout + process.stderr


@pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="open files are counted in /proc, which is not here"
)
@pytest.mark.parametrize(("package", "face"), FACES)
def test_no_thread_and_no_file_stays_behind_after_some_epochs(package: str, face: str) -> None:
    pytest.importorskip(package)
    to_tensors = getattr(importlib.import_module(f"gpuload.bridges.{package}"), face)

    def count_after(num_epochs: int) -> tuple[int, int]:
        loader = loader_of()
        for _ in range(num_epochs):
            list(to_tensors(loader))
        del loader
        gc.collect()
        return len(threads()), len(os.listdir("/proc/self/fd"))

    before = count_after(3)  # what is loaded once in a process stays

    assert until(
        lambda: all(now <= then for now, then in zip(count_after(20), before, strict=True))
    )


# what goes wrong


def fails_at_six(label: Any) -> Any:
    if label == 6:
        raise KeyError("the user's own error")
    return label


def test_an_error_of_an_op_comes_as_itself_at_its_step_and_the_next_call_goes_on_behind_it(
    tensors: Any,
) -> None:
    loader = loader_of("label", batch_size=2, ops=[gl.ops.Python(fails_at_six, on="label")])
    batches = iter(tensors(loader))
    values = [np.asarray(next(batches)[0]).tolist() for _ in range(3)]

    with pytest.raises(KeyError, match="the user's own error"):
        next(batches)

    assert (loader.position.epoch, loader.position.step) == (
        0,
        3,
    )  # a state begins with the failed step again
    assert np.asarray(next(batches)[0]).tolist() == [8, 9]
    assert values == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_breaks_off_the_conversion_of_a_batch_loses_no_step_of_a_state(
    tensors: Any, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a signal handler raised it or memory was short for a moment: the next call makes the
    same batch again."""
    loader, with_fields, calls = loader_of("label", batch_size=2), gl.Batch.with_fields, []

    def broken_off(batch: gl.Batch, convert: Any) -> gl.Batch:
        calls.append(batch.step)
        if len(calls) == 3:
            raise error
        return with_fields(batch, convert)

    monkeypatch.setattr(gl.Batch, "with_fields", broken_off)
    batches = iter(tensors(loader))
    values = [np.asarray(next(batches)[0]).tolist() for _ in range(2)]
    with pytest.raises(error):
        next(batches)
    assert (loader.position.epoch, loader.position.step) == (0, 2)
    values += [np.asarray(labels).tolist() for (labels,) in batches]

    assert values == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_a_conversion_that_fails_by_itself_is_an_error_once_and_the_next_call_goes_on_behind_it(
    tensors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader, with_fields, calls = loader_of("label", batch_size=2), gl.Batch.with_fields, []

    def fails_at_two(batch: gl.Batch, convert: Any) -> gl.Batch:
        calls.append(batch.step)
        if batch.step == 2:
            raise MemoryError
        return with_fields(batch, convert)

    monkeypatch.setattr(gl.Batch, "with_fields", fails_at_two)
    batches = iter(tensors(loader))
    values = [np.asarray(next(batches)[0]).tolist() for _ in range(2)]
    with pytest.raises(MemoryError):
        next(batches)
    assert (loader.position.epoch, loader.position.step) == (
        0,
        2,
    )  # a state begins with the failed step again
    values += [np.asarray(labels).tolist() for (labels,) in batches]

    assert values == [[0, 1], [2, 3], [6, 7], [8, 9]]
    assert calls == [0, 1, 2, 2, 3, 4]


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="this system has no such signal")
@pytest.mark.parametrize("shows", [True, False])
def test_what_a_signal_handler_raises_while_tensors_are_made_loses_no_step(
    tensors: Any, shows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Again and again if the traceback shows the handler; once a call of ``next`` if it does
    not."""
    loader, with_fields, rings = loader_of("label", batch_size=2), gl.Batch.with_fields, []

    def ring(number: int, frame: Any) -> None:
        if not shows:
            del frame
        raise TimeoutError("of a watchdog")

    def interrupted(batch: gl.Batch, convert: Any) -> gl.Batch:
        if batch.step == 2 and len(rings) < (5 if shows else 1):
            rings.append(batch.step)
            signal.raise_signal(signal.SIGALRM)
        return with_fields(batch, convert)

    before = signal.signal(signal.SIGALRM, ring)
    monkeypatch.setattr(gl.Batch, "with_fields", interrupted)
    try:
        batches, values, num_interrupts = iter(tensors(loader)), [], 0
        for _ in range(11):
            try:
                values += [
                    np.asarray(labels).tolist() for (labels,) in itertools.islice(batches, 1)
                ]
            except TimeoutError:
                num_interrupts += 1
                assert (loader.position.epoch, loader.position.step) == (0, 2)
    finally:
        signal.signal(signal.SIGALRM, before)

    assert values == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert num_interrupts == len(rings) == (5 if shows else 1)


def test_an_error_of_a_reader_comes_as_itself_at_its_step(tensors: Any) -> None:
    def read(records: Any) -> dict[str, Any]:
        if 6 in records:
            raise RecordError(
                "numbers.bin, record 6: it is damaged",
                cause="a flipped bit",
                remedy="copy it again",
            )
        return {"x": np.asarray(records, np.int32)}

    with none_left():
        loader = gl.Loader(gl.records(10, read), batch_size=2, output="x", device="cpu")
        batches = iter(tensors(loader))
        values = [np.asarray(next(batches)[0]).tolist() for _ in range(3)]

        with pytest.raises(RecordError, match=r"numbers\.bin, record 6"):
            next(batches)

        assert values == [[0, 1], [2, 3], [4, 5]]
        assert [np.asarray(numbers).tolist() for (numbers,) in batches] == [[8, 9]]


class ModelError(Exception):
    """What a model raises."""


def leave(batches: Any, how: str) -> None:
    loop = iter(batches)
    next(loop)
    if how == "an error of the model":
        with contextlib.suppress(ModelError):
            for _ in batches:
                raise ModelError
    elif how == "the loader is closed":
        batches.loader.close()
    elif how == "the iterator is closed":
        loop.close()


@pytest.mark.parametrize(
    "how",
    ["it is dropped", "an error of the model", "the loader is closed", "the iterator is closed"],
)
def test_a_loop_that_is_left_leaves_no_thread(how: str, tensors: Any) -> None:
    with none_left():
        leave(tensors(loader_of(shuffle=True, batch_size=1)), how)


@pytest.mark.parametrize("item", [gl.arrays(x=LABELS), None, [1, 2]])
def test_what_is_no_loader_is_refused_with_what_to_write(item: Any, tensors: Any) -> None:
    with pytest.raises(SpecError, match=r"gl\.Loader\(source, batch_size=256\)"):
        tensors(item)


REFUSED = {
    "dates": (Field("x", np.dtype("M8[D]"), ()), "no dates"),
    "long doubles": (Field("x", np.dtype("g"), ()), "has no tensor"),
    "two axes that vary": (Field("x", np.dtype("f4"), (None, None)), "varies"),
    "an encoded image": (Field("x", np.dtype("u1"), (None,), encoded=True), r"gl\.ops\.Decode"),
    "text": (Field("x", np.dtype("U3"), ()), "no text"),
    "text of any length": (Field("x", np.dtype(object), (), text="str"), "no text"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_field_that_has_no_tensor_is_refused_by_name_when_the_bridge_is_made(
    kind: str, framework: str, tensors: Any
) -> None:
    if framework == "tensorflow" and kind.startswith("text"):
        pytest.skip("TensorFlow has text")
    field, cause = REFUSED[kind]
    loader = SimpleNamespace(output=None, spec_out=Spec((field,)), device="cpu")

    with pytest.raises(
        SpecError, match=rf"field 'x' .* cannot be {KINDS[framework]}[\s\S]*{cause}"
    ):
        tensors(loader)


def test_a_field_that_is_not_handed_out_may_be_anything(tensors: Any) -> None:
    source = gl.arrays(x=LABELS, day=LABELS.astype("M8[D]"))

    assert len(list(tensors(gl.Loader(source, batch_size=5, output="x", device="cpu")))) == 2


@pytest.mark.parametrize("package", FRAMEWORKS)
def test_a_package_that_is_missing_is_named_with_its_extra(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith(f"gpuload.bridges.{package}")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(
        MissingPackageError, match=rf"needs the package '{package}'[\s\S]*\[{package}\]"
    ):
        importlib.import_module(f"gpuload.bridges.{package}")


# shards


def no_ranks() -> Any:
    raise SpecError("nobody was to be asked")


def test_without_a_shard_the_loader_is_the_loader() -> None:
    loader = loader_of()

    assert common.sharded(loader, None, no_ranks) is loader


@pytest.mark.parametrize("shard", ["auto", (1, 3)])
def test_a_shard_is_a_loader_of_that_share_of_the_records(shard: Any) -> None:
    results = [common.sharded(loader_of(shuffle=True), (i, 3), no_ranks) for i in range(3)]
    records = [batch.records.tolist() for item in results for batch in item]

    shard_loader = common.sharded(loader_of(shuffle=True), shard, lambda: (1, 3))

    assert sorted(np.concatenate(records)) == list(range(10))
    assert [batch.records.tolist() for batch in shard_loader] == [
        batch.records.tolist() for batch in results[1].epoch(0)
    ]


def test_a_shard_begins_where_the_loader_is() -> None:
    loader = loader_of(shuffle=True, batch_size=2)
    first_records = [next(iter(loader)).records.tolist() for _ in range(2)]

    shards = [common.sharded(loader, (i, 2), no_ranks) for i in range(2)]

    rest = [batch.records.tolist() for item in shards for batch in item]
    assert sorted(np.concatenate(first_records + rest)) == list(range(10))
    assert [(item.position.epoch, item.position.step) for item in shards] == [(1, 0)] * 2
    assert loader.position.step == 2


def test_a_loader_that_is_that_shard_already_is_left_as_it_is() -> None:
    loader = loader_of(shard_id=1, num_shards=2)

    assert common.sharded(loader, (1, 2), no_ranks) is loader
    assert common.sharded(loader, "auto", lambda: (1, 2)) is loader


def test_a_loader_that_is_another_shard_is_refused() -> None:
    with pytest.raises(
        SpecError, match=r"shard=\(0, 2\) of a loader that is shard 1 of 2[\s\S]*divided already"
    ):
        common.sharded(loader_of(shard_id=1, num_shards=2), (0, 2), no_ranks)


@pytest.mark.parametrize("shard", ["rank", 3, (0,), (0, 1, 2), [0, 2], {"rank": 0}])
def test_what_is_no_shard_is_refused_with_what_to_write(shard: Any) -> None:
    with pytest.raises(SpecError, match=r"shard = .*[\s\S]*shard=\(0, 2\) for the first of two"):
        common.sharded(loader_of(), shard, no_ranks)


@pytest.mark.parametrize("shard", [(2, 2), (-1, 2), (0.5, 2), (0, 0), (True, 2), ("0", 2)])
def test_a_rank_or_number_that_cannot_be_is_refused(shard: Any) -> None:
    with pytest.raises(SpecError, match="shard"):
        common.sharded(loader_of(), shard, no_ranks)
