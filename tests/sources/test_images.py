"""Image files."""

from __future__ import annotations

import gzip
import logging
import os
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import (
    ChangedFileError,
    DirectoryError,
    FormatError,
    MissingFileError,
    RecordIndexError,
    SpecError,
    UnreadableFileError,
)
from gpuload.formats.images.source import images
from gpuload.images import head
from gpuload.testing.sources import SourceContract
from tests import imagefiles

GOLDEN = Path(__file__).parents[1] / "golden" / "images"
FILES = {  # in the order of their paths; in the end neither suffix nor case matters
    "bird/a.JPG": imagefiles.jpeg(8, 12),
    "bird/b.png": imagefiles.png(5, 7),
    "bird/c.jpeg": imagefiles.jpeg(9, 9, "L"),
    "cat/deep/er/d.jpg": imagefiles.jpeg(16, 8),
    "cat/e.PNG": imagefiles.png(3, 3, 0, 16),
}
LABELS = [0, 0, 0, 1, 1]


def write(folder, files=FILES):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def as_bytes(content):
    return np.frombuffer(content, np.uint8)


@pytest.mark.usefixtures("reader")
class TestFolderOfClasses(SourceContract):
    def open(self, folder):
        return images(write(folder / "root"))

    def open_other(self, folder):
        return images(
            write(folder / "root", {"bird/a.JPG": FILES["bird/a.JPG"], "cat/e.PNG": b"other"})
        )

    def expected(self):
        return {
            "image": [as_bytes(content) for content in FILES.values()],
            "label": np.array(LABELS),
        }


class TestFolderWithoutLabels(SourceContract):
    def open(self, folder):
        return images(write(folder / "root"), labels=None)

    def open_other(self, folder):
        return images(write(folder / "root", dict(list(FILES.items())[1:])), labels=None)

    def expected(self):
        return {"image": [as_bytes(content) for content in FILES.values()]}


class TestListOfFiles(SourceContract):
    def open(self, folder):
        root = write(folder / "root")
        return images([root / name for name in reversed(FILES)], labels=None)

    def open_other(self, folder):
        return images(str(write(folder / "root") / "bird" / "*"), labels=None)

    def expected(self):
        return {"image": [as_bytes(content) for content in reversed(FILES.values())]}


class TestListOfFilesWithLabels(SourceContract):
    """In an order in which the classes come back again."""

    names = ("cat/e.PNG", "bird/b.png", "cat/deep/er/d.jpg", "bird/a.JPG")

    def open(self, folder):
        root = write(folder / "root")
        return images([root / name for name in self.names])

    def open_other(self, folder):
        root = write(folder / "root")
        return images([root / name for name in reversed(self.names)])

    def expected(self):
        return {
            "image": [as_bytes(FILES[name]) for name in self.names],
            "label": np.array([1, 0, 2, 0]),
        }


def test_files_of_other_projects_come_untouched_and_their_heads_can_be_read():
    source = images(GOLDEN / "Pillow", labels=None)

    fields = source.read(range(len(source)))

    paths = sorted(path for path in (GOLDEN / "Pillow").iterdir())
    assert [source.where(i) for i in range(len(source))] == [path.name for path in paths]
    assert [image.tobytes() for image in fields["image"]] == [path.read_bytes() for path in paths]
    assert head.read(fields["image"][paths.index(GOLDEN / "Pillow/hopper.jpg")]).width == 128


def test_the_field_says_that_it_is_an_encoded_image(tmp_path):
    spec = images(write(tmp_path)).spec

    assert spec["image"].encoded
    assert spec["image"].shape == (None,)
    assert spec["label"].dtype == np.int64


def test_the_images_of_one_read_lie_side_by_side_in_memory(tmp_path):
    source = images(write(tmp_path))

    read = source.read([3, 0, 4])["image"]

    assert read.flat.tobytes() == b"".join(list(FILES.values())[number] for number in (3, 0, 4))
    assert read[1].base is read[0].base


def test_classes_are_the_folders_with_an_image_by_name(tmp_path):
    write(tmp_path)
    for name in ("ape", "car", ".hidden"):
        (tmp_path / name).mkdir()

    source = images(tmp_path)

    assert list(source.classes) == ["bird", "cat"]
    assert source.read(range(5))["label"].tolist() == [0, 0, 0, 1, 1]


def test_the_classes_of_a_wildcard_are_the_folders_that_the_files_lie_in(tmp_path):
    source = images(f"{write(tmp_path)}/**/*.[jJ]*")

    assert list(source.classes) == ["bird", "er"]
    assert source.read(range(3))["label"].tolist() == [0, 0, 1]
    assert source.where(2) == os.path.join("cat", "deep", "er", "d.jpg")


def test_without_labels_there_are_no_classes(tmp_path):
    source = images(write(tmp_path), labels=None)

    assert source.classes == ()
    assert source.spec.names == ("image",)


