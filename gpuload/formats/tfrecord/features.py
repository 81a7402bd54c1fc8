"""Features: the content of the records of a TFRecord, as the user gives it.

    {"label": "i8"}                           one number; its field and its key are called label
    {"box": ("f4", (4,))}                     four numbers
    {"tags": ("i8", (None,))}                 any number of them: ragged
    {"tags": gl.Feature("i8", (8,), pad=0)}   at most eight, filled up with zeros
    {"name": "str"}                           text of any length, UTF-8: objects (str)
    {"words": ("str", (None,))}               any number of texts
    {"name": "S"}                             the same as bytes objects, not checked: tf.string
    {"name": "S20"}                           text of at most 20 bytes; a longer one is an error
    {"name": "bytes"}                         the bytes of one value as numbers: uint8, ragged
    {"x": gl.Raw(">f4", (28, 28))}            the raw bytes of numbers, in either byte order
    {"x": gl.Tensor("f4", (3, 3))}            a result of tf.io.serialize_tensor
    {"image": gl.Image(key="image/encoded")}  an encoded image, for gl.ops.Decode
    {"x": gl.Sparse("f4", 100, index_key="i", value_key="v")}
                                              values and their places: one dense array

The features of ``tf.io`` (``tf.io.FixedLenFeature`` and so on) are taken, too; their strings become
``"S"``.

Kinds    int64 lists become whole numbers or booleans, float lists floats, bytes lists all else.
         Another kind of list than the dtype is for is an error, and so is a number that the dtype
         does not hold: nothing is cut or rounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpuload.errors import SpecError
from gpuload.formats.tfrecord.wire import BYTES_LIST, FEATURES, FLOAT_LIST, INT64_LIST, KINDS, LISTS
from gpuload.sources.defaults import UnfitDefault, convert_default
from gpuload.sources.layouts import layout_of, native
from gpuload.spec import LARGEST_NDIM, Field, Shape, check_name, dtype_of, is_whole

BYTES = "bytes"
RECORD = "record"  # the name of the field where the whole payload is one
UINT8 = np.dtype(np.uint8)
NUMBERS = {
    "b": INT64_LIST,
    "i": INT64_LIST,
    "u": INT64_LIST,
    "f": FLOAT_LIST,
    "S": BYTES_LIST,
    "U": BYTES_LIST,
}
TEXT = {"U": "str", "S": "bytes"}  # the form of texts without a length, by the kind of their dtype
MOST_AXES = (
    LARGEST_NDIM - 2
)  # of a field in one record, a batch and several values have one more each
EXAMPLE = '{"label": "i8", "box": ("f4", (4,)), "image": gl.Image()}'


class FeatureBase:
    """The description of a field by the user; ``repr`` is the call that makes it."""

    def __repr__(self) -> str:
        arguments = []
        for member in fields(self):  # type: ignore[arg-type]
            name, value = member.name, getattr(self, member.name)
            if name in ("dtype", "shape") and value is not None:
                arguments.append(_dtype_text(value))
            elif value != DEFAULTS.get(name):
                arguments.append(f"{name}={value!r}")
        return f"gl.{type(self).__name__}({', '.join(arguments)})"


def _dtype_text(value: Any) -> str:
    """Return a dtype as one types it, ``'u1'`` or ``'>f4'``; anything else as it is."""
    if isinstance(value, np.dtype):
        return repr(value.str.lstrip("|<"))
    return repr(value)


DEFAULTS = {"num_values": 1}


@dataclass(frozen=True, repr=False)
class Feature(FeatureBase):
    """Numbers, or texts: the values of a list.

    Args:
        dtype: of the field: ``"i8"``, ``"u1"``, ``"?"`` of int64 lists; ``"f4"``, ``"f8"`` of float
            lists; of bytes lists ``"str"`` (texts of any length as objects; they are UTF-8),
            ``"S"`` (the same as bytes objects, of any content) or ``"S20"`` (texts of at most 20
            bytes).
        shape: of a record; the first axis may be None, for any number.
        key: of the feature; by default the name of the field.
        default: stands in for a feature that a record does not have; without it such a record is an
            error. Not for a first axis of None, where the value is empty then.
        pad: with it, a record may have fewer values than the shape, along its first axis; they are
            filled up with this.
    """

    dtype: DTypeLike
    shape: Shape = ()
    _: KW_ONLY
    key: str | None = None
    default: Any = None
    pad: Any = None


@dataclass(frozen=True, repr=False)
class Raw(FeatureBase):
    """The raw bytes of numbers: ``decode_raw``.

    Args:
        dtype: with its byte order: ``"u1"``, ``"<f4"``, ``">i2"``.
        shape: of the numbers; the first axis may be None, for any number.
        key: of the feature; by default the name of the field.
        index: which of several bytes values; by default there is one.
        num_values: how many bytes values a record has, which become a first axis; None: any number,
            ragged.
        default: bytes that stand in for a feature that a record does not have; without it such a
            record is an error.
    """

    dtype: DTypeLike = UINT8
    shape: Shape = (None,)
    _: KW_ONLY
    key: str | None = None
    index: int | None = None
    num_values: int | None = 1
    default: bytes | None = None


@dataclass(frozen=True, repr=False)
class Tensor(FeatureBase):
    """A serialized tensor, as ``tf.io.serialize_tensor`` makes it.

    Args:
        dtype: of the tensor; another one in a record is an error. Without it, that of the first
            records.
        shape: of the tensor, None for an axis that varies. Without it, that of the first records,
            where an axis that differs among them varies.
        key: of the feature; by default the name of the field.
        index: which of several bytes values; by default there is one.
    """

    dtype: DTypeLike | None = None
    shape: Shape | None = None
    _: KW_ONLY
    key: str | None = None
    index: int | None = None

    @property
    def is_unknown(self) -> bool:
        """True if dtype or shape are to be found in the first records."""
        return self.dtype is None or self.shape is None


@dataclass(frozen=True, repr=False)
class Image(FeatureBase):
    """An encoded image, which ``gl.ops.Decode`` takes.

    Args:
        key: of the feature; by default the name of the field.
        index: which of several bytes values; by default there is one.
    """

    _: KW_ONLY
    key: str | None = None
    index: int | None = None


@dataclass(frozen=True, repr=False)
class Sparse(FeatureBase):
    """Values, and the places where they belong: one dense array, zeros elsewhere.

    Args:
        dtype: of the values: ``"f4"``, ``"f8"`` of float lists, whole numbers and booleans of int64
            lists.
        size: of the array: a length, or a tuple of them.
        index_key: of the feature with the places, an int64 list; of several axes a tuple of keys,
            one for each.
        value_key: of the feature with the values.
    """

    dtype: DTypeLike
    size: int | tuple[int, ...]
    _: KW_ONLY
    index_key: str | tuple[str, ...]
    value_key: str


AnyFeature = Feature | Raw | Tensor | Image | Sparse


@dataclass(frozen=True, eq=False)
class FeatureColumn:
    """One field of a source of TFRecords.

    Attributes:
        field: the field in a batch.
        feature: as the user declared it.
        dtype: as stored, with its byte order.
        shape: of a record; of a step, where there are steps.
        section: FEATURES or LISTS; 0 where the whole payload is the one value.
        key: of the feature.
        kind: of its list; of a sparse one that of the values.
        default, pad: arrays of ``dtype``, of text arrays of bytes objects, or bytes; None where
            there are none.
        places: of a sparse field the features of its places, one for each axis.
    """

    field: Field
    feature: AnyFeature
    dtype: np.dtype[Any]
    shape: Shape
    section: int
    key: bytes
    kind: int
    default: NDArray[Any] | bytes | None = None
    pad: NDArray[Any] | None = None
    places: tuple[FeatureColumn, ...] = ()

    @property
    def inner(self) -> tuple[int, ...]:
        """The shape without its first axis."""
        return tuple(int(length or 0) for length in self.shape[1:])

    @cached_property
    def is_ragged(self) -> bool:
        """True if the first axis of a record, or of a step, varies."""
        return self.shape[:1] == (None,)

    @property
    def label(self) -> str:
        """The name of the feature in errors."""
        key = self.key.decode("utf-8", "backslashreplace")
        if key == self.field.name or not self.section:
            suffix = ""
        else:
            suffix = f" (key {key!r})"
        kind = "feature list" if self.section == LISTS else "feature"
        return f"{kind} {self.field.name!r}{suffix}"

    @property
    def identity(self) -> tuple[object, ...]:
        """The parts of the column that its fingerprint depends on."""
        num_values = getattr(self.feature, "index", None), getattr(self.feature, "num_values", None)
        ends = [
            value if value is None or isinstance(value, bytes) else value.tolist()
            for value in (self.default, self.pad)
        ]
        kind = type(self.feature).__name__
        if self.field.text and self.shape == ():
            # As of gl.Raw(), which tf.io.FixedLenFeature([], tf.string) meant before: saved states
            # stay valid.
            return (
                self.field.name,
                self.section,
                self.key,
                "Raw",
                UINT8.str,
                (None,),
                (None, 1),
                ends,
            )
        if self.places:
            return (
                self.field.name,
                self.section,
                self.key,
                kind,
                self.dtype.str,
                self.shape,
                self.feature,
            )
        return (
            self.field.name,
            self.section,
            self.key,
            kind,
            self.dtype.str,
            self.shape,
            num_values,
            ends,
        )


def columns_of(features: Any, sequence: Any) -> tuple[FeatureColumn, ...]:
    """Return the columns of the user's features.

    Args:
        features: a mapping from the name of a field to its feature; or one feature, for the whole
            payload.
        sequence: the same for feature lists, or None.

    Raises:
        SpecError: a feature is not valid, or there is none.
    """
    if not isinstance(features, Mapping):
        if sequence is not None:
            raise SpecError(
                "sequence= beside features that are the whole record",
                cause="feature lists are parts of a SequenceExample",
                remedy=f"name the features, as in {EXAMPLE}",
            )
        return (_column(RECORD, _feature_of(features, "features"), 0),)
    lists = sequence
    if sequence is None:
        lists = {}
    if not isinstance(lists, Mapping):
        raise SpecError(
            f"sequence = {sequence!r}"[:200],
            cause="it is a dict from the name of a field to the description of one step of it",
            remedy='write sequence={"tokens": "i8"}',
        )
    twice = sorted(str(name) for name in features.keys() & lists.keys())
    if twice:
        raise SpecError(
            f"the fields {twice} in features= and in sequence=",
            cause="fields of one record need different names",
            remedy="give one of them another name, and its key: "
            '{"length_of_list": gl.Feature("i8", key="length")}',
        )
    if not features and not lists:
        raise SpecError(
            "no features",
            cause="a record has at least one field",
            remedy=f"write {EXAMPLE}, or leave features= out",
        )
    entries = [(name, feature, FEATURES) for name, feature in features.items()]
    entries += [(name, feature, LISTS) for name, feature in lists.items()]
    columns = list[FeatureColumn]()
    for name, argument, section in entries:
        feature = _feature_of(argument, f"field {name!r}", section)
        columns.append(_column(name, feature, section))
    return tuple(columns)


def _feature_of(argument: Any, place: str, section: int = FEATURES) -> AnyFeature:
    """Return the user's description of a field as an object of our classes."""
    if isinstance(argument, AnyFeature):
        return argument
    # By the name of its module: to import TensorFlow for the comparison would take seconds.
    if type(argument).__module__.partition(".")[0] == "tensorflow":
        return _of_tensorflow(argument, place, section)
    if argument is bytes or (isinstance(argument, str) and argument == BYTES):
        return Raw()
    # ``tf.io``'s features are tuples, too (namedtuple): they were told apart above.
    if isinstance(argument, tuple) and len(argument) == 2 and not isinstance(argument[0], tuple):
        dtype, shape = argument
        if is_whole(shape):
            shape = (int(shape),)
        return Feature(dtype, shape)
    if isinstance(argument, (str, np.dtype)) or (
        isinstance(argument, type) and issubclass(argument, (np.generic, int, float, str))
    ):
        return Feature(argument)
    raise SpecError(
        f"{place} = {argument!r}"[:200],
        cause="it is a dtype, a pair of dtype and shape, gl.Feature, gl.Raw, gl.Tensor, gl.Image, "
        "gl.Sparse or 'bytes'",
        remedy=f"write {EXAMPLE}",
    )


