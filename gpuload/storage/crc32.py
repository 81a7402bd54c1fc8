"""CRC-32, the checksum of ZIP, gzip and PNG: by the core where that is faster than zlib."""

from __future__ import annotations

import zlib

from gpuload import core

LONG_BYTES = 1 << 12  # below that a call costs as much as the sum


def crc32(data: bytes | bytearray | memoryview, before: int = 0) -> int:
    """Return the checksum of bytes behind others with the checksum ``before``, 0 for none."""
    if (
        core.native is not None
        and len(data) >= LONG_BYTES
        and (crc := core.native.crc32(data, before)) is not None
    ):
        return crc
    return zlib.crc32(data, before)
