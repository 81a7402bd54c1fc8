"""Random numbers of each record, for arguments of your own operators: ``gl.draw.uniform(-10, 10)``.

``gl.ops.Dali("rotate", angle=gl.draw.uniform(-10, 10))`` and
``gl.bridges.dali.reader(loader, draws=)`` take them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import SpecError
from gpuload.spec import is_whole

LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Numbers:
    """Random numbers of each record, as `uniform`, `integers` and `coin_flip` return them."""

    kind: Literal["uniform", "integers", "coin_flip"]
    low: float
    high: float
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many uniform numbers a record needs."""
        return math.prod(self.shape)

    def of(self, u: NDArray[np.float64]) -> NDArray[Any]:
        """Return the numbers ``[N, *shape]`` for float64 ``[N, count]`` in [0, 1)."""
        if self.kind == "uniform":
            values = (self.low + u * (self.high - self.low)).astype(np.float32)
        elif self.kind == "integers":
            values = (self.low + np.floor(u * (self.high - self.low))).astype(np.int32)
        else:
            values = (u < self.high).astype(np.int32)
        return values.reshape(-1, *self.shape)


def uniform(low: float, high: float, shape: int | Sequence[int] = ()) -> Numbers:
    """Return uniform float32 numbers from ``low`` to ``high``, one a record or ``shape``; for
    ``reader(draws=)``."""
    if not (_is_number(low) and _is_number(high) and low <= high):
        raise _no_interval("uniform", low, high)
    return Numbers("uniform", float(low), float(high), _shape(shape))


def integers(low: int, high: int, shape: int | Sequence[int] = ()) -> Numbers:
    """Return whole int32 numbers from ``low`` to ``high - 1``, all as likely, as of
    ``range(low, high)``."""
    if not (
        _is_number(low)
        and _is_number(high)
        and -(2**31) <= int(low) == low < high == int(high) <= 2**31
    ):
        raise _no_interval("integers", low, high)
    return Numbers("integers", int(low), int(high), _shape(shape))


def coin_flip(probability: float = 0.5, shape: int | Sequence[int] = ()) -> Numbers:
    """Return int32 numbers that are 1 with a probability, else 0."""
    if not (_is_number(probability) and 0 <= probability <= 1):
        raise SpecError(
            f"coin_flip({probability!r})",
            cause="a probability is from 0 to 1",
            remedy="pass 0.5, say",
        )
    return Numbers("coin_flip", 0.0, float(probability), _shape(shape))


def _shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    if isinstance(shape, (tuple, list)):
        lengths = shape
    else:
        lengths = (shape,)
    if not all(is_whole(length, least=1) for length in lengths):
        raise SpecError(
            f"shape = {shape!r}",
            cause="it is whole numbers of at least 1",
            remedy="write shape=2, say",
        )
    return tuple(int(length) for length in lengths)


def _no_interval(name: str, low: object, high: object) -> SpecError:
    return SpecError(
        f"{name}({low!r}, {high!r})",
        cause="these are the ends of an interval, the lower one first",
        remedy="write uniform(-10.0, 10.0) or integers(0, 5), say",
    )


def _is_number(value: object) -> bool:
    """Return whether a value is a number that float32 can hold."""
    is_real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(
        value, bool
    )
    return is_real and -LARGEST <= value <= LARGEST  # type: ignore[operator]
