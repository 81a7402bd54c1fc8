"""Matches of names: which records of two sources have one name.

Form    the part of the names that is compared. Names of two sources belong together in the first
        form in which they agree:

            photos                 masks
            cat/1.jpg              cat/1.jpg                   the whole name
            cat/1.jpg              cat/1.png                   without suffixes
            1.jpg  2.jpg           1_mask.png  2_mask.png      and without the part that all share
            cat/1.jpg  dog/2.jpg   1.png  2.png                and without folders, where one source has none
            001.jpg  002.jpg       1_mask.png  2_mask.png      and without zeros in front of numbers

Safe    a form counts only if it leaves different names different on each side, and if it gives each
        record one partner; so records are never joined by a part of their names that occurs twice.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpuload.sources.leaf import Indices
from gpuload.sources.namecuts import is_flat, without_shared, without_zeros
from gpuload.sources.names import END, RecordNames


@dataclass(frozen=True, eq=False)
class NameMatch:
    """Which record of another source has the name of each record of a first one.

    Attributes:
        partners: int64 ``[len(first)]``, the record of the other source, or -1; None: all stand
            beside their partners.
        lonely: int64, the records of the other source that are no partner.
        repeat: a name that two records of one source have; "" if there is none.
        doubt: why the names do not say that the records belong together, though they stand in one
            order; "" if they do.
    """

    partners: Indices | None = None
    lonely: Indices | None = None
    repeat: str = ""
    doubt: str = ""

    @property
    def is_exact(self) -> bool:
        """True if each record of both sources has a partner."""
        return not self.repeat and (
            self.partners is None or self.num_missing == 0 == self.num_lonely
        )

    @property
    def num_missing(self) -> int:
        """The number of records of the first source without a partner."""
        if self.partners is None:
            return 0
        return int((self.partners < 0).sum())

    @property
    def num_lonely(self) -> int:
        """The number of records of the other source that are no partner."""
        if self.lonely is None:
            return 0
        return self.lonely.size


def match(first: RecordNames, second: RecordNames) -> NameMatch:
    """Return which records of two sources have one name, in the first form in which all names
    agree.

    Where they agree in none, it is the form in which most do.
    """
    if not first.paths or not second.paths:
        if len(first) == len(second):
            return NameMatch()
        return _no_match(first, second)
    if agree_at_once(first, second):
        return NameMatch()
    # Names that the quick form puts into another order need no slower one.
    if (result := _match_at_once(first, second)).is_exact:
        return result
    best = _no_match(first, second)
    for form in _forms(first, second):
        if form.left == form.right and len(set(form.left)) == len(set(first.texts)) == len(
            set(second.texts)
        ):
            if form.is_weak:
                return _weak_match(first, second, form)
            return NameMatch()
        if form.is_weak:
            continue
        result = match_keys(form.left, form.right)
        if result.is_exact:
            return result
        if not result.repeat and result.num_missing < best.num_missing:
            best = result
    for names in (first, second):
        if len(set(names.texts)) < len(names):
            return NameMatch(repeat=_repeat(names.texts))
    return best


def match_keys(first: Sequence[Hashable], second: Sequence[Hashable]) -> NameMatch:
    """Return which records of two sources have one key."""
    numbers = dict(zip(second, range(len(second)), strict=True))
    partners = np.fromiter(map(numbers.get, first, itertools.repeat(-1)), np.int64, len(first))
    counts = np.bincount(partners[partners >= 0], minlength=len(second))
    if len(numbers) < len(second):
        return NameMatch(repeat=_repeat(second))
    if counts.max(initial=0) > 1 or len(set(first)) < len(first):
        return NameMatch(repeat=_repeat(first))
    if len(first) == len(second) and np.array_equal(partners, np.arange(len(first))):
        return NameMatch()
    return NameMatch(partners, np.flatnonzero(counts == 0))


def match_single(first: RecordNames, second: RecordNames) -> NameMatch | None:
    """Return the match of two single records, with a doubt if their names do not say that they
    belong together.

    Returns:
        None if the numbers in their names differ: ``1.png`` is not the image of ``2_mask.png``,
            while ``cat.jpg`` may
        be that of ``mask_3.png``.
    """
    words, second_words = _words(first.stems[0]), _words(second.stems[0])
    numbers = {word for word in words if word.isdigit()}
    second_numbers = {word for word in second_words if word.isdigit()}
    if numbers and second_numbers and numbers.isdisjoint(second_numbers):
        return None
    has_numbers = numbers and second_numbers and _is_part(numbers, second_numbers)
    if has_numbers or _is_part(words, second_words):
        return NameMatch()
    return NameMatch(
        doubt="each has one record, and neither name has all words or all numbers of the other"
    )


def _words(stem: str) -> set[str]:
    """Return the words and the numbers of a name, without zeros in front: ``cat 3`` of
    ``Cat_003``."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", stem)
    result = set[str]()
    for word in re.findall(r"\d+|[^\W\d_]+", spaced):
        if word.isdecimal():
            result.add(word.lstrip("0") or "0")
        else:
            result.add(word.casefold())
    return result


