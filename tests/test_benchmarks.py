"""The benchmarks: every peer that is installed does its work, at a tiny size, and the results can
be shown."""

import contextlib
import gc
import itertools
import json
import mmap
import os
import re
import select
import subprocess
import sys
import threading
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gpuload as gl
from benchmarks import (
    bridges,
    clocks,
    data,
    gpu,
    gpu_cores,
    gpu_data,
    gpu_jpeg,
    gpu_parity,
    gpu_report,
    gpu_right,
    gpu_rows,
    gpu_waiting,
    leaks,
    machine,
    measure,
    plot,
    remoteserver,
    run,
    training,
    tuning,
)
from benchmarks.gpu_report import Part, Report
from benchmarks.question import BY_NAME, NAMES, REMOTE, SLOW, Peer, Work, find, is_to_tf, touch
from gpuload.device import Problem
from gpuload.ops.bounds import EXACT
from tests import simdevice

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bench-data")


NAMES_AND_MARKS = [
    pytest.param(name, marks=[pytest.mark.slow] * (name in REMOTE)) for name in (*NAMES, *BY_NAME)
]


@pytest.mark.parametrize("name", NAMES_AND_MARKS)
def test_gpuload_and_the_floor_do_the_work(name, folder):
    if name in REMOTE and remoteserver.program() is None:
        pytest.skip("nginx is not installed")
    question = find(name)
    path, num_records = (
        question.prepare(folder, question.num_records[True]),
        question.num_records[True],
    )
    jobs = [
        (variant, peer) for variant, peer in question.jobs("warm") if peer.role in ("ours", "floor")
    ]
    jobs = [
        (variant, peer)
        for variant, peer in jobs
        if not measure.missing(question.needs(variant, peer))
    ]

    for variant, peer in jobs:
        work = Work(variant, path, num_records, question.batch_size)
        assert measure.one_pass(peer.build(work), work).num_records == num_records

    assert {variant for variant, peer in jobs if peer.role == "ours"} == set(question.variants)


def test_each_sample_is_taken_in_a_process_and_all_are_shown(folder, tmp_path):
    question = replace(find("npy_rows"), variants=("shuffled",))
    peers = ("limit", "numpy", "gpuload")

    results = measure.measure(
        question, measure.Settings(data=folder, rounds=1, seconds=0.0, smoke=True, peers=peers)
    )

    samples = {entry["peer"]: entry["samples"] for entry in results["entries"]}
    assert samples.keys() == set(peers)
    assert [sample for (sample,) in samples.values() if "failed" in sample] == []
    path = tmp_path / "npy_rows.json"
    path.write_text(json.dumps(results), encoding="utf-8")
    plot.write(path)
    assert path.with_suffix(".png").exists() == (find_spec("matplotlib") is not None)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", NAMES)
def test_every_peer_that_is_installed_does_the_work(name, folder, tmp_path):
    results = measure.measure(
        find(name), measure.Settings(data=folder, rounds=1, seconds=0.0, smoke=True)
    )

    samples = [sample for entry in results["entries"] for sample in entry["samples"]]
    assert [sample["failed"] for sample in samples if "failed" in sample] == []
    assert [
        entry["peer"]
        for entry in results["entries"]
        if bool(entry["absent"]) == bool(entry["samples"])
    ] == []
    assert all(sample["records_per_s"] > 0 for sample in samples)
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(results), encoding="utf-8")
    plot.write(path)
    assert path.with_suffix(".png").exists() == (find_spec("matplotlib") is not None)


def test_a_peer_whose_package_is_missing_is_in_the_table_as_absent(folder):
    peer = Peer("somebody", lambda work: iter, "somebody's loader", needs=("no_such_package",))
    question = replace(find("npy_rows"), peers=(peer,), variants=("shuffled",))

    results = measure.measure(question, measure.Settings(data=folder, rounds=1, smoke=True))

    assert (
        plot.table(results, "npy_rows")
        .splitlines()[-1]
        .endswith("| absent: no_such_package not installed |")
    )


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("cache", SLOW)
@pytest.mark.parametrize("name", ["npy_rows", "npy_files"])
def test_storage_that_is_waited_for_is_measured_too(name, cache, folder):
    settings = measure.Settings(
        data=folder, rounds=1, cache=cache, smoke=True, peers=("limit", "numpy", "gpuload")
    )

    entries = measure.measure(find(name), settings)["entries"]

    assert {entry["peer"] for entry in entries} == {"limit", "numpy", "gpuload"} & {
        p.name for p in find(name).peers
    }
    assert [
        sample["failed"] for entry in entries for sample in entry["samples"] if "failed" in sample
    ] == []
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

    values = measure.one_pass(lambda: iter([np.zeros(2)] * 1000), work, most_s=0.0)

    assert values.num_records == 4
    assert values.took_s > 0


def test_the_making_of_an_iterator_is_part_of_the_pass(monkeypatch):
    clock = itertools.count(0.0, 1.0).__next__
    monkeypatch.setattr(measure, "perf_counter", clock)

    def epoch():
        clock(), clock()  # two seconds
        return iter([np.zeros(2)])

    values = measure.one_pass(epoch, measure.Work("shuffled", None, num_records=2, batch_size=2))

    assert (values.first_ms, values.took_s) == (3000.0, 4.0)


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
    run_result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert float(run_result.stdout) == pytest.approx(32, abs=4)


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
    return {
        "variant": "shuffled",
        "peer": peer,
        "role": role,
        "about": "",
        "absent": [],
        "samples": samples,
    }


