"""Positioned reads: bytes of files with ``preadv``, where files cannot be mapped.

Same meaning, same checks and same errors as `maps.py`, on any system, without the core.

Files       opened once for all their extents of a read, and compared with their stamps before and
            after.
Neighbours  extents that stay neighbours are one read. Small extents with at most GAP_BYTES between
            two are read together into memory of their own and copied from there: a file in Fortran
            order is asked for many items of 4 bytes, and a read takes as long as copying about
            1,000.
"""

from __future__ import annotations

import itertools
import os

import numpy as np
from numpy.typing import NDArray

from gpuload import signalsafe
from gpuload.core.face import Maps
from gpuload.storage.extents import (
    Bytes,
    Extents,
    Int64s,
    check_arrays,
    check_inside,
    check_places,
    plain,
)
from gpuload.storage.files import Files
from gpuload.storage.handles import ADVISE

GAP_BYTES = 1000
STRETCH_BYTES = 1 << 23  # read together at most, but for the last extent
WILLNEED = getattr(os, "POSIX_FADV_WILLNEED", 0)
SMALL_BYTES = 1 << 17  # longer extents are read to where they belong
# Up to this mean length extents are copied byte by byte with one index, longer ones one by one
ITEM_BYTES = 64
# asked for in one call: of a longer piece Linux reads the first read_ahead_kb (often 128) only
PIECE_BYTES = 1 << 17
# a gap between records that is read with them, rather than by one request more
ADVISED_GAP_BYTES = 1 << 15


class PositionedStorage:
    """A ``Storage`` that opens, reads and closes.

    Args:
        files: the files.
    """

    how = "positioned reads"

    def __init__(self, files: Files) -> None:
        self.files = files

    def read(self, extents: Extents, out: Bytes, begins: Int64s) -> None:
        """Copy the bytes of extent i to ``out[begins[i]:]``; see ``Storage.read``."""
        extents, begins = check_arrays(extents, out, begins)
        check_inside(self.files, extents)
        check_places(self.files, extents, out, begins)
        order = _in_order(extents)
        extents, begins = join_neighbours(extents.take(order), begins[order])
        for first, after in _stretches(extents.files[1:] != extents.files[:-1], len(extents)):
            self._read_file(
                int(extents.files[first]),
                extents.take(slice(first, after)),
                out,
                begins[first:after],
            )

    def maps(self) -> Maps | None:
        """Return None: there are no maps."""
        return None

    def _read_file(self, number: int, extents: Extents, out: Bytes, begins: Int64s) -> None:
        """Read the extents of one file, in the order of the file."""
        offsets, ends, small = (
            extents.offsets,
            extents.offsets + extents.lengths,
            extents.lengths < SMALL_BYTES,
        )
        is_gap = (offsets[1:] - ends[:-1] > GAP_BYTES) | ~small[1:] | ~small[:-1]
        # Cut at fixed places of the file: so a stretch never needs more memory than this.
        is_gap |= offsets[1:] // STRETCH_BYTES != offsets[:-1] // STRETCH_BYTES
        # Lists, once for all: each use of an element of an array would make an object of NumPy.
        to, lengths, numbers = (
            out.data,
            extents.lengths,
            (offsets.tolist(), ends.tolist(), begins.tolist()),
        )
        with self.files.open_file(number) as descriptor:
            for first, after in _stretches(is_gap, len(extents)):
                if after - first == 1:
                    low, high, begin = (array[first] for array in numbers)
                    self.files.read(number, descriptor, to[begin : begin + high - low], low)
                else:
                    low, high = int(offsets[first]), int(ends[first:after].max())
                    stretch = np.empty(high - low, np.uint8)
                    self.files.read(number, descriptor, stretch.data, low)
                    _scatter(
                        stretch,
                        offsets[first:after] - low,
                        lengths[first:after],
                        out,
                        begins[first:after],
                    )
            # Behind the copies: bytes of a file that changed in the middle must not reach a batch.
            self.files.check_descriptor(number, descriptor)

    def advise(self, extents: Extents) -> None:
        """Ask the system to have these bytes in memory soon; see ``Storage.advise``."""
        extents = plain(extents)
        check_inside(self.files, extents)
        if ADVISE is None:
            return
        runs = joined_runs(extents)
        for first, after in _stretches(runs.files[1:] != runs.files[:-1], len(runs)):
            # Errors here are ignored: `read` will meet them again, and raise them with the name of
            # the record.
            with (
                signalsafe.suppress(OSError),
                self.files.open_file(int(runs.files[first])) as descriptor,
            ):
                for offset, length in zip(
                    runs.offsets[first:after], runs.lengths[first:after], strict=True
                ):
                    for place in range(int(offset), int(offset + length), PIECE_BYTES):
                        ADVISE(
                            descriptor,
                            place,
                            min(PIECE_BYTES, int(offset + length) - place),
                            WILLNEED,
                        )


