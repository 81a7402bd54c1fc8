"""Writers: what a format can hold of records, how it is written, and how it is read again to compare it.

A writer says field by field what it cannot hold, and what to choose instead; nothing is converted without a word. What
is written is native to no machine: numbers are little-endian, as nearly all machines have them, and each format says so
in the file or beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import GpuloadError, SpecError
from gpuload.ragged import Ragged
from gpuload.sources import filtering
from gpuload.sources.base import Source
from gpuload.sources.leaf import Fields, Values
from gpuload.spec import Field, Spec

Refusal = tuple[str, str]  # cause and remedy


class Unread(Exception):
    """The user's own reader raised an error of the system, which is not one of writing."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, eq=False)
class Records:
    """The records of one file, some at a time.

    Attributes:
        source: where they come from.
        begin, end: which of its records.
        names: the fields that the file holds.
        tick: told how many more records were read; raises what ends the work where it was asked to end.
    """

    source: Source
    begin: int
    end: int
    names: tuple[str, ...]
    tick: Callable[[int], None] = lambda count: None

    @property
    def count(self) -> int:
        """How many records there are."""
        return self.end - self.begin

    @property
    def spec(self) -> Spec:
        """The fields that the file holds."""
        return self.source.spec.only(self.names)

    def chunks(self, names: tuple[str, ...] | None = None) -> Iterator[tuple[NDArray[np.int64], Fields]]:
        """Give record numbers of the source, and their fields in the order of the spec, some megabytes at a time."""
        wanted = self.names if names is None else names
        ordered = self.source.spec.only(wanted).names
        for numbers in filtering.chunks(self.source, wanted, self.begin, self.end):
            self.tick(0)
            try:
                read = self.source.read_groups(numbers, wanted)
            except OSError as error:
                raise error if isinstance(error, GpuloadError) else Unread(error) from None
            yield numbers, {name: read[name] for name in ordered}
            self.tick(numbers.size if self.names[-1] in wanted else 0)  # each record is counted once


@dataclass(frozen=True)
class Writer:
    """How files of a format are written.

    Attributes:
        refusal: why it cannot hold a field, and what to choose instead; None where it can.
        write: writes the file at a path.
        differs: reads the file again, and says how it differs from the records; "" where it does not.
        call: the call that reads files of these fields again, as Python's text.
        beside: the small files that stand beside a file: what is put behind its name, and the bytes.
        about: what its files depend on besides the records: arguments, for the record of a conversion.
        notes: says of a field how it is stored, where that is not how it was; "" else.
    """

    refusal: Callable[[Field], Refusal | None]
    write: Callable[[str, Records], None]
    differs: Callable[[str, Records], str]
    call: Callable[[str, Spec], str]
    beside: Callable[[str, Records], Mapping[str, bytes]] = lambda name, records: {}
    about: Mapping[str, Any] = field(default_factory=dict)
    notes: Callable[[Field], str] = lambda field: ""


@dataclass(frozen=True)
class FolderWriter:
    """How a folder is written that has a file for each record.

    Attributes:
        call: the call that reads the folder again, as Python's text; raises ``SpecError`` if the records of a source
            cannot be written so.
        about: what the folder depends on besides the records.
        write: writes some records into a folder; files of the same names are written anew.
        first_difference: reads files again; returns the number of the first record of which the file differs, or None.
        finish: writes what belongs to the whole folder, when all records are there.
    """

    call: Callable[[str, Source], str]
    about: Callable[[Source], Mapping[str, Any]]
    write: Callable[[str, Records], None]
    first_difference: Callable[[str, Records], int | None]
    finish: Callable[[str, Source], None]


def check_fields(name: str, writer: Writer, spec: Spec) -> None:
    """Raise ``SpecError`` if the format of a name cannot hold one of the fields; names the field."""
    refused = [(one, why) for one in spec if (why := foreign(one) or writer.refusal(one)) is not None]
    if refused:
        (first, (cause, remedy)), *others = refused
        more = f", nor can {', '.join(one.name for one, _ in others)}" if others else ""
        raise SpecError(f"field {first} cannot be written as {name}{more}", cause=cause, remedy=remedy)


def foreign(one: Field) -> Refusal | None:
    """Return why no format holds a dtype that another package added to NumPy: bfloat16, float8 and the like."""
    if one.dtype.isbuiltin != 2:
        return None
    return (
        f"{one.dtype} is no dtype of NumPy's own: no file can name it, and its bytes would lose their meaning",
        f"read it as float32 first, which holds its values exactly: gl.arrays({one.name}=array.astype('f4')), say",
    )


def uniform_only(one: Field, form: str) -> Refusal | None:
    """Return why a format of records of one size cannot hold a field whose shape varies."""
    if one.text:
        return (
            f"it is text of any length, and every record of {form} has one size",
            "choose TFRecord (.tfrecord), whose texts have any length",
        )
    if one.uniform:
        return None
    what = "the bytes of image files differ in length" if one.encoded else f"its shape {one.shape} varies"
    folder = ", or format='images' for a folder of image files" if one.encoded else ""
    return (
        f"{what}, and every record of {form} has one shape",
        f"choose TFRecord (.tfrecord), whose records vary in length{folder}",
    )


def stored_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which a field is stored: little-endian."""
    return np.dtype(dtype.str).newbyteorder("<")


def record_dtype(spec: Spec) -> np.dtype[Any]:
    """Return the structured dtype of records that have all fields side by side, without padding."""
    return np.dtype([(one.name, stored_dtype(one.dtype), one.fixed_shape) for one in spec])


def as_rows(fields: Fields, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    """Return fields as records of a structured dtype, ``[count]``."""
    rows = np.empty(count, dtype)
    for name, values in fields.items():
        rows[name] = values
    return rows


def differs(back: Source, records: Records) -> str:
    """Return how a file that was opened again differs from the records that were written to it; "" if it does not."""
    if len(back) != records.count:
        return f"it has {len(back)} records, not {records.count}"
    first = 0
    for numbers, fields in records.chunks():
        got = back.read(np.arange(first, first + numbers.size))
        for name, values in fields.items():
            if not same(got[name], values):
                return f"field {name!r} differs in records {first} to {first + numbers.size - 1} of the file"
        first += numbers.size
    return ""


def same(got: Values, expected: Values) -> bool:
    """Return True if two batches have the same dtype, shapes and bytes: not-a-number equals itself, not-a-time too."""
    if isinstance(expected, Ragged) or isinstance(got, Ragged):
        return (
            isinstance(got, Ragged)
            and isinstance(expected, Ragged)
            and np.array_equal(got.lengths, expected.lengths)
            and _same_array(got.flat, expected.flat)
        )
    if isinstance(expected, list) or isinstance(got, list):
        return len(got) == len(expected) and all(map(_same_array, got, expected))
    return _same_array(got, expected)


def _same_array(got: Any, expected: Any) -> bool:
    got, expected = np.asarray(got), np.asarray(expected)
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return False
    if got.dtype.kind in "fcV" and not has_padding(got.dtype):  # by bytes: other bits of not-a-number are not the same
        return bool(got.tobytes() == expected.tobytes())
    return bool(np.array_equal(got, expected, equal_nan=got.dtype.kind in "fcmM"))


def has_padding(dtype: np.dtype[Any]) -> bool:
    """Return True for long doubles, of whose 16 bytes x86 uses 10; the others hold anything."""
    return bool(dtype.itemsize > {"g": 8, "G": 16}.get(dtype.char, dtype.itemsize))
