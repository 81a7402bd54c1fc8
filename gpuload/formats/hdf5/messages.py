"""Messages: the parts of the header of an HDF5 dataset that tell of its chunks more than h5py does.

    index     how chunks are found: a B-tree of version 1 or 2, an array that grows along one axis,
              ...
    is_whole  whether chunks at the edges, which reach beyond the dataset, went through the filters,
              too

Layout  A header is a row of messages in one or more blocks. Of version 1 each message has a head of
        8 bytes; of version 2 blocks begin with "OHDR" and "OCHK" and end with a checksum, and each
        message has a head of 4 or 6 bytes.
Limits  Of a header that is not as expected here None is returned: HDF5 itself decodes such a
        dataset then.
Source  HDF5 File Format Specification 3.0, IV.A "Data Object Headers", IV.A.2.i "Data Layout
        Message"
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

LAYOUT, CONTINUATION = 0x0008, 0x0010
CHUNKED = 2  # class of layouts
BTREE_1, FIXED_ARRAY, EXTENSIBLE_ARRAY = 0, 3, 4  # indexes; 0 is ours, for layouts of version 3
UNFILTERED_EDGES = 1  # flag of a layout of version 4
SHARED = 2  # flag of a message that lies elsewhere
HAS_TIMES, HAS_ATTRIBUTE_COUNTS, HAS_ORDER = 0x20, 0x10, 0x04  # flags of a header of version 2
MOST_BLOCKS, MOST_BYTES = 64, 1 << 20  # of a header
FIRST_BYTES = 512
Read = Callable[[int, int], bytes]


@dataclass(frozen=True)
class ChunkIndex:
    """How chunks lie.

    Attributes:
        kind: the number of the index in the specification; BTREE_1 for layouts of version 3.
        is_whole: True if all chunks went through the filters.
    """

    kind: int
    is_whole: bool


def chunk_index(read: Read, address: int) -> ChunkIndex | None:
    """Return how the chunks of a dataset lie; None if its header does not say so in a way that is
    known here.

    Args:
        read: returns bytes of the file: place and length; fewer where the file ends.
        address: of the header.
    """
    for kind, flags, content in _messages(read, address):
        if kind == LAYOUT and not flags & SHARED and len(content) > 4 and content[1] == CHUNKED:
            if content[0] == 3:
                return ChunkIndex(BTREE_1, True)
            # Version, class, flags, number of axes, bytes of a length; then these lengths, and the
            # kind of index.
            at = 5 + content[3] * content[4]
            is_known = content[0] in (4, 5) and at < len(content)
            if is_known:
                return ChunkIndex(content[at], not content[2] & UNFILTERED_EDGES)
            return None
    return None


def _messages(read: Read, address: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield number, flags and content of the messages of a header; none where it cannot be read."""
    head = read(address, FIRST_BYTES)
    blocks: list[bytes]
    if head[:4] == b"OHDR" and len(head) > 5 and head[4] == 2:
        flags, at = head[5], 6
        at += 16 * bool(flags & HAS_TIMES) + 4 * bool(flags & HAS_ATTRIBUTE_COUNTS)
        width = 1 << (flags & 3)
        size = int.from_bytes(head[at : at + width], "little")
        blocks, message_head, is_first_version = (
            [read(address + at + width, _bounded(size))],
            4,
            False,
        )
        message_head += 2 * bool(flags & HAS_ORDER)
    elif head[:2] == b"\x01\0":
        size = int.from_bytes(head[8:12], "little")
        blocks, message_head, is_first_version = [read(address + 16, _bounded(size))], 8, True
    else:
        return
    num_blocks = 1
    while blocks:
        block, at = blocks.pop(0), 0
        while at + message_head <= len(block):
            if is_first_version:
                kind, length = (
                    int.from_bytes(block[at + i : at + i + 2], "little") for i in (0, 2)
                )
                flags = block[at + 4]
            else:
                kind, length, flags = (
                    block[at],
                    int.from_bytes(block[at + 1 : at + 3], "little"),
                    block[at + 3],
                )
            content = block[at + message_head : at + message_head + length]
            at += message_head + length
            if kind == CONTINUATION and len(content) >= 16 and num_blocks < MOST_BLOCKS:
                place, size = (int.from_bytes(content[i : i + 8], "little") for i in (0, 8))
                block_bytes = read(place, _bounded(size))
                # A block of version 2 has its name in front and a checksum behind.
                blocks.append(block_bytes if is_first_version else block_bytes[4:-4])
                num_blocks += 1
            yield kind, flags, content


def _bounded(size: int) -> int:
    return size if size <= MOST_BYTES else 0
