"""Device: which one is used and why; the arrays, memory and streams of CuPy, which it alone
imports.

Choice   ``choose`` finds a device, or says why there is none.
Arrays   ``xp`` is the array library of a device, ``pinned`` and ``page_aligned`` are host memory.
Lane     ``Lane`` is a stream of our own on a GPU: uploads, events, the hand-over to the consumer's
         stream, and memory that is lent to the consumer and comes back when his kernels have run,
         not when he dropped it.
Bundle   ``Bundle`` has all that a batch needs on a GPU in one upload: its bytes, and what kernels
         read beside them.
Source   CuPy 13 and 14: streams https://docs.cupy.dev/en/stable/user_guide/cuda_api.html, memory
         pool https://docs.cupy.dev/en/stable/user_guide/memory.html (free memory is kept for each
         stream).
"""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuload import core, driver, signalsafe, threads
from gpuload.errors import ClosedError, DeviceError, SpecError, install_command, missing_package

Run = TypeVar("Run", bound=Callable[..., Any])

PAGE_BYTES = 4096
CAPABILITY = 75, 76  # cudaDevAttrComputeCapabilityMajor and Minor
# So many arrays that foreign streams read are freed together, by a thread that waits for the whole
# GPU.
FOREIGN_GROUP = 8
MAX_FOREIGN = 64  # of these arrays; at that number the lane itself waits, too
MOST_IDLE_PINNED_BYTES = 1 << 29  # of page-locked memory that waits for its next use
LEGACY_STREAM, PER_THREAD_STREAM = 1, 2  # in DLPack, which names other streams by larger numbers
PARAMETER_ALIGN_BYTES = 64  # each array of parameters begins at a multiple
GAP_BYTES = 1 << 14  # between bytes that are uploaded together
NO_BYTES = np.empty(0, np.uint8)
STREAM_ORDERED_KINDS = (
    "PooledMemory",
    "MemoryAsync",
)  # CuPy's kinds of memory that only work of one stream gets again


def choose(device: str) -> tuple[str, str]:
    """Return the device to use, ``"cpu"`` or ``"gpu:N"``, and why.

    Raises:
        SpecError: ``device`` is not "auto", "cpu", "gpu" or "gpu:N".
        DeviceError: a GPU was asked for and cannot be used; the cause is named.
    """
    if device == "cpu":
        return "cpu", "asked for"
    if device == "auto":
        problem = gpu_problem(0)
        if problem:
            return ("cpu", f"no usable GPU: {problem.cause}")
        return ("gpu:0", "a GPU is there")
    if isinstance(device, str):
        match = re.fullmatch(r"gpu(?::(\d+))?", device)
    else:
        match = None
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
        "nvidia-smi lists its users; in the mode 'Exclusive Process' (nvidia-smi -q -d COMPUTE) only one process can",
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
        "restart the machine after an update of the driver; in a container, take the driver's library from the host "
        "and not from /usr/local/cuda/compat",
    ),
}
OTHER_PROBLEM = Problem(
    "a call of CUDA failed",
    "nvidia-smi and the kernel's log (dmesg, Xid) say how the GPU is; CUDA works again in a new process",
)


def gpu_problem(number: int) -> Problem | None:
    """Return why GPU ``number`` cannot be used, or None if it can."""
    return signalsafe.call(
        lambda: _gpu_problem(number)
    )  # an exception of a signal handler is no fault of the GPU


def _gpu_problem(number: int) -> Problem | None:
    if not signalsafe.is_installed("cupy"):
        return Problem("CuPy is not installed", driver.install_packages())
    try:
        module = cupy()
        runtime = module.cuda.runtime
        count = int(runtime.getDeviceCount())
    except (
        Exception
    ) as error:  # CuPy raises its own types for a missing driver, a missing library, an old driver
        return _driver_problem(error)
    if number >= count:
        if count == 1:
            names = "'gpu:0'"
        else:
            names = f"'gpu:0' to 'gpu:{count - 1}'"
        if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is None:
            hidden = ""
        else:
            hidden = f", CUDA_VISIBLE_DEVICES={visible}"
        return Problem(
            f"the driver shows {count} GPUs, numbered from 0{hidden}", f"use device={names}"
        )
    return _compiler_problem(runtime, number)


