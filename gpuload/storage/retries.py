"""Retries: requests to stores that are sent again where that may help, and the errors of those that
failed.

Owner     Retries are made here alone; obstore sends each request once (`stores.py`).
Progress  The bytes of an answer that broke off are kept, and the rest is asked for. As long as each
          try brings LEAST_BYTES more, tries and time are counted anew: a slow link takes long, and
          is no error.
Tries     MOST_TRIES without progress, and DEADLINE_S for them all, but two at least: the second one
          keeps smaller parts of an answer. The waits grow, and are random, so that many ranks that
          failed together do not come back together. A server that says nothing is left after
          `stores.ANSWER_S`.
Busy      A store that answers 503 or 429 gets a pause from all threads of this process, and then
          half as many requests at a time, at last one; each that is answered makes room for one
          more (`Gate`). After BUSY_S without any other answer the error says so. Where the store
          refuses one request and answers others, that request waits longer each time, and fails
          after DEADLINE_S. How long the server asks to wait (Retry-After) does not come through
          obstore.
Refusals  have the credentials read anew, once: they may have been replaced.
Panics    obstore answers events that its authors took for impossible by an exception that is no
          Exception. It becomes an error of ours, as any other.

Sources  obstore 0.12; https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from gpuload import threads
from gpuload.errors import FileError, GpuloadError, MissingFileError, UnreadableFileError
from gpuload.redaction import PROXIES
from gpuload.signalsafe import import_package
from gpuload.storage.stores import WEB, forget, place_of, remote_of

Result = TypeVar("Result")

DEADLINE_S, BUSY_S = 120.0, 30.0
MOST_TRIES = 6
LEAST_BYTES = 1 << 14  # that a try brings, if it made progress
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
LOOK_S = 0.05  # a thread that waits for a busy store looks so often
FULL_SPEED = 64  # requests at a time, from which on a store counts as busy no more
BUSY = (429, 503)
# in the errors of obstore, which have no number of their own
STATUS = re.compile(r"status code: (\d+)")
# Asked for credentials where the environment has none, as machines in a cloud answer
METADATA = "169.254.169.254"
NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound|The specified bucket does not exist")
WRONG_REGION = re.compile(
    "incorrectly configured "
    "region|AuthorizationHeaderMalformed|PermanentRedirect|IllegalLocationConstraint"
)
REGION = re.compile(r"<Region>([\w-]+)</Region>")
# The error of obstore for an answer with headers that it cannot use; the next one would be the
# same.
UNSOUND = re.compile(
    "(?i)invalid last modified|invalid content length|header missing|header not present|failed to "
    "parse value for|non-ascii data|the server says|error following redirect"
    "|(?:year|month|day|second) -?[0-9]+ is out of range|timestamp out of range"
)
ODD_KEY = re.compile("Encountered object with invalid path")
EXPIRY = re.compile("ExpiredToken|RequestExpired|TokenRefreshRequired")
PANIC = "PanicException"  # of pyo3; it has no module to import it from


class ShortError(Exception):
    """An answer that has fewer bytes than it was to have."""


class EmptyRangeError(Exception):
    """The object has none of the bytes that were asked for."""


class StoreError(FileError):
    """A store gave no usable answer in all tries; requests for its other objects would wait as
    long."""


class OddKeyError(Exception):
    """A listing holds a key that obstore cannot name."""


class Gate:
    """Lets requests to one store through; while it is busy, a few at a time.

    Attributes:
        is_open: True unless the store is busy.
        error: the last answer that it is.
    """

    def __init__(self) -> None:
        self.is_open, self.error = True, BaseException()
        self._lock = threading.Lock()
        self._width = self._under_way = self._num_pauses = 0
        self._until_s = self._since_s = self._last_s = 0.0

    def close(self, sent_s: float, error: BaseException) -> None:
        """Make a pause after an answer that the store is busy to a request that was sent at a
        time."""
        with self._lock:
            now_s = time.monotonic()
            # Without its traceback: its frames hold memory of the reads.
            self.error, self._last_s = error.with_traceback(None), now_s
            if self.is_open:
                self.is_open, self._since_s, self._width, self._under_way = (
                    False,
                    now_s,
                    FULL_SPEED,
                    0,
                )
                self._num_pauses = 0
            elif sent_s < self._until_s:
                # answers to requests that were under way together count once
                return
            self._width = max(1, self._width // 2)
            self._num_pauses += 1
            wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**self._num_pauses)
            self._until_s = now_s + wait_s * random.uniform(0.5, 1.0)

    def refused_s(self) -> float:
        """Return for how long the store has answered nothing else."""
        with self._lock:
            if self.is_open:
                return 0.0
            return time.monotonic() - self._since_s

    def enter(self) -> float:
        """Return 0 if a request may be sent, which `leave` ends; -1 if any may; else the seconds to
        wait."""
        with self._lock:
            now_s = time.monotonic()
            # No thread asked for some time: the answer of the store is old.
            self.is_open = (
                self.is_open or now_s - max(self._last_s, self._until_s) > 2 * LONGEST_WAIT_S
            )
            if self.is_open:
                return -1.0
            if now_s < self._until_s:
                return self._until_s - now_s
            if self._under_way >= self._width:
                return LOOK_S
            self._under_way += 1
            return 0.0

    def leave(self, is_answered: bool) -> None:
        """End a request that `enter` let through; one that was answered makes room for two."""
        with self._lock:
            # it may be of an earlier time of the gate
            self._under_way = max(0, self._under_way - 1)
            if is_answered and not self.is_open:
                self._since_s, self._num_pauses = time.monotonic(), 0
                self._width += 1
                self.is_open = self._width >= FULL_SPEED


_gates: dict[tuple[str, str], Gate] = {}  # by endpoint and root of the store


def request(
    url: str, function: Callable[[], Result], num_bytes: Callable[[], int] = lambda: 0
) -> Result:
    """Return ``function()``, which sends a request, and do it again where that may help.

    Args:
        url: of the object.
        function: sends the request; called again, it asks for the rest.
        num_bytes: returns how many bytes came so far, of all tries.

    Raises:
        FileError: of the kind that its failure is; `StoreError` after all tries.
        EmptyRangeError: the server has no such range (416).
        OddKeyError: a listing holds a key that obstore cannot name.
    """
    gate = _gates.setdefault((remote_of(url).endpoint or "", place_of(url).root), Gate())
    first_s = begin_s = time.monotonic()
    tries, progress, has_new_login = 0, num_bytes(), False
    busy = BusyTime()
    while True:
        wait_begin_s = time.monotonic()
        is_counted = _pass(url, gate, first_s, busy.until_s)
        sent_s = time.monotonic()
        # to wait with others for a busy store is no failure of this request
        begin_s += sent_s - wait_begin_s
        tries += 1
        is_answered, wait_s = False, 0.0
        failure: Exception | None = None
        try:
            result = function()
            is_answered = True
            return result
        # Not Exception: a panic of Rust is none (`PANIC`). All that is not obstore's goes on at
        # once, Ctrl-C as well.
        except BaseException as error:
            if not _is_of_store(error):
                raise
            is_refusal = _is_refusal(error)
            if ODD_KEY.search(str(error)):
                failure = OddKeyError(_first_line(error))
            elif is_busy(error):
                gate.close(sent_s, error)
                if busy.extend(sent_s) > DEADLINE_S:
                    failure = _busy_error(url, error, DEADLINE_S)
            else:
                is_answered = status_of(error) > 0
                if num_bytes() - progress >= LEAST_BYTES:
                    begin_s, tries, progress = time.monotonic(), 0, num_bytes()
                if is_refusal:
                    wait_s = 0.0
                else:
                    wait_s = _wait_s(tries)
                is_late = tries > 1 and time.monotonic() + wait_s - begin_s > DEADLINE_S
                # Python waits for its threads when it ends: it would wait for an answer that is not
                # needed any more.
                is_late |= threads.is_ending()
                is_final = _is_final(error) or (is_refusal and has_new_login)
                if tries >= MOST_TRIES or is_late or is_final:
                    failure = _error_for(url, error, tries)
        finally:
            if is_counted:
                gate.leave(is_answered)
        if failure is not None:
            # It is raised here and not above, where its context would be obstore's error, with the
            # secrets of the URL in its text. Its traceback has this frame, so that the frame must
            # not have it: both would stay in memory.
            try:
                raise failure
            finally:
                failure = None
        if is_refusal:
            forget(url)
            has_new_login = True
        time.sleep(wait_s)


class BusyTime:
    """The answers to one request that the store is busy.

    Attributes:
        until_s: the request is not sent again before this time.
    """

    def __init__(self) -> None:
        self.until_s, self._since_s, self._num_answers = 0.0, 0.0, 0

    def extend(self, sent_s: float) -> float:
        """Count one more such answer, to a request sent at ``sent_s``; return the seconds since the
        first was sent."""
        now_s = time.monotonic()
        self._since_s = self._since_s or sent_s
        self._num_answers += 1
        self.until_s = now_s + _wait_s(self._num_answers)
        return now_s - self._since_s


def _wait_s(tries: int) -> float:
    """Return how long a request waits after some tries."""
    longest_s: float = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** max(tries, 1))
    return random.uniform(0.5, 1.0) * longest_s


def _pass(url: str, gate: Gate, first_s: float, until_s: float) -> bool:
    """Wait until a request may be sent, at ``until_s`` at the earliest; return True if the gate
    counts it.

    Raises:
        StoreError: the store has been busy for too long, or Python ends.
    """
    while True:
        wait_s = until_s - time.monotonic()
        if gate.is_open and wait_s <= 0:
            return False
        if min(gate.refused_s(), time.monotonic() - first_s) > BUSY_S or threads.is_ending():
            raise _busy_error(url, gate.error, BUSY_S)
        if wait_s <= 0:
            wait_s = gate.enter()
            if wait_s <= 0:
                return wait_s == 0
        time.sleep(min(wait_s, LOOK_S))


def is_busy(error: BaseException) -> bool:
    """Return True for an answer that the store is busy."""
    return status_of(error) in BUSY


def _is_of_store(error: BaseException) -> bool:
    """Return True for errors of obstore, and for a short answer; False for errors of ours and of
    signal handlers."""
    if isinstance(error, GpuloadError):
        return False
    kinds = import_package("obstore.exceptions").BaseError, ShortError, OSError, ValueError
    return isinstance(error, kinds) or _is_panic(error)


def _is_panic(error: BaseException) -> bool:
    return type(error).__name__ == PANIC


def _is_refusal(error: BaseException) -> bool:
    exceptions = import_package("obstore.exceptions")
    kinds = exceptions.PermissionDeniedError, exceptions.UnauthenticatedError
    return status_of(error) in (401, 403) or isinstance(error, kinds)


def status_of(error: BaseException) -> int:
    """Return the status of an answer of HTTP that an error of obstore tells of; 0 if it tells of
    none."""
    status = STATUS.search(str(error))
    return int(status[1]) if status is not None else 0


def _is_final(error: BaseException) -> bool:
    """Return True for an error that another try cannot mend."""
    status = status_of(error)
    kinds = ValueError, FileNotFoundError, import_package("obstore.exceptions").NotSupportedError
    return (
        # 408 and 429 say: later; 401 and 403 get another try with new credentials. obstore follows
        # redirections.
        (300 <= status < 500 and status not in (401, 403, 408, 429))
        or WRONG_REGION.search(str(error)) is not None
        or UNSOUND.search(_first_line(error)) is not None
        or isinstance(error, kinds)
        or _is_panic(error)
    )


def _error_for(url: str, error: BaseException, tries: int) -> FileError | EmptyRangeError:
    """Return the error of ours for one of obstore's."""
    if _is_panic(error):
        return FileError(
            f"{url} cannot be read",
            cause=f"obstore gave up: {_first_line(error)}",
            remedy="check the URL, and what the environment and gl.Remote say of credentials, "
            "region and endpoint",
        )
    if isinstance(error, FileNotFoundError) or status_of(error) == 404:
        return _missing(url, error)
    if status_of(error) == 416:
        return EmptyRangeError()
    if _is_refusal(error):
        return _refusal(url, error)
    return _failure(url, error, tries)


