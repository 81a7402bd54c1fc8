"""Stores: what the URL of an object means, how the user says that a store is read, and its client.

Settings     `Remote`, whose URLs carry it along wherever they go, also to another process. What it does not say comes
             from the environment, as the stores' own programs take it: credentials, region, endpoint, proxy.
Credentials  are never pickled, unless the user passes a function that returns them: it is pickled by its name.
Clients      one for each bucket or server, settings and process. A refused request makes the client anew, once.
Fork         the threads of obstore do not live in a forked child, where a request would wait forever: it is refused.

Sources  obstore 0.12, https://developmentseed.org/obstore
"""

from __future__ import annotations

import functools
import os
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from gpuload.errors import FileError, SpecError, missing_package
from gpuload.signalsafe import import_package

Stamp = tuple[int, int, int]
Path = str | os.PathLike[str]

S3, GOOGLE, AZURE, WEB = ("s3", "s3a"), ("gs",), ("az", "azure", "abfs", "abfss"), ("http", "https")
SCHEMES = (*S3, *GOOGLE, *AZURE, *WEB)
URL = re.compile(rf"({'|'.join(SCHEMES)})://([^/]+)(?:/(.*))?", re.DOTALL)
VERSION = re.compile(r"\?(?:versionId|versionid|generation)=([^?&=/]+)")
ANSWER_S, CONNECT_S = 30.0, 10.0
STORE_TRIES, STORE_S = 6, 60.0  # obstore repeats requests that a server refused for the moment
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
LEAST_CACHE_BYTES = 1 << 22

_lock = threading.Lock()
_clients: dict[tuple[str, Remote], Any] = {}
_process: list[int] = []  # the process whose clients these are


