"""Extents: bytes at (file, offset, length) into places of one block of memory, checked before and after.

Mapped files are copied from with ``memcpy``; while one extent is copied, the beginning of the one after the next is
fetched (measured for 3 KB extents in random order: 0.75 of the time that it takes without); extents that are
neighbours in the file and stay neighbours are one copy. Extents of files without a map are read with open, pread and
close. Afterwards each file that was touched is asked whether it still is what it was when it was opened, so that no
bytes of a changed file leave this module.

Before    file numbers, offsets, lengths and places are checked before the first address is made of them, so that a
          wrong number from a caller is a result, never a read or a write outside.
Table     of the files, what is mapped, and results: see `table`.
Source    statx(2): stx_ino at byte 32, stx_size at 40, stx_mtime at 112, the same on every 64-bit Linux; madvise(2).
"""

from __future__ import annotations

import mmap
import os

import numpy as np
from numba import types
from numpy.typing import NDArray

from gpuload.kernels import guard
from gpuload.kernels.compile import kernel, libc
from gpuload.kernels.memory import copy_1, copy_2, copy_4, copy_8, copy_bytes, load_int, load_word, prefetch
from gpuload.kernels.table import (
    ADDRESS,
    AT_FDCWD,
    CHANGED,
    DONE,
    FAILED,
    INODE,
    MAP_BYTES,
    MAP_PARTS,
    MTIME_NS,
    OUTSIDE,
    PATH,
    ROW_WORDS,
    SIZE,
    SLOT,
    UNGUARDED,
    UNTRIED,
    WANTS_MAP,
)

Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]

UNMAPPED = -1  # in place of the address of an extent
NEXT_LINES, AHEAD_PAGES = 8, 4  # what is fetched of an extent that follows in order, of another; measured
AHEAD_ITEMS = 8  # of extents of at most a cache line, the one that is so many later is fetched; measured
LINE_BYTES, PAGE_BYTES = 64, mmap.PAGESIZE
JOINED_BYTES = 8192  # neighbours are one copy up to here; measured: longer ones are slower by a fifth
LARGEST_READ = 1 << 30  # Linux reads at most 0x7ffff000 bytes a call
LONGEST_ASKED = 1 << 20  # bytes of a run that is asked for before it is copied
MADV_WILLNEED = 3
SCRATCH_WORDS = 32  # struct statx and struct sigaction have at most 256 bytes
FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
AT_EMPTY_PATH, WANTED = 0x1000, 0x340  # STATX_INO, STATX_SIZE, STATX_MTIME
EINTR = 4

_open = libc("open", types.int32, types.int64, types.int32)
_close = libc("close", types.int32, types.int32)
_pread = libc("pread", types.int64, types.int32, types.int64, types.int64, types.int64)
_statx = libc("statx", types.int32, types.int32, types.int64, types.int32, types.uint32, types.int64)
_madvise = libc("madvise", types.int32, types.int64, types.int64, types.int32)
_errno = libc("__errno_location", types.int64)


@kernel
def copy_extents(
    files: Int64s,
    offsets: Int64s,
    lengths: Int64s,
    begins: Int64s,
    out: Bytes,
    table: Int64s,
    paths: Bytes,
    piece_bytes: int,
) -> int:
    """Copy ``lengths[i]`` bytes at ``offsets[i]`` of file ``files[i]`` to ``out[begins[i]:]``.

    Args:
        files: numbers of files, all arrays of the same length.
        offsets: bytes from the beginning of each file.
        lengths: bytes.
        begins: places in ``out``.
        out: where the bytes go.
        table: see `table`.
        paths: all paths as C strings one after the other, then an empty one.
        piece_bytes: the system is told in such pieces what will be copied, before it is; 0: it is not told.

    Returns:
        DONE, or ``8 * number + reason``; nothing was written for OUTSIDE, WANTS_MAP and UNGUARDED.
    """
    sources, scratch = np.empty(files.size, np.int64), np.empty(SCRATCH_WORDS, np.int64)
    result, num_mapped = _locate(files, offsets, lengths, begins, out.size, table, sources)
    if result != DONE:
        return int(result)
    if num_mapped > 0:
        if not guard.installed(scratch.ctypes.data):
            return UNGUARDED
        if piece_bytes > 0:
            _ask_for(sources, lengths, piece_bytes)
        _copy_mapped(sources, lengths, begins, out.ctypes.data)
        result = _check_mapped(files, sources, table, paths, scratch)
    if result == DONE and num_mapped < files.size:
        result = _read_unmapped(files, offsets, lengths, begins, out.ctypes.data, table, paths, sources, scratch)
    return int(result)


