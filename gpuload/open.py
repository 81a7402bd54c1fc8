"""Open: find out by the bytes of files which source opens them.

What      by                                                                                    opened as
NPY       its magic                                                                             gl.npy
NPZ       a ZIP archive of .npy members                                                         gl.npz
TFRecord  a length, and its checksum behind it; also inside of gzip or zlib                     gl.tfrecord
IDX       two zeros, a type, a number of axes, and as many bytes as these say; also in gzip     gl.idx
records   a JSON beside the file that describes it (`described.py`)                             gl.fixed
images    the beginnings of image files; a folder that holds such files                         gl.images
CSV       text in UTF-8, first lines of the same number of columns, two or more; also in gzip   gl.csv

Names and suffixes play no part, but for the JSON beside a file, and images of a folder, which `gl.images` finds by
their suffixes. What is none of these, or might be two, is refused with what was seen and what to call. Of a table one
line of ten may have another number of columns, which `gl.csv` then names.
"""

from __future__ import annotations

import io
import itertools
import logging
import math
import os
import shlex
from collections.abc import Callable, Sequence
from csv import Error as TableError
from csv import reader as table_reader
from dataclasses import dataclass

import numpy as np

from gpuload import aside
from gpuload.errors import FormatError, MissingFileError, SpecError
from gpuload.formats.csv import csv
from gpuload.formats.fixed import described, fixed
from gpuload.formats.idx import idx
from gpuload.formats.images import images
from gpuload.formats.npy import npy, npyheader
from gpuload.formats.npz import npz
from gpuload.formats.tfrecord import tfrecord
from gpuload.images.head import FORMATS, kind_of
from gpuload.sources.base import Source
from gpuload.storage.files import GZIP, Files, Paths, as_folder, expand, look_at, read_bytes
from gpuload.storage.inflate import inflate_head

HEAD_BYTES = 1 << 14  # of each file; enough for some lines of a table
INNER_BYTES = 1 << 14  # of what a compressed file holds
LINES = 20  # of text that are looked at
DELIMITERS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")  # RFC 1950, section 2.2, of a window of 32 KiB
IDX_BYTES = {0x08: 1, 0x09: 1, 0x0B: 2, 0x0C: 4, 0x0D: 4, 0x0E: 8}  # of an element, by the number of its type
OTHERS = {  # formats that are known, and not opened
    b"PAR1": ("a Parquet file", "read it with PyArrow, and pass its columns to gl.arrays"),
    b"ARROW1": ("an Arrow file", "read it with PyArrow, and pass its columns to gl.arrays"),
    b"\x89HDF\r\n\x1a\n": ("an HDF5 file", "read it in gl.records(length, read)"),
    b"\x28\xb5\x2f\xfd": ("compressed by zstd", "unpack it: zstd -d"),
    b"BZh": ("compressed by bzip2", "unpack it: bunzip2"),
    b"\xfd7zXZ\0": ("compressed by xz", "unpack it: xz -d"),
    b"version https://git-lfs": ("a pointer of Git LFS, not the file", "fetch the file: git lfs pull"),
    b"\x80\x02": ("a Python pickle", "it could run any code when read: store arrays, with numpy.save"),
    b"\x80\x03": ("a Python pickle", "it could run any code when read: store arrays, with numpy.save"),
    b"\x80\x04": ("a Python pickle", "it could run any code when read: store arrays, with numpy.save"),
    b"\x80\x05": ("a Python pickle", "it could run any code when read: store arrays, with numpy.save"),
}
CALLS = "gl.npy, gl.npz, gl.fixed, gl.tfrecord, gl.csv, gl.text, gl.idx, gl.images or gl.records"
log = logging.getLogger("gpuload")


@dataclass(frozen=True)
class Found:
    """What a file is.

    Attributes:
        what: in words.
        call: the function that opens it, with the arguments that the bytes say.
    """

    what: str
    call: str


Opener = Callable[[list[str]], Source]


