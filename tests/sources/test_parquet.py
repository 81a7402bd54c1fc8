"""Parquet files give what PyArrow, and the programs that wrote them, say of them; damage is refused
by name."""

from __future__ import annotations

import base64
import datetime
import io
import json
import pickle
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import (
    ChangedFileError,
    DamagedBlockError,
    FormatError,
    MissingPackageError,
    SpecError,
    UnknownFieldError,
)
from gpuload.formats.columnar import as_damage
from gpuload.formats.parquet.pages import parse_pages
from gpuload.formats.parquet.table import ParquetTable
from gpuload.sources import blocks
from gpuload.testing.sources import SourceContract

pa = pytest.importorskip("pyarrow", reason="gl.parquet needs PyArrow")
pq = pytest.importorskip("pyarrow.parquet")

GOLDEN = Path(__file__).parents[1] / "golden" / "parquet"
COUNT = 25


def texts(count=COUNT):
    return np.array([f"nämé {i}" * (i % 3) for i in range(count)], object)


def table(count=COUNT, factor=1):
    number = np.arange(count) * factor
    vectors = np.arange(6 * count, dtype="f4").reshape(count, 2, 3)
    return pa.table(
        {
            "number": number,
            "text": pa.array(texts(count)),
            "series": pa.array(
                [np.arange(i % 4, dtype="i2") for i in range(count)], pa.list_(pa.int16())
            ),
            "matrix": pa.array(vectors.tolist(), pa.list_(pa.list_(pa.float32(), 3), 2)),
            "tags": pa.array([[f"t{j}" for j in range(i % 3)] for i in range(count)]),
            "kind": pa.array([f"kind {i % 3}" for i in range(count)]).dictionary_encode(),
        }
    )


def write(path, content=None, **options):
    pq.write_table(
        table() if content is None else content, path, **{"row_group_size": 10, **options}
    )
    return path


class TestColumns(SourceContract):
    cache_bytes = blocks.CACHE_BYTES

    def open(self, folder):
        write(folder / "a.parquet", table())
        return gl.parquet(folder / "a.parquet", cache_bytes=self.cache_bytes)

    def open_other(self, folder):
        return gl.parquet(write(folder / "a.parquet", table(factor=2)))

    def expected(self):
        return {
            "number": np.arange(COUNT),
            "text": texts(),
            "series": [np.arange(i % 4, dtype="i2") for i in range(COUNT)],
            "matrix": np.arange(6 * COUNT, dtype="f4").reshape(COUNT, 2, 3),
            "tags": [np.array([f"t{j}" for j in range(i % 3)], object) for i in range(COUNT)],
            "kind": np.array([f"kind {i % 3}" for i in range(COUNT)], object),
        }


class TestColumnsThatAreNotCached(TestColumns):
    cache_bytes = 0


@pytest.mark.parametrize(
    "name",
    [
        "polars.parquet",
        "polars-lz4.parquet",
        "polars.arrow",
        "duckdb.parquet",
        "fastparquet.parquet",
    ],
)
def test_files_of_other_programs_hold_what_these_wrote(name):
    with gl.open(GOLDEN / name) as source:
        fields = source.read(range(7))

    assert fields["number"].tolist() == list(range(7))
    np.testing.assert_allclose(fields["x"], np.linspace(-1, 1, 7), rtol=1e-15)
    assert fields["word"].tolist() == [f"wörd {i}" for i in range(7)]
    assert fields["flag"].tolist() == [True, False, False, True, False, False, True]
    if name != "fastparquet.parquet":
        assert [value.tolist() for value in fields["list"]] == [
            [],
            [0],
            [0, 1],
            [0, 1, 2],
            [],
            [0],
            [0, 1],
        ]
        assert (
            fields["day"].tolist() == np.arange("2026-11-01", "2026-11-08", dtype="M8[D]").tolist()
        )


TYPES = {
    "u1": (pa.array([0, 255], pa.uint8()), np.array([0, 255], "u1")),
    "i8": (pa.array([-(2**63), 2**63 - 1]), np.array([-(2**63), 2**63 - 1])),
    "f2": (pa.array(np.array([1.5, -2], "f2")), np.array([1.5, -2], "f2")),
    "bool": (pa.array([True, False]), np.array([True, False])),
    "ns": (pa.array([1, 2], pa.timestamp("ns")), np.array([1, 2], "M8[ns]")),
    "zone": (pa.array([1, 2], pa.timestamp("us", "Europe/Paris")), np.array([1, 2], "M8[us]")),
    "day": (pa.array([1, 2], pa.date32()), np.array([1, 2], "M8[D]")),
    "time": (pa.array([1, 2], pa.time64("us")), np.array([1, 2], "m8[us]")),
    "length": (pa.array([1, 2], pa.duration("ms")), np.array([1, 2], "m8[ms]")),
    "large": (pa.array(["a", "bc"], pa.large_string()), np.array(["a", "bc"], object)),
    "fixed": (
        pa.array([b"abc", b"def"], pa.binary(3)),
        np.array([[97, 98, 99], [100, 101, 102]], "u1"),
    ),
    "pixels": (
        pa.array([[[1, 2]], [[3, 4]]], pa.list_(pa.list_(pa.int8()))),
        np.array([[[1, 2]], [[3, 4]]], "i1"),
    ),
    "tensor": (
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12).reshape(2, 2, 3)),
        np.arange(12).reshape(2, 2, 3),
    ),
}


