"""Stats: counters of a loader, each with the meaning of high and low values.

Counting is thread-safe; a count costs about a microsecond, so it is done per batch or per part of one, not per record.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping

MEANING = {
    "batches": "batches handed out",
    "records": "records handed out, without padding",
    "records_replaced": "rows that hold another record in the place of a damaged one; loader.bad_records() lists them",
    "records_skipped": "rows that are not valid since their record is damaged; loader.bad_records() lists them",
    "bytes": "bytes of the batches handed out",
    "wait_s": "seconds that the caller waited for batches; near 0: the loader is ahead of the model",
    "steps_ahead": "steps that may be made ahead, one count for each batch that was asked for",
    "steps_ready": "those of them that were ready at that moment",
    "fill": "steps_ready as a share of steps_ahead; near 1: the loader is ahead of the model",
    "read_s": "seconds of threads on reading records, added over threads; high beside ops_s: reading is the limit",
    "ops_s": "seconds of threads on decoding and ops, added over threads; high beside read_s: the ops are the limit",
    "slots_made": "reusable buffers allocated; stands still after the first steps unless batches are kept",
    "slots_reused": "buffers used again without an allocation",
    "batches_copied": "batches copied because the caller keeps many; drop batches earlier, or expect a copy of each",
    "tensors_shared": "tensors handed to a framework without a copy",
    "tensors_copied": "tensors that had to be copied for a framework: not aligned, not row-major, or a host type",
}


class Stats(Mapping[str, float]):
    """Counters by name; ``str(stats)`` is a table with the meaning beside each number."""

    def __init__(self, counts: Mapping[str, float]) -> None:
        self._counts = dict(counts)

    def __getitem__(self, name: str) -> float:
        return self._counts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    def __str__(self) -> str:
        rows = [
            (name, f"{value:.3f}" if name.endswith("_s") or name == "fill" else f"{value:.0f}")
            for name, value in self.items()
        ]
        return "\n".join(f"{name:<18} {number:>14}  {MEANING.get(name, '')}" for name, number in rows)

    def __repr__(self) -> str:
        return f"Stats({self._counts})"


class Counters:
    """Counters that many threads add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, float] = dict.fromkeys(MEANING, 0)
        self._batches: deque[tuple[int, int]] = deque()  # records and bytes of batches that are not counted yet

    def add(self, **amounts: float) -> None:
        """Add to the named counters."""
        counts = self._counts
        with self._lock:
            self._add_batches()
            for name, amount in amounts.items():
                counts[name] = counts.get(name, 0) + amount

    def deliver(self, num_records: int, num_bytes: int) -> None:
        """Count a batch that is handed out: by one call of C, since its reader waits."""
        self._batches.append((num_records, num_bytes))

    def _add_batches(self) -> None:
        """Add the batches that were handed out; the caller holds the lock."""
        counts = self._counts
        while self._batches:
            num_records, num_bytes = self._batches.popleft()
            counts["batches"] += 1
            counts["records"] += num_records
            counts["bytes"] += num_bytes

    def stats(self) -> Stats:
        """Return the counts as they are now."""
        with self._lock:
            self._add_batches()
            counts = dict(self._counts)
        return Stats({**counts, "fill": fill(counts)})


def fill(counts: Mapping[str, float]) -> float:
    """Return the share of the steps made ahead that were ready when batches were asked for; 0 before the first."""
    return counts["steps_ready"] / counts["steps_ahead"] if counts["steps_ahead"] else 0.0
