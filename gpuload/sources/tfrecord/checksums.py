"""Checksums of TFRecord: CRC32C of the bytes, turned and shifted; the package ``google-crc32c`` computes them.

Threads  `kernels/crc32c.py` calls the same library for all records of a read, without the GIL.

Source  record_writer.h and crc32c.h of TensorFlow: masked = rotate_right(crc, 15) + 0xa282ead8, modulo 2**32.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import missing_package
from gpuload.kernels import aside

Sums = NDArray[np.uint32]
SHIFT, TURN = 0xA282EAD8, 15
LENGTH_BYTES = 8


def is_there() -> bool:
    """Return True if checksums can be computed here."""
    return aside.is_installed("google_crc32c")


def require() -> None:
    """Raise ``MissingPackageError`` if checksums cannot be computed here; nothing is read unverified without a word."""
    if not is_there():
        error = missing_package(
            "google-crc32c", needed_for="verifying the checksums of TFRecord files", extra="tfrecord"
        )
        error.remedy += "; or pass verify=False, and damaged bytes are not noticed"
        raise error


def of_bytes(data: bytes) -> int:
    """Return the masked checksum of some bytes."""
    crc = int(_package().value(data))
    return ((crc >> TURN | crc << (32 - TURN)) + SHIFT) & 0xFFFFFFFF


def of_pieces(data: memoryview, begins: Sequence[int], ends: Sequence[int]) -> Sums:
    """Return the masked checksum of ``data[begins[i]:ends[i]]`` for each i."""
    value = _package().value
    pieces = (value(bytes(data[begin:end])) for begin, end in zip(begins, ends, strict=True))
    return masked(np.fromiter(pieces, np.uint32, len(begins)))


def continued(sum_before: int, data: bytes) -> int:
    """Return the checksum, not masked, of bytes whose first part has the checksum ``sum_before``, 0 if it is empty."""
    return int(_package().extend(sum_before, data))


def of_lengths(lengths: NDArray[np.int64]) -> Sums:
    """Return the masked checksum of each length, as the 8 bytes that stand in a file.

    A CRC is linear: that of some bytes is that of zeros, with one number for each byte that is not zero added to it bit
    by bit. So 8 tables, which the package computes, do for any number of lengths at once.
    """
    tables = tables_of_lengths()
    sums = np.zeros(lengths.size, np.uint32)
    raw = np.ascontiguousarray(lengths, "<i8").view(np.uint8).reshape(-1, LENGTH_BYTES)
    for place in range(LENGTH_BYTES):
        column = raw[:, place]
        if place < 2 or column.any():  # lengths are seldom above 65,535
            sums ^= tables[place][column].astype(np.uint32)
    return masked(sums)


def masked(sums: Sums) -> Sums:
    """Return checksums as they stand in a file."""
    return ((sums >> np.uint32(TURN)) | (sums << np.uint32(32 - TURN))) + np.uint32(SHIFT)


@functools.cache
def tables_of_lengths() -> NDArray[np.int64]:
    """Return what each value of each byte of a length adds to its checksum, bit by bit, int64 ``[8, 256]``.

    The first table has the checksum of 8 zeros in it, so that one number of each table makes the whole.
    """
    value_of = _package().value
    zeros = int(value_of(bytes(LENGTH_BYTES)))
    tables = np.zeros((LENGTH_BYTES, 256), np.int64)
    for place in range(LENGTH_BYTES):
        for value in range(256):
            one = bytearray(LENGTH_BYTES)
            one[place] = value
            tables[place, value] = value_of(bytes(one)) ^ (zeros if place else 0)
    return tables


@functools.cache
def _package() -> Any:
    require()
    return aside.import_package("google_crc32c")
