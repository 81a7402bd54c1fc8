"""Storage is asked ahead for what steps will take, and batches are what they are without it."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import gpuload as gl
from gpuload import ahead, fetching, kernels
from gpuload.ahead import asks, needed
from gpuload.order import Blocks, Plan, Start
from gpuload.sources import maps
from tests.sources.npyfiles import write
from tests.threads import threads

if not maps.supported():
    pytest.skip("no compiled kernels on this system", allow_module_level=True)

storage = kernels.load("storage")
LARGE = 1 << 60  # bytes of memory for files


def rows(folder, name="x", count=200, shape=(5,)):
    """Rows in two files; returns their source and their array."""
    array = np.arange(count * int(np.prod(shape)), dtype=np.int32).reshape(count, *shape)
    for number, part in enumerate(np.split(array, [count // 3])):
        write(folder / f"{name}-{number}.npy", part)
    return gl.npy(f"{folder}/{name}-*.npy", field=name), array


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory):
    """Compile first: the first call of a kernel may take longer than a step is held up to ask for more."""
    places = rows(tmp_path_factory.mktemp("compiled"))[0].places(np.arange(2))
    assert fetching.resident(places)
    fetch(places)


def fetch(places):
    """Have storage read places, in this thread."""
    storage.fetch(places.runs, 0, storage.progress())


@pytest.fixture
def asked(monkeypatch):
    """The records that storage was asked for, as if none were in memory; one array for each time and reader."""
    places, heard = maps.MappedReader.places, []

    def listen(reader, indices, record_bytes):
        heard.append(indices)
        return places(reader, indices, record_bytes)

    monkeypatch.setattr(maps.MappedReader, "places", listen)
    monkeypatch.setattr(ahead.Ahead, "_resident", lambda self, wanted: False)
    return heard


def assert_all_right(load, array, field="x"):
    for batch in load:
        np.testing.assert_array_equal(batch[field], array[batch.records])


# What is asked for, and when.


@given(
    st.integers(1, 400), st.integers(1, 9), st.integers(1, 4), st.integers(1, 99), st.data(),
    st.sampled_from([False, Blocks(1, 1), Blocks(3, 5), Blocks(20, 2), Blocks(1000, 3)]),
)  # fmt: skip
def test_records_are_asked_for_once_and_before_a_step_takes_them(
    length, batch_size, num_shards, record_mb, data, shuffle
):
    plan = Plan(length, batch_size, shuffle, 5, data.draw(st.integers(0, num_shards - 1)), num_shards)
    start = plan.start_at(data.draw(st.integers(0, length - 1)))
    due = list(asks(plan, 2, start, record_mb << 20, LARGE))

    assert [step for step, _ in due] == sorted(step for step, _ in due)
    assert all((np.diff(records) > 0).all() for _, records in due)
    together = np.concatenate([records for _, records in due])
    assert np.unique(together).size == together.size
    for step in range(start.step, plan.end(start)):
        taken, valid, _ = plan.span(range(step, step + 1), 2, start)
        before = np.concatenate([records for at, records in due if at <= step])
        assert np.isin(taken[valid], before).all()
        assert np.isin(taken[valid], before[: needed(plan, start, step)]).all()
        assert shuffle or taken.size < batch_size or needed(plan, start, step) == (step + 1 - start.step) * batch_size


def test_a_window_is_asked_for_when_the_one_before_begins():
    plan = Plan(1000, 5, Blocks(10, 4), seed=1)
    windows = list(asks(plan, 0, Start(), 1, LARGE))
    assert [step for step, _ in windows] == [0, 0, *range(8, 192, 8)]
    for number, (_, records) in enumerate(windows):
        taken = plan.span(range(8 * number, 8 * number + 8), 0)[0]
        np.testing.assert_array_equal(records, np.sort(taken))


def test_long_windows_are_asked_for_in_pieces_as_the_one_before_is_taken():
    plan = Plan(400, 5, Blocks(10, 20))
    pieces = list(asks(plan, 0, Start(), ahead.PIECE_BYTES // 50, LARGE))
    assert [(step, records.size) for step, records in pieces] == [
        *[(0, 50)] * 5, *[(step, 50) for step in (10, 20, 30)],
    ]  # fmt: skip


def test_in_order_steps_are_asked_for_together_some_steps_before():
    record_bytes = ahead.PIECE_BYTES // 50
    pieces = list(asks(Plan(400, 5), 0, Start(), record_bytes, LARGE))
    assert [step for step, _ in pieces] == [0, 1, 2, *range(9, 59, 10)]
    np.testing.assert_array_equal(np.concatenate([records for _, records in pieces]), np.arange(400))
    one = list(asks(Plan(400, 5, shard_id=1, num_shards=2), 0, Start(), record_bytes, LARGE))
    own = np.arange(400).reshape(40, 2, 5)[:, 1].ravel()
    np.testing.assert_array_equal(np.concatenate([records for _, records in one]), own)
    long = list(asks(Plan(40, 5), 0, Start(), 10 * ahead.WINDOW_BYTES, LARGE))
    assert [step for step, _ in long] == list(range(8))


def test_nothing_is_asked_for_where_many_shards_share_a_window_of_blocks():
    assert list(asks(Plan(1000, 5, Blocks(10, 4), num_shards=4), 0, Start(), 1, LARGE))
    assert list(asks(Plan(1000, 5, Blocks(10, 4), num_shards=5), 0, Start(), 1, LARGE)) == []


@pytest.mark.parametrize(
    ("shuffle", "num_bytes"),
    [(True, 1000 * 9), (Blocks(10, 4), 2 * 40 * 9), (False, ahead.WINDOW_BYTES + ahead.PIECE_BYTES)],
    ids=str,
)
def test_nothing_is_asked_for_that_does_not_stay_in_memory_until_it_is_taken(shuffle, num_bytes):
    assert list(asks(Plan(1000, 5, shuffle), 0, Start(), 9, num_bytes))
    assert list(asks(Plan(1000, 5, shuffle), 0, Start(), 9, num_bytes - 1)) == []


@pytest.mark.parametrize("shuffle", [False, True, Blocks(10**5, 1)], ids=str)
def test_no_long_list_of_records_is_made(shuffle):
    many = asks(Plan(10**12, 5, shuffle), 0, Start(), 1, 10**13)
    assert 10**4 < next(many)[1].size <= ahead.MOST_RECORDS


def test_a_window_of_a_trillion_records_is_not_listed():
    assert list(asks(Plan(10**12, 5, Blocks(10**6, 10**6)), 0, Start(), 1, LARGE)) == []


# Windows.


@pytest.mark.parametrize("record", ["row", "file"])
@pytest.mark.parametrize("part", [slice(None), slice(3, -1, 2), slice(None, None, -1)], ids=str)
def test_a_block_shuffle_asks_for_all_records_ahead(tmp_path, asked, record, part):
    source, array = rows(tmp_path)
    if record == "file":
        array = array.reshape(40, 5, 5)
        for number, one in enumerate(array):
            write(tmp_path / f"file-{number:02}.npy", one)
        source = gl.npy(f"{tmp_path}/file-*.npy", record="file")
    numbers = np.arange(len(source))[part]
    with gl.Loader(source[part], batch_size=5, shuffle=gl.Blocks(8, 2), device="cpu") as load:
        for _ in range(2):
            asked.clear()
            assert_all_right(load, array[part])
            np.testing.assert_array_equal(np.sort(np.concatenate(asked)), np.sort(numbers))
            assert all((np.diff(one) > 0).all() for one in asked)


# A whole shuffle of what fits into memory.


def test_what_a_whole_shuffle_will_take_is_asked_for_in_order_when_an_epoch_begins(tmp_path, asked, monkeypatch):
    monkeypatch.setattr(ahead, "PIECE_BYTES", 1000)
    source, array = rows(tmp_path)
    with gl.Loader(source, batch_size=7, shuffle=True, device="cpu") as load:
        for _ in range(2):
            run = iter(load)
            assert [one.size for one in asked] == [50] * 4
            np.testing.assert_array_equal(np.concatenate(asked), np.arange(200))
            assert_all_right(run, array)
            assert len(asked) == 4
            asked.clear()


def test_every_part_of_a_composed_source_is_asked(tmp_path, asked):
    x, y = rows(tmp_path)[0], rows(tmp_path, "y", shape=(2, 2))[0]
    more = rows(tmp_path, "more", 30)[0].rename(more="x")
    for source, wanted in (
        (gl.zip(x, y), [range(200), range(200)]),
        (gl.concat(x, more), [range(200), range(30)]),
        (x.rename(x="z"), [range(200)]),
        (x.select([9, 3, 199]), [[3, 9, 199]]),
        (gl.zip(x, y)[::-2], [range(1, 200, 2)] * 2),
    ):
        asked.clear()
        with gl.Loader(source, batch_size=2, shuffle=True, device="cpu") as load:
            iter(load)
        assert [one.tolist() for one in asked] == [list(one) for one in wanted]


def test_records_in_order_are_asked_for_window_by_window(tmp_path, asked, monkeypatch):
    monkeypatch.setattr(ahead, "PIECE_BYTES", 400)
    monkeypatch.setattr(ahead, "WINDOW_BYTES", 800)
    source, array = rows(tmp_path)
    with gl.Loader(source, batch_size=5, device="cpu", prefetch=1) as load:
        run = iter(load)
        before = sum(one.size for one in asked)
        assert 20 <= before <= 100
        assert_all_right(run, array)
    assert [one.size for one in asked] == [20] * 10
    np.testing.assert_array_equal(np.concatenate(asked), np.arange(200))


def test_what_lies_beside_images_is_not_asked_for(tmp_path, asked):
    source, array = rows(tmp_path, count=2)
    for number in range(2):
        Image.new("RGB", (4, 4)).save(tmp_path / f"{number}.png")
    with gl.Loader(gl.zip(source, gl.images(f"{tmp_path}/*.png")), batch_size=1, device="cpu") as load:
        assert_all_right(load, array)
    assert asked == []


def test_an_epoch_of_few_records_asks_for_nothing(tmp_path, asked):
    source, array = rows(tmp_path)
    with gl.Loader(source, batch_size=7, shuffle=True, device="cpu", shard_id=1, num_shards=3) as load:
        assert_all_right(load, array)
    assert asked == []


@pytest.mark.parametrize(("step", "times"), [(20, 1), (21, 0)])
def test_an_epoch_that_goes_on_asks_if_half_of_the_records_are_left(tmp_path, asked, step, times):
    source, array = rows(tmp_path)
    with gl.Loader(source, batch_size=5, shuffle=True, device="cpu") as load:
        run = iter(load)
        for _ in range(step):
            next(run)
        load.load_state_dict(load.state_dict())
        asked.clear()
        assert_all_right(iter(load), array)
    assert len(asked) == times


def test_more_than_fits_into_memory_is_not_asked_for_at_the_beginning(tmp_path, asked, monkeypatch):
    source, array = rows(tmp_path)
    for room, times in ((200 * 20, 1), (200 * 20 - 1, 0)):
        monkeypatch.setattr(ahead, "cache_bytes", lambda room=room: room)
        asked.clear()
        with gl.Loader(source, batch_size=7, shuffle=True, device="cpu") as load:
            assert_all_right(load, array)
        assert len(asked) == times


def test_what_cannot_be_asked_for_is_the_error_of_its_step(tmp_path):
    source, _ = rows(tmp_path)
    (tmp_path / "x-1.npy").unlink()
    with gl.Loader(source, batch_size=7, shuffle=True, device="cpu") as load:
        run = iter(load)
        with pytest.raises(gl.errors.ChangedFileError, match=r"x-1\.npy"):
            next(run)


# Where records lie.


def test_sources_in_memory_and_closed_ones_have_no_places(tmp_path):
    source, _ = rows(tmp_path)
    assert source.places(np.arange(5)).owners
    source.close()
    for one in (source, gl.arrays(x=np.arange(200))):
        places = one.places(np.arange(5))
        assert (places.runs.shape, places.owners) == ((0, 3), ())
        assert fetching.resident(places)


def test_sources_in_memory_have_nothing_to_ask_for(asked):
    with gl.Loader(gl.arrays(x=np.arange(200)), batch_size=7, shuffle=True, device="cpu") as load:
        assert_all_right(load, np.arange(200))
    assert asked == []


def test_neighbours_are_one_run_and_each_file_has_its_own(tmp_path):
    source, _ = rows(tmp_path)  # 66 and 134 records of 20 bytes
    places = source.places(np.array([2, 3, 4, 65, 66, 70, 199]))
    base = source.places(np.array([0])).runs[0, 0], source.places(np.array([66])).runs[0, 0]
    assert places.runs.tolist() == [
        [base[0] + 2 * 20, base[0] + 66 * 20, 4], [base[1], base[1] + 134 * 20, 7],
    ]  # fmt: skip
    assert places.owners == (source.copier().reader,)


def test_records_with_much_between_them_are_runs_of_their_own(tmp_path):
    write(tmp_path / "x.npy", np.zeros((9, 1 << 15), np.uint8))
    runs = gl.npy(tmp_path / "x.npy").places(np.array([0, 2, 3, 6, 6])).runs
    assert (runs - runs[0, 0])[:, :2].tolist() == [[0, 4 << 15], [6 << 15, 7 << 15], [6 << 15, 7 << 15]]
    assert runs[:, 2].tolist() == [3, 4, 5]


def test_places_of_composed_sources_say_when_records_can_be_copied(tmp_path):
    x, y = rows(tmp_path)[0], rows(tmp_path, "y", shape=(2, 2))[0]
    more = rows(tmp_path, "more", 30)[0].rename(more="x")
    wanted = np.arange(20, 60)
    assert gl.zip(x, y).places(wanted).runs[:, 2].tolist() == [0, 40]
    assert gl.zip(x, gl.arrays(z=np.arange(200))).places(wanted).runs[:, 2].tolist() == [40]
    assert gl.concat(more, x).places(wanted).runs[:, 2].tolist() == [10, 40]
    assert x[::-1].places(wanted + 100).runs[:, 2].tolist() == [0, 0]  # of both files
    assert x[100:].places(wanted).runs[:, 2].tolist() == [40]
    assert x.select([9, 9, 3]).places(np.array([0, 1])).runs[:, 2].tolist() == [1, 2]
    np.testing.assert_array_equal(x.rename(x="z").places(wanted).runs, x.places(wanted).runs)


# What is read from storage.


@pytest.fixture
def stored(tmp_path):
    """A file of 2 ** 20 records of 64 bytes of which the page cache holds nothing, and its source."""
    path = tmp_path / "x.npy"
    np.save(path, np.arange(16 << 20, dtype=np.int32).reshape(1 << 20, 16))
    source = gl.npy(path)
    source.copier().wanted(np.arange(1))  # the file is mapped now
    os.sync()
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached(path, 200_000) or cached(path, 900_000):
        pytest.skip("this file system keeps all files in memory")
    return path, source


def cached(path, record):
    """Whether the page cache holds a record of 64 bytes; mincore(2) reads nothing."""
    page = (128 + 64 * record) // mmap.PAGESIZE * mmap.PAGESIZE
    told = ctypes.c_ubyte()
    with open(path, "rb") as file:
        held = mmap.mmap(file.fileno(), 64, prot=mmap.PROT_READ, offset=page)
    address = np.frombuffer(held, np.uint8).ctypes.data
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(1), ctypes.byref(told)) == 0
    return bool(told.value & 1)


def mapped_bytes(path):
    """How much of a file this process can reach without a page fault; smaps of proc(5)."""
    with open("/proc/self/smaps") as lines:
        for line in lines:
            if line.rstrip().endswith(str(path)):
                return 1024 * next(int(one.split()[1]) for one in lines if one.startswith("Rss:"))
    return 0


def comes(path, *records):
    """Whether the page cache holds these records after a while."""
    end = time.monotonic() + 20
    while not all(cached(path, record) for record in records):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


waits = pytest.mark.skipif(
    ctypes.CDLL(None).madvise(None, 0, storage.MADV_POPULATE_READ) != 0,
    reason="this system reads ahead, nobody can wait",
)


@waits
def test_a_long_run_is_there_and_mapped_afterwards_and_nothing_else(stored):
    path, source = stored
    fetch(source.places(np.arange(200_000, 400_000)))
    assert all(cached(path, record) for record in range(200_000, 400_000, 100))
    assert not cached(path, 900_000)
    assert mapped_bytes(path) >= 200_000 * 64


def test_short_runs_are_read_and_not_waited_for(stored):
    path, source = stored
    fetch(source.places(np.concatenate([np.arange(200_000, 300_000), np.arange(500_000, 510_000)])))
    assert mapped_bytes(path) == 0
    assert comes(path, 200_000, 250_000, 299_999, 500_000, 509_999)
    assert not cached(path, 900_000)


def test_a_file_that_is_cut_short_and_waited_for_is_the_error_of_its_step(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((1 << 16, 8)))
    with gl.npy(path) as source, gl.Loader(source, batch_size=64, shuffle=True, device="cpu") as load:
        next(iter(load))  # the file is mapped now
        os.truncate(path, 1 << 20)
        with pytest.raises(gl.errors.ChangedFileError, match=r"x\.npy"):
            for _ in load:
                pass


def test_small_gaps_are_read_as_well_and_large_ones_are_not(stored):
    path, source = stored
    fetch(source.places(np.arange(200_000, 210_000, 500)))  # 31 KiB between two
    fetch(source.places(np.arange(800_000, 900_000, 10_000)))  # 625 KiB
    assert comes(path, 200_250, 209_250, 209_500, 800_000, 890_000)
    assert not cached(path, 805_000)
    assert not cached(path, 895_000)


def test_records_are_in_memory_if_their_runs_begin_and_end_there(stored):
    path, source = stored
    assert not fetching.resident(source.places(np.arange(100_000, 900_000)))
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for record in (100_000, 899_999):
            os.pread(file.fileno(), 64, 128 + 64 * record)
    assert comes(path, 100_000, 899_999)
    assert fetching.resident(source.places(np.arange(100_000, 900_000)))
    assert not fetching.resident(source.places(np.arange(99_000, 900_000)))
    assert not fetching.resident(source.places(np.arange(100_000, 901_000)))


@pytest.mark.parametrize("shuffle", [True, False, gl.Blocks(1 << 14, 2)], ids=str)
def test_nothing_is_asked_for_where_the_records_looked_at_are_in_memory(stored, monkeypatch, shuffle):
    path, source = stored
    plan, made = Plan(1 << 20, 64, shuffle), []
    monkeypatch.setattr(ahead, "Fetcher", lambda: made.append(fetching.Fetcher()) or made[-1])
    with open(path, "rb") as file:
        file.read()
    ahead.Ahead(source, plan, 0, Start()).wait(1 << 13)
    assert made == []
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    ahead.Ahead(source, plan, 0, Start()).wait(0)
    assert made
    for fetcher in made:
        fetcher.close()


def test_a_whole_shuffle_brings_all_of_a_file_that_fits(stored, monkeypatch):
    monkeypatch.setattr(ahead, "MOST_SECONDS", 60.0)  # a disk that others use may take longer than one
    path, source = stored
    with gl.Loader(source, batch_size=64, shuffle=True, device="cpu", prefetch=1) as load:
        run = iter(load)
        assert comes(path, *range(0, 1 << 20, 1 << 12), (1 << 20) - 1)
        batch = next(run)
        np.testing.assert_array_equal(batch["x"][:, 0], batch.records * 16)


def test_a_whole_shuffle_does_not_wait_for_slow_storage_to_the_end(stored, monkeypatch):
    path, source = stored
    monkeypatch.setattr(ahead, "MOST_SECONDS", 0.0)
    ahead.Ahead(source, Plan(1 << 20, 64, True), 0, Start()).wait(0)
    assert not all(cached(path, record) for record in range(0, 1 << 20, 1 << 14))
    assert threads() == []


# Steps wait for what they need, in order and in windows.


class Hand:
    """In place of a fetcher: what is there is told by hand; waiting is noted and takes no time."""

    def __init__(self):
        self.count, self.asked, self.waited = 0, [], []

    def ask(self, places, num_records):
        self.asked.append((places, num_records))

    def fetched(self, count):
        return self.count >= count

    def wait(self, count):
        self.waited.append(count)

    def close(self):
        self.asked = None


@pytest.fixture
def hand(monkeypatch):
    hand = Hand()
    monkeypatch.setattr(ahead, "Fetcher", lambda: hand)
    monkeypatch.setattr(ahead.Ahead, "_resident", lambda self, wanted: wanted[0] < 40)
    monkeypatch.setattr(ahead, "PIECE_BYTES", 20 * 20)
    monkeypatch.setattr(ahead, "WINDOW_BYTES", 60 * 20)
    return hand


def test_a_step_waits_for_its_records_and_not_for_those_that_were_in_memory(tmp_path, hand):
    source, _ = rows(tmp_path)
    steps = ahead.Ahead(source, Plan(200, 10), 0, Start())  # pieces of two steps, six steps before
    assert [steps.ready(step) for step in range(4)] == [True] * 4  # of records 0 to 39
    assert [num_records for _, num_records in hand.asked] == [20, 20]
    assert [one.runs[-1, 2] for one, _ in hand.asked] == [20, 20]
    assert not steps.ready(4)
    hand.count = 9
    assert not steps.ready(4)
    hand.count = 10
    assert steps.ready(4)
    assert not steps.ready(5)
    steps.wait(5)
    assert hand.waited == [20]
    steps.wait(19)
    assert hand.waited == [20, 160]
    assert sum(num_records for _, num_records in hand.asked) == 160
    steps.close()
    assert hand.asked is None


def test_the_last_step_waits_for_no_more_than_there_is(tmp_path, hand):
    source, _ = rows(tmp_path)
    for shard in range(3):
        plan = Plan(200, 7, shard_id=shard, num_shards=3, last_batch="pad")
        steps = ahead.Ahead(source, plan, 0, Start())
        hand.asked.clear()
        hand.waited.clear()
        steps.wait(plan.end(Start()) - 1)
        assert hand.waited == [sum(num_records for _, num_records in hand.asked)]


def test_a_window_is_waited_for_as_a_whole(tmp_path, hand, monkeypatch):
    monkeypatch.setattr(ahead.Ahead, "_resident", lambda self, wanted: False)
    source, _ = rows(tmp_path)
    steps = ahead.Ahead(source, Plan(200, 10, Blocks(10, 4), seed=3), 0, Start())
    for step in range(20):
        steps.wait(step)
    assert hand.waited == [40 * (step // 4 + 1) for step in range(20)]


@pytest.mark.parametrize("shuffle", [False, gl.Blocks(1 << 14, 2)], ids=str)
@pytest.mark.parametrize("num_shards", [1, 2])
def test_batches_from_storage_are_right_and_no_thread_is_left(stored, shuffle, num_shards):
    _, source = stored
    with gl.Loader(
        source[::-1], batch_size=999, shuffle=shuffle, device="cpu", num_shards=num_shards, last_batch="partial"
    ) as load:
        seen = 0
        for batch in load:
            np.testing.assert_array_equal(batch["x"][:, 5], ((1 << 20) - 1 - batch.records) * 16 + 5)
            seen += batch.records.size
        assert seen == (1 << 20) // num_shards
    assert threads() == []


@pytest.mark.parametrize("leave", ["close", "drop", "error"])
def test_a_loop_that_is_left_early_leaves_no_thread(stored, asked, leave):
    path, source = stored
    load = gl.Loader(source, batch_size=64, device="cpu")
    run = iter(load)
    next(run)
    assert len(threads()) > 1
    if leave == "close":
        run.close()
    elif leave == "drop":
        del run
        gc.collect()
    else:
        os.truncate(path, 1 << 20)
        with pytest.raises(gl.errors.ChangedFileError, match=r"x\.npy"):
            for _ in run:
                pass
        del run
        gc.collect()
    assert threads() == []
