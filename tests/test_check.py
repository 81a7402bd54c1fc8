"""Check: every damaged record of every kind of file is listed, with its place, and nothing that is
sound."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

import gpuload as gl
from gpuload.check import CHUNK_RECORDS, Findings
from gpuload.cli import main
from gpuload.errors import ClosedError, MissingFileError, SpecError
from gpuload.images import decode, head
from tests import imagefiles
from tests.attack.mutate import sealed_png


def broken_png(height=20, width=30):
    """Return a PNG whose head and checksums are right, and whose pixels are not."""
    data = imagefiles.png(height, width, imagefiles.RGB, 8)
    place = data.index(b"IDAT") + 30
    return sealed_png(data[:place] + b"\x55" * 20 + data[place + 20 :])


@pytest.fixture
def photos(tmp_path):
    """A folder of images, of which some are damaged."""
    folder = tmp_path / "photos"
    whole = imagefiles.jpeg(24, 30)
    files = {
        "cat/0.jpg": whole,
        "cat/1.jpg": whole[: len(whole) // 2],
        "cat/2.png": imagefiles.png(20, 30, imagefiles.RGB, 8),
        "cat/3.png": broken_png(),
        "dog/0.jpg": imagefiles.jpeg(9, 9),
        "dog/1.png": imagefiles.png(20, 30, imagefiles.RGB, 8)[:-20],
    }
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def test_what_a_check_shows_of_itself_says_how_it_is_read(photos):
    findings = gl.check(photos)
    assert repr(findings).startswith(
        "<gl.check: 0 records read so far; each step of a loop over it, or list(...)"
    )

    assert len(list(findings)) == 3

    assert "6 records read so far" in repr(findings)


def test_damaged_images_are_found_by_number_file_and_cause(photos):
    findings = gl.check(photos, num_threads=2)
    entries = {finding.where: finding for finding in findings}
    assert set(entries) == {"cat/1.jpg", "cat/3.png", "dog/1.png"}
    assert [entries[place].record for place in sorted(entries)] == [1, 3, 5]
    assert (
        entries["cat/1.jpg"].cause == "the file ends before the end-of-image marker: it was cut off"
    )
    assert entries["cat/3.png"].cause.startswith("its pixels cannot be decoded")
    assert "IEND" in entries["dog/1.png"].cause
    assert entries["dog/1.png"].file == str(photos / "dog" / "1.png")
    assert (findings.num_records, findings.num_unopened) == (6, 0)


def test_a_jpeg_whose_data_end_early_is_found_also_where_only_a_region_shows_it(tmp_path):
    def is_sound(data, *region):
        try:
            decode.decode(data, head.read(data), "RGB", *region)
        except (head.HeadError, decode.ImageError):
            return False
        return True

    file = io.BytesIO()
    Image.fromarray(imagefiles.pixels(8, 8)).resize((96, 96)).save(file, "JPEG", quality=90)
    whole = np.frombuffer(file.getvalue(), np.uint8)
    places = range(len(whole) // 3, len(whole) - 60, 7)
    broken = [
        np.delete(whole, slice(place, place + 30)) for place in places
    ]  # out of the data of the pixels
    hidden = [
        data
        for data in broken
        if is_sound(data) and not all(is_sound(data, (top, 0, 16, 16)) for top in range(0, 80, 16))
    ]
    assert hidden
    for number, data in enumerate(hidden):
        (tmp_path / f"{number:04}.jpg").write_bytes(data.tobytes())
    assert {finding.record for finding in gl.check(tmp_path)} == set(range(len(hidden)))


def test_it_goes_on_behind_files_that_cannot_be_opened(photos):
    (photos / "cat" / "4.jpg").write_bytes(b"")
    (photos / "dog" / "2.png").symlink_to(photos / "nowhere")
    findings = gl.check(photos)
    entries = {finding.file.removeprefix(f"{photos}/"): finding for finding in findings}
    assert set(entries) == {"cat/1.jpg", "cat/3.png", "cat/4.jpg", "dog/1.png", "dog/2.png"}
    assert entries["cat/4.jpg"].cause == "is empty; it has 0 bytes"
    assert entries["cat/1.jpg"].where == str(photos / "cat" / "1.jpg")
    assert {finding.record for finding in entries.values()} == {None}
    assert (findings.num_records, findings.num_unopened) == (6, 2)


def test_a_source_is_checked_as_well_and_its_numbers_are_told(photos):
    source = gl.images(photos)[::-1]
    assert sorted((finding.record, finding.where) for finding in gl.check(source)) == [
        (0, "dog/1.png"), (2, "cat/3.png"), (4, "cat/1.jpg")
    ]  # fmt: skip
    assert list(gl.check(source.select([0, 2, 4]))) != []
    assert list(gl.check(source.select([1, 3, 5]))) == []


def test_texts_that_are_none_are_found_among_many_rows(tmp_path):
    bad = [0, 17, CHUNK_RECORDS - 1, CHUNK_RECORDS, 3 * CHUNK_RECORDS - 1]
    table = np.full(3 * CHUNK_RECORDS, "abc")
    for number in bad:
        table[number : number + 1].view(np.uint32)[0] = 0x110000
    np.save(tmp_path / "a.npy", table)
    findings = list(gl.check(str(tmp_path / "*.npy"), num_threads=2))
    assert [finding.record for finding in findings] == bad
    assert [finding.offset_bytes for finding in findings] == [128 + 12 * number for number in bad]
    assert str(findings[1]).startswith(
        "a.npy, record 17, byte 332: its text holds a number that is no Unicode character"
    )


def test_files_of_several_formats_are_checked_one_by_one(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((5, 2)))
    (tmp_path / "b.png").write_bytes(broken_png())
    (tmp_path / "c.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-3])
    findings = gl.check([tmp_path / name for name in ("a.npy", "b.png", "c.npy")])
    assert [finding.file for finding in findings] == [
        str(tmp_path / "b.png"),
        str(tmp_path / "c.npy"),
    ]
    assert (findings.num_records, findings.num_unopened) == (6, 1)


def test_arrays_that_have_no_rows_in_common_are_sound(tmp_path):
    np.savez(tmp_path / "a.npz", data=np.zeros(5), pointers=np.zeros(3))
    np.save(tmp_path / "b.npy", np.float32(3))
    findings = gl.check([tmp_path / "a.npz", tmp_path / "b.npy"])
    assert list(findings) == []
    assert findings.num_records == 2


def test_images_in_examples_are_decoded_and_other_features_need_not_be_there(tmp_path):

    def with_image(data):
        feature = _message(1, _message(1, data))
        return _message(1, _message(1, _message(1, b"image") + _message(2, feature)))

    sound, broken = imagefiles.png(20, 30, imagefiles.RGB, 8), broken_png()
    payloads = [with_image(broken if number in (4, 77) else sound) for number in range(80)] + [
        example(3)
    ]
    (tmp_path / "a.tfrecord").write_bytes(b"".join(map(framed, payloads)))
    findings = gl.check(tmp_path / "a.tfrecord")
    assert [(finding.record, finding.cause[:29]) for finding in findings] == [
        (4, "its pixels cannot be decoded:"), (77, "its pixels cannot be decoded:")
    ]  # fmt: skip
    assert findings.num_records == 81


def _message(field, content):
    """Return a field of a message that holds bytes, at most 16383 of them."""
    length = bytes([len(content) & 0x7F | 0x80, len(content) >> 7])
    return bytes([field << 3 | 2]) + length + content


def test_a_file_that_goes_away_meanwhile_is_told_once(tmp_path):
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.zeros((4000, 2)))
    source = gl.npy(tmp_path / "*.npy")
    os.unlink(tmp_path / "1.npy")
    findings = list(gl.check(source))
    assert [(finding.file, finding.record) for finding in findings] == [
        (str(tmp_path / "1.npy"), None)
    ]


def test_what_is_no_source_and_no_path_is_refused(tmp_path):
    with pytest.raises(MissingFileError, match="nowhere"):
        gl.check(tmp_path / "nowhere")
    with pytest.raises(MissingFileError, match="nowhere"):
        gl.check([tmp_path / "nowhere.npy", __file__])
    with pytest.raises(MissingFileError, match="holds no file"):
        gl.check(tmp_path)
    with pytest.raises(SpecError):
        gl.check(3)
    with pytest.raises(SpecError, match="num_threads"):
        gl.check(gl.arrays(x=np.zeros(3)), num_threads=0)
    source = gl.arrays(x=np.zeros(3))
    source.close()
    with pytest.raises(ClosedError):
        gl.check(source)


# TFRecord files, written here byte by byte; the checksums are computed bit by bit


def masked(data):
    """Return the checksum of bytes as TFRecord files have it (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def framed(payload):
    length = struct.pack("<Q", len(payload))
    return length + masked(length) + payload + masked(payload)


def example(number):
    """Return a tf.train.Example with one int64, key "x"."""
    feature = bytes([0x1A, 3, 0x0A, 1, number])
    entry = bytes([0x0A, 1, ord("x"), 0x12, len(feature)]) + feature
    features = bytes([0x0A, len(entry)]) + entry
    return bytes([0x0A, len(features)]) + features


RECORD_BYTES = 16 + 14


@pytest.fixture
def tfrecord(tmp_path):
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"".join(framed(example(number)) for number in range(90)))
    assert path.stat().st_size == 90 * RECORD_BYTES
    return path


