"""Copy of records: bytes of many records from mapped or unmapped files into the rows of a block, checked afterwards.

A mapped record is a ``memcpy``; while one is copied, the beginning of the one after the next is fetched (measured for
3 KB rows in random order: 0.75 of the time that it takes without); neighbours that stay neighbours are one copy. A
record of a file that is not mapped is read with open, pread and close. Afterwards each file that was touched is asked
whether it still is what it was when it was opened, so that no bytes of a changed file leave this module.

Table   int64 ``[num_files + 1, 8]``, a row (a cache line) a file: the number of its first record; the address of its
        map, 0 where none was tried, -1 where it is to be read; the guard's slot; where its path begins in ``paths``;
        the byte where its first record begins; its size, time of modification (ns) and inode. The last row ends the
        record numbers.
Result  DONE, or ``8 * file + reason``.
Source  statx(2): stx_ino at byte 32, stx_size at 40, stx_mtime at 112; getrusage(2): ru_majflt at byte 72, ru_nvcsw at
        128; the same on every 64-bit Linux.
"""

from __future__ import annotations

import os

import numpy as np
from numba import types
from numpy.typing import NDArray

from gpuload.kernels import guard
from gpuload.kernels.compile import kernel, libc
from gpuload.kernels.memory import copy_1, copy_2, copy_4, copy_8, copy_bytes, load_int, prefetch
from gpuload.kernels.storage import BEFORE_END, BEGIN, END, LONGEST_ASKED, MADV_WILLNEED, PAGE_BYTES, madvise

Int64s = NDArray[np.int64]
COLD = 1  # in the last row of the table: for how many more copies to expect that the disk must be waited for
FIT = 2  # there, too: if the files fit into memory
START, ADDRESS, SLOT, PATH, OFFSET, SIZE, MTIME_NS, INODE = range(8)
UNTRIED, READ = 0, -1  # in place of an address
DONE = -1
CHANGED, FAILED, UNMAPPED, UNMAPPABLE, UNGUARDED, OUTSIDE = range(6)
NEXT_LINES, AHEAD_PAGES = 8, 4  # what is fetched of a record that follows in order, of another; measured
JOINED_BYTES = 8192  # neighbours are one copy up to here; measured: longer ones are slower by a fifth
LARGEST_READ = 1 << 30  # Linux reads at most 0x7ffff000 bytes a call
SCRATCH_WORDS = 32  # struct statx and struct sigaction have at most 256 bytes
FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
AT_FDCWD, AT_EMPTY_PATH, WANTED = -100, 0x1000, 0x340  # STATX_INO, STATX_SIZE, STATX_MTIME
EINTR = 4
RUSAGE_THREAD, LINE_BYTES = 1, 64
COLD_FOR = 256  # the same after a copy in which more than a record in WAITS_PART waited
WAITS_PART = 16
COLD_FIRST = 32  # where files do not fit into memory, a new reader expects a cold disk for so many copies
GAP_BYTES = 1 << 15  # what lies between records and is read with them, rather than in one request more

_open = libc("open", types.int32, types.int64, types.int32)
_close = libc("close", types.int32, types.int32)
_pread = libc("pread", types.int64, types.int32, types.int64, types.int64, types.int64)
_statx = libc("statx", types.int32, types.int32, types.int64, types.int32, types.uint32, types.int64)
_getrusage = libc("getrusage", types.int32, types.int32, types.int64)
_errno = libc("__errno_location", types.int64)


@kernel
def copy_records(
    indices: Int64s, rows: Int64s, to: tuple[int, int, int], record_bytes: int, table: Int64s, paths: NDArray[np.uint8]
) -> int:
    """Copy record ``indices[i]`` to row ``rows[i]`` of the block ``to`` = (address, bytes from row to row, rows)."""
    scratch = np.empty(SCRATCH_WORDS, np.int64)
    files = np.empty(indices.size, np.int64)
    sources = np.empty(indices.size, np.int64)
    result: int = _locate(indices, rows, to[2], record_bytes, table, files, sources)
    if result != DONE:
        return result
    if sources.size and sources.max() >= 0 and not guard.installed(scratch.ctypes.data):
        return UNGUARDED
    waits, last = _num_waits(scratch), table.shape[0] - 1
    if table[last, COLD] > 0:
        _ask_for(sources, record_bytes)
    _copy_mapped(sources, rows, to, record_bytes)
    result = _check_mapped(files, sources, table, paths, scratch)
    if table[last, FIT]:
        waits = _num_waits(scratch)  # for maps the system has read what is around, which will be wanted
    if result == DONE:
        result = _read_unmapped(indices, rows, to, record_bytes, table, paths, files, sources, scratch)
    _note(table, (_num_waits(scratch) - waits) * WAITS_PART > sources.size)
    return result


