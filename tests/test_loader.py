"""A batch is a pure function of (source, ops, seed, epoch, step), and stays what it was."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import gpuload as gl
from gpuload import device
from gpuload import loader as loader_module
from gpuload.errors import (
    ClosedError,
    DeviceError,
    RecordError,
    RecordIndexError,
    SpecError,
    StateError,
    UnknownFieldError,
)  # fmt: skip
from gpuload.pipeline import session as session_module
from gpuload.pipeline.epoch import Epoch
from gpuload.sources.leaf import Group
from gpuload.spec import Field, Layout, Part, Spec
from tests.interrupts import Alarm
from tests.threads import none_left

OPS = [
    gl.ops.RandomCrop(6, 6, pad=2),
    gl.ops.RandomFlip(),
    gl.ops.Normalize((1.0, 2.0, 3.0), (4.0, 5.0, 6.0)),
]


def source(count=61):
    images = np.random.default_rng(0).integers(0, 256, (count, 6, 6, 3), np.uint8)
    return gl.arrays(
        image=images, label=np.arange(count), name=np.array([f"n{i}" for i in range(count)])
    )


def loader(count=61, **changes):
    arguments = {
        "batch_size": 7,
        "ops": OPS,
        "shuffle": True,
        "seed": 3,
        "device": "cpu",
        **changes,
    }
    return gl.Loader(source(count), **arguments)


def by_record(batches):
    """Every field of every valid record, by record number."""
    records = {}
    for batch in batches:
        for row, record in enumerate(batch.records.tolist()):
            if batch.valid[row]:
                assert record not in records
                records[record] = {name: np.array(values[row]) for name, values in batch.items()}
    return records


def assert_same(result, reference):
    assert result.keys() == reference.keys()
    for record, fields in result.items():
        for name, value in fields.items():
            assert np.array_equal(value, reference[record][name]), (record, name)


@pytest.fixture(scope="module")
def expected():
    with loader(num_threads=1) as load:
        return by_record(load)


@pytest.mark.parametrize("batch_size", [1, 7, 64])
@pytest.mark.parametrize("num_threads", [1, 4])
def test_a_record_is_the_same_for_every_batch_size_and_number_of_threads(
    expected, batch_size, num_threads
):
    with loader(batch_size=batch_size, num_threads=num_threads) as load:
        assert_same(by_record(load), expected)


@pytest.mark.parametrize("num_shards", [1, 2, 3, 7])
@pytest.mark.parametrize("last_batch", ["partial", "pad"])
def test_a_record_is_the_same_for_every_number_of_shards(expected, num_shards, last_batch):
    shards = [
        loader(num_shards=num_shards, shard_id=i, last_batch=last_batch) for i in range(num_shards)
    ]
    assert len({len(load) for load in shards}) == 1
    assert_same(by_record(batch for load in shards for batch in load), expected)


def test_the_array_form_of_each_op_is_what_a_record_goes_through(expected):
    records = np.arange(61)
    graph = loader().port.graph
    read = source().read(records)
    sizes = {"image": np.full((61, 2), 6, np.int32)}
    draws = graph.draw(seed=3, epoch=0, records=records, sizes=sizes)
    images = list(read["image"])
    for op, draw in zip(graph.ops, draws, strict=True):
        images = [
            op.array(np, image, {k: v[i] for k, v in draw.items()})
            for i, image in enumerate(images)
        ]
    for record in records:
        assert np.array_equal(expected[record]["image"], images[record])
        assert expected[record]["label"] == record
        assert expected[record]["name"] == f"n{record}"


@pytest.mark.parametrize("ops", [[], OPS])
@pytest.mark.parametrize("prefetch", [2, None])
def test_a_list_of_all_batches_holds_what_each_was_when_it_came(ops, prefetch):
    with loader(3000, batch_size=4, ops=ops, prefetch=prefetch) as load:
        batches, copies = [], []
        for batch in load:
            batches.append(batch)
            copies.append({name: values.copy() for name, values in batch.items()})
        for batch, copy in zip(batches, copies, strict=True):
            for name, values in batch.items():
                assert np.array_equal(values, copy[name])


@pytest.mark.parametrize("on_error", ["raise", "replace"])
def test_a_caller_who_keeps_much_of_steps_done_together_gets_copies(monkeypatch, on_error):
    monkeypatch.setattr(session_module, "KEPT_BYTES", 4096)
    with loader(3000, batch_size=4, on_error=on_error) as load:
        images = [(batch["image"], batch["image"].copy()) for batch in load]
        assert all(np.array_equal(image, copy) for image, copy in images)
        assert 0 < load.stats()["batches_copied"] < len(load)


@pytest.mark.parametrize("on_error", ["raise", "replace"])
def test_of_steps_done_together_only_arrays_that_begin_elsewhere_are_copied(on_error):
    source = gl.arrays(image=np.zeros((2560, 16, 16, 1), np.uint8), label=np.zeros(2560, np.uint8))
    with gl.Loader(source, 128, device="cpu", on_error=on_error) as load:
        assert load._session.recipe.num_joined > 1
        run = iter(load)
        alone, first, second = next(run), next(run), next(run)
    assert _memory(alone["image"]) is not _memory(
        first["image"]
    )  # its step is the one that is waited for
    assert _memory(first["image"]) is _memory(second["image"])
    assert _memory(first["label"]) is not _memory(second["label"])


def test_a_slice_of_a_batch_stays_what_it_was():
    with loader(500, batch_size=4) as load:
        views = [(batch["image"][1:2, ::2], batch["image"][1:2, ::2].copy()) for batch in load]
    assert all(np.array_equal(view, copy) for view, copy in views)


def test_of_large_steps_one_is_worked_on_ahead():
    large = gl.arrays(image=np.zeros((4, 9 << 20), np.uint8))
    load = gl.Loader(large, batch_size=1, device="cpu")

    assert load.prefetch == 1
    assert load.replace(prefetch=2).prefetch == 2


def test_a_loop_that_drops_its_batches_allocates_no_slot_after_the_first_lap():
    with loader(2000, batch_size=4, prefetch=3) as load:
        for epoch in range(1, 5):
            for _ in load:
                pass
            assert load.stats()["slots_made"] <= epoch * (load.prefetch + 3)
        assert load.stats()["batches_copied"] == 0


@pytest.mark.parametrize("leave", ["at the end", "early", "by an error"])
def test_a_loader_between_two_epochs_keeps_only_memory_that_the_system_may_take(leave, monkeypatch):
    offered, offer = [], device.offer
    monkeypatch.setattr(
        device, "offer", lambda memory: offered.append(_address(memory)) or offer(memory)
    )
    load = loader(2000, batch_size=4)
    batches = []
    with contextlib.suppress(KeyError):
        for batch in load:
            batches.append(batch)
            if leave == "early" and batch.step == 20:
                break
            if leave == "by an error" and batch.step == 20:
                raise KeyError
    del batch
    memories = [weakref.ref(_memory(batch["image"])) for batch in batches]
    batches.clear()
    for _ in range(1000):
        waiting = [
            _address(memory) for slots in load._session.ring._idle.values() for memory in slots
        ]
        num_alive = len({_address(alive) for memory in memories if (alive := memory()) is not None})
        if num_alive <= len(waiting):
            break
        threading.Event().wait(0.01)
    assert num_alive <= len(waiting)
    assert set(waiting) <= set(offered)
    alive = None
    load.close()
    assert load._session.ring.num_idle_bytes == 0
    assert not any(memory() is not None for memory in memories)


def _address(memory):
    return memory.__array_interface__["data"][0]


def _memory(values):
    """Return the memory that an array is a view of."""
    while isinstance(values.base, np.ndarray):
        values = values.base
    return values if values.base is None else values.base.memory[0]


@pytest.mark.parametrize("on_error", ["raise", "replace"])
def test_arrays_of_a_batch_are_aligned_and_contiguous(on_error):
    for batch in loader(on_error=on_error):
        for values in batch.values():
            assert values.ctypes.data % 256 == 0
            assert values.flags.c_contiguous


def test_each_for_is_the_next_epoch():
    load = loader()
    epochs = [[(batch.epoch, batch.step) for batch in load] for _ in range(3)]
    assert epochs == [[(epoch, step) for step in range(len(load))] for epoch in range(3)]


def place(load):
    return load.position.epoch, load.position.step


def test_a_loop_that_was_left_goes_on_where_it_was_left():
    load = loader()
    for batch in load:
        if batch.step == 2:
            break
    assert place(load) == (0, 3)
    assert [(batch.epoch, batch.step) for batch in load] == [
        (0, step) for step in range(3, len(load))
    ]
    assert place(load) == (1, 0)
    assert next(iter(load)).epoch == 1


def test_an_iterator_begins_where_the_loader_is_and_takes_it_along():
    load = loader()
    first, second = iter(load), iter(load)
    assert [(batch.epoch, batch.step) for batch in (next(first), next(first), next(second))] == [
        (0, 0),
        (0, 1),
        (0, 0),
    ]
    assert place(load) == (0, 1)
    next(first)
    assert place(load) == (0, 3)
    third = iter(load)
    assert next(third).step == 3
    assert next(second).step == 1
    assert_same(by_record(loader()), by_record(load.epoch(0)))


def test_an_epoch_by_its_number_moves_nothing():
    load, other = loader(), loader()
    epochs = [by_record(other) for _ in range(3)]
    next(iter(load))
    for number in (2, 0, 1, 1):
        assert_same(by_record(load.epoch(number)), epochs[number])
        assert {batch.epoch for batch in load.epoch(number)} == {number}
    assert place(load) == (0, 1)
    with pytest.raises(SpecError, match="epoch"):
        load.epoch(-1)


def test_training_goes_on_behind_a_validation_in_mid_epoch():
    load, validation, steps = loader(), loader(14), []
    for _ in range(2 * len(load) // 3):
        for batch in itertools.islice(load, 3):
            steps.append((batch.epoch, batch.step))
        assert sum(1 for _ in validation) == 2
    assert steps == [(epoch, step) for epoch in range(2) for step in range(len(load))]


def test_an_iterator_that_reads_ahead_moves_the_loader_when_its_epoch_was_delivered(caplog):
    load = loader()
    ahead = load.port.ahead()
    for _ in range(len(load) - 1):
        next(ahead)
        assert place(load) == (0, 0)
    with caplog.at_level(logging.WARNING, "gpuload"):
        assert load.state_dict()["step"] == 0
    assert "cannot know which of the next 8 steps were trained" in caplog.text
    late = load.port.ahead()
    assert next(late).step == 0
    assert next(ahead).step == len(load) - 1
    assert place(load) == (1, 0)
    assert [batch.step for batch in late] == list(range(1, len(load)))
    assert place(load) == (1, 0)  # the same epoch once more
    caplog.clear()
    assert load.state_dict()["epoch"] == 1
    assert not caplog.records


@pytest.mark.parametrize("batch_size", [7, 5])
def test_the_state_of_any_position_is_arithmetic(batch_size):
    load = loader()
    run = iter(load)
    for _ in range(4):
        next(run)
    resumed = loader(batch_size=batch_size)
    resumed.load_state_dict(load.state_dict())
    batches = list(resumed)
    resumed.load_state_dict(load.state_dict())
    for batch, following in itertools.pairwise(batches):
        again = loader(batch_size=batch_size)
        again.load_state_dict(resumed.state_dict(0, batch.step + 1))
        assert next(iter(again)).records.tolist() == following.records.tolist()
    assert load.state_dict(7) == {**load.state_dict(), "epoch": 7, "step": 0, "position": 0}
    assert load.state_dict(7, len(load)) == load.state_dict(8)
    with pytest.raises(RecordIndexError):
        load.state_dict(7, len(load) + 1)


def test_a_step_that_failed_is_the_position_until_a_batch_behind_it_was_delivered():
    load = gl.Loader(Broken(), batch_size=4)
    with pytest.raises(OSError, match="no record 30"):
        list(load)
    assert place(load) == (0, 7)
    with pytest.raises(OSError, match="no record 30"):
        next(iter(load))


def test_batch_at_makes_any_batch_again_and_moves_nothing():
    load = loader()
    batches = [batch for _ in range(2) for batch in load]
    state = load.state_dict()
    for batch in (batches[-1], batches[3], batches[0]):
        again = load.batch_at(batch.step, batch.epoch)
        assert np.array_equal(again.records, batch.records)
        assert np.array_equal(again["image"], batch["image"])
    assert load.state_dict() == state


def test_the_steps_of_records_are_those_at_which_batch_at_has_them():
    load = loader(shuffle=True)

    steps = load.steps_of([7, 2], epoch=3)

    assert [
        record in load.batch_at(step, 3).records for record, step in zip([7, 2], steps, strict=True)
    ] == [
        True,
        True,
    ]


def test_batch_at_beyond_the_epoch_is_refused():
    with pytest.raises(RecordIndexError, match="step 9 of an epoch of 9 steps"):
        loader().batch_at(9)


@pytest.mark.parametrize("stop", [0, 1, 4, 8, 9])
def test_a_resumed_run_gives_the_same_batches(stop):
    whole = loader()
    batches = [batch for _ in range(2) for batch in whole]
    load = loader()
    run = iter(load)
    for _ in range(stop):
        next(run)
    state = json.loads(json.dumps(load.state_dict()))

    resumed = loader()
    resumed.load_state_dict(state)
    rest = [batch for _ in range(2) for batch in resumed][: len(batches) - stop]

    for result, reference in zip(rest, batches[stop:], strict=True):
        assert (result.epoch, result.step) == (reference.epoch, reference.step)
        assert np.array_equal(result.records, reference.records)
        assert np.array_equal(result["image"], reference["image"])


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_state_of_two_shards_goes_on_with_one_or_three(expected, num_shards):
    shards = [loader(num_shards=2, shard_id=i) for i in range(2)]
    runs = [iter(load) for load in shards]
    begin = by_record(next(run) for run in runs for _ in range(2))
    states = [load.state_dict() for load in shards]
    assert states[0] == states[1]

    resumed = [loader(num_shards=num_shards, shard_id=i, batch_size=5) for i in range(num_shards)]
    for load in resumed:
        load.load_state_dict(states[0])
    rest = by_record(batch for load in resumed for batch in load)

    assert not begin.keys() & rest.keys()
    assert_same({**begin, **rest}, expected)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"seed": 4}, "the seed"), ({"ops": OPS[1:]}, "the ops"), ({"shuffle": False}, "shuffle"),
        ({"count": 60}, "records"),
    ],
)  # fmt: skip
def test_a_state_of_another_run_is_refused_saying_what_differs(changes, word):
    state = loader().state_dict()
    with pytest.raises(StateError, match=word):
        loader(**changes).load_state_dict(state)


def test_a_state_of_other_data_is_refused():
    other = gl.arrays(
        image=np.zeros((61, 6, 6, 3), np.uint8),
        label=np.arange(61),
        name=source().read([0])["name"].repeat(61),
    )
    with pytest.raises(StateError, match="source"):
        gl.Loader(other, batch_size=7, ops=OPS, shuffle=True, seed=3).load_state_dict(
            loader().state_dict()
        )


@pytest.mark.parametrize(
    "state", [None, {}, {"version": 99}, {"version": 1, "epoch": -1, "position": 0}, []]
)
def test_what_is_no_state_is_refused(state):
    with pytest.raises(StateError):
        loader().load_state_dict(state)


def test_output_arranges_the_fields_and_leaves_out_the_rest():
    images, labels = next(iter(loader(output=("image", "label"))))
    assert images.shape == (7, 6, 6, 3)
    assert labels.shape == (7,)
    batch = next(iter(loader(output={"x": "image", "y": ("label", "name")})))
    assert batch.output["x"] is batch["image"]
    assert batch.output["y"][1].dtype.kind == "U"


def test_leaving_a_field_out_does_not_change_the_others(expected):
    ops = [gl.ops.RandomFlip(on="mask"), *OPS]
    images = source().read(np.arange(61))["image"]
    both = gl.zip(source(), gl.arrays(mask=images))
    load = gl.Loader(
        both, batch_size=7, ops=[*ops[:1], gl.ops.RandomFlip(on="image")], output="image", seed=3
    )
    whole = gl.Loader(both, batch_size=7, ops=[*ops[:1], gl.ops.RandomFlip(on="image")], seed=3)
    for batch, other in zip(load, whole, strict=True):
        assert np.array_equal(batch["image"], other["image"])


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"batch_size": 0}, SpecError, "batch_size = 0"),
        ({"output": "nothing"}, UnknownFieldError, "nothing"),
        ({"ops": [gl.ops.RandomFlip(on="nothing")]}, UnknownFieldError, r"ops\[0\]"),
        ({"ops": [gl.ops.RandomFlip]}, SpecError, "with the brackets"),
        ({"ops": [gl.ops.Decode()]}, SpecError, r"ops\[0\]"),
        ({"device": "tpu"}, SpecError, "device = 'tpu'"),
        ({"executor": "fast"}, SpecError, "executor = 'fast'"),
        ({"num_threads": 0}, SpecError, "num_threads = 0"),
        ({"prefetch": -1}, SpecError, "prefetch = -1"),
    ],
)
def test_what_does_not_fit_is_refused_when_the_loader_is_made(changes, error, text):
    with pytest.raises(error, match=text):
        loader(**changes)


def test_a_source_that_is_none_is_refused():
    with pytest.raises(SpecError, match="source is a ndarray"):
        gl.Loader(np.zeros(3), batch_size=1)


def test_a_gpu_that_is_not_there_is_an_error_that_names_the_cause():
    if loader_module.devices.gpu_problem(0) is None:
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceError, match=r"cause:  .*CuPy"):
        loader(device="gpu")


def test_auto_says_what_it_chose_and_why(caplog):
    with caplog.at_level(logging.INFO, "gpuload"):
        load = loader(device="auto")
    assert "device:" in caplog.text
    assert "executor:" in caplog.text
    assert load.describe().count("\n") > 5


@pytest.mark.parametrize(
    ("executor", "why"), [("auto", "faster one on a CPU"), ("array", "asked for")]
)
def test_describe_says_why_executor_and_device_were_chosen(executor, why):
    lines = dict(line.split(":", 1) for line in loader(executor=executor).describe().splitlines())
    assert why in lines["executor"]
    assert lines["device"].strip() == "cpu (asked for)"


def test_replace_is_a_new_loader_with_something_changed():
    assert next(iter(loader().replace(batch_size=3)))["image"].shape[0] == 3
    with pytest.raises(SpecError, match="batchsize"):
        loader().replace(batchsize=3)


def test_after_close_nothing_is_left_and_using_it_is_an_error():
    with none_left():
        load = loader()
        run = iter(load)
        next(run)
        load.close()
    with pytest.raises(ClosedError):
        next(run)
    with pytest.raises(ClosedError):
        iter(load)


def test_closing_in_mid_epoch_is_an_error_and_no_end_of_the_loop():
    load, steps = loader(), []

    def leave():
        for batch in load:
            steps.append(batch.step)
            if batch.step == 2:
                load.close()

    with pytest.raises(ClosedError):
        leave()
    assert steps == [0, 1, 2]


def test_dropping_an_iterator_and_a_loader_leaves_no_thread():
    before = threading.active_count()
    load = loader()
    next(iter(load))
    for _ in load:
        break
    del load
    gc.collect()
    deadline = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < deadline:
        threading.Event().wait(0.01)  # nobody waits for threads in a finalizer
    assert threading.active_count() <= before


@pytest.mark.parametrize("prefetch", [2, None, 9])
def test_a_value_that_an_op_cannot_take_is_an_error_at_its_step_alone(prefetch):
    labels = np.zeros(100, np.int64)
    labels[41] = 7
    ops = [gl.ops.OneHot(3, on="label")]
    load = gl.Loader(
        gl.arrays(label=labels), batch_size=2, ops=ops, prefetch=prefetch, device="cpu"
    )
    run, steps, failed = iter(load), [], None
    while True:
        try:
            steps.append(next(run).step)
        except RecordError as error:
            failed = (len(steps), str(error).splitlines()[0])
            assert load.state_dict()["step"] == 20
        except StopIteration:
            break
    assert failed == (20, "arrays, record 41: label 7 is not in 0 to 2")
    assert steps == [step for step in range(50) if step != 20]


@pytest.mark.parametrize("batch_size", [1, 3, 64])
@pytest.mark.parametrize("last_batch", ["partial", "pad", "drop"])
def test_steps_that_are_done_together_are_those_done_alone(batch_size, last_batch):
    arguments = {"batch_size": batch_size, "last_batch": last_batch, "num_shards": 2, "shard_id": 1}
    together, alone = loader(500, **arguments), loader(500, prefetch=2, **arguments)
    assert together._session.recipe.num_joined > 1 == alone._session.recipe.num_joined
    for batch, other in zip(together, alone, strict=True):
        assert batch.step == other.step
        assert np.array_equal(batch.records, other.records)
        assert np.array_equal(batch.valid, other.valid)
        for name, values in batch.items():
            assert np.array_equal(values, other[name])
            assert values.ctypes.data % 256 == 0


@pytest.mark.parametrize("batch_size", [7, 1000, 5000])
def test_what_is_drawn_for_many_steps_at_once_is_what_each_draws_alone(batch_size):
    images = np.random.default_rng(0).integers(0, 256, (9001, 6, 5, 3), np.uint8)
    ops = [gl.ops.RandomCrop(4, 4, pad=2), gl.ops.RandomFlip(), gl.ops.Normalize(3, 7)]
    load = gl.Loader(
        gl.arrays(image=images),
        batch_size=batch_size,
        shuffle=True,
        ops=ops,
        executor="array",
        device="cpu",
    )
    numbers = {step * len(load) // 20 for step in range(20)} | {len(load) - 1}
    for batch in load:
        if batch.step in numbers:
            alone = load.batch_at(batch.step)
            assert np.array_equal(alone.records, batch.records)
            assert np.array_equal(alone["image"], batch["image"])
    assert batch.step == len(load) - 1


class Broken(gl.sources.base.Source):
    """Record 30 cannot be read."""

    def __init__(self):
        self._whole = source()
        super().__init__(self._whole.groups)

    def __len__(self):
        return 61

    def _where(self, number):
        return f"record {number}"

    def _digest(self):
        return "broken"

    def _resolve(self, numbers):
        if 30 in numbers:
            raise self.error("no record 30")
        return self._whole.resolve(numbers)

    error = OSError


@pytest.mark.parametrize("prefetch", [None, 1])
def test_an_iterator_that_was_left_after_an_error_leaves_no_thread(prefetch):
    before = threading.active_count()
    run = iter(gl.Loader(Broken(), batch_size=4, prefetch=prefetch))
    with pytest.raises(OSError, match="no record 30") as failure:
        list(run)
    del run, failure
    gc.collect()
    deadline = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    assert threading.active_count() == before


def test_a_stop_iteration_of_a_source_does_not_end_the_epoch_unseen():
    broken = Broken()
    broken.error = StopIteration
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(gl.Loader(broken, batch_size=4))


def test_an_error_while_reading_comes_at_its_step_and_the_rest_goes_on():
    load = gl.Loader(Broken(), batch_size=4, num_threads=2)
    run, steps = iter(load), []
    while True:
        try:
            steps.append(next(run).step)
        except OSError as error:
            failed = (len(steps), str(error))
        except StopIteration:
            break
    assert failed == (7, "no record 30")
    assert steps == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15]


@pytest.mark.parametrize(
    "how", [iter, lambda load: load.port.ahead()], ids=["a loop", "read ahead"]
)
def test_whatever_a_signal_handler_raises_each_step_comes_once_and_right(how):
    with loader(3000, batch_size=4, seed=5) as load:
        start = load.state_dict()
        expected = [batch["image"].copy() for batch in load]
        interrupted = 0
        with Alarm() as alarm:
            for _ in range(8):
                load.load_state_dict(start)
                run, batches, is_over = how(load), [], False
                while not is_over:
                    try:
                        alarm.arm()
                        for batch in run:  # next(run) may be broken off by Python behind its return
                            batches.append(batch)
                        is_over = True
                        alarm.disarm()
                    except Alarm.Rang:
                        interrupted += 1
                assert [batch.step for batch in batches] == list(range(len(load)))
                assert all(
                    np.array_equal(batch["image"], other)
                    for batch, other in zip(batches, expected, strict=True)
                )
        assert interrupted > 10


@pytest.mark.parametrize("step", [0, 1, 8])
def test_a_signal_while_an_iterator_that_reads_ahead_moves_the_loader_loses_no_batch(
    monkeypatch, step
):
    def ring(*_):
        raise TimeoutError

    def interrupted(self, place, run, after):
        if after == step + 1 and not rings:
            rings.append(after)
            signal.raise_signal(signal.SIGINT)
        return arrived(self, place, run, after)

    arrived, rings, steps = Epoch._arrival, [], []
    before = signal.signal(signal.SIGINT, ring)
    monkeypatch.setattr(Epoch, "_arrival", interrupted)
    try:
        with loader() as load:
            run = load.port.ahead()
            for _ in range(11):
                with contextlib.suppress(TimeoutError):
                    steps += [batch.step for batch in itertools.islice(run, 1)]
            assert load.position.epoch == 1
    finally:
        signal.signal(signal.SIGINT, before)
    assert steps == list(range(9))
    assert rings == [step + 1]


def test_two_threads_that_share_an_iterator_get_each_batch_once():
    with loader(3000, batch_size=4) as load:
        run, steps = iter(load), []
        takers = [
            threading.Thread(target=lambda: steps.extend(batch.step for batch in run))
            for _ in range(4)
        ]
        for taker in takers:
            taker.start()
        for taker in takers:
            taker.join(60)
        assert sorted(steps) == list(range(len(load)))


def test_threads_that_share_an_iterator_hear_of_an_error_as_itself(monkeypatch):
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    wrong = []

    def take(run):
        while True:
            try:
                next(run)
            except StopIteration:
                return
            except gl.GpuloadError:
                continue
            except BaseException as error:
                wrong.append(error)
                return

    try:
        for _ in range(40):
            records = gl.arrays(x=np.arange(2000))
            with gl.Loader(records, batch_size=8, device="cpu") as load:
                run = iter(load)
                takers = [threading.Thread(target=take, args=(run,)) for _ in range(4)]
                for taker in takers:
                    taker.start()
                records.close()
                for taker in takers:
                    taker.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


def test_a_batch_that_is_made_alone_takes_no_exception_of_a_signal_handler_for_one_of_a_function():
    go_on = threading.Event()

    def wait(image):
        go_on.wait(60)
        return image

    load = loader(ops=[gl.ops.Python(wait, out={"dtype": "uint8"}, on="image")], on_error="replace")
    with Alarm(0.05, armed=True), pytest.raises(Alarm.Rang) as raised:
        load.batch_at(1)
    go_on.set()
    assert not hasattr(raised.value, "__notes__")
    assert load.bad_records() == []


def test_a_batch_that_is_made_alone_lets_the_exception_of_a_signal_handler_through():
    pytest.importorskip("nvidia.dali")
    load = loader(executor="dali")
    run, rang = iter(load), 0
    next(run)  # it has the first executor: the next batch needs another one
    expected = load.batch_at(1)["image"].tolist()
    with Alarm(0.002) as alarm:
        for _ in range(100):
            try:
                alarm.arm()
                load.batch_at(1)
                alarm.disarm()
            except Alarm.Rang:
                rang += 1
    assert rang > 10
    assert load.batch_at(1)["image"].tolist() == expected


def test_a_loader_is_pickled_as_what_it_was_made_from_and_goes_on():
    load = loader()
    run = iter(load)
    first = [next(run) for _ in range(4)]
    again = pickle.loads(pickle.dumps(load))
    assert again.state_dict() == load.state_dict()
    again.load_state_dict(load.state_dict())
    assert next(iter(again)).step == 4
    assert np.array_equal(again.batch_at(2)["image"], first[2]["image"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_process_is_told_to_make_its_own_loader_and_can():
    load = loader()
    run = iter(load)
    next(run)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            try:
                next(run)
            except ClosedError as error:
                status = 0 if "forked" in str(error) and len(list(loader())) == len(load) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert next(run).step == 1


KILLED = """
import json, sys, numpy as np, hashlib
sys.path.insert(0, {tests!r})
from tests.test_loader import loader
load = loader()
if len(sys.argv) > 1:
    load.load_state_dict(json.loads(sys.argv[1]))
