"""The simulated GPU catches what a real one does wrong only now and then; and lets pass what is
right."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import gpuload as gl
from gpuload import device as devices
from gpuload import rawdecode
from gpuload.sources.layouts import layout_of
from tests import simdevice
from tests.simdevice import POISON


@pytest.fixture(params=range(5))
def sim(request, monkeypatch):
    simulation = simdevice.install(monkeypatch, seed=request.param)
    yield simulation
    simulation.finish()


@pytest.fixture
def cupy(sim):
    return sim.cupy


def streams(cupy, count=2):
    return [cupy.cuda.Stream(non_blocking=True) for _ in range(count)]


def ordered(first_stream, second_stream):
    """Put what is queued next on ``other`` behind what is queued on ``one``."""
    second_stream.wait_event(first_stream.record())


class TestRightProgramsGiveTheRightNumbers:
    def test_work_runs_only_when_somebody_waits(self, sim, cupy):
        x = cupy.asarray(np.arange(5)) * 2

        assert all(work.ran is None for work in sim.trace)
        assert x.get().tolist() == [0, 2, 4, 6, 8]
        assert [work.name for work in sim.trace] == ["asarray", "mul", "download"]
        assert all(work.queued < work.ran for work in sim.trace)
        assert [wait.what for wait in sim.host_waits] == ["get"]
        assert __file__ in sim.host_waits[0].stack[-1]

    def test_streams_run_out_of_order_but_for_events(self, monkeypatch):
        orders = set()
        for seed in range(20):
            sim = simdevice.install(monkeypatch, seed)
            first_stream, second_stream = streams(sim.cupy)
            with first_stream:
                first = sim.cupy.asarray([1])
            with second_stream:
                sim.cupy.asarray([2])
            ordered(first_stream, second_stream)
            with second_stream:
                total = first + 1
                assert total.get().tolist() == [2]
            sim.run()
            by_time = sorted(sim.trace, key=lambda work: work.ran)
            orders.add(tuple((work.name, work.stream == first_stream.ptr) for work in by_time))
            assert by_time.index(sim.works("add")[0]) > by_time.index(sim.trace[0])
        assert len(orders) > 1

    def test_memory_of_a_stream_is_used_again_at_once_and_in_its_order(self, sim, cupy):
        stream = streams(cupy, 1)[0]
        with stream:
            x = cupy.asarray([1, 2, 3])
            address, y = x.data.ptr, x + 1
            del x
            z = cupy.asarray([7, 8, 9])

            assert z.data.ptr == address
            assert (y.get().tolist(), z.get().tolist()) == ([2, 3, 4], [7, 8, 9])

    def test_the_default_stream_and_blocking_streams_wait_for_one_another(self, cupy):
        with cupy.cuda.Stream():
            x = cupy.asarray([1, 2])
        y = x + x
        with cupy.cuda.Stream():
            assert (y + 1).get().tolist() == [3, 5]

    def test_what_the_host_has_waited_for_needs_no_event(self, cupy):
        first_stream, second_stream = streams(cupy)
        with first_stream:
            x = cupy.asarray([1, 2])
        first_stream.synchronize()
        with second_stream:
            assert (x + 1).get().tolist() == [2, 3]

    def test_an_event_that_is_looked_at_passes_some_time(self, cupy):
        cupy.asarray([1, 2])
        event = cupy.cuda.get_current_stream().record()

        assert not event.done or event.done
        assert any(event.done for _ in range(50))

    def test_views_share_memory_and_results_do_not(self, cupy):
        x = cupy.asarray(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))

        assert x[1, :, ::-1].get().tolist() == np.arange(24).reshape(2, 3, 4)[1, :, ::-1].tolist()
        assert x.transpose(0, 2, 1)[1].data.ptr == x.data.ptr + 12
        assert x.reshape(6, 4).view(np.uint16).shape == (6, 2)
        assert not x.transpose(2, 1, 0).flags.c_contiguous
        assert x.transpose(2, 1, 0).reshape(-1).data.mem is not x.data.mem
        x[0] = 7
        assert x.sum().item() == 7 * 12 + sum(range(12, 24))

    def test_capsules_keep_the_memory_and_hold_what_has_run(self, sim, cupy):
        x = cupy.asarray(np.arange(100, dtype=np.float32))
        cupy.cuda.get_current_stream().synchronize()
        taken = np.from_dlpack(_Foreign(x.__dlpack__()))
        del x
        gc.collect()
        cupy.zeros(100, np.float32)
        sim.run()

        assert taken.tolist() == list(range(100))


class TestFaults:
    def test_an_upload_from_memory_that_changes_before_it_ran(self, sim):
        host = devices.pinned(8)
        host[:] = 1
        with sim.expect_fault("host memory was changed"):
            devices.upload(host, "gpu:0")
            host[:] = 2

    def test_an_upload_from_pinned_memory_that_was_dropped(self, sim):
        host = devices.pinned(8)
        host[:] = 1
        with sim.expect_fault("host memory was changed"):
            devices.upload(host, "gpu:0")
            del host

    def test_an_upload_is_safe_once_its_event_has_passed(self, sim):
        host = devices.pinned(8)
        host[:] = 1
        on_gpu = devices.upload(host, "gpu:0")
        devices.synchronize("gpu:0")
        host[:] = 2

        assert on_gpu.get().tolist() == [1] * 8

    def test_a_read_on_another_stream_without_an_event(self, sim, cupy):
        first_stream, second_stream = streams(cupy)
        with first_stream:
            x = cupy.asarray([1, 2])
        with sim.expect_fault("'add' (stream"), second_stream:
            x + 1
        ordered(first_stream, second_stream)
        with second_stream:
            assert (x + 1).get().tolist() == [2, 3]

    def test_a_read_on_another_stream_even_if_it_happened_to_come_later(self, sim, cupy):
        first_stream, second_stream = streams(cupy)
        with first_stream:
            x = cupy.asarray([1, 2])
        sim.run()
        with sim.expect_fault("nothing puts one behind the other"), second_stream:
            x.get()

    def test_a_write_while_another_stream_reads(self, sim, cupy):
        first_stream, second_stream = streams(cupy)
        with first_stream:
            x = cupy.asarray([1, 2])
        ordered(first_stream, second_stream)
        with second_stream:
            x + 1
        with sim.expect_fault("'setitem'"), first_stream:
            x[:] = 3
        ordered(second_stream, first_stream)
        with first_stream:
            x[:] = 3
            assert x.get().tolist() == [3, 3]

    def test_memory_that_is_freed_while_another_stream_still_reads(self, sim, cupy):
        first_stream, second_stream = streams(cupy)
        with first_stream:
            x = cupy.asarray([1, 2])
        ordered(first_stream, second_stream)
        with second_stream:
            x + 1
        with sim.expect_fault("gives memory back to its pool while 'add'"):
            del x

    def test_memory_that_is_freed_behind_its_readers(self, sim, cupy):
        first_stream, second_stream = streams(cupy)
        with first_stream:
            x = cupy.asarray([1, 2])
        ordered(first_stream, second_stream)
        with second_stream:
            y = x + 1
        ordered(second_stream, first_stream)
        del x
        with first_stream:
            cupy.asarray([5, 6])
        with second_stream:
            assert y.get().tolist() == [2, 3]

    def test_undefined_memory(self, sim, cupy):
        with sim.expect_fault("undefined memory"):
            cupy.empty(3).get()
        x = cupy.empty(4, np.uint8)
        x[:2] = 1
        assert x[:2].get().tolist() == [1, 1]
        with sim.expect_fault("'add' reads undefined memory"):
            x + 1

    def test_memory_is_poison_again_after_it_was_freed(self, sim, cupy):
        x = cupy.asarray(np.zeros(16, np.uint8))
        with sim.expect_fault("undefined memory"):
            del x
            cupy.empty(16, np.uint8).get()

    def test_a_download_that_nobody_waited_for(self, sim, cupy):
        host = devices.pinned(4)
        cupy.asarray(np.arange(4, dtype=np.uint8)).get(out=host, blocking=False)

        assert host.tolist() == [POISON] * 4
        devices.synchronize("gpu:0")
        assert host.tolist() == [0, 1, 2, 3]

    def test_a_capsule_that_nobody_waited_for(self, cupy):
        x = cupy.asarray(np.arange(4, dtype=np.uint8))

        assert np.from_dlpack(_Foreign(x.__dlpack__())).tolist() == [POISON] * 4

    def test_a_capsule_makes_the_stream_that_is_named_wait(self, sim, cupy):
        first_stream, second_stream = streams(cupy)
        with first_stream:
            x = cupy.asarray([1, 2])
            x.__dlpack__(stream=second_stream.ptr)
        with second_stream:
            assert (x + 1).get().tolist() == [2, 3]
        with first_stream:
            y = cupy.asarray([1, 2])
            y.__dlpack__(stream=-1)
        with sim.expect_fault("nothing puts"), second_stream:
            y + 1

    def test_a_fault_that_a_finalizer_makes_is_raised_at_the_end(self, monkeypatch):
        sim = simdevice.install(monkeypatch)
        first_stream, second_stream = streams(sim.cupy)
        with first_stream:
            x = sim.cupy.asarray([1])
        ordered(first_stream, second_stream)
        with second_stream:
            x + 1
        del x
        with pytest.raises(simdevice.Fault, match="gives memory back"):
            sim.finish()


class TestNumPyIsRefused:
    @pytest.mark.parametrize(
        "mix",
        [
            lambda x, host: np.asarray(x),
            lambda x, host: np.add(x, 1),
            lambda x, host: np.copyto(host, x),
            lambda x, host: np.stack([x, x]),
            lambda x, host: x + host,
            lambda x, host: host + x,
            lambda x, host: host * x,
            lambda x, host: x == host,
            lambda x, host: x[host],
            lambda x, host: x.take(host),
        ],
    )
    def test_with_a_type_error(self, cupy, mix):
        with pytest.raises(TypeError):
            mix(cupy.asarray(np.arange(3)), np.arange(3))

    def test_but_not_its_scalars(self, cupy):
        x = cupy.asarray(np.arange(3, dtype=np.float32))

        assert (np.float32(2) * x + np.float32(1)).get().tolist() == [1, 3, 5]

    def test_dtypes_that_a_gpu_has_not(self, cupy):
        for values in (np.array(["a"]), np.arange(3, dtype=">i4"), np.array([None])):
            with pytest.raises(ValueError, match="Unsupported dtype"):
                cupy.asarray(values)


OPS = [
    gl.ops.Transpose("CHW"), gl.ops.Reshape((-1,)), gl.ops.RandomCrop(6, 5, pad=2), gl.ops.RandomFlip(vertical=True),
    gl.ops.Normalize((1.0, 2.0, 3.0), (4.0, 5.0, 6.0)), gl.ops.Cast("float16"), gl.ops.Cast("int8"),
    gl.ops.Resize(5, 6), gl.ops.Resize(shorter=4, interpolation="nearest"), gl.ops.RandomResizedCrop(4),
]  # fmt: skip


class TestOurCodeRunsOnIt:
    @pytest.mark.parametrize("op", OPS, ids=str)
    @pytest.mark.parametrize("dtype", ["u1", "f4"])
    def test_ops_give_what_they_give_on_numpy(self, cupy, op, dtype):
        random = np.random.default_rng(0)
        images = random.integers(0, 256, (4, 8, 7, 3)).astype(dtype)
        draw = op.draw(random.random((4, op.num_uniforms)), np.full((4, 2), (8, 7), np.int32))

        result = op.array_batch(cupy, cupy.asarray(images), draw)

        expected = op.array_batch(np, images, draw)
        assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
        assert np.array_equal(result.get(), expected)

    def test_labels_become_vectors(self, cupy):
        labels = cupy.asarray([1, 3])

        vectors = gl.ops.OneHot(4, on="label").array_batch(cupy, labels, {})

        assert vectors.get().tolist() == [[0, 1, 0, 0], [0, 0, 0, 1]]

    @pytest.mark.parametrize(
        "dtype", [">f4", "<c16", [("a", ">u2", (3,)), ("b", "?"), ("c", "<f8", (2, 2))]]
    )
    @pytest.mark.parametrize("fortran", [False, True])
    def test_raw_records_are_decoded_as_on_the_host(self, cupy, dtype, fortran):
        layout = layout_of(np.dtype(dtype), (2, 3), field="x", fortran=fortran)
        raw = np.random.default_rng(0).integers(0, 2, (5, layout.record_bytes), np.uint8)

        fields = rawdecode.decode(cupy, cupy.asarray(raw), layout)

        for name, expected in rawdecode.decode(np, raw, layout).items():
            assert fields[name].dtype == expected.dtype
            assert np.array_equal(fields[name].get(), expected)


class _Foreign:
    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **options):
        return self.capsule

    def __dlpack_device__(self):
        return 1, 0
