"""Lines of text files, beside Python's own reader and TensorFlow's."""

from __future__ import annotations

import gzip
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuload as gl
from gpuload.errors import (
    ChangedFileError,
    FormatError,
    MissingFileError,
    RecordError,
    RowError,
    SpecError,
)
from gpuload.ragged import Ragged
from gpuload.sources import fileindex
from gpuload.testing.sources import SourceContract

LINES = ["first", "", "größer €", "x" * 700, " spaces ", "\ttab", "", "a\rb", "last"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))


def written(folder, data, name="a.txt"):
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def lines_of(source):
    return source.read(range(len(source)))["text"].tolist()


class TestLines(SourceContract):
    def open(self, folder):
        written(folder, "\n".join(LINES[:4]) + "\n", "a-0.txt")
        written(folder, "", "a-1.txt")
        written(folder, "\ufeff" + "\r\n".join(LINES[4:]), "a-2.txt")
        return gl.text(f"{folder}/a-*.txt")

    def open_other(self, folder):
        return gl.text(written(folder, "one\ntwo\nthree\n"))

    def expected(self):
        texts = np.empty(len(LINES), object)
        texts[:] = LINES
        return {"text": texts}


class TestLinesAsBytes(TestLines):
    def open(self, folder):
        return gl.text(
            written(folder, gzip.compress("\n".join(LINES).encode()), "a.txt.gz"), encoding=None
        )

    def expected(self):
        texts = np.empty(len(LINES), object)
        texts[:] = [line.encode() for line in LINES]
        return {"text": texts}


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"\r\n", [""]),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\n\n", ["a", ""]),
        (b"\na", ["", "a"]),
        (b"a\r\nb", ["a", "b"]),
        (b"a\rb\n", ["a\rb"]),
        (b"a\r", ["a\r"]),
        (b"a\r\r\n", ["a\r"]),
        (b"\r\n\r\n\n", ["", "", ""]),
        (b"\xef\xbb\xbf", []),
        (b"\xef\xbb\xbfa\n", ["a"]),
        (b"a\n\xef\xbb\xbfb", ["a", "\ufeffb"]),
        (b"a\0b\n", ["a\0b"]),
        ("\u2028a\x0bb\x85\n".encode(), ["\u2028a\x0bb\x85"]),
    ],
)
def test_lines_are_what_stands_between_line_ends(tmp_path, data, lines):
    assert lines_of(gl.text(written(tmp_path, data))) == lines


@pytest.mark.parametrize("data", [b"a\rb\r", b"a\rb", b"\r\r", b"a" * (1 << 20) + b"\rb"])
def test_lines_that_end_with_cr_alone_are_refused(tmp_path, data):
    (tmp_path / "a.txt").write_bytes(data)

    with pytest.raises(
        FormatError, match=r"a\.txt: lines that end with CR alone are not supported(.|\n)*tr "
    ):
        gl.text(tmp_path / "a.txt")


@given(
    st.binary(max_size=60).map(
        lambda data: data.replace(b"\r", b"").replace(b"b", b"\n").replace(b"c", b"\r\n")
    )
)
def test_lines_are_those_of_tensorflow_which_drops_any_other_cr(tmp_path_factory, data):
    tf = pytest.importorskip("tensorflow")
    path = written(tmp_path_factory.mktemp("lines"), data)
    expected = list(tf.data.TextLineDataset(str(path)).as_numpy_iterator())
    if data.startswith(b"\xef\xbb\xbf"):  # TensorFlow leaves a mark in
        return

    result = lines_of(gl.text(path, encoding=None))

    assert result == expected


def test_lines_of_files_that_are_read_in_pieces_are_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["gpuload.formats.text"], "PIECE_BYTES", 7)
    data = "\n".join(LINES)

    assert lines_of(gl.text(written(tmp_path, data))) == data.split("\n")


def test_a_batch_holds_the_lines_of_its_records(tmp_path):
    lines = [f"line {number} " * (number % 50) for number in range(500)]
    source = gl.text(written(tmp_path, "\n".join(lines)))

    with gl.Loader(source, batch_size=32, shuffle=True, seed=2, output="text") as loader:
        results = {
            record: text
            for batch in loader
            for record, text in zip(batch.records, batch["text"], strict=True)
        }

    assert [results[record] for record in range(500)] == lines


