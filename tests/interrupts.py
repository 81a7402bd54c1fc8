"""Exceptions from signal handlers, at moments that nobody chose."""

from __future__ import annotations

import gc
import signal


class Alarm:
    """A real timer whose handler raises ``Alarm.Rang`` in the main thread, once after each ``arm``."""

    class Rang(Exception):
        """The timer went off."""

    def __init__(self, every_s: float = 0.0003, *, armed: bool = False) -> None:
        self._every_s, self._armed = every_s, [True] * armed

    def arm(self) -> None:
        self._armed.append(True)

    def disarm(self) -> None:
        self._armed.clear()

    def _ring(self, *_: object) -> None:
        if self._armed:
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
