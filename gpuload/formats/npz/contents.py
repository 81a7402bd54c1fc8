"""The arrays of one field, one in each archive: read whole, inflated where they are packed, check
sums verified.

Stored     The bytes go straight to where they belong, as those of any file do, and are summed
           there.
Deflated   The packed bytes of several are read together, and each is inflated, summed and put in
           its place, a bounded piece at a time; zlib works without the interpreter's lock, so that
           threads do this side by side.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from gpuload.errors import FormatError, RecordError
from gpuload.formats.npy import npyheader
from gpuload.formats.npy.npyheader import Header
from gpuload.sources.leaf import Bytes, Indices
from gpuload.storage.archive import STORE, ArchiveMember, Pieces, begin_of, verify_pieces
from gpuload.storage.crc32 import crc32
from gpuload.storage.extents import Extents, Storage
from gpuload.storage.inflate import RAW_BITS, reason_of

PACKED_BYTES = 1 << 20  # read at a time
LARGEST_SKIP_BYTES = 1 << 28  # of a deflated array, that are unpacked to look at the rest


class Array(NamedTuple):
    """One array of an archive.

    Attributes:
        member: that holds it.
        begin: the byte of the file where the member's bytes begin, packed or not.
        header: of the array; ``offset_bytes`` counts from the beginning of the member, unpacked.
        header_crc: CRC-32 of the member up to the elements.
    """

    member: ArchiveMember
    begin: int
    header: Header
    header_crc: int

    @property
    def is_stored(self) -> bool:
        """True if the elements lie in the file as they are."""
        return self.member.method == STORE

    @property
    def num_more(self) -> int:
        """The bytes of the member that follow the array."""
        return self.member.num_bytes - self.header.offset_bytes - self.header.data_bytes

    @property
    def offset_bytes(self) -> int:
        """The byte of the file where the elements begin, if they are stored."""
        return self.begin + self.header.offset_bytes


def array_of(pieces: Pieces, member: ArchiveMember) -> Array:
    """Return the place of a member's array in its archive, with the array's header.

    Raises:
        FormatError: the member is none that can be read, or no array, or one of Python objects.
    """
    begin = begin_of(pieces, member)
    read_first = partial(_beginning, pieces, member, begin)
    head = read_first(npyheader.HEAD_BYTES)
    header = npyheader.read_header(
        f"{pieces.path}, member {member.name!r},", member.num_bytes, head, read_first
    )
    if header.offset_bytes > len(head):
        head = read_first(header.offset_bytes)
    array = Array(member, begin, header, crc32(head[: header.offset_bytes]))
    if array.num_more > 0 and header.data_bytes <= LARGEST_SKIP_BYTES:
        end = header.offset_bytes + header.data_bytes
        if array.is_stored:
            start = pieces(begin + end, len(npyheader.MAGIC))
        else:
            start = read_first(end + 6)[end:]
        if start.startswith(npyheader.MAGIC):
            raise FormatError(
                f"{pieces.path}, member {member.name!r}, holds several arrays one behind the other",
                cause=f"behind its first array are {array.num_more} bytes that begin as an NPY "
                "file does, and "
                "numpy.load gives the first array alone",
                remedy="write each array to a member of its own: numpy.savez('new.npz', x=..., "
                "y=...)",
            )
    return array


def _beginning(pieces: Pieces, member: ArchiveMember, begin: int, num_bytes: int) -> bytes:
    """Return the first bytes of a member, unpacked; fewer where it ends.

    Raises:
        FormatError: they cannot be inflated.
    """
    num_bytes = min(num_bytes, member.num_bytes)
    if member.method == STORE:
        return pieces(begin, num_bytes)
    data, stream, end = bytearray(), zlib.decompressobj(RAW_BITS), begin + member.packed_bytes
    while begin < end and len(data) < num_bytes and not stream.eof:
        chunk = pieces(begin, min(npyheader.HEAD_BYTES, end - begin))
        begin += len(chunk)
        try:
            while chunk and len(data) < num_bytes:
                data += stream.decompress(chunk, num_bytes - len(data))
                chunk = stream.unconsumed_tail
        except zlib.error as error:
            raise FormatError(
                f"{pieces.path}, member {member.name!r} at byte {member.header_offset}, is damaged "
                "at its beginning",
                cause=f"it cannot be inflated: {reason_of(error)}",
                remedy="copy the file again",
            ) from None
    return bytes(data)


class Contents:
    """Reads the arrays of one field; any number of threads may use one at the same time.

    It keeps a few numbers of eight bytes for each array: there may be a million archives.

    Args:
        storage: of the archives.
        arrays: of each archive the one.
        location_of: returns how an array is called in messages: the archive and the record.
    """

    def __init__(
        self, storage: Storage, arrays: Sequence[Array], location_of: Callable[[int], str]
    ) -> None:
        members = [array.member for array in arrays]
        self._storage, self._location_of = storage, location_of
        # One text for the same name in a million archives.
        self._names = [sys.intern(member.name) for member in members]
        self._header_offsets = _numbers(member.header_offset for member in members)
        self._begins = _numbers(array.begin for array in arrays)
        self._packed_lengths = _numbers(member.packed_bytes for member in members)
        self._num_bytes = _numbers(member.num_bytes for member in members)
        self._skipped = _numbers(array.header.offset_bytes for array in arrays)
        self._lengths = _numbers(array.header.data_bytes for array in arrays)
        self._sums = _numbers(member.crc for member in members)
        self._header_sums = _numbers(array.header_crc for array in arrays)
        self._is_stored = np.array([array.is_stored for array in arrays], np.bool_)
        self._in_place = self._is_stored & (self._skipped + self._lengths == self._num_bytes)

    def origin(self, number: int) -> tuple[str, int]:
        """Return the archive that holds an array, and the byte where its member begins."""
        return self._storage.files.paths[number], int(self._header_offsets[number])

    def read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        """Copy the elements of array ``numbers[i]`` to ``out[begins[i]:]``, where there is room for
        them.

        Raises:
            RecordError: the bytes of a member are damaged.
            FileError: a file changed, disappeared or cannot be read.
        """
        in_place = self._in_place[numbers]
        self._read_in_place(numbers[in_place], out, begins[in_place])
        inflate_rows = np.flatnonzero(~in_place)
        for first, after in _stretches(self._packed_lengths[numbers[inflate_rows]]):
            rows = inflate_rows[first:after]
            for row, chunks in zip(rows.tolist(), self._chunks_of(numbers[rows]), strict=True):
                self._copy_elements(int(numbers[row]), chunks, out, int(begins[row]))

    def data(self, number: int) -> Iterator[bytes]:
        """Yield the elements of an array, a piece at a time; the check sum is verified before the
        last piece.

        Raises:
            RecordError: the bytes of the member are damaged.
            FileError: the file changed, disappeared or cannot be read.
        """
        [chunks] = self._chunks_of(np.array([number], np.int64))
        return self._data(number, chunks)

    def verify(self, number: int) -> None:
        """Read a stored array in pieces, and verify its check sum; a deflated array was verified
        while it was copied.

        Raises:
            RecordError: the bytes of the member are damaged.
            FileError: the file changed, disappeared or cannot be read.
        """
        if self._is_stored[number]:
            for _ in self._verify_pieces(number, self._piecewise(number)):
                pass

    def advise(self, numbers: Indices) -> None:
        """Ask the system to have these members in memory soon."""
        self._storage.advise(Extents(numbers, self._begins[numbers], self._packed_lengths[numbers]))

    def _read_in_place(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        if not numbers.size:
            return
        lengths = self._lengths[numbers]
        self._storage.read(
            Extents(numbers, self._begins[numbers] + self._skipped[numbers], lengths), out, begins
        )
        view, places, sums = (
            out.data,
            (begins, begins + lengths),
            (self._header_sums[numbers], self._sums[numbers]),
        )
        for number, begin, end, header_crc, expected in zip(
            *(column.tolist() for column in (numbers, *places, *sums)), strict=True
        ):
            if (crc := crc32(view[begin:end], header_crc)) != expected:
                raise self._wrong_sum(number, crc)

    def _chunks_of(self, numbers: Indices) -> list[Iterable[memoryview]]:
        """Return the packed bytes of members: read now if they are small or few together, else
        piece by piece."""
        lengths = self._packed_lengths[numbers]
        if lengths.sum() > PACKED_BYTES:
            return [self._piecewise(number) for number in numbers.tolist()]
        ends = np.cumsum(lengths)
        raw = np.empty(int(lengths.sum()), np.uint8)
        self._storage.read(Extents(numbers, self._begins[numbers], lengths), raw, ends - lengths)
        view = raw.data
        return [
            [view[end - length : end]]
            for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)
        ]

    def _piecewise(self, number: int) -> Iterator[memoryview]:
        """Yield the packed bytes of one member, a piece at a time, in memory that is used again."""
        begin, end = (
            int(self._begins[number]),
            int(self._begins[number] + self._packed_lengths[number]),
        )
        raw, single = np.empty(PACKED_BYTES, np.uint8), np.ones(1, np.int64)
        for offset in range(begin, end, PACKED_BYTES):
            length = min(PACKED_BYTES, end - offset)
            self._storage.read(
                Extents(single * number, single * offset, single * length), raw, single * 0
            )
            yield raw.data[:length]

    def _copy_elements(
        self, number: int, chunks: Iterable[memoryview], out: Bytes, begin: int
    ) -> None:
        for piece in self._data(number, chunks):
            out[begin : begin + len(piece)] = np.frombuffer(piece, np.uint8)
            begin += len(piece)

    def _data(self, number: int, chunks: Iterable[memoryview]) -> Iterator[bytes]:
        """Yield the elements; the bytes before and behind them are summed alone."""
        skip, left = int(self._skipped[number]), int(self._lengths[number])
        for piece in self._verify_pieces(number, chunks):
            data = piece[skip : skip + left]
            skip, left = max(0, skip - len(piece)), left - len(data)
            if data:
                yield data

    def _verify_pieces(self, number: int, chunks: Iterable[memoryview]) -> Iterator[bytes]:
        """Yield all bytes of a member, unpacked; the last piece only after their number and check
        sum were verified."""
        num_bytes, crc = int(self._num_bytes[number]), int(self._sums[number])
        to_error = partial(self._damage_error, number)
        return verify_pieces(chunks, bool(self._is_stored[number]), num_bytes, crc, to_error)

    def _wrong_sum(self, number: int, crc: int) -> RecordError:
        return self._damage_error(
            number, f"its check sum is {crc:08x}, the archive says {int(self._sums[number]):08x}"
        )

    def _damage_error(self, number: int, reason: str) -> RecordError:
        member = f"member {self._names[number]!r} at byte {self._header_offsets[number]}"
        return RecordError(
            f"{self._location_of(number)}: {member} is damaged: {reason}",
            cause="the bytes changed after the file was written, or the copy stopped early",
            remedy="copy the file again, or leave the record out with source.select(...)",
        )


def _numbers(values: Iterable[int]) -> Indices:
    return np.fromiter(values, np.int64)


def _stretches(lengths: Indices) -> Iterator[tuple[int, int]]:
    """Yield first and after-last of members that are read together, packed: at most
    PACKED_BYTES, or one."""
    first, total_bytes = 0, 0
    for number, length in enumerate(lengths.tolist()):
        if number > first and total_bytes + length > PACKED_BYTES:
            yield first, number
            first, total_bytes = number, 0
        total_bytes += length
    if first < lengths.size:
        yield first, lengths.size