while True:
    for batch in load:
        digest = hashlib.sha256(batch["image"].tobytes()).hexdigest()
        print(json.dumps([batch.epoch, batch.step, digest, load.state_dict()]), flush=True)
"""


def test_a_killed_run_goes_on_with_the_next_batch(tmp_path, request):
    program = KILLED.format(tests=str(request.config.rootpath))

    def first_lines(count, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True
        )
        lines = [json.loads(process.stdout.readline()) for _ in range(count)]
        process.kill()
        process.wait()
        process.stdout.close()
        return lines

    whole = first_lines(20)
    for stop in (1, 12):
        resumed = first_lines(3, json.dumps(whole[stop - 1][3]))
        assert [line[:3] for line in resumed] == [line[:3] for line in whole[stop : stop + 3]]


def test_a_batch_size_beyond_the_records_takes_memory_for_the_records_alone():
    load = loader(batch_size=10**12, ops=[], last_batch="partial")
    assert load._session.recipe.slot_bytes < 100_000
    [batch] = load
    assert sorted(batch.records) == list(range(61))
    parts = [
        gl.Loader(source(), batch_size=10**12, shard_id=i, num_shards=7, device="cpu")
        for i in range(7)
    ]
    assert sorted(record for part in parts for batch in part for record in batch.records) == list(
        range(61)
    )
    assert max(part._session.recipe.num_rows for part in parts) == 9


class Name(str):
    """A name that counts how often it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Name.compared += 1
        return str.__eq__(self, other)