def _of_tensorflow(feature: Any, place: str, section: int) -> AnyFeature:
    """Return the equivalent of a ``tf.io`` feature. TensorFlow is not imported here: the user has
    imported it."""
    name = type(feature).__name__
    # tf.string is an object dtype in NumPy's words.
    dtype: Any = np.dtype(getattr(getattr(feature, "dtype", None), "as_numpy_dtype", "O"))
    if dtype.hasobject:
        dtype = "S"
    if name == "FixedLenFeature":
        return Feature(
            dtype, tuple(int(length) for length in feature.shape), default=feature.default_value
        )
    if name == "FixedLenSequenceFeature" and section == LISTS:  # its shape is that of one step
        return Feature(dtype, tuple(int(length) for length in feature.shape))
    if name == "FixedLenSequenceFeature":
        return Feature(dtype, (None, *(int(length) for length in feature.shape)))
    if name == "VarLenFeature":
        return Feature(dtype, (None,))
    if name == "RaggedFeature" and not feature.partitions:
        return Feature(dtype, (None,), key=feature.value_key)
    if name == "SparseFeature":
        if isinstance(feature.index_key, (list, tuple)):
            index_key = tuple(feature.index_key)
        else:
            index_key = feature.index_key
        size: Any = feature.size
        if isinstance(size, (list, tuple)):
            size = tuple(map(int, size))
        else:
            size = int(size)
        return Sparse(dtype, size, index_key=index_key, value_key=feature.value_key)
    raise SpecError(
        f"{place} = {feature!r}"[:200],
        cause="a field of several ragged axes has no form here",
        remedy="name the feature of the values and those of the row lengths as fields of their "
        'own: ("i8", (None,))',
    )