@kernel
def find_runs(indices: Int64s, record_bytes: int, table: Int64s, runs: Int64s, found: Int64s) -> int:
    """Fill in runs (see `storage.py`) of the records that are mapped, and how many they are: ``found[0]``.

    Records with at most GAP_BYTES between two are one run.
    """
    sources = np.empty(indices.size, np.int64)
    result: int = _locate(indices, np.zeros_like(indices), 1, record_bytes, table, np.empty_like(indices), sources)
    found[0] = 0
    for i in range(sources.size if result == DONE else 0):
        run = found[0] - 1
        if sources[i] >= 0:
            if run < 0 or not 0 <= sources[i] - runs[run, END] <= GAP_BYTES:
                run, found[0] = run + 1, run + 2
                runs[run, BEGIN] = sources[i]
            runs[run, END], runs[run, BEFORE_END] = sources[i] + record_bytes, i + 1
    return result


@kernel
def copy_columns(
    indices: Int64s,
    rows: Int64s,
    to: tuple[int, int, int],
    item_bytes: int,
    places: Int64s,
    table: Int64s,
    paths: NDArray[np.uint8],
) -> int:
    """The same for records whose file is in Fortran order, so that an item of each follows that of its neighbour.

    ``places`` has the byte in the record of each item, in the file's order. Files must be mapped.
    """  # fmt: skip
    scratch = np.empty(SCRATCH_WORDS, np.int64)
    files = np.empty(indices.size, np.int64)
    sources = np.empty(indices.size, np.int64)
    result: int = _locate(indices, rows, to[2], item_bytes, table, files, sources)
    if result != DONE:
        return result
    if not guard.installed(scratch.ctypes.data):
        return UNGUARDED
    for i in range(sources.size):
        if sources[i] < 0:
            return int(8 * files[i] + UNMAPPABLE)
    for place in range(places.size):
        for i in range(sources.size):
            _copy_item(to[0] + rows[i] * to[1] + places[place], sources[i], item_bytes)
            sources[i] += (table[files[i] + 1, START] - table[files[i], START]) * item_bytes
    result = _check_mapped(files, sources, table, paths, scratch)
    return result


@kernel
def read_files(numbers: Int64s, addresses: Int64s, sizes: Int64s, table: Int64s, paths: NDArray[np.uint8]) -> int:
    """Read ``sizes[i]`` bytes of the data of file ``numbers[i]`` to ``addresses[i]``."""
    scratch = np.empty(SCRATCH_WORDS, np.int64)
    for i in range(numbers.size):
        file = numbers[i]
        descriptor = _open(paths.ctypes.data + table[file, PATH], FLAGS)
        result: int = _read(descriptor, addresses[i], sizes[i], table[file, OFFSET])
        if result == DONE:
            result = _check(descriptor, table[file], paths, scratch)
        if descriptor >= 0:
            _close(descriptor)
        if result != DONE:
            return int(8 * file + result)
    return DONE


@kernel
def _locate(
    indices: Int64s, rows: Int64s, num_rows: int, record_bytes: int, table: Int64s, files: Int64s, sources: Int64s
) -> int:
    """Fill in the file of each record, and its address or READ; everything is checked that is dereferenced later."""
    file, num_files = 0, table.shape[0] - 1
    for i in range(indices.size):
        index = indices[i]
        if index < 0 or index >= table[num_files, START] or rows[i] < 0 or rows[i] >= num_rows:
            return int(8 * i + OUTSIDE)
        if index < table[file, START] or index >= table[file + 1, START]:
            file = _file_of(index, table)
        address = table[file, ADDRESS]
        if address == UNTRIED:
            return int(8 * file + UNMAPPED)
        files[i], sources[i] = file, READ
        if address > 0:
            sources[i] = address + table[file, OFFSET] + (index - table[file, START]) * record_bytes
    return DONE


@kernel
def _file_of(index: int, table: Int64s) -> int:
    """Return the last file that begins at or before a record; those before it with the same beginning are empty."""
    low, high = 0, table.shape[0] - 1
    while high - low > 1:
        middle = (low + high) // 2
        if table[middle, START] <= index:
            low = middle
        else:
            high = middle
    return low


@kernel
def _note(table: Int64s, waited: bool) -> None:
    """Remember for some copies that the disk must be waited for."""
    last = table.shape[0] - 1
    if waited:
        table[last, COLD] = COLD_FOR
    elif table[last, COLD] > 0:
        table[last, COLD] -= 1


@kernel
def _ask_for(sources: Int64s, record_bytes: int) -> None:
    """Ask for all pages of mapped records, so that they come from the disk together; not for those of longer runs.

    It also keeps the system from reading all that is around each page that is missing (128 KiB to 8 MiB), a thousand
    times what rows of 3 KB need, which ruins a cache that is smaller than the files. Long runs are left to the system.
    """
    i = 0
    while i < sources.size:
        after = i + 1
        while after < sources.size and sources[after] == sources[after - 1] + record_bytes:
            after += 1
        end = sources[after - 1] + record_bytes
        if sources[i] >= 0 and end - sources[i] <= LONGEST_ASKED:
            place = sources[i] - sources[i] % PAGE_BYTES
            madvise(place, end - place, MADV_WILLNEED)
        i = after