@kernel
def _locate(
    files: Int64s, offsets: Int64s, lengths: Int64s, begins: Int64s, out_bytes: int, table: Int64s, sources: Int64s
) -> tuple[int, int]:
    """Check every extent; fill in the address of each, or UNMAPPED. Returns the result and how many are mapped.

    The addresses are kept for the whole call: another thread may map a file while this one copies, and each extent
    must then still be either copied or read. An extent without bytes touches no file.
    """
    num_mapped = 0
    for i in range(files.size):
        file, offset, length, begin = files[i], offsets[i], lengths[i], begins[i]
        if file < 0 or file >= table.shape[0] or length < 0 or offset < 0 or begin < 0:
            return 8 * i + OUTSIDE, 0
        if length > out_bytes - begin or length > table[file, SIZE] - offset:  # so said, no sum can overflow
            return 8 * i + OUTSIDE, 0
        address = load_word(table.ctypes.data + 8 * (ROW_WORDS * file + ADDRESS))
        sources[i] = UNMAPPED
        if length > 0 and address > 0:
            sources[i] = address + offset
            num_mapped += 1
        elif address == UNTRIED and _worth_mapping(length, table[file, SIZE]):
            return 8 * file + WANTS_MAP, 0
    return DONE, num_mapped


@kernel
def _worth_mapping(length: int, size: int) -> bool:
    return size >= MAP_BYTES and 0 < length <= size // MAP_PARTS


@kernel
def _ask_for(sources: Int64s, lengths: Int64s, piece_bytes: int) -> None:
    """Ask for the pages of all extents, so that they come from the disk together; not for those of long runs.

    It also keeps the system from reading all that is around each page that is missing (128 KiB to 8 MiB), a thousand
    times what rows of 3 KB need, which ruins a cache that is smaller than the files. Long runs are left to the system.
    """
    i = 0
    while i < sources.size:
        after = i + 1
        while after < sources.size and sources[after] == sources[after - 1] + lengths[after - 1]:
            after += 1
        if sources[i] != UNMAPPED and sources[after - 1] + lengths[after - 1] - sources[i] <= LONGEST_ASKED:
            _ask_for_run(sources[i], sources[after - 1] + lengths[after - 1], piece_bytes)
        i = after


@kernel
def _ask_for_run(begin: int, end: int, piece_bytes: int) -> None:
    place = begin - begin % PAGE_BYTES
    while place < end:
        _madvise(place, min(end - place, piece_bytes), MADV_WILLNEED)
        place += piece_bytes


@kernel
def _copy_mapped(sources: Int64s, lengths: Int64s, begins: Int64s, to: int) -> None:
    i, num_extents = 0, sources.size
    while i < num_extents:
        source, size, after = sources[i], lengths[i], i + 1
        while (
            after < num_extents
            and sources[after] == source + size
            and begins[after] == begins[i] + size
            and size + lengths[after] <= JOINED_BYTES
        ):
            size += lengths[after]
            after += 1
        if source != UNMAPPED:
            if size <= LINE_BYTES:
                ahead = min(i + AHEAD_ITEMS, num_extents - 1)
                if sources[ahead] != UNMAPPED:
                    prefetch(sources[ahead])
            elif after < num_extents and sources[after] == source + size:
                for line in range(NEXT_LINES):
                    prefetch(sources[after] + LINE_BYTES * line)
            elif after + 1 < num_extents and sources[after + 1] != UNMAPPED:
                _fetch(sources[after + 1], lengths[after + 1])
            _copy(to + begins[i], source, size)
        i = after


@kernel
def _fetch(address: int, num_bytes: int) -> None:
    """Begin to bring an extent near: the first cache lines of its first pages, so that their addresses come, too."""
    place, end = address, address + min(num_bytes, AHEAD_PAGES * PAGE_BYTES)
    while place < end:
        prefetch(place)
        prefetch(place + LINE_BYTES)
        place += PAGE_BYTES - place % PAGE_BYTES


