"""Device: which one is used and why; the arrays, pinned memory and synchronisation of CuPy, which it alone imports."""

from __future__ import annotations

import importlib
import importlib.util
import re
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import DeviceError, SpecError, missing_package

PAGE_BYTES = 4096


def choose(device: str) -> tuple[str, str]:
    """Return the device to use, ``"cpu"`` or ``"gpu:N"``, and why.

    Raises:
        SpecError: ``device`` is not "auto", "cpu", "gpu" or "gpu:N".
        DeviceError: a GPU was asked for and cannot be used; the cause is named.
    """
    if device == "cpu":
        return "cpu", "asked for"
    if device == "auto":
        problem = gpu_problem(0)
        return ("cpu", f"no usable GPU: {problem}") if problem else ("gpu:0", "a GPU is there")
    match = re.fullmatch(r"gpu(?::(\d+))?", device) if isinstance(device, str) else None
    if match is None:
        raise SpecError(f"device = {device!r}", cause="it is not known", remedy="use 'auto', 'cpu', 'gpu' or 'gpu:N'")
    number = int(match[1] or 0)
    if problem := gpu_problem(number):
        raise DeviceError(
            f"device = {device!r}",
            cause=problem,
            remedy='install an NVIDIA driver and pip install "gpuload[cuda12]", or use device="cpu"',
        )
    return f"gpu:{number}", "asked for"


def gpu_problem(number: int) -> str | None:
    """Return why GPU ``number`` cannot be used, or None if it can."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed"
    try:
        count = int(cupy().cuda.runtime.getDeviceCount())
    except Exception as error:  # CuPy raises its own types for a missing driver, a missing library, an old driver
        return f"CuPy finds no working CUDA driver ({type(error).__name__}: {str(error).splitlines()[0]})"
    return None if number < count else f"there are {count} GPUs, numbered from 0"


@cache
def cupy() -> ModuleType:
    """Return the module ``cupy``; raises ``MissingPackageError`` where it is not installed."""
    try:
        return importlib.import_module("cupy")
    except ImportError:
        raise missing_package("cupy", needed_for="a GPU", extra="cuda12") from None


def xp(device: str) -> ModuleType:
    """Return the array library of a device: NumPy or CuPy."""
    return np if device == "cpu" else cupy()


def number(device: str) -> int:
    """Return N of ``"gpu:N"``."""
    return int(device.partition(":")[2])


def page_aligned(num_bytes: int) -> NDArray[np.uint8]:
    """Return host memory that begins at a page, uint8 ``[num_bytes]``."""
    memory = np.empty(num_bytes + PAGE_BYTES, np.uint8)
    begin = -memory.ctypes.data % PAGE_BYTES
    return memory[begin : begin + num_bytes]


def pinned(num_bytes: int) -> NDArray[np.uint8]:
    """Return page-locked host memory for fast copies to a GPU, uint8 ``[num_bytes]``."""
    memory = cupy().cuda.alloc_pinned_memory(max(num_bytes, 1))
    return np.frombuffer(memory, np.uint8, num_bytes)


def upload(host: NDArray[Any], device: str) -> Any:
    """Return a copy of a C-contiguous host array on a GPU; asynchronous where the host memory is pinned."""
    with cupy().cuda.Device(number(device)):
        on_gpu = cupy().empty(host.shape, host.dtype)
        on_gpu.set(host, stream=cupy().cuda.get_current_stream())
        return on_gpu


def synchronize(device: str) -> None:
    """Wait until the GPU has done all work of the current stream."""
    with cupy().cuda.Device(number(device)):
        cupy().cuda.get_current_stream().synchronize()
