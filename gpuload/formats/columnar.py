"""Columnar: columns of Apache Arrow as fields of records, for every format that PyArrow reads.

    numbers, booleans             arrays: int8 to uint64, float16 to float64, bool
    dates, times, durations       datetime64 and timedelta64 of the unit of the column; with a time
                                  zone in UTC
    strings                       text of any length; lists of them, too
    binary                        uint8 of varying length; encoded images where the first record is
                                  one
    fixed size binary, lists      arrays ``[size]``; lists of lists of fixed size, and tensors, have
                                  more axes
    lists                         `Ragged`, of numbers or of arrays of one shape; with ``shapes=``
                                  arrays of that shape
    dictionaries, run ends        the values that they stand for
    structs                       a field for each member, ``"outer.inner"``; of Hugging Face's
                                  images the bytes

Large types and views are as those without. These are refused by name: missing
values without a default, decimals, maps, unions, lists of lists that vary along several axes, two
columns of one name.

Dtypes   Files with different dtypes of a column have the one that holds all values of both, int64
         for int32 and int64, and the log says so; others are refused. ``dtypes=`` says another one,
         which must hold each value.
Defaults stand for missing values also where these are in a dictionary or in run ends
(`sources/defaults.py`).
Memory   Few bytes may stand for many values: runs, places in a dictionary, views. Their bytes are
         added up before they are decoded, and compared with the limit of `storage/inflate.py`
         (`UnpackLimit`).
Index    Columns ``__index_level_0__``, in which pandas stores row labels that have no name, are
         left out unless ``fields=`` names them, and the log says so.
Source  https://arrow.apache.org/docs/format/Columnar.html; the metadata ``huggingface`` of the
        library `datasets`
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
from gpuload.formats import foreign
from gpuload.formats.base import Beginning
from gpuload.images.head import kind_of
from gpuload.ragged import Ragged, concatenate
from gpuload.sources.blocks import check_cache_bytes
from gpuload.sources.classnames import common_classes
from gpuload.sources.columns import differing_files
from gpuload.sources.defaults import UnfitDefault, convert_default, example_default, plain_default
from gpuload.sources.dtypes import UnfitValue, common_dtype, convert_values
from gpuload.sources.furtherfields import log_further_fields
from gpuload.sources.leaf import UINT8, Indices, gather_pieces
from gpuload.sources.partitions import check_partitions
from gpuload.sources.zones import check_zones
from gpuload.spec import Field, dtype_of, is_whole, list_of_names
from gpuload.storage.fileerrors import open_error
from gpuload.storage.files import Files
from gpuload.storage.inflate import limit_bytes, too_large

Array = NDArray[Any]
Path = tuple[str, ...]
Shapes = Mapping[str, tuple[int, ...]]
VIEW = np.dtype([("length", "<i4"), ("beginning", "V4"), ("buffer", "<i4"), ("offset", "<i4")])
UNKNOWN_ZONE = "unknown"  # of times of a format that does not say whether they have one
VIEWS = ("string_view", "binary_view")
OFFSET_BYTES = 8  # of a text, a list, or another value of varying length, beside its own bytes
HEAD_BYTES = 64  # of a value, which tell whether it is an image
INDEX = re.compile(
    r"__index_level_\d+__"
)  # The name that pandas and PyArrow give to labels of rows without one.
# PyArrow's words, in errors:
FIXED_LISTS = re.compile(
    "Expected all lists to be of size="
)  # 23 to 25: of sound files with missing lists, too
UNSUPPORTED = re.compile("unsupported|not (yet )?implemented|not supported", re.IGNORECASE)
CONVERTED_KINDS = "biufmM"  # of dtypes that dtypes= may say
log = logging.getLogger("gpuload")


@dataclass(frozen=True)
class Column:
    """A column of a file, as a field.

    Attributes:
        field: the field.
        path: the names that lead to it: those of structs around it, and its own.
        shape: the shape that lists of varying length are said to have; None if nothing was said.
        default: in place of missing values, as an array of the dtype of a field of single numbers;
            None: these are refused.
        dtype: the dtype of the values in the file, if the field has another one.
        call: the function of gpuload that opened the file, for errors.
    """

    field: Field
    path: Path
    shape: tuple[int, ...] | None = None
    default: Any = None
    dtype: np.dtype[Any] | None = None
    call: str = ""

    @property
    def dotted(self) -> str:
        """The path as one text."""
        return ".".join(self.path)


@dataclass(frozen=True)
class UnpackLimit:
    """The bytes to which a piece of a file may unpack.

    Attributes:
        place: the piece, in words.
        packed_bytes: of the file.
    """

    place: str
    packed_bytes: int

    @property
    def limit(self) -> int:
        """How many bytes the values may have."""
        return limit_bytes(self.packed_bytes)

    def check(self, num_bytes: int) -> None:
        """Refuse values of more bytes than the limit, before memory is taken for them.

        Raises:
            FormatError: they are more.
        """
        if num_bytes > self.limit:
            raise too_large(self.place, self.packed_bytes, num_bytes, unpack="with PyArrow")


@dataclass(frozen=True)
class DatasetFeatures:
    """The features of columns in the metadata of the library `datasets`.

    Attributes:
        shapes: of columns of arrays.
        images: columns of encoded images.
        classes: of columns of labels the names of their classes.
    """

    shapes: Shapes
    images: frozenset[str]
    classes: Mapping[str, tuple[str, ...]]

    def classes_of(self, columns: Sequence[Column]) -> tuple[str, ...]:
        """Return the names of the classes of the only one of some columns that has such; else
        ``()``."""
        names = [
            self.classes[column.field.name]
            for column in columns
            if column.field.name in self.classes
        ]
        return names[0] if len(names) == 1 else ()


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


def check_arguments(
    call: str,
    fields: Any,
    shapes: Any,
    defaults: Any,
    cache_bytes: Any,
    *,
    dtypes: Any = None,
    partitions: Any = None,
) -> dict[str, Any]:
    """Return the arguments of a reader of columns in the form in which a source is pickled.

    Raises:
        SpecError: one of them is of another kind.
    """
    if fields is None:
        names = None
    else:
        names = list_of_names(f"{call}: fields", fields)
    for name, value in (("shapes", shapes), ("defaults", defaults), ("dtypes", dtypes)):
        if value is not None and not isinstance(value, Mapping):
            raise SpecError(
                f"{call}: {name} = {value!r}",
                cause="it is a dict from names of columns",
                remedy='write {"x": ...}',
            )
    arguments = {
        "fields": names,
        "shapes": dict(shapes or {}),
        "defaults": {name: plain_default(value) for name, value in (defaults or {}).items()},
        "cache_bytes": check_cache_bytes(call, cache_bytes),
    }
    # Named only where they are said: the fingerprints of manifests from before there were these are
    # by the others.
    if (partitions := check_partitions(call, partitions)) is not None:
        arguments["partitions"] = partitions
    if dtypes:
        arguments["dtypes"] = {
            name: _checked_dtype(call, name, value) for name, value in dtypes.items()
        }
    return arguments


def _checked_dtype(call: str, name: str, value: Any) -> np.dtype[Any]:
    """Return a dtype of ``dtypes=``; raises ``SpecError`` for others than numbers, booleans, dates
    and times."""
    try:
        if value is None:
            dtype = None
        else:
            dtype = dtype_of(value)
    except (TypeError, ValueError, SyntaxError):
        dtype = None
    if dtype is None or dtype.kind not in "mM":
        unit = ""
    else:
        unit = np.datetime_data(dtype)[0]
    if dtype is None or dtype.kind not in CONVERTED_KINDS or unit == "generic":
        raise SpecError(
            f"{call}: dtypes: {name!r} has {value!r}",
            cause="it is a dtype of numbers, booleans, dates or times of a unit",
            remedy=f'write {{{name!r}: "float64"}} or {{{name!r}: "datetime64[us]"}}, say',
        )
    return dtype.newbyteorder("=")


def columns_of_files(
    call: str,
    tables: Sequence[Any],
    arguments: Mapping[str, Any],
    images: Mapping[str, bool] | None = None,
) -> list[list[Column]]:
    """Return the columns of each file; their fields are the same.

    Args:
        call: the reader, ``"gl.parquet"``.
        tables: the files.
        arguments: of the reader.
        images: of columns of bytes whether they hold images; for others the first record of the
            first file says it.

    Raises:
        SpecError: the files differ in a field.
    """
    columns, images, index_columns = list[list[Column]](), images or {}, dict[str, None]()
    dtypes, fields = arguments.get("dtypes") or {}, arguments["fields"] or None
    image_names = {name for name, is_image in images.items() if is_image}

    def first(path: Path) -> list[Any]:
        if columns or ".".join(path) in images:
            return []
        value: list[Any] = tables[0].first(path)
        return value

    for table in tables:
        with as_refusal(table.title, table.files, table.number):
            description = table.description
            if not columns:
                image_names |= description.images
            if fields is None:
                fields, index_columns = without_index(table.schema)
            file_columns = columns_of(
                call,
                table.path,
                table.schema,
                fields=fields,
                shapes={**description.shapes, **arguments["shapes"]},
                defaults=arguments["defaults"],
                dtypes=dtypes,
                images=image_names,
                first=first,
            )
        if not columns:
            fields = tuple(column.field.name for column in file_columns)
            image_names = {column.field.name for column in file_columns if column.field.encoded}
        columns.append(file_columns)
    if index_columns:
        log.warning(
            "%s: %s: the labels of rows of pandas (%s) are left out; fields=%s has them, too",
            *(
                call,
                tables[0].path,
                ", ".join(index_columns),
                [*(c.field.name for c in columns[0]), *index_columns],
            ),
        )
    if not arguments["fields"]:
        _log_further_columns(call, tables, [column.field.name for column in columns[0]])
    return _with_common_fields(call, [table.path for table in tables], columns)


def _log_further_columns(call: str, tables: Sequence[Any], names: Sequence[str]) -> None:
    """Log the columns of files that the first file does not have."""
    later_fields = dict[str, list[str]]()
    for table in tables[1:]:
        members = [member for member in table.schema if not INDEX.fullmatch(member.name)]
        later_fields[table.path] = list(_paths_by_name(dict(_leaves((), members))))
    log_further_fields(call, tables[0].path, names, later_fields)


def without_index(schema: Any) -> tuple[tuple[str, ...] | None, dict[str, None]]:
    """Return the names of fields to read (None: of all columns), and the columns of row labels of
    pandas among them."""
    index_columns = {name: None for name in schema.names if INDEX.fullmatch(name)}
    if not index_columns or len(index_columns) == len(schema.names):
        return None, {}
    rest = [member for member in schema if member.name not in index_columns]
    return tuple(dict.fromkeys(_paths_by_name(dict(_leaves((), rest))))), index_columns


def _with_common_fields(
    call: str, paths: Sequence[str], columns: list[list[Column]]
) -> list[list[Column]]:
    """Return the columns of each file, with one dtype for all files where it holds the values of
    all of them.

    Raises:
        SpecError: the files differ in a field otherwise.
    """
    for key, expected in enumerate(columns[0]):
        files = [file_columns[key] for file_columns in columns]
        check_zones(zip(paths, [column.field for column in files], strict=True))
        different = {column.field: number for number, column in reversed(list(enumerate(files)))}
        if len(different) == 1:
            continue
        dtype = common_dtype([field.dtype for field in different])
        for field, number in different.items():
            fits = dtype is not None and field.with_(dtype=dtype) == expected.field.with_(
                dtype=dtype
            )
            if field != expected.field and not fits:
                raise _differing_columns(
                    call, f"{paths[number]} has {field}", paths[0], expected.field, field
                )
        log.info(
            "%s: %s: %s for all files, which holds the values of each",
            *(
                call,
                ", ".join(f"{field} in {paths[number]}" for field, number in different.items()),
                dtype,
            ),
        )
        for file_columns in columns:
            file_columns[key] = _with_dtype(file_columns[key], dtype)
    return columns


def _differing_columns(
    call: str, of_file: str, first_path: str, first: Field, field: Field
) -> SpecError:
    """Return the error for a column that has different fields in two files."""
    error = differing_files(of_file, f"{first_path} has {first}")
    kinds, shapes = {first.dtype.kind, field.dtype.kind}, {first.shape, field.shape}
    if kinds <= set("iuf") and len(shapes) == 1:
        error.remedy = (
            f"say the dtype of all files: {call}(..., dtypes={{{first.name!r}: 'float64'}})"
        )
    elif len(kinds) == 1 and kinds <= set("mM") and len(shapes) == 1:
        if kinds == {"M"}:
            name = "datetime64"
        else:
            name = "timedelta64"
        error.remedy = (
            f"say the dtype of all files: {call}(..., dtypes={{{first.name!r}: '{name}[us]'}})"
        )
    return error


def _with_dtype(column: Column, dtype: np.dtype[Any] | None) -> Column:
    """Return a column with values of another dtype; None: it stays as it is."""
    if dtype is None or dtype == column.field.dtype:
        return column
    if column.dtype is None:
        file_dtype = column.field.dtype
    else:
        file_dtype = column.dtype
    default = column.default
    if isinstance(default, np.ndarray):
        default = convert_default(default, dtype)
    return replace(column, field=column.field.with_(dtype=dtype), dtype=file_dtype, default=default)


def describe_features(metadata: Mapping[bytes, bytes] | None) -> DatasetFeatures:
    """Return the features that `datasets` wrote into the metadata of a schema; none if they have
    another form."""
    try:
        return describe_types(
            json.loads((metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return describe_types({})


def describe_types(features: Mapping[str, Any]) -> DatasetFeatures:
    """Return the features of a dataset from the form of ``Features.to_dict()``."""
    kinds = {name: feature for name, feature in features.items() if isinstance(feature, dict)}
    shapes = {
        name: tuple(feature["shape"])
        for name, feature in kinds.items()
        if isinstance(feature.get("shape"), (list, tuple))
        and all(is_whole(length) for length in feature["shape"])
    }
    images = frozenset(name for name, feature in kinds.items() if feature.get("_type") == "Image")
    names = {
        name: feature.get("names")
        for name, feature in kinds.items()
        if feature.get("_type") == "ClassLabel"
    }
    # All names or none: without one of them the others would be names of other numbers.
    classes = {
        column: tuple(texts)
        for column, texts in names.items()
        if isinstance(texts, list) and all(isinstance(text, str) for text in texts)
    }
    return DatasetFeatures(shapes, images, classes)


def classes_of(tables: Sequence[Any], columns: Sequence[Column]) -> tuple[str, ...]:
    """Return the names of the classes of columns, which are the same in all files.

    Raises:
        SpecError: files differ in these.
    """
    remedy = "write the files with one list of names: dataset.cast_column('label', datasets.ClassLabel(names=[...]))"
    classes = dict[bytes, tuple[str, ...]]()  # by the metadata, which most files have alike
    parts = list[tuple[str, tuple[str, ...]]]()
    for table in tables:
        metadata = table.schema.metadata or {}
        key = metadata.get(b"huggingface", b"")
        if key not in classes:
            classes[key] = describe_features(metadata).classes_of(columns)
        parts.append((table.path, classes[key]))
    return common_classes(parts, remedy)


def columns_of(
    call: str,
    place: str,
    schema: Any,
    *,
    fields: Sequence[str] | None,
    shapes: Shapes,
    defaults: Mapping[str, Any],
    dtypes: Mapping[str, np.dtype[Any]],
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
        dtypes: of fields, if they are others than in the file.
        images: the names of columns that hold encoded images.
        first: returns a list with the value of the first record of a column; empty if there is no
            record.

    Raises:
        SpecError: a column cannot be a field, or a shape or default does not fit; the remedy names
            ``fields=``.
        UnknownFieldError: there is no such column.
    """
    _check_names_differ(place, schema.names)
    leaves = list(_leaves((), schema))
    types, images_of_structs = dict(leaves), _images_of_structs(leaves)
    names = _paths_by_name(types)
    counts = Counter(_name_of(path, images_of_structs) for path, _ in leaves)
    order = list(names)
    chosen_names = order if fields is None else fields
    check_names(place, (*chosen_names, *shapes, *defaults, *dtypes), order)
    columns = []
    for name in chosen_names:
        path, arrow_type = names[name], types[names[name]]
        is_image = path[:-1] in images_of_structs
        try:
            if not name or (counts[name] > 1 and not is_image):
                raise _name_error(name)
            column = _column(
                name, path, arrow_type, shapes.get(name), defaults.get(name), dtypes.get(name)
            )
        except GpuloadError as error:
            rest = [usual for usual in order if usual != name and counts[usual] == 1]
            if fields is None and rest:
                error.remedy += f"; fields={rest} leaves it out"
            raise error.within(place) from None
        is_bytes = (column.field.dtype, column.field.shape) == (UINT8, (None,))
        if is_bytes and "binary" in _kind(arrow_type):
            is_image = is_image or name in images or any(map(_is_image, first(path)))
            if is_image:
                column = Column(column.field.with_(encoded=True), column.path, None, column.default)
        columns.append(replace(column, call=call))
    return columns


