"""Records of fixed size in files: many files are one sequence of records.

Order   in C order record i of a file lies in one piece, at offset + i * record_bytes. In Fortran
        order its items lie apart, item k at offset + (k * num_records + i) * item_bytes; they are
        brought together in the file's order, and the layout of a record says that this is Fortran
        order.
Forms   files may store the same fields differently (byte order, padding, order of items). Those of
        one form are one leaf; if there are several forms, records are native and in C order,
        converted while they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpuload import core
from gpuload.core.face import CopyPlan, PlanPart
from gpuload.sources.filesource import FileSource, Opening
from gpuload.sources.gaps import BadFiles
from gpuload.sources.layouts import compact_layout, describe_layout
from gpuload.sources.leaf import (
    Bytes,
    Group,
    Indices,
    Leaf,
    Share,
    check_places,
    plain,
    put_rows,
    starts_of,
)
from gpuload.sources.shares import SCRATCH_BYTES
from gpuload.sources.sourcefiles import SourceFiles
from gpuload.spec import Layout
from gpuload.storage import direct, open_storage
from gpuload.storage.extents import Extents, Storage
from gpuload.storage.files import Files

# of files in Fortran order so many are read at a time, which the cache can hold; measured
MOST_EXTENTS = 1 << 13


@dataclass(frozen=True)
class RecordForm:
    """How a file stores its records.

    Attributes:
        layout: where the fields lie in a record, once its bytes are together.
        item_bytes: for a file in Fortran order the bytes of an item, else 0.
    """

    layout: Layout
    item_bytes: int = 0


@dataclass(frozen=True)
class FileTable:
    """The records of files: for each file how many there are, where they begin, and in which form.

    Attributes:
        files: the files.
        counts: records of each file.
        offsets: the byte of each file where the first record begins.
        forms: the different forms.
        form_of: int64 ``[num_files]``, which of ``forms`` each file has.
        storage: where the bytes lie, if not in the files themselves: in copies, or in storage that
            others use, too.
        places: int64 ``[num_files]``, which of the storage's files has the records of each file.
        bad: files that cannot be opened. Each counts as one record, of any form.
    """

    files: Files
    counts: Sequence[int]
    offsets: Sequence[int] | Indices
    forms: tuple[RecordForm, ...]
    form_of: Indices
    storage: Storage | None = None
    places: Indices | None = None
    bad: BadFiles | None = None


class FormLeaf(Leaf):
    """Records of files of one form; a subclass reads them.

    Args:
        form: how the files store records.
        storage: of all files of the source.
        files: int64 ``[num_files]``, the numbers of this leaf's files there.
        counts: int64 ``[num_files]``, records.
        offsets: int64 ``[num_files]``, the byte where the first record begins.
    """

    def __init__(
        self, form: RecordForm, storage: Storage, files: Indices, counts: Indices, offsets: Indices
    ) -> None:
        self.layout: Layout = form.layout
        self.item_bytes = form.item_bytes
        self.spec, self.how = form.layout.spec, storage.how
        self._storage, self._files, self._counts = storage, files, counts
        self._starts = starts_of(counts.tolist())
        self.num_records = int(self._starts[-1])
        self._offsets = offsets
        # where record 0 would be in each file
        self._zeroth = offsets - self._starts[:-1] * form.layout.record_bytes

    def origin(self, number: int) -> tuple[str, int] | None:
        """Return the file that holds a record and the byte where it begins, in Fortran order that
        of its first item."""
        owner = int(self._owners(np.array([number], np.int64))[0])
        step = self.item_bytes or self.layout.record_bytes
        offset = int(self._offsets[owner]) + (number - int(self._starts[owner])) * step
        return self._storage.files.paths[int(self._files[owner])], offset

    def advise(self, numbers: Indices) -> None:
        """Ask the system to have these records in memory soon."""
        if numbers.size:
            self._storage.advise(self._extents(numbers))

    def _extents(self, numbers: Indices) -> Extents:
        offsets, lengths = (
            numbers * self.layout.record_bytes,
            np.full(numbers.size, self.layout.record_bytes, np.int64),
        )
        if self._files.size == 1:
            offsets += self._zeroth[0]
            return Extents(np.full(numbers.size, self._files[0], np.int64), offsets, lengths)
        owners = self._owners(numbers)
        offsets += self._zeroth[owners]
        return Extents(self._files[owners], offsets, lengths)

    def _owners(self, numbers: Indices) -> Indices:
        """Return which of this leaf's files each record is in."""
        return np.searchsorted(self._starts, numbers, side="right") - 1


