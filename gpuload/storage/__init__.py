"""Storage: how bytes at (file, offset, length) come into memory.

`mapped.py` copies from guarded memory maps, `pread.py` reads; `extents.py` says what both mean, `files.py` which files
there are and what each was when it was opened.
"""

from __future__ import annotations

from gpuload.storage import mapped, pread
from gpuload.storage.extents import Extents, Storage
from gpuload.storage.files import Files

__all__ = ["Extents", "Files", "Storage", "open_storage"]


def open_storage(files: Files) -> Storage:
    """Return the fastest storage for these files that works here: maps, or positioned reads."""
    return mapped.Mapped(files) if mapped.supported() else pread.Positioned(files)