def _column(name: Any, feature: AnyFeature, section: int) -> FeatureColumn:
    """Return the column of a field that the user declares; ``section`` as in `FeatureColumn`."""
    check_name(name)
    if isinstance(feature, Sparse):
        return _sparse(name, feature, section)
    if feature.key is None:
        key = name
    else:
        key = feature.key
    if not isinstance(key, (str, bytes)):
        raise SpecError(
            f"field {name!r}: key={key!r}",
            cause="a key is a text",
            remedy='write key="image/encoded"',
        )
    if not section and isinstance(feature, Feature):
        raise SpecError(
            f"features = {feature!r}",
            cause="a whole record is bytes, not a list of values",
            remedy=f'write gl.Raw("f4", (28, 28)) for raw records, or {EXAMPLE} for '
            "tf.train.Examples",
        )
    if isinstance(key, bytes):
        key_bytes = key
    else:
        key_bytes = key.encode("utf-8", "surrogateescape")
    if isinstance(feature, Image):
        column = _build_column(
            name, feature, UINT8, (None,), section, key_bytes, encoded_image=True
        )
    else:
        dtype, shape = (
            _dtype(name, feature.dtype, is_list=isinstance(feature, Feature)),
            _shape(name, feature.shape),
        )
        column = _build_column(name, feature, dtype, shape, section, key_bytes)
    if isinstance(feature, Feature):
        return _with_values(column, feature)
    return _with_bytes(column)


