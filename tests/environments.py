"""Virtual environments in which a test installs and runs, and the wheel of gpuload; nothing is
downloaded."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
INSTALL = ROOT / "docker" / "install.sh"

# What gpuload needs to read and decode. These are this environment's own files, so that pip may
# only be asked to install there what needs no change of them: gpuload's wheel, without its
# dependencies.
NUMPY = ("numpy", r"numpy\.libs")
COMMAND = ("click", "rich", "markdown_it", "mdurl", "pygments")  # of the command line
NEEDED = (*NUMPY, *COMMAND, "PIL", "pillow", r"pillow\.libs", "pyarrow", r"pyarrow\.libs")
BUILDERS = ("setuptools", "_distutils_hack", "pkg_resources", "nanobind")

HIDDEN = (
    "PIP_",
    "PYTHON",
    "CUDA_",
    "GPULOAD_CORE",
    "CC",
    "CXX",
)  # variables with these beginnings are not passed on


class Environment(NamedTuple):
    """A virtual environment, with packages of this one or made up."""

    folder: Path
    packages: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def run(
        self, *command: str | Path, cwd: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command without a network, without pip's settings of this machine, and with a home
        of its own."""
        visible = {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN)}
        home = {"HOME": str(self.folder), "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"}
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=500,
            cwd=cwd,
            env={**visible, **home, "PYTHON": str(self.python), **variables},
        )

    def pip(self, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.run(self.python, "-m", "pip", *arguments, **variables)

    def install(self, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Call the script that installs into images."""
        return self.run(INSTALL, *arguments, **variables)

    def version(self, name: str) -> str:
        """Return the version of an installed package, an empty text where it is not installed."""
        results = [*metadata.distributions(name=name, path=[str(self.packages)])]
        return results[0].version if results else ""

    def make_up(self, name: str, version: str, *, at: Path | None = None) -> Path:
        """Install a package with one module; returns the module's file."""
        module, folder = name.replace("-", "_"), at or self.packages
        (folder / module).mkdir(parents=True)
        (folder / module / "__init__.py").write_text(f"__version__ = {version!r}\n")
        about = folder / f"{module}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        (about / "RECORD").write_text(
            f"{module}/__init__.py,,\n{about.name}/METADATA,,\n{about.name}/RECORD,,\n"
        )
        return folder / module / "__init__.py"


def environment(folder: Path, *linked: str) -> Environment:
    """Make a virtual environment that sees packages of this one by links, and pip."""
    venv.create(folder, symlinks=True)
    packages = (
        folder
        / "lib"
        / f"python{sys.version_info.major}.{sys.version_info.minor}"
        / "site-packages"
    )
    for path in {Path(path) for path in sys.path if path.endswith("site-packages")}:
        for entry in path.iterdir():
            is_wanted = any(
                re.match(rf"({name})([-.]|$)", entry.name, re.IGNORECASE)
                for name in ("pip", *linked)
            )
            if is_wanted and not (packages / entry.name).exists():
                (packages / entry.name).symlink_to(entry)
    return Environment(folder, packages)


def skip_without(machine: Environment, *names: str) -> None:
    """Skip a test where pip would have to download something: a package in the version of
    constraints.txt."""
    for name in names:
        pinned = re.findall(
            rf"^{name}==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE
        )
        if machine.version(name) not in pinned:
            pytest.skip(
                f"{name} is not installed here in the version of constraints.txt, and nothing is downloaded"
            )


def builder(folder: Path) -> Environment:
    """Make an environment in which gpuload can be built; skip the test if there is none."""
    machine = environment(folder, *BUILDERS)
    skip_without(machine, "setuptools", "nanobind")
    return machine


def gpuload_wheel(folder: Path) -> Path:
    """Return gpuload's wheel, built once in a folder that processes share; skip the test where it
    cannot be built."""
    wheels = folder / "wheels"
    with (folder / "wheels.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(wheels.glob("*.whl")):
            machine = builder(folder / "builder")
            if machine.run("which", "g++").returncode != 0:
                pytest.skip("there is no C++ compiler")
            process = machine.install("wheel", wheels)
            assert process.returncode == 0, process.stdout + process.stderr
        (wheel,) = wheels.glob("*.whl")
    return wheel
