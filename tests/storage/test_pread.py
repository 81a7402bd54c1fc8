"""Positioned reads: the contract, neighbours that are read together, what the system is asked
for."""

from __future__ import annotations

import os

import numpy as np
import pytest

from gpuload.errors import ChangedFileError
from gpuload.storage import Extents, handles, pread
from tests.storage.contract import (
    ProcessContract,
    StorageContract,
    extents_of,
    opened,
    read,
    write_files,
)


class TestPositioned(StorageContract):
    @staticmethod
    def open(paths):
        return pread.PositionedStorage(opened(paths))


class TestWithoutPreadv(TestPositioned):
    """As on Windows."""

    @pytest.fixture(autouse=True)
    def without_preadv(self, monkeypatch):
        monkeypatch.setattr(handles, "READ_AT", None)


class TestPositionedInItsOwnProcess(ProcessContract):
    module, name = "pread", "PositionedStorage"


@pytest.fixture
def reads(monkeypatch):
    """Note which bytes are read."""
    calls = []

    def read_at(descriptor, views, offset):
        calls.append((offset, len(views[0])))
        return os.preadv(descriptor, views, offset)

    monkeypatch.setattr(handles, "READ_AT", read_at)
    return calls


def test_a_file_that_changes_between_two_reads_is_an_error(tmp_path, monkeypatch):
    paths, _ = write_files(tmp_path, [500_000])

    def read_at(descriptor, views, offset):
        os.utime(paths[0], (1, 1))
        return os.preadv(descriptor, views, offset)

    monkeypatch.setattr(handles, "READ_AT", read_at)

    with pytest.raises(ChangedFileError, match=r"0000\.bin changed"):
        read(pread.PositionedStorage(opened(paths)), [(0, 0, 10), (0, 100_000, 10)])


@pytest.mark.parametrize(
    ("offsets", "length", "expected"),
    [
        ([0, 100, 200], 100, [(0, 300)]),
        ([200, 0, 100], 100, [(0, 300)]),
        ([0, 1100, 2201], 100, [(0, 1200), (2201, 100)]),
        ([5, 5, 9], 4, [(5, 8)]),
        ([0, 200_000], 200_000, [(0, 400_000)]),
        ([200_000, 0], 200_000, [(0, 200_000), (200_000, 200_000)]),
    ],
)
def test_neighbours_of_a_file_are_one_read(tmp_path, reads, offsets, length, expected):
    paths, contents = write_files(tmp_path, [500_000])

    values = read(
        pread.PositionedStorage(opened(paths)), [(0, offset, length) for offset in offsets]
    )

    assert values == [contents[0][offset : offset + length] for offset in offsets]
    assert reads == expected


def test_what_is_read_together_is_bounded(tmp_path, reads):
    path = tmp_path / "sparse"
    with open(path, "wb") as file:
        file.truncate(40_000_000)
    storage, numbers = (
        pread.PositionedStorage(opened([path])),
        np.random.default_rng(0).permutation(40_000),
    )

    storage.read(
        Extents(numbers * 0, numbers * 1000, numbers * 0 + 10),
        np.zeros(400_000, np.uint8),
        numbers * 10,
    )

    assert len(reads) == 5
    assert max(size for _, size in reads) <= pread.STRETCH_BYTES + pread.SMALL_BYTES


def test_each_file_is_opened_once_a_read(tmp_path, monkeypatch):
    paths, _ = write_files(tmp_path, [1000, 1000])
    storage, calls, os_open = pread.PositionedStorage(opened(paths)), [], os.open
    monkeypatch.setattr(os, "open", lambda path, *rest: calls.append(path) or os_open(path, *rest))

    read(storage, [(0, 0, 10), (1, 0, 10), (0, 500, 10), (1, 700, 10)])

    assert calls == [str(path) for path in paths]


def test_the_system_is_asked_for_runs_in_pieces(tmp_path, monkeypatch):
    paths, _ = write_files(tmp_path, [500_000, 1000])
    calls = []
    monkeypatch.setattr(pread, "ADVISE", lambda descriptor, *subject: calls.append(subject))

    pread.PositionedStorage(opened(paths)).advise(
        extents_of(
            [(0, 300_000, 150_000), (1, 5, 10), (0, 40_000, 10), (0, 0, 10_000), (0, 77_000, 5)]
        )
    )

    assert calls == [
        (0, 40_010, pread.WILLNEED),
        (77_000, 5, pread.WILLNEED),
        (300_000, 131_072, pread.WILLNEED),
        (431_072, 18_928, pread.WILLNEED),
        (5, 10, pread.WILLNEED),
    ]


@pytest.mark.parametrize("advise", [None, lambda *subject: os.close(-1)])
def test_a_system_that_cannot_be_asked_reads_all_the_same(tmp_path, monkeypatch, advise):
    paths, contents = write_files(tmp_path, [1000])
    monkeypatch.setattr(pread, "ADVISE", advise)
    storage = pread.PositionedStorage(opened(paths))

    storage.advise(extents_of([(0, 0, 10)]))

    assert read(storage, [(0, 1, 9)]) == [contents[0][1:10]]
