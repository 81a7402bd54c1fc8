"""Files: the paths that the user's words mean, and a stamp of each file at its opening; many are
opened side by side.

Order   a list keeps its order; the files of a wildcard are sorted, so that records have the same
        numbers everywhere.
Links   are followed; but ``**`` enters each folder once, and no link that leads to a folder above
        it.
Stamps  size, time of modification and inode of each file; a file whose stamp is another one later
        has changed.
Remote  the URL of an object takes the place of a path, and a `objects.Reader` that of a descriptor.
Many    files of a manifest have their paths in arrays (`paths.py`), and no inodes, which differ
        between machines.
Memory  three int64 numbers and a path a file; no file is kept open.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import fnmatch
import hashlib
import io
import itertools
import logging
import os
import re
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter, thread_time
from typing import BinaryIO, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from gpuload import signalsafe
from gpuload.errors import (
    ChangedFileError,
    DirectoryError,
    FileError,
    FormatError,
    GpuloadError,
    MissingFileError,
    SpecError,
    UnreadableFileError,
    changed_file,
)
from gpuload.progress import Progress
from gpuload.storage import objects
from gpuload.storage.hidden import may_mean
from gpuload.storage.memory import cache_bytes
from gpuload.storage.paths import CHUNK, PackedPaths
from gpuload.storage.stores import SCHEMES, Remote, Stamp, is_remote, like, path_of
from gpuload.threads import parallel_map

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

Path = str | os.PathLike[str] | Remote
Paths = Path | Iterable[Path]
Handle = int | objects.Reader  # an open file: its descriptor, or what reads an object
Item = TypeVar("Item")
Result = TypeVar("Result")

NUM_THREADS = 4  # that open files while storage is slow
WAITED = 2.0  # a chunk that took so many times its processor time had to wait
ONE_REQUEST_BYTES = (
    1 << 17
)  # storage commonly returns so much at once, as fast as the first page alone
ADVISE = getattr(os, "posix_fadvise", None)  # not every system has it
log = logging.getLogger("gpuload")
READ_AT = getattr(os, "preadv", None)  # nor this
MOST_CHUNK = (
    64 if ADVISE is not None else 1
)  # files a thread has open, to ask for all before it reads the first
# Non-blocking: opening a pipe must not wait for its writer. Binary: Windows would change line ends.
OPEN_FLAGS = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NONBLOCK", "O_BINARY")
)
REMEDIES = {
    errno.EMFILE: "let this process open more files: ulimit -n 4096 in the shell that starts it, or close some",
    errno.ENFILE: "close files in other processes: all of them together have as many open as the system allows",
    errno.ELOOP: "remove the link that leads to itself",
    errno.ENAMETOOLONG: "give it a shorter name",
    errno.ESTALE: "mount the file server again: the file was replaced there",
}
LARGEST_READ = 1 << 30  # Linux reads at most 0x7ffff000 bytes a call
SAMPLED_FILES, SAMPLED_PIECES, PIECE_BYTES = (
    32,
    64,
    4096,
)  # of a digest: some milliseconds on a local disk
WILDCARDS = frozenset("*?[")
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # pathlib makes one slash of two; C:/ is a drive
MOST_NAMES, SIMILARITY = (
    10_000,
    0.75,
)  # names of a folder that are compared with a wrong one; 1 is the same name
SHARD = re.compile(
    r"(?P<before>.*[-_.])(?P<number>\d{1,9})(?P<of>[-_]of[-_])(?P<total>\d{1,9})(?P<behind>[^/]*)",
    re.DOTALL,
)
MOST_SHARDS = 1 << 16  # of which each that is not named is looked for
GZIP = b"\x1f\x8b"  # RFC 1952, section 2.3.1


def as_folder(argument: Paths) -> str | None:
    """Return the absolute path of a single folder; None for others, and for an empty text, of an
    unset variable.

    The URL of a folder of an object store ends in a slash.
    """
    if isinstance(argument, Remote):
        urls = argument.object_urls()
        if len(urls) == 1 and urls[0].endswith("/"):
            return urls[0]
        return None
    if (
        not isinstance(argument, (str, os.PathLike))
        or not isinstance(os.fspath(argument), str)
        or not os.fspath(argument)
    ):
        return None
    if is_remote(os.fspath(argument)):
        url = os.fspath(argument)
        return url if url.endswith("/") else None
    path = os.path.abspath(os.path.expanduser(os.fspath(argument)))
    return path if signalsafe.is_folder(path) else None


def expand(paths: Paths, *, is_quiet: bool = False) -> list[str]:
    """Return the absolute paths of files: those of a list in its order, those of a wildcard sorted;
    URLs, too.

        expand(["b.npy", "a.npy"])     b.npy a.npy
        expand("s3://bucket/*.npy")    s3://bucket/a.npy s3://bucket/b.npy
        expand("*.npy")                a.npy b.npy
        expand(["z/*.npy", "a.npy"])   z/1.npy z/2.npy a.npy

    Args:
        paths: a path, a string with the wildcards ``* ? [...] **``, URLs with the settings of their
            store (`Remote`), or a list of these. ``~`` is the home folder. A wildcard never means a
            directory, and no hidden file or one in a folder of the system (`hidden.py`) unless it
            has the same first character. The name of an existing file is no wildcard.
        is_quiet: True: no warning of shards that are missing, for whoever passes the result to a
            reader that looks for them itself.

    Raises:
        MissingFileError: a wildcard matches no file.
        UnreadableFileError, FileError: a folder in which a wildcard looks cannot be read.
        SpecError: no path at all, something that is no path, one that is not on this machine, or a
            file named twice.
    """
    names = as_list(paths)
    files = [path for name in names for path in _matches(name)]
    if not files:
        raise SpecError(
            "no paths", cause="the list of paths is empty", remedy="name at least one file"
        )
    check_named_once(files)
    if not is_quiet:
        warn_of_missing_shards(files)
    return files


def warn_of_missing_shards(files: Sequence[str]) -> None:
    """Warn of files that are numbered as x-00001-of-00003 where one of these numbers is nowhere.

    Shards that lie in the folder and were not named are left out on purpose, and nothing is said.
    """
    numbers_of: dict[tuple[str, str, str], list[str]] = {}
    for path in files:
        if "of" in path and (match := SHARD.fullmatch(path)) is not None:
            end = f"{match['of']}{match['total']}"
            numbers_of.setdefault((match["before"], end, match["behind"]), []).append(
                match["number"]
            )
    for (before, end, behind), numbers in numbers_of.items():
        present, count = set(map(int, numbers)), int(end[4:])
        if count > MOST_SHARDS or len(present) >= count:
            continue
        first = 1 if count in present else 0  # counted from 0 by most, from 1 by some
        absent = sorted(set(range(first, first + count)) - present)
        lost = _absent_files(
            [
                like(files[0], f"{before}{number:0{len(numbers[0])}}{end}{behind}")
                for number in absent
            ]
        )
        if lost:
            log.warning(
                "%d of %d shards are missing, the first is %s; their records are not read. Copy them, or rename the "
                "others if this is meant",
                *(len(lost), count, lost[0]),
            )


def _absent_files(paths: Sequence[str]) -> list[str]:
    """Return those paths of one folder at which there is no file; of a store by one listing, if it
    has one."""
    if not is_remote(paths[0]):
        return [path for path in paths if not signalsafe.exists(path)]
    try:
        names = set(objects.names_in(like(paths[0], os.path.dirname(paths[0]))))
    except (
        GpuloadError
    ):  # a web server has none: its files were named one by one, and no more is known
        return []
    return [path for path in paths if os.path.basename(path) not in names]


def expand_folders(paths: Paths, *, is_quiet: bool = False) -> list[str]:
    """Return the absolute paths of folders: those of a list in its order, those of a wildcard
    sorted.

    Args:
        paths: as for ``expand``, but a wildcard means folders; other names are returned whatever
            they are.
        is_quiet: as for ``expand``.

    Raises:
        MissingFileError: a wildcard matches no folder.
        SpecError: no path at all, something that is no path, or a folder named twice.
    """
    folders = [folder for name in as_list(paths) for folder in _matching_folders(name)]
    if not folders:
        raise SpecError(
            "no paths", cause="the list of paths is empty", remedy="name at least one folder"
        )
    check_named_once(folders)
    if not is_quiet:
        warn_of_missing_shards([folder.rstrip("/") for folder in folders])
    return folders


def join(folder: str, *names: str) -> str:
    """Return the path of a file in a folder, or its URL; names are parts of paths with slashes."""
    if is_remote(folder):
        return like(folder, "/".join([folder.rstrip("/"), *names]))
    return os.path.join(folder, *(part for name in names for part in name.split("/")))


def names_in(folder: str) -> list[str]:
    """Return the names of the files and folders in a folder; none if there is no such folder."""
    if is_remote(folder):
        return objects.names_in(folder)
    return [entry.name for entry in _entries(folder, "*")]


def files_below(folder: str) -> list[str]:
    """Return the paths of all files below a folder, also of hidden ones."""
    if is_remote(folder):
        return objects.names_below(folder)
    return [os.path.join(inner, name) for inner, _, names in os.walk(folder) for name in names]


def _matching_folders(name: Path) -> list[str]:
    """Return the absolute paths of one folder or wildcard."""
    if isinstance(name, Remote):
        return [folder for url in name.object_urls() for folder in objects.folders_of(url)]
    if isinstance(name, (str, os.PathLike)):
        text = os.path.expanduser(os.fspath(name))
    else:
        text = name
    if isinstance(text, str) and is_remote(text):
        return objects.folders_of(text)
    if (
        not isinstance(text, str)
        or not text
        or not WILDCARDS.intersection(text)
        or signalsafe.exists(text, follow=False)
    ):
        return _matches(name)
    folders, path = [os.sep], os.path.abspath(text)
    for part in filter(None, path.split(os.sep)):
        folders = [
            inner
            for folder in folders
            for inner in _folders(folder, part)
            if signalsafe.is_folder(inner)
        ]
    if not folders:
        raise MissingFileError(
            f"no folder matches {text}", cause="there is none", remedy="check the wildcard"
        )
    return sorted(set(folders))


def as_list(paths: Paths) -> list[Path]:
    """Return the paths or wildcards of an argument as a list; raises ``SpecError`` for a set, which
    has no order."""
    if isinstance(paths, (set, frozenset)):
        raise SpecError(
            f"paths in a {type(paths).__name__}",
            cause="it has no order, and records are numbered in the order of their files",
            remedy="pass a list: sorted(paths)",
        )
    is_path = isinstance(paths, (str, bytes, os.PathLike, Remote))
    is_source = hasattr(paths, "read_groups")  # its records can be iterated, and are no paths
    is_list = isinstance(paths, Iterable) and bool(getattr(paths, "ndim", 1))
    if is_path or is_source or not is_list:
        return [paths]  # type: ignore[list-item]
    return list(paths)  # type: ignore[arg-type]


def check_named_once(paths: Sequence[str]) -> None:
    """Refuse a file that is named twice, also by way of a link to its folder.

    Only folders are resolved, which are few: to resolve each of a million paths takes half a
    minute. So links to one file that have names of their own are different files.
    """
    folders: dict[str, str] = {}
    first: dict[tuple[str, str], str] = {}
    for path in paths:
        folder, name = os.path.split(path_of(path))
        if folder not in folders:
            if is_remote(path):
                folders[folder] = folder
            else:
                folders[folder] = os.path.realpath(folder)
        before = first.setdefault((folders[folder], name), path)
        if before is not path:
            raise SpecError(
                f"{path} is named twice",
                cause="two of the paths or wildcards mean the same file"
                + (f", also as {before}" * (before != path)),
                remedy="name it once; files, numbers = numpy.unique(paths, return_inverse=True) are the different "
                "ones, and source.select(numbers) of a source of these has a record for each of the paths",
            )


def _matches(name: Path) -> list[str]:
    """Return the absolute paths of one path or wildcard, or of the URLs of a `Remote`."""
    if isinstance(name, Remote):
        return [path for url in name.object_urls() for path in objects.names_of(url)]
    if not isinstance(name, (str, os.PathLike)) or not isinstance(os.fspath(name), str):
        raise SpecError(
            f"{name!r} as a path",
            cause=f"a path is a str or a pathlib.Path, not {type(name).__name__}",
            remedy='read the column of paths, and pass that: table.read(range(len(table)), "path")["path"]'
            if hasattr(name, "read_groups")
            else "pass a path, a string with wildcards, or a list of these",
        )
    text = os.path.expanduser(os.fspath(name))
    if is_remote(text):
        return objects.names_of(text)
    _check_text(text)
    path = os.path.abspath(text)
    if not WILDCARDS.intersection(path) or signalsafe.exists(path, follow=False):
        return [path]
    matches = sorted(set(_wildcard(path)))
    if not matches:
        if "[" in text:
            bracket = "; [...] means one of the characters in it, and [[] means the bracket itself"
        else:
            bracket = ""
        raise MissingFileError(
            f"no file matches {text}",
            cause=_why_none_matches(path),
            remedy=f"check the folder and the wildcard{bracket}",
        )
    return matches


def _check_text(text: str) -> None:
    """Raise ``SpecError`` for a text that cannot be the path of a file of this machine."""
    if not text:
        raise SpecError("'' as a path", cause="the text is empty", remedy="name a file")
    if URL.match(text) and not signalsafe.exists(text, follow=False):
        raise SpecError(
            f"{text} as a path",
            cause=f"it is a URL, and of those {', '.join(SCHEMES)} are read, with :// behind; files of this "
            "machine are named by their path alone",
            remedy="copy the files to a local disk, or mount their storage, and pass that path",
        )
    check_name(text)


def check_name(text: str) -> None:
    """Raise ``SpecError`` for characters that no file's name can hold; Python would raise a
    ValueError at first use.

    Raises:
        SpecError: a character is NUL, or half of a surrogate pair.
    """
    try:
        raw = os.fsencode(text)
    except UnicodeEncodeError as error:
        raise SpecError(
            f"{text!r} as a path",
            cause=f"character {error.start} is half of a surrogate pair, which no file's name can hold",
            remedy="check how the name was decoded; os.fsdecode(...) keeps any name",
        ) from None
    if b"\0" in raw:
        raise SpecError(
            f"{text!r} as a path",
            cause="no file's name can hold the character NUL",
            remedy="cut the name before it",
        )


def _wildcard(path: str) -> list[str]:
    """Return the files of an absolute path with wildcards, folder by folder; `glob` enters links
    for ever."""
    drive, rest = os.path.splitdrive(path)
    parts = [part for part in rest.split(os.sep) if part]
    folders = [os.path.join(drive, os.sep)]
    for part in parts if parts[-1] == "**" else parts[:-1]:
        folders = [inner for folder in folders for inner in _folders(folder, part)]
    if parts[-1] == "**":
        return [
            entry.path
            for folder in folders
            for entry in _entries(folder, "*")
            if not is_folder(entry)
        ]
    return [file for folder in folders for file in _files(folder, parts[-1])]


def _why_none_matches(path: str) -> str:
    """Return the first part of an absolute path with wildcards that matches nothing, in words."""
    drive, rest = os.path.splitdrive(path)
    parts = [part for part in rest.split(os.sep) if part]
    folder = os.path.join(drive, os.sep)
    folders = [folder]
    for part in parts[:-1]:
        folders = [
            inner
            for outer in folders
            for inner in _folders(outer, part)
            if signalsafe.is_folder(inner)
        ]
        if not folders:
            return f"{folder} holds no folder {part}"
        folder = os.path.join(folder, part)
    return f"{folder} holds no file {parts[-1]}"


def _folders(folder: str, part: str) -> list[str]:
    """Return the paths that one part of a path, perhaps a wildcard, means inside a folder."""
    path = os.path.join(folder, part)
    if not WILDCARDS.intersection(part) or signalsafe.exists(path, follow=False):
        return [path]
    if part == "**":
        return list(_folders_below(folder))
    return [entry.path for entry in _entries(folder, part) if is_folder(entry)]


def _files(folder: str, part: str) -> list[str]:
    """Return the files that the last part of a path means inside a folder."""
    path = os.path.join(folder, part)
    if not WILDCARDS.intersection(part) or signalsafe.exists(path, follow=False):
        if signalsafe.exists(path, follow=False) and not signalsafe.is_folder(path):
            return [path]
        return []
    return [entry.path for entry in _entries(folder, part) if not is_folder(entry)]


def _folders_below(root: str) -> Iterator[str]:
    """Yield a folder and all folders below it, each once: real ones first, then those behind links.

    A link to a folder above the one that it lies in is a loop, and is not entered.
    """
    visited: set[str] = set()
    folders, links = [root], list[str]()
    while folders:
        folder = folders.pop()
        real = os.path.realpath(folder)
        # By its real path: a folder that two links lead to is entered once.
        if real not in visited:
            visited.add(real)
            yield folder
            inner = sorted(entry.path for entry in _entries(folder, "*") if is_folder(entry))
            linked = [path for path in inner if signalsafe.is_link(path)]
            folders += [path for path in reversed(inner) if not signalsafe.is_link(path)]
            links += [path for path in linked if not _is_inside(real, os.path.realpath(path))]
        if not folders and links:
            folders.append(links.pop(0))


def leads_above(path: str, folder: str) -> bool:
    """Return True for a link to a folder in which another one lies: not all that is there lies
    below that one."""
    if not os.path.islink(path):
        return False
    return os.path.realpath(folder).startswith(os.path.join(os.path.realpath(path), ""))


def _is_inside(inner: str, outer: str) -> bool:
    """Return True if a real folder is another one or lies in it."""
    return os.path.join(inner, "").startswith(os.path.join(outer, ""))


def _entries(folder: str, pattern: str) -> list[os.DirEntry[str]]:
    """Return the entries of a folder whose names match, without hidden ones; [] if there is no such
    folder."""
    try:
        with os.scandir(folder) as entries:
            visible = {entry.name: entry for entry in entries if may_mean(pattern, entry.name)}
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise open_error(folder, error) from None
    return [visible[name] for name in fnmatch.filter(visible, pattern)]


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return True for a folder, or a link to one."""
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: opening it raises the error
        return False


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
            ahead_bytes: of an object, that may be asked for with a piece: for those who read from
                place to place a few.

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
            # A file that changed or is gone is said to be that, whatever hinders the opening.
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
            yield cast(
                BinaryIO,
                objects.File(handle)
                if isinstance(handle, objects.Reader)
                else io.FileIO(handle, closefd=False),
            )
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
    folders = (
        paths.folders.between(0, len(paths.folders)) if isinstance(paths, PackedPaths) else paths
    )
    return any(map(is_remote, folders))


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
            open_files.append((path, *_open(path)))
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


