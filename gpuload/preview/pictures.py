"""Pictures: images, masks, boxes, points and words as RGB pixels, in rows and columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.display.pictures import Pixels, enlarge, object_labels, rgb_pixels
from gpuload.display.values import image_axes, middle_plane, middle_slice
from gpuload.ops import Normalize, beside, boxes
from gpuload.preview import font
from gpuload.spec import INSTANCES, MASK, Field, Spec

Colour = tuple[int, int, int]
LEAST_SIDE, LARGEST_SIDE, GAP = 160, 640, 6  # pixels of a picture, and between pictures
LINE_WIDTH = 680  # pixels that the pictures of one record take side by side
BOX_COLOUR, POINT_COLOUR, INK, PAPER = (255, 64, 32), (32, 224, 255), (40, 40, 40), (255, 255, 255)


def image_pixels(
    spec: Spec, values: dict[str, Any], field: Field, normalize: Normalize | None = None
) -> tuple[Pixels, str]:
    """Return an image of a record as it is shown, and a note about it: its size, the range of its
    values.

    Args:
        spec: the fields of the record.
        values: the values of the record.
        field: the field of the image; boxes and points that belong to it are drawn into it.
        normalize: the op that made its values of bytes; these are shown then.
    """
    value = np.asarray(values[field.name])
    axes = image_axes(value, field)
    if field.kind == INSTANCES:
        image, note = (
            object_labels(value),
            f"{len(value)} masks, {' x '.join(map(str, value.shape[1:]))}",
        )
    else:
        image, note = (
            middle_plane(value, axes),
            f"{value.dtype} {' x '.join(map(str, value.shape))}",
        )
    if axes.startswith("D"):
        note += f", slice {middle_slice(len(value))}"
    step = max(1, -(-max(image.shape[:2]) // LARGEST_SIDE))
    small, about = rgb_pixels(image, step, is_mask=field.kind in (MASK, INSTANCES))
    if normalize and {np.size(normalize.mean), np.size(normalize.std)} <= {1, image.shape[2]}:
        small, _ = rgb_pixels(_bytes_before(normalize, image), step, is_mask=False)
        about += ", shown without Normalize"
    pixels, times = enlarge(small, LEAST_SIDE)
    if field.name == beside.image_name(spec):
        _draw_annotations(pixels, spec, values, image.shape[:2], times / step)
    if field.kind != INSTANCES:
        note += about
    return pixels, note


def _bytes_before(normalize: Normalize, image: NDArray[Any]) -> Pixels:
    """Return the bytes of which an op made an image ``[height, width, channels]``; no number is
    0."""
    values = image.astype(np.float64) * normalize.std + normalize.mean
    return np.rint(np.nan_to_num(values, nan=0.0)).clip(0, 255).astype(np.uint8)


def _draw_annotations(
    pixels: Pixels, spec: Spec, values: dict[str, Any], size: tuple[int, ...], scale: float
) -> None:  # fmt: skip
    """Draw the marked boxes, with the label of each, and points of a record into its image, which
    was scaled."""
    for field in spec:
        numbers = np.asarray(values[field.name])
        if not (field.holds_boxes or field.holds_points) or numbers.ndim < 1:
            continue
        numbers = numbers.reshape(-1, numbers.shape[-1])
        sizes = np.broadcast_to(np.array(size, np.int32), (len(numbers), 2))
        if field.holds_boxes:
            labels = _labels_of_boxes(spec, values, field.name, len(numbers))
            for corners, label in zip(
                boxes.to_corners(numbers, field.kind, sizes) * scale, labels, strict=True
            ):
                _draw_box(pixels, corners, label)
        else:
            for x, y in boxes.to_pixels(numbers, field.kind, sizes) * scale:
                if (
                    np.isfinite([x, y]).all()
                    and 0 <= x <= pixels.shape[1]
                    and 0 <= y <= pixels.shape[0]
                ):
                    _fill(pixels, x - 3, y - 3, x + 3, y + 3, INK)
                    _fill(pixels, x - 2, y - 2, x + 2, y + 2, POINT_COLOUR)


def _labels_of_boxes(spec: Spec, values: dict[str, Any], name: str, count: int) -> list[str]:
    """Return the label of each box as text: the first field that has one number or text for each;
    else nothing."""
    for field in spec:
        labels = np.asarray(values[field.name])
        if field.rows_of == name and labels.shape == (count,):
            return [str(label) for label in labels.tolist()]
    return [""] * count


def _draw_box(pixels: Pixels, corners: NDArray[np.float64], label: str) -> None:
    """Draw the outline of a box, two pixels wide, inside of it, and its label; nothing of a box
    that is flat."""
    left, top, right, bottom = corners
    if not np.isfinite(corners).all() or left >= right or top >= bottom:
        return
    for area in (
        (left, top, right, top + 2), (left, bottom - 2, right, bottom),
        (left, top, left + 2, bottom), (right - 2, top, right, bottom),
    ):  # fmt: skip
        _fill(pixels, *area, BOX_COLOUR)
    if label:
        ink = font.draw_line(label)
        y, x = max(0, round(float(top))) + 2, max(0, round(float(left))) + 2
        place = pixels[y : y + ink.shape[0], x : x + ink.shape[1]]
        place[:] = np.where(ink[: place.shape[0], : place.shape[1], None], PAPER, BOX_COLOUR)


def _fill(
    pixels: Pixels, left: float, top: float, right: float, bottom: float, colour: Colour
) -> None:
    x, y, end_x, end_y = (max(0, round(float(side))) for side in (left, top, right, bottom))
    pixels[y:end_y, x:end_x] = colour


def text_pixels(lines: Iterable[str], width: int, scale: int = 1) -> Pixels:
    """Return lines of text as a picture, each broken where it is wider than ``width`` pixels."""
    num_letters = max(width // (font.WIDTH * scale), 8)
    parts = [part for line in lines for part in textwrap.wrap(line, num_letters)]
    if parts:
        return grid([[_ink(part, scale)] for part in parts], gap=0)
    return empty()


def _ink(text: str, scale: int) -> Pixels:
    return np.where(
        font.draw_line(text, scale)[..., None], np.array(INK, np.uint8), np.array(PAPER, np.uint8)
    )


def empty() -> Pixels:
    """Return the picture of nothing: one pixel of paper."""
    return np.full((1, 1, 3), PAPER, np.uint8)


def wrap(pictures: Sequence[Pixels]) -> Pixels:
    """Return pictures side by side, in as many lines as they need."""
    lines: list[list[Pixels]] = [[]]
    for picture in pictures:
        if (
            lines[-1]
            and sum(neighbour.shape[1] + GAP for neighbour in lines[-1]) + picture.shape[1]
            > LINE_WIDTH
        ):
            lines.append([])
        lines[-1].append(picture)
    return grid([[grid([line]) if line else empty()] for line in lines], gap=0)


def grid(rows: Sequence[Sequence[Pixels]], gap: int = GAP) -> Pixels:
    """Return pictures in rows and columns, each at the upper left of its place, with a gap behind
    and below it."""
    heights = [max(picture.shape[0] for picture in row) + gap for row in rows]
    widths = [
        max(picture.shape[1] for picture in column) + gap for column in zip(*rows, strict=True)
    ]
    result = np.full((sum(heights), sum(widths), 3), PAPER, np.uint8)
    for row, top in zip(rows, accumulate(heights, initial=0), strict=False):
        for picture, left in zip(row, accumulate(widths, initial=0), strict=False):
            height, width = picture.shape[:2]
            result[top : top + height, left : left + width] = picture
    return result
