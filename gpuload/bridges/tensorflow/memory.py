"""share_memory: one budget for a GPU that TensorFlow, DALI and CuPy share.

TensorFlow takes nearly all of a GPU's memory when it starts, and leaves none for the others. Each
of the three can be told how much it may have, but only before it starts, and each in another way:

TensorFlow  ``set_logical_device_configuration(memory_limit=)``: never more than this.
CuPy        the limit of its memory pool: never more than this. gpuload's own batches on a GPU are
            in this pool.
DALI        ``PreallocateDeviceMemory``: this much is taken at once. DALI 2.4 has no limit; it asks
            for more if it must.
"""

from __future__ import annotations

import logging
from typing import Any

from gpuload import device as devices
from gpuload import signalsafe
from gpuload.bridges.tensorflow.framework import check_gpu, tf
from gpuload.errors import DeviceError, SpecError

MEBIBYTE = 1 << 20
log = logging.getLogger("gpuload")


def share_memory(
    *,
    tensorflow: float | None = None,
    dali: float | None = None,
    cupy: float | None = None,
    device: str = "gpu:0",
) -> dict[str, int]:
    """Divide the memory of a GPU among TensorFlow, DALI and CuPy, before the three start.

        share_memory(tensorflow=0.6, dali=0.2, cupy=0.1)            # first of all, before a loader or a model is made

    Args:
        tensorflow: a share of the card's memory, above 0 and below 1; or bytes, from 1 MiB on. None
            leaves it as it is, which for TensorFlow means nearly all that is free.
        dali: likewise.
        cupy: likewise.
        device: ``"gpu:N"``.

    Returns:
        The bytes of each library that has a share.

    Raises:
        SpecError: a number is none of these, or together they are more than the card has.
        DeviceError: there is no such GPU, or TensorFlow has started already; the error shows the
            share of each.
    """
    shares = {"tensorflow": tensorflow, "dali": dali, "cupy": cupy}
    requests = {name: value for name, value in shares.items() if value is not None}
    for name, value in requests.items():
        _check(name, value)
    if sum(value for value in requests.values() if value < 1) > 1:
        raise _excess_error(requests, "the shares add up to more than 1")
    name = devices.choose(device)[0]
    if name == "cpu":
        raise SpecError(
            f"share_memory(device={device!r})",
            cause="it is of a GPU",
            remedy="write device='gpu:0'",
        )
    number, module = devices.number(name), devices.cupy()
    with module.cuda.Device(number):
        free, total = module.cuda.runtime.memGetInfo()
    sizes = {
        name: int(value * total) if value < 1 else int(value) for name, value in requests.items()
    }
    if sum(sizes.values()) > total:
        raise _excess_error(requests, f"{name} has {total} bytes")
    if "tensorflow" in sizes:
        check_gpu(name)
        _limit_tensorflow(number, sizes["tensorflow"], free, total)
    if "cupy" in sizes:
        with module.cuda.Device(number):
            module.get_default_memory_pool().set_limit(size=sizes["cupy"])
    if "dali" in sizes:
        signalsafe.call(lambda: _give_dali(number, sizes["dali"], free, total))
    log.info("%s has %d MiB; given: %s", name, total // MEBIBYTE, sizes)
    return sizes


def _check(name: str, value: object) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not (0 < float(value) < 1 or float(value) >= MEBIBYTE):  # type: ignore[arg-type]
        raise SpecError(
            f"share_memory({name}={value!r})",
            cause="it is a share of the card's memory, above 0 and below 1, or a number of bytes, "
            "at least 1 MiB",
            remedy=f"write {name}=0.3, or {name}=4 << 30",
        )


def _limit_tensorflow(number: int, size: int, free: int, total: int) -> None:
    # Physical devices: to ask for logical ones would start TensorFlow, and then no limit can be
    # set.
    gpu = tf.config.list_physical_devices("GPU")[number]
    limit = tf.config.LogicalDeviceConfiguration(memory_limit=size // MEBIBYTE)
    try:
        tf.config.set_logical_device_configuration(gpu, [limit])
    except (RuntimeError, ValueError) as error:
        raise _too_late("TensorFlow", str(error), number, free, total) from error


def _give_dali(number: int, size: int, free: int, total: int) -> None:
    """Have DALI take its memory; called by `signalsafe`, so that errors caught here are DALI's
    alone."""
    backend = signalsafe.import_package("nvidia.dali.backend")
    try:
        backend.PreallocateDeviceMemory(size, number)
    except Exception as error:  # DALI's C++ may throw any
        raise _too_late("DALI", str(error), number, free, total) from error


def _too_late(library: str, reason: str, number: int, free: int, total: int) -> DeviceError:
    return DeviceError(
        f"share_memory: {library} cannot be given its part of gpu:{number}",
        cause=f"{reason}; {_holdings(number, free, total)}",
        remedy="call share_memory first of all, before a tensor, a model or a loader is made on "
        "the GPU",
    )


def _holdings(number: int, free: int, total: int) -> str:
    """Return the memory of the card that each library holds, as far as it says, as text."""
    pool = devices.cupy().get_default_memory_pool()
    pool_bytes = {"CuPy's pool": int(pool.total_bytes())}
    try:
        pool_bytes["TensorFlow"] = int(
            tf.config.experimental.get_memory_info(f"GPU:{number}")["current"]
        )
    except (ValueError, RuntimeError):  # it has not started
        pool_bytes["TensorFlow"] = 0
    text = ", ".join(f"{name} {size // MEBIBYTE} MiB" for name, size in pool_bytes.items())
    rest = max(0, total - free - sum(pool_bytes.values())) // MEBIBYTE
    return f"of {total // MEBIBYTE} MiB, {free // MEBIBYTE} are free; {text}, DALI and other processes {rest} MiB"


def _excess_error(requests: dict[str, Any], cause: str) -> SpecError:
    return SpecError(
        f"share_memory({requests})",
        cause=cause,
        remedy="give less; leave some for CUDA itself (about 1 GiB)",
    )
