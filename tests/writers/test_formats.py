"""What each format writes, as independent readers read it: NumPy, struct, TensorFlow, DALI, Pillow,
the csv module."""

from __future__ import annotations

import csv
import json
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import gpuload as gl
from gpuload.errors import FormatError, RecordError, SpecError
from gpuload.formats.npy import npyheader
from gpuload.formats.tfrecord import writer as wire
from gpuload.ragged import Ragged
from gpuload.spec import Field, Spec
from gpuload.testing.sources import assert_same

COUNT = 37
EDGES = [
    sign * 2**bits + more for bits in range(7, 63, 7) for more in (-1, 0, 1) for sign in (1, -1)
]


def table(count=COUNT, seed=1):
    """Return fields of every kind that has one shape."""
    r = np.random.default_rng(seed)
    return {
        "image": r.integers(0, 256, (count, 4, 3, 3), np.uint8),
        "label": r.integers(-(2**63), 2**63 - 1, count),
        "small": np.arange(count, dtype=np.int8) - 20,
        "flag": np.arange(count) % 3 == 0,
        "weight": np.where(
            np.arange(count)[:, None] % 5, r.standard_normal((count, 2)), np.nan
        ).astype(np.float32),
        "half": r.standard_normal(count).astype(np.float16),
        "text": np.array([f"größe {number}\U0001f600" for number in range(count)]),
        "key": np.array([b"k" * (number % 7) for number in range(count)]),
        "none": np.zeros((count, 0), np.float32),
    }


MORE = {
    "double": np.linspace(-1, 1, COUNT),
    "complex": np.arange(COUNT) * (1 + 2j),
    "when": np.arange(COUNT).astype("M8[ms]"),
    "wait": np.arange(COUNT).astype("m8[h]"),
    "big": np.arange(COUNT, dtype=">u8") << 56,
    "void": np.array([b"ab\0\0"] * COUNT, "V4"),
    "long": np.arange(COUNT, dtype=np.longdouble) / 3,
}


def whole(**fields):
    return gl.arrays(**table(), **fields)


def equal(actual, expected):
    """Check that fields are those that were written, in native byte order."""
    assert list(actual) == list(expected)
    for name, values in expected.items():
        assert_same(actual[name], values.astype(values.dtype.newbyteorder("=")))


# --- NPY, NPZ


def test_npy_of_several_fields_is_a_structured_array(tmp_path):
    path = str(tmp_path / "a.npy")
    conversion = gl.convert(whole(**MORE), path)

    array = np.load(path)

    equal({name: array[name] for name in array.dtype.names}, {**table(), **MORE})
    assert all(array.dtype[name].base.byteorder != ">" for name in array.dtype.names)
    assert (conversion.paths, conversion.num_records, conversion.num_kept) == ((path,), COUNT, 0)
    assert (conversion.num_bytes, conversion.call) == (os.path.getsize(path), f"gl.npy({path!r})")


def test_npy_of_one_field_is_a_plain_array(tmp_path):
    gl.convert(gl.arrays(x=table()["image"]), tmp_path / "x-{shard}.npy", num_shards=3)

    parts = [np.load(tmp_path / f"x-{shard}.npy") for shard in range(3)]

    assert [len(part) for part in parts] == [12, 12, 13]
    assert_same(np.concatenate(parts), table()["image"])


def test_a_name_with_field_is_a_file_for_each(tmp_path):
    conversion = gl.convert(
        whole(**MORE), tmp_path / "{field}-{shard}-of-{num_shards}.npy", num_shards=2
    )

    results = {
        name: np.concatenate([np.load(tmp_path / f"{name}-{shard}-of-2.npy") for shard in range(2)])
        for name in [*table(), *MORE]
    }

    equal(results, {**table(), **MORE})
    equal(eval(conversion.call).read(range(COUNT)), {**table(), **MORE})


