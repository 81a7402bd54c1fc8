"""Objects of object stores and web servers: their names, their stamps, and ranges of their bytes.

Stamps     size, time of modification in whole seconds, and a digest of the ETag. Each answer
           carries those of its object, so bytes of another version are never taken. A listing has
           them, too: an object that was listed is not asked for once more when it is opened.
Lengths    an answer that has fewer bytes than were asked for is asked for again, as after a broken
           connection.
Blocks     of objects with a URL that carries a cache (`stores.Remote`, `blockcache.py`): a block is
           asked for as a whole, once. An object without an ETag cannot be told from its successor,
           so it is not stored.

Source  RFC 9110 (ranges: section 14, ETag: section 8.8.3)
"""

from __future__ import annotations

import datetime
import fnmatch
import functools
import hashlib
import io
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import lazy
from gpuload.errors import (
    ChangedFileError,
    DirectoryError,
    FileError,
    MissingFileError,
    SpecError,
    UnreadableFileError,
    changed_file,
)
from gpuload.storage import blockcache
from gpuload.storage.blockcache import BLOCK_BYTES, Block, BlockCache, BlockPiece
from gpuload.storage.hidden import is_hidden_name, may_mean
from gpuload.storage.retries import (
    LEAST_BYTES,
    EmptyRangeError,
    OddKeyError,
    ShortError,
    StoreError,
    request,
)
from gpuload.storage.stores import (
    WEB,
    ObjectURL,
    Place,
    Remote,
    Stamp,
    address,
    client,
    like,
    obstore,
    path_of,
    place_of,
    remote_of,
)
from gpuload.threads import parallel_map

WILDCARDS = re.compile(r"[*?[]")
REQUESTS = (
    64  # under way at a time, for one call; with 32, rows come 0.6 times as fast from 20 ms away
)
AHEAD_BYTES = 1 << 23  # of a file that is read from its beginning on
PIECE_BYTES = 1 << 22  # of a request, at most
# Of an answer; each chunk that came is kept when the answer breaks off. From the second try on it
# is LEAST_BYTES.
CHUNK_BYTES = 1 << 16
MOST_BYTES = 1 << 60  # of an object
LAST_S = (2**63 - 1) // 1_000_000_000  # the last one with nanoseconds that an int64 holds, in 2262
log = logging.getLogger("gpuload")
entries_of = lazy.function("gpuload.storage.listing", "entries_of")


def names_of(url: str) -> list[str]:
    """Return the URLs of the objects that a URL with wildcards means, sorted; one without wildcards
    means itself.

    ``*`` and ``?`` end at a slash, ``**`` means any number of folders. Hidden names (`hidden.py`) are left out, unless
    the wildcard has the same first character. A web server lists nothing, so a URL of one has no
    wildcards.

    Raises:
        MissingFileError: no object matches.
        UnreadableFileError, FileError: the store cannot be listed.
    """
    place, remote = place_of(url), remote_of(url)
    if place.scheme in WEB or place.version or WILDCARDS.search(place.key) is None:
        return [ObjectURL(url, remote)]
    fixed = WILDCARDS.split(place.key)[0]
    prefix = fixed[: fixed.rfind("/") + 1]
    patterns = place.key.split("/")

    matches = _without_folders(
        url, _below(url, prefix, lambda entry: _matches(entry["path"].split("/"), patterns))
    )
    if not matches:
        raise MissingFileError(
            f"no object matches {url}",
            cause=f"none of those that begin with {place.root}/{prefix} has such a name",
            remedy="check the bucket, the folder and the wildcard",
        )
    return [_url_of(place, remote, entry) for entry in matches]


def _url_of(place: Place, remote: Remote, entry: Any) -> ObjectURL:
    """Return the URL of an object of a listing.

    Raises:
        SpecError: its key ends as the name of a version of another object does in URLs.
    """
    url = ObjectURL(f"{place.root}/{entry['path']}", remote, _stamp(entry))
    if "?" in url and place_of(url).version:
        raise SpecError(
            f"{url} as a path",
            cause="the object's key ends in words that mean a version of another object",
            remedy="copy the object to another key, or name the others without wildcards",
        )
    return url


