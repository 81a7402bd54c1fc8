"""Heaps: the values of varying length of an HDF5 file, looked through before HDF5's library does.

The library walks the objects of a heap by the lengths that stand there, without a limit: of one of
length 0 it never comes back, with Python's lock, so that nothing can break it off (libhdf5 1.14.6).
h5py reads a heap by a call of its own for its beginning, where the whole of it is looked through
here.

Layout  "GCOL", version 1, 3 bytes of zeros, the size; then objects: number, count of references, 4
        bytes, the length, and that many bytes, rounded up to 8. Object 0 is the free space, and its
        length has its own head in it.
Source  HDF5 File Format Specification 3.0, III.E "Disk Format: Level 1E - Global Heap"
"""

from __future__ import annotations

from gpuload.formats.hdf5 import MAGIC

HEAP = b"GCOL\x01\0\0\0"
STEP = 8  # to which places are rounded up


def length_bytes_of(superblock: bytes) -> int:
    """Return how many bytes a length in a file takes, by the superblock that it begins with; 8 if
    it does not say."""
    at = 10
    if superblock[8:9] <= b"\x01":
        at = 14
    if superblock.startswith(MAGIC) and at < len(superblock):
        width = superblock[at]
    else:
        width = 8
    if width in (2, 4, 8, 16):
        return width
    return 8


def heap_size(head: bytes, length_bytes: int) -> int:
    """Return the size of the heap that begins with these bytes; 0 if they are no beginning of a
    heap."""
    if head.startswith(HEAP):
        return int.from_bytes(head[8 : 8 + length_bytes], "little")
    return 0


def heap_fault(heap: bytes, length_bytes: int) -> str:
    """Return why HDF5's library would not come to the end of a heap; "" if it does."""
    head_bytes = _round_up(8 + length_bytes)
    at = head_bytes
    while at + head_bytes <= len(heap):
        number = int.from_bytes(heap[at : at + 2], "little")
        length = int.from_bytes(heap[at + 8 : at + 8 + length_bytes], "little")
        if number:
            step = head_bytes + _round_up(length)
        else:
            step = length
        if step < head_bytes or step > len(heap) - at:
            return f"object {number} at byte {at} of a heap of {len(heap)} bytes states a length of {length}"
        at += step
    return ""


def _round_up(size: int) -> int:
    return -(-size // STEP) * STEP
