"""Arrow files and streams, and datasets, give what PyArrow and `datasets` say of them; damage is
refused by name."""

from __future__ import annotations

import contextlib
import pickle
import resource
import shutil
import tempfile
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import ChangedFileError, DamagedBlockError, FormatError, SpecError
from gpuload.formats.arrow.messages import Message
from gpuload.testing.sources import SourceContract
from tests.imagefiles import jpeg
from tests.sources import test_parquet

pa = pytest.importorskip("pyarrow", reason="gl.arrow needs PyArrow")
feather = pytest.importorskip("pyarrow.feather")

GOLDEN = Path(__file__).parents[1] / "golden" / "parquet"


def write(path, table, *, rows=10, is_stream=False, compression=None):
    make = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    with make(
        path, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


@pytest.mark.usefixtures("reader")
class TestFile(SourceContract):
    options = MappingProxyType({})
    columns = ("number", "text", "series", "matrix", "tags", "kind")

    def open(self, folder):
        write(folder / "a.arrow", test_parquet.table().select(self.columns), **self.options)
        return gl.open(folder / "a.arrow")

    def open_other(self, folder):
        return gl.arrow(
            write(
                folder / "a.arrow",
                test_parquet.table(factor=2).select(self.columns),
                **self.options,
            )
        )

    def expected(self):
        values = test_parquet.TestColumns().expected()
        return {name: values[name] for name in self.columns}


class TestCompressedFile(TestFile):
    options = MappingProxyType({"compression": "zstd"})


class TestStream(TestFile):
    options = MappingProxyType({"is_stream": True})
    columns = ("number", "text", "series", "matrix", "tags")


def test_a_feather_file_of_pandas_holds_what_it_wrote():
    with gl.open(GOLDEN / "pandas.feather") as source:
        fields = source.read(range(7))

    assert fields["number"].tolist() == list(range(7))
    np.testing.assert_allclose(fields["x"], np.linspace(-1, 1, 7), rtol=1e-15)
    assert fields["word"].tolist() == [f"wörd {i}" for i in range(7)]
    assert fields["flag"].tolist() == [True, False, False, True, False, False, True]


def test_columns_of_numbers_are_read_where_they_lie(tmp_path):
    columns = {
        "x": np.arange(25.0),
        "flag": np.arange(25) % 2 == 0,
        "time": pa.array(np.arange(25), pa.timestamp("us")),
        "raw": pa.array([bytes([i, 1, 2]) for i in range(25)], pa.binary(3)),
        "vector": pa.array(
            np.arange(50, dtype="f4").reshape(25, 2).tolist(), pa.list_(pa.float32(), 2)
        ),
        "gaps": pa.array([None, *range(24)]),
    }
    path = write(tmp_path / "a.arrow", pa.table(columns))

    with gl.arrow(path, defaults={"gaps": -1}) as source:
        leaves = {
            share.leaf.spec.names[0]: type(share.leaf).__name__
            for share in source.resolve(np.zeros(1, np.int64))
        }
        fields = source.read([24, 3, 11])

    assert leaves == {
        "x": "RowLeaf",
        "flag": "BlockLeaf",
        "time": "RowLeaf",
        "raw": "RowLeaf",
        "vector": "RowLeaf",
        "gaps": "BlockLeaf",
    }
    assert fields["x"].tolist() == [24, 3, 11]
    assert fields["flag"].tolist() == [True, False, False]
    assert fields["time"].astype(np.int64).tolist() == [24, 3, 11]
    assert fields["raw"].tolist() == [[24, 1, 2], [3, 1, 2], [11, 1, 2]]
    assert fields["vector"].tolist() == [[48, 49], [6, 7], [22, 23]]
    assert fields["gaps"].tolist() == [23, 2, 10]


def test_files_that_begin_otherwise_are_one_source_if_their_fields_are_the_same(tmp_path):
    """In the second file the columns have other types, and another order."""
    image = jpeg()
    first = pa.table(
        {"x": range(4), "image": [{"bytes": image, "path": "a"}] * 4, "kind": ["a", "b", "a", "b"]}
    )
    kinds = pa.array(["c", "d", "c"]).dictionary_encode()
    second = pa.table(
        {"kind": kinds, "image": pa.array([image + bytes([i]) for i in range(3)]), "x": range(4, 7)}
    )
    paths = [
        write(tmp_path / f"{n}.arrow", part, rows=2)
        for n, part in enumerate((first, second, first))
    ]

    source = gl.arrow(paths)

    for opened in (source, gl.arrow(source.index(tmp_path / "x.manifest"))):
        fields = opened.read(range(11))
        assert fields["x"].tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3]
        assert "".join(fields["kind"]) == "ababcdcabab"
        assert [bytes(value)[len(image) :] for value in fields["image"]] == [b""] * 4 + [
            b"\0",
            b"\1",
            b"\2",
        ] + [b""] * 4


