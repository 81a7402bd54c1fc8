"""HDF5 files give what h5py, and the programs that wrote them, say of them; damage is refused by
name."""

from __future__ import annotations

import ctypes
import io
import math
import os
import pickle
import zlib
from pathlib import Path
from typing import ClassVar

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
from gpuload.formats.hdf5 import chunks
from gpuload.formats.hdf5 import library as reader
from gpuload.sources.reading import record_origin
from gpuload.testing.sources import SourceContract

h5py = pytest.importorskip("h5py", reason="gl.hdf5 needs h5py")
GOLDEN = Path(__file__).parents[1] / "golden" / "hdf5"
COUNT = 25


def arrays(factor=1):
    number = np.arange(COUNT) * factor
    pairs = np.zeros(COUNT, [("a", ">i4"), ("b", "f4", (2,))])
    pairs["a"], pairs["b"] = number, number[:, None] + [0.5, 1.5]
    return {
        "big": number.astype(">i2"),
        "cube": np.arange(COUNT * 24, dtype="u1").reshape(COUNT, 2, 3, 4),
        "flag": number % 3 == 0,
        "pair": pairs,
    }


def write(path, content=None, **options):
    with h5py.File(path, "w") as file:
        for name, values in (arrays() if content is None else content).items():
            file.create_dataset(name, data=values, **options)
    return path


class TestRowsWhereTheyLie(SourceContract):
    options: ClassVar = {}

    def open(self, folder):
        return gl.hdf5(write(folder / "a.h5", **self.options))

    def open_other(self, folder):
        return gl.hdf5(write(folder / "a.h5", arrays(factor=2), **self.options))

    def expected(self):
        expected = arrays()
        pairs = expected.pop("pair")
        expected["big"] = expected["big"].astype("i2")
        return expected | {"pair.a": pairs["a"].astype("i4"), "pair.b": pairs["b"]}

    def test_it_says_how(self, source):
        assert "decoded" not in source.describe()


class TestChunksOfRows(TestRowsWhereTheyLie):
    def open(self, folder):
        with h5py.File(folder / "a.h5", "w") as file:
            for name, values in arrays().items():
                file.create_dataset(name, data=values, chunks=(4, *values.shape[1:]))
        return gl.hdf5(folder / "a.h5")


class TestDeflatedChunks(TestRowsWhereTheyLie):
    options: ClassVar = {"compression": "gzip", "shuffle": True, "fletcher32": True}

    def test_it_says_how(self, source):
        assert "decoded by gpuload" in source.describe()


class TestChunksOfOtherFilters(TestRowsWhereTheyLie):
    options: ClassVar = {"compression": "lzf"}

    def test_it_says_how(self, source):
        assert "decoded by HDF5" in source.describe()


class TestBlocksThatAreNotCached(TestRowsWhereTheyLie):
    def open(self, folder):
        return gl.hdf5(write(folder / "a.h5", compression="gzip"), cache_bytes=0)

    def test_it_says_how(self, source):
        assert source.resolve(np.zeros(1, np.int64))[0].leaf.block_records


class TestValuesOfVaryingLength(SourceContract):
    def texts(self):
        return [f"nämé {i}" * (i % 3) for i in range(COUNT)]

    def series(self):
        return [np.arange(i % 4, dtype="i2") for i in range(COUNT)]

    def open(self, folder, count=COUNT):
        with h5py.File(folder / "a.h5", "w") as file:
            file.create_dataset("text", data=self.texts()[:count], dtype=h5py.string_dtype())
            series = file.create_dataset(
                "series", (count,), h5py.vlen_dtype(np.dtype("i2")), chunks=(7,)
            )
            for number, values in enumerate(self.series()[:count]):
                series[number] = values
        return gl.hdf5(folder / "a.h5", ["text", "series"])

    def open_other(self, folder):
        return self.open(folder, COUNT - 1)

    def expected(self):
        return {"text": np.array(self.texts(), object), "series": self.series()}


