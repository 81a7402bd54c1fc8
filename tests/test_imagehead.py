"""Heads of encoded images."""

from __future__ import annotations

import io
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gpuload import imagehead
from gpuload.imagehead import HeadError
from tests import imagefiles as made

GOLDEN = Path(__file__).parent / "golden" / "images"
FILES = sorted(path for path in GOLDEN.rglob("*") if path.is_file() and path.suffix != ".md")
DAMAGED = {  # with what must be said about each
    "Pillow/broken.png": "first chunk",
    "image-png/xc1n0g08.png": "colour type 1",
    "image-png/xc9n2c08.png": "colour type 9",
    "image-png/xd0n2c08.png": "0 bits",
    "image-png/xd3n2c08.png": "3 bits",
    "image-png/xhdn0g08.png": "checksum",
    "imagecodecs/rgb.u2.jpg": "12 bits per sample",
    "tensorflow/corrupt34_2.jpg": "end-of-image",
}
SOF = tuple(range(0xC0, 0xC4))
DISPLAYED = {1: (16, 24), 2: (16, 24), 3: (16, 24), 4: (16, 24), 5: (24, 16), 6: (24, 16), 7: (24, 16), 8: (24, 16)}


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
            imagehead.read(data)
    else:
        head = imagehead.read(data)
        assert (head.kind, head.height, head.width) == displayed_by_pillow(data)


@pytest.mark.parametrize("path", [path for path in FILES if is_fuzz(path)], ids=name_of)
def test_files_of_fuzzers_are_refused(path):
    with pytest.raises(HeadError):
        imagehead.read(path.read_bytes())


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 1}], ids=str)
def test_a_jpeg_says_its_size_and_channels(mode, options):
    head = imagehead.read(made.jpeg(17, 31, mode, **options))

    assert head == imagehead.Head("jpeg", 17, 31, len(mode), 8, 1)


@pytest.mark.parametrize(
    ("colour", "channels", "depths"),
    [(0, 1, (1, 2, 4, 8, 16)), (2, 3, (8, 16)), (3, 3, (1, 2, 4, 8)), (4, 2, (8, 16)), (6, 4, (8, 16))],
)
def test_a_png_says_its_size_channels_and_bits_and_other_depths_are_refused(colour, channels, depths):
    for bits in range(20):
        data = made.png(17, 31, colour, bits)
        if bits in depths:
            assert imagehead.read(data) == imagehead.Head("png", 17, 31, channels, bits, 1)
        else:
            with pytest.raises(HeadError, match=f"colour type {colour} with {bits} bits"):
                imagehead.read(data)


@pytest.mark.parametrize("data", [made.jpeg(), made.png()], ids=["jpeg", "png"])
def test_the_bytes_may_come_in_any_form(data):
    array = np.frombuffer(data, np.uint8)
    strided = np.repeat(array, 2)[::2]

    heads = [imagehead.read(form) for form in (data, bytearray(data), memoryview(data), array, strided)]

    assert len(set(heads)) == 1


@pytest.mark.parametrize(
    "data",
    [made.jpeg(), made.jpeg(progressive=True), made.png(), made.png(16, 24, 2, 8, made.chunk(b"eXIf", made.exif()))],
    ids=["baseline", "progressive", "png", "png with exif"],
)
def test_a_file_that_is_cut_off_anywhere_is_refused(data):
    for length in range(len(data)):
        with pytest.raises(HeadError):
            imagehead.read(data[:length])


@pytest.mark.parametrize("data", [made.jpeg(), made.png()], ids=["jpeg", "png"])
@pytest.mark.parametrize("more", [b"\0", b"garbage" * 100, made.jpeg()], ids=["zero", "garbage", "jpeg"])
def test_what_follows_the_end_of_an_image_does_not_matter(data, more):
    assert imagehead.read(data + more) == imagehead.read(data)


