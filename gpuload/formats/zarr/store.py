"""Store: the files of a group as zarr asks for them, of a disk or an object store alike.

Opening  Metadata are read as they are, and the stamp of each of their files is noted.
Reading  Once the files of all chunks are known (`settle`), each answer is compared with the stamp
         that the file had then: a file that changed or is gone is an error, where zarr would take
         the new bytes, or the fill value. A file that was not there stays so; one that a manifest
         does not list, and that is there, is an error.
Numbers  zarr asks for names. The arrays say which file has a name before zarr decodes it (`add`): a
         table of all names would take seconds to make for the first record of an array of millions
         of chunks.
Ranges   zarr asks for parts of shards; each is read alone, by the storage of the files.
Threads  zarr asks in its own thread, which must not wait: others read. An object is read by many
         requests at a time where it is long.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np

from gpuload import signalsafe, threads
from gpuload.errors import DirectoryError, MissingFileError, changed_file
from gpuload.storage.extents import Extents, Storage
from gpuload.storage.files import read_file
from gpuload.storage.handles import exists
from gpuload.storage.stores import Stamp
from gpuload.storage.wildcards import join, names_in

abc: Any = signalsafe.import_package("zarr.abc.store")


class FolderStore(abc.Store):  # type: ignore[misc]  # zarr is taken as untyped
    """The files of a folder, to be read; safe in any number of threads.

    Args:
        folder: its path or URL.

    Attributes:
        stamps: of the files that were read before all were known, by path.
        missing: the error for the last file that was not there.
    """

    supports_writes = supports_deletes = supports_partial_writes = False
    supports_listing = True

    def __init__(self, folder: str) -> None:
        super().__init__(read_only=True)
        self.folder, self.stamps, self.missing = folder, dict[str, Stamp](), ""
        self._storage: Storage | None = None
        self._numbers = dict[str, int]()

    def settle(self, storage: Storage, numbers: Mapping[str, int]) -> None:
        """Read these files from now on, and no others; raises ``ChangedFileError`` for one that was
        another before.

        Args:
            storage: of the files.
            numbers: of the files of metadata, by path.
        """
        for path, stamp in self.stamps.items():
            if path in numbers and storage.files.stamp(numbers[path]) != stamp:
                raise storage.files.changed(
                    numbers[path], "it was replaced while the group was opened"
                )
        self._storage = storage

    def add(self, numbers: Mapping[str, int]) -> None:
        """Take in the numbers of files, by path; the same ones again do no harm, in any number of
        threads."""
        self._numbers.update(numbers)

    def __eq__(self, store: object) -> bool:
        return self is store

    # A class with `__eq__` has no hash unless it names one.
    __hash__ = abc.Store.__hash__

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        """Return the bytes of a file, or some of them; None if there is no such file."""
        content = await threads.aside(self._read, join(self.folder, key), byte_range)
        if content is None:
            return None
        return prototype.buffer.from_bytes(content)

    def _read(self, path: str, byte_range: Any) -> bytes | memoryview | None:
        if self._storage is None:
            return self._read_metadata_at(path)
        if path not in self._numbers:
            listing = self._storage.files.manifest
            if listing and exists(path):
                raise changed_file(path, "it was not there when the manifest was written", listing)
            return None
        number = self._numbers[path]
        begin, end = _range_of(byte_range, int(self._storage.files.sizes[number]))
        content = np.empty(end - begin, np.uint8)
        extents = Extents(*(np.array([value], np.int64) for value in (number, begin, end - begin)))
        self._storage.read(extents, content, np.zeros(1, np.int64))
        return content.data

    def read_metadata(self, key: str) -> bytes | None:
        """Return the bytes of a file of metadata, and note its stamp; None if there is no such
        file."""
        return self._read_metadata_at(join(self.folder, key))

    def _read_metadata_at(self, path: str) -> bytes | None:
        try:
            files, content = read_file(path)
        except (MissingFileError, DirectoryError) as error:
            self.missing = error.cause
            return None
        self.stamps[path] = files.stamp(0)
        return content

    async def exists(self, key: str) -> bool:
        """Return True if there is such a file."""
        path = join(self.folder, key)
        if self._storage:
            return path in self._numbers
        return await threads.aside(self._read_metadata_at, path) is not None

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names of files and folders in a folder."""
        if prefix:
            root = join(self.folder, prefix)
        else:
            root = self.folder
        for name in await threads.aside(names_in, root):
            yield name

    def list(self) -> AsyncIterator[str]:
        """Refuse to list all files: reading asks for no such list."""
        raise NotImplementedError

    def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Refuse to list all files below a folder: reading asks for no such list."""
        raise NotImplementedError

    async def get_partial_values(self, prototype: Any, key_ranges: Any) -> Any:
        """Return the bytes of parts of files."""
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def set(self, key: str, value: Any) -> None:
        """Refuse to write."""
        raise NotImplementedError

    async def set_partial_values(self, key_start_values: Any) -> None:
        """Refuse to write; zarr 3.1.0 asks for this method."""
        raise NotImplementedError

    async def delete(self, key: str) -> None:
        """Refuse to remove."""
        raise NotImplementedError


def _range_of(byte_range: Any, size: int) -> tuple[int, int]:
    """Return the first byte that zarr asks for, and the one behind the last; both lie in the
    file."""
    begin, end = 0, size
    if isinstance(byte_range, abc.RangeByteRequest):
        begin, end = byte_range.start, byte_range.end
    elif isinstance(byte_range, abc.OffsetByteRequest):
        begin = byte_range.offset
    elif isinstance(byte_range, abc.SuffixByteRequest):
        begin = size - byte_range.suffix
    begin = min(max(begin, 0), size)
    return begin, min(max(end, begin), size)
