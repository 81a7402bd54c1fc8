"""Writes blur.npz: what torchvision's gaussian_blur makes of small images, and its elastic of one.

    python tests/golden/augment/blur.py        with torch (CPU) and torchvision

``images/NAME`` is an image ``[H, W, C]``; ``blur/NAME/KERNEL X/KERNEL Y/SIGMA`` the result. ``displacement`` is float32
``[H, W, 2]``, ``elastic/INTERPOLATION`` what it makes of ``images/noise`` with fill 7; ``versions`` the packages.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.oracle_torchvision import functional, torch, torchvision


def tensor_of(image):
    """Return an image as torchvision takes it."""
    return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))


def pixels_of(tensor):
    """Return an image as NumPy has it."""
    return np.ascontiguousarray(tensor.numpy().transpose(1, 2, 0))


def main():
    """Write the file."""
    rng = np.random.default_rng(25)
    noise = rng.integers(0, 256, (24, 32, 3), np.uint8)
    images = {"noise": noise, "float": noise[:13, :12].astype(np.float32) / 255}
    results = {f"images/{name}": image for name, image in images.items()}
    results["versions"] = np.array(
        [f"{package.__name__} {package.__version__}" for package in (torch, torchvision, np)]
    )
    for name, image in images.items():
        for kernel in ((3, 3), (5, 9), (23, 11)):
            for sigma in (0.1, 0.75, 2.0, 9.5):
                result = functional.gaussian_blur(tensor_of(image), list(kernel), [sigma, sigma])
                results[f"blur/{name}/{kernel[0]}/{kernel[1]}/{sigma}"] = pixels_of(result)
    results["displacement"] = rng.normal(0, 0.1, (24, 32, 2)).astype(np.float32)
    for interpolation in ("nearest", "bilinear"):
        displacement = torch.from_numpy(results["displacement"][None])
        result = functional.elastic(
            tensor_of(noise), displacement, interpolation=interpolation, fill=7
        )
        results[f"elastic/{interpolation}"] = pixels_of(result)
    np.savez_compressed(Path(__file__).with_suffix(".npz"), **results)


if __name__ == "__main__":
    main()
