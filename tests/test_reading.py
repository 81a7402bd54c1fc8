"""Threads work ahead, in order, within bounds, and are gone when nobody wants them."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time

import pytest

from gpuload.reading import Reading, Threads
from gpuload.stats import Counters
from tests.threads import threads


class Step:
    """A step of a few parts that notes what was done."""

    def __init__(self, number, num_parts=1, fail=None, gate=None):
        self.number, self.num_parts, self.fail, self.gate = number, num_parts, fail, gate
        self.prepared, self.done = 0, []

    def prepare(self):
        self.prepared += 1
        if self.fail == "prepare":
            raise KeyError(self.number)

    def do(self, part):
        if self.gate is not None:
            self.gate.wait(10)
        if self.fail == part:
            raise ValueError(f"step {self.number}, part {part}")
        self.done.append(part)


class Steps:
    """Steps ``num_ready`` of which need not be waited for; waiting makes one more ready."""

    def __init__(self, steps, num_ready=10**9):
        self._steps, self.num_ready, self.num_begun, self.closed = iter(steps), num_ready, 0, False

    def ready(self):
        return self.num_begun < self.num_ready

    def __next__(self):
        step = next(self._steps)
        self.num_begun += 1
        self.num_ready = max(self.num_ready, self.num_begun)
        return step

    def close(self):
        self.closed = True


def reading(steps, num_threads=2, ahead=2, helped=False):
    return Reading(Steps(steps), Threads(num_threads, helped=helped), ahead=ahead, counters=Counters())


def until(condition):
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        threading.Event().wait(0.005)
    return condition()


@pytest.mark.parametrize("helped", [False, True])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("num_parts", [1, 3])
def test_steps_come_in_order_with_all_their_parts_done(num_threads, num_parts, helped):
    ahead = reading([Step(i, num_parts) for i in range(50)], num_threads, helped=helped)
    for i in range(50):
        step = ahead.take()
        assert step.number == i
        assert step.prepared == 1
        assert sorted(step.done) == list(range(num_parts))
    assert ahead.take() is None
    ahead.close()


def test_no_more_than_ahead_steps_are_begun():
    begun = []

    def steps():
        for i in range(100):
            begun.append(i)
            yield Step(i)

    work = reading(steps(), ahead=3)
    assert begun == [0, 1, 2]
    work.take()
    assert begun == [0, 1, 2, 3]
    work.close()


@pytest.mark.parametrize(("fail", "error"), [(0, ValueError), (2, ValueError), ("prepare", KeyError)])
def test_an_error_arrives_as_itself_at_its_step_and_the_others_come_through(fail, error):
    work = reading([Step(i, 3, fail if i == 4 else None) for i in range(8)])
    got = []
    for i in range(8):
        if i == 4:
            with pytest.raises(error, match="4"):
                work.take()
        else:
            got.append(work.take().number)
    assert got == [0, 1, 2, 3, 5, 6, 7]
    work.close()


class Noted(Step):
    """A step that notes in which thread its parts are done; the first is done once the gate is open."""

    def do(self, part):
        self.done.append(threading.current_thread().name)
        if self.gate is not None and self.number == 0:
            assert self.gate.wait(10)


def test_a_caller_that_waits_does_the_parts_that_no_thread_has_begun():
    gate = threading.Event()
    steps = [Noted(i, gate=gate) for i in range(3)]
    work = reading(steps, num_threads=2, ahead=3, helped=True)
    assert until(lambda: steps[0].done == ["gpuload-0"])  # one thread, for the caller is the other
    threading.Thread(target=lambda: until(lambda: steps[2].done) and gate.set()).start()
    assert [work.take().number for _ in range(3)] == [0, 1, 2]
    assert [step.done for step in steps[1:]] == [[threading.current_thread().name]] * 2
    work.close()


def test_a_caller_that_is_not_to_help_does_no_part():
    steps = [Noted(i) for i in range(20)]
    work = reading(steps, num_threads=1)
    while work.take() is not None:
        pass
    assert {name for step in steps for name in step.done} == {"gpuload-0"}
    work.close()


def test_a_part_that_ctrl_c_broke_off_in_the_caller_is_done_later():
    class BrokenOff(Noted):
        def do(self, part):
            super().do(part)
            if len(self.done) == 1 and self.number == 1:
                raise KeyboardInterrupt

    gate = threading.Event()
    steps = [BrokenOff(i, gate=gate) for i in range(4)]
    work = reading(steps, num_threads=1, ahead=4, helped=True)
    assert until(lambda: steps[0].done)
    with pytest.raises(KeyboardInterrupt):
        work.take()
    gate.set()
    assert [work.take().number for _ in range(4)] == [0, 1, 2, 3]
    assert [len(step.done) for step in steps] == [1, 2, 1, 1]
    work.close()


@pytest.mark.parametrize("where", ["steps", "begin"])
def test_ctrl_c_while_a_step_is_begun_loses_none(where):
    interrupts = iter([False, False, False, True, False, True, True])

    class Interrupted(Steps):
        def __next__(self):
            if where == "steps" and next(interrupts, False):
                raise KeyboardInterrupt
            return super().__next__()

    class Pool(Threads):
        def begin(self, step):
            if where == "begin" and next(interrupts, False):
                raise KeyboardInterrupt
            return super().begin(step)

    work = Reading(Interrupted(map(Step, range(8))), Pool(2), ahead=2, counters=Counters())
    got, broken = [], 0
    while True:
        try:
            step = work.take()
        except KeyboardInterrupt:
            broken += 1
            continue
        if step is None:
            break
        got.append(step.number)
    assert (got, broken) == (list(range(8)), 3)
    work.close()


def test_a_step_that_is_not_ready_is_not_begun_while_another_is():
    steps = Steps(map(Step, range(8)), num_ready=3)
    work = Reading(steps, Threads(2), ahead=2, counters=Counters())
    assert steps.num_begun == 2
    begun = []
    for _ in range(5):
        work.take()
        begun.append(steps.num_begun)
    assert begun == [3, 3, 3, 4, 5]  # there are two ahead, one, none; then each is waited for
    steps.num_ready = 7
    assert [work.take().number for _ in range(3)] == [5, 6, 7]
    assert work.take() is None
    work.close()


def test_closing_closes_the_steps():
    for close in (Reading.close, lambda work: None):
        steps = Steps([Step(0)])
        work = Reading(steps, Threads(1), ahead=1, counters=Counters())
        close(work)
        del work
        gc.collect()
        assert steps.closed


def test_the_first_part_that_failed_is_the_one_reported():
    class Both(Step):
        def do(self, part):
            raise ValueError(f"part {part}")

    work = reading([Both(0, 4)], num_threads=4)
    with pytest.raises(ValueError, match="part 0"):
        work.take()
    work.close()


def test_closing_in_the_middle_leaves_no_thread():
    before = len(threads())
    work = reading([Step(i) for i in range(100)], num_threads=4)
    work.take()
    work.close()
    work.close()
    assert len(threads()) == before


def test_dropping_the_last_reference_leaves_no_thread():
    before = len(threads())
    work = reading([Step(i) for i in range(100)], num_threads=4)
    work.take()
    del work
    gc.collect()
    assert until(lambda: len(threads()) == before)


def test_close_waits_for_work_that_is_being_done():
    gate = threading.Event()
    step = Step(0, gate=gate)
    work = reading([step], num_threads=1)
    threading.Timer(0.05, gate.set).start()
    assert until(lambda: step.prepared == 1)
    work.close()
    assert step.done == [0]


def test_an_interpreter_that_ends_in_the_middle_ends_at_once():
    program = (
        "import time\n"
        "from gpuload.reading import Reading, Threads\n"
        "from gpuload.stats import Counters\n"
        "class Step:\n"
        "    num_parts = 1\n"
        "    def prepare(self): pass\n"
        "    def do(self, part): time.sleep(0.001)\n"
        "class Steps:\n"
        "    def __next__(self): return Step()\n"
        "    def ready(self): return True\n"
        "    def close(self): pass\n"
        "work = Reading(Steps(), Threads(4), ahead=8, counters=Counters())\n"
        "work.take(); print('taken')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "taken\n", "")
