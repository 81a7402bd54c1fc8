"""Recipes that train classifiers: ResNet-50 as torchvision and timm train it, DeiT, CIFAR-10.

Sources  torchvision, references/classification (presets.py, train.py), and "How to Train
         State-Of-The-Art Models Using TorchVision's Latest Primitives"
         (https://github.com/pytorch/vision/issues/3995); Wightman et al., "ResNet strikes back"
         (2021), table 2; DeiT, main.py and datasets.py (https://github.com/facebookresearch/deit);
         He et al. (2016), Zagoruyko and Komodakis, "Wide Residual Networks" (2016), Cubuk et al.,
         "AutoAugment" (2019), DeVries and Taylor, "Cutout" (2017) for CIFAR-10.
Differs  docs/recipes.md
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuload import ops
from gpuload.ops import Op
from gpuload.recipes.code import Ops
from gpuload.recipes.form import (
    IMAGE,
    IMAGENET_FILL,
    IMAGENET_MEAN,
    IMAGENET_STD,
    LABEL,
    Form,
    Numbers,
    PixelArguments,
    take_pixels,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

CIFAR_MEAN, CIFAR_STD = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)  # those of Wide Residual Networks
NUM_CLASSES = 1000  # of ImageNet
TIMM_RATIO = (0.3, 1 / 0.3)  # of timm's erased boxes


@take_pixels(IMAGENET_MEAN, IMAGENET_STD)
def resnet50(
    *,
    train: bool = True,
    size: int = 224,
    resize: int = 256,
    policy: Op | None = None,
    erasing: float = 0.0,
    mixup: float = 0.0,
    cutmix: float = 0.0,
    smoothing: float = 0.0,
    num_classes: int | None = None,
    repeats: int = 1,
    label: str = LABEL,
    **pixels: Unpack[PixelArguments],
) -> Ops:
    """Return the ops of torchvision's reference for ResNet-50, by which its weights
    ``IMAGENET1K_V1`` were trained.

    With ``policy``, ``erasing``, ``mixup``, ``cutmix`` and ``smoothing`` it is any recipe of that
    reference; `resnet50_v2` is its newer one.

    Args:
        train: True for training: a random crop, mirrored or not; False for evaluation: the middle
            of the image.
        size: the side of the result, pixels.
        resize: the shorter side before the middle is cut out, for evaluation, pixels.
        policy: an op between mirroring and normalising,
            ``gl.ops.TrivialAugmentWide(interpolation="linear")`` say.
        erasing: the probability that a box is erased.
        mixup: alpha of MixUp; 0 leaves it out. With ``cutmix`` one of both is drawn for each pair
            of images.
        cutmix: alpha of CutMix; 0 leaves it out.
        smoothing: the share of each label that is spread over all classes; do not smooth in the
            loss, too.
        num_classes: the number of classes: labels become vectors, which MixUp, CutMix and smoothing
            need. None: they stay numbers.
        repeats: views of each image that are augmented on their own, the fields ``image_0``,
            ``image_1`` and so on with ``label_0`` and so on: repeated augmentation, with all
            repeats of an image in one batch.
        label: the field of the labels.
        mean: the number that is subtracted from the pixels, or one for each channel, 0 to 255.
        std: the number that the differences are divided by, or one for each channel, 0 to 255.
        dtype: the dtype of the images: ``"float32"``, ``"float16"`` or ``"bfloat16"``.
        layout: the order of the axes of a batch: ``"NHWC"`` or ``"NCHW"``.
        images: the form of the source's images: ``"encoded"`` files, ``"HWC"`` or ``"CHW"`` pixels.
        image: the field of the images.
        antialias: the smoothing of the resize; ``"pil"`` makes every value as Pillow up to 12 does,
            more slowly.
        **pixels: those from ``mean`` to ``antialias``, which most recipes have.

    Raises:
        SpecError: an argument has a wrong type or value.
    """
    form = Form("resnet50", **pixels)
    if not train:
        return form.evaluation(size, resize, "linear")
    steps: list[Op] = [ops.RandomResizedCrop(size, antialias=form.antialias), ops.RandomFlip()]
    if policy:
        steps.append(policy)
    behind = [ops.Erasing(p=erasing)] if erasing else []
    labels = _Labels(form, label, num_classes, smoothing, mixup, cutmix)
    return labels.whole(steps, behind, repeats)


@take_pixels(IMAGENET_MEAN, IMAGENET_STD)
def resnet50_v2(
    *,
    train: bool = True,
    size: int | None = None,
    num_classes: int = NUM_CLASSES,
    repeats: int = 1,
    label: str = LABEL,
    **pixels: Unpack[PixelArguments],
) -> Ops:
    """Return the ops of torchvision's newer recipe for ResNet-50, by which ``IMAGENET1K_V2`` was
    trained.

    TrivialAugmentWide, erasing (0.1), MixUp (0.2) or CutMix (1.0), labels smoothed by 0.1.
    torchvision repeats each image 4 times, ``repeats=4``.

    Args:
        train: as of `resnet50`.
        size: the side of the result, pixels: 176 for training, 224 for evaluation if left out.
        num_classes: the number of classes.
        repeats: as of `resnet50`.
        label: the field of the labels.
        **pixels: ``mean`` to ``antialias``, the form of the images, as of `resnet50`.

    Raises:
        SpecError: an argument has a wrong type or value.
    """
    form = Form("resnet50_v2", **pixels)
    if not train:
        # The size of torchvision's ResNet50_Weights.IMAGENET1K_V2.
        return form.evaluation(size or 224, 232, "linear")
    steps = [
        ops.RandomResizedCrop(size or 176, antialias=form.antialias),
        ops.RandomFlip(),
        ops.TrivialAugmentWide(interpolation="linear"),
    ]
    labels = _Labels(form, label, num_classes, smoothing=0.1, mixup=0.2, cutmix=1.0)
    return labels.whole(steps, [ops.Erasing(p=0.1)], repeats)


@take_pixels(IMAGENET_MEAN, IMAGENET_STD)
def resnet50_a1(
    *,
    train: bool = True,
    size: int = 224,
    num_classes: int = NUM_CLASSES,
    repeats: int = 1,
    label: str = LABEL,
    **pixels: Unpack[PixelArguments],
) -> Ops:
    """Return the ops of recipe A1 of "ResNet strikes back", timm's: 600 epochs.

    timm's RandAugment (``rand-m7-mstd0.5-inc1``), MixUp (0.2) or CutMix (1.0), labels smoothed by
    0.1, for the loss of binary cross-entropy. timm repeats each image 3 times, ``repeats=3``.

    Args:
        train: as of `resnet50`.
        size: the side of the result, pixels.
        num_classes: the number of classes.
        repeats: views of each image.
        label: the field of the labels.
        **pixels: ``mean`` to ``antialias``, the form of the images, as of `resnet50`.

    Raises:
        SpecError: an argument has a wrong type or value.
    """
    form = Form("resnet50_a1", **pixels)
    labels = _Labels(form, label, num_classes, smoothing=0.1, mixup=0.2, cutmix=1.0)
    return _timm(labels, train, size, "rand-m7-mstd0.5-inc1", repeats)


@take_pixels(IMAGENET_MEAN, IMAGENET_STD)
def resnet50_a2(
    *,
    train: bool = True,
    size: int = 224,
    num_classes: int = NUM_CLASSES,
    repeats: int = 1,
    label: str = LABEL,
    **pixels: Unpack[PixelArguments],
) -> Ops:
    """Return the ops of recipe A2 of "ResNet strikes back", timm's: 300 epochs; A1 with MixUp
    (0.1), and no smoothing.

    Args:
        train: as of `resnet50`.
        size: the side of the result, pixels.
        num_classes: the number of classes.
        repeats: views of each image; timm has 3.
        label: the field of the labels.
        **pixels: ``mean`` to ``antialias``, the form of the images, as of `resnet50`.

    Raises:
        SpecError: an argument has a wrong type or value.
    """
    form = Form("resnet50_a2", **pixels)
    labels = _Labels(form, label, num_classes, mixup=0.1, cutmix=1.0)
    return _timm(labels, train, size, "rand-m7-mstd0.5-inc1", repeats)


@take_pixels(IMAGENET_MEAN, IMAGENET_STD)
def resnet50_a3(
    *,
    train: bool = True,
    size: int | None = None,
    num_classes: int = NUM_CLASSES,
    label: str = LABEL,
    **pixels: Unpack[PixelArguments],
) -> Ops:
    """Return the ops of recipe A3 of "ResNet strikes back", timm's: 100 epochs of images of 160
    pixels.

    timm's RandAugment (``rand-m6-mstd0.5-inc1``), MixUp (0.1) or CutMix (1.0); images are not
    repeated.

    Args:
        train: as of `resnet50`.
        size: the side of the result, pixels: 160 for training, 224 for evaluation if left out.
        num_classes: the number of classes.
        label: the field of the labels.
        **pixels: ``mean`` to ``antialias``, the form of the images, as of `resnet50`.

    Raises:
        SpecError: an argument has a wrong type or value.
    """
    form = Form("resnet50_a3", **pixels)
    labels = _Labels(form, label, num_classes, mixup=0.1, cutmix=1.0)
    if size is None:
        size = 160 if train else 224
    return _timm(labels, train, size, "rand-m6-mstd0.5-inc1", repeats=1)


@take_pixels(IMAGENET_MEAN, IMAGENET_STD)
def deit(
    *,
    train: bool = True,
    size: int = 224,
    num_classes: int = NUM_CLASSES,
    repeats: int = 1,
    label: str = LABEL,
    **pixels: Unpack[PixelArguments],
) -> Ops:
    """Return the ops of DeiT, by which vision transformers are trained.

    timm's RandAugment (``rand-m9-mstd0.5-inc1``), boxes erased by noise (0.25), MixUp (0.8) or
    CutMix (1.0), labels smoothed by 0.1. DeiT repeats each image 3 times, ``repeats=3``.

    Args:
        train: as of `resnet50`.
        size: the side of the result, pixels.
        num_classes: the number of classes.
        repeats: views of each image.
        label: the field of the labels.
        **pixels: ``mean`` to ``antialias``, the form of the images, as of `resnet50`.

    Raises:
        SpecError: an argument has a wrong type or value.
    """
    form = Form("deit", **pixels)
    if not train:
        # The default of --eval-crop-ratio in DeiT's main.py.
        return form.evaluation(size, int(size / 0.875), "cubic")
    # The areas and ratios are those of timm's RandomErasing, which DeiT calls with mode "pixel".
    erasing = ops.Erasing(p=0.25, scale=(0.02, 1 / 3), ratio=TIMM_RATIO, mode="pixel")
    labels = _Labels(form, label, num_classes, smoothing=0.1, mixup=0.8, cutmix=1.0)
    return labels.whole(
        _timm_steps(size, "rand-m9-mstd0.5-inc1", form.antialias), [erasing], repeats
    )


def cifar10(
    *,
    train: bool = True,
    policy: bool = False,
    cutout: int = 0,
    mean: Numbers = CIFAR_MEAN,
    std: Numbers = CIFAR_STD,
    dtype: str = "float32",
    layout: str = "NHWC",
    images: str = "CHW",
    image: str = IMAGE,
) -> Ops:
    """Return the ops by which CIFAR-10 is trained: 4 pixels around the image, a crop of 32 x 32,
    mirrored or not.

    ``cifar10(policy=True, cutout=16)`` is AutoAugment's.

    Args:
        train: True for training, False for evaluation, which only normalises.
        policy: apply AutoAugment's policy for CIFAR-10.
        cutout: the side of the square that is covered, pixels: 16 in the papers of Cutout and
            AutoAugment; 0 for none.
        mean: as of `resnet50`, like all that follow.
        std: the standard deviation of the pixels.
        dtype: the dtype of the images.
        layout: the order of the axes of a batch.
        images: the form of the source's images; the binary version of CIFAR-10 has ``"CHW"``.
        image: the field of the images.

    Raises:
        SpecError: an argument has a wrong type or value.
    """
    form = Form("cifar10", images, image, mean, std, dtype, layout, antialias=True)
    if not train:
        return form.whole([])
    steps: list[Op] = [ops.RandomCrop(32, pad=4), ops.RandomFlip()]
    if policy:
        steps.append(ops.AutoAugment("cifar10"))
    return form.whole(steps, [ops.Cutout(cutout)] if cutout else [])


def _timm_steps(size: int, policy: str, antialias: bool | str) -> list[Op]:
    """Return the ops that timm has before normalising, with cubic interpolation."""
    return [
        ops.RandomResizedCrop(size, interpolation="cubic", antialias=antialias),
        ops.RandomFlip(),
        ops.TimmAugment(policy, interpolation="cubic", fill=IMAGENET_FILL),
    ]


def _timm(labels: _Labels, train: bool, size: int, policy: str, repeats: int) -> Ops:
    """Return a recipe of "ResNet strikes back"; its evaluation cuts out 0.95 of the shorter
    side."""
    if not train:
        # The test crop ratio of "ResNet strikes back".
        return labels.form.evaluation(size, int(size / 0.95), "cubic")
    return labels.whole(_timm_steps(size, policy, labels.form.antialias), [], repeats)


@dataclass(frozen=True)
class _Labels:
    """The ops of a recipe for labels, alone or together with the images.

    Attributes:
        form: the form of the images.
        label: the field of the labels.
        num_classes: the number of classes; None: labels stay numbers.
        smoothing: as of `OneHot`.
        mixup: alpha of MixUp, 0 for none.
        cutmix: alpha of CutMix, 0 for none.
    """

    form: Form
    label: str
    num_classes: int | None
    smoothing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self) -> None:
        if self.num_classes is None and (self.smoothing or self.mixup or self.cutmix):
            demand = "the number of classes, as labels are mixed or smoothed"
            raise self.form.refuse("num_classes", None, demand, "pass num_classes=1000, say")

    def whole(self, steps: Sequence[Op], last: Sequence[Op], repeats: int) -> Ops:
        """Return the recipe; see ``Form.whole``.

        Args:
            steps: between decoding and normalising.
            last: behind normalising.
            repeats: views of each image, each with a field of labels.
        """
        form = self.form
        if not isinstance(repeats, int) or repeats < 1:
            raise form.refuse("repeats", repeats, "a whole number of at least 1")
        if repeats == 1:
            return form.whole(steps, last, self._steps(self.label, form.image))
        views, labels = (
            tuple(f"{name}_{n}" for n in range(repeats)) for name in (form.image, self.label)
        )
        mixes = [
            op for view, label in zip(views, labels, strict=True) for op in self._steps(label, view)
        ]
        copies = [ops.Copy(form.image, to=views), ops.Copy(self.label, to=labels)]
        return Ops(
            [*form.decode(), *copies, *form.on_views(views, steps, last), *mixes, *form.cast(views)]
        )

    def _steps(self, label: str, image: str) -> list[Op]:
        """Return the ops for the labels of a field, and those for labels and images together."""
        if self.num_classes is None:
            return []
        on = None if (image, label) == (IMAGE, LABEL) else (image, label)
        mixes: list[Op] = []
        if self.mixup and self.cutmix:
            mixes = [ops.OneOf([ops.MixUp(self.mixup), ops.CutMix(self.cutmix)], on=on)]
        elif self.mixup:
            mixes = [ops.MixUp(self.mixup, on=on)]
        elif self.cutmix:
            mixes = [ops.CutMix(self.cutmix, on=on)]
        return [ops.OneHot(self.num_classes, smoothing=self.smoothing, on=label), *mixes]
