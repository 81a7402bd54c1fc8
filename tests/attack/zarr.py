"""Zarr groups, sound and damaged: the values of zarr's library, or an error of ours.

Reading happens in a child: codecs of compiled libraries see damaged bytes.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import gpuload as gl
from tests.attack.children import ENDED, TOO_LONG, in_child
from tests.attack.hdf5 import is_equal, outcome_of_any, read_by_gpuload, say
from tests.attack.hunt import Report, hunt, outcome
from tests.attack.mutate import mutated

DTYPES = ("u1", "<f4", ">i2", "<i8", "?")
MOST_RECORDS = 40
VALUES = (
    0,
    1,
    2,
    3,
    -1,
    1000,
    10**11,
    2**63,
    2.5,
    None,
    True,
    "x",
    "",
    "<f8",
    [],
    [2],
    {},
    {"name": "bytes"},
)


def attack(seconds: float, seed: int) -> Report:
    """Read Zarr groups."""
    if find_spec("zarr") is None:
        return Report(without="all of it: zarr is not installed")
    return hunt(seconds, seed, trial, hang_s=90, more_bytes=1 << 28)


def trial(rng: np.random.Generator, folder: Path) -> str:
    """Write a group, damage a file of it or none, and read it."""
    root, is_sound = folder / "a.zarr", rng.random() < 0.2
    _write(rng, root)
    if not is_sound:
        _damage(rng, root)
    result = in_child(_compare, root, is_sound)
    assert not result.startswith(ENDED), result
    assert result != TOO_LONG
    return result


def _damage(rng: np.random.Generator, root: Path) -> None:
    """Change, cut or remove a file of the group; in metadata one value may become another one."""
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    metadata = [
        path for path in paths if path.read_bytes()[:1] == b"{" and json.loads(path.read_bytes())
    ]
    path = (
        metadata[rng.integers(len(metadata))]
        if rng.random() < 0.5
        else paths[rng.integers(len(paths))]
    )
    if rng.random() < 0.1:
        path.unlink()
    elif path in metadata and rng.random() < 0.7:
        values = json.loads(path.read_bytes())
        places = list(_places_in(values))
        node, key = places[rng.integers(len(places))]
        node[key] = VALUES[rng.integers(len(VALUES))]
        path.write_text(json.dumps(values))
    else:
        path.write_bytes(mutated(path.read_bytes(), rng, most=3))


def _places_in(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each place in nested lists and dicts, as these and an index or key."""
    for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
        yield node, key
        if isinstance(value, (dict, list)):
            yield from _places_in(value)


def _compare(root: Path, is_sound: bool) -> str:
    """Read a group with gpuload and with zarr; returns what came of it."""
    warnings.simplefilter("ignore")
    status, source = outcome(gl.zarr, root)
    if status == "refused":
        assert not is_sound, f"a sound group is refused: {source}"
        return "refused"
    results, expected = dict[str, Any](), dict[str, Any]()
    with source:
        own_names = read_by_gpuload(source.describe())
        for name in source.spec.names:
            count = min(len(source), MOST_RECORDS)
            results[name] = outcome(
                lambda name=name, count=count: source.read(range(count), fields=name)[name]
            )
            status, values = outcome_of_any(
                lambda name=name, count=count: _by_zarr(root, name)[:count]
            )
            if status == "read":
                expected[name] = values
    for name, (status, values) in results.items():
        if status == "refused":
            assert not is_sound, f"{name} of a sound group is refused: {values}"
        elif name in expected and (is_sound or name in own_names):
            assert is_equal(values, expected[name]), (
                f"{name}: {values!r}, by zarr {expected[name]!r}"
            )
    return say([status for status, _ in results.values()], len(expected))


def _by_zarr(root: Path, name: str) -> Any:
    import zarr

    return zarr.open_group(str(root), mode="r", use_consolidated=False)[name]


def _write(rng: np.random.Generator, root: Path) -> None:
    import zarr
    from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

    version, count = int(rng.integers(2, 4)), int(rng.integers(1, MOST_RECORDS))
    group = zarr.open_group(str(root), mode="w", zarr_format=version)
    for name in "abc"[: rng.integers(1, 4)]:
        dtype, shape = (
            np.dtype(str(rng.choice(DTYPES))),
            (count, *rng.integers(1, 5, rng.integers(3)).tolist()),
        )
        values = rng.integers(0, 2 if dtype == "?" else 100, shape).astype(dtype)
        chunks = tuple(int(rng.integers(1, length + 1)) for length in shape)
        options: dict[str, Any] = {"compressors": None} if rng.random() < 0.3 else {}
        if version == 3 and rng.random() < 0.6:
            options["compressors"] = (BloscCodec(), GzipCodec(), ZstdCodec(checksum=True))[
                rng.integers(3)
            ]
        if version == 3 and rng.random() < 0.3:
            options["shards"] = tuple(2 * step for step in chunks)
        group.create_array(name, shape=shape, chunks=chunks, dtype=dtype, **options)[...] = values
