"""TFRecord files: what features become, and what is refused; files and framing:
`test_tfrecord_files.py`."""

from __future__ import annotations

import gc
import io
import logging
import pickle
import struct
from itertools import chain
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image

import gpuload as gl
from gpuload import core
from gpuload.errors import ChangedFileError, GpuloadError, RecordError, SpecError
from gpuload.ragged import Ragged
from gpuload.testing.sources import SourceContract, assert_same
from tests import simdevice
from tests.sources import tfrecordfiles as files
from tests.sources.test_arguments import WRONG
from tests.sources.tfrecordfiles import example, sequence_example, write


@pytest.fixture(params=["compiled", "plain"])
def parser(request, monkeypatch):
    """Find, verify and parse records in the core, and in plain Python."""
    if request.param == "plain":
        monkeypatch.setattr(core, "native", None)
    elif core.native is None:
        pytest.skip(core.problem)
    return request.param


COUNT = 11
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (COUNT, 5, 4, 3), np.uint8)
BOXES = RANDOM.random((COUNT, 4), np.float32)
TAGS = [RANDOM.integers(-(2**62), 2**62, number % 4) for number in range(COUNT)]
NAMES = [b"name %d" % number * (number % 3) for number in range(COUNT)]


def examples():
    return [
        example(
            label=number - 5,
            image=IMAGES[number].tobytes(),
            box=list(BOXES[number]),
            tags=list(TAGS[number]),
            name=NAMES[number],
            words=[b"w%d" % word for word in range(number % 3)],
        )
        for number in range(COUNT)
    ]


@pytest.mark.usefixtures("parser")
class TestExamples(SourceContract):
    features: ClassVar = {
        "label": "i4",
        "pixels": gl.Raw("u1", (5, 4, 3), key="image"),
        "box": ("f4", (4,)),
        "tags": ("i8", (None,)),
        "name": "bytes",
        "words": ("S3", (None,)),
        "padded": gl.Feature("i8", (3,), key="tags", pad=-1),
        "score": gl.Feature("f8", default=0.5),
    }

    def open(self, folder):
        write(folder / "a-0.tfrecord", examples()[:7])
        write(folder / "a-1.tfrecord", [])
        write(folder / "a-2.tfrecord", examples()[7:])
        return gl.tfrecord(f"{folder}/a-*.tfrecord", self.features)

    def open_other(self, folder):
        return gl.tfrecord(write(folder / "a-0.tfrecord", examples()[:9]), self.features)

    def expected(self):
        padded = np.full((COUNT, 3), -1)
        for row, tags in zip(padded, TAGS, strict=True):
            row[: len(tags)] = tags
        return {
            "label": np.arange(COUNT, dtype=np.int32) - 5,
            "pixels": IMAGES,
            "box": BOXES,
            "tags": TAGS,
            "name": [np.frombuffer(name, np.uint8) for name in NAMES],
            "words": [np.array([b"w0", b"w1"][: number % 3], "S3") for number in range(COUNT)],
            "padded": padded,
            "score": np.full(COUNT, 0.5),
        }


@pytest.mark.usefixtures("parser")
class TestSequenceExamples(SourceContract):
    lengths = (3, 0, 2, 5)

    def open(self, folder):
        records = [
            sequence_example(
                {"label": number},
                {
                    "tokens": [10 * number + step for step in range(length)],
                    "frames": [[step + 0.5, number] for step in range(length)],
                    "raw": [struct.pack(">hh", number, step) for step in range(length)],
                    "tags": [list(range(step % 3)) for step in range(length)],
                },
            )
            for number, length in enumerate(self.lengths)
        ]
        lists = {
            "tokens": "i8",
            "frames": ("f4", (2,)),
            "raw": gl.Raw(">i2", (2,)),
            "tags": gl.Feature("i2", (2,), pad=-1),
        }
        return gl.tfrecord(write(folder / "s.tfrecord", records), {"label": "i8"}, sequence=lists)

    def open_other(self, folder):
        records = [sequence_example({"label": 1}, {"tokens": [1]})] * 3
        return gl.tfrecord(
            write(folder / "s.tfrecord", records), {"label": "i8"}, sequence={"tokens": "i8"}
        )

    def expected(self):
        tags = [[-1, -1], [0, -1], [0, 1]]
        every = list(enumerate(self.lengths))
        return {
            "label": np.arange(4),
            "tokens": [10 * number + np.arange(length) for number, length in every],
            "frames": [
                np.array([[step + 0.5, number] for step in range(length)], np.float32).reshape(-1, 2)
                for number, length in every
            ],
            "raw": [
                np.array([[number, step] for step in range(length)], np.int16).reshape(-1, 2)
                for number, length in every
            ],
            "tags": [
                np.array([tags[step % 3] for step in range(length)], np.int16).reshape(-1, 2) for _, length in every
            ],
        }  # fmt: skip


