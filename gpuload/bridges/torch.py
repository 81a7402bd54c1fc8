"""Batches as torch.Tensors: by DLPack for loops of one's own, as an ``IterableDataset`` for
DataLoader and trainers.

    for images, labels in tensors(loader):                       from the loader's position to the
        end of the epoch train_step(images, labels)
    for images, labels in DataLoader(dataset(loader), batch_size=None):                 the batches
        are the loader's train_step(images, labels)

Position ``tensors`` takes the loader along, batch by batch. Each iterator of a dataset begins at
         the loader's position, and that moves to the next epoch when the last batch of this one was
         delivered: to look at a batch, as trainers do before they begin, costs nothing, and a
         validation that was cut short begins anew. The dataset's own ``state_dict`` is behind the
         batch that was delivered last.
Memory   is shared: a tensor holds the array that it was made of, so stored tensors do not change.
Copies   are made of arrays that are empty, not contiguous or not writable. ``loader.stats()``
         counts them as ``tensors_copied``, the others as ``tensors_shared``.
GPU      A loader on a GPU gives tensors there. By DLPack torch's current stream is told to wait for
         the batch, while the host goes on; for another stream, ``wait_stream`` as with any tensor.
         When a tensor was dropped, its memory is used again as soon as that stream, which was
         torch's current one when the tensor was made, has done what was queued on it. A second
         stream that reads the tensor is waited for by it before the tensor is dropped:
         ``torch.cuda.current_stream().wait_stream(second)``. ``record_stream`` tells gpuload
         nothing.
Ragged   a field of which only the first axis varies becomes a nested tensor of the jagged layout
         over the same payload: torch's own type for that, which ``unbind``, ``to``,
         ``torch.nested.to_padded_tensor`` and layers take, and whose ``values()`` and ``offsets()``
         are the packed form that attention kernels take.
Workers  gpuload reads by threads, so ``num_workers=0`` is the right number. Worker processes, where
         they must be, are spawned; they make the batches in turn, each in one thread, and send
         copies of them. See `dataset`.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload import device, signalsafe
from gpuload.bridges import common
from gpuload.errors import ClosedError, DeviceError, SpecError, StateError, missing_package
from gpuload.order import Position
from gpuload.ragged import Ragged
from gpuload.tracebacks import public

if TYPE_CHECKING:
    from gpuload.batch import Batch
    from gpuload.loader import Loader
    from gpuload.pipeline.cursor import Cursor
    from gpuload.pipeline.epoch import Epoch
    from gpuload.spec import Field

try:
    torch: Any = signalsafe.import_package("torch")
except ImportError as error:
    raise missing_package(
        "torch", needed_for="gpuload.bridges.torch", extra="torch", error=error
    ) from error

NO_EPOCH = -1


@public
def tensors(loader: Loader, *, shard: common.Shard = None) -> common.Tensors:
    """Return the loader's batches with torch.Tensors on its device, shared by DLPack.

    Args:
        loader: its ``output=`` is the nest that a batch unpacks to: ``images, labels = batch``.
        shard: ``"auto"`` takes rank and world size from torch.distributed, which was initialised
            before; a pair is (rank, world size). Both are for a loader that is made without
            ``shard_id=`` and ``num_shards=``. None leaves the loader as it is.

    Returns:
        An iterable with a length, ``state_dict`` and ``load_state_dict``. Each loop over it goes on
        from the position
        of its ``loader`` and takes it along. It yields a `Batch` of tensors;
        ``batch.valid``,
        ``batch.records``, ``batch.epoch`` and ``batch.step`` are those of the loader's batch.

    Raises:
        SpecError: a field that is handed out has no tensor form (text, dates, a shape that varies
            in several axes), or ``shard`` does not fit.
        DeviceError: the loader is on a GPU that torch does not see.
    """
    loader = _check_loader("tensors", loader, shard)
    return common.Tensors(loader, _converter(loader))


@public
def dataset(loader: Loader, *, shard: common.Shard = None) -> LoaderDataset:
    """Return the loader as a ``torch.utils.data.IterableDataset`` of whole batches.

    An element is the nest of ``output=`` with tensors in it, a dict of all fields without it. The
    length is the steps of an epoch::

        DataLoader(dataset(loader), batch_size=None)             batch_size=1 would add an axis of
        length 1
        StatefulDataLoader(dataset(loader), batch_size=None)     its state_dict is exact, also with
        workers
        Trainer().fit(model, dataset(loader))                    Lightning takes it, and keeps its
                                                                 state in checkpoints

    Lightning: give it the dataset itself, or a StatefulDataLoader; of a plain DataLoader it keeps
    no state. For several ranks make it in ``train_dataloader()``, with
    ``shard=(self.trainer.global_rank, self.trainer.world_size)``.

    Accelerate: loop over the dataset itself, with
    ``shard=(accelerator.process_index, accelerator.num_processes)``. Do not give a DataLoader of it
    to ``prepare``: rank 0 would read for all ranks, and of a shard only its own records.

    Worker processes: ``DataLoader(..., num_workers=2, multiprocessing_context="spawn")``. The
    batches and their order are those of one process. They are made ahead of the training, so that
    StatefulDataLoader alone knows the state; with a plain DataLoader it is
    ``dataset.loader.state_dict(epoch, step)`` of the step that comes next. An epoch counts as
    delivered when its last batch is begun. With ``persistent_workers`` each loop is the next epoch,
    also after one that was left.

    Args:
        loader: kept by the dataset, as ``dataset(loader).loader``.
        shard: as of `tensors`.

    Raises:
        SpecError, DeviceError: as by `tensors`.
    """
    share = _check_loader("dataset", loader, shard)
    common.warn_of_padding("dataset", share, "; of tensors(loader) batch.valid tells them apart")
    return LoaderDataset(share)


class LoaderDataset(torch.utils.data.IterableDataset):  # type: ignore[misc]  # torch is taken as untyped
    """See `dataset`.

    Attributes:
        loader: of the batches.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader, self._process = loader, os.getpid()
        # In the process of the training: where the latest iterator is.
        self._cursor: Cursor | None = None
        # The position that worker processes were given or have come to, and the epoch that is next
        # by what they say, or NO_EPOCH. The latter is written by them: pickling for a process moves
        # a tensor to memory that both have.
        self._worker_position, self._next_epoch = (
            loader.position,
            torch.full((1,), NO_EPOCH, dtype=torch.int64),
        )
        # In a worker: the latest pass, and how much of the next one was delivered already.
        self._share: _Share | None = None
        self._num_taken = 0

    def __len__(self) -> int:
        """The number of steps of an epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        if worker is None:
            self._follow_workers()
            return self._batches()
        self._check_worker()
        if self._share is None:
            start = self.loader.position
        else:
            start = Position(self._share.start.epoch + 1)
        # A persistent worker gets no new pickle: its next pass is the epoch behind the one that it
        # has made.
        self._share, self._num_taken = (
            _Share(self, start, worker.id, worker.num_workers, self._num_taken),
            0,
        )
        return self._share

    def state_dict(self) -> dict[str, Any]:
        """Return the state behind the batch that was delivered last; in a worker, that of its
        share."""
        if self._share is not None:
            return self._share.state_dict()
        self._follow_workers()
        position = self.loader.position
        cursor = self._cursor
        has_begun_here = cursor is not None and cursor.start == position
        return self.loader.port.state_at(
            cursor.state_position if cursor is not None and has_begun_here else position
        )

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from a saved state.

        Raises:
            StateError: it is of other data, ops, shuffle or seed, or of one of several worker
                processes.
        """
        worker = torch.utils.data.get_worker_info()
        if isinstance(saved, dict):
            share = saved.get("share")
        else:
            share = None
        if share is not None and (
            worker is None or [worker.id, worker.num_workers] != share["worker"]
        ):
            raise StateError(
                f"a state of worker {share['worker'][0]} of {share['worker'][1]}",
                cause="it counts the batches that this worker has made, and not those that the "
                "training has used",
                remedy="load the StatefulDataLoader's state into one with as many workers",
            )
        self.loader.load_state_dict(saved)
        self._cursor, self._share, self._num_taken = None, None, share["num_taken"] if share else 0
        if worker is None:
            self._next_epoch[0] = NO_EPOCH

    def _batches(self) -> Epoch:
        """Return the batches from the loader's position to the end of the epoch, in the process of
        the training."""
        convert = _converter(self.loader)

        def finish(batch: Batch) -> Any:
            if (batches := weak()) is not None:
                self._cursor = batches.cursor  # it is another one behind a state that was loaded
            return batch.with_fields(convert).output

        batches = self.loader.port.ahead().then(finish)
        weak = weakref.ref(batches)  # or the iterator and the function would keep each other alive
        self._cursor = batches.cursor
        return batches

    def _follow_workers(self) -> None:
        """Go to the epoch that workers have come to, unless the loader was moved since they
        began."""
        epoch = int(self._next_epoch[0])
        if (
            epoch not in (NO_EPOCH, self.loader.position.epoch)
            and self.loader.position == self._worker_position
        ):
            self.loader.load_state_dict(self.loader.state_dict(epoch))
            self._worker_position = self.loader.position

    def _check_worker(self) -> None:
        """Raise an error where a worker cannot make its share."""
        if self._process != os.getpid():
            raise ClosedError(
                "the dataset was made before this worker was forked",
                cause="the loader's threads, and their memory, are in the other process",
                remedy="pass num_workers=0, as gpuload reads by threads, or "
                'multiprocessing_context="spawn"',
            )
        if self.loader.device != "cpu":
            raise SpecError(
                f"a loader on {self.loader.device} in a worker process",
                cause="batches that workers make on a GPU would have to be copied from process to "
                "process",
                remedy='pass num_workers=0, or make the loader with device="cpu"',
            )

    def __reduce__(self) -> tuple[Any, ...]:
        """A dataset is pickled as its loader and the memory that workers share, once for each
        worker."""
        self._follow_workers()
        if (
            self.loader.position != self._worker_position
        ):  # a message of workers is of another position
            self._worker_position, self._next_epoch[0] = self.loader.position, NO_EPOCH
        return _rebuild, (self.loader, self._next_epoch)


