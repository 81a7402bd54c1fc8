"""NPY files give what numpy.load gives: rows of many different files, or files as records."""

from __future__ import annotations

import os
import pickle
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gpuload as gl
from gpuload.errors import FormatError, SpecError
from gpuload.formats.npy.source import npy
from gpuload.sources import rows
from gpuload.sources.shares import fill
from gpuload.spec import LARGEST_NDIM
from gpuload.storage import maps
from gpuload.testing.sources import SourceContract, assert_same
from tests.sources.npyfiles import fields_of, write, write_header
from tests.storage.contract import all_maps_but

AXES = LARGEST_NDIM * 5 // 8  # too many when twice as many
GOLDEN = Path(__file__).parents[1] / "golden" / "npy"
PICKLES = {"py2-objarr.npy", "ragged-array.npy"}
STRUCTURE = np.dtype(
    {
        "names": ["label", "image", "box", "name"],
        "formats": ["u1", (">f4", (2, 3)), np.dtype([("y", ">i2"), ("x", "<i2")]), "S3"],
        "offsets": [1, 4, 30, 40],
        "itemsize": 48,
    }
)


def structures(count, seed=0):
    """Return records with random bytes in all of their fields, and in the gaps between them."""
    numbers = np.random.default_rng(seed).integers(0, 127, count * STRUCTURE.itemsize, np.uint8)
    return numbers.view(STRUCTURE)


@pytest.mark.usefixtures("reader")
class TestRowsOfFilesWithDifferentHeaders(SourceContract):
    array = np.arange(23 * 5 * 2, dtype=np.float32).reshape(23, 5, 2) - 50

    def open(self, folder):
        write(folder / "a.npy", self.array[:3])
        write(folder / "b.npy", self.array[3:3], version=(3, 0))
        write(folder / "c.npy", np.asfortranarray(self.array[3:12]), version=(2, 0))
        write(folder / "d.npy", self.array[12:13], swapped=True)
        write(folder / "e.npy", np.asfortranarray(self.array[13:]), swapped=True)
        return npy(f"{folder}/?.npy")

    def open_other(self, folder):
        write(folder / "a.npy", self.array[:22])
        return npy(folder / "a.npy")

    def expected(self):
        return {"x": self.array}


@pytest.mark.usefixtures("reader")
class TestRowsOfStructures(SourceContract):
    def open(self, folder):
        write(folder / "a.npy", structures(20)[:9])
        write(folder / "b.npy", structures(20)[9:])
        return npy(f"{folder}/?.npy", field="unused")

    def open_other(self, folder):
        write(folder / "a.npy", structures(20)["box"])
        return npy(folder / "a.npy")

    def expected(self):
        return fields_of(structures(20))


@pytest.mark.usefixtures("reader")
class TestRowsOfTablesOfStructures(SourceContract):
    array = structures(60).reshape(12, 5)

    def open(self, folder):
        write(folder / "a.npy", self.array[:4])
        raw = self.array[4:].view(
            f"V{STRUCTURE.itemsize}"
        )  # so that NumPy copies also what lies between the fields
        write(folder / "b.npy", np.asfortranarray(raw).view(STRUCTURE))
        return npy(f"{folder}/?.npy")

    def open_other(self, folder):
        write(folder / "a.npy", self.array.reshape(5, 12))
        return npy(folder / "a.npy")

    def expected(self):
        return fields_of(self.array)


@pytest.mark.usefixtures("reader")
class TestFilesOfOneShape(SourceContract):
    arrays = np.random.default_rng(3).integers(-9, 9, (5, 4, 3)).astype(np.int16)

    def open(self, folder):
        for number, array in enumerate(self.arrays):
            write(
                folder / f"{number}.npy",
                np.asfortranarray(array) if number == 2 else array,
                swapped=number == 3,
            )
        return npy(f"{folder}/*.npy", field="tile", record="file")

    def open_other(self, folder):
        write(folder / "0.npy", self.arrays[0].T)
        return npy(folder / "0.npy", record="file")

    def expected(self):
        return {"tile": self.arrays}


