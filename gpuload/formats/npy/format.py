"""NPY as a format: its magic; `gl.check` reads an array without rows as one record."""

from __future__ import annotations

from gpuload import lazy
from gpuload.formats.base import Beginning, Format, Match, salvage_array_file
from gpuload.formats.npy.npyheader import MAGIC

npy = lazy.function("gpuload.formats.npy.source", "npy")
writer = lazy.function("gpuload.formats.npy.writer", "writer")


def _sniff(beginning: Beginning) -> Match | None:
    if beginning.head.startswith(MAGIC):
        return Match("NPY", "gl.npy")
    return None


NPY = Format(
    "npy",
    npy,
    _sniff,
    salvage=salvage_array_file(npy, MAGIC),
    call=npy,
    suffixes=(".npy",),
    writer=writer,
)
