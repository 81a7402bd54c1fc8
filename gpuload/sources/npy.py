"""NPY files: the rows of one or many as one sequence of records, or a file as a record.

Rows    file after file; the files may differ in rows (also 0), header, version, byte order and C or Fortran order.
Files   record i is file i; where shapes differ, a field comes as a list of arrays.
Format  `npyheader.py`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuload import rawdecode
from gpuload.errors import SpecError
from gpuload.sources import maps, npyheader
from gpuload.sources.base import Fields, Source
from gpuload.sources.files import Files, Paths, expand, look_at
from gpuload.sources.layouts import layout_of
from gpuload.sources.maps import MappedReader
from gpuload.sources.npyheader import Header
from gpuload.sources.plain import PlainReader
from gpuload.sources.rows import Form, RecordFiles, Stored, still_open
from gpuload.spec import Shape, Spec


class NpySource(RecordFiles):
    """Rows of NPY files, or whole files of one shape; made by ``gl.npy``."""


def npy(paths: Paths, field: str = "x", record: Literal["row", "file"] = "row") -> Source:
    """Return the records of NPY files.

    Args:
        paths: a path, a string with wildcards, or a list of these; sorted.
        field: the name of the one field; the fields of a structured dtype have their own.
        record: ``"row"``: a record is what ``array[i]`` is, file after file; ``"file"``: a record is a file.

    Raises:
        FileError: a file is missing, a directory, or cannot be read.
        FormatError: a file is no NPY file, is cut short, or holds Python objects.
        SpecError: dtypes or shapes of the files do not go together, a row is asked of an array without axes.
    """
    if record not in ("row", "file"):
        raise SpecError(f"record = {record!r}", cause='it is "row" or "file"', remedy="pass one of the two")
    found, headers = look_at(expand(paths), npyheader.HEAD_BYTES, npyheader.read)
    _check_dtypes(found, headers)
    if record == "row":
        _check_rows(found, headers)
        return NpySource(_stored_rows(found, headers, field))
    if len({header.shape for header in headers}) == 1:
        return NpySource(_stored_files(found, headers, field))
    return RaggedNpySource(found, headers, field)


def _check_dtypes(files: Files, headers: Sequence[Header]) -> None:
    first = headers[0]
    for number, header in enumerate(headers):
        if header.dtype != first.dtype and _fields(header.dtype) != _fields(first.dtype):
            raise SpecError(
                f"{files.paths[number]} holds {header.dtype}, {files.paths[0]} holds {first.dtype}",
                cause="the records of a source have one dtype; only byte order and padding may differ",
                remedy="convert one of them, or make two sources",
            )


def _fields(dtype: np.dtype[Any]) -> list[tuple[str, np.dtype[Any], Shape | None]]:
    return [(part.field.name, part.field.dtype, part.field.shape) for part in layout_of(dtype, field="").parts]


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


def _stored_rows(files: Files, headers: Sequence[Header], field: str) -> Stored:
    def form(header: Header) -> Form:
        row_shape = header.shape[1:]
        layout = layout_of(header.dtype, row_shape, field=field)
        return Form(layout, row_shape, header.dtype.itemsize) if header.fortran else Form(layout)

    counts = np.array([header.shape[0] for header in headers], np.int64)
    return _stored(files, headers, counts, {_kind(header): form(header) for header in _kinds(headers)})


def _stored_files(files: Files, headers: Sequence[Header], field: str) -> Stored:
    def form(header: Header) -> Form:
        return Form(layout_of(header.dtype, header.shape, field=field, fortran=header.fortran))

    counts = np.ones(len(files), np.int64)
    return _stored(files, headers, counts, {_kind(header): form(header) for header in _kinds(headers)})


def _kind(header: Header) -> tuple[np.dtype[Any], bool]:
    return header.dtype, header.fortran


def _kinds(headers: Sequence[Header]) -> list[Header]:
    """Return one header of each kind."""
    return list({_kind(header): header for header in headers}.values())


def _stored(files: Files, headers: Sequence[Header], counts: NDArray[np.int64], by_kind: dict[Any, Form]) -> Stored:
    forms = tuple(dict.fromkeys(by_kind.values()))
    number_of = {kind: forms.index(form) for kind, form in by_kind.items()}
    offsets = np.array([header.offset_bytes for header in headers], np.int64)
    return Stored(files, counts, offsets, forms, np.array([number_of[_kind(header)] for header in headers], np.int64))


class RaggedNpySource(Source):
    """NPY files of varying shape, each a record; made by ``gl.npy(..., record="file")``."""

    def __init__(self, files: Files, headers: Sequence[Header], field: str) -> None:
        self._files, self._headers = files, headers
        self._layouts = {key: layout_of(key[0], key[2], field=field, fortran=key[1]) for key in map(_key, headers)}
        self.spec = _common_spec([layout.parts for layout in self._layouts.values()])
        starts = np.arange(len(files) + 1, dtype=np.int64)
        offsets = np.array([header.offset_bytes for header in headers], np.int64)
        self._reader: MappedReader | PlainReader | None = PlainReader(files, starts, offsets)
        if maps.supported():
            self._reader = MappedReader(files, starts, offsets, np.zeros(len(files), np.bool_))

    def __len__(self) -> int:
        return len(self._files)

    def read(self, indices: ArrayLike) -> Fields:
        """Return the records; a field whose shape varies comes as a list of arrays."""
        numbers = self.checked(indices)
        reader = still_open(self._reader)
        layouts = [self._layouts[_key(self._headers[number])] for number in numbers.tolist()]
        buffers = [np.empty(layout.record_bytes, np.uint8) for layout in layouts]
        reader.read(numbers, buffers)
        records = [rawdecode.decode(np, raw[None], layout) for raw, layout in zip(buffers, layouts, strict=True)]
        return {field.name: self._together(field.name, records) for field in self.spec}

    def _together(self, name: str, records: list[dict[str, Any]]) -> Any:
        values = [record[name][0, ...] for record in records]
        field = self.spec[name]
        if not field.uniform:
            return values
        return np.stack(values) if values else np.empty((0, *field.fixed_shape), field.dtype)

    def where(self, index: int) -> str:
        """Return the file."""
        return f"{self._files.names[index]}, record 0"

    def fingerprint(self) -> str:
        """Return a short text of the names and sizes of the files and of their headers."""
        return self._files.digest([_key(header) for header in self._headers])

    def close(self) -> None:
        """Let go of the files."""
        super().close()
        self._reader = None


def _key(header: Header) -> tuple[np.dtype[Any], bool, tuple[int, ...]]:
    return header.dtype, header.fortran, header.shape


def _common_spec(records: Sequence[Sequence[Any]]) -> Spec:
    """Return the spec with None for the axes that vary, and for the shape where the number of axes does."""
    fields = []
    for parts in zip(*records, strict=True):
        shapes = [part.field.fixed_shape for part in parts]
        same_ndim = len({len(shape) for shape in shapes}) == 1
        axes = tuple(lengths[0] if len(set(lengths)) == 1 else None for lengths in zip(*shapes, strict=same_ndim))
        fields.append(parts[0].field.with_(shape=axes if same_ndim else None))
    return Spec(tuple(fields))
