"""gl.zip by names: which records are put beside each other; worked by hand."""

from __future__ import annotations

import io
import logging
import pickle
import re
import tarfile
import time

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import SpecError
from gpuload.sources.namematch import match
from gpuload.sources.names import RecordNames
from tests import imagefiles

NUMBERS = range(1, 13)  # by text: 1 10 11 12 2 ...


def write(folder, form, numbers=NUMBERS):
    """Write NPY files of one value each, and return their source; the value is the number in the
    name."""
    for number in numbers:
        path = folder / form.format(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.array([number]))
    return gl.npy(f"{folder}/**/*.npy", field=folder.name, record="file")


def write_stems(folder, stems):
    """Write NPY files with these names, and return their source; the value is the place in the
    list."""
    folder.mkdir()
    for number, stem in enumerate(stems):
        np.save(folder / f"{stem}.npy", np.array([number]))
    return gl.npy(f"{folder}/*.npy", field=folder.name, record="file")


def pairs_of(source):
    """Return the values of each record."""
    fields = source.read(range(len(source)))
    return list(zip(*(fields[name].reshape(-1).tolist() for name in fields), strict=True))


def together(source):
    return all(len(set(values)) == 1 for values in pairs_of(source))


@pytest.mark.parametrize(
    "form",
    [
        "{}_mask.npy",
        "mask_{}.npy",
        "mask{}.npy",
        "{}.npy",
        "x/{}/mask.npy",
        "x/{}/masks/a.npy",
        "{}Mask.npy",
        "{}_leftImg8bit.npy",
        "{}.seg.npy",
        "Ä {} (2)ß.npy",
    ],
)
def test_records_whose_names_differ_by_what_all_share_are_joined(tmp_path, form):
    joined = gl.zip(write(tmp_path / "a", "{}.npy"), write(tmp_path / "b", form))

    assert len(joined) == 12
    assert together(joined)


@pytest.mark.parametrize(
    "forms",
    [("{:03}.npy", "{}_mask.npy"), ("scan{:02}.npy", "{}.npy"), ("x/{}.npy", "x/{:04}b.npy")],
)
def test_numbers_that_begin_with_zeros_are_the_same_numbers(tmp_path, forms):
    joined = gl.zip(*(write(tmp_path / name, form) for name, form in zip("ab", forms, strict=True)))

    assert len(joined) == 12
    assert together(joined)


def test_zeros_count_where_names_differ_by_them_alone(tmp_path):
    a, b = write(tmp_path / "a", "{}.npy"), write(tmp_path / "b", "{}m.npy")
    for number in NUMBERS:
        np.save(tmp_path / "a" / f"0{number}.npy", np.array([number + 100]))
    a = gl.npy(f"{tmp_path}/a/*.npy", field="a", record="file")

    pairs = pairs_of(gl.zip(a, b, missing="drop"))

    assert len(pairs) == 12
    assert all(left == right for left, right in pairs)


def test_single_records_are_joined_unless_their_names_say_otherwise(tmp_path):
    a, b = write(tmp_path / "a", "{}.npy"), write(tmp_path / "b", "{}_mask.npy")
    assert (a[3]["a"], b[3]["b"]) == (12, 1)  # by text: 1 10 11 12, and 10_ 11_ 12_ 1_

    with pytest.raises(SpecError, match=r"without partner: 12\.npy.*without partner: 1_mask\.npy"):
        gl.zip(a[3:4], b[3:4])
    assert pairs_of(gl.zip(a[3:4], b[2:3])) == [(12, 12)]
    assert pairs_of(gl.zip(a[3:4], b[3:4], by="place")) == [(12, 1)]
    first, second, other = (
        write(tmp_path / name, form, [1])
        for name, form in (("c", "1.npy"), ("d", "2.npy"), ("e", "x.npy"))
    )
    with pytest.raises(SpecError, match="without partner"):
        gl.zip(first, second)
    assert len(gl.zip(first, other)) == 1  # a photograph, say, and its mask
    words = write(tmp_path / "f", "cat.npy", [1]), write(tmp_path / "g", "dog_mask.npy", [2])
    assert len(gl.zip(*words)) == 1
    np.save(tmp_path / "f" / "dog.npy", [2])
    np.save(tmp_path / "g" / "cat_mask.npy", [1])
    f, g = (gl.npy(f"{tmp_path}/{name}/*.npy", field=name, record="file") for name in "fg")
    assert pairs_of(gl.zip(f[1:], g[1:])) == [(2, 2)]
    with pytest.raises(SpecError, match="without partner"):
        gl.zip(f[:1], g[1:])


