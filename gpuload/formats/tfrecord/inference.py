"""Inference: the features of TFRecord files from their first records, where the user gives none.

    one number in each record          "i8" or "f4"
    the same number of them in each    ("f4", (4,))
    another number, or none in some    ("i8", (None,))
    one bytes value                    "str" where all are texts, gl.Image() where all begin as
                                       images do, else "bytes"
    several                            ("str", (None,)) where all are texts, else ("S", (None,)):
                                       bytes objects

Texts are UTF-8 without control characters (but tabs and line ends), and not all of them empty.

A later record that does not fit is an error which names it: pass the features then. The inferred
features are in the log, and in ``source.features`` in a form that ``gl.tfrecord`` takes.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpuload.errors import FormatError, RecordError, SpecError
from gpuload.formats.tfrecord import tensorproto, wire
from gpuload.formats.tfrecord.features import (
    RECORD,
    Feature,
    FeatureColumn,
    Image,
    Raw,
    Tensor,
    columns_of,
)
from gpuload.formats.tfrecord.wire import BYTES_LIST, FEATURES, FLOAT_LIST, INT64_LIST, LISTS
from gpuload.images.head import LOOKED_AT_BYTES, kind_of
from gpuload.sources.base import Source

FIRST_RECORDS, MOST_BYTES = 64, 1 << 24  # of the records that are looked at
CONTROLS = frozenset(map(chr, range(32))) - set("\t\n\r") | {"\x7f"}
(WHOLE,) = columns_of(Raw(), None)
NUMBERS = {INT64_LIST: "i8", FLOAT_LIST: "f4"}
log = logging.getLogger("gpuload")


@dataclass
class KeyStats:
    """Statistics of the values of one key.

    Attributes:
        kinds: how many records have a list of each kind.
        counts: how many values lists have.
        longest: of bytes values.
        are_images: True if all bytes values begin as images do.
        are_texts: True if all bytes values are texts.
    """

    kinds: Counter[int] = field(default_factory=Counter)
    counts: Counter[int] = field(default_factory=Counter)
    longest: int = 0
    are_images: bool = True
    are_texts: bool = True


def infer_features(records: Source) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the features, and those of feature lists, that the first records have.

    Args:
        records: gives the payload of each record as the field ``record``.

    Raises:
        FormatError: they are no tf.train.Examples, or have no features.
        SpecError: there is no record; a feature has no form that could be found.
        RecordError: all of these records are damaged.
    """
    if not len(records):
        raise SpecError(
            f"{records!r} has no records",
            cause="the features are found from the first ones",
            remedy='say them: features={"image": gl.Image(), "label": "i8"}',
        )
    stats, count = _key_stats(records)
    missing = [key for key, key_stats in stats.items() if not key_stats.kinds]
    if not stats or len(missing) == len(stats):
        raise FormatError(
            f"{records.where(0)}: no features are found in the first {count} records",
            cause="they are no tf.train.Examples, or are empty ones",
            remedy='read payloads as they are: gl.tfrecord(paths, features="bytes"); or say what '
            "they hold",
        )
    features, lists = dict[str, Any](), dict[str, Any]()
    for (section, key), key_stats in stats.items():
        name = key.decode("utf-8", "backslashreplace")
        if section == LISTS:
            lists[name] = _feature_of(name, key_stats, count, is_list=True)
        else:
            features[name] = _feature_of(name, key_stats, count, is_list=False)
    sequence = ""
    if lists:
        sequence = f", sequence={lists!r}"
    text = f"features={features!r}" + sequence
    log.info("found in the first %d records of %r: %s", count, records, text)
    return features, lists or None


