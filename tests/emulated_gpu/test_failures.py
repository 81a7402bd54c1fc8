"""Each call of CUDA fails once, in a run of a loader: a clear error or the right batches, no hang,
and others go on.

An error comes alone (memory that another process took for a moment) or stays (the card fell off the
bus).
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from PIL import Image

import gpuload as gl
from gpuload import device
from gpuload.bridges import common
from gpuload.device import copies, hostmemory
from gpuload.errors import DeviceError
from gpuload.order import Position
from gpuload.pipeline.batches import explain
from gpuload.pipeline.step import Step
from tests import emulated_gpu

pytestmark = [
    pytest.mark.gpu,
    # CuPy destroys its streams and events in finalizers, which can only warn where CUDA refuses
    # that.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

RANDOM = np.random.default_rng(0)
NUM_BATCHES = 3
SOURCE = gl.arrays(
    image=RANDOM.integers(0, 256, (4 * NUM_BATCHES, 3, 8, 8), np.uint8),
    label=np.arange(4 * NUM_BATCHES) % 10,
)
OPS = [
    gl.ops.Transpose("HWC"),
    gl.ops.RandomFlip(),
    gl.ops.Normalize(1.0, 2.0),
    gl.ops.OneHot(10, on="label"),
]
LENGTHS = RANDOM.integers(1, 9, 32)
SIZES = [RANDOM.integers(0, 256, (20 + row % 5, 24, 3), np.uint8) for row in range(8)]


def make_loader(name: str) -> gl.Loader:
    return gl.Loader(
        SOURCE, 4, ops=OPS, shuffle=True, device=name, executor="array", output=("image", "label")
    )


def make_resident(name: str) -> gl.Loader:
    """Return a loader whose records stay on the GPU."""
    loader = make_loader(name)
    return loader if name == "cpu" else loader.cache(device=True)


def make_rows(name: str) -> gl.Loader:
    """Return a loader of short steps: they are joined, and their batches are slices."""
    source = gl.arrays(x=np.arange(64 * 784, dtype=np.float32).reshape(64, 784))
    return gl.Loader(source, 8, shuffle=True, device=name, output=("x",))


def make_ragged(name: str) -> gl.Loader:
    source = gl.records(32, lambda places: {"x": [np.arange(LENGTHS[place]) for place in places]})
    return gl.Loader(source, 8, device=name, output=("x",))


def make_audit(name: str) -> gl.Loader:
    """Return a loader that audits most records, which come to the host on a stream of their own."""
    words: dict[str, Any] = {
        "ops": OPS,
        "device": name,
        "executor": "array",
        "num_threads": 1,
        "audit": 0.6,
    }
    return gl.Loader(SOURCE, 4, shuffle=True, output=("image", "label"), **words)


def make_sizes(name: str) -> gl.Loader:
    source = gl.records(len(SIZES), lambda places: {"image": [SIZES[place] for place in places]})
    return gl.Loader(
        source, 4, ops=[gl.ops.Resize(12, 12)], device=name, executor="array", output=("image",)
    )


def make_files(name: str) -> gl.Loader:
    """Return a loader of images that the host decodes, of sizes of their own: their pixels lie
    behind the slot."""
    words = {"output": ("image",), **way_to(name)}
    return gl.Loader(images(), 4, ops=[gl.ops.Decode(), gl.ops.Invert()], device=name, **words)


def make_crops(name: str) -> gl.Loader:
    """Return a loader of images that the host brings to one size; steps are joined."""
    ops = [
        gl.ops.Decode(),
        gl.ops.RandomResizedCrop(8, 8),
        gl.ops.RandomFlip(),
        gl.ops.Normalize(1.0, 2.0),
    ]
    words = {"output": ("image",), "prefetch": 4, **way_to(name)}
    return gl.Loader(images(), 2, ops=ops, shuffle=True, device=name, **words)


def way_to(name: str) -> dict[str, Any]:
    """Return arguments of a loader whose host decodes for a device."""
    return {"num_threads": 2, "executor": "array"} if name == "gpu" else {"num_threads": 2}


@cache
def images() -> gl.Source:
    """Return images in files."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    for row, image in enumerate(SIZES):
        Image.fromarray(image).save(f"{folder.name}/{row}.png")
    return gl.images(folder.name, labels=None)


