"""Records drawn with replacement: proportions, and that a draw depends on its number alone."""

from __future__ import annotations

import json
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuload as gl
from gpuload import rng
from gpuload.errors import SpecError
from gpuload.order import SAMPLE_STREAM
from gpuload.sources.sampling import Weights

X = np.arange(10)


def sample(weights=None, **arguments):
    return gl.arrays(x=X).sample(
        np.arange(10) if weights is None else weights, **{"seed": 3, **arguments}
    )


def drawn(source, count):
    return source.read(range(count))["x"]


@pytest.mark.parametrize(
    "weights", [np.arange(10), np.ones(10), [0, 0, 0.1, 0, 0, 0, 1e-3, 0, 0, 5e-3]]
)
def test_records_come_in_proportion_to_their_weights(weights):
    weights, count = np.asarray(weights, float), 200_000

    counts = np.bincount(drawn(sample(weights), count), minlength=10)

    expected = weights / weights.sum() * count
    assert counts[expected == 0].sum() == 0
    part = expected > 0
    chi_square = ((counts[part] - expected[part]) ** 2 / expected[part]).sum()
    assert chi_square < 30  # of at most 9 degrees of freedom: above 30 once in 2,000 seeds


def test_a_draw_is_where_the_random_word_falls_in_the_running_total():
    words = rng.bits(1, seed=3, epoch=0, records=np.arange(1000), stream=SAMPLE_STREAM)[
        :, 0
    ].tolist()
    ends = np.cumsum(np.arange(10))

    expected = [next(record for record in range(10) if Fraction(word, 2**64) < Fraction(int(ends[record]), 45))
                for word in words]  # fmt: skip

    assert drawn(sample(), 1000).tolist() == expected


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1), st.integers(1, 2**63))
def test_words_below_a_number_are_the_exact_product(words, count):
    assert rng.below(np.array(words, np.uint64), count).tolist() == [
        word * count >> 64 for word in words
    ]


@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=50).filter(any))
def test_any_weights_have_a_total_that_fits_and_only_zeros_are_never_drawn(weights):
    ends = Weights.of(weights, len(weights), 0).ends

    assert 0 < ends[-1] < 2**62
    assert ((np.diff(ends, prepend=0) > 0) == (np.array(weights) > 0)).all()


def test_batches_do_not_depend_on_size_shards_or_stops():
    def loader(**arguments):
        return gl.Loader(sample(num_records=24), **{"batch_size": 4, **arguments})

    def records(item, epochs):
        return [
            x for epoch in range(epochs) for batch in item.epoch(epoch) for x in batch["x"].tolist()
        ]

    expected = drawn(sample(), 72).tolist()
    assert records(loader(), 3) == records(loader(batch_size=5), 3) == expected
    assert expected[:24] != expected[24:48]
    shards = [
        [batch["x"].tolist() for batch in loader(num_shards=2, shard_id=i).epoch(1)]
        for i in range(2)
    ]
    assert [x for pair in zip(*shards, strict=True) for part in pair for x in part] == expected[
        24:48
    ]

    item, second = loader(), loader(batch_size=6)
    iterator = iter(item)
    for _ in range(3):
        next(iterator)
    second.load_state_dict(json.loads(json.dumps(item.state_dict())))
    assert [x for batch in second for x in batch["x"].tolist()] == expected[12:24]


def test_a_record_that_comes_twice_is_augmented_anew():
    source = gl.arrays(x=np.ones((3, 4, 4, 1), "u1")).sample([0, 1, 0], num_records=64)
    noisy = gl.ops.Python(lambda x, rng: x + rng.integers(0, 100, x.shape).astype("u1"))

    batch = gl.Loader(source, 64, ops=[noisy]).batch_at(0)

    assert len({row.tobytes() for row in batch["x"]}) == 64


def test_a_sample_is_a_source_like_a_mix(tmp_path):
    source = sample()

    assert len(source) == 10
    assert source.where(12) == f"arrays, record {drawn(source, 13)[12]}"
    assert source[2:4].read([0, 1])["x"].tolist() == drawn(source, 4)[2:].tolist()
    assert drawn(pickle.loads(pickle.dumps(source)), 50).tolist() == drawn(source, 50).tolist()
    assert source.fingerprint() == sample().fingerprint()
    assert (
        len(
            {
                item.fingerprint()
                for item in (source, sample(seed=4), sample(np.ones(10)), sample(num_records=3))
            }
        )
        == 4
    )
    assert "drawn from 10" in repr(source)
    gl.convert(source, tmp_path / "a.npy")
    assert np.load(tmp_path / "a.npy").tolist() == drawn(source, 10).tolist()


def test_classes_can_be_balanced():
    labels = np.repeat([0, 1, 2], [900, 90, 10])
    source = gl.arrays(label=labels)

    balanced = source.sample(1 / np.bincount(labels)[labels])

    assert (
        np.abs(np.bincount(balanced.read(range(30_000))["label"]) - 10_000).max() < 400
    )  # 4 standard deviations: 327


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, 2], r"weights of int64 \(2,\) for 10 records"),
        ([-1.0] + [1.0] * 9, "the weight of record 0 is -1"),
        ([1.0, np.nan] + [1.0] * 8, "the weight of record 1 is nan"),
        ([np.inf] * 10, "the weight of record 0 is inf"),
        (np.zeros(10), "all weights are 0"),
        (["a"] * 10, "weights of <U1"),
        ([[1], [1, 2]] * 5, "weights that are no array"),
    ],
)
def test_what_is_no_weight_is_refused(weights, message):
    with pytest.raises(SpecError, match=message):
        sample(weights)


def test_samples_of_samples_caches_of_samples_and_wrong_arguments_are_refused():
    for error in (
        lambda: sample().sample(np.ones(10)),
        lambda: gl.mix({sample(): 1}),
        lambda: sample().cache(memory="1GB"),
        lambda: sample(seed=-1),
        lambda: sample(num_records=0),
    ):
        with pytest.raises(SpecError):
            error()
    assert len(sample()[:].sample(np.ones(10))) == 10
