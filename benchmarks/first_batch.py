"""How long is the way to the first batches? `python -m benchmarks.first_batch [--package FOLDER] [--rounds 3]`.

    data       rows of one NPY file, as they are and as training images; JPEGs to random-resized-crop 224
    seconds    from the first line of the process, before NumPy is imported, to the first batch and to the hundredth
    process    seconds of a whole process that takes the first batch and ends

Each run is a process of its own. ``--package`` measures another checkout: its folder that holds ``gpuload``. Results go
to `results/first_batch.json` and `.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import data, machine
from benchmarks.plot import RESULTS

ROOT = Path(__file__).parents[1]
NUM_RECORDS, BATCH_SIZE, NUM_BATCHES = {"rows": 20_000, "training rows": 20_000, "JPEGs": 256}, 64, 100

CHILD = """
import sys, time
began = time.perf_counter()
import gpuload as gl
what, path, num_batches = sys.argv[1], sys.argv[2], int(sys.argv[3])
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
taken = 0
while taken < num_batches:
    for batch in loader:
        taken += 1
        if taken in (1, num_batches):
            print(time.perf_counter() - began)
        if taken == num_batches:
            break
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
            results["samples"].append({"data": what, **sample(told.package, what, path)})
    results["machine"]["load_at_end"] = [round(load, 2) for load in os.getloadavg()]
    told.results.mkdir(parents=True, exist_ok=True)
    (told.results / "first_batch.json").write_text(json.dumps(results, indent=1) + "\n")
    text = table(results)
    (told.results / "first_batch.md").write_text(text)
    print(text)
    return 0


def sample(package: Path, what: str, path: Path) -> dict[str, float]:
    """Return the seconds to the first and the last batch of a process, and those of one that ends after the first."""
    first_s, last_s = _seconds(package, what, path, NUM_BATCHES)
    began = time.perf_counter()
    _seconds(package, what, path, 1)
    return {"first_batch_s": first_s, "last_batch_s": last_s, "process_s": time.perf_counter() - began}


def _seconds(package: Path, what: str, path: Path, num_batches: int) -> tuple[float, ...]:
    command = [sys.executable, "-W", "ignore", "-c", CHILD, what, str(path), str(num_batches)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(package)}, capture_output=True, text=True, check=True, timeout=600
    )
    return tuple(map(float, done.stdout.split()))


def table(results: dict[str, Any]) -> str:
    """Return the medians as a table, the lowest and the highest beside them."""
    rows = [f"| data | first batch, s | batch {NUM_BATCHES}, s | process, s |", "|---|---|---|---|"]
    for what in NUM_RECORDS:
        samples = [one for one in results["samples"] if one["data"] == what]
        cells = [_cell(samples, name) for name in ("first_batch_s", "last_batch_s", "process_s")]
        rows.append(f"| {what} | {' | '.join(cells)} |")
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
