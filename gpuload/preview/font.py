"""Font: the characters of ASCII as pixels, for words in pictures; others become a question mark.

Layout  5 bytes a character, one for each column from left to right; bit 0 is the uppermost of 8
        rows. This is the table that small displays of characters have had since the HD44780.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 6, 10  # pixels of a character, with the space to the next one
FIRST, LAST = 32, 126  # codes of the characters
TABLE = (
    "0000000000 00005f0000 0007000700 147f147f14 242a7f2a12 2313086462 3649562050 0000070000 001c224100 0041221c00 "
    "14083e0814 08083e0808 0080703000 0808080808 0060600000 2010080402 3e5149453e 00427f4000 4261514946 2141454b31 "
    "1814127f10 2745454539 3c4a494930 0171090503 3649494936 064949291e 0036360000 0056360000 0814224100 1414141414 "
    "0041221408 0201510906 324979413e 7e1111117e 7f49494936 3e41414122 7f4141221c 7f49494941 7f09090901 3e4149497a "
    "7f0808087f 00417f4100 2040413f01 7f08142241 7f40404040 7f020c027f 7f0408107f 3e4141413e 7f09090906 3e4151215e "
    "7f09192946 4649494931 01017f0101 3f4040403f 1f2040201f 3f4038403f 6314081463 0708700807 6151494543 007f414100 "
    "0204081020 0041417f00 0402010204 4040404040 0001020400 2054545478 7f48444438 3844444420 384444487f 3854545418 "
    "087e090102 18a4a49c78 7f08040478 00447d4000 2040443d00 7f10284400 00417f4000 7c04180478 7c08040478 3844444438 "
    "fc18242418 18242418fc 7c08040408 4854545420 043f444020 3c4040207c 1c2040201c 3c4030403c 4428102844 4c9090907c "
    "4464544c44 0008364100 00007f0000 0041360800 1008081008"
)


def draw_line(text: str, scale: int = 1) -> NDArray[np.bool_]:
    """Return where a line of text has ink, bool ``[HEIGHT * scale, WIDTH * scale * len(text)]``."""
    codes = np.array(
        [ord(letter) if FIRST <= ord(letter) <= LAST else ord("?") for letter in text], np.int64
    )
    columns = np.frombuffer(bytes.fromhex(TABLE), np.uint8).reshape(-1, 5, 1)
    bits = np.unpackbits(columns, axis=2, bitorder="little")  # [character, column, row]
    ink = np.zeros((len(codes), WIDTH, HEIGHT), np.bool_)
    ink[:, :5, 1:9] = bits[codes - FIRST]
    line = ink.transpose(2, 0, 1).reshape(HEIGHT, -1)
    return line.repeat(scale, axis=0).repeat(scale, axis=1)
