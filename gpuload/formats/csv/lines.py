"""A CSV file as blocks of whole records, in UTF-8; and a scan that knows fields and lines exactly.

Text     RFC 4180: records end with a line end, a value in quotes may hold delimiters, line ends and
         doubled quotes. As Python's csv module has it, a quote opens only at the beginning of a
         value, and text behind the closing one is part of the value. Line ends are LF, CRLF or CR;
         lines without a character are no records. With an escape character, the character behind it
         stands for itself, in quotes and outside, as for PyArrow.
Excel    A first line "sep=;" names the delimiter. It is no record, and an error where the delimiter
         is another one.
Blocks   begin where a record does and end where one does, so each can be parsed by itself. A block
         without quotes ends at its last line end. With quotes, which are counted, at the last line
         end behind an even number of them, if each of them stands where it opens, closes or is
         doubled; else the scan finds the last record.
Packed   files of gzip, and ZIP archives of one file, are unpacked as a stream by
         `storage/packers.py`. Other encodings are decoded as one.
Limits   a record has at most LARGEST_RECORD_BYTES, so that a file of one endless line, or with a
         quote that is never closed, is refused soon; bytes that are 0 are no text.
"""

from __future__ import annotations

import codecs
import itertools
import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import GpuloadError, RecordError, SpecError
from gpuload.formats.csv.columns import Dialect
from gpuload.formats.csv.excel import LONGEST_BYTES, OTHER_BOMS, delimiter_in
from gpuload.storage.files import Files
from gpuload.storage.inflate import HEAD_BYTES
from gpuload.storage.packers import inflate_content, packer_of

Piece = bytes | bytearray
Chunk = tuple[Piece, bool]  # True for the last one

BLOCK_BYTES = 1 << 20  # measured: the columns of a block and its rows stay in the cache
LARGEST_RECORD_BYTES = 1 << 24
SHORT_BYTES = 1 << 12
BOM = codecs.BOM_UTF8
LF, CR = 10, 13
BACKSLASH = b"\\"
LINE_END = re.compile(rb"\r\n|\r|\n")


@dataclass(frozen=True)
class TextBlock:
    """Whole records.

    Attributes:
        data: their text in UTF-8.
        line: the number of the line where it begins, from 1.
        num_lines: line ends in it; one more if the last line has none.
        offset: the byte of the file where it begins; -1 where the file is packed or in another
            encoding.
        has_quotes: True if there is a quote in it.
    """

    data: bytes
    line: int
    num_lines: int
    offset: int
    has_quotes: bool

    def offset_of(self, place: int) -> int:
        """Return the byte of the file at a place of the data; -1 where it is not known."""
        return self.offset + place if self.offset >= 0 else -1


@dataclass(frozen=True)
class Record:
    """A record as the scan sees it.

    Attributes:
        begin: its first byte in the data.
        end: the byte behind its line end.
        line: the number of the line where it begins.
        values: bytes, without the quotes.
        is_ended: True if a line end was there.
        open_line: the line of a quote that is not closed, 0 if there is none.
        escaped_quote: True if a quote that ends a value stands behind a backslash and in front of
            other text: a program wrote it that escapes quotes, and it ends nothing.
        has_null: True if a value is `Dialect.null`.
    """

    begin: int
    end: int
    line: int
    values: list[bytes]
    is_ended: bool = True
    open_line: int = 0
    escaped_quote: bool = False
    has_null: bool = False