class TestQuestionsAboutAGpu:
    @pytest.mark.parametrize("name", gpu.NAMES)
    def test_are_left_out_without_a_gpu_with_the_reason(self, name, monkeypatch, capsys):
        monkeypatch.setattr(gpu, "problem", lambda: Problem("CuPy is not installed", "install it"))

        assert run.questions(None, measure.Settings()) == list(NAMES)
        assert run.questions([name, "npy_rows"], measure.Settings()) == ["npy_rows"]
        message = capsys.readouterr().err.splitlines()
        assert (
            message[1] == f"{name}: left out, as there is no GPU to measure: CuPy is not installed"
        )

    def test_are_asked_where_there_is_one(self, monkeypatch, capsys):
        monkeypatch.setattr(gpu, "problem", lambda: None)

        assert run.questions(None, measure.Settings()) == [*NAMES, *gpu.NAMES]
        assert capsys.readouterr().err == ""

    @pytest.mark.parametrize("cache", SLOW)
    def test_are_not_asked_of_storage(self, cache, monkeypatch):
        monkeypatch.setattr(gpu, "problem", lambda: None)

        assert not set(run.questions(None, measure.Settings(cache=cache))).intersection(gpu.NAMES)
        with pytest.raises(SystemExit, match="gpu_rows: not asked of"):
            run.questions(["gpu_rows"], measure.Settings(cache=cache))

    @pytest.mark.parametrize("name", gpu.NAMES)
    def test_have_a_limit_and_one_of_ours_for_each_variant(self, name):
        jobs = find(name).jobs("warm")

        for variant in find(name).variants:
            roles = [peer.role for second, peer in jobs if second == variant]
            assert roles.count("limit") >= 1
            assert (roles.count("ours"), roles.count("floor")) == (1, 1)
        assert find(name).jobs("cold") == []
        assert {peer.name for _, peer in jobs} >= {"resident", "gpuload"}

    def test_the_report_names_peers_and_variants_that_there_are(self):
        for part in gpu_report.PARTS:
            if part.section in gpu.NAMES:
                options, question = " ".join(part.command), find(part.section)
                peers, variants = re.search(r"--peers (.*) --variants (.*?) --", options).groups()
                assert set(peers.split()) <= {peer.name for peer in question.peers}
                assert set(variants.split()) <= set(question.variants)

    def test_have_each_a_loop_with_a_step(self):
        assert gpu_rows.QUESTION.variants[:3] == ("rows-256", "rows-4096", "fixed-256")
        for question in (gpu_rows.QUESTION, gpu_jpeg.QUESTION):
            single = [variant for variant in question.variants if not variant.endswith("-step")]
            assert question.variants == (*single, *(f"{variant}-step" for variant in single))

    def test_a_framework_that_does_not_see_the_gpu_is_absent(self, monkeypatch):
        peer = Peer("somebody", lambda work: iter, "somebody's loader", needs=("numpy",))
        assert measure.missing(gpu_rows.QUESTION.needs("rows-256", peer)) == []
        monkeypatch.setitem(gpu._LOOKS, "numpy", lambda numpy: False)

        assert measure.missing(gpu_rows.QUESTION.needs("rows-256", peer)) == [
            "a numpy that sees the GPU"
        ]


