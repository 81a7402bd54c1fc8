"""Records that ops make, as a source: each record behind a loader's ops, in the order of the
source.

    OpsSource(source, ops, names, seed=7)             of ops that draw nothing
    OpsSource(source, ops, names, seed=7, epoch=3)    as in that epoch

A record's values are the bytes that a batch of a loader with these ops holds: draws depend on
(seed, epoch, record, op), and a row depends on nothing but its record and its draws. The array
executor makes them, on the CPU, in the thread that reads. Nothing is stored: `sources/cache.py`
keeps them, and `gl.convert` writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import CodeType
from typing import Any

import numpy as np

from gpuload import lazy, rng, state, strings
from gpuload.errors import DeviceError, RowError, SpecError
from gpuload.executors import choose
from gpuload.executors.base import RowExecutor
from gpuload.executors.choose import Choice
from gpuload.graph.graph import Graph, compile_ops, image_sizes, no_partners
from gpuload.ops.base import Op, is_random
from gpuload.pipeline.setup import Setup
from gpuload.ragged import Ragged
from gpuload.sources.base import SameRecords, Source, ops_of
from gpuload.sources.leaf import Bytes, Group, Indices, Leaf, Share, Values
from gpuload.sources.reading import read_groups, record_error, record_origin
from gpuload.spec import Spec

with_checks = lazy.function("gpuload.graph.levels", "with_checks")
EXPANSION = 16  # times the bytes of an encoded image, which its pixels may need; a guess that sizes pieces of work


class OpsSource(SameRecords):
    """The records of a source behind some ops.

    Args:
        source: the records.
        ops: the transforms of each record; those that DALI alone runs are refused.
        names: the fields that the records have.
        seed: of the draws.
        epoch: of the draws; it makes no difference where no op is random.

    Raises:
        SpecError, UnknownFieldError: an op does not fit the fields.
        DeviceError, MissingPackageError: the array executor does not run an op.
    """

    def __init__(
        self, source: Source, ops: Sequence[Op], names: Iterable[str], seed: int, epoch: int = 0
    ) -> None:
        graph = with_checks(compile_ops(source.spec, list(ops), before=ops_of(source)))
        for op in graph.ops:
            if op.traits.mixes:
                raise no_partners(op)
        self._source, self._names, self._seed, self._epoch = source, tuple(names), seed, epoch
        self._op_list = tuple(ops)
        self._leaves = tuple(
            OpsLeaf(source, graph.only(group), graph.spec_out.only(group), seed, epoch)
            for group in _field_groups(graph, self._names)
        )
        super().__init__(tuple(Group(leaf.spec, None) for leaf in self._leaves), source)
        self._has_card = False  # ops of rows on a GPU run on the host here
        self._is_random, self._marks = any(is_random(op) for op in ops), graph.marks
        if not self._is_random:  # else the records are those of one epoch, and no loader's
            self.ops = (*ops_of(source), *ops)

    def _made_of(self) -> tuple[Any, ...]:
        return self._source, self._op_list, self._names, self._seed, self._epoch

    def _title(self) -> str:
        return f"{self._source._title()} behind {len(self._op_list)} ops"

    def _resolve(self, numbers: Indices) -> list[Share]:
        return [Share(leaf, group, numbers) for group, leaf in enumerate(self._leaves)]

    def _digest(self) -> str:
        draws: tuple[int, ...] = ()
        if self._is_random:
            draws = (self._seed, self._epoch)
        functions = [_text_of_code(getattr(op, "fn", None)) for op in self._op_list]
        marks = [self._marks] * bool(self._marks)
        op_texts = [state.canonical_text(op) for op in self._op_list]
        return self._digest_with(op_texts, functions, sorted(self._names), draws, *marks)


def _field_groups(graph: Graph, names: Sequence[str]) -> list[list[str]]:
    """Return the fields in groups of those that share an op, so that a label can be read without
    its image."""
    groups: list[set[str]] = []
    for name in names:
        shared = {name, *graph.only([name]).results}
        groups = [shared.union(*(group for group in groups if group & shared))] + [
            group for group in groups if not group & shared
        ]
    name_lists = [[name for name in names if name in group] for group in groups]
    return sorted(name_lists, key=lambda group: list(names).index(group[0]))


class OpsLeaf(Leaf):
    """Fields that ops make. They have no raw bytes: ``unpack`` makes the values of their
    numbers."""

    def __init__(self, source: Source, graph: Graph, spec: Spec, seed: int, epoch: int) -> None:
        self.source, self.graph, self.seed, self.epoch = source, graph, seed, epoch
        # A mix has no length: each number is a record of it.
        self.spec, self.num_records = spec, 2**62 if source.endless else len(source)
        self.how = f"{source.describe()}, then by {len(graph.ops)} ops"
        self._input_names = graph.touched.union(name for name in spec.names if name in source.spec)
        self._executor = _executor(graph)

    def num_bytes(self, numbers: Indices) -> Indices:
        """Return zeros: how long records are is known when the ops have made them."""
        return np.zeros(numbers.size, np.int64)

    def value_bytes(self, numbers: Indices) -> Indices:
        """Return about how many bytes are read for each record, and made where shapes vary, int64
        ``[n]``."""
        total = np.zeros(numbers.size, np.int64)
        if all(field.uniform for field in self.spec):
            times = 1
        else:
            times = EXPANSION
        group_numbers = {
            n
            for n, group in enumerate(self.source.groups)
            if not self._input_names.isdisjoint(group.spec.names)
        }
        for share in self.source.resolve(numbers):
            if share.group in group_numbers:
                num_bytes = times * share.leaf.value_bytes(share.numbers)
                if share.rows is None:
                    total += num_bytes
                else:
                    total[share.rows] += num_bytes
        return total

    def _read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        """Do nothing: there are no raw bytes."""

    def origin(self, number: int) -> tuple[str, int] | None:
        """Return the file of the source that holds a record, and the byte where it begins."""
        return record_origin(self.source, number)

    def unpack(self, numbers: Indices, raw: Ragged) -> list[Values]:
        """Return the fields of records after all ops, as they are stored."""
        graph, fields = self.graph, read_groups(self.source, numbers, self._input_names)
        try:
            sizes = {
                name: image_sizes(graph.spec_in[name], fields[name], numbers.size)
                for name in graph.touched
            }
            boxes = {name: fields[name] for name in graph.fields_to_draw}
            draws = graph.draw(
                seed=self.seed, epoch=self.epoch, records=numbers, sizes=sizes, values=boxes
            )
            if self._executor is not None:
                fields |= self._executor.run(
                    {name: fields[name] for name in graph.touched}, draws, {}
                )
        except RowError as error:
            # The row of a batch means nothing to the reader: the source says which record of which
            # file it is.
            raise record_error(self.source, int(numbers[error.row]), error) from None
        return [
            strings.pack(field, fields[field.name]) if field.text else fields[field.name]
            for field in self.spec
        ]


def _executor(graph: Graph) -> RowExecutor | None:
    if not graph.ops:
        return None
    choose.choose(graph, "cpu", choose.ExecutorRequest(executor="array"))
    executor = choose.make("array", graph, device="cpu", batch_size=1, num_threads=1)
    if executor.kind == "rows":
        return executor
    return None


def _text_of_code(function: Any) -> str:
    """Return a text of the code of a user's function, with its constants and names; "" where it has
    none."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return ""
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    return repr(
        # The compiled code, not the source text: a function typed into a console has no file. A
        # Python that compiles otherwise gives another digest, so records that were kept are made
        # anew.
        (
            _code(code),
            state.canonical_text(cells),
            state.canonical_text(getattr(function, "__defaults__", None)),
        )
    )


