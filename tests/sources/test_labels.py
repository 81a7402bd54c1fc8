"""Labels of image files that are not the folders they lie in."""

from __future__ import annotations

import csv
import pickle
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import (
    FormatError,
    GpuloadError,
    MissingFileError,
    SpecError,
    UnreadableFileError,
)
from gpuload.formats.images.source import images
from gpuload.testing.sources import SourceContract, assert_same
from tests import imagefiles

NAMES = (
    "a.png",
    "b, black.png",
    "cat/c.png",
    "cat/d.png",
    "dog/a.png",
)  # in the order of their paths
FILES = {name: imagefiles.png(3 + number, 4) for number, name in enumerate(NAMES)}
IMAGES = [np.frombuffer(content, np.uint8) for content in FILES.values()]


def write(folder):
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def write_csv(path, labels, header=("file", "label")):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *labels])
    return path


class TestArrayOfVectors(SourceContract):
    labels = np.arange(15, dtype=">f4").reshape(5, 3)

    def open(self, folder):
        return images(write(folder / "root"), labels=self.labels)

    def open_other(self, folder):
        return images(write(folder / "root"), labels=self.labels[::-1])

    def expected(self):
        return {"image": IMAGES, "label": self.labels.astype("f4")}


class TestTexts(SourceContract):
    def open(self, folder):
        return images(write(folder / "root"), labels=["ox", "dog", "ape", "dog", "ox"])

    def open_other(self, folder):
        return images(write(folder / "root"), labels=["pig", "dog", "ape", "dog", "pig"])

    def expected(self):
        return {"image": IMAGES, "label": np.array([2, 1, 0, 1, 2])}


class TestMappingOfAList(SourceContract):
    """In an order of its own, by names of all kinds."""

    def open(self, folder):
        root = write(folder / "root")
        labels = {
            root / NAMES[3]: 3.5,
            NAMES[0]: 0.5,
            str(root / NAMES[1]): 1.5,
            "./cat/../cat/c.png": 2.5,
            NAMES[4]: 4.5,
        }
        return images([root / name for name in reversed(NAMES)], labels=labels)

    def open_other(self, folder):
        return images(
            write(folder / "root"), labels=dict(zip(NAMES, [0.5, 1.5, 2.5, 3.5, 4.5], strict=True))
        )

    def expected(self):
        return {"image": IMAGES[::-1], "label": np.array([4.5, 3.5, 2.5, 1.5, 0.5])}


class TestCsv(SourceContract):
    numbers = (7, -1, 3, 0, 12)

    def open(self, folder):
        root = write(folder / "root")
        path = write_csv(folder / "labels.csv", list(zip(NAMES, self.numbers, strict=True))[::-1])
        return images(root, labels=path)

    def open_other(self, folder):
        root = write(folder / "root")
        return images(
            root, labels=str(write_csv(folder / "l.CSV", [(name, "x") for name in NAMES]))
        )

    def expected(self):
        return {"image": IMAGES, "label": np.array(self.numbers)}


@pytest.mark.parametrize(
    "kind", [list, tuple, np.array, lambda value: dict(zip(NAMES, value, strict=True))]
)
@pytest.mark.parametrize(
    ("labels", "dtype"),
    [
        ([3, 1, 2, 2, 0], "i8"),
        ([0.5, 1, 2, 3, 4], "f8"),
        ([True, False] * 2 + [True], "?"),
        ([[1, 2]] * 5, "i8"),
    ],
)
def test_numbers_are_labels_as_they_are(tmp_path, kind, labels, dtype):
    source = images(write(tmp_path), labels=kind(labels))

    assert_same(source.read(range(5))["label"], np.array(labels, dtype))
    assert source.classes == ()


def test_texts_become_the_numbers_of_the_sorted_ones(tmp_path):
    texts = ["ox", "dog", "ape", "dog", "ox"]
    write(tmp_path)

    for labels in (texts, np.array(texts), dict(zip(NAMES, texts, strict=True))):
        source = images(tmp_path, labels=labels)
        assert source.classes == ("ape", "dog", "ox")
        assert source.read(range(5))["label"].tolist() == [2, 1, 0, 1, 2]


def test_the_order_of_records_does_not_depend_on_labels(tmp_path):
    plain = images(write(tmp_path), labels=None)

    for labels in (list("edcba"), dict.fromkeys(reversed(NAMES), 1)):
        source = images(tmp_path, labels=labels)
        assert (
            [source.where(i) for i in range(5)] == [plain.where(i) for i in range(5)] == list(NAMES)
        )


