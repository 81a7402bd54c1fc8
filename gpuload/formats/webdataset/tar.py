"""Tar archives: the members of one, found by a walk from header to header.

Layout   for each member a header of 512 bytes, then its bytes, filled up with zeros to a multiple
         of 512; two blocks of zeros at the end.
Kinds    ustar, GNU (long names, sizes in base 256) and PAX (path, size, linkpath). Sparse members,
         parts of files (tar -M) and global PAX headers that rename members are refused; folders,
         devices and labels are passed over.
Sizes    Links, folders and devices have no data blocks, although their headers may state a size. Members
         of a kind that POSIX does not define have data blocks, and are read as files.
Checks   each header has its checksum compared, each member ends inside the archive, and the archive
         has its end and nothing behind it.
Speed    an archive is read in pieces of PIECE_BYTES. Where members have SPARSE_BYTES or more on
         average, their headers alone are read.
Source   POSIX.1-2017, pax, "ustar Interchange Format"; GNU tar, "Basic Tar Format"
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from gpuload.errors import FormatError
from gpuload.storage.files import Files
from gpuload.storage.handles import Handle

BLOCK_BYTES = 512
PIECE_BYTES = 1 << 22
HEAD_BYTES = 1 << 11  # of a header and the part of its member that is looked at, in one read
SPARSE_BYTES = (
    1 << 18
)  # to read so many bytes takes as long as a request of its own for the next header
TAIL_BYTES = 1 << 20  # behind the end of an archive, that are looked at
LARGEST_NAME_BYTES = 1 << 16  # of a long name or of PAX records
REGULAR = (b"0", b"\0", b"7")
HARD, SYMBOLIC = b"1", b"2"
WITHOUT_DATA = (HARD, SYMBOLIC, b"3", b"4", b"5", b"6")  # links, devices, folders, FIFOs
NO_FILES = (
    b"3",
    b"4",
    b"5",
    b"6",
    b"D",
    b"V",
)  # devices, folders, FIFOs; GNU: the names in a folder, a label
EXTENSIONS = (
    b"L",
    b"K",
    b"x",
    b"g",
    b"X",
)  # say more about the next member, or about all; X: PAX of Solaris
RENAMING = ("path", "size", "linkpath")

Read = Callable[[int], bytes]


class TarMember(NamedTuple):
    """A file in an archive, or a link: its name, and where its bytes lie.

    Attributes:
        name: with its folders.
        offset, length: of its bytes; of a link nothing.
        kind: HARD or SYMBOLIC for a link; else b"".
        target: the name to which a link leads, as it is stored.
        head: the result of ``peek``.
    """

    name: str
    offset: int
    length: int
    kind: bytes = b""
    target: str = ""
    head: bytes = b""


def walk(
    files: Files,
    number: int,
    show: Callable[[int], None] = lambda place: None,
    peek: Callable[[str, int, Read], bytes] = lambda name, length, read: b"",
) -> Iterator[TarMember]:
    """Yield the files and links in an archive, in their order.

    Args:
        files: the archives.
        number: of the archive.
        show: called with the number of bytes that are done, many times; its exceptions are not
            caught.
        peek: called with name and length of each file, and with a function that returns so many of
            its first bytes.

    Raises:
        FormatError: it is damaged, cut short, or no tar.
        ChangedFileError, FileError: it changed, or cannot be read.
    """
    path, size, at = files.paths[number], int(files.sizes[number]), 0
    if not path.endswith(files.names[number]):  # an unpacked copy: errors name the file of the user
        path = files.names[number]
    if not size:
        raise damage(path, 0, "it has no bytes, and an archive of no files has two blocks of zeros")
    extension = _Extension(path)
    with files.open_file(number) as handle:
        pieces = _Pieces(files, number, handle, show)
        while at < size:
            if at + BLOCK_BYTES > size:
                raise damage(path, at, "it ends inside of a header")
            header = pieces.read(at, BLOCK_BYTES)
            # An archive ends with two blocks of zeros; one is enough here, and all behind it must
            # be zeros, too.
            if not header.strip(b"\0"):
                _check_tail(path, at, pieces.read(at, min(size - at, TAIL_BYTES)))
                break
            kind, length = header[156:157], _number(path, at, header[124:136])
            _check_sum(path, at, header)
            begin = at + BLOCK_BYTES
            length = extension.data_bytes(header, kind, length)
            if not 0 <= length <= size - begin:
                raise damage(path, at, f"a member has {length} bytes, and {size - begin} follow")
            if kind not in REGULAR or extension.is_used:
                _refuse_part(path, at, kind, extension.pax)
            if kind in EXTENSIONS:
                if kind != b"g" and length > LARGEST_NAME_BYTES:
                    raise damage(path, at, f"a name has {length} bytes")
                content = pieces.read(begin, min(length, LARGEST_NAME_BYTES))
                extension.add(at, kind, content, length)
            else:
                name, target = extension.names(header)
                base = name.rpartition("/")[2]  # "" for a folder, a file by its kind in old tars
                if base and kind in (HARD, SYMBOLIC):
                    yield TarMember(name, begin, 0, kind, target)
                elif base and kind not in NO_FILES:
                    head = peek(name, length, partial(pieces.read, begin))
                    yield TarMember(name, begin, length, head=head)
                if extension.is_used:
                    extension = _Extension(path)  # it is of the one member that follows it
            at = begin + -(-length // BLOCK_BYTES) * BLOCK_BYTES
        else:
            raise damage(path, at, "it has no end, which is blocks of zeros")
        files.check_descriptor(number, handle)


class _Extension:
    """The headers of GNU and PAX in front of a member: its name, its target and its size."""

    def __init__(self, path: str) -> None:
        self._path, self._name, self._target, self.pax = path, "", "", dict[str, str]()
        self.is_used = False

    def add(self, at: int, kind: bytes, raw: bytes, length: int) -> None:
        """Note the content of the header at a byte of the archive; ``raw`` are its first bytes."""
        self.is_used = True
        if kind == b"L":
            self._name = _text(raw)
        elif kind == b"K":
            self._target = _text(raw)
        elif kind in (b"x", b"X"):
            self.pax = _pax(self._path, at, raw)
        elif len(raw) == length and not _pax(self._path, at, raw).keys().isdisjoint(RENAMING):
            raise unsupported(self._path, at, "a global PAX header renames or resizes all members")

    def data_bytes(self, header: bytes, kind: bytes, length: int) -> int:
        """Return the bytes of the member's data blocks, which its header says are ``length``.

        Beyond the 8 GiB of octal digits a PAX header says it; -1 if it says no number.
        """
        if self.is_used and kind not in EXTENSIONS:
            digits = self.pax.get("size", str(length))
            is_number = digits.isascii() and digits.isdigit()
            if is_number:
                length = int(digits)
            else:
                length = min(length, -1)
        if kind in WITHOUT_DATA:
            return 0
        # A folder of tars of before 1988 has the kind of files, and a name with a slash at its end.
        if kind == b"\0" and self.names(header)[0].endswith("/"):
            return 0
        return length

    def names(self, header: bytes) -> tuple[str, str]:
        """Return the name of the member, and that to which it leads if it is a link."""
        # GNU's old headers ("ustar  ") have other fields at the place of the prefix.
        if header[257:263] == b"ustar\0":
            prefix = _text(header[345:500])
        else:
            prefix = ""
        stored_name = "/".join(filter(None, (prefix, _text(header[:100]))))
        name = self.pax.get("path") or self._name or stored_name
        if header[156:157] in REGULAR:
            stored_target = ""
        else:
            stored_target = _text(header[157:257])
        return name.removeprefix("./"), self.pax.get("linkpath") or self._target or stored_target


def _check_tail(path: str, at: int, tail: bytes) -> None:
    """Raise the error for bytes behind the end of an archive, which may be another one
    (``cat a.tar b.tar``)."""
    num_zeros = len(tail) - len(tail.lstrip(b"\0"))
    begin = num_zeros // BLOCK_BYTES * BLOCK_BYTES
    if tail[begin + 257 : begin + 262] == b"ustar":
        cause = f"it ends here, and another archive follows at byte {at + begin}"
        raise unsupported(
            path, at, cause, "join archives by a list of paths, or as one archive by tar -A"
        )
    if num_zeros < len(tail):
        remedy = "copy it again; or unpack it (tar -xf), and write it anew"
        raise damage(path, at, "it ends here, and something else follows", remedy)


def _refuse_part(path: str, at: int, kind: bytes, pax: dict[str, str]) -> None:
    """Raise the error for a member with bytes that lie apart, or in another archive, too."""
    if kind == b"S" or any(name.startswith("GNU.sparse") for name in pax):
        raise unsupported(
            path,
            at,
            "a member is sparse, and its bytes lie apart",
            "write it with tar without --sparse",
        )
    if kind == b"M":
        raise unsupported(
            path, at, "a member is a part of a file, which continues in another volume"
        )


class _Pieces:
    """Reads an archive from its beginning to its end: in large pieces where headers lie near each
    other."""

    def __init__(
        self, files: Files, number: int, handle: Handle, show: Callable[[int], None]
    ) -> None:
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
            num_bytes = max(
                length, min(PIECE_BYTES if is_dense else HEAD_BYTES, self._size - offset)
            )
            self._show(offset)
            self._piece, self._begin, first = memoryview(bytearray(num_bytes)), offset, 0
            self._files.read(self._number, self._handle, self._piece, offset)
        return bytes(self._piece[first : first + length])


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _number(path: str, at: int, raw: bytes) -> int:
    """Return a number of a header: octal digits, or in base 256 as GNU writes large ones."""
    if raw[0] & 0x80:
        # GNU tar, "Basic Tar Format": the first bit says base 256, the others are a number in two's
        # complement.
        is_negative = raw[0] == 0xFF
        if is_negative:
            return int.from_bytes(raw, "big", signed=True)
        return int.from_bytes(b"\0" + raw[1:], "big")
    digits = raw.strip(b" \0")
    if digits.strip(b"01234567"):
        raise damage(path, at, f"a number of its header is {digits!r}")
    return int(digits or b"0", 8)


def _check_sum(path: str, at: int, header: bytes) -> None:
    blank = header[:148] + b" " * 8 + header[156:]
    # RFC 1950: the low half of Adler-32 is 1 plus the sum of the bytes, exact for 256 bytes; faster
    # than sum.
    unsigned = (zlib.adler32(blank[:256]) & 0xFFFF) + (zlib.adler32(blank[256:]) & 0xFFFF) - 2
    expected = _number(path, at, header[148:156])
    if expected != unsigned and expected != unsigned - 256 * sum(
        byte > 127 for byte in blank
    ):  # old tars: signed bytes
        raise damage(path, at, f"its header has the sum {unsigned}, and says {expected}")


def _pax(path: str, at: int, raw: bytes) -> dict[str, str]:
    """Return the records of a PAX header, each of which is its length, a space, name=value, and a
    line end."""
    records, place = dict[str, str](), 0
    while place < len(raw):
        digits, _, _ = raw[place : place + 8].partition(b" ")
        if digits.isdigit():
            end = place + int(digits)
        else:
            end = place
        name, is_pair, value = raw[place + len(digits) + 1 : end - 1].partition(b"=")
        if end <= place or end > len(raw) or not is_pair:
            raise damage(path, at, "its PAX records are damaged")
        records[_text(name)] = _text(value)
        place = end
    return records


def damage(
    path: str, at: int, cause: str, remedy: str = "it was cut short or damaged: copy it again"
) -> FormatError:
    """Return the error for an archive that cannot be read."""
    return FormatError(
        f"{path}, byte {at}: this tar archive cannot be read", cause=cause, remedy=remedy
    )


def unsupported(
    path: str, at: int, cause: str, remedy: str = "unpack it (tar -xf), and write it anew"
) -> FormatError:
    """Return the error for a sound archive of a kind that is not read."""
    return FormatError(
        f"{path}, byte {at}: this tar archive is not supported", cause=cause, remedy=remedy
    )
