"""Maps: records of files by compiled copies from guarded memory maps, or by positioned reads.

Maps    made when a file is first read, at most as many as the guard has slots; the files beyond are read with open,
        pread and close. A map costs no memory of its own, and is undone when nobody refers to the reader any more:
        closing a source takes nothing from a thread that still reads.
Checks  every copy is followed by a look at size, time of modification and inode of each file that was touched.
Needs   Numba and a system that the guard knows (`kernels.guard.supported`); `plain.py` is the form without.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import kernels
from gpuload.errors import FileError, RecordIndexError
from gpuload.sources.files import OPEN_FLAGS, Files, open_error, stamp_of
from gpuload.sources.memory import cache_bytes
from gpuload.sources.places import Places

Int64s = NDArray[np.int64]
Block = NDArray[np.uint8]
TRIES = 100  # of installing the guard against somebody who replaces it all the time


def supported() -> bool:
    """Return True if the compiled form can be used here."""
    guard = kernels.load("guard")
    return guard is not None and bool(guard.supported())


class MappedReader:
    """Copies records of files into blocks.

    Args:
        files: the files.
        starts: int64 ``[num_files + 1]``, the number of each file's first record; the last is the number of records.
        offsets: int64 ``[num_files]``, the byte where the first record of each begins.
        mapped: bool ``[num_files]``, True for the files to map, False for those to read.
    """

    def __init__(self, files: Files, starts: Int64s, offsets: Int64s, mapped: NDArray[np.bool_]) -> None:
        self._files, self._lock = files, threading.Lock()
        self._copy, self._guard = kernels.require("copy"), kernels.require("guard")
        self._paths, places = _packed_paths(files.paths)
        self._table = np.zeros((len(files) + 1, 8), np.int64)
        self._table[:, self._copy.START] = starts
        self._table[:-1, self._copy.ADDRESS] = np.where(mapped, self._copy.UNTRIED, self._copy.READ)
        self._table[:-1, self._copy.PATH] = places
        self._table[:-1, self._copy.OFFSET] = offsets
        self._table[:-1, self._copy.SIZE :] = files.stamps
        fit = int(files.sizes.sum()) <= cache_bytes()
        self._table[-1, self._copy.FIT], self._table[-1, self._copy.COLD] = fit, 0 if fit else self._copy.COLD_FIRST
        self._untried = bool(mapped.any())
        self._maps: list[tuple[int, int, int]] = []
        weakref.finalize(self, _unmap, self._guard, self._maps).atexit = False  # at exit threads may still read
        self.how = "compiled copies from memory maps" if mapped.any() else "compiled positioned reads"

    def copy(self, indices: Int64s, rows: Int64s, block: Block, record_bytes: int) -> None:
        """Copy record ``indices[i]`` of ``record_bytes`` bytes to row ``rows[i]`` of the block."""
        to = _address(block)
        self._run(lambda: self._copy.copy_records(indices, rows, to, record_bytes, self._table, self._paths), indices)

    def places(self, indices: Int64s, record_bytes: int) -> Places:
        """Return where records of ``record_bytes`` bytes lie; see ``Source.places``."""
        runs, found = np.empty((indices.size, 3), np.int64), np.zeros(1, np.int64)
        self._run(lambda: self._copy.find_runs(indices, record_bytes, self._table, runs, found), indices)
        return Places(runs[: found[0]], (self,) if found[0] else ())

    def copy_columns(self, indices: Int64s, rows: Int64s, block: Block, item_bytes: int, places: Int64s) -> bool:
        """The same for files in Fortran order: item k of a record goes to byte ``places[k]`` of its row.

        Returns False if a file could not be mapped.
        """
        to = _address(block)
        copy_columns, table, paths = self._copy.copy_columns, self._table, self._paths
        return self._run(lambda: copy_columns(indices, rows, to, item_bytes, places, table, paths), indices)

    def read(self, numbers: Int64s, buffers: list[Block]) -> None:
        """Read the data of files, each into its buffer of just that length."""
        addresses = np.array([buffer.ctypes.data for buffer in buffers], np.int64)
        sizes = np.array([buffer.size for buffer in buffers], np.int64)
        self._run(lambda: self._copy.read_files(numbers, addresses, sizes, self._table, self._paths), numbers)

    def map_first(self, indices: Int64s) -> None:
        """Map the files of these records, so that a copy of them needs nothing from Python."""
        if self._untried:
            self._map_all(indices)
            self._untried = bool(np.any(self._table[:-1, self._copy.ADDRESS] == self._copy.UNTRIED))

    def _run(self, kernel: Callable[[], int], indices: Int64s) -> bool:
        """Call a kernel until it needs nothing more: maps, or the guard in its place."""
        unguarded = 0
        while (result := kernel()) != self._copy.DONE:
            number, reason = divmod(result, 8)
            if reason == self._copy.OUTSIDE:
                raise RecordIndexError(
                    f"record {int(indices[number])}, or the row that it should go to, is outside",
                    cause="there is no such record, or the block has too few rows",
                    remedy="check the indices, and that each row lies in the block",
                )
            if reason == self._copy.UNGUARDED and unguarded < TRIES:
                unguarded += 1
                self._guard.install()
            elif reason == self._copy.UNMAPPED:
                self._map_all(indices)
            elif reason == self._copy.UNMAPPABLE:
                return False
            else:
                raise self._failure(number)
        return True

    def _failure(self, number: int) -> FileError:
        """Return why a file could not be read."""
        self._files.check(number)
        try:
            os.close(os.open(self._files.paths[number], OPEN_FLAGS))
        except OSError as error:
            return open_error(self._files.paths[number], error)
        return FileError(
            f"{self._files.paths[number]} could not be read",
            cause="the system reported an error while reading, or the file changed back meanwhile",
            remedy="check the disk (dmesg), and open the file again",
        )

    def _map_all(self, indices: Int64s) -> None:
        """Map all files of a batch that nobody tried to map yet."""
        numbers = np.unique(np.searchsorted(self._table[:, self._copy.START], indices, side="right") - 1)
        with self._lock:
            for number in numbers[self._table[numbers, self._copy.ADDRESS] == self._copy.UNTRIED].tolist():
                self._table[number, self._copy.ADDRESS] = self._map(number)

    def _map(self, number: int) -> int:
        """Return the address of a new map of a file, or READ where there can be none."""
        path, size = self._files.paths[number], int(self._files.sizes[number])
        try:
            descriptor = os.open(path, OPEN_FLAGS)
        except OSError as error:
            self._files.check(number)
            raise open_error(path, error) from None
        try:
            if stamp_of(os.fstat(descriptor)) != self._files.stamp(number):
                self._files.check(number)
            address = _libc().mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        finally:
            os.close(descriptor)
        if address in (None, ctypes.c_void_p(-1).value):
            return int(self._copy.READ)
        slot = self._guard.protect(address, size)
        if slot is None:
            _libc().munmap(address, size)
            return int(self._copy.READ)
        self._maps.append((slot, address, size))
        self._table[number, self._copy.SLOT] = slot
        return int(address)


@dataclass(frozen=True)
class Copier:
    """How the records of a source are copied by kernels alone, side by side and as they are stored.

    Attributes:
        reader: of the files; holds the maps for as long as somebody copies.
        record_bytes: the bytes of a record.
        chosen: from record numbers of the source to those of the reader; a ``ClosedError`` once the source was closed.
    """

    reader: MappedReader
    record_bytes: int
    chosen: Callable[[Int64s], Int64s]

    @property
    def pool(self) -> ModuleType:
        """The kernels of a pool of threads that copy."""
        return kernels.require("pool")

    @property
    def arguments(self) -> tuple[int, Int64s, NDArray[np.uint8]]:
        """The last arguments of the pool's ``serve``."""
        return self.record_bytes, self.reader._table, self.reader._paths

    @property
    def slow(self) -> bool:
        """True if the last copies waited for storage."""
        return bool(self.reader._table[-1, self.reader._copy.COLD] > self.reader._copy.COLD_FIRST)

    def guard(self) -> None:
        """Put the guard in its place, as threads cannot that are not Python's."""
        self.reader._guard.install()

    def wanted(self, records: Int64s) -> Int64s:
        """Return the reader's numbers of records, whose files are mapped now.

        Raises:
            ClosedError: the source was closed.
            FileError: a file changed, disappeared or cannot be read.
        """
        wanted = self.chosen(records)
        self.reader.map_first(wanted)
        return wanted


def _packed_paths(paths: tuple[str, ...]) -> tuple[NDArray[np.uint8], Int64s]:
    """Return all paths as C strings one after the other, then an empty one; and where each begins."""
    encoded = [os.fsencode(path) + b"\0" for path in paths]
    ends = np.cumsum([len(path) for path in encoded], dtype=np.int64)
    return np.frombuffer(bytearray(b"".join(encoded) + b"\0"), np.uint8), np.concatenate([[0], ends[:-1]])


def _address(block: Block) -> tuple[int, int, int]:
    """Return address, bytes from row to row, and number of rows of a block."""
    about = block.__array_interface__
    strides = about["strides"]
    return about["data"][0], strides[0] if strides else block.shape[1], block.shape[0]


def _unmap(guard: ModuleType, maps: list[tuple[int, int, int]]) -> None:
    for slot, address, size in maps:
        guard.release(slot)
        _libc().munmap(address, size)
    maps.clear()


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc
