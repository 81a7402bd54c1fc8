"""Tables and plots, from the JSON of a run and from nothing else:
`python -m benchmarks.plot [results/*.json]`.

A ratio is taken within a round and a variant; what is shown is the median of the rounds, with the
lowest and the highest. Where a workload has several limits, the one with the fastest round is the
limit.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.folders import RESULTS

COLOURS = {"ours": "#d1495b", "floor": "#8d99ae", "peer": "#30638e"}
STATES = {
    "warm": "warm page cache",
    "cold": "cold page cache (records/s from building the loader on)",
    "large": "larger than memory (records/s from building the loader on)",
}
MEANINGS = {"ours": "gpuload", "floor": "hand-written floor", "peer": "peers"}


@dataclass(frozen=True)
class Row:
    """What the table says of one peer in one variant."""

    peer: str
    role: str
    about: str
    why_not: str
    place: int = 0
    ratios: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()
    first_ms: float = 0.0
    cold_first_ms: float = 0.0
    imports_mb: float = 0.0
    added_mb: float = 0.0

    @property
    def ratio(self) -> float:
        """Times the limit: the median of the rounds."""
        return median(self.ratios) if self.ratios else 0.0


def variants(results: dict[str, Any]) -> dict[str, list[Row]]:
    """Return the rows of each variant, the fastest first, those without a number last."""
    names = dict.fromkeys(entry["variant"] for entry in results["entries"])
    return {
        name: _rows([entry for entry in results["entries"] if entry["variant"] == name])
        for name in names
    }


def _rows(entries: list[dict[str, Any]]) -> list[Row]:
    limits = [entry for entry in entries if entry["role"] == "limit" and _rates(entry)]
    limit = _rates(max(limits, key=lambda entry: max(_rates(entry).values()))) if limits else {}
    rows = (_row(entry, limit, place) for place, entry in enumerate(entries))
    return sorted(rows, key=lambda row: -row.ratio)


def _rates(entry: dict[str, Any]) -> dict[int, float]:
    return {
        sample["round"]: sample["records_per_s"]
        for sample in entry["samples"]
        if "failed" not in sample
    }


def _row(entry: dict[str, Any], limit: dict[int, float], place: int) -> Row:
    rates = _rates(entry)
    good = [sample for sample in entry["samples"] if "failed" not in sample]
    if not good:
        failures = [sample["failed"] for sample in entry["samples"]]
        missing = ", ".join(entry["absent"])
        why_not = (
            f"absent: {missing} not installed"
            if missing
            else f"failed: {(failures or ['not run'])[0]}"
        )
        return Row(entry["peer"], entry["role"], entry["about"], why_not, place)
    return Row(
        peer=entry["peer"],
        role=entry["role"],
        about=entry["about"],
        why_not=""
        if len(good) == len(entry["samples"])
        else f"{len(entry['samples']) - len(good)} rounds failed",
        place=place,
        ratios=tuple(rate / limit[number] for number, rate in rates.items() if number in limit),
        rates=tuple(rates.values()),
        first_ms=median(sample["first_ms"] for sample in good),
        cold_first_ms=median(sample["cold_first_ms"] for sample in good),
        imports_mb=median(sample["base_mb"] for sample in good),
        added_mb=median(sample["added_mb"] for sample in good),
    )


def table(results: dict[str, Any], name: str) -> str:
    """Return the results as Markdown."""
    lines = [f"# {results['workload']}", "", results["asks"], "", *_head_lines(results, name)]
    for variant, rows in variants(results).items():
        lines += ["", f"## {variant}", "", *_table(rows)]
    return "\n".join(lines) + "\n"


def _head_lines(results: dict[str, Any], name: str) -> list[str]:
    settings, machine = results["settings"], results["machine"]
    option = "" if settings["cache"] == "warm" else f" --{settings['cache']}"
    return [
        f"- limit: {results['limit']}",
        f"- {settings['records']:,} records, batches of {settings['batch_size']}, {STATES[settings['cache']]}, "
        f"{settings['rounds']} rounds with the peers interleaved, each (peer, round) in its own process",
        f"- {machine['cores']} cores of {machine['cpu']}, {machine['memory_gib']} GiB, Linux {machine['kernel']}, "
        f"read-ahead {machine.get('read_ahead_kib') or 'unknown'} KiB, {results['date'][:10]}",
        "- "
        + ", ".join(f"{package} {version}" for package, version in results["versions"].items()),
        f"- made by `python -m benchmarks.run --only {results['workload']}{option} --rounds {settings['rounds']}`; "
        f"all samples are in `{name}.json`",
        "- ratios are medians (lowest to highest) of ratios taken within a round; first batch: of a warm loader, "
        "from making an iterator; cold: of a new loader, from building it; imports: anonymous memory once the "
        "packages are imported; added: what comes on top",
    ]


def _table(rows: list[Row]) -> list[str]:
    own_row = min(
        (row for row in rows if row.role == "ours"), key=lambda row: row.place, default=None
    )  # its defaults
    floor = next((row for row in rows if row.role == "floor" and row.rates), None)
    titles = ["loader", "x limit", "records/s", "x floor", "ours is", "first batch ms", "cold ms"]
    titles += ["imports MB", "added MB", "form"]
    lines = ["| " + " | ".join(titles) + " |", "|---|" + "---:|" * (len(titles) - 2) + "---|"]
    for row in rows:
        if not row.rates:
            lines.append(f"| {row.peer} |" + " |" * (len(titles) - 2) + f" {row.why_not} |")
            continue
        spread = (
            f"{row.ratio:.3f} ({min(row.ratios):.3f} to {max(row.ratios):.3f})"
            if row.ratios
            else "-"
        )
        cells = [
            f"**{row.peer}**" if row.role == "ours" else row.peer,
            spread,
            f"{_digits(median(row.rates)):,}",
        ]
        cells += [_times(row, floor), _times(own_row, row)]
        timings = [
            f"{row.first_ms:.1f}",
            f"{row.cold_first_ms:.0f}",
            _mb(row.imports_mb),
            _mb(row.added_mb),
        ]
        cells += ["-"] * 4 if row.role == "limit" else timings
        lines.append(
            "| " + " | ".join([*cells, "; ".join(filter(None, (row.about, row.why_not)))]) + " |"
        )
    return lines


def _digits(number: float) -> int:
    """Round to four digits: more are noise."""
    return int(float(f"{number:.4g}"))


def _mb(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}"


def _times(upper: Row | None, lower: Row | None) -> str:
    """Return 'n x', the median of the ratios to the limit divided; '-' where there is nothing to
    divide."""
    if upper is None or lower is None or upper is lower or not upper.ratio or not lower.ratio:
        return "-"
    return f"{upper.ratio / lower.ratio:.2f} x"


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw the ratios to the limit as horizontal bars, a panel for each variant."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    peers = {
        name: [row for row in rows if row.role != "limit"]
        for name, rows in variants(results).items()
    }
    heights = [0.6 + 0.34 * len(rows) for rows in peers.values()]
    figure = Figure(figsize=(8.6, 1.15 + sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(peers), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    for panel, (variant, rows) in zip(panels, peers.items(), strict=True):
        _bars(panel, rows)
        panel.set_title(variant, loc="left", fontsize=10, fontweight="bold")
    panels[-1].set_xlim(
        0,
        1.35
        * max([ratio for rows in peers.values() for row in rows for ratio in row.ratios] or [1]),
    )
    panels[-1].set_xlabel(f"x limit: {results['limit']}", fontsize=9)
    handles = [Patch(color=COLOURS[role], label=meaning) for role, meaning in MEANINGS.items()]
    panels[-1].legend(handles=handles, loc="lower right", fontsize=8, frameon=False)
    settings, machine = results["settings"], results["machine"]
    figure.suptitle(
        f"{results['workload']}: {settings['records']:,} records, batches of {settings['batch_size']}\n"
        f"{STATES[settings['cache']]}, {machine['cores']} cores",
        fontsize=11,
    )
    figure.savefig(path, dpi=130)


def _bars(panel: Any, rows: list[Row]) -> None:
    rows = rows[::-1]
    places, ratios = range(len(rows)), [row.ratio for row in rows]
    low = [row.ratio - min(row.ratios, default=0) for row in rows]
    high = [max(row.ratios, default=0) - row.ratio for row in rows]
    panel.barh(places, ratios, xerr=[low, high], height=0.68, color=[COLOURS[row.role] for row in rows],
               error_kw={"ecolor": "#555555", "elinewidth": 1, "capsize": 2})  # fmt: skip
    panel.set_yticks(places, [row.peer for row in rows], fontsize=9)
    for place, row in zip(places, rows, strict=True):
        text = f"{row.ratio:.3f}   {_digits(median(row.rates)):,}/s" if row.rates else row.why_not
        right = max(row.ratios, default=0)
        panel.annotate(
            text, (right, place), (5, 0), textcoords="offset points", va="center", fontsize=8
        )
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=9)
    panel.grid(axis="x", color="#eeeeee")
    panel.set_axisbelow(True)


def write(path: Path) -> None:
    """Write the table, and the plot where Matplotlib is installed, beside a JSON of results."""
    results = json.loads(path.read_text(encoding="utf-8"))
    path.with_suffix(".md").write_text(table(results, path.stem), encoding="utf-8")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        print('no plot: matplotlib is not installed; pip install "gpuload[bench]"', file=sys.stderr)
        return
    draw(results, path.with_suffix(".png"))


def overview(folder: Path) -> None:
    """Draw gpuload and its three best peers: the first variant of each question, with a warm page
    cache."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    paths = [
        folder / f"{name}.json"
        for name in ("npy_rows", "npy_files", "fixed_images", "jpeg_training")
    ]
    panel_rows = {}
    for path in filter(Path.exists, paths):
        results = json.loads(path.read_text(encoding="utf-8"))
        (variant, rows), *_ = variants(results).items()
        own_row = min((row for row in rows if row.role == "ours"), key=lambda row: row.place)
        peers = [row for row in rows if row.role == "peer" and row.rates][:3]
        panel_rows[f"{results['workload']}, {variant}"] = [own_row, *peers]
    figure = Figure(figsize=(8.6, 3.0), layout="constrained")
    FigureCanvasAgg(figure)
    for panel, (title, rows) in zip(
        figure.subplots(1, len(panel_rows), squeeze=False)[0], panel_rows.items(), strict=True
    ):
        places, rates = range(len(rows)), [median(row.rates) for row in rows]
        panel.bar(places, rates, color=[COLOURS[row.role] for row in rows], width=0.7)
        panel.set_xticks(places, [row.peer for row in rows], fontsize=8, rotation=30, ha="right")
        for place, rate in zip(places, rates, strict=True):
            panel.annotate(
                f"{_digits(rate):,}",
                (place, rate),
                (0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=7,
            )
        panel.set_title(title, fontsize=9)
        panel.set_yticks([])
        panel.spines[["top", "right", "left"]].set_visible(False)
    figure.suptitle("records/s, warm page cache: gpuload and its three best peers", fontsize=10)
    figure.savefig(folder / "overview.png", dpi=130)


def _write_again(path: Path) -> None:
    """Write table and plot of any JSON of results."""
    if path.stem == "leaks":
        from benchmarks import leaks

        leaks.write(path)
    elif path.stem == "simulation":
        from benchmarks import simulation

        simulation.write(path)
    else:
        write(path)


if __name__ == "__main__":
    for result_path in [Path(argument) for argument in sys.argv[1:]] or sorted(
        RESULTS.glob("*.json")
    ):
        _write_again(result_path)
    for folder in (RESULTS, RESULTS / "xeon"):
        overview(folder)
