"""The torch bridge: tensors that share the loader's memory, and the loader as an
IterableDataset."""

from __future__ import annotations

import collections
import dataclasses
import gc
import json
import os
import pickle
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import gpuload as gl  # noqa: E402
from gpuload.bridges import torch as gltorch  # noqa: E402
from gpuload.errors import ClosedError, DeviceError, RecordError, SpecError, StateError  # noqa: E402
from gpuload.spec import Field, Spec  # noqa: E402
from gpuload.testing.bridges import BridgeContract, TensorsContract  # noqa: E402
from tests import simdevice  # noqa: E402
from tests.bridges.test_common import loader_of  # noqa: E402
from tests.threads import none_left  # noqa: E402

DataLoader = torch.utils.data.DataLoader
NUM_RECORDS, NUM_STEPS = 60, 9  # of `counting`
ROOT = Path(__file__).parents[2]


class TestTensors(TensorsContract):
    module, package, extra = "gpuload.bridges.torch", "torch", "torch"

    def batches(self, loader: gl.Loader) -> Any:
        return gltorch.tensors(loader)

    def address(self, tensor: Any) -> int:
        return int(tensor.data_ptr())


class TestDataset(BridgeContract):
    begins_anew = True

    def batches(self, loader: gl.Loader) -> Any:
        return gltorch.dataset(loader)


def counting(**arguments: Any) -> gl.Loader:
    """A loader of records that hold their numbers, 7 a batch, shuffled."""
    numbers = np.arange(NUM_RECORDS)
    source = gl.arrays(x=numbers.astype(np.float32)[:, None], y=numbers)
    return gl.Loader(
        source,
        **{"batch_size": 7, "output": ("x", "y"), "shuffle": True, "device": "cpu", **arguments},
    )


def in_loops(num_epochs: int = 4, **arguments: Any) -> list[list[int]]:
    """Return the records of each step, as loops over the loader give them."""
    with counting(**arguments) as loader:
        return [batch.records.tolist() for _ in range(num_epochs) for batch in loader]


def numbers_of(batches: Any) -> list[list[int]]:
    return [numbers.tolist() for _, numbers in batches]


# tensors


@pytest.mark.parametrize("code", "?bBhHiIlLefdFD")
def test_every_numeric_dtype_is_shared(code: str) -> None:
    values = np.array([0, 1, 1, 0, 1]).astype(code)
    loader = gl.Loader(gl.arrays(x=values), batch_size=5, output="x", device="cpu")

    [(tensor,)] = gltorch.tensors(loader)

    assert tensor.dtype == torch.from_numpy(values).dtype
    np.testing.assert_array_equal(tensor.numpy(), values)
    assert loader.stats()["tensors_shared"] == 1


def ragged_files(folder: Path, **arguments: Any) -> gl.Loader:
    for number in range(7):
        np.save(
            folder / f"{number}.npy", np.arange(number * 2, dtype=np.float32).reshape(number, 2)
        )
    source = gl.npy(folder / "*.npy", record="file")
    return gl.Loader(source, **{"batch_size": 3, "output": "x", "device": "cpu", **arguments})


def test_a_field_of_which_the_first_axis_varies_is_a_jagged_tensor_over_the_same_payload(
    tmp_path: Path,
) -> None:
    loader = ragged_files(tmp_path)
    batches = gltorch.tensors(loader)
    results = [[part.tolist() for part in tensor.unbind()] for (tensor,) in batches]

    expected = [np.arange(n * 2, dtype=np.float32).reshape(n, 2).tolist() for n in range(7)]
    assert results == [expected[:3], expected[3:6], expected[6:]]
    assert loader.stats()["tensors_copied"] == 0

    values = loader.batch_at(1)["x"]
    tensor = batches._convert(values)
    assert tensor.values().data_ptr() == values.flat.ctypes.data
    assert tensor.offsets().tolist() == [0, 3, 7, 12]
    assert torch.nested.to_padded_tensor(tensor, 0.0).shape == (3, 5, 2)


def test_jagged_tensors_go_through_a_layer(tmp_path: Path) -> None:
    (tensor,) = next(iter(gltorch.tensors(ragged_files(tmp_path))))
    layer = torch.nn.Linear(2, 3)

    assert [part.shape for part in layer(tensor).unbind()] == [(0, 3), (1, 3), (2, 3)]


