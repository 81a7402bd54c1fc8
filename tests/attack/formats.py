"""Sound images of every format, made at random by other libraries: read as these read them, or
refused by name.

Files     by Pillow with its options of saving, by OpenCV where samples have 16 bits or are floats,
          and by tifffile where it is installed. PNM as text is written here, by the rules of
          Netpbm.
Expected  of files without loss the array that was written; of others what Pillow reads.
Stored    an image that has an orientation is read as it is stored, too, and turned here.
Left out  CMYK, of which DALI makes other RGB.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from gpuload.errors import MissingPackageError
from gpuload.images import decode as decoding
from gpuload.images import head as heads
from tests.attack.hunt import Report, hunt

MORE_BYTES = 1 << 29
NUM_FILES = 8  # of a trial
TURN = 0x112  # the EXIF tag of the orientation
TIFF_DTYPES = (
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "float16",
    "float32",
    "float64",
)


class Sample(NamedTuple):
    """A file, and what its pixels are."""

    title: str
    data: bytes
    pixels: NDArray[Any]
    mode: str = "RGB"
    dtype: str = "uint8"


def attack(seconds: float, seed: int) -> Report:
    """Read files of all formats."""
    report = hunt(seconds, seed, trial, more_bytes=MORE_BYTES)
    report.without = "" if find_spec("tifffile") else "tifffile, which is not installed"
    return report


def trial(rng: np.random.Generator, folder: Path) -> Counter[str]:
    """Read some files."""
    outcomes: Counter[str] = Counter()
    names = [name for name in MAKERS if name != "tifffile" or find_spec("tifffile")]
    for number in range(NUM_FILES):
        sample = MAKERS[names[rng.integers(len(names))]](rng)
        (folder / f"{number}").write_bytes(sample.data)
        outcomes[check(sample)] += 1
    return outcomes


def check(sample: Sample) -> str:
    """Assert that a file is read as it should be; return "read" or why it is refused."""
    data, words = np.frombuffer(sample.data, np.uint8), {"dtype": sample.dtype}
    try:
        head = heads.read(data)
        pixels = decoding.decode(data, head, sample.mode, **words)
    except (heads.UnsupportedError, MissingPackageError) as error:
        return f"refused: {str(error)[:40]}"
    expected = sample.pixels.reshape(*sample.pixels.shape[:2], -1)
    assert pixels.shape == expected.shape, (
        f"{sample.title}: {pixels.shape}, and {expected.shape} was written"
    )
    assert pixels.dtype == sample.dtype, f"{sample.title}: {pixels.dtype}"
    count = np.count_nonzero(pixels != expected)
    assert count == 0, f"{sample.title} as {sample.mode}: {count} of {pixels.size} values differ"
    if head.orientation != 1:
        stored = decoding.decode(data, heads.without_turn(head), sample.mode, orient=False, **words)
        turned = np.asarray(upright(stored, head.orientation))
        assert np.array_equal(turned, pixels), (
            f"{sample.title} as {sample.mode}: it is stored in another way"
        )
    return "read"


def upright(stored: NDArray[Any], turn: int) -> NDArray[Any]:
    """Return an image in the order of an orientation (EXIF 2.32, section 4.6.4)."""
    if turn in (2, 3, 7, 8):
        stored = stored[:, ::-1]
    if turn in (3, 4, 6, 7):
        stored = stored[::-1]
    return stored.swapaxes(0, 1) if turn > 4 else stored


def values(rng: np.random.Generator, dtype: str = "uint8", channels: int = 3) -> NDArray[Any]:
    """Return waves with noise, in the range of a dtype, ``[height, width, channels]``."""
    height, width = rng.integers(1, 50, 2)
    y, x, c = np.mgrid[:height, :width, :channels].astype(float)
    parts = (np.sin(x / (3 + c)) * np.cos(y / 5) + rng.uniform(-0.2, 0.2, x.shape) + 1.2) / 2.4
    if np.dtype(dtype).kind == "f":
        return (200 * parts - 100).astype(dtype)
    info = np.iinfo(dtype)
    array: NDArray[Any] = (info.min + parts * (float(info.max) - info.min)).astype(dtype)
    return array


def _image(rng: np.random.Generator, *modes: str) -> Image.Image:
    """Return an image of one of these modes of Pillow."""
    mode = modes[rng.integers(len(modes))]
    if mode in ("L", "LA", "RGB", "RGBA"):
        array = values(rng, channels=len(mode))
        return Image.fromarray(array.squeeze(2) if mode == "L" else array, mode)
    if mode in ("I;16", "I", "F"):
        dtype = {"I;16": "uint16", "I": "int32", "F": "float32"}[mode]
        return Image.fromarray(values(rng, dtype, 1)[..., 0])
    image = Image.fromarray(values(rng))
    if mode == "P":
        return image.quantize(int(rng.integers(2, 257)))
    return image.convert(mode)


def _saved(image: Image.Image, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def _sample(rng: np.random.Generator, **options: tuple[Any, ...]) -> dict[str, Any]:
    """Return some of the options, each with one of its values."""
    return {
        name: choices[rng.integers(len(choices))]
        for name, choices in options.items()
        if rng.random() < 0.5
    }


def _about(rng: np.random.Generator) -> dict[str, Any]:
    """Return options of metadata: an orientation, a profile, a resolution."""
    exif = Image.Exif()
    exif[TURN] = int(rng.integers(1, 9))
    exif[0x110] = "camera " * int(rng.integers(5))
    return _sample(rng, exif=(exif,), icc_profile=(b"profile" * int(rng.integers(1, 5)),))


def _by_pillow(title: str, data: bytes, modes: tuple[str, ...], rng: np.random.Generator) -> Sample:
    """Return a file with what Pillow reads, upright, in one of these modes of Decode."""
    mode = modes[rng.integers(len(modes))]
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        pixels = np.asarray(ImageOps.exif_transpose(image).convert(mode))
    return Sample(title, data, pixels, mode)


def jpeg(rng: np.random.Generator) -> Sample:
    """Return a JPEG."""
    options = _sample(
        rng, quality=(5, 50, 95, 100), subsampling=("4:4:4", "4:2:2", "4:2:0"), progressive=(True,), optimize=(True,),
        restart_marker_blocks=(1, 7), restart_marker_rows=(1,), comment=(b"text",), dpi=((72, 72),),
    ) | _about(rng)  # fmt: skip
    return _by_pillow(
        f"JPEG {options}", _saved(_image(rng, "L", "RGB"), "JPEG", **options), ("RGB", "RGBA"), rng
    )


def png(rng: np.random.Generator) -> Sample:
    """Return a PNG."""
    image = _image(rng, "1", "L", "LA", "P", "RGB", "RGBA", "I;16")
    options = _sample(rng, optimize=(True,), compress_level=(0, 9), dpi=((72, 72),)) | _about(rng)
    if image.mode == "P":
        options |= _sample(rng, transparency=(0, 1, bytes(range(0, 200, 50))), bits=(8,))
    elif image.mode in ("L", "RGB"):
        pixel = np.asarray(image)[0, 0].tolist()
        options |= _sample(rng, transparency=(pixel if image.mode == "L" else tuple(pixel),))
    if image.mode == "I;16":
        options.pop("exif", None)
        return Sample(
            f"PNG {options}", _saved(image, "PNG", **options), np.asarray(image), "ANY", "uint16"
        )
    return _by_pillow(
        f"PNG {image.mode} {options}", _saved(image, "PNG", **options), ("RGB", "RGBA"), rng
    )


def webp(rng: np.random.Generator) -> Sample:
    """Return a WebP."""
    image = _image(rng, "RGB", "RGBA")
    options = _sample(
        rng, lossless=(True,), quality=(10, 80, 100), method=(0, 6), exact=(True,), alpha_quality=(30, 100),
        xmp=(b"x", b"xml"),
    ) | _about(rng)  # fmt: skip
    if rng.random() < 0.2:
        options |= {"save_all": True, "append_images": [image.rotate(180)]}
        options.pop("exif", None)  # which nobody reads of an animation
    data = _saved(image, "WEBP", **options)
    return _by_pillow(f"WebP {image.mode} {options}", data, ("RGB", "RGBA"), rng)


def tiff(rng: np.random.Generator) -> Sample:
    """Return a TIFF by Pillow."""
    image = _image(rng, "1", "L", "LA", "RGB", "RGBA", "I;16", "I", "F")
    compressions = (
        "raw",
        "packbits",
        "tiff_lzw",
        "tiff_adobe_deflate",
        "tiff_deflate",
        "lzma",
        "zstd",
    )
    options = _sample(rng, compression=compressions, big_tiff=(True,), dpi=((72, 72),)) | _sample(
        rng, exif=(_about(rng).get("exif"),)
    )
    options = {name: value for name, value in options.items() if value is not None}
    if rng.random() < 0.2:
        options |= {"save_all": True, "append_images": [image.copy()]}
    data, title = _saved(image, "TIFF", **options), f"TIFF {image.mode} {options}"
    if image.mode == "1":
        return _by_pillow(title, data, ("RGB",), rng)
    if image.mode in ("RGB", "L") or (image.mode in ("RGBA", "LA") and rng.random() < 0.5):
        return _by_pillow(title, data, ("RGB", "RGBA"), rng)
    with Image.open(io.BytesIO(data)) as again:
        again.load()
        pixels = np.asarray(ImageOps.exif_transpose(again))
    return Sample(title, data, pixels, "ANY", pixels.dtype.name)


def bmp(rng: np.random.Generator) -> Sample:
    """Return a BMP."""
    image = _image(rng, "1", "L", "P", "RGB", "RGBA")
    return _by_pillow(f"BMP {image.mode}", _saved(image, "BMP"), ("RGB", "RGBA"), rng)


def gif(rng: np.random.Generator) -> Sample:
    """Return a GIF."""
    image = _image(rng, "1", "L", "P", "RGB")
    options = _sample(
        rng, interlace=(0, 1), optimize=(True,), transparency=(0, 1), comment=(b"text",)
    )
    if rng.random() < 0.3:
        options |= {"save_all": True, "append_images": [image.rotate(180)], "loop": 0}
    return _by_pillow(
        f"GIF {image.mode} {options}", _saved(image, "GIF", **options), ("RGB", "RGBA"), rng
    )


def avif(rng: np.random.Generator) -> Sample:
    """Return an AVIF."""
    image = _image(rng, "RGB", "RGBA")
    subsamplings = ("4:4:4", "4:2:2", "4:2:0", "4:0:0")
    options = _sample(
        rng, quality=(30, 100), subsampling=subsamplings, speed=(8, 10), range=("full", "limited")
    )
    options |= _about(rng)
    data = _saved(image, "AVIF", **{"speed": 10, "max_threads": 1} | options)
    return _by_pillow(f"AVIF {image.mode} {options}", data, ("RGB", "RGBA"), rng)


def jp2(rng: np.random.Generator) -> Sample:
    """Return a JPEG 2000 image without loss."""
    image = _image(rng, "L", "LA", "RGB", "RGBA", "I;16")
    options = _sample(
        rng, no_jp2=(True,), tile_size=((16, 16), (64, 64)), num_resolutions=(1, 2), mct=(0, 1), plt=(True,),
        progression=("LRCP", "RPCL", "CPRL"), codeblock_size=((16, 16),), precinct_size=((32, 32),), comment=(b"text",),
    )  # fmt: skip
    try:
        data, title = _saved(image, "JPEG2000", **options), f"JPEG 2000 {image.mode} {options}"
    except OSError:  # OpenJPEG does not write some small images
        return jp2(rng)
    if image.mode in ("I;16", "L"):
        with Image.open(
            io.BytesIO(data)
        ) as again:  # an odd precinct makes Pillow write other values
            return Sample(
                title, data, np.asarray(again), "ANY", "uint16" if image.mode == "I;16" else "uint8"
            )
    return _by_pillow(title, data, ("RGB", "RGBA") if image.mode != "LA" else ("RGB",), rng)


def pnm(rng: np.random.Generator) -> Sample:
    """Return a PNM, binary or as text, of any largest value, with its own numbers; or a PFM."""
    kind = int(rng.integers(1, 7))
    largest = 1 if kind in (1, 4) else int(rng.choice([1, 100, 255, 256, 1023, 4095, 65535]))
    numbers = values(rng, "uint16", 3 if kind in (3, 6) else 1).astype(np.int64) % (largest + 1)
    height, width, _ = numbers.shape
    note = (b"", b"# a note\n")[rng.integers(2)]
    head = b"P%d\n%s%d %d\n" % (kind, note, width, height) + (
        b"" if kind in (1, 4) else b"%d\n" % largest
    )
    if kind == 4:
        content = np.packbits(numbers[..., 0].astype(np.uint8), axis=1).tobytes()
    elif kind > 3:
        content = numbers.astype(">u2" if largest > 255 else "u1").tobytes()
    else:
        space = (
            (b"", b" ", b"\n")[rng.integers(3)]
            if kind == 1
            else (b" ", b"\n", b" # note\n")[rng.integers(3)]
        )
        content = space.join(b"%d" % number for number in numbers.ravel()) + b"\n"
    return Sample(f"PNM {kind} to {largest}", head + content, numbers, "ANY", "uint16")


def pam(rng: np.random.Generator) -> Sample:
    """Return a PAM of any tuple type and largest value, with its own numbers."""
    largest = int(rng.choice([1, 100, 255, 256, 4095, 65535]))
    kind, depth = [("BLACKANDWHITE", 1), ("GRAYSCALE", 1), ("RGB", 3), ("GRAYSCALE_ALPHA", 2), ("RGB_ALPHA", 4),
                   ("", 1), ("", 3), ("depth", 5)][rng.integers(8)]  # fmt: skip
    numbers = values(rng, "uint16", depth).astype(np.int64) % (largest + 1)
    height, width, _ = numbers.shape
    lines = [f"WIDTH {width}", f"HEIGHT {height}", f"DEPTH {depth}", f"MAXVAL {largest}"]
    lines += [f"TUPLTYPE {kind}"] * bool(kind) + ["# a note"] * int(rng.integers(2))
    head = "\n".join(["P7", *rng.permutation(lines).tolist(), "ENDHDR", ""]).encode()
    content = numbers.astype(">u2" if largest > 255 else "u1").tobytes()
    return Sample(f"PAM {kind} to {largest}", head + content, numbers, "ANY", "uint16")


def opencv(rng: np.random.Generator) -> Sample:
    """Return a file of 16 bits or floats by OpenCV."""
    suffix, dtype, channels = [
        (".png", "uint16", 1), (".png", "uint16", 3), (".png", "uint16", 4), (".png", "uint8", 4),
        (".pgm", "uint16", 1), (".ppm", "uint16", 3), (".pfm", "float32", 1), (".pfm", "float32", 3),
        (".tiff", "float32", 1), (".tiff", "uint16", 3), (".tiff", "uint16", 1), (".jp2", "uint16", 1),
        (".jp2", "uint16", 3), (".bmp", "uint8", 4), (".webp", "uint8", 4),
    ][rng.integers(15)]  # fmt: skip
    array = values(rng, dtype, channels)
    if suffix == ".webp":
        array[..., 3] |= 1  # where alpha is 0, OpenCV writes other colours
    stored = (
        array
        if channels == 1
        else cv2.cvtColor(array, cv2.COLOR_RGB2BGR if channels == 3 else cv2.COLOR_RGBA2BGRA)
    )
    words = [cv2.IMWRITE_WEBP_QUALITY, 101] if suffix == ".webp" else []
    if suffix == ".jp2":
        words = [cv2.IMWRITE_JPEG2000_COMPRESSION_X1000, 1000]
    if suffix == ".jp2" and min(array.shape[:2]) < 32:  # for its number of resolutions
        return opencv(rng)
    _, data = cv2.imencode(suffix, stored, words)
    return Sample(f"OpenCV {suffix} {dtype} of {channels}", data.tobytes(), array, "ANY", dtype)


def tifffile(rng: np.random.Generator) -> Sample:
    """Return a TIFF by tifffile, of any dtype, channels, arrangement and compression that it
    writes."""
    import tifffile as library

    while True:
        dtype, channels = str(rng.choice(TIFF_DTYPES)), int(rng.choice([1, 1, 2, 3, 4, 5, 13]))
        array, is_planar = values(rng, dtype, channels), channels > 1 and rng.random() < 0.4
        compression = [None, "zlib", "lzw", "packbits", "zstd", "lzma", "webp", "png", "jpeg2000"][
            rng.integers(9)
        ]
        options: dict[str, Any] = {
            "compression": compression,
            "byteorder": "<>"[rng.integers(2)],
            "metadata": None,
        }
        options["photometric"] = (
            "rgb" if channels in (3, 4) and rng.random() < 0.6 else "minisblack"
        )
        options["planarconfig"] = {1: None}.get(channels, "separate" if is_planar else "contig")
        options["predictor"] = compression in ("zlib", "lzw", "zstd", "lzma") and bool(
            rng.integers(2)
        )
        options |= _sample(rng, tile=((16, 32), (64, 16)), bigtiff=(True,))
        turn = int(rng.choice([1, 1, *range(1, 9)]))
        options["extratags"] = [(TURN, 3, 1, turn, True)]
        palette = rng.integers(0, 65536, (3, 256), np.uint16)
        has_palette = channels == 1 and dtype == "uint8" and rng.random() < 0.5
        if has_palette:
            options |= {"photometric": "palette", "colormap": palette}
        if "tile" not in options:
            options["rowsperstrip"] = int(rng.integers(1, 50))
        stored = np.moveaxis(array, 2, 0) if is_planar else array
        stored, file = stored.squeeze(2) if channels == 1 else stored, io.BytesIO()
        try:
            library.imwrite(file, np.ascontiguousarray(stored), **options)
            pixels = library.imread(io.BytesIO(file.getvalue()), key=0)
        except Exception:  # of any codec, for what its compression does not hold
            continue
        pixels = np.moveaxis(pixels, 0, 2) if is_planar else pixels.reshape(array.shape)
        title = f"tifffile {dtype} of {channels} {options}"
        if has_palette:
            pixels, dtype = palette.T[pixels[..., 0]], "uint16"
        return Sample(title, file.getvalue(), upright(pixels, turn), "ANY", dtype)


MAKERS: dict[str, Callable[[np.random.Generator], Sample]] = {
    "jpeg": jpeg, "png": png, "webp": webp, "tiff": tiff, "bmp": bmp, "gif": gif, "avif": avif, "jp2": jp2, "pnm": pnm,
    "pam": pam,
    "opencv": opencv, "tifffile": tifffile,
}  # fmt: skip
