"""Damage in a TFRecord file that cannot be opened: its records from the first on, as far as they
can be found.

Order   one record after the other, in one thread. Behind a damaged length the place of the next
        record is unknown.
Memory  a piece of the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from gpuload.formats.base import Salvage
from gpuload.formats.tfrecord import checksums, crc32c
from gpuload.formats.tfrecord.framing import (
    FOOTER_BYTES,
    FRAME_BYTES,
    HEADER,
    HEADER_BYTES,
    PIECE_BYTES,
)
from gpuload.storage.fileerrors import open_error


def walk_records(path: str) -> Iterator[Salvage]:
    """Yield the records of an uncompressed file; a record with a damaged length is the last.

    Raises:
        FileError: the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            size, place, number = os.fstat(file.fileno()).st_size, 0, 0
            while place < size:
                header = file.read(HEADER_BYTES)
                cause, length = _header(header, size - place)
                if cause:
                    yield Salvage(
                        number, place, f"{cause}; where the next record begins is not known"
                    )
                    return
                crc, left = 0, length
                while left:
                    piece = file.read(min(left, PIECE_BYTES))
                    if not piece:
                        yield Salvage(
                            number, place, f"the file ends {left} bytes before its payload does"
                        )
                        return
                    crc, left = crc32c.of_bytes(piece, crc), left - len(piece)
                expected = int.from_bytes(file.read(FOOTER_BYTES), "little")
                checksum = int(checksums.masked(np.array([crc], np.uint32))[0])
                wrong = f"payload checksum is {checksum:#010x}, the file says {expected:#010x}"
                yield Salvage(number, place, wrong if checksum != expected else "")
                place, number = place + length + FRAME_BYTES, number + 1
    except OSError as error:
        raise open_error(path, error) from None


def _header(header: bytes, left: int) -> tuple[str, int]:
    """Return the fault of a header, "" if there is none, and the length of its payload; ``left``
    bytes follow."""
    if len(header) < HEADER_BYTES:
        return f"the file ends inside its header, after {len(header)} bytes", 0
    length, expected = HEADER.unpack(header)
    checksum = int(checksums.of_lengths(np.array([length], np.uint64).view(np.int64))[0])
    if checksum != expected:
        return (
            f"its length {length} has the checksum {checksum:#010x}, the file says "
            f"{expected:#010x}",
            0,
        )
    if length > left - FRAME_BYTES:
        return (
            f"it says that it has {length} bytes, and the file ends {left - HEADER_BYTES} bytes "
            "behind its header",
            0,
        )
    return "", length