def joined_runs(extents: Extents) -> Extents:
    """Return extents in the order of the files; neighbours with a gap of at most ADVISED_GAP_BYTES
    are joined."""
    extents = extents.take(_in_order(extents))
    ends = extents.offsets + extents.lengths
    is_gap = (extents.files[1:] != extents.files[:-1]) | (
        extents.offsets[1:] - ends[:-1] > ADVISED_GAP_BYTES
    )
    if len(extents):
        firsts = np.flatnonzero(np.concatenate([[True], is_gap]))
    else:
        firsts = np.zeros(0, np.int64)
    offsets = extents.offsets[firsts]
    if firsts.size:
        lengths = np.maximum.reduceat(ends, firsts) - offsets
    else:
        lengths = offsets
    return Extents(extents.files[firsts], offsets, lengths)


def _in_order(extents: Extents) -> Int64s:
    """Return the numbers of the extents that have bytes, in the order of the files."""
    files, offsets = extents.files, extents.offsets
    if (
        (files[1:] > files[:-1]) | ((files[1:] == files[:-1]) & (offsets[1:] >= offsets[:-1]))
    ).all():
        return np.flatnonzero(extents.lengths)
    # The last key is the first to count.
    order = np.lexsort((offsets, files))
    return order[extents.lengths[order] > 0]


def join_neighbours(extents: Extents, begins: Int64s) -> tuple[Extents, Int64s]:
    """Return extents and begins; extents that are neighbours in the file and in memory are
    joined."""
    files, offsets, lengths = extents.files, extents.offsets, extents.lengths
    is_gap = (
        (files[1:] != files[:-1])
        | (np.diff(offsets) != lengths[:-1])
        | (np.diff(begins) != lengths[:-1])
    )
    if is_gap.all():
        return extents, begins
    firsts = np.flatnonzero(np.concatenate([[True], is_gap]))
    return Extents(files[firsts], offsets[firsts], np.add.reduceat(lengths, firsts)), begins[firsts]


def _stretches(is_gap: NDArray[np.bool_], length: int) -> list[tuple[int, int]]:
    """Return first and after-last of the stretches that are cut after each place where ``is_gap``
    is True."""
    if not length:
        return []
    edges = [0, *(np.flatnonzero(is_gap) + 1).tolist(), length]
    return list(itertools.pairwise(edges))


def _scatter(stretch: Bytes, places: Int64s, lengths: Int64s, out: Bytes, begins: Int64s) -> None:
    """Copy pieces of the stretch to their places in ``out``."""
    total = int(lengths.sum())
    if total > ITEM_BYTES * lengths.size:
        for place, length, begin in zip(
            places.tolist(), lengths.tolist(), begins.tolist(), strict=True
        ):
            out[begin : begin + length] = stretch[place : place + length]
        return
    if (lengths == lengths[0]).all():
        inside = np.arange(lengths[0])
        out[begins[:, None] + inside] = stretch[places[:, None] + inside]
        return
    inside = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    out[np.repeat(begins, lengths) + inside] = stretch[np.repeat(places, lengths) + inside]
