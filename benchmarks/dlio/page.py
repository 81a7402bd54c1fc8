"""The table of `python -m benchmarks.dlio`, from its JSON. Arithmetic and text alone."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

GPULOAD, SYNTHETIC = "gpuload", "synthetic"
ABOUT = {
    "gpuload": "`benchmarks.dlio.loader`",
    "pytorch": "torch's DataLoader, a worker process a core",
    "tensorflow": "tf.data",
    "dali": "DALI, fed by DLIO's Python readers in processes",
    "native_dali": "DALI's own readers",
    "synthetic": "no file is read: what DLIO itself can do here",
}


def page(results: dict[str, Any]) -> str:
    """Return the page: a table for each workload."""
    lines = [
        "# DLIO's emulated trainings",
        "",
        "What the columns mean, what was done, and what holds gpuload back: [benchmarks/dlio](../dlio/README.md). "
        "Medians of the rounds, with the lowest and the highest; in each round the loaders take turns.",
    ]
    for work in results.values():
        lines += ["", *table(work)]
    return "\n".join(lines) + "\n"


def table(work: dict[str, Any]) -> list[str]:
    """Return the heading and the lines of a workload's table."""
    computer, settings = work["machine"], work["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in work["versions"].items())
    lines = [
        f"## {work['title']}: AU of {work['required']:.2f}",
        "",
        f"{work['files']:,} files, batches of {work['batch_size']}, a step of one accelerator takes "
        f"{work['step_s'] * 1e3:.3g} ms. {work['origin']}.",
        "",
        "| loader | accelerators per core | gpuload is | records/s without a computation | core ms a record | form |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for loader, samples in _by_loader(work["samples"]).items():
        cells = _cells(samples, loader, work["samples"], computer["cores"])
        lines.append(f"| {_name(loader)} | {' | '.join(cells)} |")
    lines += [
        f"| {loader} | - | - | - | - | {reason} |" for loader, reason in work["absent"].items()
    ]
    return [
        *lines,
        "",
        f"`{work['command']}`, {work['date'][:10]}, {work['took_s'] / 60:.0f} minutes: "
        f"{_count(settings['rounds'], 'round')}, {_count(settings['ranks'], 'rank')}. {computer['cpu']}, "
        f"{computer['cores']} cores, {computer['memory_gib']} GiB; load at the start {computer['load_at_start'][0]}, "
        f"at the end {computer['load_at_end'][0]}. {versions}.",
    ]


def ratios(samples: Sequence[dict[str, Any]], loader: str) -> list[float]:
    """Return how many times as many accelerators gpuload feeds as a loader, in each round that has
    both."""
    by_round = {
        (sample["loader"], sample["round"]): sample["accelerators"]
        for sample in samples
        if _is_known(sample)
    }
    rounds = sorted({number for _, number in by_round})
    return [
        by_round[GPULOAD, number] / by_round[loader, number]
        for number in rounds
        if (GPULOAD, number) in by_round and (loader, number) in by_round
    ]


def _cells(
    samples: list[dict[str, Any]], loader: str, all_samples: Sequence[dict[str, Any]], cores: int
) -> tuple[str, str, str, str, str]:
    per_core = [sample["accelerators"] / cores for sample in samples if _is_known(sample)]
    if not per_core:
        reasons = [sample["failed"] for sample in samples if "failed" in sample]
        return (
            "-",
            "-",
            "-",
            "-",
            f"failed: {reasons[0]}" if reasons else "the utilisation did not settle",
        )
    rate = median(sample["free"]["records_per_s_mean"] for sample in samples if _is_known(sample))
    core_ms = median(_core_ms(sample["tries"]) for sample in samples if _is_known(sample))
    times = [] if loader in (GPULOAD, SYNTHETIC) else ratios(all_samples, loader)
    return (
        spread(per_core),
        f"{spread(times)} x" if times else "-",
        f"{rate:,.0f}",
        f"{core_ms:.3g}",
        ABOUT[loader],
    )


def _core_ms(tries: Sequence[dict[str, Any]]) -> float:
    """Return the processor time of a record in these runs; the run before them imported what DLIO
    imports late."""
    return sum(run["core_s"] for run in tries) * 1e3 / sum(run["records"] for run in tries)


def spread(values: Sequence[float]) -> str:
    """Return the median, with the lowest and the highest where there are more values than one."""
    text = f"{median(values):.3g}"
    return text if len(values) == 1 else f"{text} ({min(values):.3g} to {max(values):.3g})"


def _is_known(sample: dict[str, Any]) -> bool:
    return sample.get("accelerators") is not None


def _by_loader(samples: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the samples of each loader: gpuload first, the synthetic one last, the others as they
    are sorted."""
    names = sorted(
        {sample["loader"] for sample in samples},
        key=lambda name: (name != GPULOAD, name == SYNTHETIC, name),
    )
    return {name: [sample for sample in samples if sample["loader"] == name] for name in names}


def _name(loader: str) -> str:
    return f"**{loader}**" if loader == GPULOAD else loader


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"
