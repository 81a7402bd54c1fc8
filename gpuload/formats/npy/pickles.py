"""Pickled files: NPY and NPZ files of Python objects, by a writer that the user trusts. `gl.convert` is
the one way to them.

Such a file is a pickle: reading it runs any code that its writer put there, with all the rights of
this process. So no source opens one. ``gl.convert(paths, out, allow_pickle=True)`` and
``gpuload convert --allow-pickle`` do, for files of known writers, and write files that hold bytes
alone.

Records  The content of a file decides how many records it has; lengths that agree never do:

             {"a": array, "label": 1}          one record, with a field for each key
             (array, array, 1)                 one record, with the fields x0, x1, x2
             a list or an array of such dicts or tuples
                                               a record for each of them
             [array, array, ...], [3, 1, 4], ["a", "b"]
                                               one file: a record for each item, with the field x.
                                               Several files: each is one record if its items are
                                               of different kinds, else ``record=`` has to say it
             an NPZ file                       the dict of its arrays

         ``record="file"``: each file is one record. ``record="row"``: each item of a file is one,
         and record i of a dict holds item i of each of its values.
Fields   All records have the same fields. A field holds numbers, text or bytes, as scalars or as
         arrays. Their dtype is the smallest that holds the values of all records; where their
         shapes differ the field has axes that vary.
Memory   A file at a time, and up to CACHED_BYTES of the files that were read last. Each file is
         read once to learn its records, and again when they are written and compared.
"""

from __future__ import annotations

import hashlib
import io
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import signalsafe
from gpuload.errors import FormatError, SpecError
from gpuload.progress import Progress
from gpuload.ragged import Ragged
from gpuload.sources.base import LeafSource
from gpuload.sources.leaf import Array, Bytes, Group, Indices, Leaf, Values, starts_of
from gpuload.sources.sourcefiles import SourceFiles
from gpuload.spec import Field, Spec
from gpuload.storage.files import Files, look_at
from gpuload.storage.wildcards import Paths, expand

NUMBERS = "biuf"  # kinds of dtypes that one field may mix
CACHED_BYTES = 1 << 28
KINDS = {
    "b": "a number",
    "i": "a number",
    "u": "a number",
    "f": "a number",
    "U": "text",
    "S": "bytes",
}
RECORD = ("file", "row")
BY_FILE = (
    "if the items of each file are the fields of one record, pass record='file' (--record file)"
)
log = logging.getLogger("gpuload")
Record = dict[str, Any]


def trusted(paths: Paths, record: str | None = None) -> PickledSource:
    """Return the records of files of Python objects, which are unpickled: code in them is run.

    Args:
        paths: a path, a string with wildcards, or a list of these.
        record: ``"file"`` or ``"row"``; None: the content of the files decides.

    Raises:
        SpecError: records differ in their fields; a field differs in kind; ``record`` has to be
            said.
        FormatError: a file cannot be unpickled, or holds something that is no record.
        FileError: a file is missing or cannot be read.
    """
    if record is not None and record not in RECORD:
        raise SpecError(
            f"record = {record!r}", cause='it is "file" or "row"', remedy="pass one of the two"
        )
    files, _ = look_at(expand(paths), 0, lambda path, size, head: None)
    log.warning(
        "%s: unpickled, which runs the code its writer put there; allow_pickle was given",
        files.paths[0],
    )
    return PickledSource(ObjectFiles(files, record))


class PickledSource(LeafSource):
    """Records of pickled files."""

    def __init__(self, objects: ObjectFiles) -> None:
        self._objects = objects
        self._leaves = tuple(ObjectLeaf(objects, field) for field in objects.fields)
        super().__init__(tuple(Group(leaf.spec, None) for leaf in self._leaves))

    def __len__(self) -> int:
        return int(self._objects.starts[-1])

    def _where(self, number: int) -> str:
        return self._objects.locate(number)

    def _title(self) -> str:
        return "pickled files"

    def _digest(self) -> str:
        return self._objects.digest

    @property
    def files(self) -> SourceFiles:
        """The files that are unpickled."""
        return SourceFiles(self._objects.files.paths)


