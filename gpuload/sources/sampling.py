"""Sampling: records drawn with replacement, each with a probability in proportion to its weight.

Number n of a sample is record ``Weights.at(n)``, which depends on the weights, the seed and n
alone. So a sample has no end, as a mix has none: in epoch e, record i is number ``e * len(sample) +
i``, and each epoch has other records.

Exact   Weights become whole numbers with a sum below 2**62, the largest of them about ``2**62 /
        len(weights)``. A weight of 0 is never drawn. The draw is the upper half of the product of a
        random word and that sum.
Cost    8 bytes a record, and a binary search for each number.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuload import rng
from gpuload.errors import SpecError
from gpuload.order import SAMPLE_STREAM
from gpuload.sources.leaf import Indices

SUM_BITS = 62


@dataclass(frozen=True, eq=False)
class Weights:
    """How often each record is drawn.

    Attributes:
        ends: int64 ``[n]``, the running total of the weights as whole numbers.
        seed: of the draws.
    """

    ends: NDArray[np.int64]
    seed: int

    @classmethod
    def of(cls, weights: ArrayLike, length: int, seed: int) -> Weights:
        """Return the weights of records, checked.

        Raises:
            SpecError: there are other weights than records, one is negative or no number, or all
                are 0; the seed is none.
        """
        try:
            array = np.asarray(weights)
        except (TypeError, ValueError) as error:
            raise SpecError(
                "weights that are no array", cause=str(error), remedy="pass one number a record"
            ) from None
        if array.shape != (length,) or array.dtype.kind not in "biuf":
            raise SpecError(
                f"weights of {array.dtype} {array.shape} for {length} records",
                cause="each record has a weight, which is a number",
                remedy="pass an array of as many numbers as records: 1 / "
                "numpy.bincount(labels)[labels], say",
            )
        exact = array.astype(np.float64)
        wrong = np.flatnonzero(~(np.isfinite(exact) & (exact >= 0)))
        if wrong.size or not exact.any():
            subject = "all weights are 0"
            if wrong.size:
                subject = f"the weight of record {int(wrong[0])} is {array[wrong[0]]}"
            raise SpecError(
                subject,
                cause="a weight is a number of at least 0, and one of them is larger",
                remedy="pass 0 for a record that is never drawn",
            )
        # So many bits that the sum of all cannot run over, each as large as the largest.
        bits = SUM_BITS - 1 - length.bit_length()
        whole = np.rint(np.ldexp(exact / exact.max(), bits)).astype(np.int64)
        # A weight that rounds to 0 keeps 1: its record is drawn seldom, but not never.
        return cls(np.cumsum(np.maximum(whole, exact > 0)), rng.checked_word(seed, "seed"))

    def at(self, numbers: Indices) -> Indices:
        """Return the records at these numbers of the sample."""
        words = rng.bits(1, seed=self.seed, epoch=0, records=numbers, stream=SAMPLE_STREAM)[:, 0]
        places = rng.below(words, int(self.ends[-1]))
        return np.searchsorted(self.ends, places, side="right").astype(np.int64)

    def digest(self) -> str:
        """Return a text that differs for other weights."""
        return hashlib.sha256(np.ascontiguousarray(self.ends, "<i8").tobytes()).hexdigest()