def test_other_and_hidden_files_of_a_folder_are_left_out(tmp_path):
    write(tmp_path)
    for name in ("cat/notes.txt", "cat/._e.png", ".hidden/x.jpg", "cat/f.tga", "cat/jpg"):
        write(tmp_path, {name: b"something"})
    (tmp_path / "cat" / "folder.jpg").mkdir()

    assert len(images(tmp_path)) == len(FILES)


def test_a_link_to_itself_is_no_folder(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.png").write_bytes(imagefiles.png(4, 4, imagefiles.RGB, 8))
    (tmp_path / "loop").symlink_to("loop")

    assert len(gl.images(tmp_path)) == len(gl.open(tmp_path)) == 1
    assert list(gl.check(tmp_path)) == []


def test_links_to_files_and_folders_are_followed_once(tmp_path):
    write(tmp_path / "real")
    root = tmp_path / "root"
    root.mkdir()
    (root / "linked").symlink_to(tmp_path / "real" / "bird")
    (root / "again").symlink_to(root)

    source = images(root)

    assert [source.where(i) for i in range(len(source))] == [
        f"linked/{name}" for name in ("a.JPG", "b.png", "c.jpeg")
    ]


def test_an_image_outside_of_the_class_folders_is_an_error_that_names_the_remedy(tmp_path):
    write(tmp_path, {"loose.jpg": imagefiles.jpeg(), **FILES})

    with pytest.raises(SpecError, match=r"loose\.jpg lies in no class folder(.|\n)*labels=None"):
        images(tmp_path)
    assert len(images(tmp_path, labels=None)) == 6


def test_a_folder_without_images_is_an_error(tmp_path):
    write(tmp_path, {"notes.txt": b"something"})

    with pytest.raises(MissingFileError, match="holds no image") as caught:
        images(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(MissingFileError, match="nowhere"):
        images(tmp_path / "nowhere")


def test_a_wildcard_without_match_is_an_error(tmp_path):
    with pytest.raises(MissingFileError, match="no file matches"):
        images(f"{tmp_path}/*.jpg")


def test_a_missing_file_of_a_list_is_an_error(tmp_path):
    with pytest.raises(MissingFileError, match=r"gone\.jpg is missing"):
        images([write(tmp_path) / "bird" / "a.JPG", tmp_path / "gone.jpg"])


def test_a_folder_in_a_list_is_an_error(tmp_path):
    with pytest.raises(DirectoryError, match="bird is a directory"):
        images([write(tmp_path) / "bird"])


def test_an_empty_file_is_an_error(tmp_path):
    write(tmp_path, {**FILES, "cat/empty.jpg": b""})

    with pytest.raises(FormatError, match=r"empty\.jpg is empty"):
        images(tmp_path)


def test_a_file_too_large_for_an_image_is_an_error_that_takes_no_memory(tmp_path):
    write(tmp_path)
    with open(tmp_path / "cat" / "huge.png", "wb") as file:
        file.truncate(2**40)

    with pytest.raises(FormatError, match=r"huge\.png has 1099511627776 bytes"):
        images(tmp_path)


def sparse(path, beginning=b""):
    """Write a file of a gigabyte of which only the beginning takes place."""
    with open(path, "wb") as file:
        file.write(beginning)
        file.truncate(2**30)
    return path


@pytest.mark.parametrize(
    "beginning",
    [b"", b"\xff\xd8", imagefiles.png()[:8], b"BM"],
    ids=["zeros", "jpeg", "png", "other"],
)
def test_a_very_large_file_that_is_no_image_is_an_error_when_it_is_opened(tmp_path, beginning):
    sparse(write(tmp_path) / "cat" / "huge.png", beginning)

    with pytest.raises(
        FormatError, match=r"huge\.png is no image of the formats JPEG, .*AVIF; it begins with"
    ) as caught:
        images(tmp_path)

    assert caught.value.cause
    assert caught.value.remedy


@pytest.mark.parametrize(
    "beginning", [imagefiles.jpeg()[:20], imagefiles.png()[:33]], ids=["jpeg", "png"]
)
def test_a_very_large_file_that_begins_as_an_image_may_be_opened(tmp_path, beginning):
    assert len(images(sparse(tmp_path / "huge.jpg", beginning), labels=None)) == 1


def test_the_beginnings_of_other_files_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setitem(images.__globals__, "read_bytes", None)
    with open(write(tmp_path) / "cat" / "large.png", "wb") as file:
        file.truncate(2**26)

    assert len(images(tmp_path)) == 6


def test_an_unreadable_file_is_an_error(tmp_path, monkeypatch):
    write(tmp_path)
    open_value = os.open

    def open_allowed(path, *arguments):  # permissions do not bind root, so this stands for them
        if os.fspath(path).endswith("e.PNG"):
            raise PermissionError(13, "Permission denied", path)
        return open_value(path, *arguments)

    monkeypatch.setattr(os, "open", open_allowed)

    with pytest.raises(UnreadableFileError, match=r"e\.PNG"):
        images(tmp_path)


def test_a_pipe_is_no_image(tmp_path):
    write(tmp_path)
    os.mkfifo(tmp_path / "cat" / "pipe.jpg")

    with pytest.raises(OSError, match=r"pipe\.jpg is no regular file"):
        images(tmp_path)


@pytest.mark.parametrize(
    "labels", ["files", "", True, 0, 1.5, {1, 2, 3, 4, 5}, iter(range(5)), Path("labels.txt")]
)
def test_other_labels_are_an_error(tmp_path, labels):
    with pytest.raises(SpecError, match=r"labels = (.|\n)*remedy"):
        images(write(tmp_path), labels=labels)


class TestFilesLeftOut:
    def test_how_many_of_which_kinds_is_told_once(self, tmp_path, caplog):
        rest = (
            "cat/a.txt",
            "cat/b.TXT",
            "bird/deep/c.txt",
            "cat/x.log",
            "cat/y.log",
            "README",
            ".hidden.txt",
        )
        write(tmp_path, {**FILES, **dict.fromkeys(rest, b"something")})
        (tmp_path / "cat" / "folder.txt").mkdir()

        with caplog.at_level(logging.INFO, "gpuload"):
            images(tmp_path)

        message = "6 files are no images that are decoded, and are left out: 3 .txt, 2 .log, 1 without suffix"
        assert [record.getMessage() for record in caplog.records] == [f"{tmp_path}: {message}"]

    def test_describe_names_them_where_no_log_is_read(self, tmp_path):
        write(tmp_path, {**FILES, "cat/a.txt": b"", "rows.npy": b"", "b.npy": b""})

        assert images(tmp_path).describe().endswith("; left out: 2 .npy, 1 .txt")
        assert "left out" not in images(f"{tmp_path}/bird/*").describe()

    def test_one_file_and_many_kinds_are_told_in_short(self, tmp_path, caplog):
        write(tmp_path / "one", {**FILES, "cat/a.txt": b""})
        write(
            tmp_path / "many",
            {**FILES, **{f"cat/a.{kind}": b"" for kind in "abcdefgh"}, "cat/b.h": b""},
        )

        with caplog.at_level(logging.INFO, "gpuload"):
            images(tmp_path / "one")
            images(tmp_path / "many")

        item, many = (record.getMessage() for record in caplog.records)
        assert item.endswith("one: 1 file is no image that is decoded, and is left out: 1 .txt")
        assert many.endswith("left out: 2 .h, 1 .a, 1 .b, 1 .c, 1 .d, 1 .e, 2 of 2 other kinds")

    @pytest.mark.parametrize("kind", [".heic", ".TGA", ".dcm", ".jxl", ".nef"])
    def test_images_that_are_not_decoded_are_told_as_a_warning(self, tmp_path, caplog, kind):
        images(write(tmp_path, {**FILES, f"cat/a{kind}": b"something"}))

        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert record.getMessage().endswith(f"1 {kind.lower()}")

    def test_where_all_files_are_images_nothing_is_told(self, tmp_path, caplog):
        with caplog.at_level(logging.INFO, "gpuload"):
            images(write(tmp_path))

        assert caplog.records == []

    def test_a_folder_with_other_files_alone_says_which(self, tmp_path):
        with pytest.raises(MissingFileError, match=r"there are 2 \.tga, 1 \.txt"):
            images(write(tmp_path, {"a.tga": b"", "b.tga": b"", "c.txt": b""}))


class TestFilesWithOtherSuffixes:
    @pytest.mark.parametrize("name", ["cat/a.jpe", "cat/b.bin", "cat/c", "cat/d.gif"])
    @pytest.mark.parametrize("content", [imagefiles.jpeg(), imagefiles.png()], ids=["jpeg", "png"])
    def test_images_are_taken_where_they_are_named(self, tmp_path, name, content):
        path = write(tmp_path, {name: content}) / name

        for value in (path, [path], f"{tmp_path}/cat/*"):
            assert images(value).read([0])["image"][0].tobytes() == content

    @pytest.mark.parametrize(
        ("content", "beginning"),
        [
            (b"something and more", "b'something and more'"),
            (b"BM", "b'BM'"),
            (b"\xff\xd8", r"b'\xff\xd8'"),
        ],
    )
    def test_others_are_refused_where_they_are_named(self, tmp_path, content, beginning):
        path = write(tmp_path, {**FILES, "cat/x.dat": content}) / "cat" / "x.dat"

        for argument in (path, [tmp_path / "cat" / "e.PNG", path], f"{tmp_path}/cat/*.*"):
            with pytest.raises(FormatError, match=r"x\.dat is no image of the formats") as caught:
                images(argument)
            assert f"begins with {beginning}" in str(caught.value)
            assert caught.value.remedy

    def test_files_of_gzip_are_named_so(self, tmp_path):
        path = write(tmp_path, {"a.jpg.gz": gzip.compress(imagefiles.jpeg())}) / "a.jpg.gz"

        with pytest.raises(FormatError, match=r"a\.jpg\.gz is compressed with gzip"):
            images(path)

    def test_known_suffixes_are_not_looked_into(self, tmp_path, monkeypatch):
        path = write(tmp_path, {"cat/a.png": b"anything"}) / "cat" / "a.png"
        monkeypatch.setitem(images.__globals__, "read_bytes", None)

        assert len(images([path])) == len(images(tmp_path)) == 1


@pytest.mark.usefixtures("reader")
class TestFilesThatChange:
    def test_a_file_of_another_length_is_an_error_that_names_it(self, tmp_path):
        source = images(write(tmp_path))
        (tmp_path / "cat" / "e.PNG").write_bytes(b"shorter")

        assert len(source.read([0, 1, 2, 3])["image"]) == 4
        with pytest.raises(ChangedFileError, match=r"e\.PNG"):
            source.read([0, 4])

    def test_a_file_that_was_modified_is_an_error_that_names_it(self, tmp_path):
        source = images(write(tmp_path))
        path = tmp_path / "bird" / "b.png"
        path.write_bytes(bytes(reversed(path.read_bytes())))
        os.utime(path, (1, 1))

        with pytest.raises(ChangedFileError, match=r"b\.png"):
            source.read([1])

    def test_a_file_that_disappeared_is_an_error_that_names_it(self, tmp_path):
        source = images(write(tmp_path))
        (tmp_path / "bird" / "a.JPG").unlink()

        with pytest.raises(ChangedFileError, match=r"a\.JPG"):
            source.read([0])


def test_names_that_are_no_text_are_read(tmp_path):
    name = os.fsencode(tmp_path) + b"/bird/\xff\xfe.jpg"
    write(tmp_path, {"bird/a.jpg": imagefiles.jpeg()})
    try:
        with open(name, "wb") as file:
            file.write(imagefiles.jpeg(5, 6))
    except OSError:
        pytest.skip("the file system takes UTF-8 names only")

    source = images(tmp_path)

    assert source.read([1])["image"][0].tobytes() == imagefiles.jpeg(5, 6)
    assert source.fingerprint()


def test_the_fingerprint_tells_other_labels_and_folders_apart(tmp_path):
    same = images(write(tmp_path / "a"))
    source = images(
        write(tmp_path / "b", {name.replace("cat", "dog"): data for name, data in FILES.items()})
    )

    assert images(write(tmp_path / "c")).fingerprint() == same.fingerprint()
    assert source.fingerprint() != same.fingerprint()
    assert images(tmp_path / "a", labels=None).fingerprint() != same.fingerprint()


def test_a_record_outside_is_an_error(tmp_path):
    with pytest.raises(RecordIndexError, match="record 5 of a source of 5"):
        images(write(tmp_path))[5]


class TestFormats:
    @pytest.fixture
    def folder(self, tmp_path):
        """A folder with a file of every suffix."""
        golden = GOLDEN.parent / "image_formats"
        kinds = [kind for kind in head.FORMATS if (golden / kind).is_dir()]
        of_kind = {kind: sorted((golden / kind).rglob("*.*"))[-1].read_bytes() for kind in kinds}
        of_kind |= {
            "jpeg": imagefiles.jpeg(),
            "png": imagefiles.png(),
            "j2k": next(golden.rglob("rgb*.j2k")).read_bytes(),
        }
        names = {
            f"{kind}{suffix}": of_kind[kind]
            for kind, item in head.FORMATS.items()
            for suffix in item.suffixes
        }
        return write(tmp_path, names)

    def test_all_suffixes_stand_side_by_side(self, folder):
        source = images(folder, labels=None)

        assert len(source) == len(head.SUFFIXES)
        beginnings = [
            item[: head.LOOKED_AT_BYTES].tobytes()
            for item in source.read(range(len(source)))["image"]
        ]
        assert {head.kind_of(beginning) for beginning in beginnings} == set(head.FORMATS)

    def test_capital_letters_do_not_matter(self, tmp_path):
        assert len(images(write(tmp_path, {"a.TIF": b"x", "b.WebP": b"x"}), labels=None)) == 2

    def test_a_file_is_read_as_what_it_is(self, tmp_path):
        path = write(tmp_path, {"cat/a.jpg": imagefiles.tiff(13, 21)}) / "cat" / "a.jpg"

        assert head.read(images(path).read([0])["image"][0]).kind == "tiff"
