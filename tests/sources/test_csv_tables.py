"""Tables of CSV files: made once, whole or not at all, believed only as long as they are those of
the file."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import ChangedFileError, FileError, RecordError
from gpuload.formats.csv import keep, rows, table
from gpuload.storage import keptfile
from gpuload.testing.sources import assert_same

pytest.importorskip("pyarrow", reason="gl.csv needs PyArrow")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Keep all files in tables, in a folder of the test, and cut them into short blocks."""
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(keep, "SMALL_BYTES", -1)
    monkeypatch.setattr(rows, "BLOCK_BYTES", 200)
    return tmp_path / "cache"


@pytest.fixture
def conversions(monkeypatch):
    """Return the names of the files that are read from now on."""
    values, convert = [], rows.convert

    def counted(job, number, *extra):
        values.append(job.files.names[number])
        return convert(job, number, *extra)

    monkeypatch.setattr(keep, "convert", counted)
    return values


def written(folder, count, name="a.csv", first=0):
    path = folder / name
    path.write_text(
        "x,y\n" + "".join(f"{number},n{number}\n" for number in range(first, first + count))
    )
    return path


def names_in(folder):
    return sorted(entry.name for entry in os.scandir(folder)) if folder.exists() else []


def test_small_files_leave_nothing_in_the_cache_folder(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(keep, "SMALL_BYTES", 1 << 24)

    assert len(gl.csv(written(tmp_path, 500))) == 500

    assert not cache.exists()


def test_small_files_of_many_rows_are_kept_in_a_table(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(keep, "SMALL_BYTES", 1 << 24)
    monkeypatch.setattr(keep, "MOST_ROWS_BYTES", 1000)

    assert len(gl.csv(written(tmp_path, 500))) == 500

    assert any(name.endswith(".rows") for name in names_in(cache))


def test_memory_and_tables_give_the_same_source(tmp_path, monkeypatch):
    path = written(tmp_path, 500)
    with gl.csv(path) as in_table:
        monkeypatch.setattr(keep, "SMALL_BYTES", 1 << 24)
        with gl.csv(path) as in_memory:
            assert in_memory.fingerprint() == in_table.fingerprint()
            assert in_memory.spec == in_table.spec
            assert in_memory.describe() != in_table.describe()
            for name, values in in_memory.read(range(500)).items():
                assert_same(values, in_table.read(range(500))[name])


def test_a_file_is_read_once(tmp_path, conversions):
    path = written(tmp_path, 500)
    first = gl.csv(path).read([499, 0])
    assert conversions == ["a.csv"]

    again = gl.csv(path).read([499, 0])

    assert conversions == ["a.csv"]
    assert again["y"].tolist() == first["y"].tolist() == ["n499", "n0"]


@pytest.mark.parametrize(
    "options",
    [
        {"columns": ["x"]},
        {"columns": {"x": "f4", "y": str}},
        {"na_values": ["n3"]},
        {"header": ["x", "y"]},
    ],
)
def test_other_arguments_are_another_table(tmp_path, conversions, options):
    path = written(tmp_path, 50)
    gl.csv(path)

    gl.csv(path, **options)

    assert conversions == ["a.csv", "a.csv"]


def test_of_several_files_only_the_new_and_the_changed_are_read(tmp_path, conversions):
    for number in range(3):
        written(tmp_path, 50, f"{number}.csv", 100 * number)
    columns = {"x": "i8", "y": "U6"}
    gl.csv(f"{tmp_path}/*.csv", columns)
    conversions.clear()
    written(tmp_path, 60, "1.csv", 700)
    written(tmp_path, 10, "3.csv", 900)

    source = gl.csv(f"{tmp_path}/*.csv", columns)

    assert conversions == ["1.csv", "3.csv"]
    assert_same(source.read(range(len(source)))["x"], np.r_[0:50, 700:760, 200:250, 900:910])
    assert source.where(115) == "2.csv, line 7"


def test_a_file_that_changed_is_converted_anew(tmp_path):
    before = gl.csv(written(tmp_path, 50)).fingerprint()
    source = gl.csv(written(tmp_path, 50, first=1))

    assert source.fingerprint() != before
    assert_same(source.read([0])["x"], np.array([1]))


def damaged(kind, path):
    content = bytearray(path.read_bytes())
    if kind == "cut short":
        del content[-1:]
    elif kind == "cut in the rows":
        del content[:16]
    elif kind == "empty":
        content.clear()
    else:
        file = keptfile.END.size
        content[
            {
                "first row": 3,
                "end": -9,
                "what it is": -file - 20,
                "places": -file - 200,
                "all rows": 250,
            }[kind]
        ] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "kind",
    [
        "cut short",
        "cut in the rows",
        "empty",
        "first row",
        "all rows",
        "end",
        "what it is",
        "places",
    ],
)
def test_a_damaged_table_is_made_anew(tmp_path, cache, conversions, kind):
    path = written(tmp_path, 500)
    gl.csv(path).close()
    [name] = [name for name in names_in(cache) if name.endswith(".rows")]
    damaged(kind, cache / name)

    source = gl.csv(path)

    assert conversions == ["a.csv", "a.csv"]
    assert_same(source.read(range(500))["x"], np.arange(500))
    assert source.where(499) == "a.csv, line 501"


@pytest.mark.parametrize(
    "content",
    [
        *(
            b"",
            b"{}",
            b"[[1]]",
            b'[["<i8", 0, 1]]',
            b'[["<i8", 0, 1], ["nonsense", 0, 1]]',
            b"\xff",
            b"[" * 100_000,
        ),
        *(b'[["<i8",1e999,1,false],["<i8",0,1,false]]', b'[["<f8",0,1,false],["<U4",0,1,false]]'),
    ],
)
def test_a_damaged_form_is_made_anew(tmp_path, cache, content):
    path = written(tmp_path, 50)
    gl.csv(path).close()
    [name] = [name for name in names_in(cache) if name.endswith(".json")]
    (cache / name).write_bytes(content)

    assert_same(gl.csv(path).read([7])["x"], np.array([7]))


def test_a_table_that_changes_while_it_is_read_is_found(tmp_path, cache, reader):
    source = gl.csv(written(tmp_path, 500))
    source.read([0])
    [name] = [name for name in names_in(cache) if name.endswith(".rows")]
    os.utime(cache / name, ns=(1, 1))

    with pytest.raises(ChangedFileError, match=r"a\.csv\.rows changed"):
        source.read([1])


def test_a_file_that_changes_while_it_is_converted_is_refused(tmp_path, cache, monkeypatch):
    path = written(tmp_path, 500)
    write = table.TableWriter.rows

    def changing(self, part):
        with open(path, "a") as file:
            file.write("1,x\n")
        write(self, part)

    monkeypatch.setattr(table.TableWriter, "rows", changing)

    with pytest.raises(ChangedFileError, match=r"a\.csv changed"):
        gl.csv(path)
    assert names_in(cache) == []


def test_where_names_the_record_once_the_file_is_gone(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('x\n1\n"2"\n\n3\n')
    source = gl.csv(path)
    assert source.where(2) == "a.csv, line 5"
    path.unlink()

    assert source.where(2) == "a.csv, record 2"
    assert source.read([2])["x"].tolist() == [3]


@pytest.mark.parametrize("begin", ["", "\ufeff"])
def test_where_finds_a_line_without_reading_the_file_from_its_beginning(tmp_path, begin):
    path = tmp_path / "a.csv"
    path.write_text(
        begin + "x,y\n" + "".join(f'{number},"a\n\nb"\n' for number in range(300)), encoding="utf-8"
    )

    source = gl.csv(path)

    assert [source.where(number) for number in (0, 1, 150, 299)] == [
        f"a.csv, line {2 + 3 * number}" for number in (0, 1, 150, 299)
    ]


def test_a_wrong_line_leaves_nothing_behind(tmp_path, cache):
    path = written(tmp_path, 500)
    with open(path, "a") as file:
        file.write("1,2,3\n")

    for _ in range(2):
        with pytest.raises(RecordError, match=r"a\.csv, line 502 has 3 columns, not 2"):
            gl.csv(path)

    assert names_in(cache) == []


def test_a_full_disk_is_an_error_that_says_what_to_do(tmp_path, cache, monkeypatch):
    def full(self, part):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(table.TableWriter, "rows", full)

    with pytest.raises(FileError, match=r"cannot be written(.|\n)*GPULOAD_CACHE"):
        gl.csv(written(tmp_path, 500))
    assert names_in(cache) == []


KILLED = """
import sys, time
import gpuload as gl
from gpuload.formats.csv import keep, rows, table
from gpuload.storage import keptfile
keep.SMALL_BYTES, rows.BLOCK_BYTES = -1, 200
write = table.TableWriter.rows
def slow(self, some):
    write(self, some)
    self._file._file.flush()
    sys.stdout.write("writing\\n")
    sys.stdout.flush()
    time.sleep(60)
table.TableWriter.rows = slow
gl.csv(sys.argv[1], {"x": "i8", "y": bytes})
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_a_conversion_that_is_killed_leaves_nothing_that_is_believed(tmp_path, cache):
    path = written(tmp_path, 500)
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, path], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "writing\n"
        child.send_signal(signal.SIGKILL)
        child.wait(60)
    left = names_in(cache)
    assert left
    assert not any(name.endswith(".rows") for name in left)

    source = gl.csv(path, {"x": "i8", "y": bytes})

    assert_same(source.read(range(500))["x"], np.arange(500))
    assert bytes(source[499]["y"]) == b"n499"
    assert len(names_in(cache)) == 1


LARGE = """
import resource, sys
import gpuload as gl
import pyarrow.csv
gl.csv(sys.argv[2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
gl.csv(sys.argv[1])
sys.stdout.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel counts memory in KiB")
def test_a_file_is_converted_in_bounded_memory(tmp_path):
    line = "0.123456,1,some text,2024-01-31\n"
    small, large = tmp_path / "small.csv", tmp_path / "large.csv"
    small.write_text("a,b,c,d\n" + line * (1 << 16))
    large.write_text("a,b,c,d\n" + line * (1 << 21))  # 65 MB

    grown = subprocess.run(
        [sys.executable, "-c", LARGE, large, small],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )

    assert int(grown.stdout) < 32 << 10  # KiB; a few blocks and their rows
