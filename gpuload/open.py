"""Open: find out by the bytes of files which format they are of.

Each format recognizes its own files (`Format.sniff`):

by description   a file beside the file describes it; this decides
by bytes         a magic, or a length with its checksum; also of the content of a compressed file
by text          the whole beginning is text of that form

Names and suffixes count in three cases alone: for the description beside a file, for the files of a
folder, and for text: ``.yaml`` and the like are no tables, also if all their lines have the same
number of commas. A file that no format recognizes, or two formats do, is refused; the error shows
its first bytes and the calls to choose from.
"""

from __future__ import annotations

import codecs
import contextlib
import inspect
import logging
import os
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

from gpuload import journal, lazy, signalsafe, synonyms, tracebacks
from gpuload.errors import FormatError, GpuloadError, MissingFileError, SpecError
from gpuload.formats import FORMATS, foreign
from gpuload.formats.base import Beginning, Format, Match
from gpuload.sources import calls
from gpuload.sources.base import Source
from gpuload.sources.filesource import FileSource
from gpuload.storage import manifest
from gpuload.storage.fileerrors import GZIP, open_error
from gpuload.storage.files import Files, look_at
from gpuload.storage.inflate import inflate_head
from gpuload.storage.stores import is_remote
from gpuload.storage.wildcards import Paths, as_folder, expand, expand_folders

HEAD_BYTES = 1 << 14  # of each file; enough for some lines of a table
TAKES_PATHS = ("gl.open", "gl.check", "gl.convert")  # beside the functions of formats
INNER_BYTES = 1 << 14  # of the content of a compressed file
ZLIB = (
    b"\x78\x01",
    b"\x78\x5e",
    b"\x78\x9c",
    b"\x78\xda",
)  # RFC 1950, section 2.2, of a window of 32 KiB
find_kind, is_hidden, table_files = (
    lazy.function("gpuload.storage.folders", name)
    for name in ("find_kind", "is_hidden", "table_files")
)
log = logging.getLogger("gpuload")


def open(paths: Paths) -> Source:
    """Return the source of files; their bytes tell the format, and the log says which it
    is.

    Args:
        paths: a path, a string with wildcards, or a list of these, whose files all are of one
            format; or a folder of image files, with a folder for each class, or with a table
            ``labels.csv`` of file and label, or neither; or a folder that holds files with one
            suffix, and nothing else; or a folder of Parquet, Arrow or CSV, as Spark, Hive and
            `datasets` write them; or folders of a format that consists of such (Zarr), and
            wildcards for them; or a manifest (``Source.index``), which opens the source that was
            indexed.

    Raises:
        FormatError: the bytes are of no format that is known, or of two; the remedy names the calls
            to choose from.
        SpecError: the files are of different formats.
        FileError: a file is missing or cannot be read.
    """
    return open_with_title(paths)[0]


def open_with_title(paths: Paths) -> tuple[Source, str, str]:
    """Return the source of files, a title of them, and the call that opens such files:
    ``"gl.npy"``.

    The arguments and errors are those of ``open``.
    """
    call = manifest.call_of(paths)
    if call is not None:
        return _open_manifest(*call), f"a manifest of files of gl.{call[1]}", f"gl.{call[1]}"
    folder = as_folder(paths)
    if folder is None:
        whole, names = folders_or_files(paths)
        if whole is not None:
            return whole.open(paths), f"folders of {whole.name}", f"gl.{whole.name}"
    else:
        try:
            source, name = open_folder(folder)
            return source, f"a folder of {name}", f"gl.{name}"
        except MissingFileError as error:
            kind = find_kind(folder)
            if kind is not None and kind.has_partitions:
                source = next(form for form in FORMATS if kind.call == f"gl.{form.name}").open(
                    folder
                )
                log.info("%s: found a folder of %s; opened by %s", folder, kind.title, kind.call)
                return source, f"a folder of {kind.title}", kind.call
            if kind is None:
                names = _files_of(folder, error)
            else:
                names = table_files(folder, kind)
    form, match = recognize(names)
    return form.open(names, **match.options), match.title, match.call


