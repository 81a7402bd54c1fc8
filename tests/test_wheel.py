"""The wheel is used where there is no compiler; the sdist is installed there, and gpuload says what
is slow and why."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import gpuload as gl
from tests.environments import BUILDERS, COMMAND, NUMPY, ROOT, Environment, builder, environment
from tests.matrix import BUILD_FILES, PACKAGES_BESIDE

SMOKE = ROOT / "tests" / "smoke.py"
LEFT_OUT = "gpuload is built without its compiled core and will work by NumPy, many times slower: "
SLOW = "NumPy, many times slower (the compiled core is not installed: there was no C++ compiler, or it failed)"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def without_compiler(machine: Environment) -> dict[str, str]:
    """Return variables with which a command finds the environment's programs alone."""
    path = str(machine.folder / "bin")
    assert not any(
        shutil.which(name, path=path) for name in ("cc", "c++", "gcc", "g++", "clang", "clang++")
    )
    return {"PATH": path}


def source_tree(folder: Path) -> Path:
    """Copy what gpuload is built from, without the core that was built in place."""
    shutil.copytree(
        ROOT / "gpuload",
        folder / "gpuload",
        ignore=shutil.ignore_patterns("_native*", "__pycache__"),
    )
    for name in BUILD_FILES:
        shutil.copy(ROOT / name, folder)
    for name in PACKAGES_BESIDE:
        shutil.copytree(ROOT / name, folder / name)
    return folder


