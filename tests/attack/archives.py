"""Sound tar archives, NPZ archives and NPY files with every option of ``tarfile``, ``zipfile`` and
NumPy.

Each is read as its own library reads it, or refused by the name of what is not supported.
"""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any
from unittest import mock

import numpy as np

import gpuload as gl
from gpuload.sources import fileindex
from tests.attack.hunt import Report, hunt, outcome

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
FOLDERS = (
    "",
    "./",
    "set/",
    "a b/ü/",
    "x" * 60 + "/" + "y" * 60 + "/",
    "z" * 90 + "/" + "w" * 180 + "/",
)
STEMS = ("{n}", "{n:05d}", "img_{n}", "0.{n}", "img_{n}.{n}1", "frame.{n:04d}", "n{n}" + "q" * 120)
FIELDS = ("bin", "txt", "png", "dat", "seg.bin")
COMPANIONS = ("README.md", "LICENSE", "__meta__.json", "._0.bin", ".DS_Store", "__MACOSX/._0.bin")
SPECIAL = (tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE)
DTYPES = ("?", "u1", "<f4", ">f8", "<i8", ">u2", "<f2", "<c8", "S5", "<U3", "<M8[ns]", ">m8[D]")
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)


def attack(seconds: float, seed: int) -> Report:
    """Write and read archives."""
    return hunt(seconds, seed, trial, more_bytes=1 << 28)


def trial(rng: np.random.Generator, folder: Path) -> str:
    """Write a file of one of the kinds, and read it."""
    kind: Callable[[np.random.Generator, Path], str] = (_tar, _tar, _npz, _npy)[rng.integers(4)]
    with mock.patch.dict(os.environ, GPULOAD_CACHE=str(folder / "cache")):
        return kind(rng, folder)


def _chance(rng: np.random.Generator, p: float) -> bool:
    return bool(rng.random() < p)


# --- tar


def _tar(rng: np.random.Generator, folder: Path) -> str:
    is_gzip, form = _chance(rng, 0.2), str(rng.choice(list(FORMATS)))
    path = folder / ("a.tar.gz" if is_gzip else "a.tar")
    parts, has_sparse = _write_tar(rng, path, form)
    fields = list(dict.fromkeys(field for _, field in parts.values()))
    small_bytes = 0 if _chance(rng, 0.5) else fileindex.SMALL_BYTES
    with mock.patch.object(fileindex, "SMALL_BYTES", small_bytes):
        for _ in range(2):
            status, result = outcome(_read_tar, path, fields if _chance(rng, 0.5) else None)
            if has_sparse:
                assert status == "refused", f"a sparse member: {result}"
                assert "is sparse" in result.cause, f"a sparse member: {result}"
                continue
            assert status == "read", f"a sound archive is refused: {result}"
            assert result == _by_tarfile(path, parts), (
                f"{form}: {result}, by tarfile {_by_tarfile(path, parts)}"
            )
    return f"{form} of {'sparse members, refused' if has_sparse else 'records'}"


