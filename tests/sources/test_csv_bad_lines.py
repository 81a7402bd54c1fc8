"""Lines of CSV files that are wrong and kept: all others are read as they are, these are errors
when they are read."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import logging
import pickle
import random
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuload as gl
from gpuload.errors import GpuloadError, RecordError, SpecError
from gpuload.formats.csv import badlines, keep, rows
from gpuload.formats.csv import source as module
from gpuload.sources.reading import record_origin

pytest.importorskip("pyarrow", reason="gl.csv needs PyArrow")

COLUMNS = {"id": "i8", "x": "f4", "name": "U10"}
SOUND = ["1,1.5,a", "2,2.5,b", '3,3.5,"two\nlines"', "4,4.5,d"]
WRONG = {
    "too few columns": (b"9,1.5", "has 2 columns, not 3: '9 | 1.5'"),
    "too many columns": (b'9,1.5,"a\nb",c', "has 4 columns, not 3"),
    "no number": (b"abc,1.5,n", "column 'id': 'abc' is no int64"),
    "a number that is too large": (
        b"99999999999999999999,1.5,n",
        "column 'id': '99999999999999999999' is no int64",
    ),
    "no float": (b"9,1.5.5,n", "column 'x': '1.5.5' is no float32"),
    "a missing value": (b",1.5,n", "column 'id': a value is missing"),
    "a text that is too long": (b"9,1.5,elevenchars", "column 'name' has 11 characters"),
    "no UTF-8": (b"9,1.5,\xff", "column 'name': 0xff is no UTF-8"),
}


@pytest.fixture(params=["in memory", "in tables"])
def place(request, tmp_path, monkeypatch):
    """Where rows are kept; blocks are short."""
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(rows, "BLOCK_BYTES", 100)
    if request.param == "in tables":
        monkeypatch.setattr(keep, "SMALL_BYTES", -1)
    return request.param


@pytest.fixture
def conversions(monkeypatch):
    """Return the names of the files that are read from now on."""
    values, convert = [], rows.convert
    monkeypatch.setattr(
        keep, "convert", lambda job, *extra: values.append(job) or convert(job, *extra)
    )
    return values


def written(folder, lines, name="a.csv"):
    path = folder / name
    path.write_bytes(
        b"id,x,name\n"
        + b"".join(line if isinstance(line, bytes) else line.encode() for line in lines)
    )
    return path


def lines_of(count, wrong, line=b"9,1.5"):
    """Return lines that are numbered by their id, some of them wrong."""
    return [
        line + b"\n" if number in wrong else f"{number},{number / 2},n{number}\n"
        for number in range(count)
    ]


def seen_of(source):
    """Return the id of each record, None where it cannot be read."""
    results = []
    for number in range(len(source)):
        try:
            results.append(int(source[number]["id"]))
        except RecordError:
            results.append(None)
    return results


@pytest.mark.parametrize(("line", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_line_is_an_error_when_it_is_read_and_the_others_are_what_they_are(
    tmp_path, place, line, message
):
    path = written(tmp_path, [f"{item}\n" for item in SOUND[:3]] + [line + b"\n", SOUND[3] + "\n"])
    with pytest.raises(RecordError, match="line 6"):
        gl.csv(path, COLUMNS)

    source = gl.csv(path, COLUMNS, bad_lines="keep")

    assert seen_of(source) == [1, 2, 3, None, 4]
    assert source.read([0, 1, 2, 4])["name"].tolist() == ["a", "b", "two\nlines", "d"]
    with pytest.raises(RecordError) as caught:
        source.read([0, 4, 3])
    assert str(caught.value).startswith(f"a.csv, line 6: {message}")
    assert caught.value.cause
    assert caught.value.remedy
    assert record_origin(source, 3) == (str(path), path.read_bytes().index(line))


@pytest.mark.parametrize(
    "wrong", [{0}, {49}, {0, 1, 2, 3}, {7, 8, 21, 22, 23, 48, 49}, set(range(50)), set()]
)
def test_wherever_they_stand_all_other_lines_keep_their_numbers(tmp_path, place, wrong):
    source = gl.csv(written(tmp_path, lines_of(50, wrong)), COLUMNS, bad_lines="keep")

    assert seen_of(source) == [None if number in wrong else number for number in range(50)]
    sound = [number for number in range(50) if number not in wrong]
    assert source.read(sound)["name"].tolist() == [f"n{number}" for number in sound]
    assert [source.where(number) for number in (0, 49)] == ["a.csv, line 2", "a.csv, line 51"]


def test_bytes_of_varying_length_lie_where_they_lay(tmp_path, place):
    wrong = {0, 3, 20, 49}
    source = gl.csv(
        written(tmp_path, lines_of(50, wrong)), {**COLUMNS, "name": bytes}, bad_lines="keep"
    )

    sound = [number for number in range(50) if number not in wrong]
    assert [bytes(item) for item in source.read(sound)["name"]] == [
        f"n{number}".encode() for number in sound
    ]
    with pytest.raises(RecordError, match=r"a\.csv, line 5: has 2 columns"):
        source.read([1, 3])


@pytest.mark.parametrize("wrong", [{0}, {5, 30}])
def test_types_are_those_of_the_other_lines(tmp_path, place, wrong):
    path = written(tmp_path, lines_of(50, wrong, b"x,y,z,w"))

    source = gl.csv(path, bad_lines="keep")

    assert [str(field.dtype) for field in source.spec] == ["int64", "float64", "<U3"]
    assert seen_of(source) == [None if number in wrong else number for number in range(50)]


def test_integers_that_are_too_large_beside_wrong_lines_are_floats_where_others_are(
    tmp_path, place
):
    huge = 2**80
    path = written(tmp_path, [f"{huge},1,a\n", "9\n", "2.5,1,b\n"])

    assert gl.csv(path, bad_lines="keep").read([0, 2])["id"].tolist() == [float(huge), 2.5]

    with pytest.raises(SpecError, match=str(huge + 1)):
        gl.csv(
            written(tmp_path, [f"{huge + 1},1,a\n", "9\n", "2,1,b\n"], "b.csv"), bad_lines="keep"
        )


def test_a_loader_replaces_them_and_lists_them(tmp_path, place):
    wrong = {3, 17, 40}
    path = written(tmp_path, lines_of(50, wrong))
    source = gl.csv(path, COLUMNS, bad_lines="keep")

    with gl.Loader(source, 8, shuffle=True, on_error="skip", max_bad=0.1, device="cpu") as loader:
        batches = list(loader)

    rows_of = [
        (int(item), bool(valid))
        for batch in batches
        for item, valid in zip(batch["id"], batch.valid, strict=True)
    ]
    assert sorted(item for item, valid in rows_of if valid) == sorted(set(range(50)) - wrong)
    bad = sorted(loader.bad_records(), key=lambda item: item.record)
    assert [item.where for item in bad] == [f"a.csv, line {number + 2}" for number in sorted(wrong)]
    assert {item.file for item in bad} == {str(path)}
    assert bad[0].cause.startswith("has 2 columns, not 3: '9 | 1.5'; the columns are")

    with gl.Loader(source, 8, device="cpu") as strict, pytest.raises(RecordError, match="line 5"):
        list(strict)


def test_sources_that_are_made_of_it_say_the_same(tmp_path, place):
    source = gl.csv(written(tmp_path, lines_of(20, {4, 11})), COLUMNS, bad_lines="keep")
    pair = gl.concat(source[10:], source)

    assert seen_of(pair)[:3] == [10, None, 12]
    with pytest.raises(RecordError, match=r"a\.csv, line 6: has 2 columns"):
        pair.read([0, 14])
    assert seen_of(pickle.loads(pickle.dumps(source))) == seen_of(source)


def test_a_part_of_a_mix_names_its_file_once(tmp_path, place):
    source = gl.csv(written(tmp_path, lines_of(20, {4})), COLUMNS, bad_lines="keep")

    with gl.Loader(
        gl.mix([(source, 1), (source[10:], 1)]), 5, on_error="replace", max_bad=1, device="cpu"
    ) as loader:
        list(loader)

    assert {(item.where, item.cause[:14]) for item in loader.bad_records()} == {
        ("part 0: a.csv, line 6", "has 2 columns,")
    }


def test_check_lists_all_of_them(tmp_path, place):
    wrong = {12, 40}
    path = written(tmp_path, lines_of(50, wrong))

    of_path, of_source = gl.check(path), gl.check(gl.csv(path, COLUMNS, bad_lines="keep"))

    for result in (of_path, of_source):
        entries = list(result)
        assert [(item.record, item.where) for item in entries] == [
            (12, "a.csv, line 14"),
            (40, "a.csv, line 42"),
        ]
        assert {item.file for item in entries} == {str(path)}
        assert [path.read_bytes()[item.offset_bytes :].split(b"\n")[0] for item in entries] == [
            b"9,1.5"
        ] * 2
        assert result.num_unopened == 0


def test_a_file_that_is_found_to_be_a_table_may_have_a_wrong_line(tmp_path, place):
    with pytest.raises(RecordError, match=r"a\.csv, line 14 has 2 columns, not 3"):
        gl.open(written(tmp_path, lines_of(50, {12})))


@pytest.mark.parametrize("form", ["gzip", "utf-16"])
def test_packed_files_have_them_too_without_a_byte(tmp_path, place, form):
    text = written(tmp_path, lines_of(30, {8})).read_bytes()
    path = tmp_path / "b.csv"
    path.write_bytes(gzip.compress(text) if form == "gzip" else text.decode().encode(form))
    encoding = {} if form == "gzip" else {"encoding": form}

    source = gl.csv(path, COLUMNS, bad_lines="keep", **encoding)

    assert seen_of(source) == [None if number == 8 else number for number in range(30)]
    assert source.where(8) == "b.csv, line 10"
    assert record_origin(source, 8) is None


def test_the_log_says_how_many_there_are_each_time(tmp_path, place, caplog):
    path = written(tmp_path, lines_of(50, {3, 4}))

    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "gpuload"):
            gl.csv(path, COLUMNS, bad_lines="keep")
        messages = [record.getMessage() for record in caplog.records]
        assert messages == [
            "gl.csv: 2 of 50 lines are wrong and cannot be read; the first is a.csv, line 5: has 2 columns, not 3: "
            "'9 | 1.5'"
        ]


def test_not_all_of_a_large_file_may_be_wrong(tmp_path, place, monkeypatch):
    monkeypatch.setattr(badlines, "MOST_BAD", 5)
    path = written(tmp_path, lines_of(50, {1, 2, 3, 30, 40, 49}))

    with pytest.raises(
        RecordError, match=r"a\.csv, line 51: has 2 columns(.|\n)*more than 5 lines"
    ):
        gl.csv(path, COLUMNS, bad_lines="keep")


OTHERS = [
    ("1\xa0", "i4"), ("1\xa0", "f4"), ("٣", "f4"), ("1 ", "?"), ("-0", "u1"), ("2020-01-01T10:00:00", "M8[D]"),
    ("NaT", "M8[D]"), ("2020", "M8[D]"), ("2020-01-01T10:00:00Z", "M8[s]"), ("2020-01-01 10:00:01.5", "M8[s]"),
    ("1500-01-01", "M8[ns]"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "dtype"), OTHERS)
def test_values_that_python_takes_and_the_parser_does_not_are_wrong_by_themselves(
    tmp_path, place, text, dtype
):
    sound = ["2020-01-01", "2021-02-03"] if dtype.startswith("M8") else ["1", "0"]
    path = tmp_path / "a.csv"
    path.write_text(
        "a,b\n" + "".join(f"{item},1\n" for item in (*sound, text, *sound)), encoding="utf-8"
    )

    with pytest.raises(RecordError, match=r"a\.csv, line 4, column '?a"):
        gl.csv(path, {"a": dtype})
    source = gl.csv(path, {"a": dtype}, bad_lines="keep")

    np.testing.assert_array_equal(source.read([0, 1, 3, 4])["a"], np.array(sound * 2).astype(dtype) if dtype != "?" else
                                  np.array([True, False] * 2))  # fmt: skip
    with pytest.raises(RecordError, match=r"a\.csv, line 4"):
        source[2]


def test_what_the_parser_takes_is_right_beside_what_is_wrong(tmp_path, place):
    path = tmp_path / "a.csv"
    path.write_text("a\nnan(1)\nx\n2\n")

    np.testing.assert_equal(
        gl.csv(path, {"a": "f8"}, bad_lines="keep").read([0, 2])["a"], [np.nan, 2.0]
    )


def test_a_bad_record_is_told_without_reading_its_file_again(tmp_path, place, monkeypatch):
    path = written(tmp_path, [*lines_of(40, {30}), '41,1,"two\nlines"\n\n\n', *lines_of(40, {3})])
    source = gl.csv(path, COLUMNS, bad_lines="keep")
    monkeypatch.setattr(module, "blocks", None)

    with gl.Loader(source, 8, on_error="skip", max_bad=0.1, device="cpu") as loader:
        list(loader)

    assert sorted(item.where for item in loader.bad_records()) == [
        "a.csv, line 32",
        "a.csv, line 49",
    ]


def test_many_wrong_lines_with_long_names_come_back_from_the_table(tmp_path, place, conversions):
    name = "数" * 2000
    path = tmp_path / "a.csv"
    path.write_text(f"{name},b\n" + ",1\n" * 1000 + "5,1\n", encoding="utf-8")
    for _ in range(2):
        source = gl.csv(path, {name: "i4", "b": bytes}, bad_lines="keep")
        assert (len(source), source[1000][name]) == (1001, 5)
        with pytest.raises(RecordError, match="line 2: column '数"):
            source[0]
    assert len(conversions) == (2 if place == "in memory" else 1)


def test_the_first_line_may_be_wrong_where_the_columns_are_known(tmp_path, place):
    paths = [tmp_path / f"{number}.csv" for number in range(2)]
    for path in paths:
        path.write_text("1\n2,3\n4,5\n")

    source = gl.csv(paths, header=["id", "b"], bad_lines="keep")

    assert seen_of(source) == [None, 2, 4] * 2
    with pytest.raises(SpecError, match="header has 3 names"):
        gl.csv(paths, header=["id", "b", "c"], bad_lines="keep")


def test_a_table_without_them_is_not_taken_for_one_with_them(tmp_path, place):
    path = written(tmp_path, lines_of(50, set()))
    assert len(gl.csv(path, COLUMNS)) == len(gl.csv(path, COLUMNS, bad_lines="keep")) == 50


@pytest.mark.parametrize("line", ['5,1.5,"open', "5,1.5,a\0b"])
def test_what_no_other_line_can_be_told_from_is_an_error_all_the_same(tmp_path, place, line):
    with pytest.raises(RecordError, match=r"a\.csv, line 12"):
        gl.csv(
            written(tmp_path, [*lines_of(10, set()), f"{line}\n", *lines_of(10, set())]),
            bad_lines="keep",
        )


@pytest.mark.parametrize("value", ["skip", None, True, ["keep"]])
def test_another_way_is_refused(tmp_path, value):
    with pytest.raises(SpecError, match=r"bad_lines = (.|\n)*\('raise', 'keep'\)"):
        gl.csv(written(tmp_path, lines_of(3, set())), bad_lines=value)


FIELD = st.sampled_from(
    ["1", "-7", "0.5", "x", "", "é", "a,b", 'q"q', "two\nlines", "9" * 30, "longer than ten"]
)


@given(
    table=st.lists(st.lists(FIELD, min_size=1, max_size=4), max_size=40),
    block_bytes=st.integers(20, 300),
)
def test_what_is_kept_is_what_cannot_be_read_by_other_hands(tmp_path_factory, table, block_bytes):
    table = [line for line in table if line != [""]]  # written as a line of two quotes
    path = tmp_path_factory.mktemp("bad") / "a.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["id", "x", "name"], *table])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "BLOCK_BYTES", block_bytes)
        source = gl.csv(path, COLUMNS, bad_lines="keep")

    assert len(source) == len(table)
    for number, line in enumerate(table):
        if (values := _by_hand(line)) is None:
            with pytest.raises(RecordError):
                source[number]
        else:
            result = source[number]
            assert (int(result["id"]), str(result["name"])) == (values[0], values[2])
            np.testing.assert_equal(result["x"], np.float32(values[1]))


def _by_hand(line):
    try:
        number, real, name = line
        value = int(number)
        if not -(2**63) <= value < 2**63 or len(name) > 10:
            return None
        return value, float(real or "nan"), name
    except ValueError:
        return None


@pytest.mark.parametrize("count", [100, pytest.param(300, marks=pytest.mark.slow)])
def test_any_damage_leaves_an_error_or_the_other_lines(tmp_path, count):
    draw = random.Random(5)
    text = b"id,x,name\n" + b"".join(item.encode() for item in lines_of(60, set()))
    num_kept = 0
    for number in range(count):
        data = bytearray(text)
        for _ in range(draw.randint(1, 3)):
            data[draw.randrange(10, len(data))] = draw.choice(b',"\n\r\xffx0')
        path = tmp_path / f"{number}.csv"
        path.write_bytes(data)
        try:
            source = gl.csv(path, COLUMNS, bad_lines="keep")
        except GpuloadError:
            continue
        num_kept += 1
        table = list(csv.reader(io.StringIO(data.decode("utf-8", "replace"), newline="")))[1:]
        assert len(source) == len([line for line in table if line])
        sound = [item for item in seen_of(source) if item is not None]
        assert len(sound) >= 40, data
    assert num_kept > count * 2 // 3


@pytest.mark.parametrize("how", ["raise", "keep"])
def test_a_wrong_line_among_thousands_of_columns_is_found_soon(tmp_path, how):
    count = 2000
    row = ",".join(["1"] * count) + "\n"
    path = tmp_path / "a.csv"
    path.write_text(
        ",".join(f"c{number}" for number in range(count)) + "\n" + row * 100 + row[2:] + row
    )
    gl.csv(path, columns=["c0"], bad_lines="keep")  # imports and compiles
    began = time.process_time()

    with (
        contextlib.nullcontext()
        if how == "keep"
        else pytest.raises(RecordError, match="line 102 has 1999 columns")
    ):
        assert len(gl.csv(path, bad_lines=how)) == 102
    assert (
        time.process_time() - began < 4
    )  # some 0.3 s; a parse for each record and column took 16 s


def test_columns_that_only_text_can_hold_are_found_soon_among_thousands(tmp_path):
    count = 1000
    row = ",".join(["1.5"] * count) + "\n"
    path = tmp_path / "a.csv"
    path.write_text(
        ",".join(f"c{number}" for number in range(count)) + "\n" + row * 300 + "0x1f" + row[3:]
    )
    began = time.process_time()

    source = gl.csv(path)

    assert source.read([300])["c0"].tolist() == ["0x1f"]
    assert source.read([300])["c999"].tolist() == [1.5]
    assert time.process_time() - began < 8  # some 0.5 s; a parse for each column took minutes
