"""RandomFlip: mirror some of the images."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import device
from gpuload.kernels import pixels
from gpuload.kernels.walk import Walk
from gpuload.ops import arguments, images
from gpuload.ops.base import VARYING, Draw, Op, Points, Sizes
from gpuload.ops.forms import Forms
from gpuload.ops.traits import Execution, Geometric, Traits, once
from gpuload.spec import Field


@dataclass(frozen=True)
class RandomFlip(Op):
    """Mirror an image left to right (and, if wanted, top to bottom); HWC or volumes DHWC, any
    dtype.

    Pixel x of a row becomes the one at ``width - 1 - x``. torchvision and Albumentations have an op
    for each direction, timm has torchvision's; Keras' RandomFlip mirrors both ways unless told
    otherwise; DALI's flip mirrors all images unless its arguments are drawn.

    Example:
        ``gl.ops.RandomFlip(p=0.5)``

    Args:
        p: probability of each mirroring; they are drawn independently.
        horizontal: mirror left to right.
        vertical: mirror top to bottom.
        depth: put the slices of volumes (``DHWC`` or ``DHW``) into the opposite order.
    """

    p: float = 0.5
    horizontal: bool = True
    vertical: bool = False
    depth: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.keep(
            self,
            p=arguments.probability(self, "p", self.p),
            horizontal=arguments.flag(self, "horizontal", self.horizontal),
            vertical=arguments.flag(self, "vertical", self.vertical),
            depth=arguments.flag(self, "depth", self.depth),
        )
        if not (self.horizontal or self.vertical or self.depth):
            raise arguments.refuse(
                self, "horizontal", False, "True where vertical is False", "leave the op out"
            )

    @property
    @once
    def traits(self) -> Traits:
        """It moves pixels; an op behind it can mirror in its place where that is from left to right."""
        mirror: str | None = "horizontal"
        if self.vertical or self.depth:
            mirror = None
        return Traits(
            execution=Execution(mirror=mirror),
            geometric=Geometric(self._move_points, keypoints=self._move_keypoints),
        )

    def forms(self, field: Field) -> Forms:
        """It is a part of a walk."""
        return Forms(fold=self._fold)

    def field_after(self, field: Field) -> Field:
        """The shape stays."""
        if self.depth:
            images.check_volume(self, field, "depth")
        return images.with_sides(field, images.sides(self, field))

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]
        """One for each axis that may be mirrored; two at least."""
        return 2 + self.depth

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``vertical`` and ``horizontal``, of volumes ``depthwise``, too: 1 where mirrored,
        int32 ``[N]``."""
        flips = (u < self.p).astype(np.int32)
        draw = {
            "vertical": flips[:, 1] * self.vertical,
            "horizontal": flips[:, 0] * self.horizontal,
        }
        if size.shape[1] > 2:
            if self.depth:
                draw["depthwise"] = flips[:, 2]
            else:
                draw["depthwise"] = np.zeros_like(flips[:, 0])
        return draw

    def _move_points(self, points: Points, draw: Draw, size: NDArray[np.int32]) -> Points:
        """Left becomes right: x becomes width - x, y height - y."""
        return self._mirror_in(points, draw, size)

    def _move_keypoints(self, points: Points, draw: Draw, size: NDArray[np.int32]) -> Points:
        """As torchvision: x becomes width - 1 - x. A left eye is not called a right eye then."""
        return self._mirror_in(points, draw, size - 1)

    def _mirror_in(self, points: Points, draw: Draw, size: NDArray[np.int32]) -> Points:
        is_mirrored = np.array([draw["horizontal"], draw["vertical"]]) == 1
        return np.where(is_mirrored, size[::-1] - points, points)

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image, mirrored or not."""
        names = (
            ("depthwise", "vertical", "horizontal")
            if "depthwise" in draw
            else ("vertical", "horizontal")
        )
        steps = (1 - 2 * bool(draw[name]) for name in names)
        return x[tuple(slice(None, None, step) for step in steps)]

    @device.waits
    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The images of a batch of one size, taken by index; on a GPU by a kernel."""
        if isinstance(x, VARYING):
            return self._rows(xp, x, draw)  # they are views
        if "depthwise" in draw:
            device.settle()
            names = ("depthwise", "vertical", "horizontal")
            slices, rows, columns = (
                _order(xp, x.shape[axis], draw[name]) for axis, name in enumerate(names, 1)
            )
            places = slices[:, :, None, None], rows[:, None, :, None], columns[:, None, None]
            return x[(xp.arange(len(x))[:, None, None, None], *places)]
        if pixels.reads(xp, x):
            return pixels.move(
                xp, x, mirror=np.stack([draw["vertical"], draw["horizontal"]], axis=1)
            )
        device.settle()
        rows = _order(xp, x.shape[1], draw["vertical"])
        columns = _order(xp, x.shape[2], draw["horizontal"])
        return x[xp.arange(len(x))[:, None, None], rows[:, :, None], columns[:, None]]

    def lower(
        self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str
    ) -> Any:
        """``flip``; of raw integers for the dtypes that it does not know."""

        def flip(raw: Any) -> Any:
            if not field.is_volume:
                return dali.fn.flip(raw, **draw)
            has_channels = len(field.shape or ()) > 3
            if has_channels:
                volumes = raw
            else:
                volumes = dali.fn.expand_dims(raw, axes=[3])
            result = dali.fn.reshape(
                dali.fn.flip(dali.fn.reshape(volumes, layout="DHWC"), **draw), layout=""
            )
            if has_channels:
                return result
            return dali.fn.squeeze(result, axes=[3])

        return images.move_pixels(dali, field.dtype, ("bool", "float16"), flip, x)

    def _fold(self, walk: Walk, draw: Draw) -> Walk | None:
        """The walk mirrors once more, or no longer."""
        if "depthwise" in draw:
            return None
        mirror = walk.mirror.copy()
        mirror[:, 0] ^= draw["vertical"]
        mirror[:, 1] ^= draw["horizontal"]
        return walk.with_(mirror=mirror)


def _order(xp: ModuleType, length: int, flips: NDArray[np.int32]) -> Any:
    forward = xp.arange(length)
    return xp.where(xp.asarray(flips)[:, None] == 1, forward[::-1], forward)
