"""Compressed files are unpacked once, checked and within bounds; Python's gzip and zlib say what
must come out."""

from __future__ import annotations

import gzip
import logging
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.errors import ChangedFileError, FileError, FormatError, MissingFileError, SpecError
from gpuload.storage import inflate, keptfile
from gpuload.storage.inflate import is_gzip
from gpuload.storage.unpack import unpack_files, with_names

ROOT = Path(__file__).parents[2]
SECONDS = 60


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("GPULOAD_CACHE", str(folder))
    return folder


def write(path, content):
    path.write_bytes(content)
    return str(path)


def path_of(place):
    return place.path if isinstance(place, keptfile.KeptFile) else place


def contents(places):
    return [
        Path(place).read_bytes()
        if isinstance(place, str)
        else Path(place.path).read_bytes()[: place.content_bytes]
        for place in places
    ]


def text_of(length, seed=0):
    """Return bytes that shrink to about half."""
    return bytes(random.Random(seed).choices(range(16), k=length))


def test_packed_files_are_copies_and_others_stand_for_themselves(tmp_path, cache):
    texts = [text_of(100_000), b"plain", b"", text_of(3_000_000, seed=1)]
    paths = [
        write(tmp_path / "a.gz", gzip.compress(texts[0])),
        write(tmp_path / "b.bin", texts[1]),
        write(tmp_path / "empty.gz", texts[2]),
        write(tmp_path / "without its suffix", gzip.compress(texts[3])),
    ]

    places = unpack_files(paths)

    assert contents(places) == texts
    assert places[1:3] == paths[1:3]
    assert [os.path.dirname(path_of(places[number])) for number in (0, 3)] == [str(cache)] * 2
    assert [os.path.basename(path_of(places[number])).partition("-")[2] for number in (0, 3)] == [
        "a",
        "without its suffix",
    ]


def test_files_that_are_not_compressed_cost_no_cache(tmp_path, cache):
    paths = [
        write(tmp_path / "a", b"a"),
        write(tmp_path / "b", b"\x1f\x8b\x08\xe0 reserved flags: no gzip"),
    ]

    assert unpack_files(paths) == paths
    assert os.listdir(cache) == []


def test_a_copy_is_made_once_and_the_log_says_where(tmp_path, cache, caplog):
    caplog.set_level(logging.INFO, "gpuload")
    path = write(tmp_path / "a.gz", gzip.compress(b"text"))

    first = unpack_files([path])
    wrote = [message for message in caplog.messages if message.startswith("wrote")]
    caplog.clear()
    second = unpack_files([path])

    assert path_of(first[0]) == path_of(second[0])
    assert len(wrote) == 1
    assert path_of(first[0]) in wrote[0]
    assert caplog.messages == [f"1 of 1 files are compressed; their unpacked copies are in {cache}"]


