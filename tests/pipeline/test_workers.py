"""Workers do steps ahead, in order, within bounds; nothing that happens to whoever takes them loses
or doubles one."""

from __future__ import annotations

import gc
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from gpuload.errors import ClosedError
from gpuload.pipeline.settings import Setting
from gpuload.pipeline.tray import Tray
from gpuload.pipeline.workers import Workers
from gpuload.stats import Counters
from tests.interrupts import Alarm
from tests.threads import none_left, threads, until


class Fake:
    """A step of a few parts that notes what was done."""

    num_steps = num_done = 1
    copies = None

    def __init__(self, number, num_parts=1, gate=None):
        self.number, self.num_parts, self.gate = number, num_parts, gate
        self.parts, self._lock = [], threading.Lock()

    def work(self, part):
        if self.gate is not None:
            assert self.gate.wait(60)
        with self._lock:
            self.parts.append(part)
            return len(self.parts) == self.num_parts


def workers(make=Fake, num_steps=50, num_ahead=3, num_threads=2, look=None):
    setting = Setting(num_threads, num_ahead)
    return Workers(make, num_steps=num_steps, setting=setting, look=look, counters=Counters())


def test_what_steps_took_is_added_in_one_call_however_many_were_forgotten():
    class Calls(Counters):
        """Counters that note each call."""

        def add(self, **amounts):
            calls.append(amounts)
            super().add(**amounts)

    class Copied(Fake):
        """A step that threads of the core did."""

        rows, position = SimpleNamespace(num_bytes=400, records=np.zeros(4)), None
        recipe = SimpleNamespace(graph=SimpleNamespace(ops=()), record_bytes=25)
        copies = SimpleNamespace(times=lambda: (5.0, 4.0, 3.0, 2.0, 1.0), wait_s=0.25)

    calls, counters = [], Calls()
    work = Workers(Fake, num_steps=0, setting=Setting(1, 1), counters=counters)
    for number in range(3):
        work._board.past.append(Copied(number))
    work.close()

    stats = counters.stats()
    assert sum("read.seconds" in amounts for amounts in calls) == 1
    assert [stats[f"read.{name}"] for name in ("seconds", "sampled", "blocked", "starved", "off_core")] == [
        15, 12, 9, 6, 3
    ]  # fmt: skip
    assert (stats["read_s"], stats["wait_s"], stats["read.bytes"]) == (15, 0.75, 300)


def test_of_steps_whose_ops_read_the_waiting_is_reading_and_the_rest_is_ops():
    class WithOps(Fake):
        """A step whose ops threads of the core did while they read; of every second one there is a
        sample."""

        rows, position = SimpleNamespace(num_bytes=400, records=np.zeros(4)), None
        recipe = SimpleNamespace(graph=SimpleNamespace(ops=("flip",)), record_bytes=25)

        def __init__(self, number):
            super().__init__(number)
            sampled = (8.0, 2.0, 1.5, 0.0) if number % 2 == 0 else (0.0, 0.0, 0.0, 0.0)
            self.copies = SimpleNamespace(times=lambda: (20.0, *sampled), wait_s=0.0)

    counters = Counters()
    work = Workers(Fake, num_steps=0, setting=Setting(1, 1), counters=counters)
    for number in range(4):
        work._board.past.append(WithOps(number))
    work.close()

    stats = counters.stats()
    assert (stats["read.seconds"], stats["ops.seconds"]) == (
        20,
        60,
    )  # a quarter of the samples waited for storage
    assert (stats["read_s"], stats["ops_s"]) == (20, 60)
    assert (stats["read.sampled"], stats["read.blocked"]) == (4, 4)
    assert (stats["ops.sampled"], stats["ops.starved"]) == (12, 3)
    assert (stats["read.bytes"], stats["ops.bytes"]) == (400, 1600)


