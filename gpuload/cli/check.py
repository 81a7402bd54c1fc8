"""``gpuload check PATH``: reads all records, and lists those that are damaged; see ``gpuload.check``.

Exit status 0 if nothing is damaged, 1 if something is, 2 if there is no such path.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

import gpuload as gl
from gpuload import progress


def add_parser(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "check",
        help="read all records, verify checksums, decode images, and list damaged records",
        description="Reads all records of files: verifies their checksums, decodes images, and lists damaged records. "
        "The exit status is 0 if nothing is, 1 if something is.",
    )
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="files of one format, wildcards, or a folder of images"
    )
    parser.add_argument("--json", action="store_true", help="a line of JSON for each damaged record, on stdout alone")
    parser.add_argument("--num-threads", type=int, help="threads that read and decode (default: the cores there are)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Check the files, print the damage, and return the exit status."""
    paths = arguments.paths
    findings = gl.check(paths[0] if len(paths) == 1 else paths, num_threads=arguments.num_threads)
    num_damaged = 0
    for finding in findings:
        progress.wipe()
        print(json.dumps(asdict(finding)) if arguments.json else finding, flush=True)
        num_damaged += 1
    progress.wipe()
    count = findings.num_unopened
    unopened = f", and {count} file{'s' * (count > 1)} cannot be opened" if count else ""
    num_bad = num_damaged - count
    print(
        f"{findings.num_records:,} records were read, {num_bad or 'none'} of them damaged{unopened}",
        file=sys.stderr if arguments.json else sys.stdout,
    )
    return 1 if num_damaged else 0
