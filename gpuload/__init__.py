"""gpuload: records on disk to device tensors. A batch is a pure function of (source, ops, seed, epoch, step)."""

from __future__ import annotations

from gpuload import ops
from gpuload.batch import Batch
from gpuload.check import check
from gpuload.convert import convert
from gpuload.errors import GpuloadError
from gpuload.loader import Loader
from gpuload.order import Blocks, Buckets
from gpuload.ragged import Ragged
from gpuload.sources import (
    Feature,
    Image,
    Labels,
    Raw,
    Sparse,
    Tensor,
    arrays,
    concat,
    csv,
    fixed,
    idx,
    images,
    mix,
    npy,
    npz,
    records,
    text,
    tfrecord,
)
from gpuload.sources import open as open
from gpuload.sources import zip as zip
from gpuload.sources.base import Source
from gpuload.spec import Field, Spec

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
    "fixed",
    "idx",
    "images",
    "mix",
    "npy",
    "npz",
    "open",
    "ops",
    "records",
    "text",
    "tfrecord",
    "zip",
]
__version__ = "0.1.0"