def open(paths: Paths) -> Source:
    """Return the source of files, whose format is found by their bytes; the log says what was found.

    Args:
        paths: a path, a string with wildcards, or a list of these, whose files all are of one format; or a folder of
            image files, with a folder for each class, or with a table ``labels.csv`` of file and label, or neither.

    Raises:
        FormatError: the bytes are of no format that is known, or of two; says what was seen, and what to call.
        SpecError: the files are of different formats.
        FileError: a file is missing or cannot be read.
    """
    return opened(paths)


def opened(paths: Paths, *, bad_lines: str = "raise") -> Source:
    """Return the source of files as ``open`` does; ``bad_lines`` is that of ``gl.csv``."""
    folder = as_folder(paths)
    if folder is not None:
        return _of_folder(folder)
    named = expand(paths)
    files, found = look_at(named, HEAD_BYTES, _seen)
    first = found[0]
    for number, one in enumerate(found):
        if one.call != first.call:
            raise SpecError(
                f"{files.paths[0]} is {first.what}, {files.paths[number]} is {one.what}",
                cause="the files of a source are of one format",
                remedy="open them one by one, and join them: gl.concat(a, b), gl.zip(a, b)",
            )
    log.info("%s: found %s; opened by %s", _told(files), first.what, first.call)
    return _called(first, named, bad_lines)


def _told(files: Files) -> str:
    return files.paths[0] if len(files) == 1 else f"{files.paths[0]} and {len(files) - 1} others"


def _called(found: Found, paths: list[str], bad_lines: str) -> Source:
    name, _, arguments = found.call.partition("(")
    openers: dict[str, Opener] = {
        "gl.npy": npy,
        "gl.npz": npz,
        "gl.idx": lambda paths: idx(x=paths),
        "gl.tfrecord": lambda paths: tfrecord(paths, compression="zlib" if "zlib" in arguments else "auto"),
        "gl.csv": lambda paths: csv(paths, delimiter=_delimiter(arguments), bad_lines=bad_lines),
        "gl.images": lambda paths: images(paths, labels=None),
        "gl.fixed": _described,
    }
    return openers[name](paths)


def _delimiter(arguments: str) -> str:
    return next(one for one in DELIMITERS if f"delimiter={one!r}" in arguments)


# --- files


def _seen(path: str, size: int, head: bytes) -> Found:
    """Return what a file is, by its first bytes, its size, and a description beside it."""
    if not size:
        raise FormatError(f"{path} is empty", cause="it has 0 bytes", remedy="it was never written: make it again")
    if described.is_description(head) or _has_description(path):
        return Found("fixed-length records with their description", "gl.fixed(...)")
    candidates = [found for look in (_by_magic, _tfrecord, _idx, _packed) if (found := look(path, size, head))]
    if not candidates and _is_tar(head):
        raise _tar(path, "")
    for beginning, (what, remedy) in OTHERS.items():
        if not candidates and head.startswith(beginning):
            raise FormatError(f"{path} is {what}", cause="gpuload does not read it", remedy=remedy)
    try:
        candidates += filter(None, [_text(path, size, head)])
    except FormatError:  # text that is no table: an image in plain text, say
        if not candidates:
            raise
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise FormatError(
            f"{path} may be {' or '.join(found.what for found in candidates)}",
            cause=f"it begins with {head[:16]!r}, which both may",
            remedy=f"say which it is: {' or '.join(found.call.partition('(')[0] for found in candidates)}",
        )
    raise FormatError(
        f"{path} is of no format that is known",
        cause=f"its {size} bytes begin with {head[:16]!r}: no magic of NPY, NPZ, IDX or images, no TFRecord, no table "
        f"of text, and no {os.path.basename(path)}{described.SUFFIX} beside it describes it",
        remedy=f"if you know what it is, call {CALLS}: raw records are gl.fixed(path, dtype), a table in "
        'another encoding gl.csv(path, encoding="latin-1")',
    )


def _has_description(path: str) -> bool:
    return os.path.isfile(path + described.SUFFIX) and described.is_description(
        read_bytes(path + described.SUFFIX, described.LARGEST_BYTES)
    )


def _by_magic(path: str, size: int, head: bytes) -> Found | None:
    if head.startswith(npyheader.MAGIC):
        return Found("NPY", "gl.npy")
    if head.startswith((npyheader.ARCHIVE, b"PK\x05\x06")):
        return _archive(path)
    kind = kind_of(head)
    return None if kind is None else Found(f"{FORMATS[kind].title} images", "gl.images")


