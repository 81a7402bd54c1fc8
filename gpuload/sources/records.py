"""Records of the user's own reader: a function that is given record numbers and returns arrays.

Fields  where they are not given, record 0 is read when the source is made: an array says dtype and
        shape, a list of arrays that all their axes vary, a list of bytes that they are uint8 of
        varying length, a list of str that they are text of any length.
Checks  each result is compared with the fields: names, number of records, dtypes, shapes. Arrays
        are not converted, but for the byte order. Lists of numbers, which have no dtype, become the
        field's, where it holds them all; so does an empty list, with the further axes of the field.
Access  one call for all records of a step that a thread reads at once. There are no raw bytes:
        `CallLeaf` says that records have none, and makes the values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpuload import strings
from gpuload.errors import GpuloadError, SpecError
from gpuload.functions import call_function
from gpuload.order import MAX_LENGTH
from gpuload.ragged import Ragged
from gpuload.sources.base import LeafSource
from gpuload.sources.layouts import layout_of
from gpuload.sources.leaf import Array, Bytes, Group, Indices, Leaf, Values
from gpuload.spec import Field, Shape, Spec, check_name, dtype_of, is_whole

Reader = Callable[[Indices], Mapping[str, Any]]
MAX_RECORDS = 8  # record numbers, in a note


def records(
    length: int,
    read: Reader,
    *,
    fields: Mapping[str, DTypeLike | tuple[DTypeLike, Shape]] | None = None,
    version: str = "",
) -> RecordsSource:
    """Return the records that a function of yours reads.

        def read(indices):                                          # int64, in any order; a number may come twice
            return {"x": table[indices], "text": [lines[i] for i in indices]}

        source = gl.records(len(table), read, version="2024-05")

    The function is called by several threads at once, so it must not share a file position or a
    connection between them. It must return new arrays, as indexing with an array makes them, for
    they become gpuload's; views are copied. It must return the same for a record whenever it is
    asked. It can be pickled, and with it the source, if it lies in a module, or is a method of an
    object that can be pickled.

    Args:
        length: how many records there are.
        read: given int64 ``[n]``, at least one number, returns a dict: for each field an array
            ``[n, ...]``, or where shapes vary a list of n arrays, or of n bytes, or of n texts.
        fields: for each field its dtype and the shape of a record, None for an axis that varies, or
            the dtype of one number or text: ``{"image": ("u1", (None, None, 3)), "label": "i8"}``.
            ``str`` and ``bytes`` are text of any length, as objects. Without it record 0 is read to
            find out.
        version: changes the fingerprint by which saved states are compared. That sees the length,
            the fields and this text, but neither the function nor its results: give another text
            when the data are others.

    Raises:
        SpecError: an argument is wrong, or a result of the function is no record.
    """
    if not is_whole(length) or length > MAX_LENGTH:
        raise SpecError(
            f"gl.records of length {length!r}",
            cause=f"it is how many records there are, 0 to {MAX_LENGTH}",
            remedy="pass a whole number, as in gl.records(len(table), read)",
        )
    if not callable(read):
        cause = "it is a function that is given record numbers and returns a dict of arrays"
        remedy = "pass one; gl.arrays(x=array) is for arrays in memory"
        if isinstance(read, Iterator):
            cause += "; an iterator gives each record once, and in its own order"
            remedy = (
                "store its records, and read from these: samples = list(iterator), "
                "gl.records(len(samples), "
                'lambda numbers: {"x": [samples[number] for number in numbers]})'
            )
        raise SpecError(f"gl.records with read={read!r}"[:200], cause=cause, remedy=remedy)
    if not isinstance(version, str):
        raise SpecError(
            f"version = {version!r}", cause="it is a text", remedy=f"pass {str(version)!r}"
        )
    spec = _infer_spec(int(length), read) if fields is None else _spec_of(fields)
    return RecordsSource(int(length), read, spec, version)


class RecordsSource(LeafSource):
    """Records of the user's own reader; made by ``gl.records``."""

    _leaves: tuple[CallLeaf, ...]

    def __init__(self, length: int, read: Reader, spec: Spec, version: str) -> None:
        super().__init__((Group(spec, None),))
        self._length, self._version = length, version
        self._leaves = (CallLeaf(length, read, spec),)

    def __len__(self) -> int:
        return self._length

    def __reduce__(self) -> tuple[Any, ...]:
        leaves = self._leaves  # read once: another thread may close the source at any time
        if not leaves:
            self.check_open()
        return type(self), (self._length, leaves[0].call, self.spec, self._version)

    def _where(self, number: int) -> str:
        return f"gl.records, record {number}"

    def _title(self) -> str:
        return "gl.records"

    def describe(self) -> str:
        """Return one line about how records are read."""
        return CallLeaf.how

    def _digest(self) -> str:
        about = [
            (field.name, field.dtype.str, field.shape, *filter(None, [field.text]))
            for field in self.spec
        ]
        # Not the function: its code may be the same for other data, and another for the same;
        # `version` is the user's word.
        text = repr(("records", self._length, self._version, about))
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


