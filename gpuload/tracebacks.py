"""Tracebacks: an error of gpuload shows the frames of the user, and of ours the call and the place
that raised it.

A call with arguments that do not fit is an error of gpuload, too: it names the arguments that there
are. The frames between help only the authors of gpuload: with ``GPULOAD_DEBUG=1`` in the
environment all frames are shown. Only errors of gpuload are cut; an exception of the user's own
function keeps all of its frames.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, TypeVar

from gpuload import synonyms
from gpuload.errors import MAX_CHARACTERS, CallError, GpuloadError

DEBUG = "GPULOAD_DEBUG"
PACKAGE = "gpuload"
CHANCE = "p"  # an argument that most ops of other libraries have
PUBLIC = "_is_public"  # the attribute that marks a public function
BRIDGES = {
    "tensorflow": "gltf",
    "torch": "gltorch",
    "jax": "gljax",
    "cupy": "glcupy",
    "ray": "glray",
}
Call = TypeVar("Call", bound=Callable[..., Any])
Advice = Callable[[str, str, tuple[Any, ...], dict[str, Any]], str]
ErrorType = TypeVar("ErrorType", bound=BaseException)


_advisers: list[Advice] = []  # that of `gpuload.open`, which knows the formats


def take_advice(adviser: Advice) -> None:
    """Take the function that is asked for the remedy for an argument that a call does not have.

    Args:
        adviser: returns the remedy, or "" if it knows none. It is given the name of the function
            that was called, the name of the argument, and all arguments of the call, by place and
            by name.
    """
    _advisers[:] = [adviser]


def trim_frames(error: ErrorType) -> ErrorType:
    """Return the error; of our frames in its traceback, if it is one of gpuload, the innermost
    alone is left."""
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
    return name == PACKAGE or (
        name.startswith(f"{PACKAGE}.") and not name.startswith(f"{PACKAGE}.testing")
    )


def public(function: Call) -> Call:
    """Return the function as users call it: its errors have trimmed tracebacks."""

    @functools.wraps(function)
    def call(*args: Any, **arguments: Any) -> Any:
        try:
            return function(*args, **arguments)
        except GpuloadError as error:
            raise trim_frames(error)  # noqa: B904  it is the same error
        except TypeError:
            # Arguments that do not fit are refused before anything of the function runs.
            if (problem := _wrong_call(function, args, arguments)) is not None:
                raise problem from None
            raise

    setattr(call, PUBLIC, True)
    return call  # type: ignore[return-value]


def _wrong_call(
    function: Callable[..., Any], args: tuple[Any, ...], arguments: dict[str, Any]
) -> CallError | None:
    """Return the error for arguments that do not fit a function, or a class; None if they fit, or
    for a method."""
    is_class = function.__name__ == "__init__"
    if not is_class and "." in function.__qualname__.rpartition("<locals>.")[2]:
        return None
    parameters = list(inspect.signature(function).parameters.values())[is_class:]
    signature = inspect.Signature(
        [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    )
    try:
        signature.bind(*args[is_class:], **arguments)
    except TypeError as error:
        cause = str(error)
    else:
        return None
    if is_class:
        target: Any = type(args[0])
    else:
        target = function
    rooms = _rooms(target.__module__.split("."))
    name = ".".join([*rooms, target.__name__])
    texts = [
        *map(repr, args[is_class:]),
        *(f"{word}={value!r}" for word, value in arguments.items()),
    ]
    names = [parameter.name for parameter in parameters]
    extra = next((word for word in arguments if word not in names), None)
    example = re.search(r"Example:\s+``(.+?)``", inspect.getdoc(target) or "")
    if extra is not None:
        cause, likely = (
            f"it has no argument {extra!r}",
            synonyms.arguments_for(extra, arguments[extra], names),
        )
        if likely:
            remedy = f"write {likely} in place of {extra}="
        else:
            remedy = ""
        for adviser in _advisers:
            remedy = remedy or adviser(name, extra, args, arguments)
        remedy = remedy or "leave it out"
        if extra == CHANCE and rooms[-1:] == ["ops"]:
            remedy = f"write gl.ops.Sometimes({arguments[extra]!r}, [{name}(...)])"
    else:
        if example:
            remedy = f"write {example[1]}, say"
        else:
            remedy = f"help({name}) says what each is"
    return CallError(
        f"{name}({', '.join(texts)})"[:MAX_CHARACTERS],
        cause=f"{cause}: {name}{signature}",
        remedy=remedy,
    )


def _rooms(modules: list[str]) -> list[str]:
    """Return the names that users write for the content of a module, as our pages do."""
    if modules[0] != PACKAGE:
        return []
    if modules[1:2] == ["bridges"]:
        if len(modules) > 2:
            return [BRIDGES.get(modules[2], ".".join(modules[:3]))]
        return []
    return ["gl", *(part for part in modules[1:2] if part in ("ops", "recipes"))]


def published(value: Any, package: str) -> Any:
    """Return a value as users of a package have it: a function is public, and so is how a class is
    made.

    Args:
        value: a function, a class, which is changed itself, or something else, which stays as it
            is.
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
