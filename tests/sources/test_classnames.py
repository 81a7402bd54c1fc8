"""Numbers of names: one rule for folders, lists, tables and members of archives; expected values by
hand."""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
import re
import tarfile

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import (
    FormatError,
    GpuloadError,
    MissingFileError,
    RecordError,
    SpecError,
    StateError,
)
from gpuload.sources.classnames import class_names, in_order
from tests import imagefiles


def write(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(imagefiles.png(3, 4))
    return root


def write_tar(path, *words):
    with tarfile.open(path, "w") as archive:
        for number, word in enumerate(words):
            member = tarfile.TarInfo(f"{number}.cls")
            member.size = len(word)
            archive.addfile(member, io.BytesIO(word))
    return path


def labels_of(source, field="label"):
    return source.read(range(len(source)), fields=field)[field].tolist()


def folders(root, *names):
    return write(root, *(f"{name}/0.png" for name in names))


@pytest.fixture
def lines(caplog):
    """Return a function that returns the lines of the log so far, and forgets them."""
    caplog.set_level(logging.INFO, "gpuload")

    def lines(level=logging.INFO):
        texts = [record.getMessage() for record in caplog.records if record.levelno >= level]
        caplog.clear()
        return texts

    return lines


# --- the order of names


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (["10", "9", "2"], ["2", "9", "10"]),
        (["010", "002", "001"], ["001", "002", "010"]),
        (["-1", "-10", "3"], ["-10", "-1", "3"]),
        (["1", "01", "2"], ["01", "1", "2"]),  # one number twice: they are codes
        (["10", "9", "x"], ["10", "9", "x"]),
        (["10", "9", "2.5"], ["10", "2.5", "9"]),
        (["\u0663", "10", "9"], ["10", "9", "\u0663"]),  # a digit of Arabic
        (["9" * 30, "10", "9"], ["10", "9", "9" * 30]),
        ([], []),
    ],
)
def test_names_that_are_whole_numbers_are_in_the_order_of_the_numbers(names, order):
    assert list(in_order(names)) == order


# --- class folders


def test_class_folders_that_are_numbers_are_their_own_labels_and_the_log_says_so_once(
    tmp_path, lines
):
    source = gl.images(folders(tmp_path, *map(str, range(12))))

    assert [source.classes[label] for label in labels_of(source)] == sorted(map(str, range(12)))
    assert [int(source.where(record).split("/")[0]) for record in range(12)] == labels_of(source)
    assert len(lines()) == 1
    assert lines() == []


@pytest.mark.parametrize("names", [("1", "2", "3"), ("0", "2", "10"), ("001", "002")])
def test_folders_that_are_other_numbers_than_their_labels_are_a_warning(tmp_path, lines, names):
    assert gl.images(folders(tmp_path, *names)).classes == names

    [line] = lines(logging.WARNING)
    first = next(number for number, name in enumerate(names) if int(name) != number)
    assert f"{names[first]} has label {first}" in line


def test_folders_that_are_one_number_are_a_warning(tmp_path, lines):
    assert gl.images(folders(tmp_path, "1", "01", "2", "10")).classes == ("01", "1", "10", "2")
    assert "01 and 1 are the same" in lines(logging.WARNING)[0]


@pytest.mark.parametrize(
    "names", [("ant", "bee"), ("0", "1", "2"), ("n01", "n02"), ("7a", "8", "10")]
)
def test_everyday_folders_are_nothing_to_log(tmp_path, lines, names):
    assert gl.images(folders(tmp_path, *names)).classes == tuple(sorted(names))
    assert lines() == []


def test_a_fingerprint_is_that_of_before_where_the_order_is_and_states_of_another_are_refused(
    tmp_path,
):
    """The two texts are of gpuload 916c0aa."""
    names, numbers = folders(tmp_path / "a", "ant", "bee"), folders(tmp_path / "n", "0", "2", "10")

    assert gl.images(names).fingerprint() == "de8dd2208fe6ae69"
    assert gl.images(names, labels=["x", "w"]).fingerprint() == "334e154ee47ee110"
    before = gl.images(numbers, classes=["0", "10", "2"])
    assert before.fingerprint() == "3d53105e9f589f36" != gl.images(numbers).fingerprint()
    state = gl.Loader(before, 1, output="label").state_dict()
    with pytest.raises(StateError, match="classes"):
        gl.Loader(gl.images(numbers), 1, output="label").load_state_dict(state)