@pytest.mark.usefixtures("parser")
class TestWholeRecords(SourceContract):
    """Payloads that are no Examples."""

    payloads = (b"abcdef", b"", b"ghi")

    def open(self, folder):
        return gl.tfrecord(write(folder / "r.tfrecord", self.payloads), "bytes")

    def open_other(self, folder):
        return gl.tfrecord(write(folder / "r.tfrecord", self.payloads[:2]), "bytes")

    def expected(self):
        return {"record": [np.frombuffer(payload, np.uint8) for payload in self.payloads]}


def read(folder, payloads, features=None, numbers=None, **arguments):
    source = gl.tfrecord(write(folder / "f.tfrecord", payloads), features, **arguments)
    return source.read(range(len(source)) if numbers is None else numbers)


def refused(folder, payloads, features, **arguments):
    """Return what is said of the last record, which has no fault of its own but that it does not
    fit."""
    source = gl.tfrecord(write(folder / "f.tfrecord", payloads), features, **arguments)
    with pytest.raises(RecordError) as caught:
        source.read([len(payloads) - 1])
    assert caught.value.cause
    assert caught.value.remedy
    return str(caught.value)


@pytest.mark.usefixtures("parser")
class TestNumbers:
    @pytest.mark.parametrize(
        ("dtype", "values"),
        [
            ("i8", [-(2**63), 2**63 - 1, 0]),
            ("u8", [0, 2**63 - 1, 1]),
            ("i1", [-128, 127, 0]),
            ("u1", [0, 255, 7]),
            ("u4", [0, 2**32 - 1, 1]),
            ("?", [0, 1, 1]),
        ],
    )
    def test_int64_lists_become_any_whole_numbers_that_hold_them(self, tmp_path, dtype, values):
        results = read(
            tmp_path, [example(x=[value, value]) for value in values], {"x": (dtype, (2,))}
        )["x"]

        assert_same(results, np.array([[value, value] for value in values], dtype))

    @pytest.mark.parametrize(
        ("dtype", "value"), [("u1", 256), ("i1", -129), ("u8", -1), ("?", 2), ("i4", 2**31)]
    )
    def test_a_number_that_the_dtype_does_not_hold_is_refused(self, tmp_path, dtype, value):
        results = refused(
            tmp_path, [example(x=[1, 1]), example(x=[1, value])], {"x": (dtype, (2,))}
        )

        assert "f.tfrecord, record 1, byte " in results
        assert f"feature 'x' is {value}" in results

    def test_of_numbers_at_the_limits_of_a_dtype_none_is_named_in_place_of_that_beyond(
        self, tmp_path
    ):
        results = refused(
            tmp_path, [example(x=[-128, 127]), example(x=[-128, 128])], {"x": ("i1", (2,))}
        )

        assert "f.tfrecord, record 1, byte " in results
        assert "feature 'x' is 128" in results

    def test_floats_keep_their_bits(self, tmp_path):
        bits = np.array(
            [0x7F800001, 0xFFC00001, 0x80000000, 1], np.uint32
        )  # not-a-numbers, -0, the smallest one
        payload = files.message(
            1, files.entry("x", files.message(2, files.message(1, bits.tobytes())))
        )

        values = read(tmp_path, [payload], {"x": ("f4", (4,))})["x"]

        assert_same(values.view(np.uint32)[0], bits)
        assert read(tmp_path, [example(x=0.1)], {"x": "f8"})["x"][0] == np.float64(np.float32(0.1))

    def test_unpacked_lists_are_read_too(self, tmp_path):
        entries = files.entry("i", files.ints(3, -4, packed=False)) + files.entry(
            "f", files.floats(0.5, 2, packed=False)
        )

        values = read(tmp_path, [files.message(1, entries)], {"i": ("i8", (2,)), "f": ("f4", (2,))})

        assert_same(values["i"], np.array([[3, -4]]))
        assert_same(values["f"], np.array([[0.5, 2]], np.float32))

    def test_a_default_stands_in_for_a_missing_feature_and_for_an_empty_one(self, tmp_path):
        features = {"x": gl.Feature("i2", (2,), default=[7, 8]), "y": gl.Feature("f4", default=-1)}

        results = read(
            tmp_path, [example(x=[1, 2], y=0.5), example(), example(x=None, y=None)], features
        )

        assert_same(results["x"], np.array([[1, 2], [7, 8], [7, 8]], np.int16))
        assert_same(results["y"], np.array([0.5, -1, -1], np.float32))

    def test_a_missing_feature_without_a_default_is_refused(self, tmp_path):
        message = refused(tmp_path, [example(x=1), example(y=1, z=2)], {"x": "i8"})

        assert "it has no feature 'x'\n  cause:  it has 'y', 'z'" in message

    @pytest.mark.parametrize("value", [[1], [1, 2, 3], []])
    def test_another_number_of_values_is_refused_whatever_the_default(self, tmp_path, value):
        payload = files.message(1, files.entry("x", files.ints(*value)))

        results = refused(
            tmp_path, [example(x=[1, 2]), payload], {"x": gl.Feature("i8", (2,), default=0)}
        )

        assert f"feature 'x' has {len(value)} value" in results

    def test_another_kind_of_list_is_refused(self, tmp_path):
        message = refused(tmp_path, [example(x=1), example(x=1.5)], {"x": "i8"})

        assert "feature 'x' is a list of 1 float values" in message
        assert "{'x': \"f4\"}" in message

    def test_ragged_values_are_empty_where_a_record_has_none(self, tmp_path):
        results = read(
            tmp_path,
            [example(x=[1, 2, 3, 4]), example(), example(x=[5, 6])],
            {"x": ("i8", (None, 2))},
        )["x"]

        assert isinstance(results, Ragged)
        assert [row.tolist() for row in results] == [[[1, 2], [3, 4]], [], [[5, 6]]]

    def test_ragged_values_are_whole_rows(self, tmp_path):
        results = refused(
            tmp_path, [example(x=[1, 2]), example(x=[1, 2, 3])], {"x": ("i8", (None, 2))}
        )

        assert "takes a multiple of 2" in results

    def test_padding_fills_up_and_never_cuts(self, tmp_path):
        features = {"x": gl.Feature("f4", (3, 2), pad=-1)}

        results = read(
            tmp_path, [example(x=[1.0, 2.0]), example(), example(x=[1.0] * 6)], features
        )["x"]

        assert_same(
            results,
            np.array([[[1, 2], [-1, -1], [-1, -1]], [[-1, -1]] * 3, [[1, 1]] * 3], np.float32),
        )
        for count in (8, 3):
            message = refused(tmp_path, [example(x=[1.0, 2.0]), example(x=[1.0] * count)], features)
            assert f"feature 'x' has {count} values" in message
            assert "takes at most 6, a multiple of 2" in message

    def test_a_default_stands_in_where_padding_is_not_enough(self, tmp_path):
        features = {"x": gl.Feature("i8", (2,), pad=0, default=[7, 8])}

        results = read(tmp_path, [example(x=[1]), example(), example(x=None)], features)["x"]

        assert results.tolist() == [[1, 0], [7, 8], [7, 8]]

    def test_a_key_may_be_another_name(self, tmp_path):
        entries = files.entry("image/class/label", files.ints(4)) + files.entry(
            b"\xff", files.ints(5)
        )
        features = {
            "label": gl.Feature("i8", key="image/class/label"),
            "odd": gl.Feature("i8", key=b"\xff"),
            "image/class/label": "i8",
        }

        result = read(tmp_path, [files.message(1, entries)], features)

        assert [values.tolist() for values in result.values()] == [[4], [5], [4]]
        assert list(result) == list(features)


