"""Records of varying length in memory that is used again: a batch that is kept does not change, few slots are made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload.sources.memory import LARGE_BYTES

NUM_RECORDS, BATCH_SIZE, NUM_STEPS = 24, 2, 12


def lengths() -> list[int]:
    return [LARGE_BYTES + 4096 * int(extra) for extra in np.random.default_rng(3).integers(0, 40, NUM_RECORDS)]


def contents() -> list[np.ndarray]:
    return [np.full(length, number + 1, np.uint8) for number, length in enumerate(lengths())]


def npy(folder: Path) -> gl.Source:
    for number, values in enumerate(contents()):
        np.save(folder / f"{number:02}.npy", values)
    return gl.npy(folder / "*.npy", record="file")


def npz_of_two_axes(folder: Path) -> gl.Source:
    for number, values in enumerate(contents()):
        np.savez(folder / f"{number:02}.npz", data=values.reshape(-1, 4096 if number % 2 else 2048))
    return gl.npz(folder / "*.npz", record="file")


def packed_npz(folder: Path) -> gl.Source:
    for number, values in enumerate(contents()):
        np.savez_compressed(folder / f"{number:02}.npz", data=values)
    return gl.npz(folder / "*.npz", record="file")


def tfrecord(folder: Path) -> gl.Source:
    (folder / "npy").mkdir()
    gl.convert(npy(folder / "npy"), folder / "a.tfrecord", raw=["x"])
    return gl.tfrecord(folder / "a.tfrecord", {"x": gl.Raw("u1", (None,))})


def lines(folder: Path) -> gl.Source:
    (folder / "a.txt").write_bytes(b"".join(bytes([number + 65]) * n + b"\n" for number, n in enumerate(lengths())))
    return gl.text(folder / "a.txt")


OPENERS: list[Callable[[Path], gl.Source]] = [npy, npz_of_two_axes, packed_npz, tfrecord, lines]


@pytest.mark.parametrize("opener", OPENERS)
def test_batches_that_are_kept_do_not_change(opener: Callable[[Path], gl.Source], tmp_path: Path) -> None:
    with opener(tmp_path) as source, gl.Loader(source, BATCH_SIZE, shuffle=True, seed=5, device="cpu") as loader:
        name = source.spec.names[0]
        batches = [
            (batch.records.tolist(), batch[name], [np.array(value) for value in batch[name]]) for batch in loader
        ]
        for records, batch, before in batches:
            for record, values, copy, expected in zip(records, batch, before, source.read(records)[name], strict=True):
                assert np.array_equal(values, copy), f"record {record} changed after it was handed out"
                assert np.array_equal(values, expected), f"record {record}"


@pytest.mark.parametrize("opener", [npy, npz_of_two_axes, packed_npz, tfrecord])
def test_memory_is_used_again_where_batches_are_dropped(opener: Callable[[Path], gl.Source], tmp_path: Path) -> None:
    with opener(tmp_path) as source, gl.Loader(source, BATCH_SIZE, device="cpu", num_threads=1, prefetch=1) as loader:
        for _ in loader:
            pass
        stats = loader.stats()
    payloads = stats["slots_reused"] + stats["slots_made"]
    assert payloads >= 2 * NUM_STEPS  # each step has a slot, and at least one payload
    assert stats["slots_made"] < payloads / 2
