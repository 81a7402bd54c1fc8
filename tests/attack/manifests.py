"""Manifests with changed numbers and values under right checksums: an error of ours, or bytes of
the files."""

from __future__ import annotations

import copy
import json
import struct
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import gpuload as gl
from gpuload.storage import manifest
from gpuload.storage.files import Files
from tests.attack.hunt import Report, hunt, outcome
from tests.attack.mutate import EDGES, mutated
from tests.sources.tfrecordfiles import example
from tests.sources.tfrecordfiles import write as write_tfrecord

RECORDS = 20  # that are read; a manifest may say that there are many more, of no bytes
VALUES = (
    None,
    True,
    -1,
    0,
    1,
    2**40,
    2**70,
    "",
    "npy",
    "x" * 99,
    [],
    [1],
    {},
    {"list": []},
    1.5,
    float("nan"),
)


def attack(seconds: float, seed: int) -> Report:
    """Open changed manifests, and read records."""
    return hunt(seconds, seed, trial, more_bytes=1 << 27)


def trial(rng: np.random.Generator, folder: Path) -> str:
    """Write files and their manifest, change it, open it and read."""
    kind = str(rng.choice(list(KINDS)))
    with KINDS[kind](folder) as source:
        path = source.index(folder / "a.manifest")
    content = Path(path).read_bytes()
    if rng.random() < 0.2:
        Path(path).write_bytes(mutated(content, rng))
    else:
        _rewrite(path, rng)
    result, _ = outcome(_read, path, kind if rng.random() < 0.5 else "open")
    return f"{kind} {result}"