def host_values(batch: Any) -> list[list[Any]]:
    """Return the rows of each part of a batch as arrays of the host."""
    return [[row if isinstance(row, np.ndarray) else row.get() for row in part] for part in batch]


def close(loader: gl.Loader) -> None:
    """Close a loader, perhaps of a GPU that is lost."""
    with contextlib.suppress(DeviceError):
        loader.close()


class OfTheUser(Exception):
    """A call of CUDA failed that this test itself made."""


def run(make: Callable[[str], gl.Loader] = make_loader) -> None:
    """Go through an epoch and compare every batch."""
    with make("gpu") as loader:
        if (
            make is make_resident
        ):  # the batches that are compared are those of records that lie there
            for _ in loader.epoch(0):
                pass
        for batch, right in zip(loader, expected(make), strict=True):
            try:
                values = host_values(batch)
            except Exception as error:
                raise OfTheUser from error
            for part, meaning in zip(values, right, strict=True):
                assert all(
                    np.array_equal(row, other) for row, other in zip(part, meaning, strict=True)
                )


@cache
def expected(make: Callable[[str], gl.Loader]) -> list[Any]:
    with make("cpu") as loader:
        return [host_values(batch) for batch in loader]


@pytest.fixture(autouse=True)
def repaired() -> Iterator[None]:
    yield
    emulated_gpu.fail(0, 0)
    gc.collect()


def num_calls(work: Callable[[], object]) -> int:
    """Return how many calls a piece of work makes, of which each is to fail."""
    work()
    before = emulated_gpu.num_calls()
    work()
    return emulated_gpu.num_calls() - before


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("error", "stays", "remedy"),
    [
        (emulated_gpu.OUT_OF_MEMORY, False, "nvidia-smi"),
        (emulated_gpu.LAUNCH_FAILURE, True, "nvidia-smi"),
    ],
    ids=["once", "for good"],
)
@pytest.mark.parametrize(
    ("make", "every"),
    [
        (make_loader, 1),
        (make_resident, 11),
        (make_rows, 7),
        (make_ragged, 7),
        (make_sizes, 7),
        (make_audit, 7),
        (make_files, 11),
        (make_crops, 11),
    ],
    ids=lambda it: getattr(it, "__name__", ""),
)
def test_each_call_that_fails_is_a_clear_error_or_no_harm_and_the_next_loader_goes_on(
    make, every, error, stays, remedy
):
    outcomes = []
    for call in range(1, num_calls(lambda: run(make)) + 1, every):
        emulated_gpu.fail(call, error, stays=stays)
        try:
            run(make)
            outcomes.append("right")
        except DeviceError as problem:
            is_clear = remedy in problem.remedy or "page-locked" in problem.what
            outcomes.append("error" if is_clear else f"call {call}: {problem}")
        except OfTheUser:
            outcomes.append("user")
        emulated_gpu.fail(0, 0)
        run(make)

    assert set(outcomes) <= {"right", "error", "user"}
    assert "error" in outcomes


def test_what_fails_while_a_bridge_hands_over_is_a_clear_error_too():
    array_type = device.cupy().ndarray

    def convert(values: Any) -> Any:
        """Name a stream, as torch does; CuPy makes it wait for the current one."""
        return values.__dlpack__(stream=1) if isinstance(values, array_type) else values

    def hand_over() -> type | None:
        """Return the type of the error, or None."""
        with contextlib.ExitStack() as stack:
            try:
                loader = gl.Loader(SOURCE, 4, device="gpu")
                stack.callback(close, loader)
                assert len(list(common.convert_batches(iter(loader), convert))) == NUM_BATCHES
            except Exception as error:
                return type(error)
        return None

    types = set()
    for call in range(1, num_calls(hand_over) + 1):
        emulated_gpu.fail(call, emulated_gpu.LAUNCH_FAILURE, stays=True)
        types.add(hand_over())
        emulated_gpu.fail(0, 0)

    assert types - {None} == {DeviceError}


