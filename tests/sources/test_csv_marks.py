"""Tables as other programs and countries write them: other marks in numbers, escapes, Excel's first
line, ZIP."""

from __future__ import annotations

import csv
import io
import logging
import pickle
import zipfile

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import FormatError, RecordError, SpecError
from gpuload.formats.csv import keep, rows

pytest.importorskip("pyarrow", reason="gl.csv reads by PyArrow")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Keep tables in a folder of the test."""
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))


@pytest.fixture(params=["memory", "tables"])
def place(request, monkeypatch):
    """Keep rows in memory; or in tables, of files that are cut into blocks of a few lines."""
    if request.param == "tables":
        monkeypatch.setattr(keep, "SMALL_BYTES", -1)
        monkeypatch.setattr(rows, "BLOCK_BYTES", 50)


def written(folder, text, name="a.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def values(source):
    return {name: part.tolist() for name, part in source.read(range(len(source))).items()}


MARKS = {
    "german": (
        'id;x;text\n1;"1.234.567,5";1.234\n2;-0,25;b\n3;7;"1,5"\n4;12.345;c\n',
        {"delimiter": ";", "decimal": ",", "thousands": "."},
        {
            "id": [1, 2, 3, 4],
            "x": [1234567.5, -0.25, 7.0, 12345.0],
            "text": ["1.234", "b", "1,5", "c"],
        },
    ),
    "american": (
        'id,x,text\n1,"1,234","1,234"\n2,-5,b\n3,"12,345,678",c\n',
        {"thousands": ","},
        {"id": [1, 2, 3], "x": [1234, -5, 12345678], "text": ["1,234", "b", "c"]},
    ),
    "indian": (
        'x,y\n"12,34,567.5",1\n"1,234",2\n',
        {"thousands": ","},
        {"x": [1234567.5, 1234.0], "y": [1, 2]},
    ),
    "swiss": (
        "x;y\n1'234;1\n-1'234'567;2\n",
        {"delimiter": ";", "thousands": "'"},
        {"x": [1234, -1234567], "y": [1, 2]},
    ),
    "french": (
        "x;y\n1\u202f234,5;1\n0,5;2\n",
        {"delimiter": ";", "decimal": ",", "thousands": "\u202f"},
        {"x": [1234.5, 0.5], "y": [1, 2]},
    ),
}


@pytest.mark.parametrize("name", MARKS)
def test_numbers_of_other_countries_are_numbers_and_texts_stay_as_they_are(tmp_path, place, name):
    text, options, expected = MARKS[name]

    source = gl.csv(written(tmp_path, text), **options)

    assert values(source) == expected
    assert values(pickle.loads(pickle.dumps(source))) == expected
    assert values(gl.open(source.index(str(tmp_path / "a.manifest")))) == expected


def test_a_mark_between_other_groups_than_thousands_makes_no_number(tmp_path):
    path = written(tmp_path, 'x,y\n"1,2",1\n"1,234",2\n')

    assert values(gl.csv(path, thousands=","))["x"] == ["1,2", "1,234"]
    with pytest.raises(RecordError, match=r"line 2, column 'x': '1,2' is no float64"):
        gl.csv(path, {"x": "f8"}, thousands=",")


@pytest.mark.parametrize(
    ("value", "remedy", "options", "expected"),
    [
        ("2,5", "pass decimal=',' if it is a number", {"decimal": ","}, 2.5),
        (
            "1.234,5",
            "pass decimal=',', thousands='.' if",
            {"decimal": ",", "thousands": "."},
            1234.5,
        ),
        ("1,234.5", "pass thousands=',' if", {"thousands": ","}, 1234.5),
        (
            "1 234,5",
            "pass decimal=',', thousands=' ' if",
            {"decimal": ",", "thousands": " "},
            1234.5,
        ),
    ],
)
def test_the_error_of_a_number_with_other_marks_says_the_arguments_that_read_it(
    tmp_path, value, remedy, options, expected
):
    path = written(tmp_path, f"x;y\n{value};1\n")

    with pytest.raises(RecordError) as error:
        gl.csv(path, {"x": "f8"}, delimiter=";")

    assert error.value.remedy.startswith(remedy)
    assert values(gl.csv(path, {"x": "f8"}, delimiter=";", **options)) == {"x": [expected]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decimal": ","}, r"delimiter = decimal = ','(.|\n)*pass another delimiter= or decimal="),
        ({"thousands": "."}, r"decimal = thousands = '\.'"),
        ({"thousands": ",", "quote": None}, r"delimiter = thousands = ','"),
        ({"escape": '"'}, r"quote = escape"),
        ({"thousands": "0"}, r"thousands = '0'"),
        ({"decimal": "-"}, r"decimal = '-'"),
        ({"decimal": None}, r"decimal = None"),
        ({"escape": "ab"}, r"escape = 'ab'"),
        ({"compression": "rar"}, r"compression = 'rar'"),
    ],
)
def test_marks_that_cannot_be_are_refused(tmp_path, options, message):
    with pytest.raises(SpecError, match=message):
        gl.csv(written(tmp_path, "a,b\n1,2\n"), **options)


# Escapes

TEXTS = [
    'a tube of 5" inside',
    "bare",
    'back\\slash "q"',
    "two\nlines",
    "a,b",
    '"',
    "\\",
    'ends with \\"',
    "ü",
    "x\\\ny",
]


def test_what_pythons_csv_writes_with_an_escape_character_is_read(tmp_path, place):
    file = io.StringIO(newline="")
    writer = csv.writer(file, escapechar="\\", doublequote=False, lineterminator="\n")
    writer.writerows([["n", "text"], *([number, text] for number, text in enumerate(TEXTS * 3))])

    source = gl.csv(written(tmp_path, file.getvalue()), escape="\\")

    assert values(source) == {"n": list(range(30)), "text": TEXTS * 3}
    assert source.where(4) == "a.csv, line 7"  # of "a,b": the record before it has two lines


def test_a_file_with_escapes_and_without_quotes_is_read(tmp_path, place):
    path = written(tmp_path, "n,text\n1,a\\,b\n2,c\\\nd\n3,e\\\\\n4,f\n")

    source = gl.csv(path, quote=None, escape="\\")

    assert values(source) == {"n": [1, 2, 3, 4], "text": ["a,b", "c\nd", "e\\", "f"]}
    assert source.where(3) == "a.csv, line 6"


# as MySQL writes it
NULLS = 'n,text,x\n1,a\\,\\N,0.5\n\\N,\\N,\\N\n3,"a,\\N,b\\",\\N",1\n4,\\\\N,2\n5,"\\N",\\N\n\\N,bN\\N,3'


def test_values_that_mysql_writes_as_missing_are_missing_or_an_error(tmp_path, place):
    path = written(tmp_path, NULLS)
    with pytest.raises(RecordError, match=r"line 3, column 'n' is \\N") as error:
        gl.csv(path, escape="\\")
    assert "na_values=['', '\\\\N']" in error.value.remedy

    source = gl.csv(
        path, defaults={"n": -1}, escape="\\", na_values=["", "\\N"]
    )  # as the remedy says

    records = values(source)
    assert records["n"] == [1, -1, 3, 4, 5, -1]
    assert records["text"] == ["a,N", "\\N", 'a,N,b",N', "\\N", "N", "bNN"]
    np.testing.assert_array_equal(records["x"], [0.5, np.nan, 1, 2, np.nan, 3])
    texts = gl.csv(path, {"text": str}, {"text": "none"}, escape="\\", na_values=["", "\\N"])
    assert values(texts)["text"][:3] == ["a,N", "none", 'a,N,b",N']


def test_lines_with_a_missing_value_that_is_not_listed_are_kept_as_wrong(tmp_path, place):
    source = gl.csv(written(tmp_path, "n,text\n1,a\n2,\\N\n3,b\n"), escape="\\", bad_lines="keep")
    assert len(source) == 3
    assert source.read([0, 2])["text"].tolist() == ["a", "b"]
    with pytest.raises(RecordError, match=r"line 3(.|\n)*column 'text' is \\N"):
        source.read([1])


@pytest.mark.parametrize("options", [{}, {"quote": None}, {"delimiter": "\t"}])
def test_a_table_of_mysql_without_quotes_is_read(tmp_path, place, options):
    delimiter = options.get("delimiter", ",")
    path = written(tmp_path, "\\N,1\n2,\\N\n\\N,\\N\n".replace(",", delimiter))
    source = gl.csv(path, header=["a", "b"], escape="\\", na_values=["\\N"], **options)
    np.testing.assert_array_equal(source.read([0, 1, 2])["a"], [np.nan, 2, np.nan])
    np.testing.assert_array_equal(source.read([0, 1, 2])["b"], [1, np.nan, np.nan])


@pytest.mark.parametrize(
    ("header", "is_told"), [(",x", True), ('"","x"', True), ("id,x", False), ("x,", False)]
)
def test_a_first_column_without_a_name_is_told(tmp_path, caplog, header, is_told):
    path = written(tmp_path, f"{header}\n0,5\n1,6\n")
    assert len(gl.csv(path)) == 2
    assert ("columns=['x'] leaves it out" in caplog.text) == is_told
    caplog.clear()
    assert gl.csv(path, columns=["x"]).spec.names == ("x",)
    assert not caplog.text


ESCAPED = 'n,text\n7,"a tube of 5\\" inside"\n8,bare\n'


def test_a_quote_behind_a_backslash_is_an_error_whose_remedy_reads_it(tmp_path, place):
    path = written(tmp_path, ESCAPED)

    with pytest.raises(
        RecordError, match=r"a\.csv, line 2: a quote inside of a value stands behind a backslash"
    ) as error:
        gl.csv(path)

    assert 'escape="\\\\"' in error.value.remedy
    assert values(gl.csv(path, escape="\\"))["text"] == ['a tube of 5" inside', "bare"]


def test_a_line_with_such_a_quote_is_kept_as_a_damaged_record_where_the_user_wants_that(
    tmp_path, place
):
    source = gl.csv(written(tmp_path, ESCAPED), bad_lines="keep")

    assert source[1] == {"n": 8, "text": "bare"}
    with pytest.raises(
        RecordError, match=r"line 2: a quote inside of a value stands behind a backslash"
    ):
        source[0]


def test_a_value_that_ends_with_a_backslash_is_none_of_these(tmp_path, place):
    path = written(tmp_path, 'folder,n\n"C:\\",1\n"D:\\""x",2\nE:\\"x,3\n')

    assert values(gl.csv(path))["folder"] == ["C:\\", 'D:\\"x', 'E:\\"x']


# Numbers that begin with a zero


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (["00501", "02134", "10001"], ["00501", "02134", "10001"]),
        (["10001", "00501", ""], ["10001", "00501", ""]),
        (['"007"', "8", "9"], ["007", "8", "9"]),
        ([" 007", "8", "9"], [" 007", "8", "9"]),
        (["1.5", "00.5", "2"], ["1.5", "00.5", "2"]),
        (["+4915123456789", "5", "+49301234567"], ["+4915123456789", "5", "+49301234567"]),
        (
            ['"+4915112345678901234"', "+4915112345678901235", ""],
            ["+4915112345678901234", "+4915112345678901235", ""],
        ),
        (["+1", "-1", "+1.5e+20"], [1.0, -1.0, 1.5e20]),
        (["1.0e+00000012", "-12345678", "+123.45678901"], [1e12, -12345678.0, 123.45678901]),
        (["  07", "8", "9"], ["  07", "8", "9"]),
        (["0", "0.5", "-0"], [0.0, 0.5, -0.0]),
        (["0", "10", "100"], [0, 10, 100]),
        (["2020-01-02 05:00:00", "2020-01-03 00:00:01", "2020-01-04 09:00:00"], None),
    ],
)
def test_numbers_that_begin_with_a_zero_stay_the_text_that_they_are(
    tmp_path, place, caplog, column, expected
):
    path = written(
        tmp_path,
        "x,y\n" + "".join(f"{text},1\n" for text in ["11"] * 8 * (expected is not None) + column),
    )

    source = gl.csv(path)

    result = source.read(range(len(source) - 3, len(source)))["x"]
    is_text = expected is not None and isinstance(expected[0], str)
    assert result.dtype.kind == ("U" if is_text else result.dtype.kind)
    assert expected is None or result.tolist() == expected
    assert sum("begin with a zero" in record.getMessage() for record in caplog.records) == is_text


def test_such_numbers_in_one_file_of_several_make_the_column_text_in_any_order(tmp_path, place):
    files = {"a.csv": "x\n4915112345678\n7\n", "b.csv": "x\n+4915112345679\n", "c.csv": "x\n1.5\n"}
    paths = [written(tmp_path, text, name) for name, text in files.items()]

    for order in (paths, paths[::-1]):
        read = values(gl.csv(order))["x"]
        assert sorted(read) == ["+4915112345679", "1.5", "4915112345678", "7"]


def test_who_says_that_such_a_column_is_a_number_gets_numbers(tmp_path, place, caplog):
    path = written(tmp_path, "zip,y\n00501,1\n02134,2\n")
    others = written(tmp_path, "x\n01.5\n+4915112345678\n", "b.csv")

    with caplog.at_level(logging.WARNING):
        assert values(gl.csv(path, {"zip": "i8"})) == {"zip": [501, 2134]}
        assert values(gl.csv(others, {"x": "f8"})) == {"x": [1.5, 4915112345678]}
    assert not caplog.records


# Excel's first line


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_the_first_line_of_excel_is_no_record(tmp_path, place, encoding):
    path = written(tmp_path, "sep=;\r\nid;x\r\n1;2\r\n3;4\r\n".encode(encoding))

    source = gl.csv(path, delimiter=";", encoding=encoding)

    assert values(source) == {"id": [1, 3], "x": [2, 4]}
    assert source.where(1) == "a.csv, line 4"


def test_another_delimiter_than_the_first_line_says_is_an_error_whose_remedy_works(tmp_path):
    path = written(tmp_path, "sep=;\nid;x\n1;2\n")

    with pytest.raises(
        SpecError, match="says in its first line that ';' stands between values"
    ) as error:
        gl.csv(path)

    assert error.value.remedy.startswith("pass delimiter=';'")
    assert values(gl.csv(path, delimiter=";")) == {"id": [1], "x": [2]}
    assert values(gl.open(path)) == {"id": [1], "x": [2]}
    wide = written(tmp_path, "sep=;\na;b;c\n1;2,5;3\n4;5;6\n", "wide.csv")
    assert list(gl.open(wide).spec.names) == ["a", "b", "c"]


def test_a_table_with_another_delimiter_is_told(tmp_path, caplog):
    gl.csv(written(tmp_path, "a;b;c\n1;2;3\n"))
    assert "if ';' stands between values, pass delimiter=';'" in caplog.text
    caplog.clear()

    gl.csv(written(tmp_path, "name\na;b\n", "b.csv"))
    gl.csv(written(tmp_path, "a;b\n1;2\n", "c.csv"), delimiter=";")
    assert not caplog.records


# Archives


def archive(path, *names, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as file:
        for name in names:
            file.writestr(
                name, "a,b\n" + "".join(f"{number},x{number}\n" for number in range(1000))
            )
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_table_in_an_archive_is_read_where_the_user_names_it(tmp_path, place, method):
    path = archive(tmp_path / "t.zip", "__MACOSX/._t.csv", "folder/", "folder/t.csv", method=method)

    source = gl.csv(path, compression="zip")

    assert (len(source), source[999], source.where(999)) == (
        1000,
        {"a": 999, "b": "x999"},
        "t.zip, line 1001",
    )


@pytest.mark.parametrize("call", [gl.csv, gl.text, gl.open, lambda path: gl.idx(x=path)])
def test_an_archive_is_named_as_one(tmp_path, call):
    with pytest.raises(FormatError, match="is a ZIP archive") as error:
        call(archive(tmp_path / "t.csv.zip", "t.csv"))

    assert f"unzip {tmp_path / 't.csv.zip'} -d {tmp_path / 't.csv'}" in error.value.remedy


def test_an_archive_of_several_files_or_of_arrays_is_no_table(tmp_path):
    np.savez(tmp_path / "x.npz", a=[1])

    with pytest.raises(FormatError, match=r"is a ZIP archive of 2 files"):
        gl.csv(archive(tmp_path / "t.zip", "a.csv", "b.csv"), compression="zip")
    with pytest.raises(FormatError, match=r"x\.npz is an NPZ file"):
        gl.csv(tmp_path / "x.npz", compression="zip")


@pytest.mark.parametrize("change", ["flip", "cut", "sum"])
def test_a_damaged_archive_is_refused(tmp_path, change):
    path = archive(
        tmp_path / "t.zip",
        "t.csv",
        method=zipfile.ZIP_STORED if change == "sum" else zipfile.ZIP_DEFLATED,
    )
    raw = bytearray(path.read_bytes())
    if change == "cut":
        del raw[len(raw) // 2 :]
    else:
        raw[1000] ^= 1
    path.write_bytes(raw)

    with pytest.raises((FormatError, RecordError), match=r"t\.zip"):
        gl.csv(path, compression="zip")


@pytest.mark.parametrize(
    ("head", "packer"),
    [
        (b"BZh91AY&SY", "bzip2"),
        (b"\xfd7zXZ\0\0", "xz"),
        (b"\x28\xb5\x2f\xfd\x04", "zstd"),
        (b"\x04\x22\x4d\x18d", "lz4"),
    ],
)
@pytest.mark.parametrize("call", [gl.csv, gl.text, gl.open])
def test_files_of_other_packers_are_named(tmp_path, call, head, packer):
    with pytest.raises(FormatError, match=f"is compressed by {packer}"):
        call(written(tmp_path, head + bytes(range(200))))


def test_arguments_of_before_have_the_fingerprints_of_before(tmp_path):
    """Printed by the version before these arguments were there."""
    path = written(tmp_path, "id,name\n1,x\n2,y\n")

    assert gl.csv(path).fingerprint() == "ed5d8af339ffdbc5"
    assert gl.csv(path, {"id": "i4"}, na_values=["?"]).fingerprint() == "c476b80116da75bd"
    assert gl.csv(path, thousands="'").fingerprint() != "ed5d8af339ffdbc5"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
@pytest.mark.parametrize(
    "text", ["sep=;\na;b\n1;2\n", "sep=;\r\na;b\r\n1;2", "a;b\n1;2\n", "a;b\n1;2"]
)
def test_the_line_of_excel_is_seen_in_tables_of_a_few_bytes(tmp_path, encoding, text):
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode(encoding))

    source = gl.csv(path, delimiter=";", encoding=encoding)
    assert source.spec.names == ("a", "b")
    assert source[0] == {"a": 1, "b": 2}
