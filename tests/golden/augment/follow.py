"""Writes follow.npz: what torchvision makes of masks, boxes and keypoints beside an image that it turns or warps.

    python tests/golden/augment/follow.py        with torch 2.13.0 (CPU) and torchvision 0.28.0

``mask``, uint8 ``[H, W]``, ``boxes``, ``[M, 4]``, and ``points``, ``[M, 2]``, float32 in pixels, are before. Of each
case ``CASE/mask``, ``CASE/boxes``, ``CASE/points`` are behind, and ``CASE/canvas``, height and width, of the mask.
Boxes and points are as torchvision has them before it cuts them off at its canvas. ``rotate/ANGLE`` turns by degrees
with ``expand=True``; ``affine/ANGLE/SCALE/SHEAR/SHEAR``; ``perspective/NUMBER`` by ``matrix/NUMBER``; ``zoom_out`` lies
at ``start``, top and left, in ``shape``, height and width.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.oracle_torchvision import functional, torch, torchvision

tv_tensors = importlib.import_module("torchvision.tv_tensors")
SIZE = (21, 34)
BOXES = np.array(
    [[2, 4, 30, 20], [0, 0, 34, 21], [20.5, 10.25, 29.75, 19.5], [10, 10, 11, 12]], np.float32
)
POINTS = np.array([[0, 0], [33, 20], [12.5, 14.25], [29.5, 3]], np.float32)
ANGLES = (-170.0, -90.0, -33.5, -1.0, 0.0, 12.0, 45.0, 90.0, 117.25, 180.0)
AFFINES = ((20.0, 0.75, 5.0, -8.0), (-75.5, 1.4, -10.0, 0.0))
ENDS = (
    [[3, 2], [30, 1], [33, 18], [1, 20]],
    [[0, 0], [25, 4], [30, 15], [6, 19]],
)


def main() -> None:
    """Write the file."""
    mask = np.zeros(SIZE, np.uint8)
    mask[4:20, 2:30], mask[10:12, 10:11] = 1, 2
    values = {"mask": mask, "boxes": BOXES, "points": POINTS}
    values["versions"] = np.array(
        [f"{package.__name__} {package.__version__}" for package in (np, torch, torchvision)]
    )

    def add(case: str, function: object) -> None:
        tensors = {
            "mask": tv_tensors.Mask(torch.from_numpy(mask)[None]),
            "boxes": tv_tensors.BoundingBoxes(
                torch.from_numpy(BOXES), format="XYXY", canvas_size=SIZE, clamping_mode=None
            ),
            "points": tv_tensors.KeyPoints(torch.from_numpy(POINTS), canvas_size=SIZE),
        }
        results = {name: function(tensor).numpy() for name, tensor in tensors.items()}
        results["mask"] = results["mask"][0]
        results["canvas"] = np.array(results["mask"].shape, np.int32)
        values.update({f"{case}/{name}": result for name, result in results.items()})

    for angle in ANGLES:
        add(
            f"rotate/{angle}",
            lambda tensor, angle=angle: functional.rotate(tensor, angle, expand=True),
        )
    for angle, scale, *shear in AFFINES:
        name = "/".join(map(str, ("affine", angle, scale, *shear)))
        add(
            name,
            lambda tensor, words=(angle, [0, 0], scale, shear): functional.affine(tensor, *words),
        )
    height, width = SIZE
    corners = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    coefficients = importlib.import_module(
        "torchvision.transforms.functional"
    )._get_perspective_coeffs
    for number, ends in enumerate(ENDS):
        values[f"matrix/{number}"] = np.array(coefficients(corners, ends), np.float32)
        words = {
            "startpoints": None,
            "endpoints": None,
            "coefficients": values[f"matrix/{number}"].tolist(),
        }
        add(
            f"perspective/{number}",
            lambda tensor, words=words: functional.perspective(tensor, **words),
        )
    values["start"], values["shape"] = np.array([-5, -7], np.int32), np.array([50, 60], np.int32)
    left, top, right, bottom = 7, 5, 60 - 7 - width, 50 - 5 - height
    add("zoom_out", lambda tensor: functional.pad(tensor, [left, top, right, bottom]))
    np.savez_compressed(Path(__file__).with_suffix(".npz"), **values)


if __name__ == "__main__":
    main()
