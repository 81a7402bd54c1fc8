"""WebDataset: records are members of tar archives that have one name and several extensions, found at random.

Layout   cat/1.jpg cat/1.cls cat/2.jpg ...: members with one name up to the first dot behind the last slash stand side
         by side and are a record; what stands behind that dot is the field.
Fields   images by their extension are encoded images; ``cls``, ``index`` and ``id`` whole numbers; ``npy`` arrays of
         one shape; ``txt``, ``text`` and ``json`` text, which is not parsed; all others bytes.
Access   any record by index, one positioned read a member. When a source is opened the headers of all members are read,
         512 bytes each, so archives of large members open fast. 24 bytes a member stay in memory.
Packed   archives of gzip are unpacked once into the cache folder (`storage/unpack.py`).
Tars     ustar, GNU (long names, sizes in base 256) and PAX (path, size). Sparse members are refused; folders, links and
         members whose name begins with a dot are passed over. Each header has its checksum compared, and an archive
         must have its end, the blocks of zeros, and nothing behind it.
Source   https://github.com/webdataset/webdataset; POSIX.1-2017, pax; GNU tar, "Basic Format"
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpuload.errors import FormatError, RowError, SpecError
from gpuload.formats.npy import npyheader
from gpuload.images.head import SUFFIXES
from gpuload.ragged import Ragged
from gpuload.sources.columns import ColumnSource
from gpuload.sources.filesource import Opening, WholeFiles
from gpuload.sources.leaf import UINT8, Indices, Values
from gpuload.spec import Field, Spec
from gpuload.storage import keptfile, open_storage
from gpuload.storage.extents import Extents, Storage
from gpuload.storage.files import Files, Handle, Path, Paths, by_chunks, expand
from gpuload.storage.unpack import unpack_files, with_names

BLOCK_BYTES = 512
TAIL_BYTES = 1 << 20  # behind the end of an archive, that are looked at
LARGEST_NAME_BYTES = 1 << 16  # of a long name or of PAX records
BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
MOST_NAMES = 1 << 20  # that braces stand for
INTEGERS, TEXTS, ARRAY = ("cls", "cls2", "index", "inx", "id"), ("txt", "text", "transcript", "json", "jsn"), "npy"
IMAGES = tuple(suffix.lstrip(".") for suffix in SUFFIXES)
REGULAR, CONTIGUOUS = b"0\0", b"7"
LONGEST_INTEGER = 20  # characters, with its sign


@dataclass(frozen=True)
class Member:
    """A regular file in an archive: its name, and where its bytes lie."""

    name: str
    offset: int
    length: int


def webdataset(paths: Paths, fields: Sequence[str] | None = None) -> ColumnSource:
    """Return the records of WebDataset archives.

        gl.webdataset("train-{000000..000146}.tar", ["jpg", "cls"])
        gl.webdataset("train-*.tar").rename(jpg="image", cls="label")

    Args:
        paths: a path, a string with wildcards or with braces ``{000..099}``, or a list of these.
        fields: the extensions that are read, in this order; by default those of the first record, and no record may
            have others.

    Raises:
        FormatError: a file is no tar archive, is damaged or cut short; the error names the byte.
        SpecError: an argument is wrong; a record lacks a field or has another one.
        FileError: a file is missing, a directory, or cannot be read.
    """
    if fields is not None and (isinstance(fields, str) or not fields or not all(isinstance(f, str) for f in fields)):
        raise SpecError(f"fields = {fields!r}", cause="it is a list of extensions", remedy='write ["jpg", "cls"]')
    originals = expand(_without_braces(paths))
    files, _ = keptfile.look_at(unpack_files(originals), 0, lambda path, size, head: None)
    files = with_names(files, originals)
    archives = by_chunks(lambda chunk: [list(_walk(files, n)) for n in chunk], range(len(files)))
    names = None if fields is None else tuple(fields)
    counts, rows = list[int](), list[list[Member]]()
    for number, members in enumerate(archives):
        before = len(rows)
        for key, group in itertools.groupby(members, lambda member: _key(member.name)[0]):
            by_field = {_key(member.name)[1]: member for member in group}
            names = names or tuple(by_field)
            rows.append(_row(files.names[number], key, by_field, names, is_strict=fields is None))
        counts.append(len(rows) - before)
    storage, owners = open_storage(files), np.repeat(np.arange(len(files)), counts)
    if names is None:
        raise SpecError(f"{originals[0]} holds no file", cause="a record is made of files", remedy="check the archives")
    leaves = []
    for column, name in enumerate(names):
        members = [row[column] for row in rows]
        offsets = np.array([member.offset for member in members], np.int64)
        lengths = np.array([member.length for member in members], np.int64)
        extents = Extents(owners.astype(np.int64), offsets, lengths)
        leaves.append(_leaf(name, storage, extents, partial(_first_bytes, files, extents)))
    return ColumnSource(
        files, Opening(webdataset, {"paths": tuple(originals), "fields": names}), storage, leaves, counts
    )


def _without_braces(paths: Paths) -> Paths:
    """Return paths with each ``{000..099}`` written out; the numbers have as many digits as the first."""
    if not isinstance(paths, (str, list, tuple)):
        return paths
    if not isinstance(paths, str):
        return [name for path in paths for name in _names_of(path)]
    return _names_of(paths) if BRACES.search(paths) else paths


def _names_of(path: Any) -> list[Path]:
    match = BRACES.search(path) if isinstance(path, str) else None
    if match is None:
        return [path]
    first, last = int(match[1]), int(match[2])
    if not first <= last < first + MOST_NAMES:
        raise SpecError(
            f"{match[0]} in {path}",
            cause="it counts upwards, from the first to the last file",
            remedy="write {000..099}",
        )
    numbers = range(first, last + 1)
    width = len(match[1])
    return [name for n in numbers for name in _names_of(f"{path[: match.start()]}{n:0{width}d}{path[match.end() :]}")]


def _key(name: str) -> tuple[str, str]:
    """Return the name of a record, and the field that a member of it is."""
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    return f"{folder}{slash}{stem}", extension.lower()


def _row(file: str, key: str, by_field: dict[str, Member], names: Sequence[str], *, is_strict: bool) -> list[Member]:
    """Return the members of a record, in the order of the fields."""
    missing = [name for name in names if name not in by_field]
    foreign = [name for name in by_field if name not in names] if is_strict else []
    if missing or foreign:
        raise SpecError(
            f"{file}: {key} has {'no' if missing else 'also'} {(missing or foreign)[0]!r}",
            cause=f"the fields are {list(names)}, and each record has all of them; it has {list(by_field)}",
            remedy="name the fields that all records have: fields=[...]",
        )
    return [by_field[name] for name in names]


# --- tar


def _walk(files: Files, number: int) -> Iterator[Member]:
    """Yield the members of an archive that are fields of records.

    Raises:
        FormatError: it is damaged, cut short, or no tar.
    """
    path, size, at, long_name, pax = files.paths[number], int(files.sizes[number]), 0, "", dict[str, str]()
    with files.open_file(number) as handle:
        while at < size:
            if at + BLOCK_BYTES > size:
                raise _damage(path, at, "it ends inside of a header")
            header = _read(files, number, handle, at, BLOCK_BYTES)
            if not header.strip(b"\0"):
                if _read(files, number, handle, at, min(size - at, TAIL_BYTES)).strip(b"\0"):
                    raise _damage(
                        path, at, "it ends here, and something else follows", "join archives by a list of paths"
                    )
                break
            kind, length = header[156:157], _number(path, at, header[124:136])
            _check_sum(path, at, header)
            if "size" in pax and kind not in (b"x", b"g", b"L", b"K"):
                length = int(pax["size"]) if pax["size"].isascii() and pax["size"].isdigit() else -1
            begin = at + BLOCK_BYTES
            if not 0 <= length <= size - begin:
                raise _damage(path, at, f"a member has {length} bytes, and {size - begin} follow")
            if kind in (b"L", b"x") and length > LARGEST_NAME_BYTES:
                raise _damage(path, at, f"a name has {length} bytes")
            if kind == b"S" or any(name.startswith("GNU.sparse") for name in pax):
                raise _damage(
                    path, at, "a member is sparse, and its bytes lie apart", "write it with tar without --sparse"
                )
            if kind == b"L":
                long_name = _text(_read(files, number, handle, begin, length))
            elif kind == b"x":
                pax = _pax(path, at, _read(files, number, handle, begin, length))
            elif kind not in (b"g", b"K"):
                prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
                name = pax.get("path") or long_name or "/".join(filter(None, (prefix, _text(header[:100]))))
                if (kind in (b"0", b"\0", CONTIGUOUS)) and not name.rpartition("/")[2].startswith("."):
                    yield Member(name.removeprefix("./"), begin, length)
                long_name, pax = "", {}
            at = begin + -(-length // BLOCK_BYTES) * BLOCK_BYTES
        else:
            raise _damage(path, at, "it has no end, which is blocks of zeros")
        files.check_descriptor(number, handle)


def _read(files: Files, number: int, handle: Handle, offset: int, length: int) -> bytes:
    piece = bytearray(length)
    files.read(number, handle, memoryview(piece), offset)
    return bytes(piece)


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _number(path: str, at: int, raw: bytes) -> int:
    """Return a number of a header: octal digits, or in base 256 as GNU writes large ones."""
    if raw[0] & 0x80:
        is_negative = raw[0] == 0xFF
        return int.from_bytes(raw, "big", signed=True) if is_negative else int.from_bytes(b"\0" + raw[1:], "big")
    digits = raw.strip(b" \0")
    if not all(digit in b"01234567" for digit in digits):
        raise _damage(path, at, f"a number of its header is {digits!r}")
    return int(digits or b"0", 8)


def _check_sum(path: str, at: int, header: bytes) -> None:
    blank = header[:148] + b" " * 8 + header[156:]
    expected = _number(path, at, header[148:156])
    if expected not in (sum(blank), sum(blank) - 256 * sum(byte > 127 for byte in blank)):  # old tars add signed bytes
        raise _damage(path, at, f"its header has the sum {sum(blank)}, and says {expected}")


def _pax(path: str, at: int, raw: bytes) -> dict[str, str]:
    """Return the records of a PAX header, each of which is its length, a space, name=value, and a line end."""
    records, place = dict[str, str](), 0
    while place < len(raw):
        digits, _, _ = raw[place : place + 8].partition(b" ")
        end = place + int(digits) if digits.isdigit() else place
        name, is_pair, value = raw[place + len(digits) + 1 : end - 1].partition(b"=")
        if end <= place or end > len(raw) or not is_pair:
            raise _damage(path, at, "its PAX records are damaged")
        records[_text(name)] = _text(value)
        place = end
    return records


def _damage(path: str, at: int, cause: str, remedy: str = "it was cut short or damaged: copy it again") -> FormatError:
    return FormatError(f"{path}, byte {at}: this tar archive cannot be read", cause=cause, remedy=remedy)


# --- fields


class MemberLeaf(WholeFiles):
    """The bytes of members of archives, as they are: images, bytes, text."""

    is_direct = True

    def __init__(self, field: Field, storage: Storage, extents: Extents) -> None:
        super().__init__(Spec((field,)), storage, extents.offsets, extents.lengths)
        self._places = extents

    def _extents(self, numbers: Indices) -> Extents:
        return self._places.take(numbers)

    def origin(self, number: int) -> tuple[str, int] | None:
        """Return the archive that holds a record, and the byte where the member begins."""
        return self._storage.files.paths[self._places.files[number]], int(self._places.offsets[number])


class IntegerLeaf(MemberLeaf):
    """Whole numbers in decimal digits."""

    is_direct = False

    def unpack(self, numbers: Indices, raw: Ragged) -> list[Values]:
        """Return the numbers, int64 ``[n]``."""
        values = np.empty(numbers.size, np.int64)
        for row, value in enumerate(raw):
            text = value[: LONGEST_INTEGER + 2].tobytes().strip()
            if not re.fullmatch(rb"[+-]?\d{1,18}", text):
                raise RowError(row, f"field {self.spec.names[0]!r} holds {text!r}", cause="it is no whole number")
            values[row] = int(text)
        return [values]


class ArrayLeaf(MemberLeaf):
    """NPY files of one dtype and shape, that of the first record."""

    is_direct = False

    def __init__(self, field: Field, storage: Storage, extents: Extents, header: npyheader.Header, head: bytes) -> None:
        super().__init__(field, storage, extents)
        self._header, self._head = header, head

    def unpack(self, numbers: Indices, raw: Ragged) -> list[Values]:
        """Return the arrays ``[n, *shape]``."""
        header, values = self._header, np.empty((numbers.size, *self._header.shape), self.spec.fields[0].dtype)
        begin, num_bytes = len(self._head), len(self._head) + header.data_bytes
        for row, value in enumerate(raw):
            if value.size != num_bytes or value[:begin].tobytes() != self._head:
                raise RowError(
                    row,
                    f"field {self.spec.names[0]!r} is another array than {header.dtype} {header.shape}",
                    cause="all records have the dtype and shape of the first",
                    remedy="leave the field out: fields=[...]",
                )
            array = value[begin:].view(header.dtype)
            values[row] = array.reshape(header.shape, order="F" if header.fortran else "C")
        return [values]


def _first_bytes(files: Files, extents: Extents, length: int) -> bytes:
    """Return the first bytes of the first record of a field."""
    number, size = int(extents.files[0]), min(length, int(extents.lengths[0]))
    with files.open_file(number) as handle:
        return _read(files, number, handle, int(extents.offsets[0]), size)


def _leaf(name: str, storage: Storage, extents: Extents, first: Any) -> MemberLeaf:
    kind = name.rpartition(".")[2]
    if kind in INTEGERS:
        return IntegerLeaf(Field(name, np.dtype(np.int64), ()), storage, extents)
    if kind in TEXTS:
        return MemberLeaf(Field(name, np.dtype(object), (), text="str"), storage, extents)
    if kind == ARRAY:
        size = int(extents.lengths[0])
        place = f"{storage.files.paths[int(extents.files[0])]}, field {name!r}"
        header = npyheader.read_header(place, size, first(1 << 16), first)
        field = Field(name, header.dtype.newbyteorder("="), header.shape)
        return ArrayLeaf(field, storage, extents, header, first(header.offset_bytes))
    return MemberLeaf(Field(name or "bytes", UINT8, (None,), encoded=kind in IMAGES), storage, extents)
