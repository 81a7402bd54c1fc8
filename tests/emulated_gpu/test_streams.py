"""Streams of consumers, with the real CuPy: those that other libraries name, and the default
streams of threads.

Each program runs in a process of its own, with warnings as errors: CuPy reads the environment when
it is imported.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import emulated_gpu

pytestmark = pytest.mark.gpu

HEAD = """
import threading
from tests import emulated_gpu
emulated_gpu.install(late_us={late_us})
import cupy
import numpy as np
import gpuload as gl
from gpuload import device

NUM_ROWS, NUM_NUMBERS = 64, 4096
ROWS = np.random.default_rng(0).integers(0, 1 << 20, (NUM_ROWS, NUM_NUMBERS))

def run(function, *arguments):
    results = []
    thread = threading.Thread(target=lambda: results.append(function(*arguments)))
    thread.start()
    thread.join()
    return results[0]
"""

# Sums on the stream that a consumer names, each queued late, when the memory is dropped already.
NAMED = """
stream = cupy.cuda.Stream(non_blocking=True)
sums = []
with gl.Loader(gl.arrays(x=ROWS), 4, device="gpu", executor="array") as loader:
    for batch in loader:
        export = device.stream_export(batch["x"])
        with stream:
            x = cupy.from_dlpack(export)  # names its current stream
            assert [reader.ptr for reader in export._loan.readers] == [stream.ptr]
            sums.append(x.sum())
        for handle in (1, stream.ptr):
            export.__dlpack__(stream=handle)
        del batch, export, x
    stream.synchronize()
assert sums == [int(ROWS[i : i + 4].sum()) for i in range(0, NUM_ROWS, 4)], sums
"""

# A batch that was handed to one thread and is dropped in another.
OF_A_THREAD = """
def take(loader):
    assert cupy.cuda.get_current_stream().ptr == 2
    batch = next(iter(loader))
    return batch["x"]

with gl.Loader(gl.arrays(x=ROWS), 4, device="gpu", executor="array") as loader:
    lane_array = run(take, loader)
    loan = lane_array.data.mem._owner
    del lane_array
    assert loan._events() is None
"""

# Two threads take batches of joined steps, which have one event: each waits for it on its own
# stream.
JOINED = """
lane, gate = device.Lane("gpu:0"), threading.Event()
lane.stream.launch_host_func(lambda _: gate.wait(10), None)
event = lane.mark()

def take():
    lane.hand_over(event)
    return cupy.cuda.Stream.ptds.done

assert [run(take), run(take)] == [False, False]
gate.set()
lane.close()
"""

# The stand-in itself: what one thread holds up on its default stream holds up no other thread's.
EMULATED = """
gate = threading.Event()

def hold():
    cupy.cuda.Stream.ptds.launch_host_func(lambda _: gate.wait(10), None)
    return cupy.cuda.Stream.ptds.record()

event = run(hold)
cupy.cuda.Stream.ptds.synchronize()
assert not event.done
gate.set()
event.synchronize()
"""

# The same: the device is waited for until what was queued on a stream that is destroyed has run,
# too.
DESTROYED = """
memory, gate = cupy.zeros(8, np.uint8), threading.Event()
cupy.cuda.Device(0).synchronize()
stream = cupy.cuda.Stream(non_blocking=True)
stream.launch_host_func(lambda _: gate.wait(10), None)
with stream:
    memory.fill(7)
del stream
threading.Timer(0.2, gate.set).start()
cupy.cuda.Device(0).synchronize()
assert gate.is_set()
assert (memory.get() == 7).all()
"""


def run(program: str, *, late_us: int = 0, per_thread: bool = False) -> None:
    environment = emulated_gpu.environment()
    environment["CUPY_CUDA_PER_THREAD_DEFAULT_STREAM"] = str(int(per_thread))
    command = [sys.executable, "-W", "error", "-c", HEAD.format(late_us=late_us) + program]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-3000:]
    assert "emulated GPU:" not in process.stderr  # a call that CUDA leaves undefined


def test_a_stream_that_a_consumer_names_is_waited_for_and_nothing_is_deprecated():
    run(NAMED, late_us=2000)


def test_memory_of_a_threads_default_stream_has_no_event_that_another_thread_could_record():
    run(OF_A_THREAD, per_thread=True)


def test_each_thread_waits_on_its_own_default_stream_for_an_event_of_several_batches():
    run(JOINED, late_us=2000, per_thread=True)


def test_the_default_streams_of_two_threads_are_two():
    run(EMULATED, late_us=2000, per_thread=True)


def test_the_work_of_a_stream_that_was_destroyed_is_waited_for():
    run(DESTROYED)
