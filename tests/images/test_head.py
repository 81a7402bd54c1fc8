"""Heads of encoded images."""

from __future__ import annotations

import io
import itertools
import struct
import tracemalloc
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gpuload.images import head as heads
from gpuload.images import scans as scanning
from gpuload.images.head import Head, HeadError
from tests import imagefiles

GOLDEN = Path(__file__).parents[1] / "golden" / "images"
FILES = sorted(path for path in GOLDEN.rglob("*") if path.is_file() and path.suffix != ".md")
DAMAGED = {  # with what must be said about each
    "Pillow/broken.png": "first chunk",
    "image-png/xc1n0g08.png": "colour type 1",
    "image-png/xc9n2c08.png": "colour type 9",
    "image-png/xd0n2c08.png": "0 bits",
    "image-png/xd3n2c08.png": "3 bits",
    "image-png/xhdn0g08.png": "checksum",
    "imagecodecs/rgb.u2.jpg": "12 bits per sample",
    "tensorflow/corrupt.jpg": "marker 0xae at byte 569",  # in its scan
    "tensorflow/corrupt34_2.jpg": "end-of-image",
    "zune-image/030.png": "animated PNG .* not its first frame",  # Pillow shows it red, DALI yellow
}
SOF = tuple(range(0xC0, 0xC4))
DISPLAYED = {
    1: (16, 24),
    2: (16, 24),
    3: (16, 24),
    4: (16, 24),
    5: (24, 16),
    6: (24, 16),
    7: (24, 16),
    8: (24, 16),
}


def name_of(path):
    return path.relative_to(GOLDEN).as_posix()


def is_fuzz(path):
    return "fuzz" in name_of(path)