def _rebuild(loader: Loader, next_epoch: Any) -> LoaderDataset:
    """Return the dataset of a pickle."""
    result = LoaderDataset(loader)
    result._next_epoch = next_epoch
    return result


class _Share:
    """The batches of one of several workers; DataLoader takes a batch of each in turn.

        7 steps, 3 workers      worker 0: 0 3 6     worker 1: 1 4     worker 2: 2 5

    Each is made alone when it is asked for: a step is a pure function of its number.

    Args:
        whole: the dataset in this worker.
        start: where the pass begins, for all workers.
        number: of this worker.
        num_workers: how many there are.
        num_taken: how many of its steps this worker has delivered before.

    Attributes:
        start: as above.
    """

    def __init__(
        self, whole: LoaderDataset, start: Position, number: int, num_workers: int, num_taken: int
    ) -> None:
        loader = whole.loader
        # Workers share an epoch by the numbers of its steps, which do not say where an epoch was
        # cut otherwise.
        if start.offset != min(
            len(loader.source), start.step * loader.batch_size * loader.num_shards
        ):
            raise SpecError(
                f"epoch {start.epoch} goes on at record {start.offset}, which no step begins with, "
                "in worker processes",
                cause="the state was saved with another batch size or number of shards",
                remedy="pass num_workers=0 until the end of this epoch",
            )
        self.start, self._whole, self._convert = start, whole, _converter(loader)
        self._worker, self._num_taken = [number, num_workers], num_taken
        self._steps = range(start.step + number, len(loader), num_workers)
        if num_taken == len(self._steps):
            self._announce(self._steps[-1:])
        elif num_taken:  # it goes on from a state, whose epoch may be another one than that of the training's process
            whole._next_epoch[0] = start.epoch

    def __iter__(self) -> _Share:
        return self

    def __next__(self) -> Any:
        steps = self._steps[self._num_taken : self._num_taken + 1]
        if not steps:
            raise StopIteration
        self._announce(steps)
        output, error = signalsafe.call(
            lambda: self._attempt(steps[0])
        )  # a signal handler loses no step
        self._num_taken += 1  # also where the step raises an error: the next call goes on behind it
        if error is not None:
            raise error
        return output

    def _attempt(self, step: int) -> tuple[Any, Exception | None]:
        """Return the output of a step, or the error of making it."""
        try:
            return self._whole.loader.batch_at(step, self.start.epoch).with_fields(
                self._convert
            ).output, None
        except Exception as error:
            return None, error

    def state_dict(self) -> dict[str, Any]:
        """Return where all workers began, and how much of its share this one has delivered."""
        share = {"worker": self._worker, "num_taken": self._num_taken}
        return {**self._whole.loader.port.state_at(self.start), "share": share}

    def _announce(self, steps: range) -> None:
        """Tell the process of the training which epoch is next, if this is the last step of the
        present one."""
        if steps and steps[0] == len(self._whole) - 1:
            self._whole._next_epoch[0] = self.start.epoch + 1


