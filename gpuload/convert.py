"""Convert: the records of any source to files of another format, by threads, so that a conversion
that ended goes on.

    gl.convert(source, "out/train-{shard:05d}.tfrecord", num_shards=16)
    gl.convert("data/*.npy", "out.npz")
    gl.convert(source, "out/{field}-{shard}.npy", num_shards=2)         a file for each field
    gl.convert(gl.images("photos"), "copy/", format="images")
    gl.convert(loader, "out.npz")                                       the fields of its batches, behind its ops

Shards   shard i of k holds the records ``n * i // k`` to ``n * (i + 1) // k``, so the order of the
         records stays.
Whole    A file is written under another name (``.part-`` and random digits), flushed, read back and
         compared with the source, and renamed.
Going on Finished files stand in a journal beside the files (`journal.py`), with all that they
         depend on: source, format, arguments. The same call goes on behind them; another call is
         refused. The source's fingerprint tells whether it is the same (`Source.fingerprint`); that
         of ``gl.records`` sees its ``version=`` alone.
Memory   some tens of megabytes for each thread.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import string
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload import signalsafe, threads
from gpuload.batch import Batch
from gpuload.errors import FileError, GpuloadError, RecordError, SpecError, short_repr
from gpuload.formats import FORMATS
from gpuload.formats.base import Format, MakeWriter
from gpuload.formats.npy import pickles
from gpuload.formats.writing import FolderWriter, Records, SourceReadError, Writer, check_fields
from gpuload.journal import SUFFIX as JOURNAL
from gpuload.journal import Journal, write_error
from gpuload.loader import Loader
from gpuload.open import open as open_paths
from gpuload.order import check_count, check_flag
from gpuload.pipeline.epoch import Epoch
from gpuload.progress import Progress
from gpuload.sources.base import Source
from gpuload.spec import Spec
from gpuload.storage.handles import read_bytes
from gpuload.storage.wildcards import URL, Paths, check_name

PLACEHOLDERS = ("shard", "num_shards", "field")
FOLDER_RECORDS = 512  # of a folder of images so many are one piece of work
log = logging.getLogger("gpuload")


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


def convert(
    source: Source | Loader | Paths,
    out: str | os.PathLike[str],
    *,
    num_shards: int | None = None,
    format: str | None = None,
    raw: Sequence[str] = (),
    tensors: Sequence[str] = (),
    num_threads: int | None = None,
    verify: bool = True,
    overwrite: bool = False,
    allow_pickle: bool = False,
    record: str | None = None,
    epoch: int | None = None,
) -> Conversion:
    """Write the records of a source to files; the same call goes on with a conversion that ended
    before its end.

    Args:
        source: a source, or the paths of files, which `gl.open` opens; or a loader: its fields,
            behind all ops, of all records in the order of its source (`Loader.to_source`).
        out: the file, with ``{shard}`` where there are several, and ``{field}`` for a file of each
            field: ``"out/train-{shard:05d}-of-{num_shards:05d}.tfrecord"``. Of a folder of images
            the folder.
        num_shards: into how many files the records go; of a mix those of the first epoch.
        format: ``"tfrecord"``, ``"npy"``, ``"npz"``, ``"fixed"`` or ``"images"``; by default that
            of the suffix.
        raw: fields that a TFRecord holds as the bytes of their elements, for decode_raw and
            ``gl.Raw``.
        tensors: fields that a TFRecord holds as serialized tensors, for parse_tensor and
            ``gl.Tensor``.
        num_threads: by default the cores that this process may use.
        verify: read every file back and compare it with the source before it gets its name.
        overwrite: files of these names that are not this conversion's own are replaced, and those
            that the journal of another conversion names are removed. Finished files of this very
            conversion are kept all the same.
        allow_pickle: ``source`` is the path of NPY or NPZ files of Python objects that you trust:
            reading them runs the code that their writer put there (`formats/npy/pickles.py`).
        record: of files of Python objects: ``"file"``: each file is one record; ``"row"``: each
            item of a file is one. By default the content of a file decides: a dict or a tuple is
            one record, an array of dicts has many.
        epoch: of a loader with random ops: whose draws are written.

    Raises:
        SpecError: an argument does not fit, or a format cannot hold a field; the remedy names one
            that can.
        FileError: files are there already, another process writes them, the disk is full, or cannot
            be written.
        RecordError: a record cannot be read, or a file does not hold it when it is read back.
    """
    if num_shards is None:
        num_shards = None
    else:
        num_shards = check_count("num_shards", num_shards)
    if num_threads is None:
        num_threads = threads.num_cores()
    else:
        num_threads = check_count("num_threads", num_threads)
    verify, overwrite = check_flag("verify", verify), check_flag("overwrite", overwrite)
    allow_pickle = check_flag("allow_pickle", allow_pickle)
    records_source = _open_source(source, trusts_pickles=allow_pickle, record=record, epoch=epoch)
    path = _checked_path(out)
    form, make_writer = _format(path, format)
    if not len(records_source):
        raise SpecError(
            "a source without records",
            cause="there is nothing to convert",
            remedy="check the files, or the selection",
        )
    options = _writer_options(form, records_source, {"raw": raw, "tensors": tensors})
    work = _Work(records_source, num_threads, verify=verify, overwrite=overwrite)
    writer = make_writer(**options)
    if isinstance(writer, Writer):
        return _to_files(work, path, form, writer, num_shards)
    if num_shards not in (None, 1):
        raise SpecError(
            f"num_shards = {num_shards} of a folder of {form.name}",
            cause="each record is a file of its own",
            remedy="leave num_shards out",
        )
    return _to_folder(work, path, form.name, writer)


def _open_source(
    source: Source | Loader | Paths, *, trusts_pickles: bool, record: str | None, epoch: int | None
) -> Source:
    """Return the source to convert: the argument itself, that of a loader, or that of files."""
    if isinstance(source, (Source, Loader)) and trusts_pickles:
        raise SpecError(
            f"allow_pickle=True with a {type(source).__name__}",
            cause="it is for the path of an NPY file of Python objects; a source is open already",
            remedy="leave allow_pickle out, or pass the path",
        )
    if record is not None and not trusts_pickles:
        raise SpecError(
            f"record={record!r} without allow_pickle=True",
            cause="it is about files of Python objects: it says whether an item or a file is a record",
            remedy='open the files and pass the source: gl.convert(gl.npy(paths, record="file"), out)',
        )
    if isinstance(source, Loader):
        return source.to_source(epoch)
    if epoch is not None:
        raise SpecError(
            f"epoch={epoch!r} with a {type(source).__name__}",
            cause="a source has the same records in each epoch; the random ops of a loader have not",
            remedy="leave epoch= out, or convert the loader",
        )
    if isinstance(source, Source):
        return source
    _check_paths(source)
    if trusts_pickles:
        return pickles.trusted(source, record)
    return open_paths(source)


def _check_paths(source: object) -> None:
    """Raise ``SpecError`` for a value that is neither a source nor paths, with the form that
    works."""
    if isinstance(source, (str, os.PathLike)):
        return
    if isinstance(source, (list, tuple)):
        items = source
    else:
        items = ()
    if isinstance(source, Mapping):
        cause, remedy = (
            "arrays in memory are records as soon as they are a source",
            "write gl.arrays(**fields)",
        )
    elif isinstance(source, np.ndarray) and source.ndim and source.dtype.kind not in "OU":
        cause, remedy = (
            "arrays in memory are records as soon as they are a source",
            "write gl.arrays(x=array)",
        )
    elif any(isinstance(item, Mapping) for item in items):
        cause = "a list of dicts is not read: records lie in files, or in arrays"
        remedy = "write gl.arrays(x=[record['x'] for record in records], ...), or gl.records(len(records), read)"
    elif any(isinstance(item, Source) for item in items):
        cause, remedy = (
            "a conversion has one source",
            "join them: gl.concat(a, b), or gl.zip(a, b) for their fields",
        )
    elif items and not any(isinstance(item, (str, os.PathLike)) for item in items):
        cause = "the items of a list are the paths of files"
        remedy = "write gl.arrays(x=array, label=labels) for arrays in memory"
    elif isinstance(source, Epoch):
        cause, remedy = (
            "it is an iterator, and a conversion writes the records of a whole source",
            "pass the loader",
        )
    elif isinstance(source, Batch):
        cause, remedy = (
            "its records are in memory",
            "pass gl.arrays(**batch), or the loader, for the records of all batches",
        )
    elif not isinstance(source, Iterable):
        cause, remedy = (
            "it is neither a source nor the path of files",
            "pass a path, or gl.arrays(x=array)",
        )
    else:
        return
    raise SpecError(f"gl.convert of a {type(source).__name__}", cause=cause, remedy=remedy)


# --- one file at a time, for those who share the work among machines


@dataclass(frozen=True)
class Part:
    """One file of a conversion that several processes share: its path, and which records it holds.

    Attributes:
        wildcard: the name of all its files together.
    """

    path: str
    begin: int
    end: int
    wildcard: str

    @property
    def name(self) -> str:
        """The name of the file in its folder."""
        return os.path.basename(self.path)


def plan_parts(source: Source, out: str | os.PathLike[str], records_per_file: int) -> list[Part]:
    """Return the files of a conversion, each with ``records_per_file`` records, the last one with
    the rest.

    Raises:
        SpecError: ``source`` is none, or has no records, or ``out`` has no ``{shard}``, or anything
            else in braces.
        FileError: files are there that a wildcard would read with these.
    """
    if not isinstance(source, Source) or not len(source):
        raise SpecError(
            f"a conversion of {type(source).__name__}",
            cause="there is no record to convert",
            remedy="pass a source with records: gl.open(path), say",
        )
    path = _checked_path(out)
    folder, pattern = os.path.split(path)
    if _placeholders(path, pattern) - {"num_shards"} != {"shard"}:
        raise SpecError(
            f"out = {path!r}",
            cause="each file is named by its number",
            remedy="write out/train-{shard:05d}.npy, say; files of single fields are written by gl.convert",
        )
    count = -(-len(source) // records_per_file)
    names = [pattern.format(shard=number, num_shards=count) for number in range(count)]
    edges = [*range(0, len(source), records_per_file), len(source)]
    files = [
        _File(os.path.join(folder, name), begin, end, source.spec.names)
        for name, begin, end in zip(names, edges[:-1], edges[1:], strict=True)
    ]
    _check_names(files, pattern, [source.spec.names])
    _make_folder(folder)
    _refuse_strays(path, files)
    wildcard = re.sub(r"\{shard[^{}]*\}", "*", pattern).format(num_shards=count)
    return [Part(file.path, file.begin, file.end, wildcard) for file in files]


def convert_part(
    source: Source, path: str, begin: int, end: int, options: Mapping[str, Any]
) -> Conversion:
    """Write the file of a part; a file that is whole is kept, and what a killed call left is
    removed."""
    folder, name = os.path.split(path)
    pattern = name.replace("{", "{{").replace("}", "}}")
    return convert(source[begin:end], os.path.join(folder, pattern), **options)


# --- the records and the format to write


@dataclass(frozen=True)
class _File:
    """One file: its path, which records and which fields it holds."""

    path: str
    begin: int
    end: int
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        return os.path.basename(self.path)


def _checked_path(out: str | os.PathLike[str]) -> str:
    if (
        not isinstance(out, (str, os.PathLike))
        or not isinstance(os.fspath(out), str)
        or not os.fspath(out)
    ):
        raise SpecError(
            f"out = {out!r}",
            cause="it is the path to write to",
            remedy="write 'out/train-{shard:05d}.tfrecord'",
        )
    text = os.path.expanduser(os.fspath(out))
    check_name(text)
    if URL.match(text):
        raise SpecError(
            f"out = {text!r}",
            cause="it is a URL, and files are written to paths of this machine alone",
            remedy="write to a local folder, and copy the files from there",
        )
    # `abspath` cuts off the slash by which a folder is known.
    if text.endswith(os.sep):
        return os.path.join(os.path.abspath(text), "")
    return os.path.abspath(text)


def _format(path: str, name: str | None) -> tuple[Format, MakeWriter]:
    """Return the format to write, that of a name or of the suffix of the path, and a function that
    makes its writer."""
    formats = {form.name: (form, form.writer) for form in FORMATS if form.writer is not None}
    if name is not None:
        if not isinstance(name, str) or name not in formats:
            raise SpecError(
                f"format = {name!r}"[:200],
                cause="it is not known",
                remedy=f"use one of {', '.join(formats)}",
            )
        return formats[name]
    suffixes = {suffix: entry for entry in formats.values() for suffix in entry[0].suffixes}
    suffix = os.path.splitext(path)[1].lower()
    if path.endswith(os.sep) or not suffix:
        return next(entry for entry in formats.values() if not entry[0].suffixes)
    if suffix in suffixes:
        return suffixes[suffix]
    if suffix in (".gz", ".zip", ".zlib"):
        cause, remedy = (
            "compressed files are not written: records are read by their place",
            "leave that suffix out",
        )
    else:
        cause = f"the suffix {suffix!r} names no format"
        remedy = f"end it in {', '.join(suffixes)}; a folder of images has no suffix; or pass format=... (--format)"
    raise SpecError(f"out = {path!r}", cause=cause, remedy=remedy)


def _writer_options(
    form: Format, source: Source, options: Mapping[str, Sequence[str]]
) -> dict[str, Sequence[str]]:
    """Return the arguments for the writer of a format: lists of fields, each of which is held in
    one way.

    Raises:
        SpecError: the format does not take one that lists fields, or it is no list, or a field
            stands in two.
        UnknownFieldError: there is no such field.
    """
    for name, fields in options.items():
        is_list = isinstance(fields, (list, tuple)) and all(
            isinstance(field, str) for field in fields
        )
        if not is_list:
            remedy = 'write ["image"], say, or leave it out'
            if isinstance(fields, str):
                remedy = f"write [{fields!r}]"
            raise SpecError(
                f"{name} = {short_repr(fields)}", cause="it is a list of fields", remedy=remedy
            )
    if any(fields and name not in form.writer_options for name, fields in options.items()):
        form_list = [
            candidate for candidate in FORMATS if set(options) & set(candidate.writer_options)
        ]
        raise SpecError(
            f"{', '.join(f'{name}={list(fields)!r}' for name, fields in options.items())} with format {form.name!r}",
            cause=f"they say how {' or '.join(candidate.name for candidate in form_list)} holds a field",
            remedy=f"leave them out, or write {' or '.join(candidate.suffixes[0] for candidate in form_list)}",
        )
    counts = Counter(field for fields in options.values() for field in dict.fromkeys(fields))
    for field in counts:
        source.spec[field]
    if twice := sorted(field for field, count in counts.items() if count > 1):
        raise SpecError(
            f"{twice} in both {' and '.join(f'{name}=' for name in options)}",
            cause="a field is held in one way",
            remedy="name it once",
        )
    return {name: fields for name, fields in options.items() if name in form.writer_options}


def _check_fields(form: Format, writer: Writer, spec: Spec) -> None:
    """Raise ``SpecError`` if a format cannot hold one of the fields; names the call of a format
    that holds all."""
    try:
        check_fields(form.name, writer, spec)
    except SpecError as error:
        error.remedy = "; ".join(
            filter(None, (error.remedy, *(candidate.suggest(spec) for candidate in FORMATS)))
        )
        raise


def _plan_files(source: Source, path: str, num_shards: int | None) -> list[_File]:
    """Return the files of a conversion, shard by shard."""
    folder, pattern = os.path.split(path)
    placeholders = _placeholders(path, pattern)
    if "shard" in placeholders and num_shards is None:
        raise SpecError(
            f"{pattern} without num_shards",
            cause="it names several files",
            remedy="pass num_shards=16, say",
        )
    count = num_shards or 1
    if count > 1 and "shard" not in placeholders:
        stem, suffix = os.path.splitext(pattern)
        raise SpecError(
            f"{count} shards to {pattern}",
            cause="each shard is a file of its own, and they would all have one name",
            remedy=f"write {stem}-{{shard:05d}}{suffix}",
        )
    if count > len(source):
        raise SpecError(
            f"{count} shards of {len(source)} records",
            cause="some files would hold nothing",
            remedy=f"pass num_shards={len(source)} or less",
        )
    names = source.spec.names
    by_field = [(name,) for name in names] if "field" in placeholders else [names]
    files = [
        _File(
            os.path.join(
                folder,
                pattern.format(
                    shard=shard, num_shards=count, field=_file_part(fields[0], placeholders)
                ),
            ),
            len(source) * shard // count,
            len(source) * (shard + 1) // count,
            fields,
        )
        for shard in range(count)
        for fields in by_field
    ]
    _check_names(files, pattern, by_field)
    return files


def _placeholders(path: str, pattern: str) -> set[str]:
    try:
        in_path = {name for _, name, _, _ in string.Formatter().parse(path) if name is not None}
        in_name = {name for _, name, _, _ in string.Formatter().parse(pattern) if name is not None}
        pattern.format(**dict.fromkeys(("shard", "num_shards"), 0), field="x")
    except (ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        raise SpecError(
            f"out = {path!r}",
            cause=f"the name in braces is none of {', '.join(PLACEHOLDERS)}: {error}",
            remedy="write {shard:05d}, say; a brace itself is written {{",
        ) from None
    if not in_name <= set(PLACEHOLDERS) or in_path != in_name:
        raise SpecError(
            f"out = {path!r}",
            cause=f"{', '.join(PLACEHOLDERS)} in braces stand in the name of the file, and nothing else does",
            remedy="write out/train-{shard:05d}.npy, say",
        )
    return in_name


def _file_part(name: str, placeholders: set[str]) -> str:
    """Return the name of a field as a part of a file name; raises ``SpecError`` if it cannot be
    one."""
    if "field" in placeholders:
        check_name(name)
    if "field" in placeholders and (set(name) & set("/\\\0") or name.startswith(".")):
        raise SpecError(
            f"field {name!r} as a part of a file's name",
            cause="it begins with a point, or holds a separator of paths",
            remedy=f"rename it: source.rename(**{{{name!r}: 'x'}})",
        )
    return name


def _check_names(files: Sequence[_File], pattern: str, by_field: Sequence[tuple[str, ...]]) -> None:
    """Refuse two files of one name, and names that a wildcard would sort in another order than the
    records."""
    paths = [file.path for file in files]
    if len(set(paths)) < len(paths):
        raise SpecError(
            f"{pattern} gives {len(set(paths))} names for {len(paths)} files",
            cause="two of the files would have one name",
            remedy="name the shard as a number: {shard:05d}",
        )
    for fields in by_field:
        field_paths = [file.path for file in files if file.names == fields]
        if field_paths != sorted(field_paths):
            raise SpecError(
                f"{pattern} with {len(field_paths)} shards",
                cause="sorted by name, as a wildcard is, the files would not be in the order of the records",
                remedy="pad the number: {shard:05d}",
            )


# --- how it is written


class _StopError(Exception):
    """The work was asked to end; another thread raises the exception that is the reason."""


class _Work:
    """The work of one conversion, shared by its threads."""

    def __init__(self, source: Source, num_threads: int, *, verify: bool, overwrite: bool) -> None:
        self.source, self.num_threads = source, num_threads
        self.verify, self.overwrite = verify, overwrite
        self._stop_flags: list[bool] = []
        self._errors: list[Exception] = []
        self._busy = threading.Lock()
        self._tick: Callable[[int], None] = lambda count: None

    def run(self, function: Callable[[_File], None], files: Sequence[_File]) -> None:
        """Call a function for each file, in threads; the first error ends the others at their next
        records."""
        total = sum(file.end - file.begin for file in files) * (2 if self.verify else 1)
        num_done = 0
        with Progress("writing and reading back" if self.verify else "writing") as progress:

            def tick(count: int) -> None:
                nonlocal num_done
                if self._stop_flags:
                    raise _StopError
                with self._busy:
                    num_done += count
                progress.show(num_done, total, "records")

            def guarded(file: _File) -> None:
                try:
                    function(file)
                except Exception as exception:
                    error = exception.error if isinstance(exception, SourceReadError) else exception
                    self._errors.append(
                        error
                    )  # the first one is the cause: it stops the others, which raise later
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

    def records(self, file: _File) -> Records:
        """Return the records of a file."""
        return Records(self.source, file.begin, file.end, file.names, self._tick)


def _to_files(
    work: _Work, path: str, form: Format, writer: Writer, num_shards: int | None
) -> Conversion:
    source = work.source
    _check_fields(form, writer, source.spec)
    files = _plan_files(source, path, num_shards)
    _check_not_read(source, [file.path for file in files])
    for field in source.spec:
        if note := writer.notes(field):
            log.info("%s: field %s is %s", path, field, note)
    if source.classes and not writer.holds_classes(source.spec):
        log.info(
            "%s: the names of the classes are not stored: labels are numbers, and source.classes of the new files is "
            "empty; json.dump(source.classes, file) keeps the names",
            path,
        )
    folder, pattern = os.path.split(path)
    _make_folder(folder)
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
        with _writing(path):
            journal.remove_parts()
        _open_journal(journal, about, folder, overwrite=work.overwrite)

        def is_whole(file: _File) -> bool:
            return journal.is_finished(file.name, file.path) and not _differing(
                file, beside[file.path]
            )

        left = [file for file in files if not is_whole(file)]
        if not work.overwrite:
            known_names = set(journal.names())
            _refuse_beside(
                [(file, beside[file.path]) for file in left if file.name not in known_names]
            )
            present = [file for file in left if os.path.lexists(file.path)]
            _refuse_foreign(
                work,
                writer,
                journal,
                [file for file in present if not journal.is_finished(file.name, file.path)],
            )
        # Once more: files that a killed call left whole have been noted above.
        left = [file for file in left if not is_whole(file)]
        if not left:
            log.info("%s: all %d files were finished before", path, len(files))
        _refuse_strays(path, files)
        if left:
            part_suffix = journal.part_suffix()
        else:
            part_suffix = ""

        def write(file: _File) -> None:
            _write_file(file, writer, work, beside[file.path], part_suffix)
            journal.finish(file.name, file.path)

        work.run(write, left)
    return Conversion(
        tuple(file.path for file in files),
        len(source),
        sum(os.path.getsize(file.path) for file in files),
        len(files) - len(left),
        _call(path, writer, source, files, num_shards or 1),
    )


def _call(
    path: str, writer: Writer, source: Source, files: Sequence[_File], num_shards: int
) -> str:
    """Return the call that reads the files again."""
    folder, pattern = os.path.split(path)
    calls = []
    for fields in dict.fromkeys(file.names for file in files):
        name = re.sub(r"\{shard[^{}]*\}", "*", pattern).format(
            num_shards=num_shards, field=fields[0]
        )
        calls.append(writer.call(os.path.join(folder, name), source.spec.only(fields)))
    if len(calls) == 1:
        return calls[0]
    return f"gl.zip({', '.join(calls)})"


def _write_file(
    file: _File, writer: Writer, work: _Work, beside: Mapping[str, bytes], part_suffix: str
) -> None:
    """Write one file under another name, compare it, and give it its name, after the small files
    beside it."""
    part = file.path + part_suffix
    parts = {part: file.path}
    try:
        with _writing(file.path):
            writer.write(part, work.records(file))
            if work.verify:
                _compare(part, file, writer, work)
            for suffix, content in beside.items():
                small_part = f"{file.path}{suffix}{part_suffix}"
                # The file itself is renamed last: when it is there, what it needs beside it is
                # there.
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


@contextmanager
def _writing(path: str) -> Iterator[None]:
    """Name the path if the system refuses to write; an error of the user's own reader is raised as
    itself."""
    try:
        yield
    except SourceReadError as read_error:
        raise read_error.error from None
    except OSError as error:
        raise error if isinstance(error, GpuloadError) else write_error(path, error) from None


def _compare(path: str, file: _File, writer: Writer, work: _Work) -> None:
    """Raise ``RecordError`` if a file, read back, does not hold the records of the source."""
    wrong = writer.differs(path, work.records(file))
    if wrong:
        raise RecordError(
            f"{file.path}: its records are not those of the source: {wrong}",
            cause="the memory or the disk is faulty, or the source gave other values when it was read again",
            remedy="convert again; if it happens again, check the disk (dmesg) and the source",
        )


def _flush(path: str) -> None:
    # fsync is of the file: what the format's writer wrote by a descriptor of its own goes to the
    # disk, too.
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _stem(pattern: str) -> str:
    """Return the name of a pattern's journal, a different one for each pattern:
    ``train-SHARD.npy``."""
    return re.sub(r"\{(\w+)[^{}]*\}", lambda match: match[1].upper(), pattern)


# --- files of the same names that are there already


def _open_journal(
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
            cause=f"another conversion made it, as {journal.path} says: {journal.differences(about)}",
            remedy="choose another name, remove these files, or pass overwrite=True, which removes them",
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


def _refuse_foreign(work: _Work, writer: Writer, journal: Journal, files: Sequence[_File]) -> None:
    """Raise ``FileError`` for files that this conversion did not write.

    A file with the right records is taken: a kill may have left it without its line in the journal.
    """
    for file in files:
        try:
            work.run(lambda file: _compare(file.path, file, writer, work), [file])
        except GpuloadError:
            raise FileError(
                f"{file.path} is there already",
                cause="this conversion did not write it",
                remedy="choose another name, remove it, or pass overwrite=True",
            ) from None
        journal.finish(file.name, file.path)


def _differing(file: _File, beside: Mapping[str, bytes]) -> list[str]:
    """Return which of the small files beside a file are missing or others."""
    return [
        file.path + suffix
        for suffix, content in beside.items()
        if not _holds(file.path + suffix, content)
    ]


def _holds(path: str, content: bytes) -> bool:
    return os.path.isfile(path) and read_bytes(path, len(content) + 1) == content


def _refuse_beside(files: Sequence[tuple[_File, Mapping[str, bytes]]]) -> None:
    """Refuse small files of others that stand where a file would have its own."""
    for file, beside in files:
        for path in _differing(file, beside):
            if os.path.lexists(path):
                raise FileError(
                    f"{path} is there already",
                    cause="this conversion did not write it",
                    remedy="choose another name, remove it, or pass overwrite=True",
                )


def _refuse_strays(path: str, files: Sequence[_File]) -> None:
    """Raise ``FileError`` for shards beyond those that are written: a wildcard would read them with
    these."""
    folder, pattern = os.path.split(path)
    if "{shard" not in pattern:
        return
    own_names = {file.name for file in files}
    literal = [re.escape(text) + {"shard": r"\d+", "num_shards": r"\d+", "field": r".+", None: ""}[name]
               for text, name, _, _ in string.Formatter().parse(pattern)]  # fmt: skip
    like = re.compile("".join(literal))
    strays = sorted(
        entry for entry in os.listdir(folder) if like.fullmatch(entry) and entry not in own_names
    )
    if strays:
        raise FileError(
            f"{os.path.join(folder, strays[0])} is there already"
            + f", and {len(strays) - 1} others" * (len(strays) > 1),
            cause=f"it is named like the {len(files)} files that are written, and a wildcard would read it with them",
            remedy="remove it, or choose another name",
        )


def _check_not_read(source: Source, paths: Sequence[str]) -> None:
    """Raise ``SpecError`` if a file to write is one that is read, also under another name."""
    read = set(source.files.paths)
    present = [path for path in paths if os.path.exists(path)]
    if present and read:
        read |= {os.path.realpath(path) for path in read}
    for path in present:
        if path in read or os.path.realpath(path) in read:
            raise SpecError(
                f"{path} would be written over",
                cause="the source reads it",
                remedy="write to another name or folder",
            )


def _make_folder(folder: str) -> None:
    with _writing(folder):
        os.makedirs(folder, exist_ok=True)


# --- folders of files


def _to_folder(work: _Work, path: str, name: str, writer: FolderWriter) -> Conversion:
    """Write a folder of files: it has another name until all of it is there."""
    source, folder = work.source, path.rstrip(os.sep)
    call = writer.call(folder, source)
    names = source.spec.names
    _make_folder(os.path.dirname(folder))
    about = {
        "source": source.fingerprint(),
        "records": len(source),
        "format": name,
        "fields": [str(field) for field in source.spec],
        **writer.about(source),
    }
    pieces = [
        _File(f"{begin:d}", begin, min(begin + FOLDER_RECORDS, len(source)), names)
        for begin in range(0, len(source), FOLDER_RECORDS)
    ]
    with Journal(folder + JOURNAL) as journal:
        is_finished, replaces = (
            (journal.about or {}).get(key) is True for key in ("finished", "replaces")
        )
        goes_on = journal.is_of({**about, "replaces": True} if replaces else about)
        if os.path.lexists(folder):
            # It may have been killed when the folder had its name, before it could say that it is
            # finished.
            whole = {piece.path for piece in pieces} <= set(journal.names())
            is_complete = goes_on and whole and not os.path.lexists(folder + journal.part_suffix())
            if os.path.isdir(folder) and (
                is_complete or journal.is_of({**about, "finished": True})
            ):
                return Conversion((folder,), len(source), _bytes_below(folder), len(pieces), call)
            is_ours = is_finished or replaces
            if not (is_ours and work.overwrite):
                raise FileError(
                    f"{folder} is there already",
                    cause=f"another conversion made it: {journal.differences(about) or 'this one was replacing it'}"
                    if is_ours
                    else "this conversion did not make it, and no folder of others is removed",
                    remedy="choose another name, or remove it"
                    + ", or pass overwrite=True, which removes it" * is_ours,
                )
        if not goes_on:
            with _writing(folder):
                journal.remove_parts()
            # With a note that an old folder is to be replaced: a call that goes on after a kill
            # finds it there, and may remove it.
            journal.begin({**about, "replaces": True} if os.path.lexists(folder) else about)
        part = folder + journal.part_suffix()
        if os.path.isdir(part):
            finished_pieces = set(journal.names())
        else:
            finished_pieces = set()
        left = [piece for piece in pieces if piece.path not in finished_pieces]

        def write(piece: _File) -> None:
            with _writing(folder):
                writer.write(part, work.records(piece))
                if work.verify:
                    wrong = writer.first_difference(part, work.records(piece))
                else:
                    wrong = None
            if wrong is not None:
                raise RecordError(
                    f"{source.where(wrong)}: its files do not hold this record as it was read",
                    cause="the memory or the disk is faulty",
                    remedy="convert again; if it happens again, check the disk (dmesg)",
                )
            journal.note(piece.path)

        _make_folder(part)
        try:
            work.run(write, left)
        except BaseException:
            if not journal.names():  # there is nothing to go on with
                shutil.rmtree(part, ignore_errors=True)
            raise
        with _writing(folder):
            writer.finish(part, source)
            if os.path.lexists(folder):
                # `rename` does not take the place of a folder that has entries (POSIX).
                shutil.rmtree(folder)
            os.replace(part, folder)
        journal.begin({**about, "finished": True})
    return Conversion((folder,), len(source), _bytes_below(folder), len(pieces) - len(left), call)


def _bytes_below(folder: str) -> int:
    return sum(
        os.path.getsize(os.path.join(root, name))
        for root, _, names in os.walk(folder)
        for name in names
    )
