"""Stores: the parts of the URL of an object, the user's settings of a store, and its client.

Settings     `Remote`; its URLs carry it along everywhere, also to another process. All that it
             leaves open comes from the environment, as the stores' own programs take it:
             credentials, region, endpoint, proxy.
Links        A web address is read as it stands: its query, which may be a signature, and its login
             are sent, and are no part of the object's name. Texts have ``***`` in their place
             (`redaction.py`), and so have pickles but those with which `multiprocessing` starts a
             process: such a URL is refused where it is opened.
Keys         Those that obstore would send as another one are refused: empty parts, ``.`` and
             ``..``, control characters.
Credentials  are never pickled, unless the user passes a function that returns them: it is pickled
             by its name.
Clients      one for each bucket or server, settings and process; of links with a query those that
             were used last. A refused request makes the client anew, once.
Fork         the threads of obstore do not live in a forked child, where a request would wait
             forever: it is refused.

Sources  obstore 0.12, https://developmentseed.org/obstore
"""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any

from gpuload.errors import FileError, SpecError, missing_package
from gpuload.redaction import has_secret, is_redacted, redact
from gpuload.signalsafe import import_package

Stamp = tuple[int, int, int]
Path = str | os.PathLike[str]

S3, GOOGLE, AZURE, WEB = ("s3", "s3a"), ("gs",), ("az", "azure", "abfs", "abfss"), ("http", "https")
SCHEMES = (*S3, *GOOGLE, *AZURE, *WEB)
URL = re.compile(rf"({'|'.join(SCHEMES)})://([^/]+)(?:/(.*))?", re.DOTALL)
VERSION = r"\?(?:versionId|versionid|generation)=([^?&=/]+)"
SIGNED = r"(?is)\?(?:.*&)?(?:sig|signature|x-(?:amz|goog)-signature)="
# The words that a signature adds to the query of a link; the rest says which object is meant.
RIGHTS = (
    "(?i)x-amz-.*|x-goog-.*|signature|expires|awsaccesskeyid|googleaccessid|policy|key-pair-id|hash-algorithm"
    "|sig|se|st|sp|sr|sv|spr|sip|sdd|ses|si|ske|sks|skt|skv|skoid|sktid|saoid|suoid|scid|rsc.|token|access_token|auth"
)
# Characters that obstore sends as they are, where they stood for others: of a folder, and of a
# blank in S3's addresses.
AMBIGUOUS = "(?i)%2[fb]"
CONTROL = "[\x00-\x1f\x7f]"
ANSWER_S, CONNECT_S = 15.0, 10.0  # how long a server may say nothing, and how long connecting takes
WHOLE_S = 120.0  # of an answer that goes on and on: its bytes are kept, and the rest is asked for
MOST_LINKS = 256  # links with a query that have a client, each with connections of its own
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
LEAST_CACHE_BYTES = 1 << 22

_lock = threading.Lock()
Key = tuple[str, "Remote", str, str]  # root, settings, query and login
_clients: dict[Key, Any] = {}  # the one that was used last stands last
_process: list[int] = []  # the process of these clients


