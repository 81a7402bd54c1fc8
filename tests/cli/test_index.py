"""``gpuload index``: what it writes and says."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gpuload as gl
from gpuload import cli
from tests.imagefiles import jpeg


@pytest.fixture
def rows(tmp_path):
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.full((5, 2), number, np.int32))
    return str(tmp_path / "*.npy")


def test_it_writes_a_manifest_and_says_how_it_is_opened(rows, tmp_path, capsys):
    path = str(tmp_path / "rows.manifest")

    status = cli.main(["index", rows, "-o", path])

    lines = capsys.readouterr().out.splitlines()
    assert status == 0
    assert lines[-2].startswith(f"wrote {path}: 3 files, 15 records, ")
    assert lines[-1] == f"it is opened by gl.open({path!r})"
    assert gl.open(path).fingerprint() == gl.npy(rows).fingerprint()


def test_a_folder_names_its_manifest(tmp_path, capsys):
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "photos" / "cat" / "1.jpg").write_bytes(jpeg())

    status = cli.main(["index", str(tmp_path / "photos"), "--json"])

    document = json.loads(capsys.readouterr().out)
    assert (status, document["path"]) == (0, str(tmp_path / "photos.manifest"))
    assert (document["num_files"], document["num_records"]) == (1, 1)
    assert gl.open(document["path"]).classes == ("cat",)


def test_one_record_is_a_record(tmp_path, capsys):
    np.save(tmp_path / "a.npy", np.zeros((1, 2)))

    assert cli.main(["index", str(tmp_path / "a.npy"), "-o", str(tmp_path / "a.manifest")]) == 0
    assert "a.manifest: 1 file, 1 record, " in capsys.readouterr().out


def test_files_without_a_folder_need_a_name(rows, capsys):
    assert cli.main(["index", rows]) == 2
    assert "remedy: add -o train.manifest" in capsys.readouterr().err
