"""What does a bridge add to a batch? `python -m benchmarks.bridges [--rounds 40] [--only
torch.tensors]`.

    data       rows of one NPY file in batches of 256, which is the shortest step that a loader has;
               training images, cropped, flipped and normalised, in batches of 128, with their
               labels; JPEGs to random-resized-crop 224, in batches of 64
    bridge     what hands the batches over; ``torch.dataset`` through a DataLoader
    alone      microseconds a batch of the loader's own NumPy arrays
    ratio      of the same loader through the bridge, to that
    added      microseconds of processor time that the thread of the loop spends more on a batch
               through the bridge, which differs less from run to run
    own        what the framework's own call takes of that, for the arrays of a batch

Each (data, bridge) runs in a process of its own, in which epochs alone and through the bridge take
turns; a ratio is of two neighbours. The consumer drops each batch. Results go to
`results/bridges.json` and `.md`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import gpuload as gl
from benchmarks import data, machine
from benchmarks.folders import RESULTS

ROOT = Path(__file__).parents[1]
NUM_RECORDS = {"rows": 200_000, "training images": 60_000, "JPEGs": 512}
WARM_UP = 2  # rounds that do not count
ALLOWED = 1.05  # what a bridge that shares memory may cost


def main(arguments: list[str] | None = None) -> int:
    """Measure, write JSON and table, and print the table."""
    options = _parser().parse_args(arguments)
    if options.child:
        print(json.dumps(sample(*options.child, options.data, options.rounds, options.records)))
        return 0
    options.data.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine.machine(options.data),
        "versions": machine.versions(ROOT),
        "rounds": options.rounds,
        "samples": [],
    }
    for kind in NUM_RECORDS:
        for bridge in options.only or BRIDGES:
            results["samples"].append(
                {"data": kind, "bridge": bridge, **_measure(kind, bridge, options)}
            )
    results["machine"]["load_at_end"] = [round(load, 2) for load in os.getloadavg()]
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "bridges.json").write_text(
        json.dumps(results, indent=1) + "\n", encoding="utf-8"
    )
    text = table(results)
    (options.results / "bridges.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


def _measure(kind: str, bridge: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the times of a bridge, measured in a new process; or why there are none."""
    package = bridge.partition(".")[0]
    if not find_spec(package):
        return {"absent": f"{package} is not installed"}
    command = [sys.executable, "-W", "ignore", "-m", __spec__.name, "--child", kind, bridge]
    command += [
        "--rounds",
        str(options.rounds),
        "--data",
        str(options.data),
        "--records",
        str(options.records),
    ]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    process = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    figures: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return figures


def sample(kind: str, bridge: str, folder: Path, rounds: int, most_records: int) -> dict[str, Any]:
    """Return microseconds a batch of the loader alone and through a bridge, one of each for a
    round."""
    loader = _loader(kind, folder, min(NUM_RECORDS[kind], most_records))
    through = BRIDGES[bridge](loader)
    times: dict[str, list[float]] = {
        "alone": [],
        "through": [],
        "alone_thread": [],
        "through_thread": [],
    }
    lanes: list[tuple[str, Iterable[Any]]] = [("alone", loader), ("through", through)]
    for number in range(WARM_UP + rounds):
        for name, batches in lanes if number % 2 else lanes[::-1]:
            spent, spent_thread = _seconds(batches)
            if number >= WARM_UP:
                times[name].append(round(spent / len(loader) * 1e6, 3))
                times[f"{name}_thread"].append(round(spent_thread / len(loader) * 1e6, 3))
    if bridge.endswith(".tensors") and loader.stats()["tensors_copied"]:
        raise RuntimeError(
            f"{bridge} copied {loader.stats()['tensors_copied']:.0f} tensors of {kind}"
        )
    arrays, take = list(loader.batch_at(0).values()), _own_call(bridge.partition(".")[0])
    take_us = (
        min(timeit.repeat(lambda: [take(array) for array in arrays], number=200, repeat=9))
        / 200
        * 1e6
    )
    return {**times, "own": round(take_us, 3)}


def _own_call(framework: str) -> Callable[[Any], Any]:
    """Return what a framework itself offers to take an array by DLPack."""
    module: Any = importlib.import_module(framework)
    if framework == "tensorflow":
        return lambda array: module.experimental.dlpack.from_dlpack(array.__dlpack__())
    take: Callable[[Any], Any] = (
        module.dlpack.from_dlpack if framework == "jax" else module.from_dlpack
    )
    return take


