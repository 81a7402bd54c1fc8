"""Writes recipes.npz: what torchvision's and timm's transforms for evaluation make of images of Pillow.

    python tests/golden/augment/recipes.py        with torch (CPU), torchvision, timm and Pillow

``image/N`` is uint8 ``[H, W, 3]``, of sides whose quotients and halves are rounded either way. ``CASE/N``, float32
``[3, 28, 28]``, is every 8th row and column of the 224 of the result, from the first on. ``count`` is how many images
there are, ``versions`` the packages.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import PIL
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.oracle_torchvision import torch, torchvision

timm = importlib.import_module("timm")
models = importlib.import_module("torchvision.models")
create_transform = importlib.import_module("timm.data").create_transform

HERE = Path(__file__).parent
SIZES = ((67, 90), (90, 67), (50, 50), (300, 401))  # 256 * 90 / 67 = 343.9, and 343 - 224 is odd
CASES = {
    "torchvision_v1": models.ResNet50_Weights.IMAGENET1K_V1.transforms(),
    "torchvision_v2": models.ResNet50_Weights.IMAGENET1K_V2.transforms(),
    "timm_a1": create_transform(224, is_training=False, interpolation="bicubic", crop_pct=0.95),
    "deit": create_transform(224, is_training=False, interpolation="bicubic", crop_pct=0.875),
}


def image(height: int, width: int) -> np.ndarray:
    """Return waves with edges in them."""
    rows, columns = np.mgrid[:height, :width]
    waves = [128 + 100 * np.sin(rows / (3 + n) + n) * np.cos(columns / (5 - n)) for n in range(3)]
    pixels = (np.stack(waves, axis=2).clip(0, 255) // 16 * 16).astype(np.uint8)
    pixels[height // 3 : height // 2, width // 4 : width // 2] = (250, 10, 120)
    return pixels


def main() -> None:
    values = {"count": np.array(len(SIZES))}
    for number, size in enumerate(SIZES):
        pixels = values[f"image/{number}"] = image(*size)
        for name, transform in CASES.items():
            values[f"{name}/{number}"] = transform(Image.fromarray(pixels)).numpy()[:, ::8, ::8]
    versions = {
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "timm": timm.__version__,
    }
    values["versions"] = np.array(str({**versions, "Pillow": PIL.__version__}))
    np.savez_compressed(HERE / "recipes.npz", **values)


if __name__ == "__main__":
    main()
