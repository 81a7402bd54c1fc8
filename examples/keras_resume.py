"""Keras with validation, and going on where a run was stopped: weights, optimizer and loader
together.

python examples/keras_resume.py [folder]         run it again: it goes on
"""

import sys
from pathlib import Path

import keras
import numpy as np

import gpuload as gl
from gpuload.bridges import tensorflow as gltf

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "digits")
folder.mkdir(exist_ok=True)
if not (folder / "images.npy").exists():  # some data: bright squares in one of four corners
    rng = np.random.default_rng(0)
    labels, images = rng.integers(0, 4, 2000), rng.normal(100, 30, (2000, 16, 16, 1))
    for image, label in zip(images, labels, strict=True):
        image[label // 2 * 8 :, label % 2 * 8 :][:8, :8] += 60
    np.save(folder / "images.npy", images.clip(0, 255).astype(np.uint8))
    np.save(folder / "labels.npy", labels)

source = gl.zip(
    gl.npy(folder / "images.npy", field="image"), gl.npy(folder / "labels.npy", field="label")
)
train, held_out = source.split(0.9, seed=0)
normalize = gl.ops.Normalize(mean=115.0, std=45.0)
loader = gl.Loader(train, 64, shuffle=True, seed=1, ops=[normalize], output=("image", "label"))
validation = gl.Loader(held_out, 64, ops=[normalize], output=("image", "label"))

model = keras.Sequential(
    [keras.layers.Input((16, 16, 1)), keras.layers.Flatten(), keras.layers.Dense(4)]
)
model.compile(
    "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
)
model.fit(
    gltf.dataset(loader),
    epochs=3,
    validation_data=gltf.dataset(validation),
    shuffle=False,  # the loader shuffles
    verbose=2,
    callbacks=[
        gltf.ResumeLoader(loader, folder / "run", save_freq=10)
    ],  # also in mid-epoch, wherever it is stopped
)
print(f"trained up to epoch {loader.position.epoch}, step {loader.position.step}")
