"""State behind torch's loaders: the cases of torchdata's own tests, said anew.

Origin  pytorch/data, test/stateful_dataloader/test_state_dict.py. A state that is taken in
        mid-epoch goes on with the same batches; twice the same state is the same; one behind the
        end is the next epoch; all with 0 and 2 workers.
"""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch and torchdata: make test-peers")
pytest.importorskip("torchdata", reason="needs torchdata: make test-peers")

from tests.bridges.test_torch import script  # noqa: E402  it is skipped, too, where there is no torch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DIFFERENT = {
    "map-style datasets, samplers, collate_fn": "batches come from a loader, which has a source, an order and ops",
    "snapshot_every_n_steps": "a state is the position: there is nothing to replay",
    "state_dict of each sample's dataset in the workers": "workers have no state of their own but how much they made",
    "another number of workers": "theirs is refused; `test_another_number_of_workers` is ours",
}
HEAD = """
import json, multiprocessing, sys
from torchdata.stateful_dataloader import StatefulDataLoader
from torch.utils.data import DataLoader
from gpuload.bridges import torch as gltorch
from tests.bridges.test_torch import counting, in_loops, numbers_of

def make(num_workers, kind=StatefulDataLoader, loader=None):
    options = {"num_workers": num_workers, "multiprocessing_context": "forkserver"} if num_workers else {}
    return kind(gltorch.dataset(loader or counting()), batch_size=None, **options)

def stopped(num_workers, stop):
    data, batches = make(num_workers), []
    for _, numbers in data:
        batches.append(numbers.tolist())
        if len(batches) == stop:
            return data, batches

if __name__ == "__main__":
    multiprocessing.set_forkserver_preload(["tests.bridges.test_torch", "torchdata.stateful_dataloader"])
    num_workers = int(sys.argv[1])
"""  # a server imports torch once, in place of each of the two dozen workers


@pytest.mark.parametrize("num_workers", [0, 2])
def test_states_in_mid_epoch(num_workers: int, tmp_path: Path):
    """As test_mid_epoch there, for two places, and the state of a loader that was resumed."""
    program = """
    whole = in_loops()
    for stop in (1, 4):
        data, batches = stopped(num_workers, stop)
        state = json.loads(json.dumps(data.state_dict()))
        assert batches == whole[:stop]
        first = make(num_workers)
        first.load_state_dict(state)
        assert json.loads(json.dumps(first.state_dict())) == state
        rest = numbers_of(first)
        assert rest == whole[stop:len(rest) + stop] and rest, rest
        again = make(num_workers)
        again.load_state_dict(state)
        assert numbers_of(again) == rest
"""
    script(HEAD + program, str(num_workers), folder=tmp_path)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_state_behind_an_epoch_is_the_next(num_workers: int, tmp_path: Path):
    """As test_state_at_end_of_epoch there."""
    program = """
    data = make(num_workers)
    first = numbers_of(data)
    state = json.loads(json.dumps(data.state_dict()))
    resumed = make(num_workers)
    resumed.load_state_dict(state)
    second = numbers_of(resumed) or numbers_of(resumed)
    assert first + second == in_loops()[:len(first) + len(second)] and len(second) == len(first), second
"""
    script(HEAD + program, str(num_workers), folder=tmp_path)


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (2, 1)])
def test_another_number_of_workers(before: int, after: int, tmp_path: Path):
    """The loader's own state at the step that comes next goes into any number of workers."""
    program = f"""
    data, batches = stopped(num_workers, 4)
    state = json.loads(json.dumps(data.dataset.loader.state_dict(0, len(batches))))
    loader = counting()
    loader.load_state_dict(state)
    rest = numbers_of(make({after}, DataLoader, loader))
    whole = in_loops()
    assert rest == whole[4:4 + len(rest)] and len(rest) + 4 == len(loader), rest
"""
    script(HEAD + program, str(before), folder=tmp_path)
