"""Edits on a GPU: `kernels.edits` as the core does them, bit for bit, for images of any sizes.

All images go through their first edit together, then through their second, and so on: each time at
most three launches, for any edits. The first counts levels, the second makes tables of them, the
third makes the pixels. The host knows which of the three are needed. Chains of edits that are mixed
go through theirs before.

Upload    One for a batch: the edits as they are, and for each turn where each image lies, where its
          result goes, and where its edit begins. The results of turns lie in memory that is there
          before, so that all this is known.
Counting  A block counts a part of an image, or a tile of it, in shared memory, and then adds these
          counts to those of the image: 4 sums of the device's memory for each 8 pixels at most, in
          place of one for each value.
Registers The kernel of pixels has all edits in it. Some loops are not unrolled, so that a thread
          takes no more than 56 registers: the more it takes, the fewer are at work at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuload import device
from gpuload.kernels import clahe_cuda, cuda, edits, lab
from gpuload.kernels.edits import Edits
from gpuload.kernels.pixels import IMAGE, Places, reads, views

Offsets = NDArray[np.int64]
EditForm = Callable[[NDArray[np.int32], int], Edits | None]
EDITED = np.dtype(
    [*((name, IMAGE[name]) for name in IMAGE.names or ()), ("edit", "i8"), ("chains", "i8")]
)
NO_EDIT = -1
COUNTED_PIXELS = 8192  # by a block
# The edits for which levels are counted, and those that look levels up.
COUNTING = ("CONTRAST", "AUTOCONTRAST", "EQUALIZE", "PIL_CONTRAST", "PIL_AUTOCONTRAST")
LOOK_UPS = ("TABLE", "BRIGHTNESS", *COUNTING)
RGB = 3  # channels


def edit_batch(xp: ModuleType, x: Any, edit_form: EditForm) -> Any | None:
    """Return a batch behind an op by its edits; None if it has none, or a kernel cannot read the
    images.

    Args:
        xp: NumPy or CuPy.
        x: the images, as of ``Op.array_batch``.
        edit_form: returns the edits of the op for images of these sizes and channels, None if it
            has none.
    """
    if not reads(xp, x) or x[0].dtype != np.uint8:
        return None
    places = Places.of(x)
    numbers = edit_form(places.size.astype(np.int32), places.channels)
    if numbers is None:
        return None
    return edit(xp, x, numbers, places)


def edit(xp: ModuleType, x: Any, numbers: Edits, places: Places | None = None) -> Any:
    """Return images behind their edits.

    Args:
        xp: CuPy.
        x: uint8 images of 1 or 3 channels for which `pixels.reads` is True.
        numbers: of each image.
        places: where the images lie, if it is known.
    """
    if places is None:
        places = Places.of(x)
    run = _EditBatch(xp, numbers, places.channels)
    bounds = np.arange(len(numbers) + 1, dtype=np.int64) * numbers.shape[1]
    out = run.add(places, bounds[:-1], bounds[1:])
    if out is None:
        return x
    run.launch()
    return views(out, places.shapes)


class _Turn(NamedTuple):
    """One edit of each image.

    Attributes:
        images: `EDITED` ``[N]``.
        codes: of the edits, int64 ``[N]``.
        grids: the tiles down and across of those that have tiles, int64 ``[N, 2]``.
        num_pixels: of the largest image.
        out: memory for the results.
    """

    images: NDArray[Any]
    codes: Offsets
    grids: Offsets
    num_pixels: int
    out: Any


class _EditBatch:
    """The turns of a batch, which are collected first and then launched.

    Args:
        xp: CuPy.
        numbers: the edits of all images.
        channels: of each image.
    """

    def __init__(self, xp: ModuleType, numbers: Edits, channels: int) -> None:
        self._xp, self._numbers, self._channels = (
            xp,
            np.ascontiguousarray(numbers).reshape(-1),
            channels,
        )
        self._turns: list[_Turn] = []

    def add(self, places: Places, begins: Offsets, ends: Offsets) -> Any | None:
        """Add the turns of some images; return memory for the results, one after the other, or None
        without edits.

        Args:
            places: where the images lie.
            begins: where the numbers of each image begin, ``[N]``.
            ends: where they end.
        """
        codes, starts = self._parse(begins, ends)
        if len(codes):
            return self._add_turns(places, codes, starts)
        return None

    def _add_turns(self, places: Places, codes: Offsets, starts: Offsets) -> Any:
        """Add turns by the codes of edits and where they begin, ``[turns, N]``."""
        num_pixels, images = int(places.lengths.max()), places.table(EDITED)
        memory = [self._xp.empty(places.num_pixels * self._channels, np.uint8) for _ in codes[:2]]
        # Memory for two results is enough: one turn reads the result of the turn before.
        out = memory[0]
        for turn, (turn_codes, begin) in enumerate(zip(codes, starts, strict=True)):
            if turn:
                if turn == 1:
                    places = places.pack()
                images = places.table(EDITED)
                images["address"] += out.data.ptr
            out = memory[turn % 2]
            images["edit"] = np.where(turn_codes == edits.SKIP, NO_EDIT, begin)
            rows, grids = np.flatnonzero(turn_codes == edits.PIL_MIX), np.empty((0, 2), np.int64)
            if rows.size:
                images["chains"][rows] = self._add_chains(
                    places.at(images["address"], rows), begin[rows]
                )
            if (turn_codes == edits.CLAHE).any():
                grids = self._numbers[
                    np.minimum(begin[:, None] + [3, 4], self._numbers.size - 1)
                ].astype(np.int64)
            self._turns.append(_Turn(images, turn_codes, grids, num_pixels, out))
        return out

    def _add_chains(self, places: Places, begins: Offsets) -> Offsets:
        """Add the turns of the chains of edits that mix; return the address of the first chain's
        image of each.

        Args:
            places: where the images lie that are mixed with chains.
            begins: where the numbers of these edits begin.
        """
        counts = self._numbers[begins + 3].astype(np.int64)
        owners, firsts = np.repeat(np.arange(len(counts)), counts), np.cumsum(counts) - counts
        starts, ends, place = (
            np.zeros(len(owners), np.int64),
            np.zeros(len(owners), np.int64),
            begins + 4,
        )
        for chain in range(int(counts.max())):
            rows = np.flatnonzero(counts > chain)
            starts[firsts[rows] + chain] = place[rows] + 2
            place[rows] += 2 + self._numbers[place[rows] + 1].astype(np.int64)
            ends[firsts[rows] + chain] = place[rows]
        sources = places.at(places.address, owners)
        out = self.add(sources, starts, ends)
        if out is None:  # nothing is done in any chain: they are their image
            skips = np.full((1, len(owners)), edits.SKIP)
            out = self._add_turns(sources, skips, skips)
        return np.asarray(out.data.ptr + sources.pack().address[firsts])

    def _parse(self, begins: Offsets, ends: Offsets) -> tuple[Offsets, Offsets]:
        """Return the codes of edits and where they begin, ``[turns, N]``: those that do something
        come first."""
        codes, starts, place, last = [], [], begins, len(self._numbers) - 2
        while (is_inside := place < ends).any():
            start = np.minimum(place, last)
            codes.append(np.where(is_inside, self._numbers[start].astype(np.int64), edits.SKIP))
            starts.append(start)
            place = np.where(
                is_inside, start + 2 + self._numbers[start + 1].astype(np.int64), place
            )
        all_codes, all_starts = (
            np.array(rows, np.int64).reshape(len(rows), len(begins)) for rows in (codes, starts)
        )
        is_skipped = all_codes == edits.SKIP
        if is_skipped.any():
            order = is_skipped.argsort(axis=0, kind="stable")[
                : int((~is_skipped).sum(axis=0).max())
            ]
            all_codes, all_starts = (
                np.take_along_axis(rows, order, axis=0) for rows in (all_codes, all_starts)
            )
        return all_codes, all_starts

    def launch(self) -> None:
        """Upload the edits and the descriptions of the turns, and queue the kernels."""
        parts = [self._numbers, *(turn.images for turn in self._turns)]
        # One copy to the GPU for all: each costs some microseconds, however few its bytes are.
        upload = device.parameters(np.concatenate([part.view(np.uint8) for part in parts]))
        begin = self._numbers.nbytes
        for turn in self._turns:
            self._launch(turn, upload[begin:], upload)
            begin += turn.images.nbytes

    def _launch(self, turn: _Turn, images: Any, numbers: Any) -> None:
        """Queue the kernels of one turn."""
        count, channels, present = len(turn.images), self._channels, set(turn.codes.tolist())
        has_tiles = edits.CLAHE in present
        constants: Any = 0
        tables: Any = 0
        counts: Any = 0
        num_tiles = 0
        if has_tiles:
            constants = device.constant(lab.join_tables)
            num_tiles = self._most_tiles(turn)
        num_tables, step = max(channels, num_tiles), 256 * max(channels + 1, num_tiles)
        if has_tiles or not present.isdisjoint(_codes(COUNTING)):
            counts = device.zeros(count * step, np.int32)
            blocks = max(-(-turn.num_pixels // COUNTED_PIXELS), num_tiles)
            self._kernel("edits_count.cu", "count")(
                (blocks * count,), (cuda.THREADS,),
                (images, numbers, constants, counts, np.int64(step), np.int32(blocks)),
            )  # fmt: skip
        if has_tiles or not present.isdisjoint(_codes(LOOK_UPS)):
            tables = self._xp.empty(count * num_tables * 256, np.uint8)
            self._kernel("edits_tables.cu", "entries")(
                (num_tables * count,), (256,),
                (images, numbers, counts, np.int64(step), tables, np.int32(num_tables)),
            )  # fmt: skip
        blocks, step = -(-turn.num_pixels // cuda.THREADS), 256 * num_tables
        self._kernel("edits_pixels.cu", "edit")(
            (blocks * count,), (cuda.THREADS,),
            (images, numbers, tables, np.int64(step), constants, turn.out, np.int32(blocks)),
        )  # fmt: skip

    def _most_tiles(self, turn: _Turn) -> int:
        """Return the most tables of tiles that an image of a turn has."""
        rows = turn.codes == edits.CLAHE
        sizes = [turn.images[name][rows].astype(np.int64) for name in ("height", "width")]
        tiles = clahe_cuda.count_tiles(np.stack(sizes, axis=1), turn.grids[rows])
        num_tiles = int(tiles.prod(axis=1).max())
        if self._channels == RGB:
            return num_tiles
        return self._channels * num_tiles

    def _kernel(self, file: str, name: str) -> Any:
        return device.kernel(source(file, self._channels), name)


@cache
def source(file: str, channels: int) -> str:
    """Return the source of one of the three kernels for images of so many channels."""
    bits = {
        name: sum(1 << code for code in _codes(names))
        for name, names in (("COUNTING", COUNTING), ("LOOK_UPS", LOOK_UPS))
    }
    text = f'{cuda.constants(**bits)}#include "{file}"\n'
    return cuda.pixels("unsigned char", "unsigned char", channels, text)


@cache
def _codes(names: tuple[str, ...]) -> frozenset[int]:
    """Return the codes of edits."""
    return frozenset(edits.code(name) for name in names)
