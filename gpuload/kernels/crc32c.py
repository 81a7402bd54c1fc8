"""CRC32C of many records at once: Google's library, which the package google-crc32c brings, called from compiled code.

The package's function takes one piece of bytes a call and holds the GIL: where several threads read, they wait for one
another most of the time (measured: 160,000 records/s of 3 KB in place of 320,000 on two cores). So the kernel here
calls the library's own ``crc32c_extend`` for all records of a read. Where the package was built without it,
``is_there`` is False, and who needs checksums calls the package.

Source  crc32c/crc32c.h of google/crc32c; the masked checksum: record_writer.h and crc32c.h of TensorFlow
"""

from __future__ import annotations

import ctypes
import importlib

import llvmlite.binding
import numpy as np
from numba import types
from numpy.typing import NDArray

from gpuload.kernels.compile import kernel, libc

Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]

SYMBOL = "gpuload_crc32c_extend"
GOOD, OTHER_LENGTH, BAD_LENGTH, BAD_PAYLOAD = range(4)
SHIFT, LOW, HEADER_BYTES = 0xA282EAD8, 0xFFFFFFFF, 12


def _address() -> int:
    """Return the address of the library's function, 0 where there is none."""
    try:
        package = importlib.import_module("google_crc32c._crc32c")
        function = ctypes.CDLL(str(package.__file__)).crc32c_extend  # also of a library that this one brings
    except (ImportError, OSError, AttributeError):
        return 0
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


_found = _address()
if _found:
    llvmlite.binding.add_symbol(SYMBOL, _found)  # a name, so that the kernel can be cached
_extend = libc(SYMBOL, types.uint32, types.uint32, types.int64, types.int64)


@kernel
def verify(raw: Bytes, begins: Int64s, ends: Int64s) -> tuple[int, int]:
    """Compare records of a TFRecord file with their frames.

    Args:
        raw: uint8, the records with their frames.
        begins: of each payload, int64 ``[n]``; the header is before it.
        ends: of each payload, int64 ``[n]``; its checksum is behind it.

    Returns:
        The row of the first record that is damaged, and OTHER_LENGTH, BAD_LENGTH or BAD_PAYLOAD; or GOOD.
    """
    base = raw.ctypes.data
    for row in range(begins.size):
        begin, end = begins[row], ends[row]
        header = begin - HEADER_BYTES
        length = np.int64(0)
        for i in range(8):
            length |= np.int64(raw[header + i]) << (8 * i)
        if length != end - begin:
            return row, OTHER_LENGTH
        if _masked(_extend(0, base + header, 8)) != _word(raw, header + 8):
            return row, BAD_LENGTH
        if _masked(_extend(0, base + begin, end - begin)) != _word(raw, end):
            return row, BAD_PAYLOAD
    return 0, GOOD


@kernel
def _masked(checksum: int) -> np.int64:
    value = np.int64(checksum)
    return ((((value >> 15) | (value << 17)) & LOW) + SHIFT) & LOW


@kernel
def _word(raw: Bytes, place: int) -> np.int64:
    """Return 4 bytes as a number."""
    low = np.int64(raw[place]) | (np.int64(raw[place + 1]) << 8)
    return low | (np.int64(raw[place + 2]) << 16) | (np.int64(raw[place + 3]) << 24)


is_there = bool(_found)
