"""The resize of the core is the NumPy form of `kernels.resampling`, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuload import core
from gpuload.errors import SpecError
from gpuload.kernels import resampling
from gpuload.ops import RandomResizedCrop

if core.native is None:
    pytest.skip(core.problem, allow_module_level=True)

SIDE = st.integers(1, 70)


@given(
    size=st.tuples(SIDE, SIDE),
    new=st.tuples(SIDE, SIDE),
    channels=st.integers(1, 5),
    dtype=st.sampled_from([np.uint8, np.float32]),
    interpolation=st.sampled_from(["linear", "cubic"]),
    antialias=st.booleans(),
)
@example((1, 1), (1, 1), 3, np.uint8, "linear", True)
@example((400, 3), (2, 3), 3, np.uint8, "linear", True)  # a filter of many taps
@example((3, 400), (3, 2), 3, np.uint8, "cubic", True)
def test_it_equals_the_numpy_form(size, new, channels, dtype, interpolation, antialias):
    image = pixels((*size, channels), dtype)
    out = np.full((*new, channels), 7, dtype)

    resampling.resize_into(image, (0, 0, *size), interpolation, antialias, out)

    np.testing.assert_array_equal(out, resampling.resize(np, image, new, interpolation, antialias))


@given(st.data(), st.sampled_from([np.uint8, np.float32]))
def test_a_box_is_resized_as_if_it_were_the_image(data, dtype):
    image = pixels((40, 50, 3), dtype)
    height, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 50))
    top, left = data.draw(st.integers(0, 40 - height)), data.draw(st.integers(0, 50 - width))
    op, out = RandomResizedCrop(23, 17), np.empty((23, 17, 3), dtype)
    draw = {"start": np.array([top, left], np.int32), "shape": np.array([height, width], np.int32)}

    resampling.resize_into(image, (top, left, height, width), "linear", True, out)

    np.testing.assert_array_equal(out, op.array(np, image, draw))


def test_nothing_is_written_beyond_the_result():
    memory = np.full(5 * 3 * 3 + 32, 99, np.uint8)
    out = memory[16:-16].reshape(5, 3, 3)

    resampling.resize_into(pixels((9, 11, 3), np.uint8), (0, 0, 9, 11), "linear", True, out)

    assert (memory[:16] == 99).all()
    assert (memory[-16:] == 99).all()


def test_an_image_may_begin_at_any_byte():
    image, (out, other) = pixels((9, 11, 3), np.float32), np.zeros((2, 5, 3, 3), np.float32)
    odd = np.frombuffer(b"x" + image.tobytes(), np.uint8)[1:].view(np.float32).reshape(image.shape)

    resampling.resize_into(odd, (0, 0, 9, 11), "linear", True, out)
    resampling.resize_into(image, (0, 0, 9, 11), "linear", True, other)

    np.testing.assert_array_equal(out, other)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("num_taps", range(2, 15))
def test_sums_of_any_number_of_taps_are_those_of_numpy(num_taps, dtype):
    height = 10 * num_taps
    image, op = pixels((height, 37, 3), dtype), RandomResizedCrop(20, 31)
    out, draw = (
        np.empty((20, 31, 3), dtype),
        {"start": np.zeros(2, np.int32), "shape": np.array([height, 37], np.int32)},
    )

    resampling.resize_into(image, (0, 0, height, 37), "linear", True, out)

    assert resampling.taps(height, 20, "linear", True)[1].shape[1] == num_taps
    np.testing.assert_array_equal(out, op.array(np, image, draw))


@pytest.mark.parametrize(
    "box", [(0, 0, 10, 11), (0, 1, 9, 11), (-1, 0, 5, 5), (0, 0, 0, 5), (9, 0, 1, 1)]
)
def test_a_box_beyond_the_image_is_refused(box):
    with pytest.raises(SpecError, match="do not lie in the image"):
        resampling.resize_into(
            pixels((9, 11, 3), np.uint8), box, "linear", True, np.empty((5, 3, 3), np.uint8)
        )


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((5, 3, 4), np.uint8), ((5, 3, 3), np.float32), ((5, 9), np.uint8), ((0, 3, 3), np.uint8)],
)
def test_a_result_of_another_kind_is_refused(shape, dtype):
    with pytest.raises(SpecError, match="images of one kind"):
        resampling.resize_into(
            pixels((9, 11, 3), np.uint8), (0, 0, 9, 11), "linear", True, np.empty(shape, dtype)
        )


def test_memory_with_gaps_is_refused():
    image, out = pixels((9, 22, 3), np.uint8)[:, ::2], np.empty((5, 3, 3), np.uint8)

    with pytest.raises(SpecError, match="C-contiguous"):
        resampling.resize_into(image, (0, 0, 9, 11), "linear", True, out)


def pixels(shape, dtype):
    noise = np.random.default_rng(5).integers(0, 256, shape)
    return noise.astype(dtype)
