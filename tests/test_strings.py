"""Text of any length between bytes and objects."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload import strings
from gpuload.errors import RowError, SpecError
from gpuload.ragged import Ragged
from gpuload.spec import Field

VALUES = {
    "str": st.text(st.characters(exclude_categories=("Cs",)), max_size=9),
    "bytes": st.binary(max_size=9),
}


def field(kind, shape=()):
    return Field("t", np.dtype(object), shape, text=kind)


def lists(values):
    return values.tolist() if isinstance(values, np.ndarray) else [item.tolist() for item in values]


@pytest.mark.parametrize("kind", VALUES)
@given(st.data())
def test_what_is_packed_is_unpacked(kind, data):
    shape = data.draw(st.sampled_from([(), (0,), (2,), (2, 3), (None,), (None, 2)]))
    rows = []
    for _ in range(data.draw(st.integers(0, 4))):
        sizes = [data.draw(st.integers(0, 3)) if length is None else length for length in shape]
        row = np.empty(sizes, object)
        row.reshape(-1)[:] = data.draw(st.lists(VALUES[kind], min_size=row.size, max_size=row.size))
        rows.append(row.tolist())

    raw = strings.pack(field(kind, shape), rows)
    shifts = Ragged(np.concatenate([np.full(3, 0xFF, np.uint8), raw.flat]), raw.offsets + 3)

    for part in (raw, shifts):
        result = strings.unpack(field(kind, shape), part)
        assert lists(result) == rows
        assert result.dtype == object
        assert lists(strings.unpack(field(kind, shape), part[1:])) == rows[1:]


def test_one_text_of_a_record_is_kept_as_its_utf8_bytes():
    raw = strings.pack(field("str"), ["ä", "", "b"])

    assert raw.flat.tobytes() == b"\xc3\xa4b"
    assert raw.lengths.tolist() == [2, 0, 1]


def test_a_batch_of_texts_is_an_array_of_str_or_bytes():
    raw = strings.pack(field("str"), np.array(["ä", "b"], object))

    assert [type(item) for item in strings.unpack(field("str"), raw)] == [str, str]
    assert strings.unpack(field("bytes"), raw).tolist() == ["ä".encode(), b"b"]


@pytest.mark.parametrize("shape", [(), (1,), (None,)])
def test_bytes_that_are_no_utf8_are_an_error_that_names_row_and_byte(shape):
    values = [value if shape == () else [value] for value in (b"good", b"bad \xff", b"\xfe")]
    raw = strings.pack(field("bytes", shape), values)

    with pytest.raises(RowError, match=r"byte 4 of its 5 is no UTF-8 \(0xff\)") as caught:
        strings.unpack(field("str", shape), raw)

    assert caught.value.row == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda numbers: numbers[:0],
        lambda numbers: np.array([-1]),
        lambda numbers: np.array([2, 0]),
        lambda numbers: np.array([2**62, 0, 0]),
        lambda numbers: np.array([2, -1, 1]),
        lambda numbers: np.array([2, 2**63 - 1, 2**63 - 1]),
        lambda numbers: np.array([1, 8]),
        lambda numbers: np.array([6, *[2**62] * 4, 0, 0]),  # their sum is right in 64 bits
    ],
)
@pytest.mark.parametrize("shape", [(2,), (None,)])
def test_numbers_that_do_not_go_together_are_an_error_and_nothing_is_read_outside(damage, shape):
    good = strings.pack(field("bytes", shape), [[b"a", b"b"]])
    bad = damage(good.flat[:24].copy().view(np.int64)).astype(np.int64).view(np.uint8)
    payload = np.concatenate([good.flat, bad])
    raw = Ragged(payload, np.array([0, good.flat.size, payload.size]))

    with pytest.raises(RowError) as caught:
        strings.unpack(field("bytes", shape), raw)

    assert caught.value.row == 1


@pytest.mark.parametrize(
    ("kind", "value"), [("str", b"a"), ("bytes", "a"), ("str", 3), ("str", None), ("str", "\ud800")]
)
def test_a_value_of_another_kind_is_refused(kind, value):
    with pytest.raises(RowError) as caught:
        strings.pack(field(kind), ["a" if kind == "str" else b"a", value])

    assert caught.value.row == 1


@pytest.mark.parametrize(
    "about",
    [
        {"dtype": object, "shape": ()},
        {"dtype": object, "shape": (), "text": "utf-8"},
        {"dtype": object, "shape": (), "text": 3},
        {"dtype": "f4", "shape": (), "text": "str"},
        {"dtype": object, "shape": (2, None), "text": "str"},
        {"dtype": object, "shape": None, "text": "str"},
    ],
)
def test_a_field_of_objects_says_which_and_only_its_first_axis_varies(about):
    with pytest.raises(SpecError):
        Field("t", **about)


def test_a_field_of_text_says_what_it_is():
    assert str(field("str")) == "t: str ()"
    assert str(field("bytes", (None,))) == "t: bytes (None,)"
    assert (field("str").uniform, field("str").has_rows, field("str").host_only) == (
        True,
        False,
        True,
    )
    assert field("str", (3,)).stored == Field("t", np.dtype("u1"), (None,))
