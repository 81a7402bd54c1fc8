"""Records of varying length in memory that is used again: a batch that is kept does not change, few
slots are made.

On a GPU, the simulated one and a real or emulated one where there is one, no memory is used again
while an upload of it is queued.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import gpuload as gl
from gpuload import device as devices
from gpuload.pipeline import batches as batches_module
from gpuload.ragged import Ragged
from gpuload.sources.memory import LARGE_BYTES
from tests import simdevice

NUM_RECORDS, BATCH_SIZE, NUM_STEPS = 24, 2, 12


def lengths() -> list[int]:
    return [
        LARGE_BYTES + 4096 * int(extra)
        for extra in np.random.default_rng(3).integers(0, 40, NUM_RECORDS)
    ]


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
    (folder / "a.txt").write_bytes(
        b"".join(bytes([number + 65]) * n + b"\n" for number, n in enumerate(lengths()))
    )
    return gl.text(folder / "a.txt")


OPENERS: list[Callable[[Path], gl.Source]] = [npy, npz_of_two_axes, packed_npz, tfrecord, lines]


@pytest.mark.parametrize("opener", OPENERS)
def test_batches_that_are_kept_do_not_change(
    opener: Callable[[Path], gl.Source], tmp_path: Path
) -> None:
    with (
        opener(tmp_path) as source,
        gl.Loader(source, BATCH_SIZE, shuffle=True, seed=5, device="cpu") as loader,
    ):
        name = source.spec.names[0]
        batches = [
            (batch.records.tolist(), batch[name], [np.array(value) for value in batch[name]])
            for batch in loader
        ]
        for records, batch, before in batches:
            for record, values, copy, expected in zip(
                records, batch, before, source.read(records)[name], strict=True
            ):
                assert np.array_equal(values, copy), (
                    f"record {record} changed after it was handed out"
                )
                assert np.array_equal(values, expected), f"record {record}"


@pytest.mark.parametrize("opener", [npy, npz_of_two_axes, packed_npz, tfrecord])
def test_memory_is_used_again_where_batches_are_dropped(
    opener: Callable[[Path], gl.Source], tmp_path: Path
) -> None:
    with (
        opener(tmp_path) as source,
        gl.Loader(source, BATCH_SIZE, device="cpu", num_threads=1, prefetch=1) as loader,
    ):
        for _ in loader:
            pass
        stats = loader.stats()
    payloads = stats["slots_reused"] + stats["slots_made"]
    assert payloads >= 2 * NUM_STEPS  # each step has a slot, and at least one payload
    assert stats["slots_made"] < payloads / 2


# On a GPU: the simulated one, and a real or emulated one where there is one


@pytest.fixture(params=["sim", pytest.param("cupy", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == "cupy":
        yield
        return
    simulation = simdevice.install(monkeypatch, seed=3)
    yield
    gc.collect()
    simulation.finish()


def matrices(record_bytes: int, dtype: str = "<f4") -> list[np.ndarray]:
    """Return arrays [n, 2] of the numbers of their records; each has about so many bytes, or half
    as many."""
    num_rows = record_bytes // (2 * np.dtype(dtype).itemsize)
    return [
        np.full((num_rows // (1 + number % 2) + number, 2), number + 1, dtype)
        for number in range(NUM_RECORDS)
    ]


def npy_of_floats(folder: Path, record_bytes: int, dtype: str = "<f4") -> gl.Source:
    for number, values in enumerate(matrices(record_bytes, dtype)):
        np.save(folder / f"{number:02}.npy", values)
    return gl.npy(folder / "*.npy", record="file")


def npy_in_big_endian(folder: Path, record_bytes: int) -> gl.Source:
    return npy_of_floats(folder, record_bytes, ">f4")


def two_sources(folder: Path, record_bytes: int) -> gl.Source:
    (folder / "npy").mkdir()
    (folder / "tfrecord").mkdir()
    lists = tfrecord_of_lists(folder / "tfrecord", record_bytes)
    return gl.concat(tfrecord_of_raw_numbers(folder / "npy", record_bytes), lists)


def npz_of_two_fields(folder: Path, record_bytes: int) -> gl.Source:
    for number, values in enumerate(matrices(record_bytes)):
        np.savez_compressed(
            folder / f"{number:02}.npz", data=values, bytes=values[::2].astype("u1")
        )
    return gl.npz(folder / "*.npz", record="file")


def npz_of_many_shapes(folder: Path, record_bytes: int) -> gl.Source:
    for number, values in enumerate(matrices(record_bytes)):
        np.savez(folder / f"{number:02}.npz", data=values.T if number % 3 else values)
    return gl.npz(folder / "*.npz", record="file")


def tfrecord_of_raw_numbers(folder: Path, record_bytes: int) -> gl.Source:
    (folder / "npy").mkdir()
    gl.convert(npy_of_floats(folder / "npy", record_bytes), folder / "a.tfrecord", raw=["x"])
    return gl.tfrecord(folder / "a.tfrecord", {"x": gl.Raw("<f4", (None,))})


def tfrecord_of_lists(folder: Path, record_bytes: int) -> gl.Source:
    (folder / "npy").mkdir()
    gl.convert(npy_of_floats(folder / "npy", record_bytes), folder / "a.tfrecord")
    return gl.open(folder / "a.tfrecord")


def text_lines(folder: Path, record_bytes: int) -> gl.Source:
    (folder / "a.txt").write_bytes(
        b"".join(bytes([65 + i]) * (record_bytes // (1 + i % 2)) + b"\n" for i in range(24))
    )
    return gl.text(folder / "a.txt")


def image_files(folder: Path, record_bytes: int) -> gl.Source:
    for number in range(NUM_RECORDS):
        pixels = np.random.default_rng(number).integers(
            0, 256, (record_bytes // 300 + number, 100, 3), np.uint8
        )
        Image.fromarray(pixels).save(folder / f"{number:02}.png", compress_level=0)
    return gl.images(folder, labels=None)


GPU_OPENERS: list[Callable[[Path, int], gl.Source]] = [
    npy_of_floats, npy_in_big_endian, two_sources, npz_of_two_fields, npz_of_many_shapes, tfrecord_of_raw_numbers,
    tfrecord_of_lists, text_lines, image_files,
]  # fmt: skip
# Of a record: what is large is lent, and a step has some records.
SIZES = {"small": 4096, "mixed": LARGE_BYTES * 2 // 3, "large": LARGE_BYTES}


def on_host(value: Any) -> Any:
    return value if isinstance(value, np.ndarray | str) else value.get()


def is_on_gpu(values: Any) -> bool:
    """Return True if the values of a field lie in CuPy's memory."""
    return not isinstance(
        values.payload if isinstance(values, Ragged) else values[0], np.ndarray | str
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("opener", GPU_OPENERS)
def test_kept_batches_of_a_gpu_are_those_of_the_cpu(
    gpu: None, opener: Callable[[Path, int], gl.Source], size: str, tmp_path: Path
) -> None:
    with (
        opener(tmp_path, SIZES[size]) as source,
        gl.Loader(source, BATCH_SIZE, shuffle=True, device="gpu") as loader,
    ):
        batches = list(loader)
        for batch in batches:
            expected = source.read(batch.records)
            for name, field in zip(source.spec.names, source.spec, strict=True):
                assert is_on_gpu(batch[name]) == (not field.text and not field.encoded)
                for record, value, other in zip(
                    batch.records, batch[name], expected[name], strict=True
                ):
                    assert np.array_equal(on_host(value), other), f"{name} of record {record}"
        assert sum(len(batch.records) for batch in batches) == len(source)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("opener", GPU_OPENERS[:-2])  # texts and images stay on the host
def test_a_gpu_copies_from_page_locked_memory_alone(
    opener: Callable[[Path, int], gl.Source],
    size: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulation, is_locked, upload = (
        simdevice.install(monkeypatch),
        list[bool](),
        devices.Lane.upload,
    )

    def watched_upload(lane: devices.Lane, host: np.ndarray) -> Any:
        is_locked.append(simulation.unpinned(host) is not host)
        return upload(lane, host)

    monkeypatch.setattr(devices.Lane, "upload", watched_upload)
    with (
        opener(tmp_path, SIZES[size]) as source,
        gl.Loader(source, BATCH_SIZE, device="gpu") as loader,
    ):
        num_steps = sum(1 for _ in loader)
    assert (num_steps, all(is_locked)) == (len(loader), True)
    assert is_locked


@pytest.mark.parametrize(("opener", "pieces_a_step"), [(npy, 1), (packed_npz, 1), (tfrecord, 3)])
def test_large_payloads_are_not_copied_once_more_for_a_gpu(
    opener: Callable[[Path], gl.Source],
    pieces_a_step: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simdevice.install(monkeypatch)
    with opener(tmp_path) as source, gl.Loader(source, BATCH_SIZE, device="gpu") as loader:
        for _ in loader:
            pass
        stats = loader.stats()
    # The slot, which has the payload once a step has shown how much room it needs; of TFRecord the
    # payload by itself, and the bytes of the records.
    num_pieces = stats["slots_reused"] + stats["slots_made"]
    assert pieces_a_step * NUM_STEPS <= num_pieces < (pieces_a_step + 1) * NUM_STEPS


@pytest.mark.parametrize(
    "opener", [npy_of_floats, npz_of_two_fields, npz_of_many_shapes, tfrecord_of_raw_numbers]
)
def test_without_keeping_memory_until_its_upload_has_run_a_test_fails(
    opener: Callable[[Path, int], gl.Source], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = opener(tmp_path, LARGE_BYTES)
    assert not uploads_change(source)

    def release_at_once(board: Any, lane: Any) -> None:
        for outcome in list(board._uploading):
            if outcome.event is not None:
                board._uploading.remove(outcome)
                outcome.step.release()
        lane.reclaim()

    monkeypatch.setattr(batches_module.BatchBoard, "_release", release_at_once)
    assert uploads_change(source)


def uploads_change(source: gl.Source) -> bool:
    """Return True if host memory changes, in some of many epochs, while the upload of it is
    queued."""
    for seed in range(5):
        with pytest.MonkeyPatch.context() as patch:
            simulation = simdevice.install(patch, seed=seed)
            try:
                with gl.Loader(source, BATCH_SIZE, device="gpu", prefetch=3) as loader:
                    for batch in loader:
                        del batch
                gc.collect()
                simulation.finish()
            except (AssertionError, RuntimeError) as error:
                if "host memory was changed before the copy" not in str(error):
                    raise
                return True
    return False
