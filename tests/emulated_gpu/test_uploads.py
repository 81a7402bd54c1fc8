"""Loaders on a GPU: a batch is one upload, whichever ops follow one another and whatever the sizes
of its images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import gpuload as gl
from tests import emulated_gpu, opexamples

pytestmark = pytest.mark.gpu

BATCH_SIZE, NUM_BATCHES = 8, 4
COUNT = BATCH_SIZE * NUM_BATCHES
MANY, ROWS = (None, None, 3), (None, 40, 3)


def images(shape: tuple[int | None, ...] = (32, 32, 3), dtype: str = "uint8") -> gl.Source:
    """Return a source of images; None in ``shape`` is a side that varies."""

    def read(places: Any) -> dict[str, Any]:
        sides = [
            [length or 24 + (number + axis) % 7 for axis, length in enumerate(shape)]
            for number in places
        ]
        levels = [
            np.random.default_rng(i).integers(0, 256, side)
            for i, side in zip(places, sides, strict=True)
        ]
        return {"image": [opexamples.as_dtype(level, dtype) for level in levels]}

    return gl.records(COUNT, read, fields={"image": (dtype, shape)})


def labelled() -> gl.Source:
    return gl.zip(images(), gl.arrays(label=np.arange(COUNT) % 10))


def sequences() -> gl.Source:
    return gl.records(
        COUNT,
        lambda places: {"x": [np.arange(1 + i % 9) for i in places]},
        fields={"x": ("int64", (None,))},
    )


def flip_or_brighten() -> gl.ops.OneOf:
    return gl.ops.OneOf([gl.ops.Brightness(0.6, 1.4), gl.ops.RandomFlip(p=1.0)])


def mix_or_cut() -> gl.ops.OneOf:
    return gl.ops.OneOf([gl.ops.MixUp(), gl.ops.CutMix()])


CHAINS: dict[str, tuple[Any, list[Any]]] = {
    "labels and mixtures": (labelled, [gl.ops.OneHot(10), mix_or_cut(), gl.ops.Invert()]),
    "views of one image": (images, [gl.ops.Copy(to="view"), gl.ops.Invert(on="view"), gl.ops.Posterize(3)]),
    "ops of a choice": (images, [flip_or_brighten(), gl.ops.Invert()]),
    "ops of a choice, many sizes": (lambda: images(MANY), [flip_or_brighten(), gl.ops.Invert()]),
    "mosaics": (images, [gl.ops.Invert(), gl.ops.Mosaic(40, 40), gl.ops.Posterize(3)]),
    "many sizes": (lambda: images(MANY), [gl.ops.Invert(), gl.ops.Resize(24, 24), gl.ops.Posterize(3)]),
    "many heights": (lambda: images(ROWS), [gl.ops.Cast("float32"), gl.ops.Resize(24, 24), gl.ops.Cast("uint8")]),
    "many heights that stay": (lambda: images(ROWS), [gl.ops.Posterize(3), gl.ops.Rotate(30)]),
    "levels that are checked": (lambda: images(dtype="float32"), [gl.ops.Brightness(0.6, 1.4), gl.ops.Invert()]),
    "sequences": (sequences, [gl.ops.Cast("float32"), gl.ops.PadTo(12)]),
    "boxes": (lambda: opexamples.beside_boxes(images()), [gl.ops.RandomIoUCrop(), gl.ops.Resize(24, 24)]),
}  # fmt: skip


def values_of(batch: gl.Batch) -> dict[str, list[Any]]:
    return {
        name: [value if isinstance(value, np.ndarray) else value.get() for value in batch[name]]
        for name in batch.keys()  # noqa: SIM118  # a batch iterates over its parts
    }


def check(source: gl.Source, ops: list[Any], num_threads: int) -> None:
    """Compare two epochs, and count the uploads of a third, when slots have room for all that goes
    up with them."""
    arguments: dict[str, Any] = {"ops": ops, "shuffle": True, "seed": 3, "executor": "array"}
    with (
        gl.Loader(source, BATCH_SIZE, device="gpu", num_threads=num_threads, **arguments) as loader,
        gl.Loader(source, BATCH_SIZE, device="cpu", **arguments) as on_cpu,
    ):
        for batch, meaning in [
            *zip(loader, on_cpu, strict=True),
            *zip(loader, on_cpu, strict=True),
        ]:
            expected = values_of(meaning)
            for name, values in values_of(batch).items():
                for value, meant in zip(values, expected[name], strict=True):
                    np.testing.assert_array_equal(value, meant, err_msg=name)
            del batch
        before = emulated_gpu.calls()
        num_batches = sum(1 for _ in loader)
        since = emulated_gpu.since(before)

    assert num_batches == NUM_BATCHES
    assert (since["uploads"] <= num_batches, since.get("pageable uploads", 0)) == (True, 0), since[
        "uploads"
    ]


@pytest.mark.parametrize("chain", CHAINS)
def test_a_batch_is_one_upload_of_page_locked_memory_and_equal_to_that_of_a_cpu(chain: str) -> None:
    source, ops = CHAINS[chain]
    check(source(), ops, num_threads=1)


@pytest.mark.parametrize(
    "ops", [[], [gl.ops.RandomResizedCrop(24, 24)]], ids=["of many sizes", "of one size"]
)
def test_what_several_threads_decode_and_boxes_beside_it_are_one_upload(
    tmp_path: Path, ops: list[Any]
) -> None:
    for number in range(COUNT):
        pixels = np.random.default_rng(number).integers(0, 256, (40 + number % 5, 48, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number:02}.jpg")
    source = opexamples.beside_boxes(gl.images(tmp_path, labels=None))
    check(source, [gl.ops.Decode(), *ops, gl.ops.Posterize(3)], num_threads=2)
