"""What holds for every storage: the files' bytes, checks before anything is written, errors that
name the file."""

from __future__ import annotations

import contextlib
import gc
import os
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuload import core
from gpuload.errors import ChangedFileError, FileError, RecordIndexError, SpecError
from gpuload.storage import Extents
from gpuload.storage.files import look_at
from gpuload.storage.paths import PackedPaths
from tests import forkserver

ROOT = Path(__file__).parents[2]
SIZES = [100_000, 0, 1, 70_000, 300, 40_000, 200_000, 5000]
MOST = 300_000


def opened(paths):
    return look_at([str(path) for path in paths], 0, lambda *_: None)[0]


def write_files(folder, sizes):
    """Write files of random bytes; returns their paths and contents."""
    rng = np.random.default_rng(5)
    contents = [rng.integers(0, 256, size, np.uint8).tobytes() for size in sizes]
    paths = [folder / f"{number:04}.bin" for number in range(len(sizes))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    return paths, contents


def extents_of(triples):
    array = np.array(triples, np.int64).reshape(-1, 3)
    return Extents(*(array[:, column].copy() for column in range(3)))


def read(storage, triples, gap=0):
    """Read extents to places one after the other, ``gap`` bytes apart; returns the bytes of
    each."""
    extents = extents_of(triples)
    begins = np.concatenate([[0], np.cumsum(extents.lengths + gap)]).astype(np.int64)
    out = np.full(begins[-1] + 1, 77, np.uint8)
    storage.read(extents, out, begins[:-1])
    for begin, length in zip(begins[:-1], extents.lengths, strict=True):
        between = out[begin + length : begin + length + gap]
        assert (between == 77).all()
    assert out[-1] == 77
    return [out[a : a + n].tobytes() for a, n in zip(begins[:-1], extents.lengths, strict=True)]


def maps_of(paths):
    """Return the maps of some files by themselves, as the core makes them."""
    stamps = [(status.st_size, status.st_mtime_ns, status.st_ino) for status in map(os.stat, paths)]
    return core.native.Maps(PackedPaths.of(paths).arrays, np.array(stamps, np.int64), 0, len(paths))


@contextlib.contextmanager
def all_maps_but(num_left, folder):
    """Take all maps that the guard allows but a few, for a while: of one file, again and again."""
    path = folder / "mapped again and again"
    path.write_bytes(bytes(1 << 14))
    gc.collect()  # maps of earlier tests, which would come free meanwhile
    count = core.native.num_free_maps() - num_left
    maps, numbers = maps_of([path] * count), np.arange(count)
    maps.map(numbers, numbers * 0, numbers * 0 + 1)
    assert core.native.num_free_maps() == num_left
    yield
    del maps


def num_maps(name):
    return Path("/proc/self/maps").read_text().count(name)


def num_descriptors():
    return len(os.listdir("/proc/self/fd"))


def cut(path):
    os.truncate(path, os.path.getsize(path) // 2)


def empty(path):
    os.truncate(path, 0)


def grow(path):
    with open(path, "ab") as file:
        file.write(b"more")


def modify(path):
    with open(path, "r+b") as file:
        file.write(b"\xff" * 8)
    os.utime(path, (1, 1))


def replace(path):
    second = Path(f"{path}.new")
    status = os.stat(path)
    second.write_bytes(bytes(reversed(path.read_bytes())))
    os.utime(second, ns=(status.st_atime_ns, status.st_mtime_ns))
    second.replace(path)


def cut_and_restore(path):
    whole = path.read_bytes()
    os.truncate(path, 100)
    path.write_bytes(whole)
    os.utime(path, (1, 1))


CHANGES = [cut, empty, grow, modify, replace, cut_and_restore, os.remove]
PIECES = {"parts": 400, "most of a file": 30_000}

WRONG = [
    (8, 0, 1),
    (-1, 0, 1),
    (2**62, 0, 1),
    (0, -1, 5),
    (0, 0, -1),
    (0, 99_999, 2),
    (0, 100_001, 0),
    (0, 2**63 - 1, 2**63 - 1),
    (0, 5, 2**63 - 1),
    (0, -(2**63), 1),
    (0, -(2**63), 2**63 - 1),
    (1, 0, 1),
]

CUT_WHILE_READING = """
    import os, sys, threading
    import numpy as np
    from gpuload.errors import ChangedFileError
    from gpuload.storage import Extents, {module}
    from gpuload.storage.files import look_at

    path, length = sys.argv[1], int(sys.argv[2])
    with open(path, "wb") as file:
        file.write(b"\\1" * 40_000_000)
    storage = {module}.{name}(look_at([path], 0, lambda *_: None)[0])
    started, outcomes = threading.Barrier(4), []

    def read(seed):
        rng = np.random.default_rng(seed)
        started.wait()
        out, begins = np.zeros(64 * length, np.uint8), np.arange(64) * length
        try:
            while True:
                offsets = rng.integers(0, 40_000_000 - length, 64)
                storage.read(Extents(np.zeros(64, np.int64), offsets, np.full(64, length)), out, begins)
                if not (out == 1).all():
                    outcomes.append("wrong data")
                    return
        except ChangedFileError as error:
            outcomes.append("changed" if path in str(error) else str(error))
        except BaseException as error:
            outcomes.append(repr(error))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    started.wait()
    with open(path, "r+b") as file:
        while not outcomes:
            for size in (30_000_000, 10_000_000, 5_000, 0):
                file.truncate(size)
    for thread in threads:
        thread.join()
    print(outcomes)
"""

FORK = """
    import os, sys, threading
    import numpy as np
    from gpuload.storage import Extents, {module}
    from gpuload.storage.files import look_at

    paths = sys.argv[1:]
    storage = {module}.{name}(look_at(paths, 0, lambda *_: None)[0])

    def read(files):
        files = np.asarray(files)
        out, size = np.zeros(files.size * 100, np.uint8), np.full(files.size, 100)
        storage.read(Extents(files, np.zeros_like(size), size), out, np.arange(files.size) * 100)
        return out.reshape(-1, 100)

    busy, stop = threading.Event(), threading.Event()

    def keep_reading():
        while not stop.is_set():
            read(np.arange(len(paths) // 2))
            busy.set()

    thread = threading.Thread(target=keep_reading)
    thread.start()
    busy.wait()
    codes = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            rows = read(np.arange(len(paths)))  # some files were mapped before, some are only now
            os._exit(0 if all(rows[i].tobytes() == open(paths[i], "rb").read(100) for i in range(len(paths))) else 1)
        codes.append(os.waitpid(child, 0)[1])
    stop.set()
    thread.join()
    print(codes)
"""


def run(script, *arguments):
    """Run a script in a process of its own; returns its status and what it printed."""
    run_result = forkserver.run(textwrap.dedent(script), *arguments, warnings="ignore")
    return run_result.returncode, run_result.stdout, run_result.stderr


class StorageContract:
    """Subclassed for each storage; ``open`` makes one of files, ``opens_in_python`` if all files
    are opened there."""

    opens_in_python = True

    @staticmethod
    def open(paths):
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def storage_and_contents(cls, tmp_path_factory):
        paths, contents = write_files(tmp_path_factory.mktemp("several"), SIZES)
        return cls.open(paths), contents

    @pytest.mark.parametrize("gap", [0, 3])
    @pytest.mark.parametrize("size", [1, 2, 3, 4, 8, 60, 200, 3000, 9000, 20_000])
    @pytest.mark.parametrize("order", ["ascending", "descending", "random"])
    def test_bytes_come_from_their_places_in_any_order(
        self, storage_and_contents, order, size, gap
    ):
        storage, contents = storage_and_contents
        numbers = np.arange(0, max(2, 100_000 // max(size, 100)))
        numbers = {"ascending": numbers, "descending": numbers[::-1]}.get(
            order, np.random.default_rng(0).integers(0, numbers.size - 1, 300)
        )
        triples = [
            (file, i % (SIZES[file] // size) * size, size)
            for i in numbers.tolist()
            for file in (0, 3, 6)
        ]

        assert read(storage, triples, gap) == [contents[f][o : o + n] for f, o, n in triples]

    @settings(
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]
    )
    @given(data=st.data())
    def test_any_extents_are_the_same_as_slices(self, storage_and_contents, data):
        storage, contents = storage_and_contents

        def extents(file):
            offset = st.integers(0, SIZES[file])
            return offset.flatmap(
                lambda o: (
                    st.integers(0, SIZES[file] - o).map(lambda n: (file, o, n))
                    | st.integers(0, min(50, SIZES[file] - o)).map(lambda n: (file, o, n))
                )
            )

        triples = data.draw(st.lists(st.integers(0, len(SIZES) - 1).flatmap(extents), max_size=12))

        assert read(storage, triples, data.draw(st.integers(0, 2))) == [
            contents[f][o : o + n] for f, o, n in triples
        ]

    def test_items_that_lie_apart_are_brought_together(self, storage_and_contents):
        """As of a file in Fortran order: 60 columns of 400 items of 4 bytes, 30 records of them."""
        storage, contents = storage_and_contents
        records = np.random.default_rng(1).integers(0, 400, 30)
        columns = np.frombuffer(contents[0][8:], np.uint8)[: 60 * 400 * 4].reshape(60, 400, 4)
        offsets = (8 + (np.arange(60)[:, None] * 400 + records) * 4).reshape(-1)
        begins = (np.arange(60)[:, None] * 4 + np.arange(30) * 240).reshape(-1)
        out = np.zeros(30 * 240, np.uint8)

        storage.read(Extents(np.zeros(1800, np.int64), offsets, np.full(1800, 4)), out, begins)

        np.testing.assert_array_equal(
            out.reshape(30, 60, 4), columns[:, records].transpose(1, 0, 2)
        )

    def test_many_neighbours_of_several_megabytes_come_to_places_of_their_own(self, tmp_path):
        path = tmp_path / "large"
        content = np.random.default_rng(3).integers(0, 256, 20_000_000, np.uint8).tobytes()
        path.write_bytes(content)
        triples = [
            (0, i * 1000, 999) for i in np.random.default_rng(0).permutation(20_000).tolist()
        ]

        assert read(self.open([path]), triples) == [content[o : o + n] for _, o, n in triples]

    def test_no_extents_touch_no_file(self, tmp_path):
        paths, _ = write_files(tmp_path, [10])
        storage = self.open(paths)
        paths[0].unlink()

        assert read(storage, []) == []
        assert read(storage, [(0, 3, 0), (0, 10, 0)]) == [b"", b""]

    def test_arrays_of_other_kinds_are_taken(self, storage_and_contents):
        storage, contents = storage_and_contents
        pairs = np.broadcast_to(np.array([[7, 1]]), (3, 2))
        readonly = np.arange(3)
        readonly.setflags(write=False)
        out = np.zeros(15, np.uint8)

        storage.read(
            Extents(np.zeros(3, np.uint8), pairs[:, 0], np.full(3, 5, np.int32)), out, readonly * 5
        )

        assert out.tobytes() == contents[0][7:12] * 3

    @pytest.mark.parametrize("wrong", WRONG)
    def test_an_extent_outside_is_refused_before_anything_is_written(
        self, storage_and_contents, wrong
    ):
        storage, _ = storage_and_contents
        read(
            storage, [(0, 0, 10), (3, 0, 10)]
        )  # what is mapped has no other check before the addresses
        out = np.full(200, 77, np.uint8)

        with pytest.raises(RecordIndexError, match=r"extent 2, .* is outside"):
            storage.read(
                extents_of([(0, 0, 10), (4, 0, 10), wrong, (3, 0, 10)]), out, np.arange(4) * 20
            )
        with pytest.raises(IndexError, match=r"extent 1, .* is outside"):
            storage.advise(extents_of([(0, 0, 10), wrong]))

        assert (out == 77).all()

    @pytest.mark.parametrize("begin", [-1, 191, 201, 2**63 - 1, -(2**63)])
    def test_a_place_outside_is_refused_before_anything_is_written(
        self, storage_and_contents, begin
    ):
        storage, _ = storage_and_contents
        out = np.full(200, 77, np.uint8)

        with pytest.raises(
            RecordIndexError, match=r"extent 1, 10 bytes at byte 3 of .*0004\.bin, is outside"
        ) as caught:
            storage.read(extents_of([(0, 0, 10), (4, 3, 10)]), out, np.array([0, begin]))

        assert "outside the array" in caught.value.cause
        assert (out == 77).all()

    def test_arrays_that_do_not_fit_together_are_refused(self, storage_and_contents):
        storage, _ = storage_and_contents
        three, two, out = np.zeros(3, np.int64), np.zeros(2, np.int64), np.zeros(100, np.uint8)
        readonly = out.copy()
        readonly.setflags(write=False)

        for extents, to, begins in [
            (Extents(three, three, two), out, three),
            (Extents(three, three, three), out, two),
            (Extents(three[:, None], three[:, None], three[:, None]), out, three[:, None]),
            (Extents(three, three, three), readonly, three),
            (Extents(three, three, three), out[::2], three),
            (Extents(three, three, three), out.reshape(10, 10), three),
            (Extents(three, three, three), out.view(np.int8), three),
            (Extents(three, three, three + 0.0), out, three),
        ]:
            with pytest.raises(SpecError):
                storage.read(extents, to, begins)

    @pytest.mark.parametrize("size", PIECES.values(), ids=PIECES)
    @pytest.mark.parametrize("change", CHANGES)
    @pytest.mark.parametrize("read_before", [True, False])
    def test_a_file_that_changed_is_an_error_each_time_and_the_others_are_read(
        self, tmp_path, change, size, read_before
    ):
        paths, contents = write_files(tmp_path, [50_000, 50_000])
        storage = self.open(paths)
        if read_before:
            read(storage, [(0, 0, size), (1, 0, size)])
        change(paths[1])

        for _ in range(2):
            with pytest.raises(ChangedFileError, match=r"0001\.bin"):
                read(storage, [(0, 0, size), (1, 20_000, size)])
        assert read(storage, [(0, 5, size)]) == [contents[0][5 : 5 + size]]

    @pytest.mark.parametrize("size", PIECES.values(), ids=PIECES)
    def test_another_file_that_is_opened_in_its_place_is_an_error(
        self, tmp_path, monkeypatch, size
    ):
        """Two files change places just before one is opened, and back before anybody looks at the
        path again."""
        paths, _ = write_files(tmp_path, [50_000, 50_000])
        storage, os_open = self.open(paths), os.open
        monkeypatch.setattr(
            os,
            "open",
            lambda path, *rest: os_open(str(path).replace("0000.bin", "0001.bin"), *rest),
        )
        if not self.opens_in_python:
            pytest.skip("the core opens it, and asks its descriptor")

        with pytest.raises(ChangedFileError, match=r"0000\.bin changed"):
            read(storage, [(0, 0, size)])

    @pytest.mark.parametrize("size", PIECES.values(), ids=PIECES)
    def test_a_file_that_may_no_longer_be_read_is_an_error(self, tmp_path, size):
        paths, _ = write_files(tmp_path, [50_000])
        storage = self.open(paths)
        user = os.geteuid()
        os.chmod(paths[0], 0)
        status = os.stat(paths[0])
        if user == 0:
            os.seteuid(65534)
        try:
            with pytest.raises(FileError, match=r"0000\.bin"):
                read(storage, [(0, 0, size)])
        finally:
            os.seteuid(user)
        assert status.st_size == 50_000

    def test_threads_that_come_first_at_the_same_time_all_read_the_data(self, tmp_path):
        paths, contents = write_files(tmp_path, [20_000] * 20 + [300] * 20)
        for _ in range(8):
            storage, wrong, ready = self.open(paths), [], threading.Barrier(8)

            def work(seed, storage=storage, wrong=wrong, ready=ready):
                rng = np.random.default_rng(seed)
                ready.wait()
                for size in (100, 300, 100):
                    offsets = rng.integers(0, 300 - size + 1, 40)
                    triples = [
                        (int(f), int(o), size)
                        for f, o in zip(rng.permutation(40), offsets, strict=True)
                    ]
                    if read(storage, triples) != [contents[f][o : o + n] for f, o, n in triples]:
                        wrong.append(seed)

            threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert wrong == []

    def test_a_thread_that_reads_keeps_the_storage_alive(self, tmp_path):
        paths, contents = write_files(tmp_path, [2_000_000])
        triples = [(0, i * 1000 % 1_990_000, 2000) for i in range(500)]
        expected = [contents[0][o : o + n] for _, o, n in triples]
        for _ in range(5):
            storage, wrong, started = self.open(paths), [], threading.Barrier(4)

            def work(storage, wrong=wrong, started=started):
                started.wait()
                for _ in range(5):
                    if read(storage, triples) != expected:
                        wrong.append("data")

            threads = [threading.Thread(target=work, args=(storage,)) for _ in range(3)]
            for thread in threads:
                thread.start()
            started.wait()
            del storage
            for thread in threads:
                thread.join()
            assert wrong == []

    def test_a_storage_that_nobody_refers_to_leaves_no_map_and_no_descriptor(self, tmp_path):
        paths, _ = write_files(tmp_path, [20_000] * 50)
        before = num_descriptors()
        for _ in range(3):
            storage = self.open(paths)
            read(storage, [(file, 0, 100) for file in range(50)])
            read(storage, [(file, 0, 20_000) for file in range(50)])
            storage.advise(extents_of([(file, 0, 100) for file in range(50)]))
            assert num_descriptors() == before
            cycle = [storage]
            cycle.append(cycle)
            del storage, cycle
            gc.collect()

        assert num_maps(str(tmp_path)) == 0

    def test_asking_ahead_changes_nothing_and_leaves_errors_to_who_reads(self, tmp_path):
        paths, contents = write_files(tmp_path, SIZES)
        storage = self.open(paths)
        triples = [
            (6, 150_000, 20),
            (0, 0, 100),
            (0, 90_000, 10_000),
            (1, 0, 0),
            (2, 0, 1),
            (0, 50, 100),
            (4, 0, 300),
        ]
        paths[3].unlink()
        modify(paths[5])

        storage.advise(
            extents_of([*triples, (3, 0, 10), (5, 0, 10), (3, 0, 70_000), (5, 0, 40_000)])
        )
        storage.advise(extents_of([]))

        assert read(storage, triples) == [contents[f][o : o + n] for f, o, n in triples]
        for file in (3, 5):
            with pytest.raises(ChangedFileError, match=f"000{file}"):
                read(storage, [(file, 0, 10)])


class ProcessContract:
    """What would end or stop the whole process if it failed, so that each test has one of its
    own."""

    module: str
    name: str

    @pytest.mark.parametrize("size", [400, 3_000_000])
    def test_a_file_that_is_cut_while_threads_read_it_is_an_error_in_each(self, tmp_path, size):
        script = CUT_WHILE_READING.format(module=self.module, name=self.name)

        result = run(script, tmp_path / "file", size)

        assert result == (0, "['changed', 'changed', 'changed']\n", "")

    def test_a_child_reads_with_what_was_opened_before_the_fork(self, tmp_path):
        paths, _ = write_files(tmp_path, [20_000] * 20)

        result = run(FORK.format(module=self.module, name=self.name), *paths)

        assert result == (0, "[0, 0, 0]\n", "")
