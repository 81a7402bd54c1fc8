"""Rows of a step: which records they are, and the slot of memory in which they are put side by
side.

Made once a step, by the worker that begins it; its parts (`part.py`), which run in several threads,
fill it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import RecordError, RowError
from gpuload.order import Position
from gpuload.pipeline.card import CardPlaces, CardShare, card_shares, find_rows
from gpuload.pipeline.damage import Damage
from gpuload.pipeline.recipe import Recipe
from gpuload.pipeline.ring import Ring, aligned
from gpuload.pipeline.stretch import Stretch
from gpuload.sources.reading import record_error

Bytes = NDArray[np.uint8]
UINT8 = np.dtype(np.uint8)


class StepRows:
    """The rows of one step, or of some short ones that follow one another, and their memory.

    Args:
        recipe: how they become a batch.
        ring: where the memory comes from.
        position: of the first of the steps.
        num_steps: how many there are.
        stretch: in which these steps are; None to find it out for them alone.
        damage: the treatment of damaged records; None to raise an error for each.
        attempts: for rows of records that are known to be damaged: which attempt at another one to
            begin with.

    Attributes:
        records: int64 ``[n]``, the records of all steps; mending writes to it.
        planned_records: int64 ``[n]``, as the order has them.
        valid: bool ``[n]``, False where a record only pads a batch, or stands for one that is
            skipped.
        attempts: for each row in which another record stands for a damaged one, how many were
            tried.
        stretch, first: in which the rows are, and from which row of it on.
        arrays: of the slot, by region, ``[n, ...]``.
        slot: the memory.
        card: where rows lie that are in the GPU's memory already; None where the source keeps none
            there.
        end: bytes of the slot in use; values of varying length that go to a GPU are put behind.
    """

    def __init__(
        self,
        recipe: Recipe,
        ring: Ring,
        position: Position,
        num_steps: int,
        stretch: Stretch | None,
        damage: Damage | None,
        attempts: Mapping[int, int],
    ) -> None:
        recipe.source.check_open()
        self.recipe, self.ring, self.position, self.num_steps = recipe, ring, position, num_steps
        self.stretch = stretch = stretch or Stretch(recipe, position, num_steps)
        self.first, end = stretch.rows(position.step, num_steps)
        self.records, self.valid = (
            stretch.records[self.first : end],
            stretch.valid[self.first : end],
        )
        self.planned_records, self.attempts = self.records, dict(attempts)
        if damage is not None:
            # Copies: mending writes to them, and those of the stretch belong to other steps, too.
            self.records, self.valid = self.records.copy(), self.valid.copy()
        num_rows, num_uploads = self.records.size, None
        slot_bytes, self.room_bytes, self.end = recipe.slot_bytes, 0, 0
        self.card: CardPlaces | None = None
        if recipe.on_card:
            shares = stretch.shares(self.first, end)
            # Rows of damaged records get others, which may lie anywhere.
            streams = []
            if damage is not None:
                streams = self.suspect_rows(damage, 0, num_rows)
            self.card = find_rows(
                recipe.routes, shares, num_rows, np.array(streams, np.int64), recipe.device
            )
            num_uploads = self.card.uploads.size
            slot_bytes = recipe.end(num_rows, num_uploads)
        if (
            recipe.device != "cpu"
        ):  # with room behind the arrays, for what goes to the GPU in the same upload
            self.end = recipe.end(num_rows, num_uploads)
            self.room_bytes = ring.parameters.num_bytes(num_rows)
            slot_bytes += ring.values.num_bytes(num_rows) + self.room_bytes
        self.slot = ring.take(slot_bytes)
        self.arrays = recipe.arrays(self.slot, num_rows, num_uploads)
        self._lock = threading.Lock()  # taken by workers alone

    @property
    def partners(self) -> NDArray[np.int32] | None:
        """How many rows further the partners of each row are, int32 ``[n, ...]``; None where no op
        mixes records."""
        partners = self.stretch.partners
        if partners is None:
            return None
        return partners[self.first : self.first + self.records.size]

    @property
    def num_bytes(self) -> int:
        """The bytes of the arrays in the slot."""
        return sum(array.nbytes for array in self.arrays.values())

    def bounds(self, part: int) -> tuple[int, int]:
        """Return the first row of a part and the one behind it; records that are mixed are in one
        part."""
        num_rows, num_parts, partners = self.records.size, self.recipe.num_parts, self.partners
        begin, end = num_rows * part // num_parts, num_rows * (part + 1) // num_parts
        if partners is None:
            return begin, end
        return _before_partners(begin, partners), _before_partners(end, partners)

    def batch_rows(self, step: int) -> slice:
        """Return the rows of one of the steps that its batch has."""
        begin, end = self.stretch.batch(step)
        return slice(begin - self.first, end - self.first)

    def step_of(self, row: int) -> int:
        """Return the step that a row belongs to."""
        step = self.position.step
        while self.num_steps > 1 and row >= self.stretch.rows(step)[1] - self.first:
            step += 1
        return step

    def record_error(self, error: RowError, begin: int = 0) -> RecordError:
        """Return the error for a row that cannot be used; its rows are counted from row ``begin``
        of the step."""
        return record_error(self.recipe.source, int(self.records[begin + error.row]), error)

    def suspect_rows(self, damage: Damage, begin: int, end: int) -> list[int]:
        """Return the rows of a range to try by themselves first: those that failed before, here or
        in another step."""
        if not self.attempts and not damage.suspects:
            return []
        records = self.records[begin:end].tolist()
        if not self.attempts and damage.suspects.isdisjoint(records):
            return []
        return [
            row
            for row, record in enumerate(records, begin)
            if row in self.attempts or record in damage.suspects
        ]

    def card_shares(self) -> list[CardShare]:
        """Return the rows that can lie on the GPU, of the records that stand in them now."""
        shares = self.stretch.shares(self.first, self.first + self.records.size)
        if self.attempts:
            shares = self.recipe.source.resolve(self.records)
        return card_shares(self.recipe.routes, shares, self.recipe.device)

    def place_behind(self, num_bytes: int) -> tuple[Bytes, int] | None:
        """Return the slot and the place of so many bytes behind its arrays; None if there is no
        room for them."""
        with self._lock:  # threads of several parts take room
            begin, end = self.end, self.end + aligned(num_bytes)
            if end + self.room_bytes > self.slot.size:
                return None
            self.end = end
        return self.slot, begin

    def blocks(self) -> list[Bytes]:
        """Return the memory of each region, uint8 ``[num_bytes]``."""
        begins = self.recipe.begins(self.records.size)
        return [
            self.slot.array(begins[name], UINT8, (array.nbytes,))
            for name, array in self.arrays.items()
        ]

    def release(self) -> None:
        """Let go of the memory; records and positions stay known."""
        self.arrays = {}
        del self.slot


def _before_partners(row: int, partners: NDArray[np.int32]) -> int:
    """Return where a part begins that should begin with a row: the partners of that row may stand
    before it."""
    if 0 < row < len(partners):
        return row + min(0, int(partners[row].min()))
    return row