def test_what_training_writes_into_a_tensor_is_in_no_later_batch() -> None:
    loader = counting(shuffle=False)
    for x, _ in gltorch.tensors(loader):
        x.add_(100)

    assert [x[:, 0].tolist() for x, _ in gltorch.tensors(loader)] == in_loops(1, shuffle=False)


def test_a_gpu_that_torch_does_not_see_is_an_error() -> None:
    if torch.cuda.is_available():
        pytest.skip("torch sees a GPU")
    loader = SimpleNamespace(
        output="x", spec_out=Spec((Field("x", np.dtype("f4"), ()),)), device="gpu:0"
    )

    for hand_over in (gltorch.tensors, gltorch.dataset):
        with pytest.raises(DeviceError, match="torch sees 0 GPUs"):
            hand_over(loader)


# streams, on a GPU that is simulated


@pytest.fixture
def sim(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A simulated GPU, with a stream of it that torch believes to be its own and CuPy knows nothing
    of."""
    simulation = simdevice.install(monkeypatch, seed=7)
    simulation.of_torch = simulation.cupy.cuda.Stream(non_blocking=True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    stream = SimpleNamespace(cuda_stream=simulation.of_torch.ptr)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    yield simulation
    gc.collect()
    simulation.finish()


@pytest.mark.parametrize("hand_over", [gltorch.tensors, gltorch.dataset])
def test_the_stream_of_torch_runs_behind_what_makes_the_batch_and_the_host_does_not_wait(
    hand_over: Any, sim: Any
) -> None:
    loader = counting(device="gpu:0", ops=[gl.ops.Cast("float16", on="x")])
    waits, pairs = len(sim.host_waits), []
    with loader:
        for x, y in hand_over(loader):
            here = [
                wait
                for wait in sim.host_waits[waits:]
                if wait.thread == threading.current_thread().name
            ]
            assert not any(wait.blocked for wait in here)
            sim.of_torch.synchronize()  # without the order, the memory would still be poison now
            pairs.append((x[:, 0].tolist(), y.tolist()))
            waits = len(sim.host_waits)
        del x, y

    assert pairs == [(numbers, numbers) for numbers in in_loops(1)]
    assert loader.stats()["tensors_copied"] == 0


# dataset


def test_a_dataset_is_the_batches_of_each_epoch_in_the_nest_of_output() -> None:
    data = DataLoader(gltorch.dataset(counting()), batch_size=None)

    assert [numbers_of(data) for _ in range(3)] == [
        in_loops()[i : i + NUM_STEPS] for i in range(0, 27, NUM_STEPS)
    ]
    assert len(data) == NUM_STEPS


def test_the_nest_of_a_dataset_is_that_of_output() -> None:
    pair, kind = (
        collections.namedtuple("pair", "x y"),
        dataclasses.make_dataclass("kind", ["x", "y"]),
    )

    def first(output: Any) -> Any:
        return next(iter(gltorch.dataset(counting(output=output))))

    assert isinstance(first(("x", "y")), tuple)
    assert sorted(first(None)) == ["x", "y"]
    assert isinstance(first({"inputs": ["x", "y"]})["inputs"], list)
    assert first(pair("x", "y")).y.tolist() == first(kind("x", "y")).y.tolist() == in_loops()[0]
    assert first("y").tolist() == in_loops()[0]


def test_every_iterator_begins_at_the_position_which_moves_with_the_last_batch() -> None:
    loader = counting()
    data, expected = DataLoader(gltorch.dataset(loader), batch_size=None), in_loops()

    for _ in range(3):
        assert next(iter(data))[1].tolist() == expected[0]  # somebody looks
    assert (loader.position.epoch, loader.position.step) == (0, 0)
    assert numbers_of(data) == expected[:9]
    assert (loader.position.epoch, loader.position.step) == (1, 0)


@pytest.mark.parametrize("stop", [0, 1, 8, 9, 13, 18])
def test_a_state_is_behind_the_batch_that_was_delivered_last(stop: int) -> None:
    first_part = gltorch.dataset(counting())
    batches = 0
    while batches < stop:
        for _ in first_part:
            batches += 1
            if batches == stop:
                break
    gc.collect()
    state = json.loads(json.dumps(first_part.state_dict()))

    later = gltorch.dataset(counting())
    later.load_state_dict(state)

    assert state == counting().state_dict(*divmod(stop, NUM_STEPS))
    assert (
        numbers_of(later) + numbers_of(later)
        == in_loops()[stop : (stop // NUM_STEPS + 2) * NUM_STEPS]
    )
    assert later.state_dict() == counting().state_dict(stop // NUM_STEPS + 2)


def test_a_state_that_was_loaded_counts_whatever_was_delivered_before() -> None:
    data = gltorch.dataset(counting())
    start = data.state_dict()
    batches = iter(data)
    next(batches), next(batches)

    data.load_state_dict(start)

    assert data.state_dict() == start


def test_an_iterator_of_a_dataset_says_that_a_state_was_loaded_and_moves_nothing() -> None:
    data = gltorch.dataset(counting())
    run, rest = iter(data), iter(data)
    next(run)

    data.load_state_dict(counting().state_dict(2, 4))

    with pytest.raises(
        SpecError, match=r"the loader is at epoch 2, step 4[\s\S]*make a new iterator"
    ):
        next(run)
    assert data.state_dict() == counting().state_dict(2, 4)
    assert next(rest)[1].tolist() == in_loops()[22]
    assert data.state_dict() == counting().state_dict(2, 5)


def test_a_state_begins_with_a_step_that_failed_and_the_loop_goes_on_behind_it() -> None:
    def read(records: Any) -> dict[str, Any]:
        if 6 in records:
            raise RecordError("numbers.bin, record 6: it is damaged")
        return {"x": np.asarray(records)}

    with none_left():
        data = gltorch.dataset(
            gl.Loader(gl.records(10, read), batch_size=2, output="x", device="cpu")
        )
        batches = iter(DataLoader(data, batch_size=None))
        values = [next(batches).tolist() for _ in range(3)]

        with pytest.raises(RecordError, match=r"numbers\.bin, record 6"):
            next(batches)

        assert data.state_dict()["step"] == 3
        assert [numbers.tolist() for numbers in batches] == [[8, 9]]
        assert values == [[0, 1], [2, 3], [4, 5]]


def test_leaving_a_loop_over_a_dataset_leaves_no_thread() -> None:
    with none_left():
        for _ in DataLoader(gltorch.dataset(counting()), batch_size=None):
            break


def test_a_dataset_keeps_its_loader_and_nothing_keeps_it_longer() -> None:
    loader = counting()
    data, gone = gltorch.dataset(loader), weakref.ref(loader)
    del loader
    gc.collect()
    assert len(list(data)) == NUM_STEPS
    del data
    gc.collect()
    assert gone() is None


def test_a_pickled_dataset_goes_on_where_it_was() -> None:
    data = gltorch.dataset(counting())
    list(data)

    again = pickle.loads(pickle.dumps(data))

    assert numbers_of(again) == in_loops()[9:18]


# workers: each in this process, with the copy of the dataset that a worker gets


class Workers:
    """Stands for DataLoader with spawned workers: asks them in turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, data: Any, num_workers: int) -> None:
        self._monkeypatch, self._num_workers = monkeypatch, num_workers
        self.copies = [pickle.loads(pickle.dumps(data)) for _ in range(num_workers)]
        for copy in self.copies:  # they share this with the dataset, as by the pickler of processes
            copy._next_epoch = data._next_epoch

    def each(self, deed: Any) -> list[Any]:
        """Return what a deed with the copy of each worker gives, done as that worker."""
        return [self._as(number, deed) for number in range(self._num_workers)]

    def _as(self, number: int, deed: Any) -> Any:
        info = SimpleNamespace(id=number, num_workers=self._num_workers)
        with self._monkeypatch.context() as patch:
            patch.setattr(torch.utils.data, "get_worker_info", lambda: info)
            return deed(self.copies[number], number)

    def batches(self, most: int = 1000, begin: int = 0) -> list[list[int]]:
        """Return the numbers of the batches of one loop over the DataLoader, or of ``most`` of
        them."""
        loops, results, number = self.each(lambda copy, number: iter(copy)), [], begin
        ending: set[int] = set()
        while len(ending) < self._num_workers and len(results) < most:
            turn, number = number % self._num_workers, number + 1
            if turn not in ending:
                item = self._as(turn, lambda copy, number: next(loops[number], None))
                ending.add(turn) if item is None else results.append(item[1].tolist())
        return results


