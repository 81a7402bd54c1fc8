"""Storage: how bytes at (file, offset, length) come into memory.

`mapped.py` copies from guarded memory maps, `pread.py` reads, `kept.py` checks what gpuload wrote itself; `extents.py`
says what all of them mean, `files.py` which files there are and what each was when it was opened.
"""

from __future__ import annotations

from dataclasses import replace

from gpuload.storage import kept, mapped, pread
from gpuload.storage.extents import Extents, Storage
from gpuload.storage.files import Files

__all__ = ["Extents", "Files", "Storage", "open_storage"]


def open_storage(files: Files) -> Storage:
    """Return the fastest storage for these files that works here: maps, or positioned reads."""
    as_stored = replace(files, seals=()) if files.seals else files
    storage: Storage = mapped.Mapped(as_stored) if mapped.supported() else pread.Positioned(as_stored)
    return kept.Verified(files, storage) if files.seals else storage
