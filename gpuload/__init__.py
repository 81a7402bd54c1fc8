"""gpuload: records on disk to device tensors. A batch is a pure function of (source, ops, seed, epoch, step)."""

from __future__ import annotations

from gpuload import ops, recipes
from gpuload.batch import Batch
from gpuload.check import check
from gpuload.convert import convert
from gpuload.errors import GpuloadError
from gpuload.formats.csv import csv
from gpuload.formats.fixed import fixed
from gpuload.formats.idx import idx
from gpuload.formats.images import Labels, images
from gpuload.formats.npy import npy
from gpuload.formats.npz import npz
from gpuload.formats.text import text
from gpuload.formats.tfrecord import Feature, Image, Raw, Sparse, Tensor, tfrecord
from gpuload.loader import Loader
from gpuload.open import open as open
from gpuload.ops import numbers as draw
from gpuload.order import Blocks, Buckets
from gpuload.preview import preview
from gpuload.ragged import Ragged
from gpuload.sources import arrays, concat, mix, records
from gpuload.sources import zip as zip
from gpuload.sources.base import Source
from gpuload.spec import Field, Spec
from gpuload.tracebacks import publish as _publish
from gpuload.tracebacks import publish_methods as _publish_methods

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
    "Ragged",
    "Raw",
    "Source",
    "Sparse",
    "Spec",
    "Tensor",
    "arrays",
    "check",
    "concat",
    "convert",
    "csv",
    "draw",
    "fixed",
    "idx",
    "images",
    "mix",
    "npy",
    "npz",
    "open",
    "ops",
    "preview",
    "recipes",
    "records",
    "text",
    "tfrecord",
    "zip",
]
_publish(globals(), (name for name in __all__ if name != "GpuloadError"))
_publish_methods(
    Loader, ("batch_at", "epoch", "load_state_dict", "peek", "replace", "state_dict", "__iter__", "bad_records")
)
_publish_methods(
    Source,
    ("read", "__getitem__", "cache", "filter", "mark", "rename", "sample", "select", "split", "where"),
)
__version__ = "0.1.0"
