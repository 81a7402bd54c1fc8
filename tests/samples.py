"""A sample of the cases of each test with several parameters: `make test` runs it, `make test-all` runs all cases.

    codec [0, 1] x mode [RGB, GRAY] x file [a, b, c, d]      16 cases
    a sample of them     (0, RGB, a) (1, GRAY, b) (1, RGB, c) (0, GRAY, d)

Each value of each parameter is in the sample, so that a fault which one value shows is found. A fault that only a
combination shows may be missed: a test that is about combinations has the mark ``every_case``, and all its cases run.
"""

from __future__ import annotations

import random
import zlib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

import pytest


def sample_items(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return the items that are in the sample of their test.

    Cases for a GPU, which may be skipped, have a sample of their own: else a value would be in a skipped case alone.
    """
    tests = defaultdict[Hashable, list[pytest.Item]](list)
    for item in items:
        name = getattr(item, "originalname", item.name)
        tests[item.parent, name, item.get_closest_marker("gpu") is not None].append(item)
    chosen = set[pytest.Item]()
    for (parent, name, _), cases in tests.items():
        if len(cases) < 3 or cases[0].get_closest_marker("every_case"):
            chosen.update(cases)
        else:
            seed = zlib.crc32(f"{parent.nodeid}::{name}".encode())
            chosen.update(cases[place] for place in sample([_values(item) for item in cases], seed))
    return chosen


def _values(item: pytest.Item) -> tuple[Hashable, ...]:
    """Return the number of the value of each parameter."""
    return tuple(number for _, number in sorted(item.callspec.indices.items()))


def sample(cases: Sequence[tuple[Hashable, ...]], seed: int) -> list[int]:
    """Return the places of cases among which each value of each parameter occurs; those that bring most come first.

    Args:
        cases: of each case the values of its parameters.
        seed: decides which cases are taken: tests with the same parameters join their values in different ways.
    """
    order = list(range(len(cases)))
    random.Random(seed).shuffle(order)
    missing = {pair for case in cases for pair in enumerate(case)}
    places = list[int]()
    for num_new in range(len(cases[0]), 0, -1):
        for place in order:
            new = missing.intersection(enumerate(cases[place]))
            if len(new) == num_new:
                places.append(place)
                missing -= new
    return places