@dataclass(frozen=True)
class Remote:
    """URLs of objects, and how their store is read; it takes the place of paths.

        gl.npy(gl.Remote("s3://bucket/rows/*.npy", cache="/scratch/gpuload", cache_bytes=200 << 30))
        gl.images(gl.Remote("s3://open-data/photos/", anonymous=True, region="eu-central-1"))

    Args:
        urls: a URL, one with wildcards, or a list of these.
        region: of the bucket (S3). None: ``AWS_REGION``, or what the store's own programs take.
        endpoint: the address of a server that answers as the store does, ``"https://minio.lab:9000"``.
        anonymous: True: requests are not signed, as public buckets allow.
        requester_pays: True: you pay for the requests, where the bucket asks for it (S3).
        credentials: a function that returns credentials as obstore's providers do: for S3 a dict of
            ``access_key_id``, ``secret_access_key``, ``token`` and ``expires_at``, a time with its zone, or None. It is
            called again before they expire. None: those of the environment.
        cache: a folder of this machine for blocks that were read, which all processes of this user share. None: every
            epoch asks the store.
        cache_bytes: the most bytes of these blocks together; blocks that were not used for longest go first.

    Raises:
        SpecError: an argument is wrong, or does not fit to the store.
    """

    urls: Any  # a path or a list of them; a tuple, once it is made
    _: KW_ONLY
    region: str | None = None
    endpoint: str | None = None
    anonymous: bool = False
    requester_pays: bool = False
    credentials: Callable[[], Any] | None = field(default=None, hash=False)  # it may be an object without a hash
    cache: Path | None = None
    cache_bytes: int = 1 << 34

    def __post_init__(self) -> None:
        is_single = isinstance(self.urls, (str, bytes, os.PathLike)) or not isinstance(self.urls, Iterable)
        urls = (self.urls,) if is_single else tuple(self.urls)
        # Frozen, as settings are a key of `_clients`; this is the one moment when they change.
        object.__setattr__(self, "urls", urls)
        schemes = {self._scheme(url) for url in urls}
        for name, value, kinds in (
            ("region", self.region, S3),
            ("requester_pays", self.requester_pays, S3),
            ("endpoint", self.endpoint, (*S3, *GOOGLE, *AZURE)),
            ("anonymous", self.anonymous, (*S3, *GOOGLE, *AZURE)),
            ("credentials", self.credentials, (*S3, *GOOGLE, *AZURE)),
        ):
            if value and (wrong := schemes.difference(kinds)):
                raise SpecError(
                    f"gl.Remote({name}=...) for {min(wrong)}://",
                    cause=f"it is for {', '.join(f'{kind}://' for kind in kinds)}",
                    remedy="leave it out",
                )
        self._check_texts()
        if self.requester_pays and self.anonymous:
            raise SpecError(
                "gl.Remote(requester_pays=True, anonymous=True)",
                cause="who pays is known by the signature",
                remedy="leave anonymous= out",
            )
        if self.credentials is not None and (self.anonymous or not callable(self.credentials)):
            raise SpecError(
                f"gl.Remote(credentials={type(self.credentials).__name__}" + ", anonymous=True" * self.anonymous + ")",
                cause="credentials is a function that returns them, for requests that are signed",
                remedy="pass a function, or anonymous=True, or leave both out",
            )
        if self.cache is not None:
            object.__setattr__(self, "cache", os.path.abspath(os.path.expanduser(os.fspath(self.cache))))
        if isinstance(self.cache_bytes, bool) or not hasattr(self.cache_bytes, "__index__"):
            raise SpecError(f"cache_bytes = {self.cache_bytes!r}", cause="it is a number of bytes", remedy="200 << 30")
        if int(self.cache_bytes) < LEAST_CACHE_BYTES:
            raise SpecError(
                f"cache_bytes = {self.cache_bytes}",
                cause=f"the cache holds blocks of a MiB, and at least {LEAST_CACHE_BYTES} bytes of them",
                remedy="allow more, or leave cache= out",
            )

    def _scheme(self, url: Path) -> str:
        text = os.fspath(url) if isinstance(url, (str, os.PathLike)) else None
        parts = URL.fullmatch(text) if isinstance(text, str) else None
        if parts is None:
            raise SpecError(
                f"gl.Remote({url!r})",
                cause=f"it is no URL of those schemes: {', '.join(SCHEMES)}",
                remedy="name files of this machine by their paths alone",
            )
        return parts[1]

    def _check_texts(self) -> None:
        if self.region is not None and not (isinstance(self.region, str) and re.fullmatch(r"[\w-]+", self.region)):
            raise SpecError(f"region = {self.region!r}", cause="it is a name as eu-central-1 is", remedy="name it so")
        if self.endpoint is not None:
            try:
                parts = urllib.parse.urlsplit(self.endpoint)
                is_address = parts.scheme in WEB and bool(parts.hostname) and parts.port != 0
            except (ValueError, AttributeError, TypeError):
                is_address = False
            if not is_address:
                raise SpecError(
                    f"endpoint = {self.endpoint!r}",
                    cause="it is the address of a server, http:// or https:// and a name",
                    remedy='pass "https://minio.lab:9000", say',
                )

    def object_urls(self) -> list[ObjectURL]:
        """Return the URLs, each with the settings."""
        return [ObjectURL(os.fspath(url), self.settings) for url in self.urls]

    @property
    def settings(self) -> Remote:
        """The same without its URLs."""
        return replace(self, urls=())


DEFAULT = Remote(())


class ObjectURL(str):
    """The URL of an object, with the settings of its store.

    Attributes:
        remote: the settings, a `Remote` without URLs.
        stamp: of the object when it was listed; None if it was not. It is not pickled: where the URL arrives the object
            may be another one.
    """

    __slots__ = ("remote", "stamp")
    remote: Remote
    stamp: Stamp | None

    def __new__(cls, text: str, remote: Remote = DEFAULT, stamp: Stamp | None = None) -> ObjectURL:
        """Return a URL with these attributes."""
        url = super().__new__(cls, text)
        url.remote, url.stamp = remote, stamp
        return url

    def take_stamp(self) -> Stamp | None:
        """Return the stamp of the listing once; whoever asks later has to look at the object as it is then."""
        stamp, self.stamp = self.stamp, None
        return stamp

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectURL, (str(self), self.remote)


def remote_of(url: str) -> Remote:
    """Return the settings that a URL carries, without URLs."""
    return url.remote if isinstance(url, ObjectURL) else DEFAULT