@pytest.mark.parametrize("name", TYPES)
def test_a_column_of_each_type_is_a_field(tmp_path, name):
    column, expected = TYPES[name]
    path = write(tmp_path / "a.parquet", pa.table({name: column}))

    with gl.parquet(path, shapes={"pixels": (1, 2)} if name == "pixels" else None) as source:
        values = source.read([1, 0])[name]

    assert values.dtype == expected.dtype
    np.testing.assert_array_equal(values, expected[::-1])


NO_FIELDS = {
    "decimal": (pa.array([1, 2], pa.decimal128(9, 2)), "has no form"),
    "map": (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), "has no form"),
    "null": (pa.nulls(2), "all of its values are missing"),
    "lists": (pa.array([[[1], []]]), r"several axes(.|\n)*shapes="),
}


@pytest.mark.parametrize("name", NO_FIELDS)
def test_a_column_that_is_no_field_is_refused_by_name_and_can_be_left_out(tmp_path, name):
    column, cause = NO_FIELDS[name]
    path = write(tmp_path / "a.parquet", pa.table({"x": np.arange(len(column)), name: column}))

    with pytest.raises(
        SpecError,
        match=rf"a\.parquet: column '{name}'(.|\n)*{cause}(.|\n)*fields=\['x'\] leaves it out",
    ):
        gl.parquet(path)

    assert gl.parquet(path, ["x"]).spec.names == ("x",)


def test_missing_values_are_refused_by_name_or_have_a_default(tmp_path):
    columns = {"x": [1.0, None, 3.0], "y": [1, 2, 3], "s": ["a", None, "c"]}
    path = write(tmp_path / "a.parquet", pa.table(columns))

    with pytest.raises(
        SpecError, match=r"a\.parquet, row group 0: column 'x'.*missing(.|\n)*defaults=\{'x': 0\}"
    ):
        gl.parquet(path)[0]

    fields = gl.parquet(path, defaults={"x": -1, "s": "none"}).read([0, 1, 2])
    assert fields["x"].tolist() == [1.0, -1.0, 3.0]
    assert fields["s"].tolist() == ["a", "none", "c"]
    assert gl.parquet(path, ["y"]).read([1])["y"].tolist() == [2]


def test_what_an_older_pyarrow_cannot_read_is_not_called_damage(monkeypatch):
    """PyArrow 25 of a file with a missing list of fixed length, which PyArrow 26 reads."""
    monkeypatch.setattr(pa, "__version__", "25.0.0")
    with (
        pytest.raises(SpecError, match="not supported by PyArrow 25") as error,
        as_damage("a.parquet"),
    ):
        raise pa.ArrowInvalid("Expected all lists to be of size=2 but index 2 had size=0")
    assert "pyarrow>=26" in error.value.remedy


@pytest.mark.parametrize(
    ("values", "kind", "shapes"),
    [
        ([1, None], pa.int8(), {}),
        ([1.5, None], pa.float32(), {}),
        ([True, None], pa.bool_(), {}),
        (["a", None], pa.string(), {}),
        (["a", None], pa.dictionary(pa.int8(), pa.string()), {}),
        ([b"a", None], pa.binary(), {}),
        ([b"ab", None], pa.binary(2), {}),
        ([3, None], pa.timestamp("s"), {}),
        ([3, None], pa.date32(), {}),
        ([3, None], pa.time64("us"), {}),
        ([[1, 2], None], pa.list_(pa.int64()), {}),
        ([[1, 2], None], pa.list_(pa.int64()), {"x": (2,)}),
        ([[1, 2], None], pa.list_(pa.int64(), 2), {}),
        ([["a"], None], pa.list_(pa.string()), {}),
    ],
    ids=str,
)
def test_the_default_that_the_error_for_missing_values_names_is_one(tmp_path, values, kind, shapes):
    path = write(tmp_path / "a.parquet", pa.table({"x": pa.array(values, kind)}))
    with pytest.raises(SpecError, match="values are missing") as error:
        gl.parquet(path, shapes=shapes).read([0, 1])

    defaults = eval(
        re.search(r"gl\.parquet\(\.\.\., defaults=(\{.*?\})\);", error.value.remedy)[1],
        {"numpy": np},
    )  # what a reader would type

    assert len(gl.parquet(path, shapes=shapes, defaults=defaults).read([0, 1])["x"]) == 2


def test_missing_elements_of_lists_and_missing_members_are_refused(tmp_path):
    columns = pa.table({"l": [[1, None], [2]], "s": [{"a": 1}, None]})
    path = write(tmp_path / "a.parquet", columns)

    with pytest.raises(
        SpecError, match=r"column 'l': 1 elements of its lists are missing"
    ) as error:
        gl.parquet(path, ["l"])[0]
    assert "defaults=" not in error.value.remedy  # it stands for whole lists alone
    with pytest.raises(SpecError, match=r"'s\.a': 1 values are missing"):
        gl.parquet(path, ["s.a"])[0]
    assert gl.parquet(path, ["s.a"], defaults={"s.a": 7}).read([0, 1])["s.a"].tolist() == [1, 7]


def png(value):
    image = pytest.importorskip("PIL.Image").fromarray(np.full((5, 4, 3), value, np.uint8))
    image.save(file := io.BytesIO(), "PNG")
    return file.getvalue()