def _driver_problem(error: Exception) -> Problem:
    """Return the problem that an error of the first call of CUDA shows."""
    text = f"({type(error).__name__}: {(str(error).splitlines() or [''])[0]})"
    try:
        runtime = cupy().cuda.runtime
        driver_version, runtime_version = (
            int(runtime.driverGetVersion()),
            int(runtime.runtimeGetVersion()),
        )
    except Exception:  # CuPy itself cannot be imported, or finds none of CUDA's libraries
        return Problem(
            f"CuPy cannot be used {text}", f"{driver.install_packages()}, into a new environment"
        )
    if driver_version == 0:
        remedy = "install an NVIDIA driver, and start a container with --gpus all; nvidia-smi shows whether it is there"
        return Problem(f"CuPy finds no CUDA driver {text}", remedy)
    if driver_version // 1000 < runtime_version // 1000:
        of_driver, of_cupy = (
            driver.version_text(driver_version),
            driver.version_text(runtime_version),
        )
        cause = f"the driver supports CUDA {of_driver}, and CuPy is built for CUDA {of_cupy}"
        if driver_version // 1000 == 12:
            alternative = f", or {install_command('cuda12')}"
        else:
            alternative = ""
        return Problem(cause, f"update the NVIDIA driver{alternative}")
    if "NoDevice" in text:
        remedy = "look at nvidia-smi and at CUDA_VISIBLE_DEVICES, which may hide every GPU"
        return Problem(f"the CUDA driver shows no GPU that can be used {text}", remedy)
    problem = _meaning(text)
    return Problem(f"{problem.cause} {text}", problem.remedy)


def _compiler_problem(runtime: Any, number: int) -> Problem | None:
    """Return why no kernel can be compiled for a GPU: CuPy would say so at the first one, in the
    middle of a batch."""
    try:
        nvrtc = signalsafe.import_package("cupy_backends.cuda.libs.nvrtc")
        version, archs = nvrtc.getVersion(), nvrtc.getSupportedArchs()
        card = 10 * runtime.deviceGetAttribute(CAPABILITY[0], number) + runtime.deviceGetAttribute(
            CAPABILITY[1], number
        )
    except runtime.CUDARuntimeError as error:
        text = str(error).splitlines()[0]
        return Problem(f"{_meaning(text).cause}: {text}", _meaning(text).remedy)
    except (
        Exception
    ) as error:  # cuda.pathfinder and CuPy have several types for a library that is not there
        cause = f"CuPy finds no compiler, NVRTC ({type(error).__name__}: {(str(error).splitlines() or [''])[0]})"
        remedy = 'pip install "cupy-cuda13x[ctk]>=14", or "cupy-cuda12x[ctk]>=14" for CUDA 12'
        if (
            int(cupy().__version__.partition(".")[0]) < 14
        ):  # it does not look into NVIDIA's packages
            remedy += (
                "; this CuPy finds libnvrtc of an installed CUDA toolkit, or in LD_LIBRARY_PATH"
            )
        return Problem(cause, remedy)
    if card < min(archs):
        cause = f"NVRTC {version[0]}.{version[1]} compiles for sm_{min(archs)} and later, and the GPU is sm_{card}"
        return Problem(cause, f"take CuPy for CUDA 12: {install_command('cuda12')}")
    return None


