"""Sessions: those of one loader, and the executor and the place to decode that are chosen for them.

A loader has one session at a time. Another takes its place where a state is loaded of a run that
had images decoded elsewhere; iterators that began before go on in theirs. And each pipeline of
another library that runs the ops itself has a session of its own, a feed, which makes batches ready
for it on the host.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np

from gpuload import core, lazy, signalsafe, threads
from gpuload.errors import GpuloadError, SpecError
from gpuload.executors import choose
from gpuload.executors.base import BatchExecutor, RowExecutor
from gpuload.executors.choose import Choice
from gpuload.executors.decoding import DEVICE, HOST
from gpuload.graph.graph import Graph
from gpuload.ops.base import calls_python
from gpuload.pipeline.card import card_line, check_card
from gpuload.pipeline.recipe import Recipe, make_recipe
from gpuload.pipeline.session import Session
from gpuload.pipeline.setup import Setup, own_file_bytes
from gpuload.sources.base import ops_of
from gpuload.sources.leaf import Share
from gpuload.stats import Facts

AHEAD_BYTES = (
    1 << 30
)  # of device memory for batches that are made ahead, where `prefetch` was not passed
make_auditor = lazy.function("gpuload.pipeline.audit", "auditor_of")
log = logging.getLogger("gpuload")


@dataclass(frozen=True)
class SessionChoice:
    """A session, and the choices that it was made by.

    Attributes:
        session: the session.
        choice: of executor and place.
        graph: the ops, as they work on this machine.
        prefetch: steps that are ahead, short ones counted by themselves.
        lines: each choice and its reason, by name.
    """

    session: Session
    choice: Choice
    graph: Graph
    prefetch: int
    lines: dict[str, str] = field(default_factory=dict)


class Sessions:
    """The sessions of a loader.

    Args:
        setup: of the loader.

    Attributes:
        setup: of the loader.
        current: the one that iterators begin in.
        lines: of bridges, for ``describe``.
        place_of_run: where images are decoded because the run of a state has them decoded there; ""
            if none says so.

    Raises:
        SpecError, DeviceError, MissingPackageError: no executor runs the ops.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup, self.place_of_run = setup, ""
        self.current = self._make(choose.choose(setup.graph, setup.device, setup.request))
        self.lines: dict[str, str] = {}
        # Weak: each epoch may be fed to something new, and the batches that are taken keep their
        # session.
        self._feeds = weakref.WeakSet[Session]()
        self._earlier = weakref.WeakSet[Session]()

    def _make(self, choice: Choice) -> SessionChoice:
        """Return a session of a choice, with the executor of the place that its recipe is for."""
        setup = self.setup
        graph, doctor_line = choose.heed_failures(setup.graph, choice, setup.device)
        on_host, behind = choose.split_ops(graph, choice, setup.device)
        graph_behind = graph
        if not choice.on_rows(setup.device):
            graph_behind = choose.part_behind(graph, on_host)
        make_executor = partial(_make_executor, setup, choice.executor, graph_behind)
        executor = make_executor()
        lines = executor.describe()
        lines["executor"] = f"{lines['executor']} ({choice.reason})"
        rows, batches = None, None
        if executor.kind == "rows":
            rows = executor
        else:
            batches = executor
            decoding = choose.decoding_line(graph, on_host, choice, setup.device, setup.names)
            lines = {"executor": lines.pop("executor"), **decoding, **lines}
            if on_host:
                rows = choose.on_rows(graph.part(on_host))
                lines["on host"] = rows.describe()["stages"]
        recipe = make_recipe(
            setup.source,
            graph,
            setup.plan,
            names=setup.names,
            output=setup.output,
            device=setup.device,
            on_host=on_host,
            executor=rows if on_host else None,
            num_threads=setup.num_threads,
            prefetch=setup.prefetch,
            any_length=batches is not None and batches.any_length,
            mends=setup.damage is not None,
            labels=setup.labels,
            reader=setup.reader,
        )
        check_card(recipe, setup.device_reason)
        num_groups = _num_groups_ahead(recipe, setup.prefetch)
        auditor = None
        if setup.audit is not None or (
            setup.device != "cpu" and any(op.traits.codec for op in recipe.rest.ops)
        ):
            words: dict[str, Any] = {"executor": choice.executor, "num_threads": setup.num_threads}
            auditor = make_auditor(
                recipe, setup.names, setup.audit, counters=setup.counters, **words
            )
        session = Session(
            recipe,
            batches if behind else None,
            make_executor,
            num_threads=setup.num_threads,
            prefetch=num_groups,
            counters=setup.counters,
            damage=setup.damage,
            tunes_threads=setup.tunes_threads,
            tunes_ahead=setup.prefetch is None,
            auditor=auditor,
        )
        if doctor_line:
            lines["doctor"] = doctor_line
        if auditor is not None:
            lines["audit"] = auditor.describe()
        if recipe.on_rows:
            num_groups = recipe.num_ahead
        return SessionChoice(session, choice, graph, num_groups * recipe.num_joined, lines)

    # Feeds

    @property
    def feed_graph(self) -> Graph:
        """The ops that a feed leaves to be run elsewhere, on the device: those behind the ops on
        the host."""
        return choose.part_behind(self.current.graph, self._feed_places())

    def _feed_places(self) -> tuple[int, ...]:
        """Return the places of the ops that run on the host before a feed; on a CPU only as
        ``decode="host"`` asks."""
        setup = self.setup
        if setup.device == "cpu" and setup.request.decode != HOST:
            return ()
        choice = self.current.choice._replace(
            executor="dali"
        )  # none of the others runs in the workers
        return choose.split_ops(self.current.graph, choice, setup.device)[0]

    def feed(self, make: Callable[[], BatchExecutor], names: tuple[str, ...]) -> Session:
        """Return a session that makes batches ready on the host for ``feed_graph``; see
        `Port.feed`."""
        setup, graph = self.setup, self.current.graph
        self._check_feed()
        on_host = self._feed_places()
        recipe = make_recipe(
            setup.source,
            graph,
            setup.plan,
            names=setup.names,
            output=None,
            device="cpu",
            on_host=on_host,
            executor=choose.on_rows(graph.part(on_host)) if on_host else None,
            num_threads=setup.num_threads,
            prefetch=setup.prefetch,
            mends=setup.damage is not None,
        )
        session = Session(
            recipe,
            make() if self.feed_graph.ops else None,
            make,
            num_threads=setup.num_threads,
            prefetch=setup.prefetch or 2,
            counters=setup.counters,
            names=names,
            damage=setup.damage,
            tunes_threads=setup.tunes_threads,
            tunes_ahead=setup.prefetch is None,
        )
        self._feeds.add(session)
        return session

    def _check_feed(self) -> None:
        """Raise ``SpecError`` if batches cannot be made ready on the host."""
        audit = self.setup.audit
        if self.setup.reader is not None:
            raise SpecError(
                "direct=True with batches that are made ready on the host",
                cause="rows go straight to the GPU",
                remedy="leave direct=True out",
            )
        if self.current.session.card_caches:
            raise SpecError(
                "a source.cache(device=True) with batches that are made ready on the host",
                cause="its records lie in the memory of the GPU",
                remedy='use source.cache(memory="8GB"), or leave the cache out',
            )
        if audit is not None and audit.share:
            raise SpecError(
                f"audit={audit.share:g} with batches that are made ready on the host",
                cause="the ops run elsewhere, in a pipeline of DALI within tf.data, and their "
                "results do not come back",
                remedy='write dataset(loader, via="generator"), which takes the batches from here, '
                "or leave audit= out",
            )

    # Where images are decoded

    @property
    def place_to_decode(self) -> str:
        """Where images are decoded, as states say it; "" where none are."""
        choice = self.current.choice
        if not choice.decode:  # a cache has the results of ops, which ran on the host
            if any(op.traits.codec for op in ops_of(self.setup.source)):
                return HOST
            return ""
        if self.setup.device == "cpu":
            return HOST
        return choice.decode

    def decode_at(self, place: str) -> None:
        """Have images decoded where the run of a state has them decoded; where that cannot be, log
        it.

        Args:
            place: ``"host"`` or ``"device"``; "" for a state that does not say.
        """
        present = self.place_to_decode
        if not place or not present or place == present:
            return
        problem = self._change_place(place)
        if problem is None:
            self.place_of_run = place
            log.info("images are decoded on the %s from here on, as in the run of the state", place)
            return
        log.warning(
            "the images of the state's run were decoded on the %s, and here they are decoded on "
            "the %s, where pixels differ a little; cause: %s; remedy: %s, or go on with these",
            place,
            present,
            *problem,
        )

    def _change_place(self, place: str) -> tuple[str, str] | None:
        """Have images decoded on the host or on the device from now on; return why they cannot be,
        and the remedy."""
        setup = self.setup
        if not self.current.choice.decode:
            return (
                "the source has kept images that were decoded",
                "train from a loader without cache(...)",
            )
        if setup.device == "cpu":
            return (
                "a CPU is the host",
                "write device='gpu' and decode='device', and leave executor= out",
            )
        if (setup.request.executor, setup.request.decode) != ("auto", "auto"):
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
            choice = choose.choose(setup.graph, setup.device, setup.request._replace(decode=place))
            successor = self._make(
                choice._replace(decode_reason="as in the run of the state that was loaded")
            )
        except GpuloadError as error:
            return f"{error.what}: {error.cause}", error.remedy
        earlier, self.current = self.current.session, successor
        if earlier.closed:
            successor.session.close()
        else:
            earlier.replace(successor.session)
            self._earlier.add(earlier)
        return None

    def warn_of_earlier_state(self) -> None:
        """Log that a state does not say where its run had images decoded, if that may not be where
        they are here."""
        device, choice, graph = self.setup.device, self.current.choice, self.current.graph
        if device == "cpu" or choice.decode != HOST:
            return
        _, behind = choose.split_ops(graph, choice._replace(decode=DEVICE), device)
        if any(graph.ops[place].traits.codec for place in behind):
            log.warning(
                "the state does not say where its run had images decoded, as states of earlier "
                "versions; here they are decoded on the host; remedy: write decode='device' if "
                "that run was on a GPU, where DALI decoded all images, with pixels that differ a "
                "little; or go on with these"
            )

    # Describing and closing

    def describe(self) -> dict[str, str]:
        """Return each choice and its reason, by name."""
        setup, session, lines = self.setup, self.current.session, dict(self.current.lines)
        recipe, tuning = session.tuning.recipe, session.tuning
        num_ahead = session.num_ahead * recipe.num_joined
        if recipe.num_joined > 1:
            division = f"each works on up to {recipe.num_joined} short steps at a time"
        elif recipe.num_parts == 1:
            division = "each works on a step of its own"
        else:
            division = "all work on the same step"
        if num_ahead == 1:
            steps = "1 step is"
        else:
            steps = f"{num_ahead} steps are"
        audit_line = lines.pop("audit", "")
        result: dict[str, Any] = {
            "device": f"{setup.device} ({setup.device_reason})",
            **{name: line for name, line in lines.items() if name not in ("device", "threads")},
            "core": core.how(),
            "threads": f"{tuning.setting.num_threads}; {division}",
            "prefetch": f"{steps} made ahead",
            "tuning": tuning.finding,
            "damaged": setup.damage and setup.damage.describe(),
            "memory": f"{_megabytes(recipe.slot_bytes)} for a step, or for short steps made "
            f"together; at most {_megabytes(session.ring.idle_bytes)} are kept for the next ones",
            "on the GPU": session.card_caches and card_line(recipe, session.card_caches),
            "direct": setup.reader and setup.reader.path.line,
            "audit": audit_line,
            **self.lines,
        }
        return {name: line for name, line in result.items() if line}

    def facts(self) -> Facts:
        """Return facts about the loader beside its counters; some files are looked at, as the
        system has their sizes."""
        setup, tuning, source = self.setup, self.current.session.tuning, self.setup.source
        shapes = [
            setup.graph.spec_out[name].fixed_shape
            for name in setup.names
            if setup.graph.spec_out[name].has_rows
        ]
        shares: list[Share] = []
        if len(source):
            shares = source.resolve(np.zeros(1, np.int64))
        return Facts(
            num_threads=tuning.setting.num_threads,
            tunes_threads=setup.tunes_threads,
            num_cores=threads.num_cores(),
            num_machine_cores=os.cpu_count() or 1,
            batch_size=setup.plan.batch_size,
            own_file_bytes=own_file_bytes(source),
            reads_in_python=any(share.leaf.calls_python for share in shares),
            python_ops=tuple(
                type(op).__name__ for op in self.current.graph.ops if calls_python(op)
            ),
            output_pixels=max(
                (prod(shape) // min(shape) for shape in shapes if len(shape) == 3), default=0
            ),
            device=setup.device,
            shuffled=setup.plan.shuffle is True,
            tuning=tuning.finding,
        )

    def close(self) -> None:
        """Stop the threads of all iterators and free the executors."""
        for session in (self.current.session, *self._feeds, *self._earlier):
            session.close()


def _make_executor(setup: Setup, name: str, graph: Graph) -> RowExecutor | BatchExecutor:
    def make() -> RowExecutor | BatchExecutor:
        most_rows = setup.plan.most_rows(setup.graph.group)
        return choose.make(
            name, graph, device=setup.device, batch_size=most_rows, num_threads=setup.num_threads
        )

    if name == "dali":  # no signal handler breaks it off
        return signalsafe.call(make)
    return make()


def _num_groups_ahead(recipe: Recipe, prefetch: int | None) -> int:
    """Return how many groups of steps are begun ahead where an executor runs whole batches."""
    if prefetch:
        return max(1, prefetch // recipe.num_joined)
    ahead_bytes = recipe.batch_bytes * recipe.num_joined
    return max(1, min(2, AHEAD_BYTES // max(ahead_bytes, 1)))


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.3g} MB"