@pytest.mark.parametrize("chunk", [(1, 1), (3, 2), (25, 3), (7, 5)])
@pytest.mark.parametrize(
    "filters", [{}, {"compression": "gzip"}, {"shuffle": True, "fletcher32": True}]
)
def test_chunks_of_any_shape_are_put_together(tmp_path, chunk, filters):
    values = np.random.default_rng(1).integers(0, 9, (25, 5)).astype("f4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=chunk, **filters)

    with gl.hdf5(tmp_path / "a.h5") as source:
        np.testing.assert_array_equal(source.read([24, 3, 4, 0])["x"], values[[24, 3, 4, 0]])


@pytest.mark.parametrize("size", [0, 1, 2, 3, 1000, 70001])
def test_checksums_are_those_of_hdf5(tmp_path, size):
    """HDF5 stores the checksum behind the bytes of a chunk."""
    for values in (
        np.zeros(size, "u1"),
        np.full(size, 255, "u1"),
        np.random.default_rng(0).integers(0, 256, size, "u1"),
    ):
        if size:
            with h5py.File(tmp_path / "a.h5", "w") as file:
                dataset = file.create_dataset("x", data=values, chunks=(size,), fletcher32=True)
                stored = dataset.id.read_direct_chunk((0,))[1]
            assert chunks.fletcher32(values) == int.from_bytes(stored[-4:], "little")


def test_a_file_of_other_types_gives_what_h5py_gives(tmp_path):
    content = {
        "half": np.array([1.5, -2], "f2"),
        "complex": np.array([1 + 2j, 3], "c8"),
        "words": np.array([b"ab", b"c"]),
        "void": np.array([b"ab", b"cd"], "V2"),
    }
    with h5py.File(write(tmp_path / "a.h5", content), "a") as file:
        file.create_dataset("kind", data=[1, 0], dtype=h5py.enum_dtype({"cat": 0, "dog": 1}, "i1"))
        file["time"] = np.array([3, 5], "M8[s]").astype(h5py.opaque_dtype("M8[s]"))
        file.create_dataset("inner", (2,), np.dtype(("<i2", (3,))))[...] = [[1, 2, 3], [4, 5, 6]]
        file.create_dataset("inner chunks", (2,), np.dtype(("<i2", (3,))), chunks=(1,))[...] = [
            [1, 2, 3],
            [4, 5, 6],
        ]
        space = h5py.h5t.FORTRAN_S1.copy()
        space.set_size(3)
        h5py.h5d.create(file.id, b"fortran", space, h5py.h5s.create_simple((2,)))
        file["fortran"][...] = np.array([b"x", b"yz"])

    with gl.open(tmp_path / "a.h5") as source, h5py.File(tmp_path / "a.h5") as file:
        assert sorted(source.spec.names) == sorted(file)
        assert source.classes == ("cat", "dog")
        fields = source.read([1, 0])
        for name in file:
            np.testing.assert_array_equal(fields[name], file[name][:][::-1])
            assert fields[name].dtype == file[name][:].dtype
        assert "; fortran: blocks" in source.describe()


@pytest.mark.parametrize("name", ["h5py-earliest", "h5py-latest", "pytables"])
def test_files_of_other_programs_hold_what_these_wrote(name):
    with gl.open(GOLDEN / f"{name}.h5") as source:
        fields = {
            key.removeprefix("rows."): values for key, values in source.read(range(7)).items()
        }

    assert fields["number"].tolist() == list(range(7))
    np.testing.assert_array_equal(fields["x"], np.linspace(-1, 1, 7))
    assert fields["flag"].tolist() == [True, False, False, True, False, False, True]
    np.testing.assert_array_equal(fields["image"], np.arange(168, dtype="u1").reshape(7, 2, 4, 3))
    if name == "pytables":
        assert fields["word"].tolist() == [b"word %d" % i for i in range(7)]
        assert fields["list"].tolist() == np.arange(14).reshape(7, 2).tolist()
    else:
        assert fields["word"].tolist() == [f"wörd {i}" for i in range(7)]
        assert [value.tolist() for value in fields["list"]] == [
            [],
            [0],
            [0, 1],
            [0, 1, 2],
            [],
            [0],
            [0, 1],
        ]


def test_bytes_of_images_are_images(tmp_path):
    image = pytest.importorskip("PIL.Image")
    encoded_images = []
    for value in (3, 4):
        image.fromarray(np.full((5, 4, 3), value, np.uint8)).save(file := io.BytesIO(), "PNG")
        encoded_images.append(np.frombuffer(file.getvalue(), np.uint8))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("image", (2,), h5py.vlen_dtype("u1"))
        for number, content in enumerate(encoded_images):
            dataset[number] = content

    with (
        gl.hdf5(tmp_path / "a.h5") as source,
        gl.Loader(source, batch_size=2, ops=[gl.ops.Decode()]) as loader,
    ):
        [batch] = loader
        assert np.asarray(batch["image"])[:, 0, 0, 0].tolist() == [3, 4]


def test_several_files_are_one_behind_the_other_however_each_is_stored(tmp_path):
    values = np.arange(40, dtype="f4").reshape(20, 2)
    for name, part, options in (
        ("a", values[:7], {}),
        ("b", values[7:9], {"compression": "gzip"}),
        ("c", values[:0], {}),
        ("d", values[9:].astype(">f4"), {"chunks": (4, 2)}),
    ):
        write(tmp_path / f"{name}.h5", {"x": part}, **options)

    with gl.hdf5(tmp_path / "*.h5") as source:
        assert source.files.counts == (7, 2, 0, 11)
        assert source.where(7) == "b.h5, record 0"
        np.testing.assert_array_equal(source.read(range(20))["x"], values)
    with gl.hdf5([tmp_path / "a.h5", tmp_path / "c.h5"]) as source:
        assert "decoded" not in source.describe()
        np.testing.assert_array_equal(source.read(range(7))["x"], values[:7])
    write(tmp_path / "e.h5", {"x": values.astype("f8")})
    with pytest.raises(SpecError, match=r"e\.h5, x is x: float64 \(2,\), .*a\.h5, x is x: float32"):
        gl.hdf5([tmp_path / "a.h5", tmp_path / "e.h5"])


def test_fields_are_named_by_a_list_a_dict_and_a_group(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["train/x"], file["train/meta/y"], file["mean"] = np.arange(3.0), np.arange(3), 5.0
        file["train/soft"], file["train/back"] = h5py.SoftLink("meta/y"), h5py.SoftLink("/train/x")

    assert gl.hdf5(tmp_path / "a.h5", group="train").spec.names == ("back", "soft", "x")
    with gl.hdf5(tmp_path / "a.h5", {"a": "meta/y", "b": "x"}, group="train") as source:
        assert source.read([2])["a"].tolist() == [2]
        other = gl.hdf5(tmp_path / "a.h5", {"a": "soft", "b": "back"}, group="/train/")
        assert other.read([2])["b"].tolist() == [2.0]
        assert other.fingerprint() != source.fingerprint()
    with pytest.raises(
        SpecError,
        match=r"no dataset with an axis in the group /(.|\n)*train/meta/y, train/x(.|\n)*group=",
    ):
        gl.hdf5(tmp_path / "a.h5")
    with pytest.raises(
        UnknownFieldError, match=r"a\.h5 has no 'train/z'(.|\n)*\['back', 'meta', 'soft', 'x'\]"
    ):
        gl.hdf5(tmp_path / "a.h5", ["z"], group="train")
    with pytest.raises(SpecError, match="is no group"):
        gl.hdf5(tmp_path / "a.h5", group="mean")


def test_arrays_of_other_lengths_are_refused_with_those_that_agree(tmp_path):
    write(tmp_path / "a.h5", {"mean": np.zeros(3), "x": np.zeros(9), "y": np.zeros(9)})

    with pytest.raises(SpecError, match=r"mean 3, x 9, y 9(.|\n)*fields=\['x', 'y'\]"):
        gl.hdf5(tmp_path / "a.h5")
    assert len(gl.hdf5(tmp_path / "a.h5", ["x", "y"])) == 9


def link(file):
    file["bad"] = h5py.ExternalLink("other.h5", "/x")


def soft_link_to_another_file(file):
    file["out"] = h5py.ExternalLink("other.h5", "/")
    file["bad"] = h5py.SoftLink("/out/x")
    file.move("out", "g/out")
    file["g/bad"] = h5py.SoftLink("out/x")
    del file["bad"]
    file["bad"] = h5py.SoftLink("g/bad")


def circle(file):
    file["bad"] = h5py.SoftLink("bad")


def virtual(file):
    layout = h5py.VirtualLayout((3,), "f8")
    layout[:] = h5py.VirtualSource("other.h5", "x", (3,))
    file.create_virtual_dataset("bad", layout)


def external(file):
    file.create_dataset("bad", (3,), "f8", external=[("/etc/passwd", 0, 24)])


def references(file):
    file["bad"] = np.array([file["x"].ref] * 3, h5py.ref_dtype)


def lists_of_texts(file):
    file.create_dataset("bad", data=[["a"]] * 3, dtype=h5py.string_dtype())


def compound_of_texts(file):
    file.create_dataset("bad", (3,), np.dtype([("a", h5py.string_dtype())]))[...] = [("a",)] * 3


def time(file):
    h5py.h5d.create(file.id, b"bad", h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((3,)))


def turned(file):
    file.create_dataset("bad", (3,), h5py.vlen_dtype(np.dtype(">i2")))[0] = [1, 2]


def never(file):
    file.create_dataset("bad", (3,), "f8")


REFUSALS = {
    link: r"leads to the file 'other\.h5'",
    soft_link_to_another_file: r"leads to the file 'other\.h5'",
    circle: "leads to itself",
    virtual: "it is a virtual dataset",
    external: "they are in '/etc/passwd'",
    references: "references to other objects",
    lists_of_texts: "a row has one of them",
    compound_of_texts: "Python objects",
    turned: "without turning their bytes around",
    time: "none of NumPy's",
    never: "none of its 3 rows was ever written",
}


@pytest.mark.parametrize("spoil", REFUSALS)
def test_what_is_no_field_is_refused_by_name_and_can_be_left_out(tmp_path, spoil):
    path = write(tmp_path / "a.h5", {"x": np.arange(3.0)})
    write(tmp_path / "other.h5", {"x": np.arange(3.0)})
    with h5py.File(path, "a") as file:
        spoil(file)

    with pytest.raises(SpecError, match=f"a\\.h5(.|\n)*bad(.|\n)*{REFUSALS[spoil]}"):
        gl.hdf5(path)

    assert gl.hdf5(path, ["x"])[2]["x"] == 2.0


def test_single_values_and_groups_are_refused_by_name(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["one"], file["g/y"] = np.zeros(3), 1.0, np.zeros(3)
        file["none"] = h5py.Empty("f4")

    assert gl.hdf5(tmp_path / "a.h5").spec.names == ("x",)
    for name, cause in (
        ("one", "single value or empty"),
        ("none", "single value or empty"),
        ("g", "it is a group"),
    ):
        with pytest.raises(SpecError, match=rf"a\.h5, {name}: it is no array(.|\n)*{cause}"):
            gl.hdf5(tmp_path / "a.h5", [name])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fields": "x"}, "it is a list of the paths"),
        ({"fields": []}, "it is a list of the paths"),
        ({"fields": {"x": 3}}, "it is a list of the paths"),
        ({"group": None}, "it is the path of a group"),
        ({"cache_bytes": -1}, "cache_bytes = -1"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, arguments, message):
    with pytest.raises(SpecError, match=message):
        gl.hdf5(write(tmp_path / "a.h5"), **arguments)


def test_without_h5py_the_extra_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "a.h5")
    monkeypatch.setattr(
        reader.signalsafe, "import_package", lambda name: (_ for _ in ()).throw(ImportError(name))
    )

    with pytest.raises(MissingPackageError, match=r"gl\.hdf5 needs the package 'h5py'(.|\n)*hdf5"):
        gl.hdf5(path)


def test_a_filter_that_hdf5_has_not_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "a.h5", compression="gzip")
    monkeypatch.setattr(h5py.h5z, "filter_avail", lambda code: False)

    with pytest.raises(
        MissingPackageError,
        match=r"a\.h5, big: it is compressed by the filter 1 \(deflate\)(.|\n)*hdf5plugin",
    ):
        gl.hdf5(path)


def test_chunks_that_were_never_written_have_the_fill_value_and_the_log_says_so(tmp_path, caplog):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (10,), "i4", chunks=(3,), fillvalue=7)[3:5] = [1, 2]

    with gl.hdf5(tmp_path / "a.h5") as source:
        assert source.read(range(10))["x"].tolist() == [7, 7, 7, 1, 2, 7, 7, 7, 7, 7]
    assert "x: 3 of its 4 chunks are not there" in caplog.text
    with gl.hdf5(tmp_path / "a.h5") as source:
        assert record_origin(source, 0) == (str(tmp_path / "a.h5"), record_origin(source, 3)[1])