@pytest.mark.usefixtures("reader")
class TestFilesOfVaryingShape(SourceContract):
    def open(self, folder):
        for number, array in enumerate(self.expected()["x"]):
            write(
                folder / f"{number}.npy",
                np.asfortranarray(array) if number == 1 else array,
                swapped=number == 3,
            )
        return npy(f"{folder}/*.npy", record="file")

    def open_other(self, folder):
        write(folder / "0.npy", np.zeros((2, 3), np.float32))
        write(folder / "1.npy", np.zeros(7, np.float32))
        return npy(f"{folder}/*.npy", record="file")

    def expected(self):
        shapes = [(2, 3), (4, 3, 1), (), (0, 3), (7,)]
        return {
            "x": [np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for shape in shapes]
        }


@pytest.mark.usefixtures("reader")
class TestFilesOfStructuresOfVaryingShape(SourceContract):
    def open(self, folder):
        for number, count in enumerate([4, 0, 6]):
            write(folder / f"{number}.npy", structures(count, seed=number))
        return npy(f"{folder}/*.npy", record="file")

    def open_other(self, folder):
        write(folder / "0.npy", structures(4))
        write(folder / "1.npy", structures(5))
        return npy(f"{folder}/*.npy", record="file")

    def expected(self):
        records = [
            fields_of(structures(count, seed=number)) for number, count in enumerate([4, 0, 6])
        ]
        return {name: [record[name] for record in records] for name in records[0]}


@pytest.mark.parametrize(
    "path", sorted(GOLDEN.rglob("*.npy")), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_files_of_other_libraries_give_what_numpy_load_gives(path, reader):
    if path.name in PICKLES:
        with pytest.raises(FormatError, match="Python objects"):
            npy(path)
        return
    array = np.load(path, allow_pickle=False)

    [whole] = npy(path, record="file").read([0])["x"]

    assert_same(whole, array.astype(array.dtype.newbyteorder("=")))
    if array.ndim:
        assert_same(
            npy(path).read(range(len(array)))["x"], array.astype(array.dtype.newbyteorder("="))
        )


KINDS = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?"),
    hnp.complex_number_dtypes(endianness="?", sizes=(64, 128)),
    hnp.datetime64_dtypes(endianness="?"),
    hnp.timedelta64_dtypes(endianness="?"),
    hnp.byte_string_dtypes(endianness="?", min_len=1),
    hnp.unicode_string_dtypes(endianness="?", min_len=1),
)
DTYPES = st.one_of(
    KINDS,
    hnp.nested_dtypes(KINDS, max_leaves=6, max_itemsize=200).filter(lambda d: d.subdtype is None),
)


@st.composite
def stored_arrays(draw):
    """Return the arrays of several files with rows of one dtype and shape, and how to write
    each."""
    dtype = draw(DTYPES)
    row_shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    writes = []
    for _ in range(draw(st.integers(1, 4))):
        array = draw(hnp.arrays(dtype, (draw(st.integers(0, 12)), *row_shape)))
        fortran, swapped = draw(st.booleans()), draw(st.booleans())
        version = draw(st.sampled_from([(1, 0), (2, 0), (3, 0)]))
        writes.append(
            (
                np.asfortranarray(array) if fortran else array,
                {"version": version, "swapped": swapped},
            )
        )
    return writes


@given(writes=stored_arrays(), data=st.data())
@pytest.mark.parametrize("compiled", [True, False])
def test_rows_of_any_arrays_are_what_numpy_load_gives(tmp_path_factory, compiled, writes, data):
    folder = tmp_path_factory.mktemp("npy")
    for number, (array, how) in enumerate(writes):
        write(folder / f"{number}.npy", array, **how)
    content = [fields_of(np.load(path)) for path in sorted(folder.iterdir())]
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(maps, "supported", lambda: False)
        source = npy(f"{folder}/*.npy")
    indices = (
        data.draw(st.lists(st.integers(0, len(source) - 1), max_size=20)) if len(source) else []
    )

    fields = source.read(indices)

    assert list(fields) == list(content[0])
    for name, values in fields.items():
        rows = np.concatenate([file[name] for file in content])
        assert_same(values, rows[np.array(indices, np.int64)])
    shutil.rmtree(folder)


