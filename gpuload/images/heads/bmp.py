"""Head of a BMP.

Read    headers of 12, 40, 52, 56, 64, 108 and 124 bytes; 1, 4, 8 (with a palette), 24 and 32 bits
        for a pixel, not compressed; 32 bits with masks of whole bytes; 8 bits run-length encoded,
        if the runs fill every row. By Pillow 16 bits of 5, 5, 5 or 5, 6, 5 (form "16-bit pixels"),
        which it widens by ``value * 255 // 31``: others differ.
Not     2 bits, 4 bits run-length encoded (Pillow before 13 leaves out the last of an odd number of
        pixels), JPEG or PNG inside, masks of other widths: OpenCV, and so DALI, reads them wrongly
        or not at all (4.13).
Whole   all rows are in the file.
Source  Microsoft, BITMAPFILEHEADER to BITMAPV5HEADER (wingdi.h); OS/2 2.0, BITMAPINFOHEADER2 (64
        bytes).
"""

from __future__ import annotations

import struct

from gpuload.images.heads.base import Head, HeadError, UnsupportedError, check_size, upright

HEADERS = (12, 40, 52, 56, 64, 108, 124)
WITH_MASKS = (
    56,
    108,
    124,
)  # headers with masks of their own that OpenCV follows; for others it takes BGR
PLAIN, RLE8, RLE4, BITFIELDS, JPEG, PNG, ALPHA_BITFIELDS = range(7)
NAMES = {
    RLE8: "RLE8",
    RLE4: "RLE4",
    BITFIELDS: "bit fields",
    JPEG: "JPEG",
    PNG: "PNG",
    ALPHA_BITFIELDS: "bit fields",
}
BYTES = (0xFF, 0xFF00, 0xFF0000, 0xFF000000)
BGR = (0xFF0000, 0xFF00, 0xFF)
WIDE_MASKS = ((0xF800, 0x7E0, 0x1F), (0x7C00, 0x3E0, 0x1F))  # of 16 bits
WIDE = "16-bit pixels"  # a form
BY_PILLOW = "bmp by Pillow"  # files that Pillow reads, and imagecodecs does not: of runs, and numbers of a palette


def read(view: memoryview) -> Head:
    """Return the head of a BMP; the errors are those of `images.head.read`."""
    begin, header = struct.unpack_from("<II", view, 10)
    if header not in HEADERS:
        raise HeadError(
            f"its header is {header} bytes long; there are {', '.join(map(str, HEADERS))}"
        )
    compression = colours = 0
    if header == 12:
        width, height, _, bits = struct.unpack_from("<HHHH", view, 18)
    else:
        width, height, _, bits, compression, _, _, _, colours = struct.unpack_from(
            "<iiHHIIiiI", view, 18
        )
    rows = abs(height)
    if width <= 0 or rows == 0:
        raise HeadError(f"it would be {height} x {width} pixels")
    _check_kind(bits, compression, header)
    check_size(rows * width)
    behind = 14 + header
    has_alpha = False
    if compression == BITFIELDS:
        has_alpha = _check_masks(view, header, bits)
        if header == 40:
            behind += 12
    if bits <= 8:
        if colours > 2**bits:
            raise HeadError(f"its palette has {colours} colours, for {bits} bits")
        behind += (3 if header == 12 else 4) * (colours or 2**bits)
    if not behind <= begin <= len(view):
        raise HeadError(
            f"its pixels begin at byte {begin}; its header ends at {behind}, "
            f"the file at {len(view)}"
        )
    num_bytes = rows * ((width * bits + 31) // 32 * 4)  # each row ends at a multiple of four bytes
    if compression == RLE8:
        _check_runs(view, begin, rows, width)
    elif begin + num_bytes > len(view):
        raise HeadError(f"its pixels take {num_bytes} bytes from byte {begin} on: cut off")
    form = ""
    if bits == 16:
        form = WIDE
    if bits == colours == 1:
        form = "one colour"
    channels = 3
    if bits == 32:
        channels = 4
    surplus = ""
    if has_alpha:
        surplus = "alpha"
    return upright("bmp", rows, width, channels, 8, form=form, surplus=surplus)


def _check_masks(view: memoryview, header: int, bits: int) -> bool:
    """Return True if the masks of a header are those of pixels with alpha; refuse rare ones."""
    masks = struct.unpack_from("<III", view, 54)
    has_masks = header in WITH_MASKS
    alpha = 0
    if has_masks:
        alpha = struct.unpack_from("<I", view, 66)[0]
    if bits == 16:
        if masks not in WIDE_MASKS or alpha:
            hex_masks = ", ".join(map(hex, (*masks, alpha)))
            raise UnsupportedError(f"a BMP of 16 bits for a pixel with the masks {hex_masks}")
        return False
    if masks != BGR and not (has_masks and len({*masks} & {*BYTES}) == 3):
        hex_masks = ", ".join(map(hex, masks))
        raise UnsupportedError(
            f"a BMP whose masks are {hex_masks}, which decoders read differently"
        )
    return bool(alpha)


def _check_kind(bits: int, compression: int, header: int) -> None:
    sound = {PLAIN: (1, 4, 8, 16, 24, 32), RLE8: (8,), BITFIELDS: (16, 32)}
    is_of_os2 = header in (12, 64) and (compression or bits in (16, 32))
    if bits not in sound.get(compression, ()) or is_of_os2:
        if compression:
            how = NAMES.get(compression, f"compression {compression}")
        else:
            how = "no compression"
        kind = f"a BMP of {bits} bits for a pixel with {how}"
        if compression in (RLE4, RLE8):
            raise _of_runs(kind)
        raise UnsupportedError(kind)


def _of_runs(kind: str) -> UnsupportedError:
    error = UnsupportedError(kind)
    error.file_kind = BY_PILLOW
    return error


def _check_runs(view: memoryview, place: int, rows: int, width: int) -> None:
    """Refuse runs that do not fill each row: decoders fill the gaps with different values."""
    row = column = 0
    while row < rows:
        count, value = view[place], view[place + 1]
        place += 2
        if count or value > 2:
            column += count or value
            if not count:
                place += value + value % 2
            if column > width:
                raise HeadError(f"its row {row} from the bottom is longer than {width} pixels")
        elif value == 2 or column < width:
            if value == 1 and row == rows - 1 and column == width:
                break
            gap = f"from {column} of {width} on in row {row} from the bottom"
            raise _of_runs(
                f"a BMP whose runs leave out pixels, {gap}, which decoders fill differently"
            )
        else:  # the end of a row, or of the image
            row, column = row + 1, 0
            if value == 1:
                break
    if row < rows:
        gap = f"behind {row} of {rows} rows"
        raise _of_runs(f"a BMP whose runs end {gap}, of which decoders fill the rest differently")
