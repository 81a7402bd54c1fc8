"""Resize and RandomResizedCrop, and the formula below them."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from gpuload.errors import SpecError
from gpuload.graph.graph import compile_ops
from gpuload.kernels import resampling
from gpuload.ops import Pad, RandomResizedCrop, Resize
from gpuload.spec import Spec
from gpuload.testing.ops import OpContract, array_form, dali_form, uniform, varying


class ResizeContract(OpContract):
    """Float results are DALI's bit for bit; bytes may differ by 1 where DALI's CPU rounds a half
    away from zero."""

    def compare(self, actual, expected):
        assert len(actual) == len(expected)
        for image, other in zip(actual, expected, strict=True):
            assert (image.dtype, image.shape) == (other.dtype, other.shape)
            if image.dtype == np.float32:
                np.testing.assert_array_equal(image, other)
        if actual[0].dtype == np.uint8:
            difference = np.concatenate(
                [np.abs(a.astype(int) - b).ravel() for a, b in zip(actual, expected, strict=True)]
            )
            assert difference.max() <= 1
            assert (difference > 0).mean() <= 1e-4  # of noise; for smooth images see below

    def compare_gpu(self, actual, expected):
        """The GPU fuses products and sums, and resizes linearly without DALI's table."""
        for image, other in zip(actual, expected, strict=True):
            difference = np.abs(image.astype(np.float64) - other)
            assert difference.max() <= (1 if image.dtype == np.uint8 else 0.02)
            assert (difference > 0).mean() <= (1e-3 if image.dtype == np.uint8 else 1)


def without_noise(kind):
    """Return 16 images without noise, uint8 ``[16, 120, 160, 3]``, which have more exact halves
    than noise has."""
    y, x = np.mgrid[:120, :160].astype(float)
    if kind == "gradients":
        image = np.stack([x * 255 / 160, y * 255 / 120, (x + y) * 255 / 280], axis=2)
        return (image * np.arange(1, 17)[:, None, None, None] / 16).astype(np.uint8)
    rng = np.random.default_rng(1)
    waves = [
        [np.sin(x / a + p) * np.cos(y / b + q) for a, b, p, q in rng.uniform(3, 40, (3, 4))]
        for _ in range(16)
    ]
    return (127 + 100 * np.moveaxis(np.array(waves), 1, 3)).astype(np.uint8)


@pytest.mark.parametrize("kind", ["gradients", "waves"])
@pytest.mark.parametrize(
    "op", [RandomResizedCrop(48), RandomResizedCrop(32), Resize(96, 96), Resize(shorter=50)]
)
def test_of_smooth_images_dali_differs_by_one_level_on_few_values(kind, op):
    images = without_noise(kind)
    graph = compile_ops(Spec((uniform(np.uint8, 120, 160, 3),)), [op])
    draws = graph.draw(
        seed=0,
        epoch=0,
        records=np.arange(16),
        sizes={"image": np.full((16, 2), (120, 160), np.int32)},
    )

    result, expected = dali_form(graph, images, draws, "cpu"), array_form(graph, images, draws)

    difference = np.abs(np.asarray(result).astype(int) - expected)
    assert difference.max() <= 1
    assert (difference > 0).mean() <= 5e-4  # measured: up to 2e-4, where noise has 6e-5


