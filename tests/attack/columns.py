"""Parquet and Arrow files, sound and damaged: the values of PyArrow, or an error of ours.

Reading happens in a child: PyArrow ends the process for some damaged bytes, which must not happen
by our calls.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import gpuload as gl
from gpuload.errors import GpuloadError
from tests.attack.children import ENDED, TOO_LONG, in_child
from tests.attack.hunt import Report, hunt, outcome
from tests.attack.mutate import mutated

CODECS = ("none", "snappy", "zstd", "gzip", "lz4")
MOST_RECORDS = 60


def attack(seconds: float, seed: int) -> Report:
    """Read Parquet and Arrow files."""
    if find_spec("pyarrow") is None:
        return Report(without="all of it: PyArrow is not installed")
    return hunt(seconds, seed, trial, more_bytes=1 << 28)


def trial(rng: np.random.Generator, folder: Path) -> str:
    """Write a file, damage it or not, and read it."""
    path, is_sound = folder / "a", rng.random() < 0.2
    write = WRITERS[rng.integers(len(WRITERS))]
    write(rng, path)
    data = path.read_bytes()
    if not is_sound:
        path.write_bytes(_damaged(rng, data))
    result = in_child(_compare, path, write.__name__ == "_parquet", is_sound)
    assert not result.startswith(ENDED), result
    assert result != TOO_LONG
    return result


def _damaged(rng: np.random.Generator, data: bytes) -> bytes:
    """Return the file with changes anywhere, or in its footer, which stands at the end."""
    if rng.random() < 0.4:
        return mutated(data, rng, most=3)
    begin = max(0, len(data) - int(rng.integers(10, 1500)))
    return data[:begin] + mutated(data[begin:], rng, most=2)


def _compare(path: Path, is_parquet: bool, is_sound: bool) -> str:
    """Read a file with gpuload and with PyArrow; returns what came of it."""
    status, source = outcome(gl.parquet if is_parquet else gl.arrow, path)
    if status == "refused":
        assert not is_sound, f"a sound file is refused: {source}"
        return "refused"
    expected = _by_arrow(path, is_parquet)
    with source:
        assert expected is None or len(source) == len(expected), (
            f"{len(source)} records, by PyArrow {len(expected)}"
        )
        results = set()
        for name in source.spec.names:
            count = min(len(source), MOST_RECORDS)
            status, values = outcome(
                lambda name=name, count=count: source.read(range(count), fields=name)[name]
            )
            results.add(status)
            if status == "refused":
                assert not is_sound, f"{name} of a sound file is refused: {values}"
                continue
            column = None if expected is None else _column(expected, name)
            if column is not None:
                for value, right in zip(values, column[:count], strict=True):
                    assert _is_equal(value, right), f"{name}: {value!r}, by PyArrow {right!r}"
    if "refused" in results:
        return "read, some columns refused" if "read" in results else "opened, all columns refused"
    return "read" if expected is not None else "read, not by PyArrow"


def _is_equal(value: Any, right: Any) -> bool:
    if isinstance(value, str):
        return bool(value == right)
    if isinstance(right, bytes):
        return bool(np.asarray(value).tobytes() == right)
    array = np.asarray(value)
    return bool(
        np.array_equal(array, np.array(right, array.dtype), equal_nan=array.dtype.kind == "f")
    )


def _by_arrow(path: Path, is_parquet: bool) -> Any:
    """Return the table; None where PyArrow refuses it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if is_parquet:
            return pq.read_table(path, use_threads=False, page_checksum_verification=True)
        with pa.OSFile(str(path)) as file:
            is_file = file.read(6) == b"ARROW1"
            file.seek(0)
            table = (pa.ipc.open_file if is_file else pa.ipc.open_stream)(file).read_all()
            table.validate(full=True)
            return table
    except (pa.ArrowException, OSError, ValueError):
        return None


def _column(table: Any, name: str) -> Any:
    """Return the values of a column; None where there is none of that name, or PyArrow cannot tell
    them."""
    try:
        return table.column(name).to_pylist()
    except (KeyError, ValueError, UnicodeDecodeError, GpuloadError):
        return None


# --- files


def _table(rng: np.random.Generator) -> Any:
    import pyarrow as pa

    count = int(rng.integers(0, MOST_RECORDS))
    lengths = rng.integers(0, 5, count)
    columns = {
        "i": pa.array(rng.integers(-100, 100, count)),
        "f": pa.array(rng.normal(size=count).astype("f4")),
        "t": pa.array([f"tèxt {number}" * int(number) for number in lengths], pa.string()),
        "b": pa.array([rng.bytes(int(number)) for number in lengths], pa.binary()),
        "r": pa.array(
            [rng.integers(0, 9, int(number)).astype("i2") for number in lengths],
            pa.list_(pa.int16()),
        ),
        "k": pa.array([f"kind {number}" for number in lengths], pa.string()).dictionary_encode(),
        "m": pa.array([rng.integers(0, 9, 3).tolist() for _ in lengths], pa.list_(pa.int32(), 3)),
    }
    names = ["i", *(name for name in columns if name != "i" and rng.random() < 0.6)]
    return pa.table({name: columns[name] for name in names})


def _parquet(rng: np.random.Generator, path: Path) -> None:
    import pyarrow.parquet as pq

    options = {"compression": str(rng.choice(CODECS)), "row_group_size": int(rng.integers(1, 30))}
    options |= {
        "write_page_checksum": bool(rng.random() < 0.5),
        "data_page_version": ("1.0", "2.0")[rng.integers(2)],
    }
    pq.write_table(_table(rng), path, use_dictionary=bool(rng.random() < 0.5), **options)


def _arrow(rng: np.random.Generator, path: Path) -> None:
    import pyarrow as pa

    codec = (None, "lz4", "zstd")[rng.integers(3)]
    options = pa.ipc.IpcWriteOptions(compression=codec)
    table = _table(rng)
    make = (pa.ipc.new_file, pa.ipc.new_stream)[rng.integers(2)]
    if make is pa.ipc.new_stream and "k" in table.column_names:
        table = table.drop_columns(["k"])  # dictionaries in a stream are refused
    with make(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=int(rng.integers(1, 30)))


WRITERS = (_parquet, _arrow)
