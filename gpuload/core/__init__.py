"""Core: the compiled extension, in C++ (`cpp/`); `face.py` describes it.

Each caller has the same in NumPy, equal bit for bit: the meaning of the core's function, which runs
where there is no core::

    if core.native is not None:
        return core.native.uniform(...)
    return ...  # the same by NumPy

It is built when gpuload is installed, if there is a C++ compiler. ``GPULOAD_CORE=0`` in the
environment switches it off. The functions of the core may be called by any number of threads at a
time, and start none.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
from typing import cast

from gpuload.core import source
from gpuload.core.face import Native

SWITCH = "GPULOAD_CORE"
INSTALL = (
    "install a C++ compiler (g++), then gpuload again (pip install -v --force-reinstall --no-deps "
    "--no-cache-dir says why the core cannot be built)"
)
BUILD = "make core builds it again"

log = logging.getLogger("gpuload")


def _load() -> tuple[Native | None, str, str]:
    """Return the extension, or None; and then the reason and the remedy, else two empty texts."""
    if os.environ.get(SWITCH) == "0":
        return None, f"the compiled core is switched off: {SWITCH}=0", ""
    try:
        extension = importlib.import_module("gpuload.core._native")
    except ModuleNotFoundError:
        reason = "the compiled core is not installed: there was no C++ compiler, or it failed"
        return None, reason, INSTALL
    except ImportError as error:
        return None, f"the compiled core cannot be loaded: {error}", INSTALL
    checksum = source.checksum()
    if checksum and getattr(extension, "source", "") != checksum:
        return None, "the compiled core was built from other C++ files than those beside it", BUILD
    return cast(Native, extension), "", ""


native, problem, _remedy = _load()
"""The extension, None where it is not there; and then why."""


def how() -> str:
    """Return the name of the code that hot loops run in; without the core also the reason."""
    if native is not None:
        return "compiled"
    return f"NumPy, many times slower ({problem})"


@functools.cache
def warn_if_missing() -> None:
    """Log a warning, once in a process, if there is no core although it was not switched off."""
    if native is None and os.environ.get(SWITCH) != "0":
        log.warning(
            "hot loops run in NumPy, many times slower; cause: %s; remedy: %s; or set %s=0, and "
            "this is not logged",
            problem,
            _remedy,
            SWITCH,
        )
