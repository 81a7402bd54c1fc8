"""Affine, Shear and Translate: images turned, moved, scaled and sheared about their centre.

Formula  The matrix from the image to the result is T C R S H C^-1: the image's centre to the origin
         (C^-1), sheared by ``tan`` of two angles (H), scaled (S), turned (R), back (C), and moved
         (T). ``ops.geometry.warp`` takes pixels by its inverse, which is computed in float64 and
         rounded to float32.
Source   torchvision 0.28, `transforms.v2.functional.affine`: same parameters, same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload.ops import arguments
from gpuload.ops.base import Draw, Sizes
from gpuload.ops.geometry.warp import Warp

Numbers = NDArray[np.float64]
Range = tuple[float, float]


@dataclass(frozen=True)
class Affine(Warp):
    """Turn, move, scale and shear images by random amounts; HWC, any number of channels.

    The same as torchvision's ``RandomAffine`` on tensors: all are uniform, and images are moved by
    whole pixels. The formula is that of `ops.geometry.affine` and `ops.geometry.warp`. Keras has
    single layers for these, whose scale is ``1 + factor`` and which reflect at borders;
    Albumentations' Affine and DALI's warp_affine blend the border with the fill. timm has single
    ones in its policies.

    Example:
        ``gl.ops.Affine(degrees=10, translate=(0.1, 0.1), scale=(0.9, 1.1), shear=5)``

    Args:
        degrees: least and greatest angle, clockwise, where `Rotate` turns the other way; one number
            is ``(-d, d)``.
        translate: greatest distance, as a part of the width and of the height, 0 to 1.
        scale: least and greatest factor, more than 0.
        shear: angles in degrees: one number is ``(-s, s)`` along x; two are least and greatest
            along x; four are these, and those along y.
        interpolation: ``"nearest"``, or ``"linear"`` for uint8, uint16 and float32; or a dict from
            fields to these.
        fill: the value outside of the image: a number, or one for each channel; or a dict from
            field names to these.
    """

    degrees: float | Range = 0.0
    translate: Range = (0.0, 0.0)
    scale: Range = (1.0, 1.0)
    shear: float | tuple[float, ...] = 0.0

    num_uniforms: ClassVar[int] = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.keep(
            self,
            degrees=arguments.spread(self, "degrees", self.degrees),
            translate=_parts(self, "translate", self.translate),
            scale=arguments.interval(self, "scale", self.scale),
            shear=_shear(self, "shear", self.shear),
        )

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``matrix``, float32 ``[N, 6]``."""
        if isinstance(self.shear, tuple):
            shear = self.shear
        else:
            shear = (self.shear,)
        return {
            "matrix": matrices(
                arguments.between(self.degrees, u[:, 0]),
                _distance(self.translate, u[:, 1:3], size),
                arguments.between(self.scale, u[:, 3]),
                np.stack(
                    [arguments.between(shear[:2], u[:, 4]), arguments.between(shear[2:], u[:, 5])],
                    axis=1,
                ),
            )
        }


