"""Counters of a loader, each with the meaning of high and low values.

Each thread adds to a tally of its own, without a lock; a reader adds the tallies up.
A count costs some tenths of a microsecond, so it is done per batch or per part of one, not per
record.
"""

from __future__ import annotations

import textwrap
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import repeat, starmap
from typing import Any

from gpuload.stats.bottleneck import Bottleneck, Facts, find_bottleneck
from gpuload.stats.limits import Limits, StageLimit, stage_limits
from gpuload.stats.stages import STAGES, Stage, Watch, fill, stages_of
from gpuload.stats.trace import Trace

MEANING = {
    "batches": "batches handed out",
    "records": "records handed out, without padding",
    "records_replaced": "rows that hold another record in the place of a damaged one; "
    "loader.bad_records() lists them",
    "records_skipped": "rows that are not valid since their record is damaged; "
    "loader.bad_records() lists them",
    "bytes": "bytes of the batches handed out",
    "loop_s": "seconds of the loops over batches, from the first request to the last batch",
    "wait_s": "seconds that the caller waited for batches; near 0: the loader is ahead of the "
    "model",
    "hand_over_s": "seconds of the caller on making batches, and tensors of them; high: larger "
    "batches cost less",
    "idle_s": "seconds of threads without work, added over threads; high: the loader is ahead of "
    "the model",
    "gpu_upload_s": "seconds of the GPU on uploads and raw decoding, by CUDA events at one batch "
    "in eight",
    "gpu_ops_s": "seconds of the GPU on ops of the array executor; DALI's run on streams of its "
    "own",
    "steps_ahead": "steps that may be made ahead, one count for each batch that was asked for",
    "steps_ready": "those of them that were ready at that moment",
    "num_threads": "threads that do steps now; chosen by what was measured, unless num_threads= "
    "was passed",
    "prefetch": "steps that are made ahead now; chosen by what was measured, unless prefetch= "
    "was passed",
    "fill": "steps_ready as a share of steps_ahead; near 1: the loader is ahead of the model",
    "read_s": "seconds of threads on reading records, added over threads; high beside ops_s: "
    "reading is the limit",
    "ops_s": "seconds of threads on images and ops, added over threads; high beside read_s: the "
    "ops are the limit",
    "slots_made": "reusable buffers allocated; stands still after the first steps unless batches "
    "are kept",
    "slots_reused": "buffers used again without an allocation",
    "batches_copied": "batches copied because the caller keeps many; drop batches earlier, or "
    "expect a copy of each",
    "records_audited": "records made again on the CPU and compared, where audit= asks for it",
    "records_differing": "those of them that differ by more than their ops allow",
    "audit_s": "seconds of a thread on that; near loop_s: a smaller share in audit= costs less",
    "tensors_shared": "tensors handed to a framework without a copy",
    "tensors_copied": "tensors that had to be copied for a framework: not aligned, not "
    "row-major, or a host type",
}
SUMS = {
    "read_s": ("read", "decode_raw"),
    "ops_s": ("decode_images", "ops", "python_ops"),
}  # of seconds of stages
GAUGES = ("num_threads", "prefetch")  # counters that say how it is now: they are not added up
COLUMNS = 80
MOST_WAITING = 256  # batches that were handed out and are not counted yet
MOST_TALLIES = 64  # of threads, before those of threads that have ended are added up
STAGE_TITLES = "stage", "seconds", "share", "waits", "queue", "MB/s", "of the loader's threads"
# Of these columns, those that a narrow terminal has no place for, the least important first.
DISPENSABLE = (
    STAGE_TITLES.index("queue"),
    STAGE_TITLES.index("waits"),
    STAGE_TITLES.index("seconds"),
    6,
)
LOOP_TITLES = "your loop", "seconds", "share", "", "queue", "MB/s", ""


