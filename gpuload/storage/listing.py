"""Listings of stores that hold keys which obstore cannot name: empty parts, ``.`` and ``..``,
control characters.

One such key has obstore refuse the page that it stands on, with the thousand others. So such a
listing is asked for here, by plain requests, in the form of obstore's entries.

Credentials  none where the user says so; of S3 the key of the environment, or the result of the
             user's function, by which a request is signed; of Google and Azure a token of that
             function, or a SAS. With others the listing is refused, and the error names the key.

Sources  https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html
         https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
         https://cloud.google.com/storage/docs/xml-api/get-bucket-list
         https://learn.microsoft.com/en-us/rest/api/storageservices/list-blobs
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote_plus, urlsplit

from gpuload.errors import FileError
from gpuload.functions import call_function
from gpuload.signalsafe import import_package
from gpuload.storage.stores import ANSWER_S, AZURE, ENDPOINTS, GOOGLE, S3, place_of, remote_of

EMPTY = hashlib.sha256(b"").hexdigest()
AZURE_VERSION = "2021-12-02"
MOST_ERROR = 300  # characters of a refusal that are shown
MOST_BYTES = 1 << 26  # of a page: a thousand keys of a kilobyte have a few MB


def entries_of(
    url: str, prefix: str, delimiter: str, odd_key: str
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the objects, and the folders, with keys that begin with a prefix.

    Args:
        url: of an object or folder of the store.
        prefix: of the keys.
        delimiter: "/" for one folder, "" for all below.
        odd_key: the words of obstore about the key that it refuses.

    Returns:
        dicts with path, size, last_modified and e_tag, as obstore's are; keys of folders with the
        slash at their end.

    Raises:
        FileError: the credentials are of a kind that this listing does not know.
        OSError: the store refuses the request.
    """
    if place_of(url).scheme in AZURE:
        page_of = _azure_page
    else:
        page_of = _s3_page
    entries, folders, token = list[dict[str, Any]](), list[str](), ""
    while True:
        page = page_of(url, prefix, delimiter, token, odd_key)
        entries += page[0]
        folders += page[1]
        token = page[2]
        if not token:
            return entries, folders


def _s3_page(
    url: str, prefix: str, delimiter: str, token: str, odd_key: str
) -> tuple[list[dict[str, Any]], list[str], str]:
    query = {
        "list-type": "2",
        "prefix": prefix,
        "delimiter": delimiter,
        "continuation-token": token,
    }
    query["encoding-type"] = "url"  # XML has no control characters
    address, headers = _signed(url, {name: text for name, text in query.items() if text}, odd_key)
    root = _ask(address, headers)
    is_encoded = _text(root, "EncodingType") == "url"

    def key_of(node: Any, name: str) -> str:
        if is_encoded:
            return unquote_plus(_text(node, name))
        return _text(node, name)

    entries = [
        {
            "path": key_of(node, "Key"),
            "size": int(_text(node, "Size")),
            "last_modified": datetime.datetime.fromisoformat(
                _text(node, "LastModified").replace("Z", "+00:00")
            ),
            "e_tag": _text(node, "ETag"),
        }
        for node in _nodes(root, "Contents")
    ]
    folders = [key_of(node, "Prefix") for node in _nodes(root, "CommonPrefixes")]
    return entries, folders, _text(root, "NextContinuationToken")


def _azure_page(
    url: str, prefix: str, delimiter: str, token: str, odd_key: str
) -> tuple[list[dict[str, Any]], list[str], str]:
    place, remote = place_of(url), remote_of(url)
    container, _, server = place.host.partition("@")
    account = server.partition(".")[0] or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
    base = (remote.endpoint or f"https://{account}.blob.core.windows.net").rstrip("/")
    query = {
        "restype": "container",
        "comp": "list",
        "prefix": prefix,
        "delimiter": delimiter,
        "marker": token,
    }
    headers, sas = {"x-ms-version": AZURE_VERSION}, ""
    if not _is_anonymous(url):
        login = _login(url) or {}
        sas = str(login.get("sas_token") or os.environ.get("AZURE_STORAGE_SAS_TOKEN", "")).lstrip(
            "?"
        )
        if "token" in login:
            headers["Authorization"] = f"Bearer {login['token']}"
        elif not sas:
            raise _no_listing(url, odd_key)
    address = f"{base}/{quote(container)}?{_query_of({name: text for name, text in query.items() if text})}"
    root = _ask(address + f"&{sas}" * bool(sas), headers)
    parse_date = import_package("email.utils").parsedate_to_datetime
    entries = []
    for node in root.iter("Blob"):
        properties = next(node.iter("Properties"), node)
        entries.append(
            {
                "path": _text(node, "Name"),
                "size": int(_text(properties, "Content-Length")),
                "last_modified": parse_date(_text(properties, "Last-Modified")),
                "e_tag": _text(properties, "Etag"),
            }
        )
    folders = [_text(node, "Name") for node in root.iter("BlobPrefix")]
    return entries, folders, _text(root, "NextMarker")


