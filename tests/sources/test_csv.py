"""CSV files: what they hold, against Python's csv module; types, defaults, and what is refused."""

from __future__ import annotations

import csv as table
import gzip
import itertools
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuload as gl
from gpuload.errors import (
    ChangedFileError,
    FormatError,
    MissingFileError,
    MissingPackageError,
    RecordError,
    SpecError,
    UnknownFieldError,
)
from gpuload.formats.csv import columns, keep, kinds, lines, parse, rows
from gpuload.ragged import Ragged
from gpuload.storage import inflate
from gpuload.storage.files import look_at
from gpuload.testing.sources import SourceContract, assert_same
from tests.sources import csvfiles

pytest.importorskip("pyarrow", reason="gl.csv needs PyArrow")
GOLDEN = Path(__file__).parents[1] / "golden" / "csv"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Keep tables in a folder of the test."""
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def in_tables(monkeypatch):
    """Keep small files in tables, too, and cut them into blocks of a few lines."""
    monkeypatch.setattr(keep, "SMALL_BYTES", -1)
    monkeypatch.setattr(rows, "BLOCK_BYTES", 50)


@pytest.fixture(params=["memory", "tables"])
def place(request):
    if request.param == "tables":
        request.getfixturevalue("in_tables")
    return request.param


def written(folder, text, name="a.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def values(source):
    return source.read(range(len(source)))


PEOPLE = 'id,name,age,when,is_new\n7,"Ann, ""A""",1.5,2024-01-31,true\n-8,Bjørk,,2024-02-29,false\n9,李,2e3,,true\n'


class TestPeopleInMemory(SourceContract):
    texts = (
        PEOPLE,
        PEOPLE.partition("\n")[0] + "\n",
        PEOPLE.replace("9,李", '9000000000,"two\nlines"'),
    )

    def open(self, folder):
        for number, text in enumerate(self.texts):
            written(folder, text, f"people-{number}.csv")
        return gl.csv(f"{folder}/people-*.csv")

    def open_other(self, folder):
        return gl.csv(written(folder, PEOPLE.replace("1.5", "2.5"), "people-0.csv"))

    def expected(self):
        return {
            "id": np.array([7, -8, 9, 7, -8, 9_000_000_000]),
            "name": np.array(['Ann, "A"', "Bjørk", "李", 'Ann, "A"', "Bjørk", "two\nlines"]),
            "age": np.array([1.5, np.nan, 2000] * 2),
            "when": np.array(["2024-01-31", "2024-02-29", "NaT"] * 2, "M8[D]"),
            "is_new": np.array([True, False, True] * 2),
        }


@pytest.mark.usefixtures("in_tables", "reader")
class TestPeopleInTables(TestPeopleInMemory):
    pass


@pytest.mark.usefixtures("reader")
class TestFieldsOfTheUsersTypes(SourceContract):
    """Bytes of varying length between fields of fixed size, a vector, and defaults."""

    columns: dict = {  # noqa: RUF012
        "age": "f4",
        "text": bytes,
        "pair": ("i2", ["x1", "x0"]),
        "name": "S6",
        "more": bytes,
        "label": "u1",
    }

    def lines(self):
        return [
            ["x0", "label", "text", "name", "age", "x1", "more"],
            ["1", "3", "hello", "a", "0.1", "-2", ""],
            ["3", "", "", "bø", "", "-4", "x" * 300],
            ["5", "9", 'li"ne\nbreak', "", "7", "-6", "é"],
            ["7", "0", "李" * 40, "abcdef", "-1", "-8", "-"],
        ]

    def open(self, folder):
        for number, choice in enumerate(([1, 2], [3, 4])):
            with open(folder / f"{number}.csv", "w", newline="", encoding="utf-8") as file:
                table.writer(file).writerows(self.lines()[place] for place in [0, *choice])
        return gl.csv(f"{folder}/*.csv", self.columns, {"label": 255, "name": "none"})

    def open_other(self, folder):
        with open(folder / "0.csv", "w", newline="", encoding="utf-8") as file:
            table.writer(file).writerows(self.lines()[:2])
        return gl.csv(folder / "0.csv", self.columns, {"label": 255, "name": "none"})

    def expected(self):
        by_name = dict(zip(self.lines()[0], zip(*self.lines()[1:], strict=True), strict=True))
        return {
            "age": np.array([0.1, np.nan, 7, -1], "f4"),
            "text": [np.frombuffer(text.encode(), np.uint8) for text in by_name["text"]],
            "pair": np.array([[-2, 1], [-4, 3], [-6, 5], [-8, 7]], "i2"),
            "name": np.array([b"a", "bø".encode(), b"none", b"abcdef"], "S6"),
            "more": [np.frombuffer(text.encode(), np.uint8) for text in by_name["more"]],
            "label": np.array([3, 255, 9, 0], "u1"),
        }


# Files of other programs

OPTIONS = {
    "csvkit/no_header_row.csv": {"header": False},
    "duckdb/customer.csv": {"header": False},
    "duckdb/flights.csv": {"delimiter": "|"},
    "duckdb/greek_utf8.csv": {"delimiter": "|", "header": False},
    "duckdb/header.csv": {"header": False},
    "duckdb/one_n_two.csv": {"header": False},
    "duckdb/versions.csv": {"delimiter": ";", "header": False},
    "frictionless-py/accent.csv": {"delimiter": ";"},
    "frictionless-py/duplicate-headers.csv": {"header": ["a", "b", "c", "d", "e"], "skip_lines": 1},
    "machinelearning/breast-cancer.txt": {
        "delimiter": "\t",
        "header": False,
        "skip_lines": 16,
        "na_values": ["?"],
    },
    "machinelearning/iris.txt": {"delimiter": "\t"},
    "machinelearning/tiny1.txt": {"delimiter": "\t", "header": False},
    "rust-csv/smallpop-colon.csv": {"delimiter": ":"},
}
REFUSED = {
    "csvkit/test_empty_columns.csv": r"test_empty_columns\.csv, line 3 has 4 columns, not 5",
    "duckdb/missing_column.csv": r"missing_column\.csv, line 7 has 1 column, not 2",
    "duckdb/simple.csv": r"simple\.csv begins with \['100', '000\.00'\]",
    "rust-csv/strange.csv": r"strange\.csv, line 2: a quote inside of a value stands behind a backslash",
}
FILES = sorted(str(path.relative_to(GOLDEN)) for path in GOLDEN.glob("*/*"))


