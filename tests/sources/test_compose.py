"""Sources made of sources."""

from __future__ import annotations

import builtins
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuload.errors import ClosedError, RecordIndexError, SpecError, UnknownFieldError
from gpuload.formats.fixed.source import fixed
from gpuload.formats.images.source import images
from gpuload.formats.npy.source import npy
from gpuload.ragged import Ragged
from gpuload.sources.arrays import arrays
from gpuload.sources.base import Selected, Source
from gpuload.sources.compose import concat, zip
from gpuload.sources.leaf import Group, Leaf, Share, check_places
from gpuload.sources.records import records
from gpuload.spec import Field, Layout, Part, Spec
from gpuload.testing.sources import SourceContract, assert_same
from tests import imagefiles

X = np.arange(40, dtype=np.float32).reshape(10, 4)
Y = np.arange(10) * 3
RAGGED = [np.arange(n, dtype=np.int16) for n in (3, 0, 5, 2, 7, 1, 1, 4, 6, 2)]


class ListLeaf(Leaf):
    """Arrays of varying length, stored as big-endian bytes with one byte in front."""

    def __init__(self, values, field):
        self._raw = [
            np.frombuffer(b"!" + value.astype(">i2").tobytes(), np.uint8) for value in values
        ]
        self.spec, self.num_records = Spec((field,)), len(values)

    def num_bytes(self, numbers):
        return np.array([self._raw[number].size for number in numbers], np.int64)

    def _read(self, numbers, out, begins):
        check_places(numbers, self.num_bytes(numbers), out.size, begins)
        for number, begin in builtins.zip(numbers, begins, strict=True):
            out[begin : begin + self._raw[number].size] = self._raw[number]

    def unpack(self, numbers, raw):
        return [
            Ragged.of([item[1:].view(">i2").astype(np.int16) for item in raw], np.dtype(np.int16))
        ]


class Lists(Source):
    """Arrays of varying length."""

    def __init__(self, values=RAGGED, name="r"):
        field = Field(name, np.dtype(np.int16), (None,))
        super().__init__((Group(Spec((field,)), None),))
        self._values, self._leaf = values, ListLeaf(values, field)

    def __len__(self):
        return len(self._values)

    def _resolve(self, numbers):
        return [Share(self._leaf, 0, numbers)]

    def _where(self, number):
        return f"list, record {number}"

    def _digest(self):
        return f"lists of {[len(value) for value in self._values]}"

    def __reduce__(self):
        self.check_open()
        return Lists, (self._values, self.spec.names[0])


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
    """One is big-endian."""

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


class TestConcatenatedOfDifferentGroups(SourceContract):
    """Side by side in one record, each in an array of its own, and the other way round."""

    def table(self, records):
        table = np.zeros(len(records), [("y", "u1"), ("x", ">f4", (4,)), ("z", "<i8")])
        table["x"], table["y"], table["z"] = X[records], Y[records], Y[records] - 7
        return table

    def parts(self, folder):
        (folder / "some.bin").write_bytes(self.table(range(3)).tobytes())
        side_by_side = fixed(folder / "some.bin", self.table([]).dtype)
        apart = arrays(y=Y[3:6].astype("u1"), x=X[3:6], z=Y[3:6] - 7)
        both = zip(arrays(table=self.table(range(6, 10)))[::-1][::-1])
        return [side_by_side, apart, both.select(range(4))]

    def open(self, folder):
        return concat(*self.parts(folder))

    def open_other(self, folder):
        return concat(*self.parts(folder)[:2])

    def expected(self):
        return {"y": Y.astype("u1"), "x": X, "z": Y - 7}


class TestConcatenatedOfDifferentGroupsWithLists(SourceContract):
    def open(self, folder):
        beside = concat(Lists(RAGGED[4:6]), Lists(RAGGED[6:]))
        return concat(
            zip(Lists(RAGGED[:4]), pair()[:4]),
            zip(beside, arrays(x=X[4:]), arrays(y=Y[4:].astype(">i8"))),
        )

    def open_other(self, folder):
        return zip(Lists(), pair())

    def expected(self):
        return {"r": RAGGED, "x": X, "y": Y}


