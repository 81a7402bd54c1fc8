"""Limits: how many bytes a chunk may unpack to, so that no file of some kilobytes takes all memory.

    gzip, zlib, bz2, lzma   are unpacked here, into not more than the limit
    blosc, lz4, zstd        state the number of bytes in front; zstd may leave it out, and its
                            blocks are counted then

Limit    EXPANSION times the bytes of the chunk, as its shape and dtype say: filters and indexes of
         shards may make more bytes of it. For texts, of bytes that nothing tells, that of
         `storage/inflate.py`.
Source   https://www.rfc-editor.org/rfc/rfc8878, 3.1.1 "Zstandard Frames"; Blosc chunk format 1,
         "Header"
"""

from __future__ import annotations

import bz2
import functools
import lzma
import zlib
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from gpuload import threads
from gpuload.storage.inflate import limit_bytes

EXPANSION = 16
LEAST_BYTES = 1 << 20  # that a chunk of any shape may unpack to
GZIP_BITS = 31  # of zlib: a header of gzip
STREAMS = ("gzip", "zlib", "bz2", "lzma")
HEADS = ("blosc", "lz4", "zstd")
CLASSES = {"GzipCodec": "gzip", "BloscCodec": "blosc", "ZstdCodec": "zstd"}  # of zarr
PREFIX = "numcodecs."
BLOCK_BYTES = 1 << 17  # of a block of zstd, at most
ZSTD_MAGIC, ZSTD_SKIPPED = b"\x28\xb5\x2f\xfd", 0x184D2A50
DICTIONARY_BYTES = (0, 1, 2, 4)
REPEATED = 1  # the type of a block that states one byte


def most_bytes(count: int, dtype: np.dtype[Any], packed_bytes: int) -> int:
    """Return how many bytes a chunk of so many elements may unpack to."""
    if dtype.hasobject or not dtype.itemsize or dtype.kind == "T":
        return limit_bytes(packed_bytes)
    return max(EXPANSION * count * dtype.itemsize, LEAST_BYTES)


def unpack(name: str, config: dict[str, Any], chunk: Any, limit: int) -> bytes | None:
    """Return the unpacked bytes of a chunk; None if the codec itself may unpack them, into not more
    than the limit.

    Args:
        name: of the codec, one of STREAMS and HEADS.
        config: its settings.
        chunk: the bytes.
        limit: the limit.

    Raises:
        ValueError: they are more; zlib, bz2 and lzma have errors of their own.
    """
    data = np.ascontiguousarray(chunk).reshape(-1).view(np.uint8).data
    if name in HEADS:
        num_bytes = _stated_bytes(name, data)
        if num_bytes is None:
            num_bytes, limit = _zstd_bytes(data), max(limit, limit_bytes(len(data)))
        if num_bytes > limit:
            raise _expansion_error(limit)
        return None
    return _unpack_streams(name, config, data, limit)


def _expansion_error(limit: int) -> ValueError:
    return ValueError(
        f"a chunk unpacks to more than {limit} bytes, which its shape does not explain"
    )


def _unpack_streams(name: str, config: dict[str, Any], data: Any, limit: int) -> bytes:
    new_stream: dict[str, Callable[[], Any]] = {
        "gzip": lambda: zlib.decompressobj(GZIP_BITS),
        "zlib": zlib.decompressobj,
        "bz2": bz2.BZ2Decompressor,
        "lzma": lambda: lzma.LZMADecompressor(
            config.get("format", lzma.FORMAT_XZ), filters=config.get("filters")
        ),
    }
    pieces, size = list[bytes](), 0
    while True:
        stream = new_stream[name]()
        try:
            pieces.append(stream.decompress(data, limit + 1 - size))
        except (OSError, lzma.LZMAError):
            if pieces:  # bz2 and lzma pass over bytes behind their last stream
                break
            raise
        size += len(pieces[-1])
        if size > limit:
            raise _expansion_error(limit)
        if not stream.eof:
            raise EOFError("a chunk ends inside its compressed stream")
        if name == "gzip":
            data = stream.unused_data.lstrip(b"\0")
        else:
            data = stream.unused_data
        if name == "zlib" or not data:
            break
    if len(pieces) == 1:
        return pieces[0]
    return b"".join(pieces)


def _stated_bytes(name: str, data: Any) -> int | None:
    """Return how many bytes a chunk says that it unpacks to; None if it says none."""
    if name == "blosc":
        return int.from_bytes(data[4:8], "little")
    if name == "lz4":
        return int.from_bytes(data[:4], "little")
    return _zstd_head(data)[1]