def _read(path: str, name: str) -> None:
    arguments: dict[str, Any] = {"dtype": "<u4"} if name == "fixed" else {}
    with getattr(gl, name)(path, **arguments) as source:
        count = len(source)
        for number in {0, count // 2, count - 1, *range(min(RECORDS, count))} if count else ():
            source.where(number)
            source.read([number])


def _rewrite(path: str, rng: np.random.Generator) -> None:
    listing = manifest.load(path)
    assert listing is not None
    _, about = manifest._read(path)
    about, arrays = (
        copy.deepcopy(about),
        {name: array.copy() for name, array in listing.arrays.items()},
    )
    for _ in range(rng.integers(1, 4)):
        if rng.random() < 0.7:
            _change_array(arrays, rng)
        else:
            _change_value(about, rng)
    values = {name: about.get(name) for name in ("format", "options", "about", "fingerprints")}
    if not all(isinstance(values[name], dict) for name in ("options", "about", "fingerprints")):
        return
    try:
        json.dumps(about)
    except (TypeError, ValueError):
        return
    real, manifest._file_arrays = manifest._file_arrays, lambda path, files: {}
    try:
        files = Files((), np.zeros((0, 3), np.int64), names=("",))
        manifest.write(
            path, values["format"], files, options=values["options"], about=values["about"], arrays=arrays,
            fingerprints=values["fingerprints"],
        )  # fmt: skip
    finally:
        manifest._file_arrays = real


def _change_array(arrays: dict[str, Any], rng: np.random.Generator) -> None:
    name = str(rng.choice(list(arrays)))
    array = arrays[name]
    chance = rng.random()
    if chance < 0.1:
        del arrays[name]
        if not arrays:
            arrays[name] = array
    elif chance < 0.2:
        arrays[name] = array[: rng.integers(len(array) + 1)]
    elif chance < 0.3:
        arrays[name] = np.concatenate([array, array[:1]])
    elif array.size:
        edge = int(rng.choice(np.array(EDGES, np.uint64))) % 2 ** (8 * array.itemsize)
        place = int(rng.integers(array.size))
        value = (edge, int(array.flat[place]) + 1, int(array.flat[place]) - 1)[rng.integers(3)]
        raw = struct.pack("<Q", value % 2**64)[: array.itemsize]
        array.flat[place] = np.frombuffer(raw, array.dtype)[0]


def _change_value(about: Any, rng: np.random.Generator) -> None:
    """Change a value somewhere in a tree of dicts and lists."""
    keys = list(about) if isinstance(about, dict) else list(range(len(about)))
    if not keys:
        return
    key = keys[rng.integers(len(keys))]
    if isinstance(about[key], (dict, list)) and rng.random() < 0.8:
        _change_value(about[key], rng)
    elif isinstance(about[key], str) and rng.random() < 0.5:
        about[key] = mutated(about[key].encode(), rng, most=2).decode("utf-8", "replace")
    else:
        about[key] = VALUES[rng.integers(len(VALUES))]


def _npy(folder: Path) -> gl.Source:
    for number in range(3):
        np.save(folder / f"{number}.npy", np.arange(12 + number, dtype="<i4").reshape(-1, 1))
    return gl.npy(folder / "*.npy")


def _fixed(folder: Path) -> gl.Source:
    for number in range(3):
        (folder / f"{number}.bin").write_bytes(bytes(range(12 + 4 * number)))
    return gl.fixed(folder / "*.bin", "<u4")


def _text(folder: Path) -> gl.Source:
    (folder / "a.txt").write_text("first\nsecond\n\nthird")
    (folder / "b.txt").write_text("fourth\n")
    return gl.text(folder / "*.txt")


def _tfrecord(folder: Path) -> gl.Source:
    for number in range(2):
        write_tfrecord(
            folder / f"{number}.tfrecord", [example(label=[number, i]) for i in range(3)]
        )
    return gl.tfrecord(folder / "*.tfrecord")


def _idx(folder: Path) -> gl.Source:
    (folder / "a.idx").write_bytes(struct.pack(">HBBII", 0, 11, 2, 3, 2) + bytes(12))
    return gl.idx(folder / "a.idx")


def _npz(folder: Path) -> gl.Source:
    for number in range(2):
        save = np.savez if number else np.savez_compressed
        save(folder / f"{number}.npz", x=np.arange(3 + number), y=np.ones((3 + number, 2), "f4"))
    return gl.npz(folder / "*.npz")


def _images(folder: Path) -> gl.Source:
    for name in ("cat", "dog"):
        (folder / "photos" / name).mkdir(parents=True)
        (folder / "photos" / name / "1.jpg").write_bytes(b"\xff\xd8\xff" + bytes(50))
    return gl.images(folder / "photos")


def _hdf5(folder: Path) -> gl.Source:
    import h5py

    for number in range(2):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            file["x"] = np.arange(6)
            file.create_dataset(
                "packed", data=np.arange(12).reshape(6, 2), chunks=(2, 1), compression="gzip"
            )
            file.create_dataset("other", data=np.arange(6), chunks=(2,), compression="lzf")
            file.create_dataset("name", data=["a"] * 6, dtype=h5py.string_dtype())
            file.create_dataset("holes", (6,), "i4", chunks=(2,))[2:4] = 1
    return gl.hdf5(folder / "*.h5")


def _zarr(folder: Path) -> gl.Source:
    import zarr

    for number in range(2):
        group = zarr.open_group(str(folder / f"{number}.zarr"), mode="w", zarr_format=2 + number)
        group.create_array("x", shape=(6, 2), chunks=(2, 1), dtype="i4")[...] = 1
        group.create_array("plain", shape=(6,), chunks=(2,), dtype="i4", compressors=None)[...] = 1
        group.create_array("name", shape=(6,), chunks=(4,), dtype=str)[...] = np.array(
            ["a"] * 6, object
        )
        group.create_array("holes", shape=(6,), chunks=(2,), dtype="i4")[2:4] = 1
    return gl.zarr(folder / "*.zarr")


def _has_zarr() -> bool:
    return find_spec("zarr") is not None and int(version("zarr").partition(".")[0]) >= 3


KINDS = {
    "npy": _npy,
    "fixed": _fixed,
    "text": _text,
    "tfrecord": _tfrecord,
    "idx": _idx,
    "images": _images,
    "npz": _npz,
}
KINDS |= {"hdf5": _hdf5} if find_spec("h5py") else {}
KINDS |= {"zarr": _zarr} if _has_zarr() else {}
