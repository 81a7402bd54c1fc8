from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet
import pytest
from PIL import Image

import gpuload as gl
from gpuload.errors import FileError, add_note
from gpuload.redaction import printable, redact

SECRET = "TOPSECRET99"
TEXTS = [
    f"https://user:{SECRET}@server/a.npy is missing",
    f"https://user:pa/ss?{SECRET}@server/a.npy",
    f"http://{SECRET}@server:9/a.npy",
    f"https://server/a.npy?X-Amz-Signature={SECRET}&X-Amz-Date=2026",
    f"https://server/a.npy?X-Amz-Credential=AKIA{SECRET}%2F2026&X-Amz-Security-Token={SECRET}",
    f"https://account.blob.core.windows.net/c/a?sv=2024&se=2026-01-01&sig={SECRET}%3D",
    f"https://storage.googleapis.com/b/a?GoogleAccessId={SECRET}&Signature={SECRET}",
    f"https://server/a.npy?{SECRET}",
    f"(https://server/a.npy?token={SECRET}), and more",
    f"az://c/a.npy?sv=1&sig={SECRET}",
    f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={SECRET}==;EndpointSuffix=core.windows.net",
    f"{{'secret_access_key': '{SECRET}', 'access_key_id': 'A'}}",
    f"aws_session_token={SECRET}",
    f"Authorization: Bearer {SECRET}",
    f"('Authorization', 'AWS4-HMAC-SHA256 Credential=AKIA{SECRET}/eu, Signature={SECRET}')",
    f"Set-Cookie: session={SECRET}",
    f"x-api-key: {SECRET}",
    f"https://server/a;jsessionid={SECRET}",
    f"https:/user:{SECRET}@server/a.npy",
    f"https:\\/\\/user:{SECRET}@server\\/a.npy",
    f"https%3A%2F%2Fuser%3A{SECRET}%40server",
    f"https://server/a%3FX-Amz-Signature%3D{SECRET}",
    f"the proxy user:{SECRET}@proxy:3128 refused",
    f"sig={SECRET}%3D&se=2026-01-01",
    f"gl.npy(..., storage_options={{'key': '{SECRET}', 'secret': '{SECRET}'}})",
    f"gl.Remote('s3://a/b', password='{SECRET}')",
    f"{{'token': '{SECRET}', 'expires_at': None}}",
    f"<SecretAccessKey>{SECRET}</SecretAccessKey>",
    f"'private_key': '-----BEGIN PRIVATE KEY-----\\n{SECRET}\\n-----END PRIVATE KEY-----'",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_secret_is_taken_out(text: str) -> None:
    assert SECRET not in redact(text)
    assert "***" in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "/data/train@2/a=1:b.npy is missing",
        "s3://bucket/rows@2.npy?versionId=3HL4 changed",
        "https://server:9000/a@b:c.npy is missing",
        "abfss://container@account.dfs.core.windows.net/a.npy",
        "https://server/bucket?list-type=2&prefix=rows",
        "key = 3, the checksum is 0x8a3c: signature of the file; token 7",
        "ops[0]: Crop(height=48): field 'image'",
        "gl.csv('a.csv', dtypes={'token': 'int32', 'key': 'uint8'})",
        "field 'token': int64 [N]; field 'password': text; token=int32, key='000123'",
        "a password stands in the URL, https://user:password@server/",
        "c:/users/me@home/a.npy, 10:30@berlin, mail me@server:x",
        "the secret: none; policy=4, auth=1, cookies, an authorization",
    ],
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("HTTPS_PROXY", f"user:{SECRET}@proxy:9"),
        ("HTTPS_PROXY", f"http://:{SECRET}@proxy:9"),
        ("ALL_PROXY", f"{SECRET}@proxy"),
    ],
)
def test_secrets_of_the_environment_are_taken_out(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert SECRET not in redact(f"the library said {SECRET}, and {value}")


def test_a_long_text_takes_no_long_time() -> None:
    parts = ["http://", "a", "://a:b", "key='a' ", "%3a%2f%2f", "a-", "'token': 'x', ", "password="]
    begin_s = time.process_time()
    for part in parts:
        redact(part * (10_000 // len(part)) + " a=b://")
    assert (
        time.process_time() - begin_s < 4
    )  # one pattern whose time is the square of the length takes longer


def test_a_call_with_arguments_of_another_library_shows_no_secret() -> None:
    for arguments in (
        {"storage_options": {"key": SECRET, "secret": SECRET}},
        {"token": SECRET},
        {"secret_key": SECRET},
    ):
        with pytest.raises(TypeError) as caught:
            gl.npy("s3://bucket/a.npy", **arguments)
        assert SECRET not in str(caught.value) + repr(caught.value)


def test_errors_notes_and_the_log_have_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    error = FileError(TEXTS[0], cause=TEXTS[3], remedy=TEXTS[4]).within(TEXTS[0])
    assert SECRET not in str(error) + repr(error) + error.what + error.cause + error.remedy
    assert SECRET not in str(add_note(ValueError(), TEXTS[0]).__notes__)
    with caplog.at_level(logging.WARNING, "gpuload"):
        logging.getLogger("gpuload").warning("%s; remedy: %s", TEXTS[0], "chmod\x1b[2J")
    assert SECRET not in caplog.text
    assert "\x1b" not in caplog.text
    assert "chmod\\x1b[2J" in caplog.text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\nb\r", "a\\nb\\r"),
        ("a\x9bb", "a\\x9bb"),
        ("a\u202egpj.exe", "a\\u202egpj.exe"),
        ("a\u2066b\u2028", "a\\u2066b\\u2028"),
        ("a\udcffb", "a\\udcffb"),
        ("Käse 猫 \u0645 é🐈\\n", "Käse 猫 \u0645 é🐈\\n"),
    ],
)
def test_characters_that_steer_a_terminal_are_shown_as_in_repr(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_name_makes_no_lines_of_an_error() -> None:
    error = FileError("a\nremedy: rm -r /\x1b[8m", cause="b\nc", remedy="d\x07")
    assert str(error) == "a\\nremedy: rm -r /\\x1b[8m\n  cause:  b\\nc\n  remedy: d\\x07"
    assert error.cause == "b\nc"  # for programs


def test_names_of_fields_steer_no_terminal(tmp_path: Path) -> None:
    evil = "\x1b]0;title\x07\u202e\rno line"
    path = os.fspath(tmp_path / "a.parquet")
    pyarrow.parquet.write_table(pyarrow.table({evil: [1, 2, 3]}), path)
    source = gl.parquet(path)
    loader = gl.Loader(source, batch_size=2, device="cpu")
    [batch, _] = loader
    texts = [source.describe(), loader.describe(), str(loader.spec_out)]
    texts += [
        text
        for value in (source, batch, loader)
        for text in (repr(value), str(value), value._repr_html_())
    ]
    for text in texts:
        assert not {"\x1b", "\x07", "\u202e", "\r"} & set(text), text
    assert source.spec.names == (evil,)


def test_the_commands_show_names_as_they_are_in_repr_alone(tmp_path: Path) -> None:
    evil = "\x1b]0;title\x07\nno line: all is well"
    image = io.BytesIO()
    Image.new("RGB", (8, 8)).save(image, "JPEG")
    (tmp_path / f"{evil}cat").mkdir()
    for name, body in (("1.jpg", image.getvalue()), ("2.jpg", b"no image")):
        (tmp_path / f"{evil}cat" / name).write_bytes(body)
    for verb in ("check", "inspect"):
        command = [sys.executable, "-m", "gpuload", verb, os.fspath(tmp_path)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        shown = process.stdout + process.stderr
        assert "\x1b" not in shown
        assert "\nno line" not in shown
        assert "\\x1b]0;title" in shown
    [finding] = gl.check(os.fspath(tmp_path))
    assert evil in (finding.file or "")
