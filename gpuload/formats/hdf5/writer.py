"""HDF5, written: a dataset in one piece for each field, through h5py, so that rows are read where
they lie.

Arrays   keep dtype and shape; numbers are little-endian. `Ragged` becomes values of varying length,
         text UTF-8 of varying length; that of a fixed length is read again as text of any length.
Version  ``libver="v108"``: HDF5 1.8 or later reads it, and its metadata have checksums.
Refused  fields of several varying axes, dates and times, text of bytes of varying length.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from gpuload import signalsafe
from gpuload.errors import missing_package
from gpuload.formats.hdf5.source import hdf5
from gpuload.formats.writing import Records, Refusal, Writer, check_texts, differs, stored_dtype
from gpuload.ragged import Ragged
from gpuload.sources.leaf import Values
from gpuload.spec import Field

TENSORS = "choose TFRecord with tensors=, which keeps shapes"


def writer() -> Writer:
    """Return the writer of HDF5 files."""
    return Writer(
        refusal=_refusal,
        write=_write,
        differs=_differs,
        call=lambda path, spec: f"gl.hdf5({path!r})",
        notes=lambda field: (
            "stored as UTF-8, read as text of any length" if field.dtype.kind == "U" else ""
        ),
    )


def _refusal(field: Field) -> Refusal | None:
    if "/" in field.name or field.name == ".":
        return (
            "its name is a path of HDF5, with groups",
            f"rename it: source.rename(**{{{field.name!r}: 'x'}})",
        )
    if field.text == "bytes" or (field.text and field.shape != ()):
        return "HDF5 has only single texts of UTF-8 here", "choose TFRecord (.tfrecord)"
    if field.text or field.encoded:
        return None
    if not field.uniform and (not field.ragged or len(field.shape or ()) > 1):
        return (
            f"its shape is {field.shape}, and values of varying length have one axis here",
            TENSORS,
        )
    if field.dtype.kind in "mM":
        return "HDF5 has no dates and times", "choose Parquet (.parquet)"
    if field.dtype.kind == "U" and field.shape != ():
        return "text of a fixed length with axes has no form here", "choose NPY, which has it"
    return None


def _write(path: str, records: Records) -> None:
    try:
        h5py = signalsafe.import_package("h5py")
    except ImportError as error:
        raise missing_package(
            "h5py", needed_for="gl.convert to HDF5", extra="hdf5", error=error
        ) from None
    _check_length(path, records)
    # The metadata of HDF5 1.8 and later have checksums, the earliest form, which h5py writes by
    # default, has none.
    with h5py.File(path, "x", libver="v108") as file:
        datasets = {}
        for field in records.spec:
            is_text, dtype = _is_text(field), stored_dtype(field.dtype)
            if is_text or not field.uniform:
                if is_text:
                    dtype = h5py.string_dtype()
                else:
                    dtype = h5py.vlen_dtype(dtype)
            has_shape = field.uniform and not is_text
            shape = field.fixed_shape if has_shape else ()
            datasets[field.name] = file.create_dataset(field.name, (records.count, *shape), dtype)
        begin = 0
        for numbers, fields in records.chunks():
            for name, values in fields.items():
                if _is_text(records.spec[name]):
                    check_texts(records.source, numbers.tolist(), values, allow_nul=False)
                if _varies(values):
                    datasets[name][begin : begin + numbers.size] = _objects(values)
                else:
                    datasets[name][begin : begin + numbers.size] = values
            begin += numbers.size


def _is_text(field: Field) -> bool:
    return bool(field.text) or field.dtype.kind == "U"


def _check_length(path: str, records: Records) -> None:
    """Raise ``OSError`` if the system allows no file that is as long as the values of fields of
    fixed length.

    HDF5 would find out when it closes the file, keep parts of it, and end the process with a
    segmentation fault when Python ends (h5py 3.14 and 3.16, under `ulimit -f`). That the disk is
    full it finds out before.
    """
    sizes = (
        field.dtype.itemsize * math.prod(field.fixed_shape)
        for field in records.spec
        if field.has_rows
    )
    with open(path, "xb") as file:
        file.truncate(records.count * sum(sizes))
    os.remove(path)


def _varies(values: Values) -> bool:
    return isinstance(values, (Ragged, list)) or np.asarray(values).dtype.kind in "OU"


def _objects(values: Values) -> Any:
    """Return values of varying length as an array of objects, or as a matrix where they happen to
    have one length.

    h5py makes objects of the rows of a matrix; of an array of objects of one length it makes a
    matrix of objects, which it then refuses (3.16).
    """
    if any(isinstance(value, str) for value in values):
        return np.array([str(value) for value in values], object)
    arrays = list(map(np.ascontiguousarray, values))
    if len({array.shape for array in arrays}) == 1:
        return np.stack(arrays)
    objects = np.empty(len(arrays), object)
    for row, array in enumerate(arrays):
        objects[row] = array
    return objects


def _differs(path: str, records: Records) -> str:
    with hdf5(path, list(records.spec.names)) as back:
        dtypes = {field.name: field.dtype for field in records.spec if field.dtype.kind == "U"}
        return differs(back, records, dtypes)
