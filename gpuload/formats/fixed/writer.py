"""Fixed-length records: the bytes of the fields side by side, record after record, and a JSON that
describes them.

Source  formats/fixed/description.py
"""

from __future__ import annotations

import os

from gpuload.formats.fixed import description
from gpuload.formats.fixed.source import fixed
from gpuload.formats.writing import (
    Records,
    Refusal,
    Writer,
    as_rows,
    differs,
    record_dtype,
    uniform_only,
)
from gpuload.spec import Field, Spec


def _refusal(field: Field) -> Refusal | None:
    return uniform_only(field, "a file of fixed-length records")


def _write(path: str, records: Records) -> None:
    dtype = record_dtype(records.spec)
    with open(path, "xb") as file:
        for numbers, fields in records.chunks():
            file.write(as_rows(fields, dtype, numbers.size).tobytes())


def _beside(path: str, records: Records) -> dict[str, bytes]:
    dtype = record_dtype(records.spec)
    return {
        description.SUFFIX: description.format_description(
            os.path.basename(path), records.spec, dtype, records.count
        )
    }


def _differs(path: str, records: Records) -> str:
    with fixed(path, record_dtype(records.spec)) as back:
        return differs(back, records)


def _call(path: str, spec: Spec) -> str:
    return f"gl.open({path!r})"


def writer() -> Writer:
    """Return the writer of fixed-length records."""
    return Writer(_refusal, _write, _differs, _call, _beside)
