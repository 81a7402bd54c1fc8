"""Steps that are nothing but copies of records are done by threads of their own, and nobody sees it by the batches.

The expected batches are rows of the array that NumPy wrote, or those of a loader of ``gl.arrays``, which never copies.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload import kernels
from gpuload.copying import CopyPool
from gpuload.errors import ChangedFileError, ClosedError
from gpuload.sources import maps
from tests.sources.npyfiles import write
from tests.threads import threads

if not maps.supported():
    pytest.skip("no compiled kernels on this system", allow_module_level=True)

copy = kernels.load("copy")
ROOT = Path(__file__).parents[1]
SHAPE = (5, 3)


def numbers(count, shape=SHAPE):
    """An array of which no two items are the same."""
    return np.arange(count * int(np.prod(shape)), dtype=np.int32).reshape(count, *shape)


def files(folder, array, counts):
    """Write rows into NPY files, so many into each; return their source."""
    for number, part in enumerate(np.split(array, np.cumsum(counts)[:-1])):
        write(folder / f"{number:04}.npy", part)
    return gl.npy(f"{folder}/*.npy")


def loader(source, **changes):
    return gl.Loader(source, **{"batch_size": 7, "device": "cpu", "shuffle": True, "seed": 3, **changes})


def begun(load):
    """Return an iterator, after a look that its steps are done by the threads that copy."""
    run = iter(load)
    assert load._stage.copies
    assert type(run._reading._pool) is CopyPool
    return run


def assert_rows(batch, array, name="x"):
    np.testing.assert_array_equal(batch[name], array[batch.records])


def assert_same(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        assert (one.epoch, one.step) == (other.epoch, other.step)
        np.testing.assert_array_equal(one.records, other.records)
        np.testing.assert_array_equal(one.valid, other.valid)
        np.testing.assert_array_equal(one["x"], other["x"])


def outcomes(run):
    """Return the batches, and for each step that failed its error."""
    batches, errors, step = [], {}, 0
    while True:
        try:
            batches.append(next(run))
        except StopIteration:
            return batches, errors
        except Exception as error:
            errors[step] = error
        step += 1


def until(condition):
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        threading.Event().wait(0.001)
    return condition()


def outcome_of(program, *arguments):
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    return done.returncode, done.stdout, done.stderr


# What is copied: a source in a folder, and the array whose rows its records are.


def one_file(folder):
    return files(folder, numbers(200), [200]), numbers(200)


def several_files(folder):
    return files(folder, numbers(200), [90, 0, 3, 1, 80, 26]), numbers(200)


def whole_files(folder):
    files(folder, numbers(60), [5] * 12)
    return gl.npy(f"{folder}/*.npy", record="file"), numbers(60).reshape(12, 5, *SHAPE)


def fixed_records(folder):
    array = numbers(200).astype("<f8")
    for number in range(2):
        data = array[100 * number :][:100].tobytes()
        (folder / f"{number}.bin").write_bytes(b"head" + data + b"foot!")
    return gl.fixed(f"{folder}/*.bin", ("<f8", SHAPE), header_bytes=4, footer_bytes=5), array


def single_bytes(folder):
    array = np.random.default_rng(0).integers(0, 256, 200, np.uint8)
    return files(folder, array, [150, 50]), array


def texts(folder):
    array = np.array([f"record {number}" for number in range(200)])
    return files(folder, array, [150, 50]), array


def long_records(folder):
    array = numbers(30, (3, 1000))
    return files(folder, array, [20, 10]), array


def records_of_no_bytes(folder):
    array = np.zeros((30, 0), np.float32)
    return files(folder, array, [20, 10]), array


def a_slice(folder):
    source, array = several_files(folder)
    return source[20:190], array[20:190]


def every_third_backwards(folder):
    source, array = several_files(folder)
    return source[::-3], array[::-3]


def a_selection(folder):
    source, array = several_files(folder)
    chosen = np.random.default_rng(1).integers(0, 200, 300)
    return source.select(chosen), array[chosen]


def a_slice_of_a_selection_of_a_slice(folder):
    source, array = several_files(folder)
    chosen = np.random.default_rng(1).integers(0, 150, 300)
    return source[50:].select(chosen)[10::2], array[50:][chosen][10::2]


def a_part_of_a_split(folder):
    source, array = several_files(folder)
    return source.split(0.7, seed=5)[1], gl.arrays(x=array).split(0.7, seed=5)[1].read(np.arange(60))["x"]


def with_another_name(folder):
    source, array = several_files(folder)
    return source[5:].rename(x="image"), array[5:]


COPIED = [
    one_file, several_files, whole_files, fixed_records, single_bytes, texts, long_records, records_of_no_bytes,
    a_slice, every_third_backwards, a_selection, a_slice_of_a_selection_of_a_slice, a_part_of_a_split,
    with_another_name,
]  # fmt: skip


@pytest.mark.parametrize("made", COPIED, ids=lambda made: made.__name__)
@pytest.mark.parametrize("shuffle", [False, True, gl.Blocks(4, 3)], ids=["in order", "shuffled", "blocks"])
def test_batches_are_the_rows_that_numpy_has(tmp_path, made, shuffle):
    source, array = made(tmp_path)
    with loader(source, shuffle=shuffle) as load:
        for _ in range(2):
            records = []
            for batch in begun(load):
                assert batch[source.spec.names[0]].dtype == array.dtype
                assert_rows(batch, array, source.spec.names[0])
                records += batch.records.tolist()
            assert sorted(records) == list(range(len(array)))


# What is not: it needs more than copies, or is not in files.


def swapped(folder):
    return gl.npy(write(folder / "a.npy", numbers(50), swapped=True)), {}


def in_fortran_order(folder):
    return gl.npy(write(folder / "a.npy", np.asfortranarray(numbers(50)))), {}


def files_of_different_forms(folder):
    write(folder / "a.npy", numbers(50)[:25])
    write(folder / "b.npy", numbers(50)[25:], swapped=True)
    return gl.npy(f"{folder}/*.npy"), {}


def one_of_several_fields(folder):
    both = np.zeros(50, [("x", "<i4", SHAPE), ("label", "u1")])
    both["x"] = numbers(50)
    return gl.npy(write(folder / "a.npy", both)), {"output": "x"}


def several_fields(folder):
    return one_of_several_fields(folder)[0], {}


def a_field_between_gaps(folder):
    wide = np.dtype({"names": ["x"], "formats": [("<i4", SHAPE)], "offsets": [4], "itemsize": 80})
    both = np.zeros(50, wide)
    both["x"] = numbers(50)
    both.tofile(folder / "a.bin")
    return gl.fixed(folder / "a.bin", wide), {}


def arrays(folder):
    return gl.arrays(x=numbers(50)), {}


def with_an_op(folder):
    return one_file(folder)[0][:50], {"ops": [gl.ops.Cast("int32")]}


def joined_end_to_end(folder):
    source = one_file(folder)[0]
    return gl.concat(source[:20], source[20:50]), {}


def joined_side_by_side(folder):
    return gl.zip(one_file(folder)[0][:50], gl.arrays(label=np.arange(50))), {}


NOT_COPIED = [
    swapped, in_fortran_order, files_of_different_forms, one_of_several_fields, several_fields, a_field_between_gaps,
    arrays, with_an_op, joined_end_to_end, joined_side_by_side,
]  # fmt: skip


@pytest.mark.parametrize("made", NOT_COPIED, ids=lambda made: made.__name__)
def test_steps_that_are_more_than_copies_are_done_by_other_threads(tmp_path, made):
    source, changes = made(tmp_path)
    with loader(source, **changes) as load:
        run = iter(load)
        assert not load._stage.copies
        assert type(run._reading._pool) is not CopyPool
        for batch in run:
            assert_rows(batch, numbers(50))


def test_without_the_compiled_reader_other_threads_read(tmp_path, monkeypatch):
    monkeypatch.setattr(maps, "supported", lambda: False)
    source, array = several_files(tmp_path)
    with loader(source) as load:
        run = iter(load)
        assert type(run._reading._pool) is not CopyPool
        for batch in run:
            assert_rows(batch, array)


# The same batches, however they are made.


@pytest.mark.parametrize("batch_size", [1, 7, 64])
@pytest.mark.parametrize("num_threads", [1, 2, 4])
@pytest.mark.parametrize("prefetch", [1, 2, 9])
def test_batches_do_not_depend_on_threads_and_prefetch(tmp_path, batch_size, num_threads, prefetch):
    source, array = several_files(tmp_path)
    arguments = {"batch_size": batch_size, "num_threads": num_threads, "prefetch": prefetch}
    with loader(source, **arguments) as ours, loader(gl.arrays(x=array), batch_size=batch_size) as theirs:
        for _ in range(2):
            assert_same(begun(ours), theirs)


@pytest.mark.parametrize("last_batch", ["partial", "pad", "drop"])
@pytest.mark.parametrize("batch_size", [1, 7, 64, 300])
@pytest.mark.parametrize(("shard_id", "num_shards"), [(0, 1), (0, 3), (2, 3)])
def test_the_last_batches_are_what_they_are_elsewhere(tmp_path, last_batch, batch_size, shard_id, num_shards):
    source, array = several_files(tmp_path)
    arguments = {
        "batch_size": batch_size, "last_batch": last_batch, "shard_id": shard_id, "num_shards": num_shards,
    }  # fmt: skip
    with loader(source, **arguments) as ours, loader(gl.arrays(x=array), **arguments) as theirs:
        assert_same(begun(ours), theirs)


def test_records_that_are_found_out_in_several_goes_follow_one_another(tmp_path):
    array = numbers(20_000, (1,))
    source = files(tmp_path, array, [20_000])
    with loader(source, batch_size=96) as ours, loader(gl.arrays(x=array), batch_size=96) as theirs:
        assert_same(begun(ours), theirs)


@pytest.mark.parametrize("stop", [0, 1, 5, 28, 29])
@pytest.mark.parametrize("batch_size", [7, 13])
def test_a_resumed_run_goes_on_with_the_records_that_are_left(tmp_path, stop, batch_size):
    source, array = several_files(tmp_path)
    whole = loader(gl.arrays(x=array))
    expected = np.concatenate([batch.records for _ in range(2) for batch in whole])
    with loader(source) as load, loader(source, batch_size=batch_size) as resumed:
        run = begun(load)
        for _ in range(stop):
            next(run)

        resumed.load_state_dict(json.loads(json.dumps(load.state_dict())))
        rest = [batch for _ in range(1 + (stop < 29)) for batch in begun(resumed)]  # a state at the end is the next's

    np.testing.assert_array_equal(np.concatenate([batch.records for batch in rest]), expected[min(7 * stop, 200) :])
    for batch in rest:
        assert_rows(batch, array)


def test_batch_at_is_the_batch_of_that_step(tmp_path):
    source, _ = several_files(tmp_path)
    with loader(source) as load:
        batches = list(begun(load))
        assert_same([load.batch_at(step) for step in range(len(load))], batches)


def test_two_iterators_of_a_loader_and_another_loader_run_side_by_side(tmp_path):
    source, array = several_files(tmp_path)
    reference = loader(gl.arrays(x=array))
    epochs = [list(reference) for _ in range(2)]
    with loader(source) as load, loader(source, num_threads=4, prefetch=9) as other:
        together = list(zip(begun(load), begun(load), begun(other), strict=True))

    first, second, third = zip(*together, strict=True)
    assert_same(first, epochs[0])
    assert_same(second, epochs[1])
    assert_same(third, epochs[0])


def test_loaders_in_several_threads_do_not_disturb_each_other(tmp_path):
    source, array = several_files(tmp_path)
    wrong = []

    def read(seed):
        try:
            with loader(source, seed=seed) as load:
                for _ in range(5):
                    for batch in load:
                        assert_rows(batch, array)
        except BaseException as error:
            wrong.append(error)

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60)
    assert not any(reader.is_alive() for reader in readers)
    assert wrong == []


# Batches that are kept.


@pytest.mark.parametrize("prefetch", [1, None])
def test_batches_that_are_kept_stay_what_they_were(tmp_path, prefetch):
    source, array = several_files(tmp_path)
    with loader(source, batch_size=2, prefetch=prefetch) as load:
        kept = list(begun(load))
        for _ in load:
            pass
        for batch in kept:
            assert_rows(batch, array)
        assert len({batch["x"].ctypes.data for batch in kept}) == len(load)
        assert 0 < load.stats()["batches_copied"] < 2 * len(load)


def test_a_slice_of_a_batch_stays_what_it_was(tmp_path):
    source, array = several_files(tmp_path)
    with loader(source) as load:
        kept = [(batch["x"][1:, ::2], batch.records[1:]) for _ in range(2) for batch in begun(load)]
    for rows, records in kept:
        np.testing.assert_array_equal(rows, array[records][:, ::2])


def test_a_loop_that_drops_its_batches_makes_no_more_slots(tmp_path):
    source, _ = several_files(tmp_path)
    with loader(source) as load:
        made = load.stats()["slots_made"]
        for _ in range(3):
            for batch in begun(load):
                assert batch["x"].ctypes.data % 256 == 0
        assert load.stats()["slots_made"] == made
        assert load.stats()["batches_copied"] == 0
        assert load.stats()["read_s"] > 0


# Errors.


def cut(path):
    os.truncate(path, os.path.getsize(path) // 2)


def replace(path):
    other = path.with_suffix(".new")
    other.write_bytes(path.read_bytes())
    other.replace(path)


def touch(path):
    os.utime(path, (1, 1))


CHANGES = [cut, replace, touch, os.remove]


def six_files(folder, count):
    """A file for each step; eight records in a file are worth a map."""
    array = numbers(6 * count, (2048,))
    source = files(folder, array, [count] * 6)
    return loader(source, batch_size=count, shuffle=False, prefetch=1), array


def assert_only_step_3_failed(run, array, steps):
    batches, errors = outcomes(run)
    assert [batch.step for batch in batches] == steps
    for batch in batches:
        assert_rows(batch, array)
    (error,) = errors.values()
    assert type(error) is ChangedFileError
    assert "0003.npy" in str(error)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("count", [5, 20])
def test_a_file_that_changed_before_the_epoch_is_an_error_at_its_step_alone(tmp_path, change, count):
    load, array = six_files(tmp_path, count)
    change(tmp_path / "0003.npy")

    for _ in range(2):
        assert_only_step_3_failed(begun(load), array, [0, 1, 2, 4, 5])
    load.close()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("count", [5, 20])
@pytest.mark.parametrize("read_before", [False, True])
def test_a_file_that_changes_in_mid_epoch_is_an_error_at_its_step_alone(tmp_path, change, count, read_before):
    load, array = six_files(tmp_path, count)
    if read_before:
        for batch in begun(load):
            assert_rows(batch, array)
    run = begun(load)
    next(run)
    change(tmp_path / "0003.npy")

    assert_only_step_3_failed(run, array, [1, 2, 4, 5])
    load.close()


def test_a_step_of_many_tasks_and_files_fails_if_one_file_changed(tmp_path):
    array = numbers(400)
    source = files(tmp_path, array, [50] * 8)
    with loader(source, batch_size=100, num_threads=4, prefetch=1) as load:
        assert load._stage.num_parts > 1
        run = begun(load)
        assert_rows(next(run), array)
        touch(tmp_path / "0006.npy")
        batches, errors = outcomes(run)

    assert len(batches) + len(errors) == 3
    assert len(errors) >= 2  # the step that was begun may have been copied before
    assert all(type(error) is ChangedFileError and "0006.npy" in str(error) for error in errors.values())
    for batch in batches:
        assert_rows(batch, array)


def test_the_state_after_an_error_is_that_of_the_last_batch(tmp_path):
    load, _ = six_files(tmp_path, 20)
    os.remove(tmp_path / "0003.npy")
    run = begun(load)
    for _ in range(3):
        next(run)
    with pytest.raises(ChangedFileError):
        next(run)

    assert load.state_dict()["step"] == 3
    load.close()


def test_closing_the_source_in_mid_epoch_is_an_error_at_each_step_that_was_not_begun(tmp_path):
    source, array = several_files(tmp_path)
    load = loader(source, batch_size=50, prefetch=2)
    for _ in begun(load):
        pass
    run = begun(load)
    first = next(run)

    source.close()
    batches, errors = outcomes(run)

    for batch in (first, *batches):
        assert_rows(batch, array)
    assert [batch.step for batch in batches] == [1, 2]
    assert [type(error) for error in errors.values()] == [ClosedError]
    load.close()


def test_a_fault_handler_that_is_enabled_in_mid_epoch_changes_no_batch(tmp_path):
    _, array = several_files(tmp_path)
    program = """
        import faulthandler, sys
        import numpy as np
        import gpuload as gl
        array = np.load(sys.argv[2])
        load = gl.Loader(gl.npy(f"{sys.argv[1]}/0*.npy"), batch_size=7, device="cpu", shuffle=True)
        for epoch in range(2):
            for batch in load:
                assert np.array_equal(batch["x"], array[batch.records])
                faulthandler.disable()
                faulthandler.enable()
        print("all right")
    """
    np.save(tmp_path / "whole.npy", array)

    assert outcome_of(program, tmp_path, tmp_path / "whole.npy") == (0, "all right\n", "")


def test_a_file_that_is_cut_while_threads_copy_it_is_an_error_and_no_wrong_batch(tmp_path):
    program = """
        import sys
        import numpy as np
        import gpuload as gl
        path = f"{sys.argv[1]}/a.npy"
        np.save(path, np.ones((5000, 512), np.float32))
        load = gl.Loader(gl.npy(path), batch_size=64, device="cpu", shuffle=True, num_threads=4)
        for step, _ in zip(range(3), load): pass
        failed = wrong = 0
        with open(path, "r+b") as file:
            for number, length in enumerate((8_000_000, 5_000, 0)):
                run = iter(load)
                file.truncate(length)
                while True:
                    try:
                        wrong += not (next(run)["x"] == 1).all()
                    except StopIteration:
                        break
                    except gl.errors.ChangedFileError as error:
                        failed += "a.npy" in str(error)
        print(wrong, failed > 150)
    """

    assert outcome_of(program, tmp_path) == (0, "0 True\n", "")


# Storage that is slow.


def slow(load, copies=10**6):
    """Say that many more copies are to expect that storage must be waited for."""
    load.source._reader._table[-1, copy.COLD] = copies


@pytest.mark.parametrize("num_threads", [None, 3])
def test_where_storage_is_slow_more_threads_copy_smaller_tasks(tmp_path, num_threads):
    source, array = several_files(tmp_path)
    before = len(threads())
    with loader(source, batch_size=20, num_threads=num_threads) as load:
        most = num_threads or max(16, load.num_threads)
        run = begun(load)
        pool = run._reading._pool
        assert len(threads()) - before == max(1, load.num_threads - 1)
        assert_rows(next(run), array)
        slow(load)
        tasks_before = pool._board[pool._kernels.STOP, pool._kernels.NUM_POSTED]
        assert_rows(next(run), array)
        assert len(threads()) - before == most
        assert pool._board[pool._kernels.STOP, pool._kernels.NUM_POSTED] - tasks_before == most
        for batch in run:
            assert_rows(batch, array)
        for batch in begun(load):
            assert_rows(batch, array)
    assert len(threads()) == before


@pytest.mark.parametrize("batch_size", [1, 7, 64])
@pytest.mark.parametrize("prefetch", [1, 2, 9])
def test_batches_do_not_depend_on_how_fast_storage_is(tmp_path, batch_size, prefetch):
    source, array = several_files(tmp_path)
    arguments = {"batch_size": batch_size, "prefetch": prefetch}
    with loader(source, **arguments) as ours, loader(gl.arrays(x=array), batch_size=batch_size) as theirs:
        run = begun(ours)
        for step, (one, other) in enumerate(zip(run, theirs, strict=True)):
            assert_same([one], [other])
            slow(ours, copies=0 if step % 4 else 10**6)  # it may change at any time


@pytest.mark.parametrize("made", [several_files, long_records, fixed_records], ids=lambda made: made.__name__)
def test_files_that_do_not_fit_into_memory_give_the_same_batches(tmp_path, monkeypatch, made):
    monkeypatch.setattr(maps, "cache_bytes", lambda: 0)
    source, array = made(tmp_path)
    table = source._reader._table
    assert (table[-1, copy.FIT], table[-1, copy.COLD]) == (0, copy.COLD_FIRST)
    with loader(source, batch_size=5) as load:
        for _ in range(3):
            for batch in begun(load):
                assert_rows(batch, array)
    assert table[-1, copy.COLD] != copy.COLD_FIRST  # copies were counted


def test_files_that_fit_into_memory_are_not_asked_for_page_by_page(tmp_path, monkeypatch):
    monkeypatch.setattr(maps, "cache_bytes", lambda: 10**9)
    source, _ = several_files(tmp_path)
    table = source._reader._table
    assert (table[-1, copy.FIT], table[-1, copy.COLD]) == (1, 0)


def test_the_first_pass_maps_all_files_and_gets_no_record_wrong(tmp_path):
    array = numbers(150 * 8 + 5)
    source = files(tmp_path, array, [8] * 150 + [5])
    source._reader._guard.install()
    addresses = source._reader._table[:-1, copy.ADDRESS]
    assert (addresses[:150] == copy.UNTRIED).all()
    with loader(source, batch_size=16, num_threads=4) as load:
        for epoch in range(3):
            for batch in begun(load):
                assert_rows(batch, array)
            assert (addresses[:150] > 0).all(), epoch
            assert addresses[150] == copy.READ
        assert load.stats()["ops_s"] == 0  # no step was done again in the caller


# Threads end.


def test_after_the_end_of_an_epoch_no_thread_is_left(tmp_path):
    before = len(threads())
    load = loader(several_files(tmp_path)[0], num_threads=4)
    run = begun(load)
    assert len(threads()) == before + 3
    for _ in run:
        pass
    assert len(threads()) == before
    assert next(run, None) is None
    load.close()


@pytest.mark.parametrize("num_threads", [1, 2, 4])
def test_closing_in_mid_epoch_leaves_no_thread(tmp_path, num_threads):
    before = len(threads())
    load = loader(several_files(tmp_path)[0], num_threads=num_threads)
    runs = [begun(load), begun(load)]
    next(runs[0])
    load.close()
    assert len(threads()) == before
    assert [list(run) for run in runs] == [[], []]


def test_dropping_an_iterator_leaves_no_thread_and_keeps_the_batch(tmp_path):
    source, array = several_files(tmp_path)
    before = len(threads())
    load = loader(source, num_threads=4)
    run = begun(load)
    batch = next(run)
    del run
    gc.collect()
    assert until(lambda: len(threads()) == before)
    del load, source
    gc.collect()
    assert_rows(batch, array)


def test_dropping_all_in_a_cycle_leaves_no_thread(tmp_path):
    before = len(threads())
    run = begun(loader(several_files(tmp_path)[0], num_threads=4))
    next(run)
    run.itself = run
    del run
    gc.collect()
    assert until(lambda: len(threads()) == before)


@pytest.mark.parametrize("end", ["", "sys.exit()", "threading.Thread(target=next, args=(run,)).start()"])
def test_an_interpreter_that_ends_in_mid_epoch_ends_at_once(tmp_path, end):
    several_files(tmp_path)
    program = f"""
        import sys, threading
        import gpuload as gl
        load = gl.Loader(gl.npy(f"{{sys.argv[1]}}/*.npy"), batch_size=7, device="cpu", num_threads=4, prefetch=9)
        run, other = iter(load), iter(load)
        next(run)
        print("taken")
        {end}
    """

    assert outcome_of(program, tmp_path) == (0, "taken\n", "")


# Files of few records are opened for each run of them: two records by turns make a step long, and its batch small.
LONG_STEPS = """
    import os, signal, sys, threading, time
    import numpy as np
    import gpuload as gl
    from gpuload.copying import CopyPool

    COUNT = 200_000
    source = gl.npy(f"{sys.argv[1]}/*.npy").select(np.tile([0, 4], COUNT))
    load = gl.Loader(source, batch_size=COUNT, device="cpu", num_threads=1, prefetch=1)
    expected = np.tile([0, 4], COUNT // 2)
    run = iter(load)
    assert type(run._reading._pool) is CopyPool
"""
INTERRUPTED = """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
    main = threading.main_thread().ident

    def interrupt():
        while sys._current_frames()[main].f_globals["__name__"] != "gpuload.copying":
            time.sleep(0.001)
        global sent
        sent = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    for number in range(2):
        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            next(run)
        except KeyboardInterrupt:
            unfinished = not run._reading._jobs[0][1].finished
            print("interrupted", unfinished, time.monotonic() - sent < 2)
        thread.join()
    for batch in run:
        print(batch.step, np.array_equal(batch["x"], expected))
"""


def long_steps(folder):
    files(folder, np.arange(8, dtype=np.uint8), [4, 4])


def test_ctrl_c_while_waiting_is_prompt_and_loses_no_step(tmp_path):
    long_steps(tmp_path)

    told = outcome_of(textwrap.dedent(LONG_STEPS) + textwrap.dedent(INTERRUPTED), tmp_path)

    assert told == (0, "interrupted True True\ninterrupted True True\n0 True\n1 True\n", "")


def test_closing_waits_for_the_copy_that_is_being_made_and_forgets_the_others(tmp_path):
    long_steps(tmp_path)
    close = """
        pool, (step, job) = run._reading._pool, run._reading._jobs[0]
        while not pool._board[pool._kernels.TAKEN, 0]:
            time.sleep(0.001)
        step.arrays["x"][-1] = 99
        began = job.finished
        load.close()
        print(began, np.array_equal(step.arrays["x"], expected), threading.active_count())
    """

    told = outcome_of(textwrap.dedent(LONG_STEPS) + textwrap.dedent(close), tmp_path)

    assert told == (0, "False True 1\n", "")


# Threads that die.


def test_threads_that_die_are_an_error_and_no_endless_wait(tmp_path, monkeypatch):
    died = []
    monkeypatch.setattr(threading, "excepthook", died.append)

    def broken(*arguments):
        raise MemoryError("no room for a thread's stack")

    monkeypatch.setattr(kernels.load("pool"), "serve", broken)
    load = loader(several_files(tmp_path)[0], batch_size=50, num_threads=3, prefetch=2)
    run = begun(load)
    assert until(lambda: len(died) == 2 and not any(thread.is_alive() for thread in run._reading._pool._threads))

    with pytest.raises(RuntimeError, match="a thread that copies has ended"):
        next(run)
    batches, errors = outcomes(run)

    assert batches == []
    assert [type(error) for error in errors.values()] == [RuntimeError] * 3
    load.close()


OFTEN_INTERRUPTED = """
    import os, random, signal, sys, threading
    import gpuload as gl

    def handle(*about):
        if waiting:
            raise KeyboardInterrupt

    def interrupt():
        while not stop.wait(random.uniform(0.002, 0.01)):
            os.kill(os.getpid(), signal.SIGINT)

    waiting, stop = False, threading.Event()
    signal.signal(signal.SIGINT, handle)
    load = gl.Loader(gl.npy(sys.argv[1] + "/rows.npy"), batch_size=64, device="cpu", shuffle=True)
    for batch in load:  # compiled code is loaded
        pass
    run, steps, interrupts = iter(load), [], 0
    thread = threading.Thread(target=interrupt)
    thread.start()
    while True:
        try:
            waiting = True
            batch = next(run)
            waiting = False
        except KeyboardInterrupt:
            waiting = False
            interrupts += 1
        except StopIteration:
            waiting = False
            break
        else:
            steps.append(batch.step)
    stop.set()
    thread.join()
    print(interrupts, len(load), *steps)
"""


def test_interrupts_at_any_moment_end_no_epoch_and_repeat_no_step(tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(800_000, dtype=np.float32).reshape(-1, 4))

    status, told, errors = outcome_of(OFTEN_INTERRUPTED, tmp_path)

    assert status == 0, errors  # Python tells there of interrupts that came in a __del__ and that it ignored
    interrupts, count, *steps = map(int, told.split())
    assert interrupts > 0
    assert steps == sorted(set(steps))
    assert count - interrupts // 4 - 2 <= len(steps) <= count  # some came between a batch and its name
    assert steps[-1] == count - 1