def test_the_work_for_a_loader_grows_with_its_fields_and_not_with_their_square():
    def compared(count):
        names = [Name(f"f{number}") for number in range(count)]
        many = gl.arrays(x=np.zeros(3)).rename(x="f0")
        fields = [Field(name, np.dtype("u1"), ()) for name in names]
        layout = Layout(
            count, tuple(Part(field, field.dtype, number) for number, field in enumerate(fields))
        )
        many.groups, many.spec = (Group.of(layout),), Spec(tuple(fields))
        Name.compared = 0
        gl.Loader(many, batch_size=2, device="cpu")
        return Name.compared

    assert compared(800) < 3 * compared(400) + 1000


def test_text_that_is_none_is_named_with_its_record(tmp_path):
    texts = np.array([[65, 0], [66, 0], [0x110000, 0], [67, 0]], np.uint32).view("U2")
    for swapped in (False, True):
        np.save(
            tmp_path / "a.npy", texts.astype(texts.dtype.newbyteorder(">")) if swapped else texts
        )
        with gl.npy(tmp_path / "a.npy") as rows:
            assert rows[1]["x"] == ["B"]
            with pytest.raises(
                RecordError, match=r"a\.npy, record 2, byte 144: its text holds a number that is no"
            ):
                rows[2]
            run, names = iter(gl.Loader(rows, batch_size=1, device="cpu")), []
            for step in range(4):
                if step == 2:
                    with pytest.raises(RecordError, match=r"a\.npy, record 2"):
                        next(run)
                else:
                    names.append(next(run)["x"].item())
            assert names == ["A", "B", "C"]


