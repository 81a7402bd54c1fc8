"""Table source: rows of Parquet or Arrow files, with the columns that folders are.

    sales/year=2019/a.parquet     x: 1 2 3     year: 2019 2019 2019

Twice   If the files have the column of a folder, too, it is read from the files. Its value in the
        first record is compared with the name of the folder: both are the same if one program wrote
        them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from gpuload.errors import SpecError
from gpuload.formats import columnar
from gpuload.formats.columnar import Column
from gpuload.sources.columns import ColumnSource
from gpuload.sources.filesource import Opening
from gpuload.sources.leaf import Leaf
from gpuload.sources.partitions import Partition, digest_of, names_below, partitions_of
from gpuload.storage.extents import Storage
from gpuload.storage.manifest import Manifest

PARTITIONS = "partitions"  # of the values of a manifest
log = logging.getLogger("gpuload")


class TableSource(ColumnSource):
    """Rows of files of columns, and of folders.

    Args:
        opening: the call that opened them; its function has the name of the reader.
        leaves: of the columns of the files, in order.
        tables: the files.
        columns: of the first file.
        partitions: the columns that folders are.
        storage: of the files.
    """

    def __init__(
        self,
        opening: Opening,
        leaves: Sequence[Leaf],
        tables: Sequence[Any],
        columns: Sequence[Column],
        partitions: Sequence[Partition],
        storage: Storage,
    ) -> None:
        call, files = f"gl.{opening.function.__name__}", storage.files
        counts = [table.num_rows for table in tables]
        defaults = opening.arguments["defaults"]
        of_folders = list[Leaf]()
        for part in partitions:
            of_folders.append(part.leaf(call, files.paths, counts, defaults.get(part.name)))
        leaves = _in_order(opening.arguments["fields"], [*leaves, *of_folders])
        about = [*sorted(defaults.items()), *digest_of(partitions)] or None
        classes = columnar.classes_of(tables, columns)
        super().__init__(files, opening, storage, leaves, counts, classes, about=about)
        if partitions:
            self._names = names_below(files.paths)
        self._columns, self._storage = columns, storage

    def _about_folders(self) -> dict[str, Any]:
        """Return the values of a manifest for the columns that folders are."""
        names = self._opening.arguments.get("partitions")
        if names:
            return {PARTITIONS: list(names)}
        return {}


def divide(
    call: str,
    arguments: dict[str, Any],
    tables: Sequence[Any],
    inner: Sequence[str],
    listing: Manifest | None,
) -> tuple[dict[str, Any] | None, list[Partition]]:
    """Separate the columns that folders are from the arguments for the columns of files.

    Args:
        call: the reader.
        arguments: of the reader, for both; gets the names of the columns that folders are.
        tables: the files.
        inner: for each the part of its path in which folders are looked for.
        listing: the manifest of the files, or None.

    Returns:
        The arguments; None if ``fields=`` names no column of the files. And the partitions to read.

    Raises:
        UnknownFieldError: an argument names no column.
        SpecError: a column is in files and folders and differs, or an argument is not for folders.
        FormatError: the manifest does not say which folders are columns.
    """
    names = arguments.get("partitions")
    if names is None:
        names = _names_in(listing)
    partitions = partitions_of(call, [table.path for table in tables], inner, names)
    if not partitions:
        return arguments, []
    arguments["partitions"] = tuple(partition.name for partition in partitions)
    in_files = columnar.names_of(tables[0].schema)
    rest = [partition for partition in partitions if partition.name not in in_files]
    doubles = [partition for partition in partitions if partition.name in in_files]
    if listing is None:
        for partition in doubles:
            _compare(call, partition, tables, arguments["partitions"])
    of_folders = {partition.name for partition in rest}
    _check_names(call, arguments, tables[0].path, in_files, of_folders)
    fields, defaults = arguments["fields"], arguments["defaults"]
    defaults = {name: value for name, value in defaults.items() if name not in of_folders}
    if fields is not None:
        rest = [partition for partition in rest if partition.name in fields]
        fields = tuple(name for name in fields if name not in of_folders)
    if fields == ():
        return None, rest
    return {**arguments, "fields": fields, "defaults": defaults}, rest


def _check_names(
    call: str, arguments: dict[str, Any], path: str, in_files: Sequence[str], of_folders: set[str]
) -> None:
    """Check the names in arguments, of which some are for columns of files alone."""
    for argument in ("fields", "shapes", "defaults", "dtypes"):
        columnar.check_names(path, arguments.get(argument) or (), [*in_files, *of_folders])
    for argument in ("shapes", "dtypes"):
        names = of_folders.intersection(arguments.get(argument) or ())
        if names:
            raise SpecError(
                f"{call}: {argument}: {min(names)!r} is the name of a folder",
                cause="such a column is int64 or text in each record",
                remedy=f"leave it out; gl.ops.Cast('float32', on={min(names)!r}) makes other "
                "numbers of it",
            )


def _names_in(listing: Manifest | None) -> tuple[str, ...] | None:
    """Return the names of the columns that folders are, as a manifest says; None without one."""
    if listing is None:
        return None
    names = listing.about.get(PARTITIONS, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise listing.error("it does not say which folders are columns")
    return tuple(names)


def _compare(call: str, partition: Partition, tables: Sequence[Any], names: Sequence[str]) -> None:
    """Compare the first value of a column with the name of its folder, and log which of both is
    read.

    Raises:
        SpecError: both are numbers, or texts, and differ.
    """
    number = next((number for number, table in enumerate(tables) if table.num_rows), None)
    if number is None:
        return
    table, text = tables[number], partition.values[number]
    value = next(iter(table.first(columnar.path_of(table.schema, partition.name))), None)
    expected: Any = text
    if isinstance(value, int) and (number_of_folder := partition.number(text)) is not None:
        expected = number_of_folder
    if type(value) is type(expected) and value != expected:
        names_of_rest = [name for name in names if name != partition.name]
        raise SpecError(
            f"{table.path}: {partition.name!r} is {value!r} in the file, and {expected!r} by its "
            "folder",
            cause="both are one column, and each record has one value of it",
            remedy=f"read it from the files: {call}(..., partitions={names_of_rest})",
        )
    message = "%s: %s: %r is read from the files, not from the names of folders"
    log.info(message, call, table.path, partition.name)


def _in_order(fields: Sequence[str] | None, leaves: Sequence[Leaf]) -> list[Leaf]:
    """Return the leaves of columns in the order of ``fields=``."""
    by_name = {leaf.spec.names[0]: leaf for leaf in leaves}
    if fields is None:
        return list(leaves)
    return [by_name[name] for name in fields]
