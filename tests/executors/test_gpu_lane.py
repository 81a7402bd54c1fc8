"""Executors of whole batches on a GPU, simulated: all is queued on one stream, and the host waits
for checks alone."""

from __future__ import annotations

import numpy as np
import pytest

from gpuload import device as devices
from gpuload import ops
from gpuload.executors.array import ArrayBatchExecutor, ArrayRowExecutor
from gpuload.executors.dali import chain
from gpuload.graph.graph import compile_ops
from gpuload.ops.base import RowError
from gpuload.ragged import Ragged
from gpuload.spec import Field, Spec
from gpuload.testing.ops import numbers, uniform
from tests import simdevice

IMAGES = uniform(np.uint8, 3, 12, 14)
LABELS = uniform(np.int32, name="label")
CHAIN = (
    ops.Transpose("HWC"),
    ops.RandomCrop(8, pad=2),
    ops.RandomFlip(),
    ops.Normalize((1, 2, 3), (4, 5, 6)),
    ops.OneHot(5),
)


@pytest.fixture(params=range(3))
def sim(monkeypatch, request):
    simulation = simdevice.install(monkeypatch, seed=request.param)
    yield simulation
    simulation.finish()


def batch(graph, seed=0):
    """Return host values and draws of a batch of 6."""
    rng = np.random.default_rng(seed)
    fields = {"image": numbers(IMAGES, 6), "label": rng.integers(0, 5, 6).astype(np.int32)}
    sizes = {
        "image": np.broadcast_to(np.array([12, 14], np.int32), (6, 2)),
        "label": np.zeros((6, 2), np.int32),
    }
    return fields, graph.draw(seed=seed, epoch=0, records=np.arange(6), sizes=sizes)


def started(executor, lane, fields, draws):
    with lane:
        executor.start({name: lane.upload(values) for name, values in fields.items()}, draws)


def finished(executor, lane):
    with lane:
        return executor.finish()


def on_host(lane, array):
    with lane:
        return array.get()


def test_batches_are_queued_ahead_and_have_the_pixels_of_the_cpu(sim):
    graph, lane = compile_ops(Spec((IMAGES, LABELS)), CHAIN), devices.Lane("gpu:0")
    executor, on_cpu = (
        ArrayBatchExecutor(graph, device="gpu:0"),
        ArrayBatchExecutor(graph, device="cpu"),
    )
    batches = [batch(graph, seed) for seed in range(3)]
    for fields, draws in batches:
        started(executor, lane, fields, draws)
        on_cpu.start(fields, draws)

    waits = len(sim.host_waits)
    results = [finished(executor, lane) for _ in batches]

    assert waits == 0
    for result in results:
        for name, expected in on_cpu.finish().items():
            np.testing.assert_array_equal(on_host(lane, result[name]), expected)
    lane.close()


COLOURS = (
    ops.Transpose("HWC"),
    ops.Pad(15, 16, fill=3),
    ops.CenterCrop(9, 8),
    ops.Brightness(0.5, 1.5),
    ops.Contrast(0.5, 1.5),
    ops.Resize(8, 8, interpolation={"image": "nearest"}),
    ops.Cast("float32"),
    ops.Brightness(0.5, 1.5),
    ops.PerImageStandardization(),
)


def test_colours_and_windows_on_the_device_have_the_pixels_of_the_cpu(sim):
    graph, lane = compile_ops(Spec((IMAGES,)), COLOURS), devices.Lane("gpu:0")
    executor, on_cpu = (
        ArrayBatchExecutor(graph, device="gpu:0"),
        ArrayBatchExecutor(graph, device="cpu"),
    )
    fields, draws = batch(graph)
    del fields["label"]
    started(executor, lane, fields, draws)
    on_cpu.start(fields, draws)

    images = on_host(lane, finished(executor, lane)["image"])

    np.testing.assert_array_equal(images, on_cpu.finish()["image"])
    assert len(sim.host_waits) == 1  # that of on_host
    lane.close()


def test_without_checks_nothing_waits_for_the_device(sim):
    graph, lane = compile_ops(Spec((IMAGES,)), CHAIN[:4]), devices.Lane("gpu:0")
    executor = ArrayBatchExecutor(graph, device="gpu:0")
    fields, draws = batch(graph)
    started(executor, lane, {"image": fields["image"]}, draws)

    finished(executor, lane)

    assert len(sim.host_waits) == 0
    lane.close()


