"""NPY files, rows and whole files, sound and damaged: the values of ``numpy.load``, or an error of
ours."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

import gpuload as gl
from tests.attack.hunt import Report, hunt, outcome
from tests.attack.mutate import mutated
from tests.sources.npyfiles import fields_of, write, write_header

DTYPES = (
    "?", "u1", "i1", "<f4", ">f4", "<i8", ">u2", "<f2", "<c8", ">c16", "<f8", "S5", "<U3", ">U2", "<M8[ns]", ">m8[D]",
    "V7", "S1", "<u4",
    [("a", "<f4"), ("b", ">i2", (2,))], [("größe", "u1"), ("高さ", "<U2")], [("a", [("b", "<i4"), ("c", "S3")], (2,))],
    [("x", "u1"), ("y", "<f8"), ("x.y", "?")], [("a", [("b", "<i4")]), ("c", ">f8", (3, 1))],
    {"names": ["a", "b"], "formats": ["u1", ">f4"], "offsets": [3, 8], "itemsize": 16},
)  # fmt: skip
SHAPES = ((0,), (1,), (7,), (3, 4), (5, 1, 2), (0, 3), (4, 0), (2, 3, 2, 2), (), (33, 2), (1, 1, 1))
# What stands in headers, to be put into them.
WORDS = (
    "{", "}", "(", ")", "[", "]", ",", ":", "'", '"', "\\", " ", "\n", "True", "False", "None", "0", "1", "-1", "2L",
    "00", "9" * 19, "9" * 20, str(2**31), str(2**62), str(2**63), "1e3", "0x10", "(3,)", "(2, 3)", "(" * 70, "[" * 70,
    "'descr'", "'fortran_order'", "'shape'", "'<f4'", "'|O'", "'>U0'", "'|S0'", "'|V0'", "'|a5'", "'f4,f4'", "'2f4'",
    "'(2,2)f4'", "u'<f4'", "b'<f4'", "('a', '<f4')", "[('a', '<f4')]", "(('t', 'n'), '<i2')", "('', '|V4')",
    "('a', '<f4', (2,))", "('a', '<f4', 2)", "('a', '<f4', (0,))", "('a', '<f4', -1)", "\x00", "ü", "\\x3cf4", "'<M8'",
    "'<M8[25s]'", "'<m8[ns]'", "'T'", "'=f4'", "'<g'", "'<f16'", "'<c32'", "'e'", "'p'", "'void'", "'object'", "#",
)  # fmt: skip
ROWS = 50  # that are read of a file; a damaged header may promise 2**60 without bytes


def attack(seconds: float, seed: int) -> Report:
    """Read NPY files."""
    return hunt(seconds, seed, trial, more_bytes=1 << 28)


def trial(rng: np.random.Generator, folder: Path) -> str:
    """Write one or two files, damage the last one of them or none, and read them."""
    paths = _written(rng, folder)
    sound = rng.random() < 0.15
    if not sound:
        _damage(paths[-1], rng)
    record = ("row", "file")[rng.integers(2)]
    expected = [_by_numpy(path) for path in paths]
    status, result = outcome(_by_gpuload, paths, record, rng)
    if status == "refused":
        assert not sound or _is_beyond(expected, record), f"a sound file is refused: {result}"
        return status
    if any(array is None for array in expected):
        return "read, not by NumPy"
    numbers, fields = result
    records = _records(expected, record, numbers)
    assert set(fields) == set(records), f"fields {sorted(fields)}, by NumPy {sorted(records)}"
    for name, values in records.items():
        assert len(fields[name]) == len(values), f"{len(fields[name])} records, of {len(values)}"
        for number, actual, reference in zip(numbers, fields[name], values, strict=True):
            assert _is_same(actual, reference), (
                f"record {number}, field {name!r}: {actual!r}, by NumPy {reference!r}"
            )
    return status


def _written(rng: np.random.Generator, folder: Path) -> list[Path]:
    dtype, shape = np.dtype(DTYPES[rng.integers(len(DTYPES))]), SHAPES[rng.integers(len(SHAPES))]
    paths = []
    for number in range(rng.integers(1, 3)):
        size = int(np.prod(shape)) * dtype.itemsize
        array: Any = np.frombuffer(rng.bytes(size), dtype).reshape(shape)
        if "U" in str(dtype):  # bytes at random are no characters
            array = np.zeros(shape, dtype)
        path = folder / f"{number}.npy"
        order = "CF"[rng.integers(2)]
        version = [(1, 0), (2, 0), (3, 0)][rng.integers(3)]
        paths.append(
            write(path, np.asarray(array, order=order), version=version, swapped=rng.random() < 0.3)
        )
        if shape and rng.random() < 0.5:
            shape = (int(rng.integers(6)), *shape[1:])
    return paths


def _damage(path: Path, rng: np.random.Generator) -> None:
    data = path.read_bytes()
    if rng.random() < 0.4:
        path.write_bytes(mutated(data, rng))
        return
    start = 10 if data[6] == 1 else 12
    end = start + int.from_bytes(data[8:start], "little")
    text = data[start:end].decode("utf-8" if data[6] == 3 else "latin1")
    for _ in range(rng.integers(1, 4)):
        place = int(rng.integers(len(text) + 1))
        length = int(rng.choice([0, 0, 1, 2, 5, 12]))
        text = text[:place] + WORDS[rng.integers(len(WORDS))] + text[place + length :]
    version = int(rng.choice([1, 2, 3]))
    header = text.encode("utf-8" if version == 3 else "latin1", errors="replace")
    write_header(path, header, data[end:], version=(version, 0))


def _by_numpy(path: Path) -> Any:
    """Return the array, None where NumPy refuses it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return np.load(path, allow_pickle=False, max_header_size=1 << 20)
        except Exception:  # numpy.load raises many kinds
            return None


