"""Trace: the work of each thread of a loader over time, in a file that Perfetto
(https://ui.perfetto.dev) shows.

Format  Trace Event Format of Chrome, complete events ("ph": "X"), microseconds on the clock of
        ``time.perf_counter``.
File    written when an epoch ends and when the loader is closed, under another name first: it is
        whole, or not there.
Size    MOST_EVENTS events at most, about 30 MB; events behind these are counted, and the file says
        how many they are.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import deque
from typing import Any

from gpuload.errors import FileError, SpecError

MOST_EVENTS = 200_000

Event = tuple[str, float, float, int, int, int, int]


class Trace:
    """Events of the threads of one loader.

    Args:
        path: the file.

    Raises:
        SpecError: ``path`` is no path.
        FileError: no file can be written there.
    """

    def __init__(self, path: object) -> None:
        if (
            not isinstance(path, (str, os.PathLike))
            or not isinstance(os.fspath(path), str)
            or not os.fspath(path)
        ):
            raise SpecError(
                f"trace = {path!r}"[:200],
                cause="it is no path",
                remedy="pass trace='trace.json', say",
            )
        self.path = os.path.abspath(os.path.expanduser(os.fspath(path)))
        folder = os.path.dirname(self.path)
        if os.path.isdir(self.path) or not os.access(folder, os.W_OK):
            cause = f"nothing can be written to the folder {folder}"
            if os.path.isdir(self.path):
                cause = "it is a folder"
            raise FileError(
                f"trace = {self.path!r}",
                cause=cause,
                remedy="name a file in a folder that is there",
            )
        self._events: deque[Event] = (
            deque()
        )  # append is one step of the interpreter: there is no lock
        self._names: dict[int, str] = {}
        self._num_dropped = 0

    def add(
        self, name: str, begin_s: float, end_s: float, *, epoch: int, step: int, num_steps: int = 1,
        thread: int | None = None,
    ) -> None:  # fmt: skip
        """Add the work of a thread for some steps, from one time to another; by default the calling
        thread."""
        current = threading.get_native_id()
        if current not in self._names:
            self._names[current] = threading.current_thread().name
        if len(self._events) < MOST_EVENTS:
            self._events.append((name, begin_s, end_s, thread or current, epoch, step, num_steps))
        else:
            self._num_dropped += 1

    def document(self) -> dict[str, Any]:
        """Return the contents of the file."""
        process = os.getpid()
        names = [
            {
                "ph": "M",
                "name": "thread_name",
                "pid": process,
                "tid": thread,
                "args": {"name": name},
            }
            for thread, name in list(self._names.items())
        ]
        events = [
            {
                "ph": "X", "name": name.replace("_", " "), "cat": "gpuload", "pid": process, "tid": thread,
                "ts": round(1e6 * begin_s, 3), "dur": round(1e6 * max(end_s - begin_s, 0.0), 3),
                "args": {"epoch": epoch, "step": step, "num_steps": num_steps},
            }
            # A copy, for other threads append meanwhile.
            for name, begin_s, end_s, thread, epoch, step, num_steps in list(self._events)
        ]  # fmt: skip
        return {
            "traceEvents": [*names, *events],
            "displayTimeUnit": "ms",
            "otherData": {"events left out": self._num_dropped},
        }

    def write(self) -> None:
        """Write the file.

        Raises:
            FileError: it cannot be written.
        """
        # With the process: ranks of one program are often given the same path.
        draft = f"{self.path}.{os.getpid()}.part"
        try:
            with open(draft, "w", encoding="utf-8") as file:
                json.dump(self.document(), file)
            os.replace(draft, self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise FileError(
                f"{self.path} is not written",
                cause=error.strerror or str(error),
                remedy="check the folder, its permissions, and the space on the disk",
            ) from None
