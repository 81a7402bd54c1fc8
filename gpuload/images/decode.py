"""Decode: an encoded image to upright pixels, equal to those of DALI's CPU decoder; the importer of
the codecs.

nvImageCodec  the codec that DALI uses, on the CPU (`nvidia.nvimgcodec`, installed with DALI). It
              decodes only the region that is asked for, and turns by the EXIF orientation itself.
              Images of more than 8 bits are decoded at their own depth: at 8 bits the low byte
              would be cut off, where DALI rounds.
Pillow        for machines without the first (macOS, Windows). Only its decoders are used, not its
              readers of files: those pass over damage, warn, and obey settings of the whole
              process. It decodes whole images. Of formats other than JPEG and PNG its readers are
              used, one by name, behind our own reading of the header.
Choice        made once in a process: nvImageCodec if it works, else Pillow. The pixels are the
              same, or Pillow's are refused (`UNLIKE`): of TIFF with a palette, with alpha that was
              multiplied in, or 10 to 14 bits, and of colours of 16 bits in TIFF, PNM and JPEG 2000,
              of which it keeps 8. GIF and AVIF are Pillow's in any case, as are animated WebP, BMP
              of 16 bits for a pixel, gray JPEG 2000 of 9 to 15 bits, without boxes or with alpha,
              and a TIFF that does not say BitsPerSample, which nvImageCodec needs and TIFF does
              not.
Values        of 16 bits become ``rint(x / 257)`` of 8, and 8 become ``257 x`` of 16; 10 to 14 bits
              are moved up to 16. A palette is expanded, transparency and gamma are dropped; CMYK:
              `_ink`.
GRAY          of the RGB pixels, by OpenCV's and DALI's fixed-point weights, for every kind of file.
RGBA          those pixels, and the alpha of the file, by Pillow's decoders.
ANY           the samples that a file stores, not scaled: of PNM by `heads.pnm`, of TIFF by `tiffs`;
              of others the colours at their own depth, and the alpha.
LABELS        the numbers that a PNG stores, by zlib and the core. Of a file that is damaged, or
              interlaced, and without the core, by a codec: without its palette it is a gray image
              of the numbers of its colours.
Threads       any number at once, each with a decoder of its own: two threads in one decoder of
              nvImageCodec 0.9 end the process. Decoders have no threads of their own, so that a
              child of fork can decode too.
Memory        the pixels of nvImageCodec are handed out without a copy. They lie in ordinary memory
              that the array keeps alive. Decoding into memory of ours is not faster: the codec
              copies there from a buffer of its own. So it takes 6 bytes for each pixel, and 12 of
              16 bits; Pillow 7. Values are converted some rows at a time.
Measured      milliseconds for a JPEG of 500 x 375, one thread: 0.64, of a random-resized-crop
              region 0.55; Pillow 1.1, simplejpeg 0.60 (nvImageCodec 0.9, Pillow 13.0, simplejpeg
              1.9).
Short data    Where the data of a scan end early, libjpeg makes the rest of the image gray, and only
              warns. Of a JPEG in one Huffman scan that is an error here. nvImageCodec gets a region
              that ends above the last stored units without its end marker, which makes libjpeg stop
              instead. Otherwise it would then decode twice, so only suspects are read again: those
              that end with a pixel of the gray of missing blocks. Pillow reads such suspects
              with longer data, which must change nothing.
Limits        Of a damaged JPEG the codecs do not see: data that changed and did not become too
              short; less than a unit (8 to 16 pixels a side) that is missing; damage behind a
              region; data that end early before a restart marker, in a progressive file, or in one
              of several scans. The pixels are wrong then, and a region may differ from the cut of
              the whole image by some levels, in DALI likewise. libjpeg and libpng in nvImageCodec
              0.9 write such warnings to stderr: there is no option against it, the functions are
              not exported, and to redirect the descriptor would take it from the whole process.
              Files that `scans` refuses, and those that are read without an end marker and too
              short, cause none. Messages of nvImageCodec itself are switched off, unless the
              program imported it before. OpenCV in it warns of each raw codestream of JPEG 2000,
              which says no colours; OPENCV_LOG_LEVEL=OFF, set before, silences it.
"""

from __future__ import annotations

import io
import logging
import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuload import core, signalsafe
from gpuload.errors import MissingPackageError, SpecError, missing_package
from gpuload.images import tiffs
from gpuload.images.head import FORMATS, Head
from gpuload.images.heads import bmp, jp2, jpeg, pnm, tiff, webp
from gpuload.images.heads.base import UnsupportedError, without_turn
from gpuload.images.heads.png import CHUNK, INDEXED, SAMPLES, check_pixels

Pixels = NDArray[np.uint8]
Region = tuple[int, int, int, int]

MODES = ("RGB", "GRAY", "RGBA", "LABELS", "ANY")

BLOCK_VALUES = 1 << 20  # that are converted at a time; with fewer, Pillow would be slower
GRAY_WEIGHTS = (9798, 19235, 3735)  # .299, .587, .114 in 1 / 32768
VERBOSITY = "PYNVIMGCODEC_VERBOSITY"  # nvImageCodec reads it when it is imported; 0 is silence
PROBE = bytes.fromhex(  # a PNG of 2 x 1 pixels, (1, 2, 3) and (4, 5, 6)
    "89504e470d0a1a0a0000000d49484452000000020000000108020000007b40e8dd0000000f49444154789c636064626661650300"
    "003f001621bad4540000000049454e44ae426082"
)
FILL = 128  # each channel of a block that libjpeg makes up where the data of a scan ends early
# Put in the place of the end of a JPEG. Without an end marker, nvImageCodec refuses a file as soon
# as a block needs more data than there is; libjpeg reads the 8 bytes in advance. Pillow would
# refuse every file, so for it the data are made longer, which changes the pixels only if they were
# short of data.
STRICT_END = np.frombuffer(bytes(8) + b"\xff\xff", np.uint8)
LONGER_END = np.frombuffer(b"\x5a" * 64 + b"\xff\xd9", np.uint8)
DAMAGE_TEXT = "its pixels cannot be decoded: the file is damaged behind its header"
SHORT_TEXT = (
    f"{DAMAGE_TEXT}, most likely because the data of its scan ends before the image is complete"
)
UNIT_ROWS = 16  # of a JPEG with colours of half the rows; programs do not write a quarter
START_OF_SCAN, APP14 = 0xDA, 0xEE
GRAYSCALE, TRUECOLOUR, GRAY_WITH_ALPHA, RGBA = 0, 2, 4, 6  # colour types of a PNG
READERS = {  # the module of each reader of Pillow, and its class
    "webp": ("WebPImagePlugin", "WebPImageFile"),
    "tiff": ("TiffImagePlugin", "TiffImageFile"),
    "bmp": ("BmpImagePlugin", "BmpImageFile"),
    "pnm": ("PpmImagePlugin", "PpmImageFile"),
    "jp2": ("Jpeg2KImagePlugin", "Jpeg2KImageFile"),
    "gif": ("GifImagePlugin", "GifImageFile"),
    "avif": ("AvifImagePlugin", "AvifImageFile"),
}
TURNED = ("webp", "tiff", "avif")  # formats that have an orientation
OF_PILLOW = (
    "default bits",
    webp.ANIMATION,
    jp2.GRAYS,
    bmp.WIDE,
)  # forms that nvImageCodec does not decode
UNLIKE = {  # `Head.form` of files that Pillow reads in another way than DALI
    "palette": "a TIFF with a palette, whose colours have 16 bits,",
    "associated": "a TIFF whose colours were multiplied by its alpha",
    "odd bits": "a TIFF of 10, 12 or 14 bits",
    "one colour": "a BMP of 1 bit with one colour",
}


