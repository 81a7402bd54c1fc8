"""Builds the core (`gpuload/core/cpp`); all else about the package is in pyproject.toml.

Where there is no C++ compiler, or it fails, gpuload is installed without the core and works by NumPy: ``optional``.
setuptools builds it in place for an editable install, so that a checkout is used as it lies there, also by PYTHONPATH.
"""

import os
import sys
from pathlib import Path

import nanobind
from setuptools import Extension, setup

HERE = Path(__file__).parent
NANOBIND = Path(nanobind.include_dir()).parent


def files(pattern: str) -> list[str]:
    """Return the core's files of a kind, relative to this one."""
    return sorted(path.relative_to(HERE).as_posix() for path in (HERE / "gpuload" / "core" / "cpp").glob(pattern))


# One wheel for all Pythons from 3.12 on; nanobind has no stable ABI before.
IS_STABLE = sys.version_info >= (3, 12) and "t" not in getattr(sys, "abiflags", "")
MACROS = [("NDEBUG", None), ("NB_COMPACT_ASSERTIONS", None)]

core = Extension(
    "gpuload.core._native",
    sources=files("*.cpp"),
    depends=files("*.hpp"),
    include_dirs=[str(NANOBIND / name) for name in ("include", "src", "ext/robin_map/include")],
    define_macros=[*MACROS, ("Py_LIMITED_API", "0x030C0000")] if IS_STABLE else MACROS,
    extra_compile_args=[
        "-std=c++20", "-O3", "-fvisibility=hidden", "-fno-strict-aliasing", "-Wall", "-Wextra",
        *([] if "-fsanitize" in os.environ.get("CFLAGS", "") else ["-g0"]),
        # The same bits as NumPy: nothing is fused. The others leave results alone and let loops become vector code.
        "-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno",
    ],
    py_limited_api=IS_STABLE,
    optional=True,
)  # fmt: skip

setup(ext_modules=[core], options={"bdist_wheel": {"py_limited_api": "cp312"}} if IS_STABLE else {})
