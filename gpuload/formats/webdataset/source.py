"""WebDataset: records are members of tar archives that have one name and several extensions, found at random.

Layout   cat/1.jpg cat/1.cls cat/2.jpg ...: members with one name up to the first dot behind the last slash stand side
         by side and are a record; what stands behind that dot is the field.
Fields   images by their extension are encoded images; ``cls``, ``index`` and ``id`` whole numbers or words
         (`words.py`); ``npy`` arrays of one shape; ``txt``, ``text`` and ``json`` text, which is not parsed; all
         others bytes.
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
from gpuload.formats.webdataset import words
from gpuload.formats.webdataset.members import Members, from_manifest, members_of, places_of, to_manifest
from gpuload.images.head import SUFFIXES
from gpuload.ragged import Ragged
from gpuload.sources.classnames import AnyClasses, class_names
from gpuload.sources.columns import ColumnSource
from gpuload.sources.filesource import Entries, Opening, WholeFiles
from gpuload.sources.leaf import UINT8, Indices, Values
from gpuload.spec import Field, Spec
from gpuload.storage import keptfile, manifest, open_storage
from gpuload.storage.extents import Extents, Storage
from gpuload.storage.files import Files, Path, Paths, expand
from gpuload.storage.unpack import unpack_files, with_names

BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
MOST_NAMES = 1 << 20  # that braces stand for
TEXTS, ARRAY = ("txt", "text", "transcript", "json", "jsn"), "npy"
IMAGES = tuple(suffix.lstrip(".") for suffix in SUFFIXES)
FIRST_BYTES = 1 << 16  # of an array, that its header is looked for in

First = Callable[[int], bytes]  # returns the first bytes of the first record of a field


def webdataset(paths: Paths, fields: Sequence[str] | None = None, *, classes: AnyClasses | None = None) -> ColumnSource:
    """Return the records of WebDataset archives.

        gl.webdataset("train-{000000..000146}.tar", ["jpg", "cls"])
        gl.webdataset("train-*.tar").rename(jpg="image", cls="label")

    Args:
        paths: a path, a string with wildcards or with braces ``{000..099}``, or a list of these. Or a manifest of such
            archives (``Source.index``).
        fields: the extensions that are read, in this order; by default those of the first record, and no record may
            have others.
        classes: the names of the classes in members ``.cls``, that of number 0 first, as of ``gl.images``: a list, a
            source, a mapping or a ``.json`` file. Names become numbers, and numbers are checked. Without it, names
            are texts.

    Raises:
        FormatError: a file is no tar archive, is damaged or cut short; the error names the byte.
        SpecError: an argument is wrong; a record lacks a field, has it twice, or has another one.
        FileError: a file is missing, a directory, or cannot be read.
    """
    if fields is not None and (isinstance(fields, str) or not fields or not all(isinstance(f, str) for f in fields)):
        raise SpecError(f"fields = {fields!r}", cause="it is a list of extensions", remedy='write ["jpg", "cls"]')
    class_list = class_names(classes, "gl.webdataset")
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
    class_field = words.class_field(names, class_list)
    if listing is not None and class_list is None:
        # Manifests of before do not have these heads: all such members were numbers.
        heads = {**{name: b"0" for name in names if name.rpartition(".")[2] in words.KINDS}, **heads}
    places = places_of(files, members, names, is_strict=fields is None)
    argument = tuple(originals) if listing is None else listing.path
    options = {} if class_list is None else {"classes": class_list}
    opening = Opening(webdataset, {"paths": argument, "fields": names, **options})
    return WebDatasetSource(files, opening, members, names, places, heads, class_field)


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
        class_field: str | None,
    ) -> None:
        classes = opening.arguments.get("classes", ())
        storage, leaves = open_storage(files), list[MemberLeaf]()
        for name, extents in zip(names, places, strict=True):
            head = heads.get(name)
            first = partial(_first_bytes, files, extents) if head is None else partial(_beginning, head)
            leaves.append(_leaf(name, storage, extents, first, classes if name == class_field else None))
        super().__init__(files, opening, storage, leaves, members.record_counts(), classes, about=classes or None)
        self._members, self._heads = members, {leaf.spec.names[0]: leaf.head for leaf in leaves if leaf.head}

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


class WordLeaf(MemberLeaf):
    """Whole numbers, or words."""

    is_direct = False

    def __init__(self, field: Field, storage: Storage, extents: Extents, parse: words.Parse, head: bytes) -> None:
        super().__init__(field, storage, extents)
        self._parse, self.head = parse, head

    def unpack(self, numbers: Indices, raw: Ragged) -> list[Values]:
        """Return the numbers, int64 ``[n]``, or the bytes of the texts."""
        return [self._parse(raw)]


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


def _leaf(name: str, storage: Storage, extents: Extents, first: First, classes: tuple[str, ...] | None) -> MemberLeaf:
    kind = name.rpartition(".")[2]
    if kind in words.KINDS:
        head, place = first(words.FIRST_BYTES), storage.files.paths[int(extents.files[0])]
        field, parse = words.field_and_parse(name, place, head, classes)
        return WordLeaf(field, storage, extents, parse, head)
    if kind in TEXTS:
        return MemberLeaf(Field(name, np.dtype(object), (), text="str"), storage, extents)
    if kind == ARRAY:
        size = int(extents.lengths[0])
        place = f"{storage.files.paths[int(extents.files[0])]}, field {name!r}"
        header = npyheader.read_header(place, size, first(FIRST_BYTES), first)
        field = Field(name, header.dtype.newbyteorder("="), header.shape)
        return ArrayLeaf(field, storage, extents, header, first(header.offset_bytes))
    return MemberLeaf(Field(name or "bytes", UINT8, (None,), encoded=kind in IMAGES), storage, extents)