def test_a_folder_without_an_image_is_no_class_and_the_log_names_it(tmp_path, lines):
    write(tmp_path, "cat/0.png", "dog/0.png", ".ipynb_checkpoints/0.png")
    for name in ("__MACOSX/cat/._0.png", "notes/read.me", "bee/.gitkeep"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"something")

    source = gl.images(tmp_path)

    assert (source.classes, labels_of(source)) == (("cat", "dog"), [0, 1])
    line, warning = [line for line in lines() if "other" not in line and "decoded" not in line][
        ::-1
    ]
    assert "['__MACOSX', 'notes']" in line
    assert "['bee']; to count such classes, pass classes=[...]" in warning
    assert gl.images(tmp_path, classes=["bee", "cat", "dog"]).classes == ("bee", "cat", "dog")
    assert lines(logging.WARNING) == []


PARTS = [
    ("train", "val", "test"),
    ("training", "testing"),
    ("Train", "Valid"),
    ("train",),
    ("dev", "test"),
]
PARTS += [
    ("train2017", "val2017"),
    ("test_set", "training_set"),
    ("seg_test", "seg_train"),
    ("fold_0", "fold_1"),
]
PARTS += [
    ("images_train", "images_val"),
    ("x-test", "x-train"),
    ("Fold1", "Fold2"),
    ("cv 0", "cv 1"),
]


def test_what_servers_put_beside_images_is_no_class_and_no_image(tmp_path, lines):
    write(
        tmp_path,
        "a/1.png",
        "b/1.png",
        "@eaDir/1.png/thumb.png",
        "a/@eaDir/1.png/thumb.jpg",
        "#recycle/b/2.png",
    )

    source = gl.images(tmp_path)

    assert source.classes == ("a", "b")
    assert [source.where(number) for number in range(len(source))] == ["a/1.png", "b/1.png"]
    assert lines() == [
        f"{tmp_path}: passed over, as they hold no image or are of the system: ['#recycle', '@eaDir']"
    ]


@pytest.mark.parametrize("names", [("data/a", "data/b"), ("images/train", "images/val/x")])
def test_one_class_whose_folders_may_be_the_classes_is_a_warning(tmp_path, lines, names):
    folders(tmp_path, *names)

    assert len(gl.images(tmp_path).classes) == 1
    (line,) = lines(logging.WARNING)
    assert (
        f"if its folders {[name.split('/')[1] for name in names]} are the classes, open gl.images("
        in line
    )


@pytest.mark.parametrize(
    "names", [("a",), ("a/old", "b/new", "b/x"), ("a/old",), ("a", "a/old", "a/new")]
)
def test_folders_in_classes_are_nothing_to_warn_of(tmp_path, lines, names):
    gl.images(folders(tmp_path, *names))

    assert lines(logging.WARNING) == []


def test_a_folder_under_two_names_is_read_once_and_told(tmp_path, lines):
    (folders(tmp_path, "a") / "b").symlink_to(tmp_path / "a")

    assert gl.images(tmp_path).classes == ("a",)
    (line,) = lines(logging.WARNING)
    assert (
        line
        == f"{tmp_path}: folders that are read already under another name, a link, are left out: ['b']"
    )


@pytest.mark.parametrize("parts", PARTS)
def test_parts_of_a_data_set_are_refused_with_the_form_to_write(tmp_path, parts):
    write(tmp_path, *(f"{part}/{name}/0.png" for part in parts for name in ("cat", "dog")))

    for open_images in (gl.images, gl.open):
        with pytest.raises(SpecError, match="are parts of a data set, and no classes") as error:
            open_images(tmp_path)
    space = {"gl": gl}
    calls = error.value.remedy.split(": ")[1].split("; ")
    for call in calls[:-1]:
        exec(call, space)
    for call in re.findall(r"gl\.images\('.*?\)", error.value.remedy):
        source = eval(call, space)
        assert (source.classes, labels_of(source)) == (("cat", "dog"), [0, 1])
    assert len(gl.images(tmp_path, labels=None)) == 2 * len(parts)