def test_npz_has_a_member_for_each_field(tmp_path):
    conversion = gl.convert(whole(**MORE), tmp_path / "a-{shard}.npz", num_shards=2)

    with np.load(tmp_path / "a-0.npz") as first, np.load(tmp_path / "a-1.npz") as second:
        results = {name: np.concatenate([first[name], second[name]]) for name in first.files}

    equal(results, {**table(), **MORE})
    equal(eval(conversion.call).read(range(COUNT)), {**table(), **MORE})


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype("<f4"),
        np.dtype([("a", "<i4"), ("b", "S3", (2,))]),
        np.dtype([("größe", "<i4"), ("\U0001f600", "u1")]),
        np.dtype([(f"field{number:05d}", "<i4") for number in range(4000)]),
    ],
    ids=["plain", "fields", "unicode", "long"],
)
@pytest.mark.parametrize("shape", [(0,), (3,), (2, 5)])
def test_headers_are_those_that_numpy_reads(tmp_path, dtype, shape):
    path = tmp_path / "a.npy"
    header = npyheader.header(dtype, shape)
    path.write_bytes(header + bytes(int(np.prod(shape)) * dtype.itemsize))

    array = np.load(path, max_header_size=10**6)

    assert (array.dtype, array.shape) == (dtype, shape)
    assert len(header) % 64 == 0
    assert npyheader.read_header(str(path), path.stat().st_size, header).dtype == dtype


# --- fixed-length records


def test_fixed_records_are_their_bytes_and_a_json_says_what_they_mean(tmp_path):
    conversion = gl.convert(whole(**MORE), tmp_path / "a-{shard}.bin", num_shards=2)
    about = json.loads((tmp_path / "a-0.bin.json").read_text())

    dtype = np.dtype(
        [(item["name"], item["dtype"], tuple(item["shape"])) for item in about["fields"]]
    )
    parts = [np.fromfile(tmp_path / f"a-{shard}.bin", dtype) for shard in range(2)]
    result = np.concatenate(parts)

    equal({name: result[name] for name in result.dtype.names}, {**table(), **MORE})
    assert about["record_bytes"] == dtype.itemsize
    assert (about["num_records"], about["header_bytes"], about["file"]) == (18, 0, "a-0.bin")
    assert [item["offset_bytes"] for item in about["fields"]] == [
        dtype.fields[name][1] for name in dtype.names
    ]
    equal(eval(conversion.call).read(range(COUNT)), {**table(), **MORE})
    equal(gl.open(tmp_path / "a-*.bin.json").read(range(COUNT)), {**table(), **MORE})


def test_axes_of_images_are_kept(tmp_path):
    source = whole().mark(image="HWC")
    gl.convert(source, tmp_path / "a.dat")

    assert gl.open(tmp_path / "a.dat").spec["image"] == source.spec["image"]


