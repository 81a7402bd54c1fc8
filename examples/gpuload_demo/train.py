"""Training in the demo: a small Keras network on the digits, by ``model.fit`` and by a loop of
one's own.

The gain of augmentation shows where there is little to learn from: with all digits the network is
right about nearly all others in any case, with FEW it makes about twice as many errors without
augmentation as with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpuload as gl
from gpuload.sources.base import Source
from gpuload_demo import data as demo_data

MEAN, STD = (77.8,), (95.9,)  # of the digits' pixels
TARGET = 0.95
AUGMENT = (gl.ops.RandomCrop(8, 8, pad=1),)
# Digits, and epochs of 4 steps: as many as are needed for the errors to stay the same.
NUM_FEWER, FEWER_EPOCHS = 200, 50
Say = Callable[[str], None]


@dataclass(frozen=True)
class Training:
    """The result of training: held-out digits that are right after ``fit`` and after the loop;
    epochs and tensors."""

    after_fit: int
    right: int
    num_held_out: int
    num_epochs: int
    num_shared: int
    num_copied: int

    @property
    def accuracy(self) -> float:
        """The share of held-out digits that are right."""
        return self.right / self.num_held_out


@dataclass(frozen=True)
class Worth:
    """Held-out digits that are wrong after training on NUM_FEWER, without augmentation and with
    it."""

    wrong_without: int
    wrong_with: int
    num_held_out: int


def digits_loader(
    source: Source, *, seed: int, device: str, augment: bool = True, **options: Any
) -> gl.Loader:
    """Return a loader of digits as the network takes them: float32 (8, 8, 1), and the label."""
    ops = [
        gl.ops.Reshape((8, 8, 1)),
        *(AUGMENT if augment else ()),
        gl.ops.Normalize(mean=MEAN, std=STD),
    ]
    arguments = {"batch_size": 64, "shuffle": True, **options}
    return gl.Loader(
        source, ops=ops, output=("image", "label"), seed=seed, device=device, **arguments
    )


def train(folder: Path, *, seed: int, device: str, num_epochs: int, say: Say) -> Training:
    """Train on nine tenths of the digits: from the NPY shards by ``fit``, then from the fixed
    records by a loop."""
    from gpuload.bridges import tensorflow as gltf

    train_npy, held_out = demo_data.npy(folder).split(0.9, seed=seed)
    train_fixed, _ = demo_data.fixed(folder).split(
        0.9, seed=seed
    )  # the same records, as the split is of numbers
    with (
        digits_loader(train_npy, seed=seed, device=device) as by_fit,
        digits_loader(train_fixed, seed=seed + 1, device=device) as by_loop,
        digits_loader(
            held_out, seed=seed, device=device, augment=False, shuffle=False
        ) as validation,
    ):
        model, examination, num_loops = _model(seed), gltf.dataset(validation), -(-num_epochs // 2)
        model.fit(
            gltf.dataset(by_fit),
            epochs=num_epochs,
            shuffle=False,
            verbose=0,
            callbacks=[_progress(say)],
        )
        after_fit = _num_right(model, examination, len(held_out))
        _loop(model, gltf.tensors(by_loop), num_epochs=num_loops, say=say)
        right = _num_right(model, examination, len(held_out))
        stats = by_loop.stats()
    shared, num_copied = int(stats["tensors_shared"]), int(stats["tensors_copied"])
    return Training(after_fit, right, len(held_out), num_epochs + num_loops, shared, num_copied)


def worth(folder: Path, *, seed: int, device: str, say: Say) -> Worth:
    """Train two networks on NUM_FEWER digits, alike but for augmentation, and count their errors on
    all the others."""
    from gpuload.bridges import tensorflow as gltf

    source = demo_data.fixed(folder)
    small, rest = source.split(NUM_FEWER / len(source), seed=seed)
    wrong = []
    for augment in (False, True):
        with (
            digits_loader(
                small, seed=seed, device=device, augment=augment, batch_size=50
            ) as training,
            digits_loader(
                rest, seed=seed, device=device, augment=False, shuffle=False, batch_size=256
            ) as validation,
        ):
            model = _model(seed)
            _loop(model, gltf.tensors(training), num_epochs=FEWER_EPOCHS, say=say)
            wrong.append(len(rest) - _num_right(model, gltf.dataset(validation), len(rest)))
    without, augmented = wrong
    return Worth(without, augmented, len(rest))


def _model(seed: int) -> Any:
    import keras

    keras.utils.set_random_seed(seed)
    layers = keras.layers
    model = keras.Sequential([
        layers.Input((8, 8, 1)),
        layers.Conv2D(32, 3, padding="same", activation="relu"),
        layers.Conv2D(64, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dropout(0.3),
        layers.Dense(10),
    ])  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(2e-3), loss=loss, metrics=["accuracy"])
    return model


def _num_right(model: Any, examination: Any, num_held_out: int) -> int:
    _, accuracy = model.evaluate(examination, verbose=0)
    return round(
        float(accuracy) * num_held_out
    )  # Keras gives it as float32: 171 of 180 come as 0.9499999


def _progress(say: Say) -> Any:
    import keras

    def after_epoch(epoch: int, logs: dict[str, float]) -> None:
        say(f"model.fit: epoch {epoch + 1}, accuracy {logs['accuracy']:.1%}")

    return keras.callbacks.LambdaCallback(on_epoch_end=after_epoch)


def _loop(model: Any, batches: Any, *, num_epochs: int, say: Say) -> None:
    """Train by a loop of one's own over tensors that share the loader's memory."""
    import tensorflow as tf

    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = model.loss(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)
        return loss

    compiled, loss = tf.function(step, reduce_retracing=True), 0.0
    for epoch in range(num_epochs):
        for images, labels in batches:
            loss = compiled(images, labels)
        say(f"a loop over tensors: epoch {epoch + 1}, loss {float(loss):.3f}")