@pytest.mark.parametrize(
    ("folders", "inner", "is_told"),
    [
        (("amazon", "dslr", "webcam"), ("bike", "mouse"), True),
        (("color", "gray"), ("apple", "rice"), True),
        (("bullet_train", "steam_train"), ("images",), False),
        (("n01443537", "n01629819"), ("images",), False),
        (("bullet_train", "tram"), ("side", "front"), True),
        (("1", "2"), ("images", "masks"), True),
        (("cat", "dog"), ("day1", "day2"), False),
    ],
)
def test_class_folders_that_hold_the_same_folders_are_told_once(
    tmp_path, lines, folders, inner, is_told
):
    write(tmp_path, *(f"{folder}/{name}/0.png" for folder in folders for name in inner))

    assert gl.images(tmp_path).classes == folders
    warnings = [line for line in lines(logging.WARNING) if "hold the same folders" in line]
    assert len(warnings) == is_told
    if is_told:
        (form,) = re.findall(r"gl\.images\(.*?\)", warnings[0])
        assert eval(form, {"gl": gl}).classes == tuple(sorted(inner))
        assert gl.images(tmp_path, classes=list(folders)).classes == folders
    assert not [line for line in lines(logging.WARNING) if "hold the same folders" in line]


def test_class_folders_with_folders_of_different_names_are_classes(tmp_path, lines):
    write(
        tmp_path,
        "cat/old/0.png",
        "cat/new/0.png",
        "dog/a/0.png",
        "dog/old/0.png",
        "dog/b/1.png",
        "cat/c/1.png",
    )
    write(tmp_path, "fold_paper/a/0.png", "unfold/a/0.png", "cat/0.png")

    assert gl.images(tmp_path).classes == ("cat", "dog", "fold_paper", "unfold")
    assert lines(logging.WARNING) == []


def test_parts_beside_another_folder_are_refused_where_they_hold_the_same_folders(tmp_path):
    write(
        tmp_path,
        *(f"{part}/{name}/0.png" for part in ("train", "val") for name in ("a", "b")),
        "docs/0.png",
    )

    with pytest.raises(SpecError, match=r"\['train', 'val'\] are parts of a data set"):
        gl.images(tmp_path)


def test_classes_that_are_called_train_and_bus_are_classes(tmp_path, lines):
    assert gl.images(write(tmp_path / "a", "train/x/0.png", "bus/x/0.png")).classes == (
        "bus",
        "train",
    )
    assert gl.images(folders(tmp_path / "b", "train", "tram", "test")).classes == (
        "test",
        "train",
        "tram",
    )
    assert lines() == []
    two = write(tmp_path / "c", "train/x/0.png", "test/x/0.png")
    assert gl.images(two, classes=["test", "train"]).classes == ("test", "train")
    assert gl.images(folders(tmp_path / "d", "train", "test")).classes == ("test", "train")
    assert "the label of an image says which" in lines(logging.WARNING)[0]


def test_a_link_to_nothing_is_called_a_link(tmp_path):
    folders(tmp_path / "a", "cat")
    (tmp_path / "a" / "cat" / "1.png").symlink_to("gone")
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")

    with pytest.raises(
        MissingFileError, match=r"1\.png is a link to gone, which is not there(.|\n)*dvc pull"
    ):
        gl.images(tmp_path / "a")
    for open_files in (gl.npy, gl.images, gl.open):
        with pytest.raises(
            MissingFileError, match=r"lost is a link to .*nowhere, which is not there"
        ):
            open_files(tmp_path / "lost" / "x.npy")


