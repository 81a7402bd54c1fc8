"""Make the data of `make gpu-test`, once, by all cores:
`python -m benchmarks.gpu_data --result FILE`.

It lies in one folder ($GPULOAD_BENCH_DATA, else build/bench-data), where every part finds it: 2,000
JPEGs of about 500 x 375 and 200,000 rows and records of CIFAR-10's format. A part that needs what
is not there makes it by itself.

The JPEGs are pieces of scikit-learn's photographs. Where it is not installed, and in short form,
they are smooth shapes with some noise, which only need Pillow; the page names that.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

from benchmarks import data, gpu, gpu_jpeg, gpu_parity, gpu_rows
from benchmarks.machine import cores
from benchmarks.measure import Settings
from benchmarks.question import missing

PHOTOGRAPHS, SHAPES = "pieces of photographs", "smooth shapes"


def folder() -> Path:
    """Return the folder of all data."""
    return Settings().data


def kind_of_jpegs(is_short: bool) -> str:
    """Return what the JPEGs show."""
    return SHAPES if is_short or missing(("sklearn",)) else PHOTOGRAPHS


def jpegs(is_short: bool) -> Path:
    """Return the folder of JPEGs, made if it is not there."""
    num_records = gpu_jpeg.QUESTION.num_records[is_short]
    if kind_of_jpegs(is_short) == PHOTOGRAPHS:
        return data.jpegs(folder(), num_records)
    return data.once(
        folder() / f"shapes-{num_records}", lambda path: _write_shapes(path, num_records)
    )


def _write_shapes(path: Path, num_records: int) -> None:
    path.mkdir()

    def write(number: int) -> None:
        # Sizes within 15 % of 500 x 375.
        height, width = 319 + 37 * number % 113, 425 + 53 * number % 151
        gpu_parity.jpeg(number, height, width).tofile(path / f"{number:06d}.jpg")

    with ThreadPoolExecutor(cores()) as pool:
        list(pool.map(write, range(num_records)))


def main(arguments: list[str] | None = None) -> int:
    """Make what is missing, and write a row for each kind of data."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_data", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--result", type=Path, help="the rows, JSON")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args(arguments)
    rows, problems = [], []
    start = perf_counter()
    num_jpegs, num_rows = (
        question.num_records[options.smoke] for question in (gpu_jpeg.QUESTION, gpu_rows.QUESTION)
    )
    if absent := missing(("PIL",)):
        problems.append(f"no JPEGs: {', '.join(absent)} is not installed, which they are made with")
    else:
        jpegs(options.smoke)
        name = f"data: {num_jpegs:,} JPEGs of about 500 x 375, {kind_of_jpegs(options.smoke)}"
        rows.append([name, f"there after {perf_counter() - start:.1f} s"])
    gpu_rows.QUESTION.prepare(folder(), num_rows)
    rows.append(
        [
            f"data: {num_rows:,} rows and CIFAR-10 records",
            f"there after {perf_counter() - start:.1f} s",
        ]
    )
    if options.result:
        gpu.write_rows(options.result, rows, problems)
    print(*(f"{name}: {value}" for name, value in rows), *problems, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
