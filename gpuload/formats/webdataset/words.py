"""Words: members of one line of text, as ``.cls`` has the class of a record: a whole number, or a
name.

Kind     that of the first record: where it is a whole number, all are numbers, else all are texts.
         White space around them, such as a line end, is cut off.
Classes  with ``classes=``, names become their numbers there (`sources/classnames.py`), and numbers
         are checked.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gpuload.errors import RowError, SpecError
from gpuload.ragged import Ragged
from gpuload.sources.classnames import check_not_names, shorten, unknown_class
from gpuload.sources.leaf import UINT8, Values
from gpuload.spec import Field

KINDS, CLASS_KINDS = (
    ("cls", "cls2", "index", "inx", "id"),
    ("cls", "cls2"),
)  # extensions of such members
FIRST_BYTES = 1 << 10  # of the first record
LARGEST_BYTES = 1 << 16  # of a word
SHOWN_BYTES = 40  # in an error
WHOLE = re.compile(rb"[+-]?\d{1,19}")  # numbers of 64 bits, and some that are larger
Parse = Callable[[Ragged], Values]
log = logging.getLogger("gpuload")


def are_words(extensions: Sequence[str]) -> bool:
    """Return True if members of these extensions are words."""
    return all(extension.rpartition(".")[2] in KINDS for extension in extensions)


def are_classes(extensions: Sequence[str]) -> bool:
    """Return True if members of these extensions hold the class of a record."""
    return all(extension.rpartition(".")[2] in CLASS_KINDS for extension in extensions)


def class_field(
    columns: Mapping[str, Sequence[str]], classes: tuple[str, ...] | None
) -> str | None:
    """Return the field of which ``classes`` are the names; None without classes.

    Args:
        columns: the extensions of each field.
        classes: the names.

    Raises:
        SpecError: there is none, or several.
    """
    if classes is None:
        return None
    candidates = [name for name, extensions in columns.items() if are_classes(extensions)]
    if len(candidates) != 1:
        raise SpecError(
            f"gl.webdataset: classes= for the fields {list(columns)}",
            cause=f"the classes are in members .cls, and {candidates or 'none'} of these fields "
            "are such",
            remedy='name one such field, fields=["jpg", "cls"], or leave classes= out',
        )
    return candidates[0]


def field_and_parse(
    name: str, place: str, first: bytes, classes: tuple[str, ...] | None, *, is_class: bool
) -> tuple[Field, Parse]:
    """Return a field of words, and the function that makes values of the bytes of records.

    Args:
        name: of the field.
        place: the archive, for the log.
        first: the beginning of the first record.
        classes: the names of the classes that this field has; None if none were stated.
        is_class: True if the words are classes by their extension.
    """
    word = first.strip()
    is_number = not word or _is_int64(word)
    if classes is not None and not (is_number and word.decode() not in classes):
        # A folder's name that is no UTF-8 is in an archive as it is on the disk.
        codes = [class_name.encode("utf-8", "surrogateescape") for class_name in classes]
        number_of = {code: number for number, code in enumerate(codes)}
        return _integers(name), lambda raw: _class_numbers(name, raw, classes, number_of)
    if is_number:
        check_not_names(classes or ())
        return _integers(name), lambda raw: _numbers(name, raw, classes)
    if is_class:
        log.info(
            "%s: field %r holds words, and is text; classes=[...] makes numbers of them",
            place,
            name,
        )
    return Field(name, np.dtype(object), (), text="str"), lambda raw: _texts(name, raw)


def _is_int64(word: bytes) -> bool:
    """Return True for a whole number that an int64 holds."""
    if WHOLE.fullmatch(word) is None:
        return False
    return len(word) < 19 or -(2**63) <= int(word) < 2**63


def _integers(name: str) -> Field:
    return Field(name, np.dtype(np.int64), ())


def _words(name: str, raw: Ragged) -> list[bytes]:
    words = list[bytes]()
    for row, value in enumerate(raw):
        # Before it is copied: a member of another kind may have gigabytes.
        if value.size > LARGEST_BYTES:
            raise _error(
                row,
                name,
                value[:SHOWN_BYTES].tobytes(),
                f"it has {value.size} bytes, and is one word",
            )
        words.append(value.tobytes().strip())
    return words


def _numbers(name: str, raw: Ragged, classes: tuple[str, ...] | None) -> Values:
    """Return whole numbers in decimal digits, int64 ``[n]``."""
    words = _words(name, raw)
    for row, word in enumerate(words if not all(map(_is_int64, words)) else ()):
        if not _is_int64(word):
            if re.fullmatch(rb"[+-]?\d+", word):
                raise _error(row, name, word, "it is a whole number of more than 64 bits")
            cause = "it is no whole number, as the first record of this field has"
            raise _error(
                row,
                name,
                word,
                cause,
                "if these are names of classes, pass classes=[...] with all of them",
            )
    values = np.array([int(word) for word in words], np.int64)
    if classes is not None:
        outside = np.flatnonzero((values < 0) | (values >= len(classes)))
        if outside.size:
            row = int(outside[0])
            cause = f"classes= has the names {shorten(classes)}, which are 0 to {len(classes) - 1}"
            raise _error(
                row, name, words[row], cause, "pass the names of all classes, or leave classes= out"
            )
    return values


def _class_numbers(
    name: str, raw: Ragged, classes: tuple[str, ...], number_of: Mapping[bytes, int]
) -> Values:
    """Return the numbers of the classes that names mean, int64 ``[n]``."""
    words = _words(name, raw)
    for row, word in enumerate(words):
        if word not in number_of:
            text = word.decode("utf-8", "replace")
            error = unknown_class(
                f"field {name!r}", text[:SHOWN_BYTES], classes, "leave the record out"
            )
            raise RowError(row, error.what, cause=error.cause, remedy=error.remedy)
    return np.array([number_of[word] for word in words], np.int64)


def _texts(name: str, raw: Ragged) -> Values:
    """Return the bytes of texts; that they are UTF-8 is checked where texts are made of them."""
    return Ragged.of([np.frombuffer(word, np.uint8) for word in _words(name, raw)], UINT8)


def _error(row: int, name: str, word: bytes, cause: str, remedy: str = "") -> RowError:
    return RowError(row, f"field {name!r} holds {word[:SHOWN_BYTES]!r}", cause=cause, remedy=remedy)
