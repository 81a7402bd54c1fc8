"""Columnar: columns of Apache Arrow as fields of records, for every format that PyArrow reads.

    numbers, booleans             arrays: int8 to uint64, float16 to float64, bool
    dates, times, durations       datetime64 and timedelta64 of the unit of the column; with a time zone in UTC
    strings                       text of any length; lists of them, too
    binary                        uint8 of varying length; encoded images where the first record is one
    fixed size binary, lists      arrays ``[size]``; lists of lists of fixed size, and tensors, have more axes
    lists                         `Ragged`, of numbers or of arrays of one shape; with ``shapes=`` arrays of that shape
    dictionaries, run ends        the values that they stand for
    structs                       a field for each member, ``"outer.inner"``; of Hugging Face's images the bytes

Large types and views are as those without. What a record cannot hold is refused by name: missing values without a
default, decimals, maps, unions, lists of lists that vary along several axes.

Source  https://arrow.apache.org/docs/format/Columnar.html; the metadata ``huggingface`` of the library `datasets`
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import signalsafe, strings
from gpuload.errors import (
    DamagedBlockError,
    FormatError,
    GpuloadError,
    SpecError,
    UnknownFieldError,
    line_of,
    missing_package,
)
from gpuload.images.head import kind_of
from gpuload.ragged import Ragged, concatenate
from gpuload.sources.blocks import check_cache_bytes
from gpuload.sources.columns import differing_files
from gpuload.sources.leaf import UINT8, gather_pieces
from gpuload.spec import Field, is_whole
from gpuload.storage.files import Files, open_error

Array = NDArray[Any]
Path = tuple[str, ...]
Shapes = Mapping[str, tuple[int, ...]]
HEAD_BYTES = 64  # of a value, which tell whether it is an image


@dataclass(frozen=True)
class Column:
    """A column of a file, as a field.

    Attributes:
        field: the field.
        path: the names that lead to it: those of structs around it, and its own.
        shape: the shape that lists of varying length are said to have; None if nothing was said.
        default: in place of missing values; None: these are refused.
        call: the function of gpuload that opened the file, for errors.
    """

    field: Field
    path: Path
    shape: tuple[int, ...] | None = None
    default: Any = None
    call: str = ""

    @property
    def dotted(self) -> str:
        """The path as one text."""
        return ".".join(self.path)


@dataclass(frozen=True)
class Description:
    """What the metadata of the library `datasets` say of columns.

    Attributes:
        shapes: of columns of arrays.
        images: columns of encoded images.
        classes: the names of the classes of labels; empty where no column or several have such names.
    """

    shapes: Shapes
    images: frozenset[str]
    classes: tuple[str, ...]


def import_arrow(call: str) -> ModuleType:
    """Return PyArrow, with its modules ``compute`` and ``parquet``.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        signalsafe.import_package("pyarrow.parquet")
        signalsafe.import_package("pyarrow.compute")
        return signalsafe.import_package("pyarrow")
    except ImportError as error:
        raise missing_package("pyarrow", needed_for=call, extra="parquet", error=error) from None


def check_arguments(call: str, fields: Any, shapes: Any, defaults: Any, cache_bytes: Any) -> dict[str, Any]:
    """Return the arguments of a reader of columns in the form in which a source is pickled.

    Raises:
        SpecError: one of them is of another kind.
    """
    is_list = not isinstance(fields, (str, Mapping)) and (fields is None or isinstance(fields, Sequence))
    if not is_list or (fields is not None and (not fields or not all(isinstance(name, str) for name in fields))):
        raise SpecError(
            f"{call}: fields = {fields!r}", cause="it is a list of names", remedy='write ["image", "label"]'
        )
    if fields is not None and len(set(fields)) < len(fields):
        raise SpecError(f"{call}: fields = {fields!r}", cause="a name stands there twice", remedy="name it once")
    for name, value in (("shapes", shapes), ("defaults", defaults)):
        if value is not None and not isinstance(value, Mapping):
            raise SpecError(
                f"{call}: {name} = {value!r}", cause="it is a dict from names of columns", remedy='write {"x": ...}'
            )
    return {
        "fields": None if fields is None else tuple(fields),
        "shapes": dict(shapes or {}),
        "defaults": dict(defaults or {}),
        "cache_bytes": check_cache_bytes(call, cache_bytes),
    }


