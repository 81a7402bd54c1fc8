"""TFRecord as a format: a length and its checksum; `gl.check` reads payloads and the images in
them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuload import lazy
from gpuload.formats.base import Beginning, Format, Match, Salvage
from gpuload.formats.tfrecord.framing import is_framed
from gpuload.sources.base import Source

ANY_SIZE = 1 << 62  # of a file with a first record that may be cut short

tfrecord = lazy.function("gpuload.formats.tfrecord.source", "tfrecord")
walk_records = lazy.function("gpuload.formats.tfrecord.damage", "walk_records")


def _sniff(beginning: Beginning) -> Match | None:
    if not is_framed(beginning.head, ANY_SIZE):
        return None
    if beginning.compression == "zlib":
        return Match("TFRecord in zlib", "gl.tfrecord(compression='zlib')", {"compression": "zlib"})
    title = "TFRecord"
    if beginning.compression:
        title = f"TFRecord in {beginning.compression}"
    return Match(
        title,
        "gl.tfrecord",
    )


def _open(paths: Sequence[str], compression: str = "auto") -> Source:
    source: Source = tfrecord(list(paths), compression=compression)
    return source


def _salvage(path: str, head: bytes) -> Iterator[Salvage] | None:
    if is_framed(head, ANY_SIZE):
        records: Iterator[Salvage] | None = walk_records(path)
    else:
        records = None
    return records


TFRECORD = Format(
    "tfrecord",
    tfrecord,
    _sniff,
    records={
        "gl.tfrecord(paths, features=None)": "a tf.Example or SequenceExample, checksums verified; "
        "no "
        "index file is needed"
    },
    open_paths=_open,
    compressions=("gzip", "zlib"),
    open_for_check=lazy.function("gpuload.formats.tfrecord.payloads", "open_for_check"),
    salvage=_salvage,
    suffixes=(".tfrecord", ".tfrecords", ".tfrec"),
    writer=lazy.function("gpuload.formats.tfrecord.writer", "writer"),
    writer_options=("raw", "tensors"),
    suggest=lazy.function("gpuload.formats.tfrecord.writer", "suggest"),
)
