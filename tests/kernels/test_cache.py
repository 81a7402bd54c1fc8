"""What is compiled is kept, and no fault of the files it is kept in stops a kernel."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gpuload import kernels

if not kernels.compiled():
    pytest.skip("no compiled kernels on this system", allow_module_level=True)

import numba
from numba.core import caching

from gpuload.kernels import cache, compile

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(monkeypatch):
    """The folder for compiled kernels, and there are none elsewhere; any user may come to it."""
    with tempfile.TemporaryDirectory() as made:
        os.chmod(made, 0o755)
        monkeypatch.setattr(cache, "HERE", Path(made) / "none")
        monkeypatch.setenv("XDG_CACHE_HOME", f"{made}/users")
        monkeypatch.setenv("NUMBA_CACHE_DIR", made)  # Numba reads it anew now and then
        monkeypatch.setattr(numba.config, "CACHE_DIR", made)
        monkeypatch.setattr(cache, "_told", set())
        yield Path(made)


@pytest.fixture
def lines(caplog):
    """What was written to the log."""
    return lambda: [record.getMessage() for record in caplog.records if record.name == "gpuload"]


def double():
    """The same kernel, as another process would make it."""

    def doubled(x):
        return 2 * x

    return compile.kernel(doubled)


def triple():
    def tripled(x):
        return 3 * x

    return compile.kernel(tripled)


def hits(kernel):
    return sum(kernel.stats.cache_hits.values())


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_was_compiled_is_loaded(folder):
    assert double()(21) == 42

    again = double()

    assert (again(21), hits(again)) == (42, 1)


# --- files that are damaged

DAMAGE = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "text": lambda data: b"this is no cache file\n",
    "another pickle": lambda data: pickle.dumps({"a": 1}),
    "another tuple": lambda data: pickle.dumps((1, 2, 3)),
    "one byte is another": lambda data: b"\xff" + data[1:],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_written_anew(folder, damage):
    double()(21)
    for path in files(folder):
        path.write_bytes(DAMAGE[damage](path.read_bytes()))

    assert double()(21) == 42

    again = double()
    assert (again(21), hits(again)) == (42, 1)


def test_the_first_damaged_file_is_named_in_the_log_and_no_other(folder, lines):
    double()(21), triple()(2)
    for path in files(folder):
        path.write_bytes(b"")

    double()(21), triple()(2)

    (line,) = lines()
    assert any(f"cannot be used: {path};" in line for path in files(folder))
    assert "cause: the file is damaged" in line
    assert "EOFError" in line
    assert "remedy: " in line


def test_the_file_of_another_kernel_is_not_taken(folder):
    double()(21), triple()(2)
    (of_double,) = folder.rglob("*doubled*.nbc")
    (of_triple,) = folder.rglob("*tripled*.nbc")
    shutil.copy(of_triple, of_double)

    assert double()(21) == 42


def test_a_folder_in_the_place_of_a_file_is_passed_over(folder):
    double()(21)
    for path in files(folder):
        path.unlink()
        path.mkdir()

    assert double()(21) == 42


# --- folders that cannot be written


needs_users = pytest.mark.skipif(not hasattr(os, "seteuid"), reason="this system has other rights")


@contextlib.contextmanager
def read_only(folder):
    """Nobody may write there; root, who may write everywhere, is another user meanwhile."""
    places = [folder, *folder.glob("*/")]
    user = os.geteuid()
    for place in places:
        place.chmod(0o555)
    try:
        if user == 0:
            os.seteuid(65534)
        yield
    finally:
        os.seteuid(user)
        for place in places:
            place.chmod(0o755)


@needs_users
def test_a_folder_that_was_filled_is_used_by_those_who_cannot_write_it(folder, lines):
    double()(21)

    with read_only(folder):
        again = double()
        assert (again(21), hits(again)) == (42, 1)

    assert lines() == []


@needs_users
def test_a_folder_that_can_no_longer_be_written_leaves_the_next_one(folder, monkeypatch, lines):
    first, second = folder / "first", folder / "second"
    first.mkdir()
    second.mkdir()
    second.chmod(0o777)
    monkeypatch.setattr(cache, "folders", lambda: (str(first), str(second)))
    made = double()

    with read_only(first):
        assert made(21) == 42

    again = double()
    assert (again(21), hits(again)) == (42, 1)
    assert lines() == []


def test_where_nothing_can_be_written_kernels_are_compiled_in_memory_and_the_log_says_so_once(
    folder, monkeypatch, lines
):
    file = folder / "file"
    file.write_bytes(b"")
    monkeypatch.setattr(cache, "folders", lambda: (str(file / "a"), str(file / "b")))

    assert (double()(21), triple()(2)) == (42, 6)

    (line,) = lines()
    assert line.startswith("compiled kernels cannot be kept")
    assert f"{file / 'a'} (NotADirectoryError" in line
    assert f"{file / 'b'} (NotADirectoryError" in line
    assert "remedy: make room there, or set NUMBA_CACHE_DIR" in line


def test_a_full_disk_stops_no_kernel_and_leaves_no_files(folder, monkeypatch, lines):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cache, "folders", lambda: (str(folder),))
    monkeypatch.setattr(os, "replace", full)

    assert (double()(21), triple()(2)) == (42, 6)

    (line,) = lines()
    assert "No space left on device" in line
    assert str(folder) in line
    assert files(folder) == []


def test_the_folder_that_is_asked_for_comes_first_then_the_modules_own_then_the_users(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/the/users")
    own = str(Path(cache.__file__).parent / "__pycache__")

    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    assert [os.path.dirname(path) for path in cache.folders()[1:]] == ["/the/users/gpuload"]
    assert cache.folders()[0] == own

    monkeypatch.setattr(numba.config, "CACHE_DIR", "/asked/for")
    assert [os.path.dirname(path) for path in cache.folders()] == [
        "/asked/for",
        os.path.dirname(own),
        "/the/users/gpuload",
    ]


def test_without_a_home_there_is_no_folder_of_the_user(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert all(os.path.isabs(path) for path in cache.folders())


# --- processes side by side


def test_two_processes_that_save_two_signatures_at_once_keep_both(folder, monkeypatch):
    write, other = caching.IndexDataCacheFile._open_for_write, []

    def with_another_in_between(self, path):
        if not other:
            other.append(double())
            assert other[0](1.5) == 3.0
        return write(self, path)

    monkeypatch.setattr(caching.IndexDataCacheFile, "_open_for_write", with_another_in_between)
    assert double()(21) == 42

    again = double()
    assert (again(21), again(1.5), hits(again)) == (42, 3.0, 2)


# --- what the machine code is made from

OUTER = """
from gpuload.kernels import inner
from gpuload.kernels.compile import kernel