def _check_names_differ(place: str, names: Sequence[str]) -> None:
    """Raise ``SpecError`` if two columns of a file have one name."""
    if doubles := sorted({name for name in names if names.count(name) > 1}):
        raise SpecError(
            f"{place} has two columns {doubles[0]!r}",
            cause="a field has a name of its own",
            remedy="rename one of them with PyArrow, and write the file anew",
        )


def names_of(schema: Any) -> list[str]:
    """Return the names of the fields that columns of a schema become."""
    return list(_paths_by_name(dict(_leaves((), schema))))


def path_of(schema: Any, name: str) -> Path:
    """Return the path of the column that becomes a field."""
    return _paths_by_name(dict(_leaves((), schema)))[name]


def check_names(place: str, names: Iterable[str], columns: Sequence[str]) -> None:
    """Raise ``UnknownFieldError`` for the first of some names that is no column of a file."""
    for name in names:
        if name not in columns:
            raise UnknownFieldError(
                f"{place} has no column {name!r}",
                cause=f"it has {list(columns)}",
                remedy="name one of these",
            )


def _images_of_structs(leaves: Iterable[tuple[Path, Any]]) -> set[Path]:
    """Return the paths of structs that are images of `datasets`: of bytes and path."""
    members = dict[Path, set[str]]()
    for path, _ in leaves:
        members.setdefault(path[:-1], set()).add(path[-1])
    return {path for path, names in members.items() if path and names == {"bytes", "path"}}