def _missing(url: str, error: BaseException) -> MissingFileError:
    if NO_BUCKET.search(str(error)):
        root = place_of(url).root
        return MissingFileError(
            f"{root} is missing",
            cause=f"the store has no such bucket: {_first_line(error)}",
            remedy="check its name",
        )
    return MissingFileError(
        f"{url} is missing",
        cause=f"the store has no such object, or hides it: {_first_line(error)}",
        remedy="check the URL; that of a folder ends in a slash",
    )


def _refusal(url: str, error: BaseException) -> UnreadableFileError:
    if place_of(url).scheme in WEB:
        remedy = "check what the server lets everybody read, and that a signed link has not expired; a password stands "
        remedy += "in the URL, https://user:password@server/"
        return UnreadableFileError(
            f"{url} may not be read", cause=_first_line(error), remedy=remedy
        )
    if EXPIRY.search(str(error)):
        remedy = "log in again; gl.Remote(..., credentials=function) has the function called before they expire"
        return UnreadableFileError(
            f"{url} may not be read",
            cause=f"the credentials have expired: {_first_line(error)}",
            remedy=remedy,
        )
    return UnreadableFileError(
        f"{url} may not be read",
        cause=_first_line(error),
        remedy="check the credentials in the environment (AWS_PROFILE or AWS_ACCESS_KEY_ID, "
        "GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME), that they have not expired, "
        "and what they allow; gl.Remote(..., anonymous=True) reads a public bucket, "
        "requester_pays=True one that charges its readers",
    )


