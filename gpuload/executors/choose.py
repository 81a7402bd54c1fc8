"""Which executor runs a graph, and why."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from gpuload.errors import DeviceError, SpecError
from gpuload.executors.base import Executor, Graph

NAMES = ("auto", "array", "dali")


def choose(wanted: str, graph: Graph, device: str) -> tuple[str, str]:
    """Return the name of the executor for a graph on a device, and why.

    Raises:
        SpecError: no such executor.
        DeviceError: the array executor is asked to decode images on a GPU.
    """
    if wanted not in NAMES:
        raise SpecError(f"executor = {wanted!r}", cause="it is not known", remedy=f"use one of {NAMES}")
    codec = any(op.codec for op in graph.ops)
    if not graph.ops:
        return "array", "there are no ops to run"
    if wanted == "array" and codec and device != "cpu":
        raise DeviceError(
            f"executor = 'array' on {device}",
            cause="CuPy cannot decode images",
            remedy="use executor='dali' (or 'auto'), or device='cpu'",
        )
    if wanted != "auto":
        return wanted, "asked for"
    if device != "cpu":
        return ("dali", "images are decoded on the GPU") if codec else ("array", "no op needs an image codec")
    if codec and not _codecs_are_there():
        return "dali", "OpenCV, simplejpeg or Pillow is not installed, which the array executor decodes with"
    return "array", "it is the faster one on a CPU"


def make(name: str, graph: Graph, *, device: str, batch_size: int, num_threads: int) -> Executor:
    """Return a new executor.

    Raises:
        MissingPackageError: its package is not installed; names the extra.
    """
    module: Any = importlib.import_module(f"gpuload.executors.{name}")
    if name == "array":
        executor: Executor = module.ArrayExecutor(graph, device=device)
        return executor
    dali: Executor = module.DaliExecutor(graph, device=device, batch_size=batch_size, num_threads=num_threads)
    return dali


def _codecs_are_there() -> bool:
    return all(importlib.util.find_spec(package) for package in ("cv2", "simplejpeg", "PIL"))
