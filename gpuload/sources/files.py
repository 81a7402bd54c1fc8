"""Files: which ones the user's words mean, what each was when it was opened, many looked at at once.

Order   paths are sorted, so that records have the same numbers everywhere.
Stamps  size, time of modification and inode of each file; a file whose stamp is another one later has changed.
Memory  three int64 numbers and a path a file; no file is kept open.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter, thread_time
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import (
    ChangedFileError,
    DirectoryError,
    FileError,
    MissingFileError,
    SpecError,
    UnreadableFileError,
)
from gpuload.sources.memory import cache_bytes

Path = str | os.PathLike[str]
Paths = Path | Iterable[Path]
Stamp = tuple[int, int, int]
Item = TypeVar("Item")
Result = TypeVar("Result")

NUM_THREADS = 4  # where looking at files is waiting
WAITED = 2.0  # a chunk that took so many times the processor time that it used had to wait
ONE_REQUEST_BYTES = 1 << 17  # what storage commonly gives at once, as fast as the first page alone
ADVISE = getattr(os, "posix_fadvise", None)  # not every system has it
CHUNK = 64 if ADVISE is not None else 1  # files that each of the threads has open, to ask for all before it reads one
OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # non-blocking: opening a pipe must not wait for its writer


def expand(paths: Paths) -> list[str]:
    """Return the files that are meant, as absolute paths, sorted.

    Args:
        paths: a path, a string with the wildcards ``* ? [...] **``, or a list of these. ``~`` is the home folder.
            A wildcard never means a directory or a hidden file.

    Raises:
        MissingFileError: a wildcard matches no file.
        SpecError: no path at all, something that is no path, or a file named twice.
    """
    named = [paths] if isinstance(paths, (str, os.PathLike)) or not isinstance(paths, Iterable) else list(paths)
    found = sorted(os.path.abspath(path) for one in named for path in _matches(one))
    if not found:
        raise SpecError("no paths", cause="the list of paths is empty", remedy="name at least one file")
    twice = next((path for path, after in itertools.pairwise(found) if path == after), None)
    if twice is not None:
        raise SpecError(
            f"{twice} is named twice",
            cause="two of the paths or wildcards mean the same file",
            remedy="name it once; source.select(...) repeats records",
        )
    return found


def _matches(path: Path) -> list[str]:
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise SpecError(
            f"{path!r} as a path",
            cause=f"a path is a str or a pathlib.Path, not {type(path).__name__}",
            remedy="pass a path, a string with wildcards, or a list of these",
        )
    text = os.path.expanduser(os.fspath(path))
    if not glob.has_magic(text) or os.path.lexists(text):
        return [text]
    matches = [match for match in glob.iglob(text, recursive=True) if not os.path.isdir(match)]
    if not matches:
        raise MissingFileError(
            f"no file matches {text}",
            cause=f"seen from {os.getcwd()}" if not os.path.isabs(text) else "nothing there has such a name",
            remedy="check the folder and the wildcard",
        )
    return matches


@dataclass(frozen=True)
class Files:
    """Files as they were when they were opened.

    Attributes:
        paths: absolute paths.
        stamps: int64 ``[num_files, 3]``: size in bytes, time of modification in ns, inode.
    """

    paths: tuple[str, ...]
    stamps: NDArray[np.int64]
    names: tuple[str, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(os.path.basename(path) for path in self.paths))

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The size of each file in bytes."""
        return self.stamps[:, 0]

    def check(self, number: int) -> None:
        """Raise ``ChangedFileError`` if a file is no longer what it was when it was opened."""
        try:
            now = stamp_of(os.stat(self.paths[number]))
        except OSError as error:
            raise self.changed(number, f"it cannot be read any more: {error.strerror}") from None
        if now != self.stamp(number):
            raise self.changed(number, difference(self.stamp(number), now))

    def stamp(self, number: int) -> Stamp:
        """Return size, time of modification and inode of a file when it was opened."""
        size, mtime_ns, inode = self.stamps[number].tolist()
        return size, mtime_ns, inode

    def changed(self, number: int, cause: str) -> ChangedFileError:
        """Return the error that says that a file changed."""
        return ChangedFileError(
            f"{self.paths[number]} changed after it was opened",
            cause=cause,
            remedy="open it again, and write new data under a new name while a loader reads",
        )

    def digest(self, *more: object) -> str:
        """Return a short text made of the names and sizes of the files and of ``more``, not of folders or times."""
        text = hashlib.sha256(repr((self.names, more)).encode("utf-8", "surrogateescape"))
        text.update(np.ascontiguousarray(self.sizes, "<i8").tobytes())
        return text.hexdigest()[:16]


