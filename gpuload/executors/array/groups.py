"""Groups: how a graph is cut for whole batches and for rows: into runs over a field, and groups of
ops in a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from gpuload import device as devices
from gpuload.executors.array.folding import fold_ops, num_folding
from gpuload.graph.graph import Graph
from gpuload.kernels import walk
from gpuload.ops.base import Draw, Op
from gpuload.ops.forms import Forms
from gpuload.spec import Field


@dataclass(frozen=True)
class OpGroup:
    """Some ops that follow one another on a field, which are done together.

    Attributes:
        ops: the ops.
        places: their places in the graph.
        before, after: the field before the first op and after the last.
        forms: the compiled forms of the ops.
        is_walk: True if the ops make one walk; else it is a single op.
    """

    ops: tuple[Op, ...]
    places: tuple[int, ...]
    before: Field
    after: Field
    forms: tuple[Forms, ...]
    is_walk: bool

    def walk_batch(self, xp: ModuleType, x: Any, draws: Sequence[Draw]) -> Any:
        """Return a whole batch on a GPU after the ops of a walk, made by one kernel."""
        shape = None
        if not self.before.uniform:
            shape = x[0].shape
        path = fold_ops(walk.begin(self.before, len(x), shape), self.forms, draws)
        return walk.walk_on_device(xp, path, x).reshape(len(x), *self.after.fixed_shape)


def field_runs(graph: Graph) -> list[int | tuple[str, list[int], bool]]:
    """Return the runs in their order: the fields one by one, up to each op that makes several
    together.

    Returns:
        For an op that is joint its place; for a field its name, the places of ops, and whether no
        later op acts on it.
    """
    runs: list[int | tuple[str, list[int], bool]] = []
    waiting: dict[str, list[int]] = {
        name: [] for name in graph.spec_in.names if name in graph.touched
    }
    for place, op in enumerate(graph.ops):
        if not op.traits.joint:
            for name in graph.targets[place]:
                waiting.setdefault(name, []).append(place)
            continue
        for name in graph.targets[place]:
            if places := waiting.pop(name, []):
                runs.append((name, places, False))
        runs.append(place)
    return [*runs, *((name, places, True) for name, places in waiting.items() if places)]


def batch_runs(graph: Graph, xp: ModuleType) -> list[int | tuple[str, OpGroup]]:
    """Return how a graph is run on whole batches, in order: the places of joint ops, and groups of
    single fields.

    Images of different sizes make a walk on a GPU if its first op brings them to one size: the
    draws and arguments of later ops are then the same for all.
    """

    def folds(before: Field, after: Field) -> bool:
        return devices.compiles(xp) and (before.uniform or after.uniform)

    runs: list[int | tuple[str, OpGroup]] = []
    for run in field_runs(graph):
        if isinstance(run, int):
            runs.append(run)
        else:
            name, places, _ = run
            runs += [(name, group) for group in op_groups(graph, name, places, folds=folds)]
    return runs


def op_groups(
    graph: Graph, name: str, places: Sequence[int], *, folds: Callable[[Field, Field], bool]
) -> Iterator[OpGroup]:
    """Cut ops that act on a field one after the other.

    Args:
        graph: the graph.
        name: of the field.
        places: of the ops.
        folds: whether a walk may begin with an op, of the field before it and after it.
    """
    fields = [graph.before(places[0])[name], *(graph.specs[place][name] for place in places)]
    ops = [graph.op_on(place, name) for place in places]
    forms = [op.forms(before) for op, before in zip(ops, fields, strict=False)]
    draws = [graph.empty_draws[place] for place in places]
    begin = 0
    while begin < len(ops):
        folding = 0
        if folds(*fields[begin : begin + 2]):
            folding = num_folding(forms[begin:], draws[begin:], fields[begin])
        end = begin + max(folding, 1)
        yield OpGroup(
            tuple(ops[begin:end]),
            tuple(places[begin:end]),
            fields[begin],
            fields[end],
            tuple(forms[begin:end]),
            folding > 0,
        )
        begin = end


def last_outputs(graph: Graph) -> list[frozenset[str]]:
    """Return for each op the fields that it makes, or acts on, and no later op acts on."""
    last = {name: place for place, names in enumerate(graph.outputs) for name in names}
    return [
        frozenset(name for name in names if last[name] == place)
        for place, names in enumerate(graph.outputs)
    ]