def _sparse(name: str, feature: Sparse, section: int) -> FeatureColumn:
    """Return the column of a `Sparse`: the column of its values, which has the columns of its
    places."""
    if isinstance(feature.size, (tuple, list)):
        sizes = feature.size
    else:
        sizes = (feature.size,)
    if isinstance(feature.index_key, (tuple, list)):
        keys = feature.index_key
    else:
        keys = (feature.index_key,)
    if (
        section != FEATURES
        or not sizes
        or len(sizes) != len(keys)
        or not all(is_whole(size, 1) for size in sizes)
    ):
        raise SpecError(
            f"field {name!r}: {feature!r}"[:200],
            cause="it is a feature of tf.train.Example, with a size, and a key of places, for each "
            "axis",
            remedy="write gl.Sparse('f4', (3, 4), index_key=('row', 'column'), value_key='value'), "
            "say",
        )
    shape = tuple(int(size) for size in sizes)
    values = _column(name, Feature(feature.dtype, (None,), key=feature.value_key), section)
    if values.kind == BYTES_LIST:
        raise SpecError(
            f"field {name!r}: {feature!r}"[:200],
            cause="texts have no zero that could stand where none is",
            remedy=f"read two fields: {{'place': ('i8', (None,)), {name!r}: gl.Feature('str', (None,), key=...)}}",
        )
    layout_of(values.dtype, shape, field=name)  # refuses a shape that no array has
    places = tuple(_column(name, Feature("i8", (None,), key=key), section) for key in keys)
    return replace(values, field=Field(name, values.dtype, shape), feature=feature, places=places)


