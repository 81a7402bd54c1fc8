"""Writers: they write records to files of a format, and read these again to compare them.

A writer refuses, field by field, values that its format cannot hold, and names another format;
nothing is converted without a word. Files are the same on all machines: numbers are little-endian,
as nearly all machines have them, and each format says so in the file or beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import GpuloadError, RecordError, SpecError
from gpuload.ragged import Ragged
from gpuload.sources import filtering
from gpuload.sources.base import Source
from gpuload.sources.leaf import Fields, Values
from gpuload.sources.reading import read_groups
from gpuload.spec import Field, Spec

Refusal = tuple[str, str]  # cause and remedy
MAX_TEXT = 100  # characters of a text that an error shows


class SourceReadError(Exception):
    """The user's own reader raised an error of the system, which is not one of writing."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, eq=False)
class Records:
    """The records of one file, some at a time.

    Attributes:
        source: the source of the records.
        begin, end: the first of its records, and the number behind the last.
        names: the fields that the file holds.
        tick: called with the number of records read since its last call; raises an exception if the
            work is to end.
    """

    source: Source
    begin: int
    end: int
    names: tuple[str, ...]
    tick: Callable[[int], None] = lambda count: None

    @property
    def count(self) -> int:
        """The number of records."""
        return self.end - self.begin

    @property
    def spec(self) -> Spec:
        """The fields that the file holds."""
        return self.source.spec.only(self.names)

    def chunks(
        self, names: tuple[str, ...] | None = None
    ) -> Iterator[tuple[NDArray[np.int64], Fields]]:
        """Yield record numbers of the source with their fields in the order of the spec, some
        megabytes at a time."""
        if names is None:
            selection = self.names
        else:
            selection = names
        field_names = self.source.spec.only(selection).names
        for numbers in filtering.chunks(self.source, selection, self.begin, self.end):
            self.tick(0)
            try:
                batch = read_groups(self.source, numbers, selection)
            except OSError as error:
                # An OSError that leaves here would be taken for one of writing the new file.
                raise error if isinstance(error, GpuloadError) else SourceReadError(error) from None
            yield numbers, {name: batch[name] for name in field_names}
            self.tick(
                numbers.size if self.names[-1] in selection else 0
            )  # each record is counted once


@dataclass(frozen=True)
class Writer:
    """The writer of files of a format.

    Attributes:
        refusal: gives the reason why the format cannot hold a field, and one that can; None where
            it can hold it.
        write: writes the file at a path.
        differs: reads the file again, and says how it differs from the records; "" where it does
            not.
        call: the call that reads files of these fields again, as Python's text.
        beside: the small files that stand beside a file: from the suffix behind its name to their
            bytes.
        about: the arguments on which its files depend besides the records, for the record of a
            conversion.
        notes: returns how a field is stored, if that differs from the source; "" else.
        holds_classes: returns True if the files hold ``source.classes``; their places are the
            numbers of labels.
    """

    refusal: Callable[[Field], Refusal | None]
    write: Callable[[str, Records], None]
    differs: Callable[[str, Records], str]
    call: Callable[[str, Spec], str]
    beside: Callable[[str, Records], Mapping[str, bytes]] = lambda name, records: {}
    about: Mapping[str, Any] = field(default_factory=dict)
    notes: Callable[[Field], str] = lambda field: ""
    holds_classes: Callable[[Spec], bool] = lambda spec: False


@dataclass(frozen=True)
class FolderWriter:
    """The writer of a folder with a file for each record.

    Attributes:
        call: the call that reads the folder again, as Python's text; raises ``SpecError`` if the
            records of a source cannot be written so.
        about: the arguments on which the folder depends besides the records.
        write: writes some records into a folder; files of the same names are written anew.
        first_difference: reads files again; returns the number of the first record of which the
            file differs, or None.
        finish: writes the files that describe the whole folder, behind the last record.
    """

    call: Callable[[str, Source], str]
    about: Callable[[Source], Mapping[str, Any]]
    write: Callable[[str, Records], None]
    first_difference: Callable[[str, Records], int | None]
    finish: Callable[[str, Source], None]


def check_fields(name: str, writer: Writer, spec: Spec) -> None:
    """Raise ``SpecError`` if the format of a name cannot hold one of the fields; names the
    field."""
    refusals = [
        (field, reason)
        for field in spec
        if (reason := refuse_foreign_dtype(field) or writer.refusal(field)) is not None
    ]
    if refusals:
        (first, (cause, remedy)), *rest = refusals
        if rest:
            suffix = f", nor can {', '.join(field.name for field, _ in rest)}"
        else:
            suffix = ""
        raise SpecError(
            f"field {first} cannot be written as {name}{suffix}", cause=cause, remedy=remedy
        )


