"""Results of torchvision and timm for the same images and draws, where they are installed: see
`libraries`.

torchvision  its functions on tensors of uint8, ``transforms.v2.functional``, and on images of
             Pillow for its policies.
timm         its operations on images of Pillow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.ops.policy.policies import OPERATIONS, values_of

Image = NDArray[np.uint8]
Row = dict[str, Any]  # a row of an op's draw
Peer = Callable[
    [Any, Image, Row, Image], NDArray[Any]
]  # of an op, an image, a row of its draw, and the partner
Change = Callable[
    [Any, Any, Row, Any], Any
]  # a tensor, of functions, an op, a row of its draw, and a tensor
MODES = {"nearest": "NEAREST", "linear": "BILINEAR", "cubic": "BICUBIC"}


def _by(change: Change) -> Peer:
    """Return the peer that changes an image as a tensor ``[channels, height, width]``."""

    def peer(op: Any, image: Image, draw: Row, partner: Image) -> NDArray[Any]:
        functions = import_module("torchvision.transforms.v2.functional")
        tensor = import_module("torch").from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))
        return np.ascontiguousarray(change(functions, op, draw, tensor).numpy().transpose(1, 2, 0))

    return peer


def _factor(name: str) -> Peer:
    return _by(lambda functions, op, draw, x: getattr(functions, name)(x, float(draw["factor"])))


def _tone(name: str, *arguments: str) -> Peer:
    def change(functions: Any, op: Any, draw: Row, x: Any) -> Any:
        values = [getattr(op, argument) for argument in arguments]
        if draw["apply"]:
            return getattr(functions, name)(x, *values)
        return x

    return _by(change)


def _jitter(functions: Any, op: Any, draw: Row, x: Any) -> Any:
    names = ("adjust_brightness", "adjust_contrast", "adjust_saturation", "adjust_hue")
    for number in draw["order"].tolist():
        x = getattr(functions, names[number])(x, float(draw["amount"][number]))
    return x


def _flip(functions: Any, op: Any, draw: Row, x: Any) -> Any:
    if draw["horizontal"]:
        x = functions.horizontal_flip(x)
    if draw["vertical"]:
        return functions.vertical_flip(x)
    return x


def _window(functions: Any, op: Any, draw: Row, x: Any) -> Any:
    top, left = draw["start"].tolist()
    if "shape" in draw:
        height, width = draw["shape"].tolist()
    else:
        height, width = (op.height, op.width)
    right, bottom = (
        left + width - x.shape[2],
        top + height - x.shape[1],
    )  # of the window, beyond the image
    fill = float(getattr(op, "fill", 0))
    # torchvision's crop fills what lies beyond the image with zeros; other fills have to be padded
    # before.
    x = functions.pad(x, [max(-left, 0), max(-top, 0), max(right, 0), max(bottom, 0)], fill=fill)
    return functions.crop(x, max(top, 0), max(left, 0), height, width)


def _cover(functions: Any, op: Any, draw: Row, x: Any) -> Any:
    for top, left, height, width in draw["boxes"].tolist():
        if height and width:
            x = functions.erase(x, top, left, height, width, x.new_zeros(3, 1, 1))
    return x


def _mode(name: str) -> Any:
    """Return the interpolation of a resize; gpuload takes the pixel in whose square the middle of
    the new one lies."""
    modes = import_module("torchvision.transforms.v2").InterpolationMode
    if name == "nearest":
        return modes.NEAREST_EXACT
    return modes[MODES[name]]


def _resize(functions: Any, op: Any, draw: Row, x: Any) -> Any:
    if "size" in draw:
        height, width = map(int, draw["size"])
    else:
        height, width = (op.height, op.width)
    if "start" in draw:
        (top, left), (rows, columns) = draw["start"].tolist(), draw["shape"].tolist()
        x = x[:, top : top + rows, left : left + columns]
    return functions.resize(x, [height, width], _mode(op.interpolation), antialias=True)


def _warp(functions: Any, op: Any, draw: Row, x: Any) -> Any:
    matrix = draw["matrix"].astype(float).tolist()
    mode = import_module("torchvision.transforms.v2").InterpolationMode[MODES[op.interpolation]]
    if len(matrix) == 6:  # v2's affine takes angles; it makes a matrix and calls this function
        tensors = import_module("torchvision.transforms._functional_tensor")
        return tensors.affine(x, matrix, interpolation=mode.value, fill=[float(op.fill)])
    return functions.perspective(
        x, None, None, coefficients=matrix, interpolation=mode, fill=op.fill
    )


def _blur(functions: Any, op: Any, draw: Row, x: Any) -> Any:
    sigmas = []
    for line in (
        draw["across"],
        draw["down"],
    ):  # a weight is exp(-1 / (2 sigma ** 2)) of the one in the middle
        middle, beside = float(line[len(line) // 2]), float(line[len(line) // 2 + 1])
        sigmas.append(math.sqrt(-0.5 / math.log(beside / middle)))
    return functions.gaussian_blur(x, [len(draw["across"]), len(draw["down"])], sigmas)


def _normalize(functions: Any, op: Any, draw: Row, x: Any) -> Any:
    return functions.normalize(x.float(), list(op.mean), list(op.std))


def _shuffle_channels(functions: Any, op: Any, draw: Row, x: Any) -> Any:
    return functions.permute_channels(x, np.argsort(draw["keys"][:3], kind="stable").tolist())


def _policy(op: Any, image: Image, draw: Row, partner: Image) -> NDArray[Any]:
    from PIL import Image as images

    transforms = import_module("torchvision.transforms.v2")
    mode = transforms.InterpolationMode[MODES[op.interpolation]]
    policy, result = (
        transforms.RandAugment(interpolation=mode, fill=op.fill),
        images.fromarray(image),
    )
    for number, level in zip(draw["op"].tolist(), draw["level"].tolist(), strict=True):
        name = OPERATIONS[number]
        if name == "Solarize":  # the threshold of torchvision.transforms, see ops.policies
            size = np.array([image.shape[:2]], np.int32)
            threshold = values_of(op.rule(name), np.array([level], np.float64), size)[0].item()
            result = transforms.functional.solarize(result, threshold)
        else:
            result = policy._apply_image_or_video_transform(result, name, level, mode, policy._fill)
    return np.asarray(result)


def _timm(op: Any, image: Image, draw: Row, partner: Image) -> NDArray[Any]:
    from PIL import Image as images

    auto_augment = import_module("timm.data.auto_augment")
    result = images.fromarray(image)
    for number, level, by_cubic in zip(
        *(draw[name].tolist() for name in ("op", "level", "cubic")), strict=True
    ):
        if not number:
            continue
        name = OPERATIONS[number]
        timm_name = next(
            word
            for word in (f"{name}Increasing", f"{name}Rel", name)
            if word in auto_augment.NAME_TO_OP
        )  # of a policy in whose text "inc1" stands
        to_arguments = auto_augment.LEVEL_TO_ARG[timm_name]
        with _sign_in_timm(auto_augment, level):
            if to_arguments:
                arguments = to_arguments(abs(level), {})
            else:
                arguments = ()
        if by_cubic:
            resample = images.Resampling.BICUBIC
        else:
            resample = images.Resampling.BILINEAR
        fill = (int(op.fill),) * 3
        result = auto_augment.NAME_TO_OP[timm_name](
            result, *arguments, fillcolor=fill, resample=resample
        )
    return np.asarray(result)


@contextmanager
def _sign_in_timm(module: Any, level: float) -> Iterator[None]:
    """Have timm, which draws the sign of a level when it makes arguments of it, draw that of this
    level."""
    generator = module.random
    # timm draws from the global `random` of the module: replacing it is the only way to hand in a
    # sign.
    module.random = SimpleNamespace(random=lambda: 0.9 if level < 0 else 0.1)
    try:
        yield
    finally:
        module.random = generator


TORCHVISION: dict[str, Peer] = {
    "Affine": _by(_warp),
    "AutoAugment": _policy,
    "AutoContrast": _tone("autocontrast"),
    "Brightness": _factor("adjust_brightness"),
    "CenterCrop": _by(_window),
    "ChannelShuffle": _by(_shuffle_channels),
    "ColorJitter": _by(_jitter),
    "Contrast": _factor("adjust_contrast"),
    "Equalize": _tone("equalize"),
    "Erasing": _by(_cover),
    "Gamma": _factor("adjust_gamma"),
    "GaussianBlur": _by(_blur),
    "Grayscale": _by(
        lambda functions, op, draw, x: functions.rgb_to_grayscale(x, 3) if draw["apply"] else x
    ),
    "Hue": _by(lambda functions, op, draw, x: functions.adjust_hue(x, float(draw["shift"]))),
    "Invert": _tone("invert"),
    "Normalize": _by(_normalize),
    "Pad": _by(_window),
    "Perspective": _by(_warp),
    "Posterize": _tone("posterize", "bits"),
    "RandAugment": _policy,
    "RandomCrop": _by(_window),
    "RandomFlip": _by(_flip),
    "RandomIoUCrop": _by(_window),
    "RandomResize": _by(_resize),
    "RandomResizedCrop": _by(_resize),
    "RandomZoomOut": _by(_window),
    "Resize": _by(_resize),
    "Rotate": _by(_warp),
    "Saturation": _factor("adjust_saturation"),
    "ScaleJitter": _by(_resize),
    "Sharpness": _factor("adjust_sharpness"),
    "Shear": _by(_warp),
    "Solarize": _tone("solarize", "threshold"),
    "Translate": _by(_warp),
    "TrivialAugmentWide": _policy,
}
PEERS = {name: ("torchvision", peer) for name, peer in TORCHVISION.items()} | {
    "TimmAugment": ("timm", _timm)
}