def columns_of_files(
    call: str, tables: Sequence[Any], arguments: Mapping[str, Any], images: Mapping[str, bool] | None = None
) -> list[list[Column]]:
    """Return the columns of each file, whose fields are the same.

    Args:
        call: the reader, ``"gl.parquet"``.
        tables: the files.
        arguments: of the reader.
        images: of columns of bytes whether they hold images; for others the first record of the first file says it.

    Raises:
        SpecError: the files differ in a field.
    """
    columns, images = list[list[Column]](), images or {}

    def first(path: Path) -> list[Any]:
        return [] if columns or ".".join(path) in images else tables[0].first(path)

    for table in tables:
        with as_refusal(table.title, table.files, table.number):
            description = table.description
            file_columns = columns_of(
                call,
                table.path,
                table.schema,
                fields=arguments["fields"] or (tuple(column.field.name for column in columns[0]) if columns else None),
                shapes={**description.shapes, **arguments["shapes"]},
                defaults=arguments["defaults"],
                images=[c.field.name for c in columns[0] if c.field.encoded]
                if columns
                else description.images | {name for name, is_image in images.items() if is_image},
                first=first,
            )
        columns.append(file_columns)
        for column, expected in zip(file_columns, columns[0], strict=True):
            if column.field != expected.field:
                raise differing_files(f"{table.path} has {column.field}", f"{tables[0].path} has {expected.field}")
    return columns