def blocks(
    files: Files,
    number: int,
    dialect: Dialect,
    block_bytes: int = BLOCK_BYTES,
    start: tuple[int, int] = (0, 1),
) -> Iterator[TextBlock]:
    """Yield a file as blocks, without the lines that are skipped; the header is in the first.

    Args:
        files: the user's.
        number: of the file.
        dialect: its form.
        block_bytes: the usual size of a block.
        start: offset and line of an earlier block, to begin there.

    Raises:
        RecordError: a line is too long, holds a byte 0, or a quote that is not closed; text of
            another encoding.
        SpecError: the first line names another delimiter.
        FormatError: a packed file is damaged.
        ChangedFileError, FileError: the file changed, or cannot be read.
    """
    path, quote, (begin, line) = files.paths[number], dialect.quote.encode(), start
    stream, position = _Stream(files, number, dialect, block_bytes, begin), 0
    chunks = iter(stream)
    if begin == 0:
        chunks, num_lines, position = _skip_first_lines(chunks, path, dialect, line)
        line += num_lines
    pending: Piece = b""
    least = 0
    for chunk, is_last in chunks:
        if is_last:
            data, pending = bytes(pending + chunk), b""
            if quote and quote in data and (quote_line := _open_line(data, dialect, line)):
                raise _not_closed(path, quote_line, "the file ends before it is closed")
        else:
            data, pending, least = _cut_records(pending, chunk, dialect, least)
        if data:
            if (zero := data.find(0)) >= 0:
                raise _no_text(path, line + num_ends(data[:zero]))
            num_lines = num_ends(data) + (data[-1] not in (LF, CR))
            offset = stream.lead_bytes + position if stream.is_plain else -1
            yield TextBlock(data, line, num_lines, offset, bool(quote) and quote in data)
            line, position = line + num_lines, position + len(data)
        _check_length(path, pending, line, dialect)


def _skip_first_lines(
    chunks: Iterator[Chunk], path: str, dialect: Dialect, line: int
) -> tuple[Iterator[Chunk], int, int]:
    """Return a text without its first lines, and how many lines and bytes were left out.

    Args:
        chunks: pieces of the text, each with whether it is the last.
        path: of the file.
        dialect: its form, which says how many lines to leave out.
        line: the number of the first line.
    """
    text, is_last = b"", False
    while len(text) < LONGEST_BYTES and not is_last:
        chunk, is_last = next(chunks)
        text += chunk
    has_delimiter_line = _has_delimiter_line(text, path, dialect)
    to_skip = dialect.skip_lines or int(has_delimiter_line)
    num_lines = num_bytes = 0
    while num_lines < to_skip:
        match = LINE_END.search(text)
        # A CR at the end may be the first half of a line end.
        if match and (match.end() < len(text) or is_last):
            text, num_lines, num_bytes = (
                text[match.end() :],
                num_lines + 1,
                num_bytes + match.end(),
            )
        elif is_last:
            break
        else:
            _check_length(path, text, line + num_lines, dialect)
            chunk, is_last = next(chunks)
            text += chunk
    return itertools.chain([(text, is_last)], chunks), num_lines, num_bytes


def _cut_records(
    pending: Piece, chunk: Piece, dialect: Dialect, least: int
) -> tuple[bytes, Piece, int]:
    """Return the whole records of a text, the rest of it, and the number of bytes to wait for.

    Args:
        pending: the rest of the text before.
        chunk: the text behind that.
        dialect: its form.
        least: bytes without a whole record that were searched: the next search is among twice as
            many, so that a long record is not searched again for each piece of it.
    """
    quote = dialect.quote.encode()
    end = chunk.rfind(b"\n") + 1
    if end and not (quote and (quote in chunk or quote in pending)):  # the usual case: one copy
        return b"".join((pending, memoryview(chunk)[:end])), bytes(chunk[end:]), least
    if not isinstance(pending, bytearray):  # which grows in place
        pending = bytearray(pending)
    pending += chunk
    end = last_end(pending, dialect) if len(pending) >= least else 0
    if not end:
        return b"", pending, max(least, min(2 * len(pending), LARGEST_RECORD_BYTES))
    view = memoryview(pending)
    return bytes(view[:end]), bytes(view[end:]), 0


