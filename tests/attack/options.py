"""HDF5 files and Zarr arrays with every option that their libraries have: read as the library reads
them, or refused.

A refusal has to be one of REFUSALS, each for what is not supported; "damaged" is none of these,
since all are sound.
"""

from __future__ import annotations

import contextlib
import ctypes
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import gpuload as gl
from tests.attack.hunt import Report, hunt

REFUSALS = (
    "Python objects", "none of NumPy's", "has no form here", "turning their bytes", "each of its numbers",
    "a row has one of them", "in other files", "more axes or bytes", "is no number of ours", "is not supported",
)  # fmt: skip
DTYPES = ("i1", "u1", "<i2", ">i2", "<i4", ">i4", "<u8", "<f2", ">f4", "<f8", "?", "<c8", "S3")
EDGES_UNFILTERED = 2  # H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS


def attack(seconds: float, seed: int) -> Report:
    """Read HDF5 files and Zarr arrays."""
    trials = [
        trial for name, trial in (("h5py", hdf5_trial), ("zarr", zarr_trial)) if find_spec(name)
    ]
    if not trials:
        return Report(without="all of it: neither h5py nor zarr is installed")
    return hunt(seconds, seed, lambda rng, folder: trials[rng.integers(len(trials))](rng, folder))


def _shapes(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    axes = int(rng.integers(1, 4))
    shape = tuple(int(n) for n in rng.integers(1, 12, axes))
    return shape, tuple(int(rng.integers(1, n + 2)) for n in shape)


def _values(
    rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> np.ndarray[Any, Any]:
    if dtype.kind == "S":
        return rng.choice(np.array([b"", b"a", b"bcd"]), shape).astype(dtype)
    return rng.integers(0, 120, shape).astype(dtype)


def _write_some(
    rng: np.random.Generator, array: Any, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> None:
    """Write all of an array, or a part."""
    if rng.random() < 0.5:
        array[...] = _values(rng, dtype, shape)
        return
    for _ in range(int(rng.integers(1, 4))):
        place = tuple(int(rng.integers(n)) for n in shape)
        part = tuple(slice(at, at + int(rng.integers(1, 5))) for at in place)
        array[part] = _values(
            rng, dtype, tuple(len(range(*s.indices(n))) for s, n in zip(part, shape, strict=True))
        )


def _is_same(left: Any, right: Any) -> bool:
    left, right = np.asarray(left), np.asarray(right)
    if left.shape != right.shape:
        return False
    return bool(
        np.array_equal(left, right, equal_nan=left.dtype.kind in "fc" and right.dtype.kind in "fc")
    )


def _check(source_of: Any, expected: dict[str, Any]) -> str:
    """Return what came of it; raises AssertionError for other values, and for a refusal that is
    none of REFUSALS."""
    source = _source(source_of)
    if isinstance(source, str):
        assert any(text in source for text in REFUSALS), source
        return "refused"
    with source:
        records = source.read(range(len(source)))
    for name, values in expected.items():
        if not isinstance(values, list):
            assert _is_same(records[name], values), (name, records[name], values)
            continue
        is_text = bool(values) and isinstance(values[0], str)
        for row, value in zip(records[name], values, strict=True):
            assert str(row) == value if is_text else _is_same(row, value), (name, row, value)
    return "read"


def _source(source_of: Any) -> Any:
    try:
        return source_of()
    except gl.GpuloadError as error:
        return str(error)


def hdf5_trial(rng: np.random.Generator, folder: Path) -> str:
    """Write a file of HDF5 with random options, and read it."""
    import h5py

    path, expected = folder / "a.h5", dict[str, Any]()
    bounds = [("earliest", "latest"), ("v108", "latest"), ("v110", "latest"), ("latest", "latest")]
    block = int(rng.choice([0, 0, 0, 512, 1024]))
    shape, chunk = _shapes(rng)
    with h5py.File(
        path,
        "w",
        libver=bounds[rng.integers(4)],
        userblock_size=block,
        track_order=bool(rng.random() < 0.3),
    ) as file:
        for number in range(int(rng.integers(1, 3))):
            name = f"x{number}"
            _hdf5_dataset(rng, file, name, shape, chunk)
        if rng.random() < 0.3:
            file.create_dataset("many", (100,), "i4", chunks=(1,), maxshape=(None,))
            del file["many"]
    with h5py.File(path) as file:
        for name, dataset in file.items():
            values = dataset[...]
            if h5py.check_string_dtype(dataset.dtype) is not None and dataset.dtype.hasobject:
                expected[name] = [value.decode() for value in values]
            elif dataset.dtype.hasobject:
                expected[name] = list(values)
            elif values.dtype.names:
                expected |= {f"{name}.{part}": values[part] for part in values.dtype.names}
            else:
                expected[name] = values
    return f"HDF5: {_check(lambda: gl.hdf5(path, fill=True, mask_and_scale=False), expected)}"


def _hdf5_dataset(
    rng: np.random.Generator, file: Any, name: str, shape: tuple[int, ...], chunk: tuple[int, ...]
) -> None:
    import h5py

    kind = rng.random()
    if kind < 0.1:
        data = file.create_dataset(
            name, shape[:1], h5py.string_dtype(), chunks=(min(chunk[0], shape[0]),)
        )
        for row in range(shape[0]):
            if rng.random() < 0.7:
                data[row] = "ä" * int(rng.integers(0, 9))
        return
    if kind < 0.15:
        data = file.create_dataset(name, shape[:1], h5py.vlen_dtype(np.dtype("<i4")))
        for row in range(shape[0]):
            data[row] = np.arange(int(rng.integers(0, 5)))
        return
    dtype = np.dtype(DTYPES[rng.integers(len(DTYPES))])
    stored: Any = dtype
    if kind < 0.2:
        stored = h5py.enum_dtype({"a": 0, "b": 1}, basetype="i1")
        dtype = np.dtype("i1")
    elif kind < 0.3:
        stored = dtype = np.dtype([("a", "<i4"), ("b", ">f8", (2,))])
    elif kind < 0.35 and dtype.kind in "iuf":
        stored = np.dtype((dtype, (2,)))
    options: dict[str, Any] = {}
    if rng.random() < 0.8:
        options["chunks"] = chunk
        most = [None if rng.random() < 0.3 else n + int(rng.integers(0, 5)) for n in shape]
        if rng.random() < 0.7:
            options["maxshape"] = tuple(
                max(n, step) if n is not None else None for n, step in zip(most, chunk, strict=True)
            )
        options["compression"] = [None, None, "gzip", "lzf"][rng.integers(4)]
        options["shuffle"], options["fletcher32"] = (bool(rng.random() < 0.3) for _ in range(2))
        if "maxshape" not in options:
            options["chunks"] = tuple(min(n, step) for n, step in zip(shape, chunk, strict=True))
    if dtype.kind in "iuf" and stored is dtype and rng.random() < 0.4:
        options["fillvalue"] = dtype.type(7)
    options["fill_time"] = ["ifset", "alloc"][rng.integers(2)]
    if dtype.kind not in "iufbS":
        options.pop("fletcher32", None)
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    has_edges = "chunks" in options and rng.random() < 0.3
    if has_edges and _leave_edges(settings, tuple(options["chunks"])):
        options["dcpl"] = settings
    data = file.create_dataset(name, shape, stored, **options)
    if dtype.names or stored is not dtype:
        if rng.random() < 0.7:
            if dtype.names:
                values = np.zeros(shape, dtype)
                values["a"] = rng.integers(0, 9, shape)
                values["b"] = rng.integers(0, 9, (*shape, 2))
                data[...] = values
            else:
                data[...] = rng.integers(0, 2, (*shape, *getattr(stored, "shape", ()))).astype(
                    dtype
                )
        return
    _write_some(rng, data, dtype, shape)
    if "maxshape" in options and rng.random() < 0.3:
        most = options["maxshape"]
        grown = tuple(
            n + int(rng.integers(0, 4)) if m is None else int(rng.integers(1, m + 1))
            for n, m in zip(shape[1:], most[1:], strict=True)
        )
        data.resize((shape[0], *grown))
        _write_some(rng, data, dtype, (shape[0], *grown))


def _leave_edges(settings: Any, chunk: tuple[int, ...]) -> bool:
    """Have chunks at the edges go without filters; False where the library of HDF5 is not found."""
    import h5py

    paths = list((Path(h5py.__file__).parents[1] / "h5py.libs").glob("libhdf5-*.so*"))
    if not paths:
        return False
    function = ctypes.CDLL(str(paths[0])).H5Pset_chunk_opts
    function.argtypes = [ctypes.c_int64, ctypes.c_uint]
    settings.set_chunk(chunk)
    return bool(function(settings.id, EDGES_UNFILTERED) >= 0)


def zarr_trial(rng: np.random.Generator, folder: Path) -> str:
    """Write a group of Zarr with random options, and read it."""
    warnings.simplefilter("ignore")
    import zarr

    root, version, expected = folder / "a.zarr", int(rng.integers(2, 4)), dict[str, Any]()
    shape, chunk = _shapes(rng)
    group = zarr.open_group(str(root), mode="w", zarr_format=version)
    for number in range(int(rng.integers(1, 3))):
        array = _zarr_array(rng, group, f"x{number}", shape, chunk, version)
        if array is not None and rng.random() < 0.3:
            zarr.consolidate_metadata(str(root))
    for name, array in group.arrays():
        values = np.asarray(array[...])
        expected[name] = list(map(str, values)) if array.dtype.kind in "OT" else values
    if not expected:
        return "Zarr: zarr refuses it"
    return f"Zarr: {_check(lambda: gl.zarr(root, fill=True, mask_and_scale=False), expected)}"


def _zarr_array(
    rng: np.random.Generator,
    group: Any,
    name: str,
    shape: tuple[int, ...],
    chunk: tuple[int, ...],
    version: int,
) -> Any:
    import zarr
    from numcodecs import BZ2, LZ4, Blosc, Delta, GZip, Shuffle, Zlib

    chunk = tuple(min(n, step) for n, step in zip(shape, chunk, strict=True))
    if rng.random() < 0.1:
        with contextlib.suppress(ValueError, TypeError):
            array = group.create_array(name, shape=shape[:1], chunks=chunk[:1], dtype=str)
            array[...] = np.array(["ä" * int(n) for n in rng.integers(0, 5, shape[0])], object)
            return array
        return None
    dtype = np.dtype(DTYPES[rng.integers(len(DTYPES))])
    options: dict[str, Any] = {"order": "CF"[rng.integers(2)]}
    if dtype.kind in "iuf":
        options["fill_value"] = [0, 7, None, *([np.nan] if dtype.kind == "f" else [])][
            rng.integers(3)
        ]
    if version == 2:
        options["filters"] = [None, [Delta(dtype=dtype.str)] if dtype.kind in "iu" else None][
            rng.integers(2)
        ]
        compressors = [None, "auto", GZip(), Zlib(), BZ2(), LZ4(), Blosc(), Shuffle(dtype.itemsize)]
        options["compressors"] = compressors[rng.integers(len(compressors))]
        options["chunk_key_encoding"] = {"name": "v2", "separator": "./"[rng.integers(2)]}
    else:
        codecs = zarr.codecs
        choices: list[Any] = [
            None,
            "auto",
            codecs.GzipCodec(),
            codecs.ZstdCodec(),
            codecs.BloscCodec(),
        ]
        choices += [[codecs.GzipCodec(), codecs.Crc32cCodec()]]
        options["compressors"] = choices[rng.integers(len(choices))]
        if rng.random() < 0.3:
            order = tuple(int(axis) for axis in rng.permutation(len(shape)))
            options["filters"] = [codecs.TransposeCodec(order=order)]
        if rng.random() < 0.3:
            options["shards"] = tuple(step * int(rng.integers(1, 4)) for step in chunk)
        if dtype.itemsize > 1 and dtype.kind in "iuf" and rng.random() < 0.4:
            options["serializer"] = codecs.BytesCodec(endian=["big", "little"][rng.integers(2)])
        name_of_keys = ["default", "v2"][rng.integers(2)]
        options["chunk_key_encoding"] = {"name": name_of_keys, "separator": "./"[rng.integers(2)]}
    options["config"] = {"write_empty_chunks": bool(rng.random() < 0.5)}
    try:
        array = group.create_array(name, shape=shape, chunks=chunk, dtype=dtype, **options)
        _write_some(rng, array, dtype, shape)
    except (ValueError, TypeError, NotImplementedError, RuntimeError):
        if name in group:
            del group[name]
        return None
    return array
