"""Inflated streams."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest

from gpuload.storage.inflate import RAW_BITS, inflate_member

CONTENT = bytes(range(256)) * 40


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