@given(writes=stored_arrays())
def test_files_of_any_arrays_are_what_numpy_load_gives(tmp_path_factory, writes):
    folder = tmp_path_factory.mktemp("npy")
    for number, (array, how) in enumerate(writes):
        write(folder / f"{number}.npy", array, **how)
    content = [fields_of(np.load(path)) for path in sorted(folder.iterdir())]

    fields = npy(f"{folder}/*.npy", record="file").read(range(len(writes)))

    for name, values in fields.items():
        for number, value in enumerate(values):
            assert_same(value, content[number][name])
    shutil.rmtree(folder)


@pytest.mark.skipif(np.dtype("g").itemsize != 16, reason="long double has another size here")
@pytest.mark.parametrize("dtype", ["<f16", "<c32", ">f16"])
def test_long_doubles_are_read_and_stay_on_the_host(tmp_path, dtype, reader):
    array = np.array([1, -2.5, np.pi], dtype)
    write(tmp_path / "a.npy", array)

    source = npy(tmp_path / "a.npy")

    np.testing.assert_array_equal(source.read([2, 0, 1])["x"], array[[2, 0, 1]])
    assert source.spec["x"].host_only


def test_axes_that_vary_are_none_in_the_spec(tmp_path):
    write(tmp_path / "0.npy", np.zeros((2, 3)))
    write(tmp_path / "1.npy", np.zeros((5, 3)))
    same_ndim = npy(f"{tmp_path}/*.npy", record="file")
    write(tmp_path / "2.npy", np.zeros(3))
    other_ndim = npy(f"{tmp_path}/*.npy", record="file")

    assert same_ndim.spec["x"].shape == (None, 3)
    assert other_ndim.spec["x"].shape is None
    assert [group.layout for group in same_ndim.groups] == [None]


def test_where_names_the_file_and_the_row_in_it(tmp_path):
    for number, count in enumerate([4, 0, 6]):
        write(tmp_path / f"train-{number}.npy", np.zeros((count, 2)))

    by_row = npy(f"{tmp_path}/*.npy")
    files = npy([tmp_path / "train-0.npy", tmp_path / "train-2.npy"], record="file")

    assert [by_row.where(index) for index in (0, 3, 4, 9)] == [
        "train-0.npy, record 0",
        "train-0.npy, record 3",
        "train-2.npy, record 0",
        "train-2.npy, record 5",
    ]
    assert files.where(1).startswith("train-2.npy")


def test_files_that_agree_keep_their_bytes_for_the_device_to_swap(tmp_path):
    array = np.arange(6, dtype=">i4").reshape(3, 2)
    write(tmp_path / "a.npy", array)

    source = npy(tmp_path / "a.npy")
    raw = np.zeros((2, 8), np.uint8)
    fill(source.resolve(np.array([2, 0])), 0, source.groups[0].layout, raw)

    assert raw.tobytes() == array[[2, 0]].tobytes()
    assert source.groups[0].layout.parts[0].dtype == np.dtype(">i4")
    assert source.spec["x"].dtype == np.dtype("=i4")


def test_an_array_without_axes_has_no_rows(tmp_path):
    write(tmp_path / "a.npy", np.float32(3))

    with pytest.raises(SpecError, match=r'a\.npy holds one value(.|\n)*record="file"'):
        npy(tmp_path / "a.npy")


@pytest.mark.parametrize("record", ["row", "file"])
@pytest.mark.parametrize(
    "second", [np.zeros((2, 3), np.int32), np.zeros((2, 3), np.float64), structures(2)]
)
def test_files_of_different_dtypes_are_refused_naming_both(tmp_path, second, record):
    write(tmp_path / "a.npy", np.zeros((2, 3), np.float32))
    write(tmp_path / "b.npy", second)

    with pytest.raises(SpecError, match=r"b\.npy holds .*, .*a\.npy holds float32"):
        npy(f"{tmp_path}/*.npy", record=record)