@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("num_parts", [1, 3])
def test_steps_come_in_order_with_all_their_parts_done(num_threads, num_parts):
    work = workers(lambda number: Fake(number, num_parts), num_threads=num_threads)
    for number in range(50):
        step = work.take(number)
        assert step.number == number
        assert sorted(step.parts) == list(range(num_parts))
        work.forget(number)
    work.close()


def test_no_more_steps_are_begun_than_may_be_ahead():
    numbers = []

    def make(number):
        numbers.append(number)
        return Fake(number)

    work = workers(make, num_ahead=3)
    assert until(lambda: len(numbers) == 3)
    threading.Event().wait(0.05)
    assert numbers == [0, 1, 2]
    work.take(0)
    assert until(lambda: numbers == [0, 1, 2, 3])
    threading.Event().wait(0.05)
    assert numbers == [0, 1, 2, 3]
    work.close()


def test_a_step_that_was_taken_is_there_until_it_is_forgotten():
    work = workers()
    assert work.take(0) is work.take(0)
    work.forget(0)
    assert work.take(0) is None
    work.close()


def test_closing_from_another_thread_wakes_who_waits():
    gate, failures = threading.Event(), []
    work = workers(lambda number: Fake(number, gate=gate))

    def take():
        try:
            work.take(0)
        except ClosedError as error:
            failures.append(error)

    waiting = threading.Thread(target=take)
    waiting.start()
    closing = threading.Thread(target=work.close)
    closing.start()
    waiting.join(60)
    gate.set()
    closing.join(60)
    assert len(failures) == 1


def test_dropping_the_workers_ends_their_threads():
    with none_left():
        before = set(threads())
        work = workers()
        work.take(0)
        assert set(threads()) - before
        del work


def test_dropping_them_inside_a_collection_waits_for_nothing():
    gate = threading.Event()
    work = workers(lambda number: Fake(number, gate=gate))
    cycle = [work]
    cycle.append(cycle)
    del work, cycle
    began = time.monotonic()
    gc.collect()
    assert time.monotonic() - began < 60  # the threads wait for the gate, which opens afterwards
    gate.set()


def test_what_goes_wrong_outside_of_a_step_reaches_who_waits():
    def make(number):
        raise MemoryError("no room for a step")

    work = workers(make)
    with pytest.raises(MemoryError, match="no room"):
        work.take(0)
    work.close()


def test_several_threads_may_take_at_once():
    work, taken = workers(num_steps=400), []

    def take():
        for number in range(400):
            step = work.take(number)
            if step is not None:
                taken.append(step.number)
            work.forget(number - 1)

    takers = [threading.Thread(target=take) for _ in range(4)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join(60)
    assert set(taken) == set(range(400))
    work.close()


def test_an_exception_from_a_signal_handler_leaves_the_steps_as_they_are():
    work, number, interrupted = workers(num_steps=3000), 0, 0
    with Alarm() as alarm:
        while number < 3000:
            try:
                alarm.arm()
                step = work.take(number)
                work.forget(number - 1)
                alarm.disarm()
            except Alarm.Rang:
                interrupted += 1
            else:
                assert step.number == number
                number += 1
    work.close()
    assert interrupted > 10


def test_a_tray_that_was_stopped_still_gives_what_is_on_it():
    tray = Tray()
    tray.put(0, "first")
    tray.stop()
    assert tray.take(0) == "first"
    with pytest.raises(ClosedError):
        tray.take(1)


class LateTray(Tray):
    """A tray of a thread that breaks down just after the consumer has looked for its error."""

    stored = None

    @property
    def _error(self):
        error = self.stored
        if error is None and not self.is_stopped:
            self.stop(OSError("the thread broke down"))
        return error

    @_error.setter
    def _error(self, error):
        self.stored = error


def test_an_error_that_comes_while_the_consumer_looks_is_not_taken_for_a_close():
    with pytest.raises(OSError, match="the thread broke down"):
        LateTray().take(0)
