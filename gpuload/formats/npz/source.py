"""NPZ files: archives of arrays; the names of these are the fields of a record.

Rows    record i is row i of each array, archive after archive, as in `npy.py`. Rows of stored
        arrays (numpy.savez) are read where they lie, of deflated ones (numpy.savez_compressed) from
        a copy that is made once (`copies.py`). A check sum is that of a whole array: of deflated
        ones it is verified when the copy is made, of stored ones by ``gpuload check`` alone, for a
        row is only a part.
Files   record i is archive i. All check sums are verified. Deflated arrays are inflated straight to
        their place in a batch. Where only the first axis varies a field is ragged, where others do
        it is a list of arrays.
Fields  the names of the arrays; those of a structured array are ``"array.field"``.
Schema  All archives have arrays of the same names, dtypes (but for byte order) and, for rows,
        shapes of rows.
Format  `archive.py`, and in it `npyheader.py`
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from gpuload.errors import FormatError, GpuloadError, RecordError, SpecError
from gpuload.formats.npy import npyheader
from gpuload.formats.npy.source import (
    NpyFiles,
    RaggedNpySource,
    check_record,
    common_spec,
    same_fields,
)
from gpuload.formats.npz.contents import Array, Contents, array_of
from gpuload.formats.npz.copies import unpack_arrays
from gpuload.formats.npz.listing import from_manifest, to_manifest
from gpuload.formats.pixels import warn_of_images
from gpuload.sources.base import Source
from gpuload.sources.compose import Zipped
from gpuload.sources.dtypes import joining
from gpuload.sources.filesource import Entries, Opening, open_again, write_index
from gpuload.sources.gaps import BadFiles, bad_files, check_on_error, tolerant
from gpuload.sources.layouts import describe_layout, layout_of
from gpuload.sources.leaf import Bytes, Indices, check_places
from gpuload.sources.rows import FileTable, FormLeaf, RecordFiles, RecordForm
from gpuload.sources.sourcefiles import SourceFiles
from gpuload.spec import Layout, Spec, list_of_names
from gpuload.storage import manifest, open_storage
from gpuload.storage.archive import STORE, ArchiveMember, Pieces, members
from gpuload.storage.extents import Storage
from gpuload.storage.files import Files, differ, look_at
from gpuload.storage.wildcards import Paths, expand

HEAD_BYTES = 4096  # the first read; a smaller archive is listed from it alone
SUFFIX = ".npy"
MAX_NAMES = 8  # names
log = logging.getLogger("gpuload")
Arrays = dict[str, Array]
Kind = tuple[
    np.dtype[Any], bool, tuple[int, ...]
]  # how an archive stores records: dtype, Fortran order, their shape


def npz(
    paths: Paths,
    record: Literal["row", "file"] | None = None,
    fields: str | Sequence[str] | None = None,
    *,
    on_error: str = "raise",
) -> Source:
    """Return the records of NPZ files; the names of the arrays are the fields.

    Args:
        paths: a path, a string with wildcards, or a list of these; a list keeps its order, a
            wildcard is sorted.
        record: ``"row"``: a record is row i of each array, file after file; ``"file"``: a record is
            a file. None: ``"row"``, and the log warns where several files look like an image each.
        fields: the names of the arrays that are wanted, in this order; None: all. Others are not
            looked at.
        on_error: ``"raise"``: a file that is no whole archive is an error. ``"replace"``,
            ``"skip"``: it is one record, which cannot be read, in its place among the others; pass
            ``on_error`` to the loader, too. Deflated rows that are damaged inside are an error all
            the same, when their copies are made.

    Raises:
        FileError: a file is missing, a directory, or cannot be read; there is no space for copies
            of deflated rows.
        FormatError: a file, with ``on_error`` all of them, is no archive, is damaged, or holds
            something else than arrays of numbers, bytes or text.
        SpecError: an array is not there; the arrays of the files do not go together; a row is asked
            of arrays without axes or of different lengths.
    """
    is_choice, record = record is None, check_record(record)
    check_on_error(on_error)
    names_argument = _check_selection(fields)
    listing = manifest.load(paths, "npz")
    if listing is None:
        with npyheader.naming_conversion(paths):
            all_paths = expand(paths)
            look = tolerant(partial(_arrays_in, names_argument), on_error, "gl.npz", len(all_paths))
            files, results = look_at(all_paths, HEAD_BYTES, look)
            bad = bad_files(files, results, "gl.npz")
        first = bad.good(results)[0]
        archives = bad.fill(
            results, {name: _in_place_of_bad(array, record) for name, array in first.items()}
        )
    else:
        files, archives = listing.files, from_manifest(listing, names_argument)
        first, bad = archives[0], BadFiles(files, {})
    names = list(names_argument or first)
    _check_alike(files, archives, names)
    _check_ends(files, archives)
    if record == "row":
        _check_rows(files, archives, names)
    if is_choice:
        _warn_of_images(archives, names)
    if listing is None:
        argument = files.paths
    else:
        argument = listing.path
    opening = Opening(
        npz, {"paths": argument, "record": record, "fields": names_argument, "on_error": on_error}
    )
    columns = [[arrays[name] for arrays in archives] for name in names]
    layouts = [
        _layouts(files, name, column, record) for name, column in zip(names, columns, strict=True)
    ]
    storage, unverified = open_storage(files), list[Contents]()
    if record == "row":
        parts: list[Source] = list(_rows(files, names, columns, layouts, storage, opening, bad))
        unverified = [Contents(storage, column, files.paths.__getitem__) for column in columns]
    else:
        parts = [
            _whole(files, column, field_layouts, storage, opening, bad)
            for column, field_layouts in zip(columns, layouts, strict=True)
        ]
    about = [
        ([describe_layout(layout) for layout in different], of.tolist())
        for different, of in map(_different, layouts)
    ]
    return NpzSource(
        files,
        parts,
        opening,
        (record, names, about, *([bad.numbers] if bad else [])),
        unverified,
        bad,
        names,
    )


def _warn_of_images(archives: Sequence[Arrays], names: Sequence[str]) -> None:
    """Warn once if an array of all archives has one shape and looks like an image."""
    for name in names:
        headers = [arrays[name].header for arrays in archives]
        is_alike = all(header.shape == headers[0].shape for header in headers)
        if is_alike and warn_of_images("npz", len(archives), headers[0].dtype, headers[0].shape):
            return


def _in_place_of_bad(array: Array, record: str) -> Array:
    """Return an array like another, which stands for a file that cannot be opened; it is never
    read."""
    shape = array.header.shape
    if record == "row" and shape:
        shape = (1, *shape[1:])
    # Stored and empty: `copies.py` makes no copy of it, and no check sum is compared.
    member = array.member._replace(method=STORE, packed_bytes=0, num_bytes=0)
    return Array(member, 0, replace(array.header, shape=shape), 0)


class NpzSource(Zipped):
    """The arrays of NPZ files side by side; made by ``gl.npz``."""

    def __init__(
        self,
        files: Files,
        parts: Sequence[Source],
        opening: Opening,
        about: object,
        unverified: Sequence[Contents],
        bad: BadFiles,
        names: Sequence[str],
    ) -> None:
        super().__init__(*parts)
        self._files, self._opening, self._about, self._unverified = (
            files,
            opening,
            about,
            unverified,
        )
        self._bad, self._names = bad, names
        if files.fingerprints:
            self._fingerprint = files.fingerprints.get(opening.identity, "")

    def __reduce__(self) -> tuple[Any, ...]:
        self.check_open()
        return open_again, (self._opening, self.fingerprint())

    def index(self, path: str | os.PathLike[str]) -> str:
        """Write a manifest of the files, and return its absolute path; see ``Source.index``."""
        self.check_open()
        if self._bad:
            entries = Entries(bad=self._files.paths[self._bad.numbers[0]])
        else:
            names = list(self._names)
            # Read anew: the source keeps a few numbers of each archive, and a manifest takes more.
            files, archives = look_at(
                self._files.paths, HEAD_BYTES, partial(_arrays_in, tuple(names))
            )
            for number in range(
                len(files)
            ):  # the bytes that were read now must be of the files that were opened
                if differ(self._files.stamp(number), files.stamp(number)):
                    self._files.check(number)
            entries = Entries(
                *to_manifest(names, [[arrays[name] for arrays in archives] for name in names])
            )
        return write_index(path, self._files, self._opening, entries, self.fingerprint())

    def _title(self) -> str:
        return "gl.npz"

    def _place(self) -> str:
        return self._parts[0]._place()

    @property
    def files(self) -> SourceFiles:
        """The archives; the check sums of whole arrays are looked at here alone."""
        return replace(self._parts[0].files, checks=(self._verify,))

    def _where(self, number: int) -> str:
        return self._parts[0]._where(number)

    def _digest(self) -> str:
        return self._files.digest(self._about, len(self))

    def _verify(self) -> Iterator[tuple[str, RecordError]]:
        """Yield file and error of each stored array with another checksum than its bytes; rows do
        not show it."""
        self.check_open()
        for contents in self._unverified:
            for number, path in enumerate(self._files.paths):
                if number in self._bad.errors:
                    continue
                try:
                    contents.verify(number)
                except RecordError as error:
                    yield path, error

    def close(self) -> None:
        """Let go of the files."""
        super().close()
        for part in self._parts:
            part.close()


class WholeArrays(RecordFiles):
    """One array of each archive, all of one shape."""

    def __init__(self, table: FileTable, opening: Opening, contents: Contents) -> None:
        self._contents = contents
        super().__init__(table, opening)

    def _leaf(
        self, form: RecordForm, storage: Storage, places: Indices, counts: Indices, offsets: Indices
    ) -> FormLeaf:
        return WholeLeaf(form, storage, places, counts, offsets, self._contents)


class WholeLeaf(FormLeaf):
    """Arrays of one form, an archive each; ``files`` are the numbers of the archives."""

    def __init__(
        self,
        form: RecordForm,
        storage: Storage,
        files: Indices,
        counts: Indices,
        offsets: Indices,
        contents: Contents,
    ) -> None:
        super().__init__(form, storage, files, counts, offsets)
        self._contents = contents

    def _read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        check_places(numbers, self.layout.record_bytes, out.size, begins)
        self._contents.read(self._files[numbers], out, begins)

    def origin(self, number: int) -> tuple[str, int] | None:
        """Return the archive of an array, and the byte where its member begins."""
        return self._contents.origin(int(self._files[number]))

    def advise(self, numbers: Indices) -> None:
        """Ask the system to have these arrays in memory soon."""
        self._contents.advise(self._files[numbers])


class VaryingLeaf(NpyFiles):
    """One array of each archive, of varying shape."""

    def __init__(
        self, spec: Spec, storage: Storage, layouts: Sequence[Layout], contents: Contents
    ) -> None:
        super().__init__(spec, storage, np.zeros(len(layouts), np.int64), layouts)
        self._contents = contents

    def _read(self, numbers: Indices, out: Bytes, begins: Indices) -> None:
        check_places(numbers, self.num_bytes(numbers), out.size, begins)
        self._contents.read(numbers, out, begins)

    def origin(self, number: int) -> tuple[str, int] | None:
        """Return the archive of an array, and the byte where its member begins."""
        return self._contents.origin(number)

    def advise(self, numbers: Indices) -> None:
        """Ask the system to have these arrays in memory soon."""
        self._contents.advise(numbers)


def _check_selection(fields: Any) -> tuple[str, ...] | None:
    """Return the names of the arrays that are wanted, None for all."""
    if fields is None:
        return None
    if isinstance(fields, str):
        names = [fields]
    else:
        names = fields
    return list_of_names("fields", names, form="a list of the names of arrays")


def _arrays_in(selection: tuple[str, ...] | None, path: str, size: int, head: bytes) -> Arrays:
    """Return the wanted arrays of one archive by their names."""
    with contextlib.closing(Pieces(path, size, head)) as pieces:
        by_name = _by_name(path, members(pieces))
        if not by_name:
            raise FormatError(
                f"{path} holds no array", cause="it is an empty archive", remedy="make it again"
            )
        missing = [name for name in selection or () if name not in by_name]
        if missing:
            raise SpecError(
                f"{path} has no array {missing[0]!r}",
                cause=f"it has {_list_names(by_name)}",
                remedy="use one of these names",
            )
        return {name: _array_of(pieces, name, by_name) for name in selection or by_name}


def _by_name(path: str, entries: dict[str, ArchiveMember]) -> dict[str, ArchiveMember]:
    """Return members by the names that `numpy.load` gives them; entries of folders are none."""
    by_name: dict[str, ArchiveMember] = {}
    for member in entries.values():
        if member.name.endswith("/") and not member.num_bytes:
            continue
        name = member.name.removesuffix(SUFFIX)
        if name in by_name:
            raise FormatError(
                f"{path} holds {name!r} with and without the suffix {SUFFIX}",
                cause="both would be one field",
                remedy="rename one of them in the archive",
            )
        if not name:
            raise FormatError(
                f"{path} holds an array without a name", cause="a field has one", remedy="name it"
            )
        by_name[name] = member
    return by_name


def _array_of(pieces: Pieces, name: str, by_name: Mapping[str, ArchiveMember]) -> Array:
    """Return an array; the error for another member names the arrays that there are."""
    try:
        return array_of(pieces, by_name[name])
    except FormatError as error:
        if arrays := [key for key in by_name if key != name and _is_array(pieces, by_name[key])]:
            error.remedy += f"; or name the arrays that are wanted: gl.npz(..., fields=[...]) of {_list_names(arrays)}"
        raise


def _is_array(pieces: Pieces, member: ArchiveMember) -> bool:
    try:
        array_of(pieces, member)
    except FormatError:
        return False
    return True


def _list_names(names: Any) -> str:
    all_names = list(names)
    suffix = ""
    if len(all_names) > MAX_NAMES:
        suffix = f" and {len(all_names) - MAX_NAMES} others"
    return f"{all_names[:MAX_NAMES]}{suffix}"


def _check_alike(files: Files, archives: Sequence[Arrays], names: list[str]) -> None:
    """Refuse archives with arrays of other names or dtypes than those of the first."""
    first, first_path = archives[0], files.paths[0]
    for path, arrays in zip(files.paths, archives, strict=True):
        if arrays.keys() != first.keys():
            common = [name for name in first if name in arrays]
            remedy = "make two sources"
            if common:
                remedy = f"take those that all have: gl.npz(..., fields={common})"
            raise SpecError(
                f"{path} has the arrays {_list_names(arrays)}, {first_path} has "
                f"{_list_names(first)}",
                cause="the records of a source have the same fields",
                remedy=remedy,
            )
        for name in names:
            dtype, first_dtype = arrays[name].header.dtype, first[name].header.dtype
            if not same_fields(dtype, first_dtype):
                raise SpecError(
                    f"{path}: array {name!r} holds {dtype}, in {first_path} it holds {first_dtype}",
                    cause="a field has one dtype in all records; only byte order and padding may "
                    "differ",
                    remedy=joining("gl.npz", name, first_dtype, dtype),
                )


def _check_ends(files: Files, archives: Sequence[Arrays]) -> None:
    """Log a warning if bytes follow the array in a member; an array that follows is refused when a
    file is opened."""
    ends = [
        (path, array)
        for path, arrays in zip(files.paths, archives, strict=True)
        for array in arrays.values()
        if array.num_more > 0
    ]
    if ends:
        path, array = ends[0]
        log.warning(
            "%s, member %r: %d bytes follow its array, and are not read; cause: its header says %s "
            "(%d members are so)",
            *(path, array.member.name, array.num_more, array.header.shape, len(ends)),
        )


def _check_rows(files: Files, archives: Sequence[Arrays], names: list[str]) -> None:
    """Refuse arrays without rows, with rows of another shape than in the first archive, or with
    more or fewer rows."""
    for path, arrays in zip(files.paths, archives, strict=True):
        for name in names:
            shape, first = arrays[name].header.shape, archives[0][name].header.shape
            if not shape:
                raise SpecError(
                    f"{path}: array {name!r} holds one value without axes",
                    cause="it has no rows",
                    remedy="leave it out with fields=[...], or take each file as a record: "
                    'gl.npz(..., record="file")',
                )
            if shape[1:] != first[1:]:
                raise SpecError(
                    f"{path}: array {name!r} has rows of shape {shape[1:]}, in {files.paths[0]} of "
                    f"shape {first[1:]}",
                    cause="the rows of a field have one shape",
                    remedy="make two sources, or take each file as a record: gl.npz(..., "
                    'record="file")',
                )
            if shape[0] != arrays[names[0]].header.shape[0]:
                raise SpecError(
                    f"{path}: array {name!r} has {shape[0]} rows, {names[0]!r} has "
                    f"{arrays[names[0]].header.shape[0]}",
                    cause="record i is made of row i of each array",
                    remedy="name arrays that go together, with fields=[...], or take each file as "
                    "a record: "
                    'gl.npz(..., record="file")',
                )


def _layouts(files: Files, name: str, column: Sequence[Array], record: str) -> list[Layout]:
    """Return for each archive how it stores the records of a field; archives that do it alike share
    the layout."""
    layouts: dict[Kind, Layout] = {}
    by_file = []
    for path, array in zip(files.paths, column, strict=True):
        header = array.header
        kind = header.dtype, header.fortran, header.shape if record == "file" else header.shape[1:]
        if kind not in layouts:
            try:
                # Equal layouts are one object: `_different` tells them apart by identity, for a
                # million archives.
                layouts[kind] = _layout(name, *kind)
            except GpuloadError as error:
                raise error.within(f"{path}, array {name!r}") from None
        by_file.append(layouts[kind])
    return by_file


def _layout(name: str, dtype: np.dtype[Any], fortran: bool, shape: tuple[int, ...]) -> Layout:
    """Return the layout of the rows of an array; fields of a structured one are called
    ``name.field``."""
    layout = layout_of(dtype, shape, field=name, fortran=fortran)
    if dtype.names is None:
        return layout
    parts = (
        replace(part, field=part.field.with_(name=f"{name}.{part.field.name}"))
        for part in layout.parts
    )
    return replace(layout, parts=tuple(parts))


def _different(layouts: Sequence[Layout]) -> tuple[list[Layout], Indices]:
    """Return the layouts without repeats, and for each archive the number of its own. Equal ones
    are one object."""
    by_id = {id(layout): layout for layout in layouts}
    number_of = {key: number for number, key in enumerate(by_id)}
    return list(by_id.values()), np.fromiter(
        (number_of[id(layout)] for layout in layouts), np.int64
    )


def _table_of(
    files: Files, column: Sequence[Array], layouts: Sequence[Layout], record: str, storage: Storage
) -> FileTable:
    """Return the table of one field: where its records lie in the archives."""
    different, form_of = _different(layouts)
    forms = []
    for number, layout in enumerate(different):
        header = column[int(np.argmax(form_of == number))].header
        has_strides = (
            record == "row" and header.fortran and layout.record_bytes > 0
        )  # a whole array lies in one piece
        row_step = 0
        if has_strides:
            row_step = header.dtype.itemsize
        forms.append(RecordForm(layout, row_step))
    return FileTable(
        files,
        counts=[array.header.shape[0] if record == "row" else 1 for array in column],
        offsets=[array.offset_bytes for array in column],
        forms=tuple(forms),
        form_of=form_of,
        storage=storage,
    )


def _rows(
    files: Files, names: list[str], columns: Sequence[Sequence[Array]], layouts: Sequence[Sequence[Layout]],
    storage: Storage, opening: Opening, bad: BadFiles,
) -> list[RecordFiles]:  # fmt: skip
    """Return a source of the rows of each field."""
    all_files, locations = unpack_arrays(files, list(zip(names, columns, strict=True)), storage)
    if all_files is not files:
        storage = open_storage(all_files)
    parts = []
    for column, field_layouts, (places, offsets) in zip(columns, layouts, locations, strict=True):
        table = _table_of(files, column, field_layouts, "row", storage)
        parts.append(
            RecordFiles(replace(table, offsets=offsets.tolist(), places=places, bad=bad), opening)
        )
    return parts


def _whole(
    files: Files,
    column: Sequence[Array],
    layouts: Sequence[Layout],
    storage: Storage,
    opening: Opening,
    bad: BadFiles,
) -> Source:
    """Return a source of one field, a record for each archive."""
    contents = Contents(storage, column, lambda number: f"{files.names[number]}, record 0")
    if len({array.header.shape for array in column}) > 1:
        leaf = VaryingLeaf(common_spec(_different(layouts)[0]), storage, layouts, contents)
        return RaggedNpySource(files, leaf, opening, bad)
    return WholeArrays(
        replace(_table_of(files, column, layouts, "file", storage), bad=bad), opening, contents
    )