class CallLeaf(Leaf):
    """Records that a function makes. They have no raw bytes: ``unpack`` makes the values of their
    numbers."""

    how = "by a function"
    calls_python = True

    def __init__(self, length: int, call: Reader, spec: Spec) -> None:
        self.num_records, self.call, self.spec = length, call, spec

    def num_bytes(self, numbers: Indices) -> Indices:
        """Return zeros: the lengths of records are known only when the function has returned
        them."""
        return np.zeros(numbers.size, np.int64)

    def _read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        """Do nothing: there are no raw bytes."""

    def unpack(self, numbers: Indices, raw: Ragged) -> list[Values]:
        """Return the fields of records, as the function returns them."""
        result = _call(self.call, numbers)
        try:
            if result.keys() != set(self.spec.names):
                raise SpecError(
                    f"the function returned the fields {list(map(str, result))}",
                    cause=f"the fields are {list(self.spec.names)}",
                    remedy="return the same fields for all records; without fields= record 0 says "
                    "which",
                )
            return [_values(field, result[field.name], numbers) for field in self.spec]
        except GpuloadError as error:
            raise error.within(f"gl.records, {_list_records(numbers)}") from None


def _call(read: Reader, numbers: Indices) -> Mapping[str, Any]:
    # A copy: a function that sorts its argument in place must not change which records go to which
    # rows.
    result = call_function(
        read,
        numbers.copy(),
        note=lambda: f"gl.records: the function was asked for {_list_records(numbers)}",
    )
    if not isinstance(result, Mapping) or not result:
        if isinstance(result, Mapping):
            description = "no field"
        else:
            description = type(result).__name__
        raise SpecError(
            f"gl.records, {_list_records(numbers)}: the function returned {description}",
            cause="it returns a dict with an array, or a list, for each field",
            remedy='return {"x": array}',
        )
    return result


def _list_records(numbers: Indices) -> str:
    listing = ", ".join(map(str, numbers[:MAX_RECORDS].tolist()))
    rest = f" and {numbers.size - MAX_RECORDS} others" * (numbers.size > MAX_RECORDS)
    return f"record{'s' * (numbers.size > 1)} {listing}{rest}"


def _values(field: Field, value: Any, numbers: Indices) -> Values:
    """Return the values of a field from the function, checked; text as it is stored."""
    if field.text:
        _check_count(field, value, numbers)
        return strings.pack(field, value)
    if isinstance(value, Ragged):
        value = list(value)
    if isinstance(value, (list, tuple)) and value and not _is_number(value[0]):
        rows = [_as_field(field.dtype, field.shape, item) for item in value]
    else:
        array = _as_field(field.dtype, None, value)
        _check_count(field, array, numbers)
        if field.uniform:
            _check_row(field, array.dtype, array.shape[1:], numbers[0])
            # A view may be of memory that the function uses again, or that it changes later.
            if array.flags.owndata and array.flags.writeable:
                array_copy = array
            else:
                array_copy = array.copy()
            return np.ascontiguousarray(array_copy, field.dtype)
        rows = list(array)
    _check_count(field, rows, numbers)
    for row, number in zip(rows, numbers, strict=True):
        _check_row(field, row.dtype, row.shape, number)
    if field.uniform:
        return np.stack(rows).astype(field.dtype, copy=False)
    if field.ragged:
        return Ragged.of([row.astype(field.dtype, copy=False) for row in rows], field.dtype)
    # Copies, as above: a row may be a view of the function's memory.
    return [np.array(row, field.dtype, order="C") for row in rows]


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float, complex, np.generic))