class TestResize(ResizeContract):
    cases = (
        (Resize(31, 41), varying(np.uint8, 3)),
        (Resize(97, 89), varying(np.uint8, 1)),
        (Resize(31, 97, antialias=False), varying(np.float32, 3)),
        (Resize(shorter=29), varying(np.uint8, 4)),
        (Resize(shorter=61), uniform(np.float32, 47, 43, 3)),
        (Resize(23, 59, interpolation="cubic"), varying(np.float32, 3)),
        (Resize(59, 23, interpolation="cubic", antialias=False), uniform(np.uint8, 41, 37, 2)),
        (Resize(20, 70, interpolation="nearest"), varying(np.uint8, 3)),
        (Resize(shorter=33, interpolation="nearest"), varying(np.float32, 1)),
        (Resize(5, 3), uniform(np.float32, 101, 103, 3)),
        (Resize(31, 97, interpolation="lanczos"), varying(np.uint8, 3)),
        (
            Resize(longer=29, interpolation="lanczos", antialias=False),
            uniform(np.float32, 47, 43, 2),
        ),
        (Resize(31, 97, interpolation="lanczos", antialias="pil"), varying(np.uint8, 3)),
        (Resize(31, 20, interpolation="cubic", antialias="pil"), uniform(np.float32, 47, 43, 2)),
        (Resize(longer=29, antialias="pil"), varying(np.uint8, 4)),
        (Resize(40, 30, fit=True), varying(np.uint8, 3)),
        (
            Resize(shorter=31, longer=40, interpolation="nearest", antialias="pil"),
            varying(np.int32, 1),
        ),
    )
    neutral = (
        (Resize(12, 10), uniform(np.uint8, 12, 10, 3)),
        (Resize(12, 10, interpolation="cubic"), uniform(np.float32, 12, 10, 3)),
        (Resize(12, 10, interpolation="nearest"), uniform(np.float32, 12, 10, 1)),
        (Resize(shorter=10), uniform(np.uint8, 12, 10, 3)),
    )
    refused = (
        (Resize(8, 8), uniform(np.uint8, 3, 32, 32)),
        (Resize(8, 8), uniform(np.uint8, 28, 28)),
        (Resize(8, 8), uniform(np.int16, 28, 28, 3)),
        (Resize(8, 8), uniform(np.float64, 28, 28, 3)),
    )


class TestRandomResizedCrop(ResizeContract):
    cases = (
        (RandomResizedCrop(31), varying(np.uint8, 3)),
        (RandomResizedCrop(29, antialias=False), varying(np.uint8, 3)),
        (RandomResizedCrop(17, 43, scale=(0.3, 0.6), ratio=(0.5, 1.1)), varying(np.float32, 3)),
        (RandomResizedCrop(24, 23, interpolation="cubic"), uniform(np.float32, 40, 50, 1)),
        (RandomResizedCrop(24, interpolation="nearest"), uniform(np.uint8, 40, 50, 3)),
        (RandomResizedCrop(9, scale=(1, 1), ratio=(1, 1)), uniform(np.float32, 12, 60, 3)),
        (RandomResizedCrop(17, 23, interpolation="lanczos"), varying(np.uint8, 3)),
        (
            RandomResizedCrop(31, interpolation="lanczos", antialias=False),
            uniform(np.float32, 40, 50, 1),
        ),
        (RandomResizedCrop(17, 23, interpolation="lanczos", antialias="pil"), varying(np.uint8, 3)),
        (RandomResizedCrop(17, 23, interpolation="cubic", antialias="pil"), varying(np.uint8, 3)),
    )
    neutral = ((RandomResizedCrop(12, scale=(1, 1), ratio=(1, 1)), uniform(np.uint8, 12, 12, 3)),)
    refused = TestResize.refused[1:]


def resized(image, *size, **arguments):
    return Resize(*size, **arguments).array(np, np.asarray(image), {})


def test_two_pixels_become_four_by_weights_of_a_quarter():
    row = np.array([[[0], [100]]], np.float32)

    assert resized(row, 1, 4)[0, :, 0].tolist() == [0, 25, 75, 100]


def test_four_pixels_become_two_with_and_without_antialias():
    row = np.array([[[0], [40], [80], [200]]], np.float32)

    averaged = resized(row, 1, 2)[0, :, 0]
    sampled = resized(row, 1, 2, antialias=False)[0, :, 0]

    # A triangle of 4 pixels' width: weights 1/8, 3/8, 3/8, 1/8, the edge pixel standing for those
    # outside.
    assert averaged.tolist() == [(0 + 3 * 0 + 3 * 40 + 80) / 8, (40 + 3 * 80 + 3 * 200 + 200) / 8]
    assert sampled.tolist() == [20, 140]


def test_bytes_are_rounded_to_the_nearest_halves_to_even():
    pairs = np.array([[[0], [1]], [[1], [2]], [[2], [3]], [[254], [255]]], np.uint8)

    assert [resized(pair[None], 1, 1, antialias=False).item() for pair in pairs] == [0, 2, 2, 254]


def test_cubic_results_are_bounded():
    edge = np.repeat(np.array([0, 255], np.uint8), 8).reshape(1, 16, 1)

    result = resized(edge, 1, 64, interpolation="cubic")

    assert (result.min(), result.max()) == (0, 255)


def test_nearest_equals_pillow():
    image = noise(31, 47)
    for size in ((16, 16), (62, 94), (100, 33), (7, 5)):
        expected = np.asarray(Image.fromarray(image).resize(size[::-1], Image.Resampling.NEAREST))

        np.testing.assert_array_equal(resized(image, *size, interpolation="nearest"), expected)


