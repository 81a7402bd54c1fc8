"""Arrow as a format: the magic of its files (Feather, too), and the first message of its
streams."""

from __future__ import annotations

from gpuload import lazy
from gpuload.formats.arrow import FILE_MAGIC
from gpuload.formats.base import Beginning, Format, Match

CONTINUATION = b"\xff\xff\xff\xff"  # before the length of each message of a stream
LARGEST_SCHEMA_BYTES = 1 << 24


def _sniff(beginning: Beginning) -> Match | None:
    head = beginning.head
    if head.startswith(FILE_MAGIC):
        return Match("Arrow", "gl.arrow")
    length = int.from_bytes(head[4:8], "little")
    is_stream = (
        head.startswith(CONTINUATION) and 0 < length <= LARGEST_SCHEMA_BYTES and not length % 8
    )
    if is_stream:
        return Match("a stream of Arrow", "gl.arrow")
    return None


arrow = lazy.function("gpuload.formats.arrow.source", "arrow")
ARROW = Format(
    "arrow",
    arrow,
    _sniff,
    records={
        "gl.arrow(paths, fields=None, ...)": "a row of Arrow files or streams, Feather, and of what `datasets` "
        "saves to disk",
        "gl.datasets(dataset, fields=None, ...)": "a row of a dataset of Hugging Face, in its order",
    },
)