def _dtype(name: str, argument: Any, *, is_list: bool) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = dtype_of(argument)
    except (TypeError, ValueError, SyntaxError) as error:
        raise SpecError(
            f"field {name!r}: dtype {argument!r}",
            cause=f"numpy.dtype does not take it: {error}",
            remedy="write 'f4', say",
        ) from None
    is_text = is_list and dtype.kind in TEXT and not dtype.itemsize
    if (
        dtype.hasobject
        or dtype.names is not None
        or dtype.subdtype is not None
        or not (dtype.itemsize or is_text)
    ):
        raise SpecError(
            f"field {name!r}: dtype {argument!r}",
            cause="a field has one dtype, of numbers, text, or bytes of a stated length",
            remedy="write 'f4', 'str' for texts, or 'S20' for texts of at most 20 bytes",
        )
    return dtype


def _shape(name: str, argument: Any) -> Shape:
    """Return the shape of a field in a record; raises ``SpecError`` for an argument that is
    none."""
    if is_whole(argument):
        shape = (argument,)
    else:
        shape = argument
    if (
        not isinstance(shape, (tuple, list))
        or len(shape) > MOST_AXES
        or not all(length is None or is_whole(length) for length in shape)
    ):
        raise SpecError(
            f"field {name!r}: shape {argument!r}",
            cause="it is a tuple of lengths, the first of which may be None",
            remedy="write (4,), or (None,) for any number of values",
        )
    return tuple(None if length is None else int(length) for length in shape)


def _build_column(
    name: str, feature: AnyFeature, dtype: np.dtype[Any], shape: Shape, section: int, key: bytes, *,
    encoded_image: bool = False,
) -> FeatureColumn:  # fmt: skip
    """Return the column, with the field that it becomes."""
    outer = _outer_shape(name, feature, section)
    has_varying_axis = None in shape[1:] and not isinstance(feature, Tensor)
    if has_varying_axis or (None in shape and outer):
        remedy = (
            "say how long the others are; gl.Feature(dtype, (8,), pad=0) fills up shorter values"
        )
        if encoded_image:
            remedy += "; images of a feature list cannot be read"
        raise SpecError(
            f"field {name!r}: shape {(*outer, *shape)}",
            cause="only the first axis of a field may vary; feature lists, and several values, "
            "have one of their own",
            remedy=remedy,
        )
    if None in outer and 0 in shape:
        raise SpecError(
            f"field {name!r}: shape {shape}",
            cause="its values have no bytes",
            remedy="leave it out",
        )
    if encoded_image:
        field = Field(name, UINT8, (None,), encoded=True)
        return FeatureColumn(field, feature, UINT8, shape, section, key, BYTES_LIST)
    whole = (*outer, *shape)
    if not dtype.itemsize:
        field = Field(name, np.dtype(object), whole, text=TEXT[dtype.kind])
        return FeatureColumn(field, feature, dtype, shape, section, key, BYTES_LIST)
    # Refuses a shape that no array has.
    layout_of(dtype, tuple(length or 0 for length in whole), field=name)
    kind = BYTES_LIST
    if isinstance(feature, Feature):
        kind = NUMBERS.get(dtype.kind, 0)
    field = Field(name, native(dtype), whole)
    return FeatureColumn(field, feature, dtype, shape, section, key, kind)


