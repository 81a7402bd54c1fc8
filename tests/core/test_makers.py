"""Makers: ops that threads of the core do while they read, against the same ops done to records in
memory."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from gpuload import core
from gpuload.core import face
from gpuload.errors import SpecError
from gpuload.kernels import edits, resampling
from gpuload.kernels.walk import Walk, Walker
from tests.core.test_queue import ints, maps_of, native, wait

pytestmark = [
    pytest.mark.skipif(core.native is None, reason=f"no core: {core.problem}"),
    pytest.mark.skipif(sys.platform != "linux", reason="files are mapped on Linux alone"),
]
NUM_RECORDS, HEAD_BYTES, TAIL_BYTES = 60, 3, 2
ROWS = np.random.default_rng(1).permutation(NUM_RECORDS)[:40]


def records_of(images: np.ndarray, path: Path) -> face.Maps:
    """Write records that are a head, an image and a tail behind a header of 5 bytes, and return
    maps of the file."""
    raw = np.random.default_rng(2).integers(
        0, 256, (NUM_RECORDS, HEAD_BYTES + images[0].nbytes + TAIL_BYTES), np.uint8
    )
    raw[:, HEAD_BYTES:-TAIL_BYTES] = images.reshape(NUM_RECORDS, -1).view(np.uint8)
    path.write_bytes(b"12345" + raw.tobytes())
    return maps_of(path)


def read_through(maps: face.Maps, in_bytes: int, maker: face.Maker, out: np.ndarray) -> list[bytes]:
    """Read the images of ROWS through a maker into ``out``, in two steps and pieces of 7 rows;
    return their tails."""
    record_bytes, tails = (
        HEAD_BYTES + in_bytes + TAIL_BYTES,
        np.zeros((ROWS.size, TAIL_BYTES), np.uint8),
    )
    plan = native().CopyPlan(ints(25, ROWS.size))
    parts = [(HEAD_BYTES, in_bytes, 0, maker), (HEAD_BYTES + in_bytes, TAIL_BYTES, 1, None)]
    records = native().FileRecords(maps, ints(0, NUM_RECORDS), ints(0), ints(5), record_bytes)
    plan.add(records, ROWS.astype(np.int64), None, parts)
    copies = native().Copies(
        native().Queue(), plan, 0, 2, 7, [out.reshape(-1).view(np.uint8), tails.reshape(-1)]
    )
    assert [wait(copies, step) for step in range(2)] == [face.DONE] * 2
    return [tail.tobytes() for tail in tails]


def walk_of(
    shape: tuple[int, int, int], in_dtype: str, dtype: str, in_axes: str, out_axes: str
) -> Walk:
    rng = np.random.default_rng(3)
    normalizes = dtype != "uint8"
    return Walk(
        height=shape[0], width=shape[1], channels=shape[2], in_axes=in_axes, in_dtype=np.dtype(in_dtype),
        start=rng.integers(-4, 9, (ROWS.size, 2)).astype(np.int32), window=(9, 14),
        mirror=rng.integers(0, 2, (ROWS.size, 2)).astype(np.int32), out_axes=out_axes, fill=7,
        mean=np.linspace(90, 120, shape[2]).astype(np.float32) if normalizes else None,
        scale=np.linspace(0.1, 0.2, shape[2]).astype(np.float32) if normalizes else None, dtype=np.dtype(dtype),
        is_padded=True,
    )  # fmt: skip


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("axes", [("HWC", "HWC"), ("HWC", "CHW"), ("CHW", "HWC"), ("CHW", "CHW")])
@pytest.mark.parametrize(
    "dtypes", [("uint8", "uint8"), ("uint8", "float32"), ("float32", "float32")]
)
def test_a_walk_while_records_are_read(
    dtypes: tuple[str, str], axes: tuple[str, str], channels: int, tmp_path: Path
) -> None:
    walk = walk_of((12, 17, channels), *dtypes, *axes)
    images = (
        np.random.default_rng(4)
        .integers(0, 256, (NUM_RECORDS, *walk.in_shape))
        .astype(walk.in_dtype)
    )
    expected = np.empty((ROWS.size, *walk.out_shape), walk.dtype)
    Walker(walk)(images[ROWS], expected)
    out = np.empty_like(expected)

    maps = records_of(images, tmp_path / "records.bin")
    tails = read_through(maps, images[0].nbytes, Walker(walk).maker(), out)

    np.testing.assert_array_equal(out, expected)
    stored = (tmp_path / "records.bin").read_bytes()[5:]
    size = len(stored) // NUM_RECORDS
    assert tails == [
        stored[size * (row + 1) - TAIL_BYTES : size * (row + 1)] for row in ROWS.tolist()
    ]


def test_edits_while_records_are_read(tmp_path: Path) -> None:
    images = np.random.default_rng(5).integers(0, 256, (NUM_RECORDS, 20, 15, 3), np.uint8)
    numbers = edits.of_tables(
        np.random.default_rng(6).integers(0, 256, (ROWS.size, 256)).astype(np.uint8)
    )
    expected, out = (
        np.empty((ROWS.size, 20, 15, 3), np.uint8),
        np.empty((ROWS.size, 20, 15, 3), np.uint8),
    )
    native().edit(images[ROWS], numbers, expected)
    maker = native().edit_maker((20, 15, 3), numbers)
    numbers[:] = np.nan  # others may write to it

    read_through(records_of(images, tmp_path / "records.bin"), images[0].nbytes, maker, out)

    np.testing.assert_array_equal(out, expected)
    assert (out != images[ROWS]).any()


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_images_are_resized_edited_and_walked_over_while_records_are_read(
    dtype: str, tmp_path: Path
) -> None:
    rng, count = np.random.default_rng(8), ROWS.size
    images = rng.integers(0, 256, (NUM_RECORDS, 20, 15, 3), np.uint8)
    boxes = np.column_stack(
        [rng.integers(0, 9, (count, 2)), rng.integers(3, 7, (count, 2))]
    ).astype(np.int32)
    sizes, table = np.full((count, 2), 12, np.int32), resampling.TABLES["linear"]
    start, mirror = (
        rng.integers(0, 3, (count, 2)).astype(np.int32),
        rng.integers(0, 2, (count, 2)).astype(np.int32),
    )
    numbers = edits.of_tables(rng.integers(0, 256, (count, 256)).astype(np.uint8))
    mean, scale = np.array([90, 100, 110], np.float32), np.array([0.1, 0.2, 0.3], np.float32)
    visit = native().Visit(count, 3)
    visit.resize(boxes, sizes, table, 1.0, True)
    visit.walk(start, mirror, np.array([[10, 9]], np.int32), np.array([1, 2, 3], np.uint8))
    visit.edit(numbers)
    visit.walk(start, mirror, np.array([[8, 7]], np.int32), np.full(3, 5, np.uint8))
    visit.finish(mean, scale, False)
    expected, out = np.empty((count, 8, 7, 3), dtype), np.empty((count, 8, 7, 3), dtype)
    declined = np.empty(count, np.int8)
    visit.make_rows(list(images[ROWS]), list(expected), declined)
    assert not declined.any()
    maker = visit.maker(dtype == "float32", (20, 15), (8, 7))
    for array in (boxes, sizes, start, mirror, numbers, mean, scale):  # others may write to them
        array[:] = 0

    read_through(records_of(images, tmp_path / "records.bin"), images[0].nbytes, maker, out)

    np.testing.assert_array_equal(out, expected)


def test_a_row_that_is_declined_is_to_be_done_again(tmp_path: Path) -> None:
    images = np.zeros((NUM_RECORDS, 20, 15, 3), np.uint8)
    boxes, visit = (
        np.array([[0, 0, 9, 9], [0, 0, 21, 9], [0, 0, 9, 9]], np.int32),
        native().Visit(3, 3),
    )
    visit.resize(boxes, np.full((3, 2), 6, np.int32), resampling.TABLES["linear"], 1.0, True)
    maker = visit.maker(False, (20, 15), (6, 6))
    maps, plan = records_of(images, tmp_path / "records.bin"), native().CopyPlan(ints(1, 2, 3))
    parts = [(HEAD_BYTES, 900, 0, maker)]
    records = native().FileRecords(maps, ints(0, NUM_RECORDS), ints(0), ints(5), 905)
    plan.add(records, np.arange(3), None, parts)
    copies = native().Copies(native().Queue(), plan, 0, 3, 9, [np.empty(3 * 108, np.uint8)])
    assert [wait(copies, step) for step in range(3)] == [face.DONE, face.REDO, face.DONE]


def test_a_file_that_is_mostly_wanted_is_read_without_a_map(tmp_path: Path) -> None:
    """Maps are made where little of a file is wanted: here a record is a quarter of it."""
    walk = walk_of((60, 60, 3), "uint8", "float32", "HWC", "HWC")._replace(
        start=np.zeros((8, 2), np.int32), mirror=np.ones((8, 2), np.int32)
    )
    images = np.random.default_rng(7).integers(0, 256, (4, 60, 60, 3), np.uint8)
    (tmp_path / "images.bin").write_bytes(images.tobytes())
    maps, numbers = maps_of(tmp_path / "images.bin"), np.tile(np.arange(4), 2)
    plan, out = native().CopyPlan(ints(8)), np.empty((8, *walk.out_shape), np.float32)
    records = native().FileRecords(maps, ints(0, 4), ints(0), ints(0), 10800)
    plan.add(records, numbers, None, [(0, 10800, 0, Walker(walk).maker())])
    copies = native().Copies(native().Queue(), plan, 0, 1, 3, [out.reshape(-1).view(np.uint8)])
    assert wait(copies, 0) == face.DONE
    maps.states(ints(0), states := np.zeros(1, np.int8))
    assert states.tolist() == [face.UNTRIED]
    expected = np.empty_like(out)
    Walker(walk)(images[numbers], expected)
    np.testing.assert_array_equal(out, expected)


def test_wrong_makers_are_refused() -> None:
    start, mean = np.zeros((3, 2), np.int32), np.zeros(3, np.float32)

    def walk_of_bytes(fill: float = 0, channels: int = 3) -> face.PixelWalk:
        numbers = np.zeros(channels, np.float32)
        planes = {"in_planes": False, "out_planes": False}
        return native().PixelWalk(**planes, fill=fill, mean=numbers, scale=numbers)

    right = (False, False, (8, 8), (5, 5), start, start)
    walk_of_bytes().maker(*right)
    wrong: dict[int, list[object]] = {
        2: [(0, 8), (-1, 8), (2**31, 8), (2**40, 8), (8, 0), (8, 2**31), (8, 8, 3)],
        3: [(0, 5), (2**31, 5), (5, 0), (5, 2**31), 5],
        5: [start[:2], start[:, :1].copy(), mean],
    }
    for place, values in wrong.items():
        for value in values:
            arguments = list(right)
            arguments[place] = value
            with pytest.raises((ValueError, TypeError)):
                walk_of_bytes().maker(*arguments)
    for fill, channels in ((-1, 3), (256, 3), (0, 0)):
        with pytest.raises(ValueError, match="walk"):
            walk_of_bytes(fill, channels).maker(*right)
    with pytest.raises(ValueError, match="a mean and a scale a channel"):
        native().PixelWalk(in_planes=False, out_planes=False, fill=0, mean=mean, scale=mean[:2])
    with pytest.raises(ValueError, match="sizes"):
        walk_of_bytes().maker(True, True, (2**31 - 1, 2**31 - 1), (5, 5), start, start)
    with pytest.raises(ValueError, match="floats to bytes"):
        walk_of_bytes().maker(True, False, *right[2:])
    for height, numbers in [
        (0, np.zeros((1, 2))),
        (8, np.full((1, 2), 99.0)),
        (2**30, np.zeros((1, 2))),
    ]:
        with pytest.raises(ValueError, match="edit"):
            native().edit_maker((height, 8, 3), numbers)
    float16 = walk_of((12, 17, 3), "uint8", "float32", "HWC", "HWC")._replace(
        dtype=np.dtype("float16")
    )
    with pytest.raises(SpecError, match="float16"):
        Walker(float16).maker()
