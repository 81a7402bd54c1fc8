"""Sources: the text of kernels of a GPU, from the files of `cu/` and the headers that they share
with the core, `core/cpp/shared/`.

NVRTC gets a kernel as one text, in which each file stands at the first line that includes it. So
no compiler looks for files, and CuPy, which keeps a compiled kernel by its text, never takes one of
older files. A file is read when a kernel that needs it is made, once a process. Lines that include
a file stand outside of conditions.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from gpuload.core.source import SHARED

FOLDER = Path(__file__).parent / "cu"
INCLUDE = re.compile(r'^#include "(.+)"\n', re.MULTILINE)


def expand(text: str) -> str:
    """Return a text with the files that it includes; names in it are those of `cu/`."""
    files: set[Path] = set()  # that stand in the text

    def paste(text: str, folder: Path) -> str:
        return INCLUDE.sub(lambda match: paste_file((folder / match[1]).resolve()), text)

    def paste_file(path: Path) -> str:
        if path in files:
            return ""
        files.add(path)
        return paste(_read(path), path.parent)

    return paste(text, FOLDER)


@cache
def enumerators(header: str, name: str) -> dict[str, int]:
    """Return the numbers of an ``enum class`` that counts from 0, by their names.

    Args:
        header: its name in `core/cpp/shared/`.
        name: of the enum.
    """
    text = _read(Path(SHARED) / header).partition(f"enum class {name} {{")[2].partition("}")[0]
    names = re.findall(r"^    ([A-Z_]+),", text, re.MULTILINE)
    return {name: number for number, name in enumerate(names)}


@cache
def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8").replace("#pragma once\n", "")
