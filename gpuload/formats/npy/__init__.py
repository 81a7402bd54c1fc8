"""NPY files: one array a file."""

from gpuload.formats.npy.source import npy

__all__ = ["npy"]
