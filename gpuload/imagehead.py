"""Head of an encoded image: kind, size and orientation from its bytes, and whether it is whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


class HeadError(ValueError):
    """The bytes are no whole JPEG or PNG file; says why."""


@dataclass(frozen=True)
class Head:
    """What the header of an image says; height and width in pixels as displayed, after the EXIF orientation."""

    kind: str  # "jpeg" | "png"
    height: int
    width: int
    channels: int  # as stored: 1, 2, 3 or 4
    bits: int  # per sample
    orientation: int  # EXIF 1 to 8


def read(data: NDArray[Any]) -> Head:
    """Return the head of an encoded image (uint8 ``[num_bytes]``)."""
    raise NotImplementedError