CHANGES = {
    "text": lambda about: "no json",
    "list": lambda about: "[]",
    "format": lambda about: json.dumps({**about, "format": "gpuload fixed-length records, not"}),
    "version": lambda about: json.dumps({**about, "version": 2}),
    "num_records": lambda about: json.dumps({**about, "num_records": about["num_records"] + 1}),
    "negative": lambda about: json.dumps({**about, "header_bytes": -1}),
    "record_bytes": lambda about: json.dumps({**about, "record_bytes": 2**70}),
    "zero": lambda about: json.dumps({**about, "record_bytes": 0}),
    "fields": lambda about: json.dumps({**about, "fields": []}),
    "no dtype": lambda about: json.dumps(
        {**about, "fields": [{**about["fields"][0], "dtype": "O"}]}
    ),
    "code": lambda about: json.dumps(
        {**about, "fields": [{**about["fields"][0], "dtype": "f4, f4"}]}
    ),
    "shape": lambda about: json.dumps({**about, "fields": [{**about["fields"][0], "shape": [-1]}]}),
    "huge": lambda about: json.dumps(
        {**about, "fields": [{**about["fields"][0], "shape": [2**39, 2**39]}]}
    ),
    "offset": lambda about: json.dumps(
        {**about, "fields": [{**about["fields"][0], "offset_bytes": 10**6}]}
    ),
    "twice": lambda about: json.dumps({**about, "fields": about["fields"][:1] * 2}),
    "deep": lambda about: (
        json.dumps({**about, "fields": []})[:-1] + ', "x": ' + "[" * 10_000 + "]" * 10_000 + "}"
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_json_that_does_not_describe_its_records_is_refused(tmp_path, change):
    gl.convert(gl.arrays(x=np.arange(10, dtype="f4")), tmp_path / "a.bin")
    path = tmp_path / "a.bin.json"
    about = json.loads(path.read_text())
    text = CHANGES[change](about)
    path.write_text(
        text if change not in ("text", "list") else text + " " * 10 + "gpuload fixed-length records"
    )

    with pytest.raises((FormatError, SpecError), match=r"a\.bin"):
        gl.open(tmp_path / "a.bin")


# --- TFRecord


def features(tf, path):
    """Return the features of each record, as TensorFlow reads them."""
    return [
        tf.train.Example.FromString(raw).features.feature
        for raw in tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
    ]


def test_tfrecords_are_what_tensorflow_reads(tmp_path):
    tf = pytest.importorskip("tensorflow")
    gl.convert(whole(), tmp_path / "a-{shard}.tfrecord", num_shards=2)
    spec = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "small": tf.io.FixedLenFeature([], tf.int64),
        "flag": tf.io.FixedLenFeature([], tf.int64),
        "weight": tf.io.FixedLenFeature([2], tf.float32),
        "half": tf.io.FixedLenFeature([], tf.float32),
        "text": tf.io.FixedLenFeature([], tf.string),
        "key": tf.io.FixedLenFeature([], tf.string),
        "none": tf.io.FixedLenFeature([0], tf.float32),
    }

    files = [str(tmp_path / f"a-{shard}.tfrecord") for shard in range(2)]
    batch = next(
        iter(
            tf.data.TFRecordDataset(files)
            .batch(COUNT)
            .map(lambda raw: tf.io.parse_example(raw, spec))
        )
    )

    expected = table()
    for name in ("label", "small", "flag"):
        assert_same(batch[name].numpy(), expected[name].astype(np.int64))
    for name in ("weight", "half", "none"):
        assert_same(batch[name].numpy(), expected[name].astype(np.float32))
    assert [text.decode() for text in batch["text"].numpy()] == expected["text"].tolist()
    assert batch["key"].numpy().tolist() == expected["key"].tolist()
    images = tf.reshape(tf.io.decode_raw(batch["image"], tf.uint8), [COUNT, 4, 3, 3])
    assert_same(images.numpy(), expected["image"])


@pytest.mark.parametrize(("dtype", "way"), [("i8", "ints"), ("f4", "floats")])
def test_examples_of_some_rows_of_a_ragged_array_are_those_of_these_rows(dtype, way):
    lists = [np.arange(number, 3 * number, dtype=dtype) for number in range(6)]
    field = Field("x", np.dtype(dtype), (None,))

    def written(values):
        return list(wire.examples(Spec((field,)), {"x": values}, len(values), lambda field: way))

    assert written(Ragged.of(lists, field.dtype)[2:5]) == written(
        Ragged.of(lists[2:5], field.dtype)
    )


def test_tfrecords_of_lists_of_any_length_are_what_tensorflow_reads(tmp_path):
    tf = pytest.importorskip("tensorflow")
    values = {
        "ints": [np.arange(number % 4) * 10**number for number in range(12)],
        "floats": [
            np.linspace(0, 1, number * 2).astype("f4").reshape(-1, 2) for number in range(12)
        ],
        "blob": [bytes(range(number)) for number in range(12)],
    }
    names = np.array([["a", "bc"], ["", "é"]] * 6)
    fields = {"ints": ("i8", (None,)), "floats": ("f4", (None, 2)), "blob": ("u1", (None,))}
    source = gl.zip(
        gl.records(12, lambda numbers: {name: [item[number] for number in numbers] for name, item in values.items()},
                   fields=fields),
        gl.arrays(names=names),
    )  # fmt: skip
    conversion = gl.convert(source, tmp_path / "a.tfrecord")

    result = features(tf, tmp_path / "a.tfrecord")

    assert [item["ints"].int64_list.value for item in result] == [
        item.tolist() for item in values["ints"]
    ]
    assert [item["floats"].float_list.value for item in result] == [
        item.reshape(-1).tolist() for item in values["floats"]
    ]
    assert [item["blob"].bytes_list.value for item in result] == [[item] for item in values["blob"]]
    assert [item["names"].bytes_list.value for item in result] == [
        [a.encode(), b.encode()] for a, b in names.tolist()
    ]
    again = eval(conversion.call).read(range(12))
    for name, value in values.items():
        for actual, expected in zip(again[name], value, strict=True):
            assert_same(actual, np.frombuffer(expected, "u1") if name == "blob" else expected)


def test_fields_as_serialized_tensors_keep_dtype_and_shape(tmp_path):
    tf = pytest.importorskip("tensorflow")
    shapes = [(number % 3, 2, number % 4) for number in range(12)]
    pictures = [np.arange(np.prod(shape), dtype="u2").reshape(shape) for shape in shapes]
    source = gl.zip(
        gl.records(12, lambda numbers: {"picture": [pictures[number] for number in numbers]},
                   fields={"picture": ("u2", (None, 2, None))}),
        gl.arrays(double=MORE["double"][:12], complex=MORE["complex"][:12], big=MORE["big"][:12]),
    )  # fmt: skip
    gl.convert(source, tmp_path / "a.tfrecord", tensors=["picture", "double", "complex", "big"])

    dtypes = {"picture": "uint16", "double": "float64", "complex": "complex128", "big": "uint64"}
    for number, item in enumerate(features(tf, tmp_path / "a.tfrecord")):
        read = {
            name: tf.io.parse_tensor(item[name].bytes_list.value[0], dtype).numpy()
            for name, dtype in dtypes.items()
        }
        assert_same(read["picture"], pictures[number])
        for name in ("double", "complex", "big"):
            assert read[name] == MORE[name][number]


@pytest.mark.parametrize("name", ["double", "complex", "big", "when", "wait"])
def test_fields_as_raw_bytes_are_read_again(tmp_path, name):
    conversion = gl.convert(gl.arrays(**{name: MORE[name]}), tmp_path / "a.tfrecord", raw=[name])

    values = eval(conversion.call)[:].read(range(COUNT))[name]

    assert_same(values, MORE[name].astype(MORE[name].dtype.newbyteorder("=")))


def test_tfrecords_are_read_again_with_the_dtypes_that_were_written(tmp_path):
    source = whole()
    conversion = gl.convert(
        source, tmp_path / "a-{shard:02d}-of-{num_shards:02d}.tfrecord", num_shards=3
    )

    again = eval(conversion.call)

    expected = {**table(), "text": np.char.encode(table()["text"], "utf-8")}
    result = again.read(range(COUNT))
    for name, values in expected.items():
        if name == "text":
            assert result[name].tolist() == values.tolist()
        else:  # float16 is widened
            assert_same(result[name], values.astype("f4") if name == "half" else values)


def test_tfrecords_are_what_dali_reads(tmp_path):
    dali = pytest.importorskip("nvidia.dali")
    image = pytest.importorskip("PIL.Image")
    for number in range(5):
        image.fromarray(np.full((8, 6, 3), 50 * number, np.uint8)).save(tmp_path / f"{number}.png")
    gl.convert(gl.images(str(tmp_path / "*.png"), labels=[3, 1, 4, 1, 5]), tmp_path / "a.tfrecord")
    index, place = [], 0
    raw = (tmp_path / "a.tfrecord").read_bytes()
    while place < len(raw):
        length = int.from_bytes(raw[place : place + 8], "little") + 16
        index.append(f"{place} {length}\n")
        place += length
    (tmp_path / "a.idx").write_text("".join(index))

    @dali.pipeline_def(batch_size=5, num_threads=1, device_id=None)
    def read():
        fields = dali.fn.readers.tfrecord(
            path=str(tmp_path / "a.tfrecord"),
            index_path=str(tmp_path / "a.idx"),
            features={
                "image": dali.tfrecord.FixedLenFeature((), dali.tfrecord.string, ""),
                "label": dali.tfrecord.FixedLenFeature([1], dali.tfrecord.int64, -1),
            },
        )
        return dali.fn.decoders.image(fields["image"], device="cpu"), fields["label"]

    pipeline = read()
    pipeline.build()
    images, labels = pipeline.run()

    assert labels.as_array().reshape(-1).tolist() == [3, 1, 4, 1, 5]
    assert_same(
        images.as_array(),
        np.stack([np.full((8, 6, 3), 50 * number, np.uint8) for number in range(5)]),
    )


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.sampled_from(EDGES), max_size=40))
@example(EDGES)
def test_varints_are_those_of_protobuf(numbers):
    from_protobuf = b""
    for number in numbers:
        number %= 2**64
        while number > 127:
            from_protobuf += bytes([number % 128 + 128])
            number //= 128
        from_protobuf += bytes([number])

    raw, places = wire.varints(np.array(numbers, np.int64))

    assert raw.tobytes() == from_protobuf
    assert places[-1] == len(from_protobuf)
    parts = [raw[begin:end].tobytes() for begin, end in pairwise(places)]
    assert [wire.varint(number % 2**64) for number in numbers] == parts


