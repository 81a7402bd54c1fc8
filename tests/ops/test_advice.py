"""What a loader warns of once: views that are equal, and statistics for other units."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import gpuload as gl
from gpuload import ops

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 12, 12, 3), np.uint8)
VIEWS = ("g0", "g1")
CROP = ops.RandomResizedCrop(6, scale=(0.1, 0.3), on=VIEWS)
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def warnings_of(caplog, chain, images=IMAGES, output=None, **fields):
    """Return the lines that a loader logs, and its first batch."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="gpuload"):
        loader = gl.Loader(
            gl.arrays(image=images, **fields), 2, ops=chain, output=output, device="cpu"
        )
        batch = loader.batch_at(0)
    return [record.getMessage() for record in caplog.records], batch


def test_views_that_one_op_made_equal_are_told_of_with_the_way_to_different_ones(caplog):
    (line,), batch = warnings_of(
        caplog, [ops.Copy(to=VIEWS), CROP, ops.RandomFlip(on=VIEWS)], output=VIEWS
    )

    assert (batch["g0"] == batch["g1"]).all()
    assert "['g0', 'g1']" in line
    assert "gl.ops.repeat([...], on=('g0', 'g1'))" in line
    repeated = ops.repeat([ops.RandomResizedCrop(6, scale=(0.1, 0.3)), ops.RandomFlip()], on=VIEWS)
    lines, batch = warnings_of(caplog, [ops.Copy(to=VIEWS), *repeated], output=VIEWS)
    assert lines == []
    assert (batch["g0"] != batch["g1"]).any()


@pytest.mark.parametrize(
    "chain",
    [
        [ops.Copy(to=VIEWS), CROP, ops.Brightness(0.5, 0.9, on="g1")],
        [ops.Copy(to=VIEWS), ops.Brightness(0.5, 0.9, on="g0"), CROP],
        [ops.Copy(to=VIEWS), ops.RandomResizedCrop(6, interpolation={"g1": "nearest"}, on=VIEWS)],
        [ops.Copy(to=VIEWS), ops.Resize(6, 6, on=VIEWS)],
    ],
    ids=["another look", "another begin", "another interpolation", "nothing random"],
)
def test_views_that_differ_or_are_not_random_are_not_told_of(caplog, chain):
    assert warnings_of(caplog, chain, output=VIEWS)[0] == []


def test_an_image_and_its_copy_that_share_every_draw_are_told_of(caplog):
    (line,), batch = warnings_of(
        caplog, [ops.Copy(to="view"), ops.RandomFlip(on=("image", "view"))]
    )
    assert (batch["image"] == batch["view"]).all()
    assert "['image', 'view']" in line
    assert (
        warnings_of(
            caplog, [ops.Copy(to="view"), ops.RandomFlip(on=("image", "view"))], output="view"
        )[0]
        == []
    )


def test_an_image_and_its_mask_share_draws_without_a_word(caplog):
    chain = [ops.RandomFlip(on=("image", "mask")), ops.RandomCrop(6, on=("image", "mask"))]
    assert warnings_of(caplog, chain, mask=IMAGES[..., :1])[0] == []


@pytest.mark.parametrize(
    ("images", "numbers", "remedy"),
    [
        (IMAGES, IMAGENET, "mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375)"),
        (IMAGES[..., 0], (0.1307, 0.3081), "mean=(33.3285), std=(78.5655)"),
        (IMAGES[..., :1].astype(np.uint16), (0.5, 0.5), "mean=(32767.5), std=(32767.5)"),
    ],
)
def test_statistics_of_images_from_0_to_1_are_told_of_beside_whole_numbers(
    caplog, images, numbers, remedy
):
    (line,), _ = warnings_of(caplog, [ops.Normalize(*numbers)], images)
    assert remedy in line


