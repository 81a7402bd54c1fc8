"""TFRecord as a format: a length and its checksum; `gl.check` reads payloads and the images in them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from gpuload.errors import MissingPackageError
from gpuload.formats.base import Beginning, Format, ImagesIn, Match, Salvage
from gpuload.formats.tfrecord import wire
from gpuload.formats.tfrecord.damage import walk_records
from gpuload.formats.tfrecord.features import RECORD, Image
from gpuload.formats.tfrecord.framing import is_framed
from gpuload.formats.tfrecord.source import tfrecord
from gpuload.formats.tfrecord.writer import NAME, SUFFIXES, writer
from gpuload.sources.base import Source
from gpuload.sources.leaf import Fields
from gpuload.spec import Spec

ANY_SIZE = 1 << 62  # of a file whose first record may be cut short


def _sniff(beginning: Beginning) -> Match | None:
    if not is_framed(beginning.head, ANY_SIZE):
        return None
    if beginning.compression == "zlib":
        return Match("TFRecord in zlib", "gl.tfrecord(compression='zlib')", {"compression": "zlib"})
    return Match(f"TFRecord in {beginning.compression}" if beginning.compression else "TFRecord", "gl.tfrecord")


def _open(paths: Sequence[str], compression: str = "auto") -> Source:
    return tfrecord(list(paths), compression=compression)


def _open_for_check(paths: Sequence[str], compression: str = "auto") -> tuple[Source, ImagesIn]:
    """Return the payloads as they are, and the encoded images that the first records have.

    Other records need not have the features of the first ones, so a missing feature is no damage.
    """
    with tfrecord(list(paths), compression=compression) as source:
        features = source.features if isinstance(source.features, dict) else {}
    keys = {(feature.key or name).encode() for name, feature in features.items() if isinstance(feature, Image)}

    def images_in(fields: Fields, row: int) -> Iterator[Any]:
        return _images_in(bytes(fields[RECORD][row]), keys)

    return tfrecord(list(paths), "bytes", compression=compression), images_in


def _images_in(payload: bytes, keys: Collection[bytes]) -> Iterator[Any]:
    """Yield the images under some keys of a tf.train.Example; none of another payload, which was written so."""
    try:
        for (_, key), span in wire.entries(payload, {wire.FEATURES}).items() if keys else ():
            if key in keys:
                kind, spans = wire.feature_of(payload, span, is_entry=True)
                for first, after in spans if kind == wire.BYTES_LIST else ():
                    yield np.frombuffer(payload, np.uint8)[first:after]
    except wire.WireError:
        return


def _salvage(path: str, head: bytes) -> Iterator[Salvage] | None:
    return walk_records(path) if is_framed(head, ANY_SIZE) else None


def _suggest(spec: Spec) -> str:
    """Return the call of `gl.convert` that writes all fields, some of them as serialized tensors; "" if none does."""
    with suppress(MissingPackageError):
        tensors = [field.name for field in spec if writer().refusal(field)]
        if tensors and not any(writer(tensors=tensors).refusal(field) for field in spec):
            options = " ".join(f"--tensor {name}" for name in tensors)
            return f"all fields fit by gl.convert(..., 'out.tfrecord', tensors={tensors}) ({options})"
    return ""


TFRECORD = Format(
    NAME,
    _open,
    _sniff,
    compressions=("gzip", "zlib"),
    open_for_check=_open_for_check,
    salvage=_salvage,
    suffixes=SUFFIXES,
    writer=writer,
    writer_options=("raw", "tensors"),
    suggest=_suggest,
)