class TestConcatenatedImages(SourceContract):
    """Their bytes are put side by side at once, from whichever source they come."""

    files = tuple(imagefiles.png(3 + number, 4) for number in range(7))

    def open(self, folder):
        for number, content in enumerate(self.files):
            path = folder / "ab"[number // 4] / "cat" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return concat(images(folder / "a"), images(folder / "b").select([0, 1, 2]))

    def open_other(self, folder):
        return self.open(folder)[:4]

    def expected(self):
        return {
            "image": [np.frombuffer(content, np.uint8) for content in self.files],
            "label": np.zeros(7, np.int64),
        }


class TestPartOfASplitOfASplit(SourceContract):
    def chosen(self):
        first = arrays(i=np.arange(10)).split(0.8, seed=1)[0]
        return first.split(0.5, seed=2)[1][::-1].read(range(4))["i"]

    def open(self, folder):
        return pair().split(0.8, seed=1)[0].split(0.5, seed=2)[1][::-1]

    def open_other(self, folder):
        return pair().split(0.8, seed=1)[0].split(0.5, seed=2)[1]

    def expected(self):
        return {"x": X[self.chosen()], "y": Y[self.chosen()]}


def layouts(source):
    return [group.layout for group in source.groups]


def test_groups_are_kept_where_they_can_be():
    a, b, big = arrays(x=X), arrays(y=Y), arrays(x=X.astype(">f4"))

    assert layouts(a[2:]) == layouts(a)
    assert layouts(zip(a, b)) == [*layouts(a), *layouts(b)]
    assert layouts(zip(a, Lists())) == [*layouts(a), None]
    assert layouts(concat(a, a)) == layouts(a)
    assert layouts(concat(a, big)) == layouts(a)
    assert layouts(concat(big, big)) == layouts(big)
    assert layouts(concat(zip(a, b), arrays(x=X, y=Y))) == [*layouts(a), *layouts(b)]
    assert a.rename(x="z").groups[0].layout.parts[0].field.name == "z"
    assert a.rename(x="z").groups[0].layout.same_bytes(a.groups[0].layout)


def leaves(source, numbers):
    return {id(share.leaf) for share in source.resolve(np.array(numbers))}


def test_composed_sources_resolve_to_the_leaves_of_what_they_are_made_of(tmp_path):
    np.save(tmp_path / "x.npy", X)
    source = npy(tmp_path / "x.npy")
    leaves_before = leaves(source, [0])

    composed = [
        source[::-1], source.select([3, 2]), source.rename(x="z"), zip(source), concat(source), concat(source, source),
        source.split(0.5)[1], zip(source[2:], source[:-2].rename(x="y")).rename(x="a").split(0.5)[0][1:],
    ]  # fmt: skip

    for item in composed:
        assert leaves(item, [0, 1]) == leaves_before
        assert all(share.picks is None for share in item.resolve(np.array([0, 1])))


SLICES = st.builds(
    slice,
    *[st.none() | st.integers(-15, 15)] * 2,
    st.none() | st.integers(-4, 4).filter(lambda step: step != 0),
)


@given(st.lists(SLICES, min_size=1, max_size=5))
def test_slices_of_slices_are_those_of_numpy_and_stay_ranges(slices):
    source, expected = pair(), Y
    for item in slices:
        source, expected = source[item], expected[item]

    assert source.read(range(len(source)))["y"].tolist() == expected.tolist()
    assert isinstance(source._selection, range)
    assert not isinstance(source._source, Selected)


@given(st.data())
def test_slices_of_selections_and_selections_of_slices_are_those_of_numpy(data):
    source, expected = pair(), Y
    for _ in range(data.draw(st.integers(1, 4))):
        if data.draw(st.booleans()):
            item = data.draw(SLICES)
            source, expected = source[item], expected[item]
        elif len(expected):
            chosen = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=12))
            source, expected = source.select(chosen), expected[np.array(chosen, np.int64)]

    assert len(source) == len(expected)
    assert source.read(range(len(source)))["y"].tolist() == expected.tolist()
    assert [source.where(i) for i in range(len(source))] == [
        f"arrays, record {y // 3}" for y in expected
    ]


@st.composite
def sources(draw, depth=3):
    """Give a source of the field x, and what it holds."""
    if depth == 0 or draw(st.booleans()):
        values = np.array(draw(st.lists(st.integers(-99, 99), max_size=6)), np.int64)
        return arrays(x=values.astype(draw(st.sampled_from(["<i8", ">i8"])))), values
    if draw(st.booleans()):
        made_of = draw(st.lists(sources(depth=depth - 1), min_size=1, max_size=3))
        return concat(*[source for source, _ in made_of]), np.concatenate(
            [values for _, values in made_of]
        )
    source, values = draw(sources(depth=depth - 1))
    item = draw(SLICES)
    return source[item], values[item]


