"""Where a record begins: file and byte, through all that is made of sources; None where it is in no
one file."""

from __future__ import annotations

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import RecordIndexError
from gpuload.sources.reading import record_origin
from tests import imagefiles


@pytest.fixture
def files(tmp_path):
    """Three files of rows, the last in Fortran order, and one of other fields."""
    for number, order in enumerate("CCF"):
        np.save(
            tmp_path / f"{number}.npy",
            np.asarray(np.arange(15.0).reshape(5, 3) + 100 * number, order=order),
        )
    np.arange(15, dtype="<i4").tofile(tmp_path / "labels.bin")
    return tmp_path


def at(origin):
    """Return the number that stands there."""
    path, offset = origin
    return float(np.fromfile(path, "<f8", 1, offset=offset)[0])


def test_the_byte_is_that_of_the_records_first_number(files):
    source = gl.npy(files / "?.npy")
    assert [at(record_origin(source, number)) for number in range(15)] == source.read(range(15))[
        "x"
    ][:, 0].tolist()
    assert record_origin(source, 7) == (str(files / "1.npy"), 128 + 2 * 24)


def test_whatever_is_made_of_sources_says_the_same(files):
    source = gl.npy(files / "?.npy")
    assert record_origin(source[::-2], 1) == record_origin(source, 12)
    assert record_origin(source.select([9, 3]), 1) == record_origin(source, 3)
    assert record_origin(source.rename(x="y"), 4) == record_origin(source, 4)
    assert record_origin(gl.concat(source[:2], source[5:]), 3) == record_origin(source, 6)
    train, _ = source.split(0.5, seed=1)
    assert at(record_origin(train, 2)) == train[2]["x"][0]


def test_fields_of_several_files_have_no_one_origin_and_fields_in_memory_none(files):
    source, labels = gl.npy(files / "?.npy"), gl.fixed(files / "labels.bin", [("label", "<i4")])
    assert record_origin(gl.zip(source, labels), 3) is None
    assert record_origin(gl.zip(source, gl.arrays(label=np.arange(15))), 3) == record_origin(
        source, 3
    )
    assert record_origin(gl.zip(labels, labels.rename(label="other")), 3) == (
        str(files / "labels.bin"),
        12,
    )
    assert record_origin(gl.arrays(x=np.arange(3)), 0) is None
    assert record_origin(gl.records(3, lambda numbers: {"x": numbers}), 0) is None


def test_a_whole_file_begins_at_its_beginning(tmp_path):
    (tmp_path / "a.png").write_bytes(imagefiles.png(3, 4, imagefiles.RGB, 8))
    assert record_origin(gl.images(tmp_path / "a.png", labels=None), 0) == (
        str(tmp_path / "a.png"),
        0,
    )
    for number in (3, 4):
        np.save(tmp_path / f"{number}.npy", np.zeros(number))
    assert record_origin(gl.npy(tmp_path / "*.npy", record="file"), 1) == (
        str(tmp_path / "4.npy"),
        0,
    )


def test_images_in_fixed_length_records_lie_where_their_record_does(tmp_path):
    data = imagefiles.png(3, 4, imagefiles.RGB, 8)
    table = np.array([(1, data), (2, data)], [("label", "u1"), ("image", f"S{len(data)}")])
    table.tofile(tmp_path / "a.bin")
    source = gl.fixed(tmp_path / "a.bin", table.dtype).mark(image="encoded")
    assert record_origin(source, 1) == (str(tmp_path / "a.bin"), table.dtype.itemsize)


def test_there_is_no_origin_of_what_is_no_record(files):
    with pytest.raises(RecordIndexError):
        record_origin(gl.npy(files / "?.npy"), 15)