def test_page_locked_memory_that_is_not_to_be_had_is_no_memory_of_the_gpu():
    num_bytes = 12_345_678  # no other test asks for it: idle memory of this size would be taken
    emulated_gpu.fail(1, emulated_gpu.OUT_OF_MEMORY, stays=True)

    with pytest.raises(
        DeviceError, match=f"{num_bytes} bytes of page-locked host memory"
    ) as caught:
        device.pinned(num_bytes)

    assert "ulimit -l" in caught.value.remedy


@pytest.mark.parametrize(
    ("error", "what", "remedy"),
    [
        (emulated_gpu.OUT_OF_MEMORY, "the GPU has no memory left", "which processes have it"),
        (
            emulated_gpu.DEVICES_UNAVAILABLE,
            "the GPU is not available to this process",
            "Exclusive Process",
        ),
        (emulated_gpu.LAUNCH_FAILURE, "a call of CUDA failed", "CUDA works again in a new process"),
    ],
)
@pytest.mark.parametrize("call", [1, 2])
def test_a_gpu_that_answers_with_an_error_is_named_with_the_remedy_and_auto_says_so(
    error, what, remedy, call
):
    emulated_gpu.fail(call, error, stays=True)
    with pytest.raises(DeviceError, match=what) as caught:
        make_loader("gpu")
    emulated_gpu.fail(call, error, stays=True)

    name, why = device.choose("auto")

    assert remedy in caught.value.remedy
    assert name == "cpu"
    assert why.startswith(f"no usable GPU: {what}")


def test_a_gpu_that_is_lost_between_two_batches_ends_its_loader_alone():
    on_gpu, on_cpu = make_loader("gpu"), make_loader("cpu")
    batches, references = iter(on_gpu), iter(on_cpu)
    next(batches), next(references)
    emulated_gpu.fail(1, emulated_gpu.LAUNCH_FAILURE, stays=True)

    for _ in range(2):  # and again
        with pytest.raises(DeviceError, match="nvidia-smi"):
            list(batches)
    assert len(list(references)) == NUM_BATCHES - 1
    close(on_gpu)
    on_cpu.close()


@pytest.mark.parametrize(
    "make", [make_loader, make_files, make_crops], ids=lambda make: make.__name__
)
@pytest.mark.parametrize(
    ("error", "stays", "text"),
    [
        (
            emulated_gpu.OUT_OF_MEMORY,
            True,
            r"no memory left for \d+ records of steps? \d[\s\S]*smaller batch_size",
        ),
        (
            emulated_gpu.LAUNCH_FAILURE,
            True,
            r"a call of CUDA failed[\s\S]*stays behind its last batch",
        ),
    ],
    ids=["full", "lost"],
)
def test_no_step_is_lost_and_no_memory_stays_page_locked_where_the_gpu_fails_amid_an_epoch(
    make, error, stays, text
):
    run(make)
    before = num_page_locked()

    for call in (3, 6):  # before the last batch is delivered
        go_on_behind_a_failure(make, call, error, stays, text)

    assert num_page_locked() <= before


def go_on_behind_a_failure(
    make: Callable[[str], gl.Loader], call: int, error: int, stays: bool, text: str
) -> None:  # fmt: skip
    """Take a batch, have a call fail, and compare what came before and what a new loop goes on
    with."""
    right = expected(make)
    with make("gpu") as loader:
        batches, message = iter(loader), ""
        values = [host_values(next(batches))]
        emulated_gpu.fail(call, error, stays=stays)
        try:
            values += [host_values(batch) for batch in batches]
        except DeviceError as problem:
            message = "\n".join([str(problem), *getattr(problem, "__notes__", ())])
        except Exception:  # of a call that this test itself made
            message = ""
        emulated_gpu.fail(0, 0)
        state, position = loader.state_dict(), loader.position.step
        rest = [host_values(batch) for batch in loader]
    assert not message or re.search(text, message) or "page-locked" in message, message
    assert state["step"] == position
    # A batch that was delivered, and whose copy to the host failed here, is not made again.
    assert len(right) - len(rest) - len(values) in (0, 1)
    assert all(are_alike(*pair) for pair in zip(values, right, strict=False))
    assert all(are_alike(*pair) for pair in zip(rest[::-1], right[::-1], strict=False))


