"""A loader as the reader of your own DALI pipeline: its order, resume and checks in front of your operators.

    @pipeline_def(batch_size=loader.batch_size, num_threads=4, device_id=0)
    def training():
        jpegs, labels, flip = reader(loader, draws={"flip": gl.ops.RandomFlip()})
        images = fn.decoders.image(jpegs, device="mixed")
        return fn.flip(images, **flip), labels

Position  DALI reads ahead of the training. The loader's position moves with each batch that comes out of the pipeline,
          so ``loader.state_dict()`` is right whenever it is asked. A pipeline begins where the loader is when it reads
          its first batch.
Epochs    The pipeline ends with ``StopIteration`` where the loader's epoch ends; ``reset`` begins the next one.
          ``last_batch=`` of the loader says what becomes of the last records; `reader` says where DALI's policies do.
Errors    of the loader are raised as themselves when their step is asked for, after the batches before it; ``reset``
          then goes on behind it. An error of your operators has a note that names epoch, step and records.
Draws     A random number belongs to (seed, epoch, record, name): no batch size, shard or resume changes it. DALI's own
          random operators depend on the place in the batch and on the batches before.
How       DALI calls a source ahead of time, and a source cannot see what came out. So the pipeline's class is replaced
          by one derived from it (`_Fed`), which only tells `_Feed` when DALI has taken a batch, when one comes out, and
          when the next epoch begins. That DALI has taken a batch is known from ``iter_setup``, which it calls when all
          sources of an iteration have given theirs.
Memory    A pipeline without a GPU reads the loader's memory itself: DALI keeps each array until it has used it, and the
          loader does not write to memory that is referred to. For a GPU DALI copies to memory of its own.
TensorFlow  DALI's ``DALIDataset`` takes no pipeline with a Python source of several outputs, nor epochs from it: use
          ``gltf.dataset(loader, via="plugin")``, with DALI's operators as ``gl.ops.Dali``.
Source    DALI 2.4, https://docs.nvidia.com/deeplearning/dali/user-guide/docs/operations/nvidia.dali.fn.external_source.html
"""

from __future__ import annotations

import hashlib
import importlib
import math
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpuload import device as devices
from gpuload import rng
from gpuload.batch import names_in
from gpuload.bridges import common
from gpuload.errors import ClosedError, DeviceError, RowError, SpecError, missing_package, noted
from gpuload.executors.dali.program import DALI_DTYPES, Input
from gpuload.kernels import aside
from gpuload.ops.base import Op, streams
from gpuload.ops.graph import Graph, compile_ops, image_sizes
from gpuload.order import Position
from gpuload.spec import Field, Spec, is_whole

if TYPE_CHECKING:
    from gpuload.batch import Batch
    from gpuload.loader import Loader
    from gpuload.pipeline.epoch import Epoch

try:
    dali: Any = aside.call(lambda: importlib.import_module("nvidia.dali"))
except ImportError as error:
    raise missing_package("nvidia-dali", needed_for="gpuload.bridges.dali", extra="cpu") from error

MOST_RECORDS_TOLD = 8  # in a note on an error
LARGEST = float(np.finfo(np.float32).max)


