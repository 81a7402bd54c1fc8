"""Chunks of Zarr that unpack to more bytes than their shape explains are refused before memory is
taken for them."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
import sys
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import DamagedBlockError

zarr = pytest.importorskip("zarr", "3", reason="gl.zarr needs zarr 3, and so Python 3.11")
numcodecs = pytest.importorskip("numcodecs.pickles") and sys.modules["numcodecs"]
pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
BOMB = bytes(1 << 25)
PACKED = {
    "gzip": lambda raw: gzip.compress(raw, 1),
    "zlib": lambda raw: zlib.compress(raw, 1),
    "bz2": lambda raw: bz2.compress(raw, 1),
    "lzma": lambda raw: lzma.compress(raw, preset=0),
    "zstd": lambda raw: bytes(numcodecs.Zstd(1).encode(raw)),
    "blosc": lambda raw: bytes(numcodecs.Blosc("zstd", 1).encode(raw)),
    "lz4": lambda raw: bytes(numcodecs.LZ4().encode(raw)),
}
OF_VERSION_3 = {
    "gzip": zarr.codecs.GzipCodec,
    "zstd": zarr.codecs.ZstdCodec,
    "blosc": zarr.codecs.BloscCodec,
}
KINDS = [(name, version) for version in (2, 3) for name in PACKED] + [
    (f"numcodecs.{name}", 3) for name in OF_VERSION_3
]


def write(folder: Path, kind: str, version: int, **options: object) -> Path:
    """Write an array of four numbers, and return the file of its chunk."""
    name = kind.removeprefix("numcodecs.")
    if version == 2:
        options["compressors"] = numcodecs.get_codec({"id": name})
    elif kind in OF_VERSION_3:
        options["compressors"] = [OF_VERSION_3[kind]()]
    else:
        options["compressors"] = [zarr.registry.get_codec_class(f"numcodecs.{name}")()]
    group = zarr.open_group(str(folder), mode="w", zarr_format=version)
    group.create_array("x", shape=(4,), chunks=(4,), dtype="i4", **options)[...] = [1, 2, 3, 4]
    return folder / "x" / ("0" if version == 2 else "c/0")


@pytest.mark.parametrize(("kind", "version"), KINDS)
def test_a_chunk_unpacks_to_what_its_shape_explains(tmp_path, kind, version):
    path = write(tmp_path / "a.zarr", kind, version)
    assert gl.zarr(tmp_path / "a.zarr").read(range(4))["x"].tolist() == [1, 2, 3, 4]
    path.write_bytes(PACKED[kind.removeprefix("numcodecs.")](BOMB))
    source = gl.zarr(tmp_path / "a.zarr")
    tracemalloc.start()
    with pytest.raises(DamagedBlockError, match="a chunk unpacks to more than 1048576 bytes"):
        source.read([0])
    assert tracemalloc.get_traced_memory()[1] < 1 << 23
    tracemalloc.stop()


def test_streams_are_read_as_their_libraries_read_them(tmp_path):
    values = np.arange(4, dtype="<i4")
    raw = values.tobytes()
    alone = lzma.compress(raw, format=lzma.FORMAT_ALONE)
    for kind, content in {
        "gzip": gzip.compress(raw[:8]) + gzip.compress(raw[8:]) + bytes(7),
        "bz2": bz2.compress(raw[:8]) + bz2.compress(raw[8:]) + b"rest",
        "lzma": lzma.compress(raw[:4]) + lzma.compress(raw[4:]),
        "zlib": zlib.compress(raw) + b"rest",
    }.items():
        path = write(tmp_path / f"{kind}.zarr", kind, 2)
        path.write_bytes(content)
        np.testing.assert_array_equal(zarr.open_array(str(path.parent))[...], values)
        assert gl.zarr(tmp_path / f"{kind}.zarr").read(range(4))["x"].tolist() == values.tolist()
        path.write_bytes(content[:-8] if kind != "gzip" else content[:-20])
        if kind != "bz2":
            with pytest.raises(DamagedBlockError, match="zarr cannot decode it"):
                gl.zarr(tmp_path / f"{kind}.zarr").read(range(4))
    group = zarr.open_group(str(tmp_path / "raw.zarr"), mode="w", zarr_format=2)
    codec = numcodecs.LZMA(format=lzma.FORMAT_ALONE)
    group.create_array("x", shape=(4,), chunks=(4,), dtype="<i4", compressors=codec)[...] = values
    (tmp_path / "raw.zarr" / "x" / "0").write_bytes(alone)
    assert gl.zarr(tmp_path / "raw.zarr").read([3])["x"].tolist() == [3]


@pytest.mark.parametrize("version", [2, 3])
def test_frames_of_zstd_without_a_size_are_counted_by_their_blocks(tmp_path, version):
    pa = pytest.importorskip("pyarrow")

    def stream(raw):
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as output:
            output.write(raw)
        return sink.getvalue().to_pybytes()

    path = write(tmp_path / "a.zarr", "zstd", version)
    path.write_bytes(stream(np.arange(4, dtype="<i4").tobytes()))
    assert gl.zarr(tmp_path / "a.zarr").read(range(4))["x"].tolist() == [0, 1, 2, 3]
    block = struct.pack("<I", 1 << 20 | 1 << 1)[:3] + b"\0"  # 128 KiB of zeros
    last = struct.pack("<I", 1 << 20 | 1 << 1 | 1)[:3] + b"\0"
    path.write_bytes(b"\x28\xb5\x2f\xfd\0\x38" + block * (1 << 14) + last)
    with pytest.raises(DamagedBlockError, match="a chunk unpacks to more than 1073741824 bytes"):
        gl.zarr(tmp_path / "a.zarr").read([0])


@pytest.mark.parametrize("version", [2, 3])
def test_texts_that_pack_well_are_read(tmp_path, version):
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=version)
    group.create_array("t", shape=(2,), chunks=(2,), dtype=str)[...] = np.array(
        ["a" * (1 << 22), "b"], object
    )
    assert len(str(gl.zarr(tmp_path / "a.zarr").read([0])["t"][0])) == 1 << 22
