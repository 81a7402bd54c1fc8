"""Loader: arguments, position and state; the public face of the pipeline.

    for batch in loader: ...        from the loader's position to the end of its epoch

A loader has a position: an epoch, and a step of it. A `for` goes from there to the end of the
epoch; the position moves with each batch that is delivered, and with the last one to the next
epoch. So the first `for` is epoch 0, the next is epoch 1, and a loop that was left goes on where it
was left. ``loader.epoch(n)`` is epoch n from its beginning, and moves nothing. A saved state is the
position.

Iterators of the same loader, and several loaders, may be alive at once; each has its own threads,
and begins at the position that the loader has at that moment. The position is that of the iterator
that was asked last.
"""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Sequence
from contextvars import ContextVar
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from gpuload import core, lazy, rng, signalsafe, state, synonyms, threads
from gpuload import device as devices
from gpuload.batch import Batch, Output, names_in
from gpuload.errors import RecordIndexError, SpecError
from gpuload.graph.advice import advice
from gpuload.graph.graph import check_mixes, compile_ops
from gpuload.ops.base import Op, is_random, labels, streams
from gpuload.order import MAX_LENGTH, Blocks, Buckets, Plan, Position, check_count, check_flag
from gpuload.pipeline.card import no_card
from gpuload.pipeline.course import Course
from gpuload.pipeline.cursor import Cursor
from gpuload.pipeline.damage import BadRecord, make_damage
from gpuload.pipeline.epoch import Epoch
from gpuload.pipeline.oprecords import epoch_records, num_done_once, records_behind
from gpuload.pipeline.port import Port
from gpuload.pipeline.session import Session
from gpuload.pipeline.sessions import Sessions
from gpuload.pipeline.setup import (
    Setup,
    check_arguments,
    check_steps,
    cost_lines,
    executor_request,
    make_reader,
    mark_nvtx_ranges,
    with_lengths,
)
from gpuload.sources.base import Source, ops_of
from gpuload.spec import Spec, is_whole, outline
from gpuload.stats import Counters, Stats, Trace

if TYPE_CHECKING:
    from types import TracebackType

MOST_THREADS = (
    4096  # more than any machine has cores; a mistyped number should not start a million threads
)
audit_setting = lazy.function("gpuload.pipeline.audit", "setting_of")
with_checks = lazy.function("gpuload.graph.levels", "with_checks")
log = logging.getLogger("gpuload")
# The warnings about ops that a loader gave from which another is made: these are not given again.
_advice: ContextVar[frozenset[str]] = ContextVar("advice", default=frozenset())


