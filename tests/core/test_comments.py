"""Comments of the core name modules, functions and files of gpuload: all of them are there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.environments import ROOT

PACKAGE = ROOT / "gpuload"
CPP = PACKAGE / "core" / "cpp"
NAME = re.compile(r"`([\w/]+\.(?:py|cpp|hpp)|[a-z_]\w*(?:\.\w+)+)`")


@cache
def definitions(path: Path) -> set[str]:
    """Return the names that a module defines."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def exists(name: str) -> bool:
    """Return True if a name is one of a file, of a module, or of a definition in a module.

    A module may be named without its first rooms: `walk.Walk` is `kernels.walk.Walk`.
    """
    if name.endswith((".py", ".cpp", ".hpp")):
        return any((folder / name).exists() for folder in (ROOT, PACKAGE, PACKAGE / "core", CPP))
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        pattern, rest = "/".join(parts[:count]), set(parts[count:])
        for path in (*PACKAGE.rglob(f"{pattern}.py"), *PACKAGE.rglob(f"{pattern}/__init__.py")):
            if rest <= definitions(path):
                return True
    return False


def names_in_comments(folder: Path) -> Iterator[tuple[str, str]]:
    """Return the names that stand in backquotes, and their files and lines."""
    for path in sorted(folder.glob("*.?pp")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for name in NAME.findall(line.partition("//")[2]):
                yield f"{path.name}:{number}", name


def test_every_module_that_a_comment_names_exists():
    names = list(names_in_comments(CPP))

    assert len(names) > 20
    assert [(place, name) for place, name in names if not exists(name)] == []


def test_a_module_or_a_function_that_is_gone_is_found(tmp_path):
    (tmp_path / "a.cpp").write_text(
        "// As `images.heads.coded`, `walk.nothing`, `walk.Walk`, `random.hpp` and `gone.hpp`.\n"
        "int64_t count();  // see `images/none.py`, `order.Permutation`, `std::sort`\n"
    )

    missing = [name for _, name in names_in_comments(tmp_path) if not exists(name)]

    assert missing == ["images.heads.coded", "walk.nothing", "gone.hpp", "images/none.py"]
