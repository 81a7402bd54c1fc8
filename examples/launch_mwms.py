"""Training with MultiWorkerMirroredStrategy of TensorFlow: the workers that are there go on from
the checkpoint.

export TF_CONFIG='{"cluster": {"worker": ["host:2222", "host:2223"]}, "task": {"type": "worker",
"index": 0}}'
python examples/launch_mwms.py folder                       and on the other worker the same with
                                                            index 1

Every worker makes the loader of all records; ``gltf.distribute`` gives each replica its part of a
step. The state of the loader is saved with the model. Here the checkpoint also counts how often
each record was trained on.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

import gpuload as gl
from gpuload.bridges import tensorflow as gltf

EPOCHS, GLOBAL_BATCH, STEPS_A_CHECKPOINT = 2, 24, 5


def rows():
    """Return rows of three numbers, what a line makes of them, and their number; in place of
    gl.npy(...)."""
    inputs = np.random.default_rng(0).normal(size=(960, 3))
    values = np.column_stack([inputs, inputs @ [1.0, -2.0, 0.5]]).astype(np.float32)
    return gl.arrays(x=values, number=np.arange(960, dtype=np.int32))


def save(path, weights, counts, state):
    """Write a checkpoint of model and loader; it replaces the one before when it is whole."""
    part = path.with_suffix(".part.npz")
    np.savez(part, weights=weights, counts=counts, loader=json.dumps(state))
    os.replace(part, path)


def train(path, loader, strategy, is_first):
    """Train from the checkpoint on, if there is one, and return how often each record was trained
    on."""
    with strategy.scope():
        weights, counts = tf.Variable(tf.zeros([3])), tf.Variable(tf.zeros([960], tf.int32))
    if path.exists():
        with np.load(path) as saved:
            weights.assign(saved["weights"])
            counts.assign(saved["counts"])
            loader.load_state_dict(json.loads(str(saved["loader"])))

    def replica_step(values, numbers):
        with tf.GradientTape() as tape:
            loss = (
                tf.reduce_sum((tf.linalg.matvec(values[:, :3], weights) - values[:, 3]) ** 2)
                / GLOBAL_BATCH
            )
        ones = tf.scatter_nd(numbers[:, None], tf.ones_like(numbers), [960])
        return tape.gradient(loss, weights), ones

    @tf.function
    def train_step(values, numbers):
        gradients, ones = strategy.run(replica_step, (values, numbers))
        weights.assign_sub(0.1 * strategy.reduce("SUM", gradients, axis=None))
        counts.assign_add(strategy.reduce("SUM", ones, axis=None))

    data, begin = gltf.distribute(loader, strategy), loader.position
    for epoch in range(begin.epoch, EPOCHS):
        first = begin.step if epoch == begin.epoch else 0
        for step, (values, numbers) in enumerate(data, first + 1):
            train_step(values, numbers)
            if step % STEPS_A_CHECKPOINT == 0 and is_first:
                save(path, weights.numpy(), counts.numpy(), loader.state_dict(epoch, step))
    return counts.numpy()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else of TensorFlow
    ranks = gl.shard()
    loader = gl.Loader(
        rows(), GLOBAL_BATCH, shuffle=True, seed=7, output=("x", "number"), device="cpu"
    )
    counts = train(folder / "checkpoint.npz", loader, strategy, is_first=ranks["shard_id"] == 0)
    if ranks["shard_id"] == 0:
        print(
            f"{ranks['num_shards']} ranks; each record was trained on {sorted(set(counts.tolist()))} times"
        )
    sys.stdout.flush()
    os._exit(0)  # TensorFlow's threads of the other workers may be gone
