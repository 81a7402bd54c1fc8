"""Storage: readers that copy bytes at (file, offset, length) into memory.

`maps.py` copies from guarded memory maps, `pread.py` reads, `keptfile.py` checks what gpuload wrote itself; `extents.py`
says what all of them mean, `files.py` which files there are and what each was when it was opened.
"""

from __future__ import annotations

from dataclasses import replace

from gpuload.storage import keptfile, maps, pread
from gpuload.storage.extents import Extents, Storage
from gpuload.storage.files import Files

__all__ = ["Extents", "Files", "Storage", "open_storage"]


def open_storage(files: Files) -> Storage:
    """Return the fastest storage for these files that works here: maps, or positioned reads."""
    plain_files = replace(files, seals=()) if files.seals else files
    storage: Storage = maps.MappedStorage(plain_files) if maps.supported() else pread.PositionedStorage(plain_files)
    return keptfile.VerifiedStorage(files, storage) if files.seals else storage
