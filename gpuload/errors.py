"""The error tree: every error names its subject, its cause and its remedy.

GpuloadError
├── SpecError          ValueError         fields, shapes, dtypes or arguments that do not fit
│   └── TooLargeError        MemoryError  more memory is needed than there is
├── FormatError        ValueError         a file of another format than it claims
├── RecordError        ValueError         one record is damaged
│   ├── DamagedBlockError                 records that are decoded together are damaged
│   └── DamagedSourceError                more records are damaged than the loader was told to pass over
├── FileError          OSError            a file that cannot be used
│   ├── MissingFileError     FileNotFoundError
│   ├── DirectoryError       IsADirectoryError
│   ├── UnreadableFileError  PermissionError
│   └── ChangedFileError     a file that changed or disappeared after it was opened
├── RecordIndexError   IndexError         a record number outside the source
├── UnknownFieldError  KeyError           a field that is not there
├── UnknownAttributeError AttributeError  an attribute that is not there, with the form that does the same
├── CallError          TypeError          a call with arguments that there are not, or without some that are needed
├── ClosedError        ValueError         use after close
├── StateError         ValueError         a saved state of other data, ops or seed
├── DeviceError        RuntimeError       a device or executor that is not there
├── PixelError         RuntimeError       a record with other values on the CPU
└── MissingPackageError ImportError       an optional package; names the extra to install

RowError stays inside: the code that knows files and records makes a RecordError of it.
"""

from __future__ import annotations

from typing import Any

from gpuload.redaction import message, printable, redact

MAX_CHARACTERS = 200  # characters of a value
NEW_LINE = "\n  "  # in the `repr` of a source with many fields
WITHOUT_RECORD = 'gl.Loader(..., on_error="replace")'  # in remedies


class GpuloadError(Exception):
    """An error with its cause and its remedy; the base of all errors of gpuload.

    Args:
        what: one line that names file, record, field or argument and the value found.
        cause: why it is wrong.
        remedy: a way to mend it.
    """

    def __init__(self, what: str, *, cause: str = "", remedy: str = "") -> None:
        what = redact(what.replace(NEW_LINE, " "))  # the repr of a source in it
        super().__init__(what)
        self.what, self.cause, self.remedy = what, redact(cause), redact(remedy)

    def __str__(self) -> str:
        """Return the lines for people. A name that holds line breaks or escape sequences makes no
        lines of its own."""
        lines = [printable(self.what)]
        if self.cause:
            lines.append(f"  cause:  {printable(self.cause)}")
        if self.remedy:
            lines.append(f"  remedy: {printable(self.remedy)}")
        return "\n".join(lines)

    def within(self, place: str) -> GpuloadError:
        """Put the place (``"ops[2]"``, ``"train.npy, record 7"``) in front of the message; return
        self."""
        self.what = f"{redact(place)}: {self.what}"
        self.args = (self.what,)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.what, self.cause, self.remedy), self.__dict__


def _rebuild(kind: type[GpuloadError], what: str, cause: str, remedy: str) -> GpuloadError:
    return kind(what, cause=cause, remedy=remedy)


class SpecError(GpuloadError, ValueError):
    """Fields, shapes, dtypes or arguments do not fit together."""


class TooLargeError(SpecError, MemoryError):
    """More memory is needed than there is."""


class FormatError(GpuloadError, ValueError):
    """A file is of another format than it claims: magic, header, length."""


class RecordError(GpuloadError, ValueError):
    """One record is damaged."""


class DamagedBlockError(RecordError):
    """Records that are decoded together, as those of a row group of Parquet, are damaged."""


class DamagedSourceError(RecordError):
    """More records are damaged than the loader was told to pass over."""


class FileError(GpuloadError, OSError):
    """A file cannot be used."""


class MissingFileError(FileError, FileNotFoundError):
    """No file is there."""


class DirectoryError(FileError, IsADirectoryError):
    """A directory stands where a file is needed."""


class UnreadableFileError(FileError, PermissionError):
    """The file may not be read."""


class ChangedFileError(FileError):
    """A file changed or disappeared after it was opened."""


class RecordIndexError(GpuloadError, IndexError):
    """A record number lies outside the source."""


class UnknownFieldError(GpuloadError, KeyError):
    """A field is not there."""


class UnknownAttributeError(GpuloadError, AttributeError):
    """An attribute is not there; the remedy is the form that does the same."""


class CallError(GpuloadError, TypeError):
    """A function or class was called with an argument that it does not have, or without one that it
    needs."""


class ClosedError(GpuloadError, ValueError):
    """A source or loader was used after it was closed."""


class StateError(GpuloadError, ValueError):
    """A saved state belongs to other data, other ops or another seed."""


class DeviceError(GpuloadError, RuntimeError):
    """A device or executor is not there."""


class PixelError(GpuloadError, RuntimeError):
    """A record of a batch has other values than the array executor makes on the CPU, by more than
    the ops allow.

    Attributes:
        record: its number in the source, as ``batch.records`` has it.
        epoch, step: of the batch.
        field: that differs.
        ops: the names of the ops that made it, ``("Decode", "Resize")``.
        device, executor: on which, and by which, they were run: ``"gpu:0"`` and ``"array"``.
        value: of the field, as it was in the batch: an array, a number or a text.
        expected: the same, as the CPU makes it; None where the CPU refuses the record.
    """

    record = epoch = step = -1
    field = device = executor = ""
    ops: tuple[str, ...] = ()
    value: Any = None
    expected: Any = None


