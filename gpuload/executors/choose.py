"""Which executor runs a graph, where images are decoded, and why.

A graph runs in up to two parts: on rows in the workers, on the host, and behind that on whole
batches, in an executor.

    device   executor   decode    on the host                                behind it
    cpu      array                all ops
    cpu      dali       device    ops for NumPy alone                        DALI decodes, too
    cpu      dali       host      decoding, up to one size (`to_one_size`)   DALI
    gpu:N    array      host      decoding, up to one size                   CuPy
    gpu:N    dali       device    ops for NumPy alone                        DALI decodes, too; CuPy
    gpu:N    dali       host      decoding, up to one size                   DALI; CuPy
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple

from gpuload import driver, lazy, signalsafe
from gpuload.errors import DeviceError, MissingPackageError, SpecError, missing_package
from gpuload.executors import trials
from gpuload.executors.array import ArrayBatchExecutor, ArrayRowExecutor
from gpuload.executors.base import BatchExecutor, RowExecutor
from gpuload.executors.decoding import DEVICE, HOST, Conditions, place_by_rule
from gpuload.graph.graph import Graph
from gpuload.images.decode import codec
from gpuload.ops.base import Op, calls_python, has_dali_form, original
from gpuload.spec import Field, Spec

NAMES = ("auto", "array", "dali")
PLACES = ("auto", HOST, DEVICE)
asks_for_hardware = lazy.function("gpuload.ops.value.decode", "asks_for_hardware")
log = logging.getLogger("gpuload")


class ExecutorRequest(NamedTuple):
    """The wishes of a user, and facts about the machine and the files.

    Attributes:
        executor: one of `NAMES`.
        decode: one of `PLACES`.
        num_cores: for each GPU.
        endings: of the names of files, see `decoding.Conditions`.
        names: the fields of a batch; None for all.
    """

    executor: str = "auto"
    decode: str = "auto"
    num_cores: int = 1
    endings: frozenset[str] = frozenset()
    names: tuple[str, ...] | None = None


DEFAULT_REQUEST = ExecutorRequest()


class Choice(NamedTuple):
    """Which executor runs the ops, and where images are decoded.

    Attributes:
        executor: ``"array"`` or ``"dali"``.
        decode: ``"host"``: in the workers, by the core; ``"device"``: by DALI, on the loader's
            device; "" where no op decodes images.
        reason: why that executor.
        decode_reason: why there.
    """

    executor: str
    decode: str
    reason: str
    decode_reason: str = ""

    def on_rows(self, device: str) -> bool:
        """Return True if all ops run on rows in the workers."""
        return runs_on_rows(self.executor, device)


def choose(graph: Graph, device: str, request: ExecutorRequest = DEFAULT_REQUEST) -> Choice:
    """Return the choice for a graph on a device, ``"cpu"`` or ``"gpu:N"``.

    Raises:
        SpecError: no such executor or place, or no executor runs all of the ops.
        DeviceError: the executor or the place that was asked for, or the device, is not for one of
            the ops.
        MissingPackageError: a package that an op needs is not installed.
    """
    for word, value, choices in (
        ("executor", request.executor, NAMES),
        ("decode", request.decode, PLACES),
    ):
        if value not in choices:
            raise SpecError(
                f"{word} = {value!r}", cause="it is not known", remedy=f"use one of {choices}"
            )
    if not graph.ops:
        return Choice("array", "", "there are no ops to run")
    # Ops for NumPy alone are on the host wherever images are decoded: their errors do not speak of
    # a place.
    before_numpy = _host_places(graph, device, "")
    _check_host(graph, before_numpy, device)
    decode, decode_reason = _place_to_decode(graph, device, request, before_numpy)
    on_host = _host_places(graph, device, decode)
    _check_host(graph, on_host, device)
    behind = part_behind(graph, on_host)
    executor, reason = _executor(graph, behind, device, request, (decode, decode_reason))
    if executor == "dali":
        in_dali(behind, device)
    return Choice(executor, decode, reason, decode_reason)


def _executor(
    graph: Graph, behind: Graph, device: str, request: ExecutorRequest, decoding: tuple[str, str]
) -> tuple[str, str]:
    """Return the executor of the ops behind those on the host, and why; ``decoding`` is where
    images are, and why."""
    of_dali = next((op for op in graph.ops if op.traits.execution.needs_dali), None)
    if of_dali is not None:
        if request.executor == "array":
            raise DeviceError(
                f"{of_dali} with executor='array'",
                cause="the op is an operator of DALI",
                remedy="leave executor= out, or write executor='dali'",
            )
        _check_dali(f"gl.ops.{type(of_dali).__name__}", device)
        if request.executor == "dali":
            return "dali", "asked for"
        return "dali", f"{type(of_dali).__name__} is an operator of DALI"
    if request.executor == "dali" and not behind.ops:
        return "array", "all ops run on the host, and none is left for DALI"
    if request.executor == "dali":
        _check_dali("executor='dali'", device)
    if request.executor != "auto":
        return request.executor, "asked for"
    place, place_reason = decoding
    if place == DEVICE:
        if device != "cpu":
            place_reason = "images are decoded on the GPU"
        return "dali", place_reason
    if device != "cpu":
        if place == HOST:
            return "array", "images are decoded on the host"
        return "array", "no op needs an image codec"
    of_numpy = next((type(graph.ops[place]).__name__ for place in graph.for_numpy), None)
    if of_numpy is None:
        return "array", "it is the faster one on a CPU"
    return "array", f"{of_numpy} runs on NumPy alone"


def _place_to_decode(
    graph: Graph, device: str, request: ExecutorRequest, before_numpy: Sequence[int]
) -> tuple[str, str]:
    """Return where images are decoded, and why; "" and "" where no op decodes any."""
    decoding = [place for place, op in enumerate(graph.ops) if op.traits.codec]
    if not decoding:
        return "", ""
    if request.decode == DEVICE:
        _check_on_device(graph, device, request, before_numpy)
    if set(decoding) <= set(before_numpy):
        if request.decode == HOST:
            return HOST, "asked for"
        ops = [graph.ops[place] for place in graph.for_numpy]
        behind = next((type(op).__name__ for op in ops if not op.traits.codec), None)
        if behind is None:
            return HOST, "the core alone decodes in this mode"
        return HOST, f"{behind} runs on NumPy, on the host"
    if device == "cpu":
        return _place_on_cpu(graph, request)
    if request.decode == DEVICE or (request.decode == "auto" and request.executor == "dali"):
        _check_dali(f"gl.ops.Decode on {device}", device)
        return DEVICE, "asked for"
    if request.decode == HOST or request.executor == "array":
        return HOST, "asked for"
    if codec() is None:
        _check_dali(f"gl.ops.Decode on {device}", device)
    return place_by_rule(_conditions(graph, device, request))


def _conditions(graph: Graph, device: str, request: ExecutorRequest) -> Conditions:
    """Return the conditions of the rule."""
    on_host = _host_places(graph, device, HOST)
    if codec() is not None:
        rows = ArrayRowExecutor(graph.part(on_host))
    else:
        rows = None
    return Conditions(
        has_dali=_has_dali(),
        codec="" if rows is None else rows.decoder,
        has_one_size=all(field.uniform for field in _images_behind(graph, on_host, request.names)),
        wants_hardware=asks_for_hardware(graph.ops),
        num_cores=request.num_cores,
        endings=request.endings,
        host_fault=str(trials.whole_failure("array", "cpu") or ""),
        device_fault=str(trials.whole_failure("dali", device) or ""),
    )


def _place_on_cpu(graph: Graph, request: ExecutorRequest) -> tuple[str, str]:
    """Return where images are decoded for a CPU: by the core, or by DALI as its device."""
    if request.decode == HOST or request.executor == "array":
        return HOST, "asked for"
    if request.executor == "dali":
        return DEVICE, "asked for"
    if any(op.traits.execution.needs_dali for op in graph.ops):
        return DEVICE, "DALI runs an op behind it"
    # Only where the other one is sound: a failure of both says something about the machine, not
    # about the choice.
    failure = trials.whole_failure("array", "cpu")
    if _has_dali() and failure and not trials.whole_failure("dali", "cpu"):
        _warn(f"DALI decodes images: {failure}")
        return DEVICE, str(failure)
    if codec() is None and _has_dali():
        return (
            DEVICE,
            "neither nvImageCodec nor Pillow is installed, which the array executor decodes with",
        )
    return HOST, "it is the faster way on a CPU"


def _check_on_device(
    graph: Graph, device: str, request: ExecutorRequest, before_numpy: Sequence[int]
) -> None:
    """Raise ``DeviceError`` if images cannot be decoded on the device, as was asked for.

    Args:
        graph: the ops.
        device: ``"cpu"`` or ``"gpu:N"``.
        request: the wishes of the user.
        before_numpy: the places of the ops that run on NumPy, and of those before them.
    """
    call, remedy = f"decode='device' on {device}", "leave decode= out, or write decode='host'"
    if device == "cpu":
        cause = "a CPU is the host; by itself the core decodes there, and with executor='dali' DALI does"
        raise DeviceError(call, cause=cause, remedy="leave decode= out, or write device='gpu'")
    if request.executor == "array":
        cause = "CuPy does not decode images, DALI does"
        raise DeviceError(
            f"{call} with executor='array'", cause=cause, remedy=f"leave executor= out; or {remedy}"
        )
    # One that decodes labels, say, runs on NumPy itself, beside images that DALI decodes.
    place = next(
        (p for p in before_numpy if graph.ops[p].traits.codec and p not in graph.for_numpy), None
    )
    if place is not None:
        behind = next(graph.ops[later] for later in graph.for_numpy if later > place)
        if calls_python(behind):
            remedy += (
                "; a function that takes arrays of CuPy is gl.ops.Python(function, on_device=True)"
            )
        raise DeviceError(
            f"{call}, with {type(behind).__name__} behind {type(graph.ops[place]).__name__}",
            cause="that op runs on NumPy, on the host, and what is before it does, too",
            remedy=remedy,
        )


def heed_failures(graph: Graph, choice: Choice, device: str) -> tuple[Graph, str]:
    """Return the graph as it works on this machine, and the findings of `gpuload doctor`, "" if
    nothing of concern.

    Where the executor fails at regions of images, it is the graph that decodes whole images, with
    the same pixels.
    """
    if choice.decode == HOST:
        name, place = ("array", "cpu")
    else:
        name, place = ("dali", device)
    if choice.decode:
        failures = trials.load(name, place)
    else:
        failures = ()
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


def split_ops(graph: Graph, choice: Choice, device: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the places of the ops that run on rows on the host, and of those that run on whole
    batches behind them.

    Args:
        graph: the ops.
        choice: from ``choose``.
        device: ``"cpu"`` or ``"gpu:N"``.
    """
    every = range(len(graph.ops))
    # On a CPU the array executor runs in the workers; nothing is left for whole batches.
    if choice.on_rows(device):
        on_host = tuple(every)
    else:
        on_host = _host_places(graph, device, choice.decode)
    return on_host, tuple(place for place in every if place not in on_host)


