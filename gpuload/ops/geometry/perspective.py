"""Perspective: an image seen from elsewhere.

Formula  Each corner of the image is moved inwards by a random number of whole pixels, at most
         ``distortion / 2`` of its sides. Eight coefficients map these corners to those of the
         image: the inverse of the map from a square to a quadrilateral, computed in float64 and
         rounded to float32; `ops.geometry.warp` takes pixels by them.
Source   torchvision 0.28, `RandomPerspective`, which solves for the coefficients by least squares:
         where one is 0, it has some 1e-17, and may take the other of two pixels that are equally
         near. The closed form: Paul Heckbert, "Fundamentals of Texture Mapping and Image Warping",
         1989, section 2.2.3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload.ops import arguments
from gpuload.ops.base import Draw, Sizes
from gpuload.ops.geometry.warp import IDENTITY, PERSPECTIVE, Interpolation, Warp


@dataclass(frozen=True)
class Perspective(Warp):
    """Show some of the images in a random perspective; HWC, any number of channels.

    The same as torchvision's ``RandomPerspective`` on tensors, see `ops.geometry.perspective` and
    `ops.geometry.warp`; Albumentations' moves corners by normal numbers and may keep the whole
    image; Keras' moves them by parts of the size. DALI's warp_perspective takes matrices that are
    drawn elsewhere; timm has none.

    Example:
        ``gl.ops.Perspective(0.5, p=0.5)``

    Args:
        distortion: how far corners may move, 0 to 1; 1 is half of the sides.
        p: probability.
        interpolation: ``"linear"`` for uint8, uint16 and float32, or ``"nearest"``; or a dict from
            fields to these.
        fill: the value outside of the image: a number, or one for each channel; or a dict from
            field names to these.
    """

    distortion: float = 0.5
    p: float = 0.5
    interpolation: Interpolation = field(default="linear", hash=False, kw_only=True)

    num_uniforms: ClassVar[int] = 9

    def __post_init__(self) -> None:
        super().__post_init__()
        distortion = arguments.number(self, "distortion", self.distortion)
        if not 0 <= distortion <= 1:
            raise arguments.refuse(self, "distortion", self.distortion, "a number from 0 to 1")
        arguments.keep(self, distortion=distortion, p=arguments.probability(self, "p", self.p))

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``matrix``, float32 ``[N, 8]``: a to h."""
        sides = size[:, ::-1].astype(np.float64)
        reach = np.floor(self.distortion * (sides // 2)) + 1
        inwards = np.floor(u[:, 1:].reshape(-1, 4, 2) * reach[:, None])
        corners = np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
        far = (sides - reach)[
            :, None
        ] + inwards  # of the right and lower corners, as torchvision counts them
        matrix = coefficients(np.where(corners == 1, far, inwards), size)
        return {
            "matrix": np.where(
                (u[:, :1] < self.p), matrix, np.array(IDENTITY[PERSPECTIVE], np.float32)
            )
        }


def coefficients(corners: NDArray[np.float64], size: Sizes) -> NDArray[np.float32]:
    """Return the coefficients that map four points of a result to the corners of the image, float32
    ``[N, 8]``.

    Args:
        corners: x and y of the points for the upper left, upper right, lower right and lower left
            corner, ``[N, 4, 2]``.
        size: height and width of the images, pixels, ``[N, 2]``. The corners are pixels: (0, 0) to
            (width - 1, height - 1). Nothing moves where there are no such coefficients: of an image
            of one row or column, and where the upper left corner of the result would lie on the
            horizon.
    """
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = corners.transpose(1, 2, 0)
    sum_x, sum_y = x0 - x1 + x2 - x3, y0 - y1 + y2 - y3
    area = (x1 - x2) * (y3 - y2) - (x3 - x2) * (y1 - y2)
    is_flat = (area == 0) | (size.min(axis=1) < 2)
    area = np.where(is_flat, 1.0, area)
    g = (sum_x * (y3 - y2) - (x3 - x2) * sum_y) / area
    h = ((x1 - x2) * sum_y - sum_x * (y1 - y2)) / area
    a, b, c = x1 - x0 + g * x1, x3 - x0 + h * x3, x0
    d, e, f = y1 - y0 + g * y1, y3 - y0 + h * y3, y0
    # The inverse, but for its determinant, which falls out; then from the unit square to the image.
    inverse = np.stack(
        [
            e - f * h,
            c * h - b,
            b * f - c * e,
            f * g - d,
            a - c * g,
            c * d - a * f,
            d * h - e * g,
            b * g - a * h,
        ],
        axis=1,
    )
    last = a * e - b * d
    width, height = (size[:, ::-1] - 1).T
    ones = np.ones_like(last)
    scale = np.stack([width, width, width, height, height, height, ones, ones], axis=1)
    is_flat |= last == 0
    matrix = inverse * scale / np.where(is_flat, 1.0, last)[:, None]
    return np.where(is_flat[:, None], IDENTITY[PERSPECTIVE], matrix).astype(np.float32)
