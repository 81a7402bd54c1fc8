"""No value is cut or rounded in any format: extreme values, written by the library of the format,
come as they are."""

from __future__ import annotations

import csv
import io
import tarfile

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import GpuloadError, SpecError

F8 = np.finfo(np.float64)
NUMBERS = {
    "int64": np.array(
        [np.iinfo(np.int64).min, -1, 0, 1, 2**53 + 1, np.iinfo(np.int64).max], np.int64
    ),
    "uint64": np.array([0, 1, 2**53 + 1, 2**63, 2**64 - 2, 2**64 - 1], np.uint64),
    "int8": np.array([-128, -1, 0, 1, 126, 127], np.int8),
    "uint16": np.array([0, 1, 255, 256, 65534, 65535], np.uint16),
    "float64": np.array([0.1, -0.0, F8.tiny, 5e-324, F8.max, 1 / 3], np.float64),
    "float32": np.array([0.1, -0.0, 1e-45, 3.4e38, 1 / 3, 16777217], np.float32),
    "bool": np.array([True, False, True, True, False, False]),
}
TEXTS = ["00501", "", "ü李", "NA", " x ", "1e5"]
DAYS = np.array(
    ["0001-01-01", "1582-10-15", "1969-12-31", "2024-02-29", "9999-12-31", "1970-01-01"], "M8[D]"
)


def npy(folder, numbers):
    for name, values in numbers.items():
        np.save(folder / f"{name}.npy", values)
    return gl.zip(*(gl.npy(folder / f"{name}.npy", field=name) for name in numbers))


def npz(folder, numbers):
    np.savez_compressed(folder / "a.npz", **numbers)
    return gl.npz(folder / "a.npz")


def fixed(folder, numbers):
    dtype = np.dtype([(name, values.dtype) for name, values in numbers.items()])
    rows = np.empty(6, dtype)
    for name, values in numbers.items():
        rows[name] = values
    rows.tofile(folder / "a.bin")
    return gl.fixed(folder / "a.bin", dtype)


def table(folder, numbers):
    pytest.importorskip("pyarrow", reason="gl.csv reads by PyArrow")
    with open(folder / "a.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(numbers)
        writer.writerows(
            zip(*(map(str, values.tolist()) for values in numbers.values()), strict=True)
        )
    return gl.csv(folder / "a.csv", {name: values.dtype for name, values in numbers.items()})


def table_of_found_types(folder, numbers):
    return gl.csv(table(folder, numbers).files.paths)


def parquet(folder, numbers):
    pa = pytest.importorskip("pyarrow", reason="Parquet is read by it")
    pytest.importorskip("pyarrow.parquet").write_table(pa.table(numbers), folder / "a.parquet")
    return gl.parquet(folder / "a.parquet")


def arrow(folder, numbers):
    pa = pytest.importorskip("pyarrow", reason="PyArrow writes the file")
    with (
        pa.OSFile(str(folder / "a.arrow"), "wb") as file,
        pa.ipc.new_file(file, pa.table(numbers).schema) as writer,
    ):
        writer.write_table(pa.table(numbers))
    return gl.arrow(folder / "a.arrow")


def hdf5(folder, numbers):
    h5py = pytest.importorskip("h5py", reason="h5py writes the file")
    with h5py.File(folder / "a.h5", "w") as file:
        for name, values in numbers.items():
            file.create_dataset(name, data=values, chunks=(2,), compression="gzip")
    return gl.hdf5(folder / "a.h5")


def zarr(folder, numbers):
    zarr = pytest.importorskip("zarr", reason="zarr writes the group")
    group = zarr.open_group(str(folder / "a.zarr"), mode="w")
    for name, values in numbers.items():
        group.create_array(name, shape=values.shape, chunks=(2,), dtype=values.dtype)[...] = values
    return gl.zarr(folder / "a.zarr", fill=True)


def tar(folder, numbers):
    with tarfile.open(folder / "a.tar", "w") as archive:
        for row in range(6):
            for name, values in numbers.items():
                file = io.BytesIO()
                np.save(file, values[row])
                member = tarfile.TarInfo(f"{row}.{name}.npy")
                member.size = file.tell()
                file.seek(0)
                archive.addfile(member, file)
    source = gl.webdataset(folder / "a.tar", {name: f"{name}.npy" for name in numbers})
    return source


def arrays(folder, numbers):
    return gl.arrays(**numbers)


def converted(folder, numbers):
    gl.convert(gl.arrays(**numbers), folder / "out.npz")
    return gl.open(folder / "out.npz")


FORMATS = [
    npy,
    npz,
    fixed,
    table,
    table_of_found_types,
    parquet,
    arrow,
    hdf5,
    zarr,
    tar,
    arrays,
    converted,
]


@pytest.mark.every_case
@pytest.mark.parametrize("make", FORMATS)
def test_extreme_numbers_come_as_they_were_written(tmp_path, monkeypatch, make):
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))

    source = make(tmp_path, NUMBERS)

    result = source.read(range(6))
    loader = gl.Loader(source, 4, device="cpu")
    batches = list(loader)
    for name, values in NUMBERS.items():
        assert result[name].astype(values.dtype).tobytes() == values.tobytes(), name
        together = np.concatenate([np.asarray(batch[name]) for batch in batches])
        assert together.tobytes() == result[name].tobytes(), name
        if make is not table_of_found_types:  # which has no narrow types
            assert result[name].dtype == values.dtype


