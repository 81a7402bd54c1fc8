"""Derived files are made once, are whole or not there, and leave nothing else behind."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpuload.errors import ChangedFileError, FileError, FormatError, GpuloadError, MissingFileError
from gpuload.storage import derivedfiles, privatefiles
from gpuload.storage.files import look_at

ROOT = Path(__file__).parents[2]
SECONDS = 60  # for what another process does at most
CHILD = """
import os, sys, time
from pathlib import Path
from gpuload.storage.derivedfiles import load_or_make

place, folder = sys.argv[1], Path(sys.argv[2])

def load(path):
    return Path(path).read_bytes() if os.path.exists(path) else None

def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.005)

def say(name):
    (folder / name).touch()
"""


def load(path):
    return Path(path).read_bytes() if os.path.exists(path) else None


def write(content):
    return lambda path: Path(path).write_bytes(content)


def never(path):
    raise AssertionError("it is there already")


def run(code, place, folder, *before, **environment):
    """Start a process that has what CHILD defines."""
    return subprocess.Popen(
        [*before, sys.executable, "-c", CHILD + code, str(place), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


@contextlib.contextmanager
def ended(process):
    """End a process, whatever the test did."""
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=SECONDS)


def finished(process):
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    return out


def wait_for(path):
    until = time.monotonic() + SECONDS
    while not path.exists():
        assert time.monotonic() < until, f"{path} never came"
        time.sleep(0.005)


def names(folder):
    return sorted(os.listdir(folder))


@pytest.fixture
def home(tmp_path):
    """A folder for derived files, that nothing else is in."""
    return tmp_path / "home"


def test_a_derived_file_is_made_by_the_first_and_found_by_the_second(home):
    place = str(home / "deep" / "a.idx")

    assert derivedfiles.load_or_make([place], load, write(b"index")) == b"index"
    assert derivedfiles.load_or_make([place], load, never) == b"index"
    assert names(home / "deep") == ["a.idx"]


def test_many_processes_make_it_once_and_all_of_them_get_it_whole(home, tmp_path):
    code = """
def make(path):
    with open(folder / "made", "a") as file:
        file.write("once\\n")
    with open(path, "wb") as file:
        for number in range(20):
            file.write(bytes([number]) * 10_000)
            file.flush()
            time.sleep(0.01)

say(f"ready-{os.getpid()}")
wait_for("go")
found = load_or_make([place], load, make)
print(len(found), sorted(set(found)) == list(range(20)))
"""
    processes = [run(code, home / "a.bin", tmp_path) for _ in range(3)]
    for process in processes:
        wait_for(tmp_path / f"ready-{process.pid}")
    (tmp_path / "go").touch()

    assert [finished(process) for process in processes] == ["200000 True\n"] * 3
    assert (tmp_path / "made").read_text() == "once\n"
    assert names(home) == ["a.bin"]


def test_threads_of_one_process_make_it_once(home):
    results = []

    def make(path):
        results.append(path)
        time.sleep(0.05)
        Path(path).write_bytes(b"whole")

    with ThreadPoolExecutor(8) as pool:
        contents = list(
            pool.map(lambda _: derivedfiles.load_or_make([str(home / "a")], load, make), range(8))
        )

    assert contents == [b"whole"] * 8
    assert len(results) == 1


WRITES_HALF = """
def make(path):
    with open(path, "wb") as file:
        file.write(b"half")
        file.flush()
        say("writing")
        wait_for("never")

load_or_make([place], load, make)
"""


def test_a_maker_that_is_killed_leaves_nothing_that_is_believed_and_the_next_one_cleans_up(
    home, tmp_path
):
    with ended(run(WRITES_HALF, home / "a.bin", tmp_path)) as maker:
        wait_for(tmp_path / "writing")
        maker.send_signal(signal.SIGKILL)
        maker.wait(SECONDS)
    left = names(home)

    message = derivedfiles.load_or_make([str(home / "a.bin")], load, write(b"whole"))

    assert "a.bin" not in left
    assert len(left) == 2  # the lock, and what was written
    assert message == b"whole"
    assert names(home) == ["a.bin"]


def test_who_waits_for_a_maker_that_is_killed_makes_it(home, tmp_path):
    waits = """
