"""Calls: the arguments that opened a source, as texts for fingerprints and in values that JSON has.

JSON     None, booleans, numbers and texts as they are; lists, tuples, dicts, dtypes, bytes, dates
         and times of NumPy as ``{kind: value}``. Nothing else is stored, so that reading a call
         runs no code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

DEEPEST = 32  # values within values


class _NoValueError(ValueError):
    """A value is of another kind."""


def digest_of(arguments: Mapping[str, Any]) -> str:
    """Return a short text that differs for other arguments; "" where the values of one have no text
    of their own."""
    try:
        text = _text(dict(sorted(arguments.items())), DEEPEST)
    except _NoValueError:
        return ""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _text(value: Any, depth: int) -> str:
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return f"{type(value).__name__}:{value!r}"
    if isinstance(value, np.dtype):
        if not value.hasobject:
            return f"dtype:{np.lib.format.dtype_to_descr(value)!r}:{value}"
        return f"dtype:{value}"
    if isinstance(value, type):
        return f"type:{value.__qualname__}"
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return f"{value.dtype}:{int(value.astype(np.int64))}"
    if not depth:
        raise _NoValueError
    if isinstance(value, (list, tuple)):
        return f"({','.join(_text(item, depth - 1) for item in value)})"
    if isinstance(value, frozenset):
        return f"{{{','.join(sorted(_text(item, depth - 1) for item in value))}}}"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{_text(key, depth - 1)}={_text(item, depth - 1)}' for key, item in value.items())}}}"
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        return f"{type(value).__qualname__}{_text(parts, depth - 1)}"
    raise _NoValueError


def to_json(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return arguments in values that JSON has, and the names of those that have no such form."""
    values, rest = dict[str, Any](), list[str]()
    for name, value in arguments.items():
        try:
            values[name] = _value(value, DEEPEST)
        except _NoValueError:
            rest.append(name)
    return values, rest


def _value(value: Any, depth: int) -> Any:
    # Not `isinstance`: a subclass, as numpy.float64 is of float, would come back as another kind.
    if value is None or type(value) in (bool, int, float, str):
        return value
    if (
        isinstance(value, np.dtype) and not value.hasobject and value.kind != "V"
    ) or _is_structured(value):
        return {"dtype": _value(np.lib.format.dtype_to_descr(value), depth - 1)}
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return {"time": [value.dtype.str, int(value.astype(np.int64))]}
    if type(value) is bytes:
        return {"bytes": [value.hex()]}
    if not depth:
        raise _NoValueError
    if type(value) in (list, tuple):
        return {type(value).__name__: [_value(item, depth - 1) for item in value]}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": [[key, _value(item, depth - 1)] for key, item in value.items()]}
    raise _NoValueError


def _is_structured(value: Any) -> bool:
    return isinstance(value, np.dtype) and value.names is not None and not value.hasobject


def from_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that `to_json` stored.

    Raises:
        ValueError: these are none.
    """
    return {name: _argument(value, DEEPEST) for name, value in values.items()}


def _argument(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if not isinstance(value, dict) or len(value) != 1 or not depth:
        raise ValueError(f"{value!r} is no argument"[:200])
    [(kind, content)] = value.items()
    if kind == "dtype":
        return _dtype(_argument(content, depth - 1))
    if not isinstance(content, list):
        raise ValueError(f"{value!r} is no argument"[:200])
    if kind == "dict":
        if not all(
            isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)
            for entry in content
        ):
            raise ValueError(f"{value!r} is no argument"[:200])
        return {key: _argument(item, depth - 1) for key, item in content}
    items = [_argument(item, depth - 1) for item in content]
    if kind in ("time", "bytes"):
        return _bytes_or_time(kind, items)
    if kind not in ("list", "tuple"):
        raise ValueError(f"{value!r} is no argument"[:200])
    if kind == "list":
        return items
    return tuple(items)


def _bytes_or_time(kind: str, items: list[Any]) -> Any:
    """Return bytes, or a date or time of NumPy; raises ``ValueError`` for others."""
    if kind == "bytes" and len(items) == 1 and isinstance(items[0], str):
        return bytes.fromhex(items[0])
    if (
        kind == "time"
        and len(items) == 2
        and type(items[1]) is int
        and -(2**63) <= items[1] < 2**63
    ):
        dtype = _dtype(items[0])
        if dtype.kind in "mM":
            return np.array(items[1], np.int64).view(dtype)[()]
    raise ValueError(f"{items!r} is no argument"[:200])


def _dtype(descr: Any) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = np.lib.format.descr_to_dtype(descr)
    except (TypeError, SyntaxError, KeyError, IndexError, OverflowError, RecursionError) as error:
        raise ValueError(f"{descr!r} is no dtype: {error}"[:200]) from None
    if dtype.hasobject:
        raise ValueError(f"{descr!r} holds objects"[:200])
    return dtype
