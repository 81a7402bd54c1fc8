"""Makes torchvision importable beside torch for CPUs, also its wheel for CUDA, whose operators do
not load there.

Transforms need none of these operators, only their names. Import this before torchvision.
"""

import contextlib

import torch

_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
for _schema in (
    "qnms(Tensor x) -> Tensor",
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
):
    with contextlib.suppress(RuntimeError):  # they are there
        _LIBRARY.define(_schema)
