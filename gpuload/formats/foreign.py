"""Foreign formats: files that are recognized, and not opened; each has a remedy."""

from __future__ import annotations

from gpuload.errors import FormatError
from gpuload.formats.base import Beginning
from gpuload.images.head import foreign_of, other_form
from gpuload.storage.packers import PACKERS

PICKLE = ("a Python pickle", "it could run any code when read: store arrays, with numpy.save")
FOREIGN = {
    b"PARE": (
        "a Parquet file with an encrypted footer",
        "decrypt it with PyArrow, and write it anew",
    ),
    b"FEA1": ("a Feather file of version 1", "read it with PyArrow, and write it anew"),
    **{
        magic: (f"compressed by {packer}", f"unpack it: {command}")
        for magic, packer, command in PACKERS
    },
    b"version https://git-lfs": (
        "a pointer of Git LFS, not the file",
        "fetch the file: git lfs pull",
    ),
    b"MATLAB 5.0 MAT-file": (
        "a MAT-file of version 5",
        "save it in MATLAB with '-v7.3', which gl.hdf5 reads; or read it with scipy.io.loadmat, "
        "and pass its arrays "
        "to gl.arrays",
    ),
    **{
        b"CDF" + bytes([version]): (
            "a file of netCDF 3",
            "write it anew as netCDF 4, which gl.hdf5 reads: nccopy -k nc4",
        )
        for version in (1, 2, 5)
    },
    b"SQLite format 3\0": (
        "a database of SQLite",
        "write the table as CSV: sqlite3 -header -csv FILE 'select ...'",
    ),
    b"ORC": ("an ORC file", "read it with pyarrow.orc, and write it as Parquet"),
    b"Obj\x01": ("an Avro file", "write its records as Parquet"),
    **{b"\x80" + bytes([protocol]): PICKLE for protocol in (2, 3, 4, 5)},
}

PLAIN_ONLY = {b"\x93NUMPY": "an NPY file"}  # formats that are not opened when they are compressed


def refuse(beginning: Beginning) -> None:
    """Raise ``FormatError`` for a file of a format that is known and not opened."""
    path, head = beginning.path, beginning.head
    for magic, (title, remedy) in FOREIGN.items():
        if head.startswith(magic) and not beginning.compression:
            raise FormatError(f"{path} is {title}", cause="that is not supported", remedy=remedy)
    if kind := foreign_of(head):
        raise FormatError(
            f"{path} is an image of the format {kind}",
            cause="that is not supported",
            remedy=f"convert it; or read it by another library: {other_form(kind)}",
        )


def content_title(head: bytes) -> str:
    """Return a description of the content of a compressed file."""
    titles = (title for magic, title in PLAIN_ONLY.items() if head.startswith(magic))
    return next(titles, f"bytes that begin with {head[:16]!r}")