@kernel
def _copy(to: int, source: int, num_bytes: int) -> None:
    """Copy bytes; a file in Fortran order is read item by item, where a call of memcpy would be most of the time."""
    if num_bytes == 4:
        copy_4(to, source)
    elif num_bytes == 8:
        copy_8(to, source)
    elif num_bytes == 2:
        copy_2(to, source)
    elif num_bytes == 1:
        copy_1(to, source)
    else:
        copy_bytes(to, source, num_bytes)


@kernel
def _check_mapped(files: Int64s, sources: Int64s, table: Int64s, paths: Bytes, scratch: Int64s) -> int:
    """Check each file whose map was read: stamp first, then whether pages were lost.

    ``checked`` remembers one file a place; where two want the same place, a file may be checked again.
    """
    num_places = 1
    while num_places < min(files.size, table.shape[0]):
        num_places *= 2
    checked = np.full(num_places, -1, np.int64)
    for i in range(files.size):
        file = files[i]
        if sources[i] != UNMAPPED and checked[file & (num_places - 1)] != file:
            checked[file & (num_places - 1)] = file
            result: int = _check(AT_FDCWD, table[file], paths, scratch)
            if result != DONE:
                return int(8 * file + result)
            if guard.broken(table[file, SLOT]):
                return int(8 * file + FAILED)
    return DONE


@kernel
def _read_unmapped(
    files: Int64s, offsets: Int64s, lengths: Int64s, begins: Int64s, to: int, table: Int64s, paths: Bytes,
    sources: Int64s, scratch: Int64s,
) -> int:  # fmt: skip
    """Read the extents of files that are not mapped: each file opened once for its extents that follow one another."""
    i = 0
    while i < files.size:
        file, after = files[i], i + 1
        if sources[i] == UNMAPPED and lengths[i] > 0:
            while after < files.size and files[after] == file and sources[after] == UNMAPPED:
                after += 1
            descriptor = _open(paths.ctypes.data + table[file, PATH], FLAGS)
            result: int = _read_runs(descriptor, offsets[i:after], lengths[i:after], begins[i:after], to)
            if result == DONE:
                result = _check(descriptor, table[file], paths, scratch)
            if descriptor >= 0:
                _close(descriptor)
            if result != DONE:
                return int(8 * file + result)
        i = after
    return DONE


@kernel
def _read_runs(descriptor: int, offsets: Int64s, lengths: Int64s, begins: Int64s, to: int) -> int:
    """Read extents of one file; those that are neighbours and stay neighbours in one call."""
    i, result = 0, DONE
    while i < offsets.size and result == DONE:
        size, after = lengths[i], i + 1
        while after < offsets.size and offsets[after] == offsets[i] + size and begins[after] == begins[i] + size:
            size += lengths[after]
            after += 1
        result = _read(descriptor, to + begins[i], size, offsets[i])
        i = after
    return result


@kernel
def _read(descriptor: int, address: int, num_bytes: int, offset: int) -> int:
    """Read all of the bytes, in as many calls as it takes."""
    if descriptor < 0:
        return FAILED
    done = 0
    while done < num_bytes:
        got = _pread(descriptor, address + done, min(num_bytes - done, LARGEST_READ), offset + done)
        if got == 0:
            return CHANGED
        if got > 0:
            done += got
        elif load_int(_errno()) != EINTR:
            return FAILED
    return DONE


@kernel
def _check(descriptor: int, entry: Int64s, paths: Bytes, scratch: Int64s) -> int:
    """Compare a file's stamp with that in its table entry: by its path, or by a descriptor that is open."""
    by_path = descriptor == AT_FDCWD
    path = paths.ctypes.data + (entry[PATH] if by_path else paths.size - 1)  # the last byte is an empty path
    if _statx(descriptor, path, 0 if by_path else AT_EMPTY_PATH, WANTED, scratch.ctypes.data) != 0:
        return CHANGED
    mtime_ns = scratch[14] * 1_000_000_000 + (scratch[15] & 0xFFFFFFFF)
    same = scratch[5] == entry[SIZE] and mtime_ns == entry[MTIME_NS] and scratch[4] == entry[INODE]
    return DONE if same else CHANGED