def test_text_that_is_none_is_named_with_its_record_also_where_lengths_vary(tmp_path):
    for number in range(3):
        texts = np.array([65, 0x110000 if number == 1 else 66, *[67] * number], np.uint32).view(
            "U1"
        )
        np.save(tmp_path / f"{number}.npy", texts)
    files = gl.npy(tmp_path / "*.npy", record="file")
    assert files[2]["x"].tolist() == ["A", "B", "C", "C"]
    for ask in (
        lambda: files[1],
        lambda: files.read([0, 1]),
        lambda: list(gl.Loader(files, batch_size=3)),
    ):
        with pytest.raises(RecordError, match=r"1\.npy, record 0: its text"):
            ask()


def test_a_record_that_no_memory_can_hold_is_named(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", np.zeros(10, np.uint8))
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (1 << 42,)}
    )
    (tmp_path / "b.npy").write_bytes(header.getvalue())
    os.truncate(
        tmp_path / "b.npy", len(header.getvalue()) + (1 << 42)
    )  # holes, which take no place
    empty = np.empty

    def of_this_machine(
        shape, dtype=float, **more
    ):  # some systems promise any memory, and end who uses it
        if np.prod(shape, dtype=float) > 1 << 40:
            raise MemoryError("Unable to allocate")
        return empty(shape, dtype, **more)

    monkeypatch.setattr(np, "empty", of_this_machine)
    files = gl.npy(tmp_path / "*.npy", record="file")
    for ask in (lambda: files[1], lambda: list(gl.Loader(files, batch_size=2, device="cpu"))):
        with pytest.raises(
            RecordError, match=r"b\.npy, record 0: its 4398046511104 bytes are too many"
        ):
            ask()


