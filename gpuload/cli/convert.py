"""``gpuload convert IN OUT``: records of any format to files of another; see `convert.py`.

    gpuload convert data/*.npy out.npz
    gpuload convert photos 'out/train-{shard:05d}.tfrecord' --num-shards 16
    gpuload convert 'samples/*.npy' out.npz --allow-pickle

The same command goes on with a conversion that was interrupted. Exit status 0 if all files are there, 2 if not.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from gpuload.convert import convert
from gpuload.errors import SpecError
from gpuload.formats import FORMATS
from gpuload.formats.npy import pickles
from gpuload.open import open as open_paths
from gpuload.sources.base import Source


def add_parser(verbs: Any) -> None:
    """Add the verb to the command line."""
    writable = [format for format in FORMATS if format.writer is not None]
    names = ", ".join(format.name for format in writable)
    suffixes = " ".join(suffix for format in writable for suffix in format.suffixes)
    parser = verbs.add_parser(
        "convert",
        help="write the records of files to files of another format",
        description=f"Write the records of files, whose bytes say their format, to files of another: {names}. "
        "The same command goes on with a conversion that was interrupted.",
    )
    parser.add_argument("input", nargs="+", metavar="IN", help="files, wildcards, or a folder of images")
    parser.add_argument(
        "output", metavar="OUT", help=f"a file ({suffixes}), with {{shard:05d}} for several; or a folder/"
    )
    parser.add_argument("--num-shards", type=int, metavar="N", help="write so many files")
    parser.add_argument("--format", help=f"{names} (default: by the suffix of OUT)")
    parser.add_argument(
        "--raw", action="append", default=[], metavar="FIELD", help="TFRecord: write the field as the bytes it has"
    )
    parser.add_argument(
        "--tensor", action="append", default=[], metavar="FIELD", help="TFRecord: write it as serialized tensors"
    )
    parser.add_argument("--num-threads", type=int, metavar="N", help="threads (default: the cores there are)")
    parser.add_argument("--overwrite", action="store_true", help="replace files that are there under these names")
    parser.add_argument("--no-verify", action="store_true", help="do not read back and compare the files")
    parser.add_argument(
        "--allow-pickle",
        action="store_true",
        help="IN are NPY files of Python objects that you trust: reading them runs the code their writer put there",
    )
    parser.add_argument(
        "--record",
        choices=pickles.RECORD,
        help="of files of Python objects: each file is one record, or each item of a file is (default: what it holds)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Convert, print the files that were written, and return the exit status."""
    start_s = time.perf_counter()
    if arguments.allow_pickle:
        print("--allow-pickle: the files are unpickled, which runs any code that their writer put there")
        source: Source = pickles.trusted(arguments.input, arguments.record)
    elif arguments.record is not None:
        raise SpecError(
            f"--record {arguments.record} without --allow-pickle",
            cause="it is about files of Python objects: it says whether an item or a file is a record",
            remedy="leave it out, or add --allow-pickle",
        )
    else:
        source = open_paths(arguments.input[0] if len(arguments.input) == 1 else arguments.input)
    with source:
        print(f"from {source!r}")
        conversion = convert(
            source,
            arguments.output,
            num_shards=arguments.num_shards,
            format=arguments.format,
            raw=arguments.raw,
            tensors=arguments.tensor,
            num_threads=arguments.num_threads,
            verify=not arguments.no_verify,
            overwrite=arguments.overwrite,
        )
    note = f", {conversion.num_kept} of them were finished before" if conversion.num_kept else ""
    last = f" to {conversion.paths[-1]}" if len(conversion.paths) > 1 else ""
    print(f"wrote {conversion.paths[0]}{last}: {conversion.num_records} records, {conversion.num_bytes} bytes{note}")
    print(f"it is read by {conversion.call}")
    print(f"{'not read back' if arguments.no_verify else 'read back and equal'}, {time.perf_counter() - start_s:.2f} s")
    return 0
