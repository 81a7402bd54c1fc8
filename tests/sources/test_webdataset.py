"""WebDataset archives give what tarfile and WebDataset's own writer put into them; damaged tars
name the byte."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import ChangedFileError, FormatError, MissingFileError, RecordError, SpecError
from gpuload.formats.webdataset import tar
from gpuload.formats.webdataset.members import KIND, Members, _pack
from gpuload.sources import fileindex
from gpuload.storage import keptfile
from gpuload.storage.files import look_at
from gpuload.testing.sources import SourceContract

GOLDEN = Path(__file__).parents[1] / "golden" / "webdataset"
COUNT = 9


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path_factory.mktemp("cache")))


def npy(array):
    np.save(file := io.BytesIO(), array)
    return file.getvalue()


def members(numbers, factor=1):
    """Yield names and bytes of the members of records."""
    for n in numbers:
        yield f"./set/{n:03d}.cls", f"{n * factor}\n".encode()
        yield f"./set/{n:03d}.txt", f"tèxt {n}".encode()
        yield f"./set/{n:03d}.bin", bytes(range(n))
        yield f"./set/{n:03d}.npy", npy(np.arange(6, dtype="f4").reshape(2, 3).T + n)


def write(path, content, form=tarfile.USTAR_FORMAT):
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w", format=form) as archive:
        for name, raw in content:
            member = tarfile.TarInfo(name)
            member.size = len(raw)
            archive.addfile(member, io.BytesIO(raw))
    return path


@pytest.mark.usefixtures("reader")
class TestArchives(SourceContract):
    form = tarfile.USTAR_FORMAT

    def open(self, folder):
        write(folder / "a-08.tar", members(range(4)), self.form)
        write(folder / "a-09.tar", members(range(4, COUNT)), self.form)
        return gl.webdataset(f"{folder}/a-{{08..09}}.tar")

    def open_other(self, folder):
        write(folder / "a.tar", members(range(COUNT), factor=2), self.form)
        return gl.webdataset(folder / "a.tar")

    def expected(self):
        return {
            "cls": np.arange(COUNT),
            "txt": np.array([f"tèxt {n}" for n in range(COUNT)], object),
            "bin": [np.arange(n, dtype=np.uint8) for n in range(COUNT)],
            "npy": np.stack([np.arange(6, dtype="f4").reshape(2, 3).T + n for n in range(COUNT)]),
        }


def test_what_the_writer_of_webdataset_wrote_is_read_from_gzip():
    with gl.open(GOLDEN / "writer.tar.gz") as source:
        fields = source.read([4, 1])
        where = source.where(4)

    assert fields["cls"].tolist() == [0, 1]
    assert fields["txt"].tolist() == ["tèxt 4", "tèxt 1"]
    assert fields["npy"][0].tolist() == [[4, 5, 6], [7, 8, 9]]
    assert fields["json"][1] == '{"a": 1}'
    assert (gl.ops.Decode().decode_file(fields["png"][0]) == 4).all()
    assert where == "writer.tar.gz, record 4"


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_of_gnu_and_pax_are_read(tmp_path, form):
    names = [f"{'folder é/' * 30}{n:0200d}.cls" for n in range(3)]
    path = write(tmp_path / "a.tar", [(name, b"%d" % n) for n, name in enumerate(names)], form)

    with gl.open(path) as source:
        assert source.read([2, 0])["cls"].tolist() == [2, 0]


def test_folders_links_and_hidden_members_are_passed_over(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, kind in (
            ("set", tarfile.DIRTYPE),
            ("set/0.lnk", tarfile.SYMTYPE),
            ("set/.0.cls", tarfile.REGTYPE),
        ):
            member = tarfile.TarInfo(name)
            member.type = kind
            archive.addfile(member)
        member = tarfile.TarInfo("set/0.cls")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"7"))

    with gl.webdataset(tmp_path / "a.tar") as source:
        assert source.read([0])["cls"].tolist() == [7]


def test_fields_are_those_that_were_asked_for(tmp_path):
    path = write(tmp_path / "a.tar", [*members(range(2)), ("x/2.CLS", b"5"), ("x/2.txt", b"a")])

    assert gl.webdataset(path, ["txt", "cls"]).read([2, 0])["cls"].tolist() == [5, 0]
    with pytest.raises(SpecError, match=r"a\.tar: x/2 has no 'bin'(.|\n)*fields=(.|\n)*tar -xf"):
        gl.webdataset(path)
    with pytest.raises(SpecError, match=r"a\.tar: set/000 has no 'jpg'"):
        gl.webdataset(path, ["jpg"])
    with pytest.raises(SpecError, match="it is a list of extensions"):
        gl.webdataset(path, "cls")


def test_a_field_that_a_later_record_has_besides_is_refused(tmp_path):
    path = write(tmp_path / "a.tar", [("0.cls", b"1"), ("1.cls", b"2"), ("1.txt", b"a")])

    with pytest.raises(SpecError, match=r"a\.tar: 1 has also 'txt'"):
        gl.webdataset(path)


def test_of_two_records_with_other_fields_the_first_is_named(tmp_path):
    names = ["0.cls", "0.txt", "1.cls", "2.cls", "2.bin"]
    path = write(tmp_path / "a.tar", [(name, b"1") for name in names])

    with pytest.raises(SpecError, match=r"a\.tar: 1 has no 'txt'"):
        gl.webdataset(path)


@pytest.mark.parametrize("content", [b"seven", b"", b"9" * 30])
def test_a_class_that_is_no_number_is_an_error_of_its_record(tmp_path, content):
    path = write(tmp_path / "a.tar", [("0.cls", b"1"), ("1.cls", content)])

    with gl.webdataset(path) as source:
        assert source[0]["cls"] == 1
        with pytest.raises(RecordError, match=r"a\.tar, record 1, byte 1536: field 'cls' holds"):
            source[1]


def test_an_array_of_another_dtype_is_an_error_of_its_record(tmp_path):
    path = write(
        tmp_path / "a.tar", [("0.npy", npy(np.zeros(3))), ("1.npy", npy(np.zeros(3, "f4")))]
    )

    with (
        gl.webdataset(path) as source,
        pytest.raises(
            RecordError, match=r"record 1.*float32 \(3,\), another array than float64 \(3,\)"
        ),
    ):
        source[1]


def test_braces_count_upwards_and_name_files_that_must_be_there(tmp_path):
    with pytest.raises(SpecError, match=r"\{9\.\.0\}(.|\n)*counts upwards"):
        gl.webdataset(f"{tmp_path}/{{9..0}}.tar")
    with pytest.raises(MissingFileError, match=r"a-007\.tar is missing"):
        gl.webdataset(f"{tmp_path}/a-{{007..008}}.tar")


def test_a_member_that_a_record_has_twice_is_refused(tmp_path):
    path = write(
        tmp_path / "a.tar", [("0.cls", b"1"), ("1.cls", b"2"), ("1.txt", b"a"), ("1.cls", b"3")]
    )

    with pytest.raises(SpecError, match=r"a\.tar: 1 has 'cls' twice"):
        gl.webdataset(path, ["cls"])


def change(path, place, raw, *, is_checked):
    """Overwrite bytes of the first header, and its checksum if it is to be right."""
    content = bytearray(path.read_bytes())
    content[place : place + len(raw)] = raw
    if is_checked:
        content[148:156] = b" " * 8
        content[148:156] = b"%06o\0 " % sum(content[:512])
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("place", "raw", "is_checked", "message"),
    [
        (0, b"X", False, "its header has the sum"),
        (124, b"77777777777\0", True, r"a member has 8589934591 bytes"),
        (124, b"\x80" + b"\x7f" * 11, True, r"a member has \d+ bytes"),
        (124, b"\xff" * 12, True, r"a member has -1 bytes"),
        (124, b"9z", True, "a number of its header is"),
        (156, b"S", True, "sparse"),
        (156, b"x", True, "PAX records are damaged"),
    ],
)
def test_a_damaged_header_is_refused_with_its_byte(tmp_path, place, raw, is_checked, message):
    path = write(tmp_path / "a.tar", members(range(2)))
    change(path, place, raw, is_checked=is_checked)

    with pytest.raises(
        FormatError,
        match=rf"a\.tar, byte 0: this tar archive (cannot be read|is not supported)(.|\n)*{message}",
    ):
        gl.webdataset(path)


@pytest.mark.parametrize("keep", [700, 513, 1500])
def test_an_archive_that_is_cut_short_is_refused(tmp_path, keep):
    path = write(tmp_path / "a.tar", [("0.bin", bytes(600)), ("1.bin", bytes(600))])
    path.write_bytes(path.read_bytes()[:keep])

    with pytest.raises(FormatError, match=r"a\.tar, byte (0|1536)"):
        gl.webdataset(path)


def test_other_data_and_an_empty_archive_are_refused(tmp_path):
    (tmp_path / "a.tar").write_bytes(bytes(range(256)) * 8)
    (tmp_path / "b.tar").write_bytes(bytes(10240))
    (tmp_path / "c.tar").write_bytes(gzip.compress(bytes(range(256)) * 8))

    for name in "ac":
        with pytest.raises(FormatError, match=rf"{name}\.tar"):
            gl.webdataset(tmp_path / f"{name}.tar")
    with pytest.raises(SpecError, match="holds no file"):
        gl.webdataset(tmp_path / "b.tar")


def test_an_archive_with_other_bytes_behind_its_end_is_refused(tmp_path):
    path = write(tmp_path / "a.tar", members(range(2)))
    path.write_bytes(path.read_bytes() + b"the end")

    with pytest.raises(FormatError, match="something else follows"):
        gl.webdataset(path)


def test_an_archive_that_changes_is_noticed(tmp_path, reader):
    source = gl.webdataset(write(tmp_path / "a.tar", members(range(3))))
    write(tmp_path / "a.tar", members(range(4)))

    with pytest.raises(ChangedFileError, match=r"a\.tar changed"):
        source[0]


@pytest.mark.parametrize("num_bytes", [100, 100_000])
def test_members_are_found_in_pieces_and_one_by_one(tmp_path, monkeypatch, num_bytes):
    monkeypatch.setattr(tar, "PIECE_BYTES", 3000)
    monkeypatch.setattr(tar, "SPARSE_BYTES", 10_000)
    path = write(tmp_path / "a.tar", [(f"{n}.bin", bytes([n]) * num_bytes) for n in range(30)])

    with gl.webdataset(path) as source:
        assert [source[n]["bin"].tobytes() for n in range(30)] == [
            bytes([n]) * num_bytes for n in range(30)
        ]


class TestIndex:
    @pytest.fixture(autouse=True)
    def every_file(self, monkeypatch):
        """Keep an index of small archives, too; count the walks."""
        monkeypatch.setattr(fileindex, "SMALL_BYTES", 0)
        self.walks, walk = [], tar.walk
        monkeypatch.setattr(tar, "walk", lambda *value: self.walks.append(value) or walk(*value))

    def test_an_archive_is_walked_through_once(self, tmp_path):
        write(tmp_path / "a-1.tar", members(range(3)))
        write(tmp_path / "a-2.tar", members(range(3, 5)))
        sources = [gl.webdataset(f"{tmp_path}/a-*.tar") for _ in range(3)]

        assert [source.read(range(5))["cls"].tolist() for source in sources] == [
            [0, 1, 2, 3, 4]
        ] * 3
        assert len({source.fingerprint() for source in sources}) == 1
        assert len(self.walks) == 2
        assert (tmp_path / ".a-2.tar.gpuload-index").exists()

    def test_the_index_serves_other_fields(self, tmp_path):
        path = write(tmp_path / "a.tar", members(range(3)))
        gl.webdataset(path)

        assert gl.webdataset(path, ["txt", "cls"]).read([1])["txt"].tolist() == ["t\u00e8xt 1"]
        assert len(self.walks) == 1

    def test_errors_of_a_record_name_it_as_without(self, tmp_path):
        path = write(tmp_path / "a.tar", [*members(range(2)), ("x/2.cls", b"5")])
        gl.webdataset(path, ["cls"])

        with pytest.raises(SpecError, match=r"a\.tar: x/2 has no 'txt'"):
            gl.webdataset(path)

    def test_an_archive_of_gzip_has_its_index_in_the_cache_folder(self, tmp_path):
        path = write(tmp_path / "a.tar.gz", members(range(3)))

        for _ in range(2):
            assert gl.webdataset(path).read(range(3))["cls"].tolist() == [0, 1, 2]

        assert len(self.walks) == 1
        assert os.listdir(tmp_path) == ["a.tar.gz"]

    def test_the_index_of_an_archive_that_changed_is_made_anew(self, tmp_path):
        path = write(tmp_path / "a.tar", members(range(3)))
        gl.webdataset(path)
        write(path, members(range(4), factor=2))

        assert gl.webdataset(path).read(range(4))["cls"].tolist() == [0, 2, 4, 6]

    def test_a_damaged_index_is_made_anew(self, tmp_path):
        path = write(tmp_path / "a.tar", members(range(3)))
        gl.webdataset(path)
        index = tmp_path / ".a.tar.gpuload-index"
        data = bytearray(index.read_bytes())
        data[70] ^= 1
        index.write_bytes(data)

        assert gl.webdataset(path).read(range(3))["cls"].tolist() == [0, 1, 2]
        assert len(self.walks) == 2

    def test_a_damaged_archive_has_no_index(self, tmp_path):
        path = write(tmp_path / "a.tar", members(range(2)))
        change(path, 0, b"X", is_checked=False)

        for _ in range(2):
            with pytest.raises(FormatError, match="its header has the sum"):
                gl.webdataset(path)
        assert os.listdir(tmp_path) == ["a.tar"]

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("offsets", [-1, 1536]), ("offsets", [2**62, 1536]), ("lengths", [-1, 1]), ("lengths", [1, 2**62]),
            ("lengths", [20_000, 1]), ("field_of", [0, 7]), ("is_first", [0, 1]), ("is_first", [1, 2]),
            ("fields", ["cls", "cls"]), ("fields", [3, "txt"]), ("fields", {}), ("fields", []),
        ],
    )  # fmt: skip
    def test_an_index_that_lies_is_made_anew(self, tmp_path, name, values):
        path = write(tmp_path / "a.tar", [("0.cls", b"1"), ("1.cls", b"2")])
        right = gl.webdataset(path)._members
        lie = {field: getattr(right, field) for field in Members.__dataclass_fields__}
        lie[name] = values if name == "fields" else np.array(values, lie[name].dtype)
        self.put(path, _pack({"first": Members(**lie)}))

        assert gl.webdataset(path).read(range(2))["cls"].tolist() == [1, 2]
        assert len(self.walks) == 2

    @pytest.mark.parametrize(
        "content", [b"", b"\xff" * 8, bytes(8), bytes(8) + b"[", b"\2" + bytes(30)]
    )
    def test_an_index_of_other_bytes_is_made_anew(self, tmp_path, content):
        path = write(tmp_path / "a.tar", [("0.cls", b"1"), ("1.cls", b"2")])
        gl.webdataset(path)
        self.put(path, content)

        assert gl.webdataset(path).read(range(2))["cls"].tolist() == [1, 2]

    def put(self, path, content):
        """Write an index with right checksums."""
        place = path.parent / f".{path.name}.gpuload-index"
        place.unlink()
        files, _ = look_at([str(path)], 0, lambda *_: None)
        with keptfile.KeptWriter(str(place), fileindex.made_of(files, 0)) as writer:
            writer.write(fileindex.head_of(KIND) + content)
            writer.end()
