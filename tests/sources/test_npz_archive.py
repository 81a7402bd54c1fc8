"""Archives: zipfile says what is in a good one; whatever else a file holds is refused in bounded
time and memory."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.errors import FormatError, GpuloadError
from gpuload.formats.npz.source import npz
from gpuload.storage import archive
from gpuload.storage.archive import Pieces
from tests.sources.npzfiles import archive_of, npy_header, packed_place, save, write_zip64

CONTENT = npy_header((3,)) + b"abc"


def members(path, *, head_bytes=4096):
    raw = path.read_bytes()
    with closing(Pieces(str(path), len(raw), raw[:head_bytes])) as pieces:
        result = archive.members(pieces)
        return {name: (archive.begin_of(pieces, member), member) for name, member in result.items()}


@given(
    named=st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=9),
        st.binary(max_size=300),
        max_size=5,
    ),
    method=st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
    comment=st.binary(max_size=60).filter(
        lambda comment: b"PK" not in comment
    ),  # zipfile would take it for the end
    head_bytes=st.sampled_from([0, 40, 4096]),
)
def test_a_good_archive_has_what_zipfile_finds(
    tmp_path_factory, named, method, comment, head_bytes
):
    path = tmp_path_factory.mktemp("zip") / "a.npz"
    with zipfile.ZipFile(path, "w", method) as content:
        for name, data in named.items():
            content.writestr(zipfile.ZipInfo(name), data, method)
        content.comment = comment
    with zipfile.ZipFile(path) as read:
        infos = read.infolist()

    result = members(path, head_bytes=head_bytes)

    assert list(result) == [info.orig_filename for info in infos]
    for info in infos:
        begin, member = result[info.orig_filename]
        assert (
            member.method,
            member.crc,
            member.packed_bytes,
            member.num_bytes,
            member.header_offset,
        ) == (
            *(info.compress_type, info.CRC, info.compress_size, info.file_size, info.header_offset),
        )
        if method == zipfile.ZIP_STORED:
            assert path.read_bytes()[begin : begin + member.num_bytes] == named[info.orig_filename]


def test_an_archive_that_was_written_to_a_pipe_is_read(tmp_path):
    """Such a one has the sizes behind the members, and none in the local headers."""

    class Pipe(io.RawIOBase):
        def __init__(self):
            self.raw = b""

        def writable(self):
            return True

        def write(self, data):
            self.raw += bytes(data)
            return len(data)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as content:
        content.writestr("x.npy", CONTENT)
    (tmp_path / "a.npz").write_bytes(pipe.raw)

    assert npz(tmp_path / "a.npz").read([2, 0])["x"].tolist() == [99, 97]
    assert npz(tmp_path / "a.npz", record="file").read([0])["x"].tolist() == [[97, 98, 99]]


def good(tmp_path):
    """Return an archive of two members as bytes that can be changed, and where its directory and
    end record begin."""
    path = save(tmp_path / "a.npz", x=np.arange(3), y=np.arange(3))
    raw = bytearray(path.read_bytes())
    end = raw.rindex(b"PK\5\6")
    return path, raw, struct.unpack_from("<I", raw, end + 16)[0], end


def refused(path, raw, match):
    path.write_bytes(raw)
    for record in ("row", "file"):
        with pytest.raises(FormatError, match=rf"a\.npz(.|\n)*{match}"):
            npz(path, record=record)


def put(raw, place, form, *values):
    struct.pack_into(form, raw, place, *values)


def test_an_encrypted_member_is_refused(tmp_path):
    path, raw, directory, _ = good(tmp_path)
    put(raw, directory + 8, "<H", 1)
    put(raw, 6, "<H", 1)

    refused(path, raw, r"member 'x\.npy' at byte 0, cannot be read(.|\n)*encrypted(.|\n)*password")


@pytest.mark.parametrize(
    ("method", "name"), [(12, "bzip2"), (14, "lzma"), (93, "zstd"), (77, "method 77")]
)
def test_members_packed_otherwise_are_refused_by_name(tmp_path, method, name):
    if method in (12, 14):
        path = tmp_path / "a.npz"
        with zipfile.ZipFile(path, "w", method) as content:
            content.writestr("x.npy", CONTENT)
        raw = path.read_bytes()
    else:
        path, raw, directory, _ = good(tmp_path)
        put(raw, directory + 10, "<H", method)

    refused(path, raw, rf"packed with {name}(.|\n)*numpy\.savez")


def test_two_members_of_one_name_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as content:
        content.writestr("x.npy", CONTENT)
        with pytest.warns(UserWarning, match="Duplicate name"):
            content.writestr("x.npy", CONTENT)

    refused(path, path.read_bytes(), r"two of its members are called 'x\.npy'")


def test_members_that_overlap_are_refused(tmp_path):
    path, raw, directory, _ = good(tmp_path)
    second = raw.index(b"PK\1\2", directory + 4)
    put(raw, second + 42, "<I", 0)  # both begin at byte 0
    refused(path, raw, r"overlaps the part that begins at byte 0")

    path, raw, directory, _ = good(tmp_path)
    put(raw, directory + 20, "<2I", 400, 400)  # x reaches into y
    refused(path, raw, r"member 'x\.npy', of 400 bytes from byte 0 on, overlaps")

    path, raw, directory, _ = good(tmp_path)
    put(raw, 28, "<H", 300)  # an extra field that pushes the bytes of x into y
    refused(path, raw, r"member 'x\.npy' at byte 0(.|\n)*overlap")


@pytest.mark.parametrize(
    ("place", "form", "value", "match"),
    [
        (0, "<I", 0x04034B51, "no local header is there, but 51 4b 03 04"),
        (8, "<H", 8, "its local header is that of 'x.npy' of method 8"),
        (30, "<c", b"z", r"its local header is that of 'z\.npy' of method 0"),
        (26, "<H", 4, "its local header is that of 'x.np'"),
        (14, "<I", 5, "its local header says .* with the check sum 00000005"),
        (18, "<I", 5, "its local header says 5 bytes"),
        (22, "<I", 5, "bytes that become 5 "),
    ],
)
def test_a_local_header_that_says_something_else_is_refused(tmp_path, place, form, value, match):
    path, raw, _, _ = good(tmp_path)
    put(raw, place, form, value)

    refused(path, raw, match)


@pytest.mark.parametrize(
    ("place", "form", "value", "match"),
    [
        (4, "<H", 1, "several files"),
        (6, "<H", 2, "several files"),
        (10, "<H", 1, "its end says that it has 1 members, its directory has 2"),
        (10, "<H", 3, "its end says that it has 3 members, its directory has 2"),
        (12, "<I", 1, "its directory has 1 bytes from byte"),
        (16, "<I", 1, "bytes from byte 1 on, and it ends at byte"),
        (12, "<I", 2**32 - 1, "ZIP64's locator is not before byte"),
        (16, "<I", 2**32 - 1, "ZIP64's locator is not before byte"),
        (20, "<H", 1, "no directory at its end"),
        (0, "<I", 7, "no directory at its end"),
    ],
)
def test_an_end_that_lies_is_refused(tmp_path, place, form, value, match):
    path, raw, _, end = good(tmp_path)
    put(raw, end + place, form, value)

    refused(path, raw, match)


@pytest.mark.parametrize(
    ("place", "form", "value", "match"),
    [
        (0, "<I", 0, "should be an entry of its directory"),
        (28, "<H", 0xFFFF, "the last entry of its directory does not fit"),
        (42, "<I", 7, "overlaps|no local header"),
        (42, "<I", 2**32 - 1, "overlaps"),
        (24, "<I", 9, "cannot become 9"),
        (16, "<I", 9, "check sum"),
    ],
)
def test_an_entry_that_lies_is_refused(tmp_path, place, form, value, match):
    path, raw, directory, _ = good(tmp_path)
    put(raw, directory + place, form, value)
    if place in (24, 16):
        put(raw, {24: 22, 16: 14}[place], form, value)  # and the local header says the same
        if place == 16:
            path.write_bytes(raw)
            with pytest.raises(GpuloadError, match=match):
                npz(path, record="file").read([0])
            return

    refused(path, raw, match)


@pytest.mark.parametrize(
    ("place", "form", "value", "match"),
    [
        (-22 - 20 + 8, "<Q", 2**63, f"end record is not at byte {2**63}"),
        (-22 - 20 + 8, "<Q", 3, "end record is not at byte 3"),
        (-22 - 20 - 56 + 40, "<Q", 2**63, "its directory has"),
        (-22 - 20 - 56 + 48, "<Q", 2**63, "its directory has"),
        (-22 - 20 - 56 + 32, "<Q", 2**40, f"has {2**40} members"),
        (-22 - 20 - 56 + 16, "<I", 1, "several files"),
    ],
)
def test_records_of_zip64_that_lie_are_refused(tmp_path, place, form, value, match):
    path = tmp_path / "a.npz"
    write_zip64(path, [(b"x.npy", CONTENT, 0, b"")])
    raw = bytearray(path.read_bytes())
    put(raw, len(raw) + place, form, value)

    refused(path, raw, match)


def test_bytes_before_the_archive_are_refused(tmp_path):
    path, raw, _, _ = good(tmp_path)

    refused(path, b"#!/bin/sh\n" + bytes(raw), "it ends at byte")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "the file is empty"),
        (b"\x93NUMPY", "begins with 50 4b 03 04, this one with 93 4e 55 4d(.|\n)*gl.open"),
        (b"PK\3\4" + bytes(100), "no directory at its end(.|\n)*cut short"),
        (b"PK\5\6" + bytes(18), "holds no array"),
        (bytes(200_000), "this one with 00 00 00 00"),
    ],
)
def test_what_is_no_archive_is_refused(tmp_path, content, match):
    refused(tmp_path / "a.npz", content, match)


def test_a_claim_of_a_huge_directory_takes_no_memory(tmp_path):
    path = tmp_path / "a.npz"
    length = 1 << 36
    with open(path, "wb") as file:
        file.truncate(length)
        file.seek(length)
        file.write(struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, 10**9, 10**9, length, 0))
        file.write(struct.pack("<4sIQI", b"PK\6\7", 0, length, 1))
        file.write(
            struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 2**32 - 1, 2**32 - 1, 0)
        )
    tracemalloc.start()

    with pytest.raises(FormatError, match=f"directory of {length} bytes is longer than"):
        npz(path)

    assert tracemalloc.get_traced_memory()[1] < 1 << 22
    tracemalloc.stop()


def test_a_comment_that_looks_like_an_end_hides_nothing(tmp_path):
    path = save(tmp_path / "a.npz", x=np.arange(3))
    with zipfile.ZipFile(path, "a") as content:
        content.comment = (
            struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0, 0, 0, 0, 99) + b"PK\5\6" * 16_000
        )

    assert npz(path).read([0, 1])["x"].tolist() == [0, 1]


def test_a_member_that_is_damaged_is_named_with_its_place(tmp_path):
    path = save(tmp_path / "a.npz", x=np.arange(3), y=np.arange(3))
    begin, _ = packed_place(path, "y.npy")
    raw = bytearray(path.read_bytes())
    raw[begin] ^= 1

    refused(path, raw, r"member 'y\.npy', is no NPY file to read(.|\n)*begins with(.|\n)*fields=")


@given(data=st.data())
def test_no_mutation_of_an_archive_gives_anything_but_an_error_of_ours_or_arrays(
    tmp_path_factory, data
):
    folder = tmp_path_factory.mktemp("mutated")
    path = folder / "a.npz"
    if data.draw(st.booleans()):
        save(path, deflated=data.draw(st.booleans()), x=np.arange(40), y=np.zeros((40, 2)))
    else:
        write_zip64(path, [(b"x.npy", CONTENT, 0, b""), (b"y.npy", CONTENT, 0, b"")])
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(raw) - 1))
        part = data.draw(
            st.sampled_from([b"\xff\xff\xff\xff", b"\0", b"PK\5\6", b"PK\1\2", b"\xff" * 8])
            | st.binary(max_size=4)
        )
        raw[place : place + len(part)] = part
    path.write_bytes(raw)

    for record in ("row", "file"):
        try:
            with npz(path, record=record) as source:
                source.read(range(min(len(source), 3)))
        except GpuloadError as error:
            assert error.cause or error.remedy  # noqa: PT017 - of each example


def test_an_empty_member_of_any_size_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(archive_of(b"", 0, method=0))

    refused(path, path.read_bytes(), "the file is empty")
