"""IDX files: MNIST's format, an array in a file, and one file or several for each field of a
record.

Layout  Two zero bytes, a byte for the type of the elements (TYPES), a byte for the number of axes;
        the length of each axis as a big-endian uint32; the elements in C order, big-endian. Record
        i is ``array[i]``.
Packed  Files of gzip, as MNIST's are distributed, are unpacked once into the cache folder
        (`storage/unpack.py`).
Limits  A file that has more or fewer bytes than its header says is refused when it is opened.
Source  http://yann.lecun.com/exdb/mnist/, "The IDX file format"
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.errors import FormatError, GpuloadError, SpecError
from gpuload.formats.base import Beginning, Format, Match
from gpuload.sources.base import Source
from gpuload.sources.compose import Zipped, check_files
from gpuload.sources.filesource import Entries, Opening
from gpuload.sources.layouts import layout_of
from gpuload.sources.rows import FileTable, RecordFiles, RecordForm
from gpuload.sources.sourcefiles import SourceFiles
from gpuload.spec import check_name
from gpuload.storage import keptfile, manifest
from gpuload.storage.files import Files
from gpuload.storage.unpack import unpack_files, with_names
from gpuload.storage.wildcards import Paths, expand

TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
MOST_AXES = 255
USUAL_AXES = 32  # more than this is no IDX, when the format of a file is unknown
HEAD_BYTES = 4 + 4 * MOST_AXES
ONE_FIELD = "x"  # the name of the field of paths without a name


@dataclass(frozen=True)
class IdxHeader:
    """The header of an IDX file.

    Attributes:
        dtype: of the elements, as stored.
        shape: of the array, at least one axis.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def offset_bytes(self) -> int:
        """The byte of the file where the elements begin."""
        return 4 + 4 * len(self.shape)

    @property
    def num_bytes(self) -> int:
        """The bytes of the file."""
        return self.offset_bytes + math.prod(self.shape) * self.dtype.itemsize


def idx(paths: Paths | None = None, /, **fields: Paths) -> Source:
    """Return the records of IDX files, the fields side by side.

        gl.idx(image="train-images-idx3-ubyte.gz", label="train-labels-idx1-ubyte.gz")

    Args:
        paths: files of a single field, which is called ``"x"``.
        fields: for each field its files: a path, a string with wildcards, or a list of these; a
            list keeps its order, a wildcard is sorted. Files of gzip are unpacked once into the
            cache folder; the log says where. Or a manifest of such files (``Source.index``).

    Raises:
        FileError: a file is missing, a directory, or cannot be read; or there is no room for
            unpacked copies.
        FormatError: a file is no IDX file, or has another size than its header says, or is damaged
            gzip.
        SpecError: there is no field; the files of one field have different dtypes or row shapes;
            two fields have different numbers of records.
    """
    field_paths = dict(fields)
    form = 'gl.idx(image="train-images-idx3-ubyte.gz", label="train-labels-idx1-ubyte.gz")'
    if paths is not None:
        if ONE_FIELD in fields:
            raise SpecError(
                f"gl.idx with two fields {ONE_FIELD!r}",
                cause=f"paths without a name are the field {ONE_FIELD!r}",
                remedy=f"write {form}",
            )
        field_paths = {ONE_FIELD: paths, **fields}
    if not field_paths:
        raise SpecError(
            "gl.idx() without files", cause="each field has files", remedy=f"write {form}"
        )
    sources = [_field(name, files) for name, files in field_paths.items()]
    _check_lengths(sources)
    if len(sources) == 1:
        return sources[0]
    return IdxFields(*sources)


class IdxSource(RecordFiles):
    """One field of IDX files; made by ``gl.idx``.

    Attributes:
        originals: the files that were named; some may have been unpacked.
    """

    def __init__(
        self, table: FileTable, opening: Opening, originals: Sequence[str], header: IdxHeader
    ) -> None:
        super().__init__(table, opening)
        self.originals, self._header = originals, header

    def _entries(self) -> Entries:
        kind = next(
            number for number, dtype in TYPES.items() if np.dtype(dtype) == self._header.dtype
        )
        about = {"type": kind, "shape": list(self._header.shape[1:])}
        return Entries(about, {"counts": np.array(self._table.counts, np.int64)})

    def _place(self) -> str:
        if len(self.originals) == 1:
            return self.originals[0]
        return f"{len(self.originals)} files"

    @property
    def files(self) -> SourceFiles:
        """The files, and how many records each has."""
        return SourceFiles(self._files.paths, self._table.counts, originals=self.originals)