def _code(code: CodeType) -> Any:
    # The repr of a nested function's code holds its address, which differs in each process.
    constants = [
        _code(constant) if isinstance(constant, CodeType) else repr(constant)
        for constant in code.co_consts
    ]
    return code.co_code, constants, code.co_names


def epoch_records(
    setup: Setup, choice: Choice, ops: Sequence[Op], names: Sequence[str], epoch: int | None
) -> Source:
    """Return the records of a loader behind all of its ops, as a source; see `Loader.to_source`."""
    plan = setup.plan
    random_op = next((op for op in ops if is_random(op)), None)
    if epoch is None and random_op is not None:
        raise SpecError(
            f"the records behind {random_op}",
            cause="it is random, so that each epoch has other ones",
            remedy="name the epoch: loader.to_source(epoch=0), gl.convert(loader, out, epoch=0); "
            "or leave random ops out, loader.replace(ops=[...]), and put them behind the new "
            "source, to be drawn in each epoch",
        )
    number = rng.checked_word(epoch or 0, "epoch")
    if number and setup.source.endless:
        raise SpecError(
            f"epoch {number} of {setup.source._line()}",
            cause="a mix or a sample is written as its first epoch",
            remedy="pass epoch=0, or convert its parts and mix these",
        )
    if plan.num_shards > 1:
        raise SpecError(
            f"the records of shard {plan.shard_id} of {plan.num_shards}",
            cause="a shard has other records in each epoch",
            remedy="take all: loader.replace(num_shards=1, shard_id=0)",
        )
    return records_behind(setup, choice, ops, ops, names, number)