def test_a_class_folder_that_is_a_link_to_nothing_is_a_warning(tmp_path, lines):
    (folders(tmp_path, "cat", "emu") / "dog").symlink_to(tmp_path / "gone")

    assert gl.images(tmp_path).classes == ("cat", "emu")
    assert "links lead nowhere, and are left out: ['dog']" in lines(logging.WARNING)[0]


def test_a_folder_of_another_format_is_opened_beside_that_of_a_mac(tmp_path):
    (tmp_path / "__MACOSX").mkdir()
    (tmp_path / "__MACOSX" / "._0.npy").write_bytes(b"x")
    np.save(tmp_path / "0.npy", np.arange(6).reshape(3, 2))

    assert len(gl.open(tmp_path)) == 3
    (tmp_path / "1.npy").symlink_to("gone")
    with pytest.raises(MissingFileError, match=r"1\.npy is a link to gone"):
        gl.open(tmp_path)


# --- classes=


def openings(root):
    """Yield functions that open the records "ant", "cat" of each format that makes numbers of
    names, and the field."""
    folder, table = folders(root / "val", "ant", "cat"), root / "labels.csv"
    table.write_text("file,kind,size\nant/0.png,ant,1\ncat/0.png,cat,2\n")
    (root / "two.csv").write_text("file,label\nant/0.png,ant\ncat/0.png,cat\n")
    archive = write_tar(root / "a.tar", b"ant\n", b"cat")
    manifest = gl.images(folder).index(root / "x.manifest")
    paths = [folder / "ant/0.png", folder / "cat/0.png"]
    mapping = {"ant/0.png": "ant", "cat/0.png": "cat"}
    yield "label", lambda classes: gl.images(folder, classes=classes)
    yield "label", lambda classes: gl.images(manifest, classes=classes)
    yield "label", lambda classes: gl.images(paths, classes=classes)
    yield "label", lambda classes: gl.images(f"{folder}/*/*.png", classes=classes)
    yield "label", lambda classes: gl.images(folder, labels=["ant", "cat"], classes=classes)
    yield (
        "label",
        lambda classes: gl.images(folder, labels=np.array(["ant", "cat"]), classes=classes),
    )
    yield "label", lambda classes: gl.images(folder, labels=mapping, classes=classes)
    yield "label", lambda classes: gl.images(folder, labels=root / "two.csv", classes=classes)
    yield (
        "label",
        lambda classes: gl.images(folder, labels=gl.Labels(table, "kind"), classes=classes),
    )
    yield (
        "label",
        lambda classes: gl.images(folder, labels=gl.Labels(table, "kind", classes=classes)),
    )
    yield "cls", lambda classes: gl.webdataset(archive, classes=classes)


NUM_OPENINGS = 11


@pytest.mark.parametrize("number", range(NUM_OPENINGS))
def test_classes_of_one_source_fit_another(tmp_path, number):
    field, open_with = list(openings(tmp_path))[number]
    train = gl.images(folders(tmp_path / "train", "ant", "bee", "cat"))
    path = tmp_path / "classes.json"
    path.write_text(json.dumps(train.classes))

    for classes in (
        train,
        train[1:],
        list(train.classes),
        np.array(train.classes),
        path,
        str(path),
    ):
        source = open_with(classes)
        assert labels_of(source, field) == [0, 2]
        assert source.classes == ("ant", "bee", "cat")
    path.write_text('{"cat": 0, "bee": 2, "ant": 1}')
    source = open_with(path)
    assert (labels_of(source, field), source.classes) == ([1, 0], ("cat", "ant", "bee"))
    assert source.fingerprint() != open_with(train).fingerprint()
    path.unlink()
    again = pickle.loads(pickle.dumps(source))
    assert (labels_of(again, field), again.classes) == ([1, 0], ("cat", "ant", "bee"))


