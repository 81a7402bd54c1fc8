"""The matrix of Pythons and NumPys: gpuload's wheel, built, installed and used in a fresh
environment of each.

    python -m tests.matrix                               each Python from 3.10 to 3.13 that is here,
                                                         NumPy 1.26 and 2
    python -m tests.matrix --python 3.12 --numpy 1.26    one of them
    python -m tests.matrix --extras images csv jax       and each of these extras in an environment
                                                         of its own
    python -m tests.matrix --builds cuda12 emulated      and builds for CUDA beside one another,
                                                         without a GPU
    python -m tests.matrix --tests tests/ops -x          and tests of the checkout, by pytest with
                                                         these arguments

In each cell the smoke test runs with the compiled core and without it, and mypy and pyright check a
user's program against the wheel. Packages come from the index of pip, as wheels alone; a cell whose
packages do not exist is named and left out. ``cuda12`` is TensorFlow, DALI and CuPy in one process;
``emulated`` is CuPy on the emulated GPU with torch and torchvision of one build beside it. The
environments are below build/matrix. A wheel is built again when a file of gpuload is newer; that of
Python 3.12 is for all later ones, too.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "matrix"
STABLE_ABI = 12  # from Python 3.12 on a wheel is for all later ones, too: setup.py
PYTHONS, NUMPYS = ("3.10", "3.11", "3.12", "3.13"), ("1.26", "2")
BRIDGES = {
    "torch": "torch",
    "jax": "jax",
    "tensorflow": "tensorflow",
    "cpu": "tensorflow",
}  # that an extra is for
# The use of an extra for a format, in a folder of its own.
CONVERT = (
    "import numpy as np, gpuload as gl; gl.convert(gl.arrays(x=np.arange(6.0)), {0!r}); "
    "print(gl.open({0!r})[5]['x'])"
)
PROGRAMS = {
    "csv": "open('a.csv', 'w').write('x,y\\n1,2\\n3,5.0\\n'); import gpuload as gl; print(gl.open('a.csv')[1]['y'])",
    "parquet": CONVERT.format("a.parquet"),
    "npz": "import numpy as np; np.savez_compressed('a.npz', x=np.arange(6.0)); from gpuload.storage import inflate; "
    "assert inflate.member_library() is not inflate.zlib; import gpuload as gl; "
    "print(gl.npz('a.npz', record='file')[0]['x'][5])",
    "hdf5": CONVERT.format("a.h5"),
    "zarr": "import numpy as np, zarr, gpuload as gl; zarr.save_group('a.zarr', x=np.arange(6.0)); "
    "print(gl.open('a.zarr')[5]['x'])",
    "remote": "import obstore, gpuload.storage.objects; print('5.0')",  # a store is on a network
}
# Of the repository, what gpuload is built from, beside the folder gpuload.
BUILD_FILES = (
    "gpuload_command.py",
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
)
PACKAGES_BESIDE = ("examples/gpuload_demo", "benchmarks/gpuload_peers")
PLUGIN = "nvidia-dali-tf-plugin-cuda120==2.4.*"  # DALI's for TensorFlow, which is compiled for the one that is there
TREE_LEFT_OUT = ("_native*", "__pycache__", "build", ".*", "*.egg-info")
# On the emulated GPU, with warnings as errors (pyproject.toml): the lane, and streams that other
# libraries name.
EMULATED_TESTS = (
    "tests/test_lane.py", "tests/bridges/test_cupy.py", "tests/emulated_gpu/test_streams.py",
    "tests/emulated_gpu/test_kernels.py",
)  # fmt: skip
TEST_PACKAGES = (
    "pytest",
    "pytest-timeout",
    "hypothesis",
    "pillow",
    "google-crc32c",
    "nanobind==3.1.0",
    "setuptools",
)
# Each comment of the user's program that silences a mistake has to be needed, as under mypy
# --strict.
PYRIGHT_SETTINGS = {"typeCheckingMode": "strict", "reportUnnecessaryTypeIgnoreComment": "error"}


class CellError(Exception):
    """A step of a cell failed; the text is the end of its output."""


def interpreter(version: str) -> str | None:
    """Return the program of a Python, ``"3.12"``, from the path, pyenv or uv; None if none of them
    has it."""
    programs = [
        shutil.which(f"python{version}"),
        *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")),
    ]
    if shutil.which("uv"):
        process = subprocess.run(["uv", "python", "find", version], capture_output=True, text=True)
        programs.append(process.stdout.strip())
    for program in filter(None, programs):
        command = [program, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        if subprocess.run(command, capture_output=True, text=True).stdout.strip() == version:
            return program
    return None


def call(*command: str | Path, cwd: Path = FOLDER, **variables: str) -> str:
    """Run a command and return its output.

    Raises:
        CellError: its exit status is not 0.
    """
    hidden = ("PYTHONPATH", "PYTHONHOME", "GPULOAD_CORE")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    process = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**environment, **variables}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if process.returncode:
        raise CellError(
            f"{' '.join(map(str, command))}\n" + "\n".join(process.stdout.splitlines()[-25:])
        )
    return process.stdout


def build_wheel(python: str, version: str) -> Path:
    """Return gpuload's wheel for a Python, with its compiled core."""
    abi = version if int(version.partition(".")[2]) < STABLE_ABI else f"3.{STABLE_ABI}"
    folder, source = FOLDER / f"wheel-{abi}", FOLDER / f"source-{abi}"
    inputs = [
        *(ROOT / name for name in BUILD_FILES),
        *(ROOT / "gpuload").rglob("*.py"),
        *ROOT.glob("gpuload/core/cpp/**/*.?pp"),
        *ROOT.glob("gpuload/kernels/cu/*"),
    ]
    changed_s = max(path.stat().st_mtime for path in inputs)
    if not any(wheel.stat().st_mtime > changed_s for wheel in folder.glob("*.whl")):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(source, ignore_errors=True)
        shutil.copytree(
            ROOT / "gpuload",
            source / "gpuload",
            ignore=shutil.ignore_patterns("_native*", "__pycache__"),
        )
        for name in BUILD_FILES:
            shutil.copy(ROOT / name, source)
        for name in PACKAGES_BESIDE:
            shutil.copytree(ROOT / name, source / name)
        call(
            python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, source, GPULOAD_CORE="1"
        )
    (wheel,) = folder.glob("*.whl")
    return wheel


