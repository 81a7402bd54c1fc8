"""Kept files: what is read back is what was written, or nothing; Python's binascii says which
checksums are right."""

from __future__ import annotations

import binascii
import json
import os
import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gpuload.errors import ChangedFileError
from gpuload.storage import keptfile, maps, open_storage
from gpuload.storage.extents import Extents

MADE_OF = ["test", 1]


@pytest.fixture
def blocks(monkeypatch):
    """Make blocks short."""
    monkeypatch.setattr(keptfile, "BLOCK_BYTES", 64)
    monkeypatch.setattr(keptfile, "PIECE_BLOCKS", 3)


@pytest.fixture(params=["maps", "positioned reads"])
def reader(request, monkeypatch):
    """Read from maps with the compiled core, and with positioned reads."""
    if request.param == "positioned reads":
        monkeypatch.setattr(maps, "supported", lambda: False)
    elif not maps.supported():
        pytest.skip("no compiled core on this system")


def bytes_of(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8).tobytes()


def write(path, content, made_of=MADE_OF, about=None):
    """Write a kept file in uneven pieces."""
    with keptfile.KeptWriter(str(path), made_of) as writer:
        begin, step = 0, 1
        while begin < len(content):
            writer.write(content[begin : begin + step])
            begin, step = begin + step, 3 * step + 1
        writer.end(about)
    return str(path)


def open_kept_file(path, *, eager=True, made_of=MADE_OF):
    return keptfile.open_kept_file(str(path), made_of, eager=eager)


def storage_of(file):
    files, _ = keptfile.look_at([file], 0, lambda *_: None)
    return open_storage(files)


def read(storage, offset, length):
    out = np.zeros(length, np.uint8)
    extents = Extents(*(np.array([number], np.int64) for number in (0, offset, length)))
    storage.read(extents, out, np.zeros(1, np.int64))
    return out.tobytes()


@pytest.mark.usefixtures("blocks", "reader")
@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 192, 1000])
@pytest.mark.parametrize("eager", [True, False])
def test_what_was_written_is_read_back(tmp_path, count, eager):
    content = bytes_of(count)
    path = write(tmp_path / "a", content, about={"rows": 3})

    file = open_kept_file(path, eager=eager)

    assert (file.content_bytes, file.about) == (count, {"rows": 3})
    assert file.seal.checksums.tolist() == [
        binascii.crc32(content[at : at + 64]) for at in range(0, count, 64)
    ]
    assert keptfile.read_kept_file(path, MADE_OF) == content
    assert file.read(count // 3, count - count // 3) == content[count // 3 :]
    assert read(storage_of(file), count // 3, count - count // 3) == content[count // 3 :]
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_of_something_else_it_is_not_used(tmp_path, caplog):
    path = write(tmp_path / "a", b"content")

    assert open_kept_file(path, made_of=["test", 2]) is None
    assert keptfile.read_kept_file(path, ["test", 2]) is None
    assert open_kept_file(tmp_path / "b") is None
    assert caplog.text == ""


@pytest.mark.usefixtures("blocks")
def test_no_byte_can_change_and_no_end_can_be_missing(tmp_path):
    content, path = bytes_of(300), tmp_path / "a"
    write(path, content)
    whole = path.read_bytes()
    for place in range(len(whole)):
        for changed in (
            whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :],
            whole[:place],
        ):
            path.write_bytes(changed)
            assert open_kept_file(path) is None
            assert keptfile.read_kept_file(str(path), MADE_OF) is None
    path.write_bytes(whole + b"\0")
    assert open_kept_file(path) is None


@pytest.mark.parametrize(
    ("content_bytes", "json_bytes"),
    [
        (1 << 62, 10),
        (-1, 10),
        (5, 1 << 62),
        (5, -1),
        (-(1 << 63), 0),
        ((1 << 63) - 1, (1 << 63) - 1),
        (0, 1 << 40),
    ],
)
def test_no_length_that_it_states_is_trusted(tmp_path, content_bytes, json_bytes):
    words = json.dumps({"made_of": MADE_OF, "about": None}).encode()
    checksum = binascii.crc32(words, binascii.crc32(struct.pack("<q", content_bytes)))
    (tmp_path / "a").write_bytes(
        b"12345" + words + keptfile.END.pack(keptfile.MAGIC, content_bytes, json_bytes, checksum)
    )

    assert open_kept_file(tmp_path / "a") is None


def test_a_link_and_what_is_no_file_are_not_used(tmp_path, caplog):
    path = write(tmp_path / "a", b"content")
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()

    for name in ("link", "pipe", "folder"):
        assert open_kept_file(tmp_path / name) is None
        assert keptfile.read_kept_file(str(tmp_path / name), MADE_OF) is None
        assert f"{name} is not used" in caplog.text
        assert not keptfile.is_ours(str(tmp_path / name))
    assert keptfile.is_ours(path)


def test_what_others_may_write_is_not_used_unless_that_is_meant(tmp_path, monkeypatch, caplog):
    path = write(tmp_path / "a", b"content")
    os.chmod(path, 0o602)

    assert open_kept_file(path) is None
    assert "its mode is 0602, so that other users may write to it" in caplog.text
    monkeypatch.setenv("GPULOAD_CACHE_SHARED", "1")
    assert open_kept_file(path) is not None
    monkeypatch.setenv("GPULOAD_CACHE_SHARED", "0")
    assert open_kept_file(path) is None


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid(), reason="root alone can give files away"
)
def test_what_another_user_wrote_is_not_used(tmp_path, caplog):
    path = write(tmp_path / "a", b"content")
    os.chown(path, 65534, 65534)

    assert open_kept_file(path) is None
    assert "it belongs to the user 65534" in caplog.text
    assert keptfile.read_kept_file(path, MADE_OF, owners=(65534,)) == b"content"


