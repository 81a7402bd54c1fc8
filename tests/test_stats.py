"""Counters count, from any thread, and say what they mean."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import fields

import numpy as np
import pytest

import gpuload as gl
from gpuload import core
from gpuload.pipeline import epoch
from gpuload.stats import MEANING, STAGES, Counters, Limits, Stats, Watch, stages, watch
from gpuload.stats.counters import MOST_TALLIES


def test_counts_from_many_threads_add_up():
    counters = Counters()
    threads = [
        threading.Thread(target=lambda: [counters.add(batches=1, wait_s=0.5) for _ in range(1000)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.stats()["batches"] == 4000
    assert counters.stats()["wait_s"] == 2000


def test_what_threads_counted_that_have_ended_stays_and_their_tallies_do_not():
    counters = Counters()
    for _ in range(3 * MOST_TALLIES):
        thread = threading.Thread(target=lambda: counters.add(batches=1))
        thread.start()
        thread.join()

    assert counters.stats()["batches"] == 3 * MOST_TALLIES
    assert len(counters._tallies) <= MOST_TALLIES


def test_the_watch_of_a_thread_counts_at_once():
    counters = Counters()
    with counters.watch() as watch:
        watch.count("read.bytes", 3.0)
        assert counters.stats()["read.bytes"] == 3.0
    with counters.watch() as watch:
        watch.count("read.bytes", 4.0)
    assert counters.stats()["read.bytes"] == 7.0


def test_reading_and_ops_are_the_sums_of_their_stages():
    counters = Counters()
    counters.add(**{f"{name}.seconds": 10.0**place for place, name in enumerate(STAGES)})

    stats = counters.stats()
    assert list(STAGES) == [
        "draw",
        "read",
        "decode_raw",
        "decode_images",
        "ops",
        "python_ops",
        "upload",
    ]
    assert (stats["read_s"], stats["ops_s"]) == (110, 111_000)
    assert (stats - counters.stats())["read_s"] == 0


def test_every_counter_is_shown_with_its_meaning():
    text = str(Counters().stats())
    words = " ".join(text.split())
    assert all(name in words and meaning in words for name, meaning in MEANING.items())
    assert max(map(len, text.splitlines())) <= 80


def test_the_tables_of_stages_and_loop_fit_into_80_columns():
    counts = {f"{name}.seconds": 12345.678 for name in STAGES}
    counts |= {f"{name}.bytes": 1e12 for name in STAGES}
    stats = Stats(
        {**counts, "loop_s": 99999.9, "wait_s": 9999.9, "hand_over_s": 99.9, "batches": 1000}
    )

    limits = Limits(**{field.name: 1.23456e11 for field in fields(Limits)})
    for lines in (str(stats).splitlines(), stats.table(limits).splitlines()):
        assert all(
            any(line.startswith(name.replace("_", " ")) for line in lines) for name in STAGES
        )
        assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("columns", "titles"),
    [
        (80, "stage seconds share waits queue MB/s limit of it the machine"),
        (74, "stage seconds share waits MB/s limit of it the machine"),
        (70, "stage seconds share MB/s limit of it the machine"),
        (60, "stage share MB/s limit of it the machine"),
        (45, "stage share MB/s limit of it"),
    ],
)
def test_in_a_narrow_terminal_the_less_important_columns_are_left_out(columns, titles):
    counts = {f"{name}.seconds": 12.5 for name in STAGES} | {
        f"{name}.bytes": 1e12 for name in STAGES
    }
    limits = Limits(
        copy_bytes=1e9,
        random_bytes=100e6,
        sequential_bytes=400e6,
        decode_images=25,
        pinned_bytes=16e9,
    )

    lines = (
        Stats({**counts, "decode_images.images": 600, "loop_s": 99.9, "wait_s": 9.9})
        .table(limits, columns)
        .splitlines()
    )

    assert " ".join(lines[0].split()) == titles
    assert max(map(len, lines)) <= columns
    for name in STAGES:
        (line,) = [line for line in lines if line.startswith(name.replace("_", " "))]
        assert "%" in line


def test_each_stage_stands_beside_the_limits_of_the_machine():
    counts = {
        "read.seconds": 8.0,
        "read.bytes": 4e9,
        "loop_s": 20.0,
        "batches": 100,
        "draw.seconds": 1.0,
    }
    counts |= {
        "decode_images.seconds": 30.0,
        "decode_images.images": 600,
        "decode_images.bytes": 3e9,
    }
    counts |= {"upload.seconds": 0.5, "upload.bytes": 8e9, "gpu_upload_s": 2.0}
    limits = Limits(
        copy_bytes=1e9,
        random_bytes=100e6,
        sequential_bytes=400e6,
        decode_images=25,
        pinned_bytes=16e9,
    )

    beside = Stats(counts).stage_limits(limits)

    assert {
        name: [(limit.name, limit.rate, limit.share) for limit in these]
        for name, these in beside.items()
    } == {
        "draw": [],
        "read": [
            ("copy_bytes", 5e8, 0.5),
            ("random_bytes", 2e8, 2.0),
            ("sequential_bytes", 2e8, 0.5),
        ],
        "decode_images": [("decode_images", 20, 0.8)],
        "upload": [("pinned_bytes", 4e9, 0.25)],
    }
    assert Stats(counts).stage_limits(Limits())["read"] == ()
    assert [" ".join(line.split()) for line in Stats(counts).table(limits).splitlines()[2:6]] == [
        "read 8.000 20% 0% 0% 500 1,000 50% memory copy",
        "200 100 200% random reads",
        "200 400 50% reads in order",
        "decode images 30.000 76% 0% 0% 20 25 80% images/s, alone",
    ]


def test_the_queue_behind_a_stage_is_that_of_the_loop_or_of_the_thread_of_the_batches():
    counts = {f"{name}.seconds": 1.0 for name in ("read", "upload", "ops")} | {
        "steps_ahead": 10,
        "steps_ready": 1,
    }

    assert {stage.name: stage.fill for stage in Stats(counts).stages} == {
        "read": 0.1,
        "upload": 0.1,
        "ops": 0.1,
    }

    counts |= {"workers.steps_ahead": 20, "workers.steps_ready": 18}
    assert {stage.name: stage.fill for stage in Stats(counts).stages} == {
        "read": 0.9,
        "upload": 0.1,
        "ops": 0.1,
    }


def test_the_difference_of_two_stats_is_that_of_the_time_between():
    counters = Counters()
    counters.add(**{"read.seconds": 1.0, "read.bytes": 100, "steps_ahead": 4, "steps_ready": 4})
    before = counters.stats()
    counters.add(
        **{
            "read.seconds": 2.0,
            "ops.seconds": 6.0,
            "steps_ahead": 4,
            "steps_ready": 1,
            "loop_s": 8,
            "wait_s": 2,
        }
    )
    spent = counters.stats() - before

    assert [(stage.name, stage.seconds, stage.share) for stage in spent.stages] == [
        ("read", 2, 0.25),
        ("ops", 6, 0.75),
    ]
    assert (spent.waiting, spent.training_s, spent["fill"]) == (0.25, 6, 0.25)


def test_all_of_it_is_json():
    counters = Counters()
    counters.add(**{"read.seconds": 1.0, "loop_s": 2.0, "wait_s": 1.0})
    document = json.loads(json.dumps(counters.stats().as_dict()))
    assert document["stages"][0]["name"] == "read"
    assert document["loop"] == {
        "seconds": 2, "waiting": 0.5, "training_s": 1, "wait_s": 1, "hand_over_s": 0, "idle_s": 0, "fill": 0,
        "bytes": 0, "bytes_per_s": 0,
    }  # fmt: skip
    assert document["bottleneck"]["cause"] == "too little was measured"


def test_a_nested_watch_gives_the_thread_back_to_the_outer():
    with Watch() as outer:
        outer.enter("read")
        with Watch() as inner:
            watch().enter("ops")
        assert watch() is outer
    assert (set(outer.amounts) & {"ops.seconds"}, "ops.seconds" in inner.amounts) == (set(), True)


def test_the_share_of_a_stage_leaves_out_the_time_without_a_core():
    counts = {"ops.seconds": 9.0, "ops.sampled": 3.0, "ops.starved": 2.0, "read.seconds": 1.0}
    of_name = {stage.name: stage for stage in stages.stages_of(counts)}

    assert (of_name["ops"].seconds, of_name["read"].seconds) == (9.0, 1.0)
    assert (of_name["ops"].share, of_name["read"].share) == pytest.approx((0.75, 0.25))
    (all_starved,) = stages.stages_of({"ops.seconds": 9.0, "ops.sampled": 2.0, "ops.starved": 2.0})
    assert all_starved.share == 0.0


def test_seconds_and_shares_are_shown_with_three_decimals_and_counts_without():
    stats = Stats({"batches": 12, "wait_s": 1.25, "fill": 0.5})

    numbers = [line.split()[1] for line in str(stats).splitlines() if not line.startswith(" ")]
    assert numbers == ["12", "1.250", "0.500"]


def test_stats_are_those_of_the_moment():
    counters = Counters()
    before = counters.stats()
    counters.add(batches=1)
    assert before["batches"] == 0


def test_batches_that_are_handed_out_are_counted_when_somebody_looks():
    counters = Counters()
    for number in range(3):
        counters.deliver((number, 100))
        assert (counters.stats()["batches"], counters.stats()["bytes"]) == (
            number + 1,
            100 * (number + 1),
        )
    assert counters.stats()["records"] == 3


@pytest.mark.parametrize(
    ("before", "after", "gap"),
    [
        ((0, 0, 0), (100, 0, 0), (0, 0, 0)),  # it ran all the time
        ((5, 7, 2), (35, 7, 3), (70, 0, 0)),  # it waited, and got a core at once
        ((5, 7, 2), (35, 67, 3), (10, 60, 0)),  # it waited, for a core longest
        ((0, 0, 2), (30, 0, 2), (0, 70, 0)),  # it never gave its core away: a hypervisor did
        ((0, 0, 0), (30, 90, 1), (0, 70, 0)),  # clocks that differ a little
        ((0, -1, 0), (30, -1, 4), (0, 0, 70)),  # no schedstat: gVisor, old kernels
        ((0, -1, 4), (30, -1, 4), (0, 70, 0)),
        ((0, -1, -1), (30, -1, -1), (0, 0, 70)),  # macOS, Windows
        ((0, -1, -1), (130, -1, -1), (0, 0, 0)),
        ((-1, -1, -1), (-1, -1, -1), (0, 0, 0)),
    ],
)
def test_the_time_in_which_a_thread_did_not_run_is_divided_as_the_system_tells(before, after, gap):
    assert stages.divide_gap(100, before, after) == gap
    if core.native is not None:
        assert core.native.divide_gap(100, before, after) == gap


@pytest.mark.parametrize("text", [b"", b"0 0 0\n", b"no numbers here\n", b"1 2\n", None])
def test_where_the_kernel_does_not_count_queues_that_time_is_unknown(text, tmp_path, monkeypatch):
    if text is not None:
        (tmp_path / "schedstat").write_bytes(text)
    monkeypatch.setattr(stages, "SCHEDSTAT", str(tmp_path / "schedstat"))
    monkeypatch.setattr(stages, "native", None)
    _, queue_ns, _ = stages.usage()
    assert queue_ns == -1


def test_a_thread_that_sleeps_waits_and_has_the_numbers_of_its_own():
    """With the core and without it; each thread asks for itself."""
    usages = (
        [stages.usage()] if core.native is None else [stages.usage(), core.native.thread_usage()]
    )
    usages_there = []
    thread = threading.Thread(
        target=lambda: [threading.Event().wait(0.001), usages_there.append(stages.usage())]
    )
    thread.start()
    thread.join()

    for before, after in zip(usages, [stages.usage()] * len(usages), strict=True):
        assert all(new >= old or new == -1 for old, new in zip(before, after, strict=True))
    assert usages_there[0][2] == -1 or usages_there[0][2] >= 1


@pytest.mark.skipif(
    not os.path.exists("/proc/self/fd"), reason="open files are counted in /proc, which is not here"
)
def test_to_ask_for_the_usage_of_a_thread_leaves_no_file_open():
    counts = []

    def ask():
        for _ in range(3):
            counts.append(len(os.listdir("/proc/self/fd")))
            stages.usage()

    thread = threading.Thread(target=ask)  # one that never asked before
    thread.start()
    thread.join()
    assert counts == counts[:1] * 3


def test_the_clock_of_the_loop_is_read_at_one_of_many_short_batches_and_no_time_is_lost(
    monkeypatch,
):
    readings = []

    def clock():
        readings.append(len(readings) * 1e-6)
        return readings[-1]

    monkeypatch.setattr(epoch, "perf_counter", clock)
    loader = gl.Loader(gl.arrays(x=np.zeros((3000, 2), np.float32)), 1, device="cpu")
    assert len(list(loader)) == 3000

    stats = loader.stats()
    assert stats["batches"] == 3000
    assert len(readings) < 3000 / 20
    assert stats["loop_s"] == pytest.approx(readings[-1] - readings[0])
    assert 0 < stats["hand_over_s"] <= stats["loop_s"]


def test_the_clock_of_the_loop_is_read_at_each_batch_that_takes_long(monkeypatch):
    readings = []

    def clock():
        readings.append(len(readings) * 1e-2)
        return readings[-1]

    monkeypatch.setattr(epoch, "perf_counter", clock)
    loader = gl.Loader(gl.arrays(x=np.zeros((300, 2), np.float32)), 1, device="cpu")
    assert len(list(loader)) == 300

    assert len(readings) == 1 + 2 * 300
    assert loader.stats()["hand_over_s"] == pytest.approx(3.0)
