"""Results of independent libraries for the same images and draws, each where it is installed.

Pillow and OpenCV are called here, torchvision and timm, whose meaning most ops have, in
`torch_libraries`.

Each function returns its library's result for one image and one row of an op's draw. The libraries
are called as their users call them, with the numbers that were drawn; no pixel comes from our own
code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
from gpuload_peers import torch_libraries
from numpy.typing import NDArray

from gpuload.cli.parity_bounds import bound_of
from gpuload.cli.parity_ops import array_form, draw_for, op_of, source_for
from gpuload.cli.parity_rows import Comparison, failure, measure
from gpuload.ops.base import PARTNER
from gpuload.ops.policy.policies import OPERATIONS

Image = NDArray[np.uint8]
Row = dict[str, Any]  # a row of an op's draw
Peer = Callable[
    [Any, Image, Row, Image], NDArray[Any]
]  # of an op, an image, a row of its draw, and the partner
LIBRARIES: dict[
    str, tuple[str, Callable[[], ModuleType]]
] = {  # what pip calls each, and its import
    "Pillow": ("pillow", lambda: import_module("PIL")),
    "OpenCV": ("opencv-python-headless", lambda: import_module("cv2")),
    "torchvision": ("torchvision", lambda: import_module("torchvision")),
    "timm": ("timm", lambda: import_module("timm")),
}


def version_of(library: str) -> str:
    """Return the version of a library, or "" where it cannot be called."""
    return _import(library)[0]


def missing_libraries() -> Iterator[str]:
    """Give a line for each library that cannot be called: its name, and why."""
    for library in LIBRARIES:
        if problem := _import(library)[1]:
            yield f"{library} is not compared: {problem}"


@cache
def _import(library: str) -> tuple[str, str]:
    """Return the version of a library, and why it cannot be called; one of them is ""."""
    package, load = LIBRARIES[library]
    try:
        return str(load().__version__), ""
    except ModuleNotFoundError:
        return "", f"pip install {package}"
    except Exception as error:  # torchvision for CUDA beside torch for CPUs, say
        return "", f"{type(error).__name__}: {error}"


# Pillow: pixels that move


def _pillow(image: Image) -> Any:
    from PIL import Image as images

    return images.fromarray(image)


def _flip(op: Any, image: Image, draw: Row, partner: Image) -> NDArray[Any]:
    from PIL import ImageOps

    if draw["horizontal"]:
        result = ImageOps.mirror(_pillow(image))
    else:
        result = _pillow(image)
    return np.asarray(ImageOps.flip(result) if draw["vertical"] else result)


def _quarters(op: Any, image: Image, draw: Row, partner: Image) -> NDArray[Any]:
    return np.asarray(_pillow(image).rotate(90 * int(draw["quarters"]), expand=True))


def _window(op: Any, image: Image, draw: Row, partner: Image) -> NDArray[Any]:
    from PIL import Image as images

    top, left = draw["start"].tolist()
    if "shape" in draw:
        height, width = draw["shape"].tolist()
    else:
        height, width = (op.height, op.width)
    canvas = images.new("RGB", (width, height), (int(getattr(op, "fill", 0)),) * 3)
    canvas.paste(_pillow(image), (-left, -top))
    return np.asarray(canvas)


def _warp(op: Any, image: Image, draw: Row, partner: Image) -> NDArray[Any]:
    from PIL import Image as images

    height, width = image.shape[:2]
    numbers = draw["matrix"].astype(float).tolist()
    method = images.Transform.PERSPECTIVE
    if len(numbers) == 6:  # places count from the middle of the image; in Pillow from its corner
        a, b, c, d, e, f = numbers
        middle_x, middle_y = width / 2, height / 2
        numbers = [
            a, b, c + middle_x - a * middle_x - b * middle_y, d, e, f + middle_y - d * middle_x - e * middle_y,
        ]  # fmt: skip
        method = images.Transform.AFFINE
    if op.interpolation == "nearest":
        resample = images.Resampling.NEAREST
    else:
        resample = images.Resampling.BILINEAR
    return np.asarray(_pillow(image).transform((width, height), method, numbers, resample))


def _resize(op: Any, image: Image, draw: Row, partner: Image) -> NDArray[Any]:
    from PIL import Image as images

    filters = {"linear": "BILINEAR", "cubic": "BICUBIC", "nearest": "NEAREST"}
    resample = images.Resampling[filters[op.interpolation]]
    if "size" in draw:
        height, width = map(int, draw["size"])
    else:
        height, width = (op.height, op.width)
    if "start" in draw:
        (top, left), (rows, columns) = draw["start"].tolist(), draw["shape"].tolist()
        image = image[top : top + rows, left : left + columns]
    return np.asarray(_pillow(image).resize((width, height), resample))


# Pillow: colours


def _enhance(name: str) -> Peer:
    def enhance(op: Any, image: Image, draw: Row, partner: Image) -> NDArray[Any]:
        from PIL import ImageEnhance

        return np.asarray(
            getattr(ImageEnhance, name)(_pillow(image)).enhance(float(draw["factor"]))
        )

    return enhance


def _tone(name: str, *arguments: str) -> Peer:
    def change(op: Any, image: Image, draw: Row, partner: Image) -> NDArray[Any]:
        from PIL import ImageOps

        values = [getattr(op, argument) for argument in arguments]
        if draw["apply"]:
            return np.asarray(getattr(ImageOps, name)(_pillow(image), *values))
        return image

    return change


def _gray(op: Any, image: Image, draw: Row, partner: Image) -> NDArray[Any]:
    if draw["apply"]:
        return np.asarray(_pillow(image).convert("L").convert("RGB"))
    return image


def _gamma(op: Any, image: Image, draw: Row, partner: Image) -> NDArray[Any]:
    # 255.999: torchvision's adjust_gamma multiplies by it before it cuts fractions off, so that 255
    # keeps its place.
    table = [
        min(255, int(255.999 * (level / 255) ** float(draw["factor"]))) for level in range(256)
    ]
    return np.asarray(_pillow(image).point(table * 3))


def _shuffle_channels(op: Any, image: Image, draw: Row, partner: Image) -> NDArray[Any]:
    from PIL import Image as images

    bands = _pillow(image).split()
    order = sorted(range(3), key=lambda band: float(draw["keys"][band]))
    return np.asarray(images.merge("RGB", [bands[band] for band in order]))


def _swap_channels(op: Any, image: Image, draw: Row, partner: Image) -> NDArray[Any]:
    import cv2

    return np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2BGR))


def _policy(op: Any, image: Image, draw: Row, partner: Image) -> NDArray[Any]:
    result = _pillow(image)
    for number, level in zip(draw["op"].tolist(), draw["level"].tolist(), strict=True):
        result = _operate(result, OPERATIONS[number], level)
    return np.asarray(result)


def _operate(image: Any, name: str, level: float) -> Any:
    """Return an image of Pillow behind an operation of a policy, as torchvision does it."""
    from PIL import Image as images
    from PIL import ImageEnhance, ImageOps

    matrices = {
        "ShearX": (1, level, 0, 0, 1, 0), "ShearY": (1, 0, 0, level, 1, 0),
        "TranslateX": (1, 0, -int(level), 0, 1, 0), "TranslateY": (1, 0, 0, 0, 1, -int(level)),
    }  # fmt: skip
    if name in matrices:
        return image.transform(
            image.size, images.Transform.AFFINE, matrices[name], images.Resampling.NEAREST
        )
    if name == "Rotate":
        return image.rotate(level, images.Resampling.NEAREST)
    if name in ("Brightness", "Color", "Contrast", "Sharpness"):
        return getattr(ImageEnhance, name)(image).enhance(1.0 + level)
    if name == "Posterize":
        return ImageOps.posterize(image, int(level))
    if name == "Solarize":
        return ImageOps.solarize(image, round(255.0 * level, 4))
    functions = {
        "AutoContrast": ImageOps.autocontrast,
        "Equalize": ImageOps.equalize,
        "Invert": ImageOps.invert,
    }
    if name in functions:
        return functions[name](image)
    return image


# Pillow: covering and mixing


def _cover(op: Any, image: Image, draw: Row, partner: Image) -> NDArray[Any]:
    result = _pillow(image)
    for top, left, height, width in draw["boxes"].tolist():
        if height and width:
            result.paste((0, 0, 0), (left, top, left + width, top + height))
    return np.asarray(result)


def _grid(op: Any, image: Image, draw: Row, partner: Image) -> NDArray[Any]:
    unit, stays, top, left = draw["grid"].tolist()
    result = _pillow(image)
    for y in range(top - unit, image.shape[0], unit) if unit else ():
        for x in range(left - unit, image.shape[1], unit):
            box = [max(side, 0) for side in (x + stays, y + stays, x + unit, y + unit)]
            if box[0] < box[2] and box[1] < box[3]:
                result.paste((0, 0, 0), box)
    return np.asarray(result)


def _paste_partner(op: Any, image: Image, draw: Row, partner: Image) -> NDArray[Any]:
    top, left, bottom, right = draw["box"].tolist()
    result = _pillow(image)
    if top < bottom and left < right:
        result.paste(_pillow(partner).crop((left, top, right, bottom)), (left, top))
    return np.asarray(result)


# OpenCV


def _hue(op: Any, image: Image, draw: Row, partner: Image) -> NDArray[Any]:
    import cv2

    # In float32: OpenCV's HSV of bytes has 180 hues, too few to compare with.
    hsv = cv2.cvtColor(image.astype(np.float32) / 255, cv2.COLOR_RGB2HSV)
    hsv[..., 0] = (hsv[..., 0] + 360 * draw["shift"]) % 360
    rgb = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)
    return np.asarray((rgb * 255.999).clip(0, 255).astype(np.uint8))


def _blur(op: Any, image: Image, draw: Row, partner: Image) -> NDArray[Any]:
    import cv2

    across, down = draw["across"], draw["down"]
    sums = cv2.sepFilter2D(
        image.astype(np.float32), cv2.CV_32F, across, down, borderType=cv2.BORDER_REFLECT_101
    )
    return np.asarray(np.rint(sums).clip(0, 255).astype(np.uint8))


def _equalize_tiles(op: Any, image: Image, draw: Row, partner: Image) -> NDArray[Any]:
    import cv2

    if not draw["apply"]:
        return image
    lab = cv2.cvtColor(image, cv2.COLOR_RGB2LAB)
    if isinstance(op.grid, tuple):
        grid = op.grid
    else:
        grid = (op.grid, op.grid)
    lab[..., 0] = cv2.createCLAHE(float(draw["clip_limit"]), grid[::-1]).apply(lab[..., 0])
    return np.asarray(cv2.cvtColor(lab, cv2.COLOR_LAB2RGB))


def _compress(op: Any, image: Image, draw: Row, partner: Image) -> NDArray[Any]:
    import cv2

    if not draw["quality"]:
        return image
    _, data = cv2.imencode(
        ".jpg", image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, int(draw["quality"])]
    )
    decoded_image: Any = cv2.imdecode(data, cv2.IMREAD_COLOR)
    return np.asarray(decoded_image[..., ::-1])


def _normalize(op: Any, image: Image, draw: Row, partner: Image) -> NDArray[Any]:
    import cv2

    shape = image.shape
    mean, std = (np.broadcast_to(np.float32(values), shape).copy() for values in (op.mean, op.std))
    return np.asarray(cv2.divide(cv2.subtract(image.astype(np.float32), mean), std))


def _standardize(op: Any, image: Image, draw: Row, partner: Image) -> NDArray[Any]:
    import cv2

    mean, std = cv2.meanStdDev(image.reshape(-1, 1))
    least = 1 / np.sqrt(image.size)  # as TensorFlow's per_image_standardization has it
    return np.asarray(((image - mean[0, 0]) / max(std[0, 0], least)).astype(np.float32))


def _blend(op: Any, image: Image, draw: Row, partner: Image) -> NDArray[Any]:
    import cv2

    weight = float(draw["weight"])
    return np.asarray(cv2.addWeighted(image, weight, partner, 1 - weight, 0))


PEERS: dict[str, tuple[str, Peer]] = {
    "Affine": ("Pillow", _warp),
    "AutoAugment": ("Pillow", _policy),
    "AutoContrast": ("Pillow", _tone("autocontrast")),
    "Brightness": ("Pillow", _enhance("Brightness")),
    "CLAHE": ("OpenCV", _equalize_tiles),
    "CenterCrop": ("Pillow", _window),
    "ChannelShuffle": ("Pillow", _shuffle_channels),
    "ColorSpace": ("OpenCV", _swap_channels),
    "Contrast": ("Pillow", _enhance("Contrast")),
    "CutMix": ("Pillow", _paste_partner),
    "Cutout": ("Pillow", _cover),
    "Equalize": ("Pillow", _tone("equalize")),
    "Erasing": ("Pillow", _cover),
    "Gamma": ("Pillow", _gamma),
    "GaussianBlur": ("OpenCV", _blur),
    "Grayscale": ("Pillow", _gray),
    "GridMask": ("Pillow", _grid),
    "Hue": ("OpenCV", _hue),
    "Invert": ("Pillow", _tone("invert")),
    "JpegArtefacts": ("OpenCV", _compress),
    "MixUp": ("OpenCV", _blend),
    "Normalize": ("OpenCV", _normalize),
    "Pad": ("Pillow", _window),
    "PerImageStandardization": ("OpenCV", _standardize),
    "Perspective": ("Pillow", _warp),
    "Posterize": ("Pillow", _tone("posterize", "bits")),
    "RandAugment": ("Pillow", _policy),
    "RandomCrop": ("Pillow", _window),
    "RandomFlip": ("Pillow", _flip),
    "RandomIoUCrop": ("Pillow", _window),
    "RandomResize": ("Pillow", _resize),
    "RandomResizedCrop": ("Pillow", _resize),
    "RandomZoomOut": ("Pillow", _window),
    "Resize": ("Pillow", _resize),
    "Rotate": ("Pillow", _warp),
    "Rotate90": ("Pillow", _quarters),
    "Saturation": ("Pillow", _enhance("Color")),
    "ScaleJitter": ("Pillow", _resize),
    "Sharpness": ("Pillow", _enhance("Sharpness")),
    "Shear": ("Pillow", _warp),
    "Solarize": ("Pillow", _tone("solarize", "threshold")),
    "Translate": ("Pillow", _warp),
    "TrivialAugmentWide": ("Pillow", _policy),
}
NO_PEER = {  # ops beside which no library is called here, and why
    "AugMix": "timm's, with which tests compare it",
    "Cast": "NumPy's own conversion, saturated",
    "CleanBoxes": "it takes rows away",
    "ColorJitter": "its steps are compared by themselves",
    "Copy": "it changes no value",
    "Elastic": "its noise is gpuload's own; tests compare it with torchvision's formula",
    "GaussianNoise": "its noise is gpuload's own",
    "Mosaic": "it pastes four images; each pixel is one of theirs",
    "OneHot": "it writes zeros and a one",
    "OneOf": "its ops are compared by themselves",
    "PadTo": "it adds rows",
    "Reshape": "it changes no value",
    "SaltAndPepper": "its noise is gpuload's own",
    "Shuffle": "its ops are compared by themselves",
    "Sometimes": "its ops are compared by themselves",
    "TimmAugment": "timm's, with which it is compared where that is installed",
    "Transpose": "it changes no value",
}


def compare_peer(call: str) -> Iterator[Comparison]:
    """Give the comparisons of an op's array form with independent libraries, with those that there
    are for it."""
    name = type(op_of(call)).__name__
    for library, peer in filter(None, (PEERS.get(name), torch_libraries.PEERS.get(name))):
        if version_of(library):
            yield _compare(call, library, peer)


def _compare(call: str, library: str, peer: Peer) -> Comparison:
    op, subject = op_of(call), call.removeprefix("gl.ops.")
    bound, against = bound_of(subject, library), f"{library} {version_of(library)}"
    graph, draws, values = draw_for(op, source_for(op))
    means = array_form(graph, draws, values)["image"]
    draw = next(rows for step, rows in zip(graph.ops, draws, strict=True) if type(step) is type(op))
    partners = draw.get(PARTNER, np.zeros(len(means), np.int32)).reshape(len(means), -1)[:, 0]
    try:
        results = [
            peer(
                op,
                image,
                {key: rows[row] for key, rows in draw.items()},
                values["image"][row + partners[row]],
            )
            for row, image in enumerate(values["image"])
        ]
        return measure(
            subject, "array form", against, bound, [np.asarray(mean) for mean in means], results
        )
    except (
        Exception
    ) as error:  # the comparison names the error, and the other ops are still compared
        return failure(subject, "array form", against, bound, error)
