"""Kept files: the one form of the files that gpuload makes once and reads again, so that no damaged
byte is believed.

Layout   The content, from byte 0 on; CRC-32 of each BLOCK_BYTES of it, uint32; JSON with the origin
         of the content and the values that the writer adds; an end of END.size bytes: magic, bytes
         of the content, bytes of the JSON, CRC-32 of all bytes behind the content. Numbers are
         little-endian.
Trust    A file is used if it is a regular file, no link, of this user or of root, if only trusted
         users may write to it (`privatefiles.distrust`), if it has the very same origin, and if its
         blocks have their checksums.
When     Files of at most EAGER_BYTES together are compared when they are opened; one that is
         damaged is made anew. Of larger ones each block is compared before the first read of its
         bytes; one that is damaged is an error then, the file is removed, and the next opening
         makes it anew.
Cost     once a process the time of a CRC-32 over the bytes that are read; threads do not wait for
         one another. A read of bytes that were compared costs one look at a set.
Made     `derivedfiles.load_or_make` has such a file written: under another name, flushed, and
         renamed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuload import signalsafe
from gpuload.core.face import Maps
from gpuload.errors import ChangedFileError
from gpuload.storage import files
from gpuload.storage.crc32 import crc32
from gpuload.storage.extents import Bytes, Extents, Int64s, Storage, check_inside, plain
from gpuload.storage.files import Files, Seal, stamp_of
from gpuload.storage.handles import OPEN_FLAGS, Handle, read_at
from gpuload.storage.privatefiles import NO_LINKS, distrust, open_new
from gpuload.storage.stores import Stamp

Result = TypeVar("Result")

MAGIC = b"gpuload kept file 1\n"
END = struct.Struct("<20sqqI")
# a system reads as much around a missing page anyway (often read_ahead_kb = 128)
BLOCK_BYTES = 1 << 17
PIECE_BLOCKS = 32  # read at a time
EAGER_BYTES = 1 << 28
MOST_JSON_BYTES = 1 << 26
NO_BLOCKS = np.zeros(0, np.int64)
log = logging.getLogger("gpuload")


@dataclass(frozen=True, eq=False)
class KeptFile:
    """A kept file as it was when it was opened.

    Attributes:
        path: of the file.
        stamp: size, time of modification and inode.
        seal: the length and checksums of its content.
        about: the values of ``KeptWriter.end``.
    """

    path: str
    stamp: Stamp
    seal: Seal
    about: Any

    @property
    def content_bytes(self) -> int:
        """The size of the content."""
        return self.seal.content_bytes

    @property
    def digest(self) -> int:
        """A checksum of all checksums, which stands for the content."""
        return _digest(self.seal.checksums.tolist(), self.content_bytes)

    def read(self, offset: int, num_bytes: int) -> bytes | None:
        """Return bytes of the content, compared with their checksums; None if they are damaged, or
        the file changed."""
        if num_bytes:
            blocks = _blocks(np.array([offset], np.int64), np.array([num_bytes], np.int64))
        else:
            blocks = NO_BLOCKS
        with _open_trusted(self.path, ()) as descriptor:
            # The file is opened anew: another one may have got its name since.
            if descriptor is None or stamp_of(os.fstat(descriptor)) != self.stamp:
                return None
            damaged_block = compare(descriptor, self.seal, blocks)
            if damaged_block is not None:
                _warn_of_block(self.path, self.seal, damaged_block)
                return None
            content = bytearray(num_bytes)
            if read_at(descriptor, memoryview(content), offset) == num_bytes:
                return bytes(content)
            return None


Place = str | KeptFile  # the path of a file of the user's, or a kept file


class KeptWriter:
    """Writes a kept file; a context manager that closes it.

    Args:
        path: of a new file.
        made_of: the origin of the content, in values that JSON has; a file with another origin is
            not used.
        mode: its permissions.
    """

    def __init__(self, path: str, made_of: Any, mode: int = 0o600) -> None:
        self.path, self._made_of = path, made_of
        self._file = os.fdopen(open_new(path, mode), "wb", 1 << 20)
        self._checksums = list[int]()
        self._checksum = 0
        self.num_bytes = 0

    def __enter__(self) -> KeptWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, data: bytes | memoryview) -> None:
        """Write some more of the content."""
        # ``cast`` refuses a view without bytes.
        if len(data):
            data = memoryview(data).cast("B")
        else:
            data = memoryview(b"")
        self._file.write(data)
        while data:
            piece = data[: BLOCK_BYTES - self.num_bytes % BLOCK_BYTES]
            self._checksum = crc32(piece, self._checksum)
            self.num_bytes += len(piece)
            data = data[len(piece) :]
            if self.num_bytes % BLOCK_BYTES == 0:
                self._end_block()

    def align(self, num_bytes: int) -> None:
        """Fill up with zeros to a multiple of so many bytes."""
        self.write(bytes(-self.num_bytes % num_bytes))

    def end(self, about: Any = None) -> int:
        """Write the part behind the content, return the digest; opening the file gives ``about``
        back."""
        if self.num_bytes % BLOCK_BYTES:
            self._end_block()
        words = json.dumps({"made_of": self._made_of, "about": about}).encode("ascii")
        behind = np.array(self._checksums, "<u4").tobytes() + words
        self._file.write(
            behind
            + END.pack(MAGIC, self.num_bytes, len(words), _checksum_of_end(behind, self.num_bytes))
        )
        self._file.flush()
        return _digest(self._checksums, self.num_bytes)

    def _end_block(self) -> None:
        self._checksums.append(self._checksum)
        self._checksum = 0


def open_kept_file(path: str, made_of: Any, *, eager: bool) -> KeptFile | None:
    """Return a kept file; None if it is not there, is not to be trusted, is damaged, or has another
    origin.

    Args:
        path: of the file.
        made_of: the origin that it must have.
        eager: True: all blocks are compared now. False: the first one is.
    """
    with _open_trusted(path, ()) as descriptor:
        if descriptor is None:
            return None
        kept_file = _read_end(path, descriptor, made_of)
        if kept_file is None:
            return None
        seal = kept_file.seal
        # The first block in any case: readers of the content look at it when they open the file.
        blocks = np.arange(seal.checksums.size, dtype=np.int64)
        if not eager:
            blocks = blocks[:1]
        wrong = compare(descriptor, seal, blocks)
        if wrong is not None:
            _warn_of_block(path, seal, wrong)
            return None
        return kept_file


def read_kept_file(path: str, made_of: Any, owners: Sequence[int] = ()) -> bytes | None:
    """Return the content of a small kept file; None as `open_kept_file` does.

    Args:
        path: of the file.
        made_of: the origin that it must have.
        owners: trusted users beside this user and root.
    """
    with _open_trusted(path, owners) as descriptor:
        if descriptor is None:
            kept_file = None
        else:
            kept_file = _read_end(path, descriptor, made_of)
        if descriptor is None or kept_file is None:
            return None
        seal, content = kept_file.seal, bytearray(kept_file.content_bytes)
        try:
            read_at(descriptor, memoryview(content), 0)
        except OSError:
            return None
        if checksums_of(content) != seal.checksums.tolist():
            _warn(path, "it is damaged")
            return None
        return bytes(content)


def is_small(places: Sequence[str]) -> bool:
    """Return True if the files that are there are small enough, together, to be compared when they
    are opened."""
    total = 0
    for place in places:
        with signalsafe.suppress(OSError):
            total += os.stat(place).st_size
    return total <= EAGER_BYTES


def is_ours(path: str, *marks: bytes) -> bool:
    """Return True for a regular file, and no link to one, that ends as kept files do or begins with
    one of the marks.

    Only such a file may be replaced where somebody else may have files, too. A damaged one may have
    lost its end.
    """
    try:
        # The open file is asked, not its path, which may be that of another one a moment later.
        with open(os.open(path, OPEN_FLAGS | NO_LINKS), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return False
            beginning = file.read(max(map(len, marks), default=0))
            file.seek(max(0, status.st_size - END.size))
            return beginning.startswith(marks) or file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def look_at(
    places: Sequence[Place], head_bytes: int, use: Callable[[str, int, bytes], Result]
) -> tuple[Files, list[Result]]:
    """Return files and results as `files.look_at` does; a kept file has the size of its content.

    Raises:
        ChangedFileError: a kept file changed after it was opened.
        MissingFileError, DirectoryError, UnreadableFileError, FileError: a file cannot be read.
    """
    kept_files = {place.path: place for place in places if isinstance(place, KeptFile)}

    def use_content(path: str, size: int, head: bytes) -> Result:
        if path in kept_files:
            content_bytes = kept_files[path].content_bytes
        else:
            content_bytes = size
        return use(path, content_bytes, head[:content_bytes])

    paths = [place.path if isinstance(place, KeptFile) else place for place in places]
    all_files, results = files.look_at(paths, head_bytes, use_content)
    if not kept_files:
        return all_files, results
    for number, path in enumerate(paths):
        # Between `open_kept_file` and this look another process may have made the file anew.
        if path in kept_files and all_files.stamp(number) != kept_files[path].stamp:
            raise all_files.changed(number, "another file stands in its place")
    seals = tuple(kept_files[path].seal if path in kept_files else None for path in paths)
    return replace(all_files, seals=seals), results


class VerifiedStorage:
    """A ``Storage`` of files of which some are kept: a block is compared with its checksum before
    it is first read.

    Args:
        all_files: the files, with their seals.
        storage: of the same files; it reads.
    """

    def __init__(self, all_files: Files, storage: Storage) -> None:
        self.files, self.how, self._storage = all_files, storage.how, storage
        # The numbers of the kept files of which not all blocks were compared. Threads change this
        # set, and the flags of the seals, without a lock: a number only ever leaves the set, a flag
        # only ever becomes True. So a thread that sees an old value compares a block once more;
        # none takes a block for compared that was not.
        self._pending = {
            number for number, seal in enumerate(all_files.seals) if seal and not seal.good.all()
        }

    def read(self, extents: Extents, out: Bytes, begins: Int64s) -> None:
        """Copy the bytes of extent i to ``out[begins[i]:]``; see ``Storage.read``."""
        if self._pending:
            # The bytes are compared from the file, then copied from it again. A change in between
            # changes the file's stamp, which ``read`` of the other storage compares after it has
            # copied.
            self._compare(plain(extents))
        self._storage.read(extents, out, begins)

    def maps(self) -> Maps | None:
        """Return the maps, once all blocks were compared; see ``Storage.maps``."""
        if self._pending:
            return None
        return self._storage.maps()

    def advise(self, extents: Extents) -> None:
        """Ask the system to have these bytes in memory soon; see ``Storage.advise``."""
        self._storage.advise(extents)

    def _compare(self, extents: Extents) -> None:
        """Compare the blocks that hold these bytes, unless they have been compared before."""
        check_inside(self.files, extents)
        # A new set: other threads take numbers out of the old one meanwhile.
        for number in set(np.unique(extents.files).tolist()) & self._pending:
            seal = self.files.seals[number]
            rows = (extents.files == number) & (extents.lengths > 0)
            blocks = _blocks(extents.offsets[rows], extents.lengths[rows])
            blocks = np.unique(blocks[~seal.good[blocks]])
            if blocks.size:
                with self.files.open_file(number) as descriptor:
                    wrong = compare(descriptor, seal, blocks)
                    # Before the damage is believed: a file that was replaced meanwhile is reported
                    # as changed, and is not removed.
                    self.files.check_descriptor(number, descriptor)
                if wrong is not None:
                    raise _damage_error(self.files.paths[number], seal, wrong)
            if seal.good.all():
                self._pending.discard(number)


def check_content(all_files: Files, number: int) -> None:
    """Compare the whole content of a kept file that is read by other ways than its storage.

    Raises:
        ChangedFileError: it is damaged.
    """
    if all_files.seals:
        seal = all_files.seals[number]
    else:
        seal = None
    if seal is not None and not seal.good.all():
        with all_files.open_file(number) as descriptor:
            wrong = compare(descriptor, seal, np.flatnonzero(~seal.good))
        if wrong is not None:
            raise _damage_error(all_files.paths[number], seal, wrong)


def _damage_error(path: str, seal: Seal, block: int) -> ChangedFileError:
    """Remove a damaged file and return the error."""
    with signalsafe.suppress(OSError):
        # gpuload wrote it and can make it anew. Another process that has it open keeps its bytes.
        os.unlink(path)
    return ChangedFileError(
        f"{path} is damaged between byte {block * BLOCK_BYTES} and {_block_end(seal, block)}",
        cause="its bytes are not those that gpuload wrote: the disk is faulty, or something else "
        "wrote to it",
        remedy="open the source again, which makes the file anew; check the disk (dmesg)",
    )


def compare(descriptor: Handle, seal: Seal, blocks: NDArray[np.int64]) -> int | None:
    """Compare blocks, in rising order, with their checksums; return the first that differs, None if
    all are equal."""
    runs = np.split(blocks, np.flatnonzero(np.diff(blocks) != 1) + 1)
    piece = bytearray(min(PIECE_BLOCKS, blocks.size) * BLOCK_BYTES)
    for run in runs:
        for first in range(0, run.size, PIECE_BLOCKS):
            part = run[first : first + PIECE_BLOCKS]
            begin, end = (
                int(part[0]) * BLOCK_BYTES,
                _block_end(seal, int(part[-1])) if part.size else 0,
            )
            view = memoryview(piece)[: end - begin]
            try:
                num_read = read_at(descriptor, view, begin)
            except OSError as error:  # a block that cannot be read is damaged
                signalsafe.pass_on(error)
                return int(part[0])
            right = np.zeros(0, np.uint32)
            if num_read == len(view):
                right = np.array(checksums_of(view), np.uint32)
            if right.size == part.size:
                wrong = right != seal.checksums[part]
            else:
                wrong = np.ones(part.size, np.bool_)
            seal.good[part[~wrong]] = True
            if wrong.any():
                return int(part[wrong.argmax()])
    return None


def checksums_of(content: bytes | bytearray | memoryview) -> list[int]:
    """Return the checksum of each block of some content."""
    view = memoryview(content)
    return [crc32(view[begin : begin + BLOCK_BYTES]) for begin in range(0, len(view), BLOCK_BYTES)]


def _blocks(offsets: Int64s, lengths: Int64s) -> NDArray[np.int64]:
    """Return the numbers of all blocks that hold bytes of these extents, none of which is empty."""
    first = offsets // BLOCK_BYTES
    counts = (offsets + lengths - 1) // BLOCK_BYTES - first + 1
    before = np.cumsum(counts) - counts
    blocks: NDArray[np.int64] = np.repeat(first - before, counts) + np.arange(int(counts.sum()))
    return blocks


def _block_end(seal: Seal, block: int) -> int:
    return min((block + 1) * BLOCK_BYTES, seal.content_bytes)


@contextlib.contextmanager
def _open_trusted(path: str, owners: Sequence[int]) -> Iterator[int | None]:
    """Yield a descriptor of a regular file that only trusted users may write; None if there is no
    such file."""
    try:
        descriptor = os.open(path, OPEN_FLAGS | NO_LINKS)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        _warn(path, str(error.strerror))
        yield None
        return
    try:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            reason = distrust(status, owners)
        else:
            reason = "it is no regular file"
        if reason:
            _warn(path, reason)
        yield None if reason else descriptor
    finally:
        os.close(descriptor)


def _read_end(path: str, descriptor: int, made_of: Any) -> KeptFile | None:
    """Return the file by the part behind its content; None if that is missing, damaged, or of
    another origin."""
    stamp = stamp_of(os.fstat(descriptor))
    try:
        seal, origin, about = read_end(descriptor, stamp[0])
    except (OSError, ValueError) as error:
        signalsafe.pass_on(error)
        _warn(path, "its end is damaged, or an earlier version of gpuload wrote it")
        return None
    # As JSON gives it back: tuples are lists there, and keys are texts.
    if origin != json.loads(json.dumps(made_of)):
        return None
    return KeptFile(path, stamp, seal, about)


def read_end(descriptor: Handle, size: int) -> tuple[Seal, Any, Any]:
    """Return the seal of a file of ``size`` bytes, its origin, and the values of
    ``KeptWriter.end``.

    Raises:
        ValueError: the part behind the content is missing, damaged, or of no such file.
        OSError: it cannot be read.
    """
    end = bytearray(END.size)
    if size < END.size or read_at(descriptor, memoryview(end), size - END.size) < END.size:
        raise ValueError("no end")
    magic, content_bytes, json_bytes, checksum = END.unpack(end)
    num_blocks = -(-content_bytes // BLOCK_BYTES)
    behind_bytes = 4 * num_blocks + json_bytes
    # Compared with the size of the file before memory is taken: a damaged end may state any number.
    is_possible = magic == MAGIC and content_bytes >= 0 and 0 <= json_bytes <= MOST_JSON_BYTES
    if not is_possible or content_bytes + behind_bytes + END.size != size:
        raise ValueError("no end")
    behind = bytearray(behind_bytes)
    read_at(descriptor, memoryview(behind), content_bytes)
    if _checksum_of_end(behind, content_bytes) != checksum:
        raise ValueError("no end")
    try:
        words = json.loads(behind[4 * num_blocks :])
        origin, about = words["made_of"], words["about"]
    except (LookupError, TypeError, RecursionError) as error:
        signalsafe.pass_on(error)
        raise ValueError("no end") from None
    checksums = np.frombuffer(bytes(behind[: 4 * num_blocks]), "<u4").astype(np.uint32)
    return Seal(content_bytes, checksums, np.zeros(num_blocks, np.bool_)), origin, about


def _digest(checksums: Sequence[int], content_bytes: int) -> int:
    return crc32(np.array(checksums, "<u4").tobytes(), crc32(struct.pack("<q", content_bytes)))


def _checksum_of_end(behind: bytes | bytearray, content_bytes: int) -> int:
    return crc32(behind, crc32(struct.pack("<q", content_bytes)))


def _warn_of_block(path: str, seal: Seal, block: int) -> None:
    _warn(path, f"it is damaged between byte {block * BLOCK_BYTES} and {_block_end(seal, block)}")


def _warn(path: str, cause: str) -> None:
    log.warning("%s is not used; cause: %s; its content is made anew", path, cause)
