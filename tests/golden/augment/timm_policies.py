"""Writes timm_policies.npz: what the policies of timm's AutoAugment make of an image of Pillow.

    python tests/golden/augment/timm_policies.py        with torch (CPU), torchvision, timm and Pillow

``image`` is uint8 ``[H, W, 3]``. ``POLICY/PAIR/SIGN`` is what all operations of a pair make of it, pixels by linear
interpolation; SIGN is that of levels that have one, and RADIUS 1.3 that of "3a" where timm draws it. Of 0 bits Pillow
makes black, as timm says of "v0"; Pillow 13 has an error for that. ``versions`` has the packages.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import PIL
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.oracle_torchvision import torch, torchvision

timm = importlib.import_module("timm")
auto_augment = importlib.import_module("timm.data.auto_augment")

HERE = Path(__file__).parent
FILL = (124, 116, 104)
RADIUS = 1.3


def posterize(image: Image.Image, bits: int, **_: object) -> Image.Image:
    """Return what timm does; of 0 bits black."""
    return auto_augment.posterize(image, bits) if bits else Image.new("RGB", image.size)


def main() -> None:
    """Write the file."""
    image = np.load(HERE / "policies.npz")["image"]
    settings = {"img_mean": FILL, "interpolation": Image.Resampling.BILINEAR}
    packages = (np, PIL, torch, torchvision, timm)
    values = {
        "image": image,
        "versions": np.array([f"{package.__name__} {package.__version__}" for package in packages]),
    }
    for policy in ("v0", "v0r", "original", "originalr", "3a"):
        for number, pair in enumerate(auto_augment.auto_augment_policy(policy, settings)):
            for sign in (1, -1):
                draws = SimpleNamespace(
                    random=lambda sign=sign: 0.5 - 0.4 * sign, uniform=lambda low, high: RADIUS
                )
                auto_augment.random = draws  # a number above 0.5 turns a level round
                result = Image.fromarray(image)
                for operation in pair:
                    operation.prob = 1.0
                    if "Posterize" in operation.name:
                        operation.aug_fn = posterize
                    result = operation(result)
                if sign > 0 or not np.array_equal(result, values[f"{policy}/{number}/1"]):
                    values[f"{policy}/{number}/{sign}"] = np.asarray(result)
    np.savez_compressed(HERE / "timm_policies.npz", **values)


if __name__ == "__main__":
    main()
