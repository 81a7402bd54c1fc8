"""Parquet and Arrow files of every type and option that PyArrow has: its values, or a refusal by
the right name.

All files are sound. Each column is read by itself, so that one that is refused does not hide
another one.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import gpuload as gl
from tests.attack.hunt import Report, hunt, outcome

CODECS = ("none", "snappy", "zstd", "gzip", "lz4", "brotli")
MOST_RECORDS = 40
UNITS = ("s", "ms", "us", "ns")
NANOSECONDS = {"D": 86400 * 10**9, "s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}
FINE = "timestamps of INT96 become microseconds"
NO_FIELD = (
    "has no form here",
    "all of its values are missing",
    "along several axes",
    "one axis have a form",
)


def attack(seconds: float, seed: int) -> Report:
    """Read files with columns of all types."""
    if find_spec("pyarrow") is None:
        return Report(without="all of it: PyArrow is not installed")
    return hunt(seconds, seed, trial)


def trial(rng: np.random.Generator, folder: Path) -> str:
    """Write a table, and compare each column with what PyArrow reads."""
    import pyarrow as pa

    path, table = folder / "a", _table(rng)
    is_parquet = rng.random() < 0.5
    if is_parquet:
        table = pa.table(
            {
                name: table.column(name)
                for name in table.column_names
                if _fits_parquet(table, name, path)
            }
        )
        if not table.num_columns:
            return "no column that Parquet holds"
        table = _write_parquet(rng, table, path)
    else:
        _write_arrow(rng, table, path)
    read = [
        _compare(gl.parquet if is_parquet else gl.arrow, path, table, name)
        for name in table.column_names
    ]
    return "read" if all(read) else "read, some columns refused"


def _compare(call: Any, path: Path, table: Any, name: str) -> bool:
    """Read a column with gpuload and compare it; returns False if it is refused, as it has to
    be."""
    import pyarrow as pa

    column = table.column(name)
    status, source = outcome(call, path)
    names = source.spec.names if status == "read" else _names_of(call, path, table, name)
    fields = [field for field in names if field == name or field.startswith(f"{name}.")]
    if not fields:
        return False
    for field in fields:
        inner = column
        for member in field[len(name) + 1 :].split(".") if field != name else ():
            inner = pa.chunked_array(
                [pa.compute.struct_field(chunk, member) for chunk in inner.chunks], None
            )
        expected = _plain(inner)
        has_gaps = _has_gaps(expected)
        status, values = outcome(
            lambda field=field: call(path, [field]).read(range(len(table)), field)[field]
        )
        if status == "refused":
            is_refused = (has_gaps and "missing" in str(values)) or FINE in str(values)
            assert is_refused, f"{field}, {inner.type}: {values}"
            continue
        assert not has_gaps, f"{field}, {inner.type}: missing values came as {values!r}"
        actual = _values(values)
        assert actual == expected, f"{field}, {inner.type}: {actual!r}, by PyArrow {expected!r}"
    return True


def _names_of(call: Any, path: Path, table: Any, name: str) -> list[str]:
    """Return the fields of a column of a file that is refused as a whole: none if that column is
    why."""
    import pyarrow as pa

    def leaves(prefix: str, arrow_type: Any) -> list[str]:
        if not pa.types.is_struct(arrow_type):
            return [prefix]
        members = [arrow_type.field(number) for number in range(arrow_type.num_fields)]
        return [
            leaf for member in members for leaf in leaves(f"{prefix}.{member.name}", member.type)
        ]

    fields = []
    for field in leaves(name, table.schema.field(name).type):
        status, error = outcome(call, path, [field])
        if status == "read":
            fields.append(field)
        else:
            causes = [*NO_FIELD, "dictionary stand anywhere in a stream"]
            assert any(
                cause in str(error).replace("\n", " ") for cause in causes
            ) or "values of a dictionary" in str(error), (
                f"{field}, {table.schema.field(name).type}: {error}"
            )
    return fields


def _has_gaps(value: Any) -> bool:
    return value is None or (isinstance(value, list) and any(map(_has_gaps, value)))


def _plain(column: Any) -> list[Any]:
    """Return the values of PyArrow's column as numbers, texts, bytes and lists of these; times in
    nanoseconds."""
    return [value for chunk in column.chunks for value in _plain_array(chunk)]


def _plain_array(array: Any) -> list[Any]:
    import pyarrow as pa

    shape = getattr(array.type, "shape", None)
    while True:
        if hasattr(array, "storage"):
            array = array.storage
        elif isinstance(array, pa.DictionaryArray):
            array = array.dictionary_decode()
        elif isinstance(array, pa.RunEndEncodedArray):
            array = pa.compute.run_end_decode(array)
        else:
            break
    kind = array.type
    if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        parts = [_plain_array(item.values) if item.is_valid else None for item in array]
        if shape is None:
            return parts
        return [
            part if part is None else np.reshape(np.array(part, object), shape).tolist()
            for part in parts
        ]
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        bits = 32 if kind in (pa.date32(), pa.time32("s"), pa.time32("ms")) else 64
        unit = {pa.date32(): "D", pa.date64(): "ms"}.get(kind) or kind.unit
        return [
            None if value is None else value * NANOSECONDS[unit]
            for value in array.view(f"int{bits}").to_pylist()
        ]
    return [_bits(value) for value in array.to_pylist()]


def _values(values: Any) -> list[Any]:
    """Return the values of a field in the same form."""
    return [_value(value) for value in values]


def _value(value: Any) -> Any:
    if isinstance(value, (str, bytes)):
        return value
    array = np.asarray(value)
    if array.dtype.kind in "mM":
        unit = NANOSECONDS[np.datetime_data(array.dtype)[0]]
        array = np.array(array.astype(np.int64).astype(object) * unit, object)
    if array.dtype == np.uint8 and array.ndim == 1:
        return Numbers(array)
    return _rows(array)


def _rows(array: Any) -> Any:
    """Return an array as lists; the innermost one of bytes is equal to bytes."""
    if array.ndim > 1:
        return [_rows(row) for row in array]
    if array.dtype == np.uint8 and array.ndim == 1:
        return Numbers(array)
    return [_bits(item) for item in array.tolist()] if array.ndim else _bits(array.tolist())


class Numbers(list[Any]):
    """Bytes, which are equal to bytes and to lists of their numbers."""

    def __init__(self, array: Any) -> None:
        super().__init__(array.tolist())

    def __eq__(self, other: object) -> bool:
        return super().__eq__(list(other) if isinstance(other, bytes) else other)

    __hash__ = None  # type: ignore[assignment]


def _bits(value: Any) -> Any:
    """Return a value that is equal to itself, also of not-a-number."""
    return "nan" if isinstance(value, float) and value != value else value


# --- tables


def _numbers(rng: np.random.Generator, count: int) -> list[Any]:
    """Return arrays of numbers, dates and times of each type."""
    import pyarrow as pa

    result = [
        pa.array(rng.integers(np.iinfo(code).min, np.iinfo(code).max, count, code, endpoint=True))
        for code in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
    ]
    hard = np.array([np.nan, np.inf, -0.0, 1e300, 5e-324])
    with np.errstate(over="ignore"):
        floats = np.where(rng.random(count) < 0.2, rng.choice(hard, count), rng.normal(size=count))
        result += [pa.array(floats.astype(code)) for code in ("f2", "f4", "f8")]
    result.append(pa.array(rng.random(count) < 0.5))
    # Also far dates: 9999-12-31 lies outside of nanoseconds.
    seconds = rng.integers(-(10**10), 253402300799, count)
    for number, unit in enumerate(UNITS):
        times = seconds * 1000**number if unit != "ns" else rng.integers(-(2**62), 2**62, count)
        zone = (None, "UTC", "Europe/Paris")[rng.integers(3)]
        result += [pa.array(times, pa.timestamp(unit, zone)), pa.array(times, pa.duration(unit))]
        day = rng.integers(0, 86400 * 1000**number, count)
        kind = pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
        result.append(pa.array(day.astype("i4" if unit in ("s", "ms") else "i8"), kind))
    days = rng.integers(-100_000, 3_000_000, count).astype("i4")
    return [
        *result,
        pa.array(days, pa.date32()),
        pa.array(days.astype("i8") * 86_400_000, pa.date64()),
    ]


def _texts(rng: np.random.Generator, count: int) -> list[Any]:
    """Return arrays of texts and bytes of each type."""
    import pyarrow as pa

    texts = ["wörd " * int(length) + str(length) for length in rng.integers(0, 6, count)]
    raw = [rng.bytes(int(length)) for length in rng.integers(0, 20, count)]
    kinds = (pa.string(), pa.large_string(), pa.string_view())
    bytes_kinds = (pa.binary(), pa.large_binary(), pa.binary_view())
    fixed = pa.array([rng.bytes(5) for _ in range(count)], pa.binary(5))
    return [
        *(pa.array(texts, kind) for kind in kinds), *(pa.array(raw, kind) for kind in bytes_kinds), fixed,
        pa.array([rng.bytes(16) for _ in range(count)], pa.binary(16)).cast(pa.uuid()),
    ]  # fmt: skip


def _column(rng: np.random.Generator, count: int, depth: int = 0) -> Any:
    """Return an array of a random type; in it others."""
    import pyarrow as pa

    kind = rng.integers(0, 12) if depth < 3 else 0
    if kind <= 3:
        arrays = _numbers(rng, count) if rng.random() < 0.6 else _texts(rng, count)
        array = arrays[rng.integers(len(arrays))]
        return _with_gaps(rng, array) if rng.random() < 0.15 else array
    if kind == 4:
        return _encoded(rng, count)
    if kind in (5, 6):
        lengths = rng.integers(0, 4, count)
        values = _column(rng, int(lengths.sum()), depth + 1)
        make, code = ((pa.ListArray, "i4"), (pa.LargeListArray, "i8"))[kind - 5]
        return make.from_arrays(pa.array(np.append(0, np.cumsum(lengths)).astype(code)), values)
    if kind == 7:
        size = int(rng.integers(1, 4))
        return pa.FixedSizeListArray.from_arrays(_column(rng, count * size, depth + 1), size)
    if kind in (8, 9):
        names = ["a", "b", "a b"][: rng.integers(1, 4)]
        return pa.StructArray.from_arrays([_column(rng, count, depth + 1) for _ in names], names)
    if kind == 10:
        numbers = rng.integers(0, 9, (count, 2, 3)).astype(("u1", "f4", "i8")[rng.integers(3)])
        return (
            pa.FixedShapeTensorArray.from_numpy_ndarray(numbers)
            if count
            else pa.array([], pa.int8())
        )
    arrays = [
        pa.nulls(count), pa.array([1] * count, pa.decimal128(9, 2)), pa.array([1] * count, pa.decimal256(40, 2)),
        pa.array([[("a", 1)]] * count, pa.map_(pa.string(), pa.int64())),
        pa.array([(1, 2, 3)] * count, pa.month_day_nano_interval()),
    ]  # fmt: skip
    return arrays[rng.integers(len(arrays))]


def _encoded(rng: np.random.Generator, count: int) -> Any:
    """Return an array of places in a dictionary, or of runs."""
    import pyarrow as pa

    size = int(rng.integers(1, 6))
    arrays = [*_numbers(rng, size), *_texts(rng, size)[:2]]
    values = arrays[rng.integers(len(arrays))]
    if rng.random() < 0.2:
        values = _with_gaps(rng, values)
    if rng.random() < 0.5:
        places = rng.integers(0, size, count).astype(("i1", "i4", "i8", "u2")[rng.integers(4)])
        return pa.DictionaryArray.from_arrays(pa.array(places), values)
    if not count:
        return pa.array([], pa.int8())
    ends = np.unique(np.append(rng.integers(1, count + 1, size - 1), count))
    code = ("i2", "i4", "i8")[rng.integers(3)]
    return pa.RunEndEncodedArray.from_arrays(
        pa.array(ends.astype(code)), values.slice(0, ends.size)
    )


def _with_gaps(rng: np.random.Generator, array: Any) -> Any:
    """Return an array without some of its values."""
    import pyarrow as pa

    if not len(array) or "view" in str(array.type):  # PyArrow does not take from views
        return array
    places = np.where(rng.random(len(array)) < 0.2, -1, np.arange(len(array)))
    return array.take(pa.array(places, pa.int64(), mask=places < 0))


def _table(rng: np.random.Generator) -> Any:
    import pyarrow as pa

    count = int(rng.integers(0, MOST_RECORDS))
    names = ["x", "y.z", "with blank", "ü", "w", "v"][: rng.integers(1, 7)]
    table = pa.table({name: _column(rng, count) for name in names})
    return table.slice(int(rng.integers(0, 4))) if rng.random() < 0.3 else table


def _fits_parquet(table: Any, name: str, path: Path) -> bool:
    """Return True if Parquet holds a column; PyArrow raises an error for others."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        pq.write_table(table.select([name]), path, row_group_size=2)
        return bool(pq.read_table(path, use_threads=False).num_rows == table.num_rows)
    except (pa.ArrowException, ValueError):
        return False


