"""Fixed-length records as a format: their bytes say nothing, a JSON beside the file describes
them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from gpuload import lazy
from gpuload.errors import SpecError
from gpuload.formats.base import Beginning, Format, Match
from gpuload.formats.fixed import description
from gpuload.sources.base import Source
from gpuload.storage.files import look_at
from gpuload.storage.handles import read_bytes

fixed = lazy.function("gpuload.formats.fixed.source", "fixed")


def _sniff(beginning: Beginning) -> Match | None:
    beside = beginning.path + description.SUFFIX
    if description.is_description(beginning.head) or (
        os.path.isfile(beside) and _is_description(beside)
    ):
        return Match("fixed-length records with their description", "gl.fixed(...)")
    return None


def _open(paths: Sequence[str]) -> Source:
    """Return the records of described files; a path may name the records or their description."""
    names = [path.removesuffix(description.SUFFIX) if _is_json(path) else path for path in paths]
    names = list(
        dict.fromkeys(names)
    )  # a wildcard may mean both the records and their descriptions
    files, descriptions = look_at(
        names,
        0,
        lambda path, size, head: description.read_description(path + description.SUFFIX, size),
    )
    first = descriptions[0]
    for number, content in enumerate(descriptions):
        if (content.dtype, content.header_bytes, content.footer_bytes, content.axes) != (
            *(first.dtype, first.header_bytes, first.footer_bytes, first.axes),
        ):
            raise SpecError(
                f"{files.paths[number]} and {files.paths[0]} hold different fields",
                cause=f"their descriptions say {content.dtype} and {first.dtype}",
                remedy="open them one by one",
            )
    source: Source = fixed(names, first.dtype, first.header_bytes, first.footer_bytes)
    if first.axes:
        return source.mark(**dict(first.axes))
    return source


def _is_json(path: str) -> bool:
    return path.endswith(description.SUFFIX) and _is_description(path)


def _is_description(path: str) -> bool:
    return description.is_description(read_bytes(path, description.LARGEST_BYTES))


FIXED = Format(
    "fixed",
    fixed,
    _sniff,
    known_by="description",
    records={
        "gl.fixed(paths, dtype, header_bytes=0, footer_bytes=0)": "the next bytes of a file, as "
        "many "
        "as a NumPy dtype has, and laid out like it"
    },
    open_paths=_open,
    hint="raw records are gl.fixed(path, dtype)",
    suffixes=(".bin", ".dat", ".raw"),
    beside=(description.SUFFIX,),
    writer=lazy.function("gpuload.formats.fixed.writer", "writer"),
)
