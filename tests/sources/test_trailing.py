"""What follows the end of an array or of an archive is never lost in silence: refused, or told."""

from __future__ import annotations

import io
import subprocess
import warnings
import zipfile

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import FormatError


def npy(*arrays):
    file = io.BytesIO()
    for array in arrays:
        np.save(file, array)
    return file.getvalue()


def write_zip(path, *members, method=zipfile.ZIP_STORED):
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", method) as archive:
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, raw in members:
            archive.writestr(name, raw)
    return path


@pytest.mark.parametrize("record", ["row", "file"])
def test_arrays_that_numpy_appended_are_refused_and_the_remedy_joins_them(tmp_path, record):
    with open(tmp_path / "it's log.npy", "ab") as file:
        for part in range(3):
            np.save(file, np.arange(4) + 10 * part)
    np.save(tmp_path / "a.npy", np.arange(4))

    with pytest.raises(FormatError, match=r"several arrays(.|\n)*320 bytes") as error:
        gl.npy([tmp_path / "a.npy", tmp_path / "it's log.npy"], record=record)

    exec(error.value.remedy.partition(": ")[2], names := {})
    names["file"].close()
    rows = gl.npy(tmp_path / "it's log-joined.npy").read(range(12))["x"]
    assert rows.tolist() == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]


def test_other_bytes_behind_arrays_are_told_once(tmp_path, caplog):
    (tmp_path / "a.npy").write_bytes(npy(np.arange(4)))
    for name in "bc":
        (tmp_path / f"{name}.npy").write_bytes(npy(np.arange(4)) + np.arange(2).tobytes())

    assert len(gl.npy(f"{tmp_path}/?.npy")) == 12
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/b.npy: 16 bytes follow its array, and are not read; cause: its header says (4,), and no more "
        "(2 files are so)"
    ]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("record", ["row", "file"])
def test_arrays_that_were_appended_to_a_member_are_refused(tmp_path, monkeypatch, method, record):
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))
    path = write_zip(
        tmp_path / "a.npz", ("x.npy", npy(np.arange(400), np.arange(3))), method=method
    )

    with pytest.raises(FormatError, match=r"'x\.npy', holds several arrays"):
        gl.npz(path, record)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_other_bytes_behind_the_array_of_a_member_are_told(tmp_path, monkeypatch, caplog, method):
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))
    path = write_zip(tmp_path / "a.npz", ("x.npy", npy(np.arange(4)) + b"xyz"), method=method)

    assert gl.npz(path).read([3])["x"].tolist() == [3]
    assert "3 bytes follow its array" in caplog.text


def test_two_members_of_one_name_are_refused_and_the_remedy_keeps_what_numpy_loads(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    path = write_zip(tmp_path / "a.npz", ("x.npy", npy(np.arange(2))), ("x.npy", npy(np.arange(3))))

    with pytest.raises(FormatError, match=r"numpy\.load gives the last") as error:
        gl.npz(path)

    exec(error.value.remedy.partition(": ")[2], {"numpy": np})
    assert gl.npz("new.npz").read(range(3))["x"].tolist() == [0, 1, 2]


def test_bytes_behind_an_archive_are_refused_and_the_remedy_cuts_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", x=np.arange(3))
    with open("a.npz", "ab") as file:
        file.write(b"garbage")

    with pytest.raises(FormatError, match="7 bytes follow the end of the archive") as error:
        gl.npz("a.npz")

    subprocess.run(error.value.remedy.partition(": ")[2], shell=True, check=True)
    assert gl.npz("new.npz").read(range(3))["x"].tolist() == [0, 1, 2]
