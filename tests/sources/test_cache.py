"""Caches of sources, in memory and in files."""

from __future__ import annotations

import errno
import json
import os
import pickle

import numpy as np
import pytest

import gpuload as gl
from gpuload.display.pictures import png
from gpuload.errors import (
    ChangedFileError,
    FileError,
    FormatError,
    RecordError,
    SpecError,
    TooLargeError,
)
from gpuload.sources import cache, cachecolumns, cachefiles
from gpuload.storage import keptfile
from gpuload.testing.sources import SourceContract, assert_same
from tests import forkserver


def rows(count=12, seed=0):
    r = np.random.default_rng(seed)
    return {
        "image": r.integers(0, 256, (count, 5, 4, 3), np.uint8),
        "label": np.arange(count, dtype=">i4"),
        "name": np.array([f"número {number}" for number in range(count)]),
        "key": np.array([b"k%d" % number for number in range(count)]),
        "when": np.arange(count).astype("M8[s]"),
        "flag": np.arange(count) % 2 == 0,
    }


class TestInMemory(SourceContract):
    def open(self, folder):
        return gl.arrays(**rows()).cache(memory="1MB")

    def open_other(self, folder):
        return gl.arrays(**rows(9)).cache(memory="1MB")

    def expected(self):
        return {**rows(), "label": np.arange(12, dtype="i4")}


@pytest.mark.usefixtures("reader")
class TestInFiles(SourceContract):
    def open(self, folder):
        np.save(folder / "a.npy", self.expected()["x"].astype(">f4"))
        return gl.npy(folder / "a.npy").cache(path=folder / "cache")

    def open_other(self, folder):
        np.save(folder / "a.npy", np.zeros((4, 3), "f4"))
        return gl.npy(folder / "a.npy").cache(path=folder / "cache")

    def expected(self):
        return {"x": np.arange(42, dtype="f4").reshape(14, 3)}


def varying():
    r = np.random.default_rng(3)
    return {
        "tokens": [r.integers(-9, 9, length).astype("i2") for length in (3, 0, 7, 1, 1)],
        "boxes": [r.random((length, 4)).astype("f4") for length in (2, 1, 0, 5, 3)],
        "image": [
            r.integers(0, 256, shape, np.uint8)
            for shape in ((2, 3, 3), (1, 1, 3), (4, 0, 3), (5, 5, 3), (3, 2, 3))
        ],
        "label": np.array([4, 8, 15, 16, 23]),
    }


FIELDS = {
    "tokens": ("i2", (None,)),
    "boxes": ("f4", (None, 4)),
    "image": ("u1", (None, None, 3)),
    "label": ("i8", ()),
}


def read_varying(numbers):
    return {
        name: values[numbers]
        if isinstance(values, np.ndarray)
        else [values[number] for number in numbers]
        for name, values in varying().items()
    }


def read_others(numbers):
    return read_varying(numbers % 5)


class TestVaryingInMemory(SourceContract):
    def open(self, folder):
        return gl.records(5, read_varying, fields=FIELDS).cache(memory=10_000)

    def open_other(self, folder):
        return gl.records(7, read_others, fields=FIELDS).cache(memory=10_000)

    def expected(self):
        return varying()


class TestVaryingInFiles(SourceContract):
    def open(self, folder):
        return gl.records(5, read_varying, fields=FIELDS).cache(path=folder / "kept")

    def open_other(self, folder):
        return gl.records(7, read_others, fields=FIELDS).cache(path=folder / "kept")

    def expected(self):
        return varying()


@pytest.mark.parametrize("place", ["memory", "files"])
@pytest.mark.parametrize("shuffle", [True, gl.Blocks(4, 2)])
def test_batches_and_states_are_the_same_with_and_without_it(tmp_path, place, shuffle):
    source = gl.records(5, read_varying, fields=FIELDS)
    in_cache = (
        source.cache(memory="1MiB") if place == "memory" else source.cache(path=tmp_path / "c")
    )
    plain, second = (gl.Loader(item, 2, shuffle=shuffle, seed=5) for item in (source, in_cache))

    with plain, second:
        for epoch in range(2):
            for item, two in zip(plain.epoch(epoch), second.epoch(epoch), strict=True):
                assert item.records.tolist() == two.records.tolist()
                for name in source.spec.names:
                    for value, again in zip(item[name], two[name], strict=True):
                        assert_same(again, value)
        second.load_state_dict(json.loads(json.dumps(plain.state_dict(1, 2))))

        assert second.state_dict() == plain.state_dict(1, 2)


