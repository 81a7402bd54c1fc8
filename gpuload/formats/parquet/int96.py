"""INT96: timestamps of Spark, Hive and Impala, of 12 bytes, which no dtype holds.

Layout  8 bytes of nanoseconds of a day, 4 bytes of the Julian day.
Field   datetime64[us], as Spark has them: from 290,000 years ago on, so that the year 9999 is that.
        A timestamp with a part of a microsecond is refused; ``dtypes=`` of datetime64[ns] reads
        these, which lie between 1677 and 2262.
Zone    The format does not say it: Spark writes instants, Hive times of a place.
Access  PyArrow decodes them to seconds, which hold all days, and to nanoseconds, which run over
        without a word. The lowest bits of these are right all the same, and both together say each
        timestamp exactly.
Source  https://github.com/apache/parquet-format/blob/master/Encodings.md; PyArrow's
        ``coerce_int96_timestamp_unit``
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpuload.errors import SpecError
from gpuload.formats import columnar
from gpuload.ragged import Ragged
from gpuload.sources.leaf import Array, Indices

UNITS = ("s", "ns")  # in which a column is decoded
NANOSECONDS = 10**9  # of a second
SECONDS, MICROSECONDS = np.dtype("M8[s]"), np.dtype("M8[us]")
NANOSECOND_DTYPE = np.dtype("M8[ns]")


def with_microseconds(schema: Any, parquet_schema: Any) -> tuple[Any, frozenset[columnar.Path]]:
    """Return a schema in which INT96 is timestamps in microseconds, and the paths of these columns.

    Intervals, which PyArrow gives as bytes, are of a type of intervals there.
    """
    leaves = [parquet_schema.column(number) for number in range(len(parquet_schema))]
    types = {"INT96": "INT96"}  # others have a converted type
    kinds = [types.get(leaf.physical_type, leaf.converted_type) for leaf in leaves]
    if not {"INT96", "INTERVAL"}.intersection(kinds):
        return schema, frozenset()
    arrow, paths = columnar.import_arrow("gl.parquet"), set[columnar.Path]()

    def change(field: Any, path: columnar.Path, rest: Iterator[str]) -> Any:
        kind = str(field.type).partition("<")[0]
        if kind == "struct":
            members = [field.type.field(number) for number in range(field.type.num_fields)]
            return field.with_type(
                arrow.struct([change(inner, (*path, inner.name), rest) for inner in members])
            )
        if kind in ("list", "large_list", "fixed_size_list"):
            inner = change(field.type.value_field, path, rest)
            if kind == "large_list":
                return field.with_type(arrow.large_list(inner))
            size = field.type.list_size if kind == "fixed_size_list" else -1  # -1: any
            return field.with_type(arrow.list_(inner, size))
        # Of other types in which there are several columns, a map for instance, nothing becomes a
        # field.
        field_kinds = list(itertools.islice(rest, _num_columns(field.type)))
        if field_kinds == ["INTERVAL"]:
            return field.with_type(arrow.month_day_nano_interval())
        if field_kinds != ["INT96"]:
            return field
        paths.add(path)
        return field.with_type(arrow.timestamp("us", columnar.UNKNOWN_ZONE))

    rest = iter(kinds)
    fields = [change(field, (field.name,), rest) for field in schema]
    return arrow.schema(fields, schema.metadata), frozenset(paths)


def _num_columns(arrow_type: Any) -> int:
    """Return how many columns of Parquet a type has."""
    while hasattr(arrow_type, "storage_type"):
        arrow_type = arrow_type.storage_type
    return sum(_num_columns(arrow_type.field(i).type) for i in range(arrow_type.num_fields)) or 1


def join_times(
    column: columnar.Column, seconds: Array | Ragged, nanoseconds: Array | Ragged
) -> Array | Ragged:
    """Return the values of a column, from those in both units; see `_join_units`."""
    if isinstance(seconds, Ragged):
        assert isinstance(nanoseconds, Ragged)
        return seconds.with_payload(join_times(column, seconds.flat, nanoseconds.flat))
    assert isinstance(nanoseconds, np.ndarray)
    first, second = (np.array(part).view(np.int64).reshape(-1) for part in (seconds, nanoseconds))
    values = columnar.in_field_dtype(
        column, _join_units(column.field.name, first, second, column.field.dtype)
    )
    if isinstance(column.default, np.ndarray):
        values = np.where(np.isnat(values), column.default, values)
    return values.reshape(seconds.shape)


def _join_units(name: str, seconds: Indices, nanoseconds: Indices, dtype: np.dtype[Any]) -> Array:
    """Return timestamps in microseconds, or in nanoseconds if the dtype of the field is these.

    Args:
        name: of the column, for errors.
        seconds: int64, the timestamps in seconds, rounded down; the least number for a missing one.
        nanoseconds: int64, the timestamps in nanoseconds, of which bits above the 64th are cut off.
        dtype: of the field.

    Raises:
        SpecError: one of them has a part of a microsecond, or lies too far away.
    """
    is_missing = np.isnat(seconds.view(SECONDS))
    # In uint64, which runs over as PyArrow does: the rest is less than a second.
    parts = nanoseconds.view(np.uint64) - seconds.view(np.uint64) * np.uint64(NANOSECONDS)
    if np.datetime_data(dtype)[0] == "ns":
        stored_dtype, per_second = NANOSECOND_DTYPE, NANOSECONDS
    else:
        stored_dtype, per_second = MICROSECONDS, 10**6
    steps = np.uint64(NANOSECONDS // per_second)
    limit = (2**63 - 1) // per_second - 1
    is_far = ((seconds > limit) | (seconds < -limit)) & ~is_missing
    is_fine = (parts % steps != 0) & ~is_missing
    for wrong, cause, remedy in (
        (
            is_far,
            f"{stored_dtype} ends before it",
            "write the dates anew, nearer ones",
        ),
        (
            is_fine,
            "timestamps of INT96 become microseconds, and it has a part of one",
            f"read nanoseconds: dtypes={{{name!r}: 'datetime64[ns]'}}",
        ),
    ):
        if wrong.any():
            row = int(wrong.argmax())
            moment = np.array([seconds[row]]).view(SECONDS)[0]
            raise SpecError(
                f"column {name!r}: value {row} of it is {moment} and {int(parts[row])} ns",
                cause=cause,
                remedy=f"{remedy}; or leave the column out: fields=[...] has the names of those that are read",
            )
    values = seconds * per_second + (parts // steps).astype(np.int64)
    values[is_missing] = np.iinfo(np.int64).min
    return values.view(stored_dtype)
