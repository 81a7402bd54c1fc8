"""``reader``: the fields of a loader as DataNodes of the pipeline that is being defined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpuload.bridges import common
from gpuload.bridges.dali.columns import Columns, layout_of
from gpuload.bridges.dali.feed import ReaderColumn, ReaderFeed, check_whole
from gpuload.bridges.dali.framework import dali
from gpuload.bridges.dali.pipeline import current_pipeline, fed
from gpuload.errors import SpecError
from gpuload.executors.dali.program import DALI_DTYPES
from gpuload.ops.base import Op
from gpuload.ops.value.numbers import Numbers

if TYPE_CHECKING:
    from gpuload.loader import Loader


def reader(
    loader: Loader, *, name: str | None = None, draws: Mapping[str, Op | Numbers] | None = None
) -> Any:
    """Return the fields of a loader as DataNodes of the pipeline that is being defined, in the
    order of ``output=``.

    Encoded images, texts and draws are on the CPU; the other fields are where the loader is. As
    with the operators of DALI, one field alone is a DataNode, several are a tuple. Make the loader
    with ``device="cpu"`` if the pipeline decodes and moves to the GPU itself.

    DALI's iterators (PyTorch, JAX) need no size: without ``reader_name=`` they end where the loader
    does, with short last batches if the loader has them, and ``len(loader)`` is the number of
    steps. With ``name="Reader"`` here and ``reader_name="Reader"`` there, the iterator counts: the
    last batch is filled up by repeating its last record, and ``last_batch_policy=`` decides about
    these; this is for several pipelines in one iterator, and epochs cannot be gone on with in the
    middle.

    Args:
        loader: with the ``batch_size`` of the pipeline; one for each pipeline.
        name: of the reader, for ``reader_name=`` of DALI's iterators.
        draws: random numbers for arguments of your operators, by names that you choose: `uniform`,
            `integers` or `coin_flip`, a DataNode each; or an op of ``gl.ops``, which becomes a dict
            of its draws, to be passed on as in ``fn.flip(images, **flip)``. They come behind the
            fields. The draws of an op are those of the next op in the loader's ``ops=``; ops in one
            mapping follow each other.

    Raises:
        SpecError: there is no pipeline being defined, or it does not fit the loader, or DALI has no
            such field.
        DeviceError: loader and pipeline are on different GPUs.
    """
    common.check_loader("reader", loader)
    columns = Columns(loader, draws)
    pipeline = current_pipeline(loader)
    if name is not None:
        _check_name(name)
        check_whole(loader.position)
    feed = ReaderFeed(loader, columns, name)
    shares_memory = loader.device == "cpu" and pipeline.device_id is None
    nodes = [
        dali.fn.external_source(
            ReaderColumn(feed, place),
            device=column.device,
            no_copy=shares_memory,
            dtype=getattr(dali.types, DALI_DTYPES[column.dtype.name]),
            ndim=len(column.shape),
            layout=layout_of(column),
        )
        for place, column in enumerate(columns.inputs)
    ]
    pipeline._gpuload_feed = feed
    pipeline.__class__ = fed(pipeline.__class__)
    return columns.arranged(nodes)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise SpecError(
            f"name = {name!r}", cause="it is a text", remedy='write reader(loader, name="Reader")'
        )


# With enable_conditionals=True DALI 2.4 rewrites all functions that a definition calls; for these
# it takes a second.
reader = dali.pipeline.do_not_convert(reader)
