"""Contracts: what every source promises; a test class subclasses one and says how its source is made."""

from __future__ import annotations

import gc
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuload import rawdecode
from gpuload.errors import ClosedError, RecordIndexError, SpecError
from gpuload.sources.base import Source


def assert_same(got: Any, expected: Any) -> None:
    """Check that one value has the dtype, shape and elements of another; not-a-number equals itself."""
    got, expected = np.asanyarray(got), np.asanyarray(expected)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got, expected)


class SourceContract:
    """What every source promises. A subclass gives ``open``, ``open_other`` and ``expected``; at least 3 records."""

    def open(self, folder: Path) -> Source:
        """Return the source; called twice with one folder it gives the same data."""
        raise NotImplementedError

    def open_other(self, folder: Path) -> Source:
        """Return a source of other data: another length, dtype or shape."""
        raise NotImplementedError

    def expected(self) -> dict[str, Any]:
        """Return for each field the values of all records, along the first axis or in a list; not read by our code."""
        raise NotImplementedError

    @pytest.fixture
    def source(self, tmp_path: Path) -> Any:
        with self.open(tmp_path) as source:
            yield source

    def check(self, source: Source, indices: list[int], fields: dict[str, Any]) -> None:
        expected = self.expected()
        assert list(fields) == list(expected) == list(source.spec.names)
        for name, values in fields.items():
            assert isinstance(values, np.ndarray if source.spec[name].uniform else list)
            assert len(values) == len(indices)
            for index, value in zip(indices, values, strict=True):
                assert_same(value, expected[name][index])

    def test_it_has_as_many_records_as_were_written(self, source: Source) -> None:
        assert len(source) == len(next(iter(self.expected().values())))

    def test_it_reads_all_records_in_order(self, source: Source) -> None:
        indices = list(range(len(source)))

        fields = source.read(indices)

        self.check(source, indices, fields)

    def test_it_reads_any_records_in_the_order_that_was_asked(self, source: Source) -> None:
        last = len(source) - 1
        indices = [last, 0, 1, 0, last, last // 2]

        fields = source.read(np.array(indices, np.int32))

        self.check(source, indices, fields)

    def test_it_reads_no_records(self, source: Source) -> None:
        fields = source.read([])

        assert list(fields) == list(source.spec.names)
        for field in source.spec:
            values = fields[field.name]
            assert len(values) == 0
            if isinstance(values, np.ndarray):
                assert values.dtype == field.dtype
                assert values.shape == (0, *field.fixed_shape)

    def test_its_spec_says_what_it_reads(self, source: Source) -> None:
        fields = source.read([0, 1, 2])

        assert source.spec.names == tuple(fields)
        for field in source.spec:
            assert field.dtype.isnative
            for value in fields[field.name]:
                assert np.asanyarray(fields[field.name][0]).dtype.kind == field.dtype.kind
                if field.shape is not None:
                    assert len(field.shape) == np.ndim(value)
                    assert all(told in (None, got) for told, got in zip(field.shape, np.shape(value), strict=True))
            if field.uniform:
                assert fields[field.name].dtype == field.dtype
                assert fields[field.name].shape == (3, *field.fixed_shape)
            else:
                assert {value.dtype for value in fields[field.name]} == {field.dtype}

    def test_one_record_is_its_fields(self, source: Source) -> None:
        for index in (0, len(source) - 1, -1):
            record = source[index]

            for name, values in self.expected().items():
                assert_same(record[name], values[index])

    @pytest.mark.parametrize("beyond", [0, 1, 10**15])
    def test_a_record_outside_is_an_index_error(self, source: Source, beyond: int) -> None:
        with pytest.raises(RecordIndexError, match=str(len(source))):
            source.read([0, len(source) + beyond])
        with pytest.raises(IndexError):
            source.read([-1 - beyond])
        with pytest.raises(IndexError):
            source[len(source) + beyond]
        with pytest.raises(IndexError):
            source[-len(source) - 1 - beyond]

    @pytest.mark.parametrize("indices", [[[0]], [0.5], ["0"], 0, [True]])
    def test_indices_are_one_axis_of_whole_numbers(self, source: Source, indices: Any) -> None:
        with pytest.raises(SpecError):
            source.read(indices)

    def test_what_was_read_belongs_to_the_reader(self, source: Source) -> None:
        first = source.read([0, 1])
        for values in first.values():
            for value in values:
                if isinstance(value, np.ndarray) and value.flags.writeable:
                    value[...] = np.zeros((), value.dtype)

        self.check(source, [0, 1], source.read([0, 1]))

    def test_several_threads_read_at_once(self, source: Source) -> None:
        orders = [np.random.default_rng(seed).integers(0, len(source), 20).tolist() for seed in range(16)]
        with ThreadPoolExecutor(4) as pool:
            batches = list(pool.map(source.read, orders))

        for order, fields in zip(orders, batches, strict=True):
            self.check(source, order, fields)

    def test_fill_writes_the_rows_it_was_told_and_no_others(self, source: Source) -> None:
        indices, rows = np.array([len(source) - 1, 0, 1], np.int64), np.array([4, 0, 3], np.int64)
        raws = [np.full((6, layout.record_bytes), 0xA5, np.uint8) for layout in source.blocks]

        if source.blocks:
            source.fill(indices, rows, raws)

        fields: dict[str, Any] = {}
        for raw, layout in zip(raws, source.blocks, strict=True):
            fields.update(rawdecode.decode(np, raw[rows], layout))
            assert (raw[[1, 2, 5]] == 0xA5).all()
        for name, values in fields.items():
            for index, value in zip(indices, values, strict=True):
                assert_same(value, self.expected()[name][index])
        assert set(fields) == (set(source.spec.names) if source.blocks else set())

    def test_fill_writes_into_a_part_of_a_larger_block(self, source: Source) -> None:
        raws = [np.full((9, layout.record_bytes + 64), 0xA5, np.uint8) for layout in source.blocks]
        parts = [raw[2:8:2, :-64] for raw in raws]

        if source.blocks:
            source.fill(np.array([2, 1], np.int64), np.array([0, 2], np.int64), parts)

        for raw, part, layout in zip(raws, parts, source.blocks, strict=True):
            for name, values in rawdecode.decode(np, np.ascontiguousarray(part[[0, 2]]), layout).items():
                for index, value in zip([2, 1], values, strict=True):
                    assert_same(value, self.expected()[name][index])
            assert (raw[:, layout.record_bytes :] == 0xA5).all()
            assert (raw[[0, 1, 3, 4, 5, 7, 8]] == 0xA5).all()

    def test_where_says_the_place_of_each_record(self, source: Source) -> None:
        places = [source.where(index) for index in range(len(source))]

        assert len(set(places)) == len(places)
        assert all(place for place in places)

    def test_the_fingerprint_tells_data_apart(self, source: Source, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        with self.open(tmp_path) as again, self.open_other(tmp_path / "other") as other:
            assert again.fingerprint() == source.fingerprint()
            assert other.fingerprint() != source.fingerprint()
        assert len(source.fingerprint()) < 200

    def test_the_fingerprint_does_not_depend_on_the_folder(self, source: Source, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        with self.open(tmp_path / "elsewhere") as elsewhere:
            assert elsewhere.fingerprint() == source.fingerprint()

    def test_a_slice_is_a_source_of_some_records(self, source: Source) -> None:
        part = source[1:]

        fields = part.read([0, len(part) - 1])

        assert len(part) == len(source) - 1
        self.check(source, [1, len(source) - 1], fields)

    def test_after_close_reading_is_an_error(self, tmp_path: Path) -> None:
        source = self.open(tmp_path)
        source.read([0])
        source.close()
        source.close()

        with pytest.raises(ClosedError):
            source.read([0])
        with pytest.raises(ClosedError):
            source[0]

    def test_the_with_block_closes(self, tmp_path: Path) -> None:
        with self.open(tmp_path) as source:
            source.read([0])

        with pytest.raises(ClosedError):
            source.read([0])

    @pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are counted in /proc, which is not here")
    def test_close_and_garbage_collection_leave_no_file_open(self, tmp_path: Path) -> None:
        self.open(tmp_path).close()  # what is loaded once in a process stays
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))

        source = self.open(tmp_path)
        source.read([0])
        source.close()
        forgotten = self.open(tmp_path)
        forgotten.read([0])
        del source, forgotten
        gc.collect()

        assert len(os.listdir("/proc/self/fd")) == before