def _check_loader(name: str, loader: Loader, shard: common.Shard) -> Loader:
    """Return the loader of this process's share after checking that torch can take its batches."""
    common.check_loader(name, loader)
    common.handed_out(loader, _check_field)
    if loader.device != "cpu":
        check_gpu(loader.device)
    return common.sharded(loader, shard, _rank)


def check_gpu(name: str) -> None:
    """Raise ``DeviceError`` if torch does not see a GPU of ours."""
    num_seen = torch.cuda.device_count()
    if device.number(name) >= num_seen:
        raise DeviceError(
            f"the loader is on {name}, and torch sees {num_seen} GPUs",
            cause="torch finds no CUDA driver"
            if torch.version.cuda
            else "this torch was built without CUDA",
            remedy='install torch for CUDA (https://pytorch.org/get-started), or use device="cpu"',
        )


def _check_field(field: Field) -> None:
    common.check_field(field, "a torch.Tensor", text=False, ragged=True, bfloat16=True)


def process_rank() -> tuple[int, int] | None:
    """Return rank and world size of torch.distributed; None where it is not initialised."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _rank() -> tuple[int, int]:
    pair = process_rank()
    if pair is None:
        raise SpecError(
            'shard="auto"',
            cause="torch.distributed is not initialised in this process, so that it knows no rank",
            remedy="call torch.distributed.init_process_group() before, or pass shard=(rank, world "
            "size)",
        )
    return pair


def _converter(loader: Loader) -> common.Convert:
    """Return a function that makes tensors of the values of a field, and counts them."""

    def tensor(array: Any) -> Any:
        if common.is_bfloat16(array.dtype):
            # NumPy's DLPack does not know bfloat16: the same bits travel as int16.
            return tensor(array.view(np.int16)).view(torch.bfloat16)
        if not common.shareable(array):
            loader.port.count("tensors_copied")
            return _copy_array(array, loader.device)
        loader.port.count("tensors_shared")
        # An array on a GPU is asked by torch, with its stream, which then waits for it. Of one on
        # the host the capsule is enough, and takes half the time.
        return torch.from_dlpack(
            array.__dlpack__() if isinstance(array, np.ndarray) else device.stream_export(array)
        )

    def convert(values: Any) -> Any:
        if not isinstance(values, Ragged):
            return tensor(values)
        values = common.rebased(values)
        payload, lengths = tensor(values.payload), values.lengths
        return torch.nested.nested_tensor_from_jagged(
            payload,
            torch.from_dlpack(values.offsets).to(payload.device),
            min_seqlen=int(lengths.min()),  # torch would ask the GPU for them
            max_seqlen=int(lengths.max()),
        )

    return convert


def _copy_array(array: Any, name: str) -> Any:
    if isinstance(array, np.ndarray):
        return torch.from_numpy(np.array(array, order="C"))
    if array.size:
        return torch.from_dlpack(array.copy())
    return torch.from_numpy(np.empty(array.shape, array.dtype)).to(f"cuda:{device.number(name)}")