def _write_parquet(rng: np.random.Generator, table: Any, path: Path) -> Any:
    """Write a table, and return what PyArrow reads of it: durations in dictionaries become numbers,
    for instance."""
    import pyarrow.parquet as pq

    def coin(p: float = 0.5) -> bool:
        return bool(rng.random() < p)

    use_dictionary = coin()
    options: dict[str, Any] = {
        "compression": str(rng.choice(CODECS)), "row_group_size": int(rng.integers(1, 30)),
        "use_dictionary": use_dictionary, "data_page_version": ("1.0", "2.0")[rng.integers(2)],
        "write_statistics": coin(), "write_page_checksum": coin(), "write_page_index": coin(),
        "data_page_size": int(rng.integers(1, 2000)), "write_batch_size": int(rng.integers(1, 100)),
        "store_schema": coin(0.8), "version": ("1.0", "2.4", "2.6")[rng.integers(3)],
        "use_compliant_nested_type": coin(), "dictionary_pagesize_limit": int(rng.integers(1, 4000)),
        "store_decimal_as_integer": coin(),
    }  # fmt: skip
    if not use_dictionary and coin(0.3):
        options["use_byte_stream_split"] = True
    if coin(0.2):
        options["use_deprecated_int96_timestamps"] = True
    try:
        pq.write_table(table, path, **options)
    except (ValueError, OSError, NotImplementedError):  # an option that goes with other types
        options.pop("use_byte_stream_split", None)
        options.pop("use_deprecated_int96_timestamps", None)
        options["version"] = "2.6"
        pq.write_table(table, path, **options)
    return pq.read_table(path, use_threads=False, coerce_int96_timestamp_unit="us")


def _write_arrow(rng: np.random.Generator, table: Any, path: Path) -> None:
    import pyarrow as pa

    options = pa.ipc.IpcWriteOptions(
        compression=(None, None, "lz4", "zstd")[rng.integers(4)],
        use_legacy_format=bool(rng.random() < 0.2),
        allow_64bit=True,
    )
    make = (pa.ipc.new_file, pa.ipc.new_stream)[rng.integers(2)]
    with make(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=int(rng.integers(1, 30)))
