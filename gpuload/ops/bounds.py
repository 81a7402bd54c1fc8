"""Bounds: how far the results of an executor may be from an op's array form on the CPU, each with
its reason.

An op states them by party, ``bounds = {"dali": HALVES, "gpu": HALVES}``. A party is an executor on
a kind of device (``"dali on gpu"``), an executor (``"dali"``), or a kind of device (``"gpu"``); the
first that is stated counts. All else is exact, and the array executor on a CPU always is.
The contract of ops, `gpuload parity` and the audit of a loader compare by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Bound(NamedTuple):
    """A tolerance: all of its numbers hold.

    Attributes:
        largest: the largest difference, in units of the values: levels of 255 for uint8.
        share: the share of values that differ at all.
        reason: the cause of differences.
        mean: the mean of all differences.
        relative: of floating-point numbers: the largest difference, as a part of the largest
            number, or of 1.
        beyond: the share of values that may differ by more than the largest difference.
        shift: of one channel of one record: the mean of differences with their signs.
        gains: by which part of them the differences of each channel were multiplied, where that
            differs.
    """

    largest: float
    share: float
    reason: str
    mean: float = inf
    relative: float = 0.0
    beyond: float = 0.0
    shift: float = inf
    gains: tuple[float, ...] = ()


EXACT = Bound(0, 0, "pixels move, are looked up, or come of the same arithmetic")
HALVES = Bound(
    1,
    0.1,
    "sums that lie between two levels: DALI's CPU rounds exact halves away from zero, a GPU fuses products and sums. "
    "Mostly some 0.02 % of the values of smooth images of 120 x 160, 0.3 % of 32 x 32; several % where sides are halved"
    " exactly, for many sums are halves then",
    relative=1e-4,
    shift=0.9,
)
STATISTICS = Bound(
    1e-5,
    1,
    "mean and deviation are sums of all values, which are added up in another order",
    relative=1e-5,
)
NVJPEG = Bound(
    255,
    1,
    "nvJPEG has another inverse transform than libjpeg-turbo, as DALI's own tests allow",
    mean=1,
    shift=1,
)
FLOATS = Bound(
    1e-6,
    1,
    "float32 on a GPU: products and sums are fused, and powers differ in the last bit",
    relative=1e-6,
)
NORMALIZING = Bound(
    1e-5, 1, "a GPU fuses the subtraction and the product into one rounding", relative=1e-5
)
FUSED_BYTES = Bound(
    1,
    0.1,
    "a GPU fuses the product and the sum, and rounds halves to even",
    relative=1e-6,
    shift=0.1,
)


class Growth(NamedTuple):
    """The result that an op behind a difference may make of it: of a few values much more.

    The means grow once and no further behind any number of ops: an image that was skipped, some 30
    levels away in the mean, must show. A shift of a channel grows less, for differences of both
    signs remain so.

    Attributes:
        largest, mean, shift: factors of these numbers of a `Bound`.
        beyond: the share of values that may differ by more.
    """

    largest: float
    mean: float
    shift: float
    beyond: float


NO_GROWTH = Growth(1, 1, 1, 0)
# Of ColorJitter 0.4, steps of Posterize, blur and warps: of 642 chains on small images one had 4 %
# of such values.
MILD = Growth(4, 4, 1.1, 0.1)
# Of ops that stretch the few levels that an image has, or sharpen edges; see
# tests/executors/test_audited_faults.py.
STRETCH = Growth(12, 4, 5, 0.2)
TONES = (
    "AutoContrast",
    "CLAHE",
    "Equalize",
    "JpegArtefacts",
    "PerImageStandardization",
    "Sharpness",
)
POLICIES = ("AugMix", "AutoAugment", "RandAugment", "TimmAugment", "TrivialAugmentWide")
STRETCHING = frozenset((*TONES, *POLICIES))
# A channel of a single record may be further away in the mean than many records are together.
RECORD_MEAN = 3.0


def stated_bound(bounds: Mapping[str, Bound], party: str) -> Bound:
    """Return the bound that an op states for a party, ``"dali on gpu"``."""
    if party == "array on cpu":  # the meaning of ops, bit for bit
        return EXACT
    executor, _, place = party.partition(" on ")
    return next((bounds[key] for key in (party, executor, place) if key in bounds), EXACT)


def scale_bound(bound: Bound, factor: float | NDArray[np.floating]) -> Bound:
    """Return the bound of values that were multiplied by a number, or each channel by one of its
    own."""
    factors = np.abs(np.asarray(factor, np.float64)).ravel()
    gain = float(factors.max(initial=0))
    gains = bound.gains
    if gain and factors.size > 1 and len(gains) in (0, factors.size):
        factors = factors / gain * (gains or 1.0)
        gain, gains = gain * float(factors.max()), tuple((factors / factors.max()).tolist())
    return bound._replace(
        largest=bound.largest * gain,
        mean=_times(bound.mean, gain),
        shift=_times(bound.shift, gain),
        gains=gains,
    )


def _times(number: float, factor: float) -> float:
    """Return a product; a number without a bound stays so, also behind 0."""
    return number if number == inf else number * factor


def loosen_bound(bound: Bound, growth: Growth = MILD) -> Bound:
    """Return the bound behind an op that may make differences larger; an exact one stays exact."""
    if bound == EXACT:
        return bound
    before = next(
        (growth for growth in (STRETCH, MILD) if bound.beyond >= growth.beyond), NO_GROWTH
    )
    if growth.beyond > before.beyond:
        after = growth
    else:
        after = before
    return bound._replace(
        largest=growth.largest * bound.largest,
        share=1,
        mean=bound.mean * (after.mean / before.mean),
        relative=growth.largest * bound.relative,
        beyond=max(bound.beyond, after.beyond),
        shift=bound.shift * (after.shift / before.shift),
        gains=(),  # channels may be mixed
    )


def join_bounds(first: Bound, second: Bound) -> Bound:
    """Return the bound of values with differences of two causes."""
    if EXACT in (first, second):
        return second if first == EXACT else first
    reasons = dict.fromkeys((first.reason, second.reason))
    mean, shift = inf, inf  # where none of the two states it
    if min(first.mean, second.mean) < inf:
        mean = _mean(first) + _mean(second)
    if min(first.shift, second.shift) < inf:
        shift = _shift(first) + _shift(second)
    return Bound(
        largest=first.largest + second.largest,
        share=min(1.0, first.share + second.share),
        reason="; ".join(reasons),
        mean=mean,
        relative=first.relative + second.relative,
        beyond=max(first.beyond, second.beyond),
        shift=shift,
        gains=_joined_gains(first, second),
    )


def _mean(bound: Bound) -> float:
    """Return the mean of the differences that a bound allows; where none is stated, that of the
    others."""
    if bound.mean < inf:
        return bound.mean
    return bound.largest * bound.share


def _shift(bound: Bound) -> float:
    """Return the shift of a channel that a bound allows; where none is stated, no more than the
    mean."""
    if bound.shift < inf:
        return bound.shift
    return _mean(bound)


def _joined_gains(first: Bound, second: Bound) -> tuple[float, ...]:
    """Return the gains of both; where one has other ones, those that allow all. A bound without
    levels has none."""
    if not second.largest:
        return first.gains
    if not first.largest:
        return second.gains
    if first.gains == second.gains:
        return first.gains
    return ()