@pytest.mark.parametrize("data", [b"", b"\xff", b"\xff\xd8", b"GIF89a", b"BM", b"\x89PNG", bytes(100)])
def test_other_bytes_are_no_image(data):
    with pytest.raises(HeadError):
        imagehead.read(data)


@given(st.sampled_from([path for path in FILES if not is_fuzz(path)]), st.data())
def test_a_damaged_file_gives_a_head_or_a_head_error(path, data):
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        place = data.draw(st.one_of(st.integers(0, min(200, len(content) - 1)), st.integers(0, len(content) - 1)))
        content[place] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(len(content) // 2, 2 * len(content))) :]

    try:
        head = imagehead.read(bytes(content))
    except HeadError:
        return

    assert 0 < head.height * head.width <= imagehead.MAX_PIXELS


@given(st.sampled_from([b"", b"\xff\xd8\xff", b"\xff\xd8\xff\xe1\x00\x40Exif\0\0II*\0", made.png()[:33]]), st.binary())
def test_random_bytes_are_refused(begin, rest):
    with pytest.raises(HeadError):
        imagehead.read(begin + rest)


class TestJpegStructure:
    whole = made.jpeg()
    frame = made.find_segment(whole, SOF)
    scan = made.find_segment(whole, (0xDA,))

    def refused(self, data, match):
        with pytest.raises(HeadError, match=match):
            imagehead.read(data)

    def test_fill_bytes_may_stand_in_front_of_a_marker(self):
        assert imagehead.read(made.inserted(self.whole, b"\xff" * 50)) == imagehead.read(self.whole)

    def test_endless_fill_bytes_are_refused(self):
        self.refused(b"\xff\xd8" + b"\xff" * 1_000_000, "fill bytes")

    @pytest.mark.parametrize("marker", [0xC4, 0xCC, 0xDB, 0xDD, 0xE0, 0xE2, 0xEE, 0xEF, 0xFE])
    def test_tables_application_data_and_comments_are_passed_over(self, marker):
        data = made.inserted(self.whole, made.segment(marker, b"\xff\xd9\xff\xc0"))

        assert imagehead.read(data) == imagehead.read(self.whole)

    @pytest.mark.parametrize("marker", [0x00, 0x01, 0x02, 0xC8, 0xD0, 0xD7, 0xD8, 0xDE, 0xDF, 0xF0, 0xFD])
    def test_markers_that_do_not_belong_into_a_header_are_refused(self, marker):
        self.refused(made.inserted(self.whole, made.segment(marker, b"abcd")), f"{marker:#04x}")

    def test_an_end_before_the_image_is_refused(self):
        self.refused(made.inserted(self.whole, b"\xff\xd9"), "end-of-image")

    def test_garbage_between_segments_is_refused(self):
        self.refused(made.inserted(self.whole, b"abc"), "byte 2 .* 0x61")

    @pytest.mark.parametrize("length", [0, 1])
    def test_a_segment_shorter_than_its_length_is_refused(self, length):
        self.refused(made.inserted(self.whole, made.segment(0xE2, b"", length)), "shorter")

    def test_a_segment_that_reaches_beyond_the_file_is_refused(self):
        self.refused(made.inserted(self.whole, made.segment(0xE2, b"", 65535)), "ends inside segment 0xe2")

    @pytest.mark.parametrize("marker", [0xC3, 0xCB])
    def test_a_lossless_jpeg_is_refused(self, marker):
        self.refused(made.replaced(self.whole, self.frame + 1, marker), "lossless")

    @pytest.mark.parametrize("marker", [0xC5, 0xC6, 0xC7, 0xCD, 0xCE, 0xCF])
    def test_a_hierarchical_jpeg_is_refused(self, marker):
        self.refused(made.replaced(self.whole, self.frame + 1, marker), "hierarchical")

    @pytest.mark.parametrize("marker", [0xC1, 0xC2, 0xC9, 0xCA])
    def test_extended_progressive_and_arithmetic_frames_are_read(self, marker):
        assert imagehead.read(made.replaced(self.whole, self.frame + 1, marker)).width == 24

    @pytest.mark.parametrize("bits", [0, 7, 12, 16])
    def test_bits_other_than_8_are_refused(self, bits):
        self.refused(made.replaced(self.whole, self.frame + 4, bits), f"{bits} bits")

    @pytest.mark.parametrize("channels", [0, 1, 2, 4, 5, 255])
    def test_a_wrong_number_of_channels_is_refused(self, channels):
        self.refused(made.replaced(self.whole, self.frame + 9, channels), f"{channels} channels")

    def test_two_channels_are_refused(self):
        frame = struct.pack(">BHHB", 8, 16, 24, 2) + bytes([1, 0x11, 0, 2, 0x11, 0])
        data = self.whole[: self.frame] + made.segment(0xC0, frame) + self.whole[self.frame + 19 :]

        self.refused(data, "2 channels")

    def test_a_height_of_0_is_refused(self):
        self.refused(made.replaced(self.whole, self.frame + 5, 0, 0), "DNL")

    def test_a_width_of_0_is_refused(self):
        self.refused(made.replaced(self.whole, self.frame + 7, 0, 0), "16 x 0")

    @pytest.mark.parametrize("side", [5, 7])
    def test_a_side_above_the_limit_of_libjpeg_is_refused(self, side):
        self.refused(made.replaced(self.whole, self.frame + side, *(65501).to_bytes(2, "big")), "65501")

    def test_a_frame_header_that_is_cut_short_is_refused(self):
        self.refused(made.replaced(self.whole, self.frame + 2, 0, 7), "frame header")

    def test_two_frame_headers_are_refused(self):
        frame = self.whole[self.frame : self.frame + 19]

        self.refused(made.inserted(self.whole, frame), "twice")

    def test_a_header_without_a_frame_is_refused(self):
        self.refused(self.whole[: self.frame] + self.whole[self.frame + 19 :], "no size")

    def test_a_thumbnail_does_not_count_as_the_end_of_the_image(self):
        data = made.inserted(self.whole, made.exif_segment(made.exif() + made.jpeg(8, 8)))

        assert imagehead.read(data).height == 16
        self.refused(data[:-2], "end-of-image")

    def test_an_image_that_its_bytes_cannot_hold_is_refused(self):
        data = made.replaced(self.whole, self.frame + 5, 0xFF, 0x00, 0xFF, 0x00)

        self.refused(data, "pixels")
        self.refused(data + bytes(300_000), "at most")

    @pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
    def test_one_flat_colour_is_not_too_few_bytes(self, mode):
        file = io.BytesIO()
        Image.new(mode, (3000, 3000)).save(file, "JPEG", quality=1, progressive=True, optimize=True)

        assert imagehead.read(file.getvalue()).width == 3000


class TestPngStructure:
    whole = made.png()

    def refused(self, data, match):
        with pytest.raises(HeadError, match=match):
            imagehead.read(data)

    def with_header(self, header):
        return self.whole[:8] + header + self.whole[33:]

    def test_the_header_comes_first(self):
        self.refused(self.whole[:8] + made.chunk(b"gAMA", bytes(4)) + self.whole[8:], "gAMA of 4 bytes")

    def test_a_header_of_another_length_is_refused(self):
        self.refused(self.with_header(made.chunk(b"IHDR", self.whole[16:29] + b"\0")), "IHDR of 14 bytes")

    def test_a_wrong_checksum_of_the_header_is_refused(self):
        self.refused(made.replaced(self.whole, 19, 25), "checksum")

    @pytest.mark.parametrize("size", [(0, 24), (16, 0), (2**31, 24), (1_000_001, 1)])
    def test_a_side_outside_the_limits_of_libpng_is_refused(self, size):
        self.refused(self.with_header(made.png_header(*size)), f"{size[0]} x {size[1]}")

    @pytest.mark.parametrize("methods", [b"\1\0\0", b"\0\1\0", b"\0\0\2"])
    def test_unknown_methods_are_refused(self, methods):
        self.refused(self.with_header(made.png_header(16, 24, methods=methods)), "methods")

    def test_interlacing_is_known(self):
        assert imagehead.read(self.with_header(made.png_header(16, 24, methods=b"\0\0\1"))).height == 16

    def test_a_file_without_pixels_is_refused(self):
        self.refused(self.whole[:33] + made.chunk(b"IEND"), "IDAT")

    @pytest.mark.parametrize("length", [2**31 - 1, 2**31, 2**32 - 4, 2**32 - 1])
    def test_a_chunk_that_reaches_beyond_the_file_is_refused(self, length):
        hostile = struct.pack(">I4s", length, b"tEXt") + self.whole[33:]

        self.refused(self.whole[:33] + hostile, "ends inside its chunk tEXt")

    def test_an_image_that_its_bytes_cannot_hold_is_refused(self):
        self.refused(self.with_header(made.png_header(30_000, 2_000)), "pixels")

    def test_more_pixels_than_are_decoded_are_refused(self):
        rows = made.png_header(100_000, 5_000, 0, 1)

        self.refused(self.with_header(rows) + bytes(100_000), "at most")

    @pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA"])
    def test_one_flat_colour_is_not_too_few_bytes(self, mode):
        file = io.BytesIO()
        Image.new(mode, (4000, 4000)).save(file, "PNG", compress_level=9)

        assert imagehead.read(file.getvalue()).width == 4000

    def test_an_animation_is_its_first_frame(self):
        control = made.chunk(b"acTL", struct.pack(">II", 1, 0)), made.chunk(b"fcTL", bytes(26))

        assert imagehead.read(made.png(16, 24, 2, 8, *control)).height == 16

    def test_an_animation_without_frames_or_with_an_orientation_is_refused(self):
        control, frame = made.chunk(b"acTL", struct.pack(">II", 1, 0)), made.chunk(b"fcTL", bytes(26))
        turn = made.chunk(b"eXIf", made.exif(made.turned(6)))

        self.refused(made.png(16, 24, 2, 8, control), "animated")
        self.refused(made.png(16, 24, 2, 8, control, frame, turn), "animated")

    def test_two_exif_chunks_are_refused(self):
        one = made.chunk(b"eXIf", made.exif(made.turned(1)))

        self.refused(made.png(16, 24, 2, 8, one, one), "twice")

    def test_a_wrong_checksum_of_the_exif_chunk_is_refused(self):
        self.refused(made.png(16, 24, 2, 8, made.chunk(b"eXIf", made.exif(made.turned(6)), crc=1)), "checksum")

    def test_a_wrong_checksum_of_a_text_does_not_matter(self):
        assert imagehead.read(made.png(16, 24, 2, 8, made.chunk(b"tEXt", b"a\0b", crc=1))).height == 16

    def test_an_exif_chunk_behind_the_pixels_counts(self):
        data = self.whole[:-12] + made.chunk(b"eXIf", made.exif(made.turned(6))) + self.whole[-12:]

        assert imagehead.read(data).orientation == 6


def in_jpeg(*blocks):
    return made.inserted(made.jpeg(), *(made.exif_segment(block) for block in blocks))


def in_png(block):
    return made.png(16, 24, 2, 8, made.chunk(b"eXIf", block))


@pytest.mark.parametrize("put", [in_jpeg, in_png])
class TestOrientation:
    @pytest.mark.parametrize("order", ["<", ">"])
    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_the_size_is_that_of_the_image_as_displayed(self, put, order, orientation):
        head = imagehead.read(put(made.exif(made.turned(orientation, order), order=order)))

        assert head.orientation == orientation
        assert (head.height, head.width) == DISPLAYED[orientation]

    @pytest.mark.parametrize("orientation", [0, 9, 255, 262, 65535])
    def test_other_values_are_no_orientation(self, put, orientation):
        assert imagehead.read(put(made.exif(made.turned(orientation)))).orientation == 1

    def test_the_directory_may_begin_later(self, put):
        assert imagehead.read(put(made.exif(made.turned(6), start=9))).orientation == 6

    def test_the_first_of_two_entries_counts(self, put):
        assert imagehead.read(put(made.exif(made.turned(6), made.turned(1)))).orientation == 6
        assert imagehead.read(put(made.exif(made.turned(1), made.turned(6)))).orientation == 1
        assert imagehead.read(put(made.exif(made.turned(0), made.turned(6)))).orientation == 1

    @pytest.mark.parametrize(
        "block",
        [b"I", b"II*", b"II*\0", b"garbage garbage", made.exif(made.turned(6), start=200)[:20],
         b"II*\0" + b"\xff" * 20, b"II+\0" + made.exif(made.turned(6))[4:], made.exif()],
    )  # fmt: skip
    def test_a_block_that_is_no_directory_gives_none(self, put, block):
        assert imagehead.read(put(block)).orientation == 1

    def test_an_unknown_byte_order_is_refused(self, put):
        with pytest.raises(HeadError, match="49 4d"):
            imagehead.read(put(b"IM" + made.exif(made.turned(6, ">"), order=">")[2:]))

    def test_nothing_counts_behind_a_damaged_entry(self, put):
        maker = made.entry(0x10F, struct.pack("<I", 5000), kind=2, count=100)

        assert imagehead.read(put(made.exif(maker, made.turned(6)))).orientation == 1

    @pytest.mark.parametrize("tag", [0x10E, 0x110, 0x11A, 0x11B, 0x131, 0x132, 0x13E, 0x13F, 0x211, 0x214, 0x8298])
    def test_a_turn_in_a_damaged_block_is_refused_because_decoders_disagree(self, put, tag):
        outside = made.entry(tag, struct.pack("<I", 5000), kind=5, count=100)

        with pytest.raises(HeadError, match="EXIF block is damaged"):
            imagehead.read(put(made.exif(made.turned(6), outside)))
        assert imagehead.read(put(made.exif(made.turned(1), outside))).orientation == 1

    def test_a_turn_in_a_directory_that_is_longer_than_its_block_is_refused(self, put):
        with pytest.raises(HeadError, match="EXIF block is damaged"):
            imagehead.read(put(made.exif(made.turned(6), count=65535)))
        with pytest.raises(HeadError, match="EXIF block is damaged"):
            imagehead.read(put(made.exif(made.turned(6))[:-5]))

    def test_a_value_that_is_not_looked_at_may_lie_outside(self, put):
        unknown = made.entry(0x8769, struct.pack("<I", 5000), kind=4)

        assert imagehead.read(put(made.exif(unknown, made.turned(6)))).orientation == 6

    @given(block=st.binary(max_size=80), order=st.sampled_from([b"II*\0\x08\0\0\0", b"MM\0*\0\0\0\x08", b""]))
    def test_any_block_gives_an_orientation_or_a_head_error(self, put, block, order):
        try:
            head = imagehead.read(put(order + block))
        except HeadError:
            return

        assert (head.height, head.width) == DISPLAYED[head.orientation]


def test_two_exif_segments_may_agree_but_not_differ():
    turn, straight, empty = made.exif(made.turned(6)), made.exif(made.turned(1)), made.exif()

    assert imagehead.read(in_jpeg(turn, turn)).orientation == 6
    for blocks in ((turn, straight), (straight, turn), (turn, empty)):
        with pytest.raises(HeadError, match="different orientations"):
            imagehead.read(in_jpeg(*blocks))


def test_xmp_beside_exif_does_not_matter():
    xmp = made.segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta/>")

    assert imagehead.read(made.inserted(in_jpeg(made.exif(made.turned(6))), xmp)).orientation == 6


def test_an_exif_segment_shorter_than_its_name_is_refused():
    data = made.inserted(made.jpeg(), b"\xff\xe1\x00\x04Exif\0\0")

    with pytest.raises(HeadError, match="EXIF segment"):
        imagehead.read(data)
