"""NPZ files give what numpy.load gives: rows of many archives, or archives as records, stored or
deflated."""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gpuload as gl
from gpuload.errors import (
    ChangedFileError,
    ClosedError,
    FileError,
    FormatError,
    RecordError,
    SpecError,
)
from gpuload.formats.npz import contents, copies
from gpuload.formats.npz.source import npz
from gpuload.sources.reading import record_origin
from gpuload.storage import inflate
from gpuload.testing.sources import SourceContract, assert_same
from tests.sources.npyfiles import fields_of
from tests.sources.npzfiles import (
    archive_of,
    deflate,
    flip,
    npy_header,
    packed_place,
    save,
    write,
    write_zip64,
)
from tests.sources.test_npy import DTYPES, structures

GOLDEN = Path(__file__).parents[1] / "golden" / "npz"
PICKLES = {"py3-objarr.npz"}
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("GPULOAD_CACHE", str(folder))
    return folder


def native(array):
    return array.astype(array.dtype.newbyteorder("="))


def images(count, seed=0):
    return np.random.default_rng(seed).integers(0, 16, (count, 4, 3), np.uint8)


@pytest.mark.usefixtures("reader")
class TestRowsOfStoredArrays(SourceContract):
    deflated = (False, False, False)

    def open(self, folder):
        labels = np.arange(12, dtype=np.int64)
        save(folder / "0.npz", deflated=self.deflated[0], image=images(12)[:5], label=labels[:5])
        save(folder / "1.npz", deflated=self.deflated[1], label=labels[5:5], image=images(12)[5:5])
        save(folder / "2.npz", deflated=self.deflated[2], image=images(12)[5:], label=labels[5:])
        return npz(f"{folder}/*.npz")

    def open_other(self, folder):
        save(folder / "0.npz", deflated=self.deflated[0], image=images(11), label=np.arange(11))
        return npz(f"{folder}/*.npz")

    def expected(self):
        return {"image": images(12), "label": np.arange(12, dtype=np.int64)}


class TestRowsOfDeflatedArrays(TestRowsOfStoredArrays):
    deflated = (True, True, True)


class TestRowsOfStoredAndDeflatedArrays(TestRowsOfStoredArrays):
    deflated = (True, False, False)


@pytest.mark.usefixtures("reader")
class TestRowsOfManyForms(SourceContract):
    """Byte orders, C and Fortran order, structures, and NPY headers of all versions side by
    side."""

    array = np.arange(60, dtype=np.float32).reshape(10, 3, 2)

    def open(self, folder):
        table = structures(10)
        write(folder / "0.npz", {"x": self.array[:3], "t": table[:3]}, version=(2, 0))
        write(
            folder / "1.npz",
            {"x": np.asfortranarray(self.array[3:6]), "t": table[3:6]},
            method=zipfile.ZIP_DEFLATED,
        )
        write(
            folder / "2.npz", {"t": table[6:9], "x": self.array[6:9].astype(">f4")}, version=(3, 0)
        )
        write(
            folder / "3.npz", {"x": np.asfortranarray(self.array[9:].astype(">f4")), "t": table[9:]}
        )
        return npz(f"{folder}/*.npz")

    def open_other(self, folder):
        write(folder / "0.npz", {"x": self.array, "t": structures(10, seed=1)})
        return npz(f"{folder}/*.npz")

    def expected(self):
        table = {f"t.{name}": array for name, array in fields_of(structures(10)).items()}
        return {"x": self.array, **table}


@pytest.mark.usefixtures("reader")
class TestArchivesOfOneShape(SourceContract):
    def open(self, folder):
        for number, (image, label) in enumerate(zip(images(5), np.arange(5), strict=True)):
            image = np.asfortranarray(image) if number == 2 else image
            save(
                folder / f"{number}.npz",
                deflated=number > 2,
                image=image,
                label=label.astype(">i8"),
            )
        return npz(f"{folder}/*.npz", record="file")

    def open_other(self, folder):
        save(folder / "0.npz", image=images(1)[0], label=1)
        return npz(f"{folder}/*.npz", record="file")

    def expected(self):
        return {"image": images(5), "label": np.arange(5)}


