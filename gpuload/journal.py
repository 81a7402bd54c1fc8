"""Journal: which files of a conversion are finished, in a file beside them, so that a conversion that ended goes on.

    train.tfrecord.convert.jsonl    {"conversion": 1, "source": "5a6bf0a9cdd6de1d", "records": 50000, ...}
                                    {"file": "train-00000.tfrecord", "bytes": 9664123, "digest": "09ac..."}
                                    {"file": "train-00001.tfrecord", ...}

The first line is what the files depend on: the source's fingerprint, format and arguments. A line for each file follows
when the file has its name: its size, and a digest of a sample of its bytes (`storage.files.Files.digest`). Lines are
appended; a last line that was cut short by a kill is taken away. While a process converts it holds a lock of the file.

An unfinished file has a name that ends in ``.part-`` and eight random digits. The line ``{"parts": "1f3a90c2"}`` stands
in the journal before the first such file is written, so a later call knows which unfinished files are its own. A file
of somebody else that ends in ``.part`` is never touched.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import stat
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from gpuload.errors import FileError
from gpuload.storage.files import NO_LINKS, look_at, open_error

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SUFFIX = ".convert.jsonl"
KEY, VERSION = "conversion", 1
BEGINNING = b'{"conversion": '
PART, TOKEN = ".part-", re.compile("[0-9a-f]{8}")


class Journal:
    """The journal of a conversion, open and locked.

    Args:
        path: of the journal.

    Attributes:
        about: what an earlier conversion depended on; None if there was none.

    Raises:
        FileError: another process converts to the same files, or the journal cannot be written.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.about: dict[str, Any] | None = None
        self._busy = threading.Lock()
        self._done: dict[str, dict[str, Any]] = {}
        self._token = ""
        if os.path.islink(path):
            raise FileError(
                f"{path} is a symbolic link",
                cause="the journal of the conversion is written under this name, and no link is followed",
                remedy="remove the link, or choose another name for what is written",
            )
        try:
            flags = os.O_RDWR | os.O_CREAT | NO_LINKS | getattr(os, "O_CLOEXEC", 0)
            self._descriptor = os.open(path, flags, 0o666)
        except OSError as error:
            raise open_error(path, error) from None
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
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of the lock; a journal that nobody needs is removed: nothing stands in it, or nothing was finished."""
        if self.about is None or (error is not None and self._is_new and not self._done):
            os.unlink(self.path)
        os.close(self._descriptor)

    def begin(self, about: Mapping[str, Any]) -> None:
        """Begin anew, with nothing finished."""
        os.ftruncate(self._descriptor, 0)
        self.about, self._done, self._token = None, {}, ""
        self._append({KEY: VERSION, **about})
        self.about = {KEY: VERSION, **about}

    def is_of(self, about: Mapping[str, Any]) -> bool:
        """Return True if it is that of the same conversion."""
        wanted: dict[str, Any] = json.loads(json.dumps({KEY: VERSION, **about}))
        return self.about == wanted

    def differences(self, about: Mapping[str, Any]) -> str:
        """Return in words what another conversion had otherwise."""
        now, before = json.loads(json.dumps(about)), self.about or {}
        names = [name for name in now if now[name] != before.get(name)]
        return "; ".join(f"{name}: {before.get(name)!r} then, {now[name]!r} now" for name in names)

    def finished(self, name: str, path: str) -> bool:
        """Return True if a file was finished and is still what it was."""
        told = self._done.get(name)
        return told is not None and os.path.isfile(path) and told == _told(name, path)

    def finish(self, name: str, path: str) -> None:
        """Remember that a file is finished."""
        told = _told(name, path)
        with self._busy:
            self._append(told)
            self._done[name] = told

    def note(self, name: str) -> None:
        """Remember that a piece of work is finished that is no file."""
        with self._busy:
            self._append({"file": name})
            self._done[name] = {"file": name}

    def part_suffix(self) -> str:
        """Return the end of the names of unfinished files; the journal holds it from the first call on."""
        if not self._token:
            token = secrets.token_hex(4)
            self._append({"parts": token})
            self._token = token
        return PART + self._token

    def remove_parts(self) -> None:
        """Remove the unfinished files, or the unfinished folder, that a killed call of this journal left."""
        if not self._token:
            return
        home = os.path.dirname(self.path)
        for name in os.listdir(home):
            if name.endswith(PART + self._token):
                path = os.path.join(home, name)
                mode = os.lstat(path).st_mode
                if stat.S_ISDIR(mode):
                    shutil.rmtree(path, ignore_errors=True)
                elif stat.S_ISREG(mode):
                    os.unlink(path)

    def names(self) -> list[str]:
        """Return the names of all files that were finished."""
        return list(self._done)

    def _lock(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileError(
                f"{self.path} is in use",
                cause="another process, or another thread, converts to the same files now",
                remedy="wait until it is done, or choose another name",
            ) from None
        except OSError:  # some network file systems have no locks
            pass

    def _read(self) -> None:
        """Read the lines up to the first one that was cut short, and take the rest away."""
        whole = 0
        with open(self._descriptor, "rb", closefd=False) as file:
            for number, line in enumerate(file):
                told = _parsed(line)
                if number == 0 and not line.startswith(BEGINNING[: len(line)]):
                    raise FileError(
                        f"{self.path} is no journal of a conversion",
                        cause=f"it begins with {line[:60]!r}",
                        remedy="move it away, or choose another name for what is written",
                    )
                if told is None:
                    break
                if number == 0:
                    self.about = told
                elif isinstance(told.get("parts"), str) and TOKEN.fullmatch(told["parts"]):
                    self._token = told["parts"]
                elif isinstance(told.get("file"), str):
                    self._done[told["file"]] = told
                whole += len(line)
        os.ftruncate(self._descriptor, whole)

    def _append(self, told: Mapping[str, Any]) -> None:
        line = (json.dumps(told) + "\n").encode("ascii")
        try:
            os.lseek(self._descriptor, 0, os.SEEK_END)
            done = 0
            while done < len(line):
                done += os.write(self._descriptor, line[done:])
        except OSError as error:
            raise open_error(self.path, error) from None


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return what a line says; None for one that was cut short."""
    try:
        told = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) else None


def _told(name: str, path: str) -> dict[str, Any]:
    files, _ = look_at([path], 0, lambda path, size, head: None)
    return {"file": name, "bytes": int(files.sizes[0]), "digest": files.digest()}
