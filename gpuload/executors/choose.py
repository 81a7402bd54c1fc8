"""Which executor runs a graph, and why."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np

from gpuload import driver, signalsafe
from gpuload.errors import DeviceError, MissingPackageError, SpecError, missing_package
from gpuload.executors import trials
from gpuload.executors.array import ArrayBatchExecutor, ArrayRowExecutor
from gpuload.executors.base import BatchExecutor, RowExecutor
from gpuload.images.decode import codec
from gpuload.ops import walk
from gpuload.ops.base import Op
from gpuload.ops.graph import Graph
from gpuload.spec import Spec

NAMES = ("auto", "array", "dali")
_LANE = "images are decoded and brought to one size on the host, and uploaded as bytes"
log = logging.getLogger("gpuload")


def choose(request: str, graph: Graph, device: str) -> tuple[str, str]:
    """Return the name of the executor for a graph on a device, and why.

    Raises:
        SpecError: no such executor, or no executor runs all of the ops.
        DeviceError: the executor that was asked for, or the device, is not for one of the ops.
        MissingPackageError: a package that an op needs is not installed.
    """
    name, reason = _choose(request, graph, device)
    if name == "dali":
        in_dali(_behind_host(graph, device), device)
    return name, reason


def _choose(request: str, graph: Graph, device: str) -> tuple[str, str]:
    if request not in NAMES:
        raise SpecError(f"executor = {request!r}", cause="it is not known", remedy=f"use one of {NAMES}")
    decodes = any(op.codec for op in graph.ops)
    if not graph.ops:
        return "array", "there are no ops to run"
    only_choice = _only_executor(request, graph, device)
    if only_choice is not None:
        return only_choice
    if request == "array" and decodes and device != "cpu":
        if codec() is None:
            raise _no_codec()
        return request, f"asked for; {_LANE}"
    if request != "auto":
        return request, "asked for"
    if device != "cpu":
        if decodes and not _has_dali() and codec() is not None:
            return "array", f"DALI is not installed; {_LANE}"
        if decodes and not _has_dali():
            remedy = driver.install_packages(device)
            raise missing_package("nvidia-dali", needed_for=f"gl.ops.Decode on {device}", remedy=remedy)
        return ("dali", "images are decoded on the GPU") if decodes else ("array", "no op needs an image codec")
    # Only where the other one is sound: a failure of both says something about the machine, not about the choice.
    if decodes and _has_dali() and (failure := _whole_failure("array")) and not _whole_failure("dali"):
        _warn(f"DALI decodes images: {failure}")
        return "dali", str(failure)
    if decodes and codec() is None:
        if not _has_dali():
            raise _no_codec()
        return "dali", "neither nvImageCodec nor Pillow is installed, which the array executor decodes with"
    return "array", "it is the faster one on a CPU"


def _whole_failure(name: str) -> trials.Failure | None:
    """Return the first format whose images an executor does not decode on the CPU."""
    return next((failure for failure in trials.load(name, "cpu") if not failure.is_region), None)


def heed_failures(graph: Graph, name: str, device: str) -> tuple[Graph, str]:
    """Return the graph as it works on this machine, and what `gpuload doctor` found, "" if nothing of concern.

    Where the executor fails at regions of images, it is the graph that decodes whole images, with the same pixels.
    """
    place = "cpu" if name == "array" else device  # where that executor decodes
    failures = trials.load(name, place) if any(op.codec for op in graph.ops) else ()
    texts = [str(failure) for failure in failures if not failure.is_region][:1]
    region = next((failure for failure in failures if failure.is_region), None)
    if region is not None and place == "cpu" and any(crop is not None for crop in graph.crops):
        graph = graph.without_regions
        texts.append(f"whole images are decoded and cut: {region}")
    text = "; ".join(texts)
    if text:
        _warn(text)
    return graph, text


@cache
def _warn(text: str) -> None:
    """Say it once in a process."""
    log.warning("%s", text)


def split_ops(graph: Graph, name: str, device: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the places of the ops that run on rows on the host, and of those that run on whole batches behind them.

    Args:
        graph: the ops.
        name: of the executor that ``choose`` chose.
        device: ``"cpu"`` or ``"gpu:N"``.
    """
    every = range(len(graph.ops))
    # On a CPU the array executor runs in the workers; nothing is left for whole batches.
    on_host = tuple(every) if runs_on_rows(name, device) else _host_places(graph, device, name)
    return on_host, tuple(place for place in every if place not in on_host)


