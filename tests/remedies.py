"""Remedies as data: the calls and commands that the text of a remedy names, and whether they could
be typed.

`snippets` finds them: what begins with ``gl.``, a bridge's usual name or an op, with its arguments,
and the commands of a shell. `fault` says why one could not be typed: a name, an argument, an extra,
a verb or an option that there is not.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import gpuload as gl
from gpuload.errors import GpuloadError

BRIDGES = {
    "gltf": "gpuload.bridges.tensorflow",
    "gltorch": "gpuload.bridges.torch",
    "gljax": "gpuload.bridges.jax",
    "glcupy": "gpuload.bridges.cupy",
}
SOURCE = gl.arrays(x=[1])
OBJECTS = {"source": SOURCE, "loader": gl.Loader(SOURCE, 1, device="cpu")}
NAME = re.compile(
    r"(?<![\w./'\"])(?:gl|gltf|gltorch|gljax|glcupy|source|loader)\.[A-Za-z_][\w.]*\w"
    r"|(?<![\w.'\"])[A-Z][A-Za-z]+(?=\()"
)
COMMAND = re.compile(
    r"""pip install (?:-[\w-]+ )*(?:"[^"]*"|'[^']*'|[\w.\[\],=-]+)"""
    r"""|(?:(?<=`)|^)gpuload [a-z]+(?: --?[\w-]+| [\w./{}*'"-]+)*|gpuload index"""
)
PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
WORDS = {
    "Python",
    "CSV",
    "NPZ",
    "PyArrow",
    "PyDataset",
}  # of prose, in front of a bracket; a class of a bridge


_texts_of_errors: list[str] = []
_known_texts: set[str] = set()


def note_errors() -> None:
    """Have each error of gpuload that is made from now on note its remedy."""
    make = GpuloadError.__init__

    def noting(self: GpuloadError, what: str, *, cause: str = "", remedy: str = "") -> None:
        make(self, what, cause=cause, remedy=remedy)
        _texts_of_errors.append(self.remedy)

    GpuloadError.__init__ = noting  # type: ignore[method-assign]


def new_faults() -> list[str]:
    """Return the faults in the remedies of errors that were made since the last call."""
    texts = {*_texts_of_errors} - _known_texts
    _texts_of_errors.clear()
    _known_texts.update(texts)
    reasons = ((snippet, fault(snippet)) for text in texts for snippet in snippets(text))
    return [f"{snippet}: {reason}" for snippet, reason in reasons if reason]


def snippets(text: str) -> Iterator[str]:
    """Yield the calls, names and commands in a remedy."""
    for match in COMMAND.finditer(text):
        yield match[0]
    for match in NAME.finditer(text):
        name, rest = match[0], text[match.end() :]
        if rest.startswith("("):
            end = _closing(rest)
            if end:
                yield name + rest[:end]
                continue
        yield name


def _closing(text: str) -> int:
    """Return the place behind the bracket that closes the first one; 0 if there is none."""
    depth, quote = 0, ""
    for place, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if not depth:
                return place + 1
    return 0


def fault(snippet: str) -> str | None:
    """Return why a snippet cannot be typed; None if it could be."""
    if snippet.startswith("pip install"):
        return _fault_of_extras(snippet)
    if snippet.startswith("gpuload "):
        return _fault_of_verb(snippet)
    name, bracket, _ = snippet.partition("(")
    target = _resolve(name)
    if name in WORDS:
        return None
    if "…" in name or (not bracket and "…" in snippet):
        return None
    if target is None:
        return f"there is no {name}"
    if not bracket:
        return None
    if inspect.ismodule(target):
        return f"{name} is a module"
    try:
        call = ast.parse(
            re.sub(r"=(?=[,)])", "=...", snippet.replace("…", "...")), mode="eval"
        ).body
    except SyntaxError:
        is_whole = "…" not in snippet and "..." not in snippet
        return f"{snippet} is no Python" if is_whole else None
    return _fault_of_arguments(target, call) if isinstance(call, ast.Call) else None


def _resolve(name: str) -> Any:
    first, *rest = name.split(".")
    if not rest:  # an op
        return getattr(gl.ops, name, None) or getattr(gl, name, None) or __builtins__.get(name)
    target = {"gl": gl, **OBJECTS}.get(first)
    if first in BRIDGES:
        try:
            target = importlib.import_module(BRIDGES[first])
        except ImportError:
            return True
    for part in rest:
        target = getattr(target, part, None)
        if target is None:
            return None
    return target


def _fault_of_arguments(target: Any, call: ast.Call) -> str | None:
    if not callable(target):
        return f"{ast.unparse(call.func)} cannot be called"
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    names = [keyword.arg for keyword in call.keywords if keyword.arg]
    unknown = [name for name in names if name not in parameters and name.isascii()]
    return f"{ast.unparse(call.func)} takes no {unknown[0]}=" if unknown else None


@cache
def extras() -> set[str]:
    """Return the extras of pyproject.toml."""
    lines = (
        PYPROJECT.read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    )
    return set(re.findall(r"^([\w-]+) *=", lines, re.MULTILINE))


def _fault_of_extras(snippet: str) -> str | None:
    names = [
        name.strip() for group in re.findall(r"\[([^\]]*)\]", snippet) for name in group.split(",")
    ]
    unknown = [
        name for name in names if name not in extras() and name.isascii() and "{" not in name
    ]
    return f"there is no extra {unknown[0]!r}" if unknown else None


def _fault_of_verb(snippet: str) -> str | None:
    click = pytest.importorskip("click", reason="the verbs are written with it")
    from gpuload.cli import group

    _, verb, *words = snippet.split()
    command = group.get_command(click.Context(group), verb)
    if command is None:
        return f"there is no gpuload {verb}"
    options = {
        option
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    unknown = [
        word
        for word in words
        if word.startswith("--") and word.partition("=")[0] not in {*options, "--help"}
    ]
    return f"gpuload {verb} takes no {unknown[0]}" if unknown else None


def static() -> Iterator[tuple[str, str]]:
    """Yield place and text of each string that a remedy may be made of, with … for what is filled
    in."""
    for path in sorted((Path(__file__).parents[1] / "gpuload").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            for keyword in getattr(node, "keywords", []) if isinstance(node, ast.Call) else []:
                if keyword.arg == "remedy":
                    for text in _texts(keyword.value):
                        yield f"{path.name}:{keyword.value.lineno}", text


def _texts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
    elif isinstance(node, ast.BinOp):
        yield from _texts(node.left)
        yield from _texts(node.right)
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _texts(value)