def reader(loader: Loader, *, name: str | None = None, draws: Mapping[str, Op | Numbers] | None = None) -> Any:
    """Return the fields of a loader as DataNodes of the pipeline that is being defined, in the order of ``output=``.

    Encoded images, texts and draws are on the CPU; the other fields are where the loader is. As with the operators of
    DALI, one field alone is a DataNode, several are a tuple. Make the loader with ``device="cpu"`` if the pipeline
    decodes and moves to the GPU itself.

    DALI's iterators (PyTorch, JAX) need no size: without ``reader_name=`` they end where the loader does, with short
    last batches if the loader has them, and ``len(loader)`` is the number of steps. With ``name="Reader"`` here and
    ``reader_name="Reader"`` there, the iterator counts: the last batch is filled up by repeating its last record, and
    ``last_batch_policy=`` says what becomes of that; this is for several pipelines in one iterator, and epochs cannot
    be gone on with in the middle.

    Args:
        loader: with the ``batch_size`` of the pipeline; one for each pipeline.
        name: of the reader, for ``reader_name=`` of DALI's iterators.
        draws: random numbers for arguments of your operators, by names that you choose: `uniform`, `integers` or
            `coin_flip`, a DataNode each; or an op of ``gl.ops``, which becomes a dict of what it draws, to be passed on
            as in ``fn.flip(images, **flip)``. They come behind the fields. An op draws what it would draw as the next
            one in the loader's ``ops=``; ops in one mapping follow each other.

    Raises:
        SpecError: there is no pipeline being defined, or it does not fit the loader, or DALI has no such field.
        DeviceError: loader and pipeline are on different GPUs.
    """
    common.check_loader("reader", loader)
    columns = _Columns(loader, draws)
    pipeline = _current_pipeline(loader)
    if name is not None:
        _check_name(name)
        _check_whole(loader.position)
    feed = _Feed(loader, columns, name)
    shares_memory = loader.device == "cpu" and pipeline.device_id is None
    nodes = [
        dali.fn.external_source(
            _Source(feed, place),
            device=one.device,
            no_copy=shares_memory,
            dtype=getattr(dali.types, DALI_DTYPES[one.dtype.name]),
            ndim=len(one.shape),
            layout=_layout(one),
        )
        for place, one in enumerate(columns.inputs)
    ]
    pipeline._gpuload_feed = feed
    pipeline.__class__ = _fed(pipeline.__class__)
    return columns.arranged(nodes)


def source(loader: Loader, *, draws: Mapping[str, Op | Numbers] | None = None) -> Batches:
    """Return a source for ``fn.external_source``: a function of ``BatchInfo``, for processes and DALI's checkpoints.

        batches = source(loader)                                          outside of the pipeline's definition
        jpegs, labels = fn.external_source(batches, **batches.arguments, parallel=True)

    Epoch 0, iteration 0 of DALI is the position that the loader has now; the loader itself stays where it is, and
    ``loader.state_dict(epoch, step)`` is the state of any step. Batches are made when they are asked for, where they
    are asked for: use `reader` unless you need worker processes. These start by ``py_start_method="spawn"``.

    Args:
        loader: on the CPU.
        draws: see `reader`; what an op draws are several outputs, in the order in which it draws them.

    Raises:
        SpecError: DALI has no such field.
        DeviceError: the loader is on a GPU.
    """
    common.check_loader("source", loader)
    return Batches(loader, draws)


@dataclass(frozen=True)
class Numbers:
    """Random numbers of each record; made by `uniform`, `integers` or `coin_flip`."""

    kind: Literal["uniform", "integers", "coin_flip"]
    low: float
    high: float
    shape: tuple[int, ...]

    def of(self, u: NDArray[np.float64]) -> NDArray[Any]:
        """Return the numbers ``[N, *shape]`` for float64 ``[N, count]`` in [0, 1)."""
        if self.kind == "uniform":
            values = (self.low + u * (self.high - self.low)).astype(np.float32)
        elif self.kind == "integers":
            values = (self.low + np.floor(u * (self.high - self.low))).astype(np.int32)
        else:
            values = (u < self.high).astype(np.int32)
        return values.reshape(-1, *self.shape)


def uniform(low: float, high: float, shape: int | Sequence[int] = ()) -> Numbers:
    """Return uniform float32 numbers from ``low`` to ``high``, one a record or ``shape``; for ``reader(draws=)``."""
    if not (_is_number(low) and _is_number(high) and low <= high):
        raise _no_interval("uniform", low, high)
    return Numbers("uniform", float(low), float(high), _shape(shape))


def integers(low: int, high: int, shape: int | Sequence[int] = ()) -> Numbers:
    """Return whole int32 numbers from ``low`` to ``high - 1``, all as likely, as of ``range(low, high)``."""
    if not (_is_number(low) and _is_number(high) and -(2**31) <= int(low) == low < high == int(high) <= 2**31):
        raise _no_interval("integers", low, high)
    return Numbers("integers", int(low), int(high), _shape(shape))


