"""Remote storage: ranges of objects, many requests at a time.

Neighbours  extents with at most GAP_BYTES between two are one request: to send the gap takes less than another request.
Pieces      of a long extent, PIECE_BYTES each, are requests of their own, so that one object comes over many
            connections.
Threads     of our own, objects.REQUESTS for each read; they wait for answers without the interpreter's lock.
Memory      of the answers of one read: what was asked for, and the gaps. An extent alone goes to its place at once.
Local       files among the objects are read as `pread.py` does.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from gpuload.core.face import Maps
from gpuload.storage import objects
from gpuload.storage.extents import Bytes, Extents, Int64s, check_arrays, check_inside, check_places, plain
from gpuload.storage.files import Files
from gpuload.storage.pread import PositionedStorage
from gpuload.threads import parallel_map

GAP_BYTES = 1 << 14  # 1 GB/s over 32 connections sends so much in half a millisecond, the shortest answer of a store
PIECE_BYTES = 1 << 22


@dataclass(frozen=True)
class Request:
    """A range of an object, and the extents in it.

    Attributes:
        file: the number of the object.
        begin, end: the bytes.
        first, after: which extents, in the order of the files, lie in it; of a piece of a long one that one alone.
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

    how = f"ranges of remote objects, {objects.REQUESTS} requests at a time"

    def __init__(self, files: Files) -> None:
        self.files, self._positioned = files, PositionedStorage(files)
        self._is_remote = np.fromiter(map(objects.is_remote, files.paths), bool, len(files))

    def read(self, extents: Extents, out: Bytes, begins: Int64s) -> None:
        """Copy the bytes of extent i to ``out[begins[i]:]``; see ``Storage.read``."""
        extents, begins = check_arrays(extents, out, begins)
        check_inside(self.files, extents)
        check_places(self.files, extents, out, begins)
        is_remote = self._is_remote[extents.files]
        if not is_remote.all():
            self._positioned.read(extents.take(~is_remote), out, begins[~is_remote])
        order = np.lexsort((extents.offsets, extents.files))
        order = order[(extents.lengths[order] > 0) & is_remote[order]]
        extents, begins = extents.take(order), begins[order]
        memory = out.data

        def fetch(request: Request) -> None:
            url, stamp = self.files.paths[request.file], self.files.stamp(request.file)
            if request.after == request.first + 1:
                begin = int(begins[request.first]) + request.begin - int(extents.offsets[request.first])
                objects.read(url, stamp, memory[begin : begin + request.end - request.begin], request.begin)
                return
            content = np.empty(request.end - request.begin, np.uint8)
            objects.read(url, stamp, content.data, request.begin)
            members = slice(request.first, request.after)
            places = extents.offsets[members] - request.begin
            for place, length, begin in zip(
                places.tolist(), extents.lengths[members].tolist(), begins[members].tolist(), strict=True
            ):
                out[begin : begin + length] = content[place : place + length]

        parallel_map(fetch, requests_of(extents), objects.REQUESTS)

    def maps(self) -> Maps | None:
        """Return None: there are no maps."""
        return None

    def advise(self, extents: Extents) -> None:
        """Check the extents: a store cannot be asked for bytes in advance; see ``Storage.advise``."""
        check_inside(self.files, plain(extents))


def requests_of(extents: Extents) -> list[Request]:
    """Return the requests for extents that have bytes, which come in the order of the files."""
    ends = extents.offsets + extents.lengths
    reach = ends.copy()  # an extent may lie inside another one
    new_file = np.flatnonzero(np.diff(extents.files)) + 1
    for first, after in zip([0, *new_file.tolist()], [*new_file.tolist(), len(extents)], strict=True):
        reach[first:after] = np.maximum.accumulate(ends[first:after])
    is_long = extents.lengths > PIECE_BYTES
    is_new = np.ones(len(extents), bool)
    is_new[1:] = (np.diff(extents.files) != 0) | (extents.offsets[1:] - reach[:-1] > GAP_BYTES)
    is_new[1:] |= is_long[1:] | is_long[:-1] | (np.diff(extents.offsets // PIECE_BYTES) != 0)
    edges = [*np.flatnonzero(is_new).tolist(), len(extents)]
    requests = list[Request]()
    for first, after in itertools.pairwise(edges):
        file, begin, end = int(extents.files[first]), int(extents.offsets[first]), int(reach[first:after].max())
        if after == first + 1:
            for place in range(begin, int(ends[first]), PIECE_BYTES):
                requests.append(Request(file, place, min(place + PIECE_BYTES, int(ends[first])), first, after))
        else:
            requests.append(Request(file, begin, end, first, after))
    return requests
