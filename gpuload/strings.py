"""Strings: text of any length, between the bytes in which leaves keep it and the objects that are
handed out.

    field             bytes of a record (`Field.stored`: uint8, one axis that varies)        a batch
    str ()            the bytes of the text                                                 objects [N]
    str (3,)          3 | length of each text | the bytes of all                            objects [N, 3]
    str (None,)       how many there are | length of each text | the bytes of all           Ragged of objects

Numbers are int64 in this machine's byte order. So text lies in slots, caches and composed sources
as encoded images do, as one `Ragged` of bytes, and Python's objects are made once: where a step is
read.

``"str"`` is UTF-8 and checked; ``"bytes"`` has the bytes of the file, as ``tf.string`` has them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from gpuload.errors import RowError
from gpuload.ragged import Ragged, offsets_of
from gpuload.spec import Field

Bytes = NDArray[np.uint8]
Int64s = NDArray[np.int64]
NUMBER_BYTES = 8
MAX_BYTES = 40  # bytes of a text, by errors
LATIN = 'pass the encoding of the file where the source takes one, or read it as bytes (dtype "S")'


def unpack(field: Field, raw: Any) -> NDArray[Any] | Ragged:
    """Return the texts of some records as objects: an array ``[N, *shape]``, or a `Ragged` of
    objects.

    Args:
        field: it.
        raw: the bytes of each record, a `Ragged` of uint8.

    Raises:
        RowError: a text is no UTF-8, or the bytes of a record are no packed texts.
    """
    payload = raw.flat
    begins, ends = raw.offsets[:-1] - raw.offsets[0], raw.offsets[1:] - raw.offsets[0]
    if field.shape == ():
        return _objects(field, payload, begins, ends - begins, None)
    counts, lengths, firsts = _heads(field, payload, begins, ends)
    rows = np.repeat(np.arange(counts.size), counts)
    before = offsets_of(lengths)[:-1]  # the bytes of all texts in front of each
    if rows.size:
        places = firsts[rows] + before - before[offsets_of(counts)[:-1][rows]]
    else:
        places = before
    texts = _objects(field, payload, places, lengths, rows)
    inner = _inner(field)
    if field.ragged:
        return Ragged(texts.reshape(-1, *inner), offsets_of(counts // math.prod(inner)))
    return texts.reshape(counts.size, *field.fixed_shape)


def _heads(
    field: Field, payload: Bytes, begins: Int64s, ends: Int64s
) -> tuple[Int64s, Int64s, Int64s]:
    """Return the number of texts of each record, the length of each text, and the place of each
    record's first text.

    Raises:
        RowError: the numbers of a record do not go together.
    """
    whole = ends - begins >= NUMBER_BYTES
    counts = np.zeros(begins.size, np.int64)
    counts[whole] = _numbers(payload, begins[whole])
    if field.ragged:
        num_texts = math.prod(_inner(field))
    else:
        num_texts = math.prod(field.fixed_shape)
    if field.ragged and num_texts:
        fits = counts % num_texts == 0
    else:
        fits = counts == num_texts
    # Before the lengths are read: a damaged number would point beyond the memory.
    whole &= fits & (counts >= 0) & (counts <= (ends - begins) // NUMBER_BYTES - 1)
    _check(whole, field)
    owners = offsets_of(counts)[:-1]
    rows = np.repeat(np.arange(counts.size), counts)
    lengths = _numbers(
        payload, begins[rows] + NUMBER_BYTES * (1 + np.arange(rows.size) - owners[rows])
    )
    firsts = begins + NUMBER_BYTES * (1 + counts)
    totals = np.zeros(counts.size, np.int64)
    np.add.at(totals, rows, lengths)
    outside = np.zeros(counts.size, np.bool_)
    # Each by itself as well: damaged lengths may run over, and their sum be right.
    outside[rows[(lengths < 0) | (lengths > payload.size)]] = True
    _check((firsts + totals == ends) & ~outside, field)
    return counts, lengths, firsts


def _check(whole: NDArray[np.bool_], field: Field) -> None:
    if not whole.all():
        raise RowError(
            int(whole.argmin()),
            f"the bytes of field {field.name!r} are no packed texts of shape {field.shape}",
            cause="the bytes changed after they were written",
            remedy="remove the cache that holds them, and make it again",
        )


def _inner(field: Field) -> tuple[int, ...]:
    return tuple(int(length or 0) for length in (field.shape or ())[1:])


def _objects(
    field: Field, payload: Bytes, begins: Int64s, lengths: Int64s, rows: Int64s | None
) -> NDArray[Any]:
    """Return texts as an array of objects; ``rows`` are the records that they are of, None: each
    has one."""
    objects = np.empty(begins.size, object)
    data = payload.tobytes()
    spans = zip(begins.tolist(), (begins + lengths).tolist(), strict=True)
    if field.text == "bytes":
        objects[:] = [data[begin:end] for begin, end in spans]
        return objects
    try:
        # In ASCII a byte is a character: bounds in bytes cut the text, too.
        text = data.decode("ascii")  # the usual case, several times as fast as text by text
    except UnicodeDecodeError:
        objects[:] = _decode_texts(field, data, list(spans), rows)
    else:
        objects[:] = [text[begin:end] for begin, end in spans]
    return objects


def _decode_texts(
    field: Field, data: bytes, spans: Sequence[tuple[int, int]], rows: Int64s | None
) -> list[str]:
    texts: list[str] = []
    try:
        for begin, end in spans:
            texts.append(data[begin:end].decode())
    except UnicodeDecodeError as error:
        number = len(texts)
        begin, end = spans[number]
        bad = data[begin + error.start]
        around = data[max(begin, begin + error.start - MAX_BYTES // 2) : end][:MAX_BYTES]
        raise RowError(
            number if rows is None else int(rows[number]),
            f"field {field.name!r}: byte {error.start} of its {end - begin} is no UTF-8 "
            f"({bad:#04x})",
            cause=f"{error.reason}, in {around!r}",
            remedy=LATIN,
        ) from None
    return texts


def pack(field: Field, values: Any) -> Ragged:
    """Return the texts of some records as bytes: the other way round.

    Args:
        field: it.
        values: objects as `unpack` returns them; a list of texts, or of lists of texts, will do.

    Raises:
        RowError: a value is no text, or a text cannot be written as UTF-8.
    """
    if field.shape == ():
        return _join([_encode_text(field, row, value) for row, value in enumerate(values)])
    rows = [
        [_encode_text(field, row, value) for value in _check_texts(field, row, texts).reshape(-1)]
        for row, texts in enumerate(values)
    ]
    flat = _join([text for texts in rows for text in texts])
    payload, offsets, places = room_for(
        np.array([len(texts) for texts in rows], np.int64), flat.lengths
    )
    for text, place in zip(flat, places.tolist(), strict=True):
        payload[place : place + text.size] = text
    return Ragged(payload, offsets)


def room_for(counts: Int64s, lengths: Int64s) -> tuple[Bytes, Int64s, Int64s]:
    """Return memory for the texts of records that have several, their numbers written.

    Args:
        counts: int64 ``[N]``, how many texts each record has.
        lengths: int64 ``[total]``, the bytes of each text.

    Returns:
        The memory, where each record begins and the last ends, and where the bytes of each text go.
    """
    ends_of_texts, ends_of_rows = offsets_of(lengths), offsets_of(counts)
    offsets = offsets_of(NUMBER_BYTES * (1 + counts) + np.diff(ends_of_texts[ends_of_rows]))
    payload = np.empty(int(offsets[-1]), np.uint8)
    rows = np.repeat(np.arange(counts.size), counts)
    inside = np.arange(rows.size) - ends_of_rows[:-1][rows]
    _put_numbers(payload, offsets[:-1], counts)
    _put_numbers(payload, offsets[:-1][rows] + NUMBER_BYTES * (1 + inside), lengths)
    firsts = offsets[:-1] + NUMBER_BYTES * (1 + counts)
    places = firsts[rows] + ends_of_texts[:-1] - ends_of_texts[ends_of_rows[:-1]][rows]
    return payload, offsets, places


def _check_texts(field: Field, row: int, texts: Any) -> NDArray[Any]:
    """Return the texts of a record as an array of the field's shape."""
    array = np.asarray(texts, object)
    if not array.size and field.ragged:
        shape = (0, *_inner(field))
    else:
        shape = array.shape
    field_shape = field.shape or ()
    if len(shape) != len(field_shape) or any(
        length not in (None, actual) for length, actual in zip(field_shape, shape, strict=True)
    ):
        raise RowError(
            row,
            f"field {field.name!r} has texts of shape {array.shape}",
            cause=f"the field is {field}",
            remedy="return texts of that shape; None stands for any number along the first axis",
        )
    return array.reshape(shape)


