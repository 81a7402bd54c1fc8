"""Inflate: unpacks compressed bytes, a bounded piece at a time, with all checks of their format.

    for end, piece in inflate_file(files, number, "gzip")    the streams of a file, one after the other
    for piece in inflate_member(chunks)                      one stream of raw deflate: a member of an archive
    inflate_block(data, most_bytes)                          one stream of zlib in memory: a chunk of HDF5

Formats  gzip (RFC 1952) and zlib (RFC 1950), of which a file has one stream or many; raw deflate
         (RFC 1951).
Padding  Zeros between and behind the streams of a file are passed over, as by Python's gzip;
         anything else is refused.
Checks   Each stream must end, and have the check sum and the length that it states.
ISA-L    Intel's library (package isal) inflates members and blocks where it is installed, in half
         of zlib's time and with the same result. They are inflated each time that they are read,
         files once.
Limit    A file or a member unpacks to at most ``GPULOAD_EXPANSION`` times its bytes, 256 where that
         is not set, or to ALLOWED_BYTES where that is more. The bytes that come out are counted; a
         length that a file states is used only to refuse it early.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from gpuload import signalsafe
from gpuload.errors import FormatError, SpecError
from gpuload.storage.files import Files

EXPANSION = "GPULOAD_EXPANSION"
USUAL_EXPANSION = 256  # of real data little is above 100
LARGEST_EXPANSION = 1032  # that deflate reaches: 258 bytes from two bits
ALLOWED_BYTES = 1 << 30  # for a file of any size
FIRST_BYTES, IN_BYTES = 1 << 10, 1 << 16  # read at a time: at the beginning of a stream, and later
OUT_BYTES = 1 << 20  # unpacked at a time
HEAD_BYTES = 4
BITS = {"gzip": 31, "zlib": 15}  # zlib's wbits: the largest window, and which format
RAW_BITS = -15  # without header and check sum
CHECKS = {"incorrect data check": "check sum", "incorrect length check": "length"}  # zlib's words
MAX_DIGITS = 9  # of the expansion


def is_gzip(beginning: bytes) -> bool:
    """Return True if a file that begins so is one of gzip: magic, deflate, and no reserved flag
    (RFC 1952, 2.3.1)."""
    return (
        beginning.startswith(b"\x1f\x8b\x08")
        and len(beginning) >= HEAD_BYTES
        and not beginning[3] & 0xE0
    )


def inflate_file(files: Files, number: int, kind: str) -> Iterator[tuple[int, bytes]]:
    """Yield the content of a file of streams in pieces: the position in the file, and the unpacked
    bytes.

    Args:
        files: the user's.
        number: of the file.
        kind: ``"gzip"`` or ``"zlib"``.

    Raises:
        FormatError: the file is cut short or damaged, something else follows a stream, or it
            unpacks to more than the limit.
        ChangedFileError, FileError: the file changed, or cannot be read.
        SpecError: ``GPULOAD_EXPANSION`` is no number.
    """
    path, size, at, num_bytes = files.paths[number], int(files.sizes[number]), 0, 0
    limit = limit_bytes(size)
    with files.open_file(number) as descriptor:

        def read(length: int) -> bytes:
            chunk = bytearray(min(length, size - at))
            files.read(number, descriptor, memoryview(chunk), at)
            return bytes(chunk)

        while True:
            begin, stream, step = at, zlib.decompressobj(BITS[kind]), FIRST_BYTES
            # short steps first: the bytes behind a short stream are read again
            while not stream.eof:
                chunk = read(step)
                if not chunk:
                    raise _cut_short(path, size, begin)
                step = min(2 * step, IN_BYTES)
                try:
                    for piece in inflate_chunk(stream, chunk):
                        num_bytes += len(piece)
                        if num_bytes > limit:
                            raise too_large(
                                path, size, num_bytes, unpack=f"gunzip -c {shlex.quote(path)} > ..."
                            )
                        yield at, piece
                except zlib.error as error:
                    raise _damage_error(
                        path, kind, begin, (at, at + len(chunk)), reason_of(error)
                    ) from None
                at += len(chunk) - len(stream.unused_data)
            # Zero bytes behind a stream are padding, as tapes and block devices leave it. Behind
            # them the file ends, or the next stream begins. Its header is checked here: zlib's
            # error for other bytes would not name their place.
            step = FIRST_BYTES
            while at < size and not (rest := read(step).lstrip(b"\0")):
                at, step = min(at + step, size), IN_BYTES
            if at == size:
                break
            at = min(at + step, size) - len(rest)
            if not (is_gzip(read(HEAD_BYTES)) if kind == "gzip" else _is_zlib(read(2))):
                raise _garbage(path, kind, at, size)
        files.check_descriptor(number, descriptor)


def inflate_member(chunks: Iterable[memoryview]) -> Iterator[bytes]:
    """Yield the unpacked bytes of one stream of raw deflate, which must end where its bytes do.

    Raises:
        zlib.error: the stream is damaged.
        EOFError: it ends before its bytes do, or its bytes before it.
    """
    library = member_library()
    stream = library.decompressobj(RAW_BITS)
    try:
        for chunk in chunks:
            if stream.eof:
                raise EOFError("it ends before its bytes do")
            yield from inflate_chunk(stream, chunk)
    except library.error as error:
        raise zlib.error(*error.args) from None
    if not stream.eof:
        raise EOFError("its bytes end before it does")
    if stream.unused_data:
        raise EOFError("it ends before its bytes do")


def inflate_block(data: memoryview, most_bytes: int) -> bytes:
    """Return the unpacked bytes of one stream of zlib, which must end; bytes behind its end are
    left alone.

    Raises:
        zlib.error: the stream is damaged.
        EOFError: it unpacks to more than ``most_bytes`` bytes, or its bytes end too early.
    """
    library = member_library()
    stream = library.decompressobj()
    try:
        content: bytes = stream.decompress(data, most_bytes)
    except library.error as error:
        # raises the same error in the words that people know
        zlib.decompressobj().decompress(data, most_bytes)
        raise zlib.error(*error.args) from None
    if not stream.eof:
        if len(content) == most_bytes:
            raise EOFError(f"it unpacks to more than {most_bytes - 1} bytes")
        raise EOFError("its bytes end too early")
    return content


@functools.cache
def member_library() -> Any:
    """Return the module that inflates members and blocks, with the names of zlib:
    ``isal.isal_zlib`` or ``zlib``."""
    if signalsafe.is_installed("isal.isal_zlib"):
        return signalsafe.import_package("isal.isal_zlib")
    return zlib


def inflate_chunk(stream: zlib._Decompress, chunk: bytes | memoryview) -> Iterator[bytes]:
    """Yield the bytes that a chunk of a stream unpacks to, at most OUT_BYTES at a time."""
    while True:
        piece = stream.decompress(chunk, OUT_BYTES)
        yield piece
        # zlib may hold bytes back although it has taken the whole chunk: a full piece says that
        # there may be more.
        chunk = stream.unconsumed_tail
        if stream.eof or (not chunk and len(piece) < OUT_BYTES):
            return


def inflate_head(head: bytes, kind: str, num_bytes: int) -> bytes | None:
    """Return the first bytes that a file unpacks to, at most ``num_bytes``; None if the head is
    damaged.

    Args:
        head: the first bytes of the file.
        kind: ``"gzip"`` or ``"zlib"``.
        num_bytes: the number of bytes to return.
    """
    try:
        return zlib.decompressobj(BITS[kind]).decompress(head, num_bytes)
    except zlib.error:
        return None


def limit_bytes(packed_bytes: int) -> int:
    """Return to how many bytes a file or a member of so many packed bytes may unpack.

    Raises:
        SpecError: ``GPULOAD_EXPANSION`` is no number.
    """
    text = os.environ.get(EXPANSION, "") or str(USUAL_EXPANSION)
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        raise SpecError(
            f"{EXPANSION}={text[:40]}",
            cause="it is a whole number: to how many times their bytes compressed files may unpack",
            remedy=f"set it to {LARGEST_EXPANSION}, which deflate cannot exceed, or unset it",
        )
    return max(ALLOWED_BYTES, int(text) * packed_bytes)


def too_large(subject: str, packed_bytes: int, num_bytes: int, *, unpack: str) -> FormatError:
    """Return the error for a file or a member that unpacks to more than the limit.

    Args:
        subject: the name of the file or member.
        packed_bytes: its bytes.
        num_bytes: to how many bytes it unpacks, at least.
        unpack: a command that unpacks it.
    """
    limit = limit_bytes(packed_bytes)
    return FormatError(
        f"{subject} has {packed_bytes} bytes, and unpacks to {num_bytes} or more",
        cause=f"the limit is {limit} bytes: {limit // max(packed_bytes, 1)} times as many, where "
        "real data have about 100; files that are made to fill a disk or the memory have 1000",
        remedy=f"if you trust it, set {EXPANSION}={LARGEST_EXPANSION}, or unpack it ({unpack}) and "
        "open the result",
    )


def reason_of(error: Exception) -> str:
    """Return the reason of zlib, or of ISA-L, for refusing bytes, without its number."""
    return re.sub(r"^Error -?\d+ (while decompressing data: )?", "", str(error))


def _is_zlib(beginning: bytes) -> bool:
    """Return True if a stream of zlib may begin so (RFC 1950, section 2.2)."""
    return (
        len(beginning) == 2
        and beginning[0] & 0x8F == 8
        and int.from_bytes(beginning, "big") % 31 == 0
    )


def _cut_short(path: str, size: int, begin: int) -> FormatError:
    return FormatError(
        f"{path} ends at byte {size}, inside the compressed stream that begins at byte {begin}",
        cause="it was cut short, or is still being written",
        remedy="copy it again",
    )


def _damage_error(
    path: str, kind: str, begin: int, between: tuple[int, int], reason: str
) -> FormatError:
    """Return the error for a stream that zlib refused: by a check of the whole, or inside these
    bytes."""
    if reason in CHECKS:
        message = f"{path} is damaged between byte {begin} and {between[1]}"
        cause = f"the {kind} stream there does not unpack to the {CHECKS[reason]} that it says"
    else:
        message = f"{path} is damaged: it cannot be unpacked from a place between byte {between[0]} and {between[1]} on"
        cause = f"{reason}, in the {kind} stream that begins at byte {begin}"
    is_other = kind == "zlib" and not begin
    return FormatError(
        message,
        cause=cause,
        remedy=f"copy it again{'; is it compressed with zlib at all?' * is_other}",
    )


def _garbage(path: str, kind: str, at: int, size: int) -> FormatError:
    cut_command = f"head -c {at} {shlex.quote(path)} > {shlex.quote(f'{path}.cut')}"
    return FormatError(
        f"{path} goes on after its last {kind} stream: from byte {at} to {size} there is something "
        "else",
        cause="bytes were added to it, or another stream begins there and is damaged",
        remedy=f"copy it again; if these bytes are not wanted, leave them out: {cut_command}",
    )
