"""Files that cannot be opened: each is one record that cannot be read, and the others are what they
are without it."""

from __future__ import annotations

import io
import logging
import pickle
import struct
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import gpuload as gl
from gpuload.errors import DamagedSourceError, FormatError, MissingFileError, RecordError, SpecError
from gpuload.sources import gaps
from gpuload.sources.reading import record_origin
from gpuload.testing.sources import assert_same as assert_same_array
from tests.sources.tfrecordfiles import example, write


def assert_same(actual, expected):
    assert len(actual) == len(expected)
    if isinstance(expected, np.ndarray):
        assert_same_array(actual, expected)
    else:
        for item, second in zip(actual, expected, strict=True):
            assert_same_array(item, second)


GOOD, BAD = (1, 3, 4, 6, 7), (0, 2, 5)


def array(number):
    return np.arange(24 * number, 24 * number + 24, dtype="i4").reshape(4, 2, 3)


def saved(function, *arrays, **names):
    file = io.BytesIO()
    function(file, *arrays, **names)
    return file.getvalue()


def npy(number):
    return saved(np.save, array(number))


def npy_of_other_form(number):
    return saved(
        np.save, np.asfortranarray(array(number)) if number % 2 else array(number).astype(">i4")
    )


def npy_of_any_length(number):
    return saved(np.save, array(number)[: 1 + number % 3])


def npz(number):
    return saved(np.savez, x=array(number), label=np.arange(4) + number)


def npz_deflated(number):
    return saved(np.savez_compressed, x=array(number), label=np.arange(4) + number)


def npz_of_any_length(number):
    return saved(np.savez_compressed, x=array(number)[: 1 + number % 3], label=np.int64(number))


def fixed(number):
    return array(number).tobytes()


def png(number):
    file = io.BytesIO()
    Image.fromarray(np.full((4 + number, 5, 3), number, np.uint8)).save(file, "PNG")
    return file.getvalue()


# Of each kind what makes a file, how it is opened, and how it is damaged: file 0, 2 and 5.
CUT, EMPTY, OTHER = (lambda raw: raw[:-5]), (lambda raw: b""), (lambda raw: b"something else")
KINDS = {
    "npy": (npy, lambda paths, **how: gl.npy(paths, **how), (OTHER, CUT, EMPTY)),
    "npy of other forms": (npy_of_other_form, lambda paths, **how: gl.npy(paths, **how), (CUT, EMPTY, OTHER)),
    "npy as files": (npy, lambda paths, **how: gl.npy(paths, record="file", **how), (CUT, EMPTY, OTHER)),
    "npy ragged": (
        npy_of_any_length, lambda paths, **how: gl.npy(paths, record="file", **how), (EMPTY, CUT, OTHER),
    ),
    "npz": (npz, lambda paths, **how: gl.npz(paths, **how), (EMPTY, CUT, OTHER)),
    "npz deflated": (npz_deflated, lambda paths, **how: gl.npz(paths, **how), (EMPTY, CUT, OTHER)),
    "npz as files": (npz_deflated, lambda paths, **how: gl.npz(paths, record="file", **how), (OTHER, CUT, EMPTY)),
    "npz ragged": (npz_of_any_length, lambda paths, **how: gl.npz(paths, record="file", **how), (CUT, CUT, EMPTY)),
    "fixed": (fixed, lambda paths, **how: gl.fixed(paths, ("i4", (2, 3)), **how), (CUT, OTHER, CUT)),
    "images": (png, lambda paths, **how: gl.images(paths, labels=None, **how), (EMPTY, EMPTY, EMPTY)),
}  # fmt: skip


@pytest.fixture(params=KINDS)
def case(request, tmp_path, monkeypatch):
    """Give the paths of eight files, of which some are damaged, and the function that opens
    them."""
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))
    write, opener, damages = KINDS[request.param]
    paths = [tmp_path / f"{number}.{'png' if write is png else 'bin'}" for number in range(8)]
    for number, path in enumerate(paths):
        raw = write(number)
        path.write_bytes(damages[BAD.index(number)](raw) if number in BAD else raw)
    return [str(path) for path in paths], opener


def records_of(source, paths):
    """Return the records of a source that are bad files, and all others."""
    bad = [
        number
        for number in range(len(source))
        if source.where(number).partition(",")[0] in {f"{b}" for b in paths}
    ]
    return bad, sorted(set(range(len(source))) - set(bad))


def opened(case, **how):
    paths, opener = case
    source = opener(paths, **how)
    names = [path.rpartition("/")[2] for path in paths]
    bad, good = records_of(source, [names[number] for number in BAD])
    return source, bad, good


