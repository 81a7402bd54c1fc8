"""Head of an encoded image: kind, size and orientation from its bytes, and whether it is whole.

A format is known by the first bytes of a file, not by its name; `heads` has a module for each.
Bounds  no memory is taken on a file's word: a size is refused that so few bytes cannot hold, and
        above MAX_PIXELS.
Agrees  the size is that of DALI's decoder. Where DALI's own parts would disagree about it, which
        would make it write beyond its buffer (measured with 2.4: the process dies), where it would
        read other pixels than the format's own specification says, or fill up damaged parts, the
        file is refused.
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
from gpuload.images.heads.base import UnsupportedError as UnsupportedError
from gpuload.images.heads.base import without_turn as without_turn
from gpuload.ragged import Ragged

COLUMNS = (
    "height",
    "width",
    "scans",
    "channels",
    "orientation",
    "scan_end",
)  # of the result of `read_heads`
CHANNELS, ORIENTATION = COLUMNS.index("channels"), COLUMNS.index("orientation")
LOOKED_AT_BYTES = 18  # by which a format is told


@dataclass(frozen=True)
class ImageFormat:
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
    "jpeg": ImageFormat("JPEG", (".jpg", ".jpeg", ".jpe", ".jfif"), (b"\xff\xd8\xff",), jpeg.read),
    "png": ImageFormat("PNG", (".png", ".apng"), (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",), png.read),
    "webp": ImageFormat("WebP", (".webp",), (b"RIFF",), webp.read),
    "tiff": ImageFormat(
        "TIFF", (".tif", ".tiff"), (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), tiff.read
    ),
    "bmp": ImageFormat("BMP", (".bmp", ".dib"), (b"BM",), bmp.read),
    "pnm": ImageFormat(
        "PNM",
        (".pnm", ".pbm", ".pgm", ".ppm", ".pam", ".pfm"),
        (
            b"P7\n",
            *(
                b"P%c" % kind + white
                for kind in b"123456fF"
                for white in (b" ", b"\n", b"\r", b"\t")
            ),
        ),
        pnm.read,
    ),
    "jp2": ImageFormat("JPEG 2000", (".jp2", ".jpx"), (jp2.SIGNATURE,), jp2.read_jp2),
    "j2k": ImageFormat(
        "JPEG 2000 codestream",
        (".j2k", ".j2c", ".jpc"),
        (b"\xff\x4f\xff\x51",),
        jp2.read_codestream,
    ),
    "gif": ImageFormat("GIF", (".gif",), (b"GIF87a", b"GIF89a"), gif.read, in_dali=False),
    "avif": ImageFormat("AVIF", (".avif",), (b"ftypavif", b"ftypavis"), avif.read, in_dali=False),
}
SUFFIXES = tuple(suffix for form in FORMATS.values() for suffix in form.suffixes)
TITLES = ", ".join(form.title for form in FORMATS.values())
# The first bytes that show the format of a file with a damaged beginning: its reader gives the
# better error.
SHORT_MAGICS = {b"\xff\xd8": "jpeg", b"\x89PNG": "png", b"BM": "bmp"}
# Formats that are known and not decoded: the name, and bytes at a place.
FOREIGN = (
    *(("HEIF (HEIC)", 4, b"ftyp" + brand) for brand in (b"heic", b"heix", b"mif1", b"msf1", b"hevc")),
    *(("JPEG XL", 0, magic) for magic in (b"\xff\x0a", b"\0\0\0\x0cJXL ")),
    ("DICOM", 128, b"DICM"), ("OpenEXR", 0, b"v/1\x01"), ("Radiance HDR", 0, b"#?RADIANCE"), ("FITS", 0, b"SIMPLE  ="),
    ("Photoshop", 0, b"8BPS"), ("DDS", 0, b"DDS "), ("JPEG XR", 0, b"II\xbc"), ("QOI", 0, b"qoif"),
    ("ICO", 0, b"\0\0\1\0"),
)  # fmt: skip
FILES_IN_PLACE = (  # files that get the names of images, in small letters
    (b"version https://git-lfs", "a pointer of Git LFS in place of the file, which `git lfs pull` "
    "fetches"),
    (b"<!doctype html", "a page of HTML, as servers send where a file is missing"),
    (b"<html", "a page of HTML, as servers send where a file is missing"),
    (b"<svg", "an SVG, which is a drawing and not pixels"), (b"<?xml", "XML, as SVG drawings and "
    "errors of stores are"),
    (b"\x1f\x8b", "a file compressed by gzip"), (b"pk\3\4", "a ZIP archive"), (b"%pdf", "a PDF"),
    (b"\x93numpy", "an array of NumPy (NPY)"),
)  # fmt: skip
TEXT_BYTES = 40  # of a file that is no image, which are shown
PRINTABLE = frozenset(b"\t\r\n" + bytes(range(32, 127)))
# How others read files of a format: a call that gives an array, for a path.
READERS = {"tiff": "tifffile.imread(path)", "DICOM": "pydicom.dcmread(path).pixel_array"}
READERS |= {"FITS": "astropy.io.fits.getdata(path)"}
READERS |= dict.fromkeys(
    ("Photoshop", "DDS", "ICO", "gif", bmp.BY_PILLOW), "numpy.asarray(PIL.Image.open(path))"
)
OTHER_READER = "imagecodecs.imread(path)"
FORMS = {  # of `Head`, in words
    "plain": "with EXIF data in a place or form that DALI does not read",
    "animation": "animated",
    "gray": "of gray with alpha, or without boxes",
    bmp.WIDE: "of 16 bits for a pixel",
    "stray bytes": "with stray bytes in front of a marker",
    "samples": "PAM, of floats, of bits that look like text, of another largest value than 255 and "
    "65535, or of "
    "text that is not numbers alone",
}


def _contents(beginning: bytes) -> str:
    """Return a text about a file that is no image, by its first bytes."""
    text = beginning.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    name = next((name for start, name in FILES_IN_PLACE if text.startswith(start)), "")
    if name:
        return f"it is {name}"
    if not any(beginning):
        return "its bytes are zeros: they were never written, or the copy stopped early"
    if all(byte in PRINTABLE for byte in beginning):
        return f"it is text: {beginning[:TEXT_BYTES].decode('ascii')!r}"
    return f"it begins with {beginning[:8].hex(' ')}"


def foreign_of(beginning: bytes | memoryview) -> str:
    """Return the name of the format of an image file that is known and not decoded; "" if it is
    none."""
    return next(
        (name for name, place, magic in FOREIGN if beginning[place : place + len(magic)] == magic),
        "",
    )


def other_form(kind: str) -> str:
    """Return the call that reads files of a format by another library."""
    call = READERS.get(kind, OTHER_READER)
    return f'gl.records(len(paths), lambda numbers: {{"image": [{call} for path in map(paths.__getitem__, numbers)]}})'


def row_error(row: int, error: ValueError) -> RowError:
    """Return the error of a row with a file that is not decoded: damaged, or of a kind that is not
    supported.

    Args:
        row: its place in the batch.
        error: `HeadError`, or an error of `images.decode`.
    """
    if not isinstance(error, UnsupportedError):
        return RowError(row, str(error))
    form = other_form(error.file_kind)
    remedy = form
    if error.remedy:
        remedy = f"{error.remedy}; or read it by another library: {form}"
    return RowError(
        row,
        str(error),
        cause="the file may be sound, but gpuload does not decode this kind",
        remedy=remedy,
    )


def kind_of(beginning: bytes) -> str | None:
    """Return the name of the format of files that begin so (LOOKED_AT_BYTES will do), None if there
    is none."""
    if beginning[:4] == b"RIFF":
        if beginning[8:12] == b"WEBP":
            return "webp"
        return None
    if beginning[:2] == b"BM" and int.from_bytes(beginning[14:18], "little") not in bmp.HEADERS:
        return None
    if beginning[4:8] == b"ftyp":
        beginning = beginning[4:]
    return next(
        (kind for kind, form in FORMATS.items() if beginning.startswith(form.beginnings)), None
    )


def foreign_to_dali(data: NDArray[Any], *, may_be_jpeg: bool = True) -> str:
    """Return the kind of an image file that DALI has no codec for; "" for any other.

    Args:
        data: the file.
        may_be_jpeg: False for a file that may be a JPEG only if the core has declined it; then it
            is looked at, too.
    """
    kind = kind_of(bytes(data[:LOOKED_AT_BYTES]))
    if kind is not None and not FORMATS[kind].in_dali:
        return FORMATS[kind].title
    view = memoryview(cast(Any, data))
    if kind == "tiff":
        return tiff.foreign_to_dali(view)
    if kind in ("webp", "bmp", "pnm", "jp2", "j2k") or (kind == "jpeg" and not may_be_jpeg):
        try:
            form = FORMATS[kind].read(view).form
        except (HeadError, scans.ScanError, IndexError, struct.error):
            return ""  # DALI tells the damage
        is_of_dali = form in ("", "one colour")
        if is_of_dali:
            return ""
        return f"{FORMATS[kind].title} ({FORMS.get(form, form)})"
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
        if foreign := foreign_of(view):
            error = UnsupportedError(f"a file of the format {foreign}; the formats are {TITLES}")
            error.file_kind = foreign
            raise error
        raise HeadError(
            f"it is no image file of these formats: {TITLES}; {_contents(bytes(view[:TEXT_BYTES]))}"
        )
    try:
        return FORMATS[kind].read(view)
    except UnsupportedError as unsupported:
        unsupported.file_kind = unsupported.file_kind or kind
        raise
    except scans.ScanError as error:
        raise HeadError(str(error)) from None
    except (IndexError, struct.error):
        raise HeadError(f"the file ends inside its header, after {len(view)} bytes") from None


def read_heads(files: Ragged | Sequence[NDArray[np.uint8]]) -> NDArray[np.int32]:
    """Return numbers of the heads of encoded images, int32 ``[N, 6]``, a column for each name in
    ``COLUMNS``.

    Channels and the end of the scan are of JPEGs that the core has read, and 0 for all other files:
    ``jpeg_head`` makes a `Head` of them.

    Raises:
        RowError: the bytes of a file are not one whole image that can be decoded; it names the
            first such row.
    """
    heads: NDArray[np.int32] = np.zeros((len(files), len(COLUMNS)), np.int32)
    if core.native is not None and isinstance(files, Ragged) and len(files):
        core.native.read_jpeg_heads(
            np.ascontiguousarray(files.payload), files.offsets[:-1], files.offsets[1:], heads
        )
    for row in np.flatnonzero(heads[:, 0] == 0).tolist():  # rows that the core did not understand
        try:
            head = read(files[row])
        except HeadError as error:
            raise row_error(row, error) from None
        heads[row, :3] = head.height, head.width, head.scans
        heads[row, ORIENTATION] = head.orientation
    return heads


def without_orientation(heads: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the result of `read_heads` for images that are not turned: of their sizes as they are
    stored.

    JPEGs with an orientation are no longer known as such: the core, which would turn them, leaves
    them out.
    """
    stored_heads, is_turned = heads.copy(), heads[:, ORIENTATION] > 4
    stored_heads[is_turned, :2] = heads[is_turned, 1::-1]
    stored_heads[heads[:, ORIENTATION] > 1, CHANNELS] = 0
    return stored_heads


def are_jpegs(heads: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return which rows of `read_heads` are known to be of JPEGs, boolean ``[N]``; those of others
    may be, too."""
    return np.asarray(heads[:, CHANNELS] > 0)


def jpeg_head(numbers: NDArray[np.int32]) -> Head | None:
    """Return the head of a file from its row of `read_heads`; None where ``read`` has to look at
    the file."""
    height, width, num_scans, channels, orientation, scan_end = numbers.tolist()
    if channels:
        return Head("jpeg", height, width, channels, 8, orientation, num_scans, scan_end)
    return None