@pytest.mark.parametrize("name", sorted(set(FILES) - REFUSED.keys()))
def test_a_file_of_another_program_is_what_the_csv_module_reads(name, place, monkeypatch):
    options = OPTIONS.get(name, {})
    if place == "tables":
        monkeypatch.setattr(rows, "BLOCK_BYTES", max(50, (GOLDEN / name).stat().st_size // 20))

    source = gl.csv(GOLDEN / name, **options)

    target = csvfiles.expected(GOLDEN / name, **options)
    assert list(source.spec.names) == list(target)
    for field, result in values(source).items():
        assert_same(result, target[field])


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_file_whose_lines_differ_is_refused_with_the_line(name, place):
    with pytest.raises((RecordError, SpecError), match=REFUSED[name]):
        gl.csv(GOLDEN / name)


def test_the_golden_files_are_all_here():
    assert len(FILES) == 54
    assert set(OPTIONS) | set(REFUSED) <= set(FILES)


# Text and lines


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", [True, False])
def test_lines_end_as_on_any_system_and_the_last_need_not(tmp_path, place, ending, last):
    text = (
        ending.join(["a,b", "1,x", "2,y", *(f"{number},z" for number in range(3, 33)), "33,"])
        + ending * last
    )

    fields = values(gl.csv(written(tmp_path, text)))

    assert_same(fields["a"], np.arange(1, 34))
    assert fields["b"].tolist() == ["x", "y", *["z"] * 30, ""]


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("utf-8", "naïve,日本\né,語\n"),
        ("utf-8-sig", "naïve,日本\né,語\n"),
        ("latin-1", "naïve,b\né,ÿ\n"),
        ("cp1252", "naïve,b\né,€\n"),
        ("utf-16", "naïve,日本\né,語😀\n"),
        ("utf-16-be", "naïve,日本\né,語\n"),
        ("shift_jis", "a,日本\nb,語\n"),
    ],
)
def test_text_is_of_the_encoding_that_is_said(tmp_path, place, encoding, text):
    path = written(tmp_path, text.encode(encoding))

    result = values(gl.csv(path, encoding=encoding))

    header, record = (line.split(",") for line in text.splitlines())
    assert {name: array.tolist() for name, array in result.items()} == {
        name: [value] for name, value in zip(header, record, strict=True)
    }


def test_a_file_of_gzip_is_unpacked_whatever_its_name(tmp_path, place):
    packed_bytes = gzip.compress(b"a,b\n1,x\n") + gzip.compress(b"2,y\n" * 1000)

    source = gl.csv(written(tmp_path, packed_bytes))

    assert_same(values(source)["a"], np.array([1] + [2] * 1000))
    assert source.where(1000) == "a.csv, line 1002"


@pytest.mark.parametrize("zeros", [0, 10, 1 << 20, 3 << 20])
def test_a_second_member_behind_zeros_is_read_as_pythons_gzip_reads_it(tmp_path, place, zeros):
    path = written(
        tmp_path, gzip.compress(b"x,y\n1,2\n3,4\n") + bytes(zeros) + gzip.compress(b"5,6\n7,8\n")
    )

    with gzip.open(path, "rt") as file:
        rows = [[int(text) for text in line.split(",")] for line in list(file)[1:]]
    result = values(gl.csv(path))

    assert [
        list(row) for row in zip(result["x"].tolist(), result["y"].tolist(), strict=True)
    ] == rows


def test_garbage_behind_zeros_behind_a_file_of_gzip_is_refused(tmp_path, place):
    packed_bytes = gzip.compress(b"x,y\n1,2\n") + bytes(3 << 20)

    with pytest.raises(
        FormatError,
        match=rf"from byte {len(packed_bytes)} to {len(packed_bytes) + 7} there is something else",
    ):
        gl.csv(written(tmp_path, packed_bytes + b"garbage"))


def test_a_file_of_gzip_that_grows_like_a_bomb_is_refused_and_the_limit_can_be_raised(
    tmp_path, place, monkeypatch
):
    monkeypatch.setattr(inflate, "ALLOWED_BYTES", 1 << 16)
    path = written(tmp_path, gzip.compress(b"x,y\n" + b"0,0\n" * 50_000))

    with pytest.raises(
        FormatError, match=r"a\.csv has(.|\n)*the limit is(.|\n)*GPULOAD_EXPANSION=1032"
    ):
        gl.csv(path)
    monkeypatch.setenv("GPULOAD_EXPANSION", "1032")
    assert len(gl.csv(path)) == 50_000


@pytest.mark.parametrize("piece", [20, 200])
def test_a_damaged_file_of_gzip_is_refused(tmp_path, place, piece):
    packed_bytes = gzip.compress(
        np.random.default_rng(0).integers(0, 256, 500).tobytes().hex().encode()
    )

    with pytest.raises(
        FormatError, match=r"a\.csv (is damaged(.|\n)*gzip|ends at byte (.|\n)*cut short)"
    ):
        gl.csv(written(tmp_path, packed_bytes[:piece]))


def test_where_says_the_line_also_behind_quoted_line_ends_and_empty_lines(tmp_path, place):
    source = gl.csv(written(tmp_path, 'a,b\n\n1,x\n2,"y\n\ny"\n\r\n3,z\n4,"\n"\n5,w'))

    assert [source.where(number) for number in range(5)] == [
        f"a.csv, line {line}" for line in (3, 4, 8, 9, 11)
    ]
    assert_same(values(source)["a"], np.arange(1, 6))


def test_a_quote_inside_a_value_is_a_character(tmp_path, place):
    lines = ["a,b"] + ['5" pipe,x', '"a"b"c,"d"""', 'x"",""'] * 40

    fields = values(gl.csv(written(tmp_path, "\n".join(lines))))

    assert fields["a"][:3].tolist() == ['5" pipe', 'ab"c', 'x""']
    assert fields["b"][:3].tolist() == ["x", 'd"', ""]
    assert len(fields["a"]) == 120


def test_without_a_quote_all_characters_are_values(tmp_path, place):
    fields = values(gl.csv(written(tmp_path, 'a,b\n"x,"y\n'), quote=None))

    assert (fields["a"].tolist(), fields["b"].tolist()) == (['"x'], ['"y'])


texts = st.text(st.sampled_from('",\n\r aé'), max_size=6)


@given(
    st.lists(st.tuples(texts, texts), min_size=1, max_size=30),
    st.sampled_from([16, 64, 1 << 20]),
    st.sampled_from(
        [(table.QUOTE_MINIMAL, "\r\n"), (table.QUOTE_ALL, "\n"), (table.QUOTE_ALL, "\r")]
    ),
)
def test_what_the_csv_module_writes_is_read(tmp_path_factory, written_rows, block_bytes, form):
    folder = tmp_path_factory.mktemp("written")
    with open(folder / "a.csv", "w", newline="", encoding="utf-8") as file:
        table.writer(file, quoting=form[0], lineterminator=form[1]).writerows(
            [("a", "b"), *written_rows]
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "BLOCK_BYTES", block_bytes)
        source = gl.csv(folder / "a.csv", {"a": str, "b": "U9"})

    fields = values(source)
    assert list(zip(fields["a"].tolist(), fields["b"].tolist(), strict=True)) == written_rows