def _outer_shape(name: str, feature: AnyFeature, section: int) -> Shape:
    """Return the axes of a field in front of those of one value: of a feature list, of several values.

    Raises:
        SpecError: the feature picks no values that there can be.
    """
    num_values = getattr(feature, "num_values", 1)
    index = getattr(feature, "index", None)
    is_count = num_values is None or is_whole(num_values, 1)
    if not is_count or not (index is None or is_whole(index)):
        raise SpecError(
            f"field {name!r}: num_values={num_values!r}, index={index!r}",
            cause="they are a number of values, at least 1, and the number of one of them, "
            "from 0 on",
            remedy="write index=0 for the first of several values, or num_values=3 for three",
        )
    if index is not None and num_values != 1:
        raise SpecError(
            f"field {name!r}: num_values={num_values!r} and index={index}",
            cause="index picks one of several values, num_values takes all",
            remedy="leave one of them out",
        )
    steps: Shape = ()
    if section == LISTS:
        steps = (None,)
    if num_values == 1 or index is not None:
        return steps
    return (*steps, num_values)


def _with_values(column: FeatureColumn, feature: Feature) -> FeatureColumn:
    """Return the column of a `Feature` with its default and padding, checked."""
    name, dtype, shape = column.field.name, column.dtype, column.shape
    is_numpys_text = dtype.kind == "U" and not column.field.text
    if (
        not column.kind
        or is_numpys_text
        or (dtype.kind == "f" and dtype.itemsize not in (4, 8))
        or not dtype.isnative
    ):
        raise SpecError(
            f"field {name!r}: dtype {feature.dtype!r}",
            cause="int64 lists become whole numbers or booleans, float lists f4 or f8, bytes lists "
            "str, S, or S and a "
            "length; lists have no byte order",
            remedy="write 'i8' or 'f4', and gl.ops.Cast for others; gl.Raw is for the raw bytes of "
            "numbers",
        )
    if column.is_ragged and (feature.default is not None or feature.pad is not None or 0 in shape):
        raise SpecError(
            f"field {name!r}: shape {shape} with default={feature.default!r} and "
            f"pad={feature.pad!r}",
            cause="a field of any number of values is empty where a record has none",
            remedy="leave default= and pad= out, or state the length: gl.Feature(dtype, (8,), "
            "pad=0)",
        )
    if feature.pad is not None and (not shape or 0 in shape):
        raise SpecError(
            f"field {name!r}: shape {shape} with pad={feature.pad!r}",
            cause="values are filled up along the first axis",
            remedy="state the most values that a record may have: gl.Feature(dtype, (8,), pad=0)",
        )
    if feature.pad is None:
        pad = None
    else:
        pad = _value(name, "pad", feature.pad, dtype, ())
    default = None
    if feature.default is not None:
        fixed = tuple(int(length or 0) for length in shape)
        default = _value(name, "default", feature.default, dtype, fixed)
    return replace(column, default=default, pad=pad)


