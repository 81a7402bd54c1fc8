"""Block cache: blocks of remote objects on a local disk, bounded in bytes, for all processes of a
user.

Layout   HOME/ab/ab12...-7 is block 7 of the object with the digest ab12...: a head (magic, digest,
         number of the block, its bytes, checksum of the head), CRC-32C of each PAGE_BYTES of the
         block as uint32, and the bytes. HOME/parts has files that are being written, HOME/lock the
         bytes of all files, int64. Numbers are little-endian.
Key      a digest of address, version, size, time and ETag of the object: a block of a replaced
         object is never found again, and goes when it is the oldest.
Trust    The folder is private (`privatefiles.py`), and is looked at whenever a block is read or
         written: if others may write to it meanwhile, the log says so, and this process goes on
         without it. A block is a regular file of this user alone, and each page is compared with
         its checksum whenever it is read. One that is not, or is damaged, is removed, the log names
         it, and it is read from the store again. Nothing is read or written through links.
Whole    A block is written under another name and renamed: no reader sees half of one. It is not
         flushed, since a block that a crash of the machine cut short is found damaged, and read
         again.
Bound    The lock keeps the sum of all bytes, also of the blocks that are being written. A process
         that would go beyond the limit lists the files, removes those that were not used for
         longest, an eighth of the limit more than it has to, and corrects the sum. Parts of killed
         processes go then, and when a process begins.
Use      is noted in the time of modification of the block, once a minute at most. Blocks that are
         dated in the future, by a wrong clock or another hand, go first.
Full     If the disk is full, or the folder cannot be written, the log says so once a process, which
         goes on with the blocks that are there.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import io
import logging
import os
import re
import stat
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuload import core, signalsafe
from gpuload.errors import FileError
from gpuload.storage.privatefiles import (
    NO_LINKS,
    NO_PLACE,
    check_private,
    distrust,
    is_left,
    is_shared,
    machine,
    make_folder,
    open_new,
    own_folder,
)

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

BLOCK_BYTES = 1 << 20  # a store sends so much nearly as soon as a record
PAGE_BYTES = 1 << 14  # is compared for a record of a few bytes: 2 us
MAGIC = b"gpuload block 1\n"
HEAD = struct.Struct("<16s16sqq")
SUM = struct.Struct("<q")
SUMS = HEAD.size + SUM.size  # where the checksums of the pages begin
NAME = re.compile("[0-9a-f]{32}-[0-9]+(-crc32)?")
PART = re.compile("([0-9a-f]{8})-([0-9]+)-([0-9a-f]{8})[0-9a-f]{8}")
PROCESS = os.urandom(
    4
).hex()  # tells this process from one before it that had its number, as in containers
NOTE_S = 60.0  # a block that was used less than so long ago is not noted as used again
# Non-blocking: a pipe in the place of a block must not wait for its writer.
OPEN_FLAGS = (
    os.O_RDONLY
    | NO_LINKS
    | sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_BINARY", "O_NONBLOCK"))
)
checksum: Callable[[memoryview | bytes], int]
if core.native is not None:
    SUFFIX, checksum = "", core.native.crc32c
else:  # a process without the core has blocks of its own, with CRC-32: NumPy takes too long for CRC-32C
    SUFFIX, checksum = "-crc32", zlib.crc32
log = logging.getLogger("gpuload")


@dataclass(frozen=True)
class Block:
    """A block of an object.

    Attributes:
        digest: of the object.
        number: of the block in it.
        num_bytes: BLOCK_BYTES, or the rest of the object.
    """

    digest: bytes
    number: int
    num_bytes: int

    @property
    def num_pages(self) -> int:
        """The number of pages, of which the last may be shorter."""
        return -(-self.num_bytes // PAGE_BYTES)

    def head(self) -> bytes:
        """Return the head of the block's file."""
        fields = HEAD.pack(MAGIC, self.digest, self.number, self.num_bytes)
        return fields + SUM.pack(checksum(fields))

    @property
    def begin(self) -> int:
        """The place of the block's first byte in its file."""
        return SUMS + 4 * self.num_pages

    @property
    def file_bytes(self) -> int:
        """The size of its file."""
        return self.begin + self.num_bytes


