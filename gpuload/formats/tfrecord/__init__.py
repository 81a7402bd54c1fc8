"""TFRecord files: `source.py` is the call and the source, `features.py` the user's description of the fields."""

from gpuload.formats.tfrecord.features import Feature, Image, Raw, Sparse, Tensor
from gpuload.formats.tfrecord.source import tfrecord

__all__ = ["Feature", "Image", "Raw", "Sparse", "Tensor", "tfrecord"]
