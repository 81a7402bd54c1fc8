"""Writes clahe.npz: what OpenCV's CLAHE makes of small images, of red, green and blue by L of Lab as Albumentations.

    python tests/golden/augment/clahe.py        with opencv-python-headless

``images/NAME`` is an image, uint8 or uint16 ``[H, W, C]``; ``NAME/LIMIT/ROWS/COLUMNS`` the result with so many tiles;
``lab/NAME`` what OpenCV's ``COLOR_RGB2LAB`` makes of it; ``versions`` are the packages.
"""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from PIL import Image

HERE = Path(__file__).parent
SETTINGS = ((0.5, 8, 8), (2.0, 8, 8), (4.0, 2, 3), (40.0, 1, 1), (1.3, 5, 8), (1000.0, 3, 4))


def images():
    """Return the images by name: sides that are multiples of the tiles, that are not, and one that is smaller."""
    photo = (
        Image.open(HERE.parent / "images" / "Pillow" / "hopper.jpg").convert("RGB").resize((48, 40))
    )
    rng = np.random.default_rng(25)
    ramp = 300 * np.indices((40, 48)).sum(axis=0)[..., None]
    return {
        "photo": np.asarray(photo),
        "noise": rng.integers(0, 256, (33, 47, 3), np.uint8),
        "gray": np.asarray(photo.convert("L"))[:37, :, None],
        "dark": (rng.integers(20, 45, (24, 24, 1))).astype(np.uint8),
        "small": rng.integers(0, 256, (5, 3, 3), np.uint8),
        "line": rng.integers(0, 256, (1, 19, 1), np.uint8),
        "noise16": rng.integers(0, 65536, (33, 47, 1), np.uint16),
        "scan16": (rng.normal(1200, 90, (40, 48, 1)) + ramp).astype(np.uint16),
    }


def clahe(image, limit, rows, columns):
    """Return what OpenCV makes of an image."""
    equalizer = cv2.createCLAHE(clipLimit=limit, tileGridSize=(columns, rows))
    if image.shape[2] == 1:
        return equalizer.apply(image[..., 0])[..., None]
    lab = cv2.cvtColor(image, cv2.COLOR_RGB2LAB)
    lab[..., 0] = equalizer.apply(lab[..., 0])
    return cv2.cvtColor(lab, cv2.COLOR_LAB2RGB)


def main():
    """Write the file."""
    cv2.setNumThreads(1)
    results = {"versions": np.array([f"cv2 {cv2.__version__}", f"numpy {np.__version__}"])}
    for name, image in images().items():
        results[f"images/{name}"] = image
        if image.shape[2] == 3:
            results[f"lab/{name}"] = cv2.cvtColor(image, cv2.COLOR_RGB2LAB)
        for limit, rows, columns in SETTINGS:
            results[f"{name}/{limit}/{rows}/{columns}"] = clahe(image, limit, rows, columns)
    np.savez_compressed(Path(__file__).with_suffix(".npz"), **results)


if __name__ == "__main__":
    main()
