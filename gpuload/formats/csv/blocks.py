"""Blocks of CSV files in object stores, at places of a manifest: each is parsed when a record
of it is wanted.

Access  of a block as a whole, by a request of its bytes (`lines.BLOCK_BYTES`), in threads side by
        side. The blocks that were used last stay parsed (`sources/blocks.py`), CACHE_BYTES of them.
Form    of the rows is that of all files together, which the manifest holds: so records are those of
        the files when they are opened by their paths, and a block that has others is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.errors import FormatError
from gpuload.formats.csv.fields import FieldRun, PayloadLeaf, Reference, spread
from gpuload.formats.csv.keep import Room
from gpuload.formats.csv.kinds import Form, row_dtype
from gpuload.formats.csv.lines import TextBlock
from gpuload.formats.csv.listing import sizes_of
from gpuload.formats.csv.rows import CsvFileRecords, write_block
from gpuload.formats.csv.values import Job
from gpuload.ragged import Ragged, offsets_of
from gpuload.sources.blocks import CACHE_BYTES, BlockLeaf, BlockMemory
from gpuload.sources.leaf import starts_of
from gpuload.storage.extents import Extents, Storage


@dataclass(frozen=True)
class _Values:
    """The values of a block, for each group of fields."""

    values: list[Any]

    @property
    def nbytes(self) -> int:
        return sum(values.nbytes for values in self.values)


class _Blocks:
    """The blocks of files.

    Args:
        job: the files, and how they are read.
        form: of the rows.
        parts: the records and blocks of each file.
        groups: the fields.
        storage: of the files.
    """

    def __init__(
        self,
        job: Job,
        form: Form,
        parts: Sequence[CsvFileRecords],
        groups: Sequence[FieldRun | Reference],
        storage: Storage,
    ) -> None:
        self._job, self._form, self._groups, self._storage = job, form, groups, storage
        blocks = np.array([len(part.places) for part in parts], np.int64)
        counts = np.array([part.count for part in parts], np.int64)
        self._owners = np.repeat(np.arange(blocks.size), blocks)
        self._places = np.concatenate([part.places for part in parts])
        num_records, self._sizes = sizes_of(self._places, blocks, counts, job.files.sizes).T
        self.starts = starts_of(num_records.tolist())

    def origin(self, block: int) -> tuple[str, int]:
        """Return the file of a block, and the byte where it begins."""
        return self._job.files.paths[int(self._owners[block])], int(self._places[block, 2])

    def parse(self, block: int) -> _Values:
        """Return the values of a block.

        Raises:
            ChangedFileError: the file is another one than the manifest lists.
            FormatError: it has other records than the manifest says.
        """
        owner, (_, line, begin, _) = int(self._owners[block]), self._places[block].tolist()
        path, length = self._job.files.paths[owner], int(self._sizes[block])
        text = np.empty(length, np.uint8)
        extents = Extents(*(np.array([value], np.int64) for value in (owner, begin, length)))
        self._storage.read(extents, text, np.zeros(1, np.int64))
        data, quote, room = text.tobytes(), self._job.dialect.quote.encode(), Room()
        block_text = TextBlock(data, line, 0, begin, bool(quote) and quote in data)
        is_whole = write_block(self._job, path, block_text, self._form, room)
        rows, payload = room.content(row_dtype(self._job.columns, self._form))
        expected = int(self.starts[block + 1] - self.starts[block])
        if not is_whole or rows.size != expected:
            raise FormatError(
                f"{path}, line {line}: the lines from here on are not as the manifest says",
                cause=f"they were {expected} records of other types or lengths",
                remedy="make the manifest anew: gpuload index, or source.index(path)",
            )
        return _Values([_values_of(rows, payload, group) for group in self._groups])


def leaves_of(
    job: Job,
    form: Form,
    parts: Sequence[CsvFileRecords],
    groups: Sequence[FieldRun | Reference],
    storage: Storage,
) -> tuple[BlockLeaf, ...]:
    """Return the leaf of each group of fields."""
    blocks = _Blocks(job, form, parts, groups, storage)
    num_bytes = sum(part.count for part in parts) * row_dtype(job.columns, form).itemsize
    if any(isinstance(group, Reference) for group in groups):
        num_bytes += int(job.files.sizes.sum())
    cache = BlockMemory(CACHE_BYTES, num_bytes)
    return tuple(_GroupLeaf(blocks, cache, number, group) for number, group in enumerate(groups))


class _GroupLeaf(BlockLeaf):
    """A group of fields; all groups share the blocks of the cache, since a block is parsed for all
    of them."""

    def __init__(
        self, blocks: _Blocks, cache: BlockMemory, number: int, group: FieldRun | Reference
    ) -> None:
        rows = int(np.diff(blocks.starts).max(initial=0))
        how = f"ranges of text of up to {rows} lines, parsed by PyArrow"
        fields = group.field if isinstance(group, Reference) else group.layout
        super().__init__(fields, blocks.starts, blocks.parse, cache, 0, how, blocks.origin)
        self._number = number

    def _values(self, block: int) -> Any:
        return super()._values(block).values[self._number]


def _values_of(rows: Any, payload: Any, group: FieldRun | Reference) -> Any:
    """Return the values of a group of fields in rows of a block."""
    raw = rows.view(np.uint8).reshape(rows.size, rows.itemsize)
    if isinstance(group, FieldRun):
        if group.is_direct:
            return rows
        records = np.zeros(rows.size, group.field_dtype)
        if rows.size:
            spread(raw, group, records.view(np.uint8).reshape(rows.size, -1))
        return records
    leaf, numbers = PayloadLeaf(group, raw, payload), np.arange(rows.size, dtype=np.int64)
    offsets = offsets_of(leaf.num_bytes(numbers))
    content = np.empty(int(offsets[-1]), np.uint8)
    leaf.read(numbers, content, offsets[:-1])
    return Ragged(content, offsets)
