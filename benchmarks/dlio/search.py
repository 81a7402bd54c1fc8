"""How many accelerators a loader feeds, from measurements of their utilisation. Arithmetic
alone."""

from __future__ import annotations

from collections.abc import Callable
from math import floor, inf, log

STEP = 1.1  # from one number of accelerators that is tried to the next
MOST_TRIES = 20


def estimate(records_per_s: float, batch_size: int, full_step_s: float, required: float) -> float:
    """Return how many accelerators a loader of this rate should feed.

    ``full_step_s`` is the time of a step for one accelerator. If every step waits for the loader,
    it takes ``batch_size / records_per_s``, of which ``full_step_s / accelerators`` is computation.
    """
    return full_step_s * records_per_s / (batch_size * required)


def most_accelerators(
    utilisation: Callable[[float], float], start: float, required: float
) -> float | None:
    """Return the largest power of ``STEP`` at which utilisation was at least ``required``, and at
    the next was not.

    A loader that is waited for at each step gives ``k`` accelerators a utilisation that is
    inversely proportional to ``k``: so each measurement says where to measure next.

    Args:
        utilisation: measures it, 0 to 1, at a number of accelerators.
        start: an estimate; the search begins at the power of ``STEP`` below it.
        required: the utilisation that is asked for, 0 to 1.

    Returns:
        None: after ``MOST_TRIES`` measurements it is not known.
    """
    exponent = _exponent(start)
    enough, short = (
        -inf,
        inf,
    )  # the exponents next to each other at which utilisation was enough, and was not
    for _ in range(MOST_TRIES):
        share = utilisation(STEP**exponent)
        estimated = _exponent(STEP**exponent * max(share, 1e-3) / required)
        if share >= required:
            enough = exponent
            exponent = int(min(max(estimated, enough + 1), short - 1))
        else:
            short = exponent
            exponent = int(max(min(estimated, short - 1), enough + 1))
        if short == enough + 1:
            return float(STEP**enough)
    return None


def _exponent(accelerators: float) -> int:
    return floor(log(accelerators) / log(STEP) + 1e-9)
