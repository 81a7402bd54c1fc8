"""What the user says of CSV files: the form of their text, and which columns become which fields.

Columns   a mapping from field to dtype, in the order of the fields; ``("f4", names)`` makes one field of several
          columns. A dtype of None is found in the data; ``str`` is text as long as the longest, or of any length where
          one is very long, ``object`` is text of any length, ``bytes`` is UTF-8 of varying length, as numbers.
Defaults  what stands for a missing value, as ``record_defaults`` of ``tf.io.decode_csv``: a default gives the dtype
          where ``columns`` does not, and a column without one needs a value in each line, unless its type has one for
          what is missing: not-a-number, not-a-time.
"""

from __future__ import annotations

import codecs
import fnmatch
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpuload import aside
from gpuload.errors import SpecError, UnknownFieldError
from gpuload.spec import check_name, is_whole

Header = bool | Sequence[str]
Columns = Mapping[str, Any] | Sequence[str]
Defaults = Mapping[str, Any] | Sequence[Any]

NA_VALUES = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NULL", "null", "None", "NaN", "nan")
TIME_UNITS = ("D", "s", "ms", "us", "ns")
FLOAT_BYTES = (4, 8)
MOST_TOLD = 12  # columns, by errors
ASCII = 0x7F


@dataclass(frozen=True)
class Dialect:
    """The form of the text.

    Attributes:
        delimiter: what stands between two values, one ASCII character.
        quote: what stands around a value that holds delimiters or line ends, one ASCII character, ``""`` for none.
        encoding: the name of the codec, as `codecs.lookup` has it.
        header: True if the first line names the columns.
        names: of the columns, where the user says them.
        skip_lines: how many lines to leave out at the beginning of each file.
        na_values: what stands for a missing value.
    """

    delimiter: str
    quote: str
    encoding: str
    header: bool
    names: tuple[str, ...] | None
    skip_lines: int
    na_values: tuple[str, ...]


@dataclass(frozen=True)
class Column:
    """A column that is read.

    Attributes:
        number: its place in a line, from 0.
        name: its name in the file.
        dtype: of its values; None where it is to be found, U without a length for text as long as the longest, O for
            text of any length, S without a length for bytes of varying length.
        default: what stands for a missing value, of that dtype; None: nothing does.
        is_part: True if it is one of the columns of a vector.
    """

    number: int
    name: str
    dtype: np.dtype[Any] | None
    default: Any = None
    is_part: bool = False


@dataclass(frozen=True)
class Wanted:
    """A field, and the columns that it is made of.

    Attributes:
        name: of the field.
        columns: which of the columns that are read; several make a vector.
        is_vector: True if it is made of a list of columns, be it of one.
    """

    name: str
    columns: tuple[int, ...]
    is_vector: bool = False


def dialect_of(
    header: Header, delimiter: str, quote: str | None, encoding: str, skip_lines: int, na_values: Iterable[str]
) -> Dialect:
    """Return the form of the text, checked.

    Raises:
        SpecError: an argument is none.
    """
    names = None
    if not isinstance(header, (bool, np.bool_)):
        names = _names(header)
    _check_character("delimiter", delimiter, ", ; or \\t")
    if quote is not None:
        _check_character("quote", quote, "a double quote; None where no value is quoted")
        if quote == delimiter:
            raise SpecError(f"quote = {quote!r}", cause="the delimiter is the same", remedy="pass two characters")
    if not is_whole(skip_lines):
        raise SpecError(
            f"skip_lines = {skip_lines!r}", cause="it is a number of lines, at least 0", remedy="pass skip_lines=1, say"
        )
    missing = (na_values,) if isinstance(na_values, str) or not isinstance(na_values, Iterable) else tuple(na_values)
    if not all(isinstance(value, str) for value in missing):
        raise SpecError(f"na_values = {na_values!r}", cause="they are texts", remedy='pass na_values=["", "?"], say')
    is_header = names is None and bool(header)
    return Dialect(delimiter, quote or "", _codec(encoding), is_header, names, int(skip_lines), missing)


def _names(header: Any) -> tuple[str, ...]:
    if isinstance(header, (str, bytes)) or not isinstance(header, Iterable):
        raise SpecError(
            f"header = {header!r}",
            cause="it is True (the first line names the columns), False, or a list of names",
            remedy="pass one of these",
        )
    names = tuple(header)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise SpecError(f"header = {header!r}", cause="a name is a text", remedy="name each column, in its order")
    return names


def _check_character(argument: str, value: Any, usual: str) -> None:
    if not isinstance(value, str) or len(value) != 1 or not 0 < ord(value) <= ASCII or value in "\r\n":
        raise SpecError(
            f"{argument} = {value!r}",
            cause="it is one ASCII character, and no line end",
            remedy=f"pass {usual}",
        )