def _open(path: str) -> tuple[int, os.stat_result]:
    """Return descriptor and status of a file."""
    try:
        descriptor = os.open(path, OPEN_FLAGS)
    except OSError as error:
        if signalsafe.is_folder(path):  # Windows opens none, and speaks of permissions
            raise _no_file(path, stat.S_IFDIR) from None
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
    """Request the first bytes of a file without waiting for them; on a system without such a call,
    reading waits."""
    if ADVISE is not None:
        with signalsafe.suppress(OSError):
            ADVISE(descriptor, 0, num_bytes, os.POSIX_FADV_WILLNEED)


def _head(path: str, descriptor: int, num_bytes: int) -> bytes:
    head = bytearray(num_bytes)
    try:
        if num_bytes:
            num_read = read_at(descriptor, memoryview(head), 0)
        else:
            num_read = 0
    except OSError as error:
        raise open_error(path, error) from None
    return bytes(head[:num_read])


def open_binary(path: str) -> BinaryIO:
    """Return a file of Python's, open for reading, for libraries that read files; of an object,
    too."""
    if is_remote(path):
        return cast(BinaryIO, objects.File(objects.Reader(path, objects.look(path, 0)[0])))
    return open(open_regular(path), "rb")


def open_regular(path: str) -> int:
    """Return the descriptor of a regular file; a pipe, which could be waited for without end, is
    refused."""
    return _open(path)[0]