@kernel
def outer():
    return inner.inner()
"""
INNER = """
from gpuload.kernels.compile import kernel

@kernel
def inner():
    return {number}
"""
USE = """
from gpuload import kernels
from gpuload.kernels.outer import outer
with kernels.patient():
    print(outer(), sum(outer.stats.cache_hits.values()))
"""


class Installation:
    """A copy of the package with two modules of kernels more, one of which calls the other."""

    def __init__(self, folder):
        self.folder, self.time = folder, 1_600_000_000

    def install(self, number, version="0.1.0"):
        target = self.folder / "gpuload"
        shutil.rmtree(target / "kernels", ignore_errors=True)
        shutil.copytree(ROOT / "gpuload", target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        (target / "kernels" / "outer.py").write_text(OUTER)
        (target / "kernels" / "inner.py").write_text(INNER.format(number=number))
        init = target / "__init__.py"
        init.write_text(init.read_text() + f"__version__ = {version!r}\n")
        self.time += 1000
        for path in target.rglob("*.py"):
            os.utime(path, (self.time, self.time))

    def use(self):
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "NUMBA_CACHE_DIR": str(self.folder / "cache")}
        command = [sys.executable, "-c", USE]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, env=environment, timeout=60)
        assert done.returncode == 0, done.stderr
        return tuple(int(word) for word in done.stdout.split())


def test_a_kernel_is_compiled_again_when_another_module_whose_functions_it_calls_changed(tmp_path):
    installation = Installation(tmp_path)
    installation.install(number=1)
    assert installation.use() == (1, 0)

    installation.install(number=2)

    assert installation.use() == (2, 0)


def test_what_is_installed_again_as_it_was_is_not_compiled_again_but_another_version_is(tmp_path):
    installation = Installation(tmp_path)
    installation.install(number=1)
    assert installation.use() == (1, 0)

    installation.install(number=1)
    assert installation.use() == (1, 1)

    installation.install(number=1, version="0.1.1")
    assert installation.use() == (1, 0)


# --- another Numba


@pytest.mark.parametrize(
    "gone",
    [
        "caching.IndexDataCacheFile._save_data",
        "caching.Cache._index_key",
        "caching.AppDirs",
    ],
)
def test_a_numba_that_is_another_inside_keeps_kernels_in_its_own_way(tmp_path, gone):
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import logging; logging.basicConfig()\n"
            "import numba\nfrom numba.core import caching\n"
            f"del {gone}\n"
            "from gpuload.kernels import compile\n"
            "print(compile.KernelCache)\n",
        ],
        capture_output=True, text=True, cwd=ROOT, timeout=60, env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip

    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr
    assert done.stderr.count("kept in Numba's own cache; cause: ") == 1


def without_files(*_):
    raise FileNotFoundError


@pytest.mark.parametrize("ours", [None, without_files], ids=["another Numba", "a frozen program"])
def test_without_a_cache_of_our_own_numbas_is_used(folder, monkeypatch, ours):
    monkeypatch.setattr(compile, "KernelCache", ours)
    assert double()(21) == 42

    again = double()

    assert (again(21), hits(again)) == (42, 1)