class ImageError(ValueError):
    """The bytes cannot be decoded; says why."""


def decode(
    data: Pixels,
    head: Head,
    mode: str,
    region: Region | None = None,
    *,
    dtype: str = "uint8",
    strict: bool = False,
    orient: bool = True,
) -> NDArray[Any]:
    """Return the pixels of an encoded image, ``[height, width, channels]``, C order.

    Args:
        data: the file, uint8 ``[num_bytes]``.
        head: the result of `head.read` for it; where it is not turned, ``without_turn`` of that.
        mode: ``"RGB"``, ``"GRAY"``, ``"RGBA"``, ``"LABELS"`` or ``"ANY"``.
        region: top, left, height and width in the image; the result equals the same cut of the
            whole image.
        dtype: ``"uint8"`` or ``"uint16"``; black is 0, and white the largest value. Labels are not
            scaled, nor is ``"ANY"``, which takes any dtype that holds all values of the file's.
        strict: True to look at each JPEG twice, and refuse one with data that end early also if
            that left no trace in the last pixels. Decoding a region may find such damage without
            it.
        orient: False for the pixels as they are stored, else they are turned upright.

    Raises:
        ImageError: the bytes are damaged, or the codec that is there does not decode such a file.
        HeadError: the same; `UnsupportedError` where it is of another kind.
        SpecError: the mode is another one, or the region is empty or reaches beyond the image.
        MissingPackageError: neither nvImageCodec nor Pillow is installed; of other kinds, Pillow or
            tifffile.
    """
    if mode not in MODES:
        raise SpecError(
            f"mode {mode!r}",
            cause=f"images are decoded to one of {MODES}",
            remedy="take one of these",
        )
    if region is not None:
        _check_region(region, head)
    if mode == "LABELS":
        return _labels(data, head, region, dtype, strict, orient)
    if mode == "ANY":
        return _file_numbers(data, head, region, dtype, strict, orient)
    pixels = _colours(data, head, region, dtype, strict, orient)
    if region is None:
        size = (head.height, head.width)
    else:
        size = region[2:]
    if pixels.shape != (*size, 3) or pixels.dtype not in (
        head.dtype,
        dtype,
    ):  # callers trust the size
        raise ImageError(
            f"its pixels are {pixels.dtype} {list(pixels.shape)}, where its header says "
            f"{[*size, 3]}"
        )
    pixels = _as_depth(pixels, dtype)
    if mode == "RGB":
        return pixels
    if mode == "RGBA":
        if head.surplus == "alpha":
            alpha = _alpha(data, head, orient)
        else:
            alpha = None
        opaque = np.iinfo(pixels.dtype).max
        if alpha is None:
            plane = np.full((*size, 1), opaque, pixels.dtype)
        else:
            plane = _as_depth(_cut_region(alpha, region), dtype)
        return np.concatenate([pixels, plane.reshape(*size, 1)], axis=2)
    # The weights add up to 1: where the three channels are equal, gray is any of them.
    if head.channels < 3:
        return pixels[..., :1].copy()
    return gray(pixels)


def losses(head: Head, mode: str, dtype: str) -> Iterator[tuple[str, str, str]]:
    """Yield the losses of decoding an image: a word for the kind of loss, a sentence, and the
    form to write."""
    if head.pages > 1:
        text = f"an image is a {FORMATS[head.kind].title} of {head.pages_in_words}, of which the first alone is decoded"
        yield (
            "pages",
            text,
            f'gl.records(len(paths), lambda numbers: {{"image": [{_reader(head)} for n in numbers]}})',
        )
    if mode == "ANY" and head.meaning:
        text = f"a TIFF says by its tags that numbers stand for others ({head.meaning}), which are given as stored"
        yield (
            "meaning",
            text,
            "take them into account behind the loader, or write the values themselves to files",
        )
    if mode not in ("RGB", "GRAY", "RGBA"):
        return
    if head.surplus == "alpha" and mode != "RGBA":
        if dtype == "uint16":
            form = "gl.ops.Decode('RGBA', dtype='uint16')"
        else:
            form = "gl.ops.Decode('RGBA')"
        yield "alpha", f"an image has transparent pixels, and {mode} leaves their alpha out", form
    elif head.surplus not in ("", "alpha"):
        form = f"gl.ops.Decode('ANY', dtype={head.dtype!r}, channels={head.channels})"
        yield (
            "channels",
            f"an image has {head.surplus} beyond its colours, which {mode} leaves out",
            form,
        )
    is_deep = head.bits > 8 and head.form != "palette" and not head.sample
    if dtype == "uint8" and (is_deep or (head.kind == "avif" and head.form)):
        if head.form.endswith(" bits") and head.form[0].isdigit():
            bits = head.form
        else:
            bits = "16 bits"
        form = f"gl.ops.Decode({mode!r}, dtype='uint16')".replace("'RGB', ", "")
        if head.kind == "avif":
            form = 'gl.records(len(paths), lambda numbers: {"image": [imagecodecs.imread(paths[n]) for n in numbers]})'
        yield "bits", f"an image has {bits} for a sample, which are rounded to the 8 of uint8", form