def test_one_file_that_is_damaged_is_an_error_that_names_the_way(case):
    paths, opener = case

    with pytest.raises(FormatError, match=rf"(?s){paths[0]}.*on_error=\"skip\"\) opens the others"):
        opener(paths)


@pytest.mark.parametrize("on_error", ["replace", "skip"])
def test_a_damaged_file_is_one_record_and_the_others_are_as_without_it(case, on_error, caplog):
    with caplog.at_level(logging.WARNING, "gpuload"):
        source, bad, good = opened(case, on_error=on_error)
    paths, opener = case
    sound = opener([paths[number] for number in GOOD])

    assert len(bad) == len(BAD)
    assert len(good) == len(sound)
    values, expected = source.read(good), sound.read(range(len(sound)))
    for name in sound.spec.names:
        assert_same(values[name], expected[name])
    assert "3 of 8 files cannot be opened, and are damaged records; the first is" in caplog.text


def test_its_record_is_an_error_that_names_the_file(case):
    source, bad, good = opened(case, on_error="skip")

    for number, file in zip(bad, BAD, strict=True):
        with pytest.raises(
            RecordError, match=rf"^{file}\.(bin|png)(, record 0)?: .*(\n.*)*leaves it out"
        ) as caught:
            source.read([good[0], number, good[-1]])
        assert caught.value.cause
        assert record_origin(source, number) == (case[0][file], 0)
    assert (
        record_origin(source, good[0]) is None
        or record_origin(source, good[0])[0] == case[0][GOOD[0]]
    )  # None: of unpacked copies


@pytest.mark.parametrize("on_error", ["replace", "skip"])
def test_a_loader_counts_it_and_puts_the_same_record_in_its_place_whatever_the_batches(
    case, on_error, tmp_path
):
    source, bad, _ = opened(case, on_error=on_error)
    ops = [gl.ops.Decode(), gl.ops.Resize(4, 4)] if source.spec.names == ("image",) else []
    epochs = []
    for batch_size, num_threads in ((1, 1), (3, 2), (8, 4)):
        lines = tmp_path / f"{batch_size}.jsonl"
        with gl.Loader(
            source, batch_size=batch_size, num_threads=num_threads, shuffle=True, seed=3, ops=ops, device="cpu",
            on_error=on_error, max_bad=0.5, quarantine=lines,
        ) as loader:  # fmt: skip
            batches = list(loader)
            assert sorted(item.record for item in loader.bad_records()) == bad
        assert len(lines.read_text().splitlines()) == len(bad)
        epochs.append(
            [
                (
                    [np.asarray(batch[name][row]).tolist() for name in source.spec.names],
                    bool(batch.valid[row]),
                )
                for batch in batches
                for row in range(len(batch.records))
            ]
        )

    assert epochs[0] == epochs[1] == epochs[2]
    assert sum(not valid for _, valid in epochs[0]) == (len(bad) if on_error == "skip" else 0)


def test_a_loader_that_raises_and_one_that_allows_too_few_stop(case):
    source, _, _ = opened(case, on_error="skip")

    with (
        gl.Loader(source, batch_size=4, device="cpu") as loader,
        pytest.raises(RecordError, match=r"record 0|png: "),
    ):
        list(loader)
    loader = gl.Loader(source, batch_size=4, device="cpu", on_error="skip", max_bad=0.0)
    with loader, pytest.raises(DamagedSourceError, match=r"max_bad=0\.0"):
        list(loader)


def test_check_lists_it_with_its_record(case):
    source, bad, _ = opened(case, on_error="skip")

    findings = list(gl.check(source))

    assert sorted((finding.record, finding.file) for finding in findings) == [
        (number, case[0][file]) for number, file in zip(bad, BAD, strict=True)
    ]


def test_it_goes_through_slices_concat_and_pickles(case):
    source, bad, good = opened(case, on_error="skip")
    again = pickle.loads(pickle.dumps(source))

    assert again.fingerprint() == source.fingerprint()
    assert len(gl.concat(source, again)) == 2 * len(source)
    for name, values in (
        gl.concat(source, again).select([good[0], len(source) + good[1]]).read([0, 1]).items()
    ):
        assert_same(values, source.read(good[:2])[name])
    with pytest.raises(RecordError):
        source[bad[1] :].read([0])


def test_files_that_all_are_damaged_are_an_error(case):
    paths, opener = case

    with pytest.raises(FormatError, match=paths[0]):
        opener([paths[number] for number in BAD], on_error="skip")


def test_a_missing_file_is_an_error_in_any_case(case):
    paths, opener = case

    with pytest.raises(MissingFileError):
        opener([*paths, paths[0] + "-none"], on_error="skip")


@pytest.mark.parametrize("on_error", ["ignore", None, 3, True])
def test_another_way_is_refused(case, on_error):
    paths, opener = case

    with pytest.raises(SpecError, match="on_error = "):
        opener(paths, on_error=on_error)


