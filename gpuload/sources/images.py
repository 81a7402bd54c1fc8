"""Image files: encoded JPEG and PNG images, a file a record, with the class of each as its label.

Folder  all .jpg .jpeg .png files below it, in any case and depth, hidden ones left out. A list or a wildcard is taken
        as it is. Sorted by path.
Labels  class i is the i-th folder by name: of the folders in a root folder (also empty ones, so that an empty class
        does not renumber the others), or of the folders that the files of a list lie in.
Access  whole files, the bytes untouched; no header is read when the source is opened, `imagehead.py` reads it later.
Memory  the files of one read lie side by side in one piece of memory, which lives as long as any of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuload.errors import FormatError, MissingFileError, SpecError
from gpuload.sources import maps
from gpuload.sources.base import Fields, Source
from gpuload.sources.files import Files, Paths, by_chunks, expand, look_at, open_error
from gpuload.sources.maps import MappedReader
from gpuload.sources.plain import PlainReader
from gpuload.sources.rows import still_open
from gpuload.spec import Field, Spec

SUFFIXES = (".jpg", ".jpeg", ".png")
LARGEST_BYTES = 1 << 30  # of one file: the largest images that are decoded have 0.8 GB without any compression
IMAGE = Field("image", np.dtype(np.uint8), (None,), encoded=True)
LABEL = Field("label", np.dtype(np.int64), ())


def images(root_or_paths: Paths, labels: Literal["folder"] | None = "folder") -> ImagesSource:
    """Return the records of image files: ``image``, the encoded bytes, and with labels ``label``, the class number.

    Args:
        root_or_paths: a folder, a path, a string with wildcards, or a list of paths and wildcards.
        labels: ``"folder"``: the folder of an image names its class, ``source.classes`` has the names; None: no labels.

    Raises:
        FileError: a file or folder is missing, cannot be read, or a folder holds no image.
        FormatError: a file is empty, or too large for an image.
        SpecError: with ``labels="folder"``, an image that lies in no class folder.
    """
    if labels not in ("folder", None):
        raise SpecError(f"labels = {labels!r}", cause='it is "folder" or None', remedy="pass one of the two")
    root = _as_folder(root_or_paths)
    if root is None:
        paths = expand(root_or_paths)
        root = os.path.commonpath([os.path.dirname(path) for path in paths])
        folders = [os.path.basename(os.path.dirname(path)) for path in paths]
        classes = sorted(set(folders))
    else:
        paths = _images_below(root)
        folders = [_below(root, path).partition(os.sep)[0] for path in paths] if labels else []
        classes = _class_folders(root)
        if labels:
            _check_class_folders(root, paths, folders, classes)
    files, _ = look_at(paths, 0, _check_size)
    if labels is None:
        return ImagesSource(files, root, None, ())
    number_of = {name: number for number, name in enumerate(classes)}
    return ImagesSource(files, root, np.array([number_of[name] for name in folders], np.int64), tuple(classes))


class ImagesSource(Source):
    """Encoded image files; made by ``gl.images``.

    Attributes:
        classes: the names of the classes, that of label 0 first; empty without labels.
    """

    def __init__(self, files: Files, root: str, labels: NDArray[np.int64] | None, classes: tuple[str, ...]) -> None:
        self._files, self._root, self._labels, self.classes = files, root, labels, classes
        self.spec = Spec((IMAGE,) if labels is None else (IMAGE, LABEL))
        starts, offsets = np.arange(len(files) + 1, dtype=np.int64), np.zeros(len(files), np.int64)
        self._reader: MappedReader | PlainReader | None = PlainReader(files, starts, offsets)
        if maps.supported():
            self._reader = MappedReader(files, starts, offsets, np.zeros(len(files), np.bool_))

    def __len__(self) -> int:
        return len(self._files)

    def read(self, indices: ArrayLike) -> Fields:
        """Return the records; ``image`` is a list of uint8 arrays, the bytes of the files."""
        numbers = self.checked(indices)
        ends = np.cumsum(self._files.sizes[numbers])
        arena = np.empty(int(ends[-1]) if numbers.size else 0, np.uint8)
        images = np.split(arena, ends[:-1]) if numbers.size else []
        still_open(self._reader).read(numbers, images)
        fields: dict[str, Any] = {"image": images}
        if self._labels is not None:
            fields["label"] = self._labels[numbers]
        return fields

    def where(self, index: int) -> str:
        """Return the path of the file, from the folder that was opened."""
        return _below(self._root, self._files.paths[index])

    def fingerprint(self) -> str:
        """Return a short text of the relative paths, the sizes and the labels."""
        names = [_below(self._root, path) for path in self._files.paths]
        return self._files.digest(names, self.classes, None if self._labels is None else self._labels.tolist())

    def close(self) -> None:
        """Let go of the files."""
        super().close()
        self._reader = None


def _as_folder(given: Paths) -> str | None:
    """Return the absolute path if one folder is meant."""
    if not isinstance(given, (str, os.PathLike)) or not isinstance(os.fspath(given), str):
        return None
    path = os.path.abspath(os.path.expanduser(os.fspath(given)))
    return path if os.path.isdir(path) else None


def _below(root: str, path: str) -> str:
    """Return an absolute path as seen from a folder that it lies in; `os.path.relpath` takes 30 times as long."""
    return path[len(os.path.join(root, "")) :]


def _images_below(root: str) -> list[str]:
    """Return the paths of all images in a folder and its folders, sorted."""
    found: list[str] = []
    folders, seen = [root], {os.path.realpath(root)}
    while folders:
        listed = by_chunks(lambda chunk: [_entries(folder) for folder in chunk], folders)
        found += [entry.path for entries in listed for entry in entries if _is_image(entry)]
        inner = [entry.path for entries in listed for entry in entries if entry.is_dir()]
        folders = list(_unseen(inner, seen))
    if not found:
        raise MissingFileError(
            f"{root} holds no image",
            cause=f"no file in it or in its folders ends in {' '.join(SUFFIXES)}",
            remedy="check the folder, or name the files: gl.images([...])",
        )
    return sorted(found)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise open_error(folder, error) from None


def _is_image(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower().endswith(SUFFIXES) and not entry.is_dir()


def _unseen(folders: list[str], seen: set[str]) -> Iterator[str]:
    """Give the folders that were not entered yet: a link may lead back."""
    for folder in sorted(folders):
        real = os.path.realpath(folder)
        if real not in seen:
            seen.add(real)
            yield folder


def _class_folders(root: str) -> list[str]:
    return sorted(entry.name for entry in _entries(root) if entry.is_dir())


def _check_class_folders(root: str, paths: list[str], folders: list[str], classes: list[str]) -> None:
    known = set(classes)
    loose = [path for path, folder in zip(paths, folders, strict=True) if folder not in known]
    if loose:
        raise SpecError(
            f"{loose[0]} lies in no class folder" + (f", nor do {len(loose) - 1} others" if len(loose) > 1 else ""),
            cause=f'with labels="folder", the images of a class lie in a folder of their own in {root}',
            remedy="pass labels=None for images without labels, or sort them into folders",
        )


def _check_size(path: str, size: int, head: bytes) -> None:
    if size == 0:
        raise FormatError(f"{path} is empty", cause="it has 0 bytes", remedy="copy it again, or remove it")
    if size > LARGEST_BYTES:
        raise FormatError(
            f"{path} has {size} bytes",
            cause=f"an image file has at most {LARGEST_BYTES}",
            remedy="remove it, or store the image in another form, as NPY say",
        )