@given(st.text(st.sampled_from('",;\n\r a'), max_size=60), st.sampled_from([8, 32, 1 << 20]))
def test_any_text_is_read_as_the_csv_module_does_or_refused(tmp_path_factory, text, block_bytes):
    folder = tmp_path_factory.mktemp("any")
    path = written(folder, "a,b\n" + text)
    expected = csvfiles.rows(path)[1:]
    is_whole = all(len(row) == 2 for row in expected)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "BLOCK_BYTES", block_bytes)
        if not is_whole or _open_at_the_end(text):
            with pytest.raises(
                RecordError, match=r"columns?, not 2|a quote is opened and not closed"
            ):
                gl.csv(path, {"a": "U60", "b": "U60"})
            return
        fields = values(gl.csv(path, {"a": "U60", "b": "U60"}))

    assert [
        list(row) for row in zip(fields["a"].tolist(), fields["b"].tolist(), strict=True)
    ] == expected


def test_a_line_end_of_two_characters_is_not_cut(tmp_path, monkeypatch):
    path = written(tmp_path, 'a,b\r\n1"",22\r\n3,4\r\n5\r\n')
    for block_bytes in range(4, 20):
        monkeypatch.setattr(rows, "BLOCK_BYTES", block_bytes)
        with pytest.raises(RecordError, match="line 4 has 1 column"):
            gl.csv(path, {"a": "U9", "b": "U9"})


def _open_at_the_end(text):
    """Return True if a quote is open at the end, which the csv module takes for closed; RFC 4180
    does not."""
    place, begins = 0, True  # begins: a value begins here
    while place < len(text):
        if begins and text[place] == '"':
            place += 1
            while text[place : place + 1] != '"' or text[place : place + 2] == '""':
                if place >= len(text):
                    return True
                place += 2 if text[place] == '"' else 1
            begins = False
        else:
            begins = text[place] in ",\r\n"
        place += 1
    return False


@given(
    st.lists(st.sampled_from(["", "x", '"y"', '"a\nb"', '"c""\r\nd"', 'e"', "f\r"]), max_size=12)
)
def test_the_scan_finds_the_lines_that_a_count_finds(parts):
    dialect = columns.dialect_of(False, ",", '"', "utf-8", 0, [""])
    data = "\n".join(parts).encode()

    for record in lines.scan(data, dialect):
        assert record.line == 1 + len(lines.LINE_END.findall(data[: record.begin]))


def test_a_block_in_pieces_is_its_records_in_their_order_with_their_lines_and_bytes():
    dialect = columns.dialect_of(False, ",", '"', "utf-8", 0, [""])
    data = b'1,2\n"3\n4",5\n\n66,7\n8,9'

    pieces = lines.split_block(lines.TextBlock(data, 10, 6, 1000, True), dialect, 5)

    assert [
        (piece.data, piece.line, piece.num_lines, piece.offset, piece.has_quotes)
        for piece in pieces
    ] == [
        (b"1,2\n", 10, 1, 1000, False),
        (b'"3\n4",5\n\n', 11, 3, 1004, True),
        (b"66,7\n", 14, 1, 1013, False),
        (b"8,9", 15, 1, 1018, False),
    ]


# Types


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1", "-2", "3"], np.array([1, -2, 3])),
        (["1", "", "3"], np.array([1, np.nan, 3])),
        (["1", "2.5", "NA"], np.array([1, 2.5, np.nan])),
        (["", "NULL", "nan"], np.full(3, np.nan)),
        (["true", "False", "TRUE"], np.array([True, False, True])),
        (["true", "", "TRUE"], np.array(["true", "", "TRUE"])),
        (["1", "true", "0"], np.array(["1", "true", "0"])),
        (["9223372036854775807", "-9223372036854775808", "0"], np.array([2**63 - 1, -(2**63), 0])),
        (["1", "0x1f", "3"], np.array(["1", "0x1f", "3"])),
        (["9223372036854775808", "18446744073709551615", "0"], np.array([2**63, 2**64 - 1, 0], np.uint64)),
        (["inf", "-inf", "0.1"], np.array([np.inf, -np.inf, 0.1])),
        (["99999999999999991611392", "0.5", "1"], np.array([1e23, 0.5, 1])),
        (["2024-01-31", "NaT" * 0, "1900-12-01"], np.array(["2024-01-31", "NaT", "1900-12-01"], "M8[D]")),
        (
            ["2024-01-31", "2024-01-31 10:30:00", "2024-01-31T23:59"],
            np.array(["2024-01-31", "2024-01-31T10:30", "2024-01-31T23:59"], "M8[s]"),
        ),
        (
            ["2024-01-31", "2024-01-31 10:30:00.25", ""],
            np.array(["2024-01-31", "2024-01-31T10:30:00.25", "NaT"], "M8[ns]"),
        ),
        (["10:30", "11:15", "12:00"], np.array(["10:30", "11:15", "12:00"])),
        (["2024-01-31", "1", "x"], np.array(["2024-01-31", "1", "x"])),
        (["2024-01-31T10:00Z", "2024-01-31T10:00+02:00", ""], None),
        (["1900-01-01 00:00:00", "1000-01-01 00:00:00", "2024-01-31 10:30:00.25"], None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_a_type_is_that_of_all_lines_in_any_order(tmp_path, place, texts, expected, order):
    choice = [texts[number] for number in order]
    filling = "".join(
        f"{number},{choice[0]}\n" for number in range(40)
    )  # the others come in later blocks
    path = written(tmp_path, "id,x\n" + filling + "".join(f"0,{text}\n" for text in choice))

    result = values(gl.csv(path))["x"][40:]

    assert_same(result, np.array(choice) if expected is None else expected[order])


NUMBERS = ["0", "1", "-5", "9007199254740993", "18446744073709551615", "0.5", "-1e9", "+7", "inf"]
OTHERS = [
    "true",
    "FALSE",
    "2024-01-31",
    "1000-01-01",
    "0x1f",
    "text",
    "é",
    "日本",
    "\ufeff",
    "1_0",
    "1,5",
    "a\nb",
]
tokens = (
    st.sampled_from(NUMBERS)
    | st.sampled_from(["", "NA", *NUMBERS])
    | st.sampled_from(["", *NUMBERS, *OTHERS])
)
columns_of_tokens = st.lists(tokens, min_size=1, max_size=30) | st.lists(
    st.sampled_from(OTHERS), min_size=1, max_size=9
)


@given(columns_of_tokens, st.sampled_from([4, 16, 1 << 20]), st.booleans())
def test_types_are_those_of_the_whole_data_wherever_it_is_cut(
    tmp_path_factory, texts, block_bytes, small
):
    folder = tmp_path_factory.mktemp("tokens")
    with open(folder / "a.csv", "w", newline="", encoding="utf-8") as file:
        table.writer(file).writerows([["x", "y"], *([text, "1"] for text in texts)])
    integers = [int(text) for text in texts if csvfiles.INTEGER.fullmatch(text)]
    is_rounded = csvfiles.column(texts).dtype == "f8" and any(
        int(float(number)) != number for number in integers
    )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "BLOCK_BYTES", block_bytes)
        patch.setattr(keep, "SMALL_BYTES", 1 << 24 if small else -1)
        patch.setenv("GPULOAD_CACHE", str(folder / "cache"))
        if is_rounded:
            with pytest.raises(SpecError, match="float64 does not hold this integer exactly"):
                gl.csv(folder / "a.csv")
            return
        result = values(gl.csv(folder / "a.csv"))["x"]

    assert_same(result, csvfiles.column(texts))