class TestOnASimulatedGpu:
    COUNT = 600

    @pytest.fixture
    def sim(self, monkeypatch):
        simulation = simdevice.install(monkeypatch, seed=2)
        yield simulation
        gc.collect()
        simulation.finish()

    def work(self, variant, folder):
        return Work(variant, gpu_rows.prepare(folder, self.COUNT), self.COUNT, 256)

    @pytest.mark.parametrize("variant", gpu_rows.QUESTION.variants)
    def test_the_limit_the_floor_and_gpuload_do_the_work(self, variant, folder, sim, monkeypatch):
        stepped = []
        monkeypatch.setattr(
            gpu, "step", lambda rounds: lambda array: stepped.append((array + 1).shape)
        )
        work = self.work(variant, folder)
        batches = -(-self.COUNT // int(variant.split("-")[1]))
        for name in ("link", "resident", "cupy", "gpuload"):
            peer = gpu_rows.QUESTION.peer(name)
            if variant not in (peer.variants or gpu_rows.QUESTION.variants):
                continue
            epoch = peer.build(work)
            stepped.clear()

            for _ in range(2):
                assert measure.one_pass(epoch, work).num_records == self.COUNT
                assert all(
                    item.ran is not None for item in sim.trace if item.name != simdevice.FREE
                )
            assert len(stepped) == (2 * batches if variant.endswith("-step") else 0)
            del epoch

    def test_the_rows_are_those_of_the_file(self, folder, sim):
        work = gpu_rows.part_of(self.work("rows-256", folder))

        batches = [batch.get() for batch in gpu_rows.gpuload(work)()]

        assert [len(batch) for batch in batches] == [256, 256, 88]
        assert np.array_equal(
            np.unique(np.concatenate(batches), axis=0), np.unique(np.load(work.path), axis=0)
        )

    def test_the_images_are_normalised(self, folder, sim):
        work = gpu_rows.part_of(self.work("fixed-256", folder))

        labels, images = (np.concatenate(values) for values in zip(
            *((label.get(), image.get()) for label, image in gpu_rows.gpuload(work)()), strict=True
        ))  # fmt: skip

        assert sorted(labels) == sorted(
            np.fromfile(work.path, np.uint8).reshape(self.COUNT, -1)[:, 0]
        )
        assert (images.shape, images.dtype) == ((self.COUNT, 32, 32, 3), np.float32)
        assert -2.0 < images.min() < -1.8 < 2.0 < images.max() < 2.2

    def test_a_reader_of_dali_gives_each_pass_its_records_and_goes_on_behind_them(self, sim):
        class Pipe:
            numbers = itertools.count(0, 4)

            def build(self):
                pass

            def run(self, stream):
                first = next(self.numbers)
                return (
                    SimpleNamespace(
                        as_tensor=lambda: sim.cupy.asarray(np.arange(first, first + 4))
                    ),
                )

        epoch = gpu_jpeg._passes(Pipe(), Work("shuffled", None, num_records=10, batch_size=4))

        passes = [[batch.get().tolist() for batch in epoch()] for _ in range(2)]
        assert passes[0] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert passes[1] == [[10, 11], [12, 13, 14, 15], [16, 17, 18, 19]]

    def test_a_batch_on_the_host_is_refused(self, folder, sim):
        work = self.work("rows-256", folder)

        with pytest.raises(RuntimeError, match="not on the GPU"):
            next(gpu.consumed(work, lambda: iter([np.zeros((256, 3))]), 1)())

    def test_the_host_runs_two_batches_ahead_and_no_further(self, folder, sim, monkeypatch):
        monkeypatch.setattr(gpu, "step", lambda rounds: lambda array: array + 1)
        work = gpu_rows.part_of(self.work("rows-256-step", folder))
        batches, waiting = (
            gpu.consumed(work, gpu.resident(replace(work, num_records=256 * 8), 784), 1)(),
            [],
        )

        for _ in range(8):
            next(batches)
            waiting.append(sum(item.ran is None for item in sim.works("add")))
        assert max(waiting) == gpu.IN_FLIGHT
        assert list(batches) == []


def fake(name, code, needs=(), limit_s=30.0, section="machine", is_alone=True):
    """Return a part that writes a row, unless its code ends it before."""
    code += "\nopen('{folder}/rows.json', 'w').write('{\"rows\": [[\"rate\", 7]]}')"
    return Part(name, section, ("-c", code), needs, limit_s, is_alone)


MEETS = """
import os, time
open({0!r}, "w")
for _ in range(600):
    if os.path.exists({1!r}): break
    time.sleep(0.05)
else: raise SystemExit("alone")
"""


JUNIT = """<testsuites><testsuite>
<testcase classname="tests.test_x.TestA" name="test_one" /><testcase classname="tests.test_x.TestA" name="test_two">
<failure message="assert 1 == 2&#10;more">where</failure></testcase>
<testcase classname="tests.test_x" name="test_three"><skipped message="no torch" /></testcase>
</testsuite></testsuites>"""


class TestTheReport:
    ABOUT = {  # noqa: RUF012  not changed
        "commit": "c0ffee", "host": "here", "versions": {"GPU": "a card", "numpy": "2"}, "absent": {}, "short": False,
    }  # fmt: skip

    @pytest.fixture
    def lines(self):
        return []

    @pytest.fixture
    def go(self, tmp_path, lines):
        """Do parts as a call does."""

        def go(*parts, about=self.ABOUT, only=None, fresh=False):
            report = Report.open(
                tmp_path / "work", tmp_path / "gpu.md", about, fresh=fresh, tell=lines.append
            )
            return gpu_report.go((fake("probe", ""), *parts), report, only=only, tell=lines.append)

        return go

    def outcomes(self, tmp_path):
        return json.loads((tmp_path / "work" / "report.json").read_text())["outcomes"]

    def test_has_every_part_that_succeeds_and_every_one_that_fails(self, go, lines, tmp_path):
        assert (
            go(
                fake("good", ""),
                fake("bad", "print('what is wrong'); raise SystemExit(3)"),
                fake("last", ""),
            )
            == 1
        )

        outcomes = self.outcomes(tmp_path)
        assert [item["status"] for item in outcomes.values()] == [
            "passed",
            "passed",
            "failed",
            "passed",
        ]
        assert (outcomes["bad"]["why"], outcomes["bad"]["problems"]) == (
            "exit status 3",
            ["what is wrong"],
        )
        assert any(line.startswith("failed: bad ") for line in lines)
        page = (tmp_path / "gpu.md").read_text()
        assert "# gpuload on a card" in page
        assert "Of 4 parts 3 passed, 1 failed, 0 were left out, 0 are not done yet." in page
        assert "## Failed: bad\n\nexit status 3\n\n```\nwhat is wrong\n```" in page
        assert page.count("| rate | 7 |") == 3

    def test_names_the_signal_that_ended_a_part(self, go, tmp_path):
        assert go(fake("crash", "import os; os.kill(os.getpid(), 11)")) == 1

        assert self.outcomes(tmp_path)["crash"]["why"] == "ended by signal SIGSEGV"

    def test_ends_a_part_that_hangs_with_all_it_started(self, go, tmp_path):
        start = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
        begin = time.monotonic()

        assert go(fake("hangs", f"{start}; print(p.pid, flush=True); p.wait()", limit_s=2.0)) == 1
        assert self.outcomes(tmp_path)["hangs"]["why"] == "took longer than 2 s"
        assert time.monotonic() - begin < 30
        with contextlib.suppress(ProcessLookupError):  # it is gone
            child = os.pidfd_open(int((tmp_path / "work" / "hangs" / "log").read_text()))
            assert select.select([child], [], [], 10)[0]  # it has been killed, and is just going
            os.close(child)

    def test_begins_no_further_part_once_the_gpu_is_lost(self, lines, tmp_path):
        switch = tmp_path / "lost"
        probe = fake("probe", f"import os; assert not os.path.exists({str(switch)!r})")
        breaks = fake("breaks", f"open({str(switch)!r}, 'w'); raise SystemExit(1)")
        report = Report.open(
            tmp_path, tmp_path / "gpu.md", self.ABOUT, fresh=False, tell=lines.append
        )

        assert (
            gpu_report.go((probe, breaks, fake("next", "")), report, only=None, tell=lines.append)
            == 1
        )
        assert [item["status"] for item in report.outcomes.values()] == ["passed", "failed"]
        assert any(line.startswith("the GPU no longer works: nvidia-smi") for line in lines)
        assert lines[-1] == "left: next (call again to go on)"
        assert (tmp_path / "gpu.md").read_text().endswith("## Not done yet\n\n- next\n")

    def test_what_says_right_or_wrong_runs_side_by_side(self, go, tmp_path, monkeypatch):
        monkeypatch.setattr(gpu_report.machine, "cores", lambda: 2)
        places = [str(tmp_path / "one"), str(tmp_path / "two")]
        first, second = (
            fake(name, MEETS.format(*pair), is_alone=False)
            for name, pair in (("one", places), ("two", places[::-1]))
        )

        assert go(first, second, fake("last", "")) == 0
        assert [item["status"] for item in self.outcomes(tmp_path).values()] == ["passed"] * 4

    def test_a_part_that_does_not_fit_into_the_time_is_not_begun_and_named(self, lines, tmp_path):
        parts = (fake("probe", ""), fake("long", "", limit_s=1000.0), fake("short", ""))
        report = Report.open(
            tmp_path, tmp_path / "gpu.md", self.ABOUT, fresh=False, tell=lines.append
        )

        end = time.monotonic() + 100
        assert gpu_report.go(parts, report, only=None, tell=lines.append, end=end) == 1
        assert list(report.outcomes) == ["probe", "short"]
        assert re.search(
            r"## Not done yet\n\n- long: may take 1000 s, and \d+ s were left\n",
            (tmp_path / "gpu.md").read_text(),
        )
        assert gpu_report.go(parts, report, only=None, tell=lines.append) == 0
        assert list(report.outcomes) == ["probe", "short", "long"]

    def test_has_what_a_part_has_measured_before_it_was_ended(self, go, tmp_path):
        code = "open('{folder}/rows.json', 'w').write('{\"rows\": [[\"peer\", 1]]}'); import time; time.sleep(60)"

        assert go(fake("slow", code, limit_s=1.0)) == 1
        assert "| peer | 1 |" in (tmp_path / "gpu.md").read_text()

    def test_has_the_samples_of_a_question_that_was_ended(self, tmp_path):
        entries = [_entry("link", "limit", [1e6]), _entry("gpuload", "ours", [])]
        results = {
            "workload": "gpu_rows",
            "entries": [{**entry, "variant": "rows-256"} for entry in entries],
        }
        run.write(run.partial_path(tmp_path / "gpu_rows.json"), results)

        outcome = gpu_report.read_rows(tmp_path, Part("rows", "gpu_rows", ()))

        assert [row[3] for row in outcome["rows"]] == ["1,000,000", "-"]
        assert outcome["problems"] == ["rows-256 gpuload: failed: not run"]

    def test_has_targets_first_and_none_of_little_data(self, go, tmp_path):
        target = gpu.Target("waiting", 0.031, 0.03, False, ".1%").row()
        rows = json.dumps({"rows": [["step", 2]], "targets": [target]})
        part = Part("one", "machine", ("-c", f"open('{{folder}}/rows.json', 'w').write({rows!r})"))
        line = "| waiting | at most 3.0% | 3.1% | **missed** |"

        assert go(part) == 0
        assert line in (tmp_path / "gpu.md").read_text()
        assert go(part, about={**self.ABOUT, "short": True}) != 2
        assert line not in (tmp_path / "gpu.md").read_text()

    def test_leaves_out_by_name_what_needs_a_package_that_is_not_there(self, go, lines, tmp_path):
        about = {**self.ABOUT, "absent": {"torch": "torch sees no GPU"}}

        assert (
            go(
                fake("of torch", "raise SystemExit(1)", needs=("numpy", "torch")),
                fake("last", ""),
                about=about,
            )
            == 0
        )
        assert "left out  of torch  torch sees no GPU" in lines
        assert "## Left out\n\n- of torch: torch sees no GPU\n" in (tmp_path / "gpu.md").read_text()

    def test_goes_on_with_what_is_missing(self, go, lines, tmp_path):
        count = tmp_path / "count"
        once = fake("one", f"open({str(count)!r}, 'a').write('x')")

        assert go(once, fake("two", ""), only=["one"]) == 0
        assert lines[-1] == "left: probe, two (call again to go on)"
        assert "## Not done yet\n\n- probe\n- two\n" in (tmp_path / "gpu.md").read_text()
        assert go(once, fake("two", "")) == 0
        assert count.read_text() == "x"
        assert "going on: 1 parts are done" in lines
        assert "Not done yet" not in (tmp_path / "gpu.md").read_text()

    def test_does_a_part_again_that_is_named_and_all_of_it_if_told(self, go, tmp_path):
        count = tmp_path / "count"
        part = fake("one", f"open({str(count)!r}, 'a').write('x')")

        assert [go(part), go(part), go(part, only=["one"]), go(part, fresh=True)] == [0] * 4
        assert count.read_text() == "xxx"

    @pytest.mark.parametrize("name", ["commit", "host", "versions", "absent"])
    def test_begins_anew_where_it_is_about_something_else(self, go, lines, tmp_path, name):
        assert go(fake("one", "raise SystemExit(1)")) == 1

        assert go(fake("two", ""), about={**self.ABOUT, name: {"numpy": "3"}}) == 0
        assert list(self.outcomes(tmp_path)) == ["probe", "two"]
        assert f"a new report (not the same as last time: {name})" in lines

    def test_that_cannot_be_read_is_begun_anew(self, go, lines, tmp_path):
        (tmp_path / "work").mkdir()
        (tmp_path / "work" / "report.json").write_text("{")

        assert go(fake("one", "")) == 0
        assert "the last one cannot be read" in lines[0]

    def test_counts_tests_and_names_those_that_did_not_pass(self, tmp_path):
        (tmp_path / "tests.xml").write_text(JUNIT)

        outcome = gpu_report.read_tests(tmp_path, Part("tests: x", "tests", ()))

        assert outcome["rows"] == [["x", 1, 1, 1]]
        assert outcome["problems"] == [
            "failed: tests.test_x.TestA.test_two: assert 1 == 2 more",
            "skipped: tests.test_x.test_three: no torch",
        ]

    def test_a_part_without_its_result_has_failed(self, go, tmp_path):
        folder = tmp_path / "work" / "tests--x"
        folder.mkdir(parents=True)
        (folder / "tests.xml").write_text(JUNIT)  # of an earlier call

        assert go(fake("tests: x", "", section="tests")) == 1
        assert self.outcomes(tmp_path)["tests: x"]["why"].startswith("no result: ")

    def test_has_the_figures_of_a_question(self, tmp_path):
        entries = [
            _entry("link", "limit", [1e6]),
            _entry("gpuload", "ours", [5e5]),
            _entry("torch", "peer", []),
        ]
        entries[2]["absent"] = ["torch"]
        results = {
            "workload": "gpu_rows",
            "entries": [{**entry, "variant": "rows-256"} for entry in entries],
        }
        (tmp_path / "gpu_rows.json").write_text(json.dumps(results))

        outcome = gpu_report.read_rows(tmp_path, Part("rows", "gpu_rows", ()))

        assert [row[1:5] for row in outcome["rows"]] == [
            ["link", "1.000", "1,000,000", "3.14"],
            ["**gpuload**", "0.500", "500,000", "1.57"],
            ["torch", "-", "-", "-"],
        ]
        assert outcome["targets"] == [
            ["rows-256 against the pinned copy", "at least 0.90", "0.50", "**missed**"]
        ]
        assert outcome["problems"] == ["rows-256 torch: absent: torch not installed"]

    def test_its_parts_have_every_file_with_gpu_tests(self):
        files = [
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / "tests").rglob("test_*.py")
            if re.search(
                r"^class Test\w+\(.*OpContract|^\s*@?pytest(mark = pytest)?\.mark\.gpu",
                path.read_text(),
                re.M,
            )
        ]
        names = {
            word for part in gpu_report.PARTS for word in part.command if word.startswith("tests/")
        }

        files = {
            file
            for file in files
            if not file.startswith(("tests/emulated_gpu/", "tests/test_gpu_marker.py"))
        }
        assert len(files) > 15
        assert {
            file for file in files if file not in names and str(Path(file).parent) not in names
        } == set()
        assert all((ROOT / name).exists() for name in names)

    def test_its_parts_have_names_of_their_own_and_less_than_two_minutes_each(self):
        names = [part.name for part in gpu_report.PARTS]

        assert len(set(names)) == len(names)
        assert max(part.limit_s for part in gpu_report.PARTS) <= 120
        assert not any(
            "," in name for name in names
        )  # where several are named, commas are between them
        assert {part.section for part in gpu_report.PARTS} == set(gpu_report.SECTIONS)

    def test_all_parts_fit_into_a_quarter_of_an_hour_with_the_start_of_the_machine(self):
        assert gpu_report.most_s(gpu_report.PARTS, num_cores=16) <= gpu_report.BUDGET_S <= 900 - 90

    def test_is_not_begun_without_a_gpu(self, monkeypatch, capsys):
        monkeypatch.setattr(gpu, "problem", lambda: Problem("no driver", "install one"))

        assert gpu_report.main([]) == 2
        errors = capsys.readouterr().err
        assert errors.startswith("there is no GPU to test on: no driver\n  remedy: install one\n")

    def test_packages_that_cannot_be_used_are_named_with_the_reason(self):
        assert gpu.absent(["numpy", "no_such_package"]) == {
            "no_such_package": "no_such_package is not installed"
        }

    @pytest.mark.slow
    def test_packages_that_see_no_gpu_are_named_with_the_reason(self):
        absent = gpu.absent(["jax", "gpuload.executors.dali"])

        assert absent["jax"] in ("jax sees no GPU", "jax is not installed")
        assert "\n" not in absent["gpuload.executors.dali"]


