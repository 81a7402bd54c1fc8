"""ZIP archives: the members of a file and the places of their bytes. Every statement of the file is
checked first.

Layout  members, each a local header and its bytes; the directory, an entry for each member; the end
        record, which says where the directory is. Large archives have ZIP64's records beside these.
Checks  The directory lies right before its end and has the stated number of entries; no two members
        overlap; no name occurs twice; the local header agrees with the entry; a member is not
        larger than deflate could make it, nor than the limit of `storage/inflate.py`.
Takes   members as they are (stored) and deflated; others, and encrypted ones, are refused by name.
Memory  the directory alone, of at most LARGEST_DIRECTORY_BYTES; of members, a piece at a time.
Packed  an archive of one file is that file, packed, as gzip would have it: a table in
        train.csv.zip, say. The folder __MACOSX, which macOS puts beside it, does not count.
Source  PKWARE's APPNOTE.TXT 6.3.10, sections 4.3 to 4.5
"""

from __future__ import annotations

import os
import shlex
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, NoReturn

from gpuload.errors import FormatError
from gpuload.storage.crc32 import crc32
from gpuload.storage.fileerrors import open_error
from gpuload.storage.files import Files
from gpuload.storage.handles import Handle, close_handle, open_handle, read_at
from gpuload.storage.inflate import (
    IN_BYTES,
    LARGEST_EXPANSION,
    inflate_member,
    limit_bytes,
    reason_of,
    too_large,
)

MAGIC = b"PK\3\4"  # a local header, with which an archive begins

