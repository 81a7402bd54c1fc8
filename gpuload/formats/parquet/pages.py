"""Pages: the headers of the pages of a column, read before PyArrow takes memory for them.

Layout  a column of a row group is pages, one behind the other: a header, in the compact protocol of
        Thrift, and as many bytes as it says. A dictionary page may stand in front.
Sizes   A value of a dictionary is stored once for any number of values, and so is the beginning
        that a text has in common with the one before it (DELTA_BYTE_ARRAY). All other texts have at
        most the bytes of their pages.
Read    PyArrow reads a column of a row group at once: `WatchedFile` shows these bytes, so that none
        is read twice.
Source  https://github.com/apache/parquet-format, parquet.thrift and Encodings.md;
        https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

TRUE, FALSE, BYTE, DOUBLE, BINARY, STRUCT = 1, 2, 3, 7, 8, 12  # kinds of values of Thrift
VARINTS = (4, 5, 6)  # numbers of 16, 32 and 64 bits
DICTIONARY_PAGE = 2  # of the kinds of pages
DATA_HEADERS = {5: 2, 8: 4}  # fields of a header that are those of data, and in these the encoding
PLAIN_ENCODING, DICTIONARY_ENCODINGS, PREFIX_ENCODING = 0, (2, 8), 7
MOST_DEPTH = 8
MOST_VARINT_BYTES = 10


class WrongHeader(ValueError):
    """These bytes are no header of a page, or end inside of one."""


@dataclass(frozen=True)
class Pages:
    """The headers of pages, added up.

    Attributes:
        num_values: of all data pages; a list is as many values as it has elements.
        num_bytes: of all pages, unpacked.
        shared_bytes: the most bytes that one value may have that is not stored for itself; 0 if
            there is none.
        encodings: of all data pages, by their numbers in the format.
    """

    num_values: int
    num_bytes: int
    shared_bytes: int
    encodings: frozenset[int]


def parse_pages(content: bytes) -> Pages:
    """Return the sums of the headers in the bytes of a column; bytes that are no header end it."""
    num_values, num_bytes, dictionary_bytes, shared_bytes, place = 0, 0, 0, 0, 0
    encodings = set[int]()
    while place < len(content):
        try:
            header, place = _read_struct(content, place, 0)
        except WrongHeader:
            break
        size, packed_size = header.get(2, 0), header.get(3, 0)
        if not isinstance(size, int) or not isinstance(packed_size, int) or packed_size < 0:
            break
        num_bytes, place = num_bytes + max(size, 0), place + packed_size
        if header.get(1) == DICTIONARY_PAGE:
            dictionary_bytes = max(dictionary_bytes, size)
        for number, encoding_field in DATA_HEADERS.items():
            data = header.get(number)
            if not isinstance(data, dict):
                continue
            values, encoding = data.get(1, 0), data.get(encoding_field)
            if isinstance(values, int):
                num_values += values
            if not isinstance(encoding, int):
                encoding = 0
            encodings.add(encoding)
            if encoding in DICTIONARY_ENCODINGS:
                shared_bytes = max(shared_bytes, dictionary_bytes)
            elif encoding == PREFIX_ENCODING:
                shared_bytes = max(shared_bytes, size)
    return Pages(num_values, num_bytes, shared_bytes, frozenset(encodings))


class WatchedFile:
    """A file of Python that shows its bytes when they are read.

    Args:
        file: the file.
        look: takes the bytes of each read; its error ends the read.
    """

    def __init__(self, file: BinaryIO, look: Callable[[bytes], None]) -> None:
        self._file, self._look = file, look

    def read(self, num_bytes: int = -1) -> bytes:
        """Return bytes of the file."""
        content = self._file.read(num_bytes)
        self._look(content)
        return content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


# --- the compact protocol of Thrift


def _read_struct(content: bytes, place: int, depth: int) -> tuple[dict[int, Any], int]:
    """Return the fields of a structure by their numbers, and where it ends."""
    if depth > MOST_DEPTH:
        raise WrongHeader("structures lie too deep in one another")
    fields, number = dict[int, Any](), 0
    while True:
        head, place = _byte(content, place)
        if not head:
            return fields, place
        kind, step = head & 15, head >> 4
        if step:
            number += step
        else:
            number, place = _read_number(content, place)
        if kind in (TRUE, FALSE):
            fields[number] = kind == TRUE
        else:
            fields[number], place = _read_value(content, place, kind, depth)


def _read_value(content: bytes, place: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in VARINTS:
        return _read_number(content, place)
    if kind == STRUCT:
        return _read_struct(content, place, depth + 1)
    if kind == BINARY:
        length, place = _read_varint(content, place)
        return None, place + length
    if kind in (BYTE, DOUBLE):
        return None, place + {BYTE: 1, DOUBLE: 8}[kind]
    # No header of a page has lists, sets or maps.
    raise WrongHeader(f"a value of kind {kind}")


def _read_number(content: bytes, place: int) -> tuple[int, int]:
    number, place = _read_varint(content, place)
    return (number >> 1) ^ -(number & 1), place


def _read_varint(content: bytes, place: int) -> tuple[int, int]:
    number = 0
    for count in range(MOST_VARINT_BYTES):
        byte, place = _byte(content, place)
        number |= (byte & 127) << 7 * count
        if byte < 128:
            return number, place
    raise WrongHeader("a number does not end")


def _byte(content: bytes, place: int) -> tuple[int, int]:
    if place >= len(content):
        raise WrongHeader("it ends too early")
    return content[place], place + 1
