"""gpuload: records on disk to device tensors. A batch is a pure function of (source, ops, seed, epoch, step)."""

from __future__ import annotations

from gpuload import ops
from gpuload.batch import Batch
from gpuload.errors import GpuloadError
from gpuload.loader import Loader
from gpuload.order import Blocks
from gpuload.ragged import Ragged
from gpuload.sources import arrays, concat, fixed, images, npy, records
from gpuload.sources import zip as zip
from gpuload.sources.base import Source
from gpuload.spec import Field, Spec

__all__ = [
    "Batch",
    "Blocks",
    "Field",
    "GpuloadError",
    "Loader",
    "Ragged",
    "Source",
    "Spec",
    "arrays",
    "concat",
    "fixed",
    "images",
    "npy",
    "ops",
    "records",
    "zip",
]
__version__ = "0.1.0"
