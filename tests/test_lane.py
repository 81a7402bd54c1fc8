"""A lane on a GPU: nothing is read too early, overwritten too early or freed too early, and nobody
waits for it.

Each test that is not about the simulation runs on the simulated GPU and, where there is one, on a
real one. There a kernel that takes its time stands in front of what must not be overtaken.
"""

from __future__ import annotations

import gc
import os
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from gpuload import device as devices
from gpuload.device import FOREIGN_GROUP, Event, Lane, stream_export
from gpuload.device.ledger import Ledger
from gpuload.errors import ClosedError, DeviceError, SpecError
from tests import forkserver, simdevice
from tests.threads import until

ROWS = np.arange(4096, dtype=np.float32)


class Real:
    """The real GPU, with what the tests need of the simulated one."""

    def __init__(self):
        self.cupy = devices.cupy()
        self._spin = self.cupy.RawKernel(
            r'extern "C" __global__ void spin(long long n) { long long t = clock64(); while (clock64() - t < n); }',
            "spin",
        )

    def delay(self):
        """Queue something on the current stream that takes about 50 ms."""
        self._spin((1,), (1,), (np.int64(75_000_000),))

    def free_all_blocks(self):
        """Free what CuPy's pool keeps; of several free blocks of one size CuPy 13 takes one after
        the other."""
        self.cupy.get_default_memory_pool().free_all_blocks()


@pytest.fixture(params=["sim", pytest.param("cupy", marks=pytest.mark.gpu)])
def gpu(request, monkeypatch):
    if request.param == "cupy":
        yield Real()
        return
    sim = simdevice.install(monkeypatch, seed=3)
    sim.delay = lambda: [
        sim.cupy.zeros(1) for _ in range(20)
    ]  # more than runs while somebody looks
    sim.free_all_blocks = lambda: None  # it keeps none
    yield sim
    gc.collect()
    sim.finish()


@pytest.fixture
def sim(monkeypatch):
    simulation = simdevice.install(monkeypatch, seed=5)
    yield simulation
    gc.collect()
    simulation.finish()


@pytest.fixture
def lane(gpu):
    with_lane = Lane("gpu:0")
    yield with_lane
    with_lane.close()


_slots = []


@pytest.fixture(autouse=True)
def slots():
    """Keep the pinned memory of a test until it has ended."""
    yield _slots
    _slots.clear()


def pinned(values):
    host = devices.pinned(values.nbytes).view(values.dtype)
    host[:] = values
    _slots.append(host)
    return host


def step(lane, host):
    """Queue a step that doubles an array; return the result and its event."""
    with lane:
        result = lane.upload(host) * 2
    return result, lane.mark()


def has_passed(gpu, event):
    """Return whether an event of CuPy has passed; looking lets no time pass."""
    return event.done if isinstance(gpu, Real) else gpu.has_run(event.clock)


