"""State and elasticity: Grain's own assertion about checkpoints, and its elastic cases said anew.

Origin  google/grain: ``grain.experimental.assert_equal_output_after_checkpoint``, which a package
        of Grain brings and which is called here as it is;
        grain/_src/python/dataset/elastic_iterator_test.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gpuload as gl

pytestmark = pytest.mark.slow

DIFFERENT = {
    "a state per shard": "one state of any rank is that of all, and its size does not depend on their number",
    "get_state and set_state of an iterator": "state_dict and load_state_dict of the loader; iterators have no state",
    "shards of one length": "a shard without a record gets one that is not valid: all take as many steps",
    "elastic only before shuffle and batch": "another number of shards is taken in mid-epoch, whatever the ops are",
}
LENGTH = 97


def make_loader(batch_size: int = 8, **changes: Any) -> gl.Loader:
    x = np.arange(LENGTH, dtype=np.int64)
    source = gl.arrays(
        x=x, image=np.repeat((x / LENGTH).astype(np.float32), 12).reshape(LENGTH, 2, 2, 3)
    )
    ops = [gl.ops.GaussianNoise(0.5, on="image")]
    return gl.Loader(
        source, batch_size, **{"ops": ops, "shuffle": True, "seed": 11, "device": "cpu", **changes}
    )


class Dataset:
    """A loader with the methods that Grain's assertion calls."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes

    def __iter__(self) -> Batches:
        return Batches(make_loader(**self.changes))


class Batches:
    """The batches of an epoch, with a state before and behind each of them."""

    def __init__(self, loader: gl.Loader) -> None:
        self.loader, self.batches = loader, iter(loader)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return dict(next(self.batches).items())

    def get_state(self) -> Any:
        return json.loads(json.dumps(self.loader.state_dict()))

    def set_state(self, state: Any) -> None:
        self.loader.load_state_dict(state)
        self.batches = iter(self.loader)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"shuffle": False},
        {"shuffle": gl.Blocks(10, 3)},
        {"shard_id": 1, "num_shards": 3},
        {"last_batch": "drop"},
        {"last_batch": "pad", "shard_id": 0, "num_shards": 2},
    ],
)
def test_grains_own_assertion_about_checkpoints(changes: dict[str, Any]):
    experimental = pytest.importorskip("grain.experimental", reason="needs grain: make test-peers")

    experimental.assert_equal_output_after_checkpoint(Dataset(**changes))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("first", [1, 2, 4])
@pytest.mark.parametrize("second", [1, 2, 3, 8])
@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_each_record_comes_once_where_the_number_of_shards_changes(
    first: int, second: int, num_steps: int, shuffle: bool
):
    """As `test_elastic_downsize` and `test_elastic_upsize` there: the rest of the epoch is dealt
    out anew."""
    records, state = [], None
    for rank in range(first):
        loader = make_loader(24 // first, shuffle=shuffle, shard_id=rank, num_shards=first)
        batches = iter(loader)
        records += [next(batches)["x"].tolist() for _ in range(num_steps)]
        assert state in (None, loader.state_dict())  # the same on each rank
        state = loader.state_dict()
    for rank in range(second):
        loader = make_loader(24 // second, shuffle=shuffle, shard_id=rank, num_shards=second)
        loader.load_state_dict(state)
        records += [batch["x"][batch.valid].tolist() for batch in loader]

    assert sorted(record for batch in records for record in batch) == list(range(LENGTH))


def test_the_global_batches_are_those_of_one_shard():
    whole = [sorted(batch["x"].tolist()) for batch in make_loader(24)]
    parts = [make_loader(8, shard_id=rank, num_shards=3) for rank in range(3)]
    for expected, *batches in zip(whole, *parts, strict=True):
        assert (
            sorted(record for batch in batches for record in batch["x"][batch.valid].tolist())
            == expected
        )
