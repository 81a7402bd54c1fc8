"""Sizes and kinds that NumPy or Python refuse with an error of their own are refused by one of ours
with a remedy."""

from __future__ import annotations

import os

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import GpuloadError


def source():
    return gl.arrays(x=np.arange(10))


def ragged():
    return gl.Ragged(np.arange(3), np.array([0, 1, 3]))


LARGE = (2**40, 2**63 - 1, 2**63, 2**64, 10**400)
CALLS = {
    "steps_of": (
        lambda value: gl.Loader(source(), 2, device="cpu").steps_of(value),
        (3, "01", [None], [1.5], slice(2)),
    ),
    "convert": (
        lambda value: gl.convert(source(), "x.npy", format=value),
        ([], {}, np.arange(2), slice(2)),
    ),
    "cache": (lambda value: source().cache(path=value), (np.array([]), np.arange(2), [], 3)),
    "split": (lambda value: source().split(0.5, by=value), ([[0], [1, 2]],)),
    "mix": (lambda value: gl.mix([(source(), value)]), (10**400, float("inf"), float("nan"), -1)),
    "to_dense": (lambda value: ragged().to_dense(value), LARGE),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [pytest.param(name, value, id=name) for name, (_, values) in CALLS.items() for value in values],
)
@pytest.mark.every_case
def test_each_is_an_error_with_cause_and_remedy(name, value):
    with pytest.raises(GpuloadError) as error:
        CALLS[name][0](value)

    assert error.value.cause
    assert error.value.remedy


READERS = (
    "npy",
    "npz",
    "idx",
    "tfrecord",
    "text",
    "webdataset",
    "csv",
    "parquet",
    "arrow",
    "images",
    "open",
)
PATHS = (
    "dir",
    "fifo",
    "link",
    "loop",
    "",
    "\0",
    "a\0b",
    "x" * 300,
    "gone/x",
    "/dev/null",
    "\ud800",
    None,
    3,
    [],
    [3],
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dir").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("nothing")
    (tmp_path / "loop").symlink_to("loop")


@pytest.mark.timeout(20)  # nobody writes to the FIFO
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("reader", READERS)
def test_paths_that_are_no_files_are_refused_with_a_remedy_and_wait_for_nothing(reader):
    for path in PATHS:
        with pytest.raises(GpuloadError) as error:
            getattr(gl, reader)(path)
        assert error.value.remedy, path
