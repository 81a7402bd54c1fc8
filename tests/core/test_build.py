"""The core is built wherever it can be, and what is built is what is there in source."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sysconfig

import numpy as np
import pytest

from gpuload import core
from tests.environments import ROOT

COMPILERS = ("g++", "clang++", "aarch64-linux-gnu-g++")


def test_the_core_is_there_where_there_is_a_compiler():
    """Without it nearly everything passes, in NumPy; so a build that fails has to fail here."""
    is_required = os.environ.get("GPULOAD_CORE") == "1" or any(
        shutil.which(name) for name in COMPILERS[:2]
    )
    assert core.native is not None or not is_required, f"{core.problem}; make core builds it"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_compilers_have_no_warnings_about_the_core(compiler, monkeypatch):
    pytest.importorskip("nanobind")
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("setuptools.setup", lambda **_: None)
    extension = runpy.run_path("setup.py")["core"]
    macros = [
        f"-D{name}" + (f"={value}" if value else "") for name, value in extension.define_macros
    ]
    include = f"-isystem{sysconfig.get_path('include')}"

    process = subprocess.run(
        [
            compiler,
            "-fsyntax-only",
            "-Werror",
            *macros,
            *extension.extra_compile_args,
            include,
            *extension.sources,
        ],
        capture_output=True,
        text=True,
        timeout=500,
    )

    assert process.returncode == 0, process.stderr


def test_memory_that_is_not_aligned_is_refused():
    if core.native is None:
        return
    records, out = memoryview(bytearray(33)), np.zeros((4, 4), np.uint64)
    core.native.philox(records[:32].cast("q"), 0, 0, 0, out)

    with pytest.raises(TypeError, match="incompatible function arguments"):
        core.native.philox(records[1:].cast("q"), 0, 0, 0, out)


def test_items_of_an_array_may_lie_apart_in_order_and_nowhere_else():
    if core.native is None:
        return
    memory, out = np.arange(7 * 9 * 4, dtype=np.uint8).reshape(7, 9, 4), np.zeros((4, 5, 3), "u1")
    rows = np.arange(4, dtype=np.int32), np.ones((4, 1), np.float32)
    columns = np.array([0, 1, 2, 3, 4, 4, 4, 4], np.int32), np.ones((8, 1), np.float32)
    box = np.ascontiguousarray(memory[..., :3])[2:6, 3:8]
    core.native.resize(box, rows, columns, True, out)
    np.testing.assert_array_equal(out, box)
    core.native.resize(np.broadcast_to(box[:1], box.shape), rows, columns, True, out)
    np.testing.assert_array_equal(out, np.broadcast_to(box[:1], box.shape))

    for other in (box[::-1], box[:, ::-1], box.transpose(1, 0, 2), memory[2:6, 3:8, :3]):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            core.native.resize(other, rows, columns, True, out)


def test_all_that_the_face_promises_is_there_and_nothing_else():
    if core.native is None:
        return
    offered = {name for name in dir(core.native) if not name.startswith("_")}
    promised = {*vars(core.face.Native), *core.face.Native.__annotations__}
    promised = {name for name in promised if not name.startswith("_")}
    assert offered == promised
    for name in core.face.Native.__annotations__.keys() - {"source"}:
        face = getattr(core.face, name)
        members = {*vars(face), *getattr(face, "__annotations__", {})}
        methods = {name for name in dir(getattr(core.native, name)) if not name.startswith("_")}
        assert methods == {name for name in members if not name.startswith("_")}, name
