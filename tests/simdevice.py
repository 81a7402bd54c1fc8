"""A GPU that is simulated, strictly: the small surface of CuPy that gpuload uses, for tests on
machines without a GPU.

Model
    Work       Copies and kernels are queued on streams and do not run. They run when the host waits
               (``synchronize``, ``get``, ``bool``), a little when it looks (``Event.done``), and
               when a test says so (``sim.run``). Which stream comes next is drawn from a seed; only
               the order within a stream and the order that events make are kept.
    Order      Every piece of work knows all work that is certain to have run before it: earlier
               work of its stream, what its stream was told to wait for, and what the host had seen
               finished when it was queued (a vector clock: for each stream the number of its last
               such work). Work that reads memory must be behind the work that wrote it, and work
               that writes memory behind all that used it. If not, it is a ``Fault`` at once, even
               if this run would by luck have had the right order.
    Memory     is poison (0xA5) and undefined until work has written it; work that reads an
               undefined byte is a fault. Memory goes back to CuPy's pool when its last array is
               gone, and the pool gives it at once to the next work of the stream that it was
               allocated on. So giving it back is a write by that stream: it is a fault if another
               stream may still read the memory. When that write has run, the memory is poison
               again.
    Host       An upload by ``set`` reads the host memory when it runs, and it is a fault if that
               changed meanwhile. Pinned memory that is dropped becomes poison. A download with
               ``blocking=False`` leaves poison in the host memory until it has run. ``asarray`` of
               a host array copies it at once, as CuPy does.
    NumPy      No function of NumPy takes a device array, and no operator mixes the two.
    DLPack     Exports the memory as it is: who did not wait sees poison. The capsule says that it
               is host memory, so that libraries without a GPU take it.
    Trace      ``sim.trace`` has all work: name, stream, thread, when it was queued and when it ran,
               in ticks of one clock; ``sim.note`` adds a tick of the test's own. ``sim.host_waits``
               has every wait of the host.

Beside ``tests/emulated_gpu`` has the real CuPy and knows what this cannot: CuPy's own behaviour,
    kernels, several devices, calls that fail. It needs CuPy, 0.7 GB of packages, g++ and x86-64 in
    an environment of its own; this needs NumPy alone, so that `make test` sees the order of work
    without CuPy. This knows of each byte whether it was written, and of each reader whether it was
    ordered; there a missing order shows only if late work meets it.

    Measured with 17 faults that were made on purpose in ``gpuload.device``, ``executors.checks``
    and ``pipeline.batches``, and the gpu tests of ``test_lane``, ``test_device``, ``test_cupy``,
    ``pipeline/test_gpu`` and ``test_gpu_lane``, with EMULATED_GPU_LATE_US=200: 14 are found here,
    10 there. Five are found here alone: the event of the stream at the hand-over, and of the one
    where memory is dropped; host memory of a download that is used again; the event of a batch
    before its last copies; a lane that is closed without waiting. Kernels that are launched before
    the upload of their bundle are found there alone.

Use ``install`` puts it behind ``gpuload.device``, so that ``device="gpu:0"`` works. At the end of a
    test call ``finish``: it runs all that is left, and raises the first fault that nobody saw.
    ``expect_fault`` is for tests that make one.

Names and behaviour are those of CuPy 13 and 14. A name that is missing here is missing on purpose
until somebody has looked it up in CuPy.
"""

from __future__ import annotations

import contextlib
import ctypes
import operator
import random
import sys
import threading
import traceback
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from gpuload import device as devices

POISON = 0xA5
byte_bounds = getattr(np.lib, "array_utils", np).byte_bounds  # NumPy 1 has it at the top
UNIT_BYTES = 512  # CuPy's pool rounds up to this, and memory begins at a multiple of it
FREE = "free"  # the name of work that gives memory back; it is not in the trace
FAR = (
    1 << 60
)  # device addresses are host addresses plus this, so that nothing on the host can use one by mistake

Clock = dict[int, int]  # for each stream, by its number, the last work that is certain to have run


class Fault(AssertionError):
    """Something that on a GPU would be a wrong result now and then."""


@dataclass
class Work:
    """A copy or a kernel. ``queued`` and ``ran`` are ticks; ``ran`` is None until it has run."""

    name: str
    stream: int
    sequence: int
    clock: Clock
    run: Callable[[], None]
    thread: str
    queued: int
    ran: int | None = None

    def __str__(self) -> str:
        return f"{self.name!r} (stream {self.stream}, work {self.sequence})"


@dataclass(frozen=True)
class HostWait:
    """A call that waits. ``blocked`` is False if all it waits for had run; ``stack`` has the calls,
    innermost last."""

    what: str
    thread: str
    blocked: bool
    stack: tuple[str, ...]