def _host_places(graph: Graph, device: str, name: str = "") -> tuple[int, ...]:
    """Return the places of the ops that run on NumPy before a batch goes to DALI or to a GPU.

    On a CPU, ops for NumPy behind an operator of DALI on their fields are not among them: they run behind DALI.
    Of the array executor on a GPU those are among them that CuPy does not do: see ``_lane_places``.
    """
    behind = graph.behind_dali if device == "cpu" else frozenset[int]()
    lane = _lane_places(graph) if name == "array" and device != "cpu" else ()
    return graph.with_ops_before([*(place for place in graph.for_numpy if place not in behind), *lane])


def _lane_places(graph: Graph) -> tuple[int, ...]:
    """Return the places of the ops that decode images, and of those up to the one that gives the images one size.

    Crops and flips of bytes directly behind are among them: the core does them in the same pass, and no more bytes are
    uploaded. Where no op gives one size, decoding alone is.
    """
    places: set[int] = set()
    waiting: dict[str, list[int]] = {}  # images of varying size: the ops on them since they were decoded
    sized: set[str] = set()  # images of one size, behind which a walk of bytes may follow
    for place, op in enumerate(graph.ops):
        names = graph.outputs[place]
        if op.codec:
            places.add(place)
            behind: list[int] = []
        else:
            parents = {op.original(name, graph.targets[place]) for name in names} | set(names)
            if parents.isdisjoint(waiting):
                if sized.intersection(names) and len(names) == 1 and _shrinks(graph, place, names[0]):
                    places.add(place)
                else:
                    sized.difference_update(names)
                continue
            behind = [*(earlier for name in parents for earlier in waiting.get(name, ())), place]
        for name in names:
            field = graph.specs[place][name]
            waiting.pop(name, None)
            if not field.uniform:
                waiting[name] = behind
                continue
            places.update(behind)
            if field.dtype == np.uint8:
                sized.add(name)
    return tuple(sorted(places))


def _shrinks(graph: Graph, place: int, name: str) -> bool:
    """Return True if an op only moves the bytes of images of one size, and there are no more of them behind it."""
    op, before, after = graph.op_on(place, name), graph.before(place)[name], graph.specs[place][name]
    if not op.moves_pixels or op.joint or not after.uniform or after.dtype != before.dtype:
        return False
    begin = walk.begin(before, 0)
    folds = begin is not None and op.fold(begin, graph.empty_draws[place]) is not None
    return folds and prod(after.fixed_shape) <= prod(before.fixed_shape)


def _behind_host(graph: Graph, device: str, name: str = "") -> Graph:
    """Return the graph of the ops that run on whole batches, by an executor that does not run on rows."""
    on_host = _host_places(graph, device, name)
    rest = [place for place in range(len(graph.ops)) if place not in on_host]
    return graph.part(rest, graph.part(on_host).spec_out)


def in_dali(graph: Graph, device: str) -> tuple[int, ...]:
    """Return the places of the ops that DALI runs; the others run behind it, in their array forms on the same device.

    These are an op that has no form in DALI and all ops behind it on its fields. On a GPU also the ops on fields that
    no op needs DALI for, as labels beside images: CuPy has them there already.

    Args:
        graph: ops that run on whole batches.
        device: ``"cpu"`` or ``"gpu:N"``.

    Raises:
        SpecError: an op that only DALI runs is behind one that it does not run, or it runs none.
    """
    array_fields = _without_dali(graph) if device != "cpu" else set()
    places, cause = [], dict.fromkeys(array_fields, "no op before it needs DALI")
    for place, op in enumerate(graph.ops):
        names = graph.outputs[place]
        before = next((cause[name] for name in names if name in cause), None)
        if op.has_dali_form and before is None:
            places.append(place)
            continue
        if op.codec or op.needs_dali:
            raise SpecError(
                f"{op} behind an op without a form in DALI",
                cause=f"{before}; that one runs in its array form, behind all that DALI runs",
                remedy=f"put {type(op).__name__} first, or give the other op lower(), its form in DALI",
            )
        cause |= dict.fromkeys(names, f"{op} has no lower()" if before is None else before)
    if graph.ops and not places:
        raise SpecError(
            f"executor='dali' for {', '.join(map(str, graph.ops))}"[:300],
            cause="none of the ops has a form in DALI, lower()",
            remedy="leave executor= out",
        )
    return tuple(places)


def _without_dali(graph: Graph) -> set[str]:
    """Return the fields that no op needs DALI for, neither on them nor on fields that share an op with them.

    Where no op at all needs DALI, it was asked for, and these are none.
    """
    dali_fields = {
        name for op, on in zip(graph.ops, graph.outputs, strict=True) if op.codec or op.needs_dali for name in on
    }
    # To a fixed point: an image and its mask share a crop, the mask and a map share another op, and so on.
    while partners := {name for on in graph.outputs if dali_fields.intersection(on) for name in on} - dali_fields:
        dali_fields |= partners
    return {name for on in graph.outputs for name in on} - dali_fields if dali_fields else set()


