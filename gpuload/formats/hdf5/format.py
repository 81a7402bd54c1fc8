"""HDF5 as a format: its magic, which stands behind a block of the user's at byte 512, 1024, 2048,
..."""

from __future__ import annotations

from gpuload import lazy
from gpuload.formats.base import Beginning, Format, Match
from gpuload.formats.hdf5 import FIRST_PLACE, MAGIC


def _sniff(beginning: Beginning) -> Match | None:
    place, head = 0, beginning.head
    while place + len(MAGIC) <= len(head):
        if head.startswith(MAGIC, place):
            return Match("HDF5", "gl.hdf5")
        place = 2 * place or FIRST_PLACE
    return None


hdf5 = lazy.function("gpuload.formats.hdf5.source", "hdf5")
HDF5 = Format(
    "hdf5",
    hdf5,
    _sniff,
    records={
        'gl.hdf5(paths, fields=None, group="/", fill=None, mask_and_scale=None, order=None)': "element "
        "i of the first axis of datasets of HDF5 files; packed numbers of netCDF, turned axes of "
        "MATLAB ([guide](guides/hdf5.md))"
    },
    suffixes=(".h5", ".hdf5"),
    writer=lazy.function("gpuload.formats.hdf5.writer", "writer"),
)