@pytest.mark.usefixtures("parser")
class TestBytes:
    def test_raw_numbers_in_both_byte_orders(self, tmp_path):
        numbers = np.arange(6).reshape(2, 3)
        for dtype in (">i2", "<i2", ">f8", "<c8", "?", ">M8[s]", "V3", "S4", ">U2"):
            raw = (
                numbers.astype(dtype)
                if dtype[0] not in "VS"
                else np.array([b"abc"] * 6, dtype).reshape(2, 3)
            )

            values = read(tmp_path, [example(x=raw.tobytes())] * 2, {"x": gl.Raw(dtype, (2, 3))})[
                "x"
            ]

            assert_same(values, np.stack([raw] * 2).astype(raw.dtype.newbyteorder("=")))

    def test_raw_numbers_of_varying_length(self, tmp_path):
        payloads = [example(x=np.arange(2 * n, dtype=">i4").tobytes()) for n in (2, 0, 3)]

        values = read(tmp_path, payloads, {"x": gl.Raw(">i4", (None, 2))})["x"]

        assert [row.tolist() for row in values] == [[[0, 1], [2, 3]], [], [[0, 1], [2, 3], [4, 5]]]
        assert values.dtype == np.int32

    @pytest.mark.parametrize("shape", [(3,), (None, 3)])
    def test_bytes_of_another_number_are_refused(self, tmp_path, shape):
        payloads = [example(x=bytes(12)), example(x=bytes(16))]

        message = refused(tmp_path, payloads, {"x": gl.Raw("f4", shape)})

        assert "feature 'x' has 16 bytes" in message

    def test_several_values_are_an_axis_or_picked(self, tmp_path):
        payloads = [example(x=[b"ab", b"cd"]), example(x=[b"ef", b"gh"])]
        features = {
            "both": gl.Raw("u1", (2,), key="x", num_values=2),
            "any": gl.Raw("u1", (2,), key="x", num_values=None),
            "first": gl.Raw("S2", (), key="x", index=0),
            "second": gl.Raw(key="x", index=1),
            "text": gl.Feature("S2", (2,), key="x"),
        }

        values = read(tmp_path, payloads, features)

        pair = np.frombuffer(b"abcdefgh", np.uint8).reshape(2, 2, 2)
        assert_same(values["both"], pair)
        assert isinstance(values["any"], Ragged)
        assert_same(np.stack(list(values["any"])), pair)
        assert_same(values["first"], np.array([b"ab", b"ef"]))
        assert [bytes(value) for value in values["second"]] == [b"cd", b"gh"]
        assert_same(values["text"], np.array([[b"ab", b"cd"], [b"ef", b"gh"]]))

    def test_several_values_where_one_is_taken_are_refused(self, tmp_path):
        payloads = [example(x=[b"ab", b"cd"][: number + 1]) for number in range(2)]

        assert "num_values=None" in refused(tmp_path, payloads, {"x": "bytes"})
        assert "feature 'x' has 2 values" in refused(tmp_path, payloads, {"x": gl.Raw("u1", (2,))})
        assert "feature 'x' has 2 values" in refused(tmp_path, payloads, {"x": gl.Image()})

    def test_an_index_beyond_the_values_is_refused(self, tmp_path):
        results = refused(
            tmp_path, [example(x=[b"ab", b"cd"]), example(x=b"ef")], {"x": gl.Raw(index=1)}
        )

        assert "takes more than 1, the index" in results

    def test_defaults_of_bytes(self, tmp_path):
        features = {
            "name": gl.Raw(default=b"none"),
            "x": gl.Raw(">i2", (2,), default=b"\0\1\0\2"),
            "word": gl.Feature("S4", default="ab"),
        }
        payloads = [example(name=b"", x=b"\0\3\0\4", word=b"c"), example()]

        values = read(tmp_path, payloads, features)

        assert [bytes(value) for value in values["name"]] == [b"", b"none"]
        assert_same(values["x"], np.array([[3, 4], [1, 2]], np.int16))
        assert_same(values["word"], np.array([b"c", b"ab"], "S4"))

    def test_a_text_that_is_too_long_is_refused_and_so_is_one_that_ends_in_zero(self, tmp_path):
        assert "has a text of 5 bytes" in refused(
            tmp_path, [example(x=b"abcd"), example(x=b"abcde")], {"x": "S4"}
        )
        assert "ends in a zero byte" in refused(
            tmp_path, [example(x=b"abcd"), example(x=b"a\0")], {"x": "S4"}
        )

    def test_images_are_decoded_by_the_loader(self, tmp_path):
        data = []
        for image in IMAGES:
            file = io.BytesIO()
            Image.fromarray(image).save(file, "PNG")
            data.append(file.getvalue())
        payloads = [
            example(**{"image/encoded": open_one_file, "label": number})
            for number, open_one_file in enumerate(data)
        ]
        source = gl.tfrecord(
            write(tmp_path / "i.tfrecord", payloads),
            {"image": gl.Image(key="image/encoded"), "label": "i8"},
        )

        loader = gl.Loader(
            source, 4, ops=[gl.ops.Decode(), gl.ops.Resize(5, 4)], shuffle=True, device="cpu"
        )
        batches = list(loader)

        assert source.spec["image"].encoded
        for batch in batches:
            np.testing.assert_array_equal(batch["image"], IMAGES[batch["label"]])
            np.testing.assert_array_equal(batch["label"], batch.records)


