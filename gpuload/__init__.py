"""gpuload: records on disk to device tensors. A batch is a pure function of (source, ops, seed,
epoch, step)."""

from __future__ import annotations

import signal as _signal
import sys as _sys

# ``python -m gpuload`` imports this package before ``__main__``: from here on Ctrl-C ends it
# without a traceback. While Python looks for ``__main__``, ``sys.argv`` begins with "-m" in place
# of its file.
if (
    _sys.argv[:1] == ["-m"]
    and _sys.orig_argv[-len(_sys.argv) :][:1] in (["gpuload"], ["-mgpuload"])
    and _signal.getsignal(_signal.SIGINT)
    is _signal.default_int_handler  # not if this process ignores Ctrl-C
):
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

from typing import TYPE_CHECKING

from gpuload import ops, recipes
from gpuload.batch import Batch
from gpuload.errors import GpuloadError, PixelError
from gpuload.lazy import attach as _attach
from gpuload.loader import Loader
from gpuload.open import open as open
from gpuload.ops.value import numbers as draw
from gpuload.order import Blocks, Buckets
from gpuload.ragged import Ragged
from gpuload.sources.base import Source
from gpuload.spec import Field, Spec
from gpuload.storage.stores import Remote
from gpuload.synonyms import PACKAGE as _FORMS
from gpuload.tracebacks import publish as _publish
from gpuload.tracebacks import publish_methods as _publish_methods

if TYPE_CHECKING:
    from gpuload.bridges.ranks import shard
    from gpuload.check import check
    from gpuload.convert import convert
    from gpuload.formats.arrow.datasets import datasets
    from gpuload.formats.arrow.source import arrow
    from gpuload.formats.csv.source import csv
    from gpuload.formats.fixed.source import fixed
    from gpuload.formats.hdf5.source import hdf5
    from gpuload.formats.idx import idx
    from gpuload.formats.images.labels import Labels
    from gpuload.formats.images.source import images
    from gpuload.formats.npy.source import npy
    from gpuload.formats.npz.source import npz
    from gpuload.formats.parquet.source import parquet
    from gpuload.formats.text import text
    from gpuload.formats.tfrecord.features import Feature, Image, Raw, Sparse, Tensor
    from gpuload.formats.tfrecord.source import tfrecord
    from gpuload.formats.webdataset.source import webdataset
    from gpuload.formats.zarr.source import zarr
    from gpuload.preview import preview
    from gpuload.sources.arrays import arrays
    from gpuload.sources.compose import concat
    from gpuload.sources.compose import zip as zip
    from gpuload.sources.mix import mix
    from gpuload.sources.records import records

__all__ = [
    "Batch",
    "Blocks",
    "Buckets",
    "Feature",
    "Field",
    "GpuloadError",
    "Image",
    "Labels",
    "Loader",
    "PixelError",
    "Ragged",
    "Raw",
    "Remote",
    "Source",
    "Sparse",
    "Spec",
    "Tensor",
    "arrays",
    "arrow",
    "check",
    "concat",
    "convert",
    "csv",
    "datasets",
    "draw",
    "fixed",
    "hdf5",
    "idx",
    "images",
    "mix",
    "npy",
    "npz",
    "open",
    "ops",
    "parquet",
    "preview",
    "recipes",
    "records",
    "shard",
    "text",
    "tfrecord",
    "webdataset",
    "zarr",
    "zip",
]
_attach(
    __name__,
    {
        "bridges.ranks": ("shard",),
        "check": ("check",),
        "convert": ("convert",),
        "formats.arrow.datasets": ("datasets",),
        "formats.arrow.source": ("arrow",),
        "formats.csv.source": ("csv",),
        "formats.fixed.source": ("fixed",),
        "formats.hdf5.source": ("hdf5",),
        "formats.idx": ("idx",),
        "formats.images.labels": ("Labels",),
        "formats.images.source": ("images",),
        "formats.npy.source": ("npy",),
        "formats.npz.source": ("npz",),
        "formats.parquet.source": ("parquet",),
        "formats.text": ("text",),
        "formats.tfrecord.features": ("Feature", "Image", "Raw", "Sparse", "Tensor"),
        "formats.tfrecord.source": ("tfrecord",),
        "formats.webdataset.source": ("webdataset",),
        "formats.zarr.source": ("zarr",),
        "preview": ("preview",),
        "sources.arrays": ("arrays",),
        "sources.compose": ("concat", "zip"),
        "sources.mix": ("mix",),
        "sources.records": ("records",),
    },
    _FORMS,
)
_publish(
    globals(),
    ("Batch", "Blocks", "Buckets", "Field", "Loader", "Ragged", "Remote", "Source", "Spec", "open"),
)
_publish_methods(
    Loader,
    (
        "batch_at",
        "epoch",
        "load_state_dict",
        "peek",
        "replace",
        "state_dict",
        "__iter__",
        "bad_records",
    ),
)
_publish_methods(
    Source,
    (
        "read",
        "__getitem__",
        "cache",
        "filter",
        "mark",
        "rename",
        "sample",
        "select",
        "split",
        "where",
    ),
)
__version__ = "0.1.0"