def test_images_in_binary_columns_are_decoded(tmp_path):
    path = write(
        tmp_path / "a.parquet", pa.table({"image": [png(3), png(4)], "other": [b"ab", b"c"]})
    )

    with (
        gl.parquet(path) as source,
        gl.Loader(source, batch_size=2, ops=[gl.ops.Decode()], device="cpu") as loader,
    ):
        [batch] = loader

        assert [field.encoded for field in source.spec] == [True, False]
        assert np.asarray(batch["image"])[:, 0, 0, 0].tolist() == [3, 4]
        assert [value.tobytes() for value in batch["other"]] == [b"ab", b"c"]


def test_the_metadata_of_datasets_name_images_shapes_and_classes(tmp_path):
    features = {
        "image": {"_type": "Image"},
        "label": {"_type": "ClassLabel", "names": ["cat", "dog"]},
        "grid": {"_type": "Array2D", "shape": [1, 2], "dtype": "int64"},
    }
    columns = {
        "image": [{"bytes": png(3), "path": "a.png"}, {"bytes": png(4), "path": None}],
        "label": [1, 0],
        "grid": [[[1, 2]], [[3, 4]]],
    }
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    path = write(tmp_path / "a.parquet", pa.table(columns).replace_schema_metadata(metadata))

    with gl.open(path) as source:
        assert [str(field) for field in source.spec] == [
            "image: encoded image",
            "label: int64 ()",
            "grid: int64 (1, 2)",
        ]
        assert source.classes == ("cat", "dog")
        assert source.read([1])["image"][0].tobytes() == png(4)