def test_a_cache_of_encoded_images_is_decoded_as_before(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for number in range(6):
        image.fromarray(np.full((4 + number, 5, 3), 40 * number, np.uint8)).save(
            tmp_path / f"{number}.png"
        )
    source = gl.images(tmp_path, labels=list(range(6)))

    ops = [gl.ops.Decode(), gl.ops.Resize(4, 4)]
    with (
        gl.Loader(source, 6, ops=ops) as item,
        gl.Loader(source.cache(memory="1MB"), 6, ops=ops) as two,
    ):
        np.testing.assert_array_equal(two.batch_at(0)["image"], item.batch_at(0)["image"])


def test_what_was_cached_is_not_read_again(tmp_path):
    calls = []

    def read(numbers):
        calls.append(numbers.tolist())
        return {"x": numbers * 2}

    source = gl.records(10, read, version="1")
    in_cache = [
        source.cache(memory="1KB"),
        source.cache(path=tmp_path / "a"),
        source.cache(path=tmp_path / "a"),
    ]
    calls.clear()

    results = [item.read([3, 9])["x"].tolist() for item in in_cache]

    assert results == [[6, 18]] * 3
    assert calls == []


def test_a_budget_that_is_too_small_is_refused_with_numbers_before_anything_is_read():
    calls = []

    def read(numbers):
        calls.append(numbers)
        return {"x": np.zeros((numbers.size, 1000), "f4")}

    with pytest.raises(TooLargeError, match=r"(?s)in 1000000 bytes.*take 2112000 bytes"):
        gl.arrays(x=np.zeros((528, 1000), "f4")).cache(memory="1MB")
    source = gl.records(100, read, fields={"x": ("f4", (1000,))})
    calls.clear()
    with pytest.raises(TooLargeError, match=r"(?s)in 300000 bytes.*take 400000 bytes"):
        source.cache(memory=300_000)
    assert calls == []


def test_gaps_between_the_fields_of_a_row_are_zeros(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", np.ones(5, np.dtype([("a", "u1"), ("b", "f8")], align=True)))
    source = gl.npy(tmp_path / "a.npy")
    (column,), fields = cachecolumns.columns_of(source), source.read(range(5))
    empty = np.empty

    def used_memory(shape, dtype):
        memory = empty(shape, dtype)
        memory.view(np.uint8)[:] = 7
        return memory

    monkeypatch.setattr(cache.np, "empty", used_memory)
    ((_, rows),) = cachecolumns._pieces(column, fields, 5)

    assert rows.view(np.uint8).reshape(5, 16)[:, 1:8].tolist() == [[0] * 7] * 5


def test_a_budget_that_is_too_small_for_the_places_of_values_is_refused_before_anything_is_read(
    tmp_path,
):
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(png(np.zeros((3, 4 + number, 3), np.uint8)))
    num_bytes = (
        sum(path.stat().st_size for path in tmp_path.iterdir()) + 4 * 8
    )  # of each an int64, too

    with pytest.raises(TooLargeError) as error:
        gl.images(tmp_path / "*.png", labels=None).cache(memory=num_bytes - 1)
    assert error.value.cause == f"its values take {num_bytes} bytes"


def test_a_budget_that_turns_out_too_small_is_refused_with_numbers():
    source = gl.records(5, read_varying, fields=FIELDS)

    with pytest.raises(TooLargeError, match=r"in 50 bytes(.|\n)*bytes and there are more"):
        source.select([0, 0, 0]).rename().cache(memory=50)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("2GB", 2 * 10**9),
        ("1.5 GiB", 3 * 2**29),
        ("300", 300),
        (4096, 4096),
        ("10kb", 10_000),
        ("1TiB", 2**40),
    ],
)
def test_bytes_are_written_as_people_do(text, num_bytes):
    assert cache.num_bytes_of(text) == num_bytes


@pytest.mark.parametrize(
    "budget", [0, -1, 1.5, True, "", "much", "2 XB", "-1GB", "0MB", [1], "1" * 400, "0.1"]
)
def test_a_budget_that_is_none_is_refused(budget):
    with pytest.raises(SpecError, match="the most bytes that the values may take"):
        gl.arrays(x=[1]).cache(memory=budget)