def _write_tar(
    rng: np.random.Generator, path: Path, form: str
) -> tuple[dict[str, tuple[str, str]], bool]:
    """Write an archive; returns the record and the field of each member that is one, and whether
    one is sparse."""
    stem, place = str(rng.choice(STEMS)), str(rng.choice(FOLDERS[: 4 if form == "ustar" else None]))
    fields = list(
        rng.choice(FIELDS[: None if "." not in stem else 4], rng.integers(1, 4), replace=False)
    )
    names = [
        (f"{place}{stem.format(n=number)}", str(field))
        for number in range(rng.integers(2, 7))
        for field in fields
    ]
    if form == "ustar" and any(len(f"{key}.{field}") > 99 for key, field in names):
        names = [(f"{number}{field}", field) for number, (_, field) in enumerate(names)][
            :: len(fields)
        ]
        names = [(str(number), names[0][1]) for number in range(len(names))]
    if _chance(
        rng, 0.3
    ):  # records that do not lie side by side: sorted by field, as `tar` of a file list has them
        names.sort(key=lambda name: fields.index(name[1]) if name[1] in fields else 0)
    parts, before = dict[str, tuple[str, str]](), list[str]()
    has_sparse = form != "ustar" and _chance(rng, 0.1)
    pax = {"comment": "x"} if form == "pax" and _chance(rng, 0.3) else None
    with tarfile.open(
        path, "w:gz" if path.suffix == ".gz" else "w", format=FORMATS[form], pax_headers=pax
    ) as archive:
        for key, field in names:
            _add_other(rng, archive)
            member = tarfile.TarInfo(f"{key}.{field.upper() if _chance(rng, 0.1) else field}")
            raw = f"{len(parts)}.{field}".encode() * int(
                rng.choice([0, 1, 1, 2, 90], p=[0.05, 0.4, 0.3, 0.2, 0.05])
            )
            parts[member.name] = key, field
            if before and _chance(rng, 0.2):
                target = before[rng.integers(len(before))]
                if _chance(rng, 0.5):
                    member.type, member.linkname = tarfile.LNKTYPE, target
                    member.size = int(
                        rng.choice([0, 3])
                    )  # which some writers state, and is no length of data
                else:
                    depth = len(PurePosixPath(member.name).parts) - 1
                    member.type, member.linkname = (
                        tarfile.SYMTYPE,
                        "../" * depth + target.removeprefix("./"),
                    )
                if len(member.linkname) < 100 or form != "ustar":
                    archive.addfile(member)
                    before.append(member.name)
                    continue
                member.type, member.linkname = tarfile.REGTYPE, ""
            member.size, member.mtime = len(raw), int(rng.integers(0, 2**33))
            member.uid = int(rng.choice([0, 2**21 - 1, 2**40 if form != "ustar" else 5]))
            archive.addfile(member, io.BytesIO(raw))
            before.append(member.name)
        if has_sparse:
            member = tarfile.TarInfo("sparse.bin")
            if form == "gnu":
                member.type = tarfile.GNUTYPE_SPARSE
            else:
                member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
            archive.addfile(member)
    return parts, has_sparse


def _add_other(rng: np.random.Generator, archive: tarfile.TarFile) -> None:
    """Add a member that is no part of a record, or none."""
    if _chance(rng, 0.8):
        return
    if _chance(rng, 0.5):
        member = tarfile.TarInfo(f"other{rng.integers(9)}")
        member.type, member.size = (
            SPECIAL[rng.integers(len(SPECIAL))],
            int(rng.choice([0, 1, 1000])),
        )
        archive.addfile(member)
        return
    member = tarfile.TarInfo(str(rng.choice(COMPANIONS)))
    member.size = 5
    archive.addfile(member, io.BytesIO(b"other"))


def _read_tar(path: Path, fields: list[str] | None) -> list[dict[str, bytes]]:
    with gl.webdataset(path, fields) as source:
        records = [source.read([number]) for number in range(len(source))]
    return [{name: _bytes_of(values[0]) for name, values in record.items()} for record in records]


def _bytes_of(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value.tobytes())


def _by_tarfile(path: Path, parts: dict[str, tuple[str, str]]) -> list[dict[str, bytes]]:
    """Return what ``tarfile`` extracts, record by record, in the order of their first members."""
    records = dict[str, dict[str, bytes]]()
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            if member.name in parts:
                key, field = parts[member.name]
                content = archive.extractfile(member)
                records.setdefault(key, {})[field] = content.read() if content is not None else b""
    return list(records.values())


# --- NPZ, NPY


def _array(rng: np.random.Generator, length: int) -> Any:
    dtype, shape = (
        np.dtype(str(rng.choice(DTYPES))),
        (length, *rng.integers(1, 5, rng.integers(3)).tolist()),
    )
    if dtype.kind == "U":  # bytes at random are no characters
        return np.full(shape, "äb")
    array = np.frombuffer(rng.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)
    return np.asarray(array, order="CF"[rng.integers(2)])  # type: ignore[call-overload]


