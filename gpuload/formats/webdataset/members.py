"""Members: which members of tar archives are which field of which record, in arrays.

    cat/1.jpg cat/1.cls cat/2.jpg      field_of 0 1 0      is_first 1 0 1      fields jpg cls

Found    by a walk through each archive (`tar.py`), which is done once: it is stored (`sources/fileindex.py`).
Index    int64 number of members; of each member int64 offset, int64 length, uint32 field, uint8 whether a record begins
         with it; the names of the fields in JSON: 21 bytes a member. Names of records are in the archive alone.
Trust    numbers from an index or a manifest are compared with each other and with the sizes of the archives.
"""

from __future__ import annotations

import itertools
import json
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import SpecError
from gpuload.formats.webdataset import tar
from gpuload.order import MAX_LENGTH
from gpuload.sources import fileindex
from gpuload.sources.leaf import Indices
from gpuload.sources.spans import Show, walk_files
from gpuload.storage.extents import Extents
from gpuload.storage.files import Files
from gpuload.storage.manifest import Manifest

KIND = "webdataset"
ARRAYS = {"offsets": "<i8", "lengths": "<i8", "field_of": "<u4", "is_first": "|u1"}  # of an index, and of a manifest
MEMBER_BYTES = sum(np.dtype(dtype).itemsize for dtype in ARRAYS.values())


@dataclass(frozen=True, eq=False)
class Members:
    """The members of archives that are fields of records, archive by archive, in their order there.

    Attributes:
        fields: the names of all fields, in the order in which they come.
        offsets, lengths: int64 ``[num_members]``, bytes in their archive.
        field_of: uint32 ``[num_members]``, which field a member is.
        is_first: uint8 ``[num_members]``, 1 where a record begins.
        counts: int64 ``[num_archives]``, the members of each archive.
    """

    fields: tuple[str, ...]
    offsets: Indices
    lengths: Indices
    field_of: NDArray[np.uint32]
    is_first: NDArray[np.uint8]
    counts: Indices

    def archive_of(self) -> Indices:
        """Return the archive of each member, int64."""
        return np.repeat(np.arange(self.counts.size), self.counts)

    def record_of(self) -> Indices:
        """Return the record of each member, int64."""
        return np.cumsum(self.is_first, dtype=np.int64) - 1

    def record_counts(self) -> list[int]:
        """Return the number of records of each archive."""
        firsts = self.archive_of()[self.is_first == 1]
        counts: list[int] = np.bincount(firsts, minlength=self.counts.size).tolist()
        return counts

    def fields_of(self, record: int) -> list[str]:
        """Return the names of the fields of a record, each once."""
        return list(dict.fromkeys(self.fields[number] for number in self.field_of[self.record_of() == record]))

    def fault(self, sizes: Indices) -> str:
        """Return why these cannot be members of archives of such sizes; "" if they can."""
        if int(self.counts.sum()) != self.offsets.size:
            return "it counts other members than it lists"
        if not self.offsets.size:
            return ""
        ends = sizes[self.archive_of()]
        if (self.offsets < 0).any() or (self.offsets > ends).any() or (self.lengths < 0).any():
            return "a member lies outside of its archive"
        if (self.lengths > ends - self.offsets).any():
            return "a member ends behind its archive"
        if int(self.field_of.max()) >= len(self.fields) or len(set(self.fields)) != len(self.fields):
            return "a member is a field that it does not list"
        firsts = (np.cumsum(self.counts) - self.counts)[self.counts > 0]
        if int(self.is_first.max()) > 1 or not self.is_first[firsts].all():
            return "a record begins in one archive and ends in another"
        return ""


# --- from archives


def members_of(files: Files) -> Members:
    """Return the members of archives, from their indexes, which are made first where they are missing.

    Raises:
        FormatError: an archive is damaged, cut short, or no tar.
        ChangedFileError, FileError: it changed, or cannot be read.
    """

    def look(number: int, show: Show, go_on: Callable[[], None]) -> Members:
        def walk() -> Members:
            return _walk_archive(files, number, lambda place: show(number, place))

        def unpack(content: bytes) -> Members | None:
            return _unpack(content, int(files.sizes[number]))

        return fileindex.load_or_walk(files, number, KIND, walk, _pack, unpack, go_on)

    return _join(walk_files(files, "looking for records", look))


def _walk_archive(files: Files, number: int, show: Callable[[int], None]) -> Members:
    """Return the members of one archive by a walk through it."""
    fields, before = dict[str, int](), None
    # Arrays of C: a list has an object of 32 bytes for each number, of which there are millions.
    offsets, lengths, field_of, is_first = array("q"), array("q"), array("L"), bytearray()
    for name, offset, length in tar.walk(files, number, show):
        key, field = key_of(name)
        offsets.append(offset)
        lengths.append(length)
        field_of.append(fields.setdefault(field, len(fields)))
        is_first.append(key != before)
        before = key
    return Members(
        tuple(fields),
        np.array(offsets, np.int64),
        np.array(lengths, np.int64),
        np.array(field_of, np.uint32),
        np.frombuffer(bytes(is_first), np.uint8),
        np.array([len(offsets)], np.int64),
    )


def key_of(name: str) -> tuple[str, str]:
    """Return the name of a record, and the field that a member of it is."""
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    return f"{folder}{slash}{stem}", extension.lower()


