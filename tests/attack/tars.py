"""Tar archives of GNU, PAX and ustar, sound and damaged: the members that ``tarfile`` finds, or an
error of ours."""

from __future__ import annotations

import io
import os
import posixpath
import tarfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import gpuload as gl
from gpuload.errors import GpuloadError
from gpuload.sources import fileindex
from tests.attack.hunt import Report, hunt, outcome
from tests.attack.mutate import mutated

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
STEMS = (
    "{n}",
    "./{n}",
    "set/{n:03d}",
    "ü{n}",
    "a b/{n}",
    "x" * 90 + "/{n}",
    "q" * 100 + "/" + "w" * 50 + "{n}",
)
LONG_STEMS = (
    "y" * 120 + "{n}",
    "p/" * 80 + "{n}",
    "/root/" + "z" * 200 + "/{n}",
)  # which ustar does not hold
FIELDS = ("bin", "png", "cls")  # read as they are, but for the whole numbers
KINDS = (
    tarfile.DIRTYPE,
    tarfile.SYMTYPE,
    tarfile.FIFOTYPE,
    tarfile.AREGTYPE,
)  # the last one of a folder in old tars
BLOCK_BYTES = 512


def attack(seconds: float, seed: int) -> Report:
    """Read archives."""
    return hunt(seconds, seed, trial, more_bytes=1 << 27)


def trial(rng: np.random.Generator, folder: Path) -> str:
    """Write an archive, damage it or not, and read it twice: the second time by its index, if it
    has one."""
    path, is_sound = folder / "a.tar", rng.random() < 0.2
    data = _archive(rng)
    if not is_sound:
        data = _damaged(rng, data)
    path.write_bytes(data)
    small_bytes = 0 if rng.random() < 0.5 else fileindex.SMALL_BYTES
    fields = list(FIELDS) if rng.random() < 0.5 else None
    with (
        mock.patch.object(fileindex, "SMALL_BYTES", small_bytes),
        mock.patch.dict(os.environ, GPULOAD_CACHE=str(folder)),
    ):
        status, result = outcome(_read, path, fields)
        assert _is_same((status, result), outcome(_read, path, fields)), (
            "the second reading differs"
        )
    expected = _by_tarfile(data)
    if status == "refused":
        assert not is_sound, f"a sound archive is refused: {result}"
        return status
    if expected is None:
        return "read, not by tarfile"
    assert len(result) == len(expected), f"{len(result)} records, by tarfile {len(expected)}"
    for record, members in zip(result, expected, strict=True):
        for name, value in record.items():
            if isinstance(value, GpuloadError):
                is_sound = name != "cls" or _is_number(members[name])
                assert not is_sound, f"{members[name]!r} is refused: {value}"
            elif name == "cls":
                assert int(value) == int(members[name]), f"{value}, of {members[name]!r}"
            else:
                assert value.tobytes() == members[name], (
                    f"{name}: {value.tobytes()!r}, of {members[name]!r}"
                )
    return status


def _read(path: Path, fields: Any) -> list[dict[str, Any]]:
    """Return the fields of each record; an error in the place of one that cannot be read."""
    with gl.webdataset(path, fields) as source:
        return [
            {name: outcome(lambda n=number, name=name: source.read([n], fields=name)[name][0])[1] for name in FIELDS
             if name in source.spec.names}
            for number in range(len(source))
        ]  # fmt: skip


def _is_same(first: tuple[str, Any], second: tuple[str, Any]) -> bool:
    return first[0] == second[0] and repr(first[1]) == repr(second[1])


def _is_number(raw: bytes) -> bool:
    return raw.strip().lstrip(b"+-").isdigit() and len(raw.strip()) < 18


def _archive(rng: np.random.Generator) -> bytes:
    """Return an archive whose records have all fields, with members between them that are none."""
    file, form = io.BytesIO(), FORMATS[rng.integers(len(FORMATS))]
    stem = str(rng.choice(STEMS if form == tarfile.USTAR_FORMAT else STEMS + LONG_STEMS))
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for number in range(rng.integers(1, 8)):
            if rng.random() < 0.2:
                other = tarfile.TarInfo(f"other{number}/")
                other.type = KINDS[rng.integers(len(KINDS))]
                archive.addfile(other)
            has_links = (
                number > 0 and len(stem) < 90 and rng.random() < 0.2
            )  # ustar has 100 bytes for their names
            link = (tarfile.LNKTYPE, tarfile.SYMTYPE)[rng.integers(2)] if has_links else b""
            for field in FIELDS:
                if link:  # to the member of record 0, which lies in the same folder
                    member, target = (
                        tarfile.TarInfo(f"{stem.format(n=number)}.{field}"),
                        f"{stem.format(n=0)}.{field}",
                    )
                    member.type = link
                    member.linkname = (
                        target if link == tarfile.LNKTYPE else posixpath.basename(target)
                    )
                    archive.addfile(member)
                    continue
                raw = (
                    b"%d" % rng.integers(1000)
                    if field == "cls"
                    else rng.bytes(int(rng.integers(0, 1200)))
                )
                member = tarfile.TarInfo(f"{stem.format(n=number)}.{field}")
                member.size = len(raw)
                archive.addfile(member, io.BytesIO(raw))
    return file.getvalue()


def _damaged(rng: np.random.Generator, data: bytes) -> bytes:
    """Return the archive with a changed header, whose checksum may be right again, or changed
    anywhere."""
    if rng.random() < 0.3:
        return mutated(data, rng, most=2)
    changed = bytearray(data)
    begin = int(rng.integers(len(data) // BLOCK_BYTES)) * BLOCK_BYTES
    header = bytearray(
        mutated(data[begin : begin + BLOCK_BYTES], rng, most=2).ljust(BLOCK_BYTES, b"\0")[
            :BLOCK_BYTES
        ]
    )
    if rng.random() < 0.7:
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
    changed[begin : begin + BLOCK_BYTES] = header
    return bytes(changed)


def _by_tarfile(data: bytes) -> list[dict[str, bytes]] | None:
    """Return the members of each record, links followed.

    None where ``tarfile`` refuses the archive or takes less than all of it, and where a changed
    header made names of which the records are a question of their own: one that is there twice, and
    one with other dots.
    """
    records = dict[str, dict[str, bytes]]()
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                magic = data[member.offset_data - 255 : member.offset_data - 249]
                if magic not in (
                    b"ustar\0",
                    b"ustar ",
                ):  # tarfile reads the prefix of a header of before ustar, too
                    return None
                folder, slash, base = member.name.removeprefix("./").rpartition("/")
                stem, _, extension = base.partition(".")
                is_file = (
                    member.isreg()
                    or member.issym()
                    or member.islnk()
                    or member.type not in tarfile.SUPPORTED_TYPES
                )
                if not is_file or not base or base.startswith(".") or member.type in (b"D", b"V"):
                    continue
                try:
                    content = archive.extractfile(member)
                except KeyError:  # a link that leads nowhere
                    continue
                fields = records.setdefault(f"{folder}{slash}{stem}", {})
                if (
                    extension.lower() not in FIELDS
                    or extension.lower() in fields
                    or content is None
                ):
                    return None
                fields[extension.lower()] = content.read()
            return list(records.values()) if not data[archive.offset :].strip(b"\0") else None
    except Exception:  # tarfile raises many kinds
        return None