def _host_places(graph: Graph, device: str, decode: str) -> tuple[int, ...]:
    """Return the places of the ops that run on the host before a batch goes to DALI or to a GPU.

    On a CPU, ops for NumPy behind an operator of DALI on their fields are not among them: they run
    behind DALI.
    """
    if device == "cpu":
        behind = graph.behind_dali
    else:
        behind = frozenset[int]()
    if decode == HOST:
        to_size = graph.to_one_size
    else:
        to_size = ()
    return graph.with_ops_before(
        [*(place for place in graph.for_numpy if place not in behind), *to_size]
    )


def part_behind(graph: Graph, on_host: Sequence[int]) -> Graph:
    """Return the graph of the ops behind those on the host."""
    rest = [place for place in range(len(graph.ops)) if place not in on_host]
    return graph.part(rest, graph.part(on_host).spec_out)


def decoding_line(
    graph: Graph, on_host: Sequence[int], choice: Choice, device: str, batch_names: Sequence[str]
) -> dict[str, str]:
    """Return the line of ``describe()`` that says where images are decoded, and how much is
    uploaded; {} without images.

    Args:
        graph: the ops.
        on_host: the places of those that run on the host.
        choice: from ``choose``.
        device: ``"cpu"`` or ``"gpu:N"``.
        batch_names: the fields of a batch.
    """
    if not choice.decode:
        return {}
    if choice.decode == DEVICE:
        if device == "cpu":
            place = "the host"
        else:
            place = device
        return {"decoding": f"on {place}, by DALI ({choice.decode_reason})"}
    host = graph.part(on_host)
    names, images = _image_names(host), _images_behind(graph, on_host, batch_names)
    ops = " ".join(
        type(op).__name__
        for op, on in zip(host.ops, host.outputs, strict=True)
        if names.intersection(on)
    )
    if ArrayRowExecutor(host).decoder == "core":
        decoder = "the core"
    else:
        decoder = "Python"
    sizes = [prod(field.fixed_shape) * field.dtype.itemsize for field in images if field.uniform]
    size = "images of sizes of their own"
    if len(sizes) == len(images):
        size = f"{sum(sizes):,} bytes an image"
    way = "for DALI" if device == "cpu" else "uploaded"
    line = f"on the host, by {decoder} ({codec()}): {ops}; {size} {way} ({choice.decode_reason})"
    return {"decoding": line}