def test_linear_without_antialias_is_within_one_level_of_opencv():
    image = smooth(120, 90)
    for size in ((40, 60), (200, 131), (119, 91)):
        expected = cv2.resize(image, size[::-1], interpolation=cv2.INTER_LINEAR)

        assert np.abs(resized(image, *size, antialias=False).astype(int) - expected).max() <= 1


@pytest.mark.parametrize(
    ("interpolation", "method"),
    [("linear", Image.Resampling.BILINEAR), ("cubic", Image.Resampling.BICUBIC)],
)
def test_antialias_is_near_pillow_inside_the_image(interpolation, method):
    # Pillow leaves out the pixels outside the image where we repeat the edge, so only the inside is
    # compared.
    image = smooth(240, 180)

    difference = resized(image, 60, 50, interpolation=interpolation).astype(int) - np.asarray(
        Image.fromarray(image).resize((50, 60), method)
    )

    assert np.abs(difference[3:-3, 3:-3]).max() <= 1


def test_the_coefficients_of_each_pixel_sum_to_one():
    for n_in, n_out, interpolation in (
        (500, 224, "linear"),
        (7, 300, "cubic"),
        (1000, 3, "linear"),
        (5, 5, "cubic"),
    ):
        _, coefficients = resampling.taps(n_in, n_out, interpolation, True)

        np.testing.assert_allclose(coefficients.sum(axis=1), 1, rtol=1e-6)


@given(st.integers(1, 5000), st.integers(1, 5000), st.sampled_from(["linear", "cubic"]))
@example(5000, 1, "cubic")
@example(1, 5000, "cubic")
def test_the_tables_that_are_kept_are_small(n_in, n_out, interpolation):
    resampling._cached_taps.cache_clear()

    first, coefficients = resampling._taps(n_in, n_out, interpolation, True)

    if resampling._cached_taps.cache_info().currsize:
        assert first.size + coefficients.size <= resampling.KEPT_NUMBERS


@pytest.mark.parametrize("n_in", [20, 500, 3500])
def test_the_table_of_a_common_size_is_made_once(n_in):
    assert resampling._taps(n_in, 224, "linear", True) is resampling._taps(
        n_in, 224, "linear", True
    )


@pytest.mark.parametrize(
    ("size", "new", "vertical"),
    [
        ((318, 318), (224, 224), True),
        ((318, 333), (224, 224), True),
        ((318, 334), (224, 224), False),
        ((128, 128), (224, 224), False),
        ((311, 311), (101, 100), True),
        ((100, 100), (150, 160), False),
        ((100, 100), (90, 150), True),
    ],
)
def test_dali_takes_the_passes_in_the_order_that_we_say(size, new, vertical):
    op = Resize(*new, antialias=False)
    graph, image = (
        compile_ops(Spec((uniform(np.float32, *size, 1),)), [op]),
        noise(*size, 1).astype(np.float32),
    )
    first, second = ((0, 1), (1, 0))[not vertical], ((1, 0), (0, 1))[not vertical]

    result = dali_form(graph, image[None], [{}], "cpu")[0]

    assert resampling.vertical_first(size, new, (2, 2)) is vertical
    np.testing.assert_array_equal(result, passes(image, new, first))
    assert (result != passes(image, new, second)).any()


def test_bytes_differ_from_dali_only_at_exact_halves_and_by_one():
    halves = 0
    for size, new in (
        ((64, 60), (32, 30)),
        ((60, 70), (30, 35)),
        ((64, 48), (96, 72)),
        ((40, 202), (20, 101)),
    ):
        image, op = noise(*size), Resize(*new, antialias=False)
        graph = compile_ops(Spec((uniform(np.uint8, *size, 3),)), [op])

        result = array_form(graph, image[None], [{}])[0].astype(int)
        of_dali = dali_form(graph, image[None], [{}], "cpu")[0]

        exact = op.array(np, image.astype(np.float32), {})
        assert (np.abs(result - of_dali)[exact % 1 != 0.5] == 0).all()
        assert np.abs(result - of_dali).max() <= 1
        halves += (result != of_dali).sum()
    assert halves > 0


