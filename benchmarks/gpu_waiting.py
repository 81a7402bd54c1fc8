"""What share of a training step is spent waiting for data: `python -m benchmarks.gpu_waiting FRAMEWORK --result FILE`.

Step     some layers of one matrix product and tanh each on a batch that is on the GPU, as many as take ``STEP_S`` there
         (CuPy: the kernel of `benchmarks.gpu`). The host looks at the result of a step two steps later, as a training
         loop does with its losses
Waiting  1 - (seconds a step with one batch that stays on the GPU) / (seconds a step with the loader's batches). The
         loop without a loader runs before and after the other, and the faster one counts
Works    CIFAR-10 records, cropped, flipped, normalised, in batches of 256; and where DALI can be used, JPEGs decoded,
         cropped at random, resized to 224 x 224, flipped, normalised, in batches of 64
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from benchmarks import gpu, gpu_parity

ABOUT = (
    "A step is a fixed amount of work on a batch that is on the GPU already. Waiting is the share of the time of a "
    "step with the loader's batches that one without a loader does not need; next() is the share in which the host "
    "waits for the next batch."
)
COLUMNS = ("framework", "work", "step ms", "waiting", "next()")

STEP_S, LOOP_S = 0.01, 3.0
MOST_LAYERS, FEATURES, PROBE_LAYERS = 2_000, 2_048, 20
STEP_ROUNDS = 200_000  # of CuPy's kernel, in place of a layer
NUM_RECORDS, NUM_JPEGS = 50_000, 1_000
CIFAR, JPEG = "CIFAR-10 chain, 256", "JPEG to 224 x 224, 64"


class Framework(NamedTuple):
    """What a loop needs of a framework.

    Args:
        tensors: returns an iterable of a loader's batches, whose ``output`` is a tensor.
        array: returns a NumPy array as a tensor on the device.
        begin: returns what the first layer takes, of a batch.
        layer: queues a layer and returns its result.
        wait: waits until a result is there.
    """

    tensors: Callable[[Any], Iterable[Any]]
    array: Callable[[Any], Any]
    begin: Callable[[Any], Any]
    layer: Callable[[Any], Any]
    wait: Callable[[Any], object]


def main(arguments: list[str] | None = None) -> int:
    """Write the rows."""
    options = gpu.part_options("gpu_waiting", "framework", FRAMEWORKS, arguments)
    has_decoder = not gpu.absent(["gpuload.executors.dali"])
    rows = measure(options.framework, "gpu", works=(CIFAR, JPEG) if has_decoder else (CIFAR,), is_short=options.smoke)
    options.result.write_text(json.dumps({"rows": rows}), encoding="utf-8")
    return 0


def measure(name: str, device: str, *, works: Iterable[str], is_short: bool) -> list[list[str]]:
    """Return a row for each work: framework, work, milliseconds a step, share of waiting, share of next()."""
    framework = FRAMEWORKS[name](device, 1 if is_short else STEP_ROUNDS)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for work in works:
            with LOADERS[work](Path(folder), device, is_short) as loader:
                rows.append([name, work, *_row(framework, loader, is_short)])
    return rows


def _row(framework: Framework, loader: Any, is_short: bool) -> list[str]:
    resident = framework.array(np.zeros(loader.peek().output.shape, np.float32))
    num_layers = 1 if is_short else _num_layers(framework, resident)
    loop_s = 0.0 if is_short else LOOP_S

    def step_s(batches: Iterator[Any]) -> tuple[float, float]:
        return _loop(framework, batches, num_layers, loop_s)

    before_s, _ = step_s(itertools.repeat(resident))
    ours_s, next_s = step_s(_outputs(framework, loader))
    after_s, _ = step_s(itertools.repeat(resident))
    best_s = min(before_s, after_s)
    return [f"{best_s * 1e3:.2f}", f"{max(0.0, 1 - best_s / ours_s):.1%}", f"{next_s / ours_s:.1%}"]


def _num_layers(framework: Framework, resident: Any) -> int:
    """Return how many layers take ``STEP_S``."""
    seconds = 0.0
    for _ in range(3):  # what is compiled is compiled in the first
        start, values = perf_counter(), framework.begin(resident)
        for _ in range(PROBE_LAYERS):
            values = framework.layer(values)
        framework.wait(values)
        seconds = perf_counter() - start
    return min(MOST_LAYERS, max(1, round(STEP_S / seconds * PROBE_LAYERS)))


def _outputs(framework: Framework, loader: Any) -> Iterator[Any]:
    """Return the tensors of one epoch after the other."""
    while True:
        for batch in framework.tensors(loader):
            yield batch.output


def _loop(framework: Framework, batches: Iterator[Any], num_layers: int, loop_s: float) -> tuple[float, float]:
    """Return the seconds a step takes, and those of them that the host waits in next()."""
    results: deque[Any] = deque()
    for warm in (True, False):
        count, next_s, start = 0, 0.0, perf_counter()
        while count < gpu.IN_FLIGHT + 1 or perf_counter() - start < (loop_s / 4 if warm else loop_s):
            start_s = perf_counter()
            batch = next(batches)
            next_s += perf_counter() - start_s
            values = framework.begin(batch)
            del batch
            for _ in range(num_layers):
                values = framework.layer(values)
            results.append(values)
            if len(results) > gpu.IN_FLIGHT:
                framework.wait(results.popleft())
            count += 1
        while results:
            framework.wait(results.popleft())
    return (perf_counter() - start) / count, next_s / count


def cifar(folder: Path, device: str, is_short: bool) -> Any:
    """Return a loader of CIFAR-10 records with the usual ops."""
    import gpuload as gl

    records = np.zeros(1_024 if is_short else NUM_RECORDS, [("label", "u1"), ("image", "u1", (3, 32, 32))])
    records["image"] = np.random.default_rng(0).integers(0, 256, records["image"].shape, np.uint8)
    records.tofile(folder / "cifar.bin")
    ops = [
        gl.ops.Transpose("HWC"), gl.ops.RandomCrop(32, 32, pad=4), gl.ops.RandomFlip(),
        gl.ops.Normalize((125.3, 123.0, 113.9), (63.0, 62.1, 66.7)),
    ]  # fmt: skip
    source = gl.fixed(folder / "cifar.bin", [("label", "u1"), ("image", "u1", (3, 32, 32))])
    return gl.Loader(source, 256, shuffle=True, ops=ops, output="image", device=device, last_batch="drop")


def jpegs(folder: Path, device: str, is_short: bool) -> Any:
    """Return a loader of JPEGs with the usual ops."""
    import gpuload as gl

    (folder / "jpegs").mkdir()
    for number in range(64 if is_short else NUM_JPEGS):
        gpu_parity.jpeg(number).tofile(folder / "jpegs" / f"{number:05}.jpg")
    ops = [
        gl.ops.Decode(), gl.ops.RandomResizedCrop(224, 224), gl.ops.RandomFlip(),
        gl.ops.Normalize((123.7, 116.3, 103.5), (58.4, 57.1, 57.4)),
    ]  # fmt: skip
    source = gl.images(folder / "jpegs", labels=None)
    return gl.Loader(source, 64, shuffle=True, ops=ops, output="image", device=device, last_batch="drop")


def of_cupy(device: str, rounds: int) -> Framework:
    """Return CuPy's loop, whose layer is a kernel that waits for its own multiplications."""
    import cupy

    act = gpu.step(rounds)

    def layer(array: Any) -> Any:
        act(array)
        return array

    def wait(array: Any) -> None:
        cupy.cuda.get_current_stream().synchronize()  # one stream: all behind it, too

    return Framework(lambda loader: loader, cupy.asarray, lambda batch: batch, layer, wait)


