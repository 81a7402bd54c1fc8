"""The order is a uniform permutation, computed without memory, and ignores batch size and number of shards."""

from __future__ import annotations

import tracemalloc
from math import factorial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuload.kernels
from gpuload import order
from gpuload.errors import RecordIndexError, SpecError
from gpuload.order import Blocks, Plan, Start, permutation

BEGIN = Start()
shuffles = st.one_of(st.booleans(), st.builds(Blocks, st.integers(1, 9), st.integers(1, 5)))


def epoch_of(plan, epoch=0, start=BEGIN):
    """The valid records of an epoch, step by step."""
    batches = [plan.batch(step, epoch, start) for step in range(start.step, plan.end(start))]
    return [records[valid] for records, valid in batches]


def global_order(length, *, batch_size, num_shards, shuffle=True, seed=0, epoch=0, start=BEGIN, last_batch="partial"):
    plans = [
        Plan(length, batch_size, shuffle, seed, shard_id, num_shards, last_batch) for shard_id in range(num_shards)
    ]
    steps = zip(*(epoch_of(plan, epoch, start) for plan in plans), strict=True)
    return np.concatenate([np.empty(0, np.int64), *(records for shards in steps for records in shards)])


@given(st.integers(1, 3000), st.integers(0, 5), st.integers(0, 3))
def test_a_permutation_holds_every_number_once(length, seed, epoch):
    numbers = permutation(length, seed=seed, epoch=epoch).at(np.arange(length))
    assert np.array_equal(np.sort(numbers), np.arange(length))


@pytest.mark.parametrize("length", [3, 4, 5])
def test_every_arrangement_of_a_few_records_is_equally_likely(length):
    epochs = 6000
    seen = np.stack([permutation(length, seed=1, epoch=e).at(np.arange(length)) for e in range(epochs)])

    _, counts = np.unique(seen @ length ** np.arange(length), return_counts=True)

    expected = epochs / factorial(length)
    freedom = factorial(length) - 1
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert counts.size == factorial(length)
    assert chi_squared < freedom + 5 * np.sqrt(2 * freedom)  # five standard deviations


@pytest.mark.parametrize("length", [10, 37, 100, 1000])
def test_places_and_neighbours_are_uniform(length):
    epochs = 1500
    seen = np.stack([permutation(length, seed=2, epoch=e).at(np.arange(length)) for e in range(epochs)])
    places = np.zeros((length, length))
    np.add.at(places, (np.broadcast_to(np.arange(length), seen.shape), seen), 1)
    distances = np.bincount(((seen[:, 1:] - seen[:, :-1]) % length).ravel(), minlength=length)[1:]

    for counts, freedom in ((places, (length - 1) ** 2), (distances, length - 2)):
        expected = counts.sum() / counts.size
        chi_squared = ((counts - expected) ** 2 / expected).sum()
        assert abs(chi_squared - freedom) < 6 * np.sqrt(2 * freedom)


def test_a_million_places_of_a_trillion_records_are_different_and_spread_evenly():
    length = 10**12
    places = np.arange(10**6) * 999_983

    records = permutation(length, seed=5, epoch=0).at(places)

    assert np.unique(records).size == records.size
    counts = np.histogram(records, bins=100, range=(0, length))[0]
    assert abs(((counts - 10**4) ** 2 / 10**4).sum() - 99) < 6 * np.sqrt(2 * 99)


def test_a_batch_of_a_trillion_records_takes_no_memory():
    plan = Plan(10**12, 256, True, seed=1)
    plan.batch(0, 0)
    tracemalloc.start()
    plan.batch(10**9, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@given(st.integers(1, 10**13), st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**40), min_size=1, max_size=20))
def test_the_numpy_form_equals_the_compiled_form(length, seed, places):
    positions = np.array(places) % length
    compiled = permutation(length, seed=seed, epoch=1).at(positions)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpuload.kernels, "load", lambda name: None)
        by_numpy = permutation(length, seed=seed, epoch=1).at(positions)

    assert np.array_equal(compiled, by_numpy)


def test_the_order_is_the_same_in_every_version():
    # Saved runs depend on these numbers: they may never change.
    assert permutation(10, seed=42, epoch=0).at(np.arange(10)).tolist() == GOLDEN_SMALL
    assert permutation(10**9, seed=42, epoch=7).at(np.arange(4)).tolist() == GOLDEN_LARGE
    assert Plan(20, 20, Blocks(4, 2), seed=42).batch(0, 1)[0].tolist() == GOLDEN_BLOCKS


@given(st.integers(1, 200), st.integers(1, 9), st.integers(1, 7), shuffles, st.integers(0, 3))
def test_the_shards_together_visit_every_record_once_in_an_order_that_ignores_them(
    length, batch_size, num_shards, shuffle, epoch
):
    visited = global_order(length, batch_size=batch_size, num_shards=num_shards, shuffle=shuffle, epoch=epoch)
    alone = global_order(length, batch_size=length, num_shards=1, shuffle=shuffle, epoch=epoch)
    assert np.array_equal(np.sort(visited), np.arange(length))
    assert np.array_equal(visited, alone)