@given(sources(), st.data())
def test_any_composition_reads_as_numpy_indexes(case, data):
    source, values = case
    both = zip(source, source.rename(x="y"))
    indices = (
        data.draw(st.lists(st.integers(0, len(values) - 1), max_size=20)) if len(values) else []
    )

    read = both.read(indices)

    assert read["x"].tolist() == values[np.array(indices, np.int64)].tolist()
    assert_same(read["y"], read["x"])


class Numbers(Leaf):
    """Record i is i; of any number, without memory."""

    spec = Spec((Field("n", np.dtype(np.int64), ()),))
    layout = Layout(8, (Part(spec["n"], np.dtype(np.int64)),))

    def __init__(self, length):
        self.num_records = length

    def _read(self, numbers, out, begins):
        check_places(numbers, 8, out.size, begins)
        out.view(np.int64)[begins // 8] = numbers


class Counted(Source):
    """A source of numbers."""

    def __init__(self, length):
        super().__init__((Group(Numbers.spec, Numbers.layout),))
        self._leaf = Numbers(length)

    def __len__(self):
        return self._leaf.num_records

    def _resolve(self, numbers):
        return [Share(self._leaf, 0, numbers)]

    def _where(self, number):
        return str(number)

    def _digest(self):
        return str(len(self))


def test_a_slice_of_a_source_of_any_length_takes_no_memory():
    source = Counted(10**15)[10**14 :: 3][::-7]

    assert len(source) == 42857142857143
    assert source[0]["n"] == 10**14 + 3 * (3 * 10**14 - 1)
    assert source[1]["n"] == source[0]["n"] - 21


class TestSplit:
    @given(st.integers(0, 60), st.floats(0, 1), st.integers(0, 2**64 - 1))
    def test_the_parts_share_the_records_and_keep_their_order(self, length, fraction, seed):
        first, second = Counted(length).split(fraction, seed)

        a, b = (part.read(range(len(part)))["n"].tolist() for part in (first, second))
        assert len(a) == round(fraction * length)
        assert sorted(a + b) == list(range(length))
        assert a == sorted(a)
        assert b == sorted(b)

    def test_the_choice_depends_on_seed_and_length_alone(self):
        def chosen(values, seed):
            return [
                np.flatnonzero(values[:, 0] == x[0]).item()
                for x in arrays(x=values).split(0.5, seed)[0].read(range(5))["x"]
            ]

        assert chosen(X, 3) == chosen(-X, 3)
        assert any(chosen(X, seed) != chosen(X, 3) for seed in range(4, 9))

    def test_a_part_takes_no_memory_however_many_records_there_are(self):
        first, second = Counted(10**15).split(0.25, 7)

        numbers = first.read([0, 1, len(first) - 1])["n"]
        assert (len(first), len(second)) == (25 * 10**13, 75 * 10**13)
        assert numbers.tolist() == sorted(numbers)
        assert len(pickle.dumps(second[10:][::3])) < 2000

    def test_the_fingerprint_tells_parts_seeds_and_fractions_apart(self):
        parts = [
            part
            for fraction in (0.25, 0.5)
            for seed in (0, 1)
            for part in Counted(100).split(fraction, seed)
        ]

        assert len({part.fingerprint() for part in parts}) == len(parts)

    @pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), True, "0.5", None])
    def test_other_fractions_are_an_error(self, fraction):
        with pytest.raises(SpecError, match="a fraction lies between 0 and 1"):
            Counted(10).split(fraction)

    def test_another_seed_than_a_word_is_an_error(self):
        with pytest.raises(SpecError, match="seed"):
            Counted(10).split(0.5, -1)


def test_a_part_of_a_closed_source_is_closed():
    source = arrays(x=X)
    parts = [
        source[1:],
        source.select([1]),
        source.rename(x="z"),
        zip(source, Lists()),
        concat(source, source),
    ]
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
        (tmp_path / name / "1.png").write_bytes(imagefiles.png(3, 4))
    source = images(tmp_path)

    parts = [
        source[1:],
        source.rename(label="class"),
        zip(arrays(x=X[:3]), source),
        concat(source, source[:1]),
    ]

    assert all(part.classes == ("ape", "bee", "cat") for part in parts)
    assert pair()[1:].classes == ()
    assert parts[2].read([1])["image"][0].tobytes() == imagefiles.png(3, 4)


def test_images_with_other_classes_are_not_put_one_after_the_other(tmp_path):
    for name in ("a/cat", "b/dog"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "1.png").write_bytes(imagefiles.png(3, 4))

    with pytest.raises(SpecError, match="classes"):
        concat(images(tmp_path / "a"), images(tmp_path / "b"))


