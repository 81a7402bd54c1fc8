"""Image files as a format: the beginnings of encoded images, and folders that hold them."""

from __future__ import annotations

from collections.abc import Sequence

from gpuload import lazy
from gpuload.formats.base import Beginning, Folder, Format, Match
from gpuload.images.head import FORMATS, SUFFIXES, kind_of
from gpuload.sources.base import Source

images = lazy.function("gpuload.formats.images.source", "images")
open_folder = lazy.function("gpuload.formats.images.folder", "open_folder")
writer = lazy.function("gpuload.formats.images.folder", "writer")


def _sniff(beginning: Beginning) -> Match | None:
    kind = kind_of(beginning.head)
    if kind is None:
        return None
    return Match(f"{FORMATS[kind].title} images", "gl.images")


def _open(paths: Sequence[str]) -> Source:
    source: Source = images(list(paths), labels=None)
    return source


IMAGES = Format(
    "images",
    images,
    _sniff,
    records={
        'gl.images(folder_or_paths, labels="folder")': "an encoded image file; `labels=None` for a "
        "folder without class folders; `classes=train` for the class numbers of another source"
    },
    open_paths=_open,
    folder=Folder(open_folder, SUFFIXES),
    writer=writer,
)