def with_tensors(features: Mapping[str, Any], records: Source) -> dict[str, Any]:
    """Return the features with dtype and shape of each ``gl.Tensor()``, as the first records have
    them.

    Args:
        features: from the name of a field to its feature.
        records: gives the payload of each record as the field ``record``.

    Raises:
        RecordError: a value in the first records is no tensor of numbers.
        SpecError: none of them has it, or their tensors differ in dtype or in the number of axes.
    """
    result = dict(features)
    for name, feature in features.items():
        if isinstance(feature, Tensor) and feature.is_unknown:
            result[name] = replace(feature, **_tensor_of(name, feature, records))
            log.info("found in the first records of %r: %r is %r", records, name, result[name])
    return result


def _tensor_of(name: str, feature: Tensor, records: Source) -> dict[str, Any]:
    key = (FEATURES, (name if feature.key is None else feature.key).encode())
    dtypes, shapes = dict[str, int](), list[tuple[int, ...]]()
    for number in range(min(FIRST_RECORDS, len(records))):
        try:
            data = records[number][RECORD].tobytes()
        except RecordError:  # a damaged one is met when it is read
            continue
        try:
            entries = wire.entries(data)
            if key in entries:
                kind, values = wire.feature_of(data, entries[key], is_entry=True)
            else:
                kind, values = (0, [])
            if kind != BYTES_LIST or len(values) <= (feature.index or 0):
                continue
            begin, end = values[feature.index or 0]
            dtype, shape = tensorproto.dtype_and_shape(data[begin:end])
        except (wire.WireError, tensorproto.UnfitTensor) as error:
            raise RecordError(
                f"{records.where(number)}: feature {name!r}: {error}",
                cause="its bytes are no serialized tensor of numbers",
                remedy="say what they are: 'bytes', gl.Raw(dtype, shape) or gl.Image()",
            ) from None
        dtypes.setdefault(dtype, number)
        shapes.append(shape)
    if len(dtypes) != 1 or len({len(shape) for shape in shapes}) != 1:
        if dtypes:
            description = f"tensors of {sorted(dtypes)} with shapes {sorted(set(shapes))[:4]}"
        else:
            description = "no such feature"
        raise SpecError(
            f"field {name!r}: the first {min(FIRST_RECORDS, len(records))} records have "
            f"{description}",
            cause="gl.Tensor() without dtype and shape takes them from the first records",
            remedy="say them: gl.Tensor('f4', (3, None)), and key= if the feature has another name",
        )
    varying = tuple(axis[0] if len(set(axis)) == 1 else None for axis in zip(*shapes, strict=True))
    (dtype,) = dtypes
    inferred = {"dtype": dtype, "shape": varying}
    stated = {"dtype": feature.dtype, "shape": feature.shape}
    return {**inferred, **{name: value for name, value in stated.items() if value is not None}}


def _key_stats(records: Source) -> tuple[dict[wire.Key, KeyStats], int]:
    """Return the statistics of each key of the first records, in order, and the number of these
    records."""
    stats: dict[wire.Key, KeyStats] = {}
    num_bytes, count, errors = 0, 0, list[RecordError]()
    for number in range(min(FIRST_RECORDS, len(records))):
        try:
            data = records[number][RECORD].tobytes()
        except RecordError as error:  # a damaged one is met when it is read
            errors.append(error)
            continue
        try:
            for key, entry in wire.entries(data).items():
                if key[0] == LISTS:
                    steps = wire.steps_of(data, entry)
                else:
                    steps = [entry]
                key_stats = stats.setdefault(key, KeyStats())
                for step in steps:
                    _look(
                        key_stats, data, *wire.feature_of(data, step, is_entry=key[0] == FEATURES)
                    )
        except wire.WireError as error:
            raise FormatError(
                f"{records.where(number)}: it is no tf.train.Example: byte {error.place} of its "
                f"{len(data)}: "
                f"{error.cause}",
                cause="the file holds records of another kind; its checksums are right, or were "
                "not verified",
                remedy='read payloads as they are: gl.tfrecord(paths, features="bytes"); or '
                "gl.Raw(dtype, shape), "
                'gl.Tensor or gl.Image in place of "bytes"',
            ) from None
        num_bytes, count = num_bytes + len(data), count + 1
        # Records may be images of megabytes: a few of them say as much as 64.
        if num_bytes > MOST_BYTES:
            break
    if not count:
        raise errors[0]
    return stats, count