def test_files_of_one_name_in_several_folders_are_told_apart(tmp_path):
    for folder, suffix in (("a", ""), ("b", "_m")):
        for number, name in enumerate(("cat/1", "dog/1", "dog/2")):
            path = tmp_path / folder / f"{name}{suffix}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, number)
    a, b = (gl.npy(f"{tmp_path}/{name}/*/*.npy", field=name, record="file") for name in "ab")

    assert pairs_of(gl.zip(a, b.select([2, 0, 1]))) == [(0, 0), (1, 1), (2, 2)]


def test_the_sources_are_joined_as_they_are_where_names_stand_in_one_order(tmp_path):
    a, b = write(tmp_path / "a", "{:02}.npy"), write(tmp_path / "b", "{:02}_mask.npy")

    assert gl.zip(a, b).fingerprint() == gl.zip(a, b, by="place").fingerprint()
    assert gl.zip(a, b)._parts == (a, b)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # Worked by hand: the partner of each name of the first, None: as they stand.
        (["img1.jpg", "img10.jpg"], ["mask10.png", "mask1.png"], [1, 0]),
        (
            ["img10.jpg", "img11.jpg"],
            ["mask0.png", "mask1.png"],
            [-1, -1],
        ),  # img1 is not what img10 and img11 share
        (["2020_1.png", "2020_2.png"], ["2021_2.png", "2021_1.png"], [-1, -1]),  # other years
        (["2020_1.png", "2020_2.png"], ["2021_1.png", "2021_2.png"], None),
        (["1_0.png", "2_0.png"], ["2_1.png", "1_1.png"], [-1, -1]),
        (["c_001_0000.nii.gz", "c_002_0000.nii.gz"], ["c_001.nii.gz", "c_002.nii.gz"], None),
        (
            ["catmask.png", "dogmask.png"],
            ["dog.png", "cat.png"],
            [-1, -1],
        ),  # words are not cut in two
        (["img_0.5.jpg", "img_0.7.jpg"], ["img_0.7.png", "img_0.5.png"], [1, 0]),
        (["1.jpg", "1.png"], ["1.png", "1.jpg"], [1, 0]),
        (["1.jpg", "1.png"], ["1.bmp", "1.gif"], [-1, -1]),  # without suffixes they are one name
        (["cat/1.png", "dog/2.png"], ["2.png", "1.png"], [1, 0]),  # the second has no folders
        (["cat/1.png", "dog/1.png"], ["1.png", "2.png"], [-1, -1]),
        (
            ["cat/1.png", "dog/2.png"],
            ["cat/2.png", "dog/1.png"],
            [-1, -1],
        ),  # both have, and these differ
        (["1.png", "2.png"], ["02.png", "01.png"], [1, 0]),  # the numbers of one begin with zeros
        (
            ["1.png", "01.png"],
            ["01.jpg", "001.jpg"],
            [-1, 0],
        ),  # names that are one number on one side
        (["a/1_l.png", "b/1_l.png"], ["b/1_r.png", "a/1_r.png"], [1, 0]),
    ],
)
def test_names_are_cut_only_where_that_is_safe(first, second, expected):
    result = match(
        *(
            RecordNames.of_files([f"/{folder}/{name}" for name in names])
            for folder, names in (("p", first), ("m", second))
        )
    )

    assert (result.partners if result.partners is None else result.partners.tolist()) == expected
    assert not result.repeat


