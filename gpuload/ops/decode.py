"""Decode: an encoded image file to uint8 pixels.

Meaning  DALI's CPU decoder, which equals libjpeg-turbo (accurate DCT, fancy upsampling) and libpng: the EXIF
         orientation is applied, 16-bit PNG becomes ``rint(x / 257)``, a palette is expanded, transparency is dropped.
GRAY     .299 R + .587 G + .114 B of the RGB pixels, in DALI's and OpenCV's fixed-point form, whatever the kind of file:
         DALI's decoder itself would give the Y plane of a JPEG, and of a PNG something else, rounded down.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from gpuload.errors import DeviceError, SpecError
from gpuload.ops import arguments
from gpuload.ops.base import Draw, Op
from gpuload.spec import Field

CHANNELS = {"RGB": 3, "GRAY": 1}


@dataclass(frozen=True)
class Decode(Op):
    """Decode image files to uint8 HWC images.

    Args:
        mode: ``"RGB"`` (three channels) or ``"GRAY"`` (one).
    """

    mode: str = "RGB"

    codec: ClassVar[bool] = True

    def __post_init__(self) -> None:
        arguments.choice(self, "mode", self.mode, CHANNELS)

    def field_after(self, field: Field) -> Field:
        """Encoded bytes become uint8 ``(None, None, channels)``."""
        if not field.encoded:
            raise SpecError(
                f"{self}: field {field.name!r} has dtype {field.dtype} and shape {field.shape}",
                cause="it is no encoded image file",
                remedy="leave Decode out, or name the field that holds the files with on=",
            )
        return field.with_(dtype=np.dtype(np.uint8), shape=(None, None, CHANNELS[self.mode]), encoded=False, axes="HWC")

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """No array library decodes images; the executors do, with a codec."""
        raise DeviceError(
            f"{self} has no form in {xp.__name__}",
            cause="array libraries do not decode image files",
            remedy='use executor="dali", or the array executor on the CPU',
        )

    def lower(self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str) -> Any:
        """``decoders.image``, with the settings that make the pixels independent of the batch."""
        settings: dict[str, Any] = {"device": "cpu", "jpeg_fancy_upsampling": True}
        if device == "gpu":  # the hardware decoder's pixels differ from the CUDA decoder's, and the batch is split
            settings.update(device="mixed", hw_decoder_load=0.0)
        rgb, gray = dali.types.RGB, dali.types.GRAY
        pixels = dali.fn.decoders.image(x, output_type=rgb, **settings)
        if self.mode == "RGB":
            return pixels
        return dali.fn.color_space_conversion(pixels, image_type=rgb, output_type=gray)