class TestImagesOverCores:
    @pytest.mark.parametrize(
        ("line", "expected"),
        [(900, "at most 2"), (1500, "3.0"), (2000, "4.0"), (3000, "more than 4")],
    )
    def test_how_many_cores_a_rate_takes_lies_between_two_measurements(self, line, expected):
        assert gpu_cores.cores_for({2: 1000.0, 4: 2000.0}, line) == expected

    def test_the_three_fastest_pipelines_of_dali_are_measured(self, tmp_path):
        rates = {"dali": 5.0, "dali_cuda": 1.0, "dali_whole": 4.0, "dali_host": 6.0, "gpuload": 9.0}
        entries = [_entry(name, "peer", [rate]) for name, rate in rates.items()]
        limit = _entry("resident", "limit", [10.0])
        results = {"entries": [{**entry, "variant": "shuffled"} for entry in [*entries, limit]]}
        (tmp_path / "gpu_jpeg.json").write_text(json.dumps(results))

        assert gpu_cores.best_of_dali(tmp_path / "gpu_jpeg.json") == (
            "dali_host",
            "dali",
            "dali_whole",
        )
        assert gpu_cores.best_of_dali(tmp_path / "none.json") == gpu_cores.OF_DALI

    @pytest.mark.skipif(find_spec("matplotlib") is None, reason="Matplotlib is not installed")
    def test_are_drawn_from_a_report(self, tmp_path):
        rows = gpu_cores.rows({"gpuload_host": {2: 2500.0, 4: 5000.0}, "tfdata": {}}, {})
        report = {"outcomes": {gpu_cores.PART: {"rows": rows}}}
        (tmp_path / "report.json").write_text(json.dumps(report))

        words = ["--plot", str(tmp_path / "report.json"), "--result", str(tmp_path / "cores.png")]
        assert gpu_cores.main(words) == 0
        assert (tmp_path / "cores.png").read_bytes().startswith(b"\x89PNG")

    def test_every_peer_is_one_of_the_question(self):
        for name in (*gpu_cores.WAYS, *gpu_cores.OF_DALI, *gpu_cores.LIBRARIES):
            assert gpu_jpeg.QUESTION.peer(name).name == name

    def test_threads_run_on_the_cores_alone_that_are_named(self):
        code = (
            "import os, threading; from benchmarks import gpu_cores; "
            "threading.Thread(target=threading.Event().wait, daemon=True).start(); "
            "first = min(os.sched_getaffinity(0)); gpu_cores.run_on([first]); "
            "print({tuple(os.sched_getaffinity(int(t))) for t in os.listdir('/proc/self/task')} == {(first,)})"
        )
        process = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
        )

        assert process.stdout == "True\n"

    def test_peers_and_rates_are_rows_and_a_peer_that_failed_is_named(self):
        rates = {"gpuload_host": {2: 2500.0, 4: 5000.0}, "tfdata": {}}

        host_row, tfdata_row = gpu_cores.rows(rates, {"tfdata": "absent: tensorflow not installed"})

        assert host_row[:7] == [
            "**gpuload_host**",
            "2,500",
            "5,000",
            "-",
            "-",
            "2.4",
            "more than 4",
        ]
        assert tfdata_row[:7] == ["tfdata", *["-"] * 6]
        assert tfdata_row[7].endswith("; absent: tensorflow not installed")


