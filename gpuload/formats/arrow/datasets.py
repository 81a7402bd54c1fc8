"""Datasets of Hugging Face's library `datasets`: their Arrow table is a source.

Access  of the table's chunks, which `datasets` has mapped from its files: numbers, texts and images
        are copied from there, and nothing is loaded before. Booleans, dictionaries and nested texts
        are decoded a chunk at a time.
Order   that of the dataset: the result of ``select``, ``shuffle`` or ``filter`` is its
        indices mapping.
Fields  `formats/columnar.py`; the dataset's features say which are images, classes and arrays of a
        shape.
Limits  A file of the dataset that is cut short while it is read ends the process, as it does in
        `datasets`. Transforms (``set_transform``) are not called, and formats (``set_format``)
        change nothing.
Pickle  as `datasets` pickles itself: by the paths of its files where it has them.
Source  https://huggingface.co/docs/datasets/about_arrow
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from gpuload.errors import GpuloadError, SpecError
from gpuload.formats import columnar
from gpuload.formats.columnar import Column
from gpuload.ragged import Ragged
from gpuload.sources.base import LeafSource, Source
from gpuload.sources.blocks import CACHE_BYTES, BlockLeaf, BlockMemory
from gpuload.sources.leaf import Array, Group, starts_of

CALL = "gl.datasets"


def datasets(
    dataset: Any,
    fields: Sequence[str] | None = None,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Source:
    """Return the rows of a dataset of the library `datasets`, in its order.

        gl.datasets(load_dataset("cifar10", split="train"))
        gl.datasets(dataset.shuffle(seed=1).select(range(1000)), ["img", "label"])

    A dataset that was saved to disk needs no `datasets`: ``gl.arrow("folder")``.

    Args:
        dataset: a ``datasets.Dataset``.
        fields: the columns, in this order; by default all. Of an image it is the encoded bytes, for
            ``gl.ops.Decode``.
        shapes: the shape of columns that are lists of varying length in the table, and have one
            length in fact.
        defaults: for each column a value in place of missing ones, which are an error without it.

    Raises:
        SpecError: it is no dataset, or has a transform; a column cannot be a field.
        UnknownFieldError: there is no such column.
        MissingPackageError: PyArrow is not installed.
    """
    arguments = columnar.check_arguments(CALL, fields, shapes, defaults, CACHE_BYTES)
    columnar.import_arrow(CALL)
    table = getattr(getattr(dataset, "data", None), "table", None)
    if table is None:
        cause, remedy = "it has no table", "pass a datasets.Dataset: load_dataset(...)"
        if isinstance(dataset, Mapping) and len(dataset) > 0:
            cause += f"; it has the splits {list(dataset)}"
            remedy = f"pass dataset[{next(iter(dataset))!r}]"
        raise SpecError(f"{CALL}({type(dataset).__name__})", cause=cause, remedy=remedy)
    if dataset.format["type"] == "custom":
        raise SpecError(
            f"{CALL} of a dataset with a transform",
            cause="it would be called for single records, in Python",
            remedy="pass dataset.with_transform(None), and use gl.ops",
        )
    source = DatasetSource(dataset, arguments)
    indices = getattr(dataset, "_indices", None)
    if indices is None:
        return source
    return source.select(indices.column(0).to_numpy().astype(np.int64))


class DatasetSource(LeafSource):
    """The rows of a table of `datasets`, in the table's order; made by ``gl.datasets``."""

    def __init__(self, dataset: Any, arguments: Mapping[str, Any]) -> None:
        self._dataset, self._arguments = dataset, dict(arguments)
        table, description = dataset.data.table, columnar.describe_types(dataset.features.to_dict())
        columns = columnar.columns_of(
            CALL,
            "the dataset",
            table.schema,
            fields=arguments["fields"],
            shapes={**description.shapes, **arguments["shapes"]},
            defaults=arguments["defaults"],
            dtypes={},
            images=description.images,
            first=lambda path: columnar.python_values(path, table.slice(0, 1)),
        )
        batches = [batch for batch in table.to_batches() if batch.num_rows]
        starts = starts_of([batch.num_rows for batch in batches])
        cache = BlockMemory(
            arguments["cache_bytes"], 0
        )  # most of its blocks are views of the table
        self._leaves = tuple(
            BlockLeaf(
                column.field,
                starts,
                partial(_decode, batches, column),
                cache,
                key,
                "the Arrow table of `datasets`",
            )
            for key, column in enumerate(columns)
        )
        self._length, self.classes = int(starts[-1]), description.classes_of(columns)
        super().__init__(
            tuple(Group(leaf.spec, leaf.layout, is_quick=True) for leaf in self._leaves)
        )

    def __len__(self) -> int:
        return self._length

    def __reduce__(self) -> tuple[Any, ...]:
        self.check_open()
        return type(self), (self._dataset, self._arguments)

    def _where(self, number: int) -> str:
        return f"{CALL}, row {number} of the table"

    def _title(self) -> str:
        return CALL

    def describe(self) -> str:
        """Return one line about how records are read."""
        return "the Arrow table of `datasets`"

    def _digest(self) -> str:
        """Return a short text made of fields, length, and the fingerprint that `datasets` computes
        of its data."""
        text = repr((str(self.spec), self._length, self._dataset._fingerprint))
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _decode(batches: Sequence[Any], column: Column, block: int) -> Array | Ragged:
    """Return the values of a column in a chunk of the table."""
    try:
        with columnar.as_damage(f"chunk {block} of the table"):
            room = columnar.UnpackLimit(f"chunk {block} of the table", batches[block].nbytes)
            return columnar.values_of(column, batches[block], room)
    except GpuloadError as error:
        raise error.within(CALL) from None