@dataclass(frozen=True)
class Remote:
    """URLs of objects, and how their store is read; it takes the place of paths.

        gl.npy(gl.Remote("s3://bucket/rows/*.npy", cache="/scratch/gpuload", cache_bytes=200 << 30))
        gl.images(gl.Remote("s3://open-data/photos/", anonymous=True, region="eu-central-1"))

    Args:
        urls: a URL, one with wildcards, or a list of these.
        region: of the bucket (S3). None: ``AWS_REGION``, or the setting of the store's own
            programs.
        endpoint: the address of a server that answers as the store does,
            ``"https://minio.lab:9000"``.
        anonymous: True: requests are not signed, as public buckets allow.
        requester_pays: True: you pay for the requests, where the bucket asks for it (S3).
        credentials: a function that returns credentials as obstore's providers do: for S3 a dict of
            ``access_key_id``, ``secret_access_key``, ``token`` and ``expires_at``, a time with its zone, or None. It is
            called again before they expire. None: those of the environment.
        cache: a folder of this machine for blocks that were read, which all processes of this user
            share. None: every epoch asks the store.
        cache_bytes: the most bytes of these blocks together; blocks that were not used for longest
            go first.

    Raises:
        SpecError: an argument is wrong, or does not fit to the store.
    """

    urls: Any  # a path or a list of them; a tuple, once it is made
    _: KW_ONLY
    region: str | None = None
    endpoint: str | None = None
    anonymous: bool = False
    requester_pays: bool = False
    # it may be an object without a hash
    credentials: Callable[[], Any] | None = field(default=None, hash=False)
    cache: Path | None = None
    cache_bytes: int = 1 << 34

    def __post_init__(self) -> None:
        is_single = isinstance(self.urls, (str, bytes, os.PathLike)) or not isinstance(
            self.urls, Iterable
        )
        is_single = is_single or not getattr(self.urls, "ndim", 1)
        if is_single:
            urls = (self.urls,)
        else:
            urls = tuple(self.urls)
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
                f"gl.Remote(credentials={type(self.credentials).__name__}"
                + ", anonymous=True" * self.anonymous
                + ")",
                cause="credentials is a function that returns them, for requests that are signed",
                remedy="pass a function, or anonymous=True, or leave both out",
            )
        if self.cache is not None:
            object.__setattr__(
                self, "cache", os.path.abspath(os.path.expanduser(os.fspath(self.cache)))
            )
        if isinstance(self.cache_bytes, bool) or not hasattr(self.cache_bytes, "__index__"):
            raise SpecError(
                f"cache_bytes = {self.cache_bytes!r}",
                cause="it is a number of bytes",
                remedy="200 << 30",
            )
        if int(self.cache_bytes) < LEAST_CACHE_BYTES:
            raise SpecError(
                f"cache_bytes = {self.cache_bytes}",
                cause=f"the cache holds blocks of a MiB, and at least {LEAST_CACHE_BYTES} bytes of "
                "them",
                remedy="allow more, or leave cache= out",
            )

    def _scheme(self, url: Path) -> str:
        if isinstance(url, (str, os.PathLike)):
            text = os.fspath(url)
        else:
            text = None
        if isinstance(text, str):
            parts = URL.fullmatch(text)
        else:
            parts = None
        if parts is None:
            raise SpecError(
                f"gl.Remote({url!r})",
                cause=f"it is no URL of those schemes: {', '.join(SCHEMES)}",
                remedy="name files of this machine by their paths alone",
            )
        return parts[1]

    def _check_texts(self) -> None:
        if self.region is not None and not (
            isinstance(self.region, str) and re.fullmatch(r"[\w-]+", self.region)
        ):
            raise SpecError(
                f"region = {self.region!r}",
                cause="it is a name as eu-central-1 is",
                remedy="name it so",
            )
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

    def __repr__(self) -> str:
        texts = (f"{entry.name}={getattr(self, entry.name)!r}" for entry in fields(self))
        return f"Remote({', '.join(map(redact, texts))})"

    def __reduce__(self) -> tuple[Any, ...]:
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        urls = tuple(portable(url) if isinstance(url, str) else url for url in values.pop("urls"))
        if self.endpoint is not None:
            values["endpoint"] = portable(self.endpoint)
        return functools.partial(Remote, urls, **values), ()

    def __copy__(self) -> Remote:
        return self

    def __deepcopy__(self, memo: object) -> Remote:
        return self

    def object_urls(self) -> list[ObjectURL]:
        """Return the URLs, each with the settings.

        Raises:
            SpecError: the endpoint has a login.
        """
        if self.endpoint is not None and "@" in urllib.parse.urlsplit(self.endpoint).netloc:
            raise SpecError(
                f"endpoint = {self.endpoint!r}",
                cause="it has a login, and a store takes none: its requests are signed by "
                "credentials",
                remedy="leave it out; the environment has credentials (AWS_ACCESS_KEY_ID), "
                "or gl.Remote(credentials=function)",
            )
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
        stamp: of the object when it was listed; None if it was not. It is not pickled: where the
            URL arrives the object may be another one.
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
        """Return the stamp of the listing once; later calls have to look at the object as it is
        then."""
        stamp, self.stamp = self.stamp, None
        return stamp

    def __repr__(self) -> str:
        return repr(redact(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectURL, (portable(self), self.remote)

    def __copy__(self) -> ObjectURL:
        return self

    def __deepcopy__(self, memo: object) -> ObjectURL:
        return self


def portable(url: str) -> str:
    """Return a URL as it is pickled: without secrets, unless `multiprocessing` starts a process
    with it."""
    # As `multiprocessing.process.AuthenticationString`, which is pickled for a new process alone.
    context = sys.modules.get("multiprocessing.context")
    if context is not None and context.get_spawning_popen() is not None:
        return str(url)
    return redact(url)


def remote_of(url: str) -> Remote:
    """Return the settings that a URL carries, without URLs."""
    if isinstance(url, ObjectURL):
        return url.remote
    return DEFAULT


def like(url: str, text: str) -> str:
    """Return another URL with the settings of a URL; of a path just the text."""
    if isinstance(url, ObjectURL):
        return ObjectURL(text, url.remote)
    return text


@dataclass(frozen=True)
class Place:
    """A URL in its parts.

    Attributes:
        scheme: of SCHEMES.
        host: the bucket, container or server.
        key: of the object there.
        version: of the object; "" for the newest one.
        query: of a web address, as it is sent.
        login: of a web address, user and password.
    """

    scheme: str
    host: str
    key: str
    version: str = ""
    query: str = field(default="", repr=False)
    login: str = field(default="", repr=False)

    @property
    def root(self) -> str:
        """The URL of the store."""
        return f"{self.scheme}://{self.host}"

    @property
    def name(self) -> str:
        """The key, and the words of a query that say which object is meant: two links to an object
        have one name."""
        return self.key + _without_rights(self.query)


def is_remote(path: str) -> bool:
    """Return True for the URL of an object."""
    return "://" in path and URL.fullmatch(path) is not None


def sends_each_read(path: str) -> bool:
    """Return True for the URL of an object that has no cache: each read of it is a request to its
    store."""
    return is_remote(path) and remote_of(path).cache is None


@functools.lru_cache(maxsize=1 << 12)  # each request asks for it several times
def place_of(url: str) -> Place:
    """Return the parts of a URL.

    Raises:
        SpecError: it names no object, or one that cannot be asked for by this name.
    """
    parts = URL.fullmatch(url)
    if parts is None:
        place = None
    elif parts[1] in WEB:
        place = _web_place(url)
    else:
        place = _place_in_store(url, *parts.groups())
    if place is None or not place.key:
        raise SpecError(
            f"{url} as a path",
            cause="it names a store, and no object in it",
            remedy=f"name objects: {redact(url).rstrip('/')}/*",
        )
    *folders, name = place.key.split("/")
    if (
        any(part in ("", ".", "..") for part in folders)
        or name in (".", "..")
        or re.search(CONTROL, place.key)
    ):
        raise SpecError(
            f"{url!r} as a path",
            cause="keys with an empty part (//), with . or .. as a part, or with control "
            "characters are not supported: obstore, which sends the requests, takes none",
            remedy="copy the object to another key: aws s3api copy-object, or gcloud storage cp",
        )
    return place


def _place_in_store(url: str, scheme: str, host: str, key: str | None) -> Place:
    key = key or ""
    if re.search(SIGNED, key) or (":" in host and "@" in host):
        raise SpecError(
            f"{url} as a path",
            cause="it has credentials, which belong to the web address of an object",
            remedy="pass the link as it was signed, https://..., or the URL without them",
        )
    version = re.search(VERSION, key)
    # A key may hold a question mark itself: only such words at its very end name a version.
    if version is None or version.end() != len(key):
        return Place(scheme, host, key)
    return Place(scheme, host, key[: version.start()], version[1])


def _web_place(url: str) -> Place:
    scheme, _, rest = url.partition("://")
    address, _, query = rest.partition("?")
    authority, _, path = address.partition("/")
    login, _, host = authority.rpartition("@")
    if is_redacted(query) or is_redacted(login):
        raise SpecError(
            f"{url} as a path",
            cause="its signature or password was taken out: this is how gpuload shows and pickles "
            "such a URL",
            remedy="pass the URL itself; in another process open the source there",
        )
    problem = remedy = ""
    name = url
    if "#" in rest:
        problem, remedy = (
            "a # and what follows it is never sent to a server",
            "write %23 for a # in a name",
        )
    elif query and re.search("[\\s'\"<>]", url):
        problem, remedy = (
            "a link with a query has no blanks or quotes",
            "write %20 for a blank, as the link had it",
        )
        name = f"{scheme}://{address}?***"  # behind a blank a secret is not known as one
    elif re.search("[\\s'\"<>]", login):
        problem, remedy = (
            "a login has no blanks or quotes",
            "write %20 for a blank, %22 and %27 for quotes",
        )
        name = f"{scheme}://***@{host}/{path}"
    elif re.search(AMBIGUOUS, path):
        problem = "%2F and %2B are not supported: obstore sends a slash and a plus, which may be another object"
        remedy = (
            "write + where the server takes it as it is; read a bucket by s3://, gs:// or az://"
        )
    elif path.endswith("/") and query:
        problem, remedy = "it ends in a slash, as the names of folders do", "name a file"
    if problem:
        raise SpecError(f"{name} as a path", cause=problem, remedy=remedy)
    # obstore encodes the key itself, so it is decoded here: %20 is a blank.
    return Place(scheme, host, urllib.parse.unquote(path), "", query, login)


def path_of(url: str) -> str:
    """Return the part of a URL that says which object it means: without the login and the signature
    of a link; a path as it is."""
    if "://" not in url:  # a path of this machine, of which there may be millions
        return url
    scheme, _, rest = url.partition("://")
    if scheme not in WEB or not ("?" in rest or "@" in rest):
        return url
    address, _, query = rest.partition("?")
    authority, slash, key = address.partition("/")
    return f"{scheme}://{authority.rpartition('@')[2]}{slash}{key}{_without_rights(query)}"


def _without_rights(query: str) -> str:
    words = [word for word in query.split("&") if not re.fullmatch(RIGHTS, word.partition("=")[0])]
    return f"?{'&'.join(words)}" if any(words) else ""


def address(url: str) -> tuple[str, ...]:
    """Return all that says which object a URL means, on which server, in which version."""
    place = place_of(url)
    endpoint = remote_of(url).endpoint or ""
    if place.scheme in S3 and not endpoint:
        endpoint = next((os.environ[name] for name in ENDPOINTS if os.environ.get(name)), "")
    return redact(endpoint), place.root, place.name, place.version


def check_shareable(url: str, purpose: str) -> None:
    """Refuse a URL with a secret in a thing that others may get: a file, or a task on another
    machine.

    Raises:
        SpecError: it has a login or a signature.
    """
    # `place_of` refuses other URLs with credentials. The quick test comes first: there may be
    # millions of URLs.
    if url.startswith("http") and ("?" in url or "@" in url) and has_secret(url):
        raise SpecError(
            f"{purpose} {url}",
            cause="the link holds a password or a signature, and what others may get has no "
            "credentials",
            remedy="name the objects by their store, s3://, gs:// or az://, whose credentials are "
            "in the environment",
        )


def obstore() -> Any:
    """Return the package.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        return import_package("obstore")
    except ImportError as error:
        raise missing_package(
            "obstore", needed_for="a remote path", extra="remote", error=error
        ) from None


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
                cause="its parent had read remote files before, and the threads that read them do "
                "not live here",
                remedy='start processes by spawn, multiprocessing.get_context("spawn"), or fork '
                "before the first read",
            )
        key = place.root, remote, place.query, place.login
        client = _clients.pop(key, None)
        if client is None:
            client = _new_client(place, remote)
        _clients[key] = client
        if place.query and len(_clients) > MOST_LINKS:
            links = [entry for entry in _clients if entry[2]]
        else:
            links = []
        for entry in links[: max(0, len(links) - MOST_LINKS)]:
            del _clients[entry]
        return client


def forget(url: str) -> None:
    """Have the next request make a new client, which reads the credentials of the environment
    anew."""
    place = place_of(url)
    with _lock:
        _clients.pop((place.root, remote_of(url), place.query, place.login), None)


def _new_client(place: Place, remote: Remote) -> Any:
    stores, timedelta = import_package("obstore.store"), import_package("datetime").timedelta
    transport: dict[str, Any] = {
        "read_timeout": timedelta(seconds=ANSWER_S),
        "connect_timeout": timedelta(seconds=CONNECT_S),
        "timeout": timedelta(seconds=WHOLE_S),
    }
    if place.login:
        login = (
            import_package("base64")
            .b64encode(urllib.parse.unquote(place.login).encode())
            .decode("ascii")
        )
        transport["default_headers"] = {"authorization": f"Basic {login}"}
    # obstore refuses http:// unless it is told; the endpoint of the environment it finds by itself,
    # by any name.
    endpoints = (remote.endpoint or "", *(os.environ.get(name, "") for name in ENDPOINTS))
    if place.scheme == "http" or any(text.startswith("http://") for text in endpoints):
        transport["allow_http"] = True
    options: dict[str, Any] = {
        "client_options": transport,
        # All retries are those of `retries.py`: limits of two would multiply.
        "retry_config": {"max_retries": 0},
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
    # The query of the root is sent with each key.
    return stores.from_url(f"{place.root}/?{place.query}" if place.query else place.root, **options)
