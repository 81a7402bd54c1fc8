"""MixUp and CutMix: each record becomes a mixture of itself and its partner, and so does its label.

Partner  of the record at position p of the epoch's order is the one at p xor 1: 0 and 1 are a pair,
         2 and 3, and so on. The last of an odd number of records is not mixed. The order is that of
         the whole epoch (`order.py`), so the pixels are the same with any batch size and on any
         number of ranks. A batch of an even size has both of each pair. Where a batch ends between
         the two (an odd batch size, the rest at the end of an epoch that ranks share), the other
         record is read and transformed besides: two at most.
Draw     is that of the pair, for its first record: both have one weight, and one box.
Damaged  A record that stands in the place of a damaged one is mixed like any other, with
         ``on_error="skip"`` too.
Weight   Beta(alpha, alpha), by its inverse distribution function from one uniform number, which is
         tabulated.
Others   torchvision 0.28 (``v2.MixUp``, ``v2.CutMix``) and timm in its mode "batch" draw one weight
         for a whole batch, and mix record i of it with i - 1, or with n - 1 - i; timm's mode "pair"
         draws for each pair, as here. Their formulas are these. Both mix behind the normalisation.
Source   Zhang et al., "mixup: Beyond Empirical Risk Minimization" (ICLR 2018); Yun et al., "CutMix:
         Regularization Strategy to Train Strong Classifiers with Localizable Features" (ICCV 2019),
         algorithm A1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload import device
from gpuload.errors import SpecError
from gpuload.kernels import pixels
from gpuload.ops import arguments, images
from gpuload.ops.base import PARTNER, Draw, Op, Sizes
from gpuload.ops.traits import Arithmetic, Joint, Mixes, Traits, once
from gpuload.spec import MASK, Field, Spec

NODES = 1 << 14  # of the tables of weights: to 1e-7 of the exact ones
LABEL = "label"
# `words` has how many images further the partner is, 0 for none, and the weight.
BLEND = """
typedef int Stats;
typedef WIDE Wide;
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats, const float* table,
    Out* to)
{
    In value = at(image, y, x, 0);
    *to = value;
    if (!words[0]) return;
    Wide partner = (Wide)at((&image)[words[0]], y, x, 0), share = (Wide)number(words[1]);
    Wide mixture = (Wide)value * share + partner * (Wide)(1.0f - number(words[1]));
    *to = (Out)(sizeof(In) == 1 ? floorf((float)mixture + 0.5f) : mixture);
}
"""
BLENDS = {dtype: BLEND.replace("WIDE", dtype) for dtype in ("float", "double")}
# Behind the partner `words` has the box, top, left, bottom and right, and the rows of a plane.
PASTE = """
typedef int Stats;
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats, const float* table,
    Out* to)
{
    int row = y % words[5];
    bool inside = row >= words[1] && row < words[3] && x >= words[2] && x < words[4];
    const Image& source = inside ? (&image)[words[0]] : image;
    for (int channel = 0; channel < CHANNELS; ++channel) to[channel] = at(source, y, x, channel);
}
"""


@dataclass(frozen=True)
class _Mix(Op):
    """The arguments, pairs and labels of MixUp and CutMix."""

    alpha: float = 1.0
    p: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        alpha = arguments.number(self, "alpha", self.alpha)
        if not 0 < alpha <= 100:
            raise arguments.refuse(self, "alpha", self.alpha, "more than 0, and 100 at most")
        arguments.keep(self, alpha=alpha, p=arguments.probability(self, "p", self.p))

    @property
    @once
    def traits(self) -> Traits:
        """It mixes each record with one other."""
        return Traits(
            arithmetic=Arithmetic(any_size=True), joint=Joint(self._mix_fields), mixes=Mixes()
        )

    def targets(self, spec: Spec) -> tuple[str, ...]:
        """Return the image and the field ``"label"``, if there is one, unless ``on`` says
        otherwise."""
        names = super().targets(spec)
        if self.on is None and LABEL in spec and LABEL not in names:
            return (*names, LABEL)
        return names

    def spec_after(self, spec: Spec) -> Spec:
        """The fields do not change."""
        for name in self.targets(spec):
            self._check(spec[name])
        return spec

    def _check(self, field: Field) -> None:
        """Raise ``SpecError`` for a field that cannot be mixed."""
        images.numeric(self, field)
        if not field.uniform:
            raise SpecError(
                f"{self}: field {field.name!r} has shape {field.shape}",
                cause="two records are mixed, which needs one shape",
                remedy=f"put gl.ops.RandomResizedCrop(224, 224, on={field.name!r}) before it, say",
            )

    def _check_blended(self, field: Field) -> None:
        """Raise ``SpecError`` for numbers of which there is nothing between two, as class
        numbers."""
        if field.is_marked and field.kind != MASK:
            raise SpecError(
                f"{self}: field {field.name!r} is marked {field.mark!r}",
                cause="between the boxes or points of two images there are none of their mixture",
                remedy=f"leave {field.name!r} out of on=",
            )
        num_axes = len(field.fixed_shape)
        is_image = field.dtype == np.uint8 and num_axes == 3 and field.kind != MASK
        if field.dtype.kind == "f" or is_image:
            return
        cause = "a label that is a class number cannot be blended; a label with a weight for each class can"
        before = f"gl.ops.OneHot(10, on={field.name!r})"
        after = ", with the number of classes"
        if num_axes == 1:
            cause, after = (
                "numbers are blended as floating-point numbers",
                ", of weights; OneHot is for class numbers",
            )
            before = f"gl.ops.Cast('float32', on={field.name!r})"
        if num_axes > 1 and field.kind != MASK:
            cause, after = (
                "images are blended as uint8 with an axis of channels, or as floating-point numbers",
                "",
            )
            before = f"gl.ops.Cast('float32', on={field.name!r})"
            if num_axes == 2 and field.dtype == np.uint8:
                before = f"gl.ops.Reshape({(*field.fixed_shape, 1)}, on={field.name!r})"
        raise SpecError(
            f"{self}: field {field.name!r} has dtype {field.dtype} and shape {field.shape}",
            cause=cause,
            remedy=f"put {before} before it{after}",
        )

    @device.waits
    def _mix_fields(
        self, xp: ModuleType, fields: dict[str, Any], draw: Draw, after: Spec
    ) -> dict[str, Any]:
        """Return the mixtures; see ``Op``."""
        return {name: self._mix(xp, values, draw, after[name]) for name, values in fields.items()}

    def _mix(self, xp: ModuleType, x: Any, draw: Draw, field: Field) -> Any:
        """Return the values of a field, each row with those of its partner."""
        raise NotImplementedError


@dataclass(frozen=True)
class MixUp(_Mix):
    """Blend each image, and its label, with those of its partner in the epoch's order:
    ``w * x + (1 - w) * partner``.

    The weight ``w`` is drawn from Beta(alpha, alpha) for each pair. Labels are vectors, as
    ``OneHot`` makes them. The dtype stays: uint8 is rounded to nearest, halves up; float16 is
    computed in float32. The formula is torchvision's and timm's, which draw one weight for a whole
    batch and mix neighbours in it (timm's mode "pair" draws for each pair, as here). Keras' layer
    draws a weight for each image and partners at random in the batch; Albumentations and DALI have
    no such op. More in `ops.mix.mixing`.

    Example:
        ``gl.ops.MixUp(alpha=0.2)``

    Args:
        alpha: of the distribution of weights: 1 is uniform, less than 1 prefers weights near 0 and
            1.
        p: the share of pairs that are mixed.
        on: the fields that are blended with one weight; without it the image, its field ``"label"``
            if there is one, and other labels that ``OneHot`` made before. A loader tells of numbers
            beside them that stay.
    """

    num_uniforms: ClassVar[int] = 2

    def _check(self, field: Field) -> None:
        super()._check(field)
        self._check_blended(field)

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``weight``, float32 ``[N]``: the share of the record itself."""
        weight = np.where(u[:, 1] < self.p, beta_quantile(self.alpha, u[:, 0]), 1.0)
        return {"weight": weight.astype(np.float32)}

    def _mix(self, xp: ModuleType, x: Any, draw: Draw, field: Field) -> Any:
        return blend(xp, x, draw[PARTNER], draw["weight"])


@dataclass(frozen=True)
class CutMix(_Mix):
    """Put a box of its partner's pixels into each image; labels are blended by the areas.

    The box has the share 1 - w of the area, its middle anywhere in the image, and is cut off at the
    border; w is drawn from Beta(alpha, alpha) for each pair. With the ``area`` of the box inside
    the image, a label becomes ``(1 - area / (height * width)) * label + area / (height * width) *
    partner``. The formula is torchvision's and timm's, which draw one box for a whole batch; Keras'
    layer draws one for each image, partners at random in the batch, and alpha up to its ``factor``;
    Albumentations and DALI have no such op. More in `ops.mix.mixing`.

    Example:
        ``gl.ops.CutMix(alpha=1.0)``

    Args:
        alpha: of the distribution of w: 1 is uniform.
        p: the share of pairs that are mixed.
        on: images of one size, of any dtype, masks too, HWC or CHW; and labels, as ``OneHot`` makes
            them. The images come first. Without it the image, its field ``"label"`` if there is
            one, and other labels that ``OneHot`` made before. A loader tells of numbers beside them
            that stay.
    """

    num_uniforms: ClassVar[int] = 4

    def spec_after(self, spec: Spec) -> Spec:
        """The fields do not change."""
        spec_after = super().spec_after(spec)
        first, *rest = (spec[name] for name in self.targets(spec))
        if not _is_image(first):
            raise SpecError(
                f"{self}: field {first.name!r} has shape {first.shape}",
                cause="the first field is the image that a box is cut from",
                remedy="name it first, on=('image', 'label')",
            )
        for field in rest:
            if _is_image(field) and _size(field) != _size(first):
                raise SpecError(
                    f"{self}: {first.name!r} is {_size(first)} pixels and {field.name!r} is {_size(field)}",
                    cause="fields that share one box must have the same size",
                    remedy="bring them to one size first, or give each an op of its own with on=",
                )
        return spec_after

    def _check(self, field: Field) -> None:
        super()._check(field)
        if not _is_image(field):
            self._check_blended(field)

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``box``, int32 ``[N, 4]``, top, left, bottom and right; ``weight``, float32
        ``[N]``, of a label."""
        ratio = np.sqrt(1 - beta_quantile(self.alpha, u[:, 0])) * (u[:, 3] < self.p)
        middle = np.floor(u[:, 1:3] * size)
        half = np.floor(0.5 * ratio[:, None] * size)
        low, high = np.maximum(middle - half, 0), np.minimum(middle + half, size)
        area = (high - low).prod(axis=1) / np.maximum(size.astype(np.int64).prod(axis=1), 1)
        return {
            "box": np.concatenate([low, high], axis=1).astype(np.int32),
            "weight": (1 - area).astype(np.float32),
        }

    def _mix(self, xp: ModuleType, x: Any, draw: Draw, field: Field) -> Any:
        if not _is_image(field):
            return blend(xp, x, draw[PARTNER], draw["weight"])
        if xp is np:
            return _paste_boxes(x, draw[PARTNER], draw["box"], field)
        return _paste_boxes_on_gpu(xp, x, draw[PARTNER], draw["box"], field)


def _paste_boxes(
    images: Any, partners: NDArray[np.int32], boxes: NDArray[np.int32], field: Field
) -> Any:
    """Return images, each with the pixels of its partner in its box; an image without a partner
    stays."""
    # Partners are read as they were: both of a pair change.
    result = images.copy()
    for row in np.flatnonzero(partners).tolist():
        top, left, bottom, right = boxes[row].tolist()
        channels = () if field.is_channels_first else (slice(None),)
        box = (..., slice(top, bottom), slice(left, right), *channels)
        result[row][box] = images[row + partners[row]][box]
    return result


def _paste_boxes_on_gpu(
    cp: ModuleType, images: Any, partners: NDArray[np.int32], boxes: NDArray[np.int32], field: Field
) -> Any:
    """Return the same in CuPy: by a kernel where it can read the images, else by array calls."""
    is_planar, (height, width) = field.is_channels_first, _size(field)
    if not images.flags.c_contiguous:
        device.settle()  # it is copied
    # The kernel reads pixels with their channels side by side. The planes of CHW are one high image
    # of one channel to it, in which a row is ``y % height``.
    if is_planar:
        kernel_images = images.reshape(len(images), -1, width, 1)
    else:
        kernel_images = images
    if pixels.reads(cp, kernel_images):
        heights = np.full((len(images), 1), height, np.int32)
        batch = pixels.Pixels(cp, kernel_images, partners[:, None], boxes, heights, raw=True)
        return batch.change(PASTE).reshape(images.shape)
    device.settle()
    top, left, bottom, right = (
        cp.asarray(boxes * (partners != 0)[:, None])[:, side, None] for side in range(4)
    )
    y, x = cp.arange(height), cp.arange(width)
    is_inside = ((y >= top) & (y < bottom))[:, :, None] & ((x >= left) & (x < right))[:, None, :]
    if is_planar:
        is_inside = is_inside[:, None]
    else:
        is_inside = is_inside[:, :, :, None]
    return cp.where(is_inside, images[_indices(cp, partners)], images)


def blend(xp: ModuleType, x: Any, partners: NDArray[np.int32], weight: NDArray[np.float32]) -> Any:
    """Return ``weight * x + (1 - weight) * x of the partner`` for each row, in the dtype of ``x``.

    Args:
        xp: NumPy or CuPy.
        x: ``[N, ...]``, floating-point numbers or uint8.
        partners: int32 ``[N]``, how many rows further the partner of each row is; a row without
            one, 0, stays.
        weight: float32 ``[N]``.
    """
    wide = np.float64 if x.dtype == np.float64 else np.float32
    if xp is np:  # a row at a time stays in the cache
        # All are read from x: both of a pair change.
        result = x.copy()
        for row in np.flatnonzero(partners).tolist():
            partner, share = x[row + partners[row]].astype(wide, copy=False), weight[row]
            mixture = x[row].astype(wide, copy=False) * wide(share) + partner * wide(1 - share)
            result[row] = _rounded(np, mixture, x.dtype)
        return result
    if not x.flags.c_contiguous:
        device.settle()  # it is copied
    row_length = x.size // max(len(x), 1)
    flat = x.reshape(len(x), 1, row_length, 1)
    if pixels.reads(xp, flat):
        rows = pixels.Pixels(xp, flat, partners[:, None], weight[:, None])
        return rows.change(BLENDS["double" if wide is np.float64 else "float"]).reshape(x.shape)
    device.settle()
    share, has_partner = (
        xp.asarray(values).reshape(-1, *(1,) * (x.ndim - 1))
        for values in (weight.astype(wide), partners != 0)
    )
    mixture = x.astype(wide) * share + x[_indices(xp, partners)].astype(wide) * (1 - share)
    return xp.where(has_partner, _rounded(xp, mixture, x.dtype), x)


def beta_quantile(alpha: float, u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the quantiles ``u`` of Beta(alpha, alpha), float64 of the shape of ``u``."""
    below, t = _beta_table(alpha)
    lower = np.interp(np.minimum(u, 1 - u), below, t)
    x = lower ** (1 / min(alpha, 1.0))
    return np.where(u <= 0.5, x, 1 - x)


@lru_cache(maxsize=16)
def _beta_table(alpha: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the distribution function of Beta(alpha, alpha) from 0 to 1/2 as a table: values, and
    their places.

    Both are float64 ``[NODES]``. The places are ``t = x ** min(alpha, 1)``: for alpha < 1 the
    density is infinite at 0 in x, and smooth in t.
    """
    power = min(alpha, 1.0)
    t = np.linspace(0, 0.5**power, NODES)
    x = t ** (1 / power)
    density = (1 - x) ** (alpha - 1) * x ** (alpha - power)
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) * np.diff(t) / 2)])
    # By symmetry half of it lies below 1/2: that scales the table, and no function of scipy's is
    # needed.
    return below * (0.5 / below[-1]), t


def _rounded(xp: ModuleType, x: Any, dtype: np.dtype[Any]) -> Any:
    """Return values in a dtype: for integers the nearest, halves up."""
    if dtype.kind == "f":
        return x.astype(dtype)
    return xp.floor(x + np.float32(0.5)).astype(dtype)


def _indices(xp: ModuleType, partners: NDArray[np.int32]) -> Any:
    """Return which row the partner of each row is."""
    return xp.asarray(np.arange(partners.size) + partners)


def _is_image(field: Field) -> bool:
    return len(field.fixed_shape) == 3


def _size(field: Field) -> Sequence[int]:
    shape = field.fixed_shape
    if field.is_channels_first:
        return shape[1:]
    return shape[:2]