@pytest.mark.parametrize("number", range(NUM_OPENINGS))
def test_an_unknown_class_is_named_with_its_record_and_the_known_ones(tmp_path, number):
    field, open_with = list(openings(tmp_path))[number]

    with pytest.raises((SpecError, RecordError)) as error:
        labels_of(open_with(["ant", "cats", "dog"]), field)

    text = str(error.value)
    assert "class 'cat' is none of the known classes" in text
    assert "['ant', 'cats', 'dog']" in text
    assert "if it means 'cats', rename it" in text
    assert "record 1" in text
    assert ("cat/0.png" if field == "label" else "a.tar") in text


def test_a_name_in_two_unicode_forms_is_named(tmp_path):
    with pytest.raises(SpecError, match=r"class 'cafe\\u0301' is none") as error:
        gl.images(folders(tmp_path, "cafe\u0301"), classes=["caf\u00e9", "tea"])
    assert (
        "if it means 'caf\\xe9', which looks the same and is written in other characters, rename"
        in str(error.value)
    )


@pytest.mark.parametrize("number", [0, 3, 10])
def test_a_manifest_keeps_classes(tmp_path, number):
    field, open_with = list(openings(tmp_path))[number]
    with open_with(["cat", "bee", "ant"]) as source:
        path, fingerprint = source.index(tmp_path / "y.manifest"), source.fingerprint()

    again = [gl.open(path), *([gl.images(path)] if field == "label" else [])]
    assert [labels_of(source, field) for source in again] == [[2, 0]] * len(again)
    assert all(source.classes == ("cat", "bee", "ant") for source in again)
    assert all(source.fingerprint() == fingerprint for source in again)


def test_a_manifest_of_before_with_other_classes_is_refused(tmp_path, monkeypatch):
    root = folders(tmp_path / "n", "0", "2", "10")
    with monkeypatch.context() as patch:
        patch.setattr(
            "gpuload.formats.images.source.top_folders", lambda root, paths: ["0", "10", "2"]
        )
        path = gl.images(root).index(tmp_path / "x.manifest")

    with pytest.raises(FormatError, match=r"\['0', '10', '2'\](.|\n)*\['0', '2', '10'\]"):
        gl.images(path)
    assert labels_of(gl.images(path, classes=["0", "10", "2"])) == [0, 1, 2]


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([], "is empty"),
        (["a", "b", "a"], "'a' stands there twice"),
        ([1, 2], "are a list of texts"),
        (["a", None], "are a list of texts"),
        ("cat", r"no path of a \.json file"),
        ({"a", "b"}, "are a list of texts"),
        ({"a": 1, "b": 2}, "each of 0 to 1 once"),
        ({"a": 0, "b": 0}, "each of 0 to 1 once"),
        ({"a": False, "b": True}, "each of 0 to 1 once"),
        ({"0": "a", "1": "b"}, "each of 0 to 1 once"),
        (7, "are a list of texts"),
        (gl.arrays(x=[1]), "no names of classes"),
    ],
)
def test_what_is_no_list_of_names_is_refused(classes, message):
    for call in (
        lambda: class_names(classes, "gl.images"),
        lambda: gl.Labels("a.csv", "x", classes=classes),
    ):
        with pytest.raises(SpecError, match=message):
            call()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1", "no JSON file"),
        ("[]", "is empty"),
        ('"a"', "list of texts"),
        ('{"a": 1, "a": 0}', "one name twice"),
    ],
)
def test_a_file_that_holds_no_names_is_refused(tmp_path, content, message):
    (tmp_path / "c.json").write_text(content)

    with pytest.raises(GpuloadError, match=message):
        class_names(str(tmp_path / "c.json"), "gl.images")
    with pytest.raises(MissingFileError, match=r"d\.json"):
        class_names("d.json", "gl.images")


