"""Journal: which files of a conversion are finished, in a file beside them, so that a conversion
that ended goes on.

    train.tfrecord.convert.jsonl    {"conversion": 1, "source": "5a6bf0a9cdd6de1d", "records": 50000, ...}
                                    {"file": "train-00000.tfrecord", "bytes": 9664123, "digest": "09ac..."}
                                    {"file": "train-00001.tfrecord", ...}

The first line has everything on which the files depend: the source's fingerprint, format and
arguments. A line for each file follows when the file has its name: its size, and a digest of a
sample of its bytes (`storage.files.Files.digest`). Lines are appended; a last line that was cut
short by a kill is removed. A process holds a lock of the file while it converts.

An unfinished file has a name that ends in ``.part-`` and eight random digits, other ones in each
call. The line ``{"parts": "1f3a90c2"}`` stands in the journal before the first such file is
written, so a later call knows which unfinished files are its own. No other file that ends in
``.part`` is ever touched. An unfinished folder keeps its digits: a later call goes on with it.

Some network file systems have no locks. There a call that is taken for dead, and goes on beside the
next one, writes to files of its own, and gives no unfinished file of the other one a name.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from gpuload.errors import FileError
from gpuload.storage.fileerrors import open_error
from gpuload.storage.files import look_at
from gpuload.storage.privatefiles import NO_LINKS

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SUFFIX = ".convert.jsonl"
KEY, VERSION = "conversion", 1
BEGINNING = b'{"conversion": '
FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG}  # errors of a full disk
PART, TOKEN = ".part-", re.compile("[0-9a-f]{8}")


class JournalInUseError(FileError):
    """Another process, or another thread, converts to the same files now."""


class Journal:
    """The journal of a conversion, open and locked.

    Args:
        path: of the journal.

    Attributes:
        about: the first line of an earlier conversion; None if there was none.

    Raises:
        JournalInUseError: another process converts to the same files.
        FileError: the journal cannot be written.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.about: dict[str, Any] | None = None
        self._busy = threading.Lock()
        self._entries: dict[str, dict[str, Any]] = {}
        self._token = ""
        self._former_tokens = list[str]()
        self._end = 0  # of the lines of this call
        # A link is refused here, with a message that names it. If a link is put there behind this
        # check, NO_LINKS makes the system refuse it.
        if os.path.islink(path):
            raise FileError(
                f"{path} is a symbolic link",
                cause="the journal of the conversion is written under this name, and no link is "
                "followed",
                remedy="remove the link, or choose another name for the new files",
            )
        try:
            flags = os.O_RDWR | os.O_CREAT | NO_LINKS | getattr(os, "O_CLOEXEC", 0)
            self._descriptor = os.open(path, flags, 0o666)
        except IsADirectoryError as error:
            raise open_error(path, error) from None
        except OSError as error:
            raise write_error(path, error) from None
        try:
            self._lock()
            self._read()
            self._is_new = self.about is None
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the lock; a journal is removed if it is empty, or if a new conversion ended
        before its first file."""
        # Before the lock is released: behind it, another call could open the file, and lose the
        # name of its journal here.
        # no other process wrote to it, on a system without locks
        is_alone = os.fstat(self._descriptor).st_size == self._end
        if self.about is None or (
            error is not None and self._is_new and not self._entries and is_alone
        ):
            os.unlink(self.path)
        os.close(self._descriptor)

    def begin(self, about: Mapping[str, Any]) -> None:
        """Begin anew, with nothing finished."""
        os.ftruncate(self._descriptor, 0)
        self.about, self._entries, self._token, self._former_tokens = None, {}, "", []
        self._append({KEY: VERSION, **about})
        # Last: if the line cannot be written, there is no journal yet, and `__exit__` removes the
        # empty file.
        self.about = {KEY: VERSION, **about}

    def is_of(self, about: Mapping[str, Any]) -> bool:
        """Return True if it is the journal of the same conversion."""
        # By way of JSON, as the line in the file: tuples are lists there.
        header: dict[str, Any] = json.loads(json.dumps({KEY: VERSION, **about}))
        return self.about == header

    def differences(self, about: Mapping[str, Any]) -> str:
        """Return the differences to the conversion of the journal, in words."""
        now, before = json.loads(json.dumps(about)), self.about or {}
        names = [name for name in now if now[name] != before.get(name)]
        return "; ".join(f"{name}: {before.get(name)!r} then, {now[name]!r} now" for name in names)

    def is_finished(self, name: str, path: str) -> bool:
        """Return True if a file was finished and did not change since."""
        entry = self._entries.get(name)
        return entry is not None and os.path.isfile(path) and entry == _entry_of(name, path)

    def finish(self, name: str, path: str) -> None:
        """Remember that a file is finished."""
        entry = _entry_of(name, path)
        with self._busy:
            self._append(entry)
            self._entries[name] = entry

    def note(self, name: str) -> None:
        """Remember that a piece of work without a file of its own is finished."""
        with self._busy:
            self._append({"file": name})
            self._entries[name] = {"file": name}

    def part_suffix(self) -> str:
        """Return the end of the names of unfinished files; the journal holds it from the first call
        on."""
        if not self._token:
            token = os.urandom(4).hex()
            # The journal first: a kill between the two leaves a line without files, never files
            # that no journal knows.
            self._append({"parts": token})
            self._token = token
        return PART + self._token

    def remove_parts(self) -> None:
        """Remove the unfinished files, or the unfinished folder, that killed calls of this journal
        left.

        Those that are written from here on have other names.
        """
        if not self._token:
            return
        self._former_tokens.append(self._token)
        self._token = ""
        home, ends = (
            os.path.dirname(self.path),
            tuple(PART + token for token in self._former_tokens),
        )
        for name in os.listdir(home):
            if name.endswith(ends):
                path = os.path.join(home, name)
                # Of the name itself: a link that somebody gave such a name is neither followed nor
                # removed.
                mode = os.lstat(path).st_mode
                if stat.S_ISDIR(mode):
                    shutil.rmtree(path, ignore_errors=True)
                elif stat.S_ISREG(mode):
                    os.unlink(path)

    def names(self) -> list[str]:
        """Return the names of all files that were finished."""
        return list(self._entries)

    def _lock(self) -> None:
        if fcntl is None:
            return
        try:
            # Not a lock of POSIX (``lockf``): that does not exclude another thread, and ends when
            # any descriptor of the file in this process is closed.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._in_use_error() from None
        except OSError:  # some network file systems have no locks
            pass
        # A call that ended between our opening and our lock has removed the file: lines that are
        # written now would be lost.
        if not _is_at(self._descriptor, self.path):
            raise self._in_use_error()

    def _in_use_error(self) -> JournalInUseError:
        return JournalInUseError(
            f"{self.path} is in use",
            cause="another process, or another thread, converts to the same files now",
            remedy="wait until it is done, or choose another name",
        )

    def _read(self) -> None:
        """Read the lines up to the first one that was cut short, and remove the rest."""
        whole = 0
        with open(self._descriptor, "rb", closefd=False) as file:
            for number, line in enumerate(file):
                entry = _parse_line(line)
                # A first line that a kill cut short is a part of BEGINNING; the file is ours all
                # the same.
                if number == 0 and not line.startswith(BEGINNING[: len(line)]):
                    raise FileError(
                        f"{self.path} is no journal of a conversion",
                        cause=f"it begins with {line[:60]!r}",
                        remedy="move it away, or choose another name for the new files",
                    )
                if entry is None:
                    break
                if number == 0:
                    self.about = entry
                elif isinstance(entry.get("parts"), str) and TOKEN.fullmatch(entry["parts"]):
                    # Each call writes a line of its own; the files of all calls that were killed
                    # are removed together.
                    self._former_tokens += filter(None, [self._token])
                    self._token = entry["parts"]
                elif isinstance(entry.get("file"), str):
                    self._entries[entry["file"]] = entry
                whole += len(line)
        os.ftruncate(self._descriptor, whole)

    def _append(self, entry: Mapping[str, Any]) -> None:
        line = (json.dumps(entry) + "\n").encode("ascii")
        try:
            os.lseek(self._descriptor, 0, os.SEEK_END)
            num_written = 0
            while num_written < len(line):
                num_written += os.write(self._descriptor, line[num_written:])
            self._end = os.lseek(self._descriptor, 0, os.SEEK_CUR)
        except OSError as error:
            raise write_error(self.path, error) from None


def _is_at(descriptor: int, path: str) -> bool:
    """Return True if a file that is open is the one of this path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the entry of a line; None if the line was cut short."""
    try:
        if line.endswith(b"\n"):
            entry = json.loads(line)
        else:
            entry = None
    # Python's parser raises RecursionError for a line of some thousand brackets, which a damaged
    # file may hold.
    except (ValueError, RecursionError):
        return None
    if isinstance(entry, dict):
        return entry
    return None


def _entry_of(name: str, path: str) -> dict[str, Any]:
    files, _ = look_at([path], 0, lambda path, size, head: None)
    return {"file": name, "bytes": int(files.sizes[0]), "digest": files.digest()}


def write_error(path: str, error: OSError) -> FileError:
    """Return the error of ours for one of the operating system's about a file that a conversion
    writes."""
    remedy = "check the folder and its permissions"
    if error.errno in FULL:
        remedy = "make room, and convert again: files that are finished are not written again"
    # By the number where there is one: HDF5 and PyArrow add pages of their own to the text.
    cause = os.strerror(error.errno) if error.errno else str(error)
    return FileError(f"{path} cannot be written", cause=cause, remedy=remedy)
