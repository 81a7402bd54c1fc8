"""Cache: the values of a source, stored in memory or in files, so that their cost is paid once.

    source.cache(memory="2GB")        read now, all of it, into at most so many bytes
    source.cache(path="cache/train")  read now, into files below that folder; opened at once the
                                      next time

When    All records are read when the cache is made, with progress, and not while batches are: so it
        is known before the training whether they fit and can be read, and any batch may be asked
        for first.
Layout  Fields of one shape lie in rows in native byte order; of the others there is a payload,
        where each record begins, and shapes where several axes vary. A record that was parsed (a
        tf.Example, say) is not parsed again.
Same    The records, their numbers and the fingerprint are those of the source, and so is every
        batch and saved state.
Files   each piece is a kept file (`storage/keptfile.py`), private and with checksums: one that is
        damaged is made anew. cache.json stands for all of them and is written last, by one process
        while others wait (`storage/derivedfiles.py`). It names the source's fingerprint, and files
        of other data are refused. They are as this machine has numbers. If a foreign file has the
        name of a piece, the pieces get other names. No link is followed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload import signalsafe, strings, threads
from gpuload.errors import FileError, FormatError, RecordError, SpecError, TooLargeError
from gpuload.progress import Progress
from gpuload.ragged import Ragged, offsets_of
from gpuload.sources import filtering
from gpuload.sources.layouts import compact_layout, describe_layout
from gpuload.sources.leaf import (
    Array,
    Bytes,
    Fields,
    Group,
    Indices,
    Leaf,
    Values,
    check_places,
    gather_rows,
)
from gpuload.sources.readable import Readable
from gpuload.spec import Field, Layout, Part, Spec
from gpuload.storage import derivedfiles, keptfile, open_storage, privatefiles
from gpuload.storage.extents import Extents, Storage
from gpuload.storage.files import check_name, read_bytes

UNITS = {"": 1, "B": 1, **{f"{unit}B": 1000**power for power, unit in enumerate("KMGT", 1)}}
UNITS |= {f"{unit}iB": 1024**power for power, unit in enumerate("KMGT", 1)}
AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?i?B?)\s*", re.IGNORECASE)
IN_MEMORY = "cached in memory"
INDEX, FORMAT, VERSION = "cache.json", "gpuload cache", 2
# The beginning of an index; the old one is that of version 1.
MARK, OLD_MARK = b'{"format": "gpuload cache"', b'{\n "format": "gpuload cache"'
LARGEST_INDEX_BYTES = 1 << 24
log = logging.getLogger("gpuload")
AT_ONCE = 1 << 20  # records of which it is asked how long they are
INT64, UINT8 = np.dtype(np.int64), np.dtype(np.uint8)


@dataclass(frozen=True)
class CacheColumn:
    """A group of fields of one size, or one field whose shape varies: they are stored together.

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


AddPiece = Callable[
    [int, str, Array], None
]  # number of a column, kind of a piece, values to append


def in_memory(source: Readable, budget: int | str) -> CachedValues:
    """Return the values of a source in memory.

    Raises:
        SpecError: the budget is no number of bytes.
        TooLargeError: the values need more.
        RecordError, FileError: a record or its file cannot be read.
    """
    budget_bytes = num_bytes_of(budget)
    columns = columns_of(source)
    known_bytes = _known_bytes(source, columns)
    # Before the first record is read: else it would be known after minutes, with the memory full.
    if known_bytes > budget_bytes:
        raise _too_large(source, known_bytes, budget_bytes, "")
    buffers = {
        (number, kind): bytearray()
        for number, column in enumerate(columns)
        for kind in column.kinds
    }
    total = 0

    def add_piece(number: int, kind: str, values: Array) -> None:
        nonlocal total
        total += values.nbytes
        if total > budget_bytes:
            raise _too_large(source, total, budget_bytes, " and there are more")
        try:
            # A bytearray grows in place; a list of arrays, joined at the end, would take twice the
            # memory.
            buffers[number, kind] += np.ascontiguousarray(values).reshape(-1).view(UINT8).data
        except MemoryError as error:
            raise TooLargeError(
                f"{total} bytes of the cache of {source._line()}",
                cause=f"there is not so much memory: {error}",
                remedy="cache to files: source.cache(path=...)",
            ) from None

    _fill(source, columns, add_piece)
    arrays = {key: np.frombuffer(piece, UINT8) for key, piece in buffers.items()}
    leaves = [
        _memory_leaf(number, column, arrays, len(source)) for number, column in enumerate(columns)
    ]
    return CachedValues(_groups(columns), tuple(leaves), total, f"{IN_MEMORY}, {total} bytes")


