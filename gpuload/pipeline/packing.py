"""Packing: values that vary in size, put together where a GPU copies them from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.device import Views, view_at
from gpuload.pipeline.ring import aligned
from gpuload.ragged import Ragged, concatenate, offsets_of
from gpuload.sources.leaf import Values
from gpuload.sources.memory import Memory

Array = NDArray[Any]
Bytes = NDArray[np.uint8]
VALUES_BYTES = 1 << 22  # of a piece of memory for values that the slot has no room for


class ValuePacking:
    """Puts values that vary in size where a GPU copies from them: behind the arrays of the step's
    slot, if they fit.

    It is a ``Memory`` for images, which are decoded there; other values are copied. Values that do
    not fit go to pieces of memory of its own, and each piece is an upload: so it is until a first
    step has shown how much its values need.

    Args:
        behind: returns the slot and the place of so many bytes in it; None if there is no room for
            them.
        memory: gives a piece.
        num_rows: how many values there may be.
    """

    def __init__(
        self, behind: Callable[[int], tuple[Bytes, int] | None], memory: Memory, num_rows: int
    ) -> None:
        self._behind, self._memory, self._num_rows = behind, memory, num_rows
        self._places: dict[
            int, tuple[Bytes, int, int]
        ] = {}  # of arrays, by their address: piece, first byte, bytes
        self._piece: Bytes = np.empty(0, np.uint8)
        self._end = 0  # of the bytes in use there

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return memory for an array, in C order."""
        num_bytes = prod(shape) * dtype.itemsize
        piece, begin = self._behind(num_bytes) or self._beside(num_bytes)
        array: Array = np.ndarray(shape, dtype, piece, begin)
        self._places[array.ctypes.data] = piece, begin, num_bytes
        return array

    def _beside(self, num_bytes: int) -> tuple[Bytes, int]:
        if self._end + num_bytes > self._piece.size:
            size = max(num_bytes, min(VALUES_BYTES, self._num_rows * aligned(num_bytes)))
            self._piece, self._end = self._memory(size), 0
        begin, self._end = self._end, self._end + aligned(num_bytes)
        return self._piece, begin

    def pack(self, values: Values) -> Values:
        """Return values in such memory; those that were made there are not copied."""
        if isinstance(values, list):
            arrays, places = zip(*map(self._in_place, values), strict=True) if values else ((), ())
            return ArrayPack(arrays, places)
        if isinstance(values, Ragged):
            return values.with_payload(self._copy(values.flat))
        return self._copy(values)

    def join(self, parts: list[Any]) -> list[Values]:
        """Return the values of several parts as one, copied to such memory; lists of arrays as they
        are."""
        ragged = [values for values in parts if isinstance(values, Ragged)]
        arrays = [values.flat for values in ragged] or [
            values for values in parts if isinstance(values, np.ndarray)
        ]
        if not arrays or len(arrays) < len(parts):
            return parts
        copy = self((sum(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype)
        np.concatenate(arrays, out=copy)
        if not ragged:
            return [copy]
        return [Ragged(copy, offsets_of(np.concatenate([values.lengths for values in ragged])))]

    def _in_place(self, array: Array) -> tuple[Array, tuple[Bytes, int]]:
        """Return an array in such memory, and its place there."""
        place = self._places.get(array.ctypes.data)
        if place is None or not array.flags.c_contiguous or not 0 < array.nbytes == place[2]:
            array = self._copy(array)
            place = self._places[array.ctypes.data]
        return array, place[:2]

    def _copy(self, array: Array) -> Array:
        copy = self(array.shape, array.dtype)
        np.copyto(copy, array)
        return copy


class ArrayPack(list[Array]):
    """Arrays of different shapes that lie in a few pieces of memory, so that a GPU gets them by as
    many uploads.

    Args:
        arrays: the arrays, each in C order.
        places: of each array, the piece of memory, uint8, and its first byte there.
    """

    def __init__(self, arrays: Iterable[Array], places: Iterable[tuple[Bytes, int]]) -> None:
        super().__init__(arrays)
        entries = list(places)
        self._pieces, self._begins = (
            [piece for piece, _ in entries],
            [begin for _, begin in entries],
        )

    @classmethod
    def concatenate(cls, parts: list[ArrayPack]) -> ArrayPack:
        """Return the arrays of several."""
        places = (place for part in parts for place in zip(part._pieces, part._begins, strict=True))
        return cls((array for part in parts for array in part), places)

    def on_device(self, upload: Callable[[Bytes], Any]) -> list[Any] | Views:
        """Return the arrays on a GPU, images in one piece of memory as `Views`; ``upload`` copies a
        piece there."""
        shapes = [array.shape for array in self]
        if len(set(map(id, self._pieces))) == 1 and set(map(len, shapes)) == {3}:
            piece, first = self._pieces[0], self[0]
            table = np.fromiter(chain.from_iterable(shapes), np.int64, 3 * len(self)).reshape(-1, 3)
            begins = np.array(self._begins, np.int64)
            end = (begins + table.prod(axis=1) * first.itemsize).max()
            return Views(upload(piece[:end]), first.dtype, table, begins)
        pieces = {id(piece): piece for piece in self._pieces}
        ends = dict.fromkeys(pieces, 0)
        for array, piece, begin in zip(self, self._pieces, self._begins, strict=True):
            ends[id(piece)] = max(ends[id(piece)], begin + array.nbytes)
        memory = {key: upload(piece[: ends[key]]) for key, piece in pieces.items()}
        return [
            view_at(memory[id(piece)], begin, array.dtype, array.shape)
            for array, piece, begin in zip(self, self._pieces, self._begins, strict=True)
        ]


def join_parts(parts: list[Values]) -> Values:
    """Return the values of a field that varies, joined from the parts of a step, in the order of
    the rows."""
    if len(parts) == 1:
        return parts[0]
    texts = [part for part in parts if isinstance(part, np.ndarray)]
    if len(texts) == len(parts):
        return np.concatenate(texts)
    packs = [part for part in parts if isinstance(part, ArrayPack)]
    if len(packs) == len(parts):
        return ArrayPack.concatenate(packs)
    ragged = [part for part in parts if isinstance(part, Ragged)]
    if len(ragged) == len(parts):
        return concatenate(ragged)
    return [value for part in parts for value in part]