def test_numbers_of_a_dictionary_are_its_values_and_not_their_places(tmp_path):
    """Places and values have the same bytes here."""
    values = pa.array([100, 200, 100, 300], pa.int32())

    with gl.arrow(
        write(tmp_path / "a.arrow", pa.table({"x": values.dictionary_encode()}), rows=3)
    ) as source:
        assert source.read(range(4))["x"].tolist() == values.to_pylist()


def all_types():
    """Columns of all types, of which ``x`` behind each of them is found by their numbers of
    buffers."""
    count, number = 7, pa.array(range(7))
    text, items = pa.array([f"t{i}" for i in range(count)]), [[i] * (i % 3) for i in range(count)]
    places = pa.array([0, 1] * 3 + [0], pa.int8())
    return {
        "bool": pa.array([True, None] * 3 + [True]),
        "null": pa.nulls(count),
        "decimal": pa.array(range(count), pa.decimal128(5)),
        "text": text,
        "large": text.cast(pa.large_string()),
        "dictionary": text.dictionary_encode(),
        "list": pa.array(items),
        "large list": pa.array(items, pa.large_list(pa.int32())),
        "list view": pa.array(items, pa.list_view(pa.int32())),
        "map": pa.array([[("a", i)] for i in range(count)], pa.map_(pa.string(), pa.int8())),
        "struct": pa.array([{"a": i, "b": "c"} for i in range(count)]),
        "fixed": pa.array([[[i, 1]] for i in range(count)], pa.list_(pa.list_(pa.int16(), 2), 1)),
        "sparse": pa.UnionArray.from_sparse(places, [number, text]),
        "dense": pa.UnionArray.from_dense(
            places, pa.array(range(count), pa.int32()), [number, text]
        ),
        "runs": pa.RunEndEncodedArray.from_arrays([3, count], ["a", "b"]),
        "tensor": pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.int8(), (2, 2)),
            pa.array([[i] * 4 for i in range(count)], pa.list_(pa.int8(), 4)),
        ),
        "interval": pa.array([(1, 2, 3)] * count, pa.month_day_nano_interval()),
    }


@pytest.mark.parametrize("options", [{}, {"is_stream": True}, {"compression": "lz4"}])
def test_a_column_is_found_behind_columns_of_any_type(tmp_path, options):
    typed_columns = all_types()
    columns = {
        name: column
        for pair in typed_columns.items()
        for name, column in (pair, (f"x {pair[0]}", pa.array(range(7))))
    }
    path = write(tmp_path / "a.arrow", pa.table(columns), rows=4, **options)

    with gl.arrow(path, [f"x {name}" for name in typed_columns]) as source:
        fields = source.read(range(7))
        assert ("decoded" in source.describe()) == ("compression" in options)
        assert [fields[f"x {name}"].tolist() for name in typed_columns] == [list(range(7))] * len(
            typed_columns
        )
    names = ["text", "large", "list", "large list", "fixed", "tensor"]
    with gl.arrow(path, [*names, "struct.b"]) as source:
        for name in names:
            expected = typed_columns[name].to_pylist()
            values = [
                np.asarray(value).reshape(-1).tolist() for value in source.read(range(7))[name]
            ]
            assert values == [np.asarray(value).reshape(-1).tolist() for value in expected], name
        assert source.read([6])["struct.b"].tolist() == ["c"]


