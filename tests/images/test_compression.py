"""Lengths of compressed pixels: what other programs compressed, and the kernel beside NumPy."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gpuload import core
from gpuload.images.heads import compression
from gpuload.images.heads.base import HeadError


def compressed(raw, compression):
    """Return bytes as libtiff compresses them, of one row of gray."""
    file = io.BytesIO()
    Image.frombytes("L", (len(raw), 1), raw).save(
        file, "TIFF", compression=compression, strip_size=10**9
    )
    with Image.open(file) as image:
        (begin,), (size,) = image.tag_v2[273], image.tag_v2[279]
    return file.getvalue()[begin : begin + size]


def contents():
    rng = np.random.default_rng(0)
    yield from (bytes(length) for length in (1, 2, 255, 4000, 1_000_000))
    yield from (rng.bytes(length) for length in (1, 2, 300, 30_000))
    yield (rng.integers(0, 3, 50_000) * 100).astype(np.uint8).tobytes()


RAW = list(contents())


@pytest.fixture(params=["numpy", "core"])
def lzw_bytes(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(core, "native", None)
    elif core.native is None:
        pytest.skip(core.problem)
    return compression.lzw_bytes


@pytest.mark.parametrize("raw", RAW, ids=len)
class TestWhole:
    def test_lzw(self, lzw_bytes, raw):
        assert lzw_bytes(memoryview(compressed(raw, "tiff_lzw")), len(raw) + 1) == len(raw)

    def test_deflate(self, raw):
        assert compression.deflate_bytes(
            memoryview(compressed(raw, "tiff_adobe_deflate")), len(raw)
        ) >= len(raw)

    def test_packbits(self, raw):
        assert compression.packbits_bytes(
            memoryview(compressed(raw, "packbits")), len(raw) + 1, len(raw)
        ) == len(raw)

    def test_a_part_is_shorter(self, lzw_bytes, raw):
        if len(raw) < 300:
            return
        half = compressed(raw, "tiff_lzw")
        half = memoryview(half[: len(half) // 2])

        assert lzw_bytes(half, len(raw)) < len(raw)
        packed_bytes = compressed(raw, "packbits")
        assert compression.packbits_bytes(
            memoryview(packed_bytes[: len(packed_bytes) // 2]), len(raw), len(raw)
        ) < len(raw)
        with pytest.raises(HeadError, match="do not end"):
            compression.deflate_bytes(
                memoryview(compressed(raw, "tiff_adobe_deflate")[:-6]), len(raw) + 1
            )


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\x80", b"\0\1\2\3", b"\x80\x7f\xff\xff", b"\x80\x60\x00"]
)
def test_no_lzw_is_refused_or_short(lzw_bytes, data):
    try:
        count = lzw_bytes(memoryview(data), 100)
    except HeadError:
        return
    assert count < 100


@given(
    st.sampled_from(RAW[5:]),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), max_size=4),
    st.data(),
)
def test_the_core_says_what_numpy_says(raw, changes, data):
    if core.native is None:
        pytest.skip(core.problem)
    packed_bytes = bytearray(compressed(raw[:3000], "tiff_lzw"))
    for place, value in changes:
        packed_bytes[place % len(packed_bytes)] = value
    enough = data.draw(st.sampled_from([1, 1000, 3000, 10_000]))

    def message_for(count):
        try:
            return count(np.frombuffer(packed_bytes, np.uint8), enough)
        except HeadError as error:
            return str(error)

    assert message_for(
        lambda array, limit: compression.lzw_bytes(array.data, limit)
    ) == message_for(compression._lzw_bytes)