class ObjectFiles:
    """Files of objects, unpickled when their records are asked for; safe to use from several
    threads at once.

    Attributes:
        files: the files.
        starts: int64 ``[num_files + 1]``, the number of the first record of each file, and of all
            records.
        fields: the fields of the records.
        digest: a text that differs for other bytes.
    """

    def __init__(self, files: Files, record: str | None) -> None:
        self.files, self.record = files, record
        self._busy = threading.Lock()
        self._recent: OrderedDict[int, list[Record]] = (
            OrderedDict()
        )  # records of files that were read last
        self._recent_bytes = 0
        text = hashlib.sha256(repr((files.names, record)).encode("utf-8", "surrogateescape"))
        counts, columns = list[int](), dict[str, _FieldType]()
        with Progress("unpickling") as progress:
            for number, path in enumerate(files.paths):
                progress.show(number, len(files), "files")
                raw = self._bytes(number)
                # Of all bytes, not of a sample: the file is read as a whole in any case.
                text.update(hashlib.sha256(raw).digest())
                records = _records(path, raw, record, is_only=len(files) == 1)
                self._keep(number, records)
                for row, fields in enumerate(records):
                    location = _where(path, row, len(records))
                    if not fields:
                        raise FormatError(
                            f"{location} has no fields",
                            cause="it is empty",
                            remedy="leave the file out",
                        )
                    if not columns:
                        columns = {name: _FieldType(name) for name in fields}
                    _check_names(fields, list(columns), location, files.paths[0])
                    for name, column in columns.items():
                        column.add(fields[name], location)
                counts.append(len(records))
        self.starts = starts_of(counts)
        self.fields = tuple(column.field for column in columns.values())
        self.digest = text.hexdigest()[:16]

    def locate(self, number: int) -> str:
        """Return the file of a record and its number in that file, as text."""
        file, row = self._place(number)
        return _where(self.files.paths[file], row, int(self.starts[file + 1] - self.starts[file]))

    def record_at(self, number: int) -> Record:
        """Return the values of a record, as they were pickled."""
        file, row = self._place(number)
        # One lock for all files: unpickling holds the interpreter's lock nearly all of the time
        # anyway.
        with self._busy:
            records = self._recent.get(file)
            if records is None:
                records = _records(
                    self.files.paths[file],
                    self._bytes(file),
                    self.record,
                    is_only=len(self.files) == 1,
                )
                self._keep(file, records)
            self._recent.move_to_end(file)
            return records[row]

    def _place(self, number: int) -> tuple[int, int]:
        file = int(np.searchsorted(self.starts, number, side="right")) - 1
        return file, number - int(self.starts[file])

    def _bytes(self, number: int) -> bytes:
        content = bytearray(int(self.files.sizes[number]))
        with self.files.open_file(number) as handle:
            self.files.read(number, handle, memoryview(content), 0)
        return bytes(content)

    def _keep(self, number: int, records: list[Record]) -> None:
        self._recent[number] = records
        self._recent_bytes += int(self.files.sizes[number])
        # The last one stays at any size: its next record is asked for at once.
        while self._recent_bytes > CACHED_BYTES and len(self._recent) > 1:
            oldest, _ = self._recent.popitem(last=False)
            self._recent_bytes -= int(self.files.sizes[oldest])


class ObjectLeaf(Leaf):
    """A field of records that are objects. It has no raw bytes: ``unpack`` makes the values of
    record numbers."""

    how = "unpickled"

    def __init__(self, objects: ObjectFiles, field: Field) -> None:
        self.objects, self.spec, self.num_records = objects, Spec((field,)), int(objects.starts[-1])

    def num_bytes(self, numbers: Indices) -> Indices:
        """Return zeros: the records have no raw bytes."""
        return np.zeros(numbers.size, np.int64)

    def value_bytes(self, numbers: Indices) -> Indices:
        """Return about how many bytes the values of each record take, int64 ``[n]``: its part of
        its file."""
        starts = self.objects.starts
        files = np.searchsorted(starts, numbers, side="right") - 1
        return self.objects.files.sizes[files] // np.maximum(1, np.diff(starts)[files])

    def _read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        """Do nothing: there are no raw bytes."""

    def unpack(self, numbers: Indices, raw: Ragged) -> list[Values]:
        """Return the field of some records."""
        [field] = self.spec
        return [_batch(field, [self._value(field, number) for number in numbers.tolist()])]

    def _value(self, field: Field, number: int) -> Array:
        return _cast(field, self.objects.record_at(number)[field.name], self.objects.locate(number))


def _batch(field: Field, values: list[Array]) -> Values:
    if field.uniform:
        return np.stack(values)
    if field.ragged:
        return Ragged.of(values, field.dtype)
    return values


# --- the content of a file


