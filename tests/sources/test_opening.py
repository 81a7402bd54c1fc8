"""gl.open: files are opened by what their bytes are, whatever they are called."""

from __future__ import annotations

import contextlib
import gzip
import logging
import os
import shutil
import struct
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuload as gl
from gpuload.errors import (
    DirectoryError,
    FormatError,
    GpuloadError,
    MissingFileError,
    RecordError,
    SpecError,
)
from gpuload.open import open_with_title
from tests import imagefiles

opening = sys.modules["gpuload.open"]  # the package has a function of that name
SHARED = Path(__file__).parents[3] / "shared" / "data"
ROWS = np.arange(24, dtype=">i2").reshape(6, 4)


def idx():
    """Return ROWS as an IDX file: http://yann.lecun.com/exdb/mnist."""
    return struct.pack(">BBBBII", 0, 0, 0x0B, 2, 6, 4) + ROWS.tobytes()


@pytest.fixture
def make(tmp_path):
    """Return what writes a file of a kind, under a name that says nothing of it."""

    def make(kind, name="data"):
        path = tmp_path / name
        if kind == "npy":
            with open(path, "wb") as file:
                np.save(file, ROWS)
        elif kind == "npz":
            with open(path, "wb") as file:
                np.savez(file, x=ROWS)
        elif kind == "idx":
            path.write_bytes(idx())
        elif kind == "idx in gzip":
            path.write_bytes(gzip.compress(idx()))
        elif kind.startswith("tfrecord"):
            tf = pytest.importorskip("tensorflow")
            compression = {"tfrecord in gzip": "GZIP", "tfrecord in zlib": "ZLIB"}.get(kind, "")
            with tf.io.TFRecordWriter(str(path), compression) as writer:
                for row in ROWS.tolist():
                    values = tf.train.Feature(int64_list=tf.train.Int64List(value=row))
                    features = tf.train.Features(feature={"x": values})
                    writer.write(tf.train.Example(features=features).SerializeToString())
        elif kind == "fixed":
            gl.convert(gl.arrays(x=ROWS), tmp_path / "made.bin")
            os.rename(tmp_path / "made.bin", path)
            os.rename(tmp_path / "made.bin.json", f"{path}.json")
            os.unlink(tmp_path / "made.bin.convert.jsonl")
        else:
            delimiter = {"csv": ",", "tabs": "\t", "semicolons": ";", "csv in gzip": ","}[kind]
            lines = [
                delimiter.join("abcd"),
                *(delimiter.join(map(str, row)) for row in ROWS.tolist()),
            ]
            text = ("\n".join(lines) + "\n").encode()
            path.write_bytes(gzip.compress(text) if "gzip" in kind else text)
        return path

    return make


KINDS = [
    *(
        "npy",
        "npz",
        "idx",
        "idx in gzip",
        "tfrecord",
        "tfrecord in gzip",
        "tfrecord in zlib",
        "fixed",
    ),
    *("csv", "tabs", "semicolons", "csv in gzip"),
]


