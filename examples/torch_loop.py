"""A loop in PyTorch on tensors that share the loader's memory, with validation, and going on where
a run was stopped.

python examples/torch_loop.py [folder]         run it again: it goes on
"""

import sys
from pathlib import Path

import numpy as np
import torch

import gpuload as gl
from gpuload.bridges import torch as gltorch

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
ops = [gl.ops.Normalize(mean=115.0, std=45.0)]
batches = gltorch.tensors(
    gl.Loader(train, 64, shuffle=True, seed=1, ops=ops, output=("image", "label"))
)
# A dataset is for whoever takes a DataLoader; each loop over it is a whole pass.
validation = gltorch.dataset(gl.Loader(held_out, 64, ops=ops, output=("image", "label")))
validation = torch.utils.data.DataLoader(
    validation, batch_size=None
)  # the batches are the loader's

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16 * 16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
state = folder / "state.pt"
if state.exists():
    checkpoint = torch.load(state)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    batches.load_state_dict(checkpoint["loader"])
epoch = batches.loader.position.epoch
print(f"training from epoch {epoch}, step {batches.loader.position.step}")

for number in range(epoch, epoch + 3):
    for images, labels in batches:
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "loader": batches.state_dict(),
        },
        state,
    )
    with torch.no_grad():
        right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in validation)
    print(
        f"epoch {number}: loss {loss.item():.3f}, {right / len(held_out):.1%} of the held out images are right"
    )
