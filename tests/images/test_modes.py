"""RGBA, ANY and pixels as they are stored, of every kind of file; beside the libraries that wrote
it."""

from __future__ import annotations

import io
import zlib

import numpy as np
import pytest
from PIL import Image

from gpuload.images import head as heads
from gpuload.images import tiffs
from gpuload.images.decode import decode, losses
from gpuload.images.head import UnsupportedError
from tests import imagefiles
from tests.attack import formats
from tests.images.test_formats import GOLDEN, RARE, saved

NUM_FILES = 40  # of each format; `make attack` reads thousands


def decoded(data, mode, dtype="uint8", **words):
    array = np.frombuffer(data, np.uint8)
    return decode(array, heads.read(array), mode, dtype=dtype, **words)


@pytest.mark.parametrize("name", formats.MAKERS)
def test_files_of_other_libraries_are_read_as_these_read_them(name):
    if name == "tifffile":
        pytest.importorskip("tifffile", reason="tifffile is in the extra tiff")

    outcomes = [
        formats.check(formats.MAKERS[name](np.random.default_rng(seed)))
        for seed in range(NUM_FILES)
    ]

    assert outcomes.count("read") == NUM_FILES, set(outcomes)


class TestMeasurements:
    @pytest.mark.parametrize(
        ("mode", "dtype"), [("F", "float32"), ("I", "int32"), ("I;16", "uint16"), ("L", "uint8")]
    )  # fmt: skip
    @pytest.mark.parametrize(
        "compression", ["raw", "tiff_lzw", "tiff_adobe_deflate", "zstd", "lzma", "packbits"]
    )
    def test_the_numbers_of_a_tiff_are_those_that_were_written(self, mode, dtype, compression):
        numbers = (
            np.random.default_rng(0)
            .integers(-1000 if mode in "FI" else 0, 255, (13, 21))
            .astype(dtype)
        )

        pixels = decoded(
            saved(Image.fromarray(numbers), "TIFF", compression=compression), "ANY", dtype
        )

        np.testing.assert_array_equal(pixels[..., 0], numbers)
        assert pixels.dtype == dtype

    @pytest.mark.parametrize(
        ("bits", "sample", "dtype"),
        [
            (16, 2, "int16"),
            (32, 2, "int32"),
            (32, 1, "uint32"),
            (32, 3, "float32"),
            (16, 1, "uint16"),
        ],
    )
    def test_a_tiff_written_byte_by_byte(self, bits, sample, dtype):
        numbers = np.arange(-100, 173).reshape(13, 21).astype(dtype)

        data = imagefiles.tiff(
            channels=1, bits=bits, tags={339: (3, [sample])}, pieces=[numbers.tobytes()]
        )

        np.testing.assert_array_equal(decoded(data, "ANY", dtype)[..., 0], numbers)

    def test_a_dtype_that_holds_all_values_is_as_good_and_another_is_refused_with_the_form(self):
        data = saved(Image.fromarray(np.float32([[0.5, -1e30]])), "TIFF")

        np.testing.assert_array_equal(
            decoded(data, "ANY", "float64")[..., 0], np.float64(np.float32([[0.5, -1e30]]))
        )
        with pytest.raises(UnsupportedError, match="values of float32 as uint16") as error:
            decoded(data, "ANY", "uint16")
        assert error.value.remedy == "gl.ops.Decode('ANY', dtype='float32')"

    @pytest.mark.parametrize("mode", ["RGB", "GRAY"])
    def test_floats_are_no_colours(self, mode):
        with pytest.raises(UnsupportedError, match="a TIFF of gray, 1 channel of float32"):
            decoded(saved(Image.fromarray(np.float32([[0.5, 2]])), "TIFF"), mode)

    @pytest.mark.parametrize("scale", [b"-1.0", b"1.0", b"-0.5"])
    @pytest.mark.parametrize("kind", [b"Pf", b"PF"])
    def test_pfm(self, kind, scale):
        numbers = (
            np.arange(5 * 3 * (3 if kind == b"PF" else 1), dtype=np.float32).reshape(5, 3, -1) - 7
        )
        order = "<f4" if scale.startswith(b"-") else ">f4"
        data = (
            kind + b"\n3 5\n" + scale + b"\n" + numbers[::-1].astype(order).tobytes()
        )  # the lowest row is the first

        np.testing.assert_array_equal(decoded(data, "ANY", "float32"), numbers)
        with pytest.raises(UnsupportedError, match="a PFM"):
            decoded(data, "RGB")
        with pytest.raises(heads.HeadError, match="cut off"):
            heads.read(data[:-1])

    def test_raw_jpeg_2000_of_gray(self):
        numbers = imagefiles.pixels(16, 24, 1)[..., 0]
        data = saved(Image.fromarray(numbers), "JPEG2000", no_jp2=True)

        np.testing.assert_array_equal(decoded(data, "ANY")[..., 0], numbers)

    def test_gray_avif_has_one_channel(self):
        image = Image.fromarray(imagefiles.pixels(16, 24, 1)[..., 0])
        data = saved(image, "AVIF", subsampling="4:0:0", quality=100)

        assert decoded(data, "ANY").shape == (16, 24, 1)
        np.testing.assert_array_equal(
            np.repeat(decoded(data, "ANY"), 3, axis=2), decoded(data, "RGB")
        )

    @pytest.mark.parametrize("depth", [9, 10, 12, 15])
    @pytest.mark.parametrize("form", ["jp2", "j2k"])
    @pytest.mark.parametrize("channels", [1, 3])
    def test_jpeg_2000_of_9_to_15_bits(self, depth, form, channels):
        library = pytest.importorskip("imagecodecs", reason="imagecodecs is in the extra tiff")
        if channels > 1:
            pytest.importorskip("nvidia.nvimgcodec", reason="Pillow keeps 8 bits of colours")
        numbers = (
            np.random.default_rng(0).integers(0, 2**depth, (64, 48, channels)).astype(np.uint16)
        )
        numbers[0, 0] = 2**depth - 1
        options = {"codecformat": form, "bitspersample": depth, "reversible": True}
        data = library.jpeg2k_encode(numbers.squeeze(), level=0, **options)
        colours = np.broadcast_to(numbers << (16 - depth), (64, 48, 3))

        assert heads.read(data).form == f"{depth} bits"
        np.testing.assert_array_equal(decoded(data, "ANY", "uint16"), numbers)
        np.testing.assert_array_equal(decoded(data, "RGB", "uint16"), colours)
        np.testing.assert_array_equal(decoded(data, "RGB"), np.rint(colours / 257))
        assert heads.foreign_to_dali(np.frombuffer(data, np.uint8)).endswith(f"({depth} bits)")

    @pytest.mark.parametrize("depth", [8, 9, 12, 16])
    @pytest.mark.parametrize("form", ["jp2", "j2k"])
    def test_signed_gray_of_jpeg_2000_is_numbers_and_no_colours(self, depth, form):
        library = pytest.importorskip("imagecodecs", reason="imagecodecs is in the extra tiff")
        dtype = "int8" if depth == 8 else "int16"
        numbers = (
            np.random.default_rng(0)
            .integers(-(2 ** (depth - 1)), 2 ** (depth - 1), (64, 48))
            .astype(dtype)
        )
        options = {"codecformat": form, "bitspersample": depth, "reversible": True}
        data = library.jpeg2k_encode(numbers, level=0, **options)

        np.testing.assert_array_equal(decoded(data, "ANY", dtype)[..., 0], numbers)
        with pytest.raises(UnsupportedError, match="signed samples as an image"):
            decoded(data, "RGB")

    @pytest.mark.parametrize("depth", [10, 12])
    def test_avif_of_10_and_12_bits_is_rounded_to_8_and_refused_for_16(self, depth):
        library = pytest.importorskip("imagecodecs", reason="imagecodecs is in the extra tiff")
        y, x = np.mgrid[:32, :48]
        numbers = np.repeat(((x + y) * (2**depth - 1) // 78)[..., None], 3, axis=2).astype(
            np.uint16
        )
        data = library.avif_encode(numbers, level=100, bitspersample=depth)

        nearest = np.rint(library.avif_decode(data) * (255 / (2**depth - 1)))
        assert (
            np.abs(decoded(data, "RGB") - nearest).max() <= 1
        )  # libavif rounds on the way from YUV
        with pytest.raises(UnsupportedError, match=f"an AVIF of {depth} bits"):
            decoded(data, "RGB", "uint16")

    def test_numbers_of_fewer_than_8_bits_are_not_scaled(self):
        image = Image.fromarray(np.uint8([[0, 255, 255]])).convert("1")

        for data in (
            saved(image, "PNG"),
            saved(image, "TIFF"),
            saved(image, "TIFF", compression="group4"),
        ):
            assert decoded(data, "ANY").tolist() == [[[0], [1], [1]]]
        assert decoded(saved(image, "PPM"), "ANY").tolist() == [
            [[1], [0], [0]]
        ]  # 1 is black in a PBM

    def test_a_missing_package_is_named_with_its_extra(self, monkeypatch):
        def refuse(name):
            raise ModuleNotFoundError(name)

        monkeypatch.setattr(tiffs.signalsafe, "import_package", refuse)
        data = imagefiles.tiff(channels=5)

        match = "not supported: a TIFF of RGB, 5 channels of 8 bits, without the package 'tifffile'"
        with pytest.raises(UnsupportedError, match=match) as error:
            decoded(data, "ANY")
        assert error.value.remedy == 'pip install "gpuload[tiff]"'

    @pytest.mark.parametrize("name", sorted(name for name in RARE if name.startswith("tiff")))
    def test_tiffs_of_other_projects(self, name):
        library = pytest.importorskip("tifffile", reason="tifffile is in the extra tiff")
        pytest.importorskip("imagecodecs", reason="imagecodecs is in the extra tiff")
        data = (GOLDEN / name).read_bytes()

        numbers = library.imread(io.BytesIO(data), key=0)

        pixels = decoded(data, "ANY", heads.read(data).dtype)
        np.testing.assert_array_equal(pixels, numbers.reshape(pixels.shape))

    @pytest.mark.parametrize(
        "options", [{"compression": "zstd"}, {"compression": "zlib", "predictor": 2}, {}], ids=str
    )
    def test_the_colours_of_a_palette_are_looked_up(self, options):
        library = pytest.importorskip("tifffile", reason="tifffile is in the extra tiff")
        if options:
            pytest.importorskip("imagecodecs", reason="imagecodecs is in the extra tiff")
        rng, file = np.random.default_rng(0), io.BytesIO()
        numbers, colours = (
            rng.integers(0, 256, (13, 21), np.uint8),
            rng.integers(0, 65536, (3, 256), np.uint16),
        )
        library.imwrite(
            file,
            numbers,
            photometric="palette",
            colormap=colours,
            extratags=[(274, 3, 1, 6, True)],
            **options,
        )

        upright = np.rot90(colours.T[numbers], -1)
        np.testing.assert_array_equal(decoded(file.getvalue(), "ANY", "uint16"), upright)
        np.testing.assert_array_equal(decoded(file.getvalue(), "RGB"), np.rint(upright / 257))


class TestPam:
    @pytest.mark.parametrize(
        ("kind", "pixels"),
        [
            ("GRAYSCALE", [[9, 9, 9, 255]]), ("RGB", [[9, 20, 31, 255]]), ("GRAYSCALE_ALPHA", [[9, 9, 9, 20]]),
            ("RGB_ALPHA", [[9, 20, 31, 42]]),
        ],
    )  # fmt: skip
    def test_its_tuple_type_says_what_the_channels_are(self, kind, pixels):
        depth = {"GRAYSCALE": 1, "RGB": 3, "GRAYSCALE_ALPHA": 2, "RGB_ALPHA": 4}[kind]
        stored = [9, 20, 31, 42][:depth]
        header = f"P7\n# by hand\nDEPTH {depth}\nWIDTH 1\nMAXVAL 255\nHEIGHT 1\nTUPLTYPE {kind}\nENDHDR\n"
        data = header.encode() + bytes(stored)

        assert decoded(data, "RGBA").tolist() == [pixels]
        assert decoded(data, "RGB").tolist() == [[pixels[0][:3]]]
        assert decoded(data, "ANY").tolist() == [[stored]]
        assert heads.foreign_to_dali(np.frombuffer(data, np.uint8)).startswith("PNM (PAM")

    def test_of_black_and_white_1_is_white(self):
        data = b"P7\nWIDTH 2\nHEIGHT 1\nDEPTH 1\nMAXVAL 1\nTUPLTYPE BLACKANDWHITE\nENDHDR\n\0\1"

        assert decoded(data, "GRAY").ravel().tolist() == [0, 255]
        assert decoded(data, "ANY").ravel().tolist() == [0, 1]

    def test_samples_that_no_tuple_type_calls_colours_are_numbers_alone(self):
        for kind in ("", "TUPLTYPE depth map\n"):  # without a type, OpenCV writes blue, green, red
            data = f"P7\nWIDTH 1\nHEIGHT 1\nDEPTH 3\nMAXVAL 300\n{kind}ENDHDR\n".encode() + bytes(
                [1, 44, 0, 7, 0, 9]
            )

            assert decoded(data, "ANY", "uint16").tolist() == [[[300, 7, 9]]]
            with pytest.raises(
                UnsupportedError, match=r"a PAM of 3 channels of type (unknown|depth map)"
            ):
                decoded(data, "RGB")


class TestTransparency:
    @pytest.mark.parametrize("bits", [1, 4, 12])
    def test_alpha_is_scaled_as_the_colours_are(self, bits):
        library = pytest.importorskip("tifffile", reason="tifffile is in the extra tiff")
        pytest.importorskip("imagecodecs", reason="imagecodecs is in the extra tiff")
        numbers, file = (
            np.random.default_rng(0).integers(0, 2**bits, (2, 13, 21), np.uint16),
            io.BytesIO(),
        )
        options = {
            "planarconfig": "separate",
            "extrasamples": ["unassalpha"],
            "bitspersample": bits,
        }
        stored = numbers > 0 if bits == 1 else numbers.astype(np.uint8 if bits < 8 else np.uint16)
        library.imwrite(
            file,
            stored,
            photometric="minisblack",
            **options if bits > 1 else options | {"bitspersample": None},
        )

        alpha = decoded(file.getvalue(), "RGBA", "uint16")[..., 3]

        np.testing.assert_array_equal(
            alpha, numbers[1] * (65535 // (2**bits - 1)) if bits < 8 else numbers[1] << 4
        )

    def test_the_colours_are_those_of_rgb_with_the_alpha_of_the_file(self, codec_name):
        pixels = imagefiles.pixels(13, 21, 4)
        image = Image.fromarray(pixels)
        for data in (saved(image, "PNG"), saved(image, "TIFF"), saved(image, "WEBP", lossless=True, exact=True),
                     saved(image, "JPEG2000"), imagefiles.png(13, 21, imagefiles.RGBA)):  # fmt: skip
            result = decoded(data, "RGBA")
            np.testing.assert_array_equal(result[..., :3], decoded(data, "RGB"))
            if data[:4] != b"\x89PNG":
                np.testing.assert_array_equal(result, pixels)
            np.testing.assert_array_equal(
                decoded(data, "RGBA", region=(3, 5, 7, 9)), result[3:10, 5:14]
            )

    def test_an_image_without_it_is_opaque(self, codec_name):
        data = saved(Image.fromarray(imagefiles.pixels(5, 6)), "JPEG", quality=100)

        assert (decoded(data, "RGBA")[..., 3] == 255).all()
        assert (decoded(data, "RGBA", "uint16")[..., 3] == 65535).all()

    @pytest.mark.parametrize("colour", [imagefiles.RGBA, imagefiles.GRAY_ALPHA])
    def test_16_bits(self, codec_name, colour):
        count = imagefiles.SAMPLES[colour]
        stored = np.random.default_rng(0).integers(0, 65536, (13, 21, count)).astype(">u2")
        rows = b"".join(b"\0" + row.tobytes() for row in stored)
        data = b"\x89PNG\r\n\x1a\n" + imagefiles.png_header(13, 21, colour, 16)
        data += imagefiles.chunk(b"IDAT", zlib.compress(rows)) + imagefiles.chunk(b"IEND")

        np.testing.assert_array_equal(decoded(data, "ANY", "uint16"), stored)
        np.testing.assert_array_equal(decoded(data, "RGBA", "uint16")[..., 3], stored[..., -1])
        np.testing.assert_array_equal(decoded(data, "RGBA")[..., 3], np.rint(stored[..., -1] / 257))

    def test_any_keeps_the_number_of_channels(self, codec_name):
        for mode, count in (("L", 1), ("LA", 2), ("RGB", 3), ("RGBA", 4)):
            pixels = imagefiles.pixels(5, 6, count)
            image = Image.fromarray(pixels.squeeze(2) if count == 1 else pixels, mode)
            for form in ("PNG", "TIFF"):
                np.testing.assert_array_equal(decoded(saved(image, form), "ANY"), pixels)

    def test_colours_that_were_multiplied_by_alpha_are_refused(self):
        data = imagefiles.tiff(channels=4, tags={338: (3, [1])})

        with pytest.raises(UnsupportedError, match="multiplied by its alpha"):
            decoded(data, "RGBA")

    def test_a_tiff_with_alpha_that_is_turned_is_not_left_to_dali(self):
        """DALI multiplies its colours by the alpha (2.4), which it does not do where it is
        upright."""
        image, exif = Image.fromarray(imagefiles.pixels(5, 6, 4)), Image.Exif()
        exif[0x112] = 6
        data = saved(image, "TIFF", exif=exif)

        np.testing.assert_array_equal(decoded(data, "RGBA"), np.rot90(np.asarray(image), -1))
        np.testing.assert_array_equal(
            decoded(data, "RGB"), np.rot90(np.asarray(image), -1)[..., :3]
        )
        assert heads.foreign_to_dali(np.frombuffer(data, np.uint8)).startswith(
            "TIFF (of 4 channels"
        )


class TestAsStored:
    @pytest.mark.parametrize("turn", range(1, 9))
    @pytest.mark.parametrize("form", ["PNG", "TIFF", "WEBP", "JPEG", "AVIF"])
    def test_the_pixels_of_every_format_are_those_without_an_orientation(
        self, codec_name, form, turn
    ):
        image, exif = Image.fromarray(imagefiles.pixels(16, 24)), Image.Exif()
        exif[0x112] = turn
        options = {
            "WEBP": {"lossless": True},
            "JPEG": {"quality": 90},
            "AVIF": {"quality": 90},
        }.get(form, {})
        array = np.frombuffer(saved(image, form, exif=exif, **options), np.uint8)

        head = heads.without_turn(heads.read(array))

        upright = decoded(saved(image, form, **options), "RGB")
        np.testing.assert_array_equal(decode(array, head, "RGB", orient=False), upright)
        np.testing.assert_array_equal(
            decode(array, head, "RGB", (3, 5, 7, 9), orient=False), upright[3:10, 5:14]
        )
        np.testing.assert_array_equal(decode(array, head, "RGBA", orient=False)[..., :3], upright)


TILE = {324: (4, [0]), 325: (4, [512]), 273: None, 278: None, 279: None}  # one, and no strips
TURNED_TIFFS = {
    "palette": {
        "channels": 1,
        "tags": {262: (3, [3]), 320: (3, list(range(0, 65536, 86))[:762] + [7] * 6)},
    },
    "CMYK": {"channels": 4, "tags": {262: (3, [5])}},
    "12 bits": {"channels": 1, "bits": 12},
    "planes": {"planar": True},
    "white is 0": {"channels": 1, "tags": {262: (3, [0])}},
    "tiles": {
        "height": 16,
        "width": 32,
        "channels": 1,
        "tags": {322: (3, [32]), 323: (3, [16]), **TILE},
    },
}


@pytest.mark.parametrize("turn", [2, 6])
@pytest.mark.parametrize("kind", TURNED_TIFFS)
def test_tiffs_that_opencv_turns_in_its_own_way_are_turned_here(kind, turn):
    """Where it was told not to turn them, OpenCV 4.13 in nvImageCodec 0.9 writes beyond the pixels:
    processes ended."""
    options = TURNED_TIFFS[kind]
    upright = decoded(imagefiles.tiff(**options), "RGB", "uint16")
    data = imagefiles.tiff(**options | {"tags": {**options.get("tags", {}), 274: (3, [turn])}})
    array, place = np.frombuffer(data, np.uint8), (2, 3, 5, 7)

    head = heads.without_turn(heads.read(array))

    np.testing.assert_array_equal(decode(array, head, "RGB", dtype="uint16", orient=False), upright)
    turned = upright[:, ::-1] if turn == 2 else np.rot90(upright, -1)
    np.testing.assert_array_equal(decoded(data, "RGB", "uint16"), turned)
    np.testing.assert_array_equal(decoded(data, "RGB", "uint16", region=place), turned[2:7, 3:10])
    assert heads.foreign_to_dali(array).startswith("TIFF (with an orientation")


def test_a_small_file_that_claims_samples_of_gigabytes_is_refused():
    """The data of ZSTD are not gone through before they are decoded."""
    with pytest.raises(heads.HeadError, match="its samples would take 2576800000000 bytes"):
        heads.read(
            imagefiles.tiff(10_000, 10_000, 6442, 32, tags={259: (3, [50000])}, pieces=[b"x"])
        )


class TestPages:
    def test_pages_are_counted_without_small_copies_and_masks(self):
        page = Image.fromarray(imagefiles.pixels(5, 6))

        def file(*kinds):
            pages = [page.copy() for _ in kinds]
            for number, kind in enumerate(kinds):
                pages[number].encoderinfo = {"tiffinfo": {254: kind}}
            return saved(page, "TIFF", save_all=True, append_images=pages)

        assert heads.read(saved(page, "TIFF")).pages == 1
        assert heads.read(file(2, 0, 2)).pages == 4
        assert heads.read(file(1, 4, 5)).pages == 1

    @pytest.mark.parametrize(
        "options", [{"imagej": True}, {"imagej": True, "truncate": True}, {"truncate": True}, {}]
    )
    def test_planes_behind_one_page_are_counted(self, options):
        library = pytest.importorskip("tifffile", reason="tifffile is in the extra tiff")
        file, numbers = io.BytesIO(), np.arange(5 * 16 * 24, dtype=np.uint16).reshape(5, 16, 24)
        library.imwrite(file, numbers, **options)

        head = heads.read(file.getvalue())

        with library.TiffFile(io.BytesIO(file.getvalue())) as pages:
            assert len(pages.pages) == (1 if "truncate" in options else 5)
        assert head.pages == 5
        (loss,) = losses(head, "ANY", "uint16")
        assert "a TIFF of 5 pages, of which the first alone is decoded" in loss[1]

    @pytest.mark.parametrize(
        "text", [b"ImageJ=1.53\nimages=5\nslices=5\n\0", b'{"shape": [5, 13, 21, 3]}\0']
    )
    def test_a_text_about_planes_that_are_not_there_counts_nothing(self, text):
        data = imagefiles.tiff(tags={270: (2, list(text))})

        assert heads.read(data).pages == 1
        assert heads.read(data + bytes(5 * 13 * 21 * 3)).pages == 5

    def test_pages_named_by_sub_ifds_are_counted_without_small_copies(self):
        library = pytest.importorskip("tifffile", reason="tifffile is in the extra tiff")
        numbers = np.zeros((16, 24), np.uint8)

        def file(kind):
            data = io.BytesIO()
            with library.TiffWriter(data) as writer:
                writer.write(numbers, subifds=2, metadata=None)
                for _ in range(2):
                    writer.write(numbers, subfiletype=kind, metadata=None)
            return data.getvalue()

        assert [heads.read(file(kind)).pages for kind in (0, 1)] == [3, 1]

    def test_a_chain_that_leads_back_ends(self):
        data = bytearray(imagefiles.tiff())
        count = int.from_bytes(data[8:10], "little")
        data[10 + 12 * count : 14 + 12 * count] = (8).to_bytes(4, "little")

        assert heads.read(bytes(data)).pages == 2


class TestJpegStrayBytes:
    @pytest.mark.parametrize("stray", [b"\0", b"abc", b"\xff\0x", b"\x12" * 1000])
    @pytest.mark.parametrize("region", [None, (3, 5, 7, 9)])
    def test_they_are_passed_over(self, codec_name, stray, region):
        whole = imagefiles.jpeg(40, 50)
        place = imagefiles.find_segment(whole, (0xDB,))

        pixels = decoded(whole[:place] + stray + whole[place:], "RGB", region=region)

        np.testing.assert_array_equal(pixels, decoded(whole, "RGB", region=region))

    def test_dali_does_not_get_such_a_file(self):
        whole = imagefiles.jpeg(40, 50)
        place = imagefiles.find_segment(whole, (0xDB,))
        data = np.frombuffer(whole[:place] + b"abc" + whole[place:], np.uint8)

        assert (
            heads.foreign_to_dali(data, may_be_jpeg=False)
            == "JPEG (with stray bytes in front of a marker)"
        )


@pytest.mark.parametrize(
    ("beginning", "name"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIF"),
        (b"\xff\x0a" + bytes(30), "JPEG XL"),
        (bytes(128) + b"DICM", "DICOM"),
        (b"v/1\x01" + bytes(20), "OpenEXR"),
    ],
)
def test_other_formats_are_named(beginning, name):
    with pytest.raises(UnsupportedError, match=f"not supported: a file of the format {name}"):
        heads.read(beginning)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\xff\xd8\xff\xde\0\x0b\x08\0\1\0\1\1\1\x11\0", "a hierarchical JPEG"),
        (b"\xff\xd8\xff\xf7\0\x0b\x08\0\1\0\1\1\1\x11\0", "a JPEG-LS image"),
        (
            imagefiles.tiff(tags={259: (3, [32773]), 317: (3, [2])}),
            "predictor beside PackBits and 8 bits",
        ),
        (
            imagefiles.tiff(channels=1, bits=1, tags={259: (3, [8]), 317: (3, [2])}),
            "predictor beside Deflate and 1 bits",
        ),
        (
            imagefiles.tiff(channels=4, tags={259: (3, [7])}),
            "a TIFF of RGB, 4 channels, compressed by JPEG",
        ),
    ],
)
def test_sound_files_that_are_not_decoded_are_named(data, kind):
    with pytest.raises(UnsupportedError, match=f"not supported: .*{kind}"):
        heads.read(data)