def test_labels_are_copied(tmp_path):
    labels = np.arange(5)
    source = images(write(tmp_path), labels=labels)

    labels[:] = 9

    assert source.read(range(5))["label"].tolist() == [0, 1, 2, 3, 4]


def test_names_as_seen_from_where_the_program_runs_and_elsewhere_when_it_is_pickled(
    tmp_path, monkeypatch
):
    write(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "l.csv", [(f"photos/{name}", number) for number, name in enumerate(NAMES)])
    sources = [
        images("photos", labels={f"photos/{name}": number for number, name in enumerate(NAMES)}),
        images(
            [f"photos/{name}" for name in NAMES],
            labels={Path("photos") / name: i for i, name in enumerate(NAMES)},
        ),
        images("photos", labels="l.csv"),
    ]
    pickled = [pickle.dumps(source) for source in sources]
    (tmp_path / "l.csv").unlink()
    monkeypatch.chdir("/")

    for item in pickled:
        assert pickle.loads(item).read(range(5))["label"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1, 2, 3], "labels has 3 entries, there are 5 images"),
        (np.zeros((6, 5)), "labels has 6 entries, there are 5 images"),
        ([], "labels has 0 entries, there are 5 images"),
        (np.array(3), "labels = "),
        ([[1], [1, 2], [1], [1], [1]], "labels cannot be made an array"),
        ([None] * 5, "labels is an array of Python objects"),
        ([1, "a", 2, 3, 4], r"labels\[0\] is 1"),
        ([b"a"] * 5, "(?s)labels of dtype .S1.*numpy.char.decode"),
        (np.array([["a", "b"]] * 5), r"labels of dtype <U1 and shape \(5, 2\)"),
        (np.zeros(5, "M8[s]"), "labels of dtype datetime64"),
        (np.zeros(5, [("a", "u1")]), "labels of dtype"),
        (np.ma.masked_array(range(5)), "masked"),
        ({}, "(?s)a.png has no label, nor have 4 others.*0 labels for 5 images"),
        ({"a.png": 1, "z.png": 2}, r"labels\['z.png'\]: 'z.png' is none of the 5 images"),
        (
            {"a.png": 1, "./a.png": 2},
            r"(?s)'./a.png' has a label already, labels\['a.png'\].*a.png",
        ),
        ({3: 1}, "3 as the name of a file"),
        (dict.fromkeys(NAMES[1:], 1), "a.png has no label\n"),
        (b"labels.csv", "labels is one value without axes"),
    ],
)
def test_labels_that_are_not_one_for_each_image_are_refused(tmp_path, labels, message):
    with pytest.raises(GpuloadError, match=message) as caught:
        images(write(tmp_path), labels=labels)
    assert caught.value.remedy


