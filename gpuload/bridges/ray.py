"""Ray: records of a source for Ray Data, conversions by the workers of a cluster, and the rank in
Ray Train.

    data = ray.data.read_datasource(glray.datasource(source)) glray.convert(source,
    "/shared/out/train-{shard:05d}.npy", records_per_shard=100_000) loader = gl.Loader(source, 512
    // ranks, shuffle=True, seed=7, **gl.shard("ray"))          in a worker of Ray Train

Pickles  A source goes to a worker as the call that opened it (`sources/filesource.py`), and is
         opened again there. So paths mean the same on every node, or an error names the node. A
         source in memory (``gl.arrays``) goes whole.
Again    Ray calls a task again if its worker or its node dies. Both kinds of tasks may be called
         any number of times: a read gives the same records, and a conversion goes on behind what is
         finished. A node that is only cut off from the others may still write: the next task waits
         for it, IN_USE_S at most, and an unfinished file never gets the name of a finished one
         (`journal.py`).
Order    Of a dataset of Ray the order is Ray's. An order, and an exact resume, is the promise of a
         loader.
Source   https://docs.ray.io/en/latest/data/api/doc/ray.data.Datasource.html, and Ray 2.60.
"""

from __future__ import annotations

import functools
import itertools
import os
import platform
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from gpuload import signalsafe
from gpuload.convert import Conversion, convert_part, plan_parts
from gpuload.errors import GpuloadError, SpecError, missing_package
from gpuload.journal import JournalInUseError
from gpuload.order import check_count
from gpuload.ragged import Ragged
from gpuload.sources.base import Source
from gpuload.spec import Field, Spec
from gpuload.storage.stores import check_shareable
from gpuload.tracebacks import public

try:
    ray: Any = signalsafe.import_package("ray")
except ImportError as error:
    raise missing_package(
        "ray", needed_for="gpuload.bridges.ray", extra="ray", error=error
    ) from error

BLOCK_BYTES = 32 << 20  # of a block; Ray cuts larger ones than 128 MiB itself
BLOCK_RECORDS = 1024  # of a block where a field varies in length
RETRIES = 3  # of a task after its worker or node died
IN_USE_S = 120  # that a file is waited for which a lost worker still writes: NFS gives locks of lost nodes back in 90
LOOK_S = 1


def process_rank() -> tuple[int, int] | None:
    """Return rank and world size in a worker of Ray Train; None in any other process."""
    # Not imported for the question: in a worker of Ray Train it is there already.
    train = sys.modules.get("ray.train")
    if train is None:
        return None
    try:
        context = train.get_context()
        return context.get_world_rank(), context.get_world_size()
    except (RuntimeError, AttributeError):  # Ray 2.60 has a context in workers alone
        return None


# --- Ray Data


@public
def datasource(source: Source) -> Any:
    """Return a ``ray.data.Datasource`` of the records of a source, in slices, each of which a task
    reads.

    Columns are the fields: numbers and arrays of one shape as NumPy arrays, those of varying shape
    and the bytes of encoded images as objects of that kind, text as text.

    Args:
        source: any source; the workers open it again (see the module).

    Raises:
        SpecError: it is no source, Ray has no column for a field, or it reads links that hold a
            password or a signature.
    """
    if not isinstance(source, Source):
        raise SpecError(
            f"datasource() of a {type(source).__name__}",
            cause="Ray Data reads the records of a source",
            remedy="pass the source; ops run in Ray's own map_batches, or in a loader",
        )
    if source.endless:
        raise SpecError(
            f"datasource() of {source._line()}"[:200],
            cause="a mix has no end, and a dataset of Ray has",
            remedy="pass the sources of the mix one by one, and have Ray join the datasets",
        )
    for field in source.spec:
        if field.dtype.kind not in "biufSUOmM" or field.dtype.char in "gG":
            raise SpecError(
                f"field {field.name!r} ({field}) cannot be a column of Ray Data",
                cause=f"Arrow has no type for {field.dtype}",
                remedy="leave it out with source.rename(...) or source[...], or store it with "
                "another dtype",
            )
    _check_links(source)
    return _datasource_class()(source)


def _check_links(source: Source) -> None:
    """Refuse a source of links that hold a password or a signature: pickles of Ray do not have
    these.

    Raises:
        SpecError: there is such a link.
    """
    for path in source.files.paths:
        check_shareable(path, "tasks of Ray that read")


