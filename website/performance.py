"""The plots and tables of ``docs/performance.md``, from the tables in ``benchmarks/results``.

``python -m website.performance`` writes the plots into ``docs/assets/performance`` and the tables
into the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from website import svg

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "xeon"
PAGE = ROOT / "docs" / "performance.md"
PLOTS = ROOT / "docs" / "assets" / "performance"
WIDTH, NAME_WIDTH, BAR_WIDTH, LINE, TOP = 400, 152, 176, 26, 66  # pixels

NAMES = {
    "numpy": "NumPy by hand",
    "numpy_load": "np.load by hand",
    "threads": "thread pool by hand",
    "tfdata": "tf.data",
    "tfdata_memory": "tf.data, in memory",
    "tfdata_gather": "tf.data, in memory",
    "tfdata_slices": "tf.data, in memory",
    "tfdata_pyfunc": "tf.data, py_function",
    "tfdata_records": "tf.data, streaming",
    "torch": "torch",
    "grain": "Grain",
    "grain_16": "Grain, 16 threads",
    "dali": "DALI",
    "dali_antialias": "DALI, antialias",
    "gpuload": "gpuload",
    "gpuload_plain": "gpuload, plain",
    "gpuload_dali": "gpuload with DALI",
    "gpuload_dali_plain": "with DALI, plain",
    "torchvision": "torchvision in DataLoader",
    "torchvision_threads": "torchvision in threads",
    "albumentations": "Albumentations",
    "pillow": "Pillow",
}
VARIANTS = {
    "shuffled": "shuffled",
    "sequential": "in order",
    "shuffled-tf": "shuffled, as tf.Tensors",
    "sequential-tf": "in order, as tf.Tensors",
}
WORKS = {  # the table, and what it is of
    "npy_rows": "Rows of one NPY file",
    "npy_files": "20,000 NPY files",
    "fixed_images": "CIFAR-10 style records",
    "jpeg_training": "JPEGs to train on",
    "npy_rows.cold": "Rows, nothing in the page cache",
    "jpeg_training.cold": "JPEGs, nothing in the page cache",
}
PICTURES = [  # the table, its part, the name of the file
    ("npy_rows", "shuffled", "rows"),
    ("npy_rows", "sequential", "rows-in-order"),
    ("npy_files", "shuffled", "files"),
    ("fixed_images", "shuffled", "records"),
    ("jpeg_training", "shuffled", "jpeg"),
    ("jpeg_training.cold", "shuffled", "jpeg-cold"),
]
COLUMNS = {  # of the table of a training: the unit, and whether less is better
    "batch 1, s": ("s to the first batch of a process", True),
    "batch 100, s": ("s to the 100th batch of a process", True),
    "share of the rate in the first 2 s": ("of its rate in the first 2 s", False),
    "waits beside a sleeping step, ms": ("ms waiting a batch, beside a sleeping step", True),
    "waits beside a busy step, ms": ("ms waiting a batch, beside a busy step", True),
    "added MB": ("MB of memory", True),
}


@dataclass(frozen=True)
class Rate:
    """What a loader reached of what the machine can do at all: the median of the rounds, the
    lowest, the highest."""

    peer: str
    median: float
    lowest: float
    highest: float

    @property
    def is_limit(self) -> bool:
        """Whether it is the machine's limit, and no loader."""
        return self.peer.startswith("limit")

    @property
    def is_gpuload(self) -> bool:
        """Whether it is a form of gpuload."""
        return self.peer.startswith("gpuload")


def rates(table: str, variant: str) -> list[Rate]:
    """Return the rates of one part of a table of results, the best first."""
    part = _part((RESULTS / f"{table}.md").read_text(encoding="utf-8"), variant)
    rows = re.findall(
        r"^\| \*{0,2}(\w+)\*{0,2} \| ([\d.]+) \(([\d.]+) to ([\d.]+)\)", part, re.MULTILINE
    )
    return [Rate(peer, *map(float, numbers)) for peer, *numbers in rows]


def variants(table: str) -> list[str]:
    """Return the parts of a table of results."""
    return re.findall(
        r"^## (.+)$", (RESULTS / f"{table}.md").read_text(encoding="utf-8"), re.MULTILINE
    )


def plot(table: str, variant: str) -> str:
    """Return the picture of one part of a table: a bar for each loader, with the range of its
    rounds."""
    bars = [rate for rate in rates(table, variant) if not rate.is_limit]
    longest = max([1.0, *(rate.highest for rate in bars)])
    scale = BAR_WIDTH / longest
    title = f"{WORKS[table]}, {VARIANTS[variant]}" if "rows" in table else WORKS[table]
    bottom = TOP + len(bars) * LINE
    parts = [
        svg.text(12, 24, title, "strong"),
        svg.text(12, 44, "records per second, as a share of the machine's limit", "small quiet"),
        svg.path(f"M {NAME_WIDTH + scale:g} {TOP - 8} V {bottom}", "line"),
    ]
    for number, rate in enumerate(bars):
        y = TOP + number * LINE
        weight = "small strong" if rate.is_gpuload else "small"
        begin, end = NAME_WIDTH + rate.lowest * scale, NAME_WIDTH + rate.highest * scale
        parts += [
            svg.text(NAME_WIDTH - 8, y + 14, NAMES[rate.peer], weight, anchor="end"),
            svg.box(
                NAME_WIDTH,
                y + 2,
                rate.median * scale,
                LINE - 10,
                "a" if rate.is_gpuload else "rest",
                radius=2,
            ),
            svg.path(f"M {begin:g} {y + 10} H {end:g}", "frame"),
            svg.text(NAME_WIDTH + BAR_WIDTH + 12, y + 14, f"{rate.median:.2f}", "small"),
        ]
    return svg.picture(WIDTH, bottom + 10, parts, title=title)