class IdxFields(Zipped):
    """Several fields of IDX files side by side; made by ``gl.idx``."""

    def _title(self) -> str:
        return "gl.idx"

    def _place(self) -> str:
        return ", ".join(part._place() for part in self._parts)

    def index(self, path: str | os.PathLike[str]) -> str:
        """Refuse a manifest of several fields: each field has one of its own."""
        names = self.spec.names
        calls = "; ".join(f"gl.idx({name}=...).index('{name}.manifest')" for name in names)
        fields = ", ".join(f"{name}='{name}.manifest'" for name in names)
        raise SpecError(
            f"the index of {self._line()} as {os.fspath(path)!r}",
            cause="a manifest lists the files of one field",
            remedy=f"index each field, {calls}; then gl.idx({fields}) opens them",
        )


def _field(name: str, paths: Paths) -> IdxSource:
    """Return the source of one field."""
    check_name(name)
    listing = manifest.load(paths, "idx")
    if listing is None:
        originals, files, headers = _read(paths)
    else:
        originals, files, headers = _from_manifest(listing)
    _check_alike(originals, headers)
    first = headers[0]
    try:
        layout = layout_of(first.dtype, first.shape[1:], field=name)
    except GpuloadError as error:
        raise error.within(originals[0]) from None
    table = FileTable(
        files,
        counts=[header.shape[0] for header in headers],
        offsets=[header.offset_bytes for header in headers],
        forms=(RecordForm(layout),),
        form_of=np.zeros(len(headers), np.int64),
    )
    argument: Any = tuple(originals)
    if listing is not None:
        argument = listing.path
    return IdxSource(table, Opening(idx, {name: argument}, name), originals, first)


def _read(paths: Paths) -> tuple[Sequence[str], Files, list[IdxHeader]]:
    """Return the files that are named, those that are read, and the header of each."""
    originals = expand(paths)
    places = unpack_files(originals)
    paths = [place.path if isinstance(place, keptfile.KeptFile) else place for place in places]
    called = dict(zip(paths, originals, strict=True))

    def read(path: str, size: int, head: bytes) -> IdxHeader:
        return _read_header(called[path], size, head, " unpacked" * (called[path] != path))

    files, headers = keptfile.look_at(places, HEAD_BYTES, read)
    return originals, with_names(files, originals), headers


def _from_manifest(listing: manifest.Manifest) -> tuple[Sequence[str], Files, list[IdxHeader]]:
    """Return the same of the files of a manifest; their headers differ in the number of records
    alone."""
    kind, shape = listing.about.get("type"), listing.about.get("shape")
    is_shape = (
        isinstance(shape, list)
        and len(shape) < MOST_AXES
        and all(type(n) is int and 0 <= n < 1 << 32 for n in shape)
    )
    if kind not in TYPES or not is_shape:
        raise listing.error("it holds no header of IDX files")
    counts = listing.numbers("counts", 0, 1 << 32).tolist()
    dtype, axes = np.dtype(TYPES[kind]), [int(length) for length in shape or ()]
    headers = [IdxHeader(dtype, (count, *axes)) for count in counts]
    if any(
        header.num_bytes != size
        for header, size in zip(headers, listing.files.sizes.tolist(), strict=True)
    ):
        raise listing.error("a file has another size than its records")
    return listing.files.paths, listing.files, headers


