"""Faults on purpose, in a process of its own, so that it can be tested that `__main__.run_part`
finds them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

from tests.attack.hunt import WARM, Report, hunt

FAULT = "GPULOAD_ATTACK_FAULT"  # the variable of the environment that names one


def attack(seconds: float, seed: int) -> Report:
    """Do nothing, but for the trial of seed 5."""

    def trial(rng: np.random.Generator, folder: Path) -> str:
        if folder.name.startswith(f"seed-{seed + WARM + 2}-"):
            (folder / "input").write_text(os.environ[FAULT])
            FAULTS[os.environ[FAULT]]()
        return "nothing"

    return hunt(seconds, seed, trial, hang_s=2, more_bytes=1 << 26)


def _raise() -> None:
    raise KeyError("planted")


FAULTS = {
    "error": _raise,
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "hang": lambda: time.sleep(60),
    "memory": lambda: np.ones(1 << 24),
}
