"""Sources of files: the common part of records of fixed size and of whole files.

Pickle  a source of files is pickled as the call that opened it, with absolute paths, and opened again where it arrives:
        in a worker process, on another machine. Files that are others there are refused.
Close   nothing is kept open but maps, which are undone when the last thread has finished reading.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.errors import ChangedFileError
from gpuload.sources.base import LeafSource, Source
from gpuload.sources.leaf import Bytes, Group, Indices, Leaf
from gpuload.spec import Spec
from gpuload.storage.extents import Extents, Storage
from gpuload.storage.files import Files


@dataclass(frozen=True)
class Opening:
    """The call that opened a source.

    Attributes:
        function: ``gl.npy``, say.
        arguments: with absolute paths.
    """

    function: Callable[..., Source]
    arguments: dict[str, Any]


class FileSource(LeafSource):
    """Records in files."""

    def __init__(self, files: Files, opening: Opening, groups: tuple[Group, ...], storage: Storage) -> None:
        super().__init__(groups)
        self._files, self._opening, self._access = files, opening, storage.how

    def describe(self) -> str:
        """Return one line about how records are read."""
        return self._access

    def _title(self) -> str:
        return f"gl.{self._opening.function.__name__}"

    def _place(self) -> str:
        paths = self._files.paths
        if len(paths) == 1:
            return paths[0]
        folder, last = os.path.dirname(paths[0]), os.path.dirname(paths[-1])
        return f"{len(paths)} files in {folder}" if folder == last else f"{len(paths)} files, the first is {paths[0]}"

    def file_counts(self) -> tuple[Sequence[str], Sequence[int]] | None:
        """Return the files, and how many records each has."""
        return self._files.paths, [1] * len(self._files)

    def file_paths(self) -> Sequence[str]:
        """Return the absolute paths of the files that are read."""
        return self._files.paths

    def __reduce__(self) -> tuple[Any, ...]:
        self.check_open()
        return open_again, (self._opening, self.fingerprint())


def open_again(opening: Opening, fingerprint: str) -> Source:
    """Open a source again that was pickled or copied, and return it.

    Raises:
        ChangedFileError: the files changed in between.
    """
    source = opening.function(**opening.arguments)
    if source.fingerprint() != fingerprint:
        raise ChangedFileError(
            f"the files of gl.{opening.function.__name__} are others than where the source was made",
            cause=f"their fingerprint is {source.fingerprint()}, it was {fingerprint}",
            remedy="copy the same files to the same path on each machine, or open them anew",
        )
    return source


class ExtentsLeaf(Leaf):
    """Records of varying length at known places of files.

    Args:
        spec: the fields of a record.
        storage: of the files.
        extents: the place of each record.
    """

    def __init__(self, spec: Spec, storage: Storage, extents: Extents) -> None:
        self.spec, self.how, self.num_records = spec, storage.how, len(extents)
        self._storage, self._places = storage, extents

    def num_bytes(self, numbers: Indices) -> Indices:
        """Return how many raw bytes each record has, int64 ``[n]``."""
        return self._places.lengths[numbers]

    def _read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        self._storage.read(self._places.take(numbers), out, begins)

    def origin(self, number: int) -> tuple[str, int] | None:
        """Return the file that holds a record and the byte where it begins."""
        return self._storage.files.paths[self._places.files[number]], int(self._places.offsets[number])

    def advise(self, numbers: Indices) -> None:
        """Ask the system to have these records in memory soon."""
        self._storage.advise(self._places.take(numbers))


class WholeFiles(ExtentsLeaf):
    """A file a record: all of its bytes, or those from a byte on.

    Args:
        spec: the fields of a record.
        storage: of the files.
        offsets: int64 ``[num_files]``, the byte where the record of each file begins.
        lengths: int64 ``[num_files]``, its bytes.
    """

    def __init__(self, spec: Spec, storage: Storage, offsets: Indices, lengths: Indices) -> None:
        super().__init__(spec, storage, Extents(np.arange(lengths.size, dtype=np.int64), offsets, lengths))

    def origin(self, number: int) -> tuple[str, int] | None:
        """Return the file of a record, which is all of it, and so begins at byte 0."""
        return self._storage.files.paths[number], 0
