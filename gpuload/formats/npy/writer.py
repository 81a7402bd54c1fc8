"""NPY: a file is one array of the records; numpy.load reads it.

A file of one field is an array ``[records, *shape]``; of several fields it is a structured array,
with the fields side by side in each row. A name with ``{field}`` in it makes a file for each field.
"""

from __future__ import annotations

from typing import IO

import numpy as np

from gpuload.formats.npy import npyheader
from gpuload.formats.npy.source import npy
from gpuload.formats.writing import (
    Records,
    Refusal,
    Writer,
    as_rows,
    differs,
    record_dtype,
    stored_dtype,
    uniform_only,
)
from gpuload.spec import Field, Spec


def _refusal(field: Field) -> Refusal | None:
    return uniform_only(field, "an NPY file")


def _write(path: str, records: Records) -> None:
    with open(path, "xb") as file:
        if len(records.spec) == 1:
            write_array(file, records, records.spec.fields[0])
            return
        dtype = record_dtype(records.spec)
        file.write(npyheader.header(dtype, (records.count,)))
        for numbers, fields in records.chunks():
            file.write(as_rows(fields, dtype, numbers.size).tobytes())


def write_array(file: IO[bytes], records: Records, field: Field) -> None:
    """Write one field of the records as an NPY file."""
    dtype = stored_dtype(field.dtype)
    file.write(npyheader.header(dtype, (records.count, *field.fixed_shape)))
    for _, fields in records.chunks((field.name,)):
        file.write(np.ascontiguousarray(fields[field.name], dtype).tobytes())


def _differs(path: str, records: Records) -> str:
    with npy(path, field=records.spec.names[0]) as back:
        return differs(back, records)


def _call(path: str, spec: Spec) -> str:
    if len(spec) == 1:
        return f"gl.npy({path!r}, field={spec.names[0]!r})"
    return f"gl.npy({path!r})"


def writer() -> Writer:
    """Return the writer of NPY files."""
    return Writer(_refusal, _write, _differs, _call)