def folders_or_files(paths: Paths) -> tuple[Format | None, list[str]]:
    """Return the meaning of paths and wildcards: folders, and the format of all of them; or
    None, and files.

    Raises:
        FileError, SpecError: as ``expand``.
    """
    try:
        names = expand(paths, is_quiet=True)
    except MissingFileError:
        names = []
    if not names or signalsafe.is_folder(names[0]):
        with contextlib.suppress(GpuloadError):
            folders = expand_folders(paths, is_quiet=True)
            for form in FORMATS:
                if form.folder is not None and all(map(form.folder.recognize, folders)):
                    return form, folders
    return None, names or expand(paths)  # which raises the error


def _open_manifest(path: str, name: str, options: Mapping[str, Any]) -> Source:
    """Return the source of a manifest: that which was indexed.

    Raises:
        FormatError: it does not say how its files are opened.
        SpecError: an argument of that source has to be passed again.
    """
    calls_by_name = {form.name: form.call for form in FORMATS}
    paths, rest = options.get("paths"), options.get("rest")
    try:
        is_sound = (
            isinstance(paths, str)
            and isinstance(rest, list)
            and all(isinstance(text, str) for text in rest)
        )
        if name not in calls_by_name or not is_sound:
            raise ValueError(f"it lists files of {name!r}")
        arguments = calls.from_json(options["values"])
    except (ValueError, LookupError, AttributeError) as error:
        raise FormatError(
            f"{path} is no manifest that can be used",
            cause=f"it does not say how its files are opened: {error}",
            remedy="make it anew: gpuload index, or source.index(path)",
        ) from None
    if rest:
        names = ", ".join(f"{argument}=..." for argument in rest)
        raise SpecError(
            f"{path} lists files of gl.{name} with {names}",
            cause="these values are of a kind that a manifest does not hold",
            remedy=f"pass them again: gl.{name}({path!r}, {names})",
        )
    try:
        return calls_by_name[name](**{**arguments, str(paths): path})
    except TypeError as error:
        raise FormatError(
            f"{path} is no manifest that can be used",
            cause=f"gl.{name} does not take its arguments: {error}",
            remedy="make it anew: gpuload index, or source.index(path)",
        ) from None


def recognize(paths: list[str]) -> tuple[Format, Match]:
    """Return the common format of files, and its match; the log says both.

    Args:
        paths: absolute paths, from ``expand``.

    Raises:
        FormatError, SpecError, FileError: as ``open``.
    """
    files, results = look_at(
        paths, HEAD_BYTES, _recognize_part if len(paths) > 1 else recognize_file
    )
    matches = [(number, result) for number, result in enumerate(results) if result is not None]
    blanks = [files.paths[number] for number, result in enumerate(results) if result is None]
    if not matches:
        raise _empty(blanks[0])
    first, (form, match) = matches[0]
    if blanks and not form.has_blank_parts:
        raise _empty(blanks[0])
    for number, (other_form, second) in matches:
        if other_form is not form or second.options != match.options:
            raise SpecError(
                f"{files.paths[first]} is {match.title}, {files.paths[number]} is {second.title}",
                cause="the files of a source are of one format",
                remedy="open them one by one, and join them: gl.concat(a, b), gl.zip(a, b)",
            )
    log.info("%s: found %s; opened by %s", _title(files), match.title, match.call)
    return form, match


def _title(files: Files) -> str:
    if len(files) == 1:
        return files.paths[0]
    return f"{files.paths[0]} and {len(files) - 1} others"


def open_folder(folder: str) -> tuple[Source, str]:
    """Return the source of a folder of a format that is opened so, and the name of the format.

    Raises:
        MissingFileError: it is of no such format.
    """
    errors = list[MissingFileError]()
    for form in FORMATS:
        if form.folder is not None:
            try:
                return form.folder.open(folder), form.name
            except MissingFileError as error:
                errors.append(error)
    raise errors[-1]


def _files_of(folder: str, error: MissingFileError) -> list[str]:
    """Return the files of a folder, all with one suffix and with no folder among them.

    Raises:
        MissingFileError: they have several, or there is none; ``error`` says which files a folder would
            need otherwise.
    """
    if is_remote(folder):
        raise error
    names = _names_in(folder)
    files = [name for name in names if signalsafe.is_file(os.path.join(folder, name))]
    suffixes = Counter(os.path.splitext(name)[1] for name in files)
    folders = {suffix for form in FORMATS if form.folder for suffix in form.folder.suffixes}
    if any(suffix.lower() in folders for suffix in suffixes):
        raise error  # it is a folder of that format, and something else is missing
    if len(suffixes) == 1 and len(files) == len(names):
        return [os.path.join(folder, name) for name in files]
    if not names:
        raise MissingFileError(
            f"{folder} holds no file", cause="the folder is empty", remedy="check the path"
        )
    wildcard = os.path.join("**", "*")
    if suffixes:
        wildcard = f"*{suffixes.most_common(1)[0][0]}"
    call = f"gl.open({os.path.join(folder, wildcard)!r})"
    raise MissingFileError(
        error.what,
        cause=error.cause,
        remedy=f"check the folder, or name files of one kind: {call}",
    )


