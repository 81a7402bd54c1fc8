"""NPY files for tests, written by NumPy, and the fields that NumPy finds in an array."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np


def write(
    path: Path, array: Any, *, version: tuple[int, int] = (1, 0), swapped: bool = False
) -> Path:
    """Write an array as it is in memory (C or Fortran order), in the other byte order if asked.

    Field names that only version 3 can write make it version 3.
    """
    if not str(np.lib.format.dtype_to_descr(np.asanyarray(array).dtype)).isascii():
        version = (3, 0)
    array = np.asanyarray(array)
    if swapped:
        array = array.astype(array.dtype.newbyteorder("S"))
    with open(path, "wb") as file:
        np.lib.format.write_array(file, array, version=version)
    return path


def write_header(
    path: Path, header: str | bytes, data: bytes = b"", *, version: tuple[int, int] = (1, 0)
) -> Path:
    """Write a header of any text, then data."""
    text = (
        header
        if isinstance(header, bytes)
        else header.encode("latin1" if version[0] < 3 else "utf-8")
    )
    length = struct.pack("<H" if version[0] == 1 else "<I", len(text))
    path.write_bytes(b"\x93NUMPY" + bytes(version) + length + text + data)
    return path


def fields_of(array: Any, name: str = "x") -> dict[str, Any]:
    """Return the fields of an array by NumPy's own access, native: nested ones as
    ``outer.inner``."""
    if array.dtype.names is None:
        return {name: array.astype(array.dtype.newbyteorder("="))}
    fields = {}
    for inner in array.dtype.names:
        fields.update(fields_of(array[inner], inner if name == "x" else f"{name}.{inner}"))
    return fields
