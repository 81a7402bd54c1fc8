"""Paths in arrays: many paths in few bytes, folder by folder.

    folders    /data/cat/ /data/dog/          file 2 is folders[folder_of[2]] + names[2], /data/dog/1.jpg
    folder_of  0 0 1
    names      1.jpg 2.jpg 1.jpg

Memory  12 bytes a path beside the bytes of its name; a tuple of str takes about 100 more.
Bytes   are those of the system (`os.fsencode`), as the core takes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from gpuload.core.face import PathTable
from gpuload.storage.stores import DEFAULT, ObjectURL, Remote, is_remote

NO_BYTES = np.zeros(0, np.uint8)
CHUNK = 1 << 14  # texts that are made at a time


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts in one array of bytes.

    Attributes:
        payload: uint8, their bytes, one behind the other.
        bounds: int64 ``[num_texts + 1]``: text i lies from ``bounds[i]`` to ``bounds[i + 1]``.
    """

    payload: NDArray[np.uint8]
    bounds: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Sequence[str]) -> Texts:
        """Return texts in arrays."""
        raw = [os.fsencode(text) for text in texts]
        bounds = np.zeros(len(raw) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, raw), np.int64, len(raw)), out=bounds[1:])
        return cls(np.frombuffer(b"".join(raw), np.uint8), bounds)

    def __len__(self) -> int:
        return self.bounds.size - 1

    def select(self, numbers: NDArray[np.int64]) -> Texts:
        """Return some of the texts, in the order of their numbers."""
        starts, lengths = self.bounds[numbers], np.diff(self.bounds)[numbers]
        bounds = np.zeros(numbers.size + 1, np.int64)
        np.cumsum(lengths, out=bounds[1:])
        places = np.arange(bounds[-1]) + np.repeat(starts - bounds[:-1], lengths)
        return Texts(self.payload[places], bounds)

    def between(self, first: int, after: int) -> list[str]:
        """Return the texts from one number to another, exclusive."""
        bounds = self.bounds[first : after + 1].tolist()
        if after > first:
            raw = self.payload[bounds[0] : bounds[-1]].tobytes()
        else:
            raw = b""
        if raw.isascii():  # decoded at once: that takes a third of the time
            text = raw.decode("ascii")
            return [
                text[bounds[i] - bounds[0] : bounds[i + 1] - bounds[0]]
                for i in range(after - first)
            ]
        return [
            os.fsdecode(raw[bounds[i] - bounds[0] : bounds[i + 1] - bounds[0]])
            for i in range(after - first)
        ]


@dataclass(frozen=True, eq=False)
class PackedPaths(Sequence[str]):
    """Paths as a sequence; each is made when it is asked for.

    Attributes:
        folders: the folders, each with the slash at its end.
        folder_of: uint32 ``[num_paths]``, the folder of each path.
        names: the parts of the paths behind their folders.
        remote: the settings of the stores of those that are URLs.
    """

    folders: Texts
    folder_of: NDArray[np.uint32]
    names: Texts
    remote: Remote = DEFAULT

    @classmethod
    def of(cls, paths: Sequence[str]) -> PackedPaths:
        """Return paths in arrays, each as a whole; those that are in arrays as they are."""
        if isinstance(paths, PackedPaths):
            return paths
        return cls._in_one_folder(Texts.of(paths), "")

    @classmethod
    def by_folder(cls, paths: Sequence[str]) -> PackedPaths:
        """Return paths in arrays, each folder once."""
        if isinstance(paths, PackedPaths):
            return paths
        numbers: dict[str, int] = {}
        folder_of, names = np.empty(len(paths), np.uint32), list[str]()
        for number, path in enumerate(paths):
            end = path.rfind("/") + 1
            folder_of[number] = numbers.setdefault(path[:end], len(numbers))
            names.append(path[end:])
        return cls(Texts.of(list(numbers)), folder_of, Texts.of(names))

    @classmethod
    def _in_one_folder(cls, names: Texts, folder: str) -> PackedPaths:
        return cls(Texts.of([folder]), np.zeros(len(names), np.uint32), names)

    def select(self, numbers: NDArray[np.int64]) -> PackedPaths:
        """Return some of the paths, in the order of their numbers."""
        return PackedPaths(
            self.folders, self.folder_of[numbers], self.names.select(numbers), self.remote
        )

    def without_folders(self) -> PackedPaths:
        """Return the names as paths."""
        return self._in_one_folder(self.names, "")

    @property
    def arrays(self) -> PathTable:
        """The arrays that the core takes."""
        return PathTable(
            self.folders.payload,
            self.folders.bounds,
            self.folder_of,
            self.names.payload,
            self.names.bounds,
        )

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, key: int) -> str: ...

    @overload
    def __getitem__(self, key: slice) -> tuple[str, ...]: ...

    def __getitem__(self, key: int | slice) -> str | tuple[str, ...]:
        if isinstance(key, slice):
            return tuple(self[number] for number in range(*key.indices(len(self))))
        number = range(len(self))[key]  # raises IndexError
        folder = int(self.folder_of[number])
        return self._with_settings(
            self.folders.between(folder, folder + 1)[0] + self.names.between(number, number + 1)[0]
        )

    def _with_settings(self, path: str) -> str:
        if self.remote is not DEFAULT and is_remote(path):
            return ObjectURL(path, self.remote)
        return path

    def __iter__(self) -> Iterator[str]:
        folders = self.folders.between(0, len(self.folders))
        for first in range(0, len(self), CHUNK):
            names = self.names.between(first, min(first + CHUNK, len(self)))
            for folder, name in zip(
                self.folder_of[first : first + CHUNK].tolist(), names, strict=True
            ):
                yield self._with_settings(folders[folder] + name)
