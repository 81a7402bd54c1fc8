"""Recompress: pixels to a JPEG file in memory and back, by Pillow, for the artefacts of
compression.

Formula  Pillow's encoder at a quality of 1 to 100, colours stored at half the size on both axes
         (4:2:0), and its decoder: libjpeg-turbo both times, as torchvision's ``jpeg`` has it.
"""

from __future__ import annotations

import io
from functools import cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from gpuload import signalsafe
from gpuload.errors import missing_package

LARGEST_SIDE = 65500  # of an image that libjpeg writes
FORMATS = ("JPEG",)


def recompress(pixels: NDArray[np.uint8], quality: int) -> NDArray[np.uint8]:
    """Return an image as a JPEG of a quality, uint8 ``[H, W, 1]`` or ``[H, W, 3]``; sides up to
    ``LARGEST_SIDE``."""
    library, file = pillow(), io.BytesIO()
    planes = pixels
    if pixels.shape[2] != 3:  # Pillow takes gray images with two axes alone
        planes = pixels[..., 0]
    library.fromarray(planes).save(file, "JPEG", quality=quality)
    file.seek(0)
    with library.open(file, formats=FORMATS) as image:
        return np.asarray(image).reshape(pixels.shape)


@cache
def pillow() -> ModuleType:
    """Return ``PIL.Image``.

    Raises:
        MissingPackageError: Pillow is not installed.
    """
    try:
        return signalsafe.import_package("PIL.Image")
    except ImportError as error:
        raise missing_package(
            "pillow", needed_for="gl.ops.JpegArtefacts", extra="images", error=error
        ) from None
