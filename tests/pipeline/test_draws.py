"""``batch.drawn``: what was drawn for each record, so that it can be logged, undone and tested."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from tests import simdevice

PHOTOS = sorted((Path(__file__).parents[1] / "golden" / "images" / "Pillow").glob("hopper*.jpg"))
PIXELS = np.random.default_rng(3).integers(0, 256, (23, 12, 10, 3), np.uint8)
OPS = [
    gl.ops.RandomCrop(8, 7),
    gl.ops.RandomFlip(),
    gl.ops.Brightness(0.5, 1.5),
    gl.ops.RandomFlip(),
]


def loader(**arguments):
    words = {
        "batch_size": 5,
        "ops": OPS,
        "shuffle": True,
        "seed": 4,
        "drawn": True,
        "device": "cpu",
        **arguments,
    }
    return gl.Loader(words.pop("source", gl.arrays(image=PIXELS)), **words)


def undone(batch):
    """Check that the images of a batch are what was drawn says, computed here from the records."""
    crop, first, factor, second = (
        batch.drawn[name]
        for name in ("RandomCrop/0", "RandomFlip/0", "Brightness/0", "RandomFlip/1")
    )
    for row, record in enumerate(batch.records):
        top, left = crop["start"][row]
        image = PIXELS[record][top : top + 8, left : left + 7]
        if first["horizontal"][row] ^ second["horizontal"][row]:
            image = image[:, ::-1]
        image = (image * factor["factor"][row]).clip(0, 255).astype(np.uint8)
        actual = batch["image"][row]
        np.testing.assert_array_equal(
            actual if isinstance(actual, np.ndarray) else actual.get(), image
        )


@pytest.mark.parametrize(
    "arguments", [{}, {"num_threads": 3}, {"prefetch": 8}, {"executor": "dali"}, {"batch_size": 64}]
)
def test_images_can_be_made_from_what_was_drawn(arguments):
    if "executor" in arguments:
        pytest.importorskip("nvidia.dali")
    with loader(**arguments) as drawing:
        for batch in [*drawing.epoch(2), drawing.batch_at(0, 1)]:
            assert all(
                len(values) == len(batch.records)
                for op in batch.drawn.values()
                for values in op.values()
            )
            undone(batch)


def test_on_a_gpu(monkeypatch):
    sim = simdevice.install(monkeypatch, seed=5)
    with loader(device="gpu") as drawing:
        for batch in drawing.epoch(1):
            undone(batch)
    del batch
    gc.collect()
    sim.finish()


def test_the_draw_of_a_crop_is_that_of_the_whole_image_where_a_region_is_decoded():
    source, ops = gl.images(PHOTOS, labels=None), [gl.ops.Decode(), gl.ops.RandomCrop(16, 16)]
    with (
        loader(source=source, ops=ops, batch_size=3) as drawing,
        loader(source=source, ops=ops[:1]) as plain,
    ):
        whole = {
            int(n): image
            for batch in plain.epoch(0)
            for n, image in zip(batch.records, batch["image"], strict=True)
        }
        for batch in drawing.epoch(0):
            assert list(batch.drawn) == ["RandomCrop/0"]
            for row, (top, left) in enumerate(batch.drawn["RandomCrop/0"]["start"]):
                image = whole[int(batch.records[row])]
                np.testing.assert_array_equal(
                    batch["image"][row], image[top : top + 16, left : left + 16]
                )


def test_rows_of_mixed_pairs_and_of_choices():
    ops = [gl.ops.OneOf([gl.ops.Brightness(0.5, 0.9), gl.ops.Invert()]), gl.ops.MixUp()]
    with loader(ops=ops, batch_size=4) as even, loader(ops=ops, batch_size=5) as odd:
        rows = {
            size: {
                int(record): (
                    draws["MixUp/0"]["weight"][row],
                    draws["OneOf/0"]["choice"][row],
                    draws["OneOf/0"]["0.factor"][row],
                )
                for batch in drawing.epoch(0)
                for draws in [batch.drawn]
                for row, record in enumerate(batch.records)
            }
            for size, drawing in ((4, even), (5, odd))
        }
    assert rows[4] == rows[5]
    assert len(rows[4]) == 23


def test_rows_of_damaged_records_are_those_of_what_stands_there():
    source = gl.arrays(image=PIXELS, label=np.where(np.arange(23) == 7, 9, 1))
    ops = [*OPS, gl.ops.OneHot(5)]
    with loader(source=source, ops=ops, on_error="replace", max_bad=0.2) as drawing:
        for batch in drawing.epoch(0):
            assert 7 not in batch.records
            undone(batch)


def test_it_is_there_only_where_it_is_asked_for():
    with loader(drawn=False) as plain, pytest.raises(gl.GpuloadError, match="drawn=True"):
        _ = plain.batch_at(0).drawn
    with loader(ops=[]) as drawing:
        assert drawing.batch_at(0).drawn == {}
        assert drawing.batch_at(0).with_fields(np.copy).drawn == {}
