"""`make test` runs a sample of the cases of each test, in which each value of each parameter
occurs."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.samples import sample

pytest_plugins = ["pytester"]

SHAPES = [(2, 3), (7, 2), (3, 3, 3), (2, 10, 3, 4)]
TESTS = """
import pytest

@pytest.mark.parametrize("a", range(4))
@pytest.mark.parametrize("b", "xyz")
def test_a_sample(a, b): print("sample", a, b)

@pytest.mark.every_case
@pytest.mark.parametrize("a", range(4))
@pytest.mark.parametrize("b", "xyz")
def test_every_case(a, b): pass

@pytest.mark.parametrize("a", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("b", range(2))
def test_slow_cases_are_in_no_sample(a, b): pass

@pytest.mark.parametrize("a", [0, 1, pytest.param(2, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("b", range(9))
def test_cases_for_a_gpu_have_a_sample_of_their_own(a, b): pass

@pytest.mark.parametrize("a", range(9))
class TestOfAClass:
    @pytest.fixture(params=["one", "other"])
    def lane(self, request): return request.param

    def test_one_parameter(self, a): pass
    def test_two_parameters(self, a, lane): pass

@pytest.mark.parametrize(("a", "b"), [(0, 1), (1, 1), (2, 1), (2, 3)])
@pytest.mark.parametrize("c", range(3))
def test_parameters_of_one_mark_are_one(a, b, c): pass
"""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", SHAPES)
def test_each_value_of_two_parameters_occurs_and_each_pair_of_values_of_more(shape, seed):
    cases = list(itertools.product(*map(range, shape)))

    places = sample(cases, seed)

    assert len(places) == len(set(places))
    for axes in itertools.combinations(range(len(shape)), min(len(shape) - 1, 2)):
        values = {tuple(cases[place][axis] for axis in axes) for place in places}
        assert values == set(itertools.product(*(range(shape[axis]) for axis in axes)))


@pytest.mark.parametrize(
    ("shape", "limit"),
    [((2, 3), 4), ((7, 2), 8), ((30, 2), 31), ((3, 3, 3), 13), ((2, 10, 3, 4), 60)],
)
def test_a_sample_is_much_smaller_than_all_cases(shape, limit):
    cases = list(itertools.product(*map(range, shape)))

    assert len(sample(cases, 5)) <= limit


def test_cases_that_are_no_whole_product_are_sampled_too():
    cases = [(0, "a"), (0, "b"), (1, "b"), (2, "c"), (2, "a")]

    places = sample(cases, 1)

    assert {cases[place][0] for place in places} == {0, 1, 2}
    assert {cases[place][1] for place in places} == {"a", "b", "c"}


def test_the_seed_decides_which_values_meet():
    cases = list(itertools.product(range(20), range(2)))

    assert sample(cases, 3) == sample(cases, 3)
    assert len({frozenset(sample(cases, seed)) for seed in range(10)}) == 10


def test_the_option_leaves_the_other_cases_out(pytester):
    conftest = Path(__file__).with_name("conftest.py").read_text(encoding="utf-8")
    pytester.makepyfile(conftest=conftest, test_a=TESTS)
    pytester.makeini(
        f"[pytest]\nmarkers =\n  gpu\n  slow\n  every_case\npythonpath = {Path(__file__).parents[1]}"
    )

    lines = pytester.runpytest_inprocess(
        "--sample", "--collect-only", "-q", "-m", "not slow", "-p", "no:cacheprovider"
    ).outlines

    tests = [line.split("::", 1)[1] for line in lines if "::" in line]
    names = [test.split("[")[0] for test in tests]
    assert names.count("test_a_sample") == 4
    assert names.count("test_every_case") == 12
    assert names.count("test_slow_cases_are_in_no_sample") == 2
    assert names.count("test_cases_for_a_gpu_have_a_sample_of_their_own") == 18
    assert names.count("test_parameters_of_one_mark_are_one") == 4
    assert (
        names.count("TestOfAClass::test_one_parameter")
        == names.count("TestOfAClass::test_two_parameters")
        == 9
    )
