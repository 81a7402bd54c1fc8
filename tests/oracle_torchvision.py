"""torchvision's functions as an oracle, on a CPU; a test that imports this is skipped where there
is no torchvision.

Its wheel for CUDA has operators that do not load beside torch for CPUs, and without them it cannot
be imported. Its transforms need none of these: so they are declared, but only where the library
that registers them does not load. A second registration would end the process.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-torch")
SCHEMAS = (
    "qnms(Tensor x) -> Tensor",
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def has_operators() -> bool:
    """Return True if the library of torchvision's operators loads beside this torch, which it has
    done then."""
    spec = importlib.util.find_spec("torchvision")
    folders = [] if spec is None else spec.submodule_search_locations or []
    for library in (path for folder in folders for path in Path(folder).glob("_C*.so")):
        with contextlib.suppress(OSError):
            torch.ops.load_library(str(library))
            return True
    return False


if not has_operators():
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for _schema in SCHEMAS:
        _library.define(_schema)
torchvision = pytest.importorskip("torchvision", reason="needs torchvision: make test-torch")
torch.set_num_threads(1)  # for images as small as those of tests
functional = importlib.import_module("torchvision.transforms.v2.functional")


def fuses_products() -> bool:
    """Return True if torch's products of matrices have one rounding for a product and its sum on
    this processor.

    It moves pixels by such products, and on processors of AMD (2.13, with MKL) they have two.
    """
    rng = np.random.default_rng(0)
    places, matrix = (
        rng.uniform(-50, 50, (500, 3)).astype(np.float32),
        rng.normal(size=(3, 2)).astype(np.float32),
    )
    places[:, 2] = 1
    product = torch.from_numpy(places)[None].bmm(torch.from_numpy(matrix)[None])[0].numpy()
    x, y = places[:, :1] * matrix[0], places[:, 1:2].astype(np.float64) * matrix[1]
    return np.array_equal(product, (x + y).astype(np.float32) + matrix[2])