@pytest.mark.parametrize("place", [512, 1024, 4096])
@pytest.mark.parametrize("options", [{}, {"chunks": (4,)}, {"compression": "gzip"}])
def test_a_block_of_the_user_before_the_file_is_passed_over(tmp_path, place, options):
    with h5py.File(tmp_path / "a.mat", "w", userblock_size=place) as file:
        file.create_dataset("x", data=np.arange(9), **options)

    with gl.open(tmp_path / "a.mat") as source:
        assert source.read([8, 0])["x"].tolist() == [8, 0]


def test_a_whole_shuffle_of_chunks_says_its_price(tmp_path, caplog):
    path = write(tmp_path / "a.h5", {"x": np.arange(1000)}, chunks=(100,), compression="gzip")

    gl.Loader(gl.hdf5(path, cache_bytes=3000), batch_size=50, shuffle=True, device="cpu").close()

    assert "may decode 100 records for each one" in caplog.text
    assert "gl.Blocks" in caplog.text


@pytest.mark.parametrize("keep", [0, 3, 8, 500, -1, -1000])
def test_a_file_that_is_cut_short_is_refused(tmp_path, keep):
    path = write(tmp_path / "a.h5")
    path.write_bytes(path.read_bytes()[:keep])

    with pytest.raises(FormatError, match=r"a\.h5"):
        gl.hdf5(path)