def test_the_shorter_side_gets_its_length_and_the_longer_is_rounded_halves_up():
    sizes = np.array([[300, 400], [500, 333], [100, 100], [2, 5], [1000, 1]], np.int32)

    after = Resize(shorter=50).size_after(sizes, {})

    assert after.tolist() == [[50, 67], [75, 50], [50, 50], [50, 125], [50000, 50]]


def test_an_image_that_is_already_small_becomes_larger():
    assert Resize(shorter=50).size_after(np.array([[10, 20]], np.int32), {}).tolist() == [[50, 100]]


@pytest.mark.parametrize(
    "arguments",
    [
        {"height": 224},
        {"width": 224},
        {},
        {"height": 224, "width": 224, "shorter": 224},
        {"height": 224, "shorter": 224},
        {"height": 0, "width": 3},
        {"shorter": 2.5},
        {"shorter": 5, "antialias": 1},
    ],
)
def test_wrong_arguments_of_resize_are_refused(arguments):
    with pytest.raises(SpecError, match="Resize"):
        Resize(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"scale": (0, 1)},
        {"scale": (0.5, 0.1)},
        {"ratio": (1,)},
        {"ratio": 1},
        {"interpolation": "area"},
    ],
)
def test_wrong_arguments_of_random_resized_crop_are_refused(arguments):
    with pytest.raises(SpecError, match="RandomResizedCrop"):
        RandomResizedCrop(224, **arguments)


def test_the_first_try_that_fits_gives_the_box():
    u = np.zeros((1, 22))
    u[0, :3] = 1 - 1e-12, 1 - 1e-12, 0.25  # parts of the area: 1, 1, and 0.04 + 0.25 * 0.96 = 0.28
    u[0, 10:13] = 1 - 1e-12, 0, 0.5  # ratios: 4 and 1/4, which do not fit an area of 1, and 1
    u[0, 20:] = 0.5, 1 - 1e-12  # the place

    draw = RandomResizedCrop(8, scale=(0.04, 1), ratio=(0.25, 4)).draw(
        u, np.array([[100, 100]], np.int32)
    )

    assert draw["shape"].tolist() == [[53, 53]]  # sqrt(0.28 * 100 * 100) = 52.9
    assert draw["start"].tolist() == [[24, 47]]


@pytest.mark.parametrize(
    ("size", "start", "shape"),
    [
        ((100, 1000), (0, 433), (100, 133)),
        ((1000, 100), (433, 0), (133, 100)),
        ((1, 1), (0, 0), (1, 1)),
    ],
)
def test_where_no_try_fits_the_box_is_the_largest_central_one(size, start, shape):
    u = np.full((1, 22), 1 - 1e-12)

    draw = RandomResizedCrop(8).draw(u, np.array([size], np.int32))

    assert (tuple(draw["start"][0]), tuple(draw["shape"][0])) == (start, shape)


def test_boxes_lie_inside_and_have_the_areas_and_ratios_that_were_asked_for():
    rng = np.random.default_rng(1)
    size = np.array([[1000, 1000]] * 20000, np.int32)

    draw = RandomResizedCrop(8).draw(rng.random((20000, 22)), size)

    start, shape = draw["start"], draw["shape"].astype(float)
    area, ratio = shape.prod(axis=1) / 1e6, shape[:, 1] / shape[:, 0]
    assert (start >= 0).all()
    assert (start + shape <= 1000).all()
    assert 0.079 < area.min() < 0.09
    assert 0.97 < area.max() <= 1
    assert 0.74 < ratio.min() < 0.76
    assert 1.32 < ratio.max() < 1.35
    assert abs(np.log(ratio).mean()) < 0.01  # as often higher as wide
    room = 1000 - shape
    inside = room[:, 0] > 50
    assert abs((start[inside, 0] / room[inside, 0]).mean() - 0.5) < 0.01


def test_only_the_pixels_of_the_box_are_used():
    image = np.zeros((20, 20, 3), np.uint8)
    image[5:10, 6:12] = 77
    draw = {"start": np.array([5, 6], np.int32), "shape": np.array([5, 6], np.int32)}

    assert (RandomResizedCrop(16).array(np, image, draw) == 77).all()


def noise(height, width, channels=3):
    return np.random.default_rng(7).integers(0, 256, (height, width, channels), dtype=np.uint8)


def smooth(height, width):
    """Return an image of soft waves, so that other ways to sum differ little."""
    y, x = np.mgrid[:height, :width, :1][:2].astype(float)
    waves = [np.sin(x / (7 + c) + c) * np.cos(y / (9 - c)) for c in range(3)]
    return np.rint(127 + 120 * np.concatenate(waves, axis=2)).astype(np.uint8)


