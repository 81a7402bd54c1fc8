"""CSV tables, sound and damaged: what the module ``csv`` of Python reads, or an error of ours."""

from __future__ import annotations

import csv
import io
import re
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import gpuload as gl
from gpuload.errors import RecordError
from tests.attack.hunt import Report, hunt, outcome
from tests.attack.mutate import mutated

TEXTS = (
    "",
    "a",
    "x y",
    "a,b",
    'say "no"',
    "two\nlines",
    "ü",
    " ",
    "NA",
    "3",
    "-",
    "'",
    "a;b\tc",
    "0x1f",
    "\r\n",
)
COLUMNS = {"number": "i8", "real": "f8", "text": "U30"}


def attack(seconds: float, seed: int) -> Report:
    """Read tables."""
    if find_spec("pyarrow") is None:
        return Report(without="all of it: PyArrow is not installed")
    return hunt(seconds, seed, trial, more_bytes=1 << 28)


def trial(rng: np.random.Generator, folder: Path) -> str:
    """Write a table of one program or another, damage it or not, and read it."""
    if rng.random() < 0.3:
        return _other_program(rng, folder)
    if rng.random() < 0.2:
        return _numbers(rng, folder)
    rows = [
        [
            str(rng.integers(-(2**63), 2**63, dtype=np.int64)),
            repr(float(rng.normal())),
            str(rng.choice(TEXTS)),
        ]
        for _ in range(rng.integers(1, 20))
    ]
    ends = ("\n", "\r\n")[rng.integers(2)]
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator=ends).writerows([list(COLUMNS), *rows])
    data = file.getvalue().encode()
    sound = rng.random() < 0.3
    if not sound:
        data = mutated(data, rng, most=2)
    (folder / "a.csv").write_bytes(data)
    _check_sound_lines(data, folder / "a.csv")
    status, result = outcome(_read, folder / "a.csv")
    if status == "refused":
        assert not sound, f"a sound table is refused: {result}"
        return status
    if sound:
        assert result["number"].tolist() == [int(row[0]) for row in rows]
        assert result["real"].tolist() == [float(row[1]) for row in rows]
        assert result["text"].tolist() == [row[2] for row in rows], (
            f"{result['text']!r}, of {rows!r}"
        )
    elif (reference := _by_python(data)) is not None and len(reference) == len(result["number"]):
        for name, column in zip(
            COLUMNS, zip(*reference, strict=True) if reference else [()] * 3, strict=True
        ):
            actual = result[name].tolist()
            for part, text in zip(actual, column, strict=True):
                assert _is_same(name, part, text), f"{name}: {part!r}, in the file {text!r}"
    return status


def _other_program(rng: np.random.Generator, folder: Path) -> str:
    """Write a sound table by the module ``csv`` with other marks, and compare all that is read."""
    delimiter = str(rng.choice([",", ";", "\t", "|"]))
    decimal = str(rng.choice([mark for mark in ".," if mark != delimiter]))
    thousands = str(rng.choice([mark for mark in ",.' _" if mark != decimal]))
    escape, encoding = (
        bool(rng.random() < 0.5),
        str(rng.choice(["utf-8", "utf-8-sig", "utf-16", "utf-8"])),
    )
    options: dict[str, Any] = {
        "delimiter": delimiter,
        "decimal": decimal,
        "thousands": thousands,
        "encoding": encoding,
    }
    options |= {"escape": "\\"} if escape else {}
    numbers = rng.integers(-(10**9), 10**9, rng.integers(1, 20)).tolist()
    reals = [round(float(rng.normal() * 10 ** rng.integers(0, 8)), 3) for _ in numbers]
    texts = [str(rng.choice([*TEXTS, "1,234", "back\\slash"])) for _ in numbers]
    codes = [f"{rng.integers(0, 999):05d}" for _ in numbers]

    def with_marks(number: float) -> str:
        return f"{number:,}".replace(",", "t").replace(".", decimal).replace("t", thousands)

    rows = [
        [with_marks(number), with_marks(real), text, code]
        for number, real, text, code in zip(numbers, reals, texts, codes, strict=True)
    ]
    ends = ("\n", "\r\n")[rng.integers(2)]
    file = io.StringIO(newline="")
    quoting = csv.QUOTE_ALL if rng.random() < 0.3 else csv.QUOTE_MINIMAL
    forms = {"doublequote": not escape, "escapechar": "\\" if escape else None}
    csv.writer(file, delimiter=delimiter, lineterminator=ends, quoting=quoting, **forms).writerows(
        [["number", "real", "text", "code"], *rows]
    )
    first = f"sep={delimiter}{ends}" if rng.random() < 0.3 else ""
    data = (first + file.getvalue()).encode(encoding)
    if rng.random() < 0.3:
        options["compression"] = "zip"
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.csv", data)
        data = packed.getvalue()
    (folder / "a.csv").write_bytes(data)
    columns = {"number": "i8", "real": "f8", "text": "U40", "code": None}
    with gl.csv(
        folder / "a.csv",
        columns if rng.random() < 0.7 else {**columns, "real": None, "number": None},
        **options,
    ) as source:
        result = source.read(range(len(source)))
    assert result["number"].tolist() == numbers, f"{result['number']!r}, of {numbers}"
    assert result["real"].tolist() == reals, f"{result['real']!r}, of {reals}"
    assert result["text"].tolist() == texts, f"{result['text']!r}, of {texts}"
    assert result["code"].tolist() == codes, f"{result['code']!r}, of {codes}"
    return "read"