def test_columns_come_in_the_order_that_was_asked_and_unknown_ones_are_refused(tmp_path):
    path = write(tmp_path / "a.parquet")

    assert gl.parquet(path, ["text", "number"]).spec.names == ("text", "number")
    for arguments in (
        {"fields": ["nothing"]},
        {"defaults": {"nothing": 0}},
        {"shapes": {"nothing": (1,)}},
    ):
        with pytest.raises(
            UnknownFieldError, match=r"a\.parquet has no column 'nothing'(.|\n)*'number'"
        ):
            gl.parquet(path, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fields": "text"}, "it is a list of names"),
        ({"fields": ["text", "text"]}, "twice"),
        ({"fields": []}, "it is a list of names"),
        ({"defaults": {"number": "word"}}, "defaults: 'number' has 'word'"),
        ({"defaults": 0}, "it is a dict"),
        ({"shapes": {"number": (1,)}}, "it is no list"),
        ({"shapes": {"series": "3"}}, "a shape is lengths"),
        ({"cache_bytes": -1}, "cache_bytes = -1"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, arguments, message):
    with pytest.raises(SpecError, match=message):
        gl.parquet(write(tmp_path / "a.parquet"), **arguments)


def test_a_shape_that_records_have_not_is_damage(tmp_path):
    path = write(tmp_path / "a.parquet")

    with pytest.raises(
        DamagedBlockError,
        match=r"a\.parquet, row group 0: column 'series' has 13 elements in 10 records",
    ):
        gl.parquet(path, ["series"], shapes={"series": (3,)})[0]


def test_files_of_other_columns_are_refused(tmp_path):
    write(tmp_path / "a.parquet", pa.table({"x": [1, 2]}))
    write(tmp_path / "b.parquet", pa.table({"x": [1.5]}))
    write(tmp_path / "c.parquet", pa.table({"y": [1]}))

    with pytest.raises(
        SpecError, match=r"b\.parquet has x: float64 \(\), .*a\.parquet has x: int64"
    ):
        gl.parquet([tmp_path / "a.parquet", tmp_path / "b.parquet"])
    with pytest.raises(UnknownFieldError, match=r"c\.parquet has no column 'x'"):
        gl.parquet([tmp_path / "a.parquet", tmp_path / "c.parquet"])


def test_files_in_a_row_are_one_source_and_empty_ones_have_no_records(tmp_path):
    for name, count in (("a", 12), ("b", 0), ("c", 9)):
        write(tmp_path / f"{name}.parquet", table()[:count], row_group_size=5)

    with gl.parquet(tmp_path / "*.parquet") as source:
        assert len(source) == 21
        assert source.read(range(21))["number"].tolist() == [*range(12), *range(9)]
        assert source.where(12) == "c.parquet, record 0"
        assert source.files.counts == (12, 0, 9)


def test_blocks_decode_each_row_group_once_and_a_whole_shuffle_says_its_price(tmp_path, caplog):
    path = write(tmp_path / "a.parquet", pa.table({"x": np.arange(1000)}), row_group_size=100)
    decoded_blocks = []
    source = gl.parquet(path, cache_bytes=3000)
    leaf = source.resolve(np.zeros(1, np.int64))[0].leaf
    decode, leaf._decode = (
        leaf._decode,
        lambda block: [decoded_blocks.append(block), decode(block)][1],
    )

    with gl.Loader(
        source, batch_size=50, shuffle=gl.Blocks(100, 1), num_threads=1, device="cpu"
    ) as loader:
        values = np.concatenate([batch["x"] for batch in loader])
    assert sorted(values) == list(range(1000))
    assert len(decoded_blocks) <= 21  # a block of the order lies in at most two row groups
    assert not caplog.records

    gl.Loader(source, batch_size=50, shuffle=True, device="cpu").close()
    assert "may decode 100 records for each one" in caplog.text


def test_no_more_is_decoded_than_the_cache_holds(tmp_path):
    cache = blocks.BlockMemory(100, 1000)

    for key in range(10):
        cache.get((0, key), lambda: np.zeros(40, np.uint8))

    assert cache._num_bytes == 80
    assert list(cache._entries) == [(0, 8), (0, 9)]


@pytest.mark.parametrize("keep", [0, 3, 8, 500, -1])
def test_a_file_that_is_cut_short_is_refused(tmp_path, keep):
    path = write(tmp_path / "a.parquet")
    content = path.read_bytes()
    path.write_bytes(content[:keep])

    with pytest.raises(FormatError, match=r"a\.parquet is no Parquet file to read(.|\n)*bytes"):
        gl.parquet(path)


def damage(path, group):
    """Overwrite the pages of a row group."""
    content, columns = bytearray(path.read_bytes()), pq.read_metadata(path).row_group(group)
    for number in range(columns.num_columns):
        chunk = columns.column(number)
        begin = chunk.dictionary_page_offset or chunk.data_page_offset
        content[begin + 4 : begin + chunk.total_compressed_size] = b"\xa5" * (
            chunk.total_compressed_size - 4
        )
    path.write_bytes(content)


def test_a_damaged_row_group_is_that_alone_and_is_reported_once(tmp_path):
    path = write(tmp_path / "a.parquet", pa.table({"x": np.arange(30)}), write_page_checksum=True)
    damage(path, 1)

    with gl.parquet(path) as source:
        assert source.read([0, 9, 20, 29])["x"].tolist() == [0, 9, 20, 29]
        with pytest.raises(
            DamagedBlockError, match=r"a\.parquet, row group 1(.|\n)*PyArrow cannot decode it"
        ):
            source[10]
        with gl.Loader(source, batch_size=10, on_error="skip", max_bad=1, device="cpu") as loader:
            values = np.concatenate([batch["x"] for batch in loader])
        assert sorted(set(values.tolist())) == [*range(10), *range(20, 30)]
    [finding] = gl.check(path)
    assert finding.where == f"{path}, row group 1"


def test_a_number_of_rows_that_the_footer_states_is_not_believed(tmp_path):
    path = write(
        tmp_path / "a.parquet",
        pa.table({"x": np.arange(100)}),
        row_group_size=100,
        write_statistics=False,
    )
    begin = path.stat().st_size - 8 - pq.read_metadata(path).serialized_size
    content = path.read_bytes()
    footer = content[begin:].replace(b"\xc8\x01", b"\x80\x7d")  # varints of 100, and of 8000
    assert footer != content[begin:]
    path.write_bytes(content[:begin] + footer)

    with gl.parquet(path) as source:
        assert len(source) == 8000
        with pytest.raises(
            DamagedBlockError,
            match=r"row group 0, column x has 100 rows(.|\n)*says that it has 8000",
        ):
            source[0]


def test_a_column_that_lies_outside_of_the_file_is_damage(tmp_path):
    path = write(
        tmp_path / "a.parquet",
        pa.table({"x": np.random.default_rng(0).random(999)}),
        row_group_size=999,
    )
    content, size = path.read_bytes(), path.stat().st_size
    begin = size - 8 - pq.read_metadata(path).serialized_size
    path.write_bytes(content[:4] + content[begin:])  # no pages are left, only the footer

    with (
        gl.parquet(path) as source,
        pytest.raises(DamagedBlockError, match=r"a\.parquet, row group 0(.|\n)*PyArrow"),
    ):
        source[0]


def test_few_bytes_that_unpack_to_very_many_are_refused(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet", pa.table({"x": np.zeros(300_000)}), row_group_size=300_000)
    monkeypatch.setattr("gpuload.storage.inflate.ALLOWED_BYTES", 1 << 20)

    with pytest.raises(FormatError, match=r"row group 0 has \d+ bytes, and unpacks to \d+ or more"):
        gl.parquet(path)[0]


def test_a_file_that_changes_is_noticed(tmp_path):
    path = write(tmp_path / "a.parquet")
    source = gl.parquet(path)
    write(path, table(factor=3))

    with pytest.raises(ChangedFileError, match=r"a\.parquet changed"):
        source[0]


def test_a_source_is_pickled_with_its_arguments(tmp_path):
    path = write(tmp_path / "a.parquet", pa.table({"l": [[1, 2], [3, 4]], "x": [1, None]}))
    source = gl.parquet(path, ["l", "x"], shapes={"l": (2,)}, defaults={"x": 5}, cache_bytes=0)

    copy = pickle.loads(pickle.dumps(source))

    assert copy.fingerprint() == source.fingerprint()
    assert copy.read([1])["l"].tolist() == [[3, 4]]
    assert copy.read([1])["x"].tolist() == [5]


def test_what_is_written_is_read_again(tmp_path):
    moments = np.array(["2026-01-01T00:00:01", "1969-12-31T23:59:59"], "M8[s]")
    arrays = {
        "moment": moments,
        "day": moments.astype("M8[D]"),
        "half": np.array([1.5, np.nan], "f2"),
        "word": np.array(["é", "word"]),
        "cube": np.arange(16, dtype="i4").reshape(2, 2, 2, 2),
    }
    parts = [
        gl.parquet(write(tmp_path / "a.parquet", table(2))),
        gl.arrays(**{**arrays, "cube": arrays["cube"].astype(">i4")}),
    ]
    parts.append(
        gl.parquet(
            write(tmp_path / "b.parquet", pa.table({"image": [png(1), png(2)], "raw": [b"", b"a"]}))
        )
    )

    result = gl.convert(gl.zip(*parts), tmp_path / "out.parquet")

    assert result.call == f"gl.parquet({str(tmp_path / 'out.parquet')!r})"
    columns = pq.read_table(tmp_path / "out.parquet")
    assert columns["moment"].to_numpy().tolist() == moments.tolist()
    assert columns["cube"].to_pylist() == arrays["cube"].tolist()
    assert columns["word"].to_pylist() == ["é", "word"]
    assert columns["image"].to_pylist() == [png(1), png(2)]
    with gl.open(tmp_path / "out.parquet") as back:
        assert back.spec["image"].encoded
        np.testing.assert_array_equal(back.read([1, 0])["half"], arrays["half"][::-1])
        assert back[0]["tags"].tolist() == []
        assert back[1]["kind"] == "kind 1"


@pytest.mark.parametrize(
    "array", [np.zeros(2, "c8"), np.array([b"a", b"b"]), np.array([["a"], ["b"]])]
)
def test_what_parquet_cannot_hold_is_refused_by_name(tmp_path, array):
    with pytest.raises(SpecError, match=r"field x: .* cannot be written as parquet"):
        gl.convert(gl.arrays(x=array), tmp_path / "out.parquet")


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)

    with pytest.raises(
        MissingPackageError, match=r"gl\.parquet needs the package 'pyarrow'(.|\n)*\[parquet\]"
    ):
        gl.parquet(path)


def far_dates():
    return [
        "1677-01-01",
        "1969-12-31T23:59:59.999999",
        "2023-05-04T06:07:08",
        "9999-12-31T23:59:59.999999",
    ]


@pytest.mark.parametrize("kind", ["single", "struct", "list"])
def test_timestamps_of_12_bytes_are_microseconds_and_reach_the_year_9999(tmp_path, kind):
    dates = np.array(far_dates(), "M8[us]")
    column = pa.array(dates)
    column = {
        "single": column,
        "struct": pa.StructArray.from_arrays([column], ["t"]),
        "list": pa.ListArray.from_arrays(pa.array([0, 1, 1, 3, 4], pa.int32()), column),
    }[kind]
    path = write(
        tmp_path / "a.parquet", pa.table({"t": column}), use_deprecated_int96_timestamps=True
    )
    source = gl.parquet(path)

    for opened in (source, gl.parquet(source.index(tmp_path / "a.manifest"))):
        values = opened.read(range(4))["t.t" if kind == "struct" else "t"]
        values = np.concatenate(list(values)) if kind == "list" else values
        assert values.dtype == dates.dtype
        assert values.tolist() == dates.tolist()


def test_timestamps_of_12_bytes_that_microseconds_do_not_hold_are_refused_or_nanoseconds(tmp_path):
    times = pa.array([1, None, -1], pa.timestamp("ns"))
    path = write(
        tmp_path / "a.parquet", pa.table({"t": times}), use_deprecated_int96_timestamps=True
    )
    defaults = {"t": np.datetime64("NaT")}

    with pytest.raises(
        SpecError, match=r"'t': value 0 of it is 1970-01-01T00:00:00 and 1 ns"
    ) as error:
        gl.parquet(path, defaults=defaults).read([0])
    [dtypes] = re.findall(r"dtypes=(\{.*?\})", error.value.remedy)
    values = gl.parquet(path, defaults=defaults, dtypes=eval(dtypes)).read(range(3))["t"]
    assert values.tolist() == [1, None, -1]
    write(
        path, pa.table({"t": np.array(far_dates(), "M8[us]")}), use_deprecated_int96_timestamps=True
    )
    with pytest.raises(SpecError, match=r"'t': value 0 of it is 1677-01-01(.|\n)*ends before it"):
        gl.parquet(path, dtypes={"t": "M8[ns]"}).read([0])


@pytest.mark.parametrize(
    ("kind", "default", "fits"),
    [
        (pa.int32(), 1.5, False),
        (pa.int32(), 2.0, True),
        (pa.uint8(), 256, False),
        (pa.float32(), 1e40, False),
        (pa.float32(), 0.1, True),
        (pa.float32(), 2**24 + 1, False),
        (pa.float16(), 70000, False),
        (pa.int64(), float("nan"), False),
        (pa.bool_(), 2, False),
        (pa.timestamp("us"), np.datetime64("2000-01-01"), True),
        (pa.timestamp("us"), np.datetime64("NaT"), True),
        (pa.timestamp("ns"), np.datetime64("9999-01-01"), False),
        (pa.date32(), np.datetime64("2000-01-01T05"), False),
        (pa.date32(), np.datetime64("NaT"), True),
        (pa.timestamp("s"), datetime.datetime(2000, 1, 1, tzinfo=datetime.timezone.utc), True),
        (pa.timestamp("s"), datetime.date(2000, 1, 1), True),
        (pa.time32("s"), datetime.time(1, 2, 3), True),
        (pa.duration("ms"), datetime.timedelta(seconds=1), True),
        (pa.time64("us"), np.timedelta64(1, "M"), False),
        (pa.list_(pa.string_view()), ["a", ""], True),
        (pa.timestamp("us"), "2000-01-01", False),
        (pa.string(), 1, False),
        (pa.binary(2), b"abc", False),
        (pa.list_(pa.int32()), [1.5], False),
        (pa.list_(pa.float32()), [0.5, 1], True),
        (pa.list_(pa.int32(), 2), [1], False),
    ],
    ids=str,
)
def test_a_default_has_its_value_in_the_column_or_is_refused(tmp_path, kind, default, fits):
    path = write(tmp_path / "a.parquet", pa.table({"x": pa.array([None, None], kind)}))

    if not fits:
        with pytest.raises(SpecError, match=r"defaults: 'x' has(.|\n)*pass a value of that type"):
            gl.parquet(path, defaults={"x": default})
        return
    source = gl.parquet(path, defaults={"x": default})
    for opened in (
        source,
        pickle.loads(pickle.dumps(source)),
        gl.open(source.index(tmp_path / "a.manifest")),
    ):
        assert opened.fingerprint() == source.fingerprint()
        value = opened.read([1])["x"][0]
        if isinstance(default, list):
            assert value.tolist() == default
        elif isinstance(default, np.datetime64) and np.isnat(default):
            assert np.isnat(value)
        elif isinstance(default, datetime.time):
            assert value == np.timedelta64(3723, "s")
        elif isinstance(default, datetime.datetime):
            assert value == np.datetime64("2000-01-01")
        else:
            assert value == np.asarray(default).astype(value.dtype)


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_two_columns_with_one_name_are_refused_and_can_be_left_out(tmp_path, order):
    columns = pa.table(
        {"a.b": [1, 2], "a": pa.array([{"b": 10, "c": 5}, {"b": 20, "c": 6}])}
    ).select(order)
    path = write(tmp_path / "a.parquet", columns)

    for fields in (None, ["a.b"]):
        with pytest.raises(SpecError, match=r"a\.parquet: two columns have the name 'a\.b'"):
            gl.parquet(path, fields)
    assert gl.parquet(path, ["a.c"]).read([0, 1])["a.c"].tolist() == [5, 6]


def test_columns_with_dots_in_their_names_are_fields(tmp_path):
    columns = pa.table({"a.b": [1], "a": pa.array([{"c": 2, "d.e": 3}]), "x.y.z": [[4]]})

    fields = gl.parquet(write(tmp_path / "a.parquet", columns)).read([0])

    assert {name: np.asarray(values[0]).tolist() for name, values in fields.items()} == {
        "a.b": 1, "a.c": 2, "a.d.e": 3, "x.y.z": [4],
    }  # fmt: skip


def test_row_labels_of_pandas_are_left_out_and_told_once(tmp_path, caplog):
    columns = pa.table({"x": [1, 2], "__index_level_0__": [7, 8]})
    paths = [write(tmp_path / f"{name}.parquet", columns) for name in "ab"]

    source = gl.parquet(paths)

    assert source.spec.names == ("x",)
    [record] = caplog.records
    fields = eval(re.search(r"fields=(\[.*?\])", record.getMessage())[1])
    assert gl.parquet(paths, fields).read([3])["__index_level_0__"].tolist() == [8]
    alone = write(tmp_path / "c.parquet", columns.select(["__index_level_0__"]))
    assert gl.parquet(alone).spec.names == ("__index_level_0__",)


@pytest.mark.parametrize(
    ("kinds", "dtype"),
    [
        ((pa.int32(), pa.int64()), "int64"),
        ((pa.float64(), pa.float32()), "float64"),
        ((pa.uint8(), pa.int8()), "int16"),
        ((pa.list_(pa.int16()), pa.list_(pa.int32())), "int32"),
    ],
)
def test_files_of_two_dtypes_have_that_which_holds_both(tmp_path, caplog, kinds, dtype):
    caplog.set_level("INFO", "gpuload")
    values = [[1], [2]] if "list" in str(kinds[0]) else [1, 2]
    paths = [
        write(tmp_path / f"{n}.parquet", pa.table({"x": pa.array(values, kind)}))
        for n, kind in enumerate(kinds)
    ]

    source = gl.parquet(paths, defaults=None if "list" in str(kinds[0]) else {"x": 7})

    assert source.spec["x"].dtype == dtype
    assert f"{dtype} for all files" in caplog.text
    for opened in (source, gl.open(source.index(tmp_path / "a.manifest"))):
        result = opened.read([3, 0, 2])["x"]
        assert result.dtype == dtype
        assert [np.ravel(value).tolist() for value in result] == [[2], [1], [1]]


def test_the_dtype_of_files_can_be_said_and_holds_each_value(tmp_path):
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    write(paths[0], pa.table({"x": pa.array([1, None], pa.int64())}))
    write(paths[1], pa.table({"x": [1.5, float("nan")]}))
    with pytest.raises(SpecError, match=r"b\.parquet has x: float64") as error:
        gl.parquet(paths)
    dtypes = eval(re.search(r"dtypes=(\{.*\})\)", error.value.remedy)[1])

    source = gl.parquet(paths, dtypes=dtypes, defaults={"x": -1})
    for opened in (
        source,
        pickle.loads(pickle.dumps(source)),
        gl.open(source.index(tmp_path / "a.manifest")),
    ):
        assert opened.read(range(3))["x"].tolist() == [1, -1, 1.5]
    write(paths[0], pa.table({"x": pa.array([1, 2**53 + 1], pa.int64())}))
    with pytest.raises(
        SpecError, match=r"a\.parquet, row group 0: column 'x': value 1 of it is 9007199254740993"
    ):
        gl.parquet(paths, dtypes=dtypes).read([0])


@pytest.mark.parametrize(
    ("kind", "dtypes"),
    [
        (pa.int32(), {"x": "datetime64[s]"}),
        (pa.timestamp("s"), {"x": "int64"}),
        (pa.string(), {"x": "int64"}),
        (pa.int32(), {"x": "no dtype"}),
        (pa.timestamp("s"), {"x": "datetime64"}),
        (pa.int32(), ["x"]),
    ],
)
def test_dtypes_that_values_do_not_become_are_refused(tmp_path, kind, dtypes):
    path = write(tmp_path / "a.parquet", pa.table({"x": pa.array([], kind)}))

    with pytest.raises(SpecError, match="dtypes"):
        gl.parquet(path, dtypes=dtypes)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in /proc")
@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.dictionary(pa.int32(), pa.string()), pa.binary(), pa.binary(1 << 19)],
    ids=str,
)
def test_a_text_that_is_stored_once_for_many_rows_takes_no_memory_before_it_is_refused(
    tmp_path, monkeypatch, kind
):
    monkeypatch.setattr("gpuload.storage.inflate.ALLOWED_BYTES", 1 << 24)
    monkeypatch.setenv("GPULOAD_EXPANSION", "1")
    values = pa.array([b"a" * (1 << 19) if "binary" in str(kind) else "a" * (1 << 19)] * 2)
    values = values.cast(kind.value_type if "dictionary" in str(kind) else kind)
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(200, "i4")), values[:1])
    column = column if "dictionary" in str(kind) else column.dictionary_decode()
    path = write(
        tmp_path / "a.parquet", pa.table({"x": column}), row_group_size=200, compression="zstd"
    )
    assert path.stat().st_size < 2000
    del column
    pa.default_memory_pool().release_unused()
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmHWM")

    with pytest.raises(
        FormatError, match=r"a\.parquet, row group 0 has \d+ bytes, and unpacks to \d+ or more"
    ):
        gl.parquet(path).read([0])

    assert (
        memory("VmHWM") - before < 80 << 10
    )  # of 100 MB that it stands for, and of 200 that PyArrow takes for these