@pytest.mark.usefixtures("reader")
class TestArchivesOfVaryingShape(SourceContract):
    shapes = ((2, 3), (4, 3, 1), (), (0, 3), (7,))

    def open(self, folder):
        for number, array in enumerate(self.expected()["x"]):
            array = np.asfortranarray(array) if number == 1 else array
            save(
                folder / f"{number}.npz",
                deflated=number in (1, 4),
                x=array,
                n=number,
                r=np.arange(number + 1),
            )
        return npz(f"{folder}/*.npz", record="file")

    def open_other(self, folder):
        save(folder / "0.npz", x=np.zeros(3), n=0, r=np.arange(1))
        save(folder / "1.npz", x=np.zeros(4), n=0, r=np.arange(1))
        return npz(f"{folder}/*.npz", record="file")

    def expected(self):
        arrays = [
            np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for shape in self.shapes
        ]
        return {"x": arrays, "n": np.arange(5), "r": [np.arange(number + 1) for number in range(5)]}


@pytest.mark.parametrize(
    "path", sorted(GOLDEN.rglob("*.npz")), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_archives_of_other_libraries_give_what_numpy_load_gives(path, reader):
    if path.name in PICKLES:
        with pytest.raises(
            FormatError, match=r"py3-objarr\.npz, member 'x\.npy', (.|\n)*Python objects"
        ):
            npz(path)
        return
    with np.load(path, allow_pickle=False) as archive:
        arrays = dict(archive)

    [whole] = [npz(path, record="file").read([0])]

    assert list(whole) == list(arrays)
    for name, array in arrays.items():
        assert_same(whole[name][0], native(array))
        if array.ndim:
            assert_same(npz(path, fields=name).read(range(len(array)))[name], native(array))


def read_by_numpy(folder):
    archives = []
    for path in sorted(folder.iterdir()):
        with np.load(path) as archive:
            fields = {}
            for name, array in archive.items():
                array_fields = (
                    fields_of(array, name) if array.dtype.names is None else fields_of(array)
                )
                fields.update(
                    array_fields
                    if array.dtype.names is None
                    else {f"{name}.{k}": v for k, v in array_fields.items()}
                )
        archives.append(fields)
    return archives


@st.composite
def archives(draw):
    """Return the arrays of several archives with rows of the same dtypes and shapes, and how to
    write each."""
    names = draw(
        st.lists(st.sampled_from(["x", "a/b", "ä", "arr_0"]), min_size=1, max_size=3, unique=True)
    )
    kinds = {
        n: (draw(DTYPES), draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3)))
        for n in names
    }
    results = []
    for _ in range(draw(st.integers(1, 3))):
        count, arrays = draw(st.integers(0, 8)), {}
        for name, (dtype, shape) in kinds.items():
            array = draw(hnp.arrays(dtype, (count, *shape)))
            array = array.astype(array.dtype.newbyteorder("S")) if draw(st.booleans()) else array
            arrays[name] = np.asfortranarray(array) if draw(st.booleans()) else array
        results.append((arrays, draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))))
    return results


@given(archive_contents=archives(), data=st.data())
def test_any_archives_give_what_numpy_load_gives(tmp_path_factory, archive_contents, data):
    folder = tmp_path_factory.mktemp("npz")
    for number, (arrays, method) in enumerate(archive_contents):
        write(folder / f"{number}.npz", arrays, method=method, version=(3, 0))
    content = read_by_numpy(folder)
    rows, files = npz(f"{folder}/*.npz"), npz(f"{folder}/*.npz", record="file")
    indices = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=9)) if len(rows) else []

    by_row, by_file = rows.read(indices), files.read(range(len(archive_contents)))

    assert list(by_row) == list(by_file) == list(content[0])
    for name in content[0]:
        assert_same(
            by_row[name],
            np.concatenate([item[name] for item in content])[np.array(indices, np.int64)],
        )
        for value, item in zip(by_file[name], content, strict=True):
            assert_same(value, item[name])
    shutil.rmtree(folder)


