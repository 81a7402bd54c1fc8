"""``gpuload check PATH``: reads all records, and lists those that are damaged; see ``gpuload.check``.

Exit status 0 if nothing is damaged, 1 if something is, 2 if there is no such path.
"""

from __future__ import annotations

from dataclasses import asdict

import click

import gpuload as gl
from gpuload.cli.base import PATH, Output, verb


@verb
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=PATH)
@click.option("--num-threads", type=int, metavar="N", help="Threads that read and decode.  [default: the cores]")
def command(output: Output, paths: tuple[str, ...], num_threads: int | None) -> int:
    """Read all records of files, and list the damaged ones.

    PATH: files of one format, wildcards in quotes, or a folder of them. Checksums are verified, and images decoded.
    The exit status is 1 if a record is damaged or a file cannot be opened.
    """
    findings = gl.check(paths[0] if len(paths) == 1 else list(paths), num_threads=num_threads)
    damage = []
    for finding in findings:
        output.say(f"{finding}\n  remedy: {finding.remedy}" if finding.remedy else finding)
        damage.append(asdict(finding))
    count = findings.num_unopened
    unopened = f", and {count} file{'s' * (count > 1)} cannot be opened" if count else ""
    num_damaged = len(damage) - count
    records = f"{findings.num_records:,} record{' was' if findings.num_records == 1 else 's were'} read"
    output.say(f"{records}, {num_damaged or 'none'} of them damaged{unopened}")
    output.result(num_records=findings.num_records, num_damaged=num_damaged, num_unopened=count, damage=damage)
    return 1 if damage else 0