def test_rows_of_different_shapes_are_refused_naming_both(tmp_path):
    write(tmp_path / "a.npy", np.zeros((2, 3)))
    write(tmp_path / "b.npy", np.zeros((2, 4)))

    with pytest.raises(
        SpecError, match=r"b\.npy has rows of shape \(4,\), .*a\.npy of shape \(3,\)"
    ):
        npy(f"{tmp_path}/*.npy")


def test_record_is_row_or_file():
    with pytest.raises(SpecError, match="record = 'rows'"):
        npy("a.npy", record="rows")


def test_a_source_of_no_rows_has_no_records(tmp_path, reader):
    write(tmp_path / "a.npy", np.zeros((0, 3), np.float32))

    source = npy(tmp_path / "a.npy")

    assert len(source) == 0
    assert_same(source.read([])["x"], np.zeros((0, 3), np.float32))


def test_a_file_of_100_gigabytes_opens_in_milliseconds_and_costs_no_memory(tmp_path, reader):
    num_rows, row_bytes = 10**9, 100
    path = tmp_path / "large.npy"
    write_header(
        path, f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({num_rows}, {row_bytes})}}"
    )
    begin = path.stat().st_size
    os.truncate(path, begin + num_rows * row_bytes)
    with open(path, "r+b") as file:
        file.seek(begin + 777_777_777 * row_bytes)
        file.write(b"\7" * row_bytes)
    npy(path).read([0])
    before_kb, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.thread_time()

    source = npy(path)
    opened_s = time.thread_time() - start  # of the processor, which a busy machine gives later
    rows = source.read([777_777_777, num_rows - 1, 0])["x"]

    assert opened_s < 0.05  # some 200 us
    assert rows.sum(axis=1).tolist() == [7 * row_bytes, 0, 0]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 20_000


def test_thousands_of_files_are_opened_and_none_is_kept_open(tmp_path):
    for number in range(2000):
        write(tmp_path / f"{number:04}.npy", np.full(3, number, np.float32))

    before = len(os.listdir("/proc/self/fd"))
    source = npy(f"{tmp_path}/*.npy", record="file")
    values = source.read([1999, 0, 1234])["x"]

    assert values[:, 0].tolist() == [1999, 0, 1234]
    assert len(os.listdir("/proc/self/fd")) == before


def test_more_files_than_the_guard_has_ranges_are_read_without_maps(tmp_path):
    if not maps.supported():
        pytest.skip("no core on this system")

    array = np.arange(40 * 12, dtype=np.int32).reshape(40, 12)
    for number in range(4):
        write(tmp_path / f"{number}.npy", np.asfortranarray(array[number * 10 :][:10]) if number == 3 else
              array[number * 10 :][:10])  # fmt: skip
    with all_maps_but(2, tmp_path):
        rows = npy(f"{tmp_path}/*.npy").read(np.arange(40)[::-1])["x"]

    assert_same(rows, array[::-1])


def test_a_record_larger_than_memory_is_an_error_with_a_remedy(tmp_path):
    path = write_header(
        tmp_path / "a.npy", "{'descr': '|u1', 'fortran_order': False, 'shape': (8796093022208,)}"
    )
    os.truncate(path, path.stat().st_size + 2**43)

    with pytest.raises(SpecError, match="not so much memory"):
        npy(path, record="file").read([0, 0])