def _reader(head: Head) -> str:
    """Return the call that reads all pages or frames of a file, which is ``paths[n]``, by another
    library."""
    if head.kind == "tiff":
        return "tifffile.imread(paths[n])"
    frames = "PIL.ImageSequence.Iterator(PIL.Image.open(paths[n]))"
    return f'numpy.stack([frame.convert("RGB") for frame in {frames}])'


def is_opaque(data: Pixels, head: Head) -> bool:
    """Return True if no pixel of an image with alpha is transparent."""
    alpha = _alpha(data, head, orient=True)
    return bool((alpha == np.iinfo(alpha.dtype).max).all())


def _colours(
    data: Pixels, head: Head, region: Region | None, dtype: str, strict: bool, orient: bool
) -> NDArray[Any]:
    """Return an image as RGB, of uint16 where the head says so, else of uint8 or of the dtype."""
    if head.form == pnm.SAMPLES:
        return _cut_region(_scaled_samples(data, head, dtype), region)
    if head.form == tiff.RARE:
        layout = tiff.layout(data.data)
        tiffs.check_colours(layout, head)
        return _cut_region(tiffs.colours(_tiff_samples(data, head, orient), layout), region)
    if head.form == jpeg.STRAY_BYTES:
        clean = np.frombuffer(jpeg.without_stray_bytes(data.data), np.uint8)
        if head.scan_end:
            moved_end = head.scan_end - (len(data) - len(clean))
        else:
            moved_end = 0
        data, head = clean, replace(head, scan_end=moved_end, form="")
    elif head.form == webp.PLAIN or (
        head.kind == "tiff" and tiff.layout(data.data).orientation != 1
    ):
        if head.kind == "webp":
            clean_of = webp.without_metadata
        else:
            clean_of = tiff.without_orientation
        clean = np.frombuffer(clean_of(data.data), np.uint8)
        if head.form == webp.PLAIN:
            form = ""
        else:
            form = head.form
        clean_head = replace(without_turn(head), form=form)
        return _cut_region(
            _upright(_colours(clean, clean_head, None, dtype, strict, orient=False), head), region
        )
    if head.kind == "jp2" and head.form.endswith(" bits"):
        return _odd_jp2(data, head, region, dtype)
    is_of_codec = (
        FORMATS[head.kind].in_dali
        and head.form not in OF_PILLOW
        and not head.form.endswith(" bits")
    )
    is_of_codec = is_of_codec or head.form == "odd bits"
    if is_of_codec:
        codec = _process_codec()
    else:
        codec = _of_pillow(FORMATS[head.kind].title)
    if head.form.endswith(" bits") and head.kind == "avif" and dtype != "uint8":
        raise UnsupportedError(
            f"an AVIF of {head.form} to {dtype}", "gl.ops.Decode() rounds it to uint8"
        )
    return codec.decode(data, head, region, dtype, strict, orient)


def _odd_jp2(data: Pixels, head: Head, region: Region | None, dtype: str) -> NDArray[Any]:
    """Return colours of a JPEG 2000 of 9 to 15 bits, moved up to 16."""
    if head.sample:
        form = f"gl.ops.Decode('ANY', dtype={head.dtype!r}) keeps its numbers"
        raise UnsupportedError("a JPEG 2000 of signed samples as an image", form)
    if head.channels == 1:
        return _of_pillow("JPEG 2000").decode(_codestream(data), head, region, dtype)
    return _process_codec().decode(data, head, region, dtype) << np.uint16(16 - head.stored_bits)


def _signed_jp2(data: Pixels, head: Head) -> NDArray[Any]:
    """Return the numbers of a signed gray JPEG 2000: Pillow moves them up, so that the least is
    0."""
    image = _of_pillow("JPEG 2000").take(_codestream(data), head, np.asarray, orient=False)
    width = 8 * image.dtype.itemsize
    values = image.astype(np.int32) - (1 << (width - 1))
    return (values >> (width - head.stored_bits))[..., None].astype(head.dtype)


def _codestream(data: Pixels) -> Pixels:
    return np.frombuffer(jp2.codestream(data.data), np.uint8)


def _file_numbers(
    data: Pixels, head: Head, region: Region | None, dtype: str, strict: bool, orient: bool
) -> NDArray[Any]:
    """Return the channels that a file stores, their numbers not scaled; the colours of a palette
    are looked up."""
    if not np.can_cast(head.dtype, dtype, "safe"):
        raise UnsupportedError(
            f"values of {head.dtype} as {dtype}", f"gl.ops.Decode('ANY', dtype={head.dtype!r})"
        )
    if head.kind == "pnm":
        values = pnm.samples(data.data)[0]
    elif head.kind == "jp2" and head.sample:
        values = _signed_jp2(data, head)
    elif head.kind == "tiff" and not _shows_samples(data, head):
        values = _tiff_samples(data, head, orient)
    else:
        values = _stored_colours(data, head, strict, orient)
    return np.ascontiguousarray(_cut_region(values, region), dtype)


def _shows_samples(data: Pixels, head: Head) -> bool:
    """Return True for a TIFF that is decoded to its samples, or to the colours of its palette."""
    layout = tiff.layout(data.data)
    are_numbers = layout.photometric == tiff.INDEXED or (
        layout.photometric != tiff.WHITE_IS_0 and layout.bits >= 8
    )
    return head.form in ("", "palette") and not head.surplus and are_numbers


def _stored_colours(data: Pixels, head: Head, strict: bool, orient: bool) -> NDArray[Any]:
    """Return gray or the colours of an image, and its alpha behind them, as they are stored."""
    if head.kind == "png" and head.bits < 8 and int(data[25]) == GRAYSCALE:
        return _labels(data, head, None, "uint8", strict, orient)
    if head.kind == "jpeg" and head.channels == 4:
        raise UnsupportedError(
            "the four channels of a CMYK JPEG as they are stored", "gl.ops.Decode() makes RGB of it"
        )
    if head.kind == "avif" and head.form:
        raise UnsupportedError(
            f"an AVIF of {head.form} as it is stored", "gl.ops.Decode() rounds it to uint8"
        )
    values = _colours(data, head, None, head.dtype, strict, orient)
    if head.channels < 3:
        values = values[..., :1]
    if head.kind == "jp2" and head.stored_bits < head.bits:
        values = values >> np.uint16(head.bits - head.stored_bits)
    stores_alpha = head.surplus == "alpha" and (
        head.kind != "png" or int(data[25]) in (INDEXED, GRAY_WITH_ALPHA, RGBA)
    )
    if stores_alpha:
        values = np.concatenate(
            [values, _as_depth(_alpha(data, head, orient), head.dtype)[..., None]], axis=2
        )
    return values


