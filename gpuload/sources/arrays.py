"""Arrays in memory: record i is the i-th item of each array.

Memory  the arrays are not copied: values that are written into them later are read from then on.
Texts   an array of objects that are all str, or all bytes, as a column of pandas is, is a field of
        text of any length. Its texts are copied into one piece of memory.
Maps    an array of a file (``numpy.memmap``, ``numpy.load(..., mmap_mode=...)``) is refused: if the
        file is cut short while it is read, the system ends the process, and nothing here would
        notice a file that changed. ``gl.npy`` and ``gl.fixed`` map files with a guard, and look
        whether they changed.
Access  arrays in C order by the core, which gathers their bytes, or by NumPy; the records of others
        are brought into C order first. Any byte order; the fields come out native.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gpuload import rawdecode, signalsafe, strings
from gpuload.errors import RowError, SpecError
from gpuload.sources.base import LeafSource
from gpuload.sources.layouts import layout_of
from gpuload.sources.leaf import Array, Bytes, Group, Indices, Leaf, gather_pieces, gather_rows
from gpuload.spec import Field, Layout, Spec, check_name

HASHED_BYTES = 1 << 20  # of the beginning, the middle and the end of each array


def arrays(**fields: ArrayLike) -> ArraysSource:
    """Return the records of arrays of one length, a field for each: ``gl.arrays(image=images,
    label=labels)``.

    The fields of a structured array become the record's fields. Objects that are texts, as in a
    column of pandas, are a field of text of any length.

    Raises:
        SpecError: no array, arrays of different lengths, without axes, of Python objects that are
            no texts, or of files.
    """
    if not fields:
        raise SpecError(
            "gl.arrays() without arrays",
            cause="a record needs a field",
            remedy="gl.arrays(image=images)",
        )
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

    _leaves: tuple[ArrayLeaf | TextLeaf, ...]

    def __init__(self, fields: dict[str, Array]) -> None:
        self._leaves = tuple(
            TextLeaf(name, array) if array.dtype.hasobject else ArrayLeaf(name, array)
            for name, array in fields.items()
        )
        self._names, self._length = tuple(fields), self._leaves[0].num_records
        super().__init__(tuple(leaf.group for leaf in self._leaves))

    def __len__(self) -> int:
        return self._length

    def __reduce__(self) -> tuple[Any, ...]:
        self.check_open()
        return type(self), (
            {name: leaf.array for name, leaf in zip(self._names, self._leaves, strict=True)},
        )

    def _where(self, number: int) -> str:
        return f"arrays, record {number}"

    def _title(self) -> str:
        return "gl.arrays"

    def describe(self) -> str:
        """Return one line about how records are read."""
        return ArrayLeaf.how

    def _digest(self) -> str:
        """Return a short text of names, dtypes, shapes, and the values of the first, middle and
        last MiB of each.

        How they lie in memory makes no difference: NumPy changes that when arrays are pickled.
        """
        self.check_open()
        about = [
            (field.name, field.dtype.str, field.shape, *filter(None, [field.text]))
            for field in self.spec
        ]
        text = hashlib.blake2b(
            repr((self._length, about)).encode("utf-8", "surrogateescape"), digest_size=8
        )
        for leaf in self._leaves:
            for sample in leaf.samples():
                text.update(sample)
        return text.hexdigest()


class ArrayLeaf(Leaf):
    """One array in memory.

    Attributes:
        array: it.
    """

    how, asks_once = "arrays in memory", True

    def __init__(self, name: str, array: Array) -> None:
        self.layout: Layout = layout_of(array.dtype, array.shape[1:], field=name)
        self.spec, self.array, self.num_records = self.layout.spec, array, len(array)
        self.group = Group.of(self.layout)
        self._bytes = (
            _as_bytes(array, self.layout.record_bytes) if array.flags.c_contiguous else None
        )

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
        self.read(
            numbers,
            raw.reshape(-1),
            np.arange(numbers.size, dtype=np.int64) * self.layout.record_bytes,
        )
        return list(rawdecode.decode(np, raw, self.layout).values())

    def samples(self) -> Iterator[bytes]:
        """Yield the values of the beginning, the middle and the end, for a fingerprint."""
        length, count = self.num_records, max(1, HASHED_BYTES // max(1, self.layout.record_bytes))
        for start in (0, max(0, (length - count) // 2), max(0, length - count)):
            for value in self.values(np.arange(start, min(start + count, length), dtype=np.int64)):
                yield np.ascontiguousarray(value).tobytes()[:HASHED_BYTES]


class TextLeaf(Leaf):
    """Texts in memory: their bytes one behind the other, record i from ``offsets[i]`` to
    ``offsets[i + 1]``.

    Raises:
        SpecError: a text cannot be written as UTF-8.
    """

    how, is_direct, asks_once = "arrays in memory", True, True

    def __init__(self, name: str, array: Array) -> None:
        check_name(name)
        if len(array) and isinstance(array[0], bytes):
            kind = "bytes"
        else:
            kind = "str"
        field = Field(name, np.dtype(object), (), text=kind)
        try:
            texts = strings.pack(field, array)
        except RowError as error:
            raise SpecError(
                f"{name}[{error.row}]: {error.reason}",
                cause=error.cause or "it is no text",
                remedy=error.remedy,
            ) from None
        self.spec, self.num_records, self._texts = Spec((field,)), len(array), texts
        self.group = Group(self.spec, None, is_quick=True)

    @property
    def array(self) -> Array:
        """The texts as objects."""
        return np.asarray(strings.unpack(self.spec.fields[0], self._texts))

    def num_bytes(self, numbers: Indices) -> Indices:
        """Return how many bytes each text has, int64 ``[n]``."""
        return self._texts.offsets[numbers + 1] - self._texts.offsets[numbers]

    def _read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        gather_pieces(
            self._texts.payload, self._texts.offsets[numbers], self.num_bytes(numbers), out, begins
        )

    def samples(self) -> Iterator[bytes]:
        """Yield lengths and texts of the beginning, the middle and the end, for a fingerprint."""
        for values in (self._texts.offsets, self._texts.payload):
            count = max(1, HASHED_BYTES // values.itemsize)
            for start in (0, max(0, (values.size - count) // 2), max(0, values.size - count)):
                yield values[start : start + count].tobytes()


def as_array(name: str, value: ArrayLike, *, is_field: bool = False) -> Array:
    """Return the user's value as an array with items that can be records, without a copy where it
    is one.

    Args:
        name: of the argument.
        value: of the argument.
        is_field: True where ``gl.records`` could have it as a field of varying length, which errors
            say.

    Raises:
        SpecError: it is none, has no axes, or is masked, of Python objects, or of a file.
    """
    if isinstance(value, signalsafe.import_package("numpy.ma").MaskedArray):
        raise SpecError(
            f"{name} is a masked array",
            cause="a record has no place for a mask",
            remedy=f"pass {name}.filled(0), say",
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
        raise SpecError(
            f"{name} is one value without axes",
            cause="it has no records",
            remedy="pass an array of them",
        )
    if not isinstance(value, np.ndarray):
        _check_conversion(name, value, array)
    if _is_of_file(array):
        raise SpecError(
            f"{name} is an array of a file (numpy.memmap)",
            cause="if the file is cut short while it is read, the system ends the process without "
            "an error",
            remedy=f"open the file with gl.npy or gl.fixed, or pass numpy.array({name}), a copy in "
            "memory",
        )
    if array.dtype.kind in "SU" and array.ndim == 1 and isinstance(value, (list, tuple)):
        array = _with_ends(value, array)
    if array.dtype.hasobject:
        return _texts(name, array, value, is_field=is_field)
    return array


def _check_conversion(name: str, value: Any, array: Array) -> None:
    """Raise ``SpecError`` if the array that NumPy made of a list or of another library's array has
    other values."""
    if isinstance(value, (list, tuple)):
        if array.dtype.kind == "f":
            _check_whole_numbers(name, value, array)
        return
    if hasattr(value, "__len__") and len(value) != len(array):
        raise SpecError(
            f"{name} has {len(value)} values, and {len(array)} came when they were read",
            cause="Python takes an IndexError or StopIteration of a sequence for its end",
            remedy=f"mend it; the first value that cannot be read is {name}[{len(array)}]",
        )
    if array.dtype.kind != "O" and _has_gaps(value):
        raise SpecError(
            f"{name} has values that are missing",
            cause=f"a record has no gap, and NumPy makes {array.dtype} of them, with NaN in their "
            "place",
            remedy=f"put a number in their place, {name}.fillna(0) or {name}.fill_null(0); or "
            "leave these records out",
        )


def _check_whole_numbers(name: str, value: Sequence[Any], array: Array) -> None:
    """Raise ``SpecError`` if floats of NumPy round a whole number of a list."""
    for item in value:
        if type(item) is int and int(float(item)) != item:
            raise SpecError(
                f"{name} has the whole number {item}",
                cause=f"NumPy makes {array.dtype} of this list, which does not hold it",
                remedy=f"say the dtype: numpy.array({name}, dtype=float) rounds it",
            )


def _has_gaps(value: Any) -> bool:
    """Return True if an array of pyarrow, polars or pandas has missing values; NaN is none of
    them."""
    count = getattr(value, "null_count", 0)
    if callable(count):
        count = count()
    if isinstance(count, int) and count:
        return True
    # pandas: only its own dtypes, "Int64", have gaps; NaN in its arrays of NumPy's dtypes is a
    # number.
    if not hasattr(getattr(value, "dtype", None), "numpy_dtype") or not hasattr(value, "isna"):
        return False
    return bool(np.any(np.asarray(value.isna())))


def _with_ends(value: list[Any] | tuple[Any, ...], array: Array) -> Array:
    """Return the values as objects if NumPy changed one of them, else the array.

    NumPy cuts zeros off the ends of texts, and makes texts of numbers beside texts: "nan" of a
    missing value.
    """
    if array.dtype.kind == "U":
        zero: Any = "\0"
    else:
        zero = b"\0"
    if all(isinstance(item, type(zero)) and not item.endswith(zero) for item in value):
        return array
    return np.array(value, dtype=object)


def _texts(name: str, array: Array, value: ArrayLike, *, is_field: bool) -> Array:
    """Return objects that are texts: as they are for a field of text, else of one length.

    Raises:
        SpecError: they are something else.
    """
    if array.dtype.kind == "T":
        array = array.astype(object)  # NumPy's texts of any length
    if array.ndim != 1 or array.dtype.names is not None:
        items = [None]
        if array.dtype.names is None:
            items = array.reshape(-1).tolist()
        raise _objects_error(name, items, value, is_field=is_field)
    items = array.tolist()
    for kind in (str, bytes):
        if all(isinstance(item, kind) for item in items):
            if is_field:
                return array
            return np.array(items, dtype=str if items and kind is str else None)
    if not any(isinstance(item, str) for item in items):
        raise _objects_error(name, items, value, is_field=is_field)
    number = next(number for number, item in enumerate(items) if not isinstance(item, str))
    remedy = f"pass one kind: [str(value) for value in {name}]"
    if _is_gap(items[number]):
        texts = f'[value if isinstance(value, str) else "" for value in {name}]'
        remedy = f"put a text in its place: {texts}; or leave these records out"
    raise SpecError(
        f"{name}[{number}] is {items[number]!r}"[:200],
        cause=f"the others are texts, and {type(items[number]).__name__} is none; "
        "a record has no gap",
        remedy=remedy,
    )


def _objects_error(name: str, items: list[Any], value: ArrayLike, *, is_field: bool) -> SpecError:
    """Return the error for an array of objects that are no texts."""
    is_ragged = is_field and any(isinstance(item, (list, tuple, np.ndarray)) for item in items)
    return SpecError(
        f"{name} is an array of Python objects",
        cause="objects are no bytes of a record",
        remedy=_ragged_remedy(name, value) if is_ragged else _objects_remedy(name, items),
    )


def _objects_remedy(name: str, items: list[Any]) -> str:
    """Return the remedy for objects that are no texts."""
    first = items[0] if items else None
    if isinstance(first, datetime.timedelta):
        return f'pass numpy.array({name}, dtype="timedelta64[us]")'
    if isinstance(first, datetime.datetime) and first.tzinfo is not None:
        times = f"[time.astimezone(datetime.timezone.utc).replace(tzinfo=None) for time in {name}]"
        return f'pass the times in UTC: numpy.array({times}, dtype="datetime64[us]")'
    if isinstance(first, datetime.date):
        return f'pass numpy.array({name}, dtype="datetime64[us]")'
    return (
        "pass numbers, numpy.array(values, dtype=float) say, or text: numpy.array(texts, dtype=str)"
    )


def _is_gap(value: Any) -> bool:
    """Return True for None, NaN, and the values that pandas has in their place."""
    is_nan = isinstance(value, (float, np.floating)) and bool(np.isnan(value))
    return value is None or is_nan or type(value).__name__ in ("NAType", "NaTType")


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
    """Return True if the elements lie in a map of a file: the array, or the array that it is a view
    of, is one."""
    base: Any = array
    while isinstance(base, np.ndarray):
        # The class alone says nothing: a copy of a memmap, which lies in memory, is one, too.
        if isinstance(base, np.memmap) and getattr(base, "_mmap", None) is not None:
            return True
        base = base.base
    return False
