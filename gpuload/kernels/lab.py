"""Lab: 8-bit red, green and blue to CIE L*a*b* and back, in OpenCV's whole numbers.

Values   L is 0 to 255 for 0 to 100; a and b are moved up by 128. Colours are sRGB, white is D65.
To Lab   Red, green and blue are looked up as linear light (2040 is white), a matrix makes X, Y and
         Z of them, and the cube roots of these are looked up, 2**15 being 1. L, a and b are
         differences of these roots.
Back     Y and its root are looked up by L; the roots of X and Z follow from a and b, and their
         third powers are looked up, 2**14 being 1. A matrix makes linear light of them, 4095 being
         white, which is looked up as sRGB.
Source   OpenCV (Apache-2.0), ``modules/imgproc/src/color_lab.cpp``, read and written anew: its
         tables in float32, its coefficients, and where it rounds.
Equals   ``cv2.cvtColor`` of uint8 (OpenCV 5.0), ``COLOR_RGB2LAB`` and ``COLOR_LAB2RGB``, every
         value.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

WHITE = (0.950456, 1.0, 1.088754)  # X, Y and Z of D65
TO_XYZ = (
    (0.412453, 0.357580, 0.180423),
    (0.212671, 0.715160, 0.072169),
    (0.019334, 0.119193, 0.950227),
)
FROM_XYZ = (
    (3.240479, -1.53715, -0.498535),
    (-0.969256, 1.875991, 0.041556),
    (0.055648, -0.204043, 1.057311),
)
# The number that stands for 1 in each table.
ONE_LINEAR, ONE_ROOT, ONE_LIGHT, ONE_RESULT = 255 << 3, 1 << 15, 1 << 14, 1 << 12
MATRIX_BITS = 12
LEAST_ROOT, NUM_LIGHTS = (
    -8145,
    ONE_LIGHT * 9 // 4,
)  # of the table of third powers: its first root, and its length
SCALE, SHIFT = (
    (116 * 255 + 50) // 100,
    (16 * 255 * ONE_ROOT + 50) // 100,
)  # of L: 1.16 root - 0.16, from 0 to 255
NUM_ROOTS = 256 * 3 // 2 * 8
Table = NDArray[np.int32]
f32, f64 = np.float32, np.float64


class Tables(NamedTuple):
    """The tables, int32: `linear` by a value, `roots` by X, Y, Z, `y` and `root_of_y` by L,
    `lights` by a root, `values` by linear light; and the matrices in fixed-point numbers.
    """

    linear: Table
    roots: Table
    y: Table
    root_of_y: Table
    lights: Table
    values: Table
    to_xyz: list[list[int]]
    from_xyz: list[list[int]]


@cache
def tables() -> Tables:
    """Return the tables, made at the first call."""
    levels = (np.arange(256, dtype=f32) / f32(255)).astype(f64)
    light = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)
    linear = f32(ONE_LINEAR) * light.astype(f32)

    places = (f32(1) / f32(ONE_LINEAR)) * np.arange(NUM_ROOTS, dtype=f32)
    low = places.astype(f64) * (f32(841) / f32(108)) + (f32(16) / f32(116))
    root = np.where(places < f32(216) / f32(24389), low.astype(f32), _cube_root(places))
    roots = f32(ONE_ROOT) * root

    lightness = np.arange(256)
    unit, dark = f32(ONE_LIGHT), lightness <= 20
    dark_y = (lightness * (ONE_LIGHT * 20 * 9)).astype(f32) / f32(17 * 29**3)
    dark_root = unit * (f32(16) / f32(116) + (lightness * 5).astype(f32) / f32(3 * 17 * 29))
    root_of_y = (lightness * (100 * ONE_LIGHT)).astype(f32) / f32(255 * 116) + f32(
        16 * ONE_LIGHT
    ) / f32(116)
    y = root_of_y * root_of_y * root_of_y / f32(ONE_LIGHT**2)

    number = np.arange(LEAST_ROOT, LEAST_ROOT + NUM_LIGHTS, dtype=np.int64)
    small = np.trunc(number * 108 / 841) - ONE_LIGHT * 16 // 116 * 108 // 841
    lights = np.where(number <= 3390, small, number * number // ONE_LIGHT * number // ONE_LIGHT)

    amounts = np.arange(ONE_RESULT) / ONE_RESULT
    gamma = np.where(amounts <= 0.0031308, amounts * 12.92, amounts ** (1 / 2.4) * 1.055 - 0.055)
    values = f32(255) * gamma.astype(f32)

    scale = 1 << MATRIX_BITS
    to_xyz = [
        [round(scale * part / white) for part in row]
        for row, white in zip(TO_XYZ, WHITE, strict=True)
    ]
    from_xyz = [
        [round(scale * part * white) for part, white in zip(row, WHITE, strict=True)]
        for row in FROM_XYZ
    ]
    y, root_of_y = np.where(dark, dark_y, y), np.where(dark, dark_root, root_of_y)
    return Tables(
        _whole(linear),
        _whole(roots),
        _whole(y),
        _whole(root_of_y),
        _whole(lights),
        _whole(values),
        to_xyz,
        from_xyz,
    )


def join_tables() -> Table:
    """Return all tables one after the other, int32, as shared/lab.hpp has them."""
    return np.concatenate([np.ravel(table) for table in tables()]).astype(np.int32)


def _whole(numbers: NDArray[Any]) -> Table:
    """Return the nearest whole numbers, halves to even."""
    return np.asarray(np.rint(numbers), np.int32)


def _cube_root(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the cube roots of numbers, the bits that float32 has not cut off, as OpenCV has
    them."""
    root = np.cbrt(x.astype(f64))
    nearest = root.astype(f32)
    return np.where(nearest > root, np.nextafter(nearest, f32(0)), nearest).astype(f32)


