"""Figures of the house: how wide it is, printed by ``python -m tests.house --figures``.

Source   Modules are parsed, never imported, but for two figures that a program of its own measures:
         functions that a batch crosses, and the way of ``source`` through ``Loader(...)``.
Code     Lines that are neither blank, nor a comment alone, nor part of a docstring.
Goals    Each figure stands beside the goal that it is held to; ``tests/house.py`` refuses four of
         them in any module.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from tests import house

ROOT = Path(__file__).parents[1]
INTERFACES = {
    "Op": ("ops/base.py", 14),
    "Loader": ("loader.py", 15),
    "Source": ("sources/base.py", 20),
}
# Words with which a sentence begins at its end.
TURNED = re.compile(r"\b(who|whose|whom|whoever|nobody|what|whatever)\b", re.IGNORECASE)


@dataclass
class Width:
    """The width of some modules, as counts.

    Attributes:
        lines: all of them.
        code: lines of code.
        wide: lines of code of more than 100 characters.
        conditionals: conditional expressions.
        turned: words of comments and docstrings that `TURNED` finds.
    """

    lines: int = 0
    code: int = 0
    wide: int = 0
    conditionals: int = 0
    turned: int = 0

    def __add__(self, width: Width) -> Width:
        """Return the sum of each count."""
        names = [field.name for field in fields(self)]
        return Width(*(getattr(self, name) + getattr(width, name) for name in names))

    @property
    def shares(self) -> tuple[float, float, float]:
        """Conditional expressions per 1,000 lines of code, wide lines in percent, words per 1,000 lines."""
        code, lines = max(self.code, 1), max(self.lines, 1)
        return 1000 * self.conditionals / code, 100 * self.wide / code, 1000 * self.turned / lines


def width_of(module: house.Module) -> Width:
    """Return the width of one module."""
    lines = module.text.split("\n")[:-1]
    documentation = house.docstring_lines(module)
    prose = [*documentation.values(), *house.comments(module).values()]
    code = [
        line
        for number, line in enumerate(lines, 1)
        if line.strip() and number not in documentation and not line.lstrip().startswith("#")
    ]
    return Width(
        lines=len(lines),
        code=len(code),
        wide=sum(len(line) > house.MOST_LINE for line in code),
        conditionals=sum(isinstance(node, ast.IfExp) for node in module.nodes),
        turned=sum(len(TURNED.findall(text)) for text in prose),
    )


def readme() -> tuple[int, int]:
    """Return the line of the README's first Python, and the number of its words outside of code."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = text.split("\n")
    first = next(n for n, line in enumerate(lines, 1) if line.startswith("```python"))
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    prose = re.sub(r"\]\([^)]*\)|<[^>]*>", "]", prose)
    return first, len(re.findall(r"[A-Za-z0-9][\w.,'-]*", prose))


def crossings() -> dict[str, int]:
    """Return how many functions of the package the second epoch crosses, by work; and the way of ``source``."""
    command = [sys.executable, "-m", "tests.crossings"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(answer.stdout.splitlines()[-1])


def files_naming(word: str) -> list[str]:
    """Return the tracked files that name a word, without pages that are written and results."""
    command = ["git", "grep", "-ilw", word, "--", ".", ":!CHANGELOG.md", ":!benchmarks/results"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return answer.stdout.split()


def report(modules: list[house.Module]) -> Iterator[str]:
    """Yield the table: each figure beside its goal."""
    paths = {module.path: module for module in modules}
    total = sum((width_of(module) for module in modules), Width())
    conditionals, wide, turned = total.shares
    yield f"{'figure':58} {'now':>9} {'goal':>6}"
    for name, (path, goal) in INTERFACES.items():
        yield _row(f"public members of {name}", len(house.members(paths[path], name)), goal)
    yield _row(
        "class names that mean two things", len(list(house.class_names_mean_one_thing(modules))), 0
    )
    yield _row("conditional expressions per 1,000 lines of code", conditionals, 8)
    yield _row("lines of code over 100 characters, percent", wide, 4)
    yield _row(
        "functions over complexity 20", len(list(house.functions_have_few_paths(modules))), 0
    )
    for name, (count, goal) in crossings().items():
        yield _row(name, count, goal)
    yield _row("who, whose, what per 1,000 lines", turned, 2)
    line, words = readme()
    yield _row("line of the README's first Python", line, 25)
    yield _row("words of the README", words, 700)
    yield _row("lines of gpuload/, Python and C++", _all_lines(), 76000)


def _row(name: str, value: float, goal: float) -> str:
    number = f"{value:,}" if isinstance(value, int) else f"{value:.1f}"
    return f"{name:58} {number:>9} {goal:>6,}{'' if value <= goal else '  over'}"


def _all_lines() -> int:
    files = [p for p in (ROOT / "gpuload").rglob("*") if p.suffix in (".py", ".cpp", ".hpp", ".cu")]
    return sum(path.read_bytes().count(b"\n") for path in files)


def by_room(modules: list[house.Module]) -> Iterator[str]:
    """Yield the width of each room."""
    rooms: dict[str, Width] = defaultdict(Width)
    for module in modules:
        rooms[module.path.partition("/")[0]] += width_of(module)
    for room, width in sorted(rooms.items()):
        conditionals, wide, turned = width.shares
        yield (
            f"{room:20} lines {width.lines:6} conditionals {conditionals:5.1f} "
            f"wide {wide:4.1f} % who, what {turned:5.1f}"
        )


def main(arguments: list[str]) -> None:
    """Print the figures; with ``--rooms`` by room, with ``--places`` where the house is too wide."""
    modules = house.read(ROOT / "gpuload")
    if "--rooms" in arguments:
        print("\n".join(by_room(modules)))
    elif "--places" in arguments:
        for check in house.WIDTH:
            print("\n".join(check(modules)))
    else:
        print("\n".join(report(modules)))