def test_labels_that_are_numbers_are_checked_by_the_classes(tmp_path):
    root = folders(tmp_path / "a", "x", "y")

    source = gl.images(root, labels=[1, 0], classes=["ant", "bee"])

    assert (labels_of(source), source.classes) == ([1, 0], ("ant", "bee"))
    for labels, message in [
        ([1, 2], r"y/0\.png, record 1: label 2 is no class"),
        ([-1, 0], r"x/0\.png, record 0: label -1 is no class"),
        ([0.5, 1], "dtype float64"),
        ([[0, 1], [1, 0]], r"shape \(2, 2\)"),
        (None, "labels=None"),
    ]:
        with pytest.raises(SpecError, match=message):
            gl.images(root, labels=labels, classes=["ant", "bee"])
    with pytest.raises(SpecError, match="may be the name of a class or its place"):
        gl.images(root, labels=[0, 1], classes=["1", "2"])
    with pytest.raises(SpecError, match="pass one of them"):
        gl.images(root, labels=gl.Labels("a.csv", "x", classes=["a"]), classes=["a"])


def test_numbers_of_a_table_are_names_where_the_classes_are_called_so(tmp_path):
    root, table = folders(tmp_path / "a", "x", "y"), tmp_path / "t.csv"
    table.write_text("file,label\nx/0.png,10\ny/0.png,2\n")

    assert labels_of(gl.images(root, labels=table)) == [10, 2]
    assert labels_of(gl.images(root, labels=table, classes=["1", "2", "10"])) == [2, 1]
    table.write_text("file,label\nx/0.png,01\ny/0.png,1\n")
    with pytest.raises(FormatError, match="line 3: the labels '01' and '1' are the same number"):
        gl.images(root, labels=table)
    assert labels_of(gl.images(root, labels=table, classes=["01", "1"])) == [0, 1]


def test_texts_that_are_numbers_are_in_the_order_of_the_numbers(tmp_path, lines):
    root = write(tmp_path, "a.png", "b.png", "c.png")

    source = gl.images(root, labels=["10", "0", "9"])

    assert (source.classes, labels_of(source)) == (("0", "9", "10"), [2, 0, 1])
    assert "9 has label 1" in lines(logging.WARNING)[0]


# --- labels in the order of the names of the images


def test_labels_of_numbered_images_say_in_which_order_they_are_matched(tmp_path, lines):
    root = write(tmp_path, *(f"{number}.png" for number in range(12)))
    labels = list(range(12))

    for paths in (root, f"{root}/*.png", [f"{root}/*.png"]):
        source = gl.images(paths, labels=labels)
        [line] = lines(logging.WARNING)
        assert (
            "0.png, 1.png ... 11.png, 2.png ...; if they are in another order, pass a mapping"
            in line
        )
    pickle.loads(pickle.dumps(source))
    gl.images([root / f"{number}.png" for number in labels], labels=labels)
    gl.images(root, labels={f"{number}.png": number for number in labels})
    (tmp_path / "l.csv").write_text(
        "file,label\n" + "".join(f"{number}.png,{number}\n" for number in labels)
    )
    gl.images(root, labels=tmp_path / "l.csv")
    gl.images(
        write(tmp_path / "b", "a10.png", "b0.png", "x_01.png", "x_02.png", "x_1a.png"),
        labels=[0] * 5,
    )
    assert lines(logging.WARNING) == []
    gl.images(write(tmp_path / "c", "cat/2_9.jpg", "cat/2_10.jpg", "dog/1.jpg"), labels=[0] * 3)
    assert "cat/2_10.jpg, cat/2_9.jpg" in lines(logging.WARNING)[0]


# --- members of archives


def test_members_of_words_are_texts(tmp_path, lines):
    source = gl.webdataset(
        write_tar(tmp_path / "a.tar", b"n01440764\n", b" cat ", "h\u00e9".encode(), b"7")
    )

    assert labels_of(source, "cls") == ["n01440764", "cat", "h\u00e9", "7"]
    assert source.spec["cls"].text == "str"
    assert [line for line in lines() if "holds words" in line] != []
    assert labels_of(gl.open(source.index(tmp_path / "x.manifest")), "cls") == [
        "n01440764",
        "cat",
        "h\u00e9",
        "7",
    ]


