"""The generator is NumPy's Philox, word for word, compiled or not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload import core, rng
from gpuload.errors import SpecError

word = st.integers(0, 2**64 - 1)


def numpys(count, *, seed, epoch, record, stream):
    counter = np.array([0, record, epoch, 0], np.uint64)
    key = np.array([seed, stream], np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=key)).random(count)


@given(word, word, st.lists(st.integers(0, 2**62), min_size=1, max_size=5), word, st.integers(1, 9))
def test_the_numbers_equal_numpys_own_philox(seed, epoch, records, stream, count):
    result = rng.uniform(count, seed=seed, epoch=epoch, records=np.array(records), stream=stream)

    reference = [
        numpys(count, seed=seed, epoch=epoch, record=record, stream=stream) for record in records
    ]

    assert np.array_equal(result, np.stack(reference))


@given(word, word, st.lists(st.integers(0, 2**62), max_size=5), word, st.integers(0, 9))
def test_the_numpy_form_equals_the_compiled_form(seed, epoch, records, stream, count):
    numbers = np.array(records, np.int64)
    for draw in (rng.bits, rng.uniform):
        compiled = draw(count, seed=seed, epoch=epoch, records=numbers, stream=stream)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(core, "native", None)
            by_numpy = draw(count, seed=seed, epoch=epoch, records=numbers, stream=stream)

        assert np.array_equal(compiled, by_numpy)
        assert by_numpy.shape == (len(records), count)


def test_the_known_answers_of_the_random123_distribution():
    # Random123 1.14, tests/kat_vectors, "philox4x64 10": counter, key, expected words
    zeros = np.zeros(1, np.uint64)
    ones = np.full(1, 2**64 - 1, np.uint64)

    from_zeros = rng.philox((zeros, zeros, zeros, zeros), (0, 0))
    from_ones = rng.philox((ones, ones, ones, ones), (2**64 - 1, 2**64 - 1))

    assert [int(word[0]) for word in from_zeros] == [
        0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B,
    ]  # fmt: skip
    assert [int(word[0]) for word in from_ones] == [
        0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0,
    ]  # fmt: skip


def test_seed_and_epoch_are_not_added():
    records = np.arange(100)
    item = rng.uniform(1, seed=0, epoch=1, records=records, stream=0)
    second = rng.uniform(1, seed=1, epoch=0, records=records, stream=0)
    assert not np.array_equal(item, second)


def test_a_records_numbers_do_not_depend_on_its_neighbours():
    single = rng.uniform(5, seed=3, epoch=2, records=np.array([41]), stream=9)
    among = rng.uniform(5, seed=3, epoch=2, records=np.arange(100), stream=9)
    assert np.array_equal(single[0], among[41])


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, True, "7", None])
def test_a_seed_that_is_no_64_bit_number_is_refused(seed):
    with pytest.raises(SpecError, match="seed = "):
        rng.uniform(1, seed=seed, epoch=0, records=np.arange(2), stream=0)
