"""The emulated GPU: a part of `make emulated-gpu`, and how its counts are compared."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests import emulated_gpu, opexamples
from tests.emulated_gpu import counts, opcounts

PYTHON = emulated_gpu.ENVIRONMENT / "bin" / "python"

needs_cupy = pytest.mark.skipif(
    not PYTHON.exists(),
    reason=f"there is no {PYTHON}: `make emulated-gpu` makes it, with CuPy, where g++ is",
)


@needs_cupy
@pytest.mark.timeout(600)  # 20 s of processor time, and other tests run beside it
def test_the_gpu_lane_is_right_on_the_real_cupy_and_costs_no_more_calls_than_before():
    command = [str(PYTHON), "-m", "tests.emulated_gpu", "--short"]

    process = subprocess.run(
        command, cwd=emulated_gpu.HERE.parent.parent, capture_output=True, text=True, check=False
    )

    assert process.returncode == 0, (process.stdout + process.stderr)[-6000:]


@needs_cupy
def test_the_time_of_the_host_is_measured_also_of_what_is_checked():
    command = [str(PYTHON), "-m", "tests.emulated_gpu.counts", "--host", "--only", "OneHot, a"]

    process = subprocess.run(
        command, cwd=emulated_gpu.HERE.parent.parent, capture_output=True, text=True, check=False
    )

    assert process.returncode == 0, process.stderr[-6000:]
    assert re.fullmatch(
        r" +\d+ us of processor time a batch of 256: OneHot, a checked op\n", process.stdout
    )


def test_the_file_of_counts_has_every_work_and_every_column():
    works, ops = counts.read(counts.RESULT.read_text(encoding="utf-8"))

    assert list(works) == list(counts.WORKS)
    assert all(list(row) == list(counts.COLUMNS) for row in works.values())
    assert set(counts.AT_THE_START) <= set(works)
    assert not opcounts.above(ops)


def test_each_op_that_runs_on_a_gpu_has_its_counts_in_the_file():
    _, ops = counts.read(counts.RESULT.read_text(encoding="utf-8"))

    assert set(ops) == {
        name for name in opexamples.NAMES if opcounts.runs_on_a_gpu(opexamples.example(name))
    }


def test_a_count_that_grew_is_named_and_one_that_shrank_or_is_a_matter_of_time_is_not():
    before = {"rows of 3 KiB": {"launches": 1.0, "uploads": 6.0, "waits": 0.0, "allocations": 2.0}}
    now = {
        "rows of 3 KiB": {
            **dict.fromkeys(counts.COLUMNS, 0.0),
            "launches": 2.0,
            "uploads": 1.0,
            "waits": 0.2,
        }
    }

    assert counts.grown(now, before) == ["rows of 3 KiB: launches 2 a batch, before 1"]


def test_what_is_written_is_what_is_read():
    works = {name: dict.fromkeys(counts.COLUMNS, 0.5) for name in counts.WORKS}
    ops = {"Hue": {"launches": 1.0, "uploads": 2.0}, "OneHot": {"launches": 3.0}}

    assert counts.read(counts.page(works, ops)) == (works, ops)


def test_an_op_of_more_than_three_launches_is_named_but_for_those_that_draw_ops():
    row = {"launches, images of one size": 4, "uploads, images of one size": 1}

    assert opcounts.above({"Hue": row, "OneOf": row}) == [
        "Hue: 4 launches, images of one size, at most 3"
    ]


def test_more_than_one_upload_is_named_of_each_op():
    row = {"launches, images of one size": 1, "uploads, images of one size": 2}

    assert opcounts.above({"Hue": row, "OneOf": row}) == [
        f"{name}: 2 uploads, images of one size, at most 1" for name in ("Hue", "OneOf")
    ]


def test_the_extra_for_cuda_13_brings_the_compiler_of_kernels():
    text = (emulated_gpu.HERE.parent.parent / "pyproject.toml").read_text(encoding="utf-8")

    assert '"cupy-cuda13x[ctk]>=' in text
