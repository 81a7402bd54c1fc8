"""The order is a uniform permutation, computed without memory, and ignores batch size and number of
shards."""

from __future__ import annotations

import json
import tracemalloc
from collections import OrderedDict
from dataclasses import replace
from math import factorial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload import core, order
from gpuload.errors import RecordIndexError, SpecError
from gpuload.order import Blocks, Lanes, Plan, Position, Split, permutation

BEGIN = Position()


def batch(plan, step, epoch=0, start=BEGIN):
    """The records of a step, and which are valid; counted from the epoch's beginning unless it was
    begun elsewhere."""
    records, valid, _ = plan.span(plan.at(replace(start, epoch=epoch), step))
    return records, valid


blocks_of_one_lane = st.builds(Blocks, st.integers(1, 9), st.integers(1, 5))
all_blocks = st.builds(
    Blocks, st.integers(1, 9), st.integers(1, 5), st.integers(1, 7), st.integers(1, 9)
)
shuffles = st.one_of(st.booleans(), blocks_of_one_lane, all_blocks)


def epoch_of(plan, epoch=0, start=BEGIN):
    """The valid records of an epoch, step by step."""
    batches = [batch(plan, step, epoch, start) for step in range(start.step, plan.end(start))]
    return [records[valid] for records, valid in batches]


def global_order(
    length,
    *,
    batch_size,
    num_shards,
    shuffle=True,
    seed=0,
    epoch=0,
    start=BEGIN,
    last_batch="partial",
):
    plans = [
        Plan(length, batch_size, shuffle, seed, shard_id, num_shards, last_batch)
        for shard_id in range(num_shards)
    ]
    steps = zip(*(epoch_of(plan, epoch, start) for plan in plans), strict=True)
    return np.concatenate(
        [np.empty(0, np.int64), *(records for shards in steps for records in shards)]
    )


@given(
    st.integers(1, 60),
    st.integers(1, 7),
    shuffles,
    st.sampled_from(order.LAST_BATCH),
    st.integers(1, 3),
    st.integers(0, 2),
)
def test_the_step_of_a_record_is_the_one_that_has_it(
    length, batch_size, shuffle, last_batch, num_shards, epoch
):
    plan = Plan(length, batch_size, shuffle, 5, 0, num_shards, last_batch)
    steps = {
        int(record): step
        for step, records in enumerate(epoch_of(plan, epoch))
        for record in records
    }

    assert plan.steps_of(list(steps), epoch) == list(steps.values())
    for record in {-1, length, *range(length)} - steps.keys():
        with pytest.raises(RecordIndexError, match=f"record {record} of {length}"):
            plan.steps_of([record], epoch)


def test_the_step_of_a_record_is_looked_for_piece_by_piece(monkeypatch):
    monkeypatch.setattr(order, "PIECE_RECORDS", 10)
    plan = Plan(1000, 3, True, 5)

    (step,) = plan.steps_of([77], epoch=1)

    assert 77 in batch(plan, step, epoch=1)[0]


