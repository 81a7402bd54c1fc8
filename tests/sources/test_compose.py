"""Sources made of sources."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.errors import ClosedError, RecordIndexError, SpecError, UnknownFieldError
from gpuload.sources.arrays import arrays
from gpuload.sources.base import Source
from gpuload.sources.compose import Selected, concat, split, zip
from gpuload.sources.images import images
from gpuload.sources.npy import npy
from gpuload.spec import Field, Spec
from tests import imagefiles as made
from tests.contracts import SourceContract, assert_same

X = np.arange(40, dtype=np.float32).reshape(10, 4)
Y = np.arange(10) * 3
RAGGED = [np.arange(n, dtype=np.int16) for n in (3, 0, 5, 2, 7, 1, 1, 4, 6, 2)]


class Lists(Source):
    """Arrays of varying shape, without blocks."""

    def __init__(self, values=RAGGED, name="r"):
        self._values = values
        self.spec = Spec((Field(name, np.dtype(np.int16), (None,)),))

    def __len__(self):
        return len(self._values)

    def read(self, indices):
        return {self.spec.names[0]: [self._values[i].copy() for i in self.checked(indices)]}

    def where(self, index):
        return f"list, record {index}"

    def fingerprint(self):
        return f"lists of {[len(value) for value in self._values]}"


def pair():
    return arrays(x=X, y=Y)


class TestSlice(SourceContract):
    def open(self, folder):
        return pair()[8:1:-2]

    def open_other(self, folder):
        return pair()[8:2:-2]

    def expected(self):
        return {"x": X[8:1:-2], "y": Y[8:1:-2]}


class TestSelection(SourceContract):
    chosen = (7, 2, 9, 0, 5)

    def open(self, folder):
        return pair().select(self.chosen)

    def open_other(self, folder):
        return pair().select(self.chosen[::-1])

    def expected(self):
        return {"x": X[list(self.chosen)], "y": Y[list(self.chosen)]}


class TestSelectionOfLists(SourceContract):
    def open(self, folder):
        return Lists().select([4, 1, 8])

    def open_other(self, folder):
        return Lists().select([4, 1, 7])

    def expected(self):
        return {"r": [RAGGED[4], RAGGED[1], RAGGED[8]]}


class TestPartOfASplit(SourceContract):
    """A slice of a selection of files."""

    def open(self, folder):
        np.save(folder / "x.npy", X)
        return npy(folder / "x.npy").select([1, 3, 5, 7, 9])[1:]

    def open_other(self, folder):
        np.save(folder / "x.npy", X)
        return npy(folder / "x.npy").select([1, 3, 5, 7, 9])[:4]

    def expected(self):
        return {"x": X[[3, 5, 7, 9]]}


class TestRenamed(SourceContract):
    def open(self, folder):
        return pair().rename(x="y", y="x")

    def open_other(self, folder):
        return pair().rename(y="z")

    def expected(self):
        return {"y": X, "x": Y}


class TestRenamedLists(SourceContract):
    def open(self, folder):
        return Lists().rename(r="ragged")

    def open_other(self, folder):
        return Lists().rename(r="other")

    def expected(self):
        return {"ragged": RAGGED}


class TestZipped(SourceContract):
    def open(self, folder):
        return zip(arrays(x=X), arrays(y=Y, z=X[:, ::-1].astype(">f4")), arrays(w=Y))

    def open_other(self, folder):
        return zip(arrays(x=X), arrays(y=Y))

    def expected(self):
        return {"x": X, "y": Y, "z": X[:, ::-1], "w": Y}


class TestZippedWithLists(SourceContract):
    def open(self, folder):
        return zip(pair(), Lists())

    def open_other(self, folder):
        return zip(pair(), Lists(RAGGED[::-1]))

    def expected(self):
        return {"x": X, "y": Y, "r": RAGGED}


class TestConcatenated(SourceContract):
    def open(self, folder):
        return concat(pair()[:4], arrays(x=X[:0], y=Y[:0]), pair()[4:])

    def open_other(self, folder):
        return concat(pair()[4:], pair()[:4])

    def expected(self):
        return {"x": X, "y": Y}


class TestConcatenatedOfDifferentForms(SourceContract):
    """Without common blocks: one is big-endian."""

    def open(self, folder):
        return concat(arrays(x=X[:3].astype(">f4")), arrays(x=X[3:]))

    def open_other(self, folder):
        return concat(arrays(x=X[3:]), arrays(x=X[:3].astype(">f4")))

    def expected(self):
        return {"x": X}


class TestConcatenatedLists(SourceContract):
    def open(self, folder):
        return concat(Lists(RAGGED[:2]), Lists(RAGGED[2:]))

    def open_other(self, folder):
        return concat(Lists(RAGGED[2:]), Lists(RAGGED[:2]))

    def expected(self):
        return {"r": RAGGED}


def test_blocks_are_kept_where_they_can_be():
    a, b = arrays(x=X), arrays(y=Y)

    assert a[2:].blocks == a.blocks
    assert zip(a, b).blocks == (*a.blocks, *b.blocks)
    assert zip(a, Lists()).blocks == ()
    assert concat(a, a).blocks == a.blocks
    assert concat(a, arrays(x=X.astype(">f4"))).blocks == ()
    assert a.rename(x="z").blocks[0].parts[0].field.name == "z"


SLICES = st.builds(
    slice, *[st.none() | st.integers(-15, 15)] * 2, st.none() | st.integers(-4, 4).filter(lambda step: step != 0)
)


@given(st.lists(SLICES, min_size=1, max_size=5))
def test_slices_of_slices_are_those_of_numpy_and_stay_ranges(slices):
    source, expected = pair(), Y
    for one in slices:
        source, expected = source[one], expected[one]

    assert source.read(range(len(source)))["y"].tolist() == expected.tolist()
    assert isinstance(source._indices, range)
    assert not isinstance(source._source, Selected)


@given(st.data())
def test_slices_of_selections_and_selections_of_slices_are_those_of_numpy(data):
    source, expected = pair(), Y
    for _ in range(data.draw(st.integers(1, 4))):
        if data.draw(st.booleans()):
            one = data.draw(SLICES)
            source, expected = source[one], expected[one]
        elif len(expected):
            chosen = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=12))
            source, expected = source.select(chosen), expected[np.array(chosen, np.int64)]

    assert len(source) == len(expected)
    assert source.read(range(len(source)))["y"].tolist() == expected.tolist()
    assert [source.where(i) for i in range(len(source))] == [f"arrays, record {y // 3}" for y in expected]


@st.composite
def sources(draw, depth=3):
    """Give a source of the field x, and what it holds."""
    if depth == 0 or draw(st.booleans()):
        values = np.array(draw(st.lists(st.integers(-99, 99), max_size=6)), np.int64)
        return arrays(x=values.astype(draw(st.sampled_from(["<i8", ">i8"])))), values
    if draw(st.booleans()):
        made_of = draw(st.lists(sources(depth=depth - 1), min_size=1, max_size=3))
        return concat(*[source for source, _ in made_of]), np.concatenate([values for _, values in made_of])
    source, values = draw(sources(depth=depth - 1))
    one = draw(SLICES)
    return source[one], values[one]


@given(sources(), st.data())
def test_any_composition_reads_as_numpy_indexes(case, data):
    source, values = case
    both = zip(source, source.rename(x="y"))
    indices = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=20)) if len(values) else []

    read = both.read(indices)

    assert read["x"].tolist() == values[np.array(indices, np.int64)].tolist()
    assert_same(read["y"], read["x"])


class Numbers(Source):
    """Record i is i; of any length, without memory."""

    def __init__(self, length):
        self._length = length
        self.spec = Spec((Field("n", np.dtype(np.int64), ()),))

    def __len__(self):
        return self._length

    def read(self, indices):
        return {"n": self.checked(indices)}

    def where(self, index):
        return str(index)

    def fingerprint(self):
        return str(self._length)


def test_a_slice_of_a_source_of_any_length_takes_no_memory():
    source = Numbers(10**15)[10**14 :: 3][::-7]

    assert len(source) == 42857142857143
    assert source[0]["n"] == 10**14 + 3 * (3 * 10**14 - 1)
    assert source[1]["n"] == source[0]["n"] - 21


class TestSplit:
    @given(st.integers(0, 60), st.floats(0, 1), st.integers(0, 2**64 - 1))
    def test_the_parts_share_the_records_and_keep_their_order(self, length, fraction, seed):
        first, second = split(Numbers(length), fraction, seed)

        a, b = (part.read(range(len(part)))["n"].tolist() for part in (first, second))
        assert len(a) == round(fraction * length)
        assert sorted(a + b) == list(range(length))
        assert a == sorted(a)
        assert b == sorted(b)

    def test_the_choice_depends_on_seed_and_length_alone(self):
        chosen = [arrays(x=values).split(0.5, seed=3)[0]._indices for values in (X, -X)]
        other = arrays(x=X).split(0.5, seed=4)[0]._indices

        assert chosen[0].tolist() == chosen[1].tolist()
        assert chosen[0].tolist() != other.tolist()

    def test_the_choice_is_random_where_it_should_be(self):
        rest = [split(Numbers(1000), 0.5, seed)[0]._indices.tolist() for seed in range(50)]

        counts = np.bincount(np.concatenate(rest), minlength=1000)
        assert counts.min() >= 10  # 25 +- 3.5 for each record: 4.3 standard deviations either way
        assert counts.max() <= 40
        neighbours = np.mean([(a + 1 == b) for one in rest for a, b in pairwise(one)])
        assert 0.48 < neighbours < 0.52

    def test_the_choice_is_that_of_numpys_philox(self):
        seed, stream = 5, int.from_bytes(bytes.fromhex("ad1a64057f9ab34f"), "little")
        words = np.concatenate([
            np.random.Philox(
                counter=np.array([0, block, 0, 0], np.uint64), key=np.array([seed, stream], np.uint64)
            ).random_raw(4)
            for block in range(3)
        ])  # fmt: skip

        first, _ = split(Numbers(10), 0.4, seed)

        assert first._indices.tolist() == sorted(np.argsort(words[:10])[:4].tolist())

    @pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), True, "0.5", None])
    def test_other_fractions_are_an_error(self, fraction):
        with pytest.raises(SpecError, match="a fraction lies between 0 and 1"):
            split(Numbers(10), fraction)

    def test_another_seed_than_a_word_is_an_error(self):
        with pytest.raises(SpecError, match="seed"):
            split(Numbers(10), 0.5, -1)


def test_closing_closes_what_it_is_made_of():
    for compose in (lambda a: a[1:], lambda a: a.rename(x="z"), lambda a: zip(a, Lists()), lambda a: concat(a, a)):
        source = arrays(x=X)
        compose(source).close()

        with pytest.raises(ClosedError):
            source.read([0])


def test_a_part_of_a_closed_source_is_closed():
    source = arrays(x=X)
    parts = [source[1:], source.select([1]), source.rename(x="z"), zip(source, Lists()), concat(source, source)]
    source.close()

    for part in parts:
        with pytest.raises(ClosedError):
            part.read([0])


def test_where_names_every_source_of_a_record():
    both = zip(pair()[5:], Lists()[5:])

    assert both.where(1) == "arrays, record 6 | list, record 6"
    assert concat(both, both[2:]).where(5) == "part 1: arrays, record 7 | list, record 7"


def test_the_classes_of_images_are_passed_on(tmp_path):
    for name in ("ape", "bee", "cat"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(made.png(3, 4))
    source = images(tmp_path)

    parts = [source[1:], source.rename(label="class"), zip(arrays(x=X[:3]), source), concat(source, source[:1])]

    assert all(part.classes == ("ape", "bee", "cat") for part in parts)
    assert pair()[1:].classes == ()
    assert parts[2].read([1])["image"][0].tobytes() == made.png(3, 4)


def test_images_with_other_classes_are_not_put_one_after_the_other(tmp_path):
    for name in ("a/cat", "b/dog"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "1.png").write_bytes(made.png(3, 4))

    with pytest.raises(SpecError, match="classes"):
        concat(images(tmp_path / "a"), images(tmp_path / "b"))


def test_zip_of_different_lengths_is_an_error_that_names_them():
    with pytest.raises(SpecError, match=r"\[10, 9\] records"):
        zip(arrays(x=X), arrays(y=Y[1:]))


def test_zip_of_equal_names_is_an_error_that_names_the_remedy():
    with pytest.raises(SpecError, match=r"(?s)\['x'\] occur twice.*rename"):
        zip(arrays(x=X), arrays(x=Y))


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (arrays(x=X.astype("f8")), r"source 1 has field x: float64 \(4,\), source 0 has x: float32 \(4,\)"),
        (arrays(x=X[:, :3]), r"source 1 has field x: float32 \(3,\)"),
        (arrays(z=X), r"source 1 has the fields \['z'\], source 0 has \['x'\]"),
        (pair(), r"source 1 has the fields \['x', 'y'\]"),
    ],
)
def test_concat_of_different_fields_is_an_error_that_names_both(other, what):
    with pytest.raises(SpecError, match=what):
        concat(arrays(x=X), other)


@pytest.mark.parametrize("join", [zip, concat])
def test_joining_what_is_no_source_is_an_error(join):
    with pytest.raises(SpecError, match="without sources"):
        join()
    with pytest.raises(SpecError, match="ndarray"):
        join(arrays(x=X), X)
    with pytest.raises(SpecError, match="list"):
        join([arrays(x=X)])


def test_renaming_an_unknown_field_is_an_error():
    with pytest.raises(UnknownFieldError, match="no field 'z'"):
        pair().rename(z="a")


def test_renaming_two_fields_to_one_name_is_an_error():
    with pytest.raises(SpecError, match="twice"):
        pair().rename(x="y")


@pytest.mark.parametrize("name", ["", 3, None])
def test_a_name_is_a_text(name):
    with pytest.raises(SpecError, match="a name is a text"):
        pair().rename(x=name)


@pytest.mark.parametrize("chosen", [[10], [-1], [0, 11]])
def test_selecting_a_record_outside_is_an_error(chosen):
    with pytest.raises(RecordIndexError, match="of a source of 10 records"):
        pair().select(chosen)


def test_equal_slices_have_equal_fingerprints_and_others_do_not():
    source = pair()

    assert source[2:8:3].fingerprint() == source[2:7:3].fingerprint()
    assert len({source[a:b].fingerprint() for a in range(4) for b in range(6, 10)}) == 16
    assert source[3:4].fingerprint() == source[3:5][:1].fingerprint()
    assert source[:0].fingerprint() == source[5:5].fingerprint()
