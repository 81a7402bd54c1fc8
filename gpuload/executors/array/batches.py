"""Array executor on a GPU: whole batches at once, queued on CuPy's current stream.

Ops that make a walk are one kernel, for any number of images. The other ops are run in their array
forms on CuPy; some of these launch kernels of their own (`Resize`).

Nothing here waits for the device but the answer to ``Checks``, in ``finish``: draws go there with
the batch, in the same upload (`device.Bundle`), or CuPy copies them through pinned memory of its
own, without waiting (CuPy 13, ``cupy.array``); and it frees memory in the order of the stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

from gpuload import device as devices
from gpuload.errors import DeviceError, RowError, SpecError
from gpuload.executors.array.groups import OpGroup, batch_runs, last_outputs
from gpuload.executors.array.values import as_values, run_joint
from gpuload.executors.base import Fields, Values, find_row_error, one_row
from gpuload.executors.checks import Checks
from gpuload.graph.graph import Graph
from gpuload.kernels.addresses import RowAddresses
from gpuload.ops.base import Draw
from gpuload.ragged import Ragged


class ArrayBatchExecutor:
    """Runs a graph in array code on the array library of a device; a ``BatchExecutor``.

    Args:
        graph: the ops.
        device: ``"gpu:N"``; ``"cpu"`` is NumPy.

    Raises:
        DeviceError: an op decodes images, or runs on NumPy alone: a loader has these run on rows,
            on the host.
    """

    kind: Literal["batches"] = "batches"
    name = "array"
    any_length = True
    bundles = True

    def __init__(self, graph: Graph, *, device: str) -> None:
        self.graph, self.device = graph, devices.choose(device)[0]
        if self.device != "cpu" and any(op.traits.codec for op in graph.ops):
            raise DeviceError(
                f'executor="array" on {self.device}',
                cause="CuPy does not decode images",
                remedy='let a loader decode on the host, decode="host"',
            )
        for op in [graph.ops[place] for place in graph.for_numpy]:
            if self.device != "cpu":
                raise DeviceError(
                    f"{op} on {self.device}",
                    cause="it runs on NumPy alone",
                    remedy="let a loader run it on the host",
                )
        self._xp = devices.xp(self.device)
        self._runs = batch_runs(graph, self._xp)
        self._last = last_outputs(graph)
        self._pending: deque[tuple[Fields, Checks]] = deque()

    def start(self, fields: Fields, draws: Sequence[Draw]) -> None:
        """Queue a batch; see ``BatchExecutor``."""
        self._pending.append(self._run(fields, draws))

    def row_error(self, fields: Fields, draws: Sequence[Draw], row: int) -> RowError | None:
        """Return why a row of a batch cannot be used; see ``BatchExecutor``."""
        return find_row_error(lambda: self.run_row(fields, draws, row))

    def run_row(self, fields: Fields, draws: Sequence[Draw], row: int) -> Fields:
        """Return the fields of one row of a batch, as a batch of its own; raises ``RowError`` if it
        cannot be used."""
        result, checks = self._run(*one_row(fields, draws, row))
        checks.answer()
        return result

    def _run(self, fields: Fields, draws: Sequence[Draw]) -> tuple[Fields, Checks]:
        checks, now = Checks(self._xp), {name: fields[name] for name in self.graph.touched}
        for run in self._runs:
            if isinstance(run, int):
                now |= {name: _in_place(self._xp, now[name]) for name in self.graph.targets[run]}
                joint = self.graph.ops[run].traits.joint
                if joint is None or not devices.begin(joint.array_fields):
                    now |= {name: devices.as_list(now[name]) for name in self.graph.targets[run]}
                results = run_joint(self.graph, run, self._xp, now, draws[run])
                # Fields that are handed out need memory of their own: a later op reads its field
                # and writes to other memory.
                handed_out = results.keys() & self._last[run]
                now |= results | {name: _copy_if_shared(results[name], now) for name in handed_out}
                continue
            name, group = run
            group_draws = [draws[place] for place in group.places]
            values = self._run_group(group, now[name], group_draws, checks)
            now[name] = as_values(self._xp, group.after, values)
        devices.settle()
        # Behind all questions: one event covers them, and the host asks for it when the batch is
        # handed out.
        checks.send()
        return now, checks

    def _run_group(self, group: OpGroup, x: Values, draws: list[Draw], checks: Checks) -> Any:
        """Return a field after the ops of a group."""
        if group.is_walk and len(x):
            devices.open_bundle()
            return group.walk_batch(self._xp, x, draws)
        x = _in_place(self._xp, x)
        for op, draw in zip(group.ops, draws, strict=True):
            if (check := op.traits.check) is not None:
                if not devices.begin(check.rows):
                    x = devices.as_list(x)
                checks.ask(op, x)
            if not devices.begin(op.array_batch):
                x = devices.as_list(x)
            x = op.array_batch(self._xp, x, draw)
        return x

    def finish(self) -> Fields:
        """Return the fields of the oldest batch that was started; see ``BatchExecutor``."""
        if not self._pending:
            raise SpecError("finish()", cause="no batch was started", remedy="call start() before")
        fields, checks = self._pending.popleft()
        checks.answer()
        return fields

    def cancel(self) -> None:
        """Forget the batch that was started last."""
        self._pending.pop()

    def reset(self) -> None:
        """Forget the batches that were started and not finished."""
        self._pending.clear()

    def describe(self) -> dict[str, str]:
        """Return each choice, a line each."""
        return {
            "executor": f"array, {self._xp.__name__}",
            "device": self.device,
            "stages": "; ".join(map(self._line, self._runs)) or "none: no op runs on whole batches",
        }

    def _line(self, run: int | tuple[str, OpGroup]) -> str:
        if isinstance(run, int):
            op = type(self.graph.ops[run]).__name__
            return f"{', '.join(self.graph.outputs[run])}: together by {op}"
        name, group = run
        ops = " ".join(type(op).__name__ for op in group.ops)
        form = "one kernel" if group.is_walk else "array"
        return f"{name}: {form} of {ops}"

    def close(self) -> None:
        """Give back memory."""
        self.reset()


def _in_place(xp: Any, values: Values | RowAddresses) -> Values:
    """Return the values of a field, an array where only the addresses of its rows are known."""
    return values.gather(xp) if isinstance(values, RowAddresses) else values


def _copy_if_shared(values: Values, fields: Fields) -> Values:
    """Return the values of a field in memory of its own, where they are those of another field."""
    if isinstance(values, list):
        devices.settle()
        arrays = {
            id(array) for column in fields.values() if isinstance(column, list) for array in column
        }
        return [array.copy() if id(array) in arrays else array for array in values]
    if not any(values is column for column in fields.values()):
        return values
    if isinstance(values, devices.Views):
        return values.move(devices.copy(values.memory))
    if isinstance(values, Ragged):
        return values.with_payload(devices.copy(values.flat))
    return devices.copy(values)
