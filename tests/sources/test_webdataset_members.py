"""Which members of an archive are the fields of a record: links, names with dots, members apart,
and others."""

from __future__ import annotations

import gzip
import io
import logging
import re
import subprocess
import tarfile

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import FormatError, RecordError, SpecError
from gpuload.sources import fileindex


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(params=["walk", "index"])
def index(request, monkeypatch):
    """Have archives read by a walk, and by the index that the walk wrote."""
    if request.param == "index":
        monkeypatch.setattr(fileindex, "SMALL_BYTES", 0)


def npy(*arrays):
    file = io.BytesIO()
    for array in arrays:
        np.save(file, array)
    return file.getvalue()


def write(path, *members):
    """Write an archive: names alone have themselves as bytes; pairs are name and bytes, or name,
    kind and target."""
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
        for name, *rest in [(member,) if isinstance(member, str) else member for member in members]:
            info = tarfile.TarInfo(name)
            raw = b""
            if len(rest) == 2:
                info.type, info.linkname = rest
            else:
                raw = rest[0] if rest else name.encode()
                info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    return path


def texts(path, fields=None):
    """Return the fields of all records as text, opened twice: the second time by the index, if
    there is one."""
    results = []
    for _ in range(2):
        with gl.webdataset(path, fields) as source:
            values = source.read(range(len(source)))
        results.append(
            {
                name: [
                    value.tobytes().decode() if isinstance(value, np.ndarray) else value
                    for value in column
                ]
                for name, column in values.items()
            }
        )
    assert results[0] == results[1]
    return results[0]


# --- links

HARD, SYMBOLIC = tarfile.LNKTYPE, tarfile.SYMTYPE


@pytest.mark.usefixtures("index")
def test_links_have_the_bytes_that_tarfile_extracts(tmp_path):
    path = write(
        tmp_path / "a.tar",
        ("set/0.bin", b"old"),
        ("set/1.bin", HARD, "./set/0.bin"),  # what is before it
        ("set/0.bin", b"new"),
        ("set/2.bin", SYMBOLIC, "0.bin"),  # the last one
        ("set/3.bin", SYMBOLIC, "../other/.9.bin"),
        ("set/4.bin", SYMBOLIC, "3.bin"),
        ("other/.9.bin", b"hidden"),
    )
    with tarfile.open(path) as archive:
        expected = [
            archive.extractfile(member).read().decode()
            for member in archive.getmembers()
            if member.name[:3] == "set"
        ]

    assert expected == ["old", "old", "new", "new", "hidden", "hidden"]
    assert texts(path) == {"bin": expected}


def test_links_that_lead_nowhere_are_counted(tmp_path, caplog):
    path = write(
        tmp_path / "a.tar",
        "0.bin", ("1.bin", SYMBOLIC, "../photos/1.bin"), ("2.bin", HARD, "3.bin"), "3.bin",
        ("4.bin", SYMBOLIC, "4.bin"), ("now", SYMBOLIC, "set"), "set/5.bin",
    )  # fmt: skip

    assert texts(path) == {"bin": ["0.bin", "3.bin", "set/5.bin"]}
    assert "2, the first is 1.bin -> ../photos/1.bin" in caplog.text


@pytest.mark.parametrize(
    ("links", "text"),
    [
        (
            [("1.bin", HARD, "2.bin"), ("3.bin", HARD, "2.bin")],
            "stand before the file .* 2, the first is 1.bin -> 2",
        ),
        (
            [("1.bin", HARD, "9.bin")],
            "lead to no file of their archive .* 1, the first is 1.bin -> 9.bin",
        ),
        (
            [("1.bin", HARD, "1.bin")],
            "lead to no file of their archive .* 1, the first is 1.bin -> 1.bin",
        ),
        (
            [("1.bin", SYMBOLIC, "3.bin"), ("3.bin", SYMBOLIC, "1.bin")],
            "lead to no file of their archive .* 2, ",
        ),
        (
            [("1.bin", SYMBOLIC, "/etc/passwd")],
            "lead to no file of their archive .* 1, .* -> /etc/passwd",
        ),
        ([("1.bin", SYMBOLIC, "../0.bin")], "lead to no file of their archive .* 1, "),
    ],
)
def test_links_without_bytes_are_counted_by_their_kind(tmp_path, caplog, links, text):
    path = write(tmp_path / "a.tar", "0.bin", *links, "2.bin")

    assert texts(path) == {"bin": ["0.bin", "2.bin"]}
    [line, _] = [
        record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING
    ]  # opened twice
    assert re.search(text, line)


