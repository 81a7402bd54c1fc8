"""GaussianBlur: each pixel a mean of those about it, by weights of a normal curve.

Formula  A window of ``kernel`` pixels. Its weights are ``exp(-x**2 / (2 sigma**2))`` divided by
         their sum, float64 rounded to float32. The image goes on beyond its border as in a mirror,
         the edge itself not repeated. The sums down the columns come first, then those along the
         rows, float32 in the order of the pixels. Integers are rounded to nearest, halves to even.
Source   torchvision 0.28, `transforms.v2.functional.gaussian_blur`: the same window, weights and
         border.
Equals   Its results but for one level on at most 0.1 % of 8-bit values: it sums the window at once,
         in another order.
Others   Pillow's GaussianBlur, which SimCLR's and DINO's code has, is three box filters, and its
         radius is sigma. OpenCV, Albumentations and DALI choose a window by sigma if none is given,
         and round fixed-point weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload import core, device
from gpuload.errors import SpecError
from gpuload.kernels import edits
from gpuload.kernels.edits import Edits
from gpuload.kernels.pixels import Pixels, reads
from gpuload.ops import arguments, images
from gpuload.ops.base import Draw, Op, RowError, Sizes
from gpuload.ops.forms import Forms
from gpuload.ops.geometry.warp import LINEAR_DTYPES, to_dtype
from gpuload.spec import Field

Weights = NDArray[np.float32]
f32 = np.float32

# The mean about a pixel, down its column or along its row; `words` has the number of weights and
# these.
BLUR = """
typedef int Stats;
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats, const float* table,
    Out* to)
{
    int taps = words[0];
    for (int channel = 0; channel < CHANNELS; ++channel) {
        float total = 0.0f;
        for (int tap = 0; tap < taps; ++tap) {
            float part = (float)PART * number(words[1 + tap]);
            total = tap ? total + part : part;
        }
        store(to + channel, total);
    }
}
"""
BLUR_DOWN = BLUR.replace(
    "PART", "at(image, mirrored(y + tap - taps / 2, image.height), x, channel)"
)
BLUR_ACROSS = BLUR.replace(
    "PART", "at(image, y, mirrored(x + tap - taps / 2, image.width), channel)"
)


@dataclass(frozen=True)
class GaussianBlur(Op):
    """Blur images by a random amount; uint8, uint16 or float32, HWC, any number of channels.

    The same as torchvision's ``GaussianBlur``, which is timm's, too: weights
    ``exp(-x**2 / (2 sigma**2))`` over their sum in a window that is given, see `ops.colour.blur`.
    Pillow's, which SimCLR's and DINO's code and timm's policies have, is box filters. OpenCV,
    Albumentations and DALI choose a window by sigma if none is given; Keras' RandomGaussianBlur has
    one of 3, and draws the number of pixels it acts on.

    Example:
        ``gl.ops.GaussianBlur(5, (0.1, 2.0))``

    Args:
        kernel: the window's side, pixels, odd; two numbers are those along x and along y, as
            torchvision has them.
        sigma: least and greatest standard deviation, pixels, more than 0; uniform. One number is
            both.
        p: probability.
    """

    kernel: int | tuple[int, int]
    sigma: float | tuple[float, float] = (0.1, 2.0)
    p: float = 1.0

    num_uniforms: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.kernel, (tuple, list)):
            pair = self.kernel
        else:
            pair = (self.kernel, self.kernel)
        sides = tuple(arguments.whole(self, "kernel", side) for side in pair)
        if len(sides) != 2 or not all(side % 2 for side in sides):
            raise arguments.refuse(
                self, "kernel", self.kernel, "an odd number of pixels, or two, along x and along y"
            )
        sigma = arguments.amounts(self, "sigma", self.sigma)
        if sigma[0] <= 0:
            raise arguments.refuse(self, "sigma", self.sigma, "more than 0")
        arguments.keep(self, kernel=sides, sigma=sigma, p=arguments.probability(self, "p", self.p))

    def forms(self, field: Field) -> Forms:
        """It is an edit, and has a form for single records in the core."""
        if core.native is None:
            return Forms(edits=self._edits)
        return Forms(edits=self._edits, row=_blur_row)

    def field_after(self, field: Field) -> Field:
        """Shape and dtype stay."""
        shape = images.image(self, field)
        images.check_dtype(
            self, field, LINEAR_DTYPES, f"images are blurred as {', '.join(LINEAR_DTYPES)}"
        )
        sides = [
            side if length is None else length
            for side, length in zip(self._window, shape[:2], strict=True)
        ]
        if (np.array(sides) <= self._reach).any():
            raise self._too_small(f"field {field.name!r} has images of", np.array(sides))
        return field.with_(shape=shape, axes="HWC")

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``down`` and ``across``: the weights along each axis, float32
        ``[N, side of the window]``."""
        if (size <= self._reach).any():
            row = int((size <= self._reach).any(axis=1).argmax())
            error = self._too_small("it has", size[row])
            raise RowError(row, error.what, cause=error.cause, remedy=error.remedy)
        sigma = arguments.between(self.sigma, u[:, 1])
        # An image that is not to be blurred gets the window in which its middle pixel alone counts.
        sigma[u[:, 0] >= self.p] = 0
        by_side = {side: weights(sigma, side) for side in set(self._window)}
        return {
            name: by_side[side] for name, side in zip(("down", "across"), self._window, strict=True)
        }

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image, blurred."""
        return to_dtype(xp, blur(xp, x, draw["down"], draw["across"]), x.dtype)

    @device.waits
    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The same for a batch at once, on a GPU by two kernels."""
        if not reads(xp, x):
            return super().array_batch(xp, x, draw)
        down = Pixels(xp, x, *taps(draw["down"])).change(BLUR_DOWN, dtype=f32)
        return Pixels(xp, down, *taps(draw["across"])).change(BLUR_ACROSS, dtype=x[0].dtype)

    def _edits(self, draw: Draw, size: Sizes, channels: int) -> Edits | None:
        """Return the edits of the images; one of which the middle pixels alone count stays."""
        down, across = draw["down"], draw["across"]
        parts = edits.of(len(size), edits.BLUR, down.shape[1], across.shape[1]), down, across
        blurs = np.concatenate(parts, axis=1, dtype=np.float64)
        blurs[:, 1] = blurs.shape[1] - 2
        is_blurred = (down[:, down.shape[1] // 2] != 1) | (across[:, across.shape[1] // 2] != 1)
        return edits.keep_rows(blurs, is_blurred)

    @property
    def _window(self) -> tuple[int, int]:
        """Height and width of the window, pixels."""
        if isinstance(self.kernel, tuple):
            across, down = self.kernel
        else:
            across, down = (self.kernel, self.kernel)
        return down, across

    @property
    def _reach(self) -> NDArray[np.int64]:
        return np.array(self._window) // 2

    def _too_small(self, subject: str, size: NDArray[Any]) -> SpecError:
        return SpecError(
            f"{self}: {subject} {size[0]} x {size[1]} pixels",
            cause=f"a window of {self._window[0]} x {self._window[1]} pixels needs more than half of that to mirror",
            remedy="take a smaller kernel, or larger images",
        )


def weights(sigma: NDArray[np.float64], side: int) -> Weights:
    """Return the weights of windows, float32 ``[N, side]``; of sigma 0 the middle pixel alone
    counts.

    A weight below the normal numbers of float32 (1.2e-38) is 0. It moves no result, and processors
    take some 100 cycles for a product with such a number: windows that are much wider than sigma
    took five times as long.
    """
    place = np.arange(side) - side // 2
    with np.errstate(divide="ignore", invalid="ignore"):
        curve = np.exp(-(place**2) / (2 * sigma[:, None] ** 2))
    curve = np.where(place == 0, 1.0, curve)
    total = np.zeros(len(sigma))
    # One by one: ``sum`` adds in another order for other lengths, and the weights' last bits are
    # those of the pixels.
    for column in curve.T:
        total = total + column
    line = np.asarray(curve / total[:, None], f32)
    return np.where(line < np.finfo(f32).tiny, f32(0), line)


def mirror(length: int, reach: int) -> NDArray[np.int64]:
    """Return the pixels of an axis, continued by ``reach`` on both sides as in a mirror; less than
    ``length``."""
    places = np.abs(np.arange(-reach, length + reach))
    return np.asarray(np.minimum(places, 2 * (length - 1) - places), np.int64)


def blur(xp: ModuleType, x: Any, down: Weights, across: Weights) -> Any:
    """Return an image ``[H, W, C]``, blurred, float32.

    Args:
        xp: NumPy or CuPy.
        x: uint8, uint16 or float32.
        down: the weights along the columns, on the host; half of them are fewer than rows.
        across: those along the rows.
    """
    result = x
    for axis, line in enumerate((down, across)):
        length, reach = x.shape[axis], len(line) // 2
        longer = result.take(xp.asarray(mirror(length, reach)), axis=axis).astype(f32)
        total: Any = None
        # In the order of the core and of the kernel, each product and sum rounded to float32: all
        # three are equal bit for bit.
        for tap, weight in enumerate(line):
            if axis == 0:
                part = longer[tap : tap + length]
            else:
                part = longer[:, tap : tap + length]
            if total is None:
                total = part * weight
            else:
                total = total + part * weight
        result = total
    return result


def taps(line: Weights) -> tuple[NDArray[np.int32], Weights]:
    """Return weights ``[N, side]`` as words of a kernel."""
    return np.full((len(line), 1), line.shape[1], np.int32), line


def blur_into(x: NDArray[Any], down: Weights, across: Weights, out: NDArray[Any]) -> None:
    """Write an image, blurred, to ``out``, by the core: the same as ``blur``, in the image's dtype;
    C-contiguous."""
    if core.native is None:
        raise RuntimeError(f"blur_into: {core.problem}")
    x = x if x.flags.aligned else x.copy()  # a field of a record may begin at any byte
    core.native.blur(x, np.ascontiguousarray(down), np.ascontiguousarray(across), out)


def _blur_row(x: NDArray[Any], draw: Draw, out: NDArray[Any]) -> None:
    blur_into(x, draw["down"], draw["across"], out)
