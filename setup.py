"""Builds the core (`gpuload/core/cpp`); all else about the package is in pyproject.toml.

No compiler      If there is no C++ compiler, or it fails, gpuload is installed without the core and
                 works by NumPy. The build says so in one line, which pip shows with -v. The wheel
                 has the name py3-none-any then.
GPULOAD_CORE=1   In the environment, this makes it an error that the core cannot be built: for CI
                 and for wheels.
In place         setuptools builds the core in place for an editable install, so that a checkout
                 works as it lies there, also by PYTHONPATH.
"""

import os
import runpy
import sys
from pathlib import Path

import nanobind
from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

HERE = Path(__file__).parent
NANOBIND = Path(nanobind.include_dir()).parent
SOURCE = runpy.run_path(str(HERE / "gpuload" / "core" / "source.py"))["checksum"]()


def files(pattern: str) -> list[str]:
    """Return the core's files of a kind, relative to this one."""
    return sorted(
        path.relative_to(HERE).as_posix()
        for path in (HERE / "gpuload" / "core" / "cpp").glob(pattern)
    )


class BuildCore(build_ext):
    """Build the core, or leave it out."""

    def run(self) -> None:
        """Run the compiler; where it fails, say so, and remove a core of older source."""
        is_in_place = self.inplace
        try:
            super().run()
        except (BaseError, CCompilerError) as error:
            if os.environ.get("GPULOAD_CORE") == "1":
                raise
            print(
                f"gpuload is built without its compiled core and will work by NumPy, many times slower: {error}",
                file=sys.stderr,
            )
            outputs = [Path(self.get_ext_fullpath(core.name))]
            if is_in_place:
                outputs += HERE.glob("gpuload/core/_native*.so")
            for path in outputs:
                path.unlink(missing_ok=True)
            self.extensions = self.distribution.ext_modules = []

    def build_extension(self, extension: Extension) -> None:
        """Run the compiler unless a core of just these C++ files is there; setuptools compares
        times alone."""
        path = Path(self.get_ext_fullpath(extension.name))
        self.force = self.force or not path.exists() or SOURCE.encode() not in path.read_bytes()
        super().build_extension(extension)


class Wheel(bdist_wheel):
    """A wheel that is named after what it holds."""

    def run(self) -> None:
        """Build first, and anew: then it is known whether there is a core, and that no other
        machine built it."""
        self.get_finalized_command("build_ext").force = True
        self.run_command("build")
        self.root_is_pure = not self.distribution.has_ext_modules()
        super().run()


# One wheel for all Pythons from 3.12 on; nanobind has no stable ABI before.
IS_STABLE = sys.version_info >= (3, 12) and "t" not in getattr(sys, "abiflags", "")
MACROS = [("NDEBUG", None), ("NB_COMPACT_ASSERTIONS", None), ("GPULOAD_SOURCE", f'"{SOURCE}"')]

core = Extension(
    "gpuload.core._native",
    sources=files("*.cpp"),
    depends=files("**/*.hpp"),
    define_macros=[*MACROS, ("Py_LIMITED_API", "0x030C0000")] if IS_STABLE else MACROS,
    extra_compile_args=[
        "-std=c++20", "-O3", "-fvisibility=hidden", "-fno-strict-aliasing",
        "-Wall", "-Wextra", "-Wconversion", "-Wshadow",
        *(f"-isystem{NANOBIND / name}" for name in ("include", "src", "ext/robin_map/include")),  # of these no warnings
        *([] if "-fsanitize" in os.environ.get("CFLAGS", "") else ["-g0"]),
        # The same bits as NumPy: nothing is fused. The others leave results alone and let loops
        # become vector code.
        "-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno",
    ],
    py_limited_api=IS_STABLE,
)  # fmt: skip

setup(
    ext_modules=[core],
    cmdclass={"build_ext": BuildCore, "bdist_wheel": Wheel},
    options={"bdist_wheel": {"py_limited_api": "cp312"}} if IS_STABLE else {},
)
