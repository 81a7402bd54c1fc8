"""Without the core everything is made by NumPy, and equal; and it is told."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from gpuload import core
from tests import forkserver

ROOT = Path(__file__).parents[2]
ROWS = """
import sys
import numpy as np
import gpuload as gl

source = gl.npy(sys.argv[1])
ops = [gl.ops.Cast("float64", on="x")]
"""
IMAGES = """
import sys
import numpy as np
import gpuload as gl

source = gl.images(sys.argv[1])
normalize = gl.ops.Normalize((120.0, 110.0, 100.0), (60.0, 61.0, 62.0))
ops = [gl.ops.Decode(), gl.ops.Resize(24, 20), gl.ops.RandomFlip(), normalize]
"""
RUN = """
arguments = dict(batch_size=5, shuffle=True, seed=3, ops=ops, device="cpu", executor="array")
with gl.Loader(source, **arguments) as loader:
    batches = list(loader)
    np.savez(sys.argv[2], *(batch.records for batch in batches), *(values for batch in batches for values in batch))
    lines = dict(line.split(":", 1) for line in loader.describe().splitlines())
    print(lines["core"].strip())
"""
needs_core = pytest.mark.skipif(core.native is None, reason=core.problem)


def run(code, *arguments, folder=ROOT, **settings):
    environment = {
        name: value for name, value in os.environ.items() if name != core.SWITCH
    } | settings
    process = forkserver.run(
        code, *arguments, folder=folder, environment=environment, has_gpuload=False
    )
    assert process.returncode == 0, process.stderr
    return process


def batches_of(code, source, target, **settings):
    """Return what a loader in another process delivers, and what it says that it works with."""
    process = run(code + RUN, source, target, **settings)
    with np.load(target) as arrays:
        return [arrays[name] for name in arrays], process.stdout.strip()


def assert_equal_without_the_core(code, source, folder):
    expected, how = batches_of(code, source, folder / "core.npz")
    arrays, how_without = batches_of(code, source, folder / "without.npz", GPULOAD_CORE="0")

    assert how == "compiled"
    assert (
        how_without
        == "NumPy, many times slower (the compiled core is switched off: GPULOAD_CORE=0)"
    )
    assert len(expected) == len(arrays) > 6
    for array, other in zip(arrays, expected, strict=True):
        np.testing.assert_array_equal(array, other)  # the same to the last bit


@needs_core
def test_rows_are_the_same(tmp_path):
    rows = np.arange(40 * 6, dtype=np.int32).reshape(40, 6)
    np.save(tmp_path / "x.npy", rows)
    assert_equal_without_the_core(ROWS, tmp_path / "x.npy", tmp_path)


@needs_core
def test_images_are_the_same(tmp_path):
    image_module = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    for number in range(16):
        place = tmp_path / "images" / str(number % 2)
        place.mkdir(parents=True, exist_ok=True)
        size = tuple(int(length) for length in random.integers(30, 60, 2))
        image = image_module.fromarray(random.integers(0, 256, (7, 9, 3), np.uint8)).resize(size)
        image.save(place / f"{number}.{'png' if number % 5 == 0 else 'jpg'}")
    assert_equal_without_the_core(IMAGES, tmp_path / "images", tmp_path)


WARN = """
import logging, sys
logging.basicConfig(format="LOG %(levelname)s %(message)s", stream=sys.stdout, level=logging.WARNING)
sys.modules["gpuload.core._native"] = {native}
import gpuload as gl
for _ in range(2):
    gl.Loader(gl.arrays(x=[1, 2]), 1, device="cpu").close()
"""


def test_a_core_that_is_missing_is_told_once_in_the_log_with_its_remedy():
    printed = run(WARN.format(native=None)).stdout

    assert printed.count("LOG WARNING hot loops run in NumPy, many times slower") == 1
    assert "cause: the compiled core is not installed" in printed
    assert "remedy: install a C++ compiler (g++), then gpuload again" in printed


def test_a_core_that_was_built_from_other_files_is_not_used_and_the_log_says_so():
    printed = run(WARN.format(native="type(sys)('gpuload.core._native')")).stdout

    assert printed.count("LOG WARNING hot loops run in NumPy, many times slower") == 1
    assert "cause: the compiled core was built from other C++ files than those beside it" in printed
    assert "remedy: make core builds it again; or set GPULOAD_CORE=0" in printed


@needs_core
def test_a_core_is_used_beside_the_files_that_it_was_built_from_and_where_there_are_none(tmp_path):
    shutil.copytree(
        ROOT / "gpuload", tmp_path / "gpuload", ignore=shutil.ignore_patterns("__pycache__")
    )
    files = tmp_path / "gpuload" / "core" / "cpp"

    def how():
        return run("from gpuload import core; print(core.how())", folder=tmp_path).stdout

    assert how() == "compiled\n"
    content = (files / "walk.cpp").read_text()
    (files / "walk.cpp").write_text(content + "\n")
    assert how().startswith(
        "NumPy, many times slower (the compiled core was built from other C++ files"
    )
    (files / "walk.cpp").write_text(content)
    (files / "walk.cpp").rename(files / "walks.cpp")
    assert how().startswith(
        "NumPy, many times slower (the compiled core was built from other C++ files"
    )
    shutil.rmtree(files)  # as a wheel
    assert how() == "compiled\n"


def test_one_that_was_switched_off_is_not_told_in_the_log():
    assert run(WARN.format(native=None), GPULOAD_CORE="0").stdout == ""


def test_a_core_that_cannot_be_loaded_says_why(tmp_path):
    package = tmp_path / "gpuload"
    package.symlink_to(ROOT / "gpuload")
    code = """
import importlib
find = importlib.import_module
def fail(name, *more):
    if name.endswith("_native"):
        raise ImportError("libstdc++.so.6: version `GLIBCXX_3.4.30' not found")
    return find(name, *more)
importlib.import_module = fail
from gpuload import core
print(core.how())
"""
    printed = run(code).stdout

    assert "the compiled core cannot be loaded: libstdc++.so.6: version" in printed