def _read_header(path: str, size: int, head: bytes, suffix: str) -> IdxHeader:
    """Return the header of a file, checked against its size."""
    if not head:
        raise _header_error(path, "the file is empty", "it was never written: copy it again")
    if len(head) < 4 or head[:2] != b"\0\0":
        if len(head) < 4:
            description = f"{len(head)} bytes, {head.hex(' ')}"
        else:
            description = f"it begins with {head[:4].hex(' ')}"
        raise _header_error(
            path, f"such a file begins with 00 00, a type and the number of axes; {description}"
        )
    if head[2] not in TYPES:
        types = ", ".join(f"{number:02x} ({dtype})" for number, dtype in TYPES.items())
        raise _header_error(path, f"the type of its elements is {head[2]:02x}; there are {types}")
    dtype, num_axes = np.dtype(TYPES[head[2]]), head[3]
    if not num_axes:
        raise _header_error(path, "it has no axes, so it has no records")
    if len(head) < 4 + 4 * num_axes:
        raise _header_error(
            path, f"a header of {num_axes} axes does not fit into its {size} bytes", "copy it again"
        )
    header = IdxHeader(dtype, struct.unpack_from(f">{num_axes}I", head, 4))
    num_bytes = header.num_bytes
    if size != num_bytes:
        shape = " x ".join(map(str, header.shape))
        raise _header_error(
            path,
            f"by its header ({shape} elements of {dtype.itemsize} bytes) it has {num_bytes} bytes, "
            f"and it has {size}{suffix}",
            "it was cut short, or something was added: copy it again",
        )
    return header


def _header_error(
    path: str, cause: str, remedy: str = "gl.open(path) finds out what it is"
) -> FormatError:
    return FormatError(f"{path} is no IDX file to read", cause=cause, remedy=remedy)


def _check_alike(paths: Sequence[str], headers: Sequence[IdxHeader]) -> None:
    """Raise ``SpecError`` if the records of the files of a field differ in dtype or shape."""
    first = headers[0]
    for path, header in zip(paths, headers, strict=True):
        if (header.dtype, header.shape[1:]) != (first.dtype, first.shape[1:]):
            raise SpecError(
                f"{path} has records of {header.dtype} {header.shape[1:]}, "
                f"{paths[0]} of {first.dtype} {first.shape[1:]}",
                cause="the files of one field have records of one dtype and shape",
                remedy="give each field its own files: gl.idx(image=..., label=...)",
            )


def _check_lengths(sources: Sequence[IdxSource]) -> None:
    """Refuse fields of different numbers of records, also file by file where they have as many
    files."""
    first = sources[0]
    for source in sources:
        pairs = [(source._place(), len(source), first._place(), len(first))]
        if len(source.originals) == len(first.originals):
            counts = source._table.counts, first._table.counts
            pairs += zip(source.originals, counts[0], first.originals, counts[1], strict=True)
        for path, count, first_path, first_count in pairs:
            if count != first_count:
                raise SpecError(
                    f"gl.idx: {source.spec.names[0]} has {count} records in {path}, "
                    f"{first.spec.names[0]} has {first_count} in {first_path}",
                    cause="record i is made of record i of each field",
                    remedy="name the files that go together, in one order",
                )
        if source is not first and len(source.originals) == len(first.originals) > 1:
            check_files("gl.idx", first.originals, source.originals)


def _sniff(beginning: Beginning) -> Match | None:
    """Return a match if the file has the size that its header says; the size of a compressed file
    is not known."""
    num_bytes = _file_bytes(beginning.head)
    # Four bytes of small numbers begin many other files: the size has to fit, too.
    if num_bytes is None or (num_bytes != beginning.num_bytes and not beginning.compression):
        return None
    title = "IDX"
    if beginning.compression:
        title = f"IDX in {beginning.compression}"
    return Match(title, "gl.idx(x=...)")


def _file_bytes(head: bytes) -> int | None:
    """Return how many bytes a file has that begins as IDX does; None for one that does not."""
    if (
        len(head) < 8
        or head[:2] != b"\0\0"
        or head[2] not in TYPES
        or not 1 <= head[3] <= USUAL_AXES
    ):
        return None
    lengths: list[int] = np.frombuffer(head, ">u4", min(head[3], (len(head) - 4) // 4), 4).tolist()
    if len(lengths) < head[3]:
        return None
    return 4 + 4 * head[3] + math.prod(lengths) * np.dtype(TYPES[head[2]]).itemsize


IDX = Format(
    "idx",
    idx,
    _sniff,
    records={
        "gl.idx(image=path, label=path)": "a record of MNIST's format, a file for each field, "
        "packed "
        "with gzip or not"
    },
    open_paths=lambda paths: idx(x=paths),
    compressions=("gzip",),
)