def _has_delimiter_line(head: Piece, path: str, dialect: Dialect) -> bool:
    """Return True if the first line of a file names the delimiter.

    Raises:
        SpecError: it is another one.
    """
    delimiter = delimiter_in(bytes(head[:LONGEST_BYTES]))
    if delimiter and delimiter != dialect.delimiter:
        raise SpecError(
            f"{path} says in its first line that {delimiter!r} stands between values",
            cause=f"delimiter is {dialect.delimiter!r}",
            remedy=f"pass delimiter={delimiter!r}; skip_lines=1 if the line is wrong",
        )
    return bool(delimiter)


def _check_length(path: str, pending: Piece, line: int, dialect: Dialect) -> None:
    if len(pending) <= LARGEST_RECORD_BYTES:
        return
    if (zero := pending.find(0)) >= 0:
        raise _no_text(path, line + num_ends(pending[:zero]))
    if dialect.quote and (quote_line := _open_line(pending, dialect, line)):
        raise _not_closed(
            path, quote_line, f"the next {LARGEST_RECORD_BYTES} bytes do not close it"
        )
    raise RecordError(
        f"{path}, line {line} has more than {LARGEST_RECORD_BYTES} bytes",
        cause="there is no line end: it is no CSV file, or of a program that writes other line ends",
        remedy="check the file; a record has at most so many bytes",
    )


def _not_closed(path: str, line: int, cause: str) -> RecordError:
    return RecordError(
        f"{path}, line {line}: a quote is opened and not closed",
        cause=cause,
        remedy="close it, write a quote inside a quoted value twice, or pass quote=None if values are not quoted",
    )


def _no_text(path: str, line: int) -> RecordError:
    return RecordError(
        f"{path}, line {line} holds a byte 0",
        cause="no text has one: the file is of another encoding (UTF-16 has many), was never written, or is no CSV",
        remedy='pass encoding="utf-16", say, or copy the file again',
    )


def num_ends(data: Piece) -> int:
    """Return how many line ends there are."""
    is_long = (
        len(data) > SHORT_BYTES
    )  # measured: NumPy takes an eighth of the time that bytes.count does
    if is_long:
        ends = int(np.count_nonzero(np.frombuffer(data, np.uint8) == LF))
    else:
        ends = data.count(b"\n")
    if b"\r" in data:
        return ends + data.count(b"\r") - data.count(b"\r\n")
    return ends


def last_end(data: Piece, dialect: Dialect) -> int:
    """Return where the last whole record of some that begin with one ends; 0 if none is whole.

    A CR at the end may be the first half of a line end, and a quote the first of two: the next byte
    is not known.
    """
    quote = dialect.quote.encode()
    if not quote or quote not in data:
        shape = _shape(data, dialect)
        end = shape.rfind(b"\n") + 1
        return end or shape.rfind(b"\r", 0, len(data) - 1) + 1
    shape = _shape(data, dialect)
    quotes = _quotes(shape, dialect)
    if quotes is None:
        ends = [record.end for record in scan(bytes(data), dialect) if record.is_ended]
        if ends and ends[-1] == len(data) and data[-1] == CR:
            ends.pop()
        return ends[-1] if ends else 0
    for mark in (b"\n", b"\r"):
        if mark == b"\n":
            end = len(data)
        else:
            end = len(data) - 1
        while (end := shape.rfind(mark, 0, end)) >= 0:
            before = int(np.searchsorted(quotes, end))
            if before % 2 == 0:
                return end + 1
            end = int(quotes[before - 1])  # inside of quotes: go on in front of the one that opened
    return 0


