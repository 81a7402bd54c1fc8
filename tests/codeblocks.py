"""The Python in Markdown pages, and how it is run: what a page shows is what happens.

    <!-- test: rows -->       the block is run, and the blocks of one name share what they define
    <!-- file: table.py -->   the block is written to that file, which later blocks import;
                              pytest runs ``test_*.py``

Such a comment stands above the block. A block of ``text`` that directly follows one of Python is
what that prints.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(
    r"<!-- (test|file): ([\w.]+) -->\n```python\n(.*?)```\n(?:\n?```text\n(.*?)```)?", re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """One block of Python of a page.

    Attributes:
        kind: ``"test"`` or ``"file"``.
        name: of the group, or of the file.
        code: what it holds.
        printed: what the page says that it prints; None where it says nothing.
        line: of the page, where the code begins.
    """

    kind: str
    name: str
    code: str
    printed: str | None
    line: int


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page in their order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(match[1], match[2], match[3], match[4], text.count("\n", 0, match.start(3)) + 1)
        for match in BLOCK.finditer(text)
    ]


def without_comment(page: Path) -> int:
    """Return how many blocks of Python a page has that nothing runs."""
    return page.read_text(encoding="utf-8").count("```python") - len(blocks_of(page))


def run(page: Path, blocks: list[Block], names: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run blocks in the working folder ``folder``, where their files are written; returns what they
    defined."""
    for block in blocks:
        if block.kind == "file":
            (folder / block.name).write_text(block.code, encoding="utf-8")
            if block.name.startswith("test_"):
                run_tests(folder, block.name)
            continue
        code = compile("\n" * (block.line - 1) + block.code, page.name, "exec")
        if block.printed is None:
            exec(code, names)
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(code, names)
        assert out.getvalue().strip() == block.printed.strip(), (
            f"{page.name}, line {block.line}, prints\n{out.getvalue()}"
        )
    return names


def run_tests(folder: Path, name: str) -> None:
    """Run a file of tests in a Python of its own, as a reader of the page would."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not gpu",
        name,
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=110
    )
    assert process.returncode == 0, process.stdout
