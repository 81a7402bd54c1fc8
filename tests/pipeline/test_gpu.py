"""The GPU lane: the batches of the CPU, made ahead on a stream of its own, and nobody waits for the
device.

Each test runs on the simulated GPU, where work runs late and in any order that streams and events
allow, and on a real one where there is one.
"""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import gpuload as gl
from gpuload import device as devices
from gpuload.errors import RecordError
from gpuload.pipeline import batches as batches_module
from tests import simdevice
from tests.threads import until

CHAIN = [
    gl.ops.Transpose("HWC"), gl.ops.RandomCrop(6, 6, pad=2), gl.ops.RandomFlip(),
    gl.ops.Normalize((1.0, 2.0, 3.0), (4.0, 5.0, 6.0)), gl.ops.OneHot(61, on="label"), gl.ops.Cast("float16", on="a"),
]  # fmt: skip


@pytest.fixture(params=["sim", pytest.param("cupy", marks=pytest.mark.gpu)])
def gpu(request, monkeypatch):
    if request.param == "cupy":
        yield None
        return
    sim = simdevice.install(monkeypatch, seed=11)
    yield sim
    gc.collect()
    sim.finish()


@pytest.fixture
def sim(monkeypatch):
    simulation = simdevice.install(monkeypatch, seed=7)
    yield simulation
    gc.collect()
    simulation.finish()


def records(folder):
    """Images, labels and text in memory beside big-endian records in a file."""
    random = np.random.default_rng(0)
    random.random((61, 5)).astype(">f4").tofile(folder / "x.bin")
    images = random.integers(0, 256, (61, 3, 6, 6), np.uint8)
    memory = gl.arrays(
        image=images, label=np.arange(61), name=np.array([f"n{i}" for i in range(61)])
    )
    return gl.zip(memory, gl.fixed(folder / "x.bin", [("a", ">f4", (3,)), ("b", ">f4", (2,))]))


def rows(folder):
    """Rows of an NPY file."""
    np.save(folder / "x.npy", np.random.default_rng(0).random((61, 40), np.float32))
    return gl.npy(folder / "x.npy")


def images_of_many_heights(folder):
    """An NPY file of each image; only the first axis varies, so that a batch of them is Ragged."""
    for number in range(61):
        image = np.random.default_rng(number).integers(0, 256, (5 + number % 7, 8, 3), np.uint8)
        np.save(folder / f"{number:02}.npy", image)
    return gl.npy(folder / "*.npy", record="file", field="image")


SOURCES = {
    "rows": (rows, []), "records": (records, []), "chain": (records, CHAIN),
    "heights": (images_of_many_heights, [gl.ops.Resize(6, 4)]),
}  # fmt: skip


@pytest.fixture(params=list(SOURCES))
def loaders(request, tmp_path):
    make, ops = SOURCES[request.param]
    source = make(tmp_path)

    def loaders(**changes):
        arguments = {
            "batch_size": 7,
            "ops": ops,
            "shuffle": True,
            "seed": 5,
            "executor": "array",
            **changes,
        }
        return [gl.Loader(source, device=name, **arguments) for name in ("cpu", "gpu")]

    return loaders


def on_host(values):
    return values if isinstance(values, np.ndarray) else values.get()


def assert_same(batch, reference):
    assert np.array_equal(batch.records, reference.records)
    for name in reference.keys():  # noqa: SIM118  a batch is iterated as its output says
        values = on_host(batch[name])
        assert values.dtype == reference[name].dtype
        if values.dtype.kind == "f":
            assert np.allclose(
                values, reference[name], rtol=0, atol=1e-6
            )  # a GPU may fuse multiply and add
        else:
            assert np.array_equal(values, reference[name])


@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_the_batches_are_those_of_the_cpu(gpu, loaders, prefetch):
    cpu, on_gpu = loaders(prefetch=prefetch)
    with on_gpu:
        for epoch in range(2):
            for batch, reference in zip(on_gpu, cpu, strict=True):
                assert batch.epoch == epoch
                assert_same(batch, reference)


def test_kept_batches_stay_what_they_were(gpu, loaders):
    cpu, on_gpu = loaders()
    batches = list(on_gpu)
    on_gpu.close()
    for batch, reference in zip(batches, cpu, strict=True):
        assert_same(batch, reference)


