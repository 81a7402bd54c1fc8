"""Parquet as a format: its magic, reader and writer."""

from __future__ import annotations

from gpuload import lazy
from gpuload.formats.base import Beginning, Format, Match

MAGIC = b"PAR1"


def _sniff(beginning: Beginning) -> Match | None:
    if beginning.head.startswith(MAGIC):
        return Match("Parquet", "gl.parquet")
    return None


parquet = lazy.function("gpuload.formats.parquet.source", "parquet")
PARQUET = Format(
    "parquet",
    parquet,
    _sniff,
    call=parquet,
    suffixes=(".parquet",),
    writer=lazy.function("gpuload.formats.parquet.writer", "writer"),
)
