"""Forks at random moments: the child is told to make a loader of its own, can, and ends, by itself
or through Python.

The forks happen in a program of their own, at whose top level a child falls off the end as any
script does.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

import gpuload as gl
from gpuload.errors import ClosedError
from tests.attack import lanes
from tests.attack.hunt import Report, hunt

ROOT = Path(__file__).parents[2]
MOMENTS = (
    "before any",
    "live",
    "between epochs",
    "closed",
    "another thread",
    "several live",
    "after DALI",
    "live DALI",
)
NUM_FORKS, MOST_S = 20, 20
PROGRAM = "from tests.attack import forks; forks.run()"


def attack(seconds: float, seed: int) -> Report:
    """Fork."""
    report = hunt(seconds, seed, trial, hang_s=NUM_FORKS * MOST_S)
    report.without = "" if lanes.HAS_DALI else "DALI, which is not installed"
    return report


def trial(rng: np.random.Generator, folder: Path) -> Counter[str]:
    """Run the program once."""
    command = [sys.executable, "-c", PROGRAM, str(rng.integers(2**32)), str(folder)]
    process = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=NUM_FORKS * MOST_S, check=False
    )
    assert process.returncode == 0, (
        f"the program ended with {process.returncode}: {process.stdout} {process.stderr[-3000:]}"
    )
    outcomes, wrong = json.loads(process.stdout)
    assert not wrong, f"{wrong} {process.stderr[-3000:]}"
    return Counter(outcomes)


def run() -> None:
    """Fork some times and print what came of it; a child that ends through Python returns from
    here."""
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # of Python 3.12, about forks of processes with threads
    if (process := _fork(int(sys.argv[1]), Path(sys.argv[2]))) is not None:
        print(json.dumps(process))


def _fork(seed: int, folder: Path) -> tuple[Counter[str], list[str]] | None:
    """Return what came of it and what was wrong, None in a child."""
    rng, wrong, outcomes = np.random.default_rng(seed), list[str](), Counter[str]()
    expected = {}
    for _ in range(NUM_FORKS):
        moment = MOMENTS[rng.integers(len(MOMENTS) - (0 if lanes.HAS_DALI else 2))]
        lane = "dali" if "DALI" in moment else str(rng.choice(["rows", "ops", "jpeg"]))
        lane_name = "jpeg" if lane == "dali" else lane
        if lane_name not in expected:
            with lanes.loader(lane_name, folder) as load:
                expected[lane_name] = lanes.digests(load)
        load, runs, stop_event, thread = _at(moment, lane, folder, rng)
        way = ("_exit", "exit")[rng.integers(2)]
        child = os.fork()
        if child == 0:
            faulthandler.dump_traceback_later(MOST_S / 2, exit=True)
            message = _in_child(load, runs, lane_name, folder, expected[lane_name])
            if message:
                print(f"in a child ({moment}, {lane}): {message}", file=sys.stderr, flush=True)
            if way == "_exit" or message:
                os._exit(1 if message else 0)
            return None
        status = _wait(child)
        stop_event.set()
        if thread is not None:
            thread.join()
        if status:
            wrong.append(f"a child ({moment}, {lane}, {way}) ended with {status}")
        for run in runs:
            next(run, None)
        load.close()
        outcomes[f"{moment}, {way}"] += 1
    return outcomes, wrong


def _at(moment: str, lane: str, folder: Path, rng: np.random.Generator):
    """Return a loader, its iterators and a thread of it, at the moment at which the process is to
    be forked."""
    load, stop_event, thread = lanes.loader(lane, folder), threading.Event(), None
    runs = [
        iter(load) for _ in range({"live": 1, "live DALI": 1, "several live": 3}.get(moment, 0))
    ]
    for run in runs:
        for _ in range(rng.integers(4)):
            next(run)
    if moment in ("between epochs", "after DALI", "closed"):
        list(load)
    if moment == "closed":
        load.close()
    if moment == "another thread":

        def loop() -> None:
            while not stop_event.is_set():
                for _ in load:
                    pass

        thread = threading.Thread(target=loop)
        thread.start()
    time.sleep(float(rng.random()) * 0.01)
    return load, runs, stop_event, thread


def _in_child(load: gl.Loader, runs: list, lane: str, folder: Path, expected: list) -> str:
    """Return what is wrong in a child."""
    for name, call in [
        *(("next", run.__next__) for run in runs),
        ("iter", load.__iter__),
        ("batch_at", load.batch_at),
    ]:
        began = time.monotonic()
        try:
            call(0) if name == "batch_at" else call()
            return f"{name} of the parent's loader works"
        except ClosedError:
            if time.monotonic() - began > 1:
                return f"{name} of the parent's loader took {time.monotonic() - began:.1f} s to be refused"
    same = lanes.digests(lanes.loader(lane, folder)) == expected
    return "" if same else "its own loader gives other batches"


def _wait(child: int) -> int:
    """Return the exit code of a child, which is killed if it takes too long."""
    end = time.monotonic() + MOST_S
    while time.monotonic() < end:
        process, status = os.waitpid(child, os.WNOHANG)
        if process:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
