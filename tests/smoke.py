"""Smoke test of an installed gpuload: shuffled records, read with the compiled core and without it,
are the same.

    python smoke.py compiled | numpy

It reads rows of NPY files and fixed-length records, and compares each batch with the records by
NumPy alone. Then it reads them again in a process with GPULOAD_CORE=0, and compares bit for bit.
The argument says what gpuload has to run in. It needs gpuload and NumPy alone, and writes into a
temporary folder; `make wheels` runs it on each wheel.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import gpuload as gl
from gpuload import core

SECOND_PROCESS = "second"
RECORDS = 300
DTYPE = np.dtype([("label", "u1"), ("image", "u1", (3, 16, 16))])


def write(folder: Path) -> dict[str, np.ndarray]:
    """Write the files; return the arrays in them."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(RECORDS, 7)).astype(">f4")
    records = random.integers(0, 256, RECORDS * DTYPE.itemsize, np.uint8).view(DTYPE)
    np.save(folder / "a.npy", rows[:100])
    np.save(folder / "b.npy", rows[100:])
    records.tofile(folder / "records.bin")
    return {"rows": rows, "label": records["label"], "image": records["image"]}


def read(folder: Path) -> dict[str, np.ndarray]:
    """Return what loaders deliver in two epochs, with the numbers of the records."""
    image_ops = [
        gl.ops.Transpose("HWC"),
        gl.ops.RandomCrop(12, 12),
        gl.ops.RandomFlip(),
        gl.ops.Normalize(120, 64),
    ]
    loaders = {
        "rows": gl.Loader(
            gl.npy([folder / "a.npy", folder / "b.npy"], field="rows"), 32, shuffle=True, seed=5
        ),
        "fixed": gl.Loader(gl.fixed(folder / "records.bin", DTYPE), 32, shuffle=True, seed=6),
        "images": gl.Loader(
            gl.fixed(folder / "records.bin", DTYPE), 32, shuffle=True, seed=7, ops=image_ops
        ),
    }
    arrays: dict[str, np.ndarray] = {}
    for name, loader in loaders.items():
        with loader:
            batches = [batch for epoch in range(2) for batch in loader.epoch(epoch)]
            arrays[f"{name} records"] = np.concatenate([batch.records for batch in batches])
            for field, _ in batches[0].items():
                arrays[f"{name} {field}"] = np.concatenate([batch[field] for batch in batches])
    return arrays


def main(expected: str) -> int:
    """Read and compare; 1 if anything is not as it should be."""
    problems = []
    runs_in = core.how().split(",")[0].lower()
    if runs_in != expected:
        problems.append(f"gpuload runs in {core.how()}, not {expected}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        raw = write(folder)
        arrays = read(folder)
        command = [sys.executable, __file__, SECOND_PROCESS, name]
        subprocess.run(command, check=True, env={**os.environ, core.SWITCH: "0"}, timeout=60)
        with np.load(folder / "numpy.npz") as rest:
            problems += [
                f"{key} is not the same without the core"
                for key in sorted({*arrays, *rest})
                if arrays[key].dtype != rest[key].dtype
                or arrays[key].tobytes() != rest[key].tobytes()
            ]
    for key, field in [("rows rows", "rows"), ("fixed label", "label"), ("fixed image", "image")]:
        numbers = arrays[f"{key.split()[0]} records"]
        if sorted(numbers) != sorted([*range(RECORDS)] * 2):
            problems.append(f"{key}: not each record comes once an epoch")
        if not np.array_equal(arrays[key], raw[field][numbers]):
            problems.append(f"{key}: a record has other values than its file")
    print("\n".join(problems) or f"right: {gl.__file__}, {core.how()}, NumPy {np.__version__}")
    return 1 if problems else 0


if __name__ == "__main__":
    if sys.argv[1] == SECOND_PROCESS:
        np.savez(Path(sys.argv[2]) / "numpy.npz", **read(Path(sys.argv[2])))
    else:
        sys.exit(main(sys.argv[1]))