def environment(python: str, name: str) -> Path:
    """Return the program of a new virtual environment."""
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    call(python, "-m", "venv", folder)
    return folder / "bin" / "python"


def install(python: Path, *packages: str | Path, constraints: bool = False) -> None:
    """Install packages, as wheels alone."""
    options = ["-c", ROOT / "constraints.txt"] if constraints else []
    call(
        python,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-compile",
        "--only-binary",
        ":all:",
        *options,
        *packages,
    )


@functools.cache
def pyright() -> Path:
    """Return the program of pyright in an environment of its own: that of basedpyright, whose
    wheels bring node."""
    program = environment(sys.executable, "pyright")
    install(program, "basedpyright>=1.31")
    return program.with_name("basedpyright")


def check_cell(python: str, version: str, numpy: str, tests: Sequence[str] | None) -> str:
    """Use gpuload with a Python and a NumPy; returns what ran."""
    wheel, program = build_wheel(python, version), environment(python, f"{version}-numpy-{numpy}")
    install(program, f"numpy=={numpy}.*", wheel, "mypy>=1.15")
    result = call(program, ROOT / "tests" / "smoke.py", "compiled").strip().splitlines()[-1]
    user = (
        program.parents[1] / "user"
    )  # outside of the checkout, so that gpuload is the one that is installed
    user.mkdir()
    shutil.copy(ROOT / "tests" / "userprogram.py", user)
    call(program, "-m", "mypy", "--strict", "userprogram.py", cwd=user)
    (user / "pyrightconfig.json").write_text(json.dumps(PYRIGHT_SETTINGS))
    call(
        pyright(), "--pythonpath", program, cwd=user
    )  # files on its command line would leave the settings out
    if tests is not None:
        install(program, *TEST_PACKAGES, f"numpy=={numpy}.*")
        tree = copy_tree(program, version)
        report = call(program, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not gpu", *tests,
                      cwd=tree, PYTHONPATH=str(tree))  # fmt: skip
        result += f"; tests: {report.strip().splitlines()[-1].strip('= ')}"
    return result


def copy_tree(program: Path, version: str) -> Path:
    """Return a copy of the checkout, with the compiled core that is installed in an environment."""
    tree = FOLDER / f"tree-{version}"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*TREE_LEFT_OUT), dirs_exist_ok=True)
    core = next((program.parents[1] / "lib").glob("python*/site-packages/gpuload/core/_native*"))
    shutil.copy(core, tree / "gpuload" / "core")
    return tree


