"""ReaderFeed: the batches of a loader on their way into one pipeline and out of it.

DALI calls a source ahead of time, and a source cannot see the outputs; the pipeline reports them
(`pipeline.Fed`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuload import signalsafe
from gpuload.bridges.dali.columns import Columns
from gpuload.errors import SpecError, add_note
from gpuload.order import Position

if TYPE_CHECKING:
    from gpuload.batch import Batch
    from gpuload.loader import Loader
    from gpuload.pipeline.epoch import Epoch

MAX_RECORDS = 8  # in a note on an error


@dataclass
class ReaderStep:
    """A batch that DALI was given: which it is, and the iterator that made it."""

    batches: Epoch
    after: Position
    epoch: int
    step: int
    records: NDArray[np.int64]
    is_filled: bool = False  # up to the batch size, by repeating the last record

    @property
    def description(self) -> str:
        """The batch in words, for a note on an error."""
        records = ", ".join(map(str, self.records[:MAX_RECORDS].tolist()))
        if self.records.size > MAX_RECORDS:
            suffix = ", ..."
        else:
            suffix = ""
        call = f"loader.batch_at(step={self.step}, epoch={self.epoch})"
        return f"in epoch {self.epoch}, step {self.step}, of the records {records}{suffix}; {call} has this batch"


class ReaderFeed:
    """The feed of one pipeline: the batches of a loader, epoch by epoch, ahead of the pipeline's
    outputs.

    A batch waits until DALI has taken it, for each of its columns is asked for by itself. And if
    another source in the pipeline has ended, DALI drops the batch that it got from this one, and
    asks for it again after ``reset``.

    Everything here is called by the thread that runs the pipeline.
    """

    def __init__(self, loader: Loader, columns: Columns, name: str | None) -> None:
        self.name = name
        self._loader, self._columns = loader, columns
        # An iterator with ``reader_name=`` counts by itself and wants batches of one size: see
        # `reader`.
        self._fills = name is not None and loader.last_batch == "partial"
        self._batches: Epoch | None = None
        self._waiting: Any = None  # the columns of a batch, and the batch
        self._steps: deque[ReaderStep] = deque()
        self._error: Exception | None = None
        self._is_over = False

    def column(self, place: int) -> Any:
        """Return a column of the next batch; raises ``StopIteration`` where the epoch ends or a
        step failed."""
        if self._is_over:
            raise StopIteration
        if self._waiting is None:
            self._wait()
        return self._waiting[0][place]

    def _wait(self) -> None:
        """Wait for the next batch; raises ``StopIteration`` as `column` does."""
        try:
            batches = self._batches
            if batches is None:
                if self.name is not None:
                    check_whole(self._loader.position)
                self._batches = batches = self._loader.port.manual_epoch().then(
                    self._with_columns()
                )
            for (
                self._waiting
            ) in batches:  # a loop: behind next() a signal handler might drop the batch
                return
        except Exception as error:
            if signalsafe.is_of_handler(error):
                raise
            self._error, self._is_over = (
                error,
                True,
            )  # raised when its step comes out, behind those in the pipeline
            raise StopIteration from None
        self._batches, self._is_over = None, True
        raise StopIteration

    def _with_columns(self) -> Callable[[Batch], tuple[list[Any], Batch]]:
        """Return a function that makes the columns of a batch; it does not refer to the feed: that
        would be a cycle."""
        columns, filled_size = self._columns, self._loader.batch_size if self._fills else 0

        def with_columns(batch: Batch) -> tuple[list[Any], Batch]:
            arrays = columns.values(batch)
            if batch.records.size < filled_size:
                arrays = [_pad_rows(values, filled_size) for values in arrays]
            return arrays, batch

        return with_columns

    def was_taken(self) -> None:
        """Note that DALI has taken the batch that waited."""
        if self._waiting is not None and self._batches is not None:
            batch, batches = self._waiting[1], self._batches
            is_filled = self._fills and batch.records.size < self._loader.batch_size
            step = ReaderStep(
                batches, batches.position, batch.epoch, batch.step, batch.records, is_filled
            )
            self._steps += (
                step,
            )  # no call, as deque.append would be: no signal handler runs before the next line
            self._waiting = None

    def come_out(self, take: Callable[[Any], Any], cuda_stream: Any) -> Any:
        """Return the result of ``take``, the outputs of the oldest batch in the pipeline, and take
        the loader along."""
        try:
            outputs = take(cuda_stream)
        except StopIteration:
            error, self._error = self._error, None
            if error is None:
                raise
            raise error from None
        except (
            Exception
        ) as error:  # of an operator: the batch is lost, and the state begins with it
            if self._steps and not signalsafe.is_of_handler(error):
                add_note(error, self._steps.popleft().description)
            raise
        if self._steps:
            step = self._steps.popleft()
            step.batches.move(step.after)
        return outputs

    @property
    def has_failed(self) -> bool:
        """True if a step failed, and its error was not raised yet."""
        return self._error is not None

    @property
    def only_filled_is_left(self) -> bool:
        """True if all of an epoch came out but a last batch that was filled up."""
        return self._is_over and len(self._steps) == 1 and self._steps[0].is_filled

    def reset(self) -> None:
        """Allow the next batch: the first one of the next epoch, or the one behind a step that
        failed."""
        self._is_over = False

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata of a reader for DALI's iterators; see `_as_dali_counts`."""
        loader = self._loader
        num_steps = len(loader)
        num_records = num_steps * loader.batch_size * loader.num_shards
        if self._fills:
            size = len(loader.source)
        else:
            size = num_records
        return {
            "epoch_size": size,
            "epoch_size_padded": num_records,
            "number_of_shards": loader.num_shards,
            "shard_id": _as_dali_counts(size, loader.num_shards, loader.shard_id),
            "pad_last_batch": True,
            "stick_to_shard": True,
        }


class ReaderColumn:
    """The callable from which DALI takes one column."""

    def __init__(self, feed: ReaderFeed, place: int) -> None:
        self._feed, self._place = feed, place

    def __call__(self) -> Any:
        """Return the column of the next batch."""
        return self._feed.column(self._place)


def check_whole(position: Position) -> None:
    """Raise ``SpecError`` if an iterator of DALI that counts whole epochs would begin in the middle
    of one."""
    if position.step:
        raise SpecError(
            f"reader(loader, name=...) of a loader that is at epoch {position.epoch}, step "
            f"{position.step}",
            cause="with reader_name= the iterators of DALI count batches, and know whole epochs "
            "only",
            remedy="leave out name= here and reader_name= there: the iterator then ends where the "
            "loader does",
        )


def _pad_rows(values: Any, batch_size: int) -> Any:
    """Return a column with its last row repeated up to the batch size."""
    if isinstance(values, np.ndarray):
        return values[np.minimum(np.arange(batch_size), len(values) - 1)]
    return [*values, *[values[-1]] * (batch_size - len(values))]


def _as_dali_counts(length: int, num_shards: int, shard_id: int) -> int:
    """Return the number of the shard that has, as DALI counts, as many records of an epoch as this
    one has here.

    DALI gives shard i of n the records from ``i * length // n`` to ``(i + 1) * length // n``; here
    the first shards have one more. The numbers of records are the same ones, in another order.

        10 records, 4 shards    here 3 3 2 2    DALI's 2 3 2 3    shards 0 1 2 3 are its 1 3 0 2
    """
    sizes = [
        (shard + 1) * length // num_shards - shard * length // num_shards
        for shard in range(num_shards)
    ]
    return sorted(range(num_shards), key=lambda shard: -sizes[shard])[shard_id]
