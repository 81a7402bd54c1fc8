"""The head of an image, the same for every kind, and the bounds that hold for all."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

MAX_PIXELS = 2**28  # 0.8 GB as RGB; OpenCV, with which DALI decodes all but JPEG, ends at 2**30


class HeadError(ValueError):
    """The bytes are no whole image that can be decoded; says why."""


class UnsupportedError(HeadError):
    """The bytes are an image of a kind that is not supported; says which.

    Args:
        kind: the kind, in words: ``"a lossless JPEG"``.
        remedy: another form of `gl.ops.Decode` that decodes it; "" where none does.

    Attributes:
        file_kind: the format of the file, a name in `images.head.FORMATS` or a key of `READERS`
            there; "" for others.
    """

    file_kind = ""

    def __init__(self, kind: str, remedy: str = "") -> None:
        super().__init__(f"not supported: {kind}")
        self.remedy = remedy


@dataclass(frozen=True)
class Head:
    """The contents of an image's header.

    Attributes:
        kind: a name in `images.head.FORMATS`.
        height, width: in pixels as displayed, after the orientation.
        channels: as stored; of an image with a palette 3.
        bits: per sample; 9 to 15 are decoded to 16; of a palette those of its colours.
        orientation: EXIF 1 to 8.
        scans: how often a decoder goes over the pixels, up to `scans.MAX_SCANS`.
        scan_end: the byte where the data of the only scan of a JPEG ends; 0 where codecs do not see
            that they end early.
        form: a property that a codec must know, too: a word of the format's module.
        surplus: the channel that RGB and GRAY leave out: ``"alpha"``, say.
        pages: images of their own in the file, pages or frames, of which the first is decoded. Of a
            GIF 2 stands for any number.
        meaning: tags by which the numbers of a TIFF stand for others.
        sample: the dtype of samples that are no unsigned integers of 8 or 16 bits.
    """

    kind: str
    height: int
    width: int
    channels: int
    bits: int
    orientation: int
    scans: int = 1
    scan_end: int = field(default=0, compare=False)
    form: str = field(default="", compare=False)
    surplus: str = field(default="", compare=False)
    pages: int = field(default=1, compare=False)
    meaning: str = field(default="", compare=False)
    sample: str = field(default="", compare=False)

    @property
    def dtype(self) -> str:
        """The NumPy name of the dtype of the samples that the file stores."""
        if self.sample:
            return self.sample
        return "uint16" if self.bits > 8 else "uint8"

    @property
    def pages_in_words(self) -> str:
        """How many images of their own the file has."""
        if self.kind == "tiff":
            return f"{self.pages} pages"
        return "several frames"

    @property
    def stored_bits(self) -> int:
        """The bits of a sample that the file stores, where `bits` are those of its decoded
        values."""
        if self.form.endswith(" bits"):
            return int(self.form.removesuffix(" bits"))
        return self.bits


def check_size(pixels: int, capacity: int | None = None) -> None:
    """Refuse an image of too many pixels, or of more than its bytes can hold, if that is known."""
    if pixels > MAX_PIXELS:
        raise HeadError(f"it would have {pixels} pixels; at most {MAX_PIXELS} are decoded")
    if capacity is not None and pixels > capacity:
        raise HeadError(
            f"it would have {pixels} pixels; so few bytes cannot hold more than {capacity}"
        )


def upright(
    kind: str,
    height: int,
    width: int,
    channels: int,
    bits: int,
    orientation: int = 1,
    **attributes: Any,
) -> Head:
    """Return the head of an image with its sides as they are stored; ``attributes`` are the others
    of `Head`."""
    if orientation > 4:  # a quarter turn
        height, width = width, height
    return Head(kind, height, width, channels, bits, orientation, **attributes)


def without_turn(head: Head) -> Head:
    """Return the head of the same image without its orientation: its pixels lie as they are
    stored."""
    if head.orientation <= 4:
        return replace(head, orientation=1)
    return replace(head, height=head.width, width=head.height, orientation=1)


def printable_name(name: bytes) -> str:
    """Return the name of a part of a file in printable characters."""
    return name.decode("latin-1").encode("unicode_escape").decode()
