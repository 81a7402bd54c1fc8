"""Ten thousand draws of GaussianBlur, Elastic and Erasing beside torchvision's functions on
tensors."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import numpy as np
import pytest

from gpuload import core
from gpuload.ops import Elastic, Erasing, GaussianBlur
from gpuload.ops.colour import noise
from gpuload.testing.ops import uniform
from tests.oracle_torchvision import functional, torch, torchvision

transforms = torchvision.transforms.v2
COUNT = 10_000
SIZES = ((24, 32), (17, 19), (9, 30))
KERNELS = (3, 5, (5, 9), (7, 3))


def tensor_of(image):
    return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))


def rows_of(op, u, size):
    """Return what an op draws for one image."""
    return {
        name: values[0] for name, values in op.draw(u[None], np.array([size], np.int32)).items()
    }


def result_of(op, image, draw):
    """Return an image behind the compiled form of an op, which tests of the op compare with the
    array form."""
    form = op.forms(uniform(image.dtype, *image.shape)).row if core.native is not None else None
    if form is None:
        return op.array(np, image, draw)
    result = np.empty_like(image)
    form(image, draw, result)
    return result


def check_differences(differences, share):
    """At most one level, on at most a share of all values."""
    assert max(np.abs(difference).max() for difference in differences) <= 1
    assert sum((difference != 0).sum() for difference in differences) <= share * sum(
        map(np.size, differences)
    )


def test_blur_is_torchvisions_but_for_one_level():
    rng, differences = np.random.default_rng(5), []
    for number in range(COUNT):
        size, kernel = SIZES[number % len(SIZES)], KERNELS[number // 3 % len(KERNELS)]
        op, u = GaussianBlur(kernel, (0.1, 4.0)), rng.random(2)
        image = rng.integers(0, 256, (*size, 3), np.uint8)

        result = result_of(op, image, rows_of(op, u, size))

        sides = list(kernel) if isinstance(kernel, tuple) else [kernel, kernel]
        sigma = float(0.1 + u[1] * 3.9)
        expected = (
            functional.gaussian_blur(tensor_of(image), sides, [sigma, sigma])
            .numpy()
            .transpose(1, 2, 0)
        )
        differences.append(result.astype(np.int16) - expected)
    check_differences(differences, 1e-3)


@pytest.mark.parametrize("interpolation", ["nearest", "linear"])
def test_elastic_is_torchvisions_for_the_same_noise(interpolation):
    """As `ElasticTransform.make_params` makes a displacement of two planes of noise from -1 to
    1."""
    rng, differences = np.random.default_rng(6), []
    for number in range(COUNT):
        size, alpha, sigma = (
            SIZES[number % len(SIZES)],
            float(rng.uniform(0, 60)),
            float(rng.uniform(0.3, 0.9)),
        )
        op, u = Elastic(alpha, sigma, interpolation=interpolation, fill=7), rng.random(4)
        image, draw = rng.integers(0, 256, (*size, 3), np.uint8), rows_of(op, u, size)

        result = result_of(op, image, draw)

        count, side = size[0] * size[1], int(8 * sigma + 1)
        side += 1 - side % 2
        words = noise.words(np, draw["key"][None], count).view(np.uint32)[0, : 2 * count]
        numbers = torch.from_numpy(
            ((words >> 8) * 2.0**-23 - 1).astype(np.float32).reshape(2, 1, 1, *size)
        )
        planes = [
            functional.gaussian_blur(plane, [side, side], [sigma, sigma]) for plane in numbers
        ]
        dx, dy = planes[0] * alpha / size[1], planes[1] * alpha / size[0]
        displacement = torch.cat([dx, dy], 1).permute([0, 2, 3, 1])
        mode = {"linear": "bilinear"}.get(interpolation, interpolation)
        expected = functional.elastic(tensor_of(image), displacement, interpolation=mode, fill=7)
        differences.append(result.astype(np.int16) - expected.numpy().transpose(1, 2, 0))
    if interpolation == "linear":
        check_differences(differences, 1e-3)
    else:  # a place between two pixels may be rounded to the other one, which is any other colour
        assert sum((difference != 0).sum() for difference in differences) <= 1e-3 * sum(
            map(np.size, differences)
        )


class OurNumbers:
    """In place of torch in `RandomErasing.make_params`: its generator gives the numbers that our
    draw had."""

    def __init__(self, tries, places):
        self._tries, self._places = iter(tries), iter(places)
        self.float32, self.exp, self.tensor = torch.float32, torch.exp, torch.tensor

    def empty(self, *shape, **_):
        return SimpleNamespace(uniform_=self._uniform)

    def _uniform(self, low, high):
        return torch.tensor([low + next(self._tries) * (high - low)], dtype=torch.float64)

    def randint(self, low, high, size):
        return torch.tensor([low + int(next(self._places) * (high - low))])


def test_erasing_covers_the_boxes_that_torchvision_would_for_the_same_numbers(monkeypatch):
    augment = importlib.import_module("torchvision.transforms.v2._augment")
    rng, none = np.random.default_rng(7), 0
    for number in range(COUNT):
        size = SIZES[number % len(SIZES)]
        scale, ratio = ((0.02, 0.33), (0.3, 3.3)) if number % 2 else ((0.3, 1.0), (0.1, 8.0))
        op, u = Erasing(1.0, scale, ratio, fill=(1, 2, 3)), rng.random(1 + 22 + noise.KEY_WORDS)
        image = rng.integers(4, 256, (*size, 3), np.uint8)

        result = op.array(np, image, rows_of(op, u, size))

        eraser = transforms.RandomErasing(1.0, scale, ratio, value=[1, 2, 3])
        pairs = np.stack([u[1:11], u[11:21]], axis=1).ravel()
        with monkeypatch.context() as patch:
            patch.setattr(augment, "torch", OurNumbers(pairs, u[21:23]))
            box = eraser.make_params([tensor_of(image)])
        none += box["v"] is None
        expected = tensor_of(image)
        if box["v"] is not None:
            expected = functional.erase(
                expected, box["i"], box["j"], box["h"], box["w"], box["v"].to(torch.uint8)
            )
        np.testing.assert_array_equal(
            result, expected.numpy().transpose(1, 2, 0), err_msg=f"{number} {box}"
        )
    assert 0 < none < COUNT / 10
