"""Conversions to files that hold many records each."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence

from gpuload import signalsafe
from gpuload.convert.files import check_not_read, plan_files, refuse_strays, to_wildcard
from gpuload.convert.present import find_differing, open_journal, refuse_beside, refuse_foreign
from gpuload.convert.target import check_format
from gpuload.convert.work import Conversion, ConversionFile, ConversionWork, make_folder, writing
from gpuload.errors import RecordError
from gpuload.formats.base import Format
from gpuload.formats.writing import Writer
from gpuload.journal import SUFFIX as JOURNAL
from gpuload.journal import Journal
from gpuload.sources.base import Source

log = logging.getLogger("gpuload")


def write_shards(
    work: ConversionWork, path: str, form: Format, writer: Writer, num_shards: int | None
) -> Conversion:
    """Write the files of a conversion, but for those that an earlier call finished."""
    source = work.source
    check_format(form, writer, source.spec)
    files = plan_files(source, path, num_shards)
    check_not_read(source, [file.path for file in files])
    _log_notes(path, source, writer)
    folder, pattern = os.path.split(path)
    make_folder(folder)
    about = {
        "source": source.fingerprint(),
        "records": len(source),
        "format": form.name,
        "files": pattern,
        "num_shards": num_shards or 1,
        "fields": [str(field) for field in source.spec],
        **writer.about,
    }
    beside = {file.path: writer.beside(file.path, work.records(file)) for file in files}
    with Journal(os.path.join(folder, _stem(pattern) + JOURNAL)) as journal:
        with writing(path):
            journal.remove_parts()
        open_journal(journal, about, folder, overwrite=work.overwrite)
        left = _files_left(work, files, writer, journal, beside)
        refuse_strays(path, files)
        if left:
            part_suffix = journal.part_suffix()

            def write(file: ConversionFile) -> None:
                _write_file(file, writer, work, beside[file.path], part_suffix)
                journal.finish(file.name, file.path)

            work.run(write, left)
        else:
            log.info("%s: all %d files were finished before", path, len(files))
    return Conversion(
        tuple(file.path for file in files),
        len(source),
        sum(os.path.getsize(file.path) for file in files),
        len(files) - len(left),
        _call(path, writer, source, files, num_shards or 1),
    )


def _log_notes(path: str, source: Source, writer: Writer) -> None:
    """Log which fields, and which names of classes, the format does not hold as they are."""
    for field in source.spec:
        if note := writer.notes(field):
            log.info("%s: field %s is %s", path, field, note)
    if source.classes and not writer.holds_classes(source.spec):
        log.info(
            "%s: the names of the classes are not stored: labels are numbers, and source.classes "
            "of the new files is empty; json.dump(source.classes, file) keeps the names",
            path,
        )


def _files_left(
    work: ConversionWork,
    files: Sequence[ConversionFile],
    writer: Writer,
    journal: Journal,
    beside: Mapping[str, Mapping[str, bytes]],
) -> list[ConversionFile]:
    """Return the files that are still to be written.

    Raises:
        FileError: files of others are there, and ``overwrite`` is False.
    """

    def is_finished(file: ConversionFile) -> bool:
        return journal.is_finished(file.name, file.path)

    def is_whole(file: ConversionFile) -> bool:
        return is_finished(file) and not find_differing(file, beside[file.path])

    left = [file for file in files if not is_whole(file)]
    if work.overwrite:
        return left
    names = set(journal.names())
    refuse_beside([(file, beside[file.path]) for file in left if file.name not in names])
    unknown = [file for file in left if os.path.lexists(file.path) and not is_finished(file)]
    refuse_foreign(
        journal,
        unknown,
        lambda file: work.run(lambda file: _compare(file.path, file, writer, work), [file]),
    )
    # Once more: the journal now names files that a killed call left whole.
    return [file for file in left if not is_whole(file)]


def _write_file(
    file: ConversionFile,
    writer: Writer,
    work: ConversionWork,
    beside: Mapping[str, bytes],
    part_suffix: str,
) -> None:
    """Write one file under another name, compare it, and give it its name, after the small files
    beside it."""
    part = file.path + part_suffix
    parts = {part: file.path}
    try:
        with writing(file.path):
            writer.write(part, work.records(file))
            if work.verify:
                _compare(part, file, writer, work)
            for suffix, content in beside.items():
                small_part = f"{file.path}{suffix}{part_suffix}"
                # The file itself is renamed last: the small files that it needs are there before.
                parts = {small_part: file.path + suffix, **parts}
                with open(small_part, "xb") as small:
                    small.write(content)
            for part_path, final in parts.items():
                # Before it has its name: after a crash of the machine a name must not stand for
                # bytes that were still in memory.
                _flush(part_path)
                os.replace(part_path, final)
    finally:
        for part_path in parts:
            with signalsafe.suppress(OSError):
                os.unlink(part_path)


def _compare(path: str, file: ConversionFile, writer: Writer, work: ConversionWork) -> None:
    """Raise ``RecordError`` if a file, read back, does not hold the records of the source."""
    wrong = writer.differs(path, work.records(file))
    if wrong:
        raise RecordError(
            f"{file.path}: its records are not those of the source: {wrong}",
            cause="the memory or the disk is faulty, "
            "or the source gave other values when it was read again",
            remedy="convert again; if it happens again, check the disk (dmesg) and the source",
        )


def _flush(path: str) -> None:
    # fsync is of the file: bytes that the format's writer wrote by its own descriptor go to the
    # disk, too.
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _call(
    path: str, writer: Writer, source: Source, files: Sequence[ConversionFile], num_shards: int
) -> str:
    """Return the call that reads the files again."""
    folder, pattern = os.path.split(path)
    calls = []
    for fields in dict.fromkeys(file.names for file in files):
        name = to_wildcard(pattern).format(num_shards=num_shards, field=fields[0])
        calls.append(writer.call(os.path.join(folder, name), source.spec.only(fields)))
    if len(calls) == 1:
        return calls[0]
    return f"gl.zip({', '.join(calls)})"


def _stem(pattern: str) -> str:
    """Return the name of a pattern's journal, a different one for each pattern:
    ``train-SHARD.npy``."""
    return re.sub(r"\{(\w+)[^{}]*\}", lambda match: match[1].upper(), pattern)
