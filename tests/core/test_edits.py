"""Edits in the core: every value that the NumPy forms make, alone and one after the other, and what
is refused."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import gpuload as gl
from gpuload import core
from gpuload.kernels import blur_pillow, colour, colour_pillow, edits, lab, pillow, tables
from gpuload.ops import CLAHE
from gpuload.ops.colour import blur
from gpuload.ops.policy import policies
from gpuload.testing.ops import uniform

BYTES = uniform(np.uint8, 9, 9, 3)

pytestmark = pytest.mark.skipif(core.native is None, reason=core.problem)
RNG = np.random.default_rng(8)
SIZES = ((1, 1), (2, 5), (3, 3), (31, 33), (40, 13), (64, 16))  # 512 pixels are a block of the core
FACTORS = np.float32([0, 1e-6, 0.3, 0.999999, 1, 1.000001, 1.7, 300])
FILL = (7, 130, 255)


def edit(image, *parts):
    """Return an image behind edits, float64 ``[1, L]`` each."""
    out = np.full((1, *image.shape), 77, np.uint8)
    core.native.edit(image[None], np.concatenate(parts, axis=1), out)
    return out[0]


def of(code, *numbers):
    return edits.of(1, code, *numbers)


def images(channels=3, sizes=SIZES):
    """Return noise of all levels and of a few."""
    for size in sizes:
        for low, high in ((0, 256), (100, 104), (200, 256), (0, 2)):
            yield RNG.integers(low, high, (*size, channels)).astype(np.uint8)


OF_FACTORS = {
    "brightness": lambda x, f: (of(edits.BRIGHTNESS, f), colour.brightness(np, x, f)),
    "contrast": lambda x, f: (of(edits.CONTRAST, f, colour.weight(f)), colour.contrast(np, x, f)),
    "saturation": lambda x, f: (
        of(edits.SATURATION, f, colour.weight(f)),
        colour.saturation(np, x, f),
    ),
    "sharpness": lambda x, f: (of(edits.SHARPNESS, colour.weight(f)), colour.sharpness(np, x, f)),
    "Pillow's contrast": lambda x, f: (of(edits.PIL_CONTRAST, f), colour_pillow.contrast(np, x, f)),
    "Pillow's saturation": lambda x, f: (
        of(edits.PIL_SATURATION, f),
        colour_pillow.saturation(np, x, f),
    ),
    "Pillow's sharpness": lambda x, f: (
        of(edits.PIL_SHARPNESS, f),
        colour_pillow.sharpness(np, x, f),
    ),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", OF_FACTORS)
def test_each_value_is_that_of_numpy_for_any_factor(name, channels):
    for image in images(channels):
        for factor in [*FACTORS, *RNG.uniform(0, 2.5, 20).astype(np.float32)]:
            numbers, expected = OF_FACTORS[name](image, factor)

            np.testing.assert_array_equal(edit(image, numbers), expected, str((name, factor)))


@pytest.mark.parametrize("channels", [1, 3])
def test_each_value_is_that_of_numpy_for_any_turn_of_the_hue(channels):
    turns = [
        *np.float32([-0.5, -1e-8, 0, 1e-8, 0.5]),
        *RNG.uniform(-0.5, 0.5, 20).astype(np.float32),
    ]
    for image in images(channels):
        for turn in turns:
            np.testing.assert_array_equal(
                edit(image, of(edits.HUE, turn)), colour.hue(np, image, turn), str(turn)
            )


OF_HISTOGRAMS = {
    edits.AUTOCONTRAST: colour.autocontrast, edits.EQUALIZE: colour.equalize,
    edits.PIL_AUTOCONTRAST: colour_pillow.autocontrast,
}  # fmt: skip


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("code", OF_HISTOGRAMS)
def test_each_value_is_that_of_numpy_for_any_histogram(code, channels):
    for image in images(channels, [*SIZES, (97, 89)]):
        np.testing.assert_array_equal(edit(image, of(code)), OF_HISTOGRAMS[code](np, image))
        for least, largest in ((0, 255), (9, 10), (0, 254), (250, 255)):
            two_levels = np.where(image > 1, np.uint8(least), np.uint8(largest))
            np.testing.assert_array_equal(
                edit(two_levels, of(code)), OF_HISTOGRAMS[code](np, two_levels)
            )


def test_each_pair_of_bounds_stretches_as_in_numpy():
    for low in range(0, 256, 3):
        for high in range(low, 256, 2):
            image = np.linspace(low, high, 256).astype(np.uint8).reshape(16, 16, 1)
            for code in (edits.AUTOCONTRAST, edits.PIL_AUTOCONTRAST):
                np.testing.assert_array_equal(edit(image, of(code)), OF_HISTOGRAMS[code](np, image))


def test_the_gray_of_every_colour_is_that_of_numpy():
    green, blue = np.meshgrid(np.arange(256), np.arange(256))
    for red in range(0, 256, 5):
        image = np.stack([np.full_like(green, red), green, blue], axis=-1).astype(np.uint8)
        gray = np.empty((256, 256, 1), np.uint8)

        core.native.make_gray(image, gray)

        np.testing.assert_array_equal(gray, colour.grayscale(np, image, 1))
        np.testing.assert_array_equal(edit(image, of(edits.GRAY)), colour.grayscale(np, image, 3))


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_tables_are_those_of_each_image(channels):
    for size in (*SIZES, (1, 63), (1, 64), (1, 65), (40, 47)):
        batch = RNG.integers(0, 256, (4, *size, channels), np.uint8)
        table, out = RNG.integers(0, 256, (4, 256), np.uint8), np.empty_like(batch)

        core.native.edit(batch, edits.of_tables(table), out)

        np.testing.assert_array_equal(out, tables.look_up(np, batch, table))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("window", [(1, 1), (1, 3), (5, 3), (23, 9)])
def test_blurs_are_those_of_numpy(channels, window):
    for image in images(channels, [(12, 5), (31, 33)]):
        if min(image.shape[:2]) * 2 <= max(window):
            continue
        down, across = (blur.weights(np.array([1.3]), side) for side in window)
        numbers = edits.of(1, edits.BLUR, *window, *down[0], *across[0])

        expected = np.rint(blur.blur(np, image, down[0], across[0])).clip(0, 255).astype(np.uint8)

        np.testing.assert_array_equal(edit(image, numbers), expected)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_pillows_blurs_are_those_of_numpy(channels):
    for image in images(channels, [*SIZES, (1, 9), (40, 2)]):
        for sigma in (0.0, 0.1, 0.7, 1.414, 1.415, 2.0):
            result = edit(image, of(edits.PIL_BLUR, *blur_pillow.box(sigma)))

            np.testing.assert_array_equal(
                result, blur_pillow.gaussian_blur(np, image, sigma), str(sigma)
            )


def matrices(size):
    """Return matrices that shear, move, stretch and turn, also far away, and those of edges of
    pixels."""
    height, width = size
    for angle in (0, 1e-9, 0.3, 45, 89.999, 90, 135, 180.0001, 270, -30, 720.5):
        yield pillow.rotation(angle, size)
    for value in (0, 0.25, -0.3, 1, 1e-7, -40, 3e4, 1e9):
        yield from (make(value) for make in policies.MATRICES.values())
    for a, e in ((1, 1), (0.5, 2), (-1, 1), (-1.5, -0.25), (0, 0), (1 / 3, 1 / 7), (1e6, 1)):
        yield from (
            (a, 0, c, 0, e, f)
            for c, f in ((0, 0), (width, height), (-0.5, 0.5), (1 / 3, -1e-9), (1e300, 0))
        )
    for _ in range(40):
        a, b, d, e = RNG.normal(0, 1, 4)
        yield a, b, RNG.uniform(-width, 2 * width), d, e, RNG.uniform(-height, 2 * height)
    yield 4e4, 1, 0, 1, 1, 0  # too large for Pillow's whole numbers
    yield -3e4, 7, 2e4, 0.5, 9e4, -3


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("interpolation", edits.FILTERS)
def test_affine_transforms_are_those_of_numpy(interpolation, channels):
    for size in ((1, 1), (5, 9), (24, 17), (31, 31)):
        image, fill = RNG.integers(0, 256, (*size, channels), np.uint8), FILL[:channels]
        for matrix in matrices(size):
            numbers = of(
                edits.PIL_AFFINE, edits.FILTERS.index(interpolation), *matrix, *(*fill, 0, 0)[:3]
            )

            expected = pillow.affine(np, image, matrix, interpolation, fill)

            np.testing.assert_array_equal(edit(image, numbers), expected, str((size, matrix)))


def test_wide_images_are_turned_as_in_numpy():
    image = RNG.integers(0, 256, (3, 33_000, 3), np.uint8)
    for angle in (0.0005, 180.002, 30):
        matrix = pillow.rotation(angle, image.shape[:2])

        expected = pillow.affine(np, image, matrix, "nearest", FILL)

        np.testing.assert_array_equal(
            edit(image, of(edits.PIL_AFFINE, 0, *matrix, *FILL)), expected
        )


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_quarters_of_a_turn_are_those_of_numpy(channels):
    for size, turns in (((9, 9), (1, 2, 3)), ((4, 7), (2,))):
        image = RNG.integers(0, 256, (*size, channels), np.uint8)
        for turn in turns:
            np.testing.assert_array_equal(
                edit(image, of(edits.PIL_TURN, turn)), np.rot90(image, turn)
            )


def clahe(image, limit, *grid):
    return CLAHE(limit, grid).array(
        np, image, {"apply": np.int32(1), "clip_limit": np.float32(limit)}
    )


GRIDS = (
    (0.5, 8, 8),
    (2, 1, 1),
    (4, 2, 3),
    (40, 5, 8),
    (1000, 3, 4),
    (1, 90, 70),
    (1e30, 1, 256),
    (1e-30, 2, 1),
)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_tiles_are_made_even_as_in_numpy(channels):
    for number, image in enumerate(images(channels, [*SIZES, (97, 89), (5, 300)])):
        size, levels = divmod(number, 4)
        # Each grid for each size and for each of the levels, in images of an even and of an odd
        # number of channels.
        limit, rows, columns = GRIDS[(size + 2 * levels + channels) % 8]
        result = edit(image, of(edits.CLAHE, np.float32(limit), rows, columns))

        expected = clahe(image, limit, rows, columns)
        np.testing.assert_array_equal(result, expected, str((image.shape, limit, rows, columns)))


def test_tiles_behind_the_image_are_never_made():
    image = RNG.integers(0, 256, (5, 60, 3)).astype(np.uint8)

    result = edit(image, of(edits.CLAHE, 2, 3, 2**31 - 1))

    np.testing.assert_array_equal(result, clahe(image, 2, 3, 61))


@pytest.mark.parametrize("channels", [1, 2])
def test_tiles_of_16_bits_are_made_even_as_in_numpy(channels):
    grids = ((0.5, 2, 2), (40, 3, 2), (60_000, 1, 3), (1e30, 7, 2))
    for first, size in enumerate(((1, 1), (3, 7), (40, 33))):
        for levels, (low, high) in enumerate(((0, 65536), (900, 1000), (65_000, 65_536))):
            image = RNG.integers(low, high, (*size, channels)).astype(np.uint16)
            for limit, rows, columns in grids[
                (first + levels) % 2 :: 2
            ]:  # each for each size, and for all levels
                out = np.empty_like(image)

                core.native.clahe(image, limit, rows, columns, out)

                expected = clahe(image, limit, rows, columns)
                np.testing.assert_array_equal(out, expected, str((size, limit, rows, columns)))


def test_each_colour_of_a_flat_tile_goes_to_lab_and_back_as_in_numpy():
    """A limit of no use and one tile make white of each lightness, so each colour shows its a and
    b."""
    for red in range(0, 256, 15):
        green, blue = np.meshgrid(np.arange(256), np.arange(256))
        image = np.stack([np.full_like(green, red), green, blue], axis=-1).astype(np.uint8)

        result = edit(image, of(edits.CLAHE, 3.0, 16, 16))

        np.testing.assert_array_equal(result, clahe(image, 3.0, 16, 16))
        lightness, a, b = lab.to_lab(np, image)
        assert lightness.max() - lightness.min() > 100
        assert len(np.unique(a)) > 60
        assert len(np.unique(b)) > 60


TABLE = RNG.integers(0, 256, (1, 256), np.uint8)
ROTATION = pillow.rotation(20, (24, 31))
STEPS = {  # an edit, and what it means
    "table": (edits.of_tables(TABLE), lambda x: TABLE[0][x]),
    "brightness": (of(edits.BRIGHTNESS, 1.25), lambda x: colour.brightness(np, x, 1.25)),
    "contrast": (of(edits.CONTRAST, 0.5, 0.5), lambda x: colour.contrast(np, x, 0.5)),
    "saturation": (of(edits.SATURATION, 0.25, 0.75), lambda x: colour.saturation(np, x, 0.25)),
    "hue": (of(edits.HUE, 0.25), lambda x: colour.hue(np, x, 0.25)),
    "sharpness": (of(edits.SHARPNESS, -0.5), lambda x: colour.sharpness(np, x, 1.5)),
    "gray": (of(edits.GRAY), lambda x: colour.grayscale(np, x, x.shape[2])),
    "autocontrast": (of(edits.AUTOCONTRAST), lambda x: colour.autocontrast(np, x)),
    "equalize": (of(edits.EQUALIZE), lambda x: colour.equalize(np, x)),
    "affine": (
        of(edits.PIL_AFFINE, 1, *ROTATION, 9, 8, 7),
        lambda x: pillow.affine(np, x, ROTATION, "linear", (9, 8, 7)[: x.shape[2]]),
    ),
    "turn": (of(edits.PIL_TURN, 2), lambda x: np.rot90(x, 2)),
    "clahe": (of(edits.CLAHE, 2.5, 3, 2), lambda x: clahe(x, 2.5, 3, 2)),
    "Pillow's blur": (
        of(edits.PIL_BLUR, *blur_pillow.box(1.5)), lambda x: blur_pillow.gaussian_blur(np, x, 1.5),
    ),
    "skip": (of(edits.SKIP, math.nan, math.inf), lambda x: x),
}  # fmt: skip


@pytest.mark.parametrize("channels", [1, 3])
def test_edits_one_after_the_other_are_those_of_numpy(channels):
    names = [
        *itertools.permutations(STEPS, 2),
        *(RNG.choice(list(STEPS), RNG.integers(3, 9)) for _ in range(150)),
    ]
    image = RNG.integers(0, 256, (24, 31, channels), np.uint8)
    for chain in names:
        expected = image
        for name in chain:
            expected = STEPS[name][1](expected)

        np.testing.assert_array_equal(
            edit(image, *(STEPS[name][0] for name in chain)), expected, str(chain)
        )


def test_an_image_without_edits_is_copied():
    image = RNG.integers(0, 256, (4, 5, 3), np.uint8)
    out = np.empty((1, 4, 5, 3), np.uint8)

    core.native.edit(image[None], np.empty((1, 0)), out)

    np.testing.assert_array_equal(out[0], image)


def test_a_mix_of_chains_is_that_of_numpy():
    for image in images(sizes=[(24, 31)]):
        chains = [
            (0.2, ("affine", "table")),
            (0.5, ("sharpness",)),
            (0.3, ()),
            (0.7, ("equalize", "hue", "turn")),
        ]
        parts, total = [], np.zeros(image.shape, np.float32)
        for weight, names in chains:
            numbers = np.concatenate(
                [np.empty((1, 0)), *(STEPS[name][0] for name in names)], axis=1
            )
            parts += [[np.float32(weight)], [numbers.shape[1]], numbers[0]]
            result = image
            for name in names:
                result = STEPS[name][1](result)
            total = total + result.astype(np.float32) * np.float32(weight)
        arguments = np.concatenate([[0.375, len(chains)], *parts])

        expected = colour_pillow.blend(np, image, total.clip(0, 255).astype(np.uint8), 0.375)

        np.testing.assert_array_equal(edit(image, of(edits.PIL_MIX, *arguments)), expected)


def test_ops_become_the_edits_that_they_are_asked_for():
    ops, size, nothing = gl.ops, np.full((3, 2), 9, np.int32), np.empty((3, 0))
    draw = {"apply": np.int32([1, 0, 1])}
    equalize = ops.Equalize().forms(BYTES).edits(draw, size, 3)
    np.testing.assert_array_equal(
        equalize, [[edits.EQUALIZE, 0], [edits.SKIP, 0], [edits.EQUALIZE, 0]]
    )
    assert ops.Grayscale(1).forms(BYTES).edits(draw, size, 3) is None
    assert ops.ChannelShuffle().forms(BYTES).edits({"keys": nothing}, size, 3) is None
    shuffle = ops.Shuffle([ops.Equalize(), ops.Brightness(1, 1)])
    numbers = {"order": np.int32([[1, 0]]), "0.apply": np.int32([1]), "1.factor": np.float32([2])}
    brightness, equalize, skip = [edits.BRIGHTNESS, 1, 2], [edits.EQUALIZE, 0], [edits.SKIP, 1, 0]
    expected = [[*brightness, edits.SKIP, 0, *equalize, *skip]]
    np.testing.assert_array_equal(shuffle.forms(BYTES).edits(numbers, size[:1], 3), expected)


RGB, GRAY, FOUR = (np.zeros((1, 4, 5, channels), np.uint8) for channels in (3, 1, 4))
NAN, INF = math.nan, math.inf
AFFINE = [0, 1, 0, 0, 0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("numbers", [
    [edits.CLAHE, 2, 2, 8],
    [edits.CLAHE, 3, 2, 0, 8],
    [edits.CLAHE, 3, 2, 8, 1.5],
    [edits.CLAHE, 3, 2, 8, 2**31],
    [edits.CLAHE, 3, 0, 8, 8],
    [edits.CLAHE, 3, NAN, 8, 8],
    [edits.CLAHE, 3, INF, 8, 8],
    [edits.PIL_BLUR, 2, 0, 1],
    [edits.PIL_BLUR, 3, 2, 1, 1],
    [edits.PIL_BLUR, 3, -1, 1, 1],
    [edits.PIL_BLUR, 3, 0, 1.5, 1],
    [edits.PIL_BLUR, 3, 0, NAN, 1],
    [edits.PIL_BLUR, 3, 0, 1, -1],
    [edits.PIL_BLUR, 3, 1, 1 << 23, 1],
    [edits.PIL_BLUR, 3, 0, 0, (1 << 23) + 1],
    [edits.GRAY],
    [edits.GRAY, 1],
    [edits.GRAY, -1],
    [edits.GRAY, NAN],
    [edits.GRAY, 1e300],
    [0.5, 0],
    [-1, 0],
    [20, 0],
    [NAN, 0],
    [INF, 0],
    [edits.GRAY, 0, edits.BRIGHTNESS, 0],
    [edits.TABLE, 31, *range(31)],
    [edits.BRIGHTNESS, 1, NAN],
    [edits.BRIGHTNESS, 1, 1e300],
    [edits.CONTRAST, 1, 1],
    [edits.SATURATION, 2, 1, INF],
    [edits.HUE, 0],
    [edits.SHARPNESS, 0],
    [edits.BLUR, 1, 1],
    [edits.BLUR, 3, 1, 3, 1],
    [edits.BLUR, 5, 2, 1, 1, 1, 1],
    [edits.BLUR, 12, 9, 1, *range(10)],
    [edits.BLUR, 14, 1, 11, *range(12)],
    [edits.BLUR, 4, 1, NAN, 1, 1],
    [edits.PIL_CONTRAST, 0],
    [edits.PIL_AFFINE, 9, *AFFINE[:9]],
    [edits.PIL_AFFINE, 10, 3, *AFFINE[1:]],
    [edits.PIL_AFFINE, 10, 0, NAN, *AFFINE[2:]],
    [edits.PIL_AFFINE, 10, *AFFINE[:9], 256],
    [edits.PIL_AFFINE, 10, *AFFINE[:9], 0.5],
    [edits.PIL_TURN, 0],
    [edits.PIL_TURN, 1, 1],
    [edits.PIL_TURN, 1, 4],
    [edits.PIL_TURN, 1, 0],
    [edits.PIL_MIX, 1, 0.5],
    [edits.PIL_MIX, 2, NAN, 0],
    [edits.PIL_MIX, 2, 0.5, 1],
    [edits.PIL_MIX, 4, 0.5, 1, 1, 1],
    [edits.PIL_MIX, 6, 0.5, 1, NAN, 2, edits.GRAY, 0],
    [edits.PIL_MIX, 6, 0.5, 1, 1, 2, 99, 0],
    [edits.PIL_MIX, 8, 0.5, 1, 1, 4, edits.PIL_MIX, 2, 0.5, 0],
])  # fmt: skip
def test_numbers_that_are_no_edits_are_refused_before_anything_is_written(numbers):
    out = np.full_like(RGB, 9)
    with pytest.raises(ValueError, match="edit"):
        core.native.edit(RGB, np.array([numbers], np.float64), out)
    assert (out == 9).all()


@pytest.mark.parametrize(("image", "count", "out"), [
    (RGB, 2, RGB.copy()),
    (RGB, 1, GRAY),
    (RGB, 1, RGB),
    (RGB, 1, np.zeros((2, 4, 5, 3), np.uint8)),
    (FOUR, 1, FOUR.copy()),
])  # fmt: skip
def test_arrays_that_do_not_belong_together_are_refused(image, count, out):
    with pytest.raises(ValueError, match="edit"):
        core.native.edit(image, edits.of(count, edits.GRAY), out)


@pytest.mark.parametrize("call", [
    lambda native: native.make_gray(GRAY[0], RGB[0].copy()),
    lambda native: native.make_gray(RGB[0], np.zeros((4, 5, 2), np.uint8)),
    lambda native: native.make_gray(RGB[0], np.zeros((4, 4, 1), np.uint8)),
])  # fmt: skip
def test_a_gray_of_another_shape_is_refused(call):
    with pytest.raises(ValueError, match="make_gray"):
        call(core.native)
