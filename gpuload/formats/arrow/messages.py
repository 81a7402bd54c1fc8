"""Messages: where the record batches of Arrow files and streams lie, as their metadata say.

Layout   A stream is messages, one behind the other: the schema, dictionaries, record batches. A
         message is a head, the metadata, and a body. The head is FF FF FF FF and the bytes of the
         metadata; before Arrow 0.15 these alone. A file is the magic, a stream, and a footer with
         the place of each message; the footer's bytes and the magic end it.
Metadata are tables of FlatBuffers. Of these the numbers below are read here, and the bytes behind
         them nowhere; PyArrow reads schemas and decodes bodies.
Body     A record batch is nodes (length, missing values) and buffers (place in the body, bytes),
         those of the columns one behind the other. How many of each a column has follows from its
         type (`width`).
Trust    Each place is compared with the bytes that are there before it is read.
Source   https://arrow.apache.org/docs/format/Columnar.html and format/{Schema,Message,File}.fbs
         beside it; https://flatbuffers.dev/internals/
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.formats.arrow import FILE_MAGIC
from gpuload.sources.leaf import Indices

SCHEMA, DICTIONARY, BATCH = 1, 2, 3  # kinds of messages
CONTINUATION = b"\xff\xff\xff\xff"
OLD_COMPRESSION = b"ARROW:experimental_compression"  # metadata of version 4
HEAD_BYTES = 8
END = struct.Struct("<i6s")  # of a file: bytes of the footer, and the magic without its padding
WINDOW_BYTES = 1 << 16  # of a file that are read at a time where messages are looked for
LARGEST_METADATA_BYTES = 1 << 26
MOST_ROWS = 1 << 62
MOST_METADATA_BYTES = 1 << 26  # of messages that are read together
BLOCK = np.dtype([("begin", "<i8"), ("metadata", "<i4"), ("padding", "<i4"), ("body", "<i8")])
PAIR = np.dtype("<i8")
WITHOUT_VALIDITY = (
    "null",
    "sparse_union",
    "dense_union",
    "run_end_encoded",
)  # types that have no such buffer here

Read = Callable[
    [Indices, Indices], NDArray[np.uint8]
]  # returns the bytes at places, of lengths, all in a row


class WrongMessage(ValueError):
    """Metadata contradict themselves or the file."""


class FlatTable:
    """A table of FlatBuffers: its numbers are found by their slots, and each is inside of the
    bytes.

    Args:
        content: the bytes of the buffer.
        place: of the table; None: the root of the buffer.
    """

    def __init__(self, content: bytes, place: int | None = None) -> None:
        self._content = content
        if place is None:
            self._place = self._read("<I", 0)
        else:
            self._place = place
        self._slots = self._place - self._read("<i", self._place)
        self._slots_bytes = self._read("<H", self._slots)

    def _read(self, form: str, place: int) -> int:
        if not 0 <= place <= len(self._content) - struct.calcsize(form):
            raise WrongMessage("its metadata lead outside of themselves")
        number: int = struct.unpack_from(form, self._content, place)[0]
        return number

    def _find(self, slot: int) -> int | None:
        """Return the place of a value; None: it is not there, and has its default."""
        entry = 4 + 2 * slot
        if entry + 2 > self._slots_bytes:
            return None
        offset = self._read("<H", self._slots + entry)
        return self._place + offset if offset else None

    def number(self, slot: int, form: str) -> int:
        """Return a number; 0 where it is not there."""
        place = self._find(slot)
        if place is None:
            return 0
        return self._read(form, place)

    def table(self, slot: int) -> FlatTable | None:
        """Return a table inside of this one."""
        place = self._find(slot)
        if place is None:
            return None
        return FlatTable(self._content, place + self._read("<I", place))

    def array(self, slot: int, dtype: np.dtype[Any], count: int = 1) -> NDArray[Any]:
        """Return structures of ``count`` values each, ``[n]`` or ``[n, count]``; none where they
        are not there."""
        place = self._find(slot)
        if place is None:
            length = 0
        else:
            length = self._read("<I", begin := place + self._read("<I", place))
        shape = (length,) if count == 1 else (length, count)
        if not length:
            return np.zeros(shape, dtype)
        if length * count * dtype.itemsize > len(self._content) - begin - 4:
            raise WrongMessage("a list in its metadata is longer than these")
        return np.frombuffer(self._content, dtype, length * count, begin + 4).reshape(shape)


@dataclass(frozen=True)
class Message:
    """The metadata of a message.

    Attributes:
        kind: SCHEMA, DICTIONARY, BATCH, or another.
        body_bytes: of its body.
        about: the table of its kind.
        has_old_compression: True if custom metadata say that its buffers are compressed, as Arrow
            0.17 wrote them.
    """

    kind: int
    body_bytes: int
    about: FlatTable
    has_old_compression: bool

    @classmethod
    def parse(cls, content: bytes) -> Message:
        """Return a message from its bytes, which begin with its head."""
        if content.startswith(CONTINUATION):
            begin = HEAD_BYTES
        else:
            begin = 4
        table = FlatTable(bytes(content[begin:]))
        about, body_bytes = table.table(2), table.number(3, "<q")
        if about is None or body_bytes < 0:
            raise WrongMessage("a message has no content")
        # The key is enough: PyArrow decodes such buffers, and reads the value.
        has_old_compression = OLD_COMPRESSION in content and table.table(4) is not None
        return cls(table.number(1, "<B"), body_bytes, about, has_old_compression)

    @property
    def is_little(self) -> bool:
        """True for a schema with little-endian numbers."""
        return not self.about.number(0, "<h")

    @property
    def rows(self) -> int:
        """The rows of a record batch."""
        return self.about.number(0, "<q")

    @property
    def nodes(self) -> Indices:
        """Length and missing values of each node of a record batch, ``[n, 2]``."""
        return self.about.array(1, PAIR, 2)

    @property
    def buffers(self) -> Indices:
        """Place and bytes of each buffer of a record batch, ``[n, 2]``."""
        return self.about.array(2, PAIR, 2)

    @property
    def is_packed(self) -> bool:
        """True for a record batch with compressed buffers."""
        return self.has_old_compression or self.about.table(3) is not None


@dataclass(eq=False)
class RecordBatches:
    """The record batches of a file; int64 ``[n]`` where nothing else is said.

    Attributes:
        prefix: the bytes of the schema and of all dictionaries: a stream of these and one record
            batch is whole.
        footer: of a file, a file of its own in which nothing but the schema is; of a stream b"".
        is_little: True if numbers are little-endian.
        begins: the byte where each begins.
        metadata, bodies: the bytes of its two parts.
        rows: of each.
        is_packed: bool ``[n]``, True if its buffers are compressed.
        nodes: int64 ``[n, num_nodes, 2]``, length and missing values.
        buffers: int64 ``[n, num_buffers, 2]``, place in the body and bytes.
    """

    prefix: bytes
    footer: bytes
    is_little: bool
    begins: Indices
    metadata: Indices
    bodies: Indices
    rows: Indices
    is_packed: NDArray[np.bool_]
    nodes: Indices
    buffers: Indices

    @classmethod
    def of(
        cls,
        prefix: bytes,
        footer: bytes,
        is_little: bool,
        places: Indices,
        messages: Sequence[Message],
    ) -> RecordBatches:
        """Return record batches at places ``[n, 3]``: where each begins, bytes of metadata, bytes
        of the body."""
        rows = np.array([message.rows for message in messages], np.int64)
        # Added up as float64: the sum of damaged numbers would wrap round in int64, and look right.
        if rows.size and (int(rows.min()) < 0 or float(rows.sum(dtype=np.float64)) >= MOST_ROWS):
            raise WrongMessage("a record batch has a number of rows that cannot be")
        flags = np.array([message.is_packed for message in messages], np.bool_)
        pairs = (_stack([m.nodes for m in messages]), _stack([m.buffers for m in messages]))
        begins, metadata, bodies = places.reshape(-1, 3).T.copy()
        return cls(prefix, footer, is_little, begins, metadata, bodies, rows, flags, *pairs)

    @classmethod
    def join(cls, parts: Sequence[RecordBatches]) -> RecordBatches:
        """Return the record batches of files that begin alike, one behind the other."""
        if len(parts) == 1:
            return parts[0]
        first, pairs = parts[0], list[Indices]()
        for arrays in ([part.nodes for part in parts], [part.buffers for part in parts]):
            if len({array.shape[1] for array in arrays}) > 1:
                arrays = [array[:, :0] for array in arrays]
            pairs.append(np.concatenate(arrays))
        begins, metadata, bodies, rows, flags = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("begins", "metadata", "bodies", "rows", "is_packed")
        )
        return cls(
            first.prefix, b"", first.is_little, begins, metadata, bodies, rows, flags, *pairs
        )

    def has(self, counts: tuple[int, ...]) -> bool:
        """Return True if each record batch has so many nodes and buffers."""
        return (self.nodes.shape[1], self.buffers.shape[1]) == counts

    def forget_buffers(self) -> None:
        """Let go of nodes and buffers."""
        self.nodes, self.buffers = self.nodes[:0], self.buffers[:0]


def _stack(pairs: Sequence[Indices]) -> Indices:
    """Return the pairs of all record batches, ``[n, num_pairs, 2]``; ``[n, 0, 2]`` if their numbers
    differ."""
    counts = {len(array) for array in pairs}
    if len(counts) == 1:
        return np.stack(pairs)
    return np.zeros((len(pairs), 0, 2), np.int64)


def width(arrow_type: Any) -> tuple[int, int]:
    """Return how many nodes and buffers a column of a type has; views have more buffers if their
    texts are long."""
    while hasattr(arrow_type, "storage_type"):
        arrow_type = arrow_type.storage_type
    kind = str(arrow_type).partition("<")[0]
    inner = [width(arrow_type.field(number).type) for number in range(arrow_type.num_fields)]
    if inner:
        nodes, buffers = (sum(counts) for counts in zip(*inner, strict=True))
    else:
        nodes, buffers = (0, 0)
    return 1 + nodes, arrow_type.num_buffers - (kind in WITHOUT_VALIDITY) + buffers


# --- files and streams


def read_batches(read: Read, size: int, head: bytes) -> RecordBatches:
    """Return the record batches of a file or stream.

    Args:
        read: of its bytes.
        size: its bytes.
        head: the first of them.

    Raises:
        WrongMessage: it ends too early, or contradicts itself.
    """
    window = _Window(read, size, head)
    if head.startswith(FILE_MAGIC):
        return _read_file(read, size, window)
    content, after = window.message(0)
    if content is None or (schema := Message.parse(content)).kind != SCHEMA:
        raise WrongMessage("it does not begin with a schema")
    return _read_stream(window, after + schema.body_bytes, schema.is_little)


class _Window:
    """Bytes of a file in which messages are looked for."""

    def __init__(self, read: Read, size: int, head: bytes) -> None:
        self._read, self._size, self._content, self._begin = read, size, head, 0

    def take(self, begin: int, length: int, at_least: int = WINDOW_BYTES) -> bytes:
        """Return bytes of the file."""
        if not 0 <= begin <= self._size - length:
            raise WrongMessage(f"{length} bytes at byte {begin} are not there")
        if not self._begin <= begin <= self._begin + len(self._content) - length:
            num_bytes = max(length, min(at_least, self._size - begin))
            self._content, self._begin = (
                self._read(np.array([begin]), np.array([num_bytes])).tobytes(),
                begin,
            )
        return self._content[begin - self._begin : begin - self._begin + length]

    def message(self, begin: int) -> tuple[bytes | None, int]:
        """Return head and metadata of a message, and where its body begins; None: the stream ends
        there."""
        if begin == self._size:
            return None, begin
        head = self.take(begin, min(HEAD_BYTES, self._size - begin))
        if head.startswith(CONTINUATION):
            length_at = 4
        else:
            length_at = 0
        if len(head) < length_at + 4:
            raise WrongMessage(f"it ends inside of the message at byte {begin}")
        length: int = struct.unpack_from("<i", head, length_at)[0]
        if not length:
            return None, begin
        if not 0 < length <= LARGEST_METADATA_BYTES:
            raise WrongMessage(f"the message at byte {begin} has {length} bytes of metadata")
        content = self.take(begin, length_at + 4 + length)
        return content, begin + len(content)


def _read_stream(window: _Window, place: int, is_little: bool) -> RecordBatches:
    """Return the record batches of a stream; its second message begins at a place."""
    places, messages, after = list[tuple[int, int, int]](), list[Message](), place
    while True:
        content, body = window.message(place)
        if content is None:
            break
        message = Message.parse(content)
        begin, place = place, body + message.body_bytes
        # Nothing is read by this: it raises an error where the body does not end inside of the
        # file.
        window.take(place, 0, 0)
        if message.kind == BATCH:
            places.append((begin, body - begin, message.body_bytes))
            messages.append(message)
        # All before the first record batch is the prefix. Dictionaries behind it are not
        # needed: `source.py` refuses columns of them in streams.
        elif not places:
            after = place
    prefix = window.take(0, after, 0)
    return RecordBatches.of(prefix, b"", is_little, np.array(places, np.int64), messages)


def _schema_of(window: _Window, end: int) -> bytes:
    """Return the message of the schema of a file; Polars 2 writes it without its head.

    Args:
        window: of the file.
        end: where the first message behind it begins.
    """
    begin = len(FILE_MAGIC)
    try:
        content, _ = window.message(begin)
        if content is not None and Message.parse(content).kind == SCHEMA:
            return content
    except WrongMessage:
        pass
    if not 0 < end - begin <= LARGEST_METADATA_BYTES:
        raise WrongMessage("it does not begin with a schema")
    metadata = window.take(begin, end - begin)
    content = CONTINUATION + struct.pack("<i", len(metadata)) + metadata
    if Message.parse(content).kind != SCHEMA:
        raise WrongMessage("it does not begin with a schema")
    return content


def _read_file(read: Read, size: int, window: _Window) -> RecordBatches:
    """Return the record batches of a file."""

    def read_at(begins: Any, lengths: Any) -> bytes:
        return read(np.asarray(begins, np.int64), np.asarray(lengths, np.int64)).tobytes()

    tail_bytes = min(WINDOW_BYTES, size)
    tail = read_at([size - tail_bytes], [tail_bytes])
    if size >= END.size:
        footer_bytes, magic = END.unpack(tail[-END.size :])
    else:
        footer_bytes, magic = (0, b"")
    if not FILE_MAGIC.startswith(magic) or not magic or not 0 < footer_bytes <= size - END.size:
        raise WrongMessage("it does not end as Arrow files do")
    begin = size - END.size - footer_bytes
    in_tail = begin - (size - tail_bytes)
    if in_tail >= 0:
        content = tail[in_tail : -END.size]
    else:
        content = read_at([begin], [footer_bytes])
    footer = FlatTable(content)
    dictionaries, batches = (_places_of(footer.array(slot, BLOCK), size) for slot in (2, 3))
    schema = _schema_of(window, min([begin, *dictionaries[:, 0].tolist(), *batches[:, 0].tolist()]))
    messages = list[Message]()
    for metadata in _metadata_of(read_at, batches):
        messages.append(Message.parse(metadata))
        if messages[-1].kind != BATCH or messages[-1].body_bytes != batches[len(messages) - 1, 2]:
            raise WrongMessage(
                f"its record batch {len(messages) - 1} is none, or another one than its footer says"
            )
    prefix = schema + read_at(dictionaries[:, 0], dictionaries[:, 1:].sum(axis=1))
    is_little = Message.parse(schema).is_little
    return RecordBatches.of(
        prefix, FILE_MAGIC + content + tail[-END.size :], is_little, batches, messages
    )


def _places_of(blocks: NDArray[Any], size: int) -> Indices:
    """Return where messages lie, as the footer says, ``[n, 3]``: each inside of the file, all
    together no longer."""
    places = [(begin, metadata, body) for begin, metadata, _, body in blocks.tolist()]
    for begin, metadata, body in places:
        if (
            begin < 0
            or body < 0
            or begin + metadata + body > size
            or not HEAD_BYTES < metadata <= LARGEST_METADATA_BYTES
        ):
            raise WrongMessage("its footer names places that are not there")
    if sum(metadata + body for _, metadata, body in places) > size:
        raise WrongMessage("its footer names more bytes than there are")
    return np.array(places, np.int64).reshape(-1, 3)


def _metadata_of(read_at: Callable[[Any, Any], bytes], places: Indices) -> list[bytes]:
    """Return head and metadata of messages; many are read together."""
    contents, first = list[bytes](), 0
    ends = np.cumsum(places[:, 1])
    while first < len(places):
        before = int(ends[first - 1]) if first else 0
        after = max(
            first + 1, int(np.searchsorted(ends, before + MOST_METADATA_BYTES, side="right"))
        )
        raw = read_at(places[first:after, 0], places[first:after, 1])
        edges = [0, *(ends[first:after] - before).tolist()]
        contents += [raw[begin:end] for begin, end in itertools.pairwise(edges)]
        first = after
    return contents
