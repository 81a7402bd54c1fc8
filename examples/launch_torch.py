"""Training with torch.distributed under any launcher: the ranks that are there go on from the
checkpoint.

export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1                 or ranks that torchrun starts again may
                                                            not meet torchrun --standalone
                                                            --nproc-per-node 2 --max-restarts 3
                                                            examples/launch_torch.py folder

srun python examples/launch_torch.py folder                 by examples/launch_slurm.sh
a JobSet of Kubernetes                                      by examples/launch_jobset.yaml
mpirun -n 2 python examples/launch_torch.py folder          with MASTER_ADDR and MASTER_PORT

``gl.shard()`` asks the launcher which rank this is. The state of the loader is saved with the
model, so any number of ranks that divides the global batch goes on from there. Here the checkpoint
also counts how often each record was trained on.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn  # imported later, by DDP, it would keep the process group for ever (torch 2.13)
from torch.nn.parallel import DistributedDataParallel

import gpuload as gl
from gpuload.bridges import torch as gltorch

EPOCHS, GLOBAL_BATCH, STEPS_A_CHECKPOINT = 2, 24, 5


def rows():
    """Return rows of three numbers and what a line makes of them; in place of
    gl.npy("/shared/rows-*.npy")."""
    inputs = np.random.default_rng(0).normal(size=(960, 3))
    return gl.arrays(x=np.column_stack([inputs, inputs @ [1.0, -2.0, 0.5]]).astype(np.float32))


def train(path, loader):
    """Train from the checkpoint on, if there is one, and return how often each record was trained
    on."""
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    counts = torch.zeros(len(loader.source), dtype=torch.int64)
    if path.exists():
        saved = torch.load(path, weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(json.loads(saved["loader"]))
        counts = saved["counts"]
    new_counts = torch.zeros_like(counts)  # of this rank, since the checkpoint
    while loader.position.epoch < EPOCHS:
        for batch in gltorch.tensors(loader):
            (values,) = batch
            loss = ((model(values[:, :3]) - values[:, 3:]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            new_counts[batch.records[batch.valid]] += 1
            if loader.position.step % STEPS_A_CHECKPOINT == 0:
                dist.all_reduce(new_counts)
                counts += new_counts
                new_counts.zero_()
                save(path, model.module, optimizer, loader, counts)
    return counts


def save(path, model, optimizer, loader, counts):
    """Write a checkpoint of model and loader, on the first rank; it replaces the one before when it
    is whole."""
    if loader.shard_id == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "counts": counts}
        torch.save({**state, "loader": json.dumps(loader.state_dict())}, path.with_suffix(".part"))
        os.replace(path.with_suffix(".part"), path)
    dist.barrier()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    ranks = gl.shard()
    dist.init_process_group("gloo", rank=ranks["shard_id"], world_size=ranks["num_shards"])
    loader = gl.Loader(
        rows(),
        GLOBAL_BATCH // ranks["num_shards"],
        shuffle=True,
        seed=7,
        output="x",
        device="cpu",
        **ranks,
    )
    counts = train(folder / "checkpoint.pt", loader)
    if loader.shard_id == 0:
        print(
            f"{ranks['num_shards']} ranks; each record was trained on {sorted(set(counts.tolist()))} times"
        )
    # Ends gloo's threads: one that still drops a tensor when Python ends would abort the process.
    dist.destroy_process_group()