def test_views_have_any_number_of_buffers_and_are_decoded(tmp_path):
    texts = [f"a text that is longer than twelve bytes {i}" for i in range(7)]
    path = write(
        tmp_path / "a.arrow",
        pa.table({"view": pa.array(texts, pa.string_view()), "x": range(7)}),
        rows=4,
    )

    with gl.arrow(path) as source:
        assert source.read(range(7))["view"].tolist() == texts
        assert source.read(range(7))["x"].tolist() == list(range(7))


@pytest.mark.parametrize("is_stream", [False, True])
def test_messages_as_they_were_before_arrow_0_15(tmp_path, is_stream):
    table = test_parquet.table().drop_columns("kind")
    options = pa.ipc.IpcWriteOptions(use_legacy_format=True)
    make = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    with make(tmp_path / "a.arrow", table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=10)

    with gl.arrow(tmp_path / "a.arrow") as source:
        assert source.read(range(test_parquet.COUNT))["number"].tolist() == list(
            range(test_parquet.COUNT)
        )
        assert (
            source.read(range(test_parquet.COUNT))["text"].tolist() == test_parquet.texts().tolist()
        )


def test_dictionaries_that_grow_are_read(tmp_path):
    parts = [
        pa.record_batch({"k": pa.array(names).dictionary_encode()})
        for names in (["a", "b"], ["a", "b", "c"])
    ]
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pa.ipc.new_file(tmp_path / "a.arrow", parts[0].schema, options=options) as writer:
        for part in parts:
            writer.write_batch(part)

    assert gl.arrow(tmp_path / "a.arrow").read(range(5))["k"].tolist() == ["a", "b", "a", "b", "c"]


def test_a_column_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    path = write(
        tmp_path / "a.arrow", pa.table({"x": np.arange(40_000)}), rows=40_000, compression="zstd"
    )
    content = path.read_bytes()
    place = content.index((320_000).to_bytes(8, "little"))
    path.write_bytes(content[:place] + (1 << 40).to_bytes(8, "little") + content[place + 8 :])

    with pytest.raises(
        FormatError, match=r"a\.arrow, record batch 0 has (.|\n)* unpacks to 1099511627776"
    ):
        gl.arrow(path).read([0])


def test_slices_are_written_and_read_where_they_lie(tmp_path):
    table = pa.table(
        {
            "x": np.arange(100),
            "v": pa.array(np.arange(200).reshape(100, 2).tolist(), pa.list_(pa.int64(), 2)),
        }
    )
    path = write(tmp_path / "a.arrow", table.slice(37, 20), rows=7)

    with gl.arrow(path) as source:
        assert source.read(range(20))["x"].tolist() == list(range(37, 57))
        assert source.read([1])["v"].tolist() == [[76, 77]]


def test_empty_batches_and_files_have_no_records(tmp_path):
    table = pa.table({"x": np.arange(3), "s": ["a", "b", "c"]})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        for part in (table[:0], table[:2], table[:0], table[2:]):
            writer.write_batch(
                pa.record_batch(
                    [column.combine_chunks() for column in part.columns], names=["x", "s"]
                )
            )
    write(tmp_path / "b.arrow", table[:0])

    with gl.arrow([tmp_path / "b.arrow", tmp_path / "a.arrow"]) as source:
        assert source.read(range(3))["x"].tolist() == [0, 1, 2]
        assert source.read([2, 0])["s"].tolist() == ["c", "a"]
        assert source.where(0) == "a.arrow, record 0"
    assert len(gl.arrow(tmp_path / "b.arrow")) == 0


def test_dictionaries_in_a_stream_are_refused_by_name_and_can_be_left_out(tmp_path):
    path = write(tmp_path / "a.arrow", test_parquet.table(), is_stream=True)

    with pytest.raises(SpecError, match=r"column 'kind' is dictionary(.|\n)*as Parquet"):
        gl.arrow(path)
    with gl.arrow(path, ["number", "text"]) as source:
        assert (
            source.read(range(test_parquet.COUNT))["text"].tolist() == test_parquet.texts().tolist()
        )
        assert source.read([24])["number"].tolist() == [24]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("keep", [0, 8, 100, -20])
