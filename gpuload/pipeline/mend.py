"""Mend: a part of a step is done with other records in the place of damaged ones (`damage.py` says
which).

A part that fails is done again in pieces, which finds the rows at fault; each gets its substitute,
and then the part is done once more. Rows of records that failed before are tried by themselves
first, so that the work of the others is not lost by them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuload.errors import RecordError, RowError
from gpuload.pipeline.damage import Damage, is_damage
from gpuload.pipeline.part import StepPart
from gpuload.pipeline.stretch import Stretch
from gpuload.stats import Counters

RecordFault = RowError | RecordError


class CardRowError(Exception):
    """Another record is needed in a row that lies on the GPU: the step is done anew, and reads that
    row."""


class Mender:
    """Does one part of a step; used by one thread.

    Args:
        part: of a step.
        damage: gives the other records, and notes those that are damaged.
        counters: of the loader.
    """

    def __init__(self, part: StepPart, damage: Damage, counters: Counters) -> None:
        self._part, self._rows, self._damage, self._counters = part, part.rows, damage, counters

    def run(self) -> None:
        """Do the part.

        Raises:
            RecordError: each row is sound by itself, and all together are not.
            CardRowError: see there.
            DamagedSourceError: too many records are damaged.
        """
        begin, end = self._part.begin, self._part.end
        suspects = self._rows.suspect_rows(self._damage, begin, end)
        for row in suspects:
            self._settle(row)
        if suspects:
            error = self._try_rows(begin, end)
        else:
            error = self._try_part()
        while error is not None:
            bad_rows = self._find_bad_rows(begin, end, error)
            if not bad_rows:
                # The fault is not that of one record, too little memory for all say.
                raise self._as_error(error, begin)
            for row, row_error in bad_rows:
                self._note(row, row_error)
                self._replace(row)
                self._settle(row)
            error = self._try_rows(begin, end)

    def _settle(self, row: int) -> None:
        """Put other records into a row until one is sound."""
        if row in self._rows.attempts:
            self._put_record(row)
        while (error := self._try_rows(row, row + 1)) is not None:
            self._note(row, error)
            self._replace(row)

    def _replace(self, row: int) -> None:
        """Make the next attempt at another record for a row."""
        self._rows.attempts[row] = self._rows.attempts.get(row, 0) + 1
        self._put_record(row)

    def _put_record(self, row: int) -> None:
        """Put the record of the present attempt into a row."""
        rows = self._rows
        if rows.card is not None and row not in rows.card.uploads:
            raise CardRowError
        planned_record, attempt = int(rows.planned_records[row]), rows.attempts[row] - 1
        # By the record that the plan has there, not by the last attempt: all runs and shards agree
        # then.
        epoch = rows.position.epoch
        number = np.array([self._damage.substitute(planned_record, epoch, attempt)], np.int64)
        (rows.records[row],) = rows.recipe.numbered(number, epoch)
        if self._damage.skips:
            rows.valid[row] = False

    def _find_bad_rows(self, begin: int, end: int, error: RecordFault) -> list[tuple[int, Any]]:
        """Return the rows that cannot be used by themselves, each with its error; ``error`` is that
        of all together."""
        bad_rows: list[tuple[int, Any]] = []
        ranges = [(begin, end, error)]
        while ranges:
            begin, end, error = ranges.pop()
            if end - begin == 1:
                bad_rows.append((begin, error))
                continue
            middle = (
                begin + error.row if isinstance(error, RowError) else end
            )  # the row that it names is tried alone
            if (
                begin <= middle < end
                and (row_error := self._try_rows(middle, middle + 1)) is not None
            ):
                bad_rows.append((middle, row_error))
                pieces = [(begin, middle), (middle + 1, end)]
            else:
                pieces = [(begin, (begin + end) // 2), ((begin + end) // 2, end)]
            for first, after in pieces:
                if first < after and (range_error := self._try_rows(first, after)) is not None:
                    ranges.append((first, after, range_error))
        return sorted(bad_rows, key=lambda entry: entry[0])

    def _try_part(self) -> RecordFault | None:
        """Do all rows with the places and draws of the stretch; returns their error."""
        try:
            self._part.make(self._counters)
        except (RowError, RecordError) as error:
            return self._as_damage(error, self._part.begin)
        return None

    def _try_rows(self, begin: int, end: int) -> RecordFault | None:
        """Do some rows, with the records that stand in them now; returns their error."""
        rows = self._rows
        partners = rows.partners
        if (
            partners is not None
        ):  # a row by itself is tried without its partner, which has an error of its own
            is_part = (begin, end) == (self._part.begin, self._part.end)
            partners = partners[begin:end] * is_part
        stretch = Stretch.of(rows.recipe, rows.position, rows.records[begin:end], partners)
        try:
            self._part.make_rows(begin, end, stretch, 0, self._counters)
        except (RowError, RecordError) as error:
            return self._as_damage(error, begin)
        return None

    def _as_damage(self, error: RecordFault, begin: int) -> RecordFault:
        """Return an error that is damage of a record; raise any other one, with rows counted
        from ``begin``."""
        if is_damage(error):
            return error
        raise self._as_error(error, begin) from None

    def _as_error(self, error: RecordFault, begin: int) -> RecordError:
        """Return an error as it is raised; of a row, counted from ``begin``, it says which record
        it is."""
        if isinstance(error, RowError):
            return self._rows.record_error(error, begin)
        return error

    def _note(self, row: int, error: RecordFault) -> None:
        rows = self._rows
        epoch, step = rows.position.epoch, rows.step_of(row)
        self._damage.note(int(rows.records[row]), error, epoch=epoch, step=step, by_executor=False)
