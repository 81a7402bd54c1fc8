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

import itertools
import logging
import operator
import os
import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property, partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuload import core, lazy, rng, signalsafe, state, synonyms, threads
from gpuload import device as devices
from gpuload.batch import Batch, Output, names_in
from gpuload.errors import DeviceError, GpuloadError, RecordIndexError, SpecError
from gpuload.executors import choose
from gpuload.executors.base import BatchExecutor, RowExecutor
from gpuload.executors.decoding import DEVICE, HOST
from gpuload.graph.advice import advice
from gpuload.graph.graph import Graph, check_mixes, compile_ops
from gpuload.ops.base import Op, labels, streams
from gpuload.order import MAX_LENGTH, Blocks, Buckets, Plan, Position, check_count, check_flag
from gpuload.pipeline.card import card_line, check_card, no_card
from gpuload.pipeline.damage import ON_ERROR, BadRecord, Damage
from gpuload.pipeline.epoch import Cursor, Epoch, Moves, Place, to_batch
from gpuload.pipeline.oprecords import OpsSource
from gpuload.pipeline.recipe import make_recipe
from gpuload.pipeline.session import Session
from gpuload.pipeline.tray import raisable
from gpuload.sources.base import Source, before_ops, ops_of
from gpuload.sources.lengths import lengths_of
from gpuload.sources.reading import record_origin
from gpuload.spec import Spec, is_whole, outline
from gpuload.stats import Counters, Facts, Stats, Trace, mark_ranges
from gpuload.storage.direct import DirectReader
from gpuload.storage.stores import sends_each_read

if TYPE_CHECKING:
    from types import TracebackType

