"""RandomResize, and the base of the ops that resize each image to a size that is drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload import device
from gpuload.ops import arguments
from gpuload.ops.base import Draw, Op, Sizes
from gpuload.ops.crop.resize import Interpolation, Resize, image_shape
from gpuload.ops.forms import Forms
from gpuload.ops.traits import Traits, once
from gpuload.spec import Field


class SizeJitter(Op):
    """An op that resizes each image to the ``size`` that it draws, as ``gl.ops.Resize`` does."""

    interpolation: Interpolation
    antialias: bool | str

    per_field: ClassVar[tuple[str, ...]] = ("interpolation",)
    num_uniforms: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.keep(
            self, interpolation=self._resize.interpolation, antialias=self._resize.antialias
        )

    @property
    @once
    def traits(self) -> Traits:
        """The same as of ``gl.ops.Resize``."""
        return self._resize.traits

    def forms(self, field: Field) -> Forms:
        """The same as of ``gl.ops.Resize``."""
        return self._resize.forms(field)

    @property
    def _resize(self) -> Resize:
        """The op that resizes, to sizes that are drawn here."""
        return Resize(shorter=1, interpolation=self.interpolation, antialias=self.antialias)

    def field_after(self, field: Field) -> Field:
        """Height and width vary."""
        return field.with_(shape=(None, None, image_shape(self, field)[2]), axes="HWC")

    def size_after(self, size: Sizes, draw: Draw) -> Sizes:
        """Return the drawn sizes."""
        return draw["size"].astype(np.int32)

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image, resized."""
        return self._resize.array(xp, x, draw)

    @device.waits
    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The same for a batch, on a GPU by kernels."""
        return self._resize.array_batch(xp, x, draw)

    def lower(
        self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str
    ) -> Any:
        """``resize``."""
        return self._resize.lower(dali, x, draw, field=field, device=device)


@dataclass(frozen=True)
class RandomResize(SizeJitter):
    """Resize each image so that its shorter side has a length that is drawn; it keeps its
    proportions.

    The lengths are ``low``, ``low + step`` and so on up to ``high``, all of them as likely; the
    longer side is rounded down. torchvision's ``v2.RandomResize(260, 1040)``, which leaves the last
    one out, is ``RandomResize(260, 1039)``, and
    ``v2.RandomShortestSize([480, 512, ..., 800], max_size=1333)`` is
    ``RandomResize(480, 800, step=32, longer=1333)``. Marks boxes, points and masks go with the
    image. Albumentations' SmallestMaxSize draws from a list, with OpenCV's resize; DALI's
    resize_shorter takes a length that is drawn elsewhere; Keras and timm have no such op.

    Example:
        ``gl.ops.RandomResize(24, 40)``

    Args:
        low: the least length of the shorter side, pixels.
        high: the greatest.
        step: between two lengths, pixels.
        longer: the longer side has at most so many pixels, the shorter one fewer then.
        interpolation: as of ``gl.ops.Resize``.
        antialias: as of ``gl.ops.Resize``.
    """

    low: int
    high: int
    step: int = field(default=1, kw_only=True)
    longer: int | None = field(default=None, kw_only=True)
    interpolation: Interpolation = field(default="linear", hash=False, kw_only=True)
    antialias: bool | str = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high, step = (
            arguments.side(self, name, getattr(self, name)) for name in ("low", "high", "step")
        )
        if high < low:
            raise arguments.refuse(self, "high", high, f"at least low, which is {low}")
        if self.longer is None:
            longer = None
        else:
            longer = arguments.side(self, "longer", self.longer)
        arguments.keep(self, low=low, high=high, step=step, longer=longer)

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``size``: the new size of each image, float32 ``[N, 2]`` as DALI wants it."""
        num_lengths = (self.high - self.low) // self.step + 1
        length = self.low + self.step * np.floor(u * num_lengths).astype(np.int64)
        sides = size.astype(np.int64).clip(1)
        before, longest = sides.min(axis=1, keepdims=True), sides.max(axis=1, keepdims=True)
        if self.longer is not None:
            is_long = longest * length > self.longer * before
            before, length = (
                np.where(is_long, longest, before),
                np.where(is_long, self.longer, length),
            )
        after = arguments.check_sides(self, sides * length // before)
        return {"size": after.clip(1).astype(np.float32)}
