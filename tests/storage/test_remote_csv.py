"""CSV files in object stores, opened by a manifest: no byte is read before it is wanted, and
records are the same."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

import gpuload as gl
from gpuload.errors import ChangedFileError, FormatError, GpuloadError
from gpuload.formats.csv import keep, lines
from gpuload.sources.reading import record_origin
from gpuload.storage import manifest
from tests.objectserver import ObjectServer
from tests.sources.test_index import rewrite

pytest.importorskip("obstore")
pytest.importorskip("pyarrow")
pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("clean_stores")]
COUNTS = (40, 0, 25)


def text_of(first: int, count: int) -> bytes:
    """Return lines with quotes, line ends in values, missing values, and texts that grow."""
    body = "".join(
        f'{i},{i / 4 if i % 5 else ""},"a ""name"", {i}",{"é" * (i % 7)},{"x" * (6 * i)}\r\n'
        if i % 3
        else f'{i},{i / 4},"two\nlines",b,y\r\n'
        for i in range(first, first + count)
    )
    return f"number,part,name,short,long\r\n{body}".encode()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a block be some lines."""
    monkeypatch.setattr(lines.blocks, "__defaults__", (600, (0, 1)))
    monkeypatch.setattr("gpuload.formats.csv.rows.BLOCK_BYTES", 600)


