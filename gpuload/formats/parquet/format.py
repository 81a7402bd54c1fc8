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
    records={
        "gl.parquet(paths, fields=None, shapes=None, defaults=None, dtypes=None, partitions=None)": "a "
        "row of Parquet files, or of a folder of Spark or Hive; columns alone "
        "([guide](guides/parquet.md))"
    },
    suffixes=(".parquet",),
    writer=lazy.function("gpuload.formats.parquet.writer", "writer"),
)
