"""Ops: what happens to the fields of a record between the source and the batch."""

from gpuload.ops.axes import Reshape, Transpose
from gpuload.ops.base import Op
from gpuload.ops.cast import Cast
from gpuload.ops.cleanboxes import CleanBoxes
from gpuload.ops.colour_ops import Brightness, Contrast, Saturation, Sharpness
from gpuload.ops.colour_tones import AutoContrast, Equalize, Invert, Posterize, Solarize
from gpuload.ops.crop import CenterCrop, RandomCrop
from gpuload.ops.dali import Dali
from gpuload.ops.decode import Decode
from gpuload.ops.flip import RandomFlip
from gpuload.ops.normalize import Normalize
from gpuload.ops.onehot import OneHot
from gpuload.ops.pad import Pad
from gpuload.ops.padto import PadTo
from gpuload.ops.python import Python
from gpuload.ops.resize import RandomResizedCrop, Resize
from gpuload.ops.standardize import PerImageStandardization
from gpuload.ops.views import Copy, repeat
from gpuload.tracebacks import publish

__all__ = [
    "AutoContrast",
    "Brightness",
    "Cast",
    "CenterCrop",
    "CleanBoxes",
    "Contrast",
    "Copy",
    "Dali",
    "Decode",
    "Equalize",
    "Invert",
    "Normalize",
    "OneHot",
    "Op",
    "Pad",
    "PadTo",
    "PerImageStandardization",
    "Posterize",
    "Python",
    "RandomCrop",
    "RandomFlip",
    "RandomResizedCrop",
    "Reshape",
    "Resize",
    "Saturation",
    "Sharpness",
    "Solarize",
    "Transpose",
    "repeat",
]
publish(globals(), __all__)
