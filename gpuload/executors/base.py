"""Graph and Executor: a list of ops checked against a spec, and what runs it on a batch.

graph = compile_ops(spec, ops)         errors here, when the loader is made, not at step 400
draws = graph.draw(...)                host, pure; one Draw for each op
executor.start(fields, draws); executor.finish()    fields in, fields out, in order
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuload import imagehead, rng
from gpuload.errors import SpecError, UnknownFieldError
from gpuload.ops import images
from gpuload.ops.base import Draw, Op, Sizes, streams
from gpuload.ops.base import RowError as RowError
from gpuload.spec import Field, Spec

Array = Any  # numpy.ndarray on the CPU, cupy.ndarray on a GPU
Fields = dict[str, "Array | list[Array]"]


@dataclass(frozen=True)
class Graph:
    """A list of ops that fits a spec.

    Attributes:
        spec_in: the fields before the first op.
        ops: the ops, in order.
        targets: for each op the fields that it acts on.
        specs: the spec after each op.
        streams: the random stream of each op.
    """

    spec_in: Spec
    ops: tuple[Op, ...]
    targets: tuple[tuple[str, ...], ...]
    specs: tuple[Spec, ...]
    streams: tuple[int, ...]

    @cached_property
    def _known_sizes(self) -> list[list[Sizes | None]]:
        """For each op, for each field it acts on: the size of all images after it, int32 ``[2]``, if that is known."""
        zipped = zip(self.targets, self.specs, strict=True)
        return [[_known_size(spec[name]) for name in names] for names, spec in zipped]

    @property
    def spec_out(self) -> Spec:
        """The fields after the last op."""
        return self.specs[-1] if self.specs else self.spec_in

    @cached_property
    def touched(self) -> frozenset[str]:
        """The fields that some op acts on; the others pass through unchanged."""
        return frozenset(name for names in self.targets for name in names)

    def only(self, names: Sequence[str]) -> Graph:
        """Return the graph that makes just these fields; ops that act on none of them are left out."""
        kept = [place for place, on in enumerate(self.targets) if set(on) & set(names)]
        graph = compile_ops(self.spec_in, [self.ops[place] for place in kept])
        return replace(graph, streams=tuple(self.streams[place] for place in kept))

    def draw(self, *, seed: int, epoch: int, records: NDArray[np.int64], sizes: Mapping[str, Sizes]) -> list[Draw]:
        """Return the draws of every op for a batch (or any part of one: each record's draws are its own).

        Args:
            seed: the loader's seed.
            epoch: the epoch.
            records: int64 ``[N]``.
            sizes: for each field that an op acts on, int32 ``[N, 2]`` from ``image_sizes``.
        """
        now = dict(sizes)
        draws = []
        none = np.empty((records.size, 0))
        for op, on, stream, known in zip(self.ops, self.targets, self.streams, self._known_sizes, strict=True):
            size, count = _common_size(op, on, now), op.num_uniforms
            u = rng.uniform(count, seed=seed, epoch=epoch, records=records, stream=stream) if count else none
            draws.append(op.draw(u, size))
            for name, fixed in zip(on, known, strict=True):
                now[name] = op.size_after(size, draws[-1]) if fixed is None else np.broadcast_to(fixed, size.shape)
        return draws


def compile_ops(spec: Spec, ops: Sequence[Op]) -> Graph:
    """Return the graph of these ops on records of this spec.

    Raises:
        SpecError: an op does not fit the fields that it acts on; the message names the op, its place and the field.
        UnknownFieldError: an op acts on a field that is not there.
    """
    targets, specs, now = [], [], spec
    for place, op in enumerate(ops):
        if not isinstance(op, Op):
            raise SpecError(
                f"ops[{place}] is {op!r}",
                cause="it is not an op (an instance of a class in gl.ops)",
                remedy="write gl.ops.RandomFlip(), with the brackets" if isinstance(op, type) else "use gl.ops",
            )
        try:
            targets.append(op.targets(now))
            now = op.spec_after(now)
        except (SpecError, UnknownFieldError) as error:
            raise error.within(f"ops[{place}]") from None
        specs.append(now)
    return Graph(spec, tuple(ops), tuple(targets), tuple(specs), tuple(streams(ops)))


def image_sizes(field: Field, values: Array | list[Array], count: int) -> Sizes:
    """Return height and width in pixels of the images of a field, int32 ``[count, 2]``; zeros where it holds none.

    Raises:
        RowError: the bytes of an encoded image are damaged, as far as its header and its end can tell.
    """
    if field.encoded:
        return np.array([_head_size(row, data) for row, data in enumerate(values)], np.int32).reshape(-1, 2)
    if field.shape is None or len(field.shape) != 3:
        return np.zeros((count, 2), np.int32)
    height, width = _size_axes(field)
    known = _known_size(field)
    if known is not None:
        return np.broadcast_to(known, (count, 2))
    return np.array([[one.shape[height], one.shape[width]] for one in values], np.int32).reshape(-1, 2)


class Executor(Protocol):
    """Runs a graph on batches, in order.

    Attributes:
        name: ``"array"`` or ``"dali"``.
        device: ``"cpu"`` or ``"gpu:0"`` ...
        graph: what it runs.
        depth: how many batches to start before the first of them is finished.
    """

    name: str
    device: str
    graph: Graph
    depth: int

    def start(self, fields: Fields, draws: Sequence[Draw]) -> None:
        """Begin a batch. ``fields`` holds those of ``graph.touched``; they must stay unchanged until ``finish``."""

    def finish(self) -> Fields:
        """Return the fields of the oldest batch that was started: those of ``graph.touched``, as ``spec_out`` says.

        Raises:
            RowError: a row cannot be decoded; the executor is ready for the next batch.
        """

    def reset(self) -> None:
        """Forget the batches that were started and not finished."""

    def describe(self) -> dict[str, str]:
        """Return what was chosen and why, a line each."""

    def close(self) -> None:
        """Give back threads and memory."""


def _head_size(row: int, data: NDArray[np.uint8]) -> tuple[int, int]:
    try:
        head = imagehead.read(data)
    except imagehead.HeadError as error:
        raise RowError(row, str(error)) from None
    return head.height, head.width


def _size_axes(field: Field) -> tuple[int, int]:
    return (1, 2) if images.channels_first(field) else (0, 1)


def _known_size(field: Field) -> Sizes | None:
    """Return the size of the images of all records, int32 ``[2]``; None where it varies or they are no images."""
    if field.encoded or not field.uniform or len(field.fixed_shape) != 3:
        return None
    return np.array([field.fixed_shape[axis] for axis in _size_axes(field)], np.int32)


def _common_size(op: Op, on: tuple[str, ...], sizes: Mapping[str, Sizes]) -> Sizes:
    first = sizes[on[0]]
    for name in on[1:]:
        if not np.array_equal(sizes[name], first):
            row = int((sizes[name] != first).any(axis=1).argmax())
            raise SpecError(
                f"{op}: {on[0]!r} is {first[row].tolist()} pixels and {name!r} is {sizes[name][row].tolist()}",
                cause="fields that share one draw must have the same size",
                remedy="bring them to one size first, or give each an op of its own with on=",
            )
    return first