def test_a_file_that_is_cut_short_is_refused_or_damaged(tmp_path, keep, is_stream):
    path = write(
        tmp_path / "a.arrow", test_parquet.table().drop_columns("kind"), is_stream=is_stream
    )
    path.write_bytes(path.read_bytes()[:keep])

    with pytest.raises((FormatError, DamagedBlockError), match=r"a\.arrow"):
        gl.arrow(path).read(range(test_parquet.COUNT))


def test_a_file_that_changes_is_noticed(tmp_path, reader):
    path = write(tmp_path / "a.arrow", test_parquet.table())
    source = gl.arrow(path)
    write(path, test_parquet.table(factor=3))

    for name in ("number", "text"):
        with pytest.raises(ChangedFileError, match=r"a\.arrow changed"):
            source.read([0], name)


def test_two_columns_of_one_name_are_refused(tmp_path):
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])

    with pytest.raises(SpecError, match="two columns 'x'"):
        gl.arrow(write(tmp_path / "a.arrow", table))


def test_offsets_that_lead_outside_are_damage(tmp_path):
    path = write(tmp_path / "a.arrow", pa.table({"s": [f"text {i}" * 9 for i in range(8)]}))
    content = bytearray(path.read_bytes())
    place = content.index(np.arange(54, 54 * 5, 54, dtype="<i4").tobytes())
    content[place : place + 4] = (1 << 30).to_bytes(4, "little")
    path.write_bytes(content)

    with pytest.raises((DamagedBlockError, FormatError), match=r"a\.arrow(.|\n)*PyArrow"):
        gl.arrow(path)[0]


@pytest.mark.parametrize("value", [-1, 1 << 40, (1 << 63) - 1, "a place near the end"])
def test_numbers_that_metadata_lie_about_give_no_other_values(tmp_path, value):
    """Each eight bytes of the metadata of the record batch and of the footer, one after the
    other."""
    path = write(
        tmp_path / "a.arrow", pa.table({"x": np.arange(8), "s": [f"t{i}" for i in range(8)]})
    )
    content, outcomes = path.read_bytes(), set()
    value = value if isinstance(value, int) else len(content) - 200
    batch, end = content.index(b"\xff\xff\xff\xff", 16), len(content) - 10
    footer = end - int.from_bytes(content[end : end + 4], "little")
    body = batch + 8 + int.from_bytes(content[batch + 4 : batch + 8], "little")
    for place in [*range(batch + 8, body, 8), *range(footer, end, 8)]:
        path.write_bytes(
            content[:place] + (value % (1 << 64)).to_bytes(8, "little") + content[place + 8 :]
        )
        with contextlib.suppress(FormatError, DamagedBlockError, SpecError):
            source = gl.arrow(path)
            outcomes.add(tuple(source.read(range(len(source)))["x"].tolist()))
    assert outcomes <= {tuple(range(8)), ()}  # a footer may say that there is no record batch


def test_two_schemas_in_a_file_are_refused(tmp_path):
    path = write(tmp_path / "a.arrow", pa.table({"name": np.arange(3)}))
    path.write_bytes(path.read_bytes().replace(b"name", b"NAME", 1))

    with pytest.raises(FormatError, match=r"a\.arrow has two schemas"):
        gl.arrow(path)


def test_what_datasets_saved_to_disk_needs_no_datasets():
    with gl.arrow(GOLDEN.parent / "datasets" / "data-*.arrow") as source:
        assert [str(field) for field in source.spec] == [
            "image: encoded image",
            "label: int64 ()",
            "grid: float32 (2, 3)",
            "text: str ()",
        ]
        assert source.classes == ("cat", "dog")
        fields = source.read([5, 0])
    assert fields["label"].tolist() == [1, 0]
    assert fields["text"].tolist() == ["text 5", "text 0"]
    assert fields["grid"][0].tolist() == [[30, 31, 32], [33, 34, 35]]
    image = gl.ops.Decode().decode_file(fields["image"][0])
    assert image.shape == (4, 5, 3)
    assert (image == 5).all()


# --- with the library itself, where it is installed


def load(folder):
    shutil.copytree(GOLDEN.parent / "datasets", folder / "set", dirs_exist_ok=True)
    return pytest.importorskip("datasets").load_from_disk(folder / "set")


