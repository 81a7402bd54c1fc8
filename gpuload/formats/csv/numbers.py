"""Numbers as tables of other countries write them: 1.234.567,5 or 1 234 567,5 or 12,34,567.5.

Decimal    PyArrow reads another mark than a point by itself. Here only single texts are made plain,
           for errors.
Thousands  marks between groups of digits are taken out of the text of a block before numbers are
           read; columns of text are read from the text as it is. Groups have three digits, or as in
           India two and the last one three. Digits in other groups, "1,2" say, are no number: the
           mark may have been the decimal one.
"""

from __future__ import annotations

import re
from functools import cache

from gpuload.formats.csv.columns import Dialect

CODE = r"^\s*(?:[+-]?0[0-9]|\+[0-9]{8,}\s*$)"  # 00501, +4915123456789: digits that are no quantity
LONG_PLUS = re.compile(rb"[^0-9eE.]\+[0-9]{8}")  # in bytes of a table that may hold such a number
SPACE = " \t"


def without_thousands(data: bytes, dialect: Dialect) -> bytes:
    """Return the text of a block with the marks taken out of all values that are numbers with
    thousands."""
    mark = dialect.thousands.encode()
    if not mark or mark not in data:
        return data
    pattern = _in_block(dialect)
    if pattern.search(data) is None:
        return data  # itself, by which the caller knows that nothing was taken out
    return pattern.sub(lambda match: match[0].replace(mark, b""), data)


def plain(text: str, dialect: Dialect) -> str:
    """Return the text of a number as Python writes it; any other text as it is, or without the part
    that makes it a number."""
    if dialect.thousands and re.fullmatch(_digits(dialect), text.strip(SPACE)):
        text = text.replace(dialect.thousands, "")
    if dialect.decimal != ".":
        # A point is no decimal mark here: 2.5 is no number, as it is none to PyArrow.
        text = text.replace(".", "?").replace(dialect.decimal, ".")
    return text


def _digits(dialect: Dialect) -> str:
    """Return the pattern of a number with marks between thousands."""
    mark, decimal = re.escape(dialect.thousands), re.escape(dialect.decimal)
    groups = rf"[0-9]{{1,3}}(?:{mark}[0-9]{{3}})+|[0-9]{{1,2}}(?:{mark}[0-9]{{2}})+{mark}[0-9]{{3}}"
    return rf"[+-]?(?:{groups})(?:{decimal}[0-9]*)?"


@cache
def _in_block(dialect: Dialect) -> re.Pattern[bytes]:
    """Return the pattern of such a number as a whole value.

    It ends where the value does, which the next match needs as its beginning: so that is looked at
    and not taken.
    """
    number = rf"[{SPACE}]*{_digits(dialect)}[{SPACE}]*"
    between = re.escape(dialect.delimiter) + r"\r\n"
    begin, end = rf"(?:^|(?<=[{between}]))", rf"(?=[{between}]|$)"
    quote = re.escape(dialect.quote)
    if dialect.thousands == dialect.delimiter:
        forms = []
    else:
        forms = [rf"{begin}{number}{end}"]
    if quote:
        forms += [rf"{begin}{quote}{number}{quote}{end}"]
    else:
        forms += []
    return re.compile("|".join(forms).encode())