def to_lab(xp: ModuleType, x: Any) -> tuple[Any, Any, Any]:
    """Return L, a and b, int32 from 0 to 255, of red, green and blue.

    Args:
        xp: NumPy or CuPy.
        x: uint8 ``[..., 3]``.
    """
    table = tables()
    linear = xp.asarray(table.linear).take(x)
    roots = xp.asarray(table.roots)
    root_x, root_y, root_z = (
        roots.take(_product(linear, row, MATRIX_BITS)) for row in table.to_xyz
    )
    half, middle = ONE_ROOT // 2, 128 * ONE_ROOT
    lightness = (SCALE * root_y + (half - SHIFT)) >> 15
    a = (500 * (root_x - root_y) + (middle + half)) >> 15
    b = (200 * (root_y - root_z) + (middle + half)) >> 15
    return lightness.clip(0, 255), a.clip(0, 255), b.clip(0, 255)


def from_lab(xp: ModuleType, lightness: Any, a: Any, b: Any) -> Any:
    """Return red, green and blue, uint8 ``[..., 3]``, of the result of `to_lab`; L may be
    another."""
    table = tables()
    y, root_y = xp.asarray(table.y).take(lightness), xp.asarray(table.root_of_y).take(lightness)
    root_x = (
        root_y + ((5 * a * 53687 + (1 << 7)) >> 13) - 128 * ONE_LIGHT // 500
    )  # 53687 / 2**13 * 5 is 2**14 / 500
    root_z = (
        root_y - ((b * 41943 + (1 << 4)) >> 9) + 128 * ONE_LIGHT // 200 - 1
    )  # 41943 / 2**9 is 2**14 / 200
    lights = xp.asarray(table.lights)
    xyz = xp.stack([lights.take(root_x - LEAST_ROOT), y, lights.take(root_z - LEAST_ROOT)], axis=-1)
    places = xp.stack([_product(xyz, row, MATRIX_BITS + 2) for row in table.from_xyz], axis=-1)
    return xp.asarray(table.values).take(places.clip(0, ONE_RESULT - 1)).astype(xp.uint8)


def _product(x: Any, row: list[int], bits: int) -> Any:
    """Return the product of three channels with a row of a matrix, rounded to so many bits less."""
    total = x[..., 0] * row[0] + x[..., 1] * row[1] + x[..., 2] * row[2]
    return (total + (1 << (bits - 1))) >> bits
