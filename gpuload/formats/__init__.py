"""Formats: one module or folder each, and a line in ``FORMATS``.

The order is that in which messages list them.
"""

from __future__ import annotations

from gpuload.formats.arrow.format import ARROW
from gpuload.formats.base import Format
from gpuload.formats.csv.format import CSV
from gpuload.formats.fixed.format import FIXED
from gpuload.formats.hdf5.format import HDF5
from gpuload.formats.idx import IDX
from gpuload.formats.images.format import IMAGES
from gpuload.formats.npy.format import NPY
from gpuload.formats.npz.format import NPZ
from gpuload.formats.parquet.format import PARQUET
from gpuload.formats.text import TEXT
from gpuload.formats.tfrecord.format import TFRECORD
from gpuload.formats.webdataset.format import WEBDATASET
from gpuload.formats.zarr.format import ZARR

FORMATS: tuple[Format, ...] = (
    NPY,
    NPZ,
    FIXED,
    TFRECORD,
    PARQUET,
    ARROW,
    HDF5,
    ZARR,
    WEBDATASET,
    CSV,
    TEXT,
    IDX,
    IMAGES,
)