def test_a_record_without_partner_is_an_error_that_counts_and_names_and_whose_remedies_work(
    tmp_path, caplog
):
    a, b = (
        write(tmp_path / "a", "{}.npy", [1, 2, 3, 4]),
        write(tmp_path / "b", "{}_mask.npy", [2, 3, 4, 5]),
    )

    with pytest.raises(SpecError) as caught:
        gl.zip(a, b)

    text = str(caught.value)
    assert (
        "1 of 4 records of source 0 without partner: 1.npy, and 1 of 4 records of source 1 without partner: 5_mask"
        in text
    )
    assert "missing='drop'" in text
    assert "by='place'" in text
    assert pairs_of(gl.zip(a, b, missing="drop")) == [(2, 2), (3, 3), (4, 4)]
    assert "1 of the 4 records of source 1" in caplog.text
    assert pairs_of(gl.zip(a, b, by="place")) == [(1, 2), (2, 3), (3, 4), (4, 5)]
    assert pairs_of(gl.zip(a, b, by=lambda name: (int(name[0]) + 1) % 4)) == [
        (1, 5),
        (2, 2),
        (3, 3),
        (4, 4),
    ]


def test_other_lengths_are_an_error_of_names_where_there_are_some(tmp_path):
    a, b = write(tmp_path / "a", "{}.npy"), write(tmp_path / "b", "{}_mask.npy", range(1, 11))

    with pytest.raises(
        SpecError, match=r"2 of 12 records of source 0 without partner: 11\.npy, 12\.npy\n"
    ):
        gl.zip(a, b)
    with pytest.raises(SpecError, match=r"\[12, 10\] records(.|\n)*a\.select\(numbers\)"):
        gl.zip(a, gl.arrays(x=np.zeros(10)))


def test_names_follow_their_records(tmp_path):
    a, b = write(tmp_path / "a", "{}.npy"), write(tmp_path / "b", "mask{}_x.npy")
    mask = np.arange(12) % 3 != 1

    def is_in(fields):
        return np.isin(fields["c"][:, 0], pairs_of(a.filter(mask)))

    for source in (
        gl.zip(a[::-1], b),
        gl.zip(a, b.select(np.random.default_rng(0).permutation(12))),
        gl.zip(a.split(0.5, seed=1)[0], b, missing="drop"),
        gl.zip(a.filter(mask), b.rename(b="c").filter(is_in, fields="c")),
        gl.zip(gl.concat(a[6:], a[:6]), b.cache(memory="1MB")),
        gl.zip(gl.zip(a, gl.arrays(z=a.read(range(12))["a"][:, 0])), b),
        gl.zip(a, b, b.rename(b="c")[::-1]),
    ):
        assert together(source)
        assert len(source) >= 6


def test_three_sources_lose_what_one_of_them_lacks(tmp_path):
    parts = [write(tmp_path / name, form, numbers) for name, form, numbers in (
        ("a", "{}.npy", [1, 2, 3, 4]), ("b", "b{}.npy", [2, 3, 4, 5]), ("c", "{}-c.npy", [1, 2, 4]),
    )]  # fmt: skip

    assert pairs_of(gl.zip(*parts, missing="drop")) == [(2, 2, 2), (4, 4, 4)]


def test_parts_of_one_source_are_joined_by_place(tmp_path):
    a = write(tmp_path / "a", "{:02}.npy")
    again = gl.npy(f"{tmp_path}/a/*.npy", field="b", record="file")

    assert pairs_of(gl.zip(a[:-1], a[1:].rename(a="b")))[:2] == [(1, 2), (2, 3)]
    assert pairs_of(gl.zip(a, again[::-1]))[0] == (1, 12)
    assert pairs_of(gl.zip(a, a.select([3] * 12).rename(a="b")))[0] == (1, 4)
    assert pairs_of(gl.zip(a[:6], again[6:]))[0] == (1, 7)
    assert pairs_of(gl.zip(a, again[::-1], by="name"))[0] == (1, 1)


