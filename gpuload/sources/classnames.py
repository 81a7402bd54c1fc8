"""Names of classes: the number of each, by one rule for every format that makes numbers of names.

    class_names(["ant", "bee"])    the names that ``classes=`` states, that of number 0 first
    in_order({"10", "2"})          without it, the order of the names that the records have: 2 before 10
    numbers_of(names, classes)     int64 ``[n]``, the number of each name, or an error that explains the name

Order    names that are all whole numbers are in the order of the numbers, all others in that of
         their characters. Where two names are one number, as 1 and 01 are, the names are codes, and
         in the order of their characters.
JSON     a list of names, as ``json.dump(source.classes, file)`` writes it; or an object of name and
         number.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Protocol

import numpy as np

from gpuload.errors import FormatError, SpecError
from gpuload.sources.leaf import Indices
from gpuload.storage.handles import read_bytes
from gpuload.storage.stores import is_remote

WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)  # that an int64 holds
LARGEST_BYTES = 1 << 26  # of a JSON file
MOST_NAMES = 12  # in an error
SIMILARITY = 0.75  # of a name that may be meant; 1 is the same
FORM = 'pass names, as ["ant", "bee"], the source that has them, or the path of a .json file that holds them'
log = logging.getLogger("gpuload")


class HasClasses(Protocol):
    """A source with the classes that another one is to have."""

    @property
    def classes(self) -> Sequence[str]:
        """The names of the classes, that of label 0 first."""


AnyClasses = Sequence[str] | Mapping[str, int] | HasClasses | os.PathLike[str]


def class_names(argument: AnyClasses | None, call: str) -> tuple[str, ...] | None:
    """Return the names that an argument ``classes=`` states, that of number 0 first; None of None.

    Args:
        argument: a list of names, a mapping from name to number, a source with classes, or the path
            of a JSON file that holds a list or a mapping.
        call: the function that has the argument, for errors.

    Raises:
        SpecError: the argument is another one, has no name, or has a name twice.
        FileError, FormatError: the file cannot be read, or is no JSON.
    """
    if argument is None:
        return None
    subject = f"{call}: classes"
    if isinstance(argument, (str, os.PathLike)):
        path = os.fspath(argument)
        if not isinstance(path, str) or not path.lower().endswith(".json"):
            raise SpecError(
                f"{subject} = {argument!r}"[:200],
                cause="it is no path of a .json file",
                remedy=FORM,
            )
        argument, subject = _read_json(path), f"{subject} = {path!r}"
    elif not isinstance(argument, (Sequence, Mapping, np.ndarray)) and hasattr(argument, "classes"):
        if not len(argument.classes):
            remedy = "open that source with names in place of numbers, or pass a list of names"
            raise SpecError(
                f"{subject} = {argument!r}"[:200],
                cause="this source has no names of classes",
                remedy=remedy,
            )
        argument = argument.classes
    names = _by_number(argument, subject) if isinstance(argument, Mapping) else argument
    if not isinstance(names, (list, tuple)) and hasattr(names, "tolist"):
        names = names.tolist()  # of NumPy, or of pandas
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise SpecError(
            f"{subject}: {names!r}"[:200], cause="names of classes are a list of texts", remedy=FORM
        )
    if not names:
        raise SpecError(
            f"{subject} is empty",
            cause="there is no class",
            remedy="leave it out, or name the classes",
        )
    if len(set(names)) < len(names):
        name = next(name for number, name in enumerate(names) if name in names[:number])
        raise SpecError(
            f"{subject}: {name!r} stands there twice",
            cause="a class has one name and one number",
            remedy="name each class once",
        )
    return tuple(map(str, names))  # numpy.str_ is a str of another kind, which no manifest holds


def _read_json(path: str) -> Any:
    if is_remote(path):
        place = path
    else:
        place = os.path.abspath(os.path.expanduser(path))
    content = read_bytes(place, LARGEST_BYTES)
    try:
        return json.loads(content, object_pairs_hook=_without_twins)
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{path} is no JSON file with names of classes",
            cause=str(error)[:200],
            remedy="write it with json.dump(source.classes, file)",
        ) from None


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; raises ``ValueError`` where it has a name twice, of which Python
    keeps the last."""
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("an object has one name twice")
    return content


