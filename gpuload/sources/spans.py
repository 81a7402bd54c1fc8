"""Spans: records of varying length that lie one after the other in files, each from one bound to
the next.

    file 0    bounds 0 30 90          2 records        numbers 0 1
    file 1    bounds 0 20             1 record                 2

The bounds of all files stand in one array, so that record ``n`` of file ``f`` lies between its
elements ``n + f`` and ``n + f + 1``, wherever the numbers of the records of a file begin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from gpuload.errors import FormatError, GpuloadError
from gpuload.order import MAX_LENGTH
from gpuload.progress import Progress
from gpuload.sources.leaf import Bytes, Indices, Leaf, starts_of
from gpuload.storage.extents import Extents, Storage
from gpuload.storage.files import Files
from gpuload.storage.manifest import Manifest
from gpuload.threads import num_cores, parallel_map

Result = TypeVar("Result")

MIB = 1 << 20
Show = Callable[[int, int], None]  # is told of a file how far it was read, in bytes


class SpanLeaf(Leaf):
    """Records between bounds.

    Args:
        storage: of the files.
        bounds: int64 ``[num_records + num_files]``: of each file the byte where each record begins,
            and the last ends.
        starts: int64 ``[num_files + 1]``, the number of the first record of each file, and of all.
        paths: of the files, as the user named them.
        least_bytes: the least length of a record.
    """

    def __init__(
        self,
        storage: Storage,
        bounds: Indices,
        starts: Indices,
        paths: Sequence[str],
        least_bytes: int = 0,
    ) -> None:
        self.num_records = int(starts[-1])
        self._storage, self._bounds, self._starts = storage, bounds, starts
        self._paths, self._sizes, self._least = paths, storage.files.sizes, least_bytes

    def num_bytes(self, numbers: Indices) -> Indices:
        """Return how many bytes each record has with all that belongs to it, int64 ``[n]``.

        Raises:
            FormatError: the index holds impossible places.
        """
        return self._extents(numbers).lengths

    def files_of(self, numbers: Indices) -> Indices:
        """Return the file of each record."""
        # One file is usual, and needs no search.
        if self._starts.size == 2:
            return np.zeros(numbers.size, np.int64)
        return np.searchsorted(self._starts, numbers, side="right") - 1

    def origin(self, number: int) -> tuple[str, int] | None:
        """Return the file of a record, as the user named it, and the byte where it begins."""
        file = int(self.files_of(np.array([number], np.int64))[0])
        return self._paths[file], int(self._bounds[number + file])

    def _read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        self._storage.read(self._extents(numbers), out, begins)

    def advise(self, numbers: Indices) -> None:
        """Ask the system to have these records in memory soon."""
        if numbers.size:
            self._storage.advise(self._extents(numbers))

    def _extents(self, numbers: Indices) -> Extents:
        """Return where records lie; raises ``FormatError`` if the index leads outside of a file."""
        files = self.files_of(numbers)
        places = numbers + files
        offsets, ends = self._bounds[places], self._bounds[places + 1]
        lengths = ends - offsets
        # The bytes are looked at where these numbers say; an index that was written by hand must
        # not lead elsewhere.
        wrong = (offsets < 0) | (ends > self._sizes[files]) | (lengths < self._least)
        if wrong.any():
            bad = int(wrong.argmax())
            raise FormatError(
                f"the index of {self._paths[files[bad]]} says that a record lies at byte "
                f"{offsets[bad]} to {ends[bad]}",
                cause=f"the file has {self._sizes[files[bad]]} bytes, and a record at least "
                f"{self._least}",
                remedy="remove the index (.NAME.gpuload-index beside the file); it is made anew",
            )
        return Extents(files, offsets, lengths)


def manifest_arrays(bounds: Indices, starts: Indices) -> dict[str, Indices]:
    """Return the arrays of a manifest for bounds and first records, as `bounds_of` returns them."""
    return {"bounds": bounds, "counts": np.diff(starts)}


def manifest_bounds(listing: Manifest) -> tuple[Indices, Indices]:
    """Return the bounds of the records of all files, and the number of the first of each, that a
    manifest has.

    Raises:
        FormatError: they do not ascend inside each file to its end.
    """
    counts, num_files = listing.numbers("counts", 0, MAX_LENGTH), len(listing.files)
    starts = starts_of(counts.tolist())
    bounds: Indices = listing.array("bounds", "<i8", int(starts[-1]) + num_files)
    firsts = starts[:-1] + np.arange(num_files)  # places in bounds
    is_step = np.ones(bounds.size - 1, np.bool_)
    is_step[firsts[1:] - 1] = False  # from the last bound of a file to the first of the next
    descends = (bounds[1:] < bounds[:-1]) & is_step
    if (
        descends.any()
        or (bounds[firsts] < 0).any()
        or (bounds[firsts + counts] > listing.files.sizes).any()
    ):
        raise listing.error("a record would end before it begins, or behind its file")
    return bounds, starts


def bounds_of(
    files: Files, title: str, look: Callable[[int, Show, Callable[[], None]], Indices]
) -> tuple[Indices, Indices]:
    """Return the bounds of the records of all files, int64, and the number of the first record of
    each file.

    The bounds of a file are the offsets of its records and the end of the last one, bytes.

    Args:
        files: to walk through.
        title: the text of the line of progress.
        look: returns the bounds of a file; see `walk_files`.
    """
    bounds = walk_files(files, title, look)
    starts = starts_of([file.size - 1 for file in bounds])
    if len(bounds) == 1:
        return bounds[0], starts
    all_bounds = np.empty(int(starts[-1]) + len(files), np.int64)

    def copy_bounds(number: int) -> None:
        begin = int(starts[number]) + number  # each file has one bound more than records
        all_bounds[begin : begin + bounds[number].size] = bounds[number]

    parallel_map(copy_bounds, range(len(files)), num_cores())
    return all_bounds, starts


def walk_files(
    files: Files, title: str, look: Callable[[int, Show, Callable[[], None]], Result]
) -> list[Result]:
    """Return the results of ``look`` in each file, while a line shows the progress.

    Args:
        files: to walk through, by all cores, each core a file.
        title: the text of the line of progress.
        look: called with the number of a file, a function that shows the progress, and a function
            that raises an error if the work should end.
    """
    # All keys are there from the beginning: threads change values alone, so that it can be summed
    # meanwhile.
    places, stop_flags = dict.fromkeys(range(len(files)), 0), list[bool]()
    total = max(int(files.sizes.sum()) // MIB, 1)
    with Progress(title) as progress:

        def go_on() -> None:
            if stop_flags:
                raise GpuloadError(
                    "opening was broken off",
                    cause="Python is ending",
                    remedy="open the files again",
                )

        def show(number: int, place: int) -> None:
            go_on()
            places[number] = place
            progress.show(sum(list(places.values())) // MIB, total, "MiB")

        return parallel_map(
            lambda number: look(number, show, go_on),
            range(len(files)),
            num_cores(),
            lambda: stop_flags.append(True),
        )