def test_the_batch_size_may_be_said_without_its_name():
    assert len(gl.Loader(source(), 7, device="cpu")) == len(loader())


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_loader_of_which_every_epoch_would_be_empty_is_refused(num_shards):
    with pytest.raises(
        SpecError, match=r"remedy: use a smaller batch_size, or last_batch='partial'"
    ):
        gl.Loader(source(), batch_size=62, last_batch="drop", num_shards=num_shards, device="cpu")
    assert len(gl.Loader(source(), batch_size=61, last_batch="drop", device="cpu")) == 1
    assert list(gl.Loader(source()[:0], batch_size=61, last_batch="drop", device="cpu")) == []


def test_the_repr_of_a_loader_says_what_it_gives_and_where_it_is():
    load = loader(ops=[], num_shards=2, shard_id=1)
    next(iter(load))
    assert repr(load) == (
        "<gl.Loader: 61 records by 7, shard 1 of 2;\n  image: uint8 (6, 6, 3);\n  label: int64 ();\n  name: <U3 ();\n"
        "  epoch 0, step 1 of 5>"
    )


@pytest.mark.parametrize(
    ("prefetch", "text"), [(1, "1 step is made ahead"), (40, "40 steps are made ahead")]
)
def test_describe_speaks_of_steps_and_megabytes(prefetch, text):
    lines = dict(
        line.split(":", 1) for line in loader(3000, prefetch=prefetch).describe().splitlines()
    )
    assert lines["prefetch"].strip() == text
    assert "MB for a step" in lines["memory"]
    assert "step" in lines["threads"]