def test_a_source_without_names_is_joined_by_place_if_that_is_clear(tmp_path):
    a, b, rest = (
        write(tmp_path / "a", "{}.npy"),
        write(tmp_path / "b", "{}_m.npy"),
        gl.arrays(z=np.arange(12)),
    )

    assert gl.zip(a, rest)[0]["z"] == 0
    with pytest.raises(
        SpecError,
        match=r"record 0 is 1\.npy of source 0, and 10_m\.npy of source 1(.|\n)*gl\.zip\(gl\.zip",
    ):
        gl.zip(a, b, rest)
    assert together(gl.zip(gl.zip(a, b), gl.arrays(z=a.read(range(12))["a"][:, 0])))
    with pytest.raises(SpecError, match=r"source 1 is <gl\.arrays"):
        gl.zip(a, rest, by="name")


def test_names_that_come_twice_are_refused(tmp_path):
    a, b = write(tmp_path / "a", "{}.npy", [1, 2, 3]), write(tmp_path / "b", "{}_m.npy", [1, 2, 3])

    assert together(gl.zip(a.select([0, 0, 2]), b.select([0, 0, 2])))
    with pytest.raises(SpecError, match=r"the name 1\.npy"):
        gl.zip(a.select([0, 0, 2]), b.select([0, 2, 0]))
    with pytest.raises(SpecError, match="the name None"):
        gl.zip(a, b, by=lambda name: None)
    with pytest.raises(SpecError, match="hashable"):
        gl.zip(a, b, by=list)


def test_samples_and_mixes_are_joined_only_where_their_records_go_together(tmp_path):
    a, b = write(tmp_path / "a", "{}.npy"), write(tmp_path / "b", "{}_m.npy")
    weights = np.arange(12)[::-1]

    with pytest.raises(SpecError, match=r"gl\.zip the parts, and mix or sample these"):
        gl.zip(gl.mix({a: 1}), gl.mix({b: 1}))
    with pytest.raises(SpecError):
        gl.zip(a.sample(weights), b.sample(weights))
    assert together(gl.zip(a.sample(weights), gl.zip(a, b).rename(a="c").sample(weights))[:])


def test_the_order_survives_pickling_and_names_are_not_asked_for_again(tmp_path):
    joined = gl.zip(
        write(tmp_path / "a", "{}.npy"),
        write(tmp_path / "b", "{}_m.npy"),
        by=lambda name: name.split(".")[0].split("_")[0],
    )
    again = pickle.loads(pickle.dumps(joined))

    assert again.fingerprint() == joined.fingerprint()
    assert pairs_of(again) == pairs_of(joined)


def test_a_manifest_knows_the_names(tmp_path):
    a, b = write(tmp_path / "a", "{}.npy"), write(tmp_path / "b", "{}_m.npy")
    listed = gl.npy(b.index(tmp_path / "b.manifest"), field="b", record="file")

    assert gl.zip(a, listed).fingerprint() == gl.zip(a, b).fingerprint()


