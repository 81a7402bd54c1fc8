"""The lists of names in `gpuload/ops/__init__.py`, as its imports for type checkers give them.

An op is one line there, in the branch ``if TYPE_CHECKING``. ``python -m tests.opnames`` writes ``__all__``, which
type checkers read as a literal, and the table of lazy names, which Python needs without these imports.
"""

from __future__ import annotations

import ast
import re

from tests import house
from tests.codeblocks import ROOT

INIT = ROOT / "gpuload" / "ops" / "__init__.py"
PACKAGE = "gpuload.ops"
ALL = re.compile(r"__all__ = \[\n(?:    .*\n)*\]\n")
TABLE = re.compile(r"(?<=    __name__,\n)    \{\n(?:        .*\n)*    \},\n")


def filled(text: str) -> str:
    """Return the text of the package with both lists as its imports give them."""
    branch = next(node for node in ast.parse(text).body if house._is_type_checking(node))
    names = {
        node.module.removeprefix(f"{PACKAGE}."): [alias.name for alias in node.names]
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
    }
    listed = sorted((name for part in names.values() for name in part), key=_key)
    lines = [f'    "{name}",\n' for name in listed]
    text = ALL.sub("".join(["__all__ = [\n", *lines, "]\n"]), text, count=1)
    rows = [_row(module, part) for module, part in names.items()]
    return TABLE.sub("".join(["    {\n", *rows, "    },\n"]), text, count=1)


def _key(name: str) -> tuple[int, str]:
    """Return the place of a name in ``__all__``: constants, classes, functions."""
    return 2 * name.islower() + (not name.isupper()), name


def _row(module: str, names: list[str]) -> str:
    """Return a row of the table, as ``ruff format`` has it."""
    texts = [f'"{name}"' for name in names]
    row = f'        "{module}": ({", ".join(texts)}{"," * (len(names) == 1)}),\n'
    if len(row) <= 101:
        return row
    return "".join(
        [f'        "{module}": (\n', *(f"            {text},\n" for text in texts), "        ),\n"]
    )


if __name__ == "__main__":
    INIT.write_text(filled(INIT.read_text(encoding="utf-8")), encoding="utf-8")