@pytest.mark.parametrize(
    "members",
    [
        ["d/0.bin", ("e", SYMBOLIC, "d"), ("1.bin", SYMBOLIC, "e/0.bin")],
        ["d/0.bin", ("x/e", SYMBOLIC, "../d"), ("x/1.bin", SYMBOLIC, "e/0.bin")],
        ["/data/0.bin", ("/data/1.bin", SYMBOLIC, "/data/0.bin")],
        ["/data/0.bin", ("/data/1.bin", HARD, "/data/0.bin")],
    ],
)
def test_links_are_followed_through_folders_that_are_links_and_from_the_root(
    tmp_path, caplog, members
):
    name = members[0]

    assert texts(write(tmp_path / "a.tar", *members)) == {"bin": [name, name]}
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_file_that_gnu_tar_was_told_twice_is_one_record(tmp_path, caplog):
    (tmp_path / "0.bin").write_bytes(b"0")
    (tmp_path / "1.bin").write_bytes(b"1")
    # GNU tar stores the second 0.bin as a hard link to itself.
    subprocess.run(["tar", "-cf", "a.tar", "0.bin", "1.bin", "0.bin"], cwd=tmp_path, check=True)

    assert texts(tmp_path / "a.tar") == {"bin": ["0", "1"]}
    assert not caplog.records


