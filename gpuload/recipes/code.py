"""Ops: a tuple of ops that prints as the code that makes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any

from gpuload.errors import GpuloadError
from gpuload.ops import Op

WIDTH = 100  # columns of a line, but for the name of the op that it begins with
DIGITS = 9  # of a number that stands for two


class Ops(tuple[Op, ...]):
    """Ops for ``gl.Loader(ops=...)``. ``print`` shows their code, which makes equal ops wherever it
    is pasted.

    It is a tuple, to take parts of or to put other ops behind:
    ``gl.recipes.mae() + [gl.ops.Cast("float16")]``.
    """

    __slots__ = ()

    def __add__(self, ops: Iterable[Op]) -> Ops:  # type: ignore[override]  # tuples add tuples alone
        """Return these ops and then those of a list or a tuple."""
        if isinstance(ops, (list, tuple)):
            return Ops((*self, *ops))
        return NotImplemented

    def __repr__(self) -> str:
        """Return the code of a list of the ops, one a line; ops that are the same on several fields
        stand once."""
        return _in_lines([_code(entry, 4) for entry in _entries(self)], 0)


class _Repeat:
    """Ops that are done on several fields."""

    def __init__(self, ops: Sequence[Op], on: Sequence[str]) -> None:
        self.ops, self.on = tuple(ops), tuple(on)


def _entries(ops: Sequence[Op]) -> Iterator[Op | _Repeat]:
    """Give the ops, with those in one that follow one another and are the same on several
    fields."""
    groups: list[tuple[Any, list[Op]]] = []
    for op in ops:
        if not groups or groups[-1][0] != op.on or not isinstance(op.on, str):
            groups.append((op.on, []))
        groups[-1][1].append(op)
    while groups:
        on, group = groups[0]
        if isinstance(on, str):
            ops_without_on = [replace(op, on=None) for op in group]
        else:
            ops_without_on = []
        count = 1
        while ops_without_on and count < len(groups) and _is_again(ops_without_on, *groups[count]):
            count += 1
        if count > 1:
            yield _Repeat(ops_without_on, [name for name, _ in groups[:count]])
        else:
            yield from group
        groups = groups[count:]


def _is_again(ops_without_on: list[Op], on: Any, group: list[Op]) -> bool:
    """Return True if a group of ops is the same as another one, on another field."""
    return isinstance(on, str) and [replace(op, on=None) for op in group] == ops_without_on


def _code(value: Any, indent: int | None) -> str:
    """Return the code of a value.

    Args:
        value: an op, ops on several fields, or an argument of an op.
        indent: the columns before it, for a list of ops that is longer than a line; None for one
            line in any case.
    """
    if isinstance(value, _Repeat):
        begin = indent or 0
        lines = _in_lines([_code(op, begin + 4) for op in value.ops], begin)
        return f"*gl.ops.repeat({lines}, on={_in_columns(value.on, begin)})"
    if isinstance(value, Op):
        texts = [f"{name}{_code(argument, indent)}" for name, argument in _arguments(value)]
        return f"gl.ops.{type(value).__name__}({', '.join(texts)})"
    if not isinstance(value, tuple):
        return repr(value)
    if not any(isinstance(entry, (Op, tuple)) for entry in value):
        return _in_columns(value, indent)
    line = f"[{', '.join(_code(entry, None) for entry in value)}]"
    if indent is None or indent + len(line) <= WIDTH:
        return line
    return _in_lines([_code(entry, indent + 4) for entry in value], indent)


def _in_lines(texts: Sequence[str], indent: int) -> str:
    """Return a list of texts with one a line, in brackets; ``indent`` are the columns before the
    last bracket."""
    return "".join(
        ["[\n", *(f"{' ' * (indent + 4)}{text},\n" for text in texts), " " * indent, "]"]
    )


def _in_columns(values: tuple[Any, ...], indent: int | None) -> str:
    """Return a tuple of names or numbers, over as many lines as it takes; arguments as of
    ``_code``."""
    line, lines = "", []
    for text in map(repr, values):
        if indent is not None and len(line) + len(text) > WIDTH - indent:
            lines.append(line.rstrip())
            line = " " * (indent + 4)
        line += f"{text}, "
    if len(values) == 1:
        lines.append(line.rstrip())
    else:
        lines.append(line.removesuffix(", "))
    return f"({chr(10).join(lines)})"


def _arguments(op: Op) -> list[tuple[str, Any]]:
    """Return the shortest arguments that make an equal op, each with ``"name="``, or "" where its
    place names it.

    An argument is left out if the op is the same without it.
    """
    arguments = {field.name: getattr(op, field.name) for field in fields(op) if field.init}
    for field in fields(op):
        rest = {name: value for name, value in arguments.items() if name != field.name}
        if field.default is not MISSING and _makes(op, rest):
            arguments = rest
        else:
            shorter = [
                {**arguments, field.name: value} for value in _shorter(arguments[field.name])
            ]
            arguments = next((changed for changed in shorter if _makes(op, changed)), arguments)
    by_place = {
        field.name
        for field in fields(op)
        if not field.kw_only
        and (field.default is MISSING or field.name == "on")
        and field.name in arguments
    }
    names = sorted(arguments, key=lambda name: (name not in by_place, name == "on"))
    return [("" if name in by_place else f"{name}=", arguments[name]) for name in names]


def _makes(op: Op, arguments: dict[str, Any]) -> bool:
    """Return True if these arguments make an equal op."""
    try:
        return type(op)(**arguments) == op
    except (GpuloadError, TypeError):
        return False


def _shorter(value: Any) -> Iterator[Any]:
    """Give shorter values that may stand for an argument: one number for two, a whole number for a
    float."""
    if (
        isinstance(value, tuple)
        and len(value) == 2
        and all(isinstance(number, (int, float)) for number in value)
    ):
        low, high = value
        yield low if low == high else round((high - low) / 2, DIGITS)
    if isinstance(value, float) and value.is_integer():
        yield int(value)
    if isinstance(value, dict):
        yield {
            name: int(number) if isinstance(number, float) else number
            for name, number in value.items()
        }
    if isinstance(value, tuple) and all(
        isinstance(number, float) and number.is_integer() for number in value
    ):
        yield tuple(map(int, value))
