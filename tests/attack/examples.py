"""Structured inputs by Hypothesis, inside a trial."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import hypothesis
import numpy as np
from hypothesis import HealthCheck, Phase, strategies

NUM_EXAMPLES = 50


def examples(
    rng: np.random.Generator, check: Callable[[Any], str], strategy: strategies.SearchStrategy[Any]
) -> Counter[str]:
    """Check examples of a strategy; returns how often what came of it.

    An example that fails is not made smaller, which may take long: the seed of the trial gives it
    again.
    """
    outcomes: Counter[str] = Counter()

    @hypothesis.seed(int(rng.integers(2**32)))
    @hypothesis.settings(
        max_examples=NUM_EXAMPLES, database=None, deadline=None, derandomize=False, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck), print_blob=False,
    )  # fmt: skip
    @hypothesis.given(strategy)
    def check_example(example: Any) -> None:
        outcomes[check(example)] += 1

    check_example()
    return outcomes
