"""Arrow files and streams, and datasets, give what PyArrow and `datasets` say of them; damage is refused by name."""

from __future__ import annotations

import pickle
import shutil
import tempfile
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import ChangedFileError, DamagedBlockError, FormatError, SpecError
from gpuload.testing.sources import SourceContract
from tests.sources import test_parquet

pa = pytest.importorskip("pyarrow", reason="gl.arrow needs PyArrow")
feather = pytest.importorskip("pyarrow.feather")

GOLDEN = Path(__file__).parents[1] / "golden" / "parquet"


def write(path, table, *, rows=10, is_stream=False, compression=None):
    make = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    with make(path, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
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
        return gl.arrow(write(folder / "a.arrow", test_parquet.table(factor=2).select(self.columns), **self.options))

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
        "vector": pa.array(np.arange(50, dtype="f4").reshape(25, 2).tolist(), pa.list_(pa.float32(), 2)),
        "gaps": pa.array([None, *range(24)]),
    }
    path = write(tmp_path / "a.arrow", pa.table(columns))

    with gl.arrow(path, defaults={"gaps": -1}) as source:
        leaves = {
            share.leaf.spec.names[0]: type(share.leaf).__name__ for share in source.resolve(np.zeros(1, np.int64))
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


def test_slices_are_written_and_read_where_they_lie(tmp_path):
    table = pa.table(
        {"x": np.arange(100), "v": pa.array(np.arange(200).reshape(100, 2).tolist(), pa.list_(pa.int64(), 2))}
    )
    path = write(tmp_path / "a.arrow", table.slice(37, 20), rows=7)

    with gl.arrow(path) as source:
        assert source.read(range(20))["x"].tolist() == list(range(37, 57))
        assert source.read([1])["v"].tolist() == [[76, 77]]


def test_empty_batches_and_files_have_no_records(tmp_path):
    table = pa.table({"x": np.arange(3), "s": ["a", "b", "c"]})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        for part in (table[:0], table[:2], table[:0], table[2:]):
            writer.write_batch(pa.record_batch([column.combine_chunks() for column in part.columns], names=["x", "s"]))
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
    assert len(gl.arrow(path, ["number"])) == test_parquet.COUNT


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("keep", [0, 8, 100, -20])
def test_a_file_that_is_cut_short_is_refused_or_damaged(tmp_path, keep, is_stream):
    path = write(tmp_path / "a.arrow", test_parquet.table().drop_columns("kind"), is_stream=is_stream)
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
        return gl.datasets(load(folder).shuffle(seed=1).select(range(1, 6)), ["label", "text", "grid"])

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