@pytest.mark.parametrize("deflated", [False, True])
@pytest.mark.parametrize("record", ["row", "file"])
def test_a_loader_shuffles_resumes_and_gives_what_numpy_load_gives(tmp_path, deflated, record):
    for number in range(3):
        save(
            tmp_path / f"{number}.npz",
            deflated=deflated,
            x=images(4, seed=number),
            y=np.arange(4) + 4 * number,
        )
    source = npz(f"{tmp_path}/*.npz", record=record)
    archives = [dict(np.load(path)) for path in sorted(tmp_path.iterdir())]
    join = np.concatenate if record == "row" else np.stack
    expected = {name: join([archive[name] for archive in archives]) for name in ("x", "y")}
    values = []
    with gl.Loader(source, batch_size=2, shuffle=True, seed=3, device="cpu") as loader:
        for batch in loader:
            values.append(batch.records.tolist())
            for name, array in expected.items():
                assert_same(batch[name], array[batch.records])
            state = loader.state_dict()
            break
    with gl.Loader(
        pickle.loads(pickle.dumps(source)), batch_size=2, shuffle=True, seed=3, device="cpu"
    ) as again:
        again.load_state_dict(state)
        values += [batch.records.tolist() for batch in again]

    assert sorted(record for part in values for record in part) == list(range(len(source)))


@pytest.mark.parametrize("pieces", [1 << 20, 100])
def test_large_members_are_read_in_pieces_and_small_ones_together(tmp_path, monkeypatch, pieces):
    monkeypatch.setattr(contents, "PACKED_BYTES", pieces)
    monkeypatch.setattr(inflate, "OUT_BYTES", 64)
    for number in range(6):
        save(
            tmp_path / f"{number}.npz",
            deflated=number != 3,
            x=images(20 * (number % 3), seed=number),
            y=number,
        )
    arrays = [dict(np.load(tmp_path / f"{number}.npz")) for number in range(6)]

    source = npz(f"{tmp_path}/*.npz", record="file")
    values = source.read([5, 3, 0, 0, 4, 1, 2])

    for number, x, y in zip([5, 3, 0, 0, 4, 1, 2], values["x"], values["y"], strict=True):
        assert_same(x, arrays[number]["x"])
        assert y == number


def test_rows_of_many_deflated_archives_share_copies_that_are_made_once(
    tmp_path, cache, monkeypatch, caplog
):
    caplog.set_level(logging.INFO, "gpuload")
    monkeypatch.setattr(copies, "GROUP_BYTES", 300)
    for number in range(6):
        save(tmp_path / f"{number}.npz", deflated=True, x=images(10, seed=number), y=np.arange(10))

    source = npz(f"{tmp_path}/*.npz")
    results = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    again = npz(f"{tmp_path}/*.npz", fields="x")

    assert len(results) == 3 + 2  # 120 bytes of x and 80 of y in each archive
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == results
    assert_same(again.read([25])["x"], images(10, seed=2)[5:6])
    assert_same(source.read([59, 0])["y"], np.array([9, 0]))
    assert (
        f"deflated arrays of 6 archives are read from unpacked copies in {cache}" in caplog.messages
    )


def test_a_copy_that_was_cut_short_is_made_anew(tmp_path, cache):
    path = save(tmp_path / "a.npz", deflated=True, x=images(10))
    npz(path)
    [copy] = cache.iterdir()
    os.truncate(copy, 17)

    assert_same(npz(path).read(range(10))["x"], images(10))


def test_an_archive_that_changed_has_another_copy(tmp_path):
    path = save(tmp_path / "a.npz", deflated=True, x=images(10))
    npz(path)
    save(path, deflated=True, x=images(10, seed=1))

    assert_same(npz(path).read(range(10))["x"], images(10, seed=1))


