"""NPY and NPZ: a file is one array of the records, or an archive with an array for each field; numpy.load reads them.

NPY     a file of one field is an array ``[records, *shape]``; of several fields it is a structured array, with the
        fields side by side in each row. A name with ``{field}`` in it makes a file for each field.
NPZ     a member for each field, stored as it is, so that `gl.npz` reads records where they lie.
Source  sources/npyheader.py; APPNOTE.TXT of PKWARE for ZIP, by Python's zipfile
"""

from __future__ import annotations

from typing import IO

import numpy as np

from gpuload import aside
from gpuload.sources import npyheader
from gpuload.sources.npy import npy
from gpuload.sources.npz import npz
from gpuload.spec import Field, Spec
from gpuload.writers.base import Format, Records, Refusal, as_rows, differs, record_dtype, stored_dtype, uniform_only

FIRST_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest of ZIP: the same records give the same bytes


def _refusal(one: Field) -> Refusal | None:
    return uniform_only(one, "an NPY file")


def _refusal_npz(one: Field) -> Refusal | None:
    if not one.name.strip(". ") or set(one.name) & set("/\\:\0"):
        return (
            "the name of a field is the name of a file in the archive, and this is none",
            f"rename it: source.rename(**{{{one.name!r}: 'x'}})",
        )
    if any(0xD800 <= ord(char) < 0xE000 for char in one.name):
        return (
            "its name holds half of a surrogate pair, and an archive has names in UTF-8",
            "rename it: source.rename(...)",
        )
    return uniform_only(one, "an NPZ file")


def _write_npy(path: str, records: Records) -> None:
    with open(path, "xb") as file:
        if len(records.spec) == 1:
            _write_field(file, records, records.spec.fields[0])
            return
        dtype = record_dtype(records.spec)
        file.write(npyheader.header(dtype, (records.count,)))
        for numbers, fields in records.chunks():
            file.write(as_rows(fields, dtype, numbers.size).tobytes())


def _write_npz(path: str, records: Records) -> None:
    zipfile = aside.import_package("zipfile")
    with zipfile.ZipFile(path, "x", zipfile.ZIP_STORED) as archive:
        for one in records.spec:
            with archive.open(zipfile.ZipInfo(f"{one.name}.npy", FIRST_TIME), "w", force_zip64=True) as file:
                _write_field(file, records, one)


def _write_field(file: IO[bytes], records: Records, one: Field) -> None:
    dtype = stored_dtype(one.dtype)
    file.write(npyheader.header(dtype, (records.count, *one.fixed_shape)))
    for _, fields in records.chunks((one.name,)):
        file.write(np.ascontiguousarray(fields[one.name], dtype).tobytes())


def _differs_npy(path: str, records: Records) -> str:
    with npy(path, field=records.spec.names[0]) as back:
        return differs(back, records)


def _differs_npz(path: str, records: Records) -> str:
    with npz(path) as back:
        return differs(back, records)


def _call_npy(path: str, spec: Spec) -> str:
    return f"gl.npy({path!r}, field={spec.names[0]!r})" if len(spec) == 1 else f"gl.npy({path!r})"


def _call_npz(path: str, spec: Spec) -> str:
    return f"gl.npz({path!r})"


NPY = Format("npy", (".npy",), _refusal, _write_npy, _differs_npy, _call_npy)
NPZ = Format("npz", (".npz",), _refusal_npz, _write_npz, _differs_npz, _call_npz)
