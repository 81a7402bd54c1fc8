"""Which C++ files a core was built from, as a number.

`setup.py` runs this file and compiles the number into the extension. Where C++ files lie beside the extension, as in a
checkout, `gpuload.core` compares it with theirs: a core that was built from other files is not used.
"""

from __future__ import annotations

import zlib
from pathlib import Path

FOLDER = Path(__file__).parent / "cpp"


def checksum() -> str:
    """Return a checksum of the names and bytes of all C++ files, eight digits; an empty text if there are none."""
    paths = sorted(path for path in FOLDER.glob("*") if path.suffix in (".cpp", ".hpp"))
    total = 0
    for path in paths:
        total = zlib.crc32(path.read_bytes(), zlib.crc32(path.name.encode(), total))
    return f"{total:08x}" if paths else ""
