"""Exceptions from signal handlers while batches become tensors: each step comes once, in order,
with its values."""

from __future__ import annotations

import contextlib
import importlib
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import gpuload as gl
from tests.attack import lanes
from tests.attack.hunt import Report, hunt
from tests.attack.interrupts import take
from tests.interrupts import Alarm

FRAMEWORKS = ("jax", "tensorflow", "torch")
AHEAD = "an iterator that reads ahead"


def attack(seconds: float, seed: int) -> Report:
    """Interrupt loops over tensors, and over what reads ahead of a training."""
    missing = [
        name for name in FRAMEWORKS if name not in _bridges()
    ]  # imported here, before memory is watched
    with _wide_numbers():
        report = hunt(seconds, seed, trial)
    report.without = ", ".join(f"{name}, which is not installed" for name in missing)
    return report


def trial(rng: np.random.Generator, folder: Path) -> Counter[str]:
    """Interrupt a loop over an epoch."""
    name = str(rng.choice([AHEAD, *_bridges()]))
    changes = {
        "batch_size": int(rng.choice([4, 16, 64])),
        "num_threads": int(rng.integers(1, 3)),
        "output": (None, "label")[rng.integers(2)],
    }
    results: list[gl.batch.Batch] = []
    with lanes.loader("ops", _files(), **changes) as load:
        expected = lanes.digests(load)
        load.load_state_dict({**load.state_dict(), "epoch": 0})
        batches = load.ahead() if name == AHEAD else _bridges()[name].tensors(load)
        every_s = float(rng.choice([0.00005, 0.0002, 0.0005, 0.002]))
        with Alarm(every_s, hides=bool(rng.integers(2))) as alarm:
            interrupted = take(batches, alarm, results, len(expected) + 1)
        assert load.position.epoch == 1, f"the loader is at {load.position} behind an epoch"
    assert [batch.step for batch in results] == list(range(len(expected))), (
        f"steps {[batch.step for batch in results]}"
    )
    assert lanes.digests(results) == expected, "values are others than without interrupts"
    return Counter({f"{name} interrupts": interrupted})


@cache
def _bridges() -> dict[str, Any]:
    """Return the bridges to the frameworks that are installed."""
    results = {}
    for name in FRAMEWORKS:
        with contextlib.suppress(gl.errors.MissingPackageError):
            results[name] = importlib.import_module(f"gpuload.bridges.{name}")
    return results


@contextlib.contextmanager
def _wide_numbers() -> Iterator[None]:
    """Have JAX take numbers of 64 bits: labels are int64."""
    if "jax" not in _bridges():
        yield
        return
    config = importlib.import_module("jax").config
    before = config.jax_enable_x64
    config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        config.update("jax_enable_x64", before)


@cache
def _files() -> Path:
    """Return the folder with the files of this process."""
    return Path(tempfile.mkdtemp(prefix="files-"))
