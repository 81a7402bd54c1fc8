"""Text of any length in TFRecords, and through all that is made of a source."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import RecordError, SpecError
from gpuload.ragged import Ragged
from gpuload.testing.sources import SourceContract
from tests import imagefiles, simdevice
from tests.sources.tfrecordfiles import example, write

COUNT = 23
TWEETS = [f"tweet {number} äöü " * (number * 7 % 40) for number in range(COUNT)]
WORDS = [[f"w{word}" for word in range(number % 4)] for number in range(COUNT)]
PAIRS = [[b"\xff" * number, b"\0"] for number in range(COUNT)]
FEATURES = {
    "label": "i8",
    "tweet": "str",
    "words": ("str", (None,)),
    "pair": ("S", (2,)),
    "padded": gl.Feature(str, (4,), key="words", pad="-"),
    "place": gl.Feature("str", default="nowhere ä"),
}


def examples(first=0):
    return [
        example(
            label=number,
            tweet=TWEETS[number].encode(),
            words=[word.encode() for word in WORDS[number]],
            pair=PAIRS[number],
            **({"place": b"here"} if number % 2 else {}),
        )
        for number in range(first, COUNT)
    ]


def texts(folder, name="a", first=0):
    return gl.tfrecord(write(folder / f"{name}.tfrecord", examples(first)), FEATURES)


def objects(values):
    array = np.empty(len(values), object)
    array[:] = values
    return array


def lists(values):
    return [item.tolist() for item in values] if isinstance(values, Ragged) else values.tolist()


class TestTexts(SourceContract):
    def open(self, folder):
        return texts(folder)

    def open_other(self, folder):
        return texts(folder, first=1)

    def expected(self):
        return {
            "label": np.arange(COUNT),
            "tweet": objects(TWEETS),
            "words": [objects(words) for words in WORDS],
            "pair": [objects(pair) for pair in PAIRS],
            "padded": [objects([*words, *["-"] * (4 - len(words))]) for words in WORDS],
            "place": objects(["here" if number % 2 else "nowhere ä" for number in range(COUNT)]),
        }


class TestTextsThatAreCached(TestTexts):
    def open(self, folder):
        return texts(folder).cache(path=folder / "cache")

    def open_other(self, folder):
        return texts(folder, first=1).cache(memory="1MB")


class TestTextsOfTwoFiles(TestTexts):
    def open(self, folder):
        source = texts(folder)
        return gl.concat(source[:9], source.cache(memory="1MB")[9:])


class TestRenamedAndZippedTexts(TestTexts):
    def open(self, folder):
        tweets, rest = texts(folder, "b"), texts(folder)
        return gl.zip(
            tweets.rename(words="x", pair="y", padded="z", place="p", label="l"),
            rest.rename(tweet="t"),
        )

    def expected(self):
        fields = super().expected()
        left = {
            "l": "label",
            "tweet": "tweet",
            "x": "words",
            "y": "pair",
            "z": "padded",
            "p": "place",
        }
        right = {
            "label": "label",
            "t": "tweet",
            "words": "words",
            "pair": "pair",
            "padded": "padded",
            "place": "place",
        }
        return {name: fields[of] for name, of in {**left, **right}.items()}

    def open_other(self, folder):
        return gl.zip(texts(folder, first=1))

    def test_the_fingerprint_tells_data_apart(self):
        pass  # another spec


@pytest.mark.parametrize("num_threads", [1, 4])
@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_batches_hold_the_texts_of_their_records(tmp_path, num_threads, batch_size):
    loader = gl.Loader(
        texts(tmp_path), batch_size=batch_size, shuffle=True, seed=3, num_threads=num_threads
    )

    for batch in [*loader, *loader]:
        records = batch.records.tolist()
        assert batch["tweet"].dtype == object
        assert batch["tweet"].tolist() == [TWEETS[record] for record in records]
        assert lists(batch["words"]) == [WORDS[record] for record in records]
        assert batch["pair"].tolist() == [PAIRS[record] for record in records]
        assert batch["label"].tolist() == records


def test_a_resumed_loader_and_any_step_have_the_texts_of_the_first_run(tmp_path):
    source = texts(tmp_path)
    loader = gl.Loader(source, batch_size=4, shuffle=True, seed=1)
    whole = [batch["tweet"].tolist() for batch in loader.epoch(0)]
    iterator = iter(loader)
    next(iterator)
    again = gl.Loader(pickle.loads(pickle.dumps(source)), batch_size=4, shuffle=True, seed=1)
    again.load_state_dict(loader.state_dict())

    assert [batch["tweet"].tolist() for batch in again] == whole[1:]
    assert loader.batch_at(3)["tweet"].tolist() == whole[3]


def test_texts_are_filtered_selected_and_mixed(tmp_path):
    source = texts(tmp_path)

    long = source.filter(
        lambda fields: [len(tweet) > 100 for tweet in fields["tweet"]], fields="tweet"
    )
    mixture = gl.mix({source: 0.5, source.select([3, 4]): 0.5})

    assert long.read(range(len(long)))["tweet"].tolist() == [
        tweet for tweet in TWEETS if len(tweet) > 100
    ]
    assert set(mixture.read(range(len(mixture)))["tweet"]) <= set(TWEETS)


def test_texts_go_beside_images_that_all_threads_decode(tmp_path):
    payloads = [
        example(image=imagefiles.jpeg(8, 8 + number), text=TWEETS[number].encode())
        for number in range(COUNT)
    ]
    path = write(tmp_path / "i.tfrecord", payloads)
    source = gl.tfrecord(path, {"image": gl.Image(), "text": "str"})
    ops = [gl.ops.Decode(), gl.ops.Resize(8, 8)]
    loader = gl.Loader(source, batch_size=10, shuffle=True, ops=ops, num_threads=3)

    for batch in loader:
        assert batch["text"].dtype == object
        assert batch["text"].tolist() == [TWEETS[record] for record in batch.records]


def test_texts_stay_on_the_host_beside_numbers_on_a_gpu(tmp_path, monkeypatch):
    sim = simdevice.install(monkeypatch, seed=5)
    loader = gl.Loader(
        texts(tmp_path),
        batch_size=5,
        shuffle=True,
        device="gpu",
        output=("label", "tweet", "words"),
    )

    for batch in loader:
        records = batch.records.tolist()
        assert isinstance(batch["tweet"], np.ndarray)
        assert batch["tweet"].tolist() == [TWEETS[record] for record in records]
        assert lists(batch["words"]) == [WORDS[record] for record in records]
        assert not isinstance(batch["label"], np.ndarray)
    del batch, loader
    sim.finish()


def test_a_text_that_is_no_utf8_is_an_error_that_names_the_record_and_can_be_replaced(tmp_path):
    payloads = [example(t=text) for text in (b"a", b"b", b"caf\xe9", b"d")]
    source = gl.tfrecord(write(tmp_path / "l.tfrecord", payloads), {"t": "str"})

    with pytest.raises(
        RecordError,
        match=r"l\.tfrecord, record 2, byte \d+: field 't': byte 3 of its 4 is no UTF-8",
    ):
        source.read(range(4))
    loader = gl.Loader(source, batch_size=4, on_error="replace", max_bad=0.5)
    assert set(next(iter(loader))["t"]) <= {"a", "b", "d"}
    assert gl.tfrecord(tmp_path / "l.tfrecord", {"t": "S"}).read([2])["t"].tolist() == [b"caf\xe9"]


def test_no_file_is_opened_whose_first_texts_all_are_no_utf8(tmp_path):
    path = write(tmp_path / "l.tfrecord", [example(t=b"caf\xe9")] * 3)

    with pytest.raises(RecordError, match="no UTF-8"):
        gl.tfrecord(path, {"t": str})


def test_states_of_bytes_values_are_taken_by_the_same_values_as_text(tmp_path):
    path = write(tmp_path / "a.tfrecord", [example(t=b"a"), example(t=b"b")])
    as_numbers, with_default = (
        gl.tfrecord(path, {"t": "bytes"}),
        gl.tfrecord(path, {"t": gl.Raw(default=b"x")}),
    )

    for kind in ("str", "S"):
        assert gl.tfrecord(path, {"t": kind}).fingerprint() == as_numbers.fingerprint()
        second = gl.tfrecord(path, {"t": gl.Feature(kind, default="x")})
        assert second.fingerprint() == with_default.fingerprint()
        assert second.fingerprint() != as_numbers.fingerprint()


def test_bytes_of_an_image_are_marked_as_before(tmp_path):
    data = [b"\xff\xd8\xff" + bytes(number) for number in range(3)]
    source = gl.tfrecord(
        write(tmp_path / "a.tfrecord", [example(image=item) for item in data]), {"image": "S"}
    )

    marked = source.mark(image="encoded")

    assert marked.spec["image"].encoded
    assert [bytes(item) for item in marked.read([0, 1, 2])["image"]] == data


def test_sources_of_texts_are_pickled(tmp_path):
    source = pickle.loads(pickle.dumps(texts(tmp_path)))

    assert source.read([3])["tweet"].tolist() == [TWEETS[3]]


@pytest.mark.parametrize(
    "feature",
    [
        *(gl.Feature("str", default=item) for item in (3, ["a", "b"], [3])),
        gl.Feature("str", (2,), pad=3), gl.Feature("str", (2, None)), gl.Feature("str", (None,), default="a"),
        gl.Feature("str", pad="a"), gl.Raw("str"), gl.Tensor("str", ()),
    ],
)  # fmt: skip
def test_features_of_text_that_mean_nothing_are_refused(tmp_path, feature):
    with pytest.raises(SpecError):
        gl.tfrecord(write(tmp_path / "a.tfrecord", [example(x=b"a")]), {"x": feature})


def test_numpys_text_of_a_length_is_refused_and_str_named(tmp_path):
    with pytest.raises(SpecError, match="str"):
        gl.tfrecord(write(tmp_path / "a.tfrecord", [example(x=b"a")]), {"x": "U20"})


@pytest.mark.parametrize(
    ("feature", "values", "reason"),
    [
        ("str", [b"a", b"b"], "has 2 values"),
        (("str", (2,)), [b"a"], "has 1 value"),
        (gl.Feature("str", (2,), pad=""), [b"a"] * 3, "has 3 values"),
        (("str", (None, 2)), [b"a"] * 3, "has 3 values"),
        ("str", [], "it has no feature 'x'"),
    ],
)
def test_another_number_of_texts_is_an_error_that_names_the_record(
    tmp_path, feature, values, reason
):
    fitting = [b"a"] if feature == "str" else [b"a", b"b"]
    payloads = [example(x=fitting), example(x=values) if values else example(y=1)]
    source = gl.tfrecord(write(tmp_path / "a.tfrecord", payloads), {"x": feature})

    with pytest.raises(RecordError, match=reason) as caught:
        source.read([0, 1])

    assert "record 1" in str(caught.value)


def test_texts_are_converted_to_tfrecord_and_back(tmp_path):
    source = texts(tmp_path)

    conversion = gl.convert(source, tmp_path / "copy.tfrecord")
    again = gl.tfrecord(
        tmp_path / "copy.tfrecord",
        {"tweet": "str", "place": "str"}
        | {"label": "i8", "words": ("str", (None,)), "pair": ("S", (2,)), "padded": ("str", (4,))},
    )

    assert conversion.num_records == COUNT
    for name, values in source.read(range(COUNT)).items():
        assert lists(again.read(range(COUNT))[name]) == lists(values)


@pytest.mark.parametrize("name", ["copy.npy", "copy.npz", "copy.bin"])
def test_records_of_one_size_have_no_place_for_texts(tmp_path, name):
    with pytest.raises(SpecError, match="text of any length") as caught:
        gl.convert(texts(tmp_path), tmp_path / name)

    assert "TFRecord" in caught.value.remedy


@pytest.mark.parametrize("argument", ["raw", "tensors"])
def test_texts_are_no_raw_bytes_and_no_tensors(tmp_path, argument):
    with pytest.raises(SpecError, match="no elements of one size"):
        gl.convert(texts(tmp_path), tmp_path / "copy.tfrecord", **{argument: ["tweet"]})
