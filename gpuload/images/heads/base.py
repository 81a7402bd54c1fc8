"""The head of an image, the same for every kind, and the bounds that hold for all."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_PIXELS = 2**28  # 0.8 GB as RGB; OpenCV, with which DALI decodes all but JPEG, ends at 2**30


class HeadError(ValueError):
    """The bytes are no whole image that can be decoded; says why."""


@dataclass(frozen=True)
class Head:
    """The contents of an image's header; height and width in pixels as displayed, after the orientation."""

    kind: str  # a name in `images.head.FORMATS`
    height: int
    width: int
    channels: int  # as stored: 1, 2, 3 or 4; of an image with a palette 3
    bits: int  # per sample; more than 8 are decoded to 16; of a palette those of its colours
    orientation: int  # EXIF 1 to 8
    scans: int = 1  # how often a decoder goes over the pixels, up to `scans.MAX_SCANS`
    scan_end: int = field(
        default=0, compare=False
    )  # where the data of the only scan of a JPEG ends; 0 where codecs do not see it
    form: str = field(
        default="", compare=False
    )  # a property that a codec must know, too: a word of the format's module


def check_size(pixels: int, capacity: int | None = None) -> None:
    """Refuse an image of too many pixels, or of more than its bytes can hold, if that is known."""
    if pixels > MAX_PIXELS:
        raise HeadError(f"it would have {pixels} pixels; at most {MAX_PIXELS} are decoded")
    if capacity is not None and pixels > capacity:
        raise HeadError(f"it would have {pixels} pixels; so few bytes cannot hold more than {capacity}")


def upright(
    kind: str,
    height: int,
    width: int,
    channels: int,
    bits: int,
    orientation: int = 1,
    *,
    num_scans: int = 1,
    scan_end: int = 0,
    form: str = "",
) -> Head:
    """Return the head of an image whose sides are given as they are stored."""
    if orientation > 4:  # a quarter turn
        height, width = width, height
    return Head(kind, height, width, channels, bits, orientation, num_scans, scan_end, form)


def printable_name(name: bytes) -> str:
    """Return the name of a part of a file in printable characters."""
    return name.decode("latin-1").encode("unicode_escape").decode()
