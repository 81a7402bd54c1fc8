"""``gpuload bench`` and the ways of images to a GPU: what it measures, which one to write, and what
it cannot."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gpuload as gl
from gpuload import cli
from gpuload import device as devices
from gpuload.cli import bench_ways
from gpuload.cli.bench import loader_line
from gpuload.cli.bench_ways import WayRate, WayTable, compare_ways
from gpuload.cli.userops import find_ops, words_of
from gpuload.errors import MissingPackageError
from tests.imagefiles import jpeg

ARRAY, DALI, DALI_HOST = 'executor="array"', 'executor="dali"', 'executor="dali", decode="host"'


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number:02}.jpg").write_bytes(jpeg(40, 40 + number))
    return folder


class TestTheWayToWrite:
    def test_is_the_fastest(self):
        ways = WayTable(
            (
                WayRate(ARRAY, 4000.0, 1.0),
                WayRate(DALI, 3000.0, 0.5),
                WayRate(DALI_HOST, why_not="no DALI"),
            )
        )

        assert ways.best == ways.ways[0]
        assert ways.reason() == 'executor="array" is 1.33 times as fast as executor="dali".'

    def test_takes_the_least_processor_time_of_those_that_are_as_fast(self):
        ways = WayTable((WayRate(ARRAY, 1000.0, 1.0), WayRate(DALI, 980.0, 0.25)))

        assert ways.best == ways.ways[1]
        assert ways.reason() == (
            'executor="dali" is as fast as executor="array", which takes 4.00 times its processor time.'
        )

    def test_may_be_the_only_one(self):
        ways = WayTable((WayRate(ARRAY, 1000.0, 1.0), WayRate(DALI, why_not="no DALI")))

        assert ways.reason() == 'executor="array" is the only way that was measured here.'

    def test_may_be_none(self):
        ways = WayTable((WayRate(DALI, why_not="no DALI"),))

        assert ways.best is None
        assert ways.as_dict()["best_way"] is None


class FakeLoader:
    """What is asked of a loader before one is made for each way."""

    def __init__(self, device="gpu:0", ops=None, executor="array", decode="auto", on_host=False):
        self.device, self.ops, self.executor = device, ops or [gl.ops.Decode()], executor
        self.place = "gpu:0, by DALI"
        if on_host or "dali" not in executor or decode == "host":
            self.place = "the host, by the core"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def describe(self):
        return f"executor:  {self.executor} (asked for)\ndecoding:  on {self.place} (for a reason)\ndevice:    gpu:0"


class TestWaysAreMeasured:
    def test_in_turns_and_the_faster_turn_counts(self):
        rates, order = iter([100.0, 300.0, 200.0, 250.0, 150.0, 90.0]), []

        def make(**arguments):
            order.append(arguments)
            return FakeLoader(**arguments)

        ways = compare_ways(make, FakeLoader(), lambda loader, seconds: (next(rates), seconds), 4.0)

        assert order == [*bench_ways.WAYS] * 2
        assert [way.records_per_s for way in ways.ways] == [250.0, 300.0, 200.0]
        assert {way.core_ms for way in ways.ways} == {2.0}  # of so many seconds a turn
        assert ways.auto == "on the host, by the core (for a reason)"

    def test_one_that_cannot_be_made_is_told_with_its_remedy_and_not_tried_again(self):
        tried = []

        def make(**arguments):
            tried.append(arguments)
            if arguments["executor"] == "dali":
                raise MissingPackageError(
                    "x", cause="nvidia-dali is not installed", remedy="pip install it"
                )
            return FakeLoader()

        ways = compare_ways(make, FakeLoader(), lambda loader, seconds: (100.0, 1.0), 1.0)

        assert [way.why_not for way in ways.ways] == [
            "",
            *["x: nvidia-dali is not installed; pip install it"] * 2,
        ]
        assert len(tried) == 4
        assert ways.best.words == ARRAY

    def test_one_that_dali_or_cuda_fails_at_is_told_and_the_others_are_measured(self):
        def make(**arguments):
            if arguments == {"executor": "dali"}:
                raise RuntimeError("CUDA runtime API error\nno kernel image")
            return FakeLoader(**arguments)

        ways = compare_ways(make, FakeLoader(), lambda loader, seconds: (100.0, 1.0), 1.0)

        assert [way.why_not for way in ways.ways] == [
            "",
            "",
            "failed: CUDA runtime API error no kernel image",
        ]

    @pytest.mark.parametrize(
        ("executor", "twins"),
        [
            ("array", ['executor="array": no op is left for DALI'] * 2),
            ("dali 2.4.0", ["", 'executor="dali", decode="host": the host decodes here']),
        ],
    )
    def test_one_that_does_as_another_is_told_and_not_measured(self, executor, twins):
        def make(**arguments):
            return FakeLoader(**{**arguments, "executor": executor}, on_host=True)

        ways = compare_ways(make, FakeLoader(), lambda loader, seconds: (100.0, 1.0), 1.0)

        assert [way.why_not.removeprefix("does the same as ") for way in ways.ways] == ["", *twins]

    def test_not_of_records_that_no_op_decodes(self):
        assert (
            compare_ways(FakeLoader, FakeLoader(ops=(gl.ops.Cast("float32"),)), None, 1.0) is None
        )

    def test_not_without_a_gpu_and_the_reason_is_told(self, monkeypatch):
        monkeypatch.setattr(devices, "choose", lambda device: ("cpu", "CuPy is not installed"))

        ways = compare_ways(FakeLoader, FakeLoader(device="cpu"), None, 1.0)

        assert ways == WayTable(why_not="there is no GPU to measure them on: CuPy is not installed")

    def test_not_where_a_cpu_was_asked_for_beside_a_gpu(self, monkeypatch):
        monkeypatch.setattr(devices, "choose", lambda device: ("gpu:0", "there is one"))

        assert compare_ways(FakeLoader, FakeLoader(device="cpu"), None, 1.0) is None


def test_without_a_gpu_bench_says_that_ways_are_not_measured(photos, capsys, monkeypatch):
    monkeypatch.setattr(devices, "choose", lambda device: ("cpu", "CuPy finds no CUDA driver"))
    call = ["bench", str(photos), "--batch-size", "4", "--seconds", "0.1"]

    assert cli.main(call) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "Not measured: the ways of images to a GPU, for there is no GPU to measure them on: CuPy finds no"
        in text
    )
    assert "Write:" not in text
    assert cli.main([*call, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["ways"], document["best_way"], document["loader_line"]) == ([], None, "")
    assert document["ways_why_not"].startswith("there is no GPU to measure them on: ")


def test_of_rows_bench_says_nothing_about_ways(tmp_path, capsys):
    np.save(tmp_path / "rows.npy", np.zeros((100, 8), np.float32))

    assert (
        cli.main(
            ["bench", str(tmp_path / "rows.npy"), "--seconds", "0.1", "--device", "cpu", "--json"]
        )
        == 0
    )
    assert "ways" not in json.loads(capsys.readouterr().out)


class TestTheLineToWrite:
    def test_has_all_that_was_measured(self):
        line = loader_line(
            "photos", 32, ("", "[gl.ops.Decode()]"), DALI_HOST, in_order=False, device="gpu:1"
        )

        assert line == (
            "loader = gl.Loader(gl.open('photos'), 32, ops=[gl.ops.Decode()], shuffle=True, "
            'device="gpu:1", executor="dali", decode="host")'
        )

    @pytest.mark.parametrize(
        ("name", "ops"), [("train", "train"), ("make", "make()"), ("one", "[one]")]
    )
    def test_has_ops_of_a_file_as_they_are_written(self, name, ops, tmp_path):
        text = (
            "import gpuload as gl\none = gl.ops.Decode()\ntrain = [one]\ndef make(): return train\n"
        )
        (tmp_path / "ops_of_ways.py").write_text(text)
        option = f"{tmp_path / 'ops_of_ways.py'}:{name}"

        find_ops(option)

        assert words_of(option) == (f"from ops_of_ways import {name}\n", ops)


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_bench_measures_the_ways_on_a_gpu_and_its_line_makes_that_loader(photos, capsys):
    call = ["bench", str(photos), "--batch-size", "4", "--seconds", "0.2", "--device", "gpu"]

    assert cli.main(call) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    table = lines.index(next(line for line in lines if line.startswith("ways to the GPU")))
    assert [line.split("  ")[0] for line in lines[table + 1 :] if line.startswith("executor=")][
        :1
    ] == [ARRAY]
    assert "Without these arguments images are decoded on the host, by " in " ".join(text.split())
    (line,) = [line.strip() for line in lines if line.startswith("    loader = ")]
    names = {"gl": gl}
    exec(line, names)  # as a user types it
    with names["loader"] as loader:
        batch = next(iter(loader))
        assert (batch["image"].shape, loader.device) == ((4, 224, 224, 3), "gpu:0")
    assert cli.main([*call, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (array,) = [way for way in document["ways"] if way["words"] == ARRAY]
    assert array["records_per_s"] > 0
    assert array["core_ms"] > 0
    assert document["loader_line"].endswith(f"{document['best_way']})")