def make(path):
    Path(path).write_bytes(b"whole")

print(load_or_make([place], load, make, lambda: say("waiting")))
"""
    with ended(run(WRITES_HALF, home / "a.bin", tmp_path)) as maker:
        wait_for(tmp_path / "writing")
        with ended(run(waits, home / "a.bin", tmp_path)) as second:
            wait_for(tmp_path / "waiting")
            assert not (home / "a.bin").exists()
            maker.kill()
            assert finished(second) == "b'whole'\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_that_was_forked_while_it_was_made_keeps_nobody_waiting(home, tmp_path):
    code = """
def make(path):
    Path(path).write_bytes(b"whole")
    if os.fork() == 0:
        wait_for("waited")
        os._exit(0)
    say("writing")
    wait_for("waiting")

load_or_make([place], load, make)
say("made")
wait_for("waited")
"""
    with ended(run(code, home / "a.bin", tmp_path)):
        wait_for(tmp_path / "writing")
        until = time.monotonic() + SECONDS

        def waits():
            (tmp_path / "waiting").touch()
            assert time.monotonic() < until, "the child keeps the lock"

        try:
            message = derivedfiles.load_or_make([str(home / "a.bin")], load, never, waits)
        finally:
            (tmp_path / "waited").touch()

    assert message == b"whole"


def test_a_lock_whose_file_was_removed_meanwhile_keeps_nobody_out_and_is_not_taken(
    home, monkeypatch
):
    place, waited_for, waits = str(home / "a"), derivedfiles._waited_for, []

    def remove_first(descriptor, place, look):
        waits.append(place)
        if len(waits) == 1:  # as the process does that had the lock until now
            os.unlink(place + derivedfiles.LOCK)
        return waited_for(descriptor, place, look)

    monkeypatch.setattr(derivedfiles, "_waited_for", remove_first)
    home.mkdir(exist_ok=True)
    with derivedfiles._locked(place, lambda: None) as is_alone:
        assert is_alone
        assert os.path.exists(place + derivedfiles.LOCK)
    assert len(waits) == 2


def test_what_is_called_while_it_waits_can_end_the_waiting(home, tmp_path):
    def waits():
        raise KeyboardInterrupt

    with ended(run(WRITES_HALF, home / "a.bin", tmp_path)):
        wait_for(tmp_path / "writing")

        with pytest.raises(KeyboardInterrupt):
            derivedfiles.load_or_make([str(home / "a.bin")], load, never, waits)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("wrong"),
        KeyboardInterrupt(),
        FormatError("damaged"),
        MissingFileError("gone"),
    ],
)
def test_an_error_of_the_maker_goes_on_and_nothing_is_left(home, error):
    def make(path):
        Path(path).write_bytes(b"half")
        raise error

    with pytest.raises(type(error)) as caught:
        derivedfiles.load_or_make([str(home / "a"), str(home / "other" / "a")], load, make)

    assert caught.value is error
    assert names(home) == []


def test_what_cannot_be_read_back_is_an_error_that_names_it(home):
    with pytest.raises(
        FileError, match=r"a\.idx does not hold the bytes that were written(.|\n)*GPULOAD_CACHE"
    ):
        derivedfiles.load_or_make([str(home / "a.idx")], lambda path: None, write(b"index"))


def test_a_place_that_cannot_be_written_to_is_passed_over(home, tmp_path):
    (tmp_path / "file").touch()
    places = [
        str(tmp_path / "file" / "a"),
        str(tmp_path / "file" / "b" / "a"),
        str(home / ("n" * 300)),
        str(home / "a"),
    ]

    assert derivedfiles.load_or_make(places, load, write(b"whole")) == b"whole"
    assert names(home) == ["a"]
    assert names(tmp_path) == ["file", "home"]


@pytest.fixture
def folder_of_user():
    """Be a user who may not write everywhere, with a folder of his own."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    folder = tempfile.mkdtemp()
    yield Path(folder)
    shutil.rmtree(folder)
    os.seteuid(user)