def num_page_locked() -> int:
    """Return how many pieces of page-locked memory somebody still uses.

    What waits for its next use is freed. Answers of checks are left out: they are kept until the
    next answer is asked.
    """
    gc.collect()
    hostmemory._unlock_pages(0)
    device.cupy().get_default_pinned_memory_pool().free_all_blocks()
    return emulated_gpu.num_pinned() - len(copies._copies)


def are_alike(batch: list[list[Any]], right: list[list[Any]]) -> bool:
    pairs = [
        pair
        for part, meaning in zip(batch, right, strict=True)
        for pair in zip(part, meaning, strict=True)
    ]
    return all(np.array_equal(row, meaning) for row, meaning in pairs)


def test_a_batch_larger_than_the_gpu_is_an_error_with_a_batch_size_that_fits():
    emulated_gpu.configure(memory_bytes=6 << 10)
    device.empty_pool("gpu:0")
    try:
        with make_files("gpu").replace(batch_size=8) as loader:
            with pytest.raises(DeviceError, match="for 8 records of step 0") as caught:
                list(loader)
            assert loader.position.step == 0
        assert "smaller batch_size, 4 or less" in caught.value.remedy
    finally:
        emulated_gpu.configure()
    with make_files("gpu").replace(batch_size=4) as loader:
        assert len(list(loader)) == 2


def test_of_short_steps_that_are_done_together_the_error_names_a_size_below_that_of_a_batch():
    with make_rows("gpu") as loader:
        step = Step(
            loader._session.recipe,
            loader._session.ring,
            loader._session.counters,
            Position(0, 2),
            4,
        )
        step.run()
        problem = explain(
            device.cupy().cuda.runtime.CUDARuntimeError(emulated_gpu.OUT_OF_MEMORY), step
        )
    assert problem.what == "the GPU has no memory left for 32 records of steps 2 to 5"
    assert problem.remedy.startswith("use a smaller batch_size, 4 or less, or prefetch=1; ")
    assert problem.__notes__[0].startswith("epoch 0, steps 2 to 5: the loader stays")


PROGRAM = """
from tests import emulated_gpu
emulated_gpu.install_from_environment()
from tests.emulated_gpu import test_failures
batches = iter(test_failures.make_loader("gpu"))
kept = next(batches)
emulated_gpu.fail(1, emulated_gpu.LAUNCH_FAILURE, stays=True)
try:
    list(batches)
except test_failures.DeviceError as error:
    print(error.what, flush=True)
"""


def test_a_program_whose_gpu_was_lost_ends():
    folder = str(emulated_gpu.HERE.parents[1])
    environment = {**os.environ, "PYTHONPATH": folder}

    command = [sys.executable, "-c", PROGRAM]
    process = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )

    assert process.returncode == 0, process.stderr
    assert process.stdout == "a call of CUDA failed\n"


def test_a_gpu_that_becomes_full_while_records_stay_there_has_the_others_read_in_each_epoch(
    caplog, monkeypatch
):
    images = RANDOM.integers(0, 256, (64, 32, 32, 3), np.uint8)
    reference = gl.Loader(gl.arrays(image=images), 8, shuffle=True, device="cpu")
    loader = gl.Loader(gl.arrays(image=images), 8, shuffle=True, device="gpu", prefetch=1).cache(
        device=True
    )
    monkeypatch.setattr("gpuload.sources.card.PIECE_BYTES", 8 * images[0].nbytes)
    taken = []
    take = device.CardMemory.take.__func__

    def take_piece(cls, num_bytes, name):
        """Give three pieces, and then have the card full."""
        if len(taken) == 3:
            emulated_gpu.fail(1, emulated_gpu.OUT_OF_MEMORY)
        taken.append(num_bytes)
        return take(cls, num_bytes, name)

    monkeypatch.setattr(device.CardMemory, "take", classmethod(take_piece))

    for epoch in range(3):
        for batch, expected in zip(loader.epoch(epoch), reference.epoch(epoch), strict=True):
            np.testing.assert_array_equal(batch["image"].get(), expected["image"])

    assert len(taken) == 4  # and asked no more
    assert "gpu:0 has no memory left: 24 of 64 records" in caplog.text
    assert "40 do not fit and come from the source in each epoch" in loader.describe()
    loader.close()