@pytest.mark.parametrize(("batches", "ahead"), [(0.5, 1), (1, 1), (1.5, 1), (2, 2), (5, 2)])
def test_so_many_batches_of_dali_are_made_ahead_as_memory_allows(monkeypatch, batches, ahead):
    pytest.importorskip("nvidia.dali")
    load = loader(executor="dali")
    batch_bytes = load._session.recipe.batch_bytes * load._session.recipe.num_joined
    load.close()
    monkeypatch.setattr("gpuload.pipeline.sessions.AHEAD_BYTES", int(batch_bytes * batches))
    with loader(executor="dali") as load:
        assert load.prefetch == ahead * load._session.recipe.num_joined


def test_to_peek_gives_the_next_batch_and_moves_nothing():
    load = loader()
    first = load.peek()
    run = iter(load)
    assert np.array_equal(next(run)["image"], first["image"])
    for batch in run:
        assert load.peek().records.tolist() != batch.records.tolist()
    assert (load.peek().epoch, load.peek().step, place(load)) == (1, 0, (1, 0))
    assert load.stats()["batches"] == len(load) + 1 + (len(load) - 1) + 2
    with pytest.raises(RecordIndexError, match="no records"):
        gl.Loader(gl.arrays(x=np.zeros(0)), 4).peek()


