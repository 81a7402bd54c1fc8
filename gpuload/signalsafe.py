"""Calls that no signal handler breaks off: a thread of their own does the work, and the caller
waits for it.

Ctrl-C raises an exception at any line of the main thread, and other signal handlers may do the
same. Code that is not written for that stays half done: an import leaves a module without half of
its names in ``sys.modules``, where the next import takes it for whole. Python runs signal handlers
in the main thread alone. So the main thread hands such work to a thread that lives as long as the
work, and waits for it.

Interrupted   The caller gets the exception at once, and the thread goes on to the end. The next
              call has a new thread, which waits for the first where both import the same module, by
              the lock of that module.
Deadlock      The thread would wait for ever for a lock that the caller holds. So a caller that is
              itself in the middle of an import does the work itself: it holds the lock of the
              module that it imports. (A module of ``gpuload.bridges`` is different: no work that is
              done here imports one.) This also holds for a signal handler that was called during an
              import.
Other threads do the work themselves: no signal handler can break it off there.
Finalizers    may run in the thread, as in any other. No finalizer of gpuload imports anything.
Fork          A child has the locks, but not the thread that would release them. So a fork waits
              until no such work is under way; it could only be that of a caller that was
              interrupted, or of another thread.
Libraries     Exceptions of a library become errors of gpuload in one place, `call_library`:
              exceptions here are of the library, and an exception of a signal handler reaches the
              caller as itself.
Python's end  waits for the work, as for all threads (`threads`).
"""

from __future__ import annotations

import contextlib
import encodings.ascii
import encodings.cp437
import encodings.utf_8_sig
import encodings.utf_32_be
import encodings.utf_32_le  # noqa: F401  # codecs that gpuload uses: Python would import each at its first use
import functools
import importlib.util
import inspect
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType
from typing import TypeVar

from gpuload import threads
from gpuload.errors import GpuloadError

R = TypeVar("R")

NAME = "gpuload-signalsafe"
HARMLESS = "gpuload.bridges."


def call(function: Callable[[], R]) -> R:
    """Return ``function()``, which no exception of a signal handler breaks off.

    It is for work that happens once in a process: to start the thread takes 0.2 ms.
    """
    if not threads.in_main() or _is_importing():
        return function()
    results: list[R] = []
    errors: list[BaseException] = []
    stop_flags: list[bool] = []

    # Lists and no `Future`: an append is one step of the interpreter, so no handler finds a lock
    # half taken.
    def work() -> None:
        try:
            if not stop_flags:
                results.append(function())
        except BaseException as error:
            errors.append(error)

    def stop() -> None:
        stop_flags.append(True)  # a function that has begun goes on to its end

    try:
        helpers = threads.start(1, work, name=NAME, stop=stop)
    except GpuloadError:  # the system gives no thread, or Python is ending
        return function()
    threads.join(helpers)
    if errors:
        # It stays nowhere else: the error and this call would keep each other alive
        raise errors.pop()
    # a child of a fork in a signal handler has not the thread
    if not results:
        return function()
    return results.pop()


def call_library(
    function: Callable[[], R],
    to_error: Callable[[Exception], BaseException],
    errors: type[Exception] | tuple[type[Exception], ...] = Exception,
) -> R:
    """Return ``function()``, a call of another library, with its exceptions as errors of gpuload.

    An exception that a signal handler raises meanwhile is none of the library's, and reaches the
    caller as itself. In the main thread a call takes 0.2 ms more than the function, in other
    threads nothing: it is for a file or a block of records, not for each record.

    Args:
        function: the call.
        to_error: returns the error of gpuload for an exception of the library.
        errors: the exceptions that the library raises. Errors of gpuload are passed on as they are.
    """

    def work() -> R:
        try:
            return function()
        except GpuloadError:
            raise
        except errors as error:
            pass_on(error)  # this may be the main thread: `call`
            raise to_error(error) from None

    return call(work)


def pass_on(error: BaseException) -> None:
    """Raise an exception again if a signal handler raised it; for an ``except`` that catches those
    of a library.

    Where ``call_library`` does not fit: in context managers, and around single calls of the
    operating system. A handler that is no Python function, or has deleted its arguments, is not
    seen here.
    """
    if threads.in_main() and is_of_handler(error):
        raise error


