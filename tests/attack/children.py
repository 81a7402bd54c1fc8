"""Trials in a child of fork: what a library does to the process that gives it damaged bytes, the
child alone sees.

The child says what came of it in JSON. It is killed when it takes too long.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import select
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

MOST_S = 20
ENDED = "ended by "  # with the name of a signal; what a child is that its library ended
TOO_LONG = "no answer: it took too long, or left without one"


def in_child(function: Callable[..., str], *arguments: Any, most_s: float = MOST_S) -> str:
    """Return what a function returns in a child, or how the child ended.

    Raises:
        AssertionError: with the traceback of an exception that left the function.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # of Python 3.12, about forks of processes with threads
        child = os.fork()
    if child == 0:
        _run(writer, function, *arguments)
    os.close(writer)
    try:
        return _result(child, reader, time.monotonic() + most_s)
    finally:
        os.close(reader)


def _run(writer: int, function: Callable[..., str], *arguments: Any) -> None:
    """Run a function, say what came of it, and end the process."""
    faulthandler.disable()  # the end of this process is no news for the terminal
    try:
        result = [True, function(*arguments)]
    except BaseException:
        result = [False, traceback.format_exc()[-3000:]]
    with contextlib.suppress(OSError):
        os.write(writer, json.dumps(result).encode())
    os._exit(0)


def _result(child: int, reader: int, end_s: float) -> str:
    answer = b""
    while (left_s := end_s - time.monotonic()) > 0:
        if select.select([reader], [], [], left_s)[0]:
            piece = os.read(reader, 1 << 16)
            if not piece:
                break
            answer += piece
    else:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not answer:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        return (
            TOO_LONG if number in (0, signal.SIGKILL) else f"{ENDED}{signal.Signals(number).name}"
        )
    is_done, text = json.loads(answer)
    if not is_done:
        raise AssertionError(f"in the child: {text}")
    return str(text)
