"""Arrays in memory: record i is the i-th item of each array.

Memory  the arrays are held, not copied: what is written into them later is read from then on.
Access  arrays in C order by a compiled gather of their bytes (`kernels/gather.py`) or ``numpy.take``; the records of
        others are brought into C order first. Any byte order; the fields come out native.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuload import kernels
from gpuload.errors import RecordIndexError, SpecError
from gpuload.sources.base import Indices, Source
from gpuload.sources.layouts import layout_of
from gpuload.spec import Spec

Array = NDArray[Any]
Block = NDArray[np.uint8]
HASHED_BYTES = 1 << 20  # of the beginning, the middle and the end of each array


def arrays(**fields: ArrayLike) -> ArraysSource:
    """Return the records of arrays of one length, a field for each: ``gl.arrays(image=images, label=labels)``.

    The fields of a structured array become the record's fields.

    Raises:
        SpecError: no array, arrays of different lengths, without axes, or of Python objects.
    """
    if not fields:
        raise SpecError("gl.arrays() without arrays", cause="a record needs a field", remedy="gl.arrays(image=images)")
    made = {name: _as_array(name, value) for name, value in fields.items()}
    lengths = {name: len(array) for name, array in made.items()}
    if len(set(lengths.values())) > 1:
        raise SpecError(
            f"the arrays have different lengths: {lengths}",
            cause="record i is the i-th item of each of them",
            remedy="pass arrays of one length",
        )
    return ArraysSource(made)


class ArraysSource(Source):
    """Arrays in memory; made by ``gl.arrays``."""

    def __init__(self, fields: dict[str, Array]) -> None:
        self._arrays: tuple[Array, ...] = tuple(fields.values())
        self._length = len(self._arrays[0])
        self.blocks = tuple(layout_of(array.dtype, array.shape[1:], field=name) for name, array in fields.items())
        self.spec = Spec(tuple(part.field for layout in self.blocks for part in layout.parts))

    def __len__(self) -> int:
        return self._length

    def fill(self, indices: Indices, rows: Indices, out: Sequence[Block]) -> None:
        """Write the bytes of records into rows of blocks; see ``Source.fill``."""
        self.check_open()
        for array, block in zip(self._arrays, out, strict=True):
            if array.flags.c_contiguous:
                _gather(indices, rows, _as_bytes(array), block)
            else:
                block[rows] = _as_bytes(np.take(array, indices, axis=0))

    def where(self, index: int) -> str:
        """Return the number of the record."""
        return f"arrays, record {index}"

    def fingerprint(self) -> str:
        """Return a short text of names, dtypes, shapes, and the content of the first, middle and last MiB of each."""
        parts = [
            (part.field.name, part.dtype.str, part.field.shape, part.offset_bytes)
            for layout in self.blocks
            for part in layout.parts
        ]
        text = hashlib.blake2b(repr((self._length, parts)).encode(), digest_size=8)
        for array in self._arrays:
            count = max(1, HASHED_BYTES // max(1, array[:1].nbytes))
            for start in (0, max(0, (len(array) - count) // 2), max(0, len(array) - count)):
                text.update(np.ascontiguousarray(array[start : start + count]).tobytes()[:HASHED_BYTES])
        return text.hexdigest()

    def close(self) -> None:
        """Let go of the arrays."""
        super().close()
        self._arrays = ()


def _as_array(name: str, value: ArrayLike) -> Array:
    if isinstance(value, np.ma.MaskedArray):
        raise SpecError(
            f"{name} is a masked array", cause="a record has no place for a mask", remedy=f"pass {name}.filled(0), say"
        )
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise SpecError(f"{name} cannot be made an array", cause=str(error), remedy="pass a NumPy array") from None
    if array.ndim == 0:
        raise SpecError(f"{name} is one value without axes", cause="it has no records", remedy="pass an array of them")
    if array.dtype.hasobject:
        raise SpecError(
            f"{name} is an array of Python objects",
            cause="objects are no bytes of a record",
            remedy="pass numbers, or text of fixed length: numpy.array(texts, dtype=str)",
        )
    return array


def _as_bytes(array: Array) -> Block:
    """Return the bytes of an array in C order, uint8 ``[N, record_bytes]``."""
    record_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    if not array.size or not record_bytes:
        return np.empty((len(array), record_bytes), np.uint8)
    return array.reshape(-1).view(np.uint8).reshape(len(array), record_bytes)


def _gather(indices: Indices, rows: Indices, source: Block, block: Block) -> None:
    compiled = kernels.load("gather")
    if compiled is None:
        block[rows] = np.take(source, indices, axis=0)
        return
    indices, rows = np.require(indices, np.int64, ["C", "W"]), np.require(rows, np.int64, ["C", "W"])
    outside = compiled.gather(indices, rows, _place(source), _place(block), source.shape[1])
    if outside >= 0:
        raise RecordIndexError(
            f"record {indices[outside]} of {len(source)} to row {rows[outside]} of {len(block)}",
            cause="the record or the row is outside",
            remedy="check the indices, and that each row lies in the block",
        )


def _place(block: Block) -> tuple[int, int, int]:
    """Return address, bytes from row to row, and number of rows."""
    return block.__array_interface__["data"][0], block.strides[0], len(block)
