"""Recipes whose boxes or masks go with the image: SSD, SSDlite and large-scale jitter;
segmentation.

Sources  torchvision, references/detection and references/segmentation (presets.py, transforms.py),
         and the models of ``torchvision.models.detection``, which resize and normalise; Liu et al.,
         "SSD: Single Shot MultiBox Detector" (2016), section 2.2; Ghiasi et al., "Simple
         Copy-Paste" (2021), section 3.2.
Differs  docs/recipes.md
"""

from __future__ import annotations

from typing import Any

from gpuload import ops
from gpuload.ops import Op
from gpuload.recipes.code import Ops
from gpuload.recipes.form import IMAGE, IMAGENET_MEAN, IMAGENET_STD, Form, Numbers

# Of ImageNet, in whole numbers: SSD subtracts it, and detectors fill with it around images.
CAFFE_MEAN = (123.0, 117.0, 104.0)
MASK = "mask"


def ssd(
    *,
    train: bool = True,
    size: int = 300,
    mean: Numbers = CAFFE_MEAN,
    std: Numbers = 1.0,
    dtype: str = "float32",
    layout: str = "NHWC",
    images: str = "encoded",
    image: str = IMAGE,
    antialias: bool | str = True,
) -> Ops:
    """Return the ops by which torchvision trains SSD300: colours, zoom-out, a crop by the boxes,
    mirrored or not.

    Boxes and their labels are marked: ``source.mark(boxes="xyxy", labels="with boxes")``.

    Args:
        train: True for training, False for evaluation, which only resizes; boxes go with the image
            there, too.
        size: the side of the result, pixels.
        mean: as of `resnet50`, like all that follow.
        std: the standard deviation of the pixels.
        dtype: the dtype of the images.
        layout: the order of the axes of a batch.
        images: the form of the source's images.
        image: the field of the images.
        antialias: the smoothing of the resize.

    Raises:
        SpecError: an argument has a wrong type or value.
    """
    form = Form("ssd", images, image, mean, std, dtype, layout, antialias)
    resize = ops.Resize(size, size, antialias=antialias)
    if not train:
        return form.whole([resize])
    steps = [*_distort(), ops.RandomZoomOut(fill=CAFFE_MEAN), ops.RandomIoUCrop(), ops.RandomFlip()]
    return _detection(form, steps, [resize])


def ssdlite(
    *,
    train: bool = True,
    size: int = 320,
    mean: Numbers = 127.5,
    std: Numbers = 127.5,
    dtype: str = "float32",
    layout: str = "NHWC",
    images: str = "encoded",
    image: str = IMAGE,
    antialias: bool | str = True,
) -> Ops:
    """Return the ops by which torchvision trains SSDlite320: a crop by the boxes, mirrored or not.

    Args:
        train: as of `ssd`, like all that follow.
        size: the side of the result, pixels.
        mean: the mean of the pixels.
        std: the standard deviation of the pixels.
        dtype: the dtype of the images.
        layout: the order of the axes of a batch.
        images: the form of the source's images.
        image: the field of the images.
        antialias: the smoothing of the resize.

    Raises:
        SpecError: an argument has a wrong type or value.
    """
    form = Form("ssdlite", images, image, mean, std, dtype, layout, antialias)
    resize = ops.Resize(size, size, antialias=antialias)
    if train:
        return _detection(form, [ops.RandomIoUCrop(), ops.RandomFlip()], [resize])
    return form.whole([resize])


def lsj(
    *,
    train: bool = True,
    size: int = 1024,
    mean: Numbers = IMAGENET_MEAN,
    std: Numbers = IMAGENET_STD,
    dtype: str = "float32",
    layout: str = "NHWC",
    images: str = "encoded",
    image: str = IMAGE,
    antialias: bool | str = True,
) -> Ops:
    """Return the ops of large-scale jitter, by which Mask R-CNN is trained: resized by 0.1 to 2,
    and cut.

    Args:
        train: as of `ssd`. Images for evaluation have 800 pixels along the shorter side, at most
            1333 along the longer one, so a batch of more than one is a list.
        size: the side of the result of training, pixels.
        mean: as of `ssd`, like all that follow.
        std: the standard deviation of the pixels.
        dtype: the dtype of the images.
        layout: the order of the axes of a batch.
        images: the form of the source's images.
        image: the field of the images.
        antialias: the smoothing of the resize.

    Raises:
        SpecError: an argument has a wrong type or value.
    """
    form = Form("lsj", images, image, mean, std, dtype, layout, antialias)
    if not train:
        # min_size and max_size of torchvision's GeneralizedRCNNTransform.
        return form.whole(
            [ops.Resize(shorter=800, longer=1333, antialias=antialias, rounding="down")]
        )
    crop = ops.RandomCrop(size, pad_if_needed=True, fill=CAFFE_MEAN)
    return _detection(
        form, [ops.ScaleJitter(size, antialias=antialias), crop, ops.RandomFlip()], []
    )


def segmentation(
    *,
    train: bool = True,
    size: int = 480,
    base: int = 520,
    ignore: int = 255,
    mean: Numbers = IMAGENET_MEAN,
    std: Numbers = IMAGENET_STD,
    dtype: str = "float32",
    layout: str = "NHWC",
    images: str = "encoded",
    image: str = IMAGE,
    mask: str = MASK,
    antialias: bool | str = True,
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
        mean: as of `resnet50`, like all that follow.
        std: the standard deviation of the pixels.
        dtype: the dtype of the images.
        layout: the order of the axes of a batch of images.
        images: the form of the source's images and masks: ``"encoded"`` files, or ``"HWC"`` pixels.
        image: the field of the images.
        mask: the field of the masks.
        antialias: the smoothing of the resize of images.

    Raises:
        SpecError: an argument has a wrong type or value.
    """
    form = Form("segmentation", images, image, mean, std, dtype, layout, antialias)
    fields, by_field = (image, mask), {mask: "nearest"}
    decode: dict[str, list[Op]] = {
        "encoded": [ops.Decode("LABELS", on=mask)],
        "CHW": [ops.Transpose("HWC", on=mask)],
    }
    resize: dict[str, Any] = {"interpolation": by_field, "antialias": antialias, "on": fields}
    if train:
        steps: list[Op] = [
            ops.RandomResize(base // 2, base * 2, **resize),
            ops.RandomFlip(on=fields),
            ops.RandomCrop(size, pad_if_needed=True, fill={mask: ignore}, on=fields),
        ]
    else:
        steps = [ops.Resize(shorter=base, rounding="down", **resize)]
    return Ops([*form.decode(), *decode.get(images, []), *steps, *form.finish()])


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