@pytest.mark.usefixtures("parser")
class TestMessages:
    """The wire format: what protobuf allows is read, in whatever order it stands."""

    def test_the_last_entry_of_a_key_wins(self, tmp_path):
        entries = (
            files.entry("x", files.ints(1))
            + files.entry("y", files.ints(2))
            + files.entry("x", files.ints(3))
        )

        values = read(tmp_path, [files.message(1, entries)], {"x": "i8", "y": "i8"})

        assert (values["x"].tolist(), values["y"].tolist()) == ([3], [2])

    def test_messages_that_occur_twice_are_merged(self, tmp_path):
        twice = b"".join(files.message(2, files.ints(value)) for value in (1, 2))
        twice = files.message(1, files.message(1, b"x") + twice)
        payload = files.message(1, twice) + files.message(1, files.entry("y", files.ints(3)))

        values = read(tmp_path, [payload], {"x": ("i8", (2,)), "y": "i8"})

        assert (values["x"].tolist(), values["y"].tolist()) == ([[1, 2]], [3])

    def test_of_two_kinds_of_list_the_last_one_stays(self, tmp_path):
        payload = files.message(1, files.entry("x", files.floats(*range(50)) + files.ints(7, 8)))

        values = read(tmp_path, [payload] * 3, {"x": ("i8", (2,))})

        assert values["x"].tolist() == [[7, 8]] * 3

    def test_unknown_fields_and_groups_are_skipped(self, tmp_path):
        groups = files.group(13, files.message(1, b"\xff")) + files.tag(1, 0) + b"\x05"
        odd = (
            files.tag(9, 0)
            + files.varint(2**64 - 1)
            + files.tag(10, 1)
            + bytes(8)
            + files.tag(11, 5)
            + bytes(4)
        )
        odd += files.message(2**29 - 1, b"abc") + files.group(12, groups)
        value = odd + files.message(3, odd + files.message(1, files.varint(5)) + odd) + odd
        entry = odd + files.message(2, value) + files.message(1, b"x")
        payload = odd + files.message(1, odd + files.message(1, odd + entry)) + odd

        assert read(tmp_path, [payload], {"x": "i8"})["x"].tolist() == [5]

    def test_what_stands_in_the_place_of_feature_lists_is_unknown_to_an_example(self, tmp_path):
        payload = files.message(1, files.entry("x", files.ints(5))) + files.message(
            2, b"\xff no message"
        )

        assert read(tmp_path, [payload], {"x": "i8"})["x"].tolist() == [5]
        with pytest.raises(RecordError, match="record 0"):
            read(tmp_path, [payload], {"x": "i8"}, sequence={"y": "i8"})

    @pytest.mark.parametrize(
        ("payload", "cause"),
        [
            (b"\x0a", "a number that does not end"),
            (b"\x0a\x05abc", "field 1 says that it has 5 bytes, and 3 are left"),
            (b"\x2a\x04abc", "field 5 says that it has 4 bytes, and 3 are left"),
            (b"\x0a\x04abc", "field 1 says that it has 4 bytes, and 3 are left"),
            (b"\x0d\1\2\3", "field 1 says that it has 4 bytes, and 3 are left"),
            (b"\x09" + bytes(7), "field 1 says that it has 8 bytes, and 7 are left"),
            (b"\x0a" + files.varint(2**63), f"says that it has {2**63} bytes"),
            (b"\x0a" + files.varint(2**31), f"says that it has {2**31} bytes"),
            (b"\x00", "no tag of a field"),
            (b"\x0f\x00", "no tag of a field"),
            (files.varint(1 << 35), "no tag of a field"),
            (b"\xff" * 11, "a number of more than 64 bits"),
            (b"\x08" + b"\xff" * 9 + b"\x02", "a number of more than 64 bits"),
            (files.tag(3, 3), "a group (field 3) does not end"),
            (files.tag(3, 4), "the end of a group (field 3) that did not begin"),
            (files.tag(3, 3) + files.tag(4, 4), "the end of a group (field 4) inside of another one"),
            (files.tag(3, 3) * 101 + files.tag(3, 4) * 101, "more than 100 groups"),
            (files.message(1, files.message(1, b"\x0a")), "a number that does not end"),
            (files.message(1, files.entry("x", b"\x1a\x02\x0a")), "says that it has 2 bytes, and 1 are left"),
            (files.message(1, files.entry("x", files.message(3, b"\x0a\x01\xff"))), "a number that does not end"),
            (files.message(1, files.entry("x", files.message(2, files.message(1, b"abc")))), "3 bytes of floats"),
        ],
    )  # fmt: skip
    def test_bytes_that_are_no_message_are_refused_with_their_place(self, tmp_path, payload, cause):
        good = example(x=1)

        message = refused(tmp_path, [good, good, payload], {"x": "i8"})

        assert f"f.tfrecord, record 2, byte {2 * (len(good) + 16)}: byte " in message
        assert cause in message

    def test_fields_that_nobody_asks_for_are_not_looked_into(self, tmp_path):
        payload = files.message(1, files.entry("y", b"\xff\xff") + files.entry("x", files.ints(1)))

        assert read(tmp_path, [payload], {"x": "i8"})["x"].tolist() == [1]

    def test_the_row_at_fault_is_named_among_many(self, tmp_path):
        payloads = [example(x=1)] * 20 + [example(x=1.5)] + [example(x=1)] * 20
        source = gl.tfrecord(write(tmp_path / "m.tfrecord", payloads), {"x": "i8"})

        with pytest.raises(RecordError, match=r"m\.tfrecord, record 20,"):
            source.read(list(range(41))[::-1])
        loader = gl.Loader(source, 8, device="cpu")
        with pytest.raises(RecordError, match=r"m\.tfrecord, record 20,"):
            list(loader)