class TestOfCsv:
    def labels_of(self, folder, text, encoding="utf-8"):
        (folder / "l.csv").write_bytes(text.encode(encoding))
        return images(write(folder / "root"), labels=folder / "l.csv")

    @pytest.mark.parametrize(
        ("labels", "expected"),
        [
            (["1", "02", "+3", "-4", "5"], np.array([1, 2, 3, -4, 5])),
            (["1", "2.5", "1e3", ".5", "4."], np.array([1, 2.5, 1000, 0.5, 4])),
            (["1", "nan", "2", "1_0", "1"], np.array([0, 3, 2, 1, 0])),
        ],
    )
    def test_labels_are_numbers_if_all_of_them_are(self, tmp_path, labels, expected):
        rows = [(name, label) for name, label in zip(NAMES, labels, strict=True)]
        source = images(write(tmp_path / "root"), labels=write_csv(tmp_path / "l.csv", rows))

        assert_same(source.read(range(5))["label"], expected)
        assert source.classes == (("1", "1_0", "2", "nan") if "nan" in labels else ())

    def test_quotes_blanks_empty_lines_and_byte_order_marks_are_read(self, tmp_path):
        text = (
            'image,"class"\r\n\r\na.png, x\r\n"b, black.png","y ""z"""\r\n\r\n'
            "cat/c.png,x\r\ncat/d.png,x\r\ndog/a.png,x"
        )

        source = self.labels_of(tmp_path, text, "utf-8-sig")

        assert source.classes == ("x", 'y "z"')
        assert source.read(range(5))["label"].tolist() == [0, 1, 0, 0, 0]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", r"l\.csv: its first line has 0 columns"),
            ("file;label\na.png;1\n", r"l\.csv: its first line has 1 columns"),
            (
                "a.png,1\ncat/c.png,1\n",
                r"(?s)l\.csv: its first line is \['a.png', '1'\].*file,label",
            ),
            ("file,label\na.png,1\nz.png,1\n", r"l\.csv, line 3: 'z.png' is none of the 5 images"),
            (
                "file,label\na.png,1\na.png,1\n",
                r"l\.csv, line 3: 'a.png' has a label already, .*l\.csv, line 2",
            ),
            (
                "file,label\na.png,1\n",
                "(?s)b, black.png has no label, nor have 3 others.*1 labels for 5 images",
            ),
            ("file,label\nb, black.png,1\n", r"(?s)line 2: \['b', 'black.png', '1'\].*quotes"),
            ("file,label\na.png,\n", r"line 2: \['a.png', ''\]"),
            ("file,label\na.png\n", r"line 2: \['a.png'\]"),
            ('file,label\n"a.png,1\n', "l.csv, line 2: it is no CSV file"),
            ('file,label\n"a".png,1\n', "l.csv, line 2: it is no CSV file"),
        ],
    )
    def test_what_is_wrong_is_named_with_its_line(self, tmp_path, text, message):
        with pytest.raises(GpuloadError, match=message) as caught:
            self.labels_of(tmp_path, text)
        assert caught.value.remedy

    def test_other_encodings_are_refused(self, tmp_path):
        with pytest.raises(FormatError, match="it is no CSV file in UTF-8"):
            self.labels_of(tmp_path, "file,label\nä.png,1\n", "latin-1")

    @pytest.mark.parametrize(
        "text",
        [str(2**63), str(-(2**63) - 1), "9" * 309, "9" * 5000, "1e400", "0" * 5000 + "1e999"],
    )
    def test_numbers_that_no_array_holds_are_refused_with_their_line(self, tmp_path, text):
        lines = [f'"{name}",1' for name in NAMES[:3]] + [f"{NAMES[3]},{text}", f"{NAMES[4]},1"]

        with pytest.raises(FormatError, match=r"l\.csv, line 5: the label '"):
            self.labels_of(tmp_path, "\n".join(["file,label", *lines]))

    def test_leading_zeros_of_any_number_are_read(self, tmp_path):
        lines = [f'"{name}",{"0" * 5000}{number}' for number, name in enumerate(NAMES)]

        source = self.labels_of(tmp_path, "\n".join(["file,label", *lines]))

        assert source.read(range(5))["label"].tolist() == [0, 1, 2, 3, 4]

    def test_names_without_suffix_mean_the_files_that_have_them(self, tmp_path):
        stems = [
            "a",
            "b, black",
            "cat/c",
            "d",
            "dog/a",
        ]  # "a" is a.png, seen from the folder; cat/d.png has the one d
        source = images(
            write(tmp_path / "root"),
            labels=write_csv(tmp_path / "l.csv", zip(stems, "edcba", strict=True), ("id", "k")),
        )

        assert [source.classes[number] for number in source.read(range(5))["label"]] == list(
            "edcba"
        )
        assert (
            images(tmp_path / "root", labels=dict(zip(stems, range(5), strict=True))).read([3])[
                "label"
            ]
            == 3
        )

    def test_the_column_of_files_is_known_by_its_name(self, tmp_path):
        rows = [(number, name) for number, name in enumerate(NAMES)]
        source = images(
            write(tmp_path / "root"), labels=write_csv(tmp_path / "l.csv", rows, ("breed", "Image"))
        )

        assert source.read(range(5))["label"].tolist() == [0, 1, 2, 3, 4]

    def test_a_name_without_suffix_that_two_files_have_is_refused(self, tmp_path):
        root = write(tmp_path / "root")
        (root / "cat" / "c.jpg").write_bytes(b"")
        (root / "cat" / "c.jpg").write_bytes(FILES["a.png"])
        path = write_csv(tmp_path / "l.csv", [("cat/c", 1)])
        with pytest.raises(
            SpecError, match=r"line 2: 'cat/c' is the name of 2 images(.|\n)*c\.jpg and .*c\.png"
        ):
            images(root, labels=path)

        path = write_csv(tmp_path / "m.csv", [("a", 1)])
        with pytest.raises(SpecError, match="line 2: 'a' is the name of 2 images"):
            images(
                [root / "cat" / "d.png", root / "dog" / "a.png", write(root / "x") / "a.png"],
                labels=path,
            )

    def test_a_missing_file_is_an_error(self, tmp_path):
        with pytest.raises(MissingFileError, match=r"none\.csv is missing"):
            images(write(tmp_path), labels=tmp_path / "none.csv")

    def test_a_folder_is_no_csv_file(self, tmp_path):
        (tmp_path / "l.csv").mkdir()
        with pytest.raises((IsADirectoryError, UnreadableFileError), match=r"l\.csv"):
            images(write(tmp_path / "root"), labels=tmp_path / "l.csv")


