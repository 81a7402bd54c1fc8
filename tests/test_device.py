"""A device is chosen with a reason, or refused with a cause."""

from __future__ import annotations

import signal
import threading

import numpy as np
import pytest

from gpuload import device, signalsafe
from gpuload.errors import DeviceError, SpecError
from tests import simdevice
from tests.interrupts import Alarm


@pytest.mark.parametrize("name", ["cuda", "gpu:", "gpu:-1", "GPU", 0, None])
def test_an_unknown_device_is_refused(name):
    with pytest.raises(SpecError, match="device = "):
        device.choose(name)


def test_a_problem_of_the_gpu_is_the_reason_for_the_cpu(monkeypatch):
    problem = device.Problem("the fan is off", "switch it on")
    simdevice.replace(monkeypatch, "gpu_problem", lambda number: problem)
    assert device.choose("auto") == ("cpu", "no usable GPU: the fan is off")
    with pytest.raises(
        DeviceError, match="cause:  the fan is off\n  remedy: switch it on, or use device="
    ):
        device.choose("gpu:1")


@pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="this system has no timers that send signals"
)
def test_what_a_signal_handler_raises_meanwhile_is_no_reason_for_the_cpu(monkeypatch):
    go_on = threading.Event()
    monkeypatch.setattr(signalsafe, "is_installed", lambda name: True)
    simdevice.replace(monkeypatch, "cupy", lambda: go_on.wait(60))
    try:
        with Alarm(0.05, armed=True), pytest.raises(Alarm.Rang):
            device.choose("auto")
    finally:
        go_on.set()


def test_auto_takes_the_first_gpu_that_is_there(monkeypatch):
    simdevice.replace(monkeypatch, "gpu_problem", lambda number: None)
    assert device.choose("auto")[0] == "gpu:0"
    assert device.choose("gpu:3") == ("gpu:3", "asked for")


@pytest.mark.parametrize("num_bytes", [1, 4096, 100_001])
def test_memory_begins_at_a_page(num_bytes):
    memory = device.page_aligned(num_bytes)
    assert memory.size == num_bytes
    assert memory.ctypes.data % device.PAGE_BYTES == 0


@pytest.fixture(params=["sim", pytest.param("cupy", marks=pytest.mark.gpu)])
def gpu(request, monkeypatch):
    if request.param == "cupy":
        yield
        return
    sim = simdevice.install(monkeypatch)
    yield
    sim.finish()


def test_a_gpu_that_is_there_is_chosen_by_its_number(gpu):
    assert device.choose("gpu") == device.choose("gpu:0") == ("gpu:0", "asked for")
    assert device.choose("auto") == ("gpu:0", "a GPU is there")
    with pytest.raises(DeviceError, match="numbered"):
        device.choose("gpu:99")


def test_pinned_memory_goes_to_the_gpu_and_comes_back(gpu):
    host = device.pinned(1 << 20)
    host[:] = np.arange(host.size) % 251
    on_gpu = device.upload(host, "gpu:0")
    device.synchronize("gpu:0")
    host[:] = 0
    assert np.array_equal(device.cupy().asnumpy(on_gpu), np.arange(1 << 20) % 251)


@pytest.fixture
def page_locks(monkeypatch):
    """How many bytes were locked, each time."""
    sim = simdevice.install(monkeypatch)
    sizes: list[int] = []
    lock = sim.cupy.cuda.PinnedMemory
    monkeypatch.setattr(
        sim.cupy.cuda, "PinnedMemory", lambda size: sizes.append(size) or lock(size)
    )
    yield sizes
    sim.finish()


def test_page_locked_memory_has_the_size_that_was_asked_for_and_is_used_again(page_locks):
    host = device.pinned(5000)
    address, part = host.ctypes.data, host[10:20]
    del host
    second = device.pinned(5000)
    del part
    again = device.pinned(5000)

    assert page_locks == [5000, 5000]
    assert second.ctypes.data != address
    assert again.ctypes.data == address


def test_idle_page_locked_memory_is_freed_where_another_size_needs_more_than_the_limit(
    page_locks, monkeypatch
):
    simdevice.replace(monkeypatch, "MOST_IDLE_PINNED_BYTES", 10_000)
    loan = [device.pinned(4000) for _ in range(3)]
    del loan
    device.pinned(100)

    loan = [device.pinned(4000) for _ in range(3)]
    assert len(loan) == 3
    assert page_locks == [4000, 4000, 4000, 100, 4000]


def test_where_no_more_pages_can_be_locked_idle_ones_are_freed_first(page_locks, monkeypatch):
    cuda = device.cupy().cuda
    lock = cuda.PinnedMemory
    device.pinned(4000)

    def lock_the_second_time(size):
        monkeypatch.setattr(cuda, "PinnedMemory", lock)
        raise cuda.runtime.CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")

    monkeypatch.setattr(cuda, "PinnedMemory", lock_the_second_time)
    first = device.pinned(200)
    device.pinned(4000)

    assert first.size == 200
    assert page_locks == [4000, 200, 4000]


def test_a_small_array_is_fetched_without_a_wait_of_the_host(gpu):
    cupy = device.cupy()
    with cupy.cuda.Device(0), cupy.cuda.Stream(non_blocking=True):
        numbers, event = device.fetch(cupy.arange(3, dtype=np.int64) * 7)
        event.synchronize()

    assert numbers.tolist() == [0, 7, 14]
