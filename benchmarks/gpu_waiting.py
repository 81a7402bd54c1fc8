"""What share of a training step is spent waiting for data:
`python -m benchmarks.gpu_waiting FRAMEWORK --result FILE`.

Step     cupy, torch, jax, tensorflow: some layers of one matrix product and tanh each on a batch
         that is on the GPU, as many as take ``STEP_S`` there (CuPy: the kernel of `benchmarks.gpu`)
         resnet50, vit_s, keras: a step of training: forwards, backwards, optimizer, in bfloat16. A
         ResNet-50 in channels last, a compiled ViT-S/16 (torchvision), Keras' ResNet-50 on the
         backend of ``keras_backend`` The host looks at the result of a step two steps later, as a
         training loop does with its losses
Waiting  1 - (seconds a step with one batch that stays on the GPU) / (seconds a step with the
         loader's batches). The loop without a loader runs before and after the other, and the
         faster one counts. At most ``MOST_WAITING``
Works    CIFAR-10 records, cropped, flipped, normalised, in batches of 256; JPEGs decoded, cropped
         at random, resized to 224 x 224, flipped, normalised, in batches of 64, and of 128 for the
         trainings: by decoding on the host, and by DALI where it is there
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from benchmarks import gpu, gpu_data
from benchmarks.question import missing

ABOUT = (
    "A step is a fixed amount of work on a batch that is on the GPU already. Waiting is the share of the time of a "
    "step with the loader's batches that one without a loader does not need; next() is the share in which the host "
    "waits for the next batch."
)
COLUMNS = ("framework", "work", "step ms", "waiting", "next()")
MOST_WAITING = 0.03

STEP_S, LOOP_S = 0.01, 3.0
MOST_LAYERS, FEATURES, PROBE_LAYERS = 2_000, 2_048, 20
STEP_ROUNDS = 200_000  # of CuPy's kernel, in place of a layer
NUM_RECORDS, NUM_CLASSES, SIDE, PATCH = 50_000, 1_000, 224, 16
CIFAR, JPEG = "CIFAR-10 chain, 256", "JPEG to 224 x 224, 64"
JPEG_HOST, JPEG_DALI = (
    "JPEG to 224 x 224, 128, decoded on the host",
    "JPEG to 224 x 224, 128, decoded by DALI",
)


class Framework(NamedTuple):
    """What a loop needs of a framework.

    Args:
        tensors: returns an iterable of a loader's batches, whose ``output`` is a tensor.
        array: returns a NumPy array as a tensor on the device.
        begin: returns what the first layer takes, of a batch.
        layer: queues a layer and returns its result; of a training a whole step.
        wait: waits until a result is there.
        is_training: whether ``layer`` is a whole step.
        name: in the table, where it is not that of the argument.
    """

    tensors: Callable[[Any], Iterable[Any]]
    array: Callable[[Any], Any]
    begin: Callable[[Any], Any]
    layer: Callable[[Any], Any]
    wait: Callable[[Any], object]
    is_training: bool = False
    name: str = ""


def main(arguments: list[str] | None = None) -> int:
    """Write the rows, each as soon as it was measured."""
    options = gpu.part_options("gpu_waiting", "framework", FRAMEWORKS, arguments)
    rows: list[list[str]] = []
    targets: list[gpu.Target] = []
    works, problems = present_works(options.framework)
    for row, waiting in measured(options.framework, "gpu", works=works, is_short=options.smoke):
        rows.append(row)
        targets.append(
            gpu.Target(f"waiting: {row[0]}, {row[1]}", waiting, MOST_WAITING, False, ".1%")
        )
        gpu.write_rows(options.result, rows, problems, targets)
    print(*problems, sep="\n")
    return 0


def present_works(name: str) -> tuple[list[str], list[str]]:
    """Return the works of a framework that can be done here, and why others cannot."""
    works = [JPEG_HOST, JPEG_DALI] if name in TRAININGS else [CIFAR, JPEG]
    problems = []
    if missing(("PIL",)):
        problems.append("no JPEGs: PIL is not installed, which they are made with")
        works = [work for work in works if work == CIFAR]
    if JPEG_DALI in works and (reasons := gpu.absent(["gpuload.executors.dali"])):
        problems.append(f"{JPEG_DALI}: left out, {'; '.join(reasons.values())}")
        works.remove(JPEG_DALI)
    return works, problems


def measure(name: str, device: str, *, works: Iterable[str], is_short: bool) -> list[list[str]]:
    """Return a row for each work: framework, work, milliseconds a step, share of waiting, share of
    next()."""
    return [row for row, _ in measured(name, device, works=works, is_short=is_short)]


def measured(
    name: str, device: str, *, works: Iterable[str], is_short: bool
) -> Iterator[tuple[list[str], float]]:
    """Yield the row of each work, and the share of waiting."""
    framework = FRAMEWORKS[name](device, 1 if is_short else STEP_ROUNDS)
    with tempfile.TemporaryDirectory() as folder:
        for work in works:
            with LOADERS[work](Path(folder), device, is_short) as loader:
                step_s, waiting, next_share = _shares(framework, loader, is_short)
            yield (
                [
                    framework.name or name,
                    work,
                    f"{step_s * 1e3:.2f}",
                    f"{waiting:.1%}",
                    f"{next_share:.1%}",
                ],
                waiting,
            )


def _shares(framework: Framework, loader: Any, is_short: bool) -> tuple[float, float, float]:
    """Return the seconds of a step without a loader, the share of waiting, and that of next()."""
    resident = framework.array(np.zeros(loader.peek().output.shape, np.float32))
    num_layers = 1 if is_short or framework.is_training else _num_layers(framework, resident)
    loop_s = 0.0 if is_short else LOOP_S

    def step_s(batches: Iterator[Any]) -> tuple[float, float]:
        return _loop(framework, batches, num_layers, loop_s)

    before_s, _ = step_s(itertools.repeat(resident))
    ours_s, next_s = step_s(_outputs(framework, loader))
    after_s, _ = step_s(itertools.repeat(resident))
    best_s = min(before_s, after_s)
    return best_s, max(0.0, 1 - best_s / ours_s), next_s / ours_s


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


def _loop(
    framework: Framework, batches: Iterator[Any], num_layers: int, loop_s: float
) -> tuple[float, float]:
    """Return the seconds a step takes, and those of them that the host waits in next()."""
    results: deque[Any] = deque()
    for warm in (True, False):
        count, next_s, start = 0, 0.0, perf_counter()
        while count < gpu.IN_FLIGHT + 1 or perf_counter() - start < (
            loop_s / 4 if warm else loop_s
        ):
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

    records = np.zeros(
        1_024 if is_short else NUM_RECORDS, [("label", "u1"), ("image", "u1", (3, 32, 32))]
    )
    records["image"] = np.random.default_rng(0).integers(0, 256, records["image"].shape, np.uint8)
    records.tofile(folder / "cifar.bin")
    ops = [
        gl.ops.Transpose("HWC"), gl.ops.RandomCrop(32, 32, pad=4), gl.ops.RandomFlip(),
        gl.ops.Normalize((125.3, 123.0, 113.9), (63.0, 62.1, 66.7)),
    ]  # fmt: skip
    source = gl.fixed(folder / "cifar.bin", [("label", "u1"), ("image", "u1", (3, 32, 32))])
    return gl.Loader(
        source, 256, shuffle=True, ops=ops, output="image", device=device, last_batch="drop"
    )


def jpegs(batch_size: int, **arguments: Any) -> Callable[[Path, str, bool], Any]:
    """Return what makes a loader of JPEGs with the usual ops."""

    def make(folder: Path, device: str, is_short: bool) -> Any:
        import gpuload as gl

        ops = [
            gl.ops.Decode(), gl.ops.RandomResizedCrop(SIDE, SIDE), gl.ops.RandomFlip(),
            gl.ops.Normalize((123.7, 116.3, 103.5), (58.4, 57.1, 57.4)),
        ]  # fmt: skip
        source = gl.images(gpu_data.jpegs(is_short), labels=None)
        num_records = 4 if is_short else batch_size
        return gl.Loader(
            source, num_records, shuffle=True, ops=ops, output="image", device=device,
            last_batch="drop", **arguments,
        )  # fmt: skip

    return make


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
    return Framework(
        bridge.tensors, jax.numpy.asarray, begin, layer, lambda values: values.block_until_ready()
    )


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


def of_resnet50(device: str, rounds: int) -> Framework:
    """Return the training of a ResNet-50 in torch, channels last."""
    torch, models = importlib.import_module("torch"), importlib.import_module("torchvision.models")
    model = models.resnet50().to(_torch_device(device), memory_format=torch.channels_last)
    return _torch_training(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), device)


def of_vit_s(device: str, rounds: int) -> Framework:
    """Return the training of a ViT-S/16 in torch, compiled."""
    torch, models = importlib.import_module("torch"), importlib.import_module("torchvision.models")
    num_layers = 1 if rounds == 1 else 12
    model = models.VisionTransformer(
        image_size=SIDE, patch_size=PATCH, num_layers=num_layers, num_heads=6, hidden_dim=384, mlp_dim=1536,
    ).to(_torch_device(device))  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return _torch_training(model if rounds == 1 else torch.compile(model), optimizer, device)


def _torch_device(device: str) -> str:
    return "cuda" if device == "gpu" else "cpu"


def _torch_training(model: Any, optimizer: Any, device: str) -> Framework:
    """Return the training of a classifier of images in torch, in bfloat16."""
    torch: Any = importlib.import_module("torch")
    from gpuload.bridges import torch as bridge

    device_name = _torch_device(device)
    labels = torch.zeros(1, dtype=torch.int64, device=device_name)

    def step(images: Any) -> Any:
        with torch.autocast(device_name, torch.bfloat16):
            outputs = model(images)
            loss = torch.nn.functional.cross_entropy(outputs, labels.expand(len(outputs)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return Framework(
        bridge.tensors, lambda array: torch.from_numpy(array).to(device_name),
        lambda batch: batch.permute(0, 3, 1, 2), step, lambda loss: loss.item(), is_training=True,
    )  # fmt: skip


def keras_backend() -> str:
    """Return what Keras computes with: KERAS_BACKEND, else TensorFlow where it sees a GPU, else
    torch."""
    on_tensorflow = missing(("torch",)) or not gpu.absent(["tensorflow"])
    return os.environ.get("KERAS_BACKEND") or ("tensorflow" if on_tensorflow else "torch")


def of_keras(device: str, rounds: int) -> Framework:
    """Return the training of Keras' ResNet-50, on TensorFlow or torch."""
    os.environ["KERAS_BACKEND"] = backend = keras_backend()
    keras: Any = importlib.import_module("keras")
    if rounds != 1:
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    model = _keras_model(keras, is_short=rounds == 1)
    if backend == "torch":
        torch: Any = importlib.import_module("torch")
        framework = _torch_training(model, torch.optim.SGD(model.parameters(), lr=0.1), device)
        # Keras' images are channels last.
        return framework._replace(begin=lambda batch: batch, name="keras on torch")
    if backend != "tensorflow":
        raise ValueError(
            f"KERAS_BACKEND={backend}: this training is written for tensorflow and torch"
        )
    return _keras_on_tensorflow(keras, model)