def test_it_is_kept_in_one_place(tmp_path):
    source = gl.arrays(x=[1])
    for arguments in ({}, {"memory": 10, "path": tmp_path}):
        with pytest.raises(SpecError, match="in memory, or in files"):
            source.cache(**arguments)
    with pytest.raises(SpecError, match="the path of a folder"):
        source.cache(path=3)
    with pytest.raises(SpecError, match="the character NUL"):
        source.cache(path=tmp_path / "a\0b")


def test_the_cache_of_other_data_is_refused(tmp_path):
    gl.arrays(x=np.arange(5)).cache(path=tmp_path / "c")

    with pytest.raises(
        FileError, match=r"is the cache of other data(.|\n)*source: '.*' there, '.*' here"
    ):
        gl.arrays(x=np.arange(5) + 1).cache(path=tmp_path / "c")


@pytest.fixture
def source_and_folder(tmp_path):
    """Return a source whose cache has pieces of every kind, and the folder of its cache, filled."""
    fields = {"y": ("i8", ()), "tokens": FIELDS["tokens"], "image": FIELDS["image"]}
    source = gl.records(
        5,
        lambda numbers: {
            "y": numbers,
            **{k: v for k, v in read_varying(numbers).items() if k in fields},
        },
        fields=fields,
    )
    source.cache(path=tmp_path / "c")
    return source, tmp_path / "c"


PIECES = ["0.rows", "1.payload", "1.offsets", "2.payload", "2.offsets", "2.shapes", "2.axes"]


@pytest.mark.parametrize("name", PIECES)
@pytest.mark.parametrize("how", ["cut", "empty", "a bit", "the end"])
def test_a_damaged_piece_is_an_error_and_the_next_call_makes_it_anew(source_and_folder, name, how):
    source, folder = source_and_folder
    content = bytearray((folder / name).read_bytes())
    if how == "cut":
        del content[-3:]
    elif how == "empty":
        content.clear()
    else:
        content[5 if how == "a bit" else -5] ^= 4
    (folder / name).write_bytes(content)

    with pytest.raises(FormatError, match=rf"{folder}/{name} cannot be used(.|\n)*cache again"):
        source.cache(path=folder)
    again = source.cache(path=folder)

    assert_same(again[4]["tokens"], varying()["tokens"][4])
    assert_same(again[3]["image"], varying()["image"][3])
    assert again.read(range(5))["y"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", [*PIECES, "cache.json"])
def test_a_piece_that_is_gone_is_made_anew(source_and_folder, name, caplog):
    source, folder = source_and_folder
    (folder / name).unlink()

    again = source.cache(path=folder)

    assert_same(again[4]["tokens"], varying()["tokens"][4])
    assert name == "cache.json" or f"{name} is missing" in caplog.text


def test_a_damaged_index_is_made_anew(source_and_folder, caplog):
    source, folder = source_and_folder
    content = (folder / "cache.json").read_bytes()
    (folder / "cache.json").write_bytes(content[:-3])

    assert_same(source.cache(path=folder)[4]["tokens"], varying()["tokens"][4])
    assert "cache.json is not used; cause: its end is damaged" in caplog.text


def test_pieces_of_two_fillings_are_not_mixed(tmp_path):
    for version in ("a", "b"):
        value = {"a": 1, "b": 2}[version]
        gl.records(
            5,
            lambda numbers, value=value: {"x": numbers * 0 + value, "y": numbers * 0 + value},
            version="same",
        ).cache(path=tmp_path / version)
    for name in ("0.rows", "1.rows"):
        if (tmp_path / "a" / name).exists():
            (tmp_path / "a" / name).write_bytes((tmp_path / "b" / name).read_bytes())
            break

    source = gl.records(
        5, lambda numbers: {"x": numbers * 0 + 3, "y": numbers * 0 + 3}, version="same"
    )
    fields = source.cache(path=tmp_path / "a").read(range(5))

    assert fields["x"].tolist() == fields["y"].tolist() == [3] * 5


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_what_others_have_under_the_name_of_a_piece_stays_and_pieces_have_other_names(
    tmp_path, kind
):
    folder, victim = tmp_path / "c", tmp_path / "victim"
    folder.mkdir(mode=0o700)
    victim.write_text("precious")
    if kind == "file":
        (folder / "0.rows").write_text("my rows")
    elif kind == "link":
        (folder / "0.rows").symlink_to(victim)
    else:
        (folder / "0.rows").mkdir()

    for _ in range(2):
        assert gl.arrays(x=np.arange(4)).cache(path=folder).read([3])["x"].tolist() == [3]

    assert victim.read_text() == "precious"
    assert kind != "file" or (folder / "0.rows").read_text() == "my rows"
    assert kind != "link" or (folder / "0.rows").is_symlink()
    assert len(os.listdir(folder)) == 3


def test_an_index_that_is_a_link_is_refused_and_stays(tmp_path):
    (tmp_path / "c").mkdir(mode=0o700)
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "c" / "cache.json").symlink_to(tmp_path / "victim")

    with pytest.raises(FileError, match=r"cache\.json is there already(.|\n)*choose another path"):
        gl.arrays(x=np.arange(4)).cache(path=tmp_path / "c")

    assert (tmp_path / "victim").read_text() == "precious"


