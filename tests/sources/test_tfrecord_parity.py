"""TFRecords beside others: TensorFlow's reader and parsers, protobuf's, and our two parsers against
one another."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuload as gl
from gpuload import strings
from gpuload.errors import RecordError, RowError, SpecError
from gpuload.formats.tfrecord import parsing
from gpuload.formats.tfrecord.features import columns_of
from gpuload.formats.tfrecord.values import values_of
from gpuload.ragged import Ragged, offsets_of
from tests.sources import tfrecordfiles as files
from tests.sources.tfrecordfiles import example, write

tf = pytest.importorskip("tensorflow")

GOLDEN = Path(__file__).parents[1] / "golden" / "tfrecord"
SHARED = Path(__file__).parents[3] / "shared" / "data" / "tfrecord"


def parsed(payloads, features, sequence=None, *, compiled=True):
    """Return the fields of payloads as our parser has them, a list of rows for each; by one of its
    forms."""
    columns = columns_of(features, sequence)
    offsets = offsets_of(np.array([len(payload) for payload in payloads], np.int64))
    raw = np.frombuffer(bytearray(b"".join(payloads) + b"\xff" * 8), np.uint8)
    find = parsing.parse_features if compiled else parsing.plain
    result = find(raw, offsets[:-1], offsets[1:], columns)
    results = {
        column.field.name: values_of(column, item, raw)
        for column, item in zip(columns, result, strict=True)
    }
    return {
        column.field.name: strings.unpack(column.field, results[column.field.name])
        if column.field.text
        else results[column.field.name]
        for column in columns
    }


def rows_of(values):
    return [np.asarray(row).tolist() for row in values]


# TensorFlow's parsers

FEATURES = {
    "label": "i8",
    "box": gl.Feature("f4", (2,), default=[0.5, -1.0]),
    "score": gl.Feature("i8", (), default=-7),
    "tags": ("i8", (None,)),
    "waves": ("f4", (None,)),
    "name": gl.Raw(default=b"nobody"),
    "text": gl.Feature("S", default=b"nobody"),
    "pair": gl.Feature("S", (2,), default=["a", b"\xff"]),
    "words": ("S", (None,)),
}
OF_TENSORFLOW = {
    "label": tf.io.FixedLenFeature([], tf.int64),
    "box": tf.io.FixedLenFeature([2], tf.float32, [0.5, -1.0]),
    "score": tf.io.FixedLenFeature([], tf.int64, -7),
    "tags": tf.io.RaggedFeature(tf.int64),
    "waves": tf.io.RaggedFeature(tf.float32),
    "name": tf.io.FixedLenFeature([], tf.string, "nobody"),
    "text": tf.io.FixedLenFeature([], tf.string, "nobody"),
    "pair": tf.io.FixedLenFeature([2], tf.string, ["a", b"\xff"]),
    "words": tf.io.RaggedFeature(tf.string),
}
INTS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(width=32, allow_nan=False)
FITTING = {
    "label": st.lists(INTS, min_size=1, max_size=1),
    "box": st.lists(FLOATS, min_size=2, max_size=2),
    "score": st.lists(INTS, min_size=1, max_size=1),
    "tags": st.lists(INTS, max_size=5),
    "waves": st.lists(FLOATS, max_size=5),
    "name": st.lists(st.binary(max_size=5), min_size=1, max_size=1),
    "text": st.lists(st.binary(max_size=300), min_size=1, max_size=1),
    "pair": st.lists(st.binary(max_size=5), min_size=2, max_size=2),
    "words": st.lists(st.binary(max_size=5), max_size=5),
}
ANY = st.one_of(
    st.lists(INTS, max_size=3),
    st.lists(FLOATS, max_size=3),
    st.lists(st.binary(max_size=3), max_size=3),
)


def tf_feature(kind, values):
    """Return a Feature by protobuf; of no values an empty list, which is not no list."""
    if kind == "empty":
        return tf.train.Feature()
    if kind in ("tags", "label", "score") or any(isinstance(value, int) for value in values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    if kind in ("waves", "box") or any(isinstance(value, float) for value in values):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


@st.composite
def fitting_examples(draw):
    """Draw an Example that fits, or has something missing, empty, or - seldom - wrong."""
    features = {}
    for name, values in FITTING.items():
        how = draw(st.sampled_from(["fitting"] * 12 + ["missing", "empty", "any"]))
        if how == "fitting" or (name == "label" and how != "any"):
            features[name] = tf_feature(name, draw(values))
        elif how == "empty":
            features[name] = tf_feature("empty", [])
        elif how == "any":
            features[name] = tf_feature("any", draw(ANY))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


@settings(max_examples=2 * settings().max_examples)
@given(st.lists(fitting_examples(), min_size=1, max_size=4), st.booleans())
def test_examples_are_what_parse_example_makes_of_them(payloads, compiled):
    try:
        expected = tf.io.parse_example(tf.constant(payloads), OF_TENSORFLOW)
    except tf.errors.OpError:
        with pytest.raises(RowError):
            parsed(payloads, FEATURES, compiled=compiled)
        return

    result = parsed(payloads, FEATURES, compiled=compiled)

    for name in ("label", "box", "score"):
        np.testing.assert_array_equal(result[name], expected[name].numpy())
    for name in ("tags", "waves"):
        assert rows_of(result[name]) == expected[name].to_list()
    assert [bytes(value) for value in result["name"]] == expected["name"].numpy().tolist()
    for name in ("text", "pair"):
        assert result[name].tolist() == expected[name].numpy().tolist()
    assert rows_of(result["words"]) == expected["words"].to_list()


STEPS = {
    "tokens": st.lists(INTS, min_size=1, max_size=1),
    "frames": st.lists(FLOATS, min_size=2, max_size=2),
    "words": st.lists(st.binary(max_size=5), min_size=1, max_size=1),
    "pairs": st.lists(st.binary(max_size=5), min_size=2, max_size=2),
}


@st.composite
def sequence_examples(draw):
    lists = {}
    for name, values in STEPS.items():
        if draw(st.integers(0, 5)):
            steps = [
                tf_feature({"tokens": "tags", "frames": "box"}.get(name, name), draw(values))
                for _ in range(draw(st.integers(0, 4)))
            ]
            if steps and not draw(st.integers(0, 9)):
                steps[-1] = tf_feature("any", draw(ANY))
            lists[name] = tf.train.FeatureList(feature=steps)
    context = {"label": tf_feature("label", [draw(INTS)])} if draw(st.integers(0, 9)) else {}
    return tf.train.SequenceExample(
        context=tf.train.Features(feature=context),
        feature_lists=tf.train.FeatureLists(feature_list=lists),
    ).SerializeToString()


@settings(max_examples=2 * settings().max_examples)
@given(sequence_examples(), st.booleans())
def test_sequences_are_what_parse_single_sequence_example_makes_of_them(payload, compiled):
    sequence = {"tokens": "i8", "frames": ("f4", (2,)), "words": "S", "pairs": ("S", (2,))}
    of_tensorflow = {
        "tokens": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True),
        "frames": tf.io.FixedLenSequenceFeature([2], tf.float32, allow_missing=True),
        "words": tf.io.FixedLenSequenceFeature([], tf.string, allow_missing=True),
        "pairs": tf.io.FixedLenSequenceFeature([2], tf.string, allow_missing=True),
    }
    try:
        context, lists = tf.io.parse_single_sequence_example(
            payload, {"label": OF_TENSORFLOW["label"]}, of_tensorflow
        )
    except tf.errors.OpError:
        with pytest.raises(RowError):
            parsed([payload], {"label": "i8"}, sequence, compiled=compiled)
        return

    result = parsed([payload], {"label": "i8"}, sequence, compiled=compiled)

    assert result["label"].tolist() == [context["label"].numpy()]
    for name in sequence:
        np.testing.assert_array_equal(result[name][0], lists[name].numpy())
        assert result[name][0].dtype == lists[name].numpy().dtype


def test_features_of_tensorflow_are_taken_as_they_are(tmp_path):
    payloads = [
        example(
            label=number,
            box=[0.25, number + 0.5],
            tags=list(range(number + 1)),
            waves=[0.5],
            name=b"ab",
        )
        for number in range(4)
    ]
    path = write(tmp_path / "a.tfrecord", payloads)
    old = tf.io.parse_example(payloads, OF_TENSORFLOW)

    extra = {
        "more": tf.io.RaggedFeature(tf.int64, "tags"),
        "sequence": tf.io.FixedLenSequenceFeature([], tf.string, allow_missing=True),
        "varying": tf.io.VarLenFeature(tf.string),
    }
    source = gl.tfrecord(path, {**OF_TENSORFLOW, **extra})
    values = source.read(range(4))

    assert source.spec["label"].dtype == np.int64
    for name in ("label", "box", "score"):
        np.testing.assert_array_equal(values[name], old[name].numpy())
    assert rows_of(values["more"]) == rows_of(values["tags"]) == old["tags"].to_list()
    for name in ("name", "text", "pair"):
        assert values[name].dtype == object
        assert values[name].tolist() == old[name].numpy().tolist()
    assert rows_of(values["varying"]) == rows_of(values["sequence"]) == [[]] * 4
    assert source.spec["varying"].text == source.spec["name"].text == "bytes"


SPARSE = tf.io.SparseFeature("place", "value", tf.float32, 5)
SPARSE_2D = tf.io.SparseFeature(["row", "column"], "value", tf.float32, [2, 3])


@settings(max_examples=2 * settings().max_examples)
@given(
    st.lists(
        st.dictionaries(st.tuples(st.integers(0, 1), st.integers(0, 2)), FLOATS),
        min_size=1,
        max_size=4,
    )
)
def test_a_sparse_feature_is_what_to_dense_makes_of_it(tmp_path_factory, records):
    payloads = [
        example(
            row=[row for row, _ in values],
            column=[column for _, column in values],
            value=list(values.values()),
        )
        for values in records
    ]
    expected = tf.io.parse_example(payloads, {"x": SPARSE_2D})["x"]

    source = gl.tfrecord(
        write(tmp_path_factory.mktemp("sparse") / "a.tfrecord", payloads), {"x": SPARSE_2D}
    )

    np.testing.assert_array_equal(
        source.read(range(len(records)))["x"], tf.sparse.to_dense(expected).numpy()
    )


def test_a_sparse_feature_of_one_axis_is_an_array_of_its_size(tmp_path):
    payloads = [example(place=[4, 0], value=[0.5, 2.0]), example()]
    expected = tf.sparse.to_dense(tf.io.parse_example(payloads, {"x": SPARSE})["x"])

    source = gl.tfrecord(write(tmp_path / "a.tfrecord", payloads), {"x": SPARSE})

    np.testing.assert_array_equal(source.read([0, 1])["x"], expected.numpy())
    assert source.features == {"x": SPARSE}
    again = gl.tfrecord(
        tmp_path / "a.tfrecord", {"x": gl.Sparse("f4", 5, index_key="place", value_key="value")}
    )
    assert again.fingerprint() == source.fingerprint()


@pytest.mark.parametrize(
    ("features", "reason"),
    [
        ({"place": [5], "value": [1.0]}, "at place 5 of axis 0"),
        ({"place": [-1], "value": [1.0]}, "at place -1 of axis 0"),
        ({"place": [1, 1], "value": [1.0, 2.0]}, "two values at one place"),
        ({"place": [1], "value": [1.0, 2.0]}, "2 values and 1 places"),
        ({"place": [1]}, "0 values and 1 places"),
        ({"place": [1.5], "value": [1.0]}, "is a list of 1 float values"),
    ],
)
def test_places_that_do_not_fit_are_an_error_that_names_the_record(tmp_path, features, reason):
    path = write(tmp_path / "a.tfrecord", [example(place=[0], value=[1.0]), example(**features)])
    source = gl.tfrecord(path, {"x": SPARSE})

    with pytest.raises(RecordError, match=reason) as caught:
        source.read([0, 1])

    assert "record 1" in str(caught.value)


@pytest.mark.parametrize(
    "feature",
    [
        tf.io.SparseFeature("a", "b", tf.string, 3),
        tf.io.RaggedFeature(tf.int64, partitions=[tf.io.RaggedFeature.RowSplits("s")]),
        tf.float32,
    ],
)
def test_features_of_tensorflow_that_have_no_form_here_are_refused(tmp_path, feature):
    with pytest.raises(gl.GpuloadError) as caught:
        gl.tfrecord(write(tmp_path / "a.tfrecord", [example(x=1)]), {"x": feature})

    assert caught.value.remedy


# Serialized tensors

TENSORS = {
    "f4": np.arange(6, dtype="f4").reshape(2, 3), "f8": np.array([[1e300, -0.0, 0.5]]),
    "i4": np.array([[-1, 2**31 - 1]], "i4"),
    "u1": np.arange(4, dtype="u1").reshape(2, 2), "i2": np.array([-3, 3], "i2"), "i1": np.array([-3, 3], "i1"),
    "i8": np.array([-(2**63), 2**63 - 1]), "?": np.array([True, False, True]), "u2": np.array([65535], "u2"),
    "u4": np.array([2**32 - 1, 0], "u4"), "u8": np.array([2**64 - 1, 0], "u8"), "f2": np.array([0.5, -65504], "f2"),
    "c8": np.array([1 + 2j, 3], "c8"), "c16": np.array([1 + 2j, 3], "c16"), "none": np.zeros((0, 4), "f4"),
    "scalar": np.float32(2.5),
}  # fmt: skip


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("result", ["serialize_tensor", "make_tensor_proto", "values"])
def test_serialized_tensors_are_read_however_they_were_written(name, result):
    tensor = np.asarray(TENSORS[name])
    if result == "serialize_tensor":
        data = tf.io.serialize_tensor(tensor).numpy()
    else:
        proto = tf.make_tensor_proto(tensor)
        if result == "values":  # in a list of numbers, which is how few elements are written
            from tensorflow.core.framework import tensor_pb2

            proto = tensor_pb2.TensorProto(dtype=proto.dtype, tensor_shape=proto.tensor_shape)
            flat = tensor.reshape(-1)
            field = {
                "f": {2: "half_val", 4: "float_val", 8: "double_val"}.get(tensor.itemsize),
                "c": {8: "scomplex_val", 16: "dcomplex_val"}.get(tensor.itemsize),
                "b": "bool_val",
                "i": "int64_val" if tensor.itemsize == 8 else "int_val",
                "u": {4: "uint32_val", 8: "uint64_val"}.get(tensor.itemsize, "int_val"),
            }[tensor.dtype.kind]
            if tensor.dtype.kind == "c":
                flat = flat.view(flat.real.dtype)
            elif field == "half_val":
                flat = flat.view(np.uint16)
            getattr(proto, field).extend(flat.tolist())
        data = proto.SerializeToString()
        np.testing.assert_array_equal(tf.io.parse_tensor(data, tensor.dtype).numpy(), tensor)

    for shape in (tensor.shape, (None,) * tensor.ndim):
        values = parsed([example(x=data)] * 3, {"x": gl.Tensor(tensor.dtype, shape)})["x"]

        assert len(values) == 3
        for item in values:
            np.testing.assert_array_equal(item, tensor)
            assert np.asarray(item).dtype == tensor.dtype


def test_dtype_and_shape_of_tensors_are_found_in_the_first_records(tmp_path):
    tensors = [np.arange(2 * n, dtype="i4").reshape(n, 2) for n in (3, 0, 1)]
    path = write(
        tmp_path / "a.tfrecord",
        [
            example(
                x=tf.io.serialize_tensor(item).numpy(), y=tf.io.serialize_tensor(item[:0]).numpy()
            )
            for item in tensors
        ],
    )

    source = gl.tfrecord(
        path,
        {"x": gl.Tensor(), "same": gl.Tensor(key="y"), "half": gl.Tensor(shape=(0, 2), key="y")},
    )
    again = pickle.loads(pickle.dumps(source))

    assert [str(field) for field in source.spec] == [
        "x: int32 (None, 2)",
        "same: int32 (0, 2)",
        "half: int32 (0, 2)",
    ]
    assert source.features["x"] == gl.Tensor(np.dtype("i4").str[1:], (None, 2))
    for number, expected in enumerate(tensors):
        np.testing.assert_array_equal(again[number]["x"], expected)


@pytest.mark.parametrize(
    ("values", "expected", "error", "message"),
    [
        (
            [np.zeros(2, "f4"), np.zeros(2, "f8")],
            gl.Tensor(),
            SpecError,
            "tensors of .'f4', 'f8'. with shapes",
        ),
        (
            [np.zeros(2, "f4"), np.zeros((2, 2), "f4")],
            gl.Tensor(),
            SpecError,
            r"shapes \[\(2,\), \(2, 2\)\]",
        ),
        ([np.zeros(2, "f4")], gl.Tensor(key="z"), SpecError, "no such feature"),
        ([np.array([b"a"])], gl.Tensor(), RecordError, "tensor of string"),
        ([b"\xff\xff"], gl.Tensor(), RecordError, r"a\.tfrecord, record 0: feature 'x'"),
    ],
)
def test_tensors_whose_dtype_and_shape_cannot_be_found_are_refused(
    tmp_path, values, expected, error, message
):
    payloads = [
        item if isinstance(item, bytes) else tf.io.serialize_tensor(item).numpy() for item in values
    ]
    path = write(tmp_path / "a.tfrecord", [example(x=payload) for payload in payloads])
    with pytest.raises(error, match=message):
        gl.tfrecord(path, {"x": expected})


def test_a_whole_record_and_the_steps_of_a_list_need_a_dtype():
    for features, sequence in ((gl.Tensor(), None), ({}, {"x": gl.Tensor()})):
        with pytest.raises(SpecError, match="dtype None"):
            columns_of(features, sequence)


def test_tensors_of_varying_shape_are_ragged_or_a_list():
    tensors = [np.arange(2 * n, dtype="i4").reshape(n, 2) for n in (3, 0, 1)]
    payloads = [example(x=tf.io.serialize_tensor(item).numpy()) for item in tensors]

    ragged = parsed(payloads, {"x": gl.Tensor("i4", (None, 2))})["x"]
    entries = parsed(payloads, {"x": gl.Tensor("i4", (None, None))})["x"]

    assert isinstance(ragged, Ragged)
    assert isinstance(entries, list)
    for item, two, expected in zip(ragged, entries, tensors, strict=True):
        np.testing.assert_array_equal(item, expected)
        np.testing.assert_array_equal(two, expected)


def test_the_last_element_of_a_stated_shape_is_repeated_as_tensorflow_has_it():
    data = tf.make_tensor_proto(np.float32(3.5)).SerializeToString()
    from tensorflow.core.framework import tensor_pb2

    proto = tensor_pb2.TensorProto.FromString(data)
    proto.tensor_shape.CopyFrom(tf.TensorShape([2, 2]).as_proto())
    data = proto.SerializeToString()

    values = parsed([example(x=data)], {"x": gl.Tensor("f4", (2, 2))})["x"]
    np.testing.assert_array_equal(values[0], tf.io.parse_tensor(data, tf.float32).numpy())
    with pytest.raises(
        RowError, match="1 elements for a shape"
    ):  # a few bytes must not become any size
        parsed([example(x=data)], {"x": gl.Tensor("f4", (None, 2))})


def claiming(*dims):
    """Return a tensor of float32 without elements that says that it has this shape."""
    sizes = b"".join(files.message(2, files.tag(1, 0) + files.varint(size)) for size in dims)
    return b"\x08\x01" + files.message(2, sizes)


@pytest.mark.parametrize(
    ("tensor", "expected", "message"),
    [
        (np.zeros(3, "f4"), gl.Tensor("f8", (3,)), "tensor of float32, not of float64"),
        (np.zeros(3, "f4"), gl.Tensor("f4", (4,)), r"shape \(3,\), not of \(4,\)"),
        (np.zeros(3, "f4"), gl.Tensor("f4", ()), r"shape \(3,\), not of \(\)"),
        (np.array([b"a"]), gl.Tensor("f4", (1,)), "tensor of string"),
        (b"\x0a\x05", gl.Tensor("f4", (1,)), "no serialized tensor: byte 0 of its 2"),
        (b"", gl.Tensor("f4", ()), "tensor of type 0"),
        (claiming(2**40), gl.Tensor("f4", (None,)), f"0 elements for a shape of .{2**40},."),
        (claiming(2**61, 2**61), gl.Tensor("f4", (None, None)), "0 elements for a shape of"),
        (claiming(0, 2**61), gl.Tensor("f4", (None, None)), "is a tensor of shape"),
        (claiming(2**62), gl.Tensor("f4", (None,)), f"axis 0 of its shape is {2**62}"),
        (claiming(-1), gl.Tensor("f4", (None,)), "axis 0 of its shape is -1"),
        (
            b"\x08\x01\x12\x02\x18\x01",
            gl.Tensor("f4", (None,)),
            "its shape says that it is unknown",
        ),
        (claiming(3) + b"\x22\x02ab", gl.Tensor("f4", (3,)), "2 bytes for a shape of"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tensor, expected, message):
    data = tensor if isinstance(tensor, bytes) else tf.io.serialize_tensor(tensor).numpy()

    for compiled in (True, False):
        with pytest.raises(RowError, match=message) as caught:
            parsed([example(x=data)], {"x": expected}, compiled=compiled)
        assert caught.value.remedy


def test_of_several_tensors_the_one_that_does_not_fit_is_named():
    good, bad = (tf.io.serialize_tensor(np.zeros(n, "f4")).numpy() for n in (3, 4))

    with pytest.raises(RowError, match="shape") as caught:
        parsed([example(x=item) for item in (good, good, bad)], {"x": gl.Tensor("f4", (3,))})

    assert caught.value.row == 2


# The wire format, beside protobuf's parser

KEYS = ["a", "bb", ""]


@st.composite
def odd_fields(draw):
    """Draw fields that no message of Example knows."""
    number = draw(st.sampled_from([4, 5, 15, 16, 2**29 - 1]))
    inner = st.sampled_from([
        files.tag(number, 0) + files.varint(draw(st.integers(0, 2**64 - 1))), files.tag(number, 1) + bytes(8),
        files.tag(number, 5) + bytes(4), files.message(number, draw(st.binary(max_size=3))), files.group(number, b""),
        files.group(number, files.group(7, files.message(1, b"x"))),
    ])  # fmt: skip
    return draw(inner)


@st.composite
def messages(draw):
    """Draw an Example with fields in any order, twice, split, packed and not, and with unknown ones
    between."""

    def mixed(parts):
        parts = [*parts, *draw(st.lists(odd_fields(), max_size=1))]
        return b"".join(draw(st.permutations(parts)))

    def some_list():
        packed_bytes = draw(st.booleans())
        result = (
            st.lists(INTS, max_size=3).map(lambda part: files.ints(*part, packed=packed_bytes)),
            st.lists(FLOATS, max_size=3).map(lambda part: files.floats(*part, packed=packed_bytes)),
            st.lists(st.binary(max_size=3), max_size=3).map(lambda part: files.texts(*part)),
        )
        return draw(st.one_of(result))

    def entry():  # without unknown fields: protobuf keeps such an entry out of the map
        parts = [
            files.message(1, key.encode())
            for key in draw(st.lists(st.sampled_from(KEYS), max_size=2))
        ]
        values = [
            mixed([some_list() for _ in range(draw(st.integers(0, 2)))])
            for _ in range(draw(st.integers(0, 2)))
        ]
        return files.message(
            1,
            b"".join(draw(st.permutations([*parts, *(files.message(2, item) for item in values)]))),
        )

    def features():
        return files.message(1, mixed([entry() for _ in range(draw(st.integers(0, 3)))]))

    return mixed([features() for _ in range(draw(st.integers(0, 2)))])


@settings(max_examples=3 * settings().max_examples)
@given(messages(), st.booleans())
def test_messages_mean_what_protobuf_says(payload, compiled):
    reference = tf.train.Example.FromString(payload).features.feature
    features, expected = {}, {}
    for number, key in enumerate(KEYS):
        kind = reference[key].WhichOneof("kind") if key in reference else None
        values = [] if kind is None else list(getattr(reference[key], kind).value)
        dtype = {"int64_list": "i8", "float_list": "f4", "bytes_list": "S9", None: "i8"}[kind]
        features[str(number)] = gl.Feature(dtype, (None,), key=key)
        expected[str(number)] = values

    if any(
        value.endswith(b"\0")
        for values in expected.values()
        for value in values
        if isinstance(value, bytes)
    ):
        return  # texts that end in zero are refused, which has a test of its own
    result = parsed([b"", payload], features, compiled=compiled)

    assert {name: result[name][1].tolist() for name in result} == expected


@settings(max_examples=3 * settings().max_examples)
@given(
    messages(),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4),
    st.integers(0, 200),
)
def test_our_two_parsers_say_the_same_of_any_bytes(payload, changes, cut):
    data = bytearray(payload)
    for place, value in changes:
        if place < len(data):
            data[place] = value
    payloads = [bytes(data), bytes(data[:cut]), payload]
    features = {
        key or "none": gl.Feature(dtype, (None,), key=key)
        for key, dtype in zip(KEYS, ("i8", "f4", "S9"), strict=True)
    }
    sequence = {"steps": gl.Feature("i8", (2,), key="a", pad=0)}
    for number in range(3):
        results = []
        for compiled in (True, False):
            try:
                result = parsed(
                    payloads[number : number + 1], features, sequence, compiled=compiled
                )
                results.append({name: rows_of(values) for name, values in result.items()})
            except RowError as error:
                results.append(str(error))
        assert repr(results[0]) == repr(
            results[1]
        )  # by their text: a not-a-number is not equal to itself


# Real files


def of_tensorflow(path):
    packed_bytes = "GZIP" if path.read_bytes()[:2] == b"\x1f\x8b" else ""
    return [bytes(record.numpy()) for record in tf.data.TFRecordDataset(str(path), packed_bytes)]


PATHS = sorted(path for path in GOLDEN.rglob("*") if path.is_file() and path.suffix != ".md")


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_records_are_those_of_tensorflow(path):
    source = gl.tfrecord(path, "bytes")

    assert [bytes(value) for value in source.read(range(len(source)))["record"]] == of_tensorflow(
        path
    )
    assert len(source) > 0


FOREIGN = ("lingvo", "magenta", "nucleus", "ranking")


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_is_found_in_real_files_is_what_protobuf_reads(path):
    if path.parent.name in FOREIGN:
        with pytest.raises(
            gl.GpuloadError, match=r"is no tf\.train\.Example|no features are found"
        ):
            gl.tfrecord(path)
        return
    source = gl.tfrecord(path)
    result = source.read(range(len(source)))
    payloads = of_tensorflow(path)
    step = max(1, len(payloads) // 100)

    for number in range(0, len(payloads), step):
        context = tf.train.Example.FromString(payloads[number]).features.feature
        lists = tf.train.SequenceExample.FromString(payloads[number]).feature_lists.feature_list
        assert set(context) | set(lists) <= set(source.spec.names)
        for name in source.features:
            kind = context[name].WhichOneof("kind") if name in context else None
            expected = [] if kind is None else list(getattr(context[name], kind).value)
            value = result[name][number]
            if source.spec[name].dtype == np.uint8:
                assert bytes(value) == (expected[0] if expected else b"")
            elif source.spec[name].text:
                texts = np.ravel(value).tolist()
                assert [text.encode() if isinstance(text, str) else text for text in texts] == (
                    expected or [b""] * len(texts)
                )
            else:
                assert np.ravel(value).tolist() == expected
        for name in source.sequence or ():
            kinds = [step.WhichOneof("kind") for step in lists[name].feature]
            steps = [
                list(getattr(step, kind).value)
                for step, kind in zip(lists[name].feature, kinds, strict=True)
            ]
            values = [value for step in steps for value in step]
            texts = [value.decode() if isinstance(value, bytes) else value for value in values]
            assert np.ravel(result[name][number]).tolist() in (values, texts)


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_files_that_tensorflow_wrote_are_read(tmp_path, compression):
    payloads = [example(x=number, name=b"n" * number) for number in range(50)]
    path = str(tmp_path / "a.tfrecord")
    with tf.io.TFRecordWriter(path, compression) as writer:
        for payload in payloads:
            writer.write(payload)

    values = gl.tfrecord(path, {"x": "i8", "name": "bytes"}).read(range(50))

    assert values["x"].tolist() == list(range(50))
    assert [len(value) for value in values["name"]] == list(range(50))


def test_a_damaged_file_is_refused_where_tensorflow_refuses_it(tmp_path):
    whole = b"".join(files.frame(example(x=number)) for number in range(3))
    error = 0
    for place in range(len(whole)):
        path = tmp_path / "a.tfrecord"
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])

        with pytest.raises(gl.GpuloadError):
            gl.tfrecord(path, "bytes", compression=None).read([0, 1, 2])
        error += 1
    assert error == len(whole)
    with pytest.raises(tf.errors.DataLossError):
        list(tf.data.TFRecordDataset(str(path)))


def test_mnist_of_the_shared_data_is_what_parse_example_reads(tmp_path):
    path = SHARED / "tfx" / "mnist.tfrecord"
    if not path.exists():
        pytest.skip("the shared files are not beside the checkout")
    copy = tmp_path / "mnist.tfrecord"
    copy.write_bytes(path.read_bytes())  # an index is written beside it
    features = {
        "image_class": tf.io.FixedLenFeature([], tf.int64),
        "image_floats": tf.io.FixedLenFeature([784], tf.float32),
    }
    expected = tf.io.parse_example(of_tensorflow(path), features)

    loader = gl.Loader(gl.tfrecord(copy, features), 64, shuffle=True, device="cpu")

    for batch in loader:
        np.testing.assert_array_equal(
            batch["image_class"], expected["image_class"].numpy()[batch.records]
        )
        np.testing.assert_array_equal(
            batch["image_floats"], expected["image_floats"].numpy()[batch.records]
        )


def test_sequence_features_of_tensorflow_describe_one_step(tmp_path):
    lists = {
        "tokens": tf.io.FixedLenSequenceFeature([], tf.int64),
        "boxes": tf.io.FixedLenSequenceFeature([2], tf.float32),
    }
    numbers = tf.train.Int64List
    steps = {
        "tokens": [tf.train.Feature(int64_list=numbers(value=[value])) for value in (5, 7, 9)],
        "boxes": [tf.train.Feature(float_list=tf.train.FloatList(value=[0.5, 1.5]))],
    }
    payload = tf.train.SequenceExample(
        feature_lists=tf.train.FeatureLists(
            feature_list={
                name: tf.train.FeatureList(feature=value) for name, value in steps.items()
            }
        )
    ).SerializeToString()

    record = gl.tfrecord(write(tmp_path / "a.tfrecord", [payload]), {}, sequence=lists)[0]

    _, expected = tf.io.parse_single_sequence_example(payload, {}, lists)
    for name, value in expected.items():
        np.testing.assert_array_equal(record[name], value.numpy())


def test_a_feature_of_no_values_beside_a_default_is_empty(tmp_path):
    empty = tf.train.Feature(int64_list=tf.train.Int64List())
    payloads = [
        tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
        for features in ({"x": empty}, {})
    ]

    source = gl.tfrecord(
        write(tmp_path / "a.tfrecord", payloads), {"x": gl.Feature("i8", (0,), default=0)}
    )

    assert source.read([0, 1])["x"].shape == (2, 0)