def _join(archives: Sequence[Members]) -> Members:
    """Return the members of several archives, with one list of fields."""
    fields = dict[str, int]()
    field_of = list[NDArray[np.uint32]]()
    for archive in archives:
        numbers = [fields.setdefault(name, len(fields)) for name in archive.fields]
        field_of.append(np.array(numbers, np.uint32)[archive.field_of])
    names = ("offsets", "lengths", "is_first", "counts")
    arrays = {name: np.concatenate([getattr(archive, name) for archive in archives]) for name in names}
    return Members(tuple(fields), field_of=np.concatenate(field_of), **arrays)


def _pack(members: Members) -> bytes:
    arrays = [np.ascontiguousarray(getattr(members, name), dtype).tobytes() for name, dtype in ARRAYS.items()]
    names = json.dumps(members.fields).encode("ascii")
    return b"".join([members.offsets.size.to_bytes(8, "little"), *arrays, names])


def _unpack(content: bytes, size: int) -> Members | None:
    """Return the members that an index of an archive of ``size`` bytes holds; None if they cannot be."""
    count, place = int.from_bytes(content[:8], "little"), 8
    # Before memory is taken: the count comes from the file.
    if len(content) < place + count * MEMBER_BYTES:
        return None
    arrays = dict[str, NDArray[Any]]()
    for name, dtype in ARRAYS.items():
        raw = np.frombuffer(content, dtype, count, place)
        arrays[name] = raw.astype(raw.dtype.newbyteorder("="), copy=False)
        place += raw.nbytes
    try:
        fields = json.loads(content[place:])
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, list) or not all(isinstance(name, str) for name in fields):
        return None
    members = Members(tuple(fields), counts=np.array([count], np.int64), **arrays)
    return None if members.fault(np.array([size])) else members


# --- from a manifest


def to_manifest(members: Members) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the values and arrays of a manifest."""
    return {"fields": list(members.fields)}, {name: getattr(members, name) for name in (*ARRAYS, "counts")}


def from_manifest(listing: Manifest) -> Members:
    """Return the members that a manifest lists.

    Raises:
        FormatError: they lie outside of their archives, or are no fields that it lists.
    """
    fields = listing.about.get("fields")
    if not isinstance(fields, list) or not all(isinstance(name, str) for name in fields):
        raise listing.error("it lists no fields")
    counts = listing.numbers("counts", 0, MAX_LENGTH)
    if counts.sum(dtype=np.float64) >= MAX_LENGTH:
        raise listing.error("it counts more members than there can be")
    arrays = {name: listing.array(name, dtype, int(counts.sum())) for name, dtype in ARRAYS.items()}
    members = Members(tuple(fields), counts=counts, **arrays)
    if fault := members.fault(listing.files.sizes):
        raise listing.error(fault)
    return members


# --- records


def places_of(files: Files, members: Members, names: Sequence[str], *, is_strict: bool) -> list[Extents]:
    """Return where the members of each field lie, record by record.

    Args:
        files: the archives.
        members: of the archives.
        names: the fields.
        is_strict: True: no record may have others.

    Raises:
        SpecError: a record has none or two of a field, or with ``is_strict`` one that is not named.
    """
    archive_of, record_of = members.archive_of(), members.record_of()
    num_records = int(members.is_first.sum())
    numbers = {name: number for number, name in enumerate(members.fields)}
    places, wrong = list[Extents](), num_records  # the first record that is wrong
    for name in names:
        rows = np.flatnonzero(members.field_of == numbers.get(name, len(numbers)))
        records = record_of[rows]
        # If each record has the field once, these are 0, 1, 2, ...; the first that differs names the record at fault.
        gaps = np.flatnonzero(records != np.arange(records.size))
        wrong = min(wrong, int(min(gaps[0], records[gaps[0]])) if gaps.size else records.size)
        places.append(Extents(archive_of[rows], members.offsets[rows], members.lengths[rows]))
    if is_strict:
        is_foreign = np.array([name not in names for name in members.fields], np.bool_)
        foreign = np.flatnonzero(is_foreign[members.field_of])
        wrong = min(wrong, int(record_of[foreign[0]])) if foreign.size else wrong
    if wrong < num_records:
        raise _error(files, members, wrong, names)
    return places


def _error(files: Files, members: Members, record: int, names: Sequence[str]) -> SpecError:
    """Return the error for a record that has not just the named fields; its name is looked for in the archive."""
    rows = np.flatnonzero(members.record_of() == record)
    archive, offset = int(members.archive_of()[rows[0]]), int(members.offsets[rows[0]])
    # The index has no names, which would be most of its bytes; only an error needs one.
    name = next(member.name for member in tar.walk(files, archive) if member.offset == offset)
    fields = [members.fields[number] for number in members.field_of[rows]]
    twice = [field for field, group in itertools.groupby(sorted(fields)) if field in names and len(list(group)) > 1]
    missing = [field for field in names if field not in fields]
    foreign = [field for field in fields if field not in names]
    subject = f"{files.names[archive]}: {key_of(name)[0]}"
    if twice and not missing:
        return SpecError(
            f"{subject} has {twice[0]!r} twice",
            cause="the members of a record have one name and different extensions",
            remedy="write the archive again: tar -r adds a second member of the same name",
        )
    return SpecError(
        f"{subject} has {'no' if missing else 'also'} {(missing or foreign)[0]!r}",
        cause=f"the fields are {list(names)}, and each record has all of them; it has {fields}",
        remedy="name the fields that all records have: fields=[...]; if it is an archive of a folder, "
        "of images of several formats say, unpack it (tar -xf), and open the folder",
    )