def test_a_value_that_an_op_cannot_take_is_told_when_its_batch_is_finished(sim):
    graph, lane = compile_ops(Spec((IMAGES, LABELS)), CHAIN), devices.Lane("gpu:0")
    executor = ArrayBatchExecutor(graph, device="gpu:0")
    good, draws = batch(graph)
    started(executor, lane, good | {"label": np.array([0, 1, 2, 7, 4, 9], np.int32)}, draws)
    started(executor, lane, good, draws)

    with pytest.raises(RowError, match="label 7") as caught:
        finished(executor, lane)

    assert caught.value.row == 3
    following = on_host(lane, finished(executor, lane)["label"])
    assert following.argmax(axis=1).tolist() == good["label"].tolist()
    lane.close()


def test_ragged_fields_keep_their_payload_on_the_device(sim):
    spec = Spec((Field("x", np.dtype(np.int16), (None,)),))
    graph, lane = (
        compile_ops(spec, [ops.Cast("float32"), ops.Normalize(3, 2)]),
        devices.Lane("gpu:0"),
    )
    executor = ArrayBatchExecutor(graph, device="gpu:0")
    values = Ragged(np.arange(9, dtype=np.int16), np.array([0, 4, 4, 9]))
    with lane:
        executor.start({"x": values.with_payload(lane.upload(values.flat))}, [{}, {}])

    result = finished(executor, lane)["x"]

    assert result.lengths.tolist() == [4, 0, 5]
    np.testing.assert_array_equal(on_host(lane, result.payload), (np.arange(9) - 3) / 2)
    lane.close()


def test_the_copy_of_an_answer_that_nobody_asks_for_has_its_memory_until_it_has_run(sim):
    graph, lane = compile_ops(Spec((LABELS,)), (ops.OneHot(5),)), devices.Lane("gpu:0")
    executor = ArrayBatchExecutor(graph, device="gpu:0")
    for seed in range(8):
        fields, draws = batch(graph, seed)
        started(executor, lane, {"label": fields["label"]}, draws)
        executor.reset()

    assert sim.host_waits == []
    lane.close()  # and no fault: the device wrote to no memory that was given to others meanwhile


class StandIn(ArrayBatchExecutor):
    """In place of DALI where there are none of its kernels."""

    def __init__(self, graph, *, device, batch_size, num_threads):
        super().__init__(graph, device=device)


def run_chain(monkeypatch, lane):
    """Start batches in a chain; return its graph, their fields and draws, and the chain."""
    monkeypatch.setattr(chain, "DaliExecutor", StandIn)
    graph = compile_ops(Spec((IMAGES, LABELS)), CHAIN)
    executor = chain.Chain(graph, (0, 1), device="gpu:0", batch_size=6, num_threads=1)
    batches = [batch(graph, seed) for seed in range(3)]
    for fields, draws in batches:
        started(executor, lane, fields, draws)
    lane.stream.synchronize()  # then the labels, which are checked beside DALI, need no wait
    return graph, batches, executor


def assert_batches_are_those_of_the_cpu(graph, batches, results, lane):
    for (fields, draws), result in zip(batches, results, strict=True):
        expected = ArrayRowExecutor(graph).run(fields, draws, {})
        for name, values in result.items():
            np.testing.assert_array_equal(on_host(lane, values), expected[name])


def test_ops_behind_a_cut_are_queued_on_the_same_stream_and_nobody_waits(sim, monkeypatch):
    lane = devices.Lane("gpu:0")
    graph, batches, executor = run_chain(monkeypatch, lane)
    waits = len(sim.host_waits)

    results = [finished(executor, lane) for _ in batches]

    assert len(sim.host_waits) == waits
    assert_batches_are_those_of_the_cpu(graph, batches, results, lane)
    executor.close()
    lane.close()


@pytest.mark.gpu
def test_ops_behind_a_cut_have_the_pixels_of_the_cpu_with_cupy(monkeypatch):
    lane = devices.Lane("gpu:0")
    graph, batches, executor = run_chain(monkeypatch, lane)

    results = [finished(executor, lane) for _ in batches]

    assert_batches_are_those_of_the_cpu(graph, batches, results, lane)
    executor.close()
    lane.close()
