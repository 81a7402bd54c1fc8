"""Compiled kernels: the hot loops, compiled by Numba on first use and kept in a cache (`cache`).

This folder alone imports Numba. Every caller has a NumPy form, equal bit for bit, and takes it where Numba is missing,
where ``NUMBA_DISABLE_JIT=1`` switches it off, and as long as Numba is imported and compiles. Nobody waits for that: it
is done in a thread of its own (`making`), which no signal handler breaks off. ``compiled()`` says whether kernels are
used, ``how()`` says why not, and ``Loader.describe()`` passes it on. Kernels release the GIL and start no threads of
their own.

    compiled = kernels.load("random")           # None as long as it is not there
    if compiled is not None:
        with contextlib.suppress(NotReady):     # it is compiled for each kind of arguments by itself
            return compiled.uniform(...)
    return ...                                  # the same by NumPy
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from contextlib import AbstractContextManager
from types import ModuleType

from gpuload.kernels import aside, making
from gpuload.kernels.making import NotReady as NotReady
from gpuload.kernels.making import num_missed as num_missed

_loaded: dict[str, ModuleType] = {}


def compiled() -> bool:
    """Return True if compiled kernels are used, once they are there: Numba is installed and not switched off."""
    return _problem() is None


def how() -> str:
    """Return what is used now, and why it is not the compiled kernels where they are not."""
    problem = _problem()
    if problem is not None:
        return f"NumPy ({problem})"
    return "NumPy while Numba compiles" if making.is_under_way() or not _loaded else "compiled by Numba"


def load(name: str) -> ModuleType | None:
    """Return the kernel module ``gpuload.kernels.<name>``, or None where the kernels are not used, or not yet there.

    Its kernels raise ``NotReady`` as long as they are not compiled for arguments of these types.
    """
    module = _loaded.get(name)
    if module is None and compiled():
        if making.is_patient():
            return aside.call(functools.partial(_import, name))
        making.ask(("import", name), functools.partial(_import, name))
    return module


def require(name: str) -> ModuleType:
    """Return the kernel module ``gpuload.kernels.<name>``, for those who have asked before whether kernels are used.

    Raises:
        NotReady: it is not there yet.
        RuntimeError: kernels are not used.
    """
    module = load(name)
    if module is None:
        raise NotReady(name) if compiled() else RuntimeError(f"no compiled {name}: {_problem()}")
    return module


def patient() -> AbstractContextManager[None]:
    """Return a context in which whoever needs a kernel waits until it is compiled, in all threads.

    It is for measurements, and for filling the cache when a container image is built::

        with kernels.patient():
            next(iter(loader))
    """
    return making.patient()


def wait() -> None:
    """Wait until all kernels that were asked for so far are made.

    A kernel whose module had to be imported is compiled when the next step calls it.
    """
    making.wait()


def _import(name: str) -> ModuleType:
    _loaded[name] = module = importlib.import_module(f"gpuload.kernels.{name}")
    return module


@functools.cache
def _problem() -> str | None:
    """Return why the compiled kernels cannot be used, None where they can; decided once in a process."""
    if not aside.is_installed("numba"):
        return "Numba is not installed"
    return "Numba is switched off: NUMBA_DISABLE_JIT" if _is_switched_off() else None


def _is_switched_off() -> bool:
    """Return Numba's own answer where it is imported, else what it would read from the environment."""
    switch = getattr(sys.modules.get("numba.core.config"), "DISABLE_JIT", None)
    if switch is None:
        text = os.environ.get("NUMBA_DISABLE_JIT", "0").strip()
        switch = int(text) if text.lstrip("+-").isdecimal() else 0  # Numba warns of anything else, and goes on
    return bool(switch)
