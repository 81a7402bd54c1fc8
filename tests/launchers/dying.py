"""A program of which a rank is killed.

    python tests/launchers/dying.py MARK RANK BATCH program.py arguments...

The rank is killed as it takes that batch, counted from 1, unless the file MARK is there, which it
writes before.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpuload as gl
from gpuload.pipeline.epoch import Epoch


def before_batch(number: int, action: Callable[[], object]) -> None:
    """Have this process do something as it takes a batch, counted from 1 over all loaders and
    epochs."""
    take, num_batches = Epoch.__next__, 0

    def take_after_action(batches: Epoch) -> Any:
        nonlocal num_batches
        num_batches += 1
        if num_batches == number:
            action()
        return take(batches)

    Epoch.__next__ = take_after_action  # type: ignore[method-assign]


def die_at(mark: Path, rank: int, number: int) -> None:
    """Have this process die as it takes a batch, if it is that rank and the mark is not there."""

    def die() -> None:
        if gl.shard()["shard_id"] == rank and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    before_batch(number, die)


if __name__ == "__main__":
    die_at(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    sys.argv = sys.argv[4:]
    runpy.run_path(sys.argv[0], run_name="__main__")
