"""Recipes that train without labels: SimCLR, DINO, MAE.

Sources  Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations"
         (2020), appendix A, and https://github.com/google-research/simclr; Caron et al., "Emerging
         Properties in Self-Supervised Vision Transformers" (2021), and main_dino.py of
         https://github.com/facebookresearch/dino; He et al., "Masked Autoencoders Are Scalable
         Vision Learners" (2021), and main_pretrain.py of https://github.com/facebookresearch/mae.
Differs  docs/recipes.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuload import ops
from gpuload.ops import Op
from gpuload.recipes.code import Ops
from gpuload.recipes.form import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Form,
    PixelArguments,
    take_pixels,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

SIGMA = (0.1, 2.0)  # of the blur, pixels
DINO_KERNEL = 9  # as in DINOv2; DINO's own blur is Pillow's
SOLARIZE_AT = 128  # where Pillow's solarize does


@take_pixels(0.0, 255.0)
def simclr(
    *,
    train: bool = True,
    size: int = 224,
    strength: float = 1.0,
    blur: float = 0.5,
    **pixels: Unpack[PixelArguments],
) -> Ops:
    """Return the ops of SimCLR: two views of each image, the fields ``view_0`` and ``view_1``.

    Pixels are from 0 to 1, as in the authors' code. For CIFAR-10 the paper has
    ``simclr(size=32, strength=0.5, blur=0)``.

    Args:
        train: True for two views; False for evaluation: the middle of the image, in its own field.
        size: the side of the result, pixels.
        strength: the strength of the colours' jitter, the paper's s.
        blur: the probability that a view is blurred, by a window of a tenth of its side.
        **pixels: ``mean`` to ``antialias``, the form of the images, as of `resnet50`.

    Raises:
        SpecError: an argument has a wrong type or value.
    """
    form = Form("simclr", **pixels)
    if not train:
        # CROP_PROPORTION in data_util.py of SimCLR.
        return form.evaluation(size, round(size / 0.875), "cubic")
    jitter = ops.ColorJitter(0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength)
    steps: list[Op] = [
        ops.RandomResizedCrop(size, interpolation="cubic", antialias=form.antialias),
        ops.RandomFlip(),
        ops.Sometimes(0.8, [jitter]),
        ops.Grayscale(p=0.2),
    ]
    if blur:
        # SimCLR's radius is half of a tenth of the side, cut off.
        steps.append(ops.GaussianBlur(size // 10 // 2 * 2 + 1, SIGMA, p=blur))
    views = ("view_0", "view_1")
    copy = ops.Copy(form.image, to=views)
    return Ops([*form.decode(), copy, *form.on_views(views, steps), *form.cast(views)])


@take_pixels(IMAGENET_MEAN, IMAGENET_STD)
def dino(
    *,
    train: bool = True,
    size: int = 224,
    local_size: int = 96,
    num_local: int = 8,
    scale: tuple[float, float] = (0.4, 1.0),
    local_scale: tuple[float, float] = (0.05, 0.4),
    **pixels: Unpack[PixelArguments],
) -> Ops:
    """Return the ops of DINO: two global and eight local crops of each image, by three different
    lists of ops.

    The fields are ``global_0``, ``global_1``, and ``local_0`` to ``local_7``.

    Args:
        train: True for these crops; False for evaluation: the middle of the image, in its own
            field.
        size: the side of the global crops, pixels.
        local_size: the side of the local crops, pixels.
        num_local: the number of local crops.
        scale: least and greatest part of the area in a global crop; the authors' is (0.14, 1)
            without local ones.
        local_scale: the same of a local crop.
        **pixels: ``mean`` to ``antialias``, the form of the images, as of `resnet50`.

    Raises:
        SpecError: an argument has a wrong type or value.
    """
    form = Form("dino", **pixels)
    if not train:
        # As eval_linear.py of DINO: 256 for a crop of 224.
        return form.evaluation(size, round(size * 256 / 224), "cubic")

    def crop(side: int, part: tuple[float, float], blur: float, *last: Op) -> list[Op]:
        jitter = ops.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)
        return [
            ops.RandomResizedCrop(
                side, scale=part, interpolation="cubic", antialias=form.antialias
            ),
            ops.RandomFlip(),
            ops.Sometimes(0.8, [jitter]),
            ops.Grayscale(p=0.2),
            ops.GaussianBlur(DINO_KERNEL, SIGMA, p=blur),
            *last,
        ]

    names = ("global_0", "global_1")
    local_names = tuple(f"local_{n}" for n in range(num_local))
    views = (*names, *local_names)
    return Ops(
        [
            *form.decode(),
            ops.Copy(form.image, to=views),
            *form.on_views(names[:1], crop(size, scale, 1.0)),
            *form.on_views(names[1:], crop(size, scale, 0.1, ops.Solarize(SOLARIZE_AT, p=0.2))),
            *form.on_views(local_names, crop(local_size, local_scale, 0.5)),
            *form.cast(views),
        ]
    )


@take_pixels(IMAGENET_MEAN, IMAGENET_STD)
def mae(
    *,
    train: bool = True,
    size: int = 224,
    **pixels: Unpack[PixelArguments],
) -> Ops:
    """Return the ops by which masked autoencoders are trained: a crop of 0.2 to 1 of the area,
    mirrored or not.

    The patches are masked in the model.

    Args:
        train: True for training, False for evaluation: the middle of the image.
        size: the side of the result, pixels.
        **pixels: ``mean`` to ``antialias``, the form of the images, as of `resnet50`.

    Raises:
        SpecError: an argument has a wrong type or value.
    """
    form = Form("mae", **pixels)
    if not train:
        # As build_transform in util/datasets.py of MAE, which cuts nothing off above 224.
        resize = int(size / (224 / 256)) if size <= 224 else size
        return form.evaluation(size, resize, "cubic")
    return form.whole(
        [
            ops.RandomResizedCrop(
                size, scale=(0.2, 1.0), interpolation="cubic", antialias=form.antialias
            ),
            ops.RandomFlip(),
        ]
    )
