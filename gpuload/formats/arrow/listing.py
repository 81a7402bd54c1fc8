"""Listing: the part of a manifest about Arrow files and streams, which opens them unread.

Values   which columns of bytes hold images, and which do not.
Arrays   the beginnings of files, schema and dictionaries, each once; of each file which of these it
         has, whether it is a stream, and its numbers of record batches, nodes and buffers; of each
         record batch where it lies, its rows, whether it is compressed, and its nodes and buffers
         (`messages.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload import signalsafe
from gpuload.formats import columnar
from gpuload.formats.arrow.messages import (
    HEAD_BYTES,
    SCHEMA,
    Message,
    RecordBatches,
    WrongMessage,
    width,
)
from gpuload.formats.arrow.table import CALL, ArrowTable
from gpuload.formats.columnar import Column
from gpuload.formats.listing import (
    FREE,
    ListedArray,
    listed_images,
    read_arrays,
    split_by_file,
    to_arrays,
)
from gpuload.order import MAX_LENGTH
from gpuload.sources.leaf import Array, starts_of
from gpuload.storage.extents import Storage
from gpuload.storage.manifest import Manifest

MOST_PAIRS = 1 << 24  # nodes or buffers of a record batch
BATCH = ("begins", "metadata", "bodies", "rows")
PREFIXES = (
    ListedArray("prefixes", "|u1", FREE, after=None),
    ListedArray("prefix_bounds", per=FREE),
)
BATCHES = (
    ListedArray("prefix_of", "<u4", after="prefixes"),
    ListedArray("is_file", "|u1", after=2),
    ListedArray("batches", after=MAX_LENGTH),
    ListedArray("num_nodes", after=MOST_PAIRS),
    ListedArray("num_buffers", after=MOST_PAIRS),
    ListedArray("places", per=("batches",), columns=BATCH, inside=BATCH[:3]),
    ListedArray("is_packed", "|u1", ("batches",), after=2),
    # These are compared with their record batch where a column is looked for (`ArrowTable.span`).
    ListedArray("nodes", per=("batches", "num_nodes"), columns=("length", "missing"), after=None),
    ListedArray("buffers", per=("batches", "num_buffers"), columns=("begin", "length"), after=None),
)


def to_manifest(
    tables: Sequence[ArrowTable], columns: Sequence[Column]
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the values and arrays of a manifest of files, the first of which has these columns."""
    numbers = dict[bytes, int]()
    prefix_of = [numbers.setdefault(table.batches.prefix, len(numbers)) for table in tables]
    batches = [table.batches for table in tables]
    places = [np.stack([getattr(item, name) for name in BATCH], axis=1) for item in batches]
    values = {
        "prefixes": np.frombuffer(b"".join(numbers), np.uint8),
        "prefix_bounds": starts_of(list(map(len, numbers))),
        "prefix_of": prefix_of,
        "is_file": [table.is_file for table in tables],
        "batches": [item.rows.size for item in batches],
        "num_nodes": [item.nodes.shape[1] for item in batches],
        "num_buffers": [item.buffers.shape[1] for item in batches],
        "places": np.concatenate(places),
        "is_packed": np.concatenate([item.is_packed for item in batches]),
        "nodes": np.concatenate([item.nodes.reshape(-1, 2) for item in batches]),
        "buffers": np.concatenate([item.buffers.reshape(-1, 2) for item in batches]),
    }
    images = {column.field.name: column.field.encoded for column in columns}
    return {"images": images}, to_arrays((*PREFIXES, *BATCHES), values)


def from_manifest(listing: Manifest, storage: Storage) -> tuple[list[ArrowTable], dict[str, bool]]:
    """Return the files that a manifest lists, and of columns of bytes whether they hold images.

    Raises:
        FormatError: the manifest contradicts itself.
    """
    images, prefixes = listed_images(listing), _prefixes_of(listing)
    arrays = read_arrays(listing, BATCHES, {"prefixes": len(prefixes)})
    begins, metadata, bodies, rows = arrays["places"].T.copy()
    if (metadata <= HEAD_BYTES).any() or rows.sum(dtype=np.float64) >= MAX_LENGTH:
        raise listing.error(
            "a record batch has no metadata, or all have more rows than there can be"
        )
    counts, tables = arrays["batches"], list[ArrowTable]()
    pairs = []
    for name in ("nodes", "buffers"):
        widths = arrays[f"num_{name}"]
        pieces = split_by_file(arrays[name], counts * widths)
        shapes = zip(counts.tolist(), widths.tolist(), strict=True)
        pairs.append(
            [piece.reshape(*shape, 2) for piece, shape in zip(pieces, shapes, strict=True)]
        )
    of_files = [
        split_by_file(array, counts)
        for array in (begins, metadata, bodies, rows, arrays["is_packed"] != 0)
    ]
    are_files = arrays["is_file"].astype(np.bool_).tolist()
    for number, *about in zip(
        arrays["prefix_of"].tolist(), are_files, *of_files, *pairs, strict=True
    ):
        prefix, (is_file, *parts) = prefixes[number], about
        batches = RecordBatches(prefix.content, b"", prefix.is_little, *parts)
        tables.append(
            ArrowTable.of(
                storage, len(tables), prefix.schema, prefix.widths, batches, is_file=is_file
            )
        )
    return tables, images


@dataclass(frozen=True)
class _Prefix:
    """The beginning of files.

    Attributes:
        content: schema and dictionaries.
        is_little: True if numbers are little-endian.
        schema: PyArrow's.
        widths: the nodes and buffers of each column.
    """

    content: bytes
    is_little: bool
    schema: Any
    widths: list[tuple[int, int]]


def _prefixes_of(listing: Manifest) -> list[_Prefix]:
    """Return the beginnings of files."""
    arrays = read_arrays(listing, PREFIXES)
    payload, bounds = arrays["prefixes"], arrays["prefix_bounds"]
    if bounds.size < 2 or bounds[0] or bounds[-1] != payload.size or (np.diff(bounds) <= 0).any():
        raise listing.error("it has no beginnings of files")
    arrow, prefixes = columnar.import_arrow(CALL), list[_Prefix]()
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        content = payload[begin:end].tobytes()
        try:
            message = Message.parse(content)
            if message.kind != SCHEMA:
                raise WrongMessage("it is no schema")
            schema = arrow.ipc.open_stream(content).schema
            prefixes.append(
                _Prefix(content, message.is_little, schema, [width(field.type) for field in schema])
            )
        except (WrongMessage, OSError, ValueError, arrow.ArrowException) as error:
            signalsafe.pass_on(error)
            raise listing.error("a beginning of a file holds no schema") from None
    return prefixes
