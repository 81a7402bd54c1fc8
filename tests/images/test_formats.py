"""All formats but JPEG and PNG: heads, pixels and damage, beside DALI and Pillow."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import time
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from gpuload.errors import MissingPackageError, SpecError
from gpuload.images import decode as decoding
from gpuload.images import head as heads
from gpuload.images.decode import ImageError, decode
from gpuload.images.head import HeadError, UnsupportedError
from tests import imagefiles
from tests.images import by_dali

GOLDEN = Path(__file__).parents[1] / "golden" / "image_formats"
FILES = sorted(path for path in GOLDEN.rglob("*") if path.is_file() and path.suffix != ".md")
REFUSED = {  # with what must be said about each
    "bmp/Pillow/badheadersize.bmp": "header is 66 bytes",
    "bmp/Pillow/rgb24jpeg.bmp": "with JPEG",
    "bmp/Pillow/rgba16-4444.bmp": "16 bits for a pixel",
    "bmp/Pillow/shortfile.bmp": "cut off",
    "bmp/image/Bad_unusual_extend_buffer_usage.bmp": "RLE4",
    "bmp/image/Bad_width.bmp": "12884901882 pixels",
    "bmp/image/badrle.bmp": "longer than 127",
    "bmp/image/pal2.bmp": "2 bits for a pixel",
    "bmp/image/pal4rletrns.bmp": "RLE4",
    **{f"bmp/image/{name}.bmp": "16 bits for a pixel" for name in (
        "V3_A1_R5_G5_B5", "V3_A4_R4_G4_B4", "V3_A4_R4_G4_B4_Top_Down", "rgb16-231", "rgb16-880")},
    "gif/Pillow/no_palette.gif": "without a palette",
    "gif/image/issue_1455_oversized.gif": "first frame is 16 x 16",
    "jp2/Pillow/00r0_gray_l.jp2": "cut off",
}  # fmt: skip
WIDE_BMP = {f"bmp/image/{name}.bmp" for name in (
    "V3_R5_G6_B5", "V3_R5_G6_B5_Top_Down", "V4_R5_G6_B5", "rgb16", "rgb16-565")}  # fmt: skip
RARE = {  # which DALI does not read: `test_samples` and `test_modes` do
    "tiff/Pillow/hopper_gray_4bpp.tif", "tiff/image/rgb32f_bw.tiff", "tiff/image/rgb32f_color.tiff",
    "tiff/imagecodecs/gray.f2.tif", "tiff/imagecodecs/gray.one.f2.tif", "tiff/imagecodecs/rgb.tiled.jpegxr.u1.tif",
    "jp2/Pillow/16bit.cropped.j2k", "webp/Pillow/hopper_orientation_2.webp", "webp/Pillow/hopper_orientation_6.webp",
    *WIDE_BMP,
}  # fmt: skip


def name_of(path):
    return path.relative_to(GOLDEN).as_posix()


READ = [path for path in FILES if name_of(path) not in REFUSED and name_of(path) not in RARE]
SMALL = [path for path in READ if path.stat().st_size < 5000]


def decoded(data, mode="RGB", region=None, dtype="uint8"):
    array = np.frombuffer(data, np.uint8)
    return decode(array, heads.read(array), mode, region, dtype=dtype)


def as_dali(data, *options, **extra):
    """Return the pixels, or None where Pillow refuses the file because it reads it in another way
    than DALI."""
    try:
        return decoded(data, *options, **extra)
    except ImageError as error:
        if "Pillow does not decode" in str(error):
            return None
        raise


def by_pillow(data):
    """Return the pixels as Pillow's own reader sees them, upright, RGB."""
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def photograph(height=30, width=41, channels=3):
    y, x = np.mgrid[:height, :width]
    planes = [
        (y * 5 + x * 3) % 256,
        (x * x // 7 + y) % 256,
        255 * ((x // 5 + y // 4) % 2),
        (x + y) % 200,
    ]
    bands = np.stack(planes[:channels], axis=2).astype(np.uint8)
    return Image.fromarray(bands.squeeze(axis=2) if channels == 1 else bands)


@pytest.mark.parametrize("path", [path for path in FILES if name_of(path) in REFUSED], ids=name_of)
def test_files_that_decoders_read_differently_or_not_at_all_are_refused_by_name(path):
    with pytest.raises(HeadError, match=REFUSED[name_of(path)]):
        heads.read(path.read_bytes())


def test_every_file_that_is_to_be_refused_is_there():
    assert REFUSED.keys() <= {name_of(path) for path in FILES}


@pytest.mark.parametrize("path", READ, ids=name_of)
class TestFilesOfOtherProjects:
    def test_their_pixels_are_those_of_dali(self, codec_name, path):
        data = path.read_bytes()
        kind = heads.read(data).kind
        assert kind == path.relative_to(GOLDEN).parts[0]
        pixels = as_dali(data)

        if codec_name == "nvimgcodec" or pixels is not None:
            np.testing.assert_array_equal(
                pixels, by_dali(data) if heads.FORMATS[kind].in_dali else by_pillow(data)
            )

    def test_they_are_those_of_pillow_where_it_reads_the_same(self, path):
        data = path.read_bytes()
        head = heads.read(data)
        if head.form in decoding.UNLIKE or head.bits > 8:
            pytest.skip("Pillow keeps 8 bits of 16, multiplies by alpha, or does not read it")

        np.testing.assert_array_equal(decoded(data), by_pillow(data))

    def test_a_region_is_that_cut(self, codec_name, path):
        data = path.read_bytes()
        head = heads.read(data)
        height, width = max(1, head.height // 2), max(1, head.width // 3)
        region = head.height - height, head.width // 3, height, width
        if (pixels := as_dali(data, region=region)) is None:
            return

        whole = decoded(data)[region[0] :, region[1] : region[1] + width]
        np.testing.assert_array_equal(pixels, whole)
        if heads.FORMATS[head.kind].in_dali:
            np.testing.assert_array_equal(pixels, by_dali(data, region))

    def test_all_16_bits_are_kept_and_8_bits_are_widened(self, codec_name, path):
        data = path.read_bytes()
        if (deep := as_dali(data, dtype="uint16")) is None:
            return

        pixels = decoded(data)
        assert deep.dtype == np.uint16
        if heads.read(data).bits == 8:
            np.testing.assert_array_equal(deep, pixels * np.uint16(257))
        np.testing.assert_array_equal(np.rint(deep / 257), pixels)
        if heads.FORMATS[heads.read(data).kind].in_dali:
            np.testing.assert_array_equal(deep, by_dali(data, dtype="UINT16"))

    def test_gray_is_that_of_the_colours(self, codec_name, path):
        data = path.read_bytes()
        if (item := as_dali(data, "GRAY")) is None:
            return

        three = decoded(data).astype(np.int64)
        weighted = (
            9798 * three[..., 0] + 19235 * three[..., 1] + 3735 * three[..., 2] + (1 << 14)
        ) >> 15
        np.testing.assert_array_equal(item[..., 0], weighted)


@pytest.mark.parametrize("path", SMALL, ids=name_of)
def test_a_file_that_is_cut_off_is_refused(codec_name, path):
    data = path.read_bytes()
    whole = None
    lengths = np.unique(np.linspace(0, len(data) - 1, 40).astype(int)).tolist()
    for length in lengths:
        try:
            pixels = decoded(data[:length])
        except (HeadError, ImageError):
            continue
        whole = decoded(data) if whole is None else whole
        np.testing.assert_array_equal(pixels, whole)  # what was cut off was no part of the image


def levels(shape, bits):
    return np.random.default_rng(1).integers(0, 2**bits, shape)


def packed(values, bits):
    """Return rows of samples of so many bits, the highest bit first."""
    rows = []
    for row in values.reshape(len(values), -1):
        spread = (row[:, None] >> np.arange(bits - 1, -1, -1)) & 1
        rows.append(np.packbits(spread.astype(np.uint8).ravel()).tobytes())
    return b"".join(rows)


def decoders_of(data, dtype="uint8"):
    """Return what both DALI and nvImageCodec see."""
    pytest.importorskip("nvidia.dali")
    array = np.frombuffer(data, np.uint8)
    pixels = decoding._nvimagecodec().decode(array, heads.read(array), None, dtype)
    if pixels.dtype != dtype:
        pixels = decoded(data, dtype=dtype)
    np.testing.assert_array_equal(pixels, by_dali(data, dtype=dtype.upper()))
    return pixels


class TestTiff:
    @pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
    @pytest.mark.parametrize("channels", [1, 3, 4])
    @pytest.mark.parametrize("order", "<>")
    def test_samples_of_more_than_8_bits_are_moved_up_to_16(self, bits, channels, order):
        values = levels((13, 21, channels), bits)
        raw = values.astype(order + "u2").tobytes() if bits == 16 else packed(values, bits)

        pixels = decoders_of(
            imagefiles.tiff(13, 21, channels, bits, order=order, pieces=[raw]), "uint16"
        )

        wide = values * 257 if bits == 8 else values << (16 - bits)
        np.testing.assert_array_equal(
            pixels, np.repeat(wide, 3, 2) if channels == 1 else wide[..., :3]
        )

    @pytest.mark.parametrize("bits", [1, 8])
    @pytest.mark.parametrize("white_is_0", [False, True])
    def test_white_may_be_0(self, codec_name, bits, white_is_0):
        values = levels((13, 21, 1), bits)
        data = imagefiles.tiff(
            13,
            21,
            1,
            bits,
            pieces=[packed(values, bits)],
            tags={262: (3, [0 if white_is_0 else 1])},
        )

        gray = values * (255 // (2**bits - 1))

        np.testing.assert_array_equal(
            decoded(data), np.repeat(255 - gray if white_is_0 else gray, 3, 2)
        )

    @pytest.mark.parametrize("bits", [1, 2, 4, 8])
    def test_a_palette_has_colours_of_16_bits(self, bits):
        values, colours = levels((13, 21, 1), bits), levels((3, 2**bits), 16)
        tags = {262: (3, [3]), 320: (3, colours.ravel().tolist())}

        pixels = decoders_of(
            imagefiles.tiff(13, 21, 1, bits, pieces=[packed(values, bits)], tags=tags), "uint16"
        )

        np.testing.assert_array_equal(pixels, colours.T[values[..., 0]])

    @pytest.mark.parametrize("extra", [0, 1, 2])
    def test_a_fourth_channel_is_dropped(self, extra):
        values = levels((13, 21, 4), 8).astype(np.uint8)

        pixels = decoders_of(
            imagefiles.tiff(13, 21, 4, pieces=[values.tobytes()], tags={338: (3, [extra])})
        )

        np.testing.assert_array_equal(pixels, values[..., :3])

    def test_cmyk_is_that_of_a_jpeg(self, codec_name):
        values = levels((13, 21, 4), 8)
        data = imagefiles.tiff(
            13, 21, 4, pieces=[values.astype(np.uint8).tobytes()], tags={262: (3, [5])}
        )

        np.testing.assert_array_equal(
            decoded(data), (255 - values[..., :3]) * (255 - values[..., 3:]) // 255
        )

    @pytest.mark.parametrize("turn", range(1, 9))
    @pytest.mark.parametrize("bits", [8, 16])
    def test_it_is_turned(self, codec_name, turn, bits):
        data = imagefiles.tiff(13, 21, 1, bits, tags={274: (3, [turn])})

        upright = by_dali(data)

        assert upright.shape[:2] == ((21, 13) if turn > 4 else (13, 21))
        np.testing.assert_array_equal(decoded(data), upright)

    @pytest.mark.parametrize(
        "options",
        [{"rows": 4}, {"rows": 5, "planar": True}, {"big": True}, {"order": ">"}],
        ids=str,
    )
    def test_strips_planes_and_forms(self, codec_name, options):
        data = imagefiles.tiff(**options)

        np.testing.assert_array_equal(decoded(data), by_pillow(data))

    @pytest.mark.parametrize(
        "compression", ["tiff_lzw", "tiff_adobe_deflate", "tiff_deflate", "packbits", "jpeg", None]
    )
    @pytest.mark.parametrize("channels", [1, 3])
    def test_compressions(self, codec_name, compression, channels):
        data = saved(photograph(200, 300, channels), "TIFF", compression=compression)

        np.testing.assert_array_equal(decoded(data), by_pillow(data))

    @pytest.mark.parametrize("lengths", [(32,), (12, 12, 8), (12, 12, 8, 8), (8, 8, 9, 7)], ids=str)
    def test_packbits_runs_across_rows_are_refused(self, lengths):
        raw = bytes(range(10, 42)) + bytes(8)
        ends = np.cumsum(lengths).tolist()
        runs = b"".join(
            bytes([length - 1]) + raw[end - length : end]
            for length, end in zip(lengths, ends, strict=True)
        )

        with pytest.raises(HeadError, match="PackBits data reaches across rows, of 8 bytes"):
            heads.read(imagefiles.tiff(4, 8, 1, pieces=[runs], tags={259: (3, [32773])}))

    @pytest.mark.parametrize("tail", [b"", b"\x80", b"\7" + bytes(8)])
    def test_packbits_runs_within_rows_are_read(self, codec_name, tail):
        rows = np.arange(10, 42, dtype=np.uint8).reshape(4, 8)
        runs = (
            b"".join(b"\3" + row[:4].tobytes() + b"\x80\3" + row[4:].tobytes() for row in rows)
            + tail
        )
        data = imagefiles.tiff(4, 8, 1, pieces=[runs], tags={259: (3, [32773])})

        assert decoded(data)[..., 0].tolist() == rows.tolist()

    def test_packbits_runs_across_rows_of_a_tile_are_read(self, codec_name):
        rows = imagefiles.pixels(16, 16, 1)
        runs = b"".join(b"\x7f" + rows.tobytes()[begin : begin + 128] for begin in (0, 128))
        tiles = {
            322: (3, [16]),
            323: (3, [16]),
            324: (4, [0]),
            325: (4, [len(runs)]),
            273: None,
            278: None,
            279: None,
        }
        data = imagefiles.tiff(16, 16, 1, pieces=[runs], tags={259: (3, [32773]), **tiles})

        np.testing.assert_array_equal(decoded(data)[..., 0], rows[..., 0])

    def test_bits_that_no_tag_gives_are_one(self, codec_name):
        data = imagefiles.tiff(8, 8, 1, 1, pieces=[bytes(range(1, 9))], tags={258: None})
        content = saved(
            Image.fromarray((np.indices((8, 8)).sum(0) % 2 * 255).astype("u1")).convert("1"), "TIFF"
        )

        for file in (data, content):
            np.testing.assert_array_equal(decoded(file), by_pillow(file))
            assert (
                heads.foreign_to_dali(np.frombuffer(file, np.uint8)) == "TIFF without BitsPerSample"
            )

    @pytest.mark.parametrize("compression", ["group3", "group4", "tiff_ccitt"])
    def test_faxes(self, codec_name, compression):
        data = saved(photograph().convert("1"), "TIFF", compression=compression)

        np.testing.assert_array_equal(decoded(data), by_pillow(data))

    @pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_adobe_deflate", "packbits"])
    def test_pixels_that_are_short_are_refused(self, compression):
        whole = saved(photograph(200, 300), "TIFF", compression=compression, strip_size=10**9)
        with Image.open(io.BytesIO(whole)) as image:
            (begin,), (size,) = image.tag_v2[273], image.tag_v2[279]
        short = {
            "tiff_lzw": saved(
                photograph(100, 300), "TIFF", compression="tiff_lzw", strip_size=10**9
            )
        }
        less = struct.pack("<I", size // 2)
        place = whole.index(struct.pack("<HHII", 279, 4, 1, size)) + 8

        with pytest.raises(HeadError, match=r"damaged|do not end"):
            heads.read(imagefiles.replaced(whole, place, *less))
        if compression == "tiff_lzw":
            second = short["tiff_lzw"]
            with Image.open(io.BytesIO(second)) as image:
                (start,), (length,) = image.tag_v2[273], image.tag_v2[279]
            with pytest.raises(HeadError, match="damaged"):
                heads.read(
                    whole[:begin]
                    + second[start : start + length]
                    + bytes(size - length)
                    + whole[begin + size :]
                )

    @pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_adobe_deflate"])
    def test_changed_pixels_are_mostly_refused_and_never_make_decoders_differ(self, compression):
        whole = saved(photograph(60, 70), "TIFF", compression=compression)
        rng = np.random.default_rng(3)
        with Image.open(io.BytesIO(whole)) as image:
            begin = image.tag_v2[273][0]
        error = 0
        for _ in range(30):
            place = int(rng.integers(begin, len(whole) - 200))
            data = imagefiles.replaced(whole, place, *rng.integers(0, 256, 4).tolist())
            try:
                heads.read(data)
            except HeadError:
                error += 1
            else:
                decoders_of(data)
        assert error > (20 if compression == "tiff_adobe_deflate" else 0)

    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"tags": {262: (3, [6])}}, "not supported: a TIFF of YCbCr"),
            ({"tags": {262: (3, [32803])}}, "not supported: a TIFF of a colour filter"),
            ({"tags": {262: None}}, "kind of colours"),
            ({"tags": {339: (3, [3, 3, 3])}}, "not supported: a TIFF of floating-point samples of 8 bits"),
            ({"bits": 64, "tags": {339: (3, [2, 2, 2])}}, "not supported: a TIFF of signed samples of 64 bits"),
            ({"bits": 64, "tags": {339: (3, [6, 6, 6])}}, "not supported: a TIFF of complex samples of 64 bits"),
            ({"tags": {258: (3, [8, 8, 4])}}, "bits per sample"),
            ({"tags": {259: (3, [1792])}}, "not supported: a TIFF of compression 1792"),
            ({"channels": 1, "tags": {262: (3, [2])}}, "1 channels, and its colours are RGB"),
            ({"tags": {256: None}}, "no width"), ({"tags": {256: (4, [0])}}, "x 0 pixels"),
            ({"tags": {277: None}}, "for 1 channels"), ({"tags": {254: (4, [1])}}, "small copy"),
            ({"tags": {32997: (4, [3])}}, "volume"), ({"tags": {279: None}}, "0 lengths"),
            ({"tags": {279: (4, [2**31])}}, "cut off"), ({"tags": {279: (4, [100])}}, "100 of 819"),
            ({"tags": {273: (4, [2**31])}, "pieces": [b""]}, "damaged|cut off"), ({"tags": {278: (4, [0])}}, "no rows"),
            ({"rows": 1, "tags": {279: (4, [200] * 9 + [63] * 4)}}, "in one another"),
            ({"tags": {278: (4, [5])}}, "1 places and 1 lengths for 3"), ({"tags": {266: (3, [2])}}, "reverse"),
            ({"channels": 1, "tags": {262: (3, [3])}}, "palette has 0"), ({"tags": {256: (12, [1.0])}}, "type 12"),
            ({"tags": {322: (3, [15]), 323: (3, [16])}}, "multiples of 16"),
            ({"tags": {322: (4, [2**31 - 16]), 323: (4, [2**31 - 16])}}, "pixels; at most"),
            ({"big": True, "tags": {279: (16, [2**63])}}, "holds 9223372036854775808"),
            # Each place and its length, and all lengths, have a sum that is negative in an int64.
            ({"big": True, "rows": 7, "tags": {273: (16, [2**62] * 2), 279: (16, [2**62] * 2)}}, "holds 46116860184"),
        ],
    )  # fmt: skip
    def test_what_is_read_wrongly_or_not_at_all_is_refused(self, options, match):
        with pytest.raises(HeadError, match=match):
            heads.read(imagefiles.tiff(**options))

    @pytest.mark.parametrize("place", [0, 1, 2**31, 2**32 - 1])
    def test_a_first_page_that_is_not_there_is_refused(self, place):
        with pytest.raises(HeadError):
            heads.read(b"II*\0" + struct.pack("<I", place) + bytes(50))


MASKS = (0xFF, 0xFF00, 0xFF0000, 0xFF000000)


class TestBmp:
    @pytest.mark.parametrize("header", [12, 40, 52, 56, 64, 108, 124])
    @pytest.mark.parametrize("bits", [1, 4, 8, 24])
    def test_headers_and_depths(self, codec_name, header, bits):
        data = imagefiles.bmp(bits=bits, header=header)

        np.testing.assert_array_equal(decoded(data), by_pillow(data))

    @pytest.mark.parametrize("top_down", [False, True])
    @pytest.mark.parametrize(
        "options", [{"bits": 32}, {"bits": 8, "colours": 100}, {"bits": 4, "colours": 7}], ids=str
    )
    def test_rows_palettes_and_a_fourth_byte(self, codec_name, options, top_down):
        data = imagefiles.bmp(top_down=top_down, **options)

        np.testing.assert_array_equal(decoded(data), by_pillow(data))

    @pytest.mark.parametrize("header", [56, 108, 124])
    @pytest.mark.parametrize("order", [(2, 1, 0, 3), (0, 1, 2, 3), (3, 2, 1, 0), (3, 2, 1, None)])
    def test_masks_name_the_bytes_of_the_channels(self, header, order):
        values = levels((13, 21), 32).astype(np.uint32)
        masks = tuple(0 if number is None else MASKS[number] for number in order)

        pixels = decoders_of(
            imagefiles.bmp(13, 21, 32, 3, header=header, masks=masks, content=values.tobytes())
        )

        expected = np.stack(
            [values >> np.uint32(8 * number) & np.uint32(255) for number in order[:3]], axis=2
        )
        np.testing.assert_array_equal(pixels, expected[::-1])

    def test_runs(self, codec_name):
        runs = (
            b"".join(b"\x10" + bytes([row]) + b"\0\5abcde\0\0\0" for row in range(12))
            + b"\x15\7\0\1"
        )
        data = imagefiles.bmp(bits=8, compression=1, content=runs)

        np.testing.assert_array_equal(decoded(data), by_pillow(data))

    @pytest.mark.parametrize("name", sorted(WIDE_BMP))
    def test_16_bits_of_other_projects_are_widened_as_by_pillow(self, name):
        data = (GOLDEN / name).read_bytes()

        np.testing.assert_array_equal(decoded(data), by_pillow(data))
        assert (
            heads.foreign_to_dali(np.frombuffer(data, np.uint8)) == "BMP (of 16 bits for a pixel)"
        )

    @pytest.mark.parametrize("masks", [(), (0x7C00, 0x3E0, 0x1F), (0xF800, 0x7E0, 0x1F)])
    @pytest.mark.parametrize("header", [40, 108])
    def test_16_bits_written_byte_by_byte(self, masks, header):
        values = levels((13, 22), 16).astype(np.uint16)
        data = imagefiles.bmp(
            13,
            22,
            16,
            3 if masks else 0,
            header=header,
            masks=masks,
            content=values.tobytes(),
            top_down=True,
        )

        masks = masks or (0x7C00, 0x3E0, 0x1F)
        expected = np.stack(
            [(values & mask).astype(np.int64) * 255 // mask for mask in masks], axis=2
        )
        np.testing.assert_array_equal(decoded(data), expected)

    def test_16_bits_with_alpha_are_refused(self):
        masks = (0x7C00, 0x3E0, 0x1F, 0x8000)
        with pytest.raises(UnsupportedError, match="masks 0x7c00, 0x3e0, 0x1f, 0x8000") as error:
            heads.read(imagefiles.bmp(bits=16, compression=3, header=108, masks=masks))
        assert (
            "imagecodecs.imread(path)" in heads.row_error(0, error.value).remedy
        )  # Pillow drops the alpha

    @pytest.mark.parametrize(
        "runs", [b"\x15\1\0\0" * 5 + b"\0\1", b"\x14\1\0\0" * 13, b"\0\2\5\5\0\1"]
    )
    def test_runs_that_leave_out_pixels_are_no_damage(self, runs):
        with pytest.raises(UnsupportedError, match="decoders fill") as error:
            heads.read(imagefiles.bmp(bits=8, compression=1, content=runs))
        assert "PIL.Image.open(path)" in heads.row_error(0, error.value).remedy

    @pytest.mark.parametrize(
        "runs",
        [b"\x15\1\0\0" * 12, b"\x15\1\0\0" * 5 + b"\0\1", b"\x14\1\0\0" * 13, b"\x16\1\0\0" * 13, b"\0\2\5\5\0\1", b"",
         b"\xff\1" * 2, b"\x15\1\0\0" * 12 + b"\x14\1\0\1"],
    )  # fmt: skip
    def test_runs_that_do_not_fill_the_rows_are_refused(self, runs):
        with pytest.raises(HeadError):
            heads.read(imagefiles.bmp(bits=8, compression=1, content=runs))

    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"bits": 16, "header": 12}, "16 bits"), ({"bits": 2}, "2 bits"), ({"bits": 4, "compression": 2}, "RLE4"),
            ({"bits": 24, "compression": 3, "masks": (1, 2, 3)}, "bit fields"),
            ({"bits": 32, "compression": 3, "masks": (255, 65280, 16711680)}, "masks"),
            ({"bits": 32, "compression": 6, "masks": (1, 2, 3, 4)}, "bit fields"), ({"compression": 4}, "JPEG"),
            ({"compression": 5}, "PNG"), ({"compression": 99}, "compression 99"), ({"header": 41}, "header is 41"),
            ({"bits": 8, "colours": 300}, "300 colours"), ({"begin": 10}, "byte 10"),
            ({"begin": 10**6}, "byte 1000000"), ({"begin": 60}, "cut off"), ({"width": 0}, "x 0 pixels"),
            ({"content": bytes(800)}, "832 bytes"), ({"height": 2**31 - 1, "content": b""}, "at most"),
        ],
    )  # fmt: skip
    def test_what_is_read_wrongly_or_not_at_all_is_refused(self, options, match):
        with pytest.raises(HeadError, match=match):
            heads.read(imagefiles.bmp(**options))