def failure(error: BaseException) -> BaseException:
    """Return the error to raise for one that CuPy raised, a ``DeviceError``; any other as it is."""
    if not type(error).__module__.startswith("cupy"):
        return error
    text = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    problem = _meaning(text)
    translation = DeviceError(problem.cause, cause=text, remedy=problem.remedy)
    translation.__cause__ = error
    return translation


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if CUDA had no memory on the GPU for what raised an error."""
    text = f"{type(error).__name__}: {error}"
    return type(error).__module__.startswith("cupy") and any(name in text for name in OUT_OF_MEMORY)


def _meaning(text: str) -> Problem:
    """Return the meaning of an error of CUDA, which has its name in its text."""
    return next(
        (problem for names, problem in PROBLEMS.items() if any(name in text for name in names)),
        OTHER_PROBLEM,
    )


@cache
def cupy() -> ModuleType:
    """Return the module ``cupy``; raises ``MissingPackageError`` where it is not installed."""
    try:
        return signalsafe.import_package("cupy")
    except ImportError as error:
        raise missing_package(
            "cupy", needed_for="a GPU", remedy=driver.install_packages(), error=error
        ) from None


def xp(device: str) -> ModuleType:
    """Return the array library of a device: NumPy or CuPy."""
    return np if device == "cpu" else cupy()


def num_gpus() -> int:
    """Return how many GPUs this process sees."""
    return int(cupy().cuda.runtime.getDeviceCount())


def number(device: str) -> int:
    """Return N of ``"gpu:N"``."""
    return int(device.partition(":")[2])


def card_name(device: str) -> str:
    """Return the name of the GPU of ``"gpu:N"``, as its maker has it."""
    name = cupy().cuda.runtime.getDeviceProperties(number(device))["name"]
    if isinstance(name, bytes):
        return name.decode()
    return str(name)


def page_aligned(num_bytes: int) -> NDArray[np.uint8]:
    """Return host memory that begins at a page, uint8 ``[num_bytes]``."""
    memory = np.empty(num_bytes + PAGE_BYTES, np.uint8)
    begin = -memory.ctypes.data % PAGE_BYTES
    return memory[begin : begin + num_bytes]


def offer(memory: NDArray[np.uint8]) -> bool:
    """Let the system take the pages of page-aligned memory when it is short of it; their bytes may
    become zeros.

    Memory that is written again before that costs nothing, while the system clears every page of
    new memory.

    Returns:
        False where the system does not do that.
    """
    return core.native is not None and core.native.offer_pages(memory)


def pinned(num_bytes: int) -> NDArray[np.uint8]:
    """Return page-locked host memory for fast copies to a GPU, uint8 ``[num_bytes]``.

    Memory that is dropped serves the next call for as many bytes: CUDA takes milliseconds to lock
    pages, and may wait for the GPU to unlock them. CuPy's pool is not used because it rounds the
    size up to a power of two.
    """
    size = max(num_bytes, 1)
    idle = _idle_pinned[size]
    try:
        # No look before it: another thread may take the last one in between, and no lock is held.
        memory = idle.pop()
    except IndexError:
        memory = _lock_pages(size)
    return np.asarray(_PinnedLoan(memory, idle))[:num_bytes]


class _PinnedLoan:
    """Lends page-locked memory to the arrays that refer to it; its finalizer takes no lock and
    frees nothing."""

    def __init__(self, memory: NDArray[np.uint8], idle: deque[NDArray[np.uint8]]) -> None:
        self._memory, self._idle, self.__array_interface__ = (
            memory,
            idle,
            memory.__array_interface__,
        )

    def __del__(self) -> None:
        self._idle.append(self._memory)


def _lock_pages(size: int) -> NDArray[np.uint8]:
    """Return page-locked memory; if the system gives none, idle memory is unlocked and it is asked
    again."""
    cuda = cupy().cuda
    _unlock_pages(MOST_IDLE_PINNED_BYTES)
    try:
        memory = cuda.PinnedMemory(size)
    except cuda.runtime.CUDARuntimeError:
        _unlock_pages(0)  # idle memory may be all that is missing
        try:
            memory = cuda.PinnedMemory(size)
        except cuda.runtime.CUDARuntimeError as error:
            if "MemoryAllocation" not in str(error):
                raise
            raise DeviceError(
                f"{size} bytes of page-locked host memory are not to be had",
                cause=str(error),
                remedy="give the process, or its container, more memory; ulimit -l may bound locked memory; a smaller "
                "batch_size or prefetch needs less",
            ) from error
    return np.frombuffer(cuda.PinnedMemoryPointer(memory, 0), np.uint8, size)


def nvtx_ranges() -> tuple[Callable[[str], object], Callable[[], object]] | None:
    """Return the functions that begin and end a range of NVTX in the calling thread; None without
    CuPy."""
    try:
        nvtx = cupy().cuda.nvtx
    except (ImportError, AttributeError):
        return None
    return nvtx.RangePush, nvtx.RangePop


def _unlock_pages(most_bytes: int) -> None:
    """Free idle page-locked memory beyond so many bytes, the largest first; other threads may take
    some meanwhile."""
    sizes = sorted(_idle_pinned, reverse=True)
    num_bytes = sum(size * len(_idle_pinned[size]) for size in sizes)
    for size in sizes:
        with suppress(IndexError):
            while num_bytes > most_bytes:
                _idle_pinned[size].popleft()
                num_bytes -= size


_idle_pinned: defaultdict[int, deque[NDArray[np.uint8]]] = defaultdict(
    deque
)  # memory that is not in use, by its bytes


def upload(host: NDArray[Any], device: str) -> Any:
    """Return a copy of a C-contiguous host array on a GPU; asynchronous where the host memory is
    pinned."""
    with cupy().cuda.Device(number(device)):
        on_gpu = cupy().empty(host.shape, host.dtype)
        on_gpu.set(host, stream=cupy().cuda.get_current_stream())
        return on_gpu


def fetch(array: Any) -> tuple[NDArray[Any], Any]:
    """Queue the copy of a small array to the host on CuPy's current stream; the host does not wait.

    Returns:
        The host array, and CuPy's event behind the copy: once that has passed, the array holds the
        numbers. The memory
        is kept until then, also where the caller drops it.
    """
    host = pinned(array.nbytes).view(array.dtype).reshape(array.shape)
    stream = cupy().cuda.get_current_stream()
    array.get(stream=stream, out=host, blocking=False)
    copy = host, stream.record()
    _copies.append(copy)
    with suppress(IndexError):  # taken out before it is looked at: other threads do the same
        while (oldest := _copies.popleft())[1].done:
            pass
        _copies.appendleft(oldest)
    return copy


_copies: deque[tuple[NDArray[Any], Any]] = (
    deque()
)  # host memory that a GPU may still write to, and the event behind it


def card_bytes(device: str) -> tuple[int, int]:
    """Return how many bytes of a GPU's memory are free, and how many it has."""
    _free_dropped_memory()  # it is free for whoever is told
    return _ask_card(device, lambda: cupy().cuda.runtime.memGetInfo())


