"""An emulated GPU behind the real CuPy: its Cython, pools, streams, events, DLPack and kernels run
without a card.

    from tests import emulated_gpu
    emulated_gpu.install()               before anything imports cupy
    before = emulated_gpu.calls()
    ...
    emulated_gpu.since(before)           {"cuLaunchKernel": 1, "uploads": 1, "uploaded bytes":
                                         802816, ...}

Driver    ``driver.cpp`` is compiled and loaded as ``libcuda.so.1``. The calls of the CUDA runtime,
          which is linked into CuPy's module ``runtime``, are overwritten in memory with jumps to it
          (x86-64 only; ``nm`` says where).
Kernels   CuPy's compiler hands each kernel's source to g++ behind ``kernel.h``. What g++ made is
          kept in ``CACHE``, and so are the sources, which ``tests.emulated_gpu.nvrtc`` compiles for
          real cards.
Shows     the order of work between streams, which runs late; lifetimes of memory, streams and
          events; dtypes, shapes and arithmetic of everything in CuPy, bit for bit but for fused
          multiply-adds; casts to whole numbers as a GPU makes them (``casts.py``); what a batch
          costs in calls; what becomes of an error of any call; several devices; registers and
          spills of kernels on a card (``nvrtc.py``).
Sanitize  With ``EMULATED_GPU_SANITIZE=1`` kernels run under AddressSanitizer, without a memory
          pool, and with checks of UndefinedBehaviorSanitizer: reads and writes out of bounds, wrong
          alignment, casts and shifts that are undefined, whole numbers that overflow. Each is a
          fault (`num_faults`), which fails a test, and is told with the kernel's line.
          ``sanitized()`` has the variables for it; `make sanitize-gpu` runs all ops so.
Does not  run DALI's kernels or any other library's. It cannot show times, the memory model of a
          card, graphs under capture, or subnormals (CuPy flushes them on a card).
Compare   ``tests/simdevice.py`` knows of each byte whether it was written and of each reader
          whether it was ordered, but stands in for CuPy itself. Here CuPy is the real one, and a
          fault shows only if late work meets it.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.emulated_gpu import casts

HERE = Path(__file__).resolve().parent
ENVIRONMENT = (
    HERE.parent.parent / "build" / "emulated-gpu"
)  # `make emulated-gpu` makes it: an environment with CuPy
CACHE = Path(
    os.environ.get("EMULATED_GPU_CACHE", HERE.parent.parent / "build" / "emulated-gpu-cache")
)
HEADERS = ("kernel.h", "include/cupy/complex.cuh")
SANITIZE = "EMULATED_GPU_SANITIZE"
SANITIZERS = (
    "-fsanitize=address", "-fsanitize-recover=address", "-fno-omit-frame-pointer", "-g1",
    "-fsanitize=alignment,bounds,float-cast-overflow,integer-divide-by-zero,shift,signed-integer-overflow",
)  # fmt: skip

# As in CUDA's headers.
INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, DEVICES_UNAVAILABLE, NO_DEVICE = 1, 2, 3, 46, 100
LAUNCH_FAILURE, SYSTEM_NOT_READY = 719, 802
CUDA_13 = 13000

_jump_names: list[Any] = []  # what the overwritten calls point to


def problem() -> str | None:
    """Return why the emulated GPU cannot be used here, None if it can; imports nothing."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return "the emulated GPU is for Linux on x86-64"
    for program in ("g++", "nm"):
        if shutil.which(program) is None:
            return f"the emulated GPU needs {program}"
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed: `make emulated-gpu` makes an environment with it"
    if not all(
        any((folder / name).exists() for folder in _cuda_headers()) for name in ("crt", "cuda.h")
    ):
        return "CUDA's headers are not installed: pip install 'cupy-cuda13x[ctk]' nvidia-cuda-crt"
    return None


def install(
    *,
    devices: int = 1,
    late_us: int = 0,
    memory_bytes: int = 80 << 30,
    driver: int = CUDA_13,
    idle: bool = False,
) -> None:
    """Put the emulated GPU behind CuPy, for the life of this process.

    Args:
        devices: how many there are.
        late_us: work on a stream begins up to this much later than it could, at random.
        memory_bytes: of each device.
        driver: the version of CUDA that the driver supports; 0 if there is no driver.
        idle: copy nothing and run no kernel, so that only the time of the host is left; what comes
            back is zeros.

    Raises:
        RuntimeError: it cannot be used here, or cupy was imported before.
    """
    if (why := problem()) is not None:
        raise RuntimeError(why)
    if not _driver.cache_info().currsize and "cupy" in sys.modules:
        raise RuntimeError("cupy was imported before the emulated GPU was installed")
    configure(devices=devices, late_us=late_us, memory_bytes=memory_bytes, driver=driver, idle=idle)
    _patch_cupy()
    if is_sanitizing():
        _watch_memory()


