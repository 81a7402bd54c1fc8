"""Text of any length in CSV files, beside PyArrow's own reader."""

from __future__ import annotations

import gzip
import pickle

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import RecordError
from gpuload.formats.csv import keep, rows
from gpuload.testing.sources import SourceContract

arrow = pytest.importorskip("pyarrow.csv", reason="gl.csv needs PyArrow")

COUNT = 60
TWEETS = [f'Größe {number}, "quoted"\n' * (number * 11 % 30) for number in range(COUNT)]
LABELS = [("no", "yes")[number % 2] for number in range(COUNT)]


@pytest.fixture(params=["in memory", "in tables"], autouse=True)
def place(request, tmp_path, monkeypatch):
    """Where rows are kept; blocks are short."""
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))
    if request.param == "in tables":
        monkeypatch.setattr(keep, "SMALL_BYTES", -1)
        monkeypatch.setattr(rows, "BLOCK_BYTES", 1000)
    return request.param


def quoted(text):
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


def text_of(first=0, end=COUNT):
    lines = [
        f"{number},{quoted(TWEETS[number])},{LABELS[number]}\n" for number in range(first, end)
    ]
    return "id,tweet,label\n" + "".join(lines)


def written(folder, text, name="a.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


class TestTweets(SourceContract):
    columns = None

    def open(self, folder):
        # The long texts of the first file are in its later blocks.
        paths = [written(folder, text_of(0, 9), "a-0.csv"), written(folder, text_of(9), "a-1.csv")]
        return gl.csv(paths, self.columns)

    def open_other(self, folder):
        return gl.csv(written(folder, text_of(1)), self.columns)

    def expected(self):
        tweets = np.empty(COUNT, object)
        tweets[:] = TWEETS
        return {"id": np.arange(COUNT), "tweet": tweets, "label": np.array(LABELS)}


class TestTextThatIsAlwaysOfAnyLength(TestTweets):
    columns = {"tweet": str, "id": "i8", "label": object}  # noqa: RUF012

    def expected(self):
        whole, labels = super().expected(), np.empty(COUNT, object)
        labels[:] = LABELS
        return {"tweet": whole["tweet"], "id": whole["id"], "label": labels}


def test_texts_are_those_that_pyarrow_reads(tmp_path):
    path = written(tmp_path, text_of())
    values = arrow.read_csv(path, parse_options=arrow.ParseOptions(newlines_in_values=True))

    source = gl.csv(path)

    assert source.spec["tweet"].text == "str"
    for name in ("tweet", "label"):
        assert source.read(range(COUNT))[name].tolist() == values[name].to_pylist()


def test_texts_of_a_packed_file_in_another_encoding_are_read(tmp_path):
    path = written(tmp_path, gzip.compress(text_of().encode("latin-1")), "a.csv.gz")

    source = gl.csv(path, encoding="latin-1")

    assert source.read([29])["tweet"].tolist() == [TWEETS[29]]


def test_a_text_that_is_missing_is_empty_or_the_default(tmp_path):
    path = written(tmp_path, "a,b\n,1\nNA,2\n" + "x" * 400 + ",3\n")

    assert gl.csv(path).read([0, 1])["a"].tolist() == ["", "NA"]
    for kind in (str, object, None):
        source = gl.csv(path, {"a": kind, "b": "i8"}, defaults={"a": "nothing ä"})
        assert source.read([0, 1, 2])["a"].tolist() == ["nothing ä", "nothing ä", "x" * 400]


def test_numbers_among_which_a_long_text_stands_late_are_text(tmp_path):
    values = [*(str(number) for number in range(400)), "x" * 3000, "7"]
    path = written(tmp_path, "a\n" + "\n".join(values) + "\n")

    assert gl.csv(path).read(range(402))["a"].tolist() == values


def test_lines_that_are_wrong_are_kept_beside_long_texts(tmp_path):
    path = written(tmp_path, text_of(0, 20) + "1,2\n" + text_of(20).partition("\n")[2])
    source = gl.csv(path, bad_lines="keep")

    with pytest.raises(RecordError, match="has 2 columns, not 3"):
        source[20]
    assert source.read([19, 21])["tweet"].tolist() == [TWEETS[19], TWEETS[20]]


def test_batches_hold_the_texts_of_their_records_and_a_table_is_used_again(tmp_path):
    path = written(tmp_path, text_of())
    for _ in range(2):
        with gl.Loader(gl.csv(path), batch_size=7, shuffle=True, seed=1) as loader:
            for batch in loader:
                assert batch["tweet"].tolist() == [TWEETS[record] for record in batch.records]
                assert batch["id"].tolist() == batch.records.tolist()


def test_a_table_that_lost_its_payload_is_made_anew(tmp_path, place):
    path = written(tmp_path, text_of())
    gl.csv(path).close()
    for table in (tmp_path / "cache").glob("*.rows"):
        table.write_bytes(table.read_bytes()[:-40])

    assert gl.csv(path).read([3])["tweet"].tolist() == [TWEETS[3]]


def test_texts_are_cached_converted_and_pickled(tmp_path):
    source = gl.csv(written(tmp_path, text_of()), ["tweet", "id"])

    for copy in (
        source.cache(memory="1MB"),
        pickle.loads(pickle.dumps(source)),
        source.select(range(COUNT)),
    ):
        assert copy.read(range(COUNT))["tweet"].tolist() == TWEETS
    gl.convert(source, tmp_path / "a.tfrecord")
    back = gl.open(tmp_path / "a.tfrecord")
    assert back.read(range(COUNT))["tweet"].tolist() == TWEETS


def test_strings_of_a_stated_length_are_still_bounded(tmp_path):
    path = written(tmp_path, "a\n" + "x" * 300 + "\n")

    with pytest.raises(RecordError, match=r"has 300 characters(.|\n)*object"):
        gl.csv(path, {"a": "U20"})
