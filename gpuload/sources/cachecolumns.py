"""Columns of a cache: how the values of a source are stored, and how they are filled in.

Layout  Fields of one shape lie in rows in native byte order; of the others there is a payload,
        where each record begins, and shapes where several axes vary. A record that was parsed (a
        tf.Example, say) is not parsed again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload import strings, threads
from gpuload.errors import RecordError
from gpuload.progress import Progress
from gpuload.ragged import Ragged
from gpuload.sources import filtering
from gpuload.sources.layouts import compact_layout, describe_layout
from gpuload.sources.leaf import Array, Fields, Group, Indices, Leaf
from gpuload.sources.reading import Readable, read_groups
from gpuload.spec import Layout, Part, Spec

AT_ONCE = 1 << 20  # records of which it is asked how long they are
WITHOUT_DAMAGE = (
    "repair it, or leave it out before: damaged = {bad.record for bad in gl.check(source)}; "
    "source.select([number for number in range(len(source)) if number not in damaged]).cache(...)"
)
# number of a column, kind of a piece, values to append
AddPiece = Callable[[int, str, Array], None]


@dataclass(frozen=True)
class CacheColumn:
    """A group of fields of one size, or one field of varying shape: they are stored together.

    Attributes:
        spec: the fields.
        layout: of a row; None where shapes vary.
    """

    spec: Spec
    layout: Layout | None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The pieces that it is kept in."""
        if self.layout is not None:
            return ("rows",)
        if self.spec.fields[0].stored.ragged:
            return ("payload", "offsets")
        return ("payload", "offsets", "axes", "shapes")


@dataclass(frozen=True)
class CachedValues:
    """The values of a source.

    Attributes:
        groups: as sources have them.
        leaves: a leaf for each.
        num_bytes: of all.
        place: of the values, in words.
    """

    groups: tuple[Group, ...]
    leaves: tuple[Leaf, ...]
    num_bytes: int
    place: str


def columns_of(source: Readable) -> list[CacheColumn]:
    """Return how the fields of a source are kept, in their order."""
    columns = []
    for group in source.groups:
        if group.layout is not None:
            columns.append(CacheColumn(group.spec, compact_layout(group.layout)))
            continue
        for field in group.spec:
            if field.has_rows:
                layout = compact_layout(Layout(0, (Part(field, field.dtype),)))
            else:
                layout = None
            columns.append(CacheColumn(Spec((field,)), layout))
    return columns


def groups_of(columns: Sequence[CacheColumn]) -> tuple[Group, ...]:
    """Return the groups of a source that is kept in these columns."""
    return tuple(Group(column.spec, column.layout) for column in columns)


def describe_column(column: CacheColumn) -> Any:
    """Return the fields of a column, in values that JSON has."""
    if column.layout is not None:
        return json.loads(json.dumps(describe_layout(column.layout)))
    field = column.spec.fields[0]
    return [
        field.name,
        field.dtype.str,
        None if field.shape is None else list(field.shape),
        *filter(None, [field.text]),
    ]


def fill(source: Readable, columns: Sequence[CacheColumn], add_piece: AddPiece) -> None:
    """Read all records, in chunks and by all cores, and append their values in order."""
    names, num_threads = source.spec.names, threads.num_cores()
    stop_flags: list[bool] = []

    def read(numbers: Indices) -> Fields:
        if stop_flags:
            return {}
        try:
            return read_groups(source, numbers, names)
        except (
            RecordError
        ) as error:  # there is no loader yet with an on_error= that passes the record over
            error.remedy = WITHOUT_DAMAGE
            raise

    pieces = filtering.chunks(source, names)
    num_done = 0
    with Progress("filling the cache") as progress:
        # As many chunks at a time as threads: so their values are in memory together, and no more.
        while chunks := [piece for _, piece in zip(range(num_threads), pieces, strict=False)]:
            batches = threads.parallel_map(
                read, chunks, num_threads, lambda: stop_flags.append(True)
            )
            for numbers, fields in zip(chunks, batches, strict=True):
                for number, column in enumerate(columns):
                    for kind, values in _pieces(column, fields, numbers.size):
                        add_piece(number, kind, values)
                num_done += numbers.size
                progress.show(num_done, len(source), "records")


def _pieces(column: CacheColumn, fields: Fields, count: int) -> Iterator[tuple[str, Array]]:
    """Yield kinds of pieces, and the elements that some records add to each; lengths in place of
    offsets."""
    if column.layout is not None:
        # Zeros: gaps between fields are stored, too, and must not hold older bytes of this memory.
        rows = np.zeros(count, _row_dtype(column.layout))
        for name in column.spec.names:
            rows[name] = fields[name]
        yield "rows", rows
        return
    (field,) = column.spec
    values = fields[field.name]
    if field.text:
        values = strings.pack(field, values)
    if isinstance(values, Ragged):
        flat = np.ascontiguousarray(values.flat)
        yield "payload", flat
        yield (
            "offsets",
            values.lengths * (flat.dtype.itemsize * int(np.prod(flat.shape[1:], dtype=np.int64))),
        )
        return
    # ``ascontiguousarray`` makes one axis of an array without axes; ``reshape`` takes it away
    # again.
    arrays = [np.ascontiguousarray(value).reshape(np.shape(value)) for value in values]
    for array in arrays:
        yield "payload", array
    yield "offsets", np.array([array.nbytes for array in arrays], np.int64)
    yield "axes", np.array([array.ndim for array in arrays], np.int64)
    yield "shapes", np.array([length for array in arrays for length in array.shape], np.int64)


def _row_dtype(layout: Layout) -> np.dtype[Any]:
    parts = layout.parts
    about: Any = {
        "names": [part.field.name for part in parts],
        "formats": [np.dtype((part.dtype, part.field.fixed_shape)) for part in parts],
        "offsets": [part.offset_bytes for part in parts],
        "itemsize": layout.record_bytes,
    }
    dtype: np.dtype[Any] = np.dtype(about)
    return dtype


def known_bytes(source: Readable, columns: Sequence[CacheColumn]) -> int:
    """Return how many bytes the values need at least, as far as it is known before they are
    read."""
    total = sum(
        column.layout.record_bytes for column in columns if column.layout is not None
    ) * len(source)
    if all(group.layout is not None for group in source.groups):
        return total
    for first in range(0, len(source), AT_ONCE):
        numbers = np.arange(first, min(first + AT_ONCE, len(source)), dtype=np.int64)
        for share in source.resolve(numbers):
            if share.leaf.is_direct:
                total += int(share.leaf.num_bytes(share.numbers).sum()) + 8 * share.numbers.size
    return total