def _value(
    name: str, argument: str, value: Any, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> NDArray[Any]:
    """Return a default or padding as an array of the dtype that has exactly its value; of text as
    bytes objects."""
    if not dtype.itemsize:
        return _texts(name, argument, value, shape)
    try:
        array = np.asarray(value)
        if array.dtype.kind == "U":
            texts = [text.encode("utf-8") for text in array.ravel().tolist()]
            array = np.array(texts, np.bytes_).reshape(array.shape)
        if (
            array.dtype.kind not in {"S": "S", "f": "fiub"}.get(dtype.kind, "iub")
            or array.dtype.hasobject
        ):
            raise TypeError(f"{array.dtype} is of another kind")
        result = _spread(array, shape)
        with np.errstate(over="ignore", invalid="ignore"):
            result = result.astype(dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise SpecError(
            f"field {name!r}: {argument}={value!r}"[:200],
            cause=f"it is no {dtype} of shape {shape}: {error}",
            remedy=f"write {argument}=0, or an array of that shape",
        ) from None
    if dtype.kind == "S":
        cause = ""
        if not np.all(result == _spread(array, shape)):
            cause = f"{dtype} does not hold it"
    else:
        try:
            convert_default(array, dtype)
            cause = ""
        except UnfitDefault as error:
            cause = str(error)
    if cause:
        raise SpecError(
            f"field {name!r}: {argument}={value!r}"[:200],
            cause=cause,
            remedy=f"write a {argument} that the dtype holds, or a larger dtype",
        )
    return result


def _texts(name: str, argument: str, value: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a default or padding of text as an array of bytes objects."""
    texts: NDArray[Any] = np.empty((), object)
    if isinstance(value, (str, bytes)):
        texts[()] = value
    else:
        texts = np.array(value, object)
    fits = texts.size in (1, math.prod(shape)) and all(
        isinstance(text, (str, bytes)) for text in texts.flat
    )
    if not fits:
        raise SpecError(
            f"field {name!r}: {argument}={value!r}"[:200],
            cause=f"it is no text, and no list of texts, of shape {shape}",
            remedy=f"write {argument}='', or as many texts as the shape has",
        )
    as_bytes = np.empty(texts.size, object)
    as_bytes[:] = [text.encode() if isinstance(text, str) else bytes(text) for text in texts.flat]
    return _spread(as_bytes, shape).copy()


def _spread(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return as many values as a shape has in that shape, a view; or one value, repeated."""
    if values.size == math.prod(shape):
        values = values.reshape(shape)
    return np.broadcast_to(values, shape)


def _with_bytes(column: FeatureColumn) -> FeatureColumn:
    """Return the column of a `Raw`, `Tensor` or `Image` with its default, checked."""
    name, feature, dtype = column.field.name, column.feature, column.dtype
    if isinstance(feature, Raw) and feature.default is not None:
        item = dtype.itemsize * math.prod(length for length in column.shape if length is not None)
        default = feature.default
        if not isinstance(default, bytes) or feature.num_values != 1:
            raise SpecError(
                f"field {name!r}: default={default!r}"[:200],
                cause="it stands in for the bytes of a value, where there is one",
                remedy="pass bytes: numpy.zeros((28, 28), 'f4').tobytes(), say",
            )
        if len(default) % max(item, 1) if column.is_ragged else len(default) != item:
            raise SpecError(
                f"field {name!r}: default of {len(default)} bytes",
                cause=f"{dtype} {column.shape} has {'a multiple of ' * column.is_ragged}{item}",
                remedy="pass as many, or leave it out",
            )
        column = replace(column, default=default)
    if isinstance(feature, Tensor) and dtype.kind not in "biufc":
        raise SpecError(
            f"field {name!r}: a tensor of {dtype}",
            cause="tensors of numbers and booleans are read",
            remedy="store texts in a bytes list of their own",
        )
    if not column.section and getattr(feature, "index", None) is not None:
        raise SpecError(
            "index= of a whole record", cause="a record is one value", remedy="leave index= out"
        )
    return column


def kind_name(kind: int) -> str:
    """Return the name of a kind of list."""
    return KINDS.get(kind, "empty")
