"""CUDA: the kernels that ops launch on a GPU; `device.kernel` compiles them.

Their texts are in `cu/` (`kernels.sources`); the few lines of an op about one pixel stand beside
its array form.

Bits     A kernel makes the numbers of the array form, bit for bit: float32 products and sums in the
         same order, none of them fused (``--fmad=false``).
Bounds   Kernels check nothing. Their callers have checked sizes and draws; pixels outside of an
         image are never read, by no draw.
Threads  Each thread makes one number of a result, of walks 16 bytes. The blocks of one image follow
         those of the one before in x, of which a card takes 2147483647; within an image 32 bits
         count. ``blocks`` refuses larger ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from gpuload.errors import SpecError
from gpuload.kernels import sources

THREADS = 256  # of a block
MOST_NUMBERS, MOST_BLOCKS = (1 << 32) - 1, (1 << 31) - 1  # of an image, of a launch
PARTS = 8  # of an image, see gather.cuh
STRIP_BYTES = 16  # of the result, of each thread of walk.cu
MOST_CONSTANT = 4  # channels that a kernel is compiled for
TYPES = {
    "bool": "unsigned char", "uint8": "unsigned char", "uint16": "unsigned short", "uint32": "unsigned int",
    "uint64": "unsigned long long", "int8": "signed char", "int16": "short", "int32": "int", "int64": "long long",
    "float16": "__half", "float32": "float", "float64": "double",
}  # fmt: skip
RAW_TYPES = {
    1: "unsigned char",
    2: "unsigned short",
    4: "unsigned int",
    8: "unsigned long long",
}  # by bytes
NEAREST = "#define NEAREST\n"


def blocks(size: int, count: int) -> int:
    """Return how many blocks the threads of one image are.

    Args:
        size: the threads of the largest image.
        count: images, each of which gets as many blocks.

    Raises:
        SpecError: a kernel, or a card, cannot count as many.
    """
    result = -(-size // THREADS)
    if size > MOST_NUMBERS:
        raise SpecError(
            f"an image of {size} numbers on a GPU",
            cause=f"kernels count at most {MOST_NUMBERS} numbers of an image",
            remedy='write device="cpu"',
        )
    if result * count > MOST_BLOCKS:
        raise SpecError(
            f"{count} images of up to {size} numbers on a GPU",
            cause=f"as many blocks of {THREADS} threads an image are more than the {MOST_BLOCKS} "
            "of a launch",
            remedy=f"take a batch_size of at most {MOST_BLOCKS // result}",
        )
    return result


@cache
def walk(
    before: str,
    after: str,
    channels: int,
    *,
    planes: bool,
    normalizes: bool,
    words: int,
    wide: bool,
) -> str:
    """Return the source of the walk from images of one dtype to another, by NumPy's names.

    Args:
        before: the dtype of the images.
        after: of the result.
        channels: of the images.
        planes: True if the result has planes of its channels.
        normalizes: True if there are means and scales.
        words: the numbers of each image in `images`: 6, 1 or 0, see walk.cu.
        wide: True if numbers of an image may lie 2**31 elements apart.
    """
    types = {"In": TYPES[before], "Out": TYPES[after], "Place": "long long" if wide else "int"}
    return compose(
        '#include "walk.cu"\n',
        types,
        CHANNELS=channels if channels <= MOST_CONSTANT else 0,
        PLANES=planes,
        NORMALIZES=normalizes,
        WORDS=words,
    )


def divisor(length: int) -> tuple[np.uint32, np.int32]:
    """Return the factor and the shift by which a kernel divides numbers below 2**31 by a length,
    see division.cuh.

    The factor has 32 bits: ``2**shift / length``, rounded up. Of numbers of 31 bits the product,
    divided by ``2**shift``, is too large by less than 1 / ``length``, so that the quotient is exact
    (Granlund and Montgomery, "Division by Invariant Integers using Multiplication", 1994).
    """
    if length == 1:
        return np.uint32(1), np.int32(0)
    shift = 31 + (length - 1).bit_length()
    return np.uint32((1 << shift) // length + 1), np.int32(shift)


def num_strips(out: Any) -> int:
    """Return how many threads walk.cu has for each image of a result, an array ``[N, ...]`` on a
    GPU."""
    num_bytes = int(out.nbytes) // len(out)
    are_aligned = num_bytes % STRIP_BYTES == 0 and out.data.ptr % STRIP_BYTES == 0
    if are_aligned:
        return num_bytes // STRIP_BYTES
    return num_bytes // STRIP_BYTES + 2  # one begins before the image, and one ends behind it


@cache
def rows(word_bytes: int) -> str:
    """Return the source of ``rows`` for words of so many bytes: 1, 2, 4 or 8."""
    return compose('#include "rows.cu"\n', {"Word": RAW_TYPES[word_bytes]})


@cache
def resize(dtype: np.dtype[Any], *, nearest: bool) -> str:
    """Return the source of ``taps`` and ``resize`` for images of a dtype."""
    if nearest:
        return compose(f'{NEAREST}#include "resize.cu"\n', {"Pixel": RAW_TYPES[dtype.itemsize]})
    return compose('#include "resize.cu"\n', {"Pixel": TYPES[dtype.name]})


@cache
def warp(dtype: np.dtype[Any], *, nearest: bool) -> str:
    """Return the source of ``warp`` for images of a dtype."""
    if nearest:
        number = RAW_TYPES[dtype.itemsize]
        return compose(f'{NEAREST}#include "warp.cu"\n', {"Pixel": number, "Fill": number})
    return compose('#include "warp.cu"\n', {"Pixel": TYPES[dtype.name], "Fill": "float"})


@cache
def mosaic(dtype: np.dtype[Any]) -> str:
    """Return the source of ``mosaic`` for images of a dtype."""
    return compose('#include "mosaic.cu"\n', {"Pixel": RAW_TYPES[dtype.itemsize]})


@cache
def change(before: str, after: str, channels: tuple[int, int], pixel: str) -> str:
    """Return the source of ``change``, where ``pixel`` is the text that makes a pixel.

    Args:
        before: the C type of a number of an image.
        after: of a result.
        channels: of an image and of a result.
        pixel: defines ``Stats``, and ``pixel(image, y, x, words, stats, table, to)``.
    """
    return _compose_pixels(before, after, channels, f'{pixel}#include "change.cuh"\n')


@cache
def pixels(before: str, after: str, channels: int, text: str) -> str:
    """Return the source of kernels over images of any sizes that a text has; the types as of
    ``change``."""
    return _compose_pixels(before, after, (channels, channels), text)


@cache
def gather(before: str, channels: int, sums: str) -> str:
    """Return the source of ``gather``, where ``sums`` is the text that sums up an image.

    Args:
        before: the C type of a number of an image.
        channels: of an image.
        sums: defines ``Stats``, ``start(image, before)``, ``add(sum, image, y, x, words)`` and
            ``merge(sum, part)``.
    """
    return pixels(before, before, channels, f'{sums}#include "gather.cuh"\n')


@cache
def mark(before: str, channels: int, test: str) -> str:
    """Return the source of ``mark``, where ``test`` defines ``is_wrong(value, words)``.

    Args:
        before: the C type of a number of an image.
        channels: of an image.
        test: the text.
    """
    return pixels(before, before, channels, f'{test}#include "mark.cuh"\n')


def _compose_pixels(before: str, after: str, channels: tuple[int, int], text: str) -> str:
    """Return the source of kernels over images of any sizes, see pixel.cuh."""
    return compose(
        f'#include "pixel.cuh"\n{text}',
        {"In": before, "Out": after},
        CHANNELS=channels[0],
        OUT_CHANNELS=channels[1],
        THREADS=THREADS,
        PARTS=PARTS,
    )


@cache
def source(name: str, **numbers: int) -> str:
    """Return the source of a file of `cu/` that knows no types, with constants for it."""
    return compose(f'#include "{name}"\n', {}, **numbers)


def compose(text: str, types: Mapping[str, str], **numbers: int) -> str:
    """Return the source of kernels: the head of all, and then a text.

    Args:
        text: of kernels.
        types: the C types that names in the text stand for.
        numbers: the constants that names in the text stand for.
    """
    names = "".join(f"typedef {kind} {name};\n" for name, kind in types.items())
    return sources.expand(f'#include "head.cuh"\n{names}{constants(**numbers)}{text}')


def constants(**numbers: int) -> str:
    """Return the text of constants of a kernel; a kernel may ask for them by ``#if``, too."""
    return "".join(f"#define {name} {int(number)}\n" for name, number in numbers.items())