class TestAStep:
    def test_reaches_the_consumer_with_the_right_numbers(self, gpu, lane):
        with lane:
            gpu.delay()
        result, event = step(lane, pinned(ROWS))
        lane.hand_over(event)

        assert np.array_equal((lane.lend(result) + 1).get(), ROWS * 2 + 1)

    def test_reaches_a_consumer_on_a_stream_of_its_own(self, gpu, lane):
        with lane:
            gpu.delay()
        result, event = step(lane, pinned(ROWS))
        with gpu.cupy.cuda.Stream(non_blocking=True):
            lane.hand_over(event)
            image = lane.lend(result)

            assert np.array_equal((image + 1).get(), ROWS * 2 + 1)

    def test_reaches_a_consumer_in_another_thread(self, gpu, lane):
        results = []
        thread = threading.Thread(target=lambda: results.append(step(lane, pinned(ROWS))))
        thread.start()
        thread.join()
        result, event = results.pop()
        lane.hand_over(event)

        assert np.array_equal(lane.lend(result).get(), ROWS * 2)

    def test_may_have_its_slot_filled_again_when_its_event_has_passed(self, gpu, lane):
        host = pinned(ROWS)
        with lane:
            gpu.delay()
        result, event = step(lane, host)
        event.synchronize()
        assert event.done
        host[:] = 0
        lane.hand_over(event)

        assert np.array_equal(result.get(), ROWS * 2)

    def test_has_shapes_dtypes_and_empty_arrays_as_they_were(self, gpu, lane):
        for host in (
            np.zeros((0, 3), np.uint8),
            np.arange(6, dtype=np.int16).reshape(2, 3),
            np.array(3.0),
        ):
            with lane:
                on_gpu = lane.upload(host)
            lane.mark().synchronize()
            lent = lane.lend(on_gpu)
            del on_gpu

            assert (lent.shape, lent.dtype) == (host.shape, host.dtype)
            assert np.array_equal(lent.get(), host)

    def test_keeps_the_order_of_axes_when_it_is_lent(self, gpu, lane):
        with lane:
            turned = lane.upload(ROWS.reshape(64, 64)).transpose(1, 0)[::-1]
        lane.hand_over(lane.mark())
        lent = lane.lend(turned)

        assert lent.strides == turned.strides
        assert np.array_equal(lent.get(), ROWS.reshape(64, 64).T[::-1])

    def test_cannot_be_uploaded_from_memory_with_gaps(self, lane):
        with pytest.raises(SpecError, match="strides"):
            lane.upload(ROWS[::2])


class TestLentMemory:
    def test_is_not_overwritten_while_the_consumer_reads(self, gpu, lane):
        results = []
        for number in range(12):
            lane.reclaim()
            result, event = step(lane, pinned(ROWS + number))
            lane.hand_over(event)
            image = lane.lend(result)
            del result
            gpu.delay()
            results.append(
                image + 1
            )  # queued behind the delay, and then the array is dropped at once
            del image

        for number, result in enumerate(results):
            assert np.array_equal(result.get(), (ROWS + number) * 2 + 1)

    def test_is_used_again(self, gpu, lane):
        lane.reclaim(wait=True)
        gpu.free_all_blocks()
        addresses = set()
        for number in range(12):
            lane.reclaim()
            result, event = step(lane, pinned(ROWS + number))
            lane.hand_over(event)
            image = lane.lend(result)
            addresses.add(image.data.ptr)
            del result, image

        assert len(addresses) <= 3

    def test_stays_while_a_view_a_capsule_or_a_field_of_it_is_there(self, gpu, lane):
        result, event = step(lane, pinned(ROWS))
        lane.hand_over(event)
        image = lane.lend(result)
        del result
        part = image.reshape(64, 64)[3]
        del image
        for _ in range(3):
            lane.reclaim(wait=True)
            step(lane, pinned(ROWS * 0))

        assert np.array_equal(part.get(), ROWS.reshape(64, 64)[3] * 2)

    def test_is_counted_until_it_is_reclaimed_and_shared_memory_once(self, lane):
        result, event = step(lane, pinned(ROWS))
        lane.hand_over(event)
        assert lane.bytes == 0
        halves = [lane.lend(result[:2048]), lane.lend(result[2048:])]
        assert lane.bytes == ROWS.nbytes
        del result, halves[0]
        lane.reclaim(wait=True)
        assert lane.bytes == ROWS.nbytes
        del halves[0]
        assert lane.bytes == ROWS.nbytes
        lane.reclaim()
        assert lane.bytes == 0

    def test_stays_right_after_the_lane_was_closed_and_the_next_one_took_its_stream(
        self, gpu, lane
    ):
        arrays = []
        for number in range(5):
            short_lane = Lane("gpu:0")
            result, event = step(short_lane, pinned(ROWS + number))
            short_lane.hand_over(event)
            arrays.append(short_lane.lend(result))
            del result
            short_lane.close()
            if number % 2:
                gpu.delay()
                arrays.append(arrays.pop() + 0)

        assert [
            np.array_equal(array.get(), (ROWS + number) * 2) for number, array in enumerate(arrays)
        ] == [True] * 5

    def test_that_is_read_on_a_stream_nobody_sees_is_not_overwritten(self, gpu, lane):
        hidden = gpu.cupy.cuda.Stream(
            non_blocking=True
        )  # as TensorFlow's: known to whoever takes the capsule alone
        results = []
        for number in range(3 * FOREIGN_GROUP):
            lane.reclaim()
            result, event = step(lane, pinned(ROWS + number))
            lane.hand_over(event)
            image = lane.lend(result)
            del result
            image.__dlpack__(stream=hidden.ptr)
            with hidden:
                gpu.delay() if number % 7 == 0 else None
                results.append(image + 1)
            del image

        with hidden:
            for number, result in enumerate(results):
                assert np.array_equal(result.get(), (ROWS + number) * 2 + 1)

    @pytest.mark.parametrize(
        "view",
        [
            lambda x: x,
            lambda x: x[3:],
            lambda x: x[5],
            lambda x: x.reshape(-1),
            lambda x: x.T,
            lambda x: x.view("i4"),
        ],
    )
    @pytest.mark.parametrize(
        "export", [lambda x: x.__dlpack__(), lambda x: x.__cuda_array_interface__]
    )
    def test_that_leaves_cupy_is_noticed_also_through_a_view(self, gpu, lane, view, export):
        result, event = step(lane, pinned(ROWS))
        lane.hand_over(event)
        image = lane.lend(result.reshape(64, 64))
        del result
        exported = export(view(image))
        del image, exported
        lane.reclaim()
        assert lane.bytes == ROWS.nbytes
        lane.reclaim(wait=True)
        assert lane.bytes == 0

    def test_of_somebody_else_goes_only_when_it_was_read(self, gpu, lane):
        """Memory that is not CuPy's (DALI's) is not ordered by our stream, so the host has to see
        that it was read."""
        dropped = threading.Event()

        class Owner:
            def __init__(self, array):
                self.array = array

            def __del__(self):
                dropped.set()

        owned = gpu.cupy.asarray(ROWS)
        gpu.cupy.cuda.get_current_stream().synchronize()
        memory = gpu.cupy.cuda.UnownedMemory(owned.data.ptr, owned.nbytes, Owner(owned), 0)
        image = lane.lend(
            gpu.cupy.ndarray(owned.shape, owned.dtype, gpu.cupy.cuda.MemoryPointer(memory, 0))
        )
        del memory
        gpu.delay()
        result = image + 1
        read = gpu.cupy.cuda.get_current_stream().record()
        del image

        lane.reclaim()
        assert has_passed(gpu, read) or not dropped.is_set()
        lane.reclaim(wait=True)
        assert has_passed(gpu, read)
        assert dropped.is_set()
        assert np.array_equal(result.get(), ROWS + 1)


