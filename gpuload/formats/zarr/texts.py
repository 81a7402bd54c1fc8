"""Texts and arrays of varying length in chunks: how many a chunk says it has, before memory is taken for them.

A chunk begins with this number (4 bytes, little-endian), then each value with its length (4 bytes). numcodecs takes 8
bytes of memory for each value that is stated, before it looks whether the chunk is that long: 20 bytes take 32 GB.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any

import numpy as np

from gpuload import signalsafe

CODECS = ("vlen-utf8", "vlen-bytes", "vlen-array")  # of numcodecs, by their names
CLASSES = ("VLenUTF8Codec", "VLenBytesCodec")  # of zarr
SHARD = "ShardingCodec"
NUMBER_BYTES = 4


def with_checked_texts(array: Any) -> Any:
    """Return zarr's array with codecs that check the number of values of a chunk; others as they are."""
    settings = array.metadata
    if settings.zarr_format == 2:
        name, codecs = "filters", tuple(_checked_filter(codec) for codec in settings.filters or ())
    else:
        name, codecs = "codecs", _checked_codecs(settings.codecs)
    before = getattr(settings, name) or ()
    if all(new is old for new, old in zip(codecs, before, strict=True)):
        return array
    object.__setattr__(settings, name, codecs)
    package = signalsafe.import_package("zarr")
    return package.Array(package.AsyncArray(metadata=settings, store_path=array.store_path))


def check_number(chunk: Any) -> None:
    """Raise ``ValueError`` for a chunk that is too short for the number of values that it states."""
    content = np.frombuffer(chunk, np.uint8)
    count = int.from_bytes(content[:NUMBER_BYTES].tobytes(), "little")
    if NUMBER_BYTES * (1 + count) > content.size:
        raise ValueError(f"a chunk of {content.size} bytes is too short for the {count} values that it states")


@functools.cache
def _filter_class() -> Any:
    """Return the class of codecs of numcodecs that check what they decode."""
    base: Any = signalsafe.import_package("numcodecs.abc").Codec

    class Filter(base):  # type: ignore[misc]  # numcodecs is taken as untyped
        codec_id = ""  # zarr looks for a text here, and takes that of the object

        def __init__(self, codec: Any) -> None:
            self.codec_id, self._codec = codec.codec_id, codec

        def encode(self, buf: Any) -> Any:
            return self._codec.encode(buf)

        def decode(self, buf: Any, out: Any = None) -> Any:
            check_number(buf)
            return self._codec.decode(buf, out)

        def get_config(self) -> Any:
            return self._codec.get_config()

    return Filter


def _checked_filter(codec: Any) -> Any:
    return _filter_class()(codec) if getattr(codec, "codec_id", "") in CODECS else codec


def _checked_codecs(codecs: Any) -> tuple[Any, ...]:
    return tuple(_checked_codec(codec) for codec in codecs)


def _checked_codec(codec: Any) -> Any:
    name = type(codec).__name__
    if name in CLASSES:
        return _checked_class(type(codec))()  # type: ignore[arg-type]
    if name != SHARD:
        return codec
    inner = _checked_codecs(codec.codecs)
    if all(new is old for new, old in zip(inner, codec.codecs, strict=True)):
        return codec
    return type(codec)(
        chunk_shape=codec.chunk_shape,
        codecs=inner,
        index_codecs=codec.index_codecs,
        index_location=codec.index_location,
    )


@functools.cache
def _checked_class(base: Hashable) -> Any:
    """Return zarr's class of codecs as one that checks what it decodes."""

    class Checked(base):  # type: ignore[misc,valid-type]  # zarr is taken as untyped
        def _decode_sync(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
            check_number(chunk_bytes.as_array_like())
            return super()._decode_sync(chunk_bytes, chunk_spec)

        async def _decode_single(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
            check_number(chunk_bytes.as_array_like())
            return await super()._decode_single(chunk_bytes, chunk_spec)

    return Checked
