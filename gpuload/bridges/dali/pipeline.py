"""Pipelines that a loader feeds: a class derived from the pipeline's own, which reports each event
to `ReaderFeed`.

That DALI has taken a batch is known from ``iter_setup``, which it calls when all sources of an
iteration have given theirs.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from gpuload import device as devices
from gpuload.bridges.dali.feed import ReaderFeed
from gpuload.bridges.dali.framework import dali
from gpuload.errors import DeviceError, SpecError

if TYPE_CHECKING:
    from gpuload.loader import Loader


class Fed(dali.pipeline.Pipeline):  # type: ignore[misc]  # DALI has no types
    """A pipeline that reports to its `ReaderFeed` which batches DALI takes and returns."""

    _gpuload_feed: ReaderFeed

    def iter_setup(self) -> None:
        """Called by DALI when all sources have given their batches of an iteration, before these
        are put in."""
        super().iter_setup()
        self._gpuload_feed.was_taken()

    def outputs(self, cuda_stream: Any = None) -> Any:
        """See DALI."""
        return self._gpuload_feed.come_out(super().outputs, cuda_stream)

    def share_outputs(self, cuda_stream: Any = None) -> Any:
        """See DALI."""
        return self._gpuload_feed.come_out(super().share_outputs, cuda_stream)

    def reset(self) -> None:
        """See DALI, which ignores it before an epoch has come out; here also while its last
        batches, or its error, are inside. But a batch that was filled up is thrown away: an
        iterator that drops it may not ask for it before.
        """
        if self._gpuload_feed.only_filled_is_left:
            self.enable_api_check(
                False
            )  # an iterator, which has its own ways to call these two, calls this here
            self.share_outputs()
            self.release_outputs()
            self.enable_api_check(True)
        if self.empty() and not self._gpuload_feed.has_failed:
            super().reset()
            self._gpuload_feed.reset()

    def serialize(self, *args: Any, **arguments: Any) -> Any:
        """Raise ``SpecError``: a pipeline with a source in Python cannot be serialized."""
        raise SpecError(
            "a pipeline with gpuload's reader, to be serialized (DALI's TensorFlow plugin does it)",
            cause="its batches come from this process, and the plugin knows no epochs of a Python "
            "source",
            remedy='for TensorFlow use gltf.dataset(loader, via="plugin"), with gltf = '
            "gpuload.bridges.tensorflow, and "
            "DALI's operators as gl.ops.Dali in the loader's ops=",
        )

    def reader_meta(self, name: str | None = None) -> Any:
        """See DALI; the loader's reader is there under its name."""
        own_name = self._gpuload_feed.name
        if name is not None and name == own_name:
            return self._gpuload_feed.meta
        readers = super().reader_meta()
        if own_name is not None:
            readers = {**readers, own_name: self._gpuload_feed.meta}
        if name is None:
            return readers
        if name not in readers:
            raise SpecError(
                f"reader_name={name!r}",
                cause=f"the readers with a name in this pipeline are {sorted(readers)}",
                remedy=f"write reader(loader, name={name!r}), or leave reader_name= out: the "
                "iterator then ends where the loader does",
            )
        return readers[name]

    def epoch_size(self, name: str | None = None) -> Any:
        """See DALI."""
        if name is not None:
            return self.reader_meta(name)["epoch_size_padded"]
        return {
            reader_name: meta["epoch_size_padded"]
            for reader_name, meta in self.reader_meta().items()
        }


@cache
def fed(kind: Any) -> Any:
    """Return the class of pipelines of some class that are fed by a loader."""
    if kind is dali.pipeline.Pipeline:
        return Fed
    return type(f"Fed{kind.__name__}", (Fed, kind), {})


def current_pipeline(loader: Loader) -> Any:
    """Return the pipeline that is being defined; raises ``SpecError`` or ``DeviceError`` if it does
    not fit."""
    pipeline = dali.pipeline.Pipeline.current()
    if pipeline is None:
        raise SpecError(
            "reader(loader) outside of a pipeline",
            cause="it makes nodes of the pipeline that is being defined, and none is",
            remedy="call it in a function that is decorated with @pipeline_def",
        )
    if getattr(pipeline, "_debug_on", False):
        raise SpecError(
            "reader(loader) in a pipeline with debug=True",
            cause="DALI then calls the function again for every batch, and each call would begin "
            "to read anew",
            remedy="leave debug=True out",
        )
    if isinstance(pipeline, Fed):
        raise SpecError(
            "a second reader(loader) in one pipeline",
            cause="a pipeline has one position, and so one loader",
            remedy="put the sources together: gl.Loader(gl.zip(one, two), ...)",
        )
    if pipeline.max_batch_size != loader.batch_size:
        raise SpecError(
            f"a pipeline of batch_size={pipeline.max_batch_size} with a loader of "
            f"batch_size={loader.batch_size}",
            cause="the loader says which records are a batch, and DALI must have room for just "
            "that",
            remedy="make the pipeline with batch_size=loader.batch_size",
        )
    if loader.device == "cpu":
        device_id = None
    else:
        device_id = devices.number(loader.device)
    if device_id is not None and pipeline.device_id not in (None, device_id):
        raise DeviceError(
            f"a pipeline on device_id={pipeline.device_id} with a loader on {loader.device}",
            cause="their memory is on different GPUs",
            remedy=f'make the loader with device="gpu:{pipeline.device_id}", or device="cpu" for '
            "encoded images",
        )
    return pipeline
