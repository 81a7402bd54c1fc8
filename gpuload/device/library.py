"""The array libraries of devices: NumPy, and CuPy, which this file alone imports.

Source   CuPy 13 and 14: streams https://docs.cupy.dev/en/stable/user_guide/cuda_api.html
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from gpuload import driver, signalsafe
from gpuload.errors import missing_package


@cache
def cupy() -> ModuleType:
    """Return the module ``cupy``; raises ``MissingPackageError`` where it is not installed."""
    try:
        return signalsafe.import_package("cupy")
    except ImportError as error:
        raise missing_package(
            "cupy", needed_for="a GPU", remedy=driver.install_packages(), error=error
        ) from None


def compiler() -> Any:
    """Return CuPy's door to NVRTC, the compiler of kernels.

    Raises:
        Exception: NVRTC cannot be loaded; cuda.pathfinder and CuPy have several types for that.
    """
    return signalsafe.import_package("cupy_backends.cuda.libs.nvrtc")


def xp(device: str) -> ModuleType:
    """Return the array library of a device: NumPy or CuPy."""
    return np if device == "cpu" else cupy()


def compiles(xp: ModuleType) -> bool:
    """Return True if an array library compiles kernels of CUDA, as CuPy does and NumPy does not."""
    return hasattr(xp, "RawKernel")


def num_gpus() -> int:
    """Return how many GPUs this process sees."""
    return int(cupy().cuda.runtime.getDeviceCount())


def number(device: str) -> int:
    """Return N of ``"gpu:N"``."""
    return int(device.partition(":")[2])


def card_name(device: str) -> str:
    """Return the name of the GPU of ``"gpu:N"``, as its maker has it."""
    name = cupy().cuda.runtime.getDeviceProperties(number(device))["name"]
    return name.decode() if isinstance(name, bytes) else str(name)


def synchronize(device: str) -> None:
    """Wait until the GPU has done all work of the current stream."""
    with cupy().cuda.Device(number(device)):
        cupy().cuda.get_current_stream().synchronize()


def nvtx_ranges() -> tuple[Callable[[str], object], Callable[[], object]] | None:
    """Return the functions that begin and end a range of NVTX in a thread; None without CuPy."""
    try:
        nvtx = cupy().cuda.nvtx
    except (ImportError, AttributeError):
        return None
    return nvtx.RangePush, nvtx.RangePop