@pytest.mark.parametrize("num_workers", [1, 2, 3, 12])
@pytest.mark.parametrize("start", [0, 1, 8])
def test_the_workers_together_deliver_the_batches_of_the_loader_in_its_order(
    start: int, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = gltorch.dataset(counting())
    data.load_state_dict(counting().state_dict(0, start))

    epochs = [
        Workers(monkeypatch, data, num_workers).batches() for _ in range(3)
    ]  # new workers for each

    assert [numbers for epoch in epochs for numbers in epoch] == in_loops()[start:27]
    assert numbers_of(data) == in_loops()[27:36]
    assert data.state_dict() == counting().state_dict(4)


def test_workers_that_stay_make_the_next_epoch_in_each_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = gltorch.dataset(counting())
    workers = Workers(monkeypatch, data, 2)

    epochs = [workers.batches(), workers.batches(most=5), workers.batches()]  # one is left

    assert epochs == [in_loops()[:9], in_loops()[9:14], in_loops()[18:27]]
    assert data.state_dict() == counting().state_dict(3)


def test_new_workers_begin_an_epoch_again_that_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    data = gltorch.dataset(counting())

    epochs = [Workers(monkeypatch, data, 2).batches(limit) for limit in (1, 5, 9)]

    assert epochs == [in_loops()[:1], in_loops()[:5], in_loops()[:9]]


@pytest.mark.parametrize("num_workers", [2, 3, 12])
def test_a_worker_that_starts_late_does_not_take_the_end_of_the_epoch_back(
    num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = Workers(monkeypatch, gltorch.dataset(counting()), num_workers)
    workers.batches()
    states = workers.each(lambda copy, number: copy.state_dict())  # behind the epoch
    data = gltorch.dataset(counting())

    Workers(monkeypatch, data, num_workers).each(
        lambda copy, number: (
            copy.load_state_dict(states[number]),
            iter(copy),
        )  # each to its end before the next
    )

    assert numbers_of(data) == in_loops()[9:18]


@pytest.mark.parametrize("stop", [1, 5, 9])
@pytest.mark.parametrize("num_workers", [2, 3])
def test_behind_an_older_state_comes_the_epoch_after_it(
    stop: int, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = Workers(monkeypatch, gltorch.dataset(counting()), num_workers)
    workers.batches(most=stop)
    states = workers.each(lambda copy, number: copy.state_dict())
    data = gltorch.dataset(counting())
    for _ in range(3):
        Workers(monkeypatch, data, num_workers).batches()

    for most in (2, 1000):  # left, then to the end
        later = Workers(monkeypatch, data, num_workers)
        later.each(lambda copy, number: copy.load_state_dict(states[number]))
        rest = later.batches(most, begin=stop)
        assert rest == in_loops()[stop:9][:most]
        again = 0 if most == 2 and stop < 9 else 9
        assert Workers(monkeypatch, data, num_workers).batches() == in_loops()[again : again + 9]


def test_workers_that_stay_are_followed_in_each_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    data = gltorch.dataset(counting())
    workers = Workers(monkeypatch, data, 2)

    for epoch in (1, 2, 3):
        workers.batches()
        assert data.state_dict() == counting().state_dict(epoch)


def test_a_loader_that_was_moved_is_where_it_was_moved_to_for_all_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = gltorch.dataset(counting())
    for _ in range(3):
        Workers(monkeypatch, data, 2).batches()
    data.loader.load_state_dict(counting().state_dict(1))

    assert Workers(monkeypatch, data, 2).batches() == in_loops()[9:18]


@pytest.mark.parametrize("stop", [0, 1, 5, 8, 9])
def test_workers_go_on_from_their_own_states(stop: int, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(monkeypatch, gltorch.dataset(counting()), 2)
    workers.batches(most=stop)
    states = json.loads(json.dumps(workers.each(lambda copy, number: copy.state_dict())))

    data = gltorch.dataset(counting())
    later = Workers(monkeypatch, data, 2)
    later.each(lambda copy, number: copy.load_state_dict(states[number]))
    rest = later.batches(begin=stop)

    assert rest == in_loops()[stop:9]
    assert Workers(monkeypatch, data, 2).batches() == in_loops()[9:18]


def test_the_state_of_a_worker_is_refused_where_it_is_no_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = Workers(monkeypatch, gltorch.dataset(counting()), 2)
    workers.batches(most=3)
    state = workers.each(lambda copy, number: copy.state_dict())[1]

    with pytest.raises(StateError, match="a state of worker 1 of 2"):
        gltorch.dataset(counting()).load_state_dict(state)
    with pytest.raises(StateError, match="a state of worker 1 of 2"):
        Workers(monkeypatch, gltorch.dataset(counting()), 3).each(
            lambda copy, number: copy.load_state_dict(state)
        )


def test_a_loader_that_was_moved_since_stays_where_it_was_moved_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = gltorch.dataset(counting())
    Workers(monkeypatch, data, 2).batches()

    data.loader.load_state_dict(counting().state_dict(0, 4))

    assert numbers_of(data) == in_loops()[4:9]


def test_workers_refuse_an_epoch_that_goes_on_between_two_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = gltorch.dataset(counting())
    data.load_state_dict(counting(batch_size=5).state_dict(0, 2))

    with pytest.raises(
        SpecError, match=r"goes on at record 10[\s\S]*num_workers=0 until the end of this epoch"
    ):
        Workers(monkeypatch, data, 2).batches()
    assert numbers_of(data)[0] == sum(in_loops(1, batch_size=5), [])[10:17]  # noqa: RUF017  a dozen of them


def test_a_worker_refuses_a_loader_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(monkeypatch, gltorch.dataset(counting()), 2)
    for copy in workers.copies:
        copy.loader.device = "gpu:0"

    with pytest.raises(SpecError, match=r"gpu:0 in a worker process[\s\S]*num_workers=0"):
        workers.batches()


# workers: processes


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_spawned_workers_deliver_the_batches_of_the_loader_in_its_order(persistent: bool) -> None:
    data = gltorch.dataset(counting())
    options = {
        "num_workers": 2,
        "multiprocessing_context": "spawn",
        "persistent_workers": persistent,
    }
    batches = DataLoader(data, batch_size=None, **options)

    epochs = [numbers_of(batches) for _ in range(2)]

    assert epochs == [in_loops()[:9], in_loops()[9:18]]
    assert data.state_dict() == counting().state_dict(2)


class Fails:
    """A reader, one of whose records is damaged."""

    def __call__(self, records: Any) -> dict[str, Any]:
        if 6 in records:
            raise RecordError("numbers.bin, record 6: it is damaged")
        return {"x": np.asarray(records)}


@pytest.mark.slow
def test_an_error_in_a_spawned_worker_comes_at_its_step_and_the_loop_goes_on_behind_it() -> None:
    data = gltorch.dataset(
        gl.Loader(gl.records(10, Fails()), batch_size=2, output="x", device="cpu")
    )
    batches = iter(
        DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context="spawn")
    )
    values = [next(batches).tolist() for _ in range(3)]

    with pytest.raises(RecordError, match=r"numbers\.bin, record 6: it is damaged"):
        next(batches)

    assert values == [[0, 1], [2, 3], [4, 5]]
    assert [numbers.tolist() for numbers in batches] == [[8, 9]]


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:.*multi-threaded, use of fork:DeprecationWarning"
)  # what the test is about
def test_a_forked_worker_says_what_to_do() -> None:
    data = DataLoader(
        gltorch.dataset(counting()), batch_size=None, num_workers=1, multiprocessing_context="fork"
    )

    with pytest.raises(ClosedError, match=r"num_workers=0[\s\S]*multiprocessing_context=\"spawn\""):
        next(iter(data))


STATEFUL = """
import json, sys
from torchdata.stateful_dataloader import StatefulDataLoader
from gpuload.bridges import torch as gltorch
from tests.bridges.test_torch import counting, in_loops, numbers_of

if __name__ == "__main__":
    num_workers, stop = map(int, sys.argv[1:])
    options = {"num_workers": num_workers, "multiprocessing_context": "spawn"} if num_workers else {}
    make = lambda: StatefulDataLoader(gltorch.dataset(counting()), batch_size=None, **options)
    stopped = make()
    for number, _ in enumerate(stopped, 1):
        if number == stop:
            state = json.loads(json.dumps(stopped.state_dict()))
            break
    del stopped
    resumed = make()
    resumed.load_state_dict(state)
    found = []
    while len(found) < 18 - stop:  # behind the last batch of an epoch, but before its end, one loop is empty
        found += numbers_of(resumed)
    assert found == in_loops()[stop:18], found
"""


@pytest.mark.slow
@pytest.mark.parametrize(("num_workers", "stop"), [(0, 5), (0, 9), (2, 5), (2, 9)])
def test_a_stateful_dataloader_goes_on_where_it_was(
    num_workers: int, stop: int, tmp_path: Path
) -> None:
    pytest.importorskip("torchdata")
    script(STATEFUL, str(num_workers), str(stop), folder=tmp_path)


def script(text: str, *arguments: str, folder: Path) -> str:
    """Run a program as a user would, with warnings that are shown and no errors."""
    (folder / "program.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-W", "ignore", str(folder / "program.py"), *arguments]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=environment, timeout=280
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


# several processes


def test_without_a_process_group_auto_is_refused_saying_what_to_do() -> None:
    for hand_over in (gltorch.tensors, gltorch.dataset):
        with pytest.raises(
            SpecError,
            match=r"not initialised[\s\S]*init_process_group[\s\S]*shard=\(rank, world size\)",
        ):
            hand_over(counting(), shard="auto")


def test_a_dataset_is_of_the_shard() -> None:
    records = [
        set(np.concatenate(numbers_of(gltorch.dataset(counting(), shard=(i, 3))))) for i in range(3)
    ]

    assert sorted(number for item in records for number in item) == list(range(NUM_RECORDS))


RANKS = """
import json, sys
import torch.distributed as dist
from gpuload.bridges import torch as gltorch
from tests.bridges.test_torch import counting, numbers_of

if __name__ == "__main__":
    rank, folder = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    data = gltorch.dataset(counting(), shard="auto")
    shares = [None, None]
    dist.all_gather_object(shares, [number for batch in numbers_of(data) for number in batch])
    assert sorted(shares[0] + shares[1]) == list(range(60)), shares
    assert gltorch.tensors(counting(), shard="auto").loader.num_shards == 2
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_of_torch_distributed_each_take_their_share(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        (tmp_path / str(rank)).mkdir()
        try:
            script(RANKS, str(rank), str(tmp_path), folder=tmp_path / str(rank))
        except BaseException as error:
            failures.append(error)

    ranks = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert not failures, failures[0]


# trainers

LIGHTNING = """
import sys
import lightning, torch
from gpuload.bridges import torch as gltorch
from tests.bridges.test_torch import counting, in_loops

class Model(lightning.LightningModule):
    def __init__(self, stop=None):
        super().__init__()
        self.layer, self.seen, self.looked_at, self.stop = torch.nn.Linear(1, 1), [], [], stop

    def training_step(self, batch, number):
        x, y = batch
        self.seen.append(y.tolist())
        if len(self.seen) == self.stop:
            self.trainer.save_checkpoint("state.ckpt")
            raise InterruptedError
        return torch.nn.functional.mse_loss(self.layer(x / 60)[:, 0], y.float())

    def validation_step(self, batch, number):
        self.looked_at.append(batch[1].tolist())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

if __name__ == "__main__":
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    options = {"max_epochs": 2, "accelerator": "cpu", "enable_model_summary": False, **quiet}
    held_out = in_loops(1, shuffle=False)

    model = Model()
    validation = gltorch.dataset(counting(shuffle=False))
    lightning.Trainer(**options).fit(model, gltorch.dataset(counting()), validation)
    assert model.seen == in_loops(2)
    assert model.looked_at == held_out[:2] + 2 * held_out  # two batches before it begins

    stopped, resumed = Model(stop=13), Model()
    try:
        lightning.Trainer(**options).fit(stopped, gltorch.dataset(counting()))
    except InterruptedError:
        pass
    lightning.Trainer(**options).fit(resumed, gltorch.dataset(counting()), ckpt_path="state.ckpt", weights_only=False)
    assert resumed.seen == in_loops(2)[13:], resumed.seen
"""

ACCELERATE = """
import torch
from accelerate import Accelerator
from gpuload.bridges import torch as gltorch
from tests.bridges.test_torch import counting, in_loops

if __name__ == "__main__":
    accelerator = Accelerator(cpu=True)
    layer = torch.nn.Linear(1, 1)
    layer, optimizer = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.01))
    data = gltorch.dataset(counting(), shard=(accelerator.process_index, accelerator.num_processes))
    seen = []
    for _ in range(2):
        for x, y in data:
            loss = torch.nn.functional.mse_loss(layer(x / 60)[:, 0], y.float())
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            seen.append(y.tolist())
    assert seen == in_loops(2)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "text"), [("lightning", LIGHTNING), ("accelerate", ACCELERATE)]
)
def test_a_trainer_takes_a_dataset(package: str, text: str, tmp_path: Path) -> None:
    pytest.importorskip(package)
    script(text, folder=tmp_path)


