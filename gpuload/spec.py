"""Field, Spec and Layout: the description of records that rooms pass on.

A ``Field`` describes the value of a record under a name; a ``Spec`` is the fields of a record; a
``Layout`` says where the fields of a fixed-size record lie in its raw bytes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from dataclasses import dataclass, fields, replace
from dataclasses import field as attribute_of
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gpuload.errors import NEW_LINE, SpecError, UnknownFieldError, short_repr
from gpuload.redaction import printable

Shape = tuple[int | None, ...]
NUMBERS = "buif"  # kinds of dtype: boolean, unsigned, signed, floating
MOST_CHANNELS = 4  # of an image with axes that are not known
HOST_KINDS = "SUMmVO"  # bytes, text, datetimes: no array library on a GPU has them
# of an array; NumPy 1 has 32 and says so, NumPy 2 does not say
LARGEST_NDIM: int = getattr(np, "MAXDIMS", 64)
LARGEST_REAL_BYTES = 8  # nor numbers longer than 64 bits (x86's long double, 80 bits in 16 bytes)
ENCODED_BYTES = (np.dtype(np.uint8), (None,))  # the dtype and shape of a field of encoded images
TEXTS = ("str", "bytes")  # the types of the objects of a field of text
BOX_FORMATS = ("xyxy", "xywh", "cxcywh")  # as torchvision names them
POINT_FORMAT, MASK, INSTANCES = "xy", "mask", "masks"
# of `repr`: of a terminal; of a record beside other facts; of a spec
COLUMNS, MOST_FIELDS, MOST_LINES = 80, 8, 64
VOLUMES = ("DHWC", "DHW")  # orders of axes: of slices of an image, with channels or without
NORMALIZED = "normalized "  # before a format: x in parts of the image's width, y of its height
ZONES = ("UTC", "local")  # of times
KINDS = (
    MASK,
    INSTANCES,
    *(prefix + name for prefix in ("", NORMALIZED) for name in (*BOX_FORMATS, POINT_FORMAT)),
)


@dataclass(frozen=True)
class Field:
    """One named value of a record.

    Attributes:
        name: the field's name.
        dtype: dtype of its elements, native byte order; ``object`` for text of any length.
        shape: shape in one record; ``None`` for an axis that varies; ``None`` as a whole where the
            rank varies.
        encoded: True if the bytes (uint8, shape ``(None,)``) are an encoded image file.
        axes: the meaning of each axis, ``"HWC"`` say, or ``""`` where that is not known; ``"DHWC"``
            are slices of an image.
        text: ``"str"`` or ``"bytes"`` where the elements are such objects, of any length (dtype
            ``object``); else ``""``. Text of a fixed length (dtypes ``U20`` and ``S20``) is no text
            in this sense.
        kind: the meaning of the values for the image beside them, one of ``KINDS``: its ``"mask"``;
            ``"masks"`` of objects in it, ``[number, height, width]``; boxes (``"xyxy"``: left, top,
            right, bottom; ``"xywh"``: left, top, width, height; ``"cxcywh"``: centre, width,
            height) or points (``"xy"``), in pixels, or ``"normalized xyxy"`` in parts of width and
            height; ``""`` where that is not known. ``source.mark`` says it.
        rows_of: the name of the field of boxes of which each has a row here: labels, say; or
            ``""``.
        zone: ``"UTC"`` of times that are stored with a time zone, whichever it is; ``"local"`` of
            those that are stored without one; ``""`` where the format does not say it. Fields are
            equal without it.

    Raises:
        SpecError: an attribute is of another kind, or two of them contradict each other.
    """

    name: str
    dtype: np.dtype[Any]
    shape: Shape | None
    encoded: bool = False
    axes: str = ""
    text: str = ""
    kind: str = ""
    rows_of: str = ""
    zone: str = attribute_of(default="", compare=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        if not isinstance(self.text, str) or self.text not in ("", *TEXTS):
            raise self._attribute_error(
                "text", f"it is one of {TEXTS}, or empty", "write text='str' for text of any length"
            )
        object.__setattr__(self, "dtype", self._checked_dtype())
        object.__setattr__(self, "shape", self._checked_shape())
        if not isinstance(self.encoded, (bool, np.bool_)):
            raise self._attribute_error(
                "encoded", "it is True or False", "write encoded=True for the bytes of image files"
            )
        if self.text and not (self.uniform or self.ragged):
            raise self._attribute_error(
                "shape",
                "of text only the first axis may vary",
                "write (None,) for any number of texts",
            )
        if self.encoded and (self.dtype, self.shape) != ENCODED_BYTES:
            raise self._attribute_error(
                "encoded",
                f"encoded images are uint8 of shape (None,), and this field is {self.dtype} "
                f"{self.shape}",
                f"write gl.Field({self.name!r}, numpy.dtype('u1'), (None,), encoded=True)",
            )
        if not isinstance(self.axes, str):
            raise self._attribute_error(
                "axes", "it is a text with a letter for each axis", "write axes='HWC'"
            )
        if self.axes and self.shape is not None and len(self.axes) != len(self.shape):
            raise self._attribute_error(
                "axes",
                f"the shape {self.shape} has {len(self.shape)} axes",
                "name each axis, or none",
            )
        if not isinstance(self.kind, str) or self.kind not in ("", *KINDS):
            raise self._attribute_error(
                "kind", f"it is one of {KINDS}, or empty", "write kind='xyxy' for boxes"
            )
        if not isinstance(self.rows_of, str):
            raise self._attribute_error(
                "rows_of", "it is the name of a field of boxes, or empty", "write rows_of=''"
            )
        if not isinstance(self.zone, str) or self.zone not in ("", *ZONES):
            raise self._attribute_error(
                "zone", f"it is one of {ZONES}, or empty", "write zone='UTC'"
            )

    def _checked_dtype(self) -> np.dtype[Any]:
        remedy = "write numpy.dtype('f4'), say"
        try:
            dtype = dtype_of(self.dtype)
        except (TypeError, ValueError, SyntaxError) as error:
            raise self._attribute_error(
                "dtype", f"numpy.dtype does not take it: {error}", remedy
            ) from None
        if (dtype.kind == "O") != bool(self.text):
            cause = "the objects of a field are text of any length: str or bytes"
            raise self._attribute_error(
                "dtype", cause, f"write gl.Field({self.name!r}, object, (), text='str')"
            )
        if (
            (dtype.hasobject and not self.text)
            or dtype.names is not None
            or dtype.subdtype is not None
        ):
            raise self._attribute_error(
                "dtype", "a field has one dtype, of numbers, text or bytes", remedy
            )
        if not dtype.isnative:
            native = dtype.newbyteorder("=").str
            cause = "a field comes out in the byte order of this machine; gpuload.spec.Part says how it is stored"
            raise self._attribute_error("dtype", cause, f"write numpy.dtype({native!r})")
        return dtype

    def _checked_shape(self) -> Shape | None:
        if self.shape is None:
            return None
        if not isinstance(self.shape, (tuple, list)) or not all(
            n is None or is_whole(n) for n in self.shape
        ):
            if is_whole(self.shape):
                example = f"({self.shape},)"
            else:
                example = "(None, None, 3)"
            raise self._attribute_error(
                "shape",
                "it is a tuple of lengths, None for an axis that varies; None as a whole where the "
                "rank varies",
                f"write gl.Field({self.name!r}, {self.dtype.str!r}, {example})",
            )
        return tuple(None if n is None else int(n) for n in self.shape)

    def _attribute_error(self, attribute: str, cause: str, remedy: str) -> SpecError:
        value = getattr(self, attribute)
        return SpecError(
            f"gl.Field({self.name!r}) with {attribute}={value!r}", cause=cause, remedy=remedy
        )

    @cached_property
    def uniform(self) -> bool:
        """True if every record has the same shape, so that a batch is one array."""
        return self.shape is not None and None not in self.shape

    @cached_property
    def ragged(self) -> bool:
        """True if only the first axis varies, so that a batch is one `Ragged`: encoded files,
        texts, sequences."""
        return self.shape is not None and self.shape[:1] == (None,) and None not in self.shape[1:]

    @cached_property
    def stored(self) -> Field:
        """The field as leaves read it and caches keep it: of text the bytes, uint8 ``(None,)``, as
        `strings` has it."""
        if self.text:
            return replace(self, dtype=ENCODED_BYTES[0], shape=ENCODED_BYTES[1], axes="", text="")
        return self

    @property
    def holds_boxes(self) -> bool:
        """True if the field is marked as boxes."""
        return self.kind.removeprefix(NORMALIZED) in BOX_FORMATS

    @property
    def holds_points(self) -> bool:
        """True if the field is marked as points."""
        return self.kind.removeprefix(NORMALIZED) == POINT_FORMAT

    @property
    def is_marked(self) -> bool:
        """True if the field belongs to an image beside it: its mask, boxes, points, or rows that go
        with boxes."""
        return bool(self.kind or self.rows_of)

    @property
    def is_volume(self) -> bool:
        """True if the field holds slices of an image along its first axis: it is marked so, or it
        has four axes."""
        if self.shape is None or self.encoded:
            return False
        return self.axes in VOLUMES or (
            len(self.shape) == 4 and not self.axes and self.dtype.kind in NUMBERS
        )

    @property
    def may_be_image(self) -> bool:
        """True if the field holds encoded images, or numbers along three axes."""
        return self.encoded or (
            self.shape is not None and len(self.shape) == 3 and self.dtype.kind in NUMBERS
        )

    @property
    def is_channels_first(self) -> bool:
        """True if the three axes are CHW, or not known and of at most 4 channels before an axis
        that is longer."""
        if self.axes or self.shape is None or len(self.shape) != 3:
            return self.axes == "CHW"
        first, _, last = self.shape
        return (
            first is not None and first <= MOST_CHANNELS and (last is None or last > MOST_CHANNELS)
        )

    @property
    def unmarked(self) -> Field:
        """The field without its mark: an array like any other, no mask, box or point of an
        image."""
        if self.is_marked:
            return self.with_(kind="", rows_of="")
        return self

    @property
    def mark(self) -> str:
        """The text by which ``source.mark`` says ``kind`` and ``rows_of``: ``"xy with boxes"``,
        say."""
        return " ".join(filter(None, [self.kind, self.rows_of and f"with {self.rows_of}"]))

    @property
    def has_rows(self) -> bool:
        """True if every record has the same number of bytes, so that a batch is rows of raw
        memory."""
        return self.uniform and not self.text

    @property
    def host_only(self) -> bool:
        """True for bytes, text, datetimes and long doubles, which stay on the host on any
        device."""
        if self.dtype.kind == "c":
            real_bytes = self.dtype.itemsize // 2
        else:
            real_bytes = self.dtype.itemsize
        return self.dtype.kind in HOST_KINDS or real_bytes > LARGEST_REAL_BYTES

    @cached_property
    def fixed_shape(self) -> tuple[int, ...]:
        """The shape of every record.

        Raises:
            SpecError: the shape varies between records.
        """
        if self.shape is None or None in self.shape:
            raise SpecError(
                f"field {self.name!r} has shape {self.shape}",
                cause="its shape varies from record to record",
                remedy="bring the records to one shape, with gl.ops.Resize or gl.ops.RandomCrop "
                "for images",
            )
        return tuple(int(length) for length in self.shape if length is not None)

    def with_(self, **changes: Any) -> Field:
        """Return this field with some attributes changed.

        Raises:
            SpecError: there is no such attribute, or it is of another kind.
        """
        attributes = (
            "name",
            "dtype",
            "shape",
            "encoded",
            "axes",
            "text",
            "kind",
            "rows_of",
            "zone",
        )
        unknown = sorted(changes.keys() - set(attributes))
        if unknown:
            raise SpecError(
                f"with_ got {unknown}",
                cause="a field has no such attribute",
                remedy=f"use {', '.join(attributes)}",
            )
        if "dtype" in changes and "text" not in changes and np.dtype(changes["dtype"]).kind != "O":
            changes["text"] = ""
        if np.dtype(changes.get("dtype", self.dtype)).kind != "M":
            changes["zone"] = ""
        return replace(self, **changes)

    def __repr__(self) -> str:
        """Return a call that makes the field, without the arguments that have their defaults."""
        values = (
            (attribute.name, getattr(self, attribute.name), attribute.default)
            for attribute in fields(self)[3:]
        )
        arguments = [f", {name}={value!r}" for name, value, default in values if value != default]
        return f"gl.Field({self.name!r}, {str(self.dtype)!r}, {self.shape}{''.join(arguments)})"

    def __str__(self) -> str:
        if self.encoded:
            kind = "encoded image"
        else:
            kind = f"{self.text or self.dtype} {self.shape}"
        return " ".join(filter(None, [f"{printable(self.name)}: {kind}", self.axes, self.mark]))


@dataclass(frozen=True)
class Spec:
    """The fields of a record, in order; iterates over ``Field``, ``spec[name]`` is one of them.

    Raises:
        SpecError: it is made of something else than fields, or two of them have one name.
    """

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        fields = self.fields
        if not isinstance(fields, (tuple, list)) or not all(
            isinstance(field, Field) for field in fields
        ):
            raise SpecError(
                f"gl.Spec of {fields!r}",
                cause="a spec is made of a tuple of gl.Field, also where there is only one",
                remedy="write gl.Spec((gl.Field('x', numpy.dtype('f4'), (2,)),))",
            )
        object.__setattr__(self, "fields", tuple(fields))
        counts = Counter(self.names)
        twice = sorted(name for name, count in counts.items() if count > 1)
        if twice:
            raise SpecError(
                f"the field names {twice} occur twice among {list(self.names)}",
                cause="fields of one record need different names",
                remedy="rename one of them, with source.rename(old='new')",
            )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the fields, in order."""
        return tuple(field.name for field in self.fields)

    @cached_property
    def _by_name(self) -> dict[str, Field]:
        return {field.name: field for field in self.fields}

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._by_name

    def __getitem__(self, name: str) -> Field:
        if name in self:
            return self._by_name[name]
        raise UnknownFieldError(
            f"no field {name!r}",
            cause=f"the fields are {list(self.names)}",
            remedy="use one of these names",
        )

    def replacing(self, *changed: Field) -> Spec:
        """Return the spec with the fields of the same names replaced.

        Raises:
            UnknownFieldError: there is no field of such a name.
            SpecError: a replacement is no field.
        """
        for field in changed:
            if not isinstance(field, Field):
                raise SpecError(
                    f"{field!r} in place of a field",
                    cause="a field is replaced by a gl.Field of its name",
                    remedy="change the field, as in field.with_(shape=(2,)), and return that",
                )
        by_name = {self[field.name].name: field for field in changed}
        return Spec(tuple(by_name.get(field.name, field) for field in self.fields))

    def including(self, *fields: Field) -> Spec:
        """Return the spec with the fields of the same names replaced, and new ones behind the
        others."""
        return Spec(
            (*self.fields, *(field for field in fields if field.name not in self))
        ).replacing(*fields)

    def only(self, names: Iterable[str]) -> Spec:
        """Return the spec of the named fields, in this spec's order.

        Raises:
            UnknownFieldError: a name is not a field.
            SpecError: these are no names.
        """
        try:
            selection = (names,) if isinstance(names, str) else tuple(names)
        except TypeError:
            raise SpecError(
                f"only({names!r})",
                cause="fields are named",
                remedy=f"write only({list(self.names)})",
            ) from None
        selection_names = {self[name].name for name in selection}
        return Spec(tuple(field for field in self.fields if field.name in selection_names))

    def __repr__(self) -> str:
        title = f"gl.Spec: {len(self)} field{'s' * (len(self) != 1)}"
        return outline(title, map(str, self.fields), separator=";", max_fields=MOST_LINES)

    def __str__(self) -> str:
        return "; ".join(map(str, self.fields))