def look_at(
    paths: Sequence[str], head_bytes: int, use: Callable[[str, int, bytes], Result]
) -> tuple[Files, list[Result]]:
    """Return the files, and what ``use`` makes of the beginning of each.

    Where storage must be waited for, files are looked at in threads, and all beginnings of a chunk are asked for before
    the first is waited for: small files as a whole if all of them fit into memory, since they come in one request
    either way and a second one would be made for the rest.

    Args:
        paths: absolute paths, from ``expand``.
        head_bytes: how many of its first bytes to read of each.
        use: called with path, size in bytes, and these bytes (fewer where the file is shorter).

    Raises:
        MissingFileError, DirectoryError, UnreadableFileError, FileError: a file cannot be read.
    """
    most = min(ONE_REQUEST_BYTES, cache_bytes() // max(len(paths), 1))

    def look(chunk: Sequence[str]) -> list[tuple[Stamp, Result]]:
        seen = zip(chunk, _look(chunk, head_bytes, most), strict=True)
        return [(stamp, use(path, stamp[0], head)) for path, (stamp, head) in seen]

    seen = by_chunks(look, paths)
    stamps = np.array([stamp for stamp, _ in seen], np.int64).reshape(-1, 3)
    return Files(tuple(paths), stamps), [result for _, result in seen]


def _look(paths: Sequence[str], head_bytes: int, most: int) -> list[tuple[Stamp, bytes]]:
    """Return stamp and beginning of a few files; files of at most ``most`` bytes are asked for as a whole."""
    opened: list[tuple[str, int, os.stat_result]] = []
    try:
        for path in paths:
            opened.append((path, *_open(path)))
            _, descriptor, status = opened[-1]
            if head_bytes:
                _ask_for(descriptor, status.st_size if status.st_size <= most else head_bytes)
        return [(stamp_of(status), _head(path, descriptor, head_bytes)) for path, descriptor, status in opened]
    finally:
        for _, descriptor, _ in opened:
            os.close(descriptor)


def _open(path: str) -> tuple[int, os.stat_result]:
    """Return descriptor and status of a file."""
    try:
        descriptor = os.open(path, OPEN_FLAGS)
    except OSError as error:
        raise open_error(path, error) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _no_file(path, status.st_mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status


def _ask_for(descriptor: int, num_bytes: int) -> None:
    """Ask for the first bytes of a file without waiting for them; where a system has no such call, reading waits."""
    if ADVISE is not None:
        with contextlib.suppress(OSError):
            ADVISE(descriptor, 0, num_bytes, os.POSIX_FADV_WILLNEED)


def _head(path: str, descriptor: int, num_bytes: int) -> bytes:
    try:
        return os.pread(descriptor, num_bytes, 0) if num_bytes else b""
    except OSError as error:
        raise open_error(path, error) from None


def read_bytes(path: str, num_bytes: int) -> bytes:
    """Return the first ``num_bytes`` bytes of a file, or all where it has fewer."""
    try:
        with open(path, "rb") as file:
            return file.read(num_bytes)
    except OSError as error:
        raise open_error(path, error) from None


def open_error(path: str, error: OSError) -> FileError:
    """Return the error of ours for one of the operating system's about a path."""
    if isinstance(error, FileError):
        return error
    if isinstance(error, FileNotFoundError):
        folder = os.path.dirname(path)
        cause = "no such file" if os.path.isdir(folder) else f"the folder {folder} is not there either"
        return MissingFileError(f"{path} is missing", cause=cause, remedy="check the path")
    if isinstance(error, IsADirectoryError):
        return _no_file(path, stat.S_IFDIR)
    if isinstance(error, PermissionError):
        return UnreadableFileError(
            f"{path} cannot be opened", cause="its permissions do not allow it", remedy=f"chmod +r {path}"
        )
    return FileError(f"{path} cannot be read", cause=str(error.strerror or error), remedy="see what the system says")


def _no_file(path: str, mode: int) -> FileError:
    if stat.S_ISDIR(mode):
        return DirectoryError(
            f"{path} is a directory", cause="files are needed here", remedy=f"name its files: {os.path.join(path, '*')}"
        )
    return FileError(
        f"{path} is no regular file",
        cause="records are read by their place, which pipes and devices do not have",
        remedy="copy the data into a file",
    )


def by_chunks(function: Callable[[Sequence[Item]], list[Result]], items: Sequence[Item]) -> list[Result]:
    """Return what ``function`` makes of all items, a few at a time; the first error is raised.

    The caller does it as long as it need not wait; from the first chunk on that had to wait threads do.
    """
    done: list[Result] = []
    for start in range(0, len(items), CHUNK):
        began, used = perf_counter(), thread_time()
        done += function(items[start : start + CHUNK])
        if perf_counter() - began > WAITED * (thread_time() - used):
            return done + _in_threads(function, items[start + CHUNK :])
    return done


def _in_threads(function: Callable[[Sequence[Item]], list[Result]], items: Sequence[Item]) -> list[Result]:
    from concurrent.futures import ThreadPoolExecutor  # not at the top: `import gpuload` loads NumPy only

    chunks = [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]
    with ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="gpuload-open") as pool:
        try:
            return [result for done in pool.map(function, chunks) for result in done]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def stamp_of(status: os.stat_result) -> Stamp:
    """Return what must stay the same about a file while it is open: size, time of modification, inode."""
    inode = status.st_ino if status.st_ino < 2**63 else status.st_ino - 2**64  # kept in an int64
    return status.st_size, status.st_mtime_ns, inode


def difference(before: Stamp, now: Stamp) -> str:
    """Return in words what is different between two stamps of a file."""
    if before[0] != now[0]:
        return f"it had {before[0]} bytes, now it has {now[0]}"
    if before[2] != now[2]:
        return "another file stands in its place"
    return f"it was modified {(now[1] - before[1]) / 1e9:+.3f} s after the time it had"