@pytest.mark.parametrize(
    ("images", "numbers"),
    [
        (IMAGES, ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))),
        (IMAGES, (0, 255)),
        (IMAGES, (0, 1)),
        (IMAGES.astype(np.float32) / 255, IMAGENET),
        (IMAGES.astype(np.float32), (127.5, 127.5)),
        (np.arange(4, dtype=np.uint8), (0.5, 0.5)),
    ],
)
def test_other_statistics_are_taken_without_a_word(caplog, images, numbers):
    assert warnings_of(caplog, [ops.Normalize(*numbers)], images)[0] == []


def test_the_warning_of_statistics_knows_what_ops_before_made_of_the_image(caplog):
    to_parts = [ops.Normalize(0, 255), ops.Normalize(*IMAGENET)]
    lines, batch = warnings_of(caplog, to_parts)
    assert lines == []
    expected = (IMAGES[:2] / 255 - np.array(IMAGENET[0])) / np.array(IMAGENET[1])
    np.testing.assert_allclose(batch["image"], expected, atol=1e-5)


CENTRED = ops.Normalize(127.5, 60.0)


@pytest.mark.parametrize(
    ("chain", "parts"),
    [
        (
            [CENTRED, ops.ColorJitter(0.4)],
            [
                "ColorJitter(",
                "takes 0 for black and 1 for white",
                "put ColorJitter before Normalize",
            ],
        ),
        (
            [CENTRED, ops.RandomFlip(), ops.Sometimes(0.5, [ops.Brightness(0.5, 1)])],
            ["put Sometimes before Normalize"],
        ),
        (
            [ops.PerImageStandardization(), ops.GaussianNoise(0.1)],
            ["before PerImageStandardization"],
        ),
        (
            [CENTRED, ops.Copy(to="view"), ops.Gamma(1, 2, on="view")],
            ["field 'view'", "put Gamma before"],
        ),
        ([CENTRED, CENTRED], ["normalises a second time", "leave one of them out"]),
        ([CENTRED, ops.Cast("uint8")], ["makes uint8 of it", "put Cast before Normalize"]),
    ],
)
def test_an_op_for_images_behind_one_that_normalises_is_told_of(caplog, chain, parts):
    (line,), _ = warnings_of(caplog, chain)
    assert [part for part in parts if part not in line] == []


@pytest.mark.parametrize(
    "chain",
    [
        [ops.ColorJitter(0.4), CENTRED, ops.RandomFlip(), ops.Erasing(1.0), ops.GaussianBlur(3)],
        [ops.Normalize(0, 255), ops.ColorJitter(0.4), CENTRED],
        [
            CENTRED,
            ops.GaussianNoise(0.1, clip=False),
            ops.Grayscale(),
            ops.ChannelShuffle(),
            ops.Cast("float16"),
        ],
        [ops.Copy(to="view"), CENTRED, ops.Gamma(1, 2, on="view")],
    ],
)
def test_other_orders_are_taken_without_a_word(caplog, chain):
    assert warnings_of(caplog, chain)[0] == []


def test_a_threshold_for_images_from_0_to_1_is_told_of_beside_bytes(caplog):
    (line,), _ = warnings_of(caplog, [ops.Solarize(0.5)])
    assert "remedy: gl.ops.Solarize(128)" in line
    assert (
        warnings_of(caplog, [ops.Solarize(128), ops.Normalize(0, 255), ops.Solarize(0.5)])[0] == []
    )


@pytest.mark.parametrize(
    "op",
    [
        ops.Sometimes(0.5, [ops.Solarize(0.5)]),
        ops.OneOf([ops.Invert(), [ops.RandomFlip(), ops.Solarize(0.5)]]),
        ops.Shuffle([ops.Sometimes(0.1, [ops.Solarize(0.5)]), ops.RandomFlip()]),
    ],
)
def test_what_an_op_advises_is_told_of_inside_of_other_ops(caplog, op):
    (line,), _ = warnings_of(caplog, [op])
    assert "remedy: gl.ops.Solarize(128)" in line