def test_the_system_is_asked_for_records_that_can_be_read_alone():
    requests = []
    leaf = SimpleNamespace(
        spec=None, layout=None, num_records=4, how="", is_direct=False,
        advise=lambda numbers: requests.append(numbers.tolist()),
    )  # fmt: skip

    gaps.GapLeaf(leaf, np.array([1, 3]), error=None, origin=None).advise(np.array([3, 0, 1, 2, 0]))

    assert requests == [[0, 2, 0]]


def test_one_cut_file_of_many_does_not_change_the_numbers_of_those_in_front_of_it(tmp_path):
    for number in range(4):
        np.save(tmp_path / f"{number}.npy", array(number))
    (tmp_path / "2.npy").write_bytes((tmp_path / "2.npy").read_bytes()[:-1])

    source = gl.npy(tmp_path / "*.npy", on_error="skip")

    assert [source.where(number) for number in (3, 7, 8, 9, 12)] == [
        "0.npy, record 3", "1.npy, record 3", "2.npy, record 0", "3.npy, record 0", "3.npy, record 3",
    ]  # fmt: skip


class TestTFRecord:
    """Records in front of the damage are as they are; what follows is one record."""

    def write(self, folder):
        for number in range(4):
            payloads = [
                example(x=10 * number + record, y=[0.5] * (record + 1)) for record in range(5)
            ]
            write(folder / f"{number}.tfrecord", payloads)
        piece = (folder / "0.tfrecord").read_bytes()
        (folder / "0.tfrecord").write_bytes(piece[:-9])
        changed = bytearray((folder / "2.tfrecord").read_bytes())
        second = struct.unpack_from("<Q", changed)[0] + 16
        changed[second + 2] ^= 1  # the length of record 1
        (folder / "2.tfrecord").write_bytes(changed)
        (folder / "3.tfrecord").write_bytes(b"something that is no TFRecord file")
        return f"{folder}/*.tfrecord"

    @pytest.fixture(
        params=[{"x": "i8"}, None, {"x": "i8", "y": ("f4", (None,))}],
        ids=["x", "inferred", "ragged"],
    )
    def features(self, request):
        return request.param

    def test_the_records_in_front_of_the_damage_are_read(self, tmp_path, features):
        source = gl.tfrecord(self.write(tmp_path), features, on_error="skip")

        assert len(source) == 5 + 5 + 2 + 1
        good = [0, 1, 2, 3, 5, 6, 7, 8, 9, 10]
        assert source.read(good)["x"].tolist() == [0, 1, 2, 3, 10, 11, 12, 13, 14, 20]
        for number, message in ((4, "0.tfrecord, record 4: it says that"), (11, "2.tfrecord, record 1: the length"),
                             (12, "3.tfrecord, record 0: it is no TFRecord file")):  # fmt: skip
            with pytest.raises(RecordError, match=rf"^{message}"):
                source.read([0, number])
        assert record_origin(source, 12) == (str(tmp_path / "3.tfrecord"), 0)
        assert pickle.loads(pickle.dumps(source)).fingerprint() == source.fingerprint()

    def test_a_loader_counts_them_whatever_the_batches(self, tmp_path, features):
        source = gl.tfrecord(self.write(tmp_path), features, on_error="replace")
        epochs = []
        for batch_size in (1, 4, 13):
            with gl.Loader(
                source,
                batch_size=batch_size,
                shuffle=True,
                seed=1,
                device="cpu",
                on_error="skip",
                max_bad=0.5,
            ) as loader:
                epochs.append(
                    [
                        (int(x), bool(valid))
                        for batch in loader
                        for x, valid in zip(batch["x"], batch.valid, strict=True)
                    ]
                )
                assert sorted(bad.record for bad in loader.bad_records()) == [4, 11, 12]
        assert epochs[0] == epochs[1] == epochs[2]
        assert sum(not valid for _, valid in epochs[0]) == 3
        assert [finding.record for finding in gl.check(source)] == [4, 11, 12]

    def test_by_default_it_is_an_error_that_names_the_way(self, tmp_path, features):
        paths = self.write(tmp_path)

        for _ in range(2):  # no index of a damaged file is kept
            with pytest.raises(FormatError, match=r"0\.tfrecord, record 4(.|\n)*on_error=\"skip\""):
                gl.tfrecord(paths, features)
            gl.tfrecord(paths, features, on_error="skip")

    def test_files_without_any_whole_record_are_an_error(self, tmp_path, features):
        self.write(tmp_path)

        with pytest.raises(FormatError, match=r"3\.tfrecord is no TFRecord file"):
            gl.tfrecord(tmp_path / "3.tfrecord", features, on_error="skip")
