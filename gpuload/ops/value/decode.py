"""Decode: an encoded image file to uint8 or uint16 pixels.

Meaning  DALI's CPU decoder, which equals libjpeg-turbo (accurate DCT, fancy upsampling) and libpng:
         the EXIF orientation is applied, a palette is expanded, transparency is dropped. White is
         the largest value of the dtype: 16 bits become ``rint(x / 257)`` of uint8, and 8 bits
         ``257 x`` of uint16, so that files of both stand side by side in one scale, and a 16-bit
         file keeps its values in uint16.
GRAY     .299 R + .587 G + .114 B of the RGB pixels, in DALI's and OpenCV's fixed-point form, for
         every kind of file: DALI's decoder itself would give the Y plane of a JPEG, and of a PNG
         something else, rounded down.
RGBA     the same colours, and the alpha of the file behind them, in the same scale; opaque where it
         has none. It runs on the host.
ANY      the channels that the file stores, their numbers not scaled, as DALI and OpenCV call it:
         for measurements. The dtype is that of the file, or one that holds all of its values. It
         runs on the host.
LABELS   the numbers that a PNG stores, gray or with a palette, not scaled: Pillow's modes "L" and
         "P", for masks as those of Pascal VOC. DALI has no such form, so it runs on the host.
Formats  `images.head.FORMATS`. DALI has no codec for GIF and AVIF, so that its executor refuses
         them by name (``executors.dali``).
Limits   are compared with the header of a file, before any codec sees it. A PNG of one colour takes
         1000 times its size as pixels, and a scan of a progressive JPEG a pass over all pixels for
         as little as 20 bytes.
Damage   that the bytes of a file show is refused by every executor. Only a decoder sees that the
         data of a JPEG end early: it is an error of the array executor (`images.decode`), while
         DALI delivers the rest of the image gray.
Region   Where a crop follows, only the region that it uses is decoded: equal to the same cut of the
         whole image. It has two pixels at least along each side: of a 4:2:0 JPEG, a region of the
         first column alone would get other colours than the column has (libjpeg-turbo, in
         nvImageCodec 0.9 and DALI 2.4). On a GPU the whole image is decoded and cut there
         (`REGIONS_ON_GPU`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuload.errors import DeviceError, MissingPackageError, SpecError
from gpuload.images import decode, head, scans
from gpuload.ops import arguments
from gpuload.ops.base import HEADS, Draw, Op, RowError, Sizes
from gpuload.ops.bounds import NVJPEG
from gpuload.ops.traits import Execution, FileCodec, Traits, once
from gpuload.spec import Field

LABELS, RGBA, FILE_NUMBERS = "LABELS", "RGBA", "ANY"
CHANNELS: dict[str, int | None] = {"RGB": 3, "GRAY": 1, RGBA: 4, LABELS: 1, FILE_NUMBERS: None}
DTYPES = ("uint8", "uint16")
NUMBER_DTYPES = (*DTYPES, "int8", "int16", "int32", "uint32", "float16", "float32", "float64")
MOST_CHANNELS = 2**16 - 1  # of a TIFF
MOST_PROBES = 16  # images with alpha that are looked at, until one is transparent
OPAQUE = "opaque"  # the number of these in `Decode._memory`
# nvImageCodec 0.9.0 is reported (its issue 55) to end the process on H100 and B200 where a region
# of a JPEG is decoded on the GPU, and to fail with its error 8 on A100. 0.8.0 is fine, but DALI 2.4
# takes 0.9 alone.
REGIONS_ON_GPU = "whole images are decoded and cut there: nvImageCodec 0.9.0 ends the process at a region of a JPEG"
# In a region of one column of a 4:2:0 JPEG, libjpeg-turbo has no neighbour to make the colours of:
# see Region, above.
LEAST_PIXELS = 2  # of a region along each side, where the image has as many


log = logging.getLogger("gpuload")


@dataclass(frozen=True)
class Decode(Op):
    """Decode image files to HWC images.

    Example:
        ``gl.ops.Decode()``

    Args:
        mode: ``"RGB"`` (three channels), ``"GRAY"`` (one) or ``"RGBA"`` (four; a file without alpha
            is opaque). ``"LABELS"`` (one): the numbers that a PNG stores, with a palette or gray;
            for masks. An image that stores no such numbers is an error. ``"ANY"``: the channels and
            numbers that a file stores, not scaled, for measurements:
            ``Decode("ANY", dtype="float32", channels=1)``.
        dtype: ``"uint8"`` or ``"uint16"``. Files of more bits are rounded to uint8, and those of 8
            bits multiplied by 257 for uint16: 0 is black, and the largest value of the dtype white.
            Labels are not scaled. For ``"ANY"`` any dtype of numbers; a file whose values it does
            not hold is an error.
        channels: of ``"ANY"``: how many all images have; another number is an error. None: as many
            as each has; then a batch is a list.
        orient: True to turn images upright, as their EXIF orientation says. False leaves the pixels
            as they are stored: for boxes and masks that were drawn on these, as torchvision and
            OpenCV's ``IMREAD_IGNORE_ORIENTATION`` see them.
        max_pixels: the largest images that are decoded, 2**28 at most. Decoding takes 6 bytes for
            each pixel in each thread, 12 of 16 bits or a progressive JPEG of four channels, some 20
            of JPEG 2000 and TIFF.
        max_scans: the most scans of a JPEG that is decoded; 2**16 means any number. libjpeg writes
            10 (18 of four channels), GraphicsMagick is tested with 50. One of an image of 2**27
            pixels takes 0.1 s.
        size: height and width of all images, pixels, where they have one size: then a batch is one
            array without being resized. An image of another size is an error. None: any size, and
            without a crop or a resize behind it a batch is a list, also where all sizes are the
            same.
        hw_decoder_load: on a GPU that has a hardware decoder for JPEG: 1 has it decode every JPEG
            that it can, 0 none. Its pixels differ from those of the other decoder. Where the loader
            has images decoded on the host, it says nothing. DALI divides a batch between both for a
            number between 0 and 1, which is refused here because an image's pixels would then
            depend on the rest of its batch.
    """

    mode: str = "RGB"
    dtype: str = field(default="uint8", kw_only=True)
    channels: int | None = field(default=None, kw_only=True)
    orient: bool = field(default=True, kw_only=True)
    max_pixels: int = field(default=2**27, kw_only=True)
    max_scans: int = field(default=50, kw_only=True)
    size: tuple[int, int] | None = field(default=None, kw_only=True)
    hw_decoder_load: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments.choice(self, "mode", self.mode, CHANNELS)
        dtypes = NUMBER_DTYPES if self.mode == FILE_NUMBERS else DTYPES
        arguments.keep(self, dtype=arguments.dtype_name(self, "dtype", self.dtype, dtypes))
        arguments.keep(self, orient=arguments.flag(self, "orient", self.orient))
        if self.channels is not None:
            arguments.keep(self, channels=arguments.whole(self, "channels", self.channels))
            if self.mode != FILE_NUMBERS:
                number = CHANNELS[self.mode]
                raise arguments.refuse(
                    self,
                    "channels",
                    self.channels,
                    f"None: {self.mode} has {number}",
                    'write mode="ANY" for others',
                )
            if self.channels > MOST_CHANNELS:
                raise arguments.refuse(self, "channels", self.channels, f"at most {MOST_CHANNELS}")
        if self.size is not None:
            if not isinstance(self.size, (tuple, list)) or len(self.size) != 2:
                raise arguments.refuse(
                    self, "size", self.size, "height and width, two numbers", "write size=(48, 64)"
                )
            height, width = (arguments.whole(self, "size", side) for side in self.size)
            arguments.keep(self, size=(height, width))
        arguments.keep(
            self, hw_decoder_load=arguments.number(self, "hw_decoder_load", self.hw_decoder_load)
        )
        if self.hw_decoder_load not in (0, 1):
            raise arguments.refuse(
                self, "hw_decoder_load", self.hw_decoder_load, "0 or 1",
                "for a number in between DALI divides each batch between two decoders whose pixels differ",
            )  # fmt: skip
        for name, value, limit in self._limits((head.MAX_PIXELS, scans.MAX_SCANS)):
            arguments.keep(self, **{name: arguments.whole(self, name, value)})
            if value > limit:
                raise arguments.refuse(self, name, value, f"at most {limit}")

    @property
    @once
    def traits(self) -> Traits:
        """It decodes files: regions where images have any size, and some modes on NumPy alone."""
        makes_bytes = self.mode in ("RGB", "GRAY", RGBA) and self.dtype == "uint8"
        covering = None
        if self.size is None:
            covering = self._covering
        return Traits(
            execution=Execution(needs_numpy=self.mode in (LABELS, RGBA, FILE_NUMBERS)),
            codec=FileCodec(
                self._check_heads,
                covering=covering,
                makes_bytes=makes_bytes,
                is_upright=self.orient,
            ),
            bounds={"dali on gpu": NVJPEG},
        )

    def field_after(self, field: Field) -> Field:
        """Encoded bytes become ``(None, None, channels)`` of the dtype, or of ``size``."""
        if not field.encoded:
            raise SpecError(
                f"{self}: the field is {field}",
                cause="it is no encoded image file",
                remedy="leave Decode out (of a recipe: images='HWC'), or name the field that holds the files with on=; "
                f"where its bytes are image files, mark it: source.mark({field.name}='encoded')",
            )
        if self.mode == FILE_NUMBERS:
            num_channels = self.channels
        else:
            num_channels = CHANNELS[self.mode]
        shape = (*(self.size or (None, None)), num_channels)
        return field.with_(dtype=np.dtype(self.dtype), shape=shape, encoded=False, axes="HWC")

    def _covering(self, region: Draw, size: Sizes) -> Draw:
        """Return regions that are not too small."""
        shape = np.maximum(region["shape"], np.minimum(size, LEAST_PIXELS)).astype(np.int32)
        return {"start": np.minimum(region["start"], size - shape).astype(np.int32), "shape": shape}

    def _check_heads(self, heads: NDArray[np.int32]) -> None:
        """Raise ``RowError`` for the first image that is beyond a limit, or of another size than
        ``size``."""
        pixels = heads[:, 0].astype(np.int64) * heads[:, 1]
        fits = self.size is None or bool((heads[:, :2] == self.size).all())
        if (
            fits
            and pixels.max(initial=0) <= self.max_pixels
            and heads[:, 2:].max(initial=0) <= self.max_scans
        ):
            return
        for row, (height, width, *num_scans) in enumerate(heads.tolist()):
            if self.size not in (None, (height, width)):
                raise RowError(
                    row,
                    f"it has {height} x {width} pixels, and {self} is for images of one size",
                    cause="records of several sizes are no array",
                    remedy="write gl.ops.Decode() with gl.ops.Resize(height, width) or a crop behind it",
                )
            for name, limit, number in self._limits((height * width, *num_scans)):
                if number > limit:
                    noun = name.removeprefix("max_")
                    raise RowError(
                        row,
                        f"it has {number} {noun}; at most {limit} are decoded",
                        cause=f"{name} of Decode is {limit}, which bounds the time and memory that one file can take",
                        remedy=f"if you trust the file, gl.ops.Decode({name}={number}); else leave it out with "
                        "source.select(...)",
                    )

    def _limits(self, numbers: Sequence[int]) -> Iterator[tuple[str, int, int]]:
        """Yield each limit: its name, its value, and one of the numbers that are to be compared
        with them."""
        return zip(
            ("max_pixels", "max_scans"), (self.max_pixels, self.max_scans), numbers, strict=False
        )

    def array(self, xp: ModuleType, x: Any, draw: Draw) -> Any:
        """Return the pixels of one file, or of a region of it, by the codec of `images`, which is
        for NumPy alone."""
        if xp is not np:
            raise DeviceError(
                f"{self} has no form in {xp.__name__}",
                cause="only NumPy's arrays are decoded outside DALI",
                remedy='use executor="dali", or device="cpu"',
            )
        region = None
        if "start" in draw:
            (top, left), (height, width) = draw["start"].tolist(), draw["shape"].tolist()
            region = top, left, height, width
        jpeg_head = None
        if HEADS in draw:
            jpeg_head = head.jpeg_head(draw[HEADS])
        return self.decode_file(x, region, jpeg_head)

    def decode_file(
        self,
        x: Any,
        region: decode.Region | None = None,
        image_head: head.Head | None = None,
        *,
        strict: bool = False,
    ) -> NDArray[Any]:
        """Return the pixels of one file, or of a region; ``strict`` as in `images.decode`.

        Args:
            x: the file.
            region: top, left, height and width, pixels; None for the whole image.
            image_head: its head, where that was read and checked before.
            strict: see `images.decode`; then nothing is told of parts that are left out.

        Raises:
            RowError: it is damaged, or beyond a limit.
        """
        kind = ""
        try:
            if image_head is None:
                image_head = head.read(x)
                kind = image_head.kind
                if not strict:
                    self.tell_losses(x, image_head)
                if not self.orient:
                    image_head = head.without_turn(image_head)
                self._check_heads(
                    np.array([(image_head.height, image_head.width, image_head.scans)], np.int32)
                )
            words: dict[str, Any] = {"dtype": self.dtype, "strict": strict, "orient": self.orient}
            pixels = decode.decode(x, image_head, self.mode, region, **words)
        except (head.HeadError, decode.ImageError) as error:
            if isinstance(error, head.UnsupportedError):
                error.file_kind = error.file_kind or kind
            raise head.row_error(0, error) from None
        if self.channels not in (None, pixels.shape[2]):
            form = f"gl.ops.Decode('ANY', dtype={self.dtype!r}, channels={pixels.shape[2]})"
            raise RowError(
                0,
                f"it has {pixels.shape[2]} channels, and {self} is for {self.channels}",
                cause="all images of a batch have one number of channels",
                remedy=f"{form} for files of so many; without channels= each image has as many as its file",
            )
        return pixels

    def tell_losses(self, x: Any, image_head: head.Head) -> None:
        """Log, once for each kind of loss, the parts of an image that this op leaves out: alpha,
        bits, pages."""
        if image_head.kind == "jpeg":
            return
        for word, text, remedy in decode.losses(image_head, self.mode, self.dtype):
            if word in self._memory or (word == "alpha" and self._is_opaque(x, image_head)):
                continue
            token = object()
            # Several threads come here at once; `setdefault` is one step, so that one of them tells
            # it.
            if self._memory.setdefault(word, token) is token:
                log.warning("gl.ops.Decode(%r): %s; remedy: %s", self.mode, text, remedy)

    @property
    def _memory(self) -> dict[str, Any]:
        """The kinds of losses that were told, and how many opaque images were looked at."""
        memory: dict[str, Any] = self.__dict__.setdefault("_losses", {})
        return memory

    def _is_opaque(self, x: Any, image_head: head.Head) -> bool:
        """Return True for an image without transparent pixels, and for every one when so many of
        these were seen."""
        if self._memory.get(OPAQUE, 0) >= MOST_PROBES:
            return True
        try:
            is_opaque = decode.is_opaque(x, image_head)
        except (head.HeadError, decode.ImageError, MissingPackageError):
            return False  # of damage the decoder tells itself
        self._memory[OPAQUE] = self._memory.get(OPAQUE, 0) + is_opaque
        return is_opaque

    def lower(
        self, dali: ModuleType, x: Any, draw: dict[str, Any], *, field: Field, device: str
    ) -> Any:
        """``decoders.image``, or ``image_slice`` of a region, so that the pixels do not depend on
        the batch.

        On a GPU a region is cut from the whole image: see `REGIONS_ON_GPU`.
        """
        # Unless it is asked, DALI makes the colours of a 4:2:0 JPEG in a plainer way on a GPU than
        # on a CPU.
        settings: dict[str, Any] = {"device": "cpu", "jpeg_fancy_upsampling": True}
        if self.dtype == "uint16":
            settings["dtype"] = dali.types.UINT16
        if not self.orient:
            settings["adjust_orientation"] = False
        if device == "gpu":
            # With affine=True each of the codec's threads would keep to a core, beside our own
            # threads there.
            settings.update(device="mixed", affine=False, hw_decoder_load=self.hw_decoder_load)
            if self.hw_decoder_load and self.size is not None:
                settings.update(
                    preallocate_height_hint=self.size[0], preallocate_width_hint=self.size[1]
                )
        rgb, gray = dali.types.RGB, dali.types.GRAY
        if "start" in draw:
            window = {"start": draw["start"], "shape": draw["shape"], "axes": [0, 1]}
        else:
            window = {}
        if window and device == "cpu":
            pixels = dali.fn.decoders.image_slice(x, output_type=rgb, **window, **settings)
        else:
            pixels = dali.fn.decoders.image(x, output_type=rgb, **settings)
            if window:
                pixels = dali.fn.slice(pixels, **window)
        if self.mode == "RGB":
            return pixels
        if self.dtype == "uint16":
            return _gray(dali, pixels)
        return dali.fn.color_space_conversion(pixels, image_type=rgb, output_type=gray)


def suited_to(image_head: head.Head) -> Decode:
    """Return the op that decodes the image of the file with this head: to RGB, or its own
    numbers if it has none."""
    if image_head.sample:
        return Decode(FILE_NUMBERS, dtype=image_head.dtype, channels=image_head.channels)
    return Decode()


def lossless_for(files: Iterable[Any]) -> Decode:
    """Return the op that keeps the bits and the alpha of some files; of other numbers than colours
    the first decides.

    Raises:
        HeadError: a file is no image that can be decoded.
    """
    mode, dtype = "RGB", "uint8"
    for number, file in enumerate(files):
        image_head = head.read(file)
        if image_head.sample and number == 0:
            return suited_to(image_head)
        words = {word for word, *_ in decode.losses(image_head, "RGB", "uint8")}
        if "bits" in words and image_head.kind != "avif":
            dtype = "uint16"
        if "alpha" in words and mode == "RGB" and _shows_alpha(file, image_head):
            mode = "RGBA"
    return Decode(mode, dtype=dtype)


def _shows_alpha(x: Any, image_head: head.Head) -> bool:
    """Return True for an image with transparent pixels, of which RGBA can be made."""
    try:
        return not decode.is_opaque(x, image_head)
    except (head.HeadError, decode.ImageError, MissingPackageError):
        return False


def check_file(x: Any) -> None:
    """Decode the whole image of a file, of numbers of any meaning; raises ``RowError`` if it is
    damaged."""
    try:
        image_head = head.read(x)
    except head.HeadError as error:
        raise head.row_error(0, error) from None
    suited_to(image_head).decode_file(x, strict=True)


def asks_for_hardware(ops: Iterable[Op]) -> bool:
    """Return True if an op asks for the hardware decoder of a GPU."""
    return any(isinstance(op, Decode) and op.hw_decoder_load for op in ops)


def decoder_on_gpu(ops: Iterable[Op]) -> str:
    """Return the decoder of images on a GPU, for a graph's description."""
    if asks_for_hardware(ops):
        return "the hardware decoder for the JPEGs that it takes, nvJPEG for the others, in DALI's mixed decoder"
    return "nvJPEG in DALI's mixed decoder, without the hardware decoder, whose pixels differ"


def _gray(dali: ModuleType, pixels: Any) -> Any:
    """Return RGB of 16 bits as gray: ``color_space_conversion`` takes uint8 alone. The sum fits
    into 32 bits."""
    constant, wide = dali.types.Constant, dali.fn.cast(pixels, dtype=dali.types.UINT32)
    total = constant(1 << 14, dali.types.UINT32)
    for channel, weight in enumerate(decode.GRAY_WEIGHTS):
        total = wide[:, :, channel : channel + 1] * constant(weight, dali.types.UINT32) + total
    return dali.fn.cast(total >> constant(15, dali.types.UINT32), dtype=dali.types.UINT16)
