"""CRC-32: zlib's, whichever way it is computed."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from gpuload import core
from gpuload.storage import crc32 as module
from gpuload.storage.crc32 import LONG_BYTES, crc32

RNG = np.random.default_rng(7)
DATA = RNG.integers(0, 256, 20_000, np.uint8)
# Around the bytes of all registers, which are 64 or 128, once and twice; and what is left behind
# them.
SIZES = [*range(600), LONG_BYTES - 1, LONG_BYTES, LONG_BYTES + 1, 19_999]


def test_it_is_that_of_zlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONG_BYTES", 0)
    for size in SIZES:
        before = int(RNG.integers(0, 1 << 32))
        part = DATA[7 : 7 + size].tobytes()
        for data in (part, bytearray(part), memoryview(DATA)[7 : 7 + size]):
            assert crc32(data, before) == zlib.crc32(data, before), (size, before)


def test_it_is_that_of_zlib_with_registers_of_128_bits() -> None:
    if core.native is None or core.native.crc32_by_128_bits(DATA) is None:
        pytest.skip("no core, or a processor without carry-less multiplication")
    for size in SIZES:
        before = int(RNG.integers(0, 1 << 32))
        assert core.native.crc32_by_128_bits(DATA[:size], before) == zlib.crc32(
            DATA[:size], before
        ), (size, before)


def test_without_the_core_it_is_zlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "native", None)
    assert crc32(memoryview(DATA), 5) == zlib.crc32(DATA, 5)


def test_of_no_bytes_it_is_the_one_before() -> None:
    assert (crc32(b""), crc32(b"", 77)) == (0, 77)


def test_pieces_one_after_the_other_have_the_checksum_of_all() -> None:
    assert crc32(memoryview(DATA)[9_000:], crc32(memoryview(DATA)[:9_000])) == zlib.crc32(DATA)