class Loader:
    """Batches of a source. A batch is a pure function of (source, ops, seed, epoch, step).

    Args:
        source: where records come from; the caller keeps it, and closes it.
        batch_size: records of a batch on this shard.
        ops: the transforms of the records, in order.
        output: a field name, or tuples, lists and dicts of them; ``batch.output`` is so arranged,
            and only these fields are made. None: all fields.
        shuffle: True for the whole data set, ``gl.Blocks(...)`` for slow storage,
            ``gl.Buckets(...)`` for batches of similar length, False for the order of the source.
        seed: 0 to 2**64 - 1.
        shard_id: the number of this process among all that train together; 0 is the first.
        num_shards: how many processes there are; the global order does not depend on it.
        last_batch: ``"partial"``: the last records are dealt out evenly; ``"drop"``: they are left
            out; ``"pad"``: batches are filled up with records that are not ``valid``. The number of
            steps is the same on every shard.
        device: ``"auto"``, ``"cpu"``, ``"gpu"`` or ``"gpu:N"``.
        executor: ``"array"`` runs the ops by NumPy and the core on a CPU, by CuPy on a GPU;
            ``"dali"`` in DALI. ``"auto"`` is ``"array"``, but where DALI decodes the images or an
            op needs it.
        decode: where images are decoded for a GPU. ``"host"``: by the core in the workers, up to
            the op that gives them one size; bytes are uploaded, and the other ops run on the GPU.
            The pixels are those of a CPU. ``"device"``: by DALI on the GPU, with pixels of its own.
            ``"auto"``: on the device with ``executor="dali"``, on the host with
            ``executor="array"``; with ``executor="auto"`` on the host if the core decodes for these
            ops, one of them gives one size, and there are at least 3 cores for each GPU, or if DALI
            is not installed or has no decoder for these files on a GPU. ``describe()`` says which,
            and why; a state keeps it. On a CPU images are decoded by the core, or with
            ``executor="dali"`` by DALI, unless ``"host"`` asks for the core.
        num_threads: threads that read and work; by default the cores this process may use, as far
            as its affinity, its control groups (containers, schedulers) and ``OMP_NUM_THREADS``
            say, to begin with. Then measurements decide: there are more threads where reading waits
            for storage, and fewer where threads wait for Python's lock, if batches come faster so.
            ``describe()`` has the choice. A number that is passed stays.
        prefetch: steps that are worked on ahead; by default one large one, or more that are small,
            to begin with. Then there are more where batches do not all take the same time. A number
            that is passed stays.
        on_error: for a record that is damaged, or that an op cannot take. ``"raise"``: its step
            raises an error that names it. ``"replace"``: another record stands in its place, chosen
            by (seed, epoch, record), so that all runs, shards and executors agree;
            ``batch.records`` says which. ``"skip"``: the same, and ``batch.valid`` is False for the
            row. Files that are missing, changed or unreadable are always errors.
        max_bad: the share of the source's records, from 0 to 1, that may be damaged before an error
            stops the loader.
        drawn: ``batch.drawn`` has the draws: for each op, under its class and its number among the
            ops of that class, the arrays of its draw, ``batch.drawn["RandomCrop/0"]["start"]``,
            with a row for each record. To log it, to undo it, or to test it.
        quarantine: a file to which a line of JSON is appended for each damaged record that
            ``bad_records`` gets.
        direct: True has rows of a GPU read straight from their files into its memory, by kvikio
            (GPUDirect Storage), without a copy on the host. ``describe()`` says which way they go;
            where it is by the host after all, that is logged. For large records, or
            ``shuffle=gl.Blocks(...)``, of NPY and fixed-record files.
        trace: a file of the work of each thread over time, ``"trace.json"`` for
            https://ui.perfetto.dev. It is written when an epoch ends and when the loader is closed,
            and has 200,000 events at most.
        audit: the share of the records, from 0 to 1, that are made again by the array forms of the
            ops on the CPU and compared with the rows of the batch before it is handed out, as far
            as the ops allow differences: 1e-3 for one in a thousand. Which, depends on (seed,
            epoch, record). A difference is a ``gl.PixelError`` at its step. ``"count"``, or a share
            with it, ``(0.01, "count")``, counts them in ``stats()`` instead. None: only the first
            batches where images are decoded on a GPU by a decoder that is not known there yet. 0:
            none.

    Raises:
        SpecError, UnknownFieldError: an argument, an op or a field does not fit.
        DeviceError, MissingPackageError: a device, executor or package is not there.
        FileError: ``quarantine`` or ``trace`` cannot be written.
    """

    def __init__(
        self,
        source: Source,
        batch_size: int,
        *,
        ops: Sequence[Op] = (),
        output: Output = None,
        shuffle: bool | Blocks | Buckets = False,
        seed: int = 0,
        shard_id: int = 0,
        num_shards: int = 1,
        last_batch: str = "partial",
        device: str = "auto",
        executor: str = "auto",
        decode: str = "auto",
        num_threads: int | None = None,
        prefetch: int | None = None,
        on_error: str = "raise",
        max_bad: float = 0.01,
        quarantine: str | os.PathLike[str] | None = None,
        drawn: bool = False,
        direct: bool = False,
        trace: str | os.PathLike[str] | None = None,
        audit: float | str | tuple[float, str] | None = None,
    ) -> None:
        # First of all: at this line ``locals()`` are just the arguments, of which ``replace`` and a
        # pickle make a loader anew.
        self._arguments = {name: value for name, value in locals().items() if name != "self"}
        check_arguments(source, device=device, executor=executor, decode=decode)
        if num_threads is not None:
            num_threads = check_count("num_threads", num_threads, maximum=MOST_THREADS)
        if prefetch is not None:
            prefetch = check_count("prefetch", prefetch, maximum=MAX_LENGTH)
        order = shuffle
        if isinstance(shuffle, Buckets):
            order = with_lengths(shuffle, source)
        plan = Plan(len(source), batch_size, order, seed, shard_id, num_shards, last_batch)
        check_steps(plan)
        setting = None
        if audit is not None:
            setting = audit_setting(audit)
        damage = make_damage(source, plan.seed, on_error, max_bad, quarantine)
        whole = compile_ops(source.spec, ops, before=ops_of(source))
        if whole.ops:
            whole = with_checks(whole)
        names = names_in(output, whole.spec_out)
        graph = whole.only(names)
        check_mixes(graph, names)
        device_name, device_reason = devices.choose(device)
        all_ops = (*ops_of(source), *ops)
        op_labels, reader, trace_file = None, None, None
        if check_flag("drawn", drawn):
            op_labels = dict(zip(streams(all_ops), labels(all_ops), strict=True))
        if trace is not None:
            trace_file = Trace(trace)
        num_workers = num_threads or threads.num_cores()
        if check_flag("direct", direct):
            reader = make_reader(device_name, device_reason, damage, num_workers)
        mark_nvtx_ranges()
        self._setup = Setup(
            source=source,
            graph=graph,
            plan=plan,
            names=names,
            output=output,
            device=device_name,
            device_reason=device_reason,
            request=executor_request(executor, decode, graph, device_name, source, names),
            num_threads=num_workers,
            tunes_threads=num_threads is None,
            prefetch=prefetch,
            labels=op_labels,
            damage=damage,
            reader=reader,
            audit=setting,
            counters=Counters(trace_file),
        )
        self._sessions = Sessions(self._setup)
        self._course = Course(self._setup, ops)
        self.port = Port(self._sessions, self._course, executor)
        self.source, self.output, self.ops = source, output, tuple(ops)
        self.batch_size, self.last_batch, self.seed = plan.batch_size, last_batch, plan.seed
        self.shard_id, self.num_shards, self.on_error = plan.shard_id, plan.num_shards, on_error
        self.device, self.num_threads, self.prefetch = (
            device_name,
            num_workers,
            self._sessions.current.prefetch,
        )
        self.spec_out: Spec = whole.spec_out.only(names)
        self._warn_of_costs()
        if "auto" in (device, executor):
            log.info("%s", self.describe())
        core.warn_if_missing()

    def _warn_of_costs(self) -> None:
        """Log, for ops and order, each line that the loader from which this one was made has not
        logged."""
        lines = (
            *advice(self.port.graph, self._setup.names),
            *cost_lines(self.source, self._setup.plan),
        )
        earlier = _advice.get()
        for line in lines:
            if line not in earlier:
                log.warning("%s", line)
        self._advice = earlier.union(lines)

    @property
    def _session(self) -> Session:
        """The session that iterators begin in; another one, once a state was loaded, perhaps."""
        return self._sessions.current.session

    def __len__(self) -> int:
        """The number of steps of an epoch; the same on every shard."""
        return self._setup.plan.end()

    @property
    def position(self) -> Position:
        """Where the loader is: epoch and step of the next batch; the end of an epoch is the
        beginning of the next."""
        return self._course.position

    def __iter__(self) -> Epoch:
        """Go on from the position to the end of its epoch; the position moves with each batch."""
        session, course = self._sessions.current.session, self._course
        return Epoch(session, self.output, course.begin(), course.place)

    def epoch(self, number: int) -> Epoch:
        """Return an iterator over an epoch from its beginning; the loader's position stays where it
        is."""
        start = Cursor(Position(rng.checked_word(number, "epoch")))
        return Epoch(self._session, self.output, start)

    def batch_at(self, step: int, epoch: int = 0) -> Batch:
        """Return the batch of a step of an epoch (counted from the epoch's beginning), made anew.

        No iterator moves, and the state stays as it is.

        Raises:
            RecordIndexError: the epoch has no such step.
        """
        return self.port.batch_of(
            self._setup.plan.at(Position(rng.checked_word(epoch, "epoch")), step)
        )

    def steps_of(self, records: Sequence[int], epoch: int = 0) -> list[int]:
        """Return at which steps of an epoch some records come, so that ``batch_at(step, epoch)``
        has them.

        Args:
            records: numbers of records, from 0.
            epoch: the epoch.

        Raises:
            RecordIndexError: this shard does not have one of them in this epoch.
            SpecError: they are no whole numbers.
        """
        try:
            numbers = [operator.index(record) for record in records]
        except TypeError:
            raise SpecError(
                f"steps_of({records!r})"[:200],
                cause="it takes the numbers of records, which are whole, in a list",
                remedy="write loader.steps_of([0, 5])",
            ) from None
        return self._setup.plan.steps_of(numbers, rng.checked_word(epoch, "epoch"))

    def peek(self) -> Batch:
        """Return the batch that a loop would begin with, and move nothing: to look at shapes, or to
        build a model.

        ``next(iter(loader))`` takes the batch away from the next loop. Made anew as by
        ``batch_at``, in this thread.

        Raises:
            RecordIndexError: the source has no records.
        """
        if not len(self):
            raise RecordIndexError(
                "loader.peek()",
                cause="the source has no records, so there is no batch",
                remedy="check its paths",
            )
        return self.port.batch_of(self.position)

    def state_dict(self, epoch: int | None = None, step: int = 0) -> dict[str, Any]:
        """Return where the run is, as a dict for JSON: the position, which is that of the next
        batch to be delivered.

        If something between the loader and the training reads ahead (``tf.data``, Keras), the
        loader cannot know which batches were trained. The caller knows, and says it:
        ``state_dict(epoch, step)``.

        Args:
            epoch: the state of this epoch instead, before its ``step``; counted as ``batch.epoch``
                and ``batch.step``.
            step: from 0 to ``len(loader)``, which is the beginning of the next epoch.

        Raises:
            RecordIndexError: the epoch has no such step.
            SpecError: a step without an epoch, or one of them is no whole number.
            ChangedFileError: a file changed after the source was opened.
        """
        if epoch is not None:
            return self.port.state_at(self._course.step_of(rng.checked_word(epoch, "epoch"), step))
        if not is_whole(step) or step:
            raise SpecError(
                f"state_dict(step={step!r})",
                cause="a step is one of an epoch, and none is named; without both, the state is "
                "that of the loader",
                remedy="write loader.state_dict() or loader.state_dict(epoch=0, step=3)",
            )
        self._course.warn_of_read_ahead()
        return self.port.state_at(self.position)

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on where a state was saved, with any number of shards and any batch size.

        Iterators that were made before go on there, too. Those that read ahead of the training (of
        ``tf.data``, of DALI) raise an error when they are asked for the next batch, if they have
        delivered one before.

        Raises:
            StateError: the state is of other data, ops, shuffle or seed; the message shows the
                difference.

        Where ``executor=`` and ``decode=`` are "auto", images are decoded from here on where the
        run of the state has them decoded, for their pixels' sake. Where that cannot be, a warning
        says so.
        """
        position = self._course.position_of(saved)
        place = state.place_of_run(saved)
        if not place:
            self._sessions.warn_of_earlier_state()
        self._sessions.decode_at(place)
        self.prefetch = self._sessions.current.prefetch
        self._course.begin_anew(position)

    def replace(self, **changes: Any) -> Loader:
        """Return a new loader with some arguments changed, at the beginning of epoch 0.

        Warnings about the ops of this one are not logged again.
        """
        unknown = sorted(changes.keys() - self._arguments.keys())
        if unknown:
            raise SpecError(
                f"replace got {unknown}",
                cause="Loader has no such argument",
                remedy=f"use {sorted(self._arguments)}",
            )
        # A context variable, and no attribute: the warnings come inside of ``__init__``, and other
        # threads make loaders, too.
        token = _advice.set(self._advice)
        try:
            return Loader(**{**self._arguments, **changes})
        finally:
            _advice.reset(token)

    def to_source(self, epoch: int | None = None) -> Source:
        """Return the content of batches as a source: the records of this loader's source, in its
        order, behind all ops.

        It has the fields that ``output=`` names. Records are made when they are read, and not kept:
        ``gl.convert`` writes them to files, ``cache`` of the source keeps them. A damaged record is
        an error with any ``on_error``.

        Args:
            epoch: of the random draws of the records; needed where an op is random.

        Raises:
            SpecError: an op is random and no epoch is named; the loader is one of several shards.
            DeviceError: the ops run on a GPU or in DALI here.
        """
        setup, choice = self._setup, self._sessions.current.choice
        return epoch_records(setup, choice, self.ops, self.spec_out.names, epoch)

    def cache(
        self,
        *,
        memory: int | str | None = None,
        path: str | os.PathLike[str] | None = None,
        device: bool = False,
    ) -> Loader:
        """Return a loader that has done the work before the first random op: decoding and resizing,
        say.

            loader.cache(memory="2GB")          kept in memory, if it takes no more than that
            loader.cache(path="cache/train")    in files below a folder, which are found there the
                                                next time
            loader.cache(device=True)           in the memory of the GPU, as far as it fits

        All records go through these ops now, with progress, and are kept as ``source.cache`` keeps
        them. The ops from the first random one on are run and drawn anew in each epoch. The batches
        are those of this loader, bit for bit, and the states of both can be loaded into either. The
        loader that is returned is at the beginning of epoch 0; its ``source`` holds the values
        kept, its ``ops`` are the remaining ones.

        Files of before are refused where the data, the ops, or the code of a function in
        ``gl.ops.Python`` are others; functions that this one calls are not compared.

        With ``device=True`` no record is read now: the first epoch reads, decodes and uploads as
        without it, and the uploaded records stay on the GPU. Then a batch of such records costs the
        host some hundred bytes of addresses and draws. Records that do not fit are read and
        uploaded in each epoch; ``describe()`` says how many. Where ops before the first random one
        run on the GPU, as crops and ``Normalize`` do, their input is kept, and they run in the
        kernel of each batch. ``close`` frees the memory.

        Args:
            memory: the most bytes that the values may take, or a text such as ``"2GB"``; with
                ``device=True`` of the GPU's memory, by default half of the free memory.
            path: a folder for this loader's source and ops alone.
            device: True for the memory of the GPU that this loader is on.

        Raises:
            SpecError: neither or both are given; the source is a mix; with ``device=True``: images
                have sizes of their own before the first random op.
            TooLargeError: the values take more bytes; says how many. The GPU has not so many that
                are free.
            DeviceError: the ops run on a GPU or in DALI here, and pixels may differ.
            FileError: the folder holds a cache of other data or ops, or cannot be written.
            RecordError: a record is damaged, with any ``on_error``.
        """
        ops = list(
            takewhile(lambda op: not is_random(op) and not op.traits.execution.needs_dali, self.ops)
        )
        setup, choice = self._setup, self._sessions.current.choice
        if check_flag("device", device):
            if self.device == "cpu":
                raise no_card(setup.device_reason)
            ops = ops[: num_done_once(setup, choice, self.ops, len(ops))]
        source = self.source
        if ops:
            graph = compile_ops(source.spec, self.ops, before=ops_of(source))
            names = {name for on in graph.targets for name in on}.union(setup.names)
            fields = compile_ops(source.spec, ops, before=ops_of(source)).spec_out
            cache_names = [name for name in fields.names if name in names]
            source = records_behind(setup, choice, self.ops, ops, cache_names, on_gpu=device)
        log.info(
            "%d of %d ops are done once: %s",
            len(ops),
            len(self.ops),
            ", ".join(map(str, ops)) or "none",
        )
        source = source.cache(memory=memory, path=path, device=device)
        return self.replace(source=source, ops=self.ops[len(ops) :])

    def stats(self) -> Stats:
        """Return counters and the time of each stage; ``print(loader.stats())`` explains them, and
        says what to change.

        ``loader.stats() - before`` are those since ``before = loader.stats()``, and
        ``.bottleneck()`` is the sentence.
        """
        return self._setup.counters.stats(self._sessions.facts, _stats_page)

    def bad_records(self) -> list[BadRecord]:
        """Return the damaged records that this loader met, each once: number, place, file, byte,
        cause, epoch and step.

        They are kept where ``on_error`` is ``"replace"`` or ``"skip"``; steps that are made ahead
        count, too.
        """
        damage = self._setup.damage
        if damage is None:
            return []
        return damage.bad_records()

    def describe(self) -> str:
        """Return each choice and its reason, a line each."""
        return "\n".join(f"{name + ':':<10} {line}" for name, line in self._choices().items())

    def _choices(self) -> dict[str, str]:
        """Return each choice and its reason, by name."""
        return {
            "source": f"{len(self.source)} records; {self.source.spec}",
            "batch": f"{self.batch_size} records, {len(self)} steps; {self.spec_out}",
            **self._sessions.describe(),
        }

    def close(self) -> None:
        """Stop the threads of all iterators and free the executors; the source stays open. Twice is
        allowed."""
        self._sessions.close()
        # Behind the threads, for their last events belong to it.
        if (trace := self._setup.counters.trace) is not None:
            trace.write()

    def __repr__(self) -> str:
        return outline(self._title(), map(str, self.spec_out), self._place_text(), separator=";")

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows: the fields of batches, the ops and the choices.
        No record is read."""
        tables = signalsafe.import_package("gpuload.display.tables")
        notes = {"position": self._place_text(), **self._choices()}
        notes |= {
            "batch": "",
            "values": "none was read for this table; loader.peek() makes the next batch",
        }
        html: str = tables.spec_table(self._title(), self.spec_out, notes, map(str, self.ops))
        return html

    def _title(self) -> str:
        """Return the number of records, and of those in a batch, as a text."""
        num_records = len(self.source)
        sharded = ""
        if self.num_shards > 1:
            sharded = f", shard {self._setup.plan.shard_id} of {self.num_shards}"
        return f"gl.Loader: {num_records} record{'s' * (num_records != 1)} by {self.batch_size}{sharded}"

    def _place_text(self) -> str:
        """Return the position, and whether the loader is closed, as a text."""
        closed = ""
        if self._session.closed:
            closed = ", closed"
        return f"epoch {self.position.epoch}, step {self.position.step} of {len(self)}{closed}"

    def __str__(self) -> str:
        """Return a text that names ``dataset``: Keras shows it in its error where ``model.fit``
        gets a loader."""
        return f"{self!r}: read it by `for batch in loader`; model.fit takes gpuload.bridges.tensorflow.dataset(loader)"

    if not TYPE_CHECKING:  # type checkers know the attributes from the class

        def __getattr__(self, name: str) -> Any:
            synonyms.answer("loader", name, synonyms.LOADER)
            return object.__getattribute__(
                self, name
            )  # raises Python's own error, or that of a property

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments and the position: the loader is made anew from them."""
        return _again, (self._arguments, self.position, self._sessions.place_of_run)


def _stats_page(stats: Stats) -> str:
    """Return stats as HTML; the tables are imported by the first notebook that shows them."""
    html: str = signalsafe.import_package("gpuload.display.tables").stats_table(stats)
    return html


def _again(arguments: dict[str, Any], position: Position, place: str) -> Loader:
    """Return the loader that was pickled; ``place`` is where a state has it decode images, "" if
    none does."""
    loader = Loader(**arguments)
    loader._sessions.decode_at(place)
    loader._course.begin_anew(position)
    return loader
