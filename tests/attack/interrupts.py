"""Exceptions from signal handlers at random moments: each step comes once, in order, with the right
values."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np

import gpuload as gl
from tests.attack import lanes
from tests.attack.hunt import Report, hunt
from tests.interrupts import Alarm

LANES = {"rows": 6, "ops": 3, "jpeg": 1, "dali": 1}  # with their shares of the trials
MOST_IN_VAIN = 20  # then it is left alone: a timer that is faster than a step would go on for ever
SENDER = """
import os, random, time
while os.getppid() == {parent}:
    time.sleep(random.random() * {most_s})
    os.kill({parent}, {number})
"""


def attack(seconds: float, seed: int) -> Report:
    """Interrupt loops over batches."""
    report = hunt(seconds, seed, trial)
    report.without = "" if lanes.HAS_DALI else "DALI, which is not installed"
    return report


def trial(rng: np.random.Generator, folder: Path) -> Counter[str]:
    """Interrupt a loop over an epoch, which is now and then left and taken up again from its
    state."""
    names = [lane for lane in LANES if lanes.HAS_DALI or lane != "dali"]
    shares = np.array([LANES[lane] for lane in names], float)
    lane = str(rng.choice(names, p=shares / shares.sum()))
    changes = {
        "batch_size": int(rng.choice([1, 4, 16, 64])),
        "num_threads": int(rng.integers(1, 4)),
        "prefetch": (None, 1, 3)[rng.integers(3)],
    }
    with lanes.loader(lane, _files(), **changes) as load:
        expected, start = lanes.digests(load), load.state_dict()
        state, results, interrupted = {**start, "epoch": 0}, [], 0
        with _signals(rng) as alarm:
            while len(results) < len(expected):
                load.load_state_dict(state)
                until = int(rng.integers(len(results), len(expected) + 1))
                interrupted += take(load, alarm, results, until)
                state = load.state_dict()
                assert state["step"] == len(results) % len(load), (
                    f"the state says step {state['step']}, of {len(results)}"
                )
                step = int(rng.integers(len(expected)))
                again, times = _make(load, alarm, step)
                interrupted += times
                assert lanes.digest(again) == expected[step], f"batch_at({step}) is another one"
        assert [batch.step for batch in results] == list(range(len(expected))), (
            f"steps {[batch.step for batch in results]}"
        )
        assert lanes.digests(results) == expected, "values are others than without interrupts"
    return Counter({f"{lane} interrupts": interrupted})


def take(
    batches: Iterable[gl.batch.Batch], alarm: Alarm, actual: list[gl.batch.Batch], until: int
) -> int:
    """Take batches until there are so many; returns how often that was interrupted."""
    run, interrupted, in_vain = iter(batches), 0, 0
    while len(actual) < until:
        before = len(actual)
        try:
            if in_vain < MOST_IN_VAIN:
                alarm.arm()
            for batch in run:  # next(run) may be broken off by Python behind its return
                actual.append(batch)
                if len(actual) >= until or in_vain:
                    break
                alarm.arm()
            else:  # the epoch has ended
                alarm.disarm()
                return interrupted
            alarm.disarm()
        except Alarm.Rang:
            interrupted += 1
        in_vain = in_vain + 1 if len(actual) == before else 0
    return interrupted


def _make(load: gl.Loader, alarm: Alarm, step: int) -> tuple[gl.batch.Batch, int]:
    """Make a batch; returns it, and how often that was interrupted."""
    for number in itertools.count():
        try:
            if number < MOST_IN_VAIN:
                alarm.arm()
            values = load.batch_at(step, 0)
            alarm.disarm()
            return values, number
        except Alarm.Rang:
            continue
    raise AssertionError


@contextlib.contextmanager
def _signals(rng: np.random.Generator) -> Iterator[Alarm]:
    """Let a timer of this process ring, or another process send SIGINT, of which nobody knows when
    it comes."""
    with Alarm(every_s=float(rng.choice([0.00005, 0.0002, 0.0005, 0.002]))) as alarm:
        if rng.random() < 0.8:
            yield alarm
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        before = signal.signal(signal.SIGINT, signal.getsignal(signal.SIGALRM))
        program = SENDER.format(parent=os.getpid(), most_s=0.002, number=int(signal.SIGINT))
        sender = subprocess.Popen([sys.executable, "-S", "-c", program])
        try:
            yield alarm
        finally:
            alarm.disarm()
            sender.kill()
            sender.wait()
            signal.signal(signal.SIGINT, before)


@cache
def _files() -> Path:
    """Return the folder with the files of this process."""
    return Path(tempfile.mkdtemp(prefix="files-"))
