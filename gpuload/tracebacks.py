"""Tracebacks: an error of gpuload shows the frames of the user, and of ours the call and the place that raised it.

The frames between help only the authors of gpuload: with ``GPULOAD_DEBUG=1`` in the environment all frames are shown.
Only errors of gpuload are cut; an exception of the user's own function keeps all of its frames.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, TypeVar

from gpuload.errors import GpuloadError

DEBUG = "GPULOAD_DEBUG"
PACKAGE = "gpuload"
PUBLIC = "_is_public"  # the attribute that marks a public function
Call = TypeVar("Call", bound=Callable[..., Any])
ErrorType = TypeVar("ErrorType", bound=BaseException)


def trim_frames(error: ErrorType) -> ErrorType:
    """Return the error; of our frames in its traceback, if it is one of gpuload, the innermost alone is left."""
    if not isinstance(error, GpuloadError) or os.environ.get(DEBUG, "0") not in ("", "0"):
        return error
    entries, entry = [], error.__traceback__
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    own_entries = [entry for entry in entries if _is_ours(entry)]
    trace: TracebackType | None = None
    for entry in reversed(entries):
        if entry not in own_entries[:-1]:
            trace = TracebackType(trace, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return error.with_traceback(trace)


def _is_ours(entry: TracebackType) -> bool:
    name = str(entry.tb_frame.f_globals.get("__name__", ""))
    return name == PACKAGE or (name.startswith(f"{PACKAGE}.") and not name.startswith(f"{PACKAGE}.testing"))


def public(function: Call) -> Call:
    """Return the function as users call it: its errors have trimmed tracebacks."""

    @functools.wraps(function)
    def call(*args: Any, **arguments: Any) -> Any:
        try:
            return function(*args, **arguments)
        except GpuloadError as error:
            raise trim_frames(error)  # noqa: B904  it is the same error

    setattr(call, PUBLIC, True)
    return call  # type: ignore[return-value]


def published(value: Any, package: str) -> Any:
    """Return a value as users of a package have it: a function is public, and so is how a class is made.

    Args:
        value: a function, a class, which is changed itself, or something else, which stays as it is.
        package: where users, and pickle, find it.
    """
    if inspect.isfunction(value):
        function = public(value)
        function.__module__ = package
        return function
    if inspect.isclass(value) and not inspect.isabstract(value) and "__init__" in vars(value):
        publish_methods(value, ("__init__",))
    return value


def publish(namespace: dict[str, Any], names: Iterable[str]) -> None:
    """Make the named functions and classes of a module's namespace public."""
    for name in names:
        namespace[name] = published(namespace[name], namespace["__name__"])


def publish_methods(kind: type, names: Iterable[str]) -> None:
    """Make the named methods of a class public. Those that are public stay as they are."""
    for name in names:
        method = vars(kind)[name]
        if not hasattr(method, PUBLIC):
            setattr(kind, name, public(method))