@pytest.mark.usefixtures("parser")
class TestSequences:
    def test_a_list_that_is_missing_has_no_steps(self, tmp_path):
        payloads = [
            sequence_example({}, {"x": [1, 2]}),
            example(y=1),
            sequence_example({}, {"x": []}),
        ]

        results = read(tmp_path, payloads, {}, sequence={"x": "i8"})["x"]

        assert [row.tolist() for row in results] == [[1, 2], [], []]

    @pytest.mark.parametrize(
        ("step", "cause"),
        [
            ([1, 2], "has 2 values"),
            (None, "has no feature list 'x'"),
            (1.5, "list of 1 float values"),
        ],
    )
    def test_a_step_that_does_not_fit_is_refused(self, tmp_path, step, cause):
        payloads = [sequence_example({}, {"x": [1, 2]}), sequence_example({}, {"x": [1, step, 3]})]

        results = refused(tmp_path, payloads, {}, sequence={"x": "i8"})

        assert "f.tfrecord, record 1, byte " in results
        assert cause in results

    def test_context_and_lists_may_have_one_key(self, tmp_path):
        payload = sequence_example({"x": 7}, {"x": [1, 2]})

        results = read(
            tmp_path, [payload], {"x": "i8"}, sequence={"steps": gl.Feature("i8", key="x")}
        )

        assert (results["x"].tolist(), [row.tolist() for row in results["steps"]]) == (
            [7],
            [[1, 2]],
        )

    def test_damaged_steps_are_refused(self, tmp_path):
        payload = files.message(2, files.entry("x", files.message(1, b"\x1a\x05")))

        results = refused(
            tmp_path, [sequence_example({}, {"x": [1]}), payload], {}, sequence={"x": "i8"}
        )

        assert "says that it has 5 bytes, and 0 are left" in results