def _names_in(folder: str) -> list[str]:
    """Return the sorted names of a folder without hidden files and companions.

    Raises:
        MissingFileError: a link leads nowhere.
    """
    visible = [name for name in os.listdir(folder) if not name.startswith(".")]
    names = without_companions(sorted([name for name in visible if not is_hidden(name)] or visible))
    for name in names:
        path = os.path.join(folder, name)
        if signalsafe.is_link(path) and not signalsafe.exists(path):
            raise open_error(path, FileNotFoundError())
    return names


def without_companions(paths: list[str]) -> list[str]:
    """Return the files of a folder without those that gpuload put beside them: journals, manifests,
    descriptions.

    If there are no others, all are returned.
    """
    every, beside = set(paths), tuple(suffix for form in FORMATS for suffix in form.beside)

    def is_companion(path: str) -> bool:
        described_file = next(
            (path.removesuffix(suffix) for suffix in beside if path.endswith(suffix)), None
        )
        return path.endswith((journal.SUFFIX, manifest.SUFFIX)) or described_file in every

    return [path for path in paths if not is_companion(path)] or paths


def _recognize_part(path: str, num_bytes: int, head: bytes) -> tuple[Format, Match] | None:
    """Return the format of one of several files; None if it is empty, or has line ends alone.

    Raises:
        FormatError: as ``recognize_file``.
    """
    beginning = Beginning(path, num_bytes, head)
    inner = _content(beginning)
    text = (inner or beginning).head
    if num_bytes <= len(head) and not text.removeprefix(codecs.BOM_UTF8).strip(b"\r\n"):
        return None
    return recognize_file(path, num_bytes, head)


def _empty(path: str) -> FormatError:
    return FormatError(
        f"{path} is empty", cause="it has 0 bytes", remedy="it was never written: make it again"
    )


def recognize_file(path: str, num_bytes: int, head: bytes) -> tuple[Format, Match]:
    """Return the format of a file, by its size, its first bytes, and a description beside it.

    Raises:
        FormatError: no format recognizes it, or two do.
    """
    if not num_bytes:
        raise _empty(path)
    beginning = Beginning(path, num_bytes, head)
    described_formats = _matches(beginning, "description")
    if described_formats:
        return described_formats[0]
    matches = _matches(beginning, "bytes")
    if not matches and (content := _content(beginning)) is not None:
        return _recognize_content(content)
    if not matches:
        foreign.refuse(beginning)
    try:
        matches += _matches(beginning, "text")
    except FormatError:  # text that is no table: an image in plain text, say
        if not matches:
            raise
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise FormatError(
            f"{path} may be {' or '.join(match.title for _, match in matches)}",
            cause=f"it begins with {head[:16]!r}, which both may",
            remedy=f"say which it is: {' or '.join(f'gl.{form.name}' for form, _ in matches)}",
        )
    raise FormatError(
        f"{path} is of no format that is known",
        cause=f"its {num_bytes} bytes begin with {head[:16]!r}, which none of {_names()} recognizes",
        remedy=f"if you know its format, call {_calls()}: {', '.join(form.hint for form in FORMATS if form.hint)}",
    )


def _matches(beginning: Beginning, known_by: str) -> list[tuple[Format, Match]]:
    forms = [
        form
        for form in FORMATS
        if form.known_by == known_by
        and (not beginning.compression or beginning.compression in form.compressions)
    ]
    return [(form, match) for form in forms if (match := form.sniff(beginning)) is not None]


def _content(beginning: Beginning) -> Beginning | None:
    """Return the beginning of the content of a compressed file; None if it is not compressed."""
    if not beginning.head.startswith((GZIP, *ZLIB)):
        return None
    compression = "gzip" if beginning.head.startswith(GZIP) else "zlib"
    inner = inflate_head(beginning.head, compression, INNER_BYTES)
    if inner is None:
        return None
    return Beginning(beginning.path, beginning.num_bytes + len(inner), inner, compression)