@pytest.mark.parametrize("before", ["1", "0.5"])
@pytest.mark.parametrize(
    "text", ["9" * 309, "-" + "9" * 309, "9" * 5000, "1e400"], ids=lambda text: text[:6]
)
def test_a_number_that_no_float_holds_is_refused_with_line_and_column(
    tmp_path, place, before, text
):
    path = written(tmp_path, "a,b\n" + f"1,{before}\n" * 30 + f"2,{text}\n3,1\n")

    with pytest.raises(
        SpecError, match=r"a\.csv, line 32, column 'b' has '.*\n.*no dtype holds it"
    ):
        gl.csv(path)
    with pytest.raises(RecordError, match=r"a\.csv, line 32, column 'b': '.* is no float64"):
        gl.csv(path, columns={"b": "f8"})
    assert bytes(gl.csv(path, columns={"b": bytes}).read([30])["b"][0]) == text.encode()


def test_a_number_that_a_float_of_four_bytes_does_not_hold_is_refused(tmp_path, place):
    path = written(tmp_path, "a,b\n1,2\n3,1e39\n")

    with pytest.raises(RecordError, match=r"a\.csv, line 3, column 'b': '1e39' is no float32"):
        gl.csv(path, columns={"b": "f4"})
    assert gl.csv(path, columns={"b": "f8"}).read([1])["b"].tolist() == [1e39]


@pytest.mark.parametrize("dtype", [None, "f4", "f8"])
def test_infinity_in_words_is_infinite(tmp_path, place, dtype):
    path = written(tmp_path, "a,b\n1,inf\n2,-Infinity\n3,nan\n4,\n5,0.5\n")

    assert gl.csv(path, columns={"b": dtype}).read(range(5))["b"].astype(str).tolist() == [
        "inf", "-inf", "nan", "nan", "0.5",
    ]  # fmt: skip


def test_leading_zeros_of_any_number_are_read_where_the_user_says_that_it_is_one(tmp_path, place):
    texts = ["7", "0" * 5000 + "9" * 19, "0" * 5000 + "1"]
    path = written(tmp_path, "a,b\n" + "".join(f"{text},1\n" for text in texts))

    result = values(gl.csv(path, {"a": "u8"}))["a"]

    assert result.tolist() == [7, 9999999999999999999, 1]


def test_a_text_that_comes_late_makes_a_column_text_with_nothing_lost(tmp_path, place):
    numbers = [f"{number:05d}" for number in range(200)]
    path = written(
        tmp_path, "x,y\n" + "".join(f"{text},1\n" for text in numbers) + "end of the list,2\n"
    )

    assert_same(values(gl.csv(path))["x"], np.array([*numbers, "end of the list"]))


def test_types_are_those_of_all_files(tmp_path, place):
    paths = [
        written(tmp_path, "x,y\n" + text, name)
        for name, text in (
            ("0.csv", "1,a\n2,b\n"),
            ("1.csv", ""),
            ("2.csv", "0.5," + "c" * 60 + "\n"),
            ("3.csv", ",d\n"),
        )
    ]

    fields = values(gl.csv(paths))

    assert_same(fields["x"], np.array([1, 2, 0.5, np.nan]))
    assert_same(fields["y"], np.array(["a", "b", "c" * 60, "d"]))


@pytest.mark.parametrize("late", [False, True])
def test_integers_that_no_type_holds_are_an_error_that_names_the_line(tmp_path, place, late):
    text = "x\n" + "1\n" * 50 * late + "-5\n18446744073709551615\n"

    with pytest.raises(
        SpecError, match=rf"a\.csv, line {53 if late else 3}, column 'x' has '18446744073709551615'"
    ):
        gl.csv(written(tmp_path, text))
    with pytest.raises(SpecError, match="line 2, column 'x' has '123456789012345678901234567890'"):
        gl.csv(written(tmp_path, "x\n123456789012345678901234567890\n"))


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
@pytest.mark.parametrize("other", ["NA", "", "1.5", "1e3", "+7", "inf", str(2**64)])
def test_an_integer_that_a_float_would_round_is_an_error(tmp_path, place, order, other):
    lines = ["9007199254740993", "7", other][order]
    path = written(tmp_path, "x,y\n" + "".join(f"{text},1\n" for text in lines))
    line = lines.index("9007199254740993") + 2

    with pytest.raises(
        SpecError,
        match=rf"a\.csv, line {line}, column 'x' has '9007199254740993'\n.* 9007199254740992",
    ):
        gl.csv(path)
    with pytest.raises(SpecError, match=rf"a\.csv, line {line}, column 'x'"):
        gl.csv(path, bad_lines="keep")
    assert values(gl.csv(path, columns={"x": str}))["x"].tolist() == lines
    if other in csvfiles.MISSING:
        assert values(gl.csv(path, defaults={"x": -1}))["x"].max() == 9007199254740993


def test_an_integer_that_the_floats_of_another_file_would_round_is_an_error(tmp_path, place):
    first = written(tmp_path, "x\n1.5\n", "a.csv")
    second = written(tmp_path, "x\n3\n9007199254740993\n", "b.csv")

    for paths in ([first, second], [second, first]):
        with pytest.raises(SpecError, match=r"b\.csv, line 3, column 'x' has '9007199254740993'"):
            gl.csv(paths)


@pytest.mark.parametrize(
    "arguments", [{"columns": {"x": "f8"}}, {"columns": {"x": "f4"}}, {"defaults": {"x": 0.5}}]
)
def test_an_integer_that_a_float_would_round_is_none_where_the_user_says_the_type(
    tmp_path, place, arguments
):
    path = written(tmp_path, "x,y\n0.1,1\n9007199254740993,1\n,1\n9007199254740992,1\n")

    with pytest.raises(
        RecordError,
        match=r"a\.csv, line 3, column 'x': '9007199254740993' is no float(.|\n)*str keeps",
    ):
        gl.csv(path, **arguments)
    source = gl.csv(path, **arguments, bad_lines="keep")
    assert source.read([3])["x"].tolist() == [9007199254740992]
    with pytest.raises(RecordError, match="does not hold this integer exactly"):
        source.read([1])


@pytest.mark.parametrize("number", [2**53, 10**18, 2**63, 2**64, -(2**80)])
@pytest.mark.parametrize("other", ["NA", "0.5", "-3"])
def test_large_integers_that_a_float_holds_exactly_are_floats_where_others_need_them(
    tmp_path, place, number, other
):
    path = written(tmp_path, f"x,y\n{number},1\n{other},2\n")

    result = values(gl.csv(path))["x"]

    assert int(result[0]) == number
    assert result.dtype == ("int64" if other == "-3" and abs(number) < 2**63 else "float64")


