"""Sources: records by number, one format a file."""

from gpuload.sources.fixed import fixed
from gpuload.sources.npy import npy

__all__ = ["fixed", "npy"]