def displayed_by_pillow(data):
    """Return kind, height and width as Pillow sees them, without decoding."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = Image.open(io.BytesIO(data))
        width, height = image.size
        if image.getexif().get(0x112, 1) in (5, 6, 7, 8):
            width, height = height, width
    return image.format.lower(), height, width


@pytest.mark.parametrize("path", [path for path in FILES if not is_fuzz(path)], ids=name_of)
def test_files_of_other_projects_have_the_size_that_pillow_shows_or_are_refused(path):
    data = path.read_bytes()

    if name_of(path) in DAMAGED:
        with pytest.raises(HeadError, match=DAMAGED[name_of(path)]):
            heads.read(data)
    else:
        head = heads.read(data)
        assert (head.kind, head.height, head.width) == displayed_by_pillow(data)


@pytest.mark.parametrize("path", [path for path in FILES if is_fuzz(path)], ids=name_of)
def test_files_of_fuzzers_are_refused(path):
    with pytest.raises(HeadError):
        heads.read(path.read_bytes())


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"restart_marker_blocks": 1}], ids=str
)
def test_a_jpeg_says_its_size_and_channels(mode, options):
    head = heads.read(imagefiles.jpeg(17, 31, mode, **options))

    assert head == Head("jpeg", 17, 31, len(mode), 8, 1, head.scans)


@pytest.mark.parametrize(
    ("colour", "channels", "depths"),
    [
        (0, 1, (1, 2, 4, 8, 16)),
        (2, 3, (8, 16)),
        (3, 3, (1, 2, 4, 8)),
        (4, 2, (8, 16)),
        (6, 4, (8, 16)),
    ],
)
def test_a_png_says_its_size_channels_and_bits_and_other_depths_are_refused(
    colour, channels, depths
):
    for bits in range(20):
        data = imagefiles.png(17, 31, colour, bits)
        if bits in depths:
            assert heads.read(data) == Head("png", 17, 31, channels, bits, 1)
        else:
            with pytest.raises(HeadError, match=f"colour type {colour} with {bits} bits"):
                heads.read(data)


@pytest.mark.parametrize("data", [imagefiles.jpeg(), imagefiles.png()], ids=["jpeg", "png"])
def test_the_bytes_may_come_in_any_form(data):
    array = np.frombuffer(data, np.uint8)
    strided = np.repeat(array, 2)[::2]

    results = [
        heads.read(form) for form in (data, bytearray(data), memoryview(data), array, strided)
    ]

    assert len(set(results)) == 1


@pytest.mark.parametrize(
    "data",
    [
        imagefiles.jpeg(),
        imagefiles.jpeg(progressive=True),
        imagefiles.png(),
        imagefiles.png(16, 24, 2, 8, imagefiles.chunk(b"eXIf", imagefiles.exif())),
    ],
    ids=["baseline", "progressive", "png", "png with exif"],
)
def test_a_file_that_is_cut_off_anywhere_is_refused(data):
    for length in range(len(data)):
        with pytest.raises(HeadError):
            heads.read(data[:length])


class TestScans:
    few = imagefiles.jpeg_of_scans(16, 24, 7)
    end = len(few) - 2
    scan = b"\xff\xda"

    @pytest.mark.parametrize(("mode", "scans"), [("L", 6), ("RGB", 10), ("CMYK", 18)])
    def test_a_progressive_jpeg_has_those_that_libjpeg_writes(
        self, mode, scans
    ):  # jpeg_simple_progression
        assert heads.read(imagefiles.jpeg(40, 50, mode, progressive=True)).scans == scans

    @pytest.mark.parametrize(
        "data",
        [imagefiles.jpeg(), imagefiles.jpeg(mode="L"), imagefiles.png()],
        ids=["RGB", "L", "png"],
    )
    def test_what_is_decoded_in_one_pass_has_one(self, data):
        assert heads.read(data).scans == 1

    def test_channels_may_have_a_scan_each(self):
        whole = imagefiles.jpeg()
        header = whole[: imagefiles.find_segment(whole, (0xDA,))]
        scans = [
            imagefiles.segment(0xDA, bytes([1, channel, 0, 0, 63, 0])) + b"data" * 10
            for channel in (1, 2, 3)
        ]

        assert heads.read(header + b"".join(scans) + b"\xff\xd9").scans == 3

    @pytest.mark.parametrize("num_scans", [1, 2, 200])
    def test_empty_scans_count(self, num_scans):
        assert heads.read(imagefiles.jpeg_of_scans(16, 24, num_scans)).scans == num_scans

    @pytest.mark.parametrize("content", [scan * 9, b"\xff\xd9" + scan, b"\xff"])
    def test_what_looks_like_one_inside_a_segment_does_not_count(self, content):
        comment = imagefiles.segment(0xFE, content)

        assert heads.read(imagefiles.inserted(self.few, comment)).scans == 7
        assert heads.read(self.few[: self.end] + comment + self.few[self.end :]).scans == 7

    @pytest.mark.parametrize("extra", [b"\xff\0\xda", b"\xff\xff\xff", b"\xda"])
    def test_data_do_not_hide_the_next(self, extra):
        item = self.few[self.few.rindex(self.scan) : self.end]

        assert heads.read(self.few[: self.end] + extra + item + self.few[self.end :]).scans == 8

    @pytest.mark.parametrize("between", [b"", b"\0\0"])
    def test_those_behind_the_end_do_not_count(self, between):
        assert heads.read(self.few + between + self.few).scans == 7

    def test_counting_ends(self, monkeypatch):
        monkeypatch.setattr(scanning, "MAX_SCANS", 5)

        assert heads.read(self.few).scans == 5


def test_the_end_of_a_large_jpeg_is_looked_for_in_small_parts():
    data = imagefiles.jpeg() + bytes(20_000_000)
    tracemalloc.start()
    try:
        head = heads.read(data)
        limit = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert head.width == 24
    assert limit < 1_000_000


@pytest.mark.parametrize("extra", range(scanning.SEARCHED_BYTES - 3, scanning.SEARCHED_BYTES + 3))
def test_the_end_of_a_jpeg_is_found_wherever_the_parts_begin(extra):
    assert heads.read(imagefiles.jpeg() + bytes(extra)) == heads.read(imagefiles.jpeg())


@pytest.mark.parametrize("data", [imagefiles.jpeg(), imagefiles.png()], ids=["jpeg", "png"])
@pytest.mark.parametrize(
    "extra", [b"\0", b"garbage" * 100, imagefiles.jpeg()], ids=["zero", "garbage", "jpeg"]
)
def test_what_follows_the_end_of_an_image_does_not_matter(data, extra):
    assert heads.read(data + extra) == heads.read(data)


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"\xff\xd8", b"GIF89a", b"BM", b"\x89PNG", bytes(100)]
)
def test_other_bytes_are_no_image(data):
    with pytest.raises(HeadError):
        heads.read(data)


@given(st.sampled_from([path for path in FILES if not is_fuzz(path)]), st.data())
def test_a_damaged_file_gives_a_head_or_a_head_error(path, data):
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        place = data.draw(
            st.one_of(st.integers(0, min(200, len(content) - 1)), st.integers(0, len(content) - 1))
        )
        content[place] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(len(content) // 2, 2 * len(content))) :]

    try:
        head = heads.read(bytes(content))
    except HeadError:
        return

    assert 0 < head.height * head.width <= heads.MAX_PIXELS


@given(
    st.sampled_from(
        [b"", b"\xff\xd8\xff", b"\xff\xd8\xff\xe1\x00\x40Exif\0\0II*\0", imagefiles.png()[:33]]
    ),
    st.binary(),
)
def test_random_bytes_are_refused(begin, rest):
    with pytest.raises(HeadError):
        heads.read(begin + rest)


class TestJpegStructure:
    whole = imagefiles.jpeg()
    frame = imagefiles.find_segment(whole, SOF)
    scan = imagefiles.find_segment(whole, (0xDA,))

    def refused(self, data, match):
        with pytest.raises(HeadError, match=match):
            heads.read(data)

    def test_fill_bytes_may_stand_in_front_of_a_marker(self):
        assert heads.read(imagefiles.inserted(self.whole, b"\xff" * 50)) == heads.read(self.whole)

    def test_endless_fill_bytes_are_refused(self):
        self.refused(b"\xff\xd8" + b"\xff" * 1_000_000, "fill bytes")

    @pytest.mark.parametrize("marker", [0xC4, 0xCC, 0xDB, 0xDD, 0xE0, 0xE2, 0xEE, 0xEF, 0xFE])
    def test_tables_application_data_and_comments_are_passed_over(self, marker):
        data = imagefiles.inserted(self.whole, imagefiles.segment(marker, b"\xff\xd9\xff\xc0"))

        assert heads.read(data) == heads.read(self.whole)

    @pytest.mark.parametrize("marker", [0x01, 0x02, 0xC8, 0xD0, 0xD7, 0xD8, 0xDF, 0xF0, 0xFD])
    def test_markers_that_do_not_belong_into_a_header_are_refused(self, marker):
        self.refused(
            imagefiles.inserted(self.whole, imagefiles.segment(marker, b"abcd")), f"{marker:#04x}"
        )

    def test_an_end_before_the_image_is_refused(self):
        self.refused(imagefiles.inserted(self.whole, b"\xff\xd9"), "end-of-image")

    def test_garbage_between_segments_is_refused(self):
        self.refused(imagefiles.inserted(self.whole, b"abc"), "byte 2 .* 0x61")

    @pytest.mark.parametrize("length", [0, 1])
    def test_a_segment_shorter_than_its_length_is_refused(self, length):
        self.refused(
            imagefiles.inserted(self.whole, imagefiles.segment(0xE2, b"", length)), "shorter"
        )

    def test_a_segment_that_reaches_beyond_the_file_is_refused(self):
        self.refused(
            imagefiles.inserted(self.whole, imagefiles.segment(0xE2, b"", 65535)),
            "ends inside segment 0xe2",
        )

    @pytest.mark.parametrize("marker", [0xC3, 0xCB])
    def test_a_lossless_jpeg_is_refused(self, marker):
        self.refused(imagefiles.replaced(self.whole, self.frame + 1, marker), "lossless")

    @pytest.mark.parametrize("marker", [0xC5, 0xC6, 0xC7, 0xCD, 0xCE, 0xCF])
    def test_a_hierarchical_jpeg_is_refused(self, marker):
        self.refused(imagefiles.replaced(self.whole, self.frame + 1, marker), "hierarchical")

    @pytest.mark.parametrize("marker", [0xC1, 0xC2, 0xC9, 0xCA])
    def test_extended_progressive_and_arithmetic_frames_are_read(self, marker):
        assert heads.read(imagefiles.replaced(self.whole, self.frame + 1, marker)).width == 24

    @pytest.mark.parametrize("bits", [0, 7, 12, 16])
    def test_bits_other_than_8_are_refused(self, bits):
        self.refused(imagefiles.replaced(self.whole, self.frame + 4, bits), f"{bits} bits")

    @pytest.mark.parametrize("channels", [0, 1, 2, 4, 5, 255])
    def test_a_wrong_number_of_channels_is_refused(self, channels):
        self.refused(
            imagefiles.replaced(self.whole, self.frame + 9, channels), f"{channels} channels"
        )

    def test_two_channels_are_refused(self):
        frame = struct.pack(">BHHB", 8, 16, 24, 2) + bytes([1, 0x11, 0, 2, 0x11, 0])
        data = (
            self.whole[: self.frame]
            + imagefiles.segment(0xC0, frame)
            + self.whole[self.frame + 19 :]
        )

        self.refused(data, "2 channels")

    def test_a_height_of_0_is_refused(self):
        self.refused(imagefiles.replaced(self.whole, self.frame + 5, 0, 0), "DNL")

    def test_a_width_of_0_is_refused(self):
        self.refused(imagefiles.replaced(self.whole, self.frame + 7, 0, 0), "16 x 0")

    @pytest.mark.parametrize("side", [5, 7])
    def test_a_side_above_the_limit_of_libjpeg_is_refused(self, side):
        self.refused(
            imagefiles.replaced(self.whole, self.frame + side, *(65501).to_bytes(2, "big")), "65501"
        )

    def test_a_frame_header_that_is_cut_short_is_refused(self):
        self.refused(imagefiles.replaced(self.whole, self.frame + 2, 0, 7), "frame header")

    def test_two_frame_headers_are_refused(self):
        frame = self.whole[self.frame : self.frame + 19]

        self.refused(imagefiles.inserted(self.whole, frame), "twice")

    def test_a_header_without_a_frame_is_refused(self):
        self.refused(self.whole[: self.frame] + self.whole[self.frame + 19 :], "no size")

    def test_a_thumbnail_does_not_count_as_the_end_of_the_image(self):
        data = imagefiles.inserted(
            self.whole, imagefiles.exif_segment(imagefiles.exif() + imagefiles.jpeg(8, 8))
        )

        assert heads.read(data).height == 16
        self.refused(data[:-2], "end-of-image")

    def test_an_image_that_its_bytes_cannot_hold_is_refused(self):
        data = imagefiles.replaced(self.whole, self.frame + 5, 0xFF, 0x00, 0xFF, 0x00)

        self.refused(data, "pixels")
        self.refused(data + bytes(300_000), "at most")

    @pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
    def test_one_flat_colour_is_not_too_few_bytes(self, mode):
        file = io.BytesIO()
        Image.new(mode, (3000, 3000)).save(file, "JPEG", quality=1, progressive=True, optimize=True)

        assert heads.read(file.getvalue()).width == 3000


class TestPngStructure:
    whole = imagefiles.png()

    def refused(self, data, match):
        with pytest.raises(HeadError, match=match):
            heads.read(data)

    def with_header(self, header):
        return self.whole[:8] + header + self.whole[33:]

    def test_the_header_comes_first(self):
        self.refused(
            self.whole[:8] + imagefiles.chunk(b"gAMA", bytes(4)) + self.whole[8:], "gAMA of 4 bytes"
        )

    def test_a_header_of_another_length_is_refused(self):
        self.refused(
            self.with_header(imagefiles.chunk(b"IHDR", self.whole[16:29] + b"\0")),
            "IHDR of 14 bytes",
        )

    def test_a_wrong_checksum_of_the_header_is_refused(self):
        self.refused(imagefiles.replaced(self.whole, 19, 25), "checksum")

    @pytest.mark.parametrize("size", [(0, 24), (16, 0), (2**31, 24), (1_000_001, 1)])
    def test_a_side_outside_the_limits_of_libpng_is_refused(self, size):
        self.refused(self.with_header(imagefiles.png_header(*size)), f"{size[0]} x {size[1]}")

    @pytest.mark.parametrize("methods", [b"\1\0\0", b"\0\1\0", b"\0\0\2"])
    def test_unknown_methods_are_refused(self, methods):
        self.refused(self.with_header(imagefiles.png_header(16, 24, methods=methods)), "methods")

    def test_interlacing_is_known(self):
        assert (
            heads.read(self.with_header(imagefiles.png_header(16, 24, methods=b"\0\0\1"))).height
            == 16
        )

    def test_a_file_without_pixels_is_refused(self):
        self.refused(self.whole[:33] + imagefiles.chunk(b"IEND"), "IDAT")

    @pytest.mark.parametrize("length", [2**31 - 1, 2**31, 2**32 - 4, 2**32 - 1])
    def test_a_chunk_that_reaches_beyond_the_file_is_refused(self, length):
        hostile = struct.pack(">I4s", length, b"tEXt") + self.whole[33:]

        self.refused(self.whole[:33] + hostile, "ends inside its chunk tEXt")

    def test_an_image_that_its_bytes_cannot_hold_is_refused(self):
        self.refused(self.with_header(imagefiles.png_header(30_000, 2_000)), "pixels")

    def test_more_pixels_than_are_decoded_are_refused(self):
        rows = imagefiles.png_header(100_000, 5_000, 0, 1)

        self.refused(self.with_header(rows) + bytes(100_000), "at most")

    @pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA"])
    def test_one_flat_colour_is_not_too_few_bytes(self, mode):
        file = io.BytesIO()
        Image.new(mode, (4000, 4000)).save(file, "PNG", compress_level=9)

        assert heads.read(file.getvalue()).width == 4000

    @pytest.mark.parametrize("name", [b"aaaa", b"te t", b"t\xe9Xt", b"1234"])
    def test_a_name_that_no_chunk_has_is_refused(self, name):
        self.refused(
            imagefiles.png(16, 24, 2, 8, imagefiles.chunk(name)), "name that PNG does not have"
        )

    @pytest.mark.parametrize("name", [b"IHDR", b"ABCD", b"IDXT"])
    def test_a_necessary_chunk_that_is_unknown_or_a_second_header_is_refused(self, name):
        self.refused(
            imagefiles.png(16, 24, 2, 8, imagefiles.chunk(name, bytes(13))), "unknown and necessary"
        )

    def test_a_chunk_that_is_unknown_and_not_necessary_does_not_matter(self):
        assert (
            heads.read(imagefiles.png(16, 24, 2, 8, imagefiles.chunk(b"abCd", b"x"))).height == 16
        )

    @pytest.mark.parametrize("length", [0, 3, 5])
    def test_a_background_colour_of_another_length_is_refused(self, length):
        self.refused(
            imagefiles.png(16, 24, 2, 8, imagefiles.chunk(b"bKGD", bytes(length))),
            f"bKGD is {length} bytes",
        )

    @pytest.mark.parametrize("length", [0, 2, 769, 771])
    def test_a_damaged_palette_is_refused(self, length):
        header = imagefiles.png_header(16, 24, imagefiles.PALETTE, 8)
        rest = imagefiles.png_pixels(16, 24, imagefiles.PALETTE) + imagefiles.chunk(b"IEND")

        self.refused(
            self.whole[:8] + header + imagefiles.chunk(b"PLTE", bytes(length)) + rest,
            f"palette is {length} bytes",
        )

    def test_a_palette_that_is_missing_late_or_double_is_refused(self):
        header, palette = (
            imagefiles.png_header(16, 24, imagefiles.PALETTE, 8),
            imagefiles.chunk(b"PLTE", bytes(768)),
        )
        pixels, end = imagefiles.png_pixels(16, 24, imagefiles.PALETTE), imagefiles.chunk(b"IEND")

        self.refused(self.whole[:8] + header + pixels + end, "no palette")
        self.refused(self.whole[:8] + header + pixels + palette + end, "no palette")
        self.refused(self.whole[:8] + header + palette * 2 + pixels + end, "PLTE .* occurs twice")

    def test_two_exif_chunks_are_refused(self):
        item = imagefiles.chunk(b"eXIf", imagefiles.exif(imagefiles.turned(1)))

        self.refused(imagefiles.png(16, 24, 2, 8, item, item), "twice")

    def test_a_wrong_checksum_of_the_exif_chunk_is_refused(self):
        self.refused(
            imagefiles.png(
                16,
                24,
                2,
                8,
                imagefiles.chunk(b"eXIf", imagefiles.exif(imagefiles.turned(6)), crc=1),
            ),
            "checksum",
        )

    def test_a_wrong_checksum_of_a_text_does_not_matter(self):
        assert (
            heads.read(
                imagefiles.png(16, 24, 2, 8, imagefiles.chunk(b"tEXt", b"a\0b", crc=1))
            ).height
            == 16
        )

    def test_an_exif_chunk_behind_the_pixels_counts(self):
        data = (
            self.whole[:-12]
            + imagefiles.chunk(b"eXIf", imagefiles.exif(imagefiles.turned(6)))
            + self.whole[-12:]
        )

        assert heads.read(data).orientation == 6


def control(width=24, height=16, left=0, top=0, dispose=0, blend=0):
    """Return the control chunk of one frame of an animation."""
    return imagefiles.chunk(
        b"fcTL", struct.pack(">IIIIIHHBB", 0, width, height, left, top, 1, 10, dispose, blend)
    )


def animated(*chunks, num_frames=2, second=None, pixels=None):
    """Return an animated PNG: the chunks in front of the first frame, its pixels, and what follows
    them."""
    start = imagefiles.chunk(b"acTL", struct.pack(">II", num_frames, 0))
    pixels = imagefiles.png_pixels(16, 24) if pixels is None else pixels
    frame = imagefiles.chunk(b"fdAT", struct.pack(">I", 2) + imagefiles.png_pixels(16, 24)[8:-4])
    second = control() + frame if second is None else second
    head = imagefiles.png(16, 24)[:33]
    return (
        head + start + b"".join(chunks or [control()]) + pixels + second + imagefiles.chunk(b"IEND")
    )


def coded(raw, num_parts=1):
    """Return compressed pixels, in chunks."""
    data = zlib.compress(raw)
    cuts = [len(data) * part // num_parts for part in range(num_parts + 1)]
    return b"".join(
        imagefiles.chunk(b"IDAT", data[begin:end]) for begin, end in itertools.pairwise(cuts)
    )


class TestAnimation:
    """What is refused here ends the process inside DALI, or gives it undefined memory as pixels."""

    def refused(self, data, match):
        with pytest.raises(HeadError, match=match):
            heads.read(data)

    @pytest.mark.parametrize("num_frames", [1, 2, 1000])
    def test_a_sound_animation_is_its_still_image(self, num_frames):
        assert heads.read(animated(num_frames=num_frames)) == Head("png", 16, 24, 3, 8, 1)

    def test_an_animation_of_one_frame_may_end_with_it(self):
        text = imagefiles.chunk(b"tEXt", b"a\0b")

        assert heads.read(animated(num_frames=1, second=b"")).height == 16
        assert heads.read(animated(num_frames=1, second=text)).height == 16

    def test_the_pixels_of_the_first_frame_may_stand_in_many_chunks(self):
        assert (
            heads.read(animated(pixels=coded((b"\4" + bytes(72)) * 16, num_parts=9))).height == 16
        )

    @pytest.mark.parametrize(
        "colour",
        [
            imagefiles.GRAY,
            imagefiles.RGB,
            imagefiles.PALETTE,
            imagefiles.GRAY_ALPHA,
            imagefiles.RGBA,
        ],
    )
    def test_the_rows_of_interlaced_animations_are_those_of_their_passes(self, colour):
        # Of 3 x 3 pixels passes 1 and 4 have one, 2 and 3 none, 5 one row of 2, 6 two rows of 1, 7
        # one row of 3 (PNG 3rd edition, section 8.1).
        rows = [
            b"\4" + bytes(imagefiles.SAMPLES[colour] * columns) for columns in (1, 1, 2, 1, 1, 3)
        ]
        palette = imagefiles.chunk(b"PLTE", bytes(768)) if colour == imagefiles.PALETTE else b""
        head = b"\x89PNG\r\n\x1a\n" + imagefiles.png_header(3, 3, colour, 8, b"\0\0\1") + palette
        start = head + imagefiles.chunk(b"acTL", struct.pack(">II", 2, 0)) + control(3, 3)
        end = control(3, 3) + imagefiles.chunk(b"IEND")

        assert heads.read(start + coded(b"".join(rows)) + end).height == 3
        self.refused(start + coded(b"".join(rows)[:-1]) + end, "pixels are")
        for number, row in enumerate(rows):
            broken = [*rows[:number], b"\5" + row[1:], *rows[number + 1 :]]
            self.refused(start + coded(b"".join(broken)) + end, "filter 5")

    def test_a_still_image_that_is_not_the_first_frame_is_refused(self):
        start, end = imagefiles.chunk(b"acTL", struct.pack(">II", 2, 0)), imagefiles.chunk(b"IEND")

        self.refused(imagefiles.png(16, 24, 2, 8, start), "not its first frame")
        self.refused(imagefiles.png(16, 24)[:-12] + start + control() + end, "not its first frame")
        self.refused(animated(imagefiles.chunk(b"tEXt", b"a\0b")), "not its first frame")

    @pytest.mark.parametrize("num_frames", [0, 2**31, 2**32 - 1])
    def test_a_number_of_frames_that_cannot_be_is_refused(self, num_frames):
        self.refused(animated(num_frames=num_frames), "not its first frame")

    def test_an_orientation_is_refused(self):
        turn = imagefiles.chunk(b"eXIf", imagefiles.exif(imagefiles.turned(6)))

        self.refused(animated(control(), turn), "with an orientation")

    @pytest.mark.parametrize(
        "frame",
        [
            control(23),
            control(24, 15),
            control(left=1),
            control(top=2**32 - 1),
            control(dispose=3),
            control(blend=2),
        ],
    )
    def test_a_first_frame_that_is_not_the_image_is_refused(self, frame):
        self.refused(animated(frame), "does not fit")

    @pytest.mark.parametrize(
        "frame", [control(1, 1, 24), control(25), control(1, 17), control(dispose=3)]
    )
    def test_a_second_frame_that_does_not_fit_is_refused(self, frame):
        self.refused(animated(second=frame), "does not fit")

    @pytest.mark.parametrize(
        ("extra", "match"),
        [(control(), "fcTL of 26"), (imagefiles.chunk(b"acTL", struct.pack(">II", 2, 0)), "acTL of 8"),
         (imagefiles.chunk(b"fdAT", bytes(20)), "fdAT of 20")],
    )  # fmt: skip
    def test_more_control_in_front_of_the_pixels_is_refused(self, extra, match):
        self.refused(animated(control(), extra), f"{match} bytes has no place")

    @pytest.mark.parametrize("name", [b"tEXt", b"fdAT", b"acTL"])
    def test_other_chunks_between_the_first_two_frames_are_refused(self, name):
        self.refused(
            animated(second=imagefiles.chunk(name, bytes(8)) + control()), f"{name.decode()} "
        )

    @pytest.mark.parametrize("name", [b"acTL", b"fcTL", b"IDAT"])
    def test_a_wrong_checksum_in_the_first_frame_is_refused(self, name):
        data = animated()
        place = data.index(name)
        checksum = place + 4 + int.from_bytes(data[place - 4 : place], "big")

        self.refused(
            imagefiles.replaced(data, checksum, data[checksum] ^ 1),
            f"checksum of its chunk {name.decode()}",
        )

    @pytest.mark.parametrize(
        ("raw", "match"),
        [(bytes(73 * 16 - 1), "pixels are 1167 bytes, of 1168"), (b"", "pixels are 0 bytes"),
         (bytes(73 * 15) + b"\5" + bytes(72), "filter 5"), (b"\xff" + bytes(73 * 16 - 1), "filter 255")],
    )  # fmt: skip
    @pytest.mark.parametrize("num_parts", [1, 5])
    def test_pixels_that_are_not_whole_are_refused(self, raw, match, num_parts):
        self.refused(animated(pixels=coded(raw, num_parts)), match)

    def test_pixels_that_are_damaged_or_do_not_end_are_refused(self):
        data = zlib.compress(bytes(73 * 16))

        for broken in (
            data[:-1],
            data[:-5],
            data[:-4] + bytes(4),
            b"x" + data,
            b"",
            data[:5] + b"\xff" * 10,
        ):
            self.refused(
                animated(pixels=imagefiles.chunk(b"IDAT", broken)), "do not end|are damaged"
            )

    def test_what_follows_the_pixels_in_their_chunk_does_not_matter(self):
        data = zlib.compress(bytes(73 * 16))

        assert (
            heads.read(animated(pixels=imagefiles.chunk(b"IDAT", data + bytes(100_000)))).height
            == 16
        )

    def test_a_large_first_frame_is_checked_in_small_parts(self):
        raw = bytearray((1 + 3 * 4000) * 3000)
        head = imagefiles.png(16, 24)[:8] + imagefiles.png_header(3000, 4000)
        start = head + imagefiles.chunk(b"acTL", struct.pack(">II", 2, 0)) + control(4000, 3000)
        end = control(4000, 3000) + imagefiles.chunk(b"IEND")
        data = start + coded(raw, 3) + end
        raw[-1 - 3 * 4000] = 7

        tracemalloc.start()
        try:
            assert heads.read(data).height == 3000
            assert tracemalloc.get_traced_memory()[1] < 1_000_000  # of 36 MB
        finally:
            tracemalloc.stop()
        self.refused(start + coded(raw, 3) + end, "filter 7")


def in_jpeg(*blocks):
    return imagefiles.inserted(
        imagefiles.jpeg(), *(imagefiles.exif_segment(block) for block in blocks)
    )


def in_png(block):
    return imagefiles.png(16, 24, 2, 8, imagefiles.chunk(b"eXIf", block))


@pytest.mark.parametrize("put", [in_jpeg, in_png])
class TestOrientation:
    @pytest.mark.parametrize("order", ["<", ">"])
    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_the_size_is_that_of_the_image_as_displayed(self, put, order, orientation):
        head = heads.read(put(imagefiles.exif(imagefiles.turned(orientation, order), order=order)))

        assert head.orientation == orientation
        assert (head.height, head.width) == DISPLAYED[orientation]

    @pytest.mark.parametrize("orientation", [0, 9, 255, 262, 65535])
    def test_other_values_are_no_orientation(self, put, orientation):
        assert heads.read(put(imagefiles.exif(imagefiles.turned(orientation)))).orientation == 1

    def test_the_directory_may_begin_later(self, put):
        assert heads.read(put(imagefiles.exif(imagefiles.turned(6), start=9))).orientation == 6

    def test_the_first_of_two_entries_counts(self, put):
        assert (
            heads.read(put(imagefiles.exif(imagefiles.turned(6), imagefiles.turned(1)))).orientation
            == 6
        )
        assert (
            heads.read(put(imagefiles.exif(imagefiles.turned(1), imagefiles.turned(6)))).orientation
            == 1
        )
        assert (
            heads.read(put(imagefiles.exif(imagefiles.turned(0), imagefiles.turned(6)))).orientation
            == 1
        )

    @pytest.mark.parametrize(
        "block",
        [b"I", b"II*", b"II*\0", b"garbage garbage", imagefiles.exif(imagefiles.turned(6), start=200)[:20],
         b"II*\0" + b"\xff" * 20, b"II+\0" + imagefiles.exif(imagefiles.turned(6))[4:], imagefiles.exif()],
    )  # fmt: skip
    def test_a_block_that_is_no_directory_gives_none(self, put, block):
        assert heads.read(put(block)).orientation == 1

    def test_an_unknown_byte_order_is_refused(self, put):
        with pytest.raises(HeadError, match="49 4d"):
            heads.read(put(b"IM" + imagefiles.exif(imagefiles.turned(6, ">"), order=">")[2:]))

    def test_nothing_counts_behind_a_damaged_entry(self, put):
        maker = imagefiles.entry(0x10F, struct.pack("<I", 5000), kind=2, count=100)

        assert heads.read(put(imagefiles.exif(maker, imagefiles.turned(6)))).orientation == 1

    @pytest.mark.parametrize(
        "tag", [0x10E, 0x110, 0x11A, 0x11B, 0x131, 0x132, 0x13E, 0x13F, 0x211, 0x214, 0x8298]
    )
    def test_a_turn_in_a_damaged_block_is_refused_because_decoders_disagree(self, put, tag):
        outside = imagefiles.entry(tag, struct.pack("<I", 5000), kind=5, count=100)

        with pytest.raises(HeadError, match="EXIF block is damaged"):
            heads.read(put(imagefiles.exif(imagefiles.turned(6), outside)))
        assert heads.read(put(imagefiles.exif(imagefiles.turned(1), outside))).orientation == 1

    def test_a_turn_in_a_directory_that_is_longer_than_its_block_is_refused(self, put):
        with pytest.raises(HeadError, match="EXIF block is damaged"):
            heads.read(put(imagefiles.exif(imagefiles.turned(6), count=65535)))
        with pytest.raises(HeadError, match="EXIF block is damaged"):
            heads.read(put(imagefiles.exif(imagefiles.turned(6))[:-5]))

    def test_a_value_that_is_not_looked_at_may_lie_outside(self, put):
        unknown = imagefiles.entry(0x8769, struct.pack("<I", 5000), kind=4)

        assert heads.read(put(imagefiles.exif(unknown, imagefiles.turned(6)))).orientation == 6

    @given(
        block=st.binary(max_size=80),
        order=st.sampled_from([b"II*\0\x08\0\0\0", b"MM\0*\0\0\0\x08", b""]),
    )
    def test_any_block_gives_an_orientation_or_a_head_error(self, put, block, order):
        try:
            head = heads.read(put(order + block))
        except HeadError:
            return

        assert (head.height, head.width) == DISPLAYED[head.orientation]


def test_two_exif_segments_may_agree_but_not_differ():
    turn, straight, empty = (
        imagefiles.exif(imagefiles.turned(6)),
        imagefiles.exif(imagefiles.turned(1)),
        imagefiles.exif(),
    )

    assert heads.read(in_jpeg(turn, turn)).orientation == 6
    for blocks in ((turn, straight), (straight, turn), (turn, empty)):
        with pytest.raises(HeadError, match="different orientations"):
            heads.read(in_jpeg(*blocks))


def test_xmp_beside_exif_does_not_matter():
    xmp = imagefiles.segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta/>")

    assert (
        heads.read(
            imagefiles.inserted(in_jpeg(imagefiles.exif(imagefiles.turned(6))), xmp)
        ).orientation
        == 6
    )


def test_an_exif_segment_shorter_than_its_name_is_refused():
    data = imagefiles.inserted(imagefiles.jpeg(), b"\xff\xe1\x00\x04Exif\0\0")

    with pytest.raises(HeadError, match="EXIF segment"):
        heads.read(data)