def empty_pool(device: str) -> None:
    """Give the idle memory of CuPy's pool on a GPU back to CUDA, as far as no work that is queued
    uses it."""
    with (
        suppress(Exception),
        cupy().cuda.Device(number(device)),
    ):  # a GPU that is lost says so at the next call
        cupy().get_default_memory_pool().free_all_blocks()


def pool_bytes(device: str) -> tuple[int, int]:
    """Return how many bytes of CuPy's memory pool on a GPU are in use, and how many are idle."""
    pool = cupy().get_default_memory_pool()
    return _ask_card(device, lambda: (pool.used_bytes(), pool.free_bytes()))


def _ask_card(device: str, question: Callable[[], tuple[int, int]]) -> tuple[int, int]:
    """Return two numbers that CUDA or CuPy has of a GPU; an error of CUDA is a ``DeviceError``."""
    try:
        with cupy().cuda.Device(number(device)):
            first, second = question()
            return int(first), int(second)
    except Exception as error:
        raise failure(error) from error


class CardMemory:
    """A piece of a GPU's memory, taken from CUDA itself: CuPy's pool would keep it when it is
    freed.

    Attributes:
        address: where it begins; a multiple of 256.
    """

    address = 0

    def __init__(self, address: int, number: int, pid: int) -> None:
        self.address, self._number, self._pid = address, number, pid

    @classmethod
    def take(cls, num_bytes: int, device: str) -> CardMemory | None:
        """Return so many bytes; None if the GPU has not so many.

        Raises:
            DeviceError: a call of CUDA failed.
        """
        runtime = cupy().cuda.runtime
        _free_dropped_memory()
        try:
            with cupy().cuda.Device(number(device)):
                return cls(int(runtime.malloc(num_bytes)), number(device), os.getpid())
        except runtime.CUDARuntimeError as error:
            if any(name in str(error) for name in OUT_OF_MEMORY):
                return None
            raise failure(error) from error

    def free(self) -> None:
        """Give it back; CUDA waits until no kernel uses it. Twice is allowed; so is a GPU that was
        lost."""
        address, self.address = self.address, 0
        if address and self._pid == os.getpid():
            with suppress(Exception), cupy().cuda.Device(self._number):
                cupy().cuda.runtime.free(address)

    def __del__(self) -> None:
        # A finalizer waits for nothing, and CUDA may: the next call that takes memory frees it.
        if self.address:
            _dropped_memory.append((self.address, self._number, self._pid))


_dropped_memory: deque[tuple[int, int, int]] = (
    deque()
)  # of `CardMemory` that was not freed: address, GPU, process


def _free_dropped_memory() -> None:
    """Free the memory of which only the finalizer was called."""
    with suppress(IndexError):
        while True:
            CardMemory(*_dropped_memory.popleft()).free()


def compiles(xp: ModuleType) -> bool:
    """Return True if an array library compiles kernels of CUDA, as CuPy does and NumPy does not."""
    return hasattr(xp, "RawKernel")


@cache
def kernel(source: str, name: str) -> Kernel:
    """Return a kernel of CUDA C++, compiled for each GPU when it is first launched there.

    Products and sums are not fused, so that it makes the numbers that NumPy makes. In a `Bundle` it
    is launched when what it reads was uploaded.

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
                `elementwise` what it reads, then the arrays that it writes to.
        """
        if (bundle := _waiting_bundle()) is None:
            self._raw(*arguments)
        else:
            bundle.launch(self._raw, *arguments)


def parameters(array: NDArray[Any]) -> Any:
    """Return a copy of a small host array on the current GPU, for kernels of `kernel`.

    In an open `Bundle` it is uploaded with the batch, and nothing else may read it before `settle`.
    """
    bundle = _waiting_bundle()
    if bundle is None:
        return cupy().asarray(array)
    return bundle.add(array)


def zeros(shape: tuple[int, ...] | int, dtype: Any) -> Any:
    """Return an array of zeros on the current GPU, for kernels of `kernel`; in an open `Bundle` it
    waits as they do."""
    array = cupy().empty(shape, dtype)
    if (bundle := _waiting_bundle()) is None:
        array.fill(0)
    else:
        bundle.launch(array.fill, 0)
    return array


