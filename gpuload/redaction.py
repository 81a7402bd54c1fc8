"""Redaction: texts for people, without secrets and without characters that steer a terminal.

Secrets     ``redact`` takes them out of a text: logins of URLs, values in the query of a web
            address (presigned links carry their rights there), words such as ``AccountKey=...``,
            and the values of the variables of the environment that hold credentials. ``***`` stands
            in their place.
Characters  ``printable`` writes control characters, those that turn the direction of a line, and
            halves of surrogate pairs as Python's ``repr`` does: a name from elsewhere cannot clear
            the screen, nor pretend to be a line.
Users       `GpuloadError`, notes, the log (the filter at the end), the output of the commands, the
            progress line, and the ``repr`` of sources and of ``gl.Remote``. Names keep their value
            for programs: ``error.what`` and ``--json`` are without secrets, and have the characters
            of the name.

Source  Signatures: https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html,
        https://cloud.google.com/storage/docs/authentication/signatures,
        https://learn.microsoft.com/en-us/rest/api/storageservices/create-service-sas
"""

from __future__ import annotations

import logging
import os
import re

HIDDEN = "***"
# Texts, which `re` compiles at their first use: most programs meet no secret, and importing gpuload
# is to be quick. Slashes may be missing, too many, or escaped as in JSON: the text may have a URL
# that was mistyped. The time of each pattern grows with a text's length, not with its square: names
# in files are texts of others, and may be long.
LOGIN = r"(?i)((?<![a-z0-9+.-])[a-z0-9+.-]+://|https?:(?:\\?/){1,3})([^/\s?#'\"<>]{0,999})@"
# A slash or question mark in a password ends the server's name too early; digits alone behind the
# colon are a port.
RAGGED_LOGIN = r"(://)([^/@\s:'\"<>]{0,999}:(?!\d+(?:[/?#]|$))[^\s'\"<>]{0,999})@"
ENCODED_LOGIN = r"(?i)(%3a%2f%2f)[^\s/'\"<>]{1,999}?(%40)"
# Of user:password@proxy:3128.
PROXY_LOGIN = r"(?<![\w/.@:-])[^\s:/@'\"<>=]+:[^\s:/@'\"<>]+@(?=[\w.-]+:\d{2,5}(?!\w))"
EXAMPLE = "user:password"  # in remedies
QUERY = r"(?i)(https?://[^\s?'\"<>]{0,4999})\?([^\s'\"<>]+)"
PARAMETER = r"([^=&;]*)(=?)([^&;]*)"
TRAIL = r"[),:.;\]}]*$"  # the sentence in which a URL stands
# Values that say which object is meant, and give no rights.
PLAIN_PARAMETERS = frozenset(
    (
        "versionid",
        "generation",
        "list-type",
        "prefix",
        "delimiter",
        "restype",
        "comp",
        "marker",
        "continuation-token",
    )
)
BEGIN = r"(?:(?<![\w-])|(?<=%3f)|(?<=%26))"  # also behind a "?" or "&" of an encoded URL
SIGN = r"(?:['\"]?\s*[=:]\s*['\"]?|%3d|>)"
VALUE = r"[^\s&;,'\"<>)]+"
WORDS = (
    rf"(?i){BEGIN}(x-(?:amz|goog)-(?:signature|credential|security-token)|awsaccesskeyid|googleaccessid"
    r"|key-pair-id|(?:shared)?access(?:key|signature)|accountkey|sharedaccess(?:key|signature)"
    r"|secretaccesskey|sessiontoken|signatureprovided|x-api-key|api-key|hf_token|auth_token"
    r"|(?:aws_|azure_storage_|azure_|azure_client_|google_)?(?:secret_access_key|access_key_id|session_token|security_token"
    r"|client_secret|account_key|access_key|secret_key|sas_token|sas_key|refresh_token|access_token|api_?key|private_key))"
    rf"({SIGN})({VALUE})"
)
SHORT_WORDS = rf"(?i)(?<=[?&;])(sig|signature|token|password|passwd|key|secret|auth|jsessionid|policy)=({VALUE})"
BARE_SIGNATURE = rf"(?i){BEGIN}(sig|signature)(=|%3d)({VALUE})(?=&|$)"
PASSWORDS = (
    rf"(?i)(?<![\w-])(password|passwd|pwd|secret)(=|['\"]?\s*[=:]\s*(?=['\"]))(['\"]?)({VALUE})"
)
# Columns may have this name: {'token': 'int32'}.
TOKENS = (
    r"(?i)(?<![\w-])(token['\"]?\s*[=:]\s*)(['\"])"
    r"(?!(?:u?int|float|complex|datetime|timedelta|bool|bytes|str|text|object)[^'\"]*['\"])([^'\"]+)"
)
# As fsspec has them: key="...", secret="...".
KEYS = r"(?i)(?<![\w-])(key['\"]?\s*[=:]\s*)(['\"])([^'\"]+)(?=['\"].{0,500}\bsecret\b)"
HEADERS = r"(?i)((?:authorization|cookie)['\"]?\s*[=:,]\s*['\"]?)([^'\"\n]+)"
PRIVATE_KEY = r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY.*?(?:-----END [A-Z ]*KEY-----|$)"
VARIABLES = (
    *(
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_ACCESS_KEY",
    ),
    *(
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_CONNECTION_STRING",
        "AZURE_STORAGE_TOKEN",
    ),
    *(
        "AZURE_STORAGE_CLIENT_SECRET",
        "AZURE_CLIENT_SECRET",
        "GOOGLE_SERVICE_ACCOUNT_KEY",
        "HF_TOKEN",
    ),
)
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
LEAST_SECRET = 6  # characters of a value of the environment: shorter ones are parts of other words
STEERING = (
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
STEERING_LINES = f"(?!\n){STEERING}"


def message(text: str) -> str:
    """Return a text without secrets and without characters that steer a terminal; line breaks
    stay."""
    return printable(redact(text), lines=True)


def printable(text: str, *, lines: bool = False) -> str:
    """Return a text in which characters that steer a terminal are written as in Python's ``repr``.

    Args:
        text: the text.
        lines: True: it may have several lines.
    """
    if text.isascii() and text.isprintable():
        return text
    characters = STEERING_LINES if lines else STEERING
    return re.sub(characters, lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def redact(text: str) -> str:
    """Return a text with ``***`` in place of secrets."""
    if ":" in text:
        text = re.sub(RAGGED_LOGIN, _without_login, text)
        text = re.sub(LOGIN, _without_login, text)
        text = re.sub(QUERY, _without_values, text)
    if "@" in text or "%40" in text:
        text = re.sub(ENCODED_LOGIN, rf"\1{HIDDEN}\2", text)
        text = re.sub(PROXY_LOGIN, f"{HIDDEN}@", text)
    if any(sign in text for sign in ("=", ":", ",", ">", "%3")):
        text = re.sub(PRIVATE_KEY, HIDDEN, text)
        text = re.sub(HEADERS, rf"\1{HIDDEN}", text)
        text = re.sub(WORDS, rf"\1\2{HIDDEN}", text)
        text = re.sub(SHORT_WORDS, rf"\1={HIDDEN}", text)
        text = re.sub(BARE_SIGNATURE, rf"\1\2{HIDDEN}", text)
        text = re.sub(PASSWORDS, rf"\1\2\3{HIDDEN}", text)
        text = re.sub(KEYS, rf"\1\2{HIDDEN}", text)
        text = re.sub(TOKENS, rf"\1\2{HIDDEN}", text)
    for secret in _secrets_of_environment():
        text = text.replace(secret, HIDDEN)
    return text


def has_secret(text: str) -> bool:
    """Return True if a text holds a secret."""
    return redact(text) != text


def is_redacted(query: str) -> bool:
    """Return True if secrets were taken out of a query, or of a login."""
    return HIDDEN in query


def _without_login(match: re.Match[str]) -> str:
    if match[2] == EXAMPLE:
        return match[0]
    # abfs://container@account names a container.
    if match[1].lower().startswith("abfs") and ":" not in match[2]:
        return match[0]
    return f"{match[1]}{HIDDEN}@"


def _without_values(match: re.Match[str]) -> str:
    query, trail = match[2], re.search(TRAIL, match[2])
    end = ""
    if trail is not None:
        end = trail[0]
    return f"{match[1]}?{re.sub(PARAMETER, _without_value, query[: len(query) - len(end)])}{end}"


def _without_value(match: re.Match[str]) -> str:
    name, sign, value = match.groups()
    if name.lower() in PLAIN_PARAMETERS or not (name or value):
        return match[0]
    # A word without a name may be the secret itself.
    if sign:
        return f"{name}={HIDDEN}"
    return HIDDEN


def _secrets_of_environment() -> set[str]:
    secrets = {os.environ.get(name, "") for name in VARIABLES}
    for name in PROXIES:
        login, sign, _ = os.environ.get(name, "").rpartition("@")
        login = login.rpartition("://")[2] or login
        if sign:
            secrets |= {login, login.partition(":")[2]}
        else:
            secrets |= set()
    return {secret for secret in secrets if len(secret) >= LEAST_SECRET}


class LogFilter(logging.Filter):
    """Takes secrets and steering characters out of the lines of a log."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True, and change a record with a text that is not for people."""
        text = record.getMessage()
        if (clean := message(text)) != text:
            record.msg, record.args = clean, ()
        return True


logging.getLogger("gpuload").addFilter(LogFilter())
