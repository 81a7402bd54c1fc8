"""The usual training with DALI and PyTorch, moved to gpuload's reader: five lines of
dali_imagenet_before.py changed.

python examples/dali_imagenet.py [folder of class folders] [steps]      run it again: it goes on where it stopped
"""

import sys
from pathlib import Path

import numpy as np
import torch
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIClassificationIterator
from PIL import Image
from sklearn.datasets import load_sample_images

import gpuload as gl
from gpuload.bridges.dali import coin_flip, reader

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "photos")
if not folder.exists():  # some data: pieces of two photographs, each photograph a class
    rng = np.random.default_rng(0)
    for name, photo in zip(("china", "flower"), load_sample_images().images, strict=True):
        (folder / name).mkdir(parents=True)
        for number in range(75):
            top, left = rng.integers(0, 200), rng.integers(0, 400)
            height, width = rng.integers(100, 220, 2)
            piece = photo[top : top + height, left : left + width]
            Image.fromarray(piece).save(folder / name / f"{number:03}.jpg", quality=92)

has_gpu = torch.cuda.is_available()
loader = gl.Loader(gl.images(folder), batch_size=32, shuffle=True, seed=12, device="cpu")

# New beside the five lines: a run that was stopped goes on.
num_steps, checkpoint = int(sys.argv[2]) if len(sys.argv) > 2 else None, folder.with_suffix(".pt")
checkpoint_state = torch.load(checkpoint) if checkpoint.exists() else None
if checkpoint_state:  # before the pipeline is made, which reads ahead
    loader.load_state_dict(checkpoint_state["loader"])
    print(f"goes on at epoch {loader.position.epoch}, step {loader.position.step}")


@pipeline_def(batch_size=32, num_threads=4, device_id=0 if has_gpu else None, seed=12)
def training():
    """Return images, float32 [32, 3, 64, 64], and labels."""
    jpegs, labels, crop, mirror = reader(
        loader, draws={"crop": gl.ops.RandomResizedCrop(64), "mirror": coin_flip()}
    )
    images = fn.slice(
        fn.decoders.image(jpegs, device="mixed" if has_gpu else "cpu"), **crop, axes=[0, 1]
    )
    images = fn.resize(images, size=[64, 64], interp_type=types.INTERP_TRIANGULAR)
    images = fn.crop_mirror_normalize(
        images,
        mirror=mirror,
        mean=[123.7, 116.3, 103.5],
        std=[58.4, 57.1, 57.4],
        output_layout="CHW",
    )
    return images, labels


pipe = training()
train = DALIClassificationIterator(pipe, auto_reset=True)

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 16, 5, 2),
    torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(4),
    torch.nn.Flatten(),
    torch.nn.Linear(256, 2),
)
model.to("cuda" if has_gpu else "cpu")
optimizer = torch.optim.Adam(model.parameters(), 3e-3)
if checkpoint_state:
    model.load_state_dict(checkpoint_state["model"])
    optimizer.load_state_dict(checkpoint_state["optimizer"])

for epoch in range(loader.position.epoch, 3):
    num_images, right = 0, 0
    for batch in train:
        images, labels = batch[0]["data"], batch[0]["label"].flatten().long()
        scores = model(images)
        loss = torch.nn.functional.cross_entropy(scores, labels.to(scores.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        num_images += len(images)
        right += int((scores.argmax(1).cpu() == labels.cpu()).sum())

        states = {
            "loader": loader.state_dict(),
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
        torch.save(states, checkpoint)
        num_steps = None if num_steps is None else num_steps - 1
        if num_steps == 0:
            print(f"stopped at epoch {loader.position.epoch}, step {loader.position.step}")
            sys.exit()
    print(
        f"epoch {epoch}: {num_images} images, {right / num_images:.0%} right, loss {loss.item():.6f}"
    )
