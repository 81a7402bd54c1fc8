"""Partitions: columns of values that are the names of the folders of files,
``year=2020/part-0.parquet``.

    names      ("year",)
    values     2019 2020        of each file
    counts     10 5             so records 0 to 9 have 2019, and 10 to 14 have 2020

Dtype   int64, if the values of all files are whole numbers as int64 writes them; else text: ``007``
        and ``1.0`` stay as they are. ``__HIVE_DEFAULT_PARTITION__`` is a missing value.
Memory  the values of the files; those of records are taken from there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import SpecError
from gpuload.ragged import Ragged
from gpuload.sources.defaults import UnfitDefault, convert_default
from gpuload.sources.leaf import (
    UINT8,
    Bytes,
    Indices,
    Leaf,
    check_places,
    gather_pieces,
    put_rows,
    starts_of,
)
from gpuload.sources.namecuts import common_beginning
from gpuload.spec import Field, Layout, Part, Spec, list_of_names

MISSING = "__HIVE_DEFAULT_PARTITION__"
WHOLE = re.compile(r"0|-?[1-9][0-9]{0,18}")
NUMBER = np.dtype(np.int64)


@dataclass(frozen=True)
class Partition:
    """A column.

    Attributes:
        name: of it.
        values: of each file, as the folders have them; None for a missing one.
    """

    name: str
    values: tuple[str | None, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        """int64, or object for text."""
        texts = {text for text in self.values if text is not None}
        is_whole = bool(texts) and all(self.number(text) is not None for text in texts)
        if is_whole:
            return NUMBER
        return np.dtype(object)

    @staticmethod
    def number(text: str | None) -> int | None:
        """Return the number of a text that is written as int64 is; None for another text."""
        if text is None or WHOLE.fullmatch(text) is None:
            return None
        number = int(text)
        if -(2**63) <= number < 2**63:
            return number
        return None

    def leaf(
        self, call: str, paths: Sequence[str], counts: Sequence[int], default: Any
    ) -> PartitionLeaf:
        """Return the column of records; ``counts`` are those of each file.

        Raises:
            SpecError: a value is missing and there is no default, or the default does not fit.
        """
        dtype, values = self.dtype, list[Any](self.values)
        kind, unset, example = "text", "''", "'?'"
        if dtype == NUMBER:
            kind, unset, example = "int64", "-1", "-1"
        try:
            if default is not None and dtype == NUMBER:
                default = int(convert_default(default, dtype)[()])
            elif default is not None and not isinstance(default, str):
                raise UnfitDefault("it is no text")
        except (UnfitDefault, TypeError) as error:
            raise SpecError(
                f"defaults: {self.name!r} has {default!r}",
                cause=f"the names of folders are of {kind}: {error}",
                remedy=f"pass a value of that type: {{{self.name!r}: {unset}}}, say",
            ) from None
        for number, text in enumerate(values):
            if text is None and default is None:
                raise SpecError(
                    f"{paths[number]}: the value of {self.name!r} is missing",
                    cause=f"its folder is {self.name}={MISSING}",
                    remedy="say the value that stands for it: "
                    f"{call}(..., defaults={{{self.name!r}: {example}}})",
                )
            if text is None:
                values[number] = default
            elif dtype == NUMBER:
                values[number] = int(text)
            else:
                values[number] = text
        return PartitionLeaf(self.name, dtype, values, counts)


def partitions_of(
    call: str, paths: Sequence[str], inner: Sequence[str], names: Sequence[str] | None
) -> tuple[Partition, ...]:
    """Return the columns that folders of files are.

    Args:
        call: the reader, for errors.
        paths: the files.
        inner: for each the part of its path in which folders are looked for if ``names`` is None.
        names: the columns, looked for in the whole path of each file; None: all that there are.

    Raises:
        SpecError: a file lies in no folder of such a name.
    """
    if names is not None:
        if names:
            pairs = [_pairs(path) for path in paths]
        else:
            pairs = []
    elif any("=" in folder for folder in inner):
        by_folder = {folder: _pairs(folder) for folder in dict.fromkeys(inner)}
        pairs = [by_folder[folder] for folder in inner]
        names = list(
            dict.fromkeys(name for folder_pairs in by_folder.values() for name in folder_pairs)
        )
    result = list[Partition]()
    for name in names or ():
        values = [folder_pairs.get(name) for folder_pairs in pairs]
        present = [value for value in values if value is not None]
        if len(present) < len(values):
            raise SpecError(
                f"{paths[values.index(None)]} lies in no folder {name}=...",
                cause="such a folder is the value of a column, and each record has one",
                remedy=f"open files with the same folders; or without such columns: {call}(..., "
                "partitions=[])",
            )
        result.append(Partition(name, tuple(map(_value_of, present))))
    return tuple(result)


def _value_of(text: str) -> str | None:
    """Return the value that the name of a folder is; None for a missing one."""
    if text == MISSING:
        return None
    return unquote(text, errors="surrogateescape")


def _pairs(path: str) -> dict[str, str]:
    """Return the names and values of folders in a path; of two of one name the inner one."""
    parts = [part.partition("=") for part in path.split("/") if "=" in part]
    return {unquote(name): value for name, _, value in parts if name}


def check_partitions(call: str, names: Any) -> tuple[str, ...] | None:
    """Return the argument ``partitions`` of a reader.

    Raises:
        SpecError: it is no list of names.
    """
    if names is None:
        return None
    if isinstance(names, (list, tuple)) and not names:
        return ()
    form = "a list of the names of columns that folders name=value are"
    return list_of_names(
        f"{call}: partitions", names, form=form, example='["year"], or [] for none'
    )


def names_below(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the paths of files below the folder of all of them: those in different folders often
    have one name."""
    begin = common_beginning(paths).rfind("/") + 1
    return tuple(path[begin:] for path in paths)


