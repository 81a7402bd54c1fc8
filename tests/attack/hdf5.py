"""HDF5 files, sound and damaged: the values of h5py, or an error of ours.

Reading happens in a child: HDF5's library ends the process for some damaged files, as
`formats/hdf5/source.py` says. That is counted, and no finding; the end of a process that opened the
file by gpuload and not by h5py is one.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import gpuload as gl
from tests.attack.children import ENDED, in_child
from tests.attack.hunt import Report, hunt, outcome
from tests.attack.mutate import mutated

DTYPES = ("u1", "<f4", ">i2", "<i8", "?", "S3")
MOST_RECORDS = 40
Arrays = dict[str, Any]


def attack(seconds: float, seed: int) -> Report:
    """Read HDF5 files."""
    if find_spec("h5py") is None:
        return Report(without="all of it: h5py is not installed")
    return hunt(seconds, seed, trial, hang_s=90, more_bytes=1 << 28)


def trial(rng: np.random.Generator, folder: Path) -> str:
    """Write a file, damage it or not, and read it."""
    path, is_sound = folder / "a.h5", rng.random() < 0.2
    names = _write(rng, path)
    if not is_sound:
        path.write_bytes(mutated(path.read_bytes(), rng, most=3))
    result = in_child(_compare, path, is_sound)
    if result.startswith(ENDED):
        assert not is_sound, f"a sound file: {result}"
        by_h5py = in_child(_read_all, path, names)
        assert by_h5py.startswith(ENDED), f"{result}, and by h5py {by_h5py}"
    return result


def _compare(path: Path, is_sound: bool) -> str:
    """Read a file with gpuload and with h5py; returns what came of it."""
    status, source = outcome(gl.hdf5, path)
    if status == "refused":
        assert not is_sound, f"a sound file is refused: {source}"
        return "refused"
    results = dict[str, Any]()
    with source:
        own_names = read_by_gpuload(source.describe())
        for name in source.spec.names:
            results[name] = outcome(
                lambda name=name: source.read(range(min(len(source), MOST_RECORDS)), fields=name)[
                    name
                ]
            )
    expected = _by_h5py(path, list(results))
    for name, (status, values) in results.items():
        if status == "refused":
            assert not is_sound, f"{name} of a sound file is refused: {values}"
        elif name in expected and (is_sound or name in own_names):
            assert is_equal(values, expected[name]), (
                f"{name}: {values!r}, by h5py {expected[name]!r}"
            )
    return say([status for status, _ in results.values()], len(expected))


def read_by_gpuload(description: str) -> set[str]:
    """Return the fields that gpuload decodes itself, from what `Source.describe` says.

    Others have the bytes that a codec of the library makes of damaged ones: lzf and Blosc leave
    memory as it was.
    """
    parts = [part.partition(": ") for part in description.split("; ")]
    return {
        name for names, _, how in parts if "decoded by" not in how for name in names.split(", ")
    }


def say(statuses: list[str], num_expected: int) -> str:
    """Return in words what came of the fields of a source."""
    if "read" not in statuses:
        return "opened, all fields refused"
    words = "read" if num_expected else "read, not by the library"
    return f"{words}, some fields refused" if "refused" in statuses else words


def is_equal(values: Any, expected: Any) -> bool:
    """Return True if the values of a field are those of an array."""
    if len(values) != len(expected):
        return False
    if not isinstance(values, np.ndarray) or values.dtype == object:
        pairs = zip(values, expected, strict=True)
        return all(np.array_equal(np.asarray(value), np.asarray(right)) for value, right in pairs)
    return bool(np.array_equal(values, expected, equal_nan=values.dtype.kind == "f"))


def _by_h5py(path: Path, names: list[str]) -> Arrays:
    """Return the arrays that h5py reads of the file."""
    import h5py

    arrays = Arrays()
    try:
        with h5py.File(path) as file:
            for name in names:
                status, values = outcome_of_any(lambda name=name: file[name][:MOST_RECORDS])
                if status == "read":
                    arrays[name] = values
    except Exception:  # h5py raises many kinds
        return arrays
    return arrays


def outcome_of_any(function: Any) -> tuple[str, Any]:
    """Return "read" and what a call returns, or "refused" and the exception of a library."""
    try:
        return "read", function()
    except Exception as error:
        return "refused", error


def _read_all(path: Path, names: list[str]) -> str:
    """Do with h5py what gpuload does: look at all datasets, and read them."""
    import h5py

    with h5py.File(path) as file:
        for name in file:
            outcome_of_any(lambda name=name: (file[name].chunks, file[name][:]))
    return f"read {len(_by_h5py(path, names))} of {len(names)} datasets"


def _write(rng: np.random.Generator, path: Path) -> list[str]:
    """Write a file; returns the names of its datasets."""
    import h5py

    count, libver = (
        int(rng.integers(1, MOST_RECORDS)),
        (("earliest", "v108"), ("v110", "v110"))[rng.integers(2)],
    )
    names = list("abc")[: rng.integers(1, 4)]
    with h5py.File(path, "w", libver=libver) as file:
        for name in names:
            dtype, shape = (
                np.dtype(str(rng.choice(DTYPES))),
                (count, *rng.integers(1, 5, rng.integers(3)).tolist()),
            )
            values = rng.integers(0, 2 if dtype == "?" else 100, shape).astype(dtype)
            options: dict[str, Any] = {}
            if rng.random() < 0.7:
                options["chunks"] = tuple(int(rng.integers(1, length + 1)) for length in shape)
                options |= {
                    "compression": (None, "gzip", "lzf")[rng.integers(3)],
                    "shuffle": bool(rng.random() < 0.3),
                }
                options["fletcher32"] = bool(rng.random() < 0.3)
            file.create_dataset(name, data=values, **options)
    return names
