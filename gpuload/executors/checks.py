"""Checks: values that ops cannot take, found where the values are and told on the host later.

Flow  ``ask`` as soon as the values are there; ``answer`` when the batch is handed out. On a GPU the question is queued
      on CuPy's current stream with an event behind it. ``answer`` waits for that event alone and then fetches one byte
      on a stream of its own: work that was queued later, of other batches, is not waited for. Nothing on the host is
      written to by the device in between, so that a batch that is forgotten needs no waiting.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from gpuload.executors.base import Values
from gpuload.ops.base import Op
from gpuload.ragged import Ragged


class Checks:
    """The checks of one batch.

    Args:
        xp: NumPy, or CuPy with the device and the stream of the values as its current ones.
    """

    def __init__(self, xp: ModuleType) -> None:
        self._xp = xp
        self._asked: list[tuple[Op, Values, Any]] = []  # op, values, which rows are wrong
        self._is_wrong = False  # of what lies on the host
        self._flag: Any = None  # the same of what lies on the device, there
        self._event: Any = None

    def ask(self, op: Op, values: Values) -> None:
        """Find out whether an op, one that checks, can take the values of a batch; on a GPU they may be on the host."""
        xp = np if self._xp is np or _is_on_host(values) else self._xp
        wrong = op.check(xp, values)
        self._asked.append((op, values, wrong))
        if xp is np:
            self._is_wrong |= bool(wrong.any())
            return
        self._flag = wrong.any() if self._flag is None else self._flag | wrong.any()
        self._event = xp.cuda.get_current_stream().record()

    def answer(self) -> None:
        """Raise ``RowError`` for the first row that was found wrong; waits until that is known."""
        if not self._is_wrong and not self._is_wrong_there():
            return
        for op, values, wrong in self._asked:
            if wrong.any():
                row = int(wrong.argmax())
                raise op.complaint(values[row]).moved(row)

    def _is_wrong_there(self) -> bool:
        if self._event is None:
            return False
        self._event.synchronize()
        return bool(self._flag.get(stream=self._xp.cuda.Stream(non_blocking=True)))


def _is_on_host(values: Values) -> bool:
    one = values.payload if isinstance(values, Ragged) else values[0] if isinstance(values, list) else values
    return isinstance(one, np.ndarray)