def test_members_of_numbers_are_checked_by_the_classes(tmp_path):
    path = write_tar(tmp_path / "a.tar", b"1", b"0", b"2")

    assert labels_of(gl.webdataset(path, classes=["a", "b", "c"]), "cls") == [1, 0, 2]
    assert labels_of(gl.webdataset(path, classes=["2", "1", "0"]), "cls") == [1, 2, 0]
    with pytest.raises(RecordError, match=r"record 2(.|\n)*\['a', 'b'\], which are 0 to 1"):
        labels_of(gl.webdataset(path, classes=["a", "b"]), "cls")
    with pytest.raises(SpecError, match="may be the name of a class or its place"):
        gl.webdataset(path, classes=["10", "5"])


def test_a_word_among_numbers_is_not_called_damage(tmp_path):
    source = gl.webdataset(write_tar(tmp_path / "a.tar", b"1", b"cat"))

    with pytest.raises(
        RecordError, match=r"holds b'cat'(.|\n)*no whole number(.|\n)*pass classes=\[\.\.\.\]"
    ):
        source.read([1])


def test_classes_need_one_field_of_classes(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in ("0.cls", "0.cls2", "0.txt"):
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(b"x"))

    for fields in (None, ["txt"]):
        with pytest.raises(SpecError, match=r"fields=\["):
            gl.webdataset(tmp_path / "a.tar", fields, classes=["x"])
    assert labels_of(gl.webdataset(tmp_path / "a.tar", ["cls2"], classes=["y", "x"]), "cls2") == [1]


# --- several sources, and several files of one


def test_sources_of_other_classes_are_joined_once_they_have_the_same(tmp_path, lines):
    a, b = folders(tmp_path / "a", "cat"), folders(tmp_path / "b", "dog")
    for join in (gl.concat, lambda *parts: gl.mix([(part, 1) for part in parts])):
        with pytest.raises(SpecError, match=r"\['cat'\].*\['dog'\](.|\n)*classes=\[\.\.\.\]"):
            join(gl.images(a), gl.images(b))
        first = gl.images(a, classes=["cat", "dog"])
        assert join(first, gl.images(b, classes=first)).classes == ("cat", "dog")
    assert lines(logging.WARNING) == []
    pair = gl.zip(gl.images(a), gl.images(b).rename(image="mask", label="kind"))
    assert pair.classes == ()
    assert "source.classes is empty" in lines(logging.WARNING)[0]


