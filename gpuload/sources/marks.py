"""Marks: facts of fields that files do not say, from the user: encoded images, and the order of axes.

Padding  encoded images that are stored in one length each have zeros behind shorter ones. JPEG files end in D9 and PNG
         files in 82, so that all zeros at the end can be cut off.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuload import rawdecode
from gpuload.errors import SpecError
from gpuload.ragged import Ragged
from gpuload.sources.leaf import Bytes, Indices, Leaf, Values
from gpuload.spec import Field, Spec

ENCODED_MARK = "encoded"
AXES = ("HWC", "CHW")
UINT8 = np.dtype(np.uint8)


def mark_field(field: Field, mark: str) -> Field:
    """Return the field that a mark makes of a field.

    Raises:
        SpecError: there is no such mark, or it does not fit the field.
    """
    if not isinstance(mark, str) or mark not in (ENCODED_MARK, *AXES):
        raise SpecError(
            f"mark({field.name}={mark!r})",
            cause="a mark is 'encoded', 'HWC' or 'CHW'",
            remedy="pass one of these texts",
        )
    if mark == ENCODED_MARK:
        if field.encoded:
            return field
        is_bytes = (field.dtype, field.shape) == (UINT8, (None,)) or (field.text == "bytes" and field.shape == ())
        if not is_padded(field) and not is_bytes:
            raise _mark_error(field, mark, "encoded images are one axis of uint8, or bytes (dtype S or V) without axes")
        return field.with_(dtype=UINT8, shape=(None,), encoded=True, text="")
    if field.encoded or field.shape is None or len(field.shape) != len(mark):
        raise _mark_error(field, mark, "the axes of three are named: height, width and channels")
    return field.with_(axes=mark)


def _mark_error(field: Field, mark: str, cause: str) -> SpecError:
    return SpecError(
        f"mark({field.name}={mark!r}): the field is {field}",
        cause=cause,
        remedy="mark another field, or leave this mark out",
    )


def is_padded(field: Field) -> bool:
    """Return True if the records of a field are bytes of one length."""
    if field.dtype.kind in "SV":
        return field.shape == ()
    return field.dtype == UINT8 and field.uniform and len(field.fixed_shape) == 1


class PaddedLeaf(Leaf):
    """A field of a leaf that holds encoded images of one length each, with zeros behind them, which are cut off.

    Args:
        leaf: with the records.
        pick: the number of the field in the leaf.
        field: that it becomes.
    """

    def __init__(self, leaf: Leaf, pick: int, field: Field) -> None:
        self.spec, self.num_records, self.how = Spec((field,)), leaf.num_records, leaf.how
        self._leaf, self._pick = leaf, pick

    def num_bytes(self, numbers: Indices) -> Indices:
        """Return how many raw bytes each record has, int64 ``[n]``; those of all its fields."""
        return self._leaf.num_bytes(numbers)

    def _read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        self._leaf.read(numbers, out, begins)

    def unpack(self, numbers: Indices, raw: Ragged) -> list[Values]:
        """Return the images without the zeros behind them."""
        rows = self._rows(numbers, raw)
        lengths = [len(row.tobytes().rstrip(b"\0")) for row in rows]
        return [Ragged.of([row[:length] for row, length in zip(rows, lengths, strict=True)], UINT8)]

    def _rows(self, numbers: Indices, raw: Ragged) -> Bytes:
        """Return the bytes of the field, uint8 ``[n, num_bytes]``."""
        if self._leaf.layout is None:
            values: Any = self._leaf.unpack(numbers, raw)[self._pick]
        else:
            records, part = raw.flat.reshape(numbers.size, -1), self._leaf.layout.parts[self._pick]
            if part.is_c_order:
                return records[:, part.offset_bytes : part.offset_bytes + part.num_bytes]  # type: ignore[no-any-return]
            values = rawdecode.view_part(records, part)
        return np.ascontiguousarray(values).view(np.uint8).reshape(numbers.size, -1)

    def origin(self, number: int) -> tuple[str, int] | None:
        """Return the file that holds a record and the byte where it begins; None where no file is known."""
        return self._leaf.origin(number)

    def advise(self, numbers: Indices) -> None:
        """Ask the system to have these records in memory soon."""
        self._leaf.advise(numbers)
