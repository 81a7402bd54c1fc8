"""Sources: records by number, one format a file."""

from gpuload.sources.arrays import arrays
from gpuload.sources.compose import concat, zip
from gpuload.sources.csv import csv
from gpuload.sources.fixed import fixed
from gpuload.sources.idx import idx
from gpuload.sources.images import images
from gpuload.sources.labels import Labels
from gpuload.sources.mix import mix
from gpuload.sources.npy import npy
from gpuload.sources.npz import npz
from gpuload.sources.opening import open
from gpuload.sources.records import records
from gpuload.sources.text import text
from gpuload.sources.tfrecord import Feature, Image, Raw, Sparse, Tensor, tfrecord

__all__ = [
    "Feature",
    "Image",
    "Labels",
    "Raw",
    "Sparse",
    "Tensor",
    "arrays",
    "concat",
    "csv",
    "fixed",
    "idx",
    "images",
    "mix",
    "npy",
    "npz",
    "open",
    "records",
    "text",
    "tfrecord",
    "zip",
]