@pytest.mark.parametrize("name", ["data", "data.png", "data.csv.gz"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_opened_by_its_bytes_whatever_its_name(make, kind, name, caplog):
    path = make(kind, name)
    caplog.set_level(logging.INFO, "gpuload")

    with gl.open(path) as source:
        fields = source.read(range(6))

    values = (
        fields["x"] if "x" in fields else np.stack([fields[column] for column in "abcd"], axis=1)
    )  # of a table
    np.testing.assert_array_equal(values, ROWS)
    assert f"{path}: found" in caplog.text


@pytest.mark.parametrize("kind", ["npy", "csv", "idx", "fixed"])
def test_files_of_one_format_are_one_source(make, tmp_path, kind):
    for number in range(2):
        make(kind, f"part-{number}")

    assert len(gl.open(f"{tmp_path}/part-?")) == 12
    assert len(gl.open([tmp_path / "part-1", tmp_path / "part-0"])) == 12


def test_files_of_different_formats_are_refused_with_both(make, tmp_path):
    make("npy", "a")
    make("idx", "b")

    with pytest.raises(SpecError, match=r"/a is NPY, .*/b is IDX(.|\n)*gl\.concat"):
        gl.open(tmp_path / "*")


def photos(folder, names=("a.png", "b.jpg")):
    image = pytest.importorskip("PIL.Image")
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        kind = {"png": "PNG", "jpg": "JPEG"}.get(name[-3:], "PNG")
        image.fromarray(np.full((3, 4, 3), 40 * number, np.uint8)).save(folder / name, kind)


def test_image_files_of_any_name_are_images(tmp_path):
    photos(tmp_path, ["a", "b.jpg", "c.csv"])

    source = gl.open(tmp_path / "*")

    assert (len(source), source.spec.names) == (3, ("image",))
    assert source.spec["image"].encoded


@pytest.mark.parametrize("labels", ["folder", "table", "none", "loose"])
def test_a_folder_of_images_has_the_labels_that_it_says(tmp_path, labels, caplog):
    caplog.set_level(logging.INFO, "gpuload")
    root = tmp_path / "photos"
    if labels in ("folder", "loose"):
        photos(root / "cat")
        photos(root / "dog", ["c.png"])
    if labels in ("table", "none", "loose"):
        photos(root)
    if labels == "table":
        (root / "labels.csv").write_text("file,label\na.png,7\nb.jpg,5\n")

    source = gl.open(root)

    if labels == "folder":
        assert (source.classes, source.read([0, 1, 2])["label"].tolist()) == (
            ("cat", "dog"),
            [0, 0, 1],
        )
    elif labels == "table":
        assert source.read([0, 1])["label"].tolist() == [7, 5]
    else:
        assert source.spec.names == ("image",)
    assert f"{root}: found images" in caplog.text


@pytest.mark.parametrize("suffix", [".npy", ""])
def test_a_folder_of_files_with_one_suffix_is_their_source(make, tmp_path, suffix):
    for number in range(2):
        make("npy", f"part-{number}{suffix}")
    (tmp_path / ".hidden").write_text("notes")

    with gl.open(tmp_path) as source:
        assert len(source) == 12
        assert source.fingerprint() == gl.open(tmp_path / "part-*").fingerprint()


@pytest.mark.parametrize("suffix", [".npy", ".bin", ".tfrecord", ".parquet"])
def test_a_folder_is_opened_with_what_gpuload_put_beside_its_files(tmp_path, suffix):
    gl.convert(
        gl.arrays(x=ROWS), tmp_path / ("{shard}" + suffix), num_shards=2
    )  # a journal; descriptions of .bin
    gl.open(tmp_path / f"*{suffix}").index(tmp_path / "train.manifest")

    source = gl.open(tmp_path)

    np.testing.assert_array_equal(source.read(range(6))["x"], ROWS)
    check = gl.check(tmp_path)
    assert list(check) == []
    assert check.num_records == 6


def test_a_folder_of_files_of_several_kinds_is_refused_with_what_is_in_it(make, tmp_path):
    for name in ("a.npy", "b.npy", "c.csv"):
        make("npy", name)

    with pytest.raises(MissingFileError) as caught:
        gl.open(tmp_path)

    assert caught.value.what == f"{tmp_path} holds no image"
    assert caught.value.cause.endswith("; there are 2 .npy, 1 .csv")
    assert (
        caught.value.remedy
        == f"check the folder, or name files of one kind: gl.open('{tmp_path}/*.npy')"
    )


def test_files_beside_folders_are_not_opened_without_these(make, tmp_path):
    make("npy", "a.npy")
    (tmp_path / "inner").mkdir()

    with pytest.raises(MissingFileError, match=r"gl\.open\('.*/\*\.npy'\)"):
        gl.open(tmp_path)


def test_an_empty_folder_is_called_empty(tmp_path):
    with pytest.raises(MissingFileError, match=r"holds no file\n  cause:  the folder is empty"):
        gl.open(tmp_path)


def test_what_a_folder_of_images_misses_is_not_taken_for_another_format(tmp_path):
    photos(tmp_path, ["a.png"])
    (tmp_path / "labels.csv").write_text("file,label\na.png,7\nb.png,5\n")

    with pytest.raises(gl.GpuloadError) as caught:
        gl.open(tmp_path)

    with pytest.raises(type(caught.value)) as images:
        gl.images(tmp_path, labels=tmp_path / "labels.csv")
    assert str(caught.value) == str(images.value)


def test_folders_among_files_are_refused(tmp_path):
    (tmp_path / "a").mkdir()

    with pytest.raises(DirectoryError):
        gl.open([tmp_path / "a"])


def archive(path, members):
    with zipfile.ZipFile(path, "w") as file:
        for name in members:
            file.writestr(name, b"x")


def files_that_are_nothing(folder):
    """Yield name, bytes or what writes the file, and what the error says."""
    yield "empty", b"", r"empty is empty(.|\n)*0 bytes"
    yield (
        "noise",
        bytes(range(200, 256)) * 100,
        r"of no format that is known(.|\n)*begin with b'\\xc8(.|\n)*gl\.fixed\(path, dtype\)",
    )
    yield "zeros", bytes(1000), "of no format that is known"
    yield (
        "latin-1",
        b"name;x\nM\xfcller;1\nB\xe4r;2\n",
        r"is a table of text, and no UTF-8(.|\n)*is 0xfc, at byte 8(.|\n)*"
        r"gl\.csv\(path, delimiter=\";\", encoding=\"latin-1\"\)",
    )
    yield (
        "one column",
        b"a\nb\nc\n",
        r"text that begins with 'a'(.|\n)*no delimiter in common(.|\n)*gl\.csv\(path, delimiter",
    )
    yield "prose", b"Once, there was\na table\n", r"text that begins with 'Once, there was'"
    yield "both", b"a,b;c\nd,e;f\n", r"two ways to read it(.|\n)*commas and semicolons"
    yield (
        "encrypted",
        b"PARE" + bytes(100),
        r"is a Parquet file with an encrypted footer(.|\n)*PyArrow",
    )
    yield "pickle", b"\x80\x04\x95" + bytes(100), r"is a Python pickle(.|\n)*could run any code"
    yield (
        "lfs",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 3\n",
        r"pointer of Git LFS(.|\n)*git lfs pull",
    )
    yield "bz2", b"BZh91AY&SY" + bytes(50), r"bunzip2"
    yield (
        "npy.gz",
        gzip.compress(b"\x93NUMPY\x01\0" + bytes(100)),
        r"compressed with gzip and holds an NPY file(.|\n)*unpack it",
    )
    yield (
        "noise.gz",
        gzip.compress(bytes(range(200, 256)) * 10),
        r"compressed with gzip and holds bytes that begin",
    )
    yield (
        "zip",
        lambda path: archive(path, ["a.npy", "b.txt"]),
        r"ZIP archive and no NPZ(.|\n)*it holds 'b\.txt'",
    )
    yield "empty zip", lambda path: archive(path, []), "it holds nothing"
    yield "half zip", b"PK\x03\x04" + bytes(30), "a damaged ZIP archive"
    yield "short idx", idx()[:-1], "of no format that is known"
    yield (
        "image or table",
        b"P3 1,1\n255,3\n",
        r"may be PNM images or a table of text(.|\n)*gl\.images or gl\.csv",
    )


@pytest.mark.parametrize("name", [name for name, _, _ in files_that_are_nothing(None)])
def test_what_is_none_or_two_of_the_formats_is_refused_with_what_was_seen(tmp_path, name):
    content, message = next(
        (content, message)
        for item, content, message in files_that_are_nothing(tmp_path)
        if item == name
    )
    path = tmp_path / name
    content(path) if callable(content) else path.write_bytes(content)

    with pytest.raises(FormatError, match=message) as caught:
        gl.open(path)
    assert str(path) in str(caught.value)


def test_a_tfrecord_that_was_cut_short_is_told_as_that(make):
    path = make("tfrecord")
    path.write_bytes(path.read_bytes()[:20])

    with pytest.raises(FormatError, match=r"record 0(.|\n)*cut short"):
        gl.open(path)


@pytest.mark.parametrize(
    "call", [gl.open, gl.images, lambda path: list(gl.check(path))], ids=["open", "images", "check"]
)
def test_a_text_of_nothing_is_not_the_current_folder(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.png").write_bytes(imagefiles.png(4, 4, imagefiles.RGB, 8))

    with pytest.raises(SpecError, match="the text is empty"):
        call("")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(MissingFileError, match=r"lost\.npy"):
        gl.open(tmp_path / "lost.npy")


@given(
    st.binary(max_size=300),
    st.sampled_from(
        [
            b"",
            b"PK\x03\x04",
            b"\x1f\x8b\x08\0",
            b"x\x9c",
            b"\0\0\x08\x01",
            b"{",
            b"\x93NUMPY",
            b"RIFF",
            b"a,b\n",
        ]
    ),
)
def test_any_bytes_are_found_or_refused_with_an_error_of_ours(tmp_path_factory, content, beginning):
    path = tmp_path_factory.mktemp("any") / "file"
    path.write_bytes(beginning + content)

    try:
        with contextlib.suppress(GpuloadError):
            gl.open(path).close()
    finally:
        shutil.rmtree(path.parent)


def test_a_gzip_bomb_is_looked_at_in_its_first_bytes_alone(tmp_path):
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    raw = b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(64)), packer.flush()])
    (tmp_path / "bomb").write_bytes(raw)

    with pytest.raises(FormatError, match="holds bytes that begin with"):
        gl.open(tmp_path / "bomb")