@pytest.mark.parametrize(
    ("dtype", "texts", "expected"),
    [
        ("i1", ["-128", "127"], np.array([-128, 127], "i1")),
        ("u8", ["18446744073709551615", "0"], np.array([2**64 - 1, 0], "u8")),
        (">i4", ["1", " 2 "], np.array([1, 2], "i4")),
        ("f4", ["0.1", "16777217.5", "16777216", "-16777218"], np.array([0.1, 16777218, 16777216, -16777218], "f4")),
        (bool, ["1", "false"], np.array([True, False])),
        ("M8[D]", ["2024-02-29", ""], np.array(["2024-02-29", "NaT"], "M8[D]")),
        ("M8[ms]", ["2024-02-29T01:02:03.004"], np.array(["2024-02-29T01:02:03.004"], "M8[ms]")),
        ("U3", ["日本語", ""], np.array(["日本語", ""], "U3")),
        ("S9", ["日本語", "x"], np.array(["日本語".encode(), b"x"], "S9")),
        (str, ["NA", "001"], np.array(["NA", "001"])),
    ],
)  # fmt: skip
def test_a_column_has_the_type_that_the_user_says(tmp_path, place, dtype, texts, expected):
    path = written(tmp_path, "x,y\n" + "".join(f"{text},1\n" for text in texts))

    assert_same(values(gl.csv(path, {"x": dtype}))["x"], expected)


@pytest.mark.parametrize(
    ("dtype", "number", "rounded"),
    [("f4", 16777217, 16777216), ("f4", -123456789, -123456792), ("f8", 2**53 + 1, 2**53)],
)
def test_a_whole_number_that_floats_of_a_column_do_not_hold_is_refused(
    tmp_path, place, dtype, number, rounded
):
    path = written(tmp_path, f"x,y\n0.5,1\n{number},2\n,3\n")
    message = (
        rf"line 3, column 'x': '{number}' is no float\d+(.|\n)*exactly: it would become {rounded}"
    )

    with pytest.raises(RecordError, match=message) as error:
        gl.csv(path, {"x": dtype})
    assert ('pass "f8"' in error.value.remedy) == (dtype != "f8")
    source = gl.csv(path, {"x": "f8" if dtype != "f8" else str})  # as the remedy says
    assert int(source[1]["x"]) == number


def test_columns_are_chosen_and_ordered(tmp_path, place):
    path = written(tmp_path, "a,b,c\n1,x,0.5\n")

    assert gl.csv(path, ["c", "a"]).spec.names == ("c", "a")
    assert gl.csv(path, {"b": None, "a": "f8"})[0] == {"b": "x", "a": 1.0}


def test_a_wildcard_names_the_columns_of_a_vector(tmp_path, place):
    path = written(tmp_path, "label,pixel0,pixel1,pixel2\n3,0,128,255\n4,1,2,3\n")

    fields = values(gl.csv(path, {"image": ("u1", "pixel*"), "label": "i8"}))

    assert_same(fields["image"], np.array([[0, 128, 255], [1, 2, 3]], "u1"))
    assert_same(fields["label"], np.array([3, 4]))


# Missing values


def test_defaults_stand_for_what_is_missing_and_give_the_dtype(tmp_path, place):
    path = written(tmp_path, "a,b,c,d,e\n1,,x,,\n,2,,true,NA\n")
    when = np.datetime64("2000-01-01")

    fields = values(
        gl.csv(path, defaults={"a": 0, "b": np.float32(0.5), "c": "none", "d": False, "e": when})
    )

    assert_same(fields["a"], np.array([1, 0]))
    assert_same(fields["b"], np.array([0.5, 2], "f4"))
    assert_same(fields["c"], np.array(["x", "none"]))
    assert_same(fields["d"], np.array([False, True]))
    assert_same(fields["e"], np.array([when, when]))


def test_record_defaults_of_tensorflow_mean_the_same(tmp_path, place):
    tf = pytest.importorskip("tensorflow")
    lines = ["1,,x", ",2.5,", "3,4,NA"]
    path = written(tmp_path, "\n".join(lines))
    target = tf.io.decode_csv(lines, [[7], [0.5], ["none"]])

    fields = values(
        gl.csv(
            path,
            header=False,
            defaults=[[np.int32(7)], [np.float32(0.5)], ["none"]],
            na_values=[""],
        )
    )

    for result, tensor in zip(fields.values(), target, strict=True):
        expected = tensor.numpy()
        assert_same(result, expected.astype("U4") if expected.dtype == object else expected)


@pytest.mark.parametrize("required", [int, np.dtype("i4")])
def test_a_type_in_place_of_a_default_needs_a_value_in_each_line(tmp_path, place, required):
    path = written(tmp_path, "a,b\n1,2\n" * 1 + "3,4\n" * 30 + ",5\n")

    with pytest.raises(
        RecordError, match=r"a\.csv, line 33, column 'a': a value is missing"
    ) as caught:
        gl.csv(path, defaults=[required, 0])

    assert "defaults={'a': 0}" in caught.value.remedy


def test_a_missing_integer_or_boolean_without_a_default_is_an_error(tmp_path, place):
    path = written(tmp_path, "a,b\n1,true\nNA,\n")

    with pytest.raises(RecordError, match=r"line 3, column 'a': a value is missing \('NA'\)"):
        gl.csv(path, {"a": "i8"})
    with pytest.raises(RecordError, match=r"line 3, column 'b': a value is missing"):
        gl.csv(path, {"b": bool})


def test_what_is_missing_is_said_by_the_user(tmp_path, place):
    path = written(tmp_path, "a,b\n?,?\n2,\n")

    fields = values(gl.csv(path, na_values=["?"]))
    assert_same(fields["a"], np.array([np.nan, 2]))
    assert fields["b"].tolist() == ["?", ""]  # text without a default is what it is

    fields = values(gl.csv(path, na_values=["?"], defaults={"b": "unknown"}))
    assert fields["b"].tolist() == ["unknown", ""]


# Headers


def test_columns_without_a_header_are_numbered_or_named(tmp_path, place):
    path = written(tmp_path, "1,x\n2,y\n")

    assert gl.csv(path, header=False).spec.names == ("column_0", "column_1")
    assert values(gl.csv(path, header=["a", "b"]))["a"].tolist() == [1, 2]


def test_the_first_lines_can_be_left_out(tmp_path, place):
    path = written(tmp_path, 'made by "a program\r\n\r\n# x,y\na,b\n1,2\n')

    source = gl.csv(path, skip_lines=3)

    assert source.spec.names == ("a", "b")
    assert source.where(0) == "a.csv, line 5"


@pytest.mark.parametrize("head", ["1,2,3", "0.5,-1e3,7", "1,x,5,4,3"])
def test_a_header_that_looks_like_data_is_refused(tmp_path, head):
    path = written(tmp_path, f"{head}\n{head}\n")

    with pytest.raises(SpecError, match=r"a\.csv begins with (.|\n)*header=False"):
        gl.csv(path)
    assert len(gl.csv(path, header=False)) == 2
    assert len(gl.csv(path, columns=head.split(","))) == 1


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (
            "39, State-gov, 77516, Bachelors, 13, <=50K\n50, Private, 83311, Bachelors, 13, <=50K\n",
            {},
        ),
        ("M,0.455,15\nF,0.35,7\n", {}),
        ("M;0,455;15\nF;0,35;7\n", {"delimiter": ";", "decimal": ","}),
        ("a1,5.1,3.5,setosa\na2,4.9,3.0,setosa\n", {}),
        ("2020-01-01,5,x\n2020-01-02,6,y\n", {}),
        ("31.12.2020\n01.01.2021\n", {}),
    ],
)
def test_a_first_line_that_may_be_a_record_is_told_once(tmp_path, caplog, text, options):
    gl.csv(written(tmp_path, text), **options)

    (warning,) = caplog.messages
    assert "if it is a record: header=False" in warning


