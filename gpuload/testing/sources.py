"""Contracts: the promises of every source; a test class subclasses one and opens its source."""

from __future__ import annotations

import copy
import gc
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuload import rawdecode
from gpuload.errors import ClosedError, GpuloadError, RecordIndexError, SpecError
from gpuload.ragged import Ragged
from gpuload.sources import compose
from gpuload.sources.base import Source
from gpuload.sources.leaf import Share
from gpuload.sources.shares import fill, values
from gpuload.spec import Field


def assert_same(actual: Any, expected: Any) -> None:
    """Check that one value has the dtype, shape and elements of another; not-a-number equals
    itself."""
    actual, expected = np.asanyarray(actual), np.asanyarray(expected)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(actual, expected)


def form_of(field: Field) -> type:
    """Return the type of the values of a field of several records."""
    if field.uniform:
        return np.ndarray
    return Ragged if field.ragged else list


class SourceContract:
    """The promises of every source. A subclass gives ``open``, ``open_other`` and ``expected``; at
    least 3 records."""

    def open(self, folder: Path) -> Source:
        """Return the source; called twice with one folder it gives the same data."""
        raise NotImplementedError

    def open_other(self, folder: Path) -> Source:
        """Return a source of other data: another length, dtype or shape."""
        raise NotImplementedError

    def expected(self) -> dict[str, Any]:
        """Return for each field the values of all records, along the first axis or in a list; not
        read by our code."""
        raise NotImplementedError

    @pytest.fixture
    def source(self, tmp_path: Path) -> Any:
        with self.open(tmp_path) as source:
            yield source

    def check(self, source: Source, indices: list[int], fields: dict[str, Any]) -> None:
        expected = self.expected()
        assert list(fields) == list(expected) == list(source.spec.names)
        for name, column in fields.items():
            field = source.spec[name]
            assert issubclass(type(column), form_of(field))
            assert len(column) == len(indices)
            for index, value in zip(indices, column, strict=True):
                assert_same(value, expected[name][index])

    def raw(self, source: Source, count: int, value: int = 0xA5) -> list[Any]:
        """Return rows for each group of fixed size, None for the others."""
        sizes = [
            None if group.layout is None else group.layout.record_bytes for group in source.groups
        ]
        return [None if size is None else np.full((count, size), value, np.uint8) for size in sizes]

    def fill_groups(self, source: Source, shares: list[Share], raws: list[Any]) -> dict[str, Any]:
        """Return the fields of all groups that have rows, after filling these rows."""
        fields: dict[str, Any] = {}
        for number, (group, raw) in enumerate(zip(source.groups, raws, strict=True)):
            if group.layout is not None:
                fill(shares, number, group.layout, raw)
                fields.update(rawdecode.decode(np, raw, group.layout))
        return fields

    def check_rows(self, indices: list[int], fields: dict[str, Any]) -> None:
        for name, column in fields.items():
            assert len(column) == len(indices)
            for index, value in zip(indices, column, strict=True):
                assert_same(value, self.expected()[name][index])

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
            column = fields[field.name]
            assert len(column) == 0
            if isinstance(column, np.ndarray):
                assert column.dtype == field.dtype
                assert column.shape == (0, *field.fixed_shape)

    def test_its_spec_says_what_it_reads(self, source: Source) -> None:
        fields = source.read([0, 1, 2])

        assert source.spec.names == tuple(fields)
        for field in source.spec:
            assert field.dtype.isnative
            for value in fields[field.name]:
                if field.text and field.shape == ():
                    assert type(value).__name__ == field.text
                else:
                    assert np.asanyarray(value).dtype.kind == field.dtype.kind
                if field.shape is not None:
                    assert len(field.shape) == np.ndim(value)
                    assert all(
                        length in (None, actual)
                        for length, actual in zip(field.shape, np.shape(value), strict=True)
                    )
            if field.uniform:
                whole = np.asanyarray(fields[field.name])
                assert whole.dtype == field.dtype
                assert whole.shape == (3, *field.fixed_shape)
            else:
                assert {value.dtype for value in fields[field.name]} == {field.dtype}

    def test_one_record_is_its_fields(self, source: Source) -> None:
        for index in (0, len(source) - 1, -1):
            record = source[index]

            for name, expected in self.expected().items():
                assert_same(record[name], expected[index])

    def test_a_record_outside_is_an_index_error(self, source: Source) -> None:
        for beyond in (0, 1, 10**15):
            with pytest.raises(RecordIndexError, match=str(len(source))):
                source.read([0, len(source) + beyond])
            with pytest.raises(IndexError):
                source.read([-1 - beyond])
            with pytest.raises(IndexError):
                source[len(source) + beyond]
            with pytest.raises(IndexError):
                source[-len(source) - 1 - beyond]

    def test_indices_are_one_axis_of_whole_numbers(self, source: Source) -> None:
        wrong_indices: tuple[Any, ...] = ([[0]], [0.5], ["0"], 0, [True])
        for indices in wrong_indices:
            with pytest.raises(SpecError):
                source.read(indices)

    def test_what_was_read_belongs_to_the_reader(self, source: Source) -> None:
        first = source.read([0, 1])
        for column in first.values():
            for value in column:
                if isinstance(value, np.ndarray) and value.flags.writeable:
                    value[...] = np.zeros((), value.dtype)

        self.check(source, [0, 1], source.read([0, 1]))

    def test_several_threads_read_at_once(self, source: Source) -> None:
        orders = [
            np.random.default_rng(seed).integers(0, len(source), 12).tolist() for seed in range(8)
        ]
        with ThreadPoolExecutor(4) as pool:
            batches = list(pool.map(source.read, orders))

        for order, fields in zip(orders, batches, strict=True):
            self.check(source, order, fields)

    def test_its_groups_are_its_fields_in_order(self, source: Source) -> None:
        assert tuple(field for group in source.groups for field in group.spec) == source.spec.fields
        for group in source.groups:
            assert group.layout is None or group.layout.spec == group.spec

    def test_the_shares_of_a_group_are_all_records_that_were_asked_each_once(
        self, source: Source
    ) -> None:
        count = len(source)
        shares = source.resolve(np.arange(count)[::-1].repeat(2))

        for group in range(len(source.groups)):
            group_shares = [share for share in shares if share.group == group]
            rows = [
                np.arange(2 * count) if share.rows is None else share.rows for share in group_shares
            ]
            assert sorted(np.concatenate(rows)) == list(range(2 * count))
            assert all(
                share.numbers.size == len(share_rows)
                for share, share_rows in zip(group_shares, rows, strict=True)
            )

    def test_fill_writes_any_records_in_any_order(self, source: Source) -> None:
        last = len(source) - 1
        indices = [last, 0, 1, 0, last, last // 2]
        raws = self.raw(source, len(indices))

        fields = self.fill_groups(source, source.resolve(np.array(indices)), raws)

        self.check_rows(indices, fields)
        fixed = [group for group in source.groups if group.layout is not None]
        assert set(fields) == {name for group in fixed for name in group.spec.names}

    def test_fill_into_some_rows_of_larger_memory_leaves_the_rest(self, source: Source) -> None:
        shares, larger = source.resolve(np.array([2, 1])), self.raw(source, 9)

        fields = self.fill_groups(
            source, shares, [None if raw is None else raw[3:5] for raw in larger]
        )

        self.check_rows([2, 1], fields)
        assert all((raw[[0, 1, 2, 5, 6, 7, 8]] == 0xA5).all() for raw in larger if raw is not None)

    def test_values_are_those_of_the_records_and_lie_where_they_were_told(
        self, source: Source
    ) -> None:
        indices = [2, 0, len(source) - 1, 2]
        shares, memories = source.resolve(np.array(indices)), list[Any]()

        def memory(num_bytes: int) -> Any:
            memories.append(np.full(num_bytes, 0xA5, np.uint8))
            return memories[-1]

        for number, group in enumerate(source.groups):
            if group.layout is None:
                plain = values(shares, number, group.spec, len(indices))
                in_memory = values(shares, number, group.spec, len(indices), memory=memory)
                for columns in (plain, in_memory):
                    self.check_rows(indices, dict(zip(group.spec.names, columns, strict=True)))
                ragged = [
                    column
                    for column in in_memory
                    if isinstance(column, Ragged) and column.dtype != object
                ]
                assert all(
                    any(np.shares_memory(column.payload, block) for block in memories)
                    for column in ragged
                    if column.nbytes
                )
                assert len(memories) == len(ragged)
                memories.clear()

    def test_no_records_are_filled_and_no_values_made_of_none(self, source: Source) -> None:
        shares = source.resolve(np.zeros(0, np.int64))

        fields = self.fill_groups(source, shares, self.raw(source, 0))

        assert all(len(column) == 0 for column in fields.values())
        for number, group in enumerate(source.groups):
            if group.layout is None:
                for field, column in zip(
                    group.spec, values(shares, number, group.spec, 0), strict=True
                ):
                    assert len(column) == 0
                    assert issubclass(type(column), form_of(field))

    def test_a_number_outside_is_refused_before_anything_is_written(self, source: Source) -> None:
        raws = self.raw(source, 2)
        for bad in (len(source), len(source) + 10**15, -1, -1 - 10**15):
            with pytest.raises(RecordIndexError):
                self.fill_groups(source, source.resolve(np.array([0, bad])), raws)
        for share in source.resolve(np.array([0, 1])):
            for beyond in (0, 10**15):
                outside = np.array([0, share.leaf.num_records + beyond])
                with pytest.raises(RecordIndexError):
                    share.leaf.read(outside, np.zeros(1 << 16, np.uint8), np.array([0, 0]))
                with pytest.raises(RecordIndexError):
                    share.leaf.read(-outside - 1, np.zeros(1 << 16, np.uint8), np.array([0, 0]))

        assert all((raw == 0xA5).all() for raw in raws if raw is not None)

    def test_a_place_outside_is_refused_before_anything_is_written(self, source: Source) -> None:
        for share in source.resolve(np.array([0, 1])):
            sizes = share.leaf.num_bytes(share.numbers)
            if share.numbers.size == 2 and sizes.min() > 0:
                out = np.full(int(sizes.sum()), 0xA5, np.uint8)
                for begins in (
                    [0, int(sizes[0]) + 1],
                    [-1, int(sizes[0])],
                    [0, -(2**62)],
                    [2**62, 0],
                ):
                    with pytest.raises(RecordIndexError):
                        share.leaf.read(share.numbers, out, np.array(begins))
                assert (out == 0xA5).all()

    def test_rows_of_another_kind_or_number_are_refused(self, source: Source) -> None:
        shares = source.resolve(np.array([0, 1]))
        for number, group in enumerate(source.groups):
            if group.layout is not None:
                size = group.layout.record_bytes
                frozen = np.zeros((2, size), np.uint8)
                frozen.flags.writeable = False
                wrong = [(2, size + 1), (1, size), (3, size), (2 * size,), ()]
                wrong_rows = [np.zeros(shape, np.uint8) for shape in wrong if shape != (2,)]
                if size:
                    wrong_rows += [np.zeros((2, size), np.int8), frozen]
                else:
                    wrong_rows += []
                if size > 1:
                    wrong_rows += [
                        np.zeros((4, size), np.uint8)[::2],
                        np.zeros((size, 2), np.uint8).T,
                    ]
                else:
                    wrong_rows += []
                for rows in wrong_rows:
                    with pytest.raises((SpecError, RecordIndexError)):
                        fill(shares, number, group.layout, rows)

    def test_values_of_another_count_are_refused(self, source: Source) -> None:
        shares = source.resolve(np.array([0, 1]))
        for number, group in enumerate(source.groups):
            for count in (0, 1, 3):
                if group.layout is None:
                    with pytest.raises((SpecError, RecordIndexError)):
                        values(shares, number, group.spec, count)

    def test_asking_ahead_changes_nothing(self, source: Source) -> None:
        for numbers in ([], [0, 2, 1]):
            for share in source.resolve(np.array(numbers, np.int64)):
                share.leaf.advise(share.numbers)

        self.check(source, [0, 1, 2], source.read([0, 1, 2]))

    def test_where_says_the_place_of_each_record(self, source: Source) -> None:
        places = [source.where(index) for index in range(len(source))]

        assert len(set(places)) == len(places)
        assert all(place for place in places)
        for outside in (-1, len(source)):
            with pytest.raises(RecordIndexError):
                source.where(outside)

    def test_the_fingerprint_tells_data_apart(self, source: Source, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        fingerprint = source.fingerprint()  # the next line writes its files anew
        with self.open(tmp_path) as again, self.open_other(tmp_path / "other") as other_source:
            assert again.fingerprint() == fingerprint
            assert other_source.fingerprint() != fingerprint
        assert 0 < len(fingerprint) < 200

    def test_the_fingerprint_does_not_depend_on_the_folder(
        self, source: Source, tmp_path: Path
    ) -> None:
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
        with pytest.raises(ClosedError):
            source.resolve(np.array([0]))

    def test_what_was_resolved_before_close_can_still_be_read(self, tmp_path: Path) -> None:
        source = self.open(tmp_path)
        raws, shares = self.raw(source, 2), source.resolve(np.array([1, 0]))

        source.close()

        self.check_rows([1, 0], self.fill_groups(source, shares, raws))

    def test_closing_a_part_leaves_the_others_open(self, source: Source) -> None:
        first, second = source.split(0.5)
        parts = [
            first,
            source[1:],
            source.select([0]),
            source.rename(),
            compose.zip(source),
            compose.concat(source),
        ]

        for part in parts:
            with part:
                assert len(part)
            with pytest.raises(ClosedError):
                part.read([0])

        assert len(second.read([0])) == len(source.spec)
        self.check(source, [2], source.read([2]))

    def test_it_can_be_pickled_and_copied(self, source: Source) -> None:
        pair = source, source[1:]
        duplicates = pickle.loads(pickle.dumps(pair)), copy.deepcopy(pair)

        source.close()

        for again, part in duplicates:
            last = len(again) - 1
            assert again.spec == source.spec
            assert (again.classes, part.classes) == (source.classes, source.classes)
            self.check(again, [last, 0], again.read([last, 0]))
            self.check(again, [1, last], part.read([0, last - 1]))

    def test_the_fingerprint_stays_when_it_is_pickled(self, source: Source) -> None:
        assert pickle.loads(pickle.dumps(source)).fingerprint() == source.fingerprint()

    def test_a_closed_source_is_not_pickled(self, tmp_path: Path) -> None:
        source = self.open(tmp_path)
        source.close()

        with pytest.raises(GpuloadError):
            pickle.loads(pickle.dumps(source))

    def test_it_says_in_a_line_how_it_reads(self, source: Source) -> None:
        assert source.describe()
        assert "\n" not in source.describe()

    def test_the_with_block_closes(self, tmp_path: Path) -> None:
        with self.open(tmp_path) as source:
            source.read([0])

        with pytest.raises(ClosedError):
            source.read([0])

    @pytest.mark.skipif(
        not os.path.isdir("/proc/self/fd"),
        reason="open files are counted in /proc, which is not here",
    )
    def test_close_and_garbage_collection_leave_no_file_open(self, tmp_path: Path) -> None:
        self.open(tmp_path).close()  # modules that are loaded once in a process stay
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
