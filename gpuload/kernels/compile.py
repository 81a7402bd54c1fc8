"""The decorators of all kernels: compiled once, kept in a cache (`cache`), beside those who call them (`making`).

A kernel is compiled, or loaded from the cache, when it was called with arguments of new types. Numba calls its method
``_compile_for_args`` then, and only then: what is put in its place here costs the other calls nothing. It has the
kernel compiled for these types, and raises ``NotReady``.

Where everybody is to wait for the compiler (``making.patient``), it compiles in the call, and `aside` sees to it that
no signal handler breaks that off. Where the calling thread holds the compiler's lock (in a signal handler that was
called while Numba compiles), it compiles itself: another thread would wait for the lock for ever.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numba
import numpy.ma  # noqa: F401  # Numba asks for it at a first call: in the main thread, Ctrl-C could break it off
from numba.core import ccallback, event, sigutils
from numba.core.compiler_lock import global_compiler_lock

from gpuload.kernels import aside, making

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
    inner = function.__name__.startswith("_")  # called by kernels alone: Python's way in takes a fifth of the time
    made: Any = numba.njit(nogil=nogil, no_cpython_wrapper=inner, no_cfunc_wrapper=True)(function)
    _keep(made, function)
    compile_for, name = made._compile_for_args, f"{function.__module__}.{function.__name__}"

    def compile_beside(*arguments: Any, **keywords: Any) -> Any:
        if global_compiler_lock.is_locked():  # by this thread
            return compile_for(*arguments, **keywords)
        if making.is_patient():
            return aside.call(lambda: _compile_here(name, compile_for, arguments, keywords))
        kinds = tuple(made.typeof_pyval(argument) for argument in arguments)
        making.ask((made, kinds), partial(_compile, made, kinds))
        raise making.NotReady(name)

    made._compile_for_args = compile_beside
    return made  # type: ignore[no-any-return]


def _compile_here(name: str, compile_for: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    told = f"the kernel {name.removeprefix('gpuload.kernels.')}"
    with making.telling(told), event.install_listener("numba:run_pass", _Passes()):
        return compile_for(*arguments, **keywords)


def _compile(made: Any, kinds: tuple[Any, ...]) -> None:
    with event.install_listener("numba:run_pass", _Passes()):
        made.compile(kinds)


class _Passes(event.Listener):  # type: ignore[misc]
    """Hears of each pass of the compiler, in any thread: leaves it where that was stopped, and tells how far it is."""

    def on_start(self, event: Any) -> None:
        making.leave()
        making.tell()

    def on_end(self, event: Any) -> None:
        """A pass that was made is followed by another one, or by the end."""


def _keep(made: Any, function: Callable[..., Any]) -> None:
    """Let what is compiled be kept in files."""
    if KernelCache is not None:
        with contextlib.suppress(FileNotFoundError):  # the modules are in no files: part of a frozen program
            made._cache = KernelCache(function)
            return
    with contextlib.suppress(RuntimeError):  # Numba: no folder for its cache can be written; each process compiles anew
        made.enable_caching()