def outline(
    title: str,
    field_texts: Iterable[str],
    *rest: str,
    separator: str,
    max_fields: int = MOST_FIELDS,
) -> str:
    """Return ``<title, fields, rest>``, for ``repr``: in one line, or a line each where that one
    line would be wide.

    Args:
        title: of it, the first line.
        field_texts: a text for each field; of more than ``max_fields`` the others are only counted.
        rest: texts behind the fields; "" is left out.
        separator: of the texts, behind which a space or a new line follows.
        max_fields: that are shown.
    """
    texts = list(map(printable, field_texts))
    if len(texts) > max_fields + 1:
        texts[max_fields:] = [f"... and {len(texts) - max_fields} more fields"]
    parts = [title, *texts, *filter(None, rest)]
    line = f"<{f'{separator} '.join(parts)}>"
    if len(line) <= COLUMNS:
        return line
    return f"<{f'{separator}{NEW_LINE}'.join(parts)}>"


@dataclass(frozen=True)
class Part:
    """The place of one field in a raw record.

    Attributes:
        field: the field as it comes out: native byte order, C order.
        dtype: the dtype as stored, with its byte order.
        offset_bytes: of its first byte in the record.
        fortran: True if the stored elements are in Fortran (first axis fastest) order.
        strides_bytes: for elements that do not lie side by side (one field of an array of
            structures): the bytes from one to the next along each axis of the field's shape.
    """

    field: Field
    dtype: np.dtype[Any]
    offset_bytes: int = 0
    fortran: bool = False
    strides_bytes: tuple[int, ...] | None = None

    @property
    def is_native(self) -> bool:
        """True if the stored bytes already are the field's elements in C order, side by side."""
        return self.dtype == self.field.dtype and self.dtype.isnative and self.is_c_order

    @property
    def is_c_order(self) -> bool:
        """True if the elements, in either byte order, lie side by side in C order."""
        return not self.fortran and self.strides_bytes is None

    @property
    def num_bytes(self) -> int:
        """The bytes of the field's elements in one record."""
        return math.prod(self.field.fixed_shape) * self.dtype.itemsize

    def same_bytes(self, part: Part) -> bool:
        """Return True if both describe the same bytes; the names of their fields may differ."""
        field, other_field = self.field, part.field
        return (
            self.dtype,
            self.offset_bytes,
            self.fortran,
            self.strides_bytes,
            field.dtype,
            field.shape,
        ) == (
            *(
                part.dtype,
                part.offset_bytes,
                part.fortran,
                part.strides_bytes,
                other_field.dtype,
                other_field.shape,
            ),
        )

    @property
    def strides(self) -> tuple[int, ...]:
        """The bytes from one stored element to the next along each axis of the field's shape."""
        if self.strides_bytes is not None:
            return self.strides_bytes
        return element_strides(self.field.fixed_shape, self.dtype.itemsize, fortran=self.fortran)


