"""Cuts of names: the beginnings and the ends that names share, cut at words and numbers alone.

``img1`` and ``img10`` share ``img``. No digit is cut from the front and no number that stands alone
from the end, so ``2020_1`` keeps its year.
"""

from __future__ import annotations

import re
from collections.abc import Sequence


def without_zeros(stems: Sequence[str]) -> list[str]:
    """Return names with numbers that begin with no zero: ``7`` for ``007``."""
    return [re.sub(r"(?<!\d)0+(?=\d)", "", stem) for stem in stems]


def is_flat(stems: Sequence[str]) -> bool:
    """Return True if no name has a folder."""
    return not any("/" in stem for stem in stems)


def without_shared(stems: list[str], *, numbers: bool = False) -> list[str]:
    """Return names without the parts that all of them share: of each part between slashes the
    beginning and the end.

    A part that is the same in all goes, too, as ``image`` of ``1/image`` and ``2/image``.

    Args:
        stems: at least one name.
        numbers: True: numbers that all share may go, too.
    """
    rows = [stem.split("/") for stem in stems]
    if len(stems) < 2 or len(set(map(len, rows))) > 1:
        return stems
    columns = list[list[str]]()
    for place in range(len(rows[0])):
        column = [row[place] for row in rows]
        if min(column) != max(column):
            columns.append(_strip(column, numbers=numbers))
        elif not numbers and column[0].isdigit():
            columns.append(column)
    if columns:
        return ["/".join(row) for row in zip(*columns, strict=True)]
    return stems


def _strip(values: list[str], *, numbers: bool) -> list[str]:
    """Return different texts without the beginning and the end that all share, cut where words and
    numbers end."""
    prefix = common_beginning(values)
    begin = _last_border(prefix, {value[len(prefix) : len(prefix) + 1] for value in values})
    if not numbers:
        digits = re.search(r"\d", prefix[:begin])
        if digits:
            begin = _last_border(prefix[: digits.start()], {digits[0]})
    rest = [value[begin:] for value in values]
    length = shared_end(rest, numbers=numbers)
    return [value[: len(value) - length] for value in rest]


def shared_end(values: list[str], *, numbers: bool = False) -> int:
    """Return how many characters at the end all of these share, cut where words and numbers end."""
    backwards = [value[::-1] for value in values]
    suffix = common_beginning(backwards)
    length = _last_border(
        suffix, {value[len(suffix) : len(suffix) + 1] for value in backwards}, is_backwards=True
    )
    if numbers:
        return length
    return _before_numbers(suffix, length)


def common_beginning(texts: Sequence[str]) -> str:
    """Return the common beginning of texts: that of the first and the last in order."""
    first, last = min(texts), max(texts)
    ends = (
        place for place, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]
    )
    return first[: next(ends, len(first))]


def _last_border(shared: str, behind: set[str], *, is_backwards: bool = False) -> int:
    """Return the last place in a shared text, or at its end, where a word or a number ends.

    Args:
        shared: the text.
        behind: the characters that follow it; "" where a text ends there, of which something has to
            be left.
        is_backwards: the characters stand in reverse.
    """
    for place in range(len(shared), 0, -1):
        if place == len(shared):
            nexts = behind
        else:
            nexts = {shared[place]}
        if "" in nexts:
            continue
        pairs = [(shared[place - 1], character) for character in nexts]
        if is_backwards:
            pairs = [(right, left) for left, right in pairs]
        if all(_is_border(left, right) for left, right in pairs):
            return place
    return 0


def _is_border(left: str, right: str) -> bool:
    """Return True if a word or a number ends between two characters: ``g1``, ``1_``, ``tM``."""
    if not left.isalnum() or not right.isalnum():
        return True
    return left.isdigit() != right.isdigit() or (left.islower() and right.isupper())


def _before_numbers(suffix: str, length: int) -> int:
    """Return how much of a suffix, in reverse, stands behind its last number that stands alone."""
    for number in re.finditer(r"(?<![^\W_])\d+(?![^\W_])", suffix[:length]):
        return number.start() and _last_border(
            suffix[: number.start()], {number[0][0]}, is_backwards=True
        )
    return length
