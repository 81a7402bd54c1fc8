"""Remote storage: ranges of objects, many requests at a time.

Neighbours  extents with at most GAP_BYTES between two are one request: to send the gap takes less
            than another request.
Pieces      of a long extent, PIECE_BYTES each, are requests of their own, so that one object comes
            over many connections.
Threads     of our own, objects.REQUESTS for each read; they wait for answers without the
            interpreter's lock.
Memory      of the answers of one read: the bytes that were asked for, and the gaps. An extent alone
            goes to its place at once.
Blocks      of objects with a cache (`blockcache.py`): those that are missing there are asked for as
            a whole, neighbours together.
Local       files among the objects are read as `pread.py` does.
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass

import numpy as np

from gpuload.core.face import Maps
from gpuload.storage import objects
from gpuload.storage.blockcache import BLOCK_BYTES, BlockPiece
from gpuload.storage.extents import (
    Bytes,
    Extents,
    Int64s,
    check_arrays,
    check_inside,
    check_places,
    plain,
)
from gpuload.storage.files import Files, are_remote
from gpuload.storage.objects import PIECE_BYTES, CachedObject
from gpuload.storage.paths import PackedPaths
from gpuload.storage.pread import PositionedStorage
from gpuload.storage.stores import is_remote, remote_of
from gpuload.threads import parallel_map

# 1 GB/s over 32 connections sends so much in half a millisecond, the shortest answer of a store
GAP_BYTES = 1 << 14
log = logging.getLogger("gpuload")
LOCAL, RANGES, BLOCKS = 0, 1, 2  # how a file is read


@dataclass(frozen=True)
class Request:
    """A range of an object, and the extents in it.

    Attributes:
        file: the number of the object.
        begin, end: the bytes.
        first, after: which extents, in the order of the files, lie in it; of a piece of a long one
            that one alone.
    """

    file: int
    begin: int
    end: int
    first: int
    after: int


class RemoteStorage:
    """A ``Storage`` that asks object stores for ranges.

    Args:
        files: objects, and perhaps files of this machine.
    """

    def __init__(self, files: Files) -> None:
        self.files, self._positioned = files, PositionedStorage(files)
        self.how = f"ranges of remote objects, {objects.REQUESTS} requests at a time"
        if isinstance(files.paths, PackedPaths) and files.paths.remote.cache is None:
            self._ways = np.where(are_remote(files.paths), RANGES, LOCAL).astype(np.int8)
            return
        ways = [self._way(number, path) for number, path in enumerate(files.paths)]
        self._ways = np.array(ways, np.int8)
        caches = dict[tuple[str, int], int]()  # the bytes of the objects that share one
        for path, way, size in zip(files.paths, ways, files.sizes.tolist(), strict=True):
            if way == BLOCKS:
                key = str(remote_of(path).cache), remote_of(path).cache_bytes
                caches[key] = caches.get(key, 0) + size
        self.how += (
            f"; their blocks are stored in {' and '.join(sorted({folder for folder, _ in caches}))}"
            * bool(caches)
        )
        for (folder, limit_bytes), num_bytes in caches.items():
            if num_bytes > limit_bytes:
                log.warning(
                    "%s holds %d of the %d bytes of these files: in a whole shuffle a record costs "
                    "a block of %d bytes each epoch; allow more (cache_bytes=), or use "
                    "shuffle=gl.Blocks(1024, 16)",
                    *(folder, limit_bytes, num_bytes, BLOCK_BYTES),
                )

    def _way(self, number: int, path: str) -> int:
        if not is_remote(path):
            return LOCAL
        # This makes the cache's folder: an error of it is raised when the source is opened.
        if objects.open_blocks(path, self.files.stamp(number)) is None:
            return RANGES
        return BLOCKS

    def read(self, extents: Extents, out: Bytes, begins: Int64s) -> None:
        """Copy the bytes of extent i to ``out[begins[i]:]``; see ``Storage.read``."""
        extents, begins = check_arrays(extents, out, begins)
        check_inside(self.files, extents)
        check_places(self.files, extents, out, begins)
        ways = self._ways[extents.files]
        for way, read in (
            (LOCAL, self._positioned.read),
            (RANGES, self._read_ranges),
            (BLOCKS, self._read_blocks),
        ):
            rows = np.flatnonzero((ways == way) & (extents.lengths > 0))
            if rows.size:
                read(extents.take(rows), out, begins[rows])

    def _read_ranges(self, extents: Extents, out: Bytes, begins: Int64s) -> None:
        order = np.lexsort((extents.offsets, extents.files))
        extents, begins = extents.take(order), begins[order]
        memory = out.data

        def fetch(request: Request) -> None:
            url, stamp = self.files.paths[request.file], self.files.stamp(request.file)
            # One extent comes straight to its place; those that share a request are copied out of
            # what came.
            if request.after == request.first + 1:
                begin = (
                    int(begins[request.first]) + request.begin - int(extents.offsets[request.first])
                )
                with self.files.naming_manifest(request.file):
                    objects.fetch(
                        url,
                        stamp,
                        memory[begin : begin + request.end - request.begin],
                        request.begin,
                    )
                return
            content = np.empty(request.end - request.begin, np.uint8)
            with self.files.naming_manifest(request.file):
                objects.fetch(url, stamp, content.data, request.begin)
            members = slice(request.first, request.after)
            places = extents.offsets[members] - request.begin
            for place, length, begin in zip(
                places.tolist(),
                extents.lengths[members].tolist(),
                begins[members].tolist(),
                strict=True,
            ):
                out[begin : begin + length] = content[place : place + length]

        parallel_map(fetch, requests_of(extents), objects.REQUESTS)

    def _read_blocks(self, extents: Extents, out: Bytes, begins: Int64s) -> None:
        """Copy the extents from blocks in the cache; then ask the store for the other blocks."""
        cached_objects = {
            file: blocks
            for file in np.unique(extents.files).tolist()
            if (blocks := objects.open_blocks(self.files.paths[file], self.files.stamp(file)))
            is not None
        }
        missing: dict[int, dict[int, list[BlockPiece]]] = {}
        for file, number, pieces in blocks_of(extents, begins):
            if not cached_objects[file].load(number, pieces, out.data):
                missing.setdefault(file, {})[number] = pieces

        def fetch(run: tuple[int, int, int]) -> None:
            file, first, after = run
            with self.files.naming_manifest(file):
                content = cached_objects[file].fetch(first, after)
            for number in range(first, after):
                for piece in missing[file][number]:
                    begin = (number - first) * BLOCK_BYTES + piece.begin
                    out[piece.place : piece.place + piece.length] = content[
                        begin : begin + piece.length
                    ]

        runs = [
            (file, *run) for file, numbers in missing.items() for run in CachedObject.runs(numbers)
        ]
        parallel_map(fetch, runs, objects.REQUESTS)

    def maps(self) -> Maps | None:
        """Return None: there are no maps."""
        return None

    def advise(self, extents: Extents) -> None:
        """Check the extents: a store cannot be asked for bytes in advance; see
        ``Storage.advise``."""
        check_inside(self.files, plain(extents))


def requests_of(extents: Extents) -> list[Request]:
    """Return the requests for extents that have bytes, which come in the order of the files."""
    ends = extents.offsets + extents.lengths
    reach = ends.copy()  # an extent may lie inside another one
    new_file = np.flatnonzero(np.diff(extents.files)) + 1
    for first, after in zip(
        [0, *new_file.tolist()], [*new_file.tolist(), len(extents)], strict=True
    ):
        reach[first:after] = np.maximum.accumulate(ends[first:after])
    is_long = extents.lengths > PIECE_BYTES
    is_new = np.ones(len(extents), bool)
    is_new[1:] = (np.diff(extents.files) != 0) | (extents.offsets[1:] - reach[:-1] > GAP_BYTES)
    # A run ends at each multiple of PIECE_BYTES: several connections bring it sooner than one.
    is_new[1:] |= is_long[1:] | is_long[:-1] | (np.diff(extents.offsets // PIECE_BYTES) != 0)
    edges = [*np.flatnonzero(is_new).tolist(), len(extents)]
    requests = list[Request]()
    for first, after in itertools.pairwise(edges):
        file, begin, end = (
            int(extents.files[first]),
            int(extents.offsets[first]),
            int(reach[first:after].max()),
        )
        if after == first + 1:
            for place in range(begin, int(ends[first]), PIECE_BYTES):
                requests.append(
                    Request(file, place, min(place + PIECE_BYTES, int(ends[first])), first, after)
                )
        else:
            requests.append(Request(file, begin, end, first, after))
    return requests


def blocks_of(extents: Extents, begins: Int64s) -> list[tuple[int, int, list[BlockPiece]]]:
    """Return file, block and pieces for extents that have bytes: each block once, in the order of
    the files."""
    first = extents.offsets // BLOCK_BYTES
    counts = (extents.offsets + extents.lengths - 1) // BLOCK_BYTES - first + 1
    rows = np.repeat(np.arange(len(extents)), counts)
    numbers = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(rows.size)
    starts = np.maximum(extents.offsets[rows], numbers * BLOCK_BYTES)
    ends = np.minimum(extents.offsets[rows] + extents.lengths[rows], (numbers + 1) * BLOCK_BYTES)
    places = begins[rows] + starts - extents.offsets[rows]
    files = extents.files[rows]
    order = np.lexsort((starts, numbers, files))
    edges = np.flatnonzero((np.diff(files[order]) != 0) | (np.diff(numbers[order]) != 0)) + 1
    columns = [
        column[order].tolist()
        for column in (files, numbers, starts - numbers * BLOCK_BYTES, ends - starts, places)
    ]
    blocks = list[tuple[int, int, list[BlockPiece]]]()
    for begin, end in zip([0, *edges.tolist()], [*edges.tolist(), rows.size], strict=True):
        pieces = [
            BlockPiece(*row)
            for row in zip(*(column[begin:end] for column in columns[2:]), strict=True)
        ]
        blocks.append((columns[0][begin], columns[1][begin], pieces))
    return blocks
