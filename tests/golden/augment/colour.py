"""Writes colour.npz: what torchvision's functions make of a few small images, and Pillow's where they are the same.

    python tests/golden/augment/colour.py        with torch (CPU), torchvision and Pillow

``images/NAME`` is an image, uint8 ``[H, W, C]``; ``FUNCTION/NUMBER/NAME`` what the function makes of it; ``versions``
the packages. Float images are the same over 255, ``FUNCTION/NUMBER/NAME/float``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import PIL
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.oracle_torchvision import functional, torch, torchvision

HERE = Path(__file__).parent
FACTORS = (0, 0.3, 0.8, 1, 1.4, 2.5)
CALLS = {
    "adjust_brightness": FACTORS,
    "adjust_contrast": FACTORS,
    "adjust_saturation": FACTORS,
    "adjust_sharpness": FACTORS,
    "adjust_hue": (-0.5, -0.2, -0.013, 0, 0.1, 0.5),
    "adjust_gamma": (0.3, 0.8, 1, 2.2),
    "posterize": (0, 1, 3, 4, 7, 8),
    "solarize": (0, 1, 77.5, 128, 255),
    "invert": (0,),
    "autocontrast": (0,),
    "equalize": (0,),
    "rgb_to_grayscale": (1, 3),
}
WITHOUT_NUMBER = ("invert", "autocontrast", "equalize")
WITH_FLOATS = ("dark",)


def images():
    """Return the images by name."""
    photo = (
        Image.open(HERE.parent / "images" / "Pillow" / "hopper.jpg").convert("RGB").resize((32, 24))
    )
    rng = np.random.default_rng(25)
    ramp = np.linspace(0, 255, 13 * 17 * 3).reshape(13, 17, 3).astype(np.uint8)
    return {
        "photo": np.asarray(photo),
        "noise": rng.integers(0, 256, (11, 7, 3), np.uint8),
        "ramp": ramp,
        "dark": (rng.integers(20, 45, (9, 10, 3)) * (1, 0, 2)).astype(np.uint8),
        "gray": rng.integers(90, 200, (9, 10, 1)).astype(np.uint8),
        "small": rng.integers(0, 256, (2, 5, 3), np.uint8),
    }


def call(name, image, number):
    """Return what a function makes of an image."""
    tensor = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))
    arguments = () if name in WITHOUT_NUMBER else (number,)
    result = getattr(functional, name)(tensor, *arguments).numpy()
    return np.ascontiguousarray(result.transpose(1, 2, 0))


def main():
    """Write the file."""
    results = {f"images/{name}": image for name, image in images().items()}
    results["versions"] = np.array(
        [f"{package.__name__} {package.__version__}" for package in (torch, torchvision, PIL, np)]
    )
    for name, numbers in CALLS.items():
        for number in numbers:
            for image_name, image in images().items():
                results[f"{name}/{number}/{image_name}"] = call(name, image, number)
                if image_name in WITH_FLOATS:
                    number_of_float = number / 255 if name == "solarize" else number
                    values = image.astype(np.float32) / np.float32(255)
                    results[f"{name}/{number}/{image_name}/float"] = call(
                        name, values, number_of_float
                    )
    np.savez_compressed(HERE / "colour.npz", **results)


if __name__ == "__main__":
    main()
