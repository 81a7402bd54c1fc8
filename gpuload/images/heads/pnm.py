"""Head of a PNM: PBM (P1, P4), PGM (P2, P5), PPM (P3, P6), PAM (P7) and PFM (Pf, PF); and its
samples.

Read    any largest value; PFM of either byte order. Comments stand behind white space in the
        header, and among plain samples. Behind the last number of plain samples may stand the end
        of the file, as in netpbm and Pillow: that it lost digits is not seen. Plain samples of PBM
        need no white space between them.
PAM     gray or RGB, with or without alpha, by its tuple type. Samples of other types, and several
        of none, are no colours. Of black and white, 1 is white.
Form    "" for files that OpenCV, and so DALI, reads (4.13): a largest value of 255 or 65535, and
        plain samples without comments, with white space behind each. For any other "samples": its
        pixels are made of `samples` here.
Whole   all samples are there.
Source  Netpbm, pbm(5), pgm(5), ppm(5), pam(5), pfm(5).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuload.images.heads.base import Head, HeadError, check_size, printable_name, upright

HEADER_BYTES = 1 << 16  # within which a header ends, comments too
NUMBER = rb"(?:\s|\s#[^\r\n]*[\r\n])+([0-9]{1,9})(?=\s)"
SCALE = rb"\s+([-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)(?=\s)"
COMMENT = rb"#[^\r\n]*"
PLAIN, BITS, COLOURS = b"123", b"14", b"36F"
FLOATS = b"fF"  # Pf and PF
BITMAP, PAM = ord("4"), ord("7")
PAM_END = re.compile(rb"^ENDHDR[^\S\n]*\n", re.MULTILINE)
PAM_NUMBERS = (b"WIDTH", b"HEIGHT", b"DEPTH", b"MAXVAL")
ALPHA = b"_ALPHA"
TUPLE_COLOURS = {
    b"BLACKANDWHITE": 1,
    b"GRAYSCALE": 1,
    b"RGB": 3,
}  # of a tuple type, and the same with alpha
DEPTH_TYPES = {
    1: b"GRAYSCALE"
}  # where the file says none: of three channels OpenCV writes BGR so, and ffmpeg RGB
WHITE, DIGITS = b" \t\n\v\f\r", b"0123456789"
TEXT_BYTES = 1 << 20  # of plain samples that are looked at, at a time
SAMPLES = "samples"  # the form of a file that codecs read in another way, or not


class _Header(NamedTuple):
    kind: int  # the second letter of the file
    width: int
    height: int
    largest: int
    scale: float  # of PFM: negative for little-endian floats
    begin: int  # of the samples
    channels: int
    tuple_type: bytes = b""  # of a PAM

    @property
    def num_colours(self) -> int:
        """The channels that are gray or RGB; 0 where the samples are no colours."""
        if self.kind != PAM:
            return self.channels
        return TUPLE_COLOURS.get(self.tuple_type.removesuffix(ALPHA), 0)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the samples in the file, where they are no text and no bits."""
        if self.kind in FLOATS:
            return np.dtype("<f4" if self.scale < 0 else ">f4")
        return np.dtype(">u2" if self.largest > 255 else "u1")

    @property
    def num_bytes(self) -> int:
        if self.kind == BITMAP:
            return -(-self.width // 8) * self.height
        return self.height * self.width * self.channels * self.dtype.itemsize


def read(view: memoryview) -> Head:
    """Return the head of a PNM; the errors are those of `images.head.read`."""
    header, form = _header(view), ""
    if not header.width or not header.height:
        raise HeadError(f"it would be {header.height} x {header.width} pixels")
    check_size(header.height * header.width)
    bits = 8
    if header.largest > 255:
        bits = 16
    if header.kind in FLOATS:
        bits, form = 32, SAMPLES
    elif header.kind == PAM or (header.kind not in BITS and header.largest not in (255, 65535)):
        form = SAMPLES
    elif header.kind == BITMAP:
        # nvImageCodec 0.9, so DALI, looks for a largest value there, which a PBM does not have.
        behind_digits = bytes(view[header.begin :]).lstrip(WHITE + DIGITS)
        if behind_digits[:1] in (b"", b"#"):
            form = SAMPLES
    if header.kind in PLAIN:
        if not form and not _is_read_by_codecs(view, header):
            form = SAMPLES
    elif len(view) - header.begin < header.num_bytes:
        have = len(view) - header.begin
        raise HeadError(f"its pixels are {have} bytes, of {header.num_bytes}: it was cut off")
    if form and header.kind not in FLOATS:
        _numbers(view, header)
    sample = ""
    if header.kind in FLOATS:
        sample = "float32"
    if header.tuple_type.endswith(ALPHA) and header.num_colours:
        surplus = "alpha"
    else:
        surplus = ""
    attributes: dict[str, Any] = {"form": form, "sample": sample, "surplus": surplus}
    return upright("pnm", header.height, header.width, header.channels, bits, **attributes)


def samples(view: memoryview) -> tuple[NDArray[Any], int]:
    """Return the numbers of a file that `read` has read, ``[height, width, channels]``, and the
    largest value.

    Of bits, 1 is black. Of PFM, the first row is the upper one.
    """
    header = _header(view)
    shape = header.height, header.width, header.channels
    if header.kind in FLOATS:
        values = np.frombuffer(view, header.dtype, int(np.prod(shape)), header.begin).reshape(shape)
        return values[::-1].astype(np.float32), 1
    return _numbers(view, header).reshape(shape), header.largest


def num_colours(view: memoryview) -> int:
    """Return how many of the first channels of a file that `read` has read are gray or RGB; 0 if
    they are neither."""
    return _header(view).num_colours


def tuple_type(view: memoryview) -> str:
    """Return the tuple type of a PAM."""
    return printable_name(_header(view).tuple_type)


def _header(view: memoryview) -> _Header:
    kind, place = view[1], 2
    if kind == PAM:
        return _pam_header(bytes(view[:HEADER_BYTES]))
    text, numbers = bytes(view[:HEADER_BYTES]), list[int]()
    names = ["width", "height"]
    if kind not in BITS + FLOATS:
        names.append("largest value")
    for name in names:
        match = re.compile(NUMBER).match(text, place)
        if match is None:
            raise HeadError(f"its header gives no {name} behind byte {place}, between white space")
        numbers.append(int(match[1]))
        place = match.end()
    scale = 0.0
    if kind in FLOATS:
        match = re.compile(SCALE).match(text, place)
        if match is None or not float(match[1]):
            raise HeadError(f"its header gives no scale behind byte {place}, between white space")
        scale, place = float(match[1]), match.end()
    width, height, largest = (*numbers, 1)[:3]
    if not 0 < largest < 1 << 16:
        raise HeadError(f"its largest value is {largest}; it is 1 to 65535")
    if text[place : place + 2] == b"\r\n" and kind not in PLAIN:
        raise HeadError("two bytes, CR and LF, end its header, where decoders take one")
    return _Header(kind, width, height, largest, scale, place + 1, 3 if kind in COLOURS else 1)


def _pam_header(text: bytes) -> _Header:
    end = PAM_END.search(text)
    if end is None:
        raise HeadError(f"its header does not end (ENDHDR) within {HEADER_BYTES} bytes")
    numbers, types = dict[bytes, int](), list[bytes]()
    for line in text[3 : end.start()].split(b"\n"):
        name, _, value = line.strip().partition(b" ")
        if name == b"TUPLTYPE":
            types.append(value.strip())
        elif (
            name in PAM_NUMBERS
            and re.fullmatch(rb"[0-9]{1,9}", value.strip())
            and name not in numbers
        ):
            numbers[name] = int(value)
        elif name and not name.startswith(b"#"):
            raise HeadError(f"a line of its header is {printable_name(line[:40])}")
    if len(numbers) < len(PAM_NUMBERS):
        missing = next(name for name in PAM_NUMBERS if name not in numbers)
        raise HeadError(f"its header gives no {missing.decode()}")
    width, height, depth, largest = (numbers[name] for name in PAM_NUMBERS)
    if not 0 < largest < 1 << 16 or not depth:
        raise HeadError(
            f"its depth is {depth}, and its largest value {largest}; that is 1 to 65535"
        )
    kind = b" ".join(types) or DEPTH_TYPES.get(depth, b"")
    colours = TUPLE_COLOURS.get(kind.removesuffix(ALPHA))
    if colours is not None and depth != colours + kind.endswith(ALPHA):
        raise HeadError(f"its depth is {depth}, and its tuple type {printable_name(kind)}")
    return _Header(PAM, width, height, largest, 0.0, end.end(), depth, kind)


def _numbers(view: memoryview, header: _Header) -> NDArray[Any]:
    """Return the samples of a file of whole numbers, in a row; refuse those that are too few or too
    large."""
    count = header.height * header.width * header.channels
    if header.kind == BITMAP:
        rows = np.frombuffer(view, np.uint8, header.num_bytes, header.begin).reshape(
            header.height, -1
        )
        return np.unpackbits(rows, axis=1)[:, : header.width].ravel()
    if header.kind in PLAIN:
        values = _text_numbers(view[header.begin :], count, is_bits=header.kind in BITS)
    else:
        values = np.frombuffer(view, header.dtype, count, header.begin)
    if (largest := int(values.max(initial=0))) > header.largest:
        raise HeadError(f"a sample of it is {largest}; the largest value is {header.largest}")
    return values.astype(np.uint16 if header.largest > 255 else np.uint8)


def _text_numbers(text: memoryview, count: int, *, is_bits: bool) -> NDArray[np.int64]:
    """Return the first numbers of a text with comments; bits may stand side by side."""
    words = re.sub(COMMENT, b" ", bytes(text))
    if is_bits:
        words = words.translate(None, WHITE)[:count]
        numbers = np.frombuffer(words, np.uint8).astype(np.int64) - ord("0")
        if ((numbers < 0) | (numbers > 9)).any():
            raise HeadError(f"among its samples stands {words.translate(None, DIGITS)[:8]!r}")
    else:
        parts = words.split(None, count)[:count]
        wrong = next((part for part in parts if not part.isdigit() or len(part) > 5), None)
        if wrong is not None:
            raise HeadError(f"among its samples stands {wrong[:8]!r}")
        if parts:
            numbers = np.array(parts, "S5").astype(np.int64)
        else:
            numbers = np.empty(0, np.int64)
    if len(numbers) < count:
        raise HeadError(f"it has {len(numbers)} of {count} samples")
    return numbers


def _is_read_by_codecs(view: memoryview, header: _Header) -> bool:
    """Return True for plain samples that are digits with white space behind each; refuse those that
    are too large."""
    count, samples = 0, header.height * header.width * header.channels
    for part in _parts(view[header.begin :]):
        if part.translate(None, WHITE + DIGITS):
            return False
        numbers = part.split()[: samples - count]
        if max(map(len, numbers), default=0) > (1 if header.kind in BITS else 5):
            return False
        if numbers:
            largest = int(np.array(numbers, "S5").astype(np.int64).max(initial=0))
        else:
            largest = 0
        if largest > header.largest:
            raise HeadError(f"a sample of it is {largest}; the largest value is {header.largest}")
        count += len(numbers)
        if count == samples:
            return True
    return False


def _parts(text: memoryview) -> Iterator[bytes]:
    """Give whole numbers with white space behind them, some at a time."""
    rest = b""
    for begin in range(0, len(text), TEXT_BYTES):
        part = rest + bytes(text[begin : begin + TEXT_BYTES])
        end = max(part.rfind(bytes([white])) for white in WHITE) + 1
        yield part[:end]
        rest = part[end:]
        if len(rest) > TEXT_BYTES:
            return
