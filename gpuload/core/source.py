"""Which C++ files a core was built from, as a number.

`setup.py` runs this file and compiles the number into the extension. Where C++ files lie beside the
extension, as in a checkout, `gpuload.core` compares it with theirs: a core that was built from
other files is not used. A wheel has the headers of `SHARED` alone, which kernels of a GPU read.
"""

from __future__ import annotations

import os
import zlib

FOLDER = os.path.join(os.path.dirname(__file__), "cpp")
SHARED = os.path.join(FOLDER, "shared")


def checksum() -> str:
    """Return a checksum of the names and bytes of all C++ files, eight digits; empty without them."""
    paths = _names(FOLDER)
    if not paths:
        return ""
    paths += [os.path.join("shared", name) for name in _names(SHARED)]
    total = 0
    for path in paths:
        with open(os.path.join(FOLDER, path), "rb") as file:
            total = zlib.crc32(file.read(), zlib.crc32(path.encode(), total))
    return f"{total:08x}"


def _names(folder: str) -> list[str]:
    """Return the names of the C++ files of a folder in order."""
    if not os.path.isdir(folder):
        return []
    names = os.listdir(folder)  # pathlib would take twice as long, at each import
    return sorted(name for name in names if name.endswith((".cpp", ".hpp")))
