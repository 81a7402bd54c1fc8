"""Where benchmarks keep what they measured."""

from __future__ import annotations

from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"


def save(folder: Path, name: str, text: str) -> None:
    """Write a page of results, and print it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    print(text)