@pytest.mark.parametrize(
    "kind", [tarfile.DIRTYPE, HARD, SYMBOLIC, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_the_size_of_what_is_no_file_is_no_length_of_data(tmp_path, kind):
    header = bytearray(512)
    header[:2], header[124:135], header[156:157], header[257:263] = (
        b"d/",
        b"%011o" % 1000,
        kind,
        b"ustar\0",
    )
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path = write(tmp_path / "a.tar", "0.bin", "1.bin")
    path.write_bytes(bytes(header) + path.read_bytes())

    assert texts(path) == {"bin": ["0.bin", "1.bin"]}


def test_what_gnu_tar_wrote_of_equal_files_is_read(tmp_path):
    for name in ("0.bin", "1.bin"):
        (tmp_path / name).write_text(name)
    (tmp_path / "2.bin").hardlink_to(tmp_path / "0.bin")
    (tmp_path / f"{'3' * 150}.bin").symlink_to("1.bin")
    names = sorted(path.name for path in tmp_path.iterdir())
    subprocess.run(["tar", "-cf", "a.tar", *names], cwd=tmp_path, check=True)

    assert texts(tmp_path / "a.tar") == {"bin": ["0.bin", "1.bin", "0.bin", "1.bin"]}


# --- members that are not supported


def test_a_part_of_a_file_is_not_supported(tmp_path):
    path = write(tmp_path / "a.tar", ("0.bin", b"M", ""))

    with pytest.raises(FormatError, match=r"not supported(.|\n)*another volume"):
        gl.webdataset(path)


def test_a_global_header_that_renames_members_is_not_supported(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w", pax_headers={"path": "x"}) as archive:
        archive.addfile(tarfile.TarInfo("0.bin"))
    with tarfile.open(
        tmp_path / "b.tar", "w", pax_headers={"comment": "of git archive"}
    ) as archive:
        archive.addfile(tarfile.TarInfo("0.bin"))

    with pytest.raises(FormatError, match=r"not supported(.|\n)*global PAX"):
        gl.webdataset(tmp_path / "a.tar")
    assert texts(tmp_path / "b.tar") == {"bin": [""]}


# --- files about the archive


@pytest.mark.parametrize(
    "others",
    [
        ["__meta__.json"], ["README.md", "LICENSE"], ["./README"], ["._0.txt", "._0.cls", ".DS_Store"],
        ["__MACOSX/._0.txt", "__MACOSX/x"], ["set/readme.TXT"],
    ],
)  # fmt: skip
@pytest.mark.parametrize("fields", [None, ["txt", "cls"]])
@pytest.mark.usefixtures("index")
def test_files_about_the_archive_are_passed_over_and_counted(tmp_path, caplog, others, fields):
    caplog.set_level(logging.INFO, "gpuload")
    records = [("0.txt", b"a"), ("0.cls", b"1"), ("1.txt", b"b"), ("1.cls", b"2")]
    front = write(tmp_path / "a.tar", *others, *records)
    behind = write(tmp_path / "b.tar", *records, *others)

    assert texts(front, fields) == texts(behind, fields) == {"txt": ["a", "b"], "cls": [1, 2]}
    assert f"passed over: {len(others)}, the first is {others[0].removeprefix('./')}" in caplog.text


@pytest.mark.parametrize(
    "names",
    [
        ["readme.txt", "licence.txt", "cat.txt"],
        ["__init__.py", "main.py"],
        ["README.md"],
        ["__a__.b"],
    ],
)
def test_records_with_such_names_are_records(tmp_path, names):
    [values] = texts(write(tmp_path / "a.tar", *names)).values()

    assert values == names


@pytest.mark.parametrize(
    "names", [["0.bin", "about.json", "1.bin"], ["about.json", "0.bin", "1.bin"]]
)
@pytest.mark.parametrize("fields", [None, ["bin"]])
def test_a_file_that_does_not_belong_is_named_and_the_remedy_takes_it_out(tmp_path, names, fields):
    path = write(tmp_path / "a.tar", *names)

    with pytest.raises(SpecError, match=r"about\.json does not belong to the records") as error:
        gl.webdataset(path, fields)

    subprocess.run(error.value.remedy.partition(": ")[2], shell=True, check=True)
    assert texts(path, fields) == {"bin": ["0.bin", "1.bin"]}


# --- members that do not lie side by side


@pytest.mark.usefixtures("index")
def test_members_of_a_name_are_a_record_wherever_they_lie(tmp_path):
    path = write(
        tmp_path / "a.tar",
        "0.txt",
        "1.txt",
        "x/0.txt",
        ("1.cls", b"1"),
        ("x/0.cls", b"2"),
        ("0.cls", b"0"),
    )

    assert texts(path) == {"txt": ["0.txt", "1.txt", "x/0.txt"], "cls": [0, 1, 2]}
    assert gl.webdataset(path).where(1) == "a.tar, record 1"


@pytest.mark.usefixtures("index")
def test_a_record_that_is_there_twice_is_two_records_with_a_warning(tmp_path, caplog):
    names = ["0.txt", "0.bin", "1.txt", "1.bin", "0.txt", "0.bin"]

    assert texts(write(tmp_path / "a.tar", *names))["txt"] == ["0.txt", "1.txt", "0.txt"]
    assert "recur" in caplog.text


def test_a_part_of_a_record_that_is_there_twice_is_an_error(tmp_path):
    path = write(tmp_path / "a.tar", "0.txt", "0.bin", "1.txt", "1.bin", "0.bin")

    with pytest.raises(SpecError, match=r"a\.tar: 0 has 'bin' twice"):
        gl.webdataset(path, ["bin"])
    assert texts(path, ["txt"]) == {"txt": ["0.txt", "1.txt"]}


# --- names with dots

DECIMALS = ["img_0.5.bin", "img_0.5.txt", "img_0.7.bin", "img_0.7.txt"]


@pytest.mark.parametrize(
    ("names", "fields", "expected"),
    [
        (DECIMALS, None, {"bin": DECIMALS[::2], "txt": DECIMALS[1::2]}),
        (DECIMALS, ["txt"], {"txt": DECIMALS[1::2]}),
        (
            ["22.05.bin", "22.06.bin", "23.05.bin"],
            None,
            {"bin": ["22.05.bin", "22.06.bin", "23.05.bin"]},
        ),
        (["0.bin", "0.5.bin", "1.bin"], None, {"bin": ["0.bin", "0.5.bin", "1.bin"]}),
        (["0.bin", "0.5.bin", "1.bin"], ["bin"], {"bin": ["0.bin", "0.5.bin", "1.bin"]}),
        (["f.01.bin", "f.02.bin"], None, {"bin": ["f.01.bin", "f.02.bin"]}),
        (
            ["0.5.bin", "0.7.bin", "1.5.bin", "1.7.bin"],
            ["bin"],
            {"bin": ["0.5.bin", "0.7.bin", "1.5.bin", "1.7.bin"]},
        ),
        (
            ["0.5.bin", "0.7.bin", "1.5.bin", "1.7.bin"],
            ["7.bin", "5.bin"],
            {"7.bin": ["0.7.bin", "1.7.bin"], "5.bin": ["0.5.bin", "1.5.bin"]},
        ),
        (
            ["0.seg.bin", "0.bin", "1.seg.bin", "1.bin"],
            None,
            {"seg.bin": ["0.seg.bin", "1.seg.bin"], "bin": ["0.bin", "1.bin"]},
        ),
        (
            ["0.l.bin", "0.r.bin", "1.l.bin", "1.r.bin"],
            ["r.bin"],
            {"r.bin": ["0.r.bin", "1.r.bin"]},
        ),
        (
            ["0.bin", "0.bin.txt", "1.bin", "1.bin.txt"],
            ["bin.txt"],
            {"bin.txt": ["0.bin.txt", "1.bin.txt"]},
        ),
    ],
)
@pytest.mark.usefixtures("index")
def test_the_field_begins_behind_the_dot_that_gives_all_records_the_same_fields(
    tmp_path, names, fields, expected
):
    assert texts(write(tmp_path / "a.tar", *names), fields) == expected


def test_where_dots_may_mean_both_a_warning_says_how_to_choose(tmp_path, caplog):
    path = write(tmp_path / "a.tar", "0.5.bin", "0.7.bin", "1.5.bin", "1.7.bin")

    assert gl.webdataset(path).spec.names == ("5.bin", "7.bin")
    assert "write fields=['bin'], else fields=['5.bin', '7.bin']" in caplog.text
    caplog.clear()
    gl.webdataset(path, ["5.bin", "7.bin"])
    assert caplog.text == ""


def test_a_field_that_a_record_lacks_makes_no_name_of_it(tmp_path):
    path = write(tmp_path / "a.tar", "0.l.bin", "0.r.bin", "1.l.bin")

    with pytest.raises(SpecError, match=r"1 has no 'r\.bin'"):
        gl.webdataset(path)


def test_all_archives_have_the_field_behind_the_same_dot(tmp_path):
    write(tmp_path / "0.tar", "0.5.bin")
    write(tmp_path / "1.tar", "1.5.bin", "1.7.bin")
    write(tmp_path / "2.tar", "2.bin")

    assert texts([tmp_path / f"{n}.tar" for n in range(3)]) == {
        "bin": ["0.5.bin", "1.5.bin", "1.7.bin", "2.bin"]
    }


# --- fields


@pytest.mark.parametrize(
    ("names", "form"),
    [
        (["0.jpg", "1.png"], {"image": "jpg;png"}),
        ([*(f"{number}.jpg" for number in range(9)), "9.png"], {"image": "jpg;png"}),
        (["0.jpg", "1.jpg", "2.jpeg"], {"image": "jpg;jpeg"}),
        ([f"{number}.{'jpeg' if field == 'jpg' and number == 5 else field}" for number in range(6)
          for field in ("jpg", "png")], {"image": "jpg;jpeg", "png": "png"}),
    ],
)  # fmt: skip
def test_records_of_several_formats_are_opened_by_the_remedy_and_not_deleted(tmp_path, names, form):
    path = write(tmp_path / "a.tar", *names)

    with pytest.raises(SpecError) as error:
        gl.webdataset(path)

    assert f"fields={form}" in error.value.remedy
    assert "tar --delete" not in error.value.remedy
    assert len(gl.webdataset(path, form)) == len({name.split(".")[0] for name in names})


def test_a_field_that_all_records_have_is_no_choice_of_formats(tmp_path):
    path = write(tmp_path / "a.tar", "0.jpg", "0.png", "1.png")

    with pytest.raises(SpecError, match=r"fields=\['png'\]"):
        gl.webdataset(path)


@pytest.mark.usefixtures("index")
def test_of_alternatives_each_record_has_the_first_that_is_there(tmp_path):
    path = write(
        tmp_path / "a.tar",
        "0.jpg",
        ("0.cls", b"0"),
        "1.png",
        ("1.cls", b"1"),
        "2.jpg",
        "2.PNG",
        ("2.cls", b"2"),
    )

    assert texts(path, ["jpg;png", "cls"]) == {
        "jpg;png": ["0.jpg", "1.png", "2.jpg"],
        "cls": [0, 1, 2],
    }
    assert texts(path, {"image": "png;jpg"}) == {"image": ["0.jpg", "1.png", "2.PNG"]}
    assert gl.webdataset(path, {"image": "png;jpg"}).spec["image"].encoded
    with pytest.raises(
        SpecError,
        match=r"1 has no 'jpg'(.|\n)*fields=\{'image': 'jpg;png', 'cls': 'cls'\}; of a record",
    ):
        gl.webdataset(path, ["jpg", "cls"])
    with pytest.raises(SpecError, match=r"0 has no 'gif;png'"):
        gl.webdataset(path, ["gif;png"])


def test_alternatives_of_several_kinds_are_refused(tmp_path):
    path = write(tmp_path / "a.tar", "0.jpg", "1.txt")

    with pytest.raises(SpecError, match="values of several kinds"):
        gl.webdataset(path, ["jpg;txt"])


@pytest.mark.parametrize("fields", [3, [], {}, ["jpg;"], [3], {"x": 3}, "jpg", ["jpg", "jpg"]])
def test_fields_of_another_kind_are_refused(tmp_path, fields):
    with pytest.raises(SpecError, match="fields = "):
        gl.webdataset(write(tmp_path / "a.tar", "0.jpg"), fields)


def test_names_of_fields_are_in_the_fingerprint_the_manifest_and_the_pickle(tmp_path, monkeypatch):
    path = write(tmp_path / "a.tar", "0.jpg", "0.png", "1.jpg", "1.png")
    first, second = (gl.webdataset(path, {"image": order}) for order in ("jpg;png", "png;jpg"))
    listed = gl.webdataset(first.index(tmp_path / "a.manifest"), {"image": "png;jpg"})

    assert first.fingerprint() != second.fingerprint()
    assert listed.read([1])["image"][0].tobytes() == b"1.png"
    assert listed.fingerprint() == second.fingerprint()


# --- arrays


@pytest.mark.parametrize(
    ("arrays", "shape"),
    [
        ([np.arange(2), np.arange(3), np.arange(0)], (None,)),
        ([np.ones((2, 3)), np.zeros((5, 3)), np.ones((3, 3))], (None, 3)),
        ([np.ones((2, 3)), np.zeros((3, 2)).T[:, :2], np.ones((1, 9))], (None, None)),
        ([np.ones((2, 3), ">f4"), np.zeros(6, "<f4")], None),
        ([np.arange(6).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3) + 1)], (2, 3)),
        ([np.arange(4, dtype="<i2"), np.arange(4, dtype=">i2")], (4,)),
        ([np.float64(3), np.float64(4)], ()),
    ],
)
@pytest.mark.usefixtures("index")
def test_arrays_of_several_shapes_are_those_that_numpy_loads(tmp_path, arrays, shape):
    contents = [(f"{n}.npy", npy(array)) for n, array in enumerate(arrays)]
    write(tmp_path / "a.tar", contents[0])
    write(tmp_path / "b.tar", *contents[1:])

    for source in (gl.webdataset(tmp_path / "?.tar"), gl.webdataset(tmp_path / "?.tar")):
        listed = gl.webdataset(source.index(tmp_path / "x.manifest"))
        assert source.spec["npy"].shape == listed.spec["npy"].shape == shape
        assert source.spec["npy"].dtype == arrays[0].dtype.newbyteorder("=")
        for values in (source.read(range(len(arrays))), listed.read(range(len(arrays)))):
            assert len(values["npy"]) == len(arrays)
            for value, array in zip(values["npy"], arrays, strict=True):
                assert value.shape == array.shape
                assert np.array_equal(value, array)


def test_an_array_of_a_shape_that_the_index_does_not_know_is_an_error_of_its_record(tmp_path):
    path = write(
        tmp_path / "a.tar", ("0.npy", npy(np.arange(2))), ("1.npy", npy(np.arange(3), np.arange(3)))
    )

    with gl.webdataset(path) as source:
        assert source[0]["npy"].tolist() == [0, 1]
        with pytest.raises(RecordError, match=r"record 1(.|\n)*152 bytes behind its array"):
            source[1]


# --- archives


def test_archives_that_cat_joined_are_not_supported_and_the_remedy_joins_them(tmp_path):
    first, second = write(tmp_path / "a.tar", "0.bin"), write(tmp_path / "b.tar", "1.bin")
    path = tmp_path / "c.tar"
    path.write_bytes(first.read_bytes() + second.read_bytes())

    with pytest.raises(FormatError, match=r"c\.tar, byte 1024: .* is not supported") as caught:
        gl.webdataset(path)

    assert "tar -A" in caught.value.remedy
    subprocess.run(["tar", "-Af", first, second], check=True)
    assert texts(first) == {"bin": ["0.bin", "1.bin"]}


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_long_name_that_is_cut_behind_a_slash_is_no_folder(tmp_path, form):
    # The header has the first 100 bytes of the name, of which the last is a slash; tarfile takes it
    # for a folder.
    path, name = tmp_path / "a.tar", "p/" * 80 + "0.bin"
    with tarfile.open(path, "w", format=form) as archive:
        info = tarfile.TarInfo(name)
        info.type, info.size = tarfile.AREGTYPE, 600
        archive.addfile(info, io.BytesIO(b"x" * 600))

    assert texts(path) == {"bin": ["x" * 600]}


def test_errors_for_a_packed_archive_name_the_file_and_not_its_copy(tmp_path):
    path = tmp_path / "a.tar.gz"
    write(path, "0.bin")
    content = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(content[:700]))

    with pytest.raises(FormatError, match=r"^a\.tar\.gz, byte"):
        gl.webdataset(path)


