"""Columns: which members of records are the fields that a call names, and the errors for records
that have others.

["jpg", "cls"]                 fields jpg and cls
["jpg;png", "cls"]             field "jpg;png": of each record the first of the two that it has
{"image": "jpg;png"}           the same, with a name of its own
"""

from __future__ import annotations

import itertools
import logging
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import SpecError, short_repr
from gpuload.formats.webdataset.grouping import (
    EARLY_LINKS,
    FILES_ABOUT,
    FOLDER_LINKS,
    HIDDEN,
    LOST_LINKS,
    SPREAD,
    TWICE,
    Grouping,
)
from gpuload.formats.webdataset.members import Members, group_archive
from gpuload.images.head import SUFFIXES
from gpuload.sources.leaf import Indices
from gpuload.spec import list_of_names
from gpuload.storage.extents import Extents
from gpuload.storage.files import Files

Columns = dict[
    str, tuple[str, ...]
]  # the name of each field, and the extensions of which it is the first

SEPARATOR = ";"
MOST_RECORDS = 1 << 20  # that are looked at for an error
IMAGES = tuple(suffix.lstrip(".") for suffix in SUFFIXES)
log = logging.getLogger("gpuload")


def check_fields(fields: Any) -> dict[str, str] | tuple[str, ...] | None:
    """Return the argument ``fields`` in the form in which a source is pickled.

    Raises:
        SpecError: it is of another kind.
    """
    if fields is None:
        return None
    form = "a list of extensions, or a dict from the names of fields to these"
    example = '["jpg", "cls"], ["jpg;png", "cls"] or {"image": "jpg;png", "label": "cls"}'
    if isinstance(fields, Mapping):
        columns = list(fields)
    else:
        columns = fields
    names = list_of_names("fields", columns, form=form, example=example)
    values: Sequence[Any] = names
    if isinstance(fields, Mapping):
        values = list(fields.values())
    is_list = all(isinstance(value, str) for value in values)
    if not is_list or any(not all(value.split(SEPARATOR)) for value in values if value):
        raise SpecError(
            f"fields = {short_repr(fields)}", cause=f"it is {form}", remedy=f"write {example}"
        )
    if isinstance(fields, Mapping):
        return dict(zip(names, values, strict=True))
    return names


def columns_of(members: Members, fields: dict[str, str] | Sequence[str] | None) -> Columns:
    """Return the columns that a call names; by default a column for each field of the first
    record."""
    if fields is None:
        return {name: (name,) for name in members.fields_of(0)}
    pairs = fields.items() if isinstance(fields, Mapping) else zip(fields, fields, strict=True)
    return {
        name: tuple(extension.lower() for extension in text.split(SEPARATOR))
        for name, text in pairs
    }


def rows_of(members: Members, columns: Columns, *, is_strict: bool) -> tuple[list[Indices], int]:
    """Return which members are each column, record by record, and the first record that is wrong.

    Args:
        members: of the archives.
        columns: the fields.
        is_strict: True: no record may have others.

    Returns:
        Int64 ``[num_records]`` for each column, and the number of a record that has not each column
        just once, or with
        ``is_strict`` a field besides; ``num_records`` if there is none.
    """
    record_of, wrong = members.record_of(), members.num_records
    numbers = {name: number for number, name in enumerate(members.fields)}
    all_rows = list[Indices]()
    for extensions in columns.values():
        ranks = np.full(len(members.fields), len(extensions), np.int64)
        for rank, extension in reversed(list(enumerate(extensions))):
            if extension in numbers:
                ranks[numbers[extension]] = rank
        rows = np.flatnonzero((ranks < len(extensions))[members.field_of])
        if len(extensions) > 1 and rows.size:
            rows = _first_by_rank(rows, record_of[rows], ranks[members.field_of[rows]])
        records = record_of[rows]
        # If each record has the field once, these are 0, 1, 2, ...; the first that differs names
        # the record at fault.
        gaps = np.flatnonzero(records != np.arange(records.size))
        wrong = min(wrong, int(min(gaps[0], records[gaps[0]])) if gaps.size else records.size)
        all_rows.append(rows)
    if is_strict:
        foreign = np.flatnonzero(_is_foreign(members, columns)[members.field_of])
        if foreign.size:
            wrong = min(wrong, int(record_of[foreign[0]]))
    return all_rows, wrong


