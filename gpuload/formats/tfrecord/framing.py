"""Framing: the offsets of the records of a TFRecord file, found by a walk from header to header.

Layout   for each record: uint64 length, uint32 masked CRC32C of these 8 bytes, the payload, uint32
         masked CRC32C of the payload; little-endian, without anything between records or around
         them.
Speed    a file is read in pieces of PIECE_BYTES, which the core walks through: as fast as the file
         can be read. Where records have SPARSE_BYTES or more on average, their headers alone are
         read.
Checks   each length has the checksum that stands behind it, and each record ends inside the file.
         The payloads are checked when they are read (`leaf.py`).
Empty    a file of 0 bytes has 0 records, as TensorFlow has it: writers of shards leave such files.
Source   record_reader.cc and record_writer.h of TensorFlow, "TFRecord and tf.train.Example" of its
         guides
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gpuload import core
from gpuload.errors import FormatError
from gpuload.formats.tfrecord import checksums
from gpuload.storage.files import Files

HEADER = struct.Struct("<QI")
HEADER_BYTES, FOOTER_BYTES = HEADER.size, 4
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES
PIECE_BYTES = 1 << 22
SPARSE_BYTES = (
    1 << 18
)  # to read so many bytes takes as long as a request of its own for the next header

Int64s = NDArray[np.int64]
Show = Callable[[int], None]


class UnframedError(FormatError):
    """Behind some records of a file no further one can be found.

    Attributes:
        offsets: int64 ``[num_records + 1]``, where each of the records in front begins, and the
            last one ends.
    """

    offsets: Int64s = np.zeros(1, np.int64)


def offsets_in(
    files: Files, number: int, name: str, *, verify: bool, show: Show = lambda place: None
) -> Int64s:
    """Return the offsets at which records begin and the last one ends, int64 ``[num_records + 1]``,
    bytes.

    Args:
        files: the files.
        number: of the file.
        name: of the file in errors.
        verify: False: the checksums of lengths are not compared.
        show: called with the number of bytes that are done, many times; its exceptions are not
            caught.

    Raises:
        UnframedError: it is no TFRecord file, or a header is damaged, or the last record is cut
            short.
        ChangedFileError, FileError: it changed, or cannot be read.
    """
    size, place, count, lengths = int(files.sizes[number]), 0, 0, list[Int64s]()
    piece = np.empty(min(PIECE_BYTES, size), np.uint8)
    # As many records as a piece can begin, if all payloads are empty: the core writes lengths
    # without asking for room.
    room = np.empty(min(PIECE_BYTES // FRAME_BYTES + 1, size // FRAME_BYTES + 1), np.int64)
    want = PIECE_BYTES
    with files.open_file(number) as descriptor:
        while place < size:
            part = piece[: min(want, size - place)]
            files.read(number, descriptor, part.data, place)
            num_records, after = _walk(part, size - place, room, verify=verify)
            if not num_records:
                unframed = _no_record(
                    name, bytes(part[:HEADER_BYTES]), place, count, size, verify=verify
                )
                unframed.offsets = _offsets(lengths, count)
                raise unframed
            # A copy: the next piece is walked through in the same memory.
            lengths.append(room[:num_records].copy())
            place, count = place + after, count + num_records
            # Decided anew by each piece: a file may have small records first and large ones behind
            # them.
            if after // num_records >= SPARSE_BYTES:
                want = HEADER_BYTES
            else:
                want = PIECE_BYTES
            show(place)
        # Behind the walk: offsets of a file that grew or changed in the middle must not be stored
        # as an index of it.
        files.check_descriptor(number, descriptor)
    return _offsets(lengths, count)


def _offsets(lengths: list[Int64s], count: int) -> Int64s:
    """Return the offsets at which records begin and the last one ends, from several arrays of their
    lengths."""
    offsets = np.zeros(count + 1, np.int64)
    if count:
        np.cumsum(np.concatenate(lengths), out=offsets[1:])
    offsets += np.arange(count + 1) * FRAME_BYTES
    return offsets


def _walk(piece: NDArray[np.uint8], left: int, room: Int64s, *, verify: bool) -> tuple[int, int]:
    """Find the records that begin in a piece; see `core.face.Native.frames`."""
    if core.native is not None:
        return core.native.frames(piece, left, verify, room)
    data, place, headers = piece.data, 0, list[tuple[int, int]]()
    read, last = HEADER.unpack_from, piece.size - HEADER_BYTES
    while place <= last:
        length, checksum = read(data, place)
        # Compared with the rest before it is added: a damaged length near 2**64 must not wrap
        # around.
        if length > left - place - FRAME_BYTES:
            break
        headers.append((length, checksum))
        place += length + FRAME_BYTES
    lengths, expected = np.array(headers, np.int64).reshape(-1, 2).T
    if verify:
        # All lengths of a piece at once, by tables, and not one by one in Python.
        wrong = np.flatnonzero(checksums.of_lengths(lengths) != expected)
        if wrong.size:
            lengths = lengths[: wrong[0]]
            place = int(lengths.sum()) + FRAME_BYTES * lengths.size
    room[: lengths.size] = lengths
    return lengths.size, place


def _no_record(
    name: str, header: bytes, place: int, count: int, size: int, *, verify: bool
) -> UnframedError:
    """Return why no record begins at a place."""
    if len(header) < HEADER_BYTES:
        if not count:
            return _foreign(
                name, header, f"it has {size} bytes, and a record has at least {FRAME_BYTES}"
            )
        return UnframedError(
            f"{name}, record {count}, byte {place}: the file ends {len(header)} bytes on, inside "
            "the record's header",
            cause="it was cut short, or is still being written",
            remedy=_COPY_AGAIN.format(count),
        )
    length, checksum = HEADER.unpack(header)
    if verify and checksums.of_bytes(header[:8]) != checksum:
        return _bad_length(name, length, checksum, place, count)
    cause = "the file was cut short, or is no TFRecord file"
    if verify:
        cause = "the file was cut short, or is still being written"
    return UnframedError(
        f"{name}, record {count}, byte {place}: it says that it has {length} bytes, and the file "
        "ends "
        f"{size - place - HEADER_BYTES} bytes behind its header",
        cause=cause,
        remedy=_COPY_AGAIN.format(count),
    )


_COPY_AGAIN = "copy the file again, or write it again; the {} records before it are whole"


def _bad_length(name: str, length: int, checksum: int, place: int, count: int) -> UnframedError:
    if not place:
        header = HEADER.pack(length, checksum)
        return _foreign(
            name, header, f"it begins with {header.hex(' ')}, and no length has such a checksum"
        )
    return UnframedError(
        f"{name}, record {count}, byte {place}: the length {length} has the checksum "
        f"{checksums.of_bytes(length.to_bytes(8, 'little')):#010x}, "
        f"the file says {checksum:#010x}",
        cause="the bytes changed after the file was written; where the next record begins is not "
        "known",
        remedy=_COPY_AGAIN.format(count),
    )


def _foreign(name: str, header: bytes, cause: str) -> UnframedError:
    is_compressed = header.startswith(b"\x1f\x8b") or (
        header[:1] == b"\x78" and int.from_bytes(header[:2], "big") % 31 == 0
    )
    remedy = "check the path; if it is one, its first bytes are damaged: copy it again"
    if is_compressed:
        remedy = "pass the compression that it has, compression='gzip' or 'zlib'"
    return UnframedError(
        f"{name} is no TFRecord file",
        cause=cause,
        remedy=remedy,
    )


def is_framed(beginning: bytes, size: int) -> bool:
    """Return True if a file of ``size`` bytes begins as a TFRecord file does: a length, and the
    checksum of it."""
    if len(beginning) < HEADER_BYTES:
        return not size
    length, checksum = HEADER.unpack_from(beginning)
    return bool(length <= size - FRAME_BYTES and checksums.of_bytes(beginning[:8]) == checksum)
