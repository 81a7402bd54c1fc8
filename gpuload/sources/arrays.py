"""Arrays in memory: record i is the i-th item of each array.

Memory  the arrays are not copied: values that are written into them later are read from then on.
Maps    an array of a file (``numpy.memmap``, ``numpy.load(..., mmap_mode=...)``) is refused: if the file is cut short
        while it is read, the system ends the process, and nothing here would notice a file that changed. ``gl.npy`` and
        ``gl.fixed`` map files with a guard, and look whether they changed.
Access  arrays in C order by the core, which gathers their bytes, or by NumPy; the records of others
        are brought into C order first. Any byte order; the fields come out native.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gpuload import rawdecode, signalsafe
from gpuload.errors import SpecError
from gpuload.sources.base import LeafSource
from gpuload.sources.layouts import layout_of
from gpuload.sources.leaf import Array, Bytes, Group, Indices, Leaf, gather_rows
from gpuload.spec import Layout

HASHED_BYTES = 1 << 20  # of the beginning, the middle and the end of each array


def arrays(**fields: ArrayLike) -> ArraysSource:
    """Return the records of arrays of one length, a field for each: ``gl.arrays(image=images, label=labels)``.

    The fields of a structured array become the record's fields.

    Raises:
        SpecError: no array, arrays of different lengths, without axes, of Python objects, or of files.
    """
    if not fields:
        raise SpecError("gl.arrays() without arrays", cause="a record needs a field", remedy="gl.arrays(image=images)")
    columns = {name: as_array(name, value, is_field=True) for name, value in fields.items()}
    lengths = {name: len(array) for name, array in columns.items()}
    if len(set(lengths.values())) > 1:
        raise SpecError(
            f"the arrays have different lengths: {lengths}",
            cause="record i is the i-th item of each of them",
            remedy="pass arrays of one length",
        )
    return ArraysSource(columns)


class ArraysSource(LeafSource):
    """Arrays in memory; made by ``gl.arrays``."""

    _leaves: tuple[ArrayLeaf, ...]

    def __init__(self, fields: dict[str, Array]) -> None:
        self._leaves = tuple(ArrayLeaf(name, array) for name, array in fields.items())
        self._names, self._length = tuple(fields), self._leaves[0].num_records
        super().__init__(tuple(Group.of(leaf.layout) for leaf in self._leaves))

    def __len__(self) -> int:
        return self._length

    def __reduce__(self) -> tuple[Any, ...]:
        self.check_open()
        return type(self), ({name: leaf.array for name, leaf in zip(self._names, self._leaves, strict=True)},)

    def _where(self, number: int) -> str:
        return f"arrays, record {number}"

    def _title(self) -> str:
        return "gl.arrays"

    def describe(self) -> str:
        """Return one line about how records are read."""
        return ArrayLeaf.how

    def _digest(self) -> str:
        """Return a short text of names, dtypes, shapes, and the values of the first, middle and last MiB of each.

        How they lie in memory makes no difference: NumPy changes that when arrays are pickled.
        """
        self.check_open()
        about = [(field.name, field.dtype.str, field.shape) for field in self.spec]
        text = hashlib.blake2b(repr((self._length, about)).encode("utf-8", "surrogateescape"), digest_size=8)
        for leaf in self._leaves:
            count = max(1, HASHED_BYTES // max(1, leaf.layout.record_bytes))
            for start in (0, max(0, (self._length - count) // 2), max(0, self._length - count)):
                for value in leaf.values(np.arange(start, min(start + count, self._length), dtype=np.int64)):
                    text.update(np.ascontiguousarray(value).tobytes()[:HASHED_BYTES])
        return text.hexdigest()


class ArrayLeaf(Leaf):
    """One array in memory.

    Attributes:
        array: it.
    """

    how = "arrays in memory"

    def __init__(self, name: str, array: Array) -> None:
        self.layout: Layout = layout_of(array.dtype, array.shape[1:], field=name)
        self.spec, self.array, self.num_records = self.layout.spec, array, len(array)
        self._bytes = _as_bytes(array, self.layout.record_bytes) if array.flags.c_contiguous else None

    def _read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        if not self.layout.record_bytes:
            return
        if self._bytes is not None:
            gather_rows(self._bytes, numbers, out, begins)
        else:
            rows = _as_bytes(np.take(self.array, numbers, axis=0), self.layout.record_bytes)
            gather_rows(rows, np.arange(numbers.size, dtype=np.int64), out, begins)

    def values(self, numbers: Indices) -> list[Array]:
        """Return the fields of records, in the order of ``spec``."""
        raw = np.empty((numbers.size, self.layout.record_bytes), np.uint8)
        self.read(numbers, raw.reshape(-1), np.arange(numbers.size, dtype=np.int64) * self.layout.record_bytes)
        return list(rawdecode.decode(np, raw, self.layout).values())


def as_array(name: str, value: ArrayLike, *, is_field: bool = False) -> Array:
    """Return the user's value as an array whose items can be records, without a copy where it is one.

    Args:
        name: of the argument.
        value: of the argument.
        is_field: True where ``gl.records`` could have it as a field of varying length, which errors say.

    Raises:
        SpecError: it is none, has no axes, or is masked, of Python objects, or of a file.
    """
    if isinstance(value, signalsafe.import_package("numpy.ma").MaskedArray):
        raise SpecError(
            f"{name} is a masked array", cause="a record has no place for a mask", remedy=f"pass {name}.filled(0), say"
        )
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"{name} cannot be made an array",
            cause=str(error),
            remedy=_ragged_remedy(name, value) if is_field else "pass a NumPy array",
        ) from None
    if array.ndim == 0:
        raise SpecError(f"{name} is one value without axes", cause="it has no records", remedy="pass an array of them")
    if _is_of_file(array):
        raise SpecError(
            f"{name} is an array of a file (numpy.memmap)",
            cause="if the file is cut short while it is read, the system ends the process without an error",
            remedy=f"open the file with gl.npy or gl.fixed, or pass numpy.array({name}), a copy in memory",
        )
    if array.dtype.hasobject:
        raise SpecError(
            f"{name} is an array of Python objects",
            cause="objects are no bytes of a record",
            remedy=_ragged_remedy(name, value)
            if is_field and any(isinstance(item, (list, tuple, np.ndarray)) for item in array.flat)
            else "pass numbers, or text of fixed length: numpy.array(texts, dtype=str)",
        )
    return array


def _ragged_remedy(name: str, value: Any) -> str:
    """Return the remedy for arrays of different lengths."""
    return (
        f"of arrays of different lengths pass a function: gl.records({len(value)}, lambda numbers: "
        f'{{"{name}": [numpy.asarray({name}[number]) for number in numbers]}}); else a NumPy array'
    )


def _as_bytes(array: Array, record_bytes: int) -> Bytes:
    """Return the bytes of an array in C order, uint8 ``[N, record_bytes]``."""
    if not len(array) or not record_bytes:
        return np.empty((len(array), record_bytes), np.uint8)
    return array.reshape(-1).view(np.uint8).reshape(len(array), record_bytes)


def _is_of_file(array: Array) -> bool:
    """Return True if the elements lie in a map of a file: the array, or the array that it is a view of, is one."""
    base: Any = array
    while isinstance(base, np.ndarray):
        # The class alone says nothing: a copy of a memmap, which lies in memory, is one, too.
        if isinstance(base, np.memmap) and getattr(base, "_mmap", None) is not None:
            return True
        base = base.base
    return False
