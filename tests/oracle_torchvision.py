"""torchvision's functions as an oracle, on a CPU; a test that imports this is skipped where there is no torchvision.

Its wheel for CUDA has operators that do not load beside torch for CPUs. Its transforms need none of these, so they are
only declared.
"""

from __future__ import annotations

import contextlib
import importlib

import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-torch")
_library = torch.library.Library("torchvision", "FRAGMENT")
for _schema in ("qnms(Tensor x) -> Tensor", "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"):
    with contextlib.suppress(RuntimeError):  # they are there
        _library.define(_schema)
torchvision = pytest.importorskip("torchvision", reason="needs torchvision: make test-torch")
torch.set_num_threads(1)  # for images as small as those of tests
functional = importlib.import_module("torchvision.transforms.v2.functional")
