"""Pillow's Gaussian blur as arithmetic, beside Pillow."""

from __future__ import annotations

import numpy as np
import pytest

from gpuload.kernels import blur_pillow

SIGMAS = (0.0, 0.1, 0.3, 0.57735, 0.9, 1.0, 1.3, 1.99, 2.0, 3.7, 10.0)


@pytest.mark.parametrize("size", [(27, 34, 3), (5, 40, 1), (1, 1, 3), (2, 3, 3), (64, 9, 1)])
@pytest.mark.parametrize("sigma", SIGMAS)
def test_each_value_is_pillows(sigma, size):
    image_module, image_filter = (
        pytest.importorskip("PIL.Image"),
        pytest.importorskip("PIL.ImageFilter"),
    )
    rng = np.random.default_rng(3)
    image = np.where(rng.random(size) < 0.5, rng.integers(0, 256, size), 255).astype(np.uint8)
    photo = image_module.fromarray(image if size[2] == 3 else image[..., 0])

    result = blur_pillow.gaussian_blur(np, image, sigma)

    expected = np.asarray(photo.filter(image_filter.GaussianBlur(sigma))).reshape(size)
    np.testing.assert_array_equal(result, expected)


def test_a_point_is_spread_by_the_weights_of_three_boxes():
    image = np.zeros((1, 9, 1), np.uint8)
    image[0, 4] = 255
    radius = float(blur_pillow.box_radii(np.array([1.0]))[0])
    box = np.array([(radius % 1) / 1, 1.0, (radius % 1) / 1]) / (2 * radius + 1)

    result = blur_pillow.gaussian_blur(np, image, 1.0)[0, :, 0]

    exact = 255 * np.convolve(np.convolve(box, box), box)
    np.testing.assert_allclose(result[1:8], exact, atol=1.5)
