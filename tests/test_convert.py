"""Conversions: what is there afterwards, whatever happens in between; real processes are killed and
run out of disk."""

from __future__ import annotations

import errno
import inspect
import json
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload import cli
from gpuload import convert as convert_function
from gpuload.errors import (
    FileError,
    FormatError,
    MissingFileError,
    RecordError,
    SpecError,
    UnknownFieldError,
)
from gpuload.formats import writing
from gpuload.formats.images import folder as folder_writer
from gpuload.journal import write_error
from gpuload.sources import filtering
from tests import forkserver

converting = sys.modules["gpuload.convert"]


def values(count=1000):
    return np.random.default_rng(0).integers(0, 256, (count, 50), np.uint8)


def shards(folder, pattern="a-{}.npy", count=8):
    return [folder / pattern.format(number) for number in range(count)]


def whole(folder, count=8):
    return np.concatenate([np.load(path) for path in shards(folder, count=count)])


# --- a process of its own

SCRIPT = """
import os, signal, sys, threading
import numpy as np
import gpuload as gl

data, calls = np.random.default_rng(0).integers(0, 256, (1000, 50), np.uint8), []

def read(numbers):
    calls.append(len(numbers))
    if len(calls) == {at}:
        {do}
    return {{"x": data[numbers]}}

source = gl.records(1000, read, fields={{"x": ("u1", (50,))}}, version="1")
made = gl.convert(source, {out!r}, num_shards=8, num_threads={threads}, **{more})
print(made.num_kept)
"""


def run(out, *, at=0, do="pass", threads=2, more=(), limit=None, status=0):
    """Convert in another process, which does something at one of its reads; returns what it
    printed."""
    text = SCRIPT.format(at=at, do=do, out=str(out), threads=threads, more=dict(more))
    if limit is None:
        run_result = forkserver.run(text)
    else:
        run_result = subprocess.run(
            [sys.executable, "-B", "-c", text], capture_output=True, text=True, timeout=100,  # -B: no part of a module
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        )  # fmt: skip
    assert run_result.returncode == status, run_result.stderr
    return run_result.stdout + run_result.stderr


@pytest.mark.parametrize(("at", "threads"), [(1, 2), (5, 1), (9, 2), (16, 2)])
def test_after_a_kill_no_file_is_half_and_the_same_call_goes_on(tmp_path, at, threads):
    run(
        tmp_path / "a-{shard}.npy",
        at=at,
        do="os.kill(os.getpid(), signal.SIGKILL)",
        threads=threads,
        status=-9,
    )
    there = [path for path in shards(tmp_path) if path.exists()]
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in there}
    for number, path in enumerate(shards(tmp_path)):
        if path in there:
            np.testing.assert_array_equal(
                np.load(path), values()[125 * number : 125 * (number + 1)]
            )

    num_kept = int(run(tmp_path / "a-{shard}.npy", threads=threads))

    assert num_kept == len(there)
    np.testing.assert_array_equal(whole(tmp_path), values())
    assert all(
        (path.stat().st_mtime_ns, path.read_bytes()) == content for path, content in before.items()
    )
    assert sorted(os.listdir(tmp_path)) == sorted(
        [*(f"a-{number}.npy" for number in range(8)), "a-SHARD.npy.convert.jsonl"]
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_leaves_whole_files_alone_and_the_same_call_goes_on(tmp_path, threads):
    do = "os.kill(os.getpid(), signal.SIGINT)"
    process = run(tmp_path / "a-{shard}.npy", at=7, do=do, threads=threads, status=-signal.SIGINT)

    names = os.listdir(tmp_path)
    assert "KeyboardInterrupt" in process
    assert [name for name in names if ".part" in name] == []
    assert 0 < len(names) < 9
    assert int(run(tmp_path / "a-{shard}.npy")) == len(names) - 1
    np.testing.assert_array_equal(whole(tmp_path), values())


def test_ctrl_c_does_not_wait_for_the_end_of_large_files(tmp_path):
    text = f"""
        import os, signal, time
        import numpy as np
        import gpuload as gl

        def read(numbers):
            calls.append(1)
            if len(calls) == 4:
                os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            return {{"x": numbers}}

        calls = []
        source = gl.records(50_000_000, read, fields={{"x": ("i8", ())}}, version="1")
        gl.convert(source, {str(tmp_path / "a-{shard}.npy")!r}, num_shards=2, num_threads=2, verify=False)
    """
    process = forkserver.run(textwrap.dedent(text), timeout=100)

    assert "KeyboardInterrupt" in process.stderr
    assert os.listdir(tmp_path) == []


def test_a_file_that_may_not_grow_is_an_error_with_its_name_and_nothing_half_is_left(tmp_path):
    process = run(tmp_path / "a-{shard}.npy", limit=4000, status=1, threads=1)

    assert "FileError" in process
    assert "a-0.npy cannot be written" in process
    assert "File too large" in process
    assert "make room, and convert again: files that are finished are not written again" in process
    assert os.listdir(tmp_path) == []
    assert int(run(tmp_path / "a-{shard}.npy")) == 0
    np.testing.assert_array_equal(whole(tmp_path), values())


def small_disk(folder):
    """Return what runs a command with a disk of 64 KiB at a folder; None where this system does not
    let us."""
    command = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        f'mount -t tmpfs -o size=64k none "{folder}" && "$@"',
        "sh",
    ]
    try:
        allowed = (
            subprocess.run([*command, "true"], capture_output=True, timeout=100).returncode == 0
        )
    except OSError:
        allowed = False
    return command if allowed else None