@functools.cache
def _datasource_class() -> type:
    """Return the class of our data sources; Ray Data is imported here, and not for Ray Train."""
    data = signalsafe.import_package("ray.data")
    blocks = signalsafe.import_package("ray.data.block")

    class GpuloadDatasource(data.Datasource):  # type: ignore[misc, name-defined]
        """The records of a source of gpuload."""

        def __init__(self, source: Source) -> None:
            super().__init__()
            self._source = source

        def get_name(self) -> str:
            """Return the name that Ray shows for the reading tasks."""
            return "gpuload"

        def estimate_inmemory_data_size(self) -> int | None:
            """Return the bytes of all records; None where a field varies."""
            size = _record_bytes(self._source.spec)
            if size is None:
                return None
            return size * len(self._source)

        def get_read_tasks(
            self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
        ) -> list[Any]:
            """Return tasks that each read a slice of about the same number of records."""
            length = len(self._source)
            count = max(1, min(parallelism, length))
            edges = [length * number // count for number in range(count + 1)]
            size = _record_bytes(self._source.spec)
            return [
                data.ReadTask(
                    functools.partial(read_blocks, self._source, begin, end),
                    blocks.BlockMetadata(
                        num_rows=end - begin,
                        size_bytes=None if size is None else size * (end - begin),
                        exec_stats=None,
                        input_files=None,
                    ),
                    per_task_row_limit=per_task_row_limit,
                )
                for begin, end in itertools.pairwise(edges)
            ]

    return GpuloadDatasource


def read_blocks(source: Source, begin: int, end: int) -> Iterator[Any]:
    """Yield the records ``begin`` to ``end`` as blocks of Ray; runs in a worker."""
    accessor = signalsafe.import_package("ray.data.block").BlockAccessor
    size = _record_bytes(source.spec)
    if size is None:
        num_records = BLOCK_RECORDS
    else:
        num_records = max(1, BLOCK_BYTES // max(size, 1))
    # One block at least, of no records, which tells Ray the columns.
    for first in range(begin, max(end, begin + 1), num_records):
        try:
            fields = source.read(np.arange(first, min(first + num_records, end), dtype=np.int64))
        except GpuloadError as error:
            raise error.within(_node()) from None
        yield accessor.batch_to_block(
            {field.name: _column(field, fields[field.name]) for field in source.spec}
        )


def _record_bytes(spec: Spec) -> int | None:
    """Return the bytes of a record; None if they vary."""
    if not all(field.uniform and field.dtype.kind != "O" for field in spec):
        return None
    return sum(
        field.dtype.itemsize * int(np.prod(field.fixed_shape, dtype=np.int64)) for field in spec
    )


def _column(field: Field, values: Any) -> Any:
    """Return the values of a field as a column that Ray takes."""
    if field.encoded:
        return [np.asarray(value).tobytes() for value in values]
    if isinstance(values, Ragged) or not field.uniform:
        column = np.empty(len(values), object)
        # One by one: NumPy would make one array of values that happen to have one shape.
        for row, value in enumerate(values):
            column[row] = np.asarray(value)
        return column
    if field.dtype.kind in "SUO":
        return values.tolist()
    return values


# --- conversion


@public
def convert(
    source: Source,
    out: str | os.PathLike[str],
    *,
    records_per_shard: int,
    format: str | None = None,
    verify: bool = True,
    overwrite: bool = False,
    num_cpus: float = 1,
) -> Conversion:
    """Write the records of a source to files by the workers of a Ray cluster, each file by a task;
    return the result.

    The same call goes on with a conversion that ended before its end: files that are whole are not
    written again. A task is called again if its worker or node dies.

    Args:
        source: any source; the workers open it again (see the module).
        out: the files, with ``{shard}``: ``"/shared/train-{shard:05d}.npy"``. The path means the
            same folder on every node.
        records_per_shard: of each file; the last one may have fewer.
        format: as of ``gl.convert``; by default that of the suffix.
        verify: each file is read back and compared before it gets its name.
        overwrite: files of these names that are not this conversion's own are replaced.
        num_cpus: cores that a task takes of the cluster, and threads it works with.

    Raises:
        SpecError: an argument does not fit, or the format cannot hold a field.
        FileError: files are there already, or cannot be written; the node is named.
        RecordError: a record cannot be read.
        GpuloadError: workers died again and again.
    """
    parts, wildcard = plan_parts(source, out, check_count("records_per_shard", records_per_shard))
    if not ray.is_initialized():
        raise SpecError(
            "glray.convert() without a cluster",
            cause="Ray is not initialised in this process",
            remedy="call ray.init() before, or gl.convert(...), which writes with the threads of "
            "this machine",
        )
    _check_links(source)
    options = {
        "format": format,
        "verify": verify,
        "overwrite": overwrite,
        "num_threads": max(1, int(num_cpus)),
    }
    task = ray.remote(_convert_part).options(
        num_cpus=num_cpus, max_retries=RETRIES, retry_exceptions=False, name="gpuload.convert"
    )
    # Once: a source in memory would else be sent with each of the tasks.
    recipe = ray.put(source)
    waiting = {
        task.remote(recipe, part.path, part.begin, part.end, options): part for part in parts
    }
    results: dict[str, Conversion] = {}
    try:
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1)
            for reference in ready:
                part = waiting.pop(reference)
                results[part.path] = _result(reference, part.path)
    finally:
        # An error or Ctrl-C: files that tasks have finished stay, and the next call goes on behind
        # them.
        for reference in waiting:
            ray.cancel(reference)
    conversions = [results[part.path] for part in parts]
    return Conversion(
        tuple(part.path for part in parts),
        len(source),
        sum(result.num_bytes for result in conversions),
        sum(result.num_kept for result in conversions),
        conversions[0].call.replace(parts[0].name, wildcard),
    )


def _convert_part(
    source: Source, path: str, begin: int, end: int, options: dict[str, Any]
) -> Conversion:
    """Write one file; runs in a worker."""
    end_s = time.monotonic() + IN_USE_S
    while True:
        try:
            return convert_part(source, path, begin, end, options)
        except GpuloadError as error:
            if not isinstance(error, JournalInUseError) or time.monotonic() > end_s:
                raise error.within(_node()) from None
        time.sleep(LOOK_S)


def _result(reference: Any, path: str) -> Conversion:
    """Return the result of a task; an error of gpuload is raised as itself, one of Ray's with its
    file."""
    try:
        result: Conversion = ray.get(reference)
        return result
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, GpuloadError):
            raise error.cause from None
        raise
    except (
        ray.exceptions.WorkerCrashedError,
        ray.exceptions.NodeDiedError,
        ray.exceptions.ObjectLostError,
    ) as error:
        raise GpuloadError(
            f"{path} was not written",
            cause=f"its worker died {RETRIES + 1} times: {str(error).splitlines()[0]}",
            remedy="look for the reason in Ray's log (memory, most often), and convert again: "
            "finished files stay",
        ) from error


def _node() -> str:
    """Return the node this process runs on, for errors."""
    return f"node {platform.node()} ({ray.util.get_node_ip_address()})"