@pytest.mark.every_case
@pytest.mark.parametrize("make", [table_of_found_types, parquet, arrow, arrays])
def test_texts_and_days_come_as_they_were_written(tmp_path, monkeypatch, make):
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))
    columns = {"text": np.array(TEXTS), "day": DAYS}

    result = make(tmp_path, columns).read(range(6))

    assert [str(text) for text in result["text"]] == TEXTS
    assert result["day"].astype("M8[D]").tolist() == DAYS.tolist()


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("column", "default"),
    [
        ("int64", 1.5),
        ("int64", 2**63),
        ("int64", -(2**63) - 1),
        ("float32", 1e40),
        ("int64", float("nan")),
        ("int64", "7"),
    ],
)
@pytest.mark.parametrize("call", ["csv", "parquet", "arrow"])
def test_a_default_that_its_column_does_not_hold_is_refused(
    tmp_path, monkeypatch, call, column, default
):
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))
    make = {"csv": table, "parquet": parquet, "arrow": arrow}[call]
    paths = make(tmp_path, {column: NUMBERS[column]}).files.paths
    columns = ({column: column},) if call == "csv" else ()

    with pytest.raises(GpuloadError, match="defaults"):
        getattr(gl, call)(paths, *columns, defaults={column: default})


@pytest.mark.parametrize(("call", "suffix"), [("npy", "npy"), ("npz", "npz"), ("hdf5", "h5")])
def test_the_remedy_for_files_of_two_dtypes_joins_them(tmp_path, call, suffix):
    if call == "hdf5":
        pytest.importorskip("h5py")
    arrays = {"a": np.array([1, 2], "i4"), "b": np.array([3, 2**40]), "c": np.array([0.5, 1])}
    paths = {name: tmp_path / f"{name}.{suffix}" for name in arrays}
    for name, array in arrays.items():
        gl.convert(gl.arrays(x=array), paths[name])
    reader = getattr(gl, call)

    with pytest.raises(SpecError) as caught:
        reader([paths["a"], paths["b"]])
    assert (
        f"gl.concat(gl.{call}(first), gl.{call}(second), promote=True) has int64"
        in caught.value.remedy
    )
    joined = gl.concat(reader(paths["a"]), reader(paths["b"]), promote=True)
    assert joined.read(range(4))["x"].tolist() == [1, 2, 3, 2**40]

    with pytest.raises(SpecError) as caught:
        reader([paths["a"], paths["c"]])
    path = str(tmp_path / f"new.{suffix}")
    code = caught.value.remedy.partition("anew: ")[2].replace("'new." + suffix + "'", repr(path))
    convert, _, join = code.partition("; then ")
    names = {"gl": gl, "first": paths["a"], "second": paths["c"]}
    eval(convert, names)
    assert eval(join, names).read(range(4))["x"].tolist() == [1.0, 2.0, 0.5, 1.0]