def _paths_by_name(types: Mapping[Path, Any]) -> dict[str, Path]:
    """Return the columns by the names of their fields; an image of `datasets` has the name of its
    struct."""
    images = _images_of_structs(types.items())
    return {
        _name_of(path, images): path
        for path in types
        if path[:-1] not in images or path[-1] == "bytes"
    }


def _name_of(path: Path, images: Collection[Path]) -> str:
    """Return the name of the field of a column; images are the paths of structs that are such."""
    if path[:-1] in images:
        path = path[:-1]
    return ".".join(path)


def _name_error(name: str) -> SpecError:
    """Return the error for a column without a name, or with the name of another column."""
    if not name:
        return SpecError(
            "a column has no name",
            cause="each field has a name, by which it is read",
            remedy="rename it with PyArrow, and write the file anew",
        )
    return SpecError(
        f"two columns have the name {name!r}",
        cause="one is a member of a struct, and has the name of its struct and a dot in front of its own; or both are "
        "members of one struct",
        remedy="rename one of them with PyArrow, and write the file anew",
    )


def _is_image(value: Any) -> bool:
    return isinstance(value, bytes) and kind_of(value[:HEAD_BYTES]) is not None


def _leaves(path: Path, members: Iterable[Any]) -> Iterable[tuple[Path, Any]]:
    """Yield path and type of each column, those of structs in their place."""
    for member in members:
        if _kind(member.type) == "struct":
            yield from _leaves(
                (*path, member.name), [member.type.field(i) for i in range(member.type.num_fields)]
            )
        else:
            yield (*path, member.name), member.type