def element_strides(
    shape: tuple[int, ...], item_bytes: int, *, fortran: bool = False
) -> tuple[int, ...]:
    """Return the bytes from one element to the next along each axis, of elements that lie side by
    side."""
    if not fortran:
        return element_strides(shape[::-1], item_bytes, fortran=True)[::-1]
    return tuple(item_bytes * math.prod(shape[:axis]) for axis in range(len(shape)))


@dataclass(frozen=True)
class Layout:
    """The places of the fields of a fixed-size raw record: ``record_bytes`` bytes, cut into
    ``parts``."""

    record_bytes: int
    parts: tuple[Part, ...]

    @cached_property
    def is_direct(self) -> bool:
        """True if the raw bytes of a batch already are its one field, so that they need no decoding
        at all."""
        return len(self.parts) == 1 and self.parts[0].is_native and self._fills_record()

    def same_bytes(self, layout: Layout) -> bool:
        """Return True if records of both layouts have the same bytes; the names of their fields may
        differ."""
        if self is layout:
            return True
        if self.record_bytes != layout.record_bytes or len(self.parts) != len(layout.parts):
            return False
        return all(
            part.same_bytes(other_part)
            for part, other_part in zip(self.parts, layout.parts, strict=True)
        )

    @cached_property
    def spec(self) -> Spec:
        """The fields."""
        return Spec(tuple(part.field for part in self.parts))

    @cached_property
    def texts(self) -> tuple[Part, ...]:
        """The fields of text, which may have bytes that are no text."""
        return tuple(part for part in self.parts if part.dtype.kind == "U")

    def _fills_record(self) -> bool:
        return self.parts[0].offset_bytes == 0 and self.parts[0].num_bytes == self.record_bytes


