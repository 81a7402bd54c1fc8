"""A loop in PyTorch: batches are NumPy arrays, and torch.from_numpy takes their memory without a copy.

python examples/torch_loop.py [folder]
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

import gpuload as gl

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "rows")
folder.mkdir(exist_ok=True)
if not (folder / "0.npy").exists():  # some data: y = sum of x
    for number in range(3):
        np.save(folder / f"{number}.npy", np.random.default_rng(number).random((1000, 8), np.float32))

rows = gl.npy(folder / "?.npy", field="x")
loader = gl.Loader(rows, batch_size=50, shuffle=True, seed=0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for epoch in range(3):
    for batch in loader:  # goes on where it was left; the state after each batch is loader.state_dict()
        x = torch.from_numpy(batch["x"])  # a batch stays what it was as long as x, or anything made of it, is there
        loss = torch.nn.functional.mse_loss(model(x)[:, 0], x.sum(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    saved = {"model": model.state_dict(), "loader": loader.state_dict()}
    print(
        f"epoch {epoch}: loss {loss.item():.4f}, the next batch is {saved['loader']['epoch']}/{saved['loader']['step']}"
    )

again = gl.Loader(rows, batch_size=50, shuffle=True, seed=0)
again.load_state_dict(json.loads(json.dumps(saved["loader"])))
assert again.position == loader.position
