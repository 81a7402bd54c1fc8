"""Which C++ files a core was built from, as a number.

`setup.py` runs this file and compiles the number into the extension. Where C++ files lie beside the
extension, as in a checkout, `gpuload.core` compares it with theirs: a core that was built from
other files is not used.
"""

from __future__ import annotations

import os
import zlib

FOLDER = os.path.join(os.path.dirname(__file__), "cpp")


def checksum() -> str:
    """Return a checksum of the names and bytes of all C++ files, eight digits; an empty text if
    there are none."""
    # pathlib would take twice as long, at each import
    if os.path.isdir(FOLDER):
        names = os.listdir(FOLDER)
    else:
        names = []
    names = sorted(name for name in names if name.endswith((".cpp", ".hpp")))
    total = 0
    for name in names:
        with open(os.path.join(FOLDER, name), "rb") as file:
            total = zlib.crc32(file.read(), zlib.crc32(name.encode(), total))
    return f"{total:08x}" if names else ""
