"""Fixed-length records: N records of the same number of bytes, one after the other.

Layout  header_bytes of header, record i at header_bytes + i * record_bytes, footer_bytes of footer,
        in each file.
Access  any record by index; a record is never split.
Limits  a file with a part of a record in its body is refused when it is opened.
Source  CIFAR-10 binary version, https://www.cs.toronto.edu/~kriz/cifar.html
        (record_bytes = 1 + 3 * 32 * 32 = 3073); tf.data.FixedLengthRecordDataset
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpuload.errors import FormatError, SpecError
from gpuload.sources.filesource import Entries, Opening
from gpuload.sources.gaps import BadFiles, bad_files, check_on_error, tolerant
from gpuload.sources.layouts import layout_of
from gpuload.sources.rows import FileTable, RecordFiles, RecordForm
from gpuload.spec import check_name, dtype_of, is_whole
from gpuload.storage import manifest
from gpuload.storage.fileerrors import GZIP, gzip_error
from gpuload.storage.files import Files, look_at
from gpuload.storage.handles import read_bytes
from gpuload.storage.stores import path_of
from gpuload.storage.wildcards import Paths, expand


class FixedSource(RecordFiles):
    """Fixed-length records of one or many files as one sequence; made by ``gl.fixed``."""

    def _entries(self) -> Entries:
        return Entries(
            bad=self._bad_path()
        )  # the sizes of the files say how many records they have


def fixed(
    paths: Paths,
    dtype: DTypeLike,
    header_bytes: int = 0,
    footer_bytes: int = 0,
    *,
    field: str = "x",
    on_error: str = "raise",
) -> FixedSource:
    """Return the records of files of fixed-length records.

    ``gl.fixed("data_batch_*.bin", [("label", "u1"), ("image", "u1", (3, 32, 32))])`` is CIFAR-10.

    Args:
        paths: a path, a string with wildcards, or a list of these; a list keeps its order, a
            wildcard is sorted. Or a manifest of such files (``Source.index``).
        dtype: the layout of a record, anything that ``numpy.dtype`` takes; the fields of a
            structured dtype become the record's fields. Byte orders are as they say: ``"u1"``,
            ``">f4"``.
        header_bytes: bytes to skip at the beginning of each file.
        footer_bytes: bytes to leave out at the end of each file.
        field: the name of the one field where ``dtype`` is not structured.
        on_error: ``"raise"``: a file that is no whole number of records is an error. ``"replace"``,
            ``"skip"``: it is one record, which cannot be read, in its place among the others; pass
            ``on_error`` to the loader, too.

    Raises:
        SpecError: the dtype is none, holds objects or no bytes; header or footer are negative.
        FileError: a file is missing, a directory, or cannot be read.
        FormatError: a file, with ``on_error`` all of them, is shorter than header and footer, or
            its body is no whole number of records.
    """
    check_name(field)
    record_dtype = _record_dtype(dtype)
    layout = layout_of(record_dtype, field=field)
    for name, value in (("header_bytes", header_bytes), ("footer_bytes", footer_bytes)):
        if not is_whole(value):
            raise SpecError(
                f"{name} = {value!r}",
                cause="it is a number of bytes, at least 0",
                remedy=f"write {name}=16, say",
            )
    check_on_error(on_error)
    around_bytes = int(header_bytes) + int(footer_bytes)

    listing = manifest.load(paths, "fixed")
    if listing is None:
        files, counts, bad = _read(paths, layout.record_bytes, around_bytes, on_error)
    else:
        files, bad = listing.files, BadFiles(listing.files, {})
        counts = _counts_of(files, layout.record_bytes, around_bytes)
    table = FileTable(
        files,
        counts=counts,
        offsets=np.full(len(files), int(header_bytes)),
        forms=(RecordForm(layout),),
        form_of=np.zeros(len(files), np.int64),
        bad=bad,
    )
    if listing is None:
        argument = files.paths
    else:
        argument = listing.path
    arguments = {"paths": argument, "dtype": record_dtype, "field": field}
    ends = {
        "header_bytes": int(header_bytes),
        "footer_bytes": int(footer_bytes),
        "on_error": on_error,
    }
    return FixedSource(table, Opening(fixed, {**arguments, **ends}))


def _read(
    paths: Paths, record_bytes: int, around_bytes: int, on_error: str
) -> tuple[Files, list[int], BadFiles]:
    """Return files, how many records each has, and which of them cannot be opened."""

    def count(path: str, size_bytes: int, head: bytes) -> int:
        _refuse_gzip(path)
        return _num_records(path, size_bytes, around_bytes, record_bytes)

    all_paths = expand(paths)
    files, results = look_at(all_paths, 0, tolerant(count, on_error, "gl.fixed", len(all_paths)))
    bad = bad_files(files, results, "gl.fixed")
    return files, bad.fill(results, 1), bad


def _counts_of(files: Files, record_bytes: int, around_bytes: int) -> list[int]:
    """Return how many records each file of a manifest has; raises the error of the first one that
    does not fit."""
    bodies = files.sizes - around_bytes
    wrong = (bodies < 0) | (bodies % record_bytes != 0)
    # All sizes at once: a manifest may list a million files, and opening it must take a moment.
    if wrong.any():
        number = int(wrong.argmax())
        _num_records(files.paths[number], int(files.sizes[number]), around_bytes, record_bytes)
    counts: list[int] = (bodies // record_bytes).tolist()
    return counts


def _record_dtype(argument: DTypeLike) -> np.dtype[Any]:
    """Return the dtype of a record; raises ``SpecError`` if NumPy does not take it, or if it has no
    bytes."""
    try:
        dtype = dtype_of(argument)
    except (TypeError, ValueError, SyntaxError) as error:
        raise SpecError(
            f"dtype = {argument!r}",
            cause=f"numpy.dtype does not take it: {error}",
            remedy='write it like [("label", "u1"), ("image", "u1", (3, 32, 32))]',
        ) from None
    if not dtype.itemsize:
        raise SpecError(
            f"dtype = {argument!r}",
            cause="a record would have no bytes",
            remedy="give each field a length",
        )
    return dtype


def _refuse_gzip(path: str) -> None:
    """Raise ``FormatError`` for a file of gzip: its size may fit by chance. Files of other names
    are not opened."""
    if (
        path_of(path).lower().endswith(".gz")
        and (error := gzip_error(path, read_bytes(path, len(GZIP)))) is not None
    ):
        raise error


def _num_records(path: str, size_bytes: int, around_bytes: int, record_bytes: int) -> int:
    """Return the number of records of a file: between header and footer lies a whole number of
    them."""
    body = size_bytes - around_bytes
    if body < 0:
        raise FormatError(
            f"{path} has {size_bytes} bytes",
            cause=f"header and footer alone are {around_bytes}",
            remedy="check header_bytes and footer_bytes, and that the file is whole",
        )
    if body % record_bytes:
        raise FormatError(
            f"{path} has body length {body} bytes, which is not an exact multiple of the record "
            f"length ({record_bytes} bytes)",
            cause=f"{body % record_bytes} bytes are left over: the file was cut short, or the "
            "dtype is not its layout",
            remedy="check dtype, header_bytes and footer_bytes, and that the file is whole",
        )
    return body // record_bytes
