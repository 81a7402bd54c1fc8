"""IDX files give what struct and numpy.frombuffer read of them, packed with gzip or not."""

from __future__ import annotations

import gzip
import pickle
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gpuload as gl
from gpuload.errors import FormatError, MissingFileError, SpecError
from gpuload.formats.idx import idx
from gpuload.spec import LARGEST_NDIM
from gpuload.testing.sources import SourceContract, assert_same

GOLDEN = Path(__file__).parents[1] / "golden" / "idx"
SHARED = Path(__file__).parents[3] / "shared" / "data" / "fixed"
TYPES = {"u1": 0x08, "i1": 0x09, ">i2": 0x0B, ">i4": 0x0C, ">f4": 0x0D, ">f8": 0x0E}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("GPULOAD_CACHE", str(folder))
    return folder


def raw(array, dtype):
    """Return the bytes of a file, as the page of the format says."""
    lengths = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes((0, 0, TYPES[dtype], array.ndim)) + lengths + array.astype(dtype).tobytes()


def write(path, array, dtype="u1"):
    content = raw(np.asarray(array), dtype)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def read(path):
    """Return what a file holds, by other means than ours."""
    content = gzip.decompress(path.read_bytes()) if path.name.endswith(".gz") else path.read_bytes()
    dtype = np.dtype({number: name for name, number in TYPES.items()}[content[2]])
    shape = struct.unpack_from(f">{content[3]}I", content, 4)
    return (
        np.frombuffer(content, dtype, offset=4 + 4 * len(shape))
        .reshape(shape)
        .astype(dtype.newbyteorder("="))
    )


def images(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 5, 4), np.uint8)


@pytest.mark.usefixtures("reader")
class TestImagesAndLabels(SourceContract):
    def open(self, folder):
        write(folder / "images.gz", images(9))
        write(folder / "labels", np.arange(9))
        return idx(image=folder / "images.gz", label=folder / "labels")

    def open_other(self, folder):
        write(folder / "images.gz", images(9, seed=1))
        write(folder / "labels", np.arange(9))
        return idx(image=folder / "images.gz", label=folder / "labels")

    def expected(self):
        return {"image": images(9), "label": np.arange(9, dtype=np.uint8)}


@pytest.mark.usefixtures("reader")
class TestOneFieldOfSeveralFiles(SourceContract):
    array = np.linspace(-9, 9, 60, dtype=np.float64).reshape(10, 3, 2)

    def open(self, folder):
        write(folder / "0.idx", self.array[:4], ">f8")
        write(folder / "1.idx.gz", self.array[4:4], ">f8")
        write(folder / "2.idx.gz", self.array[4:], ">f8")
        return idx(f"{folder}/*")

    def open_other(self, folder):
        write(folder / "0.idx", self.array, ">f4")
        return idx(f"{folder}/*")

    def expected(self):
        return {"x": self.array}


def test_files_of_other_programs_give_what_struct_reads(reader):
    paths = sorted(path for path in GOLDEN.rglob("*") if path.is_file() and path.suffix != ".md")
    assert len(paths) == 8
    for path in paths:
        array = read(path)

        assert_same(idx(path).read(range(len(array)))["x"], array)


def test_mnist_itself_gives_what_struct_reads():
    if not SHARED.is_dir():
        pytest.skip("the shared files are not beside the checkout")
    names = {"image": "t10k-images-idx3-ubyte.gz", "label": "t10k-labels-idx1-ubyte.gz"}
    source = idx(**{field: SHARED / "mnist" / name for field, name in names.items()})

    values = source.read(range(10_000))

    for field, name in names.items():
        assert_same(values[field], read(SHARED / "mnist" / name))
    for path in SHARED.glob("GAN-Data-Aug/*ubyte"):
        assert_same(idx(path).read(range(len(read(path))))["x"], read(path))


@given(
    dtype=st.sampled_from(sorted(TYPES)),
    shape=hnp.array_shapes(min_dims=1, max_dims=6, min_side=0, max_side=4),
    packed=st.booleans(),
    data=st.data(),
)
def test_arrays_of_any_type_and_rank_come_back(tmp_path_factory, dtype, shape, packed, data):
    folder = tmp_path_factory.mktemp("idx")
    array = data.draw(hnp.arrays(np.dtype(dtype).newbyteorder("="), shape))
    path = write(folder / ("a.gz" if packed else "a"), array, dtype)

    source = idx(path)
    indices = data.draw(st.lists(st.integers(0, shape[0] - 1), max_size=9)) if shape[0] else []

    assert_same(source.read(indices)["x"], read(path)[np.array(indices, np.int64)])
    shutil.rmtree(folder)