def test_without_shuffling_the_step_of_a_record_of_a_trillion_is_a_division():
    assert Plan(10**12, 64).steps_of([10**12 - 1, 0]) == [(10**12 - 1) // 64, 0]


@given(st.integers(1, 3000), st.integers(0, 5), st.integers(0, 3))
def test_a_permutation_holds_every_number_once(length, seed, epoch):
    numbers = permutation(length, seed=seed, epoch=epoch).at(np.arange(length))
    assert np.array_equal(np.sort(numbers), np.arange(length))


@pytest.mark.parametrize("length", [3, 4, 5])
def test_every_arrangement_of_a_few_records_is_equally_likely(length):
    epochs = 6000
    orders = np.stack(
        [permutation(length, seed=1, epoch=e).at(np.arange(length)) for e in range(epochs)]
    )

    _, counts = np.unique(orders @ length ** np.arange(length), return_counts=True)

    expected = epochs / factorial(length)
    freedom = factorial(length) - 1
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert counts.size == factorial(length)
    assert chi_squared < freedom + 5 * np.sqrt(2 * freedom)  # five standard deviations


@pytest.mark.parametrize("length", [10, 37, 100, 1000])
def test_places_and_neighbours_are_uniform(length):
    epochs = 1500
    orders = np.stack(
        [permutation(length, seed=2, epoch=e).at(np.arange(length)) for e in range(epochs)]
    )
    places = np.zeros((length, length))
    np.add.at(places, (np.broadcast_to(np.arange(length), orders.shape), orders), 1)
    distances = np.bincount(((orders[:, 1:] - orders[:, :-1]) % length).ravel(), minlength=length)[
        1:
    ]

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
    batch(plan, 0, 0)
    tracemalloc.start()
    batch(plan, 10**9, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@given(
    st.integers(1, 10**13),
    st.integers(0, 2**64 - 1),
    st.lists(st.integers(0, 2**40), min_size=1, max_size=20),
)
def test_the_numpy_form_equals_the_compiled_form(length, seed, places):
    positions = np.array(places) % length
    compiled = permutation(length, seed=seed, epoch=1).at(positions)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "native", None)
        by_numpy = permutation(length, seed=seed, epoch=1).at(positions)

    assert np.array_equal(compiled, by_numpy)


def test_the_order_is_the_same_in_every_version():
    # Saved runs depend on these numbers: they may never change.
    assert permutation(10, seed=42, epoch=0).at(np.arange(10)).tolist() == GOLDEN_SMALL
    assert permutation(10**9, seed=42, epoch=7).at(np.arange(4)).tolist() == GOLDEN_LARGE
    assert batch(Plan(20, 20, Blocks(4, 2), seed=42), 0, 1)[0].tolist() == GOLDEN_BLOCKS
    assert (
        batch(Plan(20, 20, Blocks(4, 2, lanes=3, chunk=2), seed=42), 0, 1)[0].tolist()
        == GOLDEN_LANES
    )
    assert Split(20, 5, seed=42, second=False).at(np.arange(5)).tolist() == GOLDEN_SPLIT


@given(st.integers(1, 200), st.integers(1, 9), st.integers(1, 7), shuffles, st.integers(0, 3))
def test_the_shards_together_visit_every_record_once_in_an_order_that_ignores_them(
    length, batch_size, num_shards, shuffle, epoch
):
    visited = global_order(
        length, batch_size=batch_size, num_shards=num_shards, shuffle=shuffle, epoch=epoch
    )
    alone = global_order(length, batch_size=length, num_shards=1, shuffle=shuffle, epoch=epoch)
    assert np.array_equal(np.sort(visited), np.arange(length))
    assert np.array_equal(visited, alone)


@given(st.integers(1, 100), st.integers(1, 9), st.integers(1, 7), st.sampled_from(order.LAST_BATCH))
def test_every_shard_has_the_same_number_of_steps_and_no_empty_batch(
    length, batch_size, num_shards, last_batch
):
    plans = [
        Plan(length, batch_size, True, 0, shard_id, num_shards, last_batch)
        for shard_id in range(num_shards)
    ]
    assert len({plan.end() for plan in plans}) == 1
    for plan in plans:
        for step in range(plan.end()):
            records, valid = batch(plan, step, 0)
            assert 1 <= records.size <= batch_size
            assert records.size == valid.size
            if last_batch != "partial":
                assert records.size == batch_size


def test_pad_fills_up_with_records_that_are_not_valid():
    batches = [batch(Plan(10, 2, False, 0, shard_id, 2, "pad"), 2, 0) for shard_id in (0, 1)]
    assert [records.tolist() for records, _ in batches] == [[8, 9], [0, 1]]
    assert [valid.tolist() for _, valid in batches] == [[True, True], [False, False]]


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 7), shuffles)
def test_padding_is_made_of_records_that_exist(length, batch_size, num_shards, shuffle):
    for shard_id in range(num_shards):
        plan = Plan(length, batch_size, shuffle, 0, shard_id, num_shards, "pad")
        records, valid = batch(plan, plan.end() - 1, 0)
        assert records.min() >= 0
        assert records.max() < length
        assert records.size == valid.size == batch_size