def test_where_and_repr_name_the_archive(tmp_path):
    for number, count in enumerate([4, 0, 6]):
        save(
            tmp_path / f"train-{number}.npz",
            deflated=number == 2,
            x=np.zeros((count, 2)),
            y=np.zeros(count),
        )
    rows, files = npz(f"{tmp_path}/*.npz"), npz(f"{tmp_path}/*.npz", record="file")

    assert [rows.where(index) for index in (0, 4, 9)] == [
        "train-0.npz, record 0",
        "train-2.npz, record 0",
        "train-2.npz, record 5",
    ]
    assert files.where(1) == "train-1.npz, record 0"
    assert " ".join(repr(rows).split()).startswith(
        "<gl.npz: 10 records, x: float64 (2,), y: float64 (), 3 files in "
    )
    assert record_origin(rows, 3)[0] == str(tmp_path / "train-0.npz")
    assert record_origin(files, 1) == (str(tmp_path / "train-1.npz"), 0)


def test_fields_are_chosen_and_keep_the_order_in_which_they_are_named(tmp_path):
    path = save(
        tmp_path / "a.npz", x=np.arange(3), y=np.arange(3) * 2, z=np.array([None]), odd=np.arange(7)
    )

    assert list(npz(path, fields=["y", "x"]).read([1])) == ["y", "x"]
    assert npz(path, fields="odd").spec.names == ("odd",)
    with pytest.raises(
        FormatError, match=r"a\.npz, member 'z\.npy'(.|\n)*fields=\[\.\.\.\]\) of \['x', 'y'"
    ):
        npz(path)
    with pytest.raises(SpecError, match=r"a\.npz has no array 'w'(.|\n)*\['x', 'y', 'z', 'odd'\]"):
        npz(path, fields=["x", "w"])


@pytest.mark.parametrize("fields", [[], (), 3, {"x"}, [3], [""], ["x", "x"], "", {"x": 1}])
def test_fields_that_are_no_names_are_refused(tmp_path, fields):
    with pytest.raises(SpecError, match=r"fields = |name of a field"):
        npz(save(tmp_path / "a.npz", x=np.arange(3)), fields=fields)


@pytest.mark.parametrize("record", ["rows", 3])
def test_record_is_row_or_file(tmp_path, record):
    with pytest.raises(SpecError, match="record = "):
        npz(save(tmp_path / "a.npz", x=np.arange(3)), record=record)


def test_members_without_the_suffix_are_arrays_if_they_are_and_else_named(tmp_path):
    path = write(tmp_path / "a.npz", {"x": np.arange(3)}, suffix="")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("folder/", "")

    assert_same(npz(path).read([0, 2])["x"], np.array([0, 2]))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("notes.txt", "hello")
    with pytest.raises(FormatError, match=r"a\.npz, member 'notes\.txt', (.|\n)*fields="):
        npz(path)
    assert npz(path, fields=["x"]).spec.names == ("x",)
    write(tmp_path / "b.npz", {"x.npy": np.arange(3), "x": np.arange(3)}, suffix="")
    with pytest.raises(FormatError, match=r"b\.npz holds 'x' with and without the suffix"):
        npz(tmp_path / "b.npz")


@pytest.mark.parametrize("record", ["row", "file"])
@pytest.mark.parametrize(
    ("second", "subject"),
    [
        (
            {"x": np.zeros((2, 3))},
            r"b\.npz has the arrays \['x'\], .*a\.npz has \['x', 'y'\](.|\n)*fields=\['x'\]",
        ),
        ({"x": np.zeros((2, 3)), "z": np.zeros(2)}, r"b\.npz has the arrays \['x', 'z'\]"),
        (
            {"x": np.zeros((2, 3), np.int32), "y": np.zeros(2)},
            r"b\.npz: array 'x' holds int32, in .*a\.npz .* float64",
        ),
    ],
)
def test_archives_of_another_schema_are_refused_naming_both(tmp_path, record, second, subject):
    save(tmp_path / "a.npz", x=np.zeros((2, 3)), y=np.zeros(2))
    save(tmp_path / "b.npz", **second)

    with pytest.raises(SpecError, match=subject):
        npz(f"{tmp_path}/*.npz", record=record)