def _records(path: str, raw: bytes, record: str | None, *, is_only: bool) -> list[Record]:
    """Return the records of a file.

    Args:
        path: of the file, for messages.
        raw: its bytes.
        record: ``"file"``, ``"row"`` or None, as `trusted` takes it.
        is_only: True if it is the only file.
    """
    content = signalsafe.call(
        lambda: _unpickle(path, raw)
    )  # an exception of a signal handler is no fault of the file
    if isinstance(content, Mapping):
        if record == "row":
            return list(_rows_of(path, content))
        if record is None and is_only:
            _tell_of_rows(path, content)
        return [_named_record(content, path)]
    if isinstance(content, np.ndarray) and content.dtype.names:
        names = content.dtype.names
        if record == "file":
            return [{name: content[name] for name in names}]
        return [{name: row[name] for name in names} for row in content.reshape(-1)]
    if not isinstance(content, (list, tuple)) and not (
        isinstance(content, np.ndarray) and content.ndim
    ):
        raise FormatError(
            f"{path} holds one {type(content).__name__}",
            cause="a record is a dict, a tuple or an array of values",
            remedy="save a dict of arrays: numpy.save(path, {'image': image, 'label': 3})",
        )
    items = list(content)
    if record == "file" or (
        record is None and not _is_sequence_of_records(path, content, items, is_only=is_only)
    ):
        return [_of_items(items)]
    return [_record(item, _where(path, row, len(items))) for row, item in enumerate(items)]


def _record(item: Any, place: str) -> Record:
    """Return an item of a list of records as a record."""
    if isinstance(item, Mapping):
        return _named_record(item, place)
    return _of_items(list(item)) if _is_tuple(item) else {"x": item}


def _unpickle(path: str, raw: bytes) -> Any:
    try:
        # The bytes that the digest is of: under the path there may be another file by now.
        content = np.load(io.BytesIO(raw), allow_pickle=True)
        if not isinstance(content, np.lib.npyio.NpzFile):
            if isinstance(content, np.ndarray) and content.dtype.kind == "O" and not content.ndim:
                return content.item()
            return content
        with content:
            members = {name: content[name] for name in content.files}
    except Exception as error:  # a pickle may raise anything
        signalsafe.pass_on(error)
        raise FormatError(
            f"{path} cannot be unpickled",
            cause=f"{type(error).__name__}: {error}",
            remedy="it may need the packages and versions of its writer; numpy.load(path, "
            "allow_pickle=True) says more",
        ) from None
    return {
        name: array.item() if array.dtype.kind == "O" and not array.ndim else array
        for name, array in members.items()
    }


def _is_sequence_of_records(path: str, content: Any, items: list[Any], *, is_only: bool) -> bool:
    """Return True if each item of a sequence is a record, False if the sequence is one record.

    Raises:
        SpecError: both may be meant.
    """
    if items and (all(isinstance(item, Mapping) for item in items) or all(map(_is_tuple, items))):
        return True
    if isinstance(content, tuple):
        return False
    if is_only or not items:
        return True
    kinds = {_kind(item) for item in items}
    if len(kinds) > 1:
        return False
    raise SpecError(
        f"{path} holds {len(items)} values of one kind, and there are other files",
        cause="they may be the fields of one record, or one record each",
        remedy="say it: record='file' makes one record of each file, record='row' one of each "
        "value (--record)",
    )


def _kind(item: Any) -> tuple[str, int]:
    """Return a key that is equal for two values that may be the same field of two records."""
    try:
        array = np.asarray(item)
    except (TypeError, ValueError):
        return "", -1
    kind = array.dtype.kind
    return ("n" if kind in NUMBERS and not array.ndim else kind), array.ndim


def _is_tuple(item: Any) -> bool:
    """Return True for a tuple, and for a list or an array that holds objects, as NumPy makes of
    lists of tuples."""
    if isinstance(item, list):
        return _kind(item)[0] in ("", "O")
    return isinstance(item, tuple) or (
        isinstance(item, np.ndarray) and item.dtype.kind == "O" and item.ndim > 0
    )


def _of_items(items: list[Any]) -> Record:
    return {f"x{number}": item for number, item in enumerate(items)}


def _named_record(content: Mapping[Any, Any], location: str) -> Record:
    """Return a dict as a record; its names are texts."""
    for key in content:
        if not isinstance(key, str) or not key:
            raise FormatError(
                f"{location}: its key {key!r}"[:200],
                cause="the keys of a dict are the names of fields, which are texts",
                remedy="save the dict with keys that are texts",
            )
    return dict(content)


def _rows_of(path: str, content: Mapping[Any, Any]) -> Iterator[Record]:
    """Give row i of each value of a dict as record i."""
    lengths = {str(name): _length(value) for name, value in content.items()}
    if len(set(lengths.values())) != 1 or None in lengths.values():
        raise FormatError(
            f"{path}: its values have {lengths} items"[:300],
            cause="with record='row' record i holds item i of each value, so that all of them have "
            "as many",
            remedy="leave record= out: the dict is one record then",
        )
    record = _named_record(content, path)
    for row in range(next(iter(lengths.values())) or 0):
        yield {name: value[row] for name, value in record.items()}


def _length(value: Any) -> int | None:
    if isinstance(value, np.ndarray):
        if value.ndim:
            return len(value)
        return None
    if isinstance(value, (list, tuple)):
        return len(value)
    return None


