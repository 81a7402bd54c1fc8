"""Listing: what a manifest holds of Parquet files, so that opening them reads no footer.

Values  the schemas, each once, in the form of Arrow's IPC; which columns of bytes hold images, and
        which do not.
Arrays  of each file its schema, the number of its row groups, and their bytes unpacked; the rows of
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
from gpuload.formats.parquet.table import CALL, Table
from gpuload.order import MAX_LENGTH
from gpuload.sources.leaf import Array
from gpuload.storage.manifest import Manifest

LARGEST_BYTES = 1 << 62


def to_manifest(
    tables: Sequence[Table], columns: Sequence[Column]
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the values and arrays of a manifest of files, the first of which has these columns."""
    numbers, schema_of = dict[bytes, int](), list[int]()
    schema_numbers = dict[
        int, int
    ]()  # the number of a schema by its object: files of a manifest share theirs
    for table in tables:
        if id(table.schema) not in schema_numbers:
            content = table.schema.serialize().to_pybytes()
            schema_numbers[id(table.schema)] = numbers.setdefault(content, len(numbers))
        schema_of.append(schema_numbers[id(table.schema)])
    about: dict[str, Any] = {
        "schemas": [base64.b64encode(content).decode("ascii") for content in numbers],
        "images": {column.field.name: column.field.encoded for column in columns},
    }
    arrays: dict[str, Array] = {
        "schema_of": np.array(schema_of, np.uint32),
        "row_groups": np.array([table.rows.size for table in tables], np.int64),
        "unpacked_bytes": np.array([table.num_bytes for table in tables], np.int64),
        "rows": np.concatenate([table.rows for table in tables]),
    }
    return about, arrays


def from_manifest(
    listing: Manifest,
) -> tuple[list[Table], Callable[[Mapping[str, Any]], list[list[Column]]]]:
    """Return the files that a manifest lists, and a function that returns the columns of each from
    the arguments.

    Raises:
        FormatError: the manifest contradicts itself.
    """
    schemas, images = _schemas_of(listing), listing.about.get("images")
    if not isinstance(images, dict) or not all(
        type(is_image) is bool for is_image in images.values()
    ):
        raise listing.error("it does not say which columns hold images")
    schema_of = listing.numbers("schema_of", 0, len(schemas), "<u4").tolist()
    counts = listing.numbers("row_groups", 0, MAX_LENGTH)
    num_bytes = listing.numbers("unpacked_bytes", 0, LARGEST_BYTES).tolist()
    rows = listing.array("rows", "<i8", -1)
    # In float64: sums of damaged numbers could run over in int64, and fit again.
    if (
        counts.sum(dtype=np.float64) != rows.size
        or (rows < 0).any()
        or rows.sum(dtype=np.float64) >= MAX_LENGTH
    ):
        raise listing.error("it has other row groups than it counts, or rows that cannot be")
    pieces = np.split(rows, np.cumsum(counts)[:-1])
    tables = [
        Table(listing.files, number, schemas[schema_of[number]], pieces[number], num_bytes[number])
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