def test_zip_of_different_lengths_is_an_error_that_names_them():
    with pytest.raises(SpecError, match=r"\[10, 9\] records"):
        zip(arrays(x=X), arrays(y=Y[1:]))


def shards(folder, name, *counts):
    """Write files of these numbers of records, and return their source."""
    for number, count in enumerate(counts):
        np.save(folder / f"{name}{number}.npy", np.arange(count))
    return npy([folder / f"{name}{number}.npy" for number in range(len(counts))], field=name)


def test_zip_of_files_of_which_a_pair_has_different_lengths_is_an_error_that_names_it(tmp_path):
    a, b = shards(tmp_path, "a", 5, 10, 20), shards(tmp_path, "b", 5, 20, 10)

    for pair_of_sources in (
        (a, b),
        (a.rename(a="z"), b),
        (arrays(x=np.zeros(35)), a, b.rename(b="y")),
    ):
        with pytest.raises(
            SpecError, match=r"a1\.npy has 10 records, .*b1\.npy has 20(.|\n)*by='place'"
        ):
            zip(*pair_of_sources)


def test_zip_of_files_is_checked_by_file_only_where_both_are_as_many_whole_files(tmp_path):
    a, b = shards(tmp_path, "a", 10, 20), shards(tmp_path, "b", 20, 10)

    assert len(zip(a, b, by_file=False)) == 30
    assert pickle.loads(pickle.dumps(zip(a, b, by_file=False))).read([29])["b"].tolist() == [9]
    assert len(zip(a, shards(tmp_path, "c", 10, 20))) == 30
    assert len(zip(a, shards(tmp_path, "d", 10, 10, 10))) == 30
    assert len(zip(a, shards(tmp_path, "e", 30))) == 30
    assert len(zip(a, b[:])) == 30
    assert len(zip(a[1:], b.select(range(29)))) == 29
    assert len(zip(a, concat(b[20:], b[:20]))) == 30


def test_zip_of_images_and_of_their_labels_in_a_file_each_is_checked_by_file(tmp_path):
    for number in range(2):
        (tmp_path / f"{number}.png").write_bytes(imagefiles.png(3, 4))
    pictures = images(tmp_path, labels=None)

    assert len(zip(pictures, shards(tmp_path, "a", 1, 1))) == 2
    with pytest.raises(SpecError, match=r"0\.png has 1 records, .*b0\.npy has 0"):
        zip(pictures, shards(tmp_path, "b", 0, 2))


def text_of(source):
    """Return the text of a source as one line: how long it is depends on where temporary files
    lie."""
    return " ".join(repr(source).split())


def test_repr_says_what_a_source_is(tmp_path):
    files = shards(tmp_path, "a", 3, 4)
    (tmp_path / "1.png").write_bytes(imagefiles.png(3, 4))
    (tmp_path / "b.bin").write_bytes(bytes(8))
    many = arrays(**{f"x{number}": Y for number in range(10)})

    assert text_of(files) == f"<gl.npy: 7 records, a: int64 (), 2 files in {tmp_path}>"
    assert (
        text_of(files.rename(a="b"))
        == f"<gl.npy renamed: 7 records, b: int64 (), 2 files in {tmp_path}>"
    )
    assert text_of(files[1:]) == "<part of gl.npy: 6 records, a: int64 (), chosen from 7>"
    assert (
        text_of(zip(files, arrays(y=Y[:7])))
        == "<gl.zip of gl.npy and gl.arrays: 7 records, a: int64 (), y: int64 ()>"
    )
    assert text_of(concat(pair(), pair(), pair())).startswith(
        "<gl.concat of 3 sources: 30 records, x: float32 (4,), y:"
    )
    assert (
        text_of(fixed(tmp_path / "b.bin", "<i4"))
        == f"<gl.fixed: 2 records, x: int32 (), {tmp_path / 'b.bin'}>"
    )
    assert (
        text_of(images(tmp_path, labels=None))
        == f"<gl.images: 1 record, image: encoded image, {tmp_path}>"
    )
    assert text_of(many).endswith("x7: int64 (), ... and 2 more fields>")
    assert text_of(Lists()) == "<Lists: 10 records, r: int16 (None,)>"