def copy(array: Any) -> Any:
    """Return a copy of an array on the current GPU, in C order; in an open `Bundle` it waits as
    kernels do."""
    result = cupy().empty(array.shape, array.dtype)
    Kernel(result.__setitem__)(..., array)
    return result


def hold(images: Any) -> None:
    """Keep arrays of which kernels get only the addresses until the kernels that wait have been
    launched.

    Memory that nobody refers to is another array's next, which may be written while these kernels
    still wait.
    """
    if (bundle := _waiting_bundle()) is not None:
        bundle.owners.append(images)


def _waiting_bundle() -> Bundle | None:
    """Return the current bundle of the thread if it is open, so that kernels wait for it."""
    bundle = _current.bundle
    if bundle is not None and bundle.is_open:
        return bundle
    return None


def settle() -> None:
    """Upload the current `Bundle`, launch the kernels that wait for it, and close it; without one
    do nothing.

    It is called before anything but `kernel` works on the arrays of a batch: CuPy's own functions
    do not wait. What comes behind it does not wait either, until the bundle is opened again.
    """
    if _current.bundle is not None:
        _current.bundle.settle()


def open_bundle() -> None:
    """Let kernels and their parameters wait again for the current `Bundle`; without one do
    nothing."""
    if _current.bundle is not None:
        _current.bundle.is_open = True


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


@cache
def elementwise(reads: str, writes: str, body: str, name: str) -> Kernel:
    """Return a kernel of CuPy that makes each number of its results by itself; see
    ``cupy.ElementwiseKernel``."""
    return Kernel(cupy().ElementwiseKernel(reads, writes, body, name, options=("--fmad=false",)))


def view_at(memory: Any, begin: int, dtype: np.dtype[Any], shape: Sequence[int]) -> Any:
    """Return the bytes of an array on a GPU from ``begin`` on as another array; three views of
    views take longer."""
    return type(memory)(shape, dtype, memory.data + begin)


class Views(Sequence[Any]):
    """Images of different sizes that lie in one memory on a GPU: a table of them, and an array of
    each that is read.

    Kernels need the table alone, and to make the arrays of many images takes longer than to queue a
    kernel. It is no list, which CuPy's functions would read past `__iter__`: whoever needs one
    calls ``list(views)``.

    Args:
        memory: an array of one axis, in which the images are.
        dtype: of the numbers.
        shapes: of each image, which is in C order, int64 ``[N, 3]``.
        begins: the first byte of each in the memory, int64 ``[N]``.

    Attributes:
        memory, shapes: as above.
    """

    def __init__(
        self,
        memory: Any,
        dtype: np.dtype[Any],
        shapes: NDArray[np.int64],
        begins: NDArray[np.int64],
    ) -> None:
        self.memory, self._dtype, self.shapes, self._begins = memory, dtype, shapes, begins

    @property
    def table(self) -> NDArray[np.int64]:
        """Strides in bytes, shape and address of each image, int64 ``[N, 7]``."""
        table: NDArray[np.int64] = np.empty((len(self), 7), np.int64)
        table[:, 2], table[:, 3:6], table[:, 6] = self._dtype.itemsize, self.shapes, self._begins
        table[:, 1] = table[:, 5] * table[:, 2]
        table[:, 0] = table[:, 4] * table[:, 1]
        table[:, 6] += self.memory.data.ptr
        return table

    @property
    def nbytes(self) -> int:
        """The bytes of all images."""
        return int(self.shapes.prod(axis=1).sum()) * self._dtype.itemsize

    def join(self) -> Any | None:
        """Return the rows of all images, one after the other as they lie in the memory; None where
        they do not."""
        sizes = self.shapes.prod(axis=1) * self._dtype.itemsize
        are_alike = (self.shapes[:, 1:] == self.shapes[:1, 1:]).all()
        if (
            not len(self)
            or not are_alike
            or (self._begins[1:] != self._begins[:-1] + sizes[:-1]).any()
        ):
            return None
        shape = int(self.shapes[:, 0].sum()), *self.shapes[0, 1:].tolist()
        return view_at(self.memory, int(self._begins[0]), self._dtype, shape)

    def move(self, memory: Any) -> Views:
        """Return the same images in an array over the same bytes."""
        return Views(memory, self._dtype, self.shapes, self._begins)

    def __len__(self) -> int:
        return len(self._begins)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return Views(self.memory, self._dtype, self.shapes[key], self._begins[key])
        row = range(len(self))[key]
        return next(iter(self[row : row + 1]))

    def __iter__(self) -> Iterator[Any]:
        for shape, begin in zip(self.shapes.tolist(), self._begins.tolist(), strict=True):
            yield view_at(self.memory, begin, self._dtype, shape)