def in_files(source: Readable, folder: str | os.PathLike[str]) -> CachedValues:
    """Return the values of a source in files below a folder; they are made if they are not there.

    Raises:
        FileError: the files are of other data, something of others stands there, other users may
            write to the folder, or the files cannot be written.
        FormatError: a file is damaged. It is removed, and the next call makes the cache anew.
        RecordError: a record cannot be read.
    """
    if (
        not isinstance(folder, (str, os.PathLike))
        or not isinstance(os.fspath(folder), str)
        or not os.fspath(folder)
    ):
        raise SpecError(
            f"cache(path={folder!r})",
            cause="it is the path of a folder",
            remedy="write path='cache/train'",
        )
    check_name(os.fspath(folder))
    path = os.path.abspath(os.path.expanduser(os.fspath(folder)))
    if os.path.exists(path) and not os.path.isdir(path):
        raise FileError(
            f"{path} is no folder", cause="a file has this name", remedy="choose another path"
        )
    columns = columns_of(source)
    about = {
        "format": FORMAT,
        "version": VERSION,
        "source": source.fingerprint(),
        "records": len(source),
        "byte_order": sys.byteorder,
        "columns": [_about(column) for column in columns],
    }

    if os.path.isdir(path):
        # The real folder: the user may name it by a link, the mode that counts is that of what the
        # link leads to.
        privatefiles.check_private(os.path.realpath(path))

    def load(index: str) -> CachedValues | None:
        return _load(index, about, columns, source)

    def make(part: str) -> None:
        prefix = _free_prefix(path, columns, about)
        digests = _write(path, prefix, columns, source, about)
        with keptfile.Writer(part, FORMAT) as writer:
            writer.write(
                json.dumps({**about, "prefix": prefix, "digests": digests}).encode("ascii")
            )
            writer.end()

    return derivedfiles.load_or_make(
        [os.path.join(path, INDEX)], load, make, is_ours=_is_cache_index
    )


def num_bytes_of(budget: int | str) -> int:
    """Return the number of bytes that a number, or a text like ``"2GB"`` or ``"1.5GiB"``, says.

    Raises:
        SpecError: it says no number of bytes.
    """
    if isinstance(budget, (int, np.integer)) and not isinstance(budget, bool) and budget > 0:
        return int(budget)
    if isinstance(budget, str):
        match = AMOUNT.fullmatch(budget)
    else:
        match = None
    units = {unit.lower(): size for unit, size in UNITS.items()}
    if match is not None and match[2].lower() in units:
        amount = float(match[1]) * units[match[2].lower()]
        if 1 <= amount < math.inf:
            return int(amount)
    raise SpecError(
        f"cache(memory={budget!r})",
        cause="it is the most bytes that the values may take",
        remedy='write memory="2GB" or memory=2_000_000_000',
    )


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


def _groups(columns: Sequence[CacheColumn]) -> tuple[Group, ...]:
    return tuple(Group(column.spec, column.layout) for column in columns)


def _about(column: CacheColumn) -> Any:
    if column.layout is not None:
        return json.loads(json.dumps(describe_layout(column.layout)))
    field = column.spec.fields[0]
    text = [field.text] if field.text else []
    return [field.name, field.dtype.str, None if field.shape is None else list(field.shape), *text]


# --- filling

WITHOUT_DAMAGE = (
    "repair it, or leave it out before: damaged = {bad.record for bad in gl.check(source)}; "
    "source.select([number for number in range(len(source)) if number not in damaged]).cache(...)"
)


def _fill(source: Readable, columns: Sequence[CacheColumn], add_piece: AddPiece) -> None:
    """Read all records, in chunks and by all cores, and append their values in order."""
    names, num_threads = source.spec.names, threads.num_cores()
    stop_flags: list[bool] = []

    def read(numbers: Indices) -> Fields:
        if stop_flags:
            return {}
        try:
            return source.read_groups(numbers, names)
        except (
            RecordError
        ) as error:  # no loader is here yet whose on_error= would pass the record over
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
        # Zeros: gaps between fields are stored, too, and must not hold what was in this memory
        # before.
        rows = np.zeros(count, _row_dtype(column.layout))
        for name in column.spec.names:
            rows[name] = fields[name]
        yield "rows", rows
        return
    (field,) = column.spec
    values = strings.pack(field, fields[field.name]) if field.text else fields[field.name]
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


def _known_bytes(source: Readable, columns: Sequence[CacheColumn]) -> int:
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


