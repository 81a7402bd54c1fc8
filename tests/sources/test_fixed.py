"""Fixed-length records."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from gpuload.errors import (
    ChangedFileError,
    DirectoryError,
    FormatError,
    MissingFileError,
    SpecError,
)
from gpuload.formats.fixed.source import fixed
from gpuload.testing.sources import SourceContract, assert_same

CIFAR10 = [("label", "u1"), ("image", "u1", (3, 32, 32))]


def random_bytes(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8).tobytes()


@pytest.mark.usefixtures("reader")
class TestCifar10(SourceContract):
    num_records = (12, 0, 3)

    def open(self, folder):
        for number, count in enumerate(self.num_records):
            (folder / f"data_batch_{number}.bin").write_bytes(random_bytes(count * 3073, number))
        return fixed(f"{folder}/data_batch_*.bin", CIFAR10)

    def open_other(self, folder):
        (folder / "data_batch_0.bin").write_bytes(random_bytes(12 * 3073))
        return fixed(folder / "data_batch_0.bin", CIFAR10)

    def expected(self):
        raw = b"".join(
            random_bytes(count * 3073, number) for number, count in enumerate(self.num_records)
        )
        records = np.frombuffer(raw, np.uint8).reshape(-1, 3073)
        return {"label": records[:, 0], "image": records[:, 1:].reshape(-1, 3, 32, 32)}


@pytest.mark.usefixtures("reader")
class TestBigEndianFieldsBetweenHeaderAndFooter(SourceContract):
    dtype = np.dtype(
        [("id", ">u4"), ("value", ">f8", (2,)), ("when", ">M8[s]"), ("name", "S5"), ("flag", "?")]
    )

    def records(self):
        records = np.zeros(10, self.dtype)
        records["id"] = np.arange(10) + 2**31
        records["value"] = np.linspace(-1, 1, 20).reshape(10, 2)
        records["when"] = np.arange(10).astype("M8[s]")
        records["name"] = [b"n%d" % number for number in range(10)]
        records["flag"][::2] = True
        return records

    def open(self, folder):
        for number, part in enumerate((self.records()[:9], self.records()[9:])):
            (folder / f"{number}.dat").write_bytes(b"head er" + part.tobytes() + b"tail")
        return fixed(f"{folder}/*.dat", self.dtype, header_bytes=7, footer_bytes=4)

    def open_other(self, folder):
        (folder / "0.dat").write_bytes(self.records().tobytes())
        return fixed(folder / "0.dat", [("all", "u1", (self.dtype.itemsize,))])

    def expected(self):
        return {
            name: self.records()[name].astype(self.dtype[name].base.newbyteorder("="))
            for name in self.dtype.names
        }


@pytest.mark.parametrize(
    ("dtype", "shape", "expected"),
    [
        ("<f4", (), np.arange(12, dtype="<f4")),
        (("<i2", (2, 3)), (2, 3), np.arange(12, dtype="<f4").view("<i2").reshape(4, 2, 3)),
        (np.uint8, (), np.arange(12, dtype="<f4").view(np.uint8)),
    ],
)
def test_a_plain_dtype_is_one_field(tmp_path, dtype, shape, expected, reader):
    path = tmp_path / "a.bin"
    path.write_bytes(np.arange(12, dtype="<f4").tobytes())

    source = fixed(path, dtype, field="signal")

    assert source.spec["signal"].shape == shape
    assert_same(source.read(range(len(source)))["signal"], expected)


def test_nested_fields_and_arrays_of_structures_are_named_by_their_path(tmp_path, reader):
    point = np.dtype([("x", ">i2"), ("y", "<i2")])
    dtype = np.dtype(
        [("box", [("low", point), ("high", point)]), ("path", point, (3,)), ("skip", "V2")]
    )
    records = np.frombuffer(random_bytes(7 * dtype.itemsize), dtype)
    (tmp_path / "a.bin").write_bytes(records.tobytes())

    fields = fixed(tmp_path / "a.bin", dtype).read([6, 0])

    assert list(fields) == [
        "box.low.x",
        "box.low.y",
        "box.high.x",
        "box.high.y",
        "path.x",
        "path.y",
        "skip",
    ]
    np.testing.assert_array_equal(fields["box.high.x"], records["box"]["high"]["x"][[6, 0]])
    np.testing.assert_array_equal(fields["path.y"], records["path"]["y"][[6, 0]])
    assert fields["path.x"].dtype.isnative
    assert fields["path.x"].shape == (2, 3)


def test_a_body_that_is_no_multiple_of_the_record_is_refused_when_opened(tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(3073))
    (tmp_path / "b.bin").write_bytes(bytes(3100))

    with pytest.raises(
        FormatError, match=r"b\.bin has body length 3098 bytes, which is not an exact multiple"
    ) as caught:
        fixed(f"{tmp_path}/b.bin", CIFAR10, header_bytes=2)

    assert "record length (3073 bytes)" in str(caught.value)
    assert "25 bytes are left over" in str(caught.value)


def test_a_file_shorter_than_header_and_footer_is_refused(tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(10))

    with pytest.raises(
        FormatError, match=r"a\.bin has 10 bytes(.|\n)*header and footer alone are 12"
    ):
        fixed(tmp_path / "a.bin", "u1", header_bytes=8, footer_bytes=4)


@pytest.mark.parametrize(
    "dtype",
    [
        "O", [("a", "u1"), ("b", "O")], "S0", "V0", [], "no dtype", 7, [("a",)], [("a", "u1"), ("a", "u1")], None,
        [("a", "u1"), ("b", None)], [("a", [("b", None)])], (None, (2,)), {"names": ["a"], "formats": [None]},
    ],
)  # fmt: skip
def test_a_dtype_that_is_no_layout_is_refused(tmp_path, dtype):
    (tmp_path / "a.bin").write_bytes(bytes(16))

    with pytest.raises(SpecError):
        fixed(tmp_path / "a.bin", dtype)


@pytest.mark.parametrize("header_bytes", [-1, 1.5, True, "2", None])
def test_header_bytes_is_a_number_of_bytes(tmp_path, header_bytes):
    (tmp_path / "a.bin").write_bytes(bytes(16))

    with pytest.raises(SpecError, match="header_bytes"):
        fixed(tmp_path / "a.bin", "u1", header_bytes=header_bytes)


def test_missing_files_and_directories_are_errors_of_their_own(tmp_path):
    with pytest.raises(MissingFileError):
        fixed(tmp_path / "lost.bin", "u1")
    with pytest.raises(DirectoryError):
        fixed(tmp_path, "u1")


def test_records_longer_than_a_page_are_read_whole(tmp_path, reader):
    records = np.frombuffer(random_bytes(10 * 100_003), np.uint8).reshape(10, -1)
    (tmp_path / "a.bin").write_bytes(records.tobytes())

    fields = fixed(tmp_path / "a.bin", ("u1", (100_003,))).read([9, 3, 4, 5, 0])

    assert_same(fields["x"], records[[9, 3, 4, 5, 0]])


def test_read_only_indices_are_taken(tmp_path, reader):
    (tmp_path / "a.bin").write_bytes(bytes(range(100)))
    indices = np.arange(100)[::-3]
    indices.flags.writeable = False

    assert_same(fixed(tmp_path / "a.bin", "u1").read(indices)["x"], indices.astype(np.uint8))


@pytest.mark.parametrize("bytes_around", [2**31, 2**62, 2**63, 2**70])
@pytest.mark.parametrize("name", ["header_bytes", "footer_bytes"])
def test_a_header_longer_than_any_file_is_refused(tmp_path, name, bytes_around):
    (tmp_path / "a.bin").write_bytes(bytes(10))

    with pytest.raises(
        FormatError, match=rf"a\.bin has 10 bytes(.|\n)*header and footer alone are {bytes_around}"
    ):
        fixed(tmp_path / "a.bin", "u1", **{name: bytes_around})


def test_a_list_of_files_keeps_its_order_and_a_wildcard_is_sorted(tmp_path):
    for name in "bac":
        (tmp_path / f"{name}.bin").write_bytes(name.encode())

    entries = fixed([tmp_path / "c.bin", tmp_path / "a.bin", tmp_path / "b.bin"], "S1")

    assert entries.read(range(3))["x"].tolist() == [b"c", b"a", b"b"]
    assert fixed(f"{tmp_path}/*.bin", "S1").read(range(3))["x"].tolist() == [b"a", b"b", b"c"]
    assert pickle.loads(pickle.dumps(entries)).read(range(3))["x"].tolist() == [b"c", b"a", b"b"]


@pytest.mark.parametrize(
    "dtype", [[("a", "S0"), ("b", "u1")], [("a", "U0", (3,)), ("b", "u1")], ("V0", (4,))]
)
def test_fields_of_elements_without_bytes_are_refused(tmp_path, dtype):
    (tmp_path / "a.bin").write_bytes(bytes(16))

    with pytest.raises(SpecError):
        fixed(tmp_path / "a.bin", dtype)


def test_a_pickled_source_of_files_that_changed_is_refused(tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(8))
    pickled = pickle.dumps(fixed(tmp_path / "a.bin", "u2"))
    (tmp_path / "a.bin").write_bytes(bytes(10))

    with pytest.raises(ChangedFileError, match=r"the files of gl\.fixed are others"):
        pickle.loads(pickled)