def test_a_loader_shuffles_resumes_and_gives_what_struct_reads(tmp_path):
    path = GOLDEN / "JPG-PNG-to-MNIST-NN-Format"
    source = idx(
        image=path / "train-images-idx3-ubyte.gz", label=path / "train-labels-idx1-ubyte.gz"
    )
    expected = {
        field: read(path / f"train-{field}s-idx{3 if field == 'image' else 1}-ubyte.gz")
        for field in source.spec.names
    }
    loader = gl.Loader(source, batch_size=3, shuffle=True, seed=1, device="cpu")
    values = []
    for batch in loader:
        for field, array in expected.items():
            assert_same(batch[field], array[batch.records])
        values += batch.records.tolist()
        if len(values) == 6:
            state = loader.state_dict()
            break
    loader.close()
    with gl.Loader(
        pickle.loads(pickle.dumps(source)), batch_size=3, shuffle=True, seed=1, device="cpu"
    ) as again:
        again.load_state_dict(state)
        for batch in again:
            values += batch.records.tolist()

    assert sorted(values) == list(range(10))


def test_a_packed_file_is_named_as_it_is_called_and_unpacked_once(tmp_path, cache):
    path = write(tmp_path / "train-images.gz", images(3))
    source, again = idx(path), idx(path)

    assert source.where(2) == "train-images.gz, record 2"
    assert str(path) in repr(source)
    text = " ".join(repr(idx(image=path, other=path)).split())
    assert text.startswith("<gl.idx: 3 records, image: uint8 (5, 4), other:")
    assert again.fingerprint() == source.fingerprint()
    assert len(list(cache.iterdir())) == 1


def test_the_fingerprint_does_not_depend_on_where_the_cache_is(tmp_path, monkeypatch):
    path = write(tmp_path / "a.gz", images(3))
    before = idx(path).fingerprint()
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "elsewhere"))

    assert idx(path).fingerprint() == before


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "the file is empty"),
        (b"\0\0\x08", "3 bytes, 00 00 08"),
        (b"\x93NUMPY", "begins with 93 4e 55 4d"),
        (b"\0\0\x0a\1" + bytes(4), r"type of its elements is 0a; there are 08 \(u1\), 09"),
        (b"\0\0\0\0", "type of its elements is 00"),
        (b"\0\0\x08\0\1", "no axes"),
        (b"\0\0\x08\3" + bytes(8), "header of 3 axes does not fit into its 12 bytes"),
        (b"\0\0\x08\xff" + bytes(8), "header of 255 axes"),
        (b"\0\0\x08\1\0\0\0\3ab", "3 elements of 1 bytes.* it has 11 bytes, and it has 10$"),
        (
            b"\0\0\x0d\2\0\0\0\2\0\0\0\1abcdefghi",
            "2 x 1 elements of 4 bytes.* it has 20 bytes, and it has 21$",
        ),
        (b"\0\0\x08\4" + b"\xff" * 16, f"it has {20 + (2**32 - 1) ** 4} bytes, and it has 20$"),
        (
            b"\0\0\x0e\2" + b"\x80\0\0\0" * 2,
            f"it has {12 + 8 * 2**62} bytes, and it has 12$",
        ),  # 0 in 64 bits
    ],
)
@pytest.mark.parametrize("name", ["a.idx", "a.gz"])
def test_what_is_no_idx_file_is_refused_with_its_name(tmp_path, content, cause, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name == "a.gz" else content)
    cause = cause.replace("$", " unpacked$") if name == "a.gz" else cause

    with pytest.raises(FormatError, match=name.replace(".", r"\.")) as caught:
        idx(path)

    assert caught.match(rf"(?m){cause}")


def test_axes_without_length_claim_no_memory(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"\0\0\x08\4" + bytes(4) + b"\xff" * 12)

    with pytest.raises(SpecError, match="in a record"):
        idx(path)
    path.write_bytes(b"\0\0\x08\2\xff\xff\xff\xff" + bytes(4))
    assert len(idx(path)) == 2**32 - 1
    assert idx(path)[2**32 - 2]["x"].shape == (0,)


