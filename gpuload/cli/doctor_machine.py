"""Python, cards, cores, memory and limits of this machine: the part that this process may use."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator

import numpy as np

import gpuload as gl
from gpuload import core, device, driver, threads
from gpuload.cli.doctor_base import ABSENT, OK, PROBLEM, Diagnosis, has_driver
from gpuload.ops.value.decode import REGIONS_ON_GPU
from gpuload.storage import direct, memory

FEW_FILES, SMALL_SHARED_BYTES, SMALL_MEMORY_BYTES = 1024, 1 << 27, 1 << 30  # less is a problem
HARDWARE_DECODERS = (
    (8, 0),
    (9, 0),
    (10, 0),
    (10, 3),
)  # compute capabilities of A100, H100, B200, B300


def diagnose_environment() -> Iterator[Diagnosis]:
    """Yield a line each for gpuload, Python, NumPy and the compiled core."""
    yield Diagnosis("gpuload", "gpuload", OK, gl.__version__)
    yield Diagnosis(
        "gpuload", "Python", OK, f"{platform.python_version()}, {platform.platform(terse=True)}"
    )
    yield Diagnosis("gpuload", "NumPy", OK, np.__version__)
    if core.native is not None:
        yield Diagnosis("gpuload", "core", OK, core.how())
    else:
        remedy = "install a C++ compiler (apt install g++), then: pip install --force-reinstall --no-deps gpuload"
        if os.environ.get(core.SWITCH) == "0":
            remedy = f"unset {core.SWITCH}"
        yield Diagnosis("gpuload", "core", PROBLEM, core.how(), remedy)


def diagnose_gpu() -> Iterator[Diagnosis]:
    """Yield the lines of the driver, of each card, and of the ways to it."""
    section = "GPU"
    problem = device.gpu_problem(0)
    if problem is not None:
        if has_driver():
            yield Diagnosis(section, "GPU", PROBLEM, problem.cause, problem.remedy)
        else:
            yield Diagnosis(section, "GPU", ABSENT, problem.cause)
        return
    runtime = device.cupy().cuda.runtime
    of_driver, of_cupy = (
        driver.version_text(int(number))
        for number in (runtime.driverGetVersion(), runtime.runtimeGetVersion())
    )
    yield Diagnosis(
        section, "driver", OK, f"for CUDA up to {of_driver}; CuPy brings CUDA {of_cupy}"
    )
    for number in range(int(runtime.getDeviceCount())):
        properties = runtime.getDeviceProperties(number)
        problem = device.gpu_problem(number)
        about = (
            f"{properties['name'].decode()}, sm_{properties['major']}{properties['minor']}, "
            f"{properties['totalGlobalMem'] / 1e9:.0f} GB"
        )
        if (properties["major"], properties["minor"]) in HARDWARE_DECODERS:
            about += "; a hardware decoder for JPEG, for gl.ops.Decode(hw_decoder_load=1)"
        if problem is not None:
            yield Diagnosis(
                section, f"gpu:{number}", PROBLEM, f"{about}: {problem.cause}", problem.remedy
            )
        else:
            yield Diagnosis(section, f"gpu:{number}", OK, about)
    yield Diagnosis(section, "regions of images", OK, REGIONS_ON_GPU)
    is_loaded = os.path.isdir("/proc/driver/nvidia-fs")
    about = (
        f"its driver is {'' if is_loaded else 'not '}loaded; only gl.Loader(direct=True) uses it"
    )
    if not direct.is_installed():
        about += ", which needs kvikio"
    yield Diagnosis(section, "GPUDirect Storage", OK, about)


def diagnose_machine() -> Iterator[Diagnosis]:
    """Yield the lines of cores, memory, open files and shared memory."""
    section, cores = "machine", threads.num_cores()
    present = os.cpu_count() or 1
    about = f"{cores}"
    if cores < present:
        about += f" of {present}: affinity, a container's limit or OMP_NUM_THREADS leaves no more"
    yield Diagnosis(section, "cores", OK, about)
    cache_bytes = memory.cache_bytes()
    if cache_bytes:
        about = f"{cache_bytes / 1e9:.1f} GB of files will stay in memory once read"
        remedy = "give the container more memory (docker run --memory), or end other programs"
        yield _bounded(section, "memory", about, remedy, cache_bytes >= SMALL_MEMORY_BYTES)
    limit_bytes, present_bytes = (
        memory.limit_bytes(),
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    )
    if limit_bytes < present_bytes:
        about = f"{limit_bytes / 1e9:.1f} GB of {present_bytes / 1e9:.1f}: a container's or another control group's"
        yield Diagnosis(section, "memory limit", OK, about)
    yield from _open_files(section)
    if os.path.isdir("/dev/shm"):
        size = shutil.disk_usage("/dev/shm").total
        about = f"{size / 1e6:,.0f} MB in /dev/shm"
        remedy = "docker run --shm-size=1g, or --ipc=host: workers of PyTorch need it"
        yield _bounded(section, "shared memory", about, remedy, size >= SMALL_SHARED_BYTES)


def _bounded(section: str, subject: str, about: str, remedy: str, is_enough: bool) -> Diagnosis:
    """Return the line of a limit, with its remedy if it is not enough."""
    if is_enough:
        return Diagnosis(section, subject, OK, about)
    return Diagnosis(section, subject, PROBLEM, about, remedy)


def _open_files(section: str) -> Iterator[Diagnosis]:
    try:
        import resource  # not on Windows
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft_limit, hard_limit = (
        "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}" for limit in (soft, hard)
    )
    about = f"{soft_limit} at a time, {hard_limit} at most"
    remedy = f"ulimit -n {hard_limit.replace(',', '')}"
    is_enough = soft == resource.RLIM_INFINITY or soft >= FEW_FILES
    yield _bounded(section, "open files", about, remedy, is_enough)