def _too_large(source: Readable, num_bytes: int, budget_bytes: int, suffix: str) -> TooLargeError:
    return TooLargeError(
        f"a cache of {source._line()} in {budget_bytes} bytes",
        cause=f"its values take {num_bytes} bytes{suffix}",
        remedy="allow more memory, cache to files with source.cache(path=...), or cache a part: source[:1000]",
    )


# --- memory


def _memory_leaf(
    number: int, column: CacheColumn, pieces: dict[tuple[int, str], Bytes], count: int
) -> Leaf:
    """Return the leaf that reads a column from memory.

    Args:
        number: of the column.
        column: rows of one length, or values of which each has its own.
        pieces: what is in memory, by the number of a column and the kind of the piece.
        count: the number of records.
    """
    if column.layout is not None:
        rows = pieces[number, "rows"].reshape(count, column.layout.record_bytes)

        def gather(numbers: Indices, out: Bytes, begins: Indices) -> None:
            if rows.size:
                gather_rows(rows, numbers, out, begins)

        return RowsLeaf(column, IN_MEMORY, count, gather)
    arrays = {kind: pieces[number, kind] for kind in column.kinds}

    def read(offsets: Indices, lengths: Indices, out: Bytes, begins: Indices) -> None:
        payload = arrays["payload"]
        for offset, length, begin in zip(
            offsets.tolist(), lengths.tolist(), begins.tolist(), strict=True
        ):
            out[begin : begin + length] = payload[offset : offset + length]

    if "shapes" in arrays:
        shapes = _shapes(arrays["axes"].view(INT64), arrays["shapes"].view(INT64))
    else:
        shapes = None
    return ValuesLeaf(
        column.spec, IN_MEMORY, offsets_of(arrays["offsets"].view(INT64)), shapes, read
    )


class RowsLeaf(Leaf):
    """Rows of one size, one after the other in one piece.

    Args:
        column: the fields of a row.
        how: one line about how it is read.
        count: the number of rows.
        read: copies rows; called with their numbers, the target and the begin of each in it.
        advise: asks for rows.
    """

    asks_once = True

    def __init__(
        self, column: CacheColumn, how: str, count: int, read: Callable[[Indices, Bytes, Indices], None],
        advise: Callable[[Indices], None] = lambda numbers: None,
    ) -> None:  # fmt: skip
        self.spec, self.layout, self.how, self.num_records = column.spec, column.layout, how, count
        self._from, self._ask = read, advise

    def _read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        self._from(numbers, out, begins)

    def advise(self, numbers: Indices) -> None:
        """Ask the system to have these records in memory soon."""
        self._ask(numbers)


class ValuesLeaf(Leaf):
    """Values of a field whose shape varies, one after the other in one piece.

    Args:
        spec: the field.
        how: one line about how it is read.
        offsets: int64 ``[n + 1]``, the byte where each begins, and the last ends.
        shapes: of each, a ragged of int64; None where only the first axis varies.
        read: copies pieces of the payload: their offsets and lengths, and where they go.
        advise: asks for pieces of the payload.
    """

    asks_once = True

    def __init__(
        self, spec: Spec, how: str, offsets: Indices, shapes: Ragged | None,
        read: Callable[[Indices, Indices, Bytes, Indices], None],
        advise: Callable[[Indices, Indices], None] = lambda offsets, lengths: None,
    ) -> None:  # fmt: skip
        self.spec, self.how, self.num_records, self.is_direct = (
            spec,
            how,
            offsets.size - 1,
            shapes is None,
        )
        self._offsets, self._shapes, self._from, self._ask = offsets, shapes, read, advise

    def num_bytes(self, numbers: Indices) -> Indices:
        """Return how many raw bytes each record has, int64 ``[n]``."""
        return self._offsets[numbers + 1] - self._offsets[numbers]

    def _read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        lengths = self.num_bytes(numbers)
        check_places(numbers, lengths, out.size, begins)
        self._from(self._offsets[numbers], lengths, out, begins)

    def unpack(self, numbers: Indices, raw: Ragged) -> list[Values]:
        """Return the values as arrays of their shapes."""
        if self._shapes is None:
            return super().unpack(numbers, raw)
        field = self.spec.fields[0]
        shapes = [self._shapes[number] for number in numbers.tolist()]
        return [
            [
                _array(elements, field, shape.tolist())
                for elements, shape in zip(raw, shapes, strict=True)
            ]
        ]

    def advise(self, numbers: Indices) -> None:
        """Ask the system to have these records in memory soon."""
        self._ask(self._offsets[numbers], self.num_bytes(numbers))


