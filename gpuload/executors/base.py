"""Executors run a graph: on rows of a step, in many threads at once, or on whole batches, one after
the other.

Which of the two an executor is, its ``kind`` says; `choose` makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, Protocol

from gpuload.core.face import Maker
from gpuload.errors import RowError
from gpuload.graph.graph import Graph
from gpuload.kernels.walk import Memory
from gpuload.ops.base import PARTNER, Draw
from gpuload.ragged import Ragged

Array = Any  # numpy.ndarray on the CPU, cupy.ndarray on a GPU
Values = Array | Ragged | list[Array]
Fields = dict[str, Values]
"""The values of some fields: an array ``[N, *shape]`` where the field is uniform, a ``Ragged``
where it is ragged, else a list of arrays. Encoded images are uint8 ``Ragged``, a list of arrays
will do; they stay on the host on any device."""


def one_row(fields: Fields, draws: Sequence[Draw], row: int) -> tuple[Fields, list[Draw]]:
    """Return a batch of one row of a batch; where its partner would be mixed into it, it is its
    own."""
    rows = slice(row, row + 1)
    return {name: values[rows] for name, values in fields.items()}, [
        {name: values[rows] * (name != PARTNER) for name, values in draw.items()} for draw in draws
    ]


def find_row_error(run: Callable[[], object]) -> RowError | None:
    """Return the ``RowError`` that a call raises, None if it raises none; for
    ``BatchExecutor.row_error``."""
    try:
        run()
    except RowError as error:
        return error
    return None


class RowExecutor(Protocol):
    """Runs a graph on any rows of a step, on the CPU; called by any number of threads at once.

    Attributes:
        kind: ``"rows"``.
        name: ``"array"``.
        graph: the ops.
    """

    kind: Literal["rows"]
    name: str
    graph: Graph

    def run(
        self, fields: Fields, draws: Sequence[Draw], out: Mapping[str, Array], names: Collection[str] | None = None,
        memory: Memory | None = None,
    ) -> Fields:  # fmt: skip
        """Return the fields of ``graph.results`` after all ops, as ``graph.spec_out`` says.

        The results share no memory with ``fields``, which are not written to.

        Args:
            fields: those of ``graph.touched``.
            draws: of every op, for these rows.
            out: arrays of the shape and dtype of results, by name: those results are written into
                them.
            names: of the results that are needed beside those in ``out``; all if left out. The
                others are left out.
            memory: gives memory for images of sizes of their own that are results, where these are
                written and not views; new memory if left out.

        Raises:
            RowError: a row cannot be decoded, or an op cannot take its values.
        """

    @property
    def has_makers(self) -> bool:
        """True if all ops can be done by threads of the core while they read; see ``makers``."""

    def makers(self, draws: Sequence[Draw], count: int) -> dict[str, Maker]:
        """Return for each field of ``graph.touched`` the form that makes its result of bytes as
        they are read.

        Args:
            draws: of every op, for these rows.
            count: how many rows there are.

        Raises:
            RowError: an op cannot take the draws of a row.
        """

    def describe(self) -> dict[str, str]:
        """Return each choice and its reason, a line each."""

    def close(self) -> None:
        """Give back memory."""


class BatchExecutor(Protocol):
    """Runs a graph on whole batches, in order; used by one thread at a time.

    On a GPU all calls belong on one stream, CuPy's current one: inputs and results are ready in its
    order.

    Attributes:
        kind: ``"batches"``.
        name: ``"array"`` or ``"dali"``.
        device: ``"cpu"`` or ``"gpu:0"`` ...
        any_length: True if batches may have any number of rows.
        bundles: True if inputs may still wait in the current `device.Bundle`: ``start`` settles it.
        graph: the ops.
    """

    kind: Literal["batches"]
    name: str
    device: str
    any_length: bool
    bundles: bool
    graph: Graph

    def start(self, fields: Fields, draws: Sequence[Draw]) -> None:
        """Queue a batch; never waits for a GPU.

        Args:
            fields: those of ``graph.touched``; host memory must stay unchanged until the batch is
                finished, and on a GPU until the stream has come so far.
            draws: of every op.

        Raises:
            SpecError: fields or draws do not fit the graph. Nothing was started then.
        """

    def finish(self) -> Fields:
        """Return the fields of the oldest batch that was started: those of ``graph.results``, as
        ``spec_out`` says.

        On a GPU it waits for the device only where an op checks values: until they are checked.

        Raises:
            RowError: a row cannot be used; the executor is ready for the next batch.
            SpecError: no batch was started.
        """

    def row_error(self, fields: Fields, draws: Sequence[Draw], row: int) -> RowError | None:
        """Return why a row of a batch cannot be used, found out by running it alone; None if it can
        be.

        Batches that were started are not touched by it.

        Args:
            fields: of the whole batch, as for ``start``.
            draws: of every op.
            row: which one.
        """

    def reset(self) -> None:
        """Forget the batches that were started and not finished."""

    def describe(self) -> dict[str, str]:
        """Return each choice and its reason, a line each."""

    def close(self) -> None:
        """Give back threads and memory; results that were returned stay valid."""
