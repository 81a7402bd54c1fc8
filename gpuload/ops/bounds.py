"""Bounds: how far the results of an executor may be from an op's array form on the CPU, each with its reason.

An op states them by party, ``bounds = {"dali": HALVES, "gpu": HALVES}``. A party is an executor on a kind of device
(``"dali on gpu"``), an executor (``"dali"``), or a kind of device (``"gpu"``); the first that is stated counts. What is
not stated is exact, and the array executor on a CPU always is. The contract of ops, `gpuload parity` and the
audit of a loader compare by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf


@dataclass(frozen=True)
class Bound:
    """A tolerance: all of its numbers hold.

    Attributes:
        largest: the largest difference, in units of the values: levels of 255 for uint8.
        share: the share of values that differ at all.
        reason: the cause of differences.
        mean: the mean of all differences.
        relative: of floating-point numbers: the largest difference, as a part of the largest number, or of 1.
        beyond: the share of values that may differ by more than the largest difference.
    """

    largest: float
    share: float
    reason: str
    mean: float = inf
    relative: float = 0.0
    beyond: float = 0.0


EXACT = Bound(0, 0, "pixels move, are looked up, or come of the same arithmetic")
HALVES = Bound(
    1,
    0.1,
    "sums that lie between two levels: DALI's CPU rounds exact halves away from zero, a GPU fuses products and sums. "
    "Mostly some 0.02 % of the values of smooth images of 120 x 160, 0.3 % of 32 x 32; several % where sides are halved"
    " exactly, for many sums are halves then",
    relative=1e-4,
)
STATISTICS = Bound(
    1e-5, 1, "mean and deviation are sums of all values, which are added up in another order", relative=1e-5
)
NVJPEG = Bound(255, 1, "nvJPEG has another inverse transform than libjpeg-turbo, as DALI's own tests allow", mean=1)
FLOATS = Bound(
    1e-6, 1, "float32 on a GPU: products and sums are fused, and powers differ in the last bit", relative=1e-6
)
NORMALIZING = Bound(1e-5, 1, "a GPU fuses the subtraction and the product into one rounding", relative=1e-5)
FUSED_BYTES = Bound(1, 0.1, "a GPU fuses the product and the sum, and rounds halves to even", relative=1e-6)

# Behind a difference, an op that mixes values or has steps may make a larger one of it, of a few values by much: of 642
# chains of ops on small images one had 4 % of such values.
GROWTH, STEPS = 4.0, 0.1


def stated_bound(bounds: Mapping[str, Bound], party: str) -> Bound:
    """Return the bound that an op states for a party, ``"dali on gpu"``."""
    if party == "array on cpu":  # the meaning of ops, bit for bit
        return EXACT
    executor, _, place = party.partition(" on ")
    return next((bounds[key] for key in (party, executor, place) if key in bounds), EXACT)


def scale_bound(bound: Bound, gain: float) -> Bound:
    """Return the bound of values that were multiplied by a number."""
    return replace(bound, largest=bound.largest * gain, mean=bound.mean * gain)


def loosen_bound(bound: Bound) -> Bound:
    """Return the bound behind an op that may make differences larger; an exact one stays exact."""
    if bound == EXACT:
        return bound
    return replace(
        bound,
        largest=GROWTH * bound.largest,
        share=1,
        mean=GROWTH * bound.mean,
        relative=GROWTH * bound.relative,
        beyond=STEPS,
    )


def join_bounds(first: Bound, second: Bound) -> Bound:
    """Return the bound of values with differences of two causes."""
    if EXACT in (first, second):
        return second if first == EXACT else first
    reasons = dict.fromkeys((first.reason, second.reason))
    return Bound(
        largest=first.largest + second.largest,
        share=min(1.0, first.share + second.share),
        reason="; ".join(reasons),
        mean=inf if first.mean == second.mean == inf else _mean(first) + _mean(second),
        relative=first.relative + second.relative,
        beyond=max(first.beyond, second.beyond),
    )


def _mean(bound: Bound) -> float:
    """Return the mean of the differences that a bound allows; where none is stated, that of the others."""
    return bound.mean if bound.mean < inf else bound.largest * bound.share