def leave_free(memory_bytes: int) -> None:
    """Have a GPU of which so many bytes are free."""
    device.empty_pool("gpu:0")
    free, total = device.card_bytes("gpu:0")
    emulated_gpu.configure(memory_bytes=total - free + memory_bytes)


def resident_on(memory_bytes: int, budget: int | None = None) -> gl.Loader:
    """Return a loader of 256 records of 3 KB that stay on a GPU of which so many bytes are free."""
    leave_free(memory_bytes)
    images = np.random.default_rng(0).integers(0, 256, (256, 32, 32, 3), np.uint8)
    words: dict[str, Any] = {
        "ops": [gl.ops.Normalize(1.0, 2.0)],
        "device": "gpu",
        "executor": "array",
        "prefetch": 2,
    }
    return gl.Loader(gl.arrays(image=images), 16, **words).cache(device=True, memory=budget)


@pytest.mark.parametrize("budget", [None, 2_500_000])
def test_rows_that_stay_on_the_gpu_leave_room_for_the_batches(budget, caplog):
    try:
        with resident_on(2_500_000, budget) as loader:
            for epoch in range(3):
                assert [batch.step for batch in loader.epoch(epoch)] == list(range(16))
            (num_records,) = re.findall(
                r"(\d+) of 256 records are in the memory", loader.describe()
            )
            assert 16 < int(num_records) < 256
            assert f"{256 - int(num_records)} do not fit" in loader.describe()
        assert "gpu:0 has no more memory beside the batches: " in caplog.text
    finally:
        emulated_gpu.configure()


def test_a_gpu_that_becomes_full_behind_the_first_epoch_is_an_error_that_names_the_budget():
    batches = []
    try:
        with resident_on(3_000_000) as loader:
            assert [batch.step for batch in loader] == list(range(16))
            with pytest.raises(
                DeviceError,
                match=r"write a smaller memory= in cache[\s\S]*smaller batch_size",
            ):
                batches.extend(loader)  # all of them in the memory of the GPU at once
            position = loader.position.step
            batches.clear()
            assert [batch.step for batch in loader] == list(range(position, 16))
    finally:
        emulated_gpu.configure()


def test_idle_memory_of_batches_of_before_is_free_for_a_cache():
    try:
        leave_free(4_000_000)
        with device.Lane("gpu:0") as lane:
            lane.unused(3_000_000)
        with make_loader("gpu").cache(device=True, memory=2_000_000) as loader:
            assert "2 MB" in loader.describe()
    finally:
        emulated_gpu.configure()


def test_a_full_gpu_is_named_and_a_loader_on_the_cpu_goes_on():
    emulated_gpu.configure(memory_bytes=1 << 10)
    device.empty_pool("gpu:0")
    try:
        with pytest.raises(
            DeviceError, match=r"the GPU has no memory left[\s\S]*smaller batch_size"
        ):
            list(gl.Loader(gl.arrays(x=np.zeros((1 << 20, 64), np.uint8)), 1 << 18, device="gpu"))
        with pytest.raises(
            DeviceError, match=r"remedy: use a smaller batch_size, 131072"
        ):  # no row is there
            list(
                gl.Loader(
                    gl.arrays(x=np.zeros((1 << 20, 64), np.uint8)), 1 << 18, device="gpu"
                ).cache(device=True)
            )
        assert len(list(make_loader("cpu"))) == NUM_BATCHES
    finally:
        emulated_gpu.configure()

    run()
