"""Maps: the contract, which files are mapped, and what is done where the system refuses."""

from __future__ import annotations

import mmap
import os
import textwrap
import time

import numpy as np
import pytest

from gpuload import core
from gpuload.core import face
from gpuload.storage import maps, open_storage
from gpuload.storage.pread import PositionedStorage
from gpuload.threads import parallel_map
from tests import forkserver
from tests.interrupts import Alarm
from tests.storage.contract import (
    ProcessContract,
    StorageContract,
    all_maps_but,
    extents_of,
    num_maps,
    opened,
    read,
    run,
    write_files,
)

if not maps.supported():
    pytest.skip("files cannot be mapped on this system", allow_module_level=True)


class TestMapped(StorageContract):
    opens_in_python = False

    @staticmethod
    def open(paths):
        return maps.MappedStorage(opened(paths))


class TestMappedInItsOwnProcess(ProcessContract):
    module, name = "maps", "MappedStorage"


class TestNothingCanBeMapped(TestMapped):
    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def no_maps(cls, tmp_path_factory):
        with all_maps_but(0, tmp_path_factory.mktemp("maps")):
            yield


class TestFilesDoNotFitIntoMemory(TestMapped):
    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def no_memory(cls):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(maps, "cache_bytes", lambda: 0)
            yield


def test_a_file_is_mapped_when_a_part_of_it_is_read_and_stays_so(tmp_path):
    paths, contents = write_files(tmp_path, [16_384, 16_384, 16_383, 80_000])
    storage = maps.MappedStorage(opened(paths))

    assert read(storage, [(0, 0, 2049), (2, 0, 10), (3, 0, 40_000)])[0] == contents[0][:2049]
    assert num_maps(str(tmp_path)) == 0
    read(storage, [(0, 0, 2048), (3, 0, 10)])
    assert (num_maps("0000.bin"), num_maps("0003.bin")) == (1, 1)
    read(storage, [(0, 0, 16_384), (1, 0, 100)])
    assert [num_maps(f"{tmp_path}/000{number}.bin") for number in range(4)] == [1, 1, 0, 1]


def states_of(storage, count):
    states = np.empty(count, np.int8)
    storage.maps().states(np.arange(count), states)
    return states.tolist()


def test_files_beyond_the_ranges_of_the_guard_are_read(tmp_path):
    paths, contents = write_files(tmp_path, [20_000] * 5)
    storage = maps.MappedStorage(opened(paths))
    with all_maps_but(3, tmp_path):
        for size in (100, 2000, 100):
            triples = [(file, 7, size) for file in (4, 3, 2, 1, 0, 1, 2)]
            assert read(storage, triples) == [contents[f][o : o + n] for f, o, n in triples]
            assert 2 <= num_maps(f"{tmp_path}/0") <= 3
        assert storage.maps() is not None
        del storage
        assert core.native.num_free_maps() == 3


def test_there_are_never_more_maps_than_are_allowed_whatever_is_read(tmp_path):
    paths, contents = write_files(tmp_path, [20_000] * 60)
    before, draws = core.native.num_free_maps(), np.random.default_rng(5)
    storage = maps.MappedStorage(opened(paths), most_maps=8)
    for first in range(0, 60, 10):  # window after window, as blocks of records come
        for _ in range(60):
            files = draws.integers(first, first + 5, 6).tolist()
            triples = [(file, int(draws.integers(19_000)), 100) for file in files]
            assert read(storage, triples) == [contents[f][o : o + n] for f, o, n in triples]
            assert before - core.native.num_free_maps() <= 8
        assert before - core.native.num_free_maps() == num_maps(f"{tmp_path}/0")
    assert states_of(storage, 60)[20:].count(face.MAPPED) > 2
    assert storage.maps() is not None

    del storage

    assert core.native.num_free_maps() == before