def test_what_a_stream_of_the_consumer_reads_late_is_right(gpu, loaders):
    cupy = devices.cupy()
    cpu, on_gpu = loaders()
    sums = []
    with on_gpu, cupy.cuda.Stream(non_blocking=True):
        for batch in on_gpu:
            some = next(values for values in batch.values() if not isinstance(values, np.ndarray))
            sums.append(some.astype(np.float64).sum())
            del some, batch
        sums = [float(total.get()) for total in sums]
    firsts = [
        next(values for values in batch.values() if values.dtype.kind in "fiu") for batch in cpu
    ]
    assert np.allclose(sums, [first.astype(np.float64).sum() for first in firsts])


@pytest.mark.parametrize("loaders", ["rows", "records", "chain"], indirect=True)
def test_short_steps_are_uploaded_together_and_their_batches_are_those_of_the_cpu(sim, loaders):
    cpu, on_gpu = loaders(batch_size=2)
    with on_gpu:
        batches = list(on_gpu)
        assert len(sim.works("upload")) < len(batches) / 2
        for batch, reference in zip(batches, cpu, strict=True):
            assert_same(batch, reference)


def test_where_much_is_kept_a_batch_keeps_no_memory_but_its_own(monkeypatch, gpu, loaders):
    monkeypatch.setattr(batches_module, "CROWDED_BYTES", -1)
    cpu, on_gpu = loaders(batch_size=2)
    with on_gpu:
        batches = list(on_gpu)
        for batch, reference in zip(batches, cpu, strict=True):
            assert_same(batch, reference)
        arrays = [
            values
            for batch in batches
            for values in batch.values()
            if not isinstance(values, np.ndarray)
        ]
        assert on_gpu._session.lane.bytes <= sum(512 + array.nbytes for array in arrays)


def test_any_batch_is_made_again(gpu, loaders):
    cpu, on_gpu = loaders()
    with on_gpu:
        batches = [
            on_gpu.batch_at(step) for step in range(5)
        ]  # in the same slot, one after the other
        for step, batch in enumerate(batches):
            assert_same(batch, cpu.batch_at(step))


def test_device_memory_of_batches_that_were_dropped_is_used_again(gpu, loaders):
    on_gpu = loaders(batch_size=2, prefetch=1)[1]
    with on_gpu:
        lent = []
        for batch in on_gpu:
            del batch
            lent.append(on_gpu._session.lane.bytes)
    assert max(lent) < lent[0] * len(lent) / 2


def test_a_row_that_an_op_cannot_take_is_named_at_its_step_and_the_rest_comes(gpu):
    labels = np.zeros(30, np.int64)
    labels[11] = 7
    ops = [gl.ops.OneHot(3, on="label")]
    with gl.Loader(gl.arrays(label=labels), batch_size=2, ops=ops, device="gpu") as load:
        run = iter(load)
        steps = [next(run).step for _ in range(5)]
        with pytest.raises(RecordError, match="record 11"):
            next(run)
        steps += [batch.step for batch in run]
    assert steps == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14]


def test_upload_decode_and_ops_of_the_next_step_run_while_the_consumer_holds_one(sim, loaders):
    on_gpu = loaders(prefetch=1)[1]
    with on_gpu:
        on_gpu.batch_at(0)
        uploads_a_step = len(sim.works("upload"))
        run = iter(on_gpu)
        batch = next(run)
        wait_for_next(run)
        sim.run()
        released = sim.note("released")
        uploads = sim.works("upload")[uploads_a_step:]
        del batch
    ran = [work for work in sim.trace if work.ran is not None and work.ran < released]
    assert len([work for work in uploads if work in ran]) >= 2 * uploads_a_step
    assert all(work.thread.startswith("gpuload") for work in uploads)


def test_the_consumers_thread_waits_for_no_device(sim, loaders):
    on_gpu = loaders()[1]
    with on_gpu:
        for batch in on_gpu:
            del batch
        waits = [wait for wait in sim.host_waits if wait.thread == threading.current_thread().name]
    assert waits == []


def wait_for_next(run):
    """Wait until the next step was made, without taking it."""
    board = run._run.batches._board
    assert until(lambda: 1 in board.tray._items)


# Waits and guards of the pipeline, each taken out by hand: the simulation, or a wrong batch, must
# show it.


def test_without_the_wait_at_the_hand_over_a_test_fails(monkeypatch, tmp_path):
    monkeypatch.setattr(devices.Lane, "hand_over", lambda self, event: None)
    assert fails(monkeypatch, tmp_path)