class TestTheDataOnAGpu:
    def test_is_made_once_and_a_second_call_finds_it(self, tmp_path, monkeypatch):
        pytest.importorskip("PIL")
        monkeypatch.setattr(gpu_data, "folder", lambda: tmp_path)
        for module, number in ((gpu_jpeg, 8), (gpu_rows, 100)):
            monkeypatch.setattr(
                module, "QUESTION", replace(module.QUESTION, num_records=(2_000, number))
            )
        result = tmp_path / "rows.json"

        assert gpu_data.main(["--smoke", "--result", str(result)]) == 0
        times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*") if path != result}
        assert gpu_data.main(["--smoke", "--result", str(result)]) == 0

        assert times == {
            path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*") if path != result
        }
        names = [name for name, _ in json.loads(result.read_text())["rows"]]
        assert names == [
            "data: 8 JPEGs of about 500 x 375, smooth shapes",
            "data: 100 rows and CIFAR-10 records",
        ]

    def test_jpegs_by_all_cores_are_those_of_one(self, tmp_path, monkeypatch):
        pytest.importorskip("sklearn")
        for name, count in (("one", 1), ("all", 3)):
            monkeypatch.setattr(data, "cores", lambda count=count: count)
            data.jpegs(tmp_path / name, 4)

        pixels = [
            [path.read_bytes() for path in sorted((tmp_path / name).rglob("*.jpg"))]
            for name in ("one", "all")
        ]
        assert pixels[0] == pixels[1]
        assert len(set(pixels[0])) == 4


