"""Fields that the first file of a source does not hold: told once, for each format that leaves them
out."""

from __future__ import annotations

import numpy as np
import pytest

import gpuload as gl


def write_parquet(path, **columns):
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pa.table(columns), path)


def write_arrow(path, **columns):
    pa = pytest.importorskip("pyarrow")
    table = pa.table(columns)
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table)


def write_hdf5(path, **columns):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file["size"] = 3  # without an axis it is no field
        if "w" in columns:
            file["gone"] = h5py.SoftLink("/nowhere")
        for name, values in columns.items():
            file[name] = values


def write_zarr(path, **columns):
    zarr = pytest.importorskip("zarr", "3")
    group = zarr.open_group(path, mode="w")
    for name, values in columns.items():
        group.create_array(name, data=values)


FORMATS = [
    (gl.parquet, write_parquet),
    (gl.arrow, write_arrow),
    (gl.hdf5, write_hdf5),
    (gl.zarr, write_zarr),
]


@pytest.mark.parametrize(("call", "write"), FORMATS)
def test_fields_that_later_files_have_alone_are_told_once(tmp_path, caplog, call, write):
    x = np.arange(2)
    write(tmp_path / "a", x=x, y=x + 10)
    for name in "bc":
        write(tmp_path / name, z=x, y=x + 20, x=x, w=x)
    write(tmp_path / "d", y=x, x=x)  # another order
    paths = [tmp_path / name for name in "abcd"]

    source = call(paths)

    assert source.read(range(4), fields="y")["y"].tolist() == [10, 11, 20, 21]
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"{tmp_path / 'b'} has ['" in line
    assert [name for name in "xyzw" if f"'{name}'" in line.split("first file")[0]] == ["z", "w"]
    assert f"which the first file, {tmp_path / 'a'}, has not: the records" in line
    assert "fields=['x', 'y'] says that this is meant" in line
    caplog.clear()
    call(paths, fields=["x", "y"])
    call([paths[0], paths[3]])
    assert not caplog.records