def _npy_bytes(rng: np.random.Generator, array: Any, behind: str) -> bytes:
    """Return an NPY file of any version, with nothing behind the array, another array, or other
    bytes."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=[(1, 0), (2, 0), (3, 0)][rng.integers(3)])
    if behind == "array":
        np.save(file, np.arange(3))
    return file.getvalue() + (b"other" if behind == "bytes" else b"")


def _npy(rng: np.random.Generator, folder: Path) -> str:
    behind, record = str(rng.choice(["", "", "array", "bytes"])), ("row", "file")[rng.integers(2)]
    array = _array(rng, int(rng.integers(0, 6)))
    (folder / "a.npy").write_bytes(_npy_bytes(rng, array, behind))
    status, result = outcome(lambda: _read_all(gl.npy(folder / "a.npy", record=record)))  # type: ignore[arg-type]
    if behind == "array":
        assert status == "refused", f"an array behind the first: {result}"
        assert "several arrays" in result.what, f"an array behind the first: {result}"
        return "npy of several arrays, refused"
    assert status == "read", f"a sound file is refused: {result}"
    _compare(result["x"], np.load(folder / "a.npy"), record)
    return "npy"


def _npz(rng: np.random.Generator, folder: Path) -> str:
    method, record = (
        METHODS[rng.choice(4, p=[0.4, 0.4, 0.1, 0.1])],
        ("row", "file")[rng.integers(2)],
    )
    behind = str(rng.choice(["", "", "", "array", "bytes"]))
    length, names = int(rng.integers(1, 6)), ["a", "ü b", "set/c"][: rng.integers(1, 4)]
    is_twice = _chance(rng, 0.1)
    with zipfile.ZipFile(folder / "a.npz", "w", method) as archive:
        archive.comment = rng.bytes(int(rng.choice([0, 7])))
        if _chance(rng, 0.2):
            archive.mkdir("set") if hasattr(archive, "mkdir") else archive.writestr("set/", b"")
        for name in names:
            with archive.open(
                f"{name}.npy" if _chance(rng, 0.8) else name, "w", force_zip64=_chance(rng, 0.3)
            ) as file:
                file.write(_npy_bytes(rng, _array(rng, length), behind if name == names[0] else ""))
        if is_twice:
            copy = archive.infolist()[-1]
            with mock.patch("warnings.warn"):
                archive.writestr(copy.filename, _npy_bytes(rng, _array(rng, length), ""))
    status, result = outcome(lambda: _read_all(gl.npz(folder / "a.npz", record=record)))  # type: ignore[arg-type]
    reasons = {
        "are called": is_twice,
        "packed with": method not in METHODS[:2],
        "behind its first array": behind == "array",
    }
    if any(reasons.values()):
        is_named = (
            any(text in result.cause for text, is_so in reasons.items() if is_so)
            if status == "refused"
            else False
        )
        assert is_named, f"{reasons}: {result}"
        return "npz of another kind, refused"
    assert status == "read", f"a sound archive is refused: {result}"
    with np.load(folder / "a.npz") as expected:
        for name in names:
            _compare(result[name], expected[name], record)
    return "npz"


def _read_all(source: gl.Source) -> dict[str, Any]:
    with source:
        return source.read(range(len(source)))


def _compare(values: Any, array: Any, record: str) -> None:
    rows = [array] if record == "file" else list(array)
    assert len(values) == len(rows), f"{len(values)} records, by NumPy {len(rows)}"
    for value, row in zip(values, rows, strict=True):
        is_same = (
            np.array_equal(value, row, equal_nan=True)
            if array.dtype.kind in "fcmM"
            else np.array_equal(value, row)
        )
        assert is_same, f"{value!r}, by NumPy {row!r}"
