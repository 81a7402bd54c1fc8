"""Parquet, written: a row group for some megabytes of records, through PyArrow.

Arrays   become lists of fixed size, one in the other for each axis; `Ragged` becomes a list.
         PyArrow's schema in the file says so, and ``gl.parquet`` reads the same fields again. Bytes
         and images are binary values, times keep their unit.
Text     is UTF-8; that of a fixed length is read again as text of any length. Parquet has no times
         in seconds: they are stored in milliseconds.
Classes  their names stand in the metadata as `datasets` writes them.
Refused  fields of several varying axes, text of a fixed length with axes, text of bytes, complex
         numbers.
"""

from __future__ import annotations

import json
from functools import reduce
from typing import Any

import numpy as np

from gpuload.formats import columnar
from gpuload.formats.parquet.source import parquet
from gpuload.formats.writing import Records, Refusal, Writer, check_texts, differs
from gpuload.ragged import Ragged
from gpuload.sources.leaf import Values
from gpuload.spec import ENCODED_BYTES, LARGEST_REAL_BYTES, Field, Spec

LABEL = "label"
UNITS = ("s", "ms", "us", "ns")  # of Arrow's times


def writer() -> Writer:
    """Return the writer of Parquet files."""
    return Writer(
        refusal=_refusal,
        write=_write,
        differs=_differs,
        call=lambda path, spec: f"gl.parquet({path!r})",
        notes=_note,
        holds_classes=lambda spec: _class_field(spec) is not None,
    )


def _refusal(field: Field) -> Refusal | None:
    kind, dtype = field.dtype.kind, field.dtype
    if field.text == "bytes" or kind == "S":
        return (
            "Parquet has binary values, which are read as uint8 and no text",
            "choose TFRecord (.tfrecord)",
        )
    if field.text or field.encoded:
        return None
    if 0 in (field.shape or ()):
        return (
            f"lists of fixed size are never empty, and its shape is {field.shape}",
            "choose NPY, which has it",
        )
    if not field.uniform and not field.ragged:
        cause = f"its shape is {field.shape}, and only a first axis may vary here"
        return cause, "choose TFRecord with tensors=, which keeps shapes"
    if kind == "U" and field.shape != ():
        return "text of a fixed length with axes has no form here", "choose NPY, which has it"
    if kind in "mM":
        unit = np.datetime_data(dtype)[0]
        fits = unit in UNITS or dtype == np.dtype("M8[D]")
        if fits and np.datetime_data(dtype)[1] == 1:
            return None
        return (f"Arrow has no times in {unit}", "choose NPY")
    if kind == "U" or (kind in "biuf" and dtype.itemsize <= LARGEST_REAL_BYTES):
        return None
    return f"Arrow has no values of {dtype}", "choose NPY, which has this dtype"


def _write(path: str, records: Records) -> None:
    arrow = columnar.import_arrow("gl.convert to Parquet")
    file = None
    try:
        for numbers, fields in records.chunks():
            for name in [field.name for field in records.spec if field.dtype.kind == "U"]:
                check_texts(records.source, numbers.tolist(), np.asarray(fields[name]).tolist())
            columns = [
                _array(arrow, field, fields[field.name], numbers.size) for field in records.spec
            ]
            table = arrow.Table.from_arrays(
                columns, names=list(records.spec.names), metadata=_metadata(records)
            )
            file = file or arrow.parquet.ParquetWriter(path, table.schema, write_page_checksum=True)
            file.write_table(table, row_group_size=max(numbers.size, 1))
    finally:
        if file is not None:
            file.close()


def _class_field(spec: Spec) -> str | None:
    """Return the field of the labels: "label", or the only whole number of a record; None if that
    is not clear."""
    names = [field.name for field in spec if field.shape == () and field.dtype.kind in "iu"]
    if LABEL in names:
        return LABEL
    return names[0] if len(names) == 1 else None


def _metadata(records: Records) -> dict[bytes, bytes] | None:
    """Return the names of classes in the form of `datasets`, which reads them, too; None
    without."""
    name = _class_field(records.source.spec)
    if not records.source.classes or name not in records.spec.names:
        return None
    features = {name: {"names": list(records.source.classes), "_type": "ClassLabel"}}
    return {b"huggingface": json.dumps({"info": {"features": features}}).encode()}


def _differs(path: str, records: Records) -> str:
    with parquet(path) as back:
        return differs(
            back, records, {field.name: field.dtype for field in records.spec if _note(field)}
        )


def _note(field: Field) -> str:
    """Return how a field is stored that comes back as another one; "" for others."""
    if field.dtype.kind == "U":
        return "stored as UTF-8, read as text of any length"
    if field.dtype == np.dtype("M8[s]"):
        return "stored in milliseconds"
    return ""


def _array(arrow: Any, field: Field, values: Values, count: int) -> Any:
    """Return the values of a field as an array of Arrow."""
    if field.text and field.shape == ():
        return arrow.array(list(values), arrow.string())
    if field.text:
        return arrow.array([value.tolist() for value in values], arrow.list_(arrow.string()))
    if (field.dtype, field.shape) == ENCODED_BYTES:
        return arrow.array([value.tobytes() for value in values], arrow.binary())
    if isinstance(values, Ragged):
        elements = _elements(arrow, field, values.flat, values.payload.shape[1:])
        # Large lists: their offsets are int64, as ours.
        return arrow.LargeListArray.from_arrays(values.offsets - values.offsets[0], elements)
    array = np.asarray(values)
    if array.dtype.kind == "U":
        return arrow.array(array.tolist(), arrow.string())
    return _elements(arrow, field, array, array.shape[1:])


def _elements(arrow: Any, field: Field, array: Any, shape: tuple[int, ...]) -> Any:
    """Return an array ``[n, *shape]`` as n lists of fixed size, one in the other."""
    flat = arrow.array(np.ascontiguousarray(array).reshape(-1))
    if field.zone == "UTC":
        flat = flat.cast(arrow.timestamp(flat.type.unit, "UTC"))
    return reduce(
        lambda inner, length: arrow.FixedSizeListArray.from_arrays(inner, length), shape[::-1], flat
    )