def records_behind(
    setup: Setup,
    choice: Choice,
    ops: Sequence[Op],
    first_ops: Sequence[Op],
    names: Sequence[str],
    epoch: int = 0,
    *,
    on_gpu: bool = False,
) -> Source:
    """Return the results of the first ops of a loader for all records, as a source.

    Args:
        setup: of the loader.
        choice: of its executor.
        ops: of the loader.
        first_ops: those of them that are done.
        names: the fields.
        epoch: of the draws.
        on_gpu: the GPU makes the same numbers of these ops.

    Raises:
        DeviceError: another executor than that of the source would run them in the loader.
    """
    source = setup.source
    num_ops = len(compile_ops(source.spec, first_ops, before=ops_of(source)).ops)
    on_host, _ = choose.split_ops(
        compile_ops(source.spec, ops, before=ops_of(source)), choice, setup.device
    )
    if not on_gpu and not set(range(num_ops)) <= set(on_host):
        raise DeviceError(
            f"the records behind ops by executor {choice.executor!r} on {setup.device}",
            cause="they are made by the array executor on the CPU, and pixels may differ from "
            "those made here",
            remedy="have them made there: loader.replace(device='cpu', executor='array', "
            "decode='auto').cache(...) and, behind it, .replace(device='gpu', executor='auto') "
            "runs the rest; gl.convert takes the first, too",
        )
    return OpsSource(source, first_ops, names, setup.plan.seed, epoch)


def num_done_once(setup: Setup, choice: Choice, ops: Sequence[Op], limit: int) -> int:
    """Return how many ops, from the first on, are done once for a cache on the GPU: by the array
    executor, on the host.

    Those that the loader runs on the host; and where the array executor runs the others on the GPU,
    those that make the same numbers there, whole numbers say. Crops, flips and the like at their
    end are not among them: they cost nothing in the kernel of each batch.

    Args:
        setup: of the loader.
        choice: of its executor.
        ops: of the loader.
        limit: so many ops, from the first on, may be done once.

    Raises:
        DeviceError: DALI decodes the images in the loader.
    """
    source = setup.source
    graph, count = compile_ops(source.spec, ops, before=ops_of(source)), 0
    on_host, _ = choose.split_ops(graph, choice, setup.device)
    num_before = 0
    for place in range(1, limit + 1):
        num_ops = len(compile_ops(source.spec, ops[:place], before=ops_of(source)).ops)
        places, num_before = range(num_before, num_ops), num_ops
        if set(places) <= set(on_host):
            count = place
            continue
        if codec_op := next((graph.ops[n] for n in places if graph.ops[n].traits.codec), None):
            raise DeviceError(
                f"cache(device=True) of what DALI makes of {codec_op}",
                cause="the images that stay on the GPU are decoded on the host, and their pixels "
                "may differ",
                remedy='have the host do it: loader.replace(executor="array", '
                'decode="auto").cache(device=True)',
            )
        if choice.executor != "array" or not all(graph.is_exact(n) for n in places):
            break
        if not all(graph.is_walk(n) for n in places):
            count = place
    return count