def split_block(block: TextBlock, dialect: Dialect, most_bytes: int) -> Iterator[TextBlock]:
    """Yield a block as shorter ones, of about so many bytes, each of whole records."""
    begin, line, at_once = 0, block.line, most_bytes
    while begin < len(block.data):
        piece = block.data[begin : begin + at_once]
        if begin + at_once < len(block.data):
            end = last_end(piece, dialect)
        else:
            end = len(piece)
        if not end:
            at_once *= 2
            continue
        data, at_once = piece[:end], most_bytes
        num_lines = num_ends(data) + (data[-1] not in (LF, CR))
        offset = block.offset_of(begin)
        yield TextBlock(
            data, line, num_lines, offset, bool(dialect.quote) and dialect.quote.encode() in data
        )
        begin, line = begin + end, line + num_lines


def _shape(data: Piece, dialect: Dialect) -> Piece:
    """Return text of the same length in which no escaped character is a quote, a delimiter or a
    line end."""
    escape = dialect.escape.encode()
    if not escape or escape not in data:
        return data
    return re.sub(re.escape(escape) + b"(?s:.)", b"xx", data)


def _quotes(data: Piece, dialect: Dialect) -> NDArray[np.int64] | None:
    """Return the places of all quotes, int64; None if they are not in turn the beginnings and the
    ends of values.

    A quote begins a value behind a delimiter, the end of a line, or another quote: two in a row are
    one that is quoted.
    """
    array = np.frombuffer(data, np.uint8)
    places = np.flatnonzero(array == ord(dialect.quote))
    between = np.zeros(256, np.bool_)
    between[[LF, CR, ord(dialect.delimiter)]] = True
    opens, closes = places[::2], places[1::2]
    doubled = np.zeros(opens.size, np.bool_)
    count = min(closes.size, opens.size - 1)
    doubled[1 : count + 1] = opens[1 : count + 1] == closes[:count] + 1
    starts = doubled | (opens == 0) | between[array[opens - 1]]
    ends = (closes + 1 == len(data)) | between[array[np.minimum(closes + 1, array.size - 1)]]
    ends[:count] |= doubled[1 : count + 1]
    if bool(starts.all()) and bool(ends.all()):
        return places
    return None


def _open_line(data: Piece, dialect: Dialect, line: int) -> int:
    """Return the line of a quote that is not closed; 0 if there is none."""
    quotes = _quotes(_shape(data, dialect), dialect)
    if quotes is not None:
        if quotes.size % 2:
            return line + num_ends(data[: int(quotes[-1])])
        return 0
    return next(
        (record.open_line for record in scan(bytes(data), dialect, line) if record.open_line), 0
    )


def scan(data: bytes, dialect: Dialect, line: int = 1) -> Iterator[Record]:
    """Yield the records one by one; slow, about 20 MB/s: for headers and errors, which are scanned
    once.

    Args:
        data: text in UTF-8 that begins with a record.
        dialect: its form.
        line: the number of its first line.
    """
    delimiter, quote = dialect.delimiter.encode(), dialect.quote.encode()
    separator = re.compile(b"[\r\n" + re.escape(delimiter) + b"]")
    shape, value_of = bytes(_shape(data, dialect)), _unescape(dialect)
    position, size = 0, len(data)
    while position < size:
        begin, first, values, escaped_quote, has_null = position, line, list[bytes](), False, False
        while True:
            value, close = b"", -1
            if quote and shape[position : position + 1] == quote:
                close = _closing(shape, quote, position + 1)
                if close < 0:
                    yield Record(begin, size, first, values, is_ended=False, open_line=line)
                    return
                value = value_of(data[position + 1 : close])
                line += num_ends(data[position:close])
                position = close + 1
            match = separator.search(shape, position)
            if match is None:
                stop = size
            else:
                stop = match.start()
            escaped_quote |= close > 0 and stop > position and data[close - 1 : close] == BACKSLASH
            rest = data[position:stop]
            is_null = close < 0 and bool(dialect.escape) and rest == dialect.null.encode()
            has_null |= is_null
            if dialect.escape:
                line += num_ends(rest)
            if dialect.escape and not is_null:
                rest = value_of(rest)
            values.append(value + rest)
            if match is None or match.group() != delimiter:
                break
            position = stop + 1
        position = size
        if match is not None:
            line, position = line + 1, stop + 1 + (data[stop : stop + 2] == b"\r\n")
        if stop > begin:
            marks = {"escaped_quote": escaped_quote, "has_null": has_null}
            yield Record(begin, position, first, values, is_ended=match is not None, **marks)