# a state that is loaded while iterators are alive


def state_at(*place):
    return loader().state_dict(*place)


@pytest.mark.parametrize("num_taken", [0, 1, 3])
def test_an_iterator_that_was_made_before_a_state_was_loaded_goes_on_there(num_taken):
    load, expected = loader(), list(loader().epoch(2))
    run = iter(load)
    for _ in range(num_taken):
        next(run)
    load.load_state_dict(state_at(2, 4))
    rest = list(run)
    assert [(batch.epoch, batch.step) for batch in rest] == [
        (2, step) for step in range(4, len(load))
    ]
    assert np.array_equal(rest[0]["image"], expected[4]["image"])
    assert place(load) == (3, 0)


def test_a_loop_whose_body_loads_a_state_goes_on_there():
    load, positions = loader(), []
    for batch in load:
        positions.append((batch.epoch, batch.step))
        if len(positions) == 3:
            load.load_state_dict(state_at(1, len(load) - 2))
    assert positions == [(0, 0), (0, 1), (0, 2), (1, 7), (1, 8)]


def test_each_of_several_iterators_goes_on_where_the_loader_is_when_it_is_asked():
    load = loader()
    runs = [iter(load), iter(load)]
    next(runs[0])
    load.load_state_dict(state_at(1, 3))
    assert [next(run).step for run in runs] == [3, 4]
    assert place(load) == (1, 5)