def _column(
    name: str,
    path: Path,
    arrow_type: Any,
    shape: tuple[int, ...] | None,
    default: Any,
    dtype: np.dtype[Any] | None,
) -> Column:
    field = _field(name, arrow_type)
    if shape is not None:
        if not isinstance(shape, (tuple, list)) or not all(is_whole(length) for length in shape):
            raise SpecError(
                f"shapes: {name!r} has {shape!r}",
                cause="a shape is lengths",
                remedy=f"write {{{name!r}: (3,)}}",
            )
        if "list" not in _kind(arrow_type):
            raise SpecError(
                f"shapes: {name!r} is {arrow_type}",
                cause="it is no list",
                remedy="leave its shape out",
            )
        field = _field(name, _element_type(arrow_type)).with_(shape=tuple(shape))
        if field.text:
            raise SpecError(
                f"shapes: {name!r} has texts",
                cause="texts have no shape",
                remedy="leave its shape out",
            )
    elif not field.uniform and not field.ragged:
        raise SpecError(
            f"column {name!r} is {arrow_type}",
            cause="lists that vary along several axes have no form here",
            remedy=f"say the shape if all records have the same: shapes={{{name!r}: (28, 28)}}",
        )
    file_dtype = None
    if dtype is not None and dtype != field.dtype:
        kinds = dtype.kind if dtype.kind in "mM" else "biuf"
        is_converted = field.dtype.kind in kinds
        if not is_converted or field.text or "binary" in _kind(arrow_type):
            raise SpecError(
                f"dtypes: {name!r} is {arrow_type}",
                cause=f"its values do not become {dtype}: numbers and booleans become such, dates become dates",
                remedy="leave its dtype out",
            )
        field, file_dtype = field.with_(dtype=dtype), field.dtype
    if default is not None:
        default = _fitting_default(name, field, arrow_type, default)
    if shape is not None:
        shape = tuple(shape)
    return Column(field, path, shape, default, file_dtype)