def _archive(path: str) -> Found:
    zipfile = aside.import_package("zipfile")
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError) as error:
        raise FormatError(
            f"{path} is a damaged ZIP archive", cause=str(error), remedy="it was cut short: copy it again"
        ) from None
    others = [name for name in names if not name.endswith(".npy")]
    if others or not names:
        held = f"it holds {others[0]!r}" if others else "it holds nothing"
        raise FormatError(
            f"{path} is a ZIP archive and no NPZ",
            cause=f"an NPZ holds .npy files alone, and {held}",
            remedy="unpack it, and open what is in it",
        )
    return Found("NPZ", "gl.npz")


def _tfrecord(path: str, size: int, head: bytes) -> Found | None:
    return Found("TFRecord", "gl.tfrecord") if _is_framed(head) else None


def _is_framed(head: bytes) -> bool:
    """Return True if bytes begin with a length and the checksum of it; checksums need no package for 8 bytes."""
    if len(head) < 12:
        return False
    crc = _crc32c(head[:8])
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    return masked == int.from_bytes(head[8:12], "little")


def _crc32c(data: bytes) -> int:
    """Return the CRC32C of some bytes, bit by bit (RFC 3720, appendix B.4, polynomial 0x1EDC6F41, reflected)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _idx(path: str, size: int, head: bytes) -> Found | None:
    wanted = _idx_bytes(head)
    return Found("IDX", "gl.idx(x=...)") if wanted == size else None


def _idx_bytes(head: bytes) -> int | None:
    """Return how many bytes a file has that begins as IDX does; None for one that does not."""
    if len(head) < 8 or head[:2] != b"\0\0" or head[2] not in IDX_BYTES or not 1 <= head[3] <= 32:
        return None
    lengths = np.frombuffer(head, ">u4", min(head[3], (len(head) - 4) // 4), 4).tolist()
    return 4 + 4 * head[3] + math.prod(lengths) * IDX_BYTES[head[2]] if len(lengths) == head[3] else None


def _packed(path: str, size: int, head: bytes) -> Found | None:
    """Return what a compressed file holds."""
    if not head.startswith((GZIP, *ZLIB)):
        return None
    is_gzip = head.startswith(GZIP)
    inner = inflate_head(head, "gzip" if is_gzip else "zlib", INNER_BYTES)
    if inner is None:
        return None
    if _is_framed(inner):
        return Found("TFRecord in gzip", "gl.tfrecord") if is_gzip else Found("TFRecord in zlib", "gl.tfrecord(zlib")
    if is_gzip and _idx_bytes(inner) is not None:
        return Found("IDX in gzip", "gl.idx(x=...)")
    if is_gzip and (found := _text(path, size + len(inner), inner)) is not None:
        return Found(f"{found.what}, in gzip", found.call)
    if _is_tar(inner):
        raise _tar(path, "z")
    held = "an NPY file" if inner.startswith(npyheader.MAGIC) else f"bytes that begin with {inner[:16]!r}"
    raise FormatError(
        f"{path} is compressed with {'gzip' if is_gzip else 'zlib'} and holds {held}",
        cause="of compressed files TFRecord, and in gzip IDX and tables of text, are opened",
        remedy=f"unpack it first; or call {CALLS}",
    )


def _is_tar(head: bytes) -> bool:
    """Return True if a file begins as an archive of tar does (POSIX.1-2017, pax, ustar interchange format)."""
    return head[257:262] == b"ustar"


def _tar(path: str, letter: str) -> FormatError:
    """Return the error for an archive of tar; ``letter`` is that of tar for how it is compressed."""
    folder = path.partition(".tar")[0].removesuffix(".tgz") + "-files"
    unpack = f"mkdir {shlex.quote(folder)} && tar -x{letter}f {shlex.quote(path)} -C {shlex.quote(folder)}"
    return FormatError(
        f"{path} is an archive of tar",
        cause="records are found by number, and a tar has no index of its members",
        remedy=f"unpack it ({unpack}) and open what is in it: gl.images({folder!r}) of images, "
        f"gl.open({os.path.join(folder, '*')!r}) of other files",
    )


def _text(path: str, size: int, head: bytes) -> Found | None:
    """Return which table of text it is, if it is one: each line as many columns as the first, at least two.

    Where no delimiter makes that, one of four lines and more, or one of ten, may be wrong; ``gl.csv`` then names it.
    """
    try:
        text = head.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4 or size <= len(head):
            return None
        text = head[: error.start].decode("utf-8-sig")  # the last character was cut
    if any(ord(char) < 32 and char not in "\t\n\r\f" for char in text):
        return None
    if size > len(head):
        text = text[: text.rfind("\n") + 1]  # the last line was cut
    fits: list[str] = []
    for is_strict in (True, False):
        fits = fits or [delimiter for delimiter in DELIMITERS if _columns(text, delimiter, is_strict=is_strict) > 1]
    if len(fits) == 1:
        return Found(f"a table of text, with {DELIMITERS[fits[0]]} between columns", f"gl.csv(delimiter={fits[0]!r}")
    if fits:
        between = " and ".join(DELIMITERS[one] for one in fits)
        raise FormatError(
            f"{path} is a table of text, and there are two ways to read it",
            cause=f"{between} both give each line the same number of columns",
            remedy=f"say which it is: gl.csv(path, delimiter={fits[0]!r})",
        )
    if not text.strip():
        return None
    lines = text.splitlines()
    raise FormatError(
        f"{path} is text that begins with {lines[0][:60]!r}",
        cause="its first lines have no delimiter in common that would make two or more columns of each",
        remedy="call gl.text(path) to have each line as a record; gl.csv(path, delimiter=...) if it is a table, also "
        "of one column",
    )


def _columns(text: str, delimiter: str, *, is_strict: bool) -> int:
    """Return how many columns the first line has, and all others, or nearly all of them; 0 where it is fewer lines."""
    try:
        rows = list(
            itertools.islice((row for row in table_reader(io.StringIO(text), delimiter=delimiter) if row), LINES)
        )
    except TableError:
        return 0
    count = len(rows[0]) if rows else 0
    allowed = 0 if is_strict or len(rows) < 4 else max(1, len(rows) // 10)
    return count if sum(len(row) != count for row in rows) <= allowed else 0


# --- described records


def _described(paths: Sequence[str]) -> Source:
    names = [path.removesuffix(described.SUFFIX) if _is_json(path) else path for path in paths]
    names = list(dict.fromkeys(names))  # a wildcard may mean both the records and what describes them
    found, about = look_at(names, 0, lambda path, size, head: described.read(path + described.SUFFIX, size))
    for number, one in enumerate(about):
        if (one.dtype, one.header_bytes, one.footer_bytes, one.axes) != (
            *(about[0].dtype, about[0].header_bytes, about[0].footer_bytes, about[0].axes),
        ):
            raise SpecError(
                f"{found.paths[number]} and {found.paths[0]} hold different fields",
                cause=f"their descriptions say {one.dtype} and {about[0].dtype}",
                remedy="open them one by one",
            )
    first = about[0]
    source = fixed(names, first.dtype, first.header_bytes, first.footer_bytes)
    return source.mark(**dict(first.axes)) if first.axes else source


def _is_json(path: str) -> bool:
    return path.endswith(described.SUFFIX) and described.is_description(read_bytes(path, described.LARGEST_BYTES))


# --- folders


def _of_folder(folder: str) -> Source:
    """Return the images of a folder, with what it says of their labels."""
    labels = os.path.join(folder, "labels.csv")
    try:
        unlabelled = images(folder, labels=None)
    except MissingFileError as error:
        files = os.path.join(folder, "*")
        raise MissingFileError(
            error.what, cause=error.cause, remedy=f"check the folder, or name the files: gl.open({files!r})"
        ) from None
    if os.path.isfile(labels):
        log.info("%s: found images and a table of labels; opened by gl.images(labels='labels.csv')", folder)
        return images(folder, labels=labels)
    loose = any(os.sep not in unlabelled._where(number) for number in range(len(unlabelled)))
    log.info("%s: found images; opened by gl.images(labels=%s)", folder, None if loose else "'folder'")
    return unlabelled if loose else images(folder, labels="folder")