def _images_behind(
    graph: Graph, on_host: Sequence[int], batch_names: Sequence[str] | None
) -> list[Field]:
    """Return the fields of images that the ops on the host leave to those behind them, or to a
    batch."""
    host, behind = graph.part(on_host), part_behind(graph, on_host)
    if batch_names is None:
        batch_names = host.spec_out.names
    later_names = behind.touched.union(batch_names)
    return [host.spec_out[name] for name in _image_names(host) & later_names]


def _image_names(graph: Graph) -> set[str]:
    """Return the fields of images that ops of a graph decode, and of their copies."""
    names: set[str] = set()
    for op, on, outputs in zip(graph.ops, graph.targets, graph.outputs, strict=True):
        names.update(name for name in outputs if op.traits.codec or original(op, name, on) in names)
    return names


def in_dali(graph: Graph, device: str) -> tuple[int, ...]:
    """Return the places of the ops that DALI runs; the others run behind it, in their array forms
    on the same device.

    These are an op that has no form in DALI and all ops behind it on its fields. On a GPU also the
    ops on fields that no op needs DALI for, as labels beside images: CuPy has them there already.

    Args:
        graph: ops that run on whole batches.
        device: ``"cpu"`` or ``"gpu:N"``.

    Raises:
        SpecError: an op that only DALI runs is behind one that it does not run, or it runs none.
    """
    if device != "cpu":
        array_fields = _without_dali(graph)
    else:
        array_fields = set()
    places, cause = [], dict.fromkeys(array_fields, "no op before it needs DALI")
    for place, op in enumerate(graph.ops):
        names = graph.outputs[place]
        before = next((cause[name] for name in names if name in cause), None)
        if has_dali_form(op) and before is None:
            places.append(place)
            continue
        if op.traits.codec or op.traits.execution.needs_dali:
            raise SpecError(
                f"{op} behind an op without a form in DALI",
                cause=f"{before}; that one runs in its array form, behind all that DALI runs",
                remedy=f"put {type(op).__name__} first, or give the other op lower(), its form "
                "in DALI",
            )
        cause |= dict.fromkeys(names, before or f"{op} has no lower()")
    if graph.ops and not places:
        raise SpecError(
            f"executor='dali' for {', '.join(map(str, graph.ops))}"[:300],
            cause=f"{next(iter(cause.values()))}, its form in DALI, and what is behind it runs "
            "in array forms, too",
            remedy="leave executor= out",
        )
    return tuple(places)