class TestALane:
    def test_uploads_on_its_own_stream_whichever_is_current(self, gpu, lane):
        on_gpu = lane.upload(pinned(ROWS))
        with gpu.cupy.cuda.Stream(non_blocking=True):
            lane.hand_over(lane.mark())
            assert np.array_equal(lane.lend(on_gpu).get(), ROWS)

    def test_is_entered_again_in_the_same_thread(self, gpu, lane):
        before = gpu.cupy.cuda.get_current_stream()
        with lane, lane:
            assert gpu.cupy.cuda.get_current_stream() == lane.stream
        assert gpu.cupy.cuda.get_current_stream() == before
        with pytest.raises(ZeroDivisionError), lane:
            raise ZeroDivisionError
        assert gpu.cupy.cuda.get_current_stream() == before

    def test_is_of_no_use_when_closed(self, lane):
        result, event = step(lane, pinned(ROWS))
        lane.close()
        lane.close()
        for use in (
            lane.__enter__,
            lane.mark,
            lane.reclaim,
            lambda: lane.lend(result),
            lambda: lane.hand_over(event),
        ):
            with pytest.raises(ClosedError):
                use()

    def test_gives_its_stream_to_the_next_one(self, lane):
        handles = []
        for _ in range(5):
            short_lane = Lane("gpu:0")
            handles.append(short_lane.stream.ptr)
            short_lane.close()
        forgotten = Lane("gpu:0")
        handles.append(forgotten.stream.ptr)
        del forgotten
        assert len({*handles, Lane("gpu:0").stream.ptr}) == 1
        assert handles[0] != lane.stream.ptr

    @pytest.mark.parametrize("has_event", [False, True])
    def test_that_is_garbage_in_a_cycle_gives_a_sound_stream_and_sound_events_to_the_next_one(
        self, gpu, has_event
    ):
        cycle = {"lane": Lane("gpu:0")}
        cycle["event"] = cycle["lane"].mark() if has_event else None
        cycle["itself"] = cycle
        handle = cycle["lane"].stream.ptr
        del cycle
        gc.collect()

        lanes = [Lane("gpu:0") for _ in range(12)]  # other garbage may have given tracks back, too
        following = next(lane for lane in lanes if lane.stream.ptr == handle)
        result, event = step(following, pinned(ROWS))
        following.hand_over(event)

        assert np.array_equal(following.lend(result).get(), ROWS * 2)

    def test_takes_memory_back_whose_reader_stream_is_garbage_in_the_same_cycle(self, gpu, lane):
        result, event = step(lane, pinned(ROWS))
        cycle = {"stream": gpu.cupy.cuda.Stream(non_blocking=True)}
        with cycle["stream"]:
            lane.hand_over(event)
            cycle["image"] = lane.lend(result)
        del result
        cycle["itself"] = cycle
        del cycle
        gc.collect()

        lane.reclaim(wait=True)

        assert lane.bytes == 0

    def test_lends_and_reclaims_from_many_threads(self, gpu, lane):
        wrong = []

        def consume(number):
            for turn in range(15):
                values = ROWS + number * 100 + turn
                lane.reclaim()
                result, event = step(lane, pinned(values))
                lane.hand_over(event)
                image = lane.lend(result)
                del result
                doubled = image + 0
                del image
                if not np.array_equal(doubled.get(), values * 2):
                    wrong.append((number, turn))

        threads = [threading.Thread(target=consume, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


class TestNobodyWaits:
    """Of the simulation: what ran when."""

    def test_the_next_steps_run_while_the_consumer_holds_one(self, sim):
        lane = Lane("gpu:0")
        steps = [step(lane, pinned(ROWS + number)) for number in range(3)]
        result, event = steps.pop(0)
        sim.note("begin")
        lane.hand_over(event)
        image = lane.lend(result)
        sim.run()
        sim.note("end")
        uploads, doubled = sim.works("upload"), sim.works("mul")

        assert len(uploads) == len(doubled) == 3
        assert all(
            sim.notes["begin"] < work.ran < sim.notes["end"] for work in uploads[1:] + doubled[1:]
        )
        assert sim.host_waits == []
        assert np.array_equal(image.get(), ROWS * 2)

    def test_a_loop_has_the_host_wait_nowhere(self, sim):
        lane = Lane("gpu:0")
        for number in range(10):
            lane.reclaim()
            result, event = step(lane, pinned(ROWS + number))
            lane.hand_over(event)
            image = lane.lend(result)
            del result
            image + 1
            del image

        assert sim.host_waits == []
        assert sim.used_bytes <= 4 * ROWS.nbytes

    def test_dropping_takes_no_lock_and_waits_for_nothing(self, sim):
        lane = Lane("gpu:0")
        result, event = step(lane, pinned(ROWS))
        lane.hand_over(event)
        images = [lane.lend(result) for _ in range(3)]
        with lane._ledger._lock, lane._reclaiming:
            images.clear()

        assert sim.host_waits == []
        lane.reclaim()
        assert lane.bytes == 0

    def test_a_reader_that_names_its_stream_is_waited_for_by_the_lane_alone(self, sim):
        lane, stream = Lane("gpu:0"), sim.cupy.cuda.Stream(non_blocking=True)
        for number in range(3 * FOREIGN_GROUP):
            lane.reclaim()
            result, event = step(lane, pinned(ROWS + number))
            lane.hand_over(event)
            image = lane.lend(result)
            del result
            stream_export(image).__dlpack__(stream=stream.ptr)  # as torch.from_dlpack calls it
            with stream:
                image + 1
            del image

        assert sim.host_waits == []
        assert sim.used_bytes <= 4 * ROWS.nbytes

    @pytest.mark.parametrize("handle", [None, -1, 0, 2])
    def test_a_reader_that_names_no_stream_of_its_own_is_waited_for_with_the_whole_device(
        self, sim, handle
    ):
        lane = Lane("gpu:0")
        result, event = step(lane, pinned(ROWS))
        lane.hand_over(event)
        stream_export(lane.lend(result)).__dlpack__(stream=handle)
        del result
        lane.reclaim(wait=True)

        assert [wait.what for wait in sim.host_waits] == ["Device.synchronize"]

    def test_unseen_readers_are_waited_for_together(self, sim):
        lane = Lane("gpu:0")
        for number in range(4 * FOREIGN_GROUP):
            lane.reclaim()
            result, event = step(lane, pinned(ROWS + number))
            lane.hand_over(event)
            lane.lend(result).__dlpack__()
            assert until(lambda: not lane._track.is_waiting)

        assert [wait.what for wait in sim.host_waits] == ["Device.synchronize"] * 3
        assert all(wait.thread.startswith("gpuload-readers") for wait in sim.host_waits)
        assert sim.used_bytes <= 3 * FOREIGN_GROUP * ROWS.nbytes


class TestEachWaitIsNeeded:
    """Of the simulation: whoever takes out a wait makes a test fail."""

    def test_hand_over(self, sim, monkeypatch):
        monkeypatch.setattr(Event, "hold_back", lambda self, stream: None)
        lane = Lane("gpu:0")
        with sim.expect_fault("nothing puts one behind the other"):
            result, event = step(lane, pinned(ROWS))
            lane.hand_over(event)
            lane.lend(result).get()

    def test_reclaim(self, sim, monkeypatch):
        lane = Lane("gpu:0")
        with sim.expect_fault("gives memory back to its pool while 'add'"):
            result, event = step(lane, pinned(ROWS))
            lane.hand_over(event)
            image = lane.lend(result)
            del result
            image + 1
            del image
            monkeypatch.setattr(Event, "hold_back", lambda self, stream: None)
            lane.reclaim()

    def test_lend(self, sim):
        """Without it CuPy's pool has the memory at once."""
        lane = Lane("gpu:0")
        with sim.expect_fault("gives memory back to its pool while 'add'"):
            result, event = step(lane, pinned(ROWS))
            lane.hand_over(event)
            result + 1
            del result

    def test_the_event_of_the_stream_that_was_current_at_the_hand_over(self, sim, monkeypatch):
        lane, stream = Lane("gpu:0"), sim.cupy.cuda.Stream(non_blocking=True)

        def consume():
            result, event = step(lane, pinned(ROWS))
            with stream:
                lane.hand_over(event)
                image = lane.lend(result)
                del result
                image + 1
            del image  # with another stream current
            lane.reclaim()

        consume()
        lend = Lane.lend
        monkeypatch.setattr(
            Lane, "lend", lambda self, array: _without_stream(lend(self, array), sim)
        )
        with sim.expect_fault("gives memory back to its pool while 'add'"):
            consume()

    def test_the_event_of_the_stream_that_is_current_when_it_is_dropped(self, sim):
        lane, stream = Lane("gpu:0"), sim.cupy.cuda.Stream(non_blocking=True)
        result, event = step(lane, pinned(ROWS))
        lane.hand_over(event)
        image = lane.lend(result)
        del result
        stream.wait_event(sim.cupy.cuda.get_current_stream().record())
        with stream:
            image + 1
            del image
        lane.reclaim()

    @pytest.mark.parametrize("wait", [False, True])
    def test_the_wait_for_unseen_readers(self, sim, monkeypatch, wait):
        lane, hidden = Lane("gpu:0"), sim.cupy.cuda.Stream(non_blocking=True)

        def consume():
            for _ in range(FOREIGN_GROUP):
                result, event = step(lane, pinned(ROWS))
                lane.hand_over(event)
                image = lane.lend(result)
                del result
                image.__dlpack__(stream=hidden.ptr)
                with hidden:
                    image + 1
                del image
            lane.reclaim(wait=wait)
            assert until(lambda: not lane._track.is_waiting)
            lane.reclaim()

        consume()
        with (
            sim.expect_fault("gives memory back to its pool while 'add'"),
            monkeypatch.context() as patch,
        ):
            patch.setattr(sim.cupy.cuda.Device, "synchronize", lambda self: None)
            consume()

    def test_the_event_on_the_stream_that_a_reader_names(self, sim, monkeypatch):
        lane, stream = Lane("gpu:0"), sim.cupy.cuda.Stream(non_blocking=True)

        def consume():
            result, event = step(lane, pinned(ROWS))
            lane.hand_over(event)
            image = lane.lend(result)
            del result
            stream_export(image).__dlpack__(stream=stream.ptr)
            with stream:
                image + 1
            del image
            lane.reclaim()

        consume()
        with (
            sim.expect_fault("gives memory back to its pool while 'add'"),
            monkeypatch.context() as patch,
        ):
            patch.setattr(sim.cupy.cuda, "ExternalStream", lambda handle: sim.null)
            consume()

    def test_that_capsules_are_noticed(self, sim, monkeypatch):
        lane, hidden = Lane("gpu:0"), sim.cupy.cuda.Stream(non_blocking=True)
        with sim.expect_fault("gives memory back to its pool while 'add'"):
            result, event = step(lane, pinned(ROWS))
            lane.hand_over(event)
            image = lane.lend(result)
            del result
            sim.cupy.ndarray.__dlpack__(image, stream=hidden.ptr)  # not the method of lent arrays
            with hidden:
                image + 1
            del image
            lane.reclaim()

    def test_the_wait_before_a_slot_is_filled_again(self, sim):
        lane, host = Lane("gpu:0"), pinned(ROWS)
        with sim.expect_fault("host memory was changed"):
            step(lane, host)
            host[:] = 0

    def test_the_wait_for_uploads_when_the_lane_is_closed(self, sim, monkeypatch):
        lane, host = Lane("gpu:0"), pinned(ROWS)
        step(lane, host)
        lane.close()
        host[:] = 0
        sim.run()
        lane, host = Lane("gpu:0"), pinned(ROWS)
        with sim.expect_fault("host memory was changed"), monkeypatch.context() as patch:
            patch.setattr(sim.cupy.cuda.Stream, "synchronize", lambda self: None)
            step(lane, host)
            lane.close()
            host[:] = 0

    def test_the_look_at_the_events_of_somebody_elses_memory(self, sim, monkeypatch):
        lane = Lane("gpu:0")
        foreign = sim.cupy.from_dlpack(
            sim.cupy.asarray(ROWS)
        )  # on the consumer's stream, like DALI's on its own
        image = lane.lend(foreign)
        del foreign
        stream = sim.cupy.cuda.Stream(non_blocking=True)
        stream.wait_event(sim.cupy.cuda.get_current_stream().record())
        with sim.expect_fault("gives memory back to its pool while 'add'"):
            with stream:
                image + 1
                monkeypatch.setattr(Event, "done", True)
                del image
            lane.reclaim()


class TestOddEnds:
    def test_closing_lets_go_of_what_came_back(self, sim):
        lane = Lane("gpu:0")
        result, event = step(lane, pinned(ROWS))
        lane.hand_over(event)
        image = lane.lend(result)
        del result
        image + 1
        del image
        lane.close()
        sim.run()

        assert sim.used_bytes == 0

    def test_streams_that_are_captured_get_no_event(self, sim, monkeypatch):
        lane = Lane("gpu:0")
        result, event = step(lane, pinned(ROWS))
        lane.hand_over(event)
        image = lane.lend(result)
        del result
        monkeypatch.setattr(sim.cupy.cuda.Stream, "is_capturing", lambda self: True)
        del image
        lane.reclaim()
        assert lane.bytes == ROWS.nbytes
        lane.reclaim(wait=True)
        assert lane.bytes == 0

    def test_an_error_of_cuda_in_a_finalizer_has_reclaim_wait(self, sim, monkeypatch):
        lane = Lane("gpu:0")
        result, event = step(lane, pinned(ROWS))
        lane.hand_over(event)
        image = lane.lend(result)
        del result
        with monkeypatch.context() as patch:
            patch.setattr(sim.cupy.cuda.Stream, "is_capturing", _raises)
            del image
        lane.reclaim(wait=True)
        assert lane.bytes == 0
        assert "Device.synchronize" in [wait.what for wait in sim.host_waits]

    def test_reclaim_that_is_interrupted_begins_again(self, sim, monkeypatch):
        lane = Lane("gpu:0")
        result, event = step(lane, pinned(ROWS))
        lane.hand_over(event)
        image = lane.lend(result)
        del result
        image + 1
        del image
        with monkeypatch.context() as patch:
            patch.setattr(Event, "hold_back", _raises)
            with pytest.raises(RuntimeError):
                lane.reclaim()
        assert lane.bytes == ROWS.nbytes
        lane.reclaim()
        assert lane.bytes == 0

    def test_a_process_that_was_forked_off_calls_nothing_and_is_told_so(self, sim, monkeypatch):
        lane = Lane("gpu:0")
        result, event = step(lane, pinned(ROWS))
        lane.hand_over(event)
        image = lane.lend(result)
        del result
        queued, pid = len(sim.trace), os.getpid()
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: pid + 1)
            for use in (lane.__enter__, lane.mark, lane.reclaim, event.synchronize):
                with pytest.raises(DeviceError, match="spawn"):
                    use()
            with pytest.raises(DeviceError, match="spawn"):
                event.done  # noqa: B018
            lane.close()
            recorded = []
            patch.setattr(
                sim.cupy.cuda.Event, "record", lambda self, stream: recorded.append(stream)
            )
            del image, event, use
        assert recorded == []
        assert len(sim.trace) == queued
        assert sim.host_waits == []
        lane.reclaim(wait=True)


ENDING = """
import os, sys
import numpy as np
import pytest
from gpuload.device import Lane
from tests import simdevice

sim = simdevice.install(pytest.MonkeyPatch())
lane, other = Lane("gpu:0"), Lane("gpu:0")
host = np.arange(1000.0)
with lane:
    array = lane.upload(host) * 2
event = lane.mark()
lane.hand_over(event)
kept = [lane.lend(array) for _ in range(3)]
capsule = kept[0].__dlpack__()
del array, kept[1]
if sys.argv[1] == "fork" and (child := os.fork()):
    assert os.waitpid(child, 0)[1] == 0
if sys.argv[1] == "close":
    lane.close()
if sys.argv[1] == "late":
    os.kept = kept  # a module that may hold a function of this program: it is cleared behind those of gpuload
"""


@pytest.mark.parametrize("how", ["exit", "close", "fork", "late"])
def test_a_process_ends_quietly_with_memory_lent_and_lanes_open(how):
    ended = forkserver.run(ENDING, how, timeout=60)

    assert (ended.returncode, ended.stderr) == (0, "")


def _without_stream(lent, sim):
    lent.data.mem._owner._stream = sim.null
    return lent


def _raises(*arguments):
    raise RuntimeError("cudaErrorUnknown")


class YieldingMemory:
    """Memory whose address is read as other threads run."""

    size = 64

    @property
    def ptr(self):
        os.sched_yield()
        return 4096


def test_memory_that_threads_lend_and_take_back_at_the_same_time_is_counted():
    ledger = Ledger()
    array = SimpleNamespace(data=SimpleNamespace(mem=YieldingMemory()), nbytes=64)

    def lend_twice():
        for _ in range(200):
            ledger.add(array)
            ledger.add(array)
            ledger.remove(array)

    workers = [threading.Thread(target=lend_twice) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert ledger._loans == {4096: (800, 64)}
