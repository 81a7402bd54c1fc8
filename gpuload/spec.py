"""Field, Spec and Layout: what each room tells the next about records.

A ``Field`` says what one record holds under a name; a ``Spec`` is the fields of a record; a ``Layout`` says where
the fields of a fixed-size record lie in its raw bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuload.errors import SpecError, UnknownFieldError

Shape = tuple[int | None, ...]
HOST_KINDS = "SUMmVO"  # bytes, text, datetimes: no array library on a GPU has them


@dataclass(frozen=True)
class Field:
    """One named value of a record.

    Attributes:
        name: the field's name.
        dtype: dtype of its elements, native byte order.
        shape: shape in one record; ``None`` for an axis that varies; ``None`` as a whole where the rank varies.
        encoded: True if the bytes (uint8, shape ``(None,)``) are an encoded image file.
        axes: what each axis is, ``"HWC"`` say, or ``""`` where that is not known.
    """

    name: str
    dtype: np.dtype[Any]
    shape: Shape | None
    encoded: bool = False
    axes: str = ""

    @property
    def uniform(self) -> bool:
        """True if every record has the same shape, so that a batch is one array."""
        return self.shape is not None and None not in self.shape

    @property
    def host_only(self) -> bool:
        """True for bytes, text and datetimes, which stay on the host whatever the device."""
        return self.dtype.kind in HOST_KINDS

    @property
    def fixed_shape(self) -> tuple[int, ...]:
        """The shape of every record.

        Raises:
            SpecError: the shape varies between records.
        """
        if self.shape is None or None in self.shape:
            raise SpecError(
                f"field {self.name!r} has shape {self.shape}",
                cause="its shape varies from record to record",
                remedy="bring the records to one shape, with gl.ops.Resize or gl.ops.RandomCrop for images",
            )
        return tuple(int(length) for length in self.shape if length is not None)

    def with_(self, **changes: Any) -> Field:
        """Return this field with some attributes changed."""
        return replace(self, **changes)

    def __str__(self) -> str:
        kind = "encoded image" if self.encoded else f"{self.dtype} {self.shape}"
        return f"{self.name}: {kind}{' ' + self.axes if self.axes else ''}"


@dataclass(frozen=True)
class Spec:
    """The fields of a record, in order; iterates over ``Field``, ``spec[name]`` is one of them."""

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        names = self.names
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SpecError(
                f"the field names {twice} occur twice among {list(names)}",
                cause="fields of one record need different names",
                remedy="rename one of them, with source.rename(old='new')",
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields, in order."""
        return tuple(field.name for field in self.fields)

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> Field:
        for field in self.fields:
            if field.name == name:
                return field
        raise UnknownFieldError(
            f"no field {name!r}",
            cause=f"the fields are {list(self.names)}",
            remedy="use one of these names",
        )

    def replacing(self, *changed: Field) -> Spec:
        """Return the spec with the fields of the same names replaced."""
        by_name = {field.name: field for field in changed}
        return Spec(tuple(by_name.get(field.name, field) for field in self.fields))

    def only(self, names: Iterable[str]) -> Spec:
        """Return the spec of the named fields, in this spec's order.

        Raises:
            UnknownFieldError: a name is not a field.
        """
        wanted = {self[name].name for name in names}
        return Spec(tuple(field for field in self.fields if field.name in wanted))

    def __str__(self) -> str:
        return "; ".join(map(str, self.fields))


@dataclass(frozen=True)
class Part:
    """Where one field lies in a raw record.

    Attributes:
        field: the field as it comes out: native byte order, C order.
        dtype: the dtype as stored, with its byte order.
        offset_bytes: where it begins in the record.
        fortran: True if the stored elements are in Fortran (first axis fastest) order.
    """

    field: Field
    dtype: np.dtype[Any]
    offset_bytes: int = 0
    fortran: bool = False

    @property
    def is_native(self) -> bool:
        """True if the stored bytes already are the field's elements in C order."""
        return self.dtype == self.field.dtype and self.dtype.isnative and not self.fortran


@dataclass(frozen=True)
class Layout:
    """Where the fields of a fixed-size raw record lie: ``record_bytes`` bytes, cut into ``parts``."""

    record_bytes: int
    parts: tuple[Part, ...]

    @property
    def is_direct(self) -> bool:
        """True if the raw bytes of a batch already are its one field, so that they need no decoding at all."""
        return len(self.parts) == 1 and self.parts[0].is_native and self._fills_record()

    def _fills_record(self) -> bool:
        part = self.parts[0]
        elements = int(np.prod(part.field.fixed_shape, dtype=np.int64))
        return part.offset_bytes == 0 and elements * part.dtype.itemsize == self.record_bytes
