"""Mixes of sources: proportions, own epochs, and that a batch is a pure function of its place."""

from __future__ import annotations

import json
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuload as gl
from gpuload import order
from gpuload.errors import ClosedError, RecordIndexError, SpecError
from gpuload.sources.mix import BLOCK, Turns, _in_own_order, mix


def numbered(first, length):
    """Return a source whose records say which they are."""
    return gl.arrays(x=np.arange(first, first + length))


def three(seed=3, **arguments):
    return mix(
        [(numbered(0, 5), 0.5), (numbered(100, 3), 0.2), (numbered(1000, 11), 0.3)],
        seed=seed,
        **arguments,
    )


def values(source, count):
    return source.read(range(count))["x"]


PARTS = [(0, 5, 0.5), (100, 3, 0.2), (1000, 11, 0.3)]


@pytest.mark.parametrize(("first", "length", "weight"), PARTS)
def test_all_records_of_a_part_come_before_one_comes_again_across_epochs(first, length, weight):
    result = values(three(), 4000)

    part_records = result[(result >= first) & (result < first + length)]

    rounds = part_records[: part_records.size // length * length].reshape(-1, length)
    assert len(rounds) > 100
    assert (np.sort(rounds, axis=1) == np.arange(first, first + length)).all()
    assert len({tuple(item) for item in rounds}) > min(5, len(rounds) // 2)  # and not in one order


@pytest.mark.parametrize(("first", "length", "weight"), PARTS)
def test_proportions_are_kept_at_every_number(first, length, weight):
    result = values(three(), 4000)

    so_far = np.cumsum((result >= first) & (result < first + length))

    assert np.abs(so_far - weight * np.arange(1, 4001)).max() < 3 + BLOCK / 4
    at_blocks = so_far[BLOCK - 1 :: BLOCK] - weight * np.arange(BLOCK, 4001, BLOCK)
    assert np.abs(at_blocks).max() <= 3  # a record for each part


@given(
    st.lists(st.fractions(Fraction(1, 10**6), 10**6), min_size=1, max_size=6),
    st.integers(0, 2**61),
    st.integers(0, 2**64 - 1),
)
def test_each_number_is_the_turn_of_one_part_and_turns_are_counted_without_a_gap(
    weights, first, seed
):
    turns = Turns(tuple(weights), seed)
    numbers = np.arange(first, first + 100)

    owners, which = turns.at(numbers)

    for part in range(len(weights)):
        part_turns = which[owners == part]
        assert (np.diff(part_turns) == 1).all()
    before, after = turns.counts(numbers[:1])[0], turns.counts(numbers[-1:] + 1)[0]
    assert (before.sum(), after.sum()) == (first, first + 100)
    begin = numbers // BLOCK == (first // BLOCK) + 1
    starts = turns.counts(np.array([(first // BLOCK + 1) * BLOCK]))[0]
    for part in range(len(weights)):
        part_turns = which[begin & (owners == part)]
        assert part_turns.size == 0 or part_turns[0] == starts[part]


@given(
    st.lists(st.fractions(Fraction(1, 1000), 1000), min_size=2, max_size=5), st.integers(0, 10**15)
)
def test_the_share_of_a_part_is_exact_to_a_record_for_each_part(weights, number):
    counts = Turns(tuple(weights), 0).counts(np.array([number]))[0].tolist()

    for count, weight in zip(counts, weights, strict=True):
        assert abs(count - number * weight / sum(weights)) <= len(weights) + number / 2**30


def test_weights_are_relative_and_taken_as_they_are_written():
    item = mix({numbered(0, 5): 0.1, numbered(100, 3): 0.2}, seed=1)
    two = mix([(numbered(0, 5), 1), (numbered(100, 3), np.float32(2))], seed=1)

    assert values(item, 500).tolist() == values(two, 500).tolist()
    assert np.count_nonzero(values(item, 3 * BLOCK) >= 100) == 2 * BLOCK


def test_any_numbers_may_be_asked_for_in_any_order():
    source = three()
    result = values(source, 300)
    numbers = np.random.default_rng(0).integers(0, 300, 100)

    assert source.read(numbers)["x"].tolist() == result[numbers].tolist()
    assert source.read([299, 299])["x"].tolist() == [result[299]] * 2
    assert source.read([2**62 - 1])["x"].size == 1
    with pytest.raises(RecordIndexError):
        source.read([2**62])
    with pytest.raises(RecordIndexError):
        source.read([-1])


@pytest.mark.parametrize("length", [1, 2, 7, 1000, order.SMALL - 1, order.SMALL, 10**6])
def test_permutations_of_many_keys_are_those_of_each_key(length):
    turns = np.random.default_rng(1).integers(0, 30 * length, 500)

    at_once = _in_own_order(turns, length, 9, 2)
    singly = [int(_in_own_order(np.array([turn]), length, 9, 2)[0]) for turn in turns]

    assert at_once.tolist() == singly
    first = _in_own_order(np.arange(min(length, 5000)), length, 9, 2)
    assert len(set(first.tolist())) == min(length, 5000)


def test_a_loader_goes_on_in_each_part_where_its_last_epoch_ended():
    source = three()
    with gl.Loader(source, 4) as loader:
        results = [value for _ in range(5) for batch in loader for value in batch["x"].tolist()]
        state = loader.state_dict()
        last = loader.batch_at(4, epoch=4)

    assert results == values(source, 5 * len(source)).tolist()
    assert state["epoch"] == 5
    assert last.records.tolist() == [4 * 19 + 16, 4 * 19 + 17, 4 * 19 + 18]
    assert source.read(last.records)["x"].tolist() == last["x"].tolist()


@pytest.mark.parametrize("shuffle", [False, True, gl.Blocks(2, 3)])
def test_batches_do_not_depend_on_shards_and_a_run_goes_on_where_it_stopped(shuffle):
    arguments = {"shuffle": shuffle, "seed": 8}
    with gl.Loader(three(num_records=18), 6, **arguments) as whole:
        batches = [batch for _ in range(3) for batch in whole]
        expected = [batch["x"].tolist() for batch in batches]
        state = json.loads(json.dumps(whole.state_dict(1, 2)))
    with gl.Loader(three(num_records=18), 6, **arguments) as again:
        again.load_state_dict(state)
        rest = [batch["x"].tolist() for _ in range(2) for batch in again]
    shards = [
        gl.Loader(three(num_records=18), 3, shard_id=number, num_shards=2, **arguments)
        for number in range(2)
    ]
    by_shard = [
        [batch["x"].tolist() for epoch in range(3) for batch in shard.epoch(epoch)]
        for shard in shards
    ]

    assert rest == expected[3 + 2 :]
    assert [item + two for item, two in zip(*by_shard, strict=True)] == expected
    for epoch in range(3):
        numbers = np.concatenate([batch.records for batch in batches[3 * epoch : 3 * epoch + 3]])
        assert sorted(numbers.tolist()) == list(range(18 * epoch, 18 * epoch + 18))


def test_ops_draw_for_a_record_anew_where_it_comes_again():
    pixels = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    source = mix({gl.arrays(image=pixels): 1}, num_records=64)
    with gl.Loader(source, 64, ops=[gl.ops.RandomFlip()]) as loader:
        images = loader.batch_at(0)["image"]

    assert len({image.tobytes() for image in images}) == 4  # each of the two, turned and not


def test_num_records_is_only_where_an_epoch_ends():
    short, long = three(num_records=7), three(num_records=100)

    assert (len(short), len(long), len(three())) == (7, 100, 19)
    assert values(short, 50).tolist() == values(long, 50).tolist()


def test_slices_splits_and_selections_are_of_its_first_epoch():
    source = three()
    first = values(source, 19).tolist()
    train, rest = source.split(0.5, seed=1)

    assert values(source[:], 19).tolist() == first
    assert source[3]["x"] == first[3]
    assert source[-1]["x"] == first[-1]
    assert sorted([*values(train, len(train)), *values(rest, len(rest))]) == sorted(first)
    selection = source.filter(lambda fields: fields["x"] < 100, fields="x")
    assert values(selection, len(selection)).tolist() == [x for x in first if x < 100]
    with gl.Loader(source[:], 19) as loader:
        assert loader.batch_at(0, epoch=3)["x"].tolist() == first


def test_renamed_marked_and_zipped_mixes_are_mixes():
    source = three()
    expected = values(source, 60).tolist()
    pair = gl.zip(source.rename(x="a"), three())

    with gl.Loader(pair, 60) as loader, gl.Loader(source.rename(x="y"), 19) as renamed:
        assert loader.batch_at(0, epoch=1)["a"].tolist() == values(source, 38)[19:].tolist()
        assert loader.batch_at(0, epoch=2)["x"].tolist() == values(source, 57)[38:].tolist()
        assert renamed.batch_at(0, epoch=1)["y"].tolist() == expected[19:38]


def test_a_mix_is_not_joined_with_sources_that_end():
    for make in (
        lambda: gl.zip(three().rename(x="y"), numbered(0, 19)),
        lambda: gl.concat(three(), three()),
    ):
        with pytest.raises(SpecError, match=r"of <gl\.mix(.|\n)*mix\[:\]"):
            make()
    with pytest.raises(SpecError, match="it is a mix or a sample itself"):
        mix({three(): 1})
    with pytest.raises(SpecError, match="cache its parts"):
        three().cache(memory=1000)


def test_parts_of_varying_length_and_different_storage_are_mixed(tmp_path):
    texts = [b"one", b"", b"three"]
    first = gl.records(3, lambda numbers: {"x": [texts[number] for number in numbers]})
    second = gl.records(2, lambda numbers: {"x": [b"other"] * numbers.size})
    source = mix([(first, 2), (second, 1)])

    results = [value.tobytes() for value in source.read(range(9))["x"]]

    assert results.count(b"other") in (2, 3, 4)
    assert set(results) == {b"one", b"", b"three", b"other"}


def test_the_fingerprint_and_pickle_know_all_that_matters():
    source = three()
    again = pickle.loads(pickle.dumps(source))
    rest = [
        three(seed=4),
        three(num_records=20),
        mix([(numbered(0, 5), 0.4), (numbered(100, 3), 0.3), (numbered(1000, 11), 0.3)], seed=3),
        mix([(numbered(0, 6), 0.5), (numbered(100, 3), 0.2), (numbered(1000, 11), 0.3)], seed=3),
    ]

    assert values(again, 100).tolist() == values(source, 100).tolist()
    assert again.fingerprint() == source.fingerprint() == three().fingerprint()
    assert len({item.fingerprint() for item in (source, *rest)}) == 5


def test_where_and_repr_say_what_a_record_is():
    source = three()
    number = int(np.flatnonzero(values(source, 100) == 100)[-1])

    assert source.where(number) == "part 1: arrays, record 0"
    assert repr(source) == "<gl.mix of 3 sources: 19 records, x: int64 (), shares 0.5, 0.2, 0.3>"


def test_closing_a_part_closes_the_mix():
    part = numbered(0, 5)
    source = mix({part: 1})
    part.close()

    with pytest.raises(ClosedError):
        source.read([0])


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), True, "1", None])
def test_a_weight_is_a_number_above_0(weight):
    with pytest.raises(SpecError, match="part 1 has the weight"):
        mix([(numbered(0, 5), 1), (numbered(0, 5), weight)])


@pytest.mark.parametrize(
    "parts", [{}, [], 3, "ab", [numbered(0, 1)], [(1, 2)], [(numbered(0, 1), 1, 1)], numbered(0, 1)]
)
def test_parts_are_sources_and_their_weights(parts):
    with pytest.raises(SpecError, match="sources and their weights"):
        mix(parts)


def test_parts_that_cannot_be_mixed_are_refused():
    with pytest.raises(SpecError, match=r"no records to take\n.*leave it out"):
        mix({numbered(0, 0): 1})
    with pytest.raises(SpecError, match=r"a mix or a sample itself\n.*one gl\.mix"):
        mix({three(): 1})
    with pytest.raises(SpecError, match=r"gl\.mix: source 1 has"):
        mix([(numbered(0, 2), 1), (gl.arrays(y=[1]), 1)])
    with pytest.raises(SpecError, match="num_records"):
        three(num_records=0)
    with pytest.raises(SpecError, match="seed"):
        three(seed=-1)


def test_an_epoch_beyond_all_numbers_is_refused():
    with gl.Loader(three(), 4) as loader, pytest.raises(RecordIndexError, match="epoch"):
        loader.batch_at(0, epoch=2**60)