def test_a_folder_of_somebody_else_is_passed_over(tmp_path, folder_of_user):
    closed = folder_of_user / "closed"
    closed.mkdir(mode=0o555)

    assert (
        derivedfiles.load_or_make(
            [str(closed / "a.idx"), str(folder_of_user / "a.idx")], load, write(b"whole")
        )
        == b"whole"
    )
    assert names(folder_of_user) == ["a.idx", "closed"]
    assert names(closed) == []


def test_where_no_place_can_be_written_to_all_are_named(folder_of_user):
    closed = folder_of_user / "closed"
    closed.mkdir(mode=0o555)

    with pytest.raises(FileError) as caught:
        derivedfiles.load_or_make([str(closed / "a"), str(closed / "b" / "a")], load, never)

    assert str(closed) in caught.value.cause
    assert str(closed / "b") in caught.value.cause
    assert "Permission denied" in caught.value.cause
    assert "GPULOAD_CACHE" in caught.value.remedy


ON_SMALL_DISK = """
import subprocess
home = Path(place).parent
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(home)], check=True)

def make(path):
    with open(path, "wb") as file:
        file.write(bytes(int(sys.argv[3]) if len(sys.argv) > 3 else 1 << 20))

try:
    load_or_make([place], load, make)
except OSError as error:
    print(type(error).__name__, str(error))
print(os.listdir(home))
print(len(load_or_make([place, str(folder / "elsewhere" / "a")], load, make)))
"""


def test_a_full_disk_is_an_error_with_a_remedy_or_the_next_place_is_taken(home, tmp_path):
    home.mkdir()
    single = ["unshare", "--user", "--map-root-user", "--mount"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*single, "true"], capture_output=True).returncode
    ):
        pytest.skip("this system lets nobody mount a small disk of his own")

    message = finished(run(ON_SMALL_DISK, home / "a.bin", tmp_path, *single))

    assert f"FileError {home}/a.bin cannot be written" in message
    assert "No space left on device" in message
    assert "make room" in message
    assert "GPULOAD_CACHE" in message
    assert message.endswith("[]\n1048576\n")
    assert names(tmp_path / "elsewhere") == ["a"]


def test_a_limit_of_the_size_of_files_is_an_error_with_a_remedy(home, tmp_path):
    code = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    load_or_make([place], load, lambda path: Path(path).write_bytes(bytes(2000)))
except OSError as error:
    print(type(error).__name__, str(error))
