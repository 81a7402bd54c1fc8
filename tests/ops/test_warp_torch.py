"""Ten thousand draws of each geometric op beside torchvision's functions on tensors: every value of
uint8.

Where torch rounds between a product and its sum, as on processors of AMD, some places differ in
their last bit: a value between two levels is one level off, and of pixels that are equally near
another one is taken.
"""

from __future__ import annotations

import numpy as np
import pytest

from gpuload import core
from gpuload.ops import Affine, Perspective, Rotate, Shear, Translate
from tests.oracle_torchvision import functional, fuses_products, torch

perspective_coefficients = functional._geometry._perspective_coefficients

COUNT = 10_000
SIZES = ((24, 32), (17, 13), (9, 9))
NAMES = {"nearest": "nearest", "linear": "bilinear"}
FILL = (0, 7, (250, 3, 90))
SHARE = 1e-3  # of values that may differ where torch does not fuse; an AMD EPYC has 7e-6, of perspectives 2e-4


def check(kind, arguments, function):
    """Compare an op with ``function(tensor, u, size, draw, interpolation, fill)`` for random
    numbers ``u``."""
    rng, is_exact, num_values, num_differing = np.random.default_rng(5), fuses_products(), 0, 0
    for number in range(COUNT):
        size = SIZES[number % len(SIZES)]
        interpolation = ("nearest", "linear")[number // 3 % 2]
        fill = FILL[number // 6 % len(FILL)]
        op = kind(**arguments, interpolation=interpolation, fill=fill)
        image = rng.integers(0, 256, (*size, 3), np.uint8)
        u = rng.random(op.num_uniforms)
        draws = op.draw(u[None], np.array([size], np.int32))
        draw = {name: values[0] for name, values in draws.items()}
        if core.native is None:
            result = op.array(np, image, draw)
        else:  # equal to the array form, which tests of the op compare
            result = np.empty((*draw.get("size", size), 3), np.uint8)
            op.forms(None).row(image, draw, result)

        tensor = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))
        fill = list(fill) if isinstance(fill, tuple) else fill
        expected = function(
            tensor, u, size, draw, {"interpolation": NAMES[interpolation], "fill": fill}
        )

        expected = expected.numpy().transpose(1, 2, 0)
        if is_exact:
            np.testing.assert_array_equal(result, expected, err_msg=f"{op} {number}")
        elif interpolation == "linear":
            np.testing.assert_allclose(
                result.astype(int), expected, rtol=0, atol=1, err_msg=f"{op} {number}"
            )
        num_values, num_differing = (
            num_values + result.size,
            num_differing + np.count_nonzero(result != expected),
        )
    assert num_differing <= SHARE * num_values


@pytest.mark.parametrize("expand", [False, True])
def test_rotate_is_torchvisions(expand):
    def rotate(tensor, u, size, draw, look):
        return functional.rotate(tensor, float(-180 + u[0] * 360), expand=expand, **look)

    check(Rotate, {"degrees": 180, "expand": expand}, rotate)


def test_affine_is_torchvisions():
    def affine(tensor, u, size, draw, look):
        most = (0.3 * size[1], 0.2 * size[0])
        move = [round(-far + v * 2 * far) for far, v in zip(most, u[1:3], strict=True)]
        shear = [-20 + u[4] * 40, -10 + u[5] * 20]
        return functional.affine(
            tensor, float(-90 + u[0] * 180), move, float(0.5 + u[3]), shear, **look
        )

    arguments = {
        "degrees": 90,
        "translate": (0.3, 0.2),
        "scale": (0.5, 1.5),
        "shear": (-20, 20, -10, 10),
    }
    check(Affine, arguments, affine)


def test_shear_is_torchvisions():
    def shear(tensor, u, size, draw, look):
        return functional.affine(
            tensor, 0.0, [0, 0], 1.0, [-30 + u[0] * 60, -5 + u[1] * 10], **look
        )

    check(Shear, {"x": 30, "y": 5}, shear)


def test_translate_is_torchvisions():
    def translate(tensor, u, size, draw, look):
        most = (0.5 * size[1], 0.25 * size[0])
        move = [round(-far + v * 2 * far) for far, v in zip(most, u, strict=True)]
        return functional.affine(tensor, 0.0, move, 1.0, [0.0, 0.0], **look)

    check(Translate, {"x": 0.5, "y": 0.25}, translate)


def test_perspective_is_torchvisions():
    def perspective(tensor, u, size, draw, look):
        height, width = size
        most = int(0.6 * (width // 2)) + 1, int(0.6 * (height // 2)) + 1
        (a, b), (c, d), (e, f), (g, h) = (u[1:].reshape(4, 2) * most).astype(int).tolist()
        right, low = width - most[0], height - most[1]
        start = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
        end = [[a, b], [right + c, d], [right + e, low + f], [g, low + h]]
        # Its least squares leave 1e-17 where a coefficient is 0, which may decide between two
        # pixels equally near.
        expected = perspective_coefficients(start, end, None)
        np.testing.assert_allclose(draw["matrix"], expected, rtol=1e-6, atol=1e-12)
        return functional.perspective(
            tensor, None, None, coefficients=draw["matrix"].tolist(), **look
        )

    check(Perspective, {"distortion": 0.6, "p": 1}, perspective)