STORE, DEFLATE = 0, 8
# 4.4.5
METHODS = {1: "shrink", 9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd", 95: "xz", 98: "ppmd"}
LOCAL = struct.Struct("<4s5H3I2H")  # 4.3.7
ENTRY = struct.Struct("<4s6H3I5H2I")  # 4.3.12
END = struct.Struct("<4s4H2IH")  # 4.3.16
END64 = struct.Struct("<4sQ2H2I4Q")  # 4.3.14
LOCATOR64 = struct.Struct("<4sIQI")  # 4.3.15
# 4.4.4; "later": the local header does not say sizes
ENCRYPTED, LATER, UTF8 = (1 << 0, 1 << 3, 1 << 11)
NONE16, NONE32 = 0xFFFF, 0xFFFFFFFF  # the number is in ZIP64's record
EXTRA64 = 1  # 4.5.3
PIECE_BYTES = 4096  # read at once: of most archives the end with the directory
LONGEST_COMMENT = 0xFFFF
LARGEST_DIRECTORY_BYTES = 1 << 24  # some 200,000 members
SLACK_BYTES = 64  # of an empty member
MACS, ARRAY, PICKLE, OFFICE = "__MACOSX/", ".npy", "/data.pkl", "[Content_Types].xml"
TORCH_SUFFIXES, OFFICE_SUFFIXES = (".pt", ".pth"), (".xlsx", ".ods", ".docx", ".pptx")
MOST_NAMES = 3  # of members, in an error
COPY_AGAIN = "it was cut short or changed: copy it again"


class ArchiveMember(NamedTuple):
    """One member, as the directory says.

    Attributes:
        name: of the member.
        flags, method: general purpose flags, compression method.
        crc: CRC-32 of its bytes, unpacked.
        packed_bytes, num_bytes: its bytes in the archive, and unpacked.
        header_offset: where its local header begins.
        after: the byte where the next member or the directory begins.
    """

    name: str
    flags: int
    method: int
    crc: int
    packed_bytes: int
    num_bytes: int
    header_offset: int
    after: int = 0


class Pieces:
    """Bytes of a file at any place. Its beginning is there already, the file is opened when more is
    asked for.

    At least PIECE_BYTES are read at a time, and kept until others are read: a header comes in small
    parts.

    Args:
        path: the file.
        size: its size.
        head: its first bytes.
    """

    def __init__(self, path: str, size: int, head: bytes) -> None:
        self.path, self.size = path, size
        self._head = head
        self._handle: Handle | None = None
        self._piece, self._begin = b"", 0

    def __call__(self, offset: int, num_bytes: int) -> bytes:
        """Return bytes, fewer only where the file ends."""
        end = min(offset + num_bytes, self.size)
        if end <= len(self._head):
            return self._head[offset:end]
        if not self._begin <= offset <= end <= self._begin + len(self._piece):
            piece = bytearray(max(0, min(max(num_bytes, PIECE_BYTES), self.size - offset)))
            try:
                if self._handle is None:
                    self._handle = open_handle(self.path)
                num_read = read_at(self._handle, memoryview(piece), offset)
            except OSError as error:
                raise open_error(self.path, error) from None
            self._piece, self._begin = bytes(piece[:num_read]), offset
        first = offset - self._begin
        return self._piece[first : first + num_bytes]

    def close(self) -> None:
        """Close the file, if it was opened."""
        if self._handle is not None:
            close_handle(self._handle)
            self._handle = None


def members(pieces: Pieces) -> dict[str, ArchiveMember]:
    """Return the members of an archive by name, in the order of its directory.

    Raises:
        FormatError: it is no archive, or its directory is damaged or lies.
    """
    refuse = _refuse_with(f"{pieces.path} is no archive to read")
    num_entries, offset, length = _directory(pieces, refuse)
    by_name: dict[str, ArchiveMember] = {}
    for member in _entries(pieces(offset, length), offset, refuse):
        if member.name in by_name:
            refuse(
                f"two of its members are called {member.name!r}, of which numpy.load gives the "
                "last",
                "write it anew with this one: numpy.savez('new.npz', "
                f"**dict(numpy.load({pieces.path!r})))",
            )
        by_name[member.name] = member
    if len(by_name) != num_entries:
        refuse(f"its end says that it has {num_entries} members, its directory has {len(by_name)}")
    return _with_bounds(by_name, offset, refuse)


def begin_of(pieces: Pieces, member: ArchiveMember) -> int:
    """Return where the bytes of a member begin.

    Raises:
        FormatError: it cannot be unpacked here, or its local header says something else than the
            directory.
    """
    refuse = _refuse_with(
        f"{pieces.path}, member {member.name!r} at byte {member.header_offset}, cannot be read"
    )
    if member.flags & ENCRYPTED:
        refuse(
            "it is encrypted", "unpack the archive with its password, and pack it anew without one"
        )
    if member.method not in (STORE, DEFLATE):
        packer = METHODS.get(member.method, f"method {member.method}")
        refuse(
            f"it is packed with {packer}, and members are read that are stored or deflated",
            "unpack it, and pack it anew: numpy.savez for arrays, zip for other files",
        )
    raw = pieces(member.header_offset, LOCAL.size)
    if len(raw) < LOCAL.size or not raw.startswith(MAGIC):
        refuse(f"no local header is there, but {raw[:4].hex(' ') or 'nothing'}")
    _, _, flags, method, _, _, crc, packed_bytes, num_bytes, num_name, num_extra = LOCAL.unpack(raw)
    name = _decode_name(pieces(member.header_offset + LOCAL.size, num_name), flags)
    if method != member.method or (flags ^ member.flags) & ENCRYPTED or name != member.name:
        refuse(
            f"its local header is that of {name!r} of method {method}, the directory says method "
            f"{member.method}"
        )
    # 4.4.4: bit 3 puts sizes and check sum behind the bytes; in the local header there are zeros.
    if flags & LATER:
        crc, packed_bytes, num_bytes = member.crc, NONE32, NONE32
    # Compared, though the directory alone is used: readers that go from header to header would see
    # another archive.
    sizes = packed_bytes in (member.packed_bytes, NONE32) and num_bytes in (
        member.num_bytes,
        NONE32,
    )
    if not sizes or crc != member.crc:
        refuse(
            f"its local header says {packed_bytes} bytes that become {num_bytes} with the check "
            f"sum {crc:08x}, the directory {member.packed_bytes}, {member.num_bytes} and "
            f"{member.crc:08x}"
        )
    begin = member.header_offset + LOCAL.size + num_name + num_extra
    if begin + member.packed_bytes > member.after:
        refuse(
            f"its {member.packed_bytes} bytes from byte {begin} on overlap the part that begins at "
            f"{member.after}"
        )
    is_same_size = member.packed_bytes == member.num_bytes
    if member.method == STORE:
        max_bytes = member.packed_bytes
    else:
        max_bytes = LARGEST_EXPANSION * member.packed_bytes + SLACK_BYTES
    if member.num_bytes > max_bytes or (member.method == STORE and not is_same_size):
        refuse(f"{member.packed_bytes} bytes cannot become {member.num_bytes}")
    if member.method != STORE and member.num_bytes > limit_bytes(member.packed_bytes):
        unpack = f"unzip {shlex.quote(pieces.path)}"
        raise too_large(
            f"{pieces.path}, member {member.name!r},",
            member.packed_bytes,
            member.num_bytes,
            unpack=unpack,
        )
    return int(begin)


def inflate_only_file(files: Files, number: int) -> Iterator[tuple[int, bytes]]:
    """Yield the content of the one file in an archive, in pieces: the position in the archive, and
    the bytes.

    The last piece comes only after number and check sum of the bytes were verified.

    Args:
        files: the user's.
        number: of the archive.

    Raises:
        FormatError: there are several files in it, or it is damaged, or unpacks to more than the
            limit.
        ChangedFileError, FileError: the archive changed, or cannot be read.
    """
    path, size = files.paths[number], int(files.sizes[number])
    member, begin = _only_file(path, size)
    end = begin + member.packed_bytes

    def chunks() -> Iterator[memoryview]:
        nonlocal begin
        while begin < end:
            chunk = bytearray(min(IN_BYTES, end - begin))
            files.read(number, descriptor, memoryview(chunk), begin)
            begin += len(chunk)
            yield memoryview(chunk)

    def to_error(reason: str) -> FormatError:
        title = f"{path}, member {member.name!r} at byte {member.header_offset}, is damaged"
        return FormatError(title, cause=reason, remedy=COPY_AGAIN)

    with files.open_file(number) as descriptor:
        for piece in verify_pieces(
            chunks(), member.method == STORE, member.num_bytes, member.crc, to_error
        ):
            if begin == end:  # before the last pieces
                files.check_descriptor(number, descriptor)
            yield begin, piece


def verify_pieces(
    chunks: Iterable[memoryview],
    is_stored: bool,
    num_bytes: int,
    crc: int,
    to_error: Callable[[str], Exception],
) -> Iterator[bytes]:
    """Yield all bytes of a member, unpacked; the last piece only after their number and check sum
    were verified.

    Args:
        chunks: its bytes in the archive.
        is_stored: True if they are not packed.
        num_bytes: unpacked, as the archive says.
        crc: CRC-32 of the unpacked bytes, as the archive says.
        to_error: returns the error for a reason.
    """
    actual_crc, actual_bytes, last_piece = 0, 0, b""
    try:
        # `bytes` copies: the memory of a chunk may be used again for the next one.
        for piece in map(bytes, chunks) if is_stored else inflate_member(chunks):
            actual_bytes += len(piece)
            if actual_bytes > num_bytes:
                raise to_error(f"it becomes more than the {num_bytes} bytes that it says")
            actual_crc = crc32(piece, actual_crc)
            if last_piece:
                yield last_piece
            last_piece = piece
    except (zlib.error, EOFError) as error:
        raise to_error(f"it cannot be inflated: {reason_of(error)}") from None
    if actual_bytes < num_bytes:
        raise to_error(f"it becomes {actual_bytes} bytes, and says {num_bytes}")
    if actual_crc != crc:
        raise to_error(f"its check sum is {actual_crc:08x}, the archive says {crc:08x}")
    yield last_piece


def unpacking(path: str, names: Iterable[str] = ()) -> str:
    """Return the remedy for an archive of other files: the command that unpacks it, or a program
    for PyTorch's."""
    names, suffix = list(names), os.path.splitext(path)[1].lower()
    if OFFICE in names or suffix in OFFICE_SUFFIXES:
        return "it is a document of an office program: save its table as CSV, and open that"
    if any(name.endswith(PICKLE) for name in names) or suffix in TORCH_SUFFIXES:
        return (
            "PyTorch wrote it, and its tensors are pickled: write them as arrays where torch is "
            f"installed, numpy.save('x.npy', torch.load({path!r})['x'].numpy()) say"
        )
    return f"unpack it, and open the files: unzip {shlex.quote(path)} -d {shlex.quote(os.path.splitext(path)[0])}"


def first_name(head: bytes) -> str:
    """Return the name of the first member of an archive that begins so; "" where it is cut."""
    if len(head) < LOCAL.size or not head.startswith(MAGIC):
        return ""
    fields = LOCAL.unpack_from(head)
    return _decode_name(head[LOCAL.size : LOCAL.size + fields[9]], fields[2])


def files_in(names: Iterable[str]) -> list[str]:
    """Return the names of members that are files, without those that macOS puts beside them."""
    return [name for name in names if not name.endswith("/") and not name.startswith(MACS)]


def _only_file(path: str, size: int) -> tuple[ArchiveMember, int]:
    """Return the one file in an archive, and where its bytes begin.

    Raises:
        FormatError: there are several, or arrays, or none.
    """
    pieces = Pieces(path, size, b"")
    try:
        names = members(pieces)
        file_names = files_in(names)
        if len(file_names) != 1:
            listing = ", ".join(map(repr, file_names[:MOST_NAMES])) + " ..." * (
                len(file_names) > MOST_NAMES
            )
            raise FormatError(
                f"{path} is a ZIP archive of {len(file_names)} files",
                cause=f"an archive of one file is read as that file; it holds {listing or 'none'}",
                remedy=unpacking(path, file_names),
            )
        if file_names[0].endswith(ARRAY):
            raise FormatError(
                f"{path} is an NPZ file",
                cause=f"it is a ZIP archive that holds {file_names[0]!r}",
                remedy="call gl.npz(path)",
            )
        member = names[file_names[0]]
        return member, begin_of(pieces, member)
    finally:
        pieces.close()


Refuse = Callable[..., NoReturn]


def _refuse_with(message: str) -> Refuse:
    def refuse(cause: str, remedy: str = COPY_AGAIN) -> NoReturn:
        raise FormatError(message, cause=cause, remedy=remedy)

    return refuse


def _directory(pieces: Pieces, refuse: Refuse) -> tuple[int, int, int]:
    """Return how many entries the directory has, where it begins, and its bytes."""
    if not pieces.size:
        refuse("the file is empty", "it was never written: make it again")
    # Most archives have no comment: the end is in the last piece, and the 64 KiB of the longest one
    # are not read.
    for num_bytes in (PIECE_BYTES, END.size + LONGEST_COMMENT):
        begin = max(0, pieces.size - num_bytes)
        tail = pieces(begin, num_bytes)
        if (at := _end_in(tail)) is not None or begin == 0:
            break
    if at is None:
        start = pieces(0, 4)
        if (last := tail.rfind(b"PK\5\6")) >= 0 and len(tail) - last > END.size:
            end = begin + last + END.size + int.from_bytes(tail[last + 20 : last + 22], "little")
            refuse(
                f"{pieces.size - end} bytes follow the end of the archive, or its end is damaged",
                f"if they are not wanted, leave them out: head -c {end} {shlex.quote(pieces.path)} "
                "> new.npz",
            )
        if MAGIC.startswith(start):
            refuse(
                "it begins as one, and has no directory at its end",
                "it was cut short: copy it again",
            )
        refuse(
            f"an NPZ file begins with 50 4b 03 04, this one with {start.hex(' ')}",
            "gl.open(path) finds out what it is",
        )
    _, disk, first_disk, _, num_entries, length, offset, _ = END.unpack_from(tail, at)
    end = begin + at
    # 4.4.1.4: a field of all ones says that ZIP64's record has the number.
    if NONE16 in (num_entries, disk) or NONE32 in (length, offset):
        end, disk, first_disk, num_entries, length, offset = _directory64(pieces, end, refuse)
    if disk or first_disk:
        refuse(
            "it is one part of an archive of several files",
            "join them, and write the arrays with numpy.savez",
        )
    # `zipfile` takes bytes in front of an archive, and moves all places by them; then two readers
    # see different members.
    if offset + length != end:
        refuse(
            f"its end says that its directory has {length} bytes from byte {offset} on, and it "
            f"ends at byte {end}",
            "it was cut short or changed, or begins with other bytes than those of the archive: "
            "copy it again, or write it anew with numpy.savez",
        )
    if length > LARGEST_DIRECTORY_BYTES:
        refuse(
            f"its directory of {length} bytes is longer than {LARGEST_DIRECTORY_BYTES}",
            "write several files",
        )
    return num_entries, offset, length


def _end_in(tail: bytes) -> int | None:
    """Return where the end record begins in the last bytes of a file: its comment reaches to the
    end."""
    at = tail.rfind(b"PK\5\6")
    while at >= 0:
        if len(tail) - at >= END.size and at + END.size + int.from_bytes(
            tail[at + 20 : at + 22], "little"
        ) == len(tail):
            return at
        # The four bytes may stand in the comment as well; only the record with a comment up to the
        # end of the file is the right one.
        at = tail.rfind(b"PK\5\6", 0, at + 3)
    return None


def _directory64(pieces: Pieces, end: int, refuse: Refuse) -> tuple[int, int, int, int, int, int]:
    """Return where ZIP64's end record begins, its disks, the number of entries, bytes and place of
    the directory."""
    if end >= LOCATOR64.size:
        raw = pieces(end - LOCATOR64.size, LOCATOR64.size)
    else:
        raw = b""
    if not raw.startswith(b"PK\6\7"):
        refuse(f"ZIP64's locator is not before byte {end}, where it has to be")
    _, _, at, _ = LOCATOR64.unpack(raw)
    if at <= end - LOCATOR64.size - END64.size:
        raw = pieces(at, END64.size)
    else:
        raw = b""
    if not raw.startswith(b"PK\6\6"):
        refuse(f"ZIP64's end record is not at byte {at}, where its locator says")
    _, _, _, _, disk, first_disk, _, num_entries, length, offset = END64.unpack(raw)
    return at, disk, first_disk, num_entries, length, offset


def _entries(raw: bytes, offset: int, refuse: Refuse) -> Iterator[ArchiveMember]:
    """Yield the members that a directory has."""
    at = 0
    while at < len(raw):
        if len(raw) - at < ENTRY.size or not raw.startswith(b"PK\1\2", at):
            refuse(f"at byte {offset + at} should be an entry of its directory")
        fields = ENTRY.unpack_from(raw, at)
        (
            _,
            _,
            _,
            flags,
            method,
            _,
            _,
            crc,
            packed_bytes,
            num_bytes,
            num_name,
            num_extra,
            num_comment,
            _,
            _,
            _,
            header,
        ) = fields
        begin = at + ENTRY.size
        name = raw[begin : begin + num_name]
        extra = raw[begin + num_name : begin + num_name + num_extra]
        at = begin + num_name + num_extra + num_comment
        if at > len(raw):
            refuse(
                "the last entry of its directory does not fit into it, which ends at byte "
                f"{offset + len(raw)}"
            )
        if NONE32 in (num_bytes, packed_bytes, header):
            wide = _wide(extra)
        else:
            wide = iter(())
        # 4.5.3: ZIP64's extra field has only the numbers that are all ones in the entry, in this
        # order.
        num_bytes, packed_bytes, header = (
            next(wide, number) if number == NONE32 else number
            for number in (num_bytes, packed_bytes, header)
        )
        yield ArchiveMember(
            _decode_name(name, flags), flags, method, crc, packed_bytes, num_bytes, header
        )


def _wide(extra: bytes) -> Iterator[int]:
    """Yield the numbers of 64 bits in the extra fields of an entry."""
    at = 0
    while len(extra) - at >= 4:
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == EXTRA64:
            body = extra[at + 4 : at + 4 + length]
            yield from (
                number for (number,) in struct.iter_unpack("<Q", body[: len(body) // 8 * 8])
            )
            return
        at += 4 + length


def _decode_name(name: bytes, flags: int) -> str:
    # Appendix D: without the flag a name is in the code page of the first PCs.
    return name.decode("utf-8" if flags & UTF8 else "cp437", "surrogateescape")


def _with_bounds(
    by_name: dict[str, ArchiveMember], directory: int, refuse: Refuse
) -> dict[str, ArchiveMember]:
    """Return the members, each with the byte where the next one begins; it may not reach beyond
    that."""
    # Members that overlap make a small file unpack to terabytes ("zip bomb"); here each byte is of
    # one member.
    in_place = sorted(by_name.values(), key=lambda member: member.header_offset)
    afters = [member.header_offset for member in in_place[1:]] + [directory]
    bounded = {}
    # without members the directory follows none
    for member, after in zip(in_place, afters, strict=False):
        if member.header_offset + LOCAL.size + member.packed_bytes > after:
            refuse(
                f"member {member.name!r}, of {member.packed_bytes} bytes from byte "
                f"{member.header_offset} on, overlaps the part that begins at byte {after}"
            )
        bounded[member.name] = member._replace(after=after)
    return {name: bounded[name] for name in by_name}