class TestColumnsOfCsv:
    header = ("subject", "breed", "file", "x", "y")
    rows = tuple(
        (f"s{number}", breed, name, number, number / 2)
        for number, (breed, name) in enumerate(
            zip(("ox", "dog", "ape", "dog", "ox"), NAMES, strict=True)
        )
    )

    def labels_of(self, folder, *arguments, rows=rows, header=header):
        path = write_csv(folder / "train.csv", rows, header)
        return images(write(folder / "root"), labels=gl.Labels(path, *arguments))

    def test_a_column_is_chosen_and_the_files_are_known_by_name(self, tmp_path):
        source = self.labels_of(tmp_path, "breed")

        assert [source.classes[number] for number in source.read(range(5))["label"]] == [
            row[1] for row in self.rows
        ]

    def test_several_columns_make_a_vector(self, tmp_path):
        source = self.labels_of(tmp_path, ["y", "x"], "file")

        assert_same(
            source.read(range(5))["label"], np.array([[row[4], row[3]] for row in self.rows])
        )
        assert pickle.loads(pickle.dumps(source)).fingerprint() == source.fingerprint()

    def test_the_first_column_has_the_files_where_no_name_says_so(self, tmp_path):
        source = self.labels_of(
            tmp_path, "k", rows=[(name, 1, 7) for name in NAMES], header=("what", "z", "k")
        )

        assert source.read(range(5))["label"].tolist() == [7] * 5

    def test_a_file_of_more_columns_names_the_call_that_chooses(self, tmp_path):
        path = write_csv(tmp_path / "train.csv", self.rows, self.header)

        with pytest.raises(
            FormatError, match=r"has 5 columns, (.|\n)*gl\.Labels\('train\.csv', label="
        ):
            images(write(tmp_path / "root"), labels=path)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("race",), r"train\.csv has no column 'race'(.|\n)*'breed'"),
            (("breed", "name"), "has no column 'name'"),
            ((["x", "breed"],), "column 'breed' holds texts, 'ox' is one"),
            (("x", "subject"), "line 2: 's0' is none of the 5 images"),
            ((3,), "label=3"), (([],), "label="), (("x", 3), "file=3"),
        ],
    )  # fmt: skip
    def test_columns_that_are_not_there_or_of_another_kind_are_refused(
        self, tmp_path, arguments, message
    ):
        with pytest.raises(GpuloadError, match=message) as caught:
            self.labels_of(tmp_path, *arguments)
        assert caught.value.remedy

    def test_a_line_that_is_short_is_named(self, tmp_path):
        with pytest.raises(FormatError, match=r"train\.csv, line 4"):
            self.labels_of(
                tmp_path, "x", rows=[*self.rows[:2], ("s", "ox", "cat/c.png"), *self.rows[3:]]
            )


def test_the_fingerprint_sees_other_labels(tmp_path):
    write(tmp_path)
    labels = [
        [0, 1, 2, 3, 4],
        [0, 1, 2, 3, 5],
        [0.0, 1, 2, 3, 4],
        [[0], [1], [2], [3], [4]],
        list("01234"),
        list("abcde"),
    ]

    prints = [images(tmp_path, labels=item).fingerprint() for item in labels]

    assert len(set(prints)) == len(labels)
    assert (
        images(tmp_path, labels=dict(zip(NAMES, labels[0], strict=True))).fingerprint() == prints[0]
    )


def test_sources_with_labels_go_through_a_loader(tmp_path):
    source = images(write(tmp_path), labels=[[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]])[1:]

    with gl.Loader(source, batch_size=2, output="label", device="cpu") as loader:
        assert np.concatenate([batch["label"] for batch in loader]).tolist() == [
            [3, 4],
            [5, 6],
            [7, 8],
            [9, 10],
        ]
