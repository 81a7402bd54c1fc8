"""Ops: transforms of the fields of a record between the source and the batch."""

from typing import TYPE_CHECKING

from gpuload import lazy, synonyms

if TYPE_CHECKING:
    from gpuload.ops.affine import Affine, Shear, Translate
    from gpuload.ops.axes import Reshape, Transpose
    from gpuload.ops.base import Op
    from gpuload.ops.blur import GaussianBlur
    from gpuload.ops.cast import Cast
    from gpuload.ops.choices import OneOf, Shuffle, Sometimes
    from gpuload.ops.clahe import CLAHE
    from gpuload.ops.cleanboxes import CleanBoxes
    from gpuload.ops.colour_channels import ChannelShuffle, ColorSpace, Grayscale
    from gpuload.ops.colour_jitter import ColorJitter
    from gpuload.ops.colour_ops import Brightness, Contrast, Gamma, Hue, Saturation, Sharpness
    from gpuload.ops.colour_tones import AutoContrast, Equalize, Invert, Posterize, Solarize
    from gpuload.ops.crop import CenterCrop, RandomCrop
    from gpuload.ops.dali import Dali
    from gpuload.ops.decode import Decode
    from gpuload.ops.detection import RandomIoUCrop, RandomZoomOut, ScaleJitter
    from gpuload.ops.elastic import Elastic
    from gpuload.ops.erasing import Cutout, Erasing, GridMask
    from gpuload.ops.flip import RandomFlip
    from gpuload.ops.jpegartefacts import JpegArtefacts
    from gpuload.ops.mixing import CutMix, MixUp
    from gpuload.ops.mosaic import Mosaic
    from gpuload.ops.noise import GaussianNoise, SaltAndPepper
    from gpuload.ops.normalize import Normalize
    from gpuload.ops.onehot import OneHot
    from gpuload.ops.pad import Pad
    from gpuload.ops.padto import PadTo
    from gpuload.ops.perspective import Perspective
    from gpuload.ops.policies import (
        AugMix,
        AutoAugment,
        RandAugment,
        TimmAugment,
        TrivialAugmentWide,
    )
    from gpuload.ops.python import Python
    from gpuload.ops.randomresize import RandomResize
    from gpuload.ops.resize import RandomResizedCrop, Resize
    from gpuload.ops.rotate import Rotate, Rotate90
    from gpuload.ops.standardize import PerImageStandardization
    from gpuload.ops.views import Copy, repeat

__all__ = [
    "CLAHE",
    "Affine",
    "AugMix",
    "AutoAugment",
    "AutoContrast",
    "Brightness",
    "Cast",
    "CenterCrop",
    "ChannelShuffle",
    "CleanBoxes",
    "ColorJitter",
    "ColorSpace",
    "Contrast",
    "Copy",
    "CutMix",
    "Cutout",
    "Dali",
    "Decode",
    "Elastic",
    "Equalize",
    "Erasing",
    "Gamma",
    "GaussianBlur",
    "GaussianNoise",
    "Grayscale",
    "GridMask",
    "Hue",
    "Invert",
    "JpegArtefacts",
    "MixUp",
    "Mosaic",
    "Normalize",
    "OneHot",
    "OneOf",
    "Op",
    "Pad",
    "PadTo",
    "PerImageStandardization",
    "Perspective",
    "Posterize",
    "Python",
    "RandAugment",
    "RandomCrop",
    "RandomFlip",
    "RandomIoUCrop",
    "RandomResize",
    "RandomResizedCrop",
    "RandomZoomOut",
    "Reshape",
    "Resize",
    "Rotate",
    "Rotate90",
    "SaltAndPepper",
    "Saturation",
    "ScaleJitter",
    "Sharpness",
    "Shear",
    "Shuffle",
    "Solarize",
    "Sometimes",
    "TimmAugment",
    "Translate",
    "Transpose",
    "TrivialAugmentWide",
    "repeat",
]
lazy.attach(
    __name__,
    {
        "affine": ("Affine", "Shear", "Translate"),
        "axes": ("Reshape", "Transpose"),
        "base": ("Op",),
        "blur": ("GaussianBlur",),
        "cast": ("Cast",),
        "choices": ("OneOf", "Shuffle", "Sometimes"),
        "clahe": ("CLAHE",),
        "cleanboxes": ("CleanBoxes",),
        "colour_channels": ("ChannelShuffle", "ColorSpace", "Grayscale"),
        "colour_jitter": ("ColorJitter",),
        "colour_ops": ("Brightness", "Contrast", "Gamma", "Hue", "Saturation", "Sharpness"),
        "colour_tones": ("AutoContrast", "Equalize", "Invert", "Posterize", "Solarize"),
        "crop": ("CenterCrop", "RandomCrop"),
        "dali": ("Dali",),
        "decode": ("Decode",),
        "detection": ("RandomIoUCrop", "RandomZoomOut", "ScaleJitter"),
        "elastic": ("Elastic",),
        "erasing": ("Cutout", "Erasing", "GridMask"),
        "flip": ("RandomFlip",),
        "jpegartefacts": ("JpegArtefacts",),
        "mixing": ("CutMix", "MixUp"),
        "mosaic": ("Mosaic",),
        "noise": ("GaussianNoise", "SaltAndPepper"),
        "normalize": ("Normalize",),
        "onehot": ("OneHot",),
        "pad": ("Pad",),
        "padto": ("PadTo",),
        "perspective": ("Perspective",),
        "policies": ("AugMix", "AutoAugment", "RandAugment", "TimmAugment", "TrivialAugmentWide"),
        "python": ("Python",),
        "randomresize": ("RandomResize",),
        "resize": ("RandomResizedCrop", "Resize"),
        "rotate": ("Rotate", "Rotate90"),
        "standardize": ("PerImageStandardization",),
        "views": ("Copy", "repeat"),
    },
    synonyms.OPS,
)
