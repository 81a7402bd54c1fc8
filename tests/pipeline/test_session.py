"""What iterators of one loader share: executors of whole batches serve one iterator at a time."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import gpuload as gl
from tests import simdevice

IMAGES = np.random.default_rng(4).integers(0, 256, (11, 5, 7, 3), np.uint8)


def loader(**settings):
    return gl.Loader(
        gl.arrays(image=IMAGES), 3, shuffle=True, seed=2, ops=[gl.ops.RandomFlip()], **settings
    )


@pytest.fixture(params=["dali", "gpu"])
def settings(request, monkeypatch):
    """Return the executor and the device of a loader whose ops run on whole batches."""
    if request.param == "dali":
        pytest.importorskip("nvidia.dali")
        yield {"executor": "dali", "device": "cpu"}
    else:
        simulation = simdevice.install(monkeypatch, seed=13)
        yield {"executor": "array", "device": "gpu"}
        gc.collect()
        simulation.finish()


def test_iterators_and_single_batches_at_the_same_time_have_an_executor_each(settings):
    with loader(executor="array", device="cpu") as rows:
        expected = [batch["image"].copy() for batch in rows.epoch(0)]

    with loader(**settings) as batches:
        pair = zip(batches.epoch(0), batches.epoch(0), strict=True)
        for step, (first, second) in enumerate(pair):
            for batch in (first, second, batches.batch_at(step)):
                image = batch["image"]
                image = image if isinstance(image, np.ndarray) else image.get()
                np.testing.assert_array_equal(image, expected[step])

    assert step == len(expected) - 1