def _array(value: Any) -> Array:
    """Return a value of the function as an array; bytes as uint8."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return np.frombuffer(value, np.uint8)
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"a {type(value).__name__} cannot be made an array",
            cause=str(error),
            remedy="return arrays, or lists of them",
        ) from None


def _as_field(dtype: np.dtype[Any], shape: Shape | None, value: Any) -> Array:
    """Return a value as an array; numbers of Python in lists as this dtype, if it holds them all.

    Args:
        dtype: of the field.
        shape: of a record of the field, for an empty list; None if that is not known.
        value: from the function.
    """
    array, number = _array(value), value
    # NumPy gives numbers of Python int64 or float64; only values that say their own dtype must have
    # the field's.
    while isinstance(number, (list, tuple)) and number:
        number = number[0]
    if isinstance(number, (np.ndarray, np.generic)) or not isinstance(
        number, (int, float, list, tuple)
    ):
        return array
    if array.dtype.kind not in "iuf" or dtype.kind not in "iuf":
        return array
    if array.shape == (0,) and shape:
        return np.empty((0, *(length or 0 for length in shape[1:])), dtype)
    if array.dtype.kind == "f" and dtype.kind != "f":
        return array
    # A float64 beyond float32 becomes infinite, which the next line finds; NumPy would warn
    # besides.
    with np.errstate(over="ignore"):
        result = array.astype(dtype)
    if array.dtype.kind == "f":
        fits = np.isfinite(result) == np.isfinite(array)
    else:
        fits = result == array
    if fits.all():
        return result
    return array


def _check_count(field: Field, values: Any, numbers: Indices) -> None:
    """Raise ``SpecError`` if there are not as many values as records."""
    try:
        count = str(len(values))
    except TypeError:  # no list, or an array without axes
        count = "no axis of"
    if count != str(numbers.size):
        raise SpecError(
            f"field {field.name!r} has {count} records",
            cause=f"the function was asked for {numbers.size}",
            remedy="return an array with the records along its first axis, or a list of one value "
            "for each of them",
        )


def _check_row(field: Field, dtype: np.dtype[Any], shape: tuple[int, ...], number: Any) -> None:
    """Raise ``SpecError`` if the value of a record does not fit the field."""
    field_dtype = field.dtype
    # Texts of fixed length: NumPy makes each array as long as its longest text, so a shorter dtype
    # is usual.
    is_same = dtype.newbyteorder("=") == field_dtype or (
        dtype.kind == field_dtype.kind
        and dtype.kind in "SU"
        and dtype.itemsize <= field_dtype.itemsize
    )
    if not is_same:
        argument = f"fields={{{field.name!r}: ({dtype.str!r}, {field.shape}), ...}}"
        raise SpecError(
            f"field {field.name!r} of record {int(number)} has dtype {dtype}, the field is {field}",
            cause="nothing is converted: numbers could become others, texts shorter",
            remedy=f"say {argument}"
            + f", or return array.astype({field_dtype.str!r})" * (dtype.kind not in "SU"),
        )
    fits = field.shape is None or (
        len(shape) == len(field.shape)
        and all(length in (None, actual) for length, actual in zip(field.shape, shape, strict=True))
    )
    if not fits:
        raise SpecError(
            f"field {field.name!r} of record {int(number)} has shape {shape}, the field is {field}",
            cause="fields= or, without it, record 0 fixes the shape of a record",
            remedy=f"return one shape, or None for an axis that varies: fields={{{field.name!r}: "
            f"({field_dtype.str!r}, {(None,) * len(shape)}), ...}}",
        )


def _infer_spec(length: int, read: Reader) -> Spec:
    """Return the fields, as record 0 has them."""
    if not length:
        raise SpecError(
            "gl.records of length 0",
            cause="there is no record to read the fields from",
            remedy='say them: fields={"x": ("f4", (8,))}',
        )
    numbers = np.zeros(1, np.int64)
    result = _call(read, numbers)
    try:
        return Spec(tuple(_field(name, value, numbers) for name, value in result.items()))
    except GpuloadError as error:
        raise error.within("gl.records, record 0") from None


def _field(name: Any, value: Any, numbers: Indices) -> Field:
    is_list = (
        isinstance(value, (list, tuple, Ragged)) and len(value) > 0 and not _is_number(value[0])
    )
    if is_list:
        values = _array(value[0])[None]
    else:
        values = _array(value)
    field = _checked_field(name, values.dtype, values.shape[1:])
    if not is_list:
        _check_count(field, values, numbers)
        return field
    if len(value) != 1:
        _check_count(field, value, numbers)
    if field.dtype.kind in "SU":  # those of other records may be longer
        if field.dtype.kind == "U":
            kind = "str"
        else:
            kind = "bytes"
        if field.shape:
            shape = (None, *field.fixed_shape[1:])
        else:
            shape = ()
        return Field(name, np.dtype(object), shape, text=kind)
    return field.with_(shape=(None,) * (values.ndim - 1))


def _spec_of(fields: Any) -> Spec:
    if not isinstance(fields, Mapping) or not fields:
        raise _no_fields(f"fields = {fields!r}")
    spec_fields = []
    for name, about in fields.items():
        dtype: Any
        shape: Any
        if isinstance(about, (str, type, np.dtype)):
            dtype, shape = about, ()
        else:
            dtype, shape = _dtype_and_shape(name, about)
        lengths = (shape,) if is_whole(shape) else shape
        if not isinstance(lengths, (tuple, list)) or not all(
            n is None or is_whole(n) for n in lengths
        ):
            raise _no_fields(f"fields: {name!r} is {about!r}")
        try:
            numpy_dtype = dtype_of(dtype)
        except (TypeError, ValueError, SyntaxError) as error:
            raise SpecError(
                f"fields: {name!r} has dtype {dtype!r}",
                cause=f"numpy.dtype does not take it: {error}",
                remedy="write it like 'f4'",
            ) from None
        if numpy_dtype.kind in "SU" and not numpy_dtype.itemsize:
            check_name(name)
            if numpy_dtype.kind == "U":
                kind = "str"
            else:
                kind = "bytes"
            spec_fields.append(Field(name, np.dtype(object), tuple(lengths), text=kind))
            continue
        field = _checked_field(name, numpy_dtype, tuple(int(length or 0) for length in lengths))
        spec_fields.append(
            field.with_(shape=tuple(None if length is None else int(length) for length in lengths))
        )
    return Spec(tuple(spec_fields))


def _dtype_and_shape(name: Any, about: Any) -> tuple[Any, Any]:
    if not isinstance(about, (tuple, list)) or len(about) != 2:
        raise _no_fields(f"fields: {name!r} is {about!r}")
    dtype, shape = about
    return dtype, shape


def _no_fields(subject: str) -> SpecError:
    return SpecError(
        subject,
        cause="it is a dict from name to dtype and shape of a record, or to the dtype of one "
        "number or text",
        remedy='write it like {"image": ("u1", (None, None, 3)), "label": "i8"}',
    )


def _checked_field(name: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Field:
    """Return a field of one dtype and shape, native; refuses a field that no array can hold."""
    check_name(name)
    if dtype.names is not None or dtype.subdtype is not None:
        raise SpecError(
            f"field {name!r} of dtype {dtype}",
            cause="a field has one dtype",
            remedy="return the fields of a structured array one by one: {'x': table['x']}",
        )
    return layout_of(dtype, shape, field=name).parts[0].field
