"""Maps: bytes of files by compiled copies from guarded memory maps.

Maps    made when a file is first read in parts, at most as many as the guard has slots; what is read as a whole, the
        files beyond, and those that the system will not map are read with open, pread and close. A map costs no
        memory of its own and keeps no file open.
Life    the maps belong to the ``Mapped``, and a thread that reads has a reference to it. When the last one is dropped
        nobody can be reading, and the maps are undone, in whatever thread that happens: no lock is taken for it.
Fork    a child has the maps, the guard and no lock to wait for, so it may go on with the same object.
Checks  every copy is followed by a look at size, time of modification and inode of each file that was touched.
Needs   Numba and a system that the guard knows (`kernels.table.supported`); `pread.py` is the form without, and what
        reads as long as the kernels are not compiled.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, cast

import numpy as np

from gpuload import kernels
from gpuload.errors import FileError
from gpuload.kernels import table
from gpuload.storage.extents import Bytes, Extents, Int64s, check_inside, check_places, checked, outside, plain
from gpuload.storage.files import Files
from gpuload.storage.memory import cache_bytes
from gpuload.storage.pread import GAP_BYTES, PIECE_BYTES, Positioned, joined_runs

TRIES = 100  # of installing the guard against somebody who replaces it all the time
PROT_READ, MAP_SHARED, MADV_WILLNEED = 1, 1, 3


def supported() -> bool:
    """Return True if files can be mapped here, once the kernels are there."""
    return kernels.compiled() and table.supported()


class Mapped:
    """A ``Storage`` that copies from memory maps.

    Args:
        files: the files.
    """

    how = "compiled copies from memory maps"

    def __init__(self, files: Files) -> None:
        self.files, self._positioned = files, Positioned(files)
        self._paths, places = _packed_paths(files.paths)
        self._table = np.zeros((len(files), table.ROW_WORDS), np.int64)
        self._table[:, table.PATH] = places
        self._table[:, table.SIZE : table.INODE + 1] = files.stamps
        # Linux reads 128 KiB to 8 MiB around each page that is missing from a map, which is soon used where files fit
        # into memory. Where they do not, it drives out what will be: there the system is told what will be copied, and
        # reads just that.
        self._piece_bytes = PIECE_BYTES if int(files.sizes.sum()) > cache_bytes() else 0
        self._maps: dict[int, Map] = {}
        self._refused = False

    def read(self, extents: Extents, out: Bytes, begins: Int64s) -> None:
        """Copy the bytes of extent i to ``out[begins[i]:]``; see ``Storage.read``."""
        extents, begins = checked(extents, out, begins)
        compiled = kernels.load("extents")
        if compiled is not None:
            with contextlib.suppress(kernels.NotReady):  # raised before anything was copied
                return (self._read_refused if self._refused else self._copy)(compiled, extents, out, begins)
        self._positioned.read(extents, out, begins)

    def _read_refused(self, compiled: ModuleType, extents: Extents, out: Bytes, begins: Int64s) -> None:
        """Do the same where some files could not be mapped: their small extents are read together with neighbours."""
        check_inside(self.files, extents)
        check_places(self.files, extents, out, begins)
        refused = self._table[extents.files, table.ADDRESS] == table.REFUSED
        refused &= extents.lengths < GAP_BYTES
        self._copy(compiled, extents.take(~refused), out, begins[~refused])
        self._positioned.read(extents.take(refused), out, begins[refused])

    def _copy(self, compiled: ModuleType, extents: Extents, out: Bytes, begins: Int64s) -> None:
        """Call the kernel until it needs nothing more: maps, or the guard in its place."""
        files, offsets, lengths, unguarded = extents.files, extents.offsets, extents.lengths, 0
        while True:
            result = compiled.copy_extents(
                files, offsets, lengths, begins, out, self._table, self._paths, self._piece_bytes
            )
            if result == table.DONE:
                return
            number, reason = divmod(result, 8)
            if reason == table.WANTS_MAP:
                for wanted in self._wanted(extents):
                    self._map(compiled.guard, wanted)
            elif reason == table.UNGUARDED:
                unguarded += 1
                if unguarded > TRIES:
                    return self._positioned.read(extents, out, begins)
                compiled.guard.install()
            elif reason == table.OUTSIDE:
                raise outside(self.files, extents, number)
            else:
                raise self.files.unreadable(number)

    def advise(self, extents: Extents) -> None:
        """Ask the system to have these bytes in memory soon; see ``Storage.advise``."""
        extents, compiled = plain(extents), kernels.load("extents")
        if compiled is not None:
            for number in self._wanted(extents):
                with contextlib.suppress(FileError):  # `read` meets the same error and names the record
                    self._map(compiled.guard, number)
        runs = joined_runs(extents)
        addresses = self._table[runs.files, table.ADDRESS]
        mapped = addresses > 0
        for begin, length in zip(
            (addresses + runs.offsets)[mapped].tolist(), runs.lengths[mapped].tolist(), strict=True
        ):
            for place in range(begin - begin % mmap.PAGESIZE, begin + length, PIECE_BYTES):
                # Whatever is refused is left to `read`. A range that ends inside a page is rounded up.
                _system().madvise(place, min(begin + length - place, PIECE_BYTES), MADV_WILLNEED)
        self._positioned.advise(runs.take(~mapped))

    def _wanted(self, extents: Extents) -> list[int]:
        """Return the numbers of the files that these extents make worth mapping, and that nobody tried to map yet."""
        check_inside(self.files, extents)
        sizes, lengths = self._table[extents.files, table.SIZE], extents.lengths
        worth_mapping = (sizes >= table.MAP_BYTES) & (lengths > 0) & (lengths <= sizes // table.MAP_PARTS)
        untried = self._table[extents.files, table.ADDRESS] == table.UNTRIED
        wanted: list[int] = np.unique(extents.files[worth_mapping & untried]).tolist()
        return wanted

    def _map(self, guard: ModuleType, number: int) -> None:
        """Map a file, or note that it cannot be mapped.

        Two threads may do so at the same time: the map of one of them is kept, that of the other is undone unused. The
        address is written last, for kernels that run meanwhile take it as soon as it is there.
        """
        size = int(self.files.sizes[number])
        with self.files.opened(number) as descriptor:
            address = _system().mmap(None, size, PROT_READ, MAP_SHARED, descriptor, 0)
        new = None if address in (None, ctypes.c_void_p(-1).value) else Map(guard, address, size)
        if new is None or new.slot is None:
            if number not in self._maps:
                self._refused = True
                self._table[number, table.ADDRESS] = table.REFUSED
            return
        kept = self._maps.setdefault(number, new)
        self._table[number, table.SLOT] = cast(int, kept.slot)  # a map without a slot is not kept
        self._table[number, table.ADDRESS] = kept.address


class Map:
    """A memory map that the guard knows, undone when nobody refers to it any more.

    Args:
        guard: the guard.
        address: of the map.
        size: in bytes.

    Attributes:
        slot: of the guard; None if all are taken.
    """

    __slots__ = ("_guard", "address", "size", "slot")

    def __init__(self, guard: ModuleType, address: int, size: int) -> None:
        self._guard, self.address, self.size = guard, address, size
        self.slot: int | None = None
        self.slot = guard.protect(address, size)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # the system undoes all maps; threads that Python does not wait for may still read
            return
        if self.slot is not None:
            self._guard.release(self.slot)
        _system().munmap(self.address, self.size)


def _packed_paths(paths: tuple[str, ...]) -> tuple[Bytes, Int64s]:
    """Return all paths as C strings one after the other, then an empty one; and where each begins."""
    encoded = [os.fsencode(path) + b"\0" for path in paths]
    ends = np.cumsum([len(path) for path in encoded], dtype=np.int64)
    return np.frombuffer(bytearray(b"".join(encoded) + b"\0"), np.uint8), np.concatenate([[0], ends])[:-1]


@cache
def _system() -> Any:
    system = ctypes.CDLL(None, use_errno=True)
    system.mmap.restype = ctypes.c_void_p
    system.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    system.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    system.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return system