def _seconds(batches: Iterable[Any]) -> tuple[float, float]:
    """Return the seconds of an epoch, and those of this thread's processor time."""
    start_s, thread = time.perf_counter(), time.thread_time()
    for _ in batches:
        pass
    return time.perf_counter() - start_s, time.thread_time() - thread


def _loader(kind: str, folder: Path, num_records: int) -> gl.Loader:
    if kind == "JPEGs":
        crop = [
            gl.ops.Decode(),
            gl.ops.RandomResizedCrop(224, 224),
            gl.ops.RandomFlip(),
            gl.ops.Normalize(120, 60),
        ]
        files = gl.images(data.jpegs(folder, num_records), labels=None)
        return gl.Loader(
            files, batch_size=64, shuffle=True, ops=crop, device="cpu", executor="array"
        )
    if kind == "rows":
        return gl.Loader(
            gl.npy(data.npy_rows(folder, num_records)), batch_size=256, shuffle=True, device="cpu"
        )
    source = gl.fixed(
        data.fixed_images(folder, num_records), [("label", "u1"), ("image", "u1", (3, 32, 32))]
    )
    ops = [
        gl.ops.Transpose("HWC"),
        gl.ops.RandomCrop(32, 32, pad=4),
        gl.ops.RandomFlip(),
        gl.ops.Normalize(120, 60),
    ]
    output = ("image", "label")
    return gl.Loader(
        source, batch_size=128, shuffle=True, ops=ops, output=output, device="cpu", executor="array"
    )


def _torch_tensors(loader: gl.Loader) -> Iterable[Any]:
    from gpuload.bridges import torch

    return torch.tensors(loader)


def _torch_dataset(loader: gl.Loader) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    from gpuload.bridges import torch

    batches: Iterable[Any] = DataLoader(torch.dataset(loader), batch_size=None)
    return batches


def _tensorflow_tensors(loader: gl.Loader) -> Iterable[Any]:
    from gpuload.bridges import tensorflow

    return tensorflow.tensors(loader)


def _jax_tensors(loader: gl.Loader) -> Iterable[Any]:
    from gpuload.bridges import jax

    return jax.tensors(loader)


BRIDGES: dict[str, Callable[[gl.Loader], Iterable[Any]]] = {
    "torch.tensors": _torch_tensors,
    "torch.dataset": _torch_dataset,
    "tensorflow.tensors": _tensorflow_tensors,
    "jax.tensors": _jax_tensors,
}


def ratios(sample: dict[str, Any]) -> list[float]:
    """Return how much longer a batch takes through the bridge, for each round."""
    return [
        through / alone_s
        for alone_s, through in zip(sample["alone"], sample["through"], strict=True)
    ]


def table(results: dict[str, Any]) -> str:
    """Return the results as Markdown: medians, the lowest and the highest beside them."""
    at = results["machine"]
    lines = [
        "# What does a bridge add to a batch?",
        "",
        f"{results['rounds']} rounds, in each of which an epoch alone and one through the bridge are neighbours. The",
        "median, with the quarter below and above it; microseconds are of one batch. `added` is processor time of the",
        "thread of the loop; `own` is what the framework's own `from_dlpack` takes of that. A bridge that shares",
        f"memory may add {ALLOWED - 1:.0%}.",
        "",
        f"- {at['cores']} cores of {at['cpu']}, load {at['load_at_start'][0]} to {at['load_at_end'][0]}, "
        f"{results['date'][:10]}",
        "- "
        + ", ".join(f"{package} {version}" for package, version in results["versions"].items()),
        "- made by `python -m benchmarks.bridges`; all samples are in `bridges.json`",
        "",
        "| data | bridge | ratio | alone, µs | through, µs | added, µs | own, µs |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for sample in results["samples"]:
        if "absent" in sample:
            lines.append(f"| {sample['data']} | {sample['bridge']} | {sample['absent']} | | | | |")
            continue
        added = median(sample["through_thread"]) - median(sample["alone_thread"])
        lines.append(
            f"| {sample['data']} | {sample['bridge']} | {_spread(ratios(sample), 3)} | {_spread(sample['alone'], 0)} "
            f"| {_spread(sample['through'], 0)} | {added:.1f} | {sample['own']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def _spread(numbers: list[float], digits: int) -> str:
    sorted_numbers = sorted(numbers)
    low, high = (
        sorted_numbers[len(sorted_numbers) // 4],
        sorted_numbers[-1 - len(sorted_numbers) // 4],
    )
    return f"{median(sorted_numbers):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bridges", description="What does a bridge add?"
    )
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", nargs="+", choices=BRIDGES, help="these bridges only")
    parser.add_argument(
        "--records", type=int, default=max(NUM_RECORDS.values()), help="at most so many records"
    )
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "bench-data")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
