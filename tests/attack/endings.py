"""Loaders that are closed, dropped and shared at random moments: no hang, no thread left, no batch
twice or wrong."""

from __future__ import annotations

import gc
import tempfile
import threading
import time
from functools import cache
from pathlib import Path

import numpy as np

from gpuload.errors import ClosedError
from tests.attack import lanes
from tests.attack.hunt import Report, hunt
from tests.threads import threads, until

LANES = {"rows": 3, "ops": 3, "jpeg": 2, "dali": 2}  # with their shares
WAYS = ("close", "drop", "share", "close the source", "close twice")
MOST_S = 20


def attack(seconds: float, seed: int) -> Report:
    """End loops."""
    report = hunt(seconds, seed, trial, hang_s=60)
    report.without = "" if lanes.HAS_DALI else "DALI, which is not installed"
    return report


def trial(rng: np.random.Generator, folder: Path) -> str:
    """Let 1 to 4 threads take the batches of each of 1 to 2 epochs, and end that in some way at a
    random moment."""
    names = [lane for lane in LANES if lanes.HAS_DALI or lane != "dali"]
    shares = np.array([LANES[lane] for lane in names], float)
    lane, way = str(rng.choice(names, p=shares / shares.sum())), WAYS[rng.integers(len(WAYS))]
    load = lanes.loader(
        lane, _files(), num_threads=int(rng.integers(1, 4)), prefetch=(None, 1)[rng.integers(2)]
    )
    expected, actual, wrong = _expected(lane), list[list[object]](), list[str]()
    runs = [load.epoch(number) for number in range(rng.integers(1, 3))]
    takers = []
    for run in runs:
        actual.append([])
        for _ in range(1 if way == "drop" else rng.integers(1, 5)):
            takers.append(threading.Thread(target=_take, args=(run, actual[-1], wrong)))
    for taker in takers:
        taker.start()
    time.sleep(float(rng.random()) * (0.1 if lane in ("jpeg", "dali") else 0.02))
    if way in ("close", "close twice"):
        load.close()
    if way == "close twice":
        load.close()
    if way == "close the source":
        load.source.close()
    if way == "drop":
        for item in runs:
            item.close()
        runs.clear()
        gc.collect()
    for taker in takers:
        taker.join(MOST_S)
        assert not taker.is_alive(), f"{lane}, {way}: a thread waits for ever"
    assert not wrong, f"{lane}, {way}: {wrong}"
    for epoch, batches in enumerate(actual):
        results = sorted(lanes.digests(batches))
        assert all(item[0] == epoch for item in results), f"{lane}, {way}: epochs {results}"
        steps = [step for _, step, _ in results]
        assert steps == list(range(len(steps))), f"{lane}, {way}: steps {steps}"
        assert results == expected[epoch][: len(results)], f"{lane}, {way}: values are others"
        assert way != "share" or len(results) == len(expected[epoch]), (
            f"{lane}: {len(results)} steps were delivered"
        )
    run = None
    runs.clear()
    if rng.random() < 0.5:
        load.close()
    del load
    gc.collect()
    assert until(lambda: not threads(), MOST_S), f"{lane}, {way}: threads are left: {threads()}"
    return f"{lane}, {way}"


def _take(run, actual: list[object], wrong: list[str]) -> None:
    """Take batches until there is no more, or the loader was closed."""
    try:
        for batch in run:
            actual.append(batch)
    except ClosedError:
        pass
    except BaseException as error:
        wrong.append(repr(error))


@cache
def _expected(lane: str) -> list[list[tuple[int, int, str]]]:
    with lanes.loader(lane, _files()) as load:
        return [lanes.digests(load) for _ in range(2)]


@cache
def _files() -> Path:
    """Return the folder with the files of this process."""
    return Path(tempfile.mkdtemp(prefix="files-"))
