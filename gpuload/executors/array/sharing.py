"""Results that share no memory with the values that they were made of: a caller may change or drop
either."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from gpuload.executors.base import Values
from gpuload.ragged import Ragged


def unshare(result: Any, rows: Any) -> Any:
    """Return a result that shares no memory with the rows that it was made of, and lies in C
    order."""
    if isinstance(result, Ragged):
        shares = np.may_share_memory(result.payload, rows.payload)
        return result.with_payload(result.flat.copy()) if shares else result
    return (
        result.copy(order="C")
        if np.may_share_memory(result, rows)
        else np.ascontiguousarray(result)
    )


def unshare_values(result: Values, inputs: Collection[Values]) -> Values:
    """Return values that share no memory with those that they were made of."""
    if isinstance(result, list):
        return [
            unshare_values(value, [values[row] for values in inputs])
            for row, value in enumerate(result)
        ]
    if isinstance(result, Ragged):
        return result.with_payload(unshare_values(result.flat, inputs))
    memory = [values.payload if isinstance(values, Ragged) else values for values in inputs]
    shares = any(
        np.may_share_memory(result, array) for array in memory if not isinstance(array, list)
    )
    return result.copy(order="C") if shares else np.ascontiguousarray(result)