def _array(raw: Bytes, field: Field, shape: list[int]) -> Array:
    out = np.empty(shape, field.dtype)
    out.reshape(-1).view(UINT8)[:] = raw
    return out


def _shapes(axes: Indices, lengths: Indices) -> Ragged:
    return Ragged(lengths, offsets_of(axes))


# --- files


def _names(columns: Sequence[CacheColumn]) -> list[str]:
    """Return the names of the files, a file for each piece."""
    return [f"{number}.{kind}" for number, column in enumerate(columns) for kind in column.kinds]


def _piece_origin(about: dict[str, Any], name: str) -> list[str]:
    """Return the texts that identify the file of a piece: a file with other texts is not taken for
    it."""
    return [FORMAT, about["source"], name]


def _free_prefix(folder: str, columns: Sequence[CacheColumn], about: dict[str, Any]) -> str:
    """Return a prefix for the names of the files, so that none is the name of a foreign file.

    Raises:
        FileError: both prefixes are taken.
    """
    has_index = _is_cache_index(os.path.join(folder, INDEX))
    foreign = ""
    for prefix in ("", f"{about['source'][:8]}-"):
        paths = [os.path.join(folder, prefix + name) for name in _names(columns)]
        foreign = next(
            (path for path in paths if os.path.lexists(path) and not _is_piece(path, has_index)), ""
        )
        if not foreign:
            return prefix
    raise FileError(
        f"{foreign} is there already",
        cause="no cache of gpuload wrote it, and nothing of others is replaced",
        remedy="move it away, or choose another path for the cache",
    )


def _is_cache_index(path: str) -> bool:
    return keptfile.is_ours(path, MARK, OLD_MARK)


def _is_piece(path: str, has_index: bool) -> bool:
    return keptfile.is_ours(path) or (
        has_index and os.path.isfile(path) and not os.path.islink(path)
    )


def _write(
    folder: str,
    prefix: str,
    columns: Sequence[CacheColumn],
    source: Readable,
    about: dict[str, Any],
) -> dict[str, int]:
    """Write the pieces into a folder; returns the digest of each.

    Raises:
        FileError: the pieces cannot be written.
    """
    try:
        with contextlib.ExitStack() as stack:
            writers = {}
            for name in _names(columns):
                part = stack.enter_context(
                    derivedfiles.whole(os.path.join(folder, prefix + name), is_alone=True)
                )
                writers[name] = stack.enter_context(
                    keptfile.Writer(part, _piece_origin(about, name))
                )
            _fill(
                source,
                columns,
                lambda number, kind, values: writers[f"{number}.{kind}"].write(_bytes(values)),
            )
            # The digests go into cache.json, which is written behind all pieces: pieces of two
            # fillings never pass for one cache.
            return {name: writer.end() for name, writer in writers.items()}
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(
            f"{folder}: the cache cannot be written",
            cause=str(error.strerror or error),
            remedy="make room, or choose another folder; nothing of it was left",
        ) from None


def _bytes(array: Array) -> memoryview:
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(UINT8).data)


def _load(
    index: str, about: dict[str, Any], columns: Sequence[CacheColumn], source: Readable
) -> CachedValues | None:
    """Return the values in files; None if there are none, or if a piece is missing."""
    if os.path.lexists(index):
        content = keptfile.read_kept_file(index, FORMAT)
    else:
        content = None
    if content is None:
        _check_old_index(index, about)
        return None
    index_content, folder = json.loads(content), os.path.dirname(index)
    differing = [name for name, value in about.items() if index_content.get(name) != value]
    if differing:
        raise _other_data(folder, differing[0], index_content, about)
    paths = {name: os.path.join(folder, index_content["prefix"] + name) for name in _names(columns)}
    eager, pieces = keptfile.is_small(list(paths.values())), dict[str, keptfile.KeptFile]()
    arrays, missing, bad_paths = dict[str, Indices](), list[str](), list[str]()
    for name, path in paths.items():
        is_there = os.path.isfile(path) and not os.path.islink(path)
        piece = keptfile.open_kept_file(path, _piece_origin(about, name), eager=eager)
        # Offsets and shapes come into memory, compared with their checksums: they decide which
        # bytes are read.
        if piece is not None and _is_index(name):
            content = piece.read(0, piece.content_bytes)
        else:
            content = b""
        if piece is None or content is None:
            (bad_paths if is_there else missing).append(path)
        else:
            pieces[name], arrays[name] = piece, np.frombuffer(content, np.int64)
    if bad_paths:
        raise _damage_error(bad_paths)
    if missing:
        log.warning("%s is missing; the cache is made anew", missing[0])
        return None
    if any(piece.digest != index_content["digests"].get(name) for name, piece in pieces.items()):
        return None  # a later filling was ended before it wrote its index
    files, _ = keptfile.look_at(list(pieces.values()), 0, lambda path, size, head: None)
    storage, places = open_storage(files), {name: number for number, name in enumerate(pieces)}
    leaves = [
        _file_leaf(number, column, storage, places, arrays, folder, len(source))
        for number, column in enumerate(columns)
    ]
    total = int(files.sizes.sum())
    return CachedValues(
        _groups(columns), tuple(leaves), total, f"cached in {folder}, {total} bytes, {storage.how}"
    )


