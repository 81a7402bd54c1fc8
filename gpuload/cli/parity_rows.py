"""A comparison: how far results are from expected values, and whether the difference is within its
bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.ops.bounds import Bound

MAX_ERROR = 200  # characters


@dataclass(frozen=True)
class Comparison:
    """How far one party is from another, or why one of them has no result.

    Attributes:
        subject: a call of an op, or a file.
        party: the executor or library that made the results: ``"dali on cpu"``,
            ``"Pillow 13.0.0"``.
        against: the other side of the comparison: ``"array form"``, say.
        bound: the difference that is allowed.
        largest, mean: the largest difference, and the mean of all, in units of the values.
        share: the share of values that differ.
        error: the error that the party raised, as text; "" if none.
        is_refusal: True if the party says that it does not do this: no bound is broken then.
    """

    subject: str
    party: str
    against: str
    bound: Bound
    largest: float = 0.0
    mean: float = 0.0
    share: float = 0.0
    error: str = ""
    is_refusal: bool = False

    @property
    def holds(self) -> bool:
        """True if the difference is within its bound."""
        if self.error:
            return self.is_refusal
        bound = self.bound
        return (
            self.largest <= bound.largest and self.share <= bound.share and self.mean <= bound.mean
        )

    @property
    def verdict(self) -> str:
        """One word."""
        if self.is_refusal:
            return "refused"
        if self.holds:
            return "ok"
        return "BROKEN"

    @property
    def numbers(self) -> str:
        """The difference, or the error."""
        if self.error:
            return self.error
        if not self.share:
            return "equal"
        return f"largest {self.largest:.4g}, mean {self.mean:.2g}, on {self.share:.4%}"

    def to_json(self) -> dict[str, Any]:
        """Return all of it for JSON."""
        values = asdict(self)
        bound = values.pop("bound")
        limits = {"largest": bound.largest, "share": bound.share, "reason": bound.reason}
        if np.isfinite(bound.mean):
            limits["mean"] = bound.mean
        return {**values, "verdict": self.verdict, "bound": limits}


def measure(
    subject: str, party: str, against: str, bound: Bound, results: Sequence[NDArray[Any]],
    expected: Sequence[NDArray[Any]],
) -> Comparison:  # fmt: skip
    """Return the comparison of results with expected values, value by value; NaN equals NaN."""
    differences = []
    for result, value in zip(results, expected, strict=True):
        if (result.dtype, result.shape) != (value.dtype, value.shape):
            error = f"{result.dtype} {result.shape}, and not {value.dtype} {value.shape}"
            return Comparison(subject, party, against, bound, error=error)
        is_equal = (result == value) | ((result != result) & (value != value))
        differences.append(
            np.where(is_equal, 0.0, np.abs(result.astype(np.float64) - value)).ravel()
        )
    total = np.concatenate(differences)
    numbers = float(total.max(initial=0)), float(total.mean()), float((total > 0).mean())
    return Comparison(subject, party, against, bound, *numbers)


def failure(
    subject: str,
    party: str,
    against: str,
    bound: Bound,
    error: BaseException,
    *,
    is_refusal: bool = False,
) -> Comparison:
    """Return the comparison of a party that raised an error."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"[:MAX_ERROR]
    return Comparison(subject, party, against, bound, error=text, is_refusal=is_refusal)
