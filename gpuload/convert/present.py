"""Files that are there before a conversion begins: its own are kept, files of others are refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuload import signalsafe
from gpuload.convert.work import ConversionFile
from gpuload.errors import FileError, GpuloadError
from gpuload.formats import FORMATS
from gpuload.journal import Journal
from gpuload.storage.handles import read_bytes


def open_journal(
    journal: Journal, about: Mapping[str, Any], folder: str, *, overwrite: bool
) -> None:
    """Have the journal tell of this conversion: go on with it, or begin anew.

    A journal of another conversion is ended, and with ``overwrite`` the files that it finished are
    removed.

    Raises:
        FileError: files of another conversion are there, and ``overwrite`` is False.
    """
    if journal.about is None:
        journal.begin(about)
        return
    if journal.is_of(about):
        return
    present = sorted(
        name for name in journal.names() if os.path.lexists(os.path.join(folder, name))
    )
    if present and not overwrite:
        raise FileError(
            f"{os.path.join(folder, present[0])} is there already"
            + f", and {len(present) - 1} others" * (len(present) > 1),
            cause=f"another conversion made it, as {journal.path} says: "
            f"{journal.differences(about)}",
            remedy="choose another name, remove these files, or pass overwrite=True, "
            "which removes them",
        )
    # Before the journal begins anew: after a crash in between it still names the files that are
    # left.
    for name in present:
        path = os.path.join(folder, os.path.basename(name))
        if journal.is_finished(name, path):
            for old in (path, *(path + suffix for form in FORMATS for suffix in form.beside)):
                with signalsafe.suppress(FileNotFoundError):
                    os.unlink(old)
    journal.begin(about)


def refuse_foreign(
    journal: Journal,
    files: Sequence[ConversionFile],
    compare: Callable[[ConversionFile], None],
) -> None:
    """Raise ``FileError`` for files that this conversion did not write.

    A file with the right records stays: a kill may have left it without its line in the journal.

    Args:
        journal: of the conversion.
        files: files that are there and that the journal does not call finished.
        compare: raises ``GpuloadError`` if a file does not hold the records of the source.
    """
    for file in files:
        try:
            compare(file)
        except GpuloadError:
            raise _foreign_error(file.path) from None
        journal.finish(file.name, file.path)


def refuse_beside(files: Sequence[tuple[ConversionFile, Mapping[str, bytes]]]) -> None:
    """Refuse small files of others that stand where a file would have its own."""
    for file, beside in files:
        for path in find_differing(file, beside):
            if os.path.lexists(path):
                raise _foreign_error(path)


def _foreign_error(path: str) -> FileError:
    return FileError(
        f"{path} is there already",
        cause="this conversion did not write it",
        remedy="choose another name, remove it, or pass overwrite=True",
    )


def find_differing(file: ConversionFile, beside: Mapping[str, bytes]) -> list[str]:
    """Return which of the small files beside a file are missing or others."""
    return [
        file.path + suffix
        for suffix, content in beside.items()
        if not _holds(file.path + suffix, content)
    ]


def _holds(path: str, content: bytes) -> bool:
    return os.path.isfile(path) and read_bytes(path, len(content) + 1) == content
