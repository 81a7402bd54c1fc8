"""Arguments of ops: checked when the op is made, and kept in one form, so that equal ops are told alike.

What is told of an op is part of a loader's state: ``[1, 2]``, ``(1, 2)`` and an array of them must not be three ops.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gpuload.errors import SpecError


def keep(op: Any, **values: Any) -> None:
    """Set the attributes of a frozen op, in ``__post_init__``."""
    for name, value in values.items():
        object.__setattr__(op, name, value)


def refuse(op: Any, name: str, value: Any, wanted: str, remedy: str = "") -> SpecError:
    """Return the error for an argument that is not what it has to be."""
    return SpecError(
        f"gl.ops.{type(op).__name__}({name}={value!r})",
        cause=f"{name} must be {wanted}",
        remedy=remedy or f"pass {wanted}",
    )


def whole(op: Any, name: str, value: Any, *, least: int = 1) -> int:
    """Return a whole number of at least ``least``."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < least:
        raise refuse(op, name, value, f"a whole number of at least {least}")
    return int(value)


def number(op: Any, name: str, value: Any) -> float:
    """Return a finite number as a float."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise refuse(op, name, value, "a number")
    if not math.isfinite(value):
        raise refuse(op, name, value, "a finite number")
    return float(value)


def numbers(op: Any, name: str, value: Any) -> float | tuple[float, ...]:
    """Return one finite number, or a tuple of them for a sequence or a one-dimensional array."""
    if isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, (str, bytes)) and np.ndim(value) == 1:
        if not len(value):
            raise refuse(op, name, value, "a number, or one for each channel")
        return tuple(number(op, name, one) for one in value)
    return number(op, name, value)


def probability(op: Any, name: str, value: Any) -> float:
    """Return a probability, 0 to 1."""
    p = number(op, name, value)
    if not 0 <= p <= 1:
        raise refuse(op, name, value, "a probability, 0 to 1")
    return p


def interval(op: Any, name: str, value: Any) -> tuple[float, float]:
    """Return two numbers ``(low, high)`` with 0 < low <= high."""
    pair = numbers(op, name, value)
    if not isinstance(pair, tuple) or len(pair) != 2 or not 0 < pair[0] <= pair[1]:
        raise refuse(op, name, value, "two numbers, low and high, with 0 < low <= high")
    return pair


def flag(op: Any, name: str, value: Any) -> bool:
    """Return True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise refuse(op, name, value, "True or False")
    return bool(value)


def choice(op: Any, name: str, value: Any, choices: Iterable[str]) -> str:
    """Return one of a few words."""
    words = list(choices)
    if not isinstance(value, str) or value not in words:
        raise refuse(op, name, value, f"one of {words}")
    return value


def dtype_name(op: Any, name: str, value: Any, names: Iterable[str]) -> str:
    """Return the NumPy name of a dtype, ``"float32"`` say, that is one of ``names``."""
    words = list(names)
    try:
        found = str(np.dtype(value).name)
    except TypeError:
        found = ""
    if value is None or found not in words:
        raise refuse(op, name, value, f"one of {words}")
    return found
