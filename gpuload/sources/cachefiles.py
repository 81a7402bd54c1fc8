"""Files of a cache: the pieces of its columns below a folder.

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
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuload import signalsafe
from gpuload.errors import FileError, FormatError, SpecError
from gpuload.sources.cachecolumns import (
    CacheColumn,
    CachedValues,
    columns_of,
    describe_column,
    fill,
    groups_of,
)
from gpuload.sources.cacheleaves import FilePiece, cache_leaf
from gpuload.sources.leaf import UINT8, Array, Indices
from gpuload.sources.reading import Readable
from gpuload.storage import derivedfiles, keptfile, open_storage, privatefiles
from gpuload.storage.handles import read_bytes
from gpuload.storage.wildcards import check_name

INDEX, FORMAT, VERSION = "cache.json", "gpuload cache", 2
# The beginning of an index; the old one is that of version 1.
MARK, OLD_MARK = b'{"format": "gpuload cache"', b'{\n "format": "gpuload cache"'
LARGEST_INDEX_BYTES = 1 << 24
log = logging.getLogger("gpuload")


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
        "columns": [describe_column(column) for column in columns],
    }

    if os.path.isdir(path):
        # The real folder: the user may name it by a link, and the mode that counts is that of its
        # target.
        privatefiles.check_private(os.path.realpath(path))

    def load(index: str) -> CachedValues | None:
        return _load(index, about, columns, source)

    def make(part: str) -> None:
        prefix = _free_prefix(path, columns, about)
        digests = _write(path, prefix, columns, source, about)
        with keptfile.KeptWriter(part, FORMAT) as writer:
            writer.write(
                json.dumps({**about, "prefix": prefix, "digests": digests}).encode("ascii")
            )
            writer.end()

    return derivedfiles.load_or_make(
        [os.path.join(path, INDEX)], load, make, is_ours=_is_cache_index
    )


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
                    keptfile.KeptWriter(part, _piece_origin(about, name))
                )
            fill(
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
    content = keptfile.read_kept_file(index, FORMAT) if os.path.lexists(index) else None
    if content is None:
        _check_old_index(index, about)
        return None
    index_content, folder = json.loads(content), os.path.dirname(index)
    differing = [name for name, value in about.items() if index_content.get(name) != value]
    if differing:
        raise _other_data(folder, differing[0], index_content, about)
    paths = {name: os.path.join(folder, index_content["prefix"] + name) for name in _names(columns)}
    pieces = _open_pieces(paths, about)
    if pieces is None:
        return None
    digests = index_content["digests"]
    if any(piece.digest != digests.get(name) for name, (piece, _) in pieces.items()):
        return None  # a later filling was ended before it wrote its index
    kept_files = [piece for piece, _ in pieces.values()]
    files, _ = keptfile.look_at(kept_files, 0, lambda path, size, head: None)
    storage, numbers = open_storage(files), {name: number for number, name in enumerate(pieces)}
    leaves = []
    for number, column in enumerate(columns):
        name, indices = f"{number}.{column.kinds[0]}", dict[str, Indices]()
        for kind in column.kinds[1:]:
            indices[kind] = np.frombuffer(pieces[f"{number}.{kind}"][1], np.int64)
        size = int(files.sizes[numbers[name]])
        _check_piece(os.path.join(folder, name), column, size, indices, len(source))
        leaves.append(cache_leaf(column, FilePiece(storage, numbers[name]), indices, source))
    total = int(files.sizes.sum())
    place = f"cached in {folder}, {total} bytes, {storage.how}"
    return CachedValues(groups_of(columns), tuple(leaves), total, place)


def _open_pieces(
    paths: dict[str, str], about: dict[str, Any]
) -> dict[str, tuple[keptfile.KeptFile, bytes]] | None:
    """Return the pieces, each with its content if that says where values lie; None without one.

    Raises:
        FormatError: a piece is damaged.
    """
    eager = keptfile.is_small(list(paths.values()))
    pieces, missing, bad_paths = dict[str, tuple[keptfile.KeptFile, bytes]](), "", list[str]()
    for name, path in paths.items():
        piece = keptfile.open_kept_file(path, _piece_origin(about, name), eager=eager)
        content: bytes | None = b""
        # Offsets and shapes come into memory, compared with their checksums: they decide which
        # bytes are read.
        if piece is not None and _is_index(name):
            content = piece.read(0, piece.content_bytes)
        if piece is not None and content is not None:
            pieces[name] = piece, content
        elif os.path.isfile(path) and not os.path.islink(path):
            bad_paths.append(path)
        else:
            missing = missing or path
    if bad_paths:
        raise _damage_error(bad_paths)
    if missing:
        log.warning("%s is missing; the cache is made anew", missing)
        return None
    return pieces


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


def _check_piece(
    name: str, column: CacheColumn, size: int, indices: dict[str, Indices], count: int
) -> None:
    """Raise ``FormatError`` for pieces of a column that do not go together.

    They are compared although each has a checksum: it says that the bytes are ours, no more.

    Args:
        name: the path of the rows or of the payload.
        column: how the pieces are made.
        size: bytes of the rows or of the payload.
        indices: the other pieces.
        count: the number of records.
    """
    remedy = f"remove {os.path.dirname(name)}, and cache again"
    if column.layout is not None:
        num_bytes = count * column.layout.record_bytes
    else:
        lengths = indices["offsets"]
        wrong = lengths.size != count or bool((lengths < 0).any())
        if not wrong and "axes" in indices:
            axes = indices["axes"]
            wrong = axes.size != count or bool((axes < 0).any())
            wrong = wrong or int(axes.sum()) != indices["shapes"].size
        if wrong:
            raise FormatError(
                f"{os.path.dirname(name)}: its pieces do not go together",
                cause=f"there are {lengths.size} lengths for {count} records, or they are none",
                remedy=remedy,
            )
        num_bytes = int(lengths.sum())
    if size != num_bytes:
        raise FormatError(
            f"{name} has {size} bytes",
            cause=f"the records of the source take {num_bytes}",
            remedy=remedy,
        )