def check_cuda12(python: str, version: str) -> str:
    """Load the CUDA builds of TensorFlow, DALI and CuPy in one process; returns what ran."""
    wheel, program = build_wheel(python, version), environment(python, f"{version}-cuda12")
    install(program, f"{wheel}[cuda12]", "setuptools", "wheel", "packaging", constraints=True)
    nvidia = next((program.parents[1] / "lib").glob("python*/site-packages/nvidia"))
    headers = os.pathsep.join(
        str(nvidia / name / "include") for name in ("cuda_runtime", "cuda_nvcc")
    )
    options = ("--no-cache-dir", "--no-build-isolation", "-c", ROOT / "constraints.txt")
    call(program, "-m", "pip", "install", "-q", *options, PLUGIN, CPATH=headers)
    return call(program, ROOT / "tests" / "cudabuilds.py").strip().splitlines()[-1]


def check_emulated(python: str, version: str) -> str:
    """Run tests of the emulated GPU beside torch and torchvision of one build for CUDA; returns
    what ran."""
    wheel, program = build_wheel(python, version), environment(python, f"{version}-emulated")
    torchvision = [
        word for word in makefile_words("TORCH_PACKAGES") if word.startswith("torchvision")
    ]
    packages = [*makefile_words("EMULATED_PACKAGES"), *torchvision, "torch"]
    install(program, wheel, *packages, constraints=True)
    tree = copy_tree(program, version)
    variables = {"PYTHONPATH": str(tree), "EMULATED_GPU_CACHE": str(FOLDER / "emulated-gpu-cache")}
    call(program, "-c", "import tests.oracle_torchvision", cwd=tree, **variables)
    pytest = (
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.emulated_gpu.plugin",
        "-p",
        "no:cacheprovider",
        "-m",
        "gpu",
    )
    call(program, *pytest, "--collect-only", "tests/ops", cwd=tree, **variables)
    report = call(program, *pytest, *EMULATED_TESTS, cwd=tree, GPULOAD_REQUIRE_GPU="1", **variables)
    return report.strip().splitlines()[-1].strip("= ")


def makefile_words(name: str) -> list[str]:
    """Return the words of a variable of the Makefile."""
    match = re.search(
        rf"^{name} := ((?:.*\\\n)*.*)",
        (ROOT / "Makefile").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    if match is None:
        raise CellError(f"the Makefile has no {name}")
    return match[1].replace("\\\n", " ").split()


BUILDS = {"cuda12": check_cuda12, "emulated": check_emulated}


def check_extra(python: str, version: str, extra: str) -> str:
    """Install the wheel with an extra, in the versions of constraints.txt, and use it; returns what
    ran."""
    wheel, program = build_wheel(python, version), environment(python, f"{version}-{extra}")
    install(program, f"{wheel}[{extra}]", constraints=True)
    if extra in BRIDGES:
        call(program, "-c", f"import gpuload.bridges.{BRIDGES[extra]}")
    if extra in PROGRAMS:
        folder = program.parents[1] / "user"
        folder.mkdir()
        output = call(program, "-c", PROGRAMS[extra], cwd=folder).strip()
        if output.splitlines()[-1] != "5.0":
            raise CellError(f"{PROGRAMS[extra]}\n{output}")
    call(program, "-m", "gpuload", "health")
    return call(program, ROOT / "tests" / "smoke.py", "compiled").strip().splitlines()[-1]


def main() -> int:
    """Check each cell; 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", nargs="+", default=PYTHONS)
    parser.add_argument("--numpy", nargs="*", default=NUMPYS)
    parser.add_argument("--extras", nargs="*", default=())
    parser.add_argument("--builds", nargs="*", default=(), choices=list(BUILDS))
    parser.add_argument("--tests", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    failures = 0
    for version in arguments.python:
        python = interpreter(version)
        if python is None:
            print(
                f"Python {version}: left out, it is not here (python{version}, pyenv, uv)",
                flush=True,
            )
            continue
        cells = [
            (f"NumPy {numpy}", check_cell, (numpy, arguments.tests)) for numpy in arguments.numpy
        ]
        cells += [(f"[{extra}]", check_extra, (extra,)) for extra in arguments.extras]
        cells += [(f"{name} builds", BUILDS[name], ()) for name in arguments.builds]
        for title, check, options in cells:
            start = time.monotonic()
            try:
                result = check(python, version, *options)
            except CellError as error:
                is_missing = "No matching distribution" in str(error)
                failures += not is_missing
                result = (
                    "left out, there is no wheel of a package for it"
                    if is_missing
                    else f"FAILED\n{error}"
                )
            print(
                f"Python {version}, {title}: {result} ({time.monotonic() - start:.0f} s)",
                flush=True,
            )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