def _matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    """Return True if the parts of a key are those of a pattern."""
    if not patterns or not names:
        return not patterns and not names
    [pattern, *rest] = patterns
    if pattern != "**":
        is_match = may_mean(pattern, names[0]) and fnmatch.fnmatchcase(names[0], pattern)
        return is_match and _matches(names[1:], rest)
    num_shown = sum(1 for _ in itertools.takewhile(lambda name: not is_hidden_name(name), names))
    depths = range(num_shown + 1)
    # A `**` at the end means each object below.
    return any(_matches(names[depth:], rest or ["*"]) for depth in depths)


def _below(url: str, prefix: str, fits: Callable[[Any], bool]) -> list[Any]:
    """Return the objects that fit, with keys that begin with a prefix, which ends in a slash,
    sorted."""

    def entries() -> list[Any]:
        # A page of S3's listing has 1,000 names at most (ListObjectsV2).
        chunks: Iterable[Any] = obstore().list(client(url), prefix or None, chunk_size=1000)
        return [entry for chunk in chunks for entry in chunk if fits(entry)]

    # All pages are one try: a listing that broke off begins anew, and gives no name twice.
    try:
        matches = request(url, entries)
    except OddKeyError as error:
        odd_key = str(error)
        plain, _ = request(url, lambda: entries_of(url, prefix, "", odd_key))
        # The object that stands for a folder in a console has the slash, and no content.
        matches = [
            entry
            for entry in plain
            if (entry["size"] or not entry["path"].endswith("/")) and fits(entry)
        ]
    return sorted(matches, key=lambda entry: str(entry["path"]))


def _without_folders(url: str, entries: list[Any]) -> list[Any]:
    """Return entries of a listing without those of folders: empty objects with keys that end in a
    slash.

    obstore cuts the slash off; but no object has the key that is left.
    """
    root, remote = place_of(url).root, remote_of(url)
    empty = {str(entry["path"]) for entry in entries if not entry["size"]}

    def is_object(path: str) -> bool:
        try:
            look(ObjectURL(f"{root}/{path}", remote), 0)
        except MissingFileError:
            return False
        except StoreError:  # each of the others would wait as long
            raise
        except (FileError, SpecError):  # the error comes again when the object is read
            pass
        return True

    paths = sorted(empty)
    folders = {
        path
        for path, is_file in zip(paths, parallel_map(is_object, paths, REQUESTS), strict=True)
        if not is_file
    }
    # A folder may have an object of its name beside it.
    unique = {str(entry["path"]): entry for entry in entries if entry["path"] not in folders}
    if empty:
        return list(unique.values())
    return entries


def names_below(url: str) -> list[str]:
    """Return the URLs of all objects below a folder, sorted, each with its stamp.

    Raises:
        SpecError: it is a folder of a web server, which lists nothing.
        UnreadableFileError, FileError: the store cannot be listed.
    """
    place, remote = place_of(url), remote_of(url)
    _check_lists(url)

    entries = _below(url, place.key.rstrip("/") + "/", lambda entry: True)
    return [_url_of(place, remote, entry) for entry in entries]


def names_in(url: str) -> list[str]:
    """Return the names of the folders and objects in a folder; the errors are those of
    `names_below`."""
    _check_lists(url)
    folders, names = _names_in(url, place_of(url).key.rstrip("/") + "/")
    return folders + names


def folders_of(url: str) -> list[str]:
    """Return the URLs of the folders that a URL with wildcards means, sorted; one without wildcards
    means itself.

    ``*`` and ``?`` end at a slash. Names that begin with a dot are left out, unless the wildcard begins with one.

    Raises:
        MissingFileError: no folder matches.
        UnreadableFileError, FileError: the store cannot be listed.
    """
    place = place_of(url)
    if place.scheme in WEB or WILDCARDS.search(place.key) is None:
        return [like(url, url.rstrip("/"))]
    folders = [""]
    for part in filter(None, place.key.split("/")):
        if WILDCARDS.search(part) is None:
            folders = [f"{folder}{part}/" for folder in folders]
        else:
            folders = [
                f"{folder}{name}/"
                for folder in folders
                for name in _names_in(url, folder)[0]
                if _matches([name], [part])
            ]
    if not folders:
        raise MissingFileError(
            f"no folder matches {url}",
            cause="none has such a name",
            remedy="check the bucket and the wildcard",
        )
    return [like(url, f"{place.root}/{folder.rstrip('/')}") for folder in sorted(folders)]