def test_files_of_one_source_with_other_classes_are_refused(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def table(names):
        features = {"label": {"names": names, "_type": "ClassLabel"}}
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        return arrow.table({"label": [0, 1]}).replace_schema_metadata(metadata)

    for number, names in enumerate((["cat", "dog"], ["dog", "cat"], ["cat", 7, "dog"])):
        parquet.write_table(table(names), tmp_path / f"{number}.parquet")
        path = tmp_path / f"{number}.arrow"
        with (
            arrow.OSFile(str(path), "wb") as file,
            arrow.ipc.new_file(file, table(names).schema) as writer,
        ):
            writer.write_table(table(names))
    for call, suffix in ((gl.parquet, "parquet"), (gl.arrow, "arrow")):
        paths = [tmp_path / f"{number}.{suffix}" for number in range(3)]
        with pytest.raises(SpecError, match="label 0 would stand for different classes"):
            call(paths[:2])
        assert call(paths[0]).classes == ("cat", "dog")
        assert call(paths[2]).classes == ()  # all names or none: 7 is none, and dog is class 2


def test_names_of_classes_are_those_of_the_column_that_is_read(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    features = {
        name: {"names": [f"{name} 0", f"{name} 1"], "_type": "ClassLabel"}
        for name in ("fine", "coarse")
    }
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = arrow.table({"fine": [0, 1], "coarse": [1, 0], "x": [3, 4]}).replace_schema_metadata(
        metadata
    )
    parquet.write_table(table, tmp_path / "a.parquet")

    for fields, classes in [
        (["fine", "x"], ("fine 0", "fine 1")),
        (["coarse"], ("coarse 0", "coarse 1")),
        (["x"], ()),
        (None, ()),
    ]:
        assert gl.parquet(tmp_path / "a.parquet", fields).classes == classes


def test_names_that_look_alike_are_a_warning(tmp_path, lines):
    root = write(tmp_path, "a.png", "b.png", "c.png", "d.png")

    assert gl.images(root, labels=["cat", "Cat", "cat ", "cat"]).classes == ("Cat", "cat", "cat ")
    [line] = lines(logging.WARNING)
    assert "'cat' and 'cat ' look alike, and are two classes" in line


def test_files_with_other_enumerations_are_refused(tmp_path):
    h5py = pytest.importorskip("h5py")
    for number, names in enumerate(({"cat": 0, "dog": 1}, {"cat": 1, "dog": 0})):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file.create_dataset(
                "label", data=np.array([0, 1], "u1"), dtype=h5py.enum_dtype(names, "u1")
            )

    with pytest.raises(SpecError, match="label 0 would stand for different classes"):
        gl.hdf5([tmp_path / "0.h5", tmp_path / "1.h5"])
    assert gl.hdf5([tmp_path / "0.h5"]).classes == ("cat", "dog")


def test_a_folder_that_was_written_has_all_classes_again(tmp_path, lines):
    source = gl.images(folders(tmp_path / "a", "ant", "cat"), classes=["ant", "bee", "cat"])
    call = gl.convert(source, tmp_path / "out/").call

    for again in (eval(call), gl.open(tmp_path / "out")):
        assert (again.classes, labels_of(again)) == (("ant", "bee", "cat"), [0, 2])
    lines()
    gl.images(tmp_path / "out")
    assert os.path.join("out", "classes.json") in lines(logging.WARNING)[0]


@pytest.mark.parametrize("content", ['["ant"]', '{"0": "ant"}', "[1", '["ant", "ant"]', "{}"])
def test_a_file_of_classes_that_says_something_else_is_not_used(tmp_path, lines, content):
    root = folders(tmp_path, "ant", "cat")
    (root / "classes.json").write_text(content)

    assert gl.open(root).classes == ("ant", "cat")
    assert "classes.json is no list of the class folders beside it" in lines(logging.WARNING)[0]


# --- folders of systems

SYSTEM = [
    "@eaDir",
    "__MACOSX",
    "$RECYCLE.BIN",
    "lost+found",
    "System Volume Information",
    ".thumbnails",
    "#recycle",
]


@pytest.mark.parametrize("name", SYSTEM)
def test_folders_of_the_system_are_no_classes_and_hold_no_images(tmp_path, lines, name):
    write(tmp_path, "cat/0.png", "dog/0.png", f"{name}/cat/0.png", f"cat/{name}/0.png/THUMB.png")
    forms = (f"{tmp_path}/**/*.png", f"{tmp_path}/*/**/*.png", f"{tmp_path}/*/*.png")

    source = gl.images(tmp_path)

    assert (source.classes, len(source)) == (("cat", "dog"), 2)
    assert lines(logging.WARNING) == []
    assert [len(gl.images(form, labels=None)) for form in forms] == [2, 2, 2]
    assert len(gl.images(tmp_path / name, labels=None)) == 1  # named, it is a folder as any other
    assert [list(findings := gl.check(tmp_path)), findings.num_records] == [[], 2]


def test_a_table_in_a_folder_of_the_system_is_no_part_of_a_table(tmp_path):
    for folder in ("", "@eaDir", "lost+found"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "a.csv").write_text("x\n1\n")

    assert len(gl.csv(tmp_path)) == 1


def test_a_link_to_a_folder_above_is_not_followed(tmp_path, lines):
    root = write(tmp_path / "data", "cat/0.png", "dog/0.png")
    write(tmp_path, "other/0.png", "0.png")
    (root / "up").symlink_to(tmp_path)
    (root / "self").symlink_to(root)
    (root / "cat" / "up").symlink_to("../..")
    (root / "bee").symlink_to(
        tmp_path / "other"
    )  # a folder that lies elsewhere is a class as any other

    source = gl.images(root)

    assert (source.classes, len(source)) == (("bee", "cat", "dog"), 3)
    assert "links to a folder above it are not followed" in "\n".join(lines(logging.WARNING))
