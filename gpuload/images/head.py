"""Head of an encoded image: kind, size and orientation from its bytes, and whether it is whole.

A format is known by the first bytes of a file, not by its name; `heads` has a module for each.
Bounds  no memory is taken on a file's word: a size is refused that so few bytes cannot hold, and above MAX_PIXELS.
Agrees  the size is that of DALI's decoder. Where DALI's own parts would disagree about it, which would make it write
        beyond its buffer (measured with 2.4: the process dies), where it would read other pixels than the format's own
        specification says, or fill up damaged parts, the file is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gpuload import core
from gpuload.errors import RowError
from gpuload.images import scans
from gpuload.images.heads import avif, bmp, gif, jp2, jpeg, png, pnm, tiff, webp
from gpuload.images.heads.base import MAX_PIXELS as MAX_PIXELS
from gpuload.images.heads.base import Head as Head
from gpuload.images.heads.base import HeadError as HeadError
from gpuload.ragged import Ragged

COLUMNS = ("height", "width", "scans", "channels", "orientation", "scan_end")  # of the result of `read_heads`
LOOKED_AT_BYTES = 18  # by which a format is told


@dataclass(frozen=True)
class Format:
    """A format of image files.

    Attributes:
        title: its name for people.
        suffixes: of its files, in small letters.
        beginnings: the first bytes of its files.
        read: returns the head.
        in_dali: True if DALI decodes it too; the others are Pillow's.
    """

    title: str
    suffixes: tuple[str, ...]
    beginnings: tuple[bytes, ...]
    read: Callable[[memoryview], Head]
    in_dali: bool = True


FORMATS = {
    "jpeg": Format("JPEG", (".jpg", ".jpeg", ".jpe", ".jfif"), (b"\xff\xd8\xff",), jpeg.read),
    "png": Format("PNG", (".png", ".apng"), (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",), png.read),
    "webp": Format("WebP", (".webp",), (b"RIFF",), webp.read),
    "tiff": Format("TIFF", (".tif", ".tiff"), (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), tiff.read),
    "bmp": Format("BMP", (".bmp", ".dib"), (b"BM",), bmp.read),
    "pnm": Format(
        "PNM",
        (".pnm", ".pbm", ".pgm", ".ppm"),
        tuple(b"P%d" % kind + white for kind in range(1, 7) for white in (b" ", b"\n", b"\r", b"\t")),
        pnm.read,
    ),
    "jp2": Format("JPEG 2000", (".jp2", ".jpx"), (jp2.SIGNATURE,), jp2.read_jp2),
    "j2k": Format("JPEG 2000 codestream", (".j2k", ".j2c", ".jpc"), (b"\xff\x4f\xff\x51",), jp2.read_codestream),
    "gif": Format("GIF", (".gif",), (b"GIF87a", b"GIF89a"), gif.read, in_dali=False),
    "avif": Format("AVIF", (".avif",), (b"ftypavif", b"ftypavis"), avif.read, in_dali=False),
}
SUFFIXES = tuple(suffix for form in FORMATS.values() for suffix in form.suffixes)
TITLES = ", ".join(form.title for form in FORMATS.values())
# The first bytes that show the format of a file whose beginning is damaged: its reader gives the better error.
SHORT_MAGICS = {b"\xff\xd8": "jpeg", b"\x89PNG": "png", b"BM": "bmp"}


def kind_of(beginning: bytes) -> str | None:
    """Return the name of the format whose files begin so (LOOKED_AT_BYTES will do), None if there is none."""
    if beginning[:4] == b"RIFF":
        return "webp" if beginning[8:12] == b"WEBP" else None
    if beginning[:2] == b"BM" and int.from_bytes(beginning[14:18], "little") not in bmp.HEADERS:
        return None
    if beginning[4:8] == b"ftyp":
        beginning = beginning[4:]
    return next((kind for kind, form in FORMATS.items() if beginning.startswith(form.beginnings)), None)


def foreign_to_dali(data: NDArray[Any]) -> str:
    """Return the kind of an image file that DALI has no codec for; "" for any other."""
    kind = kind_of(bytes(data[:LOOKED_AT_BYTES]))
    if kind is not None and not FORMATS[kind].in_dali:
        return FORMATS[kind].title
    if kind == "tiff" and not tiff.gives_bits(memoryview(cast(Any, data))):
        return "TIFF without BitsPerSample"
    return ""


def read(data: NDArray[Any] | bytes | bytearray | memoryview) -> Head:
    """Return the head of an encoded image (uint8 ``[num_bytes]``).

    Raises:
        HeadError: the bytes are not one whole image that can be decoded.
    """
    view = memoryview(cast(Any, data))
    if view.format != "B" or not view.c_contiguous:
        view = memoryview(view.tobytes())
    if len(view) == 0:
        raise HeadError("the file is empty")
    beginning = bytes(view[:LOOKED_AT_BYTES])
    kind = kind_of(beginning) or next(
        (name for start, name in SHORT_MAGICS.items() if beginning.startswith(start)), None
    )
    if kind is None:
        raise HeadError(f"it is no image file of these formats: {TITLES}; it begins with {beginning[:8].hex(' ')}")
    try:
        return FORMATS[kind].read(view)
    except scans.ScanError as error:
        raise HeadError(str(error)) from None
    except (IndexError, struct.error):
        raise HeadError(f"the file ends inside its header, after {len(view)} bytes") from None


def read_heads(files: Ragged | Sequence[NDArray[np.uint8]]) -> NDArray[np.int32]:
    """Return numbers of the heads of encoded images, int32 ``[N, 6]``, a column for each name in ``COLUMNS``.

    The last three are of JPEGs that the core has read, and 0 for all other files: ``jpeg_head`` makes a `Head` of them.

    Raises:
        RowError: the bytes of a file are not one whole image that can be decoded; it names the first such row.
    """
    heads: NDArray[np.int32] = np.zeros((len(files), len(COLUMNS)), np.int32)
    if core.native is not None and isinstance(files, Ragged) and len(files):
        core.native.read_jpeg_heads(np.ascontiguousarray(files.payload), files.offsets[:-1], files.offsets[1:], heads)
    for row in np.flatnonzero(heads[:, 0] == 0).tolist():  # rows that the core did not understand
        try:
            head = read(files[row])
        except HeadError as error:
            raise RowError(row, str(error)) from None
        heads[row, :3] = head.height, head.width, head.scans
    return heads


def are_jpegs(heads: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return which rows of `read_heads` are known to be of JPEGs, boolean ``[N]``; those of others may be, too."""
    return np.asarray(heads[:, COLUMNS.index("channels")] > 0)


def jpeg_head(numbers: NDArray[np.int32]) -> Head | None:
    """Return the head of a file from its row of `read_heads`; None where ``read`` has to look at the file."""
    height, width, num_scans, channels, orientation, scan_end = numbers.tolist()
    return Head("jpeg", height, width, channels, 8, orientation, num_scans, scan_end) if channels else None
