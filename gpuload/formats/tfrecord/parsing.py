"""Parsing: the values of each wanted feature of some records, in the core or in plain Python, with
the same result.

records, uint8                   one after the other, as they were read
ValueLists                       the values of one feature of all records, one after the other, and
                                 how many of each
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import core
from gpuload.core.face import Native
from gpuload.errors import RowError
from gpuload.formats.tfrecord import wire
from gpuload.formats.tfrecord.features import FeatureColumn
from gpuload.formats.tfrecord.wire import BYTES_LIST, FLOAT_LIST, INT64_LIST, KINDS, LISTS

Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]
MISSING = -1
EMPTY = np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class ValueLists:
    """The values of one feature in some records; in those of a feature list, in all their steps.

    Attributes:
        counts: int64 ``[n]``, how many values each record (or step) has; MISSING where it has no
            such feature.
        values: int64 or float32 ``[total]``; for bytes where each value begins.
        lengths: for bytes how many each value has, int64 ``[total]``.
        steps: for a feature list how many steps each record has, int64; MISSING where it has no
            such list.
    """

    counts: Int64s
    values: NDArray[np.int64] | NDArray[np.float32]
    lengths: Int64s
    steps: Int64s | None = None

    @property
    def places(self) -> Int64s:
        """The place in ``raw`` at which the bytes of each value begin, int64."""
        return self.values.view(np.int64)


def parse_features(
    raw: Bytes, begins: Int64s, ends: Int64s, columns: Sequence[FeatureColumn]
) -> list[ValueLists]:
    """Return the values of each column's feature in some records.

    Args:
        raw: uint8, contiguous.
        begins: of the payload of each record, int64 ``[n]``.
        ends: of the payload of each record, int64 ``[n]``.
        columns: which features.

    Raises:
        RowError: a record is no such message, or a feature holds another kind of values.
    """
    if not columns[0].section:  # the whole payload is the one value
        return [ValueLists(np.ones(begins.size, np.int64), begins, ends - begins)]
    if core.native is None:
        return plain(raw, begins, ends, columns)
    results, bad = _compiled(core.native, raw, begins, ends, columns)
    if bad == MISSING:
        return results
    plain(raw, begins[bad : bad + 1], ends[bad : bad + 1], columns, bad)  # says why
    raise RuntimeError(f"the two parsers of tf.train.Example differ at row {bad}")


def _compiled(
    native: Native, raw: Bytes, begins: Int64s, ends: Int64s, columns: Sequence[FeatureColumn]
) -> tuple[list[ValueLists], int]:
    """Return the values of each column by the core, and MISSING; or no values, and the first row
    that is damaged."""
    keys = list(dict.fromkeys((column.section, column.key) for column in columns))
    # Two fields may be made of one feature (a value, and its length, say): it is looked for once.
    key_numbers = [keys.index((column.section, column.key)) for column in columns]
    # 0 of a feature list: the core only finds its entry; steps and their values are counted below.
    kinds = [0 if column.section == LISTS else column.kind for column in columns]
    query = native.FeatureQuery(keys=keys, features=list(zip(key_numbers, kinds, strict=True)))
    spans = np.empty((len(keys), begins.size, 2), np.int64)
    counts = np.empty((len(columns), begins.size), np.int64)
    bad = query.find(raw, begins, ends, spans, counts)
    if bad != MISSING:
        return [], bad
    results: list[ValueLists] = []
    for number, column in enumerate(columns):
        if column.section == LISTS:
            result, bad = _list(native, raw, spans[key_numbers[number]], column)
            if result is None:
                return [], bad
            results.append(result)
        else:
            column_counts = counts[number]
            results.append(
                _room(
                    column,
                    column_counts,
                    int(column_counts.sum()) + int(np.count_nonzero(column_counts == MISSING)),
                    None,
                )
            )
            _fill(native, raw, spans[key_numbers[number]], True, results[-1], column)
    return results, MISSING


def _list(
    native: Native, raw: Bytes, spans: Int64s, column: FeatureColumn
) -> tuple[ValueLists | None, int]:
    """Return the values of a feature list and MISSING, or None and the row that cannot be read."""
    steps = np.empty(len(spans), np.int64)
    bad = native.count_steps(raw, spans, steps)
    if bad != MISSING:
        return None, bad
    num_steps = np.maximum(steps, 0)
    step_spans = np.empty((int(num_steps.sum()), 2), np.int64)
    native.fill_steps(raw, spans, step_spans)
    counts = np.empty(len(step_spans), np.int64)
    bad = native.count_values(raw, step_spans, column.kind, counts)
    if bad != MISSING:  # a step; the row is that of the record which it is of
        return None, int(np.searchsorted(np.cumsum(num_steps), bad, side="right"))
    result = _room(column, counts, int(np.maximum(counts, 0).sum()), steps)
    _fill(native, raw, step_spans, False, result, column)
    return result, MISSING


def _fill(
    native: Native,
    raw: Bytes,
    spans: Int64s,
    are_entries: bool,
    lists: ValueLists,
    column: FeatureColumn,
) -> None:
    """Write the values of features that were counted."""
    if column.kind == FLOAT_LIST:
        native.fill_floats(raw, spans, are_entries, lists.counts, lists.values.view(np.float32))
    elif column.kind == BYTES_LIST:
        native.fill_bytes(raw, spans, are_entries, lists.counts, lists.places, lists.lengths)
        lists.lengths[:] -= lists.places  # they were ends
    else:
        native.fill_ints(raw, spans, are_entries, lists.counts, lists.places)


def _room(column: FeatureColumn, counts: Int64s, total: int, steps: Int64s | None) -> ValueLists:
    """Return empty lists with room for all values that were counted."""
    if column.kind == FLOAT_LIST:
        values = np.empty(total, np.float32)
    else:
        values = np.empty(total, np.int64)
    return ValueLists(
        counts, values, np.empty(total if column.kind == BYTES_LIST else 0, np.int64), steps
    )


def plain(
    raw: Bytes, begins: Int64s, ends: Int64s, columns: Sequence[FeatureColumn], row: int = 0
) -> list[ValueLists]:
    """Return the values of each column by Python alone.

    Args:
        raw: the bytes of the records.
        begins: of each record in them, int64 ``[n]``.
        ends: of each record in them, int64 ``[n]``.
        columns: the fields.
        row: is added to the row that an error names.
    """
    lists = [_PlainLists() for _ in columns]
    sections = {column.section for column in columns}
    for number, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True), row):
        data = raw[begin:end].tobytes()
        try:
            entries = wire.entries(data, sections)
            for column, values in zip(columns, lists, strict=True):
                entry = entries.get((column.section, column.key))
                spans: list[wire.Span | None] = [entry]
                if column.section == LISTS:
                    if entry is None:
                        spans = []
                    else:
                        spans = [*wire.steps_of(data, entry)]
                    values.steps.append(MISSING if entry is None else len(spans))
                for span in spans:
                    values.take(data, span, column, begin, number)
        except wire.WireError as error:
            raise RowError(
                number,
                f"byte {error.place} of its {end - begin}: {error.cause}",
                cause="it is no tf.train.Example: it was written so, as its checksum shows, "
                "or none was verified",
                remedy="read it as it is, with features=gl.Raw(); or leave it out with "
                "source.select(...)",
            ) from None
    return [values.arrays(column) for values, column in zip(lists, columns, strict=True)]


class _PlainLists:
    """The values of a column, as far as they were read."""

    def __init__(self) -> None:
        self.counts, self.steps = list[int](), list[int]()
        self._values, self._lengths = list[int](), list[int]()

    def take(
        self, data: bytes, span: wire.Span | None, column: FeatureColumn, begin: int, row: int
    ) -> None:
        """Add the values of a feature of the record that begins at a byte; no span is a missing one."""
        kind, items = 0, list[Any]()
        if span is not None:
            kind, items = wire.feature_of(data, span, is_entry=column.section != LISTS)
        if kind not in (0, column.kind):
            raise _other_kind(row, column, kind, len(items))
        # A feature with none of the three lists is missing, as it is to TensorFlow.
        self.counts.append(len(items) if kind else MISSING)
        if kind == BYTES_LIST:
            self._values += (begin + first for first, _ in items)
            self._lengths += (after - first for first, after in items)
        else:
            self._values += items

    def arrays(self, column: FeatureColumn) -> ValueLists:
        """Return them as arrays."""
        if column.kind == FLOAT_LIST:
            values: NDArray[Any] = np.array(self._values, np.uint32).view(np.float32)
        else:
            values = np.array(self._values, np.int64)
        steps = None
        if column.section == LISTS:
            steps = np.array(self.steps, np.int64)
        counts, lengths = np.array(self.counts, np.int64), np.array(self._lengths, np.int64)
        return ValueLists(counts, values, lengths, steps)


def _other_kind(row: int, column: FeatureColumn, kind: int, count: int) -> RowError:
    """Return the error that says that a feature is a list of another kind."""
    fitting = {
        BYTES_LIST: '"str", "S", "bytes" or gl.Raw("f4", (3,))',
        FLOAT_LIST: '"f4"',
        INT64_LIST: '"i8"',
    }[kind]
    return RowError(
        row,
        f"{column.label} is a list of {count} {KINDS[kind]} values",
        cause=f"{column.feature} is read from lists of {KINDS[column.kind]} values",
        remedy=f"say what it is: {{{column.field.name!r}: {fitting}}}",
    )