def coin_flip(probability: float = 0.5, shape: int | Sequence[int] = ()) -> Numbers:
    """Return int32 numbers that are 1 with a probability, else 0."""
    if not (_is_number(probability) and 0 <= probability <= 1):
        raise SpecError(f"coin_flip({probability!r})", cause="a probability is from 0 to 1", remedy="pass 0.5, say")
    return Numbers("coin_flip", 0.0, float(probability), _shape(shape))


class Batches:
    """A loader as a source of ``fn.external_source``: each batch a function of its epoch and iteration alone.

    Attributes:
        loader: whose batches they are.
        arguments: what ``fn.external_source`` must be told of them.
    """

    def __init__(self, loader: Loader, draws: Mapping[str, Op | Numbers] | None = None) -> None:
        if loader.device != "cpu":
            raise DeviceError(
                f"source(loader) of a loader on {loader.device}",
                cause="its batches are made in worker processes, which have no GPU of ours",
                remedy='make the loader with device="cpu"; reader(loader) may be on a GPU',
            )
        self.loader = loader
        self._draws, self._columns = draws, _Columns(loader, draws)
        self._start, self._process = loader.position, os.getpid()

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of ``fn.external_source``, but for the source itself and ``parallel``."""
        inputs = self._columns.inputs
        return {
            "num_outputs": len(inputs),
            "dtype": [getattr(dali.types, DALI_DTYPES[one.dtype.name]) for one in inputs],
            "ndim": [len(one.shape) for one in inputs],
            "layout": [_layout(one) for one in inputs],
            "batch": True,
            "batch_info": True,
        }

    def __call__(self, info: Any) -> tuple[list[NDArray[Any]], ...]:
        """Return a batch: for each output a list of arrays, because DALI 2.4 loses dense batches on their way."""
        if not isinstance(info, dali.types.BatchInfo):
            raise SpecError(
                f"source(loader) was asked for {info!r}",
                cause="without batch=True, batch_info=True DALI does not say which batch of which epoch it wants",
                remedy="write fn.external_source(batches, **batches.arguments, parallel=True)",
            )
        if os.getpid() != self._process:
            raise ClosedError(
                "source(loader) in a process that was forked off",
                cause="the loader's threads and files are in the other process",
                remedy='start the workers anew: @pipeline_def(py_num_workers=2, py_start_method="spawn")',
            )
        start = self._start if info.epoch_idx == 0 else Position(self._start.epoch + info.epoch_idx)
        position = self.loader.after(start, info.iteration)
        if position.epoch != start.epoch:
            raise StopIteration
        columns = self._columns.values(self.loader.batch_of(position))
        return tuple([np.asarray(value) for value in values] for values in columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return Batches, (self.loader, self._draws)

    def __repr__(self) -> str:
        return f"source({self.loader!r})"


class _Columns:
    """The fields and draws of a batch, one after the other as DALI gets them.

    Attributes:
        inputs: what each column is.
    """

    def __init__(self, loader: Loader, draws: Mapping[str, Op | Numbers] | None) -> None:
        self._loader = loader
        self._names = names_in(loader.output, loader.spec_out)
        self._draws = _checked_draws(draws)
        ops = [one for one in self._draws.values() if isinstance(one, Op)]
        self._graph = _graph(loader, ops)
        empty = iter(self._graph.empty_draws)
        self.inputs = [_field_input(loader.spec_out[name], loader.device) for name in self._names]
        self._keys: list[tuple[str, ...] | None] = []  # of each draw: what the op draws, None of numbers
        for name, one in self._draws.items():
            drawn = next(empty) if isinstance(one, Op) else {"": one.of(np.empty((0, math.prod(one.shape))))}
            self._keys.append(tuple(drawn) if isinstance(one, Op) else None)
            if not drawn:
                raise SpecError(
                    f"draws[{name!r}] = {one}", cause="this op draws nothing", remedy="call DALI's operator as it is"
                )
            self.inputs += [
                Input(f"{name} {key}".strip(), values.dtype, (None,) * (values.ndim - 1), "", "cpu")
                for key, values in drawn.items()
            ]

    def values(self, batch: Batch) -> list[Any]:
        """Return the columns of a batch: arrays or lists of arrays.

        Raises:
            RecordError: an op cannot draw for a record's image.
        """
        fields = [batch[name] for name in self._names]
        made = [one.checked(_of_cupy(values)) for one, values in zip(self.inputs, fields, strict=False)]
        return [*made, *self._drawn(batch)]

    def _drawn(self, batch: Batch) -> list[NDArray[Any]]:
        words: dict[str, Any] = {"seed": self._loader.seed, "epoch": batch.epoch, "records": batch.records}
        spec, count = self._loader.spec_out, batch.records.size
        try:
            sizes = {name: image_sizes(spec[name], batch[name], count) for name in sorted(self._graph.touched)}
            of_ops = iter(self._graph.draw(**words, sizes=sizes))
        except RowError as error:
            raise error.of_record(self._loader.source.where(int(batch.records[error.row]))) from None
        columns: list[NDArray[Any]] = []
        for name, one in self._draws.items():
            if isinstance(one, Op):
                columns += next(of_ops).values()
            else:
                columns.append(one.of(rng.uniform(math.prod(one.shape), **words, stream=_stream(name))))
        return columns

    def arranged(self, nodes: Sequence[Any]) -> Any:
        """Return the DataNodes of all columns as `reader` gives them."""
        parts, rest = list(nodes[: len(self._names)]), iter(nodes[len(self._names) :])
        for keys in self._keys:
            parts.append(next(rest) if keys is None else {key: next(rest) for key in keys})
        return parts[0] if len(parts) == 1 else tuple(parts)


@dataclass
class _Step:
    """A batch that DALI was given: which it is, and the iterator that made it."""

    batches: Epoch
    after: Position
    epoch: int
    step: int
    records: NDArray[np.int64]
    is_filled: bool = False  # up to the batch size, by repeating the last record

    @property
    def told(self) -> str:
        """Which batch it is, for whoever looks for an error."""
        some = ", ".join(map(str, self.records[:MOST_RECORDS_TOLD].tolist()))
        more = ", ..." if self.records.size > MOST_RECORDS_TOLD else ""
        made = f"loader.batch_at(step={self.step}, epoch={self.epoch})"
        return f"in epoch {self.epoch}, step {self.step}, of the records {some}{more}; {made} has this batch"


class _Feed:
    """What feeds one pipeline: the batches of a loader, epoch by epoch, read ahead of what comes out.

    A batch waits until DALI has taken it, for each of its columns is asked for by itself. And if another source in the
    pipeline has ended, DALI throws away what it got from this one, which it asks for again after ``reset``.

    Everything here is called by the thread that runs the pipeline.
    """

    def __init__(self, loader: Loader, columns: _Columns, name: str | None) -> None:
        self.name = name
        self._loader, self._columns = loader, columns
        self._fills = name is not None and loader.last_batch == "partial"
        self._batches: Epoch | None = None
        self._waiting: tuple[list[Any], _Step] | None = None
        self._taken: deque[_Step] = deque()
        self._error: Exception | None = None
        self._ended = False

    def column(self, place: int) -> Any:
        """Return a column of the next batch; raises ``StopIteration`` where the epoch ends or a step failed."""
        if self._ended:
            raise StopIteration
        if self._waiting is None:
            try:
                self._waiting = self._next()
            except StopIteration:
                self._batches, self._ended = None, True
                raise
            except Exception as error:  # it is raised when its step comes out; what is in the pipeline comes before it
                self._error, self._ended = error, True
                raise StopIteration from None
        return self._waiting[0][place]

    def _next(self) -> tuple[list[Any], _Step]:
        if self._batches is None:
            if self.name is not None:
                _check_whole(self._loader.position)
            self._batches = self._loader.counted()
        batch = next(self._batches)
        columns = self._columns.values(batch)
        is_filled = self._fills and batch.records.size < self._loader.batch_size
        if is_filled:
            columns = [_filled(values, self._loader.batch_size) for values in columns]
        after = self._batches.position
        return columns, _Step(self._batches, after, batch.epoch, batch.step, batch.records, is_filled)

    def was_taken(self) -> None:
        """Note that DALI has taken the batch that waited."""
        if self._waiting is not None:
            self._taken.append(self._waiting[1])
            self._waiting = None

    def come_out(self, take: Callable[[Any], Any], cuda_stream: Any) -> Any:
        """Return what ``take`` returns, the outputs of the oldest batch in the pipeline, and take the loader along."""
        try:
            outputs = take(cuda_stream)
        except StopIteration:
            error, self._error = self._error, None
            if error is None:
                raise
            raise error from None
        except Exception as error:  # of an operator: the batch is lost, and the state begins with it
            if self._taken:
                noted(error, self._taken.popleft().told)
            raise
        if self._taken:
            step = self._taken.popleft()
            step.batches.move(step.after)
        return outputs

    @property
    def has_failed(self) -> bool:
        """True if a step failed and nobody was told yet."""
        return self._error is not None

    @property
    def only_filled_is_left(self) -> bool:
        """True if all of an epoch came out but a last batch that was filled up."""
        return self._ended and len(self._taken) == 1 and self._taken[0].is_filled

    def reset(self) -> None:
        """Begin the next epoch when the next batch is asked for, or go on behind a step that failed."""
        self._ended = False

    @property
    def meta(self) -> dict[str, Any]:
        """What DALI's iterators ask of a reader; see `_as_dali_counts`."""
        loader = self._loader
        num_steps = len(loader)
        delivered = num_steps * loader.batch_size * loader.num_shards
        size = len(loader.source) if self._fills else delivered
        return {
            "epoch_size": size,
            "epoch_size_padded": delivered,
            "number_of_shards": loader.num_shards,
            "shard_id": _as_dali_counts(size, loader.num_shards, loader.shard_id),
            "pad_last_batch": True,
            "stick_to_shard": True,
        }