def test_without_keeping_the_slot_until_its_upload_has_run_a_test_fails(monkeypatch, tmp_path):
    release = batches_module.BatchBoard._release

    def at_once(self, lane):
        for upload in list(self._uploading):
            if upload.event is not None:
                self._uploading.remove(upload)
                upload.step.release()
        release(self, lane)

    monkeypatch.setattr(batches_module.BatchBoard, "_release", at_once)
    assert fails(monkeypatch, tmp_path)


def test_without_lending_a_test_fails(monkeypatch, tmp_path):
    monkeypatch.setattr(devices.Lane, "lend", lambda self, array: array)
    assert fails(monkeypatch, tmp_path)


def fails(monkeypatch, folder):
    """Return True if some of many runs ends in a fault of the simulation or in a wrong batch."""
    source = rows(folder)
    expected = 3 * float(source.read(np.arange(61))["x"].sum(dtype=np.float64))
    for seed in range(20):
        with pytest.MonkeyPatch.context() as patch:
            sim = simdevice.install(patch, seed=seed)
            try:
                total = []
                stream = devices.cupy().cuda.Stream(non_blocking=True)
                with gl.Loader(source, batch_size=7, device="gpu", prefetch=3) as load, stream:
                    for _ in range(3):
                        for batch in load:
                            total.append(batch["x"].sum())
                            del batch
                    result = sum(float(value.get()) for value in total)
                gc.collect()
                sim.finish()
            except (AssertionError, simdevice.Fault, RuntimeError, ValueError):
                return True
            if abs(result - expected) > 0.01:
                return True
    return False


@pytest.mark.parametrize(
    "turns", [range(1, 30, 4), pytest.param(range(1, 30), marks=pytest.mark.slow)], ids=len
)
@pytest.mark.parametrize("door", ["__enter__", "__exit__"])
def test_a_batch_that_fails_between_its_start_and_its_end_shifts_no_other(
    sim, tmp_path, monkeypatch, door, turns
):
    source, refused = records(tmp_path), []
    original = getattr(devices.Lane, door)

    def arguments(device):
        return {
            "batch_size": 7,
            "ops": CHAIN,
            "shuffle": True,
            "seed": 5,
            "executor": "array",
            "device": device,
        }

    expected = {batch.step: batch["image"] for batch in gl.Loader(source, **arguments("cpu"))}
    for turn in turns:
        counter = iter(range(1, 10_000))

        def fails_once(self, *rest, counter=counter, turn=turn):
            if (
                threading.current_thread().name.startswith("gpuload-batches")
                and next(counter) == turn
            ):
                if door == "__exit__":
                    original(self, *rest)
                raise RuntimeError("the card sneezed")
            return original(self, *rest)

        monkeypatch.setattr(devices.Lane, door, fails_once)
        with gl.Loader(source, **arguments("gpu")) as loader:
            batches = iter(loader)
            while True:
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                except RuntimeError:
                    refused.append(turn)
                    continue
                assert np.array_equal(on_host(batch["image"]), expected[batch.step])
        monkeypatch.setattr(devices.Lane, door, original)
    assert refused


def test_the_time_of_the_gpu_is_that_between_its_events(sim):
    loader = gl.Loader(
        gl.arrays(x=np.zeros((400, 4), np.float32)), 4, ops=[gl.ops.Cast("float16")], device="gpu"
    )
    batches_of_epoch = [batch.records.size for batch in loader]
    sim.finish()

    stats = loader.stats()
    assert sum(batches_of_epoch) == 400
    assert stats["gpu_upload_s"] == stats["gpu_ops_s"] > 0
    # Each pair of events of the simulation is 1 ms apart, and stands for a number of batches.
    assert stats["gpu_upload_s"] * 1e3 % batches_module.TIMED_EVERY == pytest.approx(0, abs=1e-6)
    assert {"upload", "ops"} <= {stage.name for stage in stats.stages}


def test_steps_that_wait_for_the_gpu_are_a_queue_of_their_own(sim):
    loader = gl.Loader(
        gl.arrays(x=np.zeros((40, 4), np.float32)), 4, ops=[gl.ops.Cast("float16")], device="gpu"
    )
    list(loader)
    sim.finish()

    stats = loader.stats()
    assert (
        0
        <= stats["workers.steps_ready"]
        <= stats["workers.steps_ahead"]
        <= 10 * loader._session.recipe.num_ahead
    )
    assert stats["workers.steps_ahead"] > 0
    fills = {stage.name: stage.fill for stage in stats.stages}
    assert fills["read"] == stats["workers.steps_ready"] / stats["workers.steps_ahead"]
    assert fills["upload"] == fills["ops"] == stats["fill"]
