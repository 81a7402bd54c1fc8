"""Foreign formats: files that are recognized, and not opened; each has a remedy."""

from __future__ import annotations

from gpuload.errors import FormatError
from gpuload.formats.base import Beginning
from gpuload.storage.packing import PACKERS

PICKLE = ("a Python pickle", "it could run any code when read: store arrays, with numpy.save")
FOREIGN = {
    b"PARE": ("a Parquet file with an encrypted footer", "decrypt it with PyArrow, and write it anew"),
    b"FEA1": ("a Feather file of version 1", "read it with PyArrow, and write it anew"),
    **{magic: (f"compressed by {packer}", f"unpack it: {command}") for magic, packer, command in PACKERS},
    b"version https://git-lfs": ("a pointer of Git LFS, not the file", "fetch the file: git lfs pull"),
    **{b"\x80" + bytes([protocol]): PICKLE for protocol in (2, 3, 4, 5)},
}

PLAIN_ONLY = {b"\x93NUMPY": "an NPY file"}  # formats whose files are not opened when they are compressed


def refuse(beginning: Beginning) -> None:
    """Raise ``FormatError`` for a file of a format that is known and not opened."""
    path, head = beginning.path, beginning.head
    for magic, (title, remedy) in FOREIGN.items():
        if head.startswith(magic) and not beginning.compression:
            raise FormatError(f"{path} is {title}", cause="gpuload does not read it", remedy=remedy)


def content_title(head: bytes) -> str:
    """Return a description of the content of a compressed file."""
    titles = (title for magic, title in PLAIN_ONLY.items() if head.startswith(magic))
    return next(titles, f"bytes that begin with {head[:16]!r}")
