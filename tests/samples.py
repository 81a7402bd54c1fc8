"""A sample of the cases of each test with several parameters: `make test` runs it, `make test-all`
runs all cases.

    codec [0, 1] x file [a, b, c]                        6 cases
    a sample of them    (0, a) (1, b) (0, c)

Of two parameters each value is in the sample, of three and more each pair of values. So a fault is
found that one value shows, or two together. A test that is about all combinations has the mark
``every_case``, and all its cases run.
"""

from __future__ import annotations

import random
import zlib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations
from math import comb

import pytest


def sample_items(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return the items that are in the sample of their test.

    Cases for a GPU, which may be skipped, have a sample of their own: else a value would be in a
    skipped case alone.
    """
    tests = defaultdict[Hashable, list[pytest.Item]](list)
    for item in items:
        name = getattr(item, "originalname", item.name)
        tests[item.parent, name, item.get_closest_marker("gpu") is not None].append(item)
    selection = set[pytest.Item]()
    for (parent, name, _), group in tests.items():
        cases = (
            _cases(group)
            if len(group) > 2 and not group[0].get_closest_marker("every_case")
            else []
        )
        if cases and len(cases[0]) > 1:
            seed = zlib.crc32(f"{parent.nodeid}::{name}".encode())
            selection.update(group[place] for place in sample(cases, seed))
        else:
            selection.update(group)
    return selection


def _cases(items: Sequence[pytest.Item]) -> list[tuple[int, ...]]:
    """Return of each item the numbers of its values; parameters of one mark are one, and constant
    ones are left out."""
    names = set(items[0].callspec.params)
    marks = [mark.args[0] for mark in items[0].iter_markers("parametrize")]
    of_marks = [
        tuple(arg.replace(",", " ").split()) if isinstance(arg, str) else tuple(arg)
        for arg in marks
    ]
    of_fixtures = [(name,) for name in sorted(names.difference(*of_marks))]
    columns = []
    for group in (*of_marks, *of_fixtures):
        values = [tuple(id(item.callspec.params[name]) for name in group) for item in items]
        numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
        if len(numbers) > 1:
            columns.append([numbers[value] for value in values])
    return list(zip(*columns, strict=True))


def sample(cases: Sequence[tuple[Hashable, ...]], seed: int) -> list[int]:
    """Return places of cases among which each value of two parameters occurs, or each pair of
    values of more.

    Those come first that bring most.

    Args:
        cases: of each case the values of its parameters.
        seed: decides which cases are taken: tests with the same parameters join their values in
            different ways.
    """
    num_parameters = len(cases[0])
    size = min(num_parameters - 1, 2)  # of the combinations that are to occur
    parts = [set(combinations(enumerate(case), size)) for case in cases]
    order = list(range(len(cases)))
    random.Random(seed).shuffle(order)
    missing = set().union(*parts)
    places = list[int]()
    for num_new in range(comb(num_parameters, size), 0, -1):
        for place in order:
            if len(missing & parts[place]) == num_new:
                places.append(place)
                missing -= parts[place]
    return places