def as_list(values: Any) -> Any:
    """Return the values of a field as anyone takes them: `Views` as a list."""
    if isinstance(values, Views):
        return list(values)
    return values


def constant(make: Callable[[], NDArray[Any]]) -> Any:
    """Return the array that a function makes, on the current GPU: uploaded by the first call, and
    kept.

    Args:
        make: makes the same array at each call.
    """
    return _constant(make, int(cupy().cuda.Device().id))


@cache
def _constant(make: Callable[[], NDArray[Any]], number: int) -> Any:
    array = cupy().asarray(make())
    cupy().cuda.get_current_stream().synchronize()  # work on other streams reads it, too
    return array


def synchronize(device: str) -> None:
    """Wait until the GPU has done all work of the current stream."""
    with cupy().cuda.Device(number(device)):
        cupy().cuda.get_current_stream().synchronize()


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

    _track: _Track | None = None

    def __init__(self, device: str) -> None:
        self.device = device
        self._entered = threading.local()
        self._reclaiming, self._closing = (
            threading.Lock(),
            threading.Lock(),
        )  # no finalizer takes either
        self._ledger = _Ledger()
        try:
            self._track = _take_track(number(device))
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

        It is for what writes to the GPU in no order with the lane's work, as reads from files do.
        """
        with self:
            memory = cupy().empty(num_bytes, np.uint8)
            self.mark().synchronize()  # memory that was freed in the order of the stream may still be read there
            return memory

    def fill_free_memory(self, sizes: Sequence[int], pattern: int) -> None:
        """Fill memory on the GPU with a byte, and give it back, so that the lane's next work gets
        it.

        What leaves a part of its memory unwritten then shows that byte. Where so much is not free,
        less is filled. A GPU that fails here fails at the next work, too, whose caller gets the
        error.

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
        """Return the same device memory as an array for the consumer, in whose thread this is
        called.

        The memory comes back to the lane when the last array, view or DLPack capsule of it is
        dropped, in any thread; ``reclaim`` then lets it go when it is safe. The caller drops its
        own references. See ``_Loan``.
        """
        track = self._open()
        if not array.size:
            return array  # there is no memory
        with cupy().cuda.Device(track.number):
            stream = cupy().cuda.get_current_stream()
        loan = _Loan(array, track, self._ledger, stream)
        memory = cupy().cuda.UnownedMemory(array.data.ptr, array.nbytes, loan, track.number)
        pointer = cupy().cuda.MemoryPointer(memory, 0)
        return _lane_array_class(cupy())(array.shape, array.dtype, pointer, array.strides)

    def reclaim(self, *, wait: bool = False) -> None:
        """Let go of the memory that came back, so that work that is queued on the lane from now on
        may use it.

        Memory whose readers are known costs the host nothing: the lane's stream waits for their
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
        """Wait until all that was queued has run, and give the stream back; arrays that are still
        lent stay valid.

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

    def _may_go(self, release: _Release, stream: Any, wait: bool) -> bool:
        """Return whether memory may go, after ordering the lane's next work behind all work that
        still reads it."""
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

    def _open(self) -> _Track:
        if self._track is None:
            raise ClosedError("a lane of a GPU", cause="it was closed", remedy="make a new loader")
        self._track.check()
        return self._track

    def _give_back(self) -> None:
        track, self._track = self._track, None
        if track is not None:
            _idle_tracks.setdefault((track.pid, track.number), deque()).append(track)


class Bundle:
    """What a batch needs on a GPU, in one upload: its bytes, and behind them what kernels read
    beside these.

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
    wait. What does not fit into the memory is uploaded by itself.

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
            memory: uint8 ``[num_bytes or more]``; what lies behind is written to.
            num_bytes: that `upload` may be asked for.
        """
        self._host, self._address, self._end = memory, _address(memory), num_bytes
        self._memory = cupy().empty(memory.size, np.uint8)

    def upload(self, host: NDArray[Any]) -> Any:
        """Return a C-contiguous host array on the GPU: after `settle` if it lies in the memory,
        else in its turn."""
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
        """Have a kernel wait; its arguments are kept until it is launched, and so is what `hold`
        was given."""
        self._launches.append((raw, arguments))

    def settle(self) -> None:
        """Upload what waits, and launch the kernels that wait for it; see the function `settle`."""
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


class _Current(threading.local):
    """The bundle of the calling thread."""

    bundle: Bundle | None = None


_current = _Current()


