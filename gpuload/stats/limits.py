"""Limits of a machine with the user's files, and how near the stages of a loader come to them.

Storage         serves all threads together: beside its limit stands the rate of the whole
                loop.
Memory, codec   are used by each thread by itself: beside their limits stands the rate of one
                thread.
Link            copies to the GPU while threads do other work: beside its limit stands the rate on
                the GPU's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpuload.stats.stages import Stage


@dataclass(frozen=True)
class Limits:
    """The limits of a machine with the user's files, for each second; 0 where a limit was not
    measured.

    Attributes:
        sequential_bytes: read in the order of the files, from storage.
        random_bytes: of records read in random order, from storage.
        copy_bytes: copied from memory to memory by one thread.
        decode_images: decoded by one thread, and nothing else.
        pinned_bytes: copied to the GPU from page-locked memory.
        pageable_bytes: copied to the GPU from other memory.
    """

    sequential_bytes: float = 0.0
    random_bytes: float = 0.0
    copy_bytes: float = 0.0
    decode_images: float = 0.0
    pinned_bytes: float = 0.0
    pageable_bytes: float = 0.0


@dataclass(frozen=True)
class StageLimit:
    """The rate of a stage beside a limit of the machine, both for each second.

    Attributes:
        name: of the limit, an attribute of `Limits`.
        unit: ``"bytes"`` or ``"images"``.
        rate: of the stage.
        limit: of the machine.
    """

    name: str
    unit: str
    rate: float
    limit: float

    @property
    def share(self) -> float:
        """The rate as a share of the limit; above 1 where the stage does less, as reading from the
        page cache does."""
        return self.rate / self.limit

    @property
    def words(self) -> str:
        """The work of the machine at this limit, in a few words."""
        return WORDS[self.name]

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {**asdict(self), "share": self.share}


WORDS = {
    "random_bytes": "random reads",
    "sequential_bytes": "reads in order",
    "copy_bytes": "memory copy",
    "decode_images": "images/s, alone",
    "pinned_bytes": "link to the GPU",
}
STORAGE = ("random_bytes", "sequential_bytes")
NAMES = {
    "read": ("copy_bytes", *STORAGE),
    "decode_images": ("decode_images",),
    "upload": ("pinned_bytes",),
    "draw": (),
}


def stage_limits(
    stage: Stage, counts: Mapping[str, float], limits: Limits
) -> tuple[StageLimit, ...]:
    """Return the limits of the machine that stand beside a stage, without those that were not
    measured.

    Args:
        stage: of a loader.
        counts: its counters.
        limits: of the machine.
    """
    seconds = {
        **dict.fromkeys(STORAGE, counts.get("loop_s", 0.0)),
        "pinned_bytes": counts.get("gpu_upload_s", 0.0),
    }
    results = []
    for name in NAMES.get(stage.name, ("copy_bytes",)):
        if name == "decode_images":
            unit = "images"
        else:
            unit = "bytes"
        amount, time_s = getattr(stage, unit), seconds.get(name, stage.seconds)
        if amount and time_s and (limit := getattr(limits, name)):
            results.append(StageLimit(name, unit, amount / time_s, limit))
    return tuple(results)