def test_images_and_keys_of_tars_and_archives_have_names(tmp_path):
    (tmp_path / "photos").mkdir()
    with tarfile.open(tmp_path / "masks.tar", "w") as tar:
        for number in (2, 1):
            (tmp_path / f"photos/img_{number}.5.png").write_bytes(imagefiles.png(3, number))
            np.savez(tmp_path / f"{number}.npz", z=np.full(3, number))
            for kind, data in (("mask", b"m"), ("cls", b"%d" % number)):
                member = tarfile.TarInfo(f"x/img_{number}.{kind}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    photos = gl.images(tmp_path / "photos", labels=None)
    archive = gl.webdataset(tmp_path / "masks.tar")

    joined = gl.zip(gl.npz(f"{tmp_path}/*.npz", record="file"), archive.rename(mask="m"))

    assert [(int(record["z"][0]), int(record["cls"])) for record in (joined[0], joined[1])] == [
        (1, 1),
        (2, 2),
    ]
    with pytest.raises(SpecError, match=r"img_1\.5\.png"):
        gl.zip(photos, archive)
    assert len(gl.zip(photos, archive, by=lambda name: name[4])) == 2


def test_files_of_many_records_in_another_order_are_refused(tmp_path):
    for number in range(1, 12):
        np.save(tmp_path / f"{number}.npy", np.arange(3))
        np.save(tmp_path / f"{number}_y.npy", np.arange(3))
    x, y = (gl.npy([f"{tmp_path}/{number}{end}.npy" for number in sorted(map(str, range(1, 12)))], field=field)
            for field, end in (("x", ""), ("y", "_y")))  # fmt: skip

    assert len(gl.zip(x, y)) == 33
    shuffled = gl.npy(sorted(map(str, tmp_path.glob("*_y.npy"))), field="y")
    with pytest.raises(SpecError, match=r"1\.npy and .*10_y\.npy stand at one place"):
        gl.zip(x, shuffled)
    assert len(gl.zip(x, shuffled, by="place")) == len(gl.zip(x, shuffled, by_file=False)) == 33


@pytest.mark.parametrize(
    "arguments",
    [{"by": "names"}, {"by": 3}, {"missing": "skip"}, {"by": "place", "missing": "drop"}],
)
def test_other_arguments_are_refused(arguments):
    with pytest.raises(SpecError, match=r"by|missing"):
        gl.zip(gl.arrays(x=np.zeros(1)), gl.arrays(y=np.zeros(1)), **arguments)


def test_another_order_is_a_line_of_the_log(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "gpuload"):
        gl.zip(write(tmp_path / "a", "{}.npy"), write(tmp_path / "b", "{}_m.npy"))

    (record,) = [record for record in caplog.records if "gl.zip" in record.message]
    assert record.levelno == logging.INFO
    assert "1_m.npy beside 1.npy" in record.message


def test_many_names_take_a_moment():
    names = [f"/p/class{number % 100:03}/IMG_{number:06}" for number in range(100_000)]
    sides = [RecordNames.of_files([name + end for name in names]) for end in (".jpg", "_mask.png")]
    start_s = time.process_time()

    assert match(*sides).partners is None
    assert time.process_time() - start_s < 1  # 0.08 s on a quiet machine


@pytest.mark.parametrize(
    "shards", [[range(1, 13)], [range(1, 7), range(7, 13)]], ids=["one", "two"]
)
@pytest.mark.parametrize("form", ["{}", "img_0.{}", "train/{:03}"])
def test_archives_with_the_same_keys_in_another_order_are_joined_by_these(tmp_path, shards, form):
    def archive(name, numbers):
        with tarfile.open(tmp_path / name, "w") as tar:
            for number in numbers:
                member = tarfile.TarInfo(form.format(number) + ".cls")
                member.size = len(str(number))
                tar.addfile(member, io.BytesIO(str(number).encode()))

    for place, numbers in enumerate(shards):
        archive(f"a-{place}.tar", numbers)
    archive("b.tar", reversed(NUMBERS))
    a, b = (gl.webdataset(f"{tmp_path}/{name}*.tar", ["cls"]).rename(cls=name) for name in "ab")

    assert pairs_of(gl.zip(a, b)) == [(number, number) for number in NUMBERS]
    assert pairs_of(gl.zip(a[2:5], b, missing="drop")) == [(3, 3), (4, 4), (5, 5)]
    again = gl.webdataset(f"{tmp_path}/a*.tar", ["cls"]).rename(cls="next")
    for following in (a[1:].rename(a="next"), again[1:]):  # parts of one source
        assert pairs_of(gl.zip(a[:-1], following))[:2] == [(1, 2), (2, 3)]


def test_numbered_files_beside_records_without_names_are_told_of(tmp_path, caplog):
    a = write(tmp_path / "a", "{}.npy")
    labels = gl.arrays(label=np.arange(1, 13))

    gl.zip(a, labels)

    (line,) = [
        record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING
    ]
    assert "12.npy comes before 2.npy" in line
    caplog.clear()
    listed = gl.npy([f"{tmp_path}/a/{number}.npy" for number in NUMBERS], field="a", record="file")
    assert together(gl.zip(listed, labels))
    shuffled = gl.npy(
        [f"{tmp_path}/a/{number}.npy" for number in (12, 2, 10, 1)], field="a", record="file"
    )
    padded = write(tmp_path / "c", "{:02}.npy")
    for source in (shuffled, a.select([0, 4]), padded):
        gl.zip(source, labels[: len(source)])
    gl.zip(a, labels, by="place")
    gl.zip(a, write(tmp_path / "b", "{}_m.npy"))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("form", ["s{}_{}", "{}/{}", "s{}/x{}"])
def test_slices_are_joined_by_what_tells_all_records_apart(tmp_path, form):
    for place, suffix in (("a", ""), ("b", "_mask")):
        for number in range(6):
            path = tmp_path / place / f"{form.format('cd'[number // 3], number % 3)}{suffix}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, np.array([number]))
    a, b = (gl.npy(f"{tmp_path}/{name}/**/*.npy", field=name, record="file") for name in "ab")

    with pytest.raises(SpecError, match=r"3 of 3 records of source 0 without partner"):
        gl.zip(a[:3], b[3:])
    assert pairs_of(gl.zip(a[:3], b[:3])) == [(0, 0), (1, 1), (2, 2)]
    assert pairs_of(gl.zip(a[1:4], b[4:0:-1], missing="drop")) == [(1, 1), (2, 2), (3, 3)]
    assert pairs_of(gl.zip(a[2:3], b[2:3], by="name")) == [(2, 2)]
    (tmp_path / "b").joinpath(
        f"{form.format('d', 2)}_mask.npy"
    ).unlink()  # of the six masks one is missing
    b = gl.npy(f"{tmp_path}/b/**/*.npy", field="b", record="file")
    with pytest.raises(SpecError, match="without partner"):
        gl.zip(a[:2], b[3:])


def fail(error):
    raise error


@pytest.mark.parametrize("error", [ValueError("no number"), KeyError("x")])
def test_an_exception_of_the_function_comes_as_itself_and_says_for_which_name(tmp_path, error):
    a, b = write(tmp_path / "a", "{}.npy", (1, 2)), write(tmp_path / "b", "{}_mask.npy", (1, 2))

    with pytest.raises(type(error)) as caught:
        gl.zip(a, b, by=lambda name: fail(error) if "2_" in name else name[0])

    assert caught.value is error
    assert error.__notes__ == ["gl.zip: the function of by= was given 2_mask.npy of source 1"]


def test_a_stop_iteration_of_the_function_is_no_end_of_the_names(tmp_path):
    a, b = write(tmp_path / "a", "{}.npy", (1, 2)), write(tmp_path / "b", "{}_mask.npy", (1, 2))

    with pytest.raises(RuntimeError) as caught:
        gl.zip(a, b, by=lambda name: fail(StopIteration(3)))

    assert isinstance(caught.value.__cause__, StopIteration)


def test_what_cannot_be_looked_up_is_named_also_inside_of_a_tuple(tmp_path):
    a, b = write(tmp_path / "a", "{}.npy", (1, 2)), write(tmp_path / "b", "{}.npy", (1, 2))

    with pytest.raises(
        SpecError, match=r"of 1.npy of source 0 the function makes \('1.npy', \['1.npy'\]\)"
    ):
        gl.zip(a, b, by=lambda name: (name, [name]))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (["Cat", "Dog"], ["cat_x", "dog_y"]), (["Cat.1", "Dog.2"], ["cat", "dog"]), (["1", "2"], ["1_mask", "2_seg"]),
        (["20200101_a", "20200102_b"], ["20200101_x", "20200102_y"]), (["a_1", "b_2"], ["c_1", "d_2"]),
        (["a1b", "c2d"], ["e1", "f2"]), (["20200101abc", "20200102def"], ["20200101xyz1", "20200102uvw2"]),
    ],
)  # fmt: skip
def test_the_function_that_an_error_names_joins_the_records(tmp_path, first, second):
    a, b = write_stems(tmp_path / "a", first), write_stems(tmp_path / "b", second)

    with pytest.raises(SpecError, match="without partner") as error:
        gl.zip(a, b)

    form = re.search(r"gl.zip\(..., by=(lambda name: .*?)\)(?:;|$)", str(error.value))
    assert pairs_of(gl.zip(a, b, by=eval(form[1]))) == [(0, 0), (1, 1)]


