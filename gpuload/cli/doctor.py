"""``gpuload doctor``: packages and devices of this machine, whether they fit together, and the
remedy to type if not.

Packages  their versions, and whether they load: each is imported in a process of its own, so that
          one that crashes is a line here and not the end.
Fits      packages for CUDA 12 beside those for CUDA 13, and other pairs that are known not to work.
GPU       driver, cards, memory, the compiler of kernels.
Machine   cores, memory, open files, shared memory: the part that this process may use.
Images    each format is decoded, whole and by region, by each executor, in a process of its own. Of
          each GPU's decoder whole batches are compared with the CPU; the verdict is kept for card,
          driver and versions.
Decoding  where images can be decoded here, and where ``executor="auto"`` has them decoded for a
          GPU.

Exit status 0 if all that is there works, 1 if a part does not: its line names the remedy. It is no
fault if a package is not installed.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Iterator
from dataclasses import asdict

from gpuload.cli.base import Output, verb
from gpuload.cli.doctor_base import ABSENT, OK, PROBLEM, Diagnosis
from gpuload.cli.doctor_images import diagnose_decoding, diagnose_images
from gpuload.cli.doctor_machine import diagnose_environment, diagnose_gpu, diagnose_machine
from gpuload.cli.doctor_packages import diagnose_fits, diagnose_packages

STYLES = {OK: "green", ABSENT: "dim", PROBLEM: "bold red"}
INDENT = 10


@verb
def command(output: Output) -> int:
    """Check packages, GPUs and limits of this machine, and give a remedy to type for each problem.

    Processes of their own import each package, and decode an image of each format by each executor.
    The exit status is 1 if a part does not work.
    """
    section, num_problems, lines = "", 0, []
    for finding in findings():
        num_problems += finding.state == PROBLEM
        lines.append(asdict(finding))
        if not output.is_json:
            _draw(output, finding, is_first=finding.section != section)
        section = finding.section
    summary = f"{num_problems} problem{'s' * (num_problems > 1)}"
    output.say(f"\n{summary if num_problems else 'all that is here works'}")
    output.result(num_problems=num_problems, findings=lines)
    return 1 if num_problems else 0


def findings() -> Iterator[Diagnosis]:
    """Give the findings, section by section."""
    yield from diagnose_environment()
    yield from diagnose_packages()
    yield from diagnose_fits()
    yield from diagnose_gpu()
    yield from diagnose_machine()
    yield from diagnose_images()
    yield from diagnose_decoding()


def _draw(output: Output, finding: Diagnosis, *, is_first: bool) -> None:
    """Print a finding, and above the first of a section its title; a long word stays whole, to be
    copied."""
    from rich.text import Text

    wrap = functools.partial(
        textwrap.wrap, width=output.console.width, break_long_words=False, break_on_hyphens=False
    )
    lines = []
    if is_first:
        gap = "" if finding.section == "gpuload" else "\n"
        lines.append(Text(gap + finding.section, "bold"))
    head = f"  {finding.state:<8}"
    for number, line in enumerate(
        wrap(f"{head}{finding.subject}: {finding.about}", subsequent_indent=" " * INDENT)
    ):
        lines.append(Text(line))
        if number == 0:
            lines[-1].stylize(STYLES[finding.state], 0, len(head))
    arrow = " " * INDENT + "-> "
    if finding.remedy:
        remedy = wrap(finding.remedy, initial_indent=arrow, subsequent_indent=" " * len(arrow))
        lines += [Text(line, "cyan") for line in remedy]
    for text in lines:
        output.draw(text, is_wrapped=False)