def memory_needed(code, *arguments):
    """Return by how many bytes the memory of a fresh process grows while it runs the code."""
    lines = [
        "import resource, sys, numpy as np, gpuload as gl",
        "gl.npy(sys.argv[1]).read([])",
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss",
        code,
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)",
    ]
    run_result = subprocess.run(
        [sys.executable, "-c", "\n".join(lines), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(run_result.stdout)


@pytest.mark.parametrize("items", [2**27, 2**31, 2**40])
def test_a_header_takes_no_memory_whatever_it_claims(tmp_path, items):
    second = write(tmp_path / "other.npy", np.asfortranarray(np.zeros((2, 3), np.float32)))
    header = f"{{'descr': '<f4', 'fortran_order': True, 'shape': (0, {items})}}"
    path = write_header(tmp_path / "a.npy", header)

    assert memory_needed(f"assert len(gl.npy({str(path)!r})) == 0", second) < 16 << 20


def test_opening_a_file_in_fortran_order_and_reading_of_it_takes_memory_for_what_is_read(tmp_path):
    second = write(tmp_path / "other.npy", np.asfortranarray(np.zeros((2, 3), np.float32)))
    header = f"{{'descr': '|u1', 'fortran_order': True, 'shape': (2, {64 << 20})}}"
    path = write_header(tmp_path / "a.npy", header)
    os.truncate(path, path.stat().st_size + (128 << 20))

    assert memory_needed(f"source = gl.npy({str(path)!r})", second) < 16 << 20


def test_a_split_of_rows_without_bytes_takes_no_memory(tmp_path):
    other = write(tmp_path / "other.npy", np.zeros((2, 3), np.float32))
    path = write_header(
        tmp_path / "a.npy", f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**60}, 0)}}"
    )

    code = f"first, second = gl.npy({str(path)!r}).split(0.5); assert len(first) == 2**59"
    assert memory_needed(code, other) < 16 << 20


def test_records_in_fortran_order_are_read_in_bounded_pieces(tmp_path, monkeypatch, reader):
    array = np.arange(300 * 40, dtype=np.int32).reshape(300, 8, 5)
    write(tmp_path / "a.npy", np.asfortranarray(array[:100]))
    write(tmp_path / "b.npy", np.asfortranarray(array[100:]))
    indices = np.random.default_rng(0).integers(0, 300, 130)
    source = npy(f"{tmp_path}/?.npy")

    for limit in (7, 1000, 10**6):
        monkeypatch.setattr(rows, "MOST_EXTENTS", limit)
        assert_same(source.read(indices)["x"], array[indices])
        assert_same(source.read(range(300))["x"], array)


def test_a_file_in_fortran_order_keeps_that_order_for_the_device_to_turn_round(tmp_path):
    array = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    write(tmp_path / "a.npy", np.asfortranarray(array))
    source = npy(tmp_path / "a.npy")
    raw = np.zeros((1, 24), np.uint8)

    fill(source.resolve(np.array([1])), 0, source.groups[0].layout, raw)

    assert raw.tobytes() == array[1].tobytes(order="F")
    assert source.groups[0].layout.parts[0].fortran


@pytest.mark.parametrize("record", ["row", "file"])
@pytest.mark.parametrize(
    ("header", "subject"),
    [
        ("{'descr': '|S0', 'fortran_order': False, 'shape': (4611686018427387904,)}", "no bytes"),
        ("{'descr': '<U0', 'fortran_order': False, 'shape': (9,)}", "no bytes"),
        (
            "{'descr': [('a', '|S0'), ('b', '|V0')], 'fortran_order': False, 'shape': (10, 3)}",
            "no bytes",
        ),
        (
            f"{{'descr': [('a', '|u1', {(1,) * AXES})], 'fortran_order': False, 'shape': {(0,) + (1,) * AXES}}}",
            "axes",
        ),
    ],
)
def test_what_no_array_can_hold_is_refused_naming_the_file(tmp_path, header, subject, record):
    path = write_header(tmp_path / "a.npy", header)

    with pytest.raises(SpecError, match=rf"a\.npy(.|\n)*{subject}"):
        npy(path, record=record)


def test_a_record_has_an_axis_less_than_an_array(tmp_path):
    array = np.arange(2, dtype=np.uint8).reshape((2,) + (1,) * (LARGEST_NDIM - 1))
    for name in "ab":
        write(tmp_path / f"{name}.npy", array)

    assert_same(npy(f"{tmp_path}/*.npy")[3]["x"], array[1])
    with pytest.raises(SpecError, match=rf"a\.npy: field 'x' has {LARGEST_NDIM} axes"):
        npy(f"{tmp_path}/*.npy", record="file")


