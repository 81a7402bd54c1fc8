"""Rotate and Rotate90: images turned about their centre, by any angle or by quarters of a turn."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload import device
from gpuload.kernels import pixels
from gpuload.ops import arguments, images
from gpuload.ops.base import VARYING, Draw, Op, Points, Sizes
from gpuload.ops.geometry.affine import matrices
from gpuload.ops.geometry.warp import Warp
from gpuload.ops.traits import Geometric, Traits, once
from gpuload.spec import Field

TOLERANCE = (
    1e-4  # pixels: torchvision's, so that a turn by 90 degrees does not make an image larger
)


@dataclass(frozen=True)
class Rotate(Warp):
    """Turn images about their centre by a random angle; HWC, any number of channels.

    The angle is uniform, counter-clockwise. The formula is that of `ops.geometry.warp`:
    torchvision's ``RandomRotation`` on tensors. Keras' RandomRotation counts in parts of a turn,
    DALI's rotate and Albumentations' blend the border with the fill; timm's policies use Pillow's
    rotation, `kernels.pillow`.

    Example:
        ``gl.ops.Rotate(15)``

    Args:
        degrees: least and greatest angle; one number is ``(-degrees, degrees)``.
        expand: make the result large enough for the whole image; its size then differs from image
            to image.
        interpolation: ``"nearest"``, or ``"linear"`` for uint8, uint16 and float32; or a dict from
            fields to these.
        fill: the value outside of the image: a number, or one for each channel; or a dict from
            field names to these.
    """

    degrees: float | tuple[float, float]
    expand: bool = False

    num_uniforms: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.keep(
            self,
            degrees=arguments.spread(self, "degrees", self.degrees),
            expand=arguments.flag(self, "expand", self.expand),
        )

    @property
    @once
    def traits(self) -> Traits:
        """Images keep their sizes without ``expand``."""
        return super().traits._replace(keeps_size=not self.expand)

    def field_after(self, field: Field) -> Field:
        """Shape and dtype stay; with ``expand`` height and width vary."""
        after = super().field_after(field)
        if self.expand and after.shape:
            return after.with_(shape=(None, None, *after.shape[2:]))
        return after

    def size_after(self, size: Sizes, draw: Draw) -> Sizes:
        """Return the sizes, larger with ``expand``."""
        return draw["size"] if self.expand else size

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``matrix``, float32 ``[N, 6]``, and with ``expand`` ``size``, int32 ``[N, 2]``, of
        each result."""
        angle = arguments.between(self.degrees, u[:, 0])
        matrix = matrices(-angle)
        if not self.expand:
            return {"matrix": matrix}
        quarters = angle[:, None] % 180  # by quarters whole pixels come to lie on whole pixels
        after = np.where(
            quarters == 90,
            size[:, ::-1],
            np.where(quarters == 0, size, _expanded_size(matrix, size)),
        )
        return {"matrix": matrix, "size": after.astype(np.int32)}


@dataclass(frozen=True)
class Rotate90(Op):
    """Turn images by a random number of quarters, counter-clockwise; HWC or volumes DHWC, any
    dtype.

    Pixels are moved, none is blended. One and three quarters exchange the sides of an image that is
    not square. Albumentations' RandomRotate90 draws from all four, too; torchvision and DALI have
    it as rotations by 90 degrees. Keras and timm have none.

    Example:
        ``gl.ops.Rotate90()``

    Args:
        quarters: the numbers of quarters from which one is drawn, 0 to 3; each is as likely as the
            others.
    """

    quarters: tuple[int, ...] = (0, 1, 2, 3)

    num_uniforms: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.quarters, (tuple, list)):
            numbers = self.quarters
        else:
            numbers = (self.quarters,)
        quarters = tuple(arguments.whole(self, "quarters", number, least=0) for number in numbers)
        if not quarters or max(quarters) > 3 or len(set(quarters)) < len(quarters):
            raise arguments.refuse(
                self, "quarters", self.quarters, "numbers from 0 to 3, each once"
            )
        arguments.keep(self, quarters=quarters)

    @property
    @once
    def traits(self) -> Traits:
        """It moves pixels."""
        return Traits(geometric=Geometric(self._move_points))

    def field_after(self, field: Field) -> Field:
        """Shape and dtype stay; where sides may be exchanged and differ, they vary."""
        height, width, *slices = images.sides(self, field)
        odd = {number % 2 for number in self.quarters}
        if odd == {1}:
            height, width = width, height
        elif odd == {0, 1} and height != width:
            height = width = None
        return images.with_sides(field, (height, width, *slices))

    def size_after(self, size: Sizes, draw: Draw) -> Sizes:
        """Return the sizes, sides exchanged by one and three quarters."""
        exchanged = np.concatenate([size[:, 1::-1], size[:, 2:]], axis=1)
        return np.where(draw["quarters"][:, None] % 2 == 1, exchanged, size)

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``quarters``, int32 ``[N]``; of volumes ``slices``, too, how many they have."""
        quarters = np.array(self.quarters, np.int32)[
            (u[:, 0] * len(self.quarters)).astype(np.int64)
        ]
        if size.shape[1] == 2:
            return {"quarters": quarters}
        return {"quarters": quarters, "slices": size[:, 2]}

    def _move_points(self, points: Points, draw: Draw, size: NDArray[np.int32]) -> Points:
        """They turn with the image."""
        height, width = (int(length) for length in size)
        for _ in range(int(draw["quarters"])):
            points = np.stack([points[:, 1], width - points[:, 0]], axis=1)
            height, width = width, height
        return points

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image, turned; of a volume each slice."""
        axes = (0, 1)
        if "slices" in draw:
            axes = (1, 2)
        return xp.rot90(x, int(draw["quarters"]), axes=axes)

    @device.waits
    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The same for a batch, of one size on a GPU by a kernel."""
        if "slices" in draw or isinstance(x, VARYING) or not pixels.reads(xp, x):
            return super().array_batch(xp, x, draw)
        size = self.size_after(np.broadcast_to(np.array(x.shape[1:3], np.int32), (len(x), 2)), draw)
        return pixels.move(xp, x, quarters=draw["quarters"], size=size)


def _expanded_size(matrix: NDArray[np.float32], size: Sizes) -> Sizes:
    """Return the sizes that hold whole images: of the box about their corners, in float32 as
    torchvision has it."""
    half = size[:, ::-1].astype(np.float32) / np.float32(2)
    corners = half[:, None] * np.array([[-1, -1], [-1, 1], [1, 1], [1, -1]], np.float32)
    lines = matrix.reshape(-1, 2, 3)[:, :, :2].astype(np.float64)
    product = (corners[:, :, None, 0] * lines[:, None, :, 0]).astype(np.float32)
    points = (corners[:, :, None, 1] * lines[:, None, :, 1] + product).astype(np.float32)
    scale, unit = np.float32(1 / TOLERANCE), np.float32(TOLERANCE)
    highest, lowest = (
        (np.trunc((edge + half) * scale) * unit)
        for edge in (points.max(axis=1), points.min(axis=1))
    )
    return np.asarray((np.ceil(highest) - np.floor(lowest))[:, ::-1], np.int32)
