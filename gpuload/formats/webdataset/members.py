"""Members: which members of tar archives are which field of which record, in arrays.

    cat/1.jpg cat/1.cls cat/2.jpg      field_of 0 1 0      is_first 1 0 1      fields jpg cls

Found    by a walk through each archive (`tar.py`), which is done once: it is stored
         (`sources/fileindex.py`). Which members are a record says `grouping.py`, in one or two
         ways; the call chooses one for all archives.
Index    for each way its length in int64, then: int64 number of members; of each member int64
         offset, int64 length, uint32 field, uint8 whether a record begins with it: 21 bytes a
         member; in JSON the names of the fields, the kinds of arrays (`arrays.py`) and the notes.
         Names of records are in the archive alone.
Trust    numbers from an index or a manifest are compared with each other and with the sizes of the
         archives.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.formats.webdataset import arrays as npyarrays
from gpuload.formats.webdataset import tar
from gpuload.formats.webdataset.arrays import ArrayKind
from gpuload.formats.webdataset.grouping import DOTS, Grouping, Note, group
from gpuload.order import MAX_LENGTH
from gpuload.sources import fileindex
from gpuload.sources.leaf import Indices
from gpuload.sources.spans import Show, walk_files
from gpuload.storage.files import Files
from gpuload.storage.manifest import Manifest

KIND = "webdataset"
ARRAYS = {
    "offsets": "<i8",
    "lengths": "<i8",
    "field_of": "<u4",
    "is_first": "|u1",
}  # of an index, and of a manifest
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
        kinds: of fields that are NPY files, the arrays in them.
        notes: of each archive those of `grouping.py`; none from a manifest.
    """

    fields: tuple[str, ...]
    offsets: Indices
    lengths: Indices
    field_of: NDArray[np.uint32]
    is_first: NDArray[np.uint8]
    counts: Indices
    kinds: dict[str, ArrayKind] = field(default_factory=dict)
    notes: tuple[dict[str, Note], ...] = ()

    @property
    def num_records(self) -> int:
        """The number of records of all archives."""
        return int(self.is_first.sum())

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
        return list(
            dict.fromkeys(
                self.fields[number] for number in self.field_of[self.record_of() == record]
            )
        )

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
        if int(self.field_of.max()) >= len(self.fields) or len(set(self.fields)) != len(
            self.fields
        ):
            return "a member is a field that it does not list"
        firsts = (np.cumsum(self.counts) - self.counts)[self.counts > 0]
        if int(self.is_first.max()) > 1 or not self.is_first[firsts].all():
            return "a record begins in one archive and ends in another"
        return ""


# --- from archives


def members_of(files: Files) -> dict[str, Members]:
    """Return the members of archives for each of DOTS, from their indexes, which are made first
    where they are missing.

    Where fields are the same by both, there is only ``"first"``.

    Raises:
        FormatError: an archive is damaged, cut short, or no tar.
        ChangedFileError, FileError: it changed, or cannot be read.
    """

    def look(number: int, show: Show, go_on: Callable[[], None]) -> dict[str, Members]:
        def walk() -> dict[str, Members]:
            groupings = group_archive(files, number, lambda place: show(number, place))
            return {dots: _of_grouping(grouping) for dots, grouping in groupings.items()}

        def unpack(content: bytes) -> dict[str, Members] | None:
            return _unpack(content, int(files.sizes[number]))

        return fileindex.load_or_walk(files, number, KIND, walk, _pack, unpack, go_on)

    archives = walk_files(files, "looking for records", look)
    all_dots: Sequence[str] = DOTS
    if all(len(archive) < 2 for archive in archives):
        all_dots = DOTS[:1]
    return {
        dots: _join([archive.get(dots, archive["first"]) for archive in archives])
        for dots in all_dots
    }


def group_archive(
    files: Files, number: int, show: Callable[[int], None] = lambda place: None
) -> dict[str, Grouping]:
    """Return the records of one archive by a walk through it, for each of DOTS."""
    return group(list(tar.walk(files, number, show, npyarrays.peek)))