def pam(*lines, content=b"\1\2"):
    """Return a PAM of 1 x 2 pixels to 255."""
    return (
        "\n".join(["P7", "WIDTH 2", "HEIGHT 1", "MAXVAL 255", *lines, "ENDHDR", ""]).encode()
        + content
    )


class TestPnm:
    @pytest.mark.parametrize("kind", range(1, 7))
    @pytest.mark.parametrize("limit", [255, 65535])
    def test_each_kind_holds_its_samples(self, codec_name, kind, limit):
        limit = 1 if kind in (1, 4) else limit
        values = levels((13, 21, 3 if kind in (3, 6) else 1), 16) % (limit + 1)
        data = imagefiles.pnm(kind, most=limit, values=values, comment=b"# made by hand 12\n")
        if codec_name == "Pillow" and kind in (3, 6) and limit > 255:
            with pytest.raises(
                ImageError, match="Pillow does not decode colours of more than 8 bits"
            ):
                decoded(data)
            return

        wide = 65535 * (1 - values) if limit == 1 else values * (65535 // limit)

        np.testing.assert_array_equal(
            decoded(data, dtype="uint16"), np.repeat(wide, 3 // wide.shape[2], 2)
        )

    @pytest.mark.parametrize("content", [b"#@\n8", b"1\n 2", b"\t\n#@", b"    "])
    def test_bits_that_look_like_text_are_bits(self, codec_name, content):
        bits = np.unpackbits(np.frombuffer(content, np.uint8)).reshape(4, 8)
        data = b"P4 8 4\n" + content

        np.testing.assert_array_equal(decoded(data)[..., 0], 255 * (1 - bits))
        assert heads.foreign_to_dali(np.frombuffer(data, np.uint8)).startswith("PNM (")

    @pytest.mark.parametrize(
        "data", [b"P3 1 1 255 1 2 30", b"P2 3 1 9 0 5 9", b"P1 3 2 101010", b"P2 1 1 65535 65000"]
    )
    def test_the_last_number_may_end_with_the_file(self, codec_name, data):
        with Image.open(io.BytesIO(data)) as image:
            deep = image.mode.startswith("I")
            expected = np.asarray(image if deep else image.convert("RGB"))

        pixels = decoded(data, dtype="uint16" if deep else "uint8")
        np.testing.assert_array_equal(
            pixels, np.repeat(expected[..., None], 3, axis=2) if deep else expected
        )

    @pytest.mark.parametrize(
        ("data", "match"),
        [
            (imagefiles.pnm(5, most=0, values=np.zeros((13, 21, 1), np.int64)), "largest value is 0"),
            (imagefiles.pnm(5, most=100, values=np.full((13, 21, 1), 101)), "sample of it is 101"),
            (imagefiles.pnm(5)[:-1], "272 bytes, of 273"), (imagefiles.pnm(4)[:-1], "cut off"),
            (imagefiles.pnm(2).rsplit(None, 1)[0], "272 of 273"),
            (imagefiles.pnm(1)[:-3], "of 273"),
            (b"P1 3 2\n10101\n", "5 of 6"),
            (b"P1 3 2\n1 0 2 0 1 0\n", "sample of it is 2"), (b"P2 3 2 255\n1 0 1 0 300 1\n", "sample of it is 300"),
            (b"P2 3 2 255\n1 0 1 0 -3 1\n", "stands b'-3'"), (b"P2 3 2 255\n1 0 1#c\n 0 3 \n", "5 of 6"),
            (b"P5 3 2 255\r\n123456", "two bytes"), (b"P5 21#c\n 13\n255\n" + bytes(273), "no width"),
            (b"P5 0 2 255\n", "x 0 pixels"), (b"P5 -3 2 255\n123456", "no width"), (b"P5 3 2 255", "no largest"),
            (b"P5 99999 99999 255\n" + bytes(100), "at most"), (b"P5 " + bytes(70_000), "no width"),
            (b"P7\nWIDTH 2\nHEIGHT 1\nDEPTH 1\n", "does not end"),
            (pam("DEPTH 3", "TUPLTYPE GRAYSCALE"), "its depth is 3"),
            (pam("DEPTH 0"), "its depth is 0"), (pam("DEPTH 1", "DEPTH 1"), "a line of its header is DEPTH 1"),
            (pam(), "gives no DEPTH"), (pam("DEPTH 1")[:-2], "0 bytes, of 2"), (pam("DEPTH x"), "is DEPTH x"),
            (b"P5 " + b"#" * 70_000, "no width"), (b"P2 3 2 255\n" + b"1" * 3_000_000, "stands b'11111111'|0 of 6"),
        ],
    )  # fmt: skip
    def test_others_are_refused(self, data, match):
        with pytest.raises(HeadError, match=match):
            heads.read(data)


class TestWebp:
    lossy, lossless = (
        saved(photograph(), "WEBP", quality=80),
        saved(photograph(), "WEBP", lossless=True),
    )
    exif = imagefiles.exif(imagefiles.turned(6))

    def extended(self, flags, *extra, data=None):
        return imagefiles.webp(
            imagefiles.canvas(30, 41, flags), imagefiles.webp_chunk(data or self.lossy), *extra
        )

    @pytest.mark.parametrize("turn", range(1, 9))
    def test_it_is_turned_as_its_exif_block_says(self, codec_name, turn):
        data = self.extended(8, (b"EXIF", imagefiles.exif(imagefiles.turned(turn))))

        np.testing.assert_array_equal(decoded(data), by_dali(data))
        np.testing.assert_array_equal(decoded(data), by_pillow(data))

    @pytest.mark.parametrize("turn", range(1, 9))
    def test_a_block_that_dali_does_not_read_turns_it_too(self, codec_name, turn):
        data = self.extended(8, (b"EXIF", b"Exif\0\0" + imagefiles.exif(imagefiles.turned(turn))))

        np.testing.assert_array_equal(decoded(data), by_pillow(data))
        np.testing.assert_array_equal(
            decoded(data, region=(3, 5, 7, 9)), by_pillow(data)[3:10, 5:14]
        )
        assert heads.foreign_to_dali(np.frombuffer(data, np.uint8)) == ("" if turn == 1 else
            "WebP (with EXIF data in a place or form that DALI does not read)")  # fmt: skip

    @pytest.mark.parametrize("turn", [1, 6])
    @pytest.mark.parametrize("width", range(5, 15))
    def test_a_chunk_of_an_odd_number_of_bytes_may_stand_before_others(
        self, codec_name, width, turn
    ):
        image, exif = Image.fromarray(imagefiles.pixels(5, width)), Image.Exif()
        exif[0x112] = turn
        data = saved(image, "WEBP", lossless=True, exif=exif)

        expected = (
            np.rot90(np.asarray(image), -1) if turn == 6 else np.asarray(image)
        )  # a quarter turn clockwise

        np.testing.assert_array_equal(decoded(data), expected)

    def test_of_an_animated_one_the_first_frame_is_taken(self, codec_name):
        frames = [photograph(), photograph().rotate(180)]
        data = saved(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)

        assert heads.read(data).form == "animation"
        np.testing.assert_array_equal(decoded(data), np.asarray(frames[0]))
        assert heads.foreign_to_dali(np.frombuffer(data, np.uint8)) == "WebP (animated)"

    @pytest.mark.parametrize("channels", [3, 4])
    def test_around_a_first_frame_the_canvas_is_transparent(self, channels):
        def three(number):
            return number.to_bytes(3, "little")

        image = photograph(channels=channels)
        still = saved(image, "WEBP", lossless=True, exact=True)
        frame = (
            three(2)
            + three(1)
            + three(40)
            + three(29)
            + three(100)
            + b"\2"
            + still[still.index(b"VP8L") :]
        )
        background = b"\x63\xc7\xff\xff\0\0"
        chunks = (
            imagefiles.canvas(40, 50, 2 | 16 * (channels == 4)),
            (b"ANIM", background),
            (b"ANMF", frame),
        )
        data = imagefiles.webp(*chunks)

        expected = np.zeros((40, 50, 4), np.uint8)
        expected[..., 3] = 0 if channels == 4 else 255
        expected[2:32, 4:45, :channels] = np.asarray(image)
        with Image.open(io.BytesIO(data)) as animation:
            np.testing.assert_array_equal(
                np.asarray(animation.convert("RGBA"))[..., 3], expected[..., 3]
            )
        np.testing.assert_array_equal(decoded(data, "RGBA")[..., 3], expected[..., 3])
        visible = expected[..., 3:] > 0
        np.testing.assert_array_equal(decoded(data) * visible, expected[..., :3] * visible)

    def test_transparency_is_dropped(self, codec_name):
        data = saved(photograph(channels=4), "WEBP", lossless=True, exact=True)

        assert heads.read(data).channels == 4
        np.testing.assert_array_equal(decoded(data), np.asarray(photograph()))

    @pytest.mark.parametrize(
        ("data", "match"),
        [
            (lossy[:-1], "cut off"), (imagefiles.webp(imagefiles.webp_chunk(lossy), length=10**9), "cut off"),
            (imagefiles.webp((b"VP8 ", bytes(30))), "key frame"), (imagefiles.webp((b"VP8L", bytes(30))), "0x2f"),
            (imagefiles.webp((b"EXIF", bytes(30))), "no chunk VP8"),
            (imagefiles.webp(imagefiles.canvas(31, 41, 0), imagefiles.webp_chunk(lossy)), "canvas is"),
            (imagefiles.replaced(lossy, 16, 255, 255, 0, 0), "does not end"),
            (imagefiles.replaced(lossy, 26, 0, 0), "x 0 pixels"),
        ],
    )  # fmt: skip
    def test_others_are_refused(self, data, match):
        with pytest.raises(HeadError, match=match):
            heads.read(data)


class TestJpeg2000:
    whole = saved(photograph(), "JPEG2000")
    raw = saved(photograph(), "JPEG2000", no_jp2=True)

    @pytest.mark.parametrize("channels", [1, 3, 4])
    @pytest.mark.parametrize(
        "options",
        [{}, {"tile_size": (16, 16)}, {"irreversible": True}, {"progression": "RPCL", "precinct_size": (32, 32)},
         {"quality_layers": [20, 10, 5]}, {"codeblock_size": (4, 4)}, {"plt": True}, {"comment": "by hand"}],
        ids=str,
    )  # fmt: skip
    def test_forms(self, codec_name, channels, options):
        data = saved(photograph(70, 45, channels), "JPEG2000", **options)

        np.testing.assert_array_equal(decoded(data), by_dali(data))
        np.testing.assert_array_equal(decoded(data), by_pillow(data))

    def test_raw_codestreams(self, codec_name):
        np.testing.assert_array_equal(decoded(self.raw), np.asarray(photograph()))

    def test_16_bits_are_kept(self, codec_name):
        values = levels((30, 41), 16).astype(np.uint16)
        data = saved(Image.fromarray(values), "JPEG2000")

        np.testing.assert_array_equal(
            decoded(data, dtype="uint16"), np.repeat(values[..., None], 3, 2)
        )

    @pytest.mark.parametrize("size", range(4, 52, 3))
    def test_a_file_that_ends_inside_its_size_is_damaged(self, size):
        with pytest.raises(HeadError) as error:
            heads.read(self.raw[:size])
        assert not isinstance(error.value, heads.UnsupportedError)

    def test_headers_that_openjpeg_refuses_are_refused_because_opencv_would_crash(self):
        begin = self.raw.index(b"\xff\x52")
        end = self.raw.index(b"\xff\x90")
        error = 0
        for place in range(begin, end):
            for value in (0, 1, 3, 9, 17, 127, 128, 255):
                try:
                    heads.read(imagefiles.replaced(self.raw, place, value))
                except HeadError:
                    error += 1
        assert error > 4 * (end - begin) // 2

    @pytest.mark.parametrize(
        ("find", "replace", "match"),
        [
            (b"\xff\x52\0\x0c\0\0\0\1\0", b"\xff\x52\0\x0c\0\0\0\1\2", "0xff52"),  # a transform of colours that is none
            (b"\xff\x52\0\x0c\0\0\0\1\0\4\4", b"\xff\x52\0\x0c\0\0\0\1\0\x40\4", "0xff52"),  # 64 levels
            (b"\xff\x52\0\x0c\0\0\0\1", b"\xff\x52\0\x0c\0\0\xff\xff", "packets"),  # 65535 layers
            (b"\xff\x5c", b"\xff\x30", "0xff30"),
            (b"\xff\x52", b"\xff\x5f", "not supported: .* changes of its progression order"),
            (b"\xff\x52", b"\xff\x50", "not supported: .*HTJ2K"), (b"\xff\x52", b"\xff\x63", "0xff63"),
            (b"\7\1\1\7\1\1\7\1\1", b"\7\1\1\7\2\2\7\2\2", "differ"),
            (b"\7\1\1\7\1\1\7\1\1", b"\6\1\1" * 3, "other than 8 to 16 bits"),
        ],
    )  # fmt: skip
    def test_what_is_read_wrongly_or_not_at_all_is_refused(self, find, replace, match):
        assert self.raw.count(find) == 1
        with pytest.raises(HeadError, match=match):
            heads.read(self.raw.replace(find, replace))

    def test_other_bits_in_the_header_than_in_the_codestream_are_refused(self):
        place = self.whole.index(b"ihdr") + 4 + struct.calcsize(">IIH")

        assert self.whole[place] == 7
        with pytest.raises(HeadError, match="its header says"):
            heads.read(imagefiles.replaced(self.whole, place, 15))

    @pytest.mark.parametrize(
        ("width", "match"), [(65536, "has 65536 tiles; there"), (65535, "has 1 of 65535 tiles")]
    )
    def test_more_tiles_than_can_be_numbered_are_refused(self, width, match):
        place = self.raw.index(b"\xff\x51") + 6
        sizes = struct.pack(">8I", width, 1, 0, 0, 1, 1, 0, 0)

        with pytest.raises(HeadError, match=match):
            heads.read(imagefiles.replaced(self.raw, place, *sizes))

    @pytest.mark.parametrize("form", [0x00, 0x10, 0x20, 0x40, 0x50, 0x60])
    def test_a_list_of_the_lengths_of_tiles_is_passed_over(self, form):
        assert heads.read(
            self.with_tile_lengths(form, b"\xff" * 2 * self.entry_bytes(form))
        ) == heads.read(self.raw)

    @pytest.mark.parametrize("form", [0x01, 0x0C, 0x30, 0x70, 0x80])
    def test_a_list_of_the_lengths_of_tiles_in_no_form_is_refused(self, form):
        with pytest.raises(HeadError, match="0xff55"):
            heads.read(self.with_tile_lengths(form, bytes(60)))

    @pytest.mark.parametrize("form", [0x10, 0x20, 0x40, 0x50, 0x60])
    def test_a_list_that_ends_inside_the_length_of_a_tile_is_refused(self, form):
        with pytest.raises(HeadError, match="0xff55"):
            heads.read(self.with_tile_lengths(form, bytes(2 * self.entry_bytes(form) - 1)))

    @staticmethod
    def entry_bytes(form):
        """ISO/IEC 15444-1, A.7.1: the number of a tile in 0, 1 or 2 bytes, and its length in 2 or
        4."""
        return (form >> 4 & 3) + (4 if form & 0x40 else 2)

    def with_tile_lengths(self, form, entries):
        """Return the codestream with a segment TLM in front of its first tile."""
        segment = struct.pack(">HHBB", 0xFF55, 4 + len(entries), 0, form) + entries
        place = self.raw.index(b"\xff\x90")
        return self.raw[:place] + segment + self.raw[place:]

    @pytest.mark.parametrize("name", [b"jp2h", b"jp2c", b"ihdr", b"colr"])
    def test_boxes_are_needed(self, name):
        with pytest.raises(HeadError):
            heads.read(self.whole.replace(name, b"none"))

    @pytest.mark.parametrize("options", [{}, {"no_jp2": True}])
    def test_gray_without_boxes_and_with_alpha_is_not_left_to_dali(self, options):
        image = photograph(channels=1)
        data = saved(image.convert("LA") if not options else image, "JPEG2000", **options)

        np.testing.assert_array_equal(decoded(data, "GRAY")[..., 0], np.asarray(image))
        assert "of gray with alpha" in heads.foreign_to_dali(np.frombuffer(data, np.uint8))


class TestFormatsOfPillow:
    @pytest.mark.parametrize("missing", ["gif", "avif"])
    def test_without_pillow_the_extra_is_named(self, monkeypatch, missing):
        def absent():
            raise ImportError

        monkeypatch.setattr(decoding, "_pillow", absent)
        path = next(path for path in READ if path.suffix == f".{missing}")

        with pytest.raises(
            MissingPackageError, match=f"{missing.upper()} files needs the package 'pillow'"
        ):
            decoded(path.read_bytes())

    def test_of_a_gif_the_first_frame_is_the_image(self):
        first, second = photograph().quantize(16), photograph(channels=1)
        data = saved(first, "GIF", save_all=True, append_images=[second])

        np.testing.assert_array_equal(decoded(data), np.asarray(first.convert("RGB")))

    @pytest.mark.parametrize("options", [{}, {"transparency": 3}])
    @pytest.mark.parametrize("mode", ["RGB", "RGBA"])
    def test_around_the_first_frame_of_a_gif_the_screen_is_that_of_pillow(self, options, mode):
        data = bytearray(saved(photograph().quantize(16), "GIF", **options))
        place = data.index(b"," + struct.pack("<HHHH", 0, 0, 41, 30))
        struct.pack_into("<HH", data, 6, 50, 40)
        struct.pack_into("<HH", data, place + 1, 7, 3)

        with Image.open(io.BytesIO(data)) as image:
            expected = np.asarray(image.convert(mode))
        assert expected.shape[:2] == (40, 50)
        np.testing.assert_array_equal(decoded(bytes(data), mode), expected)

    def test_a_small_gif_of_a_large_screen_is_refused(self):
        data = bytearray(saved(photograph().quantize(16), "GIF"))
        struct.pack_into("<HH", data, 6, 16_000, 16_000)

        with pytest.raises(HeadError, match="cannot hold more than"):
            heads.read(bytes(data))

    @pytest.mark.parametrize("turn", range(1, 9))
    def test_an_avif_is_turned(self, turn):
        data = saved(
            photograph(), "AVIF", exif=b"Exif\0\0" + imagefiles.exif(imagefiles.turned(turn))
        )

        np.testing.assert_array_equal(decoded(data), by_pillow(data))
        assert heads.read(data).orientation == turn

    def test_a_setting_that_makes_up_pixels_is_refused(self, monkeypatch):
        monkeypatch.setattr("PIL.ImageFile.LOAD_TRUNCATED_IMAGES", True)

        with pytest.raises(SpecError, match="LOAD_TRUNCATED_IMAGES"):
            decoded(saved(photograph().quantize(16), "GIF"))

    def test_an_old_pillow_is_named(self, monkeypatch):
        monkeypatch.setattr("PIL.AvifImagePlugin.SUPPORTED", False)

        with pytest.raises(MissingPackageError, match="does not read AVIF"):
            decoded(next(path for path in READ if path.suffix == ".avif").read_bytes())

    def test_pillow_s_own_limit_is_said(self, monkeypatch):
        monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 100)
        monkeypatch.setattr(decoding, "_process_codec", decoding._pillow)

        with pytest.raises(ImageError, match="MAX_IMAGE_PIXELS is the limit"):
            decoded(saved(photograph(), "WEBP"))

    @pytest.mark.parametrize(
        ("data", "match"),
        [
            (b"GIF89a" + bytes(7) + b";" + bytes(20), "no image"),
            (b"GIF89a" + bytes(7) + b"x" + bytes(20), "where a frame"),
            (saved(photograph().quantize(16), "GIF")[:-20], "ends inside"),
            (saved(photograph(), "AVIF").replace(b"ispe", b"none"), "no size"),
            (saved(photograph(), "AVIF").replace(b"ftypavif", b"ftypavis"), "brand"),
        ],
    )  # fmt: skip
    def test_others_are_refused(self, data, match):
        with pytest.raises(HeadError, match=match):
            heads.read(data)


BOMBS = {
    "bmp": imagefiles.bmp(height=40_000, width=40_000, content=b""),
    "pnm": b"P6 40000 40000 255\n" + bytes(1000),
    "tiff": imagefiles.tiff(tags={256: (4, [40_000]), 257: (4, [40_000])}),
    "tiff of deflate": imagefiles.tiff(
        10_000, 20_000, 3, pieces=[bytes(100)], pack=zlib.compress, tags={259: (3, [8])}
    ),
    "tiff of rows": imagefiles.tiff(2**20, 1, 1, rows=1, pieces=[b"x"], tags={279: (4, [1])}),
    "jp2": TestJpeg2000.raw.replace(struct.pack(">II", 41, 30), struct.pack(">II", 2**31, 2**31)),
    "gif": saved(photograph().quantize(16), "GIF").replace(
        struct.pack("<HH", 41, 30), b"\xff\xff\xff\xff"
    ),
    "avif": saved(photograph(), "AVIF").replace(
        struct.pack(">II", 41, 30), struct.pack(">II", 2**31, 2**31)
    ),
    "png of text": b"P3 9000 9000 255\n" + b"1 " * 100_000,
}


@pytest.mark.parametrize("data", BOMBS.values(), ids=BOMBS.keys())
def test_a_file_that_promises_too_much_is_refused_in_little_time_and_memory(data):
    began = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(HeadError):
            heads.read(data)
        limit = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert limit < 40_000_000
    assert time.process_time() - began < 5


def test_damaged_files_end_no_process_and_are_seen_alike_by_all_decoders():
    pytest.importorskip("nvidia.dali")
    process = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.images.damaging",
            "80",
            "bmp",
            "pnm",
            "webp",
            "tiff",
            "jp2",
            "gif",
            "avif",
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert (process.returncode, process.stdout.splitlines()[-1:]) == (0, ["done"]), (
        process.stdout[-2000:] + process.stderr[-2000:]
    )
