"""The examples run, as a reader would run them."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Those that launchers start run in tests/launchers.
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NEEDS = {"keras_resume": "keras", "torch_loop": "torch", "jax_loop": "jax", "image_and_mask": "PIL"}
NEEDS |= {"dali_imagenet": "torch", "dali_imagenet_before": "torch", "ray_train": "ray"}


def run(path, folder):
    if path.stem in NEEDS and not importlib.util.find_spec(NEEDS[path.stem]):
        pytest.skip(f"{NEEDS[path.stem]} is not installed")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    process = subprocess.run(
        [sys.executable, path],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "path",
    [path for path in EXAMPLES if not path.stem.startswith("launch_")],
    ids=lambda path: path.stem,
)
def test_an_example_runs(path, tmp_path):
    assert run(path, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_example_with_keras_goes_on_where_it_stopped(tmp_path):
    path = ROOT / "examples" / "keras_resume.py"
    first, second = run(path, tmp_path), run(path, tmp_path)
    assert ["Epoch 3/3" in first, "Epoch" in second] == [True, False]
    assert first.splitlines()[-1] == second.splitlines()[-1] == "trained up to epoch 3, step 0"


def test_every_example_is_named_in_a_page():
    pages = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    names = re.findall(r"\(\.\./examples/(\w+\.py)\)", pages)
    assert sorted(set(names)) == [path.name for path in EXAMPLES]