def _failure(url: str, error: BaseException, tries: int) -> FileError:
    is_web = place_of(url).scheme in WEB
    if WRONG_REGION.search(str(error)) and not is_web:
        region = REGION.search(str(error))
        name = region[1] if region else "..."
        return FileError(
            f"{url} cannot be read: the bucket is in another region",
            cause=_first_line(error),
            remedy=f'name it: gl.Remote("{place_of(url).root}/...", region="{name}"), or '
            f"AWS_REGION={name}",
        )
    if isinstance(error, import_package("obstore.exceptions").NotSupportedError):
        remedy = "the server must answer ranges (RFC 9110, section 14): use another one, or copy the files to a disk"
        return FileError(f"{url} cannot be read", cause=_first_line(error), remedy=remedy)
    if METADATA in str(error):
        return _refusal(url, error)
    if UNSOUND.search(_first_line(error)) or (is_web and WRONG_REGION.search(str(error))):
        remedy = "mend the server, or what stands between (RFC 9110, section 8); or copy the files to a disk"
        return FileError(
            f"{url} cannot be read: its server's answer is wrong",
            cause=_first_line(error),
            remedy=remedy,
        )
    proxy = next((name for name in PROXIES if os.environ.get(name)), "")
    remedy = "check that the store can be reached from this machine"
    if proxy:
        remedy += f", and the proxy that requests go through ({_proxy(proxy)}; NO_PROXY names hosts without)"
    if _is_final(error):
        kind = FileError
    else:
        kind = StoreError
    return kind(
        f"{url} cannot be read, after {tries} tries", cause=_first_line(error), remedy=remedy
    )


def _busy_error(url: str, error: BaseException, busy_s: float) -> StoreError:
    return StoreError(
        f"{url} cannot be read: its server was busy for {busy_s:.0f} s",
        cause=_first_line(error),
        remedy="read with fewer processes at a time, or from gl.Remote(..., cache=folder), or try "
        "again later",
    )


def _proxy(name: str) -> str:
    """Return a variable with the address of its proxy, without a login."""
    scheme, sign, rest = os.environ[name].rpartition("://")
    host = re.split("[/?#]", rest.rpartition("@")[2])[0]
    return f"{name}={scheme}{sign}{host}"


def _first_line(error: BaseException) -> str:
    """Return the first line of an error of obstore; behind it stand the requests and Rust's own
    form of the error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
