"""Writes geometry.npz: what torchvision's geometric functions make of two small images.

    python tests/golden/augment/geometry.py        with torch (CPU) and torchvision

``images/NAME`` is an image ``[H, W, C]``. Call ``i`` is described by ``calls[i]``, a JSON text (the function, the
image, its parameters), and its result is ``result/i``; ``versions`` are those of the packages.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.oracle_torchvision import functional, torch, torchvision

HERE = Path(__file__).parent


def images():
    """Return the images by name: noise, which shows each pixel that is taken elsewhere."""
    rng = np.random.default_rng(25)
    noise = rng.integers(0, 256, (24, 32, 3), np.uint8)
    return {
        "wide": noise,
        "square": rng.integers(0, 256, (17, 17, 1), np.uint8),
        "float": noise[:9, :8].astype(np.float32) / 255,
    }


def calls():
    """Return the calls: a function, an image and keywords each."""
    rng = np.random.default_rng(4)
    for image, shape in (("wide", (24, 32)), ("square", (17, 17)), ("float", (9, 8))):
        for interpolation in ("nearest", "bilinear"):
            look = {"interpolation": interpolation, "fill": [7.0]}
            for angle in (0.0, 30.0, -77.3, 90.0, 180.0, 123.456):
                for expand in (False, True):
                    yield "rotate", image, {"angle": angle, "expand": expand, **look}
            for _ in range(4):
                angle, scale, *shear = rng.uniform((-180, 0.4, -30, -30), (180, 2, 30, 30)).tolist()
                move = rng.integers(-9, 10, 2).tolist()
                yield (
                    "affine",
                    image,
                    {"angle": angle, "translate": move, "scale": scale, "shear": shear, **look},
                )
            for _ in range(3):
                height, width = shape
                start = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
                inwards = rng.integers(0, min(shape) // 3, (4, 2)) * [
                    [1, 1],
                    [-1, 1],
                    [-1, -1],
                    [1, -1],
                ]
                yield (
                    "perspective",
                    image,
                    {"startpoints": start, "endpoints": (inwards + start).tolist(), **look},
                )


def main():
    """Write the file."""
    results = {f"images/{name}": image for name, image in images().items()}
    results["versions"] = np.array(
        [f"{package.__name__} {package.__version__}" for package in (torch, torchvision, np)]
    )
    results["calls"] = np.array([json.dumps(call) for call in calls()])
    for number, (function, name, keywords) in enumerate(calls()):
        tensor = torch.from_numpy(np.ascontiguousarray(images()[name].transpose(2, 0, 1)))
        result = getattr(functional, function)(tensor, **keywords).numpy()
        results[f"result/{number}"] = np.ascontiguousarray(result.transpose(1, 2, 0))
    np.savez_compressed(HERE / "geometry.npz", **results)


if __name__ == "__main__":
    main()
