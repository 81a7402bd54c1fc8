"""Loader: joins order, reading, ops and executor into batches.

    for batch in loader: ...        the first `for` is epoch 0, the next is epoch 1, ...

Each `for` (each ``iter(loader)``) is the next epoch, whether or not the one before was read to its end. Iterators of
the same loader, and several loaders, may be alive at once; each has its own threads and its own place. To go on in the
middle of an epoch after something else, keep the iterator: ``batches = iter(loader)``. The state is that of the
iterator that was begun last.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpuload import device as devices
from gpuload import kernels, reading, rng, state
from gpuload.batch import Batch, Output, Ring, names_in
from gpuload.copying import CopyPool
from gpuload.epoch import Epoch, Place, finish, start
from gpuload.errors import ClosedError, SpecError
from gpuload.executors import choose
from gpuload.executors.base import Executor, compile_ops
from gpuload.ops.base import Op
from gpuload.order import Blocks, Plan, Start
from gpuload.sources.base import Source
from gpuload.spec import Spec
from gpuload.stage import Stage, Work, Works, make_stage
from gpuload.stats import Counters, Stats

if TYPE_CHECKING:
    from types import TracebackType

KEPT_SLOTS = 32  # slots that a caller may keep; batches are copied out of further ones
WORK_BYTES, MOST_STEPS = 13 << 18, 16  # steps are joined up to this size; see _steps_in_one
SLOW_THREADS = 16  # threads that copy where storage must be waited for; measured: more gain little
SHARED_BYTES = 8 << 20  # a step of more is shared by all threads, so that few of them are in memory
log = logging.getLogger("gpuload")


class Loader:
    """Batches of a source. A batch is a pure function of (source, ops, seed, epoch, step).

    Args:
        source: where records come from; stays the caller's, who closes it.
        batch_size: records of a batch on this shard.
        ops: what is done to them, in order.
        output: a field name, or tuples, lists and dicts of them; ``batch.output`` is so arranged, and only these
            fields are made. None: all fields.
        shuffle: True for the whole data set, ``gl.Blocks(...)`` for slow storage, False for the order of the source.
        seed: 0 to 2**64 - 1.
        shard_id, num_shards: this process and how many there are; the global order does not depend on them.
        last_batch: ``"partial"``: the last records are dealt out evenly; ``"drop"``: they are left out; ``"pad"``:
            batches are filled up with records that are not ``valid``. The number of steps is the same on every shard.
        device: ``"auto"``, ``"cpu"``, ``"gpu"`` or ``"gpu:N"``.
        executor: ``"auto"``, ``"array"`` or ``"dali"``.
        num_threads: threads that read and work; by default the cores this process may use. While the caller waits for
            short steps its thread is one of them. Where nothing but copies of records are made, and without a number
            here, there are up to 16 while storage must be waited for.
        prefetch: steps that are worked on ahead; by default 2 large ones, or more that are small.

    Raises:
        SpecError, UnknownFieldError: an argument, an op or a field does not fit.
        DeviceError, MissingPackageError: a device, executor or package is not there.
    """

    def __init__(
        self,
        source: Source,
        *,
        batch_size: int,
        ops: Sequence[Op] = (),
        output: Output = None,
        shuffle: bool | Blocks = False,
        seed: int = 0,
        shard_id: int = 0,
        num_shards: int = 1,
        last_batch: str = "partial",
        device: str = "auto",
        executor: str = "auto",
        num_threads: int | None = None,
        prefetch: int | None = None,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name != "self"}
        self._arguments, self.source, self.output = arguments, source, output
        _check(source, num_threads, prefetch)
        self._plan = Plan(len(source), batch_size, shuffle, seed, shard_id, num_shards, last_batch)
        self.num_threads = num_threads or _num_cores()
        self.batch_size, self.num_shards, self.last_batch = batch_size, num_shards, last_batch
        whole = compile_ops(source.spec, ops)
        self._names = names_in(output, whole.spec_out)
        self.spec_out: Spec = whole.spec_out.only(self._names)
        self._graph = whole.only(self._names)
        self.device, self._device_why = devices.choose(device)
        self._executor_name, self._executor_why = choose.choose(executor, self._graph, self.device)
        self._counters = Counters()
        self._idle: list[Executor] = [self._make_executor()]
        self._prepare(tuple(ops))

    def _prepare(self, ops: tuple[Op, ...]) -> None:
        executor = self._idle[0]
        self._executor_lines = executor.describe()
        stage = make_stage(self.source, self._graph, self._plan, executor, self._names, self._counters)
        num_steps = self._steps_in_one(stage)
        self.prefetch = self._arguments["prefetch"] or self._works_ahead(stage) * num_steps
        self._stage = dataclasses.replace(stage, num_parts=self._num_parts(stage, num_steps), num_steps=num_steps)
        self._works_begun = max(1, self.prefetch // num_steps)
        in_flight = self._works_begun + executor.depth + (num_steps == 1)  # of these one is the caller's
        self._ring = Ring(
            self._stage.slot_bytes(),
            ready=in_flight,
            limit=KEPT_SLOTS + in_flight,
            allocate=devices.page_aligned if self.device == "cpu" else devices.pinned,
            counters=self._counters,
        )
        self._identity = state.identity(self.source.fingerprint(), ops, self._plan)
        self._lock = threading.Lock()
        self._epochs: weakref.WeakSet[Epoch] = weakref.WeakSet()
        self._next = Place(0, 0, Start())  # where the next iterator begins
        self._place = self._next  # where the latest iterator is
        self._closed = False
        if "auto" in (self._arguments["device"], self._arguments["executor"]):
            log.info("%s", self.describe())

    def __len__(self) -> int:
        """The number of steps of an epoch; the same on every shard."""
        return self._plan.end()

    def __iter__(self) -> Epoch:
        """Begin the next epoch."""
        self._check_open()
        with self._lock:
            place = self._next
            batches = Epoch(self, place)
            self._place, self._next = place, Place(place.epoch + 1, 0, Start())
            self._epochs.add(batches)
        return batches

    def batch_at(self, step: int, epoch: int = 0) -> Batch:
        """Return the batch of a step of an epoch (counted from the epoch's beginning), made anew.

        No iterator moves, and the state stays as it is.

        Raises:
            RecordIndexError: the epoch has no such step.
        """
        self._check_open()
        rng.checked_word(epoch, "epoch")
        executor = self._borrow_executor()
        try:
            work = reading.run(Work(self._stage, self._ring, range(step, step + 1), epoch, Start()))
            start(work, executor)
            return finish(self, work, step, executor)
        finally:
            self._return_executor(executor)

    def state_dict(self) -> dict[str, Any]:
        """Return where the run is, as a dict for JSON: what the iterator that was begun last has delivered."""
        place = self._place
        return state.save(self._plan, place.epoch, place.step, place.start, self._identity)

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Let the next iterator go on where a state was saved, with any number of shards and any batch size.

        Raises:
            StateError: the state is of other data, ops, shuffle or seed; says what differs.
        """
        epoch, begin = state.load(saved, self._plan, self._identity)
        with self._lock:
            self._next = self._place = Place(epoch, begin.step, begin)

    def replace(self, **changes: Any) -> Loader:
        """Return a new loader with some arguments changed, at the beginning of epoch 0."""
        unknown = sorted(changes.keys() - self._arguments.keys())
        if unknown:
            raise SpecError(
                f"replace got {unknown}", cause="Loader has no such argument", remedy=f"use {sorted(self._arguments)}"
            )
        return Loader(**{**self._arguments, **changes})

    def stats(self) -> Stats:
        """Return counters; ``print(loader.stats())`` says what each means."""
        return self._counters.stats()

    def count(self, name: str, amount: float = 1) -> None:
        """Add to a counter of ``stats()``; bridges count their copies with it."""
        self._counters.add(**{name: amount})

    def describe(self) -> str:
        """Return what was chosen and why, a line each."""
        more = dict(self._executor_lines)
        lines = {
            "source": f"{len(self.source)} records; {self.source.spec}",
            "batch": f"{self.batch_size} records, {len(self)} steps; {self.spec_out}",
            "device": f"{self.device} ({self._device_why})",
            "executor": f"{more.pop('executor')} ({self._executor_why})",
            **{name: line for name, line in more.items() if name not in ("device", "threads")},
            "kernels": "compiled by Numba" if kernels.compiled() else "NumPy (Numba is not installed)",
            "threads": self._describe_threads(),
            "ahead": f"{self.prefetch} steps",
            "memory": f"{self._ring.num_bytes} bytes a slot; batches are copied once {self._ring.limit} slots are kept",
        }
        return "\n".join(f"{name + ':':<10} {line}" for name, line in lines.items())

    def _describe_threads(self) -> str:
        stage = self._stage
        work = f"{self.num_threads}; a work is {stage.num_steps} steps in {stage.num_parts} parts"
        copies = f", copied without the interpreter; {self._slow_threads} threads while storage must be waited for"
        return work + copies * stage.copies

    def close(self) -> None:
        """Stop the threads of all iterators and free the executors; the source stays open. Twice is allowed."""
        self._closed = True
        for batches in list(self._epochs):
            batches.close()
        while self._idle:
            self._idle.pop().close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, place: Place) -> reading.Reading[Work]:
        """Begin to read the steps of an epoch from a place on."""
        stage = self._stage
        copier = self.source.copier() if stage.copies else None
        threads: reading.Pool[Work]
        if copier is None:
            threads = reading.Threads(self.num_threads, helped=not self._shares(stage))
        else:
            threads = CopyPool(
                copier,
                most_records=self.batch_size if self.last_batch == "pad" else min(self.batch_size, len(self.source)),
                ahead=self._works_begun,
                num_threads=self.num_threads,
                num_parts=stage.num_parts,
                slow_threads=self._slow_threads,
                counters=self._counters,
            )
        works = Works(stage, self._ring, place.epoch, place.start)
        return reading.Reading(works, threads, ahead=self._works_begun, counters=self._counters)

    @property
    def _slow_threads(self) -> int:
        """How many threads copy records while storage must be waited for."""
        return self._arguments["num_threads"] or max(SLOW_THREADS, self.num_threads)

    def _steps_in_one(self, stage: Stage) -> int:
        """Return how many steps are one work: more than one where waking a thread takes as long as doing a step."""
        if stage.copies or not stage.can_join_steps():
            return 1
        asked = self._arguments["prefetch"]
        most = MOST_STEPS if asked is None else max(1, asked // 2)
        return max(1, min(WORK_BYTES // max(stage.slot_bytes(), 1), most))

    def _works_ahead(self, stage: Stage) -> int:
        """Return 2 where all threads share a step, else more than threads, so that none waits for the caller."""
        return 2 if self._shares(stage) else self.num_threads + (2 if stage.copies else 1)

    def _num_parts(self, stage: Stage, num_steps: int) -> int:
        """One part for each thread where a step costs much, else what keeps all threads busy."""
        return self.num_threads if self._shares(stage) else -(-self.num_threads * num_steps // self.prefetch)

    def _shares(self, stage: Stage) -> bool:
        costly = any(field.encoded or not field.uniform for field in self.source.spec)
        return costly or stage.slot_bytes() > SHARED_BYTES

    def _make_executor(self) -> Executor:
        return choose.make(
            self._executor_name,
            self._graph,
            device=self.device,
            batch_size=self.batch_size,
            num_threads=self.num_threads,
        )

    def _borrow_executor(self) -> Executor:
        try:
            return self._idle.pop()
        except IndexError:
            return self._make_executor()

    def _return_executor(self, executor: Executor) -> None:
        executor.reset()
        if self._closed:
            executor.close()
        else:
            self._idle.append(executor)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the loader is closed", cause="close() was called", remedy="make a new one")


def _check(source: object, num_threads: int | None, prefetch: int | None) -> None:
    if not isinstance(source, Source):
        raise SpecError(
            f"source is a {type(source).__name__}",
            cause="a loader reads from a gpuload source",
            remedy="open one: gl.npy, gl.fixed, gl.images; gl.arrays(x=array) for arrays in memory",
        )
    for name, value in (("num_threads", num_threads), ("prefetch", prefetch)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise SpecError(f"{name} = {value!r}", cause="it must be a whole number of at least 1", remedy="pass one")


def _num_cores() -> int:
    """Return how many cores this process may use, which containers and schedulers set."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