class Keys:
    """Keys that encrypt and decrypt nothing, for PyArrow's files with encrypted columns."""

    def client(self, config):
        encryption = pytest.importorskip("pyarrow.parquet.encryption")

        class Client(encryption.KmsClient):
            def __init__(self):
                super().__init__()

            def wrap_key(self, key, name):
                return base64.b64encode(key)

            def unwrap_key(self, key, name):
                return base64.b64decode(key)

        return Client()

    def write(self, path, columns, **options):
        encryption = pytest.importorskip("pyarrow.parquet.encryption")
        configuration = encryption.EncryptionConfiguration(footer_key="footer", **options)
        factory = encryption.CryptoFactory(self.client)
        properties = factory.file_encryption_properties(
            encryption.KmsConnectionConfig(), configuration
        )
        with pq.ParquetWriter(path, columns.schema, encryption_properties=properties) as writer:
            writer.write_table(columns)


def test_encrypted_files_are_not_called_damaged(tmp_path):
    columns, keys = pa.table({"x": [1, 2], "y": [3, 4]}), Keys()
    keys.write(
        tmp_path / "a.parquet", columns, plaintext_footer=False, column_keys={"key": ["x", "y"]}
    )
    keys.write(tmp_path / "b.parquet", columns, plaintext_footer=True, column_keys={"key": ["x"]})

    with pytest.raises(
        FormatError, match=r"a\.parquet is a Parquet file with an encrypted footer\n.*not supported"
    ):
        gl.parquet(tmp_path / "a.parquet")
    with pytest.raises(
        DamagedBlockError, match=r"it is encrypted, which is not supported(.|\n)*fields="
    ):
        gl.parquet(tmp_path / "b.parquet").read([0])
    assert gl.parquet(tmp_path / "b.parquet", ["y"]).read([1, 0])["y"].tolist() == [4, 3]


