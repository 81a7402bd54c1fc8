"""Excel's first line: ``sep=;`` says which delimiter a table has. Excel reads and some programs
write it."""

from __future__ import annotations

import codecs
import re

DELIMITER_LINE = re.compile(rb'"?sep=([^\r\n])"?(?=\r|\n|$)', re.IGNORECASE)
OTHER_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # marks of text in UTF-16
LONGEST_BYTES = 16  # of such a line, a mark of the encoding and a line end included


def delimiter_in(head: bytes) -> str:
    """Return the delimiter that the first line of a table names; "" if it is no such line."""
    match = DELIMITER_LINE.match(head)
    return match[1].decode("latin-1") if match else ""
