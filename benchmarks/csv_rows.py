"""How fast do the lines of a CSV file come as batches (10^6 lines, 8 floats and 2 integers, batches
of 1,024)?

Passes   who reads the whole file reads it in each pass, for it is larger than memory in the case
         that counts; `columns` is the form of data that fits into memory, read once
First    `gpuload_first` has no table when a pass begins: it opens the source, converts the file,
         and reads one pass
Shuffle  all records in a new whole order each pass; tf.data has a buffer of 10,000 lines
Limit    PyArrow's parse of the file by all cores; nothing is handed over
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import data, forms
from benchmarks.machine import cores
from benchmarks.question import Epoch, Peer, Question, Work

SHUFFLE_BUFFER = 10_000
Columns = list[NDArray[Any]]


def _arrow(work: Work) -> Columns:
    from pyarrow import csv

    table = csv.read_csv(work.path)
    return [table.column(name).to_numpy() for name in table.column_names]


def _polars(work: Work) -> Columns:
    import polars

    table = polars.read_csv(work.path)
    return [table[name].to_numpy() for name in table.columns]


def limit(work: Work) -> Epoch:
    """The file parsed; one stand-in for all records."""
    from pyarrow import csv

    def epoch() -> Iterator[Any]:
        count = csv.read_csv(work.path).num_rows
        yield np.broadcast_to(np.float32(0), (count, 1))

    return epoch


def whole(read: Callable[[Work], Columns], *, each_pass: bool) -> Callable[[Work], Epoch]:
    """The whole file as columns; a batch is one `take` of each."""

    def build(work: Work) -> Epoch:
        rng = np.random.default_rng(0)
        table = [] if each_pass else read(work)

        def epoch() -> Iterator[Any]:
            columns = table or read(work)
            for batch in forms.batches(work, rng):
                yield tuple(column.take(batch) for column in columns)

        return epoch

    return build


def gpuload(*, first: bool) -> Callable[[Work], Epoch]:
    """The package measured, with its defaults; with the table, or without one at the beginning of
    each pass."""

    def build(work: Work) -> Epoch:
        import gpuload as gl

        cache = work.path.with_suffix(".first" if first else ".cache")
        os.environ["GPULOAD_CACHE"] = str(cache)

        def loader() -> Any:
            return gl.Loader(
                gl.csv(work.path), batch_size=work.batch_size, shuffle=True, seed=0, device="cpu"
            )

        if not first:
            return forms.own_form(work, loader(), *data.CSV_NAMES)

        def epoch() -> Iterator[Any]:
            shutil.rmtree(cache, ignore_errors=True)
            yield from forms.own_form(work, loader(), *data.CSV_NAMES)()

        return epoch

    return build


def tfdata_csv(work: Work) -> Epoch:
    """TextLineDataset, a buffer of 10,000 lines, one decode_csv a batch."""
    import tensorflow as tf

    defaults = [
        tf.constant([], tf.int64 if name in data.CSV_INTEGERS else tf.float64)
        for name in data.CSV_NAMES
    ]
    lines = tf.data.TextLineDataset([str(work.path)], buffer_size=4 << 20).skip(1)
    dataset = lines.shuffle(SHUFFLE_BUFFER).batch(work.batch_size)
    rows = dataset.map(
        lambda lines: tuple(tf.io.decode_csv(lines, defaults)), cores(), deterministic=False
    )
    return forms.tf_epoch(work, rows.prefetch(2))


QUESTION = Question(
    name="csv_rows",
    asks="10^6 lines of a CSV file, 8 floats and 2 integers, batches of 1,024, shuffled",
    limit="PyArrow's parse of the whole file by all cores",
    prepare=data.csv_rows,
    num_records=(1_000_000, 5_000),
    batch_size=1_024,
    variants=("shuffled",),
    peers=(
        Peer("limit", limit, "PyArrow's parse of the file, all cores", ("pyarrow.csv",), role="limit"),
        Peer("columns", whole(_arrow, each_pass=False), "columns in memory, read once; np.take", ("pyarrow.csv",),
             role="floor", cache=("warm",)),
        Peer("gpuload", gpuload(first=False), "gl.csv, defaults; the table is there", ("gpuload", "pyarrow.csv"),
             role="ours"),
        Peer("gpuload_first", gpuload(first=True), "gl.csv, no table yet in each pass", ("gpuload", "pyarrow.csv"),
             role="ours"),
        Peer("pyarrow", whole(_arrow, each_pass=True), "the whole file in each pass, np.take", ("pyarrow.csv",)),
        Peer("polars", whole(_polars, each_pass=True), "the whole file in each pass, np.take", ("polars",)),
        Peer("tfdata", tfdata_csv, "TextLineDataset, buffer of 10,000 lines, decode_csv a batch", ("tensorflow",)),
    ),
)  # fmt: skip
