"""The pages that list formats, as the formats say it of themselves (`Format.records`).

``python -m tests.sourcepages`` writes the table of files in `docs/sources.md` and the calls in `docs/api/sources.md`.
"""

from __future__ import annotations

import re

import gpuload as gl
from gpuload.formats import FORMATS
from tests.codeblocks import ROOT

PAGE, API = ROOT / "docs" / "sources.md", ROOT / "docs" / "api" / "sources.md"
TABLE = re.compile(r"\| files \| a record is \|\n(?:\|.*\|\n)+")
CALLS = re.compile(r"(?<=::: gpuload\.open\.open\n)(?:::: .*\n)+")


def table() -> str:
    """Return the table of the calls that open files, and of their records."""
    rows = [
        f"| `{call}` | {record} |\n" for form in FORMATS for call, record in form.records.items()
    ]
    return "".join(["| files | a record is |\n", "|---|---|\n", *rows])


def calls() -> str:
    """Return the directives of mkdocstrings for these calls."""
    names = [re.match(r"gl\.(\w+)", call)[1] for form in FORMATS for call in form.records]  # type: ignore[index]
    return "".join(f"::: {_path(name)}\n" for name in dict.fromkeys(names))


def _path(name: str) -> str:
    """Return the path of a public function where it is defined: mkdocstrings does not follow lazy names."""
    return f"gpuload.{gl._lazy_names[name]}.{name}"


if __name__ == "__main__":
    for page, part, text in ((PAGE, TABLE, table()), (API, CALLS, calls())):
        before = page.read_text(encoding="utf-8")
        page.write_text(part.sub(lambda match, text=text: text, before, count=1), encoding="utf-8")