def _zstd_head(data: Any) -> tuple[int, int | None]:
    """Return the bytes of the header of a frame, and the size that it states."""
    if bytes(data[:4]) != ZSTD_MAGIC or len(data) < 5:
        return len(data), 0  # the library refuses it
    flags = data[4]
    is_single, width = bool(flags & 0x20), (0, 2, 4, 8)[flags >> 6]
    width = width or int(is_single)
    at = 5 + (not is_single) + DICTIONARY_BYTES[flags & 3]
    number = int.from_bytes(data[at : at + width], "little") + 256 * (width == 2)
    return at + width, number if width else None


def _zstd_bytes(data: Any) -> int:
    """Return to how many bytes frames without a size may unpack, at most."""
    total = 0
    while len(data) >= 4:
        if int.from_bytes(data[:4], "little") & ~15 == ZSTD_SKIPPED:
            data = data[8 + int.from_bytes(data[4:8], "little") :]
            continue
        at, stated = _zstd_head(data)
        has_checksum, is_last, is_repeated = len(data) > 4 and bool(data[4] & 4), False, False
        while not is_last and at + 3 <= len(data):
            head = int.from_bytes(data[at : at + 3], "little")
            is_last, is_repeated = bool(head & 1), head >> 1 & 3 == REPEATED
            at += 3 + (1 if is_repeated else head >> 3)
            total += BLOCK_BYTES
        total = max(total, stated or 0)
        data = data[at + 4 * has_checksum :]
    return total


class BoundedCodec:
    """A codec of numcodecs that unpacks a chunk into not more than a number of bytes, with all that
    zarr asks of one.

    Args:
        codec: the codec.
        limit_of: returns the limit for a number of packed bytes.
    """

    codec_id = ""  # zarr looks for a text here, and takes that of the object

    def __init__(self, codec: Any, limit_of: Callable[[int], int]) -> None:
        self.codec_id, self._codec, self._limit_of = codec.codec_id, codec, limit_of

    def encode(self, buf: Any) -> Any:
        """Return packed bytes."""
        return self._codec.encode(buf)

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Return unpacked bytes; raises ``ValueError`` for too many."""
        content = unpack(
            self.codec_id, self._codec.get_config(), buf, self._limit_of(memoryview(buf).nbytes)
        )
        if content is None:
            return self._codec.decode(buf, out)
        return content

    def get_config(self) -> Any:
        """Return the codec as values of JSON."""
        return self._codec.get_config()

    @classmethod
    def from_config(cls, config: Any) -> Any:
        """Refuse to be made of values of JSON, which numcodecs does."""
        raise NotImplementedError


def bounded_filter(codec: Any, count: int, dtype: np.dtype[Any]) -> Any:
    """Return a codec of numcodecs for chunks of so many elements, bounded if it unpacks bytes."""
    if getattr(codec, "codec_id", "") not in (*STREAMS, *HEADS):
        return codec
    return BoundedCodec(codec, functools.partial(most_bytes, count, dtype))


def bounded(codec: Any) -> Any:
    """Return a codec of zarr's, bounded if it unpacks bytes."""
    name = CLASSES.get(type(codec).__name__) or str(getattr(codec, "codec_name", "")).removeprefix(
        PREFIX
    )
    if name not in (*STREAMS, *HEADS):
        return codec
    result = object.__new__(_class_of(type(codec), name))  # type: ignore[arg-type]
    result.__dict__.update(vars(codec))
    return result


@functools.cache
def _class_of(base: Hashable, name: str) -> Any:
    """Return zarr's class of codecs as one that is bounded."""

    def unpack_chunk(codec: Any, chunk_bytes: Any, chunk_spec: Any) -> Any:
        chunk, dtype = chunk_bytes.as_numpy_array(), chunk_spec.dtype
        if not isinstance(dtype, np.dtype):
            dtype = dtype.to_native_dtype()
        limit = most_bytes(int(np.prod(chunk_spec.shape, dtype=np.int64)), dtype, chunk.nbytes)
        content = unpack(name, getattr(codec, "codec_config", {}), chunk, limit)
        if content is None:
            return None
        return chunk_spec.prototype.buffer.from_bytes(content)

    class BoundedCodec(base):  # type: ignore[misc,valid-type]  # zarr is taken as untyped
        def _decode_sync(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
            content = unpack_chunk(self, chunk_bytes, chunk_spec)
            if content is None:
                return super()._decode_sync(chunk_bytes, chunk_spec)
            return content

        async def _decode_single(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
            content = await threads.aside(unpack_chunk, self, chunk_bytes, chunk_spec)
            if content is None:
                return await super()._decode_single(chunk_bytes, chunk_spec)
            return content

    BoundedCodec.__name__ = base.__name__  # type: ignore[attr-defined]  # errors name it, and `shards.py` looks for it
    return BoundedCodec
