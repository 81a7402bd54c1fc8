"""WebDataset: records are members of tar archives that have one name and several extensions, found at random.

Layout   cat/1.jpg cat/1.cls cat/2.jpg ...: members with one name up to the first dot behind the last slash stand side
         by side and are a record; what stands behind that dot is the field.
Fields   images by their extension are encoded images; ``cls``, ``index`` and ``id`` whole numbers; ``npy`` arrays of
         one shape; ``txt``, ``text`` and ``json`` text, which is not parsed; all others bytes.
Access   any record by index, one positioned read a member. Where members lie is found once, by a walk through the
         headers of each archive (`tar.py`), and stored (`members.py`). 45 bytes a member stay in memory.
Packed   archives of gzip are unpacked once into the cache folder (`storage/unpack.py`).
Source   https://github.com/webdataset/webdataset
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gpuload.errors import RowError, SpecError
from gpuload.formats.npy import npyheader
from gpuload.formats.webdataset import tar
from gpuload.formats.webdataset.members import Members, from_manifest, key_of, members_of, places_of, to_manifest
from gpuload.images.head import SUFFIXES
from gpuload.ragged import Ragged
from gpuload.sources.columns import ColumnSource
from gpuload.sources.filesource import Entries, Opening, WholeFiles
from gpuload.sources.leaf import UINT8, Indices, Values
from gpuload.sources.names import RecordNames
from gpuload.spec import Field, Spec
from gpuload.storage import keptfile, manifest, open_storage
from gpuload.storage.extents import Extents, Storage
from gpuload.storage.files import Files, Path, Paths, expand
from gpuload.storage.unpack import unpack_files, with_names

BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
MOST_NAMES = 1 << 20  # that braces stand for
INTEGERS, TEXTS, ARRAY = ("cls", "cls2", "index", "inx", "id"), ("txt", "text", "transcript", "json", "jsn"), "npy"
IMAGES = tuple(suffix.lstrip(".") for suffix in SUFFIXES)
LONGEST_INTEGER = 20  # characters, with its sign
FIRST_BYTES = 1 << 16  # of an array, that its header is looked for in

First = Callable[[int], bytes]  # returns the first bytes of the first record of a field


def webdataset(paths: Paths, fields: Sequence[str] | None = None) -> ColumnSource:
    """Return the records of WebDataset archives.

        gl.webdataset("train-{000000..000146}.tar", ["jpg", "cls"])
        gl.webdataset("train-*.tar").rename(jpg="image", cls="label")

    Args:
        paths: a path, a string with wildcards or with braces ``{000..099}``, or a list of these. Or a manifest of such
            archives (``Source.index``).
        fields: the extensions that are read, in this order; by default those of the first record, and no record may
            have others.

    Raises:
        FormatError: a file is no tar archive, is damaged or cut short; the error names the byte.
        SpecError: an argument is wrong; a record lacks a field, has it twice, or has another one.
        FileError: a file is missing, a directory, or cannot be read.
    """
    if fields is not None and (isinstance(fields, str) or not fields or not all(isinstance(f, str) for f in fields)):
        raise SpecError(f"fields = {fields!r}", cause="it is a list of extensions", remedy='write ["jpg", "cls"]')
    listing = manifest.load(paths, "webdataset")
    if listing is None:
        originals: Sequence[str] = expand(_without_braces(paths))
        files, _ = keptfile.look_at(unpack_files(originals), 0, lambda path, size, head: None)
        files = with_names(files, originals)
        members, heads = members_of(files), dict[str, bytes]()
    else:
        originals, files = listing.files.paths, listing.files
        members, heads = from_manifest(listing), _heads_of(listing)
    if not members.offsets.size:
        raise SpecError(f"{originals[0]} holds no file", cause="a record is made of files", remedy="check the archives")
    names = tuple(fields or members.fields_of(0))
    places = places_of(files, members, names, is_strict=fields is None)
    argument = tuple(originals) if listing is None else listing.path
    opening = Opening(webdataset, {"paths": argument, "fields": names})
    return WebDatasetSource(files, opening, members, names, places, heads)


class WebDatasetSource(ColumnSource):
    """Records of WebDataset archives; made by ``gl.webdataset``."""

    def __init__(
        self,
        files: Files,
        opening: Opening,
        members: Members,
        names: Sequence[str],
        places: Sequence[Extents],
        heads: dict[str, bytes],
    ) -> None:
        storage, leaves = open_storage(files), list[MemberLeaf]()
        for name, extents in zip(names, places, strict=True):
            head = heads.get(name)
            first = partial(_first_bytes, files, extents) if head is None else partial(_beginning, head)
            leaves.append(_leaf(name, storage, extents, first))
        super().__init__(files, opening, storage, leaves, members.record_counts())
        self._first_places = places[0]
        self._members, self._heads = members, {leaf.spec.names[0]: leaf.head for leaf in leaves if leaf.head}

    def _record_names(self) -> RecordNames | None:
        return RecordNames(self._keys, len(self), self._files.paths, has_suffixes=False)

    def _keys(self) -> list[str]:
        """Return the key of each record; by a walk through the archives, for their indexes have no names."""
        places = self._first_places
        names = dict[tuple[int, int], str]()
        for number in range(len(self._files)):
            for name, offset, _ in tar.walk(self._files, number):
                names.setdefault((number, offset), name)
        pairs = zip(places.files.tolist(), places.offsets.tolist(), strict=True)
        return [key_of(names[pair])[0] for pair in pairs]

    def _entries(self) -> Entries:
        about, arrays = to_manifest(self._members)
        return Entries({**about, "heads": {name: head.decode("latin-1") for name, head in self._heads.items()}}, arrays)


def _heads_of(listing: manifest.Manifest) -> dict[str, bytes]:
    """Return the header of the arrays of each field that a manifest has one of.

    Raises:
        FormatError: they are no bytes.
    """
    heads = listing.about.get("heads")
    try:
        if isinstance(heads, dict):
            return {name: head.encode("latin-1") for name, head in heads.items()}
    except (AttributeError, ValueError):
        pass
    raise listing.error("it has no headers of arrays")


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


# --- fields


class MemberLeaf(WholeFiles):
    """The bytes of members of archives, as they are: images, bytes, text."""

    is_direct = True
    head = b""  # with which each record begins

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
            # Cut first: a member of another kind may have gigabytes, of which the error shows a few bytes.
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
        self._header, self.head = header, head

    def unpack(self, numbers: Indices, raw: Ragged) -> list[Values]:
        """Return the arrays ``[n, *shape]``."""
        header, values = self._header, np.empty((numbers.size, *self._header.shape), self.spec.fields[0].dtype)
        begin, num_bytes = len(self.head), len(self.head) + header.data_bytes
        for row, value in enumerate(raw):
            # The header is compared as bytes; it was parsed once, for the first record.
            if value.size != num_bytes or value[:begin].tobytes() != self.head:
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
    number = int(extents.files[0])
    first = bytearray(min(length, int(extents.lengths[0])))
    with files.open_file(number) as handle:
        files.read(number, handle, memoryview(first), int(extents.offsets[0]))
    return bytes(first)


def _beginning(head: bytes, length: int) -> bytes:
    return head[:length]


def _leaf(name: str, storage: Storage, extents: Extents, first: First) -> MemberLeaf:
    kind = name.rpartition(".")[2]
    if kind in INTEGERS:
        return IntegerLeaf(Field(name, np.dtype(np.int64), ()), storage, extents)
    if kind in TEXTS:
        return MemberLeaf(Field(name, np.dtype(object), (), text="str"), storage, extents)
    if kind == ARRAY:
        size = int(extents.lengths[0])
        place = f"{storage.files.paths[int(extents.files[0])]}, field {name!r}"
        header = npyheader.read_header(place, size, first(FIRST_BYTES), first)
        field = Field(name, header.dtype.newbyteorder("="), header.shape)
        return ArrayLeaf(field, storage, extents, header, first(header.offset_bytes))
    return MemberLeaf(Field(name or "bytes", UINT8, (None,), encoded=kind in IMAGES), storage, extents)