class TestFeaturesThatAreFound:
    def test_they_are_what_the_first_records_have(self, tmp_path, caplog):
        payloads = [
            example(
                label=number,
                box=[0.5] * 4,
                tags=list(range(number % 3)),
                name=b"n" * number,
                words=[b"a" * number] * (number + 1),
                image=b"\xff\xd8\xff" + bytes(number),
                **({"sometimes": 1} if number else {}),
                **({"text": b"x"} if number else {}),
                codes=[b"a", b"\xff"],
                control=b"a\x01",
                raw=b"\xff",
                nothing=b"",
                **({"at times": b"\xff"} if number else {}),
            )
            for number in range(5)
        ]
        with caplog.at_level(logging.INFO, "gpuload"):
            source = gl.tfrecord(write(tmp_path / "i.tfrecord", payloads))

        assert source.features == {
            "label": "i8", "box": ("f4", (4,)), "tags": ("i8", (None,)), "name": "str", "words": ("str", (None,)),
            "image": gl.Image(), "sometimes": ("i8", (None,)), "text": gl.Feature("str", default=""),
            "codes": ("S", (2,)), "control": "bytes", "raw": "bytes", "nothing": "bytes",
            "at times": gl.Raw(default=b""),
        }  # fmt: skip
        assert "'image': gl.Image(), 'codes'" in caplog.text
        again = gl.tfrecord(tmp_path / "i.tfrecord", source.features)
        assert again.fingerprint() == source.fingerprint()
        assert source.read([3])["tags"][0].tolist() == []
        assert pickle.loads(pickle.dumps(source)).spec == source.spec

    @pytest.mark.parametrize(
        "kind", ["JPEG", "PNG", "WEBP", "TIFF", "BMP", "PPM", "JPEG2000", "GIF", "AVIF"]
    )
    def test_images_of_every_format_are_images(self, tmp_path, kind):
        file = io.BytesIO()
        Image.fromarray(IMAGES[0]).save(file, kind)

        source = gl.tfrecord(write(tmp_path / "i.tfrecord", [example(image=file.getvalue())] * 2))

        assert source.spec["image"].encoded

    def test_lists_are_found_too(self, tmp_path):
        payloads = [
            sequence_example({"y": 0.5}, {"x": [1] * length, "s": [b"ab"] * length})
            for length in (2, 3)
        ]

        source = gl.tfrecord(write(tmp_path / "s.tfrecord", payloads))

        assert (source.features, source.sequence) == ({"y": "f4"}, {"x": "i8", "s": "str"})
        assert [row.tolist() for row in source.read([1])["x"]] == [[1, 1, 1]]
        assert [row.tolist() for row in source.read([1])["s"]] == [["ab", "ab", "ab"]]

    def test_a_later_record_that_does_not_fit_is_named(self, tmp_path):
        payloads = [example(x=1)] * 70 + [example(x=[1, 2])]

        message = refused(tmp_path, payloads, None)

        assert "f.tfrecord, record 70, byte " in message
        assert "feature 'x' has 2 values" in message

    @pytest.mark.parametrize(
        ("payloads", "cause"),
        [
            ([], "has no records"),
            ([b"no message"], "is no tf.train.Example"),
            ([b"", example()], "no features are found"),
            ([example(x=1), example(x=1.5)], "float and int64 lists"),
            ([sequence_example({}, {"x": [1, [1, 2]]})], "1 to 2 values"),
        ],
    )
    def test_what_cannot_be_found_is_refused(self, tmp_path, payloads, cause):
        with pytest.raises(GpuloadError, match=cause) as caught:
            gl.tfrecord(write(tmp_path / "n.tfrecord", payloads))
        assert "features" in caught.value.remedy


def open_one_file(features=None, **arguments):
    return gl.tfrecord("one.tfrecord", {"x": "i8"} if features is None else features, **arguments)


USES = {
    "paths": lambda argument: gl.tfrecord(argument),
    "features": lambda argument: open_one_file(argument if argument is not None else 3),
    "a feature": lambda argument: open_one_file({"x": argument}),
    "sequence": lambda argument: open_one_file(sequence=argument),
    "a step": lambda argument: open_one_file(sequence={"s": argument}),
    **{
        name: lambda argument, name=name: open_one_file(**{name: argument})
        for name in ("index", "verify", "compression")
    },
    **{
        f"{feature_class.__name__}, {name}": lambda argument, feature_class=feature_class, name=name, other=other: (
            open_one_file(
                {
                    "x" if feature_class is gl.Feature else "b": feature_class(
                        **{**other, name: argument}
                    )
                }
            )
        )
        for feature_class, other, names in (
            (
                gl.Feature,
                {"dtype": "i8", "shape": (1,)},
                ("dtype", "shape", "key", "default", "pad"),
            ),
            (gl.Raw, {}, ("dtype", "shape", "key", "index", "num_values", "default")),
            (gl.Tensor, {"dtype": "f4", "shape": (1,)}, ("dtype", "shape", "key", "index")),
            (gl.Image, {}, ("key", "index")),
        )
        for name in names
    },
}