def files(pattern: str) -> set[str]:
    """Return the files of the checkout by a pattern, relative to it."""
    return {path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    machine = builder(folder / "python")
    tree = source_tree(folder / "source")
    process = machine.run(machine.python, "setup.py", "-q", "sdist", "--dist-dir", folder, cwd=tree)
    assert process.returncode == 0, process.stderr
    (archive,) = folder.glob("*.tar.gz")
    return archive


def run_smoke_test(machine: Environment, folder: Path, expected: str) -> str:
    """Run the smoke test outside of the checkout; return what it prints."""
    shutil.copy(SMOKE, folder)
    process = machine.run(
        machine.python, folder / SMOKE.name, expected, cwd=folder, **without_compiler(machine)
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def test_the_wheel_works_compiled_where_there_is_no_compiler(gpuload_wheel, tmp_path):
    machine = environment(tmp_path / "python", *NUMPY)
    process = machine.pip("install", "--no-deps", gpuload_wheel, **without_compiler(machine))
    assert process.returncode == 0, process.stdout + process.stderr

    printed = run_smoke_test(machine, tmp_path, "compiled")

    assert printed.startswith(f"right: {machine.packages}/gpuload/__init__.py, compiled, NumPy ")


def test_the_wheel_holds_the_core_and_texts_of_kernels_and_the_sdist_what_it_is_built_from(
    gpuload_wheel, sdist
):
    with zipfile.ZipFile(gpuload_wheel) as wheel, tarfile.open(sdist) as archive:
        in_wheel = set(wheel.namelist())
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}

    modules = {*files("gpuload/**/*.py"), "gpuload/py.typed", "gpuload_command.py"}
    kernels = files("gpuload/kernels/cu/*") | files("gpuload/core/cpp/shared/*")
    beside = {path for folder in PACKAGES_BESIDE for path in (ROOT / folder).rglob("*.py")}
    moved = {path.relative_to(path.parents[1]).as_posix() for path in beside}
    native = files("gpuload/core/cpp/*.?pp")
    beside = {path for folder in PACKAGES_BESIDE for path in (ROOT / folder).rglob("*.py")}
    moved = {path.relative_to(path.parents[1]).as_posix() for path in beside}
    sources = {path.relative_to(ROOT).as_posix() for path in beside}
    (compiled,) = {name for name in in_wheel if name.endswith(".so")}
    assert re.fullmatch(r"gpuload/core/_native\.(abi3|cpython-\w+-[\w-]+)\.so", compiled)
    assert {name for name in in_wheel if ".dist-info/" not in name} == {
        *modules,
        *kernels,
        *moved,
        compiled,
    }
    sources = {path.relative_to(ROOT).as_posix() for path in beside}
    assert {*modules, *kernels, *native, *sources, *BUILD_FILES} - in_sdist == set()
    assert not any(name.endswith(".so") or name.startswith("tests/") for name in in_sdist)


def test_the_sdist_is_installed_without_a_compiler_and_says_what_is_slow_and_why(sdist, tmp_path):
    machine = environment(tmp_path / "python", *NUMPY, *COMMAND, *BUILDERS)
    variables = without_compiler(machine)

    process = machine.pip("install", "-v", "--no-deps", "--no-build-isolation", sdist, **variables)

    assert process.returncode == 0, process.stdout + process.stderr
    (line,) = re.findall(rf"^ *{LEFT_OUT}.*\n", process.stdout + process.stderr, re.MULTILINE)
    assert "g++" in line or "c++" in line
    assert f"gpuload-{gl.__version__}-py3-none-any.whl" in process.stdout
    assert SLOW in run_smoke_test(machine, tmp_path, "numpy")

    describe = "import gpuload as gl; print(gl.Loader(gl.arrays(x=[1, 2]), 1).describe())"
    logged = machine.run(machine.python, "-c", describe, cwd=tmp_path, **variables)
    assert logged.returncode == 0, logged.stderr
    assert re.search(rf"^core: +{re.escape(SLOW)}$", logged.stdout, re.MULTILINE)
    assert logged.stderr.count("hot loops run in NumPy, many times slower") == 1
    assert "remedy: install a C++ compiler (g++), then gpuload again" in logged.stderr

    health = machine.run(
        machine.folder / "bin" / "gpuload", "health", "--device", "cpu", **variables
    )
    assert health.returncode == 0, health.stderr
    assert f"core:      {SLOW}" in health.stdout


@pytest.fixture(scope="module")
def machine(tmp_path_factory) -> Environment:
    return builder(tmp_path_factory.mktemp("builder") / "python")


def test_where_the_core_is_required_no_compiler_is_an_error(machine, tmp_path):
    build = (machine.python, "setup.py", "-q", "build_ext")

    process = machine.run(
        *build, cwd=source_tree(tmp_path / "source"), GPULOAD_CORE="1", **without_compiler(machine)
    )

    assert process.returncode != 0
    assert "g++" in process.stderr
    assert LEFT_OUT not in process.stderr


@pytest.mark.parametrize("is_broken", [False, True], ids=["no compiler", "an error in the source"])
def test_a_core_that_is_not_built_leaves_none_of_older_source_in_the_checkout(
    machine, tmp_path, is_broken
):
    tree = source_tree(tmp_path / "source")
    old = tree / "gpuload" / "core" / "_native.abi3.so"
    old.write_bytes(b"of older source")
    variables = {} if is_broken else without_compiler(machine)
    if is_broken:
        for path in tree.glob("gpuload/core/cpp/*.cpp"):
            path.write_text("#error of the test\n")

    process = machine.run(
        machine.python, "setup.py", "-q", "build_ext", "--inplace", cwd=tree, **variables
    )

    assert process.returncode == 0, process.stderr
    assert process.stderr.count(LEFT_OUT) == 1
    assert not old.exists()


STUB = """
extern "C" __attribute__((visibility("default"))) const char* PyInit__native() {{ return "{text} " GPULOAD_SOURCE; }}
"""


def stub_tree(folder: Path) -> Path:
    """Copy what gpuload is built from, with one file in place of the core's: it is compiled in a
    moment."""
    tree = source_tree(folder)
    for path in (tree / "gpuload" / "core" / "cpp").iterdir():
        path.unlink()
    (tree / "gpuload" / "core" / "cpp" / "stub.cpp").write_text(STUB.format(text="the first"))
    return tree


def test_a_core_of_other_files_is_built_again_whatever_their_times_are(machine, tmp_path):
    tree = stub_tree(tmp_path / "source")
    build = (machine.python, "setup.py", "-q", "build_ext", "--inplace")
    assert machine.run(*build, cwd=tree, GPULOAD_CORE="1").returncode == 0
    (built,) = tree.glob("gpuload/core/_native*.so")
    assert b"the first" in built.read_bytes()
    stub = tree / "gpuload" / "core" / "cpp" / "stub.cpp"
    stub.write_text(STUB.format(text="the second"))
    os.utime(stub, (0, 0))

    assert machine.run(*build, cwd=tree, GPULOAD_CORE="1").returncode == 0

    assert b"the second" in built.read_bytes()


def test_no_wheel_holds_a_core_that_another_machine_built_in_the_same_folder(machine, tmp_path):
    """As where cibuildwheel copies a checkout into its container, with all that lies in its build
    folder."""
    tree = stub_tree(tmp_path / "source")
    build = (machine.python, "setup.py", "-q", "bdist_wheel", "--dist-dir", tmp_path)
    assert machine.run(*build, cwd=tree, GPULOAD_CORE="1").returncode == 0
    (built,) = tree.glob("build/lib*/gpuload/core/_native*.so")
    built.write_bytes(built.read_bytes() + b"of another machine")

    assert machine.run(*build, cwd=tree, GPULOAD_CORE="1").returncode == 0

    (path,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".so"))
        assert b"the first" in wheel.read(name)
        assert b"of another machine" not in wheel.read(name)


def test_cibuildwheel_takes_the_settings_and_builds_for_each_python_and_processor():
    pytest.importorskip("cibuildwheel")
    command = [
        sys.executable,
        "-m",
        "cibuildwheel",
        "--platform",
        "linux",
        "--print-build-identifiers",
    ]

    process = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100)

    assert process.returncode == 0, process.stderr
    pythons, processors = ("cp310", "cp311", "cp312", "cp313"), ("x86_64", "aarch64")
    assert set(process.stdout.split()) == {
        f"{python}-manylinux_{name}" for python in pythons for name in processors
    }
