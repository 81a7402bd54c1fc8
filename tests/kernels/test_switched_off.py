"""With NUMBA_DISABLE_JIT=1 everything is made by NumPy, and equal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gpuload import kernels

ROOT = Path(__file__).parents[2]
ROWS = """
import sys
import numpy as np
import gpuload as gl
from gpuload import kernels

source = gl.npy(sys.argv[1])
ops = [gl.ops.Cast("float64", on="x")]
"""
IMAGES = """
import sys
import numpy as np
import gpuload as gl
from gpuload import kernels

source = gl.images(sys.argv[1])
normalize = gl.ops.Normalize((120.0, 110.0, 100.0), (60.0, 61.0, 62.0))
ops = [gl.ops.Decode(), gl.ops.Resize(24, 20), gl.ops.RandomFlip(), normalize]
"""
RUN = """
arguments = dict(batch_size=5, shuffle=True, seed=3, ops=ops, device="cpu", executor="array")
with kernels.patient(), gl.Loader(source, **arguments) as loader:
    batches = list(loader)
    np.savez(sys.argv[2], *(batch.records for batch in batches), *(values for batch in batches for values in batch))
    lines = dict(line.split(":", 1) for line in loader.describe().splitlines())
    print(lines["kernels"].strip())
"""


def made(code, source, target, **settings):
    """What a loader in another process made, and what it says that it works with."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_DISABLE_JIT"} | settings
    command = [sys.executable, "-c", code + RUN, str(source), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=100)
    assert done.returncode == 0, done.stderr
    with np.load(target) as arrays:
        return [arrays[name] for name in arrays], done.stdout.strip()


def assert_equal_without_the_compiler(code, source, folder):
    expected, how = made(code, source, folder / "compiled.npz")
    arrays, how_without = made(code, source, folder / "without.npz", NUMBA_DISABLE_JIT="1")

    if kernels.compiled():
        assert how == "compiled by Numba"
    assert how_without == "NumPy (Numba is switched off: NUMBA_DISABLE_JIT)"
    assert len(expected) == len(arrays) > 6
    for array, other in zip(arrays, expected, strict=True):
        np.testing.assert_array_equal(array, other)  # NumPy's forms and the kernels are the same to the last bit


@pytest.mark.skipif(not kernels.compiled(), reason="Numba is not installed")
def test_rows_are_the_same(tmp_path):
    rows = np.arange(40 * 6, dtype=np.int32).reshape(40, 6)
    np.save(tmp_path / "x.npy", rows)
    assert_equal_without_the_compiler(ROWS, tmp_path / "x.npy", tmp_path)


@pytest.mark.skipif(not kernels.compiled(), reason="Numba is not installed")
def test_images_are_the_same(tmp_path):
    image_module = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    for number in range(16):
        place = tmp_path / "images" / str(number % 2)
        place.mkdir(parents=True, exist_ok=True)
        size = tuple(int(length) for length in random.integers(30, 60, 2))
        image = image_module.fromarray(random.integers(0, 256, (7, 9, 3), np.uint8)).resize(size)
        image.save(place / f"{number}.{'png' if number % 5 == 0 else 'jpg'}")
    assert_equal_without_the_compiler(IMAGES, tmp_path / "images", tmp_path)


@pytest.mark.skipif(not kernels.compiled(), reason="Numba is not installed")
@pytest.mark.parametrize(
    ("value", "expected"), [("1", False), (" 2", False), ("0", True), ("", True), ("no number", True)]
)
def test_the_environment_is_read_as_numba_reads_it(value, expected):
    code = "import warnings; warnings.simplefilter('ignore')\nfrom gpuload import kernels; print(kernels.compiled()); "
    code += "import numba; print(not numba.config.DISABLE_JIT)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, cwd=ROOT, timeout=60, env={**os.environ, "NUMBA_DISABLE_JIT": value},
    )  # fmt: skip
    assert done.stdout.split() == [str(expected)] * 2, done.stderr


@pytest.mark.skipif(not kernels.compiled(), reason="Numba is not installed")
def test_numbas_own_switch_counts_where_it_was_set_before():
    code = "import numba; numba.config.DISABLE_JIT = 1\nfrom gpuload import kernels; print(kernels.load('random'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr
