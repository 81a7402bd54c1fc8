"""The NVIDIA driver: the CUDA that it supports, and the command that installs the packages which
fit it.

The driver's own library is asked. The call needs no GPU and starts no CUDA: a process may fork
afterwards.

Source  cuDriverGetVersion, CUDA Driver API, section Version Management.
"""

from __future__ import annotations

import ctypes
import os

from gpuload.errors import install_command

LIBRARY = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"


def cuda_version() -> int:
    """Return the latest CUDA that the driver supports, 12040 for 12.4; 0 without a driver."""
    number = ctypes.c_int(0)
    try:
        failure = ctypes.CDLL(LIBRARY).cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):  # no such library, or another one of that name
        return 0
    if failure:
        return 0
    return number.value


def version_text(number: int) -> str:
    """Return a version of CUDA as people write it, "13.0" for 13000."""
    return f"{number // 1000}.{number % 1000 // 10}"


def install_packages(device: str = "gpu") -> str:
    """Return the command that installs CuPy, DALI and TensorFlow for a device of this machine.

    Args:
        device: ``"cpu"``, or a GPU: packages for it must fit the driver. Where no driver can be
            asked, as while an image of a container is built, the text says when to take which.
    """
    if device == "cpu":
        return install_command("cpu")
    version = cuda_version()
    if not version:
        return (
            f'{install_command("cuda12")}, or "gpuload[cuda13]" if nvidia-smi shows CUDA 13 '
            "and no TensorFlow is needed"
        )
    if version < 12000:
        driver = f"the NVIDIA driver, which is for CUDA {version_text(version)}"
        return f"update {driver}, then {install_command('cuda12')}"
    if version < 13000:
        return install_command("cuda12")
    # TensorFlow 2.21 is built for CUDA 12 alone, which a driver for CUDA 13 runs, too.
    return f'{install_command("cuda13")}, or "gpuload[cuda12]" for TensorFlow'
