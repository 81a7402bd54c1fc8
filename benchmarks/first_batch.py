"""How long is the way to the first batch? `python -m benchmarks.first_batch [--package FOLDER] [--rounds 3]`.

    data       rows of one NPY file, as they are and as training images; JPEGs to random-resized-crop 224
    cache      empty: nothing was compiled before; filled: all was; read-only: nothing was, and no folder can be written
    seconds    from the first line of the process, before NumPy is imported, to the first batch
    ready      seconds until all kernels are compiled, while batches are taken all the time; to the process's end after
               a first batch is ``process``

Each run is a process of its own with a copy of the package, beside whose modules nothing lies. ``--package`` measures
another checkout: its folder that holds ``gpuload``. Results go to `results/first_batch.json` and `.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import data, machine
from benchmarks.plot import RESULTS

ROOT = Path(__file__).parents[1]
NUM_RECORDS, BATCH_SIZE, MOST_S = {"rows": 20_000, "training rows": 20_000, "JPEGs": 256}, 64, 120
CACHES = ("empty", "filled", "read-only")
NOWHERE = "/proc/none"  # no user can make it, root neither

CHILD = """
import sys, time
began = time.perf_counter()
import gpuload as gl
what, path, until_ready = sys.argv[1], sys.argv[2], float(sys.argv[3])
if what == "JPEGs":
    source = gl.images(path, labels=None)
    ops = [gl.ops.Decode(), gl.ops.RandomResizedCrop(224), gl.ops.RandomFlip()]
    ops.append(gl.ops.Normalize((123.7, 116.3, 103.5), (58.4, 57.1, 57.4)))
elif what == "training rows":
    source = gl.fixed(path, [("label", "u1"), ("image", "u1", (3, 32, 32))])
    ops = [gl.ops.Transpose("HWC", on="image"), gl.ops.RandomCrop(32, 32, pad=4, on="image")]
    ops += [gl.ops.RandomFlip(on="image"), gl.ops.Normalize(120.0, 60.0, on="image")]
else:
    source, ops = gl.npy(path), []
loader = gl.Loader(source, batch_size=64, shuffle=True, ops=ops, device="cpu", executor="array")
next(iter(loader))
print(time.perf_counter() - began)
while time.perf_counter() - began < until_ready:
    for batch in loader:
        if "compiled by" in loader.describe().split("kernels:")[1].splitlines()[0]:
            until_ready = 0
            break
print(time.perf_counter() - began, loader.stats().get("batches_uncompiled", 0))
"""


def main(arguments: list[str] | None = None) -> int:
    """Measure, write JSON and table, and print the table."""
    told = _parser().parse_args(arguments)
    told.data.mkdir(parents=True, exist_ok=True)
    paths = {
        "rows": data.npy_rows(told.data, NUM_RECORDS["rows"]),
        "training rows": data.fixed_images(told.data, NUM_RECORDS["training rows"]),
        "JPEGs": data.jpegs(told.data, NUM_RECORDS["JPEGs"]),
    }
    results: dict[str, Any] = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine.machine(told.data),
        "versions": machine.versions(told.package),
        "batch_size": BATCH_SIZE,
        "samples": [],
    }
    for _ in range(told.rounds):
        for what, path in paths.items():
            with tempfile.TemporaryDirectory() as folder:
                run = Run(Path(folder), told.package, what, path)
                for cache in CACHES:
                    results["samples"].append({"data": what, "cache": cache, **run.sample(cache)})
    results["machine"]["load_at_end"] = [round(load, 2) for load in os.getloadavg()]
    told.results.mkdir(parents=True, exist_ok=True)
    (told.results / "first_batch.json").write_text(json.dumps(results, indent=1) + "\n")
    text = table(results)
    (told.results / "first_batch.md").write_text(text)
    print(text)
    return 0


class Run:
    """Processes with a copy of the package and a cache folder of their own."""

    def __init__(self, folder: Path, package: Path, what: str, path: Path) -> None:
        self.folder, self.what, self.path = folder, what, path
        without = shutil.ignore_patterns("__pycache__")
        shutil.copytree(package / "gpuload", folder / "package" / "gpuload", ignore=without)
        (folder / "package" / "gpuload" / "kernels" / "__pycache__").write_text("a file, so that nothing is kept here")

    def sample(self, cache: str) -> dict[str, float]:
        """Return the seconds of one process; the cache is as the process before has left it."""
        if cache == "filled":
            self._run(self.folder / "cache", MOST_S)
        place = Path(NOWHERE) if cache == "read-only" else self.folder / "cache"
        began = time.perf_counter()
        (first_s,), _ = self._run(place, 0)
        process_s = time.perf_counter() - began
        ready = self._run(place, MOST_S)[1] if cache == "read-only" else (0.0, 0.0)
        more = {"ready_s": ready[0], "batches_uncompiled": ready[1]} if cache == "read-only" else {}
        return {"first_batch_s": first_s, "process_s": process_s, **more}

    def _run(self, cache: Path, until_ready_s: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
        kept = {name: value for name, value in os.environ.items() if name != "XDG_CACHE_HOME"}
        told = {"NUMBA_CACHE_DIR": str(cache), "HOME": NOWHERE, "PYTHONPATH": str(self.folder / "package")}
        command = [sys.executable, "-W", "ignore", "-c", CHILD, self.what, str(self.path), str(until_ready_s)]
        done = subprocess.run(
            command, env={**kept, **told}, cwd=self.folder, capture_output=True, text=True, check=True, timeout=600
        )
        first, second = (tuple(map(float, line.split())) for line in done.stdout.splitlines())
        return first, second


def table(results: dict[str, Any]) -> str:
    """Return the medians as a table, the lowest and the highest beside them."""
    rows = ["| data | cache | first batch, s | process, s | kernels ready, s |", "|---|---|---|---|---|"]
    for what in NUM_RECORDS:
        for cache in CACHES:
            samples = [one for one in results["samples"] if (one["data"], one["cache"]) == (what, cache)]
            cells = [_cell(samples, name) for name in ("first_batch_s", "process_s", "ready_s")]
            rows.append(f"| {what} | {cache} | {' | '.join(cells)} |")
    about = results["machine"]
    where = f"{about['cpu']}, {about['cores']} cores, load {about['load_at_start'][0]} to {about['load_at_end'][0]}"
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return "\n".join([f"{where}; {versions}; batches of {results['batch_size']}", "", *rows, ""])


def _cell(samples: list[dict[str, float]], name: str) -> str:
    numbers = [one[name] for one in samples if name in one]
    return f"{median(numbers):.2f} ({min(numbers):.2f} to {max(numbers):.2f})" if numbers else ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=Path, default=ROOT)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "bench-data")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
