"""Bundles: what a batch needs on a GPU goes there in one upload, and kernels wait for it.

Each op whose form for a batch is marked by `device.waits` is called while its images are not there
yet: it must launch nothing but kernels that wait, or settle the bundle before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuload as gl
from gpuload import device, threads
from gpuload.errors import SpecError
from gpuload.kernels import pixels, walk
from gpuload.kernels.addresses import RowAddresses
from gpuload.ops.base import RowError
from gpuload.ragged import Ragged
from gpuload.spec import Field
from tests import emulated_gpu, opexamples
from tests.emulated_gpu import opcounts

pytestmark = pytest.mark.gpu

ROOM_BYTES = 1 << 22
WAITING_OPS = [
    name
    for name in opexamples.NAMES
    if opcounts.runs_on_a_gpu(opexamples.example(name))
    and device.can_wait(opexamples.example(name).array_batch)
]
NEVER_WAITING = (
    "Cast",
    "PadTo",
    "RandomIoUCrop",
    "Reshape",
    "Transpose",
)  # as they stand in their examples
COUNT = 6
WORK = frozenset(
    {"cuLaunchKernel", "uploads", "downloads", "device copies", "cudaMemset", "cudaMemsetAsync"}
)


class CountingBundle(device.Bundle):
    """A bundle that notes which calls were made when it was settled last.

    Attributes:
        calls: of CUDA, by their names.
    """

    def __init__(self, lane: device.Lane) -> None:
        super().__init__(lane)
        self.calls = emulated_gpu.calls()

    def settle(self) -> None:
        super().settle()
        self.calls = emulated_gpu.calls()


def bundle_of(
    lane: device.Lane, images: list[Any], *, room_bytes: int = ROOM_BYTES
) -> tuple[CountingBundle, list[Any]]:
    """Return a bundle that holds images, and the images on the GPU, which are not there yet."""
    num_bytes = sum(image.nbytes for image in images)
    memory = device.pinned(num_bytes + room_bytes)
    on_host: list[Any] = []
    end = 0
    for image in images:
        on_host.append(memory[end : end + image.nbytes].view(image.dtype).reshape(image.shape))
        on_host[-1][...] = image
        end += image.nbytes
    bundle = CountingBundle(lane)
    bundle.hold(memory, end)
    return bundle, [bundle.upload(image) for image in on_host]


def values_of(result: Any) -> list[Any]:
    return [image.get() for image in result]


@pytest.fixture
def lane() -> Any:
    lane = device.Lane("gpu:0")
    with lane:
        yield lane
    lane.close()


def test_most_ops_wait():
    assert len(WAITING_OPS) >= 35


@pytest.mark.parametrize("form", ["of one size", "of many sizes", "windows of one size"])
@pytest.mark.parametrize("name", WAITING_OPS)
def test_an_op_launches_nothing_before_its_images_are_there_and_makes_the_same_pixels(
    lane, name, form
):
    are_alike, part = form != "of many sizes", slice(1 if form.startswith("windows") else 0, None)
    op, xp = opexamples.example(name).of("image"), device.cupy()
    num_waiting = 0
    for dtype, channels in [
        ("uint8", 3),
        ("float32", 3),
        *([("float64", 17)] if form == "of one size" else []),
    ]:  # no kernel reads the last
        images = opexamples.images_of(dtype, COUNT, channels, are_alike=are_alike)
        sizes = np.array([image[part, part].shape[:2] for image in images], np.int32)
        values: Any = np.stack(images) if are_alike else images
        shape = values[:, part, part].shape[1:] if are_alike else (None, None, channels)
        field = Field("image", np.dtype(dtype), shape, axes="HWC")
        try:
            op.field_after(field)
            draw = op.draw(np.random.default_rng(1).random((COUNT, op.num_uniforms)), sizes)
        except (SpecError, RowError, KeyError):
            continue  # it takes no such images
        whole = on_device(xp, values)
        right = values_of(op.array_batch(xp, whole[:, part, part] if are_alike else whole, draw))
        bundle, waiting = bundle_of(lane, [values] if are_alike else values)

        with bundle:
            device.open_bundle()
            result = op.array_batch(xp, waiting[0][:, part, part] if are_alike else waiting, draw)
        since = emulated_gpu.since(bundle.calls)
        num_waiting += not bundle.is_settled
        if not bundle.is_settled:
            assert not WORK.intersection(since), dtype
        bundle.settle()
        for image, meaning in zip(values_of(result), right, strict=True):
            np.testing.assert_array_equal(image, meaning)
    assert num_waiting or not are_alike or name in NEVER_WAITING


def on_device(xp: Any, values: Any) -> Any:
    return (
        [xp.asarray(value) for value in values] if isinstance(values, list) else xp.asarray(values)
    )


def test_draws_and_images_are_one_upload(lane):
    xp, op = device.cupy(), gl.ops.RandomFlip()
    images = np.stack(opexamples.images_of("uint8", COUNT, are_alike=True))
    draw = op.draw(
        np.random.default_rng(1).random((COUNT, op.num_uniforms)), np.full((COUNT, 2), 36, np.int32)
    )
    bundle, (batch,) = bundle_of(lane, [images])
    before = emulated_gpu.calls()

    with bundle:
        device.open_bundle()
        op.array_batch(xp, batch, draw)
        device.settle()

    since = emulated_gpu.since(before)
    assert (since["uploads"], since["cuLaunchKernel"]) == (1, 1)


def test_parameters_without_room_are_uploads_of_their_own_and_right(lane):
    xp, op = device.cupy(), gl.ops.RandomFlip(1.0)
    images = np.stack(opexamples.images_of("uint8", COUNT, are_alike=True))
    draw = op.draw(np.zeros((COUNT, op.num_uniforms)), np.full((COUNT, 2), 36, np.int32))
    bundle, (batch,) = bundle_of(lane, [images], room_bytes=8)
    before = emulated_gpu.calls()

    with bundle:
        device.open_bundle()
        result = op.array_batch(xp, batch, draw)
        device.settle()

    assert emulated_gpu.since(before)["uploads"] == 2
    np.testing.assert_array_equal(result.get(), op.array_batch(np, images, draw))
    assert bundle.parameter_bytes > 8  # later slots have room for them


def test_what_is_added_behind_the_first_upload_is_a_second_one(lane):
    images = np.stack(opexamples.images_of("uint8", COUNT, are_alike=True))
    bundle, (batch,) = bundle_of(lane, [images])
    with bundle:
        device.settle()
        device.open_bundle()
        numbers = device.parameters(np.arange(5))
        device.settle()

    assert numbers.get().tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(batch.get(), images)


def test_a_bundle_of_one_thread_is_none_of_another(lane):
    bundle, _ = bundle_of(lane, opexamples.images_of("uint8", COUNT, are_alike=True))
    numbers: list[Any] = []

    def look() -> None:
        with lane:
            numbers.append(device.parameters(np.arange(3)).get().tolist())

    with bundle:
        device.open_bundle()
        threads.join(threads.start(1, look, name="gpuload-test", stop=lambda: None))

    assert numbers == [[0, 1, 2]]
    assert not bundle.parameter_bytes


def copy_rows(rows: Any) -> Any:
    addresses = rows.data.ptr + rows.strides[0] * np.arange(len(rows))
    words = device.parameters(addresses.view(np.int32))
    device.hold(rows)  # as the step does that has the rows
    return RowAddresses(addresses, words, rows.dtype, rows.shape[1:]).gather(device.cupy())


def copy_array(images: Any) -> Any:
    return pixels.move(device.cupy(), images)


def copy_list(images: Any) -> Any:
    return pixels.move(device.cupy(), list(images))


def resize_array(images: Any) -> Any:
    return gl.ops.Resize(*images.shape[1:3]).array_batch(device.cupy(), images, {})


@pytest.mark.parametrize("read", [copy_rows, copy_array, copy_list, resize_array])
def test_memory_that_a_waiting_kernel_has_by_its_address_is_no_other_arrays_before_it_runs(
    lane, read
):
    numbers = (np.arange(1 << 12) % 251).astype(np.uint8).reshape(2, 32, 64, 1)
    with lane, device.Bundle(lane) as bundle:
        images = device.cupy().asarray(numbers)
        device.open_bundle()
        copy = read(images)
        address = images.data.ptr
        del images

        memory = device.cupy().full(numbers.size, 7, np.uint8)  # at once
        bundle.settle()
        later = device.cupy().empty(numbers.size, np.uint8)

        assert memory.data.ptr != address == later.data.ptr  # it is free behind the kernels
        np.testing.assert_array_equal(copy.get(), numbers)


@pytest.mark.parametrize("part", [slice(None), slice(1, 3)])
def test_images_in_a_ragged_lie_where_each_of_them_does(part):
    payload = device.cupy().arange(9 * 14 * 4, dtype=np.int16).reshape(9, 14, 4)[:, 2:, :3]
    images = Ragged(payload, np.array([1, 3, 4, 9]))[part]

    np.testing.assert_array_equal(walk.tabulate(images), walk.tabulate(list(images)))
    np.testing.assert_array_equal(walk.sizes(images), walk.sizes(list(images)))
    assert pixels.reads(device.cupy(), images)
    assert not pixels.reads(device.cupy(), Ragged(payload[..., 0], images.offsets))
    for image, copy in zip(images, pixels.move(device.cupy(), images), strict=True):
        np.testing.assert_array_equal(copy.get(), image.get())
