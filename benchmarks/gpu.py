"""What the questions about a GPU share: whether there is one, what is done with a batch on it, the
link to it.

Consumer  A batch must be on the GPU; nothing of it goes back to the host. In the variants that end
          in "-step" a kernel of some milliseconds, in place of a training step, follows on CuPy's
          current stream; it begins by reading the batch. The host runs ``IN_FLIGHT`` batches ahead
          of the GPU and no further, as a training loop does that looks at each loss one step late.
          A pass is over when the GPU has done all of it.
Link      Copies of pinned memory in pieces of 64 MiB: the fastest way for so many bytes from the
          host to the GPU. Called as a program, with ``--result FILE``, this module measures it, and
          the time to the first kernel.
Absent    A peer whose framework is installed, but does not see the GPU, is in the table as absent.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from benchmarks.question import Batch, Epoch, Peer, Question, Work, missing
from gpuload import device

NAMES = ("gpu_rows", "gpu_jpeg")
STEP = "-step"
IN_FLIGHT = 2
LINK_BYTES = 64 << 20
LINK_COPIES = 20
LOOK_S = 100.0  # for importing a framework and asking it for a GPU
ON_A_GPU = 2  # kDLCUDA of DLPack
DISTRIBUTIONS = ("cuda", "nvidia-nvimgcodec", "nvidia-nvjpeg")
SMI_FIELDS = (
    "name",
    "uuid",
    "driver_version",
    "memory.total",
    "pcie.link.gen.max",
    "pcie.link.width.max",
)

# 4 cycles a round, whatever the card: enough warps on every multiprocessor to keep it busy, each
# waiting for its own multiplications. A fixed amount of work, not of time: kernels of the loader
# that run beside it make it slower.
STEP_CODE = r"""
extern "C" __global__ void step(const unsigned char* batch, long long num_bytes, int rounds, float* out) {
    float x = batch[((long long)blockIdx.x * blockDim.x + threadIdx.x) % num_bytes];
    #pragma unroll 16
    for (int i = 0; i < rounds; ++i) x = fmaf(x, 0.999f, 1.0f);
    if (x == -1.0f) out[0] = x;  // never, which the compiler does not know
}
"""
STEP_THREADS, STEP_BLOCKS = 256, 2


def part_options(
    module: str, choice: str, choices: Iterable[str], arguments: list[str] | None = None
) -> argparse.Namespace:
    """Return the options of a module that `gpu_report` calls: ``choice``, ``result`` and ``smoke``.

    Args:
        module: its name, ``"gpu_parity"``.
        choice: the name of its first argument.
        choices: the values of that one.
        arguments: None for those of this process.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{module}", description="used by benchmarks.gpu_report"
    )
    parser.add_argument(choice, choices=list(choices))
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--smoke", action="store_true")
    return parser.parse_args(arguments)


def write_rows(
    path: Path,
    rows: Sequence[Sequence[Any]],
    problems: Sequence[str] = (),
    targets: Sequence[Target] = (),
) -> None:
    """Write what a part has so far, whole or not at all; it is called after each row: a part that
    is ended loses none.

    Args:
        path: of ``rows.json``.
        rows: of the section's table.
        problems: what is wrong, or was left out, a line each.
        targets: figures beside what they should be.
    """
    results = {"rows": rows, "problems": problems, "targets": [target.row() for target in targets]}
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_text(json.dumps(results), encoding="utf-8")
    unfinished.replace(path)


