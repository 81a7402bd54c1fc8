"""Checks: values that ops cannot take, found where the values are, and reported on the host later.

Flow  ``ask`` as soon as the values are there, ``send`` after the last question, ``answer`` when the
      batch is handed out. On a GPU the questions and the copy of one byte to the host are queued on
      CuPy's current stream, with an event behind them. ``answer`` waits for that event alone, if it
      has not passed; work that was queued later, of other batches, is not waited for. The byte is
      kept until then, also where the batch is forgotten.
Flag  A kernel of our own sets it: CuPy makes ``any`` of CUB, which takes NVRTC 1.3 s to compile, at
      the first batch.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import device as devices
from gpuload.executors.base import Values
from gpuload.kernels import cuda
from gpuload.ops.base import Op
from gpuload.ops.traits import ValueCheck
from gpuload.ragged import Ragged


class Checks:
    """The checks of one batch.

    Args:
        xp: NumPy, or CuPy with the device and the stream of the values as its current ones.
    """

    def __init__(self, xp: ModuleType) -> None:
        self._xp = xp
        # What may be wrong, values, which rows are wrong.
        self._questions: list[tuple[ValueCheck, Values, Any]] = []
        self._is_wrong = False  # of values on the host
        self._flag: Any = None  # the same of values on the device, there
        self._answer: NDArray[np.bool_] | None = (
            None  # a copy of the flag on the host, there once the event has passed
        )
        self._event: Any = None

    def ask(self, op: Op, values: Values) -> None:
        """Find out whether an op, one that checks, can take the values of a batch; on a GPU they
        may be on the host."""
        if self._xp is np or _is_on_host(values):
            xp = np
        else:
            xp = self._xp
        check = op.traits.check
        if check is None:
            raise RuntimeError(f"{op} takes all values")
        wrong = check.rows(xp, values)
        self._questions.append((check, values, wrong))
        if isinstance(wrong, np.ndarray):
            self._is_wrong |= bool(wrong.any())
        else:
            self._set_flag(wrong)

    def _set_flag(self, wrong: Any) -> None:
        """Set the flag if a row is wrong: one for all questions, so that one byte comes to the
        host."""
        if not devices.compiles(self._xp):
            if self._flag is None:
                self._flag = wrong.any()
            else:
                self._flag = self._flag | wrong.any()
            return
        if self._flag is None:
            self._flag = devices.zeros((), bool)
        blocks = -(-len(wrong) // cuda.THREADS)
        if blocks:
            arguments = wrong, self._flag, np.int32(len(wrong))
            devices.kernel(cuda.source("flag.cu"), "set_flag")(
                (blocks,), (cuda.THREADS,), arguments
            )

    def send(self) -> None:
        """Queue the copy of the answer to the host; nothing is asked after it."""
        if self._flag is not None:
            self._answer, self._event = devices.fetch(self._flag)

    def answer(self) -> None:
        """Raise ``RowError`` for the first row that was found wrong; waits until that is known."""
        if not self._is_wrong and not self._is_wrong_there():
            return
        for check, values, wrong in self._questions:
            rows = self._on_host(wrong)
            if rows.any():
                row = int(rows.argmax())
                raise check.error(self._on_host(values[row])).shift_rows(row)

    def _on_host(self, value: Any) -> Any:
        """Return an array on the host, and any other value as it is."""
        if self._xp is np or not isinstance(value, self._xp.ndarray):
            return value
        return value.get()

    def _is_wrong_there(self) -> bool:
        if self._event is None:
            return False
        # Asked first: ``synchronize`` is a call of the driver, and the event has usually passed by
        # now.
        if not self._event.done:
            self._event.synchronize()
        return bool(self._answer)


def _is_on_host(values: Values) -> bool:
    if isinstance(values, Ragged):
        array = values.payload
    elif isinstance(values, list):
        array = values[0]
    else:
        array = values
    return isinstance(array, np.ndarray)