def _without_dali(graph: Graph) -> set[str]:
    """Return the fields that no op needs DALI for, neither on them nor on fields that share an op
    with them.

    Where no op at all needs DALI, it was asked for, and these are none.
    """
    dali_fields = {
        name
        for op, on in zip(graph.ops, graph.outputs, strict=True)
        if op.traits.codec or op.traits.execution.needs_dali
        for name in on
    }
    # To a fixed point: an image and its mask share a crop, the mask and a map share another op, and
    # so on.
    while (
        partners := {name for on in graph.outputs if dali_fields.intersection(on) for name in on}
        - dali_fields
    ):
        dali_fields |= partners
    if dali_fields:
        return {name for on in graph.outputs for name in on} - dali_fields
    return set()


def _check_host(graph: Graph, on_host: Sequence[int], device: str) -> None:
    """Raise an error if one of the ops on the host cannot run on NumPy there."""
    ops = [graph.ops[place] for place in on_host]
    for place in on_host:
        op, behind = (
            graph.ops[place],
            graph.ops[next(later for later in (*graph.for_numpy, place) if later >= place)],
        )
        if not op.traits.execution.needs_numpy and device != "cpu":
            _check_stays(
                op, graph.before(place), graph.specs[place].only(graph.targets[place]), device
            )
        if op.traits.execution.needs_dali:
            raise SpecError(
                f"{behind} behind {op}",
                cause="the first runs on NumPy, on the host, before a batch goes to DALI on "
                f"{device}; DALI alone runs "
                "the second",
                remedy=f"put {type(behind).__name__} before {type(op).__name__}; or write "
                "gl.ops.Python(function, "
                "on_device=True), where the function takes arrays of CuPy; or device='cpu', "
                "where the first runs "
                "behind DALI",
            )
    if any(op.traits.codec for op in ops) and codec() is None:
        raise _no_codec()