def check_name(name: Any) -> None:
    """Raise ``SpecError`` if this is no name of a field."""
    if not isinstance(name, str) or not name:
        raise SpecError(
            f"{name!r} as the name of a field", cause="a name is a text", remedy='pass one, as "x"'
        )


def list_of_names(
    title: str, argument: Any, *, form: str = "a list of names", example: str = ""
) -> tuple[str, ...]:
    """Return an argument that names fields, columns or arrays, in their order.

    It may be a list, a tuple, the keys of a dict, an array of NumPy or an index of pandas. A set
    has no order, and an iterator may have no end, so that these are refused.

    Args:
        title: of the argument in errors, ``"fields"``.
        argument: its value.
        form: of a right value, in words.
        example: of a right value, for a remedy; "" for names of fields.

    Raises:
        SpecError: it is no list of texts, is empty, or has a name twice.
    """
    subject = f"{title} = {short_repr(argument)}"
    example = example or '["image", "label"]'
    if isinstance(argument, (set, frozenset)):
        raise SpecError(
            subject, cause="a set has no order, and names have one", remedy="pass a list of them"
        )
    if isinstance(argument, Iterator):
        raise SpecError(
            subject,
            cause=f"it is {form}; an iterator may have no end",
            remedy="pass a list: list(names)",
        )
    if getattr(argument, "ndim", 0) == 1 and hasattr(argument, "tolist"):
        argument = argument.tolist()  # of NumPy, or of pandas
    is_list = isinstance(argument, (Sequence, KeysView, ValuesView))
    if isinstance(argument, (str, bytes)) or not is_list:
        if isinstance(argument, str) and argument:
            suggestion = f"[{argument!r}]"
        else:
            suggestion = example
        raise SpecError(subject, cause=f"it is {form}", remedy=f"write {suggestion}")
    names = list(argument)
    if not names or not all(is_name(name) and name for name in names):
        raise SpecError(subject, cause=f"it is {form}", remedy=f"write {example}")
    if len(set(names)) < len(names):
        repeat = next(name for number, name in enumerate(names) if name in names[:number])
        raise SpecError(
            subject, cause=f"a name stands there twice: {repeat[:80]!r}", remedy="name it once"
        )
    return tuple(map(str, names))  # numpy.str_ is a str of another kind, which no manifest holds


