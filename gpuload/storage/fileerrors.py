"""Errors of files: answers of the operating system about a path, with a cause and a remedy."""

from __future__ import annotations

import difflib
import errno
import itertools
import os
import shlex
import stat

from gpuload import signalsafe
from gpuload.errors import (
    DirectoryError,
    FileError,
    FormatError,
    MissingFileError,
    UnreadableFileError,
)

REMEDIES = {
    errno.EMFILE: "let this process open more files: ulimit -n 4096 in the shell that starts it, "
    "or close some",
    errno.ENFILE: "close files in other processes: all of them together have as many open as the "
    "system allows",
    errno.ELOOP: "remove the link that leads to itself",
    errno.ENAMETOOLONG: "give it a shorter name",
    errno.ESTALE: "mount the file server again: the file was replaced there",
}
# names of a folder that are compared with a wrong one; 1 is the same name
MOST_NAMES, SIMILARITY = 10_000, 0.75
GZIP = b"\x1f\x8b"  # RFC 1952, section 2.3.1


def open_error(path: str, error: OSError) -> FileError:
    """Return the error of ours for one of the operating system's about a path."""
    if isinstance(error, FileError):
        return error
    signalsafe.pass_on(error)
    if isinstance(error, FileNotFoundError):
        folder = os.path.dirname(path)
        if (link := _broken_link(path)) is not None:
            return MissingFileError(
                f"{path} is a link to nothing" if link == path else f"{path} is missing",
                cause=f"{link} is a link to {os.readlink(link)}, which is not there",
                remedy="bring its target here, as dvc pull, git annex get or git lfs pull do, or "
                "remove the link",
            )
        if not signalsafe.is_folder(folder):
            cause = f"the folder {folder} is not there either"
            return MissingFileError(f"{path} is missing", cause=cause, remedy="check the path")
        near = _similar_names(folder, os.path.basename(path))
        remedy = "check the path"
        if near:
            remedy = f"check the path; the folder has {' and '.join(near)}"
        return MissingFileError(f"{path} is missing", cause="no such file", remedy=remedy)
    if isinstance(error, IsADirectoryError):
        return irregular_file_error(path, stat.S_IFDIR)
    if isinstance(error, PermissionError):
        rights = "+rx" if signalsafe.is_folder(path) else "+r"
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
    target = path[:-3] if path.lower().endswith(".gz") else f"{path}.unpacked"
    return FormatError(
        f"{path} is compressed with gzip",
        cause="records are read by their place in a file, which they do not have in a compressed "
        "one",
        remedy=f"unpack it and open the result: gunzip -c {shlex.quote(path)} > "
        f"{shlex.quote(target)}",
    )


def irregular_file_error(path: str, mode: int) -> FileError:
    """Return the error for a folder, a pipe or a device where a regular file is needed."""
    if stat.S_ISDIR(mode):
        return DirectoryError(
            f"{path} is a directory",
            cause="files are needed here",
            remedy=f"name its files, {os.path.join(path, '*')} say; or call gl.open, which finds "
            "out the format",
        )
    return FileError(
        f"{path} is no regular file",
        cause="records are read by their place, which pipes and devices do not have",
        remedy="copy the data into a file",
    )
