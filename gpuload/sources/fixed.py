"""Fixed-length records: N records of the same number of bytes, one after the other.

Layout  header_bytes of header, record i at header_bytes + i * record_bytes, footer_bytes of footer, in each file.
Access  any record by index; a record is never split.
Limits  a file whose body is no whole number of records is refused when it is opened.
Source  CIFAR-10 binary version, https://www.cs.toronto.edu/~kriz/cifar.html
        (record_bytes = 1 + 3 * 32 * 32 = 3073); tf.data.FixedLengthRecordDataset
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpuload.errors import FormatError, SpecError
from gpuload.sources.filesource import Opening
from gpuload.sources.layouts import layout_of
from gpuload.sources.rows import Form, RecordFiles, Stored
from gpuload.spec import check_name, dtype_of, is_whole
from gpuload.storage.files import GZIP, Files, Paths, expand, gzip_error, look_at, read_bytes

MOST_AROUND_BYTES = 1 << 62  # sizes of files are below


class FixedSource(RecordFiles):
    """Fixed-length records of one or many files as one sequence; made by ``gl.fixed``."""


def fixed(
    paths: Paths, dtype: DTypeLike, header_bytes: int = 0, footer_bytes: int = 0, *, field: str = "x"
) -> FixedSource:
    """Return the records of files of fixed-length records.

    ``gl.fixed("data_batch_*.bin", [("label", "u1"), ("image", "u1", (3, 32, 32))])`` is CIFAR-10.

    Args:
        paths: a path, a string with wildcards, or a list of these; a list keeps its order, a wildcard is sorted.
        dtype: the layout of a record, anything that ``numpy.dtype`` takes; the fields of a structured dtype become
            the record's fields. Byte orders are as they say: ``"u1"``, ``">f4"``.
        header_bytes: bytes to skip at the beginning of each file.
        footer_bytes: bytes to leave out at the end of each file.
        field: the name of the one field where ``dtype`` is not structured.

    Raises:
        SpecError: the dtype is none, holds objects or no bytes; header or footer are negative.
        FileError: a file is missing, a directory, or cannot be read.
        FormatError: a file is shorter than header and footer, or its body is no whole number of records.
    """
    check_name(field)
    record_dtype = _record_dtype(dtype)
    layout = layout_of(record_dtype, field=field)
    for name, value in (("header_bytes", header_bytes), ("footer_bytes", footer_bytes)):
        if not is_whole(value):
            raise SpecError(
                f"{name} = {value!r}", cause="it is a number of bytes, at least 0", remedy=f"write {name}=16, say"
            )
    found, _ = look_at(expand(paths), 0, _check_unpacked)
    bodies = _bodies(found, int(header_bytes) + int(footer_bytes), layout.record_bytes)
    stored = Stored(
        found,
        counts=(bodies // layout.record_bytes).tolist(),
        offsets=[int(header_bytes)] * len(found),
        forms=(Form(layout),),
        form_of=np.zeros(len(found), np.int64),
    )
    arguments = {"paths": found.paths, "dtype": record_dtype, "field": field}
    ends = {"header_bytes": int(header_bytes), "footer_bytes": int(footer_bytes)}
    return FixedSource(stored, Opening(fixed, {**arguments, **ends}))


def _record_dtype(given: DTypeLike) -> np.dtype[Any]:
    try:
        dtype = dtype_of(given)
    except (TypeError, ValueError, SyntaxError) as error:
        raise SpecError(
            f"dtype = {given!r}",
            cause=f"numpy.dtype does not take it: {error}",
            remedy='write it like [("label", "u1"), ("image", "u1", (3, 32, 32))]',
        ) from None
    if not dtype.itemsize:
        raise SpecError(f"dtype = {given!r}", cause="a record would have no bytes", remedy="give each field a length")
    return dtype


def _check_unpacked(path: str, size_bytes: int, head: bytes) -> None:
    """Refuse a file of gzip, of which the size may happen to fit; files of other names are not opened for that."""
    if path.lower().endswith(".gz") and (packed := gzip_error(path, read_bytes(path, len(GZIP)))) is not None:
        raise packed


def _bodies(files: Files, around_bytes: int, record_bytes: int) -> NDArray[np.int64]:
    """Return the bytes of each file between header and footer; each must be a whole number of records."""
    small = np.flatnonzero(files.sizes < around_bytes) if around_bytes < MOST_AROUND_BYTES else np.arange(len(files))
    if small.size:
        raise FormatError(
            f"{files.paths[small[0]]} has {int(files.sizes[small[0]])} bytes",
            cause=f"header and footer alone are {around_bytes}",
            remedy="check header_bytes and footer_bytes, and that the file is whole",
        )
    bodies = files.sizes - around_bytes
    wrong = np.flatnonzero(bodies % record_bytes)
    if wrong.size:
        body = int(bodies[wrong[0]])
        raise FormatError(
            f"{files.paths[wrong[0]]} has body length {body} bytes, which is not an exact multiple of the record "
            f"length ({record_bytes} bytes)",
            cause=f"{body % record_bytes} bytes are left over: the file was cut short, or the dtype is not its layout",
            remedy="check dtype, header_bytes and footer_bytes, and that the file is whole",
        )
    return bodies