@pytest.mark.usefixtures("blocks", "reader")
def test_of_a_large_file_each_block_is_compared_before_it_is_first_read(tmp_path):
    content, path = bytes_of(64 * 100 + 7), tmp_path / "a"
    write(path, content)
    changed = bytearray(path.read_bytes())
    changed[64 * 50 + 3] ^= 1
    path.write_bytes(changed)
    file = open_kept_file(path, eager=False)
    storage = storage_of(file)

    assert read(storage, 64 * 7 + 60, 10) == content[64 * 7 + 60 : 64 * 7 + 70]
    assert np.flatnonzero(file.seal.good).tolist() == [0, 7, 8]
    assert read(storage, 64 * 51, 64 * 49 + 7) == content[64 * 51 :]
    with pytest.raises(
        ChangedFileError,
        match=r"a is damaged between byte 3200 and 3264(.|\n)*open the source again",
    ):
        read(storage, 64 * 49, 200)

    assert not path.exists()  # the next opening makes it anew


@pytest.mark.usefixtures("reader")
def test_once_compared_nothing_is_compared_again(tmp_path, monkeypatch):
    content = bytes_of(3 * keptfile.BLOCK_BYTES)
    storage = storage_of(open_kept_file(write(tmp_path / "a", content), eager=False))
    assert read(storage, 0, len(content)) == content
    monkeypatch.setattr(keptfile, "compare", None)

    assert read(storage, 5, 1000) == content[5:1005]


@pytest.mark.usefixtures("reader")
def test_threads_may_read_it_while_it_is_compared(tmp_path):
    content = bytes_of(40 * keptfile.BLOCK_BYTES + 11)
    storage = storage_of(open_kept_file(write(tmp_path / "a", content), eager=False))
    places = np.random.default_rng(1).integers(0, len(content) - 1000, 400).tolist()

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda place: read(storage, place, 1000), places))

    assert results == [content[place : place + 1000] for place in places]


def test_a_file_that_was_replaced_after_it_was_opened_is_an_error_and_not_called_damaged(
    tmp_path, caplog
):
    file = open_kept_file(write(tmp_path / "a", b"content"))
    write(tmp_path / "b", b"CONTENT")
    os.replace(tmp_path / "b", tmp_path / "a")

    with pytest.raises(ChangedFileError, match="another file stands in its place"):
        keptfile.look_at([file], 0, lambda *_: None)
    assert file.read(0, 7) is None
    assert caplog.text == ""


def test_files_of_the_user_and_kept_ones_are_looked_at_together(tmp_path):
    file = open_kept_file(write(tmp_path / "a", b"content"))
    (tmp_path / "b").write_bytes(b"plain")

    files, looks = keptfile.look_at(
        [file, str(tmp_path / "b")], 100, lambda path, size, head: (size, head)
    )

    assert looks == [(7, b"content"), (5, b"plain")]
    assert files.sizes.tolist() == [7, 5]


def test_a_file_that_is_there_is_not_written_to(tmp_path):
    (tmp_path / "a").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "victim")

    for name in ("a", "link"):
        with pytest.raises(FileExistsError):
            keptfile.KeptWriter(str(tmp_path / name), MADE_OF)

    assert (tmp_path / "a").read_text() == "mine"
    assert not (tmp_path / "victim").exists()