@pytest.mark.parametrize(
    "text",
    [
        "country,1999,2000\nx,1,2\n",
        "day,2020-01-01,2020-01-02\nx,5,6\n",
        "sample,400.5,401.0,401.5,class\ns1,0.1,0.2,0.3,2\n",
        "item,mean,0.5\na,3.5,4.5\n",
        "x,y,0.5\n",
        "name,nan,inf\na,1,2\n",
        "user,1\nbob,2\n",
        "x,0.5\na,'b\n",
    ],
)
def test_a_header_with_numbers_among_its_names_is_not_told(tmp_path, caplog, text):
    gl.csv(written(tmp_path, text))

    assert not caplog.messages


def test_years_as_names_are_a_header(tmp_path):
    assert gl.csv(written(tmp_path, "country,1999,2000,2001\nx,1,2,3\n")).spec.names[1] == "1999"


@pytest.mark.parametrize(
    ("second", "options"),
    [("a,c\n1,2\n", {}), ("b,a\n1,2\n", {}), ("1,2,3\n", {"header": False}), ("a\n1\n", {})],
)
def test_files_of_other_columns_are_refused_by_both_names(tmp_path, second, options):
    written(tmp_path, "a,b\n1,2\n", "first.csv")
    written(tmp_path, second, "second.csv")

    with pytest.raises(
        FormatError, match=r"second\.csv has the columns (.|\n)*first\.csv has \['a', 'b'\]"
    ):
        gl.csv(f"{tmp_path}/*.csv", **options)


def test_names_that_occur_twice_are_refused(tmp_path):
    with pytest.raises(SpecError, match=r"\['a'\] occur twice(.|\n)*skip_lines=1"):
        gl.csv(written(tmp_path, "a,b,a\n1,2,3\n"))


def test_a_header_without_records_is_a_source_of_none(tmp_path, place):
    source = gl.csv(written(tmp_path, "a,b\n"), {"a": "i4", "b": str})

    assert len(source) == 0
    assert_same(source.read([])["a"], np.zeros(0, "i4"))


@pytest.mark.parametrize("text", ["", "\n\n", "\ufeff"])
def test_an_empty_file_is_refused(tmp_path, text):
    with pytest.raises(FormatError, match=r"a\.csv is empty"):
        gl.csv(written(tmp_path, text))
    with pytest.raises(FormatError, match=r"a\.csv is empty"):
        gl.csv(written(tmp_path, text), header=False)


@pytest.mark.parametrize("blank", ["", "\n\n", "\ufeff", "a,b\n"])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_parts_without_records_as_spark_writes_them_hold_none(tmp_path, place, blank, at):
    folder = tmp_path / "out"
    folder.mkdir()
    texts = ["a,b\n1,x\n", "a,b\n2,y\n3,z\n"]
    for number, text in enumerate([*texts[:at], blank, *texts[at:]]):
        (folder / f"part-{number:05d}-c000.csv").write_text(text, encoding="utf-8")
    (folder / "_SUCCESS").write_text("")

    for call in (gl.csv, gl.open):
        source = call(folder)
        assert values(source)["a"].tolist() == [1, 2, 3]
        assert source.where(0) == f"part-{int(at == 0):05d}-c000.csv, line 2"
        assert values(gl.open(source.index(tmp_path / "a.manifest")))["b"].tolist() == [
            "x",
            "y",
            "z",
        ]


def test_parts_of_which_none_has_records_say_so(tmp_path, place):
    paths = [written(tmp_path, text, f"{number}.csv") for number, text in enumerate(["", "\n", ""])]

    with pytest.raises(
        FormatError,
        match=r"0\.csv and 2 more are empty\n.*no file has a line that names the columns",
    ):
        gl.csv(paths)
    with pytest.raises(FormatError, match=r"0\.csv is empty"):
        gl.open(paths)
    assert len(gl.csv(paths, header=["a", "b"])) == 0


def test_two_columns_of_one_name_are_an_error_only_where_one_of_them_is_read(tmp_path, place):
    path = written(tmp_path, "a,b,b\n1,2,3\n")

    assert values(gl.csv(path, ["a"]))["a"].tolist() == [1]
    for selection in (None, ["b"], {"b": "i8"}, {"x": ("i8", "b")}):
        with pytest.raises(SpecError, match=r"the column names \['b'\] occur twice"):
            gl.csv(path, selection)


