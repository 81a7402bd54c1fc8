"""gpuload parity: each op on each executor beside what it means."""

from __future__ import annotations

import numpy as np
import pytest

import gpuload as gl
from gpuload import cli
from gpuload.cli import parity
from tests import opexamples


def test_the_example_of_each_op_is_compared_or_it_is_said_why_not():
    ops = {type(op).__name__: op for op in parity.examples()}

    rest = set(opexamples.NAMES) - ops.keys() - parity.ELSEWHERE.keys()
    assert {name: op for name, op in ops.items() if op != opexamples.example(name)} == {}
    assert all(op.joint or op.needs_numpy or op.needs_dali for op in map(opexamples.example, rest))
    assert ops.keys() >= {"Brightness", "RandomFlip", "Rotate", "OneOf", "Resize"}


def test_all_executors_of_this_machine_are_within_their_bounds(capsys):
    assert cli.main(["parity"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].endswith("comparisons, none broken")
    assert sum("array on cpu" in line for line in lines) == len([*parity.examples(), *parity.SMALLER])


def test_an_executor_that_makes_something_else_is_broken(capsys, monkeypatch):
    class Wrong(gl.ops.Brightness):
        def array_batch(self, xp, x, draw):
            return super().array_batch(xp, x, draw) ^ 1

        def fold(self, walk, draw):
            return None

        def row_form(self, field):
            return None

    monkeypatch.setattr(parity, "examples", lambda: [Wrong(0.5, 1.5), gl.ops.RandomFlip()])

    assert cli.main(["parity"]) == 1

    out = capsys.readouterr().out
    assert "BROKEN array on cpu   Wrong: largest 1, mean 1, on 100.0000%" in out
    assert "ok     array on cpu   RandomFlip: largest 0" in out


def test_resizing_by_dali_is_bounded_by_one_level(monkeypatch):
    pytest.importorskip("nvidia.dali")
    monkeypatch.setattr(parity, "examples", list)
    monkeypatch.setattr(parity, "SMALLER", (gl.ops.Resize(16, 16),))

    by_array, by_dali = parity.compare()

    assert (by_array.largest, by_dali.largest) == (0, 1)
    assert 0.001 < by_dali.share <= parity.HALVES.share


def test_files_are_decoded_by_each_executor(tmp_path, monkeypatch, capsys):
    image_module = pytest.importorskip("PIL.Image")
    pytest.importorskip("nvidia.dali")
    monkeypatch.setattr(parity, "examples", list)
    monkeypatch.setattr(parity, "SMALLER", ())
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    paths = [str(tmp_path / name) for name in ("a.jpg", "b.png", "c.bmp")]
    for path in paths:
        image_module.fromarray(pixels).save(path)

    assert cli.main(["parity", *paths]) == 0
    assert "dali on cpu    Decode of 3 files: largest 0" in capsys.readouterr().out
    assert cli.main(["parity", str(tmp_path / "none.jpg")]) == 2