class Target(NamedTuple):
    """A figure beside what it should be.

    Args:
        subject: what was measured.
        value: what it is.
        bound: what it should be.
        is_least: whether more of it is better.
        form: of both numbers, for `format`.
    """

    subject: str
    value: float
    bound: float
    is_least: bool = True
    form: str = ",.0f"

    def row(self) -> list[str]:
        """Return a row of the table of targets: subject, target, measured, and which of both it
        is."""
        is_reached = self.value >= self.bound if self.is_least else self.value <= self.bound
        word = "at least" if self.is_least else "at most"
        return [
            self.subject, f"{word} {self.bound:{self.form}}", f"{self.value:{self.form}}",
            "reached" if is_reached else "**missed**",
        ]  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    """Write how the GPU at work is, as rows of a table; or print why a package cannot be used with
    it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description="used by benchmarks.gpu_report"
    )
    parser.add_argument("--result", type=Path, help="the rows, JSON")
    parser.add_argument("--look", metavar="PACKAGE", help="does it see the GPU?")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args(arguments)
    if options.look:
        print(_why_not(options.look))
        return
    rows = state(1 if options.smoke else LINK_COPIES)
    write_rows(options.result, rows)


def state(num_copies: int) -> list[list[str]]:
    """Return the time to the first kernel, the rate of the link, and how much memory is free: what,
    value."""
    cupy, start = device.cupy(), perf_counter()
    cupy.arange(8).sum().item()
    first_s = perf_counter() - start
    copy = link(Work("", Path(), num_copies, 1), LINK_BYTES)
    list(copy())
    start = perf_counter()
    list(copy())
    gb_per_s = num_copies * LINK_BYTES / (perf_counter() - start) / 1e9
    free, total = cupy.cuda.runtime.memGetInfo()
    return [
        ["first kernel, compiled or from CuPy's cache", f"{first_s:.2f} s"],
        ["link, pinned memory to the GPU", f"{gb_per_s:.1f} GB/s"],
        ["memory free", f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB"],
    ]


def problem() -> device.Problem | None:
    """Return why no question about a GPU can be asked here, None if it can."""
    return device.gpu_problem(0)


def absent(packages: Iterable[str]) -> dict[str, str]:
    """Return those of the packages that are not installed or cannot be used with the GPU, and why.

    A framework takes memory of the GPU when it looks for it, so each looks in a process of its own,
    all at a time.
    """
    names = list(dict.fromkeys(packages))
    with ThreadPoolExecutor(max(1, len(names))) as pool:
        reasons = dict(zip(names, pool.map(_why_absent, names), strict=True))
    return {name: reason for name, reason in reasons.items() if reason}


def _why_absent(name: str) -> str:
    """Return why a package cannot be used with the GPU, empty if it can."""
    if missing((name,)):
        return f"{name} is not installed"
    if name not in _LOOKS:
        return ""
    command = [sys.executable, "-m", "benchmarks.gpu", "--look", name]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=LOOK_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{name} was asked for the GPU and did not answer in {LOOK_S:.0f} s"
    if process.returncode:
        return f"{name} ended with status {process.returncode} when it looked for the GPU"
    return " ".join(process.stdout.strip().splitlines()[-1:])


@dataclass(frozen=True)
class GpuQuestion(Question):
    """A question that is asked only where there is a GPU.

    Args:
        link_bytes: of a record, on its way to the GPU, for each variant whose limit is the link.
    """

    link_bytes: Mapping[str, int] = field(default_factory=dict)

    def needs(self, variant: str, peer: Peer) -> tuple[str, ...]:
        """Return the packages a peer cannot do without; where one does not see the GPU, something
        that nobody has."""
        packages = super().needs(variant, peer)
        blind = [
            name
            for name in packages
            if name in _LOOKS and not missing((name,)) and not _sees_gpu(name)
        ]
        return packages + tuple(f"a {name} that sees the GPU" for name in blind)


_LOOKS: dict[str, Callable[[Any], object]] = {
    "torch": lambda torch: torch.cuda.is_available(),
    "tensorflow": lambda tf: tf.config.list_physical_devices("GPU"),
    "jax": lambda jax: any(device.platform == "gpu" for device in jax.devices()),
    "nvidia.dali": lambda dali: dali.backend.GetCUDADeviceCount(),
    "gpuload.executors.dali": lambda dali: dali.executor.load("gpu:0"),
}


def _sees_gpu(name: str) -> bool:
    return not _why_not(name)


def _why_not(name: str) -> str:
    """Return in one line why a package of ``_LOOKS`` cannot be used with the GPU; empty if it
    can."""
    try:
        return "" if _LOOKS[name](importlib.import_module(name)) else f"{name} sees no GPU"
    except Exception as error:  # a library of CUDA is missing, a version is refused
        return f"{name}: {' '.join(str(error).split())}"


def versions() -> dict[str, str]:
    """Return the card, its driver, CUDA, and the packages beside CuPy and DALI that a GPU's figures
    depend on."""
    runtime = device.cupy().cuda.runtime
    fields = _smi()
    versions_of = {
        "GPU": fields.get("name") or _name(runtime.getDeviceProperties(0)["name"]),
        "GPU id": fields.get("uuid", "unknown"),
        "GPU memory": fields.get("memory.total", "unknown"),
        "driver": fields.get("driver_version", "unknown"),
        "CUDA of the driver": _version(runtime.driverGetVersion()),
        "CUDA of CuPy": _version(runtime.runtimeGetVersion()),
        "PCIe": f"generation {fields.get('pcie.link.gen.max', '?')}, x{fields.get('pcie.link.width.max', '?')}",
    }
    for distribution in metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower()
        if name.startswith(DISTRIBUTIONS):
            versions_of[name] = distribution.version
    return versions_of


def _smi() -> dict[str, str]:
    """Return what nvidia-smi says of the first GPU; nothing where it is not there."""
    command = [
        "nvidia-smi",
        "-i",
        "0",
        f"--query-gpu={','.join(SMI_FIELDS)}",
        "--format=csv,noheader",
    ]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    values = (value.strip() for value in process.stdout.splitlines()[0].split(","))
    return dict(zip(SMI_FIELDS, values, strict=False))


def _name(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _version(number: int) -> str:
    """Return '12.8' of CUDA's 12080."""
    return f"{number // 1000}.{number % 1000 // 10}"


