"""Wildcards: the files and folders that the user's words mean.

Order   a list keeps its order; the files of a wildcard are sorted, so that records have the same
        numbers everywhere.
Links   are followed; but ``**`` enters each folder once, and no link that leads to a folder above
        it.
Remote  the URL of an object takes the place of a path.
"""

from __future__ import annotations

import fnmatch
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence

from gpuload import signalsafe
from gpuload.errors import GpuloadError, MissingFileError, SpecError
from gpuload.storage import objects
from gpuload.storage.fileerrors import open_error
from gpuload.storage.hidden import may_mean
from gpuload.storage.stores import SCHEMES, Remote, is_remote, like, path_of

log = logging.getLogger("gpuload")

Path = str | os.PathLike[str] | Remote
Paths = Path | Iterable[Path]
WILDCARDS = frozenset("*?[")
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # pathlib makes one slash of two; C:/ is a drive
SHARD = re.compile(
    r"(?P<before>.*[-_.])(?P<number>\d{1,9})(?P<of>[-_]of[-_])(?P<total>\d{1,9})(?P<behind>[^/]*)",
    re.DOTALL,
)
MOST_SHARDS = 1 << 16  # of which each that is not named is looked for


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
        if url.endswith("/"):
            return url
        return None
    path = os.path.abspath(os.path.expanduser(os.fspath(argument)))
    if signalsafe.is_folder(path):
        return path
    return None


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
        is_quiet: True: no warning of shards that are missing, for a caller that passes the result
            to a reader that looks for them itself.

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
                "%d of %d shards are missing, the first is %s; their records are not read. Copy "
                "them, or rename the others if this is meant",
                *(len(lost), count, lost[0]),
            )


def _absent_files(paths: Sequence[str]) -> list[str]:
    """Return those paths of one folder at which there is no file; of a store by one listing, if it
    has one."""
    if not is_remote(paths[0]):
        return [path for path in paths if not signalsafe.exists(path)]
    try:
        names = set(objects.names_in(like(paths[0], os.path.dirname(paths[0]))))
    except GpuloadError:
        # a web server has none: its files were named one by one, and no more is known
        return []
    return [path for path in paths if os.path.basename(path) not in names]


def expand_folders(paths: Paths, *, is_quiet: bool = False) -> list[str]:
    """Return the absolute paths of folders: those of a list in its order, those of a wildcard
    sorted.

    Args:
        paths: as for ``expand``, but a wildcard means folders; other names are returned as they
            are.
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
    is_source = hasattr(paths, "fingerprint")  # its records can be iterated, and are no paths
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
                remedy="name it once; files, numbers = numpy.unique(paths, return_inverse=True) "
                "are the different ones, and source.select(numbers) of a source of these has a "
                "record for each of the paths",
            )


def _matches(name: Path) -> list[str]:
    """Return the absolute paths of one path or wildcard, or of the URLs of a `Remote`."""
    if isinstance(name, Remote):
        return [path for url in name.object_urls() for path in objects.names_of(url)]
    if not isinstance(name, (str, os.PathLike)) or not isinstance(os.fspath(name), str):
        remedy = "pass a path, a string with wildcards, or a list of these"
        if hasattr(name, "fingerprint"):  # a source
            column = 'table.read(range(len(table)), "path")["path"]'
            remedy = f"read the column of paths, and pass that: {column}"
        raise SpecError(
            f"{name!r} as a path",
            cause=f"a path is a str or a pathlib.Path, not {type(name).__name__}",
            remedy=remedy,
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
        bracket = "; [...] means one of the characters in it, and [[] means the bracket itself"
        raise MissingFileError(
            f"no file matches {text}",
            cause=_why_none_matches(path),
            remedy="check the folder and the wildcard" + bracket * ("[" in text),
        )
    return matches


def _check_text(text: str) -> None:
    """Raise ``SpecError`` for a text that cannot be the path of a file of this machine."""
    if not text:
        raise SpecError("'' as a path", cause="the text is empty", remedy="name a file")
    if URL.match(text) and not signalsafe.exists(text, follow=False):
        raise SpecError(
            f"{text} as a path",
            cause=f"it is a URL, and of those {', '.join(SCHEMES)} are read, with :// behind; "
            "files of this machine are named by their path alone",
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
            cause=f"character {error.start} is half of a surrogate pair, which no file's name can "
            "hold",
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
    """Return the entries of a folder with names that match, without hidden ones; [] if there is no
    such folder."""
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