def of_torch(device: str, rounds: int) -> Framework:
    """Return torch's loop, on the device ``"gpu"`` or ``"cpu"``."""
    import torch

    from gpuload.bridges import torch as bridge

    device_name = "cuda" if device == "gpu" else "cpu"
    weight = torch.eye(FEATURES, device=device_name)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def layer(values: Any) -> Any:
        return torch.tanh(values @ weight)

    return Framework(
        bridge.tensors, lambda array: torch.from_numpy(array).to(device_name),
        lambda batch: batch.reshape(len(batch), -1)[:, :FEATURES], layer, lambda values: values[0, 0].item(),
    )  # fmt: skip


def of_jax(device: str, rounds: int) -> Framework:
    """Return JAX's loop."""
    import jax

    from gpuload.bridges import jax as bridge

    weight = jax.numpy.eye(FEATURES)
    layer = jax.jit(lambda values: jax.numpy.tanh(values @ weight))
    begin = jax.jit(lambda batch: batch.reshape(len(batch), -1)[:, :FEATURES])
    return Framework(bridge.tensors, jax.numpy.asarray, begin, layer, lambda values: values.block_until_ready())


def of_tensorflow(device: str, rounds: int) -> Framework:
    """Return TensorFlow's loop."""
    tf = gpu.tensorflow()
    from gpuload.bridges import tensorflow as bridge

    weight = tf.eye(FEATURES)

    @tf.function  # type: ignore[untyped-decorator]
    def layer(values: Any) -> Any:
        return tf.tanh(values @ weight)

    return Framework(
        bridge.tensors, tf.constant, lambda batch: tf.reshape(batch, (len(batch), -1))[:, :FEATURES], layer,
        lambda values: values[0, 0].numpy(),
    )  # fmt: skip


LOADERS = {CIFAR: cifar, JPEG: jpegs}
FRAMEWORKS = {"cupy": of_cupy, "torch": of_torch, "jax": of_jax, "tensorflow": of_tensorflow}


if __name__ == "__main__":
    sys.exit(main())