def _names_in(url: str, prefix: str) -> tuple[list[str], list[str]]:
    """Return the names of the folders, and of the objects, in a folder of the store of a URL."""
    try:
        answer = request(url, lambda: obstore().list_with_delimiter(client(url), prefix or None))
        objects, prefixes = answer["objects"], answer["common_prefixes"]
    except OddKeyError as error:
        odd_key = str(error)
        objects, prefixes = request(url, lambda: entries_of(url, prefix, "/", odd_key))
    paths = [path.rstrip("/") for path in prefixes], [entry["path"] for entry in objects]
    folders, names = (
        [path.removeprefix(prefix) for path in kind if path.startswith(prefix)] for kind in paths
    )
    # Without the object that stands for this folder, and without folders that have no name to enter
    # them by.
    return [name for name in folders if name not in ("", ".", "..")], [
        name for name in names if name.rstrip("/")
    ]


def _check_lists(url: str) -> None:
    if place_of(url).scheme in WEB:
        raise SpecError(
            f"{url} as a folder",
            cause="a web server does not say which files it has",
            remedy="name the files themselves; of a group its arrays: fields=[...]",
        )


def look(url: str, num_bytes: int) -> tuple[Stamp, bytes]:
    """Return the stamp of an object as it is now, and its first ``num_bytes`` bytes, or all where
    it has fewer.

    Raises:
        MissingFileError, UnreadableFileError, FileError: there is no such object, or it cannot be
            read.
    """

    def head() -> tuple[Stamp, bytes]:
        return _stamp(_get(url, {"head": True}).meta), b""

    def beginning() -> tuple[Stamp, bytes]:
        answer = _get(url, {"range": (0, num_bytes)})
        stamp = _stamp(answer.meta)
        return stamp, bytes(_whole(answer, min(num_bytes, stamp[0])))

    if not num_bytes:
        return request(url, head)
    try:
        return request(url, beginning)
    except EmptyRangeError:  # an empty object has no range
        return request(url, head)


def look_at_listing(url: str, num_bytes: int) -> tuple[Stamp, bytes]:
    """Return the result of `look`; if a listing has the stamp of the object, no request is sent for
    the stamp alone."""
    if isinstance(url, ObjectURL):
        stamp = url.take_stamp()
    else:
        stamp = None
    if stamp is None or (num_bytes and stamp[0]):
        return look(url, num_bytes)
    return stamp, b""


def read(url: str, stamp: Stamp, memory: memoryview, offset: int) -> None:
    """Fill memory with the bytes of an object from an offset on; safe in any number of threads.

    Raises:
        ChangedFileError: the object is no longer that of the stamp.
        MissingFileError, UnreadableFileError, FileError: it is gone, or cannot be read.
    """
    blocks = open_blocks(url, stamp)
    if blocks is None:
        fetch(url, stamp, memory, offset)
        return
    pieces = {
        number: BlockPiece(begin, length, place)
        for number, begin, length, place in _pieces(offset, len(memory))
        if not blocks.load(number, [BlockPiece(begin, length, place)], memory)
    }
    for first, after in blocks.runs(pieces):
        content = blocks.fetch(first, after)
        for number in range(first, after):
            piece = pieces[number]
            begin = (number - first) * BLOCK_BYTES + piece.begin
            memory[piece.place : piece.place + piece.length] = content.data[
                begin : begin + piece.length
            ]