def test_a_file_that_is_no_archive_is_said_to_be_none(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n1,2\n"))

    with pytest.raises(
        FormatError, match=r"a\.csv\.gz is no ZIP archive\n.*it is a file of gzip"
    ) as error:
        gl.csv(path, compression="zip")
    assert 'leave out compression="zip"' in error.value.remedy


# Damage


@pytest.mark.parametrize("at", [0, 40])
@pytest.mark.parametrize(
    ("line", "columns", "message"),
    [
        ("1,2", None, "has 2 columns, not 3: '1 . 2'"),
        ("1,2,3,4", None, "has 4 columns, not 3: '1 . 2 . 3 . 4'"),
        ("x,2,3", {"a": "i8"}, "column 'a': 'x' is no int64(.|\n)*no whole number"),
        ("1.5,2,3", {"a": "i4"}, "column 'a': '1.5' is no int32"),
        ("300,2,3", {"a": "u1"}, "column 'a': '300' is no uint8(.|\n)*0 to 255"),
        ("-1,2,3", {"a": "u1"}, "column 'a': '-1' is no uint8"),
        ("0x1f,2,3", {"a": "u1"}, "column 'a': '0x1f' is no uint8(.|\\n)*decimal"),
        ("99999999999999999999,2,3", {"a": "i8"}, "column 'a': '99999999999999999999' is no int64"),
        ("1,2_0,3", {"b": "f4"}, "column 'b': '2_0' is no float32"),
        ("1,yes,3", {"b": bool}, "column 'b': 'yes' is no bool"),
        ("1,2024-13-01,3", {"b": "M8[D]"}, "column 'b': '2024-13-01' is no datetime64"),
        ("1,2,abcdef", {"c": "U5"}, "column 'c' has 6 characters: 'abcdef'(.|\n)*nothing is cut"),
        ("1,2,日本", {"c": "S5"}, "column 'c' has 6 bytes"),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path, place, at, line, columns, message):
    good = {"M8[D]": "1,,3\n", bool: "1,1,3\n"}.get((columns or {}).get("b"), "1,2,3\n")
    path = written(tmp_path, "a,b,c\n" + good * at + line + "\n" + good * 9)

    with pytest.raises((RecordError, SpecError), match=rf"a\.csv, line {at + 2},? {message}"):
        gl.csv(path, columns)


def test_a_quote_that_is_not_closed_names_its_line(tmp_path, place):
    path = written(tmp_path, "a,b\n" + "1,2\n" * 30 + '3,"x\n' + "4,5\n" * 30)

    with pytest.raises(
        RecordError, match=r"a\.csv, line 32: a quote is opened and not closed(.|\n)*the file ends"
    ):
        gl.csv(path)


def test_a_quote_that_is_never_closed_is_refused_before_the_file_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "LARGEST_RECORD_BYTES", 1 << 20)
    path = tmp_path / "a.csv"
    with open(path, "wb") as file:
        file.write(b'a,b\n1,"x\n' + b"4,5\n" * (1 << 20))

    with pytest.raises(
        RecordError, match=r"a\.csv, line 2: a quote(.|\n)*next 1048576 bytes do not close it"
    ):
        gl.csv(path)


@pytest.mark.parametrize("text", [b"x", b"x,", b"1", b'"x" '])
def test_one_endless_line_is_refused_within_bounded_time_and_memory(tmp_path, text):
    path = tmp_path / "a.csv"
    with open(path, "wb") as file:
        file.write(b"a,b\n1,2\n" + text * ((20 << 20) // len(text)))
        file.truncate(1 << 40)  # a hole: nobody could read so much

    with pytest.raises(RecordError, match=r"a\.csv, line 3 has more than 16777216 bytes"):
        gl.csv(path, {"a": "i8"})


def test_a_file_that_was_never_written_is_refused(tmp_path):
    path = tmp_path / "a.csv"
    with open(path, "wb") as file:
        file.truncate(1 << 40)

    with pytest.raises(RecordError, match=r"a\.csv, line 1 holds a byte 0"):
        gl.csv(path)


def test_very_many_columns_are_refused(tmp_path):
    path = written(tmp_path, ",".join(f"c{number}" for number in range(100_000)) + "\n")

    with pytest.raises(FormatError, match="has 100000 columns"):
        gl.csv(path)


def test_thousands_of_columns_are_read(tmp_path, place):
    count = 5000
    text = (
        ",".join(f"c{number}" for number in range(count))
        + "\n"
        + ",".join(map(str, range(count)))
        + "\n"
    )

    source = gl.csv(written(tmp_path, text), {"x": ("f4", "c*")})

    assert_same(source[0]["x"], np.arange(count, dtype="f4"))


def test_bytes_that_are_no_utf8_are_named_by_line_and_byte(tmp_path, place):
    path = written(tmp_path, b"\xef\xbb\xbfa,b\n" + b"1,x\n" * 30 + b"2,caf\xe9\n")

    with pytest.raises(
        RecordError, match=r"a\.csv, line 32, byte 132, column 'b': 0xe9 is no UTF-8(.|\n)*latin-1"
    ):
        gl.csv(path)
    assert values(gl.csv(path, encoding="latin-1"))["b"][-1] == "café"


def test_bytes_of_another_encoding_are_named_by_line_and_byte(tmp_path, place):
    path = written(tmp_path, "a,b\n1,é\n".encode("utf-16-le") + b"\x00\xdc")

    with pytest.raises(RecordError, match=r"a\.csv, line 3, byte 16 is no utf-16-le"):
        gl.csv(path, encoding="utf-16-le")


def test_the_byte_that_is_named_does_not_depend_on_the_pieces_that_are_decoded(tmp_path):
    path = written(
        tmp_path, "a,b\n1,é\n".encode("utf-16-le") + b"\x00\xdc" + "x\n".encode("utf-16-le")
    )
    files, _ = look_at([str(path)], 0, lambda *_: None)
    dialect = columns.Dialect(
        ",", '"', "utf-16-le", header=True, names=None, skip_lines=0, na_values=()
    )

    for piece_bytes in range(1, 20):
        with pytest.raises(RecordError, match=r"a\.csv, line 3, byte 16 is no utf-16-le"):
            list(lines.blocks(files, 0, dialect, piece_bytes))


def test_a_byte_0_is_no_text(tmp_path, place):
    with pytest.raises(RecordError, match=r"a\.csv, line 3 holds a byte 0(.|\n)*utf-16"):
        gl.csv(written(tmp_path, b"a,b\n1,x\n2,y\0z\n"))
    with pytest.raises(SpecError, match=r"begins with b'\\xff\\xfe'(.|\n)*encoding=\"utf-16\""):
        gl.csv(written(tmp_path, "a,b\n".encode("utf-16")))


def test_missing_files_and_folders_without_tables_are_errors(tmp_path):
    with pytest.raises(MissingFileError):
        gl.csv(tmp_path / "lost.csv")
    with pytest.raises(MissingFileError, match=r"holds no file of CSV"):
        gl.csv(tmp_path)


def test_a_file_that_changed_is_refused_where_a_pickled_source_is_opened_again(tmp_path, place):
    path = written(tmp_path, "a\n1\n")
    pickled = pickle.dumps(gl.csv(path, header=True))
    written(tmp_path, "a\n2\n")

    with pytest.raises(ChangedFileError, match=r"the files of gl\.csv are others"):
        pickle.loads(pickled)


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    parse._arrow.cache_clear()
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(
        MissingPackageError, match=r"gl\.csv needs the package 'pyarrow'(.|\n)*\[csv\]"
    ):
        gl.csv(written(tmp_path, "a\n1\n"))

    parse._arrow.cache_clear()


# Arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": {"z": "f4"}}, "no column 'z'(.|\n)*'a', 'b'"),
        ({"columns": ["z"]}, "no column 'z'"),
        ({"columns": {"x": ("f4", "z*")}}, "field 'x' of no columns"),
        ({"columns": {"x": ("f4", ["a", "z"])}}, "no column 'z'"),
        ({"defaults": {"z": 0}}, "no field 'z'"),
    ],
)
def test_a_column_that_is_not_there_is_an_error_that_names_those_that_are(
    tmp_path, arguments, message
):
    with pytest.raises(UnknownFieldError, match=message):
        gl.csv(written(tmp_path, "a,b\n1,x\n"), **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": "a"}, r"columns = 'a'(.|\n)*write \['a'\]"),
        ({"columns": []}, "or a list of names"),
        ({"columns": [1]}, "or a list of names"),
        ({"columns": ["a", "a"]}, "a name stands there twice: 'a'"),
        ({"columns": {"a", "b"}}, "a set has no order"),
        ({"columns": itertools.repeat("a")}, "an iterator may have no end"),
        ({"header": itertools.count()}, "an iterator may have no end"),
        ({"defaults": itertools.count()}, "they are a dict or a list"),
        ({"na_values": itertools.repeat("a")}, "they are a list of texts"),
        ({"na_values": ["x" * 10**6]}, "1000000 characters"),
        ({"header": None}, "pass header=False"),
        ({"header": 2}, "pass header=True, skip_lines=2"),
        ({"columns": {"a": "no dtype"}}, "has dtype 'no dtype'"),
        ({"columns": {"v": ("O", ["a", "b"])}}, "has dtype object"),
        ({"columns": {"a": "c8"}}, "has dtype complex64"),
        ({"columns": {"a": "f2"}}, "has dtype float16"),
        ({"columns": {"a": "M8"}}, "has dtype datetime64"),
        ({"columns": {"a": "m8[s]"}}, "has dtype timedelta64"),
        ({"columns": {"a": [("x", "f4")]}}, "has dtype"),
        ({"columns": {"a": ("f4", (2,))}}, "has dtype"),
        ({"columns": {"x": (None, ["a", "b"])}}, "one dtype"),
        ({"columns": {"x": (str, ["a", "b"])}}, "text in a vector has a length"),
        ({"columns": {"x": ("f4", ["a", "a"])}}, "a name stands there twice"),
        ({"columns": {"x": ("f4", ["a"]), "a": "f4"}}, "in two fields"),
        ({"columns": {"": ("f4", ["a"])}}, "a dict from field to dtype"),
        ({"defaults": 0}, "defaults = 0"),
        ({"defaults": [0]}, "1 defaults for 2 columns"),
        ({"defaults": {"a": None}}, "'a' has None"),
        ({"defaults": {"a": [1, 2]}}, "'a' has"),
        ({"columns": {"a": "u1"}, "defaults": {"a": -1}}, "-1(.|\n)*no value of uint8"),
        ({"columns": {"a": "i4"}, "defaults": {"a": 0.5}}, "0.5(.|\n)*no value of int32"),
        (
            {"columns": {"a": "f8"}, "defaults": {"a": 2**53 + 1}},
            "9007199254740993(.|\n)*no value of float64",
        ),
        ({"columns": {"a": "f4"}, "defaults": {"a": 1e-60}}, "1e-60(.|\n)*no value of float32"),
        ({"columns": {"a": "i4"}, "defaults": {"a": "x"}}, "'x'(.|\n)*no value of int32"),
        ({"columns": {"b": "U2"}, "defaults": {"b": "xyz"}}, "'xyz'(.|\n)*no value of <U2"),
        ({"columns": {"b": "U2"}, "defaults": {"b": 0}}, "no value of <U2"),
        ({"header": "a,b"}, "header = 'a,b'"),
        ({"header": []}, "a list with the name of each column"),
        ({"header": ["a"]}, "header has 1 name,"),
        ({"header": 1}, "header = 1"),
        ({"delimiter": ""}, "delimiter = ''"),
        ({"delimiter": ",,"}, "delimiter = ',,'"),
        ({"delimiter": "\n"}, "delimiter = '\\\\n'"),
        ({"delimiter": "é"}, "delimiter = 'é'"),
        ({"quote": ""}, "quote = ''"),
        ({"quote": ","}, "the delimiter is the same"),
        ({"encoding": "klingon"}, "encoding = 'klingon'"),
        ({"encoding": "base64"}, "encoding = 'base64'"),
        ({"encoding": 8}, "encoding = 8"),
        ({"skip_lines": -1}, "skip_lines = -1"),
        ({"skip_lines": True}, "skip_lines = True"),
        ({"na_values": [0]}, "na_values = "),
        ({"na_values": 0}, "na_values = "),
    ],
)
def test_a_wrong_argument_is_refused_with_its_name(tmp_path, arguments, message):
    with pytest.raises(SpecError, match=message):
        gl.csv(written(tmp_path, "a,b\n1,x\n"), **arguments)


