"""NPY files: the rows of one or many as one sequence of records, or a file as a record.

Rows    file after file; the files may differ in rows (also 0), header, version, byte order and C or
        Fortran order.
Files   record i is file i. Where only the first axis varies a field is ragged, where others do it
        is a list of arrays.
Format  `npyheader.py`
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike

from gpuload import rawdecode, signalsafe
from gpuload.errors import GpuloadError, SpecError, missing_package
from gpuload.formats.npy import npyheader
from gpuload.formats.npy.headers import Headers
from gpuload.formats.npy.npyheader import Header
from gpuload.formats.pixels import warn_of_images
from gpuload.ragged import Ragged
from gpuload.sources.base import Source
from gpuload.sources.dtypes import joining
from gpuload.sources.filesource import Entries, FileSource, Opening, WholeFiles
from gpuload.sources.gaps import BadFiles, bad_files, check_on_error, tolerant
from gpuload.sources.layouts import describe_layout, layout_of
from gpuload.sources.leaf import Group, Indices, Values
from gpuload.sources.rows import FileTable, RecordFiles, RecordForm
from gpuload.spec import Layout, Shape, Spec, check_name, dtype_of
from gpuload.storage import manifest, open_storage
from gpuload.storage.extents import Storage
from gpuload.storage.files import Files, look_at
from gpuload.storage.wildcards import Paths, expand

# In files of numpy.save: dtypes unknown to it.
UNTYPED = {"void8": "float8_e4m3fn", "void16": "bfloat16"}
log = logging.getLogger("gpuload")


class NpySource(RecordFiles):
    """Rows of NPY files, or whole files of one shape; made by ``gl.npy``."""

    def __init__(self, table: FileTable, opening: Opening, headers: Headers) -> None:
        super().__init__(table, opening)
        self._headers = headers

    def _entries(self) -> Entries:
        return Entries(*self._headers.to_manifest(), bad=self._bad_path())


def npy(
    paths: Paths,
    field: str = "x",
    record: Literal["row", "file"] | None = None,
    *,
    dtype: DTypeLike | None = None,
    on_error: str = "raise",
) -> Source:
    """Return the records of NPY files.

    Args:
        paths: a path, a string with wildcards, or a list of these; a list keeps its order, a
            wildcard is sorted. Or a manifest of NPY files (``Source.index``).
        field: the name of the one field; the fields of a structured dtype have their own.
        record: ``"row"``: record i is ``array[i]``, file after file; ``"file"``: a record is a
            file. None: ``"row"``, and the log warns where several files look like an image each.
        dtype: the type of elements that a file stores without one: ``"bfloat16"``, which
            ``numpy.save`` writes as ``|V2``, or another dtype of the package ml_dtypes; of
            structured ones the whole dtype. None: as stored.
        on_error: ``"raise"``: a file that is cut short, or no NPY file, is an error. ``"replace"``,
            ``"skip"``: it is one record, which cannot be read, in its place among the others; pass
            ``on_error`` to the loader, too.

    Raises:
        FileError: a file is missing, a directory, or cannot be read.
        FormatError: a file, with ``on_error`` all of them, is no NPY file, is cut short, or holds
            Python objects.
        SpecError: dtypes or shapes of the files do not go together, a row is asked of an array
            without axes.
    """
    check_name(field)
    is_choice, record = record is None, check_record(record)
    check_on_error(on_error)
    if dtype is None:
        element = None
    else:
        element = _element(dtype)
    listing = manifest.load(paths, "npy")
    if listing is None:
        files, headers, bad = _read(paths, record, on_error)
    else:
        files, headers, bad = _from_manifest(listing)
    full_headers = headers
    if element is not None:
        full_headers = replace(
            headers,
            heads=tuple(
                _with_dtype(files.paths[headers.first(number)], head, element)
                for number, head in enumerate(headers.heads)
            ),
        )
    elif (dtype_of_first := headers.heads[0].dtype).kind == "V" and dtype_of_first.name in UNTYPED:
        log.warning(
            "%s: its elements have no type (%s). numpy.save writes those of ml_dtypes so; if they "
            "are, say which: "
            'gl.npy(..., dtype="%s")',
            *(files.paths[0], dtype_of_first, UNTYPED[dtype_of_first.name]),
        )
    opening = Opening(
        npy,
        {
            "paths": files.paths if listing is None else listing.path,
            "field": field,
            "record": record,
            "dtype": element,
            "on_error": on_error,
        },
    )
    _check_dtypes(files, full_headers, field)
    if record == "row":
        _check_rows(files, full_headers)
    if is_choice and len(full_headers.different()[0]) == 1:
        warn_of_images("npy", len(files), full_headers.heads[0].dtype, full_headers.shape(0))
    # Files that are alike have one layout: those of one head, or where a file is a record, of one
    # head and length.
    if record == "file":
        firsts, kind_of = full_headers.different()
    else:
        firsts, kind_of = (
            list(map(full_headers.first, range(len(full_headers.heads)))),
            full_headers.head_of,
        )
    layouts = [
        _layout(files.paths[number], full_headers, number, record, field) for number in firsts
    ]
    if record == "file" and len({full_headers.shape(number) for number in firsts}) > 1:
        leaf = NpyFiles(
            common_spec(layouts),
            open_storage(files),
            full_headers.offsets,
            [layouts[k] for k in kind_of.tolist()],
        )
        return RaggedNpySource(files, leaf, opening, bad, headers)
    forms = [
        _form(full_headers.heads[full_headers.head_of[number]], layout, record)
        for number, layout in zip(firsts, layouts, strict=True)
    ]
    different_forms = tuple(dict.fromkeys(forms))
    number_of_form = np.array([different_forms.index(form) for form in forms], np.int64)
    if record == "row":
        counts = full_headers.lengths.tolist()
    else:
        counts = [1] * len(files)
    table = FileTable(
        files,
        counts=counts,
        offsets=full_headers.offsets,
        forms=different_forms,
        form_of=number_of_form[kind_of],
        bad=bad,
    )
    return NpySource(table, opening, headers)


def check_record(record: Any) -> Literal["row", "file"]:
    """Return the kind of records: that of the argument, for None rows.

    Raises:
        SpecError: it is neither a row nor a file.
    """
    if record is None:
        return "row"
    if not isinstance(record, str) or record not in ("row", "file"):
        raise SpecError(
            f"record = {record!r}", cause='it is "row" or "file"', remedy="pass one of the two"
        )
    return record  # type: ignore[return-value]


def _read(paths: Paths, record: str, on_error: str) -> tuple[Files, Headers, BadFiles]:
    """Return files, their headers, and which of them cannot be opened."""
    with npyheader.naming_conversion(paths):
        all_paths = expand(paths)
        look = tolerant(npyheader.read_header, on_error, "gl.npy", len(all_paths))
        files, results = look_at(all_paths, npyheader.HEAD_BYTES, look)
        bad = bad_files(files, results, "gl.npy")
    first = bad.good(results)[0]
    # A bad file stands as one record of the form of the others; its bytes are never read.
    if record == "row" and first.shape:
        shape = (1, *first.shape[1:])
    else:
        shape = first.shape
    headers = Headers.of(bad.fill(results, replace(first, shape=shape, offset_bytes=0)))
    _check_ends(files, headers, bad)
    return files, headers, bad


def _check_ends(files: Files, headers: Headers, bad: BadFiles) -> None:
    """Refuse files in which another array follows the first one; log a warning if something else
    does.

    Raises:
        FormatError: a file holds several arrays.
        ChangedFileError, FileError: a file changed, or cannot be read.
    """
    num_more = files.sizes - headers.ends()
    numbers = [
        number for number in np.flatnonzero(num_more > 0).tolist() if number not in bad.errors
    ]
    for number in numbers:
        count = int(num_more[number])
        start = bytearray(min(count, len(npyheader.MAGIC)))
        with files.open_file(number) as handle:
            files.read(number, handle, memoryview(start), int(files.sizes[number]) - count)
        if start == npyheader.MAGIC:
            raise npyheader.joined_arrays(files.paths[number], count)
    if numbers:
        log.warning(
            "%s: %d bytes follow its array, and are not read; cause: its header says %s, and no "
            "more (%d files are so)",
            *(
                files.paths[numbers[0]],
                num_more[numbers[0]],
                headers.shape(numbers[0]),
                len(numbers),
            ),
        )


def _from_manifest(listing: manifest.Manifest) -> tuple[Files, Headers, BadFiles]:
    """Return the same of the files of a manifest, all of which can be opened."""
    headers = Headers.from_manifest(listing, "", listing.about.get("heads"), listing.files.sizes)
    return listing.files, headers, BadFiles(listing.files, {})


def _element(argument: DTypeLike) -> np.dtype[Any]:
    """Return the dtype that the user means, also by a name that the package ml_dtypes gives it."""
    try:
        return dtype_of(argument)
    except (TypeError, ValueError, SyntaxError) as error:
        cause = f"numpy.dtype does not take it: {error}"
    if isinstance(argument, str):
        try:
            dtype: np.dtype[Any] = np.dtype(
                getattr(signalsafe.import_package("ml_dtypes"), argument)
            )
            return dtype
        except ImportError as error:
            raise missing_package(
                "ml_dtypes", needed_for=f"gl.npy(..., dtype={argument!r})", extra="cpu", error=error
            ) from None
        except (AttributeError, TypeError):
            cause = "it is a dtype neither of NumPy nor of the package ml_dtypes"
    raise SpecError(
        f"dtype = {argument!r}"[:200], cause=cause, remedy='write "bfloat16", say, or leave it out'
    )


def _with_dtype(path: str, header: Header, dtype: np.dtype[Any]) -> Header:
    """Return a header with the type of elements that the file does not say."""
    if not _is_stored_as(dtype, header.dtype):
        raise SpecError(
            f"{path} holds {header.dtype}, not {dtype}",
            cause="dtype= is the type of elements that a file stores without one (|V2, say); it "
            "converts nothing",
            remedy="leave dtype= out; gl.ops.Cast converts in the loader",
        )
    return replace(header, dtype=dtype)


def _is_stored_as(dtype: np.dtype[Any], file_dtype: np.dtype[Any]) -> bool:
    if dtype == file_dtype:
        return True
    if (
        file_dtype.names is not None
        and dtype.names == file_dtype.names
        and dtype.itemsize == file_dtype.itemsize
    ):
        pairs = [(dtype.fields[name], file_dtype.fields[name]) for name in file_dtype.names]  # type: ignore[index]
        return all(
            field[1] == file_field[1] and _is_stored_as(field[0], file_field[0])
            for field, file_field in pairs
        )
    if file_dtype.shape and dtype.shape == file_dtype.shape:
        return _is_stored_as(dtype.base, file_dtype.base)
    is_untyped = file_dtype.kind == "V" and file_dtype.names is None and not file_dtype.shape
    return (
        is_untyped
        and dtype.names is None
        and dtype.itemsize == file_dtype.itemsize
        and not dtype.hasobject
    )


def _check_dtypes(files: Files, headers: Headers, field: str) -> None:
    first = headers.heads[0]
    for number, head in enumerate(headers.heads):
        if not same_fields(head.dtype, first.dtype):
            raise SpecError(
                f"{files.paths[headers.first(number)]} holds {head.dtype}, {files.paths[0]} holds "
                f"{first.dtype}",
                cause="the records of a source have one dtype; only byte order and padding may "
                "differ",
                remedy=joining("gl.npy", field, first.dtype, head.dtype),
            )


def same_fields(first: np.dtype[Any], second: np.dtype[Any]) -> bool:
    """Return True if two dtypes have the same fields; their byte order, padding and places may
    differ."""
    return first == second or _fields(first) == _fields(second)


def _fields(dtype: np.dtype[Any]) -> list[tuple[str, np.dtype[Any], Shape | None]] | str:
    try:
        return [
            (part.field.name, part.field.dtype, part.field.shape)
            for part in layout_of(dtype, field="x").parts
        ]
    except SpecError:  # it is no record's; `_layouts` will say so and name the file
        return dtype.str


def _check_rows(files: Files, headers: Headers) -> None:
    first = headers.heads[0]
    for number, head in enumerate(headers.heads):
        if not head.shape:
            raise SpecError(
                f"{files.paths[headers.first(number)]} holds one value without axes",
                cause="it has no rows",
                remedy='gl.npy(..., record="file") takes each file as a record',
            )
        if head.shape[1:] != first.shape[1:]:
            raise SpecError(
                f"{files.paths[headers.first(number)]} has rows of shape {head.shape[1:]}, "
                f"{files.paths[0]} of shape {first.shape[1:]}",
                cause="the rows of a source have one shape",
                remedy="make two sources, or take each file as a record with gl.npy(..., "
                'record="file")',
            )


def _layout(path: str, headers: Headers, number: int, record: str, field: str) -> Layout:
    """Return the layout of the records of a file."""
    head, shape = headers.heads[int(headers.head_of[number])], headers.shape(number)
    try:
        return layout_of(
            head.dtype, shape if record == "file" else shape[1:], field=field, fortran=head.fortran
        )
    except GpuloadError as error:
        raise error.within(path) from None


def _form(head: Header, layout: Layout, record: str) -> RecordForm:
    has_strides = (
        record == "row" and head.fortran and layout.record_bytes > 0
    )  # a whole file lies in one piece
    item_bytes = 0
    if has_strides:
        item_bytes = head.dtype.itemsize
    return RecordForm(layout, item_bytes)


class RaggedNpySource(FileSource):
    """NPY files of varying shape, each a record; made by ``gl.npy(..., record="file")``."""

    def __init__(
        self,
        files: Files,
        leaf: NpyFiles,
        opening: Opening,
        bad: BadFiles,
        headers: Headers | None = None,
    ) -> None:
        super().__init__(files, opening, (Group(leaf.spec, None),), leaf.storage)
        self._layouts, self._bad, self._headers = leaf.layouts, bad.numbers, headers
        self._leaves = (bad.gaps(leaf, bad.numbers, bad.numbers),)

    def __len__(self) -> int:
        return len(self._files)

    def _where(self, number: int) -> str:
        return f"{self._files.names[number]}, record 0"

    def _entries(self) -> Entries:
        if self._bad:
            bad = self._files.paths[self._bad[0]]
        else:
            bad = ""
        if self._headers is not None:
            return Entries(*self._headers.to_manifest(), bad=bad)
        return super()._entries()

    def _digest(self) -> str:
        return self._files.digest(
            [describe_layout(layout) for layout in self._layouts],
            *([self._bad] if self._bad else []),
        )


class NpyFiles(WholeFiles):
    """NPY files of varying shape."""

    def __init__(
        self, spec: Spec, storage: Storage, offsets: Indices, layouts: Sequence[Layout]
    ) -> None:
        super().__init__(
            spec, storage, offsets, np.array([layout.record_bytes for layout in layouts], np.int64)
        )
        self.storage, self.layouts = storage, layouts
        [first, *rest] = spec.fields
        elements = (
            first.ragged and not rest and first.dtype.itemsize and 0 not in (first.shape or ())
        )
        self.is_direct = bool(elements) and all(layout.is_direct for layout in layouts)

    def unpack(self, numbers: Indices, raw: Ragged) -> list[Values]:
        """Return the fields of records, in the order of ``spec``; where all are stored native and
        in C order, views."""
        if self.is_direct:
            return super().unpack(numbers, raw)
        records = [
            list(rawdecode.decode(np, record_bytes[None], self.layouts[number]).values())
            for number, record_bytes in zip(numbers.tolist(), raw, strict=True)
        ]
        # Three dots: a scalar stays an array of no axes, which NumPy would make an object of its
        # own.
        by_field = [[record[i][0, ...] for record in records] for i in range(len(self.spec))]
        return [
            Ragged.of(values, field.dtype) if field.ragged else values
            for field, values in zip(self.spec, by_field, strict=True)
        ]


def common_spec(layouts: Sequence[Layout]) -> Spec:
    """Return the spec with None for the axes that vary, and for the shape where the number of axes
    does."""
    fields = []
    for parts in zip(*(layout.parts for layout in layouts), strict=True):
        shapes = [part.field.fixed_shape for part in parts]
        same_ndim = len({len(shape) for shape in shapes}) == 1
        axes = tuple(
            lengths[0] if len(set(lengths)) == 1 else None
            for lengths in zip(*shapes, strict=same_ndim)
        )
        fields.append(parts[0].field.with_(shape=axes if same_ndim else None))
    return Spec(tuple(fields))
