"""Joins: the records of several sources that belong together, by their names or by their places.

Names    a source knows them where a record is a file (images, NPY and NPZ with ``record="file"``)
         or the members of a tar that have one key, also behind slices, selections, splits, filters,
         other names and caches (`names.py`).
Default  by names among the sources that know them, by place for the others. Where names stand in
         one order nothing changes; in another order the records of the others are put into the
         order of the first.
Itself   parts of one source that are put beside each other, as frames and those that follow them,
         are joined by place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.errors import SpecError
from gpuload.functions import call_function
from gpuload.sources.base import Selected, Source
from gpuload.sources.leaf import Indices
from gpuload.sources.namecolumns import misplaced_value
from gpuload.sources.namematch import (
    NameMatch,
    agree_at_once,
    match,
    match_keys,
    match_parts,
    match_single,
)
from gpuload.sources.names import RecordNames, misnumbered

log = logging.getLogger("gpuload")
NAME, PLACE = "name", "place"
RAISE, DROP = "raise", "drop"
By = str | Callable[[str], Hashable] | None
PLACE_REMEDY = f"gl.zip(..., by={PLACE!r}) joins record i with record i all the same"
FUNCTIONS: dict[
    str, Callable[[str], Hashable]
] = {  # of names that often belong together, for a remedy
    'name.split(".")[0].lower()': lambda name: name.split(".")[0].lower(),
    'name.split(".")[0].split("_")[0]': lambda name: name.split(".")[0].split("_")[0],
    'name.split(".")[0].split("_")[-1]': lambda name: name.split(".")[0].split("_")[-1],
    '"".join(filter(str.isdigit, name))': lambda name: "".join(filter(str.isdigit, name)),
    "name[:8]": lambda name: name[:8],
}
DROP_REMEDY = f"gl.zip(..., missing={DROP!r}) leaves out those without a partner"
MOST_EXAMPLES = 3  # names in a message
CAUSE = "records are joined by the names of their files, without suffixes and what all names of a source share"


def check_arguments(by: Any, missing: Any) -> None:
    """Raise ``SpecError`` for an argument of ``gl.zip`` that is none."""
    is_word = isinstance(by, str) and by in (NAME, PLACE)
    if by is not None and not is_word and not callable(by):
        raise SpecError(
            f"by = {by!r}"[:200],
            cause=f"it is {NAME!r}, {PLACE!r}, or a function from the name of a record to what is "
            "compared",
            remedy=f"leave it out, or pass by={PLACE!r}, say",
        )
    if not isinstance(missing, str) or missing not in (RAISE, DROP):
        raise SpecError(
            f"missing = {missing!r}"[:200],
            cause=f"it is {RAISE!r} or {DROP!r}",
            remedy="pass one of the two",
        )
    if missing == DROP and is_word and by == PLACE:
        raise SpecError(
            f"missing = {DROP!r} with by = {PLACE!r}",
            cause="records that are joined by place have no names that tell which of them is "
            "missing",
            remedy="leave one of the two out",
        )


@dataclass(frozen=True)
class Side:
    """A source that knows the names of its records; ``number`` is its place among those of
    ``gl.zip``."""

    number: int
    source: Source
    names: RecordNames

    def describe(self, record: int) -> str:
        """Return a record for messages."""
        return f"{self.names.text(record)} of source {self.number}"


def by_name(sources: Sequence[Source], by: By, missing: str) -> Sequence[Source]:
    """Return the sources with the records of one name at one place, as far as they have names.

    Raises:
        SpecError: records have no partner, or two have one name; ``by`` asks for names that a
            source does not know.
    """
    sides = [
        Side(number, source, names)
        for number, source in enumerate(sources)
        if (names := source._record_names()) is not None
    ]
    if len(sides) < len(sources) and (by is not None or missing == DROP):
        raise _unknown_names(sources, sides)
    if sides and len(sides) < len(sources):
        if len(sides) == 1:
            _tell_of_order(sides[0])
        _check_columns(sides[0], sources)
    if len(sides) < 2:
        return sources
    first = sides[0]
    matches = [NameMatch(), *(_match(first, side, by) for side in sides[1:])]
    _check_matches(sides, matches, by, missing)
    moves = [number for number, result in enumerate(matches) if result.partners is not None]
    if not moves:
        return sources
    if len(sides) < len(sources) or any(source.endless for source in sources):
        raise _order_error(sources, first, sides[moves[0]], matches[moves[0]])
    return _in_order(sides, matches)


def _unknown_names(sources: Sequence[Source], sides: Sequence[Side]) -> SpecError:
    """Return the error for names that were asked for, and that a source does not know."""
    numbers = {side.number for side in sides}
    number = next(number for number in range(len(sources)) if number not in numbers)
    return SpecError(
        f"gl.zip: source {number} is {sources[number]._line()}",
        cause="it knows no names of its records: these are the names of files that are a record "
        "each",
        remedy="leave by= and missing= out; those that know names may be joined by them before",
    )


def _check_matches(
    sides: Sequence[Side], matches: Sequence[NameMatch], by: By, missing: str
) -> None:
    """Raise ``SpecError`` for names without a partner or that stand twice; warn of doubts."""
    first = sides[0]
    for side, result in zip(sides, matches, strict=True):
        if result.repeat or (missing == RAISE and not result.is_exact):
            raise _error(first, side, result, by)
    for side, result in zip(sides, matches, strict=True):
        if result.doubt and by is None:
            log.warning(
                "gl.zip: %s is joined with %s in the order of the names, which differ: %s; "
                "if they belong together, by='place' says so",
                *(first.describe(0), side.describe(0), result.doubt),
            )


def _tell_of_order(side: Side) -> None:
    """Warn if numbered files, sorted by text, are joined with records without names: 0, 1, 10, 11,
    2."""
    if side.names.numbers is None and not side.source.endless:
        paths = side.names.all_paths
    else:
        paths = ()
    number = misnumbered(paths)
    if number and list(paths) == sorted(paths):
        log.warning(
            "gl.zip: record i of the others stands beside record i of %s in the order of its "
            "names, which is not that of their numbers: %s comes before %s; if they are in another "
            "order, list the files in theirs; by='place' says that they are in this one",
            *(side.source._line(), side.names.text(number - 1), side.names.text(number)),
        )


def _check_columns(side: Side, sources: Sequence[Source]) -> None:
    """Raise ``SpecError`` if a column of a source without names has those of a side in another
    order."""
    if side.source.endless:
        return
    for number, source in enumerate(sources):
        if source._record_names() is not None or source.endless:
            continue
        if (wrong := misplaced_value(side.names, source)) is not None:
            raise SpecError(
                f"gl.zip: record {wrong.record} of source {number} has {wrong.column} = "
                f"{wrong.value!r}, and is joined with {side.describe(wrong.record)}",
                cause=f"column {wrong.column!r} has the names of the files of source {side.number} "
                "in another order, and a table knows no names: record i is joined with record i",
                remedy="open the files in the order of the table: names = "
                f"table.read(range(len(table)), fields={wrong.column!r})[{wrong.column!r}]; "
                f"gl.images([f'photos/{{name}}' for name in names], labels=None); {PLACE_REMEDY}",
            )


def check_files(call: str, first: Sequence[str], second: Sequence[str]) -> None:
    """Raise ``SpecError`` if two sources have as many files of many records, with one set of names
    in another order.

    Args:
        call: that joins them, for the error.
        first: the files of one source.
        second: those of the other.
    """
    names, second_names = RecordNames.of_files(first), RecordNames.of_files(second)
    result = match(names, second_names)
    if result.partners is None or not result.is_exact or _is_of_same_files(names, second_names):
        return
    number = int(np.not_equal(result.partners, np.arange(len(first))).argmax())
    raise SpecError(
        f"{call}: {first[number]} and {second[number]} stand at one place",
        cause=f"the name of the first is that of {second[int(result.partners[number])]}: the files "
        "of both sources have the same names in another order",
        remedy="name the files of both in one order, as a list"
        + f"; {PLACE_REMEDY}" * (call == "gl.zip"),
    )


def _match(first: Side, side: Side, by: By) -> NameMatch:
    """Return which records of two sources belong together; parts of one source as they stand,
    unless names are asked.

    Whole sources of one record each have no other order: they stand beside each other unless their
    names say otherwise. Of such parts without a common file, as photographs and masks that were
    selected from one folder, the names count where each record has a partner.
    """
    if callable(by):
        return match_keys(_keys(first, by), _keys(side, by))
    is_part = first.names.numbers is not None or side.names.numbers is not None
    if is_part and not _is_of_same_files(first.names, side.names):
        of_parts = match_parts(first.names, side.names)
        if of_parts is not None:
            return of_parts
    if by is None and agree_at_once(first.names, side.names):
        return NameMatch()
    is_of_same_files = _is_of_same_files(first.names, side.names)
    is_single = len(first.names) == len(side.names) == 1
    if by is None and is_single and not is_part and not is_of_same_files:
        single = match_single(first.names, side.names)
        if single is not None:
            return single
    if by is not None or not is_of_same_files:
        return match(first.names, side.names)
    if len(first.names) != len(side.names) or not set(first.names.paths).isdisjoint(
        side.names.paths
    ):
        return NameMatch()
    result = match(first.names, side.names)
    if not result.is_exact:
        return NameMatch()
    # Without its doubt: parts of the same files belong together.
    return NameMatch(result.partners, result.lonely)


def _keys(side: Side, function: Callable[[str], Hashable]) -> list[Hashable]:
    """Return the result of the user's function for each name."""
    keys = list[Hashable]()

    def note() -> str:
        return f"gl.zip: the function of by= was given {side.describe(len(keys))}"

    for text in side.names.texts:
        keys.append(call_function(function, text, note=note))
    for number, key in enumerate(keys):
        if not _is_hashable(key):
            raise SpecError(
                f"gl.zip: of {side.describe(number)} the function makes {key!r}"[:200],
                cause=f"{type(key).__name__} cannot be looked up (it is not hashable)",
                remedy="return a text, a number, or a tuple of these",
            )
    return keys


