"""Ops: transforms of the fields of a record between the source and the batch."""

from typing import TYPE_CHECKING

from gpuload import lazy, synonyms

# An op is one line here, its import: `python -m tests.opnames` writes both lists below from these.
if TYPE_CHECKING:
    from gpuload.ops.base import Op
    from gpuload.ops.colour.adjust import Brightness, Contrast, Gamma, Hue, Saturation, Sharpness
    from gpuload.ops.colour.blur import GaussianBlur
    from gpuload.ops.colour.channels import ChannelShuffle, ColorSpace, Grayscale
    from gpuload.ops.colour.clahe import CLAHE
    from gpuload.ops.colour.erasing import Cutout, Erasing, GridMask
    from gpuload.ops.colour.jitter import ColorJitter
    from gpuload.ops.colour.jpegartefacts import JpegArtefacts
    from gpuload.ops.colour.noise import GaussianNoise, SaltAndPepper
    from gpuload.ops.colour.tones import AutoContrast, Equalize, Invert, Posterize, Solarize
    from gpuload.ops.crop.cleanboxes import CleanBoxes
    from gpuload.ops.crop.crop import CenterCrop, RandomCrop
    from gpuload.ops.crop.detection import RandomIoUCrop, RandomZoomOut, ScaleJitter
    from gpuload.ops.crop.pad import Pad
    from gpuload.ops.crop.randomresize import RandomResize
    from gpuload.ops.crop.resize import RandomResizedCrop, Resize
    from gpuload.ops.geometry.affine import Affine, Shear, Translate
    from gpuload.ops.geometry.elastic import Elastic
    from gpuload.ops.geometry.flip import RandomFlip
    from gpuload.ops.geometry.perspective import Perspective
    from gpuload.ops.geometry.rotate import Rotate, Rotate90
    from gpuload.ops.mix.mixing import CutMix, MixUp
    from gpuload.ops.mix.mosaic import Mosaic
    from gpuload.ops.policy.choices import OneOf, Shuffle, Sometimes
    from gpuload.ops.policy.policies import (
        AugMix,
        AutoAugment,
        RandAugment,
        TimmAugment,
        TrivialAugmentWide,
    )
    from gpuload.ops.policy.views import Copy, repeat
    from gpuload.ops.value.axes import Reshape, Transpose
    from gpuload.ops.value.cast import Cast
    from gpuload.ops.value.dali import Dali
    from gpuload.ops.value.decode import Decode
    from gpuload.ops.value.normalize import Normalize
    from gpuload.ops.value.onehot import OneHot
    from gpuload.ops.value.padto import PadTo
    from gpuload.ops.value.python import Python
    from gpuload.ops.value.standardize import PerImageStandardization

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
        "base": ("Op",),
        "colour.adjust": ("Brightness", "Contrast", "Gamma", "Hue", "Saturation", "Sharpness"),
        "colour.blur": ("GaussianBlur",),
        "colour.channels": ("ChannelShuffle", "ColorSpace", "Grayscale"),
        "colour.clahe": ("CLAHE",),
        "colour.erasing": ("Cutout", "Erasing", "GridMask"),
        "colour.jitter": ("ColorJitter",),
        "colour.jpegartefacts": ("JpegArtefacts",),
        "colour.noise": ("GaussianNoise", "SaltAndPepper"),
        "colour.tones": ("AutoContrast", "Equalize", "Invert", "Posterize", "Solarize"),
        "crop.cleanboxes": ("CleanBoxes",),
        "crop.crop": ("CenterCrop", "RandomCrop"),
        "crop.detection": ("RandomIoUCrop", "RandomZoomOut", "ScaleJitter"),
        "crop.pad": ("Pad",),
        "crop.randomresize": ("RandomResize",),
        "crop.resize": ("RandomResizedCrop", "Resize"),
        "geometry.affine": ("Affine", "Shear", "Translate"),
        "geometry.elastic": ("Elastic",),
        "geometry.flip": ("RandomFlip",),
        "geometry.perspective": ("Perspective",),
        "geometry.rotate": ("Rotate", "Rotate90"),
        "mix.mixing": ("CutMix", "MixUp"),
        "mix.mosaic": ("Mosaic",),
        "policy.choices": ("OneOf", "Shuffle", "Sometimes"),
        "policy.policies": (
            "AugMix",
            "AutoAugment",
            "RandAugment",
            "TimmAugment",
            "TrivialAugmentWide",
        ),
        "policy.views": ("Copy", "repeat"),
        "value.axes": ("Reshape", "Transpose"),
        "value.cast": ("Cast",),
        "value.dali": ("Dali",),
        "value.decode": ("Decode",),
        "value.normalize": ("Normalize",),
        "value.onehot": ("OneHot",),
        "value.padto": ("PadTo",),
        "value.python": ("Python",),
        "value.standardize": ("PerImageStandardization",),
    },
    synonyms.OPS,
)
