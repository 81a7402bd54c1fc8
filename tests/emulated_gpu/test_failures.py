"""Each call of CUDA fails once, in a run of a loader: a clear error or the right batches, no hang, and others go on.

An error comes alone (memory that another process took for a moment) or stays (the card fell off the bus).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

import gpuload as gl
from gpuload import device
from tests import emulated_gpu

pytestmark = [
    pytest.mark.gpu,
    # CuPy destroys its streams and events in finalizers, which can only warn where CUDA refuses that.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NUM_BATCHES = 3
SOURCE = gl.arrays(
    image=np.random.default_rng(0).integers(0, 256, (4 * NUM_BATCHES, 3, 8, 8), np.uint8),
    label=np.arange(4 * NUM_BATCHES) % 10,
)
OPS = [gl.ops.Transpose("HWC"), gl.ops.RandomFlip(), gl.ops.Normalize(1.0, 2.0), gl.ops.OneHot(10, on="label")]


def make_loader(name: str) -> gl.Loader:
    return gl.Loader(SOURCE, 4, ops=OPS, shuffle=True, device=name, executor="array", output=("image", "label"))


EXPECTED = [(batch["image"].copy(), batch["label"].copy()) for batch in make_loader("cpu")]


class OfTheUser(Exception):
    """A call of CUDA failed that this test itself made."""


def run() -> None:
    """Go through an epoch and compare every batch."""
    with make_loader("gpu") as loader:
        for batch, expected in zip(loader, EXPECTED, strict=True):
            try:
                values = batch["image"].get(), batch["label"].get()
            except Exception as error:
                raise OfTheUser from error
            assert all(np.array_equal(mine, right) for mine, right in zip(values, expected, strict=True))


@pytest.fixture(autouse=True)
def repaired() -> Iterator[None]:
    yield
    emulated_gpu.fail(0, 0)
    gc.collect()


def num_calls() -> int:
    """Return how many calls a run makes, of which each is to fail."""
    run()
    before = emulated_gpu.num_calls()
    run()
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
def test_each_call_that_fails_is_a_clear_error_or_no_harm_and_the_next_loader_goes_on(error, stays, remedy):
    outcomes = []
    for call in range(1, num_calls() + 1):
        emulated_gpu.fail(call, error, stays=stays)
        try:
            run()
            outcomes.append("right")
        except device.DeviceError as problem:
            outcomes.append("error" if remedy in problem.remedy else f"call {call}: {problem}")
        except OfTheUser:
            outcomes.append("user")
        emulated_gpu.fail(0, 0)
        run()

    assert set(outcomes) <= {"right", "error", "user"}
    assert "error" in outcomes


def test_a_full_gpu_is_named_and_a_loader_on_the_cpu_goes_on():
    emulated_gpu.configure(memory_bytes=1 << 10)
    device.cupy().get_default_memory_pool().free_all_blocks()
    try:
        with pytest.raises(device.DeviceError, match=r"the GPU has no memory left[\s\S]*smaller batch_size"):
            list(gl.Loader(gl.arrays(x=np.zeros((1 << 20, 64), np.uint8)), 1 << 18, device="gpu"))
        assert len(list(make_loader("cpu"))) == NUM_BATCHES
    finally:
        emulated_gpu.configure()

    run()