def test_the_files_are_private(tmp_path):
    gl.arrays(x=np.arange(4)).cache(path=tmp_path / "c")

    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "c").iterdir()} == {0o600}


def test_a_folder_that_others_may_write_to_is_refused_unless_that_is_meant(tmp_path, monkeypatch):
    folder, source = tmp_path / "c", gl.arrays(x=np.arange(4))
    folder.mkdir()
    folder.chmod(0o777)

    with pytest.raises(
        FileError, match=r"mode is 0777(.|\n)*chmod 700(.|\n)*GPULOAD_CACHE_SHARED=1"
    ):
        source.cache(path=folder)
    assert os.listdir(folder) == []
    monkeypatch.setenv("GPULOAD_CACHE_SHARED", "1")

    assert source.cache(path=folder).read([2])["x"].tolist() == [2]


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid(), reason="root alone can give files away"
)
@pytest.mark.parametrize("name", ["0.rows", "cache.json"])
def test_a_file_of_another_user_is_not_believed(tmp_path, name):
    source = gl.arrays(x=np.arange(4))
    source.cache(path=tmp_path / "c")
    os.chown(tmp_path / "c" / name, 65534, 65534)

    if name == "0.rows":
        with pytest.raises(FormatError, match="another user may have written it"):
            source.cache(path=tmp_path / "c")

    assert source.cache(path=tmp_path / "c").read([2])["x"].tolist() == [2]
    assert (tmp_path / "c" / name).stat().st_uid == 0


def test_a_cache_of_version_1_is_made_anew_and_one_of_other_data_is_refused(tmp_path):
    source = gl.arrays(x=np.arange(4))
    for name, fingerprint in (("same", source.fingerprint()), ("other", "0123456789abcdef")):
        (tmp_path / name).mkdir(mode=0o700)
        (tmp_path / name / "0.rows").write_bytes(np.arange(10, 14).tobytes())
        about = {"format": "gpuload cache", "version": 1, "source": fingerprint, "records": 4}
        (tmp_path / name / "cache.json").write_text(json.dumps(about, indent=1))

    assert source.cache(path=tmp_path / "same").read([3])["x"].tolist() == [3]
    with pytest.raises(FileError, match="is the cache of other data"):
        source.cache(path=tmp_path / "other")


@pytest.mark.usefixtures("reader")
def test_damage_of_a_large_cache_is_found_where_it_is_first_read(tmp_path, monkeypatch):
    monkeypatch.setattr(keptfile, "EAGER_BYTES", 0)
    values = np.arange(200_000, dtype=np.int64).reshape(-1, 4)
    source = gl.arrays(x=values)
    source.cache(path=tmp_path / "c")
    path = tmp_path / "c" / "0.rows"
    content = bytearray(path.read_bytes())
    content[1_000_000] ^= 1
    path.write_bytes(content)
    large = source.cache(path=tmp_path / "c")

    assert_same(large.read(range(20_000))["x"], values[:20_000])
    with pytest.raises(
        ChangedFileError, match=r"0\.rows is damaged between byte 917504 and 1048576(.|\n)*open the"
    ):
        large.read([1_000_000 // 32])
    assert not path.exists()

    assert_same(source.cache(path=tmp_path / "c").read(range(50_000))["x"], values)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "3", '{"bytes": 3}', '{"bytes": {"0.rows": "x"}}', "[" * 5000]
)
def test_an_index_that_is_none_is_refused_and_stays(tmp_path, text):
    source = gl.arrays(x=np.arange(5))
    source.cache(path=tmp_path / "c")
    (tmp_path / "c" / "cache.json").write_text(text)

    with pytest.raises(FileError, match=r"cache\.json is there already"):
        source.cache(path=tmp_path / "c")
    assert (tmp_path / "c" / "cache.json").read_text() == text


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "c").write_text("mine")

    with pytest.raises(FileError, match="is no folder"):
        gl.arrays(x=[1]).cache(path=tmp_path / "c")

    assert (tmp_path / "c").read_text() == "mine"