def test_a_file_that_changed_is_unpacked_anew(tmp_path):
    path = write(tmp_path / "a.gz", gzip.compress(b"text"))
    before = unpack_files([path])
    write(tmp_path / "a.gz", gzip.compress(b"tex2"))

    after = unpack_files([path])

    assert contents(before + after) == [b"text", b"tex2"]


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
@given(
    members=st.lists(
        st.tuples(st.binary(max_size=2000), st.integers(1, 300)), min_size=1, max_size=6
    ),
    zeros=st.integers(0, 5000),
    sizes=st.sampled_from([(1, 7, 5), (1000, 1 << 16, 1 << 20), (64, 64, 64)]),
)
def test_any_members_give_what_python_unpacks_them_to(
    tmp_path_factory, kind, members, zeros, sizes
):
    pack = gzip.compress if kind == "gzip" else zlib.compress
    path = write(
        tmp_path_factory.mktemp("u") / "a",
        b"".join(pack(text * many) for text, many in members) + bytes(zeros),
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, size in zip(("FIRST_BYTES", "IN_BYTES", "OUT_BYTES"), sizes, strict=True):
            patch.setattr(inflate, name, size)

        [place] = unpack_files([path], kind)

    assert contents([place]) == [b"".join(text * many for text, many in members)]


def test_a_file_of_very_many_members_takes_time_for_each_and_no_more(tmp_path):
    path = write(
        tmp_path / "a.gz", gzip.compress(b"x") * 20_000 + bytes(3_000_000) + gzip.compress(b"end")
    )
    began = time.process_time()

    places = unpack_files([path])

    assert contents(places) == [b"x" * 20_000 + b"end"]
    assert (
        time.process_time() - began < 10
    )  # some 0.3 s; to copy what follows each member would take minutes


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_a_file_that_was_cut_short_is_refused_wherever_it_was(tmp_path, cache, kind):
    whole = (gzip.compress if kind == "gzip" else zlib.compress)(text_of(300))
    for length in range(4, len(whole)):
        path = write(tmp_path / "a.gz", whole[:length])

        with pytest.raises(FormatError, match=rf"a\.gz ends at byte {length}, .* begins at byte 0"):
            unpack_files([path], kind)

    path = write(tmp_path / "b.gz", whole + whole[:-1])
    with pytest.raises(
        FormatError, match=rf"b\.gz ends at byte {2 * len(whole) - 1}, .* byte {len(whole)}\n"
    ):
        unpack_files([path], kind)
    assert os.listdir(cache) == []


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_no_changed_byte_gives_other_content(tmp_path, kind):
    text = text_of(200)
    whole = (gzip.compress if kind == "gzip" else zlib.compress)(text)
    error = 0
    for place in range(len(whole)):
        for bit in (0, 3, 7):
            changed = bytearray(whole)
            changed[place] ^= 1 << bit
            path = write(tmp_path / "a.gz", changed)
            try:
                result = contents(unpack_files([path], kind))
            except FormatError:
                error += 1
            else:
                assert result == [text]  # a byte of the header that says nothing about the content
    assert error > 2.5 * (len(whole) - 12)


def test_a_wrong_check_sum_and_a_wrong_length_are_told_with_the_bytes_they_are_of(tmp_path):
    first, second = gzip.compress(text_of(300)), gzip.compress(text_of(300, seed=1))
    end = len(first) + len(second)
    sum_changed = first + second[:-8] + b"\0\0\0\0" + second[-4:]
    length_changed = first + second[:-4] + b"\1\2\3\4"

    for changed, cause in ((sum_changed, "check sum"), (length_changed, "length")):
        path = write(tmp_path / "a.gz", changed)
        with pytest.raises(
            FormatError, match=rf"damaged between byte {len(first)} and {end}\n(.|\n)*{cause}"
        ):
            unpack_files([path])


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
@pytest.mark.parametrize("zeros", [0, 3, 100_000])
@pytest.mark.parametrize("garbage", [b"garbage", b"\x1f", b"\x1f\x8b\x08", b"\x78", b"\x78\x9d"])
def test_what_follows_the_last_stream_is_refused_with_its_place(tmp_path, kind, zeros, garbage):
    whole = (gzip.compress if kind == "gzip" else zlib.compress)(b"text")
    path = write(tmp_path / "it's a.gz", whole + bytes(zeros) + garbage)
    at = len(whole) + zeros

    with pytest.raises(
        FormatError, match=rf"from byte {at} to {at + len(garbage)}(.|\n)*head -c {at}"
    ):
        unpack_files([path], kind)


def test_what_grows_like_a_bomb_is_refused_and_nothing_of_it_stays(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(inflate, "ALLOWED_BYTES", 1 << 22)
    small = write(
        tmp_path / "small.gz", gzip.compress(bytes(1 << 22))
    )  # 1,000 times its size, but little
    bomb = write(tmp_path / "bomb.gz", gzip.compress(bytes((1 << 22) + 1)))

    assert [len(text) for text in contents(unpack_files([small]))] == [1 << 22]
    with pytest.raises(
        FormatError,
        match=r"bomb\.gz has(.|\n)*limit is(.|\n)*GPULOAD_EXPANSION=1032(.|\n)*gunzip -c",
    ):
        unpack_files([bomb])
    assert len(os.listdir(cache)) == 1


def test_the_limit_is_raised_by_the_user_who_trusts_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(inflate, "ALLOWED_BYTES", 1 << 22)
    monkeypatch.setenv("GPULOAD_EXPANSION", "1032")
    path = write(tmp_path / "a.gz", gzip.compress(bytes(1 << 23)))

    assert [len(text) for text in contents(unpack_files([path]))] == [1 << 23]


@pytest.mark.parametrize("text", ["many", "-1", "1.5", "9" * 5000, "²"])
def test_a_limit_that_is_no_number_is_refused(tmp_path, monkeypatch, text):
    monkeypatch.setenv("GPULOAD_EXPANSION", text)

    with pytest.raises(SpecError, match=r"GPULOAD_EXPANSION=.*\n.*whole number"):
        unpack_files([write(tmp_path / "a.gz", gzip.compress(b"text"))])


def test_what_would_fill_the_disk_is_refused_and_nothing_of_it_stays(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1_000_000))
    path = write(tmp_path / "a.gz", gzip.compress(text_of(900_001)))

    with pytest.raises(
        FileError, match=r"a\.gz needs more than 900001 bytes(.|\n)*90%(.|\n)*GPULOAD_CACHE"
    ):
        unpack_files([path])
    assert os.listdir(cache) == []


def test_the_first_file_that_is_damaged_is_told_and_the_good_ones_before_it_are_kept(
    tmp_path, cache
):
    good = gzip.compress(text_of(1000))
    paths = [write(tmp_path / f"{number}.gz", good) for number in range(4)]
    paths[2:2] = [write(tmp_path / "bad.gz", good[:-1]), write(tmp_path / "worse.gz", good[:-2])]

    with pytest.raises(FormatError, match=r"bad\.gz ends at byte"):
        unpack_files(paths)
    assert {name.partition("-")[2] for name in os.listdir(cache)} >= {"0", "1"}


def test_a_file_that_changes_while_it_is_unpacked_is_an_error(tmp_path, cache, monkeypatch):
    path = write(tmp_path / "a.gz", gzip.compress(b"text"))
    pieces = inflate.inflate_chunk

    def changing(stream, chunk):
        with open(path, "ab") as file:
            file.write(bytes(10))
        return pieces(stream, chunk)

    monkeypatch.setattr(inflate, "inflate_chunk", changing)

    with pytest.raises(ChangedFileError, match=r"a\.gz changed"):
        unpack_files([path])
    assert os.listdir(cache) == []


def test_gzip_is_asked_for_by_name(tmp_path):
    paths = [
        write(tmp_path / "a.gz", gzip.compress(b"text")),
        write(tmp_path / "b.gz", b"raw bytes"),
    ]

    with pytest.raises(FormatError, match=r"b\.gz is not compressed with gzip(.|\n)*72 61 77 20"):
        unpack_files(paths, "gzip")


def test_zlib_that_is_none_says_so(tmp_path):
    path = write(tmp_path / "a.zz", b"raw bytes")

    with pytest.raises(
        FormatError, match=r"a\.zz is damaged(.|\n)*incorrect header check(.|\n)*with zlib at all"
    ):
        unpack_files([path], "zlib")


@pytest.mark.parametrize("compression", ["bz2", None, 3, "GZIP"])
def test_another_compression_is_refused(tmp_path, compression):
    with pytest.raises(SpecError, match="compression = "):
        unpack_files([write(tmp_path / "a", b"")], compression)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(MissingFileError, match=r"a\.gz is missing"):
        unpack_files([str(tmp_path / "a.gz")])


def test_long_names_and_names_that_are_no_text_are_kept_short(tmp_path):
    name = os.fsdecode(b"\xff" * 100)
    paths = [
        write(tmp_path / ("ä" * 120 + ".gz"), gzip.compress(b"long")),
        write(tmp_path / name, gzip.compress(b"no text")),
    ]

    assert contents(unpack_files(paths)) == [b"long", b"no text"]


def test_files_are_called_by_the_names_of_what_they_were_unpacked_from(tmp_path, cache):
    originals = [write(tmp_path / "a.gz", gzip.compress(b"text"))]
    files, _ = keptfile.look_at(unpack_files(originals), 0, lambda *_: None)

    called = with_names(files, originals)

    assert called.names == ("a.gz",)
    assert called.paths == files.paths
    assert called.digest() != files.digest()


@pytest.mark.parametrize(
    "beginning", [b"", b"\x1f\x8b\x08", b"\x1f\x8b\x07\x00", b"\x1f\x8b\x08\x20", b"PK\3\4"]
)
def test_what_begins_otherwise_is_no_gzip(beginning):
    assert not is_gzip(beginning)
    assert is_gzip(gzip.compress(b""))


def script(code, *arguments):
    lines = ["import os, sys", "from gpuload.storage.unpack import unpack_files", code]
    return [sys.executable, "-c", "\n".join(lines), *map(str, arguments)]


def test_memory_is_bounded_whatever_it_unpacks_to(tmp_path):
    path = write(tmp_path / "a.gz", gzip.compress(bytes(100_000_000), 1))
    small = write(tmp_path / "b.gz", gzip.compress(b"text"))
    code = """
import resource
unpack_files([sys.argv[2]])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert unpack_files([sys.argv[1]])[0].content_bytes == 100_000_000
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    process = subprocess.run(
        script(code, path, small),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
        cwd=ROOT,
    )

    assert int(process.stdout) < 8_000  # KiB


@pytest.mark.parametrize("num_files", [1, 3])
def test_ctrl_c_ends_it_soon_and_leaves_nothing(tmp_path, cache, num_files):
    packed_bytes = gzip.compress(bytes(50_000_000), 1) * 80  # 10 s of processor time and more
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    paths = [write(tmp_path / f"{number}.gz", packed_bytes) for number in range(num_files)]
    code = """
try:
    unpack_files(sys.argv[1:])
except KeyboardInterrupt:
    print("interrupted")
"""
    process = subprocess.Popen(script(code, *paths), stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        until = time.monotonic() + SECONDS
        while not any(".part-" in name for name in os.listdir(cache)):
            assert time.monotonic() < until
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=SECONDS)
    finally:
        process.kill()

    assert out == "interrupted\n"
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before.ru_utime < 6
    assert os.listdir(cache) == []