def passes(image, new, axes):
    """Return an image resized along one axis after the other, in the order that is given."""
    for axis in axes:
        first, coefficients = resampling.taps(image.shape[axis], new[axis], "linear", False)
        places = [(first + k).clip(0, image.shape[axis] - 1) for k in range(2)]
        weights = [
            coefficients[:, k].reshape((-1, 1, 1) if axis == 0 else (1, -1, 1)) for k in range(2)
        ]
        image = weights[0] * image.take(places[0], axis=axis) + weights[1] * image.take(
            places[1], axis=axis
        )
    return image


def test_a_side_or_both_may_limit_the_size():
    sizes = np.array([[100, 200], [300, 100], [50, 50]], np.int32)

    def sizes_after(**arguments):
        return Resize(**arguments).size_after(sizes, {}).tolist()

    assert sizes_after(longer=100) == [[50, 100], [100, 33], [100, 100]]
    assert sizes_after(shorter=80, longer=150) == [
        [75, 150],
        [150, 50],
        [80, 80],
    ]  # as torchvision with max_size
    assert sizes_after(height=60, width=90, fit=True) == [[45, 90], [60, 20], [60, 60]]


def test_an_image_that_fits_is_boxed_in_by_pad():
    graph = compile_ops(
        Spec((varying(np.uint8, 3),)), [Resize(40, 64, fit=True), Pad(40, 64, fill=114)]
    )

    assert graph.spec_out["image"].shape == (40, 64, 3)


@pytest.mark.parametrize(
    "arguments",
    [
        {"height": 5},
        {"longer": 5, "height": 5, "width": 5},
        {"longer": 5, "fit": True},
        {"height": 5, "width": 5, "fit": 1},
        {"height": 5, "width": 5, "antialias": "PIL"},
        {"height": 5, "width": 5, "interpolation": "Lanczos"},
        {"height": 5, "width": 5, "interpolation": {"image": "bilinear"}},
    ],
)
def test_sizes_and_filters_that_say_nothing_or_too_much_are_refused(arguments):
    with pytest.raises(SpecError, match="Resize"):
        Resize(**arguments)


def test_the_longer_side_is_rounded_down_where_torchvision_does():
    """256 * 90 / 67 = 343.88, 256 * 500 / 375 = 341.33; torchvision takes ``int`` of it."""
    sizes = np.array([[67, 90], [90, 67], [375, 500]], np.int32)

    nearest = Resize(shorter=256).size_after(sizes, {})
    down = Resize(shorter=256, rounding="down").size_after(sizes, {})

    assert nearest.tolist() == [[256, 344], [344, 256], [256, 341]]
    assert down.tolist() == [[256, 343], [343, 256], [256, 341]]
    with pytest.raises(SpecError, match="rounding"):
        Resize(shorter=256, rounding="up")


@pytest.mark.parametrize("size", [(24, 31), (9, 70), (48, 50), (90, 100)])
def test_lanczos_is_pillows_kernel(size):
    """But for one level: Pillow rounds to bytes between the passes; and at the edge it leaves out
    what DALI repeats."""
    image = without_noise("waves")[0][:60, :80]

    result = resized(image, *size, interpolation="lanczos")

    expected = np.asarray(Image.fromarray(image).resize(size[::-1], Image.Resampling.LANCZOS))
    difference = np.abs(result.astype(int) - expected)[3:-3, 3:-3]
    assert difference.max() <= 1
    assert (difference > 0).mean() <= 0.25


def test_lanczos_of_a_bright_line_rings_on_both_sides():
    row = np.zeros((1, 9, 1), np.float32)
    row[0, 4] = 100

    result = resized(row, 1, 27, interpolation="lanczos")[0, :, 0]

    def lanczos(x):
        return np.sinc(x) * np.sinc(x / 3)

    # Output pixel 12 lies at (12 + 0.5) / 3 - 0.5 = 3 2/3, a third of a pixel before the line.
    weights = np.array([lanczos(11 / 3 - pixel) for pixel in range(1, 7)])
    assert result[12] == pytest.approx(100 * lanczos(1 / 3) / weights.sum(), abs=0.05)
    assert (result[8:10] < 0).all()
    assert result.max() == pytest.approx(100, abs=1e-3)
