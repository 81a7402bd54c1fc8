"""A block of text as typed columns, by PyArrow; the one module that imports it.

Why      PyArrow refuses a line of too few or too many columns and a value that is none, keeps to
         RFC 4180, and gives columns in its own memory. Polars is up to 1.5 times as fast, but fills
         short lines up with missing values without a word, takes a stray quote for an opening one,
         and cannot leave a type to be found out by itself (measured with 26.0 and 2.1).
Memory   one block and its columns; nothing of PyArrow's threads is used, several blocks are parsed
         side by side.
NumberColumn  integers are decimal: PyArrow takes 0x1f, too, which is refused here, for neither its
         floats nor Python's integers do; white space around numbers is allowed; fractions are
         rounded to the nearest float of their size, integers that would be rounded are refused
         (`are_unfit`).
Nulls    of MySQL and Hive are a backslash and N, of which PyArrow would leave N: they are escaped
         before it reads them.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import signalsafe
from gpuload.errors import missing_package
from gpuload.formats.csv.columns import Dialect
from gpuload.formats.csv.lines import has_escaped_quotes, with_escaped_nulls
from gpuload.formats.csv.numbers import CODE, LONG_PLUS, without_thousands

Array = NDArray[Any]
TRUE, FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
HEXADECIMAL = (
    (b"x", b"0x"),
    (b"X", b"0X"),
)  # to look for one byte takes a hundredth of the time of two
LARGEST_INT64, LARGEST_UINT64 = (1 << 63) - 1, (1 << 64) - 1

# As the words of PyArrow begin.
OF_COLUMN = re.compile(r"In CSV column #([0-9]+): (?:Row #[0-9]+: )?(.*)")
# Of an integer that is compared with the limits of a dtype; int() refuses more than 4,300.
MAX_DIGITS = 400
NO_NUMBER = r"^\s*[+-]?[iI][nN][fF]"  # infinity in words
WHOLE_NUMBER = r"^\s*[+-]?[0-9]+\s*$"

# Kinds of inferred columns beside the dtypes <i8, <u8, <f8, <M8[.]: WORDS are booleans as words,
# never 0 and 1; OVER are floats of which one is beyond the range of float64, or an integer that
# float64 would round; CODES are numbers of which one begins with a zero in front of another digit,
# or with a plus in front of eight.
NULL, WORDS, OVER, CODES, TEXT = "none", "words", "over", "codes", "text"
LF, CR, SPACE, ZERO, DIGITS = 10, 13, 32, 48, 10
PIECE_BYTES = 1 << 17


class Unreadable(Exception):
    """The word of PyArrow for why it does not take a block.

    Attributes:
        column: the place of the column that it names, or None.
    """

    def __init__(self, reason: str, column: int | None = None) -> None:
        super().__init__(reason)
        self.column = column


@dataclass(frozen=True)
class NumberColumn:
    """Values of a column.

    Attributes:
        values: ``[n]`` of the dtype that was asked for; anything where a value is missing.
        missing: bool ``[n]``; None if none is.
    """

    values: Array
    missing: NDArray[np.bool_] | None


@dataclass(frozen=True)
class TextColumn:
    """Texts of a column, in UTF-8: text i is ``payload[offsets[i]:offsets[i + 1]]``."""

    payload: NDArray[np.uint8]
    offsets: NDArray[np.int64]


@dataclass(frozen=True)
class ColumnRequest:
    """A column that is asked of a block.

    Attributes:
        number: its place in a line.
        dtype: as text: that of numbers, `TEXT`, `WORDS`, or `NULL` where all values are to be
            missing.
        default: of texts the one in place of a missing one; None: a missing text stays missing.
        may_be_codes: True for numbers that are not read where one of them is a code, as 00501 is.
    """

    number: int
    dtype: str
    default: str | None = None
    may_be_codes: bool = False


def version() -> str:
    """Return PyArrow's version, which a kept table depends on: another version may read a text as
    another value.

    Raises:
        MissingPackageError: PyArrow is not installed.
    """
    return str(_arrow().__version__)


def read_columns(
    data: bytes,
    dialect: Dialect,
    num_columns: int,
    requests: Sequence[ColumnRequest],
    *,
    has_quotes: bool,
) -> list[Any]:
    """Return `NumberColumn` or `TextColumn` for each column that is asked.

    Raises:
        Unreadable: a line has another number of columns, or a value is none of its dtype.
    """
    pa = _arrow()
    plain_data = without_thousands(data, dialect)
    texts, numbers = list[ColumnRequest](), list[ColumnRequest]()
    for request in requests:
        is_text = request.dtype in (TEXT, WORDS) and plain_data is not data
        (texts if is_text else numbers).append(request)
    columns = dict[int, Any]()
    for text, part in ((data, texts), (plain_data, numbers)):
        if part:
            types = {str(request.number): _type(pa, request.dtype) for request in part}
            table = _table(text, dialect, num_columns, types, has_quotes=has_quotes)
            columns.update({request.number: table[str(request.number)] for request in part})
    integers = [request.number for request in requests if request.dtype[1] in "iu"]
    hexadecimal = _hexadecimal(plain_data, dialect, num_columns, integers, has_quotes)
    if hexadecimal:
        raise Unreadable("it holds a hexadecimal number", hexadecimal[0])
    codes = [request.number for request in requests if request.may_be_codes]
    codes = _of_codes(plain_data, dialect, num_columns, codes, has_quotes)
    if codes:
        raise Unreadable("it holds a number that is a code, as 00501 is", codes[0])
    return [_values(pa, columns[request.number], request, dialect) for request in requests]


def infer_kinds(
    data: bytes, dialect: Dialect, num_columns: int, numbers: Sequence[int], *, has_quotes: bool
) -> list[tuple[str, bool]]:
    """Return for each column (dtype or kind of its values in this block, True if some are missing).

    Raises:
        Unreadable: a line has another number of columns, or text is no UTF-8.
    """
    types = {str(number): None for number in numbers}
    data = without_thousands(data, dialect)
    table = _table(data, dialect, num_columns, types, has_quotes=has_quotes)
    kinds = []
    for number in numbers:
        column = table[str(number)]
        kind = _kind(str(column.type))
        if kind == "<f8":
            kind = _of_floats(data, dialect, num_columns, number, column, has_quotes)
        kinds.append((kind, column.null_count > 0))
    integers = [
        number for number, (kind, _) in zip(numbers, kinds, strict=True) if kind in ("<i8", "<u8")
    ]
    text_kinds = dict.fromkeys(_hexadecimal(data, dialect, num_columns, integers, has_quotes), TEXT)
    values = [
        number
        for number, (kind, _) in zip(numbers, kinds, strict=True)
        if kind in ("<i8", "<u8", "<f8", OVER)
    ]
    values = [number for number in values if number not in text_kinds]
    text_kinds |= dict.fromkeys(_of_codes(data, dialect, num_columns, values, has_quotes), CODES)
    column_kinds = dict(zip(numbers, kinds, strict=True))
    column_kinds.update({number: (kind, False) for number, kind in text_kinds.items()})
    return list(column_kinds.values())


def are_unfit(
    data: bytes,
    dialect: Dialect,
    num_columns: int,
    number: int,
    values: NumberColumn,
    *,
    has_quotes: bool,
) -> bool:
    """Return True if no float of this size is the number that the text of one of these floats says.

    Such is a number in digits that was read as infinite, and an integer that is rounded. Fractions
    are by nature.

    Args:
        data: the block that was read.
        dialect: its form.
        num_columns: of a line.
        number: of the column.
        values: of the column, floats.
        has_quotes: True if there is a quote in the block.
    """
    dtype = values.values.dtype
    large = np.abs(values.values) >= 2.0 ** (
        np.finfo(dtype).nmant + 1
    )  # a smaller one comes from no other integer
    if not large.any():  # nearly always
        return False
    if values.missing is not None:
        large &= ~values.missing
    pa = _arrow()
    data = without_thousands(data, dialect)
    table = _table(data, dialect, num_columns, {str(number): pa.string()}, has_quotes=has_quotes)
    texts = table[str(number)].combine_chunks().filter(pa.array(large))
    infinite = texts.filter(pa.array(np.isinf(values.values[large])))
    if (
        len(infinite)
        and not pa.compute.all(pa.compute.match_substring_regex(infinite, NO_NUMBER)).as_py()
    ):
        return True
    are_whole = pa.compute.match_substring_regex(texts, WHOLE_NUMBER)
    integers = pa.compute.utf8_trim_whitespace(texts.filter(are_whole))
    floats = values.values[large][are_whole.to_numpy(zero_copy_only=False)].astype(np.float64)
    try:
        numbers = integers.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:  # one has a plus, or more digits
        return any(is_rounded(text, dtype) for text in integers.to_pylist())
    # No int64 is the float 2**63, which NumPy cannot make one of.
    return bool(
        (floats >= float(LARGEST_INT64)).any() or (floats.astype(np.int64) != numbers).any()
    )


def is_rounded(text: str, dtype: np.dtype[Any]) -> bool:
    """Return True for the text of an integer that a float of this dtype does not hold exactly."""
    integer = whole(text.strip())
    try:
        with np.errstate(over="ignore"):
            return int(dtype.type(float(integer))) != integer
    except OverflowError:
        return True


def whole(text: str) -> int:
    """Return the integer that decimal digits mean; of more than MAX_DIGITS, one that no dtype
    holds."""
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) <= MAX_DIGITS:
        number = int(digits or "0")
    else:
        number = 10**MAX_DIGITS
    return -number if text.startswith("-") else number


def _hexadecimal(
    data: bytes, dialect: Dialect, num_columns: int, integers: Sequence[int], has_quotes: bool
) -> list[int]:
    """Return the columns of integers that hold hexadecimal numbers."""
    if not integers or not any(x in data and zero_x in data for x, zero_x in HEXADECIMAL):
        return []
    pa = _arrow()
    table = _table(
        data, dialect, num_columns, {str(n): pa.string() for n in integers}, has_quotes=has_quotes
    )
    matches = (pa.compute.match_substring(table[str(n)], "0x", ignore_case=True) for n in integers)
    return [n for n, match in zip(integers, matches, strict=True) if pa.compute.any(match).as_py()]


def _of_codes(
    data: bytes, dialect: Dialect, num_columns: int, numbers: Sequence[int], has_quotes: bool
) -> list[int]:
    """Return the columns of numbers in which one begins with a zero in front of another digit, or
    is a phone number."""
    if not numbers:
        return []
    has_pluses = b"+" in data and LONG_PLUS.search(b"\n" + data) is not None
    if not has_pluses and not _may_have_leading_zeros(data, dialect, has_quotes):
        return []
    pa = _arrow()
    table = _table(
        data, dialect, num_columns, {str(n): pa.string() for n in numbers}, has_quotes=has_quotes
    )
    matches = (pa.compute.match_substring_regex(table[str(n)], CODE) for n in numbers)
    return [n for n, match in zip(numbers, matches, strict=True) if pa.compute.any(match).as_py()]


def _may_have_leading_zeros(data: bytes, dialect: Dialect, has_quotes: bool) -> bool:
    """Return True if a value in any column of a block begins with a zero and a digit.

    Most blocks have none. Arrays that stay in the cache take a tenth of the time of parsing, an
    expression twice it.
    """
    text = np.frombuffer(b"\n" + data, np.uint8)
    ends = [
        LF,
        *dialect.delimiter.encode(),
        *dialect.quote.encode() * has_quotes,
        *[CR] * (b"\n" not in data),
    ]
    has_spaces = SPACE in data
    for place in range(0, text.size - 2, PIECE_BYTES):
        piece = text[place : place + PIECE_BYTES + 2]
        zeros = piece[1:-1] == ZERO
        zeros &= (piece[2:] - ZERO) < DIGITS  # uint8: characters less than "0" become large
        before = piece[:-2]
        begins = before == ends[0]
        for mark in ends[1:]:
            begins |= before == mark
        begins &= zeros
        if begins.any():
            return True
        if has_spaces:  # white space in front of numbers is allowed
            spaces = np.flatnonzero((before == SPACE) & zeros) + place
            if np.isin(text[spaces - 1], [SPACE, *ends]).any():
                return True
    return False


@cache
def _arrow() -> ModuleType:
    try:
        # `import pyarrow` brings neither of the two.
        signalsafe.import_package("pyarrow.compute")
        signalsafe.import_package("pyarrow.csv")
        return signalsafe.import_package("pyarrow")
    except ImportError as error:
        raise missing_package("pyarrow", needed_for="gl.csv", extra="csv", error=error) from None


def _type(pa: ModuleType, dtype: str) -> Any:
    if dtype in (TEXT, WORDS):
        return pa.string()
    if dtype == NULL:
        return pa.null()
    numpy_dtype = np.dtype(dtype)
    if numpy_dtype.kind != "M":
        return pa.from_numpy_dtype(numpy_dtype)
    unit = np.datetime_data(numpy_dtype)[0]
    if unit == "D":
        return pa.date32()
    return pa.timestamp(unit)


def _table(
    data: bytes, dialect: Dialect, num_columns: int, types: dict[str, Any], *, has_quotes: bool
) -> Any:
    pa = _arrow()
    csv = pa.csv
    if has_quotes and has_escaped_quotes(data, dialect):
        raise Unreadable("a quote behind a backslash stands inside of a value in quotes")
    text = with_escaped_nulls(data, dialect)
    if text is not data and dialect.null not in dialect.na_values:
        raise Unreadable(f"a value is {dialect.null}, which na_values does not list")
    data, is_found = text, all(column_type is None for column_type in types.values())
    if data.startswith(
        codecs.BOM_UTF8
    ):  # a character here, which PyArrow would leave out; it does so with empty lines
        data = b"\n" + data
    true, false = [*TRUE, "1"], [*FALSE, "0"]
    if is_found:
        types_of, true, false = {}, list(TRUE), list(FALSE)
    else:
        types_of = types
    try:
        return csv.read_csv(
            pa.BufferReader(data),
            csv.ReadOptions(
                use_threads=False,
                block_size=len(data) + 1,  # one, so that PyArrow does not cut
                column_names=[str(number) for number in range(num_columns)],
            ),
            csv.ParseOptions(
                delimiter=dialect.delimiter,
                quote_char=dialect.quote or False,
                escape_char=dialect.escape or False,
                newlines_in_values=has_quotes or bool(dialect.escape),
            ),
            csv.ConvertOptions(
                column_types=types_of,
                include_columns=list(types),
                null_values=list(dialect.na_values),
                true_values=true,
                false_values=false,
                strings_can_be_null=False,
                decimal_point=dialect.decimal,
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        reason = str(error).partition("\n")[0][:300]
        if match := OF_COLUMN.match(reason):
            raise Unreadable(match[2], int(match[1])) from None
        raise Unreadable(reason) from None


def _kind(name: str) -> str:
    kinds = {"null": NULL, "int64": "<i8", "bool": WORDS, "double": "<f8", "date32[day]": "<M8[D]"}
    kinds.update({f"timestamp[{unit}]": f"<M8[{unit}]" for unit in ("s", "ms", "us", "ns")})
    if name == "binary":
        raise Unreadable("invalid UTF-8")
    return kinds.get(name, TEXT)  # also a time of day, and times with a zone, which NumPy has not


def _of_floats(
    data: bytes, dialect: Dialect, num_columns: int, number: int, column: Any, has_quotes: bool
) -> str:
    """Return the kind of numbers that were read as floats, and may be integers too large for
    int64."""
    pa = _arrow()
    largest = pa.compute.max(pa.compute.abs(column)).as_py()
    if largest is None or not largest >= LARGEST_INT64:  # also where it is not a number
        return "<f8"
    if largest == float("inf"):
        values = NumberColumn(column.fill_null(0).to_numpy(), None)
        is_over = are_unfit(data, dialect, num_columns, number, values, has_quotes=has_quotes)
        return OVER if is_over else "<f8"
    table = _table(data, dialect, num_columns, {str(number): pa.string()}, has_quotes=has_quotes)
    texts = table[str(number)].combine_chunks()
    missing = pa.compute.is_in(texts, value_set=pa.array(dialect.na_values, pa.string()))
    texts = pa.compute.utf8_trim_whitespace(texts.filter(pa.compute.invert(missing)))
    if not pa.compute.all(pa.compute.match_substring_regex(texts, "^-?[0-9]+$")).as_py():
        return "<f8"
    if all(0 <= whole(text) <= LARGEST_UINT64 for text in texts.to_pylist()):
        return "<u8"
    return "<f8"


def _values(
    pa: ModuleType, column: Any, request: ColumnRequest, dialect: Dialect
) -> NumberColumn | TextColumn:
    """Return a column of PyArrow as its request says: numbers and which are missing, or texts.

    Raises:
        Unreadable: words were requested, and there is another than those for true and false.
    """
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    count = len(array)
    if request.dtype == TEXT:
        if request.default is not None:
            missing = pa.compute.is_in(array, value_set=pa.array(dialect.na_values, pa.string()))
            array = pa.compute.if_else(missing, pa.scalar(request.default, pa.string()), array)
        return _texts(array, count)
    if request.dtype == WORDS:
        true, false = (
            pa.compute.is_in(array, value_set=pa.array(words)) for words in (TRUE, FALSE)
        )
        if not pa.compute.all(pa.compute.or_(true, false)).as_py() and count:
            raise Unreadable("it holds another word than true and false", request.number)
        return NumberColumn(true.to_numpy(zero_copy_only=False), None)
    if request.dtype == NULL:
        missing = np.ones(count, np.bool_) if count else None
        return NumberColumn(np.full(count, np.nan), missing)
    missing = None
    if array.null_count:
        missing = array.is_null().to_numpy(zero_copy_only=False)
    dtype = np.dtype(request.dtype)
    if dtype.kind == "b":
        return NumberColumn(array.fill_null(False).to_numpy(zero_copy_only=False), missing)
    # The numbers as they lie in PyArrow's memory: dates are int32 days, times are int64.
    is_days = request.dtype == "<M8[D]"
    memory: Array = np.frombuffer(array.buffers()[1] or b"", np.dtype("i4") if is_days else dtype)
    values = memory[array.offset : array.offset + count]
    if is_days:
        values = values.astype(np.int64).view(dtype)
    return NumberColumn(values, missing)


def _texts(array: Any, count: int) -> TextColumn:
    _, offset_buffer, text_buffer = array.buffers()
    if offset_buffer is None or not count:
        return TextColumn(np.zeros(0, np.uint8), np.zeros(count + 1, np.int64))
    offsets = np.frombuffer(offset_buffer, np.int32)[
        array.offset : array.offset + count + 1
    ].astype(np.int64)
    if text_buffer is None:
        payload: Array = np.zeros(0, np.uint8)
    else:
        payload = np.frombuffer(text_buffer, np.uint8)
    return TextColumn(payload[offsets[0] : offsets[-1]], offsets - offsets[0])