def _of_grouping(grouping: Grouping) -> Members:
    """Return the members of one archive in arrays."""
    fields = dict[str, int]()
    # Arrays of C: a list has an object of 32 bytes for each number, of which there are millions.
    field_of = array("L", [fields.setdefault(name, len(fields)) for name in grouping.fields])
    return Members(
        tuple(fields),
        np.array(array("q", [member.offset for member in grouping.members]), np.int64),
        np.array(array("q", [member.length for member in grouping.members]), np.int64),
        np.array(field_of, np.uint32),
        np.frombuffer(bytes(grouping.is_first), np.uint8),
        np.array([len(grouping.members)], np.int64),
        npyarrays.kinds_of(zip(grouping.fields, grouping.members, strict=True)),
        (grouping.notes,),
    )


def _join(archives: Sequence[Members]) -> Members:
    """Return the members of several archives, with one list of fields."""
    fields = dict[str, int]()
    field_of = list[NDArray[np.uint32]]()
    for archive in archives:
        numbers = [fields.setdefault(name, len(fields)) for name in archive.fields]
        field_of.append(np.array(numbers, np.uint32)[archive.field_of])
    names = ("offsets", "lengths", "is_first", "counts")
    arrays = {
        name: np.concatenate([getattr(archive, name) for archive in archives]) for name in names
    }
    kinds = npyarrays.join_kinds([archive.kinds for archive in archives])
    notes = tuple(note for archive in archives for note in archive.notes)
    return Members(
        tuple(fields), field_of=np.concatenate(field_of), kinds=kinds, notes=notes, **arrays
    )


def _pack(ways: dict[str, Members]) -> bytes:
    contents = [_pack_members(members) for members in ways.values()]
    return b"".join(len(content).to_bytes(8, "little") + content for content in contents)


def _pack_members(members: Members) -> bytes:
    arrays = [
        np.ascontiguousarray(getattr(members, name), dtype).tobytes()
        for name, dtype in ARRAYS.items()
    ]
    about = {
        "fields": members.fields,
        "arrays": npyarrays.kinds_to_json(members.kinds),
        "notes": members.notes[0] if members.notes else {},
    }
    return b"".join(
        [members.offsets.size.to_bytes(8, "little"), *arrays, json.dumps(about).encode("ascii")]
    )


def _unpack(content: bytes, size: int) -> dict[str, Members] | None:
    """Return the members that an index of an archive of ``size`` bytes holds; None if they cannot
    be."""
    ways, place = dict[str, Members](), 0
    for dots in DOTS:
        length = int.from_bytes(content[place : place + 8], "little")
        if (members := _unpack_members(content[place + 8 : place + 8 + length], size)) is None:
            return None
        ways[dots], place = members, place + 8 + length
        if place >= len(content):
            if place == len(content):
                return ways
            return None
    return None


def _unpack_members(content: bytes, size: int) -> Members | None:
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
        about = json.loads(content[place:])
        fields = about["fields"]
        kinds = npyarrays.kinds_from_json(about["arrays"])
        notes = {
            str(kind): (int(number), str(name)) for kind, (number, name) in about["notes"].items()
        }
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return None
    if not isinstance(fields, list) or not all(isinstance(name, str) for name in fields):
        return None
    members = Members(
        tuple(fields), counts=np.array([count], np.int64), kinds=kinds, notes=(notes,), **arrays
    )
    if members.fault(np.array([size])):
        return None
    return members


# --- from a manifest


def to_manifest(members: Members) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the values and arrays of a manifest."""
    about = {"fields": list(members.fields), "arrays": npyarrays.kinds_to_json(members.kinds)}
    return about, {name: getattr(members, name) for name in (*ARRAYS, "counts")}


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
    try:  # those of earlier versions have none
        kinds = npyarrays.kinds_from_json(listing.about.get("arrays", {}))
    except ValueError as error:
        raise listing.error(str(error)) from None
    members = Members(tuple(fields), counts=counts, kinds=kinds, notes=(), **arrays)
    if fault := members.fault(listing.files.sizes):
        raise listing.error(fault)
    return members