def test_more_axes_than_numpy_has_are_refused(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(
        b"\0\0\x08" + bytes([LARGEST_NDIM + 1]) + b"\0\0\0\1" * (LARGEST_NDIM + 1) + b"a"
    )

    with pytest.raises(SpecError, match=f"a: field 'x' has {LARGEST_NDIM} axes"):
        idx(path)


def test_damaged_gzip_is_refused_with_its_name(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(raw(images(3), "u1"))[:-4])

    with pytest.raises(FormatError, match=r"a\.gz ends at byte"):
        idx(path)


def test_files_of_different_records_in_one_field_are_refused_naming_both(tmp_path):
    write(tmp_path / "a", images(3))
    for second, dtype in (
        (np.zeros((3, 5, 4)), "i1"),
        (np.zeros((3, 4, 5)), "u1"),
        (np.zeros(3), "u1"),
    ):
        write(tmp_path / "b", second, dtype)
        with pytest.raises(SpecError, match=r"b has records of .*, .*a of uint8 \(5, 4\)"):
            idx(f"{tmp_path}/*")


def test_fields_of_different_lengths_are_refused_naming_both(tmp_path):
    write(tmp_path / "images", images(3))
    write(tmp_path / "labels", np.arange(4))

    with pytest.raises(
        SpecError, match=r"label has 4 records in .*labels, image has 3 in .*images"
    ):
        idx(image=tmp_path / "images", label=tmp_path / "labels")


def test_shards_of_different_lengths_are_refused_also_if_their_sum_is_the_same(tmp_path):
    for name, count in (("image-0", 3), ("image-1", 5), ("label-0", 5), ("label-1", 3)):
        write(tmp_path / name, np.zeros(count))

    with pytest.raises(
        SpecError, match=r"label has 5 records in .*label-0, image has 3 in .*image-0"
    ):
        idx(image=f"{tmp_path}/image-*", label=f"{tmp_path}/label-*")


def test_a_call_without_files_or_with_two_fields_of_one_name_is_refused(tmp_path):
    with pytest.raises(SpecError, match=r"gl\.idx\(\) without files"):
        idx()
    with pytest.raises(SpecError, match="two fields 'x'"):
        idx("a", x="b")
    with pytest.raises(SpecError, match="name of a field"):
        idx(**{"": "a"})
    with pytest.raises(MissingFileError):
        idx(image=tmp_path / "gone")


def test_a_field_may_be_called_as_the_argument_is(tmp_path):
    path = write(tmp_path / "a", images(3))

    source = pickle.loads(pickle.dumps(idx(path, paths=path)))

    assert source.spec.names == ("x", "paths")


def test_files_of_two_fields_in_another_order_are_refused(tmp_path):
    for number in (1, 2, 10):
        (tmp_path / f"{number}-images-idx3-ubyte").write_bytes(raw(np.zeros((3, 2, 2)), "u1"))
        (tmp_path / f"{number}-labels").write_bytes(raw(np.zeros(3), "u1"))
    images = [tmp_path / f"{number}-images-idx3-ubyte" for number in (1, 2, 10)]
    labels = [tmp_path / f"{number}-labels" for number in (1, 2, 10)]

    assert len(idx(image=images, label=labels)) == 9
    with pytest.raises(
        SpecError, match=r"gl\.idx: .*2-images-idx3-ubyte and .*10-labels stand at one place"
    ):
        idx(image=images, label=[labels[0], labels[2], labels[1]])


def test_the_index_of_several_fields_is_one_of_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("image", "label"):
        (tmp_path / name).write_bytes(bytes([0, 0, 8, 1]) + struct.pack(">I", 3) + bytes([1, 2, 3]))
    source = gl.idx(image="image", label="label")

    with pytest.raises(SpecError) as caught:
        source.index("both.manifest")

    parts, _, last = (
        caught.value.remedy.removeprefix("index each field, ")
        .removesuffix(" opens them")
        .partition("; then ")
    )
    for part in parts.split("; "):
        field = part.partition("=")[0].removeprefix("gl.idx(")
        eval(part.replace("...", repr(field)), {"gl": gl})
    values = eval(last, {"gl": gl}).read(range(3))
    assert {name: values[name].tolist() for name in values} == {
        "image": [1, 2, 3],
        "label": [1, 2, 3],
    }
