"""Folders of tables: which files of a folder are the parts of one table, and which of their folders
are values.

    out/_SUCCESS  out/.part-0.parquet.crc  out/part-0.parquet         Spark: out/part-0.parquet
    sales/year=2019/a.parquet  sales/year=2020/b.parquet              both, with the column "year"
    saved/data-00000-of-00001.arrow  dataset_info.json  state.json    `datasets`: the files that state.json names

Hidden     names that begin with ``_`` or ``.``, as Spark, Hive and Hadoop have it, also of folders.
Partitions folders ``name=value``, as Hive has them: each name is a column, and its values are texts
of URLs.
Refused    folders of several splits (train, test), which are tables of their own; folders of Delta
           Lake, Iceberg and Hudi, in which files of older versions lie, too.
Source     https://spark.apache.org/docs/latest/sql-data-sources-parquet.html#partition-discovery
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpuload.errors import MissingFileError, SpecError
from gpuload.storage.fileerrors import open_error
from gpuload.storage.handles import read_bytes
from gpuload.storage.hidden import is_hidden_name
from gpuload.storage.stores import Remote, is_remote
from gpuload.storage.wildcards import (
    WILDCARDS,
    Paths,
    as_folder,
    as_list,
    check_named_once,
    expand,
    files_below,
    is_folder,
    join,
    leads_above,
    warn_of_missing_shards,
)

# names of the parts of a data set
SPLITS = (
    *("train", "training", "test", "testing", "validation", "valid", "val"),
    *("dev", "eval", "evaluation", "holdout"),
)
SPLIT = rf"({'|'.join(SPLITS)})(?=[-_.]|$)"
# of `datasets`, in a saved folder
INFO, STATE, SPLIT_LIST = "dataset_info.json", "state.json", "dataset_dict.json"
STATE_BYTES = 1 << 26
COMPANIONS = (
    ".md",
    ".txt",
    ".json",
    ".yaml",
    ".yml",
    ".html",
    ".pdf",
    ".sha256",
    ".md5",
    ".manifest",
    ".jsonl",
)
FORMATS_OF_VERSIONS = {
    "_delta_log": ("Delta Lake", "gl.parquet(deltalake.DeltaTable(folder).file_uris())"),
    ".hoodie": ("Hudi", "write the table to Parquet with Spark"),
    "metadata": (
        "Iceberg",
        "gl.parquet([task.file.file_path for task in table.scan().plan_files()])",
    ),
}
log = logging.getLogger("gpuload")


@dataclass(frozen=True)
class TableKind:
    """A format of files that are parts of a table.

    Attributes:
        call: the reader, ``"gl.parquet"``.
        title: the name of the format.
        suffixes: of its files, in small letters.
        has_partitions: True if its reader makes columns of folders ``name=value``.
    """

    call: str
    title: str
    suffixes: tuple[str, ...]
    has_partitions: bool = True


PARQUET = TableKind("gl.parquet", "Parquet", (".parquet", ".pq", ".parq"))
ARROW = TableKind("gl.arrow", "Arrow", (".arrow", ".feather", ".ipc", ".arrows"))
CSV = TableKind("gl.csv", "CSV", (".csv", ".tsv", ".csv.gz", ".tsv.gz"), has_partitions=False)
KINDS = (PARQUET, ARROW, CSV)


def is_hidden(name: str) -> bool:
    """Return True for the name of a file or folder that is no part of a table; ``_x=1`` is a value
    of column ``_x``."""
    return is_hidden_name(name) or (name.startswith("_") and "=" not in name)


def expand_tables(paths: Paths, kind: TableKind) -> tuple[list[str], list[str]]:
    """Return the files of paths, wildcards and folders, and for each the path of its folder below
    what was named.

    That is the part of the path in which folders ``name=value`` are looked for: below a folder, or
    below the folder in which a wildcard begins; "" for a path.

    Raises:
        FileError, SpecError: as ``expand``; a folder holds no part of a table, or those of several.
    """
    items = as_list(paths)
    folders = [as_folder(item) for item in items]
    if not any(folders):
        files, bases = (
            expand(items),
            sorted({_base_of(item) for item in items}, key=len, reverse=True),
        )
        if bases == [""]:
            return files, [""] * len(files)
        return files, [
            _inner(file, next(base for base in bases if file.startswith(base) or not base))
            for file in files
        ]
    files, inner = list[str](), list[str]()
    for item, folder in zip(items, folders, strict=True):
        if folder is None:
            new_files, new_inner = expand_tables([item], kind)
        else:
            new_files = table_files(folder, kind)
            warn_of_missing_shards(new_files)
            new_inner = [_inner(file, join(folder, "")) for file in new_files]
        files += new_files
        inner += new_inner
    check_named_once(files)
    return files, inner


def _base_of(item: Any) -> str:
    """Return the folder in which the wildcards of a path begin, with its slash; "" for a path
    without them."""
    if isinstance(item, Remote) or not isinstance(item, (str, os.PathLike)):
        return ""
    text = os.path.expanduser(os.fspath(item))
    if not isinstance(text, str) or not WILDCARDS.intersection(text):
        return ""
    if is_remote(text):
        path = text
    else:
        path = os.path.abspath(text)
    first = min(place for mark in WILDCARDS if (place := path.find(mark)) >= 0)
    return path[: path.rfind("/", 0, first) + 1]


def _inner(file: str, base: str) -> str:
    """Return the folder of a file below another one; "" if the file lies in none."""
    if not base or not file.startswith(base):
        return ""
    return file[len(base) : max(len(base), file.rfind("/"))].strip("/")


def table_files(folder: str, kind: TableKind) -> list[str]:
    """Return the files of a folder that are the parts of a table, sorted.

    Raises:
        MissingFileError: it holds none.
        SpecError: it holds several tables, or a table of several versions.
    """
    names = sorted(_names_below(folder))
    parts = [name for name in names if name.lower().endswith(kind.suffixes)]
    _check_splits(folder, kind, parts)
    parts = _of_datasets(folder, kind, names, parts)
    if not parts:  # Hive names the files of a table 000000_0
        parts = [name for name in names if "." not in name.rpartition("/")[2]]
    if not parts:
        cause = f"of its {len(names)} files none ends with {' or '.join(kind.suffixes)}"
        remedy = "check the path"
        if names:
            cause += f"; the first is {names[0]}"
            remedy = (
                f"gl.open({folder!r}) finds out the format of its files; of a table whose files "
                f"have other names, name these: {kind.call}({join(folder, names[0])!r})"
            )
        raise MissingFileError(
            f"{folder} holds no file of {kind.title}", cause=cause, remedy=remedy
        )
    if not kind.has_partitions and (
        inner := next((name for name in parts if "=" in name.rpartition("/")[0]), "")
    ):
        raise SpecError(
            f"{folder} has folders name=value: {inner}",
            cause=f"such folders are the values of a column, which {kind.call} does not support",
            remedy=f"write the table to Parquet, or read it without that column: "
            f"{kind.call}({join(folder, '**', '*' + os.path.splitext(inner)[1])!r})",
        )
    rest = sorted(set(names) - set(parts))
    unusual = [name for name in rest if not name.lower().endswith(COMPANIONS)]
    if unusual:
        log.warning(
            "%s: %d of its files are no %s and are left out, %s for instance",
            *(folder, len(unusual), kind.title, unusual[0]),
        )
    return [join(folder, name) for name in parts]


def find_kind(folder: str) -> TableKind | None:
    """Return the one kind of table that a folder holds files of; None if there is none, or
    several."""
    try:
        names = [name.lower() for name in _names_below(folder)]
    except SpecError:
        return PARQUET
    kinds = [kind for kind in KINDS if any(name.endswith(kind.suffixes) for name in names)]
    is_table = len(kinds) == 1 and all(
        name.endswith((*kinds[0].suffixes, *COMPANIONS)) for name in names
    )
    if is_table:
        return kinds[0]
    return None


def _names_below(folder: str) -> Iterator[str]:
    """Yield the paths of the visible files below a folder, from there, with slashes.

    Raises:
        SpecError: it is a table with several versions of its files.
    """
    if is_remote(folder):
        paths = [path[len(folder.rstrip("/")) + 1 :] for path in files_below(folder)]
        for path in paths:
            _check_versions(folder, path.split("/")[0], [name.split("/")[-1] for name in paths])
        yield from (path for path in paths if not any(map(is_hidden, path.split("/"))))
        return
    visited, folders = set[str](), [""]
    while folders:
        inner = folders.pop()
        real = os.path.realpath(os.path.join(folder, inner))
        if real in visited:  # by way of a link
            continue
        visited.add(real)
        try:
            with os.scandir(os.path.join(folder, inner)) as scan:
                entries = list(scan)
        except OSError as error:
            raise open_error(os.path.join(folder, inner), error) from None
        for entry in entries:
            is_inner = is_folder(entry)
            if is_inner and not inner and entry.name in FORMATS_OF_VERSIONS:
                _check_versions(folder, entry.name, os.listdir(entry.path))
            if is_hidden(entry.name):
                continue
            if inner:
                path = f"{inner}/{entry.name}"
            else:
                path = entry.name
            if is_inner and not leads_above(entry.path, folder):
                folders.append(path)
            elif is_inner:
                log.warning("%s: a link to a folder above it is not followed: %s", folder, path)
            else:
                yield path


def _check_versions(folder: str, name: str, names: Sequence[str]) -> None:
    """Raise ``SpecError`` for the folder that tells the versions of a table."""
    is_iceberg = name != "metadata" or any(inner.endswith(".metadata.json") for inner in names)
    if name in FORMATS_OF_VERSIONS and is_iceberg:
        title, remedy = FORMATS_OF_VERSIONS[name]
        raise SpecError(
            f"{folder} is a table of {title}",
            cause="files of older versions lie in it, too, and its log, which says which files are "
            "the table, is not supported",
            remedy=f"ask its library for the files of the version: {remedy}",
        )


def _check_splits(folder: str, kind: TableKind, parts: Sequence[str]) -> None:
    """Raise ``SpecError`` if files are those of several splits, which would become one table."""
    firsts = {name.split("/")[0] for name in parts if "/" in name}
    folders = sorted(first for first in firsts if first.lower() in SPLITS)
    if len(folders) > 1:
        calls = [f"{kind.call}({join(folder, name)!r})" for name in folders]
        raise _several_splits(folder, folders, calls)
    matches = [(re.match(SPLIT, name.lower()), name) for name in parts if "/" not in name]
    prefixes = {match.group(1): name for match, name in matches if match is not None}
    if len(prefixes) > 1:
        wildcards = [
            f"{name[: len(prefix)]}*{next(suffix for suffix in kind.suffixes if name.lower().endswith(suffix))}"
            for prefix, name in sorted(prefixes.items())
        ]
        calls = [f"{kind.call}({join(folder, wildcard)!r})" for wildcard in wildcards]
        raise _several_splits(folder, sorted(prefixes), calls)


def _several_splits(folder: str, names: Sequence[str], calls: Sequence[str]) -> SpecError:
    return SpecError(
        f"{folder} holds the splits {', '.join(names)}",
        cause="a source of all of them would train on the records of a test",
        remedy=f"open one of them: {' or '.join(calls)}",
    )


def _of_datasets(folder: str, kind: TableKind, names: Sequence[str], parts: list[str]) -> list[str]:
    """Return the files of a folder that `datasets` saved: those that it names, without its caches.

    Raises:
        SpecError: it is a folder of splits, or its records are others than those in the files.
    """
    if kind is not ARROW:
        return parts
    if SPLIT_LIST in names:
        content = _json_of(join(folder, SPLIT_LIST)).get("splits")
        splits = [str(name) for name in content] if isinstance(content, list) else []
        calls = [f"{kind.call}({join(folder, name)!r})" for name in splits]
        raise _several_splits(folder, splits, calls)
    files = _files_of_state(folder) if STATE in names else []
    if files:
        return files
    if INFO in names:
        return [name for name in parts if not name.rpartition("/")[2].startswith("cache-")]
    return parts


def _files_of_state(folder: str) -> list[str]:
    """Return the files that the state of a saved data set names; [] if it names none.

    Raises:
        SpecError: the data set has an order of its own.
    """
    state = _json_of(join(folder, STATE))
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise SpecError(
            f"{folder} was saved with an order of its own",
            cause="its records are some of those in its files, in another order, and that order is "
            "not supported",
            remedy="open it by its library: gl.datasets(datasets.load_from_disk(folder))",
        )
    entries = state.get("_data_files") or ()
    files = [entry.get("filename") for entry in entries if isinstance(entry, dict)]
    if all(isinstance(file, str) and file and not os.path.isabs(file) for file in files):
        return [str(file) for file in files]
    return []


def _json_of(path: str) -> dict[str, Any]:
    """Return the content of a small file of JSON; {} if it is none."""
    try:
        content = json.loads(read_bytes(path, STATE_BYTES))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
