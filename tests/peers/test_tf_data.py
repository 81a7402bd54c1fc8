"""TFRecord, fixed-length and CSV files: the cases of tf.data's own tests, said anew, with tf.data
beside in one run.

Origin  tensorflow/tensorflow, tensorflow/python/data/kernel_tests: tf_record_dataset_test.py,
        fixed_length_record_dataset_test.py; tensorflow/python/data/experimental/kernel_tests:
        csv_dataset_test.py, make_csv_dataset_test.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import FormatError, GpuloadError

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.slow

DIFFERENT = {
    "testReadWithBuffer, buffer_size": "there is no buffer to size: records are read where they lie",
    "testReadFromDatasetOfFiles": "paths are a list: their records are numbered when the source is opened",
    "testDatasetPathlib": "paths are texts or pathlib's",
    "compressed fixed-length files": "records there have no place; gunzip them, or write them as NPY",
    "testCsvDataset_errors at the end of a file": "the first bad line is an error when the file is opened",
    "num_parallel_reads, cycle_length": "the order is the loader's, whatever the number of threads",
    "nan in CSV": "it is a missing value unless na_values= says otherwise, and takes the default",
    "num_epochs": "an epoch is a pass of a `for`; examples/ has loops over several",
}
NUM_FILES, NUM_RECORDS = 2, 7


def record(file: int, number: int) -> bytes:
    return f"Record {number} of file {file}".encode()


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
@pytest.mark.parametrize("num_epochs", [1, 10])
def test_tf_records_in_order_for_epochs(compression: str, num_epochs: int, tmp_path: Path):
    """testReadOneEpoch, testReadTenEpochs, testReadZlibFiles, testReadGzipFiles."""
    paths = []
    for file in range(NUM_FILES):
        paths.append(str(tmp_path / f"{file}.tfrecord"))
        with tf.io.TFRecordWriter(
            paths[-1], tf.io.TFRecordOptions(compression_type=compression)
        ) as writer:
            for number in range(NUM_RECORDS):
                writer.write(record(file, number))
    expected = [
        value.numpy() for value in tf.data.TFRecordDataset(paths, compression).repeat(num_epochs)
    ]
    loader = gl.Loader(gl.tfrecord(paths, "bytes"), 3, device="cpu")

    values_read = [
        bytes(value) for _ in range(num_epochs) for batch in loader for value in batch["record"]
    ]
    assert values_read == expected


def test_tf_records_of_any_size(tmp_path: Path):
    """Empty ones, and one of some megabytes, as testReadWithBuffer's files have."""
    contents = [b"", b"x", bytes(5 << 20), b""]
    with tf.io.TFRecordWriter(str(tmp_path / "x.tfrecord")) as writer:
        for content in contents:
            writer.write(content)

    values = gl.tfrecord(tmp_path / "x.tfrecord", "bytes").read([0, 1, 2, 3])["record"]
    assert [bytes(value) for value in values] == contents


@pytest.mark.parametrize("place", [0, 8, 12, -1])
def test_a_damaged_tf_record_is_refused_by_both(place: int, tmp_path: Path):
    with tf.io.TFRecordWriter(str(tmp_path / "x.tfrecord")) as writer:
        writer.write(b"some record")
    content = bytearray((tmp_path / "x.tfrecord").read_bytes())
    content[place] ^= 1
    (tmp_path / "x.tfrecord").write_bytes(content)

    with pytest.raises(tf.errors.DataLossError):
        list(tf.data.TFRecordDataset(str(tmp_path / "x.tfrecord")))
    with pytest.raises(GpuloadError, match=r"x\.tfrecord"):
        gl.tfrecord(tmp_path / "x.tfrecord", "bytes").read([0])


@pytest.mark.parametrize(("header", "footer"), [(0, 0), (5, 0), (0, 2), (5, 2)])
def test_fixed_length_records(header: int, footer: int, tmp_path: Path):
    """testFixedLengthRecordDataset: header and footer, several files, repeated and in batches."""
    paths = []
    for file in range(NUM_FILES):
        paths.append(str(tmp_path / f"{file}.bin"))
        body = b"".join(
            file.to_bytes(1, "little") + number.to_bytes(2, "little")
            for number in range(NUM_RECORDS)
        )
        Path(paths[-1]).write_bytes(b"H" * header + body + b"F" * footer)
    expected = list(
        tf.data.FixedLengthRecordDataset(paths, 3, header, footer).repeat(2).as_numpy_iterator()
    )

    source = gl.fixed(paths, "S3", header_bytes=header, footer_bytes=footer)
    raw = gl.fixed(paths, ("u1", 3), header_bytes=header, footer_bytes=footer)
    assert len(source) == NUM_FILES * NUM_RECORDS
    loader = gl.Loader(raw, 4, device="cpu")
    assert [bytes(row) for _ in range(2) for batch in loader for row in batch["x"]] == expected