@kernel
def _num_waits(scratch: Int64s) -> int:
    """Return how often this thread had to wait: for a page from the disk, for one on its way, for a read."""
    _getrusage(RUSAGE_THREAD, scratch.ctypes.data)
    return int(scratch[9] + scratch[16])


@kernel
def _copy_mapped(sources: Int64s, rows: Int64s, to: tuple[int, int, int], record_bytes: int) -> None:
    most = JOINED_BYTES // max(record_bytes, 1) if to[1] == record_bytes else 1
    i = 0
    while i < sources.size:
        after, last = i + 1, min(i + most, sources.size)
        while (
            after < last and sources[after] == sources[after - 1] + record_bytes and rows[after] == rows[after - 1] + 1
        ):
            after += 1
        if sources[i] >= 0:
            if after < sources.size and sources[after] == sources[after - 1] + record_bytes:
                for line in range(NEXT_LINES):
                    prefetch(sources[after] + LINE_BYTES * line)
            elif after + 1 < sources.size and sources[after + 1] >= 0:
                _fetch(sources[after + 1], record_bytes)
            copy_bytes(to[0] + rows[i] * to[1], sources[i], (after - i) * record_bytes)
        i = after


@kernel
def _fetch(address: int, num_bytes: int) -> None:
    """Begin to bring a record near: the first cache lines of each of its first pages, so that their addresses, too."""
    place, end = address, address + min(num_bytes, AHEAD_PAGES * PAGE_BYTES)
    while place < end:
        prefetch(place)
        prefetch(place + LINE_BYTES)
        place += PAGE_BYTES - place % PAGE_BYTES


@kernel
def _check_mapped(files: Int64s, sources: Int64s, table: Int64s, paths: NDArray[np.uint8], scratch: Int64s) -> int:
    """Check once each file whose map was read: stamp first, then whether pages were lost."""
    checked = np.zeros(table.shape[0], np.uint8)
    for i in range(files.size):
        file = files[i]
        if sources[i] >= 0 and checked[file] == 0:
            checked[file] = 1
            result: int = _check(AT_FDCWD, table[file], paths, scratch)
            if result != DONE:
                return int(8 * file + result)
            if guard.broken(table[file, SLOT]):
                return int(8 * file + FAILED)
    return DONE


@kernel
def _read_unmapped(
    indices: Int64s, rows: Int64s, to: tuple[int, int, int], record_bytes: int, table: Int64s, paths: NDArray[np.uint8],
    files: Int64s, sources: Int64s, scratch: Int64s,
) -> int:  # fmt: skip
    """Read the records of files that are not mapped: each file opened once for its records that follow one another."""
    i = 0
    while i < indices.size:
        file, after = files[i], i + 1
        while after < indices.size and files[after] == file:
            after += 1
        if sources[i] == READ:
            descriptor = _open(paths.ctypes.data + table[file, PATH], FLAGS)
            result: int = _read_runs(descriptor, indices[i:after], rows[i:after], to, record_bytes, table[file])
            if result == DONE:
                result = _check(descriptor, table[file], paths, scratch)
            if descriptor >= 0:
                _close(descriptor)
            if result != DONE:
                return int(8 * file + result)
        i = after
    return DONE


@kernel
def _read_runs(
    descriptor: int, indices: Int64s, rows: Int64s, to: tuple[int, int, int], record_bytes: int, entry: Int64s
) -> int:
    i, result = 0, DONE
    while i < indices.size and result == DONE:
        after, last = i + 1, indices.size if to[1] == record_bytes else i + 1
        while after < last and indices[after] == indices[after - 1] + 1 and rows[after] == rows[after - 1] + 1:
            after += 1
        offset = entry[OFFSET] + (indices[i] - entry[START]) * record_bytes
        result = _read(descriptor, to[0] + rows[i] * to[1], (after - i) * record_bytes, offset)
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
def _check(descriptor: int, entry: Int64s, paths: NDArray[np.uint8], scratch: Int64s) -> int:
    """Compare a file's stamp with that in its table entry: by its path, or by a descriptor that is open."""
    by_path = descriptor == AT_FDCWD
    path = paths.ctypes.data + (entry[PATH] if by_path else paths.size - 1)  # the last byte is an empty path
    if _statx(descriptor, path, 0 if by_path else AT_EMPTY_PATH, WANTED, scratch.ctypes.data) != 0:
        return CHANGED
    mtime_ns = scratch[14] * 1_000_000_000 + (scratch[15] & 0xFFFFFFFF)
    same = scratch[5] == entry[SIZE] and mtime_ns == entry[MTIME_NS] and scratch[4] == entry[INODE]
    return DONE if same else CHANGED


@kernel
def _copy_item(to: int, source: int, item_bytes: int) -> None:
    if item_bytes == 4:
        copy_4(to, source)
    elif item_bytes == 8:
        copy_8(to, source)
    elif item_bytes == 2:
        copy_2(to, source)
    elif item_bytes == 1:
        copy_1(to, source)
    else:
        copy_bytes(to, source, item_bytes)
