"""Training with Ray Train: workers that die are started again, and go on from the checkpoint of
model and loader.

python examples/ray_train.py [folder]            needs ray[train] and torch; two workers on this
                                                 machine

The loader's state is saved in the checkpoint of the model, so that both are of the same step. The
state is that of any number of workers: pass num_workers=(1, 8) for as many as there are nodes for.
Here the checkpoint also counts how often each record was trained on.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import TorchTrainer, prepare_model

import gpuload as gl
from gpuload.bridges import torch as gltorch

GLOBAL_BATCH, STEPS_A_CHECKPOINT = 64, 5


def train(config):
    """Train on this worker's share, from the latest checkpoint on."""
    ranks = gl.shard("ray")
    source = gl.npy(config["rows"])
    loader = gl.Loader(
        source, GLOBAL_BATCH // ranks["num_shards"], shuffle=True, seed=7, output="x", **ranks
    )
    model = prepare_model(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bare = model.module if hasattr(model, "module") else model
    counts = torch.zeros(len(source), dtype=torch.int64)
    new_counts = torch.zeros_like(counts)  # of this worker, since the checkpoint
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder, "checkpoint.pt"), weights_only=True)
        bare.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(json.loads(saved["loader"]))
        counts = saved["counts"]
    while loader.position.epoch < config["epochs"]:
        for batch in gltorch.tensors(loader):
            (rows,) = batch
            loss = ((model(rows[:, :3]) - rows[:, 3:]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            new_counts[batch.records[batch.valid]] += 1
            if loader.position.step % STEPS_A_CHECKPOINT == 0:
                if dist.is_initialized():
                    dist.all_reduce(new_counts)
                counts += new_counts
                new_counts.zero_()
                report(bare, optimizer, loader, loss, counts)


def report(model, optimizer, loader, loss, counts):
    """Save the model and the loader together; all workers report, the first one has the
    checkpoint."""
    metrics = {
        "loss": float(loss.detach()),
        "epoch": loader.position.epoch,
        "counts": sorted(set(counts.tolist())),
    }
    if loader.shard_id:
        ray.train.report(metrics)
        return
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "loader": json.dumps(loader.state_dict()),
        "counts": counts,
    }
    with tempfile.TemporaryDirectory() as folder:
        torch.save(state, Path(folder, "checkpoint.pt"))
        ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))


def trainer_of(folder, num_workers, epochs=2, max_failures=20):
    """Return a trainer whose checkpoints lie in a folder that all nodes see; it goes on from the
    latest one there."""
    return TorchTrainer(
        train,
        train_loop_config={"rows": str(folder / "rows.npy"), "epochs": epochs},
        scaling_config=ray.train.ScalingConfig(num_workers=num_workers),
        run_config=ray.train.RunConfig(
            name="run",
            storage_path=str(folder.resolve()),
            failure_config=ray.train.FailureConfig(max_failures),
        ),
    )


def write_rows(folder):
    """Write rows of three numbers and what a line makes of them."""
    inputs = np.random.default_rng(0).normal(size=(1000, 3))
    np.save(
        folder / "rows.npy", np.column_stack([inputs, inputs @ [1.0, -2.0, 0.5]]).astype(np.float32)
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "rows")
    folder.mkdir(exist_ok=True)
    write_rows(folder)
    ray.init(num_cpus=3, object_store_memory=200 << 20, include_dashboard=False)
    result = trainer_of(folder, num_workers=2).fit()
    print(
        f"loss {result.metrics['loss']:.4f}; each record was trained on {result.metrics['counts']} times"
    )