class TestDataset(SourceContract):
    def open(self, folder):
        return gl.datasets(
            load(folder).shuffle(seed=1).select(range(1, 6)), ["label", "text", "grid"]
        )

    def open_other(self, folder):
        return gl.datasets(load(folder), ["label", "text"])

    def expected(self):
        with tempfile.TemporaryDirectory() as folder:  # the library writes beside what it loads
            rows = load(Path(folder)).shuffle(seed=1)[1:6]
        return {
            "label": np.array(rows["label"]),
            "text": np.array(rows["text"], object),
            "grid": np.array(rows["grid"], np.float32),
        }


def test_a_dataset_gives_its_images_and_classes_and_is_pickled(tmp_path):
    source = pickle.loads(pickle.dumps(gl.datasets(load(tmp_path))))

    assert source.classes == ("cat", "dog")
    assert source.spec["image"].encoded
    assert (gl.ops.Decode().decode_file(source[3]["image"]) == 3).all()


def test_what_is_no_dataset_is_refused_with_what_is(tmp_path):
    library, dataset = pytest.importorskip("datasets"), load(tmp_path)

    with pytest.raises(SpecError, match=r"splits \['train'\](.|\n)*dataset\['train'\]"):
        gl.datasets(library.DatasetDict({"train": dataset}))
    with pytest.raises(SpecError, match="with a transform"):
        gl.datasets(dataset.with_transform(lambda rows: rows))


def test_an_object_without_a_table_is_refused():
    with pytest.raises(SpecError, match=r"gl\.datasets\(list\)(.|\n)*load_dataset"):
        gl.datasets([1, 2])


HARD_VALUES = {
    "doubles in a dictionary": lambda: pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 0, 1]), pa.array([2.5, -3.0])
    ),
    "doubles in runs": lambda: pa.RunEndEncodedArray.from_arrays(
        pa.array([1, 4], pa.int64()), pa.array([2.5, -3.0])
    ),
    "dates in a dictionary": lambda: pa.DictionaryArray.from_arrays(
        pa.array([1, 0], pa.int64()), pa.array([5, 7], pa.timestamp("us"))
    ),
}


@pytest.mark.parametrize("name", HARD_VALUES)
def test_places_and_ends_of_runs_are_not_the_values(tmp_path, name):
    column = HARD_VALUES[name]()
    plain = column.dictionary_decode() if "dict" in name else pa.compute.run_end_decode(column)

    with gl.arrow(write(tmp_path / "a.arrow", pa.table({"x": column}))) as source:
        assert (
            source.read(range(len(column)))["x"].tolist()
            == plain.to_numpy(zero_copy_only=False).tolist()
        )


@pytest.mark.parametrize(
    ("column", "default", "expected"),
    [
        (
            lambda: pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["a", None])),
            "?",
            ["a", "?", "?"],
        ),
        (
            lambda: pa.RunEndEncodedArray.from_arrays([1, 3], pa.array([None, "b"])),
            "?",
            ["?", "b", "b"],
        ),
        (lambda: pa.RunEndEncodedArray.from_arrays([1, 3], pa.array([None, 2])), 9, [9, 2, 2]),
        (lambda: pa.array(["a", None, "c"], pa.string_view()), "?", ["a", "?", "c"]),
        (lambda: pa.array([1.5, None, 2], pa.float16()), 9, [1.5, 9, 2]),
    ],
)
def test_missing_values_of_any_form_have_the_default(tmp_path, column, default, expected):
    path = write(tmp_path / "a.arrow", pa.table({"x": column()}))

    assert gl.arrow(path, defaults={"x": default}).read(range(3))["x"].tolist() == expected
    with pytest.raises(SpecError, match=r"values are missing(.|\n)*defaults="):
        gl.arrow(path).read(range(3))


