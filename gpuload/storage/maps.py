"""Maps: bytes of files by the core, from guarded memory maps.

Maps    made when a file is first read in parts; files that are read as a whole, and those that the
        system does not map, are read with open, pread and close. `core/cpp/maps.hpp` has the rules
        and the lifetime of maps, `core/cpp/guard.hpp` the treatment of files that shrink.
Bound   there are only so many maps; the least recently used ones are undone where files are many.
Fork    a child has the maps, the guard and no lock to wait for, so it may go on with the same
        object.
Checks  every copy is followed by a look at size, time of modification and inode of each file that
        was touched.
Needs   the core and Linux; `pread.py` is the form without.
"""

from __future__ import annotations

import numpy as np

from gpuload import core
from gpuload.core import face
from gpuload.storage.extents import (
    Bytes,
    Extents,
    Int64s,
    check_arrays,
    check_inside,
    check_places,
    outside,
    plain,
)
from gpuload.storage.files import Files
from gpuload.storage.memory import cache_bytes
from gpuload.storage.paths import PackedPaths
from gpuload.storage.pread import GAP_BYTES, PIECE_BYTES, PositionedStorage, joined_runs


def supported() -> bool:
    """Return True if files can be mapped here."""
    return core.native is not None and core.native.can_map()


class MappedStorage:
    """A ``Storage`` that copies from memory maps.

    Args:
        files: the files.
        most_maps: of all maps at a time; 0: most of those that the system allows.

    Raises:
        RuntimeError: there is no core; see ``supported``.
    """

    how = "compiled copies from memory maps"

    def __init__(self, files: Files, most_maps: int = 0) -> None:
        if core.native is None:
            raise RuntimeError(f"maps of files: {core.problem}")
        self.files, self._positioned = files, PositionedStorage(files)
        # Linux reads 128 KiB to 8 MiB around each page that is missing from a map. If the files fit
        # into memory, these pages are soon used. If not, they drive out pages that will be used:
        # then the system is told which bytes will be copied, and reads just these.
        if int(files.sizes.sum()) > cache_bytes():
            piece_bytes = PIECE_BYTES
        else:
            piece_bytes = 0
        paths = PackedPaths.of(files.paths)
        self._maps = core.native.Maps(
            paths.arrays, np.ascontiguousarray(files.stamps), piece_bytes, most_maps
        )

    def read(self, extents: Extents, out: Bytes, begins: Int64s) -> None:
        """Copy the bytes of extent i to ``out[begins[i]:]``; see ``Storage.read``."""
        extents, begins = check_arrays(extents, out, begins)
        if self._maps.any_refused:
            extents, begins = self._read_unmapped(extents, out, begins)
        number, result = self._maps.copy(
            extents.files, extents.offsets, extents.lengths, out, begins
        )
        if result == face.OUTSIDE:
            raise outside(self.files, extents, number)
        if result != face.COPIED:
            raise self.files.unreadable(number)

    def maps(self) -> face.Maps | None:
        """Return the maps, unless some files cannot be mapped; see ``Storage.maps``."""
        if self._maps.any_refused:
            return None
        return self._maps

    def _read_unmapped(
        self, extents: Extents, out: Bytes, begins: Int64s
    ) -> tuple[Extents, Int64s]:
        """Read the small extents of files that are not mapped, with their neighbours; return the
        other extents."""
        check_inside(self.files, extents)
        check_places(self.files, extents, out, begins)
        is_unmapped = (self._states(extents) == face.REFUSED) & (extents.lengths < GAP_BYTES)
        self._positioned.read(extents.take(is_unmapped), out, begins[is_unmapped])
        return extents.take(~is_unmapped), begins[~is_unmapped]

    def advise(self, extents: Extents) -> None:
        """Ask the system to have these bytes in memory soon; see ``Storage.advise``."""
        extents = plain(extents)
        check_inside(self.files, extents)
        self._maps.map(extents.files, extents.offsets, extents.lengths)
        runs = joined_runs(extents)
        self._maps.advise(runs.files, runs.offsets, runs.lengths, PIECE_BYTES)
        self._positioned.advise(runs.take(self._states(runs) != face.MAPPED))

    def _states(self, extents: Extents) -> np.ndarray[tuple[int], np.dtype[np.int8]]:
        """Return for each extent whether its file is MAPPED, UNTRIED or REFUSED."""
        states = np.empty(len(extents), np.int8)
        self._maps.states(extents.files, states)
        return states