class TestWaysBesideTheCpu:
    @pytest.fixture
    def source(self, tmp_path):
        pytest.importorskip("PIL")
        gpu_parity.jpeg(0, 40, 50).tofile(tmp_path / "0.jpg")
        return gl.images(tmp_path, labels=None)

    @pytest.mark.parametrize("way", ["array", "dali, host"])
    def test_bytes_that_the_core_makes_may_not_differ(self, way, source):
        assert gpu_right.bound_of(source, gpu_right.lists_of_ops()["bytes"], way) == EXACT

    def test_numbers_that_the_gpu_makes_may_differ_as_far_as_the_op_states(self, source):
        bound = gpu_right.bound_of(source, gpu_right.lists_of_ops()["normalised"], "array")

        assert (bound.largest, bound.relative) == (
            0,
            gl.ops.Normalize(0, 1).traits.bounds["gpu"].relative,
        )

    def test_an_image_that_nvjpeg_skips_is_far_from_what_it_should_be(self):
        expected = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), np.uint8)
        values = np.where(expected < 255, expected + 1, expected)

        assert gpu_right.far_image(values, expected) == ""
        values[2] = gpu_right.PATTERN
        assert gpu_right.far_image(values, expected).startswith("image 2 differs by ")


class TestParityOnAGpu:
    def test_a_difference_is_summed_up_and_nan_is_nan(self):
        difference = gpu_parity.Difference()
        difference.add(np.array([1.0, 2.0, np.nan]), np.array([1.0, 4.0, np.nan]))
        difference.add(np.array([5.0]), np.array([6.0]))

        assert difference.row("resize", "NumPy") == ["resize", "NumPy", "50.0000%", "2", "0.75", ""]
        with pytest.raises(ValueError, match="float32"):
            difference.add(np.zeros(2, np.float32), np.zeros(2))

    def test_every_case_of_every_contract_is_there(self):
        classes = {type(contract).__module__ for contract, _, _ in gpu_parity.cases()}

        assert {"tests.ops.test_resize", "tests.ops.test_flip", "tests.ops.test_decode"} <= classes

    def test_a_decoder_gives_the_pixels_of_libjpeg_turbo_whole_and_by_region(self):
        pytest.importorskip("nvidia.dali")
        cv2 = pytest.importorskip("cv2")
        files = [gpu_parity.jpeg(number) for number in range(3)]
        expected = np.stack([cv2.imdecode(file, cv2.IMREAD_COLOR)[..., ::-1] for file in files])
        top, left, height, width = gpu_parity.REGION

        assert np.array_equal(gpu_parity.decode(files, "cpu", 0.0, 2), expected)
        regions = gpu_parity.decode(files, "cpu", 0.0, 2, region=gpu_parity.REGION)
        assert np.array_equal(regions, expected[:, top : top + height, left : left + width])

    def test_a_region_that_ends_its_process_is_a_row(self, monkeypatch):
        monkeypatch.setattr(gpu_parity.sys, "executable", "/bin/false")

        ((*_, note),), problems = gpu_parity.regions(1)
        assert note.startswith("ENDED with status 1: regions stay off")
        assert problems == []


