"""GaussianNoise and SaltAndPepper; and random numbers for the elements of an image, which have no
batch.

Words    Element ``i`` of a record has words of Philox 4x64-10 of its own: the key is four words
         that are drawn for (seed, epoch, record, op), the counter is ``i``. So a record's noise is
         the same in any batch, on any device.
Normal   The quantile of a number of 16 bits, from a table: mean 0, standard deviation 1, at most
         4.3 from the mean. A table has the same numbers on each device, where logarithms and
         cosines would round differently.
Others   The noise itself is no other library's: each has its own stream. Its use is torchvision's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuload import device, rng
from gpuload.kernels import cuda, pixels
from gpuload.ops import arguments, images
from gpuload.ops.base import Draw, Op, Sizes
from gpuload.ops.traits import Arithmetic, Traits, once
from gpuload.spec import Field

KEY_WORDS = 4  # of 32 bits
LEVELS = 1 << 16  # of a normal number
WHITE = {"uint8": 255, "uint16": 65535, "float32": 1}  # the value of white; black is 0

Keys = NDArray[np.int32]
f32 = np.float32

# `words` has the deviation, the mean, white, and whether floats are clipped; `table` the quantiles.
ADD_NOISE = """
typedef unsigned short Stats;
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats, const float* table,
    Out* to)
{
    float scale = number(words[0]), mean = number(words[1]), white = number(words[2]);
    const Stats* levels = stats + ((Long)y * image.width + x) * CHANNELS;
    for (int channel = 0; channel < CHANNELS; ++channel) {
        float value = (float)at(image, y, x, channel), noise = table[levels[channel]] * scale + mean;
        if (sizeof(In) < 4) {
            noise = truncf(noise < -white ? -white : noise > white ? white : noise);
            value = value + noise;
            value = value < 0.0f ? 0.0f : value > white ? white : value;
        } else {
            value = value + noise;
            if (number(words[3]) != 0.0f) value = value < 0.0f ? 0.0f : value > 1.0f ? 1.0f : value;
        }
        to[channel] = (Out)value;
    }
}
"""
# `words` has the first number that changes nothing, the first that does not make white, and white.
SET_PIXELS = """
typedef unsigned int Stats;
__device__ inline void pixel(const Image& image, int y, int x, const int* words, const Stats* stats, const float* table,
    Out* to)
{
    const Long* last = (const Long*)words;
    Long word = stats[y * image.width + x];
    for (int channel = 0; channel < CHANNELS; ++channel)
        to[channel] = word >= last[0] ? at(image, y, x, channel) : word < last[1] ? (Out)number(words[4]) : (Out)0;
}
"""


@dataclass(frozen=True)
class _Noise(Op):
    """An op that draws ``key``, int32 ``[N, 4]``, and makes noise of it for each element."""

    num_uniforms: ClassVar[int] = KEY_WORDS + 1

    @property
    @once
    def traits(self) -> Traits:
        """It takes 0 for black and 1 for white of floating-point numbers."""
        return Traits(arithmetic=Arithmetic(any_size=True, takes_parts=True))

    def field_after(self, field: Field) -> Field:
        """Shape and dtype stay."""
        shape = images.image(self, field)
        images.check_dtype(self, field, WHITE, f"noise is made for images of {', '.join(WHITE)}")
        return field.with_(shape=shape, axes="HWC")

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return one image with noise."""
        return self.with_noise(xp, x[None], {name: values[None] for name, values in draw.items()})[
            0
        ]

    @device.waits
    def array_batch(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """The same for a batch at once on a GPU, by two kernels; on a CPU image by image, which
        stay in the cache."""
        if pixels.reads(xp, x):
            return self.noise_on_device(xp, x, draw)
        return super().array_batch(xp, x, draw)

    def with_noise(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return images ``[N, H, W, C]`` with noise."""
        raise NotImplementedError

    def noise_on_device(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return images of any sizes for which `pixels.reads` is True, with noise, by kernels."""
        raise NotImplementedError


@dataclass(frozen=True)
class GaussianNoise(_Noise):
    """Add normal noise to each value; uint8, uint16 or float32, HWC, any number of channels.

    Formula: ``x + mean + sigma * z``, for bytes ``x + trunc(255 (mean + sigma * z))``, as
    torchvision's ``GaussianNoise``. Keras' and Albumentations' draw ``sigma``, too; DALI's takes it
    in units of the values. timm has none.

    Example:
        ``gl.ops.GaussianNoise(0.05)``

    Args:
        sigma: standard deviation, as a part of white: 1 of float32, 255 of uint8, 65535 of uint16.
            Two numbers are least and greatest, between which one is drawn for each image.
        mean: in the same units.
        clip: bound the result to black and white; integers are bounded in any case.
    """

    sigma: float | tuple[float, float] = 0.1
    mean: float = 0.0
    clip: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.keep(
            self,
            sigma=arguments.amounts(self, "sigma", self.sigma),
            mean=arguments.number(self, "mean", self.mean),
            clip=arguments.flag(self, "clip", self.clip),
        )

    @property
    @once
    def traits(self) -> Traits:
        """Without ``clip`` it takes any numbers."""
        return super().traits.with_arithmetic(takes_parts=self.clip)

    def field_after(self, field: Field) -> Field:
        """Shape and dtype stay."""
        if isinstance(self.sigma, tuple):
            low = self.sigma[0]
        else:
            low = self.sigma
        for name, value in (("sigma", low), ("mean", abs(self.mean))):
            if field.dtype.kind == "u" and value > 1:
                demand = f"a part of white, at most 1, for {field.dtype}"
                raise arguments.refuse(
                    self, name, getattr(self, name), demand, f"write {name}=25 / 255, say"
                )
        return super().field_after(field)

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``sigma``, float32 ``[N]``, and ``key``."""
        return {"sigma": arguments.between(self.sigma, u[:, 0]).astype(f32), "key": keys(u[:, 1:])}

    def with_noise(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return an image with noise."""
        white = f32(WHITE[x.dtype.name])
        with np.errstate(over="ignore"):  # a number beyond float32 is infinite, and bounded below
            scale = xp.asarray(draw["sigma"] * white)[:, None]
            noise = (normal(xp, draw["key"], x[0].size) * scale + f32(self.mean) * white).reshape(
                x.shape
            )
        if x.dtype == np.float32:
            result = x + noise
            if self.clip:
                return result.clip(f32(0), f32(1))
            return result
        # Noise of more than white is as much as white, and fits into an integer.
        whole = xp.trunc(noise.clip(-white, white)).astype(xp.int32)
        return (x.astype(xp.int32) + whole).clip(0, int(white)).astype(x.dtype)

    def noise_on_device(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return images on a GPU with noise, by kernels."""
        white = f32(WHITE[x[0].dtype.name])
        numbers = np.stack(
            [draw["sigma"] * white, np.full(len(x), f32(self.mean) * white, f32)], axis=1
        )
        images = pixels.Pixels(xp, x, numbers, pixels.constants(len(x), float(white), self.clip))
        noise = word_blocks(xp, draw["key"], -(-int(images.sizes.max()) * images.channels // 4))
        return images.change(
            ADD_NOISE, stats=noise, step=4 * noise.shape[1], table=quantiles_on_device()
        )


@dataclass(frozen=True)
class SaltAndPepper(_Noise):
    """Make some pixels white and some black, with all of their channels; uint8, uint16 or float32,
    HWC.

    Each pixel by itself is changed with probability ``amount``, as in scikit-image's
    ``random_noise``; Albumentations' SaltAndPepper changes an exact number. torchvision has no such
    op; DALI's noise.salt_and_pepper may take a channel. Keras and timm have none.

    Example:
        ``gl.ops.SaltAndPepper(0.05)``

    Args:
        amount: the part of the pixels, 0 to 1. Two numbers are least and greatest, between which
            one is drawn.
        salt: the part of these that become white: 1 of float32, 255 of uint8, 65535 of uint16. The
            others become 0.
    """

    amount: float | tuple[float, float] = 0.05
    salt: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        amount = arguments.amounts(self, "amount", self.amount)
        if max(amount) > 1:
            raise arguments.refuse(self, "amount", self.amount, "parts of the pixels, 0 to 1")
        arguments.keep(self, amount=amount, salt=arguments.probability(self, "salt", self.salt))

    def draw(self, u: NDArray[np.float64], size: Sizes) -> Draw:
        """Return ``amount``, float32 ``[N]``, and ``key``."""
        return {
            "amount": arguments.between(self.amount, u[:, 0]).astype(f32),
            "key": keys(u[:, 1:]),
        }

    def with_noise(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return an image with noise."""
        num_pixels = x.shape[1] * x.shape[2]
        number = words(xp, draw["key"], -(-num_pixels // 2)).view(xp.uint32)[:, :num_pixels]
        changes = draw["amount"].astype(np.float64) * 2.0**32
        last = xp.asarray(changes.astype(np.int64))[:, None]
        last_white = xp.asarray((changes * self.salt).astype(np.int64))[:, None]
        number = number.astype(xp.int64)
        shape = (*x.shape[:3], 1)
        is_changed, is_white = (number < last).reshape(shape), (number < last_white).reshape(shape)
        white, black = (x.dtype.type(value) for value in (WHITE[x.dtype.name], 0))
        return xp.where(is_changed, xp.where(is_white, white, black), x)

    def noise_on_device(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return images on a GPU with noise, by kernels."""
        changes = draw["amount"].astype(np.float64) * 2.0**32
        last = np.stack([changes, changes * self.salt], axis=1).astype(np.int64)
        images = pixels.Pixels(xp, x, last, pixels.constants(len(x), WHITE[x[0].dtype.name], 0))
        noise = word_blocks(xp, draw["key"], -(-int(images.sizes.max()) // 2))
        return images.change(SET_PIXELS, stats=noise, step=2 * noise.shape[1])


def keys(u: NDArray[np.float64]) -> Keys:
    """Return the keys of records' noise, int32 ``[N, 4]``, of as many uniform numbers."""
    return (u * 2.0**32).astype(np.uint32).view(np.int32)


def words(xp: ModuleType, key: Keys, count: int) -> Any:
    """Return random words for the elements of records, uint64 ``[N, count]`` of ``xp``.

    Args:
        xp: NumPy or CuPy.
        key: int32 ``[N, 4]``, on the host.
        count: words of a record.
    """
    if device.compiles(xp):
        return xp.ascontiguousarray(word_blocks(xp, key, count)[:, :count])
    pairs = np.ascontiguousarray(key).view(np.uint64).reshape(-1, 2)
    record = np.zeros(1, np.int64)
    # A record's key takes the places of seed and stream: they are Philox's key.
    rows = [
        rng.bits(count, seed=seed, epoch=0, records=record, stream=stream)
        for seed, stream in pairs.tolist()
    ]
    return xp.asarray(np.concatenate(rows))


def word_blocks(xp: ModuleType, key: Keys, count: int) -> Any:
    """Return the result of ``words`` on a GPU, up to three words more of each record; one
    launch."""
    pairs = np.ascontiguousarray(key).view(np.uint64).reshape(-1, 2)
    blocks = -(-count // 4)
    out = xp.empty((len(pairs), blocks * 4), xp.uint64)
    num_blocks = -(-blocks // cuda.THREADS)
    device.kernel(cuda.source("words.cu"), "words")(
        (num_blocks * len(pairs),), (cuda.THREADS,),
        (device.parameters(pairs), out, np.int32(blocks), np.int32(num_blocks)),
    )  # fmt: skip
    return out


def normal(xp: ModuleType, key: Keys, count: int) -> Any:
    """Return normal numbers for the elements of records, float32 ``[N, count]``: mean 0, standard
    deviation 1."""
    number = words(xp, key, -(-count // 4)).view(xp.uint16)[:, :count]
    if device.compiles(xp):
        table = quantiles_on_device()
    else:
        table = xp.asarray(quantiles())
    return table.take(number)


@cache
def quantiles() -> NDArray[np.float32]:
    """Return the normal number for each number of 16 bits, float32 ``[65536]``."""
    places = (np.arange(LEVELS // 2) + 0.5) / LEVELS
    lower = np.array([NormalDist().inv_cdf(place) for place in places.tolist()])
    numbers = np.concatenate([lower, -lower[::-1]])
    # Without their tails the numbers deviate by a little less than 1.
    return np.asarray(numbers / numbers.std(), f32)


def quantiles_on_device() -> Any:
    """Return `quantiles` on the current GPU, where they are kept."""
    return device.constant(quantiles)
