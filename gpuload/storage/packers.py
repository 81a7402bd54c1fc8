"""Packers: files that are one other file, packed: by gzip or zlib, or in a ZIP archive of one file.

ZIP  is no packing of one file, as gzip is: an archive holds any number of them. So it is unpacked
     only where the caller says that it is one file, and named as an archive elsewhere.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gpuload.errors import FormatError
from gpuload.storage import archive
from gpuload.storage.files import Files
from gpuload.storage.inflate import inflate_file, is_gzip

ZIP, AUTO = "zip", "auto"
EMPTY_ARCHIVE = b"PK\x05\x06"
# Packers of files that are not unpacked here: how one of theirs begins, its name, and the command
# that unpacks it.
PACKERS = (
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -d"),
    *((b"BZh%d" % level, "bzip2", "bunzip2") for level in range(1, 10)),
    (b"\xfd7zX", "xz", "xz -d"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -d"),
)


def packer_of(path: str, head: bytes, compression: str = AUTO, *, zip_remedy: str = "") -> str:
    """Return how a file is packed: ``"gzip"``, ``"zip"`` or ``""``.

    Args:
        path: of the file.
        head: its first bytes, at least `inflate.HEAD_BYTES` where it has as many.
        compression: ``"auto"``: gzip is known by these bytes, and ZIP is an error. ``"zip"``: an
            archive of one file.
        zip_remedy: another remedy for an archive than to unpack it.

    Raises:
        FormatError: the file is a ZIP archive, and none was expected; or of a packer that is not
            supported.
    """
    if compression == ZIP:
        if head and not head.startswith((archive.MAGIC, EMPTY_ARCHIVE)):
            cause = f"it begins with {head[:4].hex(' ')}"
            if is_gzip(head):
                cause = "it is a file of gzip"
            raise FormatError(
                f"{path} is no ZIP archive",
                cause=cause,
                remedy='leave out compression="zip"; gl.open(path) finds out what it is',
            )
        return ZIP
    if head.startswith(archive.MAGIC):
        raise FormatError(
            f"{path} is a ZIP archive",
            cause="files in archives have to be unpacked",
            remedy=archive.unpacking(path, [archive.first_name(head)]) + zip_remedy,
        )
    for magic, packer, command in PACKERS:
        if head.startswith(magic):
            raise FormatError(
                f"{path} is compressed by {packer}",
                cause="gpuload unpacks gzip; this is not supported",
                remedy=f"unpack it: {command} {shlex.quote(path)}",
            )
    return "gzip" if is_gzip(head) else ""


def inflate_content(files: Files, number: int, kind: str) -> Iterator[tuple[int, bytes]]:
    """Yield the content of a packed file in pieces: the position in the file, and the unpacked
    bytes.

    Args:
        files: the user's.
        number: of the file.
        kind: ``"gzip"``, ``"zlib"`` or ``"zip"``.

    Raises:
        GpuloadError: as `inflate.inflate_file` and `archive.inflate_only_file`.
    """
    if kind == ZIP:
        return archive.inflate_only_file(files, number)
    return inflate_file(files, number, kind)
