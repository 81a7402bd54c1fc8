"""Payloads of TFRecord files and the encoded images in them, as `gl.check` reads them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from gpuload.formats.base import ImagesIn
from gpuload.formats.tfrecord import wire
from gpuload.formats.tfrecord.features import RECORD, Image
from gpuload.formats.tfrecord.source import tfrecord
from gpuload.sources.base import Source
from gpuload.sources.leaf import Fields


def open_for_check(paths: Sequence[str], compression: str = "auto") -> tuple[Source, ImagesIn]:
    """Return the payloads as they are, and the encoded images that the first records have.

    Other records need not have the features of the first ones, so a missing feature is no damage.
    """
    with tfrecord(list(paths), compression=compression) as source:
        if isinstance(source.features, dict):
            features = source.features
        else:
            features = {}
    keys = {
        (feature.key or name).encode()
        for name, feature in features.items()
        if isinstance(feature, Image)
    }

    def images_in(fields: Fields, row: int) -> Iterator[Any]:
        return _images_in(bytes(fields[RECORD][row]), keys)

    return tfrecord(list(paths), "bytes", compression=compression), images_in


def _images_in(payload: bytes, keys: Collection[bytes]) -> Iterator[Any]:
    """Yield the images under some keys of a tf.train.Example; none of another payload, which was
    written so."""
    try:
        for (_, key), span in wire.entries(payload, {wire.FEATURES}).items() if keys else ():
            if key in keys:
                kind, spans = wire.feature_of(payload, span, is_entry=True)
                for first, after in spans if kind == wire.BYTES_LIST else ():
                    yield np.frombuffer(payload, np.uint8)[first:after]
    except wire.WireError:
        return
