"""Check: reads all records of a source, and says which are damaged.

    for bad in gpuload.check("photos"):                     a path, a wildcard, a list, or a source
        print(bad)

Reads    all bytes of all fields, which verifies the checksums that the format has; texts are looked
         at; encoded images are decoded whole, within the limits of ``gl.ops.Decode``, and JPEG
         files twice: their data may end early where only the decoder of a region meets it. Of
         TFRecord files, named by path, the payloads are read, and the images decoded that the first
         records have.
Goes on  behind a damaged record, and behind a file that cannot be opened or read. A store that is
         busy, or answers nothing, is an error: nothing is known about its objects.
Kinds    a finding is damage, a file that cannot be opened, or a record or file of a kind that is
         not supported. That one may be sound: other libraries may read it.
Files    that cannot be opened together are opened in halves, down to the one at fault. Their
         records have no common numbers then, so that a finding names file and record in ``where``
         alone.
Memory   some megabytes of records, and one decoded image, for each thread; the longest record where
         that is longer.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import threads
from gpuload.errors import (
    DamagedBlockError,
    FileError,
    FormatError,
    GpuloadError,
    MissingFileError,
    RecordError,
    RowError,
    SpecError,
)
from gpuload.formats import FORMATS
from gpuload.formats.base import ImagesIn, Salvage
from gpuload.open import folders_or_files, open_folder, recognize, without_companions
from gpuload.open import open as open_paths
from gpuload.ops.value.decode import check_file
from gpuload.order import check_count
from gpuload.progress import Progress
from gpuload.redaction import printable, redact
from gpuload.sources.base import Source
from gpuload.sources.leaf import Fields
from gpuload.sources.reading import record_origin
from gpuload.storage.fileerrors import open_error
from gpuload.storage.files import look_at
from gpuload.storage.folders import find_kind, table_files
from gpuload.storage.handles import read_bytes
from gpuload.storage.hidden import is_hidden_name
from gpuload.storage.manifest import call_of
from gpuload.storage.retries import StoreError
from gpuload.storage.stores import is_remote
from gpuload.storage.wildcards import Paths, as_folder, files_below

SLAB_RECORDS = 1 << 16  # the places of so many are known at a time
CHUNK_BYTES, CHUNK_RECORDS = 1 << 22, 1 << 12  # that a thread reads at once
MOST_THREADS = 4096
HEAD_BYTES = 64  # of a file that is refused, by which its format may know it
UNSUPPORTED = "not supported"
UNOPENED = (
    FormatError,
    RecordError,
    SpecError,
    FileError,
)  # the errors for a file that cannot be opened

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Finding:
    """A damaged record, a file that cannot be opened, or a record or file of a kind that is not
    supported.

    Attributes:
        where: the record, or the file, as errors name it.
        cause: the damage, in words.
        file: the file that holds it; None if it is in none, or in several.
        record: its number in the source; None for a whole file, and where the files could not be
            opened together.
        offset_bytes: the byte of the file where the record begins, if that is known.
        remedy: for a file that cannot be opened, or a kind that is not supported, as the error has
            it; no part of a comparison.
        is_supported: False for a record or file of a kind that is not supported, which may be
            sound.
    """

    where: str
    cause: str
    file: str | None = None
    record: int | None = None
    offset_bytes: int | None = None
    remedy: str = field(default="", compare=False)
    is_supported: bool = True

    def __str__(self) -> str:
        return printable(f"{redact(self.where)}{_byte(self.offset_bytes)}: {redact(self.cause)}")


class Findings(Iterator[Finding]):
    """An iterator over the damage in files, in the order of reading; made by ``gpuload.check``.

    Attributes:
        num_records: the number of records that were read so far.
        num_unopened: the number of files that could not be opened so far, of kinds that are
            supported.
        num_unsupported: the number of records and files so far of kinds that are not supported.
    """

    def __init__(self, target: Source | Paths, num_threads: int) -> None:
        self.num_records = self.num_unopened = self.num_unsupported = 0
        self._num_threads = num_threads
        self._counting = threading.Lock()
        self._reported = set[
            tuple[str | None, str]
        ]()  # a file that is gone is told once, not for each of its records
        if isinstance(target, Source):
            target.check_open()
            self._findings = self._of_source(target, is_whole=True)
        elif call_of(target) is not None:
            self._findings = self._of_manifest(target)
        elif (folder := as_folder(target)) is not None:
            self._findings = self._of_folder(
                folder, [] if _is_whole(folder) else _files_below(folder)
            )
        else:
            form, names = folders_or_files(target)
            if form is not None:
                self._findings = chain.from_iterable(self._of_folder(name, []) for name in names)
            else:
                _check_present(names)
                self._findings = self._of_files(names, is_whole=True)

    def __next__(self) -> Finding:
        finding = next(self._findings)
        self.num_unsupported += not finding.is_supported
        return finding

    def __repr__(self) -> str:
        count = f"{self.num_records:,} records read so far"
        return f"<gl.check: {count}; each step of a loop over it, or list(...), reads on to the next damaged one>"

    def _of_manifest(self, path: Paths) -> Iterator[Finding]:
        with open_paths(path) as source:
            yield from self._of_source(source, is_whole=True)

    def _of_folder(self, folder: str, names: list[str]) -> Iterator[Finding]:
        try:
            source, _ = open_folder(folder)
        except StoreError:
            raise
        except UNOPENED as error:
            if _is_whole(folder):
                kind = None
            else:
                kind = find_kind(folder)
            if kind is not None:
                yield from self._of_files(table_files(folder, kind), is_whole=False)
            elif names:
                yield from self._of_files(names, is_whole=False)
            else:
                yield self._of_file(folder, error)
        else:
            with source:
                yield from self._of_source(source, is_whole=True)

    def _of_files(self, names: list[str], *, is_whole: bool) -> Iterator[Finding]:
        try:
            form, match = recognize(names)
            if form.open_for_check is None:
                source, images_in = form.open(names, **match.options), None
            else:
                source, images_in = form.open_for_check(names, **match.options)
        except StoreError:
            raise
        except UNOPENED as error:
            if len(names) == 1:
                yield from self._of_unopened(names[0], error)
                return
        else:
            with source:
                yield from self._of_source(source, is_whole=is_whole, images_in=images_in)
            return
        for half in (names[: len(names) // 2], names[len(names) // 2 :]):
            yield from self._of_files(half, is_whole=False)

    def _of_unopened(self, name: str, error: GpuloadError) -> Iterator[Finding]:
        """Check the part that a format can read of a file that has no rows, or cannot be opened."""
        if isinstance(error, FileError):
            head = b""
        else:
            head = read_bytes(name, HEAD_BYTES)
        salvage = next(
            (part for form in FORMATS if (part := form.salvage(name, head)) is not None), None
        )
        if salvage is None:
            yield self._of_file(name, error)
        elif isinstance(salvage, Source):
            with salvage:
                yield from self._of_source(salvage, is_whole=False)
        else:
            yield from self._of_salvage(name, salvage)

    def _of_file(self, path: str, error: GpuloadError) -> Finding:
        """Return the finding for a file or folder that cannot be opened."""
        finding = _of_error(path, error, path)
        self.num_unopened += finding.is_supported
        return finding

    def _of_salvage(self, name: str, records: Iterator[Salvage]) -> Iterator[Finding]:
        with Progress("checking") as progress:
            for record in records:
                self.num_records += 1
                progress.show(self.num_records, 0, "records")
                if record.cause:
                    yield Finding(
                        f"{name}, record {record.number}",
                        record.cause,
                        name,
                        None,
                        record.offset_bytes,
                    )

    def _of_source(
        self, source: Source, *, is_whole: bool, images_in: ImagesIn | None = None
    ) -> Iterator[Finding]:
        """Check a source; ``images_in`` returns the encoded images inside of the fields of a
        record."""
        length = len(source)
        encoded_names = [field.name for field in source.spec if field.encoded]

        def images_of(fields: Fields, row: int) -> Iterator[Any]:
            yield from (fields[name][row] for name in encoded_names)
            if images_in is not None:
                yield from images_in(fields, row)

        with Progress("checking") as progress:

            def look(numbers: Numbers) -> list[Finding]:
                chunk_findings = list(_look(source, numbers, images_of, is_whole))
                with self._counting:  # several threads count, and a sum must not be lost
                    self.num_records += numbers.size
                progress.show(self.num_records, length, "records")
                return chunk_findings

            for begin in range(0, length, SLAB_RECORDS):
                numbers = np.arange(begin, min(begin + SLAB_RECORDS, length), dtype=np.int64)
                chunks = _chunks(source, numbers)
                for first in range(
                    0, len(chunks), 8 * self._num_threads
                ):  # findings are yielded soon
                    results = threads.parallel_map(
                        look, chunks[first : first + 8 * self._num_threads], self._num_threads
                    )
                    yield from self._first_reports(
                        finding for findings in results for finding in findings
                    )
            yield from (_of_error(path, error, path) for path, error in source.files.verify())

    def _first_reports(self, findings: Iterable[Finding]) -> Iterator[Finding]:
        for finding in findings:
            key = finding.file, finding.where
            if finding.record is None and key in self._reported:
                continue
            if finding.record is None:
                self._reported.add(key)
            yield finding


def check(given: Source | Paths, *, num_threads: int | None = None) -> Findings:
    """Return the damage in a source or in files, as an iterator that reads on as it is asked for
    more.

    Args:
        given: a source; or paths as for ``gl.open``: a path, a string with wildcards, a list of
            these, a folder.
        num_threads: that read and decode; by default the cores that this process may use.

    Raises:
        SpecError: it is neither.
        FileError: there is no such path.
        MissingPackageError: there are images, and nothing is installed that decodes them.
    """
    if num_threads is None:
        count = None
    else:
        count = check_count("num_threads", num_threads, maximum=MOST_THREADS)
    return Findings(given, count or threads.num_cores())


def _check_present(names: list[str]) -> None:
    """Raise ``MissingFileError`` for the first file that is missing."""
    for name in names:
        if not is_remote(name) and not os.path.lexists(name):
            raise open_error(name, FileNotFoundError())
    look_at(
        list(filter(is_remote, names)), 0, lambda path, size, head: None
    )  # an object that is missing is an error


def _is_whole(folder: str) -> bool:
    """Return True if a folder is of a format as a whole, so that its files mean nothing by
    themselves."""
    return any(form.folder is not None and form.folder.recognize(folder) for form in FORMATS)


def _files_below(folder: str) -> list[str]:
    """Return the files in a folder and its folders that formats take from there, or all files if
    there are none."""
    below = sorted(_below(folder))
    if not below:
        raise MissingFileError(
            f"{folder} holds no file", cause="it is empty", remedy="check the folder"
        )
    suffixes = tuple(
        suffix for form in FORMATS if form.folder is not None for suffix in form.folder.suffixes
    )
    return [name for name in below if name.lower().endswith(suffixes)] or without_companions(below)


def _below(folder: str) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise open_error(error.filename, error)

    if is_remote(folder):
        for path in files_below(folder):
            *folders, name = path.removeprefix(folder).strip("/").split("/")
            if not name.startswith(".") and not any(map(is_hidden_name, folders)):
                yield path
        return
    for inner, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not is_hidden_name(name)]
        yield from (os.path.join(inner, name) for name in names if not name.startswith("."))


def _chunks(source: Source, numbers: Numbers) -> list[Numbers]:
    """Return the numbers in pieces of a bounded number of records and, but for longer records, of
    bytes."""
    sizes: Any = np.zeros(
        numbers.size, np.float64
    )  # a sum of sizes that files state must not overflow
    for share in source.resolve(numbers):
        rows = slice(None) if share.rows is None else share.rows
        sizes[rows] += share.leaf.num_bytes(share.numbers)
    ends = np.cumsum(sizes)
    chunks, begin = list[Numbers](), 0
    while begin < numbers.size:
        before = ends[begin - 1] if begin else 0.0
        end = int(np.searchsorted(ends, before + CHUNK_BYTES, side="right"))
        end = min(max(end, begin + 1), begin + CHUNK_RECORDS)
        chunks.append(numbers[begin:end])
        begin = end
    return chunks


def _look(
    source: Source, numbers: Numbers, images_in: ImagesIn, is_whole: bool
) -> Iterator[Finding]:
    """Yield the findings of some records."""
    try:
        fields = source.read(numbers)
    except StoreError:
        raise
    except (RecordError, FileError) as error:
        if numbers.size == 1:
            yield _of_record(source, int(numbers[0]), error, is_whole)
            return
        # The error names one record, others may be damaged, too: halves, down to single records.
        for half in (numbers[: numbers.size // 2], numbers[numbers.size // 2 :]):
            yield from _look(source, half, images_in, is_whole)
        return
    for place, number in enumerate(numbers.tolist()):
        try:
            for image in images_in(fields, place):
                check_file(image)
        except RowError as error:
            yield _of_record(source, number, error, is_whole)


def _of_record(
    source: Source, number: int, error: RecordError | FileError | RowError, is_whole: bool
) -> Finding:
    """Return the finding for a record; for its whole file if that is gone, changed or
    unreadable."""
    location, origin = source.where(number), record_origin(source, number)
    file, offset = origin or (None, None)
    if isinstance(error, DamagedBlockError):
        return Finding(error.what, error.cause, file, None, offset)
    if isinstance(error, FileError):
        return _of_error(file or location, error, file)
    if isinstance(error, RowError):
        reason = error.reason
    else:
        reason = _without(error.what, location, origin)
    cause = "; ".join(filter(None, (reason, error.cause)))
    if file is not None and not is_whole and file.endswith(location):
        location = file  # an image, whose name alone does not tell in which folder it lies
    is_supported = not _is_unsupported(cause)
    finding = Finding(location, cause, file, offset_bytes=offset, is_supported=is_supported)
    if is_whole:
        finding = replace(finding, record=number)
    if not is_supported:
        finding = replace(finding, remedy=error.remedy)
    return finding


def _of_error(location: str, error: GpuloadError, file: str | None) -> Finding:
    reason = error.what
    for between in (" ", ": ", ", "):
        reason = reason.removeprefix(f"{location}{between}")
    cause = "; ".join(filter(None, (reason, error.cause)))
    return Finding(
        location, cause, file, remedy=error.remedy, is_supported=not _is_unsupported(cause)
    )


def _is_unsupported(cause: str) -> bool:
    """Return True for the cause of an error for a kind that is not supported: all such causes have
    these words."""
    return UNSUPPORTED in cause


def _without(message: str, location: str, origin: tuple[str, int] | None) -> str:
    """Return a message without the place at its beginning, which the finding has in another
    field."""
    _, offset = origin or (None, None)
    return message.removeprefix(f"{location}{_byte(offset)}: ").removeprefix(f"{location}: ")


def _byte(offset: int | None) -> str:
    """Return the words for a place in a file; "" for its beginning, or an unknown place."""
    if not offset:
        return ""
    return f", byte {offset}"