class Stats(Mapping[str, float]):
    """Counters by name; ``str(stats)`` is a table with the meaning beside each number.

    ``now - before`` are the stats of the time between the two.

    Args:
        counts: the counters; those with a dot in their name are of stages, see `stages`.
        facts: returns the facts about the loader, for ``bottleneck``; None if there are none.
        page: returns the stats as HTML, for a notebook; None where a notebook shows their text.
    """

    def __init__(
        self, counts: Mapping[str, float], facts: Callable[[], Facts] | None = None,
        page: Callable[[Stats], str] | None = None,
    ) -> None:  # fmt: skip
        self._counts, self._facts, self._page = dict(counts), facts, page

    def __getitem__(self, name: str) -> float:
        return self._counts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    def __sub__(self, before: Mapping[str, float]) -> Stats:
        counts = {name: count - before.get(name, 0) for name, count in self._counts.items()}
        # A gauge has no difference: it stays as it is now.
        counts |= {name: self._counts[name] for name in GAUGES if name in self._counts}
        if "fill" in counts:
            counts["fill"] = fill(counts)
        return Stats(
            counts,
            self._facts,
            self._page,
        )

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the loader's threads that took time, with their seconds, shares and
        bytes."""
        return stages_of(self._counts)

    @property
    def training_s(self) -> float:
        """Seconds that the caller spent between batches: the training."""
        spent = self._counts.get("wait_s", 0.0) + self._counts.get("hand_over_s", 0.0)
        return max(0.0, self._counts.get("loop_s", 0.0) - spent)

    @property
    def waiting(self) -> float:
        """The share of the loop's time in which the training waited for the loader, 0 to 1."""
        loop_s = self._counts.get("loop_s", 0.0)
        if loop_s > 0:
            return min(1.0, self._counts.get("wait_s", 0.0) / loop_s)
        return 0.0

    @property
    def tuning(self) -> str:
        """The sentence that says which number of threads and steps ahead was chosen, and why; ""
        before the first."""
        if self._facts is None:
            return ""
        return self._facts().tuning

    def bottleneck(self, limits: Limits | None = None) -> Bottleneck:
        """Return which stage holds the rest up, and the one change that helps most; ``str`` of it
        is a sentence.

        Args:
            limits: of this machine, as ``gpuload bench`` measures them; None where they are not
                known.
        """
        facts = Facts() if self._facts is None else self._facts()
        return find_bottleneck(self._counts, facts, limits)

    def stage_limits(self, limits: Limits) -> dict[str, tuple[StageLimit, ...]]:
        """Return, by the name of each stage, the limits of the machine that stand beside it."""
        return {stage.name: stage_limits(stage, self._counts, limits) for stage in self.stages}

    def as_dict(self, limits: Limits | None = None) -> dict[str, Any]:
        """Return all of it as JSON can hold it: counts, stages, and the sentence; ``limits`` as of
        ``bottleneck``."""
        bottleneck, beside = self.bottleneck(limits), self.stage_limits(limits or Limits())
        loop_s, num_bytes = self._counts.get("loop_s", 0.0), self._counts.get("bytes", 0.0)
        return {
            "counts": {name: count for name, count in self._counts.items() if "." not in name},
            "stages": [
                {**stage.as_dict(), "limits": [limit.as_dict() for limit in beside[stage.name]]}
                for stage in self.stages
            ],
            "loop": {
                "seconds": loop_s,
                "waiting": self.waiting,
                "training_s": self.training_s,
                "wait_s": self._counts.get("wait_s", 0.0),
                "hand_over_s": self._counts.get("hand_over_s", 0.0),
                "idle_s": self._counts.get("idle_s", 0.0),
                "fill": fill(self._counts),
                "bytes": num_bytes,
                "bytes_per_s": num_bytes / loop_s if loop_s else 0.0,
            },
            "bottleneck": {"cause": bottleneck.cause, "sentence": str(bottleneck)},
            "tuning": self.tuning,
        }

    def __str__(self) -> str:
        if self.stages or self._counts.get("loop_s"):
            tables = [self.table()]
        else:
            tables = []
        if tables:
            tables += [*textwrap.wrap(str(self.bottleneck()), COLUMNS), ""]
            if tuning := self.tuning:
                tables += [*textwrap.wrap(f"Tuning: {tuning}.", COLUMNS), ""]
        for name, number, meaning in self.count_rows():
            first, *rest = textwrap.wrap(meaning, COLUMNS - 34) or [""]
            tables += [
                f"{name:<16} {number:>15}  {first}".rstrip(),
                *(" " * 34 + line for line in rest),
            ]
        return "\n".join(tables)

    def table(self, limits: Limits | None = None, columns: int = COLUMNS) -> str:
        """Return the time of each stage, and of the loop, in lines of 80 columns at most.

        Args:
            limits: of this machine. They stand beside the stages in place of the meaning; None:
                they are not known.
            columns: of the terminal. In a narrow one the less important columns of the table are
                left out.
        """
        for count in range(len(DISPENSABLE) + 1):
            omissions = DISPENSABLE[:count]
            if limits is None:
                stages = self._stage_lines(omissions)
            else:
                stages = self._lines_beside(limits, omissions)
            lines = [*stages, *self._loop_lines(omissions)]
            if max(map(len, lines), default=0) <= columns:
                break
        return "\n".join(lines)

    def _stage_lines(self, omissions: Sequence[int]) -> list[str]:
        if self.stages:
            rows = [STAGE_TITLES, *self.stage_rows()]
        else:
            rows = []
        if rows:
            return [*(_line(row, omissions) for row in rows), ""]
        return []

    def _lines_beside(self, limits: Limits, omissions: Sequence[int]) -> list[str]:
        """Return the lines of stages with the limits of the machine beside each; a stage may have
        several."""
        beside, lines, words = self.stage_limits(limits), [], 6 not in omissions
        for stage, row in zip((*self.stages, None), self.stage_rows(), strict=False):
            first = row[:6]
            for limit in () if stage is None else beside[stage.name]:
                rates = [_rate(value, limit.unit) for value in (limit.rate, limit.limit)]
                line = (
                    f"{_line((*first[:5], rates[0]), omissions)} {rates[1]:>7} {limit.share:>5.0%}"
                )
                if words:
                    line += f"  {limit.words}"
                lines.append(line)
                first = ("",) * 5
            if any(first):
                lines.append(_line(first, omissions))
        if not lines:
            return []
        titles = f"{_line(STAGE_TITLES[:6], omissions)} {'limit':>7} {'of it':>5}"
        if words:
            titles += "  the machine"
        return [titles, *lines, ""]

    def stage_rows(self) -> list[tuple[str, ...]]:
        """Return texts for each stage, as `STAGE_TITLES` says; the last row is the idle time."""
        rows: list[tuple[str, ...]] = []
        for stage in self.stages:
            if stage.bytes:
                rate = _rate(stage.bytes_per_s, "bytes")
            else:
                rate = ""
            shares = (
                f"{share:.0%}"
                for share in (stage.share, stage.blocked + stage.off_core, stage.fill)
            )
            rows.append(
                (
                    stage.name.replace("_", " "),
                    f"{stage.seconds:.3f}",
                    *shares,
                    rate,
                    STAGES[stage.name],
                )
            )
        idle_s = self._counts.get("idle_s", 0.0)
        if rows:
            return [*rows, ("idle", f"{idle_s:.3f}", "", "", "", "", "all steps ahead are made")]
        return []

    def _loop_lines(self, omissions: Sequence[int]) -> list[str]:
        lines = [_line(row, omissions) for row in (LOOP_TITLES, *self.loop_rows())]
        if len(lines) == 1:
            return []
        return [*lines, ""]

    def loop_rows(self) -> list[tuple[str, ...]]:
        """Return texts for each part of the loop, as `LOOP_TITLES` says."""
        loop_s, num_bytes = self._counts.get("loop_s", 0.0), self._counts.get("bytes", 0.0)
        if loop_s <= 0:
            return []
        wait_s, hand_over_s = self._counts.get("wait_s", 0.0), self._counts.get("hand_over_s", 0.0)
        queue, rate = f"{fill(self._counts):.0%}", _rate(num_bytes / loop_s, "bytes")
        parts = (
            ("training", self.training_s, "", "", "your code between two batches"),
            ("waiting", wait_s, queue, "", "for the loader"),
            ("hand-over", hand_over_s, "", "", "batches, tensors of them"),
            ("in all", loop_s, "", rate, "bytes of batches"),
        )
        return [(name, f"{s:.3f}", f"{s / loop_s:.0%}", "", *cells) for name, s, *cells in parts]

    def count_rows(self) -> list[tuple[str, ...]]:
        """Return texts for each counter that is not of a stage: name, number, meaning."""
        return [
            (
                name,
                f"{count:.3f}" if name.endswith("_s") or name == "fill" else f"{count:.0f}",
                MEANING.get(name, ""),
            )
            for name, count in self._counts.items()
            if "." not in name
        ]

    def _repr_html_(self) -> str | None:
        """Return the tables that a notebook shows, below the sentence."""
        if self._page is None:
            return None
        return self._page(self)

    def __repr__(self) -> str:
        return f"Stats({self._counts})"