def test_a_shard_without_a_record_of_the_last_step_is_given_padding():
    plan = Plan(300, 64, False, 0, 1, 2, "pad")
    records, valid = batch(plan, 2, 0)
    assert records.tolist() == list(range(20, 84))
    assert not valid.any()


def test_padding_of_more_shards_than_numbers_of_64_bits_can_count():
    records, valid = batch(Plan(10, 2, False, 0, 10**19, 10**20, "pad"), 0, 0)
    assert records.tolist() == [0, 1]
    assert not valid.any()


def test_partial_deals_the_last_records_out_and_gives_an_empty_shard_one_padded_record():
    batches = [batch(Plan(9, 2, False, 0, shard_id, 4, "partial"), 1, 0) for shard_id in range(4)]
    assert next(records.tolist() for records, _ in batches) == [8]
    assert [valid.tolist() for _, valid in batches] == [[True], [False], [False], [False]]


def test_drop_leaves_the_last_records_out():
    assert np.array_equal(
        global_order(11, batch_size=2, num_shards=2, shuffle=False, last_batch="drop"), np.arange(8)
    )


@given(
    st.integers(1, 150), st.integers(1, 9), st.integers(1, 5), st.integers(1, 9), st.integers(1, 5), st.data(), shuffles
)  # fmt: skip
def test_another_number_of_shards_and_batch_size_goes_on_with_exactly_the_records_left(
    length, batch_size, num_shards, new_batch_size, new_num_shards, data, shuffle
):
    before = Plan(length, batch_size, shuffle, 0, 0, num_shards)
    num_steps = data.draw(st.integers(0, before.end() - 1))
    position = before.at(BEGIN, num_steps).offset
    start = Plan(length, new_batch_size, shuffle, 0, 0, new_num_shards).start_at(0, position)

    rest = global_order(
        length, batch_size=new_batch_size, num_shards=new_num_shards, shuffle=shuffle, start=start
    )

    whole = global_order(length, batch_size=batch_size, num_shards=num_shards, shuffle=shuffle)
    assert np.array_equal(rest, whole[position:])


