"""``gpuload convert IN OUT``: records of any format to files of another; see `gpuload.convert`.

    gpuload convert data/*.npy out.npz
    gpuload convert photos 'out/train-{shard:05d}.tfrecord' --num-shards 16
    gpuload convert 'samples/*.npy' out.npz --allow-pickle

The same command goes on with a conversion that was interrupted. Exit status 0 if all files are
there, 2 if not.
"""

from __future__ import annotations

import time

import click

from gpuload.cli.base import PATH, Output, as_paths, verb
from gpuload.convert import convert
from gpuload.errors import SpecError
from gpuload.formats import FORMATS
from gpuload.formats.npy import pickles
from gpuload.open import open as open_paths
from gpuload.sources.base import Source

WRITABLE = [format for format in FORMATS if format.writer is not None]
NAMES = [format.name for format in WRITABLE]
SUFFIXES = " ".join(suffix for format in WRITABLE for suffix in format.suffixes)


@verb
@click.argument("paths", nargs=-1, required=True, metavar="IN... OUT", type=PATH)
@click.option("--num-shards", type=int, metavar="N", help="Number of files to write.")
@click.option(
    "--format",
    "format_name",
    type=click.Choice(NAMES),
    help="Format of OUT.  [default: by its suffix]",
)
@click.option(
    "--raw", multiple=True, metavar="FIELD", help="TFRecord: write this field as raw bytes."
)
@click.option(
    "--tensor",
    multiple=True,
    metavar="FIELD",
    help="TFRecord: write this field as serialized tensors.",
)
@click.option(
    "--num-threads",
    type=int,
    metavar="N",
    help="Threads that read and write.  [default: the cores]",
)
@click.option("--overwrite", is_flag=True, help="Replace existing files.")
@click.option("--no-verify", is_flag=True, help="Do not read the written files back.")
@click.option(
    "--allow-pickle",
    "is_trusted",
    is_flag=True,
    help="IN are NPY files of Python objects from a writer that you trust: reading them can run code of the writer.",
)
@click.option(
    "--record",
    type=click.Choice(pickles.RECORD),
    help="With --allow-pickle: a record is a whole file, or an item of it.  [default: by the object in the file]",
)
def command(
    output: Output,
    paths: tuple[str, ...],
    num_shards: int | None,
    format_name: str | None,
    raw: tuple[str, ...],
    tensor: tuple[str, ...],
    num_threads: int | None,
    overwrite: bool,
    no_verify: bool,
    is_trusted: bool,
    record: str | None,
) -> int:
    """Write the records of files to files of another format, and read them back.

    IN: files of one format, wildcards in quotes, or a folder of them. OUT: a file whose suffix
    names the format; several files, with {shard:05d} in the name and --num-shards; or a folder/ of
    images. If a conversion was interrupted, the same command continues it.
    """
    *inputs, out = paths
    if not inputs:
        raise click.UsageError(
            f"Missing argument 'OUT': the file that {out} is written to.",
            click.get_current_context(),
        )
    start_s = time.perf_counter()
    source = _open(output, inputs, is_trusted=is_trusted, record=record)
    with source:
        output.say(f"from {source!r}")
        conversion = convert(
            source,
            out,
            num_shards=num_shards,
            format=format_name,
            raw=raw,
            tensors=tensor,
            num_threads=num_threads,
            verify=not no_verify,
            overwrite=overwrite,
        )
    duration_s = time.perf_counter() - start_s
    num_files, num_kept = len(conversion.paths), conversion.num_kept
    last = note = ""
    if num_files > 1:
        last = f" to {conversion.paths[-1]}"
    if num_kept and num_files > 1:
        note = f"; {num_kept} of {num_files} files were finished before"
    elif num_kept:
        note = "; it was finished before"
    num_records, num_bytes = conversion.num_records, conversion.num_bytes
    output.say(
        f"wrote {conversion.paths[0]}{last}: {num_records:,} records, {num_bytes:,} bytes{note}"
    )
    output.say(f"it is read by {conversion.call}", is_wrapped=False)
    verdict = "not read back" if no_verify else "read back and equal"
    output.say(f"{verdict}, {duration_s:.2f} s")
    output.result(
        paths=conversion.paths, num_records=num_records, num_bytes=num_bytes, num_finished_before=num_kept,
        call=conversion.call, is_verified=not no_verify, duration_s=duration_s,
    )  # fmt: skip
    return 0


def _open(output: Output, inputs: list[str], *, is_trusted: bool, record: str | None) -> Source:
    if is_trusted:
        # On stderr, also under --json: a script that runs this should have the warning in its
        # log.
        output.note(
            "--allow-pickle: the files are unpickled, which runs any code that their writer put there"
        )
        return pickles.trusted(list(inputs), record)
    if record is not None:
        raise SpecError(
            f"--record {record} without --allow-pickle",
            cause="it is about files of Python objects: it says whether an item or a file is a record",
            remedy="leave it out, or add --allow-pickle",
        )
    return open_paths(as_paths(inputs))