def test_a_disk_that_fills_up_is_an_error_and_the_same_call_goes_on_when_there_is_room(tmp_path):
    command = small_disk(tmp_path)
    if command is None:
        pytest.skip("this process may not mount a small disk")
    text = f"""
        import os, numpy as np, gpuload as gl
        data = np.random.default_rng(0).integers(0, 256, (1000, 100), np.uint8)  # 100 KB
        source, out = gl.arrays(x=data), {str(tmp_path / "a-{shard}.npy")!r}
        try:
            gl.convert(source, out, num_shards=8, num_threads=1)
        except gl.GpuloadError as error:
            print(error)
        names = sorted(os.listdir({str(tmp_path)!r}))
        print(names)
        os.system("mount -o remount,size=1m {tmp_path}")
        print(gl.convert(source, out, num_shards=8).num_kept == len(names) - 1)
        found = np.concatenate([np.load({str(tmp_path)!r} + f"/a-{{number}}.npy") for number in range(8)])
        print((found == data).all())
    """

    run_result = subprocess.run(
        [*command, sys.executable, "-c", textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (
        "cannot be written\n  cause:  No space left on device\n  remedy: make room"
        in run_result.stdout
    ), run_result.stderr
    assert "'a-0.npy', 'a-1.npy'" in run_result.stdout
    assert ".part" not in run_result.stdout
    assert run_result.stdout.splitlines()[-2:] == ["True", "True"]


def test_two_processes_do_not_write_the_same_files(tmp_path):
    out = tmp_path / "a-{shard}.npy"
    second = (
        f"subprocess.run([sys.executable, '-c', {_again(out)!r}], capture_output=True, text=True)"
    )
    do = f"import subprocess; print({second}.stderr)"

    run_result = run(out, at=5, do=do, threads=1)

    assert "a-SHARD.npy.convert.jsonl is in use" in run_result
    assert "another process, or another thread, converts to the same files now" in run_result
    np.testing.assert_array_equal(whole(tmp_path), values())


def _again(out):
    return SCRIPT.format(at=0, do="pass", out=str(out), threads=1, more={})


def test_a_kill_between_the_name_and_the_journal_costs_a_comparison_only(tmp_path):
    source = gl.arrays(x=values())
    gl.convert(source, tmp_path / "a-{shard}.npy", num_shards=8)
    journal = tmp_path / "a-SHARD.npy.convert.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:4]) + lines[4][:20])  # the last line was cut short

    conversion = gl.convert(source, tmp_path / "a-{shard}.npy", num_shards=8)

    assert conversion.num_kept == 8
    np.testing.assert_array_equal(whole(tmp_path), values())
    lines = [json.loads(line) for line in journal.read_bytes().splitlines()]
    assert sorted(line["file"] for line in lines if "file" in line) == [
        f"a-{number}.npy" for number in range(8)
    ]


def test_images_that_were_killed_go_on_and_the_folder_appears_as_a_whole(tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "in").mkdir()
    for number in range(1200):
        image.fromarray(np.full((2, 2), number % 256, np.uint8)).save(
            tmp_path / "in" / f"{number:04d}.png"
        )
    text = f"""
        import os, signal
        import gpuload as gl
        from gpuload.formats.images import folder
        write, calls = folder.write, []
        def killed(*arguments):
            calls.append(1)
            if len(calls) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            write(*arguments)
        folder.write = killed
        gl.convert(gl.images({str(tmp_path / "in")!r}, labels=None), {str(tmp_path / "out")!r}, num_threads=1)
    """
    died = forkserver.run(textwrap.dedent(text), timeout=60)
    assert died.returncode == -9
    _, _, part = sorted(os.listdir(tmp_path))
    assert re.fullmatch(r"out\.part-[0-9a-f]{8}", part)
    (tmp_path / part / "0700.png").write_bytes(b"half")  # of the piece that was not finished
    source = gl.images(tmp_path / "in", labels=None)

    conversion = gl.convert(source, tmp_path / "out")

    assert conversion.num_kept == 1  # of three pieces of work
    assert sorted(os.listdir(tmp_path)) == ["in", "out", "out.convert.jsonl"]
    assert all(
        (tmp_path / "out" / f"{n:04d}.png").read_bytes()
        == (tmp_path / "in" / f"{n:04d}.png").read_bytes()
        for n in range(1200)
    )
    assert gl.convert(source, tmp_path / "out").num_kept == 3
    journal = tmp_path / "out.convert.jsonl"
    first = json.loads(journal.read_text())
    assert first.pop("finished") is True
    lines = [first, *({"file": str(number)} for number in (0, 512, 1024))]
    journal.write_text(
        "".join(f"{json.dumps(line)}\n" for line in lines)
    )  # killed when the folder had its name
    assert gl.convert(source, tmp_path / "out").num_kept == 3


# --- what is there already


@pytest.mark.parametrize("suffix", ["npy", "npz", "bin", "tfrecord"])
@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_what_others_have_under_the_old_name_of_unfinished_files_stays(tmp_path, suffix, kind):
    victim, part = tmp_path / "thesis.txt", tmp_path / f"a.{suffix}.part"
    victim.write_text("all of it")
    if kind == "file":
        part.write_text("a download that is not done")
    elif kind == "link":
        part.symlink_to(victim)
    else:
        part.mkdir()
        (part / "thesis.txt").write_text("all of it")

    gl.convert(gl.arrays(x=values()), tmp_path / f"a.{suffix}")

    assert victim.read_text() == "all of it"
    assert part.is_symlink() == (kind == "link")
    if kind == "file":
        assert part.read_text() == "a download that is not done"
    if kind == "folder":
        assert (part / "thesis.txt").read_text() == "all of it"


def test_a_folder_of_others_named_like_an_unfinished_one_stays(tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "in").mkdir()
    (tmp_path / "out.part").mkdir()
    (tmp_path / "out.part" / "thesis.txt").write_text("all of it")
    image.fromarray(np.zeros((2, 2), np.uint8)).save(tmp_path / "in" / "a.png")

    gl.convert(gl.images(tmp_path / "in", labels=None), tmp_path / "out")

    assert (tmp_path / "out.part" / "thesis.txt").read_text() == "all of it"
    assert os.listdir(tmp_path / "out") == ["0.png"]


def test_the_unfinished_files_of_a_killed_call_go_and_those_of_others_stay(tmp_path):
    run(
        tmp_path / "a-{shard}.npy",
        at=5,
        do="os.kill(os.getpid(), signal.SIGKILL)",
        threads=1,
        status=-9,
    )
    [left] = [name for name in os.listdir(tmp_path) if ".part-" in name]
    rest = [
        tmp_path / "a-1.npy.part",
        tmp_path / "a-1.npy.part-00000000",
        tmp_path / "b.npy.part-1234abcd",
    ]
    for second in rest:
        second.write_text("mine")

    run(tmp_path / "a-{shard}.npy", threads=1)

    assert not (tmp_path / left).exists()
    assert [second.read_text() for second in rest] == ["mine"] * 3


def test_lines_of_the_journal_that_several_threads_write_do_not_mix(tmp_path, monkeypatch):
    journal, write = sys.modules["gpuload.journal"], os.write
    monkeypatch.setattr(journal.os, "write", lambda descriptor, data: write(descriptor, data[:7]))
    names = [f"{number}.npy" for number in range(24)]
    for name in names:
        (tmp_path / name).write_bytes(b"content")

    with journal.Journal(str(tmp_path / "a.jsonl")) as log:
        log.begin({"files": len(names)})
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: log.finish(name, str(tmp_path / name)), names))

    with journal.Journal(str(tmp_path / "a.jsonl")) as log:
        assert sorted(log.names()) == sorted(names)
        assert all(log.is_finished(name, str(tmp_path / name)) for name in names)