def test_intervals_of_parquet_are_refused_as_those_of_arrow_are(tmp_path):
    path = write(
        tmp_path / "a.parquet", pa.table({"x": pa.array([bytes(12)], pa.binary(12)), "y": [1]})
    )
    content = path.read_bytes()
    begin = len(content) - 8 - pq.read_metadata(path).serialized_size
    # In the schema: FIXED_LEN_BYTE_ARRAY (7), length 12, OPTIONAL (1), the name; behind it a
    # converted type, INTERVAL.
    element = b"\x15\x0e\x15\x18\x15\x02\x18\x01x"
    assert content[begin:].count(element + b"\x00") == 1
    footer = (
        content[begin:-8]
        .replace(element + b"\x00", element + b"\x25\x2a\x00")
        .replace(b"ARROW:schema", b"ARROW:sch3ma")
    )
    path.write_bytes(content[:begin] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    assert pq.ParquetFile(path).schema.column(0).converted_type == "INTERVAL"

    with pytest.raises(
        SpecError, match=r"'x' is month_day_nano_interval(.|\n)*fields=\['y'\] leaves it out"
    ):
        gl.parquet(path)
    assert gl.parquet(path, ["y"]).read([0])["y"].tolist() == [1]


def test_a_column_without_a_name_can_be_left_out(tmp_path):
    path = write(tmp_path / "a.parquet", pa.table({"": [1, 2], "x": [3, 4]}))

    with pytest.raises(SpecError, match=r"a column has no name(.|\n)*fields=\['x'\] leaves it out"):
        gl.parquet(path)
    assert gl.parquet(path, ["x"]).read([1])["x"].tolist() == [4]


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in /proc")
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("kind", [pa.int64(), pa.bool_(), pa.string()], ids=str)
def test_many_elements_of_one_row_take_no_memory_before_they_are_refused(
    tmp_path, monkeypatch, kind, version
):
    monkeypatch.setattr("gpuload.storage.inflate.ALLOWED_BYTES", 1 << 24)
    monkeypatch.setenv("GPULOAD_EXPANSION", "1")
    elements = pa.array(
        ["a" * (1 << 19)] * 200 if kind == pa.string() else np.zeros(20 << 20, "?"), kind
    )
    column = pa.LargeListArray.from_arrays(pa.array([0, len(elements)]), elements)
    path = write(
        tmp_path / "a.parquet",
        pa.table({"x": column}),
        compression="zstd",
        data_page_version=version,
    )
    assert path.stat().st_size < 3000
    del column, elements
    pa.default_memory_pool().release_unused()
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmHWM")

    with pytest.raises(
        FormatError, match=r"a\.parquet, row group 0 has \d+ bytes, and unpacks to \d+ or more"
    ):
        gl.parquet(path).read([0])

    assert memory("VmHWM") - before < 40 << 10  # of 100 MB of texts, and more of levels and numbers


@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.string())], ids=str)
@pytest.mark.parametrize(
    "encoding", ["RLE_DICTIONARY", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"]
)
def test_texts_that_are_stored_once_are_decoded_by_places_or_few_rows_at_a_time(
    tmp_path, monkeypatch, kind, encoding
):
    monkeypatch.setattr("gpuload.storage.inflate.ALLOWED_BYTES", 6000)
    monkeypatch.setenv("GPULOAD_EXPANSION", "1")
    texts = [f"text {'x' * 50} {number % 7}" for number in range(60)]
    column = pa.array(
        texts if kind == pa.string() else [texts[n : n + n % 3] for n in range(40)], kind
    )
    leaf = "x" if kind == pa.string() else "x.list.element"
    options = (
        {} if "RLE" in encoding else {"use_dictionary": False, "column_encoding": {leaf: encoding}}
    )
    path = write(
        tmp_path / "a.parquet",
        pa.table({"x": column}),
        row_group_size=60,
        compression="zstd",
        **options,
    )
    assert path.stat().st_size < 2000
    calls, batches = [], ParquetTable.batches

    def count(table, path, groups, **options):
        calls.append((options["rows"] < 60, options["as_dictionary"]))
        return batches(table, path, groups, **options)

    monkeypatch.setattr(ParquetTable, "batches", count)

    values = gl.parquet(path).read(range(len(column)))["x"]

    assert [
        value if isinstance(value, str) else value.tolist() for value in values
    ] == column.to_pylist()
    assert calls[-1] == (encoding == "DELTA_BYTE_ARRAY", encoding == "RLE_DICTIONARY")

    monkeypatch.setattr("gpuload.formats.parquet.source.SMALL_BYTES", 0)  # as a large file
    monkeypatch.setattr("gpuload.formats.parquet.source.PARTS_OF_LARGE", 8)
    assert list(map(str, gl.parquet(path).read(range(len(column)))["x"])) == list(map(str, values))
    assert calls[-1] == (encoding != "DELTA_LENGTH_BYTE_ARRAY", False)
    monkeypatch.setattr("gpuload.storage.inflate.ALLOWED_BYTES", 400)
    with pytest.raises(
        FormatError, match=r"a\.parquet, row group 0 has \d+ bytes, and unpacks to \d+ or more"
    ):
        gl.parquet(path).read([0])


@pytest.mark.parametrize(("num_rows", "is_refused"), [(8, False), (11, True)])
def test_values_of_lists_count_twice_as_they_are_copied(
    tmp_path, monkeypatch, num_rows, is_refused
):
    monkeypatch.setattr("gpuload.storage.inflate.ALLOWED_BYTES", 20_000)
    monkeypatch.setenv("GPULOAD_EXPANSION", "1")
    path = write(tmp_path / "a.parquet", pa.table({"x": [[0] * 100] * num_rows}), row_group_size=60)
    assert path.stat().st_size < 2000
    if is_refused:  # 8,800 bytes of values
        with pytest.raises(
            FormatError, match=r"row group 0 has \d+ bytes, and unpacks to 22000 or more"
        ):
            gl.parquet(path).read([0])
    else:
        assert gl.parquet(path).read([num_rows - 1])["x"][0].tolist() == [0] * 100


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_the_headers_of_pages_say_the_values_that_the_footer_says(tmp_path, version, codec):
    column = pa.array([[number % 5, number] for number in range(5000)] + [[], None])
    options = {
        "data_page_version": version,
        "compression": codec,
        "data_page_size": 1000,
        "write_page_checksum": True,
    }
    path = write(tmp_path / "a.parquet", pa.table({"x": column}), row_group_size=1 << 20, **options)
    chunk = pq.read_metadata(path).row_group(0).column(0)
    begin = chunk.dictionary_page_offset or chunk.data_page_offset

    pages = parse_pages(path.read_bytes()[begin : begin + chunk.total_compressed_size])

    assert pages.num_values == chunk.num_values == 10_002
    assert (
        pages.num_bytes < chunk.total_uncompressed_size < pages.num_bytes + 100 * 20
    )  # with the headers


@pytest.mark.parametrize(
    "content", [b"\x15", b"\x1c" * 50, b"\x19\xff", b"\xff" * 99, bytes(9), b"\x55\x00"]
)
def test_bytes_that_are_no_header_of_a_page_end_the_pages(content):
    assert parse_pages(content).num_values == 0


def memory(name):
    """Return a number of KB of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))
