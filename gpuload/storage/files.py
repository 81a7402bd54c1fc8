"""Files: files as they were when they were opened, each with a stamp by which a change is noticed.

Stamps  size, time of modification and inode of each file; a file with another stamp later has
        changed.
Many    files of a manifest have their paths in arrays (`paths.py`), and no inodes, which differ
        between machines.
Memory  three int64 numbers and a path a file; no file is kept open.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from gpuload import signalsafe
from gpuload.errors import ChangedFileError, FileError, changed_file
from gpuload.progress import Progress
from gpuload.storage import objects
from gpuload.storage.fileerrors import open_error
from gpuload.storage.handles import (
    ADVISE,
    OPEN_FLAGS,
    Handle,
    Result,
    by_chunks,
    open_with_status,
    read_at,
)
from gpuload.storage.memory import cache_bytes
from gpuload.storage.paths import CHUNK, PackedPaths
from gpuload.storage.stores import Stamp, is_remote, path_of
from gpuload.threads import parallel_map

# storage commonly returns so much at once, as fast as the first page alone
ONE_REQUEST_BYTES = 1 << 17
# of a digest: some milliseconds on a local disk
SAMPLED_FILES, SAMPLED_PIECES, PIECE_BYTES = 32, 64, 4096


@dataclass(frozen=True, eq=False)
class Seal:
    """The length and checksums of the content of a kept file (`keptfile.py`), which begins at byte
    0.

    Attributes:
        content_bytes: the length of the content.
        checksums: uint32 ``[num_blocks]``, CRC-32 of each block of the content.
        good: bool ``[num_blocks]``, the blocks that were compared with their checksums.
    """

    content_bytes: int
    checksums: NDArray[np.uint32]
    good: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Files:
    """Files as they were when they were opened.

    Attributes:
        paths: absolute paths.
        stamps: int64 ``[num_files, 3]``: size in bytes, time of modification in ns, inode or 0
            where that is not known.
        names: of the files in errors and in the digest; by default without their folders.
        seals: the seal of each file that gpuload wrote, None for a file of the user; empty if all
            are the user's.
        fingerprints: of sources of these files, by the digest of the arguments that open them; from
            a manifest.
        manifest: the path of the manifest that lists the files; "" if none does.
    """

    paths: Sequence[str]
    stamps: NDArray[np.int64]
    names: Sequence[str] = field(default=(), repr=False)
    seals: tuple[Seal | None, ...] = field(default=(), repr=False)
    fingerprints: Mapping[str, str] = field(default_factory=dict, repr=False)
    manifest: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.names:
            object.__setattr__(self, "names", names_of(self.paths))

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The size of each file in bytes; of a kept file that of its content."""
        if not self.seals:
            return self.stamps[:, 0]
        sizes = [
            size if seal is None else seal.content_bytes
            for size, seal in zip(self.stamps[:, 0], self.seals, strict=True)
        ]
        return np.array(sizes, np.int64)

    def check(self, number: int) -> None:
        """Raise ``ChangedFileError`` if the stamp of a file is no longer that of its opening."""
        if is_remote(self.paths[number]):
            now, _ = objects.look(self.paths[number], 0)
            if now != self.stamp(number):
                raise self.changed(number, objects.difference(self.stamp(number), now))
            return
        try:
            now = stamp_of(os.stat(self.paths[number]))
        except OSError as error:
            raise self.changed(number, f"it cannot be read any more: {error.strerror}") from None
        if differ(self.stamp(number), now):
            raise self.changed(number, difference(self.stamp(number), now))

    def stamp(self, number: int) -> Stamp:
        """Return size, time of modification and inode of a file when it was opened."""
        size, mtime_ns, inode = self.stamps[number].tolist()
        return size, mtime_ns, inode

    @contextlib.contextmanager
    def naming_manifest(self, number: int) -> Iterator[None]:
        """Have the error for an object that changed name the manifest that lists it, if one
        does."""
        try:
            yield
        except ChangedFileError as error:
            if not self.manifest:
                raise
            raise self.changed(number, error.cause) from None

    def changed(self, number: int, cause: str) -> ChangedFileError:
        """Return the error for a file that changed."""
        return changed_file(self.paths[number], cause, self.manifest)

    def unreadable(self, number: int) -> FileError:
        """Return the error for a file that could not be read for a reason that was not reported.

        Raises:
            ChangedFileError: its stamp is no longer that of its opening.
        """
        self.check(number)
        try:
            # The core says only that it failed; opening the file once more gives the system's
            # reason.
            os.close(os.open(self.paths[number], OPEN_FLAGS))
        except OSError as error:
            return open_error(self.paths[number], error)
        return FileError(
            f"{self.paths[number]} could not be read",
            cause="the system reported an error while reading, or the file changed back meanwhile",
            remedy="check the disk (dmesg), and open the file again",
        )

    @contextlib.contextmanager
    def open_file(self, number: int, ahead_bytes: int = objects.AHEAD_BYTES) -> Iterator[Handle]:
        """Yield a descriptor of a file after a check that it did not change since it was first
        opened.

        Of an object it yields a `objects.Reader`, which checks each piece that it reads.

        The check is of the open file, not of its path: two files that change places would pass a
        check of the path.

        Args:
            number: of the file.
            ahead_bytes: of an object, that may be asked for with a piece: for reads of a few bytes
                here and there.

        Raises:
            ChangedFileError: the file changed, or is gone.
            FileError: it cannot be opened.
        """
        if is_remote(self.paths[number]):
            with self.naming_manifest(number):
                yield objects.Reader(self.paths[number], self.stamp(number), ahead_bytes)
            return
        try:
            descriptor = os.open(self.paths[number], OPEN_FLAGS)
        except OSError as error:
            # A file that changed or is gone is reported as that, under any error of its opening.
            self.check(number)
            raise open_error(self.paths[number], error) from None
        try:
            self.check_descriptor(number, descriptor)
            yield descriptor
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def open_binary(self, number: int) -> Iterator[BinaryIO]:
        """Yield a file as a binary file of Python's, for libraries that read files; the checks of
        ``open_file``.

        Raises:
            ChangedFileError: the file changed since it was first opened, or while it was open here.
            FileError: it cannot be opened.
        """
        with self.open_file(number) as handle:
            if isinstance(handle, objects.Reader):
                yield cast(BinaryIO, objects.File(handle))
            else:
                yield cast(BinaryIO, io.FileIO(handle, closefd=False))
            self.check_descriptor(number, handle)

    def check_descriptor(self, number: int, descriptor: Handle) -> None:
        """Raise ``ChangedFileError`` if an open file changed since it was first opened."""
        if isinstance(descriptor, objects.Reader):  # each of its answers was compared
            return
        now = stamp_of(os.fstat(descriptor))
        if differ(self.stamp(number), now):
            raise self.changed(number, difference(self.stamp(number), now))

    def read(self, number: int, descriptor: Handle, memory: memoryview, offset: int) -> None:
        """Fill memory with the bytes of an open file from an offset on.

        Raises:
            ChangedFileError: the file ends before the memory is full.
            FileError: it cannot be read.
        """
        try:
            num_read = read_at(descriptor, memory, offset)
        except OSError as error:
            raise open_error(self.paths[number], error) from None
        if num_read < len(memory):
            raise self.changed(number, f"it ends at byte {offset + num_read}")

    def digest(self, *details: object) -> str:
        """Return a short text made of names, sizes and a sample of the bytes of the files, and of
        ``details``.

        The sample is SAMPLED_PIECES pieces of PIECE_BYTES, evenly spread over the files, at most
        SAMPLED_FILES of them, from the first to the last, and in each file from its beginning to
        its end. Folders and times are left out.

        Raises:
            ChangedFileError, FileError: one of the files in the sample changed, or cannot be read.
        """
        # Saved states hold this text, as the fingerprint of their source: with other pieces, or
        # another order, states of today would be refused.
        text = hashlib.sha256()
        for part in _pieces_of_repr(self.names, details):
            text.update(part.encode("utf-8", "surrogateescape"))
        # Little-endian, so that a state goes on on a machine of the other kind.
        text.update(np.ascontiguousarray(self.sizes, "<i8").tobytes())
        numbers = _spread(len(self), SAMPLED_FILES)
        if any_is_remote([self.paths[number] for number in numbers]):
            pieces = parallel_map(self._sample, numbers, objects.REQUESTS)
        else:
            pieces = by_chunks(lambda chunk: [self._sample(number) for number in chunk], numbers)
        for piece in pieces:
            text.update(piece)
        return text.hexdigest()[:16]

    def _sample(self, number: int) -> bytes:
        """Return pieces of a file, spread over it, one after the other."""
        size = int(self.sizes[number])
        num_pieces = max(2, SAMPLED_PIECES // min(len(self), SAMPLED_FILES))
        pieces = bytearray()
        with self.open_file(number, ahead_bytes=0) as descriptor:
            for begin in _spread(max(1, size - PIECE_BYTES + 1), num_pieces):
                piece = bytearray(min(PIECE_BYTES, size - begin))
                self.read(number, descriptor, memoryview(piece), begin)
                pieces += piece
            self.check_descriptor(number, descriptor)
        return bytes(pieces)


def _pieces_of_repr(names: Sequence[str], details: tuple[object, ...]) -> Iterator[str]:
    """Yield the pieces of ``repr((tuple(names), details))``: of millions of names the whole would
    be gigabytes."""
    yield "(("
    for first in range(0, len(names), CHUNK):
        yield ", " * (first > 0) + ", ".join(map(repr, names[first : first + CHUNK]))
    yield f"{',' * (len(names) == 1)}), {details!r})"


def names_of(paths: Sequence[str]) -> Sequence[str]:
    """Return the names of files, without their folders."""
    if isinstance(paths, PackedPaths):
        return paths.without_folders()
    return tuple(os.path.basename(path_of(path)) for path in paths)


def are_remote(paths: Sequence[str]) -> NDArray[np.bool_]:
    """Return which paths are URLs, bool ``[num_paths]``."""
    if isinstance(paths, PackedPaths):
        return are_remote(paths.folders.between(0, len(paths.folders)))[paths.folder_of]
    return np.fromiter(map(is_remote, paths), np.bool_, len(paths))


def any_is_remote(paths: Sequence[str]) -> bool:
    """Return True if a path is a URL."""
    if isinstance(paths, PackedPaths):
        paths = paths.folders.between(0, len(paths.folders))
    return any(map(is_remote, paths))


def _spread(length: int, max_count: int) -> list[int]:
    """Return at most ``max_count`` of the numbers ``0 .. length - 1``, evenly spread, with the
    first and the last."""
    count = min(length, max_count)
    return sorted({i * (length - 1) // max(1, count - 1) for i in range(count)})


def look_at(
    paths: Sequence[str], head_bytes: int, use: Callable[[str, int, bytes], Result]
) -> tuple[Files, list[Result]]:
    """Return the files, and the result of ``use`` for the beginning of each.

    If storage is slow, threads open the files, and request all beginnings of a chunk before they
    wait for the first: small files as a whole if all of them fit into memory, since one request
    returns them anyway, and a second one would be made for the rest. The progress is shown after a
    second (`progress`).

    Args:
        paths: absolute paths, from ``expand``.
        head_bytes: the number of first bytes to read of each.
        use: called with path, size in bytes, and these bytes (fewer where the file is shorter).

    Raises:
        MissingFileError, DirectoryError, UnreadableFileError, FileError: a file cannot be read.
    """
    whole_bytes = min(ONE_REQUEST_BYTES, cache_bytes() // max(len(paths), 1))

    def look(chunk: Sequence[str]) -> list[tuple[Stamp, Result]]:
        looks = zip(chunk, _look(chunk, head_bytes, whole_bytes), strict=True)
        return [(stamp, use(path, stamp[0], head)) for path, (stamp, head) in looks]

    with Progress("reading headers" if head_bytes else "opening files") as progress:
        looks = by_chunks(
            look, paths, lambda num_done: progress.show(num_done, len(paths), "files")
        )
    stamps = np.array([stamp for stamp, _ in looks], np.int64).reshape(-1, 3)
    return Files(tuple(paths), stamps), [result for _, result in looks]


def _look(paths: Sequence[str], head_bytes: int, whole_bytes: int) -> list[tuple[Stamp, bytes]]:
    """Return stamp and beginning of a few files; files of at most ``whole_bytes`` bytes are
    requested as a whole."""
    if any(map(is_remote, paths)):
        return _look_at_objects(paths, head_bytes)
    open_files: list[tuple[str, int, os.stat_result]] = []
    try:
        for path in paths:
            # All are opened, and asked for, before the first is read: their requests are under way
            # side by side.
            open_files.append((path, *open_with_status(path)))
            _, descriptor, status = open_files[-1]
            if head_bytes:
                _ask_for(
                    descriptor, status.st_size if status.st_size <= whole_bytes else head_bytes
                )
        return [
            (stamp_of(status), _head(path, descriptor, head_bytes))
            for path, descriptor, status in open_files
        ]
    finally:
        for _, descriptor, _ in open_files:
            os.close(descriptor)


def _look_at_objects(paths: Sequence[str], head_bytes: int) -> list[tuple[Stamp, bytes]]:
    """Return stamp and beginning of paths of which some are URLs; their requests are under way
    together."""

    def look(path: str) -> tuple[Stamp, bytes]:
        if is_remote(path):
            return objects.look_at_listing(path, head_bytes)
        return _look([path], head_bytes, 0)[0]

    return parallel_map(look, paths, objects.REQUESTS)


def _ask_for(descriptor: int, num_bytes: int) -> None:
    """Request the first bytes of a file without waiting for them; on a system without such a call,
    reading waits."""
    if ADVISE is not None:
        with signalsafe.suppress(OSError):
            ADVISE(descriptor, 0, num_bytes, os.POSIX_FADV_WILLNEED)


def _head(path: str, descriptor: int, num_bytes: int) -> bytes:
    """Return the first bytes of an open file, fewer where it is shorter; none are read if none are
    wanted."""
    head = bytearray(num_bytes)
    try:
        num_read = read_at(descriptor, memoryview(head), 0)
    except OSError as error:
        raise open_error(path, error) from None
    return bytes(head[:num_read])


def read_file(path: str) -> tuple[Files, bytes]:
    """Return a file, and all of its bytes as they were then."""
    files, [head] = look_at([path], ONE_REQUEST_BYTES, lambda path, size, head: head)
    content = bytearray(int(files.sizes[0]))
    content[: len(head)] = head
    if len(head) < len(content):
        with files.open_file(0) as handle:
            files.read(0, handle, memoryview(content)[len(head) :], len(head))
            files.check_descriptor(0, handle)
    return files, bytes(content)


def total_bytes(paths: Iterable[str]) -> int:
    """Return the bytes of files and objects together."""
    local, remote = list[str](), list[str]()
    for path in paths:
        (remote if is_remote(path) else local).append(path)
    return sum(map(os.path.getsize, local)) + int(
        look_at(remote, 0, lambda path, size, head: None)[0].sizes.sum()
    )


def stamp_of(status: os.stat_result) -> Stamp:
    """Return size, time of modification and inode: a file that does not change keeps all three."""
    return status.st_size, _int64(status.st_mtime_ns), _int64(status.st_ino)


def _int64(number: int) -> int:
    """Return a number as it is in an int64: inodes may have 64 bits, and times in ns more."""
    return (number + 2**63) % 2**64 - 2**63


def differ(before: Stamp, now: Stamp) -> bool:
    """Return True if two stamps are those of different files; an inode of 0 is not known."""
    return before[:2] != now[:2] or (before[2] != 0 and before[2] != now[2])


def difference(before: Stamp, now: Stamp) -> str:
    """Return the difference between two stamps of a file, in words."""
    if before[0] != now[0]:
        return f"it had {before[0]} bytes, now it has {now[0]}"
    if before[2] not in (0, now[2]):
        return "another file stands in its place"
    return f"it was modified {(now[1] - before[1]) / 1e9:+.3f} s after the time it had"