def _scaled_samples(data: Pixels, head: Head, dtype: str) -> NDArray[Any]:
    """Return a PNM as RGB of a dtype."""
    if head.sample:
        raise UnsupportedError(
            "a PFM, whose samples are float32, as an image", "gl.ops.Decode('ANY', dtype='float32')"
        )
    num_colours = pnm.num_colours(data.data)
    if not num_colours:
        kind = f"a PAM of {head.channels} channels of type {pnm.tuple_type(data.data) or 'unknown'} as an image"
        raise UnsupportedError(kind, f"gl.ops.Decode('ANY', dtype={head.dtype!r})")
    values, largest = pnm.samples(data.data)
    values = _to_white(values[..., :num_colours], largest, dtype)
    if data[1] in pnm.BITS:  # where 1 is black
        values = np.iinfo(dtype).max - values
    if num_colours == 1:
        return np.repeat(values, 3, axis=2)
    return values


def _to_white(values: NDArray[Any], largest: int, dtype: str) -> NDArray[Any]:
    """Return numbers of which ``largest`` is white as numbers of a dtype, of which the largest is white."""
    return np.rint(values.astype(np.float64) * np.iinfo(dtype).max / largest).astype(dtype)


def _tiff_samples(data: Pixels, head: Head, orient: bool) -> NDArray[Any]:
    """Return the samples of a TIFF in the order of the head, or the colours of its palette."""
    layout = tiff.layout(data.data)
    if layout.palette is not None:
        numbers = tiffs.from_tifffile(
            np.ascontiguousarray(data), layout, replace(head, bits=layout.bits)
        )
        return _upright(layout.palette[numbers[..., 0]], head)
    if tiffs.is_of_pillow(layout, head):
        pillow = _of_pillow("TIFF")
        return pillow.take(data, head, lambda image: tiffs.from_pillow(image, layout, head), orient)
    return _upright(tiffs.from_tifffile(np.ascontiguousarray(data), layout, head), head)


def _alpha(data: Pixels, head: Head, orient: bool) -> NDArray[Any]:
    """Return the transparency of an image that has one, ``[height, width]``, uint8 or uint16; 0 is
    transparent."""
    if head.kind == "pnm":
        values, largest = pnm.samples(data.data)
        return _to_white(values[..., -1], largest, head.dtype)
    pillow = _of_pillow(FORMATS[head.kind].title)
    if head.kind == "png":
        return pillow.png_alpha(np.ascontiguousarray(data), head)
    if head.kind == "tiff":
        layout = tiff.layout(data.data)
        tiffs.check_colours(layout, head)
        return tiffs.scaled(_tiff_samples(data, head, orient)[..., -1], layout)
    if head.bits > 8:
        raise UnsupportedError(f"{FORMATS[head.kind].title} of 16 bits with alpha")
    return pillow.take(data, head, lambda image: np.array(image.convert("RGBA"))[..., 3], orient)


def _upright(pixels: NDArray[Any], head: Head) -> NDArray[Any]:
    """Return pixels that lie as they are stored in the order of the head."""
    if head.orientation == 1:
        return pixels
    result = np.empty((head.height, head.width, pixels.shape[2]), pixels.dtype)
    _to_stored_order(result, head.orientation)[:] = pixels
    return result


def _cut_region(pixels: NDArray[Any], region: Region | None) -> NDArray[Any]:
    """Return a region of an image; a copy, for a view would keep the whole image in memory."""
    if region is None:
        return pixels
    top, left, height, width = region
    return pixels[top : top + height, left : left + width].copy()


