"""``gpuload parity [FILES]``: compares the results of each executor of this machine for each op and
image format.

    gpuload parity                      each op and each format: executors, Pillow, OpenCV,
                                        torchvision, timm
    gpuload parity --device gpu         on a GPU, too
    gpuload parity photos/*.jpg         these files alone
    gpuload parity --json               all comparisons in a document

Ops      on each executor beside their array forms, which are their meaning; these beside
         independent libraries.
Files    on each executor, whole and by region, beside the array executor on the CPU; that beside
         Pillow and OpenCV.
Bounds   are in one table, `cli/parity_bounds.py`, with their reasons.

Exit status 0 if all differences are within their bounds, 1 if one is not, 2 for an error.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence

import click
import numpy as np
from gpuload_peers import libraries

import gpuload as gl
from gpuload import core, signalsafe
from gpuload import device as devices
from gpuload.cli import parity_images, parity_ops
from gpuload.cli.base import PATH, Output, verb
from gpuload.cli.parity_rows import Comparison
from gpuload.progress import Progress


@verb
@click.argument("files", nargs=-1, metavar="[FILE]...", type=PATH)
@click.option(
    "--device",
    type=click.Choice(["cpu", "gpu"]),
    default="cpu",
    show_default=True,
    help="gpu: compare on the GPU, too.",
)
def command(output: Output, files: tuple[str, ...], device: str) -> int:
    """Compare each op and image format on each executor of this machine.

    Each op on each executor is compared with its array form in NumPy, and that with Pillow, OpenCV,
    torchvision and timm, if these are installed. Image files of each format are decoded by each of
    them, whole and by region. FILE: compare the decoding of these image files alone. The exit
    status is 1 if a difference is larger than its bound.
    """
    comparisons = []
    for comparison in compare(files, device):
        output.say(_line(comparison))
        comparisons.append(comparison)
    for bound in dict.fromkeys(comparison.bound for comparison in comparisons):
        output.say(f"at most {bound.largest:g} on {bound.share:.2%} of the values: {bound.reason}")
    num_broken = sum(not comparison.holds for comparison in comparisons)
    about = machine(device)
    output.say(about)
    for line in libraries.missing_libraries():
        output.say(line)
    output.say(f"{len(comparisons)} comparisons, {num_broken or 'none'} broken")
    output.result(
        comparisons=[comparison.to_json() for comparison in comparisons],
        num_broken=num_broken,
        machine=about,
    )
    return 1 if num_broken else 0


def compare(files: Sequence[str] = (), device: str = "cpu") -> Iterator[Comparison]:
    """Give the comparisons of all ops and formats, or of files alone, on each executor of this
    machine.

    Raises:
        DeviceError: there is no such device.
        FileError: a file cannot be read.
    """
    executors = [("array", "cpu")]
    if device == "gpu":
        executors.append(("array", devices.choose("gpu")[0]))
    if signalsafe.is_installed("nvidia.dali"):
        executors += [("dali", place) for _, place in executors]
    calls = [] if files else list(parity_ops.calls())
    total = len(calls) + len(files or parity_images.SAMPLES)
    with Progress("comparing") as progress:
        for number, call in enumerate(calls):
            progress.show(number, total, "ops and files")
            yield from parity_ops.compare_executors(call, executors)
            yield from libraries.compare_peer(call)
        for number, (title, source) in enumerate(parity_images.sources(files), len(calls)):
            progress.show(number, total, "ops and files")
            yield from parity_images.compare_source(title, source, executors)


def machine(device: str = "cpu") -> str:
    """Return a line about the machine and the versions of the libraries that were compared."""
    parties = [f"gpuload {gl.__version__} (core: {core.how()})", f"NumPy {np.__version__}"]
    parties += [
        f"{name} {version}"
        for name in libraries.LIBRARIES
        if (version := libraries.version_of(name))
    ]
    if signalsafe.is_installed("nvidia.dali"):
        parties.append(f"DALI {signalsafe.import_package('nvidia.dali').__version__}")
    if device == "gpu":
        parties.append(devices.choose("gpu")[1])
    return f"{', '.join(parties)}; Python {platform.python_version()} on {platform.system()} {platform.machine()}"


def _line(comparison: Comparison) -> str:
    beside = f"{comparison.party} beside {comparison.against}"
    return f"{comparison.verdict:8}{comparison.subject}\n        {beside}: {comparison.numbers}"