# In a loader


def test_a_loader_goes_on_where_it_was_left(tmp_path, in_tables):
    path = written(
        tmp_path,
        "x,y,name\n" + "".join(f"{number},{number / 8},n{number}\n" for number in range(500)),
    )
    columns = {"v": ("f4", ["x", "y"]), "name": str}

    with gl.Loader(
        gl.csv(path, columns), batch_size=32, shuffle=True, seed=5, device="cpu"
    ) as loader:
        batches = iter(loader)
        first = [next(batches) for _ in range(6)]
        records = [batch["v"][:, 0].tolist() for batch in first]
        state = loader.state_dict()
    with gl.Loader(
        gl.csv(path, columns), batch_size=32, shuffle=True, seed=5, device="cpu"
    ) as again:
        again.load_state_dict(state)
        for batch in again:
            assert batch["name"].tolist() == [f"n{int(x)}" for x in batch["v"][:, 0]]
            np.testing.assert_array_equal(batch["v"][:, 1], batch["v"][:, 0] / 8)
            records.append(batch["v"][:, 0].tolist())

    assert sorted(x for batch in records for x in batch) == list(range(500))


def test_ragged_bytes_reach_a_batch(tmp_path):
    path = written(tmp_path, "text\n" + "".join(f"{'ab' * number}x\n" for number in range(40)))

    with gl.Loader(
        gl.csv(path, {"text": bytes}), batch_size=16, shuffle=True, seed=1, device="cpu"
    ) as loader:
        results = [bytes(value) for batch in loader for value in batch["text"]]

    assert sorted(results) == sorted(b"ab" * number + b"x" for number in range(40))


def test_text_lies_in_rows_up_to_a_length_and_is_of_any_length_beyond(tmp_path):
    path = written(tmp_path, "text\n" + "x" * kinds.LONGEST_FIXED + "\n")
    longer = written(tmp_path, "text\n" + "x" * (kinds.LONGEST_FIXED + 1) + "\n", "b.csv")

    assert gl.csv(path).spec["text"].dtype == np.dtype(f"U{kinds.LONGEST_FIXED}")
    assert str(gl.csv(longer).spec["text"]) == "text: str ()"
    assert gl.csv(longer).read([0])["text"].tolist() == ["x" * (kinds.LONGEST_FIXED + 1)]
    assert isinstance(gl.csv(path, {"text": bytes}).read([0])["text"], Ragged)


def test_booleans_with_a_gap_are_text_and_a_warning_says_so(tmp_path, place, caplog):
    path = written(tmp_path, "a,b,c\n1,true,true\n2,,false\n3,false,true\n")

    with caplog.at_level("WARNING", "gpuload"):
        source = gl.csv(path)
    messages = [message for message in caplog.messages if "true and false" in message]

    assert [str(field.dtype) for field in source.spec] == ["int64", "<U5", "bool"]
    assert len(messages) == 1
    assert "column 'b'" in messages[0]
    again = gl.csv(path, columns={"a": "i8", "b": "?"}, defaults={"b": False})
    assert again.read(range(3))["b"].tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"defaults": {"a": [[1], [2, 3]]}}, "defaults: 'a' has [[1], [2, 3]]"),
        ({"defaults": {"b": "\ud800"}}, "defaults: 'b' has '\\ud800'"),
        ({"na_values": ["\ud800"]}, "na_values has '\\ud800'"),
    ],
)
def test_a_default_that_is_no_value_is_refused(tmp_path, arguments, what):
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,x\n,\n")

    with pytest.raises(SpecError) as caught:
        gl.csv(path, **arguments)

    assert caught.value.what == what
