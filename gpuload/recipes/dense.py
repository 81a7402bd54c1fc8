"""Recipes with boxes or masks that go with the image: SSD, SSDlite and large-scale jitter;
segmentation.

Sources  torchvision, references/detection and references/segmentation (presets.py, transforms.py),
         and the models of ``torchvision.models.detection``, which resize and normalise; Liu et al.,
         "SSD: Single Shot MultiBox Detector" (2016), section 2.2; Ghiasi et al., "Simple
         Copy-Paste" (2021), section 3.2.
Differs  docs/recipes.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuload import ops
from gpuload.ops import Op
from gpuload.recipes.code import Ops
from gpuload.recipes.form import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Form,
    PixelArguments,
    take_pixels,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Of ImageNet, in whole numbers: SSD subtracts it, and detectors fill with it around images.
CAFFE_MEAN = (123.0, 117.0, 104.0)
MASK = "mask"


@take_pixels(CAFFE_MEAN, 1.0)
def ssd(
    *,
    train: bool = True,
    size: int = 300,
    **pixels: Unpack[PixelArguments],
) -> Ops:
    """Return the ops by which torchvision trains SSD300: colours, zoom-out, a crop by the boxes,
    mirrored or not.

    Boxes and their labels are marked: ``source.mark(boxes="xyxy", labels="with boxes")``.

    Args:
        train: True for training, False for evaluation, which only resizes; boxes go with the image
            there, too.
        size: the side of the result, pixels.
        **pixels: ``mean`` to ``antialias``, the form of the images, as of `resnet50`.

    Raises:
        SpecError: an argument has a wrong type or value.
    """
    form = Form("ssd", **pixels)
    resize = ops.Resize(size, size, antialias=form.antialias)
    if not train:
        return form.whole([resize])
    steps = [*_distort(), ops.RandomZoomOut(fill=CAFFE_MEAN), ops.RandomIoUCrop(), ops.RandomFlip()]
    return _detection(form, steps, [resize])


@take_pixels(127.5, 127.5)
def ssdlite(
    *,
    train: bool = True,
    size: int = 320,
    **pixels: Unpack[PixelArguments],
) -> Ops:
    """Return the ops by which torchvision trains SSDlite320: a crop by the boxes, mirrored or not.

    Args:
        train: as of `ssd`.
        size: the side of the result, pixels.
        **pixels: ``mean`` to ``antialias``, the form of the images, as of `resnet50`.

    Raises:
        SpecError: an argument has a wrong type or value.
    """
    form = Form("ssdlite", **pixels)
    resize = ops.Resize(size, size, antialias=form.antialias)
    if train:
        return _detection(form, [ops.RandomIoUCrop(), ops.RandomFlip()], [resize])
    return form.whole([resize])


@take_pixels(IMAGENET_MEAN, IMAGENET_STD)
def lsj(
    *,
    train: bool = True,
    size: int = 1024,
    **pixels: Unpack[PixelArguments],
) -> Ops:
    """Return the ops of large-scale jitter, by which Mask R-CNN is trained: resized by 0.1 to 2,
    and cut.

    Args:
        train: as of `ssd`. Images for evaluation have 800 pixels along the shorter side, at most
            1333 along the longer one, so a batch of more than one is a list.
        size: the side of the result of training, pixels.
        **pixels: ``mean`` to ``antialias``, the form of the images, as of `resnet50`.

    Raises:
        SpecError: an argument has a wrong type or value.
    """
    form = Form("lsj", **pixels)
    if not train:
        # min_size and max_size of torchvision's GeneralizedRCNNTransform.
        return form.whole(
            [ops.Resize(shorter=800, longer=1333, antialias=form.antialias, rounding="down")]
        )
    crop = ops.RandomCrop(size, pad_if_needed=True, fill=CAFFE_MEAN)
    return _detection(
        form, [ops.ScaleJitter(size, antialias=form.antialias), crop, ops.RandomFlip()], []
    )


@take_pixels(IMAGENET_MEAN, IMAGENET_STD)
def segmentation(
    *,
    train: bool = True,
    size: int = 480,
    base: int = 520,
    ignore: int = 255,
    mask: str = MASK,
    **pixels: Unpack[PixelArguments],
) -> Ops:
    """Return the ops by which torchvision trains FCN and DeepLabV3: resized by 0.5 to 2, mirrored
    or not, and cut.

    The mask stays uint8 of one channel, ``[H, W, 1]``, its labels taken by nearest.

    Args:
        train: True for training; False for evaluation: the shorter side has ``base`` pixels, and a
            batch of more than one is a list.
        size: the side of the result of training, pixels.
        base: half of it to twice as much is the shorter side before the crop, pixels.
        ignore: the label around an image that is smaller than the crop; the loss leaves it out.
        mask: the field of the masks, which come in the same form as the images.
        **pixels: ``mean`` to ``antialias``, the form of the images, as of `resnet50`.

    Raises:
        SpecError: an argument has a wrong type or value.
    """
    form = Form("segmentation", **pixels)
    fields, by_field = (form.image, mask), {mask: "nearest"}
    decode: dict[str, list[Op]] = {
        "encoded": [ops.Decode("LABELS", on=mask)],
        "CHW": [ops.Transpose("HWC", on=mask)],
    }
    resize: dict[str, Any] = {"interpolation": by_field, "antialias": form.antialias, "on": fields}
    if train:
        steps: list[Op] = [
            ops.RandomResize(base // 2, base * 2, **resize),
            ops.RandomFlip(on=fields),
            ops.RandomCrop(size, pad_if_needed=True, fill={mask: ignore}, on=fields),
        ]
    else:
        steps = [ops.Resize(shorter=base, rounding="down", **resize)]
    return Ops([*form.decode(), *decode.get(form.images, []), *steps, *form.finish()])


def _detection(form: Form, steps: list[Op], behind: list[Op]) -> Ops:
    """Return a recipe of a detector.

    Args:
        form: the form of the images.
        steps: ops that cut images; boxes outside of the cut are dropped behind them.
        behind: ops behind that.
    """
    return Ops(
        [
            *form.decode(),
            *form.on_image(steps),
            ops.CleanBoxes(),
            *form.on_image(behind),
            *form.finish(),
        ]
    )


def _distort() -> list[Op]:
    """Return torchvision's ``RandomPhotometricDistort``: the contrast changes before or behind
    saturation and hue."""
    contrast = ops.Sometimes(0.5, [ops.Contrast(0.5, 1.5)])
    rest = [
        ops.Sometimes(0.5, [ops.Saturation(0.5, 1.5)]),
        ops.Sometimes(0.5, [ops.Hue(-0.05, 0.05)]),
    ]
    return [
        ops.Sometimes(0.5, [ops.Brightness(0.875, 1.125)]),
        ops.OneOf([[contrast, *rest], [*rest, contrast]]),
        ops.Sometimes(0.5, [ops.ChannelShuffle()]),
    ]