def refuse_foreign_dtype(field: Field) -> Refusal | None:
    """Return why no format holds a dtype that another package added to NumPy: bfloat16, float8 and
    the like."""
    # 2 is NumPy's number for a dtype that a package registered (``numpy.dtype.isbuiltin``).
    if field.dtype.isbuiltin != 2:
        return None
    return (
        f"{field.dtype} is no dtype of NumPy's own: no file can name it, and its bytes would lose "
        "their meaning",
        "read it as float32 first, which holds its values exactly: "
        f"gl.arrays({field.name}=array.astype('f4')), say",
    )


def check_texts(
    source: Source, numbers: Sequence[int], texts: Iterable[Any], *, allow_nul: bool = True
) -> None:
    """Raise ``RecordError`` for the first text that cannot be written; names its record.

    Args:
        source: that has the records.
        numbers: of the records.
        texts: one for each of them.
        allow_nul: False if texts of the format end at a NUL character.
    """
    for number, text in zip(numbers, texts, strict=True):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise no_utf8(source.where(number), error) from None
        if not allow_nul and "\0" in text:
            raise RecordError(
                f"{source.where(number)}: {text[:MAX_TEXT]!r} cannot be written",
                cause=f"character {text.index(chr(0))} is NUL, and texts of this format end there",
                remedy="choose TFRecord (.tfrecord) or Parquet (.parquet)",
            )


def no_utf8(record: str, error: UnicodeEncodeError) -> RecordError:
    """Return the error for the text of a record that UTF-8 has no bytes for."""
    return RecordError(
        f"{record}: {error.object[:MAX_TEXT]!r} cannot be written as UTF-8",
        cause=f"character {error.start} is half of a surrogate pair",
        remedy="repair the text; errors='surrogateescape' may have been used to read it",
    )


def uniform_only(field: Field, form: str) -> Refusal | None:
    """Return why a format of records of one size cannot hold a field of varying shape."""
    if field.text:
        return (
            f"it is text of any length, and every record of {form} has one size",
            "choose TFRecord (.tfrecord), whose texts have any length",
        )
    if field.uniform:
        return None
    if field.encoded:
        reason = "the bytes of image files differ in length"
    else:
        reason = f"its shape {field.shape} varies"
    if field.encoded:
        folder = ", or format='images' for a folder of image files"
    else:
        folder = ""
    return (
        f"{reason}, and every record of {form} has one shape",
        f"choose TFRecord (.tfrecord), whose records vary in length{folder}",
    )


def stored_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which a field is stored: little-endian."""
    # By its text: that of a dtype of another package (bfloat16) is plain bytes here.
    return np.dtype(dtype.str).newbyteorder("<")


def record_dtype(spec: Spec) -> np.dtype[Any]:
    """Return the structured dtype of records that have all fields side by side, without padding."""
    return np.dtype([(field.name, stored_dtype(field.dtype), field.fixed_shape) for field in spec])


def as_rows(fields: Fields, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    """Return fields as records of a structured dtype, ``[count]``."""
    rows = np.empty(count, dtype)
    for name, values in fields.items():
        rows[name] = values
    return rows


def differs(
    back: Source, records: Records, dtypes: Mapping[str, np.dtype[Any]] | None = None
) -> str:
    """Return the difference between a file and the records that were written to it, in words; "" if
    there is none.

    Args:
        back: the file, opened again.
        records: the records.
        dtypes: of fields that the file gives in another one, text of a fixed length for instance.
    """
    if len(back) != records.count:
        return f"it has {len(back)} records, not {records.count}"
    first = 0
    for numbers, fields in records.chunks():
        actual = back.read(np.arange(first, first + numbers.size))
        for name, values in fields.items():
            if dtypes and name in dtypes:
                actual[name] = np.asarray(actual[name]).astype(dtypes[name])
            if not equal_values(actual[name], values):
                return f"field {name!r} differs in records {first} to {first + numbers.size - 1} of the file"
        first += numbers.size
    return ""


def equal_values(actual: Values, expected: Values) -> bool:
    """Return True if two batches have equal dtypes, shapes and bytes; not-a-number and not-a-time
    equal themselves."""
    if isinstance(expected, Ragged) or isinstance(actual, Ragged):
        return (
            isinstance(actual, Ragged)
            and isinstance(expected, Ragged)
            and np.array_equal(actual.lengths, expected.lengths)
            and _equal_arrays(actual.flat, expected.flat)
        )
    if isinstance(expected, list) or isinstance(actual, list):
        return len(actual) == len(expected) and all(map(_equal_arrays, actual, expected))
    return _equal_arrays(actual, expected)


def _equal_arrays(actual: Any, expected: Any) -> bool:
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return False
    if actual.dtype.kind in "fcV" and not has_padding(
        actual.dtype
    ):  # by bytes: other bits of not-a-number are not the same
        return bool(actual.tobytes() == expected.tobytes())
    return bool(np.array_equal(actual, expected, equal_nan=actual.dtype.kind in "fcmM"))


def has_padding(dtype: np.dtype[Any]) -> bool:
    """Return True for long doubles: of their 16 bytes x86 uses 10; the others hold anything."""
    return bool(dtype.itemsize > {"g": 8, "G": 16}.get(dtype.char, dtype.itemsize))
