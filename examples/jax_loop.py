"""A loop in JAX on arrays that share the loader's memory, with validation, and going on where a run
was stopped.

python examples/jax_loop.py [folder]         run it again: it goes on
"""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import gpuload as gl
from gpuload.bridges import jax as gljax

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "squares")
folder.mkdir(exist_ok=True)
if not (folder / "images.npy").exists():  # some data: a bright square in one of four corners
    rng = np.random.default_rng(0)
    labels, images = rng.integers(0, 4, 2000), rng.normal(100, 30, (2000, 16, 16, 1))
    for image, label in zip(images, labels, strict=True):
        image[label // 2 * 8 :, label % 2 * 8 :][:8, :8] += 15
    np.save(folder / "images.npy", images.clip(0, 255).astype(np.uint8))
    np.save(folder / "labels.npy", labels)

source = gl.zip(
    gl.npy(folder / "images.npy", field="image"), gl.npy(folder / "labels.npy", field="label")
)
train, held_out = source.split(0.9, seed=0)
ops = [
    gl.ops.Normalize(mean=115.0, std=45.0),
    gl.ops.Cast("int32", on="label"),
]  # JAX has 64 bits only where asked for
# Steps of one shape each, so that jax.jit compiles once.
batches = gljax.tensors(
    gl.Loader(
        train, 64, shuffle=True, seed=1, ops=ops, output=("image", "label"), last_batch="drop"
    )
)
validation = gl.Loader(held_out, 64, ops=ops, output=("image", "label"), last_batch="pad")


def logits(weights, images):
    """Return the score of each class, float32 ``[n, 4]``."""
    return images.reshape(len(images), -1) @ weights["matrix"] + weights["bias"]


def loss_of(weights, images, labels):
    """Return the mean cross entropy."""
    return -jax.nn.log_softmax(logits(weights, images))[jnp.arange(len(labels)), labels].mean()


@jax.jit
def train_step(weights, images, labels):
    """Return the weights after a step of gradient descent, and the loss before it."""
    loss, gradient = jax.value_and_grad(loss_of)(weights, images, labels)
    return jax.tree.map(lambda weight, slope: weight - 0.02 * slope, weights, gradient), loss


@jax.jit
def num_right(weights, images, labels, valid):
    """Return how many labels are found, of records that do not just fill the batch up."""
    return ((logits(weights, images).argmax(1) == labels) & valid).sum()


weights = {"matrix": jnp.zeros((16 * 16, 4)), "bias": jnp.zeros(4)}
state, weights_file = folder / "state.json", folder / "weights.npz"
if state.exists():  # the weights are saved before the state, so that both are of the same step
    weights = {name: jnp.array(weight) for name, weight in np.load(weights_file).items()}
    batches.load_state_dict(json.loads(state.read_text()))
epoch = batches.loader.position.epoch
print(f"training from epoch {epoch}, step {batches.loader.position.step}")

for number in range(epoch, epoch + 3):
    for images, labels in batches:
        weights, loss = train_step(weights, images, labels)
    np.savez(weights_file, **weights)
    state.write_text(json.dumps(batches.state_dict()))
    right = sum(int(num_right(weights, *batch, batch.valid)) for batch in gljax.tensors(validation))
    print(
        f"epoch {number}: loss {float(loss):.3f}, {right / len(held_out):.1%} of the held out images are right"
    )
