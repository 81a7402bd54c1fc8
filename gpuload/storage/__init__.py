"""Storage: readers that copy bytes at (file, offset, length) into memory.

`maps.py` copies from guarded memory maps, `pread.py` reads, `remote.py` asks object stores, `keptfile.py` checks the
files that gpuload wrote itself; `manifest.py` lists files with all that opening them takes;
`extents.py` has the meaning of all three, `files.py` the paths of files and the stamps of their opening.
"""

from __future__ import annotations

from dataclasses import replace

from gpuload.storage import keptfile, maps, pread, remote
from gpuload.storage.extents import Extents, Storage
from gpuload.storage.files import Files, any_is_remote

__all__ = ["Extents", "Files", "Storage", "open_storage"]


def open_storage(files: Files) -> Storage:
    """Return the fastest storage for these files that works here: maps, or positioned reads; ranges of objects."""
    plain_files = replace(files, seals=()) if files.seals else files
    if any_is_remote(files.paths):
        return remote.RemoteStorage(files)
    storage: Storage = maps.MappedStorage(plain_files) if maps.supported() else pread.PositionedStorage(plain_files)
    return keptfile.VerifiedStorage(files, storage) if files.seals else storage