def consumed(work: Work, batches: Epoch, step_rounds: int) -> Epoch:
    """Return passes that do with each batch what a consumer does on the GPU, and give stand-ins for
    it on the host.

    Args:
        work: its variant says whether there is a step.
        batches: passes of batches on the GPU: arrays of CuPy, tensors of torch or TensorFlow, or
            tuples of them.
        step_rounds: how long a step is; a million are about 2.5 ms.
    """
    act = step(step_rounds) if work.variant.endswith(STEP) else lambda array: None

    def epoch() -> Iterator[Batch]:
        cuda = device.cupy().cuda
        events: deque[Any] = deque()
        is_first = True
        for batch in batches():
            arrays = batch if isinstance(batch, tuple) else (batch,)
            count = len(arrays[0])
            if is_first:
                _check_on_gpu(arrays)
            act(arrays[-1])
            event = cuda.Event(disable_timing=True)
            event.record()
            events.append(event)
            if is_first:  # "first batch" is the time until it is there
                cuda.Device(0).synchronize()
                is_first = False
            if len(events) > IN_FLIGHT:
                events.popleft().synchronize()
            yield np.broadcast_to(np.float32(0), (count, 1))
        cuda.Device(0).synchronize()

    return epoch


def _check_on_gpu(arrays: tuple[Any, ...]) -> None:
    for array in arrays:
        if (
            not isinstance(array, device.cupy().ndarray)
            and array.__dlpack_device__()[0] != ON_A_GPU
        ):
            raise RuntimeError(f"a batch is not on the GPU: {type(array)}")


def step(rounds: int) -> Callable[[Any], None]:
    """Return the step: it queues a kernel that reads an array on the GPU, and works for so many
    rounds."""
    cupy = device.cupy()
    kernel = cupy.RawKernel(STEP_CODE, "step")
    grid = (STEP_BLOCKS * cupy.cuda.Device(0).attributes["MultiProcessorCount"],)
    out = cupy.zeros(1, np.float32)

    def act(array: Any) -> None:
        if not isinstance(
            array, cupy.ndarray
        ):  # the capsule, as TensorFlow knows no streams; torch's is the same one
            array = cupy.from_dlpack(array.__dlpack__())
        kernel(grid, (STEP_THREADS,), (array, np.int64(array.nbytes), np.int32(rounds), out))

    return act


def upload_batches(batches: Epoch) -> Epoch:
    """Return passes of NumPy batches with each array copied by `cupy.asarray`."""
    asarray = device.cupy().asarray

    def epoch() -> Iterator[Batch]:
        for batch in batches():
            yield tuple(map(asarray, batch)) if isinstance(batch, tuple) else asarray(batch)

    return epoch


def resident(work: Work, *shape: int) -> Epoch:
    """Return passes over float32 records of a shape that lie on the GPU: one batch, given again and
    again."""
    batch = device.cupy().zeros((work.batch_size, *shape), np.float32)

    def epoch() -> Iterator[Batch]:
        for start in range(0, work.num_records, work.batch_size):
            yield batch[: work.num_records - start]

    return epoch


def link(work: Work, record_bytes: int) -> Epoch:
    """Return passes that copy as many bytes as the records have from pinned memory to the GPU."""
    num_bytes = work.num_records * record_bytes
    cupy = device.cupy()
    host = device.pinned(min(LINK_BYTES, num_bytes))
    host[:] = 1
    target = cupy.empty(host.shape, np.uint8)
    stream = cupy.cuda.Stream(non_blocking=True)

    def epoch() -> Iterator[Batch]:
        for start in range(0, num_bytes, LINK_BYTES):
            size = min(LINK_BYTES, num_bytes - start)
            target[:size].set(host[:size], stream=stream)  # cudaMemcpyAsync
        stream.synchronize()
        yield np.broadcast_to(np.float32(0), (work.num_records, 1))

    cupy.cuda.Device(0).synchronize()
    return epoch


def tensorflow() -> Any:
    """Return the module ``tensorflow``, told to leave the GPU's memory to the others, too."""
    import tensorflow as tf

    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    return tf


def tf_passes(tf: Any, dataset: Any, finish: Callable[[Any], Batch] = lambda batch: batch) -> Epoch:
    """Return passes of a tf.data.Dataset that is copied to the GPU ahead; `finish` works on the
    batch there."""
    dataset = dataset.apply(tf.data.experimental.prefetch_to_device("/gpu:0", 4))
    return lambda: map(finish, dataset)


def torch_passes(loader: Any, finish: Callable[[Any], Batch] = lambda batch: batch) -> Epoch:
    """Return passes of a torch DataLoader of pinned tensors, copied to the GPU; `finish` works on
    the batch there."""
    return lambda: (finish(batch.to("cuda", non_blocking=True)) for batch in loader)


if __name__ == "__main__":
    main()
