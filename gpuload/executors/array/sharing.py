"""Results that share no memory with the values that they were made of: a caller may change or drop
either."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from gpuload.executors.base import Values
from gpuload.ragged import Ragged


def unshare(result: Values, inputs: Collection[Values]) -> Values:
    """Return values that share no memory with those that they were made of, in C order."""
    if isinstance(result, list):
        return [
            unshare(value, [values[row] for values in inputs]) for row, value in enumerate(result)
        ]
    if isinstance(result, Ragged):
        return result.with_payload(unshare(result.flat, inputs))
    memory = [values.payload if isinstance(values, Ragged) else values for values in inputs]
    shares = any(
        np.may_share_memory(result, array) for array in memory if not isinstance(array, list)
    )
    return result.copy(order="C") if shares else np.ascontiguousarray(result)
