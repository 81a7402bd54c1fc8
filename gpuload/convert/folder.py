"""Conversions to a folder of one file for each record."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from gpuload.convert.work import Conversion, ConversionFile, ConversionWork, make_folder, writing
from gpuload.errors import FileError, RecordError
from gpuload.formats.writing import FolderWriter
from gpuload.journal import SUFFIX as JOURNAL
from gpuload.journal import Journal

PIECE_RECORDS = 512  # records that a thread writes and verifies at a time


def write_folder(work: ConversionWork, path: str, name: str, writer: FolderWriter) -> Conversion:
    """Write a folder of files: it has another name until all of it is there."""
    source, folder = work.source, path.rstrip(os.sep)
    call = writer.call(folder, source)
    names = source.spec.names
    make_folder(os.path.dirname(folder))
    about = {
        "source": source.fingerprint(),
        "records": len(source),
        "format": name,
        "fields": [str(field) for field in source.spec],
        **writer.about(source),
    }
    pieces = [
        ConversionFile(f"{begin:d}", begin, min(begin + PIECE_RECORDS, len(source)), names)
        for begin in range(0, len(source), PIECE_RECORDS)
    ]
    with Journal(folder + JOURNAL) as journal:
        is_present = os.path.lexists(folder)
        if is_present:
            if _is_finished(folder, journal, about, pieces):
                num_bytes = _bytes_below(folder)
                return Conversion((folder,), len(source), num_bytes, len(pieces), call)
            _check_replaceable(folder, journal, about, overwrite=work.overwrite)
        if not _goes_on(journal, about):
            with writing(folder):
                journal.remove_parts()
            # With a note that an old folder is to be replaced: a call that goes on after a kill
            # finds it there, and may remove it.
            journal.begin({**about, "replaces": True} if is_present else about)
        part = folder + journal.part_suffix()
        earlier = set(journal.names()) if os.path.isdir(part) else set()
        left = [piece for piece in pieces if piece.path not in earlier]
        make_folder(part)

        def write(piece: ConversionFile) -> None:
            _write_piece(piece, part, folder, writer, work)
            journal.note(piece.path)

        try:
            work.run(write, left)
        except BaseException:
            if not journal.names():  # there is nothing to go on with
                shutil.rmtree(part, ignore_errors=True)
            raise
        with writing(folder):
            writer.finish(part, source)
            if os.path.lexists(folder):
                # `rename` does not take the place of a folder that has entries (POSIX).
                shutil.rmtree(folder)
            os.replace(part, folder)
        journal.begin({**about, "finished": True})
    return Conversion((folder,), len(source), _bytes_below(folder), len(pieces) - len(left), call)


def _goes_on(journal: Journal, about: Mapping[str, Any]) -> bool:
    """Return True if the journal is of this conversion, and it is not finished."""
    if _has_note(journal, "replaces"):
        about = {**about, "replaces": True}
    return journal.is_of(about)


def _has_note(journal: Journal, key: str) -> bool:
    return (journal.about or {}).get(key) is True


def _is_finished(
    folder: str, journal: Journal, about: Mapping[str, Any], pieces: Sequence[ConversionFile]
) -> bool:
    """Return True if the folder that is there holds all records of this conversion."""
    if not os.path.isdir(folder):
        return False
    if journal.is_of({**about, "finished": True}):
        return True
    # It may have been killed when the folder had its name, before it could say that it is
    # finished.
    is_whole = {piece.path for piece in pieces} <= set(journal.names())
    is_renamed = not os.path.lexists(folder + journal.part_suffix())
    return _goes_on(journal, about) and is_whole and is_renamed


def _check_replaceable(
    folder: str, journal: Journal, about: Mapping[str, Any], *, overwrite: bool
) -> None:
    """Raise ``FileError`` unless another conversion made the folder, and may be overwritten."""
    is_conversion = _has_note(journal, "finished") or _has_note(journal, "replaces")
    if is_conversion and overwrite:
        return
    cause = "this conversion did not make it, and no folder of others is removed"
    remedy = "choose another name, or remove it"
    if is_conversion:
        differences = journal.differences(about) or "this one was replacing it"
        cause = f"another conversion made it: {differences}"
        remedy += ", or pass overwrite=True, which removes it"
    raise FileError(f"{folder} is there already", cause=cause, remedy=remedy)


def _write_piece(
    piece: ConversionFile, part: str, folder: str, writer: FolderWriter, work: ConversionWork
) -> None:
    """Write the files of some records, and compare them with the source.

    Raises:
        RecordError: they do not hold the records.
    """
    wrong = None
    with writing(folder):
        writer.write(part, work.records(piece))
        if work.verify:
            wrong = writer.first_difference(part, work.records(piece))
    if wrong is not None:
        raise RecordError(
            f"{work.source.where(wrong)}: its files do not hold this record as it was read",
            cause="the memory or the disk is faulty",
            remedy="convert again; if it happens again, check the disk (dmesg)",
        )


def _bytes_below(folder: str) -> int:
    return sum(
        os.path.getsize(os.path.join(root, name))
        for root, _, names in os.walk(folder)
        for name in names
    )