def open_handle(path: str) -> Handle:
    """Return what `read_at` reads a file by; `close_handle` closes it."""
    if is_remote(path):
        return objects.Reader(path, objects.look(path, 0)[0])
    return os.open(path, OPEN_FLAGS)


def close_handle(handle: Handle) -> None:
    """Close an open file; an object has nothing to close."""
    if not isinstance(handle, objects.Reader):
        os.close(handle)


def read_at(descriptor: Handle, to: memoryview, offset: int) -> int:
    """Read bytes of a file to a view of bytes; return their number, fewer only at the end of the
    file.

    No other thread may use the descriptor meanwhile: on a system that cannot read at an offset its
    position moves.
    """
    if isinstance(descriptor, objects.Reader):
        return descriptor.read(to, offset)
    num_done = 0
    while num_done < len(to):
        num_read = _read_once(descriptor, to[num_done : num_done + LARGEST_READ], offset + num_done)
        if not num_read:
            break
        num_done += num_read
    return num_done


def _read_once(descriptor: int, to: memoryview, offset: int) -> int:
    if READ_AT is not None:
        return int(READ_AT(descriptor, [to], offset))
    with io.FileIO(descriptor, closefd=False) as file:
        file.seek(offset)
        return file.readinto(to) or 0


def read_bytes(path: str, num_bytes: int) -> bytes:
    """Return the first ``num_bytes`` bytes of a file, or all where it has fewer."""
    if is_remote(path):
        return objects.look(path, num_bytes)[1]
    with open(open_regular(path), "rb") as file:
        try:
            return file.read(num_bytes)
        except OSError as error:
            raise open_error(path, error) from None


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


