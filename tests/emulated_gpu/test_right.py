"""``benchmarks.gpu_right``, the parts of `make gpu-test` that say right or wrong: they see what is
wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gpuload as gl
from benchmarks import gpu_right
from gpuload import device as devices

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture
def few_ops(monkeypatch):
    """One short list of ops, that the parts take little time."""
    ops = [gl.ops.Decode(), gl.ops.RandomResizedCrop(32, 32)]
    monkeypatch.setattr(gpu_right, "lists_of_ops", lambda: dict.fromkeys(("bytes", "colour"), ops))


def run(what, tmp_path):
    """Return the exit status of a part, its rows and its problems."""
    path = tmp_path / "rows.json"
    status = gpu_right.main([what, "--smoke", "--result", str(path)])
    document = json.loads(path.read_text())
    return status, document["rows"], document["problems"]


@pytest.mark.parametrize("what", ["ways", "audit", "poison"])
def test_a_way_that_is_right_passes(what, few_ops, tmp_path):
    status, rows, problems = run(what, tmp_path)

    assert (status, problems) == (0, [])
    assert any(row[0].endswith("way array") for row in rows)


def test_a_way_whose_pixels_differ_is_named(few_ops, tmp_path, monkeypatch):
    make = gpu_right._loader
    monkeypatch.setattr(
        gpu_right,
        "_loader",
        lambda source, ops, **words: make(source, ops, **words).replace(seed=len(words)),
    )

    status, _, problems = run("ways", tmp_path)

    assert status == 1
    assert problems[0].startswith("bytes, way array, epoch 0, step 0: ")
    assert " values differ: the one at [" in problems[0]


def test_a_way_that_cannot_run_is_named(few_ops, tmp_path, monkeypatch):
    monkeypatch.setitem(gpu_right.WAYS, "array", {"executor": "arrays"})

    status, _, problems = run("poison", tmp_path)

    assert status == 1
    assert problems[0].startswith("bytes, way array: SpecError: executor = 'arrays'")


def test_memory_is_filled_before_it_is_used_and_afterwards_no_more():
    cupy = devices.cupy()

    with gpu_right.filled_memory():
        with cupy.cuda.Stream(non_blocking=True):
            array = cupy.empty(1000, np.uint8).get()
        pinned = devices.pinned(5000).copy()
    devices.pinned(5000)[...] = 1

    assert set(array.tolist()) == set(pinned.tolist()) == {gpu_right.PATTERN}
    assert set(devices.pinned(5000).tolist()) == {1}