@pytest.mark.parametrize("num_lines", [4, 9, 200])
def test_a_table_with_a_wrong_line_is_a_table_and_the_line_is_named(tmp_path, num_lines):
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.csv"
    lines = ["a,b\n", *(f"{number},{number}\n" for number in range(1, num_lines))]
    path.write_text("".join([*lines[:2], "7,8,9\n", *lines[3:]]))

    with pytest.raises(RecordError, match=r"a\.csv, line 3"):
        gl.open(path)


def test_a_table_without_an_end_is_not_read_whole(tmp_path):
    path = tmp_path / "endless"
    with open(path, "wb") as file:
        file.write(b'"' + b"a" * 50_000 + b",\n")
        file.truncate(1 << 40)

    with pytest.raises(FormatError):
        gl.open(path)


# Images that are damaged in their first bytes, and records whose layout no file says.
AMBIGUOUS = {"badheadersize.bmp", "broken.png", "test_batch.bin"}


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared test files are not here")
@pytest.mark.parametrize(
    "topic", ["npy", "npz", "tfrecord", "fixed", "bmp", "gif", "jp2", "pnm", "tiff", "webp", "png"]
)
def test_real_files_are_known_by_their_bytes(topic):
    calls = {"npy": "gl.npy", "npz": "gl.npz", "tfrecord": "gl.tfrecord", "fixed": "gl.idx(x=...)"}
    paths = [
        path
        for path in sorted((SHARED / topic).rglob("*"))
        if path.is_file() and path.name[0] != "."
    ]

    results = {}
    for path in paths:
        with open(path, "rb") as file:
            try:
                results[path.name] = opening.recognize_file(
                    str(path), path.stat().st_size, file.read(opening.HEAD_BYTES)
                )[1].call
            except FormatError as error:
                results[path.name] = str(error)

    rest = {name: call for name, call in results.items() if call != calls.get(topic, "gl.images")}
    assert len(results) > 7
    assert set(rest) <= AMBIGUOUS, rest