def exists(path: str) -> bool:
    """Return True if there is a file of this path or URL."""
    if not is_remote(path):
        return signalsafe.is_file(path)
    try:
        objects.look(path, 0)
    except MissingFileError:
        return False
    return True


def open_error(path: str, error: OSError) -> FileError:
    """Return the error of ours for one of the operating system's about a path."""
    if isinstance(error, FileError):
        return error
    signalsafe.pass_on(error)
    if isinstance(error, FileNotFoundError):
        folder = os.path.dirname(path)
        if (link := _broken_link(path)) is not None:
            return MissingFileError(
                f"{path} is missing" if link != path else f"{path} is a link to nothing",
                cause=f"{link} is a link to {os.readlink(link)}, which is not there",
                remedy="bring its target here, as dvc pull, git annex get or git lfs pull do, or remove the link",
            )
        if not signalsafe.is_folder(folder):
            cause = f"the folder {folder} is not there either"
            return MissingFileError(f"{path} is missing", cause=cause, remedy="check the path")
        near = _similar_names(folder, os.path.basename(path))
        if near:
            remedy = f"check the path; the folder has {' and '.join(near)}"
        else:
            remedy = "check the path"
        return MissingFileError(f"{path} is missing", cause="no such file", remedy=remedy)
    if isinstance(error, IsADirectoryError):
        return _no_file(path, stat.S_IFDIR)
    if isinstance(error, PermissionError):
        if signalsafe.is_folder(path):
            rights = "+rx"
        else:
            rights = "+r"
        return UnreadableFileError(
            f"{path} cannot be opened",
            cause="its permissions do not allow it",
            remedy=f"chmod {rights} {path}",
        )
    return FileError(
        f"{path} cannot be read",
        cause=str(error.strerror or error),
        remedy=REMEDIES.get(
            error.errno or 0, "read the system's messages about it (dmesg), and check the disk"
        ),
    )


