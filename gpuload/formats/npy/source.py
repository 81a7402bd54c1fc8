"""NPY files: the rows of one or many as one sequence of records, or a file as a record.

Rows    file after file; the files may differ in rows (also 0), header, version, byte order and C or Fortran order.
Files   record i is file i. Where only the first axis varies a field is ragged, where others do it is a list of arrays.
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
from gpuload.formats.npy.npyheader import Header
from gpuload.ragged import Ragged
from gpuload.sources.base import Source
from gpuload.sources.filesource import FileSource, Opening, WholeFiles
from gpuload.sources.gaps import BadFiles, bad_files, check_on_error, tolerant
from gpuload.sources.layouts import describe_layout, layout_of
from gpuload.sources.leaf import Group, Indices, Values
from gpuload.sources.rows import FileTable, Form, RecordFiles
from gpuload.spec import Layout, Shape, Spec, check_name, dtype_of
from gpuload.storage import open_storage
from gpuload.storage.extents import Storage
from gpuload.storage.files import Files, Paths, expand, look_at

UNTYPED = {
    "void8": "float8_e4m3fn",
    "void16": "bfloat16",
}  # in files of numpy.save: dtypes unknown to it
log = logging.getLogger("gpuload")
Kind = tuple[np.dtype[Any], bool, tuple[int, ...]]  # how a file stores records: dtype, Fortran order, their shape


class NpySource(RecordFiles):
    """Rows of NPY files, or whole files of one shape; made by ``gl.npy``."""


def npy(
    paths: Paths,
    field: str = "x",
    record: Literal["row", "file"] = "row",
    *,
    dtype: DTypeLike | None = None,
    on_error: str = "raise",
) -> Source:
    """Return the records of NPY files.

    Args:
        paths: a path, a string with wildcards, or a list of these; a list keeps its order, a wildcard is sorted.
        field: the name of the one field; the fields of a structured dtype have their own.
        record: ``"row"``: record i is ``array[i]``, file after file; ``"file"``: a record is a file.
        dtype: the type of elements that a file stores without one: ``"bfloat16"``, which ``numpy.save`` writes as
            ``|V2``, or another dtype of the package ml_dtypes; of structured ones the whole dtype. None: as stored.
        on_error: ``"raise"``: a file that is cut short, or no NPY file, is an error. ``"replace"``, ``"skip"``: it is
            one record, which cannot be read, in its place among the others; pass ``on_error`` to the loader, too.

    Raises:
        FileError: a file is missing, a directory, or cannot be read.
        FormatError: a file, with ``on_error`` all of them, is no NPY file, is cut short, or holds Python objects.
        SpecError: dtypes or shapes of the files do not go together, a row is asked of an array without axes.
    """
    check_name(field)
    if not isinstance(record, str) or record not in ("row", "file"):
        raise SpecError(f"record = {record!r}", cause='it is "row" or "file"', remedy="pass one of the two")
    check_on_error(on_error)
    element = None if dtype is None else _element(dtype)
    with npyheader.naming_conversion(paths):
        all_paths = expand(paths)
        look = tolerant(npyheader.read_header, on_error, "gl.npy", len(all_paths))
        files, results = look_at(all_paths, npyheader.HEAD_BYTES, look)
        bad = bad_files(files, results, "gl.npy")
    first = bad.good(results)[0]
    shape = (1, *first.shape[1:]) if record == "row" and first.shape else first.shape
    headers = bad.fill(results, replace(first, shape=shape, offset_bytes=0))
    if element is not None:
        headers = [_with_dtype(path, header, element) for path, header in zip(files.paths, headers, strict=True)]
    elif first.dtype.kind == "V" and first.dtype.name in UNTYPED:
        log.warning(
            "%s: its elements have no type (%s). numpy.save writes those of ml_dtypes so; if they are, say which: "
            'gl.npy(..., dtype="%s")',
            *(files.paths[0], first.dtype, UNTYPED[first.dtype.name]),
        )
    opening = Opening(
        npy, {"paths": files.paths, "field": field, "record": record, "dtype": element, "on_error": on_error}
    )
    _check_dtypes(files, headers)
    if record == "row":
        _check_rows(files, headers)
    kinds = [_kind(header, record) for header in headers]
    layouts = _layouts(files, kinds, field)
    if record == "file" and len({shape for _, _, shape in kinds}) > 1:
        offsets = np.array([header.offset_bytes for header in headers], np.int64)
        leaf = NpyFiles(common_spec(list(layouts.values())), open_storage(files), offsets, [layouts[k] for k in kinds])
        return RaggedNpySource(files, leaf, opening, bad)
    return NpySource(replace(_table_of(files, headers, kinds, layouts, record), bad=bad), opening)


def _element(argument: DTypeLike) -> np.dtype[Any]:
    """Return the dtype that the user means, also by a name that the package ml_dtypes gives it."""
    try:
        return dtype_of(argument)
    except (TypeError, ValueError, SyntaxError) as error:
        cause = f"numpy.dtype does not take it: {error}"
    if isinstance(argument, str):
        try:
            dtype: np.dtype[Any] = np.dtype(getattr(signalsafe.import_package("ml_dtypes"), argument))
            return dtype
        except ImportError as error:
            raise missing_package(
                "ml_dtypes", needed_for=f"gl.npy(..., dtype={argument!r})", extra="cpu", error=error
            ) from None
        except (AttributeError, TypeError):
            cause = "it is a dtype neither of NumPy nor of the package ml_dtypes"
    raise SpecError(f"dtype = {argument!r}"[:200], cause=cause, remedy='write "bfloat16", say, or leave it out')


def _with_dtype(path: str, header: Header, dtype: np.dtype[Any]) -> Header:
    """Return a header whose elements have a type that the file does not say."""
    if not _is_stored_as(dtype, header.dtype):
        raise SpecError(
            f"{path} holds {header.dtype}, not {dtype}",
            cause="dtype= is the type of elements that a file stores without one (|V2, say); it converts nothing",
            remedy="leave dtype= out; gl.ops.Cast converts in the loader",
        )
    return replace(header, dtype=dtype)


def _is_stored_as(dtype: np.dtype[Any], file_dtype: np.dtype[Any]) -> bool:
    if dtype == file_dtype:
        return True
    if file_dtype.names is not None and dtype.names == file_dtype.names and dtype.itemsize == file_dtype.itemsize:
        pairs = [(dtype.fields[name], file_dtype.fields[name]) for name in file_dtype.names]  # type: ignore[index]
        return all(field[1] == file_field[1] and _is_stored_as(field[0], file_field[0]) for field, file_field in pairs)
    if file_dtype.shape and dtype.shape == file_dtype.shape:
        return _is_stored_as(dtype.base, file_dtype.base)
    is_untyped = file_dtype.kind == "V" and file_dtype.names is None and not file_dtype.shape
    return is_untyped and dtype.names is None and dtype.itemsize == file_dtype.itemsize and not dtype.hasobject


def _check_dtypes(files: Files, headers: Sequence[Header]) -> None:
    first = headers[0]
    for number, header in enumerate(headers):
        if not same_fields(header.dtype, first.dtype):
            raise SpecError(
                f"{files.paths[number]} holds {header.dtype}, {files.paths[0]} holds {first.dtype}",
                cause="the records of a source have one dtype; only byte order and padding may differ",
                remedy="convert one of them, or make two sources",
            )


def same_fields(first: np.dtype[Any], second: np.dtype[Any]) -> bool:
    """Return True if two dtypes have the same fields; their byte order, padding and places may differ."""
    return first == second or _fields(first) == _fields(second)


def _fields(dtype: np.dtype[Any]) -> list[tuple[str, np.dtype[Any], Shape | None]] | str:
    try:
        return [(part.field.name, part.field.dtype, part.field.shape) for part in layout_of(dtype, field="x").parts]
    except SpecError:  # it is no record's; `_layouts` will say so and name the file
        return dtype.str


def _check_rows(files: Files, headers: Sequence[Header]) -> None:
    for number, header in enumerate(headers):
        if not header.shape:
            raise SpecError(
                f"{files.paths[number]} holds one value without axes",
                cause="it has no rows",
                remedy='gl.npy(..., record="file") takes each file as a record',
            )
        if header.shape[1:] != headers[0].shape[1:]:
            raise SpecError(
                f"{files.paths[number]} has rows of shape {header.shape[1:]}, "
                f"{files.paths[0]} of shape {headers[0].shape[1:]}",
                cause="the rows of a source have one shape",
                remedy='make two sources, or take each file as a record with gl.npy(..., record="file")',
            )


def _kind(header: Header, record: str) -> Kind:
    return header.dtype, header.fortran, header.shape if record == "file" else header.shape[1:]


def _layouts(files: Files, kinds: Sequence[Kind], field: str) -> dict[Kind, Layout]:
    """Return the layout of the records of each kind of file."""
    layouts: dict[Kind, Layout] = {}
    for path, kind in zip(files.paths, kinds, strict=True):
        if kind not in layouts:
            dtype, fortran, shape = kind
            try:
                layouts[kind] = layout_of(dtype, shape, field=field, fortran=fortran)
            except GpuloadError as error:
                raise error.within(path) from None
    return layouts


def _table_of(
    files: Files, headers: Sequence[Header], kinds: Sequence[Kind], layouts: dict[Kind, Layout], record: str
) -> FileTable:
    def form(kind: Kind) -> Form:
        dtype, fortran, _ = kind
        has_strides = record == "row" and fortran and layouts[kind].record_bytes > 0  # a whole file lies in one piece
        return Form(layouts[kind], dtype.itemsize if has_strides else 0)

    form_of = {kind: form(kind) for kind in layouts}
    forms = tuple(dict.fromkeys(form_of.values()))
    return FileTable(
        files,
        counts=[header.shape[0] if record == "row" else 1 for header in headers],
        offsets=[header.offset_bytes for header in headers],
        forms=forms,
        form_of=np.array([forms.index(form_of[kind]) for kind in kinds], np.int64),
    )


class RaggedNpySource(FileSource):
    """NPY files of varying shape, each a record; made by ``gl.npy(..., record="file")``."""

    def __init__(self, files: Files, leaf: NpyFiles, opening: Opening, bad: BadFiles) -> None:
        super().__init__(files, opening, (Group(leaf.spec, None),), leaf.storage)
        self._layouts, self._bad = leaf.layouts, bad.numbers
        self._leaves = (bad.gaps(leaf, bad.numbers, bad.numbers),)

    def __len__(self) -> int:
        return len(self._files)

    def _where(self, number: int) -> str:
        return f"{self._files.names[number]}, record 0"

    def _digest(self) -> str:
        return self._files.digest(
            [describe_layout(layout) for layout in self._layouts], *([self._bad] if self._bad else [])
        )


class NpyFiles(WholeFiles):
    """NPY files of varying shape."""

    def __init__(self, spec: Spec, storage: Storage, offsets: Indices, layouts: Sequence[Layout]) -> None:
        super().__init__(spec, storage, offsets, np.array([layout.record_bytes for layout in layouts], np.int64))
        self.storage, self.layouts = storage, layouts
        [first, *rest] = spec.fields
        elements = first.ragged and not rest and first.dtype.itemsize and 0 not in (first.shape or ())
        self.is_direct = bool(elements) and all(layout.is_direct for layout in layouts)

    def unpack(self, numbers: Indices, raw: Ragged) -> list[Values]:
        """Return the fields of records, in the order of ``spec``; where all are stored native and in C order, views."""
        if self.is_direct:
            return super().unpack(numbers, raw)
        records = [
            list(rawdecode.decode(np, record_bytes[None], self.layouts[number]).values())
            for number, record_bytes in zip(numbers.tolist(), raw, strict=True)
        ]
        by_field = [[record[i][0, ...] for record in records] for i in range(len(self.spec))]
        return [
            Ragged.of(values, field.dtype) if field.ragged else values
            for field, values in zip(self.spec, by_field, strict=True)
        ]


def common_spec(layouts: Sequence[Layout]) -> Spec:
    """Return the spec with None for the axes that vary, and for the shape where the number of axes does."""
    fields = []
    for parts in zip(*(layout.parts for layout in layouts), strict=True):
        shapes = [part.field.fixed_shape for part in parts]
        same_ndim = len({len(shape) for shape in shapes}) == 1
        axes = tuple(lengths[0] if len(set(lengths)) == 1 else None for lengths in zip(*shapes, strict=same_ndim))
        fields.append(parts[0].field.with_(shape=axes if same_ndim else None))
    return Spec(tuple(fields))