def _tell_of_rows(path: str, content: Mapping[Any, Any]) -> None:
    lengths = {_length(value) for value in content.values()}
    if len(lengths) == 1 and (length := lengths.pop()) is not None and length > 1:
        log.warning(
            "%s: its dict is one record; if it is a table, record='row' (--record row) makes %d "
            "records of its rows",
            path,
            length,
        )


def _check_names(fields: Record, names: list[str], location: str, first: str) -> None:
    missing = [name for name in names if name not in fields]
    extra = [name for name in fields if name not in names]
    if missing or extra:
        if missing:
            subject = f"{location} has no field {missing[0]!r}"
        else:
            subject = f"{location} has the field {extra[0]!r}"
        raise SpecError(
            subject,
            cause=f"the records before it have {names}, as in {first}, and all records have the same fields"[
                :300
            ],
            remedy="leave the file out, or save all of them with the same keys",
        )


def _where(path: str, row: int, count: int) -> str:
    if count == 1:
        return path
    return f"{path}, record {row}"


# --- the values of a field


class _FieldType:
    """The dtype and shape that hold all values of a field."""

    def __init__(self, name: str) -> None:
        self.name, self.first = name, ""
        self.dtype: np.dtype[Any] | None = None
        self.shape: tuple[int | None, ...] = ()

    def add(self, value: Any, location: str) -> None:
        """Widen dtype and shape so that they hold the value of one more record.

        Raises:
            FormatError: it is no value of a field, or of another kind or number of axes.
        """
        array = _array(self.name, value, location)
        if self.dtype is None:
            self.dtype, self.shape, self.first = array.dtype, array.shape, location
            return
        kinds = {self.dtype.kind, array.dtype.kind}
        if len(kinds) > 1 and not kinds <= set(NUMBERS):
            kind_name, first_kind_name = (
                KINDS.get(dtype.kind, str(dtype)) for dtype in (array.dtype, self.dtype)
            )
            raise FormatError(
                f"field {self.name!r} of {location} is {kind_name}",
                cause=f"that of {self.first} is {first_kind_name}, and the values of a field are "
                "of one kind",
                remedy=f"save all of them as one kind; {BY_FILE}",
            )
        if array.ndim != len(self.shape):
            raise FormatError(
                f"field {self.name!r} of {location} has {array.ndim} axes",
                cause=f"that of {self.first} has {len(self.shape)}, and the values of a field have "
                "as many axes",
                remedy=f"save all of them with the same axes, as value.reshape(...); {BY_FILE}",
            )
        self.dtype = np.result_type(self.dtype, array.dtype)
        self.shape = tuple(
            length if length == other_length else None
            for length, other_length in zip(self.shape, array.shape, strict=True)
        )

    @property
    def field(self) -> Field:
        """The field."""
        return Field(self.name, np.dtype(self.dtype).newbyteorder("="), self.shape)


def _array(name: str, value: Any, location: str) -> NDArray[Any]:
    """Return the value of a field as an array; bytes as uint8, for they may end in zeros.

    Raises:
        FormatError: it is no value of a field.
    """
    if isinstance(value, (bytes, bytearray)):
        return np.frombuffer(value, np.uint8)
    cause = "a field holds numbers, text or bytes, or an array of these"
    try:
        if isinstance(value, np.ma.MaskedArray):
            array = None
        else:
            array = np.asarray(value)
    except (TypeError, ValueError) as error:
        array, cause = None, f"{cause}: {error}"
    if array is None or array.dtype.hasobject or array.dtype.names is not None:
        if value is None:
            raise FormatError(
                f"field {name!r} of {location} is None",
                cause=cause,
                remedy="save a number in its place (-1 or NaN, say), or save the files without "
                "this field",
            )
        raise FormatError(
            f"field {name!r} of {location} is a {type(value).__name__}",
            cause=cause,
            remedy="save it as arrays of numbers, text or bytes; the items of a dict under keys of "
            "their own",
        )
    return array


def _cast(field: Field, value: Any, location: str) -> NDArray[Any]:
    """Return the value of a field in the field's dtype.

    Raises:
        FormatError: that dtype cannot hold it.
    """
    array = _array(field.name, value, location)
    cast = np.array(array, field.dtype, order="C")
    if array.dtype.kind in "iu" and field.dtype.kind == "f" and not _is_exact(cast, array):
        raise FormatError(
            f"field {field.name!r} of {location} holds whole numbers that {field.dtype} cannot "
            "hold",
            cause="other records have real numbers, or whole numbers of another sign, in this "
            "field",
            remedy="save all of them in one dtype",
        )
    return cast


def _is_exact(cast: NDArray[Any], whole: NDArray[Any]) -> bool:
    """Return True if real numbers are the whole numbers that they were made of."""
    with np.errstate(invalid="ignore"):  # 2.0**63 is no int64
        return np.array_equal(cast.astype(whole.dtype), whole)
