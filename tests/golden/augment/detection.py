"""Writes detection.json: what torchvision's RandomIoUCrop and RandomZoomOut draw: means and deviations of many draws.

Run with torch 2.13.0 (CPU) and torchvision 0.28.0:  python tests/golden/augment/detection.py
"""

import json
from pathlib import Path

import numpy as np
import torch

torch.set_num_threads(1)

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
from torchvision.transforms import v2  # noqa: E402

SIZE = (60, 80)  # height, width
BOXES = [
    [[8, 6, 72, 56]],
    [[2, 4, 30, 20], [50, 30, 78, 58], [70, 2, 75, 6]],
    [[20, 5, 70, 58], [0, 0, 30, 30]],
]
NUM_DRAWS = 400


def main() -> None:
    torch.manual_seed(0)
    crop, zoom, content = v2.RandomIoUCrop(), v2.RandomZoomOut(side_range=(1.0, 3.0)), {}
    image = tv_tensors.Image(torch.zeros(3, *SIZE, dtype=torch.uint8))
    content |= {
        "torchvision": torchvision.__version__,
        "size": SIZE,
        "draws": NUM_DRAWS,
        "boxes": BOXES,
        "crops": [],
    }
    for corners in BOXES:
        boxes = tv_tensors.BoundingBoxes(
            torch.tensor(corners, dtype=torch.float32), format="XYXY", canvas_size=SIZE
        )
        rows = []
        for _ in range(NUM_DRAWS):
            params = crop.make_params([image, boxes])
            whole = {"top": 0, "left": 0, "height": SIZE[0], "width": SIZE[1]}
            rows.append(
                [(params or whole)[name] for name in ("top", "left", "height", "width")]
                + [float(not params)]
            )
        content["crops"].append([np.mean(rows, axis=0).tolist(), np.std(rows, axis=0).tolist()])
    rows = [zoom.make_params([image])["padding"] for _ in range(NUM_DRAWS)]
    content["paddings"] = [np.mean(rows, axis=0).tolist(), np.std(rows, axis=0).tolist()]
    Path(__file__).with_suffix(".json").write_text(json.dumps(content) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
