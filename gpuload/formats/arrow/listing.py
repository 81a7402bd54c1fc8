"""Listing: what a manifest holds of Arrow files and streams, so that opening them reads nothing.

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
from numpy.typing import NDArray

from gpuload import signalsafe
from gpuload.formats import columnar
from gpuload.formats.arrow.messages import (
    HEAD_BYTES,
    PAIR,
    SCHEMA,
    Batches,
    Message,
    WrongMessage,
    width,
)
from gpuload.formats.arrow.table import CALL, Table
from gpuload.formats.columnar import Column
from gpuload.order import MAX_LENGTH
from gpuload.sources.leaf import starts_of
from gpuload.storage.extents import Storage
from gpuload.storage.manifest import Manifest

MOST_PAIRS = 1 << 24  # nodes or buffers of a record batch


def to_manifest(
    tables: Sequence[Table], columns: Sequence[Column]
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the values and arrays of a manifest of files, the first of which has these columns."""
    numbers = dict[bytes, int]()
    prefix_of = [numbers.setdefault(table.batches.prefix, len(numbers)) for table in tables]
    batches = [table.batches for table in tables]
    arrays: dict[str, NDArray[Any]] = {
        "prefixes": np.frombuffer(b"".join(numbers), np.uint8),
        "prefix_bounds": starts_of(list(map(len, numbers))),
        "prefix_of": np.array(prefix_of, np.uint32),
        "is_file": np.array([table.is_file for table in tables], np.uint8),
        "batches": np.array([item.rows.size for item in batches], np.int64),
        "num_nodes": np.array([item.nodes.shape[1] for item in batches], np.int64),
        "num_buffers": np.array([item.buffers.shape[1] for item in batches], np.int64),
        "places": np.concatenate(
            [np.stack([b.begins, b.metadata, b.bodies, b.rows], axis=1) for b in batches]
        ),
        "is_packed": np.concatenate([item.is_packed for item in batches]).astype(np.uint8),
        "nodes": np.concatenate([item.nodes.reshape(-1, 2) for item in batches]),
        "buffers": np.concatenate([item.buffers.reshape(-1, 2) for item in batches]),
    }
    return {"images": {column.field.name: column.field.encoded for column in columns}}, arrays


def from_manifest(listing: Manifest, storage: Storage) -> tuple[list[Table], dict[str, bool]]:
    """Return the files that a manifest lists, and of columns of bytes whether they hold images.

    Raises:
        FormatError: the manifest contradicts itself.
    """
    images = listing.about.get("images")
    if not isinstance(images, dict) or not all(
        type(is_image) is bool for is_image in images.values()
    ):
        raise listing.error("it does not say which columns hold images")
    prefixes = _prefixes_of(listing)
    prefix_of = listing.numbers("prefix_of", 0, len(prefixes), "<u4").tolist()
    are_files = listing.numbers("is_file", 0, 2, "|u1").tolist()
    batches = _batches_of(listing, [prefixes[number] for number in prefix_of])
    tables = list[Table]()
    for prefix, is_file, item in zip(prefix_of, are_files, batches, strict=True):
        schema, widths = prefixes[prefix].schema, prefixes[prefix].widths
        tables.append(Table.of(storage, len(tables), schema, widths, item, is_file=bool(is_file)))
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
    payload, bounds = (
        listing.array("prefixes", "|u1", -1),
        listing.array("prefix_bounds", "<i8", -1),
    )
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


def _batches_of(listing: Manifest, prefixes: Sequence[_Prefix]) -> list[Batches]:
    """Return the record batches of each file; raises ``FormatError`` if they cannot be."""
    counts = listing.numbers("batches", 0, MAX_LENGTH)
    pairs = [listing.numbers(f"num_{name}", 0, MOST_PAIRS) for name in ("nodes", "buffers")]
    places, compression = (
        listing.array("places", "<i8", -1, 4),
        listing.array("is_packed", "|u1", -1),
    )
    sizes = (
        np.repeat(listing.files.sizes, counts)
        if counts.sum(dtype=np.float64) == len(places)
        else np.zeros(0)
    )
    if not len(places) == len(compression) == len(sizes):
        raise listing.error("it has other record batches than it counts")
    begins, metadata, bodies, rows = places.T
    is_sound = (
        (places >= 0).all()
        and (metadata > HEAD_BYTES).all()
        and rows.sum(dtype=np.float64) < MAX_LENGTH
    )
    is_sound = is_sound and (begins <= sizes).all()
    if not (is_sound and (bodies <= sizes - begins - metadata).all() and (compression < 2).all()):
        raise listing.error("a record batch lies outside of its file")
    edges = np.cumsum(counts)[:-1]
    parts = [np.split(places, edges), np.split(compression.astype(np.bool_), edges)]
    for name, widths in zip(("nodes", "buffers"), pairs, strict=True):
        array = listing.array(name, PAIR.str, -1, 2)
        if (counts * widths.astype(np.float64)).sum() != len(array):
            raise listing.error(f"it has other {name} than it counts")
        pieces = np.split(array, np.cumsum(counts * widths)[:-1])
        shapes = zip(counts.tolist(), widths.tolist(), strict=True)
        parts.append(
            [piece.reshape(*shape, 2) for piece, shape in zip(pieces, shapes, strict=True)]
        )
    result = list[Batches]()
    for prefix, place, *about in zip(prefixes, *parts, strict=True):
        begins, metadata, bodies, rows = place.T.copy()
        flags, nodes, buffers = about
        result.append(
            Batches(
                prefix.content,
                b"",
                prefix.is_little,
                begins,
                metadata,
                bodies,
                rows,
                flags,
                nodes,
                buffers,
            )
        )
    return result
