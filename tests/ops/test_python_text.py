"""Functions of text of any length in gl.ops.Python."""

from __future__ import annotations

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import SpecError

LINES = [f"Line {number} größer" * (number % 5) for number in range(40)]


@pytest.fixture
def source(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(LINES), encoding="utf-8")
    return gl.zip(gl.text(tmp_path / "a.txt"), gl.arrays(label=np.arange(len(LINES))))


def rows_of(values):
    return values.tolist() if isinstance(values, np.ndarray) else [row.tolist() for row in values]


def made_by(source, op, name="text"):
    """Return what an op makes of each record, and the field that the loader says it is."""
    loader = gl.Loader(source, batch_size=7, shuffle=True, seed=1, ops=[op])
    rows = {}
    for batch in loader:
        rows.update(zip(batch.records.tolist(), rows_of(batch[name]), strict=True))
    return [rows[record] for record in range(len(LINES))], str(loader.spec_out[name])


FUNCTIONS = {
    "a text": (str.upper, {}, "text: str ()"),
    "bytes": (str.encode, {}, "text: bytes ()"),
    "a number": (len, {}, "text: int64 ()"),
    "several texts": (lambda text: [text, text[::-1]], {}, "text: str (2,)"),
    "any number of texts": (str.split, {"out": ("str", (None,))}, "text: str (None,)"),
    "declared bytes": (str.encode, {"out": bytes}, "text: bytes ()"),
    "an array": (
        lambda text: np.frombuffer(text.encode().ljust(4)[:4], np.uint8),
        {"out": ("u1", (4,))},
        "text: uint8 (4,)",
    ),
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_a_function_gets_one_text_and_returns_text_or_numbers(source, kind):
    function, arguments, field = FUNCTIONS[kind]

    rows, declared = made_by(source, gl.ops.Python(function, on="text", **arguments))

    assert rows == [np.asarray(result).tolist() for result in map(function, LINES)]
    assert declared == field


@pytest.mark.parametrize("declared", [{}, {"out": str}])
def test_a_function_of_some_records_gets_an_array_of_texts(source, declared):
    op = gl.ops.Python(
        lambda texts: [text + "!" for text in texts], on="text", batch=True, **declared
    )

    assert made_by(source, op) == ([line + "!" for line in LINES], "text: str ()")


def test_a_function_of_several_fields_makes_new_texts(source):
    def join(text, label):
        return {"joined": f"{text} {label}", "length": len(text)}

    joined, field = made_by(source, gl.ops.Python(join, on=("text", "label")), "joined")
    lengths, _ = made_by(source, gl.ops.Python(join, on=("text", "label")), "length")

    assert (joined, field) == (
        [f"{line} {number}" for number, line in enumerate(LINES)],
        "joined: str ()",
    )
    assert lengths == list(map(len, LINES))


def test_a_random_function_draws_for_the_record(source):
    def cut(text, rng):
        return text[: int(rng.integers(0, 9))]

    op = gl.ops.Python(cut, on="text")
    whole = gl.Loader(source, batch_size=40, shuffle=False, seed=1, ops=[op])

    assert made_by(source, op)[0] == next(iter(whole))["text"].tolist()


def test_texts_behind_ops_are_cached_and_converted(source, tmp_path):
    loader = gl.Loader(source, batch_size=8, ops=[gl.ops.Python(str.upper, on="text")])
    expected = [line.upper() for line in LINES]

    cached = loader.cache(memory="1MB")
    gl.convert(loader, tmp_path / "upper.tfrecord")

    assert [text for batch in cached for text in batch["text"]] == expected
    written = gl.tfrecord(tmp_path / "upper.tfrecord", {"text": "str"})
    assert written.read(range(len(LINES)))["text"].tolist() == expected


@pytest.mark.parametrize("result", [None, {"a": 1}, ["a", 3], ["a", b"b"]])
def test_other_objects_are_refused_when_the_loader_is_made(source, result):
    with pytest.raises(SpecError):
        gl.Loader(source, batch_size=8, ops=[gl.ops.Python(lambda text: result, on="text")])


def test_an_object_among_texts_is_an_error_that_names_the_record(source):
    op = gl.ops.Python(lambda text: text or [None], on="text", out="str")

    with pytest.raises(SpecError, match="returned object") as caught:
        list(gl.Loader(source, batch_size=8, ops=[op]))

    assert any("a.txt, line 1" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    "op", [gl.ops.Cast("f4", on="text"), gl.ops.OneHot(3, on="text"), gl.ops.Decode(on="text")]
)
def test_ops_of_numbers_and_images_refuse_text_by_its_name(source, op):
    with pytest.raises(SpecError, match="text"):
        gl.Loader(source, batch_size=8, ops=[op])
