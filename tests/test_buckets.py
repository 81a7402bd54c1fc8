"""Buckets: batches of records of similar length, with the promise kept."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import SpecError, StateError
from gpuload.order import Buckets, Plan, Position
from gpuload.sources.lengths import lengths_of

LENGTHS = np.random.default_rng(0).integers(0, 200, 1000)


def batches(plan, epoch=0):
    return [plan.span(plan.at(Position(epoch), step))[0] for step in range(plan.end())]


@pytest.mark.parametrize("num_shards", [1, 2, 3, 7])
@pytest.mark.parametrize("length", [1, 9, 64, 1000])
@pytest.mark.parametrize("last_batch", ["partial", "drop", "pad"])
def test_the_shards_together_visit_every_record_once_in_equally_many_steps(
    num_shards, length, last_batch
):
    buckets = Buckets(LENGTHS[:length], chunk=8, window_chunks=4)
    if last_batch == "drop" and length < 8 * num_shards:
        return
    plans = [
        Plan(length, 8, buckets, 4, shard, num_shards, last_batch) for shard in range(num_shards)
    ]

    values = [plan.span(plan.at(Position(2), step)) for plan in plans for step in range(plan.end())]
    records = np.concatenate([item[0][item[1]] for item in values])

    assert len({plan.end() for plan in plans}) == 1
    assert len(set(records.tolist())) == records.size
    assert last_batch == "drop" or records.size == length


def test_the_order_is_that_of_the_docstring():
    """Worked by hand of what the permutations say: windows sorted, cut, and their chunks in the
    order of a turn."""
    lengths = LENGTHS[:20]
    plan, shuffled = (
        Plan(20, 20, Buckets(lengths, chunk=3, window_chunks=2), seed=5),
        Plan(20, 20, True, seed=5),
    )
    order, before = batches(plan, 1)[0], batches(shuffled, 1)[0]

    for begin in (0, 6, 12):
        chunks = sorted(before[begin : begin + 6].tolist(), key=lambda record: lengths[record])
        assert order[begin : begin + 6].tolist() in (
            [*chunks[:3], *chunks[3:]],
            [*chunks[3:], *chunks[:3]],
        )
    assert order[18:].tolist() == before[18:].tolist()  # they fill no chunk


def test_batches_are_of_similar_length_and_other_ones_in_each_epoch():
    bucketed = Plan(1000, 10, Buckets(LENGTHS, chunk=10, window_chunks=20), seed=1)
    shuffled = Plan(1000, 10, True, seed=1)

    def padding(plan, epoch):
        return sum(
            LENGTHS[item].max() * item.size - LENGTHS[item].sum() for item in batches(plan, epoch)
        )

    for epoch in (0, 1):
        assert padding(bucketed, epoch) < 0.1 * padding(shuffled, epoch)
    first, second = (
        {tuple(sorted(item.tolist())) for item in batches(bucketed, epoch)} for epoch in (0, 1)
    )
    assert len(first & second) < 5
    longest = [LENGTHS[item].max() for item in batches(bucketed)]
    assert (
        abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.3
    )  # the epoch does not go from short to long


def test_the_order_does_not_depend_on_batch_size_or_shards():
    buckets = Buckets(LENGTHS, chunk=20, window_chunks=8)
    whole = np.concatenate(batches(Plan(1000, 20, buckets, seed=3)))

    single = np.concatenate(batches(Plan(1000, 7, buckets, seed=3)))
    shards = [batches(Plan(1000, 10, buckets, 3, shard, 2)) for shard in range(2)]

    assert np.array_equal(single, whole)
    assert np.array_equal(
        np.concatenate([item for step in zip(*shards, strict=True) for item in step]), whole
    )


def rows_of(numbers):
    return {"x": [np.full(LENGTHS[number], number, np.int32) for number in numbers], "n": numbers}


def source():
    return gl.records(200, rows_of, fields={"x": ("i4", (None,)), "n": ("i8", ())})


@pytest.mark.parametrize("by", ["x", LENGTHS[:200]])
def test_a_loader_delivers_them_and_goes_on_exactly(by):
    load = gl.Loader(
        source(), 10, shuffle=gl.Buckets(by, chunk=10, window_chunks=5), seed=2, device="cpu"
    )
    whole = [batch.records.tolist() for batch in load]
    spread = [int(np.ptp(LENGTHS[records])) for records in whole]
    assert np.median(spread) < 50 < np.ptp(LENGTHS[:200])
    run = iter(load)
    for _ in range(7):
        next(run)
    state = json.loads(json.dumps(load.state_dict()))

    again = load.replace(batch_size=5, num_shards=1)
    again.load_state_dict(state)

    expected = [batch.records.tolist() for batch in load.epoch(1)]
    assert [record for batch in again for record in batch.records.tolist()] == np.concatenate(
        expected[7:]
    ).tolist()
    with pickle.loads(pickle.dumps(load)) as copy:
        assert copy.batch_at(3).records.tolist() == whole[3]
    second = load.replace(
        shuffle=gl.Buckets(LENGTHS[:200] + np.arange(200), chunk=10, window_chunks=5)
    )
    with pytest.raises(StateError, match="the kind of shuffle"):
        second.load_state_dict(state)


class Counting:
    """A reader that counts the records that it reads."""

    def __init__(self):
        self.count = 0

    def __call__(self, numbers):
        self.count += len(numbers)
        return rows_of(numbers)


def test_lengths_are_those_of_the_records(tmp_path):
    for number in range(150):
        np.save(tmp_path / f"{number:03}.npy", np.zeros((LENGTHS[number], 3), np.float32))
    (tmp_path / "lines.txt").write_text("\n".join("x" * length for length in LENGTHS[:100]) + "\n")
    files = gl.npy(tmp_path / "*.npy", record="file")

    assert lengths_of(files, files.spec.names[0]).tolist() == LENGTHS[:150].tolist()
    assert lengths_of(files[20:90:7], files.spec.names[0]).tolist() == LENGTHS[20:90:7].tolist()
    assert lengths_of(source(), "x").tolist() == LENGTHS[:200].tolist()
    lines = gl.text(tmp_path / "lines.txt")
    assert lengths_of(lines, lines.spec.names[0]).tolist() == LENGTHS[:100].tolist()


def test_of_files_the_lengths_come_from_their_sizes(tmp_path, monkeypatch):
    for number in range(150):
        np.save(tmp_path / f"{number:03}.npy", np.zeros(LENGTHS[number], np.float32))
    files = gl.npy(tmp_path / "*.npy", record="file")
    read, counts = type(files).read, []
    monkeypatch.setattr(type(files), "read", lambda self, numbers, fields: (
        counts.append(len(numbers)), read(self, numbers, fields))[1])  # fmt: skip

    assert lengths_of(files, files.spec.names[0]).tolist() == LENGTHS[:150].tolist()

    assert sum(counts) == 64


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"by": "", "chunk": 4}, "Buckets.by"),
        ({"by": 3, "chunk": 4}, "Buckets.by"),
        ({"by": [1.5, 2], "chunk": 4}, "Buckets.by"),
        ({"by": [1, -2], "chunk": 4}, "Buckets.by"),
        ({"by": "x", "chunk": 0}, "Buckets.chunk"),
        ({"by": "x", "chunk": 4, "window_chunks": 1.5}, "Buckets.window_chunks"),
    ],
)
def test_wrong_arguments_are_refused(arguments, text):
    with pytest.raises(SpecError, match=text) as caught:
        gl.Buckets(**arguments)

    assert caught.value.remedy


def test_what_does_not_fit_the_source_is_refused():
    mix = gl.mix({source(): 1})
    for text, of, shuffle in (
        ("of 200 records", source(), gl.Buckets([1, 2, 3], chunk=2)),
        ("first axis alone varies", source(), gl.Buckets("n", chunk=2)),
        ("no field 'y'", source(), gl.Buckets("y", chunk=2)),
        ("of a mix", mix, gl.Buckets("x", chunk=2)),
    ):
        with pytest.raises(SpecError if "no field" not in text else gl.GpuloadError, match=text):
            gl.Loader(of, 4, shuffle=shuffle, device="cpu")


def test_its_text_names_what_it_is():
    assert repr(gl.Buckets("x", chunk=8)) == "Buckets('x', chunk=8, window_chunks=128)"
    assert repr(gl.Buckets([1, 2], 8, 4)) == "Buckets(2 lengths, chunk=8, window_chunks=4)"