def test_text_that_is_no_utf_8_is_refused_by_record(tmp_path):
    source = gl.arrays(x=np.arange(3), text=np.array(["a", "b", "c\ud800"]))

    with pytest.raises(
        RecordError, match=r"record 2: 'c\\ud800' cannot be written as UTF-8(.|\n)*surrogate pair"
    ):
        gl.convert(source, tmp_path / "a.tfrecord")
    with pytest.raises(SpecError, match="surrogate pair"):
        gl.convert(source.rename(x="\udfff"), tmp_path / "a.tfrecord")


# --- what a format cannot hold


RAGGED = gl.records(3, lambda numbers: {"x": [np.zeros(number, "f4") for number in numbers]})
SEVERAL = gl.records(
    3, lambda numbers: {"x": [np.zeros((number, number), "f4") for number in numbers]}
)
OTHERS = r"choose tensors=\['x'\] \(--tensor\), raw=\['x'\] \(--raw\), or NPY"
REFUSED = [
    ("npy", RAGGED, r"field x: float32 \(None,\) cannot be written as npy(.|\n)*varies(.|\n)*TFRecord"),
    ("npz", RAGGED, r"cannot be written as npz(.|\n)*varies(.|\n)*TFRecord"),
    ("fixed", RAGGED, r"cannot be written as fixed(.|\n)*varies(.|\n)*TFRecord"),
    ("tfrecord", SEVERAL, r"cannot be written as tfrecord(.|\n)*a list has no shape(.|\n)*tensors=\['x'\]"),
    ("tfrecord", gl.arrays(x=MORE["double"]), r"float64(.|\n)*cannot hold all of its values(.|\n)*" + OTHERS),
    ("tfrecord", gl.arrays(x=MORE["complex"]), r"complex128(.|\n)*cannot hold(.|\n)*tensors="),
    ("tfrecord", gl.arrays(x=MORE["big"]), r"uint64(.|\n)*cannot hold all of its values(.|\n)*tensors="),
    ("tfrecord", gl.arrays(x=MORE["when"]), r"datetime64\[ms\](.|\n)*no times(.|\n)*raw=\['x'\]"),
    ("tfrecord", gl.arrays(x=MORE["long"]), r"float128(.|\n)*some of its bytes mean nothing(.|\n)*NPY"),
    ("images", gl.arrays(x=MORE["double"]), r"0 fields of encoded images(.|\n)*\.tfrecord"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "source", "message"), REFUSED)
