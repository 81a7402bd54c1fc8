"""The files of TFRecords: where records are found, what is kept of it, and what is refused."""

from __future__ import annotations

import gzip
import logging
import os
import struct
import time
import zlib

import google_crc32c
import numpy as np
import pytest

import gpuload as gl
from gpuload import core
from gpuload.errors import (
    ChangedFileError,
    DirectoryError,
    FormatError,
    GpuloadError,
    MissingFileError,
    RecordError,
    SpecError,
)
from gpuload.formats.tfrecord import checksums, crc32c, framing
from gpuload.sources import fileindex
from gpuload.sources.reading import record_origin
from gpuload.storage import derivedfiles, keptfile
from gpuload.storage.files import Files, look_at
from tests.sources.tfrecordfiles import example, frame, masked, write

PAYLOADS = [b"a" * 20, b"", b"bcd", bytes(range(256)) * 3]
STARTS = [0, 36, 52, 71]


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def form(request, monkeypatch):
    """Walk, verify and read in the core, and in plain Python."""
    if request.param == "plain":
        monkeypatch.setattr(core, "native", None)
    elif core.native is None:
        pytest.skip(core.problem)
    return request.param


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return the cache folder."""
    monkeypatch.setenv(derivedfiles.FOLDER, str(tmp_path / "cache"))
    return tmp_path / "cache"


def payloads_of(source):
    return [bytes(value) for value in source.read(range(len(source)))["record"]]


def opened(path, **arguments):
    return gl.tfrecord(path, "bytes", **arguments)


class TestChecksums:
    def test_they_are_those_of_the_specification(self):
        # RFC 3720, appendix B.4: CRC32C of 32 zeros, 32 ones, 32 ascending bytes
        crcs = {bytes(32): 0x8A9136AA, b"\xff" * 32: 0x62A8AB43, bytes(range(32)): 0x46DD794E}
        for data, crc in crcs.items():
            expected = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
            assert masked(data) == expected
            pieces = np.frombuffer(b"x" + data, np.uint8), np.array([1]), np.array([33])
            assert checksums.of_pieces(*pieces).tolist() == [expected]

    def test_those_of_lengths_are_those_of_their_bytes(self):
        lengths = np.array([0, 1, 255, 256, 3150, 2**31, 2**40 + 12345, 2**63 - 1, -1], np.int64)

        assert checksums.of_lengths(lengths).tolist() == [
            masked(struct.pack("<q", n)) for n in lengths.tolist()
        ]

    @pytest.mark.parametrize("size", [0, 1, 3, 4, 63, 64, 65, 4607, 4608, 4609, 100_000])
    def test_they_are_those_of_another_library(self, size):
        raw = np.random.default_rng(size).integers(0, 256, size + 7, np.uint8)

        for before in (0, 1, 0x8A9136AA):
            assert crc32c.of_bytes(raw[7:], before) == google_crc32c.extend(
                before, raw[7:].tobytes()
            )

    def test_those_of_many_pieces_are_those_of_each(self):
        raw = np.random.default_rng(0).integers(0, 256, 10_000, np.uint8)
        begins = np.array([0, 5, 5, 5, 10, 17, 9999, 10_000, 64, 128])
        ends = np.array([10_000, 5, 6, 8, 14, 5000, 10_000, 10_000, 128, 193])

        sums = crc32c.of_pieces(raw, begins, ends)

        pieces = [raw[begin:end].tobytes() for begin, end in zip(begins, ends, strict=True)]
        assert sums.tolist() == [google_crc32c.value(piece) for piece in pieces]


class TestFinding:
    def test_records_are_found_and_told_by_file_and_byte(self, tmp_path):
        write(tmp_path / "a-1.tfrecord", PAYLOADS)
        write(tmp_path / "a-0.tfrecord", PAYLOADS[:1])

        source = opened(f"{tmp_path}/a-*.tfrecord")

        assert payloads_of(source) == PAYLOADS[:1] + PAYLOADS
        assert [source.where(number) for number in (0, 1, 4)] == [
            "a-0.tfrecord, record 0", "a-1.tfrecord, record 0", "a-1.tfrecord, record 3",
        ]  # fmt: skip
        paths = [str(tmp_path / f"a-{number}.tfrecord") for number in (0, 1, 1, 1, 1)]
        assert [record_origin(source, number) for number in range(5)] == list(
            zip(paths, [0, *STARTS], strict=True)
        )

    @pytest.mark.parametrize("piece_bytes", [16, 40, 100, 1 << 10])
    def test_pieces_of_any_size_are_walked_through(self, tmp_path, monkeypatch, piece_bytes):
        monkeypatch.setattr(framing, "PIECE_BYTES", piece_bytes)
        payloads = [bytes(n % 50) for n in range(100)] + PAYLOADS

        assert payloads_of(opened(write(tmp_path / "a.tfrecord", payloads))) == payloads

    def test_of_long_records_only_the_headers_are_read(self, tmp_path, monkeypatch):
        monkeypatch.setattr(framing, "SPARSE_BYTES", 300)
        monkeypatch.setattr(framing, "PIECE_BYTES", 1000)
        payloads = [bytes(5)] * 30 + [bytes(999)] * 30 + [bytes(5)] * 30
        path, read, sizes = write(tmp_path / "a.tfrecord", payloads), Files.read, []

        def counted(files, number, descriptor, memory, offset):
            sizes.append(len(memory))
            read(files, number, descriptor, memory, offset)

        with monkeypatch.context() as patch:
            patch.setattr(Files, "read", counted)
            source = opened(path)
        assert payloads_of(source) == payloads
        assert sizes.count(12) >= 29
        assert sum(sizes) < 6000

    def test_a_file_of_no_bytes_has_no_records(self, tmp_path):
        write(tmp_path / "a.tfrecord", [])

        source = opened(tmp_path / "a.tfrecord")

        assert len(source) == 0
        assert len(source.read([])["record"]) == 0

    def test_it_says_how_it_reads(self, tmp_path):
        path = write(tmp_path / "a.tfrecord", PAYLOADS)

        assert opened(path).describe().endswith("checksums verified")
        assert (
            opened(path, verify=False).describe().endswith("checksums not verified (verify=False)")
        )
        assert (
            " ".join(repr(opened(path)).split())
            == f"<gl.tfrecord: 4 records, record: uint8 (None,), {path}>"
        )


def flipped(data, place):
    return data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]


class TestDamage:
    whole = b"".join(map(frame, PAYLOADS))

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (whole[:-1], r"record 3, byte 71: it says that it has 768 bytes, and the file ends 771 bytes behind"),
            (whole[:75], r"record 3, byte 71: the file ends 4 bytes on, inside the record's header"),
            (whole[:60], r"record 2, byte 52: the file ends 8 bytes on, inside"),
            (whole + b"\0" * 100, r"record 4, byte 855: the length 0 has the checksum 0x\w+, the file says 0x00000000"),
            (whole[:30], r"record 0, byte 0: it says that it has 20 bytes, and the file ends 18 bytes behind"),
            (flipped(whole, 36), r"record 1, byte 36: the length 16 has the checksum 0x\w+, the file says"),
            (flipped(whole, 45), r"record 1, byte 36: the length 0 has the checksum"),
            (flipped(whole, 0), r"is no TFRecord file"),
            (b"abc", r"is no TFRecord file\n  cause:  it has 3 bytes"),
            (b"hello, this is a text\n" * 10, r"is no TFRecord file\n  cause:  it begins with 68 65 6c"),
            (whole[:36] + struct.pack("<QI", 2**63, masked(struct.pack("<Q", 2**63))) + bytes(50),
             rf"record 1, byte 36: it says that it has {2**63} bytes"),
            (whole[:36] + struct.pack("<QI", 2**63 - 1, masked(struct.pack("<Q", 2**63 - 1))) + bytes(50),
             rf"record 1, byte 36: it says that it has {2**63 - 1} bytes"),
            (whole[:36] + struct.pack("<QI", 2**64 - 17, masked(struct.pack("<Q", 2**64 - 17))) + bytes(50),
             rf"record 1, byte 36: it says that it has {2**64 - 17} bytes"),
        ],
    )  # fmt: skip
    def test_a_damaged_frame_is_refused_when_the_file_is_opened(self, tmp_path, data, message):
        (tmp_path / "b.tfrecord").write_bytes(data)

        with pytest.raises(FormatError, match=message) as caught:
            opened(tmp_path / "b.tfrecord", compression=None)

        assert str(caught.value).startswith(f"{tmp_path / 'b.tfrecord'}")
        assert caught.value.remedy

    def test_a_damaged_payload_is_an_error_of_its_record_alone(self, tmp_path):
        (tmp_path / "b.tfrecord").write_bytes(flipped(self.whole, 66))
        source = opened(tmp_path / "b.tfrecord")

        with pytest.raises(RecordError) as caught:
            source.read([3, 2, 0])

        message, right = masked(b"bcd"), masked(bytes([b"bcd"[0], b"bcd"[1], b"bcd"[2] ^ 0x10]))
        assert str(caught.value).startswith(
            f"b.tfrecord, record 2, byte 52: payload checksum is {right:#010x}, the file says {message:#010x}"
        )
        assert [bytes(value) for value in source.read([0, 1, 3])["record"]] == [
            PAYLOADS[0],
            b"",
            PAYLOADS[3],
        ]
        assert bytes(opened(tmp_path / "b.tfrecord", verify=False).read([2])["record"][0]) != b"bcd"

    def test_a_header_that_changed_since_the_index_was_made_is_noticed(self, tmp_path):
        path = write(tmp_path / "b.tfrecord", PAYLOADS)
        stamp = os.stat(path)
        for place, message in (
            (52, "its header says 19 bytes, the index 3"),
            (62, "length checksum is 0x"),
        ):
            source = opened(path)
            path.write_bytes(flipped(self.whole, place))
            os.utime(
                path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns)
            )  # a fault of the disk leaves the time as it is

            with pytest.raises(RecordError, match=rf"b\.tfrecord, record 2, byte 52: {message}"):
                source.read([2])
            path.write_bytes(self.whole)
            os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))

    def test_a_loader_names_the_record(self, tmp_path):
        payloads = b"".join(frame(example(x=number)) for number in range(20))
        (tmp_path / "b.tfrecord").write_bytes(flipped(payloads, 7 * len(payloads) // 20 + 14))
        loader = gl.Loader(gl.tfrecord(tmp_path / "b.tfrecord", {"x": "i8"}), 4, device="cpu")

        with pytest.raises(
            RecordError,
            match=rf"b\.tfrecord, record 7, byte {7 * len(payloads) // 20}: payload checksum",
        ):
            list(loader)

    def test_a_file_that_changes_while_it_is_read_is_refused(self, tmp_path):
        path = write(tmp_path / "b.tfrecord", PAYLOADS)
        source = opened(path)
        write(path, PAYLOADS[:2])

        with pytest.raises(ChangedFileError):
            source.read([0])

    @pytest.mark.parametrize(("name", "error"), [("gone", MissingFileError), (".", DirectoryError)])
    def test_what_is_no_file_is_refused(self, tmp_path, name, error):
        with pytest.raises(error):
            opened(tmp_path / name)

    @pytest.mark.parametrize(
        "arguments", [{"verify": 2}, {"compression": "zip"}, {"compression": []}, {"index": []}]
    )
    def test_wrong_arguments_are_refused(self, tmp_path, arguments):
        with pytest.raises(SpecError):
            opened(write(tmp_path / "b.tfrecord", PAYLOADS), **arguments)


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("verify", [True, False])
def test_a_damaged_copy_of_a_packed_file_is_an_error_that_names_the_copy_and_is_made_anew(
    tmp_path, cache, monkeypatch, verify
):
    monkeypatch.setattr(keptfile, "EAGER_BYTES", 0)  # as if the copy were large
    path = tmp_path / "a.tfrecord.gz"
    payloads = [bytes([number % 256]) * 1000 for number in range(400)]
    path.write_bytes(gzip.compress(b"".join(map(frame, payloads))))
    opened(path, verify=verify).close()
    [copy] = [cache / name for name in os.listdir(cache) if name.endswith("-a.tfrecord")]
    content = bytearray(copy.read_bytes())
    content[200 * 1016 + 2] ^= 1  # of a length
    copy.write_bytes(content)

    with pytest.raises(ChangedFileError, match=rf"{copy} is damaged(.|\n)*open the source again"):
        opened(path, verify=verify)

    assert payloads_of(opened(path, verify=verify)) == payloads


@pytest.mark.usefixtures("cache")
class TestSidecars:
    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch):
        monkeypatch.setattr(fileindex, "SMALL_BYTES", 0)

    @pytest.fixture
    def walks(self, monkeypatch):
        """Return a list that gets an entry for each walk through a file."""
        walk, walks = framing._walk, []

        def counted(piece, left, *extra, verify):
            walks.append(left)
            return walk(piece, left, *extra, verify=verify)

        monkeypatch.setattr(framing, "_walk", counted)
        return walks

    def test_a_file_is_walked_through_once(self, tmp_path, walks):
        path = write(tmp_path / "a.tfrecord", PAYLOADS)
        first = opened(path)
        assert len(walks) == 1

        again = opened(path)

        assert len(walks) == 1
        assert payloads_of(again) == payloads_of(first) == PAYLOADS
        assert again.fingerprint() == first.fingerprint()
        assert sorted(os.listdir(tmp_path)) == [".a.tfrecord.gpuload-index", "a.tfrecord"]
        assert len(opened(f"{tmp_path}/*")) == 4  # no wildcard means it

    def test_small_files_have_none(self, tmp_path, monkeypatch):
        monkeypatch.setattr(fileindex, "SMALL_BYTES", 1 << 20)

        opened(write(tmp_path / "a.tfrecord", PAYLOADS))

        assert os.listdir(tmp_path) == ["a.tfrecord"]

    def test_where_nothing_can_be_written_it_goes_to_the_cache_folder(
        self, tmp_path, cache, walks, monkeypatch
    ):
        path = write(tmp_path / "a.tfrecord", PAYLOADS)
        locked = derivedfiles._locked

        def refused(place, *extra):
            if os.path.dirname(place) == str(tmp_path):
                raise PermissionError(13, "Permission denied")
            return locked(place, *extra)

        monkeypatch.setattr(derivedfiles, "_locked", refused)
        for _ in range(2):
            assert payloads_of(opened(path)) == PAYLOADS
        assert len(walks) == 1
        assert sorted(os.listdir(tmp_path)) == ["a.tfrecord", "cache"]
        assert [name.endswith(".gpuload-index") for name in os.listdir(cache)] == [True]

    def test_where_nothing_can_be_written_at_all_the_log_says_so(
        self, tmp_path, walks, monkeypatch, caplog
    ):
        path = write(tmp_path / "a.tfrecord", PAYLOADS)

        def refused(place, *extra):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(derivedfiles, "_locked", refused)
        with caplog.at_level(logging.WARNING, "gpuload"):
            for _ in range(2):
                assert payloads_of(opened(path)) == PAYLOADS
        assert len(walks) == 2
        assert "records are looked for anew" in caplog.text

    def test_of_a_changed_file_another_one_is_made(self, tmp_path, walks):
        path = write(tmp_path / "a.tfrecord", PAYLOADS)
        opened(path)
        time.sleep(0.01)
        write(path, PAYLOADS[::-1])  # of the same size

        assert payloads_of(opened(path)) == PAYLOADS[::-1]
        assert len(walks) == 2

    def test_a_file_of_the_same_size_and_time_is_told_by_its_head(self, tmp_path, walks):
        path = write(tmp_path / "a.tfrecord", PAYLOADS)
        opened(path)
        stamp = os.stat(path)
        write(path, PAYLOADS[::-1])
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))

        assert payloads_of(opened(path)) == PAYLOADS[::-1]

    def test_a_damaged_one_is_made_anew(self, tmp_path, walks):
        path = write(tmp_path / "a.tfrecord", PAYLOADS)
        opened(path)
        index_path = tmp_path / ".a.tfrecord.gpuload-index"
        right = index_path.read_bytes()
        for number, wrong in enumerate(
            [
                right[:40],
                right[:-1],
                flipped(right, 70),
                flipped(right, 50),
                flipped(right, 3),
                flipped(right, -3),
            ]
        ):
            index_path.write_bytes(wrong)

            assert payloads_of(opened(path)) == PAYLOADS
            assert index_path.read_bytes() == right
            assert len(walks) == number + 2

    def test_one_that_lies_is_no_danger(self, tmp_path):
        path = write(tmp_path / "a.tfrecord", [bytes(10), bytes(20)])
        opened(path)
        index_path = tmp_path / ".a.tfrecord.gpuload-index"
        files, _ = look_at([str(path)], 0, lambda *_: None)
        for offsets, message in (
            ([0, 36, 62], "says 10 bytes, the index 20"),
            ([0, -8, 62], "at byte 0 to -8"),
            ([0, 2**62, 62], f"at byte 0 to {2**62}"),
        ):
            index_path.unlink()
            with keptfile.KeptWriter(str(index_path), fileindex.made_of(files, 0)) as writer:
                writer.write(fileindex.head_of("tfrecord") + np.array(offsets, "<i8").tobytes())
                writer.end()

            with pytest.raises(GpuloadError, match=message):
                opened(path).read([0, 1])

    @pytest.mark.parametrize("kind", ["empty", "text", "link"])
    def test_what_others_have_in_its_place_stays_and_it_goes_to_the_cache_folder(
        self, tmp_path, cache, walks, kind
    ):
        path, index_path = (
            write(tmp_path / "a.tfrecord", PAYLOADS),
            tmp_path / ".a.tfrecord.gpuload-index",
        )
        (tmp_path / "victim").write_text("precious")
        if kind == "link":
            index_path.symlink_to(tmp_path / "victim")
        else:
            index_path.write_text("mine" * (kind == "text"))

        for _ in range(2):
            assert payloads_of(opened(path)) == PAYLOADS

        assert len(walks) == 1
        assert index_path.read_text() == {"empty": "", "text": "mine", "link": "precious"}[kind]
        assert [name.endswith(".gpuload-index") for name in os.listdir(cache)] == [True]

    @pytest.mark.skipif(
        not hasattr(os, "geteuid") or os.geteuid(), reason="root alone can give files away"
    )
    def test_one_of_another_user_is_believed_if_he_owns_the_file_of_the_records_too(
        self, tmp_path, walks
    ):
        path, index_path = (
            write(tmp_path / "a.tfrecord", PAYLOADS),
            tmp_path / ".a.tfrecord.gpuload-index",
        )
        opened(path)

        os.chown(index_path, 65534, 65534)
        os.chown(path, 65534, 65534)
        opened(path)
        assert len(walks) == 1

        os.chown(path, 65533, 65534)
        opened(path)
        assert len(walks) == 2

    def test_who_may_read_the_file_may_read_it(self, tmp_path):
        for mode in (0o600, 0o644):
            path = write(tmp_path / f"{mode}.tfrecord", PAYLOADS)
            os.chmod(path, mode)
            opened(path)
            assert os.stat(tmp_path / f".{mode}.tfrecord.gpuload-index").st_mode & 0o777 == mode


class TestIndexesOfDali:
    def write_index(self, path, lines=None):
        index = path.with_suffix(".idx")
        sizes = [len(payload) + 16 for payload in PAYLOADS]
        index.write_text(
            lines or "".join(f"{start} {size}\n" for start, size in zip(STARTS, sizes, strict=True))
        )
        return index

    def test_one_is_used_if_it_is_named(self, tmp_path, monkeypatch):
        path = write(tmp_path / "a.tfrecord", PAYLOADS)
        monkeypatch.setattr(framing, "_walk", None)  # nobody walks

        assert payloads_of(opened(path, index=self.write_index(path))) == PAYLOADS

    @pytest.mark.parametrize(
        ("lines", "message"),
        [
            ("0 36\n36 16\n52 19\n", "is the index of another file"),
            ("0 36\n36 16\n52 19\n71 784\n855 16\n", "is the index of another file"),
            ("0 36\n37 16\n", r"line 2: 16 bytes at byte 37\n  cause: .*at byte 36"),
            ("0 15\n", "line 1: 15 bytes"),
            ("0 9223372036854775\n", "line 1"),
            ("0 99999999999999999999\n", "is no index"),
            ("0\n", "is no index"),
            ("0 -36\n", "is no index"),
            ("a b\n", "is no index"),
            ("0 1\n" * 3000, "is no index"),
        ],
    )
    def test_a_wrong_one_is_refused(self, tmp_path, lines, message):
        path = write(tmp_path / "a.tfrecord", PAYLOADS)

        with pytest.raises(FormatError, match=message):
            opened(path, index=self.write_index(path, lines))

    def test_each_file_has_one(self, tmp_path):
        path = write(tmp_path / "a.tfrecord", PAYLOADS)
        index = self.write_index(path)

        with pytest.raises(SpecError, match="1 index files for 2"):
            opened([path, write(tmp_path / "b.tfrecord", PAYLOADS)], index=index)


@pytest.mark.usefixtures("cache")
class TestCompression:
    whole = b"".join(map(frame, PAYLOADS))

    @pytest.mark.parametrize(
        "packed_bytes", [gzip.compress, zlib.compress, lambda data: zlib.compress(data, 0), bytes]
    )
    def test_it_is_known_by_the_first_bytes(self, tmp_path, packed_bytes):
        (tmp_path / "a").write_bytes(packed_bytes(self.whole))
        write(tmp_path / "b", PAYLOADS[:2])

        source = opened([tmp_path / "a", tmp_path / "b"])

        assert payloads_of(source) == PAYLOADS + PAYLOADS[:2]
        assert source.where(1) == "a, record 1"
        assert record_origin(source, 1) == (str(tmp_path / "a"), 36)

    def test_a_record_whose_length_looks_like_gzip_is_no_gzip(self, tmp_path):
        payloads = [bytes(0x088B1F)]
        path = write(tmp_path / "a.tfrecord", payloads)
        assert path.read_bytes().startswith(b"\x1f\x8b\x08\0")

        assert payloads_of(opened(path)) == payloads

    def test_errors_name_the_users_own_file(self, tmp_path):
        broken = flipped(self.whole, 66)
        (tmp_path / "a.gz").write_bytes(gzip.compress(broken))
        (tmp_path / "b.gz").write_bytes(gzip.compress(self.whole[:-1]))

        with pytest.raises(RecordError, match=r"^a\.gz, record 2, byte 52: payload checksum"):
            payloads_of(opened(tmp_path / "a.gz"))
        with pytest.raises(FormatError, match=rf"^{tmp_path}/b\.gz, record 3, byte 71"):
            opened(tmp_path / "b.gz")

    def test_what_is_named_must_be_so(self, tmp_path):
        path = write(tmp_path / "a.tfrecord", PAYLOADS)
        for compression in ("gzip", "zlib"):
            with pytest.raises(FormatError):
                opened(path, compression=compression)
        (tmp_path / "a.gz").write_bytes(gzip.compress(self.whole))
        with pytest.raises(FormatError, match="compression='gzip'"):
            opened(tmp_path / "a.gz", compression=None)
        (tmp_path / "cut.gz").write_bytes(gzip.compress(self.whole)[:-9])
        with pytest.raises(GpuloadError, match=r"cut\.gz"):
            opened(tmp_path / "cut.gz")