print(os.listdir(Path(place).parent))
"""
    message = finished(
        run(code, home / "a.bin", tmp_path, PYTHONDONTWRITEBYTECODE="1")
    )  # it would be cut

    assert "FileError" in message
    assert f"{home}/a.bin cannot be written" in message
    assert "ulimit -f" in message
    assert message.endswith("[]\n")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_where_all_places_are_full_that_is_said(home, number):
    def make(path):
        raise OSError(number, os.strerror(number))

    with pytest.raises(FileError, match=r"no place(.|\n)*home(.|\n)*other(.|\n)*with room"):
        derivedfiles.load_or_make([str(home / "a"), str(home / "other" / "a")], load, make)
    with pytest.raises(FileError, match=r"a cannot be written(.|\n)*make room"):
        derivedfiles.load_or_make([str(home / "a")], load, make)


def test_an_error_of_the_disk_while_it_writes_names_the_file(home):
    def make(path):
        Path(path).write_bytes(b"half")
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(
        FileError, match=r"a cannot be written(.|\n)*Input/output error(.|\n)*dmesg"
    ):
        derivedfiles.load_or_make([str(home / "a"), str(home / "b")], load, make)
    assert names(home) == []


def test_what_others_write_now_on_another_machine_stays_and_what_they_left_long_ago_goes(
    home, monkeypatch
):
    place = home / "a"
    home.mkdir()
    monkeypatch.setattr(privatefiles.platform, "node", lambda: "other")
    parts = []

    def make(path):
        parts.append(Path(path))
        Path(path).write_bytes(b"whole")
        Path(f"{path[:-8]}0123abcd").write_bytes(
            b"half"
        )  # as a process on the other machine has it

    derivedfiles.load_or_make([str(place)], load, make)
    part = Path(f"{str(parts[0])[:-8]}0123abcd")
    for unrelated in ("another.part-file", "a.part-file", "a.part-thesis-0123abcd"):
        (home / unrelated).touch()
        os.utime(home / unrelated, (0, 0))
    monkeypatch.undo()

    place.unlink()
    derivedfiles.load_or_make([str(place)], load, write(b"again"))
    fresh = part.exists()
    os.utime(part, (0, 0))
    place.unlink()
    derivedfiles.load_or_make([str(place)], load, write(b"again"))

    assert fresh
    assert names(home) == ["a", "a.part-file", "a.part-thesis-0123abcd", "another.part-file"]


@pytest.mark.parametrize("how", ["no module", "no locks"])
def test_without_locks_the_last_one_stays(home, monkeypatch, how):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    if how == "no module":
        monkeypatch.setattr(derivedfiles, "fcntl", None)
    else:
        monkeypatch.setattr(derivedfiles.fcntl, "flock", refuse)
    meet, results = threading.Barrier(2, timeout=SECONDS), []

    def make(path):
        results.append(path)
        meet.wait()
        Path(path).write_bytes(b"whole")
        meet.wait()

    with ThreadPoolExecutor(2) as pool:
        contents = list(
            pool.map(lambda _: derivedfiles.load_or_make([str(home / "a")], load, make), range(2))
        )

    assert contents == [b"whole"] * 2
    assert len(set(results)) == 2  # neither wrote into what the other one wrote
    assert names(home) == ["a"]


def opened(path):
    files, _ = look_at([str(path)], 0, lambda *_: None)
    return files


def test_the_key_is_another_one_for_another_file_or_another_purpose(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(bytes(derivedfiles.HEAD_BYTES) + b"end")
    os.utime(path, ns=(0, 10**18))
    keys = [
        derivedfiles.key_of(opened(path), 0, "index", 1),
        derivedfiles.key_of(opened(path), 0, "index", 2),
    ]

    os.utime(path, ns=(0, 10**18 + 1))
    keys.append(derivedfiles.key_of(opened(path), 0, "index", 1))
    path.write_bytes(b"\1" + bytes(derivedfiles.HEAD_BYTES - 1) + b"end")
    os.utime(path, ns=(0, 10**18))
    keys.append(derivedfiles.key_of(opened(path), 0, "index", 1))
    path.write_bytes(bytes(derivedfiles.HEAD_BYTES) + b"End!")
    os.utime(path, ns=(0, 10**18))
    keys.append(derivedfiles.key_of(opened(path), 0, "index", 1))
    path.rename(tmp_path / "b")
    keys.append(derivedfiles.key_of(opened(tmp_path / "b"), 0, "index", 1))

    assert len(set(keys)) == len(keys)


def test_the_key_stays_for_a_file_that_stays(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"data")
    os.utime(path, ns=(0, 10**18))
    before = derivedfiles.key_of(opened(path), 0, "index")
    shutil.copy2(path, tmp_path / "copy")
    os.replace(tmp_path / "copy", path)  # another inode, as of a folder that was copied

    assert derivedfiles.key_of(opened(path), 0, "index") == before


def test_a_file_that_changed_after_it_was_opened_has_no_key(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"data")
    files = opened(path)
    path.write_bytes(b"other data")

    with pytest.raises(ChangedFileError, match="a changed after it was opened"):
        derivedfiles.key_of(files, 0)
    path.unlink()
    with pytest.raises(GpuloadError, match="a is missing"):
        derivedfiles.key_of(files, 0)


@pytest.mark.skipif(
    sys.platform in ("win32", "darwin"), reason="the cache folder is elsewhere on this system"
)
@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"GPULOAD_CACHE": "/data/cache"}, "/data/cache"),
        ({"GPULOAD_CACHE": "~/mine"}, "/home/somebody/mine"),
        ({"GPULOAD_CACHE": "", "XDG_CACHE_HOME": "/var/tmp/x"}, "/var/tmp/x/gpuload"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/somebody/.cache/gpuload"),
        ({}, "/home/somebody/.cache/gpuload"),
    ],
)
def test_the_cache_folder_is_where_the_variables_say(monkeypatch, variables, expected):
    for name in ("GPULOAD_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/somebody", **variables}.items():
        monkeypatch.setenv(name, value)

    assert derivedfiles.folder() == expected
    assert derivedfiles.cache_path("a.bin") == f"{expected}/a.bin"


def test_a_cache_folder_as_seen_from_here_stays_there(monkeypatch, tmp_path):
    monkeypatch.setenv("GPULOAD_CACHE", "cache")
    monkeypatch.chdir(tmp_path)

    assert derivedfiles.folder() == str(tmp_path / "cache")


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702, 0o770])
def test_where_others_may_write_a_folder_of_this_user_alone_is_used(monkeypatch, tmp_path, mode):
    (tmp_path / "cache").mkdir()
    if mode == 0o770:
        os.chown(tmp_path / "cache", -1, os.getgid() + 1)
    (tmp_path / "cache").chmod(mode)
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))
    user_folder = tmp_path / "cache" / f"user-{os.geteuid()}"

    assert derivedfiles.folder() == str(user_folder)
    assert (
        derivedfiles.load_or_make([derivedfiles.cache_path("a")], load, write(b"whole")) == b"whole"
    )
    assert user_folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("GPULOAD_CACHE_SHARED", "1")
    assert derivedfiles.folder() == str(tmp_path / "cache")


@pytest.mark.parametrize("kind", ["open", "link", "of another user"])
def test_a_folder_in_it_that_is_not_of_this_user_alone_is_refused(monkeypatch, tmp_path, kind):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    user_folder = tmp_path / "cache" / f"user-{os.geteuid()}"
    if kind == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        user_folder.symlink_to(tmp_path / "elsewhere")
    else:
        user_folder.mkdir()
        user_folder.chmod(0o777 if kind == "open" else 0o700)
    if kind == "of another user":
        if os.geteuid():
            pytest.skip("root alone can give folders away")
        os.chown(user_folder, 65534, 65534)
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))

    with pytest.raises(
        FileError, match=r"user-\d+ is no place for files(.|\n)*GPULOAD_CACHE_SHARED=1"
    ):
        derivedfiles.load_or_make([derivedfiles.cache_path("a")], load, write(b"whole"))


def test_the_group_of_the_user_alone_may_write(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o770)
    status = os.stat(tmp_path / "a")

    assert (privatefiles.distrust(status) == "") == (status.st_gid == status.st_uid)


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o666])
def test_a_lock_that_another_user_left_keeps_nobody_out(tmp_path, folder_of_user, mode):
    shared = folder_of_user / "shared"
    shared.mkdir(mode=0o777)
    shared.chmod(0o777)
    os.seteuid(0)
    (shared / "a.lock").touch()
    (shared / "a.lock").chmod(mode)
    os.seteuid(65534)

    assert derivedfiles.load_or_make([str(shared / "a")], load, write(b"whole")) == b"whole"


def test_a_lock_is_not_made_through_a_link(home, tmp_path):
    home.mkdir()
    (home / "a.lock").symlink_to(tmp_path / "victim")

    with pytest.raises(FileError, match="a cannot be written"):
        derivedfiles.load_or_make([str(home / "a")], load, write(b"whole"))
    assert not (tmp_path / "victim").exists()


def test_what_others_have_in_its_place_is_not_replaced(home, tmp_path):
    home.mkdir()
    (home / "a").write_text("mine")

    with pytest.raises(FileError, match=r"a is there already(.|\n)*nothing of others is replaced"):
        derivedfiles.load_or_make([str(home / "a")], lambda path: None, write(b"index"))
    assert (home / "a").read_text() == "mine"


def test_without_a_home_folder_the_variable_is_asked_for(monkeypatch):
    monkeypatch.delenv("GPULOAD_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(derivedfiles.os.path, "expanduser", lambda path: path)

    with pytest.raises(FileError, match=r"no cache folder(.|\n)*GPULOAD_CACHE"):
        derivedfiles.folder()


def test_tests_keep_nothing_in_the_home_folder(tmp_path_factory):
    assert derivedfiles.folder().startswith(str(tmp_path_factory.getbasetemp()))