def test_rows_that_do_not_go_together_are_refused_naming_the_arrays(tmp_path):
    path = save(tmp_path / "a.npz", x=np.zeros((2, 3)), y=np.zeros(3), n=3)

    with pytest.raises(SpecError, match=r"a\.npz: array 'y' has 3 rows, 'x' has 2(.|\n)*fields="):
        npz(path, fields=["x", "y"])
    with pytest.raises(SpecError, match=r"a\.npz: array 'n' holds one value(.|\n)*record=\"file\""):
        npz(path, fields=["x", "n"])


def test_rows_of_another_shape_are_refused_naming_both(tmp_path):
    save(tmp_path / "a.npz", x=np.zeros((2, 3)))
    save(tmp_path / "b.npz", x=np.zeros((2, 4)))

    with pytest.raises(
        SpecError, match=r"b\.npz: array 'x' has rows of shape \(4,\), in .*a\.npz of shape \(3,\)"
    ):
        npz(f"{tmp_path}/*.npz")
    assert npz(f"{tmp_path}/*.npz", record="file").spec["x"].shape == (2, None)


@pytest.mark.parametrize("deflated", [False, True])
def test_a_damaged_array_of_a_file_is_named_with_member_and_byte_and_the_others_are_read(
    tmp_path, deflated
):
    for number in range(4):
        save(tmp_path / f"{number}.npz", deflated=deflated, y=number, x=images(30, seed=number))
    begin, length = packed_place(tmp_path / "2.npz")
    flip(tmp_path / "2.npz", begin + length - 20)
    source = npz(f"{tmp_path}/*.npz", record="file")

    with pytest.raises(
        RecordError, match=r"^2\.npz, record 0: member 'x\.npy' at byte \d+ is damaged: "
    ) as caught:
        source.read([0, 2])

    assert deflated or "check sum is" in str(caught.value)
    assert record_origin(source, 2)[0] == str(tmp_path / "2.npz")
    assert_same(
        source.read([0, 1, 3])["x"], np.stack([images(30, seed=number) for number in (0, 1, 3)])
    )
    assert npz(f"{tmp_path}/*.npz", record="file", fields="y").read([2])["y"].tolist() == [2]


def test_a_damaged_deflated_array_is_refused_when_its_rows_are_opened_and_no_copy_stays(
    tmp_path, cache
):
    path = save(tmp_path / "a.npz", deflated=True, x=images(30))
    begin, length = packed_place(path)
    flip(path, begin + length - 20)

    with pytest.raises(FormatError, match=r"a\.npz: member 'x\.npy' at byte 0 is damaged: "):
        npz(path)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("pieces", [1 << 20, 50])
def test_a_check_finds_damage_of_stored_rows_that_reading_them_does_not_show(
    tmp_path, monkeypatch, pieces
):
    monkeypatch.setattr(contents, "PACKED_BYTES", pieces)
    for number in range(3):
        save(
            tmp_path / f"{number}.npz",
            deflated=number == 2,
            x=images(30, seed=number),
            y=np.arange(30),
        )
    begin, _ = packed_place(tmp_path / "1.npz")
    flip(tmp_path / "1.npz", begin + 200)
    source = npz(f"{tmp_path}/*.npz")

    source.read(range(90))
    [(path, error)] = source.files.verify()
    [finding] = gl.check(source[10:])

    assert path == finding.file == str(tmp_path / "1.npz")
    assert "member 'x.npy' at byte 0 is damaged: its check sum is" in str(error)
    assert "member 'x.npy' at byte 0 is damaged: its check sum is" in finding.cause
    source.close()
    with pytest.raises(ClosedError):
        list(source.files.verify())


def test_no_changed_byte_gives_other_content(tmp_path):
    """Every byte of an archive, changed, gives an error or the same arrays (of what says nothing
    about them)."""
    path = save(tmp_path / "a.npz", deflated=True, x=images(4), y=np.arange(2))
    whole, wrong = path.read_bytes(), 0
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            with npz(path, record="file") as source:
                values = source.read([0])
        except (FormatError, RecordError, SpecError) as error:
            assert "a.npz" in str(error)  # noqa: PT017 - of each of many
            wrong += 1
        else:
            assert sorted(values) == ["x", "y"]
            assert_same(values["x"][0], images(4))
            assert_same(values["y"][0], np.arange(2))
    assert wrong > 0.7 * len(whole)