def test_an_op_inside_of_others_advises_on_the_field_that_it_gets(caplog):
    parts = [
        [ops.Cast("float32"), ops.Normalize(0, 255), ops.Solarize(0.5)],
        [ops.Normalize(0, 255)],
    ]
    assert warnings_of(caplog, [ops.OneOf(parts)])[0] == []
    assert (
        warnings_of(
            caplog, [ops.OneHot(5), ops.OneOf([ops.MixUp(0.2), ops.CutMix()])], label=np.arange(4)
        )[0]
        == []
    )


def test_parts_of_the_area_above_1_are_told_of(caplog):
    (line,), _ = warnings_of(caplog, [ops.RandomResizedCrop(6, scale=(0.5, 1.5))])
    assert "remedy: scale=(0.5, 1.0)" in line
    assert warnings_of(caplog, [ops.RandomResizedCrop(6, scale=(0.5, 1.0))])[0] == []


def test_an_array_of_three_axes_that_is_moved_as_an_image_of_many_channels_is_told_of(caplog):
    scans = np.zeros((4, 12, 30, 28), np.uint16)
    (line,), _ = warnings_of(caplog, [ops.Normalize(0, 65535), ops.RandomFlip()], scans)
    assert "28 channels" in line
    assert "source.mark(image='DHW') for slices, or source.mark(image='HWC')" in line
    assert warnings_of(caplog, [ops.RandomFlip()], scans[..., :16])[0] == []
    assert warnings_of(caplog, [ops.Normalize(0, 65535)], scans)[0] == []


@pytest.mark.parametrize(
    ("dtype", "op", "remedy"),
    [
        (
            np.uint8,
            ops.ColorJitter(0.4),
            "leave Cast out, or write gl.ops.Normalize(0, 255, on='image') in its place",
        ),
        (
            np.uint16,
            ops.SaltAndPepper(0.1),
            "remedy: write gl.ops.Normalize(0, 65535, on='image') in its place",
        ),
        (
            np.int16,
            ops.Sometimes(0.5, [ops.Gamma(1, 2)]),
            "gl.ops.Normalize(-32768, 65535, on='image')",
        ),
    ],
)
def test_levels_that_an_op_takes_for_parts_of_white_are_told_of(caplog, dtype, op, remedy):
    (line,), _ = warnings_of(
        caplog, [ops.Cast("float32"), ops.RandomFlip(), op], IMAGES.astype(dtype)
    )
    assert remedy in line


@pytest.mark.parametrize(
    "chain",
    [
        [ops.ColorJitter(0.4), ops.Cast("float32")],
        [ops.Cast("float32"), ops.Normalize(0, 255), ops.ColorJitter(0.4)],
        [ops.Cast("float32"), ops.Cast("uint8"), ops.ColorJitter(0.4)],
        [ops.Cast("float32"), ops.GaussianBlur(3), ops.ChannelShuffle(), ops.Normalize(0, 255)],
        [ops.Copy(to="view"), ops.Cast("float32", on="view"), ops.Gamma(1, 2, on="image")],
        [ops.Cast("float32"), ops.Python(lambda x: x / 255), ops.Gamma(1, 2)],
    ],
)
def test_levels_that_stay_levels_are_taken_without_a_word(caplog, chain):
    assert warnings_of(caplog, chain)[0] == []


def test_a_loader_made_of_another_one_repeats_nothing_and_says_what_is_new(caplog):
    with caplog.at_level(logging.WARNING, logger="gpuload"):
        loader = gl.Loader(gl.arrays(image=IMAGES), 2, ops=[ops.Normalize(*IMAGENET)], device="cpu")
        assert len(caplog.records) == 1
        loader.replace(batch_size=1).replace(seed=3)
        gl.preview(loader, records=1)
        assert len(caplog.records) == 1
        other = loader.replace(ops=[ops.Copy(to=VIEWS), CROP], output=VIEWS)
        assert len(caplog.records) == 2
        other.replace(ops=[ops.Normalize(*IMAGENET)], output=None)
        assert len(caplog.records) == 2
        gl.Loader(gl.arrays(image=IMAGES), 2, ops=[ops.Normalize(*IMAGENET)], device="cpu")
        assert len(caplog.records) == 3
