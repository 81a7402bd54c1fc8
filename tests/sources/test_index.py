"""Manifests: the same source as without, no file read before its records, and a refusal of what
changed."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import pickle
import shutil
import struct
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import (
    ChangedFileError,
    FileError,
    FormatError,
    GpuloadError,
    MissingPackageError,
    SpecError,
)
from gpuload.storage import manifest
from gpuload.storage.files import Files
from tests.imagefiles import jpeg
from tests.sources.tfrecordfiles import example
from tests.sources.tfrecordfiles import write as write_tfrecord

RAW = {"compressors": None}  # of arrays of Zarr


def write_npy(folder):
    for number in range(4):
        np.save(
            folder / f"{number}.npy",
            np.arange(100 * number, 100 * number + 20 + number, dtype="i4").reshape(-1, 1),
        )
    return folder / "*.npy", gl.npy


def write_npy_of_many_kinds(folder):
    array = np.random.default_rng(0).integers(0, 255, (6, 3), np.uint8).astype([("a", "u1")])
    np.save(folder / "0.npy", array)
    np.save(folder / "1.npy", np.asfortranarray(array))
    np.save(folder / "2.npy", array[:0])
    np.save(folder / "3.npy", array[:1])
    return folder / "*.npy", gl.npy


def write_npy_of_other_shapes(folder):
    for number in range(3):
        np.save(folder / f"{number}.npy", np.full((number + 1, 2), number, ">f4"))
    return folder / "*.npy", lambda paths: gl.npy(paths, record="file")


def write_fixed(folder):
    for number in range(3):
        (folder / f"{number}.bin").write_bytes(b"head" + bytes(range(number, number + 15)))
    return folder / "*.bin", lambda paths: gl.fixed(
        paths, [("a", "u1"), ("b", "<u2", (2,))], header_bytes=4
    )


def write_idx(folder):
    for number in range(2):
        head = struct.pack(">HBBII", 0, 8, 2, 3 + number, 4)
        (folder / f"{number}.idx").write_bytes(
            head + bytes(range(number, number + 4 * (3 + number)))
        )
    return folder / "*.idx", lambda paths: gl.idx(image=paths)


def write_tfrecords(folder):
    for number in range(3):
        write_tfrecord(
            folder / f"{number}.tfrecord", [example(label=[number, i]) for i in range(number + 2)]
        )
    return folder / "*.tfrecord", lambda paths: gl.tfrecord(paths, {"label": ("i8", (2,))})


def write_text(folder):
    (folder / "a.txt").write_text("first\nsecond\n\n")
    (folder / "b.txt").write_bytes("\ufeffthird line".encode())
    return folder / "*.txt", gl.text


def write_csv(folder):
    for number in range(2):
        (folder / f"{number}.csv").write_text(f"a,b\n{number},x\n{number + 1},yy\n")
    return folder / "*.csv", gl.csv


def write_npz(folder):
    for number in range(2):
        np.savez(
            folder / f"{number}.npz", x=np.arange(number + 2), y=np.ones((number + 2, 3), "f4")
        )
    return folder / "*.npz", gl.npz


def write_npz_of_files(folder):
    for number in range(3):
        np.savez_compressed(
            folder / f"{number}.npz", x=np.full((number + 1, 40), number), y=np.ones(3, ">f4")
        )
    return folder / "*.npz", lambda paths: gl.npz(paths, record="file")


def write_tars(folder):
    for number in range(2):
        with tarfile.open(folder / f"{number}.tar", "w") as archive:
            for record in range(number + 1):
                for name, raw in (
                    ("cls", b"%d" % number),
                    ("npy", npy(np.full(3, number))),
                    ("txt", b"a" * number),
                ):
                    member = tarfile.TarInfo(f"{record}.{name}")
                    member.size = len(raw)
                    archive.addfile(member, io.BytesIO(raw))
    return folder / "*.tar", gl.webdataset


def npy(array):
    np.save(file := io.BytesIO(), array)
    return file.getvalue()


def write_parquet(folder):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for number in range(3):
        columns = {
            "x": np.arange(number * 10, number * 10 + 7), "name": [f"n{i}" for i in range(7)], "image": [jpeg()] * 7,
            "raw": [b"raw"] * 7,
        }  # fmt: skip
        table = arrow.table(columns).slice(0, 7 - number)
        about = json.dumps(
            {"info": {"features": {"x": {"_type": "ClassLabel", "names": ["a", "b"]}}}}
        )
        parquet.write_table(
            table.replace_schema_metadata({"huggingface": about}),
            folder / f"{number}.parquet",
            row_group_size=3,
        )
    return folder / "*.parquet", gl.parquet


def write_arrow(folder, make="new_file", compression=None):
    arrow = pytest.importorskip("pyarrow")
    for number in range(3):
        columns = {
            "x": np.arange(number * 10, number * 10 + 7 - number), "name": [f"n{i}" for i in range(7 - number)],
            "image": [jpeg()] * (7 - number), "raw": [b"raw"] * (7 - number),
            "kind": arrow.array([f"k{i % 2}" for i in range(7 - number)]).dictionary_encode(),
        }  # fmt: skip
        table = arrow.table(columns).drop_columns([] if make == "new_file" else ["kind"])
        options = arrow.ipc.IpcWriteOptions(compression=compression)
        with getattr(arrow.ipc, make)(
            folder / f"{number}.arrow", table.schema, options=options
        ) as writer:
            writer.write_table(table, max_chunksize=3)
    return folder / "*.arrow", gl.arrow


def write_arrow_streams(folder):
    return write_arrow(folder, "new_stream", "zstd")


def write_hdf5(folder, **options):
    h5py = pytest.importorskip("h5py")
    for number in range(3):
        rows = 7 - number
        with h5py.File(folder / f"{number}.h5", "w") as file:
            file.create_dataset(
                "x", data=np.arange(rows * 6, dtype=">i2").reshape(rows, 6) + number, **options
            )
            file.create_dataset(
                "pair", data=np.ones(rows, [("a", "u1"), ("b", "<f4", (2,))]), **options
            )
            file.create_dataset("flag", data=np.arange(rows) % 2 == 0)
            file.create_dataset(
                "kind", data=np.arange(rows) % 2, dtype=h5py.enum_dtype({"cat": 0, "dog": 1}, "i1")
            )
            file.create_dataset(
                "name", data=[f"n{i}" for i in range(rows)], dtype=h5py.string_dtype()
            )
            raws = file.create_dataset("image", (rows,), h5py.vlen_dtype(np.uint8))
            for row in range(rows):
                raws[row] = np.frombuffer(jpeg(), np.uint8)
    return folder / "*.h5", gl.hdf5


def write_hdf5_in_chunks(folder):
    h5py = pytest.importorskip("h5py")
    write_hdf5(folder, chunks=True, compression="gzip", shuffle=True, fletcher32=True)
    for number in range(3):
        with h5py.File(folder / f"{number}.h5", "a") as file:
            rows = 7 - number
            file.create_dataset("lzf", data=np.arange(rows), chunks=(2,), compression="lzf")
            file.create_dataset("plain", data=np.arange(rows * 4).reshape(rows, 4), chunks=(2, 4))
            # All chunks of the first file were written, of the others only that of row 2 or 3.
            holes = file.create_dataset("holes", (rows, 2), "<i4", chunks=(2, 1), fillvalue=5)
            holes[slice(None) if number == 0 else slice(2, 4)] = number
    return folder / "*.h5", gl.hdf5


def write_hdf5_of_a_group(folder):
    h5py = pytest.importorskip("h5py")
    for number in range(2):
        with h5py.File(folder / f"{number}.h5", "w", userblock_size=512 * number) as file:
            file["train/deep/x"] = np.arange(3 + number)
            file["train/y"] = h5py.SoftLink("/train/deep/x")
    return folder / "*.h5", lambda paths: gl.hdf5(
        paths, {"x": "deep/x", "label": "y"}, group="train"
    )


def write_zarr(folder, version=2):
    zarr = pytest.importorskip("zarr", "3", reason="gl.zarr needs zarr 3, and so Python 3.11")
    for number in range(3):
        group, rows = (
            zarr.open_group(str(folder / f"{number}.zarr"), mode="w", zarr_format=version),
            7 - number,
        )
        shards = {"shards": (4, 6)} if version == 3 else {}
        columns = {
            "x": (np.arange(rows * 6, dtype="i2").reshape(rows, 6) + number, (2, 3), shards),
            "plain": (
                np.arange(rows * 2, dtype=">f4" if version == 2 else "f4").reshape(rows, 2),
                (2, 2),
                RAW,
            ),
            "name": (np.array([f"n{i}" for i in range(rows)], object), (3,), {"dtype": str}),
        }
        for name, (values, chunks, options) in columns.items():
            settings = {"shape": values.shape, "dtype": values.dtype, **options}
            group.create_array(name, chunks=chunks, attributes={"number": number}, **settings)[
                ...
            ] = values
        # All chunks of the first group were written, of the others only those of row 2 or 3.
        holes = group.create_array(
            "holes", shape=(rows, 2), chunks=(2, 1), dtype="i4", fill_value=5
        )
        holes[slice(None) if number == 0 else slice(2, 4)] = number + 1
    return folder / "*.zarr", gl.zarr


def write_zarr_in_shards(folder):
    return write_zarr(folder, 3)


def write_zarr_of_a_group(folder):
    zarr = pytest.importorskip("zarr", "3", reason="gl.zarr needs zarr 3, and so Python 3.11")
    for number in range(2):
        group = zarr.open_group(str(folder / f"{number}.zarr"), mode="w").create_group("train")
        for name in ("deep/x", "y", "other"):
            group.create_array(name, shape=(3 + number,), chunks=(2,), dtype="i4")[...] = np.arange(
                1, 4 + number
            )
    return folder / "*.zarr", lambda paths: gl.zarr(
        paths, {"x": "deep/x", "label": "y"}, group="train"
    )


def write_zarr_without_a_group(folder):
    zarr = pytest.importorskip("zarr", "3", reason="gl.zarr needs zarr 3, and so Python 3.11")
    zarr.create_array(
        str(folder / "a.zarr"), shape=(5, 2), chunks=(2, 2), dtype="u1", zarr_format=2
    )[...] = 3
    return folder / "a.zarr", gl.zarr


def write_images(folder):
    for name in ("cat/1.jpg", "cat/deep/2.jpg", "dog/1.jpg"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(jpeg())
    (folder / "ant").mkdir()  # an empty class
    return folder, gl.images


def write_image_list(folder):
    write_images(folder)
    return [folder / "dog/1.jpg", folder / "cat/1.jpg"], gl.images


FORMATS = [
    write_npy, write_npy_of_many_kinds, write_npy_of_other_shapes, write_fixed, write_idx, write_tfrecords, write_text,
    write_csv, write_npz, write_npz_of_files, write_tars, write_parquet, write_arrow, write_arrow_streams,
    write_hdf5, write_hdf5_in_chunks, write_hdf5_of_a_group, write_zarr, write_zarr_in_shards, write_zarr_of_a_group,
    write_zarr_without_a_group, write_images, write_image_list,
]  # fmt: skip
UNREAD = [format for format in FORMATS if format not in (write_tfrecords, write_csv)]


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    return path


def values(source):
    """Return all values of a source, comparable."""
    return [
        {name: np.asarray(value).tolist() for name, value in source[i].items()}
        for i in range(len(source))
    ]


@pytest.mark.parametrize("write", FORMATS)
def test_a_manifest_opens_the_same_source(folder, write):
    paths, function = write(folder)
    with function(paths) as source:
        path = source.index(folder / "x.manifest")
        expected, fingerprint = values(source), source.fingerprint()
        spec, classes, places = (
            source.spec,
            source.classes,
            [source.where(i) for i in range(len(source))],
        )

    for again in (function(path), pickle.loads(pickle.dumps(function(path)))):
        assert (again.spec, again.classes) == (spec, classes)
        assert values(again) == expected
        assert again.fingerprint() == again._digest() == fingerprint
        assert [again.where(i) for i in range(len(again))] == places


@pytest.mark.parametrize("write", [format for format in FORMATS if format is not write_tfrecords])
def test_gl_open_opens_a_manifest_as_it_was_indexed(folder, write):
    paths, function = write(folder)
    with function(paths) as source:
        path = source.index(folder / "x.manifest")
        expected, spec, fingerprint = values(source), source.spec, source.fingerprint()

    again = gl.open(path)

    assert (again.spec, values(again), again.fingerprint()) == (spec, expected, fingerprint)


def test_gl_open_infers_the_features_of_listed_tfrecords(folder):
    paths, function = write_tfrecords(folder)
    path = function(paths).index(folder / "x.manifest")

    assert gl.open(path).spec == gl.open(paths).spec
    assert gl.open(path).fingerprint() == gl.open(paths).fingerprint()


@pytest.mark.parametrize("write", UNREAD)
def test_opening_by_a_manifest_touches_no_file(folder, write):
    paths, function = write(folder)
    with function(paths) as source:
        path, fingerprint = source.index(folder.parent / "x.manifest"), source.fingerprint()
    shutil.rmtree(folder)

    with function(path) as again:
        assert again.fingerprint() == fingerprint
        with pytest.raises(ChangedFileError, match="it cannot be read any more"):
            again.read([len(again) - 1])


@pytest.mark.parametrize("write", FORMATS)
def test_a_folder_moves_with_its_manifest(folder, write):
    paths, function = write(folder)
    with function(paths) as source:
        source.index(folder / "x.manifest")
        expected = values(source)
    shutil.copytree(folder, folder.parent / "copy")
    shutil.rmtree(folder)

    assert values(function(folder.parent / "copy" / "x.manifest")) == expected


@pytest.mark.parametrize("write", FORMATS)
@pytest.mark.parametrize("change", ["touch", "grow", "cut"])
def test_a_file_that_differs_is_refused_when_it_is_first_touched(folder, write, change):
    paths, function = write(folder)
    with function(paths) as source:
        path, last = source.index(folder / "x.manifest"), Path(sorted(source.files.paths)[-1])
    if change == "touch":
        os.utime(last, ns=(0, os.stat(last).st_mtime_ns + 1))
    else:
        os.truncate(last, os.path.getsize(last) + (1 if change == "grow" else -1))

    with pytest.raises(ChangedFileError, match=last.name) as error:
        values(function(path))
    # Opening it again would not help: the manifest says the same as before.
    assert "write the manifest again" in error.value.remedy
    assert path in error.value.remedy


def test_the_remedy_for_a_file_that_changed_helps(folder):
    paths, function = write_npy(folder)
    path = function(paths).index(folder / "x.manifest")
    os.utime(sorted(folder.glob("*.npy"))[-1], ns=(0, 0))

    function(paths).index(path)

    assert values(function(path)) == values(function(paths))


def test_a_state_goes_from_files_to_their_manifest_and_back(folder):
    paths, function = write_npy(folder)
    path = function(paths).index(folder / "x.manifest")
    plain, listed = (
        gl.Loader(function(argument), 8, shuffle=True, seed=3) for argument in (paths, path)
    )
    for first, second in ((plain, listed), (listed, plain)):
        next(iter(first))
        second.load_state_dict(first.state_dict())
        np.testing.assert_array_equal(next(iter(second))["x"], next(iter(first))["x"])


def test_other_arguments_have_another_fingerprint_that_is_the_one_without_a_manifest(folder):
    paths, function = write_npy(folder)
    path = function(paths).index(folder / "x.manifest")

    assert (
        function(path, field="y").fingerprint()
        == function(paths, field="y").fingerprint()
        != function(paths).fingerprint()
    )


def test_labels_of_a_list_are_passed_again(folder):
    paths, _ = write_images(folder)
    source = gl.images(paths, labels=[3, 1, 4])
    path = source.index(folder / "x.manifest")

    again = gl.images(path, labels=[3, 1, 4])

    assert again.read(range(3), fields="label")["label"].tolist() == [3, 1, 4]
    assert again.fingerprint() == source.fingerprint()
    with pytest.raises(SpecError, match=r"gl\.images with labels=\.\.\."):
        gl.open(path)


def test_a_pickled_source_names_the_manifest_and_not_the_files(folder):
    for number in range(300):
        np.save(folder / f"{number}.npy", np.zeros(1))
    path = gl.npy(folder / "*.npy").index(folder / "x.manifest")

    assert len(pickle.dumps(gl.npy(path))) < 500


def test_names_of_any_bytes_are_kept(folder):
    names = ["a b.npy", "\u00fcml\u00e4ut.npy", os.fsdecode(b"\xff\xfe.npy"), "' \n.npy"]
    for number, name in enumerate(names):
        np.save(folder / name, np.full(1, number))
    source = gl.npy([folder / name for name in names])

    again = gl.npy(source.index(folder / "x.manifest"))

    assert again.read(range(4))["x"].tolist() == [0, 1, 2, 3]
    assert list(again.files.paths) == [str(folder / name) for name in names]


def test_a_manifest_is_replaced_and_nothing_else_is(folder):
    paths, function = write_npy(folder)
    source, path = function(paths), folder / "x.manifest"
    source.index(path)
    source.index(path)
    path.write_text("mine")

    with pytest.raises(FileError, match="it is no manifest"):
        source.index(path)

    assert path.read_text() == "mine"
    assert [file.name for file in folder.iterdir() if "manifest" in file.name] == ["x.manifest"]


def test_where_nothing_can_be_written_is_an_error(folder):
    paths, function = write_npy(folder)

    with pytest.raises(FileError, match=r"x\.manifest cannot be written"):
        function(paths).index(folder / "none" / "x.manifest")


@pytest.mark.parametrize("name", ["x.index", "", ".manifest", 3, "s3://bucket/x.manifest"])
def test_a_path_that_cannot_be_a_manifest_is_refused(folder, name):
    paths, function = write_npy(folder)
    with pytest.raises(SpecError, match="as the path of a manifest"):
        function(paths).index(name)


def test_sources_of_no_files_have_no_manifest(folder):
    paths, function = write_npy(folder)
    for source in (
        gl.arrays(x=np.zeros(3)),
        function(paths)[:2],
        gl.zip(function(paths), gl.arrays(y=np.zeros(86))),
    ):
        with pytest.raises(SpecError, match="a manifest lists the files of one call"):
            source.index(folder / "x.manifest")


def test_compressed_and_damaged_files_have_no_manifest(folder):
    (folder / "a.idx.gz").write_bytes(gzip.compress(struct.pack(">HBBI", 0, 8, 1, 3) + b"abc"))
    with pytest.raises(SpecError, match="unpack the files"):
        gl.idx(folder / "a.idx.gz").index(folder / "x.manifest")
    paths, function = write_npy(folder)
    (folder / "1.npy").write_bytes(b"none")
    with pytest.raises(SpecError, match=r"a manifest with .*1\.npy"):
        function(paths, on_error="skip").index(folder / "x.manifest")


def test_a_manifest_of_another_format_is_refused(folder):
    paths, function = write_npy(folder)
    path = function(paths).index(folder / "x.manifest")
    with pytest.raises(SpecError, match=r"a manifest of files of gl\.npy"):
        gl.text(path)


def test_a_file_of_another_kind_under_such_a_name_is_refused(folder):
    (folder / "x.manifest").write_bytes(b"a,b\n1,2\n")
    for function in (gl.csv, gl.open):
        with pytest.raises(FormatError, match="no manifest that can be used"):
            function(folder / "x.manifest")


def rewrite(path, change):
    """Write a manifest anew, with right checksums, after a change of its arrays and values."""
    listing = manifest.load(path)
    _, about = manifest._read(path)
    arrays = {name: array.copy() for name, array in listing.arrays.items()}
    change(arrays, about)
    files = Files((), np.zeros((0, 3), np.int64), names=("",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "_file_arrays", lambda path, files: {})
        manifest.write(
            path, about["format"], files, options=about["options"], about=about["about"], arrays=arrays,
            fingerprints=about["fingerprints"],
        )  # fmt: skip


LIES = {
    "more rows than bytes": lambda arrays, about: arrays["lengths"].__setitem__(1, 22),
    "rows without end": lambda arrays, about: arrays["lengths"].__setitem__(1, 2**62),
    "less than none": lambda arrays, about: arrays["lengths"].__setitem__(1, -1),
    "data behind the file": lambda arrays, about: arrays["data_begins"].__setitem__(1, 2**40),
    "a header that is not there": lambda arrays, about: arrays["head_of"].__setitem__(0, 7),
    "a folder that is not there": lambda arrays, about: arrays["folder_of"].__setitem__(0, 7),
    "a negative size": lambda arrays, about: arrays["stamps"].__setitem__((0, 0), -5),
    "sizes beyond any disk": lambda arrays, about: arrays["stamps"].__setitem__(
        (slice(None), 0), 2**62
    ),
    "bounds that go back": lambda arrays, about: arrays["name_bounds"].__setitem__(1, 12),
    "bounds beyond the names": lambda arrays, about: arrays["name_bounds"].__setitem__(-1, 1000),
    "a slash in a name": lambda arrays, about: arrays["names"].__setitem__(0, ord("/")),
    "a zero in a name": lambda arrays, about: arrays["names"].__setitem__(0, 0),
    "no names": lambda arrays, about: arrays.pop("names"),
    "names of another dtype": lambda arrays, about: arrays.__setitem__("names", arrays["stamps"]),
    "one stamp less": lambda arrays, about: arrays.__setitem__("stamps", arrays["stamps"][1:]),
    "headers that are none": lambda arrays, about: about["about"].__setitem__(
        "heads", ["__import__('os')"]
    ),
    "headers of objects": lambda arrays, about: about["about"].__setitem__(
        "heads", ["{'descr': '|O', 'fortran_order': False, 'shape': (0, 1)}"]
    ),
    "a list of headers that is none": lambda arrays, about: about["about"].__setitem__("heads", 3),
    "a fingerprint that is no text": lambda arrays, about: about["fingerprints"].__setitem__(
        "x", 3
    ),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_manifest_that_contradicts_itself_is_refused(folder, lie):
    paths, function = write_npy(folder)
    path = function(paths).index(folder / "x.manifest")
    rewrite(path, lie)

    with pytest.raises(FormatError, match="no manifest that can be used"):
        function(path)


def test_counts_and_axes_of_idx_files_that_cannot_be_are_refused(folder):
    paths, function = write_idx(folder)
    path = function(paths).index(folder / "x.manifest")
    lies = {
        "one record less": lambda arrays, about: arrays["counts"].__setitem__(1, 3),
        "one record more": lambda arrays, about: arrays["counts"].__setitem__(1, 5),
        "an axis that no header holds": lambda arrays, about: about["about"].__setitem__(
            "shape", [1 << 32]
        ),
        "more axes than an array has": lambda arrays, about: about["about"].__setitem__(
            "shape", [4] + [1] * 300
        ),
    }
    causes = {}
    for name, lie in lies.items():
        other = shutil.copy(path, folder / "other.manifest")
        rewrite(str(other), lie)
        with pytest.raises(FormatError, match="no manifest that can be used") as error:
            function(other)
        causes[name] = error.value.cause

    assert ["another size" in cause for cause in causes.values()] == [True, True, False, False]


def test_bounds_of_records_that_leave_a_file_are_refused(folder):
    paths, function = write_text(folder)
    path = function(paths).index(folder / "x.manifest")
    for place, value in ((-1, 2**40), (0, -1), (1, 20)):
        other = shutil.copy(path, folder / "other.manifest")
        rewrite(
            str(other),
            lambda arrays, about, at=place, to=value: arrays["bounds"].__setitem__(at, to),
        )
        with pytest.raises(FormatError, match="before it begins, or behind its file"):
            function(other)


@pytest.mark.parametrize(
    ("column", "value"),
    [(0, 99), (1, -1), (2, 2**40), (3, 5), (4, 2**40), (5, 2**62), (5, -1), (6, 2**33), (7, 2)],
)
def test_members_that_leave_an_archive_are_refused(folder, column, value):
    paths, function = write_npz(folder)
    path = function(paths).index(folder / "x.manifest")
    rewrite(path, lambda arrays, about: arrays["0 members"].__setitem__((1, column), value))

    with pytest.raises(FormatError, match="no manifest that can be used"):
        function(path)


@pytest.mark.parametrize(
    ("array", "value"),
    [
        ("offsets", 2**40),
        ("offsets", -1),
        ("lengths", 2**40),
        ("field_of", 9),
        ("is_first", 3),
        ("counts", 2),
    ],
)
def test_members_that_leave_a_tar_are_refused(folder, array, value):
    paths, function = write_tars(folder)
    path = function(paths).index(folder / "x.manifest")
    rewrite(path, lambda arrays, about: arrays[array].__setitem__(0, value))

    with pytest.raises(FormatError, match="no manifest that can be used"):
        function(path)


def test_members_whose_number_is_right_only_in_64_bits_are_refused(folder):
    for number in range(5):
        with tarfile.open(folder / f"{number}.tar", "w") as archive:
            archive.addfile(tarfile.TarInfo("0.txt"))
    path = gl.webdataset(folder / "*.tar").index(folder / "x.manifest")
    counts = [2**62 - 1] * 4 + [9]  # 5, were it not for 2**64
    rewrite(path, lambda arrays, about: arrays["counts"].__setitem__(slice(None), counts))

    with pytest.raises(FormatError, match="counts more members than there can be"):
        gl.webdataset(path)


@pytest.mark.parametrize(
    ("array", "place", "value"),
    [
        ("schema_of", 0, 7),
        ("row_groups", 0, 2),
        ("row_groups", 0, -1),
        ("unpacked_bytes", 0, -1),
        ("rows", 0, -1),
    ],
)
def test_row_groups_that_cannot_be_are_refused(folder, array, place, value):
    paths, function = write_parquet(folder)
    path = function(paths).index(folder / "x.manifest")
    rewrite(path, lambda arrays, about: arrays[array].__setitem__(place, value))

    with pytest.raises(FormatError, match="no manifest that can be used"):
        function(path)


@pytest.mark.parametrize(
    "change",
    [
        {"schemas": 3},
        {"schemas": ["!"]},
        {"schemas": ["AAAA"]},
        {"schemas": [3]},
        {"images": None},
        {"images": {"x": 1}},
    ],
)
def test_schemas_that_are_none_are_refused(folder, change):
    paths, function = write_parquet(folder)
    path = function(paths).index(folder / "x.manifest")
    rewrite(path, lambda arrays, about: about["about"].update(change))

    with pytest.raises(FormatError, match="no manifest that can be used"):
        function(path)


def test_a_footer_that_is_not_as_the_manifest_says_is_refused_at_the_first_read(folder):
    paths, function = write_parquet(folder)
    path = function(paths).index(folder / "x.manifest")
    rewrite(path, lambda arrays, about: arrays["rows"].__setitem__(slice(0, 2), [2, 4]))

    source = function(path)

    with pytest.raises(FormatError, match=r"0\.parquet is not as its manifest says"):
        source[0]
    assert source[8]["x"] == 11


def test_columns_that_a_listed_source_did_not_read_are_there(folder):
    paths, _ = write_parquet(folder)
    path = gl.parquet(paths, ["x"]).index(folder / "x.manifest")

    source = gl.parquet(path, ["image", "raw"])

    assert source.spec == gl.parquet(paths, ["image", "raw"]).spec
    assert [field.encoded for field in source.spec] == [True, False]
    assert gl.parquet(path).spec == gl.parquet(paths).spec


ARROW_LIES = {
    "no schema": lambda arrays, about: arrays["prefixes"].__setitem__(slice(0, 16), 0),
    "bounds that go back": lambda arrays, about: arrays["prefix_bounds"].__setitem__(-1, -1),
    "a beginning that is not there": lambda arrays, about: arrays["prefix_of"].__setitem__(0, 9),
    "no file and no stream": lambda arrays, about: arrays["is_file"].__setitem__(0, 2),
    "fewer record batches": lambda arrays, about: arrays["batches"].__setitem__(0, 1),
    "less than none": lambda arrays, about: arrays["batches"].__setitem__(0, -1),
    "other nodes": lambda arrays, about: arrays["num_nodes"].__setitem__(0, 2),
    "a record batch in front of the file": lambda arrays, about: arrays["places"].__setitem__(
        (1, 0), -8
    ),
    "a record batch behind the file": lambda arrays, about: arrays["places"].__setitem__(
        (1, 0), 2**62
    ),
    "metadata behind the file": lambda arrays, about: arrays["places"].__setitem__((1, 1), 2**62),
    "metadata of no bytes": lambda arrays, about: arrays["places"].__setitem__((1, 1), 0),
    "a body behind the file": lambda arrays, about: arrays["places"].__setitem__((1, 2), 2**62),
    "rows without end": lambda arrays, about: arrays["places"].__setitem__((1, 3), 2**62),
    "a buffer outside of the body": lambda arrays, about: arrays["buffers"].__setitem__(
        (1, 0), 2**40
    ),
    "a length that wraps around": lambda arrays, about: arrays["buffers"].__setitem__(
        (1, 1), 2**63 - 1
    ),
    "a column of other rows": lambda arrays, about: arrays["nodes"].__setitem__((0, 0), 2),
    "flags that are none": lambda arrays, about: arrays["is_packed"].__setitem__(0, 7),
    "images that are none": lambda arrays, about: about["about"].__setitem__("images", [1]),
}


def test_record_batches_that_cannot_be_are_refused(folder):
    paths, function = write_arrow(folder)
    path, errors = function(paths).index(folder / "x.manifest"), {}
    for name, lie in ARROW_LIES.items():
        copy = shutil.copy(path, folder / "copy.manifest")
        rewrite(str(copy), lie)
        with contextlib.suppress(FormatError):
            function(copy)
            errors[name] = "is accepted"
    assert errors == {}
    rewrite(path, lambda arrays, about: arrays["buffers"].__setitem__((-1, 0), 2**40))
    with pytest.raises(FormatError, match=r"2\.arrow, record batch 1: column 'kind' lies outside"):
        function(path)


HDF5_LIES = {
    "rows behind the file": lambda arrays, about: arrays["3 begins"].__setitem__(1, 2**40),
    "rows in front of the file": lambda arrays, about: arrays["3 begins"].__setitem__(1, -1),
    "more rows than bytes": lambda arrays, about: [arrays[f"{k} lengths"].__setitem__(1, 2**50) for k in range(9)],
    "datasets of other rows": lambda arrays, about: arrays["3 lengths"].__setitem__(1, 5),
    "less than none": lambda arrays, about: arrays["3 lengths"].__setitem__(1, -1),
    "a kind that is not there": lambda arrays, about: arrays["0 kind_of"].__setitem__(0, 9),
    "a chunk behind the file": lambda arrays, about: arrays["8 chunks"].__setitem__((0, 0), 2**62),
    "a chunk longer than the file": lambda arrays, about: arrays["8 chunks"].__setitem__((0, 1), 2**63 - 1),
    "a chunk in front of the file": lambda arrays, about: arrays["8 chunks"].__setitem__((0, 0), -8),
    "fewer chunks": lambda arrays, about: arrays["8 num_chunks"].__setitem__(0, 0),
    "more chunks than the shape has": lambda arrays, about: (
        arrays["8 num_chunks"].__setitem__(0, arrays["8 num_chunks"][0] - 1),
        arrays["8 num_chunks"].__setitem__(1, arrays["8 num_chunks"][1] + 1),
    ),
    "a chunk that stands there twice": lambda arrays, about: arrays["1 chunk_numbers"].__setitem__(1, 1),
    "a chunk outside of the dataset": lambda arrays, about: arrays["1 chunk_numbers"].__setitem__(1, 99),
    "more numbers than chunks": lambda arrays, about: arrays.__setitem__(
        "1 chunk_numbers", np.append(arrays["1 chunk_numbers"], 3)
    ),
    "masks of others": lambda arrays, about: arrays.__setitem__("8 chunk_masks", np.zeros(1, np.int64)),
    "no datasets": lambda arrays, about: about["about"].__setitem__("paths", []),
    "datasets that are none": lambda arrays, about: about["about"].__setitem__("paths", [3] * 9),
    "fewer kinds": lambda arrays, about: about["about"]["kinds"].pop(),
    "no kinds": lambda arrays, about: about["about"]["kinds"].__setitem__(0, []),
    **{
        f"{name} = {value!r}": lambda arrays, about, name=name, value=value: about["about"]["kinds"][8][0].update(
            {name: value}
        )
        for name, value in {
            "how": "none", "array": "{'descr': '|O', 'fortran_order': False, 'shape': (0,)}", "shape": [-1],
            "chunk": [0, 1], "filters": [[307, [], "bzip2"]], "fill": "AA==", "varying": "texts", "classes": [1],
        }.items()
    },
    "files of other fields": lambda arrays, about: (
        about["about"]["kinds"][8].append({**about["about"]["kinds"][8][0], "shape": [7]}),
        arrays["8 kind_of"].__setitem__(1, 1),
    ),
}  # fmt: skip


def wrong_answers(function, path, lies):
    """Return, by the names of lies, what became of a copy of a manifest that was not refused as no
    manifest."""
    errors = {}
    for name, lie in lies.items():
        copy = shutil.copy(path, Path(path).with_name("copy.manifest"))
        rewrite(str(copy), lie)
        try:
            function(copy)
            errors[name] = "is accepted"
        except FormatError as error:
            if "copy.manifest is no manifest that can be used" not in str(error):
                errors[name] = str(error)
    return errors


def test_datasets_that_cannot_be_are_refused(folder):
    paths, function = write_hdf5_in_chunks(folder)
    path = function(paths).index(folder / "x.manifest")
    assert manifest.load(path).about["paths"][1:9:7] == ["/holes", "/x"]
    assert wrong_answers(function, path, HDF5_LIES) == {}


def test_a_dataset_that_is_not_as_the_manifest_says_is_refused_before_hdf5_decodes_it(folder):
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "a.h5", "w") as file:
        file["x"] = np.arange(4)
        file.create_dataset("y", data=np.arange(4), chunks=(2,), compression="lzf")
        file.create_dataset("z", data=["a"] * 4, dtype=h5py.string_dtype())
    path = gl.hdf5(folder / "a.h5").index(folder / "x.manifest")
    literal = "{'descr': '<i4', 'fortran_order': False, 'shape': (0,)}"
    for number, change in (
        (1, {"array": literal}),
        (1, {"chunk": [1]}),
        (2, {"varying": "values"}),
    ):
        copy = shutil.copy(path, folder / "copy.manifest")
        rewrite(
            str(copy),
            lambda arrays, about, at=number, to=change: about["about"]["kinds"][at][0].update(to),
        )
        source = gl.hdf5(copy)
        assert source.read([3], fields="x")["x"].tolist() == [3]
        with pytest.raises(
            FormatError, match=r"a\.h5, [yz] is not as the manifest .*copy\.manifest says"
        ):
            source.read([3], fields="yz"[number - 1])


def test_datasets_that_lead_to_other_files_are_not_read_however_they_are_listed(folder):
    h5py = pytest.importorskip("h5py")
    for name in ("a.h5", "b.h5"):
        with h5py.File(folder / name, "w") as file:
            file["x"] = np.arange(4)
            if name == "b.h5":
                file["link"] = h5py.ExternalLink("a.h5", "x")
                layout = h5py.VirtualLayout((4,), "i8")
                layout[:] = h5py.VirtualSource(str(folder / "a.h5"), "x", (4,))
                file.create_virtual_dataset("virtual", layout)
                file.create_dataset(
                    "external", (4,), "i8", external=[(str(folder / "a.h5"), 0, 32)]
                )
    path = gl.hdf5(folder / "b.h5", ["x"]).index(folder / "x.manifest")

    def lie(about, name):
        about["about"]["paths"] = [name]
        about["about"]["kinds"][0][0]["how"] = "hdf5"

    for name in ("/link", "/virtual", "/external"):
        copy = shutil.copy(path, folder / "copy.manifest")
        rewrite(str(copy), lambda arrays, about, name=name: lie(about, name))
        with pytest.raises(FormatError, match="is not as the manifest"):
            gl.hdf5(copy, [name]).read([0])


def test_datasets_of_a_manifest_are_named_as_those_of_files(folder):
    paths, function = write_hdf5_of_a_group(folder)
    path = function(paths).index(folder / "x.manifest")

    assert gl.hdf5(path, ["y"], group="/train/").spec == gl.hdf5(paths, ["y"], group="train").spec
    assert gl.hdf5(path, group="train").spec.names == ("y",)  # the listed ones of the group itself
    with pytest.raises(
        SpecError, match=r"lists no dataset /train/x(.|\n)*it lists \['/train/deep/x', '/train/y'\]"
    ):
        gl.hdf5(path, ["x"], group="train")
    with pytest.raises(SpecError, match="lists no dataset in the group /"):
        gl.hdf5(path)


def test_only_datasets_that_hdf5_decodes_need_h5py(folder, monkeypatch):
    paths, function = write_hdf5_in_chunks(folder)
    path = function(paths).index(folder / "x.manifest")
    expected = gl.hdf5(paths, ["x", "plain"]).read(range(18))
    monkeypatch.setitem(sys.modules, "h5py", None)

    for name, values in gl.hdf5(path, ["x", "plain"]).read(range(18)).items():
        np.testing.assert_array_equal(values, expected[name])
    with pytest.raises(
        MissingPackageError, match=r"x\.manifest: gl\.hdf5 needs the package 'h5py'"
    ):
        gl.hdf5(path)


def of_kind(column, **values):
    """Return a lie about the first kind of an array: of itself, or of its metadata."""

    def lie(arrays, about):
        kind = about["about"]["kinds"][column][0]
        for name, value in values.items():
            (kind if name in kind else kind["metadata"])[name] = value

    return lie


HOLES, NAME, PLAIN, X = range(4)  # the columns of `write_zarr`
ZARR_LIES = {
    "a kind that is not there": lambda arrays, about: arrays["kind_of"].__setitem__((0, X), 9),
    "more rows than chunks": lambda arrays, about: arrays["lengths"].__setitem__(1, 20),
    "more rows than can be": lambda arrays, about: arrays["lengths"].__setitem__(1, 2**50),
    "rows beyond all bounds": lambda arrays, about: arrays["lengths"].__setitem__(1, 2**62),
    "arrays of other rows": lambda arrays, about: arrays["lengths"].__setitem__((1, X), 5),
    "less than none": lambda arrays, about: arrays["lengths"].__setitem__(1, -1),
    "fewer groups": lambda arrays, about: arrays.update({name: arrays[name][:2] for name in ("kind_of", "lengths")}),
    "no groups": lambda arrays, about: arrays.update(
        {name: arrays[name][:0] for name in ("kind_of", "lengths", "num_chunks")}
    ),
    "fewer chunks": lambda arrays, about: arrays["num_chunks"].__setitem__((0, X), 0),
    "chunks of another array": lambda arrays, about: arrays["num_chunks"].__iadd__(np.array([1, 0, 0, -1])),
    "a file more than chunks": lambda arrays, about: (
        arrays["num_chunks"].__setitem__((2, X), 5),
        arrays.update(chunk_places=np.append(arrays["chunk_places"], range(5))),
    ),
    "more chunks than fit into memory": lambda arrays, about: (
        arrays["lengths"].__setitem__(1, 2**40),
        arrays.update(
            chunk_places=np.concatenate([[2, 3], *map(np.arange, arrays["num_chunks"][1, 1:]), [2, 3]])
        ),
    ),
    "less chunks than none": lambda arrays, about: arrays["num_chunks"].__iadd__(np.array([99, 0, 0, -99])),
    "chunks whose sum is right in 64 bits": lambda arrays, about: arrays["num_chunks"].__iadd__(
        np.array([[2**62] * 4, [0] * 4, [0] * 4])
    ),
    "a chunk that stands there twice": lambda arrays, about: arrays["chunk_places"].__setitem__(1, 2),
    "a chunk outside of the array": lambda arrays, about: arrays["chunk_places"].__setitem__(1, 99),
    "a chunk in front of the array": lambda arrays, about: arrays["chunk_places"].__setitem__(0, -1),
    "more places than chunks": lambda arrays, about: arrays.update(
        chunk_places=np.append(arrays["chunk_places"], 3)
    ),
    "fewer places than chunks": lambda arrays, about: arrays.update(chunk_places=arrays["chunk_places"][:-1]),
    "no arrays": lambda arrays, about: about["about"].update(paths=[]),
    "arrays that are none": lambda arrays, about: about["about"].update(paths=[3] * 4),
    "fewer kinds": lambda arrays, about: about["about"]["kinds"].pop(),
    "no kinds": lambda arrays, about: about["about"]["kinds"].__setitem__(X, []),
    "a kind that is none": lambda arrays, about: about["about"]["kinds"].__setitem__(X, [3]),
    "metadata of another name": lambda arrays, about: arrays["names"].__setitem__(1, ord("y")),
    **{
        f"path = {path!r}": of_kind(X, path=path) for path in ("y", "", "..", "./x", "/x", "x/", 3, None)
    },
    **{
        f"{name} = {value!r}": of_kind(X, **{name: value})
        for name, value in (
            ("metadata", None), ("metadata", {}), ("zarr_format", 4), ("shape", [-1]), ("shape", [6, 1]),
            ("shape", [2**61]), ("shape", 6), ("shape", ["6"]), ("chunks", [2]), ("chunks", [0, 3]), ("chunks", [2, 0]),
            ("chunks", [1, 3]), ("chunks", [2**70, 3]), ("chunks", [-2, 3]), ("chunks", "23"), ("dtype", "|O"),
            ("dtype", "<M9"), ("dtype", 3), ("fill_value", "x"), ("compressor", {"id": "none"}), ("compressor", 3),
            ("compressor", {"id": "pickle"}), ("filters", [{"id": "pickle", "protocol": 5}]), ("order", "K"),
            ("dimension_separator", ","),
        )
    },
    "groups of other fields": lambda arrays, about: (
        about["about"]["kinds"][X].append(json.loads(json.dumps(about["about"]["kinds"][X][0]).replace("<i2", "<f8"))),
        arrays["kind_of"].__setitem__((1, X), 1),
    ),
}  # fmt: skip


def test_arrays_of_zarr_that_cannot_be_are_refused(folder):
    paths, function = write_zarr(folder)
    path = function(paths).index(folder / "x.manifest")
    assert manifest.load(path).about["paths"] == ["/holes", "/name", "/plain", "/x"]
    assert wrong_answers(function, path, ZARR_LIES) == {}


@pytest.mark.parametrize("write", [write_zarr, write_zarr_in_shards])
def test_chunks_of_other_names_are_refused_where_zarr_would_give_the_fill_value(folder, write):
    paths, function = write(folder)
    path = function(paths, ["x"]).index(folder / "x.manifest")

    def lie(arrays, about):
        # The last chunk is named as that of a place that the array has not.
        arrays["names"][-1] = ord("9")

    rewrite(path, lie)
    source = function(path)

    assert source.read([0])["x"].tolist() == [list(range(6))]
    with pytest.raises(
        FormatError,
        match=r"2\.zarr, x is not as the manifest .*x\.manifest says(.|\n)*in the place of",
    ):
        source.read([len(source) - 1])


@pytest.mark.parametrize("write", [write_zarr, write_zarr_in_shards])
def test_a_chunk_that_was_written_after_its_manifest_is_refused(folder, write):
    paths, function = write(folder)
    path = function(paths, ["holes"]).index(folder / "x.manifest")
    assert function(path).read([7])["holes"].tolist() == [[5, 5]]
    name = "holes/0.1" if write is write_zarr else "holes/c/0/1"
    (folder / "1.zarr" / name).parent.mkdir(exist_ok=True)
    shutil.copy(folder / "0.zarr" / name, folder / "1.zarr" / name)

    with pytest.raises(ChangedFileError, match="it was not there when the manifest was written"):
        function(path).read([7])


def test_metadata_that_changed_are_refused_before_zarr_decodes_with_those_of_the_manifest(folder):
    paths, function = write_zarr(folder)
    path = function(paths).index(folder / "x.manifest")
    for name in ("x", "plain"):
        os.utime(folder / "1.zarr" / name / ".zarray", ns=(0, 0))

    source = function(path)

    assert source.read([0, 8], fields="plain")["plain"].tolist() == [
        [0, 1],
        [2, 3],
    ]  # none are needed where rows lie
    assert source.read([0], fields="x")["x"].tolist() == [list(range(6))]
    with pytest.raises(ChangedFileError, match=r"1\.zarr/x/\.zarray changed"):
        source.read([8], fields="x")


def test_arrays_of_a_manifest_are_named_as_those_of_folders(folder):
    paths, function = write_zarr_of_a_group(folder)
    path = function(paths).index(folder / "x.manifest")

    plain, listed = (gl.zarr(argument, ["y"], group="/train/") for argument in (paths, path))
    assert (listed.spec, listed.fingerprint(), values(listed)) == (
        plain.spec,
        plain.fingerprint(),
        values(plain),
    )
    assert listed.files.paths[:] == plain.files.paths
    assert listed._files.names[:] == plain._files.names
    assert gl.zarr(path, group="train").spec.names == ("y",)  # the listed ones of the group itself
    assert gl.zarr(path, group="train/y").spec.names == ("x",)  # an array without a group
    assert (
        gl.zarr(path, group="train/y").fingerprint()
        == gl.zarr(paths, group="train/y").fingerprint()
    )
    with pytest.raises(
        SpecError, match=r"lists no array /train/x(.|\n)*it lists \['/train/deep/x', '/train/y'\]"
    ):
        gl.zarr(path, ["x"], group="train")
    with pytest.raises(SpecError, match="lists no array in the group /"):
        gl.zarr(path)


def test_images_of_a_listed_group_are_images(folder):
    zarr = pytest.importorskip("zarr", "3", reason="gl.zarr needs zarr 3, and so Python 3.11")
    array = zarr.open_group(str(folder / "a.zarr"), mode="w", zarr_format=2).create_array(
        "image", shape=(3,), chunks=(2,), dtype=zarr.dtype.VariableLengthBytes(), compressors=None
    )
    array[...] = np.array([jpeg()] * 3, object)
    source = gl.zarr(folder / "a.zarr")
    again = gl.zarr(source.index(folder / "x.manifest"))

    assert again.spec == source.spec
    assert again.spec["image"].encoded
    assert again[2]["image"].tobytes() == jpeg()


def test_columns_of_dictionaries_of_a_stream_that_is_listed_are_refused(folder):
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"x": range(3), "kind": arrow.array(["a", "b", "a"]).dictionary_encode()})
    with arrow.ipc.new_stream(folder / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    path = gl.arrow(folder / "a.arrow", ["x"]).index(folder / "x.manifest")

    assert gl.arrow(path, ["x"]).read(range(3))["x"].tolist() == [0, 1, 2]
    with pytest.raises(SpecError, match=r"column 'kind' is dictionary(.|\n)*as Parquet"):
        gl.arrow(path)


@pytest.mark.parametrize(
    "change",
    [
        {"fields": 3}, {"fields": [1]}, {"heads": None}, {"heads": {"npy": 3}},
        {"arrays": 3}, {"arrays": {"npy": 3}}, {"arrays": {"npy": ["x", [2], True]}},
        {"arrays": {"npy": [npy(np.arange(2)).decode("latin-1"), [3], True]}},
        {"arrays": {"npy": [npy(np.arange(2)).decode("latin-1"), [-2], False]}},
    ],
)  # fmt: skip
def test_fields_of_a_tar_that_are_none_are_refused(folder, change):
    paths, function = write_tars(folder)
    path = function(paths).index(folder / "x.manifest")
    rewrite(path, lambda arrays, about: about["about"].update(change))

    with pytest.raises(FormatError, match="no manifest that can be used"):
        function(path)


def test_another_header_of_arrays_than_that_of_the_tar_is_an_error_of_the_record(folder):
    paths, function = write_tars(folder)
    path = function(paths).index(folder / "x.manifest")
    head = npy(np.full(2, 3, np.int32))[:128].decode("latin-1")
    rewrite(path, lambda arrays, about: about["about"]["arrays"].update(npy=[head, [2], True]))

    with pytest.raises(GpuloadError, match=r"another array than int32 \(2,\)|would end"):
        function(path)[0]


def test_a_manifest_of_tars_of_an_earlier_version_has_heads_alone(folder):
    paths, function = write_tars(folder)
    expected = function(paths)[1]
    path = function(paths).index(folder / "x.manifest")

    def change(arrays, about):
        kinds = about["about"].pop("arrays")
        about["about"]["heads"] = {name: head for name, (head, _, _) in kinds.items()}

    rewrite(path, change)

    assert function(path)[1]["npy"].tolist() == expected["npy"].tolist()


def test_a_field_of_archives_that_is_not_listed_is_refused(folder):
    paths, _ = write_npz(folder)
    path = gl.npz(paths, fields=["y"]).index(folder / "x.manifest")

    assert gl.npz(path).spec.names == ("y",)
    with pytest.raises(SpecError, match="lists no array 'x'"):
        gl.npz(path, fields=["x"])


def test_checks_and_reports_of_a_manifest_are_those_of_its_files(folder):
    paths, function = write_npy(folder)
    path = function(paths).index(folder / "x.manifest")
    assert [list(gl.check(path)), gl.check(path).num_records] == [[], 0]
    os.utime(folder / "1.npy", ns=(0, 0))

    [finding] = gl.check(path)

    assert finding.file == str(folder / "1.npy")
    assert "changed" in finding.cause


def test_options_that_are_none_are_refused(folder):
    paths, function = write_npy(folder)
    path = function(paths).index(folder / "x.manifest")
    for change in (
        lambda options: options.__setitem__("paths", 3),
        lambda options: options.__setitem__("rest", None),
        lambda options: options.__setitem__("values", []),
        lambda options: options["values"].__setitem__("dtype", {"eval": ["1"]}),
        lambda options: options["values"].__setitem__("dtype", {"dtype": "|O"}),
        lambda options: options["values"].__setitem__("none", 3),
    ):
        other = shutil.copy(path, folder / "other.manifest")
        rewrite(str(other), lambda arrays, about, change=change: change(about["options"]))
        with pytest.raises(FormatError, match="no manifest that can be used"):
            gl.open(other)


def test_a_byte_that_changed_is_found(folder):
    paths, function = write_npy(folder)
    path = Path(function(paths).index(folder / "x.manifest"))
    content = path.read_bytes()
    for place in (0, 70, len(content) // 2, len(content) - 200, len(content) - 1):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(FormatError, match="no manifest that can be used"):
            function(path)
    path.write_bytes(content[:-7])
    with pytest.raises(FormatError, match="no manifest that can be used"):
        function(path)
