"""The compiled copies give the bytes of the records, however these lie in files, maps and blocks."""

from __future__ import annotations

import numpy as np
import pytest

from gpuload import kernels
from gpuload.sources import maps
from gpuload.sources.files import expand, look_at
from gpuload.sources.maps import MappedReader
from gpuload.sources.plain import PlainReader

if not maps.supported():
    pytest.skip("no compiled kernels on this system", allow_module_level=True)

copy = kernels.load("copy")


def records_in(folder, record_bytes, counts):
    """Write records into files behind headers of different lengths; return them all, and the files."""
    records = np.random.default_rng(5).integers(0, 256, (sum(counts), record_bytes), np.uint8)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    for number in range(len(counts)):
        data = bytes(number) + records[starts[number] : starts[number + 1]].tobytes()
        (folder / f"{number:04}").write_bytes(data)
    found, _ = look_at(expand(f"{folder}/*"), 0, lambda *_: None)
    return records, found, starts, np.arange(len(counts), dtype=np.int64)


def readers(found, starts, offsets):
    num_files = len(found)
    yield MappedReader(found, starts, offsets, np.ones(num_files, np.bool_))
    yield MappedReader(found, starts, offsets, np.zeros(num_files, np.bool_))
    yield MappedReader(found, starts, offsets, np.arange(num_files) % 2 == 0)
    yield PlainReader(found, starts, offsets)


@pytest.mark.parametrize("record_bytes", [0, 1, 3, 64, 1000, 5000, 20_000])
@pytest.mark.parametrize("distance", [0, 5])
@pytest.mark.parametrize("indices", [range(40), range(39, -1, -1), [3, 4, 5, 5, 6, 30, 31, 0], [7] * 5, []])
def test_records_are_copied_to_their_rows(tmp_path, record_bytes, distance, indices):
    records, found, starts, offsets = records_in(tmp_path, record_bytes, [9, 0, 0, 20, 1, 10, 0])
    numbers = np.array(indices, np.int64)
    rows = np.roll(np.arange(numbers.size), 2)
    for reader in readers(found, starts, offsets):
        memory = np.zeros((numbers.size, record_bytes + distance), np.uint8)

        reader.copy(numbers, rows, memory[:, :record_bytes], record_bytes)

        np.testing.assert_array_equal(memory[rows, :record_bytes], records[numbers])
        assert not memory[:, record_bytes:].any()


@pytest.mark.parametrize("item_bytes", [1, 2, 3, 4, 8, 16])
def test_items_that_lie_apart_are_brought_together(tmp_path, item_bytes):
    columns, counts = 6, [9, 0, 21]
    records = np.random.default_rng(5).integers(0, 256, (30, columns, item_bytes), np.uint8)
    for number, part in enumerate(np.split(records, [9, 9])):
        (tmp_path / f"{number}").write_bytes(part.transpose(1, 0, 2).tobytes())
    found, _ = look_at(expand(f"{tmp_path}/*"), 0, lambda *_: None)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    places = np.array([4, 1, 5, 0, 3, 2], np.int64) * item_bytes
    indices, rows = np.array([29, 8, 9, 0, 10]), np.array([4, 0, 1, 3, 2])
    expected = np.empty((5, columns, item_bytes), np.uint8)
    expected[rows] = records[indices][:, np.argsort(places)]
    for reader in (MappedReader(found, starts, np.zeros(3, np.int64), np.ones(3, np.bool_)),
                   PlainReader(found, starts, np.zeros(3, np.int64))):  # fmt: skip
        block = np.zeros((5, columns * item_bytes), np.uint8)

        assert reader.copy_columns(indices, rows, block, item_bytes, places)

        np.testing.assert_array_equal(block, expected.reshape(5, -1))


def test_files_are_read_into_buffers_of_their_own(tmp_path):
    records, found, starts, offsets = records_in(tmp_path, 100, [3, 0, 2])
    for reader in readers(found, starts, offsets):
        buffers = [np.zeros(size, np.uint8) for size in (200, 300, 0)]

        reader.read(np.array([2, 0, 1]), buffers)

        assert [buffer.tobytes() for buffer in buffers] == [records[3:].tobytes(), records[:3].tobytes(), b""]


def test_a_read_beyond_the_end_of_a_file_is_a_changed_file(tmp_path):
    _, found, starts, offsets = records_in(tmp_path, 100, [3])
    for reader in (MappedReader(found, starts, offsets, np.zeros(1, np.bool_)), PlainReader(found, starts, offsets)):
        with pytest.raises(OSError, match="0000"):
            reader.read(np.array([0]), [np.zeros(301, np.uint8)])


@pytest.mark.parametrize("indices", [range(40), [39, 0, 7, 8, 9, 7]])
def test_asking_the_disk_ahead_changes_nothing(tmp_path, indices):
    records, found, starts, offsets = records_in(tmp_path, 5000, [9, 0, 0, 20, 1, 10, 0])
    reader = MappedReader(found, starts, offsets, np.arange(len(found)) != 3)
    numbers = np.array(indices, np.int64)
    block = np.zeros((numbers.size, 5000), np.uint8)
    reader._table[-1, copy.COLD] = 1000

    reader.copy(numbers, np.arange(numbers.size), block, 5000)

    np.testing.assert_array_equal(block, records[numbers])
    assert reader._table[-1, copy.COLD] in (999, copy.COLD_FOR)