def test_what_a_format_cannot_hold_is_refused_by_name_with_another_choice(
    tmp_path, form, source, message
):
    with pytest.raises(SpecError, match=message):
        gl.convert(source, tmp_path / "out", format=form)

    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("form", ["npy", "npz", "fixed", "tfrecord"])
def test_dtypes_that_numpy_does_not_have_are_refused(tmp_path, form):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    source = gl.arrays(x=np.zeros(3, ml_dtypes.bfloat16))

    with pytest.raises(
        SpecError, match=r"bfloat16(.|\n)*no dtype of NumPy's own(.|\n)*astype\('f4'\)"
    ):
        gl.convert(source, tmp_path / "out", format=form)


def test_all_fields_that_cannot_be_held_are_named_at_once(tmp_path):
    with pytest.raises(
        SpecError,
        match=r"field double: float64 \(\) cannot be written as tfrecord, nor can complex, when",
    ):
        gl.convert(whole(**MORE), tmp_path / "a.tfrecord")


def test_tensors_of_dtypes_that_tensorflow_has_not_are_refused(tmp_path):
    with pytest.raises(
        SpecError, match=r"TensorFlow's tensors have no dtype for datetime64(.|\n)*raw="
    ):
        gl.convert(gl.arrays(x=MORE["when"]), tmp_path / "a.tfrecord", tensors=["x"])


@pytest.mark.parametrize("name", ["../x", "a/b", "..", "a:b"])
def test_names_that_no_member_of_an_archive_should_have_are_refused(tmp_path, name):
    source = gl.arrays(x=np.zeros(3)).rename(x=name)

    with pytest.raises(SpecError, match="the name of a file in the archive"):
        gl.convert(source, tmp_path / "a.npz")
    if name != "a:b":
        with pytest.raises(SpecError, match="a part of a file's name"):
            gl.convert(source, tmp_path / "{field}.npy")


# --- folders of images


@pytest.fixture
def photos(tmp_path):
    """Return a folder of images in class folders, one of them empty."""
    image = pytest.importorskip("PIL.Image")
    root = tmp_path / "photos"
    for number in range(9):
        folder = root / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (5, 4 + number, 3), np.uint8)
        image.fromarray(pixels).save(folder / f"{number}.{'png' if number % 3 else 'jpg'}")
    (root / "emu").mkdir()
    return root