def is_name(value: Any) -> bool:
    """Return True for a text of UTF-8 without NUL, as names of fields and paths in files are."""
    if not isinstance(value, str):
        return False
    return "\0" not in value and not any(0xD800 <= ord(char) < 0xE000 for char in value)


def dtype_of(argument: DTypeLike) -> np.dtype[Any]:
    """Return the dtype of an argument, as NumPy does; None, which NumPy takes for float64, is a
    ``TypeError``.

    Raises:
        TypeError, ValueError, SyntaxError: NumPy does not take it.
    """
    if _lacks_dtype(argument):
        raise TypeError("it is None" if argument is None else "the dtype of a field is None")
    return np.dtype(argument)


def _lacks_dtype(description: Any) -> bool:
    """Return True if a description of a dtype, or one inside it, is None."""
    if isinstance(description, list):
        return any(
            isinstance(field, tuple) and len(field) > 1 and _lacks_dtype(field[1])
            for field in description
        )
    if isinstance(description, tuple) and description:
        return _lacks_dtype(description[0])
    if isinstance(description, Mapping):
        return any(map(_lacks_dtype, description.get("formats") or ()))
    return description is None


def is_whole(value: Any, least: int = 0) -> bool:
    """Return True for a whole number of at least ``least``, Python's or NumPy's; a bool is none."""
    return (
        isinstance(value, (int, np.integer))
        and not isinstance(value, bool)
        and bool(value >= least)
    )
