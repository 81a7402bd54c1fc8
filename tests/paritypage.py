"""The tables of `docs/parity.md`, from what `gpuload parity` compares:
``python -m tests.paritypage`` writes them.

With ``--device gpu`` they have the executors on a GPU, too; with torch, torchvision and timm the
column of these.
"""

from __future__ import annotations

import datetime
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator

from gpuload_peers import libraries

from gpuload.cli import parity, parity_bounds
from gpuload.cli.parity_rows import Comparison
from tests import opexamples
from tests.codeblocks import ROOT

PAGE = ROOT / "docs" / "parity.md"
BEGIN, END = (
    "<!-- tables: python -m tests.paritypage writes them -->\n",
    "<!-- end of the tables -->\n",
)
REGION = ", a region"
PARTIES = {
    "array on cpu": "array executor", "dali on cpu": "DALI on a CPU", "array on gpu": "array executor on a GPU",
    "dali on gpu": "DALI on a GPU",
}  # fmt: skip
BY_TORCH = ("torchvision", "timm")


def cell(comparisons: Iterable[Comparison]) -> str:
    """Return the difference of a comparison for a table; nothing where there is none."""
    texts = []
    for comparison in comparisons:
        if comparison.is_refusal:
            texts.append("refused by name")
        elif not comparison.share:
            texts.append("equal")
        else:
            mean = f", mean {comparison.mean:.2g}" if comparison.largest > 1 else ""
            texts.append(f"{comparison.largest:.3g}{mean}, on {100 * comparison.share:.3g} %")
    return texts[0] if texts else ""


def op_rows(comparisons: list[Comparison]) -> Iterator[str]:
    """Give the table of ops: its head, and a row for each."""
    present = {comparison.party for comparison in comparisons}
    parties = {party: title for party, title in PARTIES.items() if party in present}
    head = [
        "op",
        *parties.values(),
        "beside",
        "array form and library",
        "array form and torchvision, or timm",
    ]
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    subjects = dict.fromkeys(c.subject for c in comparisons if not c.subject.startswith("file "))
    for subject in subjects:
        rows = [c for c in comparisons if c.subject == subject]
        by_torch = [c for c in rows if c.against.startswith(BY_TORCH)]
        peers = [c for c in rows if c.party == "array form" and c not in by_torch]
        name = subject.partition("(")[0]
        beside = (
            peers[0].against.partition(" ")[0]
            if peers
            else f"({libraries.NO_PEER.get(name, 'none is called')})"
        )
        cells = [cell(c for c in rows if c.party == party) for party in parties]
        yield f"| `{subject}` | {' | '.join(cells)} | {beside} | {cell(peers)} | {cell(by_torch)} |"


def file_rows(comparisons: list[Comparison]) -> Iterator[str]:
    """Give the rows of the table of files."""
    files = [c for c in comparisons if c.subject.startswith("file ")]
    for subject in dict.fromkeys(c.subject.removesuffix(REGION) for c in files):
        rows = [c for c in files if c.subject.removesuffix(REGION) == subject]
        whole = [c for c in rows if not c.subject.endswith(REGION)]
        regions = [c for c in rows if c.subject.endswith(REGION)]
        cells = [
            cell(c for c in regions if c.party == "array on cpu"),
            cell(c for c in whole if c.party == "dali on cpu"),
            cell(c for c in regions if c.party == "dali on cpu"),
            cell(c for c in whole if c.against.startswith("Pillow")),
            cell(c for c in whole if c.against.startswith("OpenCV")),
        ]
        yield f"| {subject.removeprefix('file ')} | {' | '.join(cells)} |"


def bound_rows() -> Iterator[str]:
    """Give the rows of the table of tolerances."""
    subjects: dict[tuple[str, parity_bounds.Bound], list[str]] = {}
    for name in opexamples.NAMES:
        traits = opexamples.example(name).traits
        for party, bound in () if traits.ways else traits.bounds.items():
            subjects.setdefault((party, bound), []).append(f"`{name}`")
    for subject, party, bound in parity_bounds.TABLE:
        subjects.setdefault((party, bound), []).append(f"`{subject}`")
    for (party, bound), names in subjects.items():
        mean = f", mean {bound.mean:g}" if bound.mean < 255 else ""
        who = {"dali": "DALI", "gpu": "on a GPU", "dali on gpu": "DALI on a GPU"}.get(party, party)
        limit = f"{bound.largest:g}{mean}, on {100 * bound.share:g} %" if bound.share else "equal"
        yield f"| {', '.join(names)} | {who} | {limit} | {bound.reason} |"


def tables(comparisons: list[Comparison], machine: str, date: str) -> str:
    """Return the tables in Markdown."""
    return "\n".join(
        [
            f"{machine}, {date}. {len(comparisons)} comparisons, "
            f"{sum(not c.holds for c in comparisons) or 'none'} out of its bound.",
            "",
            *op_rows(comparisons),
            "",
            "Files, decoded by the array executor, whole, and what else was compared with that:",
            "",
            "| file | a region | DALI on a CPU | DALI, a region | Pillow | OpenCV |",
            "|---|---|---|---|---|---|",
            *file_rows(comparisons),
            "",
            "These differences are allowed, for these reasons; all else is exact:",
            "",
            "| subject | party | at most | because |",
            "|---|---|---|---|",
            *bound_rows(),
            "",
        ]
    )


def main(arguments: list[str]) -> None:
    """Compare, and write the page."""
    device = "gpu" if arguments == ["--device", "gpu"] else "cpu"
    if importlib.util.find_spec("torchvision") is None:
        raise SystemExit("the page has a column of torchvision: run `make pages`, which brings it")
    # torchvision for CUDA loads beside torch for CPUs, too.
    importlib.import_module("tests.oracle_torchvision")
    comparisons = list(parity.compare(device=device))
    text = tables(comparisons, parity.machine(device), datetime.date.today().isoformat())
    page = PAGE.read_text(encoding="utf-8")
    pattern = re.compile(f"(?<={re.escape(BEGIN)}).*(?={re.escape(END)})", re.DOTALL)
    assert pattern.search(page), f"{PAGE} has no place for the tables"
    PAGE.write_text(pattern.sub(lambda _: f"\n{text}\n", page), encoding="utf-8")
    for comparison in comparisons:
        if not comparison.holds:
            print(comparison)


if __name__ == "__main__":
    main(sys.argv[1:])
