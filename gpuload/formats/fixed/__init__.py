"""Files of fixed-length records."""

from gpuload.formats.fixed.source import fixed

__all__ = ["fixed"]
