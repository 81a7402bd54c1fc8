"""SIGKILL at random moments to a process that trains and saves its state: all that it delivers is
what it had to be."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import time
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np

import gpuload as gl
from tests.attack import lanes
from tests.attack.hunt import Report, hunt

EPOCHS, BATCH = 5, 10
LANES = (
    "rows",
    "ops",
    "jpeg",
)  # DALI is of no use in a child of fork, and takes seconds to start in any other
MOST_S = 0.1  # that a process lives


def attack(seconds: float, seed: int) -> Report:
    """Kill processes."""
    return hunt(seconds, seed, trial, hang_s=90)


def trial(rng: np.random.Generator, folder: Path) -> Counter[str]:
    """Kill one training after the other until the run is done, and compare what they delivered."""
    lane = LANES[rng.integers(len(LANES))]
    expected = _expected(lane)
    state, log, starts = folder / "state.json", folder / "log.txt", []
    log.touch()
    for life in range(1000):
        _cut_torn_line(log)
        lines = log.read_text().splitlines()
        assert lines == lines[: len(expected) + life], (
            f"{len(lines)} batches in {life} lives, of {len(expected)}"
        )
        starts.append((len(lines), _position(state)))
        lifetime = float(rng.random()) * MOST_S if life < 50 else 60
        if _one_life(lane, state, log, lifetime):
            break
    delivered = [tuple(json.loads(line)) for line in log.read_text().splitlines()]
    ends = [begin for begin, _ in starts[1:]] + [len(delivered)]
    for (begin, position), end in zip(starts, ends, strict=True):
        assert delivered[begin:end] == expected[position : position + end - begin], (
            f"after the state of batch {position} came {delivered[begin:end][:3]}, not {expected[position:][:3]}"
        )
        assert position + end - begin <= len(expected), "more batches than there are"
    last_begin, last_position = starts[-1]
    assert last_position + len(delivered) - last_begin == len(expected), (
        "the last life ended before the run did"
    )
    return Counter({"lives": len(starts)})


def _one_life(lane: str, state: Path, log: Path, lifetime: float) -> bool:
    """Start a process that trains, and kill it; returns True if it was done before."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _train(lane, state, log)
            status = 0
        finally:
            os._exit(status)
    end = time.monotonic() + lifetime
    while time.monotonic() < end:
        process, status = os.waitpid(child, os.WNOHANG)
        if process:
            assert status == 0, f"a training ended with {status}"
            return True
        time.sleep(0.001)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), f"a training ended with {status}"
    return status == 0


def _train(lane: str, state: Path, log: Path) -> None:
    with _loader(lane, _files()) as load, open(log, "ab", buffering=0) as file:
        if state.exists():
            load.load_state_dict(json.loads(state.read_text()))
        while load.state_dict()["epoch"] < EPOCHS:
            for batch in load:
                file.write(json.dumps(lanes.digest(batch)).encode() + b"\n")
                new = state.with_suffix(".new")
                new.write_text(json.dumps(load.state_dict()))
                os.replace(new, state)


def _cut_torn_line(log: Path) -> None:
    """Cut off what a life had half written when it was killed; the state is written behind it, so
    it comes again."""
    content = log.read_bytes()
    log.write_bytes(content[: content.rfind(b"\n") + 1])


def _position(state: Path) -> int:
    """Return how many batches were delivered before a saved state."""
    if not state.exists():
        return 0
    saved_state = json.loads(state.read_text())
    return int(saved_state["epoch"] * -(-saved_state["records"] // BATCH) + saved_state["step"])


def _loader(lane: str, folder: Path) -> gl.Loader:
    return lanes.loader(lane, folder, batch_size=BATCH)


@cache
def _expected(lane: str) -> list[tuple[int, int, str]]:
    with _loader(lane, _files()) as load:
        return [digest for _ in range(EPOCHS) for digest in lanes.digests(load)]


@cache
def _files() -> Path:
    """Return the folder with the files of this process."""
    return Path(tempfile.mkdtemp(prefix="files-"))