@dataclass(frozen=True)
class Shear(Warp):
    """Shear images about their centre by random angles; HWC, any number of channels.

    The formula is that of `ops.geometry.affine`, as torchvision's ``RandomAffine(0, shear=...)``.
    Policies (timm, RandAugment) give the tangent of the angle, and shear about the upper left
    corner. Keras' RandomShear draws parts of the side, of one direction; Albumentations' Affine
    shears by angles, DALI's warp_affine by a matrix.

    Example:
        ``gl.ops.Shear(10)``

    Args:
        x: least and greatest angle along the rows, degrees; one number is ``(-x, x)``.
        y: the same along the columns.
        interpolation: ``"nearest"``, or ``"linear"`` for uint8, uint16 and float32; or a dict from
            fields to these.
        fill: the value outside of the image: a number, or one for each channel; or a dict from
            field names to these.
    """

    x: float | Range
    y: float | Range = 0.0

    num_uniforms: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.keep(self, x=_angles(self, "x", self.x), y=_angles(self, "y", self.y))

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``matrix``, float32 ``[N, 6]``."""
        shear = np.stack(
            [arguments.between(self.x, u[:, 0]), arguments.between(self.y, u[:, 1])], axis=1
        )
        return {"matrix": matrices(np.zeros(len(u)), shear=shear)}


@dataclass(frozen=True)
class Translate(Warp):
    """Move images by random numbers of whole pixels; HWC, any dtype and number of channels.

    The same as torchvision's ``RandomAffine(0, translate=(x, y))``. Keras' RandomTranslation moves
    by parts of pixels and reflects at the border. Albumentations' Affine also moves by parts;
    DALI's warp_affine takes a matrix; timm's policies move as Pillow does.

    Example:
        ``gl.ops.Translate(0.1, 0.1)``

    Args:
        x: greatest distance along the rows, as a part of the width, 0 to 1.
        y: greatest distance along the columns, as a part of the height; ``x`` if left out.
        interpolation: ``"nearest"`` and ``"linear"`` are the same here, but for rounding.
        fill: the value outside of the image: a number, or one for each channel; or a dict from
            field names to these.
    """

    x: float
    y: float | None = None

    num_uniforms: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        y = self.y
        if y is None:
            y = self.x
        x, y = _parts(self, "x", (self.x, y))
        arguments.keep(self, x=x, y=y)

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``matrix``, float32 ``[N, 6]``."""
        distance = _distance((self.x, float(self.y or 0)), u, size)
        return {"matrix": matrices(np.zeros(len(u)), distance)}


def matrices(
    angle: Numbers,
    distance: Numbers | None = None,
    scale: Numbers | None = None,
    shear: Numbers | None = None,
) -> NDArray[np.float32]:
    """Return the matrices by which `ops.geometry.warp` takes pixels, float32 ``[N, 6]``.

    Args:
        angle: degrees, clockwise, float64 ``[N]``.
        distance: pixels along x and y, ``[N, 2]``.
        scale: factors, ``[N]``.
        shear: degrees along x and y, ``[N, 2]``.
    """
    if distance is None:
        distance = np.zeros((len(angle), 2))
    if shear is None:
        shear = np.zeros((len(angle), 2))
    right, down = distance.T
    factor: Any = 1.0
    if scale is not None:
        factor = scale
    turn = np.radians(angle)
    along_x, along_y = np.radians(shear).T
    # Turned and sheared: its determinant is 1, so that the inverse has the same numbers.
    a, c = np.cos(turn - along_y) / np.cos(along_y), np.sin(turn - along_y) / np.cos(along_y)
    b, d = -(a * np.tan(along_x) + np.sin(turn)), np.cos(turn) - c * np.tan(along_x)
    xx, xy, yx, yy = d / factor, -b / factor, -c / factor, a / factor
    x, y = -xx * right - xy * down, -yx * right - yy * down
    return np.stack([xx, xy, x, yx, yy, y], axis=1).astype(np.float32)


def _distance(parts: Range, u: Numbers, size: Sizes) -> Numbers:
    """Return how far images move, whole pixels along x and y, float64 ``[N, 2]``."""
    farthest = np.array(parts) * size[:, ::-1]
    return np.rint(-farthest + u * (2 * farthest))


def _parts(op: Any, name: str, value: Any) -> Range:
    pair = arguments.numbers(op, name, value)
    if not isinstance(pair, tuple) or len(pair) != 2 or not all(0 <= part <= 1 for part in pair):
        raise arguments.refuse(op, name, value, "parts of the width and of the height, 0 to 1")
    return pair


def _angles(op: Any, name: str, value: Any) -> Range:
    """Return the least and the greatest angle of a shear, degrees: nearer to 0 than 90, where it
    has no end."""
    pair = arguments.spread(op, name, value)
    if max(abs(pair[0]), abs(pair[1])) >= 90:
        raise arguments.refuse(op, name, value, "angles between -90 and 90 degrees")
    return pair


def _shear(op: Any, name: str, value: Any) -> tuple[float, ...]:
    """Return least and greatest angle along x, then along y, degrees."""
    angles = arguments.numbers(op, name, value)
    if isinstance(angles, tuple) and len(angles) == 4:
        return *_angles(op, name, angles[:2]), *_angles(op, name, angles[2:])
    if isinstance(angles, tuple) and len(angles) != 2:
        raise arguments.refuse(
            op, name, value, "one angle, two along x, or two along x and two along y"
        )
    return *_angles(op, name, angles), 0.0, 0.0