# on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("hand_over", [gltorch.tensors, gltorch.dataset])
def test_tensors_on_a_gpu_hold_what_they_were_while_further_batches_come(hand_over: Any) -> None:
    loader = loader_of(device="gpu", batch_size=1, shuffle=True)
    batches = hand_over(loader)
    sums, held_batches = [], []
    for _ in range(20):
        for image, label in batches:
            assert image.device.type == "cuda"
            sums.append(image.sum())  # queued, while the array is given back
            held_batches.append((image, label))

    expected = loader_of(batch_size=1, shuffle=True)
    for total, (image, label), batch in zip(
        sums, held_batches, [b for _ in range(20) for b in expected], strict=True
    ):
        np.testing.assert_array_equal(image.cpu().numpy(), batch["image"])
        np.testing.assert_array_equal(label.cpu().numpy(), batch["label"])
        assert float(total) == batch["image"].sum()
    assert loader.stats()["tensors_copied"] == 0


@pytest.mark.gpu
def test_a_stream_of_torch_reads_what_was_made_for_it_and_memory_that_is_not_used_again_before() -> (
    None
):
    batches, stream, sums = gltorch.tensors(counting(device="gpu")), torch.cuda.Stream(), []
    with torch.cuda.stream(stream):
        for _ in range(20):
            for x, _ in batches:
                torch.cuda._sleep(1_000_000)  # the kernel that reads comes late
                sums.append(x.sum())
                del x

    stream.synchronize()
    assert [float(total) for total in sums] == [float(sum(numbers)) for numbers in in_loops(20)]


