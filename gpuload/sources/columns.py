"""Columns: records with fields in columns of files, each of which is read by itself.

Each field is a group with a leaf of its own, so that ``source.read(indices, fields="label")`` reads
that column alone. A leaf reads the column: rows at places of files (`rows.py`), or
blocks that are decoded (`blocks.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuload.errors import SpecError
from gpuload.sources.filesource import FileSource, Opening
from gpuload.sources.leaf import Group, Leaf, starts_of
from gpuload.sources.sourcefiles import SourceFiles
from gpuload.storage.extents import Storage
from gpuload.storage.files import Files, names_of


def differing_files(of_file: str, of_first: str) -> SpecError:
    """Return the error for files of one source that differ in a field: each with its field, and the
    first one's."""
    return SpecError(
        f"{of_file}, {of_first}",
        cause="the files of a source have the same fields",
        remedy="name the fields that agree: fields=; or open the files one by one: gl.concat(a, b, "
        "promote=True) joins those that differ in their dtype alone, if one holds the values of "
        "both",
    )


class ColumnSource(FileSource):
    """Records of files of columns.

    Args:
        files: the files.
        opening: the call that opened them.
        storage: of the files.
        leaves: of each field, in order.
        counts: the number of records of each file.
        classes: the names of the classes of labels, if the files have them.
        paths: of the files or folders that have the counts; by default the files.
        about: more that tells these records from others of the same files, in values with a text of
            their own.
    """

    def __init__(
        self,
        files: Files,
        opening: Opening,
        storage: Storage,
        leaves: Sequence[Leaf],
        counts: Sequence[int],
        classes: tuple[str, ...] = (),
        paths: Sequence[str] = (),
        about: object = None,
    ) -> None:
        # A column in blocks is not quick: to read one record decodes the whole block that holds it.
        groups = tuple(
            Group(leaf.spec, leaf.layout, is_quick=not leaf.block_records) for leaf in leaves
        )
        super().__init__(files, opening, groups, storage)
        self._leaves, self._counts, self._starts = tuple(leaves), tuple(counts), starts_of(counts)
        self._length, self.classes, self._about = int(self._starts[-1]), classes, about
        if paths:
            self._paths, self._names = (paths, names_of(paths))
        else:
            self._paths, self._names = (files.paths, files.names)
        self._access = "; ".join(
            f"{', '.join(name for leaf in leaves if leaf.how == how for name in leaf.spec.names)}: "
            f"{how}"
            for how in dict.fromkeys(leaf.how for leaf in leaves)
        )

    def __len__(self) -> int:
        return self._length

    def _where(self, number: int) -> str:
        file = int(np.searchsorted(self._starts, number, side="right")) - 1
        return f"{self._names[file]}, record {number - int(self._starts[file])}"

    @property
    def files(self) -> SourceFiles:
        """The files, and how many records each has."""
        return SourceFiles(self._files.paths, self._counts, originals=self._paths)

    def _digest(self) -> str:
        about = () if self._about is None else (self._about,)
        return self._files.digest(self._title(), str(self.spec), list(self._counts), *about)