def test_a_line_that_is_no_utf8_is_an_error_that_names_file_line_and_byte(tmp_path):
    source = gl.text(written(tmp_path, b"good\nalso good\ncaf\xe9\nlast"))

    with pytest.raises(
        RecordError, match=r"a\.txt, line 3, byte 15: field 'text': byte 3 of its 4 is no UTF-8"
    ):
        source.read([0, 2])
    assert source.read([0, 1, 3])["text"].tolist() == ["good", "also good", "last"]
    loader = gl.Loader(source, batch_size=4, on_error="skip", max_bad=0.5)
    assert next(iter(loader)).valid.tolist() == [True, True, False, True]


def test_a_line_that_is_too_long_is_refused_with_its_number_when_the_file_is_opened(tmp_path):
    path = written(tmp_path, "short\n" + "x" * 100 + "\nshort")

    with pytest.raises(RecordError, match=r"a\.txt, line 2, byte 6: 101 bytes are too many"):
        gl.text(path, max_line_bytes=100)
    assert len(gl.text(path, max_line_bytes=101)) == 3


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_is_refused_with_what_to_do(tmp_path, encoding):
    path = written(tmp_path, "\ufeffa\nb".encode(encoding))

    with pytest.raises(FormatError, match="iconv"):
        gl.text(path)


@pytest.mark.parametrize(
    "arguments",
    [
        *({"encoding": item} for item in ("latin-1", 3, "")),
        *({"max_line_bytes": item} for item in (0, -1, 2.5, "1", None)),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(tmp_path, arguments):
    with pytest.raises(SpecError, match=next(iter(arguments))) as caught:
        gl.text(written(tmp_path, "a\n"), **arguments)

    assert caught.value.remedy


def test_files_that_are_missing_or_change_are_named(tmp_path):
    with pytest.raises(MissingFileError):
        gl.text(tmp_path / "none.txt")
    path = written(tmp_path, "a\nb\n")
    source = gl.text(path)
    path.write_bytes(b"abcdefgh\n")

    with pytest.raises(ChangedFileError, match=r"a\.txt"):
        source.read([1])


def test_where_names_the_line_and_lines_go_beside_labels(tmp_path):
    source = gl.zip(gl.text(written(tmp_path, "good film\nbad film\n")), gl.arrays(label=[1, 0]))

    assert source.where(1).startswith("a.txt, line 2")
    assert source[1] == {"text": "bad film", "label": 0}


def test_open_says_how_lines_are_read(tmp_path):
    with pytest.raises(FormatError, match=r"gl\.text\(path\)"):
        gl.open(written(tmp_path, "some words\nand more words of a text\n"))


class TestIndex:
    @pytest.fixture(autouse=True)
    def every_file(self, monkeypatch):
        """Keep an index of small files, too; count the walks."""
        monkeypatch.setattr(fileindex, "SMALL_BYTES", 0)
        self.walks, module = [], sys.modules["gpuload.formats.text"]
        walk = module._bounds_in
        monkeypatch.setattr(
            module, "_bounds_in", lambda *value: self.walks.append(value) or walk(*value)
        )

    def test_lines_are_looked_for_once(self, tmp_path):
        path = written(tmp_path, "\ufeffone\r\ntwo\nthree")

        for _ in range(3):
            assert lines_of(gl.text(path)) == ["one", "two", "three"]

        assert len(self.walks) == 1
        assert (tmp_path / ".a.txt.gpuload-index").exists()

    def test_the_index_of_a_file_that_changed_is_made_anew(self, tmp_path):
        path = written(tmp_path, "one\ntwo\n")
        gl.text(path)
        path.write_bytes(b"a\nlonger file\nnow\n")

        assert lines_of(gl.text(path)) == ["a", "longer file", "now"]

    def test_a_damaged_index_is_made_anew(self, tmp_path):
        path = written(tmp_path, "one\ntwo\n")
        gl.text(path)
        index = tmp_path / ".a.txt.gpuload-index"
        data = bytearray(index.read_bytes())
        data[70] ^= 1
        index.write_bytes(data)

        assert lines_of(gl.text(path)) == ["one", "two"]
        assert len(self.walks) == 2

    @pytest.mark.parametrize("data", [b"one\nt\no\nend\n", b"one two\nend\n", b"onetwotwo.."])
    def test_lines_that_moved_behind_the_index_are_an_error_and_no_wrong_record(
        self, tmp_path, data
    ):
        path = written(tmp_path, "one\ntwo\nend\n")
        source = gl.text(path)
        leaf, numbers = source.resolve(np.arange(3))[0].leaf, np.arange(3)
        raw = Ragged(np.frombuffer(data.ljust(12, b"."), np.uint8), np.array([0, 4, 8, 12]))

        with pytest.raises(RowError, match="not those of one line"):
            leaf.unpack(numbers, raw)
