"""Writes policies.npz: what the operations of torchvision's and timm's policies make of images of Pillow.

    python tests/golden/augment/policies.py        with torch (CPU), torchvision, timm and Pillow

``image`` is uint8 ``[H, W, 3]``. ``torchvision/NAME/LEVEL/INTERPOLATION`` and ``timm/NAME/LEVEL/INTERPOLATION/INC`` is
what an operation makes of it; levels are those of torchvision with their signs, and timm's from 0 to 10 with the sign
that was drawn. ``steps/POLICY/NAME/BINS/HEIGHTxWIDTH`` are magnitudes, ``pairs/POLICY`` the pairs of AutoAugment as
text, ``versions`` the packages.
"""

from __future__ import annotations

import importlib
import random
import sys
from pathlib import Path

import numpy as np
import PIL
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.oracle_torchvision import torch, torchvision

timm = importlib.import_module("timm")
auto_augment = importlib.import_module("timm.data.auto_augment")
v2 = importlib.import_module("torchvision.transforms.v2")

HERE = Path(__file__).parent
FILL = (124, 116, 104)
MODES = {
    "nearest": Image.Resampling.NEAREST,
    "linear": Image.Resampling.BILINEAR,
    "cubic": Image.Resampling.BICUBIC,
}
V2_MODES = {
    name: v2.InterpolationMode[{"linear": "BILINEAR", "cubic": "BICUBIC"}.get(name, "NEAREST")]
    for name in MODES
}
LEVELS = {
    "Identity": (0.0,), "ShearX": (0.09, -0.27, 0.99), "ShearY": (0.09, -0.27, -0.99), "TranslateX": (5.4, -12.7),
    "TranslateY": (3.2, -9.9), "Rotate": (9.0, -27.0, 135.0), "Brightness": (0.27, -0.9), "Color": (0.27, -0.9),
    "Contrast": (0.27, -0.9), "Sharpness": (0.27, -0.9), "Posterize": (8.0, 7.0, 4.0, 2.0),
    "Solarize": (1.0, 0.7, 2 / 3, 0.0), "AutoContrast": (0.0,), "Equalize": (0.0,), "Invert": (0.0,),
}  # fmt: skip
MOVES = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
TIMM = {  # ours, timm's with and without inc
    "AutoContrast": ("AutoContrast",) * 2, "Equalize": ("Equalize",) * 2, "Invert": ("Invert",) * 2,
    "Rotate": ("Rotate",) * 2, "Posterize": ("Posterize", "PosterizeIncreasing"),
    "Solarize": ("Solarize", "SolarizeIncreasing"), "SolarizeAdd": ("SolarizeAdd",) * 2,
    "Color": ("Color", "ColorIncreasing"), "Contrast": ("Contrast", "ContrastIncreasing"),
    "Brightness": ("Brightness", "BrightnessIncreasing"), "Sharpness": ("Sharpness", "SharpnessIncreasing"),
    "ShearX": ("ShearX",) * 2, "ShearY": ("ShearY",) * 2, "TranslateX": ("TranslateXRel",) * 2,
    "TranslateY": ("TranslateYRel",) * 2,
}  # fmt: skip
TIMM_LEVELS = (0.0, -0.5, 4.25, -9.0, 10.0)


def image() -> np.ndarray:
    rows, columns = np.mgrid[0:27, 0:34]
    smooth = np.stack([60 + 3 * rows, 20 + 5 * columns, 200 - 2 * rows - columns], axis=2)
    return (
        (smooth + np.random.default_rng(7).integers(-20, 20, smooth.shape))
        .clip(5, 240)
        .astype(np.uint8)
    )


def main() -> None:
    pixels = image()
    photo = Image.fromarray(pixels)
    values = {"image": pixels}
    for mode, v2_mode in V2_MODES.items():
        policy = v2.RandAugment(interpolation=v2_mode, fill=list(FILL))
        for name, levels in LEVELS.items():
            for level in levels if mode == "nearest" or name in MOVES else ():
                magnitude = float(torch.tensor(level, dtype=torch.float32))
                result = policy._apply_image_or_video_transform(
                    photo, name, magnitude, v2_mode, policy._fill
                )
                values[f"torchvision/{name}/{level!r}/{mode}"] = np.asarray(result)
    for mode in ("linear", "cubic"):
        for name, names in TIMM.items():
            for increases, timm_name in enumerate(names):
                for level in TIMM_LEVELS if mode == "linear" or name in MOVES else ():
                    random.random = lambda level=level: 0.9 if level < 0 else 0.1  # the sign
                    function = auto_augment.LEVEL_TO_ARG[timm_name]
                    arguments = function(abs(level), {}) if function else ()
                    if name == "Posterize" and arguments == (0,):
                        continue  # which Pillow refuses
                    words = {"fillcolor": FILL, "resample": MODES[mode]}
                    result = auto_augment.NAME_TO_OP[timm_name](photo, *arguments, **words)
                    values[f"timm/{name}/{level!r}/{mode}/{increases}"] = np.asarray(result)
    for kind, bins in ((v2.RandAugment, 31), (v2.TrivialAugmentWide, 31), (v2.AutoAugment, 10)):
        for height, width in ((27, 34), (224, 331)):
            for name, (function, _) in kind._AUGMENTATION_SPACE.items():
                if (steps := function(bins, height, width)) is not None:
                    values[f"steps/{kind.__name__}/{name}/{bins}/{height}x{width}"] = (
                        steps.numpy().astype(np.float32)
                    )
    for policy in v2.AutoAugmentPolicy:
        values[f"pairs/{policy.value}"] = np.array(repr(v2.AutoAugment(policy)._policies))
    for mode in ("linear", "cubic"):
        for number, (weights, share) in enumerate(
            (((0.2, 0.5, 0.3), 0.7), ((0.01, 0.9, 0.09), 0.25))
        ):
            hparams = {"img_mean": FILL, "interpolation": MODES[mode]}
            chains = [
                ("Rotate", "Equalize"),
                ("ColorIncreasing", "ShearX"),
                ("SolarizeIncreasing", "TranslateYRel"),
            ]
            operations = iter(
                [
                    [auto_augment.AugmentOp(name, 1.0, 3 + number, hparams) for name in chain]
                    for chain in chains
                ]
            )
            random.random = lambda: 0.9
            np.random.choice = lambda *_, operations=operations, **__: next(operations)
            mix = auto_augment.AugMixAugment([], depth=2)
            result = mix._apply_basic(photo, np.array(weights, np.float32), np.float32(share))
            values[f"augmix/{mode}/{number}/{weights}/{share}"] = np.asarray(result)
    versions = {
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "timm": timm.__version__,
    }
    values["versions"] = np.array(str({**versions, "Pillow": PIL.__version__}))
    np.savez_compressed(HERE / "policies.npz", **values)


if __name__ == "__main__":
    main()
