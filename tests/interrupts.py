"""Exceptions from signal handlers, at moments that nobody chose."""

from __future__ import annotations

import _weakrefset
import gc
import signal
from types import FrameType
from typing import cast


class Alarm:
    """A real timer whose handler raises ``Alarm.Rang`` in the main thread, once after each ``arm``.

    Args:
        every_s: how often the timer rings.
        armed: whether it raises before the first ``arm``.
        hides: whether the handler deletes its arguments, by which its frame is known in a
            traceback.
    """

    class Rang(Exception):
        """The timer went off."""

    def __init__(
        self, every_s: float = 0.0003, *, armed: bool = False, hides: bool = False
    ) -> None:
        self._every_s, self._armed, self._hides = every_s, [True] * armed, hides

    def arm(self) -> None:
        self._armed.append(True)

    def disarm(self) -> None:
        self._armed.clear()

    def _ring(self, *arguments: object) -> None:
        # What is raised in a callback of a weak reference Python can only report: such a moment is
        # let pass.
        is_callback = cast(FrameType, arguments[1]).f_code.co_filename == _weakrefset.__file__
        if self._hides:
            del arguments
        if self._armed and not is_callback:
            self._armed.clear()
            raise self.Rang

    def __enter__(self) -> Alarm:
        gc.disable()  # other packages hook into collections, where Python can only report what a handler raises
        self._before = signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, self._every_s, self._every_s)
        return self

    def __exit__(self, *_: object) -> None:
        self.disarm()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)
        gc.enable()
