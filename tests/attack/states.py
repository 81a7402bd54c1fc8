"""States that somebody changed: taken up exactly where they say, or refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import gpuload as gl
from tests.attack.examples import examples
from tests.attack.hunt import Report, hunt, outcome

LENGTH, BATCH = 23, 4
KEYS = (
    "version",
    "epoch",
    "step",
    "position",
    "source",
    "records",
    "seed",
    "shuffle",
    "ops",
    "more",
)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-2, LENGTH + 2), st.floats(), st.text(max_size=3),
    st.sampled_from([2**63, 2**64 - 1, 2**64, -1, np.int64(4), np.float32(1), b"1", "7", 1j, np.arange(3), LENGTH]),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
)
CHANGES = st.lists(st.tuples(st.sampled_from(KEYS), st.one_of(st.just(...), VALUES)), max_size=3)
STATES = st.tuples(st.integers(0, 6), CHANGES, st.one_of(st.none(), st.none(), VALUES))


def attack(seconds: float, seed: int) -> Report:
    """Load states."""
    return hunt(seconds, seed, trial)


def trial(rng: np.random.Generator, folder: Path) -> Counter[str]:
    """Load states into a loader that was made with another number of shards and batch size."""
    source = gl.arrays(x=np.arange(LENGTH))
    shuffle = (True, False, gl.Blocks(3, 2))[rng.integers(3)]
    seed = int(rng.integers(2**63))

    def loader(batch_size: int) -> gl.Loader:
        return gl.Loader(
            source, batch_size=batch_size, shuffle=shuffle, seed=seed, device="cpu", num_threads=1
        )

    whole, loader_of_state = loader(LENGTH), loader(BATCH)

    def check(argument: tuple[int, list[tuple[str, Any]], Any]) -> str:
        steps, changes, second = argument
        with loader(3) as load:
            run = iter(load)
            for _ in range(steps):
                next(run)
            state = json.loads(json.dumps(load.state_dict()))
        for key, value in changes:
            if value is ...:
                state.pop(key, None)
            else:
                state[key] = value
        state = state if second is None else second
        status, error = outcome(loader_of_state.load_state_dict, state)
        if status == "refused":
            assert changes or second is not None, f"a state that nobody changed is refused: {error}"
            return status
        epoch, position = state["epoch"], state["position"]
        order = whole.batch_at(0, epoch).records
        batches = list(loader_of_state)
        records = np.concatenate([batch.records for batch in batches]) if batches else order[:0]
        assert {batch.epoch for batch in batches} <= {epoch}, (
            f"epochs {[batch.epoch for batch in batches]}"
        )
        assert np.array_equal(records, order[position:]), (
            f"{records}, of {order} from {position} on"
        )
        return "taken up"

    with whole, loader_of_state:
        return examples(rng, check, STATES)
