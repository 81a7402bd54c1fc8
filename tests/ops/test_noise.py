"""GaussianNoise and SaltAndPepper, and the random numbers of elements."""

from __future__ import annotations

import numpy as np
import pytest

from gpuload import core
from gpuload.errors import SpecError
from gpuload.graph.graph import compile_ops
from gpuload.ops import GaussianNoise, SaltAndPepper
from gpuload.ops.colour import noise
from gpuload.spec import Spec
from gpuload.testing.ops import OpContract, array_form, uniform, varying

REFUSED = (uniform(np.int16, 8, 9, 3), uniform(np.float64, 8, 9, 3), uniform(np.uint8, 28, 28))


class TestGaussianNoise(OpContract):
    cases = (
        (GaussianNoise(), varying(np.uint8, 3)),
        (GaussianNoise((0, 3), mean=-0.2), uniform(np.uint8, 9, 7, 1)),
        (GaussianNoise(0.3, clip=False), uniform(np.float32, 9, 7, 5)),
        (GaussianNoise(0.3), uniform(np.uint16, 9, 7, 3)),
    )
    neutral = (
        (GaussianNoise(0), varying(np.uint8, 3)),
        (GaussianNoise(0, clip=False), uniform(np.float32, 8, 9, 3)),
    )
    refused = tuple((GaussianNoise(), field) for field in REFUSED)


class TestSaltAndPepper(OpContract):
    cases = (
        (SaltAndPepper(), varying(np.uint8, 3)),
        (SaltAndPepper((0.1, 1), salt=0.2), uniform(np.float32, 9, 7, 5)),
        (SaltAndPepper(1, salt=1), uniform(np.uint16, 9, 7, 1)),
    )
    neutral = ((SaltAndPepper(0), varying(np.uint8, 3)),)
    refused = tuple((SaltAndPepper(), field) for field in REFUSED)


def key_of(*words):
    return np.array([words], np.uint64).view(np.int32)


def test_words_are_those_of_numpys_philox():
    generator = np.random.Philox(counter=[0, 0, 0, 0], key=np.array([7, 2**63 + 5], np.uint64))

    np.testing.assert_array_equal(
        noise.words(np, key_of(7, 2**63 + 5), 11)[0], generator.random_raw(11)
    )


def test_words_are_the_same_without_the_core(monkeypatch):
    expected = noise.words(np, key_of(1, 2), 9)
    monkeypatch.setattr(core, "native", None)

    np.testing.assert_array_equal(noise.words(np, key_of(1, 2), 9), expected)


def test_normal_numbers_have_the_moments_and_quantiles_of_a_normal_distribution():
    numbers = noise.normal(np, key_of(3, 4), 400_000)[0].astype(np.float64)

    assert abs(numbers.mean()) < 0.01  # six standard errors
    assert abs(numbers.std() - 1) < 0.007
    assert abs((numbers**4).mean() - 3) < 0.08
    # Quantiles of the standard normal distribution, from a printed table.
    for share, quantile in ((0.5, 0.0), (0.84134, 1.0), (0.97725, 2.0), (0.99865, 3.0)):
        assert abs((numbers < quantile).mean() - share) < 0.005


def test_bytes_get_noise_that_is_cut_off_towards_zero():
    image = np.full((40, 50, 3), 100, np.uint8)
    draw = {"sigma": np.float32(0.01), "key": key_of(5, 6)[0]}

    result = GaussianNoise(0.01).array(np, image, draw)

    expected = np.trunc(noise.normal(np, key_of(5, 6), image.size)[0] * np.float32(2.55)).reshape(
        image.shape
    )
    assert np.abs(result.astype(int) - 100 - expected).max() <= (1 if expected.any() else 0)
    assert (
        result.astype(int) - 100 == expected
    ).mean() > 0.999  # the product of 0.01 and 255 is rounded otherwise


def test_noise_does_not_depend_on_the_batch():
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 9, 3), np.uint8)
    graph = compile_ops(Spec((uniform(np.uint8, 8, 9, 3),)), [GaussianNoise(0.2)])

    def noisy(rows):
        records = np.arange(100, 106)[rows]
        draws = graph.draw(
            seed=1,
            epoch=2,
            records=records,
            sizes={"image": np.full((len(rows), 2), (8, 9), np.int32)},
        )
        return array_form(graph, images[rows], draws)

    together = noisy([0, 1, 2, 3, 4, 5])
    assert len(np.unique(together.astype(int) - images, axis=0)) == 6
    np.testing.assert_array_equal(noisy([4, 2]), together[[4, 2]])


def test_salt_is_white_and_pepper_black_in_all_channels():
    image = np.random.default_rng(0).integers(1, 255, (200, 300, 3), np.uint8)
    draw = {"amount": np.float32(0.1), "key": key_of(8, 9)[0]}

    result = SaltAndPepper(0.1, salt=0.25).array(np, image, draw)

    white, black = (result == 255).all(axis=2), (result == 0).all(axis=2)
    assert abs(white.mean() - 0.025) < 0.003
    assert abs(black.mean() - 0.075) < 0.005
    np.testing.assert_array_equal(result[~white & ~black], image[~white & ~black])


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        (GaussianNoise, {"sigma": -1}),
        (GaussianNoise, {"sigma": (2, 1)}),
        (GaussianNoise, {"mean": float("inf")}),
        (GaussianNoise, {"clip": 0}),
        (SaltAndPepper, {"amount": 1.2}),
        (SaltAndPepper, {"salt": -0.1}),
    ],
)
def test_wrong_arguments_are_refused(op, arguments):
    with pytest.raises(SpecError, match=op.__name__):
        op(**arguments)