def _by_number(number_of: Mapping[Any, Any], subject: str) -> list[Any]:
    """Return the names of a mapping from name to number, by number."""
    numbers = list(number_of.values())
    is_whole = all(
        isinstance(number, (int, np.integer)) and not isinstance(number, bool) for number in numbers
    )
    if not is_whole or sorted(numbers) != list(range(len(numbers))):
        raise SpecError(
            f"{subject}: {dict(number_of)!r}"[:200],
            cause=f"a mapping has for each name its number, here each of 0 to {len(numbers) - 1} "
            "once",
            remedy='write {"ant": 0, "bee": 1}, or a list of names in the order of their numbers',
        )
    return sorted(number_of, key=lambda name: int(number_of[name]))


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return different names in the order of their numbers: see the head of this module."""
    texts = sorted(set(names))
    if not all(map(WHOLE.fullmatch, texts)) or len(set(map(int, texts))) < len(texts):
        return tuple(texts)
    return tuple(sorted(texts, key=int))


def log_order(classes: Sequence[str], subject: str, remedy: str) -> None:
    """Log that names are in the order of their numbers, if this is another one than that of their
    characters.

    It is a warning if a name is a number, and not the one that its class has; or if two names look
    alike.

    Args:
        classes: from `in_order`.
        subject: that has the names, ``"photos: the class folders"``.
        remedy: the argument that states another order.
    """
    visible: dict[str, str] = {}  # by the visible characters of a name; Aa and aa are two classes
    for name in classes:
        twin = visible.setdefault(unicodedata.normalize("NFC", name).strip(), name)
        if twin != name:
            log.warning(
                "%s: %a and %a look alike, and are two classes; %s", subject, twin, name, remedy
            )
    if not all(map(WHOLE.fullmatch, classes)):
        return
    values = list(map(int, classes))
    if len(set(values)) < len(values):
        first, second = next((a, b) for a in classes for b in classes if a < b and int(a) == int(b))
        log.warning(
            "%s are numbers, and %s and %s are the same: the classes are in the order of the "
            "characters; %s",
            subject, first, second, remedy,
        )  # fmt: skip
        return
    if list(classes) != sorted(classes):
        order = ", in the order of the numbers"
    else:
        order = ""
    mismatch = next((number for number, value in enumerate(values) if value != number), None)
    if mismatch is not None:
        log.warning(
            "%s are numbers%s, but labels count from 0 without gaps: %s has label %d; %s",
            subject, order, classes[mismatch], mismatch, remedy,
        )  # fmt: skip
    elif order:
        log.info("%s are numbers%s (2 before 10): each is its own label", subject, order)


def numbers_of(
    names: Sequence[str], classes: Sequence[str], place_of: Callable[[int], str], remedy: str
) -> Indices:
    """Return the number of the class of each name, int64 ``[n]``.

    Args:
        names: of the classes of records.
        classes: the known names, that of number 0 first.
        place_of: returns where a name stands, for errors: file or folder, and record.
        remedy: another remedy than a list of classes.

    Raises:
        SpecError: a name is none of the classes.
    """
    number_of = {name: number for number, name in enumerate(classes)}
    numbers = np.array([number_of.get(name, -1) for name in names], np.int64).reshape(-1)
    if numbers.size and numbers.min() < 0:
        unknown = {names[number]: number for number in np.flatnonzero(numbers < 0)[::-1].tolist()}
        name, first = list(unknown.items())[-1]
        raise unknown_class(place_of(first), name, classes, remedy, num_others=len(unknown) - 1)
    return numbers


def unknown_class(
    place: str, name: str, classes: Sequence[str], remedy: str, num_others: int = 0
) -> SpecError:
    """Return the error for a name that is none of the classes."""
    if num_others:
        suffix = f", and {num_others} other names are none"
    else:
        suffix = ""
    texts = {_plain(class_name): class_name for class_name in classes}
    near = difflib.get_close_matches(_plain(name), texts, n=1, cutoff=SIMILARITY)
    meant, text = "", repr(name)
    if near:
        near_name = texts[near[0]]
        near_text = repr(near_name)
        if unicodedata.normalize("NFC", name) == unicodedata.normalize("NFC", near_name):
            # People see no difference between é as one character and as two.
            text = ascii(name)
            near_text = f"{near_name!a}, which looks the same and is written in other characters"
        meant = f"if it means {near_text}, rename it; "
    return SpecError(
        f"{place}: class {text} is none of the known classes{suffix}",
        cause=f"classes= has {shorten(classes)}",
        remedy=f"{meant}if it is one more class, add it behind the others of classes= in every "
        f"call; or {remedy}",
    )


def _plain(name: str) -> str:
    """Return a name without invisible differences: spaces around it, and é as one character or
    two."""
    return unicodedata.normalize("NFC", name).strip().casefold()


def check_numbers(values: Any, classes: Sequence[str], place_of: Callable[[int], str]) -> None:
    """Check labels that are numbers already, beside names of classes.

    Args:
        values: an array of labels.
        classes: the names.
        place_of: returns where a label stands, for errors.

    Raises:
        SpecError: they are no whole number for each record, one is no class, or may be a name, too.
    """
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise SpecError(
            f"classes= with labels of dtype {values.dtype} and shape {values.shape}",
            cause="a class is one whole number or one name for each record",
            remedy="leave classes= out",
        )
    wrong = np.flatnonzero((values < 0) | (values >= len(classes)))
    if wrong.size:
        first = int(wrong[0])
        raise SpecError(
            f"{place_of(first)}: label {values[first]} is no class",
            cause=f"classes= has {len(classes)} names, so the labels are 0 to {len(classes) - 1}",
            remedy="repair the label, or leave classes= out; names of classes are passed as texts",
        )
    check_not_names(classes)


def check_not_names(classes: Sequence[str]) -> None:
    """Raise ``SpecError`` if a label that is a number may be the name of another class than that of
    this number."""
    if all(map(WHOLE.fullmatch, classes)) and list(map(int, classes)) != list(range(len(classes))):
        raise SpecError(
            f"classes= of numbers, {shorten(classes)}, with labels that are numbers",
            cause="a label may be the name of a class or its place among the classes",
            remedy="pass the labels as texts if they are names; leave classes= out if they are "
            "places",
        )


def common_classes(parts: Iterable[tuple[str, Sequence[str]]], remedy: str) -> tuple[str, ...]:
    """Return the classes of the parts of a source that have any; ``()`` where none has.

    Args:
        parts: the name of each, and its classes.
        remedy: how they come to have the same.

    Raises:
        SpecError: they differ.
    """
    with_classes = [(title, tuple(classes)) for title, classes in parts if classes]
    if not with_classes:
        return ()
    first_title, first = with_classes[0]
    for title, classes in with_classes:
        if classes != first:
            num_same = sum(
                1
                for _ in takewhile(
                    lambda pair: pair[0] == pair[1], zip(first, classes, strict=False)
                )
            )
            raise SpecError(
                f"{first_title} has the classes {shorten(first)}, {title} has {shorten(classes)}",
                cause=f"label {num_same} would stand for different classes",
                remedy=remedy,
            )
    return first


def shorten(names: Collection[str]) -> str:
    """Return the first names of a list, and how many more there are, for a message."""
    if len(names) > MOST_NAMES:
        rest = f" and {len(names) - MOST_NAMES} more"
    else:
        rest = ""
    return f"{list(names)[:MOST_NAMES]!r}{rest}"