def test_more_rows_than_can_be_numbered_are_refused(tmp_path):
    for number in range(5):
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**60}, 0)}}"
        write_header(tmp_path / f"{number}.npy", header)

    with pytest.raises(SpecError, match="records"):
        npy(f"{tmp_path}/*.npy")
    with pytest.raises(SpecError, match="in a record"):
        npy(f"{tmp_path}/*.npy", record="file")


def test_a_list_of_files_keeps_its_order(tmp_path):
    for number in range(3):
        write(tmp_path / f"{number}.npy", np.full((2, 2), number))
    paths = [tmp_path / f"{number}.npy" for number in (2, 0, 1)]

    assert npy(paths).read(range(6))["x"][:, 0].tolist() == [2, 2, 0, 0, 1, 1]
    assert npy(paths, record="file").read(range(3))["x"][:, 0, 0].tolist() == [2, 0, 1]


def test_values_where_only_the_first_axis_varies_are_ragged_and_views_of_what_was_read(tmp_path):
    arrays = [np.arange(3 * length, dtype=np.int32).reshape(length, 3) for length in (2, 0, 5)]
    for number, array in enumerate(arrays):
        write(tmp_path / f"{number}.npy", array)

    values = npy(f"{tmp_path}/*.npy", record="file").read([2, 1, 0, 2])["x"]

    assert values.payload.shape == (12, 3)
    assert values.offsets.tolist() == [0, 5, 5, 7, 12]
    assert_same(values.payload, np.concatenate([arrays[number] for number in (2, 1, 0, 2)]))


@pytest.mark.parametrize("dtype", ["i1", "?", "S1", "u1"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (2,)])
def test_files_of_elements_of_one_byte_keep_their_dtype_and_axes(tmp_path, dtype, shape):
    arrays = [np.full((count, *shape), 255, np.uint8).view(dtype) for count in (3, 5)]
    for number, array in enumerate(arrays):
        np.save(tmp_path / f"{number}.npy", array)
    files = npy(f"{tmp_path}/*.npy", record="file")
    with gl.Loader(files, batch_size=2, device="cpu") as load:
        [batch] = load
    for values in (files.read([0, 1])["x"], batch["x"]):
        for item, array in zip(values, arrays, strict=True):
            assert_same(item, array)


class TestElementsWithoutType:
    """What numpy.save writes of the dtypes that ml_dtypes adds to NumPy: their bytes, as
    ``|V2``."""

    @pytest.fixture(autouse=True)
    def types(self):
        return pytest.importorskip("ml_dtypes")

    @pytest.mark.parametrize("record", ["row", "file"])
    @pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
    def test_dtype_says_what_they_are(self, tmp_path, types, name, record):
        dtype = np.dtype(getattr(types, name))
        array = np.arange(12).reshape(4, 3).astype(dtype)
        np.save(tmp_path / "a.npy", array)

        for type_of_elements in (name, dtype, getattr(types, name)):
            source = npy(tmp_path / "a.npy", record=record, dtype=type_of_elements)
            values = source.read([0])["x"][0]
            assert values.dtype == dtype
            assert values.tolist() == (array if record == "file" else array[0]).tolist()
        assert pickle.loads(pickle.dumps(source)).fingerprint() == source.fingerprint()

    def test_fields_of_a_structured_dtype_are_typed_by_the_whole_dtype(self, tmp_path, types):
        dtype = np.dtype([("x", types.bfloat16, (2,)), ("y", "f4")])
        array = np.zeros(3, dtype)
        array["x"], array["y"] = 1.5, [1, 2, 3]
        np.save(tmp_path / "a.npy", array)

        values = npy(tmp_path / "a.npy", dtype=dtype).read(range(3))

        assert values["x"].dtype == types.bfloat16
        assert values["x"].tolist() == array["x"].tolist()
        assert values["y"].tolist() == [1, 2, 3]

    def test_without_it_a_warning_names_the_call(self, tmp_path, types, caplog):
        np.save(tmp_path / "a.npy", np.arange(4).astype(types.bfloat16))

        npy(tmp_path / "a.npy")

        assert 'gl.npy(..., dtype="bfloat16")' in caplog.text

    @pytest.mark.parametrize("dtype", ["float32", "bfloat", "float64", "os", [("x", "f4")], 7, "O"])
    def test_a_dtype_of_another_size_or_none_is_refused(self, tmp_path, types, dtype):
        np.save(tmp_path / "a.npy", np.arange(4).astype(types.bfloat16))

        with pytest.raises(SpecError):
            npy(tmp_path / "a.npy", dtype=dtype)

    def test_elements_that_have_a_type_are_not_taken_for_another(self, tmp_path):
        np.save(tmp_path / "a.npy", np.arange(4, dtype="i2"))

        with pytest.raises(SpecError, match="holds int16, not bfloat16"):
            npy(tmp_path / "a.npy", dtype="bfloat16")
        assert npy(tmp_path / "a.npy", dtype="i2").read([3])["x"].tolist() == [3]