@pytest.mark.parametrize("place", ["memory", "path"])
def test_a_damaged_record_is_named_and_nothing_is_left(tmp_path, place):
    def read(numbers):
        if 7 in numbers:
            raise RecordError("record 7 is damaged")
        return {"x": numbers}

    source = gl.records(10, read, fields={"x": ("i8", ())})

    with pytest.raises(RecordError, match="record 7"):
        source.cache(**{place: "10KB" if place == "memory" else tmp_path / "c"})

    assert place == "memory" or os.listdir(tmp_path / "c") == []


def test_a_full_disk_is_named_and_nothing_is_left(tmp_path, monkeypatch):
    def full(source, columns, place):
        place(0, "rows", np.zeros(10))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cachefiles, "fill", full)

    with pytest.raises(FileError, match=r"cannot be written(.|\n)*No space left(.|\n)*make room"):
        gl.arrays(x=np.arange(10)).cache(path=tmp_path / "c")

    assert os.listdir(tmp_path / "c") == []


def test_a_process_that_was_killed_while_it_filled_leaves_what_the_next_one_makes_whole(tmp_path):
    script = f"""
import os, signal, numpy as np, gpuload as gl
def read(numbers):
    if 5000 in numbers:
        os.kill(os.getpid(), signal.SIGKILL)
    return {{"x": numbers}}
gl.records(10_000, read, version="1").cache(path={str(tmp_path / "c")!r})
"""
    died = forkserver.run(script, timeout=60)
    assert died.returncode == -9, died.stderr

    in_cache = gl.records(10_000, lambda numbers: {"x": numbers}, version="1").cache(
        path=tmp_path / "c"
    )

    assert in_cache.read(range(10_000))["x"].tolist() == list(range(10_000))


def test_pickled_with_files_it_is_opened_and_not_filled_again(tmp_path, monkeypatch):
    in_cache = gl.arrays(x=np.arange(5)).cache(path=tmp_path / "c")
    data = pickle.dumps(in_cache)
    monkeypatch.setattr(cachefiles, "fill", None)

    assert pickle.loads(data).read([4])["x"].tolist() == [4]


def test_a_file_that_is_cut_short_while_it_is_read_is_an_error(tmp_path, reader):
    in_cache = gl.arrays(x=np.arange(100_000)).cache(path=tmp_path / "c")
    with open(tmp_path / "c" / "0.rows", "r+b") as file:
        file.truncate(800)

    with pytest.raises(ChangedFileError):
        in_cache.read([99_999])


def test_closing_the_source_closes_the_cache_and_not_the_other_way_round():
    source = gl.arrays(x=np.arange(5))
    in_cache = source.cache(memory=1000)
    in_cache.close()

    assert source.read([1])["x"].tolist() == [1]


def test_repr_says_where_the_values_are(tmp_path):
    source = gl.arrays(x=np.arange(5))

    assert "cached in memory, 40 bytes" in repr(source.cache(memory=1000))
    assert f"cached in {tmp_path / 'c'}, 40 bytes" in repr(source.cache(path=tmp_path / "c"))


@pytest.mark.parametrize("place", ["memory", "path"])
def test_the_remedy_for_damage_in_a_cache_leaves_the_record_out(tmp_path, place):
    for name in ("a", "b", "c"):
        np.savez(tmp_path / f"{name}.npz", x=np.arange(3))
    (tmp_path / "b.npz").write_bytes(b"no archive")
    source = gl.npz([tmp_path / f"{name}.npz" for name in "abc"], record="file", on_error="skip")
    where = {"memory": "1MB", "path": str(tmp_path / "cache")}[place]

    with pytest.raises(RecordError, match=r"b\.npz") as caught:
        source.cache(**{place: where})
    code = caught.value.remedy.partition("before: ")[2].replace("(...)", f"({place}={where!r})")
    statement, _, expression = code.partition("; ")
    names = {"gl": gl, "source": source}
    exec(statement, names)
    cached = eval(expression, names)

    assert [row.tolist() for row in cached.read([0, 1])["x"]] == [[0, 1, 2], [0, 1, 2]]