def _by_gpuload(
    paths: list[Path], record: Any, rng: np.random.Generator
) -> tuple[list[int], dict[str, Any]]:
    """Return the numbers of some records, and their fields: from the source, or from a loader of
    it."""
    with gl.npy(paths, record=record) as source:
        numbers = list(range(min(len(source), ROWS)))
        if rng.random() < 0.5:
            rng.shuffle(numbers)
            return numbers, source.read(numbers)
        with gl.Loader(
            source[: len(numbers)], batch_size=int(rng.integers(1, 9)), device="cpu", num_threads=2
        ) as load:
            batches = list(load)
        return numbers, {
            name: [value for batch in batches for value in batch[name]]
            for name in source.spec.names
        }


def _records(arrays: list[Any], record: str, numbers: list[int]) -> dict[str, list[Any]]:
    """Return for each field its values in these records."""
    parts = [fields_of(array) for array in arrays]
    fields = {}
    for name in parts[0]:
        if record == "file":
            fields[name] = [parts[number][name] for number in numbers]
        else:
            first = len(parts[0][name])
            fields[name] = [
                parts[0][name][number] if number < first else parts[1][name][number - first]
                for number in numbers
            ]
    return fields


def _is_beyond(arrays: list[Any], record: str) -> bool:
    """Return True for what gpuload says it refuses: an array without axes has no rows, rows have
    one shape."""
    if any(array is None for array in arrays):
        return True
    return record == "row" and (
        arrays[0].ndim == 0 or len({array.shape[1:] for array in arrays}) > 1
    )


def _is_same(result: Any, reference: Any) -> bool:
    if isinstance(result, (str, bytes)):  # a scalar of NumPy, which is as long as its text
        return bool(result == reference)
    result, reference = np.asanyarray(result), np.asanyarray(reference)
    if result.shape != reference.shape or result.dtype != reference.dtype:
        return False
    if result.dtype.kind in "fc":
        return bool(np.array_equal(result, reference, equal_nan=True))
    if result.dtype.kind == "b":  # any byte but 0 is True
        return bool(np.array_equal(result, reference))
    return result.tobytes() == reference.tobytes()
