"""Does anything stay behind? `python -m benchmarks.leaks [--times 1000] [--only rows images]`.

    lane       what a batch goes through: an executor, and a bridge
    deed       what is done a thousand times: a loader is made, used and dropped; an epoch; a batch
               is kept for a while
    look       memory, threads, descriptors and maps of the process, after a collection, twenty
               times on the way

Each (lane, deed) runs in a process of its own, which did the deed fifty times before. Results go to
`results/leaks.json`, with a table and a plot. The exit status is 1 if something grows.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import gpuload as gl
from benchmarks import machine
from benchmarks.folders import RESULTS

Look = dict[str, float]
Passes = Callable[[gl.Loader], Iterable[Any]]

NUM_LOOKS, WARM_UP, NUM_BATCHES = 20, 50, 25
ENDING_S = 0.05  # threads that were told to end need a moment
DEEDS = {
    "loaders": "a loader is made, one epoch is begun and left in the middle, and it is dropped",
    "epochs": "an epoch of one loader",
    "kept batches": f"a batch that is kept until there are {NUM_BATCHES}, which are then dropped",
}
NEEDS = {
    "dali": "nvidia.dali", "csv": "pyarrow", "tf.tensors": "tensorflow",
    "tf.dataset": "tensorflow", "tf.plugin": "nvidia.dali_tf_plugin", "torch": "torch",
}  # fmt: skip
ROOT = Path(__file__).parents[1]
# What may differ between the first and the last quarter: memory by what allocators keep at random,
# maps by the heaps that glibc makes for threads. Of a thousand deeds each may leave 8 kB.
MAY_GROW = {"memory MB": 8.0, "threads": 1, "descriptors": 0, "maps": 12}


def main(arguments: list[str] | None = None) -> int:
    """Measure, and write JSON, table and plot."""
    options = _parser().parse_args(arguments)
    if options.child:
        print(json.dumps(watch(*options.child, options.times, Path(options.data))))
        return 0
    options.results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data:
        results = {
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "machine": machine.machine(Path(data)),
            "versions": machine.versions(ROOT),
            "times": options.times,
            "lanes": {lane: _measure(lane, options.times, data) for lane in options.only or LANES},
        }
    path = options.results / "leaks.json"
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    write(path)
    grown = [line for lane, deeds in results["lanes"].items() for line in _grown(lane, deeds)]
    print("\n".join([table(results), *grown]))
    return 1 if grown else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.leaks", description="Does anything stay behind?"
    )
    parser.add_argument("--times", type=int, default=1000, help="how often each deed is done")
    parser.add_argument("--only", nargs="+", choices=LANES, help="these lanes only")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--data", help=argparse.SUPPRESS)
    return parser


def _measure(lane: str, times: int, data: str) -> dict[str, Any]:
    """Return the looks of each deed, each done in a new process; or why there are none."""
    if lane in NEEDS and not find_spec(NEEDS[lane].partition(".")[0]):
        return {"absent": f"{NEEDS[lane]} is not installed"}
    looks = {}
    for deed in DEEDS:
        command = [
            sys.executable,
            "-m",
            __spec__.name,
            "--child",
            lane,
            deed,
            "--times",
            str(times),
            "--data",
            data,
        ]
        process = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        looks[deed] = json.loads(process.stdout.splitlines()[-1])
    return looks


def watch(lane: str, deed: str, times: int, data: Path) -> list[Look]:
    """Do a deed many times and return what was seen on the way."""
    make, passes = LANES[lane]
    make_deed = {"loaders": _loaders, "epochs": _epochs, "kept batches": _keep_batches}[deed](
        lambda: make(data), passes
    )
    for _ in range(min(WARM_UP, times)):
        next(make_deed)
    looks = []
    for number in range(times):
        next(make_deed)
        if (number + 1) % max(1, times // NUM_LOOKS) == 0:
            looks.append(look())
    return looks


def look() -> Look:
    """Return what the process holds."""
    gc.collect()
    time.sleep(ENDING_S)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())

    def kib(kind: str) -> int:
        return int(status[kind].split()[0])

    return {
        "memory MB": (kib("RssAnon") + kib("VmSwap")) * 1024 / 1e6,
        "threads": int(status["Threads"]),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "maps": len(Path("/proc/self/maps").read_text().splitlines()),
    }


def _loaders(make: Callable[[], gl.Loader], passes: Passes) -> Iterator[None]:
    while True:
        loader = make()
        for number, _ in enumerate(passes(loader)):
            if number == 1:
                break
        loader.close()
        del loader
        yield


def _epochs(make: Callable[[], gl.Loader], passes: Passes) -> Iterator[None]:
    with make() as loader:
        while True:
            for _ in passes(loader):
                pass
            yield


def _keep_batches(make: Callable[[], gl.Loader], passes: Passes) -> Iterator[None]:
    batches = []
    with make() as loader:
        while True:
            for batch in passes(loader):
                batches.append(batch)
                if len(batches) == NUM_BATCHES:
                    batches.clear()
                    del batch
                    yield from [None] * NUM_BATCHES


def _rows(folder: Path) -> gl.Loader:
    path = folder / "rows.npy"
    if not path.exists():
        np.save(path, np.random.default_rng(0).standard_normal((1000, 256), dtype=np.float32))
    return gl.Loader(gl.npy(path), batch_size=100, shuffle=True, device="cpu")


def _images(folder: Path, executor: str = "array") -> gl.Loader:
    import PIL.Image

    if not (folder / "images").exists():
        (folder / "images").mkdir()
        for number, pixels in enumerate(
            np.random.default_rng(0).integers(0, 255, (40, 40, 56, 3), np.uint8)
        ):
            PIL.Image.fromarray(pixels).save(folder / "images" / f"{number:02}.jpg")
    ops = [
        gl.ops.Decode(),
        gl.ops.RandomResizedCrop(32, 32),
        gl.ops.RandomFlip(),
        gl.ops.Normalize(128.0, 64.0),
    ]
    source = gl.images(folder / "images", labels=None)
    return gl.Loader(source, batch_size=8, shuffle=True, ops=ops, device="cpu", executor=executor)


def _dali(folder: Path) -> gl.Loader:
    return _images(folder, "dali")


def _tfrecord(folder: Path) -> gl.Loader:
    path = folder / "rows.tfrecord"
    if not path.exists():
        rng = np.random.default_rng(0)
        source = gl.arrays(
            x=rng.standard_normal((1000, 64), dtype=np.float32), label=rng.integers(0, 10, 1000)
        )
        gl.convert(source, path)
    return gl.Loader(gl.tfrecord(path), batch_size=100, shuffle=True, device="cpu")


def _csv(folder: Path) -> gl.Loader:
    path = folder / "rows.csv"
    if not path.exists():
        lines = [f"{number},{number / 8},n{number}" for number in range(1000)]
        lines[::100] = ["this line is wrong"] * 10
        path.write_text("\n".join(["number,real,text", *lines]), encoding="utf-8")
    logging.getLogger("gpuload").setLevel(logging.ERROR)  # it warns of the wrong lines each time
    source = gl.csv(path, {"number": "i8", "real": "f4", "text": bytes}, bad_lines="keep")
    return gl.Loader(
        source, batch_size=100, shuffle=True, device="cpu", on_error="replace", max_bad=0.1
    )


def _tensors(loader: gl.Loader) -> Iterable[Any]:
    from gpuload.bridges import tensorflow

    return tensorflow.tensors(loader)


def _dataset(loader: gl.Loader) -> Iterable[Any]:
    from gpuload.bridges import tensorflow

    dataset: Iterable[Any] = tensorflow.dataset(loader)
    return dataset


def _plugin(loader: gl.Loader) -> Iterable[Any]:
    from gpuload.bridges import tensorflow

    dataset: Iterable[Any] = tensorflow.dataset(loader, via="plugin")
    return dataset


def _torch(loader: gl.Loader) -> Iterable[Any]:
    from gpuload.bridges import torch

    return torch.tensors(loader)


LANES: dict[str, tuple[Callable[[Path], gl.Loader], Passes]] = {
    "rows": (_rows, iter),
    "images": (_images, iter),
    "dali": (_dali, iter),
    "tfrecord": (_tfrecord, iter),
    "csv": (_csv, iter),
    "tf.tensors": (_rows, _tensors),
    "tf.dataset": (_rows, _dataset),
    "tf.plugin": (_rows, _plugin),
    "torch": (_rows, _torch),
}


def growth(looks: list[Look]) -> Look:
    """Return how much more the median of the last quarter is than that of the first."""
    count = max(1, len(looks) // 4)
    return {
        name: round(
            float(
                np.median([look[name] for look in looks[-count:]])
                - np.median([look[name] for look in looks[:count]])
            ),
            2,
        )
        for name in MAY_GROW
    }


def _grown(lane: str, deeds: dict[str, Any]) -> list[str]:
    """Return a line for each thing that grows."""
    if "absent" in deeds:
        return []
    return [
        f"{lane}, {deed}: {name} grows by {by} in {len(looks)} looks"
        for deed, looks in deeds.items()
        for name, by in growth(looks).items()
        if by > MAY_GROW[name]
    ]


def table(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    at, versions = results["machine"], results["versions"]
    lines = [
        "# Does anything stay behind?",
        "",
        f"Each deed is done {results['times']:,} times, after {WARM_UP} that are not counted. The numbers are those at",
        "the end, and in brackets how much more that is than in the beginning (medians of a quarter of the looks).",
        "",
        *(f"- {deed}: {meaning}" for deed, meaning in DEEDS.items()),
        f"- {at['cores']} cores of {at['cpu']}, {at['memory_gib']} GiB, Linux {at['kernel']}, {results['date'][:10]}",
        "- " + ", ".join(f"{package} {version}" for package, version in versions.items()),
        f"- made by `python -m benchmarks.leaks --times {results['times']}`; all looks are in `leaks.json`",
        "",
        "| lane | deed | " + " | ".join(MAY_GROW) + " |",
        "|---|---|" + "---:|" * len(MAY_GROW),
    ]
    for lane, deeds in results["lanes"].items():
        if "absent" in deeds:
            lines.append(f"| {lane} | {deeds['absent']} |" + " |" * len(MAY_GROW))
            continue
        for deed, looks in deeds.items():
            grown, last = growth(looks), looks[-1]
            cells = [
                f"{last[name]:.{1 if 'MB' in name else 0}f} ({grown[name]:+g})" for name in MAY_GROW
            ]
            lines.append(f"| {lane} | {deed} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def write(path: Path) -> None:
    """Write the table, and the plot where Matplotlib is installed, beside the JSON."""
    results = json.loads(path.read_text(encoding="utf-8"))
    path.with_suffix(".md").write_text(table(results), encoding="utf-8")
    if find_spec("matplotlib"):
        draw(results, path.with_suffix(".png"))


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw what was seen on the way: a row of panels a deed, a panel for each thing that could
    grow."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(DEEDS), len(MAY_GROW), sharex=True)
    for row, deed in zip(panels, DEEDS, strict=True):
        for panel, name in zip(row, MAY_GROW, strict=True):
            for lane, deeds in results["lanes"].items():
                if "absent" not in deeds:
                    looks = deeds[deed]
                    places = [
                        (number + 1) * results["times"] / len(looks) for number in range(len(looks))
                    ]
                    panel.plot(places, [look[name] for look in looks], label=lane, linewidth=1.4)
            panel.set_ylim(bottom=0)
            panel.set_title(f"{deed}: {name}", fontsize=9, loc="left")
            panel.spines[["top", "right"]].set_visible(False)
            panel.tick_params(labelsize=8)
    panels[0][0].legend(fontsize=8, frameon=False)
    figure.suptitle(
        f"{results['times']:,} times each: nothing stays behind where a line is flat", fontsize=11
    )
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