def _is_hashable(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:  # of a tuple that holds a list, too
        return False
    return True


def _is_of_same_files(first: RecordNames, second: RecordNames) -> bool:
    """Return True if two sources are parts of one, or have a file in common."""
    if first.origin is second.origin:
        return True
    if not (first.has_suffixes and second.has_suffixes):  # two archives may have the same keys
        return first.origin == second.origin
    # By their folders first: to compare a million paths takes part of a second.
    is_inside = first.folder.startswith(second.folder) or second.folder.startswith(first.folder)
    return is_inside and not set(first.all_paths).isdisjoint(second.all_paths)


def _in_order(sides: Sequence[Side], matches: Sequence[NameMatch]) -> list[Source]:
    """Return the sources with their records in the order of the first, without those that lack a
    partner."""
    num_records = len(sides[0].source)
    has_all = np.ones(num_records, np.bool_)
    for result in matches:
        if result.partners is not None:
            has_all &= result.partners >= 0
    rows = np.flatnonzero(has_all)
    selections = [
        _select(side.source, rows, result) for side, result in zip(sides, matches, strict=True)
    ]
    if not rows.size:
        number = next(number for number, result in enumerate(matches) if not result.is_exact)
        raise _error(sides[0], sides[number], matches[number], NAME)
    for side, result in zip(sides, matches, strict=True):
        if len(side.source) > rows.size:
            log.warning(
                "gl.zip: %d of the %d records of source %d, %s, have no partner and are left out",
                *(len(side.source) - rows.size, len(side.source), side.number, side.source._line()),
            )
        if result.partners is not None and (np.diff(result.partners[rows]) < 0).any():
            number = int(rows[int((np.diff(result.partners[rows], prepend=-1) != 1).argmax())])
            log.info(
                "gl.zip: source %d is read in the order of the names of source %d: %s beside %s",
                side.number,
                sides[0].number,
                side.names.text(int(result.partners[number])),
                sides[0].names.text(number),
            )
    return selections


def _select(source: Source, rows: Indices, result: NameMatch) -> Source:
    """Return a source with the partners of some records of the first one; the source itself where
    these are all."""
    if result.partners is None:
        numbers = rows
    else:
        numbers = result.partners[rows]
    is_whole = numbers.size == len(source) and np.array_equal(numbers, np.arange(numbers.size))
    if is_whole:
        return source
    return Selected(source, numbers)


def _error(first: Side, side: Side, result: NameMatch, by: By) -> SpecError:
    """Return the error for sources of which records have no partner, or two have one name."""
    is_equal = len(first.names) == len(side.names)
    if result.repeat:
        return SpecError(
            f"gl.zip: two records of source {first.number} or {side.number} have the name "
            f"{result.repeat}",
            cause="records are joined by names, and each stands for one record",
            remedy="; ".join(
                ["repeat records behind it: gl.zip(a, b).select(numbers)"]
                + _function_remedy(first, side, by)
                + [PLACE_REMEDY] * is_equal
            ),
        )
    faults = list[str]()
    if result.partners is not None and result.num_missing:
        faults.append(_fault(first, np.flatnonzero(result.partners < 0)))
    if result.lonely is not None and result.num_lonely:
        faults.append(_fault(side, result.lonely))
    has_some = result.num_missing < len(first.names)
    cause = "the records are joined by what the function makes of their names"
    return SpecError(
        f"gl.zip: {', and '.join(faults)}",
        cause=cause if callable(by) else CAUSE,
        remedy="; ".join(
            [DROP_REMEDY] * has_some
            + _function_remedy(first, side, by)
            + [PLACE_REMEDY] * is_equal,
        ),
    )


def _function_remedy(first: Side, side: Side, by: By) -> list[str]:
    """Return the remedy by=function, with a function of FUNCTIONS that gives each record a partner
    if there is one."""
    if callable(by):
        return []
    for text, function in FUNCTIONS.items():
        first_keys = list(map(function, first.names.texts))
        second_keys = list(map(function, side.names.texts))
        if match_keys(first_keys, second_keys).is_exact:
            return [f"if these records belong together: gl.zip(..., by=lambda name: {text})"]
    return [
        "gl.zip(..., by=function) with a function that returns one text for the names that belong "
        "together"
    ]


def _fault(side: Side, numbers: Indices) -> str:
    """Return how many records of a source have no partner, and the names of the first of them."""
    examples = [side.names.text(number) for number in numbers[:MOST_EXAMPLES].tolist()]
    rest = ", ..." * (numbers.size > MOST_EXAMPLES)
    count = f"{numbers.size} of {len(side.names)} records of source {side.number}"
    return f"{count} without partner: {', '.join(examples)}{rest}"


def _order_error(
    sources: Sequence[Source], first: Side, side: Side, result: NameMatch
) -> SpecError:
    """Return the error for names in another order beside records that cannot be moved with them."""
    if result.partners is None:
        number = 0
    else:
        number = int((result.partners != np.arange(len(first.names))).argmax())
    if any(source.endless for source in sources):
        cause = "a mix or a sample has no order of its own that could be changed"
        remedy = "gl.zip the parts, and mix or sample these"
    else:
        cause = "another source knows no names, so that it is not clear to which of the two its records belong"
        remedy = "join those with names first: gl.zip(gl.zip(a, b), c)"
    subject = f"gl.zip: record {number} is {first.describe(number)}, and {side.describe(number)}"
    return SpecError(
        f"{subject}, which have other names", cause=cause, remedy=f"{remedy}; {PLACE_REMEDY}"
    )
