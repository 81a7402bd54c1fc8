"""Direct reads: bytes of files into the memory of a GPU, by kvikio.

Path    with GPUDirect Storage (cuFile, NVIDIA's driver nvidia-fs, a file system that takes part)
        the bytes go from the disk to the GPU. Where one of these is missing, kvikio is in its
        compatibility mode, and reads by way of the host. ``DirectReader.path`` says which of the
        two it is.
Files   opened when they are first read, and compared with their stamps before and after each read.
Source  kvikio 26.10: https://docs.rapids.ai/api/kvikio/stable/runtime_settings/
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload import signalsafe
from gpuload.errors import FileError, missing_package
from gpuload.storage.extents import Extents, Int64s, check_inside
from gpuload.storage.files import Files, any_is_remote
from gpuload.storage.pread import join_neighbours
from gpuload.storage.stores import Stamp

MOST_OPEN_FILES = 128
THREADS_VARIABLE = "KVIKIO_NTHREADS"


@dataclass(frozen=True)
class Path:
    """The way of the bytes from files to a GPU.

    Attributes:
        is_direct: True if they do not pass the host.
        line: one line for people, with the reason.
    """

    is_direct: bool
    line: str


def is_installed() -> bool:
    """Return True if kvikio can be imported."""
    return signalsafe.is_installed("kvikio")


def is_readable(files: Files) -> bool:
    """Return True if files can be read directly: those of this machine that hold the bytes that the
    user stored."""
    return not files.seals and not any_is_remote(files.paths)


class DirectReader:
    """Reads extents of files into arrays on a GPU; any number of threads may use it at the same
    time.

    Args:
        num_threads: of kvikio's pool, which this process has one of; the variable KVIKIO_NTHREADS
            goes before.

    Raises:
        MissingPackageError: kvikio is not installed, or not for this version of CUDA.
    """

    def __init__(self, num_threads: int) -> None:
        try:
            self._kvikio = signalsafe.import_package("kvikio")
            self._defaults = signalsafe.import_package("kvikio.defaults")
            self._driver = signalsafe.import_package("kvikio.cufile_driver")
        except (
            Exception
        ) as error:  # the package has types of its own for a library of CUDA that is not there
            if isinstance(error, ImportError):
                cause = error
            else:
                cause = ImportError(_text(error))
            raise missing_package(
                "kvikio", needed_for="direct=True", extra="gds", error=cause
            ) from None
        if THREADS_VARIABLE not in os.environ:
            self._defaults.set("num_threads", num_threads)
        self._files: OrderedDict[tuple[str, Stamp], Any] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def path(self) -> Path:
        """The way of the bytes, as kvikio and cuFile say."""
        if self._defaults.is_compat_mode_preferred():
            reason = "cuFile cannot be used here: no libcufile, no readable /run/udev, or KVIKIO_COMPAT_MODE=ON"
        elif not self._driver.get("is_gds_available"):
            reason = "the driver of GPUDirect Storage, nvidia-fs, is not loaded"
        else:
            small = self._defaults.get("gds_threshold")
            return Path(
                True,
                f"GPUDirect Storage, but for reads of less than {small} bytes, which pass the host",
            )
        return Path(
            False, f"kvikio's compatibility mode, which reads by way of the host ({reason})"
        )

    def read(self, files: Files, extents: Extents, out: Any, begins: Int64s) -> None:
        """Read the bytes of extent i to ``out[begins[i] : begins[i] + lengths[i]]``, and wait until
        they are there.

        No work of a GPU is ordered before or behind it: nothing that was queued may still use
        ``out``.

        Args:
            files: the files.
            extents: their places, in any order.
            out: uint8 on a GPU, one axis, contiguous.
            begins: int64, one for each extent; each fits into ``out``.

        Raises:
            RecordIndexError: an extent lies outside its file; nothing was read.
            ChangedFileError: a file changed since it was opened.
            FileError: a file cannot be read.
        """
        check_inside(files, extents)
        order = np.lexsort((extents.offsets, extents.files))
        order = order[extents.lengths[order] > 0]
        extents, begins = join_neighbours(extents.take(order), begins[order])
        handles = {
            number: self._open(files, number) for number in np.unique(extents.files).tolist()
        }
        pieces = list(
            zip(
                extents.files.tolist(),
                extents.offsets.tolist(),
                extents.lengths.tolist(),
                strict=True,
            )
        )
        answers = list[Any]()
        try:
            for (file, offset, length), begin in zip(pieces, begins.tolist(), strict=True):
                answers.append(handles[file].pread(out[begin : begin + length], length, offset))
        except Exception as error:  # kvikio refuses this read; those before it are under way
            refusals = [_unreadable(files, *pieces[len(answers)], _text(error))]
        else:
            refusals = []
        finally:
            # All of them, also behind a failure: kvikio's threads write into ``out`` until each has
            # answered.
            waits = [
                self._wait(files, *piece, answer)
                for piece, answer in zip(pieces, answers, strict=False)
            ]
        for number in handles:
            files.check(number)
        if failure := next(filter(None, [*waits, *refusals]), None):
            raise failure

    def _wait(
        self, files: Files, number: int, offset: int, length: int, answer: Any
    ) -> FileError | None:
        """Wait for a read, and return its error: a read that is not waited for would write into
        memory of others."""
        try:
            num_read = answer.get()
        except Exception as error:  # RuntimeError, MemoryError and more, as C++ has them
            return _unreadable(files, number, offset, length, _text(error))
        if num_read == length:
            return None
        return _unreadable(files, number, offset, length, f"it read {num_read} bytes")

    def _open(self, files: Files, number: int) -> Any:
        """Return kvikio's handle of a file, which is that of its stamp; it is closed with its last
        reference."""
        path, key = files.paths[number], (files.paths[number], files.stamp(number))
        with self._lock:
            handle = self._files.pop(key, None)
            if handle is None:
                files.check(number)
                try:
                    handle = self._kvikio.CuFile(path, "r")
                except Exception as error:
                    raise FileError(
                        f"{path} cannot be opened for direct reads",
                        cause=f"kvikio: {_text(error)}",
                        remedy="read by way of the host, without direct=True",
                    ) from None
                # kvikio opens a path, and another file may have got the name since the check
                # before.
                files.check_descriptor(number, handle.fileno())
            self._files[key] = handle
            # A thread that still reads from one keeps it: it is closed with the last reference.
            while len(self._files) > MOST_OPEN_FILES:
                self._files.popitem(last=False)
        return handle


def _text(error: Exception) -> str:
    """Return the first line of an error."""
    return str(error).partition("\n")[0]


def _unreadable(files: Files, number: int, offset: int, length: int, cause: str) -> FileError:
    """Return the error for bytes of a file that did not come to the GPU."""
    return FileError(
        f"{length} bytes at byte {offset} of {files.paths[number]} cannot be read to the GPU",
        cause=f"kvikio: {cause}",
        remedy="read by way of the host, without direct=True; or check the disk (dmesg) and "
        "cufile.log",
    )
