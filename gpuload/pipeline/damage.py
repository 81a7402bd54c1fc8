"""Damage: the treatment of records that cannot be used, where the loader is not to raise an error
for each.

Rule     In the place of a damaged record stands another one: number ``attempt`` of those that are
         drawn for (seed, epoch, record) from the whole source, not from a shard of it. If that is
         damaged, too, the next one. So batch size, ranks, threads and resuming change nothing, and
         the shape of no batch depends on the content of files.
Damaged  is a record that its source or an op of gpuload cannot take by itself: ``RowError`` and
         ``RecordError``. A file that is missing, changed or unreadable is not, nor is an exception
         of the user's own function, unless it is a ``RecordError``.
Trying   Each use of a record finds out whether it is damaged: a decoder that makes a region of an
         image may meet the damage in one epoch and not in the next, and a run that goes on in the
         second must get the same. Only the numbers of damaged records are remembered, so that they
         are tried by themselves, before the work of a whole batch is lost by them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from dataclasses import asdict, dataclass
from typing import cast

import numpy as np

from gpuload import rng
from gpuload.errors import (
    DamagedSourceError,
    FileError,
    FunctionError,
    RecordError,
    RowError,
    SpecError,
)
from gpuload.sources.base import Source
from gpuload.sources.reading import record_origin
from gpuload.storage.fileerrors import open_error
from gpuload.storage.wildcards import check_name

ON_ERROR = ("raise", "replace", "skip")
MOST_ATTEMPTS = 64  # where half of all records are damaged, one in 2**64 would find no other
FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG}
STREAM = int.from_bytes(
    hashlib.sha256(b"damage:substitute").digest()[:8], "little"
)  # those of ops have no colon


@dataclass(frozen=True)
class BadRecord:
    """A damaged record, as it was first met.

    Attributes:
        record: its number in the source.
        where: where it is, as errors say it.
        file: the file that holds it; None where it is in none, or in several.
        offset_bytes: the byte of the file where it begins; None where no file is known.
        cause: the fault.
        epoch, step: of the batch that should have held it.
    """

    record: int
    where: str
    file: str | None
    offset_bytes: int | None
    cause: str
    epoch: int
    step: int

    def as_json(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps(asdict(self))


class Damage:
    """The damaged records of a source, as a loader knows them; used by all its threads.

    Args:
        source: all records.
        seed: the loader's.
        skips: True if rows of damaged records are not valid; their content is the substitute's all
            the same.
        max_bad: the share of the records that may be damaged.
        path: a file that takes a line of JSON for each damaged record; None for none.

    Attributes:
        suspects: the records that failed where they were read, drawn for, or run on rows.
        refusals: the records that an executor of whole batches refused.
    """

    def __init__(
        self, source: Source, *, seed: int, skips: bool, max_bad: float, path: str | None
    ) -> None:
        self.skips, self.suspects, self.refusals = skips, set[int](), set[int]()
        self._source, self._seed, self._max_bad, self._path = source, seed, max_bad, path
        self._bad: dict[int | str, BadRecord] = {}
        self._lock = threading.Lock()
        if path is not None:
            check_name(path)
            _append(path, b"")  # a folder that is missing is told now

    def substitute(self, record: int, epoch: int, attempt: int) -> int:
        """Return the record that stands for a damaged one, counted from attempt 0.

        It is ``word * length // 2**64`` of the word of that number of ``rng.bits``.

        Raises:
            DamagedSourceError: so many attempts are not made.
        """
        if attempt >= MOST_ATTEMPTS:
            raise DamagedSourceError(
                f"{self._source.where(record)}: it is damaged, and so are {MOST_ATTEMPTS} others "
                "chosen in its place",
                cause="nearly all records of the source are damaged, or the ops cannot take them",
                remedy='look at the first error with on_error="raise"; `gpuload check PATH` lists '
                "damaged records",
            ) from None
        words = rng.bits(
            attempt + 1,
            seed=self._seed,
            epoch=epoch,
            records=np.array([record], np.int64),
            stream=STREAM,
        )
        return int(words[0, attempt]) * len(self._source) >> 64

    def note(
        self,
        record: int,
        error: RowError | RecordError,
        *,
        epoch: int,
        step: int,
        by_executor: bool,
    ) -> None:
        """Remember a damaged record, the first time that it is met.

        Raises:
            DamagedSourceError: more records are damaged than may be.
            FileError: the line cannot be written.
        """
        key: int | str = record
        if self._source.endless:  # a record of a mix has another number each time that it comes
            key = self._source.where(record)
        # Also for the file: each record has one line, in the order of ``bad_records``.
        with self._lock:
            if not self._source.endless:
                (self.refusals if by_executor else self.suspects).add(record)
            if key not in self._bad:
                self._bad[key] = bad = bad_record(
                    self._source, record, error, epoch=epoch, step=step
                )
                if self._path is not None:
                    _append(self._path, f"{bad.as_json()}\n".encode())
            num_bad, first = len(self._bad), self._bad[key]
        if num_bad > self._max_bad * len(self._source):
            raise DamagedSourceError(
                f"{first.where}: {first.cause}",
                cause=f"with it {num_bad} of the {len(self._source)} records are damaged, more "
                f"than max_bad={self._max_bad} allows",
                remedy="repair the data (`gpuload check PATH` lists all damaged records, "
                "loader.bad_records() those that were met), or allow more: "
                f"max_bad={_allowing(num_bad, len(self._source))}",
            ) from None  # its message has the record's error already

    def describe(self) -> str:
        """Return one line for ``Loader.describe``."""
        if self.skips:
            verb = "are replaced and not valid"
        else:
            verb = "are replaced"
        return f"records {verb}; more than {self._max_bad:.3g} of all stop the loader"

    def bad_records(self) -> list[BadRecord]:
        """Return the damaged records that were met, in the order in which they were."""
        with self._lock:
            return list(self._bad.values())


def make_damage(
    source: Source, seed: int, on_error: object, max_bad: object, quarantine: object
) -> Damage | None:
    """Return the treatment of damaged records; None where each is an error.

    Args:
        source: all records.
        seed: of the loader.
        on_error: one of `ON_ERROR`.
        max_bad: the share of the records that may be damaged.
        quarantine: the path of the file that lists them, or None.

    Raises:
        SpecError: an argument of the loader does not fit.
        FileError: the file cannot be written.
    """
    if not isinstance(on_error, str) or on_error not in ON_ERROR:
        raise SpecError(
            f"on_error = {on_error!r}"[:200],
            cause="it is not known",
            remedy=f"use one of {ON_ERROR}",
        )
    is_number = isinstance(max_bad, (int, float, np.integer, np.floating)) and not isinstance(
        max_bad, bool
    )
    if not is_number or not 0 <= max_bad <= 1:  # type: ignore[operator]
        raise SpecError(
            f"max_bad = {max_bad!r}"[:200],
            cause="it is a share of the records, from 0 to 1",
            remedy="pass max_bad=0.01 for one in a hundred, say",
        )
    if quarantine is not None and not (
        isinstance(quarantine, (str, os.PathLike)) and os.fspath(quarantine)
    ):
        raise SpecError(
            f"quarantine = {quarantine!r}"[:200],
            cause="it is the path of a file, to which lines of JSON are appended",
            remedy="pass quarantine='bad_records.jsonl', say, or None",
        )
    if on_error == "raise":
        if quarantine is not None:
            raise SpecError(
                f"quarantine={quarantine!r} with on_error='raise'",
                cause="the first damaged record is raised, so that there is nothing to be listed",
                remedy="pass on_error='replace' or 'skip', or leave quarantine= out",
            )
        return None
    path = None
    if quarantine is not None:
        path = os.path.abspath(os.path.expanduser(os.fspath(quarantine)))
    share = float(max_bad)  # type: ignore[arg-type]
    return Damage(source, seed=seed, skips=on_error == "skip", max_bad=share, path=path)


def bad_record(
    source: Source, record: int, error: RowError | RecordError, *, epoch: int = 0, step: int = 0
) -> BadRecord:
    """Return the description of a damaged record."""
    place, origin = source.where(record), record_origin(source, record)
    file, offset = origin or (None, None)
    if isinstance(error, FunctionError):
        error = cast(RecordError, error.error)  # `is_damage` says that it is one
    if isinstance(error, RowError):
        reason = error.reason
    else:
        reason = error.what.removeprefix(f"{place}: ")
    reason = reason.removeprefix(
        f"{place.rpartition(': ')[2]}: "
    )  # of a part of a mix, which the part does not know
    return BadRecord(
        record,
        place,
        file,
        offset,
        f"{reason}; {error.cause}" if error.cause else reason,
        epoch,
        step,
    )


def is_damage(error: BaseException) -> bool:
    """Return True if an error says that a record is damaged, and not that something else went
    wrong."""
    if isinstance(error, FunctionError):
        error = error.error
    # An op's own refusal; the errors below are those of a source. DamagedSourceError says that
    # there are too many.
    if isinstance(error, RowError):
        return True
    return isinstance(error, RecordError) and not isinstance(error, DamagedSourceError)


def _allowing(num_bad: int, length: int) -> float:
    """Return a share, of two digits, that allows so many."""
    share = num_bad / length
    rounded = float(f"{share:.2g}")
    return min(1.0, rounded if rounded >= share else float(f"{share * 1.1:.2g}"))


def _append(path: str, line: bytes) -> None:
    """Append a whole line by one call, so that several processes may write to one file.

    Raises:
        FileError: the line cannot be written. A disk that is nearly full takes a part of it, which
            is taken away again.
    """
    try:
        # O_APPEND: the system moves to the end and writes in one step, so the lines of several
        # ranks do not overwrite one another.
        descriptor = os.open(
            path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666
        )
        try:
            num_bytes = 0
            try:
                # A write may take a part of the line: at a full disk, or where a signal comes.
                while num_bytes < len(line):
                    num_bytes += os.write(descriptor, line[num_bytes:])
            except OSError:
                end = os.lseek(descriptor, 0, os.SEEK_CUR)
                if (
                    num_bytes and os.fstat(descriptor).st_size == end
                ):  # no other process has written behind it
                    os.ftruncate(descriptor, end - num_bytes)
                raise
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in FULL:
            raise FileError(
                f"{path}: the line of a damaged record cannot be written",
                cause=str(error.strerror),
                remedy="make room, or name a file on another disk: quarantine=",
            ) from None
        raise open_error(path, error) from None
