"""Texts and arrays of varying length in chunks: how many a chunk says it has, before memory is
taken for them.

A chunk begins with this number (4 bytes, little-endian), then each value with its length (4 bytes).
numcodecs takes 8 bytes of memory for each value that is stated, before it looks whether the chunk
is that long: 20 bytes take 32 GB. How many bytes a chunk of any kind may unpack to is the matter of
`limits.py`; its codecs are put in here, too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from gpuload import signalsafe
from gpuload.formats.zarr import limits

CODECS = ("vlen-utf8", "vlen-bytes", "vlen-array")  # of numcodecs, by their names
CLASSES = ("VLenUTF8Codec", "VLenBytesCodec")  # of zarr
SHARD = "ShardingCodec"
NUMBER_BYTES = 4


def with_checks(array: Any) -> Any:
    """Return zarr's array with codecs that check the number of values of a chunk, and of the bytes
    of it."""
    settings, dtype = array.metadata, array.dtype
    if settings.zarr_format == 2:
        count = math.prod(settings.chunks)
        codecs = [
            _filter_of(codec, count, dtype)
            for codec in (*(settings.filters or ()), settings.compressor)
        ]
        object.__setattr__(settings, "filters", tuple(codecs[:-1]) or settings.filters)
        object.__setattr__(settings, "compressor", codecs[-1])
    else:
        object.__setattr__(settings, "codecs", _codecs_of(settings.codecs))
    package = signalsafe.import_package("zarr")
    return package.Array(package.AsyncArray(metadata=settings, store_path=array.store_path))


def check_number(chunk: Any) -> None:
    """Raise ``ValueError`` for a chunk that is too short for the number of values that it
    states."""
    content = np.frombuffer(chunk, np.uint8)
    count = int.from_bytes(content[:NUMBER_BYTES].tobytes(), "little")
    if NUMBER_BYTES * (1 + count) > content.size:
        raise ValueError(
            f"a chunk of {content.size} bytes is too short for the {count} values that it states"
        )


class Filter:
    """A codec of numcodecs that checks its result, with all that zarr asks of one.

    Args:
        codec: the codec.
    """

    codec_id = ""  # zarr looks for a text here, and takes that of the object

    def __init__(self, codec: Any) -> None:
        self.codec_id, self._codec = codec.codec_id, codec

    def encode(self, buf: Any) -> Any:
        """Return the bytes of values."""
        return self._codec.encode(buf)

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Return the values of bytes; raises ``ValueError`` for fewer than they say."""
        check_number(buf)
        return self._codec.decode(buf, out)

    def get_config(self) -> Any:
        """Return the codec as values of JSON."""
        return self._codec.get_config()

    @classmethod
    def from_config(cls, config: Any) -> Any:
        """Refuse to be made of values of JSON, which numcodecs does."""
        raise NotImplementedError


def _are_same(codecs: Sequence[Any], before: Sequence[Any]) -> bool:
    return all(codec is old for codec, old in zip(codecs, before, strict=True))


def _filter_of(codec: Any, count: int, dtype: Any) -> Any:
    if getattr(codec, "codec_id", "") in CODECS:
        return Filter(codec)
    return limits.bounded_filter(codec, count, dtype)


def _codecs_of(codecs: Any) -> tuple[Any, ...]:
    return tuple(_codec_of(codec) for codec in codecs)


def _codec_of(codec: Any) -> Any:
    name = type(codec).__name__
    if name in CLASSES:
        return _class_of(type(codec))()  # type: ignore[arg-type]
    if name != SHARD:
        return limits.bounded(codec)
    inner = _codecs_of(codec.codecs)
    if _are_same(inner, codec.codecs):
        return codec
    return type(codec)(
        chunk_shape=codec.chunk_shape,
        codecs=inner,
        index_codecs=codec.index_codecs,
        index_location=codec.index_location,
    )


@functools.cache
def _class_of(base: Hashable) -> Any:
    """Return zarr's class of codecs as one that checks its result."""

    class TextCodec(base):  # type: ignore[misc,valid-type]  # zarr is taken as untyped
        def _decode_sync(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
            check_number(chunk_bytes.as_array_like())
            return super()._decode_sync(chunk_bytes, chunk_spec)

        async def _decode_single(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
            check_number(chunk_bytes.as_array_like())
            return await super()._decode_single(chunk_bytes, chunk_spec)

    return TextCodec