def _signed(url: str, query: Mapping[str, str], odd_key: str) -> tuple[str, dict[str, str]]:
    """Return address and headers of a request for a listing of S3 or Google."""
    place, remote = place_of(url), remote_of(url)
    endpoint = remote.endpoint or ""
    if place.scheme in GOOGLE:
        address = f"{(endpoint or 'https://storage.googleapis.com').rstrip('/')}/{quote(place.host)}?{_query_of(query)}"
        if _is_anonymous(url):
            return address, {}
        login = _login(url)
        if login is None or (login and "token" not in login):
            raise _no_listing(url, odd_key)
        return address, {"Authorization": f"Bearer {login['token']}"} if login else {}
    endpoint = endpoint or next(
        (os.environ[name] for name in ENDPOINTS if os.environ.get(name)), ""
    )
    region = (
        remote.region
        or os.environ.get("AWS_REGION")
        or os.environ.get("AWS_DEFAULT_REGION")
        or "us-east-1"
    )
    base = f"{(endpoint or f'https://s3.{region}.amazonaws.com').rstrip('/')}/{quote(place.host)}"
    if remote.requester_pays:
        headers = {"x-amz-request-payer": "requester"}
    else:
        headers = {}
    if not _is_anonymous(url):
        login = _login(url)
        if login is None:
            raise _no_listing(url, odd_key)
        headers |= _sign_v4(base, query, headers, region, login)
    return f"{base}?{_query_of(query)}", headers


def _sign_v4(
    base: str,
    query: Mapping[str, str],
    extra: Mapping[str, str],
    region: str,
    login: Mapping[str, Any],
) -> dict[str, str]:
    """Return the headers that sign a request of S3 (Signature Version 4)."""
    time = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    parts = urlsplit(base)
    headers = {"host": parts.netloc, "x-amz-content-sha256": EMPTY, "x-amz-date": time, **extra}
    if login.get("token"):
        headers["x-amz-security-token"] = str(login["token"])
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = "\n".join(["GET", parts.path, _query_of(query), lines, names, EMPTY])
    scope = f"{time[:8]}/{region}/s3/aws4_request"
    text = "\n".join(
        ["AWS4-HMAC-SHA256", time, scope, hashlib.sha256(request.encode()).hexdigest()]
    )
    key = f"AWS4{login['secret_access_key']}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    credential = f"{login['access_key_id']}/{scope}"
    headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"
    )
    return headers


def _is_anonymous(url: str) -> bool:
    is_said = os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true", "yes")
    return remote_of(url).anonymous or (is_said and place_of(url).scheme in S3)


def _login(url: str) -> Mapping[str, Any] | None:
    """Return the credentials of the user's function or of S3's environment; None for others."""
    function = remote_of(url).credentials
    if function is not None:
        note = f"gl.Remote(credentials=function), asked for {url}"
        login = call_function(function, note=lambda: note)
        if not isinstance(login, Mapping):
            return None
        has_keys = {"access_key_id", "secret_access_key"} <= login.keys()
        if has_keys or place_of(url).scheme not in S3:
            return login
        return None
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    key, secret, token = (os.environ.get(name, "") for name in names)
    if place_of(url).scheme not in S3 or not (key and secret):
        return None
    return {"access_key_id": key, "secret_access_key": secret, "token": token}


def _no_listing(url: str, odd_key: str) -> FileError:
    return FileError(
        f"{url} cannot be listed",
        cause=f"a key there is not supported by obstore: {odd_key}",
        remedy="name the objects without wildcards, or copy that object to another key and delete "
        "it; gl.Remote(..., credentials=function) lists such a bucket, too",
    )


def _query_of(query: Mapping[str, str]) -> str:
    return "&".join(
        f"{quote(name, safe='')}={quote(query[name], safe='')}" for name in sorted(query)
    )


def _ask(address: str, headers: Mapping[str, str]) -> Any:
    """Return the root of the XML that an address answers, with names without namespaces.

    Raises:
        OSError: the request fails; its text has the status, as obstore's errors have.
    """
    client, trees = import_package("urllib.request"), import_package("xml.etree.ElementTree")
    try:
        with client.urlopen(
            client.Request(address, headers=dict(headers)), timeout=ANSWER_S
        ) as answer:
            content = answer.read(MOST_BYTES)
    except import_package("urllib.error").HTTPError as error:
        text = " ".join(error.read(MOST_BYTES).decode("utf-8", "replace").split())[:MOST_ERROR]
        raise OSError(
            f"Server returned non-2xx status code: {error.code} {error.reason}: {text}"
        ) from None
    except import_package("http.client").HTTPException as error:  # no OSError, as all others are
        raise OSError(f"the listing broke off: {type(error).__name__}") from None
    try:
        root = trees.fromstring(content)
    except trees.ParseError as error:
        raise OSError(f"the listing is no XML: {error}") from None
    for node in root.iter():
        node.tag = node.tag.rpartition("}")[2]
    return root


def _nodes(root: Any, name: str) -> list[Any]:
    return [node for node in root if node.tag == name]


def _text(node: Any, name: str) -> str:
    """Return the text of a child; "" if there is none."""
    return next((child.text or "" for child in node if child.tag == name), "")
