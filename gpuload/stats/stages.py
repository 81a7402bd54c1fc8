"""Stages: the parts of a step that threads of a loader do, and how long each takes.

A thread that does a part of a step has a `Watch`, which is begun once for the part and told where a
stage begins. So the clock is read a few times a part, whatever its number of records. Stages that
are one call of the core are divided by the times that the core returns: it reads the clock before
and after each image file that it decodes.

Blocked   A stage that waits for storage takes no processor time. Linux says how long a thread had a
          core, how long it was ready and waited for one, and how often it gave its core away by
          itself (`core/cpp/usage.hpp`). The rest of the time it was blocked. Where a system says
          only how long a thread had a core, it is not known why it did not run: that time is
          `Stage.off_core`. To ask takes some microseconds, so a thread asks for one part in
          SAMPLE_EVERY_S.
Queues    A thread does several stages of a step one after the other, so there is no queue between
          these. Finished steps wait in a queue for the loop; on a GPU, and with DALI, steps that
          were read wait in another one for the thread of the batches. `Stage.fill` is that of the
          queue behind the stage.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from time import perf_counter, thread_time_ns
from typing import Any

from gpuload.core import native

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

STAGES = {
    "draw": "record numbers, places, draws",
    "read": "bytes of records to memory",
    "decode_raw": "bytes to numbers and texts",
    "decode_images": "pixels of image files",
    "ops": "the other ops",
    "python_ops": "functions of gl.ops.Python",
    "upload": "queues copies to the GPU",
}
BATCH_STAGES = ("upload", "ops")  # of the thread of the batches, on a GPU and with DALI
STATES = ("blocked", "starved", "off_core")  # of a thread that does not run; see `Stage`
SECONDS = {name: f"{name}.seconds" for name in STAGES}  # the counter of each
SAMPLE_EVERY_S = 0.05
THREAD = getattr(resource, "RUSAGE_THREAD", None)  # Linux
SCHEDSTAT = "/proc/thread-self/schedstat"

Usage = tuple[
    int, int, int
]  # of a thread: ns on a core, ns in the queue for one, number of waits; -1: not known


@dataclass(frozen=True)
class Stage:
    """The time of one stage, added over threads.

    Attributes:
        name: one of STAGES.
        seconds: of all threads.
        share: of the time of all stages, 0 to 1, without that in which their threads had no core.
        fill: how full the queue behind it was, 0 to 1: the share of the steps made ahead that were
            ready when the next one was asked for. Near 0, the stage behind it waits for it; near
            1, this stage waits for that one.
        bytes: that it read, or made; 0 where they are not counted.
        images: that it decoded.
        blocked: the share of the time in which its threads waited, for storage above all, 0 to 1;
            of a sample.
        starved: the share of the time in which its threads had no core, since other threads or
            programs had it.
        off_core: the share of the time in which its threads did not run, and the system does not
            say which of the two.
        bytes_per_s, images_per_s: of one thread; 0 where they are not counted.
    """

    name: str
    seconds: float
    share: float
    fill: float
    bytes: float
    images: float
    blocked: float
    starved: float
    off_core: float

    @property
    def bytes_per_s(self) -> float:
        """Bytes for each second of a thread."""
        if self.seconds:
            return self.bytes / self.seconds
        return 0.0

    @property
    def images_per_s(self) -> float:
        """Images for each second of a thread."""
        if self.seconds:
            return self.images / self.seconds
        return 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {**asdict(self), "bytes_per_s": self.bytes_per_s, "images_per_s": self.images_per_s}


class Watch:
    """The time of one thread for one part of a step, stage by stage; a context manager, and may be
    nested.

    Args:
        amounts: the sums to add to: ``"read.seconds"``, ``"read.bytes"``. No other thread may write
            to them.
        traced: True to note when each stage began and ended.

    Attributes:
        amounts: these.
        spans: name, begin and end of each stage; None where they are not noted.
    """

    __slots__ = "_begin_s", "_outer", "_stage", "_usage", "amounts", "spans"

    def __init__(self, amounts: dict[str, float] | None = None, *, traced: bool = False) -> None:
        if amounts is None:
            self.amounts: dict[str, float] = {}
        else:
            self.amounts = amounts
        if traced:
            self.spans: list[tuple[str, float, float]] | None = []
        else:
            self.spans = None
        self._stage, self._begin_s = "", 0.0
        self._usage: Usage | None = None
        self._outer: Watch | None = None

    def __enter__(self) -> Watch:
        self._outer, _thread.watch = _thread.watch, self
        return self

    @property
    def stage(self) -> str:
        """The stage that is on; "" if none is."""
        return self._stage

    def __exit__(self, *error: object) -> None:
        self.enter("")
        _thread.watch = self._outer

    def enter(self, stage: str) -> str:
        """Begin a stage, which ends the one before; an empty name begins none. Return the one
        before."""
        before = self._stage
        # Many small parts enter the stage that is on: they cost one comparison, and no look at the
        # clock.
        if stage == before:
            return before
        now = perf_counter()
        if before:
            amounts = self.amounts
            name, seconds = SECONDS[before], now - self._begin_s
            try:  # the usual case first: it takes half of the time of `get`
                amounts[name] += seconds
            except KeyError:
                amounts[name] = seconds
            if self._usage is not None:
                self._sample(before, seconds)
            if self.spans is not None:
                self.spans.append((before, self._begin_s, now))
        # Only at the first stage of a part: a sample that began in the middle would stand for the
        # stages that come late.
        elif now - _thread.sample_s > SAMPLE_EVERY_S:
            _thread.sample_s, self._usage = now, usage()
        if _ranges:
            push, pop = _ranges[-1]
            if before:
                pop()
            if stage:
                push(f"gpuload {stage}")
        self._stage, self._begin_s = stage, now
        return before

    def count(self, name: str, amount: float) -> None:
        """Add to an amount."""
        try:
            self.amounts[name] += amount
        except KeyError:
            self.amounts[name] = amount

    def move(self, stage: str, seconds: float) -> None:
        """Take seconds from the stage that is on, and give them to another that was a part of
        it."""
        self.count(f"{stage}.seconds", seconds)
        self.count(f"{self._stage}.seconds", -seconds)

    def _sample(self, stage: str, seconds: float) -> None:
        before, self._usage = self._usage, usage()
        if before is None:
            return
        self.count(f"{stage}.sampled", seconds)
        for state, gap_ns in zip(
            STATES, divide_gap(int(1e9 * seconds), before, self._usage), strict=True
        ):
            if gap_ns:
                self.count(f"{stage}.{state}", gap_ns / 1e9)


class _NoWatch(Watch):
    """Of threads without a measurement of their time, which share it: so it holds nothing."""

    __slots__ = ()

    def enter(self, stage: str) -> str:
        """Do nothing."""
        return ""

    def count(self, name: str, amount: float) -> None:
        """Do nothing."""


class _Thread(threading.local):
    """Of each thread: the watch that is on, and when it took its last sample."""

    watch: Watch | None = None
    sample_s: float = float("-inf")


_thread = _Thread()
_no_watch = _NoWatch()
_ranges: list[tuple[Callable[[str], object], Callable[[], object]]] = []


def mark_ranges(push: Callable[[str], object], pop: Callable[[], object]) -> None:
    """Have each stage call ``push`` with its name when it begins and ``pop`` when it ends: ranges
    of a profiler."""
    # In place: threads that run see it at their next stage.
    _ranges[:] = [(push, pop)]


def watch() -> Watch:
    """Return the watch of the calling thread; where its time is not measured, one that does
    nothing."""
    return _thread.watch or _no_watch


def usage() -> Usage:
    """Return how long the calling thread ran and waited; -1 where the system does not say it."""
    if native is not None:
        return native.thread_usage()
    if THREAD is None:
        num_waits = -1
    else:
        num_waits = resource.getrusage(THREAD).ru_nvcsw
    return thread_time_ns(), _queue_ns(), num_waits


def _queue_ns() -> int:
    """Return how long the calling thread was ready and had no core, ns; -1 where the system does
    not say it."""
    try:
        with open(SCHEDSTAT, "rb") as file:
            _, queue_ns, num_turns = map(int, file.read().split())
    except (OSError, ValueError):
        return -1
    return queue_ns if num_turns else -1  # a kernel that does not count writes zeros


def divide_gap(time_ns: int, before: Usage, after: Usage) -> tuple[int, int, int]:
    """Return how much of some time a thread was blocked, how much it was starved, and how much is
    not known, ns.

    Args:
        time_ns: between the two.
        before: its usage at the beginning.
        after: its usage at the end.
    """
    cpu_ns, queue_ns, num_waits = (new - old for old, new in zip(before, after, strict=True))
    gap_ns = max(0, time_ns - cpu_ns)
    if before[0] < 0:
        return 0, 0, 0
    if before[2] >= 0 and not num_waits:  # it never gave its core away by itself
        return 0, gap_ns, 0
    if before[1] < 0 or after[1] < 0:
        return 0, 0, gap_ns
    # The two clocks are read one after the other, and the kernel counts in steps: the queue may
    # seem longer than the gap.
    starved_ns = min(gap_ns, queue_ns)
    return gap_ns - starved_ns, starved_ns, 0


def stages_of(counts: Mapping[str, float]) -> tuple[Stage, ...]:
    """Return the stages that took time, in their order."""
    seconds = {name: counts.get(f"{name}.seconds", 0.0) for name in STAGES}
    work_s = {
        name: stage_s * (1 - _part(name, "starved", counts)) for name, stage_s in seconds.items()
    }
    total_s, stages = sum(work_s.values()), []
    for name, stage_s in seconds.items():
        if stage_s > 0:
            parts = (_part(name, state, counts) for state in STATES)
            amounts = counts.get(f"{name}.bytes", 0.0), counts.get(f"{name}.images", 0.0)
            if total_s > 0:
                share = work_s[name] / total_s
            else:
                share = 0.0
            stages.append(Stage(name, stage_s, share, _fill_behind(name, counts), *amounts, *parts))
    return tuple(stages)


def _part(name: str, state: str, counts: Mapping[str, float]) -> float:
    """Return the part of a stage's time in which its threads were in a state, as far as samples
    say."""
    sample_s = counts.get(f"{name}.sampled", 0.0)
    if sample_s:
        return min(counts.get(f"{name}.{state}", 0.0) / sample_s, 1.0)
    return 0.0


def _fill_behind(name: str, counts: Mapping[str, float]) -> float:
    """Return how full the queue behind a stage was."""
    if name not in BATCH_STAGES and counts.get("workers.steps_ahead"):
        return counts["workers.steps_ready"] / counts["workers.steps_ahead"]
    return fill(counts)


def fill(counts: Mapping[str, float]) -> float:
    """Return the share of the steps made ahead that were ready when batches were asked for; 0
    before the first."""
    if counts.get("steps_ahead"):
        return counts.get("steps_ready", 0.0) / counts["steps_ahead"]
    return 0.0
