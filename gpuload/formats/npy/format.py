"""NPY as a format: its magic; `gl.check` reads an array without rows as one record."""

from __future__ import annotations

from contextlib import suppress

from gpuload import lazy
from gpuload.errors import FileError, FormatError, RecordError, SpecError
from gpuload.formats.base import Beginning, Format, Match
from gpuload.formats.npy.npyheader import MAGIC
from gpuload.sources.base import Source

npy = lazy.function("gpuload.formats.npy.source", "npy")
writer = lazy.function("gpuload.formats.npy.writer", "writer")


def _sniff(beginning: Beginning) -> Match | None:
    return Match("NPY", "gl.npy") if beginning.head.startswith(MAGIC) else None


def _salvage(path: str, head: bytes) -> Source | None:
    """Return a source with the file as its one record, None if it cannot be read: an array without axes has no rows."""
    if head.startswith(MAGIC):
        with suppress(FormatError, RecordError, SpecError, FileError):
            source: Source = npy([path], record="file")
            return source
    return None


NPY = Format("npy", npy, _sniff, salvage=_salvage, call=npy, suffixes=(".npy",), writer=writer)