def _unescape(dialect: Dialect) -> Callable[[bytes], bytes]:
    """Return a function that gives the value of a text in quotes: doubled quotes are one, escapes
    are gone."""
    quote, escape = dialect.quote.encode(), dialect.escape.encode()
    if not escape:
        return lambda text: text.replace(quote * 2, quote)
    doubled = b"|" + re.escape(quote * 2) if quote else b""
    pattern = re.compile(re.escape(escape) + b"((?s:.)?)" + doubled)
    return lambda text: pattern.sub(lambda match: quote if match[1] is None else match[1], text)


def with_escaped_nulls(data: bytes, dialect: Dialect) -> bytes:
    """Return text in which values that are `Dialect.null` stay so where escapes are taken away;
    itself without any."""
    null, escape = dialect.null.encode(), re.escape(dialect.escape.encode())
    if not escape or null not in data:
        return data
    between = re.escape(dialect.delimiter.encode()) + rb"\r\n"
    value = rb"(\A|[%b])%b(?=[%b]|\Z)" % (between, re.escape(null), between)
    if re.search(value, data) is None:
        return data
    forms, quote = [value, escape + rb"(?s:.)"], re.escape(dialect.quote.encode())
    if quote:  # a value in quotes, or behind an escape, is text
        forms.insert(
            0,
            rb"(?:\A|[%b])%b(?:[^%b%b]|%b(?s:.)|%b%b)*%b"
            % (between, *[quote] * 2, *[escape] * 2, *[quote] * 3),
        )
    escaped = dialect.escape.encode() + null

    def escape_null(match: re.Match[bytes]) -> bytes:
        return match[0] if match[1] is None else match[1] + escaped

    text = re.sub(b"|".join(forms), escape_null, data)
    return data if text == data else text


def has_escaped_quotes(data: bytes, dialect: Dialect) -> bool:
    """Return True if a quote that ends a value stands behind a backslash and in front of other
    text."""
    if dialect.escape or not dialect.quote or BACKSLASH + dialect.quote.encode() not in data:
        return False
    pattern = rb"\\%b[^\r\n%b%b]" % tuple(
        re.escape(mark.encode()) for mark in (dialect.quote, dialect.quote, dialect.delimiter)
    )
    return re.search(pattern, data) is not None and any(
        record.escaped_quote for record in scan(data, dialect)
    )


def _closing(data: bytes, quote: bytes, begin: int) -> int:
    """Return where the quote that closes a value is, -1 if there is none."""
    while (place := data.find(quote, begin)) >= 0:
        if data[place + 1 : place + 2] != quote:
            return place
        begin = place + 2
    return -1