def _pieces(offset: int, num_bytes: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the number of each block of a range, the first byte in the block, the bytes there, and
    their place."""
    for number in range(offset // BLOCK_BYTES, -(-(offset + num_bytes) // BLOCK_BYTES)):
        begin = max(offset, number * BLOCK_BYTES)
        end = min(offset + num_bytes, (number + 1) * BLOCK_BYTES)
        if end > begin:
            yield number, begin - number * BLOCK_BYTES, end - begin, begin - offset


def fetch(url: str, stamp: Stamp, memory: memoryview, offset: int) -> None:
    """Fill memory as `read` does, by one request to the store."""
    if not len(memory):
        return

    num_bytes = 0  # that came, of all tries
    chunk_bytes = CHUNK_BYTES  # of the next try

    def send() -> None:
        nonlocal num_bytes, chunk_bytes
        answer = _get(url, {"range": (offset + num_bytes, offset + len(memory))})
        now = _stamp(answer.meta)
        # An error of ours goes through `request` at once: the old bytes do not come back by asking
        # again.
        if now != stamp:
            raise changed(url, stamp, now)
        chunks = _chunks(answer, len(memory) - num_bytes, chunk_bytes)
        chunk_bytes = LEAST_BYTES
        for chunk in chunks:
            memory[num_bytes : num_bytes + len(chunk)] = chunk
            num_bytes += len(chunk)

    try:
        request(url, send, lambda: num_bytes)
    except (ChangedFileError, UnreadableFileError, StoreError):
        raise
    except MissingFileError as error:
        raise changed_file(url, f"it is gone: {error.cause}") from None
    except (FileError, EmptyRangeError) as error:
        now, _ = look(url, 0)  # of an object that is shorter now no range is there
        if now != stamp:
            raise changed(url, stamp, now) from None
        if isinstance(error, FileError):
            raise
        raise FileError(
            f"{url} cannot be read",
            cause=f"its server has no range at byte {offset}",
            remedy="check the server",
        ) from None


class CachedObject:
    """The blocks of an object, some of which are in a cache.

    Args:
        url: of the object.
        stamp: of the object when it was opened.
        cache: the cache.
    """

    def __init__(self, url: str, stamp: Stamp, cache: BlockCache) -> None:
        self.url, self.stamp, self._cache = url, stamp, cache
        self._digest = blockcache.digest_of(address(url), stamp)

    def load(self, number: int, pieces: Sequence[BlockPiece], memory: memoryview) -> bool:
        """Copy pieces of a block to memory; return False if it is not in the cache."""
        return self._cache.load(self._block(number), pieces, memory)

    def fetch(self, first: int, after: int) -> NDArray[np.uint8]:
        """Return the bytes of neighbouring blocks, by one request to the store, and store them in
        the cache.

        Raises:
            ChangedFileError: the object is no longer that of the stamp.
            MissingFileError, UnreadableFileError, FileError: it is gone, or cannot be read.
        """
        content = np.empty(min(after * BLOCK_BYTES, self.stamp[0]) - first * BLOCK_BYTES, np.uint8)
        fetch(self.url, self.stamp, content.data, first * BLOCK_BYTES)
        for number in range(first, after):
            begin = (number - first) * BLOCK_BYTES
            self._cache.store(self._block(number), content.data[begin : begin + BLOCK_BYTES])
        return content

    @staticmethod
    def runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Yield first and after-last of the blocks, in rising order, that one request asks for."""
        first = after = -1
        for number in numbers:
            if number != after or (after + 1 - first) * BLOCK_BYTES > PIECE_BYTES:
                if after > first:
                    yield first, after
                first = number
            after = number + 1
        if after > first:
            yield first, after

    def _block(self, number: int) -> Block:
        return Block(self._digest, number, min(BLOCK_BYTES, self.stamp[0] - number * BLOCK_BYTES))


def open_blocks(url: str, stamp: Stamp) -> CachedObject | None:
    """Return the blocks of an object; None if its URL carries no cache, or it has no ETag.

    Raises:
        FileError: the folder of the cache cannot be used.
    """
    remote = remote_of(url)
    if remote.cache is None:
        return None
    # Without an ETag the blocks of an object that was replaced could not be told from the new ones.
    if not stamp[2]:
        _warn_of_tags(place_of(url).root)
        return None
    return CachedObject(
        url, stamp, blockcache.open_cache(os.fspath(remote.cache), int(remote.cache_bytes))
    )


class Reader:
    """An object that is read as an open file is: pieces, mostly one behind
    the other.

    The bytes behind a piece come with it, so that small pieces are not a request each.

    Args:
        url: of the object.
        stamp: of the object when it was opened.
        ahead_bytes: that come with a piece, at most.
    """

    def __init__(self, url: str, stamp: Stamp, ahead_bytes: int = AHEAD_BYTES) -> None:
        self.url, self.stamp, self._ahead_bytes = url, stamp, ahead_bytes
        self._ahead, self._begin, self._next = bytearray(), 0, 0

    def read(self, memory: memoryview, offset: int) -> int:
        """Fill memory from an offset on; return the number of bytes, fewer only at the end of the
        object."""
        length = min(len(memory), max(0, self.stamp[0] - offset))
        end = offset + length
        if not self._begin <= offset <= end <= self._begin + len(self._ahead):
            # A library that jumps, to an index and back, would pay for bytes that it never reads.
            goes_on = offset == self._next
            if goes_on:
                want = max(length, min(self._ahead_bytes, self.stamp[0] - offset))
            else:
                want = length
            self._ahead, self._begin = bytearray(want), offset
            read(self.url, self.stamp, memoryview(self._ahead), offset)
        memory[:length] = memoryview(self._ahead)[offset - self._begin : end - self._begin]
        self._next = end
        return length


class File(io.RawIOBase):
    """An object as a binary file of Python's, for libraries that read files."""

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self._reader = reader
        self._place = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position, and return it."""
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._reader.stamp[0]}[
            whence
        ]
        self._place = max(0, begin + offset)
        return self._place

    def tell(self) -> int:
        """Return the position."""
        return self._place

    def readinto(self, memory: Any) -> int:
        """Fill memory, and return the number of bytes; 0 at the end."""
        num_read = self._reader.read(memoryview(memory).cast("B"), self._place)
        self._place += num_read
        return num_read


@functools.cache
def _warn_of_tags(root: str) -> None:
    log.warning(
        "%s sends no ETags, by which a replaced object is known: its objects are not stored in the "
        "cache",
        root,
    )


def _get(url: str, options: dict[str, Any]) -> Any:
    place = place_of(url)
    if place.key.endswith("/"):  # obstore would ask for the object without the slash
        raise DirectoryError(
            f"{url} names a folder",
            cause="a file is needed here",
            remedy=f"name its files: {path_of(url)}*",
        )
    if place.version:
        options["version"] = place.version
    return obstore().get(client(url), place.key, options=options)


def _chunks(answer: Any, num_bytes: int, chunk_bytes: int) -> Iterator[memoryview]:
    """Yield the bytes of an answer as they come, in chunks of at least ``chunk_bytes``; a shorter
    answer as a whole.

    Raises:
        ShortError: there are fewer, or more.
    """
    if num_bytes <= chunk_bytes:
        yield _whole(answer, num_bytes)
        return
    num_left = num_bytes
    for chunk in answer.stream(min_chunk_size=chunk_bytes):
        view = memoryview(chunk)
        if len(view) > num_left:
            raise ShortError(f"more than {num_bytes} bytes came")
        yield view
        num_left -= len(view)
    if num_left:
        raise ShortError(f"{num_bytes - num_left} of {num_bytes} bytes came")


def _whole(answer: Any, num_bytes: int) -> memoryview:
    content = memoryview(answer.bytes())
    if len(content) != num_bytes:
        raise ShortError(f"{len(content)} of {num_bytes} bytes came")
    return content


def _stamp(meta: Any) -> Stamp:
    """Return the stamp of an object; listings have its time in ms or s, answers in s, and some
    leave the quotes out."""
    return _stamp_of(meta["size"], meta["last_modified"], meta.get("e_tag") or "")


@functools.lru_cache(maxsize=1 << 10)  # the answers for one object have the same
def _stamp_of(size: int, time: datetime.datetime, tag: str) -> Stamp:
    if not 0 <= size < MOST_BYTES:
        raise ValueError(f"the server says that it has {size} bytes")
    tag = tag.strip('"')
    # Servers write 1601 for a file without a time: beyond the nanoseconds of an int64, all times
    # are one.
    time_s = min(max(int(time.timestamp()), -LAST_S), LAST_S)
    # Signed, since a stamp is a row of int64.
    if tag:
        digest = int.from_bytes(hashlib.sha256(tag.encode()).digest()[:8], "little", signed=True)
    else:
        digest = 0
    return size, time_s * 1_000_000_000, digest


def changed(url: str, before: Stamp, now: Stamp) -> ChangedFileError:
    """Return the error for an object that is another one now."""
    return changed_file(url, difference(before, now))


def difference(before: Stamp, now: Stamp) -> str:
    """Return the difference of an object's stamps, in words."""
    if before[0] != now[0]:
        return f"it had {before[0]} bytes, now it has {now[0]}"
    return "its ETag or time is another one"
