"""The ways of images to a GPU, measured beside one another, and which of them to write.

Ways      `WAYS`: arguments of a loader, as a user writes them. A way that is not for these ops,
          that does as one before it, or whose package is not installed, is a line with the reason.
Measured  in turns, ``ROUNDS`` times each, half of the time each: a machine that is busier for a
          while slows down all of them. The faster turn counts.
Choice    the way with the most records/s. Among those that are within ``NOISE`` of it, as all are
          beside a slow step, the one that takes the least processor time: it leaves the most to the
          training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import gpuload as gl
from gpuload import device as devices
from gpuload.errors import GpuloadError

WAYS: tuple[Mapping[str, str], ...] = (
    {"executor": "array"},
    {"executor": "dali", "decode": "host"},
    {"executor": "dali"},
)
MEANINGS = (
    'executor="array" and decode="host" make the CPU\'s pixels. executor="dali" decodes on the GPU, by nvJPEG, whose '
    "pixels differ by a level here and there."
)
ROUNDS = 2
NOISE = 0.97  # of the fastest one: a smaller difference is noise

Figures = tuple[float, float]  # records/s; processor time of all threads for a record, milliseconds
Measure = Callable[[gl.Loader, float], Figures]


@dataclass(frozen=True)
class WayRate:
    """A way and its measurements.

    Attributes:
        words: the arguments of a loader, ``executor="array"``.
        records_per_s: 0 where it was not measured.
        core_ms: processor time of all threads for a record, milliseconds.
        why_not: why it was not measured, and what to do about it.
    """

    words: str
    records_per_s: float = 0.0
    core_ms: float = 0.0
    why_not: str = ""

    def line(self) -> str:
        """Return a line of the table."""
        if self.why_not:
            return f"{self.words:<32} {self.why_not}"
        return f"{self.words:<32} {self.records_per_s:>10,.0f} {self.core_ms:>12.2f}"


@dataclass(frozen=True)
class WayTable:
    """The ways beside one another.

    Attributes:
        ways: in the order of ``WAYS``; none where there was nothing to measure.
        why_not: why there was not.
        auto: where a loader without these arguments decodes, as it describes it.
    """

    ways: tuple[WayRate, ...] = ()
    why_not: str = ""
    auto: str = ""

    @property
    def _rated(self) -> list[WayRate]:
        """The ways that were measured."""
        return [way for way in self.ways if not way.why_not]

    @property
    def best(self) -> WayRate | None:
        """The way to write; None where none could be measured."""
        top_rate = max((way.records_per_s for way in self._rated), default=0.0)
        fast = [way for way in self._rated if way.records_per_s >= NOISE * top_rate]
        return min(fast, key=lambda way: way.core_ms, default=None)

    def reason(self) -> str:
        """Return in a sentence why it is the best one."""
        best = self.best
        if best is None:
            return "No way could be measured."
        rest = [way for way in self._rated if way != best]
        if not rest:
            return f"{best.words} is the only way that was measured here."
        second = max(rest, key=lambda way: way.records_per_s)
        if second.records_per_s < NOISE * best.records_per_s:
            times = best.records_per_s / second.records_per_s
            return f"{best.words} is {times:.2f} times as fast as {second.words}."
        if best.core_ms:
            times = second.core_ms / best.core_ms
        else:
            times = 1.0
        return f"{best.words} is as fast as {second.words}, which takes {times:.2f} times its processor time."

    def as_dict(self) -> dict[str, Any]:
        """Return it as values that JSON has."""
        return {
            "ways": [asdict(way) for way in self.ways],
            "best_way": None if self.best is None else self.best.words,
            "ways_why_not": self.why_not,
            "auto_way": self.auto,
        }


def compare_ways(
    make_loader: Callable[..., gl.Loader], loader: gl.Loader, measure: Measure, seconds: float
) -> WayTable | None:
    """Return the ways beside one another; None without images, or on a CPU by the user's wish.

    Args:
        make_loader: makes a loader from the arguments of a way.
        loader: of the same source and ops, in the way that it chose by itself.
        measure: returns the figures of a loader in so many seconds.
        seconds: for each way.
    """
    if not any(op.traits.codec for op in loader.ops):
        return None
    if loader.device == "cpu":
        device, reason = devices.choose("auto")
        if device != "cpu":  # there is a GPU, and the user wrote device="cpu"
            return None
        return WayTable(why_not=f"there is no GPU to measure them on: {reason}")
    turns: dict[str, list[WayRate]] = {}
    for _ in range(ROUNDS):
        for arguments in WAYS:
            words = ", ".join(f'{name}="{value}"' for name, value in arguments.items())
            ways = turns.setdefault(words, [])
            if not any(way.why_not for way in ways):
                ways.append(_measure_way(words, arguments, make_loader, measure, seconds / ROUNDS))
    return WayTable(
        tuple(_best_turn(ways) for ways in turns.values()), auto=_line(loader, "decoding")
    )


def _line(loader: gl.Loader, name: str) -> str:
    """Return a line of a loader's ``describe()`` without its name; "" if it has none."""
    lines = [line for line in loader.describe().splitlines() if line.startswith(f"{name}:")]
    return "".join(lines).removeprefix(f"{name}:").strip()


def _twin(loader: gl.Loader, arguments: Mapping[str, str]) -> str:
    """Return which way before it a loader's way does the same as, with these ops; "" for none."""
    if arguments["executor"] != "dali" or not _line(loader, "decoding").startswith("on the host"):
        return ""
    if _line(loader, "executor").startswith("array"):
        return 'executor="array": no op is left for DALI'
    if "decode" in arguments:
        return ""
    return 'executor="dali", decode="host": the host decodes here'


def _measure_way(
    words: str,
    arguments: Mapping[str, str],
    make_loader: Callable[..., gl.Loader],
    measure: Measure,
    seconds: float,
) -> WayRate:
    try:
        with make_loader(**arguments) as loader:
            if twin := _twin(loader, arguments):
                return WayRate(words, why_not=f"does the same as {twin}")
            return WayRate(words, *measure(loader, seconds))
    except GpuloadError as error:
        return WayRate(words, why_not=f"{error.what}: {error.cause}; {error.remedy}")
    except RuntimeError as error:  # of DALI or CUDA: not with this card, or not in these versions
        return WayRate(words, why_not=f"failed: {' '.join(str(error).split())}")


def _best_turn(turns: list[WayRate]) -> WayRate:
    """Return a way that was not measured, or its faster turn."""
    return next(
        (way for way in turns if way.why_not), max(turns, key=lambda way: way.records_per_s)
    )
