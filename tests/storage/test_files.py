"""Which files are meant, and what is said where they cannot be used."""

from __future__ import annotations

import os
import pickle
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import (
    ChangedFileError,
    DirectoryError,
    FileError,
    GpuloadError,
    MissingFileError,
    SpecError,
    UnreadableFileError,
)
from gpuload.storage import fileerrors, files, handles, wildcards
from tests import forkserver
from tests.threads import none_left, until


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in (
        "b10.npy",
        "b2.npy",
        "a.npy",
        "notes.txt",
        ".hidden.npy",
        "c[1].npy",
        "deep/er/d.npy",
        "deep/e.npy",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(paths, folder):
    return [os.path.relpath(path, folder) for path in paths]


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ("a.npy", ["a.npy"]),
        (Path("a.npy"), ["a.npy"]),
        ("b*.npy", ["b10.npy", "b2.npy"]),
        ("b?.npy", ["b2.npy"]),
        ("[ab]*.npy", ["a.npy", "b10.npy", "b2.npy"]),
        ("**/*.npy", ["a.npy", "b10.npy", "b2.npy", "c[1].npy", "deep/e.npy", "deep/er/d.npy"]),
        ("deep/**", ["deep/e.npy", "deep/er/d.npy"]),
        ("**/er/**/*", ["deep/er/d.npy"]),
        ("*/*.npy", ["deep/e.npy"]),
        ("*/e*/d.npy", ["deep/er/d.npy"]),
        ("*/er/d.npy", ["deep/er/d.npy"]),
        (".*.npy", [".hidden.npy"]),
        (["b2.npy", "a.npy"], ["b2.npy", "a.npy"]),
        (("notes.txt", Path("b*.npy")), ["notes.txt", "b10.npy", "b2.npy"]),
        (
            ["deep/**/*.npy", "b*.npy", "a.npy"],
            ["deep/e.npy", "deep/er/d.npy", "b10.npy", "b2.npy", "a.npy"],
        ),
        ("c[1].npy", ["c[1].npy"]),
        ((path for path in ["a.npy"]), ["a.npy"]),
        ("./deep/../a.npy", ["a.npy"]),
    ],
)
def test_a_list_keeps_its_order_and_each_wildcard_means_files_in_sorted_order(
    folder, paths, expected
):
    assert names(wildcards.expand(paths), folder) == expected


def test_a_wildcard_in_a_folder_whose_name_holds_brackets_is_found(folder):
    path = folder / "old [1]" / "x.npy"
    path.parent.mkdir()
    path.write_bytes(b"")

    assert wildcards.expand(f"{folder}/old [1]/*.npy") == [str(path)]
    assert wildcards.expand(f"{folder}/*/x.npy") == [str(path)]


@pytest.mark.parametrize(
    ("path", "cause"),
    [
        ("c[1]*.npy", "holds no file c[1]*.npy"),
        ("deep/*/*.txt", "deep/* holds no file *.txt"),
        ("deep/none/*.npy", "deep holds no folder none"),
        ("*/x*/e*/*.npy", "/* holds no folder x*"),
    ],
)
def test_what_matches_nothing_is_said_by_its_first_part_that_does(folder, path, cause):
    with pytest.raises(MissingFileError) as caught:
        wildcards.expand(path)

    assert caught.value.cause.startswith(str(folder))
    assert cause in caught.value.cause
    assert ("[[] means the bracket itself" in caught.value.remedy) == ("[" in path)


def test_a_bracket_in_a_name_can_be_written(folder):
    assert names(wildcards.expand("c[[]1]*.npy"), folder) == ["c[1].npy"]


def test_paths_in_a_set_are_refused_for_they_have_no_order(folder):
    for paths in ({"a.npy"}, frozenset(["a.npy", "b2.npy"])):
        with pytest.raises(SpecError, match=r"no order(.|\n)*sorted"):
            wildcards.expand(paths)


def test_a_url_means_a_store_and_its_text_behind_a_dot_a_file(folder):
    (folder / "s3:").mkdir()
    (folder / "s3:" / "a.npy").write_bytes(b"")

    assert wildcards.expand("s3://bucket/a.npy") == ["s3://bucket/a.npy"]
    assert names(wildcards.expand("./s3:/a.npy"), folder) == ["s3:/a.npy"]
    with pytest.raises(SpecError, match="with :// behind"):
        wildcards.expand(Path("gs://bucket/b.npy"))
    with pytest.raises(SpecError, match="of those s3, "):
        wildcards.expand("ftp://server/b.npy")