class _Source:
    """What DALI calls for one column."""

    def __init__(self, feed: _Feed, place: int) -> None:
        self._feed, self._place = feed, place

    def __call__(self) -> Any:
        return self._feed.column(self._place)


class _Fed(dali.pipeline.Pipeline):  # type: ignore[misc]  # DALI has no types
    """A pipeline that tells its `_Feed` what happens."""

    _gpuload_feed: _Feed

    def iter_setup(self) -> None:
        """Called by DALI when all sources have given what they have for an iteration, before it is put in."""
        super().iter_setup()
        self._gpuload_feed.was_taken()

    def outputs(self, cuda_stream: Any = None) -> Any:
        """See DALI."""
        return self._gpuload_feed.come_out(super().outputs, cuda_stream)

    def share_outputs(self, cuda_stream: Any = None) -> Any:
        """See DALI."""
        return self._gpuload_feed.come_out(super().share_outputs, cuda_stream)

    def reset(self) -> None:
        """See DALI, which ignores it before an epoch has come out; here also while its last batches, or its error, are
        inside. But a batch that was filled up is thrown away: an iterator that drops it may not ask for it before.
        """
        if self._gpuload_feed.only_filled_is_left:
            self.enable_api_check(False)  # an iterator, which has its own ways to call these two, calls this here
            self.share_outputs()
            self.release_outputs()
            self.enable_api_check(True)
        if self.empty() and not self._gpuload_feed.has_failed:
            super().reset()
            self._gpuload_feed.reset()

    def serialize(self, *args: Any, **arguments: Any) -> Any:
        """Raise ``SpecError``: what has a source in Python cannot be sent anywhere."""
        raise SpecError(
            "a pipeline with gpuload's reader, to be serialized (DALI's TensorFlow plugin does it)",
            cause="its batches come from this process, and the plugin knows no epochs of a Python source",
            remedy='for TensorFlow use gltf.dataset(loader, via="plugin"), with gltf = gpuload.bridges.tensorflow, and '
            "DALI's operators as gl.ops.Dali in the loader's ops=",
        )

    def reader_meta(self, name: str | None = None) -> Any:
        """See DALI; the loader's reader is there under its name."""
        mine = self._gpuload_feed.name
        if name is not None and name == mine:
            return self._gpuload_feed.meta
        known = super().reader_meta()
        if mine is not None:
            known = {**known, mine: self._gpuload_feed.meta}
        if name is None:
            return known
        if name not in known:
            raise SpecError(
                f"reader_name={name!r}",
                cause=f"the readers with a name in this pipeline are {sorted(known)}",
                remedy=f"write reader(loader, name={name!r}), or leave reader_name= out: the iterator then ends where "
                "the loader does",
            )
        return known[name]

    def epoch_size(self, name: str | None = None) -> Any:
        """See DALI."""
        if name is not None:
            return self.reader_meta(name)["epoch_size_padded"]
        return {one: meta["epoch_size_padded"] for one, meta in self.reader_meta().items()}