@pytest.mark.parametrize("paths", ["shards/*.zarr", ["shards/b.zarr", "shards/a.zarr"]])
def test_folders_of_zarr_are_recognized_by_a_wildcard_and_in_a_list(paths, tmp_path, monkeypatch):
    zarr = pytest.importorskip("zarr", minversion="3")
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate("ab"):
        group = zarr.open_group(f"shards/{name}.zarr", mode="w")
        group.create_array("x", data=np.full((3, 2), number, np.float32))

    source, title, call = open_with_title(paths)

    expected = [0, 0, 0, 1, 1, 1] if isinstance(paths, str) else [1, 1, 1, 0, 0, 0]
    assert source.read(range(6))["x"][:, 0].tolist() == expected
    assert (title, call) == ("folders of zarr", "gl.zarr")
    gl.open(paths).index(tmp_path / "x.manifest")
    assert gl.open(tmp_path / "x.manifest").fingerprint() == source.fingerprint()


def test_folders_of_which_one_is_of_another_format_are_no_files(tmp_path):
    zarr = pytest.importorskip("zarr", minversion="3")
    zarr.open_group(tmp_path / "a.zarr", mode="w").create_array("x", data=np.zeros(3))
    (tmp_path / "b.zarr").mkdir()

    with pytest.raises(MissingFileError, match=r"no file matches"):
        gl.open(str(tmp_path / "*.zarr"))
    with pytest.raises(DirectoryError, match="is a directory"):
        gl.open([tmp_path / "a.zarr", tmp_path / "b.zarr"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", '{"a":1,"b":2}\n{"a":3,"b":4}\n'),
        ("a.txt", '{"a":1,"b":2}\n{"a":3,"b":4}\n'),
        ("a.json", '[{"a":1,"b":2},\n{"a":3,"b":4}]\n'),
    ],
)
def test_lines_of_json_are_no_table_though_each_has_as_many_commas(tmp_path, name, text):
    (tmp_path / name).write_text(text)

    with pytest.raises(FormatError, match="JSON is not supported"):
        gl.open(tmp_path / name)