def _fitting_default(name: str, field: Field, arrow_type: Any, default: Any) -> Any:
    """Return a default as it is stored in a `Column`; raises ``SpecError`` if it does not have its
    value there."""
    arrow = signalsafe.import_package("pyarrow")
    plain, kind = _plain_type(arrow_type), _kind(arrow_type)
    try:
        if field.shape == () and not field.text:
            if isinstance(default, (list, tuple)):
                default = np.asarray(default)[()]
            value = convert_default(default, field.dtype)
            if value.shape:
                raise UnfitDefault("a row has a single value")
            return value
        if "string" in kind and not isinstance(default, str):
            raise UnfitDefault("it is no text")
        if "binary" in kind:
            if not isinstance(default, bytes):
                raise UnfitDefault("it is no bytes")
            if field.uniform and len(default) != field.fixed_shape[0]:
                raise UnfitDefault(f"it has {len(default)} bytes")
        if "list" in kind:
            _check_list(field, default)
        arrow.scalar(default, plain)
    except (UnfitDefault, TypeError, ValueError, OverflowError, arrow.ArrowException) as error:
        signalsafe.pass_on(error)
        example = _example_of(field, kind)
        raise SpecError(
            f"defaults: {name!r} has {default!r}",
            cause=f"the column is {arrow_type}: {error}",
            remedy=f"pass a value of that type: {{{name!r}: {example}}}, say",
        ) from None
    return default


def _check_list(field: Field, default: Any) -> None:
    """Raise ``UnfitDefault`` for a default of lists with elements that the field does not hold, or
    of another shape."""
    if not isinstance(default, (list, tuple)):
        raise UnfitDefault("it is no list")
    if field.text:
        if not all(isinstance(text, str) for text in default):
            raise UnfitDefault("its elements are no texts")
        return
    values = convert_default(default, field.dtype)
    shape = field.shape or ()
    fits = len(values.shape) == len(shape) and all(
        length in (None, size) for length, size in zip(shape, values.shape, strict=True)
    )
    if not fits and not (values.size == 0 and None in shape):
        raise UnfitDefault(f"its shape is {values.shape}, that of the field is {shape}")


def _example_of(field: Field, kind: str) -> str:
    """Return a value, as Python writes it, that may stand for missing ones of a field."""
    if "list" in kind:
        lengths = field.shape or ()
        if field.text:
            element = "''"
        else:
            element = example_default(field.dtype)
        if not lengths or None in lengths:
            return "[]"
        text = element
        for length in reversed(lengths):
            text = f"[{text}] * {length}"
        return text
    if "binary" in kind:
        if field.uniform:
            return f"bytes({field.fixed_shape[0]})"
        return "b''"
    if field.text:
        return "''"
    return example_default(field.dtype)


def _kind(arrow_type: Any) -> str:
    """Return the kind of a type in one word, of dictionaries and extensions that of their values
    for."""
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
    if (axes := getattr(arrow_type, "permutation", None)) is not None and list(axes) != sorted(
        axes
    ):
        raise _refusal(
            name, arrow_type, "the order of its axes is another one than that of its elements"
        )
    plain, kind = _plain_type(arrow_type), _kind(arrow_type)
    if "list" in kind and "view" not in kind:
        inner = _field(name, plain.value_type)
        if kind == "fixed_size_list":
            if tensor_shape is not None:
                lengths = tuple(tensor_shape)
            else:
                lengths = (plain.list_size, *(inner.shape or ()))
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
    if kind == "null":
        raise _refusal(name, arrow_type, "all of its values are missing")
    if dtype is None:
        raise _refusal(name, arrow_type, "it has no form here")
    return Field(name, dtype, (), zone=_zone_of(plain, dtype))


def _zone_of(plain: Any, dtype: np.dtype[Any]) -> str:
    """Return the attribute ``zone`` of a field, which those of dates and times have."""
    zone = getattr(plain, "tz", None)
    if dtype.kind != "M" or zone == UNKNOWN_ZONE:
        return ""
    return "UTC" if zone else "local"


def _dtype(kind: str, plain: Any) -> np.dtype[Any] | None:
    """Return NumPy's dtype of numbers, dates and times; None for other types."""
    if kind in ("timestamp", "duration", "time32", "time64"):
        code = "M8" if kind == "timestamp" else "m8"
        return np.dtype(f"{code}[{plain.unit}]")
    names = {
        "halffloat": "f2",
        "float": "f4",
        "double": "f8",
        "bool": "?",
        "date32": "M8[D]",
        "date64": "M8[ms]",
    }
    names |= {
        f"{sign}int{8 * size}": f"{sign or 'i'}{size}"
        for sign in ("", "u")
        for size in (1, 2, 4, 8)
    }
    if kind in names:
        return np.dtype(names[kind])
    return None