class RowLeaf(FormLeaf):
    """Records of files of one form in C order: the bytes of a record lie side by side, as they are
    handed out."""

    @property
    def is_mapped(self) -> bool:
        """True if a plan of the core can hold its records; see ``Leaf.is_mapped``."""
        return self._storage.maps() is not None

    def add_to(
        self, plan: CopyPlan, numbers: Indices, rows: Indices | None, parts: Sequence[PlanPart]
    ) -> bool:
        """Add the copies of ``read`` to a plan of the core; see ``Leaf.add_to``."""
        maps = self._storage.maps()
        if maps is None or core.native is None:
            return False
        records = core.native.FileRecords(
            maps=maps,
            starts=self._starts,
            files=self._files,
            offsets=self._offsets,
            record_bytes=self.layout.record_bytes,
        )
        plan.add(records, plain(numbers), rows, parts)
        return True

    def places(self, numbers: Indices) -> tuple[Files, Extents] | None:
        """Return the files and where in them the bytes of each record lie; see ``Leaf.places``."""
        if self._is_in_files:
            return (self._storage.files, self._extents(numbers))
        return None

    @cached_property
    def _is_in_files(self) -> bool:
        """True if a GPU can have the records from the files themselves; paths are looked at once,
        not in each batch."""
        return direct.is_readable(self._storage.files)

    def _read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        self._storage.read(self._extents(numbers), out, begins)


