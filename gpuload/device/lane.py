"""Lane: a stream of our own on a GPU, on which steps are made ready ahead of the consumer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.device.ledger import Ledger
from gpuload.device.library import cupy, number
from gpuload.device.loans import PER_THREAD_STREAM, CardLoan, lane_array_class
from gpuload.device.problems import failure
from gpuload.device.tracks import Event, Release, Track, give_back, take_track
from gpuload.errors import ClosedError, SpecError

# A thread that waits for the whole GPU frees so many arrays together that foreign streams read.
FOREIGN_GROUP = 8
MAX_FOREIGN = 64  # of these arrays; at that number the lane itself waits, too


class Lane:
    """A stream of our own on a GPU, on which steps are made ready ahead of the consumer.

    Steps are queued on the lane and run while the consumer still works on the step before. The host
    waits nowhere but in ``Event.synchronize``, in ``reclaim`` where it says so, and in ``close``::

        with lane:                           the thread that makes steps ready
            lane.reclaim()                   memory that the consumer is done with may be used again
            raw = lane.upload(slot)          then decode raw and ops, with CuPy as usual
        event = lane.mark()                  when it has passed, the slot may be filled again

        lane.hand_over(event)                the consumer's thread
        image = lane.lend(image)             the consumer's array

    Threads: any thread may call the methods, several at a time.

    Args:
        device: ``"gpu:N"``.

    Attributes:
        device: which GPU.
    """

    _track: Track | None = None

    def __init__(self, device: str) -> None:
        self.device = device
        self._entered = threading.local()
        self._reclaiming, self._closing = threading.Lock(), threading.Lock()  # not of finalizers
        self._ledger = Ledger()
        try:
            self._track = take_track(number(device))
        except Exception as error:
            raise failure(error) from error

    @property
    def stream(self) -> Any:
        """The CuPy stream of the lane."""
        return self._open().stream

    @property
    def bytes(self) -> int:
        """The device memory that was lent and has not been reclaimed, each memory counted once."""
        return self._ledger.bytes

    def __enter__(self) -> Lane:
        """Make the device and the stream of the lane current in this thread; may be nested."""
        track = self._open()
        with ExitStack() as stack:
            stack.enter_context(cupy().cuda.Device(track.number))
            stack.enter_context(track.stream)
            self._entered.__dict__.setdefault("stacks", []).append(stack.pop_all())
        return self

    def __exit__(self, *error: object) -> None:
        self._entered.stacks.pop().close()

    def upload(self, host: NDArray[Any]) -> Any:
        """Queue the copy of a C-contiguous host array to the GPU, and return the array there.

        The copy reads the host memory later, if that is pinned. The caller keeps the memory, and
        does not change it, until an event of ``mark`` after this call has passed.
        """
        if not host.flags.c_contiguous:
            raise SpecError(
                f"upload of a host array of shape {host.shape} and strides {host.strides}",
                cause="a GPU copies memory without gaps",
                remedy="pass numpy.ascontiguousarray(array)",
            )
        with self:
            array = cupy().empty(host.shape, host.dtype)
            array.set(host, stream=self.stream)
            return array

    def unused(self, num_bytes: int) -> Any:
        """Return memory on the GPU, uint8 ``[num_bytes]``, that work of no stream uses: the host
        waits for the lane.

        It is for reads from files, which write to the GPU in no order with the lane's work.
        """
        with self:
            memory = cupy().empty(num_bytes, np.uint8)
            # Memory that was freed in the order of the stream may still be read there.
            self.mark().synchronize()
            return memory

    def fill_free_memory(self, sizes: Sequence[int], pattern: int) -> None:
        """Fill memory on the GPU with a byte, and give it back, so that the lane's next work gets
        it.

        Work that leaves a part of its memory unwritten then shows that byte. Where so much is not
        free, less is filled. A GPU that fails here fails at the next work, too, and its caller gets
        the error.

        Args:
            sizes: bytes of the arrays that the next work will ask for.
            pattern: the byte.
        """
        arrays = []
        with suppress(Exception), self:
            for num_bytes in sizes:
                arrays.append(cupy().empty(num_bytes, np.uint8))
                arrays[-1].data.memset_async(pattern, num_bytes, self.stream)

    def mark(self, *, timed: bool = False) -> Event:
        """Return an event that passes when all that was queued on the lane up to now has run.

        ``timed``: the GPU notes the time at which it passes, for ``Event.seconds_since``.
        """
        track = self._open()
        return track.mark(track.stream, timed=timed)

    def hand_over(self, event: Event) -> None:
        """Let the consumer's later work run after ``event``; the host does not wait.

        The consumer's stream is CuPy's current stream of the calling thread. Another library gets
        the same order from DLPack: there it names its own stream, which CuPy then makes wait for
        the current one.
        """
        with cupy().cuda.Device(self._open().number):
            stream = cupy().cuda.get_current_stream()
            # The batches of steps that were done together have one event. One handle names the
            # default streams of all threads, so that this one may never have waited for it.
            if event.holder != stream or stream.ptr == PER_THREAD_STREAM:
                event.hold_back(stream)
                event.holder = stream

    def lend(self, array: Any) -> Any:
        """Return the same device memory as an array for the consumer, in the consumer's thread.

        The memory comes back to the lane when the last array, view or DLPack capsule of it is
        dropped, in any thread; ``reclaim`` then lets it go when it is safe. The caller drops its
        own references. See ``CardLoan``.
        """
        track = self._open()
        if not array.size:
            return array  # there is no memory
        with cupy().cuda.Device(track.number):
            stream = cupy().cuda.get_current_stream()
        loan = CardLoan(array, track, self._ledger, stream)
        memory = cupy().cuda.UnownedMemory(array.data.ptr, array.nbytes, loan, track.number)
        pointer = cupy().cuda.MemoryPointer(memory, 0)
        return lane_array_class(cupy())(array.shape, array.dtype, pointer, array.strides)

    def reclaim(self, *, wait: bool = False) -> None:
        """Let go of the memory that came back, so that work that is queued on the lane from now on
        may use it.

        Memory with known readers costs the host nothing: the lane's stream waits for their
        events. That is enough because CuPy gives such memory only to work of the stream that it was
        allocated on, which is the lane's. Memory of somebody else (DALI's) is kept until its events
        have passed, because its owner does not wait for our stream. Memory that was read on streams
        that CuPy does not see (TensorFlow's, JAX's) is collected until there are ``FOREIGN_GROUP``
        arrays; then a thread of its own waits until the GPU has done all that was queued by then,
        while others queue more work. Only where that falls ``MAX_FOREIGN`` arrays behind, the host
        waits here.

        Args:
            wait: have the host wait, so that nothing that came back before is left.
        """
        track = self._open()
        with self._reclaiming, self:
            releases = track.releases
            # By index: a finalizer may append at any time, and an iterator would not survive that.
            foreign = [
                release
                for release in (releases[i] for i in range(len(releases)))
                if release.events is None
            ]
            if foreign and (wait or len(foreign) >= MAX_FOREIGN):
                track.wait_for_readers(foreign)
            elif len(foreign) >= FOREIGN_GROUP and not track.is_waiting:
                track.wait_aside(foreign)
            for _ in range(len(releases)):
                # Memory that comes back meanwhile is appended at the other end. An entry leaves
                # after all waits are queued, so that an exception on the way (Ctrl-C) loses none:
                # the next call begins with it again.
                if self._may_go(releases[0], track.stream, wait):
                    releases[0].settle()
                    releases.popleft()
                else:
                    releases.rotate(-1)

    def close(self) -> None:
        """Wait for all work, and give the stream back; arrays that are still lent stay valid.

        In a process that was forked off it does nothing: CUDA does not work there.
        """
        with self._closing:  # two threads at once would give the stream to two lanes
            if self._track is not None and self._track.is_ours():
                try:
                    self._track.stream.synchronize()
                    self.reclaim(wait=True)
                except Exception as error:
                    raise failure(error) from error
                finally:
                    self._give_back()

    def __del__(self) -> None:
        self._give_back()

    def _may_go(self, release: Release, stream: Any, wait: bool) -> bool:
        """Order the lane's next work behind the readers of memory; return whether it may go."""
        if release.events is None:
            return False
        for event in release.events:
            if wait:
                event.synchronize()
            elif release.is_stream_ordered:
                event.hold_back(stream)
            elif not event.done:
                return False
        return True

    def _open(self) -> Track:
        if self._track is None:
            raise ClosedError("a lane of a GPU", cause="it was closed", remedy="make a new loader")
        self._track.check()
        return self._track

    def _give_back(self) -> None:
        track, self._track = self._track, None
        if track is not None:
            give_back(track)