class MissingPackageError(GpuloadError, ImportError):
    """An optional package is missing."""


class RowError(Exception):
    """One row of a batch cannot be used; the loader, which knows records and files, makes a
    RecordError of it.

    Args:
        row: its place in the batch.
        reason: the fault, in words.
        cause: of the fault, if it is not damage of the bytes.
        remedy: for that cause.
    """

    def __init__(self, row: int, reason: str, *, cause: str = "", remedy: str = "") -> None:
        super().__init__(f"row {row} of the batch: {reason}")
        self.row, self.reason, self.cause, self.remedy = row, reason, cause, remedy

    def shift_rows(self, rows: int) -> RowError:
        """Return the error for a larger batch, in which ``rows`` other rows stand before the rows
        of this one."""
        return RowError(self.row + rows, self.reason, cause=self.cause, remedy=self.remedy)

    def of_record(self, place: str) -> RecordError:
        """Return the error that names file and record."""
        return RecordError(
            f"{place}: {self.reason}",
            cause=self.cause
            or "the record is damaged, or holds something else than the ops are for",
            remedy=self.remedy
            or f"repair it, or train without it: {WITHOUT_RECORD}; `gpuload check PATH` lists all "
            "damaged records",
        )


class FunctionError(RowError):
    """A function of the user's raised an error for a row; ``of_record`` returns that error
    itself."""

    def __init__(self, name: str, error: Exception, *, row: int = 0, count: int = 1) -> None:
        super().__init__(row, f"{name} raised {error!r}")
        self.name, self.error, self.count = name, error, count

    def shift_rows(self, rows: int) -> FunctionError:
        """Return the error for a batch in which ``rows`` others stand before."""
        return FunctionError(self.name, self.error, row=self.row + rows, count=self.count)

    def of_record(self, place: str) -> Any:
        """Return the function's error, with a note that names the record."""
        if self.count > 1:
            note = f", the first of the {self.count} that it was called with"
        else:
            note = ""
        return of_function(self.error, f"in gl.ops.Python({self.name}), {place}{note}")


def short_repr(value: object, max_characters: int = MAX_CHARACTERS) -> str:
    """Return the beginning of a value's ``repr``; Python makes no text of integers of more than
    4,300 digits."""
    try:
        return repr(value)[:max_characters]
    except ValueError:
        return f"a {type(value).__name__} with an integer of too many digits to show"


def line_of(error: Exception) -> str:
    """Return the first line of an error of another library, or its kind if it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0][:MAX_CHARACTERS]


def add_note(error: Exception, note: str) -> Exception:
    """Add a note to an error of the user's own code and return the error; Python 3.10 has no
    ``add_note`` itself."""
    error.__notes__ = [*getattr(error, "__notes__", ()), message(note)]
    return error


def of_function(error: Exception, note: str = "") -> Exception:
    """Return the error to raise for an exception of a user's function: the same, with a note about
    the call.

    StopIteration would end the loop that asked for the next record or batch, and the rest of the
    data would be missing without a word. A RuntimeError takes its place, as in a generator of
    Python (PEP 479).
    """
    if isinstance(error, StopIteration):
        wrapped = RuntimeError(
            f"a function raised {short_repr(error)}, which would end the epoch unseen"
        )
        wrapped.__cause__ = error
        error = wrapped
    return add_note(error, note) if note else error


def changed_file(path: str, cause: str, manifest: str = "") -> ChangedFileError:
    """Return the error for a file or an object that changed since it was opened.

    Args:
        path: of the file.
        cause: the change, in words.
        manifest: the path of the manifest that lists the file; "" if none does.
    """
    if manifest:
        return ChangedFileError(
            f"{path} changed after {manifest} was written",
            cause=cause,
            remedy="write the manifest again, by the call that wrote it: gpuload index, or "
            f"source.index({manifest!r})",
        )
    return ChangedFileError(
        f"{path} changed after it was opened",
        cause=cause,
        remedy="open it again, and write new data under a new name while a loader reads",
    )


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra of pyproject.toml.

    It holds wherever gpuload was installed, from a checkout or a wheel: pip takes the gpuload that
    is there.
    """
    return f'pip install "gpuload[{extra}]"'


def missing_package(
    package: str,
    *,
    needed_for: str,
    extra: str = "",
    remedy: str = "",
    error: ImportError | None = None,
) -> MissingPackageError:
    """Return the error that names the command that installs ``package``.

    Args:
        package: its name on package indexes.
        needed_for: the call that needs it.
        extra: the one of pyproject.toml that brings it.
        remedy: the command, where it depends on the machine.
        error: of the import. A package may be there and unfit, for another NumPy, say; it says so
            itself.
    """
    cause = "it is not installed"
    if error is not None and not isinstance(error, ModuleNotFoundError):
        cause = f"it is installed, but cannot be imported: {error}"
    return MissingPackageError(
        f"{needed_for} needs the package {package!r}",
        cause=cause,
        remedy=remedy or install_command(extra),
    )
