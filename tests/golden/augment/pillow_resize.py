"""Writes pillow_resize.npz: what Pillow 11 makes of small images, which it resizes along the rows first.

    python tests/golden/augment/pillow_resize.py        with pillow==11.3.0

``images/NAME`` is an image, uint8 ``[H, W, C]`` or float32 ``[H, W, 1]``; ``NAME/INTERPOLATION/HEIGHT/WIDTH`` is the
result; ``versions`` are the packages.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import PIL
from PIL import Image

FILTERS = {
    "linear": Image.Resampling.BILINEAR,
    "cubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
SIZES = ((24, 32), (24, 11), (9, 32), (7, 5), (48, 50), (11, 60), (40, 13), (1, 1), (23, 31))


def main():
    """Write the file."""
    rng = np.random.default_rng(25)
    images = {
        "noise": rng.integers(0, 256, (24, 32, 3), np.uint8),
        "float": rng.random((24, 32, 1), np.float32),
    }
    results = {f"images/{name}": image for name, image in images.items()}
    results["versions"] = np.array(
        [f"{package.__name__} {package.__version__}" for package in (PIL, np)]
    )
    for name, image in images.items():
        for interpolation, resample in FILTERS.items():
            for height, width in SIZES if name == "noise" else SIZES[1:4]:
                picture = Image.fromarray(image if image.shape[2] == 3 else image[..., 0])
                result = np.asarray(picture.resize((width, height), resample)).reshape(
                    height, width, -1
                )
                results[f"{name}/{interpolation}/{height}/{width}"] = result
    np.savez_compressed(Path(__file__).with_suffix(".npz"), **results)


if __name__ == "__main__":
    main()