def test_a_damaged_chunk_is_that_alone_and_is_reported_once(tmp_path):
    path = write(
        tmp_path / "a.h5", {"x": np.arange(30)}, chunks=(10,), compression="gzip", fletcher32=True
    )
    with h5py.File(path) as file:
        info = file["x"].id.get_chunk_info(1)
    content = bytearray(path.read_bytes())
    content[info.byte_offset + 9] ^= 4
    path.write_bytes(content)

    with gl.hdf5(path) as source:
        assert source.read([0, 9, 20, 29])["x"].tolist() == [0, 9, 20, 29]
        with pytest.raises(
            DamagedBlockError,
            match=rf"a\.h5, x, chunk at byte {info.byte_offset}(.|\n)*checksum is 0x",
        ):
            source[10]
        with gl.Loader(source, batch_size=10, on_error="skip", max_bad=1, device="cpu") as loader:
            values = np.concatenate([batch["x"] for batch in loader])
        assert sorted(set(values.tolist())) == [*range(10), *range(20, 30)]
    [finding] = gl.check(path)
    assert (finding.where, finding.offset_bytes) == (
        f"{path}, x, chunk at byte {info.byte_offset}",
        info.byte_offset,
    )


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "its bytes end too early"),
        (b"\xff" * 9, "incorrect header check"),
        (bytes(10), "unknown compression method"),
    ],
)
def test_a_deflated_chunk_that_is_none_is_damage(content, cause):
    grid = chunks.Grid(
        "a.h5, x",
        0,
        (3,),
        (3,),
        np.dtype("i4"),
        ((chunks.DEFLATE, ()),),
        0,
        *(np.zeros(1, np.int64) for _ in range(4)),
    )

    with pytest.raises(DamagedBlockError, match=cause):
        grid.undo(np.frombuffer(content, np.uint8), 0)


def test_a_chunk_that_unpacks_to_more_than_it_has_is_damage(tmp_path):
    path = write(
        tmp_path / "a.h5", {"x": np.zeros(1 << 20, "u1")}, chunks=(1 << 20,), compression="gzip"
    )
    with h5py.File(path) as file:
        packed = np.frombuffer(file["x"].id.read_direct_chunk((0,))[1], np.uint8)
    grid = chunks.Grid(
        "a.h5, x",
        0,
        (3,),
        (3,),
        np.dtype("i4"),
        ((chunks.DEFLATE, ()),),
        0,
        *(np.zeros(1, np.int64) for _ in range(4)),
    )

    with pytest.raises(DamagedBlockError, match="it unpacks to more than"):
        grid.undo(packed, 0)


def test_a_shape_of_more_bytes_than_are_stored_is_refused(tmp_path):
    path = write(tmp_path / "a.h5", {"x": np.arange(1000, dtype="i8")})
    content = path.read_bytes()
    length = (1000).to_bytes(8, "little")
    assert content.count(length) == 2  # the length, and the most that it may become
    for number in (2, 9**15):
        path.write_bytes(content.replace(length, number.to_bytes(8, "little")))
        with pytest.raises(FormatError, match=r"a\.h5"):
            gl.hdf5(path)


def test_a_file_that_changes_is_noticed(tmp_path):
    for options in ({}, {"compression": "gzip"}, {"compression": "lzf"}):
        path = write(tmp_path / "a.h5", **options)
        source = gl.hdf5(path)
        write(path, arrays(factor=3), **options)

        with pytest.raises(ChangedFileError, match=r"a\.h5 changed"):
            source[0]


def test_a_child_of_a_fork_reads_as_well(tmp_path):
    source = gl.hdf5(write(tmp_path / "a.h5", compression="lzf"), cache_bytes=0)
    source.read(range(COUNT))

    child = os.fork()
    if child == 0:
        os._exit(0 if source[5]["big"] == 5 else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_source_is_pickled_with_its_arguments(tmp_path):
    write(tmp_path / "a.h5")
    source = gl.hdf5(tmp_path / "a.h5", {"number": "big", "flag": "flag"}, group="/", cache_bytes=0)

    copy = pickle.loads(pickle.dumps(source))

    assert copy.fingerprint() == source.fingerprint()
    assert copy.read([7])["number"].tolist() == [7]


def test_what_is_written_is_read_again_by_h5py_and_where_it_lies(tmp_path):
    contents = {
        "half": np.array([1.5, np.nan], "f2"),
        "flag": np.array([True, False]),
        "word": np.array(["é", "word"]),
        "raw": np.array([b"a", b"bc"]),
        "cube": np.arange(16, dtype=">i4").reshape(2, 2, 2, 2),
        "complex": np.array([1j, 2]),
    }
    write(tmp_path / "a.h5", {})
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file.create_dataset("text", data=["ä", ""], dtype=h5py.string_dtype())
        file.create_dataset("series", (2,), h5py.vlen_dtype("i2"))[1] = [0]
    ragged = gl.hdf5(tmp_path / "a.h5")

    result = gl.convert(gl.zip(gl.arrays(**contents), ragged), tmp_path / "out.h5")

    assert result.call == f"gl.hdf5({str(tmp_path / 'out.h5')!r})"
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["cube"].dtype == "<i4"
        assert file["flag"].dtype == bool
        assert file["word"].asstr()[:].tolist() == ["é", "word"]
        assert [values.tolist() for values in file["series"]] == [[], [0]]
    with gl.open(tmp_path / "out.h5") as back:
        assert sorted(back.spec.names) == sorted([*contents, "series", "text"])
        np.testing.assert_array_equal(back.read([1, 0])["half"], contents["half"][::-1])
        assert (
            "decoded"
            not in gl.hdf5(
                tmp_path / "out.h5", ["half", "flag", "raw", "cube", "complex"]
            ).describe()
        )


@pytest.mark.parametrize("array", [np.zeros(2, "M8[s]"), np.array([["a"], ["b"]])])
def test_what_hdf5_cannot_hold_is_refused_by_name(tmp_path, array):
    with pytest.raises(SpecError, match=r"field x: .* cannot be written as hdf5"):
        gl.convert(gl.arrays(x=array), tmp_path / "out.h5")


# --- gaps, packed numbers, MATLAB


def test_chunks_that_were_never_written_are_told_once_for_all_who_decodes_them(tmp_path, caplog):
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=512) as file:
        file.create_dataset("block", (40,), "i4", chunks=(10,), compression="gzip")[0] = 1
        file.create_dataset("lzf", (40,), "i4", chunks=(10,), compression="lzf")[0] = 1
        file.create_dataset("text", (40,), h5py.string_dtype(), chunks=(10,))[0] = "a"

    with gl.hdf5(tmp_path / "a.h5") as source:
        assert source[39]["text"] == ""
    [record] = [line for line in caplog.records if line.levelname == "WARNING"]
    assert "block: 3 of its 4 chunks are not there, and 2 more lack some" in record.getMessage()
    caplog.clear()
    path = gl.hdf5(tmp_path / "a.h5", fill=True).index(tmp_path / "x.manifest")
    assert caplog.records == []
    gl.open(path).close()
    assert caplog.records == []
    for call in (lambda: gl.hdf5(tmp_path / "a.h5", fill=False), lambda: gl.hdf5(path, fill=False)):
        with pytest.raises(
            SpecError, match=r"3 of its 4 chunks are not there(.|\n)*pass fill=True"
        ):
            call()
    with pytest.raises(SpecError, match="fill = 0"):
        gl.hdf5(path, fill=0)