class _Owner:
    """Lives as long as the thread that has it among its own variables."""


class _ThreadTally(threading.local):
    """Of each thread: its tally, and an object that ends with the thread."""

    tally: dict[str, float] | None = None
    owner: _Owner | None = None


class Counters:
    """Counters that many threads add to.

    Args:
        trace: notes the work of threads, too; None to note nothing.

    Attributes:
        deliver: counts a batch that is handed out, called with its records and bytes. It is one
            call of C, since the reader of the batch waits.
        gauges: those of GAUGES; their owner sets them.
    """

    def __init__(self, trace: Trace | None = None) -> None:
        self.trace = trace
        self._lock = (
            threading.Lock()
        )  # of those below but not of the tallies, each of which one thread alone writes to
        self.gauges: dict[str, float] = dict.fromkeys(GAUGES, 0)
        self._counts: dict[str, float] = dict.fromkeys(
            (name for name in MEANING if name not in (*GAUGES, "fill")), 0
        )
        self._thread = _ThreadTally()
        self._tallies: list[tuple[weakref.ref[_Owner], dict[str, float]]] = []
        self._batches: deque[tuple[int, int]] = (
            deque()
        )  # records and bytes of batches that are not counted yet
        self.deliver = self._batches.append
        self._loops: deque[tuple[float, float]] = (
            deque()
        )  # seconds of their hand-over, and of the loop

    def add(self, **amounts: float) -> None:
        """Add to the named counters."""
        # Else they would pile up in a loop that reads no counters.
        if len(self._batches) > MOST_WAITING:
            with self._lock:
                self._add_batches()
        tally = self._thread.tally
        if tally is None:
            tally = self._new_tally()
        for name, amount in amounts.items():
            tally[name] = tally.get(name, 0) + amount

    def watch(self) -> Watch:
        """Return a watch for a part of a step, which counts for the calling thread."""
        tally = self._thread.tally
        return Watch(self._new_tally() if tally is None else tally, traced=self.trace is not None)

    def _new_tally(self) -> dict[str, float]:
        """Return a tally for the calling thread."""
        tally: dict[str, float] = {}
        self._thread.tally, self._thread.owner = tally, _Owner()
        with self._lock:
            if len(self._tallies) >= MOST_TALLIES:
                self._add_past_tallies()
            self._tallies.append((weakref.ref(self._thread.owner), tally))
        return tally

    def _add_past_tallies(self) -> None:
        """Add the tallies of threads that have ended to the counts; the caller holds the lock."""
        present = []
        for owner_ref, tally in self._tallies:
            if owner_ref() is not None:
                present.append((owner_ref, tally))
                continue
            for name, amount in tally.items():
                self._counts[name] = self._counts.get(name, 0) + amount
        self._tallies = present

    def trace_watch(self, watch: Watch, *, epoch: int, step: int, num_steps: int) -> None:
        """Note the stages of a watch in the trace, if there is one.

        Args:
            watch: of the calling thread, which is over.
            epoch: of the steps.
            step: the first of them.
            num_steps: how many the thread worked on.
        """
        if self.trace is not None:
            for name, begin_s, end_s in watch.spans or ():
                self.trace.add(name, begin_s, end_s, epoch=epoch, step=step, num_steps=num_steps)

    def loop(self, hand_over_s: float, loop_s: float) -> None:
        """Count the seconds of some batches in their loop: of their hand-over, and since the batch
        before them."""
        self._loops.append((hand_over_s, loop_s))

    def _add_batches(self) -> None:
        """Add the batches that were handed out; the caller holds the lock."""
        counts, batches, loops = self._counts, self._batches, self._loops
        if count := len(batches):  # those that come meanwhile are counted the next time
            rows = list(starmap(batches.popleft, repeat((), count)))  # a loop in C
            # Most batches of an epoch have the same amounts: to compare them takes a fifth of the
            # time of a Counter.
            is_alike = rows.count(rows[0]) == count
            for (num_records, num_bytes), times in (
                {rows[0]: count} if is_alike else Counter(rows)
            ).items():
                counts["batches"] += times
                counts["records"] += times * num_records
                counts["bytes"] += times * num_bytes
        while loops:
            hand_over_s, loop_s = loops.popleft()
            counts["hand_over_s"] += hand_over_s
            counts["loop_s"] += loop_s

    def stats(
        self, facts: Callable[[], Facts] | None = None, page: Callable[[Stats], str] | None = None
    ) -> Stats:  # fmt: skip
        """Return the counts as they are now; ``facts`` and ``page`` as of `Stats`."""
        with self._lock:
            self._add_batches()
            counts = dict(self._counts)
            for _, tally in self._tallies:
                for (
                    name,
                    amount,
                ) in tally.copy().items():  # one call of C: its thread may add to it meanwhile
                    counts[name] = counts.get(name, 0) + amount
        sums = {
            name: sum(counts.get(f"{stage}.seconds", 0.0) for stage in stages)
            for name, stages in SUMS.items()
        }
        return Stats({**counts, **sums, **self.gauges, "fill": fill(counts)}, facts, page)


def _line(cells: Sequence[str], omissions: Sequence[int]) -> str:
    """Return the cells of a line without some of them: name, seconds, three shares, a rate, and
    words or none."""
    forms = ("{:<14}", "{:>9}", " {:>5}", " {:>5}", " {:>5}", " {:>7}", "  {}")
    line = "".join(
        forms[place].format(cell) for place, cell in enumerate(cells) if place not in omissions
    )
    return line.rstrip()


def _rate(amount: float, unit: str) -> str:
    """Return so many bytes for each second in megabytes, or so many images, with two digits at
    least."""
    if unit == "bytes":
        rate = amount / 1e6
    else:
        rate = amount
    if rate >= 10:
        return f"{rate:,.0f}"
    return f"{rate:.2g}"
