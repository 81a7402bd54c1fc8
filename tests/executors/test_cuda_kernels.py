"""Kernels of CUDA make the numbers of the array form bit for bit: walks, and resizing batches of
different sizes."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import host_times
from gpuload import device as devices
from gpuload import ops
from gpuload.errors import RowError, SpecError
from gpuload.executors.array import ArrayBatchExecutor
from gpuload.executors.checks import Checks
from gpuload.graph.graph import compile_ops, image_sizes
from gpuload.graph.levels import CheckLevels
from gpuload.kernels import cuda, walk
from gpuload.kernels.pixels import move
from gpuload.kernels.resampling import resize_batch
from gpuload.ragged import Ragged
from gpuload.spec import Field, Spec
from gpuload.testing.ops import array_form, assert_identical, numbers, uniform, varying

pytestmark = pytest.mark.gpu

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
COUNT = 9
CHAINS = {
    "planes to pixels": (
        uniform(np.uint8, 3, 32, 30),
        (ops.Transpose("HWC"), ops.RandomCrop(32, 30, pad=4, fill=7), ops.RandomFlip(), ops.Normalize(MEAN, STD)),
    ),
    "pixels to planes": (
        uniform(np.uint8, 40, 36, 3),
        (ops.RandomFlip(vertical=True), ops.CenterCrop(17, 23), ops.Normalize(MEAN, STD), ops.Transpose("CHW")),
    ),
    "mirrored twice, then cut": (
        uniform(np.float32, 12, 9, 1),
        (ops.RandomFlip(p=0.9), ops.RandomFlip(vertical=True), ops.RandomCrop(5, 7)),
    ),
    "float16": (uniform(np.float32, 6, 5, 2), (ops.Normalize((1, 2), (1e-4, 3e7), dtype="float16"),)),
    "a larger border": (uniform(np.float32, 5, 4, 3), (ops.Pad(9, 11, fill=-2.5), ops.RandomFlip())),
    "rows of numbers": (uniform(np.float32, 70), (ops.Normalize(3, 0.1),)),
    "images of different sizes": (
        varying(np.uint8, 3),
        (ops.RandomCrop(8, 7, pad=2), ops.RandomFlip(), ops.Normalize(MEAN, STD)),
    ),
    "different sizes stay": (varying(np.float32, 2), (ops.RandomFlip(), ops.Normalize(1, 2), ops.CenterCrop(5))),
    "resized on the way": (
        varying(np.uint8, 3),
        (ops.RandomResizedCrop(14, 13), ops.RandomFlip(), ops.Normalize(MEAN, STD), ops.Transpose("CHW")),
    ),
    "planes are resized": (
        uniform(np.uint8, 3, 21, 26),
        (ops.Transpose("HWC"), ops.Resize(shorter=10), ops.Cast("float32")),
    ),
    "shorter sides": (varying(np.uint8, 3), (ops.Resize(shorter=11), ops.RandomCrop(9))),
    "images of different heights": (Field("image", np.dtype(np.uint8), (None, 8, 3)), (ops.Resize(6, 4),)),
    "windows of different heights": (
        Field("image", np.dtype(np.float32), (None, 9, 2)),
        (ops.RandomCrop(7, 5, pad=3), ops.RandomFlip(), ops.Normalize(1, 2)),
    ),
    "labels of nearest": (varying(np.int64, 1), (ops.Resize(9, 31, interpolation="nearest"),)),
    "cubic": (varying(np.float32, 4), (ops.RandomResizedCrop(9, 20, interpolation="cubic", antialias=False),)),
}  # fmt: skip


@pytest.mark.parametrize("count", [COUNT, 1])
@pytest.mark.parametrize("chain", list(CHAINS))
def test_a_chain_of_ops_makes_the_numbers_of_its_array_forms(chain, count):
    field, chained = CHAINS[chain]
    graph, values = compile_ops(Spec((field,)), chained), numbers(field, count)
    sizes = {field.name: image_sizes(field, values, count)}
    draws = graph.draw(seed=7, epoch=1, records=np.arange(count) * 1001, sizes=sizes)
    expected = array_form(graph, values, draws)

    result = on_gpu(graph, field, values, draws)

    assert_identical([array.get() for array in result], list(expected))


def test_walks_and_resizing_are_named_where_the_executor_describes_itself():
    field, chained = CHAINS["resized on the way"]

    stages = ArrayBatchExecutor(compile_ops(Spec((field,)), chained), device="gpu:0").describe()[
        "stages"
    ]

    assert (
        stages
        == "image: array of RandomResizedCrop; image: one kernel of RandomFlip Normalize Transpose"
    )


def test_a_batch_of_no_images_has_the_shape_of_others():
    field, chained = CHAINS["planes to pixels"]
    graph, sizes = compile_ops(Spec((field,)), chained), {"image": np.zeros((0, 2), np.int32)}
    draws = graph.draw(seed=7, epoch=1, records=np.arange(0), sizes=sizes)

    result = on_gpu(graph, field, np.empty((0, 3, 32, 30), np.uint8), draws)

    assert (result.dtype, result.shape) == (np.float32, (0, 32, 30, 3))


def test_pixels_that_are_not_numbers_and_infinite_ones_stay_what_they_are():
    images = np.array([np.nan, np.inf, -np.inf, -0.0, 3e38, 1.5], np.float32).reshape(1, 2, 3, 1)
    field = uniform(np.float32, 2, 3, 1)
    graph = compile_ops(
        Spec((field,)), (ops.RandomFlip(p=1), ops.Normalize(0, 1e-3, dtype="float16"))
    )
    draws = graph.draw(
        seed=0, epoch=0, records=np.arange(1), sizes={"image": np.array([[2, 3]], np.int32)}
    )

    result = on_gpu(graph, field, images, draws).get()

    np.testing.assert_array_equal(result, array_form(graph, images, draws))
    assert np.signbit(result[0, 1, 2, 0])  # the zero below zero


def on_gpu(graph, field, values, draws):
    """Return what the executor on a GPU makes of host values."""
    executor, cupy = ArrayBatchExecutor(graph, device="gpu:0"), devices.cupy()
    if isinstance(values, Ragged):
        on_device = values.with_payload(cupy.asarray(values.flat))
    else:
        on_device = (
            [cupy.asarray(value) for value in values]
            if isinstance(values, list)
            else cupy.asarray(values)
        )
    executor.start({field.name: on_device}, draws)
    return executor.finish()[field.name]


LEVELS = CheckLevels(ops.Brightness(0.5, 1.5))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_images_with_levels_beyond_black_or_white_are_found(dtype):
    images = np.random.default_rng(0).random((7, 5, 6, 3)).astype(dtype)
    images[1, 2, 3, 1], images[2, 0, 0, 0], images[3, 4, 5, 2] = 1.01, np.nan, -0.01
    images[4, 0, 0, 0], images[5, 1, 1, 1] = np.inf, 1.001
    cupy = devices.cupy()
    on_gpu = cupy.asarray(images)
    of_many_sizes = [image[: 3 + row % 3] for row, image in enumerate(on_gpu)]

    assert LEVELS.traits.check.rows(np, images).tolist() == [
        False,
        True,
        True,
        True,
        True,
        False,
        False,
    ]
    assert (
        LEVELS.traits.check.rows(cupy, on_gpu).tolist()
        == LEVELS.traits.check.rows(np, images).tolist()
    )
    assert (
        LEVELS.traits.check.rows(cupy, on_gpu.transpose(0, 3, 1, 2)).tolist()
        == LEVELS.traits.check.rows(np, images).tolist()
    )
    assert (
        LEVELS.traits.check.rows(cupy, on_gpu[..., 0]).tolist()
        == LEVELS.traits.check.rows(np, images[..., 0]).tolist()
    )
    assert LEVELS.traits.check.rows(cupy, of_many_sizes).tolist() == [
        LEVELS.traits.check.rows(np, x.get()[None])[0] for x in of_many_sizes
    ]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32, np.int64, np.uint64])
def test_labels_of_no_class_are_found_in_arrays_and_lists_of_them(dtype):
    labels = np.random.default_rng(0).integers(0, 10, (6, 4)).astype(dtype)
    labels[2, 1], labels[4, 3] = 10, np.array(-1).astype(dtype)
    cupy, op = devices.cupy(), ops.OneHot(10)
    on_gpu = cupy.asarray(labels)

    assert op.traits.check.rows(cupy, on_gpu).tolist() == [False, False, True, False, True, False]
    assert op.traits.check.rows(cupy, list(on_gpu)).tolist() == [
        False,
        False,
        True,
        False,
        True,
        False,
    ]
    assert op.traits.check.rows(cupy, on_gpu[:, 1]).tolist() == [
        False,
        False,
        True,
        False,
        False,
        False,
    ]
    assert op.traits.check.rows(cupy, [row[:0] for row in on_gpu]).tolist() == [False] * 6


def test_the_first_row_that_is_wrong_is_named_of_all_that_is_asked():
    cupy = devices.cupy()
    labels = np.arange(3000) % 10
    labels[[2999, 2345]] = 10, -3

    for op, values in ((ops.OneHot(10), labels), (ops.OneHot(11), labels)):
        checks = Checks(cupy)
        checks.ask(ops.OneHot(99), cupy.asarray(np.abs(labels)))
        checks.ask(op, cupy.asarray(values))
        checks.send()
        with pytest.raises(RowError) as error:
            checks.answer()
        assert error.value.row == 2345
    right = Checks(cupy)
    right.ask(ops.OneHot(10), cupy.asarray(labels[:2000]))
    right.send()
    right.answer()


HUGE = 70000  # pixels of a side: 4.9 billion, more than 32 bits count


def test_an_image_of_more_numbers_than_a_kernel_counts_is_refused_before_memory_is_taken():
    cupy = devices.cupy()
    pixel = cupy.zeros((1, 1, 1, 1), np.uint8)
    image = cupy.broadcast_to(pixel, (1, HUGE, HUGE, 1))
    field = Field("image", np.dtype(np.uint8), (HUGE, HUGE, 1), axes="HWC")

    with pytest.raises(SpecError, match="an image of 4900000000 numbers on a GPU"):
        walk.walk_on_device(cupy, walk.begin(field, 1), image)
    with pytest.raises(SpecError, match="4900000000 numbers"):
        resize_batch(
            cupy, pixel, np.array([[0, 0, 1, 1]]), np.array([[HUGE, HUGE]]), "linear", True
        )
    with pytest.raises(SpecError, match="4900000000 numbers"):
        move(cupy, pixel, size=np.array([[HUGE, HUGE]]))
    with pytest.raises(SpecError, match="take a batch_size of at most 255"):
        cuda.blocks(1 << 31, 256)
    assert cuda.blocks(1 << 31, 255) == 1 << 23
    assert cuda.blocks((1 << 32) - 1, 1) == 1 << 24


# Height, width and channels; the window; whether it may reach outside. A thread makes 16 bytes: of
# rows of 16 numbers, of rows that end in the midst of them, of images that begin there, and of
# images smaller than they are.
WALKS = {
    "rows of whole strips": ((24, 64, 3), (16, 32), 0),
    "rows that end in a strip": ((24, 45, 3), (20, 37), 0),
    "images that begin in a strip": ((9, 11, 1), (7, 9), 0),
    "smaller than a strip": ((3, 2, 1), (1, 1), 0),
    "beyond the border": ((20, 31, 4), (24, 40), 9),
    "many channels": ((6, 20, 7), (5, 17), 2),
    "two channels": ((7, 32, 2), (8, 32), 1),
}


@pytest.mark.parametrize("axes", [("HWC", "HWC"), ("HWC", "CHW"), ("CHW", "HWC")], ids="-".join)
@pytest.mark.parametrize(
    ("form", "before", "after"),
    [
        *((form, "u1", "f4") for form in WALKS),
        *(
            ("rows that end in a strip", *dtypes)
            for dtypes in (("u1", "u1"), ("u1", "f2"), ("f4", "f4"), ("f4", "f2"))
        ),
    ],
)
def test_a_walk_makes_the_numbers_of_the_core_wherever_its_strips_begin(form, before, after, axes):
    (height, width, channels), window, border = WALKS[form]
    random, count, xp = np.random.default_rng(1), 7, devices.cupy()
    shape = (height, width, channels) if axes[0] == "HWC" else (channels, height, width)
    x = random.integers(0, 256, (count, *shape)).astype(before)
    lowest, highest = (-border, -border), np.array([height, width]) - window + border
    normalizes = after != before or channels == 4
    whole = walk.Walk(
        height=height, width=width, channels=channels, in_axes=axes[0], in_dtype=x.dtype,
        start=random.integers(lowest, highest + 1, (count, 2)).astype(np.int32), window=window,
        mirror=random.integers(0, 2, (count, 2)).astype(np.int32), out_axes=axes[1], fill=5.0,
        mean=random.random(channels, np.float32) if normalizes else None,
        scale=random.random(channels, np.float32) if normalizes else None, dtype=np.dtype(after),
    )  # fmt: skip
    if before == after == "u1":
        whole = whole.with_(mean=None, scale=None)
    expected = np.empty((count, *whole.out_shape), whole.dtype)
    walk.Walker(whole)(x, expected)

    on_device = xp.asarray(x)
    for images in (on_device, list(on_device)) if axes == ("HWC", "HWC") else (on_device,):
        result = walk.walk_on_device(xp, whole, images)
        np.testing.assert_array_equal(result.get().view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize(
    "length", [1, 2, 3, 5, 7, 10, 224, 641, 65535, 65537, (1 << 20) - 1, (1 << 30) + 1]
)
def test_a_division_by_multiplication_is_exact(length):
    factor, shift = (int(number) for number in cuda.divisor(length))
    edges = np.arange(1, 1000, dtype=np.uint64) * np.uint64(length)
    numbers = np.concatenate(
        [edges, edges - np.uint64(1), np.uint64((1 << 31) - 1) - np.arange(1000, dtype=np.uint64)]
    )
    numbers = numbers[numbers < 1 << 31]

    assert factor < 1 << 32
    assert ((numbers * np.uint64(factor)) >> np.uint64(shift) == numbers // np.uint64(length)).all()


EDITED = {
    "chains, then a policy, or the other way round": ops.Shuffle(
        [ops.AugMix(10), ops.RandAugment(2, 20)]
    ),
    "chains that do nothing, and no edits at all": ops.Sometimes(
        0.6, [ops.AugMix(1, 1, 1), ops.Sharpness(0.5, 1.5)]
    ),
    "tiles beside levels": ops.OneOf(
        [ops.CLAHE(p=1.0), ops.Equalize(p=1.0), ops.ColorJitter(0.4, 0.4, 0.4, 0.1)]
    ),
}


@pytest.mark.parametrize("form", ["one size", "many sizes"])
@pytest.mark.parametrize("name", EDITED)
def test_edits_make_the_numbers_of_the_core_where_levels_are_counted_by_several_blocks(name, form):
    op, random, count, xp = EDITED[name].of("image"), np.random.default_rng(2), 12, devices.cupy()
    sizes = (
        [(130, 140)] * count
        if form == "one size"
        else [(100 + 9 * i, 150 - 7 * i) for i in range(count)]
    )
    images = [
        random.integers(i, 256 - 9 * i, (*size, 3)).astype(np.uint8) for i, size in enumerate(sizes)
    ]
    u = random.random((count, op.num_uniforms))
    draw = op.draw(u, np.array(sizes, np.int32))
    expected = [
        op.array(np, image, {key: rows[i] for key, rows in draw.items()})
        for i, image in enumerate(images)
    ]

    on_device = [xp.asarray(image) for image in images]
    result = op.array_batch(xp, xp.stack(on_device) if form == "one size" else on_device, draw)

    for image, values in zip(result, expected, strict=True):
        np.testing.assert_array_equal(image.get(), values)


def test_a_list_of_images_that_lie_in_one_memory_says_where_each_lies():
    xp = devices.cupy()
    images = ops.Cast("float32").array_batch(
        xp, [xp.zeros((3 + i, 4, 2), np.uint8) for i in range(3)], {}
    )

    assert isinstance(images, devices.Views)
    np.testing.assert_array_equal(images.table, walk.tabulate(list(images)))


def test_images_in_one_memory_are_read_as_those_of_a_list_and_joined_where_no_gap_is():
    xp, shapes = devices.cupy(), np.array([(2, 4, 3), (3, 4, 3), (1, 4, 3)])
    memory = xp.arange(100, dtype=np.uint8)
    images = devices.Views(memory, np.dtype(np.uint8), shapes, np.array([4, 28, 64]))
    apart = devices.Views(memory, np.dtype(np.uint8), shapes, np.array([4, 30, 66]))
    moved = images.move(memory + 1)

    assert [image.shape for image in images] == list(map(tuple, shapes.tolist()))
    assert images[-1].ravel().get().tolist() == list(range(64, 76))
    assert [image.shape for image in images[1:]] == [(3, 4, 3), (1, 4, 3)]
    with pytest.raises(IndexError):
        images[3]
    assert images.join().get().tolist() == memory[4:76].reshape(6, 4, 3).get().tolist()
    assert apart.join() is None
    assert moved[0].ravel().get().tolist() == list(range(5, 29))
    assert (len(images), images.nbytes) == (3, 72)


def test_the_host_times_of_a_whole_batch_are_measured(monkeypatch):
    monkeypatch.setattr(host_times, "COUNT", 3)
    monkeypatch.setattr(host_times, "ROUNDS", 1)

    assert host_times.measure_batch([ops.Resize(8, 8)]) > 0
