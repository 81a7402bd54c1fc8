"""Progress: one line on a terminal for a wait of more than a second, and a record of it in the log.

    gpuload: reading headers: 412,000 of 1,300,000 files

When      From AFTER_S on, at most every EVERY_S. Each text is written over the one before it, the last one is wiped.
Where     On the terminal of ``sys.stderr``. Nothing is written to a pipe, a file or a notebook, nothing by a job in the
          background of its shell, and nothing under ``GPULOAD_PROGRESS=0``.
Log       Has a line after AFTER_S that names the work, and at the end one with its duration, for any ``sys.stderr``.
Threads   All may show the same progress. If another thread writes now, this one does not; no lock is waited for, so
          that no signal handler hangs, nor a child that was forked meanwhile.
Cost      A look at the clock for each ``show``, below a microsecond.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from time import perf_counter
from types import TracebackType

AFTER_S, EVERY_S = 1.0, 0.2
SWITCH = "GPULOAD_PROGRESS"
COLUMNS = 80  # of a terminal that does not say how many it has

log = logging.getLogger("gpuload")
_line_length = 0  # of the line on the terminal, characters; two threads may leave some of them behind, no more


class Progress:
    """The progress of a work, from the first ``show`` to the end of the ``with`` block.

    Args:
        doing: ``"reading headers"``.
    """

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._start_s: float | None = None
        self._due = 0.0
        self._is_in_log = False
        self._busy = threading.Lock()

    @property
    def has_begun(self) -> bool:
        """True from the first ``show`` on."""
        return self._start_s is not None

    def show(self, how_far: int = 0, of: int = 0, things: str = "") -> None:
        """Show the progress on the terminal, if it is due; ``of=0`` if the total is not known."""
        if self._is_due():
            self._tell(f"{self._doing}: {how_far:,} of {of:,} {things}".rstrip() if of else self._doing)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_in_log and self._start_s is not None:
            wipe()
            log.info(
                "%s: %s after %.1f s", self._doing, "broken off" if kind else "done", perf_counter() - self._start_s
            )

    def _is_due(self) -> bool:
        now = perf_counter()
        if self._start_s is None:
            self._start_s, self._due = now, now + AFTER_S
        return now >= self._due

    def _tell(self, text: str) -> None:
        if not self._busy.acquire(blocking=False):
            return
        try:
            self._due = perf_counter() + EVERY_S
            if not self._is_in_log:
                self._is_in_log = True
                log.info("%s", text)
            _draw(text)
        finally:
            self._busy.release()


def wipe() -> None:
    """Remove the line from the terminal, if there is one."""
    global _line_length
    if _line_length and (terminal := _terminal()) is not None:
        _write(terminal, f"\r{' ' * _line_length}\r")
    _line_length = 0


def _draw(text: str) -> None:
    """Put a line in the place of the one before it."""
    global _line_length
    if (terminal := _terminal()) is not None:
        line = _fitting(terminal, text)
        _write(terminal, f"\r{' ' * _line_length}\r{line}")
        _line_length = len(line)


def _fitting(terminal: int, text: str) -> str:
    """Return a line that is shorter than the terminal is wide: a longer one could not be written over."""
    return f"gpuload: {text}"[: _num_columns(terminal) - 1]


def _terminal() -> int | None:
    """Return the descriptor of the terminal that stderr is; None if it is none, or is not ours to write to."""
    if os.environ.get(SWITCH, "").strip() == "0":
        return None
    try:
        terminal = sys.stderr.fileno()
        if not (sys.stderr.isatty() and os.isatty(terminal)):
            return None
    except (AttributeError, OSError, ValueError):  # there is no stderr, it is no file, or it was closed
        return None
    with contextlib.suppress(AttributeError, OSError):  # Windows has no jobs; a terminal may be of another session
        if os.tcgetpgrp(terminal) != os.getpgrp():
            return None
    return terminal


def _num_columns(terminal: int) -> int:
    with contextlib.suppress(OSError):
        return os.get_terminal_size(terminal).columns or COLUMNS
    return COLUMNS


def _write(terminal: int, text: str) -> None:
    """Write by the system alone: the locks of ``sys.stderr`` may be held where this thread was interrupted."""
    with contextlib.suppress(OSError):  # the terminal was closed, or takes nothing now
        os.write(terminal, text.encode("ascii", "replace"))