@pytest.mark.parametrize("record", ["row", "file"])
def test_no_archive_that_was_cut_short_is_read(tmp_path, record):
    path = save(tmp_path / "a.npz", x=images(2), y=np.arange(2))
    whole = path.read_bytes()
    for length in range(0, len(whole), 3):
        path.write_bytes(whole[:length])

        with pytest.raises(
            FormatError, match=r"a\.npz is no archive to read(.|\n)*(cut short|never written)"
        ):
            npz(path, record=record)


def test_bytes_behind_the_elements_are_passed_over_and_still_summed(tmp_path):
    array, path = images(50), tmp_path / "a.npz"
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        np.save(tmp_path / "x.npy", array)
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr("x.npy", (tmp_path / "x.npy").read_bytes() + bytes(1000) + b"more")

        assert_same(npz(path, record="file").read([0, 0])["x"][1], array)
        assert_same(npz(path).read([49, 3])["x"], array[[49, 3]])
        begin, length = packed_place(path)
        flip(path, begin + length - 3)
        with pytest.raises(RecordError, match="damaged"):
            npz(path, record="file").read([0])


@pytest.mark.parametrize(
    ("content", "crc", "reason"),
    [
        (npy_header((1000,)) + bytes(1001), None, "becomes more than the 1128 bytes"),
        (npy_header((1000,)) + bytes(999), None, "becomes 1127 bytes, and says 1128"),
        (
            npy_header((1000,)) + bytes(1000),
            7,
            "check sum is [0-9a-f]{8}, the archive says 00000007",
        ),
    ],
)
def test_lengths_and_sums_that_lie_are_found_out(tmp_path, content, crc, reason):
    path = tmp_path / "a.npz"
    path.write_bytes(
        archive_of(deflate(content), 1128, crc=zlib.crc32(content) if crc is None else crc)
    )

    with pytest.raises(RecordError, match=reason):
        npz(path, record="file").read([0])
    with pytest.raises(FormatError, match=reason):
        npz(path)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (lambda packed_bytes: packed_bytes[:-4], "its bytes end before it does"),
        (lambda packed_bytes: packed_bytes + b"x", "it ends before its bytes do"),
        (lambda packed_bytes: packed_bytes[:-300] + b"\xff" * 300, "is damaged: "),
    ],
)
def test_deflated_bytes_that_end_elsewhere_are_found_out(tmp_path, data, reason):
    content = npy_header((6000,)) + images(500).tobytes()
    path = tmp_path / "a.npz"
    path.write_bytes(archive_of(data(deflate(content)), len(content), crc=zlib.crc32(content)))

    with pytest.raises(RecordError, match=reason):
        npz(path, record="file").read([0])


def test_a_member_that_claims_more_than_deflate_can_give_is_refused(tmp_path):
    content = npy_header((2**31,))
    path = tmp_path / "a.npz"
    path.write_bytes(archive_of(deflate(content), 2**31 + len(content)))

    with pytest.raises(
        FormatError, match=r"a\.npz, member 'x\.npy' at byte 0, (.|\n)*cannot become"
    ):
        npz(path)


@pytest.mark.parametrize("record", ["row", "file"])
def test_an_array_that_grows_like_a_bomb_is_refused_and_the_limit_can_be_raised(
    tmp_path, monkeypatch, record
):
    monkeypatch.setattr(inflate, "ALLOWED_BYTES", 1 << 16)
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros((4, 100_000), "u1"))

    with pytest.raises(
        FormatError, match=r"a\.npz, member 'x\.npy', has(.|\n)*GPULOAD_EXPANSION=1032(.|\n)*unzip"
    ):
        npz(path, record=record)
    monkeypatch.setenv("GPULOAD_EXPANSION", "1032")
    assert npz(path, record=record).read([0])["x"].sum() == 0


