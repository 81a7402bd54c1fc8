"""Names of records.

Name    the path of the file that a record is, or the key of the members of a tar that it is, as seen
        from the folder that all files of the source have in common: ``cat/1.png``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from gpuload.sources.leaf import Indices
from gpuload.sources.namecuts import common_beginning, shared_end

MOST_NAMES = 1 << 20  # of an endless source: of so many of its first records
SAMPLE = 1000  # names that show which part all may share
PART = r"(?a)(\D*)(\d{1,18})?"  # of a path: text, and a number behind it
END = "\0"  # between names; no path holds it


class RecordNames:
    """The names of the records of a source, made when they are asked for.

    Args:
        load: returns the paths of files, or the keys of members of tars.
        has_suffixes: False for keys.
        numbers: int64 ``[num_records]``, the path of each record; None: record i has path i.
        length: the number of records.
        origin: stands for the paths; sources with one origin have the same paths.
    """

    def __init__(
        self,
        load: Callable[[], Sequence[str]],
        length: int,
        origin: object,
        *,
        has_suffixes: bool = True,
        numbers: Indices | None = None,
    ) -> None:
        self._load, self._length, self.origin = load, length, origin
        self.has_suffixes, self.numbers = has_suffixes, numbers

    @classmethod
    def of_files(cls, paths: Sequence[str]) -> RecordNames:
        """Return the names of records that are a file each."""
        return cls(lambda: paths, len(paths), paths)

    @classmethod
    def concatenate(cls, parts: Sequence[RecordNames]) -> RecordNames:
        """Return the names of the records of several sources, one after the other."""

        def load() -> Sequence[str]:
            return [path for part in parts for path in part.paths]

        length = sum(map(len, parts))
        if all(part.origin is parts[0].origin for part in parts):
            origin = parts[0].origin
        else:
            origin = object()
        return cls(load, length, origin, has_suffixes=all(part.has_suffixes for part in parts))

    def __len__(self) -> int:
        return self._length

    def select(self, numbers: Indices) -> RecordNames:
        """Return the names of some of the records, in the order of their numbers."""
        if self.numbers is None:
            inner = numbers
        else:
            inner = self.numbers[numbers]
        return RecordNames(
            lambda: self.all_paths,
            inner.size,
            self.origin,
            has_suffixes=self.has_suffixes,
            numbers=inner,
        )

    def whole(self) -> RecordNames:
        """Return the names of all records of the files, also of those that were not selected."""
        return RecordNames(
            lambda: self.all_paths, len(self.all_paths), self.origin, has_suffixes=self.has_suffixes
        )

    @property
    def path_numbers(self) -> Indices:
        """The place of the path of each record among all paths."""
        if self.numbers is None:
            return np.arange(len(self))
        return self.numbers

    @cached_property
    def all_paths(self) -> Sequence[str]:
        """The paths of all records of the files, also of those that were not selected."""
        return tuple(self._load())

    @cached_property
    def paths(self) -> Sequence[str]:
        """The path of each record."""
        if self.numbers is None:
            return self.all_paths
        paths: list[str] = np.array(self.all_paths, object)[self.numbers].tolist()
        return paths

    @cached_property
    def folder(self) -> str:
        """The deepest folder in which all files lie, with the slash at its end; "" where paths have
        none in common."""
        shared = common_beginning(self.all_paths)
        return shared[: shared.rfind("/") + 1]

    @cached_property
    def texts(self) -> list[str]:
        """The name of each record."""
        begin = len(self.folder)
        return [path[begin:] for path in self.paths]

    @cached_property
    def suffix(self) -> str | None:
        """The suffix of all names; None if there are several."""
        if not self.has_suffixes or not self.paths:
            return ""
        suffix = os.path.splitext(self.paths[0])[1]
        is_shared = self._line.count(suffix + END) == len(self)
        # Else a name without suffix may hide among them, that ends in the same letters.
        if is_shared and suffix:
            return suffix
        return None

    @cached_property
    def stems(self) -> list[str]:
        """The names without suffixes."""
        if self.suffix is None:
            return [os.path.splitext(text)[0] for text in self.texts]
        return [text[: len(text) - len(self.suffix)] for text in self.texts]

    def text(self, number: int) -> str:
        """Return the name of one record."""
        return self.paths[number][len(self.folder) :]

    def stem(self, number: int) -> str:
        """Return the name of one record without its suffix."""
        text = self.text(number)
        if self.has_suffixes:
            return os.path.splitext(text)[0]
        return text

    def contain(self, text: str) -> bool:
        """Return False if no path of a record contains the text behind its last slash; a quick
        test."""
        return text.rpartition("/")[2] in self._line

    # --- All names in one text, on which few calls of C replace a million calls of Python.

    @cached_property
    def _line(self) -> str:
        return END.join(["", *self.paths, ""])

    @cached_property
    def joined_stems(self) -> str | None:
        """All names without suffixes as one text; None if there are several suffixes."""
        if self.suffix is None:
            return None
        line = self._line.replace(END + self.folder, END)
        if self.suffix:
            return line.replace(self.suffix + END, END)
        return line

    @cached_property
    def joined_without_end(self) -> str | None:
        """The same without the end that all names share; None where a word or a number would be cut
        there."""
        line = self.joined_stems
        if line is None or len(self) < 2:
            return line
        stems = self.paths[:: 1 + len(self) // SAMPLE]
        if self.suffix:
            stems = [os.path.splitext(path)[0] for path in stems]
        bases = [stem.rpartition("/")[2] for stem in stems]
        # All names share no more than a few of them do.
        if min(bases) != max(bases):
            end = bases[0][len(bases[0]) - shared_end(bases) :]
        else:
            end = ""
        if not end:
            return line
        is_sound = not end[0].isalnum() and line.count(end + END) == len(self)
        if is_sound:
            return line.replace(end + END, END)
        return None


def misnumbered(paths: Sequence[str]) -> int:
    """Return the place of the first path with a smaller number than the path before it, as 2 behind
    10; else 0."""
    before = ""
    for place, path in enumerate(paths):
        # Only a shorter name can have a smaller number, and few are compared so.
        if len(path) < len(before) and _numbered_parts(path) < _numbered_parts(before):
            return place
        before = path
    return 0


def _numbered_parts(path: str) -> list[tuple[str, int]]:
    """Return the texts and numbers of a path, which sort as a person does."""
    return [(match[1], int(match[2] or -1)) for match in re.finditer(PART, path)]
