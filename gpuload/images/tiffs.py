"""Samples of a TIFF as the file stores them: of kinds that DALI's decoder does not read; the
importer of tifffile.

Pillow    one channel of 1, 2, 4 and 8 bits, uint16, and in little-endian files int16, int32, uint32
          or float32; gray with alpha, RGB and RGBA of 8 bits; in the compressions of its libtiff,
          ZSTD and LZMA among them.
tifffile  all others: any number of channels of any dtype. Without the package imagecodecs it reads
          files without compression and those by Deflate; the extra ``tiff`` brings both.
Choice    by the kind of the file alone, so that values do not depend on installed packages: without
          its package, a file is an error.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload import signalsafe
from gpuload.errors import install_command
from gpuload.images.heads import tiff
from gpuload.images.heads.base import Head, HeadError, UnsupportedError

GRAY, RGB = (tiff.WHITE_IS_0, tiff.BLACK_IS_0), tiff.RGB
OF_PILLOW = ("int16", "int32", "uint32", "float32")  # samples of one channel
# That Pillow's libtiff reads: none, fax, LZW, JPEG, Deflate, PackBits, LZMA and ZSTD; of WebP it
# reads lossy data.
PILLOW_COMPRESSIONS = {1, 2, 3, 4, 5, 7, 8, 32773, 32946, 34925, 50000}


def is_of_pillow(layout: tiff.SampleLayout, head: Head) -> bool:
    """Return True if Pillow reads the samples of a file, all of them and unchanged."""
    if layout.compression not in PILLOW_COMPRESSIONS or layout.is_planar:
        return False
    # Of big-endian files, Pillow 13 leaves bytes in the wrong order where they were compressed, and
    # reads no BigTIFF.
    if not layout.is_little and (head.sample or layout.is_big):
        return False
    if layout.photometric in GRAY and layout.channels == 1:
        is_white_0 = layout.photometric == tiff.WHITE_IS_0
        if head.sample:
            return head.sample in OF_PILLOW and not is_white_0
        return layout.bits in (1, 2, 4, 8) or (layout.bits == 16 and not is_white_0)
    kinds = {
        (tiff.BLACK_IS_0, 2): ((tiff.UNASSOCIATED,),),
        (RGB, 3): ((),),
        (RGB, 4): ((tiff.UNASSOCIATED,),),
    }
    return (
        layout.bits == 8
        and not head.sample
        and layout.extras in kinds.get((layout.photometric, layout.channels), ())
    )


def from_pillow(image: Any, layout: tiff.SampleLayout, head: Head) -> NDArray[Any]:
    """Return the samples of an image that Pillow has read, ``[height, width, channels]``."""
    if image.mode == "1":
        values = np.asarray(image, np.uint8) * np.uint8(255)
    else:
        values = np.asarray(image)
    if head.sample == "uint32":  # Pillow's mode I is int32, with the same bits
        values = values.view(np.uint32)
    elif layout.bits < 8:
        values = values // (255 // (2**layout.bits - 1))  # Pillow makes the largest number white
    if layout.photometric == tiff.WHITE_IS_0:  # Pillow inverts these
        values = (2 ** min(layout.bits, 8) - 1) - values
    return values.astype(head.dtype).reshape(*values.shape[:2], -1)


def from_tifffile(data: NDArray[np.uint8], layout: tiff.SampleLayout, head: Head) -> NDArray[Any]:
    """Return the samples of the first page, ``[height, width, channels]``, not turned.

    Raises:
        UnsupportedError: tifffile does not read this kind; or it is not installed, or imagecodecs
            for its compression.
        HeadError: it is damaged.
    """
    try:
        library = signalsafe.import_package("tifffile")
    except ImportError as error:
        raise _without("tifffile", layout, head) from error

    def read_page() -> tuple[NDArray[Any], str]:
        with library.TiffFile(io.BytesIO(data.data)) as file:
            page = file.pages[0]
            return page.asarray(maxworkers=1), str(page.axes)

    def to_error(error: Exception) -> UnsupportedError | HeadError:
        if isinstance(error, NotImplementedError):
            return UnsupportedError(f"{about(layout, head)}: {error}")
        if "imagecodecs" in str(error) and not signalsafe.is_installed("imagecodecs"):
            return _without("imagecodecs", layout, head)
        return HeadError(
            f"its pixels are damaged: tifffile says {error!r}"[:200]
        )  # an error of any codec

    values, axes = signalsafe.call_library(read_page, to_error)
    if axes == "SYX":
        values = np.moveaxis(values, 0, 2)
    elif axes not in ("YX", "YXS"):
        raise UnsupportedError(f"a TIFF with axes {axes}")
    values = values.reshape(*values.shape[:2], -1)
    if head.orientation > 4:
        stored_size = (head.width, head.height)
    else:
        stored_size = (head.height, head.width)
    if (
        values.shape != (*stored_size, layout.channels)
        or values.dtype.itemsize != np.dtype(head.dtype).itemsize
    ):
        raise UnsupportedError(
            f"{about(layout, head)}, which tifffile reads as {values.dtype} {list(values.shape)}"
        )
    return np.ascontiguousarray(values, head.dtype)


def _without(package: str, layout: tiff.SampleLayout, head: Head) -> UnsupportedError:
    """Return the error of a file that a package would read; it is the file's, which alone may need
    the package."""
    return UnsupportedError(
        f"{about(layout, head)}, without the package {package!r}", install_command("tiff")
    )


def check_colours(layout: tiff.SampleLayout, head: Head) -> None:
    """Raise ``UnsupportedError`` for samples that are no colours from black to white; before they
    are read."""
    form = f"gl.ops.Decode('ANY', dtype={head.dtype!r})"
    if layout.palette is not None:
        return
    if head.sample or layout.photometric not in (*GRAY, RGB) or layout.bits in (3, 5, 6, 7):
        raise UnsupportedError(
            f"{about(layout, head)} as an image of uint8 or uint16", f"{form} keeps its numbers"
        )
    if tiff.ASSOCIATED in layout.extras:
        kind = f"{about(layout, head)} whose colours were multiplied by its alpha"
        raise UnsupportedError(kind, f"{form} keeps them as they are")


def colours(samples: NDArray[Any], layout: tiff.SampleLayout) -> NDArray[Any]:
    """Return samples as RGB, uint8 or uint16: 0 is black, and the largest value of the dtype white.

    Args:
        samples: ``[height, width, channels]``, or the colours of a palette.
        layout: of a file that ``check_colours`` has let pass.
    """
    if layout.photometric in GRAY:
        values = np.repeat(samples[..., :1], 3, axis=2)
    else:
        values = samples[..., :3].copy()
    if layout.palette is not None:
        return values
    values = scaled(values, layout)
    if layout.photometric == tiff.WHITE_IS_0:
        return ~values
    return values


def scaled(values: NDArray[Any], layout: tiff.SampleLayout) -> NDArray[Any]:
    """Return samples of a file that ``check_colours`` has let pass, to the largest value of uint8
    or uint16."""
    if layout.bits < 8:
        return values * np.uint8(255 // (2**layout.bits - 1))
    if 8 < layout.bits < 16:
        return values << np.uint16(16 - layout.bits)
    return values


def about(layout: tiff.SampleLayout, head: Head) -> str:
    """Return the kind of a TIFF in words."""
    kind = tiff.COLOURS.get(layout.photometric, "samples")
    sample = head.sample or f"{layout.bits} bits"
    channels = f"{layout.channels} channel{'s' * (layout.channels != 1)}"
    if layout.compression == tiff.PLAIN:
        packing = ""
    else:
        packing = f", {tiff.compression_name(layout.compression)}"
    return f"a TIFF of {kind}, {channels} of {sample}{packing}"