def test_a_link_to_a_folder_above_gives_each_file_once(folder):
    for name in ("up", "up2", "deep/up", "deep/er/up"):
        (folder / name).symlink_to("..", target_is_directory=True)
    (folder / "also_deep").symlink_to("deep", target_is_directory=True)
    (folder / "loop").symlink_to("loop")

    result = names(wildcards.expand(f"{folder}/**/*.npy"), folder)

    assert result[:4] == ["a.npy", "b10.npy", "b2.npy", "c[1].npy"]
    assert [name for name in result if "er/d" in name] == ["deep/er/d.npy"]
    assert len({os.path.realpath(name) for name in result}) == len(result)


def test_a_folder_that_only_a_link_leads_to_is_entered(folder, tmp_path_factory):
    second = tmp_path_factory.mktemp("other")
    (second / "z.npy").write_bytes(b"")
    (folder / "deep" / "link").symlink_to(second, target_is_directory=True)

    assert names(wildcards.expand("deep/**/z.npy"), folder) == ["deep/link/z.npy"]


@pytest.mark.parametrize("path", ["a\0.npy", "a*\0.npy", "\ud800.npy", "*\udfff"])
def test_what_can_be_no_name_of_a_file_is_refused(folder, path):
    with pytest.raises(SpecError, match=r"as a path"):
        wildcards.expand(path)


def test_names_that_are_no_text_are_found(folder):
    Path(os.fsdecode(b"bin\xff.npy")).write_bytes(b"")

    assert wildcards.expand("bin*.npy") == [os.path.abspath(os.fsdecode(b"bin\xff.npy"))]


@pytest.fixture
def closed(folder):
    os.chmod(folder / "deep", 0)
    yield folder / "deep"
    os.chmod(folder / "deep", 0o700)


def test_a_folder_that_cannot_be_read_is_an_error_and_no_folder_without_files(closed, other_user):
    with pytest.raises(UnreadableFileError, match="cannot be opened"):
        wildcards.expand(f"{closed.parent}/**/*.npy")


def test_the_home_folder_is_found(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))

    assert names(wildcards.expand("~/a.npy"), folder) == ["a.npy"]


def test_paths_do_not_depend_on_where_the_program_goes_later(folder, monkeypatch):
    paths = wildcards.expand("a.npy")
    monkeypatch.chdir("/")

    assert os.path.isfile(paths[0])


def test_a_wildcard_without_a_match_is_a_missing_file(folder):
    with pytest.raises(MissingFileError, match=r"z\*\.npy") as caught:
        wildcards.expand("z*.npy")

    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("paths", [[], 3, [3], None, [None], b"a.npy", [b"a.npy"]])
def test_what_is_no_path_is_refused(paths):
    with pytest.raises(SpecError):
        wildcards.expand(paths)


@pytest.mark.parametrize(
    "paths", [["*.npy", "./a.npy"], ["a.npy", "notes.txt", "a.npy"], ["a.npy", "deep/up/a.npy"]]
)
def test_a_file_named_twice_is_refused(folder, paths):
    (folder / "deep" / "up").symlink_to("..", target_is_directory=True)

    with pytest.raises(SpecError, match=r"a\.npy is named twice"):
        wildcards.expand(paths)


def look(*paths):
    return files.look_at(
        [str(path) for path in paths], 4, lambda path, size_bytes, head: (size_bytes, head)
    )


def test_looking_gives_the_beginning_and_the_stamp(folder):
    result, [(size_bytes, head)] = look(folder / "notes.txt")

    status = os.stat("notes.txt")
    assert (size_bytes, head) == (9, b"note")
    assert result.stamps.tolist() == [[9, status.st_mtime_ns, status.st_ino]]
    assert result.names == ("notes.txt",)


def many(tmp_path, count=300):
    for number in range(count):
        (tmp_path / f"{number:03}").write_bytes(b"%03d" % number)
    return wildcards.expand(f"{tmp_path}/*")


