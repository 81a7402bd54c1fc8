"""Ten thousand draws of each geometric op: where boxes and keypoints go, beside torchvision's
functions."""

from __future__ import annotations

import importlib

import numpy as np

from gpuload.ops import (
    Affine,
    CenterCrop,
    Pad,
    Perspective,
    RandomCrop,
    RandomFlip,
    RandomResizedCrop,
    RandomZoomOut,
    Resize,
    Rotate,
    boxes,
)
from tests.oracle_torchvision import functional, torch

tv_tensors = importlib.import_module("torchvision.tv_tensors")
COUNT = 10_000
SIZES = ((60, 80), (33, 47), (120, 50))
FORMS = ("xyxy", "xywh", "cxcywh")


def random_boxes(rng, size):
    """Return four boxes that lie in an image, float32 ``[4, 4]``: left, top, right, bottom."""
    height, width = size
    ends = np.sort(rng.random((4, 2, 2)) * (width, height), axis=1).astype(np.float32)
    return np.concatenate([ends[:, 0], ends[:, 1]], axis=1)


def check(op_of, function, tolerance, points=True):
    """Compare with ``function(tensor, draw, u, size)`` for random numbers ``u``; pixels of
    tolerance are of float32."""
    rng = np.random.default_rng(5)
    for number in range(COUNT):
        size, form = SIZES[number % len(SIZES)], FORMS[number // 3 % len(FORMS)]
        op = op_of(number, size)
        u = rng.random(op.num_uniforms)
        draws = op.draw(u[None], np.array([size], np.int32))
        draw, after = (
            {name: values[0] for name, values in draws.items()},
            op.size_after(np.array([size], np.int32), draws),
        )
        corners, sizes = random_boxes(rng, size), np.broadcast_to(np.array(size, np.int32), (4, 2))
        values = boxes.from_corners(corners, form, sizes, np.dtype("f4"))

        moved = op.traits.geometric.move_boxes(
            boxes.to_corners(values, form, sizes), draw, np.array(size, np.int32)
        )
        result = boxes.clip(moved, np.broadcast_to(after, (4, 2)))

        tensor = tv_tensors.BoundingBoxes(
            torch.from_numpy(values), format=form.upper(), canvas_size=size
        )
        expected = functional.clamp_bounding_boxes(function(tensor, draw, u, size))
        assert expected.canvas_size == tuple(after[0].tolist())
        expected = functional.convert_bounding_box_format(expected, new_format="XYXY").numpy()
        np.testing.assert_allclose(
            result, expected, rtol=0, atol=tolerance, err_msg=f"{op} {number}"
        )
        if points:
            moved = op.traits.geometric.move_keypoints(
                corners[:, :2].astype(np.float64), draw, np.array(size, np.int32)
            )
            tensor = tv_tensors.KeyPoints(torch.from_numpy(corners[:, :2].copy()), canvas_size=size)
            expected = function(tensor, draw, u, size).numpy()
            inside = ((expected > 0) & (expected < after[0][::-1] - 1)).all(
                axis=1
            )  # torchvision may move others inside
            np.testing.assert_allclose(
                moved[inside], expected[inside], rtol=0, atol=tolerance, err_msg=f"{op} {number}"
            )


def test_flips():
    def flip(tensor, draw, u, size):
        tensor = functional.horizontal_flip(tensor) if draw["horizontal"] else tensor
        return functional.vertical_flip(tensor) if draw["vertical"] else tensor

    check(lambda number, size: RandomFlip(vertical=True), flip, 1e-4)


def test_crops_and_pads():
    def crop(tensor, draw, u, size):
        top, left = draw["start"].tolist()
        return functional.crop(tensor, top, left, 30, 40)

    def pad(tensor, draw, u, size):
        return functional.pad(tensor, [3, 5, 7, 9])

    check(lambda number, size: RandomCrop(30, 40, pad=7), crop, 1e-4)
    check(lambda number, size: CenterCrop(30, 40), crop, 1e-4)
    check(lambda number, size: Pad(margin=(3, 5, 7, 9)), pad, 1e-4)


def test_resizes():
    def resize(tensor, draw, u, size):
        return functional.resize(tensor, [45, 33])

    def resized_crop(tensor, draw, u, size):
        (top, left), (height, width) = draw["start"].tolist(), draw["shape"].tolist()
        return functional.resized_crop(tensor, top, left, height, width, [32, 48])

    check(lambda number, size: Resize(45, 33), resize, 2e-4)
    check(lambda number, size: RandomResizedCrop(32, 48), resized_crop, 2e-3)


def test_rotations():
    def rotate(tensor, draw, u, size):
        return functional.rotate(tensor, float(-180 + u[0] * 360))

    check(lambda number, size: Rotate(180), rotate, 2e-3)


def test_rotations_that_expand():
    """Torchvision counts from the corner of the box about the turned image, of which the canvas
    holds the middle.

    Its canvas of boxes has a pixel more or less than that of its image for two of three angles;
    ours is the image's, which test_warp_torch.py compares.
    """
    rng, op = np.random.default_rng(6), Rotate(180, expand=True)
    for number in range(COUNT):
        size = np.array(SIZES[number % len(SIZES)], np.int32)
        u = rng.random(1)
        draw = {name: values[0] for name, values in op.draw(u[None], size[None]).items()}
        corners, angle = random_boxes(rng, size), float(-180 + u[0] * 360)
        cosine, sine = abs(np.cos(np.deg2rad(angle))), abs(np.sin(np.deg2rad(angle)))
        beside = (draw["size"][::-1] - size @ [[sine, cosine], [cosine, sine]]) / 2

        moved = op.traits.geometric.move_boxes(corners.astype(np.float64), draw, size) - np.tile(
            beside, 2
        )
        points = (
            op.traits.geometric.move_keypoints(corners[:, :2].astype(np.float64), draw, size)
            - beside
        )

        canvas = {"canvas_size": tuple(size.tolist())}
        tensor = tv_tensors.BoundingBoxes(
            torch.from_numpy(corners), format="XYXY", clamping_mode=None, **canvas
        )
        expected = functional.rotate(tensor, angle, expand=True)
        assert np.abs(np.array(expected.canvas_size) - draw["size"]).max() <= 1
        assert np.abs(beside).max() < 1
        np.testing.assert_allclose(
            moved, expected.numpy(), rtol=0, atol=2e-3, err_msg=f"{angle} {size}"
        )
        tensor = tv_tensors.KeyPoints(torch.from_numpy(corners[:, :2].copy()), **canvas)
        expected = functional.rotate(tensor, angle, expand=True).numpy()
        np.testing.assert_allclose(points, expected, rtol=0, atol=2e-3, err_msg=f"{angle} {size}")


def test_zoom_outs():
    def zoom_out(tensor, draw, u, size):
        (top, left), (height, width) = (-draw["start"]).tolist(), draw["shape"].tolist()
        return functional.pad(tensor, [left, top, width - left - size[1], height - top - size[0]])

    check(lambda number, size: RandomZoomOut(p=0.9), zoom_out, 1e-4)


def test_affines():
    def affine(tensor, draw, u, size):
        most = (0.3 * size[1], 0.2 * size[0])
        move = [round(-far + v * 2 * far) for far, v in zip(most, u[1:3], strict=True)]
        shear = [-20 + u[4] * 40, -10 + u[5] * 20]
        return functional.affine(tensor, float(-90 + u[0] * 180), move, float(0.5 + u[3]), shear)

    op = Affine(90, translate=(0.3, 0.2), scale=(0.5, 1.5), shear=(-20, 20, -10, 10))
    check(lambda number, size: op, affine, 5e-3)


def test_perspectives():
    def perspective(tensor, draw, u, size):
        return functional.perspective(tensor, None, None, coefficients=draw["matrix"].tolist())

    check(lambda number, size: Perspective(0.4, p=1), perspective, 2e-2)
