"""The usual training with DALI and PyTorch: file reader, mixed decoder, random-resized crop, flip,
normalise.

python examples/dali_imagenet_before.py [folder of class folders]     dali_imagenet.py is the same with gpuload's reader
"""

import sys
from pathlib import Path

import numpy as np
import torch
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIClassificationIterator, LastBatchPolicy
from PIL import Image
from sklearn.datasets import load_sample_images

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


@pipeline_def(batch_size=32, num_threads=4, device_id=0 if has_gpu else None, seed=12)
def training():
    """Return images, float32 [32, 3, 64, 64], and labels."""
    jpegs, labels = fn.readers.file(
        file_root=str(folder), random_shuffle=True, pad_last_batch=True, name="Reader"
    )
    images = fn.decoders.image_random_crop(jpegs, device="mixed" if has_gpu else "cpu")
    images = fn.resize(images, size=[64, 64], interp_type=types.INTERP_TRIANGULAR)
    images = fn.crop_mirror_normalize(
        images,
        mirror=fn.random.coin_flip(probability=0.5),
        mean=[123.7, 116.3, 103.5],
        std=[58.4, 57.1, 57.4],
        output_layout="CHW",
    )
    return images, labels


pipe = training()
train = DALIClassificationIterator(
    pipe, reader_name="Reader", last_batch_policy=LastBatchPolicy.PARTIAL, auto_reset=True
)

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

for epoch in range(3):
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
    print(
        f"epoch {epoch}: {num_images} images, {right / num_images:.0%} right, loss {loss.item():.6f}"
    )
