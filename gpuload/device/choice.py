"""Choice: which device is used and why; why a GPU cannot be used."""

from __future__ import annotations

import os
import re
from typing import Any

from gpuload import driver, signalsafe
from gpuload.device.library import compiler, cupy
from gpuload.device.problems import Problem, meaning
from gpuload.errors import DeviceError, SpecError, install_command

MAJOR, MINOR = 75, 76  # cudaDevAttrComputeCapabilityMajor and Minor


def choose(device: str) -> tuple[str, str]:
    """Return the device to use, ``"cpu"`` or ``"gpu:N"``, and why.

    Raises:
        SpecError: ``device`` is not "auto", "cpu", "gpu" or "gpu:N".
        DeviceError: a GPU was asked for and cannot be used; the cause is named.
    """
    if device == "cpu":
        return "cpu", "asked for"
    if device == "auto":
        if problem := gpu_problem(0):
            return "cpu", f"no usable GPU: {problem.cause}"
        return "gpu:0", "a GPU is there"
    match = re.fullmatch(r"gpu(?::(\d+))?", device) if isinstance(device, str) else None
    if match is None:
        raise SpecError(
            f"device = {device!r}",
            cause="it is not known",
            remedy="use 'auto', 'cpu', 'gpu' or 'gpu:N'",
        )
    number = int(match[1] or 0)
    if problem := gpu_problem(number):
        raise DeviceError(
            f"device = {device!r}",
            cause=problem.cause,
            remedy=f'{problem.remedy}, or use device="cpu"',
        )
    return f"gpu:{number}", "asked for"


def gpu_problem(number: int) -> Problem | None:
    """Return why GPU ``number`` cannot be used, or None if it can."""
    # An exception of a signal handler is not a fault of the GPU.
    return signalsafe.call(lambda: _gpu_problem(number))


def _gpu_problem(number: int) -> Problem | None:
    if not signalsafe.is_installed("cupy"):
        return Problem("CuPy is not installed", driver.install_packages())
    try:
        runtime = cupy().cuda.runtime
        count = int(runtime.getDeviceCount())
    # CuPy raises its own types for a missing driver, a missing library, an old driver.
    except Exception as error:
        return _driver_problem(error)
    if number >= count:
        cause = f"the driver shows {count} GPUs, numbered from 0"
        if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
            cause += f", CUDA_VISIBLE_DEVICES={visible}"
        names = "'gpu:0'" if count == 1 else f"'gpu:0' to 'gpu:{count - 1}'"
        return Problem(cause, f"use device={names}")
    return _compiler_problem(runtime, number)


def _driver_problem(error: Exception) -> Problem:
    """Return the problem that an error of the first call of CUDA shows."""
    text = f"({type(error).__name__}: {(str(error).splitlines() or [''])[0]})"
    try:
        runtime = cupy().cuda.runtime
        driver_version = int(runtime.driverGetVersion())
        runtime_version = int(runtime.runtimeGetVersion())
    except Exception:  # CuPy itself cannot be imported, or finds none of CUDA's libraries
        return Problem(
            f"CuPy cannot be used {text}", f"{driver.install_packages()}, into a new environment"
        )
    if driver_version == 0:
        remedy = (
            "install an NVIDIA driver, and start a container with --gpus all; nvidia-smi shows "
            "whether it is there"
        )
        return Problem(f"CuPy finds no CUDA driver {text}", remedy)
    if driver_version // 1000 < runtime_version // 1000:
        driver_text, cupy_text = map(driver.version_text, (driver_version, runtime_version))
        remedy = "update the NVIDIA driver"
        if driver_version // 1000 == 12:
            remedy += f", or {install_command('cuda12')}"
        cause = f"the driver supports CUDA {driver_text}, and CuPy is built for CUDA {cupy_text}"
        return Problem(cause, remedy)
    if "NoDevice" in text:
        remedy = "look at nvidia-smi and at CUDA_VISIBLE_DEVICES, which may hide every GPU"
        return Problem(f"the CUDA driver shows no GPU that can be used {text}", remedy)
    problem = meaning(text)
    return Problem(f"{problem.cause} {text}", problem.remedy)


def _compiler_problem(runtime: Any, number: int) -> Problem | None:
    """Return why no kernel can be compiled for a GPU: CuPy would fail in the middle of a batch."""
    try:
        version, archs = compiler().getVersion(), compiler().getSupportedArchs()
        major, minor = (runtime.deviceGetAttribute(part, number) for part in (MAJOR, MINOR))
        card = 10 * major + minor
    except runtime.CUDARuntimeError as error:
        text = str(error).splitlines()[0]
        return Problem(f"{meaning(text).cause}: {text}", meaning(text).remedy)
    except Exception as error:
        text = f"({type(error).__name__}: {(str(error).splitlines() or [''])[0]})"
        remedy = 'pip install "cupy-cuda13x[ctk]>=14", or "cupy-cuda12x[ctk]>=14" for CUDA 12'
        # Before CuPy 14 it does not look into NVIDIA's packages.
        if int(cupy().__version__.partition(".")[0]) < 14:
            remedy += "; this CuPy finds libnvrtc of a CUDA toolkit, or in LD_LIBRARY_PATH"
        return Problem(f"CuPy finds no compiler, NVRTC {text}", remedy)
    if card < min(archs):
        compiles = f"NVRTC {version[0]}.{version[1]} compiles for sm_{min(archs)} and later"
        cause = f"{compiles}, and the GPU is sm_{card}"
        return Problem(cause, f"take CuPy for CUDA 12: {install_command('cuda12')}")
    return None