def _codec(encoding: Any) -> str:
    try:
        found = aside.call(lambda: codecs.lookup(encoding)).name
        "a,1".encode(found).decode(found)
    except (LookupError, TypeError, ValueError) as error:
        raise SpecError(
            f"encoding = {encoding!r}",
            cause=f"Python knows no encoding of text by this name: {error}",
            remedy='pass "utf-8", "latin-1", "cp1252" or "utf-16", say',
        ) from None
    return "utf-8" if found in ("utf-8", "utf-8-sig", "ascii") else found


def wanted(
    names: Sequence[str], columns: Columns | None, defaults: Defaults | None
) -> tuple[tuple[Column, ...], tuple[Wanted, ...]]:
    """Return the columns that are read, and the fields that are made of them.

    Args:
        names: of all columns of the files.
        columns: from the user; None for all.
        defaults: from the user.

    Raises:
        UnknownFieldError: there is no such column.
        SpecError: names, dtypes or defaults do not go together.
    """
    place = _places(names)
    read: list[Column] = []
    fields: list[Wanted] = []
    for field, dtype, chosen, is_vector in _chosen(list(names), columns):
        check_name(field)
        if not chosen:
            raise UnknownFieldError(
                f"field {field!r} of no columns", cause=f"the columns are {told(names)}", remedy="name its columns"
            )
        own = []
        for name in chosen:
            if name not in place:
                raise UnknownFieldError(
                    f"no column {name!r}",
                    cause=f"the columns are {told(names)}",
                    remedy='use one of these names, or pass header=["a", "b", ...] for a file without a header',
                )
            own.append(len(read))
            read.append(Column(place[name], name, _checked_dtype(field, dtype, is_vector), is_part=is_vector))
        fields.append(Wanted(field, tuple(own), is_vector))
    _check_once(read)
    return _with_defaults(read, fields, defaults), tuple(fields)


def _places(names: Sequence[str]) -> dict[str, int]:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise SpecError(
            f"the column names {told(twice)} occur twice",
            cause=f"the columns are {told(names)}, and fields of one record need different names",
            remedy="name the columns yourself, and leave the first line out: header=[...], skip_lines=1",
        )
    return {name: number for number, name in enumerate(names)}


def _chosen(names: list[str], columns: Any) -> list[tuple[str, Any, list[str], bool]]:
    """Return for each field its name, what the user says of its dtype, its columns, and whether it is a vector."""
    if columns is None:
        return [(name, None, [name], False) for name in names]
    if isinstance(columns, Mapping):
        found = []
        for field, about in columns.items():
            if isinstance(about, tuple) and len(about) == 2 and _are_names(about[1]):
                found.append((field, about[0], _matching(names, about[1]), True))
            else:
                found.append((field, about, [field], False))
        columns = found
    elif isinstance(columns, Iterable) and not isinstance(columns, (str, bytes)):
        columns = [(name, None, [name], False) for name in columns]
    else:
        columns = []
    if not columns or not all(isinstance(name, str) for _, _, some, _ in columns for name in some):
        raise SpecError(
            "columns that are no names",
            cause="they are a dict from field to dtype, or a list of names",
            remedy='write columns={"age": "f4", "name": "U20"}, or columns=["age", "name"] to have the types found',
        )
    return list(columns)


def _are_names(given: Any) -> bool:
    return isinstance(given, str) or (isinstance(given, (list, tuple)) and all(isinstance(name, str) for name in given))


def _matching(names: list[str], given: str | Sequence[str]) -> list[str]:
    """Return the columns that a list of names, or a wildcard, means; in the order of the list, or of the file."""
    if not isinstance(given, str):
        return list(given)
    return [given] if given in names else [name for name in names if fnmatch.fnmatchcase(name, given)]


def _checked_dtype(field: str, given: DTypeLike | None, is_vector: bool) -> np.dtype[Any] | None:
    if given is None and not is_vector:
        return None
    try:
        if given is None:
            raise TypeError("a field of several columns has one dtype, which has to be said")
        dtype = np.dtype(given).newbyteorder("=")
    except (TypeError, ValueError, SyntaxError) as error:
        raise SpecError(
            f"columns: field {field!r} has dtype {given!r}",
            cause=f"that is no dtype: {error}",
            remedy="write it like 'f4', or ('f4', ['a', 'b']) for a vector of two columns",
        ) from None
    if dtype.kind in "iub" or (dtype.kind == "f" and dtype.itemsize in FLOAT_BYTES):
        return dtype
    if dtype.kind == "M" and dtype.name[11:-1] in TIME_UNITS:
        return dtype
    if (dtype.kind in "US" and (dtype.itemsize or not is_vector)) or (dtype.kind == "O" and not is_vector):
        return dtype
    raise SpecError(
        f"columns: field {field!r} has dtype {dtype}",
        cause="a value of a CSV file becomes a boolean, an integer, a float32 or float64, a datetime64 of "
        f"{' '.join(TIME_UNITS)}, or text" + ("; text in a vector has a length" if dtype.kind in "USO" else ""),
        remedy="use one of these, and convert it in the loader: gl.ops.Cast",
    )