@cache
def _fed(kind: Any) -> Any:
    """Return the class of pipelines of some class that are fed by a loader."""
    return _Fed if kind is dali.pipeline.Pipeline else type(f"Fed{kind.__name__}", (_Fed, kind), {})


def _current_pipeline(loader: Loader) -> Any:
    """Return the pipeline that is being defined; raises ``SpecError`` or ``DeviceError`` if it does not fit."""
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
            cause="DALI then calls the function again for every batch, and each call would begin to read anew",
            remedy="leave debug=True out",
        )
    if isinstance(pipeline, _Fed):
        raise SpecError(
            "a second reader(loader) in one pipeline",
            cause="a pipeline has one position, and so one loader",
            remedy="put the sources together: gl.Loader(gl.zip(one, two), ...)",
        )
    if pipeline.max_batch_size != loader.batch_size:
        raise SpecError(
            f"a pipeline of batch_size={pipeline.max_batch_size} with a loader of batch_size={loader.batch_size}",
            cause="the loader says which records are a batch, and DALI must have room for just that",
            remedy="make the pipeline with batch_size=loader.batch_size",
        )
    wanted = None if loader.device == "cpu" else devices.number(loader.device)
    if wanted is not None and pipeline.device_id not in (None, wanted):
        raise DeviceError(
            f"a pipeline on device_id={pipeline.device_id} with a loader on {loader.device}",
            cause="their memory is on different GPUs",
            remedy=f'make the loader with device="gpu:{pipeline.device_id}", or device="cpu" for encoded images',
        )
    return pipeline


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise SpecError(f"name = {name!r}", cause="it is a text", remedy='write reader(loader, name="Reader")')