def _damage_error(paths: Sequence[str]) -> FormatError:
    """Remove damaged pieces and return the error."""
    for path in paths:
        with signalsafe.suppress(OSError):
            os.unlink(path)
    return FormatError(
        f"{paths[0]} cannot be used" + f", nor can {len(paths) - 1} others" * (len(paths) > 1),
        cause="it is damaged, or another user may have written it; the log says which",
        remedy="cache again, which makes the files anew; check the disk (dmesg)",
    )


def _is_index(name: str) -> bool:
    return not name.endswith((".rows", ".payload"))


def _check_old_index(index: str, about: dict[str, Any]) -> None:
    """Refuse to replace the cache of other data that version 1 wrote; one of the same data is made
    anew."""
    if keptfile.is_ours(index, OLD_MARK):
        with signalsafe.suppress(ValueError, RecursionError):
            index_content = json.loads(read_bytes(index, LARGEST_INDEX_BYTES))
            if index_content.get("source") != about["source"]:
                raise _other_data(os.path.dirname(index), "source", index_content, about)


def _other_data(
    folder: str, name: str, index_content: dict[str, Any], about: dict[str, Any]
) -> FileError:
    return FileError(
        f"{folder} is the cache of other data",
        cause=f"{name}: {index_content.get(name)!r} there, {about[name]!r} here"[:300],
        remedy=f"choose another path, or remove {folder}",
    )


def _file_leaf(
    number: int, column: CacheColumn, storage: Storage, numbers: dict[str, int], arrays: dict[str, Indices],
    folder: str, count: int,
) -> Leaf:  # fmt: skip
    if column.layout is not None:
        size, rows = column.layout.record_bytes, numbers[f"{number}.rows"]
        _check_size(folder, f"{number}.rows", storage, numbers, count * size)

        def places(records: Indices) -> Extents:
            return Extents(
                np.full(records.size, rows, np.int64),
                records * size,
                np.full(records.size, size, np.int64),
            )

        return RowsLeaf(
            column,
            storage.how,
            count,
            lambda records, out, begins: storage.read(places(records), out, begins),
            lambda records: storage.advise(places(records)),
        )
    pieces = {kind: arrays[f"{number}.{kind}"] for kind in column.kinds[1:]}
    lengths = pieces["offsets"]
    # Looked at although the file has a checksum: it says that the bytes are ours, not that two
    # pieces go together.
    wrong = lengths.size != count or bool((lengths < 0).any())
    if not wrong and "axes" in pieces:
        axes = pieces["axes"]
        wrong = (
            axes.size != count or bool((axes < 0).any()) or int(axes.sum()) != pieces["shapes"].size
        )
    if wrong:
        raise FormatError(
            f"{folder}: its pieces do not go together",
            cause=f"there are {lengths.size} lengths for {count} records, or they are none",
            remedy=f"remove {folder}, and cache again",
        )
    offsets = offsets_of(lengths)
    payload = numbers[f"{number}.payload"]
    _check_size(folder, f"{number}.payload", storage, numbers, int(offsets[-1]))

    def extents(offsets: Indices, lengths: Indices) -> Extents:
        return Extents(np.full(offsets.size, payload, np.int64), offsets, lengths)

    if "shapes" in pieces:
        shapes = _shapes(pieces["axes"], pieces["shapes"])
    else:
        shapes = None
    return ValuesLeaf(
        column.spec,
        storage.how,
        offsets,
        shapes,
        lambda offsets, lengths, out, begins: storage.read(extents(offsets, lengths), out, begins),
        lambda offsets, lengths: storage.advise(extents(offsets, lengths)),
    )


def _check_size(
    folder: str, name: str, storage: Storage, numbers: dict[str, int], num_bytes: int
) -> None:
    size = int(storage.files.sizes[numbers[name]])
    if size != num_bytes:
        raise FormatError(
            f"{os.path.join(folder, name)} has {size} bytes",
            cause=f"the records of the source take {num_bytes}",
            remedy=f"remove {folder}, and cache again",
        )
