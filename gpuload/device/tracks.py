"""Tracks: streams of a GPU that are used again and never destroyed, and points in their work."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from typing import Any

from gpuload import threads
from gpuload.device.ledger import Ledger
from gpuload.device.library import cupy
from gpuload.errors import DeviceError

# CuPy's kinds of memory that only work of one stream gets again.
STREAM_ORDERED_KINDS = ("PooledMemory", "MemoryAsync")


class Event:
    """A point in the work of a stream; it passes when all work that was queued before has run."""

    __slots__ = ("_event", "_idle", "_track", "holder")

    def __init__(self, event: Any, track: Track, idle: deque[Any]) -> None:
        self._event, self._track, self._idle = event, track, idle
        # The consumer's stream that waits for it; kept, so that no other stream gets its handle.
        self.holder: Any = None

    @property
    def done(self) -> bool:
        """Whether it has passed."""
        self._track.check()
        return bool(self._event.done)

    def synchronize(self) -> None:
        """Have the host wait until it has passed; other threads run meanwhile."""
        self._track.check()
        self._event.synchronize()

    def seconds_since(self, before: Event) -> float:
        """Return the seconds on the GPU's clock between two events that have passed, both timed."""
        self._track.check()
        return float(cupy().cuda.get_elapsed_time(before._event, self._event)) / 1e3

    def hold_back(self, stream: Any) -> None:
        """Order all later work of a CuPy stream behind this point; the host does not wait."""
        stream.wait_event(self._event)

    def __del__(self) -> None:
        # CUDA's event is used again. Destroying it would be a call to CUDA, also in a process that
        # was forked off. Streams that wait for it already are not affected: each waits for the
        # point recorded when its wait was queued. The track holds the event, too: see there.
        self._idle.append(self._event)


class Release:
    """Device memory that the consumer let go of, and the events behind its readers.

    Attributes:
        events: when they have passed no kernel reads the memory; None: they are not known.
        is_stream_ordered: True if CuPy gives the memory to later work of one stream alone.
    """

    __slots__ = ("_array", "_ledger", "events", "is_stream_ordered")

    def __init__(self, array: Any, events: list[Event] | None, ledger: Ledger) -> None:
        self._array, self.events, self._ledger = array, events, ledger
        self.is_stream_ordered = type(array.data.mem).__name__ in STREAM_ORDERED_KINDS

    def settle(self) -> None:
        """Take the memory off the ledger of memory that is lent; it is freed with this object."""
        self._ledger.remove(self._array)


class Track:
    """A stream of a GPU, with the memory that comes back to it. Tracks are used again by later
    lanes, never destroyed.

    CuPy's memory pool keeps free memory by the stream's handle, and CUDA gives the handle of a
    destroyed stream to the next one that is made. Memory of a lane that is gone could then be given
    out while work of the old stream, or a consumer that kept a batch, still uses it. As long as the
    track is kept, the order of its stream covers both: the next lane on it reclaims the memory.
    There are as many tracks as there were lanes at one time.

    Streams and events must never be garbage. Python calls the finalizers of a whole cycle of
    garbage before it frees any of it: CuPy's would destroy the stream and the events, and ours,
    called in the same collection, would keep them for the next lane. So ``_tracks`` refers to every
    track, and a track to every event that it made.
    """

    def __init__(self, number: int) -> None:
        self.number, self.pid = number, os.getpid()
        with cupy().cuda.Device(number):
            self.stream = cupy().cuda.Stream(non_blocking=True)
        self.releases: deque[Release] = deque()
        self.is_waiting = False  # True while a thread waits for readers that CuPy does not see
        self.events: list[Any] = []
        self.last_arrays: list[Any] = []  # that were dropped at the exit of the interpreter
        self.idle_events: deque[Any] = deque()
        self.idle_timed_events: deque[Any] = deque()

    def is_ours(self) -> bool:
        """Return False in a process that was forked off."""
        return self.pid == os.getpid()

    def check(self) -> None:
        """Raise ``DeviceError`` in a process that was forked off."""
        if not self.is_ours():
            raise DeviceError(
                f"gpu:{self.number} in a process that was forked off",
                cause="CUDA does not survive a fork",
                remedy="make the loader in the process that uses it, or start processes with the "
                "'spawn' method",
            )

    def wait_for_readers(self, releases: list[Release]) -> None:
        """Wait until the GPU has done all work of now: then no kernel reads this memory."""
        cupy().cuda.Device(self.number).synchronize()
        for memory in releases:
            memory.events = []

    def wait_aside(self, releases: list[Release]) -> None:
        """Have a thread wait for the readers of this memory; one at a time."""
        # First, for the thread sets it back, maybe before `start` has returned.
        self.is_waiting = True
        try:
            threads.start(
                1, _wait_for_readers, self, releases, name="gpuload-readers", stop=_ignore_stop
            )
        except BaseException:
            self.is_waiting = False
            raise

    def mark(self, stream: Any, *, timed: bool = False) -> Event:
        """Return an event behind all that was queued on a stream of this GPU up to now."""
        idle = self.idle_timed_events if timed else self.idle_events
        try:
            event = idle.pop()
        except IndexError:
            with cupy().cuda.Device(self.number):
                # A thread that waits for a blocking event sleeps, and leaves its core to those that
                # read records.
                event = cupy().cuda.Event(block=True, disable_timing=not timed)
            self.events.append(event)
        event.record(stream)
        return Event(event, self, idle)


def _wait_for_readers(track: Track, releases: list[Release]) -> None:
    """Be the thread that waits; where CUDA fails, the memory stays, and a later call fails, too."""
    try:
        with suppress(Exception), cupy().cuda.Device(track.number):
            track.wait_for_readers(releases)
    finally:
        track.is_waiting = False


def _ignore_stop() -> None:
    """Stop a thread that waits for the GPU: it ends by itself."""


_tracks: list[Track] = []
# Of each process and GPU: a child does not use its parent's.
_idle_tracks: dict[tuple[int, int], deque[Track]] = {}


def take_track(number: int) -> Track:
    """Return a track of a GPU that no lane has."""
    try:
        # No look before it, as in `pinned`.
        return _idle_tracks[os.getpid(), number].pop()
    except (KeyError, IndexError):
        track = Track(number)
        _tracks.append(track)
        return track


def give_back(track: Track) -> None:
    """Let a later lane take a track; called by finalizers."""
    _idle_tracks.setdefault((track.pid, track.number), deque()).append(track)