def test_a_dataset_of_which_nothing_was_written_is_opened_with_fill_alone(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (3,), "f4", fillvalue=2)
        file.create_dataset("y", (3,), "f4", chunks=(2,), fillvalue=3)

    with pytest.raises(SpecError, match=r"none of its 3 rows(.|\n)*fill=True"):
        gl.hdf5(tmp_path / "a.h5")
    records = gl.hdf5(tmp_path / "a.h5", fill=True).read([0, 2])
    assert (records["x"].tolist(), records["y"].tolist()) == ([2, 2], [3, 3])


PACKED = {  # numbers as stored, attributes, values; worked by hand after CF Conventions 1.11
    "scale": (np.array([1, 2, -9], "<i2"), {"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": np.int16(-9)},
              np.array([10.5, 11.0, np.nan])),
    "single": (np.array([1, 2], "<i2"), {"scale_factor": np.float32(0.5)}, np.array([0.5, 1.0], "f4")),
    "wide": (np.array([1, 1 << 30], "<i4"), {"scale_factor": np.float32(2)}, np.array([2.0, 2.0 ** 31])),
    "missing": (np.array([1, 9, 8], "i1"), {"missing_value": np.array([8, 9], "i1")},
                np.array([1, np.nan, np.nan], "f4")),
    "floats": (np.array([1, 1e20], ">f4"), {"_FillValue": np.array([1e20], "f4")}, np.array([1, np.nan], "f4")),
    "unsigned": (np.array([1, -1], "i1"), {"_Unsigned": np.bytes_("true"), "scale_factor": 2.0},
                 np.array([2.0, 510.0])),
    "range": (np.array([1, 5, 9], "<i2"), {"scale_factor": 2.0, "valid_range": np.array([2, 8], "<i2")},
              np.array([np.nan, 10.0, np.nan])),
    "valid range": (np.array([1, 5, 9], "<i2"), {"valid_range": np.array([2, 8], "<i2")},
                    np.array([np.nan, 5.0, np.nan], "f4")),
    "valid_min": (np.array([-1, 5], "<i4"), {"valid_min": np.int32(0)}, np.array([np.nan, 5.0])),
    "valid_max": (np.array([1, 9], ">f4"), {"valid_max": np.float32(8)}, np.array([1, np.nan], "f4")),
    "missing alone": (np.array([1, -99], "<i2"), {"missing_value": np.int16(-99)}, np.array([1, np.nan], "f4")),
}  # fmt: skip
WHOLE_RANGES = {  # of which no number is left out
    "u1": {"valid_range": np.array([0, 255], "u1")},
    "<u2": {"valid_min": np.uint16(0)},
    "i1": {"valid_min": np.int16(-128), "valid_max": np.int16(127)},
    ">f4": {"valid_min": np.float32(-np.inf), "valid_max": np.finfo("f4").max},
}


@pytest.mark.parametrize("dtype", WHOLE_RANGES)
def test_a_range_of_all_numbers_is_nothing_to_choose(tmp_path, dtype):
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file.create_dataset("x", data=np.array([0, 7], dtype)).attrs.update(WHOLE_RANGES[dtype])
    for choice in (None, True, False):
        values = gl.hdf5(tmp_path / "a.nc", mask_and_scale=choice).read([0, 1])["x"]
        assert values.tolist() == [0, 7]
        assert values.dtype == np.dtype(dtype).newbyteorder("=")