def _is_part(first: set[str], second: set[str]) -> bool:
    """Return True if one of two sets holds the other, and no set is empty."""
    return bool(first and second) and (first <= second or second <= first)


def _weak_match(first: RecordNames, second: RecordNames, form: NameForm) -> NameMatch:
    """Return the match of records that stand beside their partners.

    It has a doubt if all names of one source have a number that the other source lacks, and the
    other way around.
    """
    shared = _numbers_of(first.stems[0]) - _numbers_of(form.left[0])
    second_shared = _numbers_of(second.stems[0]) - _numbers_of(form.right[0])
    if not shared - second_shared or not second_shared - shared:
        return NameMatch()
    text, second_text = (
        " and ".join(sorted(counts.elements())) for counts in (shared, second_shared)
    )
    return NameMatch(
        doubt=f"all names of the first hold {text}, and those of the second {second_text}"
    )


def _numbers_of(stem: str) -> Counter[str]:
    return Counter(digits.lstrip("0") or "0" for digits in re.findall(r"(?a)\d+", stem))


def match_parts(first: RecordNames, second: RecordNames) -> NameMatch | None:
    """Return which of the records that were selected from two sources have one name, by the names
    of all.

    So a part of the names that is shared in a slice alone still counts. None if nothing was
    selected, or if the names of all do not say it for most of them.
    """
    if first.numbers is None and second.numbers is None:
        return None
    numbers, second_numbers = first.path_numbers, second.path_numbers
    if len(set(numbers.tolist())) < len(first) or len(set(second_numbers.tolist())) < len(second):
        return None
    whole = match(first.whole(), second.whole())
    count, second_count = len(first.all_paths), len(second.all_paths)
    if whole.repeat or whole.num_missing * 2 >= count or whole.num_lonely * 2 >= second_count:
        return None
    if whole.partners is None:
        partners = np.arange(count)
    else:
        partners = whole.partners
    # of each path of the second; the last for none
    records = np.full(second_count + 1, -1, np.int64)
    records[second_numbers] = np.arange(len(second))
    result = records[partners[numbers]]
    if np.array_equal(result, np.arange(len(second))):
        return NameMatch(doubt=whole.doubt)
    is_partner = np.zeros(len(second), np.bool_)
    is_partner[result[result >= 0]] = True
    return NameMatch(result, np.flatnonzero(~is_partner))


def _no_match(first: RecordNames, second: RecordNames) -> NameMatch:
    return NameMatch(np.full(len(first), -1, np.int64), np.arange(len(second)))


def agree_at_once(first: RecordNames, second: RecordNames) -> bool:
    """Return True if the names agree as they stand, by a few calls for all; False says nothing."""
    if len(first) != len(second) or not len(first):
        return False
    if first.paths is second.paths:
        return True
    if first.joined_stems is not None and first.joined_stems == second.joined_stems:
        return True
    return (
        first.joined_without_end is not None
        and first.joined_without_end == second.joined_without_end
    )


def _match_at_once(first: RecordNames, second: RecordNames) -> NameMatch:
    """Return which records have one name without suffix and shared end; an empty match where that
    takes more calls."""
    if first.joined_without_end is None or second.joined_without_end is None:
        return _no_match(first, second)
    return match_keys(
        *(text.split(END)[1:-1] for text in (first.joined_without_end, second.joined_without_end))
    )


def _repeat(keys: Sequence[Hashable]) -> str:
    """Return the first key that comes a second time."""
    visited = set[Hashable]()
    for key in keys:
        if key in visited:
            return str(key)
        visited.add(key)
    return ""


@dataclass(frozen=True)
class NameForm:
    """The parts of the names of two sources that are compared.

    Attributes:
        left: of each name of the first source.
        right: of the second.
        is_weak: True if only names that agree as they stand count.
    """

    left: list[str]
    right: list[str]
    is_weak: bool = False


def _forms(first: RecordNames, second: RecordNames) -> Iterator[NameForm]:
    """Yield the parts of the names that are compared, the least cut first."""
    # Of names with one suffix each the next form says the same.
    if first.suffix is None or second.suffix is None or first.suffix == second.suffix:
        yield NameForm(first.texts, second.texts)
    yield NameForm(first.stems, second.stems)
    yield NameForm(without_shared(first.stems), without_shared(second.stems))
    if is_flat(first.stems) != is_flat(second.stems):
        left, right = (
            [stem.rpartition("/")[2] for stem in names.stems] for names in (first, second)
        )
        yield NameForm(left, right)
        yield NameForm(without_shared(left), without_shared(right))
    left, right = (without_zeros(without_shared(names.stems)) for names in (first, second))
    yield NameForm(left, right)
    # Numbers that all names share, as a year, may be all that tells one source from the other.
    # Without them names that stand in one order may stay so, but none is put into another order.
    left, right = (without_shared(names.stems, numbers=True) for names in (first, second))
    yield NameForm(left, right, is_weak=True)
