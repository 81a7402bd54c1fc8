"""gpuload: records on disk to device tensors. A batch is a pure function of (source, ops, seed, epoch, step)."""

from __future__ import annotations

from gpuload import ops
from gpuload.errors import GpuloadError
from gpuload.loader import Loader
from gpuload.order import Blocks
from gpuload.sources import arrays, concat, fixed, images, npy
from gpuload.sources import zip as zip

__all__ = [
    "Blocks",
    "GpuloadError",
    "Loader",
    "arrays",
    "concat",
    "fixed",
    "images",
    "npy",
    "ops",
    "zip",
]
__version__ = "0.1.0"