def _look(key_stats: KeyStats, data: bytes, kind: int, values: list[Any]) -> None:
    if kind:
        key_stats.kinds[kind] += 1
        key_stats.counts[len(values)] += 1
    if kind == BYTES_LIST:
        for begin, end in values:
            key_stats.longest = max(key_stats.longest, end - begin)
            key_stats.are_texts = key_stats.are_texts and _is_text(data[begin:end])
            key_stats.are_images &= (
                kind_of(data[begin : min(end, begin + LOOKED_AT_BYTES)]) is not None
            )


def _is_text(value: bytes) -> bool:
    try:
        return CONTROLS.isdisjoint(value.decode())
    except UnicodeDecodeError:
        return False


def _feature_of(name: str, key_stats: KeyStats, num_records: int, *, is_list: bool) -> Any:
    """Return the feature of a key, as a user would write it."""
    if len(key_stats.kinds) > 1:
        kinds = " and ".join(wire.KINDS[kind] for kind in sorted(key_stats.kinds))
        raise SpecError(
            f"feature {name!r} holds {kinds} lists in different records",
            cause="the features of all records have one kind",
            remedy="say what it is: features={...}",
        )
    if not key_stats.kinds:  # it was empty wherever it was
        if is_list:
            return "i8"
        return ("i8", (None,))
    (kind,) = key_stats.kinds
    is_in_all = is_list or key_stats.kinds.total() == num_records
    is_text = kind == BYTES_LIST and key_stats.are_texts and key_stats.longest > 0
    if kind == BYTES_LIST and not is_list and set(key_stats.counts) == {1}:
        return _single_bytes(is_text, is_in_all, key_stats.are_images)
    always: int | None = None  # the number of values of each record, where all have as many
    if len(key_stats.counts) == 1 and is_in_all:
        (always,) = key_stats.counts
    if is_list and always is None:
        raise _varying(name, key_stats)
    dtype = "S"
    if is_text:
        dtype = "str"
    if kind != BYTES_LIST:
        dtype = NUMBERS[kind]
    if always == 1:
        return dtype
    return (dtype, (always,))


def _single_bytes(is_text: bool, is_in_all: bool, are_images: bool) -> Any:
    """Return the feature of a key with one value of bytes in each record, or in some alone."""
    if is_text:
        if is_in_all:
            return "str"
        return Feature("str", default="")
    if not is_in_all:
        return Raw(default=b"")
    if are_images:
        return Image()
    return "bytes"


def _varying(name: str, key_stats: KeyStats) -> SpecError:
    size_text = ""
    if key_stats.longest:
        size_text = f" of up to {key_stats.longest} bytes"
    return SpecError(
        f"feature {name!r} has {min(key_stats.counts)} to {max(key_stats.counts)} values"
        + size_text,
        cause="only the first axis of a field may vary",
        remedy="say in features= what it becomes: gl.Feature('i8', (8,), pad=0), gl.Raw(index=0), "
        "or leave it out",
    )


def warn_of_missing(
    columns: Sequence[FeatureColumn], source: str, records: Sequence[bytes]
) -> None:
    """Warn of features that none of the first records has: with a misspelt key, all values would be
    empty.

    Args:
        columns: the fields.
        source: the source that has them, for the message.
        records: the payloads of its first records.
    """
    for column in columns:
        may_miss = column.default is None and (
            column.pad is not None or column.is_ragged or column.section == LISTS
        )
        if not column.section or not may_miss or not records:
            continue
        if not any(
            (column.section, column.key) in wire.entries(record, {column.section})
            for record in records
        ):
            log.warning(
                "%s: none of the first %d records has the %s; cause: the key may be misspelt, they "
                "have %s; "
                "remedy: pass key= if it is another one; a record that has none has no values",
                *(source, len(records), column.label, wire.list_keys(records)),
            )
