"""Gaps: records that cannot be read, in the place of files that cannot be opened.

    check_on_error(on_error)
    files, headers = look_at(paths, HEAD_BYTES, tolerant(read_header, on_error, "gl.npy"))
    bad = bad_files(files, headers, "gl.npy")                  which of the headers are errors
    leaf = bad.gaps(leaf, records, numbers)                    records of the leaf that are these files

Records  A file that is empty, cut short or of another format is one record, in its place among the
         others; no length that it states is believed. So the numbers of records depend on the files
         alone.
Errors   The record raises a ``RecordError``. A loader with ``on_error="replace"`` or ``"skip"``
         counts it as damaged, puts another record in its place, and reports it with the others;
         `gpuload check` lists it.
No gap   is a file that is missing, or that the system does not let us read: that raises an error
         when files are opened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import FormatError, RecordError, SpecError
from gpuload.ragged import Ragged
from gpuload.sources.leaf import Bytes, Indices, Leaf, Values
from gpuload.storage.files import Files

ON_ERROR = ("raise", "replace", "skip")
Result = TypeVar("Result")
Origin = tuple[str, int] | None
log = logging.getLogger("gpuload")


def check_on_error(on_error: object) -> None:
    """Raise ``SpecError`` if there is no such way."""
    if not isinstance(on_error, str) or on_error not in ON_ERROR:
        raise SpecError(
            f"on_error = {on_error!r}"[:200],
            cause="it is not known",
            remedy=f"use one of {ON_ERROR}",
        )


def tolerant(
    use: Callable[[str, int, bytes], Result], on_error: str, call: str, num_files: int
) -> Callable[[str, int, bytes], Result | FormatError]:
    """Return a function for ``look_at`` that returns the error of a file that cannot be opened.

    Args:
        use: the function that parses the beginning of a file.
        on_error: ``"raise"``: the error is raised, and names the other ways.
        call: the function that opens the files, as the user calls it.
        num_files: that are opened.
    """

    def look(path: str, size: int, head: bytes) -> Result | FormatError:
        try:
            return use(path, size, head)
        except FormatError as error:
            if on_error != "raise":
                return error
            if num_files > 1:
                error.remedy += f'; {call}(..., on_error="skip") opens the others, and such a file is a damaged record'
            raise

    return look


def bad_files(files: Files, results: Sequence[object], call: str) -> BadFiles:
    """Return which files cannot be opened, and log how many they are.

    Args:
        files: all of them.
        results: for each file the result of reading its head, or its error.
        call: the function that opens the files, as the user calls it.

    Raises:
        FormatError: no file can be opened.
    """
    errors = {
        number: error for number, error in enumerate(results) if isinstance(error, FormatError)
    }
    bad = BadFiles(files, errors)
    if errors:
        first = next(iter(errors.values()))
        if len(errors) == len(files):
            raise first
        log.warning(
            "%s: %d of %d files cannot be opened, and are damaged records; the first is %s (%s)",
            *(call, len(errors), len(files), first.what, first.cause),
        )
    return bad


@dataclass(frozen=True)
class BadFiles:
    """Files that cannot be opened.

    Attributes:
        files: all files of the source.
        errors: of each that cannot be opened the error, by its number.
        behind: the text behind the name of a file in errors that name the record.
    """

    files: Files
    errors: Mapping[int, FormatError]
    behind: str = ", record 0"

    def __bool__(self) -> bool:
        return bool(self.errors)

    @property
    def numbers(self) -> list[int]:
        """Which files they are, in their order."""
        return list(self.errors)

    def good(self, results: Sequence[Result | FormatError]) -> list[Result]:
        """Return the results of the other files."""
        return [result for result in results if not isinstance(result, FormatError)]

    def fill(self, results: Sequence[Result | FormatError], value: Result) -> list[Result]:
        """Return the results, with a value in the place of each error."""
        return [value if isinstance(result, FormatError) else result for result in results]

    def gaps(self, leaf: Leaf, records: Sequence[int], numbers: Sequence[int]) -> Leaf:
        """Return a leaf that raises the errors of bad files for their records.

        Args:
            leaf: the other one, which may have anything in their place.
            records: of the leaf, in their order.
            numbers: the file that each of them is.
        """
        if not records:
            return leaf
        file_of = dict(zip(records, numbers, strict=True))

        def origin(record: int) -> Origin:
            number = file_of.get(record)
            if number is None:
                return leaf.origin(record)
            return (self.files.paths[number], 0)

        return GapLeaf(
            leaf, np.array(records, np.int64), lambda record: self.error(file_of[record]), origin
        )

    def error(self, number: int) -> RecordError:
        """Return the error for the record that is a bad file."""
        error, path = self.errors[number], self.files.paths[number]
        reason = error.what.replace(f"{path} ", "it ", 1).removeprefix(path).lstrip(" ,:")
        location = f"{self.files.names[number]}{self.behind}"
        remedy = f'{error.remedy}; a loader with on_error="skip" leaves it out'
        return RecordError(f"{location}: {reason}", cause=error.cause, remedy=remedy)


class GapLeaf(Leaf):
    """Another leaf, of which some records cannot be read.

    Args:
        leaf: the other one.
        bad: int64, sorted: which records.
        error: gives the error for one of these.
        origin: gives the file of a record and the byte where it begins.
    """

    def __init__(
        self,
        leaf: Leaf,
        bad: Indices,
        error: Callable[[int], RecordError],
        origin: Callable[[int], Origin],
    ) -> None:
        self.spec, self.layout, self.num_records, self.how = (
            leaf.spec,
            leaf.layout,
            leaf.num_records,
            leaf.how,
        )
        self.is_direct = leaf.is_direct
        self._leaf, self._bad, self._error, self._origin = leaf, bad, error, origin

    def num_bytes(self, numbers: Indices) -> Indices:
        """Return how many raw bytes each record has, int64 ``[n]``; one that cannot be read and
        varies has none."""
        if self.layout is not None:
            return super().num_bytes(numbers)
        sizes = np.zeros(numbers.size, np.int64)
        good = ~self._is_bad(numbers)
        sizes[good] = self._leaf.num_bytes(numbers[good])
        return sizes

    def _read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        is_bad = self._is_bad(numbers)
        if is_bad.any():
            raise self._error(int(numbers[is_bad.argmax()]))
        self._leaf.read(numbers, out, begins)

    def _is_bad(self, numbers: Indices) -> NDArray[np.bool_]:
        """Return for each record whether it cannot be read, bool ``[n]``."""
        is_bad: NDArray[np.bool_] = (
            self._bad[np.minimum(np.searchsorted(self._bad, numbers), self._bad.size - 1)]
            == numbers
        )
        return is_bad

    def unpack(self, numbers: Indices, raw: Ragged) -> list[Values]:
        """Return the fields of records of varying length, in the order of ``spec``."""
        return self._leaf.unpack(numbers, raw)

    def origin(self, number: int) -> Origin:
        """Return the file of a record and the byte where it begins; None where they are not
        known."""
        return self._origin(number)

    def advise(self, numbers: Indices) -> None:
        """Ask the system to have these records in memory soon."""
        self._leaf.advise(numbers[~self._is_bad(numbers)])
