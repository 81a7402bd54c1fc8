"""Training with jax.distributed: each process has its part of one global array; the processes that
are there go on.

python examples/launch_jax.py folder localhost:9876 2 0     and in a second shell the same with 1 at
                                                            the end
srun python examples/launch_jax.py folder                   Slurm, Open MPI and Cloud TPUs say the
                                                            rest themselves

The checkpoint holds the weights, the state of the loader, and here also how often each record was
trained on.
"""

import json
import os
import sys
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import gpuload as gl
from gpuload.bridges import jax as gljax

EPOCHS, GLOBAL_BATCH, STEPS_A_CHECKPOINT = 2, 24, 5


def rows():
    """Return rows of three numbers, what a line makes of them, and their number; in place of
    gl.npy(...)."""
    inputs = np.random.default_rng(0).normal(size=(960, 3))
    values = np.column_stack([inputs, inputs @ [1.0, -2.0, 0.5]]).astype(np.float32)
    return gl.arrays(x=values, number=np.arange(960, dtype=np.int32))


@jax.jit
def train_step(weights, counts, values, numbers):
    """Return the weights after a step of gradient descent, and the counts; JAX adds up what all
    processes have."""
    gradient = jax.grad(lambda weights: ((values[:, :3] @ weights - values[:, 3]) ** 2).mean())(
        weights
    )
    return weights - 0.1 * gradient, counts.at[numbers].add(1)


def save(path, loader, weights, counts):
    """Write a checkpoint of model and loader; it replaces the one before when it is whole."""
    part = path.with_suffix(".part.npz")
    np.savez(part, weights=weights, counts=counts, loader=json.dumps(loader.state_dict()))
    os.replace(part, path)


def train(path, loader):
    """Train from the checkpoint on, if there is one, and return how often each record was trained
    on."""
    mesh = Mesh(jax.devices(), ("data",))
    batches = gljax.tensors(loader, sharding=NamedSharding(mesh, PartitionSpec("data")))
    weights, counts = np.zeros(3, np.float32), np.zeros(960, np.int32)
    if path.exists():
        with np.load(path) as saved:
            weights, counts = saved["weights"], saved["counts"]
            loader.load_state_dict(json.loads(str(saved["loader"])))
    everywhere = NamedSharding(mesh, PartitionSpec())
    weights, counts = (
        jax.make_array_from_process_local_data(everywhere, value) for value in (weights, counts)
    )
    while loader.position.epoch < EPOCHS:
        for values, numbers in batches:
            weights, counts = train_step(weights, counts, values, numbers)
            if loader.position.step % STEPS_A_CHECKPOINT == 0 and loader.shard_id == 0:
                save(path, loader, jax.device_get(weights), jax.device_get(counts))
    return jax.device_get(counts)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    if len(sys.argv) > 2:
        jax.distributed.initialize(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        jax.distributed.initialize()
    ranks = gl.shard()
    loader = gl.Loader(
        rows(), GLOBAL_BATCH // ranks["num_shards"], shuffle=True, seed=7, output=("x", "number"), last_batch="drop",
        device="cpu", **ranks,
    )  # fmt: skip
    counts = train(folder / "checkpoint.npz", loader)
    if loader.shard_id == 0:
        print(
            f"{ranks['num_shards']} ranks; each record was trained on {sorted(set(counts.tolist()))} times"
        )
    jax.distributed.shutdown()