def losses() -> Iterator[str]:
    """Return the rows of the table of what others do better, from all tables of results."""
    for table, work in WORKS.items():
        for variant in variants(table):
            loaders = [rate for rate in rates(table, variant) if not rate.is_limit]
            gpuload_rate = next(rate for rate in loaders if rate.peer == "gpuload")
            for rate in loaders:
                if rate.median > gpuload_rate.median and not rate.is_gpuload:
                    yield _row(
                        f"{work}, {VARIANTS[variant]}",
                        f"{gpuload_rate.median:.2f}",
                        rate.peer,
                        f"{rate.median:.2f}",
                        table,
                    )
    for work, rows in _training():
        for column, (unit, is_less_better) in COLUMNS.items():
            gpuload_rate = float(rows["gpuload"][column])
            peers = {
                peer: float(row[column])
                for peer, row in rows.items()
                if not peer.startswith("gpuload")
            }
            best = (min if is_less_better else max)(peers, key=peers.__getitem__)
            if (peers[best] < gpuload_rate) if is_less_better else (peers[best] > gpuload_rate):
                yield _row(
                    f"{work}: {unit}", f"{gpuload_rate:g}", best, f"{peers[best]:g}", "training"
                )
    for op, gpuload_rate, peer, peer_rate in augmentations():
        if peer_rate > gpuload_rate:
            yield _row(
                f"{op}: images/s", f"{gpuload_rate:,}", peer, f"{peer_rate:,}", "augment-core"
            )


def augmentations(library: str = "") -> Iterator[tuple[str, int, str, int]]:
    """Return each op that was measured: gpuload's images a second, the fastest peer and its own.

    Args:
        library: how the names of the peers begin.
    """
    text = (RESULTS / "augment-core.md").read_text(encoding="utf-8")
    for op in variants("augment-core"):
        rows = re.findall(
            r"^\| \*{0,2}(\w+)\*{0,2} \| [^|]+ \| ([\d,]+) \|", _part(text, op), re.MULTILINE
        )
        rate_of = {peer: int(rate.replace(",", "")) for peer, rate in rows}
        gpuload_rate = rate_of.pop("gpuload")
        best = max(
            (peer for peer in rate_of if peer.startswith(library)),
            key=rate_of.__getitem__,
            default=None,
        )
        if best is not None:
            yield op, gpuload_rate, best, rate_of[best]


def augmentation_rows() -> Iterator[str]:
    """Return the rows of the table of augmentations."""
    for op, gpuload_rate, peer, peer_rate in augmentations("torchvision"):
        yield f"| {op} | {gpuload_rate:,} | {peer_rate:,} ({NAMES[peer]}) | {gpuload_rate / peer_rate:.2g} |"


def page(text: str) -> str:
    """Return the text of the page with its tables written anew."""
    tables = {
        "losses": "| work | gpuload | other | |\n|---|---:|---:|---|\n" + "\n".join(losses()),
        "augmentation": "| ops | gpuload | torchvision | times |\n|---|---:|---:|---:|\n"
        + "\n".join(augmentation_rows()),
    }
    for name, table in tables.items():
        begin, end = f"<!-- table: {name} -->", "<!-- end -->"
        start = text.index(begin) + len(begin)
        text = f"{text[:start]}\n\n{table}\n\n{text[text.index(end, start) :]}"
    return text


def _part(text: str, variant: str) -> str:
    """Return the part of a page of results under a heading."""
    return text.partition(f"\n## {variant}\n")[2].partition("\n## ")[0]


def _row(work: str, gpuload_rate: str, peer: str, peer_rate: str, table: str) -> str:
    link = f"[table](../benchmarks/results/xeon/{table}.md)"
    return f"| {work} | {gpuload_rate} | **{peer_rate}** {NAMES[peer]} | {link} |"


def _training() -> Iterator[tuple[str, dict[str, dict[str, str]]]]:
    """Return the tables of what a training sees: the work, and the columns of each loader."""
    text = (RESULTS / "training.md").read_text(encoding="utf-8")
    works = [
        ("Rows", "Rows of one"),
        ("CIFAR-10 style records", "60,000 CIFAR-10"),
        ("JPEGs", "2,000 JPEGs"),
    ]
    for name, beginning in works:
        part = text[text.index(f"\n{beginning}") :].strip().split("\n\n")[1]
        head, _, *lines = [
            [cell.strip(" *") for cell in line.strip("|").split("|")] for line in part.splitlines()
        ]
        yield name, {line[0]: dict(zip(head[1:], line[1:], strict=True)) for line in lines}


if __name__ == "__main__":
    PLOTS.mkdir(exist_ok=True)
    for table, variant, name in PICTURES:
        (PLOTS / f"{name}.svg").write_text(plot(table, variant), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