AHEAD_BYTES = (
    1 << 30
)  # of device memory, that batches which are made ahead may take where `prefetch` was not given
SAMPLED_RECORDS = 16  # whose files are looked at for the sentence about slow loaders
MANY_RECORDS = 16  # decoded for one that is read, from which on a shuffle is worth a warning
NVTX = "GPULOAD_NVTX"
MOST_THREADS = (
    4096  # more than any machine has cores; a mistyped number should not start a million threads
)
audit_setting = lazy.function("gpuload.pipeline.audit", "setting_of")
make_auditor = lazy.function("gpuload.pipeline.audit", "auditor_of")
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
            ``describe()`` says what was chosen. A number that is passed stays.
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
        trace: a file that tells what each thread did when, ``"trace.json"`` for
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
        arguments = {name: value for name, value in locals().items() if name != "self"}
        self._arguments, self.source, self.output = arguments, source, output
        _check(source, device=device, executor=executor, decode=decode)
        if num_threads is None:
            num_threads = None
        else:
            num_threads = check_count("num_threads", num_threads, maximum=MOST_THREADS)
        if prefetch is None:
            self._asked_prefetch = None
        else:
            self._asked_prefetch = check_count("prefetch", prefetch, maximum=MAX_LENGTH)
        self._tunes_threads = num_threads is None
        self._plan = Plan(
            len(source),
            batch_size,
            _with_lengths(shuffle, source),
            seed,
            shard_id,
            num_shards,
            last_batch,
        )
        _check_steps(self._plan)
        self.on_error = on_error
        if audit is None:
            self._audit = None
        else:
            self._audit = audit_setting(audit)
        self._damage = _damage(source, self._plan, on_error, max_bad, quarantine)
        self.num_threads = num_threads or threads.num_cores()
        self.batch_size, self.num_shards = self._plan.batch_size, self._plan.num_shards
        self.last_batch = last_batch
        whole = compile_ops(source.spec, ops, before=ops_of(source))
        if whole.ops:
            whole = with_checks(whole)
        names = names_in(output, whole.spec_out)
        self._names = names
        self.spec_out: Spec = whole.spec_out.only(names)
        self._whole_graph = whole.only(names)
        check_mixes(self._whole_graph, names)
        self.device, self._device_reason = devices.choose(device)
        self._request = self._choice_request(executor, decode)
        choice = choose.choose(self._whole_graph, self.device, self._request)
        all_ops = (*ops_of(source), *ops)
        self._labels = None
        if check_flag("drawn", drawn):
            self._labels = dict(zip(streams(all_ops), labels(all_ops), strict=True))
        self._counters = Counters(None if trace is None else Trace(trace))
        self._lines: dict[str, str] = {}
        self._reader = self._direct_reader() if check_flag("direct", direct) else None
        _mark_ranges()
        self._session = self._make_session(choice)
        self.ops, self.seed, self.shard_id = tuple(ops), self._plan.seed, self._plan.shard_id
        self._place = Place(Position())
        self._place_of_run = (
            ""  # where images are decoded because the run of a state has them decoded there
        )
        self._ahead: weakref.ref[Epoch] | None = (
            None  # the latest iterator that reads ahead of the training
        )
        self._past = _Past()
        self._warned = set[str]()
        # Weak: each epoch may be fed to something new, and whoever takes the batches keeps the
        # session.
        self._feeds = weakref.WeakSet[Session]()
        # Of iterators that began before a state had images decoded elsewhere.
        self._earlier_sessions = weakref.WeakSet[Session]()
        costs = (_requests_of(source, self._plan), _blocks_of(source, self._plan))
        lines = tuple(filter(None, (_no_records_of(source), *advice(self._graph, names), *costs)))
        earlier = _advice.get()
        for line in lines:
            if line not in earlier:
                log.warning("%s", line)
        self._advice = earlier.union(lines)
        if "auto" in (device, executor):
            log.info("%s", self.describe())
        core.warn_if_missing()

    def _make_session(self, choice: choose.Choice) -> Session:
        """Return the session of a choice, with the executor of the place that its recipe is for;
        the loader has it now.

        Where it raises an error, nothing has changed.
        """
        graph, doctor_line = choose.heed_failures(self._whole_graph, choice, self.device)
        on_host, behind = choose.split_ops(graph, choice, self.device)
        ops_of_executor = graph
        if not choice.on_rows(self.device):
            ops_of_executor = choose.part_behind(graph, on_host)
        make_executor = partial(self._make_executor, choice.executor, ops_of_executor)
        executor = make_executor()
        if executor.kind == "rows":
            rows, batches = (executor, None)
        else:
            rows, batches = (None, executor)
        lines = executor.describe()
        if rows is None:
            decoding = choose.decoding_line(graph, on_host, choice, self.device, self._names)
            lines = {"executor": lines.pop("executor"), **decoding, **lines}
        if rows is None and on_host:
            rows = choose.on_rows(graph.part(on_host))
            lines["on host"] = rows.describe()["stages"]
        requested = self._asked_prefetch
        recipe = make_recipe(
            self.source,
            graph,
            self._plan,
            names=self._names,
            output=self.output,
            device=self.device,
            on_host=on_host,
            executor=rows if on_host else None,
            num_threads=self.num_threads,
            prefetch=requested,
            any_length=executor.kind == "batches" and executor.any_length,
            mends=self._damage is not None,
            labels=self._labels,
            reader=self._reader,
        )
        check_card(recipe, self._device_reason)
        ahead_bytes = recipe.batch_bytes * recipe.num_joined
        prefetch = max(
            1,
            requested // recipe.num_joined
            if requested
            else min(2, AHEAD_BYTES // max(ahead_bytes, 1)),
        )
        auditor = None
        if self._audit is not None or (
            self.device != "cpu" and any(op.codec for op in recipe.rest.ops)
        ):
            words: dict[str, Any] = {"executor": choice.executor, "num_threads": self.num_threads}
            auditor = make_auditor(
                recipe, self._names, self._audit, counters=self._counters, **words
            )
        session = Session(
            recipe,
            batches if behind else None,
            make_executor,
            num_threads=self.num_threads,
            prefetch=prefetch,
            counters=self._counters,
            damage=self._damage,
            tunes_threads=self._tunes_threads,
            tunes_ahead=self._asked_prefetch is None,
            auditor=auditor,
        )
        self._choice, self._graph, self._doctor_line, self._executor_lines = (
            choice,
            graph,
            doctor_line,
            lines,
        )
        self._lines.pop("audit", None)
        if auditor is not None:
            self._lines["audit"] = auditor.describe()
        self.prefetch = (recipe.num_ahead if recipe.on_rows else prefetch) * recipe.num_joined
        return session

    def _choice_request(self, executor: str, decode: str) -> choose.ExecutorRequest:
        """Return what is asked for; of the machine and the files only what the choice may depend
        on."""
        decodes = any(op.codec for op in self._whole_graph.ops)
        if self.device == "cpu" or not decodes or (executor, decode) != ("auto", "auto"):
            return choose.ExecutorRequest(executor, decode)
        num_cores = threads.num_cores_for_gpu(devices.num_gpus())
        return choose.ExecutorRequest(
            executor, decode, num_cores, _endings(self.source), self._names
        )

    def _direct_reader(self) -> DirectReader:
        """Return what reads rows straight to the GPU; say so where they go by way of the host."""
        if self.device == "cpu":
            cause = f"batches are made on the CPU ({self._device_reason})"
            raise SpecError(
                "direct=True", cause=cause, remedy='use device="gpu", or leave direct=True out'
            )
        if self._damage is not None:
            cause = "damaged records are looked for on the host"
            raise SpecError(
                "direct=True", cause=cause, remedy='use on_error="raise", or leave direct=True out'
            )
        reader = DirectReader(self.num_threads)
        path = reader.path
        self._lines["direct"] = path.line
        if not path.is_direct:
            log.warning("direct=True, but rows come by %s", path.line)
        return reader

    def _make_executor(self, name: str, graph: Graph) -> RowExecutor | BatchExecutor:
        def make() -> RowExecutor | BatchExecutor:
            most_rows = self._plan.most_rows(self._whole_graph.group)
            return choose.make(
                name, graph, device=self.device, batch_size=most_rows, num_threads=self.num_threads
            )

        if name == "dali":  # no signal handler breaks it off
            return signalsafe.call(make)
        return make()

    def __len__(self) -> int:
        """The number of steps of an epoch; the same on every shard."""
        return self._plan.end()

    @property
    def position(self) -> Position:
        """Where the loader is: epoch and step of the next batch; the end of an epoch is the
        beginning of the next."""
        return self._plan.normalize(self._place.cursor.state_position)

    def __iter__(self) -> Epoch:
        """Go on from the position to the end of its epoch; the position moves with each batch."""
        self._warn_of_peek()
        return Epoch(self._session, self.output, self._begin(), self._place)

    def _begin(self) -> Cursor:
        """Return the cursor of an iterator that begins now."""
        return self._place.begin(self._plan)

    def epoch(self, number: int) -> Epoch:
        """Return an iterator over an epoch from its beginning; the loader's position stays where it
        is."""
        return Epoch(
            self._session, self.output, Cursor(Position(rng.checked_word(number, "epoch")))
        )

    def ahead(self, feed: Session | None = None, *, warns: bool = False) -> Epoch:
        """Return an iterator from the position on, for a reader that runs ahead of the training, as
        ``tf.data`` may.

        The position stays where it is until the last batch of the epoch is delivered, and then
        moves to the next epoch. So an iterator that only looks at a batch costs nothing; but the
        state does not follow it, see ``state_dict``.

        Args:
            feed: the session of ``feed``, for batches that are not run here; ``batch.output`` is
                then a dict.
            warns: log once that batches come again which an iterator had that was left in
                mid-epoch.
        """
        self._past.endless = False
        return self._read_ahead(feed, "end", warns=warns)

    def stream(
        self, feed: Session | None = None, *, num_between: int | None = 0, endless: bool = False
    ) -> Epoch:
        """Return an iterator from the position on, for a reader that takes a batch only to train on
        it.

        The position moves with each batch from the second on, so that the next iterator goes on
        behind them. An iterator that takes a single batch only looks: the position stays, unless
        that batch is the whole epoch.

        Args:
            feed: as of ``ahead``.
            num_between: so many batches are read ahead; the position stays so many behind. When the
                iterator ends, all of them count as taken. None: ``has_taken`` of the iterator is
                called with how many were taken.
            endless: epochs follow each other in one loop, in which only the very first batch may be
                one to look at. That the iterator goes on in mid-epoch is not logged.
        """
        follows = endless and self._past.has_ended_endless(self._place)
        self._past.endless = endless
        return self._read_ahead(
            feed, "first" if follows else "second", num_between, warns=not endless
        )

    def _read_ahead(
        self, feed: Session | None, moves: Moves, num_between: int | None = 0, *, warns: bool
    ) -> Epoch:
        """Return an iterator for a framework that reads ahead; see `Epoch` for ``moves`` and
        ``num_between``."""
        self._warn_of_peek()
        cursor = self._begin()
        if warns:
            self._warn_of_past(cursor.start, goes_on=moves == "second")
        output = self.output if feed is None else None
        batches = Epoch(feed or self._session, output, cursor, self._place, moves, num_between)
        self._ahead = weakref.ref(batches)
        self._past.add(batches, moves)
        return batches

    def feed(self, make: Callable[[], BatchExecutor], names: tuple[str, ...]) -> Session:
        """Return a session that makes batches ready on the host for ``_feed_graph``, run elsewhere;
        see ``ahead``.

        Args:
            make: makes the object in the place of an executor, which returns the fields of these
                batches.
            names: these fields.

        The caller keeps it: a loader may be fed to something new in each epoch.

        Raises:
            SpecError: rows of this loader go straight to the GPU.
        """
        if self._reader is not None:
            raise SpecError(
                "direct=True with batches that are made ready on the host",
                cause="rows go straight to the GPU",
                remedy="leave direct=True out",
            )
        if self._session.card_caches:
            raise SpecError(
                "a source.cache(device=True) with batches that are made ready on the host",
                cause="its records lie in the memory of the GPU",
                remedy='use source.cache(memory="8GB"), or leave the cache out',
            )
        if self._audit is not None and self._audit.share:
            raise SpecError(
                f"audit={self._arguments['audit']!r} with batches that are made ready on the host",
                cause="the ops run elsewhere, in a pipeline of DALI within tf.data, and their results do not come back",
                remedy='write dataset(loader, via="generator"), which takes the batches from here, or leave audit= out',
            )
        on_host, rest = self._feed_places(), self._feed_graph
        recipe = make_recipe(
            self.source,
            self._graph,
            self._plan,
            names=self.spec_out.names,
            output=None,
            device="cpu",
            on_host=on_host,
            executor=choose.on_rows(self._graph.part(on_host)) if on_host else None,
            num_threads=self.num_threads,
            prefetch=self._asked_prefetch,
            mends=self._damage is not None,
        )
        session = Session(
            recipe,
            make() if rest.ops else None,
            make,
            num_threads=self.num_threads,
            prefetch=self._asked_prefetch or 2,
            counters=self._session.counters,
            names=names,
            damage=self._damage,
            tunes_threads=self._tunes_threads,
            tunes_ahead=self._asked_prefetch is None,
        )
        self._feeds.add(session)
        return session

    @property
    def _feed_graph(self) -> Graph:
        """The ops that ``feed`` leaves to be run elsewhere, on the device: those behind the ops on
        the host."""
        return choose.part_behind(self._graph, self._feed_places())

    def _feed_places(self) -> tuple[int, ...]:
        """Return the places of the ops that run on the host before a feed; on a CPU only as
        ``decode="host"`` asks."""
        if self.device == "cpu" and self._request.decode != HOST:
            return ()
        choice = self._choice._replace(executor="dali")  # none of the others runs in the workers
        return choose.split_ops(self._graph, choice, self.device)[0]

    def go_to(self, position: Position) -> None:
        """Go on from a position that ``position`` or ``after`` gave; iterators that are there stay
        where they are."""
        self._place.go_to(_checked_position(position))

    def follow(self, batches: Epoch) -> None:
        """Take an iterator of a loader with the same steps for the one that reads ahead of this
        loader; it moves it."""
        self._ahead = weakref.ref(batches.take_along(self._place))

    def num_ready(self) -> int:
        """Return how many finished steps wait to be taken."""
        return sum(session.num_ready() for session in (self._session, *self._feeds))

    @property
    def graph(self) -> Graph:
        """The ops with the fields that they act on, as far as the output needs them."""
        return self._graph

    @property
    def asked_executor(self) -> str:
        """The argument ``executor=``."""
        return str(self._arguments["executor"])

    @property
    def most_records(self) -> int:
        """The most records that a batch of this shard holds."""
        return self._plan.most_records

    def tell(self, name: str, line: str) -> None:
        """Add a line to ``describe()``: a bridge explains its choices there."""
        self._lines[name] = line

    def manual_epoch(self) -> Epoch:
        """Return an iterator from the position on, for a reader that runs ahead and knows which
        batches were trained.

        The position changes only by ``move`` of the iterator, so that the state is always that of
        the training.
        """
        return Epoch(self._session, self.output, self._begin(), self._place, "manual")

    @cached_property
    def _identity(self) -> dict[str, Any]:
        """The fields that a state is compared by; computed at the first use, because the
        fingerprint reads data."""
        source_ops = ops_of(self.source)
        raw, ops = before_ops(self.source), (*source_ops, *self.ops)
        if any(field.is_marked for field in raw.spec):
            marks = compile_ops(raw.spec, ops).marks
        else:
            marks = ""
        changed = [len(source_ops) + place for place in self._label_mixers()]
        return state.identity(raw.fingerprint(), ops, self._plan, marks, changed)

    def _label_mixers(self) -> list[int]:
        """Return the places of the ops that mix labels, and did not mix them in earlier
        versions."""
        if not any(op.mixes for op in self.ops):
            return []
        graph = compile_ops(self.source.spec, self.ops, before=ops_of(self.source))
        return graph.label_mixers(self.ops, before=ops_of(self.source))

    def batch_at(self, step: int, epoch: int = 0) -> Batch:
        """Return the batch of a step of an epoch (counted from the epoch's beginning), made anew.

        No iterator moves, and the state stays as it is.

        Raises:
            RecordIndexError: the epoch has no such step.
        """
        return self.batch_of(self._plan.at(Position(rng.checked_word(epoch, "epoch")), step))

    def batch_of(self, position: Position) -> Batch:
        """Return the batch of a position that ``position`` or ``after`` gave, made anew as by
        ``batch_at``."""
        try:
            return to_batch(
                self._session,
                self._session.at(_checked_position(position)),
                position.step,
                self.output,
            )
        except Exception as error:
            raise raisable(error)  # noqa: B904  it is the same error, or has it as its cause

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
        return self._plan.steps_of(numbers, rng.checked_word(epoch, "epoch"))

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
        return self.batch_of(self.position)

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
            return self.state_at(self._plan.at(self._base(rng.checked_word(epoch, "epoch")), step))
        if not is_whole(step) or step:
            raise SpecError(
                f"state_dict(step={step!r})",
                cause="a step is one of an epoch, and none is named; without both, the state is that of the loader",
                remedy="write loader.state_dict() or loader.state_dict(epoch=0, step=3)",
            )
        self._warn_of_read_ahead()
        return self.state_at(self.position)

    def state_at(self, position: Position) -> dict[str, Any]:
        """Return the state of a position that ``position`` or ``after`` gave."""
        return state.save(
            self._plan, _checked_position(position), self._identity, self._place_for_states()
        )

    def _place_for_states(self) -> str:
        """Return where images are decoded, as states say it; "" where none are."""
        if not self._choice.decode:  # a cache has the results of ops, which ran on the host
            if any(op.codec for op in ops_of(self.source)):
                return HOST
            return ""
        if self.device == "cpu":
            return HOST
        return self._choice.decode

    def _base(self, epoch: int) -> Position:
        """Return where an epoch's steps are counted from: a run may have gone on with another batch
        size."""
        start = self._place.cursor.start
        is_other = start.offset != min(len(self.source), start.step * self._plan.global_batch)
        if is_other and start.epoch == epoch:
            return start
        return Position(epoch)

    def delivery_position(self) -> Position:
        """Return up to where batches were delivered, also to an iterator that reads ahead
        (``ahead``)."""
        if self._ahead is None:
            ahead = None
        else:
            ahead = self._ahead()
        if ahead is None:
            return self.position
        return self._plan.normalize(ahead.position)

    def after(self, position: Position, num_steps: int) -> Position:
        """Return where a run is that has gone so many steps from a position on, over any number of
        epochs.

        Args:
            position: that ``position`` or ``after`` gave.
            num_steps: at least 0.

        Raises:
            SpecError: this is no position, or no number of steps.
        """
        if not is_whole(num_steps):
            raise SpecError(
                f"num_steps = {num_steps!r}",
                cause="it is how many steps were done, at least 0",
                remedy="pass 0 or more",
            )
        left, num_steps = (
            self._plan.end(_checked_position(position)) - position.step,
            int(num_steps),
        )
        if num_steps < left:
            return self._plan.at(position, position.step + num_steps)
        epochs, step = divmod(num_steps - left, max(len(self), 1))
        return self._plan.at(Position(position.epoch + 1 + epochs), step)

    def _warn_of_read_ahead(self) -> None:
        last = self.delivery_position()
        if (
            last == self.position
            or last.epoch != self.position.epoch
            or self._past.has_moved(self._place)
        ):
            return
        log.warning(
            "the state is that of epoch %d, step %d, where its iterator began; cause: a dataset reads ahead of the "
            "training, so that the loader cannot know which of the next %d steps were trained; remedy: in Keras save "
            "states by model.fit(callbacks=[gltf.checkpoint(loader, path)]); in PyTorch by the state_dict() of "
            "gltorch.dataset(loader) itself; in a loop of your own by loader.state_dict(epoch, step) of the last step",
            self.position.epoch,
            self.position.step,
            last.step - self.position.step,
        )

    def _warn_of_peek(self) -> None:
        """Say once that an epoch begins with its second batch, as a loop has taken the first one
        alone."""
        cursor = self._place.cursor
        if (cursor.start.step, cursor.state_position.step) == (0, 1) and len(self) > 1:
            self._warn_once(
                "peek",
                "epoch %d goes on at step 1 of %d: one batch was taken from the loader before; remedy: if that was to "
                "look at it, as next(iter(loader)) does, write loader.peek(), which moves nothing",
                cursor.start.epoch,
                len(self),
            )

    def _warn_of_past(self, position: Position, *, goes_on: bool) -> None:
        """Say once where a dataset goes on in mid-epoch, or where batches come again that were
        perhaps trained on."""
        past, text = self._past, "an iterator of the dataset begins at epoch %d, step %d of %d, "
        place = (position.epoch, position.step, len(self))
        if goes_on and position.step and past.has_moved(self._place):
            self._warn_once(
                "goes on",
                text
                + "behind the batches that the one before was asked for, as steps_per_epoch= and take() need it; "
                "remedy: for the same batches each time, as validation_steps= has them, dataset(loader, restart=True)",
                *place,
            )
        elif past.num_repeated(position) > 1:
            self._warn_once(
                "again",
                text
                + "where the one before it began, that took %d batches and was left; cause: a stage between "
                "(prefetch, map, a strategy) may read ahead, so that it is unknown which were trained; remedy: pass "
                "dataset(loader) itself, or with take() or repeat() alone, for the loader reads ahead; or count the "
                "steps by callbacks=[gltf.checkpoint(loader, path)]; dataset(loader, restart=True) if it is meant",
                *place,
                past.num_repeated(position),
            )
        elif past.num_peeks(position) > 1:
            self._warn_once(
                "peeks",
                text
                + "for the third time: an iterator that takes a single batch counts as one that looks, and that "
                "batch comes again; remedy: train with more than one step for each call of fit or take, or look with "
                "loader.peek()",
                *place,
            )

    def _warn_once(self, key: str, text: str, *values: object) -> None:
        if key not in self._warned:
            self._warned.add(key)
            log.warning(text, *values)

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
        position = state.load(saved, self._plan, self._identity)
        place = state.place_of_run(saved)
        if not place:
            self._warn_of_earlier_state()
        self._decode_at(place)
        # A cursor with an origin of its own, by which iterators that began before notice that a
        # state was loaded.
        self._place.cursor = Cursor(position)

    def _warn_of_earlier_state(self) -> None:
        """Log that a state does not say where its run had images decoded, if that may not be where
        they are here."""
        if self.device == "cpu" or self._choice.decode != HOST:
            return
        _, behind = choose.split_ops(self._graph, self._choice._replace(decode=DEVICE), self.device)
        if any(self._graph.ops[place].codec for place in behind):
            log.warning(
                "the state does not say where its run had images decoded, as states of earlier versions; here they are "
                "decoded on the host; remedy: write decode='device' if that run was on a GPU, where DALI decoded all "
                "images, with pixels that differ a little; or go on with these"
            )

    def _decode_at(self, place: str) -> None:
        """Have images decoded where the run of a state has them decoded; where that cannot be, say
        so.

        Args:
            place: ``"host"`` or ``"device"``; "" for a state that does not say.
        """
        present = self._place_for_states()
        if not place or not present or place == present:
            return
        problem = self._change_place(place)
        if problem is None:
            self._place_of_run = place
            log.info("images are decoded on the %s from here on, as in the run of the state", place)
            return
        log.warning(
            "the images of the state's run were decoded on the %s, and here they are decoded on the %s, where pixels "
            "differ a little; cause: %s; remedy: %s, or go on with these",
            place,
            present,
            *problem,
        )

    def _change_place(self, place: str) -> tuple[str, str] | None:
        """Have images decoded on the host or on the device from now on; return why they cannot be,
        and the remedy."""
        if not self._choice.decode:
            return (
                "the source has kept images that were decoded",
                "train from a loader without cache(...)",
            )
        if self.device == "cpu":
            return (
                "a CPU is the host",
                "write device='gpu' and decode='device', and leave executor= out",
            )
        if (self._request.executor, self._request.decode) != ("auto", "auto"):
            return (
                "executor= or decode= says so",
                f"write decode={place!r}, and leave executor= out",
            )
        if self._feeds:
            return (
                "a dataset of this loader is there, whose images are decoded so",
                "load the state before it is made",
            )
        try:
            choice = choose.choose(
                self._whole_graph, self.device, self._request._replace(decode=place)
            )
            reason = "as in the run of the state that was loaded"
            session = self._make_session(choice._replace(decode_reason=reason))
        except GpuloadError as error:
            return f"{error.what}: {error.cause}", error.remedy
        earlier, self._session = self._session, session
        if earlier.closed:
            session.close()
        else:
            earlier.replace(session)
            self._earlier_sessions.add(earlier)
        return None

    def replace(self, **changes: Any) -> Loader:
        """Return a new loader with some arguments changed, at the beginning of epoch 0.

        What was logged about the ops of this one is not logged again.
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
            epoch: whose random draws the records have; needed where an op is random.

        Raises:
            SpecError: an op is random and no epoch is named; the loader is one of several shards.
            DeviceError: the ops run on a GPU or in DALI here.
        """
        random_op = next((op for op in self.ops if op.is_random), None)
        if epoch is None and random_op is not None:
            raise SpecError(
                f"the records behind {random_op}",
                cause="it is random, so that each epoch has other ones",
                remedy="name the epoch: loader.to_source(epoch=0), gl.convert(loader, out, epoch=0); or leave random "
                "ops out, loader.replace(ops=[...]), and put them behind the new source, to be drawn in each epoch",
            )
        number = rng.checked_word(0 if epoch is None else epoch, "epoch")
        if number and self.source.endless:
            raise SpecError(
                f"epoch {number} of {self.source._line()}",
                cause="a mix or a sample is written as its first epoch",
                remedy="pass epoch=0, or convert its parts and mix these",
            )
        if self.num_shards > 1:
            raise SpecError(
                f"the records of shard {self.shard_id} of {self.num_shards}",
                cause="a shard has other records in each epoch",
                remedy="take all: loader.replace(num_shards=1, shard_id=0)",
            )
        return self._behind(self.ops, self.spec_out.names, number)

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
        without it, and what was uploaded stays on the GPU. Then a batch of such records costs the
        host some hundred bytes of addresses and draws. Records that do not fit are read and
        uploaded in each epoch; ``describe()`` says how many. Where ops before the first random one
        run on the GPU, as crops and ``Normalize`` do, their input is kept, and they run in the
        kernel of each batch. ``close`` frees the memory.

        Args:
            memory: the most bytes that the values may take, or a text such as ``"2GB"``; with
                ``device=True`` of the GPU's memory, by default half of what is free.
            path: a folder for this loader's source and ops alone.
            device: True for the memory of the GPU that this loader is on.

        Raises:
            SpecError: neither or both are given; the source is a mix; with ``device=True``: images
                have sizes of their own before the first random op.
            TooLargeError: the values take more bytes; says how many. The GPU has not so many that
                are free.
            DeviceError: the ops run on a GPU or in DALI here, whose pixels may differ.
            FileError: the folder holds a cache of other data or ops, or cannot be written.
            RecordError: a record is damaged, with any ``on_error``.
        """
        ops = list(itertools.takewhile(lambda op: not op.is_random and not op.needs_dali, self.ops))
        if check_flag("device", device):
            if self.device == "cpu":
                raise no_card(self._device_reason)
            ops = ops[: self._num_done_once(ops)]
        source = self.source
        if ops:
            graph = compile_ops(source.spec, self.ops, before=ops_of(source))
            names = {name for on in graph.targets for name in on}.union(self._names)
            fields = compile_ops(source.spec, ops, before=ops_of(source)).spec_out
            source = self._behind(
                ops, [name for name in fields.names if name in names], on_gpu=device
            )
        log.info(
            "%d of %d ops are done once: %s",
            len(ops),
            len(self.ops),
            ", ".join(map(str, ops)) or "none",
        )
        source = source.cache(memory=memory, path=path, device=device)
        return self.replace(source=source, ops=self.ops[len(ops) :])

    def _num_done_once(self, ops: Sequence[Op]) -> int:
        """Return how many ops, from the first on, are done once for a cache on the GPU: by the
        array executor, here.

        Those that this loader runs on the host; and where the array executor runs the others on the
        GPU, those that make the same numbers there, whole numbers say. Crops, flips and the like at
        their end are not among them: they cost nothing in the kernel of each batch.

        Raises:
            DeviceError: DALI decodes the images here.
        """
        graph, count = compile_ops(self.source.spec, self.ops, before=ops_of(self.source)), 0
        on_host, _ = choose.split_ops(graph, self._choice, self.device)
        num_before = 0
        for place in range(1, len(ops) + 1):
            num_ops = len(
                compile_ops(self.source.spec, ops[:place], before=ops_of(self.source)).ops
            )
            places, num_before = range(num_before, num_ops), num_ops
            is_walk = all(graph.is_walk(n) for n in places)
            if set(places) <= set(on_host):
                count = place
                continue
            if codec_op := next((graph.ops[n] for n in places if graph.ops[n].codec), None):
                raise DeviceError(
                    f"cache(device=True) of what DALI makes of {codec_op}",
                    cause="the images that stay on the GPU are decoded on the host, and their pixels may differ",
                    remedy='have the host do it: loader.replace(executor="array", decode="auto").cache(device=True)',
                )
            if self._choice.executor != "array" or not all(graph.is_exact(n) for n in places):
                break
            count = count if is_walk else place
        return count

    def _behind(
        self, ops: Sequence[Op], names: Sequence[str], epoch: int = 0, *, on_gpu: bool = False
    ) -> Source:
        """Return the results of some ops for all records, as a source; ``on_gpu``: the GPU makes
        the same numbers.

        Raises:
            DeviceError: another executor than that of the source would run them here.
        """
        graph = compile_ops(self.source.spec, self.ops, before=ops_of(self.source))
        on_host, _ = choose.split_ops(graph, self._choice, self.device)
        num_ops = len(compile_ops(self.source.spec, ops, before=ops_of(self.source)).ops)
        if not on_gpu and not set(range(num_ops)) <= set(on_host):
            raise DeviceError(
                f"the records behind ops by executor {self._choice.executor!r} on {self.device}",
                cause="they are made by the array executor on the CPU, and pixels may differ from those made here",
                remedy="have them made there: loader.replace(device='cpu', executor='array', decode='auto').cache(...) "
                "and, behind it, .replace(device='gpu', executor='auto') runs the rest; gl.convert takes the first, "
                "too",
            )
        return OpsSource(self.source, ops, names, self.seed, epoch)

    def stats(self) -> Stats:
        """Return counters and the time of each stage; ``print(loader.stats())`` explains them, and
        says what to change.

        ``loader.stats() - before`` are those since ``before = loader.stats()``, and
        ``.bottleneck()`` is the sentence.
        """
        return self._session.counters.stats(self._facts, _stats_page)

    def _facts(self) -> Facts:
        """Return what counters do not know; some files are looked at, as the system has their
        sizes."""
        source, shapes = (
            self.source,
            [field.fixed_shape for field in self.spec_out if field.has_rows],
        )
        if len(source):
            shares = source.resolve(np.zeros(1, np.int64))
        else:
            shares = []
        return Facts(
            num_threads=self._session.tuning.setting.num_threads,
            tunes_threads=self._tunes_threads,
            num_cores=threads.num_cores(),
            num_machine_cores=os.cpu_count() or 1,
            batch_size=self.batch_size,
            own_file_bytes=_own_file_bytes(source),
            reads_in_python=any(share.leaf.calls_python for share in shares),
            python_ops=tuple(type(op).__name__ for op in self._graph.ops if op.calls_python),
            output_pixels=max(
                (prod(shape) // min(shape) for shape in shapes if len(shape) == 3), default=0
            ),
            device=self.device,
            shuffled=self._plan.shuffle is True,
            tuning=self._session.tuning.finding,
        )

    def remedy(self, *, read_s: float, ops_s: float) -> str:
        """Return a change that makes the loader faster, as a sentence.

        Args:
            read_s: seconds of its threads on reading, as ``stats`` has them.
            ops_s: seconds on decoding and ops.
        """
        if read_s > ops_s:
            if any(share.leaf.calls_python for share in self.source.resolve(np.zeros(1, np.int64))):
                return (
                    "the function of gl.records reads, and Python runs one thread at a time: have it read all the "
                    "numbers that it gets in one call, or write the records once with gl.convert(source, ...)"
                )
            return (
                "faster storage, or shuffle=gl.Blocks(...), or source.cache(...) if the records fit"
            )
        in_python = [str(op) for op in self._graph.ops if op.needs_numpy]
        if in_python:
            return (
                f"{in_python[0]} is a Python function, and Python runs one thread at a time, however many cores there "
                "are: let it work on whole batches with NumPy (batch=True), take ops of gl.ops in its place, or do it "
                "once with loader.cache(...)"
            )
        return "more cores (num_threads=), or a GPU"

    def bad_records(self) -> list[BadRecord]:
        """Return the damaged records that this loader met, each once: number, place, file, byte,
        cause, epoch and step.

        They are kept where ``on_error`` is ``"replace"`` or ``"skip"``; steps that are made ahead
        count, too.
        """
        if self._damage is None:
            return []
        return self._damage.bad_records()

    def count(self, name: str, amount: float = 1) -> None:
        """Add to a counter of ``stats()``; bridges count their copies with it.

        Raises:
            SpecError: the name is no text, or the amount no number.
        """
        if not isinstance(name, str) or not isinstance(
            amount, (int, float, np.integer, np.floating)
        ):
            raise SpecError(
                f"count({name!r}, {amount!r})"[:200],
                cause="a counter has a name, and a number is added to it",
                remedy="write loader.count('tensors_copied', 1), say",
            )
        self._session.counters.add(**{name: amount})

    def describe(self) -> str:
        """Return each choice and its reason, a line each."""
        return "\n".join(f"{name + ':':<10} {line}" for name, line in self._choices().items())

    def _choices(self) -> dict[str, str]:
        """Return each choice and its reason, by name."""
        executor_lines, session = dict(self._executor_lines), self._session
        recipe, tuning = session.tuning.recipe, session.tuning
        num_ahead = session.num_ahead * recipe.num_joined
        if recipe.num_joined > 1:
            division = f"each works on up to {recipe.num_joined} short steps at a time"
        elif recipe.num_parts == 1:
            division = "each works on a step of its own"
        else:
            division = "all work on the same step"
        caches = session.card_caches
        if caches:
            card_lines = {"on the GPU": card_line(recipe, caches)}
        else:
            card_lines = {}
        return {
            "source": f"{len(self.source)} records; {self.source.spec}",
            "batch": f"{self.batch_size} records, {len(self)} steps; {self.spec_out}",
            "device": f"{self.device} ({self._device_reason})",
            "executor": f"{executor_lines.pop('executor')} ({self._choice.reason})",
            **{
                name: line
                for name, line in executor_lines.items()
                if name not in ("device", "threads")
            },
            **({"doctor": self._doctor_line} if self._doctor_line else {}),
            "core": core.how(),
            "threads": f"{tuning.setting.num_threads}; {division}",
            "prefetch": "1 step is made ahead"
            if num_ahead == 1
            else f"{num_ahead} steps are made ahead",
            **({"tuning": tuning.finding} if tuning.finding else {}),
            **({} if self._damage is None else {"damaged": self._damage.describe()}),
            "memory": f"{_megabytes(recipe.slot_bytes)} for a step, or for short steps made together; at most "
            f"{_megabytes(session.ring.idle_bytes)} are kept for the next ones",
            **card_lines,
            **self._lines,
        }

    def close(self) -> None:
        """Stop the threads of all iterators and free the executors; the source stays open. Twice is
        allowed."""
        for session in (self._session, *self._feeds, *self._earlier_sessions):
            session.close()
        # Behind the threads, whose last events belong to it.
        if (trace := self._counters.trace) is not None:
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
        """Return what is loaded, and how much of it in a batch."""
        num_records = len(self.source)
        if self.num_shards > 1:
            sharded = f", shard {self._plan.shard_id} of {self.num_shards}"
        else:
            sharded = ""
        return f"gl.Loader: {num_records} record{'s' * (num_records != 1)} by {self.batch_size}{sharded}"

    def _place_text(self) -> str:
        """Return the position, and whether the loader is closed, as a text."""
        if self._session.closed:
            closed = ", closed"
        else:
            closed = ""
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
        return _again, (self._arguments, self.position, self._place_of_run)


def _stats_page(stats: Stats) -> str:
    """Return stats as HTML; what that needs is imported by the first notebook that shows them."""
    html: str = signalsafe.import_package("gpuload.display.tables").stats_table(stats)
    return html


def _mark_ranges() -> None:
    """Have NVIDIA's profilers show the stages of all loaders, if ``GPULOAD_NVTX=1`` asks for it."""
    if os.environ.get(NVTX, "0") in ("", "0"):
        return
    ranges = devices.nvtx_ranges()
    if ranges is None:
        log.warning(
            "%s is set, but stages are not marked; cause: CuPy is not installed; remedy: install it",
            NVTX,
        )
    else:
        mark_ranges(*ranges)


def _own_file_bytes(source: Source) -> float:
    """Return the mean size of the files of some records; 0.0 if these have no file of their own
    each."""
    numbers = _sample(source)
    paths = [place[0] for number in numbers if (place := record_origin(source, number)) is not None]
    if len(set(paths)) < max(len(numbers), 2) or len(source.files.paths) < len(source):
        return 0.0
    with signalsafe.suppress(OSError):
        return sum(os.path.getsize(path) for path in paths) / len(paths)
    return 0.0


def _endings(source: Source) -> frozenset[str]:
    """Return how the names of the files of some records end, in lower case: ``".jpg"``."""
    paths = [
        place[0]
        for number in _sample(source)
        if (place := record_origin(source, number)) is not None
    ]
    return frozenset(os.path.splitext(path)[1].lower() for path in paths)


def _sample(source: Source) -> range:
    """Return the numbers of some records, from all of the source."""
    return range(0, len(source), max(1, len(source) // SAMPLED_RECORDS))


class _Past:
    """The history of the iterators that read ahead, as their cursors have it, which outlive them.

    Attributes:
        endless: the latest is an epoch of an endless loop.
    """

    def __init__(self) -> None:
        self._cursor = self._end = Cursor(Position())
        self._moves, self._num_before, self.endless = "end", 0, False

    def add(self, batches: Epoch, moves: str) -> None:
        """Note an iterator that begins now."""
        self._num_before = self.num_peeks(batches.position)
        self._cursor, self._end, self._moves = batches.cursor, batches.loader_cursor, moves

    def has_ended_endless(self, place: Place) -> bool:
        """Return whether the latest iterator is one epoch of an endless loop, which goes on behind
        it now."""
        return self.endless and self._cursor.is_over and self.has_moved(place)

    def has_moved(self, place: Place) -> bool:
        """Return whether the latest iterator has taken the loader where it is."""
        return place.cursor is self._end

    def num_repeated(self, position: Position) -> int:
        """Return how many batches the latest iterator delivered, if it was left and began at the
        same position."""
        start, num_delivered = (
            self._cursor.start,
            self._cursor.position.step - self._cursor.start.step,
        )
        if start != position or not num_delivered:
            return 0
        # that one has moved the loader behind more than one
        if self._moves == "second":
            return 1
        return num_delivered

    def num_peeks(self, position: Position) -> int:
        """Return how many of the latest iterators, all from the same position, took a single
        batch."""
        if self.num_repeated(position) == 1:
            return self._num_before + 1
        return 0


def _again(arguments: dict[str, Any], position: Position, place: str) -> Loader:
    """Return the loader that was pickled; ``place`` is where a state has it decode images, "" if
    none does."""
    loader = Loader(**arguments)
    loader._decode_at(place)
    loader._place.cursor = Cursor(position)
    return loader


def _no_records_of(source: Source) -> str | None:
    """Return a line about a source without records; None if it has some."""
    if len(source):
        return None
    return (
        f"{source._line()}: a loop over this loader ends at once and trains nothing; check the paths, and what "
        "filters, slices and splits leave"
    )


def _requests_of(source: Source, plan: Plan) -> str | None:
    """Return a line about the requests that a whole shuffle of remote records costs; None if no
    other way has fewer."""
    paths = source.files.paths
    if (
        plan.shuffle is not True
        or len(paths) >= plan.length
        or not any(map(sends_each_read, paths))
    ):
        return None
    if all(share.leaf.asks_once for share in source.resolve(np.zeros(1, np.int64))):
        return None
    return (
        f"shuffle=True reads {plan.length} remote records one by one, about {plan.length} requests an epoch for all "
        "shards together; shuffle=gl.Blocks(1024, 16) reads neighbours together, in a thousandth of the requests; "
        "gl.Remote(..., cache=...) stores what was read on a disk of this machine"
    )


def _blocks_of(source: Source, plan: Plan) -> str | None:
    """Return a line about the records that a whole shuffle decodes in vain; None if each can be
    read alone."""
    if plan.shuffle is not True or not len(source):
        return None
    block_records = max(share.leaf.block_records for share in source.resolve(np.zeros(1, np.int64)))
    if block_records < MANY_RECORDS:
        return None
    return (
        f"shuffle=True may decode {block_records} records for each one that it reads: they are stored together, and do "
        f"not all fit into the cache; shuffle=gl.Blocks({block_records}, 4) decodes each once, and mixes 4 such blocks"
    )


def _with_lengths(shuffle: bool | Blocks | Buckets, source: Source) -> bool | Blocks | Buckets:
    """Return the kind of shuffle, with the lengths of all records in place of the name of a
    field."""
    if not isinstance(shuffle, Buckets):
        return shuffle
    if source.endless:
        raise SpecError(
            f"shuffle={shuffle!r} of a mix",
            cause="a mix has other records in each epoch, whose lengths would have to be found out anew",
            remedy="use shuffle=True",
        )
    if isinstance(shuffle.by, str):
        return replace(shuffle, by=lengths_of(source, shuffle.by))
    return shuffle


def _check_steps(plan: Plan) -> None:
    if plan.length and not plan.end():
        if plan.num_shards > 1:
            shards = f" on each of {plan.num_shards} shards"
        else:
            shards = ""
        raise SpecError(
            f"batches of {plan.batch_size}{shards} of {plan.length} records, with last_batch='drop'",
            cause="the records do not fill a single step, so that every epoch would be empty",
            remedy="use a smaller batch_size, or last_batch='partial'",
        )


def _damage(
    source: Source, plan: Plan, on_error: object, max_bad: object, quarantine: object
) -> Damage | None:
    """Return the treatment of damaged records; None where each is an error."""
    if not isinstance(on_error, str) or on_error not in ON_ERROR:
        raise SpecError(
            f"on_error = {on_error!r}"[:200],
            cause="it is not known",
            remedy=f"use one of {ON_ERROR}",
        )
    is_number = isinstance(max_bad, (int, float, np.integer, np.floating)) and not isinstance(
        max_bad, bool
    )
    if not is_number or not 0 <= max_bad <= 1:  # type: ignore[operator]
        raise SpecError(
            f"max_bad = {max_bad!r}"[:200],
            cause="it is a share of the records, from 0 to 1",
            remedy="pass max_bad=0.01 for one in a hundred, say",
        )
    if quarantine is not None and not (
        isinstance(quarantine, (str, os.PathLike)) and os.fspath(quarantine)
    ):
        raise SpecError(
            f"quarantine = {quarantine!r}"[:200],
            cause="it is the path of a file, to which lines of JSON are appended",
            remedy="pass quarantine='bad_records.jsonl', say, or None",
        )
    if on_error == "raise":
        if quarantine is not None:
            raise SpecError(
                f"quarantine={quarantine!r} with on_error='raise'",
                cause="the first damaged record is raised, so that there is nothing to be listed",
                remedy="pass on_error='replace' or 'skip', or leave quarantine= out",
            )
        return None
    if quarantine is None:
        path = None
    else:
        path = os.path.abspath(os.path.expanduser(os.fspath(quarantine)))
    share = float(max_bad)  # type: ignore[arg-type]
    return Damage(source, seed=plan.seed, skips=on_error == "skip", max_bad=share, path=path)


def _check(source: object, **texts: object) -> None:
    if not isinstance(source, Source):
        raise SpecError(
            f"source is a {type(source).__name__}",
            cause="a loader reads from a gpuload source",
            remedy="open one: gl.npy, gl.fixed, gl.images; gl.arrays(x=array) for arrays in memory",
        )
    for name, value in texts.items():
        if not isinstance(value, str):
            raise SpecError(
                f"{name} = {value!r}"[:200],
                cause="it is a text",
                remedy=f"write {name}='auto', say",
            )


def _checked_position(position: Position) -> Position:
    if not isinstance(position, Position):
        raise SpecError(
            f"position = {position!r}"[:200],
            cause="it is the position of a loader: loader.position, or loader.after(...)",
            remedy="pass loader.position; loader.state_dict(epoch=0, step=3) is the state of any step",
        )
    return position


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.3g} MB"
