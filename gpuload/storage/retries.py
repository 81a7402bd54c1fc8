"""Retries: requests to stores that are sent again where that may help, and the errors of those that failed.

Retries   obstore repeats requests that a server refused for the moment (5xx, 429), or that were cut off before their
          answer began; what breaks off later is repeated here. The waits grow, and are random, so that many ranks that
          failed together do not come back together. The server's Retry-After does not come through obstore.
Deadline  DEADLINE_S for a range with all retries; a server that says nothing is left after `stores.ANSWER_S`.
Refusals  have the credentials read anew, once: they may have been replaced.
Panics    obstore answers what its authors took for impossible by an exception that is no Exception. It becomes an
          error of ours, as any other.

Sources  obstore 0.12; https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
"""

from __future__ import annotations

import os
import random
import re
import time
import urllib.parse
from collections.abc import Callable
from typing import TypeVar

from gpuload import threads
from gpuload.errors import FileError, GpuloadError, MissingFileError, UnreadableFileError
from gpuload.signalsafe import import_package
from gpuload.storage.stores import PROXIES, WEB, forget, place_of

Result = TypeVar("Result")

DEADLINE_S = 120.0
MOST_TRIES = 6
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
STATUS = re.compile(r"status code: (\d+)")  # in the errors of obstore, which have no number of their own
METADATA = "169.254.169.254"  # asked for credentials where the environment has none, as machines in a cloud answer
NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound|The specified bucket does not exist")
WRONG_REGION = re.compile(
    "incorrectly configured region|AuthorizationHeaderMalformed|PermanentRedirect|IllegalLocationConstraint"
)
REGION = re.compile(r"<Region>([\w-]+)</Region>")
EXPIRY = re.compile("ExpiredToken|RequestExpired|TokenRefreshRequired")
PANIC = "PanicException"  # of pyo3; it has no module to import it from


class ShortError(Exception):
    """An answer that has fewer bytes than it was to have."""


class EmptyRangeError(Exception):
    """The object has none of the bytes that were asked for."""


def request(url: str, function: Callable[[], Result]) -> Result:
    """Return ``function()``, which sends a request, and do it again where that may help.

    Raises:
        FileError: of the kind that its failure is.
        EmptyRangeError: the server has no such range (416).
    """
    begin_s, has_new_login = time.monotonic(), False
    for tries in range(1, MOST_TRIES + 1):
        try:
            return function()
        # Not Exception: a panic of Rust is none (`PANIC`). What is not obstore's goes on at once, Ctrl-C as well.
        except BaseException as error:
            if not _is_of_store(error):
                raise
            is_refusal = _is_refusal(error)
            wait_s = 0.0 if is_refusal else random.uniform(0.5, 1.0) * min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**tries)
            # Python waits for its threads when it ends: it would wait for an answer that nobody wants any more.
            is_late = time.monotonic() + wait_s - begin_s > DEADLINE_S or threads.is_ending()
            if tries == MOST_TRIES or is_late or _is_final(error) or (is_refusal and has_new_login):
                raise _error_for(url, error, tries) from None
            if is_refusal:
                forget(url)
                has_new_login = True
            else:
                time.sleep(wait_s)
    raise AssertionError("the last try returns or raises")


def _is_of_store(error: BaseException) -> bool:
    """Return True for what obstore raises, and for a short answer; False for errors of ours and of signal handlers."""
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
    """Return the status of an answer of HTTP that an error of obstore tells of; 0 if it tells of none."""
    status = STATUS.search(str(error))
    return int(status[1]) if status is not None else 0


def _is_final(error: BaseException) -> bool:
    """Return True for an error that another try cannot mend."""
    status = status_of(error)
    kinds = ValueError, FileNotFoundError, import_package("obstore.exceptions").NotSupportedError
    return (
        # 408 and 429 say: later; 401 and 403 get another try with new credentials.
        (400 <= status < 500 and status not in (401, 403, 408, 429))
        or WRONG_REGION.search(str(error)) is not None
        or isinstance(error, kinds)
        or _is_panic(error)
    )


def _error_for(url: str, error: BaseException, tries: int) -> FileError | EmptyRangeError:
    """Return the error of ours for one of obstore's."""
    if _is_panic(error):
        return FileError(
            f"{url} cannot be read",
            cause=f"obstore gave up: {_first_line(error)}",
            remedy="check the URL, and what the environment and gl.Remote say of credentials, region and endpoint",
        )
    if isinstance(error, FileNotFoundError) or status_of(error) == 404:
        return _missing(url, error)
    if status_of(error) == 416:
        return EmptyRangeError()
    return _refusal(url, error) if _is_refusal(error) else _failure(url, error, tries)


def _missing(url: str, error: BaseException) -> MissingFileError:
    if NO_BUCKET.search(str(error)):
        root = place_of(url).root
        return MissingFileError(
            f"{root} is missing", cause=f"the store has no such bucket: {_first_line(error)}", remedy="check its name"
        )
    return MissingFileError(
        f"{url} is missing",
        cause=f"the store has no such object, or hides it: {_first_line(error)}",
        remedy="check the URL; that of a folder ends in a slash",
    )


def _refusal(url: str, error: BaseException) -> UnreadableFileError:
    if place_of(url).scheme in WEB:
        remedy = "check what the server lets everybody read; requests to web servers carry no password"
        return UnreadableFileError(f"{url} may not be read", cause=_first_line(error), remedy=remedy)
    if EXPIRY.search(str(error)):
        remedy = "log in again; gl.Remote(..., credentials=function) has the function called before they expire"
        return UnreadableFileError(
            f"{url} may not be read", cause=f"the credentials have expired: {_first_line(error)}", remedy=remedy
        )
    return UnreadableFileError(
        f"{url} may not be read",
        cause=_first_line(error),
        remedy="check the credentials in the environment (AWS_PROFILE or AWS_ACCESS_KEY_ID, "
        "GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME), that they have not expired, and what they allow; "
        "gl.Remote(..., anonymous=True) reads a public bucket, requester_pays=True one that charges its readers",
    )


def _failure(url: str, error: BaseException, tries: int) -> FileError:
    if WRONG_REGION.search(str(error)):
        region = REGION.search(str(error))
        name = region[1] if region else "..."
        return FileError(
            f"{url} cannot be read: the bucket is in another region",
            cause=_first_line(error),
            remedy=f'name it: gl.Remote("{place_of(url).root}/...", region="{name}"), or AWS_REGION={name}',
        )
    if isinstance(error, import_package("obstore.exceptions").NotSupportedError):
        remedy = "the server must answer ranges (RFC 9110, section 14): use another one, or copy the files to a disk"
        return FileError(f"{url} cannot be read", cause=_first_line(error), remedy=remedy)
    if METADATA in str(error):
        return _refusal(url, error)
    proxy = next((f"{name}={os.environ[name]}" for name in PROXIES if os.environ.get(name)), "")
    remedy = "check that the store can be reached from this machine"
    remedy += (
        f", and the proxy that requests go through ({_without_password(proxy)}; NO_PROXY names hosts without)"
        if proxy
        else ""
    )
    return FileError(f"{url} cannot be read, after {tries} tries", cause=_first_line(error), remedy=remedy)


def _without_password(text: str) -> str:
    name, _, value = text.partition("=")
    parts = urllib.parse.urlsplit(value)
    return f"{name}={parts.scheme}://{parts.hostname}:{parts.port}" if parts.password else text


def _first_line(error: BaseException) -> str:
    """Return what an error of obstore says first; behind it stand the requests and Rust's own form of the error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
