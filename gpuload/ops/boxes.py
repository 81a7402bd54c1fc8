"""Boxes and points of an image in numbers: from the form that a field is marked with to corners in
pixels, and back.

Plane   The upper left corner of an image is (0, 0), the lower right one (width, height): COCO's and
        torchvision's.
Forms   ``xyxy`` left, top, right, bottom; ``xywh`` left, top, width, height; ``cxcywh`` centre,
        width, height; ``xy`` of points. In pixels, or ``normalized`` in parts of the image's width
        and height.
Numbers are float64 on the way; float fields get their dtype back, integers are rounded to nearest
        (torchvision cuts off their fraction). Whole numbers become int32 or int64
        (``moved_dtype``): those of 8 and 16 bits would not hold places in an image that grows, and
        those without a sign none beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.ops.base import Boxes, Points, Sizes
from gpuload.spec import NORMALIZED


def moved_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of boxes and points behind an op that moves them: the same, but of integers
    int32 or int64.

    Of all ops, also those that do not enlarge: the dtype of a batch does not depend on their
    arguments.
    """
    if dtype.kind not in "iu":
        return dtype
    if dtype != np.uint64:
        return np.promote_types(dtype, np.int32)
    return np.dtype(np.int64)


def to_corners(values: NDArray[Any], kind: str, size: Sizes) -> Boxes:
    """Return boxes as left, top, right, bottom in pixels, float64 ``[M, 4]``.

    Args:
        values: ``[M, 4]``, in the form ``kind``.
        kind: a kind of boxes, see `spec.KINDS`.
        size: int32 ``[M, 2]``, height and width of the image of each box, pixels.
    """
    boxes = values.astype(np.float64)
    if kind.startswith(NORMALIZED):
        boxes *= _scale(size)
    form = kind.removeprefix(NORMALIZED)
    if form == "xywh":
        boxes[:, 2:] += boxes[:, :2]
    elif form == "cxcywh":
        half = boxes[:, 2:] / 2
        boxes = np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)
    return boxes


def from_corners(corners: Boxes, kind: str, size: Sizes, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return boxes in the form ``kind``, ``[M, 4]``, of the `moved_dtype` of a dtype; see
    ``to_corners``."""
    form, begin, end = kind.removeprefix(NORMALIZED), corners[:, :2], corners[:, 2:]
    if form == "xywh":
        corners = np.concatenate([begin, end - begin], axis=1)
    elif form == "cxcywh":
        corners = np.concatenate([(begin + end) / 2, end - begin], axis=1)
    if kind.startswith(NORMALIZED):
        corners = corners / _scale(size)
    return _as_dtype(corners, moved_dtype(dtype))


def to_pixels(values: NDArray[Any], kind: str, size: Sizes) -> Points:
    """Return points in pixels, float64 ``[M, 2]``; values behind x and y are left out."""
    points = values[:, :2].astype(np.float64)
    if kind.startswith(NORMALIZED):
        return points * _scale(size)[:, :2]
    return points


def from_pixels(points: Points, kind: str, size: Sizes, values: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of ``values``, of their `moved_dtype`, in which x and y are those of points in
    pixels."""
    if kind.startswith(NORMALIZED):
        points = points / _scale(size)[:, :2]
    result = values.astype(moved_dtype(values.dtype))
    result[:, :2] = _as_dtype(points, result.dtype)
    return result


def clip(corners: Boxes, size: Sizes) -> Boxes:
    """Return boxes cut off at the border of images of a size; a box that lies outside has no area
    then."""
    return corners.clip(0, _scale(size))


def _scale(size: Sizes) -> NDArray[np.float64]:
    """Return width, height, width, height of each image, at least 1, float64 ``[M, 4]``."""
    return np.tile(size[:, ::-1], 2).astype(np.float64).clip(1)


def _as_dtype(values: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype.kind not in "iu":
        return values.astype(dtype)
    # Cut off, and not rounded, boxes of whole numbers would move to the upper left. Bounded, for
    # processors differ in the value of a number that the dtype does not hold: a point may
    # be moved to infinity.
    limits = np.iinfo(dtype)
    greatest = np.nextafter(float(limits.max) + 1, 0)
    return np.nan_to_num(np.rint(values), nan=0).clip(limits.min, greatest).astype(dtype)