def like(url: str, text: str) -> str:
    """Return another URL with the settings of a URL; of a path just the text."""
    return ObjectURL(text, url.remote) if isinstance(url, ObjectURL) else text


@dataclass(frozen=True)
class Place:
    """A URL in its parts.

    Attributes:
        scheme: of SCHEMES.
        host: the bucket, container or server.
        key: of the object there.
        version: of the object; "" for the newest one.
    """

    scheme: str
    host: str
    key: str
    version: str = ""

    @property
    def root(self) -> str:
        """The URL of the store."""
        return f"{self.scheme}://{self.host}"


def is_remote(path: str) -> bool:
    """Return True for the URL of an object."""
    return "://" in path and URL.fullmatch(path) is not None


def sends_each_read(path: str) -> bool:
    """Return True for the URL of an object that has no cache: each read of it is a request to its store."""
    return is_remote(path) and remote_of(path).cache is None


@functools.lru_cache(maxsize=1 << 12)  # each request asks for it several times
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
    scheme, host, key = parts.groups()
    version = None if scheme in WEB else VERSION.search(key)
    # A key may hold a question mark itself: only such words at its very end name a version.
    if version is None or version.end() != len(key):
        return Place(scheme, host, key)
    return Place(scheme, host, key[: version.start()], version[1])


def address(url: str) -> tuple[str, ...]:
    """Return all that says which object a URL means, on which server, in which version."""
    place = place_of(url)
    endpoint = remote_of(url).endpoint or ""
    if place.scheme in S3 and not endpoint:
        endpoint = next((os.environ[name] for name in ENDPOINTS if os.environ.get(name)), "")
    return endpoint, place.root, place.key, place.version


def obstore() -> Any:
    """Return the package.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        return import_package("obstore")
    except ImportError as error:
        raise missing_package("obstore", needed_for="a remote path", extra="remote", error=error) from None


def client(url: str) -> Any:
    """Return the client for the store of a URL.

    Raises:
        FileError: this process was forked from one that had clients.
    """
    place, remote = place_of(url), remote_of(url)
    with _lock:
        if not _process:
            _process.append(os.getpid())
        if _process[0] != os.getpid():
            raise FileError(
                f"{place.root} in a process that was forked",
                cause="its parent had read remote files before, and the threads that read them do not live here",
                remedy='start processes by spawn, multiprocessing.get_context("spawn"), or fork before the first read',
            )
        key = place.root, remote
        client = _clients.get(key)
        if client is None:
            client = _clients[key] = _new_client(place, remote)
        return client


def forget(url: str) -> None:
    """Have the next request make a new client, which reads the credentials of the environment anew."""
    with _lock:
        _clients.pop((place_of(url).root, remote_of(url)), None)


def _new_client(place: Place, remote: Remote) -> Any:
    stores, timedelta = import_package("obstore.store"), import_package("datetime").timedelta
    transport: dict[str, Any] = {
        "timeout": timedelta(seconds=ANSWER_S),
        "connect_timeout": timedelta(seconds=CONNECT_S),
    }
    # obstore refuses http:// unless it is told; the endpoint of the environment it finds by itself, by any name.
    endpoints = (remote.endpoint or "", *(os.environ.get(name, "") for name in ENDPOINTS))
    if place.scheme == "http" or any(text.startswith("http://") for text in endpoints):
        transport["allow_http"] = True
    options: dict[str, Any] = {
        "client_options": transport,
        "retry_config": {
            "max_retries": STORE_TRIES,
            "retry_timeout": timedelta(seconds=STORE_S),
            "backoff": {
                "init_backoff": timedelta(seconds=FIRST_WAIT_S),
                "max_backoff": timedelta(seconds=LONGEST_WAIT_S),
            },
        },
    }
    if remote.region:
        options["region"] = remote.region
    if remote.endpoint:
        options["base_url" if place.scheme in GOOGLE else "endpoint"] = remote.endpoint
    if remote.anonymous:
        options["skip_signature"] = True
    if remote.requester_pays:
        options["request_payer"] = True
    if remote.credentials is not None:
        options["credential_provider"] = remote.credentials
    return stores.from_url(place.root, **options)