def digest_of(partitions: Sequence[Partition]) -> tuple[str, ...]:
    """Return a text that differs for other values, for fingerprints; none if there are no such
    columns."""
    if not partitions:
        return ()
    text = repr([(partition.name, partition.values) for partition in partitions])
    return (hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16],)


class PartitionLeaf(Leaf):
    """A column with one value in all records of a file."""

    how = "by the names of folders"

    def __init__(
        self, name: str, dtype: np.dtype[Any], values: Sequence[Any], counts: Sequence[int]
    ) -> None:
        self._starts = starts_of(counts)
        self.num_records = int(self._starts[-1])
        self._numbers: NDArray[np.int64] | None = None
        if dtype == NUMBER:
            field = Field(name, NUMBER, ())
            self.layout = Layout(NUMBER.itemsize, (Part(field, NUMBER),))
            self._numbers = np.array(values, NUMBER)
        else:
            field, self.is_direct = Field(name, np.dtype(object), (), text="str"), True
            different = list(dict.fromkeys(values))
            self._texts = Ragged.of(
                [
                    np.frombuffer(text.encode("utf-8", "surrogateescape"), UINT8)
                    for text in different
                ],
                UINT8,
            )
            places = {text: number for number, text in enumerate(different)}
            self._text_of = np.array([places[text] for text in values], np.int64)
        self.spec = Spec((field,))

    def _owners(self, numbers: Indices) -> Indices:
        """Return the file of each record."""
        return np.searchsorted(self._starts, numbers, side="right") - 1

    def num_bytes(self, numbers: Indices) -> Indices:
        """Return how many bytes the value of each record has."""
        if self._numbers is not None:
            return super().num_bytes(numbers)
        return self._texts.lengths[self._text_of[self._owners(numbers)]]

    def _read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        owners = self._owners(numbers)
        if self._numbers is not None:
            check_places(numbers, NUMBER.itemsize, out.size, begins)
            put_rows(self._numbers[owners][:, None], out, begins)
            return
        texts = self._text_of[owners]
        check_places(numbers, self._texts.lengths[texts], out.size, begins)
        gather_pieces(
            self._texts.payload,
            self._texts.offsets[:-1][texts],
            self._texts.lengths[texts],
            out,
            begins,
        )