def _check_once(read: Sequence[Column]) -> None:
    counts = Counter(column.name for column in read)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise SpecError(
            f"columns: {told(twice)} in two fields", cause="a column becomes one field", remedy="name it once"
        )


def _with_defaults(read: list[Column], fields: Sequence[Wanted], defaults: Defaults | None) -> tuple[Column, ...]:
    if defaults is None:
        return tuple(read)
    given: dict[int, Any] = {}
    if isinstance(defaults, Mapping):
        by_name = {column.name: [number] for number, column in enumerate(read)}
        by_name.update({field.name: list(field.columns) for field in fields})
        for name, default in defaults.items():
            if name not in by_name:
                raise UnknownFieldError(
                    f"defaults: no field {name!r}",
                    cause=f"what is read are {told([field.name for field in fields])}",
                    remedy="use one of these names",
                )
            given.update(dict.fromkeys(by_name[name], default))
    elif isinstance(defaults, Iterable) and not isinstance(defaults, (str, bytes)):
        values = list(defaults)
        if len(values) != len(read):
            raise SpecError(
                f"{len(values)} defaults for {len(read)} columns",
                cause="a list has one for each column that is read, in their order",
                remedy='pass a dict of those that have one: defaults={"age": 0.0}',
            )
        given = dict(enumerate(values))
    else:
        raise SpecError(
            f"defaults = {defaults!r}", cause="they are a dict or a list", remedy='write defaults={"age": 0.0}'
        )
    return tuple(_defaulted(column, given[number]) if number in given else column for number, column in enumerate(read))


def _defaulted(column: Column, default: Any) -> Column:
    """Return a column with a default; or, for a type or an empty list, with a dtype and no default: it is required."""
    if isinstance(default, (list, tuple)) and len(default) <= 1:  # as TensorFlow has them
        if not default:
            return column
        default = default[0]
    if isinstance(default, (type, np.dtype)):
        return replace(column, dtype=column.dtype or _checked_dtype(column.name, default, False))
    value = np.asarray(default)
    if value.ndim or value.dtype.kind not in "biufMUS":
        raise SpecError(
            f"defaults: {column.name!r} has {default!r}",
            cause="a default is a number, a text or a time; a type means that each line needs a value",
            remedy='write defaults={"age": 0.0, "name": ""}',
        )
    dtype = column.dtype
    if dtype is None:
        dtype = _checked_dtype(column.name, value.dtype.kind if value.dtype.kind in "US" else value.dtype, False)
    return replace(column, dtype=dtype, default=_converted(column.name, value, dtype))


def _converted(name: str, value: np.ndarray[Any, Any], dtype: np.dtype[Any] | None) -> Any:
    """Return a default as a value of a dtype; it has to stay the same value."""
    assert dtype is not None
    is_text, wants_text = value.dtype.kind in "US", dtype.kind in "USO"
    made: Any = None
    if is_text and wants_text:
        text = value.item()
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
        most = dtype.itemsize // {"U": 4, "S": 1}[dtype.kind] if dtype.kind in "US" else 0
        if "\0" not in text and (not most or len(text if dtype.kind == "U" else text.encode()) <= most):
            return text
    elif not is_text and not wants_text and (value.dtype.kind == "M") == (dtype.kind == "M"):
        with np.errstate(all="ignore"):
            made = value.astype(dtype)[()]
        # 0.1 becomes the float32 next to it, as the text 0.1 does; an integer has to stay what it is.
        same = made == value or made != made or (dtype.kind == value.dtype.kind == "f" and np.isfinite(made))
        if same and not (value.dtype.kind == "f" and dtype.kind in "iub" and made != value):
            return made
    raise SpecError(
        f"defaults: {name!r} has {value[()]!r}",
        cause=f"it is no value of {dtype}",
        remedy="pass one, or another dtype in columns=",
    )


def told(names: Sequence[str]) -> str:
    """Return names for an error."""
    some = ", ".join(repr(name[:80]) for name in names[:MOST_TOLD])
    return f"[{some}]" if len(names) <= MOST_TOLD else f"[{some} ...] ({len(names)} in all)"