def _recognize_content(beginning: Beginning) -> tuple[Format, Match]:
    """Return the format of the content of a compressed file.

    Raises:
        FormatError: no format that is opened in this compression recognizes it.
    """
    for known_by in ("bytes", "text"):
        matches = _matches(beginning, known_by)
        if matches:
            return matches[0]
    foreign.refuse(beginning)
    compression = beginning.compression
    names = ", ".join(f"gl.{form.name}" for form in FORMATS if compression in form.compressions)
    raise FormatError(
        f"{beginning.path} is compressed with {compression} and holds {foreign.content_title(beginning.head)}",
        cause=f"of formats in {compression} these are opened: {names}",
        remedy=f"unpack it first; or call {_calls()}",
    )


def _calls() -> str:
    return f"{', '.join(f'gl.{form.name}' for form in FORMATS)} or gl.records"


def _names() -> str:
    return ", ".join(form.name for form in FORMATS)


def _advice(name: str, extra: str, args: tuple[Any, ...], arguments: dict[str, Any]) -> str:
    """Return the remedy for an argument that a call of `gl` does not have; "" if no format has it
    either.

    If it is an argument of the format by which `gl.open` would open the files, the remedy is the
    call of that format.

    Args:
        name: of the function that was called: ``"gl.open"``.
        extra: the argument.
        args: the arguments of the call, by place.
        arguments: those by name.
    """
    if name not in (*TAKES_PATHS, *(f"gl.{form.name}" for form in FORMATS)):
        return ""
    words = {form.name: _argument_of(form.name, extra) for form in FORMATS}
    words = {form: word for form, word in words.items() if word}
    if not words:
        return ""
    paths, *_ = (*args, arguments.get("paths"))
    opener, options = "", dict[str, Any]()
    if name == "gl.open" and paths is not None:
        opener, options = _opener_of(paths)
    if opener in words:
        rest = {key: value for key, value in arguments.items() if key not in ("paths", extra)}
        rest = {**options, **rest, words[opener]: arguments[extra]}
        texts = [repr(paths), *(f"{key}={value!r}" for key, value in rest.items())]
        return f"write gl.{opener}({', '.join(texts)})"
    if extra in words.values():  # not formats that have a synonym of it alone
        words = {form: word for form, word in words.items() if word == extra}
    readers = " or ".join(f"gl.{form}(..., {word}=...)" for form, word in words.items())
    remedy = f"leave it out; it belongs to {readers}"
    if opener:
        return f"{remedy}, and gl.{opener} opens these files"
    return remedy


def _argument_of(form: str, name: str) -> str:
    """Return the argument of a format's function that has this name, or one that means the same; ""
    if it has none."""
    names = list(inspect.signature(getattr(sys.modules["gpuload"], form)).parameters)[1:]
    if name in names:
        return name
    return next((word for word in synonyms.ARGUMENTS.get(name, ()) if word in names), "")


def _opener_of(paths: Any) -> tuple[str, dict[str, Any]]:
    """Return the name of the format by which `gl.open` opens files, and the arguments that it
    passes; "" if none."""
    with contextlib.suppress(GpuloadError):
        folder = as_folder(paths)
        if folder is not None:
            return _opener_of_folder(folder)
        whole, names = folders_or_files(paths)
        if whole is not None:
            return whole.name, {}
        form, match = recognize(names)
        return form.name, dict(match.options)
    return "", {}


def _opener_of_folder(folder: str) -> tuple[str, dict[str, Any]]:
    """Return the format and the arguments by which `gl.open` opens a folder."""
    for form in FORMATS:
        if form.folder is not None and form.folder.recognize(folder):
            return form.name, {}
    try:
        source, name = open_folder(folder)
    except MissingFileError:
        kind = find_kind(folder)
        if kind is None:
            return "", {}
        return kind.call.removeprefix("gl."), {}
    if not isinstance(source, FileSource) or name != "images":
        return name, {}
    labels = source._opening.options["labels"]
    if labels == "folder":
        return name, {}
    if labels is None:
        return name, {"labels": None}
    return "", {}  # labels of a table, which the call does not name


tracebacks.take_advice(_advice)