def _as_depth(pixels: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return uint8 or uint16 as one of these, scaled."""
    if pixels.dtype == dtype:
        return pixels
    convert = _sixteen
    if dtype == "uint8":
        convert = _eight
    return _convert(pixels, convert, np.dtype(dtype))


def _labels(
    data: Pixels, head: Head, region: Region | None, dtype: str, strict: bool, orient: bool
) -> NDArray[Any]:
    """Return the numbers that a PNG stores for its pixels, not scaled; the errors are those of ``decode``."""
    if head.kind != "png" or (int(data[25]) not in (GRAYSCALE, INDEXED)):
        reason = "labels of a file with no number for each pixel: they are stored in PNG files, gray or with a palette"
        # Decode('ANY') would look up the colours of a palette.
        may_have_palette = head.kind in ("bmp", "gif") or head.form == "palette"
        form = f"gl.ops.Decode('ANY', dtype={head.dtype!r}) keeps the numbers of other files"
        remedy = form
        if may_have_palette:
            remedy = ""
        error = UnsupportedError(reason, remedy)
        if head.kind == "bmp":
            error.file_kind = bmp.BY_PILLOW
        else:
            error.file_kind = ""
        raise error
    if head.bits > 8 and dtype == "uint8":
        raise UnsupportedError(
            "labels of 16 bits as uint8", "gl.ops.Decode('LABELS', dtype='uint16')"
        )
    if (numbers := _stored_numbers(data, head)) is not None:
        return np.ascontiguousarray(_cut_region(_upright(numbers, head), region), dtype)
    if int(data[25]) == INDEXED:
        data, head = _without_palette(data), replace(head, channels=1)
    depth = "uint8"
    if head.bits > 8:
        depth = "uint16"
    pixels = decode(data, head, "GRAY", region, dtype=depth, strict=strict, orient=orient)
    if head.bits < 8:  # a codec makes the largest number white
        pixels = pixels // (255 // (2**head.bits - 1))
    return pixels.astype(dtype, copy=False)


def _stored_numbers(data: Pixels, head: Head) -> NDArray[Any] | None:
    """Return the number that a PNG stores for each pixel, as it is stored; None where a codec has
    to look at the file.

    A codec, which makes colours of them, takes four times as long (1.4 and 0.35 ms for 500 x 375
    numbers of 8 bits).
    """
    if core.native is None or data[28] != 0:  # interlaced
        return None
    height, width = head.height, head.width
    if head.orientation > 4:  # these are of the image as it is turned upright
        height, width = width, height
    row_bytes, inflater = -(-width * head.bits // 8), zlib.decompressobj()
    num_bytes = height * (1 + row_bytes)
    try:
        raw = inflater.decompress(b"".join(_parts(data.data, has_palette=False)[0]), num_bytes + 1)
    except (ImageError, zlib.error):
        return None
    if len(raw) != num_bytes or not inflater.eof or inflater.unused_data:
        return None
    rows = np.empty((height, row_bytes), np.uint8)
    if not core.native.unfilter(np.frombuffer(raw, np.uint8), max(head.bits // 8, 1), rows):
        return None
    if head.bits == 16:
        return rows.view(">u2").astype(np.uint16)[..., None]
    if head.bits < 8:
        shifts = np.arange(
            8 - head.bits, -1, -head.bits, dtype=np.uint8
        )  # the first pixel has the highest bits
        rows = (rows[..., None] >> shifts & np.uint8(2**head.bits - 1)).reshape(height, -1)[
            :, :width
        ]
    return rows[..., None]


def _without_palette(data: Pixels) -> Pixels:
    """Return a PNG with a palette as the gray one that stores the same numbers, with its
    orientation."""
    view, place = data.data, 33
    header = b"IHDR" + bytes(view[16:25]) + bytes([GRAYSCALE]) + bytes(view[26:29])
    parts = [bytes(view[:12]), header, zlib.crc32(header).to_bytes(4, "big")]
    name = b""
    while name != b"IEND":
        length, name = CHUNK.unpack_from(view, place)
        end = place + 12 + length
        if name in (b"IDAT", b"IEND", b"eXIf"):
            parts.append(bytes(view[place:end]))
        place = end
    return np.frombuffer(b"".join(parts), np.uint8)


def codec() -> str | None:
    """Return the codec that decodes images in this process, with its version; None where none is
    installed."""
    try:
        return _process_codec().name
    except MissingPackageError:
        return None


def library_folder() -> str | None:
    """Return the folder of the package nvImageCodec; None where another codec decodes images in
    this process."""
    try:
        codec = _process_codec()
    except MissingPackageError:
        return None
    if isinstance(codec, _NvImageCodec):
        return codec.folder
    return None


def gray(pixels: NDArray[Any]) -> NDArray[Any]:
    """Return an RGB image, uint8 or uint16, as one channel."""
    result = np.empty((*pixels.shape[:2], 1), pixels.dtype)
    for rows in _blocks(pixels):
        total: NDArray[np.uint32] = np.full(pixels[rows].shape[:2], 1 << 14, np.uint32)
        part = np.empty_like(total)  # fresh memory for each channel would take twice as long
        for channel, weight in enumerate(GRAY_WEIGHTS):
            total += np.multiply(pixels[rows, :, channel], weight, out=part, dtype=np.uint32)
        result[rows, :, 0] = total >> np.uint32(15)
    return result


def _check_region(region: Region, head: Head) -> None:
    top, left, height, width = region
    inside = 0 <= top <= head.height - height and 0 <= left <= head.width - width
    if not (inside and height > 0 and width > 0):
        raise SpecError(
            f"region of {height} x {width} pixels at {top}, {left} of an image of {head.height} x "
            f"{head.width}",
            cause="it is empty, or reaches beyond the image",
            remedy="make the region of the size in the head of the image, after its EXIF "
            "orientation",
        )


class _Codec(Protocol):
    name: str

    def decode(
        self,
        data: Pixels,
        head: Head,
        region: Region | None,
        dtype: str,
        strict: bool = False,
        orient: bool = True,
    ) -> NDArray[Any]:
        """Return the pixels as RGB, upright, in C order, writeable; ImageError where the file is
        damaged.

        They have the dtype, or are uint16 where the head says more than 8 bits, else uint8.
        """


@cache
def _process_codec() -> _Codec:
    """Return the codec of this process."""
    try:
        return _nvimagecodec()
    except ImportError:
        pass
    try:
        return _pillow()
    except ImportError as error:
        raise missing_package(
            "pillow", needed_for="decoding images without DALI", extra="images", error=error
        ) from None


def _of_pillow(title: str) -> _Pillow:
    """Return the codec of a format that nvImageCodec does not decode."""
    try:
        return _pillow()
    except ImportError as error:
        raise missing_package(
            "pillow", needed_for=f"decoding {title} files", extra="images", error=error
        ) from None


class _NvImageCodec:
    """The CPU part of nvImageCodec."""

    def __init__(self, library: ModuleType) -> None:
        self.name = f"nvimgcodec {library.__version__}"
        self.folder = os.path.dirname(str(library.__file__))
        self._library = library
        self._params = {  # RGB; of uint8 or of its own depth, and by the EXIF orientation or as it is stored
            (is_deep, orient): library.DecodeParams(
                apply_exif_orientation=orient, allow_any_depth=is_deep
            )
            for is_deep in (False, True)
            for orient in (False, True)
        }
        self._of_thread = threading.local()

    def decode(
        self,
        data: Pixels,
        head: Head,
        region: Region | None,
        dtype: str,
        strict: bool = False,
        orient: bool = True,
    ) -> NDArray[Any]:
        if not head.scan_end:
            return self._decode(data, head, region, orient)
        endless = np.concatenate([data[: head.scan_end], STRICT_END])
        if not _reaches_the_end(region, head):
            # The end is not needed: this is as fast.
            return self._decode(endless, head, region, orient, has_end=False)
        pixels = self._decode(data, head, region, orient)
        filler = FILL if head.channels < 4 else FILL // 2
        if strict or _is_level(_to_stored_order(pixels, head.orientation)[-1, -1], filler):
            again = self._decode(endless, head, region, orient, has_end=False)
            if head.channels < 4 and not np.array_equal(
                again, pixels
            ):  # of four, OpenCV makes other colours
                raise ImageError(SHORT_TEXT)
        return pixels

    def _decode(
        self, data: Pixels, head: Head, region: Region | None, orient: bool, has_end: bool = True
    ) -> NDArray[Any]:
        library, params = self._library, self._params[head.bits > 8, orient]
        try:
            stream = library.CodeStream(np.ascontiguousarray(data))
            if region is not None:
                top, left, height, width = region
                stream = stream.get_sub_code_stream(
                    0, library.Region(top, left, top + height, left + width)
                )
            image = self._decoder().decode(stream, params=params)
        except RuntimeError as error:
            signalsafe.pass_on(error)
            raise ImageError(f"nvImageCodec cannot read it: {error}") from None
        if image is None:
            cause = SHORT_TEXT
            if has_end:
                cause = DAMAGE_TEXT
            raise ImageError(cause)
        return np.asarray(image)

    def _decoder(self) -> Any:
        """Return the decoder of this thread in this process; one is made in 0.02 ms."""
        # The process, too: a child of fork has this thread's decoder, with threads and locks of its
        # parent.
        local, process = self._of_thread, os.getpid()
        if getattr(local, "process", None) != process:
            library = self._library
            local.decoder = library.Decoder(
                device_id=library.NVIMGCODEC_DEVICE_CPU_ONLY,  # the default asks CUDA, and fails without a driver
                max_num_cpu_threads=1,
                backends=[library.Backend(library.BackendKind.CPU_ONLY)],
            )
            local.process = process
        return local.decoder


@cache
def _nvimagecodec() -> _NvImageCodec:
    """Return the first codec; ImportError where it is not installed or does not work."""
    if VERBOSITY in os.environ:
        silence = {}
    else:
        silence = {VERBOSITY: "0"}
    # Set for the import alone, and taken away again below: the user's own programs read this
    # variable, too.
    os.environ.update(silence)
    try:
        codec = _NvImageCodec(signalsafe.import_package("nvidia.nvimgcodec"))
        pixel = codec.decode(
            np.frombuffer(PROBE, np.uint8), Head("png", 1, 2, 3, 8, 1), (0, 1, 1, 1), "uint8"
        ).tolist()
        if pixel != [[[4, 5, 6]]]:
            raise ImageError(f"a pixel (4, 5, 6) is decoded to {pixel}")
    except ModuleNotFoundError:
        raise
    except (
        ImportError,
        AttributeError,
        TypeError,
        ValueError,
    ) as error:  # another version, or without its parts
        logging.getLogger("gpuload").warning(
            "nvidia.nvimgcodec is installed and does not work: %s", error
        )
        raise ImportError(str(error)) from error
    finally:
        for name in silence:
            os.environ.pop(name, None)
    return codec


class _Pillow:
    """The decoders of Pillow."""

    def __init__(self, library: ModuleType) -> None:
        self.name = f"Pillow {library.__version__}"
        self._library = library

    def decode(
        self,
        data: Pixels,
        head: Head,
        region: Region | None,
        dtype: str,
        strict: bool = False,
        orient: bool = True,
    ) -> NDArray[Any]:
        if head.kind in READERS:
            self._check_kind(head)
            return _cut_region(
                self.take(data, head, lambda image: self._colours(image, head), orient), region
            )
        data = np.ascontiguousarray(data)
        return _cut_region(
            self._call_pillow(lambda: self._decode(data, head, dtype, strict)), region
        )

    def take(
        self, data: Pixels, head: Head, convert: Callable[[Any], NDArray[Any]], orient: bool
    ) -> NDArray[Any]:
        """Return the result of a function for an image, as Pillow's reader of its format opens it,
        upright or as stored."""
        return self._call_pillow(
            lambda: self._read(np.ascontiguousarray(data), head, convert, orient)
        )

    def _call_pillow(self, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """Return the result of a function; an exception of Pillow becomes ``ImageError``."""
        try:
            return make()
        except (ImageError, UnsupportedError, MemoryError, SpecError, MissingPackageError):
            raise
        except (ValueError, OSError) as error:
            signalsafe.pass_on(error)
            raise ImageError(f"{DAMAGE_TEXT} ({error})") from None

    def _decode(self, data: Pixels, head: Head, dtype: str, strict: bool) -> NDArray[Any]:
        """Return a JPEG or PNG, by the decoders alone."""
        depth = dtype
        if head.bits <= 8:
            depth = "uint8"
        pixels = np.empty((head.height, head.width, 3), depth)
        stored_order = _to_stored_order(pixels, head.orientation)
        if head.kind == "jpeg":
            self._jpeg(data, head, stored_order, strict)
        else:
            self._png(data, head, stored_order)
        return pixels

    def _check_kind(self, head: Head) -> None:
        if head.form in UNLIKE or (head.bits > 8 and head.channels > 1):
            form = UNLIKE.get(head.form, "colours of more than 8 bits")
            raise ImageError(
                f"Pillow does not decode {form} as DALI does; nvImageCodec does, which comes with "
                "DALI"
            )

    def _read(
        self, data: Pixels, head: Head, convert: Callable[[Any], NDArray[Any]], orient: bool
    ) -> NDArray[Any]:
        """Return a part of an image of another format, by its reader, which may raise anything for
        a damaged file."""
        files = signalsafe.import_package("PIL.ImageFile")
        if files.LOAD_TRUNCATED_IMAGES:
            raise SpecError(
                "PIL.ImageFile.LOAD_TRUNCATED_IMAGES is True",
                cause="Pillow makes up the rest of damaged images then, and says nothing",
                remedy="set it to False; on_error= of the loader decides about damaged images",
            )
        reader = self._reader(head.kind)
        try:
            with reader(io.BytesIO(data.data)) as image:
                if (image.height, image.width) not in (
                    (head.height, head.width),
                    (head.width, head.height),
                ):
                    raise ImageError(
                        f"Pillow says {image.height} x {image.width} pixels, its header others"
                    )
                if head.kind == "tiff" and not orient:  # Pillow turns it, so it is turned back
                    turn_back = int(image.tag_v2.get(tiff.ORIENTATION, 1))
                    return np.ascontiguousarray(_to_stored_order(convert(image), turn_back))
                if head.kind not in TURNED or not orient:
                    return convert(image)
                turn = signalsafe.import_package("PIL.ImageOps").exif_transpose
                image.load()  # a TIFF is turned by that alone
                return convert(turn(image))
        except self._library.DecompressionBombError as error:
            raise ImageError(
                f"Pillow refuses it ({error}); PIL.Image.MAX_IMAGE_PIXELS is the limit"
            ) from None
        except (
            SyntaxError,
            EOFError,
            LookupError,
            TypeError,
            AttributeError,
            RuntimeError,
            struct.error,
        ) as error:
            signalsafe.pass_on(error)
            raise ImageError(f"{DAMAGE_TEXT} ({error})") from None

    def _reader(self, kind: str) -> Callable[[io.BytesIO], Any]:
        """Return the reader of a format, which an old Pillow may not have, or not with its
        library."""
        module, name = READERS[kind]
        try:
            plugin = signalsafe.import_package(f"PIL.{module}")
        except ImportError:
            plugin = None
        if plugin is None or not getattr(plugin, "SUPPORTED", True):
            raise MissingPackageError(
                f"{self.name} does not read {FORMATS[kind].title}",
                cause="it is too old (AVIF came with 11.3), or was built without the library for "
                "it",
                remedy="pip install --upgrade pillow",
            )
        reader: Callable[[io.BytesIO], Any] = getattr(plugin, name)
        return reader

    def _colours(self, image: Any, head: Head) -> NDArray[Any]:
        """Return an image that Pillow has read as RGB, of 16 bits if the head says so."""
        if head.bits > 8:
            return _three(np.asarray(image).astype(np.uint16))
        if head.form == "CMYK":
            return _ink(np.asarray(image), inverted=False, orientation=1)
        return np.array(image.convert("RGB"))

    def _jpeg(self, data: Pixels, head: Head, out: Pixels, strict: bool) -> None:
        mode = {1: "L", 3: "RGB", 4: "CMYK"}[head.channels]
        inverted = head.channels == 4 and (head.orientation != 1 or _has_adobe_segment(data))
        for rows, planes in self._bands(out, mode, data, "jpeg", mode, ""):
            if head.channels == 4:
                out[rows] = _ink(planes, inverted, head.orientation)
            else:
                out[rows] = _three(planes)
        if head.scan_end and (strict or _is_level(planes[-1, -1], FILL)):
            longer = np.concatenate([data[: head.scan_end], LONGER_END])
            bands, longer_bands = (
                self._bands(out, mode, file_bytes, "jpeg", mode, "")
                for file_bytes in (data, longer)
            )
            if not all(
                np.array_equal(planes, again)
                for (_, planes), (_, again) in zip(bands, longer_bands, strict=True)
            ):
                raise ImageError(SHORT_TEXT)

    def _png(self, data: Pixels, head: Head, out: NDArray[Any]) -> None:
        bits, colour, interlace = int(data[24]), int(data[25]), int(data[28])
        parts, palette = _parts(data.data, has_palette=colour == INDEXED)
        check_pixels(
            parts, out.shape[0], out.shape[1], SAMPLES[colour] * bits, interlace
        )  # Pillow does not
        stream = b"".join(parts)

        def fill(mode: str, order: str, convert: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
            for rows, values in self._bands(out, mode, stream, "zip", order, interlace):
                out[rows] = convert(values)

        if colour == INDEXED or bits < 8:
            colours: NDArray[Any] = _palette_colours(palette, bits)
            fill(
                "P",
                f"P;{bits}" if bits < 8 else "P",
                lambda values: np.take(colours, values, axis=0),
            )
        elif bits == 8:
            fill(*2 * ({0: "L", 2: "RGB", 4: "LA", 6: "RGBA"}[colour],), _three)
        # Pillow keeps 8 bits of 16, the high or the low byte, so colours are read twice; gray with
        # alpha are 4 bytes.
        elif colour == GRAYSCALE:
            fill("I;16", "I;16B", lambda values: _three(_of(values, out.dtype)))
        elif colour == GRAY_WITH_ALPHA:
            fill("RGBA", "RGBA", lambda values: _three(_of(values.view(">u2"), out.dtype)))
        else:
            if colour == TRUECOLOUR:
                mode = "RGB"
            else:
                mode = "RGBA"
            fill(mode, f"{mode};16B", _three)
            for rows, low in self._bands(out, mode, stream, "zip", f"{mode};16L", interlace):
                out[rows] = _of(
                    out[rows].astype(np.uint16) << np.uint16(8) | _three(low), out.dtype
                )

    def png_alpha(self, data: Pixels, head: Head) -> NDArray[Any]:
        """Return the transparency of a PNG, upright, uint8, or uint16 where its samples have 16
        bits."""
        return self._call_pillow(lambda: self._png_alpha(data, head))

    def _png_alpha(self, data: Pixels, head: Head) -> NDArray[Any]:
        bits, colour, interlace = int(data[24]), int(data[25]), int(data[28])
        parts, _ = _parts(data.data, has_palette=False)
        stream = b"".join(parts)
        depth = "uint8"
        if bits > 8:
            depth = "uint16"
        result = np.empty((head.height, head.width), depth)
        out = _to_stored_order(result[..., None], head.orientation)[..., 0]

        def fill(mode: str, order: str, convert: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
            for rows, values in self._bands(out, mode, stream, "zip", order, interlace):
                out[rows] = convert(values)

        if colour in (GRAY_WITH_ALPHA, RGBA) and bits == 8:
            fill(
                *2 * ("LA" if colour == GRAY_WITH_ALPHA else "RGBA",),
                lambda values: values[..., -1],
            )
        elif colour == GRAY_WITH_ALPHA:
            fill("RGBA", "RGBA", lambda values: values.view(">u2")[..., 1])
        elif colour == RGBA:
            fill("RGBA", "RGBA;16B", lambda values: values[..., 3])
            for rows, low in self._bands(out, "RGBA", stream, "zip", "RGBA;16L", interlace):
                out[rows] = out[rows] << np.uint16(8) | low[..., 3]
        else:
            key = _chunk(data.data, b"tRNS")
            opaque = np.iinfo(out.dtype).max
            if colour == INDEXED:
                table = np.full(256, 255, np.uint8)
                table[: len(key)] = np.frombuffer(key, np.uint8)[:256]
                order = "P"
                if bits < 8:
                    order = f"P;{bits}"
                fill("P", order, lambda values: np.take(table, values))
            else:
                num_numbers = 3
                if colour == GRAYSCALE:
                    num_numbers = 1
                numbers = np.frombuffer(key, ">u2")[:num_numbers]
                self._hide(data, head, numbers, out, opaque)
        return result

    def _hide(
        self, data: Pixels, head: Head, key: NDArray[Any], out: NDArray[Any], opaque: int
    ) -> None:
        """Write 0 for the pixels of the one transparent colour of a PNG, else ``opaque``."""
        depth = "uint16" if head.bits > 8 else "uint8"
        pixels = self._decode(data, without_turn(head), depth, strict=False)
        if head.bits < 8:
            step = 255 // (2**head.bits - 1)
        else:
            step = 1
        matches = (pixels[..., : len(key)] == key * step).all(axis=2)
        out[:] = np.where(matches, 0, opaque)

    def _bands(
        self, out: Pixels, mode: str, data: Any, *decoder: Any
    ) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Give the rows of an image as arrays, some at a time: as one array they would be copied
        twice."""
        height, width = out.shape[:2]
        image = self._library.frombytes(mode, (width, height), data, *decoder)
        for rows in _blocks(out):
            yield rows, np.asarray(image.crop((0, rows.start, width, rows.stop)))


@cache
def _pillow() -> _Pillow:
    """Return the second codec; ImportError where it is not installed."""
    return _Pillow(signalsafe.import_package("PIL.Image"))


def _blocks(pixels: NDArray[Any]) -> Iterator[slice]:
    """Give the rows of an image, some at a time."""
    step = max(1, BLOCK_VALUES * len(pixels) // max(pixels.size, 1))
    for begin in range(0, len(pixels), step):
        yield slice(begin, min(begin + step, len(pixels)))


def _is_level(pixel: NDArray[Any], level: int) -> bool:
    """Return True if all values of a pixel are at a level, give or take the rounding of a
    conversion."""
    return all(abs(value - level) <= 1 for value in pixel.ravel().tolist())


def _three(pixels: NDArray[Any]) -> NDArray[Any]:
    """Return the colours of an image of 1 to 4 channels, the last of 2 or 4 being transparency."""
    if pixels.ndim == 3 and pixels.shape[2] > 2:
        return pixels[..., :3]
    return np.repeat(pixels.reshape(*pixels.shape[:2], -1)[..., :1], 3, axis=2)


def _convert(
    pixels: NDArray[Any], convert: Callable[[NDArray[Any]], NDArray[Any]], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Return an image in another dtype, made some rows at a time."""
    result = np.empty(pixels.shape, dtype)
    for rows in _blocks(pixels):
        result[rows] = convert(pixels[rows])
    return result


def _of(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return values of 16 bits in a dtype."""
    if dtype == np.uint8:
        return _eight(values)
    return values


def _eight(values: NDArray[Any]) -> NDArray[Any]:
    """Return values of 16 bits as 8: ``rint(x / 257)``, here without a division."""
    # (255 x + 32895) >> 16 is rint(x / 257) for every x of 16 bits.
    wide = np.multiply(values, 255, dtype=np.uint32)
    wide += np.uint32(32895)
    eight: Pixels = (wide >> np.uint32(16)).astype(np.uint8)
    return eight


def _sixteen(values: NDArray[Any]) -> NDArray[Any]:
    """Return values of 8 bits as 16: 255 becomes 65535."""
    sixteen: NDArray[np.uint16] = np.multiply(values, 257, dtype=np.uint16)
    return sixteen


def _ink(planes: NDArray[Any], inverted: bool, orientation: int) -> NDArray[Any]:
    """Return the four planes of a CMYK JPEG as RGB.

    DALI has two formulas. For an upright image: ``C * K // 255`` with an Adobe segment (which says
    that the planes are inverted), else ``(255 - C) * (255 - K) // 255``. An image that is turned is
    decoded by OpenCV, which takes all planes for inverted: ``K - ((255 - C) * K >> 8)``.
    """
    if not inverted:
        planes = 255 - planes
    colours, black = planes[..., :3].astype(np.uint16), planes[..., 3:].astype(np.uint16)
    if orientation == 1:
        ink = colours * black // 255
    else:
        ink = black - ((255 - colours) * black >> 8)
    return ink.astype(np.uint8)


def _has_adobe_segment(data: Pixels) -> bool:
    """Return True if an APP14 segment of the header is Adobe's; `head` has read the header, so it
    is whole."""
    view, place = data.data, 2
    while view[place + 1] != START_OF_SCAN:
        if view[place + 1] == 0xFF:  # a fill byte
            place += 1
            continue
        length = view[place + 2] << 8 | view[place + 3]
        if (
            view[place + 1] == APP14
            and length >= 14
            and bytes(view[place + 4 : place + 9]) == b"Adobe"
        ):
            return True
        place += 2 + length
    return False


def _parts(view: memoryview, has_palette: bool) -> tuple[list[memoryview], memoryview]:
    """Return the compressed pixels of a PNG and its palette; ImageError where the checksum of one
    is wrong.

    `head` has checked that the chunks are whole and in order. Of the pixels the first run counts,
    as in libpng.
    """
    pixel_parts: list[memoryview] = []
    palette, place, name = view[:0], 8, b""
    while name in (b"IDAT", b"") or not pixel_parts:
        length, name = CHUNK.unpack_from(view, place)
        end = place + 8 + length
        if name == b"IDAT" or (name == b"PLTE" and has_palette):
            if zlib.crc32(view[place + 4 : end]) != int.from_bytes(view[end : end + 4], "big"):
                raise ImageError(
                    f"the checksum of its chunk {name.decode()} is wrong: the bytes changed"
                )
            if name == b"PLTE":
                palette = view[place + 8 : end]
            else:
                pixel_parts.append(view[place + 8 : end])
        place = end + 4
    return pixel_parts, palette


def _chunk(view: memoryview, name: bytes) -> memoryview:
    """Return the content of the first chunk of a PNG with a name; `head` has found it."""
    place, chunk_name = 8, b""
    while True:
        length, chunk_name = CHUNK.unpack_from(view, place)
        if chunk_name == name:
            return view[place + 8 : place + 8 + length]
        place += 12 + length


def _palette_colours(palette: memoryview, bits: int) -> Pixels:
    """Return the colour of each value of a pixel, ``[256, 3]``: the palette, or levels of gray
    where there is none."""
    if len(palette) == 0:
        levels = np.arange(256, dtype=np.uint8) * np.uint8(255 // (2**bits - 1))
        return np.repeat(levels[:, None], 3, axis=1)
    colours = np.zeros(
        (256, 3), np.uint8
    )  # a value that the palette does not have is black, as in libpng
    colours[: len(palette) // 3] = np.frombuffer(palette, np.uint8).reshape(-1, 3)
    return colours


def _reaches_the_end(region: Region | None, head: Head) -> bool:
    """Return True if a region of the upright image, or all of it, has pixels of the last row of
    units."""
    if region is None:
        return True
    top, left, height, width = region
    if head.orientation <= 4:
        rows, behind = head.height, head.height - top - height if head.orientation <= 2 else top
    else:
        rows, behind = head.width, head.width - left - width if head.orientation in (5, 8) else left
    return behind <= (rows - 1) % UNIT_ROWS


def _to_stored_order(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Return an image that is upright as it is stored, a view, of an EXIF orientation (EXIF 2.32,
    section 4.6.4)."""
    is_mirrored, upside_down = orientation in (2, 3, 6, 7), orientation in (3, 4, 7, 8)
    if upside_down:
        pixels = pixels[::-1]
    if is_mirrored:
        pixels = pixels[:, ::-1]
    if orientation >= 5:
        return pixels.transpose(1, 0, 2)
    return pixels
