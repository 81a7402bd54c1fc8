"""Alpha is no colour: ops that would change it as one are refused, and what their errors say to
type works."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import gpuload as gl
from gpuload import ops
from gpuload.errors import SpecError

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 12, 9, 4)).astype(np.uint8)
COLOURS = [
    ops.Brightness(0.5, 0.5), ops.Invert(), ops.Contrast(0.5, 1, center=100), ops.Solarize(128), ops.Posterize(3),
    ops.Gamma(0.5, 2), ops.Equalize(), ops.AutoContrast(), ops.CLAHE(), ops.ChannelShuffle(), ops.GaussianNoise(0.1),
    ops.SaltAndPepper(0.1), ops.PerImageStandardization(), ops.Sometimes(0.5, [ops.RandomFlip(), ops.Invert()]),
    ops.OneOf([[ops.Normalize(0, 255), ops.Invert()], ops.Normalize(0, 1)]),
]  # fmt: skip
ALPHA_OPS = [ops.RandomFlip(p=1.0), ops.RandomCrop(5, 5), ops.Rotate(20), ops.GaussianBlur(3), ops.Normalize(0, 255),
          ops.Erasing(), ops.MixUp(), ops.Cast("float32"), ops.Transpose("CHW")]  # fmt: skip


@pytest.fixture(name="source")
def source_of_files(tmp_path):
    for number, pixels in enumerate(PIXELS):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    return gl.images(sorted(tmp_path.glob("*.png")), labels=None)


def batch_of(source, chain):
    with gl.Loader(source, 2, ops=chain, device="cpu", seed=1) as loader:
        return loader.batch_at(0)


@pytest.mark.parametrize("op", COLOURS, ids=lambda op: type(op).__name__)
def test_ops_on_colours_are_refused_where_the_fourth_channel_is_alpha(source, op):
    with pytest.raises(SpecError, match="fourth channel of field 'image' is alpha"):
        batch_of(source, [ops.Decode("RGBA", size=(12, 9)), ops.RandomFlip(), op])

    # Of four channels that nobody called alpha, each is a colour.
    batch_of(source, [ops.Decode("ANY", channels=4, size=(12, 9)), ops.RandomFlip(), op])
    batch_of(gl.arrays(image=PIXELS), [op])


@pytest.mark.parametrize("op", ALPHA_OPS, ids=lambda op: type(op).__name__)
def test_ops_that_take_no_channel_for_a_colour_are_not(source, op):
    batch_of(source, [ops.Decode("RGBA", size=(12, 9)), op])


def test_what_the_error_says_to_type_keeps_alpha(source):
    with pytest.raises(SpecError) as caught:
        batch_of(source, [ops.Decode("RGBA"), ops.Brightness(0.5, 0.5)])
    apart = [
        ops.Copy("image", to="alpha"),
        ops.Python(lambda x: x[..., :3], on="image"),
        ops.Python(lambda x: x[..., 3:], on="alpha"),
    ]
    for text in (
        "gl.ops.Copy('image', to='alpha')",
        "lambda x: x[..., :3], on='image'",
        "x[..., 3:], on='alpha'",
    ):
        assert text in caught.value.remedy
    flip = ops.RandomFlip(p=1.0, on=("image", "alpha"))

    batch = batch_of(source, [ops.Decode("RGBA"), *apart, ops.Brightness(0.5, 0.5), flip])

    np.testing.assert_array_equal(np.stack(batch["image"]), PIXELS[:2, :, ::-1, :3] // 2)
    np.testing.assert_array_equal(np.stack(batch["alpha"]), PIXELS[:2, :, ::-1, 3:])


@pytest.mark.parametrize(("dtype", "white"), [("uint8", 255), ("uint16", 65535)])
def test_one_mean_for_all_channels_is_refused_with_the_numbers_of_each(source, dtype, white):
    decode = ops.Decode("RGBA", dtype=dtype, size=(12, 9))
    form = f"gl.ops.Normalize((100.0, 100.0, 100.0, 0), (50.0, 50.0, 50.0, {white}), on='image')"

    with pytest.raises(SpecError) as caught:
        batch_of(source, [decode, ops.Normalize(100, 50)])
    assert form in caught.value.remedy

    values = batch_of(source, [decode, eval(form, {"gl": gl})])["image"]
    np.testing.assert_allclose(values[..., 3], PIXELS[:2, ..., 3] / 255, atol=1e-6)


def test_alpha_of_records_behind_ops_is_known(source):
    decoded = gl.Loader(source, 2, ops=[ops.Decode("RGBA", size=(12, 9))], device="cpu").to_source()
    with pytest.raises(SpecError, match="is alpha"):
        batch_of(decoded, [ops.Brightness(0.5, 0.5)])
    batch_of(decoded, [ops.Python(lambda x: x[..., :3]), ops.Brightness(0.5, 0.5)])
    batch_of(decoded, [ops.RandomFlip()])
