"""Builds C++ programs that drive the core without Python, under sanitizers: the fuzzer, and
threads.

What was compiled is kept in build/programs, under a name that holds all that it was made from:
sources, headers, flags and compiler.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "programs"
CPP = ROOT / "gpuload" / "core" / "cpp"
BINDING = ("module.cpp", "nanobind.cpp", "door_*.cpp")  # the files that know Python
# As setup.py has them, but for -O1, with which reports name the right lines.
FLAGS = (
    "-std=c++20",
    "-O1",
    "-g",
    "-fno-omit-frame-pointer",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-Wall",
)
BUILD_S = 600


def compiler() -> str | None:
    """Return the C++ compiler, None where there is none."""
    return shutil.which(os.environ.get("CXX", "g++"))


def core_sources() -> list[Path]:
    """Return the files of the core but for those that know Python."""
    return sorted({*CPP.glob("*.cpp")} - {path for name in BINDING for path in CPP.glob(name)})


def build(name: str, sources: list[Path], cxx: str, flags: list[str], more: list[str]) -> Path:
    """Return the program of some sources and the core.

    Args:
        name: of the program.
        sources: the files beside the core.
        cxx: the compiler.
        flags: for the compiler and the linker, beside ``FLAGS``.
        more: for the linker alone.

    Raises:
        RuntimeError: the compiler failed; with what it printed.
    """
    objects = compile_sources([*core_sources(), *sources], cxx, flags)
    digest = hashlib.sha256(repr(([path.name for path in objects], more)).encode()).hexdigest()[:16]
    return _make(f"{name}-{digest}", [cxx, *map(str, objects), *more, *flags])


def compile_sources(sources: list[Path], cxx: str, flags: list[str]) -> list[Path]:
    """Return an object of each source; see ``build``."""
    BUILD.mkdir(parents=True, exist_ok=True)
    headers = sorted(
        {
            file
            for folder in {CPP, *(path.parent for path in sources)}
            for file in folder.rglob("*.hpp")
        }
    )
    shared = hashlib.sha256(repr((cxx, _run([cxx, "--version"]), FLAGS, flags)).encode())
    for path in headers:
        shared.update(path.read_bytes())

    def compile_source(path: Path) -> Path:
        digest = shared.copy()
        digest.update(str(path).encode() + path.read_bytes())
        return _make(
            f"{path.stem}-{digest.hexdigest()[:16]}.o", [cxx, *FLAGS, *flags, "-c", str(path)]
        )

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_source, sources))


def works(cxx: str, flags: list[str], program: str = "int main() {}") -> bool:
    """Return True if a compiler is there, and makes a program with these flags."""
    if shutil.which(cxx) is None:
        return False
    command = [cxx, "-x", "c++", "-", "-o", os.devnull, *flags]
    return (
        subprocess.run(
            command, input=program, text=True, capture_output=True, check=False
        ).returncode
        == 0
    )


def environment() -> dict[str, str]:
    """Return the environment of a program: without the sanitizer that the tests themselves may run
    under."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def _make(name: str, command: list[str]) -> Path:
    path = BUILD / name
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}.part")  # two processes may build at the same time
        _run([*command, "-o", str(part)])
        part.replace(path)
    return path


def _run(command: list[str]) -> str:
    try:
        process = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=BUILD_S,
            env=environment(),
            cwd=ROOT,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{' '.join(command)} took more than {BUILD_S} s") from None
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{process.stderr[-4000:]}")
    return process.stdout
