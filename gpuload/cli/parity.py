"""``gpuload parity [FILES]``: what each executor of this machine makes of each op and image format.

    gpuload parity                      each op and each format: executors, Pillow, OpenCV
    gpuload parity --device gpu         on a GPU, too
    gpuload parity photos/*.jpg         these files alone
    gpuload parity --json               a line of JSON for each comparison

Ops      by the executors beside their array forms, which are what they mean; these beside independent libraries.
Files    by the executors, whole and by region, beside the array executor on the CPU; that beside Pillow and OpenCV.
Bounds   are in one table, `cli/parity_bounds.py`, with their reasons.

Exit status 0 if all differences are within their bounds, 1 if one is not, 2 for an error.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import gpuload as gl
from gpuload import core, progress, signalsafe
from gpuload import device as devices
from gpuload.cli import parity_images, parity_ops, parity_peers
from gpuload.cli.parity_rows import Comparison


def add_parser(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "parity",
        help="compare each op and image format on each executor of this machine",
        description="Runs each op on each executor of this machine, beside its array form in NumPy, and that beside "
        "Pillow and OpenCV; decodes files of each format by each of them, whole and by region. The exit status is 1 if "
        "a difference is out of its bound.",
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="image files, to be decoded in place of all that")
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"), help="gpu: the executors there, too")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each comparison, on stdout alone")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print a line for each comparison, and return the exit status."""
    comparisons = []
    for comparison in compare(arguments.files, arguments.device):
        progress.wipe()
        print(json.dumps(comparison.to_json()) if arguments.json else _line(comparison), flush=True)
        comparisons.append(comparison)
    progress.wipe()
    out = sys.stderr if arguments.json else sys.stdout
    for bound in dict.fromkeys(comparison.bound for comparison in comparisons):
        print(f"at most {bound.largest:g} on {bound.share:.2%} of the values: {bound.reason}", file=out)
    num_broken = sum(not comparison.holds for comparison in comparisons)
    print(machine(arguments.device), file=out)
    print(f"{len(comparisons)} comparisons, {num_broken or 'none'} broken", file=out)
    return 1 if num_broken else 0


def compare(files: Sequence[str] = (), device: str = "cpu") -> Iterator[Comparison]:
    """Give the comparisons of all ops and formats, or of files alone, on each executor of this machine.

    Raises:
        DeviceError: there is no such device.
        FileError: a file cannot be read.
    """
    executors = [("array", "cpu")]
    if device == "gpu":
        executors.append(("array", devices.choose("gpu")[0]))
    if signalsafe.is_installed("nvidia.dali"):
        executors += [("dali", place) for _, place in executors]
    for call in () if files else parity_ops.calls():
        yield from parity_ops.compare_executors(call, executors)
        yield from parity_peers.compare_peer(call)
    yield from parity_images.compare_files(files, executors)


def machine(device: str = "cpu") -> str:
    """Return a line about the machine and the versions of what was compared."""
    parties = [f"gpuload {gl.__version__} (core: {core.how()})", f"NumPy {np.__version__}"]
    parties += [f"{name} {version}" for name in parity_peers.LIBRARIES if (version := parity_peers.version_of(name))]
    if signalsafe.is_installed("nvidia.dali"):
        parties.append(f"DALI {signalsafe.import_package('nvidia.dali').__version__}")
    if device == "gpu":
        parties.append(devices.choose("gpu")[1])
    return f"{', '.join(parties)}; Python {platform.python_version()} on {platform.system()} {platform.machine()}"


def _line(comparison: Comparison) -> str:
    beside = f"{comparison.party} beside {comparison.against}"
    return f"{comparison.verdict:8}{comparison.subject}\n        {beside}: {comparison.numbers}"