def _first_by_rank(rows: Indices, records: Indices, ranks: Indices) -> Indices:
    """Return of each record the members of its lowest rank; the arrays are of members, in the order
    of records."""
    starts = np.flatnonzero(np.r_[True, records[1:] != records[:-1]])
    lowest = np.minimum.reduceat(ranks, starts)
    counts = np.diff(np.r_[starts, rows.size])
    selection: Indices = rows[ranks == np.repeat(lowest, counts)]
    return selection


def _is_foreign(members: Members, columns: Columns) -> NDArray[np.bool_]:
    names = _extensions(columns)
    return np.array([name not in names for name in members.fields], np.bool_)


# --- first or last dot


def choose_dots(
    files: Files, ways: Mapping[str, Members], fields: dict[str, str] | Sequence[str] | None
) -> Members:
    """Return the members by the first dot of their names, as WebDataset reads them, or by the last.

    The part behind the first dot is the field, unless the records then have different fields, or
    are but one, and by the last dot all have the same. Names with decimal points are of that kind.
    Where both could be meant, a warning is logged.
    """
    first, last = ways["first"], ways.get("last")
    if last is None or not first.offsets.size:
        return first
    is_strict = fields is None
    first_columns, last_columns = columns_of(first, fields), columns_of(last, fields)
    names = _dotted_fields(first)
    has_digits = all(name[0].isdigit() for name in names)
    fits_last = rows_of(last, last_columns, is_strict=is_strict)[1] == last.num_records
    if not fits_last or (last.num_records == 1 and not has_digits):
        return first
    fits_first = rows_of(first, first_columns, is_strict=is_strict)[1] == first.num_records
    if not fits_first:
        is_last = has_digits or _has_dots_in_names(first, first_columns, is_strict=is_strict)
    elif is_strict:
        is_last = has_digits and first.num_records == 1
    else:
        is_last = has_digits and _leaves_out(names, first_columns, last_columns)
    if is_last:
        is_usual = has_digits and (is_strict or not fits_first)
        log.log(
            logging.INFO if is_usual else logging.WARNING,
            "%s: names have dots (.%s): the field is what follows the last dot, "
            "the record's name what precedes it",
            *(files.names[0], names[0]),
        )
        return last
    if is_strict and (has_digits or first.num_records == 1):
        log.warning(
            "%s: names have dots, and %r is read as a field, because WebDataset begins the field "
            "behind the first dot; if it is a part of the records' names, write fields=%r, "
            "else fields=%r",
            *(files.names[0], names[0], list(last_columns), list(first_columns)),
        )
    return first


def _dotted_fields(members: Members) -> list[str]:
    return [name for name in members.fields if "." in name]


def _has_dots_in_names(first: Members, columns: Columns, *, is_strict: bool) -> bool:
    """Return True if dots of members by the first dot are rather of the records' names.

    They are if a named field is nowhere. A field with a dot that several records have is no part of
    a name: there a record lacks it.
    """
    if not is_strict and not _extensions(columns) <= set(first.fields):
        return True
    counts = np.bincount(first.field_of, minlength=len(first.fields))
    return not any(counts[number] > 1 and "." in name for number, name in enumerate(first.fields))


def _leaves_out(names: Sequence[str], first_columns: Columns, last_columns: Columns) -> bool:
    """Return True if members with dots in their names would be no field by the first dot, and are
    one by the last."""
    extensions = _extensions(last_columns)
    return any(
        name.rpartition(".")[2] in extensions and name not in _extensions(first_columns)
        for name in names
    )


def _extensions(columns: Columns) -> set[str]:
    return set(itertools.chain.from_iterable(columns.values()))


# --- messages about archives

