"""Described records: a file of fixed-length records, and beside it a JSON that describes its bytes.

    train-00000.bin         the records, one after the other
    train-00000.bin.json    {"format": "gpuload fixed-length records", "version": 1, "file":
                             "train-00000.bin", "num_records": 50000, "record_bytes": 3073,
                             "header_bytes": 0, "footer_bytes": 0, "fields": [{"name": "label",
                             "dtype": "|u1", "shape": [], "offset_bytes": 0},
                                        {"name": "image", "dtype": "|u1", "shape": [3, 32, 32],
                                         "offset_bytes": 1, "axes": "CHW"}]}

``dtype`` is NumPy's text of a dtype, with its byte order: ``<`` little-endian, ``>`` big-endian,
``|`` of one byte. Other programs may write such a file, too. Nothing in it is believed before it
was compared with the records.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.errors import FormatError
from gpuload.spec import Field, Spec, is_whole
from gpuload.storage.handles import read_bytes

SUFFIX = ".json"
FORMAT, VERSION = "gpuload fixed-length records", 1
LARGEST_BYTES = 1 << 20  # of a description; a field takes about 80
DTYPE = re.compile(r"[<>|](?:[?bBiufcSUV]\d{1,9}|[mM]8(?:\[\d{0,9}[a-zA-Z]{1,2}\])?)")
REMEDY = "write it as gpuload convert does, or open the records with gl.fixed(path, dtype)"


@dataclass(frozen=True)
class Description:
    """The description of a file of records, as a JSON has it.

    Attributes:
        dtype: structured, a field of a record each.
        header_bytes, footer_bytes: the number of bytes before and behind the records.
        num_records: the number of records.
        axes: (field, axes) of each field with known axes.
    """

    dtype: np.dtype[Any]
    header_bytes: int
    footer_bytes: int
    num_records: int
    axes: tuple[tuple[str, str], ...]


def format_description(name: str, spec: Spec, dtype: np.dtype[Any], num_records: int) -> bytes:
    """Return the description of a file of records without header and footer.

    Args:
        name: of the file, without its folder.
        spec: the fields.
        dtype: structured, as they are stored.
        num_records: how many there are.
    """
    fields = [_entry_of(field, dtype) for field in spec]
    about = {
        "format": FORMAT,
        "version": VERSION,
        "file": name,
        "num_records": num_records,
        "record_bytes": dtype.itemsize,
        "header_bytes": 0,
        "footer_bytes": 0,
        "fields": fields,
    }
    return (json.dumps(about, indent=1) + "\n").encode("ascii")


def _entry_of(field: Field, dtype: np.dtype[Any]) -> dict[str, Any]:
    inner, offset = dtype.fields[field.name][:2]  # type: ignore[index]
    entry = {
        "name": field.name,
        "dtype": inner.base.str,
        "shape": list(inner.shape),
        "offset_bytes": offset,
    }
    if field.axes:
        return {**entry, "axes": field.axes}
    return entry


def is_description(head: bytes) -> bool:
    """Return True if a file that begins so is meant for a description."""
    return head.lstrip().startswith(b"{") and FORMAT.encode() in head


def read_description(path: str, size_bytes: int) -> Description:
    """Return the description that the JSON at a path has of a file of ``size_bytes``.

    Raises:
        FormatError: it is no description, contradicts itself, or is of a file of another size.
        FileError: it cannot be read.
    """
    raw = read_bytes(path, LARGEST_BYTES + 1)
    try:
        if len(raw) > LARGEST_BYTES:
            raise ValueError(f"it has more than {LARGEST_BYTES} bytes")
        description = _parse_description(json.loads(raw))
    except (ValueError, TypeError, RecursionError) as error:  # JSON's own errors are ValueErrors
        raise FormatError(f"{path} describes no records", cause=str(error), remedy=REMEDY) from None
    num_bytes = (
        description.header_bytes
        + description.num_records * description.dtype.itemsize
        + description.footer_bytes
    )
    if size_bytes != num_bytes:
        raise FormatError(
            f"{path[: -len(SUFFIX)]} has {size_bytes} bytes",
            cause=f"{path} says {description.num_records} records of {description.dtype.itemsize} "
            "bytes, which are "
            f"{num_bytes}",
            remedy="the file was cut short, or the JSON is that of another one: copy both again",
        )
    return description


def _parse_description(about: Any) -> Description:
    if (
        not isinstance(about, dict)
        or about.get("format") != FORMAT
        or about.get("version") != VERSION
    ):
        raise ValueError(f"it does not say format {FORMAT!r}, version {VERSION}")
    names = ("record_bytes", "header_bytes", "footer_bytes", "num_records")
    record_bytes, header_bytes, footer_bytes, num_records = (_count(about, name) for name in names)
    fields = about.get("fields")
    if (
        not isinstance(fields, list)
        or not fields
        or not all(isinstance(entry, dict) for entry in fields)
    ):
        raise ValueError("fields is no list of at least one field")
    dtype = np.dtype(
        {
            "names": [_name(entry) for entry in fields],
            "formats": [_format(entry) for entry in fields],
            "offsets": [_count(entry, "offset_bytes") for entry in fields],
            "itemsize": record_bytes,
        }
    )
    axes = tuple((entry["name"], str(entry["axes"])) for entry in fields if entry.get("axes"))
    return Description(dtype, header_bytes, footer_bytes, num_records, axes)


def _count(about: dict[str, Any], name: str) -> int:
    count = about.get(name)
    # Below 2**62, so that sums and products of a few of these are compared, and do not overflow an
    # int64 later.
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < 1 << 62:
        raise ValueError(f"{name} is {count!r}, not a whole number of at least 0")
    return count


def _name(entry: dict[str, Any]) -> str:
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError(f"a field has the name {name!r}")
    return name


def _format(entry: dict[str, Any]) -> np.dtype[Any]:
    text, shape = entry.get("dtype"), entry.get("shape")
    # Compared with a pattern first: NumPy would take any text, objects and names of types among
    # them.
    if not isinstance(text, str) or not DTYPE.fullmatch(text):
        raise ValueError(
            f"field {entry.get('name')!r} has the dtype {text!r}, which is no text of a dtype like "
            "'<f4'"
        )
    if (
        not isinstance(shape, list)
        or len(shape) > 32
        or not all(is_whole(n) and n < 1 << 40 for n in shape)
    ):
        raise ValueError(
            f"field {entry.get('name')!r} has the shape {shape!r}, which is no list of lengths"
        )
    return np.dtype((np.dtype(text), tuple(shape)))
