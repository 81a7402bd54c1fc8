"""Handles: open files, and objects of a store, that are read at an offset.

Handle  of a file its descriptor; of an object a `objects.Reader`. Only regular files are opened.
Many    files are opened by one thread while they are in the page cache, by several if storage is
        slow.
"""

from __future__ import annotations

import io
import itertools
import os
import stat
from collections.abc import Callable, Sequence
from time import perf_counter, thread_time
from typing import BinaryIO, TypeVar, cast

from gpuload import signalsafe
from gpuload.errors import MissingFileError
from gpuload.storage import objects
from gpuload.storage.fileerrors import irregular_file_error, open_error
from gpuload.storage.stores import is_remote
from gpuload.threads import parallel_map

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

Handle = int | objects.Reader  # an open file: its descriptor, or the reader of an object
Item = TypeVar("Item")
Result = TypeVar("Result")
NUM_THREADS = 4  # that open files while storage is slow
WAITED = 2.0  # a chunk that took so many times its processor time had to wait
ADVISE = getattr(os, "posix_fadvise", None)  # not every system has it
READ_AT = getattr(os, "preadv", None)  # nor this
# files a thread has open, to ask for all before it reads the first
MOST_CHUNK = 64 if ADVISE is not None else 1
# Non-blocking: opening a pipe must not wait for its writer. Binary: Windows would change line ends.
OPEN_FLAGS = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NONBLOCK", "O_BINARY")
)
LARGEST_READ = 1 << 30  # Linux reads at most 0x7ffff000 bytes a call


def open_with_status(path: str) -> tuple[int, os.stat_result]:
    """Return descriptor and status of a file."""
    try:
        descriptor = os.open(path, OPEN_FLAGS)
    except OSError as error:
        if signalsafe.is_folder(path):  # Windows opens none, and speaks of permissions
            raise irregular_file_error(path, stat.S_IFDIR) from None
        raise open_error(path, error) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise irregular_file_error(path, status.st_mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status


def open_binary(path: str) -> BinaryIO:
    """Return a file of Python's, open for reading, for libraries that read files; of an object,
    too."""
    if is_remote(path):
        return cast(BinaryIO, objects.File(objects.Reader(path, objects.look(path, 0)[0])))
    return open(open_regular(path), "rb")


def open_regular(path: str) -> int:
    """Return the descriptor of a regular file; a pipe, which could be waited for without end, is
    refused."""
    return open_with_status(path)[0]


def open_handle(path: str) -> Handle:
    """Return the handle of a file for `read_at`; `close_handle` closes it."""
    if is_remote(path):
        return objects.Reader(path, objects.look(path, 0)[0])
    return os.open(path, OPEN_FLAGS)


def close_handle(handle: Handle) -> None:
    """Close an open file; an object has nothing to close."""
    if not isinstance(handle, objects.Reader):
        os.close(handle)


def read_at(descriptor: Handle, to: memoryview, offset: int) -> int:
    """Read bytes of a file to a view of bytes; return their number, fewer only at the end of the
    file.

    No other thread may use the descriptor meanwhile: on a system that cannot read at an offset its
    position moves.
    """
    if isinstance(descriptor, objects.Reader):
        return descriptor.read(to, offset)
    num_done = 0
    while num_done < len(to):
        num_read = _read_once(descriptor, to[num_done : num_done + LARGEST_READ], offset + num_done)
        if not num_read:
            break
        num_done += num_read
    return num_done


def _read_once(descriptor: int, to: memoryview, offset: int) -> int:
    if READ_AT is not None:
        return int(READ_AT(descriptor, [to], offset))
    with io.FileIO(descriptor, closefd=False) as file:
        file.seek(offset)
        return file.readinto(to) or 0


def read_bytes(path: str, num_bytes: int) -> bytes:
    """Return the first ``num_bytes`` bytes of a file, or all where it has fewer."""
    if is_remote(path):
        return objects.look(path, num_bytes)[1]
    with open(open_regular(path), "rb") as file:
        try:
            return file.read(num_bytes)
        except OSError as error:
            raise open_error(path, error) from None


def exists(path: str) -> bool:
    """Return True if there is a file of this path or URL."""
    if not is_remote(path):
        return signalsafe.is_file(path)
    try:
        objects.look(path, 0)
    except MissingFileError:
        return False
    return True


def by_chunks(
    function: Callable[[Sequence[Item]], list[Result]],
    items: Sequence[Item],
    show: Callable[[int], None] = lambda num_done: None,
) -> list[Result]:
    """Return the results of ``function`` for all items, a chunk at a time; the first error is
    raised.

    The calling thread does the work until a chunk has to wait for storage; threads do the rest.
    ``show`` is called with the number of items that are done, at the beginning, and after each
    chunk by the thread that did it.
    """
    all_results: list[Result] = []
    size = _chunk_size()
    chunks = [items[start : start + size] for start in range(0, len(items), size)]
    num_chunks = itertools.count(1)  # next() is one step of the interpreter

    def work(chunk: Sequence[Item]) -> list[Result]:
        results = function(chunk)
        show(min(next(num_chunks) * size, len(items)))
        return results

    show(0)
    for number, chunk in enumerate(chunks):
        start_s, cpu_s = perf_counter(), thread_time()
        all_results += work(chunk)
        # Threads only where storage is slow: with files in the page cache they would hand Python's
        # lock around.
        if perf_counter() - start_s > WAITED * (thread_time() - cpu_s):
            return all_results + [
                result
                for chunk_results in parallel_map(work, chunks[number + 1 :], NUM_THREADS)
                for result in chunk_results
            ]
    return all_results


def _chunk_size() -> int:
    """Return the number of files that a thread may have open: all threads together a quarter of the
    limit."""
    if resource is None:
        return MOST_CHUNK
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed >= 0:
        return max(1, min(MOST_CHUNK, allowed // (4 * NUM_THREADS)))
    return MOST_CHUNK