class _Stream:
    """The text of a file in UTF-8, piece by piece, each with whether it is the last.

    Attributes:
        is_plain: True if the text is the bytes of the file, from ``lead_bytes`` on; known once
            there is a piece.
        lead_bytes: of the mark at the beginning of the file, or of all that is left out there.
    """

    def __init__(
        self, files: Files, number: int, dialect: Dialect, piece_bytes: int, begin: int
    ) -> None:
        self._files, self._number, self._piece_bytes = files, number, piece_bytes
        self._encoding, self._compression = dialect.encoding, dialect.compression
        self.is_plain, self.lead_bytes = True, begin

    def __iter__(self) -> Iterator[tuple[Piece, bool]]:
        pieces, path = self._pieces(), self._files.paths[self._number]
        before: Piece = b""
        if self._encoding != "utf-8":
            text = self._to_utf8(pieces, path)
        else:
            text = self._without_bom(pieces, path)
        is_first = True
        for piece in text:
            if not is_first:
                # A piece is held back until there is another one: only then it is known not to be
                # the last.
                yield before, False
            before, is_first = piece, False
        yield before, True

    def _pieces(self) -> Iterator[Piece]:
        """Yield the bytes of the file, unpacked."""
        raw = self._raw()
        first = next(raw, b"")
        if self.lead_bytes:
            packing = ""
        else:
            packing = self._packing(bytes(first[:HEAD_BYTES]))
        if not packing:
            yield first
            yield from raw
            return
        # This closes the file, which the unpacking opens by itself.
        raw.close()
        self.is_plain = False
        yield from self._inflate(packing)

    def _raw(self) -> Generator[Piece, None, None]:
        files, number = self._files, self._number
        size = int(files.sizes[number])
        with files.open_file(number) as descriptor:
            offset = self.lead_bytes
            while offset < size:
                piece = bytearray(min(self._piece_bytes, size - offset))
                files.read(number, descriptor, memoryview(piece), offset)
                offset += len(piece)
                yield piece
            # Behind the last byte: a file that was written meanwhile may have pieces of both
            # versions.
            files.check_descriptor(number, descriptor)

    def _packing(self, head: bytes) -> str:
        path = self._files.paths[self._number]
        return packer_of(
            path,
            head,
            self._compression,
            zip_remedy='; gl.csv(..., compression="zip") reads one file',
        )

    def _inflate(self, packing: str) -> Iterator[Piece]:
        """Yield the bytes that a packed file holds, in pieces of about the usual size."""
        pieces, num_bytes = list[bytes](), 0
        for _, piece in inflate_content(self._files, self._number, packing):
            pieces.append(piece)
            num_bytes += len(piece)
            if num_bytes >= self._piece_bytes:
                yield b"".join(pieces)
                pieces, num_bytes = [], 0
        yield b"".join(pieces)

    def _without_bom(self, pieces: Iterator[Piece], path: str) -> Iterator[Piece]:
        """Yield text in UTF-8 without the mark at its beginning."""
        if self.lead_bytes:
            yield from pieces
            return
        first = next(pieces, b"")
        if first.startswith(OTHER_BOMS):
            raise SpecError(
                f"{path} begins with {bytes(first[:2])!r}",
                cause="so does text in UTF-16, and it is read as UTF-8",
                remedy='pass encoding="utf-16"',
            )
        if first.startswith(BOM):
            first = first[len(BOM) :]
            self.lead_bytes = len(BOM)
        yield first
        yield from pieces

    def _to_utf8(self, pieces: Iterator[Piece], path: str) -> Iterator[Piece]:
        """Yield text of another encoding in UTF-8."""
        self.is_plain = False
        decoder = codecs.getincrementaldecoder(self._encoding)("strict")
        line, offset = 1, 0
        try:
            for piece in pieces:
                num_pending = len(
                    decoder.getstate()[0]
                )  # bytes of a character that the last piece has not whole
                try:
                    text = decoder.decode(piece)
                except UnicodeDecodeError as error:
                    good = error.object[: error.start].decode(self._encoding, "replace")
                    line += num_ends(good.encode("utf-8", "replace"))
                    raise self._undecodable(
                        path, line, offset - num_pending + error.start, error.reason
                    ) from None
                raw = text.encode("utf-8")
                line += num_ends(raw)
                offset += len(piece)
                yield raw
            yield decoder.decode(b"", True).encode("utf-8")
        except UnicodeError as error:
            raise self._undecodable(path, line, offset, str(error)) from None

    def _undecodable(self, path: str, line: int, offset: int, reason: str) -> GpuloadError:
        return RecordError(
            f"{path}, line {line}, byte {offset} is no {self._encoding}",
            cause=reason,
            remedy='check the encoding: "utf-8", "latin-1", "cp1252" and "utf-16" are common',
        )