def test_the_least_recently_used_maps_make_room(tmp_path):
    paths, _ = write_files(tmp_path, [20_000] * 6)
    storage = maps.MappedStorage(opened(paths), most_maps=4)
    for file in range(4):
        read(storage, [(file, 0, 10)])
    assert states_of(storage, 6) == [face.MAPPED] * 4 + [face.UNTRIED] * 2

    for _ in range(60):
        read(storage, [(0, 0, 10), (1, 0, 10), (3, 0, 10)])
        read(storage, [(4, 0, 10)])

    assert states_of(storage, 6) == [face.MAPPED] * 2 + [face.UNTRIED] + [face.MAPPED] * 2 + [
        face.UNTRIED
    ]


def test_a_file_that_is_wanted_once_takes_no_map_from_another_while_maps_are_scarce(tmp_path):
    paths, _ = write_files(tmp_path, [20_000] * 20)
    storage = maps.MappedStorage(opened(paths), most_maps=4)
    for file in range(20):
        read(storage, [(file, 0, 10)])

    assert states_of(storage, 20) == [face.MAPPED] * 4 + [face.UNTRIED] * 16


def test_files_in_order_take_no_map_from_another_while_maps_are_scarce(tmp_path):
    paths, contents = write_files(tmp_path, [20_000] * 20)
    storage = maps.MappedStorage(opened(paths), most_maps=4)
    for _ in range(2):
        for file in range(20):
            for offset in (0, 10_000):
                triples = [(file, offset + place, 1000) for place in range(0, 10_000, 1000)]
                assert b"".join(read(storage, triples)) == contents[file][offset : offset + 10_000]

    assert states_of(storage, 20) == [face.MAPPED] * 4 + [face.UNTRIED] * 16


def test_threads_that_read_more_files_than_maps_get_their_bytes(tmp_path):
    paths, contents = write_files(tmp_path, [20_000] * 40)
    before = core.native.num_free_maps()
    storage = maps.MappedStorage(opened(paths), most_maps=3)

    def work(seed, storage=storage):
        draws = np.random.default_rng(seed)
        for _ in range(150):
            files = draws.integers(0, 40) + draws.integers(0, 2, 6)
            triples = [(int(file) % 40, int(draws.integers(19_000)), 50) for file in files]
            assert read(storage, triples) == [contents[f][o : o + n] for f, o, n in triples]

    parallel_map(work, range(4), 4)

    assert before - core.native.num_free_maps() <= 3
    del storage, work
    assert core.native.num_free_maps() == before


def test_maps_are_given_back(tmp_path):
    paths, _ = write_files(tmp_path, [20_000] * 5)
    before = core.native.num_free_maps()
    storage = maps.MappedStorage(opened(paths))
    read(storage, [(file, 0, 10) for file in range(5)])
    assert core.native.num_free_maps() == before - 5

    del storage

    assert core.native.num_free_maps() == before


def test_maps_are_given_back_whenever_a_signal_handler_raises(tmp_path):
    paths, _ = write_files(tmp_path, [20_000] * 5)
    before, interrupted, storage = core.native.num_free_maps(), 0, None
    with Alarm(0.0001) as alarm:
        for _ in range(300):
            storage = maps.MappedStorage(opened(paths))
            try:
                alarm.arm()
                read(storage, [(file, 0, 10) for file in range(5)])
                storage = None
                alarm.disarm()
            except Alarm.Rang:
                interrupted += 1
    storage = None

    assert interrupted > 20
    assert core.native.num_free_maps() == before
    assert num_maps(str(tmp_path)) == 0


def test_a_page_that_was_lost_is_an_error_though_the_stamp_is_right(tmp_path):
    paths, _ = write_files(tmp_path, [1_000_000])
    storage = maps.MappedStorage(opened(paths))
    read(storage, [(0, 0, 10)])
    status = os.stat(paths[0])
    content = paths[0].read_bytes()
    os.truncate(paths[0], 0)
    with pytest.raises(OSError, match="changed"):
        read(storage, [(0, 500_000, 10)])
    paths[0].write_bytes(content)
    os.utime(paths[0], ns=(status.st_atime_ns, status.st_mtime_ns))

    with pytest.raises(OSError, match=r"0000\.bin could not be read"):
        read(storage, [(0, 0, 10)])