@pytest.mark.parametrize(
    ("shape", "dtype", "is_image"),
    [
        ((32, 32, 3), "u1", True), ((1, 28, 28), "f4", True), ((24, 32, 4), "u2", True), ((32, 32), "u1", True),
        ((1000, 64), "f4", False), ((1000, 32, 3), "f4", False), ((32, 32), "f4", False), ((32, 32, 5), "u1", False),
        ((4, 3), "u1", False), ((9, 9, 3), "S1", False),
        # volumes and images of many channels; shards, words and steps of time
        ((16, 32, 48), "u1", True), ((16, 32, 48), "f4", True), ((24, 24, 16), "i2", True), ((13, 32, 32), "u2", True),
        ((5, 16, 40), "i2", True), ((5, 16, 40), "f4", False),
        ((600, 28, 28), "u1", False), ((29, 28, 28), "u1", False), ((16, 197, 768), "f4", False),
        ((64, 50, 2), "f4", False), ((16, 32, 48, 3), "u1", False),
    ],
)  # fmt: skip
def test_files_that_look_like_images_are_told_of_once_where_nobody_said_what_a_record_is(
    tmp_path, caplog, shape, dtype, is_image
):
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.zeros(shape, dtype))
        np.savez(tmp_path / f"{number}.npz", image=np.zeros(shape, dtype), label=np.zeros(shape[0]))

    assert len(npy(f"{tmp_path}/*.npy")) == 3 * shape[0]
    gl.npz(f"{tmp_path}/*.npz")

    messages = [record.message for record in caplog.records if 'record="file"' in record.message]
    assert [message[:6] for message in messages] == ["gl.npy", "gl.npz"] * is_image
    caplog.clear()
    source = npy(f"{tmp_path}/*.npy", record="row")
    pickle.loads(pickle.dumps(npy(f"{tmp_path}/*.npy", record="file")))
    npy(tmp_path / "0.npy")
    pickle.loads(pickle.dumps(source))
    assert not caplog.records


@pytest.mark.parametrize(
    ("shape", "dtype", "is_image"),
    [
        ((28, 28), "f4", True), ((24, 32), "f8", True), ((20, 30), "f4", True), ((480, 640), "f4", True),
        ((512, 512), "i4", True), ((100, 64), "f4", False), ((64, 200), "f4", False), ((1024, 768), "f4", False),
        ((512, 768), "f2", False), ((256, 1024), "f4", False), ((8, 4), "f4", False), ((10, 12), "f4", False),
    ],
)  # fmt: skip
def test_of_two_axes_of_wide_numbers_those_that_are_no_table_are_told_of(
    tmp_path, caplog, shape, dtype, is_image
):
    for number in range(8):
        np.save(tmp_path / f"{number}.npy", np.zeros(shape, dtype))

    assert len(npy(f"{tmp_path}/*.npy")) == 8 * shape[0]
    npy(sorted(tmp_path.glob("*.npy"))[1:])  # fewer may be the shards of a table

    assert ['record="file"' in record.message for record in caplog.records] == [True] * is_image


def test_files_of_images_of_other_sizes_are_no_choice(tmp_path, caplog):
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.zeros((32 + number, 32, 3), "u1"))

    npy(f"{tmp_path}/*.npy")

    assert not caplog.records