def _check_whole(position: Position) -> None:
    """Raise ``SpecError`` if an iterator of DALI that counts whole epochs would begin in the middle of one."""
    if position.step:
        raise SpecError(
            f"reader(loader, name=...) of a loader that is at epoch {position.epoch}, step {position.step}",
            cause="with reader_name= the iterators of DALI count batches, and know whole epochs only",
            remedy="leave out name= here and reader_name= there: the iterator then ends where the loader does",
        )


def _layout(column: Input) -> str:
    return column.layout if len(column.layout) == len(column.shape) else ""


def _field_input(field: Field, device: str) -> Input:
    """Return the input of a field; raises ``SpecError`` where DALI has none."""
    if field.dtype.name not in DALI_DTYPES:
        common.refuse(
            field,
            "a DataNode",
            "DALI has boolean, integer and float (16, 32, 64) arrays",
            "name the other fields in output=, or put gl.ops.Cast into ops=",
        )
    if field.shape is None:
        common.refuse(field, "a DataNode", "its rank varies from record to record", "leave it out with output=")
    where = "cpu" if device == "cpu" or field.encoded or field.host_only else "gpu"
    return Input(field.name, field.dtype, field.shape, field.axes, where)


def _checked_draws(draws: Mapping[str, Op | Numbers] | None) -> dict[str, Op | Numbers]:
    if draws is not None and not isinstance(draws, Mapping):
        raise SpecError(
            f"draws = {draws!r}",
            cause="draws have names, which belong to the key of the random numbers",
            remedy='write draws={"angle": uniform(-10, 10)}, say',
        )
    for name, one in (draws or {}).items():
        if not isinstance(name, str) or not isinstance(one, (Op, Numbers)):
            raise SpecError(
                f"draws[{name!r}] = {one!r}",
                cause="it is neither numbers nor an op that draws",
                remedy="use uniform(-10, 10), integers(0, 5), coin_flip(0.5) of this module, or gl.ops.RandomFlip()",
            )
    return dict(draws or {})