def test_a_journal_that_another_call_removes_as_it_ends_is_not_written_to(tmp_path, monkeypatch):
    journal, path = sys.modules["gpuload.journal"], str(tmp_path / "a.jsonl")
    lock = journal.fcntl.flock

    def lock_after_the_end(descriptor, operation):
        os.unlink(path)
        lock(descriptor, operation)

    monkeypatch.setattr(journal.fcntl, "flock", lock_after_the_end)
    with pytest.raises(FileError, match=r"a\.jsonl is in use"):
        journal.Journal(path)


def test_without_locks_a_call_that_was_taken_for_dead_names_no_unfinished_file_of_the_next(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(
        sys.modules["gpuload.journal"], "fcntl", None
    )  # as on some network file systems
    rows, begun, go_on = (
        values(),
        [threading.Event(), threading.Event()],
        [threading.Event(), threading.Event()],
    )

    def call(number):
        def read(numbers):
            if numbers[0] > 0 and not go_on[number].is_set():  # behind the first piece of the file
                begun[number].set()
                assert go_on[number].wait(60)
            return {"x": rows[numbers]}

        source = gl.records(1000, read, fields={"x": ("u1", (50,))}, version="1")
        return gl.convert(source, tmp_path / "a.npy", num_threads=1, verify=False)

    monkeypatch.setattr(filtering, "CHUNK_VARYING", 400)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(call, 0)
        assert begun[0].wait(60)
        second = threads.submit(call, 1)
        assert begun[1].wait(60)
        go_on[0].set()
        with pytest.raises(FileError):
            first.result(60)
        assert not (tmp_path / "a.npy").exists()
        go_on[1].set()
        second.result(60)

    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), rows)
    assert sorted(os.listdir(tmp_path)) == ["a.npy", "a.npy.convert.jsonl"]


def test_the_journal_is_not_written_through_a_link(tmp_path):
    (tmp_path / "a.npy.convert.jsonl").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(
        FileError, match=r"a\.npy\.convert\.jsonl is a symbolic link(.|\n)*remove the link"
    ):
        gl.convert(gl.arrays(x=values()), tmp_path / "a.npy")

    assert os.listdir(tmp_path) == ["a.npy.convert.jsonl"]


def test_files_of_others_are_refused_and_stay(tmp_path):
    (tmp_path / "a-3.npy").write_bytes(b"mine")

    with pytest.raises(
        FileError, match=r"a-3\.npy is there already(.|\n)*did not write it(.|\n)*overwrite=True"
    ):
        gl.convert(gl.arrays(x=values()), tmp_path / "a-{shard}.npy", num_shards=8)

    assert (tmp_path / "a-3.npy").read_bytes() == b"mine"
    assert os.listdir(tmp_path) == ["a-3.npy"]
    gl.convert(gl.arrays(x=values()), tmp_path / "a-{shard}.npy", num_shards=8, overwrite=True)
    np.testing.assert_array_equal(whole(tmp_path), values())


def test_files_of_another_conversion_are_refused_with_what_differs(tmp_path):
    gl.convert(gl.arrays(x=values()), tmp_path / "a-{shard}.npy", num_shards=8)

    with pytest.raises(
        FileError,
        match=r"a-0\.npy is there already, and 7 others(.|\n)*source: '\w+' then, '\w+' now",
    ):
        gl.convert(gl.arrays(x=values() + 1), tmp_path / "a-{shard}.npy", num_shards=8)
    with pytest.raises(FileError, match=r"num_shards: 8 then, 4 now"):
        gl.convert(gl.arrays(x=values()), tmp_path / "a-{shard}.npy", num_shards=4)
    np.testing.assert_array_equal(whole(tmp_path), values())

    gl.convert(gl.arrays(x=values() + 1), tmp_path / "a-{shard}.npy", num_shards=4, overwrite=True)

    assert sorted(path.name for path in tmp_path.glob("*.npy")) == [
        f"a-{number}.npy" for number in range(4)
    ]
    np.testing.assert_array_equal(whole(tmp_path, 4), values() + 1)


