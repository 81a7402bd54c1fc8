"""WebDataset: records are members of tar archives that have one name and several extensions, found
at random.

Layout   cat/1.jpg cat/1.cls cat/2.jpg ...: members with one name up to the first dot behind the
         last slash are a record; the part behind that dot is the field. Links, names with
         decimal points, members that do not lie side by side and files about the archive:
         `grouping.py`, `columns.py`.
Fields   images by their extension are encoded images; ``cls``, ``index`` and ``id`` whole numbers
         or words (`words.py`); ``npy`` arrays (`arrays.py`); ``txt``, ``text`` and ``json`` text,
         which is not parsed; all others bytes.
Access   any record by index, one positioned read a member. Where members lie is found once, by a
         walk through the headers of each archive (`tar.py`), and stored (`members.py`). 45 bytes a
         member stay in memory.
Packed   archives of gzip are unpacked once into the cache folder (`storage/unpack.py`).
Source   https://github.com/webdataset/webdataset
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np

from gpuload.errors import SpecError
from gpuload.formats.npy import npyheader
from gpuload.formats.webdataset import arrays, words
from gpuload.formats.webdataset.arrays import ArrayKind
from gpuload.formats.webdataset.columns import (
    IMAGES,
    SEPARATOR,
    Columns,
    check_fields,
    choose_dots,
    columns_of,
    keys_of,
    log_notes,
    places_of,
)
from gpuload.formats.webdataset.members import Members, from_manifest, members_of, to_manifest
from gpuload.ragged import Ragged
from gpuload.sources.classnames import AnyClasses, class_names
from gpuload.sources.columns import ColumnSource
from gpuload.sources.filesource import Entries, Opening, WholeFiles
from gpuload.sources.leaf import UINT8, Indices, Values
from gpuload.sources.names import RecordNames
from gpuload.spec import Field, Spec
from gpuload.storage import keptfile, manifest, open_storage
from gpuload.storage.extents import Extents, Storage
from gpuload.storage.files import Files
from gpuload.storage.unpack import unpack_files, with_names
from gpuload.storage.wildcards import Path, Paths, expand

BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
MOST_NAMES = 1 << 20  # that braces stand for
TEXTS, ARRAY = ("txt", "text", "transcript", "json", "jsn"), "npy"
FIRST_BYTES = 1 << 16  # of an array, that its header is looked for in


def webdataset(
    paths: Paths,
    fields: Sequence[str] | Mapping[str, str] | None = None,
    *,
    classes: AnyClasses | None = None,
) -> ColumnSource:
    """Return the records of WebDataset archives.

        gl.webdataset("train-{000000..000146}.tar", ["jpg", "cls"])
        gl.webdataset("train-*.tar", {"image": "jpg;png", "label": "cls"})

    Args:
        paths: a path, a string with wildcards or with braces ``{000..099}``, or a list of these. Or
            a manifest of such archives (``Source.index``).
        fields: the extensions that are read, in this order, or a dict from names of fields to
            extensions; by default those of the first record, and no record may have others.
            ``"jpg;png"`` is of each record the first of the two that it has.
        classes: the names of the classes in members ``.cls``, that of number 0 first, as of
            ``gl.images``: a list, a source, a mapping or a ``.json`` file. Names become numbers,
            and numbers are checked. Without it, names are texts.

    Raises:
        FormatError: a file is no tar archive, is damaged or cut short; the error names the byte.
        SpecError: an argument is wrong; a record lacks a field, has it twice, or has another one.
        FileError: a file is missing, a directory, or cannot be read.
    """
    fields_argument = check_fields(fields)
    class_list = class_names(classes, "gl.webdataset")
    listing = manifest.load(paths, "webdataset")
    if listing is None:
        originals: Sequence[str] = expand(_without_braces(paths))
        files, _ = keptfile.look_at(unpack_files(originals), 0, lambda path, size, head: None)
        files = with_names(files, originals)
        members = choose_dots(files, members_of(files), fields_argument)
        log_notes(files, members)
    else:
        originals, files = listing.files.paths, listing.files
        members = from_manifest(listing)
    if not members.offsets.size:
        raise SpecError(
            f"{originals[0]} holds no file",
            cause="a record is made of files",
            remedy="check the archives",
        )
    columns = columns_of(members, fields_argument)
    class_field = words.class_field(columns, class_list)
    heads = _heads_of(listing)
    if listing is not None and class_list is None:
        # Manifests of before do not have these heads: all such members were numbers.
        heads = {
            **{
                _key(extensions): b"0"
                for extensions in columns.values()
                if words.are_words(extensions)
            },
            **heads,
        }
    places = places_of(files, members, columns, is_strict=fields is None)
    argument: Any = tuple(originals)
    if listing is not None:
        argument = listing.path
    if class_list is None:
        options = {}
    else:
        options = {"classes": class_list}
    opening = Opening(
        webdataset, {"paths": argument, "fields": fields_argument or tuple(columns), **options}
    )
    return WebDatasetSource(files, opening, members, columns, places, heads, class_field)


class WebDatasetSource(ColumnSource):
    """Records of WebDataset archives; made by ``gl.webdataset``."""

    def __init__(
        self,
        files: Files,
        opening: Opening,
        members: Members,
        columns: Columns,
        places: Sequence[Extents],
        heads: dict[str, bytes],
        class_field: str | None,
    ) -> None:
        classes = opening.arguments.get("classes", ())
        storage, leaves, about = open_storage(files), list[MemberLeaf](), list[Any]()
        for (name, extensions), extents in zip(columns.items(), places, strict=True):
            kind = _array_kind(files, members, extensions, extents, heads)
            if words.are_words(extensions):
                head = heads.get(_key(extensions)) or _first_bytes(
                    files, extents, words.FIRST_BYTES
                )
                leaves.append(
                    _word_leaf(
                        name, extensions, storage, extents, head, classes * (name == class_field)
                    )
                )
            else:
                leaves.append(_leaf(name, extensions, storage, extents, kind))
            about.append(_key(extensions))
        if about == list(columns):
            about = []
        super().__init__(
            files,
            opening,
            storage,
            leaves,
            members.record_counts(),
            classes,
            about=[*about, *classes] or None,
        )
        self._members = members
        self._heads = {_key(columns[leaf.spec.names[0]]): leaf.head for leaf in leaves if leaf.head}

    def _record_names(self) -> RecordNames | None:
        return RecordNames(self._keys, len(self), self._files.paths, has_suffixes=False)

    def _keys(self) -> list[str]:
        return keys_of(self._files, self._members)

    def _entries(self) -> Entries:
        about, arrays = to_manifest(self._members)
        heads = {name: head.decode("latin-1") for name, head in self._heads.items()}
        return Entries({**about, "heads": heads}, arrays)


def _heads_of(listing: manifest.Manifest | None) -> dict[str, bytes]:
    """Return the header of the arrays of each field that a manifest of an earlier version has one
    of.

    Raises:
        FormatError: they are no bytes.
    """
    if listing is None:
        heads = {}
    else:
        heads = listing.about.get("heads", {})
    try:
        if isinstance(heads, dict):
            return {name: head.encode("latin-1") for name, head in heads.items()}
    except (AttributeError, ValueError):
        pass
    raise listing.error("it has no headers of arrays")  # type: ignore[union-attr]


def _without_braces(paths: Paths) -> Paths:
    """Return paths with each ``{000..099}`` written out; the numbers have as many digits as the
    first."""
    if not isinstance(paths, (str, list, tuple)):
        return paths
    if not isinstance(paths, str):
        return [name for path in paths for name in _names_of(path)]
    if BRACES.search(paths):
        return _names_of(paths)
    return paths


def _names_of(path: Any) -> list[Path]:
    if isinstance(path, str):
        match = BRACES.search(path)
    else:
        match = None
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
    return [
        name
        for n in numbers
        for name in _names_of(f"{path[: match.start()]}{n:0{width}d}{path[match.end() :]}")
    ]


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
        return self._storage.files.paths[self._places.files[number]], int(
            self._places.offsets[number]
        )


class WordLeaf(MemberLeaf):
    """Whole numbers, or words."""

    is_direct = False

    def __init__(
        self, field: Field, storage: Storage, extents: Extents, parse: words.Parse, head: bytes
    ) -> None:
        super().__init__(field, storage, extents)
        self._parse, self.head = parse, head

    def unpack(self, numbers: Indices, raw: Ragged) -> list[Values]:
        """Return the numbers, int64 ``[n]``, or the bytes of the texts."""
        return [self._parse(raw)]


class ArrayMemberLeaf(MemberLeaf):
    """NPY files of one dtype, all of one header, or of shapes that vary."""

    is_direct = False

    def __init__(self, field: Field, storage: Storage, extents: Extents, kind: ArrayKind) -> None:
        super().__init__(field, storage, extents)
        self._kind, self._header = kind, kind.header

    def unpack(self, numbers: Indices, raw: Ragged) -> list[Values]:
        """Return the arrays."""
        if self._kind.is_alike:
            return arrays.unpack_alike(self.spec.fields[0], self._header, self._kind.head, raw)
        return arrays.unpack_arrays(self.spec.fields[0], raw)


def _array_kind(
    files: Files,
    members: Members,
    extensions: Sequence[str],
    extents: Extents,
    heads: Mapping[str, bytes],
) -> ArrayKind | None:
    """Return the kind of the arrays of a column; None if it is none of arrays.

    Raises:
        FormatError: the first of its members is no array, nor was another one when the archives
            were looked through.
    """
    if (
        any(extension.rpartition(".")[2] != ARRAY for extension in extensions)
        or not extents.lengths.size
    ):
        return None
    kinds = [members.kinds[extension] for extension in extensions if extension in members.kinds]
    if kinds:
        return reduce(arrays.join_two, kinds)
    place = f"{files.names[int(extents.files[0])]}, field {SEPARATOR.join(extensions)!r}"
    first = partial(_first_bytes, files, extents)
    head = heads.get(extensions[0]) or first(FIRST_BYTES)
    header = npyheader.read_header(place, int(extents.lengths[0]), head, first)
    return ArrayKind(
        first(header.offset_bytes)
        if len(head) < header.offset_bytes
        else head[: header.offset_bytes],
        header.shape,
        True,
    )


def _first_bytes(files: Files, extents: Extents, length: int) -> bytes:
    """Return the first bytes of the first record of a field."""
    number = int(extents.files[0])
    first = bytearray(min(length, int(extents.lengths[0])))
    with files.open_file(number) as handle:
        files.read(number, handle, memoryview(first), int(extents.offsets[0]))
    return bytes(first)


def _key(extensions: Sequence[str]) -> str:
    """Return the extensions of a column as a call names them."""
    return SEPARATOR.join(extensions)


def _word_leaf(
    name: str,
    extensions: Sequence[str],
    storage: Storage,
    extents: Extents,
    head: bytes,
    classes: tuple[str, ...],
) -> WordLeaf:
    place = storage.files.paths[int(extents.files[0])]
    is_class = words.are_classes(extensions)
    field, parse = words.field_and_parse(name, place, head, classes or None, is_class=is_class)
    return WordLeaf(field, storage, extents, parse, head)


def _leaf(
    name: str,
    extensions: Sequence[str],
    storage: Storage,
    extents: Extents,
    array_kind: ArrayKind | None,
) -> MemberLeaf:
    kinds = [extension.rpartition(".")[2] for extension in extensions]
    if all(kind in TEXTS for kind in kinds):
        return MemberLeaf(Field(name, np.dtype(object), (), text="str"), storage, extents)
    if array_kind is not None:
        field = Field(name, array_kind.header.dtype.newbyteorder("="), array_kind.shape)
        return ArrayMemberLeaf(field, storage, extents, array_kind)
    if any(kind in (*words.KINDS, *TEXTS, ARRAY) for kind in kinds) and len(kinds) > 1:
        raise SpecError(
            f"field {name!r} is {SEPARATOR.join(extensions)}",
            cause="these are values of several kinds, and a field has one",
            remedy='join extensions of one kind: "jpg;png", say',
        )
    return MemberLeaf(
        Field(name or "bytes", UINT8, (None,), encoded=all(k in IMAGES for k in kinds)),
        storage,
        extents,
    )
