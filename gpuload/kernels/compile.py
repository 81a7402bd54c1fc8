"""The decorators of all kernels: compiled once, kept in a cache (`cache`), never broken off half way (`aside`).

A kernel is compiled, or loaded from the cache, at its first call with arguments of new types. Numba calls its method
``_compile_for_args`` then, and only then: what is put around it here costs the other calls nothing. Where the calling
thread holds the compiler's lock (in a signal handler that was called while Numba compiles), it compiles itself: another
thread would wait for the lock for ever.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba.core import ccallback, sigutils
from numba.core.compiler_lock import global_compiler_lock

from gpuload.kernels import aside

try:
    from gpuload.kernels.cache import KernelCache
except (ImportError, AttributeError) as error:  # this Numba has another form inside
    KernelCache = None  # type: ignore[assignment,misc]
    logging.getLogger("gpuload").warning(
        "compiled kernels are kept in Numba's own cache; cause: %s; remedy: install a Numba from 0.61 to 0.68", error
    )

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile a function for use from any thread: no GIL, no fused multiply-add, so that it equals its NumPy form."""
    return _compiled(function, nogil=True)


def short_kernel(function: Function) -> Function:
    """Compile a function that takes a few microseconds: it keeps the GIL, which would take longer to get back."""
    return _compiled(function, nogil=False)


def callback(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function now, for C to call; its ``address`` is what C gets."""

    def compiled(function: Callable[..., Any]) -> Any:
        made = ccallback.CFunc(function, sigutils.normalize_signature(signature), locals={}, options={})
        _keep(made, function)
        made.compile()
        return made

    return compiled


def libc(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of the C library by name, callable in kernels; a name, unlike an address, can be cached."""
    return numba.types.ExternalFunction(name, result(*arguments))


def _compiled(function: Function, *, nogil: bool) -> Function:
    made: Any = numba.njit(nogil=nogil)(function)
    _keep(made, function)
    compile_for = made._compile_for_args

    def compile_aside(*arguments: Any, **keywords: Any) -> Any:
        if global_compiler_lock.is_locked():  # by this thread
            return compile_for(*arguments, **keywords)
        return aside.call(lambda: compile_for(*arguments, **keywords))

    made._compile_for_args = compile_aside
    return made  # type: ignore[no-any-return]


def _keep(made: Any, function: Callable[..., Any]) -> None:
    """Let what is compiled be kept in files."""
    if KernelCache is not None:
        with contextlib.suppress(FileNotFoundError):  # the modules are in no files: part of a frozen program
            made._cache = KernelCache(function)
            return
    with contextlib.suppress(RuntimeError):  # Numba: no folder for its cache can be written; each process compiles anew
        made.enable_caching()
