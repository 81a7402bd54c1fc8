"""Records that ops make, as a source: each record behind a loader's ops, in the order of the
source.

    OpsSource(source, ops, names, seed=7)             of ops that draw nothing
    OpsSource(source, ops, names, seed=7, epoch=3)    as in that epoch

A record's values are the bytes that a batch of a loader with these ops holds: draws depend on
(seed, epoch, record, op), and a row depends on nothing but its record and its draws. The array
executor makes them, on the CPU, in the thread that reads. Nothing is stored: `sources/cache.py`
keeps them, and `convert.py` writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import CodeType
from typing import Any

import numpy as np

from gpuload import lazy, state, strings
from gpuload.errors import RowError
from gpuload.executors import choose
from gpuload.executors.base import RowExecutor
from gpuload.graph.graph import Graph, compile_ops, image_sizes, no_partners
from gpuload.ops.base import Op
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
            if op.mixes:
                raise no_partners(op)
        self._source, self._names, self._seed, self._epoch = source, tuple(names), seed, epoch
        self._op_list = tuple(ops)
        self._leaves = tuple(
            OpsLeaf(source, graph.only(group), graph.spec_out.only(group), seed, epoch)
            for group in _field_groups(graph, self._names)
        )
        super().__init__(tuple(Group(leaf.spec, None) for leaf in self._leaves), source)
        self._has_card = False  # what ops make of rows on a GPU is made on the host
        self._is_random, self._marks = any(op.is_random for op in ops), graph.marks
        if not self._is_random:  # else the records are those of one epoch, and no loader's
            self.ops = (*ops_of(source), *ops)

    def _made_of(self) -> tuple[Any, ...]:
        return self._source, self._op_list, self._names, self._seed, self._epoch

    def _title(self) -> str:
        return f"{self._source._title()} behind {len(self._op_list)} ops"

    def _resolve(self, numbers: Indices) -> list[Share]:
        return [Share(leaf, group, numbers) for group, leaf in enumerate(self._leaves)]

    def _digest(self) -> str:
        draws = (self._seed, self._epoch) if self._is_random else ()
        functions = [_text_of_code(getattr(op, "fn", None)) for op in self._op_list]
        marks = [self._marks] if self._marks else []
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
                rows = slice(None) if share.rows is None else share.rows
                total[rows] += times * share.leaf.value_bytes(share.numbers)
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
