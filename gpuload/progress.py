"""Progress: one line on a terminal for a wait of more than a second, and a record of it in the log.

    gpuload: reading headers: 412,000 of 1,300,000 files, 98,100/s, 0:09 left [######--------------]

When      From AFTER_S on, at most every EVERY_S. Each text is written over the one before it, the
          last one is wiped.
Where     On the terminal of ``sys.stderr``, and in a notebook below its cell. Nothing is written to
          a pipe or a file, nothing by a job in the background of its shell, and nothing under
          ``GPULOAD_PROGRESS=0``.
Rate      and remaining time are those of the mean rate since the first ``show``.
Log       Has a line after AFTER_S that names the work, and at the end one with its duration, for
          any ``sys.stderr``.
Threads   All may show the same progress. If another thread writes now, this one does not; no lock
          is waited for, so that no signal handler hangs, nor a child that was forked meanwhile.
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
from typing import Any

from gpuload.redaction import printable

AFTER_S, EVERY_S = 1.0, 0.2
SWITCH = "GPULOAD_PROGRESS"
COLUMNS = 80  # of a terminal that does not say how many it has
# the module html takes 2 ms, at each import of gpuload
HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
SHORTEST_BAR, LONGEST_BAR = 8, 20  # columns
LEAST_TEXT = 20  # columns that the name of the work has before rate and remaining time

log = logging.getLogger("gpuload")
_line_length = (
    0  # of the line on the terminal, characters; two threads may leave some of them behind, no more
)
_display: Any = None  # IPython's handle of the output below a cell of a notebook


class Progress:
    """The progress of a work, from the first ``show`` to the end of the ``with`` block.

    Args:
        doing: ``"reading headers"``.
    """

    def __init__(self, doing: str) -> None:
        self._doing = printable(doing)
        self._start_s: float | None = None
        self._start = 0
        self._due = 0.0
        self._is_in_log = False
        self._busy = threading.Lock()

    @property
    def has_begun(self) -> bool:
        """True from the first ``show`` on."""
        return self._start_s is not None

    def show(self, how_far: int = 0, of: int = 0, things: str = "") -> None:
        """Show the progress, if it is due; ``of=0`` if the total is not known, ``things`` is the
        unit of both."""
        if self._is_due(how_far):
            self._tell(how_far, of, things)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_in_log and self._start_s is not None:
            wipe()
            end = "broken off" if kind else "done"
            log.info("%s: %s after %.1f s", self._doing, end, perf_counter() - self._start_s)

    def _is_due(self, how_far: int) -> bool:
        now = perf_counter()
        if self._start_s is None:
            self._start_s, self._start, self._due = now, how_far, now + AFTER_S
        return now >= self._due

    def _tell(self, how_far: int, of: int, things: str) -> None:
        if not self._busy.acquire(blocking=False):
            return
        try:
            now = perf_counter()
            self._due = now + EVERY_S
            text = self._doing
            if of:
                text = f"{text}: {how_far:,} of {of:,} {things}".rstrip()
            elif how_far:
                text = f"{text}: {how_far:,} {things}".rstrip()
            if not self._is_in_log:
                self._is_in_log = True
                log.info("%s", text)
            seconds = now - (self._start_s or now)
            part = None
            if of:
                part = min(how_far / of, 1.0)
            _draw(text, _pace(how_far - self._start, seconds, of - how_far), part)
        finally:
            self._busy.release()


def _pace(num_done: int, seconds: float, num_left: int) -> str:
    """Return the rate, and the remaining time where the total is known; "" as long as nothing is
    done."""
    if num_done <= 0 or seconds <= 0:
        return ""
    rate = num_done / seconds
    if rate >= 10:
        text = f", {rate:,.0f}/s"
    else:
        text = f", {rate:.1f}/s"
    if num_left < 0:
        return text
    minutes, rest = divmod(round(num_left / rate), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{text}, {hours}:{minutes:02}:{rest:02} left"
    return f"{text}, {minutes}:{rest:02} left"


def wipe() -> None:
    """Remove the line from the terminal or the notebook, if there is one."""
    global _line_length, _display
    if _line_length and (terminal := _terminal()) is not None:
        _write(terminal, f"\r{' ' * _line_length}\r")
    _line_length = 0
    if _display is not None:
        handle, _display = _display, None
        handle.update({"text/plain": ""}, raw=True)


def _draw(text: str, pace: str, share: float | None) -> None:
    """Put a line in the place of the one before it.

    Args:
        text: the beginning of the line, of which a narrow terminal shows a part.
        pace: its end, rate and remaining time.
        share: of the work that is done, 0 to 1; None if it is not known.
    """
    global _line_length
    if (terminal := _terminal()) is not None:
        line = _fit_line(terminal, text, pace, share)
        _write(terminal, f"\r{' ' * _line_length}\r{line}")
        _line_length = len(line)
    elif _is_notebook():
        _draw_below_cell(text + pace, share)


def _fit_line(terminal: int, text: str, pace: str, share: float | None) -> str:
    """Return text, pace and a bar as a line that is shorter than the terminal is wide; a longer one
    would stay there.

    A narrow terminal shows the beginning of the text, the whole pace, and no bar; for the arguments
    see `_draw`.
    """
    num_columns = _num_columns(terminal) - 1
    line = f"gpuload: {text}"
    line = f"{line[: max(num_columns - len(pace), LEAST_TEXT)]}{pace}"[:num_columns]
    width = min(num_columns - len(line) - len(" []"), LONGEST_BAR)
    if share is None or width < SHORTEST_BAR:
        return line
    num_filled = int(share * width)
    return f"{line} [{'#' * num_filled}{'-' * (width - num_filled)}]"


def _is_notebook() -> bool:
    """Return True in the kernel of a notebook, which shows ``sys.stderr`` below a cell."""
    is_kernel = type(sys.stderr).__module__.startswith("ipykernel.") and "IPython" in sys.modules
    return is_kernel and os.environ.get(SWITCH, "").strip() != "0"


def _draw_below_cell(text: str, share: float | None) -> None:
    """Show the progress as HTML, which every notebook has, and as text."""
    global _display
    if share is None:
        value = ""
    else:
        value = f' value="{share:.3f}"'
    bundle = {
        "text/plain": f"gpuload: {text}",
        "text/html": f'<progress{value} style="vertical-align:middle"></progress> gpuload: '
        f"{text.translate(HTML)}",
    }
    if _display is None:
        _display = sys.modules["IPython"].display.display(bundle, raw=True, display_id=True)
    else:
        _display.update(bundle, raw=True)


def _terminal() -> int | None:
    """Return the descriptor of the terminal that stderr is; None if it is none, or is not ours to
    write to."""
    if os.environ.get(SWITCH, "").strip() == "0":
        return None
    try:
        terminal = sys.stderr.fileno()
        if not (sys.stderr.isatty() and os.isatty(terminal)):
            return None
    except (AttributeError, OSError, ValueError):
        # there is no stderr, it is no file, or it was closed
        return None
    # Windows has no jobs; a terminal may be of another session
    with contextlib.suppress(AttributeError, OSError):
        if os.tcgetpgrp(terminal) != os.getpgrp():
            return None
    return terminal


def _num_columns(terminal: int) -> int:
    with contextlib.suppress(OSError):
        return os.get_terminal_size(terminal).columns or COLUMNS
    return COLUMNS


def _write(terminal: int, text: str) -> None:
    """Write by the system alone: the locks of ``sys.stderr`` may be held where this thread was
    interrupted."""
    with contextlib.suppress(OSError):  # the terminal was closed, or takes nothing now
        os.write(terminal, text.encode("ascii", "replace"))
