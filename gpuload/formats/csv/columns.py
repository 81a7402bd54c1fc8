"""Arguments of `gl.csv`: the dialect of the text, and which columns become which fields.

Columns   a mapping from field to dtype, in the order of the fields; ``("f4", names)`` makes one
          field of several columns. A dtype of None is found in the data; ``str`` is text as long as
          the longest, or of any length where one is very long, ``object`` is text of any length,
          ``bytes`` is UTF-8 of varying length, as numbers.
Defaults  values that stand for missing ones, as ``record_defaults`` of ``tf.io.decode_csv``: a
          default gives the dtype where ``columns`` does not. A column without a default needs a
          value in each line, unless its type has a form for missing values: not-a-number,
          not-a-time.
"""

from __future__ import annotations

import codecs
import contextlib
import fnmatch
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpuload import signalsafe
from gpuload.errors import SpecError, UnknownFieldError, short_repr
from gpuload.sources.defaults import UnfitDefault, convert_default
from gpuload.spec import check_name, is_whole, list_of_names

Header = bool | Sequence[str]
Columns = Mapping[str, Any] | Sequence[str]
Defaults = Mapping[str, Any] | Sequence[Any]

NA_VALUES = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NULL", "null", "None", "NaN", "nan")
TIME_UNITS = ("D", "s", "ms", "us", "ns")
COMPRESSIONS = ("auto", "zip")
FLOAT_BYTES = (4, 8)
MAX_NAMES = 12  # columns, by errors
MOST_NA_CHARACTERS = (
    1 << 15
)  # of all; the tree that PyArrow looks them up in ends the process where it is larger
ASCII = 0x7F
NO_BREAK_SPACES = "\u00a0\u202f"  # between thousands, in French tables


@dataclass(frozen=True, repr=False)
class Dialect:
    """The form of the text.

    Attributes:
        delimiter: the ASCII character between two values.
        quote: the ASCII character around a value that holds delimiters or line ends, ``""`` for
            none.
        encoding: the name of the codec, as `codecs.lookup` has it.
        header: True if the first line names the columns.
        names: of the columns, where the user says them.
        skip_lines: how many lines to leave out at the beginning of each file.
        na_values: the texts that stand for a missing value.
        decimal: the ASCII character in front of the fraction of a number.
        thousands: the character between groups of digits, ``""`` for none.
        escape: the ASCII character that has the next one stand for itself, ``""`` for none.
        compression: ``"zip"`` for archives of one file each; ``"auto"``: files of gzip are known by
            their bytes.
    """

    delimiter: str
    quote: str
    encoding: str
    header: bool
    names: tuple[str, ...] | None
    skip_lines: int
    na_values: tuple[str, ...]
    decimal: str = "."
    thousands: str = ""
    escape: str = ""
    compression: str = "auto"

    @property
    def null(self) -> str:
        """The text by which MySQL and Hive say that a value is missing; "" without an escape."""
        return f"{self.escape}N" if self.escape else ""

    def __repr__(self) -> str:
        """Return the call that makes the dialect, without arguments that have their defaults.

        Fingerprints, tables and manifests hold this text, so an argument that is added does not
        change those of before.
        """
        values = ((field, getattr(self, field.name)) for field in fields(self))
        return f"Dialect({', '.join(f'{field.name}={value!r}' for field, value in values if value != field.default)})"


@dataclass(frozen=True, repr=False)
class CsvColumn:
    """A column that is read.

    Attributes:
        number: its place in a line, from 0.
        name: its name in the file.
        dtype: of its values; None where it is to be found, U without a length for text as long as
            the longest, O for text of any length, S without a length for bytes of varying length.
        default: the value in place of a missing one, of that dtype; None: there is none.
        is_part: True if it is one of the columns of a vector.
    """

    number: int
    name: str
    dtype: np.dtype[Any] | None
    default: Any = None
    is_part: bool = False

    def __repr__(self) -> str:
        """Return the column as a text, which names of kept tables are made of: it never changes."""
        values = (f"{field.name}={getattr(self, field.name)!r}" for field in fields(self))
        return f"Column({', '.join(values)})"