class TestWaitingInATrainingStep:
    @pytest.mark.parametrize(
        "name",
        [*(pytest.param(name, marks=pytest.mark.slow) for name in ("torch", "jax")), "tensorflow"],
    )
    def test_a_loop_on_the_cpu_has_a_share_of_waiting(self, name):
        pytest.importorskip(name)

        ((framework, work, step_ms, waiting, host),) = gpu_waiting.measure(
            name, "cpu", works=(gpu_waiting.CIFAR,), is_short=True
        )
        assert (framework, work) == (name, gpu_waiting.CIFAR)
        assert float(step_ms) > 0
        assert all(0 <= float(share.rstrip("%")) <= 100 for share in (waiting, host))

    @pytest.mark.slow
    def test_a_training_of_keras_on_the_cpu_has_a_share_of_waiting(self, tmp_path):
        pytest.importorskip("keras")
        pytest.importorskip("tensorflow")
        code = (
            "from benchmarks import gpu_waiting as w; "
            "print(w.measure('keras', 'cpu', works=[w.JPEG_HOST], is_short=True)[0][:2])"
        )
        variables = {
            "KERAS_BACKEND": "tensorflow",
            "GPULOAD_BENCH_DATA": str(tmp_path),
            "CUDA_VISIBLE_DEVICES": "",
        }

        process = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip

        assert process.stdout == f"{['keras on tensorflow', gpu_waiting.JPEG_HOST]}\n", (
            process.stderr
        )

    def test_the_works_that_cannot_be_done_are_left_out_by_name(self, monkeypatch):
        monkeypatch.setattr(
            gpu_waiting.gpu, "absent", lambda packages: dict.fromkeys(packages, "no DALI here")
        )

        works, problems = gpu_waiting.present_works("resnet50")

        assert works == [gpu_waiting.JPEG_HOST]
        assert problems == [f"{gpu_waiting.JPEG_DALI}: left out, no DALI here"]

    def test_what_the_loader_takes_longer_is_waiting(self):
        framework = gpu_waiting.Framework(
            iter, None, lambda batch: batch, lambda batch: batch, lambda batch: None
        )

        def slow():
            while True:
                time.sleep(0.02)
                yield 0

        step_s, next_s = gpu_waiting._loop(framework, slow(), 1, 0.0)
        assert 0.02 <= next_s <= step_s