def _check_stays(op: Op, before: Spec, after: Spec, device: str) -> None:
    """Raise ``DeviceError`` if an op takes a field away from a GPU, for its dtype is for the host
    alone."""
    field = next(
        (field for field in after if field.host_only and not before[field.name].host_only), None
    )
    if field is not None:
        raise DeviceError(
            f"{op} on {device}",
            cause=f"field {field.name!r} would stay on the host, for no array library on a GPU "
            f"has {field.dtype}",
            remedy="leave the op out, and cast in the training step: tf.cast(images, "
            "tf.bfloat16), say",
        )


def _no_codec() -> MissingPackageError:
    return missing_package("pillow", needed_for="gl.ops.Decode on the host", extra="images")


def _check_dali(user: str, device: str) -> None:
    """Raise ``MissingPackageError`` if DALI is not installed, for its user."""
    if not _has_dali():
        raise missing_package(
            "nvidia-dali", needed_for=user, remedy=driver.install_packages(device)
        )


def _has_dali() -> bool:
    return signalsafe.is_installed("nvidia.dali")


def runs_on_rows(name: str, device: str) -> bool:
    """Return True if an executor of this name runs on rows on a device, False if it runs on whole
    batches."""
    return name == "array" and device == "cpu"


def on_rows(graph: Graph) -> RowExecutor:
    """Return a new executor on rows on the host."""
    return ArrayRowExecutor(graph)


def make(
    name: str, graph: Graph, *, device: str, batch_size: int, num_threads: int
) -> RowExecutor | BatchExecutor:
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
        dali: Any = importlib.import_module(
            "gpuload.executors.dali"
        )  # the package nvidia.dali is large
        words: dict[str, Any] = {
            "device": device,
            "batch_size": batch_size,
            "num_threads": num_threads,
        }
        places = in_dali(graph, device)
        if len(places) == len(graph.ops):
            executor: BatchExecutor = dali.DaliExecutor(graph, **words)
        else:
            executor = dali.Chain(graph, places, **words)
        return executor
    if runs_on_rows(name, device):
        return on_rows(graph)
    return ArrayBatchExecutor(graph, device=device)