def test_one_record_whose_name_has_a_decimal_point_has_the_fields_behind_the_last_dot(tmp_path):
    path = write(tmp_path / "a.tar", "img_0.5.bin", ("img_0.5.cls", b"3"))

    assert texts(path) == {"bin": ["img_0.5.bin"], "cls": [3]}
    assert list(texts(write(tmp_path / "b.tar", "scene.left.bin"))) == ["left.bin"]


def test_members_of_records_in_two_folders_are_not_called_files_about_the_archive(tmp_path):
    names = [
        name for number in range(4) for name in (f"images/{number}.bin", f"labels/{number}.txt")
    ]
    path = write(tmp_path / "a.tar", *names)

    with pytest.raises(SpecError, match="labels/0 has no 'bin'") as caught:
        gl.webdataset(path)

    assert "all members of a record under one name" in caught.value.remedy


def test_a_class_beyond_int64_is_called_so(tmp_path):
    numbers = [2**63 - 1, -(2**63), 1234567890123456789, 2**63]
    source = gl.webdataset(
        write(tmp_path / "a.tar", *((f"{n}.cls", b"%d" % x) for n, x in enumerate(numbers)))
    )

    assert source.read([0, 1, 2])["cls"].tolist() == numbers[:3]
    with pytest.raises(RecordError, match="more than 64 bits"):
        source.read([3])