def test_a_deflated_member_that_is_damaged_at_its_beginning_is_refused_when_it_is_opened(tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(archive_of(b"\xff" * 100, 1000))

    with pytest.raises(
        FormatError,
        match=r"a\.npz, member 'x\.npy' at byte 0, is damaged at its beginning(.|\n)*inflated",
    ):
        npz(path)


def test_a_header_longer_than_what_is_read_at_once_is_read(tmp_path):
    dtype = [(f"a field with quite a long name {number}", "u1") for number in range(200)]
    table = np.zeros(3, dtype)
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        path = write(tmp_path / "a.npz", {"t": table}, method=method)
        assert len(npz(path).spec) == 200
        assert len(npz(path, record="file").read([0])) == 200


def test_copies_that_would_fill_the_disk_are_refused(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(copies.shutil, "disk_usage", lambda path: SimpleNamespace(free=130))
    path = save(tmp_path / "a.npz", deflated=True, x=images(10))

    with pytest.raises(
        FileError, match=r"a\.npz: 120 bytes are needed(.|\n)*130 free(.|\n)*GPULOAD_CACHE"
    ):
        npz(path)
    assert list(cache.iterdir()) == []
    assert_same(npz(path, record="file").read([0])["x"][0], images(10))


@pytest.mark.parametrize("deflated", [False, True])
@pytest.mark.parametrize("record", ["row", "file"])
def test_an_archive_that_changes_after_it_was_opened_is_an_error(tmp_path, deflated, record):
    path = save(tmp_path / "a.npz", deflated=deflated, x=images(10))
    source = npz(path, record=record)
    save(path, deflated=deflated, x=images(11))

    if deflated and record == "row":
        assert_same(source.read([3])["x"], images(10)[3:4])  # the copy is of the archive as it was
    else:
        with pytest.raises(ChangedFileError, match=r"a\.npz changed"):
            source.read([0])


@pytest.mark.slow
def test_more_than_65535_members_and_an_archive_of_zip64_are_read(tmp_path):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", npy_header((2,)) + b"ab")
        for number in range(65_535):
            archive.writestr(str(number), "")

    assert npz(path, fields="x").read([1, 0])["x"].tolist() == [98, 97]


def test_rows_beyond_4_gib_are_read(tmp_path):
    path, count = tmp_path / "a.npz", 5 << 14
    labels = np.arange(count, dtype=np.uint8).tobytes()
    members = [
        (b"x.npy", npy_header((count, 1 << 16)), (count << 16) - 1, b"\7"),
        (b"y.npy", npy_header((count,)), 0, labels),
    ]
    write_zip64(path, members)
    with zipfile.ZipFile(path) as archive:
        assert [info.file_size for info in archive.infolist()] == [(5 << 30) + 128, count + 128]

    source = npz(path)
    values = source.read([count - 1, 70_000])

    assert values["x"].shape == (2, 1 << 16)
    assert values["x"].sum(axis=1).tolist() == [7, 0]
    assert values["y"].tolist() == [labels[-1], labels[70_000]]


def test_opening_takes_no_memory_whatever_an_archive_unpacks_to(tmp_path):
    path = tmp_path / "a.npz"
    save(path, deflated=True, x=np.zeros((2, 40 << 20), np.uint8))
    code = """
import resource, sys, gpuload as gl
gl.npz(sys.argv[2]).read([0])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
source = gl.npz(sys.argv[1])
gl.npz(sys.argv[1], record="file")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, source.fingerprint())
"""
    small = save(tmp_path / "b.npz", deflated=True, x=images(3))
    process = subprocess.run(
        [sys.executable, "-c", code, str(path), str(small)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=60,
    )

    assert int(process.stdout.split()[0]) < 30_000  # KiB


def test_a_remedy_names_no_member_that_is_no_array(tmp_path):
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\2")
        archive.writestr("archive/data/0", b"x")

    with pytest.raises(FormatError, match=r"data\.pkl") as caught:
        npz(tmp_path / "model.pt")

    assert "fields=" not in caught.value.remedy
    with pytest.raises(FormatError, match=r"torch\.load"):
        gl.open(tmp_path / "model.pt")