def _graph(loader: Loader, ops: Sequence[Op]) -> Graph:
    """Return the graph whose draws are those of the ops behind the loader's own; encoded images count as decoded."""
    fields = [
        field.with_(shape=(None, None, 3), axes="HWC", encoded=False) if field.encoded else field
        for field in loader.spec_out
    ]
    graph = compile_ops(Spec(tuple(fields)), ops)
    return replace(graph, streams=tuple(streams([*loader.ops, *ops])[len(loader.ops) :]))


def _stream(name: str) -> int:
    """Return the random stream of numbers; those of ops are hashes of texts without a colon."""
    return int.from_bytes(hashlib.sha256(f"draw:{name}".encode()).digest()[:8], "little")


def _of_cupy(values: Any) -> Any:
    """Return the values, those on a GPU as plain arrays of CuPy.

    DALI knows CuPy's arrays by the name of their class, and has its copy wait for CuPy's current stream, which waits
    for the batch. The array that the loader lends is of a class derived from CuPy's; the plain one is a view of it, so
    that its memory comes back behind the copy on that stream, as it does behind the work of CuPy itself.
    """
    if not isinstance(values, np.ndarray) and hasattr(values, "__cuda_array_interface__"):
        plain = devices.cupy().ndarray
        return plain(values.shape, values.dtype, values.data, values.strides)
    if isinstance(values, np.ndarray):
        return values
    return [_of_cupy(one) for one in values]


def _filled(values: Any, batch_size: int) -> Any:
    """Return a column with its last row repeated up to the batch size."""
    if isinstance(values, np.ndarray):
        return values[np.minimum(np.arange(batch_size), len(values) - 1)]
    return [*values, *[values[-1]] * (batch_size - len(values))]


def _as_dali_counts(length: int, num_shards: int, shard_id: int) -> int:
    """Return the number of the shard that has, as DALI counts, as many records of an epoch as this one has here.

    DALI gives shard i of n the records from ``i * length // n`` to ``(i + 1) * length // n``; here the first shards
    have one more. The numbers of records are the same ones, in another order.

        10 records, 4 shards    here 3 3 2 2    DALI's 2 3 2 3    shards 0 1 2 3 are its 1 3 0 2
    """
    sizes = [(one + 1) * length // num_shards - one * length // num_shards for one in range(num_shards)]
    return sorted(range(num_shards), key=lambda one: -sizes[one])[shard_id]


def _shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    made = shape if isinstance(shape, (tuple, list)) else (shape,)
    if not all(is_whole(one, least=1) for one in made):
        raise SpecError(f"shape = {shape!r}", cause="it is whole numbers of at least 1", remedy="write shape=2, say")
    return tuple(int(one) for one in made)


def _no_interval(name: str, low: object, high: object) -> SpecError:
    return SpecError(
        f"{name}({low!r}, {high!r})",
        cause="these are the ends of an interval, the lower one first",
        remedy="write uniform(-10.0, 10.0) or integers(0, 5), say",
    )


def _is_number(value: object) -> bool:
    """Return whether a value is a number that float32 can hold."""
    is_real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return is_real and -LARGEST <= value <= LARGEST  # type: ignore[operator]


# With enable_conditionals=True DALI 2.4 rewrites all functions that a definition calls; for these it takes a second.
reader = dali.pipeline.do_not_convert(reader)
