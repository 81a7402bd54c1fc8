"""Images and their masks: one draw for both, each with an interpolation of its own.

python examples/image_and_mask.py [folder]
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

import gpuload as gl

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "street")
if (
    not folder.exists()
):  # some data: a bright rectangle on noise, and a mask of it with the labels 0 and 7
    rng = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    for number in range(12):
        image, mask = rng.integers(0, 120, (96, 128, 3), np.uint8), np.zeros((96, 128), np.uint8)
        top, left = rng.integers(0, 48), rng.integers(0, 64)
        image[top : top + 40, left : left + 50] += 100
        mask[top : top + 40, left : left + 50] = 7
        Image.fromarray(image).save(folder / "images" / f"{number:02}.jpg", quality=95)
        Image.fromarray(mask).save(folder / "masks" / f"{number:02}.png")

images = gl.images(folder / "images", labels=None)
masks = gl.images(folder / "masks", labels=None).rename(image="mask")
fields = ("image", "mask")
loader = gl.Loader(
    gl.zip(images, masks),
    batch_size=4,
    shuffle=True,
    seed=3,
    output=fields,
    ops=[
        gl.ops.Decode(),
        gl.ops.Decode("GRAY", on="mask"),
        gl.ops.RandomResizedCrop(64, 64, on=fields, interpolation={"mask": "nearest"}),
        gl.ops.RandomFlip(on=fields),
        gl.ops.Normalize(mean=80.0, std=50.0),  # of the image alone
    ],
)
for image, mask in loader:
    inside = float(image[mask[..., 0] == 7].mean())
    outside = float(image[mask[..., 0] == 0].mean())
    print(
        f"{image.shape} {mask.shape}, labels {np.unique(mask)}, inside {inside:.2f}, outside {outside:.2f}"
    )
    assert set(np.unique(mask)) <= {0, 7}
    assert inside > outside
