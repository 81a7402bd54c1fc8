"""Paths and wildcards of any characters: the files that ``glob`` finds, or an error of ours."""

from __future__ import annotations

import glob
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import gpuload as gl
from gpuload.storage.wildcards import expand
from tests.attack.examples import examples
from tests.attack.hunt import Report, hunt, outcome

# None is "*" or "**": what is there by that very name is no wildcard, in one of many folders too,
# unlike for glob.
NAMES = (
    "a",
    "b.npy",
    "[a]",
    "a b",
    "ü",
    "\udce4",
    "~",
    "a\nb",
    ".hidden",
    "[!a]",
    "]",
    "-",
    "{a}",
    "ab",
    "c[1].npy",
)
PARTS = st.one_of(
    st.sampled_from(["*", "**", "[!.]*", "?*"]),
    st.sampled_from(
        [
            *NAMES,
            "*",
            "**",
            "?",
            "[a-b]*",
            "[!a]*",
            "a*",
            "*.npy",
            "..",
            ".",
            "",
            ".*",
            "[",
            "[]",
            "[]]",
        ]
    ),
    st.text("ab*?[]!-.~ü\n", max_size=5),
)
WILD = st.lists(PARTS, min_size=1, max_size=4).map("/".join)
PATHS = st.one_of(
    WILD, WILD, WILD, st.text(max_size=8), st.lists(WILD, max_size=3),
    st.sampled_from(["\0", "a\0b", "\ud800", 3, None, b"a", [], [3], "x" * 5000, "x/" * 3000, object, {"a": 1}, True]),
)  # fmt: skip


def attack(seconds: float, seed: int) -> Report:
    """Look for files."""
    return hunt(seconds, seed, trial)


def trial(rng: np.random.Generator, folder: Path) -> Counter[str]:
    """Make a tree of folders and files, and look into it."""
    _grow(folder, rng, depth=3)
    before = os.getcwd()
    os.chdir(folder)
    try:
        return examples(rng, lambda value: _check(folder, value), PATHS)
    finally:
        os.chdir(before)


def _grow(folder: Path, rng: np.random.Generator, depth: int) -> None:
    for name in rng.permutation(np.array(NAMES, object))[: rng.integers(6)]:
        inner = folder / name
        if depth and rng.random() < 0.5:
            inner.mkdir()
            _grow(inner, rng, depth - 1)
        else:
            inner.write_bytes(b"x")


def _check(folder: Path, value: Any) -> str:
    status, result = outcome(expand, value)
    again, source = outcome(gl.fixed, value, "u1")
    assert again == "refused" or status == "read", f"gl.fixed reads what expand refuses: {source}"
    if not isinstance(value, str):
        assert status == "refused" or all(os.path.isabs(path) for path in result), (
            f"not absolute: {result}"
        )
        return status
    path = os.path.abspath(os.path.expanduser(value))
    if status == "read" and (not glob.has_magic(path) or os.path.lexists(path)):
        assert result == [path], f"{value!r} means {result}"
    elif path.startswith(f"{folder}{os.sep}") and not _is_twofold(_parts(folder, path)):
        expected = _by_glob(folder, path)
        assert status == "read" or not expected, (
            f"{value!r} is refused, glob finds {expected}: {result}"
        )
        assert status == "refused" or result == expected, (
            f"{value!r} means {result}, by glob {expected}"
        )
    return status


def _by_glob(folder: Path, path: str) -> list[str]:
    """Return the files that a wildcard below a folder means."""
    if "\0" in path or not glob.has_magic(path) or os.path.lexists(path):
        return []
    inner = [
        glob.escape(part) if os.path.lexists(before) else part
        for before, part in _parts(folder, path)
    ]
    message = glob.glob(os.path.join(glob.escape(str(folder)), *inner), recursive=True)
    return sorted(
        {item for item in message if not item.endswith(os.sep) and not os.path.isdir(item)}
    )


def _is_twofold(parts: list[tuple[str, str]]) -> bool:
    """Return True if a wildcard is also the name of a file, in a folder that another wildcard
    means."""
    return any(
        glob.has_magic(part) and part in NAMES and not os.path.lexists(path) for path, part in parts
    )


def _parts(folder: Path, path: str) -> list[tuple[str, str]]:
    """Return each part of a path below a folder, behind the path that ends with it."""
    parts = path[len(str(folder)) + 1 :].split(os.sep)
    return [(os.path.join(folder, *parts[: number + 1]), part) for number, part in enumerate(parts)]