def test_what_was_asked_for_is_read_ahead(tmp_path):
    path = tmp_path / "cold"
    path.write_bytes(bytes(8 << 20))
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    storage = maps.MappedStorage(opened([path]))
    extents = extents_of([(0, 5 << 20, 1 << 20), (0, 6 << 20, 1 << 20), (0, 100, 100)])
    if resident(path).any():
        pytest.skip("the file system keeps what it was told to drop")

    storage.advise(extents)

    until = time.monotonic() + 60
    expected = np.r_[0:1, (5 << 20) // mmap.PAGESIZE : (7 << 20) // mmap.PAGESIZE]
    while not resident(path)[expected].all():
        assert time.monotonic() < until
    assert not resident(path)[2 << 20 >> 12 : 4 << 20 >> 12].any()


def resident(path):
    """Return which pages of a file are in memory: mincore(2)."""
    import ctypes

    libc = ctypes.CDLL(None)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages:
        memory = np.frombuffer(pages, np.uint8)
        flags = np.zeros(-(-memory.size // mmap.PAGESIZE), np.uint8)
        assert libc.mincore(memory.ctypes.data, memory.size, flags.ctypes.data) == 0
        del memory
    return flags & 1 == 1


def test_maps_are_the_choice_where_they_work_and_positioned_reads_elsewhere(tmp_path, monkeypatch):
    paths, _ = write_files(tmp_path, [10])
    assert isinstance(open_storage(opened(paths)), maps.MappedStorage)

    monkeypatch.setattr(maps, "supported", lambda: False)

    assert isinstance(open_storage(opened(paths)), PositionedStorage)


WITHOUT = """
    import sys
    import importlib.util, multiprocessing, os, signal, subprocess, tempfile, ctypes, mmap, platform
    import numpy as np
    {before}

    from gpuload import storage
    from gpuload.storage import files, wildcards

    found, [head] = files.look_at(wildcards.expand(sys.argv[1]), 5, lambda path, size, head: head)
    reader = storage.open_storage(found)
    out = np.zeros(8, np.uint8)
    extents = storage.Extents(np.array([0, 0]), np.array([100, 3]), np.array([5, 3]))
    reader.read(extents, out, np.array([0, 5]))
    reader.advise(extents)
    content = open(sys.argv[1], "rb").read()
    print(type(reader).__name__, head == content[:5], out.tobytes() == content[100:105] + content[3:6])
"""


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("pass", "MappedStorage"),
        (
            "del os.O_CLOEXEC, os.O_NONBLOCK, os.posix_fadvise, os.POSIX_FADV_WILLNEED, os.preadv",
            "MappedStorage",
        ),
        (
            "del os.O_CLOEXEC, os.O_NONBLOCK, os.posix_fadvise, os.preadv, os.pread, signal.SIGBUS",
            "MappedStorage",
        ),
        ("os.environ['GPULOAD_CORE'] = '0'", "PositionedStorage"),
        (
            "os.environ['GPULOAD_CORE'] = '0'; del os.O_CLOEXEC, os.O_NONBLOCK, os.preadv, os.pread",
            "PositionedStorage",
        ),
        ("from gpuload import core; core.native = None", "PositionedStorage"),
        ("sys.modules['gpuload.core._native'] = None", "PositionedStorage"),
    ],
)
def test_it_imports_and_reads_where_the_system_has_less(tmp_path, before, expected):
    paths, _ = write_files(tmp_path, [1000])

    process = forkserver.run(
        textwrap.dedent(WITHOUT).format(before=before), paths[0], has_gpuload=False
    )

    assert (process.returncode, process.stdout) == (0, f"{expected} True True\n"), process.stderr


ENDS = """
    import sys
    import numpy as np
    from gpuload.storage import Extents, maps
    from gpuload.storage.files import look_at

    storage = maps.MappedStorage(look_at(sys.argv[1:], 0, lambda *_: None)[0])
    cycle = [storage]
    cycle.append(cycle)
    zeros = np.zeros(1, np.int64)
    storage.read(Extents(zeros, zeros, zeros + 500), np.zeros(500, np.uint8), zeros)
"""


def test_python_ends_with_maps(tmp_path):
    paths, _ = write_files(tmp_path, [20_000])

    assert run(ENDS, *paths) == (0, "", "")
