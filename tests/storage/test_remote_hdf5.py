"""HDF5 files in object stores: a manifest opens them without a request, and what changed is
refused."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import ChangedFileError
from tests.objectserver import ObjectServer

pytest.importorskip("obstore")
h5py = pytest.importorskip("h5py")
pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("clean_stores")]
COUNT = 30


def put(server: ObjectServer, factor: int = 1) -> str:
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        file["row"] = np.arange(COUNT) * factor
        file.create_dataset(
            "packed", data=np.arange(COUNT) * factor, chunks=(10,), compression="gzip"
        )
        file.create_dataset(
            "other", data=np.arange(COUNT) * factor, chunks=(10,), compression="lzf"
        )
    server.objects["/a.h5"] = content.getvalue()
    return f"{server.url}/a.h5"


def test_a_manifest_opens_a_file_without_a_request(server: ObjectServer, tmp_path: Path) -> None:
    source = gl.hdf5(put(server))
    path = source.index(tmp_path / "x.manifest")
    server.requests.clear()

    again = gl.open(path)

    assert (again.spec, again.fingerprint(), len(again)) == (
        source.spec,
        source.fingerprint(),
        COUNT,
    )
    assert server.requests == []
    assert again.read([17], fields="row")["row"].tolist() == [17]
    assert len(server.requests) == 1  # of eight bytes, and a chunk in one more
    assert again.read([17], fields="packed")["packed"].tolist() == [17]
    assert len(server.requests) == 2
    assert again.read([17], fields="other")["other"].tolist() == [17]
    assert Path(again.index(tmp_path / "y.manifest")).read_bytes() == Path(path).read_bytes()


def test_a_listed_file_that_changed_is_refused(server: ObjectServer, tmp_path: Path) -> None:
    path = gl.hdf5(put(server)).index(tmp_path / "x.manifest")
    put(server, factor=2)

    for field in ("row", "packed", "other"):
        with pytest.raises(ChangedFileError, match=r"a\.h5 changed") as error:
            gl.hdf5(path).read([5], fields=field)
        assert path in error.value.remedy
