"""Objects of object stores and web servers, by obstore: what a URL means, and ranges of its bytes.

Stores     one for each bucket or server and process. Credentials, region, endpoint and proxy come from the environment,
           as the stores' own programs take them (``AWS_PROFILE``, ``GOOGLE_APPLICATION_CREDENTIALS``, ``AZURE_...``,
           ``HTTPS_PROXY``), so none of them is ever pickled. A refused request makes the store anew, once.
Stamps     size, time of modification, and a digest of the ETag. Each answer carries those of the object that it is a
           part of, so bytes of another version are never taken.
Lengths    an answer that has fewer bytes than were asked for is asked for again, as after a broken connection.
Retries    obstore repeats requests that a server refused for the moment (5xx) or that were cut off before their answer
           began; what breaks off later is repeated here. The waits grow, and are random, so that many ranks that failed
           together do not come back together.
Deadline   DEADLINE_S for a range with all retries; a server that says nothing is left after ANSWER_S.
Fork       the threads of obstore do not live in a forked child, where a request would wait forever: it is refused.

Sources  obstore 0.12, https://developmentseed.org/obstore; RFC 9110 (ranges: section 14, ETag: section 8.8.3)
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import itertools
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gpuload.errors import (
    ChangedFileError,
    FileError,
    MissingFileError,
    SpecError,
    UnreadableFileError,
    changed_file,
    missing_package,
)
from gpuload.signalsafe import import_package

Stamp = tuple[int, int, int]
Result = TypeVar("Result")

SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "http", "https")
WEB = ("http", "https")
URL = re.compile(rf"({'|'.join(SCHEMES)})://([^/]+)(?:/(.*))?", re.DOTALL)
WILDCARDS = re.compile(r"[*?[]")
REQUESTS = 32  # under way at a time, for one call
AHEAD_BYTES = 1 << 23  # of a file that is read from its beginning on
ANSWER_S, DEADLINE_S = 30.0, 120.0
MOST_TRIES = 6
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
STATUS = re.compile(r"status code: (\d+)")  # in the errors of obstore, which have no number of their own
METADATA = "169.254.169.254"  # asked for credentials where the environment has none, as machines in a cloud answer
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")

_lock = threading.Lock()
_stores: dict[str, Any] = {}
_process: list[int] = []  # the process whose stores these are


@dataclass(frozen=True)
class Place:
    """A URL in its parts.

    Attributes:
        scheme: of SCHEMES.
        host: the bucket, container or server.
        key: of the object there.
    """

    scheme: str
    host: str
    key: str

    @property
    def root(self) -> str:
        """The URL of the store."""
        return f"{self.scheme}://{self.host}"


def is_remote(path: str) -> bool:
    """Return True for the URL of an object."""
    return "://" in path and URL.fullmatch(path) is not None


def place_of(url: str) -> Place:
    """Return the parts of a URL.

    Raises:
        SpecError: it names no object.
    """
    parts = URL.fullmatch(url)
    if parts is None or not parts[3]:
        raise SpecError(
            f"{url} as a path",
            cause="it names a store, and no object in it",
            remedy=f"name objects: {url.rstrip('/')}/*",
        )
    return Place(parts[1], parts[2], parts[3])


def names_of(url: str) -> list[str]:
    """Return the URLs of the objects that a URL with wildcards means, sorted; one without wildcards means itself.

    ``*`` and ``?`` end at a slash, ``**`` means any number of folders. Names that begin with a dot are left out, unless
    the wildcard begins with one. A web server lists nothing, so a URL of one has no wildcards.

    Raises:
        MissingFileError: no object matches.
        UnreadableFileError, FileError: the store cannot be listed.
    """
    place = place_of(url)
    if place.scheme in WEB or WILDCARDS.search(place.key) is None:
        return [url]
    fixed = WILDCARDS.split(place.key)[0]
    prefix = fixed[: fixed.rfind("/") + 1]
    patterns = place.key.split("/")

    def keys() -> list[str]:
        chunks: Iterable[Any] = _obstore().list(_store(place), prefix or None, chunk_size=1000)
        return [entry["path"] for chunk in chunks for entry in chunk]

    matches = sorted(key for key in _request(url, keys) if _matches(key.split("/"), patterns))
    if not matches:
        raise MissingFileError(
            f"no object matches {url}",
            cause=f"none of those that begin with {place.root}/{prefix} has such a name",
            remedy="check the bucket, the folder and the wildcard",
        )
    return [f"{place.root}/{key}" for key in matches]


def _matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    """Return True if the parts of a key are those of a pattern."""
    if not patterns or not names:
        return not patterns and not names
    [pattern, *rest] = patterns
    if pattern != "**":
        is_shown = pattern.startswith(".") or not names[0].startswith(".")
        return is_shown and fnmatch.fnmatchcase(names[0], pattern) and _matches(names[1:], rest)
    depths = itertools.takewhile(lambda depth: not depth or not names[depth - 1].startswith("."), range(len(names) + 1))
    return any(_matches(names[depth:], rest or ["*"]) for depth in depths)


def look(url: str, num_bytes: int) -> tuple[Stamp, bytes]:
    """Return the stamp of an object, and its first ``num_bytes`` bytes, or all where it has fewer.

    Raises:
        MissingFileError, UnreadableFileError, FileError: there is no such object, or it cannot be read.
    """
    place = place_of(url)

    def head() -> tuple[Stamp, bytes]:
        meta = _obstore().head(_store(place), place.key)
        stamp = _stamp(meta)
        length = min(num_bytes, stamp[0])
        if not length:
            return stamp, b""
        answer = _obstore().get(_store(place), place.key, options={"range": (0, length)})
        return _stamp(answer.meta), _whole(answer, length)

    return _request(url, head)


def read(url: str, stamp: Stamp, memory: memoryview, offset: int) -> None:
    """Fill memory with the bytes of an object from an offset on; safe in any number of threads.

    Raises:
        ChangedFileError: the object is no longer that of the stamp.
        MissingFileError, UnreadableFileError, FileError: it is gone, or cannot be read.
    """
    place = place_of(url)
    if not len(memory):
        return

    def fetch() -> None:
        answer = _obstore().get(_store(place), place.key, options={"range": (offset, offset + len(memory))})
        now = _stamp(answer.meta)
        if now != stamp:
            raise changed(url, stamp, now)
        memory[:] = _whole(answer, len(memory))

    try:
        _request(url, fetch)
    except (ChangedFileError, UnreadableFileError):
        raise
    except MissingFileError as error:
        raise changed_file(url, f"it is gone: {error.cause}") from None
    except FileError:
        now, _ = look(url, 0)  # of an object that is shorter now no range is there
        if now != stamp:
            raise changed(url, stamp, now) from None
        raise


class Reader:
    """An object that is read by someone who takes it for an open file: pieces, mostly one behind the other.

    The bytes behind a piece come with it, AHEAD_BYTES at most, so that small pieces are not a request each.
    """

    def __init__(self, url: str, stamp: Stamp) -> None:
        self.url, self.stamp = url, stamp
        self._ahead, self._begin, self._next = bytearray(), 0, 0

    def read(self, memory: memoryview, offset: int) -> int:
        """Fill memory from an offset on; return the number of bytes, fewer only at the end of the object."""
        length = min(len(memory), max(0, self.stamp[0] - offset))
        end = offset + length
        if not self._begin <= offset <= end <= self._begin + len(self._ahead):
            goes_on = offset == self._next
            want = max(length, min(AHEAD_BYTES, self.stamp[0] - offset)) if goes_on else length
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
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._reader.stamp[0]}[whence]
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


class _ShortError(Exception):
    """An answer that has fewer bytes than it was to have."""


def _whole(answer: Any, num_bytes: int) -> bytes:
    content = bytes(answer.bytes())
    if len(content) != num_bytes:
        raise _ShortError(f"{len(content)} of {num_bytes} bytes came")
    return content


def _stamp(meta: Any) -> Stamp:
    tag = meta.get("e_tag") or ""
    digest = int.from_bytes(hashlib.sha256(tag.encode()).digest()[:8], "little", signed=True) if tag else 0
    return int(meta["size"]), int(meta["last_modified"].timestamp() * 1000) * 1_000_000, digest


def changed(url: str, before: Stamp, now: Stamp) -> ChangedFileError:
    """Return the error for an object that is another one now."""
    if before[0] != now[0]:
        return changed_file(url, f"it had {before[0]} bytes, now it has {now[0]}")
    return changed_file(url, "its ETag or time is another one")


def _obstore() -> Any:
    try:
        return import_package("obstore")
    except ImportError as error:
        raise missing_package("obstore", needed_for="a remote path", extra="remote", error=error) from None


def _store(place: Place) -> Any:
    with _lock:
        if not _process:
            _process.append(os.getpid())
        if _process[0] != os.getpid():
            raise FileError(
                f"{place.root} in a process that was forked",
                cause="its parent had read remote files before, and the threads that read them do not live here",
                remedy='start processes by spawn, multiprocessing.get_context("spawn"), or fork before the first read',
            )
        store = _stores.get(place.root)
        if store is None:
            stores, timedelta = import_package("obstore.store"), import_package("datetime").timedelta
            options: dict[str, Any] = {"timeout": timedelta(seconds=ANSWER_S), "connect_timeout": timedelta(seconds=10)}
            if place.scheme == "http" or os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"):
                options["allow_http"] = True
            retries = {
                "max_retries": MOST_TRIES,
                "retry_timeout": timedelta(seconds=DEADLINE_S / 2),
                "backoff": {
                    "init_backoff": timedelta(seconds=FIRST_WAIT_S),
                    "max_backoff": timedelta(seconds=LONGEST_WAIT_S),
                },
            }
            store = stores.from_url(place.root, client_options=options, retry_config=retries)
            _stores[place.root] = store
        return store


def _forget(place: Place) -> None:
    with _lock:
        _stores.pop(place.root, None)


def _request(url: str, function: Callable[[], Result]) -> Result:
    """Return ``function()``, which sends a request, and do it again where that may help.

    Raises:
        FileError: of the kind that its failure is.
    """
    exceptions = import_package("obstore.exceptions") if _obstore() else None
    place, begin_s, is_second_login = place_of(url), time.monotonic(), False
    for tries in range(1, MOST_TRIES + 1):
        try:
            return function()
        except FileError:
            raise
        except FileNotFoundError as error:
            raise MissingFileError(
                f"{url} is missing",
                cause=f"the store has no such object, or hides it: {_first_line(error)}",
                remedy="check the URL",
            ) from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:  # type: ignore[union-attr]
            if is_second_login or tries == MOST_TRIES:
                raise _refusal(url, error) from None
            is_second_login = True
            _forget(place)  # the next one reads the credentials anew
        except (exceptions.BaseError, _ShortError, OSError, ValueError) as error:  # type: ignore[union-attr]
            if tries == MOST_TRIES or time.monotonic() - begin_s > DEADLINE_S or _is_final(error):
                raise _failure(url, error, tries) from None
            time.sleep(random.uniform(0.5, 1.0) * min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**tries))
    raise AssertionError("the last try returns or raises")


def _is_final(error: BaseException) -> bool:
    """Return True for an error that another try cannot mend."""
    status = STATUS.search(str(error))
    is_refusal = status is not None and status[1].startswith("4") and status[1] not in ("408", "429")
    return is_refusal or isinstance(error, (ValueError, import_package("obstore.exceptions").NotSupportedError))


def _refusal(url: str, error: BaseException) -> UnreadableFileError:
    if place_of(url).scheme in WEB:
        remedy = "check what the server lets everybody read; requests to web servers carry no password"
        return UnreadableFileError(f"{url} may not be read", cause=_first_line(error), remedy=remedy)
    return UnreadableFileError(
        f"{url} may not be read",
        cause=_first_line(error),
        remedy="check the credentials in the environment (AWS_PROFILE or AWS_ACCESS_KEY_ID, "
        "GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME), that they have not expired, and what they allow; "
        "AWS_SKIP_SIGNATURE=true reads a public bucket",
    )


def _failure(url: str, error: BaseException, tries: int) -> FileError:
    proxy = next((f"{name}={os.environ[name]}" for name in PROXIES if os.environ.get(name)), "")
    if isinstance(error, import_package("obstore.exceptions").NotSupportedError):
        remedy = "the server must answer ranges (RFC 9110, section 14): use another one, or copy the files to a disk"
        return FileError(f"{url} cannot be read", cause=_first_line(error), remedy=remedy)
    if METADATA in str(error):
        return _refusal(url, error)
    remedy = "check that the store can be reached from this machine"
    remedy += (
        f", and the proxy that requests go through ({_without_password(proxy)}; NO_PROXY names hosts without)"
        if proxy
        else ""
    )
    return FileError(f"{url} cannot be read, after {tries} tries", cause=_first_line(error), remedy=remedy)


def _without_password(text: str) -> str:
    name, _, value = text.partition("=")
    parts = import_package("urllib.parse").urlsplit(value)
    return f"{name}={parts.scheme}://{parts.hostname}:{parts.port}" if parts.password else text


def _first_line(error: BaseException) -> str:
    """Return what an error of obstore says first; behind it stand the requests and Rust's own form of the error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