def test_a_body_that_is_no_whole_number_of_records_is_refused_by_both(tmp_path: Path):
    """As testFixedLengthRecordDatasetWrongSize."""
    (tmp_path / "x.bin").write_bytes(bytes(10))

    with pytest.raises(tf.errors.InvalidArgumentError):
        list(tf.data.FixedLengthRecordDataset(str(tmp_path / "x.bin"), 4))
    with pytest.raises(FormatError, match="not an exact multiple"):
        gl.fixed(tmp_path / "x.bin", ("u1", 4))


CSV = [
    # the name there, the file, record_defaults, more arguments of tf, more of ours
    ("testCsvDataset_requiredFields", "1,2,3\n4,5,6\n", [0, 0.0, ""], {}, {}),
    ("testCsvDataset_ints", "1,2\n-3,4\n", [0, 0], {}, {}),
    ("testCsvDataset_floats", "1.0,2.5e3\n-0.5,nan\n", [0.0, 0.0], {}, {"na_values": [""]}),
    ("testCsvDataset_strings", 'a,b\n"c,d","e ""f"""\n', ["", ""], {}, {}),
    ("testCsvDataset_withEmptyFields", ",2\n3,\n", [7, 8], {}, {}),
    ("testCsvDataset_withHeader", "x,y\n1,2\n", [0, 0], {"header": True}, {"header": True}),
    ("testCsvDataset_newlineInQuotes", '"a\nb",1\n', ["", 0], {}, {}),
    ("testCsvDataset_withDelim", "1|2\n", [0, 0], {"field_delim": "|"}, {"delimiter": "|"}),
    (
        "testCsvDataset_withNoQuoteDelims",
        '1"a,2\n',
        ["", 0],
        {"use_quote_delim": False},
        {"quote": None},
    ),
    (
        "testCsvDataset_withNaValue",
        "NA,1\n3,NA\n",
        [9, 9],
        {"na_value": "NA"},
        {"na_values": ["NA", ""]},
    ),
    ("testCsvDataset_crlf", "1,2\r\n3,4\r\n", [0, 0], {}, {}),
    ("testCsvDataset_withoutLastNewline", "1,2\n3,4", [0, 0], {}, {}),
]


@pytest.mark.parametrize(
    ("name", "text", "defaults", "tf_options", "options"), CSV, ids=[case[0] for case in CSV]
)
def test_csv_records(
    name: str,
    text: str,
    defaults: list[Any],
    tf_options: dict[str, Any],
    options: dict[str, Any],
    tmp_path: Path,
):
    (tmp_path / "x.csv").write_bytes(text.encode())
    tf_defaults = [tf.constant([d], tf.string if isinstance(d, str) else None) for d in defaults]
    rows = tf.data.experimental.CsvDataset(
        str(tmp_path / "x.csv"), tf_defaults, **tf_options
    ).as_numpy_iterator()
    expected = [
        [value.decode() if isinstance(value, bytes) else value.item() for value in row]
        for row in rows
    ]

    source = gl.csv(tmp_path / "x.csv", defaults=defaults, **{"header": False, **options})
    values = source.read(range(len(source)))
    values_read = [
        [np.asarray(column[row]).item() for column in values.values()] for row in range(len(source))
    ]
    assert repr(values_read) == repr(expected)


@pytest.mark.parametrize("text", ["1,2\n3\n", "1,2\n3,4,5\n", "1,2\nx,4\n", '1,2\n"3,4\n', ",2\n"])
def test_bad_csv_records_are_refused_by_both(text: str, tmp_path: Path):
    """testCsvDataset_withInvalid..., _errorWithUnquotedQuote, _requiredFieldMissing."""
    (tmp_path / "x.csv").write_bytes(text.encode())

    with pytest.raises(tf.errors.InvalidArgumentError):
        list(tf.data.experimental.CsvDataset(str(tmp_path / "x.csv"), [tf.int64, tf.int64]))
    with pytest.raises(GpuloadError, match=r"x\.csv"):
        gl.csv(tmp_path / "x.csv", defaults=[int, int], header=False)
