"""The benchmarks: every peer that is installed does its work, at a tiny size, and the results can be shown."""

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from benchmarks import machine, measure, plot
from benchmarks.question import NAMES, SLOW, Peer, find, is_to_tf, touch

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bench-data")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", NAMES)
def test_every_peer_that_is_installed_does_the_work(name, folder, tmp_path):
    results = measure.measure(find(name), measure.Settings(data=folder, rounds=1, seconds=0.0, smoke=True))

    samples = [sample for entry in results["entries"] for sample in entry["samples"]]
    assert [sample["failed"] for sample in samples if "failed" in sample] == []
    assert [entry["peer"] for entry in results["entries"] if bool(entry["absent"]) == bool(entry["samples"])] == []
    assert all(sample["records_per_s"] > 0 for sample in samples)
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(results), encoding="utf-8")
    plot.write(path)
    assert path.with_suffix(".png").exists() == (find_spec("matplotlib") is not None)


def test_a_peer_whose_package_is_missing_is_in_the_table_as_absent(folder):
    peer = Peer("somebody", lambda work: iter, "somebody's loader", needs=("no_such_package",))
    question = replace(find("npy_rows"), peers=(peer,), variants=("shuffled",))

    results = measure.measure(question, measure.Settings(data=folder, rounds=1, smoke=True))

    assert plot.table(results, "npy_rows").splitlines()[-1].endswith("| absent: no_such_package not installed |")


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("cache", SLOW)
@pytest.mark.parametrize("name", ["npy_rows", "npy_files"])
def test_storage_that_is_waited_for_is_measured_too(name, cache, folder):
    settings = measure.Settings(data=folder, rounds=1, cache=cache, smoke=True, peers=("limit", "numpy", "gpuload"))

    entries = measure.measure(find(name), settings)["entries"]

    assert {entry["peer"] for entry in entries} == {"limit", "numpy", "gpuload"} & {p.name for p in find(name).peers}
    assert [sample["failed"] for entry in entries for sample in entry["samples"] if "failed" in sample] == []
    assert all(len(sample["passes_s"]) == 1 for entry in entries for sample in entry["samples"])
    assert cache == "cold" or not any(is_to_tf(entry["variant"]) for entry in entries)


def test_data_larger_than_memory_is_larger_than_memory():
    settings, question = measure.Settings(cache="large"), find("npy_rows")

    assert settings.records(question) * question.record_bytes > 1.4 * machine.memory_bytes()


def test_the_read_ahead_of_what_is_on_no_disk_is_unknown(folder):
    results = measure.measure(find("npy_rows"), measure.Settings(data=folder, rounds=0, smoke=True))
    results["machine"]["read_ahead_kib"] = machine.read_ahead_kib(Path("/proc"))

    assert results["machine"]["read_ahead_kib"] is None
    assert "read-ahead unknown KiB" in plot.table(results, "npy_rows")


def test_a_pass_that_is_too_long_is_ended_and_counts_for_what_it_gave():
    work = measure.Work("shuffled", None, num_records=10**9, batch_size=2)

    seen = measure.one_pass(lambda: iter([np.zeros(2)] * 1000), work, most_s=0.0)

    assert seen.num_records == 4
    assert seen.took_s > 0


def test_the_making_of_an_iterator_is_part_of_the_pass(monkeypatch):
    clock = itertools.count(0.0, 1.0).__next__
    monkeypatch.setattr(measure, "perf_counter", clock)

    def epoch():
        clock(), clock()  # two seconds
        return iter([np.zeros(2)])

    seen = measure.one_pass(epoch, measure.Work("shuffled", None, num_records=2, batch_size=2))

    assert (seen.first_ms, seen.took_s) == (3000.0, 4.0)


def test_a_pass_that_loses_a_record_is_a_failure():
    work = measure.Work("shuffled", None, num_records=5, batch_size=2)

    with pytest.raises(RuntimeError, match="gave 4 records, the data has 5"):
        measure.one_pass(lambda: iter([np.zeros(2), np.zeros(2)]), work)


def test_a_ratio_is_taken_within_its_round_and_against_the_faster_limit():
    results = {
        "entries": [
            _entry("slow_limit", "limit", [10, 10, 10]),
            _entry("limit", "limit", [100, 200, 400]),
            _entry("loader", "ours", [50, 50, 40]),
        ]
    }

    rows = plot.variants(results)["shuffled"]

    assert [row.peer for row in rows] == ["limit", "loader", "slow_limit"]
    assert rows[1].ratios == (0.5, 0.25, 0.1)
    assert rows[1].ratio == 0.25


def test_a_round_that_failed_is_told_and_does_not_count():
    entry = _entry("loader", "peer", [50, 50])
    entry["samples"][1] = {"round": 1, "failed": "ValueError: no"}

    (row,) = plot.variants({"entries": [entry]})["shuffled"]

    assert row.rates == (50,)
    assert row.why_not == "1 rounds failed"


def test_a_batch_counts_its_records_whether_one_array_or_several():
    assert touch(np.zeros((3, 2))) == 3
    assert touch((np.zeros(4), np.zeros((4, 2, 2)))) == 4


def test_memory_that_was_written_is_seen_while_it_is_there():
    code = """if True:
        import numpy as np
        from benchmarks import machine
        with machine.Memory() as memory:
            held = np.ones(4_000_000)
            memory.look()
            del held
        print(memory.added_mb)
    """  # in a process of its own: in this one, what earlier tests left may be freed meanwhile
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )

    assert float(done.stdout) == pytest.approx(32, abs=4)


def _entry(peer, role, rates):
    samples = [
        {
            "round": number,
            "records_per_s": rate,
            "first_ms": 1.0,
            "cold_first_ms": 2.0,
            "base_mb": 50.0,
            "added_mb": 3.0,
        }
        for number, rate in enumerate(rates)
    ]
    return {"variant": "shuffled", "peer": peer, "role": role, "about": "", "absent": [], "samples": samples}
