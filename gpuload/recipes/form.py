"""Form: how images come into a recipe and in which form they leave it, and the steps that recipes
share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuload import ops
from gpuload.errors import SpecError
from gpuload.ops import Op
from gpuload.recipes.code import Ops

Numbers = float | tuple[float, ...]

IMAGENET_MEAN = (123.675, 116.28, 103.53)  # 255 times (0.485, 0.456, 0.406)
IMAGENET_STD = (58.395, 57.12, 57.375)  # 255 times (0.229, 0.224, 0.225)
# The mean in whole numbers, which timm fills with.
IMAGENET_FILL = (124, 116, 104)
IMAGES = ("encoded", "HWC", "CHW")
LAYOUTS = ("NHWC", "NCHW")
DTYPES = ("float32", "float16", "bfloat16")
IMAGE, LABEL = "image", "label"


@dataclass(frozen=True)
class Form:
    """How images come into a recipe, and in which form they leave it.

    Attributes:
        recipe: its name, for errors.
        images: the form of the source's images: ``"encoded"`` files, ``"HWC"`` or ``"CHW"`` pixels
            of uint8.
        image: the field of the images.
        mean: the number that is subtracted from the pixels, or one for each channel, in their
            units, 0 to 255.
        std: the number that the differences are divided by, or one for each channel, in the same
            units.
        dtype: ``"float32"``, ``"float16"`` or ``"bfloat16"``.
        layout: ``"NHWC"`` or ``"NCHW"``.
        antialias: as of ``gl.ops.Resize``; ``"pil"`` makes the pixels of Pillow up to 12, every
            value.
    """

    recipe: str
    images: str
    image: str
    mean: Numbers
    std: Numbers
    dtype: str
    layout: str
    antialias: bool | str

    def __post_init__(self) -> None:
        for name, choices in (("images", IMAGES), ("layout", LAYOUTS), ("dtype", DTYPES)):
            if getattr(self, name) not in choices:
                raise self.refuse(name, getattr(self, name), f"one of {list(choices)}")
        if not isinstance(self.image, str) or not self.image:
            raise self.refuse("image", self.image, "the name of a field")
        std = ops.Normalize(self.mean, self.std).std
        if max(std if isinstance(std, tuple) else (std,)) < 1:
            remedy = "multiply both by 255: mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375) are ImageNet's"
            raise self.refuse(
                "std", self.std, "in units of the pixels, 0 to 255, not of 0 to 1", remedy
            )

    def refuse(self, name: str, value: object, demand: str, remedy: str = "") -> SpecError:
        """Return the error for a wrong argument of the recipe; ``demand`` says how a right one
        is."""
        return SpecError(
            f"gl.recipes.{self.recipe}({name}={value!r})",
            cause=f"{name} must be {demand}",
            remedy=remedy or f"pass {demand}",
        )

    def decode(self) -> list[Op]:
        """Return the ops that turn the source's images into HWC pixels."""
        steps: dict[str, list[Op]] = {
            "encoded": [ops.Decode()],
            "HWC": [],
            "CHW": [ops.Transpose("HWC")],
        }
        return self.on_image(steps[self.images])

    def on_image(self, steps: Sequence[Op]) -> list[Op]:
        """Return ops that act on the images; without ``on=`` where their field has the usual
        name."""
        if self.image == IMAGE or not steps:
            return list(steps)
        return ops.repeat(steps, on=(self.image,))

    def on_views(
        self, views: Sequence[str], steps: Iterable[Op], last: Iterable[Op] = ()
    ) -> list[Op]:
        """Return the ops of each view of an image: as of ``whole``, without decoding and the last
        cast."""
        if views:
            return ops.repeat(self._through(steps, last), on=views)
        return []

    def cast(self, views: Sequence[str]) -> list[Op]:
        """Return the cast of views to the dtype: it is last, as few ops act on float16, and none on
        bfloat16."""
        if self.dtype != "float32" and views:
            return ops.repeat([ops.Cast(self.dtype)], on=views)
        return []

    def whole(self, steps: Iterable[Op], last: Iterable[Op] = (), behind: Iterable[Op] = ()) -> Ops:
        """Return a recipe: images are decoded, go through some steps, and are normalised.

        Args:
            steps: ops on the images, between decoding and normalising.
            last: ops on the images, behind normalising, before the layout is changed.
            behind: ops on any field, behind these.
        """
        return Ops(
            [*self.decode(), *self.on_image(self._through(steps, last)), *behind, *self._cast()]
        )

    def finish(self) -> list[Op]:
        """Return the last steps of the images: normalising, their layout, their dtype."""
        return [*self.on_image(self._through((), ())), *self._cast()]

    def evaluation(self, size: int, resize: int, interpolation: str) -> Ops:
        """Return the form for evaluation: the shorter side resized, and the middle cut out, as
        torchvision and timm."""
        return self.whole(
            [
                # torchvision cuts the longer side off to a whole number, and rounds the place of
                # the crop as Python's round() does.
                ops.Resize(
                    shorter=resize,
                    interpolation=interpolation,
                    antialias=self.antialias,
                    rounding="down",
                ),
                ops.CenterCrop(size, rounding="even"),
            ]
        )

    def _cast(self) -> list[Op]:
        return self.on_image([ops.Cast(self.dtype)] if self.dtype != "float32" else [])

    def _through(self, steps: Iterable[Op], last: Iterable[Op]) -> list[Op]:
        if self.layout == "NCHW":
            transpose = [ops.Transpose("CHW")]
        else:
            transpose = []
        # Transposed last, for ops on images take HWC.
        return [*steps, ops.Normalize(self.mean, self.std), *last, *transpose]