TEXTS = {
    HIDDEN: (logging.INFO, "hidden members are passed over"),
    FILES_ABOUT: (logging.INFO, "files about the archive are passed over"),
    SPREAD: (logging.INFO, "members of a record do not lie side by side, and are joined by name"),
    LOST_LINKS: (
        logging.WARNING,
        "links that lead to no file of their archive are passed over (tar -h stores files in place "
        "of links)",
    ),
    EARLY_LINKS: (
        logging.WARNING,
        "hard links that stand before the file to which they lead are passed over, as tar does not "
        "extract them",
    ),
    FOLDER_LINKS: (
        logging.INFO,
        "links to folders are passed over, whose files are records by their own names",
    ),
    TWICE: (
        logging.WARNING,
        "names of records recur with all their fields, and each is a record of its own (if later "
        "ones are to replace "
        "the earlier, as after tar -r, unpack the archive and write it anew)",
    ),
}


def log_notes(files: Files, members: Members) -> None:
    """Log the members that were passed over, or read in a way that may surprise: a line for each
    kind."""
    for kind, (level, text) in TEXTS.items():
        notes = [
            (name, note[kind])
            for name, note in zip(files.names, members.notes, strict=False)
            if kind in note
        ]
        if notes:
            archive, (_, first) = notes[0]
            count = sum(number for _, (number, _) in notes)
            log.log(level, "%s: %s: %d, the first is %s", archive, text, count, first)


# --- errors


def places_of(
    files: Files, members: Members, columns: Columns, *, is_strict: bool
) -> list[Extents]:
    """Return where the members of each column lie, record by record.

    Raises:
        SpecError: a record has none or two of a field, or with ``is_strict`` one that is not named.
    """
    all_rows, wrong = rows_of(members, columns, is_strict=is_strict)
    if wrong < members.num_records:
        raise _error(files, members, wrong, columns, is_strict=is_strict)
    archive_of = members.archive_of()
    return [
        Extents(archive_of[rows], members.offsets[rows], members.lengths[rows]) for rows in all_rows
    ]


def _error(
    files: Files, members: Members, record: int, columns: Columns, *, is_strict: bool
) -> SpecError:
    """Return the error for a record that has not just the named fields.

    Its name is looked for in the archive.
    """
    sets = _sets_of(members)
    usual, count = Counter(sets).most_common(1)[0]
    has_usual = is_strict or all(set(extensions) & usual for extensions in columns.values())
    odd = _odd_record(sets, usual)
    if odd is not None and has_usual and count > 1 and (odd == record or (is_strict and odd == 0)):
        return _odd_error(files, members, odd, usual)
    rows = np.flatnonzero(members.record_of() == record)
    archive, names = _names_of(files, members, rows)
    fields = [members.fields[number] for number in members.field_of[rows]]
    subject = f"{files.names[archive]}: {_key_of(names[0], fields[0])}"
    return _difference(subject, fields, columns, sets)


