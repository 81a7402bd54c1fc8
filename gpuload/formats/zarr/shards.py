"""Shards: how many chunks of an array are there, when each file holds many of them.

Index   A shard begins or ends with a table: offset and length of each of its chunks, 8 bytes each.
        A chunk without a place, 2**64 - 1 for both, has the fill value. zarr leaves out chunks that
        hold nothing else. Chunks that lie outside of the array are never counted.
Nested  A chunk of a shard may be a shard itself: its index lies inside of it.
Damage  A shard that is too short for its index counts as a whole one: the error comes when it is
        decoded.
Source  https://zarr-specs.readthedocs.io, "sharding-indexed" 1.0
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuload.errors import SpecError, short_repr
from gpuload.sources.leaf import Array, Indices
from gpuload.storage.extents import Extents, Storage

SHARDING, TRANSPOSE, CRC32C, BYTES = (
    "ShardingCodec",
    "TransposeCodec",
    "Crc32cCodec",
    "BytesCodec",
)  # zarr's classes
ENTRY_BYTES = 16
CHECKSUM_BYTES = 4
NOWHERE = np.uint64(2**64 - 1)
LARGEST_PLACE = np.uint64(1 << 62)
BATCH_BYTES = 1 << 26  # of indexes that are read together
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Level:
    """The shards of an array, or shards in shards.

    Attributes:
        axes: the order in which the axes of the codec around it are taken.
        shard, chunk: the shapes of a shard, and of its chunks.
        leaf: the shape of the innermost chunks.
        is_first: True if the index is the first part of a shard, and not the last one.
        order: the byte order of the index, ``"<"`` or ``">"``.
        index_bytes: of the index, with its checksum.
        tail_bytes: of the checksum of the shard behind it.
    """

    axes: tuple[int, ...]
    shard: Shape
    chunk: Shape
    leaf: Shape
    is_first: bool
    order: str
    index_bytes: int
    tail_bytes: int

    @property
    def counts(self) -> Shape:
        """The number of chunks of a shard along each axis."""
        return tuple(length // step for length, step in zip(self.shard, self.chunk, strict=True))


@dataclass(frozen=True, eq=False)
class Shards:
    """Shards in files; int64 ``[num_shards]`` each, and ``[num_shards, num_axes]``.

    Attributes:
        files: the number of the file.
        offsets, lengths: the bytes of the file that are the shard.
        corners: the place of its first element in the array.
    """

    files: Indices
    offsets: Indices
    lengths: Indices
    corners: Indices

    def take(self, selection: Any) -> Shards:
        """Return some of them."""
        return Shards(
            self.files[selection],
            self.offsets[selection],
            self.lengths[selection],
            self.corners[selection],
        )


def levels_of(array: Any) -> list[Level]:
    """Return the levels of shards of zarr's array, the outermost first; none for arrays without
    shards.

    Raises:
        SpecError: it has shards, and their indexes cannot be read where they lie.
        ValueError: the shapes of shards and chunks cannot be.
    """
    settings = array.metadata
    if settings.zarr_format == 2:
        return []
    steps, codecs = settings.chunk_grid.chunk_shape, settings.codecs
    levels, shape = list[Level](), tuple(max(int(step), 1) for step in steps)
    while (
        codec := next((codec for codec in codecs if _name(codec) == SHARDING), None)
    ) is not None:
        axes, is_before, tail_bytes = tuple(range(len(shape))), True, 0
        for neighbour in codecs:
            is_before = is_before and neighbour is not codec
            if _name(neighbour) == TRANSPOSE and is_before:
                axes = tuple(axes[axis] for axis in neighbour.order)
            elif _name(neighbour) == CRC32C and not is_before:
                tail_bytes += CHECKSUM_BYTES
            elif neighbour is not codec:
                raise _unknown(f"the codec {_name(neighbour)} stands beside that of shards")
        shape = tuple(shape[axis] for axis in axes)
        chunk = tuple(map(int, codec.chunk_shape))
        levels.append(_level(codec, axes, shape, chunk, tail_bytes))
        shape, codecs = chunk, codec.codecs
    return _with_leaves(levels)


def _name(codec: Any) -> str:
    return type(codec).__name__


def _level(codec: Any, axes: Shape, shard: Shape, chunk: Shape, tail_bytes: int) -> Level:
    if len(chunk) != len(shard) or any(
        not step or length % step for length, step in zip(shard, chunk, strict=True)
    ):
        raise ValueError(f"chunks of {short_repr(chunk)} do not fill shards of {short_repr(shard)}")
    num_chunks = math.prod(length // step for length, step in zip(shard, chunk, strict=True))
    index_bytes, order = ENTRY_BYTES * num_chunks, "<"
    for inner in codec.index_codecs:
        if _name(inner) == BYTES:
            if getattr(inner.endian, "value", "little") == "big":
                order = ">"
            else:
                order = "<"
        elif _name(inner) == CRC32C:
            index_bytes += CHECKSUM_BYTES
        else:
            raise _unknown(f"their indexes are encoded by {_name(inner)}")
    is_first = getattr(codec.index_location, "value", codec.index_location) == "start"
    return Level(axes, shard, chunk, chunk, is_first, order, index_bytes, tail_bytes)


def _with_leaves(levels: Sequence[Level]) -> list[Level]:
    """Return levels with the shape of the innermost chunks, in the axes of each level."""
    leaf, result = levels[-1].chunk if levels else (), list[Level]()
    for level in reversed(levels):
        result.append(replace(level, leaf=leaf))
        leaf = tuple(leaf[level.axes.index(axis)] for axis in range(len(leaf)))
    return result[::-1]


def _unknown(cause: str) -> SpecError:
    return SpecError(
        "whether chunks are missing in its shards cannot be told",
        cause=cause,
        remedy="leave fill=False out, or write it anew with no codec beside that of shards",
    )


def count_leaves(levels: Sequence[Level], shape: Shape) -> int:
    """Return how many of the innermost chunks an array has, there or not."""
    first = levels[0]
    lengths = (shape[axis] for axis in first.axes)
    return math.prod(-(-length // step) for length, step in zip(lengths, first.leaf, strict=True))


def count_present(storage: Storage, levels: Sequence[Level], shards: Shards, shape: Shape) -> int:
    """Return how many of the innermost chunks of some shards are there.

    Args:
        storage: of the files.
        levels: of the shards, at least one.
        shards: those that are there.
        shape: of the array.

    Raises:
        ChangedFileError, FileError: a file changed, or cannot be read.
    """
    level, count = levels[0], 0
    shape = tuple(shape[axis] for axis in level.axes)
    shards = Shards(shards.files, shards.offsets, shards.lengths, shards.corners[:, level.axes])
    room = np.clip(np.array(shape, np.int64) - shards.corners, 0, level.shard)
    is_short = shards.lengths < level.index_bytes + level.tail_bytes
    is_short |= shards.offsets + shards.lengths > storage.files.sizes[shards.files]
    count += int(np.prod(-(-room[is_short] // np.array(level.leaf)), axis=1).sum())
    whole = np.flatnonzero(~is_short)
    step = max(1, BATCH_BYTES // level.index_bytes)
    for begin in range(0, whole.size, step):
        numbers = whole[begin : begin + step]
        count += _count(storage, levels, shards.take(numbers), room[numbers], shape)
    return count


def _count(
    storage: Storage, levels: Sequence[Level], shards: Shards, room: Indices, shape: Shape
) -> int:
    """Return the same for shards with indexes that are read together; ``room`` is the part of each
    in the array."""
    level = levels[0]
    entries = _read_indexes(storage, level, shards)
    is_there = (entries != NOWHERE).any(axis=-1)
    num_inside = -(-room // np.array(level.chunk))
    for axis, steps in enumerate(level.counts):
        is_inside = np.arange(steps) < num_inside[:, axis, None]
        is_there &= is_inside.reshape(
            len(room), *(steps if k == axis else 1 for k in range(len(shape)))
        )
    if len(levels) == 1:
        return int(np.count_nonzero(is_there))
    number, *places = np.nonzero(is_there)
    offsets, lengths = np.minimum(entries[is_there], LARGEST_PLACE).astype(np.int64).T
    offsets = np.minimum(offsets, storage.files.sizes[shards.files[number]])
    corners = shards.corners[number] + np.stack(places, axis=1) * np.array(level.chunk)
    inner = Shards(shards.files[number], shards.offsets[number] + offsets, lengths, corners)
    return count_present(storage, levels[1:], inner, shape)


def _read_indexes(storage: Storage, level: Level, shards: Shards) -> Array:
    """Return offset and length of the chunks of each shard, uint64 ``[num_shards, *counts, 2]``."""
    num_shards, num_bytes = shards.files.size, level.index_bytes
    last = shards.lengths - level.tail_bytes - num_bytes
    places = shards.offsets + (0 if level.is_first else last)
    raw = np.empty((num_shards, num_bytes), np.uint8)
    extents = Extents(shards.files, places, np.full(num_shards, num_bytes, np.int64))
    storage.read(extents, raw.reshape(-1), np.arange(num_shards, dtype=np.int64) * num_bytes)
    content = np.ascontiguousarray(raw[:, : ENTRY_BYTES * math.prod(level.counts)])
    return content.view(f"{level.order}u8").reshape(num_shards, *level.counts, 2)