@pytest.fixture
def urls(server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three files on the server, the second one without records, and the cache folder."""
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "kept"))
    firsts = itertools.accumulate(COUNTS, initial=0)
    for name, first, count in zip("abc", firsts, COUNTS, strict=False):
        server.objects[f"/data/{name}.csv"] = text_of(first, count)
    return [f"{server.url}/data/{name}.csv" for name in "abc"]


def assert_same(source: gl.Source, expected: gl.Source) -> None:
    assert (source.spec, len(source)) == (expected.spec, len(expected))
    numbers = np.random.default_rng(0).permutation(len(expected))
    for name in expected.spec.names:
        for value, right in zip(
            source.read(numbers)[name], expected.read(numbers)[name], strict=True
        ):
            np.testing.assert_array_equal(value, right)
    for number in (0, 4, len(source) - 1):
        assert source.where(number) == expected.where(number)


ARGUMENTS = {
    "all columns": {},
    "some columns, of given types": {
        "columns": {"n": ("f4", ["number", "part"]), "long": "S400", "name": None}
    },
    "texts of any length": {"columns": {"long": "O", "number": "i8", "name": "S"}},
    "defaults": {"columns": ["part", "short"], "defaults": {"part": -1.0, "short": "none"}},
}


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_a_manifest_opens_the_same_records_without_a_request(
    server: ObjectServer, urls: list[str], tmp_path: Path, arguments: dict[str, object]
) -> None:
    source = gl.csv(urls, **arguments)
    path = source.index(tmp_path / "x.manifest")
    server.requests.clear()
    again = gl.csv(path, **arguments)
    opened = gl.open(path)
    assert again.fingerprint() == opened.fingerprint() == source.fingerprint()
    assert server.requests == []
    assert "ranges of text" in again.describe()
    for other in (again, opened, pickle.loads(pickle.dumps(again))):
        assert_same(other, source)
    assert again._digest() == source.fingerprint()
    assert Path(again.index(tmp_path / "y.manifest")).read_bytes() == Path(path).read_bytes()


def test_a_record_is_a_request_of_the_lines_around_it(
    server: ObjectServer, urls: list[str], tmp_path: Path
) -> None:
    path = gl.csv(urls).index(tmp_path / "x.manifest")
    source = gl.csv(path)
    server.requests.clear()
    assert source.read([3])["number"].tolist() == [3]
    assert source.read([3, 4])["name"].tolist() == ["two\nlines", 'a "name", 4']
    [(_, name, text)] = server.requests
    begin, end = map(int, text.removeprefix("bytes=").split("-"))
    assert name == "/data/a.csv"
    assert end - begin < 2000 < len(server.objects["/data/a.csv"])
    assert record_origin(source, 3) == (urls[0], begin)


def test_some_of_the_columns_are_enough(
    server: ObjectServer, urls: list[str], tmp_path: Path
) -> None:
    path = gl.csv(urls).index(tmp_path / "x.manifest")
    server.requests.clear()
    source = gl.csv(path, columns=["long", "number"])
    assert server.requests == []
    assert_same(source, gl.csv(urls, columns=["long", "number"]))


@pytest.mark.parametrize(
    "arguments", [{"columns": {"number": "f4"}}, {"na_values": ["y"]}, {"header": False}]
)
def test_other_arguments_than_those_that_were_indexed_read_the_files(
    server: ObjectServer, urls: list[str], tmp_path: Path, arguments: dict[str, object]
) -> None:
    path = gl.csv(urls).index(tmp_path / "x.manifest")
    server.requests.clear()
    source = gl.csv(path, **arguments)
    assert server.requests != []
    assert_same(source, gl.csv(urls, **arguments))


@pytest.mark.parametrize("kind", ["gzip", "utf-16", "wrong lines"])
def test_what_has_no_places_is_read_when_it_is_opened(
    server: ObjectServer, urls: list[str], tmp_path: Path, kind: str
) -> None:
    content, options = server.objects["/data/a.csv"], {}
    if kind == "gzip":
        server.objects["/data/a.csv"] = gzip.compress(content)
    elif kind == "utf-16":
        server.objects["/data/a.csv"], options = (
            content.decode().encode("utf-16"),
            {"encoding": "utf-16"},
        )
    else:
        server.objects["/data/a.csv"], options = content + b"1,2\r\n", {"bad_lines": "keep"}
    source = gl.csv(urls[0], **options)
    path = source.index(tmp_path / "x.manifest")
    again = gl.csv(path, **options)
    assert manifest.load(path).about == {}
    np.testing.assert_array_equal(again.read(range(40))["long"], source.read(range(40))["long"])


@pytest.mark.parametrize("change", ["replaced", "longer", "gone"])
def test_a_file_that_differs_is_refused_when_it_is_first_touched(
    server: ObjectServer, urls: list[str], tmp_path: Path, change: str
) -> None:
    path = gl.csv(urls).index(tmp_path / "x.manifest")
    content = server.objects.pop("/data/c.csv")
    if change != "gone":
        server.objects["/data/c.csv"] = (
            content.replace(b"7", b"8") if change == "replaced" else content + b"9,,,,\r\n"
        )
    source = gl.csv(path)
    assert source.read([5])["number"].tolist() == [5]
    with pytest.raises(ChangedFileError, match=r"c\.csv changed"):
        source.read([50])


def test_local_files_are_read_by_tables_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keep, "SMALL_BYTES", 10)
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "kept"))
    (tmp_path / "a.csv").write_bytes(text_of(0, 20))
    source = gl.csv(tmp_path / "a.csv")
    again = gl.csv(source.index(tmp_path / "x.manifest"))
    assert "ranges of text" not in again.describe()
    assert_same(again, source)


def put(array: str, place: object, value: int) -> object:
    return lambda arrays, about: arrays[array].__setitem__(place, value)


LIES = {
    "fewer blocks": put("blocks", 0, 1),
    "records less than none": put("counts", 0, -1),
    "records without end": put("counts", 0, 1 << 61),
    "a block before the file": put("places", (0, 2), -1),
    "a block behind the file": put("places", (-1, 2), 1 << 40),
    "blocks in no order": put("places", (1, 2), 0),
    "records in no order": put("places", (1, 0), 1 << 30),
    "a first record that is not the first": put("places", (0, 0), 1),
    "places that wrap around": put("places", (slice(1, 3), 0), [(1 << 63) - 1, -(1 << 63)]),
    "a line before the first": put("places", (0, 1), 0),
    "a kind for one column alone": lambda arrays, about: about["about"]["form"].pop(),
    "kinds that are none": lambda arrays, about: about["about"].update(form=[["<i8"]] * 5),
    "a kind of objects": lambda arrays, about: about["about"]["form"][0].__setitem__(0, "|O"),
    "a text without end": lambda arrays, about: about["about"]["form"][4].__setitem__(1, 1 << 60),
    "characters of three bytes": lambda arrays, about: about["about"]["form"][4].__setitem__(2, 3),
    "names that are none": lambda arrays, about: about["about"].update(names=[1, 2, 3, 4, 5]),
    "no columns": lambda arrays, about: about["about"].pop("columns"),
    "a longest text that is none": lambda arrays, about: about["about"]["longest"].__setitem__(
        0, -1
    ),
}


def test_a_manifest_that_contradicts_itself_is_refused(urls: list[str], tmp_path: Path) -> None:
    path, errors = gl.csv(urls).index(tmp_path / "x.manifest"), dict[str, str]()
    for name, lie in LIES.items():
        copy = shutil.copy(path, tmp_path / "copy.manifest")
        rewrite(str(copy), lie)
        with contextlib.suppress(FormatError):
            gl.csv(copy)
            errors[name] = "is accepted"
    assert errors == {}
    assert len(gl.csv(path)) == sum(COUNTS)


LIES_ABOUT_LINES = [
    put("places", (1, 0), 1),
    put("places", (1, 2), 90),
    lambda arrays, about: about["about"]["form"].__setitem__(2, ["<i8", 0, 1, False]),
    lambda arrays, about: about["about"]["form"].__setitem__(4, ["text", 3, 1, False]),
]


def test_lines_that_are_not_as_the_manifest_says_are_an_error(
    urls: list[str], tmp_path: Path
) -> None:
    path = gl.csv(urls).index(tmp_path / "x.manifest")
    for lie in LIES_ABOUT_LINES:
        copy = shutil.copy(path, tmp_path / "copy.manifest")
        rewrite(str(copy), lie)
        with pytest.raises(GpuloadError, match=r"a\.csv, line"):
            gl.csv(copy).read(range(sum(COUNTS)))


def test_large_files_without_a_manifest_are_told_of_once(
    urls: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(keep, "SMALL_BYTES", 0)
    gl.csv(urls).index(tmp_path / "x.manifest")
    gl.csv(urls)
    [line] = [
        record.getMessage()
        for record in caplog.records
        if "read to find the lines" in record.getMessage()
    ]
    assert line.startswith(f"{urls[0]} and 2 more: all of the 0 MB")

    caplog.clear()
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path / "other"))
    gl.csv(tmp_path / "x.manifest")
    assert not caplog.records