def _broken_link(path: str) -> str | None:
    """Return the link to nothing because of which a path is missing: the path, or a folder of it;
    None without."""
    place = os.path.abspath(path)
    while not signalsafe.exists(place, follow=False) and place != os.path.dirname(place):
        place = os.path.dirname(place)
    if signalsafe.is_link(place) and not signalsafe.exists(place):
        return place
    return None


def _similar_names(folder: str, name: str) -> list[str]:
    """Return names in a folder that a slip of the hand turns into ``name``, two at most; of many
    files only a part."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in itertools.islice(entries, MOST_NAMES)]
    except OSError:
        return []
    return difflib.get_close_matches(name, sorted(names), n=2, cutoff=SIMILARITY)


def gzip_error(path: str, beginning: bytes) -> FormatError | None:
    """Return the error for a file that begins as gzip files do; None for any other."""
    if not beginning.startswith(GZIP):
        return None
    if path.lower().endswith(".gz"):
        target = path[:-3]
    else:
        target = f"{path}.unpacked"
    return FormatError(
        f"{path} is compressed with gzip",
        cause="records are read by their place in a file, which they do not have in a compressed one",
        remedy=f"unpack it and open the result: gunzip -c {shlex.quote(path)} > {shlex.quote(target)}",
    )


def _no_file(path: str, mode: int) -> FileError:
    if stat.S_ISDIR(mode):
        return DirectoryError(
            f"{path} is a directory",
            cause="files are needed here",
            remedy=f"name its files, {os.path.join(path, '*')} say; or call gl.open, which finds out the format",
        )
    return FileError(
        f"{path} is no regular file",
        cause="records are read by their place, which pipes and devices do not have",
        remedy="copy the data into a file",
    )


def by_chunks(
    function: Callable[[Sequence[Item]], list[Result]],
    items: Sequence[Item],
    show: Callable[[int], None] = lambda num_done: None,
) -> list[Result]:
    """Return the results of ``function`` for all items, a chunk at a time; the first error is
    raised.

    The calling thread does the work until a chunk has to wait for storage; threads do the rest.
    ``show`` is called with the number of items that are done, at the beginning, and after each
    chunk by the thread that did it.
    """
    all_results: list[Result] = []
    size = _chunk_size()
    chunks = [items[start : start + size] for start in range(0, len(items), size)]
    num_chunks = itertools.count(1)  # next() is one step of the interpreter

    def work(chunk: Sequence[Item]) -> list[Result]:
        results = function(chunk)
        show(min(next(num_chunks) * size, len(items)))
        return results

    show(0)
    for number, chunk in enumerate(chunks):
        start_s, cpu_s = perf_counter(), thread_time()
        all_results += work(chunk)
        # Threads only where storage is slow: with files in the page cache they would hand Python's
        # lock around.
        if perf_counter() - start_s > WAITED * (thread_time() - cpu_s):
            return all_results + [
                result
                for chunk_results in parallel_map(work, chunks[number + 1 :], NUM_THREADS)
                for result in chunk_results
            ]
    return all_results


def _chunk_size() -> int:
    """Return the number of files that a thread may have open: all threads together a quarter of the
    limit."""
    if resource is None:
        return MOST_CHUNK
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed >= 0:
        return max(1, min(MOST_CHUNK, allowed // (4 * NUM_THREADS)))
    return MOST_CHUNK


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
