"""The threads of a conversion: they share its files, count records, and stop at the first error."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from gpuload import threads
from gpuload.errors import GpuloadError
from gpuload.formats.writing import Records, SourceReadError
from gpuload.journal import write_error
from gpuload.progress import Progress
from gpuload.sources.base import Source


@dataclass(frozen=True)
class Conversion:
    """The result of a conversion.

    Attributes:
        paths: the files, in the order of the records; of a folder of images that folder.
        num_records: the number of records in them.
        num_bytes: of all files.
        num_kept: the number of files that an earlier call had finished.
        call: the call that reads them, as Python's text: ``"gl.npy('out/train-*.npy')"``.
    """

    paths: tuple[str, ...]
    num_records: int
    num_bytes: int
    num_kept: int
    call: str


@dataclass(frozen=True)
class ConversionFile:
    """One file of a conversion: its path, and the records and fields that it holds."""

    path: str
    begin: int
    end: int
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name in its folder."""
        return os.path.basename(self.path)


class ConversionWork:
    """The work of one conversion, shared by its threads."""

    def __init__(self, source: Source, num_threads: int, *, verify: bool, overwrite: bool) -> None:
        self.source, self.num_threads = source, num_threads
        self.verify, self.overwrite = verify, overwrite
        self._stop_flags: list[bool] = []
        self._errors: list[Exception] = []
        self._busy = threading.Lock()
        self._tick: Callable[[int], None] = lambda count: None

    def run(
        self, function: Callable[[ConversionFile], None], files: Sequence[ConversionFile]
    ) -> None:
        """Call a function for each file, in threads; the first error ends the others at their next
        records."""
        total, num_done = sum(file.end - file.begin for file in files), 0
        title = "writing"
        if self.verify:
            total, title = 2 * total, "writing and reading back"
        with Progress(title) as progress:

            def tick(count: int) -> None:
                nonlocal num_done
                if self._stop_flags:
                    raise _StopError
                with self._busy:
                    num_done += count
                progress.show(num_done, total, "records")

            def guarded(file: ConversionFile) -> None:
                try:
                    function(file)
                except Exception as exception:
                    error = exception.error if isinstance(exception, SourceReadError) else exception
                    # The first one is the cause: it stops the others, which raise later.
                    self._errors.append(error)
                    self._stop_flags.append(True)
                    raise error from None

            self._tick = tick
            try:
                threads.parallel_map(
                    guarded, files, self.num_threads, lambda: self._stop_flags.append(True)
                )
            except _StopError:
                if self._errors:
                    raise self._errors[0] from None
                raise

    def records(self, file: ConversionFile) -> Records:
        """Return the records of a file."""
        return Records(self.source, file.begin, file.end, file.names, self._tick)


class _StopError(Exception):
    """The work was asked to end; another thread raises the exception that is the reason."""


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Name the path if the system refuses to write; an error of the user's own reader is raised as
    itself."""
    try:
        yield
    except SourceReadError as read_error:
        raise read_error.error from None
    except GpuloadError:
        raise
    except OSError as error:
        raise write_error(path, error) from None


def make_folder(folder: str) -> None:
    """Make a folder, with those above it."""
    with writing(folder):
        os.makedirs(folder, exist_ok=True)