def _odd_record(sets: Sequence[frozenset[str]], usual: frozenset[str]) -> int | None:
    """Return the first record without any of the usual fields, if it may be of files about the archive.

    Many such records are no files about the archive, but members that should be parts of others:
    labels/0.txt.
    """
    all_odd = [number for number, names in enumerate(sets) if not names & usual]
    if not 0 < len(all_odd) <= max(1, len(sets) // 4):
        return None
    if _is_of_another_image(sets[all_odd[0]], usual):
        return None
    return all_odd[0]


def _difference(
    subject: str, fields: Sequence[str], columns: Columns, sets: Sequence[frozenset[str]]
) -> SpecError:
    """Return the error that says how the fields of a record differ from the columns."""
    expected = _extensions(columns)
    twice = [name for name, number in Counter(fields).items() if number > 1 and name in expected]
    missing = [extensions for extensions in columns.values() if not set(extensions) & set(fields)]
    if twice and not missing:
        return SpecError(
            f"{subject} has {twice[0]!r} twice",
            cause="the members of a record have one name and different extensions",
            remedy="write the archive again: tar -r adds a second member of the same name",
        )
    if missing:
        difference = f"no {SEPARATOR.join(missing[0])!r}"
    else:
        difference = f"also {next(name for name in fields if name not in expected)!r}"
    return SpecError(
        f"{subject} has {difference}",
        cause=f"the fields are {list(columns)}, and each record has all of them; it has {fields}",
        remedy=_remedy(sets, columns),
    )


def _key_of(name: str, field: str) -> str:
    """Return the name of a record: that of its member without the field."""
    if field:
        return name[: -len(field) - 1]
    return name


def _sets_of(members: Members) -> list[frozenset[str]]:
    """Return the fields of each of the first MOST_RECORDS records."""
    bounds = np.append(np.flatnonzero(members.is_first), members.offsets.size)[
        : MOST_RECORDS + 1
    ].tolist()
    set_of = dict[bytes, frozenset[str]]()
    return [
        set_of.setdefault(
            (part := members.field_of[begin:end]).tobytes(),
            frozenset(members.fields[n] for n in part),
        )
        for begin, end in itertools.pairwise(bounds)
    ]


def _names_of(files: Files, members: Members, rows: Indices) -> tuple[int, list[str]]:
    """Return the archive of some members of one record, and their names, by a walk: the index has
    no names."""
    archive = int(members.archive_of()[rows[0]])
    first = int(members.counts[:archive].sum())
    grouping = _grouping_of(files, members, archive)
    return archive, [grouping.names[row - first] for row in rows.tolist()]


def _grouping_of(files: Files, members: Members, archive: int) -> Grouping:
    """Return the records of an archive in the way that these members are read, by a walk."""
    first = int(members.counts[:archive].sum())
    fields = [
        members.fields[number]
        for number in members.field_of[first : first + int(members.counts[archive])]
    ]
    groupings = group_archive(files, archive)
    return next((way for way in groupings.values() if way.fields == fields), groupings["first"])


def keys_of(files: Files, members: Members) -> list[str]:
    """Return the name of each record, without its field.

    It takes a walk through all archives: indexes have no names.
    """
    keys = list[str]()
    for archive in range(len(files)):
        grouping = _grouping_of(files, members, archive)
        for name, field, is_first in zip(
            grouping.names, grouping.fields, grouping.is_first, strict=True
        ):
            if is_first:
                keys.append(_key_of(name, field))
    return keys


def _is_of_another_image(names: frozenset[str], usual: frozenset[str]) -> bool:
    """Return True for the fields of a record that is as most are, with an image of another
    format."""
    return usual - set(IMAGES) <= names and bool(names & set(IMAGES)) and bool(usual & set(IMAGES))


def _odd_error(files: Files, members: Members, record: int, usual: frozenset[str]) -> SpecError:
    """Return the error for a record that has none of the fields that most have."""
    rows = np.flatnonzero(members.record_of() == record)
    archive, names = _names_of(files, members, rows)
    path, is_copy = files.paths[archive], files.names[archive].lower().endswith("gz")
    take_out = f"take it out of the archive: tar --delete -f {shlex.quote(path)} "
    take_out += " ".join(map(shlex.quote, names))
    if is_copy:
        take_out = (
            "unpack the archive (gunzip), and take the file out: tar --delete -f ARCHIVE NAME"
        )
    return SpecError(
        f"{files.names[archive]}: {', '.join(names)} does not belong to the records",
        cause=f"most records have {sorted(usual)}, and this one none of these; it may be a file "
        "about the archive",
        remedy=take_out,
    )


def _remedy(sets: Sequence[frozenset[str]], columns: Columns) -> str:
    common = frozenset.intersection(*sets)
    fields = [name for name, extensions in columns.items() if set(extensions) & common]
    names_in_order = dict.fromkeys(itertools.chain.from_iterable(map(sorted, sets)))
    # An image that all records have, such as a mask, is a field of its own.
    images = [name for name in names_in_order if name in IMAGES and name not in common]
    if len(images) > 1 and all(names & set(images) for names in sets):
        named_fields = {
            name: SEPARATOR.join(columns[name]) for name in fields if name not in images
        }
        form = {"image": SEPARATOR.join(images), **named_fields}
        is_choice = any(len(names & set(images)) > 1 for names in sets)
        if is_choice:
            order = "; of a record that has several of them the first in this order is taken"
        else:
            order = ""
        return f"name the kinds of images of which each record has one: fields={form}{order}"
    if not common:
        return (
            "no field is in all records: write the archive anew with all members of a record under "
            "one name; if it is "
            "an archive of a folder, unpack it (tar -xf), and open the folder"
        )
    return (
        f"name the fields that all records have: fields={fields or sorted(common)}; if it is an "
        "archive of a folder, "
        "of images of several formats say, unpack it (tar -xf), and open the folder"
    )
