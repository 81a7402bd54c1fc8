"""Derived files that change: unpacked copies, tables, indexes and caches are damaged, cut, swapped
or removed.

Truth       the values that the user's files were written with. Whatever becomes of the kept files,
            what a source gives is these values, or a ``GpuloadError``; and after an error or two
            the same call gives them again.
When        between two openings of the user's files, or while a source of theirs is open.
Left out    bytes that change while a source is open without another size or time of modification.
            So each change ends with a time that no file had before.
"""

from __future__ import annotations

import contextlib
import gzip
import logging
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import gpuload as gl
from gpuload.errors import GpuloadError
from gpuload.formats.csv import keep
from gpuload.sources import fileindex
from gpuload.storage import keptfile
from tests.attack import messages
from tests.attack.hunt import Report, hunt
from tests.attack.mutate import mutated

MOST_ROWS = 12_000  # of 40 bytes: a few blocks
OPENINGS = 12
OTHER_WAYS = ("mutate", "cut", "empty", "zeros", "remove", "swap", "link")
MOST_ERRORS = 3  # in a row, before the values must come

Open = Callable[[], Any]


def attack(seconds: float, seed: int) -> Report:
    """Damage kept files."""
    return hunt(seconds, seed, trial, more_bytes=1 << 28)


def trial(rng: np.random.Generator, folder: Path) -> Counter[str]:
    """Open the user's files again and again, and change what was kept of them in between and
    meanwhile."""
    kinds = [
        "idx",
        "npz",
        "text",
        "text.gz",
        "tar",
        "tar.gz",
        "rows",
        "ragged",
        *(["csv"] if _has_arrow() else []),
    ]
    kinds += ["tfrecord", "tfrecord.gz"] if messages.google_crc32c is not None else []
    values = rng.integers(-(2**40), 2**40, (int(rng.integers(1, MOST_ROWS)), 5))
    outcomes, errors = Counter[str](), 0
    with _small_limits(rng, folder):
        call = OPENERS[str(rng.choice(kinds))](folder, values)
        for version in range(OPENINGS):
            try:
                with call() as source:
                    _check(rng, source, values)
                    if rng.random() < 0.5:
                        outcomes[f"meanwhile {_change(rng, folder, version)}"] += 1
                        _check(rng, source, values)
                errors = 0
                outcomes["right"] += 1
            except GpuloadError as error:
                errors += 1
                outcomes[type(error).__name__] += 1
            if errors == 0 and version < OPENINGS - 1:
                outcomes[_change(rng, folder, version)] += 1
        errors = min(errors, 1)  # each of them was of damage of its own
        while errors:
            try:
                with call() as source:
                    _check(rng, source, values)
                break
            except GpuloadError as error:
                if "is there already" in error.what and isinstance(error, OSError):
                    outcomes["an index that is known no more"] += (
                        1  # it lost its beginning and its end
                    )
                    break
                errors += 1
                if errors > MOST_ERRORS:
                    raise AssertionError("it is not made anew") from error
    return outcomes


def _check(rng: np.random.Generator, source: Any, values: np.ndarray[Any, Any]) -> None:
    """Compare some records, and all of them now and then."""
    assert len(source) == len(values)
    part = rng.integers(0, len(values), int(rng.integers(1, 50)))
    numbers = np.arange(len(values)) if rng.random() < 0.6 else part
    rows = source.read(numbers)
    for number, row in zip(numbers.tolist(), rows["x"], strict=True):
        expected = values[number]
        row = np.array(row.split(), np.int64) if isinstance(row, str) else np.asarray(row)
        assert np.array_equal(row[: expected.size], expected), (
            f"record {number}: {row}, not {expected}"
        )


# --- what is kept of what


def _idx(folder: Path, values: np.ndarray[Any, Any]) -> Open:
    raw = values.astype(">f8")  # whole numbers below 2**53
    head = bytes([0, 0, 0x0E, 2]) + struct.pack(">II", *values.shape)
    (folder / "a.idx.gz").write_bytes(gzip.compress(head + raw.tobytes(), 1))
    return lambda: gl.idx(folder / "a.idx.gz")


def _npz(folder: Path, values: np.ndarray[Any, Any]) -> Open:
    np.savez_compressed(folder / "a.npz", x=values)
    return lambda: gl.npz(folder / "a.npz")


def _csv(folder: Path, values: np.ndarray[Any, Any]) -> Open:
    part = values[:5000]
    np.savetxt(folder / "a.csv", part, "%d", ",", header="a,b,c,d,e", comments="")
    if len(values) > len(part):
        with open(folder / "a.csv", "ab") as file:
            np.savetxt(file, values[len(part) :], "%d", ",")
    return lambda: gl.csv(folder / "a.csv", {"x": ("i8", ["a", "b", "c", "d", "e"])})


def _tfrecord(folder: Path, values: np.ndarray[Any, Any], *, packed: bool = False) -> Open:
    data = b"".join(messages.framed(row.tobytes()) for row in values.astype("<i8"))
    path = folder / "a.tfrecord"
    path.write_bytes(gzip.compress(data, 1) if packed else data)
    return lambda: gl.tfrecord(path, gl.Raw("i8", (5,))).rename(record="x")