@contextlib.contextmanager
def suppress(*errors: type[Exception]) -> Iterator[None]:
    """Suppress errors of the block, as ``contextlib.suppress`` does, but not those that a signal
    handler raised."""
    try:
        yield
    except errors as error:
        pass_on(error)


def is_folder(path: str) -> bool:
    """Return True for a folder; ``os.path.isdir`` would take the error of a signal handler for
    "there is none"."""
    return stat.S_ISDIR(_mode(os.stat, path))


def is_file(path: str) -> bool:
    """Return True for a regular file, as ``os.path.isfile`` does."""
    return stat.S_ISREG(_mode(os.stat, path))


def is_link(path: str) -> bool:
    """Return True for a link, as ``os.path.islink`` does."""
    return stat.S_ISLNK(_mode(os.lstat, path))


def exists(path: str, *, follow: bool = True) -> bool:
    """Return True if something is there, as ``os.path.exists`` or without ``follow``
    ``os.path.lexists`` does."""
    return bool(_mode(os.stat if follow else os.lstat, path))


def _mode(look: Callable[[str], os.stat_result], path: str) -> int:
    """Return type and rights of a file; 0 if there is none."""
    try:
        return look(path).st_mode
    except (OSError, ValueError) as error:
        pass_on(error)
        return 0


def import_package(name: str) -> ModuleType:
    """Return a module, imported where no signal handler breaks the import off.

    It is the one way to import packages besides NumPy and gpuload itself, and modules of Python's
    library that only few need. Once the module is there, this costs a look into ``sys.modules``.

    Raises:
        ImportError: there is none, or its import failed.
    """
    module = sys.modules.get(name)
    # Importlib's own sign (CPython 3.10 to 3.14): a module stands in `sys.modules` before its first
    # line has run. another thread is importing it
    if module is None or getattr(module.__spec__, "_initializing", False):
        module = call(functools.partial(importlib.import_module, name))
    return module


def is_installed(name: str) -> bool:
    """Return True if a module could be imported, without importing it.

    Python's search holds the lock of all imports, which an exception of a signal handler would
    leave locked for ever.
    """

    def find() -> bool:
        try:
            return importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:  # the parent of a dotted name
            return False

    return call(find)


def is_of_handler(error: BaseException) -> bool:
    """Return True if the traceback of an error, or of one before it, shows that a signal handler
    raised it.

    Python calls a handler with the frame that it interrupts, which is the one that the handler's
    frame came from; no other function gets that. A handler that is no Python function, or has
    deleted its arguments, is not seen.
    """
    before: BaseException | None = error
    while before is not None:
        traceback = before.__traceback__
        while traceback is not None:
            if _is_handler(traceback.tb_frame):
                return True
            traceback = traceback.tb_next
        before = before.__context__
    return False


def _is_handler(frame: FrameType) -> bool:
    code = frame.f_code
    has_rest = bool(code.co_flags & inspect.CO_VARARGS)
    # Of a frame, `co_varnames` has the arguments first: by position, by keyword, then the name of
    # ``*args``.
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + has_rest]
    arguments = [frame.f_locals.get(name) for name in names]
    if has_rest:
        arguments += arguments.pop() or ()
    return frame.f_back is not None and any(argument is frame.f_back for argument in arguments)


def _is_importing() -> bool:
    """Return True if this thread is in the middle of an import of a module that the work could wait
    for.

    Python keeps no list of them; each is a call of ``_find_and_load`` (CPython 3.10 to 3.14).
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if threads.is_import(frame) and not str(frame.f_locals.get("name")).startswith(HARMLESS):
            return True
        frame = frame.f_back
    return False


def _join_helpers() -> None:
    """Wait until no work is under way in another thread. A thread that is not quite started holds
    no lock yet."""
    current = threading.current_thread()
    # Not this thread: work that forks would wait for itself.
    other_threads = [
        thread
        for thread in threads.running(NAME)
        if thread.ident is not None and thread is not current
    ]
    # one waits for ever; it is the child's loss alone if it needs that lock
    with contextlib.suppress(GpuloadError):
        threads.join(other_threads, threads.END_S)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_join_helpers)
