"""``python -m benchmarks.host_decode``: its page, in short form."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from benchmarks import host_decode
from tests import emulated_gpu

pytestmark = pytest.mark.gpu


@pytest.mark.timeout(300)
def test_the_page_has_the_costs_of_each_list_of_ops_and_the_calls_of_a_batch(tmp_path):
    environment = {**os.environ, "GPULOAD_BENCH_DATA": str(tmp_path / "data")}
    command = [
        sys.executable,
        "-m",
        "benchmarks.host_decode",
        "--short",
        "--results",
        str(tmp_path),
    ]

    process = subprocess.run(
        command,
        cwd=emulated_gpu.HERE.parents[1],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert process.returncode == 0, process.stderr
    page = (tmp_path / "host_decode.md").read_text()
    assert "short form: its times mean nothing" in page
    assert "made by `python -m benchmarks.host_decode`" in page
    cells = {
        line.split(" | ")[0].removeprefix("| "): line.rstrip(" |").split(" | ") for line in page.splitlines()
        if line.startswith("| ") and re.search(r"[0-9]", line)
    }  # fmt: skip
    assert list(cells) == list(host_decode.lists_of_ops())
    for name, (_, cpu, lane, *_, launches, _, pageable, uploaded) in cells.items():
        assert float(cpu) > 0
        assert float(lane) > 0
        assert float(pageable) == 0
        assert (float(launches) == 0) == (name in ("bytes", "Decode alone"))
        if name != "Decode alone":
            assert float(uploaded) == pytest.approx(4 * 224 * 224 * 3 / 1e6, abs=0.02)
