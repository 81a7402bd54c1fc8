"""Setup: the arguments of a loader, checked, as its sessions are made of them."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpuload import device as devices
from gpuload import lazy, signalsafe, threads
from gpuload.batch import Output
from gpuload.errors import SpecError
from gpuload.executors.choose import ExecutorRequest
from gpuload.graph.graph import Graph
from gpuload.order import Buckets, Plan
from gpuload.pipeline.damage import Damage
from gpuload.sources.base import Source
from gpuload.sources.reading import record_origin
from gpuload.stats import Counters, mark_ranges
from gpuload.storage.direct import DirectReader
from gpuload.storage.stores import sends_each_read

if TYPE_CHECKING:
    from gpuload.pipeline.audit import AuditSetting

log = logging.getLogger("gpuload")
NVTX = "GPULOAD_NVTX"
lengths_of = lazy.function("gpuload.sources.lengths", "lengths_of")
SAMPLED_RECORDS = 16  # their files are looked at for the sentence about slow loaders
MANY_RECORDS = 16  # decoded for one that is read: from here on a shuffle is worth a warning


@dataclass(frozen=True)
class Setup:
    """The parts of a loader that do not change while it lives.

    Attributes:
        source, graph, plan: the records, the ops with those of the source before them, and the
            order.
        names, output: the fields of a batch, and how it is arranged.
        device, device_reason: ``"cpu"`` or ``"gpu:N"``, and why.
        request: the executor and the place to decode that were asked for.
        num_threads, tunes_threads: threads to begin with, and whether their number may change.
        prefetch: the argument; None to choose it.
        labels: of the ops, by their streams, where batches carry their draws; else None.
        damage: the treatment of damaged records; None to raise an error for each.
        reader: reads rows straight to the GPU; None where they go by way of the host.
        audit: the argument, checked; None to audit decoders that are not known alone.
        counters: of the loader.
    """

    source: Source
    graph: Graph
    plan: Plan
    names: tuple[str, ...]
    output: Output
    device: str
    device_reason: str
    request: ExecutorRequest
    num_threads: int
    tunes_threads: bool
    prefetch: int | None
    labels: dict[int, str] | None
    damage: Damage | None
    reader: DirectReader | None
    audit: AuditSetting | None
    counters: Counters


def check_arguments(source: object, **texts: object) -> None:
    """Raise ``SpecError`` if the source of a loader is no source, or one of the texts is no
    text."""
    if not isinstance(source, Source):
        raise SpecError(
            f"source is a {type(source).__name__}",
            cause="a loader reads from a gpuload source",
            remedy="open one: gl.npy, gl.fixed, gl.images; gl.arrays(x=array) for arrays in memory",
        )
    for name, value in texts.items():
        if not isinstance(value, str):
            raise SpecError(
                f"{name} = {value!r}"[:200],
                cause="it is a text",
                remedy=f"write {name}='auto', say",
            )


def with_lengths(shuffle: Buckets, source: Source) -> Buckets:
    """Return the kind of shuffle, with the lengths of all records in place of the name of a
    field."""
    if source.endless:
        raise SpecError(
            f"shuffle={shuffle!r} of a mix",
            cause="a mix has other records in each epoch, whose lengths would have to be found out "
            "anew",
            remedy="use shuffle=True",
        )
    if isinstance(shuffle.by, str):
        return replace(shuffle, by=lengths_of(source, shuffle.by))
    return shuffle


def executor_request(
    executor: str, decode: str, graph: Graph, device: str, source: Source, names: tuple[str, ...]
) -> ExecutorRequest:
    """Return the request of a loader: of the machine and the files only facts that the choice may
    depend on."""
    decodes = any(op.traits.codec for op in graph.ops)
    if device == "cpu" or not decodes or (executor, decode) != ("auto", "auto"):
        return ExecutorRequest(executor, decode)
    num_cores = threads.num_cores_for_gpu(devices.num_gpus())
    return ExecutorRequest(executor, decode, num_cores, _endings(source), names)


def _endings(source: Source) -> frozenset[str]:
    """Return the endings of the names of some records' files, in lower case: ``".jpg"``."""
    paths = [
        place[0]
        for number in _sample(source)
        if (place := record_origin(source, number)) is not None
    ]
    return frozenset(os.path.splitext(path)[1].lower() for path in paths)


