"""NPZ files for tests: written by NumPy and zipfile, or byte by byte with whatever they claim."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np


def save(path: Path, *, deflated: bool = False, **arrays: Any) -> Path:
    """Write arrays as NumPy does."""
    (np.savez_compressed if deflated else np.savez)(path, **arrays)
    return path


def write(
    path: Path,
    arrays: dict[str, Any],
    *,
    method: int = zipfile.ZIP_STORED,
    version: Any = (1, 0),
    suffix: str = ".npy",
) -> Path:
    """Write arrays as they are in memory, each as a version of NPY's header and a way of packing
    say."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}{suffix}", "w") as file:
                np.lib.format.write_array(file, np.asanyarray(array), version=version)
    return path


def npy_header(shape: tuple[int, ...], descr: str = "|u1") -> bytes:
    """Return the header that NumPy writes for such an array."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        out, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return out.getvalue()


def deflate(data: bytes) -> bytes:
    """Return data as a member holds it, packed."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def archive_of(
    data: bytes, num_bytes: int, *, method: int = 8, crc: int = 0, name: bytes = b"x.npy"
) -> bytes:
    """Return an archive of one member, whatever it claims."""
    sizes = (crc, len(data), num_bytes, len(name))
    local = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, method, 0, 0, *sizes, 0) + name + data
    entry = (
        struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, method, 0, 0, *sizes, 0, 0, 0, 0, 0, 0)
        + name
    )
    return local + entry + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(entry), len(local), 0)


def packed_place(path: Path, name: str = "x.npy") -> tuple[int, int]:
    """Return where the packed bytes of a member begin, as zipfile knows it, and how many they
    are."""
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(name)
    with open(path, "rb") as file:
        file.seek(info.header_offset + 26)
        lengths = struct.unpack("<2H", file.read(4))
    return info.header_offset + 30 + sum(lengths), info.compress_size


def flip(path: Path, place: int) -> None:
    """Change one byte of a file."""
    raw = bytearray(path.read_bytes())
    raw[place] ^= 0xFF
    path.write_bytes(raw)


def write_zip64(path: Path, members: list[tuple[bytes, bytes, int, bytes]]) -> None:
    """Write an archive with ZIP64's records: of each member name, beginning, zeros and end. The
    zeros take no room."""
    entries = b""
    with open(path, "wb") as file:
        for name, begin, num_zeros, end in members:
            at, total = file.tell(), len(begin) + num_zeros + len(end)
            extra = struct.pack("<2H2Q", 1, 16, total, total)
            file.write(
                struct.pack(
                    "<4s5H3I2H",
                    b"PK\3\4",
                    45,
                    0,
                    0,
                    0,
                    0,
                    0,
                    2**32 - 1,
                    2**32 - 1,
                    len(name),
                    len(extra),
                )
            )
            file.write(name + extra + begin)
            file.seek(num_zeros, 1)
            file.write(end)
            wide = struct.pack("<2H3Q", 1, 24, total, total, at)
            sizes = (0, 2**32 - 1, 2**32 - 1, len(name), len(wide))
            entries += struct.pack(
                "<4s6H3I5H2I", b"PK\1\2", 45, 45, 0, 0, 0, 0, *sizes, 0, 0, 0, 0, 2**32 - 1
            )
            entries += name + wide
        directory, count = file.tell(), len(members)
        file.write(entries)
        end64 = file.tell()
        file.write(
            struct.pack(
                "<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(entries), directory
            )
        )
        file.write(struct.pack("<4sIQI", b"PK\6\7", 0, end64, 1))
        file.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, 2**32 - 1, 2**32 - 1, 0))
