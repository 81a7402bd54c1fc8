"""Arrays: members that are NPY files, of one shape or of several.

    each of one header                      an array ``[n, *shape]``; headers are compared as bytes
    of several lengths, of one dtype        `Ragged`
    of other axes that vary, of one dtype   a list of arrays

Shapes that vary are found by the walk through an archive, which sees each header, and are stored
with the places of members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gpuload.errors import FormatError, GpuloadError, RowError
from gpuload.formats.npy import npyheader
from gpuload.formats.npy.npyheader import (
    HEAD_BYTES,
    LARGEST_DATA_BYTES,
    LARGEST_HEADER_BYTES,
    Header,
)
from gpuload.formats.webdataset.tar import Read, TarMember
from gpuload.ragged import Ragged
from gpuload.sources.leaf import Array, Values
from gpuload.spec import Field, Shape

SUFFIX = ".npy"
MOST_HEADS = 1024  # headers, of each field, that are not parsed again


class ArrayKind(NamedTuple):
    """The arrays of one field.

    Attributes:
        head: the bytes of the first one up to its elements.
        shape: None for each axis that varies; None if their number does.
        is_alike: True if all begin with the same bytes.
    """

    head: bytes
    shape: Shape | None
    is_alike: bool

    @property
    def header(self) -> Header:
        """The header of the first array."""
        return npyheader.read_header("the array", LARGEST_DATA_BYTES, self.head)


# --- kinds, by a walk


def peek(name: str, length: int, read: Read) -> bytes:
    """Return the first bytes of a member that is an NPY file, its header among them; of others
    nothing."""
    if not name.lower().endswith(SUFFIX):
        return b""
    head = read(min(length, HEAD_BYTES))
    end = npyheader.end_of_header(head)
    if end <= HEAD_BYTES:
        return head
    return read(min(length, end, LARGEST_HEADER_BYTES))


def kinds_of(members: Iterable[tuple[str, TarMember]]) -> dict[str, ArrayKind]:
    """Return the kind of the arrays of each field, from the fields and heads of members; damaged
    ones are left out."""
    kinds, heads_of = dict[str, ArrayKind](), dict[str, set[bytes]]()
    for name, member in members:
        if not member.head:
            continue
        head = member.head[: npyheader.end_of_header(member.head)]
        heads = heads_of.setdefault(name, set())
        if head in heads:
            continue
        if len(heads) < MOST_HEADS:
            heads.add(head)
        try:
            header = npyheader.read_header(
                member.name, member.length, member.head, partial(_beginning, member.head)
            )
        except GpuloadError:  # an error of its record, when that is read
            continue
        kind = ArrayKind(head, header.shape, True)
        if name in kinds:
            kinds[name] = join_two(kinds[name], kind)
        else:
            kinds[name] = kind
    return kinds


def _beginning(data: bytes, length: int) -> bytes:
    return data[:length]


def join_kinds(archives: Sequence[Mapping[str, ArrayKind]]) -> dict[str, ArrayKind]:
    """Return the kinds of the fields of several archives."""
    kinds = dict[str, ArrayKind]()
    for archive in archives:
        for name, kind in archive.items():
            if name in kinds:
                kinds[name] = join_two(kinds[name], kind)
            else:
                kinds[name] = kind
    return kinds


def join_two(first: ArrayKind, second: ArrayKind) -> ArrayKind:
    """Return the kind of the arrays of both; those of another dtype than the first are errors of
    their records."""
    if first == second:
        return first
    if not _is_same_dtype(first.header.dtype, second.header.dtype):
        return first._replace(is_alike=False)
    shape: Shape | None = None
    if (
        first.shape is not None
        and second.shape is not None
        and len(first.shape) == len(second.shape)
    ):
        shape = tuple(a if a == b else None for a, b in zip(first.shape, second.shape, strict=True))
    return ArrayKind(first.head, shape, False)


def _is_same_dtype(first: np.dtype[Any], second: np.dtype[Any]) -> bool:
    return first.newbyteorder("=") == second.newbyteorder("=")


def kinds_to_json(kinds: Mapping[str, ArrayKind]) -> dict[str, Any]:
    """Return kinds in values that JSON has."""
    return {
        name: [kind.head.decode("latin-1"), kind.shape, kind.is_alike]
        for name, kind in kinds.items()
    }


def kinds_from_json(values: Any) -> dict[str, ArrayKind]:
    """Return the kinds of such values.

    Raises:
        ValueError: these are none.
    """
    if not isinstance(values, dict):
        raise ValueError("its kinds of arrays are none")
    kinds = dict[str, ArrayKind]()
    for name, value in values.items():
        try:
            head, shape, is_alike = value
            if not (shape is None or all(map(_is_axis, shape))) or not isinstance(is_alike, bool):
                raise ValueError
            kind = ArrayKind(
                head.encode("latin-1"), None if shape is None else tuple(shape), is_alike
            )
            header_shape = kind.header.shape
        except (ValueError, TypeError, AttributeError, FormatError):
            raise ValueError(f"the kind of the arrays {name!r} is none") from None
        if kind.is_alike and kind.shape != header_shape:
            raise ValueError(f"the kind of the arrays {name!r} contradicts itself")
        kinds[str(name)] = kind
    return kinds


def _is_axis(axis: Any) -> bool:
    return axis is None or (type(axis) is int and axis >= 0)


# --- values


def unpack_alike(field: Field, header: Header, head: bytes, raw: Ragged) -> list[Values]:
    """Return the arrays ``[n, *shape]`` of NPY files, all of which begin with the bytes of one
    header."""
    values = np.empty((len(raw), *header.shape), field.dtype)
    begin, num_bytes = len(head), len(head) + header.data_bytes
    for row, value in enumerate(raw):
        # The header is compared as bytes; it was parsed once, for the first record.
        if value.size != num_bytes or value[:begin].tobytes() != head:
            raise _shape_error(
                row, field, f"{header.dtype} {header.shape}", _header_of(row, field, value)
            )
        array = value[begin:].view(header.dtype)
        values[row] = array.reshape(header.shape, order="F" if header.fortran else "C")
    return [values]


def unpack_arrays(field: Field, raw: Ragged) -> list[Values]:
    """Return the arrays of NPY files of one dtype, in shapes of the field."""
    values = [_array_of(row, field, value) for row, value in enumerate(raw)]
    if field.uniform:
        return [np.stack(values) if values else np.empty((0, *field.fixed_shape), field.dtype)]
    if field.ragged:
        return [
            Ragged.of(values, field.dtype, tuple(length or 0 for length in (field.shape or ())[1:]))
        ]
    return [values]


def _array_of(row: int, field: Field, value: Array) -> Array:
    data, header = value.tobytes(), _header_of(row, field, value)
    if header.dtype.newbyteorder("=") != field.dtype or not _fits(header.shape, field.shape):
        raise _shape_error(row, field, f"{field.dtype} {field.shape}", header)
    array = np.frombuffer(data[header.offset_bytes :], header.dtype)
    shaped = array.reshape(header.shape, order="F" if header.fortran else "C")
    return np.ascontiguousarray(shaped, field.dtype).reshape(header.shape)


def _header_of(row: int, field: Field, value: Array) -> Header:
    """Return the header of an array, behind which nothing follows."""
    data = value.tobytes()
    try:
        header = npyheader.read_header(
            "the array", value.size, data[:HEAD_BYTES], partial(_beginning, data)
        )
    except FormatError as error:
        raise RowError(
            row, f"field {field.name!r} is no array", cause=error.cause, remedy=error.remedy
        ) from None
    if num_more := value.size - header.offset_bytes - header.data_bytes:
        raise RowError(
            row,
            f"field {field.name!r} has {num_more} bytes behind its array",
            cause="a member holds one array: of several that numpy.save appended only the first "
            "would be read",
            remedy="write each array to a member of its own",
        )
    return header


def _fits(shape: tuple[int, ...], expected: Shape | None) -> bool:
    if expected is None:
        return True
    return len(shape) == len(expected) and all(
        axis in (None, length) for length, axis in zip(shape, expected, strict=True)
    )


def _shape_error(row: int, field: Field, expected: str, header: Header) -> RowError:
    return RowError(
        row,
        f"field {field.name!r} is {header.dtype} {header.shape}, another array than {expected}",
        cause="the arrays of a field have one dtype, and the shapes that were there when the "
        "archives were indexed",
        remedy=f"write the arrays anew as {field.dtype}; or write a manifest anew if it is older "
        "than the archives",
    )
