"""Problems: the meaning of errors of CUDA, and remedies."""

from __future__ import annotations

from typing import NamedTuple

from gpuload.errors import DeviceError


class Problem(NamedTuple):
    """The reason why a GPU cannot be used, and a remedy."""

    cause: str
    remedy: str


OUT_OF_MEMORY = "OutOfMemory", "MemoryAllocation", "OUT_OF_MEMORY"
# The meaning of errors of CUDA, by parts of their names.
PROBLEMS = {
    OUT_OF_MEMORY: Problem(
        "the GPU has no memory left",
        "nvidia-smi shows which processes have it; a smaller batch_size or prefetch needs less",
    ),
    ("DevicesUnavailable", "DEVICE_UNAVAILABLE"): Problem(
        "the GPU is not available to this process",
        "nvidia-smi lists its users; in the mode 'Exclusive Process' (nvidia-smi -q -d COMPUTE) "
        "only one process can",
    ),
    ("SystemNotReady", "SYSTEM_NOT_READY"): Problem(
        "the machine's GPUs are not ready",
        "machines with NVSwitch need a running nvidia-fabricmanager, of the driver's version",
    ),
    (
        "SystemDriverMismatch",
        "DRIVER_MISMATCH",
        "CompatNotSupported",
        "COMPAT_NOT_SUPPORTED",
    ): Problem(
        "CUDA's driver library does not fit the driver of the kernel",
        "restart the machine after an update of the driver; in a container, take the driver's "
        "library from the host and not from /usr/local/cuda/compat",
    ),
}
OTHER_PROBLEM = Problem(
    "a call of CUDA failed",
    "nvidia-smi and the kernel's log (dmesg, Xid) say how the GPU is; CUDA works again in a new "
    "process",
)


def failure(error: BaseException) -> BaseException:
    """Return the error to raise for one that CuPy raised, a ``DeviceError``; any other as it is."""
    if not type(error).__module__.startswith("cupy"):
        return error
    text = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    problem = meaning(text)
    translation = DeviceError(problem.cause, cause=text, remedy=problem.remedy)
    translation.__cause__ = error
    return translation


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if CUDA had no memory on the GPU for the call that raised an error."""
    text = f"{type(error).__name__}: {error}"
    return type(error).__module__.startswith("cupy") and any(name in text for name in OUT_OF_MEMORY)


def meaning(text: str) -> Problem:
    """Return the meaning of an error of CUDA, which has its name in its text."""
    return next(
        (problem for names, problem in PROBLEMS.items() if any(name in text for name in names)),
        OTHER_PROBLEM,
    )
