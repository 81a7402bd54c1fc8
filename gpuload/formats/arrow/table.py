"""Table: an Arrow file or stream, as the metadata of its record batches say: where the bytes of
each column lie.

Rows     of a column lie as NumPy has them where it is of numbers, or of lists of one size of these,
         is not compressed, and has no missing value.
Decoding of a column asks PyArrow to read a stream that is made for it: the schema, the
         dictionaries, and one record batch: of its body the bytes of that column are there, and
         the others are zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gpuload.errors import FormatError
from gpuload.formats import columnar, foreign
from gpuload.formats.arrow import FILE_MAGIC
from gpuload.formats.arrow.messages import Message, RecordBatches, WrongMessage, read_batches, width
from gpuload.formats.base import Beginning
from gpuload.formats.columnar import Column
from gpuload.sources.leaf import Bytes, Indices, starts_of
from gpuload.spec import Part
from gpuload.storage.extents import Extents, Storage
from gpuload.storage.files import Files
from gpuload.storage.inflate import limit_bytes, too_large

CALL = "gl.arrow"
PEEK_BYTES = 1 << 16  # of the values of a column that are read for the first one
LENGTH_BYTES = 8  # in front of a compressed buffer: its bytes when it is unpacked, int64


@dataclass(frozen=True, eq=False)
class ArrowTable:
    """A file or stream.

    Attributes:
        storage: of the files of the source.
        number: which of these it is.
        schema: PyArrow's.
        is_file: False for a stream.
        batches: its record batches.
        widths: the nodes and buffers of each column; None if they are not the same in all record
            batches.
    """

    storage: Storage
    number: int
    schema: Any
    is_file: bool
    batches: RecordBatches
    widths: list[tuple[int, int]] | None
    title: ClassVar[str] = "Arrow"

    @property
    def files(self) -> Files:
        """The files of the source."""
        return self.storage.files

    @property
    def path(self) -> str:
        """The path of the file."""
        return self.files.paths[self.number]

    @property
    def num_rows(self) -> int:
        """How many rows it has."""
        return int(self.batches.rows.sum())

    @property
    def description(self) -> columnar.DatasetFeatures:
        """The features of the columns in the metadata of the library `datasets`."""
        return columnar.describe_features(self.schema.metadata)

    @classmethod
    def open(cls, storage: Storage, number: int, head: bytes) -> ArrowTable:
        """Return a file with its record batches, of which only the metadata were read.

        Raises:
            FormatError: it is no Arrow file or stream.
        """
        path, size = storage.files.paths[number], int(storage.files.sizes[number])

        def read(begins: Indices, lengths: Indices) -> Bytes:
            if len(head) == size:  # it is whole
                pieces = [
                    head[begin : begin + length]
                    for begin, length in zip(begins, lengths, strict=True)
                ]
                return np.frombuffer(b"".join(pieces), np.uint8)
            content = np.empty(int(lengths.sum()), np.uint8)
            extents = Extents(np.full(begins.size, number, np.int64), begins, lengths)
            storage.read(extents, content, starts_of(lengths.tolist())[:-1])
            return content

        with columnar.as_refusal(cls.title, storage.files, number):
            try:
                batches = read_batches(read, size, head)
            except WrongMessage as error:
                foreign.refuse(Beginning(path, size, head))
                raise FormatError(
                    f"{path} is no Arrow file to read",
                    cause=f"{error}; it has {size} bytes",
                    remedy="it was cut short, or is still being written, or is something else: gl.open(path) finds out",
                ) from None
            ipc = columnar.import_arrow(CALL).ipc
            schema = ipc.open_stream(batches.prefix).schema
            if batches.footer and not schema.equals(ipc.open_file(batches.footer).schema):
                raise FormatError(
                    f"{path} has two schemas",
                    cause="that of its footer is another one than that at its beginning: it is damaged",
                    remedy="copy it again",
                )
            widths = [width(field.type) for field in schema]
        return cls.of(storage, number, schema, widths, batches, is_file=head.startswith(FILE_MAGIC))

    @classmethod
    def of(
        cls,
        storage: Storage,
        number: int,
        schema: Any,
        widths: list[tuple[int, int]],
        batches: RecordBatches,
        *,
        is_file: bool,
    ) -> ArrowTable:
        """Return a file with known record batches; ``widths`` are the nodes and buffers of its
        columns."""
        totals = tuple(sum(counts) for counts in zip(*widths, strict=True))
        regular_widths = widths if batches.has(totals) else None
        return cls(storage, number, schema, is_file, batches, regular_widths)

    def first(self, path: columnar.Path) -> list[Any]:
        """Return the value of a column in the first row that the file has; of a long one the
        beginning is enough."""
        for number in np.flatnonzero(self.batches.rows)[:1].tolist():
            begin, end = self.span(path[0])[number].tolist()
            buffers = self._buffers(path[0])
            if buffers is not None and not self.batches.is_packed[number]:
                places, lengths = buffers[number].T
                ends = places + np.append(
                    lengths[:-1], PEEK_BYTES
                )  # the values are the last buffer of a column
                end = min(end, int(ends.max()))
            with columnar.as_damage(f"{self.path}, record batch {number}", self.files, self.number):
                row = self._decode(path[0], number, begin, end).slice(0, 1)
                row.validate(full=True)
                return columnar.python_values(path, row)
        return []

    def decode(self, column: str, number: int, span: Indices) -> Any:
        """Return a record batch with a column alone, checked.

        Args:
            column: its name.
            number: of the record batch.
            span: of it from `span`.
        """
        batch = self._decode(column, number, *span.tolist())
        # PyArrow itself believes the offsets of a file, and would read behind the memory by them.
        batch.validate(full=True)
        return batch

    def _decode(self, column: str, number: int, begin: int, end: int) -> Any:
        """Return a record batch with a column alone: some bytes of its body are read, the others
        are zeros."""
        arrow, prefix, at = (
            columnar.import_arrow(CALL),
            self.batches.prefix,
            int(self.batches.begins[number]),
        )
        metadata, body = int(self.batches.metadata[number]), int(self.batches.bodies[number])
        content = np.zeros(len(prefix) + metadata + body, np.uint8)
        content[: len(prefix)] = np.frombuffer(prefix, np.uint8)
        begins, lengths = np.array([0, metadata + begin]), np.array([metadata, end - begin])
        owner = np.full(2, self.number, np.int64)
        self.storage.read(Extents(owner, at + begins, lengths), content, len(prefix) + begins)
        if self.batches.is_packed[number]:
            self._check_size(column, number, content[len(prefix) :])
        # One thread: the others decode other blocks meanwhile.
        options = arrow.ipc.IpcReadOptions(
            included_fields=[self.schema.get_field_index(column)], use_threads=False
        )
        return arrow.ipc.open_stream(arrow.py_buffer(content), options=options).read_next_batch()

    def _check_size(self, column: str, number: int, message: Bytes) -> None:
        """Refuse a column that unpacks to more bytes than is allowed: each buffer says its own in
        front.

        Raises:
            FormatError: it does.
        """
        metadata, num_bytes = int(self.batches.metadata[number]), 0
        buffers = Message.parse(message[:metadata].tobytes()).buffers
        if self.widths is not None:
            _, first, count = self._first(column)
            buffers = buffers[first : first + count]
        for begin in buffers[(buffers > [-1, 0]).all(axis=1), 0].tolist():
            head = message[metadata + begin : metadata + begin + LENGTH_BYTES].tobytes()
            num_bytes += max(0, int.from_bytes(head, "little", signed=True))
        if num_bytes > limit_bytes(packed_bytes := int(self.files.sizes[self.number])):
            raise too_large(
                f"{self.path}, record batch {number}",
                packed_bytes,
                num_bytes,
                unpack="with PyArrow",
            )

    def _first(self, column: str) -> tuple[int, int, int]:
        """Return the number of the first node of a column, of its first buffer, and how many
        buffers it has."""
        place, widths = self.schema.get_field_index(column), self.widths or []
        return (
            sum(nodes for nodes, _ in widths[:place]),
            sum(count for _, count in widths[:place]),
            widths[place][1],
        )

    def _buffers(self, column: str) -> Indices | None:
        """Return place and bytes of the buffers of a column in each record batch,
        ``[n, num_buffers, 2]``."""
        if self.widths is None:
            return None
        _, first, count = self._first(column)
        return self.batches.buffers[:, first : first + count]

    def span(self, column: str) -> Indices:
        """Return where the bytes of a column begin and end in the body of each record batch, int64
        ``[n, 2]``.

        Raises:
            FormatError: they lie outside of it.
        """
        bodies, buffers = self.batches.bodies[:, None], self._buffers(column)
        if buffers is None:
            return np.concatenate([np.zeros_like(bodies), bodies], axis=1)
        begins, lengths = buffers.transpose(2, 0, 1)
        is_outside = (lengths != 0) & (
            (begins < 0) | (lengths < 0) | (begins > bodies) | (lengths > bodies - begins)
        )
        lengths_differ = self.batches.nodes[:, self._first(column)[0], 0] != self.batches.rows
        is_wrong = is_outside.any(axis=1) | lengths_differ
        if is_wrong.any():
            raise FormatError(
                f"{self.path}, record batch {int(is_wrong.argmax())}: column {column!r} lies outside of it, or has "
                "another length",
                cause="its metadata say so: they are damaged",
                remedy="copy the file again",
            )
        first = np.where(lengths, begins, bodies).min(axis=1)
        after = np.where(lengths, begins + lengths, 0).max(axis=1)
        return np.stack([np.minimum(first, after), after], axis=1)

    def places(self, column: Column) -> Indices | None:
        """Return the byte where the values of a column begin in each record batch; None if they
        must be decoded."""
        field, batches, buffers = column.field, self.batches, self._buffers(column.path[0])
        if (
            len(column.path) > 1
            or not field.has_rows
            or not field.dtype.itemsize
            or 0 in field.fixed_shape
        ):
            return None
        if buffers is None or batches.is_packed.any() or not batches.is_little:
            return None
        missing = batches.nodes[:, self._first(column.path[0])[0] :, 1]
        arrow_type, count, depth = (
            self.schema.field(column.path[0]).type,
            1,
            0,
        )  # of lists in one another
        while hasattr(arrow_type, "storage_type") or str(arrow_type).startswith("fixed_size_list<"):
            if hasattr(arrow_type, "storage_type"):
                arrow_type = arrow_type.storage_type
            else:
                count, depth = count * arrow_type.list_size, depth + 1
                arrow_type = arrow_type.value_type
        is_binary = str(arrow_type).startswith("fixed_size_binary[")
        value_bytes = arrow_type.byte_width if is_binary else field.dtype.itemsize
        row_bytes = count * value_bytes
        is_same = is_binary or columnar.has_bytes_of(arrow_type, field.dtype)
        if not is_same or row_bytes != Part(field, field.dtype, 0).num_bytes:
            return None
        # Each list has one buffer, the bits of missing lists; the values have such a buffer, too,
        # in front of theirs.
        begins, lengths = buffers[:, depth + 1].T
        fits = (missing[:, : depth + 1] == 0).all(axis=1) & (batches.rows <= lengths // row_bytes)
        if not fits[batches.rows > 0].all():
            return None
        return np.where(batches.rows > 0, batches.begins + batches.metadata + begins, 0)