class TestArguments:
    @pytest.mark.parametrize(
        "features",
        [
            *(3, "i8", [], {}, {3: "i8"}, {"": "i8"}, gl.Feature("i8"), gl.Raw(index=0)),
            *(
                {"x": feature}
                for feature in (
                    None,
                    3,
                    "O",
                    "no dtype",
                    "f2",
                    ">i8",
                    "U4",
                    "c8",
                    "M8[s]",
                    "O",
                    [("a", "i8")],
                )
            ),
            *({"x": ("i8", shape)} for shape in ("a", (-1,), (2, None), 2.5, (2.5,))),
            *({"x": gl.Feature("i8", (None,), **{name: 1})} for name in ("default", "pad")),
            *(
                {"x": gl.Feature("i8", default=feature)}
                for feature in ("a", 0.5, [1, 2], 2**63, 1j, object())
            ),
            *(
                {"x": feature}
                for feature in (
                    gl.Feature("i8", key=3),
                    gl.Feature("i8", pad=1),
                    gl.Feature("u1", default=256),
                )
            ),
            *(
                {"x": feature}
                for feature in (
                    gl.Feature("S2", default=b"abc"),
                    gl.Feature("f4", default=1j),
                    gl.Feature("f4", default=1e40),
                    gl.Raw("O"),
                )
            ),
            *({"x": gl.Raw("i2", (3,), default=feature)} for feature in (b"a", 0, "abcdef")),
            *({"x": gl.Raw("i2", (3,), num_values=feature)} for feature in (0, -1, "a", 2.5)),
            *({"x": gl.Raw("i2", (3,), index=feature)} for feature in (-1, "a", 2.5)),
            *(
                {"x": feature}
                for feature in (
                    gl.Raw("i2", (3,), num_values=2, index=0),
                    gl.Raw("i2", (None,), num_values=2),
                )
            ),
            *(
                {"x": feature}
                for feature in (
                    gl.Raw("u1", (2, None)),
                    gl.Tensor("S4", (2,)),
                    gl.Image(index="a"),
                    gl.Image,
                )
            ),
        ],
    )
    def test_features_that_mean_nothing_are_refused_with_a_remedy(self, tmp_path, features):
        path = write(tmp_path / "a.tfrecord", [example(x=1)])

        with pytest.raises(SpecError) as caught:
            gl.tfrecord(path, features)

        assert caught.value.cause
        assert caught.value.remedy

    @pytest.mark.parametrize(
        "sequence",
        [3, {"y": ("i8", (None,))}, {"x": "i8"}, {"y": gl.Image()}, {"y": "bytes"}, {"y": 3}],
    )
    def test_sequences_that_mean_nothing_are_refused(self, tmp_path, sequence):
        path = write(tmp_path / "a.tfrecord", [example(x=1)])

        with pytest.raises(SpecError):
            gl.tfrecord(path, {"x": "i8"}, sequence=sequence)

    @pytest.mark.usefixtures("unreachable_stores")
    @pytest.mark.parametrize("name", USES)
    def test_whatever_is_typed_is_taken_or_refused_with_a_remedy(self, tmp_path, monkeypatch, name):
        monkeypatch.chdir(tmp_path)
        write(
            tmp_path / "one.tfrecord", [sequence_example({"x": 1, "b": b"ab"}, {"s": [1, 2]})] * 4
        )
        errors = []
        for value in WRONG:
            try:
                USES[name](value).read([0, 3])
            except GpuloadError as error:
                errors.append(error)
        assert len(errors) > len(WRONG) / 2
        assert all(error.cause and error.remedy for error in errors)

    def test_features_that_fit_no_record_are_refused_when_it_is_opened(self, tmp_path):
        path = write(tmp_path / "a.tfrecord", [example(x=1), example(x=2)])

        with pytest.raises(
            RecordError, match=r"a\.tfrecord, record 0: feature 'x' is a list of 1 int64 values"
        ):
            gl.tfrecord(path, {"x": "f4"})
        with pytest.raises(RecordError, match="it has no feature 'z'"):
            gl.tfrecord(path, {"z": "f4"})

    def test_a_key_that_no_first_record_has_is_warned_of(self, tmp_path, caplog):
        path = write(tmp_path / "a.tfrecord", [example(tags=[1])])

        gl.tfrecord(path, {"tag": ("i8", (None,)), "tags": ("i8", (None,))})

        assert "none of the first 1 records has the feature 'tag'" in caplog.text
        assert "'tags'" in caplog.text

    def test_they_are_shown_as_they_are_written(self):
        assert repr(gl.Image(key="a/b")) == "gl.Image(key='a/b')"
        assert repr(gl.Raw(">f4", (2,))) == "gl.Raw('>f4', (2,))"
        assert repr(gl.Feature("i8", (2,), pad=0)) == "gl.Feature('i8', (2,), pad=0)"