def test_where_no_function_is_known_that_joins_the_records_none_is_named(tmp_path):
    a, b = write(tmp_path / "a", "{}.npy", (1, 2)), write(tmp_path / "b", "{}.npy", (1, 3))

    with pytest.raises(SpecError, match="with a function that returns one text"):
        gl.zip(a, b)


def test_a_single_record_of_a_part_needs_the_name_of_its_partner(tmp_path):
    photos, masks = (
        write_stems(tmp_path / "a", ["cat", "dog"]),
        write_stems(tmp_path / "b", ["dog_mask"]),
    )

    with pytest.raises(SpecError, match="without partner"):
        gl.zip(photos[:1], masks)


def files(folder, names):
    """Write empty files with the heads of PNG images, and return their source."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\x89PNG\r\n\x1a\n")
    return gl.images(folder, labels=None).rename(image=folder.name)


def table(path, **columns):
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join(",".join(map(str, row)) for row in [tuple(columns), *rows]) + "\n")
    return gl.csv(path)


PETS = ["bird", "cat", "dog", "fox"]
OTHER_ORDER = ["dog", "bird", "fox", "cat"]


@pytest.mark.parametrize("form", ["{}", "{}.jpg", "photos/{}.jpg", "C:\\photos\\{}.jpg", " {}.png"])
def test_a_column_with_the_names_of_the_files_in_another_order_is_refused(tmp_path, form):
    photos = files(tmp_path / "photos", [f"{name}.png" for name in PETS])
    right = table(tmp_path / "a.csv", label=[0, 1, 0, 1], file=map(form.format, PETS))
    wrong = table(tmp_path / "b.csv", label=[0, 1, 0, 1], file=map(form.format, OTHER_ORDER))

    with pytest.raises(
        SpecError, match=r"record 0 of source 1 has file = '.*dog.*', and is joined with bird\.png"
    ):
        gl.zip(photos, wrong)
    with pytest.raises(SpecError, match="record 0 of source 0 has file"):
        gl.zip(wrong, photos)
    with pytest.raises(SpecError, match="record 0 of source 2 has file"):
        gl.zip(photos, files(tmp_path / "masks", [f"{name}.png" for name in PETS]), wrong)
    assert len(gl.zip(photos, right)) == len(gl.zip(photos, wrong, by="place")) == 4


@pytest.mark.parametrize(
    "write_table",
    [
        lambda path, texts: gl.arrays(name=texts),
        lambda path, texts: gl.arrays(name=np.array(texts, "S")),
        lambda path, texts: np.savez(path, name=np.array(texts)) or gl.npz(path),
    ],
)
def test_texts_of_all_formats_are_compared_with_the_names(tmp_path, write_table):
    photos = files(tmp_path / "photos", [f"{name}.png" for name in PETS])

    assert len(gl.zip(photos, write_table(tmp_path / "a.npz", PETS))) == 4
    with pytest.raises(SpecError, match="another order"):
        gl.zip(photos, write_table(tmp_path / "b.npz", OTHER_ORDER))


def test_two_lines_that_changed_places_among_many_are_refused(tmp_path):
    names = [f"{number:03}" for number in range(200)]
    photos = files(tmp_path / "photos", [f"{name}.png" for name in names])
    columns = {"file": [f"{name}.png" for name in names], "age": list(range(200))}

    assert len(gl.zip(photos, table(tmp_path / "a.csv", **columns))) == 200
    columns["file"][150:152] = columns["file"][151:149:-1]
    with pytest.raises(SpecError, match=r"record 150 of source 1 has file = '151\.png'"):
        gl.zip(photos, table(tmp_path / "b.csv", **columns))


def test_columns_that_are_no_names_of_the_files_are_joined_by_place(tmp_path, caplog):
    photos = files(
        tmp_path / "photos", [f"{name}/{number}.png" for name in PETS for number in range(5)]
    )
    names = [f"{name}/{number}.png" for name in PETS for number in range(5)]
    columns = {
        "label": [name for name in PETS for _ in range(5)],  # the name of a folder
        "next": [*names[1:], names[0]],
        "file": names,
        "mask": [f"{name}_mask" for name in names],
        "caption": [f"a {name} that sits" for name in names],
        "split": ["train", "test"] * 10,
        "patient": [f"P{number}" for number in range(20, 0, -1)],
    }

    assert len(gl.zip(photos, table(tmp_path / "a.csv", **columns))) == 20
    del columns["next"], columns["file"]
    assert len(gl.zip(photos, table(tmp_path / "b.csv", **columns))) == 20
    numbers = [3, 3, 0, 7]  # a file in several rows
    assert (
        len(
            gl.zip(
                photos.select(numbers), table(tmp_path / "c.csv", file=[names[n] for n in numbers])
            )
        )
        == 4
    )
    assert not caplog.records


@pytest.mark.parametrize(
    ("first", "second", "is_told"),
    [
        (["a"], ["b_mask"], True),
        (["photo"], ["mask"], True),
        (["2020_01"], ["2020_02"], True),
        (["a"], ["a_mask"], False),
        (["Cat"], ["maskCat"], False),
        (["img_007"], ["mask_7"], False),
        (["aachen_000000_000019_leftImg8bit"], ["aachen_000000_000019_gtFine_labelIds"], False),
        (["2020_01", "2020_02"], ["2021_01", "2021_02"], True),
        (["p1_s1", "p1_s2"], ["p2_s1", "p2_s2"], True),
        (["a_v1", "b_v1"], ["a_v2", "b_v2"], False),
        (["2007_000032", "2007_000033"], ["2007_000032_seg", "2007_000033_seg"], False),
        (["0801", "0802"], ["0801x4", "0802x4"], False),
        (["0001TP_006690", "0001TP_006720"], ["0001TP_006690_L", "0001TP_006720_L"], False),
        (["2020_01", "2020_02"], ["01", "02"], False),
    ],
)
def test_names_that_stand_in_one_order_and_differ_in_their_numbers_are_told(
    tmp_path, caplog, first, second, is_told
):
    a, b = (
        files(tmp_path / folder, [f"{name}.png" for name in names])
        for folder, names in (("a", first), ("b", second))
    )

    assert len(gl.zip(a, b)) == len(first)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * is_told
    caplog.clear()
    gl.zip(a, b, by="place")
    assert not caplog.records


@pytest.mark.parametrize("names", [["cat", "dog"], ["p1_s1", "p1_s2", "p2_s1", "p2_s2"]])
def test_parts_of_one_source_are_joined_without_a_warning(tmp_path, caplog, names):
    frames = files(tmp_path / "a", [f"{name}.png" for name in names])
    half = len(names) // 2

    assert len(gl.zip(frames[:half], frames[half:].rename(a="next"))) == half
    assert not caplog.records
