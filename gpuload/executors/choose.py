"""Which executor runs a graph, and why."""

from __future__ import annotations

import importlib
from typing import Any

from gpuload.errors import DeviceError, SpecError
from gpuload.executors.array import ArrayBatchExecutor, ArrayRowExecutor
from gpuload.executors.base import BatchExecutor, RowExecutor
from gpuload.images.decode import codec
from gpuload.ops.graph import Graph

NAMES = ("auto", "array", "dali")


def choose(wanted: str, graph: Graph, device: str) -> tuple[str, str]:
    """Return the name of the executor for a graph on a device, and why.

    Raises:
        SpecError: no such executor.
        DeviceError: the array executor is asked to decode images on a GPU.
    """
    if wanted not in NAMES:
        raise SpecError(f"executor = {wanted!r}", cause="it is not known", remedy=f"use one of {NAMES}")
    decodes = any(op.codec for op in graph.ops)
    if not graph.ops:
        return "array", "there are no ops to run"
    if wanted == "array" and decodes and device != "cpu":
        raise DeviceError(
            f"executor = 'array' on {device}",
            cause="CuPy cannot decode images",
            remedy="use executor='dali' (or 'auto'), or device='cpu'",
        )
    if wanted != "auto":
        return wanted, "asked for"
    if device != "cpu":
        return ("dali", "images are decoded on the GPU") if decodes else ("array", "no op needs an image codec")
    if decodes and codec() is None:
        return "dali", "neither nvImageCodec nor Pillow is installed, which the array executor decodes with"
    return "array", "it is the faster one on a CPU"


def runs_on_rows(name: str, device: str) -> bool:
    """Return True if an executor of this name runs on rows on a device, False if it runs on whole batches."""
    return name == "array" and device == "cpu"


def make(name: str, graph: Graph, *, device: str, batch_size: int, num_threads: int) -> RowExecutor | BatchExecutor:
    """Return a new executor; its ``kind``, which ``runs_on_rows`` foretells, says what it runs on.

    Args:
        name: ``"array"`` or ``"dali"``, as ``choose`` says.
        graph: what it runs.
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
        made: BatchExecutor = dali.DaliExecutor(graph, device=device, batch_size=batch_size, num_threads=num_threads)
        return made
    if runs_on_rows(name, device):
        return ArrayRowExecutor(graph)
    return ArrayBatchExecutor(graph, device=device)
