"""Which short steps are done together, and that slow ones are not kept waiting for one another."""

import threading
import time

import numpy as np
import pytest

import gpuload as gl
from gpuload.pipeline.joining import GROUP_S, NUM_EPOCHS, Joining, StepTime

WAIT_S = 20  # until a thread that should have come is missed


@pytest.mark.parametrize("num_steps", [1, 3, 4, 5, 11, 12, 30])
@pytest.mark.parametrize("step_s", [GROUP_S / 4.5, GROUP_S * 9, GROUP_S / 1e6])
def test_the_groups_hold_every_step_once_and_in_order(num_steps, step_s):
    joining = Joining(num_steps, max_size=8, num_first=3)
    steps, group = [], 0

    while True:
        if group == joining.num_first:
            joining.settle(step_s)
        first, count = joining.steps(group)
        if not count:
            break
        steps += range(first, first + count)
        assert [joining.group(step) for step in range(first, first + count)] == [group] * count
        group += 1

    assert steps == list(range(num_steps))
    assert group == joining.most_groups


def test_the_time_of_a_step_decides_how_many_are_done_together():
    sizes = {}
    for step_s in (GROUP_S * 2, GROUP_S / 2.5, 1e-9):
        joining = Joining(100, max_size=16, num_first=2)
        joining.settle(step_s)
        sizes[step_s] = joining.steps(2)[1]

    assert list(sizes.values()) == [1, 2, 16]


def test_an_epoch_whose_first_steps_were_disturbed_has_the_groups_of_the_epochs_before():
    sizes, is_disturbed = [], threading.Event()

    def note_size(x):
        sizes.append(len(x))
        time.sleep(3 * GROUP_S * is_disturbed.is_set())
        return x

    op = gl.ops.Python(note_size, batch=True, out={})
    with gl.Loader(
        gl.arrays(x=np.arange(4000.0)), 4, ops=[op], num_threads=2, device="cpu"
    ) as loader:
        list(loader.epoch(0))
        joined = max(sizes)
        sizes.clear()
        is_disturbed.set()
        batches = loader.epoch(1)
        next(batches)
        while len(sizes) < 3:
            next(batches)

    assert joined > 4
    assert max(sizes) == joined


def test_an_op_that_does_more_work_in_later_epochs_is_noticed():
    step_time = StepTime()
    least = [step_time.note(seconds) for seconds in (0.001, 0.5, *[0.25] * NUM_EPOCHS)]

    assert least[:NUM_EPOCHS] == [0.001] * NUM_EPOCHS
    assert least[-1] == 0.25


def test_a_slow_op_on_small_records_runs_on_all_threads():
    values, all_there = set(), threading.Event()

    def meets_the_others(x):
        values.add(threading.get_ident())
        if len(values) == 4:
            all_there.set()
        assert all_there.wait(WAIT_S)
        return x

    op = gl.ops.Python(meets_the_others, out={})
    loader = gl.Loader(gl.arrays(x=np.arange(64.0)), 4, ops=[op], num_threads=4, device="cpu")

    assert np.array_equal(np.concatenate([batch["x"] for batch in loader]), np.arange(64.0))


def test_the_first_batch_comes_after_its_own_work():
    taken, calls = threading.Event(), iter(range(64))

    def waits_behind_the_first_batch(x):
        assert next(calls) < 4 or taken.wait(WAIT_S)
        return x

    op = gl.ops.Python(waits_behind_the_first_batch, out={})
    loader = gl.Loader(gl.arrays(x=np.arange(64.0)), 4, ops=[op], num_threads=1, device="cpu")

    batches = iter(loader)
    first = next(batches)
    taken.set()

    assert np.array_equal(
        np.concatenate([first["x"], *(batch["x"] for batch in batches)]), np.arange(64.0)
    )
