"""Inflated streams."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from isal import isal_zlib

from gpuload import signalsafe
from gpuload.storage import inflate
from gpuload.storage.inflate import (
    RAW_BITS,
    inflate_block,
    inflate_member,
    member_library,
    reason_of,
)

CONTENT = bytes(range(256)) * 40


@pytest.fixture(params=[zlib, isal_zlib], ids=["zlib", "ISA-L"], autouse=True)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What inflates members."""
    monkeypatch.setattr(inflate, "member_library", lambda: request.param)
    return request.param


def deflated() -> bytes:
    compressor = zlib.compressobj(wbits=RAW_BITS)
    return compressor.compress(CONTENT) + compressor.flush()


@pytest.mark.parametrize("chunk_bytes", [1, 7, 1 << 20])
def test_a_member_is_its_content_whatever_the_chunks(chunk_bytes: int) -> None:
    data = memoryview(deflated())
    chunks = [data[begin : begin + chunk_bytes] for begin in range(0, len(data), chunk_bytes)]

    assert b"".join(inflate_member(chunks)) == CONTENT


def test_a_member_whose_bytes_end_before_it_does_is_refused() -> None:
    with pytest.raises(EOFError, match="its bytes end before it does"):
        list(inflate_member([memoryview(deflated()[:-1])]))


def test_behind_the_end_of_a_member_no_more_is_read() -> None:
    def chunks() -> Iterator[memoryview]:
        yield memoryview(deflated())
        yield memoryview(b"0")
        raise AssertionError("more was read")

    with pytest.raises(EOFError, match="it ends before its bytes do"):
        list(inflate_member(chunks()))


def test_a_member_that_ends_inside_its_last_chunk_is_refused() -> None:
    with pytest.raises(EOFError, match="it ends before its bytes do"):
        list(inflate_member([memoryview(deflated() + b"0")]))


def test_a_damaged_member_is_refused_with_the_reason_of_the_library(library: Any) -> None:
    data = bytearray(deflated())
    data[0] |= 6  # there is no block of the kind 3
    with pytest.raises(zlib.error) as raised:
        list(inflate_member([memoryview(data)]))
    expected = {zlib: "invalid block type", isal_zlib: "Invalid deflate block found"}
    assert reason_of(raised.value) == expected[library]


def test_isal_inflates_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    member_library.cache_clear()
    assert member_library() is isal_zlib
    member_library.cache_clear()
    monkeypatch.setattr(signalsafe, "is_installed", lambda name: False)
    assert member_library() is zlib
    member_library.cache_clear()


def outcome(library: Any, data: bytes) -> tuple[Any, ...]:
    """Return what a library makes of a member: its content and how it ends, or that it is
    refused."""
    stream = library.decompressobj(RAW_BITS)
    try:
        content = stream.decompress(data, 2 * len(CONTENT))
    except (zlib.error, isal_zlib.error):
        return ("refused",)
    return content, stream.eof, stream.unused_data, stream.unconsumed_tail


def test_what_zlib_takes_isal_takes_with_the_same_result() -> None:
    rng = np.random.default_rng(11)
    content = rng.integers(0, 60, 4_000, np.uint8).tobytes() + bytes(4_000)
    refused = 0
    for level in (1, 9):
        compressor = zlib.compressobj(level, wbits=RAW_BITS)
        data = compressor.compress(content) + compressor.flush()
        for _ in range(400):
            damaged = bytearray(data)
            damaged[int(rng.integers(len(data) if rng.random() < 0.5 else 80))] ^= 1 << int(
                rng.integers(8)
            )
            by_zlib, by_isal = outcome(zlib, bytes(damaged)), outcome(isal_zlib, bytes(damaged))
            if by_zlib == (
                "refused",
            ):  # ISA-L goes on with some codes that zlib refuses: their check sum tells
                refused += 1
                assert by_isal == by_zlib or zlib.crc32(by_isal[0]) != zlib.crc32(content)
            else:
                assert by_isal == by_zlib
    assert 50 < refused < 750


def test_a_block_is_its_content_and_what_stands_behind_it_is_left_alone() -> None:
    assert (
        inflate_block(memoryview(zlib.compress(CONTENT) + b"behind"), len(CONTENT) + 1) == CONTENT
    )


@pytest.mark.parametrize(
    ("data", "most_bytes", "reason"),
    [
        (zlib.compress(CONTENT), len(CONTENT) - 1, "it unpacks to more than 10238 bytes"),
        (zlib.compress(CONTENT)[:-5], len(CONTENT) + 1, "its bytes end too early"),
        (b"", 10, "its bytes end too early"),
    ],
)
def test_a_block_of_another_length_is_refused(data: bytes, most_bytes: int, reason: str) -> None:
    with pytest.raises(EOFError, match=reason):
        inflate_block(memoryview(data), most_bytes)


@pytest.mark.parametrize("place", [0, 1, -1])  # its head, and its check sum
def test_a_damaged_block_is_refused(place: int) -> None:
    data = bytearray(zlib.compress(CONTENT))
    data[place] ^= 1
    with pytest.raises(zlib.error):
        inflate_block(memoryview(data), len(CONTENT) + 1)
