"""LZW of TIFF: how many bytes the codes come to, without making them; `images.heads.coded` has the same in NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuload.kernels.compile import kernel

CLEAR, END, FIRST = 256, 257, 258  # codes; the first entry of the table
MAX_CODES = 3838  # between two Clear codes
NO_CLEAR, BAD_CODE = -1, -2


@kernel
def count_bytes(coded: NDArray[np.uint8], enough: int) -> int:
    """Return how many bytes come out up to the first Clear at which they are enough.

    Args:
        coded: uint8 ``[n]``, contiguous and writeable (so that one compiled form serves all).
        enough: the number of bytes that is needed.

    Returns:
        The number; NO_CLEAR where the data do not begin with Clear, BAD_CODE where a code means nothing.
    """
    lengths = np.empty(MAX_CODES, np.int64)  # of the entries of the table, from FIRST on
    count, number, width = 0, -1, 9
    bits, have, place = 0, 0, 0
    while True:
        while have < width:
            if place == coded.size:
                return count if number >= 0 else NO_CLEAR
            bits = (bits << 8 | int(coded[place])) & 0xFFFFFF
            place += 1
            have += 8
        have -= width
        code = bits >> have & ((1 << width) - 1)
        if code == CLEAR:
            if count >= enough:
                return count
            number, width = 0, 9
        elif number < 0:
            return NO_CLEAR
        elif code == END:
            return count
        else:
            if code >= FIRST + number or number == MAX_CODES:
                return BAD_CODE
            lengths[number] = 1 if code < CLEAR else lengths[code - FIRST] + 1
            count += int(lengths[number])
            number += 1
            if number == 254 or number == 766 or number == 1790:
                width += 1
