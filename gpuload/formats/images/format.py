"""Image files as a format: the beginnings of encoded images, and folders that hold them."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from gpuload.errors import MissingFileError
from gpuload.formats.base import Beginning, Folder, Format, Match
from gpuload.formats.images.folder import TABLE, writer
from gpuload.formats.images.source import images
from gpuload.images.head import FORMATS, SUFFIXES, kind_of
from gpuload.sources.base import Source

log = logging.getLogger("gpuload")


def _sniff(beginning: Beginning) -> Match | None:
    kind = kind_of(beginning.head)
    return None if kind is None else Match(f"{FORMATS[kind].title} images", "gl.images")


def _open(paths: Sequence[str]) -> Source:
    return images(list(paths), labels=None)


def _open_folder(folder: str) -> Source:
    """Return the images of a folder, with the labels that it states."""
    labels = os.path.join(folder, TABLE)
    try:
        unlabelled = images(folder, labels=None)
    except MissingFileError as error:
        files = os.path.join(folder, "*")
        raise MissingFileError(
            error.what, cause=error.cause, remedy=f"check the folder, or name the files: gl.open({files!r})"
        ) from None
    if os.path.isfile(labels):
        log.info("%s: found images and a table of labels; opened by gl.images(labels='%s')", folder, TABLE)
        return images(folder, labels=labels)
    has_loose = any(os.sep not in unlabelled.where(number) for number in range(len(unlabelled)))
    log.info("%s: found images; opened by gl.images(labels=%s)", folder, None if has_loose else "'folder'")
    return unlabelled if has_loose else images(folder, labels="folder")


IMAGES = Format("images", _open, _sniff, folder=Folder(_open_folder, SUFFIXES), writer=writer)
