"""Sources: records by number, one format a file."""

from gpuload.sources.arrays import arrays
from gpuload.sources.compose import concat, zip
from gpuload.sources.fixed import fixed
from gpuload.sources.images import images
from gpuload.sources.npy import npy
from gpuload.sources.records import records

__all__ = ["arrays", "concat", "fixed", "images", "npy", "records", "zip"]
