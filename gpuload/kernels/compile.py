"""The decorators of all kernels: compiled once, kept in Numba's cache where a folder for it can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile a function for use from any thread: no GIL, no fused multiply-add, so that it equals its NumPy form."""
    return _compiled(function, nogil=True)


def short_kernel(function: Function) -> Function:
    """Compile a function that takes a few microseconds: it keeps the GIL, which would take longer to get back."""
    return _compiled(function, nogil=False)


def _compiled(function: Function, *, nogil: bool) -> Function:
    try:
        return numba.njit(nogil=nogil, cache=True)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # Numba: no folder for its cache can be written; then each process compiles anew
        return numba.njit(nogil=nogil)(function)  # type: ignore[no-any-return]


def libc(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of the C library by name, callable in kernels; a name, unlike an address, can be cached."""
    return numba.types.ExternalFunction(name, result(*arguments))