def has_bytes_of(arrow_type: Any, dtype: np.dtype[Any]) -> bool:
    """Return True if the bytes of a column's values are elements of a dtype."""
    kind = str(arrow_type).partition("[")[
        0
    ]  # of a dictionary, or of run ends, the bytes are numbers of values
    if kind in ("bool", "date32", "time32"):
        stored_dtype = None
    else:
        stored_dtype = _dtype(kind, arrow_type)
    # Not only compared: NumPy takes None for float64 there.
    return stored_dtype is not None and stored_dtype == dtype


def _refusal(name: str, arrow_type: Any, cause: str) -> SpecError:
    return SpecError(
        f"column {name!r} is {arrow_type}",
        cause=cause,
        remedy="cast it with PyArrow (pyarrow.compute.cast) and write it",
    )


@contextlib.contextmanager
def as_damage(place: str, files: Files | None = None, number: int = 0) -> Iterator[None]:
    """Make errors of PyArrow about bytes ours: damage, or that the file that holds them changed
    meanwhile.

    Raises:
        DamagedBlockError: PyArrow does not take the bytes; names the place.
        SpecError: this version of PyArrow does not decode such values.
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
        if int(arrow.__version__.partition(".")[0]) < 26 and FIXED_LISTS.match(str(error)):
            raise SpecError(
                f"{place}: not supported by PyArrow {arrow.__version__}",
                cause="it does not decode lists of a fixed length some of which are missing",
                remedy='pip install "pyarrow>=26"',
            ) from None
        text = line_of(error)
        cause = f"PyArrow cannot decode it: {text}"
        remedy = "copy the file again, or write it anew"
        if "decrypt" in text:
            cause = f"it is encrypted, which is not supported: {text}"
            remedy = (
                "decrypt it with PyArrow, and write it anew; or leave its columns out: fields=[...]"
            )
        elif isinstance(error, arrow.ArrowNotImplementedError) or UNSUPPORTED.search(text):
            cause = f"it is not supported by PyArrow, or its bytes changed: {text}"
            remedy = "write it anew in another encoding, with the program that wrote it; or copy it again"
        raise DamagedBlockError(place, cause=cause, remedy=remedy) from None


@contextlib.contextmanager
def as_damage_of(table: Any, place: str) -> Iterator[None]:
    """Make errors of PyArrow about a piece of a file ours, with the name of the piece in each."""
    try:
        with as_damage(place, table.files, table.number):
            yield
    except GpuloadError as error:
        if error.what.startswith(table.path):
            raise
        raise error.within(place) from None


@contextlib.contextmanager
def as_refusal(title: str, files: Files, number: int) -> Iterator[None]:
    """Make errors of PyArrow about the beginning, footer or schema of a file errors of its format.

    Raises:
        FormatError: PyArrow does not take the bytes, or they are of a format that is not supported.
        FileError: the file changed, or cannot be read.
    """
    path, size = files.paths[number], int(files.sizes[number])
    try:
        with as_damage(path, files, number):
            yield
    except DamagedBlockError as error:
        with files.open_binary(number) as file:
            foreign.refuse(Beginning(path, size, file.read(HEAD_BYTES)))
        if UNSUPPORTED.search(error.cause):
            remedy = (
                "write it anew with other types, with the program that wrote it; or copy it again"
            )
            raise FormatError(f"{path} is not read", cause=error.cause, remedy=remedy) from None
        cause = f"{error.cause}; it has {size} bytes"
        remedy = "it was cut short, or is still being written, or is something else: gl.open(path) finds out"
        raise FormatError(
            f"{path} is no {title} file to read", cause=cause, remedy=remedy
        ) from None


def python_values(path: Path, batch: Any) -> list[Any]:
    """Return the values of a column of a small batch as Python's objects."""
    compute = signalsafe.import_package("pyarrow.compute")
    values: list[Any] = reduce(compute.struct_field, path[1:], batch.column(path[0])).to_pylist()
    return values


def values_of(column: Column, batch: Any, room: UnpackLimit) -> Array | Ragged:
    """Return a column of a batch of records, as its field stores it; read-only, without a copy
    where that can be.

    Args:
        column: the column.
        batch: PyArrow's record batch, with lists and texts that are known to be valid.
        room: the memory that the values may take.

    Raises:
        SpecError: values are missing and there is no default, or a value is none of ``dtypes=``.
        DamagedBlockError: a list has another length than ``shapes=`` says.
        FormatError: the values are more than the memory that they may take.
    """
    return values_of_array(column, array_of(column, batch), room)


def array_of(column: Column, batch: Any) -> Any:
    """Return PyArrow's array of a column of a record batch."""
    compute = signalsafe.import_package("pyarrow.compute")
    return reduce(compute.struct_field, column.path[1:], batch.column(column.path[0]))


