"""Unpacked copies: compressed files, unpacked once into the cache folder, so that records have a place in a file.

    originals = expand("train-*.gz")
    files, found = look_at(unpacked(originals), head_bytes, use)     a file that is not compressed stands for itself
    files = named(files, originals)                                  in messages and fingerprints

Formats  gzip (RFC 1952), one member or many one after the other; zlib (RFC 1950). Zeros behind the last one, with which
         tapes are filled up, are passed over, as `gzip` does; anything else there is refused.
Checks   Each stream must end, and have the check sum and length that it says. A copy is kept when all of them have.
Bounds   Memory: a few MiB a thread. Disk: a copy has at most LARGEST_RATIO times the bytes of its file, or
         ALLOWED_BYTES, and FREE_PART of the free space; what would become more is refused, and nothing is left of it.
Where    `derived.py`: ``GPULOAD_CACHE``. A file that changed is unpacked anew; the copies of old ones may be removed.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gpuload.errors import FileError, FormatError, GpuloadError, SpecError
from gpuload.kernels.threads import each, num_cores
from gpuload.progress import Progress
from gpuload.storage.derived import FOLDER, cached, folder, kept, key_of
from gpuload.storage.files import Files, look_at, open_error, read_at

LARGEST_RATIO = 256  # deflate reaches 1032; of real data little is above 100
ALLOWED_BYTES = 1 << 30  # whatever the ratio
FREE_PART = 0.9  # of the free space of the disk
FIRST_BYTES, IN_BYTES = 1 << 10, 1 << 16  # read at a time: at the beginning of a stream, and later
OUT_BYTES = 1 << 20  # unpacked at a time
MIB = 1 << 20
NAME_LENGTH = 40  # of a file's name, that a copy's ends in; names have at most 255 bytes
COPY = 1  # counted up when copies are made in another way
HEAD_BYTES = 4
BITS = {"gzip": 31, "zlib": 15}  # zlib's wbits: the largest window, and which format
STORED = {"auto", *BITS}
CHECKS = {"incorrect data check": "check sum", "incorrect length check": "length"}  # what zlib says
log = logging.getLogger("gpuload")


def is_gzip(beginning: bytes) -> bool:
    """Return True if a file that begins so is one of gzip: magic, deflate, and no reserved flag (RFC 1952, 2.3.1)."""
    return beginning.startswith(b"\x1f\x8b\x08") and len(beginning) >= HEAD_BYTES and not beginning[3] & 0xE0


def unpacked(paths: Sequence[str], compression: str = "auto") -> list[str]:
    """Return where the bytes of each file lie unpacked: in a copy, or the file itself if it is not compressed.

    Copies are made now if they are not there yet: by all cores, file by file, with progress. The log says where.

    Args:
        paths: absolute paths, from ``expand``.
        compression: ``"auto"``: a file that begins as gzip does is unpacked, any other is taken as it is. ``"gzip"``:
            all must be of gzip. ``"zlib"``: all are zlib streams, which no magic tells from other files.

    Raises:
        FormatError: a file is cut short or damaged, something else follows its last stream, it unpacks to very much
            more than it has, or it is not of the compression that was named.
        FileError: a file is missing or cannot be read; copies can be written nowhere, or there is no space.
        SpecError: there is no such compression.
    """
    if not isinstance(compression, str) or compression not in STORED:
        raise SpecError(
            f"compression = {compression!r}", cause=f"it is one of {sorted(STORED)}", remedy='pass "gzip", say'
        )
    files, heads = look_at(paths, HEAD_BYTES, lambda path, size, head: head)
    packed = list(range(len(files))) if compression == "zlib" else [i for i, head in enumerate(heads) if is_gzip(head)]
    if compression == "gzip" and len(packed) < len(files):
        raw = next(number for number, head in enumerate(heads) if not is_gzip(head))
        raise FormatError(
            f"{files.paths[raw]} is not compressed with gzip",
            cause=f"such a file begins with 1f 8b 08, this one with {heads[raw].hex(' ') or 'nothing: it is empty'}",
            remedy="leave the compression out, or pass the right one",
        )
    return _copies(files, packed, "zlib" if compression == "zlib" else "gzip") if packed else list(files.paths)


def named(files: Files, originals: Sequence[str]) -> Files:
    """Return files under the names of those that they were unpacked from, for messages and fingerprints."""
    return replace(files, names=tuple(os.path.basename(path) for path in originals))


@dataclass(frozen=True)
class Copy:
    """A derived file of unpacked bytes.

    Attributes:
        place: where it is kept.
        work_bytes: how much there is to read or write, for progress.
        write: writes it to a new file; called with its path, and a function that is told how many of ``work_bytes`` are
            done, again and again.
        num_bytes: the size that it has, if that is known: a file of another size is made anew.
    """

    place: str
    work_bytes: int
    write: Callable[[str, Callable[[int], None]], None]
    num_bytes: int | None = None


def keep(copies: Sequence[Copy]) -> None:
    """Make the copies that are not there yet: in as many threads as there are cores, with progress.

    Raises:
        FileError: they can be written nowhere, or there is no space. What ``write`` raises goes on.
    """
    done, stopped = [0] * len(copies), list[bool]()
    total = sum(copy.work_bytes for copy in copies)

    def load(copy: Copy, path: str) -> str | None:
        is_there = os.path.isfile(path) and copy.num_bytes in (None, os.path.getsize(path))
        return path if is_there else None

    with Progress("unpacking") as progress:

        def go_on() -> None:
            if stopped:
                raise _BrokenOff("unpacking was broken off", cause="Python is ending", remedy="open the files again")

        def show(number: int, num_bytes: int) -> None:
            go_on()
            done[number] = num_bytes
            progress.show(sum(done) // MIB, max(total // MIB, 1), "MiB")

        def make(number: int) -> None:
            copy = copies[number]
            kept([copy.place], partial(load, copy), lambda path: copy.write(path, partial(show, number)), go_on)

        each(make, range(len(copies)), num_cores(), lambda: stopped.append(True))


class _BrokenOff(GpuloadError):
    """A thread was asked to end."""


def _copies(files: Files, packed: Sequence[int], kind: str) -> list[str]:
    """Return the paths of all files, with those of copies for the packed ones."""
    paths, copies = list(files.paths), list[Copy]()
    for number in packed:
        paths[number] = cached(f"{key_of(files, number, 'unpacked', COPY, kind)}-{stem(files.paths[number])}")
        copies.append(Copy(paths[number], int(files.sizes[number]), partial(_unpack, files, number, kind)))
    keep(copies)
    log.info("%d of %d files are compressed; their unpacked copies are in %s", len(packed), len(files), folder())
    return paths


def stem(path: str) -> str:
    """Return what a copy of a file is called, behind its key."""
    name = os.path.basename(path)
    return (name[:-3] if name.lower().endswith(".gz") else name)[:NAME_LENGTH]


def _unpack(files: Files, number: int, kind: str, to: str, show: Callable[[int], None]) -> None:
    """Write the unpacked bytes of a file to a new one."""
    path, size = files.paths[number], int(files.sizes[number])
    most = max(ALLOWED_BYTES, LARGEST_RATIO * size)
    free = int(FREE_PART * shutil.disk_usage(os.path.dirname(to)).free)
    written = 0
    with open(to, "xb", OUT_BYTES) as out:
        for at, piece in _streams(files, number, kind):
            written += len(piece)
            if written > min(most, free):
                raise _too_much(path, size, at, written, is_bomb=most < free)
            out.write(piece)
            show(at)


def _streams(files: Files, number: int, kind: str) -> Iterator[tuple[int, bytes]]:
    """Yield all that a file of streams holds, unpacked, a piece at a time, after how far the file was read."""
    path, size, at = files.paths[number], int(files.sizes[number]), 0
    with files.opened(number) as descriptor:

        def read(num_bytes: int) -> bytes:
            chunk = bytearray(min(num_bytes, size - at))
            try:
                num_read = read_at(descriptor, memoryview(chunk), at)
            except OSError as error:
                raise open_error(path, error) from None
            if num_read < len(chunk):
                raise files.changed(number, f"it ends at byte {at + num_read}")
            return bytes(chunk)

        while True:
            begin, stream, step = at, zlib.decompressobj(BITS[kind]), FIRST_BYTES
            while not stream.eof:  # a file of many short streams is read in short steps: the rest of each is copied
                chunk = read(step)
                if not chunk:
                    raise _cut_short(path, size, begin)
                step = min(2 * step, IN_BYTES)
                try:
                    for piece in inflated(stream, chunk):
                        yield at, piece
                except zlib.error as error:
                    raise _damaged(path, kind, begin, (at, at + len(chunk)), reason_of(error)) from None
                at += len(chunk) - len(stream.unused_data)
            step = FIRST_BYTES
            while at < size and not (rest := read(step).lstrip(b"\0")):
                at, step = min(at + step, size), IN_BYTES
            if at == size:
                break
            at = min(at + step, size) - len(rest)
            if not (is_gzip(read(HEAD_BYTES)) if kind == "gzip" else _is_zlib(read(2))):
                raise _garbage(path, kind, at, size)
        files.check_opened(number, descriptor)


def inflated(stream: zlib._Decompress, chunk: bytes | memoryview) -> Iterator[bytes]:
    """Yield what some more bytes of a stream unpack to, at most OUT_BYTES at a time."""
    while True:
        piece = stream.decompress(chunk, OUT_BYTES)
        yield piece
        chunk = stream.unconsumed_tail
        if stream.eof or (not chunk and len(piece) < OUT_BYTES):
            return


def reason_of(error: Exception) -> str:
    """Return what zlib says of damaged bytes, without its number."""
    return str(error).rpartition(": ")[2]


def _is_zlib(beginning: bytes) -> bool:
    """Return True if a stream of zlib may begin so (RFC 1950, section 2.2)."""
    return len(beginning) == 2 and beginning[0] & 0x8F == 8 and int.from_bytes(beginning, "big") % 31 == 0


def _cut_short(path: str, size: int, begin: int) -> FormatError:
    return FormatError(
        f"{path} ends at byte {size}, inside the compressed stream that begins at byte {begin}",
        cause="it was cut short, or is still being written",
        remedy="copy it again",
    )


def _damaged(path: str, kind: str, begin: int, between: tuple[int, int], reason: str) -> FormatError:
    """Return the error for what zlib refused: a check of the whole stream, or something that it met in these bytes."""
    if reason in CHECKS:
        what = f"{path} is damaged between byte {begin} and {between[1]}"
        cause = f"the {kind} stream there does not unpack to the {CHECKS[reason]} that it says"
    else:
        what = f"{path} is damaged: it cannot be unpacked from a place between byte {between[0]} and {between[1]} on"
        cause = f"{reason}, in the {kind} stream that begins at byte {begin}"
    is_other = kind == "zlib" and not begin
    return FormatError(what, cause=cause, remedy=f"copy it again{'; is it compressed with zlib at all?' * is_other}")


def _garbage(path: str, kind: str, at: int, size: int) -> FormatError:
    cut = f"head -c {at} {shlex.quote(path)} > {shlex.quote(f'{path}.cut')}"
    return FormatError(
        f"{path} goes on after its last {kind} stream: from byte {at} to {size} there is something else",
        cause="bytes were added to it, or what should be another stream there is damaged",
        remedy=f"copy it again; if these bytes are not wanted, leave them out: {cut}",
    )


def _too_much(path: str, size: int, at: int, written: int, *, is_bomb: bool) -> GpuloadError:
    by_hand = f"unpack it yourself (gunzip -c {shlex.quote(path)} > ...) and open the result"
    if is_bomb:
        return FormatError(
            f"{path} has {size} bytes and would become more than {written}, of which its first {at} are the source",
            cause=f"more than {LARGEST_RATIO} times as much is what files unpack to that are made to fill a disk",
            remedy=f"if you trust it, {by_hand}",
        )
    return FileError(
        f"{path} needs more than {written} bytes to be unpacked to {folder()}",
        cause=f"that is more than {FREE_PART:.0%} of the disk's free space",
        remedy=f"make room, or set {FOLDER} to a folder on a disk with room, or {by_hand}",
    )
