"""The library h5py: files of HDF5 as it opens them, and the groups and datasets in them.

Opening h5py reads from a file of Python's that checks each piece: HDF5 opens no path. No file stays
open.
Fork    h5py takes its lock around a fork, so that a child can use it. A child leaves the files that
        were open then.
Links   soft links are followed; external links are refused by name: h5py would take this file for
        the other one.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any, TypeVar

from gpuload import signalsafe
from gpuload.errors import (
    FormatError,
    GpuloadError,
    SpecError,
    UnknownFieldError,
    line_of,
    missing_package,
)
from gpuload.formats.hdf5 import FIRST_PLACE, MAGIC, heaps, matlab
from gpuload.storage.fileerrors import open_error
from gpuload.storage.files import Files
from gpuload.storage.handles import Handle

CALL = "gl.hdf5"
NO_SIGNATURE = "file signature not found"  # in the words of HDF5
METADATA_BYTES = (
    1 << 16
)  # of an object that are asked for at a time, as HDF5 goes from place to place
HEAP_HEAD = 24  # the longest beginning of a heap
MOST_LINKS = 16  # soft links one behind the other
MOST_NAMES = 8  # of datasets in an error
Result = TypeVar("Result")
ERRORS = (
    OSError,
    LookupError,
    ValueError,
    TypeError,
    RuntimeError,
    MemoryError,
    ArithmeticError,
    AttributeError,
)


def import_h5py() -> ModuleType:
    """Return h5py; raises ``MissingPackageError`` if it is not installed."""
    try:
        return signalsafe.import_package("h5py")
    except ImportError as error:
        raise missing_package("h5py", needed_for=CALL, extra="hdf5", error=error) from None


class _Bytes(io.RawIOBase):
    """The bytes of an open file, as h5py reads those of Python's files; each piece is whole or an
    error."""

    def __init__(self, files: Files, number: int, handle: Handle) -> None:
        self._files, self._number, self._handle, self._at = files, number, handle, 0
        self._length_bytes = 8

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, int(self._files.sizes[self._number]))[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, memory: Any) -> int:
        view, size = memoryview(memory), int(self._files.sizes[self._number])
        # h5py ignores how many bytes came, and HDF5 would take the old content of this memory for
        # metadata.
        if not 0 <= self._at <= size - len(view):
            raise OSError(
                f"{len(view)} bytes at byte {self._at} do not lie in the {size} bytes of the file"
            )
        self._files.read(self._number, self._handle, view, self._at)
        if view[: len(MAGIC)] == MAGIC:
            self._length_bytes = heaps.length_bytes_of(bytes(view[:FIRST_PLACE]))
        elif view[: len(heaps.HEAP)] == heaps.HEAP:
            self._check_heap(self._at, bytes(view[:HEAP_HEAD]))
        self._at += len(view)
        return len(view)

    def _check_heap(self, at: int, head: bytes) -> None:
        """Raise ``OSError`` if HDF5 would walk through the heap that begins at a byte for ever."""
        size = heaps.heap_size(head, self._length_bytes)
        if size > int(self._files.sizes[self._number]) - at:
            raise OSError(f"a heap of {size} bytes at byte {at} does not lie in the file")
        heap = bytearray(size)
        self._files.read(self._number, self._handle, memoryview(heap), at)
        if fault := heaps.heap_fault(bytes(heap), self._length_bytes):
            raise OSError(f"its heap of values of varying length is damaged: {fault}")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


def read_file(
    files: Files,
    number: int,
    function: Callable[[Any], Result],
    to_error: Callable[[Exception], GpuloadError],
) -> Result:
    """Return the result for an open file of h5py's.

    Args:
        files: the files.
        number: which of them.
        function: gets the file; nothing of it is used behind this call.
        to_error: returns our error for an exception of h5py in the function.

    Raises:
        FormatError: h5py does not take the file.
        FileError: the file changed, or cannot be read.
    """
    path, size = files.paths[number], int(files.sizes[number])

    def to_refusal(error: Exception) -> GpuloadError:
        if NO_SIGNATURE in str(error):
            return FormatError(
                f"{path} is no HDF5 file to read",
                cause=f"nothing in its {size} bytes is the signature of HDF5",
                remedy="call gl.open(path), which finds out the format",
            )
        return refusal(
            files, number, f"{path} is no HDF5 file to read", error, f"; it has {size} bytes"
        )

    def read() -> Result:
        with files.open_file(number, METADATA_BYTES) as handle:
            source = _Bytes(files, number, handle)
            with signalsafe.call_library(
                lambda: import_h5py().File(source, "r"), to_refusal, ERRORS
            ) as file:
                result = function(file)
            # Behind h5py: bytes of a file that changed meanwhile are not used.
            files.check_descriptor(number, handle)
        return result

    return signalsafe.call_library(read, to_error, ERRORS)


def refusal(
    files: Files, number: int, subject: str, error: Exception, size: str = ""
) -> GpuloadError:
    """Return the error for one of h5py's.

    Raises:
        FileError: the file changed, or cannot be read.
    """
    if isinstance(error, GpuloadError):
        return error
    files.check(number)
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        return open_error(files.paths[number], error)
    return FormatError(
        subject,
        cause=f"h5py refuses it: {line_of(error)}{size}",
        remedy="it was cut short, is damaged or still being written: copy it again; gl.open(path) "
        "says what it is",
    )


def names_in(file: Any, path: str, group: str) -> list[str]:
    """Return the names of the datasets of a group that have an axis."""
    h5py = import_h5py()
    node = find(file, path, group)
    if not isinstance(node, h5py.Group):
        raise SpecError(
            f"{path}: {group} is no group", cause="it is a dataset", remedy="name it by fields="
        )
    nodes = {name: find(file, path, f"{group}/{name}") for name in node}
    names = [name for name, member in nodes.items() if getattr(member, "shape", ())]
    matlab.tell_sparse(path, nodes, is_alone=not names)
    if not names:
        paths = list[str]()

        def collect(name: str, item: Any) -> bool | None:
            if getattr(item, "shape", ()):
                paths.append(name)
            return len(paths) == MOST_NAMES or None  # None: go on

        file.visititems(collect)
        cause = "there is none in other groups either"
        if paths:
            cause = f"in other groups there are {', '.join(paths)}"
        raise SpecError(
            f"{path} has no dataset with an axis in the group {group}",
            cause=cause,
            remedy="name the group, group='train', or the datasets: fields={'x': 'train/x'}",
        )
    return names


def further_names(file: Any, path: str, group: str, names: Collection[str]) -> list[str]:
    """Return the names of the datasets of a group that have an axis, and are none of these."""
    result = list[str]()
    for name in find(file, path, group):
        if name in names:
            continue
        with contextlib.suppress(GpuloadError):  # a link to nothing, say
            if getattr(find(file, path, f"{group}/{name}"), "shape", ()):
                result.append(name)
    return result


def find(file: Any, path: str, place: str) -> Any:
    """Return the group or dataset at a place. Soft links are followed; others lead to other files,
    and are refused.

    h5py would open another file as this one again, since it reads both by the same Python file.

    Raises:
        UnknownFieldError: there is none.
        SpecError: a link leads to another file, to itself, or to nothing.
    """
    h5py = import_h5py()
    node, parts, links = file, place.split("/"), list[str]()
    while parts:
        part = parts.pop(0)
        if part in ("", "."):
            continue
        if isinstance(node, h5py.Group):
            link = node.get(part, getlink=True)
        else:
            link = None
        if link is None:
            if isinstance(node, h5py.Group):
                content = f"has {list(node)[:MOST_NAMES]}"
            else:
                content = "is a dataset"
            if links:
                raise SpecError(
                    f"{path}: {place.strip('/')!r} is a link to {links[-1]!r}",
                    cause=f"nothing is there: {node.name} {content}",
                    remedy="leave it out by fields=",
                )
            raise UnknownFieldError(
                f"{path} has no {place.strip('/')!r}",
                cause=f"{node.name} {content}",
                remedy="name what is there",
            )
        if isinstance(link, h5py.SoftLink) and len(links) < MOST_LINKS:
            links.append(link.path)
            node, parts = file if link.path.startswith("/") else node, link.path.split("/") + parts
        elif isinstance(link, h5py.HardLink):
            node = node[part]
        else:
            is_soft = isinstance(link, h5py.SoftLink)
            if is_soft:
                cause = "it leads to itself"
            else:
                cause = f"it leads to the file {getattr(link, 'filename', '')!r}"
            raise SpecError(
                f"{path}: {place.strip('/')!r} is a link",
                cause=cause,
                remedy="leave it out by fields="
                + ", or open that file, and join both: gl.zip(a, b)" * (not is_soft),
            )
    return node
