"""Resume in the demo: a loader stops in mid-epoch, another process goes on; both print hashes of
their batches.

``python -m gpuload_demo.resume FOLDER DEVICE`` is that other process: it goes on from
``FOLDER/state.json``, and prints a line for each batch.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import gpuload as gl
from gpuload_demo import data as demo_data
from gpuload_demo import train as demo_train

SEED, STOP_AFTER = 11, 10


@dataclass(frozen=True)
class ResumeResult:
    """The batches after the stop, as hashes: of the loader that never stopped, and of the process
    that resumed."""

    uninterrupted: list[str]
    resumed_lines: list[str]
    state_bytes: int

    @property
    def equal(self) -> bool:
        """True if there are batches, and all are the same."""
        return bool(self.uninterrupted) and self.uninterrupted == self.resumed_lines


def resume(folder: Path, *, device: str) -> ResumeResult:
    """Stop an epoch after some steps, resume it in a new process, compare to a loader that was not
    stopped."""
    with loader(folder, device=device) as first_loader:
        for batch in first_loader:
            if batch.step == STOP_AFTER - 1:
                break
        # Batches that were prefetched and never came to the loop do not count: it is the loop's
        # place that is stored.
        state = json.dumps(first_loader.state_dict())
    (folder / "state.json").write_text(state)
    with loader(folder, device=device) as whole:
        expected = remaining(whole)[STOP_AFTER:]
    return ResumeResult(expected, _in_a_new_process(folder, device), len(state))


def loader(folder: Path, *, device: str) -> gl.Loader:
    """Return the loader that is stopped, and made again in the new process."""
    return demo_train.digits_loader(demo_data.npy(folder), seed=SEED, device=device)


def remaining(batches: gl.Loader) -> list[str]:
    """Return a hash of each batch in the rest of this epoch and in the next one."""
    return [digest(batch) for _ in range(2) for batch in batches]


def digest(batch: Any) -> str:
    """Return where a batch is and the SHA-256 of its records and of all its bytes."""
    total = hashlib.sha256(batch.records.tobytes())
    for array in batch.values():
        total.update((array if isinstance(array, np.ndarray) else array.get()).tobytes())
    return f"epoch {batch.epoch} step {batch.step} {total.hexdigest()[:16]}"


def _in_a_new_process(folder: Path, device: str) -> list[str]:
    # The same gpuload as this one, also where it is run from a checkout and not installed.
    package = str(Path(gl.__file__).parents[1])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "gpuload_demo.resume", str(folder), device]
    process = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if process.returncode:
        raise gl.GpuloadError(
            f"{' '.join(command)} ended with status {process.returncode}",
            cause=process.stderr.strip()[-2000:],
            remedy="run this command by itself to see more",
        )
    return process.stdout.splitlines()


def _main() -> None:
    folder, device = Path(sys.argv[1]), sys.argv[2]
    with loader(folder, device=device) as second_loader:
        second_loader.load_state_dict(json.loads((folder / "state.json").read_text()))
        print("\n".join(remaining(second_loader)))


if __name__ == "__main__":
    _main()
