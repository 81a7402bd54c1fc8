"""Wire: serialized tf.train.Examples and SequenceExamples, read field by field in plain Python.

These functions parse one record, as the core parses a whole batch. They are used where there is no
core, and to name the byte and the reason in a record that the core refused.

    spans = entries(record, wanted)           the map entry of each key
    kind, values = feature_of(record, span)   its content

Source   https://protobuf.dev/programming-guides/encoding; example.proto and feature.proto of
         TensorFlow.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from typing import Any

VARINT, FIXED_64, SPAN, GROUP, GROUP_END, FIXED_32 = range(6)  # wire types
MAX_KEYS = 40  # keys, by messages
MOST_DEPTH = 100  # of groups inside groups, as in protobuf
BYTES_LIST, FLOAT_LIST, INT64_LIST = 1, 2, 3
KINDS = {BYTES_LIST: "bytes", FLOAT_LIST: "float", INT64_LIST: "int64"}
FEATURES, LISTS = 1, 2  # the sections of a SequenceExample; an Example has the first one

Span = tuple[int, int]
Key = tuple[int, bytes]  # section and key


class WireError(Exception):
    """Bytes that are no message.

    Args:
        place: of the byte, from the beginning of the record's payload.
        cause: the fault there.
    """

    def __init__(self, place: int, cause: str) -> None:
        super().__init__(f"byte {place}: {cause}")
        self.place, self.cause = place, cause


def entries(data: bytes, sections: Collection[int] = (FEATURES, LISTS)) -> dict[Key, Span]:
    """Return the span of the map entry of each key; the last one of a key that occurs twice.

    Args:
        data: the record.
        sections: to read; a tf.Example has only the first one, and ignores the field of the second.
    """
    spans: dict[Key, Span] = {}
    for section, kind, first, after in fields(data, 0, len(data)):
        if kind == SPAN and section in sections:
            for number, kind, begin, end in fields(data, first, after):
                if number == 1 and kind == SPAN:
                    # A map may state a key twice; the last one counts, as for any parser of
                    # protobuf.
                    spans[section, key_of(data, (begin, end))] = begin, end
    return spans


def list_keys(records: Sequence[bytes]) -> str:
    """Return the keys of some records, for messages."""
    keys = sorted({key for record in records for _, key in entries(record)})
    names = [repr(key.decode("utf-8", "backslashreplace")) for key in keys[:MAX_KEYS]]
    if len(keys) > MAX_KEYS:
        names.append("others")
    return ", ".join(names) or "none"


def key_of(data: bytes, entry: Span) -> bytes:
    """Return the key of a map entry; empty where it says none."""
    key = b""
    for number, kind, first, after in fields(data, *entry):
        if number == 1 and kind == SPAN:
            key = data[first:after]
    return key


def steps_of(data: bytes, entry: Span) -> list[Span]:
    """Return where the features of the feature list of an entry lie."""
    return [
        (begin, end)
        for number, kind, first, after in fields(data, *entry)
        if number == 2 and kind == SPAN
        for field, inner, begin, end in fields(data, first, after)
        if field == 1 and inner == SPAN
    ]


def feature_of(data: bytes, span: Span, *, is_entry: bool) -> tuple[int, list[Any]]:
    """Return the kind of a feature's list, 0 for none, and its values.

    Of int64 lists these are numbers, of float lists the bits of numbers, of bytes lists where bytes
    begin and end.

    Args:
        data: the record.
        span: of the feature, or of the map entry that holds it.
        is_entry: True if it is the span of a map entry.
    """
    features = [span]
    if is_entry:
        features = [
            (first, after)
            for number, kind, first, after in fields(data, *span)
            if (number, kind) == (2, SPAN)
        ]
    kind, values = 0, list[Any]()
    for feature in features:
        for number, wire, first, after in fields(data, *feature):
            if wire == SPAN and number in KINDS:
                if kind != number:  # of the members of a oneof the last one stays
                    kind, values = number, []
                _extend(data, number, (first, after), values)
    return kind, values


def _extend(data: bytes, kind: int, span: Span, values: list[Any]) -> None:
    """Append the values of a list of a kind, which lies in ``data[span]``: spans of bytes, bits of
    floats, or integers.

    Raises:
        WireError: the bytes of floats are no multiple of 4.
    """
    for number, wire, first, after in fields(data, *span):
        if number != 1:
            continue
        if kind == BYTES_LIST:
            if wire == SPAN:
                values.append((first, after))
        elif kind == FLOAT_LIST:
            if wire in (SPAN, FIXED_32):
                if (after - first) % 4:
                    raise WireError(
                        first, f"{after - first} bytes of floats, which have 4 bytes each"
                    )
                values += struct.unpack(f"<{(after - first) // 4}I", data[first:after])
        elif wire == VARINT:
            values.append(_signed(first))
        elif wire == SPAN:
            while first < after:
                value, first = varint(data, first, after)
                values.append(_signed(value))


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def fields(data: bytes, place: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, wire type, begin and end of the fields of a message; the value in place of a
    varint's begin.

    Groups are skipped.

    Raises:
        WireError: there is no field where one should be.
    """
    while place < end:
        number, kind, first, after, place = _field(data, place, end)
        if kind == GROUP:
            place = _after_group(data, number, place, end)
        elif kind == GROUP_END:
            raise WireError(place, f"the end of a group (field {number}) that did not begin")
        else:
            yield number, kind, first, after


def _after_group(data: bytes, number: int, place: int, end: int) -> int:
    """Return the place behind the end of a group."""
    open_groups = [number]
    while open_groups:
        if place >= end:
            raise WireError(place, f"a group (field {open_groups[-1]}) does not end")
        number, kind, _, _, place = _field(data, place, end)
        if kind == GROUP:
            open_groups.append(number)
            if len(open_groups) > MOST_DEPTH:
                raise WireError(place, f"more than {MOST_DEPTH} groups in one another")
        elif kind == GROUP_END and open_groups.pop() != number:
            raise WireError(place, f"the end of a group (field {number}) inside of another one")
    return place


def _field(data: bytes, place: int, end: int) -> tuple[int, int, int, int, int]:
    """Return number, wire type, begin and end of a field, and where the next one begins."""
    at = place
    tag, place = varint(data, place, end)
    number, kind = tag >> 3, tag & 7
    # A tag has 32 bits: 29 of the field's number, and 3 of the wire type.
    if not number or tag > 0xFFFFFFFF or kind > FIXED_32:
        raise WireError(at, f"{tag:#x} is no tag of a field")
    if kind == VARINT:
        value, place = varint(data, place, end)
        return number, kind, value, 0, place
    size = {FIXED_64: 8, FIXED_32: 4}.get(kind, 0)
    if kind == SPAN:
        size, place = varint(data, place, end)
    if size > end - place:
        raise WireError(
            at, f"field {number} says that it has {size} bytes, and {end - place} are left"
        )
    return number, kind, place, place + size, place + size


def varint(data: bytes, place: int, end: int) -> tuple[int, int]:
    """Return a varint, below 2**64, and the place behind it."""
    at, value, shift = place, 0, 0
    while place < end and shift <= 63:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 and value >> 64 == 0:
            return value, place
        shift += 7 if byte >= 0x80 else 64
    cause = "a number that does not end"
    if shift > 63:
        cause = "a number of more than 64 bits"
    raise WireError(at, cause)
