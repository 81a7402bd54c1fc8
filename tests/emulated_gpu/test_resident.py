"""Rows that stay on the GPU, where streams run late: who reads them on another stream waits for who
copies them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import gpuload as gl
from gpuload import device
from gpuload.pipeline import upload
from gpuload.pipeline.rows import StepRows
from tests import emulated_gpu

pytestmark = pytest.mark.gpu
IMAGES = np.random.default_rng(0).integers(0, 256, (24, 8, 8, 3), np.uint8)


@pytest.fixture
def late() -> Iterator[None]:
    emulated_gpu.configure(late_us=20_000)
    yield
    emulated_gpu.configure()


def test_another_loader_reads_rows_behind_the_copies_of_the_first(late):
    source = gl.arrays(image=IMAGES).cache(device=True)
    with gl.Loader(source, 8, device="gpu") as first, gl.Loader(source, 8, device="gpu") as second:
        lane = first._session.lane
        for _ in range(4):  # work of a tenth of a second in front of the copies
            with lane:
                device.cupy().zeros(1)
        batch = next(iter(first.epoch(0)))
        reader = iter(second.epoch(0))
        np.testing.assert_array_equal(next(reader)["image"].get(), IMAGES[:8])
        np.testing.assert_array_equal(batch["image"].get(), IMAGES[:8])
        for number, again in enumerate(reader, 1):
            np.testing.assert_array_equal(again["image"].get(), IMAGES[8 * number : 8 * number + 8])


def test_the_memory_is_freed_behind_the_work_that_reads_it(late):
    free = device.card_bytes("gpu:0")[0]
    loader = gl.Loader(gl.arrays(image=IMAGES), 8, device="gpu").cache(device=True)
    list(loader)
    batches = list(loader)
    loader.close()

    for number, batch in enumerate(batches):
        np.testing.assert_array_equal(batch["image"].get(), IMAGES[8 * number : 8 * number + 8])
    del batch, batches
    device.empty_pool("gpu:0")
    assert device.card_bytes("gpu:0")[0] >= free


def test_rows_that_are_converted_on_the_gpu_live_until_they_were_copied(monkeypatch):
    rows = np.arange(96 * 9, dtype=">f4").reshape(96, 9)
    keep = upload.keep_on_card

    def keep_in_used_memory(rows: StepRows, lane: device.Lane) -> None:
        lane.fill_free_memory([512 * number for number in range(1, 9)] * 8, 0xA5)
        keep(rows, lane)

    monkeypatch.setattr(upload, "keep_on_card", keep_in_used_memory)
    with gl.Loader(gl.arrays(rows=rows), 16, device="gpu").cache(device=True) as loader:
        for _ in range(2):
            np.testing.assert_array_equal(
                np.concatenate([batch["rows"].get() for batch in loader]), rows
            )