@dataclass(frozen=True)
class BlockPiece:
    """A part of a block, and where it goes.

    Attributes:
        begin: the first byte in the block.
        length: bytes, at least 1.
        place: where they go in memory.
    """

    begin: int
    length: int
    place: int

    def pages(self) -> range:
        """Return the pages that hold its bytes."""
        return range(self.begin // PAGE_BYTES, (self.begin + self.length - 1) // PAGE_BYTES + 1)


def digest_of(*details: object) -> bytes:
    """Return the digest of an object by all that tells it from others; `repr` must tell the details
    apart."""
    return hashlib.sha256(repr(details).encode("utf-8", "surrogateescape")).digest()[:16]


@functools.cache
def open_cache(folder: str, limit_bytes: int) -> BlockCache:
    """Return the cache in a folder; one object a process.

    Raises:
        FileError: the folder cannot be made, or other users may write to it.
    """
    return BlockCache(folder, limit_bytes)


class BlockCache:
    """Blocks in a folder; threads and processes may use one at the same time.

    Args:
        folder: an absolute path; it is made where it is not there.
        limit_bytes: the most bytes of all blocks together.

    Raises:
        FileError: the folder cannot be made, or other users may write to it.
    """

    def __init__(self, folder: str, limit_bytes: int) -> None:
        self.folder, self.limit_bytes = folder, limit_bytes
        self._home = os.path.join(own_folder(folder), "blocks")
        self._parts = os.path.join(self._home, "parts")
        self._is_off = self._is_open_to_others = False
        self._lock = threading.Lock()
        above = os.path.dirname(self._home)
        try:
            for path in (above, self._home):
                make_folder(path)
        except OSError as error:
            if not os.path.isdir(self._home):
                raise FileError(
                    f"{folder} cannot be the cache of remote files",
                    cause=str(error.strerror or error),
                    remedy="name a folder that can be written: gl.Remote(..., cache=...)",
                ) from None
            # A cache that is there but cannot be written to still gives its blocks.
            self._stop_writing(error)
        for path in (self._home, *([above] if above != folder else [])):
            check_private(path)
        # Behind the check: nothing is made in a folder that a link leads to.
        try:
            make_folder(self._parts)
        except OSError as error:
            self._stop_writing(error)
        else:
            check_private(self._parts)
        self._remove_parts()

    def load(self, block: Block, pieces: Sequence[BlockPiece], memory: memoryview) -> bool:
        """Copy pieces of a block to memory; return False if the block is not there, or is
        damaged."""
        path = self._path(block)
        if not self._is_private(os.path.dirname(path)):
            return False
        try:
            descriptor = os.open(path, OPEN_FLAGS)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._remove(path, error.strerror or str(error), None)
            return False
        status = None
        try:
            status = os.fstat(descriptor)
            _check_block(status)
            first, content = _read_pages(descriptor, block, pieces)
        except (OSError, ValueError) as error:
            self._remove(path, str(error), status)
            return False
        finally:
            os.close(descriptor)
        view = content.data
        for piece in pieces:
            begin = piece.begin - first * PAGE_BYTES
            memory[piece.place : piece.place + piece.length] = view[begin : begin + piece.length]
        if abs(time.time() - status.st_mtime) > NOTE_S:
            with signalsafe.suppress(OSError):
                os.utime(path)
        return True

    def store(self, block: Block, content: memoryview) -> None:
        """Write a block; where that is not possible the log says so, once."""
        path = self._path(block)
        # Another process may have read the same block meanwhile.
        if self._is_off or not self._is_private(os.path.dirname(path)) or os.path.lexists(path):
            return
        part = os.path.join(
            self._parts, f"{machine()}-{os.getpid()}-{PROCESS}{os.urandom(4).hex()}"
        )
        view = memoryview(content).cast("B")
        sums = [
            checksum(view[begin : begin + PAGE_BYTES])
            for begin in range(0, block.num_bytes, PAGE_BYTES)
        ]
        try:
            for folder in (self._home, self._parts, os.path.dirname(path)):
                make_folder(folder)
            with io.FileIO(self._reserve(part, block.file_bytes), "w") as file:
                for data in (memoryview(block.head() + np.array(sums, "<u4").tobytes()), view):
                    while data:
                        data = data[file.write(data) :]
            os.replace(part, path)
        except FileNotFoundError:
            pass  # the folder was removed meanwhile: the next block makes it anew
        except OSError as error:
            self._stop_writing(error)
        finally:
            with signalsafe.suppress(OSError):
                os.unlink(part)

    def _is_private(self, folder: str) -> bool:
        """Return True if only this user may write to the folders that a block lies in; else the log
        says so, once."""
        if self._is_open_to_others:
            return False
        for path in (self._home, self._parts, folder):
            try:
                check_private(path)
            except FileNotFoundError:  # it is made when a block is stored
                continue
            except FileError as error:
                self._is_open_to_others = True
                log.warning(
                    "%s is not used any more; cause: %s; this process reads its blocks from their "
                    "store",
                    *(error.what.removesuffix(NO_PLACE), error.cause),
                )
                return False
            except OSError:
                return False
        return True

    def _remove(self, path: str, cause: str, status: os.stat_result | None) -> None:
        """Remove a file or folder that is no block from a block's place, unless another thread has
        replaced it.

        Args:
            path: the place of the block.
            cause: why it is no block.
            status: of the file that was opened there; it is still open, so that no other file has
                its number. None if it could not be opened.
        """
        with self._lock:
            try:
                now = os.lstat(path)
            except OSError:
                return
            # The block that another thread has read from the store by now stays.
            if status is not None and not os.path.samestat(now, status):
                return
            with signalsafe.suppress(OSError):
                if stat.S_ISDIR(now.st_mode):
                    remove = os.rmdir
                else:
                    remove = os.unlink
                remove(path)
        log.warning("%s is not used; cause: %s; it is read from the store again", path, cause)

    def _path(self, block: Block) -> str:
        name = block.digest.hex()
        return os.path.join(self._home, name[:2], f"{name}-{block.number}{SUFFIX}")

    def _reserve(self, part: str, num_bytes: int) -> int:
        """Make room for a file, and return the descriptor of a new one that counts with all its
        bytes."""
        with self._locked() as sum_file:
            text = sum_file.read(SUM.size) or b""
            if len(text) == SUM.size:
                total = SUM.unpack(text)[0]
            else:
                total = -1
            # Also where the sum is lost or damaged: then the files are counted.
            if not 0 <= total <= self.limit_bytes - num_bytes:
                total = self._make_room(num_bytes)
            sum_file.seek(0)
            sum_file.write(SUM.pack(total + num_bytes))
            descriptor = open_new(part)
            # At its full size from the start: a process that adds up the parts meanwhile counts the
            # bytes that are still to come.
            os.truncate(descriptor if os.truncate in os.supports_fd else part, num_bytes)
            return descriptor

    def _make_room(self, num_bytes: int) -> int:
        """Remove the blocks that were not used for longest, if a new one needs room; return the
        bytes of the others.

        Parts are listed first, as they become blocks at any time, without the lock: so each file
        counts once or twice.
        """
        self._remove_parts()
        total = sum(size for _, size, _ in _sizes(_entries(self._parts)))
        files = _sizes(self._files())
        total += sum(size for _, size, _ in files)
        if total > self.limit_bytes - num_bytes:
            for _, size, path in sorted(files):
                # More than it has to: else each block that follows would list all files again.
                if total <= self.limit_bytes * 7 // 8 - num_bytes:
                    break
                with signalsafe.suppress(OSError):
                    os.unlink(path)
                    total -= size
        return total

    def _files(self) -> Iterator[os.DirEntry[str]]:
        for folder in _entries(self._home):
            if len(folder.name) == 2:
                yield from (entry for entry in _entries(folder.path) if NAME.fullmatch(entry.name))

    def _remove_parts(self) -> None:
        """Remove the parts of processes that were killed."""
        for entry in _entries(self._parts):
            writer = PART.fullmatch(entry.name)
            if (
                writer is not None
                and writer[3] != PROCESS
                and is_left(entry.path, writer[1], writer[2])
            ):
                with signalsafe.suppress(OSError):
                    os.unlink(entry.path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[io.FileIO]:
        """Yield the file of the sum; no other thread has it meanwhile, and no process, if there are
        locks."""
        flags = os.O_RDWR | os.O_CREAT | OPEN_FLAGS
        mode = 0o666 if is_shared() else 0o600
        path = os.path.join(self._home, "lock")
        with self._lock, io.FileIO(os.open(path, flags, mode), "r+") as file:
            status = os.fstat(file.fileno())
            # A file with a second name (a hard link) may be of another program, and the sum would
            # be written into it.
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                raise OSError(
                    errno.EINVAL,
                    "the file of its sum is no regular file, or has a second name",
                    path,
                )
            if fcntl is not None:
                # some network file systems have none: then the sum is a guess
                with signalsafe.suppress(OSError):
                    fcntl.flock(file.fileno(), fcntl.LOCK_EX)
            try:
                yield file
            finally:
                if fcntl is not None:  # a child that was forked meanwhile has the file, too
                    with signalsafe.suppress(OSError):
                        fcntl.flock(file.fileno(), fcntl.LOCK_UN)

    def _stop_writing(self, error: OSError) -> None:
        if not self._is_off:
            self._is_off = True
            log.warning(
                "%s takes no more blocks of remote files; cause: %s; this process reads the others "
                "from their store in each epoch",
                *(self._home, error.strerror or error),
            )


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _sizes(entries: Iterable[os.DirEntry[str]]) -> list[tuple[float, int, str]]:
    """Return time of the last use, size and path of each file that is still there; a time in the
    future counts as 0."""
    files, latest_s = [], time.time() + NOTE_S
    for entry in entries:
        with signalsafe.suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            if status.st_mtime <= latest_s:
                used_s = status.st_mtime
            else:
                used_s = 0.0
            files.append((used_s, status.st_size, entry.path))
    return files


def _check_block(status: os.stat_result) -> None:
    """Raise ``ValueError`` for an open file that this user has not written."""
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no regular file")
    if reason := distrust(status):
        raise ValueError(reason)


def _read_pages(
    descriptor: int, block: Block, pieces: Sequence[BlockPiece]
) -> tuple[int, NDArray[np.uint8]]:
    """Return the number of the first page that pieces need, and the bytes from it to the last one;
    gaps are undefined.

    Raises:
        ValueError: a page is damaged, or the head is not that of the block.
        OSError: the file cannot be read.
    """
    file = io.FileIO(descriptor, closefd=False)
    head = file.read(block.begin) or b""
    if len(head) != block.begin or not head.startswith(block.head()):
        raise ValueError("its head is damaged")
    sums = np.frombuffer(head, "<u4", block.num_pages, SUMS)
    pages = sorted({page for piece in pieces for page in piece.pages()})
    first, after = pages[0], pages[-1] + 1
    content = np.empty(min(after * PAGE_BYTES, block.num_bytes) - first * PAGE_BYTES, np.uint8)
    for begin_page, after_page in _runs(pages):
        begin = (begin_page - first) * PAGE_BYTES
        view = content.data[begin : min((after_page - first) * PAGE_BYTES, content.size)]
        file.seek(block.begin + begin_page * PAGE_BYTES)
        if file.readinto(view) != len(view):
            raise ValueError("it is cut short")
        for page in range(begin_page, after_page):
            place = (page - begin_page) * PAGE_BYTES
            if checksum(view[place : place + PAGE_BYTES]) != sums[page]:
                raise ValueError(
                    f"it is damaged between byte {page * PAGE_BYTES} and {(page + 1) * PAGE_BYTES}"
                )
    return first, content


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield first and after-last of the runs of neighbours among rising numbers."""
    first = before = numbers[0]
    for number in numbers[1:]:
        if number != before + 1:
            yield first, before + 1
            first = number
        before = number
    yield first, before + 1
