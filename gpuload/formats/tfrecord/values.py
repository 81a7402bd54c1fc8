"""Values: the lists of a feature become the values of its field, in the shape and dtype that the
user gives.

Defaults   stand in for features that a record does not have; a feature that is there has as many
           values as its shape.
Nothing    is cut, rounded or guessed: a text that is too long, a number that the dtype does not
           hold, a value too many are errors that name the record.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import strings
from gpuload.errors import RowError
from gpuload.formats.tfrecord.features import Feature, FeatureColumn, Image, Raw, Tensor
from gpuload.formats.tfrecord.parsing import MISSING, ValueLists
from gpuload.formats.tfrecord.tensorproto import UnfitTensor, tensor_of
from gpuload.formats.tfrecord.wire import BYTES_LIST, LISTS, WireError
from gpuload.ragged import Ragged, offsets_of
from gpuload.sources.leaf import Values, gather_pieces
from gpuload.sources.memory import room, step_room

Array = NDArray[Any]
Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]
UINT8 = np.dtype(np.uint8)
CONTENT = b"\x22"  # the tag of ``tensor_content``
WRITER_CAUSE = "the record was written so: its checksum is right, or none was verified"


def values_of(
    column: FeatureColumn, lists: ValueLists, raw: Bytes, places: Sequence[ValueLists] = ()
) -> Values:
    """Return the values of a field; of text as they are stored (`strings.py`).

    Args:
        column: the field.
        lists: of its feature.
        raw: the bytes of the records.
        places: the lists of the features of the places, if the field is sparse.

    Raises:
        RowError: those of a record do not fit.
    """
    if column.places:
        return _dense(column, lists, places)
    if lists.steps is None:
        if column.field.text:
            return _texts(column, lists, raw)
        return _of_rows(column, lists, raw)
    try:
        if column.field.text:
            return _texts(column, lists, raw)
        rows = _of_rows(column, lists, raw)
    except RowError as error:  # of a step; the record is the one that it is of
        ends = np.cumsum(np.maximum(lists.steps, 0))
        row = int(np.searchsorted(ends, error.row, side="right"))
        step = error.row - int(ends[row] - max(int(lists.steps[row]), 0))
        raise RowError(
            row, f"step {step}: {error.reason}", cause=error.cause, remedy=error.remedy
        ) from None
    return Ragged(
        rows, offsets_of(np.maximum(lists.steps, 0))
    )  # a step has one shape: its axes do not vary


def _of_rows(column: FeatureColumn, lists: ValueLists, raw: Bytes) -> Values:
    if isinstance(column.feature, Feature):
        return _numbers(column, lists, raw)
    begins, lengths, rows = _pick_values(column, lists)
    if isinstance(column.feature, Tensor):
        return _tensors(column, begins, lengths, raw)
    if (
        isinstance(column.feature, Raw)
        and column.feature.num_values is None
        and column.feature.index is None
    ):
        return Ragged(
            _raw(column, begins, lengths, rows, raw), offsets_of(np.maximum(lists.counts, 0))
        )
    if column.is_ragged:
        return _ragged_bytes(column, begins, lengths, raw)
    array = _raw(column, begins, lengths, rows, raw)
    return array.reshape(len(lists.counts), *_fixed(column))


def _fixed(column: FeatureColumn) -> tuple[int, ...]:
    """Return the shape of a record, or of a step."""
    shape = column.field.shape or ()
    if column.section == LISTS:
        shape = shape[1:]
    return tuple(int(length or 0) for length in shape)


# Numbers and texts


def _numbers(column: FeatureColumn, lists: ValueLists, raw: Bytes) -> Values:
    """Return the values of a `Feature`."""
    if column.kind == BYTES_LIST:
        rows = np.repeat(np.arange(lists.counts.size), np.maximum(lists.counts, 0))
    else:
        rows = None
    if rows is not None:
        values = _short_texts(column, lists, raw, rows)
    else:
        values = _cast(column, lists)
    counts = lists.counts
    if column.is_ragged:
        inner = math.prod(column.inner)
        counts = np.maximum(counts, 0)
        bad = np.flatnonzero(counts % inner)
        if bad.size:
            raise _count_error(column, int(bad[0]), int(counts[bad[0]]), f"a multiple of {inner}")
        return Ragged(values.reshape(-1, *column.inner), offsets_of(counts // inner))
    size = math.prod(length or 0 for length in column.shape)
    shape = tuple(int(length or 0) for length in column.shape)
    if column.pad is not None:
        return _pad(column, counts, values, shape)
    whole = counts == size
    if bool(whole.all()):
        return values.reshape(counts.size, *shape)
    missing = counts == MISSING
    is_wrong = ~whole
    if column.default is not None:
        is_wrong &= ~missing
    bad = np.flatnonzero(is_wrong)
    if bad.size:
        if missing[bad[0]]:
            raise _missing(column, int(bad[0]))
        raise _count_error(column, int(bad[0]), int(counts[bad[0]]), str(size))
    array = room((counts.size, *shape), column.field.dtype)
    array[whole] = values.reshape(int(whole.sum()), *shape)
    array[missing] = column.default
    return array


def _pad(column: FeatureColumn, counts: Int64s, values: Array, shape: tuple[int, ...]) -> Array:
    """Return values that are filled up to a length."""
    size, inner, missing = math.prod(shape), math.prod(shape[1:]), counts == MISSING
    num_values = np.maximum(counts, 0)
    bad = np.flatnonzero((num_values > size) | (num_values % inner != 0))
    if bad.size:
        if inner > 1:
            steps = f", a multiple of {inner}"
        else:
            steps = ""
        raise _count_error(column, int(bad[0]), int(num_values[bad[0]]), f"at most {size}{steps}")
    array = room((counts.size, size), column.field.dtype)
    array[:] = column.pad
    array[np.arange(size) < num_values[:, None]] = values
    array = array.reshape(counts.size, *shape)
    if column.default is not None:
        array[missing] = column.default
    return array


def _cast(column: FeatureColumn, lists: ValueLists) -> Array:
    """Return numbers in the dtype of the field, none of them changed."""
    values, dtype = lists.values, column.field.dtype
    if values.dtype == dtype:
        return values
    if dtype.kind != "f" and values.size:
        if dtype.kind == "b":
            low, high = (0, 1)
        else:
            low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if int(values.min()) < low or int(values.max()) > high:
            # Values are int64: NumPy would compare them with a limit beyond that as float64, or
            # refuse to.
            place = int(((values < low) | (values > min(high, 2**63 - 1))).argmax())
            row = int(np.searchsorted(np.cumsum(np.maximum(lists.counts, 0)), place, side="right"))
            raise RowError(
                row,
                f"{column.label} is {int(values[place])}",
                cause=f"{dtype} holds {low} to {high}",
                remedy="say a larger dtype: 'i8' holds all",
            )
    return values.astype(dtype)


def _short_texts(column: FeatureColumn, lists: ValueLists, raw: Bytes, rows: Int64s) -> Array:
    """Return bytes values as texts of a stated length."""
    size, lengths, begins = column.dtype.itemsize, lists.lengths, lists.places
    bad = np.flatnonzero(lengths > size)
    if bad.size:
        raise RowError(
            int(rows[bad[0]]),
            f"{column.label} has a text of {int(lengths[bad[0]])} bytes",
            cause=f"{column.dtype.str} holds texts of at most {size}, and nothing is cut",
            remedy="say 'str' for texts of any length, 'S' for the same as bytes objects",
        )
    ends = raw[(begins + lengths - 1)[lengths > 0]]
    if bool((ends == 0).any()):
        raise RowError(
            int(rows[np.flatnonzero(lengths > 0)[int((ends == 0).argmax())]]),
            f"{column.label} ends in a zero byte",
            cause="texts of a stated length are filled up with zeros, so that it could not be told "
            "from a shorter one",
            remedy="say 'S', which takes bytes of any length, or gl.Raw('u1', (20,)) for values of "
            "one length",
        )
    texts = np.zeros(lengths.size * size, np.uint8)
    gather_pieces(raw, begins, lengths, texts, np.arange(lengths.size, dtype=np.int64) * size)
    return texts.view(column.dtype)


def _texts(column: FeatureColumn, lists: ValueLists, raw: Bytes) -> Ragged:
    """Return texts of any length as they are stored."""
    counts, begins, lengths = lists.counts, lists.places, lists.lengths
    if column.is_ragged:
        size = math.prod(column.inner)
    else:
        size = math.prod(length or 0 for length in column.shape)
    has_values = np.maximum(counts, 0)
    if column.is_ragged:
        bad, need = counts > 0, f"a multiple of {size}"
        bad &= has_values % size != 0
    elif column.pad is not None:
        inner = math.prod(column.inner)
        bad, need = (has_values > size) | (has_values % inner != 0), f"at most {size}"
    else:
        bad, need = (
            (counts != size) & ~((counts == MISSING) & (column.default is not None)),
            str(size),
        )
    if bad.any():
        row = int(bad.argmax())
        if counts[row] == MISSING:
            raise _missing(column, row)
        raise _count_error(column, row, int(counts[row]), need)
    if not column.is_ragged and bool((has_values != size).any()):
        raw, begins, lengths = _completed(column, counts, begins, lengths, raw, size)
        has_values = np.full(counts.size, size, np.int64)
    if lists.steps is not None:
        ends = offsets_of(has_values)[offsets_of(np.maximum(lists.steps, 0))]
        has_values = np.diff(ends)
    if column.field.shape == ():
        offsets = offsets_of(lengths)
        payload, places = step_room(int(offsets[-1])), offsets[:-1]
    else:
        payload, offsets, places = strings.room_for(has_values, lengths)
    gather_pieces(raw, begins, lengths, payload, places)
    return Ragged(payload, offsets)


def _completed(
    column: FeatureColumn, counts: Int64s, begins: Int64s, lengths: Int64s, raw: Bytes, size: int
) -> tuple[Bytes, Int64s, Int64s]:
    """Return bytes, and the places and lengths in them of ``size`` texts of each record.

    The texts in place of missing ones lie behind the others.
    """
    # bytes objects, as `features` makes them
    if column.pad is not None:
        padding = [column.pad.item()]
    else:
        padding = []
    if column.default is None:
        default = padding * size
    else:
        default = np.ravel(column.default).tolist()
    stand_ins = Ragged.of([np.frombuffer(text, np.uint8) for text in (*default, *padding)], UINT8)
    missing, has_values = counts == MISSING, np.maximum(counts, 0)
    text_numbers = np.full(
        (counts.size, size), begins.size + size, np.int64
    )  # which text goes where: padding at first
    text_numbers[np.arange(size) < has_values[:, None]] = np.arange(begins.size)
    text_numbers[missing] = begins.size + np.arange(size)
    begins, lengths = (
        np.concatenate([begins, raw.size + stand_ins.offsets[:-1]])[text_numbers.reshape(-1)],
        np.concatenate([lengths, stand_ins.lengths])[text_numbers.reshape(-1)],
    )
    return np.concatenate([raw, stand_ins.flat]), begins, lengths


def _dense(column: FeatureColumn, lists: ValueLists, places: Sequence[ValueLists]) -> Array:
    """Return sparse values as dense arrays."""
    counts, shape = np.maximum(lists.counts, 0), column.field.fixed_shape
    rows = np.repeat(np.arange(counts.size), counts)
    index = np.zeros(rows.size, np.int64)
    for axis, (place_lists, column_of_places) in enumerate(zip(places, column.places, strict=True)):
        differs = np.maximum(place_lists.counts, 0) != counts
        if differs.any():
            row = int(differs.argmax())
            raise RowError(
                row,
                f"{column.label} has {int(counts[row])} values and "
                f"{max(int(place_lists.counts[row]), 0)} places "
                f"(key {column_of_places.key.decode('utf-8', 'backslashreplace')!r})",
                cause="each value has a place along each axis",
                remedy="check the keys; read the two as fields of their own, ('i8', (None,)), to "
                "look at them",
            )
        outside = (place_lists.places < 0) | (place_lists.places >= shape[axis])
        if outside.any():
            place = int(outside.argmax())
            raise RowError(
                int(rows[place]),
                f"{column.label} has a value at place {int(place_lists.places[place])} of axis "
                f"{axis}",
                cause=f"the axis has the places 0 to {shape[axis] - 1}",
                remedy="state a larger size",
            )
        index = index * shape[axis] + place_lists.places
    size = math.prod(shape)
    flat = rows * size + index
    twice = np.flatnonzero(np.diff(np.sort(flat)) == 0)
    if twice.size:
        row = int(np.sort(flat)[twice[0]] // size)
        raise RowError(
            row,
            f"{column.label} has two values at one place",
            cause="a dense array has one value at each place",
            remedy="read the values and their places as two fields, ('f4', (None,)) and ('i8', "
            "(None,))",
        )
    array = room((counts.size, size), column.field.dtype)
    array[:] = 0
    array.reshape(-1)[flat] = _cast(column, lists)
    return array.reshape(counts.size, *shape)


# Bytes


def _pick_values(column: FeatureColumn, lists: ValueLists) -> tuple[Int64s, Int64s, Int64s]:
    """Return places, lengths and rows of the bytes values that the feature takes, int64 each.

    A missing feature with a default has a value of length MISSING.
    """
    feature, counts = column.feature, lists.counts
    begins, lengths = lists.places, lists.lengths
    index, num_values = getattr(feature, "index", None), getattr(feature, "num_values", 1)
    rows = np.arange(counts.size)
    if num_values is None and index is None:
        return begins, lengths, np.repeat(rows, np.maximum(counts, 0))
    missing = counts == MISSING
    has_default = column.default is not None
    if index is None:
        need, is_wrong = num_values, counts != num_values
    else:
        need, is_wrong = 1, counts <= index
    bad = np.flatnonzero(is_wrong & ~(missing & has_default))
    if bad.size:
        row = int(bad[0])
        if missing[row]:
            raise _missing(column, row)
        if index is not None:
            raise _count_error(column, row, int(counts[row]), f"more than {index}, the index")
        remedy = (
            "say gl.Raw(dtype, shape, num_values=None) for any number of values, "
            "index=0 for the first of them, or "
        )
        raise _count_error(
            column,
            row,
            int(counts[row]),
            str(need),
            f"{remedy}{{{column.field.name!r}: ('S', (None,))}}",
        )
    if index is None and not missing.any():
        if need != 1:
            rows = np.repeat(rows, need)
        return begins, lengths, rows
    places = offsets_of(np.maximum(counts, 0))[:-1] + (index or 0)
    own_begins, own_lengths = (
        np.zeros(counts.size, np.int64),
        np.full(counts.size, MISSING, np.int64),
    )
    own_begins[~missing], own_lengths[~missing] = (
        begins[places[~missing]],
        lengths[places[~missing]],
    )
    return own_begins, own_lengths, rows


def _raw(column: FeatureColumn, begins: Int64s, lengths: Int64s, rows: Int64s, raw: Bytes) -> Array:
    """Return values of one length, ``[num_values, *shape]``."""
    shape = tuple(int(length or 0) for length in column.shape)
    size = column.dtype.itemsize * math.prod(shape)
    wrong = (lengths != size) & (lengths != MISSING)
    if wrong.any():
        bad = int(wrong.argmax())
        raise RowError(
            int(rows[bad]),
            f"{column.label} has {int(lengths[bad])} bytes",
            cause=f"{column.dtype} {shape} has {size}",
            remedy=_other_size(column, int(lengths[bad])),
        )
    array = step_room(lengths.size * size).reshape(lengths.size, size)
    num_bytes = np.maximum(lengths, 0)
    gather_pieces(
        raw, begins, num_bytes, array.reshape(-1), np.arange(lengths.size, dtype=np.int64) * size
    )
    if isinstance(column.default, bytes):
        array[lengths == MISSING] = np.frombuffer(column.default, np.uint8)
    if size:
        elements = array.reshape(-1).view(column.dtype)
    else:
        elements = np.empty(0, column.dtype)
    return elements.astype(column.field.dtype, copy=False).reshape(lengths.size, *shape)


def _other_size(column: FeatureColumn, num_bytes: int) -> str:
    items = num_bytes / column.dtype.itemsize
    if items == int(items):
        count_text = f"they are {int(items)} of {column.dtype}"
    else:
        count_text = f"they are {items:.2f} of {column.dtype}"
    return f"check dtype and shape: {count_text}; gl.Raw(dtype, (None,)) takes any number"


def _ragged_bytes(column: FeatureColumn, begins: Int64s, lengths: Int64s, raw: Bytes) -> Ragged:
    """Return values of varying length."""
    if isinstance(column.default, bytes):
        default = column.default
    else:
        default = b""
    missing = lengths == MISSING
    if missing.any():
        num_bytes = np.where(missing, len(default), lengths)
    else:
        num_bytes = lengths
    item = column.dtype.itemsize * math.prod(column.inner)
    bad = np.flatnonzero(num_bytes % max(item, 1))
    if bad.size:
        row = int(bad[0])
        raise RowError(
            row,
            f"{column.label} has {int(num_bytes[row])} bytes",
            cause=f"{column.dtype} {column.inner} has {item}, and {int(num_bytes[row]) % item} are "
            "left over",
            remedy="check dtype and shape, or read the bytes as they are with 'bytes'",
        )
    offsets = offsets_of(num_bytes)
    payload = step_room(int(offsets[-1]))
    gather_pieces(raw, begins, np.maximum(lengths, 0), payload, offsets[:-1])
    for row in np.flatnonzero(missing).tolist() if default else ():
        payload[offsets[row] : offsets[row + 1]] = np.frombuffer(default, np.uint8)
    if isinstance(column.feature, Image) or (column.dtype == UINT8 and not column.inner):
        return Ragged(payload, offsets)
    elements = payload.view(column.dtype).astype(column.field.dtype, copy=False)
    return Ragged(elements.reshape(-1, *column.inner), offsets // item)


def _tensors(column: FeatureColumn, begins: Int64s, lengths: Int64s, raw: Bytes) -> Values:
    """Return serialized tensors."""
    if (
        column.field.uniform
        and lengths.size > 1
        and (batch := _alike(column, begins, lengths, raw)) is not None
    ):
        return batch
    tensors = [
        _tensor(column, row, raw[begin : begin + length].tobytes())
        for row, (begin, length) in enumerate(zip(begins.tolist(), lengths.tolist(), strict=True))
    ]
    shape = tuple(int(length or 0) for length in column.shape)
    if None not in column.shape:
        if tensors:
            return np.stack(tensors)
        return np.empty((0, *shape), column.field.dtype)
    if column.field.ragged:
        return Ragged.of(tensors, column.field.dtype, shape[1:])
    return tensors


def _alike(column: FeatureColumn, begins: Int64s, lengths: Int64s, raw: Bytes) -> Array | None:
    """Return all tensors at once if they differ only in their elements, which stand at their ends;
    else None."""
    size = column.field.dtype.itemsize * math.prod(column.field.fixed_shape)
    length = int(lengths[0])
    if not 0 < size < length or bool((lengths != length).any()):
        return None
    rows = step_room(lengths.size * length).reshape(lengths.size, length)
    gather_pieces(
        raw, begins, lengths, rows.reshape(-1), np.arange(lengths.size, dtype=np.int64) * length
    )
    head = length - size
    if not rows[0, :head].tobytes().endswith(CONTENT + _varint(size)) or bool(
        (rows[1:, :head] != rows[0, :head]).any()
    ):
        return None
    first = _tensor(column, 0, rows[0].tobytes())
    little = column.field.dtype.newbyteorder("<")
    if first.astype(little).tobytes() != rows[0, head:].tobytes():  # its elements stand elsewhere
        return None
    elements = (
        np.ascontiguousarray(rows[:, head:])
        .reshape(-1)
        .view(little)
        .astype(column.field.dtype, copy=False)
    )
    return elements.reshape(lengths.size, *column.field.fixed_shape)


def _varint(value: int) -> bytes:
    low = value & 0x7F
    if value < 0x80:
        return bytes([low])
    return bytes([low | 0x80]) + _varint(value >> 7)


def _tensor(column: FeatureColumn, row: int, data: bytes) -> Array:
    try:
        return tensor_of(data, column.dtype, column.shape)
    except WireError as error:
        raise RowError(
            row,
            f"{column.label} is no serialized tensor: byte {error.place} of its {len(data)}: "
            f"{error.cause}",
            cause=WRITER_CAUSE,
            remedy="gl.Raw(dtype, shape) reads raw bytes, 'bytes' reads them as they are",
        ) from None
    except UnfitTensor as error:
        raise RowError(
            row,
            f"{column.label}: {error}",
            cause=WRITER_CAUSE,
            remedy="say its dtype and shape in gl.Tensor(dtype, shape)",
        ) from None


class MissingFeature(RowError):
    """A record has no such feature. The caller adds which features the record has."""


def _missing(column: FeatureColumn, row: int) -> RowError:
    remedy = "check the key, key= names another one; a record without it needs a default: "
    if column.kind == BYTES_LIST:
        example = "gl.Raw(dtype, shape, default=b'...')"
    else:
        example = "gl.Feature(dtype, shape, default=0)"
    return MissingFeature(
        row, f"it has no {column.label}", cause=WRITER_CAUSE, remedy=remedy + example
    )


def _count_error(
    column: FeatureColumn, row: int, count: int, need: str, remedy: str = ""
) -> RowError:
    return RowError(
        row,
        f"{column.label} has {count} value{'s' * (count != 1)}",
        cause=f"{column.feature} takes {need}",
        remedy=remedy
        or "say the shape that it has; (None,) takes any number, gl.Feature(..., pad=0) fills up to a length",
    )