FEW_BYTES = {
    "runs": lambda: pa.RunEndEncodedArray.from_arrays(
        pa.array([1 << 28], pa.int32()), pa.array([7])
    ),
    "a dictionary": lambda: pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(1800, "i4")), ["a" * (1 << 20)]
    ),
    "views": lambda: pa.Array.from_buffers(
        pa.string_view(),
        1800,
        [None, pa.py_buffer(np.tile(VIEW, 1800).tobytes()), pa.py_buffer(b"aaaa" * (1 << 18))],
    ),
    "lists of runs": lambda: pa.ListArray.from_arrays(
        pa.array([0, 1 << 28], pa.int32()),
        pa.RunEndEncodedArray.from_arrays(
            pa.array([1 << 28], pa.int32()), pa.array([7], pa.uint8())
        ),
    ),
}
VIEW = np.array(
    [(1 << 20, b"aaaa", 0, 0)],
    [("n", "<i4"), ("prefix", "S4"), ("buffer", "<i4"), ("offset", "<i4")],
)


@pytest.mark.parametrize("name", FEW_BYTES)
def test_few_bytes_that_stand_for_many_are_refused_before_memory_is_taken(
    tmp_path, name, monkeypatch
):
    monkeypatch.setattr("gpuload.storage.inflate.ALLOWED_BYTES", 1 << 20)
    monkeypatch.setenv("GPULOAD_EXPANSION", "1")
    path = write(tmp_path / "a.arrow", pa.table({"x": FEW_BYTES[name]()}), rows=1 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    with pytest.raises(
        FormatError, match=r"a\.arrow, record batch 0 has \d+ bytes, and unpacks to \d+ or more"
    ):
        gl.arrow(path).read([0])

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KB


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view(), "texts"])
@pytest.mark.parametrize("coding", ["dictionary", "run ends", "part of run ends"])
def test_dictionaries_and_run_ends_of_values_that_pyarrow_does_not_decode(tmp_path, kind, coding):
    texts = ["a", "bb" * 20, "c"]
    values = pa.array(texts).dictionary_encode() if kind == "texts" else pa.array(texts).cast(kind)
    if coding == "dictionary" and kind == "texts":
        pytest.skip("no file has a dictionary of a dictionary")
    if coding == "dictionary":
        array = pa.DictionaryArray.from_arrays(pa.array([2, 0, 1, 1, 2], pa.int8()), values)
        right = [texts[number] for number in (2, 0, 1, 1, 2)]
    else:
        array = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3, 5], pa.int32()), values)
        right = [texts[number] for number in (0, 0, 1, 2, 2)]
    if coding == "part of run ends":
        array, right = array.slice(1, 3), right[1:4]
    table = pa.table({"x": array})
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table)

    values = gl.arrow(tmp_path / "a.arrow").read(range(len(right)))["x"]

    assert [value if isinstance(value, str) else bytes(value).decode() for value in values] == right


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_buffers_compressed_as_by_arrow_0_17_are_decoded(tmp_path, codec):
    # Random numbers, which compression makes no shorter.
    numbers = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 1000)
    batch = pa.record_batch(
        {"x": numbers, "y": pa.array([f"text {number % 3}" for number in range(1000)])}
    )
    options = pa.ipc.IpcWriteOptions(compression=codec, metadata_version=pa.ipc.MetadataVersion.V4)
    path = tmp_path / "a.arrow"
    with pa.ipc.new_stream(str(path), batch.schema, options=options) as writer:
        writer.write_batch(batch, custom_metadata={"ARROW:experimental_compression": codec})
    # Arrow 0.17 says in custom metadata what later ones say in a field of the record batch, which
    # is taken out here.
    content = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(content[4:8], "little")
    about = Message.parse(bytes(content[begin:])).about
    slot = begin + 8 + about._slots + 4 + 2 * 3
    content[slot : slot + 2] = bytes(2)
    path.write_bytes(content)
    assert pa.ipc.open_stream(path.read_bytes()).read_all()["x"].to_pylist() == numbers.tolist()

    values = gl.arrow(path).read([0, 7, 999])

    assert values["x"].tolist() == numbers[[0, 7, 999]].tolist()
    assert values["y"].tolist() == ["text 0", "text 1", "text 0"]


def test_feather_of_version_1_is_not_called_cut_short(tmp_path):
    (tmp_path / "a.feather").write_bytes(b"FEA1" + bytes(200) + b"FEA1")

    for call in (gl.arrow, gl.open):
        with pytest.raises(
            FormatError, match=r"a\.feather is a Feather file of version 1\n.*not supported"
        ):
            call(tmp_path / "a.feather")