def _only_executor(request: str, graph: Graph, device: str) -> tuple[str, str] | None:
    """Return the one executor that runs all of the ops, and why; None if either does."""
    of_dali = next((op for op in graph.ops if op.needs_dali), None)
    on_host = _host_places(graph, device, request)
    of_numpy = next((type(graph.ops[place]).__name__ for place in graph.for_numpy if place in on_host), None)
    if of_numpy is not None:
        _check_host(graph, on_host, device)
        if device == "cpu" and of_dali is None and request != "dali":
            return "array", f"{of_numpy} runs on NumPy alone"
        name, reason = choose(request, _behind_host(graph, device, request), device)
        return name, f"{reason}; {of_numpy} and the ops before it run on NumPy, on the host"
    if of_dali is not None:
        if request == "array":
            raise DeviceError(
                f"{of_dali} with executor='array'",
                cause="the op is an operator of DALI",
                remedy="leave executor= out, or write executor='dali'",
            )
        if not _has_dali():
            remedy = driver.install_packages(device)
            raise missing_package("nvidia-dali", needed_for=f"gl.ops.{type(of_dali).__name__}", remedy=remedy)
        return "dali", f"{type(of_dali).__name__} is an operator of DALI" if request == "auto" else "asked for"
    return None


def _check_host(graph: Graph, on_host: Sequence[int], device: str) -> None:
    """Raise an error if one of the ops on the host cannot run on NumPy, where one that must is behind it."""
    ops = [graph.ops[place] for place in on_host]
    for place in on_host:
        op, behind = graph.ops[place], graph.ops[next(later for later in (*graph.for_numpy, place) if later >= place)]
        if not op.needs_numpy and device != "cpu":
            _check_stays(op, graph.before(place), graph.specs[place].only(graph.targets[place]), device)
        if op.needs_dali:
            raise SpecError(
                f"{behind} behind {op}",
                cause=f"the first runs on NumPy, on the host, before a batch goes to DALI on {device}; DALI alone runs "
                "the second",
                remedy=f"put {type(behind).__name__} before {type(op).__name__}; or write gl.ops.Python(function, "
                "on_device=True), where the function takes arrays of CuPy; or device='cpu', where the first runs "
                "behind DALI",
            )
    if any(op.codec for op in ops) and codec() is None:
        raise _no_codec()


def _check_stays(op: Op, before: Spec, after: Spec, device: str) -> None:
    """Raise ``DeviceError`` if an op takes a field away from a GPU, for its dtype is for the host alone."""
    field = next((field for field in after if field.host_only and not before[field.name].host_only), None)
    if field is not None:
        raise DeviceError(
            f"{op} on {device}",
            cause=f"field {field.name!r} would stay on the host, for no array library on a GPU has {field.dtype}",
            remedy="leave the op out, and cast in the training step: tf.cast(images, tf.bfloat16), say",
        )


def _no_codec() -> MissingPackageError:
    return missing_package("pillow", needed_for="gl.ops.Decode on a CPU", extra="images")


def _has_dali() -> bool:
    return signalsafe.is_installed("nvidia.dali")


def runs_on_rows(name: str, device: str) -> bool:
    """Return True if an executor of this name runs on rows on a device, False if it runs on whole batches."""
    return name == "array" and device == "cpu"


def on_rows(graph: Graph) -> RowExecutor:
    """Return a new executor on rows on the host."""
    return ArrayRowExecutor(graph)


def make(name: str, graph: Graph, *, device: str, batch_size: int, num_threads: int) -> RowExecutor | BatchExecutor:
    """Return a new executor; its ``kind`` is "rows" where ``runs_on_rows`` is True, else "batches".

    Args:
        name: ``"array"`` or ``"dali"``, as ``choose`` says.
        graph: the ops.
        device: ``"cpu"`` or ``"gpu:N"``.
        batch_size: the largest batch; for an executor of whole batches.
        num_threads: of DALI.

    Raises:
        MissingPackageError: its package is not installed; names the extra.
        SpecError: DALI has no such fields or refuses an op.
        DeviceError: the GPU cannot be used; the cause is named.
    """
    if name == "dali":
        dali: Any = importlib.import_module("gpuload.executors.dali")  # the package nvidia.dali is large
        words: dict[str, Any] = {"device": device, "batch_size": batch_size, "num_threads": num_threads}
        places = in_dali(graph, device)
        executor: BatchExecutor = (
            dali.DaliExecutor(graph, **words) if len(places) == len(graph.ops) else dali.Chain(graph, places, **words)
        )
        return executor
    if runs_on_rows(name, device):
        return on_rows(graph)
    return ArrayBatchExecutor(graph, device=device)