def own_file_bytes(source: Source) -> float:
    """Return the mean size of the files of some records; 0.0 if these have no file of their own
    each."""
    numbers = _sample(source)
    paths = [place[0] for number in numbers if (place := record_origin(source, number)) is not None]
    if len(set(paths)) < max(len(numbers), 2) or len(source.files.paths) < len(source):
        return 0.0
    with signalsafe.suppress(OSError):
        return sum(os.path.getsize(path) for path in paths) / len(paths)
    return 0.0


def _sample(source: Source) -> range:
    """Return the numbers of some records, from all of the source."""
    return range(0, len(source), max(1, len(source) // SAMPLED_RECORDS))


def make_reader(
    device: str, device_reason: str, damage: Damage | None, num_threads: int
) -> DirectReader:
    """Return the reader of ``direct=True``, which reads rows straight to the GPU; log if they go by
    way of the host.

    Raises:
        SpecError: batches are made on the CPU, or damaged records are looked for on the host.
    """
    if device == "cpu":
        cause = f"batches are made on the CPU ({device_reason})"
        raise SpecError(
            "direct=True", cause=cause, remedy='use device="gpu", or leave direct=True out'
        )
    if damage is not None:
        cause = "damaged records are looked for on the host"
        raise SpecError(
            "direct=True", cause=cause, remedy='use on_error="raise", or leave direct=True out'
        )
    reader = DirectReader(num_threads)
    if not reader.path.is_direct:
        log.warning("direct=True, but rows come by %s", reader.path.line)
    return reader


def check_steps(plan: Plan) -> None:
    """Raise ``SpecError`` if the records do not fill a single step."""
    if plan.length and not plan.end():
        shards = ""
        if plan.num_shards > 1:
            shards = f" on each of {plan.num_shards} shards"
        raise SpecError(
            f"batches of {plan.batch_size}{shards} of {plan.length} records, with "
            "last_batch='drop'",
            cause="the records do not fill a single step, so that every epoch would be empty",
            remedy="use a smaller batch_size, or last_batch='partial'",
        )


def cost_lines(source: Source, plan: Plan) -> list[str]:
    """Return lines about an order of records that costs much more than another one, to be
    logged."""
    if not len(source):
        return [
            f"{source._line()}: a loop over this loader ends at once and trains nothing; check the "
            "paths, and what filters, slices and splits leave"
        ]
    if plan.shuffle is not True:
        return []
    leaves = [share.leaf for share in source.resolve(np.zeros(1, np.int64))]
    paths, lines = source.files.paths, []
    is_remote = len(paths) < plan.length and any(map(sends_each_read, paths))
    if is_remote and not all(leaf.asks_once for leaf in leaves):
        lines.append(
            f"shuffle=True reads {plan.length} remote records one by one, about {plan.length} "
            "requests an epoch for all shards together; shuffle=gl.Blocks(1024, 16) reads "
            "neighbours together, in a thousandth of the requests; gl.Remote(..., cache=...) "
            "stores what was read on a disk of this machine"
        )
    block_records = max(leaf.block_records for leaf in leaves)
    if block_records >= MANY_RECORDS:
        lines.append(
            f"shuffle=True may decode {block_records} records for each one that it reads: they are "
            "stored together, and do not all fit into the cache; "
            f"shuffle=gl.Blocks({block_records}, 4) decodes each once, and mixes 4 such blocks"
        )
    return lines


def mark_nvtx_ranges() -> None:
    """Have NVIDIA's profilers show the stages of all loaders, if ``GPULOAD_NVTX=1`` asks for it."""
    if os.environ.get(NVTX, "0") in ("", "0"):
        return
    ranges = devices.nvtx_ranges()
    if ranges is None:
        log.warning(
            "%s is set, but stages are not marked; cause: CuPy is not installed; remedy: install "
            "it",
            NVTX,
        )
    else:
        mark_ranges(*ranges)
