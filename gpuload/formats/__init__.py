"""Formats: one module or folder each, and its lines here.

The order of `FORMATS` is that in which messages and pages list them. ``gl.<name>`` follows from it
(`gpuload/__init__.py`), and for type checkers from ``__all__``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from gpuload.formats.arrow.source import arrow
    from gpuload.formats.csv.source import csv
    from gpuload.formats.fixed.source import fixed
    from gpuload.formats.hdf5.source import hdf5
    from gpuload.formats.idx import idx
    from gpuload.formats.images.source import images
    from gpuload.formats.npy.source import npy
    from gpuload.formats.npz.source import npz
    from gpuload.formats.parquet.source import parquet
    from gpuload.formats.text import text
    from gpuload.formats.tfrecord.source import tfrecord
    from gpuload.formats.webdataset.source import webdataset
    from gpuload.formats.zarr.source import zarr

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
__all__ = [
    "arrow",
    "csv",
    "fixed",
    "hdf5",
    "idx",
    "images",
    "npy",
    "npz",
    "parquet",
    "text",
    "tfrecord",
    "webdataset",
    "zarr",
]
