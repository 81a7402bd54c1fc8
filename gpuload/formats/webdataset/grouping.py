"""Grouping: which files of a tar archive are the fields of one record, by their names.

    0.jpg 0.cls 1.jpg 1.cls   records 0 and 1 of the fields jpg and cls
    0.jpg 1.jpg 0.cls 1.cls   the same: members of one name need not lie side by side
    0.jpg 0.cls 0.jpg 0.cls   two records, as WebDataset has them: the record is there twice
    0.5.jpg 0.7.jpg           DOTS "first": record 0 of 5.jpg and 7.jpg; "last": records 0.5 and 0.7
                              of jpg

Links    have the bytes of the member to which they lead, as tarfile finds it: a hard link the last
         one of that name before it, a symbolic link the last one at all, also by way of links to
         folders. Links that lead to no file of the archive are passed over. So are hard links that
         stand before their file, which tar does not extract, and hard links to their own name,
         which GNU tar stores for a file that is named twice.
Others   hidden members (``._0.jpg`` of a Mac), ``__MACOSX/``, and files about the archive
         (``__meta__.json``, ``README.md``) that have not the fields of the other records, are
         passed over.
Notes    say how many members were passed over or read in a way that may surprise, with the first of
         each kind.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpuload.formats.webdataset.tar import HARD, SYMBOLIC, TarMember
from gpuload.storage.archive import MACS

DOTS = ("first", "last")  # of the name, behind which the field begins
MOST_LINKS = 40  # that lead to each other; Linux follows as many
ABOUT = re.compile(
    r"(readme|licen[cs]e|copying|notice|authors|changelog|citation)(\.(md|txt|rst|html|cff|bib))?",
    re.I,
)
META = re.compile(
    r"__[^/]*__(\.(?!py$)[^/]*)?"
)  # WebDataset passes over such names; Python has modules __init__.py
HIDDEN, FILES_ABOUT, TWICE, SPREAD = "hidden", "about", "twice", "spread"
LOST_LINKS, EARLY_LINKS, FOLDER_LINKS = "links", "early links", "links to folders"

Note = tuple[int, str]  # how many members, and the first


@dataclass(frozen=True)
class Grouping:
    """The members of one archive that are fields of records, record by record.

    Attributes:
        names, members: of each, its own name, and where its bytes lie.
        fields: of each, the field that it is.
        is_first: of each, 1 where a record begins, else 0.
        notes: for the kinds above.
    """

    names: list[str]
    members: list[TarMember]
    fields: list[str]
    is_first: bytearray
    notes: dict[str, Note] = field(default_factory=dict)


def group(members: Sequence[TarMember]) -> dict[str, Grouping]:
    """Return the records of an archive, one grouping for each of DOTS; without ``"last"`` where it
    is the same."""
    notes = dict[str, Note]()
    files = _follow_links(members, notes)
    files = _without(files, _is_hidden, HIDDEN, notes)
    groupings = {"first": _group(files, key_of, dict(notes))}
    if any("." in field_name for field_name in groupings["first"].fields):
        groupings["last"] = _group(files, key_of_last, dict(notes))
    return groupings


def key_of(name: str) -> tuple[str, str]:
    """Return the name of a record, and the field that a member of it is: the part behind the first
    dot."""
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    return f"{folder}{slash}{stem}", extension.lower()


def key_of_last(name: str) -> tuple[str, str]:
    """Return the same by the last dot."""
    folder, slash, base = name.rpartition("/")
    stem, dot, extension = base.rpartition(".")
    if not dot:
        return name, ""
    return f"{folder}{slash}{stem}", extension.lower()


# --- links


def _follow_links(members: Sequence[TarMember], notes: dict[str, Note]) -> list[TarMember]:
    """Return the members, each link with the place of the file to which it leads."""
    if not any(member.kind for member in members):
        return list(members)
    by_name = dict[str, list[int]]()
    for number, member in enumerate(members):
        by_name.setdefault(posixpath.normpath(member.name), []).append(number)
    folders = {folder for name in by_name for folder in _folders_of(name)}
    files = list[TarMember]()
    for number, member in enumerate(members):
        target = _target_of(members, by_name, number)
        if target is None:
            path = _path_of(members, by_name, member)
            kind = LOST_LINKS
            if path in folders:
                kind = FOLDER_LINKS
            elif member.kind == HARD and by_name.get(path, [0])[0] > number:
                kind = EARLY_LINKS
            _note(notes, kind, f"{member.name} -> {member.target}")
        elif not _is_itself(member):
            files.append(
                member._replace(
                    offset=target.offset, length=target.length, kind=b"", head=target.head
                )
            )
    return files


def _target_of(
    members: Sequence[TarMember], by_name: dict[str, list[int]], number: int
) -> TarMember | None:
    """Return the file that a member is or leads to; None if it is not in the archive."""
    for _ in range(MOST_LINKS):
        member = members[number]
        if not member.kind:
            return member
        numbers = by_name.get(_path_of(members, by_name, member), [])
        if member.kind == HARD:
            numbers = [earlier for earlier in numbers if earlier < number]
        if not numbers:
            return None
        number = numbers[-1]
    return None


def _path_of(members: Sequence[TarMember], by_name: dict[str, list[int]], link: TarMember) -> str:
    """Return the path to which a link leads, in which links to folders are followed."""
    path = _leads_to(link)
    for _ in range(MOST_LINKS):
        if path in by_name:
            break
        numbers = [by_name[folder][-1] for folder in _folders_of(path) if folder in by_name]
        links = [members[number] for number in numbers if members[number].kind == SYMBOLIC]
        if not links:
            break
        link_path = posixpath.normpath(links[0].name)
        rest = path[len(link_path) + 1 :]
        path = posixpath.normpath(posixpath.join(_leads_to(links[0]), rest))
    return path


def _leads_to(link: TarMember) -> str:
    if link.kind == HARD:
        folder = ""
    else:
        folder = posixpath.dirname(link.name)
    return posixpath.normpath(posixpath.join(folder, link.target))


def _is_itself(link: TarMember) -> bool:
    """Return True for a hard link to its own name."""
    return link.kind == HARD and _leads_to(link) == posixpath.normpath(link.name)


def _folders_of(name: str) -> list[str]:
    parts = name.split("/")[:-1]
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]


# --- members that are no part of a record


def _is_hidden(name: str) -> bool:
    return name.rpartition("/")[2].startswith(".") or name.startswith(MACS)


def _is_about(name: str) -> bool:
    return bool(ABOUT.fullmatch(name.rpartition("/")[2]) or META.fullmatch(name.partition("/")[0]))


def _without(
    files: list[TarMember], is_other: Callable[[str], bool], kind: str, notes: dict[str, Note]
) -> list[TarMember]:
    """Return the members without others, of which there is a note."""
    names = [member.name for member in files if is_other(member.name)]
    for name in names:
        _note(notes, kind, name)
    if names:
        return [member for member in files if not is_other(member.name)]
    return files


def _note(notes: dict[str, Note], kind: str, name: str) -> None:
    count, first = notes.get(kind, (0, name))
    notes[kind] = (count + 1, first)


# --- records


def _group(
    files: list[TarMember], split: Callable[[str], tuple[str, str]], notes: dict[str, Note]
) -> Grouping:
    pairs = [split(member.name) for member in files]
    if about := {
        pair[0] for pair, member in zip(pairs, files, strict=True) if _is_about(member.name)
    }:
        about -= _usual_keys(pairs, about)
        files = _without(
            files, lambda name: split(name)[0] in about and _is_about(name), FILES_ABOUT, notes
        )
        pairs = [split(member.name) for member in files]
    starts = [row for row, pair in enumerate(pairs) if not row or pair[0] != pairs[row - 1][0]]
    runs = list(itertools.pairwise([*starts, len(pairs)]))
    keys = [pairs[start][0] for start in starts]
    if len(set(keys)) == len(keys):
        order, firsts = list(range(len(pairs))), set(starts)
    else:
        order, firsts = _join_runs(runs, keys, pairs, notes)
    members = [files[row] for row in order]
    return Grouping(
        [member.name for member in members],
        members,
        [pairs[row][1] for row in order],
        bytearray(row in firsts for row in order),
        notes,
    )


def _usual_keys(pairs: Sequence[tuple[str, str]], about: set[str]) -> set[str]:
    """Return those keys of files about the archive that have the fields of other records, or have
    none beside them."""
    fields_of = dict[str, set[str]]()
    for key, name in pairs:
        fields_of.setdefault(key, set()).add(name)
    usual_sets = {frozenset(names) for key, names in fields_of.items() if key not in about}
    unusual = {
        key for key in about if META.fullmatch(key) or frozenset(fields_of[key]) not in usual_sets
    }
    if usual_sets:
        return about - unusual
    return about


def _join_runs(
    runs: Sequence[tuple[int, int]],
    keys: Sequence[str],
    pairs: Sequence[tuple[str, str]],
    notes: dict[str, Note],
) -> tuple[list[int], set[int]]:
    """Return the rows record by record, and those with which a record begins, where names of
    records recur.

    Runs of one name with the same fields are records of their own; with others they are parts of
    one record, which has a field twice if two of its parts have it.
    """
    runs_of = dict[str, list[tuple[int, int]]]()
    for key, run in zip(keys, runs, strict=True):
        runs_of.setdefault(key, []).append(run)
    order, firsts = list[int](), set[int]()
    for key, run in zip(keys, runs, strict=True):
        same_key = runs_of[key]
        counts = [Counter(name for _, name in pairs[begin:end]) for begin, end in same_key]
        is_repeated = len(same_key) > 1 and all(count == counts[0] for count in counts)
        if is_repeated or run == same_key[0]:
            firsts.add(run[0])
            parts = same_key
            if is_repeated:
                parts = [run]
            order += [row for begin, end in parts for row in range(begin, end)]
        if len(same_key) > 1 and run == same_key[1]:
            _note(notes, TWICE if is_repeated else SPREAD, key)
    return order, firsts