def test_a_table_whose_first_name_begins_with_a_bracket_is_one(tmp_path):
    (tmp_path / "a.csv").write_text("{a},[b]\n1,2\n")

    assert gl.open(tmp_path / "a.csv").read([0])["[b]"].tolist() == [2]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.yaml", "names: [cat, dog]\nsizes: [3, 4]\n", "its name ends in .yaml"),
        ("a.md", "# Cats, dogs\nand birds, say\n", "its name ends in .md"),
        (
            "a.log",
            "2024-01-01 10:00:00,123 start\n2024-01-01 10:00:01,456 end\n",
            "its name ends in .log",
        ),
        (
            "a.txt",
            "A cat sat, a dog ran\nThe bird flew, the fish swam\n",
            "its lines look like sentences",
        ),
        ("a.jsonl", '"a, b"\n"c, d"\n', "JSON is not supported"),
        ("a", '{"a": 1, "b": 2}\n{"a": 3, "b": 4}\n', "JSON is not supported"),
        ("a.data", "[1, 2]\n[3, 4]\n", "JSON is not supported"),
    ],
)
def test_text_with_as_many_commas_in_each_line_is_no_table_for_that(tmp_path, name, text, reason):
    path = tmp_path / name
    path.write_text(text)

    with pytest.raises(FormatError, match=reason) as error:
        gl.open(path)
    assert "gl.text(path)" in error.value.remedy


@pytest.mark.parametrize(
    "name", ["a.csv", "a.txt", "a.tsv", "a.data", "part-00000", "a.CSV", "iris.dat"]
)
@pytest.mark.parametrize(
    "text",
    ["a,b\n1,2\n", "a, b\n1, x y\n", "label,text\n1,A cat sat\n", "city,name\nLa Paz,Li Wu\n"],
)
def test_tables_of_text_are_tables_by_other_names_too(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)

    assert len(gl.open(path)) == 1


@pytest.mark.parametrize("delimiter", [",", ";"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_a_table_in_utf_16_leads_to_the_call_that_reads_it(tmp_path, delimiter, encoding):
    path = tmp_path / "a.csv"
    mark = "\ufeff" * (encoding != "utf-16")
    path.write_bytes(f"{mark}a{delimiter}b\n1{delimiter}\u00e9\n".encode(encoding))

    with pytest.raises(FormatError, match="is a table of text in UTF-16") as error:
        gl.open(path)
    source = eval(error.value.remedy.partition(": ")[2], {"gl": gl, "path": path})
    assert source[0] == {"a": 1, "b": "\u00e9"}
