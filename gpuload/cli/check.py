"""``gpuload check PATH``: reads all records, and lists those that are damaged; see
``gpuload.check``.

Exit status 0 if all is read and sound; 1 if something is damaged, cannot be opened, or is of a kind
that is not supported, so that a loader would not read it; 2 if there is no such path.
"""

from __future__ import annotations

from dataclasses import asdict

import click

import gpuload as gl
from gpuload.cli.base import PATH, Output, as_paths, verb


@verb
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=PATH)
@click.option(
    "--num-threads",
    type=int,
    metavar="N",
    help="Threads that read and decode.  [default: the cores]",
)
def command(output: Output, paths: tuple[str, ...], num_threads: int | None) -> int:
    """Read all records of files, and list the damaged ones.

    PATH: files of one format, wildcards in quotes, or a folder of them. Checksums are verified, and
    images decoded. The exit status is 1 if a record is damaged, a file cannot be opened, or one of
    them is of a kind that is not supported (it may be sound); 0 if all is read.
    """
    findings = gl.check(as_paths(paths), num_threads=num_threads)
    damage, remedies = [], {""}
    for finding in findings:
        # The remedies for many files of one kind are the same.
        is_new = finding.remedy not in remedies
        output.say(finding)
        if is_new:
            output.say(f"  remedy: {finding.remedy}")
        remedies.add(finding.remedy)
        damage.append(asdict(finding))
    num_unopened, num_unsupported = findings.num_unopened, findings.num_unsupported
    num_damaged = len(damage) - num_unopened - num_unsupported
    unsupported = unopened = ""
    if num_unsupported:
        unsupported = f", {num_unsupported} not supported"
    if num_unopened:
        unopened = f", and {num_unopened} file{'s' * (num_unopened > 1)} cannot be opened"
    records = f"{findings.num_records:,} records were read"
    if findings.num_records == 1:
        records = "1 record was read"
    output.say(f"{records}, {num_damaged or 'none'} of them damaged{unsupported}{unopened}")
    output.result(
        num_records=findings.num_records,
        num_damaged=num_damaged,
        num_unsupported=num_unsupported,
        num_unopened=num_unopened,
        damage=damage,
    )
    return 1 if damage else 0
