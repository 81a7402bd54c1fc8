"""CSV files: the cases of PyArrow's own tests (apache/arrow, python/pyarrow/tests/test_csv.py),
said anew.

Each row of ``CASES`` has the name of PyArrow's test, a file, the arguments of `gl.csv`, and what is
read; a text in the place of what is read is part of an error. `test_random_files` compares with
`pyarrow.csv.read_csv` itself.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import GpuloadError
from gpuload.formats.csv import rows

arrow_csv = pytest.importorskip("pyarrow.csv")

pytestmark = pytest.mark.slow

DIFFERENT = {
    "test_header, skip_rows without rows behind": "types are found in values: columns without a value need one said",
    "test_simple_nulls": "a missing integer or boolean is an error that names its line: arrays have no null",
    "test_include_missing_columns": "a column that is not there is an error, not a column of nulls",
    "test_column_types, decimals": "arrays have no decimals; f8 is near",
    "test_trivial": "columns without a name are column_0, column_1 ...",
    "test_file_object": "files, not open ones: their records are read in any order, also by other processes",
    "test_decimal_point, test_custom_bools, test_timestamp_parsers, test_auto_dict_encode": "not offered",
    "test_skip_rows_after_names, ignore_empty_lines=False, escape_char": "not offered",
    "test_invalid_row_handler": "bad_lines='keep' and on_error= of the loader decide about bad lines",
    "test_cancellation": "Ctrl-C ends reading, and takes no other way",
}
ROWS = b"ab,cd\nk1,v1\nk2,v2\nk3,v3\n"
Kinds = dict[str, Any]

CASES: list[tuple[str, bytes, Kinds, Kinds | str]] = [
    ("test_header_skip_rows", ROWS, {"skip_lines": 1}, {"k1": ["k2", "k3"], "v1": ["v2", "v3"]}),
    ("test_header_skip_rows", ROWS, {"skip_lines": 4}, "is empty"),
    (
        "test_header_skip_rows",
        b"title\n,,,,\nx,y\n5,6\n",
        {"skip_lines": 2, "columns": {"x": "i8", "y": "i8"}},
        {"x": [5], "y": [6]},
    ),
    ("test_bom", b"\xef\xbb\xbfa,b\n7,8\n", {}, {"a": [7], "b": [8]}),
    *[
        (
            "test_one_chunk",
            ending.join([b"a,b", b"1,2", b"56,78"]) + last,
            {},
            {"a": [1, 56], "b": [2, 78]},
        )
        for ending in (b"\n", b"\r", b"\r\n")
        for last in (b"", ending)
    ],
    ("test_header_column_names", ROWS, {"header": ["x", "y"]}, {"x": ["ab", "k1", "k2", "k3"]}),
    (
        "test_header_column_names",
        ROWS,
        {"header": ["x", "y"], "skip_lines": 3},
        {"x": ["k3"], "y": ["v3"]},
    ),
    ("test_header_column_names", ROWS, {"header": ["x", "y", "z"]}, "3"),
    (
        "test_header_autogenerate_column_names",
        ROWS,
        {"header": False, "skip_lines": 3},
        {"column_0": ["k3"]},
    ),
    ("test_include_columns", ROWS, {"columns": ["ab"]}, {"ab": ["k1", "k2", "k3"]}),
    (
        "test_include_columns",
        ROWS,
        {"columns": ["cd", "ab"]},
        {"cd": ["v1", "v2", "v3"], "ab": ["k1", "k2", "k3"]},
    ),
    ("test_include_columns", ROWS, {"columns": ["xx", "ab"]}, "xx"),
    ("test_simple_ints", b"a,b\n10,-20\n30,40\n", {}, {"a": [10, 30], "b": [-20, 40]}),
    (
        "test_simple_varied",
        b"a,b,c,d\n1,2,3,False\n4.5,-5,foo,True\n",
        {},
        {"a": [1.0, 4.5], "b": [2, -5], "c": ["3", "foo"], "d": [False, True]},
    ),
    ("test_simple_nulls", b"a,c\n1,\nnan,x\n", {}, {"a": [1.0, float("nan")], "c": ["", "x"]}),
    ("test_simple_nulls", b"a,b\n1,2\n3,\n", {"columns": {"a": "i8", "b": "i8"}}, "line 3"),
    (
        "test_simple_timestamps",
        b"a,b\n1970,1970-01-01 00:00:00\n1989,1989-07-14 01:00:00\n",
        {"columns": {"a": None, "b": "M8[s]"}},
        {"a": [1970, 1989], "b": ["1970-01-01T00:00:00", "1989-07-14T01:00:00"]},
    ),
    (
        "test_dates",
        b"d\n1999-12-31\n2000-02-29\n",
        {"columns": {"d": "M8[D]"}},
        {"d": ["1999-12-31", "2000-02-29"]},
    ),
    (
        "test_custom_nulls",
        b'a,b\nZzz,"Xxx"\n2,N/A\n',
        {"na_values": ["Zzz"]},
        {"a": [float("nan"), 2.0]},
    ),
    (
        "test_custom_nulls",
        b"a,b\nN/A,\nq,\n",
        {"na_values": [], "columns": {"a": str}},
        {"a": ["N/A", "q"]},
    ),
    (
        "test_column_types",
        b"a,b,c,d\n1,2,3,true\n4,-5,6,false\n",
        {"columns": {"a": "i8", "b": "f4", "c": str, "d": bool}},
        {"a": [1, 4], "b": [2.0, -5.0], "c": ["3", "6"], "d": [True, False]},
    ),
    ("test_column_types", b"a,b\n1,XXX\n", {"columns": {"b": "f4"}}, "XXX"),
    ("test_no_ending_newline", b"a,b\n1,2\n3,4", {}, {"a": [1, 3], "b": [2, 4]}),
    ("test_trivial", b",\n\n", {}, {"column_0": [], "column_1": []}),
    ("test_empty_lines", b"a,b\n\r1,2\r\n\r\n3,4\r\n", {}, {"a": [1, 3], "b": [2, 4]}),
    ("test_invalid_csv", b"a,b,c\n1,2\n4,5,6\n", {}, "line 2"),
    ("test_invalid_csv", b"a,b,c\n1,2,3\n4", {}, "line 3"),
    *[
        ("test_invalid_csv", content, {}, r"x\.csv")
        for content in (b"", b"\n", b"\r\n", b"\r", b"\n\n")
    ],
    ("test_options_delimiter", b"a;b,c\nde,fg;eh\n", {}, {"a;b": ["de"], "c": ["fg;eh"]}),
    (
        "test_options_delimiter",
        b"a;b,c\nde,fg;eh\n",
        {"delimiter": ";"},
        {"a": ["de,fg"], "b,c": ["eh"]},
    ),
    (
        "test_encoding",
        "a,b\nné,1\n".encode("latin-1"),
        {"encoding": "latin-1"},
        {"a": ["né"], "b": [1]},
    ),
    (
        "test_encoding",
        "a,b\nné,1\n".encode("utf-16"),
        {"encoding": "utf-16"},
        {"a": ["né"], "b": [1]},
    ),
    ("test_encoding", b"a,b\nun\xe9,1\n", {"columns": {"a": str}}, "line 2"),
    ("newlines in values", b'a,b\n"x\ny",1\n"p""q",2\n', {}, {"a": ["x\ny", 'p"q'], "b": [1, 2]}),
]


@pytest.mark.parametrize(
    "number", range(len(CASES)), ids=lambda number: f"{number}-{CASES[number][0]}"
)
def test_what_pyarrow_reads(number: int, tmp_path: Path):
    _, content, arguments, expected = CASES[number]
    path = tmp_path / "x.csv"
    path.write_bytes(content)

    if isinstance(expected, str):
        with pytest.raises(GpuloadError, match=expected):
            gl.csv(path, **arguments)
        return
    with gl.csv(path, **arguments) as source:
        for name, column in expected.items():
            values = source.read(range(len(source)))[name]
            values = values.astype(str) if np.asarray(values).dtype.kind == "M" else values
            assert repr(np.asarray(values).tolist()) == repr(column), name


@pytest.mark.parametrize("last", [b"", b"\r\n"])
@pytest.mark.parametrize("block_bytes", [1 << 20, 111, 37])
def test_random_files(
    block_bytes: int, last: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """test_small_random_csv, test_stress_block_sizes: words, numbers and quotes, in blocks that end
    anywhere."""
    monkeypatch.setattr(rows, "BLOCK_BYTES", block_bytes)
    rng = np.random.default_rng(block_bytes)
    words = ["", "a", 'say "x"', "two\nlines", "com,ma", "é", " "]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(["word", "number", "float"])
    for _ in range(500):
        row = [
            f"w{words[rng.integers(len(words))]}",
            int(rng.integers(-(10**12), 10**12)),
            float(rng.normal()),
        ]
        writer.writerow(row)
    content = text.getvalue().encode().removesuffix(b"\r\n") + last
    (tmp_path / "x.csv").write_bytes(content)
    options = arrow_csv.ParseOptions(newlines_in_values=True)
    table = arrow_csv.read_csv(io.BytesIO(content), parse_options=options).to_pydict()

    with gl.csv(tmp_path / "x.csv") as source:
        values = source.read(range(500))
        assert {name: values[name].tolist() for name in table} == table
