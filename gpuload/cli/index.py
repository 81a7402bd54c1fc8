"""``gpuload index PATH -o NAME.manifest``: writes a manifest of files, by which they are opened in
a moment.

    gpuload index 'rows/*.npy' -o rows.manifest        gl.open("rows.manifest") is
                                                       gl.open("rows/*.npy")

Exit status 0 if it was written, 2 if not.
"""

from __future__ import annotations

import os
import time

import click

from gpuload.cli.base import PATH, Output, as_paths, verb
from gpuload.errors import SpecError
from gpuload.open import open as open_paths
from gpuload.storage.manifest import SUFFIX, writable_path
from gpuload.storage.wildcards import as_folder


@verb
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=PATH)
@click.option(
    "-o",
    "--out",
    metavar="FILE",
    type=PATH,
    help=f"The manifest.  [default: of a folder, FOLDER{SUFFIX}]",
)
def command(output: Output, paths: tuple[str, ...], out: str | None) -> int:
    """Write a manifest of files: their names, sizes, times, and all that opening them needs.

    PATH: files of one format, wildcards in quotes, or a folder of them. gl.open("NAME.manifest")
    opens the same source without reading the files. A file that changes later is refused when it is
    first read; then write the manifest again. Put it into the folder of the files, or above it:
    then they can be moved together.
    """
    start_s = time.perf_counter()
    if out is None:
        if len(paths) == 1:
            folder = as_folder(paths[0])
        else:
            folder = None
        if folder is None or "://" in folder:
            raise SpecError(
                "gpuload index without --out",
                cause="a manifest has the name of its folder, if that is the one path and lies on this machine",
                remedy="add -o train.manifest, say",
            )
        out = folder + SUFFIX
    writable_path(out)  # before the files are read, which may take minutes
    with open_paths(as_paths(paths)) as source:
        output.say(f"from {source!r}")
        path = source.index(out)
        num_records, num_files = len(source), len(set(source.files.paths))
        fingerprint = source.fingerprint()
    num_bytes, duration_s = os.path.getsize(path), time.perf_counter() - start_s
    files, records = (
        f"{number:,} {noun}{'s' * (number != 1)}"
        for number, noun in ((num_files, "file"), (num_records, "record"))
    )
    output.say(f"wrote {path}: {files}, {records}, {num_bytes:,} bytes, {duration_s:.2f} s")
    output.say(f"it is opened by gl.open({path!r})", is_wrapped=False)
    output.result(
        path=path, num_files=num_files, num_records=num_records, num_bytes=num_bytes, fingerprint=fingerprint,
        call=f"gl.open({path!r})", duration_s=duration_s,
    )  # fmt: skip
    return 0