@pytest.mark.slow
@pytest.mark.parametrize("lane", ["rows", "dali"])
def test_nothing_stays_behind_after_each_deed_was_done_often(lane, tmp_path):
    if lane in leaks.NEEDS:
        pytest.importorskip(leaks.NEEDS[lane])
    assert leaks.main(["--times", "20", "--only", lane, "--results", str(tmp_path)]) == 0

    results = json.loads((tmp_path / "leaks.json").read_text())
    assert {deed: len(looks) for deed, looks in results["lanes"][lane].items()} == dict.fromkeys(
        leaks.DEEDS, 20
    )
    assert f"| {lane} | kept batches |" in (tmp_path / "leaks.md").read_text()
    assert (tmp_path / "leaks.png").exists() == (find_spec("matplotlib") is not None)


@pytest.mark.slow
def test_what_measuring_costs_is_measured_and_written(tmp_path):
    words = ["--pairs", "2", "--seconds", "0.002", "--only", "64 rows", "--results", str(tmp_path)]

    assert clocks.main(words) == 0
    assert "| 64 rows | " in (tmp_path / "clocks.md").read_text()


@pytest.mark.slow
def test_chosen_numbers_of_threads_are_measured_and_written(tmp_path):
    words = [
        "--rounds",
        "1",
        "--seconds",
        "0.05",
        "--tuned",
        "0.1",
        "--only",
        "rows in memory",
        "a reader that sleeps",
    ]

    assert tuning.main([*words, "--data", str(tmp_path / "data"), "--results", str(tmp_path)]) == 0
    text = (tmp_path / "tuning.md").read_text()
    assert "| rows in memory | " in text
    assert "| a reader that sleeps | " in text


@pytest.mark.slow
def test_what_a_bridge_adds_is_measured_and_written(tmp_path):
    pytest.importorskip("torch")
    message = ["--rounds", "1", "--records", "512", "--only", "torch.tensors"]

    assert bridges.main(
        [*message, "--data", str(tmp_path / "data"), "--results", str(tmp_path)]
    ) in (0, 1)

    results = json.loads((tmp_path / "bridges.json").read_text())
    assert {sample["bridge"] for sample in results["samples"]} == {"torch.tensors"}
    assert "torch.tensors" in (tmp_path / "bridges.md").read_text()


@pytest.mark.parametrize("grows", leaks.MAY_GROW)
def test_what_stays_behind_is_seen(grows, monkeypatch, tmp_path):
    batches = []

    def leak():
        if grows == "threads":
            wait = threading.Event()
            threading.Thread(target=wait.wait, daemon=True).start()
            batches.append(wait)
        else:
            size = {"memory MB": 2_400_000, "descriptors": 1, "maps": 1}[grows]
            batches.append(np.ones(size, np.uint8) if grows == "memory MB" else open(os.devnull))  # noqa: SIM115
            if grows == "maps":
                batches.append(
                    mmap.mmap(
                        -1, 4096 * (1 + len(batches) % 2), prot=mmap.PROT_READ << (len(batches) % 2)
                    )
                )

    monkeypatch.setitem(
        leaks.LANES, "leaking", (lambda folder: contextlib.nullcontext(), lambda _: [leak()])
    )
    monkeypatch.setattr(leaks, "WARM_UP", 0)
    monkeypatch.setattr(
        leaks, "NUM_LOOKS", 8
    )  # each collects garbage, which takes long beside all other tests
    monkeypatch.setattr(leaks, "ENDING_S", 0)
    try:
        looks = leaks.watch("leaking", "epochs", 40, tmp_path)
    finally:
        for item in batches:
            (item.set if grows == "threads" else getattr(item, "close", int))()

    assert leaks.growth(looks)[grows] > leaks.MAY_GROW[grows]


class TestTraining:
    def test_what_is_computed_from_figures_of_several_loops(self):
        figures = {
            "fresh, batches in 2 s": 30, "records/s": 1000.0, "batches/s beside a sleeping step": 400.0,
            "share of next() beside a sleeping step": 0.2,
        }  # fmt: skip

        derived = training._derived(figures, batch_size=64)

        assert derived["share of the rate in the first 2 s"] == 30 * 64 / 2000
        assert derived["waits beside a sleeping step, ms"] == pytest.approx(
            0.5
        )  # 0.2 of the 2.5 ms of a turn
        assert "waits beside a busy step, ms" not in derived

    @pytest.mark.slow
    @pytest.mark.timeout(300)
    def test_each_figure_of_a_peer_and_of_gpuload_is_in_the_table(self, folder, tmp_path, capsys):
        small = [
            "--smoke",
            "--only",
            "npy_rows",
            "--peers",
            "numpy",
            "gpuload",
            "--data",
            str(folder),
        ]

        assert training.main([*small, "--results", str(tmp_path)]) == 0

        rows = [
            line
            for line in capsys.readouterr().out.splitlines()
            if line.startswith(("| numpy", "| **gpuload**"))
        ]
        assert len(rows) == 2
        assert all(
            float(cell.split()[0]) >= 0 for row in rows for cell in row.strip("| ").split(" | ")[1:]
        )
        assert all(row.count("|") == len(training.COLUMNS) + 2 for row in rows)
