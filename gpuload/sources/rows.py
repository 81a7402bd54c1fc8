"""Records of fixed size in files: record i at offset + i * record_bytes; many files are one sequence.

Forms   files may store the same fields differently: byte order, C or Fortran order, padding. Where all agree, blocks
        hold the bytes as stored; where they do not, blocks are native and C order, converted while they are filled.
Access  `maps.py` where Numba is, `plain.py` elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuload import rawdecode
from gpuload.errors import ClosedError, SpecError
from gpuload.sources import maps
from gpuload.sources.base import Indices, Source
from gpuload.sources.files import Files
from gpuload.sources.layouts import packed
from gpuload.sources.maps import Copier, MappedReader
from gpuload.sources.places import Places
from gpuload.sources.plain import PlainReader
from gpuload.spec import Layout, Spec

Block = NDArray[np.uint8]
MAP_FROM = 8  # records in a file that are worth a map: it costs some three times what reading one record does


@dataclass(frozen=True)
class Form:
    """How a file stores its records.

    Attributes:
        layout: where the fields lie in a record, once its bytes are together in C order.
        row_shape: for a file in Fortran order the shape of a record in items, else empty.
        item_bytes: for a file in Fortran order the bytes of an item.
    """

    layout: Layout
    row_shape: tuple[int, ...] = ()
    item_bytes: int = 0

    @property
    def scattered(self) -> bool:
        """True if the items of a record do not lie side by side in the file."""
        return bool(self.row_shape)

    def places(self) -> NDArray[np.int64]:
        """Return the byte in a record of each item, in the order in which a file in Fortran order has the items."""
        items = np.arange(int(np.prod(self.row_shape)), dtype=np.int64).reshape(self.row_shape)
        return items.ravel(order="F") * self.item_bytes


@dataclass(frozen=True)
class Stored:
    """What files hold: for each file how many records, where they begin, and in which form.

    Attributes:
        files: the files.
        counts: int64 ``[num_files]``, records.
        offsets: int64 ``[num_files]``, the byte where the first record begins.
        forms: the different forms.
        form_of: int64 ``[num_files]``, which of ``forms`` each file has.
    """

    files: Files
    counts: NDArray[np.int64]
    offsets: NDArray[np.int64]
    forms: tuple[Form, ...]
    form_of: NDArray[np.int64]


class RecordFiles(Source):
    """Records of fixed size in files."""

    def __init__(self, stored: Stored) -> None:
        self._stored, self._files = stored, stored.files
        self._starts = np.concatenate([[0], np.cumsum(stored.counts)]).astype(np.int64)
        self._length = int(self._starts[-1])
        self._places = [form.places() if form.scattered else None for form in stored.forms]
        layout = stored.forms[0].layout if len(stored.forms) == 1 else packed(stored.forms[0].layout)
        self._direct = [form.layout == layout for form in stored.forms]
        self.blocks = (layout,)
        self.spec = Spec(tuple(part.field for part in layout.parts))
        self._reader: MappedReader | PlainReader | None = self._open_reader()
        self.has_places = self.copier() is not None

    def _open_reader(self) -> MappedReader | PlainReader:
        if not maps.supported():
            return PlainReader(self._files, self._starts, self._stored.offsets)
        scattered = np.array([form.scattered for form in self._stored.forms])[self._stored.form_of]
        mapped = (self._stored.counts >= MAP_FROM) | scattered
        return MappedReader(self._files, self._starts, self._stored.offsets, mapped)

    def __len__(self) -> int:
        return self._length

    def fill(self, indices: Indices, rows: Indices, out: Sequence[Block]) -> None:
        """Write the raw bytes of records into rows of a block; see ``Source.fill``."""
        reader = still_open(self._reader)
        indices, rows = _plain(indices), _plain(rows)
        _check_block(out[0], self.blocks[0].record_bytes, indices, rows)
        if len(self._direct) == 1:
            self._gather(reader, 0, indices, rows, out[0])
        else:
            self._convert(reader, indices, rows, out[0])

    def places(self, indices: Indices) -> Places:
        """Return where records lie, if all files store them in one form; see ``Source.places``."""
        copier = self.copier()
        return Places() if copier is None else copier.reader.places(copier.chosen(indices), copier.record_bytes)

    def copier(self) -> Copier | None:
        """Return how records are copied where all files store them in one form, as they are handed out."""
        form = self._stored.forms[0]
        if isinstance(self._reader, MappedReader) and len(self._stored.forms) == 1 and not form.scattered:
            return Copier(self._reader, form.layout.record_bytes, self._if_open)
        return None

    def _if_open(self, indices: Indices) -> Indices:
        still_open(self._reader)
        return _plain(indices)

    def _gather(
        self, reader: MappedReader | PlainReader, form: int, indices: Indices, rows: Indices, block: Block
    ) -> None:
        """Write the bytes of records that have one form, as they are stored."""
        places, stored = self._places[form], self._stored.forms[form]
        if places is None:
            reader.copy(indices, rows, block, stored.layout.record_bytes)
        elif not reader.copy_columns(indices, rows, block, stored.item_bytes, places):
            plain = PlainReader(self._files, self._starts, self._stored.offsets)
            plain.copy_columns(indices, rows, block, stored.item_bytes, places)

    def _convert(self, reader: MappedReader | PlainReader, indices: Indices, rows: Indices, block: Block) -> None:
        """Write records of several forms, native and in C order."""
        files = np.searchsorted(self._starts, indices, side="right") - 1
        forms = self._stored.form_of[files]
        for form in np.unique(forms).tolist():
            chosen = np.flatnonzero(forms == form)
            if self._direct[form]:
                self._gather(reader, form, indices[chosen], rows[chosen], block)
                continue
            layout = self._stored.forms[form].layout
            raw = np.empty((chosen.size, layout.record_bytes), np.uint8)
            self._gather(reader, form, indices[chosen], np.arange(chosen.size), raw)
            for stored, native in zip(layout.parts, self.blocks[0].parts, strict=True):
                rawdecode.stored(block, native)[rows[chosen]] = rawdecode.stored(raw, stored)

    def where(self, index: int) -> str:
        """Return the file and the record within it."""
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        return f"{self._files.names[number]}, record {index - int(self._starts[number])}"

    def fingerprint(self) -> str:
        """Return a short text of the names and sizes of the files and how they store what."""
        about = [(form.layout, form.row_shape) for form in self._stored.forms]
        return self._files.digest(about, self._stored.form_of.tolist(), self._stored.counts.tolist())

    def describe(self) -> str:
        """Return how records are read."""
        return "closed" if self._reader is None else self._reader.how

    def close(self) -> None:
        """Undo the maps, as soon as no thread reads from them any more."""
        super().close()
        self._reader = None


def still_open(reader: MappedReader | PlainReader | None) -> MappedReader | PlainReader:
    """Return the reader of a source.

    Raises:
        ClosedError: the source was closed.
    """
    if reader is None:
        raise ClosedError("the source is closed", cause="close() was called", remedy="read before closing")
    return reader


def _plain(numbers: Indices) -> Indices:
    """Return the numbers as an array of the one kind that the kernels are compiled for."""
    numbers = np.ascontiguousarray(numbers, np.int64)
    return numbers if numbers.flags.writeable else numbers.copy()


def _check_block(block: Block, record_bytes: int, indices: Indices, rows: Indices) -> None:
    """Check what the kernels rely on: they write to addresses."""
    of_bytes = block.dtype == np.uint8 and block.ndim == 2 and block.shape[1] == record_bytes
    side_by_side = of_bytes and (block.strides[1] == 1 or not block.size) and block.flags.writeable
    if not side_by_side or indices.ndim != 1 or indices.shape != rows.shape:
        raise SpecError(
            f"a block of {block.dtype} {block.shape} for {indices.shape} indices and {rows.shape} rows",
            cause=f"records of this source go into a writeable block of uint8 (rows, {record_bytes})",
            remedy="make it as Source.blocks says, with a row for each index",
        )