def values_of_array(column: Column, array: Any, room: UnpackLimit) -> Array | Ragged:
    """Return the values of PyArrow's array of a column; see `values_of`."""
    field, array = column.field, plain_values(array, room)
    if array.null_count:
        default = column.default
    else:
        default = None
    if default is not None and isinstance(default, np.ndarray):
        return _with_default(column, array, default)
    if default is not None:
        arrow, compute = (
            signalsafe.import_package("pyarrow"),
            signalsafe.import_package("pyarrow.compute"),
        )
        room.check(array.null_count * OFFSET_BYTES * len(default))
        if _kind(array.type) in VIEWS:  # for which PyArrow has no such function
            array = _without_views(array, room)
        array = compute.coalesce(array, arrow.scalar(default, array.type))
    if column.shape is not None or (field.uniform and not field.text and field.shape):
        elements = _flat(column, _elements(column, array, room), room)
        if elements.size != len(array) * math.prod(field.fixed_shape):
            raise DamagedBlockError(
                f"column {field.name!r} has {elements.size} elements in {len(array)} records",
                cause=f"each has the shape {field.shape}",
                remedy="correct shapes=, or leave the column's shape out: then it is ragged",
            )
        return in_field_dtype(column, elements).reshape(len(array), *field.fixed_shape)
    if field.uniform and not field.text:
        return in_field_dtype(column, _flat(column, array, room))
    if field.text and field.shape:
        return _texts(column, _present(column, array, room), room)
    plain = _present(column, array, room)
    if "list" not in _kind(plain.type):
        return _bytes_of(plain, room)
    # A slice of an array keeps the offsets of the whole, and the first need not be 0; `flatten`
    # gives the elements of the slice alone, where `values` would give all.
    offsets = plain.offsets.to_numpy().astype(np.int64)
    inner = field.with_(shape=(field.shape or ())[1:])
    elements = _flat(column, _elements(column, plain.flatten(), room, is_element=True), room)
    return Ragged(
        in_field_dtype(column, elements).reshape(-1, *inner.fixed_shape), offsets - offsets[0]
    )


def _with_default(column: Column, array: Any, default: Array) -> Array:
    """Return single numbers, of which missing ones are the default."""
    arrow = signalsafe.import_package("pyarrow")
    is_missing = array.is_null().to_numpy(zero_copy_only=False)
    # The same memory without its bits of missing values: their places hold any numbers.
    buffers = [None, *array.buffers()[1:]]
    whole = arrow.Array.from_buffers(
        array.type, len(array), buffers, null_count=0, offset=array.offset
    )
    numbers = _flat(column, whole, None)
    if (
        column.dtype is not None
    ):  # these places hold any bytes, which need not be values of another dtype
        numbers = np.array(numbers)
        numbers[is_missing] = np.zeros((), numbers.dtype)
    result = np.array(in_field_dtype(column, numbers))
    result[is_missing] = default
    return result


def in_field_dtype(column: Column, values: Array) -> Array:
    """Return numbers of the file in the dtype of the field; raises ``SpecError`` if it does not
    hold one of them."""
    if column.dtype is None or values.dtype == column.field.dtype:
        return np.ascontiguousarray(values, column.field.dtype)
    try:
        return convert_values(values, column.field.dtype)
    except UnfitValue as error:
        raise SpecError(
            f"column {column.field.name!r}: {error}",
            cause=f"the file has {column.dtype}, and {column.field.dtype} does not hold that value",
            remedy=f"say a dtype that holds it, dtypes={{{column.field.name!r}: ...}}, or leave the column out: "
            "fields=[...] has the names of those that are read",
        ) from None


def plain_values(array: Any, room: UnpackLimit | None) -> Any:
    """Return an array without dictionary, run ends or extension; their values are added up before
    they are decoded.

    Raises:
        FormatError: they are more than the memory that they may take.
    """
    compute = signalsafe.import_package("pyarrow.compute")
    while True:
        if hasattr(array, "storage"):
            array = array.storage
        elif hasattr(array, "dictionary_decode"):
            if room is not None:
                sizes = _sizes_of(array.dictionary, room)
                places = array.indices.fill_null(0).to_numpy(zero_copy_only=False)
                if sizes.size:
                    room.check(int(sizes[places].sum()))
            if _is_undecodable(array.dictionary):
                values = _decodable(array.dictionary, room)
                array = type(array).from_arrays(array.indices, values)
            array = array.dictionary_decode()
        elif str(array.type).startswith("run_end_encoded<"):
            if room is not None:
                begin, count = array.find_physical_offset(), array.find_physical_length()
                sizes = _sizes_of(array.values.slice(begin, count), room)
                ends = (
                    array.run_ends.slice(begin, count)
                    .to_numpy(zero_copy_only=False)
                    .astype(np.int64)
                )
                ends = np.clip(ends - array.offset, 0, len(array))
                # In float64: damaged numbers would wrap round in int64.
                room.check(
                    int(np.diff(ends, prepend=0).astype(np.float64) @ sizes.astype(np.float64))
                )
            if _is_undecodable(array.values):
                whole = type(array).from_arrays(array.run_ends, _decodable(array.values, room))
                array = whole.slice(array.offset, len(array))
            array = compute.run_end_decode(array)
        else:
            return array


def _is_undecodable(values: Any) -> bool:
    """Return True for values of a dictionary or of run ends for which PyArrow has no function that
    decodes them."""
    kind = str(values.type)
    return kind in VIEWS or kind.startswith(("dictionary<", "run_end_encoded<"))


def _decodable(values: Any, room: UnpackLimit | None) -> Any:
    """Return such values in a form that PyArrow decodes."""
    plain = plain_values(values, room)
    if _kind(plain.type) in VIEWS:
        return _without_views(plain, room)
    return plain