def changed(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_a_sound_tfrecord_file_is_sound(tfrecord):
    findings = gl.check(tfrecord)
    assert list(findings) == []
    assert findings.num_records == 90


@pytest.mark.parametrize("records", [[80], [3, 5, 80], [0], [0, 89]])
def test_payloads_with_another_checksum_are_found(tfrecord, records):
    for record in records:
        changed(tfrecord, record * RECORD_BYTES + 15)
    findings = gl.check(tfrecord)
    entries = list(findings)
    assert [finding.offset_bytes for finding in entries] == [
        record * RECORD_BYTES for record in records
    ]
    assert all(
        f"record {record}" in item.where for record, item in zip(records, entries, strict=True)
    )
    assert all("payload checksum is 0x" in finding.cause for finding in entries)
    assert findings.num_records == 90


def test_a_length_with_another_checksum_ends_the_file(tfrecord):
    changed(tfrecord, 7 * RECORD_BYTES + 1)
    changed(tfrecord, 3 * RECORD_BYTES + 13)
    entries = list(gl.check(tfrecord))
    assert [finding.offset_bytes for finding in entries] == [3 * RECORD_BYTES, 7 * RECORD_BYTES]
    assert "its length 270 has the checksum" in entries[1].cause
    assert "where the next record begins is not known" in entries[1].cause


@pytest.mark.parametrize(
    ("piece", "message"),
    [(10, "the file ends 8 bytes behind"), (RECORD_BYTES - 5, "after 5 bytes")],
)
def test_a_file_that_was_cut_is_read_up_to_there(tfrecord, piece, message):
    tfrecord.write_bytes(tfrecord.read_bytes()[:-piece])
    findings = gl.check(tfrecord)
    (finding,) = findings
    assert finding.offset_bytes == 89 * RECORD_BYTES
    assert message in finding.cause
    assert findings.num_records == 90


# the command line


def test_the_status_says_whether_anything_is_damaged(photos, capsys):
    assert main(["check", str(photos)]) == 1
    message = capsys.readouterr().out.splitlines()
    assert message[0] == "cat/1.jpg: the file ends before the end-of-image marker: it was cut off"
    assert message[-1] == "6 records were read, 3 of them damaged"
    assert main(["check", str(photos / "cat" / "0.jpg"), str(photos / "dog" / "0.jpg")]) == 0
    assert capsys.readouterr().out == "2 records were read, none of them damaged\n"
    assert main(["check", str(photos / "nowhere")]) == 2
    assert "nowhere is missing" in capsys.readouterr().err
    assert main(["check"]) == 2


def test_a_file_that_cannot_be_opened_is_told_with_its_remedy(tmp_path, capsys):
    np.save(tmp_path / "cut.npy", np.zeros(100))
    os.truncate(tmp_path / "cut.npy", 500)

    assert main(["check", str(tmp_path / "cut.npy")]) == 1
    _, remedy, count = capsys.readouterr().out.splitlines()
    assert remedy == "  remedy: it was cut short or is still being written: copy it again"
    assert count == "0 records were read, none of them damaged, and 1 file cannot be opened"


def test_kinds_that_are_not_supported_are_counted_by_themselves(photos, capsys):
    (photos / "cat" / "4.jpg").write_bytes(
        b"\0\0\0\x18ftypheic" + bytes(60)
    )  # two that are sound, HEIC and JPEG XL
    (photos / "dog" / "2.jpg").write_bytes(b"\xff\x0a" + bytes(60))
    (photos / "dog" / "3.jpg").write_bytes(b"")

    assert main(["check", str(photos)]) == 1
    *lines, count = capsys.readouterr().out.splitlines()
    assert (
        count
        == "6 records were read, 3 of them damaged, 2 not supported, and 1 file cannot be opened"
    )
    # How others read them is said once.
    assert sum("imagecodecs.imread" in line for line in lines) == 1

    findings = gl.check(photos)
    entries = {os.path.basename(finding.file): finding.is_supported for finding in findings}
    assert entries == {
        "1.jpg": True, "3.png": True, "1.png": True, "4.jpg": False, "2.jpg": False, "3.jpg": True
    }  # fmt: skip
    assert (findings.num_unopened, findings.num_unsupported) == (1, 2)


def test_records_that_are_not_supported_are_no_damage(tmp_path, capsys):
    whole = bytearray(imagefiles.jpeg(24, 30))
    whole[whole.index(b"\xff\xc0") + 1] = 0xC3  # the marker of a lossless JPEG
    (tmp_path / "0.jpg").write_bytes(imagefiles.jpeg(24, 30))
    (tmp_path / "1.jpg").write_bytes(whole)

    assert main(["check", str(tmp_path), "--json"]) == 1

    document = json.loads(capsys.readouterr().out)
    assert [document[name] for name in ("num_damaged", "num_unsupported", "num_unopened")] == [
        0,
        1,
        0,
    ]
    [finding] = document["damage"]
    assert finding["is_supported"] is False
    assert "imagecodecs" in finding["remedy"]


def test_a_document_of_json_is_all_that_is_on_stdout(photos, capsys):
    (photos / "cat" / "4.jpg").write_bytes(b"")
    assert main(["check", str(photos), "--json", "--num-threads", "1"]) == 1
    message = capsys.readouterr()
    document = json.loads(message.out)
    assert {os.path.basename(finding["file"]) for finding in document["damage"]} == {
        "1.jpg",
        "3.png",
        "4.jpg",
        "1.png",
    }
    assert set(document["damage"][0]) == {
        "where",
        "cause",
        "file",
        "record",
        "offset_bytes",
        "remedy",
        "is_supported",
    }
    assert (document["num_records"], document["num_damaged"], document["num_unopened"]) == (6, 3, 1)
    assert message.err == ""


# what wants all time or memory


LIMITED = """
import faulthandler, resource, sys
import numpy as np
import gpuload as gl
from gpuload.cli import main

faulthandler.dump_traceback_later(50)
gl.Loader(gl.arrays(x=np.zeros((9, 3, 3, 3), "u1")), 4, ops=[gl.ops.RandomFlip(on="x")], device="cpu").batch_at(0)
next(iter(gl.Loader(gl.images(sys.argv[2], labels=None), 1, ops=[gl.ops.Decode()], device="cpu", num_threads=2)))
with open("/proc/self/statm") as file:
    now = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (600 << 20), -1))
if sys.argv[1] == "check":
    sys.exit(main(["check", sys.argv[3]]))
source = gl.open(sys.argv[3])
ops = [gl.ops.Decode(), gl.ops.Resize(8, 8)] if "image" in source.spec else []
loader = gl.Loader(source, 4, ops=ops, on_error=sys.argv[1], max_bad=0.5, device="cpu", num_threads=2, executor="array")
rows = [(int(record), bool(ok)) for batch in loader for record, ok in zip(batch.records, batch.valid)]
print("rows", len(rows), "valid", sum(ok for _, ok in rows), [bad.record for bad in loader.bad_records()])
"""


def limited(how, folder, small):
    """Run a loader, or the check, in a process with 600 MB more than it begins with, and 60 s."""
    return subprocess.run(
        [sys.executable, "-c", LIMITED, how, str(small), str(folder)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def bomb():
    """Return a PNG of 16000 x 16000 pixels, whose 768 MB are 750 kB."""
    deflate = zlib.compressobj(9)
    row = bytes(1 + 3 * 16000)
    file = b"".join(deflate.compress(row) for _ in range(16000)) + deflate.flush()
    head = struct.pack(">IIBBBBB", 16000, 16000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        imagefiles.chunk(name, data)
        for name, data in ((b"IHDR", head), (b"IDAT", file), (b"IEND", b""))
    )


def billion_pixels():
    head = struct.pack(">IIBBBBB", 1 << 15, 1 << 15, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(imagefiles.chunk(name, data) for name, data in parts)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are those of Linux")
@pytest.mark.parametrize("kind", ["bomb", "billion", "scans"])
@pytest.mark.parametrize("how", ["replace", "skip", "check"])
def test_images_that_want_all_memory_are_damaged_records_like_others(tmp_path, kind, how):
    data = {
        "bomb": bomb,
        "billion": billion_pixels,
        "scans": lambda: imagefiles.jpeg_of_scans(4096, 4096, 5000),
    }[kind]()
    folder, small = tmp_path / "images", tmp_path / "small.png"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.png").write_bytes(imagefiles.png(10, 10, imagefiles.RGB, 8))
    (folder / "3.png").write_bytes(data)
    small.write_bytes(imagefiles.png(10, 10, imagefiles.RGB, 8))
    process = limited(how, folder, small)
    if how == "check":
        assert process.returncode == 1, process.stderr
        assert process.stdout.startswith("3.png: it ")
        assert process.stdout.endswith("6 records were read, 1 of them damaged\n")
    else:
        assert process.returncode == 0, process.stderr
        assert process.stdout == f"rows 6 valid {6 if how == 'replace' else 5} [3]\n"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are those of Linux")
def test_a_table_of_one_endless_line_is_left_soon(tmp_path):
    pytest.importorskip("pyarrow")
    small, path = tmp_path / "small.png", tmp_path / "endless.csv"
    small.write_bytes(imagefiles.png(10, 10, imagefiles.RGB, 8))
    with open(path, "wb") as file:
        file.write(b"a,b\n1,2\n")
        for _ in range(300):
            file.write(b"3," * (1 << 19))
    process = limited("check", path, small)
    path.unlink()
    assert process.returncode == 1, process.stderr
    assert "line 3 has more than" in process.stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are those of Linux")
def test_a_record_that_says_it_has_2_to_the_63_bytes_takes_neither_time_nor_memory(
    tmp_path, tfrecord
):
    length = struct.pack("<Q", 1 << 63)
    header = length + masked(length)
    tfrecord.write_bytes(tfrecord.read_bytes() + header + b"more")
    small = tmp_path / "small.png"
    small.write_bytes(imagefiles.png(10, 10, imagefiles.RGB, 8))
    process = limited("check", tfrecord, small)
    assert process.returncode == 1, process.stderr
    assert (
        f"it says that it has {1 << 63} bytes, and the file ends 4 bytes behind" in process.stdout
    )
    assert "91 records were read, 1 of them damaged" in process.stdout
    error = limited(
        "replace", tfrecord, small
    )  # where no record begins behind, no other one can stand for it
    assert error.returncode == 1
    assert "UnframedError: " in error.stderr  # a FormatError


def test_records_that_several_threads_look_at_are_all_counted(monkeypatch):
    """Between reading the sum and writing it each thread lets the others run."""

    class Slow(Findings):
        @property
        def num_records(self):
            count = self._count
            os.sched_yield()
            return count

        @num_records.setter
        def num_records(self, count):
            self._count = count

    findings = Slow(gl.arrays(x=np.zeros(20 * CHUNK_RECORDS, np.uint8)), 8)

    assert list(findings) == []
    assert findings.num_records == 20 * CHUNK_RECORDS


def test_folders_of_zarr_are_checked_by_a_wildcard_and_in_a_list(tmp_path):
    zarr = pytest.importorskip("zarr", minversion="3")
    for name in "ab":
        zarr.open_group(tmp_path / f"{name}.zarr", mode="w").create_array(
            "x", data=np.ones((4, 2)), chunks=(2, 2)
        )
    (tmp_path / "b.zarr" / "x" / "c" / "1" / "0").write_bytes(b"none")

    for target in (str(tmp_path / "*.zarr"), [tmp_path / "a.zarr", tmp_path / "b.zarr"]):
        findings = gl.check(target)
        causes = [finding.where for finding in findings]
        assert findings.num_records == 8
        assert causes
        assert all(str(tmp_path / "b.zarr") in where for where in causes)
