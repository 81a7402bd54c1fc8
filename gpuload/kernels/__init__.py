"""Compiled kernels: the hot loops, compiled by Numba on first use and kept in a cache (`cache`).

This folder alone imports Numba. Without it every caller has a NumPy form of the same meaning, and likewise where
``NUMBA_DISABLE_JIT=1`` switches it off; ``compiled()`` says which of the two is used, ``how()`` says why, and
``Loader.describe()`` passes it on. Kernels release the GIL and start no threads of their own.

A signal handler that raises (Ctrl-C) during the first use breaks off neither an import nor a compilation: both are done
in a thread of their own (`aside`), and the next call goes on from there.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from functools import cache
from types import ModuleType

from gpuload.kernels import aside


def compiled() -> bool:
    """Return True if the compiled kernels are used: Numba is installed and not switched off."""
    return _problem() is None


def how() -> str:
    """Return what is used, and why it is not the compiled kernels where they are not."""
    problem = _problem()
    return "compiled by Numba" if problem is None else f"NumPy ({problem})"


@cache
def load(name: str) -> ModuleType | None:
    """Return the kernel module ``gpuload.kernels.<name>``, or None where the kernels are not used."""
    return aside.call(lambda: importlib.import_module(f"gpuload.kernels.{name}")) if compiled() else None


def require(name: str) -> ModuleType:
    """Return the kernel module ``gpuload.kernels.<name>``, for those who have asked before whether there is one.

    Raises:
        RuntimeError: there is none.
    """
    module = load(name)
    if module is None:
        raise RuntimeError(f"no compiled {name}: {_problem()}")
    return module


@cache
def _problem() -> str | None:
    """Return why the compiled kernels cannot be used, None where they can; decided once in a process."""
    if importlib.util.find_spec("numba") is None:
        return "Numba is not installed"
    return "Numba is switched off: NUMBA_DISABLE_JIT" if _is_switched_off() else None


def _is_switched_off() -> bool:
    """Return Numba's own answer where it is imported, else what it would read from the environment."""
    switch = getattr(sys.modules.get("numba.core.config"), "DISABLE_JIT", None)
    if switch is None:
        text = os.environ.get("NUMBA_DISABLE_JIT", "0").strip()
        switch = int(text) if text.lstrip("+-").isdecimal() else 0  # Numba warns of anything else, and goes on
    return bool(switch)