def _sizes_of(array: Any, room: UnpackLimit) -> Indices:
    """Return about how many bytes each value of an array takes, int64 ``[n]``."""
    array = plain_values(array, room)
    kind = _kind(array.type)
    sizes: Indices
    if "list" in kind and "view" not in kind:
        sizes = _sizes_of_lists(kind, array, room)
    elif "view" in kind and "list" not in kind:
        sizes = _lengths_of_views(array) + OFFSET_BYTES
    elif "string" in kind or kind in ("binary", "large_binary"):
        compute = signalsafe.import_package("pyarrow.compute")
        lengths = compute.fill_null(compute.binary_length(array), 0)
        sizes = lengths.to_numpy(zero_copy_only=False).astype(np.int64) + OFFSET_BYTES
    else:
        try:
            bits = array.type.bit_width
        except ValueError:  # of a type that is no field
            bits = 8 * OFFSET_BYTES
        sizes = np.full(len(array), max(1, bits // 8), np.int64)
    return sizes


def _sizes_of_lists(kind: str, array: Any, room: UnpackLimit) -> Indices:
    """Return about how many bytes each list of an array takes."""
    if kind == "fixed_size_list":
        # The values of the slice, also behind missing lists.
        size = array.type.list_size
        sizes = _sizes_of(array.values.slice(array.offset * size, len(array) * size), room)
        sums: Indices = sizes.reshape(len(array), size).sum(axis=1, dtype=np.int64)
    else:
        ends = np.append(0, np.cumsum(_sizes_of(array.values, room)))
        sums = np.diff(ends[array.offsets.to_numpy()]) + OFFSET_BYTES
    return sums


def join(column: Column, pieces: Sequence[Any]) -> Array | Ragged:
    """Return the values of several batches, one after the other; of a single one without a copy."""
    if len(pieces) == 1:
        return pieces[0]  # type: ignore[no-any-return]
    if not pieces:
        field = column.field.stored
        if field.uniform:
            return np.empty((0, *field.fixed_shape), field.dtype)
        return Ragged.of([], field.dtype, field.with_(shape=(field.shape or ())[1:]).fixed_shape)
    if isinstance(pieces[0], Ragged):
        return concatenate(pieces)
    return np.concatenate(pieces)


def _present(
    column: Column, array: Any, room: UnpackLimit | None, *, is_element: bool = False
) -> Any:
    """Return an array without dictionary, run ends or extension; raises ``SpecError`` if values are
    missing.

    Args:
        column: the column.
        array: its values.
        room: the memory that the values may take; None: they are decoded already.
        is_element: True if these are elements of the column's lists, for which no default stands.
    """
    array = plain_values(array, room)
    if array.null_count:
        name = column.field.name
        if is_element:
            gaps, remedy = (
                "elements of its lists",
                "write the file anew, with a value in their place",
            )
        else:
            default = f"{{{name!r}: {_example_of(column.field, _kind(array.type))}}}"
            gaps, remedy = (
                "values",
                f"say what stands for them: {column.call}(..., defaults={default})",
            )
        raise SpecError(
            f"column {name!r}: {array.null_count} {gaps} are missing",
            cause="a record has no place for a missing value",
            remedy=f"{remedy}; or leave the column out: fields=[...] has the names of those that are "
            "read",
        )
    return array


def _elements(column: Column, array: Any, room: UnpackLimit, *, is_element: bool = False) -> Any:
    """Return the elements of lists of any depth, one after the other."""
    array = _present(column, array, room, is_element=is_element)
    while "list" in str(array.type).partition("<")[0]:
        array = _present(column, array.flatten(), room, is_element=True)
    return array


def _flat(column: Column, array: Any, room: UnpackLimit | None) -> Array:
    """Return numbers as an array of one axis; of binary of one size its bytes."""
    array = _present(column, array, room)
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
        if column.dtype is None:
            dtype = column.field.dtype
        else:
            dtype = column.dtype
        return array.to_numpy(zero_copy_only=False).astype(np.int64).view(dtype)  # type: ignore[no-any-return]
    return array.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _bytes_of(array: Any, room: UnpackLimit) -> Ragged:
    """Return strings or binary values as their bytes."""
    # Offsets of 32 bits and views come to one form, with offsets of 64.
    large = _without_views(array, room)
    _, offsets, payload = large.buffers()
    ends = np.frombuffer(offsets or bytes(8), np.int64)[
        large.offset : large.offset + len(large) + 1
    ]
    return Ragged(np.frombuffer(payload or b"", UINT8), ends)


def _texts(column: Column, array: Any, room: UnpackLimit) -> Ragged:
    """Return lists of texts as `strings` stores them."""
    texts = _bytes_of(_present(column, array.flatten(), room, is_element=True), room)
    offsets = array.offsets.to_numpy().astype(np.int64)
    payload, ends, places = strings.room_for(np.diff(offsets), texts.lengths)
    gather_pieces(texts.payload, texts.offsets[:-1], texts.lengths, payload, places)
    return Ragged(payload, ends)


def _without_views(array: Any, room: UnpackLimit | None) -> Any:
    """Return texts or binary values with offsets of 64 bits."""
    if room is not None and "view" in str(array.type):  # many of which may show the same bytes
        room.check(int(_lengths_of_views(array).sum()))
    is_binary = "binary" in str(array.type)
    return array.cast("large_binary" if is_binary else "large_string")


def _lengths_of_views(array: Any) -> Indices:
    """Return the bytes of each text or binary value of an array of views; 0 for missing ones."""
    views = np.frombuffer(array.buffers()[1] or b"", VIEW)[array.offset : array.offset + len(array)]
    lengths: Indices = views["length"].astype(np.int64)
    lengths[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return lengths
