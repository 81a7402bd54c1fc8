"""Kernels of CUDA, and the arrays that they alone read; in a `Bundle` they wait for its upload."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from numpy.typing import NDArray

from gpuload.device.bundle import open_bundle, settle, waiting_bundle
from gpuload.device.library import cupy

Run = TypeVar("Run", bound=Callable[..., Any])


@cache
def kernel(source: str, name: str) -> Kernel:
    """Return a kernel of CUDA C++, compiled for each GPU when it is first launched there.

    Products and sums are not fused, so that it makes the numbers that NumPy makes. In a `Bundle` it
    is launched when its arrays were uploaded.

    Args:
        source: the program.
        name: of its ``extern "C" __global__`` function. Arguments must have the exact types of its
            parameters: ``numpy.int32``, ``numpy.int64``, ``numpy.float32``, arrays, and 0 for a
            null pointer.
    """
    return Kernel(cupy().RawKernel(source, name, options=("--fmad=false",)))


class Kernel:
    """A kernel of CUDA, which is launched on CuPy's current stream: see `kernel` and `elementwise`.

    Args:
        raw: the same in CuPy.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def __call__(self, *arguments: Any) -> None:
        """Launch it.

        Args:
            arguments: of one of `kernel` the grid, the block and a tuple of arguments; of one of
                `elementwise` the arrays that it reads, then those that it writes to.
        """
        if (bundle := waiting_bundle()) is None:
            self._raw(*arguments)
        else:
            bundle.launch(self._raw, *arguments)


@cache
def elementwise(reads: str, writes: str, body: str, name: str) -> Kernel:
    """Return a kernel that makes each number of its results alone, ``cupy.ElementwiseKernel``."""
    return Kernel(cupy().ElementwiseKernel(reads, writes, body, name, options=("--fmad=false",)))


def parameters(array: NDArray[Any]) -> Any:
    """Return a copy of a small host array on the current GPU, for kernels of `kernel`.

    In an open `Bundle` it is uploaded with the batch, and nothing else may read it before `settle`.
    """
    bundle = waiting_bundle()
    return cupy().asarray(array) if bundle is None else bundle.add(array)


def zeros(shape: tuple[int, ...] | int, dtype: Any) -> Any:
    """Return an array of zeros on the current GPU; in an open `Bundle` it waits as kernels do."""
    array = cupy().empty(shape, dtype)
    if (bundle := waiting_bundle()) is None:
        array.fill(0)
    else:
        bundle.launch(array.fill, 0)
    return array


def copy(array: Any) -> Any:
    """Return a copy of an array, in C order; in an open `Bundle` it waits as kernels do."""
    result = cupy().empty(array.shape, array.dtype)
    Kernel(result.__setitem__)(..., array)
    return result


def hold(images: Any) -> None:
    """Keep arrays of which kernels get only the addresses until the kernels that wait have been
    launched.

    Memory that no array refers to is another array's next, which may be written while these kernels
    still wait.
    """
    if (bundle := waiting_bundle()) is not None:
        bundle.owners.append(images)


def waits(run: Run) -> Run:
    """Mark a function that may be called in an open `Bundle`: it launches kernels of `kernel`
    alone.

    Where it does anything else with arrays of a GPU, it calls `settle` before.
    """
    run.__dict__["waits"] = True
    return run


def can_wait(method: Callable[..., Any]) -> bool:
    """Return True if the function of a method is marked by `waits`, which one that overrides it is
    not."""
    return "waits" in getattr(method, "__func__", method).__dict__


def begin(method: Callable[..., Any]) -> bool:
    """Open the current `Bundle` for a method that is marked by `waits`, and return True; else
    settle it."""
    if can_wait(method):
        open_bundle()
        return True
    settle()
    return False