def install_from_environment() -> None:
    """Put it behind CuPy with options of the environment: EMULATED_GPU_LATE_US, _DEVICES and
    _DRIVER."""
    install(
        devices=int(os.environ.get("EMULATED_GPU_DEVICES", "1")),
        late_us=int(os.environ.get("EMULATED_GPU_LATE_US", "0")),
        driver=int(os.environ.get("EMULATED_GPU_DRIVER", CUDA_13)),
    )


def environment() -> dict[str, str]:
    """Return the environment in which each Python has it, also those that a program starts."""
    paths = [
        str(HERE / "site"),
        str(HERE.parent.parent),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def sanitized() -> dict[str, str]:
    """Return the variables for a Python whose kernels are checked: it begins with
    AddressSanitizer's library."""
    commands = [["g++", f"-print-file-name={name}"] for name in ("libasan.so", "libstdc++.so")]
    paths = [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        for command in commands
    ]
    # Python leaks at its end; memory that is not there is NULL, as without it; a report ends
    # nothing.
    options = "detect_leaks=0:halt_on_error=0:allocator_may_return_null=1:detect_stack_use_after_return=0:handle_segv=0"
    return {SANITIZE: "1", "LD_PRELOAD": " ".join(paths), "ASAN_OPTIONS": options}


def is_sanitizing() -> bool:
    """Return True if kernels of this process are checked."""
    return os.environ.get(SANITIZE, "0") != "0"


def is_installed() -> bool:
    """Return True if it is behind the CuPy of this process."""
    return bool(_patch_cupy.cache_info().currsize)


def configure(
    *,
    devices: int = 1,
    late_us: int = 0,
    memory_bytes: int = 80 << 30,
    driver: int = CUDA_13,
    idle: bool = False,
) -> None:
    """Set the options of ``install`` anew."""
    _driver().emulated_configure(devices, late_us, ctypes.c_size_t(memory_bytes), driver, idle)


def calls() -> dict[str, int]:
    """Return how often each call was made, by its name in CUDA, and "uploads", "pageable uploads",
    "downloads", "device copies", "uploaded bytes" and "pinned bytes".
    """
    return _counts(_driver().emulated_counts)


def launches() -> dict[str, int]:
    """Return how often each kernel was launched, by its name."""
    return _counts(_driver().emulated_launches)


def _counts(write: Callable[[Any, int], int]) -> dict[str, int]:
    text = ctypes.create_string_buffer(1 << 16)
    write(text, len(text))
    return {
        name: int(number)
        for name, _, number in (line.partition("=") for line in text.value.decode().splitlines())
    }


def since(before: dict[str, int]) -> dict[str, int]:
    """Return how much each count has grown, without those that have not."""
    return {
        name: n - before.get(name, 0) for name, n in calls().items() if n != before.get(name, 0)
    }


def num_calls() -> int:
    """Return how many calls that can fail were made."""
    return int(_driver().emulated_calls())


def num_pinned() -> int:
    """Return how many pieces of host memory are pinned now."""
    return int(_driver().emulated_pinned_pieces())


def num_faults() -> int:
    """Return how many calls were refused that CUDA leaves undefined: they used what was destroyed,
    or wrong memory."""
    return int(_driver().emulated_faults())


def fail(call: int, error: int, *, stays: bool = False) -> None:
    """Let the ``call``-th call from now on, counted from 1, return an error of CUDA.

    Args:
        call: its number; 0 lets nothing fail from now on, and repairs a broken device.
        error: its number in CUDA.
        stays: whether all calls behind it fail, too, and queued work is dropped, as on a card that
            fell off the bus.
    """
    _driver().emulated_fail(ctypes.c_long(call), error, stays)


def failed_call() -> str:
    """Return the name of the call that ``fail`` let fail; empty if it has not come to it."""
    name = ctypes.create_string_buffer(256)
    _driver().emulated_failed(name, len(name))
    return name.value.decode()


def kernel_sources() -> list[tuple[list[str], str]]:
    """Return the compiler's options and the source of every kernel that was met so far, in this
    process or before."""
    texts = (path.read_text(encoding="utf-8") for path in sorted((CACHE / "sources").glob("*.cu")))
    parts = (text.partition("\n") for text in texts)
    return [(options.removeprefix("// ").split(), source) for options, _, source in parts]


def source_key(source: str, options: Sequence[str]) -> str:
    """Return the name of the file of ``CACHE``/sources that has a kernel's source."""
    return _digest(source, *options)


@cache
def _driver() -> Any:
    """Return the stand-in of the driver, compiled and loaded where CuPy looks for
    ``libcuda.so.1``."""
    source = HERE / "driver.cpp"
    headers = [f"-I{folder}" for folder in _cuda_headers()]
    flags = (
        "-std=c++17",
        "-O1",
        "-shared",
        "-fPIC",
        "-pthread",
        "-Wl,-soname,libcuda.so.1",
        *headers,
    )
    library = (
        CACHE / f"driver-{_digest(source.read_text(encoding='utf-8'), *flags)}" / "libcuda.so.1"
    )
    if not library.exists():
        _compile(["g++", *flags, str(source), "-ldl"], library)
    driver = ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    for name in ("calls", "faults", "pinned_pieces"):
        getattr(driver, f"emulated_{name}").restype = ctypes.c_long
    driver.emulated_counts.restype = driver.emulated_launches.restype = ctypes.c_size_t
    return driver


@cache
def _patch_cupy() -> None:
    # CuPy keeps kernels by the text of their source: what it kept for a real card, or of another
    # `kernel.h`, is nothing for us.
    os.environ["CUPY_CACHE_DIR"] = str(CACHE / "cupy" / _translation())
    os.environ["CUPY_ACCELERATORS"] = ""  # CUB and cuTENSOR have kernels of their own
    from cupy_backends.cuda.api import runtime

    _overwrite_runtime(runtime.__file__)
    from cupy.cuda import compiler

    for name in ("_compile_using_nvrtc_no_warning", "compile_using_nvrtc"):  # of CuPy 14 and 13
        if hasattr(compiler, name):
            setattr(compiler, name, _compile_kernel)
            break


def _watch_memory() -> None:
    """Have each report of AddressSanitizer be a fault, and each array memory of its own, with a
    border about it."""
    if not _driver().emulated_watch():
        raise RuntimeError(
            f"{SANITIZE} needs AddressSanitizer's library in LD_PRELOAD: see emulated_gpu.sanitized()"
        )
    import cupy

    cupy.cuda.set_allocator(None)


def _overwrite_runtime(path: str) -> None:
    """Let every call of the CUDA runtime in a loaded library jump to the stand-in's."""
    driver, libc = _driver(), ctypes.CDLL(None)
    lines = subprocess.run(
        ["nm", path], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    calls = [line.split() for line in lines if re.fullmatch(r"[0-9a-f]+ [tT] cuda[A-Z]\w*", line)]
    if not calls:
        raise RuntimeError(f"nm finds no calls of the CUDA runtime in {path}")
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    base = int(
        next(line for line in maps if line.endswith(str(Path(path).resolve()))).partition("-")[0],
        16,
    )
    missing = ctypes.cast(driver.emulated_missing, ctypes.c_void_p).value
    for offset, _, name in calls:
        function = getattr(driver, re.sub("_(ptsz|ptds)$", "", name), None)
        if function is not None:  # mov rax, function; jmp rax
            code = b"\x48\xb8" + _address(function) + b"\xff\xe0"
        else:  # mov rdi, name; mov rax, missing; jmp rax
            _jump_names.append(ctypes.create_string_buffer(name.encode()))
            code = (
                b"\x48\xbf"
                + _address(_jump_names[-1])
                + b"\x48\xb8"
                + missing.to_bytes(8, "little")
                + b"\xff\xe0"
            )
        address = base + int(offset, 16)
        if libc.mprotect(
            ctypes.c_void_p(address & ~4095), ctypes.c_size_t(8192), 7
        ):  # read, write, execute
            raise RuntimeError(
                "the system does not let the emulated GPU overwrite the CUDA runtime"
            )
        ctypes.memmove(address, code, len(code))


def _address(what: Any) -> bytes:
    number = ctypes.cast(what, ctypes.c_void_p).value
    assert number is not None
    return number.to_bytes(8, "little")


def _compile_kernel(
    source: str, options: tuple[str, ...] = (), arch: Any = None, filename: str = "", name_expressions: Any = None,
    log_stream: Any = None, cache_in_memory: bool = False, jitify: Any = None, method: Any = None,
) -> tuple[bytes, None]:  # fmt: skip
    """Compile a kernel with g++, in the place of CuPy's call of NVRTC; return the image for
    ``cuModuleLoadData``."""
    if name_expressions or method is not None:
        raise RuntimeError("the emulated GPU compiles no templates by name and no LTO")
    key = source_key(source, options)
    text = CACHE / "sources" / f"{key}.cu"
    if not text.exists():
        _write(text, "// " + " ".join(options) + "\n" + source)
    flags = [*_kernel_flags(), *(option for option in options if option.startswith("-D"))]
    program = source if is_sanitizing() else casts.as_on_a_gpu(source)
    library = CACHE / "kernels" / f"{_digest(program, *flags, _prelude().parent.name)}.so"
    if not library.exists():
        origin = library.with_suffix(f".{_writer()}.cpp")
        compiled = origin.with_suffix(".o")
        _write(origin, f'#include "kernel.h"\n#line 1 "{key[:8]}.cu"\n{program}{_entries(source)}')
        _compile(["g++", "-c", *flags, str(origin)], compiled)
        # Without the options of sanitizers: AddressSanitizer's library is there, and the driver is
        # the other one's. -Bsymbolic: a kernel may have the name of a function of libc, as `step`
        # has.
        _compile(["g++", "-shared", "-Wl,-Bsymbolic", str(compiled)], library)
        origin.unlink()
        compiled.unlink()
    return f"emulated:{library}\0".encode(), None


def _entries(source: str) -> str:
    """Return what is behind the source of each kernel: how the driver calls it."""
    names = re.findall(r'extern\s+"C"\s+__global__\s+void\s+(\w+)\s*\(', source)
    has_barriers = "__syncthreads" in source or "__syncwarp" in source
    is_loop = "CUPY_FOR" in source and not has_barriers
    how = f"{str(has_barriers).lower()}, {str(is_loop).lower()}"
    return "".join(
        f"""
using {name}__call = emulated::Call<decltype(&{name}), &{name}>;
extern "C" const size_t* {name}__sizes(size_t* number) {{ return {name}__call::sizes(number); }}
extern "C" void {name}__run(void** arguments, const unsigned* size) {{
  emulated::run_grid(&{name}__call::run, arguments, size, {how});
}}
"""
        for name in names
    )


@cache
def _prelude() -> Path:
    """Return ``kernel.h`` in a folder of the cache, precompiled: that takes most of a kernel's
    time."""
    flags = _compiler_flags()
    folder = CACHE / f"prelude-{_translation()}"
    header = folder / "kernel.h"
    if not (folder / "kernel.h.gch").exists():
        _write(header, (HERE / HEADERS[0]).read_text(encoding="utf-8"))
        _compile(["g++", *flags, "-x", "c++-header", str(header)], folder / "kernel.h.gch")
    return header


@cache
def _translation() -> str:
    """Return a name for all that makes a library of the source of a kernel."""
    texts = [(HERE / name).read_text(encoding="utf-8") for name in (*HEADERS, "casts.py")]
    return _digest(*texts, *_compiler_flags(), _version())


@cache
def _version() -> str:
    return subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout


def _kernel_flags() -> list[str]:
    return [f"-I{_prelude().parent}", *_compiler_flags()]


@cache
def _compiler_flags() -> list[str]:
    include = (
        Path(str(importlib.util.find_spec("cupy").submodule_search_locations[0]))
        / "_core"
        / "include"
    )  # type: ignore
    libcudacxx = include / "cupy" / "_cccl" / "libcudacxx"
    folders = (HERE / "include", include, *_cuda_headers(), libcudacxx, libcudacxx / "include")
    # As NVRTC, g++ is lenient; -ffp-contract=off: nothing is fused that the source does not fuse.
    flags = (
        "-std=c++17",
        "-O1",
        "-w",
        "-fpermissive",
        "-fPIC",
        "-ffp-contract=off",
        "-D__CUDACC_VER_MAJOR__=13",
    )
    return [
        *flags,
        *(SANITIZERS if is_sanitizing() else ()),
        *(f"-I{folder}" for folder in folders),
    ]


@cache
def _cuda_headers() -> list[Path]:
    """Return the folders of CUDA's headers: of NVIDIA's packages for CUDA 13 or 12, else of an
    installed toolkit."""
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    names = ("cu13", "cuda_runtime", "cuda_nvcc")
    headers = [
        path
        for folder in folders
        for name in names
        if (path := Path(folder) / name / "include").exists()
    ]
    return headers or [Path("/usr/local/cuda/include")]


def _compile(command: list[str], target: Path) -> None:
    """Run a compiler; several processes and threads may make the same file at once."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.{_writer()}")
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    process = subprocess.run(
        [*command, "-o", str(part)], capture_output=True, text=True, env=environment
    )
    if process.returncode:
        raise RuntimeError(f"the emulated GPU: {' '.join(command)}\n{process.stderr[:3000]}")
    part.rename(target)


def _writer() -> str:
    """Return a name for this thread, also among other processes: two may make the same file at
    once."""
    return f"{os.getpid()}-{threading.get_native_id()}"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{_writer()}")
    part.write_text(text, encoding="utf-8")
    part.rename(path)


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:20]
