"""Names of records, and which records of two sources have one name.

Name    the path of the file that a record is, or the key of the members of a tar that it is, as
        seen from the folder that all files of the source have in common: ``cat/1.png``.
Form    what of the names is compared. Names of two sources belong together in the first form in
        which they agree:

            photos                 masks
            cat/1.jpg              cat/1.jpg                   the whole name
            cat/1.jpg              cat/1.png                   without suffixes
            1.jpg  2.jpg           1_mask.png  2_mask.png      and without what all names of a source share
            cat/1.jpg  dog/2.jpg   1.png  2.png                and without folders, where one source has none
            001.jpg  002.jpg       1_mask.png  2_mask.png      and without zeros in front of numbers

Cut     at the ends of words and numbers alone: ``img1`` and ``img10`` share ``img``. No digit is
        cut from the front and no number that stands alone from the end, so ``2020_1`` keeps its
        year.
Safe    a form counts only if it leaves different names different on each side, and if it gives each
        record one partner; so records are never joined by a part of their names that occurs twice.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpuload.sources.leaf import Indices

MOST_NAMES = 1 << 20  # of an endless source: of so many of its first records
SAMPLE = 1000  # names of which it is found out what all may share
PART = r"(?a)(\D*)(\d{1,18})?"  # of a path: text, and a number behind it
END = "\0"  # between names; no path holds it


class RecordNames:
    """The names of the records of a source, made when they are asked for.

    Args:
        load: returns the paths of files, or the keys of members of tars.
        has_suffixes: False for keys.
        numbers: int64 ``[num_records]``, the path of each record; None: record i has path i.
        length: the number of records.
        origin: of what the paths are; sources with one origin have the same paths.
    """

    def __init__(
        self,
        load: Callable[[], Sequence[str]],
        length: int,
        origin: object,
        *,
        has_suffixes: bool = True,
        numbers: Indices | None = None,
    ) -> None:
        self._load, self._length, self.origin = load, length, origin
        self.has_suffixes, self.numbers = has_suffixes, numbers

    @classmethod
    def of_files(cls, paths: Sequence[str]) -> RecordNames:
        """Return the names of records that are a file each."""
        return cls(lambda: paths, len(paths), paths)

    @classmethod
    def concatenate(cls, parts: Sequence[RecordNames]) -> RecordNames:
        """Return the names of the records of several sources, one after the other."""

        def load() -> Sequence[str]:
            return [path for part in parts for path in part.paths]

        length = sum(map(len, parts))
        if all(part.origin is parts[0].origin for part in parts):
            origin = parts[0].origin
        else:
            origin = object()
        return cls(load, length, origin, has_suffixes=all(part.has_suffixes for part in parts))

    def __len__(self) -> int:
        return self._length

    def select(self, numbers: Indices) -> RecordNames:
        """Return the names of some of the records, in the order of their numbers."""
        if self.numbers is None:
            inner = numbers
        else:
            inner = self.numbers[numbers]
        return RecordNames(
            lambda: self.all_paths,
            inner.size,
            self.origin,
            has_suffixes=self.has_suffixes,
            numbers=inner,
        )

    def whole(self) -> RecordNames:
        """Return the names of all records of the files, also of those that were not selected."""
        return RecordNames(
            lambda: self.all_paths, len(self.all_paths), self.origin, has_suffixes=self.has_suffixes
        )

    @property
    def path_numbers(self) -> Indices:
        """The place of the path of each record among all paths."""
        if self.numbers is None:
            return np.arange(len(self))
        return self.numbers

    @cached_property
    def all_paths(self) -> Sequence[str]:
        """The paths of all records of the files, also of those that were not selected."""
        return tuple(self._load())

    @cached_property
    def paths(self) -> Sequence[str]:
        """The path of each record."""
        if self.numbers is None:
            return self.all_paths
        paths: list[str] = np.array(self.all_paths, object)[self.numbers].tolist()
        return paths

    @cached_property
    def folder(self) -> str:
        """The deepest folder in which all files lie, with the slash at its end; "" where paths have
        none in common."""
        shared = common_beginning(self.all_paths)
        return shared[: shared.rfind("/") + 1]

    @cached_property
    def texts(self) -> list[str]:
        """The name of each record."""
        begin = len(self.folder)
        return [path[begin:] for path in self.paths]

    @cached_property
    def suffix(self) -> str | None:
        """The suffix of all names; None if there are several."""
        if not self.has_suffixes or not self.paths:
            return ""
        suffix = os.path.splitext(self.paths[0])[1]
        is_shared = self._line.count(suffix + END) == len(self)
        # Else a name without suffix may hide among them, that ends in the same letters.
        return suffix if is_shared and suffix else None

    @cached_property
    def stems(self) -> list[str]:
        """The names without suffixes."""
        if self.suffix is None:
            return [os.path.splitext(text)[0] for text in self.texts]
        return [text[: len(text) - len(self.suffix)] for text in self.texts]

    def text(self, number: int) -> str:
        """Return the name of one record."""
        return self.paths[number][len(self.folder) :]

    def stem(self, number: int) -> str:
        """Return the name of one record without its suffix."""
        text = self.text(number)
        if self.has_suffixes:
            return os.path.splitext(text)[0]
        return text

    def contain(self, text: str) -> bool:
        """Return False if no path of a record contains the text behind its last slash; a quick
        test."""
        return text.rpartition("/")[2] in self._line

    # --- All names in one text, on which few calls of C do what takes a million calls of Python.

    @cached_property
    def _line(self) -> str:
        return END.join(["", *self.paths, ""])

    @cached_property
    def joined_stems(self) -> str | None:
        """All names without suffixes as one text; None if there are several suffixes."""
        if self.suffix is None:
            return None
        line = self._line.replace(END + self.folder, END)
        if self.suffix:
            return line.replace(self.suffix + END, END)
        return line

    @cached_property
    def joined_without_end(self) -> str | None:
        """The same without the end that all names share; None where a word or a number would be cut
        there."""
        line = self.joined_stems
        if line is None or len(self) < 2:
            return line
        stems = [
            os.path.splitext(path)[0] if self.suffix else path
            for path in self.paths[:: 1 + len(self) // SAMPLE]
        ]
        bases = [stem.rpartition("/")[2] for stem in stems]
        # All names share no more than a few of them do.
        if min(bases) != max(bases):
            end = bases[0][len(bases[0]) - _shared_end(bases) :]
        else:
            end = ""
        if not end:
            return line
        is_sound = not end[0].isalnum() and line.count(end + END) == len(self)
        if is_sound:
            return line.replace(end + END, END)
        return None


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


def misnumbered(paths: Sequence[str]) -> int:
    """Return the place of the first path whose number is smaller than that before it, as 10 stands
    before 2; else 0."""
    before = ""
    for place, path in enumerate(paths):
        # Only a shorter name can have a smaller number, and few are compared so.
        if len(path) < len(before) and _numbered_parts(path) < _numbered_parts(before):
            return place
        before = path
    return 0


def _numbered_parts(path: str) -> list[tuple[str, int]]:
    """Return the texts and numbers of a path, which sort as a person does."""
    return [(match[1], int(match[2] or -1)) for match in re.finditer(PART, path)]


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
    """What of the names of two sources is compared.

    Attributes:
        left: of each name of the first source.
        right: of the second.
        is_weak: True if only names that agree as they stand count.
    """

    left: list[str]
    right: list[str]
    is_weak: bool = False


def _forms(first: RecordNames, second: RecordNames) -> Iterator[NameForm]:
    """Yield what of the names is compared, the least cut first."""
    # Of names with one suffix each the next form says the same.
    if first.suffix is None or second.suffix is None or first.suffix == second.suffix:
        yield NameForm(first.texts, second.texts)
    yield NameForm(first.stems, second.stems)
    yield NameForm(_without_shared(first.stems), _without_shared(second.stems))
    if _is_flat(first.stems) != _is_flat(second.stems):
        left, right = (
            [stem.rpartition("/")[2] for stem in names.stems] for names in (first, second)
        )
        yield NameForm(left, right)
        yield NameForm(_without_shared(left), _without_shared(right))
    left, right = (_without_zeros(_without_shared(names.stems)) for names in (first, second))
    yield NameForm(left, right)
    # Numbers that all names share, as a year, may be all that tells one source from the other.
    # Without them names that stand in one order may stay so, but none is put into another order.
    left, right = (_without_shared(names.stems, numbers=True) for names in (first, second))
    yield NameForm(left, right, is_weak=True)


def _without_zeros(stems: Sequence[str]) -> list[str]:
    """Return names whose numbers begin with no zero: ``7`` for ``007``."""
    return [re.sub(r"(?<!\d)0+(?=\d)", "", stem) for stem in stems]


def _is_flat(stems: Sequence[str]) -> bool:
    return not any("/" in stem for stem in stems)


def _without_shared(stems: list[str], *, numbers: bool = False) -> list[str]:
    """Return names without what all of them share: of each part between slashes the beginning and
    the end.

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
    length = _shared_end(rest, numbers=numbers)
    return [value[: len(value) - length] for value in rest]


def _shared_end(values: list[str], *, numbers: bool = False) -> int:
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
    """Return what all texts begin with: what the first and the last in order begin with."""
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
        pairs = [
            (character, shared[place - 1]) if is_backwards else (shared[place - 1], character)
            for character in nexts
        ]
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