def _text(folder: Path, values: np.ndarray[Any, Any], *, packed: bool) -> Open:
    data = "".join(f"{' '.join(map(str, row))}\n" for row in values.tolist()).encode()
    path = folder / "a.txt"
    path.write_bytes(gzip.compress(data, 1) if packed else data)
    return lambda: gl.text(path).rename(text="x")


def _tar(folder: Path, values: np.ndarray[Any, Any], *, packed: bool) -> Open:
    pieces = list[bytes]()
    for number, row in enumerate(values.tolist()):
        raw = " ".join(map(str, row)).encode()
        head = (
            (b"%d.txt" % number).ljust(124, b"\0")
            + b"%011o\0" % len(raw)
            + bytes(12)
            + b" " * 8
            + b"0"
        )
        head = head.ljust(257, b"\0") + b"ustar\x0000"
        pieces += [
            head[:148],
            b"%06o\0 " % sum(head),
            head[156:].ljust(356, b"\0"),
            raw.ljust(512, b"\0"),
        ]
    data = b"".join([*pieces, bytes(1024)])
    path = folder / "a.tar"
    path.write_bytes(gzip.compress(data, 1) if packed else data)
    return lambda: gl.webdataset(path).rename(txt="x")


def _rows(folder: Path, values: np.ndarray[Any, Any]) -> Open:
    return lambda: gl.arrays(x=values).cache(path=folder / "cache" / "own")


def _ragged(folder: Path, values: np.ndarray[Any, Any]) -> Open:
    def read(numbers: Any) -> dict[str, Any]:
        return {"x": [np.resize(values[number], 5 + number % 3) for number in numbers.tolist()]}

    source = gl.records(len(values), read, fields={"x": ("i8", (None,))}, version="1")
    return lambda: source.cache(path=folder / "cache" / "own")


OPENERS: dict[str, Callable[[Path, np.ndarray[Any, Any]], Open]] = {
    "idx": _idx,
    "npz": _npz,
    "csv": _csv,
    "tfrecord": _tfrecord,
    "tfrecord.gz": lambda folder, values: _tfrecord(folder, values, packed=True),
    "text": lambda folder, values: _text(folder, values, packed=False),
    "text.gz": lambda folder, values: _text(folder, values, packed=True),
    "tar": lambda folder, values: _tar(folder, values, packed=False),
    "tar.gz": lambda folder, values: _tar(folder, values, packed=True),
    "rows": _rows,
    "ragged": _ragged,
}


def _has_arrow() -> bool:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        return False
    return True


# --- what becomes of it


def _change(rng: np.random.Generator, folder: Path, version: int) -> str:
    """Change one of the kept files, or two; returns in a word how."""
    paths = [path for path in sorted((folder / "cache").rglob("*")) if path.is_file()]
    paths += sorted(folder.glob(".*.gpuload-index"))
    if not paths:
        return "nothing to change"
    path = paths[rng.integers(len(paths))]
    status, data = path.stat(), path.read_bytes()
    way = "flip" if rng.random() < 0.6 else str(rng.choice(OTHER_WAYS))
    if way == "remove":
        path.unlink()
        return way
    if way == "link":
        path.unlink()
        (folder / "elsewhere").write_bytes(data)
        path.symlink_to(folder / "elsewhere")
        return way
    if way == "swap":
        second = paths[rng.integers(len(paths))]
        path.write_bytes(second.read_bytes())
        second.write_bytes(data)
    elif way == "flip":
        place = int(rng.integers(len(data))) if data else 0
        path.write_bytes(data[:place] + bytes(byte ^ 1 << int(rng.integers(8)) for byte in data[place : place + 1])
                         + data[place + 1 :])  # fmt: skip
    else:
        path.write_bytes({
            "mutate": lambda: mutated(data, rng),
            "cut": lambda: data[: int(rng.integers(len(data) + 1))],
            "empty": lambda: b"",
            "zeros": lambda: bytes(len(data)),
        }[way]())  # fmt: skip
    stamp = (10**18 + version + 1, 10**18 + version + 1)
    if rng.random() < 0.3 and way != "swap":
        stamp = (status.st_atime_ns, status.st_mtime_ns + 1)
    os.utime(path, ns=stamp)
    return way


@contextlib.contextmanager
def _small_limits(rng: np.random.Generator, folder: Path) -> Iterator[None]:
    """Keep everything in files, in a folder of the trial, and compare some of them block by
    block."""
    level = logging.getLogger("gpuload").level
    logging.getLogger("gpuload").setLevel(logging.ERROR)
    try:
        with (
            mock.patch.dict(os.environ, {"GPULOAD_CACHE": str(folder / "cache")}),
            mock.patch.object(keep, "SMALL_BYTES", -1),
            mock.patch.object(fileindex, "SMALL_BYTES", 0),
            mock.patch.object(
                keptfile, "EAGER_BYTES", 0 if rng.random() < 0.5 else keptfile.EAGER_BYTES
            ),
        ):
            yield
    finally:
        logging.getLogger("gpuload").setLevel(level)