@dataclass
class Chunk:
    """A piece of device memory, which belongs to the pool of one stream for ever."""

    home: int
    num_bytes: int
    writer: Work | None = None
    readers: list[Work] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bytes = _aligned(self.num_bytes)
        self.bytes[:] = POISON
        self.is_defined = np.zeros(self.num_bytes, np.bool_)
        self.address = self.bytes.ctypes.data + FAR

    def defined(self, view: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return for a view of the bytes which of its bytes are defined, ``[*shape, itemsize]``."""
        begin = view.ctypes.data - self.bytes.ctypes.data
        return as_strided(self.is_defined[begin:], (*view.shape, view.itemsize), (*view.strides, 1))


class Simulation:
    """The simulated GPU; ``cupy`` is the module that stands in for CuPy.

    Args:
        seed: of the order in which streams run.

    Attributes:
        trace: all work, in the order in which it was queued.
        notes: the test's own ticks, by name.
        host_waits: all waits of the host.
        faults: those that nobody has seen yet.
        used_bytes, peak_bytes: device memory in use, now and at most.
    """

    def __init__(self, seed: int = 0) -> None:
        self.trace: list[Work] = []
        self.notes: dict[str, int] = {}
        self.host_waits: list[HostWait] = []
        self.faults: list[Fault] = []
        self.used_bytes = self.peak_bytes = 0
        self._random = random.Random(seed)
        self._lock = threading.RLock()
        self._tick = 0
        self._local = threading.local()
        self._streams: dict[int, Any] = {}
        self._host_clock: Clock = {}  # what the host has seen finished
        self._pools: dict[tuple[int, int], list[Chunk]] = {}  # free memory, by stream and size
        self._chunks: list[Chunk] = []
        self._dropped: deque[Any] = deque()  # filled by finalizers, which do nothing else
        self._pinned: list[np.ndarray[Any, Any]] = []
        self.num_returns: Counter[int] = (
            Counter()
        )  # of pinned memory, by its address: how often it was given back
        self.cupy = _cupy(self)
        self.null = self.cupy.cuda.Stream.null

    # ---- what a test asks and says

    def note(self, name: str) -> int:
        """Return the next tick, and remember it by a name."""
        with self._lock:
            self.notes[name] = self._next_tick()
            return self.notes[name]

    def run(self, count: int | None = None, stream: Any = None) -> None:
        """Let work run: all of it, or ``count`` pieces, of any stream or (in its order) of one."""
        with self._lock:
            self._settle()
            while (count is None or count > 0) and (ready := self._ready(stream)):
                self._run_next(ready)
                count = None if count is None else count - 1

    def works(self, name: str) -> list[Work]:
        """Return the work of a name, in the order in which it was queued."""
        return [work for work in self.trace if work.name == name]

    @contextlib.contextmanager
    def expect_fault(self, match: str) -> Iterator[None]:
        """Check that the block, or work that it queued, makes a fault whose text holds
        ``match``."""
        with contextlib.suppress(Fault):
            yield
        while self._ready():
            with contextlib.suppress(Fault):
                self.run()
        texts = [str(fault) for fault in self.faults]
        self.faults.clear()
        assert any(match in text for text in texts), f"no fault with {match!r}, but {texts}"

    def finish(self) -> None:
        """Run all that is left and raise the first fault that was not seen."""
        self.run()
        if self.faults:
            raise self.faults[0]

    # ---- order

    def queue(
        self, name: str, run: Callable[[], None], *, reads: Sequence[Chunk] = (), writes: Sequence[Chunk] = (),
        stream: Any = None,
    ) -> Work:  # fmt: skip
        """Queue work on a stream, the current one by default; a fault if its memory is not ready
        for it."""
        with self._lock:
            self._settle()
            return self._queue(
                name, run, reads, writes, self.current_stream() if stream is None else stream
            )

    def wait(self, clock: Clock, what: str) -> None:
        """Have the host wait for work."""
        with self._lock:
            self._settle()
            stack = tuple(
                f"{frame.filename}:{frame.lineno} {frame.name}"
                for frame in traceback.extract_stack(limit=25)
                if frame.filename != __file__
            )
            blocked = not self.has_run(clock)
            self.host_waits.append(HostWait(what, threading.current_thread().name, blocked, stack))
            while not self.has_run(clock):
                self._run_next(self._ready())
            _merge(self._host_clock, clock)

    def look(self, clock: Clock) -> bool:
        """Return whether work has run, after letting a little time pass."""
        with self._lock:
            self._settle()
            for _ in range(self._random.randrange(3)):
                if ready := self._ready():
                    self._run_next(ready)
            if self.has_run(clock):
                _merge(self._host_clock, clock)
                return True
            return False

    def has_run(self, clock: Clock) -> bool:
        """Return whether work has run; the host has not looked."""
        return all(self._streams[number].num_run >= sequence for number, sequence in clock.items())

    def clock(self, stream: Any) -> Clock:
        """Return what is certain to have run before the next work of a stream."""
        with self._lock:
            clock = dict(stream.clock)
            # The default stream and streams that were made "blocking" wait for one another.
            if stream.ptr == 0:
                for other in self._streams.values():
                    if other.is_blocking:
                        _merge(clock, other.clock)
            elif stream.is_blocking:
                _merge(clock, self.null.clock)
            _merge(clock, self._host_clock)
            return clock

    def device_clock(self) -> Clock:
        """Return all that was queued."""
        with self._lock:
            clock: Clock = {}
            for stream in self._streams.values():
                _merge(clock, stream.clock)
            return clock

    def fault(self, text: str) -> Fault:
        """Remember a fault, and return it to be raised; finalizers cannot raise it."""
        self.faults.append(Fault(text))
        return self.faults[-1]

    def _queue(
        self,
        name: str,
        run: Callable[[], None],
        reads: Sequence[Chunk],
        writes: Sequence[Chunk],
        stream: Any,
    ) -> Work:
        clock = self.clock(stream)
        clock[stream.ptr] = sequence = stream.clock.get(stream.ptr, 0) + 1
        work = Work(
            name,
            stream.ptr,
            sequence,
            clock,
            run,
            threading.current_thread().name,
            self._next_tick(),
        )
        problems = [problem for chunk in reads for problem in _before_read(chunk, work)]
        problems += [problem for chunk in writes for problem in _before_write(chunk, work)]
        if problems:
            raise self.fault(
                problems[0]
            )  # it is not queued, so that one fault does not bring others
        stream.clock = dict(clock)
        stream.queue.append(work)
        if name != FREE:
            self.trace.append(work)
        for chunk in reads:
            chunk.readers.append(work)
        for chunk in writes:
            chunk.writer, chunk.readers = work, []
        return work

    def _ready(self, stream: Any = None) -> list[Any]:
        streams = self._streams.values() if stream is None else [stream]
        return [
            candidate
            for candidate in streams
            if candidate.queue and self._may_run(candidate.queue[0])
        ]

    def _may_run(self, work: Work) -> bool:
        return self.has_run({**work.clock, work.stream: work.sequence - 1})

    def _run_next(self, ready: list[Any]) -> None:
        stream = self._random.choice(ready)
        work = stream.queue.popleft()
        stream.num_run, work.ran = work.sequence, self._next_tick()
        run, work.run = work.run, _nothing
        with np.errstate(all="ignore"):
            run()

    def _next_tick(self) -> int:
        self._tick += 1
        return self._tick

    # ---- memory

    def allocate(self, num_bytes: int) -> Chunk:
        """Return memory of the current stream's pool; what was freed there last comes first."""
        size = -(-max(num_bytes, 1) // UNIT_BYTES) * UNIT_BYTES
        with self._lock:
            self._settle()
            stream = self.current_stream().ptr
            free = self._pools.setdefault((stream, size), [])
            if free:
                chunk = free.pop()
            else:
                chunk = Chunk(stream, size)
                self._chunks.append(chunk)
            self.used_bytes += size
            self.peak_bytes = max(self.peak_bytes, self.used_bytes)
            return chunk

    def chunk_at(self, address: int) -> Chunk:
        """Return the memory that an address lies in."""
        for chunk in self._chunks:
            if chunk.address <= address < chunk.address + chunk.num_bytes:
                return chunk
        raise self.fault(f"{address:#x} is no address on the GPU")

    def drop(self, chunk: Chunk) -> None:
        """Give memory back; called by finalizers, in any thread."""
        self._dropped.append(chunk)

    def pin(self, num_bytes: int) -> Any:
        """Return pinned memory, an object with a buffer; when it is freed the memory becomes
        poison."""
        block = _aligned(num_bytes)
        self._pinned.append(block)

        class PinnedMemoryPointer(ctypes.c_uint8 * num_bytes):  # type: ignore[misc]
            def __del__(self) -> None:
                block[:] = POISON

        return PinnedMemoryPointer.from_buffer(block)

    def stream_of(self, handle: int) -> Any:
        """Return the stream of a handle that another library named."""
        return self._streams[handle]

    def unpinned(self, host: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the same memory without keeping pinned memory alive, as CUDA does not either."""
        for block in self._pinned:
            begin = host.ctypes.data - block.ctypes.data
            if 0 <= begin < block.size:
                return np.ndarray(host.shape, host.dtype, block, begin, host.strides)
        return host

    def _settle(self) -> None:
        """Give back what finalizers dropped; before anything else happens, so that it counts as
        done when dropped."""
        while self._dropped:
            chunk = self._dropped.popleft()

            def poison(chunk: Chunk = chunk) -> None:
                chunk.bytes[:] = POISON
                chunk.is_defined[:] = False

            with contextlib.suppress(Fault):  # it is remembered
                self._queue(FREE, poison, (), [chunk], self._streams[chunk.home])
            self._pools.setdefault((chunk.home, chunk.num_bytes), []).append(chunk)
            self.used_bytes -= chunk.num_bytes

    # ---- streams

    def current_stream(self) -> Any:
        """Return the current stream of this thread."""
        stack = self._local.__dict__.setdefault("streams", [self.null])
        return stack[-1]

    def push_stream(self, stream: Any) -> None:
        """Make a stream current in this thread."""
        self.current_stream()
        self._local.streams.append(stream)

    def pop_stream(self) -> None:
        """Go back to the stream before."""
        self._local.streams.pop()

    def add_stream(self, stream: Any) -> int:
        """Return the handle of a new stream."""
        with self._lock:
            handle = len(self._streams) + 16 if self._streams else 0
            self._streams[handle] = stream
            return handle

    def stream_at(self, handle: int) -> Any:
        """Return the stream of a handle; 1 and 2 are the default stream."""
        return self._streams[0 if handle in (1, 2) else handle]


class _IdlePages(deque[Any]):
    """Pinned memory that nobody uses: it holds poison, and a device that writes to it is at
    fault."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__()
        self._sim = sim

    def append(self, memory: Any) -> None:
        """Take memory back."""
        memory[:] = POISON
        self._sim.num_returns[memory.ctypes.data] += 1
        super().append(memory)


def install(monkeypatch: Any, seed: int = 0) -> Simulation:
    """Put a simulated GPU behind ``gpuload.device`` until the test ends, and return it."""
    sim = Simulation(seed)
    replace(monkeypatch, "cupy", lambda: sim.cupy)
    outside = devices.Problem("there is 1 GPU, numbered from 0", "use device='gpu:0'")
    replace(monkeypatch, "gpu_problem", lambda number: None if number == 0 else outside)
    replace(monkeypatch, "_idle_tracks", {})
    replace(monkeypatch, "_tracks", [])
    replace(monkeypatch, "_idle_pinned", defaultdict(lambda: _IdlePages(sim)))
    replace(monkeypatch, "_copies", deque())
    return sim


def replace(monkeypatch: Any, name: str, value: Any) -> None:
    """Put a value in the place of a name of ``gpuload.device``, in each of its files that has it."""
    modules = [module for path, module in sys.modules.items() if path.startswith(devices.__name__)]
    owners = [module for module in modules if hasattr(module, name)]
    assert owners, f"gpuload.device has no {name}"
    for module in owners:
        monkeypatch.setattr(module, name, value)


# ---- arrays


class Array:
    """A device array. ``_view`` is a NumPy view of its memory, of which only shape, dtype and
    strides are used here."""

    sim: Simulation  # set by the subclass that `_cupy` makes
    __array_ufunc__ = (
        None  # no function of NumPy takes it, and NumPy's operators leave it to ours, which refuse
    )
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        shape: Any,
        dtype: Any = float,
        memptr: Any = None,
        strides: Any = None,
        order: str = "C",
    ):
        shape = (
            (shape,)
            if isinstance(shape, int | np.integer)
            else tuple(int(length) for length in shape)
        )
        dtype = _device_dtype(dtype)
        if memptr is None:
            num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            memptr = MemoryPointer(PooledMemory(self.sim, num_bytes), 0)
        self.data = memptr
        chunk = memptr.mem.chunk
        begin = memptr.ptr - chunk.address
        self._view = np.ndarray(shape, dtype, chunk.bytes, begin, strides, order)  # type: ignore[call-overload]

    def _at(self, view: np.ndarray[Any, Any]) -> Any:
        """Return an array of the same memory."""
        array = object.__new__(type(self))
        array.data = self.data
        if view.size:
            array.data = MemoryPointer(self.data.mem, view.ctypes.data + FAR - self.data.mem.ptr)
        array._view = view
        return array

    shape = property(lambda self: self._view.shape)
    dtype = property(lambda self: self._view.dtype)
    strides = property(lambda self: self._view.strides)
    ndim = property(lambda self: self._view.ndim)
    size = property(lambda self: self._view.size)
    nbytes = property(lambda self: self._view.nbytes)
    itemsize = property(lambda self: self._view.itemsize)
    T = property(lambda self: self._at(self._view.T))

    @property
    def flags(self) -> Any:
        flags = self._view.flags
        return SimpleNamespace(
            c_contiguous=flags.c_contiguous, f_contiguous=flags.f_contiguous, owndata=flags.owndata
        )

    @property
    def device(self) -> Any:
        return self.sim.cupy.cuda.Device(0)

    # to the host and back

    def get(
        self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True
    ) -> Any:
        """Return a copy on the host; without ``blocking`` it is there when the stream has come so
        far."""
        host = np.empty(self.shape, self.dtype) if out is None else out
        if host.shape != self.shape or host.dtype != self.dtype or not host.flags.c_contiguous:
            raise ValueError("out has another shape or dtype, or is not contiguous")
        sim, source, chunk = self.sim, self._view, self.data.mem.chunk
        stream = sim.current_stream() if stream is None else stream
        host.reshape(-1).view(np.uint8)[:] = POISON
        target = host if blocking else sim.unpinned(host)
        address = target.ctypes.data
        num_returns = sim.num_returns[address]

        def run() -> None:
            if sim.num_returns[address] != num_returns:
                raise sim.fault("a download writes to host memory that was given back meanwhile")
            _check_defined(sim, "download", chunk, source)
            np.copyto(target, source)

        sim.queue("download", run, reads=[chunk] if self.size else [], stream=stream)
        if blocking:
            sim.wait(sim.clock(stream), "get")
        return host

    def set(self, arr: Any, stream: Any = None) -> None:
        """Queue a copy of a host array into this one; the host memory is read when the copy
        runs."""
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if arr.dtype != self.dtype or arr.shape != self.shape:
            raise ValueError(f"{arr.dtype} {arr.shape} cannot be set to {self.dtype} {self.shape}")
        _upload(self, self.sim.unpinned(arr), "upload", stream)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Any = None,
        dl_device: Any = None,
        copy: Any = None,
    ) -> Any:
        sim, current = self.sim, self.sim.current_stream()
        if stream != -1:
            consumer = sim.stream_at(1 if stream is None else stream)
            if consumer is not current:
                _merge(consumer.clock, sim.clock(current))
        newer = (
            {} if max_version is None else {"max_version": max_version}
        )  # which NumPy 1 does not know
        return np.asarray(_Export(self)).__dlpack__(**newer)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0  # CUDA

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        stream = self.sim.current_stream().ptr or 1
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self.data.ptr, False), "version": 3,
            "strides": None if self.flags.c_contiguous else self.strides, "stream": stream,
        }  # fmt: skip

    def __array__(self, *args: Any, **options: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def __array_function__(self, function: Any, *rest: Any) -> Any:
        raise TypeError(f"numpy.{function.__name__} was called with an array of the GPU")

    def item(self) -> Any:
        return self.get().item()

    def tolist(self) -> Any:
        return self.get().tolist()

    def __bool__(self) -> bool:
        return bool(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __float__(self) -> float:
        return float(self.get())

    def __index__(self) -> int:
        return operator.index(self.get())

    def __repr__(self) -> str:
        return repr(self.get())

    def __str__(self) -> str:
        return str(self.get())

    # views

    def __len__(self) -> int:
        return len(self._view)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        keys = key if isinstance(key, tuple) else (key,)
        if any(isinstance(index, Array | list) for index in keys):
            if any(isinstance(index, Array) and index.dtype == np.bool_ for index in keys):
                raise NotImplementedError("an index of booleans has the host wait for its size")
            return _launch(self.sim, "getitem", lambda x, *parts: x[parts], self, *keys)
        if any(isinstance(index, np.ndarray) and index.ndim for index in keys):
            raise TypeError("an array of the host as an index is an upload that nobody asked for")
        view = self._view[keys]
        return self._at(view if isinstance(view, np.ndarray) else self._view[(*keys, ...)])

    def __setitem__(self, key: Any, value: Any) -> None:
        target = self[key]
        shape = target.shape  # the kernel must not keep the array alive
        if target.data.mem is not self.data.mem:
            raise NotImplementedError("assignment by arrays of indices")
        _launch(self.sim, "setitem", lambda x: np.broadcast_to(x, shape), value, out=target)

    def reshape(self, *shape: Any) -> Any:
        shape = shape[0] if len(shape) == 1 else shape
        view = self._view.reshape(shape)
        if not self.size or np.shares_memory(view, self._view):
            return self._at(view)
        return _launch(self.sim, "reshape", lambda x: x.reshape(shape), self)

    def ravel(self) -> Any:
        return self.reshape(-1)

    def transpose(self, *axes: Any) -> Any:
        return self._at(self._view.transpose(*axes))

    def swapaxes(self, axis1: int, axis2: int) -> Any:
        return self._at(self._view.swapaxes(axis1, axis2))

    def squeeze(self, axis: Any = None) -> Any:
        return self._at(self._view.squeeze(axis))

    def view(self, dtype: Any = None) -> Any:
        return self._at(
            self._view.view() if dtype is None else self._view.view(_device_dtype(dtype))
        )

    # kernels

    def astype(
        self,
        dtype: Any,
        order: str = "K",
        casting: Any = None,
        subok: Any = None,
        copy: bool = True,
    ) -> Any:
        dtype = _device_dtype(dtype)
        if dtype == self.dtype and not copy:
            return self
        return _launch(self.sim, "astype", lambda x: x.astype(dtype, order=order), self)

    def copy(self, order: str = "C") -> Any:
        return _launch(self.sim, "copy", lambda x: x.copy(order), self)

    def fill(self, value: Any) -> None:
        self[...] = value

    def take(self, indices: Any, axis: Any = None) -> Any:
        return _launch(self.sim, "take", lambda x, i: x.take(i, axis=axis), self, indices)

    def clip(self, min: Any = None, max: Any = None) -> Any:
        return _launch(self.sim, "clip", lambda x, low, high: x.clip(low, high), self, min, max)


def _added_at(x: Any, indices: Any, value: Any) -> Any:
    result = x.copy()
    np.add.at(result, indices, value)
    return result


def _reduction(name: str) -> Callable[..., Any]:
    def method(self: Array, axis: Any = None, keepdims: bool = False) -> Any:
        return _launch(
            self.sim, name, lambda x: getattr(x, name)(axis=axis, keepdims=keepdims), self
        )

    return method


def _operator(name: str, reverse: bool) -> Callable[..., Any]:
    function = getattr(operator, {"and": "and_", "or": "or_"}.get(name, name))

    def method(self: Array, other: Any) -> Any:
        pair = (other, self) if reverse else (self, other)
        return _launch(self.sim, name, function, *pair)

    return method


def _in_place(name: str) -> Callable[..., Any]:
    function = getattr(operator, {"and": "and_", "or": "or_"}.get(name, name))

    def method(self: Array, other: Any) -> Any:
        return _launch(self.sim, f"i{name}", function, self, other, out=self)

    return method


def _unary(name: str) -> Callable[..., Any]:
    return lambda self: _launch(self.sim, name, getattr(operator, name), self)


for _name in ("any", "all", "sum", "min", "max", "mean", "argmax"):
    setattr(Array, _name, _reduction(_name))
for _name in (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
):
    setattr(Array, f"__{_name}__", _operator(_name, False))
    setattr(Array, f"__r{_name}__", _operator(_name, True))
    setattr(Array, f"__i{_name}__", _in_place(_name))
for _name in ("lt", "le", "eq", "ne", "gt", "ge"):
    setattr(Array, f"__{_name}__", _operator(_name, False))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(Array, f"__{_name}__", _unary(_name))


class _Export:
    """Gives NumPy the memory of an array, and keeps the array alive for as long as NumPy uses
    it."""

    def __init__(self, array: Array) -> None:
        self.array = array
        self.__array_interface__ = {
            "data": (array._view.ctypes.data, False), "shape": array.shape, "strides": array.strides,
            "typestr": array.dtype.str, "version": 3,
        }  # fmt: skip


class MemoryPointer:
    """As in CuPy: a place in some memory, which it keeps alive."""

    def __init__(self, mem: Any, offset: int) -> None:
        self.mem, self.ptr, self.device_id = mem, mem.ptr + offset, 0

    def __add__(self, num_bytes: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.ptr + num_bytes - self.mem.ptr)


class PooledMemory:
    """Memory out of the pool of the stream that is current, which goes back there when it is
    dropped."""

    def __init__(self, sim: Simulation, num_bytes: int) -> None:
        self._sim, self.chunk = sim, sim.allocate(num_bytes)
        self.ptr, self.size, self.device_id = self.chunk.address, self.chunk.num_bytes, 0

    def __del__(self) -> None:
        self._sim.drop(self.chunk)


# ---- kernels


INDEXED = (
    "getitem",
    "take",
    "add.at",
)  # their arguments but the first are indices, of which 0 is always inside


def _launch(
    sim: Simulation, name: str, function: Callable[..., Any], *arguments: Any, out: Any = None
) -> Any:
    """Queue a kernel that computes a NumPy function; shape and dtype of the result are known at
    once."""
    inputs: list[Array] = []

    def as_input(array: Array) -> Any:
        inputs.append(array)
        return (
            np.zeros_like(array._view)
            if name in INDEXED and inputs[1:]
            else np.ones_like(array._view)
        )

    likeness = [_mapped(argument, as_input) for argument in arguments]
    with np.errstate(all="ignore"):
        result = np.asarray(function(*likeness))
    if out is None:
        packed = result.base is None and all(stride > 0 for stride in result.strides)
        out = sim.cupy.ndarray(result.shape, result.dtype, **_layout(sim, result) if packed else {})
    views = [_mapped(argument, lambda array: array._view) for argument in arguments]
    sources = [(array.data.mem.chunk, array._view) for array in inputs if array.size]
    chunk, target = out.data.mem.chunk, out._view

    def run() -> None:
        for source in sources:
            _check_defined(sim, name, *source)
        np.copyto(target, function(*views), casting="unsafe")
        chunk.defined(target)[...] = True

    sim.queue(
        name, run, reads=[source[0] for source in sources], writes=[chunk] if target.size else []
    )
    return out


def _mapped(argument: Any, function: Callable[[Array], Any]) -> Any:
    """Return an argument with every device array replaced; raises TypeError for an array of the
    host."""
    if isinstance(argument, Array):
        return function(argument)
    if isinstance(argument, list | tuple):
        return type(argument)(_mapped(element, function) for element in argument)
    if isinstance(argument, np.ndarray):
        raise TypeError(f"Unsupported type {type(argument)}")
    return argument


def _layout(sim: Simulation, result: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return memory and strides for a result that keeps the order of its inputs' axes, as NumPy and
    CuPy do."""
    if result.flags.c_contiguous:
        return {}
    return {"memptr": MemoryPointer(PooledMemory(sim, result.nbytes), 0), "strides": result.strides}


def _upload(array: Array, host: np.ndarray[Any, Any], name: str, stream: Any = None) -> None:
    sim, chunk, target, before = array.sim, array.data.mem.chunk, array._view, host.tobytes()

    def run() -> None:
        if host.tobytes() != before:
            raise sim.fault(
                f"{name}: the host memory was changed before the copy to the GPU had run"
            )
        np.copyto(target, host)
        chunk.defined(target)[...] = True

    sim.queue(name, run, writes=[chunk] if array.size else [], stream=stream)


def _check_defined(sim: Simulation, name: str, chunk: Chunk, view: np.ndarray[Any, Any]) -> None:
    if not chunk.defined(view).all():
        raise sim.fault(f"{name!r} reads undefined memory: nothing has been written there")


def _before_read(chunk: Chunk, work: Work) -> Iterator[str]:
    if chunk.writer is not None and not _is_behind(work, chunk.writer):
        yield f"{work} reads what {chunk.writer} writes, and nothing puts one behind the other"


def _before_write(chunk: Chunk, work: Work) -> Iterator[str]:
    verb = "gives memory back to its pool" if work.name == FREE else "writes"
    for reader in chunk.readers:
        if not _is_behind(work, reader):
            yield f"{work} {verb} while {reader} may still read: nothing puts one behind the other"
    if chunk.writer is not None and not _is_behind(work, chunk.writer):
        yield f"{work} {verb} while {chunk.writer} may still write: nothing puts one behind the other"


def _is_behind(work: Work, other: Work) -> bool:
    return work.clock.get(other.stream, 0) >= other.sequence


def _nothing() -> None:
    """What is left of work that has run."""


def _merge(clock: Clock, other: Clock) -> None:
    for number, sequence in other.items():
        clock[number] = max(sequence, clock.get(number, 0))


def _aligned(num_bytes: int) -> np.ndarray[Any, Any]:
    raw = np.empty(num_bytes + UNIT_BYTES, np.uint8)
    begin = -raw.ctypes.data % UNIT_BYTES
    return raw[begin : begin + num_bytes]


def _device_dtype(dtype: Any) -> np.dtype[Any]:
    dtype = np.dtype(dtype)
    if dtype.kind not in "buifc" or not dtype.isnative or dtype.char in "gG":
        raise ValueError(f"Unsupported dtype {dtype}")
    return dtype


# ---- the module


def _cupy(sim: Simulation) -> Any:
    """Return the module that stands in for CuPy."""
    module: Any = ModuleType("cupy")
    module.ndarray = type("ndarray", (Array,), {"sim": sim})
    module.cuda = _cuda(sim)
    for dtype in (
        "bool_",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
    ):
        setattr(module, dtype, getattr(np, dtype))
    module.float32, module.float64, module.newaxis = np.float32, np.float64, None
    for name in (
        "rint",
        "floor",
        "ceil",
        "trunc",
        "maximum",
        "minimum",
        "isnan",
        "abs",
        "sqrt",
        "exp",
        "where",
        "clip",
        "take",
    ):
        setattr(module, name, _function(sim, name))
    for name in ("stack", "concatenate"):
        setattr(module, name, _function(sim, name))
    module.add = SimpleNamespace(
        at=lambda x, i, value: _launch(sim, "add.at", _added_at, x, i, value, out=x)
    )
    _add_creation(module, sim)
    module.lib = SimpleNamespace(stride_tricks=SimpleNamespace(as_strided=_as_strided))
    module.broadcast_to = lambda x, shape: x._at(np.broadcast_to(x._view, shape))
    module.moveaxis = lambda x, source, target: x._at(np.moveaxis(x._view, source, target))
    module.rot90 = lambda x, k=1, axes=(0, 1): x._at(
        np.rot90(x._view, k, axes)
    )  # CuPy's is made of flips and axes, too
    module.expand_dims = lambda x, axis: x._at(np.expand_dims(x._view, axis))
    module.asnumpy = lambda x: x.get() if isinstance(x, Array) else np.asarray(x)
    return module


def _function(sim: Simulation, name: str) -> Callable[..., Any]:
    def function(*arguments: Any, axis: Any = 0) -> Any:
        options = {"axis": axis} if name in ("stack", "concatenate", "take") else {}
        return _launch(sim, name, lambda *inputs: getattr(np, name)(*inputs, **options), *arguments)

    return function


def _add_creation(module: Any, sim: Simulation) -> None:
    def array(obj: Any, dtype: Any = None, copy: bool = True) -> Any:
        if isinstance(obj, Array):
            return obj.astype(obj.dtype if dtype is None else dtype, copy=copy)
        if isinstance(obj, list | tuple) and any(isinstance(element, Array) for element in obj):
            return module.stack([module.asarray(element) for element in obj])
        host = np.array(obj, dtype)  # CuPy copies, too: to pinned memory of its own
        result = module.ndarray(host.shape, host.dtype)
        _upload(result, host, "asarray")
        return result

    def from_dlpack(x: Any) -> Any:
        x.__dlpack__(stream=sim.current_stream().ptr or 1)
        memory = _UnownedMemory(sim, x.data.mem.ptr, x.data.mem.size, x, 0)
        pointer = MemoryPointer(memory, x.data.ptr - memory.ptr)
        return module.ndarray(x.shape, x.dtype, pointer, x.strides)

    def full(shape: Any, value: Any, dtype: Any = None) -> Any:
        result = module.ndarray(shape, np.asarray(value).dtype if dtype is None else dtype)
        result.fill(value)
        return result

    module.array = array
    module.asarray = lambda obj, dtype=None: array(obj, dtype, copy=False)
    module.ascontiguousarray = lambda x: x if x.flags.c_contiguous else x.copy()
    module.from_dlpack, module.full = from_dlpack, full
    module.empty = lambda shape, dtype=float: module.ndarray(shape, dtype)
    module.empty_like = lambda x: module.ndarray(x.shape, x.dtype)
    module.zeros = lambda shape, dtype=float: full(shape, 0, dtype)
    module.ones = lambda shape, dtype=float: full(shape, 1, dtype)
    module.arange = lambda *range, dtype=None: _launch(
        sim, "arange", lambda: np.arange(*range, dtype=dtype)
    )


def _as_strided(x: Array, shape: Any = None, strides: Any = None) -> Any:
    view = as_strided(x._view, shape, strides)
    if view.size:
        chunk = x.data.mem.chunk
        low, high = byte_bounds(view)
        if low < chunk.bytes.ctypes.data or high > chunk.bytes.ctypes.data + chunk.num_bytes:
            raise x.sim.fault("as_strided: the view reaches out of the memory")
    return x._at(view)


class _UnownedMemory:
    """As in CuPy: memory that somebody else owns, whom it keeps alive."""

    def __init__(self, sim: Simulation, ptr: int, size: int, owner: Any, device_id: int) -> None:
        self.chunk, self.ptr, self.size, self._owner, self.device_id = (
            sim.chunk_at(ptr),
            ptr,
            size,
            owner,
            device_id,
        )


def _cuda(sim: Simulation) -> Any:
    """Return what stands in for ``cupy.cuda``."""

    class CUDARuntimeError(RuntimeError):
        pass

    class Stream:
        def __init__(
            self, null: bool = False, non_blocking: bool = False, ptds: bool = False
        ) -> None:
            self.clock: Clock = {}
            self.queue: deque[Work] = deque()
            self.num_run = 0
            self.is_blocking = not (null or non_blocking)
            self.device_id = -1 if null else 0
            self.ptr = sim.add_stream(self)

        def __enter__(self) -> Any:
            sim.push_stream(self)
            return self

        def __exit__(self, *error: object) -> None:
            sim.pop_stream()

        def record(self, event: Any = None) -> Any:
            event = Event() if event is None else event
            event.record(self)
            return event

        def wait_event(self, event: Any) -> None:
            with sim._lock:
                sim._settle()
                _merge(self.clock, event.clock)

        def synchronize(self) -> None:
            sim.wait(sim.clock(self), "Stream.synchronize")

        @property
        def done(self) -> bool:
            return sim.look(sim.clock(self))

        def is_capturing(self) -> bool:
            return False

    class Event:
        def __init__(
            self, block: bool = False, disable_timing: bool = False, interprocess: bool = False
        ) -> None:
            self.clock: Clock = {}
            self.is_timed = not disable_timing

        def record(self, stream: Any = None) -> None:
            with sim._lock:
                sim._settle()
                self.clock = sim.clock(sim.current_stream() if stream is None else stream)

        @property
        def done(self) -> bool:
            return sim.look(self.clock)

        def synchronize(self) -> None:
            sim.wait(self.clock, "Event.synchronize")

    class Device:
        def __init__(self, device: Any = None) -> None:
            self.id = int(device or 0)
            if self.id:
                raise CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def __int__(self) -> int:
            return self.id

        def synchronize(self) -> None:
            sim.wait(sim.device_clock(), "Device.synchronize")

    def get_elapsed_time(begin: Any, end: Any) -> float:
        """Return milliseconds; CUDA knows them for events with timing that have passed, here each
        is 1 apart."""
        if not (begin.is_timed and end.is_timed):
            raise CUDARuntimeError("cudaErrorInvalidResourceHandle: an event without timing")
        if not (begin.done and end.done):
            raise CUDARuntimeError("cudaErrorNotReady: an event that has not passed")
        return 1.0

    cuda = SimpleNamespace(
        get_elapsed_time=get_elapsed_time,
        Stream=Stream,
        Event=Event,
        Device=Device,
        MemoryPointer=MemoryPointer,
        UnownedMemory=lambda ptr, size, owner, device_id=-1: _UnownedMemory(
            sim, ptr, size, owner, device_id
        ),
        PinnedMemory=sim.pin,
        PinnedMemoryPointer=lambda memory, offset: memory,
        ExternalStream=sim.stream_of,
        get_current_stream=lambda device_id=-1: sim.current_stream(),
        runtime=SimpleNamespace(
            getDeviceCount=lambda: 1, getDevice=lambda: 0, CUDARuntimeError=CUDARuntimeError
        ),
    )
    Stream.null = Stream(null=True)  # type: ignore[attr-defined]
    return cuda
