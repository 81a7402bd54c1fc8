"""Ops: what happens to the fields of a record between the source and the batch."""

from gpuload.ops.axes import Reshape, Transpose
from gpuload.ops.base import Op
from gpuload.ops.cast import Cast
from gpuload.ops.crop import RandomCrop
from gpuload.ops.decode import Decode
from gpuload.ops.flip import RandomFlip
from gpuload.ops.normalize import Normalize
from gpuload.ops.onehot import OneHot
from gpuload.ops.resize import RandomResizedCrop, Resize

__all__ = [
    "Cast",
    "Decode",
    "Normalize",
    "OneHot",
    "Op",
    "RandomCrop",
    "RandomFlip",
    "RandomResizedCrop",
    "Reshape",
    "Resize",
    "Transpose",
]