@dataclass(frozen=True)
class FieldColumns:
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
    header: Header, delimiter: str, quote: str | None, encoding: str, skip_lines: int, na_values: Iterable[str],
    *, decimal: str = ".", thousands: str | None = None, escape: str | None = None,
    compression: str = "auto",
) -> Dialect:  # fmt: skip
    """Return the form of the text, checked.

    Raises:
        SpecError: an argument is wrong, or two of them are the same character.
    """
    names = None
    if not isinstance(header, (bool, np.bool_)):
        names = _names(header)
    _check_character("delimiter", delimiter, ", ; or \\t")
    if quote is not None:
        _check_character("quote", quote, "a double quote; None where no value is quoted")
        if quote == delimiter:
            raise SpecError(
                f"quote = {quote!r}",
                cause="the delimiter is the same",
                remedy="pass two characters",
            )
    if not is_whole(skip_lines):
        raise SpecError(
            f"skip_lines = {skip_lines!r}",
            cause="it is a number of lines, at least 0",
            remedy="pass skip_lines=1, say",
        )
    if not isinstance(compression, str) or compression not in COMPRESSIONS:
        raise SpecError(
            f"compression = {compression!r}",
            cause="files of gzip are known by their bytes, and ZIP archives of one file each have to be named",
            remedy=f"pass one of {COMPRESSIONS}",
        )
    is_header = names is None and bool(header)
    _check_marks(delimiter, quote or "", decimal, thousands, escape)
    return Dialect(
        delimiter, quote or "", _codec(encoding), is_header, names, int(skip_lines), _texts_of(na_values),
        decimal, thousands or "", escape or "", compression,
    )  # fmt: skip


def _is_single(value: object) -> bool:
    """Return True for an array without axes, which has neither a length nor items."""
    return isinstance(value, np.ndarray) and value.ndim == 0


def _texts_of(na_values: Any) -> tuple[str, ...]:
    """Return the texts of missing values; those of a set in an order that is the same in each
    process."""
    if isinstance(na_values, str) or not isinstance(na_values, Collection) or _is_single(na_values):
        na_values = [na_values]
    texts = list(na_values)
    if not all(isinstance(text, str) for text in texts):
        raise SpecError(
            f"na_values = {short_repr(na_values)}",
            cause="they are a list of texts",
            remedy='pass na_values=["", "?"], say',
        )
    for text in texts:
        _check_encodable("na_values has", text)
    if sum(map(len, texts)) + len(texts) > MOST_NA_CHARACTERS:
        raise SpecError(
            f"na_values has {len(texts)} texts with {sum(map(len, texts))} characters",
            cause=f"PyArrow takes at most {MOST_NA_CHARACTERS}",
            remedy="name the texts of missing values that the files have",
        )
    if isinstance(na_values, (set, frozenset)):
        texts.sort()
    return tuple(map(str, texts))


def _check_marks(delimiter: str, quote: str, decimal: Any, thousands: Any, escape: Any) -> None:
    """Raise ``SpecError`` if a mark is no character, or is one that has another meaning."""
    _check_character("decimal", decimal, '"," for numbers such as 2,5')
    if escape is not None:
        _check_character("escape", escape, 'a backslash, "\\\\"; None where nothing is escaped')
    if thousands is not None and not (
        isinstance(thousands, str) and thousands in (*NO_BREAK_SPACES,)
    ):
        _check_character("thousands", thousands, '"," or "." for numbers such as 1,234,567')
    uses = {"delimiter": delimiter, "quote": quote, "decimal": decimal, "escape": escape}
    names: dict[str, str] = {}
    for argument, character in (*uses.items(), ("thousands", thousands)):
        if not character:
            continue
        rival = names.get(character)
        if argument == "thousands" and rival == "delimiter" and quote:
            continue  # in quotes both may be a comma: "1,234",5
        if rival is not None:
            raise SpecError(
                f"{rival} = {argument} = {character!r}",
                cause="one character cannot have both meanings",
                remedy=f"pass another {rival}= or {argument}=",
            )
        if argument in ("decimal", "thousands", "escape") and (
            character.isalnum() or character in "+-\t"
        ):
            raise SpecError(
                f"{argument} = {character!r}",
                cause="numbers are made of digits, letters and signs",
                remedy="pass another character",
            )
        names[character] = argument


