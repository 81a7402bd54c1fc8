"""The files of a conversion: their names, and the records and fields that each of them holds."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Sequence

from gpuload.convert.work import ConversionFile, make_folder
from gpuload.errors import FileError, SpecError
from gpuload.sources.base import Source
from gpuload.storage.wildcards import URL, check_name

PLACEHOLDERS = ("shard", "num_shards", "field")


def check_path(out: str | os.PathLike[str]) -> str:
    """Return the whole path to write to; that of a folder keeps the slash at its end.

    Raises:
        SpecError: it is not a path, or a URL, or has characters that no name may have.
    """
    path = os.fspath(out) if isinstance(out, (str, os.PathLike)) else None
    if not isinstance(path, str) or not path:
        raise SpecError(
            f"out = {out!r}",
            cause="it is the path to write to",
            remedy="write 'out/train-{shard:05d}.tfrecord'",
        )
    text = os.path.expanduser(path)
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


def plan_files(source: Source, path: str, num_shards: int | None) -> list[ConversionFile]:
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
    by_field = [names]
    if "field" in placeholders:
        by_field = [(_check_file_part(name),) for name in names]
    files = []
    for shard in range(count):
        begin, end = len(source) * shard // count, len(source) * (shard + 1) // count
        for fields in by_field:
            name = pattern.format(shard=shard, num_shards=count, field=fields[0])
            files.append(ConversionFile(os.path.join(folder, name), begin, end, fields))
    _check_names(files, pattern, by_field)
    return files


def plan_parts(
    source: Source, out: str | os.PathLike[str], records_per_file: int
) -> tuple[list[ConversionFile], str]:
    """Return the files of a conversion that several machines share, and their wildcard.

    Each file holds ``records_per_file`` records, the last one the rest. The wildcard is the name
    of all files together, without the folder: ``train-*.npy``.

    Raises:
        SpecError: ``source`` is not a source, or has no records; ``out`` has no ``{shard}``, or
            anything else in braces.
        FileError: files are there that a wildcard would read with these.
    """
    if not isinstance(source, Source) or not len(source):
        raise SpecError(
            f"a conversion of {type(source).__name__}",
            cause="there is no record to convert",
            remedy="pass a source with records: gl.open(path), say",
        )
    path = check_path(out)
    folder, pattern = os.path.split(path)
    if _placeholders(path, pattern) - {"num_shards"} != {"shard"}:
        raise SpecError(
            f"out = {path!r}",
            cause="each file is named by its number",
            remedy="write out/train-{shard:05d}.npy, say; "
            "files of single fields are written by gl.convert",
        )
    count = -(-len(source) // records_per_file)
    names = [pattern.format(shard=number, num_shards=count) for number in range(count)]
    edges = [*range(0, len(source), records_per_file), len(source)]
    files = [
        ConversionFile(os.path.join(folder, name), begin, end, source.spec.names)
        for name, begin, end in zip(names, edges[:-1], edges[1:], strict=True)
    ]
    _check_names(files, pattern, [source.spec.names])
    make_folder(folder)
    refuse_strays(path, files)
    wildcard = to_wildcard(pattern).format(num_shards=count)
    return files, wildcard


def to_wildcard(pattern: str) -> str:
    """Return a pattern with ``*`` in place of the shard: ``train-{shard:05d}.npy``, ``train-*.npy``."""
    return re.sub(r"\{shard[^{}]*\}", "*", pattern)


def _placeholders(path: str, pattern: str) -> set[str]:
    """Return the names in braces of the file's name; raise ``SpecError`` for others."""
    try:
        in_path, in_name = (
            {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
            for text in (path, pattern)
        )
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
            cause=f"{', '.join(PLACEHOLDERS)} in braces stand in the name of the file, "
            "and nothing else does",
            remedy="write out/train-{shard:05d}.npy, say",
        )
    return in_name


def _check_file_part(name: str) -> str:
    """Return the name of a field, which becomes a part of a file's name.

    Raises:
        SpecError: a file's name cannot hold it.
    """
    check_name(name)
    if set(name) & set("/\\\0") or name.startswith("."):
        raise SpecError(
            f"field {name!r} as a part of a file's name",
            cause="it begins with a point, or holds a separator of paths",
            remedy=f"rename it: source.rename(**{{{name!r}: 'x'}})",
        )
    return name


def _check_names(
    files: Sequence[ConversionFile], pattern: str, by_field: Sequence[tuple[str, ...]]
) -> None:
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
                cause="sorted by name, as a wildcard is, the files would not be in the order "
                "of the records",
                remedy="pad the number: {shard:05d}",
            )


def refuse_strays(path: str, files: Sequence[ConversionFile]) -> None:
    """Raise ``FileError`` for shards beyond those that are written: a wildcard would read them with
    these."""
    folder, pattern = os.path.split(path)
    if "{shard" not in pattern:
        return
    own_names = {file.name for file in files}
    like = ""
    for text, name, _, _ in string.Formatter().parse(pattern):
        like += re.escape(text)
        if name is not None:
            like += r".+" if name == "field" else r"\d+"
    strays = sorted(
        entry
        for entry in os.listdir(folder)
        if re.fullmatch(like, entry) and entry not in own_names
    )
    if strays:
        raise FileError(
            f"{os.path.join(folder, strays[0])} is there already"
            + f", and {len(strays) - 1} others" * (len(strays) > 1),
            cause=f"it is named like the {len(files)} files that are written, "
            "and a wildcard would read it with them",
            remedy="remove it, or choose another name",
        )


def check_not_read(source: Source, paths: Sequence[str]) -> None:
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