@pytest.mark.gpu
def test_jagged_tensors_on_a_gpu_have_their_offsets_there(tmp_path: Path) -> None:
    expected = [
        [part.tolist() for part in tensor.unbind()]
        for (tensor,) in gltorch.tensors(ragged_files(tmp_path))
    ]
    tensors = [tensor for (tensor,) in gltorch.tensors(ragged_files(tmp_path, device="gpu"))]

    assert [[part.tolist() for part in tensor.unbind()] for tensor in tensors] == expected
    assert all(
        tensor.offsets().device.type == tensor.values().device.type == "cuda" for tensor in tensors
    )


def test_a_bfloat16_field_is_a_bfloat16_tensor_of_the_same_memory() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    values = np.arange(20, dtype=np.float32).reshape(10, 2).astype(bfloat16)
    loader = gl.Loader(gl.arrays(x=values), 4, device="cpu", output="x")

    results = [batch["x"] for batch in gltorch.tensors(loader)]

    assert {item.dtype for item in results} == {torch.bfloat16}
    np.testing.assert_array_equal(torch.cat(results).float().numpy(), values.astype(np.float32))
    assert (loader.stats()["tensors_shared"], loader.stats()["tensors_copied"]) == (3, 0)


def test_a_dataset_goes_on_after_a_loop_that_was_completed() -> None:
    loader = gl.Loader(gl.arrays(x=np.arange(10)), 4, shuffle=True, device="cpu", output="x")
    list(gltorch.tensors(loader))
    data = torch.utils.data.DataLoader(gltorch.dataset(loader), batch_size=None)

    results = [torch.cat(list(data)).tolist() for _ in range(3)]

    assert results == [
        np.concatenate([batch["x"] for batch in loader.epoch(number)]).tolist()
        for number in (1, 2, 3)
    ]


def test_padding_that_nothing_marks_is_told_of(caplog):
    source = gl.arrays(x=np.arange(10))

    for last_batch, size, count in (("pad", 4, 1), ("pad", 5, 0), ("partial", 4, 0)):
        caplog.clear()
        gltorch.dataset(gl.Loader(source, size, last_batch=last_batch, device="cpu"))
        messages = [
            record.getMessage()
            for record in caplog.records
            if "fill batches" in record.getMessage()
        ]
        assert len(messages) == count
        assert all("12 rows an epoch for 10 records" in message for message in messages)
    caplog.clear()
    gltorch.dataset(gl.Loader(source, 4, on_error="skip", device="cpu"))
    assert 'of on_error="skip"' in caplog.text
