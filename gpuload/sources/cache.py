"""Cache: the values of a source, stored in memory or in files, so that their cost is paid once.

    source.cache(memory="2GB")        read now, all of it, into at most so many bytes
    source.cache(path="cache/train")  read now, into files below that folder; opened at once the next time

When    All records are read when the cache is made, with progress, and not while batches are: so it
        is known before the training whether they fit and can be read, and any batch may be asked
        for first.
Same    The records, their numbers and the fingerprint are those of the source, and so is every
        batch and saved state.
"""

from __future__ import annotations

import math
import os
import re

import numpy as np

from gpuload.errors import SpecError, TooLargeError
from gpuload.sources.cachecolumns import CachedValues, columns_of, fill, groups_of, known_bytes
from gpuload.sources.cachefiles import in_files
from gpuload.sources.cacheleaves import MemoryPiece, cache_leaf
from gpuload.sources.leaf import INT64, UINT8, Array
from gpuload.sources.reading import Readable

UNITS = {"": 1, "B": 1, **{f"{unit}B": 1000**power for power, unit in enumerate("KMGT", 1)}}
UNITS |= {f"{unit}iB": 1024**power for power, unit in enumerate("KMGT", 1)}
AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?i?B?)\s*", re.IGNORECASE)


def cache_values(
    source: Readable, memory: int | str | None, path: str | os.PathLike[str] | None
) -> CachedValues:
    """Return the values of a source in memory, or in files below a folder.

    Raises:
        SpecError: neither or both are given, or the source is a mix.
        TooLargeError, FileError, FormatError, RecordError: see `in_memory` and `in_files`.
    """
    if (memory is None) == (path is None):
        raise SpecError(
            f"cache(memory={memory!r}, path={path!r})",
            cause="values are kept in one place: in memory, or in files below a folder",
            remedy='write cache(memory="2GB") or cache(path="cache/train")',
        )
    check_end(source)
    if memory is not None:
        return in_memory(source, memory)
    return in_files(source, path)  # type: ignore[arg-type]  # not None: it is one of both


def check_end(source: Readable) -> None:
    """Raise ``SpecError`` for the cache of a source without an end."""
    if source.endless:
        raise SpecError(
            f"the cache of {source._line()}",
            cause="a mix or a sample has other records in each epoch",
            remedy="cache its parts, and mix or sample these",
        )


def in_memory(source: Readable, budget: int | str) -> CachedValues:
    """Return the values of a source in memory.

    Raises:
        SpecError: the budget is no number of bytes.
        TooLargeError: the values need more.
        RecordError, FileError: a record or its file cannot be read.
    """
    budget_bytes = num_bytes_of(budget)
    columns = columns_of(source)
    least_bytes = known_bytes(source, columns)
    # Before the first record is read: else it would be known after minutes, with the memory full.
    if least_bytes > budget_bytes:
        raise _too_large(source, least_bytes, budget_bytes, "")
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

    fill(source, columns, add_piece)
    arrays = {key: np.frombuffer(piece, UINT8) for key, piece in buffers.items()}
    leaves = []
    for number, column in enumerate(columns):
        piece = MemoryPiece(arrays[number, column.kinds[0]])
        indices = {kind: arrays[number, kind].view(INT64) for kind in column.kinds[1:]}
        leaves.append(cache_leaf(column, piece, indices, source))
    place = f"{MemoryPiece.how}, {total} bytes"
    return CachedValues(groups_of(columns), tuple(leaves), total, place)


def _too_large(source: Readable, num_bytes: int, budget_bytes: int, suffix: str) -> TooLargeError:
    return TooLargeError(
        f"a cache of {source._line()} in {budget_bytes} bytes",
        cause=f"its values take {num_bytes} bytes{suffix}",
        remedy="allow more memory, cache to files with source.cache(path=...), or cache a part: "
        "source[:1000]",
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
