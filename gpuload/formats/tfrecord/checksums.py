"""Checksums of TFRecord: CRC32C of the bytes (`crc32c.py`), turned and shifted.

Source  record_writer.h and crc32c.h of TensorFlow: masked = rotate_right(crc, 15) + 0xa282ead8,
        modulo 2**32.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from gpuload.formats.tfrecord import crc32c

Sums = NDArray[np.uint32]
Int64s = NDArray[np.int64]
SHIFT, TURN = 0xA282EAD8, 15
LENGTH_BYTES = 8


def of_bytes(data: bytes) -> int:
    """Return the masked checksum of some bytes."""
    crc = crc32c.of_bytes(data)
    return ((crc >> TURN | crc << (32 - TURN)) + SHIFT) & 0xFFFFFFFF


def of_pieces(raw: NDArray[np.uint8], begins: Int64s, ends: Int64s) -> Sums:
    """Return the masked checksum of ``raw[begins[i]:ends[i]]`` for each i."""
    return masked(crc32c.of_pieces(raw, begins, ends))


def of_lengths(lengths: Int64s) -> Sums:
    """Return the masked checksum of each length, as the 8 bytes that stand in a file.

    A CRC is linear: that of some bytes is that of zeros, with one number for each byte that is not
    zero added to it bit by bit. So 8 tables do for any number of lengths at once.
    """
    tables = _tables_of_lengths()
    sums = np.zeros(lengths.size, np.uint32)
    raw = np.ascontiguousarray(lengths, "<i8").view(np.uint8).reshape(-1, LENGTH_BYTES)
    for place in range(LENGTH_BYTES):
        column = raw[:, place]
        if place < 2 or column.any():  # lengths are seldom above 65,535
            sums ^= tables[place][column]
    return masked(sums)


def masked(sums: Sums) -> Sums:
    """Return checksums as they stand in a file."""
    return ((sums >> np.uint32(TURN)) | (sums << np.uint32(32 - TURN))) + np.uint32(SHIFT)


@functools.cache
def _tables_of_lengths() -> Sums:
    """Return the part of a checksum that each value of each byte of a length adds, bit by bit,
    uint32 ``[8, 256]``.

    The first table has the checksum of 8 zeros in it, so that one number of each table makes the
    whole.
    """
    lengths = np.arange(256, dtype=np.uint64) << (
        np.uint64(8) * np.arange(LENGTH_BYTES, dtype=np.uint64)[:, None]
    )
    raw = lengths.astype("<u8").view(np.uint8).reshape(-1)
    begins = np.arange(0, raw.size, LENGTH_BYTES)
    sums = crc32c.by_numpy(raw, begins, begins + LENGTH_BYTES).reshape(LENGTH_BYTES, 256)
    sums[1:] ^= sums[0, 0]
    return sums