def _merge(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges of bytes in their order, those as one that are no more than `GAP_BYTES`
    apart."""
    chunks: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if chunks and begin <= chunks[-1][1] + GAP_BYTES:
            chunks[-1] = chunks[-1][0], max(chunks[-1][1], end)
        else:
            chunks.append((begin, end))
    return chunks


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


class Event:
    """A point in the work of a stream; it has passed when all that was queued there before has
    run."""

    __slots__ = ("_event", "_idle", "_track", "holder")

    def __init__(self, event: Any, track: _Track, idle: deque[Any]) -> None:
        self._event, self._track, self._idle = event, track, idle
        self.holder: Any = (
            None  # the consumer's stream that waits for it; kept, so that no other gets its handle
        )

    @property
    def done(self) -> bool:
        """Whether it has passed."""
        self._track.check()
        return bool(self._event.done)

    def synchronize(self) -> None:
        """Have the host wait until it has passed; other threads run meanwhile."""
        self._track.check()
        self._event.synchronize()

    def seconds_since(self, before: Event) -> float:
        """Return the seconds between two events that have passed, both timed, on the GPU's
        clock."""
        self._track.check()
        return float(cupy().cuda.get_elapsed_time(before._event, self._event)) / 1e3

    def hold_back(self, stream: Any) -> None:
        """Order all later work of a CuPy stream behind this point; the host does not wait."""
        stream.wait_event(self._event)

    def __del__(self) -> None:
        # CUDA's event is used again. Destroying it would be a call to CUDA, also in a process that
        # was forked off. Streams that wait for it already are not affected: each waits for the
        # point recorded when its wait was queued. The track holds the event, too: see there.
        self._idle.append(self._event)


class _Track:
    """A stream of a GPU, with the memory that comes back to it. Tracks are used again by later
    lanes, never destroyed.

    CuPy's memory pool keeps free memory by the stream's handle, and CUDA gives the handle of a
    destroyed stream to the next one that is made. Memory of a lane that is gone could then be given
    out while work of the old stream, or a consumer that kept a batch, still uses it. As long as the
    track is kept, the order of its stream covers both: the next lane on it reclaims the memory.
    There are as many tracks as there were lanes at one time.

    Streams and events must never be garbage. Python calls the finalizers of a whole cycle of
    garbage before it frees any of it: CuPy's would destroy the stream and the events, and ours,
    called in the same collection, would keep them for the next lane. So ``_tracks`` refers to every
    track, and a track to every event that it made.
    """

    def __init__(self, number: int) -> None:
        self.number, self.pid = number, os.getpid()
        with cupy().cuda.Device(number):
            self.stream = cupy().cuda.Stream(non_blocking=True)
        self.releases: deque[_Release] = deque()
        self.is_waiting = False  # True while a thread waits for readers that CuPy does not see
        self.events: list[Any] = []
        self.last_arrays: list[Any] = []  # that were dropped at the exit of the interpreter
        self.idle_events: deque[Any] = deque()
        self.idle_timed_events: deque[Any] = deque()

    def is_ours(self) -> bool:
        """Return False in a process that was forked off."""
        return self.pid == os.getpid()

    def check(self) -> None:
        """Raise ``DeviceError`` in a process that was forked off."""
        if not self.is_ours():
            raise DeviceError(
                f"gpu:{self.number} in a process that was forked off",
                cause="CUDA does not survive a fork",
                remedy="make the loader in the process that uses it, or start processes with the 'spawn' method",
            )

    def wait_for_readers(self, releases: list[_Release]) -> None:
        """Wait until the GPU has done all that was queued up to now, so that no kernel reads this
        memory any more."""
        cupy().cuda.Device(self.number).synchronize()
        for memory in releases:
            memory.events = []

    def wait_aside(self, releases: list[_Release]) -> None:
        """Have a thread wait for the readers of this memory; one at a time."""
        # First, for the thread sets it back, maybe before `start` has returned.
        self.is_waiting = True
        try:
            threads.start(
                1, _wait_for_readers, self, releases, name="gpuload-readers", stop=_ignore_stop
            )
        except BaseException:
            self.is_waiting = False
            raise

    def mark(self, stream: Any, *, timed: bool = False) -> Event:
        """Return an event that passes when all that was queued on a stream of this GPU up to now
        has run."""
        if timed:
            idle = self.idle_timed_events
        else:
            idle = self.idle_events
        try:
            event = idle.pop()
        except IndexError:
            with cupy().cuda.Device(self.number):
                # A thread that waits for a blocking event sleeps, and leaves its core to those that
                # read records.
                event = cupy().cuda.Event(block=True, disable_timing=not timed)
            self.events.append(event)
        event.record(stream)
        return Event(event, self, idle)


def _wait_for_readers(track: _Track, releases: list[_Release]) -> None:
    """Be the thread that waits; where CUDA fails the memory stays, and the host meets the error
    where it waits."""
    try:
        with suppress(Exception), cupy().cuda.Device(track.number):
            track.wait_for_readers(releases)
    finally:
        track.is_waiting = False


def _ignore_stop() -> None:
    """Stop a thread that waits for the GPU: it ends by itself."""


class _Loan:
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
      ``_lane_array_class``). TensorFlow and JAX let go of it when a kernel is queued, on streams
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

    def __init__(self, array: Any, track: _Track, ledger: _Ledger, stream: Any) -> None:
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
            self._track.releases.append(_Release(self._array, self._events(), self._ledger))

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


class _Release:
    """Device memory that the consumer let go of, and the events after which no kernel reads it
    (None: not known)."""

    __slots__ = ("_array", "_ledger", "events", "is_stream_ordered")

    def __init__(self, array: Any, events: list[Event] | None, ledger: _Ledger) -> None:
        self._array, self.events, self._ledger = array, events, ledger
        self.is_stream_ordered = type(array.data.mem).__name__ in STREAM_ORDERED_KINDS

    def settle(self) -> None:
        """Take the memory off the ledger of memory that is lent; it is freed with this object."""
        self._ledger.remove(self._array)


class _Ledger:
    """Counts the device memory that is lent: arrays that share one memory count once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # no finalizer takes it
        self._loans: dict[
            int, tuple[int, int]
        ] = {}  # of each memory, by its address: how many loans, how many bytes

    @property
    def bytes(self) -> int:
        """The sum over all memory."""
        with self._lock:
            return sum(num_bytes for _, num_bytes in self._loans.values())

    def add(self, array: Any) -> None:
        """Count an array that is lent."""
        with self._lock:
            loans, num_bytes = self._loans.get(array.data.mem.ptr, (0, memory_bytes(array)))
            self._loans[array.data.mem.ptr] = loans + 1, num_bytes

    def remove(self, array: Any) -> None:
        """Count an array that was reclaimed."""
        with self._lock:
            loans, num_bytes = self._loans.get(array.data.mem.ptr, (0, 0))
            if loans > 1:
                self._loans[array.data.mem.ptr] = loans - 1, num_bytes
            else:
                self._loans.pop(array.data.mem.ptr, None)


def memory_bytes(array: Any) -> int:
    """Return the bytes of the device memory that an array lies in, and that it keeps."""
    return max(
        int(array.data.mem.size), int(array.nbytes)
    )  # CuPy 14 has too small a size for DLPack's memory


@cache
def _lane_array_class(module: Any) -> Any:
    """Return the class of lent arrays: an array that notes when its memory leaves CuPy."""

    def leaves(array: Any) -> None:
        # The memory's owner is the loan, also for views; results of arithmetic have memory of their
        # own.
        loan = getattr(array.data.mem, "_owner", None)
        if isinstance(loan, _Loan):
            loan.is_seen = False

    class LaneArray(module.ndarray):  # type: ignore[misc]  # CuPy has no types
        """Array over memory that a lane has lent."""

        def __dlpack__(self, *args: Any, **options: Any) -> Any:
            leaves(self)
            return super().__dlpack__(*args, **options)

        def toDlpack(self) -> Any:
            """See ``cupy.ndarray.toDlpack``."""
            leaves(self)
            return super().toDlpack()

        @property
        def __cuda_array_interface__(self) -> Any:
            leaves(self)
            return super().__cuda_array_interface__

    return LaneArray


class _StreamExport:
    """A lent array for a library that reads it on the stream which it names, or in the order of
    that stream."""

    def __init__(self, array: Any, loan: _Loan) -> None:
        self._array, self._loan = array, loan

    def __dlpack_device__(self) -> Any:
        """See DLPack."""
        return self._array.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        """See DLPack; where ``stream`` names none, the readers of the memory are not known."""
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
    """The handle of a stream of another library, which keeps the stream alive, by CUDA's protocol
    for streams.

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
    """Return the argument for a library that keeps to the stream which it names in
    ``__dlpack__(stream=)``.

    The memory is used again when the work queued on that stream has run, once the library has let
    go of it. Torch is such a library: work on other streams is its user's to order, as for any
    tensor.
    """
    loan = getattr(array.data.mem, "_owner", None)
    if isinstance(loan, _Loan):
        return _StreamExport(array, loan)
    return array


_tracks: list[_Track] = []
_idle_tracks: dict[
    tuple[int, int], deque[_Track]
] = {}  # of each process and GPU: a child does not use its parent's


def _take_track(number: int) -> _Track:
    try:
        # No look before it, as in `pinned`.
        return _idle_tracks[os.getpid(), number].pop()
    except (KeyError, IndexError):
        track = _Track(number)
        _tracks.append(track)
        return track
