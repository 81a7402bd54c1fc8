"""Queue: work that threads do without the interpreter's lock; plans and copies of the records of
steps."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gpuload import core
from gpuload.core import face
from gpuload.storage.paths import PackedPaths

pytestmark = [
    pytest.mark.skipif(core.native is None, reason=f"no core: {core.problem}"),
    pytest.mark.skipif(sys.platform != "linux", reason="files are mapped on Linux alone"),
]
RECORD_BYTES, NUM_RECORDS = 320, 400


def native() -> face.Native:
    assert core.native is not None
    return core.native


def ints(*numbers: int) -> NDArray[np.int64]:
    return np.array(numbers, np.int64)


def records(seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (NUM_RECORDS, RECORD_BYTES), np.uint8)


def maps_of(*paths: Path) -> face.Maps:
    status = [path.stat() for path in paths]
    stamps = np.array(
        [(entry.st_size, entry.st_mtime_ns, entry.st_ino) for entry in status], np.int64
    )
    return native().Maps(PackedPaths.of([str(path) for path in paths]).arrays, stamps, 0, 0)


@pytest.fixture
def files(tmp_path: Path) -> tuple[face.Maps, NDArray[np.uint8]]:
    """Two files of 400 records in all, the second behind a head of 7 bytes."""
    all_records, first, second = records(), tmp_path / "a.bin", tmp_path / "b.bin"
    first.write_bytes(all_records[:150].tobytes())
    second.write_bytes(b"header!" + all_records[150:].tobytes())
    return maps_of(first, second), all_records


def whole(block: int = 0) -> list[face.PlanPart]:
    """Return the only part of a record that is copied as a whole."""
    return [(0, RECORD_BYTES, block, None)]


def plan_of(
    maps: face.Maps,
    numbers: NDArray[np.int64],
    ends: NDArray[np.int64],
    rows: NDArray[np.int64] | None = None,
) -> face.CopyPlan:
    plan = native().CopyPlan(ends)
    starts = ints(0, 150, NUM_RECORDS)
    all_records = native().FileRecords(maps, starts, ints(0, 1), ints(0, 7), RECORD_BYTES)
    plan.add(all_records, numbers, rows, whole())
    return plan


def records_of_first(maps: face.Maps) -> face.FileRecords:
    """Return the records of the first file alone."""
    return native().FileRecords(maps, ints(0, 150), ints(0), ints(0), RECORD_BYTES)


def served(queue: face.Queue, num_threads: int = 2) -> list[threading.Thread]:
    """Return threads that serve a queue until it ends."""

    def serve() -> None:
        while queue.serve() >= 0:
            pass

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    return threads


def wait(copies: face.Copies, step: int) -> int:
    state = face.NOT_DONE
    until = time.monotonic() + 60
    while state == face.NOT_DONE and time.monotonic() < until:
        state = copies.wait(step)
    return state


@pytest.mark.timeout(60)
@pytest.mark.parametrize("num_threads", [0, 1, 3])
@pytest.mark.parametrize("piece_rows", [1, 7, 1000])
def test_every_row_is_the_record_that_the_plan_says(files: Any, num_threads: int, piece_rows: int):
    maps, expected = files
    numbers = np.random.default_rng(1).integers(0, NUM_RECORDS, 90)
    queue = native().Queue()
    threads = served(queue, num_threads)
    plan = plan_of(maps, numbers, ints(32, 64, 64, 90))
    for first, count, rows in (
        (0, 2, slice(0, 64)),
        (1, 3, slice(32, 90)),
        (3, 1, slice(64, 90)),
        (2, 1, slice(64, 64)),
    ):
        out = np.zeros((rows.stop - rows.start) * RECORD_BYTES, np.uint8)
        copies = native().Copies(queue, plan, first, count, piece_rows, [out])
        assert [wait(copies, step) for step in range(count)] == [
            face.DONE
        ] * count  # who waits copies, too
        assert copies.num_done == count
        np.testing.assert_array_equal(out.reshape(-1, RECORD_BYTES), expected[numbers[rows]])
    queue.end()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_records_of_several_sources_go_to_their_rows(files: Any):
    maps, expected = files
    evens, odds = np.arange(0, 60, 2), np.arange(1, 60, 2)
    plan = plan_of(maps, evens + 100, ints(30, 60), evens)
    plan.add(records_of_first(maps), odds, odds, whole())
    out = np.zeros((30, RECORD_BYTES), np.uint8)
    assert wait(native().Copies(native().Queue(), plan, 1, 1, 4, [out.reshape(-1)]), 0) == face.DONE
    rows = np.arange(30, 60)
    np.testing.assert_array_equal(out, expected[np.where(rows % 2, rows, rows + 100)])


def test_several_blocks(files: Any):
    maps, expected = files
    plan = plan_of(maps, np.arange(20), ints(20))
    plan.add(records_of_first(maps), np.arange(20) + 50, None, whole(block=1))
    blocks = [np.zeros(20 * RECORD_BYTES, np.uint8) for _ in range(2)]
    assert wait(native().Copies(native().Queue(), plan, 0, 1, 6, blocks), 0) == face.DONE
    for block, first in zip(blocks, (0, 50), strict=True):
        np.testing.assert_array_equal(block.reshape(-1, RECORD_BYTES), expected[first : first + 20])


def test_a_step_with_a_file_that_changed_is_to_be_done_again_and_no_other(tmp_path: Path):
    paths = [tmp_path / f"{number}.bin" for number in range(2)]
    for path in paths:
        path.write_bytes(records().tobytes())
    maps = maps_of(*paths)
    paths[1].write_bytes(b"shorter")
    plan = native().CopyPlan(ints(10, 20))
    starts = ints(0, NUM_RECORDS, 2 * NUM_RECORDS)
    numbers = np.r_[np.arange(10), NUM_RECORDS + np.arange(10)].astype(np.int64)
    from_both = native().FileRecords(maps, starts, ints(0, 1), ints(0, 0), RECORD_BYTES)
    plan.add(from_both, numbers, None, whole())
    copies = native().Copies(
        native().Queue(), plan, 0, 2, 5, [np.zeros(20 * RECORD_BYTES, np.uint8)]
    )
    assert [wait(copies, step) for step in range(2)] == [face.DONE, face.REDO]
    assert copies.num_done == 1  # who sees that all are done looks at none of them


def test_a_plan_stays_as_it_is_whatever_becomes_of_its_arrays(files: Any):
    """A batch shows its records, and who takes it may write to them while threads copy the next
    one."""
    maps, expected = files
    numbers, rows, ends = np.arange(40), np.arange(40), ints(20, 40)
    plan = plan_of(maps, numbers, ends, rows)
    for array in (numbers, rows, ends):
        array[:] = -(2**60)
    out = np.zeros((40, RECORD_BYTES), np.uint8)
    copies = native().Copies(native().Queue(), plan, 0, 2, 2**63 - 1, [out.reshape(-1)])
    assert [wait(copies, step) for step in range(2)] == [face.DONE] * 2
    np.testing.assert_array_equal(out, expected[:40])


def test_wrong_plans_and_copies_are_refused(files: Any):
    maps, _ = files
    plan = native().CopyPlan(ints(10))
    files_of_two = (maps, ints(0, 150, NUM_RECORDS), ints(0, 1), ints(0, 7), RECORD_BYTES)
    right = (native().FileRecords(*files_of_two), np.arange(10), None, whole())
    nine, ten = (native().edit_maker((4, 20, 4), np.zeros((count, 2))) for count in (9, 10))
    wrong_files = {
        0: [None, plan, records()],
        1: [ints(0, 150), ints(1, 150, 400), ints(0, 500, 400), ints(0, 150, 400).astype(np.int32)],
        2: [ints(0), ints(0, 1, 2)],
        3: [ints(0), ints(0, -1), ints(0, 2**63 - 1000)],
        4: [-1, 2**62],
    }
    wrong = {
        0: [maps, None],
        1: [np.arange(11), ints(-1), ints(NUM_RECORDS), np.arange(10)[::2]],
        2: [ints(0), np.arange(10)[::-1].copy(), np.arange(10) + 1, np.arange(10) - 1],
        3: [
            [],
            whole(-1),
            [(-1, 9, 0, None)],
            [(0, RECORD_BYTES + 1, 0, None)],
            [(1, RECORD_BYTES, 0, None)],
            [(2**62, 2**62, 0, None)],
            [(0, -1, 0, None)],
            [(0, RECORD_BYTES, 0, nine)],
            [(0, 319, 0, ten)],
            [(0, RECORD_BYTES, 0)],
            [(0, RECORD_BYTES, 0, maps)],
            7,
            None,
        ],
    }
    wrong[3] += [[(0, 0, 0, None), (0, 1, 2**63, None)]]
    for call, fitting, others in (
        (native().FileRecords, files_of_two, wrong_files),
        (plan.add, right, wrong),
    ):
        for place, values in others.items():
            for value in values:
                arguments = list(fitting)
                arguments[place] = value
                with pytest.raises((ValueError, IndexError, TypeError)):
                    call(*arguments)
    for ends in (ints(5, 3), ints(-1, 3)):
        with pytest.raises(ValueError, match="ascend"):
            native().CopyPlan(ends)
    plan.add(*right)
    room, queue = np.zeros(10 * RECORD_BYTES, np.uint8), native().Queue()
    for arguments in [
        (queue, plan, 0, 1, 4, [room[:-1]]), (queue, plan, 0, 1, 4, []), (queue, plan, 0, 2, 4, [room]),
        (queue, plan, 1, 1, 4, [room]), (queue, plan, -1, 1, 4, [room]), (queue, plan, 0, 0, 4, [room]),
        (queue, plan, 0, 1, 0, [room]), (queue, plan, 0, 1, 4, [room.view(np.int8)]),
        (queue, plan, 0, 1, 4, [bytes(3200)]),
        (plan, queue, 0, 1, 4, [room]),
    ]:  # fmt: skip
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            native().Copies(*arguments)
    copies = native().Copies(queue, plan, 0, 1, 4, [room])
    for step in (-1, 1):
        with pytest.raises(IndexError):
            copies.state(step)
    with pytest.raises(ValueError, match="used already"):
        plan.add(*right)  # there are copies


def test_calls_bring_threads_back_with_the_largest_number():
    queue, answers = native().Queue(), list[int]()
    thread = threading.Thread(
        target=lambda: answers.extend(queue.serve() for _ in range(3)), daemon=True
    )
    queue.call(7, 1)
    queue.call(5, 2)
    thread.start()
    queue.end()
    thread.join(60)
    assert not thread.is_alive()
    assert answers[-1] == -1
    assert answers[0] in (7, -1)


@pytest.mark.timeout(60)
def test_while_a_thread_is_called_a_waiting_one_copies_all_and_otherwise_its_step_alone(files: Any):
    maps, _ = files
    numbers, out = np.arange(90), np.zeros(90 * RECORD_BYTES, np.uint8)

    def copies_of(queue: face.Queue) -> face.Copies:
        return native().Copies(queue, plan_of(maps, numbers, ints(30, 60, 90)), 0, 3, 7, [out])

    queue = native().Queue()
    copies = copies_of(queue)
    assert wait(copies, 0) == face.DONE
    assert copies.num_done == 1
    assert wait(copies, 2) == face.DONE

    queue.call(5, 1)
    assert queue.serve() == 5  # this thread is called now
    copies = copies_of(queue)
    assert wait(copies, 0) == face.DONE
    assert copies.num_done == 3

    queue.call(6, 1)
    assert queue.serve() == 6
    queue.end()
    assert queue.serve() == -1  # it is no more
    copies = copies_of(queue)
    assert wait(copies, 0) == face.DONE
    assert copies.num_done == 1


def test_a_thread_that_leaves_is_called_no_more(files: Any):
    maps, _ = files
    queue, out = native().Queue(), np.zeros(90 * RECORD_BYTES, np.uint8)
    queue.call(5, 1)
    assert queue.serve() == 5  # this thread is called now
    queue.leave()
    queue.leave()  # there is none that could leave

    copies = native().Copies(queue, plan_of(maps, np.arange(90), ints(30, 60, 90)), 0, 3, 7, [out])
    assert wait(copies, 0) == face.DONE
    assert copies.num_done == 1  # the steps behind it are left to the threads that serve


def test_copies_that_are_dropped_leave_nothing_to_do_and_their_memory_alone(files: Any):
    maps, _ = files
    queue = native().Queue()
    plan = plan_of(maps, np.arange(NUM_RECORDS), ints(NUM_RECORDS))
    threads = served(queue)
    for _ in range(300):
        out = np.zeros(NUM_RECORDS * RECORD_BYTES, np.uint8)
        copies = native().Copies(queue, plan, 0, 1, 3, [out])
        del copies
        before = out.copy()
        time.sleep(0)
        np.testing.assert_array_equal(out, before)  # nobody writes there any more
    queue.end()
    for thread in threads:
        thread.join(60)


def test_copies_hold_what_they_use(files: Any):
    """Maps, numbers and memory may be dropped: who owns the copies owns them all."""
    maps, expected = files
    numbers = np.random.default_rng(2).permutation(NUM_RECORDS)
    queue = native().Queue()
    plan = plan_of(maps, numbers, ints(NUM_RECORDS))
    out = np.zeros(NUM_RECORDS * RECORD_BYTES, np.uint8)
    copies = native().Copies(queue, plan, 0, 1, 16, [out])
    wanted = expected[numbers]
    del maps, plan, numbers, queue, expected, files
    noise = [np.full(NUM_RECORDS, 1 << 40, np.int64) for _ in range(50)]
    assert wait(copies, 0) == face.DONE
    np.testing.assert_array_equal(out.reshape(-1, RECORD_BYTES), wanted)
    del noise


@pytest.mark.timeout(60)
def test_a_child_of_a_fork_waits_for_no_thread(files: Any):
    """Threads are in the parent alone, and what they were just doing is never finished in the
    child."""
    maps, _ = files
    queue = native().Queue()
    threads = served(queue)
    plan = plan_of(maps, np.arange(NUM_RECORDS), ints(NUM_RECORDS))
    for _ in range(20):
        copies = native().Copies(
            queue, plan, 0, 1, 2, [np.zeros(NUM_RECORDS * RECORD_BYTES, np.uint8)]
        )
        child = os.fork()
        if not child:
            queue.end()
            del copies, queue
            os._exit(0)
        until = time.monotonic() + 60
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < until:
            time.sleep(0.005)
        if ended == (0, 0):
            os.kill(child, 9)
            os.waitpid(child, 0)
        assert ended != (0, 0), "the child hangs"
        assert ended[1] == 0
    queue.end()
    for thread in threads:
        thread.join(60)
