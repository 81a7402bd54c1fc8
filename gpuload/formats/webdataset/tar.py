"""Tar archives: the members of one, found by a walk from header to header.

Layout   for each member a header of 512 bytes, then its bytes, filled up with zeros to a multiple of 512; two blocks of
         zeros at the end.
Kinds    ustar, GNU (long names, sizes in base 256) and PAX (path, size). Sparse members are refused; folders, links and
         members whose name begins with a dot are passed over.
Checks   each header has its checksum compared, each member ends inside the archive, and the archive has its end and
         nothing behind it.
Speed    an archive is read in pieces of PIECE_BYTES. Where members have SPARSE_BYTES or more on average, their headers
         alone are read.
Source   POSIX.1-2017, pax; GNU tar, "Basic Tar Format"
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from gpuload.errors import FormatError
from gpuload.storage.files import Files, Handle

BLOCK_BYTES = 512
PIECE_BYTES = 1 << 22
SPARSE_BYTES = 1 << 18  # to read so many bytes takes as long as a request of its own for the next header
TAIL_BYTES = 1 << 20  # behind the end of an archive, that are looked at
LARGEST_NAME_BYTES = 1 << 16  # of a long name or of PAX records
REGULAR = (b"0", b"\0", b"7")


class Member(NamedTuple):
    """A regular file in an archive: its name, and where its bytes lie."""

    name: str
    offset: int
    length: int


def walk(files: Files, number: int, show: Callable[[int], None] = lambda place: None) -> Iterator[Member]:
    """Yield the regular files in an archive, but hidden ones.

    Args:
        files: the archives.
        number: of the archive.
        show: called with the number of bytes that are done, many times; its exceptions are not caught.

    Raises:
        FormatError: it is damaged, cut short, or no tar.
        ChangedFileError, FileError: it changed, or cannot be read.
    """
    path, size, at, long_name, pax = files.paths[number], int(files.sizes[number]), 0, "", dict[str, str]()
    with files.open_file(number) as handle:
        pieces = _Pieces(files, number, handle, show)
        while at < size:
            if at + BLOCK_BYTES > size:
                raise damage(path, at, "it ends inside of a header")
            header = pieces.read(at, BLOCK_BYTES)
            # An archive ends with two blocks of zeros; one is enough here, and all behind it must be zeros, too.
            if not header.strip(b"\0"):
                if pieces.read(at, min(size - at, TAIL_BYTES)).strip(b"\0"):
                    raise damage(
                        path, at, "it ends here, and something else follows", "join archives by a list of paths"
                    )
                break
            kind, length = header[156:157], _number(path, at, header[124:136])
            _check_sum(path, at, header)
            # pax: a size in an extended header is that of the next file, which may be beyond the 8 GiB of octal digits.
            if "size" in pax and kind not in (b"x", b"g", b"L", b"K"):
                length = int(pax["size"]) if pax["size"].isascii() and pax["size"].isdigit() else -1
            begin = at + BLOCK_BYTES
            if not 0 <= length <= size - begin:
                raise damage(path, at, f"a member has {length} bytes, and {size - begin} follow")
            if kind in (b"L", b"x") and length > LARGEST_NAME_BYTES:
                raise damage(path, at, f"a name has {length} bytes")
            if kind == b"S" or any(name.startswith("GNU.sparse") for name in pax):
                raise damage(
                    path, at, "a member is sparse, and its bytes lie apart", "write it with tar without --sparse"
                )
            if kind == b"L":
                long_name = _text(pieces.read(begin, length))
            elif kind == b"x":
                pax = _pax(path, at, pieces.read(begin, length))
            elif kind not in (b"g", b"K"):
                # GNU's old headers ("ustar  ") have other fields at the place of the prefix.
                prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
                name = pax.get("path") or long_name or "/".join(filter(None, (prefix, _text(header[:100]))))
                base = name.rpartition("/")[2]  # empty for a folder, which has the kind of files in old tars
                if kind in REGULAR and base and not base.startswith("."):
                    yield Member(name.removeprefix("./"), begin, length)
                # Both are of the one member that follows them.
                long_name, pax = "", {}
            at = begin + -(-length // BLOCK_BYTES) * BLOCK_BYTES
        else:
            raise damage(path, at, "it has no end, which is blocks of zeros")
        files.check_descriptor(number, handle)


class _Pieces:
    """Reads an archive from its beginning to its end: in large pieces where headers lie near each other."""

    def __init__(self, files: Files, number: int, handle: Handle, show: Callable[[int], None]) -> None:
        self._files, self._number, self._handle, self._show = files, number, handle, show
        self._size = int(files.sizes[number])
        self._piece, self._begin, self._num_reads = memoryview(b""), 0, 0

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the archive; places rise from call to call, or are near the last one."""
        self._num_reads += 1
        first = offset - self._begin
        if first < 0 or first + length > len(self._piece):
            # Each member is one read of its header, so this is the mean distance of headers so far.
            is_dense = offset // self._num_reads < SPARSE_BYTES
            num_bytes = max(length, min(PIECE_BYTES, self._size - offset) if is_dense else 0)
            self._show(offset)
            self._piece, self._begin, first = memoryview(bytearray(num_bytes)), offset, 0
            self._files.read(self._number, self._handle, self._piece, offset)
        return bytes(self._piece[first : first + length])


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _number(path: str, at: int, raw: bytes) -> int:
    """Return a number of a header: octal digits, or in base 256 as GNU writes large ones."""
    if raw[0] & 0x80:
        # GNU tar, "Basic Tar Format": the first bit says base 256, the others are a number in two's complement.
        is_negative = raw[0] == 0xFF
        return int.from_bytes(raw, "big", signed=True) if is_negative else int.from_bytes(b"\0" + raw[1:], "big")
    digits = raw.strip(b" \0")
    if not all(digit in b"01234567" for digit in digits):
        raise damage(path, at, f"a number of its header is {digits!r}")
    return int(digits or b"0", 8)


def _check_sum(path: str, at: int, header: bytes) -> None:
    blank = header[:148] + b" " * 8 + header[156:]
    expected, unsigned = _number(path, at, header[148:156]), sum(blank)
    if expected != unsigned and expected != unsigned - 256 * sum(
        byte > 127 for byte in blank
    ):  # old tars: signed bytes
        raise damage(path, at, f"its header has the sum {unsigned}, and says {expected}")


def _pax(path: str, at: int, raw: bytes) -> dict[str, str]:
    """Return the records of a PAX header, each of which is its length, a space, name=value, and a line end."""
    records, place = dict[str, str](), 0
    while place < len(raw):
        digits, _, _ = raw[place : place + 8].partition(b" ")
        end = place + int(digits) if digits.isdigit() else place
        name, is_pair, value = raw[place + len(digits) + 1 : end - 1].partition(b"=")
        if end <= place or end > len(raw) or not is_pair:
            raise damage(path, at, "its PAX records are damaged")
        records[_text(name)] = _text(value)
        place = end
    return records


def damage(path: str, at: int, cause: str, remedy: str = "it was cut short or damaged: copy it again") -> FormatError:
    """Return the error for an archive that cannot be read."""
    return FormatError(f"{path}, byte {at}: this tar archive cannot be read", cause=cause, remedy=remedy)