def contents(source):
    return sorted(
        (value.tobytes(), int(label))
        for value, label in zip(*source.read(range(len(source))).values(), strict=True)
    )


def test_images_go_to_the_folders_of_their_classes_unchanged(tmp_path, photos):
    source = gl.images(photos, classes=["cat", "dog", "emu"])
    conversion = gl.convert(source[::-1], tmp_path / "out/", format="images")

    again = eval(conversion.call)

    assert (
        again.classes
        == source.classes
        == gl.open(tmp_path / "out").classes
        == ("cat", "dog", "emu")
    )
    assert json.loads((tmp_path / "out" / "classes.json").read_text()) == ["cat", "dog", "emu"]
    assert contents(again) == contents(source)
    assert sorted(path.name for path in (tmp_path / "out" / "dog").iterdir()) == [
        "0.png",
        "1.jpg",
        "2.png",
        "3.png",
        "4.jpg",
    ]
    assert contents(gl.open(tmp_path / "out")) == contents(source)


@pytest.mark.parametrize(
    "labels", [[0.5 * number for number in range(9)], list(range(9)), ["x,y", 'z"', "é"] * 3, None]
)
def test_other_labels_stand_in_a_table(tmp_path, photos, labels):
    source = gl.images(str(photos / "*" / "*"), labels=labels)
    if isinstance(labels, list) and isinstance(labels[0], str):
        source = gl.zip(
            gl.images(str(photos / "*" / "*"), labels=None), gl.arrays(label=np.array(labels))
        )
    conversion = gl.convert(source, tmp_path / "out/")

    names = sorted(os.listdir(tmp_path / "out"))
    again = eval(conversion.call)

    assert [name[0] for name in names if name != "labels.csv"] == list("012345678")
    for number in range(9):
        assert_same(again[number]["image"], source[number]["image"])
    if labels is None:
        assert names == [name for name in names if name != "labels.csv"]
        assert again.spec.names == ("image",)
    else:
        with open(tmp_path / "out" / "labels.csv", newline="") as file:
            lines = list(csv.reader(file))
        assert lines == [
            ["file", "label"],
            *([name, str(label)] for name, label in zip(names, labels, strict=False)),
        ]
        values = again.read(range(9))["label"].tolist()
        assert (
            [again.classes[item] for item in values] if isinstance(labels[0], str) else values
        ) == labels
        assert gl.open(tmp_path / "out").read(range(9))["label"].tolist() == values


def test_a_class_that_no_folder_can_be_called_is_refused(tmp_path, photos):
    for name in ("../evil", ".hidden", "", "a/b"):
        source = gl.images(photos)
        source.classes = tuple(sorted((name, "dog", "emu")))
        with pytest.raises(SpecError, match=r"class .* cannot be the name of a folder"):
            gl.convert(source, tmp_path / "out/")
    assert not (tmp_path / "evil").exists()


def test_bytes_that_are_no_image_and_labels_that_are_no_class_are_refused(tmp_path, photos):
    bad = gl.arrays(image=np.zeros((3, 10), "u1")).mark(image="encoded")
    with pytest.raises(RecordError, match=r"record 0: its bytes are no image"):
        gl.convert(bad, tmp_path / "a/")
    source = gl.zip(gl.images(photos, labels=None), gl.arrays(label=np.arange(9)))
    source.classes = ("cat", "dog")
    with pytest.raises(RecordError, match=r"its label is 2(.|\n)*classes 0 to 1"):
        gl.convert(source, tmp_path / "b/")
    assert not Path(tmp_path / "a").exists()


def test_a_folder_holds_one_image_and_one_label(tmp_path, photos):
    source = gl.images(photos)
    pair = gl.zip(source, source.rename(image="other", label="l"))
    with pytest.raises(SpecError, match="2 fields of encoded images"):
        gl.convert(pair, tmp_path / "a/")
    with pytest.raises(
        SpecError, match=r"beside the image a folder holds one label, and 'label' is one already"
    ):
        gl.convert(gl.zip(source, gl.arrays(x=np.zeros(9))), tmp_path / "a/")
    with pytest.raises(SpecError, match="one number or text"):
        gl.convert(
            gl.zip(gl.images(photos, labels=None), gl.arrays(x=np.zeros((9, 2)))), tmp_path / "a/"
        )
