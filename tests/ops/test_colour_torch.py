"""Ten thousand draws of each colour op beside torchvision's functions on tensors: every value of
uint8."""

from __future__ import annotations

import numpy as np
import pytest

from gpuload import ops
from tests.oracle_torchvision import functional, torch

COUNT = 10_000
# torch rounds the last elements of a tensor twice where pixels are no multiple of 32, two vectors
# (see kernels/colour.py).
SHAPES = ((8, 12, 3), (16, 6, 3), (4, 24, 3), (8, 8, 1))
ODD_SHAPES = ((5, 6, 3), (12, 11, 3), (3, 17, 3), (8, 9, 1))
NO_SIZE = np.zeros((COUNT, 2), np.int32)


def images(seed, shapes):
    """Return a batch of each shape: noise, and noise of few levels, in which values meet."""
    rng = np.random.default_rng(seed)
    for shape in shapes:
        noise = rng.integers(0, 256, (COUNT // len(SHAPES), *shape), np.uint8)
        span = rng.integers(1, 256, (len(noise), 1, 1, 1))
        yield (noise.astype(np.int64) * span // 256 + (256 - span) // 2).astype(np.uint8)


def tensors(batch):
    return torch.from_numpy(np.ascontiguousarray(batch.transpose(0, 3, 1, 2)))


def check(op, function, share=0.0, shapes=SHAPES):
    """Compare an op with what ``function(tensor, draw)`` makes of images: a share of values may
    differ by 1 level."""
    draws = op.draw(np.random.default_rng(1).random((COUNT, op.num_uniforms)), NO_SIZE)
    begin = 0
    for batch in images(2, shapes):
        rows = [
            {name: values[begin + row] for name, values in draws.items()}
            for row in range(len(batch))
        ]
        begin += len(batch)

        result = np.stack(
            [op.array(np, image, draw) for image, draw in zip(batch, rows, strict=True)]
        )

        expected = [
            function(tensor, draw) for tensor, draw in zip(tensors(batch), rows, strict=True)
        ]
        difference = result.astype(int) - torch.stack(expected).numpy().transpose(0, 2, 3, 1)
        assert np.abs(difference).max() <= 1 if share else not difference.any()
        assert (difference != 0).mean() <= share
        together = {name: values[begin - len(batch) : begin] for name, values in draws.items()}
        np.testing.assert_array_equal(op.array_batch(np, batch, together), result)


FACTORS = {
    "adjust_brightness": ops.Brightness(0, 2.5),
    "adjust_contrast": ops.Contrast(0, 2.5),
    "adjust_saturation": ops.Saturation(0, 2.5),
    "adjust_sharpness": ops.Sharpness(0, 2.5),
    "adjust_gamma": ops.Gamma(0.2, 3),
}


@pytest.mark.parametrize("name", FACTORS)
def test_each_value_is_torchvisions_for_a_random_factor(name):
    function = getattr(functional, name)

    share = (
        2e-5 if name == "adjust_sharpness" else 0
    )  # torch goes by rows without the edge, no whole vectors

    check(FACTORS[name], lambda tensor, draw: function(tensor, float(draw["factor"])), share)


@pytest.mark.parametrize("name", ["adjust_contrast", "adjust_saturation"])
def test_one_of_ten_thousand_values_may_differ_where_torch_rounds_twice(name):
    function = getattr(functional, name)

    check(
        FACTORS[name],
        lambda tensor, draw: function(tensor, float(draw["factor"])),
        1e-4,
        ODD_SHAPES,
    )


def test_each_value_is_torchvisions_for_a_random_hue():
    check(
        ops.Hue(-0.5, 0.5), lambda tensor, draw: functional.adjust_hue(tensor, float(draw["shift"]))
    )


def test_each_value_is_torchvisions_for_steps_in_a_random_order():
    names = ("adjust_brightness", "adjust_contrast", "adjust_saturation", "adjust_hue")

    def jitter(tensor, draw):
        for number in draw["order"].tolist():
            tensor = getattr(functional, names[number])(tensor, float(draw["amount"][number]))
        return tensor

    check(ops.ColorJitter(0.8, 0.8, 0.8, 0.2), jitter)


TONES = {
    "invert": (ops.Invert(p=0.5), ()),
    "posterize": (ops.Posterize(3, p=0.5), (3,)),
    "solarize": (ops.Solarize(131, p=0.5), (131,)),
    "autocontrast": (ops.AutoContrast(p=0.5), ()),
    "equalize": (ops.Equalize(p=0.5), ()),
}


@pytest.mark.parametrize("name", TONES)
def test_each_value_is_torchvisions_for_a_part_of_the_images(name):
    op, arguments = TONES[name]
    function = getattr(functional, name)

    check(op, lambda tensor, draw: function(tensor, *arguments) if draw["apply"] else tensor)