def _join(texts: Sequence[bytes]) -> Ragged:
    lengths = np.array([len(text) for text in texts], np.int64)
    # A bytearray: of bytes NumPy makes an array that cannot be written to.
    return Ragged(np.frombuffer(bytearray(b"".join(texts)), np.uint8), offsets_of(lengths))


def _encode_text(field: Field, row: int, value: Any) -> bytes:
    try:
        if isinstance(value, str) and field.text == "str":
            return value.encode()
        if isinstance(value, bytes) and field.text == "bytes":
            return bytes(value)
    except UnicodeEncodeError as error:
        raise RowError(
            row,
            f"field {field.name!r}: {value[:MAX_BYTES]!r} cannot be written as UTF-8",
            cause=f"character {error.start} is half of a surrogate pair",
            remedy="repair the text; errors='surrogateescape' may have been used to read it",
        ) from None
    raise RowError(
        row,
        f"field {field.name!r} has {type(value).__name__} {value!r}"[:200],
        cause=f"the field is {field}",
        remedy=f"return {field.text} for each record",
    )


def _windows(payload: Bytes, *, writeable: bool = False) -> NDArray[np.uint8]:
    """Return the eight bytes from each byte on, as rows."""
    # A number may lie at any byte: a view as int64 begins at each eighth one alone.
    return as_strided(
        payload, (payload.size - NUMBER_BYTES + 1, NUMBER_BYTES), (1, 1), writeable=writeable
    )


def _numbers(payload: Bytes, places: Int64s) -> Int64s:
    """Return the numbers at some bytes; they lie inside."""
    if not places.size:
        return np.zeros(0, np.int64)
    return np.ascontiguousarray(_windows(payload)[places]).view(np.int64)[:, 0]


def _put_numbers(payload: Bytes, places: Int64s, numbers: Int64s) -> None:
    if places.size:
        _windows(payload, writeable=True)[places] = numbers.reshape(-1, 1).view(np.uint8)