def test_repr_of_a_closed_source_is_no_error(tmp_path):
    files = shards(tmp_path, "a", 3, 4)
    part = files[1:]
    files.close()

    assert "7 records" in repr(files)
    assert "6 records" in repr(part)


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("y", r"source\[0\]\['y'\]"), ("z", r"source\[0\]"), (1.0, r"source\[0\]"), (None, r"source\[0\]"),
        (True, r"source\[0\]"), (np.float32(1), r"source\[0\]"), ([1, 2], r"source\.select"),
        (np.array([1, 2]), r"source\.select"),
        ((1, 2), r"source\[0\]"), (slice("a", None), r"10:20"), (slice(None, None, 0), r"10:20"),
    ],
)  # fmt: skip
def test_a_key_that_is_no_number_and_no_slice_is_an_error_with_a_remedy(key, remedy):
    with pytest.raises(SpecError, match=rf"source\[(.|\n)*remedy: .*{remedy}"):
        pair()[key]


def test_a_number_of_numpy_is_a_key():
    assert pair()[np.int16(3)]["y"] == pair()[np.array(3)]["y"] == 9


def test_zip_of_equal_names_is_an_error_that_names_the_remedy():
    with pytest.raises(SpecError, match=r"(?s)\['x'\] occur twice.*rename"):
        zip(arrays(x=X), arrays(x=Y))


@pytest.mark.parametrize(
    ("second", "subject"),
    [
        (
            arrays(x=X.astype("f8")),
            r"source 1 has field x: float64 \(4,\), source 0 has x: float32 \(4,\)",
        ),
        (arrays(x=X[:, :3]), r"source 1 has field x: float32 \(3,\)"),
        (arrays(z=X), r"source 1 has the fields \['z'\], source 0 has \['x'\]"),
        (pair(), r"source 1 has the fields \['x', 'y'\]"),
    ],
)
def test_concat_of_different_fields_is_an_error_that_names_both(second, subject):
    with pytest.raises(SpecError, match=subject):
        concat(arrays(x=X), second)


def ragged(dtype):
    values = [np.arange(n, dtype=dtype) for n in (3, 0, 2)]
    return records(
        3,
        lambda numbers: {"r": [values[number] for number in numbers]},
        fields={"r": (dtype, (None,))},
    )


class TestConcatOfTwoDtypes(SourceContract):
    def open(self, folder):
        folder.mkdir(exist_ok=True)
        np.save(folder / "a.npy", np.arange(6, dtype=">i2").reshape(3, 2))
        wide = arrays(x=np.array([[2**40, -1]], np.int64), w=np.array(["abcde"]))
        return concat(
            zip(npy(folder / "a.npy"), arrays(w=np.array(["a", "b", "c"]))), wide, promote=True
        )

    def open_other(self, folder):
        return concat(
            arrays(x=np.zeros((3, 2), "i2"), w=np.array(["a"] * 3)),
            self.open(folder)[:1],
            promote=True,
        )

    def expected(self):
        return {
            "x": np.array([[0, 1], [2, 3], [4, 5], [2**40, -1]], np.int64),
            "w": np.array(["a", "b", "c", "abcde"]),
        }


@pytest.mark.parametrize("numbers", [[0, 1, 2], [4, 0, 5, 2], [3, 5], [1]])
def test_ragged_fields_of_two_dtypes_have_that_which_holds_both(numbers):
    source = concat(ragged(np.float32), ragged(np.float64), promote=True)

    values = source.read(numbers)["r"]

    assert source.spec["r"].dtype == np.float64 == values.dtype
    assert [value.tolist() for value in values] == [
        list(range((3, 0, 2)[number % 3])) for number in numbers
    ]


@pytest.mark.parametrize(
    "pair_of_dtypes", [("i8", "u8"), ("i4", "f4"), ("?", "i1"), ("M8[s]", "M8[ns]"), ("c8", "f4")]
)
def test_dtypes_that_no_dtype_of_their_kind_holds_are_refused(pair_of_dtypes):
    sources = [arrays(x=np.zeros(2, dtype)) for dtype in pair_of_dtypes]

    with pytest.raises(SpecError, match="source 1 has field x") as error:
        concat(*sources, promote=True)
    assert "a, b, promote=True" not in error.value.remedy


def test_a_dtype_that_holds_both_is_named_in_the_remedy():
    with pytest.raises(SpecError, match=r"promote=True"):
        concat(arrays(x=np.zeros(2, "u1")), arrays(x=np.zeros(2, "i1")))
    assert (
        concat(arrays(x=np.zeros(2, "u1")), arrays(x=np.zeros(2, "i1")), promote=True)
        .spec["x"]
        .dtype
        == np.int16
    )


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