def test_blocks_keep_neighbours_within_a_window():
    blocks = Blocks(block_records=10, window_blocks=5)
    records = batch(Plan(1000, 1000, blocks, seed=3), 0, 0)[0]
    for window in range(0, 1000, 50):
        starts = np.unique((records[window : window + 50] - records.min()) // 10)
        assert starts.size <= 10  # five blocks, turned round, touch at most ten aligned ones
    assert not np.array_equal(records, np.sort(records))


def test_blocks_begin_elsewhere_in_each_epoch():
    plan = Plan(1000, 1000, Blocks(100, 1), seed=3)

    first = [int(batch(plan, 0, epoch)[0][:100].min()) % 100 for epoch in range(20)]
    assert len(set(first)) > 5


def test_epochs_and_seeds_have_other_orders():
    orders = {
        tuple(batch(Plan(50, 50, True, seed), 0, epoch)[0])
        for seed in range(5)
        for epoch in range(5)
    }
    assert len(orders) == 25


# --- lanes


def test_lanes_take_turns_chunk_by_chunk():
    lanes = Lanes(13, lanes=3, chunk=2)
    assert lanes.places(np.arange(13)).tolist() == [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11, 12]


@given(st.integers(0, 300), st.integers(1, 9), st.integers(1, 40))
def test_lanes_hold_every_place_once_and_know_where_it_is_taken(length, num_lanes, chunk):
    lanes = Lanes(length, num_lanes, chunk)

    places = lanes.places(np.arange(length))

    assert np.array_equal(np.sort(places), np.arange(length))
    assert np.array_equal(lanes.positions(places), np.arange(length))


@given(st.integers(0, 100), st.integers(1, 5), st.integers(1, 9), st.integers(0, 120))
def test_a_lane_is_reached_where_its_places_before_a_position_end(
    length, num_lanes, chunk, position
):
    lanes = Lanes(length, num_lanes, chunk)
    bounds = [*(lane * lanes.lane_length for lane in range(num_lanes + 1)), length]
    position = min(position, length)
    before = lanes.places(np.arange(position))
    for lane in range(num_lanes + 1):
        taken = np.count_nonzero((before >= bounds[lane]) & (before < bounds[lane + 1]))
        assert lanes.first_place(lane, position) == bounds[lane] + taken


def test_one_lane_is_the_order_without_lanes_whatever_the_chunk():
    assert Blocks(4, 2, lanes=1, chunk=3) == Blocks(4, 2)
    assert Blocks(4, 2, lanes=np.int64(1), chunk=np.int64(3)) == Blocks(4, 2)


def test_blocks_are_named_by_what_makes_their_order():
    assert repr(Blocks()) == "Blocks(block_records=1024, window_blocks=16)"
    assert repr(Blocks(4, 2, 1, 3)) == "Blocks(block_records=4, window_blocks=2)"
    assert repr(Blocks(np.int32(4), 2, np.int64(8), np.uint8(3))) == (
        "Blocks(block_records=4, window_blocks=2, lanes=8, chunk=3)"
    )


@pytest.mark.parametrize("factor", [1, 2, 4])
def test_shards_stay_on_their_lanes_when_they_become_fewer_at_the_same_global_batch(factor):
    blocks, length = Blocks(5, 4, lanes=8, chunk=6), 4800
    lane_of = np.empty(length, np.int64)
    lane_of[batch(Plan(length, length, blocks), 0, 0)[0]] = (
        Lanes(length, 8, 6).places(np.arange(length)) // 600
    )
    for shard_id in range(8 // factor):
        records = np.concatenate(
            epoch_of(Plan(length, 6 * factor, blocks, 0, shard_id, 8 // factor))
        )
        assert set(lane_of[records]) == set(range(shard_id * factor, (shard_id + 1) * factor))


@pytest.mark.parametrize(
    "arguments", [{"lanes": 2}, {"lanes": 0}, {"lanes": 2, "chunk": 0}, {"lanes": 2.0, "chunk": 4}]
)
def test_lanes_that_make_no_sense_are_refused_by_name(arguments):
    with pytest.raises(SpecError, match=r"Blocks\.(lanes|chunk) = ") as raised:
        Blocks(**arguments)
    assert raised.value.remedy


def fetched(plan, steps, *, page=64, cached=640, epoch=0):
    """The records read by a shard that keeps the pages of 64 records which it used last, for each
    that it takes."""
    cache, num_read, num_taken = OrderedDict(), 0, 0
    for step in steps:
        records, _ = batch(plan, step, epoch)
        num_taken += records.size
        for number in np.unique(records // page).tolist():
            num_read += number not in cache
            cache[number] = None
            cache.move_to_end(number)
            if len(cache) > cached:
                cache.popitem(last=False)
    return num_read * page / num_taken


MANY, SHARDS, BATCH = 10**12, 10**4, 256


@pytest.mark.parametrize("shuffle", [True, Blocks(), Blocks(lanes=SHARDS, chunk=16)])
@pytest.mark.parametrize(
    "shards", [range(2_000), pytest.param(range(SHARDS), marks=pytest.mark.slow)], ids=len
)
def test_a_step_of_ten_thousand_shards_of_a_trillion_records_takes_different_records(
    shuffle, shards
):
    plans = [Plan(MANY, 16, shuffle, 3, shard_id, SHARDS) for shard_id in shards]

    records = np.concatenate([batch(plan, 2_000_000, 5)[0] for plan in plans])

    assert np.unique(records).size == 16 * len(shards)
    assert records.min() >= 0
    assert records.max() < MANY


@pytest.mark.parametrize("factor", [1, 2])
def test_with_lanes_a_shard_of_ten_thousand_reads_little_more_than_it_takes(factor):
    blocks = Blocks(1024, 16, lanes=SHARDS, chunk=BATCH)
    plan = Plan(MANY, BATCH * factor, blocks, 3, 77, SHARDS // factor)
    assert fetched(plan, range(100_000, 101_280), cached=640 * factor) <= 1.2


def test_without_lanes_a_shard_of_ten_thousand_reads_many_times_what_it_takes():
    assert fetched(Plan(MANY, BATCH, Blocks(1024, 16), 3, 77, SHARDS), range(100_000, 100_100)) > 30


# --- what is asked for ahead


def windows_of(plan, epoch=0):
    """The windows of an order without lanes, as sets of records."""
    records = batch(Plan(plan.length, plan.length, plan.shuffle, plan.seed), 0, epoch)[0].tolist()
    size = plan.shuffle.window_records
    return [set(records[begin : begin + size]) for begin in range(0, plan.length, size)]


def test_windows_are_asked_for_one_ahead_each_once():
    plan = Plan(24, 2, Blocks(2, 2), seed=1)
    a, b, c, d, e, f = windows_of(plan)

    requests = [set(plan.ahead(BEGIN, step).tolist()) for step in range(plan.end())]

    assert requests == [a | b, set(), c, set(), d, set(), e, set(), f, set(), set(), set()]


def test_a_run_that_goes_on_asks_for_what_is_left_of_its_window_and_for_the_next():
    plan = Plan(24, 2, Blocks(2, 2), seed=1)
    _, _, c, d, e, f = windows_of(plan)
    start = Position(step=5, offset=10)

    requests = [set(plan.ahead(start, step).tolist()) for step in range(5, plan.end(start))]

    taken_before = set(batch(plan, 4, 0)[0].tolist())
    assert requests == [c - taken_before | d, e, set(), f, set(), set(), set()]


@given(
    st.integers(1, 300), st.integers(1, 30), all_blocks, st.sampled_from(order.LAST_BATCH), st.integers(0, 50),
    st.integers(0, 2),
)  # fmt: skip
def test_one_shard_asks_for_every_record_once_at_least_a_step_before_it_is_taken(
    length, batch_size, shuffle, last_batch, position, epoch
):
    plan = Plan(length, batch_size, shuffle, 5, last_batch=last_batch)
    start = plan.start_at(epoch, min(position, length))
    steps = range(start.step, plan.end(start))

    requests = [plan.ahead(start, step) for step in steps]

    batches = epoch_of(plan, epoch, start)
    all_requests = np.concatenate([np.empty(0, np.int64), *requests])
    assert np.array_equal(
        np.sort(all_requests), np.sort(np.concatenate([np.empty(0, np.int64), *batches]))
    )
    for number in range(len(steps)):
        assert np.all(np.diff(requests[number]) > 0)
        assert set(np.concatenate(batches[: number + 2])) <= set(
            np.concatenate(requests[: number + 1])
        )


@given(
    st.integers(1, 300),
    st.integers(1, 9),
    st.integers(1, 9),
    all_blocks,
    st.integers(0, 20),
    st.integers(1, 5),
)
def test_several_steps_ask_in_one_call_for_what_each_of_them_asks_for(
    length, batch_size, num_shards, shuffle, step, num_steps
):
    plan = Plan(length, batch_size, shuffle, 5, num_shards - 1, num_shards)
    singly = np.concatenate([plan.ahead(BEGIN, step + number) for number in range(num_steps)])
    assert np.array_equal(plan.ahead(BEGIN, step, num_steps=num_steps), np.sort(singly))


@pytest.mark.parametrize("num_shards", [2, 3, 4])
def test_a_few_shards_each_ask_for_the_windows_that_they_share(num_shards):
    length, blocks = 10_000, Blocks(50, 4)
    for shard_id in range(num_shards):
        plan = Plan(length, 8, blocks, 1, shard_id, num_shards)
        requests = np.concatenate([plan.ahead(BEGIN, step) for step in range(plan.end())])
        assert np.array_equal(np.sort(requests), np.arange(length))


@pytest.mark.parametrize("last_batch", ["partial", "pad"])
def test_shards_ask_for_the_windows_that_are_dealt_out_in_the_last_step(last_batch):
    plans = [Plan(100, 32, Blocks(5, 2), 1, shard_id, 4, last_batch) for shard_id in range(4)]
    for plan in plans:
        requests = set(plan.ahead(BEGIN, 0).tolist())
        records, valid = batch(plan, 0, 0)
        assert set(records[valid].tolist()) <= requests
        assert len(requests) < 50


def test_two_shards_that_take_turns_in_two_lanes_ask_for_both():
    for shard_id in range(2):
        plan = Plan(1024, 1, Blocks(10, 4, lanes=2, chunk=256), 1, shard_id, 2)
        requests = np.concatenate([plan.ahead(BEGIN, step) for step in range(plan.end())])
        assert np.array_equal(np.sort(requests), np.arange(1024))


def test_many_shards_that_share_windows_ask_for_nothing():
    plan = Plan(10_000, 8, Blocks(50, 4), 1, 2, 5)
    assert all(plan.ahead(BEGIN, step).size == 0 for step in range(plan.end()))


@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize("position", [0, 480, 481])
def test_with_lanes_each_of_many_shards_asks_for_its_own_windows(factor, position):
    length, blocks = 24_017, Blocks(10, 4, lanes=16, chunk=12)
    num_shards = 16 // factor
    plans = [
        Plan(length, 12 * factor, blocks, 1, shard_id, num_shards) for shard_id in range(num_shards)
    ]
    start = plans[0].start_at(0, position)

    num_asked = num_taken = num_missed = 0
    for plan in plans:
        requests, batches = set(), epoch_of(plan, 0, start)
        for number in range(len(batches)):
            new = plan.ahead(start, start.step + number)
            assert requests.isdisjoint(new.tolist())
            requests.update(new.tolist())
            num_missed += len(set(batches[number]) - requests)
        num_asked, num_taken = (
            num_asked + len(requests),
            num_taken + sum(records.size for records in batches),
        )

    # Where a run goes on one position after the beginning of a chunk, one record of each batch lies
    # in a neighbour's lane. What is left after the lanes is shared by all shards, and the last step
    # may not be a whole one.
    aside = num_taken // (12 * factor) if position % 12 else 0
    assert num_missed <= aside + 2 * 192
    assert (
        num_asked <= 1.01 * num_taken
    )  # a short window where a lane begins may have two shards that ask for it


@pytest.mark.parametrize(
    "plan",
    [
        Plan(10_000, 8, False),
        Plan(10_000, 8, True),
        Plan(0, 8, Blocks()),
        Plan(10**12, 8, Blocks(1 << 20, 1)),
        Plan(10**12, 8, Blocks(4, 4, lanes=10**6, chunk=8)),
        Plan(10**12, 8, Blocks(1024, 16, lanes=10**4, chunk=256)),
    ],
    ids=str,
)
def test_nothing_is_asked_for_where_there_are_no_windows_or_too_large_ones(plan):
    assert plan.ahead(BEGIN, 0).tolist() == []
    assert plan.ahead(BEGIN, 1).tolist() == []


def test_asking_ahead_in_a_trillion_records_takes_the_memory_of_a_window():
    plan = Plan(10**12, 256, Blocks(1024, 16, lanes=SHARDS, chunk=256), 1, 77, SHARDS)
    plan.ahead(BEGIN, 0)
    tracemalloc.start()
    sizes = {plan.ahead(BEGIN, step).size for step in range(100_000, 100_128)}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sizes == {0, 16_384}
    assert peak < 3 << 20


# --- split


def brute_force(length, count, seed):
    """The first part, cell by cell, as the docstring of Split says."""
    rarer = min(count, length - count)
    cells = np.array_split(np.arange(length), rarer) if rarer else []
    words = order.rng.bits(
        1, seed=seed, epoch=0, records=np.arange(rarer), stream=order.SPLIT_STREAM
    )[:, 0].tolist()
    chosen = [int(cell[word % cell.size]) for cell, word in zip(cells, words, strict=True)]
    return chosen if count == rarer else sorted(set(range(length)) - set(chosen))


def parts_of(length, count, seed=0):
    """Both parts of a split, as lists of records."""
    parts = [Split(length, count, seed, second) for second in (False, True)]
    return [part.at(np.arange(len(part))).tolist() for part in parts]


@pytest.mark.parametrize("length", range(24))
def test_a_split_chooses_one_record_of_each_cell(length):
    for count in range(length + 1):
        for seed in (0, 2**64 - 1):
            first, second = parts_of(length, count, seed)
            assert first == brute_force(length, count, seed)
            assert second == sorted(set(range(length)) - set(first))
            assert len(first) == count


@given(st.integers(1, 5000), st.floats(0, 1), st.integers(0, 9), st.data())
def test_a_record_of_a_part_is_the_same_whatever_is_asked_for_with_it(length, fraction, seed, data):
    for second in (False, True):
        part = Split(length, round(length * fraction), seed, second)
        if len(part):
            whole = part.at(np.arange(len(part)))
            some = np.array(
                data.draw(st.lists(st.integers(0, len(part) - 1), max_size=9)), np.int64
            )
            assert np.array_equal(part.at(some), whole[some])
            assert part.at(some).dtype == np.int64


@pytest.mark.parametrize("count", [100, 900])
def test_the_places_in_cells_are_uniform_and_independent(count):
    places = np.array([parts_of(1000, count, seed)[count == 900] for seed in range(1000)]) % 10
    pairs = places[:, :-1] * 10 + places[:, 1:]
    for values, kinds in ((places, 10), (pairs, 100)):
        counts = np.bincount(values.ravel(), minlength=kinds)
        expected = counts.sum() / kinds
        assert ((counts - expected) ** 2 / expected).sum() < kinds + 6 * np.sqrt(2 * kinds)


def test_seed_length_and_count_choose_other_records():
    chosen = {
        tuple(parts_of(length, count, seed)[0])
        for length in (99, 100)
        for count in (9, 10)
        for seed in range(5)
    }
    assert len(chosen) == 20


@pytest.mark.parametrize("count", [0, 1, 10**11, 5 * 10**11, 9 * 10**11, 10**12 - 1, 10**12])
def test_both_parts_of_a_trillion_records_are_computed_without_memory(count):
    length = 10**12
    tracemalloc.start()
    records = []
    for second in (False, True):
        part = Split(length, count, 4, second)
        positions = (
            np.unique(np.linspace(0, len(part) - 1, 1000, dtype=np.int64))
            if len(part)
            else np.arange(0)
        )
        records.append(part.at(positions))
        assert np.all(np.diff(records[-1]) > 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    both = np.concatenate(records)
    assert np.unique(both).size == both.size
    assert both.min() >= 0
    assert both.max() < length
    assert peak < 1 << 20


def test_a_split_of_the_longest_order_does_not_overflow():
    length = 1 << 62
    for count in (1, 3, length // 3, length // 2, length - 1):
        for second in (False, True):
            part = Split(length, count, 1, second)
            begin, middle, end = part.at(np.array([0, len(part) // 2, len(part) - 1])).tolist()
            assert 0 <= begin <= middle <= end < length
            assert end >= len(part) - 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 0, 0, False), "-1 records"), ((1.5, 0, 0, False), r"1\.5 records"),
        ((10, 11, 0, False), "count = 11"), ((10, -1, 0, False), "count = -1"), ((10, 0.5, 0, False), r"count = 0\.5"),
        ((10, 1, -1, False), "seed = -1"), ((10, 1, 0.5, False), r"seed = 0\.5"),
    ],
)  # fmt: skip
def test_splits_that_make_no_sense_are_refused_by_name(arguments, message):
    with pytest.raises(SpecError, match=message):
        Split(*arguments)


# --- arguments


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 0}, {"batch_size": 1.5}, {"num_shards": 0}, {"shard_id": 2, "num_shards": 2},
        {"shard_id": -1}, {"last_batch": "keep"}, {"shuffle": "yes"}, {"seed": -1}, {"seed": 0.5}, {"seed": True},
        {"shard_id": 0.5}, {"shard_id": True, "num_shards": 2}, {"shard_id": np.float64(0)}, {"batch_size": True},
        {"num_shards": 2.0},
    ],
)  # fmt: skip
def test_arguments_that_make_no_sense_are_refused_by_name(arguments):
    name = next(iter(arguments))
    with pytest.raises(SpecError, match=f"{name} = "):
        Plan(**{"length": 10, "batch_size": 2, **arguments})


@pytest.mark.parametrize("length", [-1, 2**62 + 1, 0.5, True, "many"])
def test_a_length_that_makes_no_sense_is_refused(length):
    with pytest.raises(SpecError, match=f"{length!r} records"):
        Plan(length, 2)


def test_numpy_integers_become_pythons_which_json_knows():
    plan = Plan(np.int64(10), np.int32(2), False, np.uint64(2**64 - 1), np.int8(1), np.int64(2))

    numbers = [
        plan.length,
        plan.batch_size,
        plan.seed,
        plan.shard_id,
        plan.num_shards,
        plan.at(BEGIN, 1).offset,
        plan.end(),
    ]

    assert json.loads(json.dumps(numbers)) == [10, 2, 2**64 - 1, 1, 2, 4, 3]
    assert plan == Plan(10, 2, False, 2**64 - 1, 1, 2)


def test_blocks_of_no_records_are_refused():
    with pytest.raises(SpecError, match=r"Blocks\.block_records = 0"):
        Blocks(0, 4)


def test_a_step_beyond_the_epoch_is_refused():
    with pytest.raises(RecordIndexError, match="step 3 of an epoch of 3 steps"):
        batch(Plan(5, 2), 3, 0)


def test_no_records_make_no_steps():
    assert Plan(0, 4, True).end() == 0


GOLDEN_SMALL = [9, 2, 0, 7, 6, 4, 1, 3, 8, 5]
GOLDEN_LARGE = [601363119, 727991241, 154652954, 467535751]
GOLDEN_LANES = [12, 14, 18, 15, 1, 0, 16, 13, 3, 9, 8, 11, 17, 19, 2, 10, 4, 6, 5, 7]
GOLDEN_SPLIT = [3, 4, 9, 13, 16]
GOLDEN_BLOCKS = [12, 14, 16, 13, 17, 19, 18, 15, 3, 9, 2, 10, 1, 0, 8, 11, 4, 6, 5, 7]


@pytest.mark.parametrize(
    "arguments", [{"length": 10**5000}, {"batch_size": -(10**5000)}, {"shard_id": 10**5000}]
)
def test_an_integer_of_too_many_digits_is_refused_as_any_other(arguments):
    with pytest.raises(SpecError, match="too many digits to show"):
        order.Plan(**{"length": 9, "batch_size": 2, **arguments})
