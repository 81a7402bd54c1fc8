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
    records={
        'gl.npy(paths, record="row")': "a row of one of many NPY files: any versions, orders and "
        "byte "
        "orders side by side; structured dtypes become fields",
        'gl.npy(paths, record="file")': "a whole NPY file. Where files of one shape look like an "
        "image "
        "each and `record=` is left out, a warning says that rows were taken",
    },
    salvage=salvage_array_file(npy, MAGIC),
    suffixes=(".npy",),
    writer=writer,
)