def _keras_model(keras: Any, *, is_short: bool) -> Any:
    """Return a ResNet-50; in short form two layers."""
    if not is_short:
        return keras.applications.ResNet50(
            weights=None, classes=NUM_CLASSES, classifier_activation=None
        )
    pooled = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(NUM_CLASSES)]
    return keras.Sequential([keras.Input((SIDE, SIDE, 3)), *pooled])


def _keras_on_tensorflow(keras: Any, model: Any) -> Framework:
    tf = gpu.tensorflow()
    from gpuload.bridges import tensorflow as bridge

    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)

    @tf.function  # type: ignore[untyped-decorator]
    def step(images: Any) -> Any:
        with tf.GradientTape() as tape:
            outputs = tf.cast(model(images, training=True), tf.float32)
            labels = tf.zeros(tf.shape(images)[:1], tf.int32)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients)
        return loss

    return Framework(
        bridge.tensors, tf.constant, lambda batch: batch, step, lambda loss: loss.numpy(), is_training=True,
        name="keras on tensorflow",
    )  # fmt: skip


LOADERS = {
    CIFAR: cifar,
    JPEG: jpegs(64),
    JPEG_HOST: jpegs(128, executor="array"),
    JPEG_DALI: jpegs(128, executor="dali"),
}
TRAININGS = {"resnet50": of_resnet50, "vit_s": of_vit_s, "keras": of_keras}
FRAMEWORKS = {
    "cupy": of_cupy,
    "torch": of_torch,
    "jax": of_jax,
    "tensorflow": of_tensorflow,
    **TRAININGS,
}


if __name__ == "__main__":
    sys.exit(main())