def _names(header: Any) -> tuple[str, ...]:
    if isinstance(header, (str, bytes)) or not isinstance(header, Iterable):
        remedy = 'pass one of these; of one column, header=["age"]'
        if header is None:
            remedy = "pass header=False for files whose first line is data"
        elif isinstance(header, int):
            remedy = f"pass header=True, skip_lines={header}"
        raise SpecError(
            f"header = {header!r}",
            cause="it is True (the first line names the columns), False, or a list of names",
            remedy=remedy,
        )
    form = "True, False, or a list with the name of each column"
    return list_of_names("header", header, form=form, example='header=["age", "name"]')


def _check_character(argument: str, value: Any, usual: str) -> None:
    if (
        not isinstance(value, str)
        or len(value) != 1
        or not 0 < ord(value) <= ASCII
        or value in "\r\n"
    ):
        raise SpecError(
            f"{argument} = {value!r}",
            cause="it is one ASCII character, and no line end",
            remedy=f"pass {usual}",
        )


def _codec(encoding: Any) -> str:
    try:
        # Python imports a codec at its first use. Not all are of text: hex and rot13 are found,
        # too, and fail at the next line.
        codec = signalsafe.call(lambda: codecs.lookup(encoding)).name
        "a,1".encode(codec).decode(codec)
    except (LookupError, TypeError, ValueError) as error:
        signalsafe.pass_on(error)
        raise SpecError(
            f"encoding = {encoding!r}",
            cause=f"Python knows no encoding of text by this name: {error}",
            remedy='pass "utf-8", "latin-1", "cp1252" or "utf-16", say',
        ) from None
    # ASCII is UTF-8, and the mark that utf-8-sig leaves out the stream leaves out itself.
    if codec in ("utf-8", "utf-8-sig", "ascii"):
        return "utf-8"
    return codec


def select_columns(
    names: Sequence[str], columns: Columns | None, defaults: Defaults | None
) -> tuple[tuple[CsvColumn, ...], tuple[FieldColumns, ...]]:
    """Return the columns that are read, and the fields that are made of them.

    Args:
        names: of all columns of the files.
        columns: from the user; None for all.
        defaults: from the user.

    Raises:
        UnknownFieldError: there is no such column.
        SpecError: names, dtypes or defaults do not go together.
    """
    place, twice = {name: number for number, name in enumerate(names)}, _twice(names)
    read: list[CsvColumn] = []
    fields: list[FieldColumns] = []
    for field, dtype, column_names, is_vector in _field_selections(list(names), columns):
        check_name(field)
        if not column_names:
            raise UnknownFieldError(
                f"field {field!r} of no columns",
                cause=f"the columns are {list_names(names)}",
                remedy="name its columns",
            )
        numbers = []
        for name in column_names:
            if name not in place:
                raise UnknownFieldError(
                    f"no column {short_repr(name)}",
                    cause=f"the columns are {list_names(names)}",
                    remedy='use one of these names, or pass header=["a", "b", ...] for a file without a header',
                )
            if name in twice:
                raise SpecError(
                    f"the column names {list_names(twice)} occur twice",
                    cause=f"the columns are {list_names(names)}, and fields of one record need different names",
                    remedy="name the columns yourself, and leave the first line out: header=[...], skip_lines=1",
                )
            numbers.append(len(read))
            read.append(
                CsvColumn(
                    place[name], name, _checked_dtype(field, dtype, is_vector), is_part=is_vector
                )
            )
        fields.append(FieldColumns(field, tuple(numbers), is_vector))
    _check_once(read)
    return _with_defaults(read, fields, defaults), tuple(fields)