class ColumnLeaf(FormLeaf):
    """Records of files of one form in Fortran order.

    An extent is an item of one record, or of records that are neighbours. Extents are made a
    bounded number at a time, the items come into memory as the file has them, record by record
    within each item, and go from there to records.
    """

    def __init__(
        self, form: RecordForm, storage: Storage, files: Indices, counts: Indices, offsets: Indices
    ) -> None:
        super().__init__(form, storage, files, counts, offsets)
        self._num_items = form.layout.record_bytes // form.item_bytes
        self._item = np.dtype(f"{'u' if form.item_bytes in (1, 2, 4, 8) else 'V'}{form.item_bytes}")

    def _read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        # of all, before the first items are read
        check_places(numbers, self.layout.record_bytes, out.size, begins)
        in_file_order = np.argsort(numbers)
        for first in range(0, numbers.size, MOST_EXTENTS):
            batch_rows = in_file_order[first : first + MOST_EXTENTS]
            self._read_records(numbers[batch_rows], out, begins[batch_rows])

    def _read_records(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        """Copy records, which come in the order of the files: item k of neighbours is one
        extent."""
        size, owners = self._item.itemsize, self._owners(numbers)
        # Before the first record stands -2, behind which none comes: that record begins a run, too.
        runs = np.flatnonzero(
            (np.diff(numbers, prepend=-2) != 1) | (np.diff(owners, prepend=-1) != 0)
        )
        lengths = np.diff(runs, append=numbers.size) * size
        owners = owners[runs]
        offsets = self._offsets[owners] + (numbers[runs] - self._starts[owners]) * size
        at_once = max(1, min(MOST_EXTENTS // runs.size, SCRATCH_BYTES // (numbers.size * size)))
        for first in range(0, self._num_items, at_once):
            items = np.arange(first, min(first + at_once, self._num_items), dtype=np.int64)[:, None]
            block = np.empty((items.size, numbers.size), self._item)
            extents = Extents(
                np.tile(self._files[owners], items.size),
                (offsets + items * (self._counts[owners] * size)).reshape(-1),
                np.tile(lengths, items.size),
            )
            places = ((items - first) * numbers.size + runs) * size
            self._storage.read(extents, block.reshape(-1).view(np.uint8), places.reshape(-1))
            put_rows(block.T, out, begins + first * size)

    def advise(self, numbers: Indices) -> None:
        """Do nothing: the items of a record lie all over the file."""


class RecordFiles(FileSource):
    """Records of fixed size in files."""

    def __init__(self, table: FileTable, opening: Opening) -> None:
        storage, layouts = (
            table.storage or open_storage(table.files),
            [form.layout for form in table.forms],
        )
        if all(layout_of_form.same_bytes(layouts[0]) for layout_of_form in layouts):
            layout = layouts[0]
        else:
            layout = compact_layout(layouts[0])
        super().__init__(table.files, opening, (Group.of(layout),), storage)
        self._table, self._starts = table, starts_of(table.counts)
        self._length = int(self._starts[-1])
        counts, offsets = np.array(table.counts, np.int64), np.array(table.offsets, np.int64)
        if table.places is None:
            places = np.arange(len(counts), dtype=np.int64)
        else:
            places = table.places
        # from record numbers of the source to those of the file's leaf
        self._shift = np.zeros(len(counts), np.int64)
        leaves = []
        for number, form in enumerate(table.forms):
            files = np.flatnonzero(table.form_of == number)
            leaves.append(self._leaf(form, storage, places[files], counts[files], offsets[files]))
            self._shift[files] = leaves[-1]._starts[:-1] - self._starts[files]
        self._leaves: tuple[Leaf, ...] = tuple(
            self._gaps(number, leaf) for number, leaf in enumerate(leaves)
        )

    def _gaps(self, form: int, leaf: Leaf) -> Leaf:
        """Return the leaf of a form, which raises the errors of bad files."""
        bad = self._table.bad
        if not bad:
            return leaf
        numbers = [number for number in bad.numbers if self._table.form_of[number] == form]
        return bad.gaps(leaf, (self._starts[numbers] + self._shift[numbers]).tolist(), numbers)

    def _leaf(
        self, form: RecordForm, storage: Storage, places: Indices, counts: Indices, offsets: Indices
    ) -> FormLeaf:
        """Return a leaf of the records of the files of one form."""
        return (ColumnLeaf if form.item_bytes else RowLeaf)(form, storage, places, counts, offsets)

    def __len__(self) -> int:
        return self._length

    def _resolve(self, numbers: Indices) -> list[Share]:
        leaves = self._leaves  # one look: another thread may close the source meanwhile
        if not leaves:
            self.check_open()
        if len(leaves) == 1:
            return [Share(leaves[0], 0, numbers)]
        owners = self._owners(numbers)
        forms, inside = self._table.form_of[owners], numbers + self._shift[owners]
        present = np.unique(forms).tolist()
        if len(present) == 1:
            return [Share(leaves[present[0]], 0, inside)]
        rows_of_forms = [(form, np.flatnonzero(forms == form)) for form in present]
        return [Share(leaves[form], 0, inside[rows], rows) for form, rows in rows_of_forms]

    def _owners(self, numbers: Indices) -> Indices:
        return np.searchsorted(self._starts, numbers, side="right") - 1

    def _where(self, number: int) -> str:
        file = int(self._owners(np.array([number], np.int64))[0])
        return f"{self._files.names[file]}, record {number - int(self._starts[file])}"

    @property
    def files(self) -> SourceFiles:
        """The files, and how many records each has."""
        return SourceFiles(self._files.paths, self._table.counts)

    def _bad_path(self) -> str:
        """Return the path of a file that cannot be opened; "" if there is none."""
        bad = self._table.bad
        if bad:
            return self._files.paths[bad.numbers[0]]
        return ""

    def _digest(self) -> str:
        about = [(describe_layout(form.layout), form.item_bytes) for form in self._table.forms]
        bad = (self._table.bad.numbers,) if self._table.bad else ()
        return self._files.digest(
            about, self._table.form_of.tolist(), list(self._table.counts), *bad
        )
