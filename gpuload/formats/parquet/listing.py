"""Listing: the part of a manifest about Parquet files, so that opening them reads no footer.

Values  The schemas, each once, in the form of Arrow's IPC; which columns of bytes hold images.
Arrays  The schema of each file, the number of its row groups, and their bytes unpacked; the rows of
        each row group.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpuload import signalsafe
from gpuload.formats import columnar
from gpuload.formats.columnar import Column
from gpuload.formats.listing import (
    ListedArray,
    listed_images,
    read_arrays,
    split_by_file,
    to_arrays,
)
from gpuload.formats.parquet.table import CALL, ParquetTable
from gpuload.order import MAX_LENGTH
from gpuload.sources.leaf import Array
from gpuload.storage.manifest import Manifest

ARRAYS = (
    ListedArray("schema_of", "<u4", after="schemas"),
    ListedArray("row_groups", after=MAX_LENGTH),
    ListedArray("unpacked_bytes", after=1 << 62),
    ListedArray("rows", per=("row_groups",), after=MAX_LENGTH, total=MAX_LENGTH),
)


def to_manifest(
    tables: Sequence[ParquetTable], columns: Sequence[Column]
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the values and arrays of a manifest of files, the first of which has these columns."""
    numbers, schema_of = dict[bytes, int](), list[int]()
    # The number of a schema by its object: files of a manifest share theirs.
    schema_numbers = dict[int, int]()
    for table in tables:
        if id(table.schema) not in schema_numbers:
            content = table.schema.serialize().to_pybytes()
            schema_numbers[id(table.schema)] = numbers.setdefault(content, len(numbers))
        schema_of.append(schema_numbers[id(table.schema)])
    about: dict[str, Any] = {
        "schemas": [base64.b64encode(content).decode("ascii") for content in numbers],
        "images": {column.field.name: column.field.encoded for column in columns},
    }
    values = {
        "schema_of": schema_of,
        "row_groups": [table.rows.size for table in tables],
        "unpacked_bytes": [table.num_bytes for table in tables],
        "rows": np.concatenate([table.rows for table in tables]),
    }
    return about, to_arrays(ARRAYS, values)


def from_manifest(
    listing: Manifest,
) -> tuple[list[ParquetTable], Callable[[Mapping[str, Any]], list[list[Column]]]]:
    """Return the files that a manifest lists, and a function that returns the columns of each from
    the arguments.

    Raises:
        FormatError: the manifest contradicts itself.
    """
    schemas, images = _schemas_of(listing), listed_images(listing)
    arrays = read_arrays(listing, ARRAYS, {"schemas": len(schemas)})
    schema_of, num_bytes = arrays["schema_of"].tolist(), arrays["unpacked_bytes"].tolist()
    rows = split_by_file(arrays["rows"], arrays["row_groups"])
    tables = [
        ParquetTable(
            listing.files, number, schemas[schema_of[number]], rows[number], num_bytes[number]
        )
        for number in range(len(listing.files))
    ]
    firsts = [schema_of.index(number) for number in dict.fromkeys(schema_of)]

    def columns_by(arguments: Mapping[str, Any]) -> list[list[Column]]:
        columns = columnar.columns_of_files(
            CALL, [tables[number] for number in firsts], arguments, images
        )
        columns_of = dict(zip(dict.fromkeys(schema_of), columns, strict=True))
        return [columns_of[number] for number in schema_of]

    return tables, columns_by


def _schemas_of(listing: Manifest) -> list[Any]:
    """Return the schemas of a manifest."""
    arrow = columnar.import_arrow(CALL)
    texts = listing.about.get("schemas")
    try:
        if isinstance(texts, list):
            contents = [base64.b64decode(text, validate=True) for text in texts]
            return [arrow.ipc.read_schema(arrow.py_buffer(content)) for content in contents]
    except (TypeError, binascii.Error, ValueError, OSError, arrow.ArrowException) as error:
        signalsafe.pass_on(error)
    raise listing.error("it holds no schemas")