def _twice(names: Sequence[str]) -> list[str]:
    """Return the names that several columns have."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _field_selections(names: list[str], columns: Any) -> list[tuple[str, Any, list[str], bool]]:
    """Return (name, dtype or None, columns, is_vector) of each field, as the user says them."""
    if columns is None:
        return [(name, None, [name], False) for name in names]
    form = "a dict from field to dtype, or a list of names"
    example = (
        'columns={"age": "f4", "name": "U20"}, or columns=["age", "name"] to have the types found'
    )
    fields = list(columns) if isinstance(columns, Mapping) else columns
    fields = list_of_names("columns", fields, form=form, example=example)
    if not isinstance(columns, Mapping):
        return [(name, None, [name], False) for name in fields]
    selections = list[tuple[str, Any, list[str], bool]]()
    for field, about in zip(fields, columns.values(), strict=True):
        if isinstance(about, tuple) and len(about) == 2 and not _is_text_dtype(about):
            selections.append((field, about[0], _matching(names, field, about[1]), True))
        else:
            selections.append((field, about, [field], False))
    return selections


def _is_text_dtype(argument: tuple[Any, Any]) -> bool:
    """Return True for a pair that NumPy takes for a dtype: ``("U", 20)``."""
    return is_whole(argument[1]) or (
        isinstance(argument[1], tuple) and all(map(is_whole, argument[1]))
    )


def _matching(names: list[str], field: str, pattern: Any) -> list[str]:
    """Return the columns of a list of names, or of a wildcard; in the order of the list, or of the
    file."""
    if not isinstance(pattern, str):
        form = "a dtype and a list of columns, or a wildcard for them"
        example = f'{{{field!r}: ("f4", ["a", "b"])}} or {{{field!r}: ("f4", "a*")}}'
        return list(
            list_of_names(f"columns of field {field!r}", pattern, form=form, example=example)
        )
    if pattern in names:
        return [pattern]
    return [name for name in names if fnmatch.fnmatchcase(name, pattern)]


def _checked_dtype(field: str, argument: DTypeLike | None, is_vector: bool) -> np.dtype[Any] | None:
    if argument is None and not is_vector:
        return None
    try:
        if argument is None:
            raise TypeError("a field of several columns has one dtype, which has to be said")
        dtype = np.dtype(argument).newbyteorder("=")
    except (TypeError, ValueError, SyntaxError) as error:
        raise SpecError(
            f"columns: field {field!r} has dtype {argument!r}",
            cause=f"that is no dtype: {error}",
            remedy="write it like 'f4', or ('f4', ['a', 'b']) for a vector of two columns",
        ) from None
    if dtype.kind in "iub" or (dtype.kind == "f" and dtype.itemsize in FLOAT_BYTES):
        return dtype
    if dtype.kind == "M" and dtype.name[11:-1] in TIME_UNITS:
        return dtype
    if (dtype.kind in "US" and (dtype.itemsize or not is_vector)) or (
        dtype.kind == "O" and not is_vector
    ):
        return dtype
    cause = "a value of a CSV file becomes a boolean, an integer, a float32 or float64, a "
    cause += f"datetime64 of {' '.join(TIME_UNITS)}, or text"
    if dtype.kind in "USO":
        cause += "; text in a vector has a length"
    raise SpecError(
        f"columns: field {field!r} has dtype {dtype}",
        cause=cause,
        remedy="use one of these, and convert it in the loader: gl.ops.Cast",
    )


def _check_once(read: Sequence[CsvColumn]) -> None:
    twice = _twice([column.name for column in read])
    if twice:
        raise SpecError(
            f"columns: {list_names(twice)} in two fields",
            cause="a column becomes one field",
            remedy="name it once",
        )


def _with_defaults(
    columns: list[CsvColumn], fields: Sequence[FieldColumns], defaults: Defaults | None
) -> tuple[CsvColumn, ...]:
    """Return the columns, each with the default that stands for its missing values, if it has one.

    Args:
        columns: those that are read.
        fields: that they become; a default of a field of several columns is that of each.
        defaults: by the name of a field or column, or a list with one for each column.

    Raises:
        SpecError: the defaults do not fit the columns.
        UnknownFieldError: a default is for a name that is not there.
    """
    if defaults is None:
        return tuple(columns)
    by_column: dict[int, Any] = {}
    if isinstance(defaults, Mapping):
        by_name = {column.name: [number] for number, column in enumerate(columns)}
        by_name.update({field.name: list(field.columns) for field in fields})
        for name, default in defaults.items():
            if name not in by_name:
                raise UnknownFieldError(
                    f"defaults: no field {name!r}",
                    cause=f"the fields are {list_names([field.name for field in fields])}",
                    remedy="use one of these names",
                )
            by_column.update(dict.fromkeys(by_name[name], default))
    elif (
        isinstance(defaults, Collection)
        and not isinstance(defaults, (str, bytes, set, frozenset))
        and not _is_single(defaults)
    ):
        values = list(defaults)
        if len(values) != len(columns):
            raise SpecError(
                f"{len(values)} defaults for {len(columns)} columns",
                cause="a list has one for each column that is read, in their order",
                remedy='pass a dict of those that have one: defaults={"age": 0.0}',
            )
        by_column = dict(enumerate(values))
    else:
        raise SpecError(
            f"defaults = {defaults!r}",
            cause="they are a dict or a list",
            remedy='write defaults={"age": 0.0}',
        )
    for number, default in by_column.items():
        columns[number] = _defaulted(columns[number], default)
    return tuple(columns)


def _defaulted(column: CsvColumn, default: Any) -> CsvColumn:
    """Return a column with a default; or, for a type or an empty list, with a dtype and no default:
    it is required."""
    if isinstance(default, (list, tuple)) and len(default) <= 1:  # as TensorFlow has them
        if not default:
            return column
        default = default[0]
    if isinstance(default, (type, np.dtype)):
        return replace(column, dtype=column.dtype or _checked_dtype(column.name, default, False))
    try:
        value = np.asarray(default)
    except ValueError:  # lists of several lengths
        value = np.asarray([])
    _check_encodable(f"defaults: {column.name!r} has", default)
    if value.ndim or value.dtype.kind not in "biufMUS":
        raise SpecError(
            f"defaults: {column.name!r} has {default!r}",
            cause="a default is a number, a text or a time; a type means that each line needs a value",
            remedy='write defaults={"age": 0.0, "name": ""}',
        )
    dtype = column.dtype
    if dtype is None:
        dtype_of_value: Any = value.dtype
        if dtype_of_value.kind in "US":
            dtype_of_value = dtype_of_value.kind  # of any length
        dtype = _checked_dtype(column.name, dtype_of_value, False)
    return replace(column, dtype=dtype, default=_convert_default(column.name, value, dtype))


def _check_encodable(title: str, value: object) -> None:
    """Raise ``SpecError`` for a text with half of a surrogate pair, which stands in no file."""
    try:
        str(value).encode()
    except UnicodeEncodeError as error:
        raise SpecError(
            f"{title} {value!r}"[:200],
            cause=f"character {error.start} is half of a surrogate pair, which is no text of a file",
            remedy="repair the text; errors='surrogateescape' may have been used to read it",
        ) from None


def _convert_default(name: str, value: np.ndarray[Any, Any], dtype: np.dtype[Any] | None) -> Any:
    """Return a default as a value of a dtype.

    Raises:
        SpecError: the dtype does not hold this value.
    """
    assert dtype is not None
    is_text, wants_text = value.dtype.kind in "US", dtype.kind in "USO"
    if is_text and wants_text:
        text = value.item()
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        else:
            text = str(text)
        # A dtype without a length, and object, have room for any.
        length = len(text) if dtype.kind == "U" else len(text.encode())
        max_length = dtype.itemsize // {"U": 4, "S": 1, "O": 1}[dtype.kind]
        is_free = dtype.kind == "O" or not max_length
        if "\0" not in text and (is_free or length <= max_length):
            return text
    elif not wants_text:
        with contextlib.suppress(UnfitDefault):
            return convert_default(value, dtype)[()]
    raise SpecError(
        f"defaults: {name!r} has {value[()]!r}",
        cause=f"it is no value of {dtype}",
        remedy="pass one, or another dtype in columns=",
    )


def list_names(names: Sequence[str]) -> str:
    """Return names for an error."""
    listing = ", ".join(repr(name[:80]) for name in names[:MAX_NAMES])
    if len(names) <= MAX_NAMES:
        return f"[{listing}]"
    return f"[{listing} ...] ({len(names)} in all)"
