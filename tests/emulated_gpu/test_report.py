"""`make gpu-test` from the first part to the page, with little data: what runs here, and what is
left out by name."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from benchmarks import gpu_report
from tests import emulated_gpu

pytestmark = pytest.mark.gpu

PARTS = (
    "machine: link", "data", "right: ways", "right: audit", "right: poison", "parity: arrays", "parity: decoders",
    "tests: loader", "tests: DALI", "JPEG", "images over cores", "rows", "cache: on the card", "waiting: CuPy",
    "rows in a loop", "parity: regions",
)  # fmt: skip


@pytest.mark.timeout(600)
def test_the_parts_that_can_run_are_on_the_page_and_the_others_are_named(tmp_path):
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu_report",
        "--short",
        "--work",
        tmp_path,
        "--page",
        tmp_path / "gpu.md",
        "--patience",  # g++ compiles each kernel once, which takes longer than NVRTC
        "5",
    ]
    environment = {**emulated_gpu.environment(), "GPULOAD_BENCH_DATA": str(tmp_path / "data")}

    process = subprocess.run(
        [*command, "--part", *PARTS], env=environment, capture_output=True, text=True, check=False
    )

    assert process.returncode == 0, process.stdout + process.stderr
    outcomes = json.loads((tmp_path / "report.json").read_text())["outcomes"]
    needs = {part.name: part.needs for part in gpu_report.PARTS}
    of_dali = [name for name in PARTS if any("dali" in package for package in needs[name])]
    assert {name: outcome["status"] for name, outcome in outcomes.items()} == {
        name: "left out" if name in of_dali else "passed" for name in PARTS
    }
    page = (tmp_path / "gpu.md").read_text()
    assert all(
        f"\n- {name}: nvidia.dali is not installed" in page for name in ("JPEG", "parity: decoders")
    )
    for section in (
        "The GPU at work", "Ways beside the CPU", "Images over cores", "Tests", "Parity on this GPU",
        "Rows against the link", "Waiting in a training", "Data that stays on the card",
    ):  # fmt: skip
        assert f"\n## {section}" in page
    assert "| rows-256 | **gpuload** |" in page
    assert re.search(r"\| \*\*gpuload_host\*\* \| [\d,]+ \|", page)
    for ops in ("bytes", "normalised", "colour", "RandAugment", "resized"):
        assert f"| {ops}, way array | the CPU's batches | 0.0000% | 0 | 0 |" in page
    assert re.search(r"\| all others of \d{3} cases \| CuPy, NumPy \| 0\.0000% \| 0 \| 0 \|", page)


def test_without_a_driver_it_says_so_and_what_to_do(tmp_path):
    environment = {**emulated_gpu.environment(), "EMULATED_GPU_DRIVER": "0"}

    command = [sys.executable, "-m", "benchmarks.gpu_report", "--work", str(tmp_path)]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert process.returncode == 2
    assert process.stderr.startswith("there is no GPU to test on: CuPy finds no CUDA driver")
    assert "remedy: install an NVIDIA driver" in process.stderr
    assert list(tmp_path.iterdir()) == []
