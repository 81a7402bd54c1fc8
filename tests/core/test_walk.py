"""The walk over images against what it says, written with NumPy's own functions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuload as gl
from gpuload import core
from gpuload.errors import SpecError
from gpuload.kernels.walk import Walk, Walker

if core.native is None:
    pytest.skip(core.problem, allow_module_level=True)

SIDE = st.integers(1, 40)
NUM_IMAGES = 3


@st.composite
def walks(draw):
    """Give a walk and its images; windows of any size at any place."""
    height, width, channels = draw(SIDE), draw(SIDE), draw(st.integers(1, 5))
    in_axes, out_axes = draw(st.sampled_from(["HWC", "CHW"])), draw(st.sampled_from(["HWC", "CHW"]))
    given_dtype = np.dtype(draw(st.sampled_from([np.uint8, np.float32])))
    dtype = np.dtype(draw(st.sampled_from([given_dtype, np.float32, np.float16])))
    rng = np.random.default_rng(draw(st.integers(0, 100)))
    normalizes = dtype != np.uint8 and draw(st.booleans())
    walk = Walk(
        height=height, width=width, channels=channels, in_axes=in_axes, in_dtype=given_dtype,
        start=rng.integers(-45, 45, (NUM_IMAGES, 2)).astype(np.int32), window=(draw(SIDE), draw(SIDE)),
        mirror=rng.integers(0, 2, (NUM_IMAGES, 2)).astype(np.int32), out_axes=out_axes, fill=draw(st.integers(0, 255)),
        mean=rng.normal(100, 50, channels).astype(np.float32) if normalizes else None,
        scale=rng.normal(0, 0.1, channels).astype(np.float32) if normalizes else None, dtype=dtype, is_padded=True,
    )  # fmt: skip
    shape = (height, width, channels) if in_axes == "HWC" else (channels, height, width)
    return walk, rng.integers(0, 256, (NUM_IMAGES, *shape)).astype(given_dtype)


@given(walks())
def test_it_crops_mirrors_reorders_and_normalises(walk_and_images):
    walk, images = walk_and_images
    expected = np.stack([expected_image(walk, images[i], i) for i in range(NUM_IMAGES)])
    out = np.empty(expected.shape, expected.dtype)

    Walker(walk)(images, out)

    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_images_may_lie_within_larger_records_and_be_read_only(offset, dtype):
    size, item = 3 * 20 * 20, np.dtype(dtype).itemsize
    memory = np.random.default_rng(0).integers(0, 256, (NUM_IMAGES, size + 5)).astype(dtype)
    raw = memory.view(np.uint8).reshape(-1)[offset * item :]
    raw.flags.writeable = False
    images = np.ndarray(
        (NUM_IMAGES, 3, 20, 20), dtype, raw, 0, ((size + 5) * item, 400 * item, 20 * item, item)
    )
    walk = plain(images)
    out = np.empty((NUM_IMAGES, 20, 20, 3), np.float32)

    Walker(walk)(images, out)

    np.testing.assert_array_equal(out, images.transpose(0, 2, 3, 1).astype(np.float32))


def test_an_image_may_begin_at_any_byte():
    pixels = np.random.default_rng(0).normal(size=(1, 3, 8, 9)).astype(np.float32)
    images = (
        np.frombuffer(b"x" + pixels.tobytes(), np.uint8)[1:].view(np.float32).reshape(pixels.shape)
    )
    out = np.empty((1, 8, 9, 3), np.float32)

    Walker(plain(images))(images, out)

    np.testing.assert_array_equal(out, pixels.transpose(0, 2, 3, 1))


@pytest.mark.parametrize("batch_size", [1, 2, 5])
@pytest.mark.parametrize("op", [gl.ops.RandomCrop(8, 8), gl.ops.Resize(8, 8)])
def test_fields_of_records_of_an_odd_size_are_transformed_in_batches_of_any_size(
    tmp_path, batch_size, op
):
    record = np.dtype([("label", "u1"), ("image", "<f4", (8, 8, 3))])
    records = np.zeros(5, record)
    records["image"] = np.arange(5 * 192).reshape(5, 8, 8, 3)
    records.tofile(tmp_path / "a.bin")

    with gl.Loader(
        gl.fixed(tmp_path / "a.bin", record), batch_size, ops=[op], device="cpu"
    ) as load:
        images = np.concatenate([batch["image"] for batch in load])

    np.testing.assert_array_equal(images, records["image"])


@pytest.mark.parametrize(
    "change", [lambda x: x[::-1], lambda x: x[..., ::-1], lambda x: np.asfortranarray(x)]
)
def test_images_in_another_order_in_memory_are_read_all_the_same(change):
    images = change(
        np.random.default_rng(0).integers(0, 256, (NUM_IMAGES, 3, 8, 9), dtype=np.uint8)
    )
    out = np.empty((NUM_IMAGES, 8, 9, 3), np.float32)

    Walker(plain(images))(images, out)

    np.testing.assert_array_equal(out, images.transpose(0, 2, 3, 1).astype(np.float32))


def test_nothing_is_written_beyond_the_result():
    images = np.zeros((NUM_IMAGES, 3, 20, 20), np.uint8)
    memory = np.full(NUM_IMAGES * 1200 + 32, 99, np.float32)

    Walker(plain(images))(images, memory[16:-16].reshape(NUM_IMAGES, 20, 20, 3))

    assert (memory[:16] == 99).all()
    assert (memory[-16:] == 99).all()


@pytest.mark.parametrize(
    ("images", "shape", "dtype"),
    [
        pytest.param(
            np.zeros((2, 3, 8, 8), np.uint8), (2, 9, 9, 3), np.float32, id="smaller images"
        ),
        pytest.param(np.zeros((1, 3, 9, 9), np.uint8), (1, 9, 9, 3), np.float32, id="fewer images"),
        pytest.param(np.zeros((2, 9, 3, 9), np.uint8), (2, 9, 9, 3), np.float32, id="other axes"),
        pytest.param(
            np.zeros((2, 3, 9, 9), np.float32), (2, 9, 9, 3), np.float32, id="other dtype"
        ),
        pytest.param(
            np.zeros((2, 3, 9, 9), np.uint8), (2, 9, 8, 3), np.float32, id="smaller result"
        ),
        pytest.param(
            np.zeros((2, 3, 9, 9), np.uint8), (2, 9, 9, 3), np.uint8, id="result of another dtype"
        ),
    ],
)
def test_memory_that_is_not_what_the_walk_says_is_refused(images, shape, dtype):
    walk = plain(np.zeros((2, 3, 9, 9), np.uint8))

    with pytest.raises(SpecError, match="the walk is over 2 of uint8"):
        Walker(walk)(images, np.empty(shape, dtype))


def test_a_result_that_is_not_in_c_order_is_refused():
    images = np.zeros((2, 3, 9, 9), np.uint8)

    with pytest.raises(SpecError, match="C order"):
        Walker(plain(images))(images, np.empty((2, 9, 9, 6), np.float32)[..., ::2])


def plain(images):
    """Return the walk that turns CHW images into float32 HWC and does nothing else."""
    count, channels, height, width = images.shape
    zeros = np.zeros((count, 2), np.int32)
    return Walk(
        height=height, width=width, channels=channels, in_axes="CHW", in_dtype=images.dtype, start=zeros,
        window=(height, width), mirror=zeros, out_axes="HWC", fill=0, mean=None, scale=None, dtype=np.dtype(np.float32),
    )  # fmt: skip


def expected_image(walk, image, i):
    """Return what the walk says for one image."""
    if walk.in_axes == "CHW":
        image = image.transpose(1, 2, 0)
    padded = np.pad(
        image, ((45 + 40, 45 + 40), (45 + 40, 45 + 40), (0, 0)), constant_values=walk.fill
    )
    top, left = walk.start[i] + 85
    window = padded[top : top + walk.window[0], left : left + walk.window[1]]
    window = np.flip(window, [axis for axis in (0, 1) if walk.mirror[i, axis]])
    if walk.mean is not None:
        window = (window.astype(np.float32) - walk.mean) * walk.scale
    return (window.transpose(2, 0, 1) if walk.out_axes == "CHW" else window).astype(walk.dtype)