@pytest.mark.parametrize(
    "dtypes",
    [
        ("i4", "f4"),
        ("f4", "i2"),
        ("f8", "i8"),
        ("u8", "i8"),
        ("i1", "u8"),
        ("i4", "?"),
        ("?", "f2"),
    ],
)
@pytest.mark.parametrize("call", ["concat", "mix"])
def test_the_remedy_for_sources_of_two_kinds_of_numbers_joins_them(tmp_path, call, dtypes):
    small, large = (np.array([0, 1], dtype) for dtype in dtypes)
    names = {"gl": gl, "a": gl.arrays(x=small), "b": gl.arrays(x=large)}
    join = (
        gl.concat if call == "concat" else lambda *pair: gl.mix([(source, 0.5) for source in pair])
    )

    with pytest.raises(SpecError) as caught:
        join(names["a"], names["b"])
    code = caught.value.remedy.partition("anew")[2].partition(": ")[2]
    convert, _, join_again = code.replace("new.npz", str(tmp_path / "new.npz")).partition("; then ")
    eval(convert, names)

    joined = eval(join_again, names)
    assert sorted(joined.read(range(4))["x"].tolist()) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("dtypes", "condition"),
    [
        (("f8", "i8"), "write b (int64) anew, if no number of it is beyond 2**53:"),
        (("u8", "i8"), "write a (uint64) anew, if no number of it is above 2**63 - 1:"),
        (("i4", "f4"), "write a (int32) anew:"),
        (
            ("M8[ns]", "M8[s]"),
            "give b (datetime64[s]) the unit of a, if all are within 292 years of 1970:",
        ),
        (("m8[M]", "m8[D]"), "make two loaders"),
        (("S3", "i4"), "make two loaders"),
    ],
)
def test_the_remedy_says_which_source_is_written_anew_and_what_would_be_rounded(dtypes, condition):
    first, second = (gl.arrays(x=np.zeros(2, dtype)) for dtype in dtypes)

    with pytest.raises(SpecError) as caught:
        gl.concat(first, second, promote=True)

    assert condition in caught.value.remedy


@pytest.mark.parametrize("units", [("M8[s]", "M8[ms]"), ("M8[ns]", "M8[D]"), ("m8[s]", "m8[h]")])
def test_the_remedy_for_dates_of_two_units_joins_them(units):
    first, second = (gl.arrays(x=np.array([3, 4], unit), y=[1, 2]) for unit in units)
    with pytest.raises(SpecError) as caught:
        gl.concat(first, second)

    names = {"gl": gl, "a": first, "b": second}
    assign, _, arrays = caught.value.remedy.partition("values = ")[2].partition("; ")
    names["values"] = eval(assign, names)
    other = eval(arrays, names)

    pair = (other, second) if "give a" in caught.value.remedy else (first, other)
    expected = [*np.array([3, 4], units[0]), *np.array([3, 4], units[1])]
    assert (gl.concat(*pair).read(range(4))["x"] == expected).all()


def test_of_three_sources_those_two_are_named_whose_values_no_dtype_holds():
    sources = [gl.arrays(x=np.zeros(2, dtype)) for dtype in ("u1", "i1", "u8")]

    with pytest.raises(
        SpecError, match=r"source 2 has field x: uint64 .*, source 1 has x: int8"
    ) as caught:
        gl.concat(*sources, promote=True)
    assert "a is source 1, b is source 2: " in caught.value.remedy
    assert "write b (uint64) anew" in caught.value.remedy


def test_fields_that_differ_in_more_than_the_dtype_have_no_remedy_of_dtypes():
    numbers = gl.arrays(x=np.zeros(2))
    others = [gl.arrays(x=["a", "bcd"]), gl.arrays(x=np.zeros((2, 3), "i4"))]
    for other in others:
        with pytest.raises(SpecError) as caught:
            gl.concat(other, numbers)
        assert "convert" not in caught.value.remedy
        assert "make two loaders" in caught.value.remedy
