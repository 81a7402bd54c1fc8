"""NPZ files: `source.py` is the call and the source, `archive.py` the format."""

from gpuload.formats.npz.source import npz

__all__ = ["npz"]