def _numbers(rng: np.random.Generator, folder: Path) -> str:
    """Write numbers of all sizes beside missing ones, in one file or two: each is exactly itself,
    or refused."""
    integers = [
        0,
        7,
        *(
            sign * 2**power + more
            for sign in (1, -1)
            for power in (53, 63, 64, 80)
            for more in (-1, 0, 1)
        ),
    ]
    cells = ["", "0.1", "1e3", "1e22", "-0.5", "5e-324", "1.7976931348623157e308"]
    choice = [
        *map(str, rng.choice(np.array(integers, object), 3)),
        *rng.choice(cells, rng.integers(0, 3)),
        "12",
    ]
    files = [
        [str(text) for text in rng.choice(choice, rng.integers(1, 9))]
        for _ in range(rng.integers(1, 3))
    ]
    texts = [text for file in files for text in file]
    paths = [folder / f"{number}.csv" for number in range(len(files))]
    for path, file in zip(paths, files, strict=True):
        path.write_text("x,y\n" + "".join(f"{text},1\n" for text in file))
    whole = [int(text) for text in texts if re.fullmatch("-?[0-9]+", text)]
    limits = (-(2**63), 2**63), (0, 2**64)
    is_integer = len(whole) == len(texts) and any(
        low <= min(whole) and max(whole) < high for low, high in limits
    )
    is_rounded = not is_integer and any(int(float(number)) != number for number in whole)
    status, source = outcome(lambda: gl.csv(paths, bad_lines=("raise", "keep")[rng.integers(2)]))
    assert (status == "refused") == is_rounded, f"{status}: {texts}: {source}"
    if status == "refused":
        assert "does not hold this integer exactly" in str(source), str(source)
        return status
    with source:
        result = source.read(range(len(source)))["x"]
    assert result.dtype.kind in ("iu" if is_integer else "f"), f"{result.dtype}, of {texts}"
    expected = [int(text) if is_integer else float(text or "nan") for text in texts]
    assert np.array_equal(result, np.array(expected, result.dtype), equal_nan=not is_integer), (
        f"{result}, of {texts}"
    )
    return status


def _read(path: Path) -> Any:
    with gl.csv(path, COLUMNS) as source:
        return source.read(range(len(source)))


def _check_sound_lines(data: bytes, path: Path) -> None:
    """Check that each line but those that are wrong is read, where these are kept."""
    status, source = outcome(lambda: gl.csv(path, COLUMNS, bad_lines="keep"))
    reference = _rows_of(data)
    if status == "refused" or reference is None:
        return
    with source:
        assert len(source) == len(reference), f"{len(source)} records, and {len(reference)} lines"
        for number, row in enumerate(reference):
            status, result = outcome(lambda number=number: source[number])
            if status == "refused":
                assert isinstance(result, RecordError)
                assert not _is_sound(row), f"{row} is refused: {result}"
                continue
            assert len(row) == len(COLUMNS), f"{row} is read: {result}"
            for name, text in zip(COLUMNS, row, strict=True):
                assert _is_same(name, result[name].item(), text), (
                    f"{name}: {result[name]!r}, in the file {text!r}"
                )


def _is_sound(row: list[str]) -> bool:
    """Return True for a row that nobody can call wrong."""
    if len(row) != len(COLUMNS) or len(row[2]) > 30 or not re.fullmatch("-?[0-9]{1,18}", row[0]):
        return False
    return re.fullmatch(r"-?[0-9]{1,15}\.[0-9]{1,15}", row[1]) is not None


def _by_python(data: bytes) -> list[list[str]] | None:
    """Return the rows; None where they are no table of three columns."""
    rows = _rows_of(data)
    return None if rows is None or any(len(row) != len(COLUMNS) for row in rows) else rows


def _rows_of(data: bytes) -> list[list[str]] | None:
    """Return the rows behind the header; None where there is another one, or the module refuses
    them."""
    try:
        header, *rows = csv.reader(io.StringIO(data.decode(), newline=""), strict=True)
    except (csv.Error, ValueError):
        return None
    return [row for row in rows if row] if header == list(COLUMNS) else None


def _is_same(name: str, part: Any, text: str) -> bool:
    if name == "text":
        return bool(part == text.rstrip("\0"))
    try:
        value = int(text) if name == "number" else float(text)
    except ValueError:
        return name == "real" and part != part  # missing: what stands for that is not-a-number
    return bool(part == value or (part != part and value != value))
