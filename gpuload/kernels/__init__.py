"""Compiled kernels: the hot loops, compiled by Numba on first use and kept in its cache.

This folder alone imports Numba. Without it every caller has a NumPy form of the same meaning; ``compiled()`` says which
of the two is used, and ``Loader.describe()`` passes it on. Kernels release the GIL and start no threads of their own.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from types import ModuleType


@cache
def compiled() -> bool:
    """Return True if the compiled kernels can be used: Numba is installed."""
    return importlib.util.find_spec("numba") is not None


@cache
def load(name: str) -> ModuleType | None:
    """Return the kernel module ``gpuload.kernels.<name>``, or None where Numba is not installed."""
    return importlib.import_module(f"gpuload.kernels.{name}") if compiled() else None


def require(name: str) -> ModuleType:
    """Return the kernel module ``gpuload.kernels.<name>``, for those who have asked before whether there is one.

    Raises:
        RuntimeError: there is none.
    """
    module = load(name)
    if module is None:
        raise RuntimeError(f"no compiled {name} without Numba")
    return module
