"""Writes boxes.json: what torchvision makes of boxes and keypoints beside an image.

Run with torch 2.13.0 (CPU) and torchvision 0.28.0:  python tests/golden/augment/boxes.py
"""

import json
from pathlib import Path

import torch

library = torch.library.Library(
    "torchvision", "FRAGMENT"
)  # its compiled operators are not needed, and may not load
for schema in (
    "qnms(Tensor x) -> Tensor",
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
):
    library.define(schema)

import torchvision  # noqa: E402
from torchvision import tv_tensors  # noqa: E402
from torchvision.transforms.v2 import functional as F  # noqa: E402

SIZE = (60, 80)  # height, width
CORNERS = [
    [2, 4, 30, 20],
    [0, 0, 80, 60],
    [70.5, 50.25, 79.75, 59.5],
    [10, 10, 10, 10],
    [33, 1, 34, 58],
    [40, 30, 42, 33],
]
POINTS = [[0, 0], [79, 59], [12.5, 40.25], [79.5, 3]]
CASES = {
    "flip": (F.horizontal_flip, {}),
    "flip_both": (lambda x: F.vertical_flip(F.horizontal_flip(x)), {}),
    "crop": (F.crop, {"top": 5, "left": 30, "height": 24, "width": 32}),
    "crop_outside": (F.crop, {"top": -4, "left": 60, "height": 32, "width": 32}),
    "pad": (F.pad, {"padding": [3, 5, 7, 9]}),
    "resize": (F.resize, {"size": [45, 33]}),
    "resized_crop": (
        F.resized_crop,
        {"top": 5, "left": 30, "height": 24, "width": 40, "size": [32, 48]},
    ),
}


def boxes_of(form: str) -> tv_tensors.BoundingBoxes:
    xyxy = tv_tensors.BoundingBoxes(torch.tensor(CORNERS), format="XYXY", canvas_size=SIZE)
    return F.convert_bounding_box_format(xyxy, new_format=form.upper())


def main() -> None:
    cases = []
    for name, (function, arguments) in CASES.items():
        points = function(tv_tensors.KeyPoints(torch.tensor(POINTS), canvas_size=SIZE), **arguments)
        entry = {"name": name, **arguments, "points": points.tolist(), "boxes": {}}
        for form in ("xyxy", "xywh", "cxcywh"):
            moved = function(boxes_of(form), **arguments)
            entry["boxes"][form] = moved.tolist()
            entry["size"] = list(moved.canvas_size)
        moved = function(boxes_of("xyxy"), **arguments)
        for least in ((1.0, 1.0), (3.0, 50.0)):
            _, valid = F.sanitize_bounding_boxes(moved, min_size=least[0], min_area=least[1])
            entry.setdefault("valid", []).append([*least, valid.tolist()])
        cases.append(entry)
    forms = {form: boxes_of(form).tolist() for form in ("xyxy", "xywh", "cxcywh")}
    content = {
        "torchvision": torchvision.__version__,
        "size": SIZE,
        "boxes": forms,
        "points": POINTS,
        "cases": cases,
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(content) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