def test_an_iterator_that_ended_stays_ended_and_takes_no_loader_back():
    load = loader()
    run = iter(load)
    list(run)
    load.load_state_dict(state_at(4, 2))
    assert next(run, None) is None
    assert place(load) == (4, 2)


def test_an_epoch_by_its_number_is_not_moved_by_a_state():
    load = loader()
    run = load.epoch(0)
    next(run)
    load.load_state_dict(state_at(2, 4))
    assert (next(run).epoch, run.position.step) == (0, 2)
    assert place(load) == (2, 4)


@pytest.mark.parametrize("kind", ["ahead", "manual_epoch"])
def test_an_iterator_that_reads_ahead_says_that_a_state_was_loaded_and_moves_nothing(kind):
    load = loader()
    run, unread = getattr(load.port, kind)(), getattr(load.port, kind)()
    next(run)
    load.load_state_dict(state_at(2, 4))
    for _ in range(2):
        with pytest.raises(
            SpecError,
            match=r"is at epoch 2, step 4[\s\S]*a state was loaded[\s\S]*make a new iterator",
        ):
            next(run)
    assert place(load) == (2, 4)
    assert next(unread).step == 4


def test_a_state_that_is_where_what_reads_ahead_left_the_loader_changes_nothing():
    load = loader()
    run = load.port.manual_epoch()
    next(run), next(run)
    run.move(run.position)
    next(run)
    load.load_state_dict(load.state_dict())
    assert next(run).step == 3
    run.move(run.position)
    assert place(load) == (0, 4)


# what the counters say


def numbers(**changes):
    """A loader of 16 steps, short enough to be made together."""
    return gl.Loader(
        gl.arrays(x=np.arange(256)),
        **{"batch_size": 16, "device": "cpu", "num_threads": 2, **changes},
    )


def wait(seconds):
    threading.Event().wait(seconds)


@pytest.mark.parametrize("ops", [[], [gl.ops.Cast("float32")]])
def test_fill_is_near_1_where_the_training_is_slow(ops):
    load = numbers(ops=ops)
    for _ in range(3):
        for _ in load:
            wait(0.004)  # a step of training
    stats = load.stats()
    assert stats["fill"] == stats["steps_ready"] / stats["steps_ahead"] > 0.75
    assert str(stats).count("fill") == 1


def test_fill_is_near_0_where_the_training_waits():
    def slow(x):
        wait(0.01)
        return x

    load = numbers(ops=[gl.ops.Python(slow, batch=True)])
    for _ in range(3):
        list(load)
    assert load.stats()["wait_s"] > 0.1
    assert load.stats()["fill"] < 0.25


def test_fill_never_counts_more_steps_than_are_made_ahead():
    for prefetch in (1, 2, 40):
        load = numbers(prefetch=prefetch)
        for _ in range(2):
            for _ in load:
                wait(0.002)
        stats = load.stats()
        assert (
            0
            <= stats["steps_ready"]
            <= stats["steps_ahead"]
            <= stats["batches"] * max(16, load.prefetch)
        )
    assert numbers().stats()["fill"] == 0


def test_a_state_of_another_epoch_than_the_one_that_went_on_with_another_batch_size_is_counted_from_its_beginning():
    def loader_of(batch_size):
        return gl.Loader(gl.arrays(x=np.arange(20)), batch_size, shuffle=True, seed=1, device="cpu")

    loader = loader_of(4)
    loader.load_state_dict(loader_of(3).state_dict(0, 2))  # 6 records, no multiple of 4

    assert loader.state_dict(0, 3)["position"] == 10
    assert loader.state_dict(1, 3) == loader_of(4).state_dict(1, 3)


@pytest.mark.parametrize(
    "empty",
    [
        lambda: gl.arrays(x=np.zeros((0, 3))),
        lambda: gl.arrays(x=np.arange(5)).filter(np.zeros(5, bool)),
        lambda: gl.arrays(x=np.arange(5)).split(1.0)[1],
        lambda: gl.arrays(x=np.arange(5))[5:],
    ],
)
def test_a_loader_of_no_records_says_so_once(empty, caplog):
    source = empty()

    assert list(gl.Loader(source, 4, shuffle=True, device="cpu")) == []

    messages = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(messages) == 1
    assert "trains nothing" in messages[0].getMessage()