@given(st.integers(1, 100), st.integers(1, 9), st.integers(1, 7), st.sampled_from(order.LAST_BATCH))
def test_every_shard_has_the_same_number_of_steps_and_no_empty_batch(length, batch_size, num_shards, last_batch):
    plans = [Plan(length, batch_size, True, 0, shard_id, num_shards, last_batch) for shard_id in range(num_shards)]
    assert len({plan.end() for plan in plans}) == 1
    for plan in plans:
        for step in range(plan.end()):
            records, valid = plan.batch(step, 0)
            assert 1 <= records.size <= batch_size
            assert records.size == valid.size
            if last_batch != "partial":
                assert records.size == batch_size


def test_pad_fills_up_with_records_that_are_not_valid():
    batches = [Plan(10, 2, False, 0, shard_id, 2, "pad").batch(2, 0) for shard_id in (0, 1)]
    assert [records.tolist() for records, _ in batches] == [[8, 9], [0, 1]]
    assert [valid.tolist() for _, valid in batches] == [[True, True], [False, False]]


def test_partial_deals_the_last_records_out_and_gives_an_empty_shard_one_padded_record():
    batches = [Plan(9, 2, False, 0, shard_id, 4, "partial").batch(1, 0) for shard_id in range(4)]
    assert next(records.tolist() for records, _ in batches) == [8]
    assert [valid.tolist() for _, valid in batches] == [[True], [False], [False], [False]]


def test_drop_leaves_the_last_records_out():
    assert np.array_equal(global_order(11, batch_size=2, num_shards=2, shuffle=False, last_batch="drop"), np.arange(8))


@given(
    st.integers(1, 150), st.integers(1, 9), st.integers(1, 5), st.integers(1, 9), st.integers(1, 5), st.data(), shuffles
)  # fmt: skip
def test_another_number_of_shards_and_batch_size_goes_on_with_exactly_the_records_left(
    length, batch_size, num_shards, new_batch_size, new_num_shards, data, shuffle
):
    before = Plan(length, batch_size, shuffle, 0, 0, num_shards)
    done = data.draw(st.integers(0, before.end() - 1))
    position = before.position(done)
    start = Plan(length, new_batch_size, shuffle, 0, 0, new_num_shards).start_at(position)

    rest = global_order(length, batch_size=new_batch_size, num_shards=new_num_shards, shuffle=shuffle, start=start)

    whole = global_order(length, batch_size=batch_size, num_shards=num_shards, shuffle=shuffle)
    assert np.array_equal(rest, whole[position:])


def test_blocks_keep_neighbours_within_a_window():
    blocks = Blocks(block_records=10, window_blocks=5)
    records = Plan(1000, 1000, blocks, seed=3).batch(0, 0)[0]
    for window in range(0, 1000, 50):
        starts = np.unique((records[window : window + 50] - records.min()) // 10)
        assert starts.size <= 10  # five blocks, turned round, touch at most ten aligned ones
    assert not np.array_equal(records, np.sort(records))


def test_blocks_begin_elsewhere_in_each_epoch():
    plan = Plan(1000, 1000, Blocks(100, 1), seed=3)

    first = [int(plan.batch(0, epoch)[0][:100].min()) % 100 for epoch in range(20)]
    assert len(set(first)) > 5


def test_epochs_and_seeds_have_other_orders():
    orders = {tuple(Plan(50, 50, True, seed).batch(0, epoch)[0]) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 0}, {"batch_size": 1.5}, {"num_shards": 0}, {"shard_id": 2, "num_shards": 2},
        {"shard_id": -1}, {"last_batch": "keep"}, {"shuffle": "yes"}, {"seed": -1},
    ],
)  # fmt: skip
def test_arguments_that_make_no_sense_are_refused_by_name(arguments):
    name = next(iter(arguments))
    with pytest.raises(SpecError, match=f"{name} = "):
        Plan(**{"length": 10, "batch_size": 2, **arguments})


def test_blocks_of_no_records_are_refused():
    with pytest.raises(SpecError, match=r"Blocks\.block_records = 0"):
        Blocks(0, 4)


def test_a_step_beyond_the_epoch_is_refused():
    with pytest.raises(RecordIndexError, match="step 3 of an epoch of 3 steps"):
        Plan(5, 2).batch(3, 0)


def test_no_records_make_no_steps():
    assert Plan(0, 4, True).end() == 0


GOLDEN_SMALL = [9, 2, 0, 7, 6, 4, 1, 3, 8, 5]
GOLDEN_LARGE = [601363119, 727991241, 154652954, 467535751]
GOLDEN_BLOCKS = [12, 14, 16, 13, 17, 19, 18, 15, 3, 9, 2, 10, 1, 0, 8, 11, 4, 6, 5, 7]