def num_descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("wait_s", [0, 0.001])
def test_many_files_come_back_in_order_also_from_threads_where_looking_is_waiting(tmp_path, wait_s):
    values = set()

    def use(path, size_bytes, head):
        values.add(threading.current_thread().name)
        time.sleep(wait_s)
        if wait_s and int(head) > 200:
            until(lambda: len(values) > 2)  # on a busy machine threads begin late
        return head

    with none_left():
        result, heads = files.look_at(many(tmp_path), 8, use)

    assert heads == [b"%03d" % number for number in range(300)]
    assert result.sizes.tolist() == [3] * 300
    assert wait_s == 0 or len(values) > 2


@pytest.mark.parametrize("wait_s", [0, 0.001])
@pytest.mark.parametrize("lost", [0, 15, 217, 299])
def test_an_error_in_one_of_many_files_is_raised_as_itself_and_leaves_no_file_open(
    tmp_path, wait_s, lost
):
    paths = many(tmp_path)
    os.remove(paths[lost])
    before = num_descriptors()

    with pytest.raises(MissingFileError, match=f"{lost:03} is missing"):
        files.look_at(paths, 8, lambda path, size_bytes, head: time.sleep(wait_s))

    assert num_descriptors() == before


def test_what_is_made_of_a_file_may_fail_and_leaves_no_file_open(tmp_path):
    paths, before = many(tmp_path), num_descriptors()

    with pytest.raises(ZeroDivisionError):
        files.look_at(paths, 8, lambda path, size_bytes, head: 1 // (int(head) - 40))

    assert num_descriptors() == before


@pytest.mark.parametrize(
    ("free_bytes", "requests"),
    [(10**9, [100, 131_072, 8]), (3 * 100, [100, 8, 8]), (0, [8, 8, 8])],
    ids=["all of the small ones fit", "those of 100 bytes", "none"],
)
def test_small_files_are_asked_for_as_a_whole_where_all_fit_into_memory(
    tmp_path, monkeypatch, free_bytes, requests
):
    for name, size in (
        ("a", 100),
        ("b", files.ONE_REQUEST_BYTES),
        ("c", files.ONE_REQUEST_BYTES + 1),
    ):
        (tmp_path / name).write_bytes(bytes(size))
    calls = []
    monkeypatch.setattr(files, "cache_bytes", lambda: free_bytes)
    monkeypatch.setattr(
        files, "ADVISE", lambda descriptor, start, size, advice: calls.append((start, size, advice))
    )

    files.look_at(wildcards.expand(f"{tmp_path}/*"), 8, lambda path, size_bytes, head: head)
    files.look_at(
        wildcards.expand(f"{tmp_path}/*"), 0, lambda path, size_bytes, head: head
    )  # nothing is read of them

    assert calls == [(0, size, os.POSIX_FADV_WILLNEED) for size in requests]


@pytest.mark.parametrize("advise", [None, Mock(side_effect=OSError)])
def test_a_system_that_cannot_be_asked_ahead_reads_all_the_same(tmp_path, monkeypatch, advise):
    monkeypatch.setattr(files, "ADVISE", advise)

    _, heads = files.look_at(many(tmp_path, 40), 8, lambda path, size_bytes, head: head)

    assert heads == [b"%03d" % number for number in range(40)]


def test_a_missing_file_names_what_is_missing(tmp_path):
    with pytest.raises(MissingFileError, match=r"lost\.npy is missing") as caught:
        look(tmp_path / "lost.npy")
    assert isinstance(caught.value, FileNotFoundError)
    with pytest.raises(MissingFileError, match=r"folder .*nowhere is not there"):
        look(tmp_path / "nowhere" / "lost.npy")


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(DirectoryError, match="is a directory") as caught:
        look(tmp_path)
    assert isinstance(caught.value, IsADirectoryError)


def test_a_pipe_is_refused_without_waiting_for_its_writer(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(FileError, match="no regular file"):
        look(tmp_path / "pipe")


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret.npy"
    path.write_bytes(b"1234")
    path.chmod(0)
    return path


@pytest.fixture
def other_user():
    """Be a user who may not read everything."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield
    os.seteuid(user)


def test_a_file_without_permission_is_unreadable(secret, other_user):
    with pytest.raises(UnreadableFileError, match="cannot be opened") as caught:
        look(secret)

    assert isinstance(caught.value, PermissionError)


def test_a_refused_permission_is_an_unreadable_file_error():
    error = fileerrors.open_error("/data/secret.npy", PermissionError(13, "Permission denied"))

    assert isinstance(error, UnreadableFileError)
    assert isinstance(error, PermissionError)
    assert "secret.npy" in str(error)


def test_any_other_system_error_says_what_the_system_said():
    error = fileerrors.open_error("/data/x.npy", OSError(5, "Input/output error"))

    assert isinstance(error, GpuloadError)
    assert "Input/output error" in str(error)


def test_a_time_of_modification_that_no_int64_holds_is_compared_as_any(folder):
    memory = Path("/dev/shm")  # its files hold any time
    if not memory.is_dir():
        pytest.skip("there is no file system in memory")
    with tempfile.TemporaryDirectory(dir=memory) as name:
        path = Path(name) / "a"
        path.write_bytes(bytes(100_000))
        os.utime(path, (2**40, 2**40))
        result, _ = look(path)

        result.check(0)
        with gl.fixed(path, "u1") as source:
            (values,) = source.read(np.arange(10)).values()
            assert values.tolist() == [0] * 10
        os.utime(path, (2**41, 2**41))
        with pytest.raises(ChangedFileError, match="changed"):
            result.check(0)


def test_an_unchanged_file_passes_the_check(folder):
    result, _ = look(folder / "a.npy")

    result.check(0)


def _grow(path):
    with open(path, "ab") as file:
        file.write(b"more")


def _touch(path):
    status = os.stat(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def _replace(path):
    status = os.stat(path)
    second = Path(f"{path}.new")
    second.write_bytes(path.read_bytes())
    os.utime(second, ns=(status.st_atime_ns, status.st_mtime_ns))
    second.replace(path)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (_grow, "had 5 bytes, now it has 9"),
        (_touch, "modified"),
        (_replace, "another file stands in its place"),
        (os.remove, "cannot be read any more"),
    ],
)
def test_a_changed_file_does_not_pass_the_check(folder, change, cause):
    result, _ = look(folder / "a.npy")
    change(folder / "a.npy")

    with pytest.raises(ChangedFileError, match=r"a\.npy changed") as caught:
        result.check(0)

    assert cause in caught.value.cause


def test_the_digest_depends_on_names_and_sizes_and_not_on_folders_or_times(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a").write_bytes(b"1234")
    os.utime(tmp_path / "two" / "a", (0, 0))
    (tmp_path / "b").write_bytes(b"1234")
    (tmp_path / "two" / "c").write_bytes(b"12345")

    def digest(*path):
        return look(tmp_path.joinpath(*path))[0].digest("rows")

    assert digest("one", "a") == digest("two", "a")
    assert len({digest("one", "a"), digest("b"), digest("two", "c")}) == 3


@pytest.mark.parametrize("num_files", [1, 2, 40])
@pytest.mark.parametrize("changed", ["first byte", "last byte", "first file", "last file"])
def test_the_digest_sees_other_bytes_at_the_ends_of_files_of_equal_name_and_size(
    tmp_path, num_files, changed
):
    def digest():
        return look(*sorted(tmp_path.iterdir()))[0].digest()

    for number in range(num_files):
        (tmp_path / f"{number:02}").write_bytes(bytes(100_000))
    before = digest()
    assert digest() == before
    target = tmp_path / f"{0 if changed != 'last file' else num_files - 1:02}"
    data = bytearray(bytes(100_000))
    data[-1 if changed == "last byte" else 0] = 1
    target.write_bytes(data)

    assert digest() != before


@pytest.mark.parametrize("place", [0, 1, 5000, 131071, 262143])
def test_the_digest_sees_every_byte_of_a_small_file(tmp_path, place):
    data = bytearray(np.random.default_rng(0).bytes(64 * 4096))
    (tmp_path / "a").write_bytes(data)
    before = look(tmp_path / "a")[0].digest()
    data[place] ^= 1
    (tmp_path / "a").write_bytes(data)
    assert look(tmp_path / "a")[0].digest() != before


def test_the_digest_reads_a_bounded_sample_of_any_number_of_large_files(tmp_path, monkeypatch):
    read, real = [], handles.read_at

    def counting(descriptor, to, offset):
        read.append(len(to))
        return real(descriptor, to, offset)

    paths = [tmp_path / f"{number:03}" for number in range(500)]
    for path in paths:
        with open(path, "wb") as file:
            file.truncate(1 << 30)
    result = look(*paths)[0]
    monkeypatch.setattr(files, "read_at", counting)
    result.digest()
    assert sum(read) <= 64 * 4096


def test_a_file_that_changed_has_no_digest(tmp_path):
    (tmp_path / "a").write_bytes(b"1234")
    result = look(tmp_path / "a")[0]
    (tmp_path / "a").write_bytes(b"123")
    with pytest.raises(ChangedFileError):
        result.digest()


def test_stamps_hold_inodes_of_the_highest_numbers():
    status = SimpleNamespace(st_size=1, st_mtime_ns=2, st_ino=2**64 - 5)

    assert np.array(files.stamp_of(status), np.int64)[2] == -5


def test_files_are_pickled_with_their_stamps(folder):
    result, _ = look(folder / "a.npy")

    again = pickle.loads(pickle.dumps(result))

    assert (again.paths, again.names, again.stamps.tolist()) == (
        result.paths,
        result.names,
        result.stamps.tolist(),
    )


def test_what_was_opened_is_compared_with_the_stamp_and_not_what_the_path_says_later(
    folder, monkeypatch
):
    """Another file stands in its place at the moment it is opened, and is gone again when the path
    is looked at."""
    result, _ = look(folder / "b2.npy")
    (folder / "other").write_bytes(b"other.")
    os_open = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest: os_open(str(folder / "other"), *rest))

    with pytest.raises(ChangedFileError, match=r"b2\.npy changed") as caught, result.open_file(0):
        pass

    result.check(0)
    assert "another file" in caught.value.cause


@pytest.mark.parametrize("read_at", [None, os.preadv])
def test_bytes_at_a_place_are_read_with_and_without_positioned_reads(folder, monkeypatch, read_at):
    monkeypatch.setattr(handles, "READ_AT", read_at)
    monkeypatch.setattr(handles, "LARGEST_READ", 3)
    descriptor = os.open("notes.txt", handles.OPEN_FLAGS)
    data = bytearray(b"________")

    assert handles.read_at(descriptor, memoryview(data)[1:], 2) == 7
    assert handles.read_at(descriptor, memoryview(data)[:1], 100) == 0

    assert data == b"_tes.txt"
    os.close(descriptor)


LIMITED = """
import resource, sys
import gpuload as gl
fixed = gl.fixed  # the limit is about files of records, not about modules
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
try:
    print(len(fixed(sys.argv[2], "u1")))
except gl.GpuloadError as error:
    print(error)
"""


@pytest.mark.skipif(handles.resource is None, reason="this system has no such limits")
def test_so_many_files_are_open_at_a_time_as_the_process_may_open(tmp_path):
    for number in range(300):
        (tmp_path / f"{number:03}").write_bytes(b"1")

    def counted(limit):
        process = forkserver.run(LIMITED, limit, f"{tmp_path}/*")
        assert process.returncode == 0, process.stderr
        return process.stdout

    assert counted(64) == counted(16) == "300\n"
    assert "remedy: let this process open more files: ulimit -n 4096" in counted(3)


@pytest.mark.parametrize(
    ("limit", "num_files"), [(-1, 64), (4096, 64), (1024, 64), (256, 16), (64, 4), (3, 1)]
)
@pytest.mark.skipif(handles.resource is None, reason="this system has no such limits")
def test_all_threads_together_open_a_quarter_of_the_files_that_may_be_open(
    monkeypatch, limit, num_files
):
    monkeypatch.setattr(handles, "MOST_CHUNK", 64)
    monkeypatch.setattr(handles.resource, "getrlimit", lambda kind: (limit, limit))

    assert handles._chunk_size() == num_files


def test_two_stars_mean_all_files_below_also_beside_one_whose_name_is_a_star(tmp_path):
    for name in ("*", "a", "in/*", "in/b"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    assert sorted(names(wildcards.expand(f"{tmp_path}/**"), tmp_path)) == ["*", "a", "in/*", "in/b"]


SHARDS = [f"x-{number:05}-of-00004.npy" for number in range(4)]


def warnings_of_shards(caplog, paths):
    caplog.clear()
    gl.npy(paths)
    return [record.message for record in caplog.records if "shards are missing" in record.message]


def test_shards_that_are_nowhere_are_counted_and_the_first_is_named(tmp_path, caplog):
    for name in SHARDS:
        np.save(tmp_path / name, np.arange(3))
    assert warnings_of_shards(caplog, f"{tmp_path}/*.npy") == []
    assert (
        warnings_of_shards(caplog, [tmp_path / SHARDS[3], tmp_path / SHARDS[0]]) == []
    )  # the others are there

    (tmp_path / SHARDS[2]).unlink()

    (message,) = warnings_of_shards(caplog, f"{tmp_path}/*.npy")
    assert message.startswith(f"1 of 4 shards are missing, the first is {tmp_path / SHARDS[2]}")
    caplog.clear()
    gl.open(f"{tmp_path}/*.npy")
    assert caplog.text.count("shards are missing") == 1


def write_table(path):
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pa.table({"x": [1, 2]}), path)


def write_arrow(path):
    pa = pytest.importorskip("pyarrow")
    with pa.ipc.new_file(path, pa.schema([("x", pa.int64())])) as file:
        file.write_table(pa.table({"x": [1, 2]}))


def write_group(path):
    zarr = pytest.importorskip("zarr", "3")
    zarr.open_group(path, mode="w").create_array("x", data=np.arange(2))


@pytest.mark.parametrize(
    ("suffix", "call", "write"),
    [
        ("parquet", gl.parquet, write_table),
        ("arrow", gl.arrow, write_arrow),
        ("csv", gl.csv, lambda path: path.write_text("x\n1\n2\n")),
        ("npy", gl.npy, lambda path: np.save(path, np.arange(2))),
        ("zarr", gl.zarr, write_group),
    ],
)
def test_missing_shards_of_folders_and_manifests_are_told_once(
    tmp_path, caplog, suffix, call, write
):
    folder = tmp_path / "train"
    folder.mkdir()
    names = [folder / f"x-{number:05}-of-00003.{suffix}" for number in range(3)]
    for path in (names[0], names[2]):
        write(path)
    is_table = suffix in ("parquet", "arrow", "csv")
    source = call(folder if is_table else f"{folder}/*")
    source.index(tmp_path / "train.manifest")
    assert caplog.text.count("1 of 3 shards are missing") == 1

    for open_source in (call, gl.open):
        caplog.clear()
        assert len(open_source(tmp_path / "train.manifest")) == 4
        assert caplog.text.count(f"1 of 3 shards are missing, the first is {names[1]}") == 1
    write(names[1])
    caplog.clear()
    call(folder if is_table else f"{folder}/*").index(tmp_path / "train.manifest")
    call(tmp_path / "train.manifest")
    assert "missing" not in caplog.text


def test_shards_are_counted_from_one_by_some_and_other_names_are_no_shards(tmp_path, caplog):
    for name in (
        "y-1-of-2.npy",
        "y-2-of-2.npy",
        "10-of-12-monkeys.npy",
        "best-of-2020.npy",
        "2-of-a-kind.npy",
    ):
        np.save(tmp_path / name, np.arange(3))

    assert warnings_of_shards(caplog, f"{tmp_path}/*.npy") == []


@pytest.mark.parametrize(
    "form", ["x-{}-of-00003", "x_{}_of_00003", "x.{}_of_00003", "x_{}-of-00003.d"]
)
def test_shards_are_known_by_each_way_to_number_them_and_may_be_folders(tmp_path, caplog, form):
    for number in ("00000", "00001"):
        (tmp_path / form.format(number)).mkdir()
        (tmp_path / f"file-{form.format(number)}").touch()

    assert len(wildcards.expand_folders(f"{tmp_path}/x*", is_quiet=True)) == 2
    assert not caplog.records
    wildcards.expand_folders(f"{tmp_path}/x*")
    wildcards.expand(f"{tmp_path}/file*")

    lost = [tmp_path / form.format("00002"), tmp_path / f"file-{form.format('00002')}"]
    assert [record.args[:3] for record in caplog.records] == [(1, 3, str(path)) for path in lost]


def test_a_table_in_place_of_paths_is_answered_with_its_column(tmp_path):
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", np.array([ord(name)]))
    column = np.array([f"{tmp_path}/{name}.npy" for name in "bab"], object)
    table = gl.arrays(path=column)

    with pytest.raises(SpecError) as caught:
        gl.npy(table)
    paths = eval(str(caught.value).rpartition("pass that: ")[2], {"table": table})
    with pytest.raises(SpecError, match="named twice") as caught:
        gl.npy(paths, record="file")
    names = {"numpy": np, "paths": paths}
    exec(str(caught.value).rpartition("once; ")[2].partition(" are the different")[0], names)
    source = gl.npy(names["files"].tolist(), record="file").select(names["numbers"])

    assert source.read(range(3))["x"].reshape(-1).tolist() == [ord("b"), ord("a"), ord("b")]
