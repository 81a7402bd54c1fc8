"""The version stands in one place, and the pages that print it have it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import gpuload as gl
from tests import matrix
from tests.environments import NUMPY, ROOT, environment

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def test_the_version_stands_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    assert re.fullmatch(r"\d+\.\d+\.\d+", gl.__version__)
    assert "version" not in project["project"]
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "gpuload.__version__"}


def test_the_changes_and_the_pages_name_this_version():
    first = re.search(
        r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    versions = {
        (page.name, version)
        for page in pages
        if page.name != "CHANGELOG.md"
        for version in re.findall(r"\bgpuload (\d+\.\d+\.\d+)\b", page.read_text(encoding="utf-8"))
    }

    assert first is not None
    assert first[1] == gl.__version__
    assert ("containers.md", gl.__version__) in versions
    assert {version for _, version in versions} == {gl.__version__}


def test_the_matrix_has_each_python_that_gpuload_takes():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    prefix = "Programming Language :: Python :: "

    versions = tuple(
        line.removeprefix(prefix) for line in project["classifiers"] if line.startswith(prefix)
    )
    assert versions == matrix.PYTHONS
    assert f"numpy>={matrix.NUMPYS[0]}" in project["dependencies"]


def test_an_interpreter_is_found_by_its_version_and_a_foreign_one_is_not():
    version = "{}.{}".format(*sys.version_info[:2])

    program = matrix.interpreter(version)

    assert matrix.interpreter("3.99") is None
    if program is not None:
        output = subprocess.run(
            [program, "--version"], capture_output=True, text=True, check=True
        ).stdout
        assert output.startswith(f"Python {version}.")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_types_of_the_wheel_find_the_mistakes_of_a_user(gpuload_wheel, tmp_path):
    machine = environment(tmp_path / "python", *NUMPY)
    process = machine.pip("install", "--no-deps", gpuload_wheel)
    assert process.returncode == 0, process.stdout + process.stderr
    program = tmp_path / "program.py"
    program.write_text((ROOT / "tests" / "userprogram.py").read_text(encoding="utf-8"))
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--python-executable",
        machine.python,
        program.name,
    ]

    right = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    program.write_text(re.sub(r"  # type: ignore.*", "", program.read_text()))
    wrong = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    assert right.returncode == 0, right.stdout
    assert [re.search(r"\[([a-z-]+)\]", line)[1] for line in wrong.stdout.splitlines() if ": error:" in line] == [
        "arg-type", "call-arg", "attr-defined", "arg-type",
    ]  # fmt: skip
