"""Storage: readers that copy bytes at (file, offset, length) into memory.

`maps.py` copies from guarded memory maps, `pread.py` reads, `remote.py` asks object stores,
`keptfile.py` checks the files that gpuload wrote itself; `extents.py` has the meaning of all of
them. `wildcards.py` finds the files that the user's words mean, `handles.py` opens them, `files.py`
keeps their stamps, `manifest.py` lists them with all that opening them takes.
"""

from __future__ import annotations

from dataclasses import replace

from gpuload.storage import keptfile, maps, pread, remote
from gpuload.storage.extents import Extents, Storage
from gpuload.storage.files import Files, any_is_remote

__all__ = ["Extents", "Files", "Storage", "open_storage"]


def open_storage(files: Files) -> Storage:
    """Return the fastest storage for these files that works here: maps, or positioned reads; ranges
    of objects."""
    if files.seals:
        plain_files = replace(files, seals=())
    else:
        plain_files = files
    if any_is_remote(files.paths):
        return remote.RemoteStorage(files)
    if maps.supported():
        storage: Storage = maps.MappedStorage(plain_files)
    else:
        storage = pread.PositionedStorage(plain_files)
    if files.seals:
        return keptfile.VerifiedStorage(files, storage)
    return storage