def test_a_finished_file_that_changed_since_is_not_taken_for_its_own(tmp_path):
    source = gl.arrays(x=values())
    gl.convert(source, tmp_path / "a-{shard}.npy", num_shards=8)
    data = bytearray((tmp_path / "a-2.npy").read_bytes())
    data[-1] ^= 1
    (tmp_path / "a-2.npy").write_bytes(data)

    with pytest.raises(FileError, match=r"a-2\.npy is there already"):
        gl.convert(source, tmp_path / "a-{shard}.npy", num_shards=8)
    assert (
        gl.convert(source, tmp_path / "a-{shard}.npy", num_shards=8, overwrite=True).num_kept == 7
    )
    np.testing.assert_array_equal(whole(tmp_path), values())


def test_a_description_of_others_is_refused_and_a_lost_one_is_written_again(tmp_path):
    path = tmp_path / "a.bin.json"
    path.write_text('{"mine": 1}')
    source = gl.arrays(x=values())

    with pytest.raises(FileError, match=r"a\.bin\.json is there already"):
        gl.convert(source, tmp_path / "a.bin")
    assert path.read_text() == '{"mine": 1}'
    assert not (tmp_path / "a.bin").exists()
    gl.convert(source, tmp_path / "a.bin", overwrite=True)
    message = path.read_bytes()
    path.unlink()
    gl.convert(source, tmp_path / "a.bin")

    assert path.read_bytes() == message
    assert gl.convert(source, tmp_path / "a.bin").num_kept == 1


def test_an_error_of_the_users_own_reader_is_raised_as_itself(tmp_path):
    def read(numbers):
        raise ConnectionResetError("the table is gone")

    source = gl.records(10, read, fields={"x": ("i8", ())}, version="1")
    file = gl.records(10, read, fields={"x": ("u1", (None,))}, version="1").mark(x="encoded")

    for out, item in (("a.npy", source), ("images", file)):
        with pytest.raises(ConnectionResetError, match="the table is gone"):
            gl.convert(item, tmp_path / out)


def test_a_shard_that_a_wildcard_would_read_too_is_refused(tmp_path):
    np.save(tmp_path / "a-8.npy", values(3))

    with pytest.raises(
        FileError, match=r"a-8\.npy is there(.|\n)*a wildcard would read it with them"
    ):
        gl.convert(gl.arrays(x=values()), tmp_path / "a-{shard}.npy", num_shards=8, overwrite=True)


def test_the_files_that_are_read_are_not_written_over(tmp_path):
    np.save(tmp_path / "a-0.npy", values(10))
    os.symlink(tmp_path, tmp_path.parent / f"{tmp_path.name}-link")
    source = gl.concat(gl.npy(tmp_path / "a-0.npy")[::2], gl.arrays(x=values(3)))

    for folder in (tmp_path, tmp_path.parent / f"{tmp_path.name}-link"):
        with pytest.raises(
            SpecError, match=r"a-0\.npy would be written over(.|\n)*the source reads it"
        ):
            gl.convert(source, folder / "a-{shard}.npy", num_shards=1, overwrite=True)
    np.testing.assert_array_equal(np.load(tmp_path / "a-0.npy"), values(10))