@pytest.mark.parametrize(
    ("tags", "meaning"),
    [
        ({42113: b"-9999\0"}, "GDAL_NODATA -9999"), ({42113: b"nan\0"}, ""), ({42113: b"\0"}, ""),
        ({42112: b'<GDALMetadata><Item name="SCALE" sample="0" role="scale">0.1</Item>'
                 b'<Item role="offset" name="OFFSET" sample="0">-5</Item></GDALMetadata>'},
         "scale 0.1 of GDAL_METADATA, offset -5 of GDAL_METADATA"),
        ({42112: b'<GDALMetadata><Item name="SCALE" sample="0" role="scale">1</Item>'
                 b'<Item name="AREA" role="x">0.1</Item></GDALMetadata>'}, ""),
    ],
)  # fmt: skip
def test_tags_by_which_numbers_stand_for_others_are_told_of_numbers_alone(tags, meaning):
    head = heads.read(imagefiles.tiff(tags={tag: (2, list(text)) for tag, text in tags.items()}))

    assert head.meaning == meaning
    texts = [loss[1] for loss in losses(head, "ANY", "uint8") if loss[0] == "meaning"]
    assert len(texts) == bool(meaning)
    assert meaning in "".join(texts)
    assert not [loss for loss in losses(head, "RGB", "uint8") if loss[0] == "meaning"]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\n", "a pointer of Git LFS .*`git lfs pull`"),
        (b"\xef\xbb\xbf\n<!DOCTYPE html><title>404</title>", "a page of HTML"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "a drawing and not pixels"),
        (b"Not Found", "it is text: 'Not Found'"), (bytes(1000), "bytes are zeros"), (b"\x1f\x8b\x08\0", "by gzip"),
        (b"\x1b]0;title\x07", "it begins with 1b 5d 30"),
    ],
)  # fmt: skip
def test_what_is_no_image_is_named(data, what):
    with pytest.raises(heads.HeadError, match=what) as error:
        heads.read(data)
    assert not isinstance(error.value, UnsupportedError)


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG"])
def test_further_frames_are_told_and_a_single_one_is_not(form):
    image, frames = (
        Image.fromarray(imagefiles.pixels(16, 24)),
        [Image.fromarray(imagefiles.pixels(16, 24)[::-1])],
    )

    animation = heads.read(saved(image, form, save_all=True, append_images=frames))
    single = heads.read(saved(image, form, save_all=form != "WEBP"))

    (loss,) = (loss for loss in losses(animation, "RGB", "uint8") if loss[0] == "pages")
    assert "of several frames, of which the first alone is decoded" in loss[1]
    assert "PIL.ImageSequence.Iterator" in loss[2]
    assert single.pages == 1
    assert not [loss for loss in losses(single, "RGB", "uint8") if loss[0] == "pages"]