def test_the_choices_of_arrays_of_several_lengths_are_named(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.update(
            {
                "m": np.zeros(2),
                "x": np.arange(6),
                "s": np.zeros(2),
                "y": np.zeros(6),
                "q": np.zeros(9),
            }
        )
    message = r"fields=\['x', 'y'\] has 6 records, fields=\['m', 's'\] has 2 records, fields=\['q'\] has 9 records"
    with pytest.raises(SpecError, match=message):
        gl.hdf5(tmp_path / "a.h5")
    assert len(gl.hdf5(tmp_path / "a.h5", fields=["x", "y"])) == 6


IMAGES_EACH = {"hwc": (64, 64, 3), "chw": (3, 32, 48), "volume": (16, 32, 48)}
NO_IMAGES = {
    "rows": (600, 28, 28),
    "table": (100, 9),
    "videos": (8, 32, 32, 3),
    "words": (16, 197, 768),
}


@pytest.mark.parametrize("kind", [*IMAGES_EACH, *NO_IMAGES, "labels beside"])
def test_a_file_for_each_image_is_told(tmp_path, caplog, kind):
    shape = {**IMAGES_EACH, **NO_IMAGES}.get(kind, (64, 64, 3))
    for number in range(3):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["x"] = np.zeros(shape, "f4")
            if kind == "labels beside":
                file["label"] = np.zeros(shape[0], "i8")
    source = gl.hdf5(tmp_path / "*.h5")
    assert len(source) == 3 * shape[0]
    assert ("which may be one image" in caplog.text) == (kind in IMAGES_EACH)


@pytest.mark.parametrize("options", [{}, {"chunks": (2,)}, {"chunks": (1,), "compression": "lzf"}])
@pytest.mark.parametrize("kind", PACKED)
def test_packed_numbers_are_asked_for_and_become_values_or_stay(tmp_path, kind, options):
    stored, attributes, values = PACKED[kind]
    with h5py.File(tmp_path / "a.nc", "w") as file:
        data = file.create_dataset("x", data=stored, **options)
        data.attrs.update(attributes)

    with pytest.raises(
        SpecError, match=r"x: its numbers stand for others(.|\n)*mask_and_scale=True"
    ):
        gl.hdf5(tmp_path / "a.nc")
    as_stored, unpacked = (
        gl.hdf5(tmp_path / "a.nc", mask_and_scale=choice) for choice in (False, True)
    )
    np.testing.assert_array_equal(as_stored.read(range(len(stored)))["x"], stored)
    np.testing.assert_array_equal(unpacked.read(range(len(stored)))["x"], values)
    assert unpacked.spec["x"].dtype == values.dtype
    assert unpacked.fingerprint() != as_stored.fingerprint()
    again = gl.open(unpacked.index(tmp_path / "x.manifest"))
    np.testing.assert_array_equal(again.read(range(len(stored)))["x"], values)
    assert again.fingerprint() == unpacked.fingerprint()
    with pytest.raises(SpecError, match="mask_and_scale=True"):
        gl.hdf5(tmp_path / "x.manifest")


@pytest.mark.parametrize(
    ("dtype", "number"),
    [("i8", 2**53 + 1), (">i8", -(2**62) - 1), ("u8", 2**64 - 2), ("i8", 2**63 - 1)],
)
def test_whole_numbers_that_float64_does_not_hold_are_refused(tmp_path, dtype, number):
    missing = np.array(-(2**63) if "i" in dtype else 2**64 - 1, dtype)
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file.create_dataset("x", data=np.array([7, number, missing], dtype), chunks=(1,)).attrs[
            "_FillValue"
        ] = missing

    source = gl.hdf5(tmp_path / "a.nc", mask_and_scale=True)
    np.testing.assert_array_equal(source.read([0, 2])["x"], [7.0, np.nan])
    with pytest.raises(
        SpecError, match=rf"x: {number} is no value of float64(.|\n)*mask_and_scale=False"
    ):
        source.read([1])
    stored = gl.hdf5(tmp_path / "a.nc", fields=["x"], mask_and_scale=False)  # as the remedy says
    assert stored.read([1])["x"].tolist() == [number]


@pytest.mark.parametrize("number", [2**53, -(2**53), 2**62, -(2**63), 2**63 - 1024])
def test_large_whole_numbers_that_float64_holds_are_values(tmp_path, number):
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file.create_dataset("x", data=np.array([number], "i8")).attrs["_FillValue"] = np.int64(0)
    assert int(gl.hdf5(tmp_path / "a.nc", mask_and_scale=True).read([0])["x"][0]) == number


HALF = {"scale_factor": 0.5}
NOT_UNPACKED = {
    "compound": (np.dtype([("a", "i2"), ("b", "f4")]), HALF, "beside elements of"),
    "varying": (h5py.vlen_dtype("i2"), HALF, "beside elements of"),
    "complex": (np.dtype("c8"), HALF, "beside elements of complex64"),
    "two factors": (
        np.dtype("i2"),
        {"scale_factor": np.array([0.5, 0.25])},
        "scale_factor has 2 numbers",
    ),
    "half a range": (
        np.dtype("i2"),
        {**HALF, "valid_range": np.array([1], "i2")},
        "valid_range has 1 numbers",
    ),
    "text": (np.dtype("i2"), {"missing_value": "none"}, "missing_value is 'none', and no number"),
}


@pytest.mark.parametrize("kind", NOT_UNPACKED)
def test_numbers_that_cannot_be_unpacked_are_refused_or_come_as_stored(tmp_path, kind):
    dtype, attributes, message = NOT_UNPACKED[kind]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset("x", (3,), dtype)
        if kind == "varying":
            data[0] = data[1] = data[2] = [1, 2]
        else:
            data[...] = np.zeros(3, dtype)
        data.attrs.update(attributes)
    for choice in (None, True):
        with pytest.raises(
            SpecError, match=rf"x: its numbers cannot(.|\n)*{message}(.|\n)*mask_and_scale=False"
        ):
            gl.hdf5(tmp_path / "a.h5", mask_and_scale=choice)
    assert len(gl.hdf5(tmp_path / "a.h5", mask_and_scale=False)) == 3


@pytest.mark.parametrize(
    "text", [np.array(["true"], object), np.array([b"true"]), np.bytes_(b"True")]
)
def test_texts_of_netcdf_in_arrays_of_one_are_understood(tmp_path, text):
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file.create_dataset("x", data=np.array([-1, 2], "i1")).attrs["_Unsigned"] = text
    with pytest.raises(SpecError, match="_Unsigned"):
        gl.hdf5(tmp_path / "a.nc")
    assert gl.hdf5(tmp_path / "a.nc", mask_and_scale=True).read([0, 1])["x"].tolist() == [255, 2]


def test_elements_that_are_arrays_are_unpacked(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset("x", (2,), np.dtype(("i2", (3,))))
        data[...] = np.arange(6).reshape(2, 3)
        data.attrs.update({**HALF, "_FillValue": np.int16(5)})
    values = gl.hdf5(tmp_path / "a.h5", mask_and_scale=True).read([0, 1])["x"]
    np.testing.assert_array_equal(values, [[0, 0.5, 1], [1.5, 2, np.nan]])


def test_names_that_steer_a_terminal_are_written_out(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["\x1b[31mred"] = np.arange(3)
    source = gl.hdf5(tmp_path / "a.h5")
    assert source.describe().startswith("\\x1b[31mred: ")
    assert source.read([2])["\x1b[31mred"].tolist() == [2]


def test_nan_for_missing_floats_and_a_factor_of_one_are_no_packing(tmp_path, caplog):
    with h5py.File(tmp_path / "a.nc", "w") as file:
        data = file.create_dataset("x", data=np.array([1, np.nan], "f4"))
        data.attrs.update(
            {"_FillValue": np.float32("nan"), "scale_factor": 1.0, "add_offset": 0.0, "units": "K"}
        )

    np.testing.assert_array_equal(
        gl.hdf5(tmp_path / "a.nc").read([0, 1])["x"], np.array([1, np.nan], "f4")
    )
    assert caplog.records == []


@pytest.mark.parametrize("order", [None, "F"])
def test_chunks_that_hdf5_inflates_are_bounded(tmp_path, monkeypatch, order):
    for name in (
        "ALLOWED_BYTES",
        "inflate.ALLOWED_BYTES",
    ):  # instead of 1 GiB, which would take seconds
        module = "gpuload.storage" if "." in name else "gpuload.formats.hdf5.datasets"
        monkeypatch.setattr(f"{module}.{name}", 1 << 16)
    monkeypatch.setenv("GPULOAD_EXPANSION", "10")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        options = {"fletcher32": True} if order else {"scaleoffset": 3}
        data = file.create_dataset(
            "x", (64, 32), "i4", chunks=(64, 32), compression="gzip", **options
        )
        data[...] = np.arange(2048).reshape(64, 32) % 8
    values = np.arange(2048).reshape(64, 32) % 8
    np.testing.assert_array_equal(
        gl.hdf5(tmp_path / "a.h5", order=order).read([3])["x"][0],
        values[:, 3] if order else values[3],
    )
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["x"].id.write_direct_chunk((0, 0), zlib.compress(bytes(1 << 22)) + bytes(4))
    with pytest.raises(FormatError, match=r"x, a chunk has \d+ bytes, and unpacks to"):
        gl.hdf5(tmp_path / "a.h5", order=order).read([3])


def of_matlab(group, name, values, kind, **attributes):
    data = group.create_dataset(name, data=values)
    data.attrs.update({"MATLAB_class": np.bytes_(kind), **attributes})


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    "options", [{}, {"chunks": (2, 2)}, {"chunks": (2, 2), "compression": "lzf"}]
)
def test_logical_arrays_of_matlab_are_boolean(tmp_path, order, options):
    values = np.array([[1, 0, 1], [0, 0, 1]], "u1")
    with h5py.File(tmp_path / "m.mat", "w", userblock_size=512) as file:
        file.create_dataset("mask", data=values, **options).attrs["MATLAB_class"] = np.bytes_(
            "logical"
        )
    source = gl.hdf5(tmp_path / "m.mat", order=order)
    again = gl.hdf5(source.index(tmp_path / "x.manifest"))
    for records in (source.read(range(len(source))), again.read(range(len(source)))):
        assert records["mask"].dtype == bool
        np.testing.assert_array_equal(records["mask"], values if order == "C" else values.T)


def test_characters_of_matlab_are_told_once(tmp_path, caplog):
    for name in "ab":
        with h5py.File(tmp_path / f"{name}.mat", "w") as file:
            of_matlab(
                file, "word", np.array([[104, 105]], "u2").T, "char", MATLAB_int_decode=np.int32(2)
            )
    source = gl.hdf5(tmp_path / "*.mat", order="F")
    [record] = caplog.records
    assert "word: its elements are characters of MATLAB" in record.getMessage()
    assert "".join(map(chr, source.read([1])["word"][0])) == "hi"  # as the warning says


def test_cells_objects_and_sparse_matrices_of_matlab_are_refused_or_told(tmp_path, caplog):
    with h5py.File(tmp_path / "m.mat", "w") as file:
        of_matlab(file, "x", np.ones((1, 3)), "double")
        of_matlab(file, "name", np.zeros((1, 6), "u4"), "string", MATLAB_object_decode=np.int32(3))
        cell = file.create_dataset("cell", (1, 3), h5py.ref_dtype)
        cell.attrs["MATLAB_class"] = np.bytes_("cell")
        cell[...] = file["x"].ref
        file["reference"] = cell[...]
        sparse = file.create_group("sparse")
        sparse.attrs.update({"MATLAB_class": np.bytes_("double"), "MATLAB_sparse": np.uint64(3)})
        for part in ("data", "ir", "jc"):
            sparse[part] = np.arange(3)
        file["only/sparse"] = sparse
    for fields, message in {
        "name": "object of MATLAB, of the class string",
        "cell": "cell array of MATLAB",
        "reference": "references to other objects",
        "sparse/data": "part of a sparse matrix",
    }.items():
        with pytest.raises(SpecError, match=message):
            gl.hdf5(tmp_path / "m.mat", [fields], order="F")
    with pytest.raises(SpecError, match=r"'sparse' is a sparse matrix(.|\n)*full\(X\)"):
        gl.hdf5(tmp_path / "m.mat", group="only")
    assert caplog.records == []
    with h5py.File(tmp_path / "m.mat", "r+") as file:
        del file["name"], file["cell"], file["reference"]
    assert gl.hdf5(tmp_path / "m.mat", order="F").spec.names == ("x",)
    assert "sparse matrices of MATLAB are left out: ['sparse']" in caplog.text


@pytest.mark.parametrize(
    "options", [{}, {"chunks": (2, 7)}, {"chunks": (3, 4), "compression": "gzip"}]
)
def test_axes_of_matlab_are_asked_for_and_turned(tmp_path, options):
    samples = np.arange(40.0).reshape(10, 4)
    with h5py.File(tmp_path / "m.mat", "w", userblock_size=512) as file:
        file.create_dataset("X", data=samples.T, **options).attrs["MATLAB_class"] = np.bytes_(
            "double"
        )
        file.create_dataset("y", data=np.arange(10.0)[None]).attrs["MATLAB_class"] = np.bytes_(
            "double"
        )

    with pytest.raises(
        SpecError, match=r'MATLAB(.|\n)*order="F"(.|\n)*10 records(.|\n)*order="C" for 4'
    ):
        gl.hdf5(tmp_path / "m.mat", ["X"])
    source = gl.hdf5(tmp_path / "m.mat", order="F")
    records = source.read([9, 0, 3])
    assert records["X"].tolist() == samples[[9, 0, 3]].tolist()
    assert records["y"].tolist() == [[9], [0], [3]]
    again = gl.open(source.index(tmp_path / "x.manifest"))
    assert again.read([9, 0, 3])["X"].tolist() == samples[[9, 0, 3]].tolist()
    assert pickle.loads(pickle.dumps(source)).read([9])["X"].tolist() == samples[[9]].tolist()
    assert (
        gl.hdf5(tmp_path / "m.mat", ["X"], order="C").read([1])["X"].tolist()
        == samples.T[[1]].tolist()
    )
    with pytest.raises(SpecError, match="other axes"):
        gl.hdf5(tmp_path / "x.manifest", order="C")
    with pytest.raises(SpecError, match="order = 'A'"):
        gl.hdf5(tmp_path / "m.mat", order="A")


def test_an_empty_array_of_matlab_is_no_array_of_its_sizes(tmp_path):
    with h5py.File(tmp_path / "m.mat", "w") as file:
        data = file.create_dataset("X", data=np.zeros((2, 1), "u8"))
        data.attrs["MATLAB_class"], data.attrs["MATLAB_empty"] = np.bytes_("double"), np.uint8(1)

    with pytest.raises(SpecError, match="empty array of MATLAB"):
        gl.hdf5(tmp_path / "m.mat", order="F")


# --- HDF5 1.10


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize(
    ("shape", "chunk", "most"),
    [
        ((5, 5), (4, 4), (6, None)),
        ((3, 5, 4), (4, 2, 3), (8, None, 10)),
        ((4, 4), (1, 1), (None, 9)),
        ((4, 4), (2, 2), (8, 9)),
        ((4, 4), (2, 2), (None, None)),
    ],
)
def test_chunks_of_hdf5_1_10_are_read_where_they_belong(tmp_path, shape, chunk, most, is_whole):
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        data = file.create_dataset("x", shape, "i4", chunks=chunk, maxshape=most)
        if is_whole:
            data[...] = 1 + np.arange(math.prod(shape)).reshape(shape)
        else:
            data[-1, 0] = 7
        expected = data[...]

    assert (
        gl.hdf5(tmp_path / "a.h5", fill=True).read(range(shape[0]))["x"].tolist()
        == expected.tolist()
    )


@pytest.mark.parametrize("name", ["shuffle", "deflate", "fletcher32"])
def test_chunks_at_the_edges_without_filters_are_read(tmp_path, name):
    paths = list((Path(h5py.__file__).parents[1] / "h5py.libs").glob("libhdf5-*.so*"))
    if not paths:
        pytest.skip("the library of HDF5 lies elsewhere")
    set_options = ctypes.CDLL(str(paths[0])).H5Pset_chunk_opts
    set_options.argtypes = [ctypes.c_int64, ctypes.c_uint]
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_chunk((4, 3))
    getattr(settings, f"set_{name}")(*([4] if name == "deflate" else []))
    assert set_options(settings.id, 2) >= 0  # H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS
    values = np.arange(70, dtype="i4").reshape(10, 7) * 1000003
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        space = h5py.h5s.create_simple((10, 7))
        data = h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_INT32, space, settings)
        data.write(h5py.h5s.ALL, h5py.h5s.ALL, values)

    assert gl.hdf5(tmp_path / "a.h5").read(range(10))["x"].tolist() == values.tolist()


def test_a_heap_that_has_no_end_is_damage(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["text"] = [f"text {number}" for number in range(5)]
    content = bytearray(path.read_bytes())
    first = content.index(b"GCOL") + 24  # the length of the first object
    content[first : first + 2] = bytes(2)
    path.write_bytes(content)

    with pytest.raises(DamagedBlockError, match="heap of values of varying length is damaged"):
        gl.hdf5(path).read([0])


def test_chunks_that_hold_more_than_may_be_unpacked_are_refused(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset(
            "x", (2, 1), "u1", chunks=(2, 1 << 30), maxshape=(None, None), compression="lzf"
        )

    with pytest.raises(FormatError, match=r"a\.h5, x"):
        gl.hdf5(tmp_path / "a.h5", fill=True)


@pytest.mark.parametrize("options", [{}, {"chunks": (2,)}])
def test_a_value_of_varying_length_that_is_longer_than_its_file_is_damage(tmp_path, options):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("x", (4,), h5py.vlen_dtype("i4"), **options)
        for row in range(4):
            data[row] = [7] * (row + 40)
    content = bytearray(path.read_bytes())
    first = content.index(
        (43).to_bytes(4, "little") + content[content.index((42).to_bytes(4, "little")) + 4 :][:8]
    )
    content[first : first + 4] = b"\xff" * 4  # the length of the last value: 17 GB
    path.write_bytes(content)

    with pytest.raises(DamagedBlockError, match="a value of varying length has 17179869180 bytes"):
        gl.hdf5(path).read([3])


def test_a_soft_link_to_nothing_is_said_and_can_be_left_out(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["y"], file["s"] = np.arange(4), h5py.SoftLink("/nothing")

    with pytest.raises(SpecError, match="'s' is a link to '/nothing'") as caught:
        gl.hdf5(path)

    assert "nothing is there" in caught.value.cause
    assert gl.hdf5(path, fields=["y"]).read([3])["y"].tolist() == [3]


def test_an_empty_array_of_matlab_stores_its_sizes_along_one_axis(tmp_path):
    with h5py.File(tmp_path / "a.mat", "w") as file:
        for name in ("e", "x"):
            file.create_dataset(name, data=np.array([0, 3], np.uint64)).attrs["MATLAB_class"] = (
                np.bytes_("double")
            )
        file["e"].attrs["MATLAB_empty"] = np.uint8(1)  # as MATLAB stores zeros(0, 3)

    with pytest.raises(SpecError, match="e: it is an empty array of MATLAB"):
        gl.hdf5(tmp_path / "a.mat")
    assert gl.hdf5(tmp_path / "a.mat", fields=["x"]).read([1])["x"].tolist() == [3]