def test_a_folder_of_others_is_never_removed(tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("all of it")
    image.fromarray(np.zeros((2, 2), np.uint8)).save(tmp_path / "in" / "a.png")

    for overwrite in (False, True):
        with pytest.raises(
            FileError, match=r"out is there already(.|\n)*no folder of others is removed"
        ):
            gl.convert(
                gl.images(tmp_path / "in", labels=None), tmp_path / "out", overwrite=overwrite
            )

    assert (tmp_path / "out" / "thesis.txt").read_text() == "all of it"


def other_images_than_in(out):
    """Convert one folder of images, and return the source of another one beside it."""
    image = pytest.importorskip("PIL.Image")
    for number in range(2):
        folder = out.parent / f"in{number}"
        folder.mkdir()
        image.fromarray(np.full((2, 2), number, np.uint8)).save(folder / f"{number}.png")
    first, second = (gl.images(out.parent / f"in{number}", labels=None) for number in range(2))
    gl.convert(first, out)
    return second


def test_a_folder_of_another_conversion_is_replaced_when_asked(tmp_path):
    second = other_images_than_in(tmp_path / "out")

    with pytest.raises(FileError, match=r"out is there already(.|\n)*source: .* then"):
        gl.convert(second, tmp_path / "out")
    gl.convert(second, tmp_path / "out", overwrite=True)

    assert (tmp_path / "out" / "0.png").read_bytes() == (tmp_path / "in1" / "1.png").read_bytes()


def test_a_folder_that_was_being_replaced_is_replaced_by_the_next_call(tmp_path, monkeypatch):
    second = other_images_than_in(tmp_path / "out")

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(folder_writer, "write", full)
        with pytest.raises(FileError, match="No space left"):
            gl.convert(second, tmp_path / "out", overwrite=True)
    assert os.listdir(tmp_path / "out") == ["0.png"]  # the old one stays until the new one is whole
    with pytest.raises(FileError, match=r"out is there already(.|\n)*overwrite=True"):
        gl.convert(second, tmp_path / "out")
    gl.convert(second, tmp_path / "out", overwrite=True)

    assert os.listdir(tmp_path / "out") == ["0.png"]
    assert (tmp_path / "out" / "0.png").read_bytes() == (tmp_path / "in1" / "1.png").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["in0", "in1", "out", "out.convert.jsonl"]


@pytest.mark.parametrize("text", ["my notes\n", '{"other": 1}\n'])
def test_a_file_with_the_name_of_the_journal_is_refused_and_stays(tmp_path, text):
    path = tmp_path / "a.npy.convert.jsonl"
    path.write_text(text)

    with pytest.raises(FileError, match="no journal of a conversion"):
        gl.convert(gl.arrays(x=values()), tmp_path / "a.npy", overwrite=True)

    assert path.read_text() == text


# --- read back


def test_what_differs_when_it_is_read_back_gets_no_name(tmp_path):
    calls = []

    def read(numbers):
        calls.append(numbers)
        return {"x": numbers + (len(calls) > 3)}

    source = gl.records(100, read, fields={"x": ("i8", ())}, version="1")

    with pytest.raises(
        RecordError, match=r"a-1\.npy: its records are not those of the source: field 'x' differs"
    ):
        gl.convert(source, tmp_path / "a-{shard}.npy", num_shards=4, num_threads=1)

    assert sorted(os.listdir(tmp_path)) == ["a-0.npy", "a-SHARD.npy.convert.jsonl"]


@pytest.mark.parametrize("suffix", ["npy", "npz", "bin", "tfrecord"])
def test_a_byte_that_the_disk_changed_is_noticed(tmp_path, monkeypatch, suffix):
    flush = converting._compare

    def faulty(path, file, form, work):
        data = bytearray(Path(path).read_bytes())
        data[-5 if suffix == "tfrecord" else data.find(b"\xf1\xf2\xf3\xf4")] ^= 1
        Path(path).write_bytes(data)
        flush(path, file, form, work)

    monkeypatch.setattr(converting, "_compare", faulty)
    source = gl.arrays(x=np.frombuffer(b"\xf1\xf2\xf3\xf4" * 5, np.uint8).reshape(5, 4))

    with pytest.raises((RecordError, FormatError)):
        gl.convert(source, tmp_path / f"a.{suffix}")
    assert not (tmp_path / f"a.{suffix}").exists()
    monkeypatch.undo()
    gl.convert(source, tmp_path / f"a.{suffix}", verify=False)


def test_a_record_that_cannot_be_read_is_named_and_the_others_are_broken_off(tmp_path):
    def read(numbers):
        if 300 in numbers:
            raise RecordError("record 300 is damaged")
        return {"x": numbers}

    source = gl.records(1000, read, fields={"x": ("i8", ())}, version="1")

    with pytest.raises(RecordError, match="record 300 is damaged"):
        gl.convert(source, tmp_path / "a-{shard}.npy", num_shards=8, num_threads=2)

    assert [name for name in os.listdir(tmp_path) if ".part" in name] == []
    with pytest.raises(RecordError, match="record 300 is damaged"):
        gl.convert(source, tmp_path / "b.npy")
    assert [
        name for name in os.listdir(tmp_path) if name.startswith("b")
    ] == []  # nothing of it was finished


def test_a_folder_of_which_nothing_could_be_written_leaves_nothing_behind(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "in").mkdir()
    for number in range(3):
        image.fromarray(np.zeros((2, 2), np.uint8)).save(tmp_path / "in" / f"{number}.png")
    write = folder_writer.write

    def full(path, records):
        write(path, records)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(folder_writer, "write", full)
    with pytest.raises(FileError, match="No space left"):
        gl.convert(gl.images(tmp_path / "in", labels=None), tmp_path / "out")

    assert os.listdir(tmp_path) == ["in"]


def test_a_full_disk_while_the_journal_is_written_is_an_error(tmp_path, monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(converting, "_flush", full)

    with pytest.raises(FileError, match=r"a\.npy cannot be written(.|\n)*No space left"):
        gl.convert(gl.arrays(x=values()), tmp_path / "a.npy")
    assert not (tmp_path / "a.npy").exists()


# --- arguments


@pytest.mark.parametrize(
    ("out", "arguments", "message"),
    [
        ("a-{shard}.npy", {}, "a-{shard}.npy without num_shards(.|\n)*pass num_shards=16"),
        ("a.npy", {"num_shards": 2}, r"2 shards to a\.npy(.|\n)*write a-{shard:05d}\.npy"),
        ("a-{shard}.npy", {"num_shards": 0}, "num_shards = 0"),
        ("a-{shard}.npy", {"num_shards": 31}, "31 shards of 30 records"),
        ("a-{shard}.npy", {"num_shards": 11}, r"11 shards(.|\n)*sorted by name(.|\n)*{shard:05d}"),
        ("a-{shards}.npy", {"num_shards": 2}, "none of shard, num_shards, field"),
        ("a-{shard:q}.npy", {"num_shards": 2}, "in braces"),
        ("a-{shard[0]}.npy", {"num_shards": 2}, "in braces"),
        ("a-{shard.real}.npy", {"num_shards": 2}, "in braces"),
        ("a-{}.npy", {"num_shards": 2}, "in braces"),
        ("a-{.npy", {"num_shards": 2}, "in braces"),
        ("{shard}/a.npy", {"num_shards": 2}, "stand in the name of the file"),
        ("a-{num_shards}{shard:.0s}.npy", {"num_shards": 2}, "braces|one name"),
        ("a.npy.gz", {}, "compressed files are not written"),
        ("a.orc", {}, r"the suffix '\.orc' names no format(.|\n)*\.tfrecord"),
        ("a.npy", {"format": "orc"}, "format = 'orc'(.|\n)*tfrecord, parquet, hdf5, images"),
        ("a.npy", {"raw": ["x"]}, "they say how tfrecord holds a field"),
        ("a.tfrecord", {"raw": "x"}, r"raw = 'x'(.|\n)*\['x'\]"),
        ("a.tfrecord", {"raw": ["x"], "tensors": ["x"]}, r"in both raw= and tensors="),
        ("a.npy", {"num_threads": 0}, "num_threads = 0"),
        ("a.npy", {"allow_pickle": True}, "a source is open already"),
        ("a\0.npy", {}, "the character NUL"),
        ("\ud800.npy", {}, "half of a surrogate pair"),
        ("s3://bucket/a.npy", {}, r"it is a URL(.|\n)*local folder"),
        ("", {}, "it is the path to write to"),
        (3, {}, "it is the path to write to"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(tmp_path, monkeypatch, out, arguments, message):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(SpecError, match=message):
        gl.convert(gl.arrays(x=np.arange(30.0)), out, **arguments)

    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("out", ["{field}.npy", "a.npz"])
def test_a_field_whose_name_no_file_can_have_is_refused(tmp_path, out):
    with pytest.raises(SpecError, match="half of a surrogate pair"):
        gl.convert(gl.arrays(**{"\ud800": np.arange(3)}), tmp_path / out)


def test_a_label_that_is_no_text_is_named_by_its_record(tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "in").mkdir()
    image.fromarray(np.zeros((2, 2), np.uint8)).save(tmp_path / "in" / "a.png")
    source = gl.zip(gl.images(tmp_path / "in", labels=None), gl.arrays(label=np.array(["\ud800"])))

    with pytest.raises(RecordError, match=r"record 0: (.|\n)*half of a surrogate pair"):
        gl.convert(source, tmp_path / "out")


@pytest.mark.parametrize("suffix", ["tfrecord", "parquet", "h5"])
def test_a_text_that_no_file_can_hold_is_named_by_its_record(tmp_path, suffix):
    pytest.importorskip({"parquet": "pyarrow", "h5": "h5py"}.get(suffix, "numpy"))

    with pytest.raises(RecordError, match=r"record 1: (.|\n)*half of a surrogate pair"):
        gl.convert(gl.arrays(x=np.array(["a", "\ud800"])), tmp_path / f"out.{suffix}")

    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("dtype", [np.str_, object])
def test_texts_of_hdf5_have_no_nul(tmp_path, dtype):
    pytest.importorskip("h5py")

    with pytest.raises(
        RecordError, match=r"record 1: 'a\\x00b'(.|\n)*character 1 is NUL(.|\n)*tfrecord"
    ):
        gl.convert(gl.arrays(x=np.array(["a", "a\0b"], dtype)), tmp_path / "out.h5")

    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("length", [0, 1, 3])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_values_of_varying_length_that_have_one_length_are_written_to_hdf5(tmp_path, length, count):
    pytest.importorskip("h5py")
    values = np.arange(count * length, dtype=np.int16).reshape(count, length)
    source = gl.records(
        count, lambda numbers: {"x": list(values[numbers])}, fields={"x": ("i2", (None,))}
    )

    gl.convert(source, tmp_path / "out.h5")

    back = gl.hdf5(tmp_path / "out.h5").read(range(count))["x"]
    assert [row.tolist() for row in back] == values.tolist()


def test_parquet_has_no_lists_of_length_zero(tmp_path):
    pytest.importorskip("pyarrow")

    with pytest.raises(SpecError, match=r"never empty(.|\n)*\(2, 0\)"):
        gl.convert(gl.arrays(x=np.zeros((3, 2, 0))), tmp_path / "out.parquet")


def test_a_field_that_is_not_there_and_no_records_are_refused(tmp_path):
    with pytest.raises(UnknownFieldError, match="'y'"):
        gl.convert(gl.arrays(x=[1]), tmp_path / "a.tfrecord", tensors=["y"])
    with pytest.raises(SpecError, match="a source without records"):
        gl.convert(gl.arrays(x=[1])[:0], tmp_path / "a.npy")
    with pytest.raises(MissingFileError):
        gl.convert(tmp_path / "lost.npy", tmp_path / "a.npy")


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("x")

    with pytest.raises(FileError, match=r"file/b cannot be written"):
        gl.convert(gl.arrays(x=[1]), tmp_path / "file" / "b" / "a.npy")


def test_braces_in_a_name_are_written_twice(tmp_path):
    gl.convert(gl.arrays(x=[1, 2]), tmp_path / "{{a}}.npy")

    assert np.load(tmp_path / "{a}.npy").tolist() == [1, 2]


def test_a_mix_is_written_as_its_first_epoch(tmp_path):
    source = gl.mix({gl.arrays(x=np.arange(5)): 1, gl.arrays(x=np.arange(100, 103)): 1})
    gl.convert(source, tmp_path / "a.npy")

    assert np.load(tmp_path / "a.npy").tolist() == source.read(range(8))["x"].tolist()


def test_records_go_through_every_format_and_come_back(tmp_path):
    expected = values()
    step = gl.convert(gl.arrays(x=expected), tmp_path / "1-{shard}.npy", num_shards=3)
    for number, (suffix, shard) in enumerate(
        [("npz", 2), ("bin", 4), ("tfrecord", 3), ("npy", 1)], 2
    ):
        step = gl.convert(
            eval(step.call), tmp_path / f"{number}-{{shard}}.{suffix}", num_shards=shard
        )

    np.testing.assert_array_equal(np.load(tmp_path / "5-0.npy"), expected)


def test_the_function_is_what_the_package_calls_convert():
    assert gl.convert is convert_function
    assert inspect.unwrap(gl.convert) is inspect.unwrap(converting.convert)
    assert writing.equal_values(np.array([np.nan]), np.array([np.nan]))
    assert writing.equal_values(
        np.array(["NaT", "2020-01-01"], "M8[D]"), np.array(["NaT", "2020-01-01"], "M8[D]")
    )
    assert writing.equal_values(np.array(["NaT"], "m8[s]"), np.array(["NaT"], "m8[s]"))
    assert not writing.equal_values(np.array(["NaT"], "M8[D]"), np.array(["2020-01-01"], "M8[D]"))


# --- pickles


class Evil:
    """Runs when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, (os.environ["EVIL"],)


def objects(path, array):
    np.save(path, array, allow_pickle=True)


def test_objects_are_refused_everywhere_and_no_code_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("EVIL", str(tmp_path / "ran"))
    objects(tmp_path / "a.npy", np.array([Evil()], object))

    for read in (gl.npy, gl.open, lambda path: gl.convert(path, tmp_path / "b.npy")):
        with pytest.raises(FormatError, match=r"Python objects \(a pickle\)(.|\n)*--allow-pickle"):
            read(tmp_path / "a.npy")
    assert cli.main(["convert", str(tmp_path / "a.npy"), str(tmp_path / "b.npy")]) == 2
    assert not (tmp_path / "ran").exists()


def test_the_one_door_unpickles_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("EVIL", str(tmp_path / "ran"))
    objects(tmp_path / "a.npy", np.array([Evil(), Evil()], object))

    with pytest.raises(FormatError, match=r"cannot be unpickled|a value of"):
        gl.convert(tmp_path / "a.npy", tmp_path / "b.npy", allow_pickle=True)

    assert (tmp_path / "ran").exists()  # this is what allow_pickle means
    assert (
        cli.main(["convert", "--allow-pickle", str(tmp_path / "a.npy"), str(tmp_path / "b.npy")])
        == 2
    )
    assert "runs any code that their writer put there" in capsys.readouterr().err


def object_array(entries):
    array = np.empty(len(entries), object)
    for number, value in enumerate(entries):
        array[number] = value
    return array


@pytest.mark.parametrize(
    ("state", "suffix", "expected"),
    [
        (object_array([1, 2, 3]), "npy", {"x": np.array([1, 2, 3])}),
        (object_array(["a", "bcd", ""]), "npy", {"x": np.array(["a", "bcd", ""])}),
        (
            object_array([np.ones((2, 2)), np.zeros((2, 2))]),
            "npy",
            {"x": np.array([np.ones((2, 2)), np.zeros((2, 2))])},
        ),
        (
            object_array([{"a": 1, "b": [0.5, 1]}, {"a": 2, "b": [2, 3]}]),
            "npz",
            {"a": np.array([1, 2]), "b": np.array([[0.5, 1], [2, 3]])},
        ),
    ],
    ids=["numbers", "texts", "arrays", "dicts"],
)
def test_objects_that_are_trusted_become_records(tmp_path, state, suffix, expected):
    objects(tmp_path / "a.npy", state)

    conversion = gl.convert(tmp_path / "a.npy", tmp_path / f"b.{suffix}", allow_pickle=True)

    result = eval(conversion.call).read(range(len(next(iter(expected.values())))))
    for name, value in expected.items():
        assert result[name].dtype == value.dtype
        np.testing.assert_array_equal(result[name], value)
    np.load(conversion.paths[0], allow_pickle=False)  # no objects are left


def test_objects_of_varying_length_become_tfrecords(tmp_path):
    state = object_array([np.arange(number, dtype="i8") for number in range(4)])
    objects(tmp_path / "a.npy", state)
    objects(tmp_path / "b.npy", object_array([b"ab\0", b"", b"c"]))

    numbers = eval(gl.convert(tmp_path / "a.npy", tmp_path / "a.tfrecord", allow_pickle=True).call)
    texts = eval(gl.convert(tmp_path / "b.npy", tmp_path / "b.tfrecord", allow_pickle=True).call)

    assert [item.tolist() for item in numbers.read(range(4))["x"]] == [[], [0], [0, 1], [0, 1, 2]]
    assert [item.tobytes() for item in texts.read(range(3))["x"]] == [b"ab\0", b"", b"c"]


@pytest.mark.parametrize(
    "state",
    [
        object_array([1, "a"]),
        object_array([1, None]),
        object_array([{"a": 1}, {"b": 1}]),
        object_array([{1, 2}]),
        np.array({1, 2}, object),
    ],
)
def test_objects_that_are_no_records_are_refused_by_record(tmp_path, state):
    objects(tmp_path / "a.npy", state)

    with pytest.raises((FormatError, SpecError), match=r"record|holds one|is a set"):
        gl.convert(tmp_path / "a.npy", tmp_path / "b.npy", allow_pickle=True)


# --- the command


def test_the_command_converts_says_what_it_did_and_goes_on(tmp_path, capsys):
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", values(10) + number)
    names = [str(tmp_path / f"{number}.npy") for number in range(3)]
    out = str(tmp_path / "out-{shard:02d}.tfrecord")

    assert cli.main(["convert", *names, out, "--num-shards", "4", "--num-threads", "2"]) == 0
    message = capsys.readouterr().out
    assert cli.main(["convert", f"{tmp_path}/[0-9].npy", out, "--num-shards", "4"]) == 0

    assert "out-00.tfrecord to " in message
    assert "30 records" in message
    assert "read back and equal" in message
    assert (
        f"it is read by gl.tfrecord('{tmp_path}/out-*.tfrecord', {{'x': gl.Raw('|u1', (50,))}})"
        in message
    )
    assert "4 of 4 files were finished before" in capsys.readouterr().out


def test_an_hdf5_file_that_may_not_grow_is_an_error_of_the_file(tmp_path):
    pytest.importorskip("h5py")

    message = run(tmp_path / "a-{shard}.h5", limit=5_000, status=1)

    assert re.search(
        r"FileError: \S+\.h5 cannot be written\n  cause:  File too large\n  remedy: make room",
        message,
    )


def test_the_error_of_a_full_disk_is_in_the_words_of_the_system_whatever_a_library_adds():
    error = OSError(
        errno.ENOSPC, "Can't write data (time = Thu\n, buf = 0x7fa9, offset = 258048)"
    )  # as of HDF5

    assert write_error("a.h5", error).cause == os.strerror(errno.ENOSPC)
    assert write_error("a.h5", OSError("no number")).cause == "no number"


def test_the_command_says_what_is_wrong_and_ends_with_status_2(tmp_path, capsys):
    np.save(tmp_path / "a.npy", np.arange(3.0))

    assert cli.main(["convert", str(tmp_path / "a.npy"), str(tmp_path / "b.tfrecord")]) == 2
    assert "field x: float64 () cannot be written as tfrecord" in capsys.readouterr().err
    assert (
        cli.main(
            ["convert", str(tmp_path / "a.npy"), str(tmp_path / "b.tfrecord"), "--tensor", "x"]
        )
        == 0
    )
    assert (
        cli.main(["convert", str(tmp_path / "a.npy"), str(tmp_path / "b.tfrecord"), "--raw", "x"])
        == 2
    )
    assert "raw: [] then, ['x'] now" in capsys.readouterr().err
    assert (
        cli.main(
            [
                "convert",
                str(tmp_path / "a.npy"),
                str(tmp_path / "b.tfrecord"),
                "--raw",
                "x",
                "--overwrite",
                "--no-verify",
            ]
        )
        == 0
    )
    assert "not read back" in capsys.readouterr().out


def test_the_journal_says_what_the_files_depend_on(tmp_path):
    source = gl.arrays(x=values())
    gl.convert(source, tmp_path / "a-{shard}.npy", num_shards=2)

    first, parts, *files = map(
        json.loads, (tmp_path / "a-SHARD.npy.convert.jsonl").read_text().splitlines()
    )

    assert first == {
        "conversion": 1, "source": source.fingerprint(), "records": 1000, "format": "npy", "files": "a-{shard}.npy",
        "num_shards": 2, "fields": ["x: uint8 (50,)"],
    }  # fmt: skip
    assert list(parts) == ["parts"]
    assert sorted(item["file"] for item in files) == ["a-0.npy", "a-1.npy"]
    assert {item["bytes"] for item in files} == {os.path.getsize(tmp_path / "a-0.npy")}


# --- what is neither a source nor the path of files


def test_a_batch_and_arrays_are_refused_with_the_form_that_works(tmp_path):
    batch = next(iter(gl.Loader(gl.arrays(x=[1, 2]), 2)))
    sources = [gl.arrays(x=[1]), gl.arrays(x=[2])]

    for thing, form in (
        (batch, r"gl\.convert of a Batch(.|\n)*gl\.arrays\(\*\*batch\)"),
        ({"x": [1, 2]}, r"gl\.arrays\(\*\*fields\)"),
        (np.arange(3), r"gl\.arrays\(x=array\)"),
        ([{"x": 1}], r"gl\.records\(len\(records\), read\)"),
        (sources, r"gl\.concat\(a, b\)"),
        ((np.arange(3), np.arange(3)), r"gl\.arrays\(x=array, label=labels\)"),
        (iter(gl.Loader(gl.arrays(x=[1, 2]), 2)), r"gl\.convert of a Epoch(.|\n)*pass the loader"),
        (3, "neither a source nor the path"),
        (None, "neither a source nor the path"),
    ):
        with pytest.raises(SpecError, match=form):
            gl.convert(thing, tmp_path / "a.npy")
    assert os.listdir(tmp_path) == []
    gl.convert(gl.arrays(**batch), tmp_path / "a.npy")
    assert np.load(tmp_path / "a.npy").tolist() == [1, 2]


def test_parquet_keeps_the_names_of_classes_and_other_formats_say_that_they_do_not(
    tmp_path, caplog
):
    caplog.set_level("INFO", logger="gpuload")
    for name in ("ant", "bee", "c d é"):
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "0.png").write_bytes(b"\x89PNG\r\n\x1a\n" + name.encode())
    source = gl.images(tmp_path / "in")
    rename = source.rename(label="kind").select([2, 0, 1])

    for records in (source, rename, gl.zip(source, gl.arrays(size=[3, 1, 2]))):
        back = eval(gl.convert(records, tmp_path / "a.parquet", overwrite=True).call, {"gl": gl})
        assert back.classes == source.classes == ("ant", "bee", "c d é")
    assert "names of the classes" not in caplog.text
    table = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "a.parquet")
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features == {
        "label": {"_type": "ClassLabel", "names": ["ant", "bee", "c d é"]}
    }  # as `datasets` has it
    twice = gl.zip(rename, gl.arrays(size=[3, 1, 2]))  # which of the two has the classes?
    for path, records in (("b.parquet", twice), ("b.tfrecord", source), ("b.h5", source)):
        caplog.clear()
        back = eval(gl.convert(records, tmp_path / path).call, {"gl": gl})
        assert back.classes == ()
        assert "the names of the classes are not stored" in caplog.text
    caplog.clear()
    gl.convert(gl.arrays(label=[1, 2]), tmp_path / "c.parquet")
    assert "names of the classes" not in caplog.text
