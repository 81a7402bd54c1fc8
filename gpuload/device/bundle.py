"""Bundle: all that a batch needs on a GPU, in one upload: its bytes and the arrays of kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.device.lane import Lane
from gpuload.device.library import cupy

PARAMETER_ALIGN_BYTES = 64  # each array of parameters begins at a multiple
GAP_BYTES = 1 << 14  # between bytes that are uploaded together
NO_BYTES = np.empty(0, np.uint8)


class Bundle:
    """Uploads the bytes of a batch, and behind them arrays that kernels read beside these, at once.

    An upload costs the host some ten microseconds, however few its bytes are, and each op that has
    draws would make another. So the bytes of a batch are not uploaded at once, and kernels wait, in
    their order, until all that they read is known; the memory on the GPU is there before, so that
    later ones know where they find it::

        with lane:
            bundle = Bundle(lane)
            bundle.hold(slot, 3072)              3072 bytes of a batch, and room behind them
            images = bundle.upload(slot[:3072])  not there yet
            with bundle:
                open_bundle()
                op.array_batch(xp, images, draw) `parameters` and `kernel` wait
                settle()                         one upload, then the kernels
                images.sum()                     CuPy's own functions come behind that

    The order of the stream stays that of the calls: `settle` comes before anything that does not
    wait. Arrays that do not fit into the memory are uploaded by themselves.

    Threads: one at a time.

    Args:
        lane: its stream is the current one.
        on_upload: called once, behind the first upload.

    Attributes:
        is_open: True if kernels wait: from `open_bundle` to `settle`.
        owners: arrays of which kernels that wait have the addresses, see the function `hold`.
        parameter_bytes: of all parameters, whether they had room or not.
    """

    def __init__(self, lane: Lane, on_upload: Callable[[], None] | None = None) -> None:
        self._lane, self._on_upload = lane, on_upload
        self._host: NDArray[np.uint8] = NO_BYTES
        self._address = self._end = 0  # of the first byte, and behind the bytes that are in use
        self._memory: Any = None  # the same on the GPU
        self._ranges: list[tuple[int, int]] = []  # of bytes that wait
        self._launches: list[tuple[Any, tuple[Any, ...]]] = []
        self._outer: list[Bundle | None] = []
        self.owners: list[Any] = []
        self.is_open, self.parameter_bytes = False, 0

    @property
    def is_settled(self) -> bool:
        """True if nothing waits."""
        return not self._ranges and not self._launches

    def hold(self, memory: NDArray[np.uint8], num_bytes: int) -> None:
        """Take page-locked memory of which so many bytes are in use; it stays as it is until an
        event behind `settle`.

        Args:
            memory: uint8 ``[num_bytes or more]``; bytes behind them are written to.
            num_bytes: that `upload` may be asked for.
        """
        self._host, self._address, self._end = memory, _address(memory), num_bytes
        self._memory = cupy().empty(memory.size, np.uint8)

    def upload(self, host: NDArray[Any]) -> Any:
        """Return a C-contiguous host array on the GPU: behind `settle` if the memory has it."""
        begin = _address(host) - self._address
        end = begin + host.nbytes
        if self._memory is None or begin < 0 or end > self._host.size or not host.nbytes:
            return self._lane.upload(host)
        self._ranges.append((begin, end))
        return self._memory[begin:end].view(host.dtype).reshape(host.shape)

    def add(self, array: NDArray[Any]) -> Any:
        """Return a small array on the GPU; see `parameters`."""
        begin = -(-self._end // PARAMETER_ALIGN_BYTES) * PARAMETER_ALIGN_BYTES
        end = begin + array.nbytes
        self.parameter_bytes += array.nbytes + PARAMETER_ALIGN_BYTES
        if end > self._host.size or not array.nbytes:
            return cupy().asarray(array)
        np.copyto(self._host[begin:end].view(array.dtype).reshape(array.shape), array)
        self._end = end
        self._ranges.append((begin, end))
        return self._memory[begin:end].view(array.dtype).reshape(array.shape)

    def launch(self, raw: Any, *arguments: Any) -> None:
        """Have a kernel wait; its arguments, and arrays of `owners`, are kept until then."""
        self._launches.append((raw, arguments))

    def settle(self) -> None:
        """Upload the bytes that wait, and launch the kernels that wait; see the function
        `settle`."""
        self.is_open = False
        ranges, self._ranges = self._ranges, []
        if ranges:
            stream = cupy().cuda.get_current_stream()
            for begin, end in _merge(ranges):
                self._memory[begin:end].set(self._host[begin:end], stream=stream)
        if self._on_upload is not None:
            on_upload, self._on_upload = self._on_upload, None
            on_upload()
        launches, self._launches = self._launches, []
        for raw, arguments in launches:
            raw(*arguments)
        self.owners.clear()

    def __enter__(self) -> Bundle:
        """Make it the one that `parameters` and `kernel` of this thread wait for."""
        self._outer.append(_current.bundle)
        _current.bundle = self
        return self

    def __exit__(self, *error: object) -> None:
        _current.bundle = self._outer.pop()


def _merge(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges of bytes in their order; those up to `GAP_BYTES` apart become one."""
    chunks: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if chunks and begin <= chunks[-1][1] + GAP_BYTES:
            chunks[-1] = chunks[-1][0], max(chunks[-1][1], end)
        else:
            chunks.append((begin, end))
    return chunks


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


class _Current(threading.local):
    """The bundle of the calling thread."""

    bundle: Bundle | None = None


_current = _Current()


def waiting_bundle() -> Bundle | None:
    """Return the current bundle of the thread if it is open, so that kernels wait for it."""
    bundle = _current.bundle
    if bundle is None or not bundle.is_open:
        return None
    return bundle


def settle() -> None:
    """Upload the current `Bundle`, launch the kernels that wait for it, and close it.

    It is called before anything but `kernel` works on the arrays of a batch: CuPy's own functions
    do not wait. Later kernels do not wait either, until the bundle is opened again.
    """
    if _current.bundle is not None:
        _current.bundle.settle()


def open_bundle() -> None:
    """Let kernels and their parameters wait again for the current `Bundle`, if there is one."""
    if _current.bundle is not None:
        _current.bundle.is_open = True