def test_on_a_gpu_the_fields_are_the_same(tmp_path, monkeypatch):
    sim = simdevice.install(monkeypatch, seed=3)
    source = TestExamples().open(tmp_path).rename(words="text")
    loaders = [
        gl.Loader(source, 4, shuffle=True, seed=1, device=device) for device in ("cpu", "gpu")
    ]

    for on_cpu, on_gpu in zip(*loaders, strict=True):
        for name in ("label", "pixels", "box", "padded", "score"):
            np.testing.assert_array_equal(on_gpu[name].get(), on_cpu[name])
        for name in ("tags", "name"):
            np.testing.assert_array_equal(
                on_gpu[name].payload.get()[: on_gpu[name].offsets[-1]], on_cpu[name].flat
            )
            np.testing.assert_array_equal(on_gpu[name].lengths, on_cpu[name].lengths)
        assert [list(row) for row in on_gpu["text"]] == [list(row) for row in on_cpu["text"]]
    for loader in loaders:
        loader.close()
    gc.collect()
    sim.finish()


@pytest.mark.parametrize("batch_size", [1, 4, 64])
@pytest.mark.parametrize("last_batch", ["partial", "pad", "drop"])
def test_steps_that_are_done_together_are_those_done_alone(tmp_path, batch_size, last_batch):
    payloads = [example(x=[number, -number], y=b"%04d" % number) for number in range(300)]
    parts = [
        write(tmp_path / f"{part}.tfrecord", payloads[100 * part : 100 * part + 100])
        for part in range(3)
    ]
    features = {"x": ("i8", (2,)), "y": gl.Raw("u1", (4,))}
    source = gl.concat(gl.tfrecord(parts[:2], features), gl.tfrecord(parts[2], features)).rename(
        x="z"
    )
    value = {
        "batch_size": batch_size,
        "last_batch": last_batch,
        "shuffle": True,
        "device": "cpu",
        "num_shards": 2,
    }
    ops = [gl.ops.Cast("float32", on="z")]
    group, single = (
        gl.Loader(source, **value, shard_id=1, ops=ops, prefetch=prefetch) for prefetch in (None, 2)
    )
    assert group._session.recipe.num_joined > 1 == single._session.recipe.num_joined

    for first, second in zip(group, single, strict=True):
        assert first.records.tolist() == second.records.tolist()
        assert first.valid.tolist() == second.valid.tolist()
        assert first["z"].tolist() == second["z"].tolist()
        assert first["y"].tobytes() == second["y"].tobytes()


@pytest.mark.parametrize("features", [{"x": ("i8", (None,))}, {"x": ("i8", (2,)), "y": "bytes"}])
def test_steps_with_values_of_varying_length_are_done_alone(tmp_path, features):
    path = write(
        tmp_path / "a.tfrecord",
        [example(x=[number, -number], y=b"y" * number) for number in range(50)],
    )

    loader = gl.Loader(gl.tfrecord(path, features), 2, device="cpu")

    assert loader._session.recipe.num_joined == 1
    assert [value.tolist() for batch in loader for value in batch["x"]] == [
        [number, -number] for number in range(50)
    ]


class TestStates:
    def test_a_loader_resumes(self, tmp_path):
        path = write(tmp_path / "a.tfrecord", [example(x=number) for number in range(50)])
        loader = gl.Loader(gl.tfrecord(path, {"x": "i8"}), 8, shuffle=True, seed=3, device="cpu")
        whole = [batch["x"].tolist() for batch in loader.epoch(0)]
        batches = iter(loader)
        first_part = [next(batches)["x"].tolist() for _ in range(3)]

        again = gl.Loader(gl.tfrecord(path, {"x": "i8"}), 8, shuffle=True, seed=3, device="cpu")
        again.load_state_dict(loader.state_dict())

        assert first_part + [batch["x"].tolist() for batch in again] == whole
        assert sorted(chain(*whole)) == list(range(50))

    def test_other_features_and_other_data_have_other_fingerprints(self, tmp_path):
        path = write(tmp_path / "a.tfrecord", [example(x=[1, 2])] * 3)
        features = [
            {"y": gl.Feature("i8", (2,), key="x")},
            *(
                {"x": (dtype, shape)}
                for dtype, shape in [("i8", (2,)), ("i4", (2,)), ("i8", (None,))]
            ),
            *({"x": gl.Feature("i8", (2,), default=default)} for default in (0, 1)),
        ]

        prints = {gl.tfrecord(path, feature).fingerprint() for feature in features}

        assert len(prints) == len(features)

    def test_a_pickled_source_refuses_other_files(self, tmp_path):
        path = write(tmp_path / "a.tfrecord", [example(x=1)] * 3)
        pickled = pickle.dumps(gl.tfrecord(path, {"x": "i8"}))
        write(path, [example(x=2)] * 3)

        with pytest.raises(ChangedFileError):
            pickle.loads(pickled)
