"""Loans: memory of a lane that the consumer has, and that comes back when its kernels have run."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from gpuload.device.ledger import Ledger
from gpuload.device.library import cupy
from gpuload.device.tracks import Event, Release, Track

LEGACY_STREAM, PER_THREAD_STREAM = 1, 2  # in DLPack, which names other streams by larger numbers


class CardLoan:
    """Owns device memory while it is lent. The consumer's arrays keep the loan alive, and the loan
    keeps the memory.

    Why memory is not simply dropped: CuPy gives it back to its pool when the last array is gone,
    and the pool gives it at once to the next work of the lane. But that the consumer let go says
    only that its kernels are queued. On their own stream they may read the memory much later, when
    the lane has written the next step into it.

    So the finalizer asks when those kernels will have run, and leaves the rest to ``Lane.reclaim``.
    It may run in any thread, between any two lines, also inside a garbage collection. Therefore it
    takes no lock, waits for nothing and frees nothing: it records events and appends to a deque,
    which are one step each for Python.

    Which stream: all kernels that read the memory were queued before it was dropped, so an event on
    their stream covers them. Their stream is the one that was current in the consumer's thread when
    the memory was lent (``hand_over`` made it wait for the step), or the one that is current in the
    thread that drops it. An event is recorded on both. A consumer with a third stream has to order
    it behind one of these two before it drops the array; that is CuPy's own rule for any array. The
    loan keeps the stream alive, because an event cannot be recorded on a destroyed one.

    Where no event can say it, ``events`` is None and ``reclaim`` waits for the whole GPU:
    - the memory went to another library by DLPack or ``__cuda_array_interface__`` (see
      ``lane_array_class``). TensorFlow and JAX let go of it when a kernel is queued, on streams
      that CuPy does not see. Torch reads it on the stream that it names when it takes the memory,
      as CuPy does (``stream_export``): an event on that stream is enough;
    - the consumer's stream is garbage together with the memory, and CuPy has destroyed it already;
    - it is the default stream of the consumer's thread (``CUPY_CUDA_PER_THREAD_DEFAULT_STREAM``):
      its handle names another stream in the thread that drops the memory;
    - the stream is being captured into a graph, where an event would become a part of that graph;
    - CUDA refuses.

    In a process that was forked off and at the exit of the interpreter CUDA is not called at all.
    The memory then stays where it is.
    """

    def __init__(self, array: Any, track: Track, ledger: Ledger, stream: Any) -> None:
        self._array, self._track, self._ledger, self._stream = array, track, ledger, stream
        self.is_seen = True
        self.readers: list[Any] = []  # the streams that other libraries have named
        ledger.add(array)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the exit of the interpreter the names of this module may be gone, but not those that a
        # function holds.
        if is_finalizing():
            self._track.last_arrays.append(self._array)
        else:
            self._track.releases.append(Release(self._array, self._events(), self._ledger))

    def _events(self) -> list[Event] | None:
        if not self.is_seen or not self._track.is_ours() or gc.is_finalized(self._stream):
            return None
        if self._stream.ptr == PER_THREAD_STREAM:
            return None
        try:
            with cupy().cuda.Device(self._track.number):
                current = cupy().cuda.get_current_stream()
                streams = []
                for stream in (*self.readers, self._stream, current):
                    if stream not in streams:
                        streams.append(stream)
                if any(stream.is_capturing() for stream in streams):
                    return None
                return [self._track.mark(stream) for stream in streams]
        except Exception:  # a finalizer has no caller that could catch it, and None is always right
            return None


@cache
def lane_array_class(module: Any) -> Any:
    """Return the class of lent arrays: an array that notes when its memory leaves CuPy."""

    def leaves(array: Any) -> None:
        # The memory's owner is the loan, also for views; results of arithmetic own theirs.
        loan = getattr(array.data.mem, "_owner", None)
        if isinstance(loan, CardLoan):
            loan.is_seen = False

    class LaneArray(module.ndarray):  # type: ignore[misc]  # CuPy has no types
        """Array over memory that a lane has lent."""

        def __dlpack__(self, *args: Any, **options: Any) -> Any:
            leaves(self)
            return super().__dlpack__(*args, **options)

        def toDlpack(self) -> Any:
            """Return a capsule of DLPack."""
            leaves(self)
            return super().toDlpack()

        @property
        def __cuda_array_interface__(self) -> Any:
            leaves(self)
            return super().__cuda_array_interface__

    return LaneArray


class _StreamExport:
    """A lent array for a library that reads it on, or behind, the stream which it names."""

    def __init__(self, array: Any, loan: CardLoan) -> None:
        self._array, self._loan = array, loan

    def __dlpack_device__(self) -> Any:
        """Return the kind of device and its number, by DLPack."""
        return self._array.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        """Return a capsule of DLPack; without ``stream`` the memory's readers are not known."""
        if stream is None or (stream <= PER_THREAD_STREAM and stream != LEGACY_STREAM):
            return self._array.__dlpack__(stream=stream, **options)
        capsule = cupy().ndarray.__dlpack__(self._array, stream=stream, **options)
        if stream == LEGACY_STREAM:
            reader = cupy().cuda.Stream.null
        else:
            reader = _foreign_stream(stream)
        self._loan.readers.append(reader)
        return capsule


class _StreamHandle:
    """The handle of a stream that another library keeps alive, by CUDA's protocol for streams.

    Source:
    https://nvidia.github.io/cuda-python/cuda-core/latest/interoperability.html#cuda-stream-protocol
    """

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the version of the protocol, and the handle."""
        return 0, self._handle


def _foreign_stream(handle: int) -> Any:
    """Return the CuPy stream of a handle that another library named."""
    cuda = cupy().cuda
    if hasattr(cuda.Stream, "from_external"):
        return cuda.Stream.from_external(_StreamHandle(handle))
    return cuda.ExternalStream(handle)  # deprecated since CuPy 14.0, and all that CuPy 13 has


def stream_export(array: Any) -> Any:
    """Return a lent array as a library takes it that names its stream in ``__dlpack__(stream=)``.

    The memory is used again when the work queued on that stream has run, once the library has let
    go of it. Torch is such a library: work on other streams is its user's to order, as for any
    tensor.
    """
    loan = getattr(array.data.mem, "_owner", None)
    if isinstance(loan, CardLoan):
        return _StreamExport(array, loan)
    return array