def describe_features(metadata: Mapping[bytes, bytes] | None) -> Description:
    """Return what the metadata of a schema say in the form of `datasets`; nothing if they have another form."""
    try:
        return describe_types(json.loads((metadata or {}).get(b"huggingface", b"{}"))["info"]["features"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return describe_types({})


def describe_types(features: Mapping[str, Any]) -> Description:
    """Return what the features of a dataset say, in the form of ``Features.to_dict()``."""
    kinds = {name: feature for name, feature in features.items() if isinstance(feature, dict)}
    shapes = {
        name: tuple(feature["shape"])
        for name, feature in kinds.items()
        if isinstance(feature.get("shape"), (list, tuple)) and all(is_whole(length) for length in feature["shape"])
    }
    images = frozenset(name for name, feature in kinds.items() if feature.get("_type") == "Image")
    classes = [feature.get("names") for feature in kinds.values() if feature.get("_type") == "ClassLabel"]
    names = classes[0] if len(classes) == 1 and isinstance(classes[0], list) else []
    return Description(shapes, images, tuple(name for name in names if isinstance(name, str)))


def columns_of(
    call: str,
    place: str,
    schema: Any,
    *,
    fields: Sequence[str] | None,
    shapes: Shapes,
    defaults: Mapping[str, Any],
    images: Iterable[str],
    first: Callable[[Path], Any],
) -> list[Column]:
    """Return the columns of a schema as fields.

    Args:
        call: the reader, for errors.
        place: the file, for errors.
        schema: PyArrow's.
        fields: the names of the fields, in their order; None: all.
        shapes: of fields that are lists of varying length in the file.
        defaults: in place of missing values.
        images: the names of columns that hold encoded images.
        first: returns a list with the value of the first record of a column; empty if there is no record.

    Raises:
        SpecError: a column cannot be a field, or a shape or default does not fit; the remedy names ``fields=``.
        UnknownFieldError: there is no such column.
    """
    if twice := sorted({name for name in schema.names if schema.names.count(name) > 1}):
        raise SpecError(
            f"{place} has two columns {twice[0]!r}",
            cause="a field has a name of its own",
            remedy="rename one of them with PyArrow, and write the file anew",
        )
    types = dict(_leaves((), schema))
    images_of_structs = {path[:-1] for path in types if set(_members(types, path)) == {"bytes", "path"}}
    names = {  # an image of `datasets` has the name of its struct
        ".".join(path[:-1] if path[:-1] in images_of_structs else path): path
        for path in types
        if path[:-1] not in images_of_structs or path[-1] == "bytes"
    }
    order = list(names)
    for name in (*(order if fields is None else fields), *shapes, *defaults):
        if name not in names:
            raise UnknownFieldError(
                f"{place} has no column {name!r}", cause=f"it has {order}", remedy="name one of these"
            )
    columns = []
    for name in order if fields is None else fields:
        try:
            column = _column(name, names[name], types[names[name]], shapes.get(name), defaults.get(name))
        except GpuloadError as error:
            rest = [column_name for column_name in order if column_name != name]
            error.remedy += f"; fields={rest} leaves it out" if fields is None and rest else ""
            raise error.within(place) from None
        is_bytes = (column.field.dtype, column.field.shape) == (UINT8, (None,))
        if is_bytes and (
            name in images or names[name][:-1] in images_of_structs or any(map(_is_image, first(names[name])))
        ):
            column = Column(column.field.with_(encoded=True), column.path, None, column.default)
        columns.append(replace(column, call=call))
    return columns


def _members(types: Mapping[Path, Any], path: Path) -> list[str]:
    """Return the members of the struct that a column is one of; none if it is in no struct."""
    return [member[-1] for member in types if len(path) > 1 and member[:-1] == path[:-1]]


def _is_image(value: Any) -> bool:
    return isinstance(value, bytes) and kind_of(value[:HEAD_BYTES]) is not None


def _leaves(path: Path, members: Iterable[Any]) -> Iterable[tuple[Path, Any]]:
    """Yield path and type of each column, those of structs in their place."""
    for member in members:
        if _kind(member.type) == "struct":
            yield from _leaves((*path, member.name), [member.type.field(i) for i in range(member.type.num_fields)])
        else:
            yield (*path, member.name), member.type


def _column(name: str, path: Path, arrow_type: Any, shape: tuple[int, ...] | None, default: Any) -> Column:
    field = _field(name, arrow_type)
    if shape is not None:
        if not isinstance(shape, (tuple, list)) or not all(is_whole(length) for length in shape):
            raise SpecError(
                f"shapes: {name!r} has {shape!r}", cause="a shape is lengths", remedy=f"write {{{name!r}: (3,)}}"
            )
        if "list" not in _kind(arrow_type):
            raise SpecError(f"shapes: {name!r} is {arrow_type}", cause="it is no list", remedy="leave its shape out")
        field = Field(name, _field(name, _element_type(arrow_type)).dtype, tuple(shape))
        if field.text:
            raise SpecError(f"shapes: {name!r} has texts", cause="texts have no shape", remedy="leave its shape out")
    elif not field.uniform and not field.ragged:
        raise SpecError(
            f"column {name!r} is {arrow_type}",
            cause="lists that vary along several axes have no form here",
            remedy=f"say the shape if all records have the same: shapes={{{name!r}: (28, 28)}}",
        )
    if default is not None:
        arrow = signalsafe.import_package("pyarrow")
        try:
            arrow.scalar(default, _plain_type(arrow_type))
        except (TypeError, ValueError, OverflowError, arrow.ArrowException) as error:
            signalsafe.pass_on(error)
            raise SpecError(
                f"defaults: {name!r} has {default!r}",
                cause=f"the column is {arrow_type}: {error}",
                remedy="pass a value of that type",
            ) from None
    return Column(field, path, None if shape is None else tuple(shape), default)


def _kind(arrow_type: Any) -> str:
    """Return the kind of a type in one word, dictionaries and extensions taken for what they stand for."""
    text = str(_plain_type(arrow_type))
    return text.partition("<")[0].partition("[")[0]


def _plain_type(arrow_type: Any) -> Any:
    """Return the type of the values that a dictionary, run ends or an extension stand for."""
    while True:
        if hasattr(arrow_type, "storage_type"):
            arrow_type = arrow_type.storage_type
        elif str(arrow_type).startswith(("dictionary<", "run_end_encoded<")):
            arrow_type = arrow_type.value_type
        else:
            return arrow_type


def _element_type(arrow_type: Any) -> Any:
    while "list" in _kind(arrow_type):
        arrow_type = _plain_type(arrow_type).value_type
    return arrow_type


def _field(name: str, arrow_type: Any) -> Field:
    """Return the field of a column of a type; more than one axis of it may vary."""
    tensor_shape = getattr(arrow_type, "shape", None)
    if (axes := getattr(arrow_type, "permutation", None)) is not None and list(axes) != sorted(axes):
        raise _refusal(name, arrow_type, "the order of its axes is another one than that of its elements")
    plain, kind = _plain_type(arrow_type), _kind(arrow_type)
    if "list" in kind and "view" not in kind:
        inner = _field(name, plain.value_type)
        if kind == "fixed_size_list":
            lengths = tuple(tensor_shape) if tensor_shape is not None else (plain.list_size, *(inner.shape or ()))
        else:
            lengths = (None, *(inner.shape or ()))
        if inner.text and lengths != (None,):
            raise _refusal(name, arrow_type, "only lists of texts with one axis have a form here")
        return inner.with_(shape=lengths)
    if kind in ("string", "large_string", "string_view"):
        return Field(name, np.dtype(object), (), text="str")
    if kind in ("binary", "large_binary", "binary_view"):
        return Field(name, UINT8, (None,))
    if kind == "fixed_size_binary":
        return Field(name, UINT8, (plain.byte_width,))
    dtype = _dtype(kind, plain)
    if dtype is None:
        raise _refusal(name, arrow_type, "all of its values are missing" if kind == "null" else "it has no form here")
    return Field(name, dtype, ())


def _dtype(kind: str, plain: Any) -> np.dtype[Any] | None:
    """Return NumPy's dtype of numbers, dates and times; None for other types."""
    if kind in ("timestamp", "duration", "time32", "time64"):
        return np.dtype(f"{'M' if kind == 'timestamp' else 'm'}8[{plain.unit}]")
    names = {"halffloat": "f2", "float": "f4", "double": "f8", "bool": "?", "date32": "M8[D]", "date64": "M8[ms]"}
    names |= {f"{sign}int{8 * size}": f"{sign or 'i'}{size}" for sign in ("", "u") for size in (1, 2, 4, 8)}
    return np.dtype(names[kind]) if kind in names else None


def dtype_of_bytes(arrow_type: Any) -> np.dtype[Any] | None:
    """Return the dtype whose elements have the bytes of a column's values; None if there is none."""
    kind = str(arrow_type).partition("[")[0]  # of a dictionary, or of run ends, the bytes are numbers of values
    return None if kind in ("bool", "date32", "time32") else _dtype(kind, arrow_type)


def _refusal(name: str, arrow_type: Any, cause: str) -> SpecError:
    return SpecError(
        f"column {name!r} is {arrow_type}",
        cause=cause,
        remedy="cast it with PyArrow (pyarrow.compute.cast) and write it",
    )


@contextlib.contextmanager
def as_damage(place: str, files: Files | None = None, number: int = 0) -> Iterator[None]:
    """Make errors of PyArrow about bytes ours: damage, or that the file that holds them changed meanwhile.

    Raises:
        DamagedBlockError: PyArrow does not take the bytes; names the place.
        FileError: the file changed, or cannot be read.
    """
    arrow = signalsafe.import_package("pyarrow")
    try:
        yield
    except GpuloadError:
        raise
    except (arrow.ArrowException, OSError, MemoryError, ValueError) as error:
        signalsafe.pass_on(error)
        if files is not None:
            # Before it is called damage: the file may be another one by now.
            files.check(number)
        if files is not None and isinstance(error, OSError) and error.errno is not None:
            raise open_error(files.paths[number], error) from None
        cause = f"PyArrow cannot decode it: {line_of(error)}"
        raise DamagedBlockError(place, cause=cause, remedy="copy the file again, or write it anew") from None


@contextlib.contextmanager
def as_refusal(title: str, files: Files, number: int) -> Iterator[None]:
    """Make errors of PyArrow about the beginning, footer or schema of a file errors of its format.

    Raises:
        FormatError: PyArrow does not take the bytes.
        FileError: the file changed, or cannot be read.
    """
    path, size = files.paths[number], int(files.sizes[number])
    try:
        with as_damage(path, files, number):
            yield
    except DamagedBlockError as error:
        cause = f"{error.cause}; it has {size} bytes"
        remedy = "it was cut short, or is still being written, or is something else: gl.open(path) finds out"
        raise FormatError(f"{path} is no {title} file to read", cause=cause, remedy=remedy) from None


def python_values(path: Path, batch: Any) -> list[Any]:
    """Return the values of a column of a small batch as Python's objects."""
    compute = signalsafe.import_package("pyarrow.compute")
    values: list[Any] = reduce(compute.struct_field, path[1:], batch.column(path[0])).to_pylist()
    return values


def values_of(column: Column, batch: Any) -> Array | Ragged:
    """Return a column of a batch of records, as its field stores it; read-only, without a copy where that can be.

    Args:
        column: the column.
        batch: PyArrow's record batch, with lists and texts that are known to be valid.

    Raises:
        SpecError: values are missing and there is no default.
        DamagedBlockError: a list has another length than ``shapes=`` says.
    """
    arrow, compute = signalsafe.import_package("pyarrow"), signalsafe.import_package("pyarrow.compute")
    array = reduce(compute.struct_field, column.path[1:], batch.column(column.path[0]))
    field = column.field
    if array.null_count and column.default is not None:
        plain = array.dictionary_decode() if hasattr(array, "dictionary_decode") else array
        array = compute.coalesce(plain, arrow.scalar(column.default, plain.type))
    if column.shape is not None or (field.uniform and not field.text and field.shape):
        elements = _flat(column, _elements(column, array))
        if elements.size != len(array) * math.prod(field.fixed_shape):
            raise DamagedBlockError(
                f"column {field.name!r} has {elements.size} elements in {len(array)} records",
                cause=f"each has the shape {field.shape}",
                remedy="correct shapes=, or leave the column's shape out: then it is ragged",
            )
        return np.ascontiguousarray(elements.reshape(len(array), *field.fixed_shape), field.dtype)
    if field.uniform and not field.text:
        return np.ascontiguousarray(_flat(column, array), field.dtype)
    if field.text and field.shape:
        return _texts(column, _present(column, array))
    plain = _present(column, array)
    if "list" not in _kind(plain.type):
        return _bytes_of(plain)
    # A slice of an array keeps the offsets of the whole, and the first need not be 0; `flatten` gives the elements of
    # the slice alone, where `values` would give all.
    offsets = plain.offsets.to_numpy().astype(np.int64)
    inner = field.with_(shape=(field.shape or ())[1:])
    elements = _flat(column, _elements(column, plain.flatten(), is_element=True)).reshape(-1, *inner.fixed_shape)
    return Ragged(np.ascontiguousarray(elements, field.dtype), offsets - offsets[0])


def join(column: Column, pieces: Sequence[Any]) -> Array | Ragged:
    """Return the values of several batches, one after the other; of a single one without a copy."""
    if len(pieces) == 1:
        return pieces[0]  # type: ignore[no-any-return]
    if not pieces:
        field = column.field.stored
        if field.uniform:
            return np.empty((0, *field.fixed_shape), field.dtype)
        return Ragged.of([], field.dtype, field.with_(shape=(field.shape or ())[1:]).fixed_shape)
    return concatenate(pieces) if isinstance(pieces[0], Ragged) else np.concatenate(pieces)


def _present(column: Column, array: Any, *, is_element: bool = False) -> Any:
    """Return an array without dictionary, run ends or extension; raises ``SpecError`` if values are missing.

    Args:
        column: the column.
        array: its values.
        is_element: True if these are elements of the column's lists, for which no default stands.
    """
    while True:
        if hasattr(array, "storage"):
            array = array.storage
        elif hasattr(array, "dictionary_decode"):
            array = array.dictionary_decode()
        elif str(array.type).startswith("run_end_encoded<"):
            array = signalsafe.import_package("pyarrow.compute").run_end_decode(array)
        else:
            break
    if array.null_count:
        name, gaps = column.field.name, "elements of its lists" if is_element else "values"
        default = f"{{{name!r}: {_example(column, array.type)}}}"
        raise SpecError(
            f"column {name!r}: {array.null_count} {gaps} are missing",
            cause="a record has no place for a missing value",
            remedy=(
                "write the file anew, with a value in their place; or"
                if is_element
                else f"say what stands for them: {column.call}(..., defaults={default}); or"
            )
            + " leave the column out: fields=[...] has the names of those that are read",
        )
    return array


def _example(column: Column, arrow_type: Any) -> str:
    """Return a value, as Python writes it, that may stand for missing ones of a column."""
    kind = _kind(arrow_type)
    if "list" in kind:
        lengths = column.shape or column.field.shape or ()
        return f"[0] * {lengths[0]}" if len(lengths) == 1 and lengths[0] else "[]"
    examples = {"string": "''", "large_string": "''", "string_view": "''", "bool": "False"}
    if kind == "fixed_size_binary":
        return f"bytes({arrow_type.byte_width})"
    return "b''" if "binary" in kind else examples.get(kind, "0")


def _elements(column: Column, array: Any, *, is_element: bool = False) -> Any:
    """Return the elements of lists of any depth, one after the other."""
    array = _present(column, array, is_element=is_element)
    while "list" in str(array.type).partition("<")[0]:
        array = _present(column, array.flatten(), is_element=True)
    return array


def _flat(column: Column, array: Any) -> Array:
    """Return numbers as an array of one axis; of binary of one size its bytes."""
    array = _present(column, array)
    kind = _kind(array.type)
    if kind == "fixed_size_binary":
        size = array.type.byte_width
        # The buffer itself: PyArrow makes Python's objects of these values, too.
        raw = array.buffers()[1]
        begin = array.offset * size
        return np.frombuffer(raw or b"", UINT8)[begin : begin + len(array) * size]
    if kind in ("time32", "time64"):
        # PyArrow makes Python's objects of times of day.
        array = array.view(f"int{kind[-2:]}")
        return array.to_numpy(zero_copy_only=False).astype(np.int64).view(column.field.dtype)  # type: ignore[no-any-return]
    return array.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _bytes_of(array: Any) -> Ragged:
    """Return strings or binary values as their bytes."""
    # Offsets of 32 bits and views come to one form, with offsets of 64.
    large = array.cast("large_binary" if "binary" in str(array.type) else "large_string")
    _, offsets, payload = large.buffers()
    ends = np.frombuffer(offsets or bytes(8), np.int64)[large.offset : large.offset + len(large) + 1]
    return Ragged(np.frombuffer(payload or b"", UINT8), ends)


def _texts(column: Column, array: Any) -> Ragged:
    """Return lists of texts as `strings` stores them."""
    texts = _bytes_of(_present(column, array.flatten(), is_element=True))
    offsets = array.offsets.to_numpy().astype(np.int64)
    payload, ends, places = strings.room_for(np.diff(offsets), texts.lengths)
    gather_pieces(texts.payload, texts.offsets[:-1], texts.lengths, payload, places)
    return Ragged(payload, ends)
