"""Decoding: both codecs give the pixels that DALI gives, whole and in part, or refuse the file."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import threading
import tracemalloc
import types
import zlib

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps

from gpuload.errors import MissingPackageError, SpecError
from gpuload.images import decode as decoding
from gpuload.images import head as heads
from gpuload.images.decode import ImageError, codec, decode
from gpuload.images.head import Head, HeadError
from gpuload.images.heads import png as pngs
from tests import forkserver
from tests import imagefiles as parts
from tests.images import by_dali
from tests.images.test_head import FILES, animated, coded, in_jpeg, in_png, name_of


@pytest.fixture(params=["nvimgcodec", "Pillow"])
def codec_name(request, monkeypatch):
    """Decode with one of the codecs; gives its name."""
    pytest.importorskip("nvidia.nvimgcodec" if request.param == "nvimgcodec" else "PIL")
    use(monkeypatch, request.param)
    return request.param


def use(monkeypatch, name):
    monkeypatch.setattr(
        decoding,
        "_process_codec",
        decoding._nvimagecodec if name == "nvimgcodec" else decoding._pillow,
    )


@pytest.fixture
def first_choice():
    """Forget which codec was chosen, before and after."""
    memories = decoding._process_codec, decoding._nvimagecodec, decoding._pillow
    for memory in memories:
        memory.cache_clear()
    yield
    for memory in memories:
        memory.cache_clear()


def decoded(data, mode="RGB", region=None):
    array = np.frombuffer(data, np.uint8)
    return decode(array, heads.read(array), mode, region)


def photograph(height, width, mode="RGB"):
    """Return an image with edges and gradients, so that neighbouring pixels of a JPEG depend on one
    another."""
    y, x = np.mgrid[:height, :width]
    planes = [
        (y * 5 + x * 3) % 256,
        (x * x // 7 + y) % 256,
        255 * ((x // 5 + y // 4) % 2),
        (x + y) % 200,
    ]
    bands = np.stack(planes[: len(mode)], axis=2).astype(np.uint8)
    return Image.fromarray(bands.squeeze(axis=2) if mode == "L" else bands, mode)


def jpeg(height, width, mode="RGB", **options):
    file = io.BytesIO()
    photograph(height, width, mode).save(file, "JPEG", quality=85, **options)
    return file.getvalue()


def without_adobe(data):
    place = parts.find_segment(data, (0xEE,))
    return data[:place] + data[place + 16 :]


def as_ycck(data, transform=2):
    """Return a CMYK file whose Adobe segment says that its planes are YCCK, or something else."""
    return parts.replaced(data, parts.find_segment(data, (0xEE,)) + 15, transform)


def sampled(data, *factors):
    """Return a file of other sampling factors, with data for more blocks than it had; what is left
    over is ignored."""
    frame, scan = parts.find_segment(data, (0xC0,)), parts.find_segment(data, (0xDA,))
    data = (
        data[:-2]
        + 4 * data[scan + 2 + int.from_bytes(data[scan + 2 : scan + 4], "big") : -2]
        + data[-2:]
    )
    for channel, factor in enumerate(factors):
        data = parts.replaced(data, frame + 11 + 3 * channel, factor)
    return data


JPEGS = {
    "4:2:0": jpeg(57, 83, subsampling="4:2:0"),
    "4:2:2": jpeg(57, 83, subsampling="4:2:2"),
    "4:4:4": jpeg(57, 83, subsampling="4:4:4"),
    "progressive": jpeg(57, 83, progressive=True),
    "restart markers": jpeg(57, 83, restart_marker_blocks=2),
    "gray": jpeg(57, 83, "L"),
    "gray progressive": jpeg(57, 83, "L", progressive=True),
    "one pixel": jpeg(1, 1),
    "CMYK": jpeg(57, 83, "CMYK"),
    "CMYK progressive": jpeg(57, 83, "CMYK", progressive=True),
    "CMYK 4:2:0": jpeg(57, 83, "CMYK", subsampling="4:2:0"),
    "CMYK without Adobe": without_adobe(jpeg(57, 83, "CMYK")),
    "CMYK of an unknown Adobe transform": as_ycck(jpeg(57, 83, "CMYK"), transform=8),
    "YCCK": as_ycck(jpeg(57, 83, "CMYK")),
    "RGB": jpeg(57, 83, keep_rgb=True),
    **{f"turned {turn}": parts.inserted(jpeg(57, 83), parts.exif_segment(parts.exif(parts.turned(turn))))
       for turn in range(1, 9)},
    **{f"CMYK turned {turn}": parts.inserted(jpeg(57, 83, "CMYK"), parts.exif_segment(parts.exif(parts.turned(turn))))
       for turn in (2, 5)},
    "CMYK without Adobe, turned": parts.inserted(without_adobe(jpeg(57, 83, "CMYK")),
                                                parts.exif_segment(parts.exif(parts.turned(3)))),
}  # fmt: skip


def png(colour, bits, *chunks, interlace=0):
    """Return a PNG of 13 x 21 random pixels whose rows have all filters."""
    rng = np.random.default_rng(bits)
    rows = []
    for y, x, down, right in pngs.ADAM7 if interlace else ((0, 0, 1, 1),):
        row_bytes = -(-len(range(x, 21, right)) * pngs.SAMPLES[colour] * bits // 8)
        rows += [
            bytes([y % 5]) + rng.bytes(row_bytes)
            for y in range(len(range(y, 13, down)))
            if row_bytes
        ]
    palette = parts.chunk(b"PLTE", rng.bytes(3 * 2**bits)) if colour == parts.PALETTE else b""
    head = (
        b"\x89PNG\r\n\x1a\n"
        + parts.png_header(13, 21, colour, bits, bytes([0, 0, interlace]))
        + palette
    )
    return head + b"".join(chunks) + coded(b"".join(rows), 3) + parts.chunk(b"IEND")


TRANSPARENT = {parts.GRAY: bytes(2), parts.RGB: bytes(6), parts.PALETTE: b"\0\x80"}
PNGS = {
    **{f"colour type {colour}, {bits} bits{', interlaced' * interlace}": png(colour, bits, interlace=interlace)
       for colour, depths in pngs.DEPTHS.items() for bits in depths for interlace in (0, 1)},
    **{f"colour type {colour}, transparency": png(colour, 8 if colour == parts.RGB else 2, parts.chunk(b"tRNS", values))
       for colour, values in TRANSPARENT.items()},
    "gamma": png(parts.RGB, 8, parts.chunk(b"gAMA", (100_000).to_bytes(4, "big"))),
    "short palette": png(parts.PALETTE, 8).replace(parts.chunk(b"PLTE", np.random.default_rng(8).bytes(768)),
                                                  parts.chunk(b"PLTE", np.random.default_rng(8).bytes(300))),
    "turned": png(parts.RGB, 16, parts.chunk(b"eXIf", parts.exif(parts.turned(6)))),
    "animated": animated(pixels=parts.png_pixels(16, 24)),
}  # fmt: skip
IMAGES = {**JPEGS, **PNGS}


def cases(images):
    return pytest.mark.parametrize("data", images.values(), ids=images.keys())


def readable(path):
    try:
        heads.read(path.read_bytes())
    except HeadError:
        return False
    return True


class TestPixels:
    @pytest.mark.parametrize("path", [path for path in FILES if readable(path)], ids=name_of)
    def test_files_of_other_projects_are_decoded_as_dali_does(self, codec_name, path):
        data = path.read_bytes()
        expected = by_dali(data)

        if expected is None:
            with pytest.raises(ImageError, match="cannot be decoded"):
                decoded(data)
        else:
            np.testing.assert_array_equal(decoded(data), expected)

    @cases(IMAGES)
    def test_every_kind_of_image_is_decoded_as_dali_does(self, codec_name, data):
        np.testing.assert_array_equal(decoded(data), by_dali(data))

    @cases(IMAGES)
    def test_gray_is_that_of_the_colours(self, codec_name, data):
        np.testing.assert_array_equal(decoded(data, "GRAY"), by_dali(data, mode="GRAY"))

    @pytest.mark.parametrize(
        "factors", [(0x11, 0x22, 0x11, 0x11), (0x22, 0x11, 0x11, 0x22), (0x41, 0x11, 0x11, 0x11)]
    )
    def test_cmyk_may_be_sampled_in_any_way(self, codec_name, factors):
        data = sampled(jpeg(48, 5, "CMYK"), *factors)

        np.testing.assert_array_equal(decoded(data), by_dali(data))

    @pytest.mark.parametrize("turn", range(1, 9))
    @pytest.mark.parametrize("put", [in_jpeg, in_png])
    def test_an_image_is_turned_as_its_exif_block_says(self, codec_name, put, turn):
        data = put(parts.exif(parts.turned(turn)))

        upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))

        np.testing.assert_array_equal(decoded(data), np.asarray(upright))

    @pytest.mark.parametrize("colour", [parts.GRAY, parts.RGB, parts.GRAY_ALPHA, parts.RGBA])
    def test_each_value_of_16_bits_becomes_the_nearest_of_8(self, codec_name, colour):
        values = np.arange(65536, dtype=">u2").reshape(256, 256)
        samples = (
            np.repeat(values[..., None], pngs.SAMPLES[colour], axis=2)
            .reshape(256, -1)
            .view(np.uint8)
        )
        rows = np.concatenate([np.zeros((256, 1), np.uint8), samples], axis=1)
        data = b"\x89PNG\r\n\x1a\n" + parts.png_header(256, 256, colour, 16) + coded(rows.tobytes())

        nearest = np.rint(values / 257).astype(np.uint8)

        np.testing.assert_array_equal(
            decoded(data + parts.chunk(b"IEND")), np.dstack([nearest] * 3)
        )

    def test_the_pixels_lie_row_after_row_and_may_be_written(self, codec_name):
        for data in (
            JPEGS["4:2:0"],
            JPEGS["turned 6"],
            PNGS["turned"],
            PNGS["colour type 3, 2 bits"],
        ):
            for region in (None, (3, 2, 5, 4)):
                pixels = decoded(data, region=region)
                assert pixels.dtype == np.uint8
                assert pixels.flags.c_contiguous
                assert pixels.flags.writeable

    @pytest.mark.parametrize("mode", ["RGB", "GRAY"])
    @pytest.mark.parametrize(
        ("colour", "bits"),
        [(parts.GRAY, 16), (parts.RGB, 16), (parts.RGBA, 16), (parts.GRAY_ALPHA, 16), (parts.RGBA, 8),
         (parts.PALETTE, 8), (parts.GRAY, 1)],
    )  # fmt: skip
    def test_little_memory_but_the_pixels_is_taken(
        self, codec_name, monkeypatch, colour, bits, mode
    ):
        monkeypatch.setattr(decoding, "BLOCK_VALUES", 1 << 14, raising=False)
        data = parts.png(1200, 1300, colour, bits)
        expected = 3 * 1200 * 1300 + (1200 * 1300 if mode == "GRAY" else 0)
        decoded(PNGS["gamma"])

        tracemalloc.start()  # it sees what NumPy takes, not what a codec takes inside
        try:
            decoded(data, mode)
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

        assert most < expected + 500_000

    @pytest.mark.parametrize(
        "data", [PNGS["turned"], PNGS["colour type 3, 8 bits"], JPEGS["CMYK turned 5"]]
    )
    def test_the_rows_that_are_converted_at_a_time_do_not_matter(
        self, codec_name, monkeypatch, data
    ):
        whole = decoded(data), decoded(data, "GRAY")

        monkeypatch.setattr(decoding, "BLOCK_VALUES", 200)

        np.testing.assert_array_equal(decoded(data), whole[0])
        np.testing.assert_array_equal(decoded(data, "GRAY"), whole[1])

    def test_the_pixels_stay_when_others_are_decoded(self, codec_name):
        images = [decoded(data) for data in IMAGES.values() for _ in range(3)]

        again = [decoded(data) for data in IMAGES.values() for _ in range(3)]

        for image, other in zip(images, again, strict=True):
            np.testing.assert_array_equal(image, other)

    def test_the_bytes_may_be_read_only_and_have_gaps(self, codec_name):
        data = np.frombuffer(JPEGS["4:2:0"], np.uint8)
        spread = np.repeat(data, 2)[::2]

        pixels = decode(spread, heads.read(data), "RGB")

        assert not data.flags.writeable
        np.testing.assert_array_equal(pixels, decoded(data))


REGIONS = [(0, 0, None, None), (0, 0, 1, 1), (-1, -1, 1, 1), (1, 1, 1, 1), (3, 5, 7, 3), (7, 0, 1, None),
           (0, 9, None, 2), (5, 3, 8, 10), (1, 1, -1, -1), (-9, -11, 9, 11)]  # fmt: skip


def regions_of(head):
    """Return the regions for an image, counted from its end where they are negative; None is all of
    it."""
    for region in REGIONS:
        sides = (head.height, head.width) * 2
        top, left, height, width = (
            side if number is None else number + side if number < 0 else number
            for number, side in zip(region, sides, strict=True)
        )
        yield top, left, min(height, head.height - top), min(width, head.width - left)


class TestRegions:
    @cases({name: data for name, data in IMAGES.items() if name != "one pixel"})
    def test_a_region_is_that_cut_of_the_whole_image_and_dalis(self, codec_name, data):
        whole, head = decoded(data), heads.read(data)

        for top, left, height, width in regions_of(head):
            region = top, left, height, width
            pixels = decoded(data, region=region)
            np.testing.assert_array_equal(pixels, whole[top : top + height, left : left + width])
            np.testing.assert_array_equal(pixels, by_dali(data, region))

    def test_a_region_may_be_gray(self, codec_name):
        for name in ("4:2:0", "gray", "turned 6"):
            whole = decoded(JPEGS[name], "GRAY")

            np.testing.assert_array_equal(
                decoded(JPEGS[name], "GRAY", (3, 5, 7, 9)), whole[3:10, 5:14]
            )

    @pytest.mark.parametrize(
        "region",
        [(-1, 0, 5, 5), (0, -1, 5, 5), (0, 0, 58, 83), (0, 0, 57, 84), (56, 0, 2, 1), (0, 82, 1, 2), (57, 83, 1, 1),
         (0, 0, 0, 1), (0, 0, 1, 0), (5, 5, -1, -1), (2**40, 0, 1, 1)],
    )  # fmt: skip
    def test_a_region_outside_the_image_is_refused_before_it_is_decoded(self, monkeypatch, region):
        monkeypatch.setattr(decoding, "_process_codec", None)

        with pytest.raises(SpecError, match="of an image of 57 x 83"):
            decoded(JPEGS["4:2:0"], region=region)

    def test_a_region_lies_in_the_upright_image(self, codec_name):
        with pytest.raises(SpecError, match="of an image of 83 x 57"):
            decoded(JPEGS["turned 6"], region=(0, 0, 57, 83))
        assert decoded(JPEGS["turned 6"], region=(0, 0, 83, 57)).shape == (83, 57, 3)


class TestDamage:
    whole = png(parts.RGB, 8)

    @pytest.mark.parametrize(
        "pixels",
        [coded((b"\0" + bytes(63)) * 13)[:-12] + bytes(12), coded((b"\0" + bytes(63)) * 12), coded(b"\5" + bytes(831)),
         parts.chunk(b"IDAT", b"garbage"), parts.chunk(b"IDAT", zlib.compress(bytes(832))[:-6]), parts.chunk(b"IDAT")],
        ids=["checksum", "rows", "filter", "garbage", "cut off", "empty"],
    )  # fmt: skip
    def test_a_damaged_png_is_refused(self, codec_name, pixels):
        data = self.whole[:33] + pixels + parts.chunk(b"IEND")

        assert by_dali(data) is None
        with pytest.raises(ImageError, match=r"cannot be decoded|checksum of its chunk IDAT"):
            decoded(data)

    def test_a_jpeg_without_tables_is_refused(self, codec_name):
        data = JPEGS["4:2:0"]
        place = parts.find_segment(data, (0xDB,))
        data = data[:place] + data[place + 2 + int.from_bytes(data[place + 2 : place + 4], "big") :]

        assert by_dali(data) is None
        with pytest.raises(ImageError, match="cannot be decoded"):
            decoded(data)

    @pytest.mark.parametrize("name", ["4:2:0", "gray", "CMYK", "turned 6", "progressive"])
    def test_a_file_that_became_shorter_since_its_head_was_read_is_refused(self, codec_name, name):
        data = JPEGS[name]
        cut = np.frombuffer(data[: len(data) * 2 // 3], np.uint8)

        with pytest.raises(ImageError, match="cannot be decoded"):
            decode(cut, heads.read(data), "RGB")

    @pytest.mark.parametrize("turn", range(1, 9))
    @pytest.mark.parametrize("missing", range(1, 7))
    def test_data_that_end_a_few_bytes_early_are_refused_or_make_what_dali_makes(
        self, codec_name, turn, missing
    ):
        file = io.BytesIO()
        Image.new("RGB", (83, 57), (5, 5, 5)).save(
            file, "JPEG", optimize=True
        )  # zeros are blocks, too
        whole = parts.inserted(file.getvalue(), parts.exif_segment(parts.exif(parts.turned(turn))))
        data = whole[: -2 - missing] + whole[-2:]

        for top, left, height, width in regions_of(heads.read(data)):
            with contextlib.suppress(ImageError):
                pixels = decoded(data, region=(top, left, height, width))
                np.testing.assert_array_equal(
                    pixels, by_dali(data)[top : top + height, left : left + width]
                )

    def test_bytes_that_are_no_image_any_more_are_refused(self, codec_name):
        for data in (b"", b"x", bytes(1000), JPEGS["4:2:0"][:100]):
            with pytest.raises(ImageError):
                decode(np.frombuffer(data, np.uint8), heads.read(JPEGS["4:2:0"]), "RGB")

    @pytest.mark.parametrize("mode", ["RGB", "GRAY"])
    @pytest.mark.parametrize("pixels", [np.zeros((4, 6, 3), np.uint8), np.zeros((5, 5, 3), np.uint8),
                                        np.zeros((5, 6, 1), np.uint8), np.zeros((5, 6), np.uint8),
                                        np.zeros((5, 6, 3), np.uint16)])  # fmt: skip
    def test_pixels_that_are_not_as_the_header_says_are_refused(self, monkeypatch, pixels, mode):
        liar = types.SimpleNamespace(decode=lambda *arguments: pixels)
        monkeypatch.setattr(decoding, "_process_codec", lambda: liar)
        empty, head = np.empty(0, np.uint8), Head("jpeg", 5, 6, 3, 8, 1)

        with pytest.raises(ImageError, match=r"where its header says \[5, 6, 3\]"):
            decode(empty, head, mode)
        with pytest.raises(ImageError, match=r"where its header says \[1, 2, 3\]"):
            decode(empty, head, mode, (0, 0, 1, 2))

    def test_a_header_that_promises_another_size_is_refused(self, codec_name):
        small, large = np.frombuffer(jpeg(16, 24), np.uint8), heads.read(jpeg(32, 48))

        with pytest.raises(ImageError):
            decode(small, large, "RGB")

    def test_another_mode_is_refused(self):
        with pytest.raises(SpecError, match="'BGR'"):
            decoded(JPEGS["4:2:0"], "BGR")

    def test_the_settings_of_pillow_do_not_matter(self, monkeypatch):
        use(monkeypatch, "Pillow")
        monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)

        for data in (JPEGS["4:2:0"], self.whole):
            assert decoded(data).shape == by_dali(data).shape
            with pytest.raises(ImageError):
                decode(np.frombuffer(data[:-100], np.uint8), heads.read(data), "RGB")


def run(program, files=()):
    """Run a program in a new process, where ``files`` is a list of bytes; return what it wrote to
    stdout and stderr."""
    program = f"import os, sys\nimport numpy as np\nfiles = {[*files]!r}\n" + program
    process = forkserver.run(program, timeout=60)
    assert process.returncode == 0, process.stderr
    return process.stdout.strip(), process.stderr


class TestChoice:
    def test_dalis_own_codec_comes_first(self, first_choice):
        library = pytest.importorskip("nvidia.nvimgcodec")

        assert codec() == f"nvimgcodec {library.__version__}"

    def test_pillow_decodes_where_that_is_missing(self, first_choice, monkeypatch):
        monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", None)

        assert codec() == f"Pillow {Image.__version__}"
        assert decoded(JPEGS["4:2:0"]).shape == (57, 83, 3)

    @pytest.mark.parametrize("attributes", [{}, {"DecodeParams": lambda **_: None}])
    def test_pillow_decodes_where_that_does_not_work_which_is_logged(
        self, first_choice, monkeypatch, caplog, attributes
    ):
        broken = types.SimpleNamespace(__version__="0.1", **attributes)
        monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", broken)

        with caplog.at_level(logging.WARNING, "gpuload"):
            assert codec() == f"Pillow {Image.__version__}"

        assert "nvidia.nvimgcodec is installed and does not work" in caplog.text

    def test_without_both_the_error_names_what_to_install(self, first_choice, monkeypatch):
        for name in ("nvidia.nvimgcodec", "PIL.Image"):
            monkeypatch.setitem(sys.modules, name, None)

        assert codec() is None
        with pytest.raises(MissingPackageError, match=r'pip install "gpuload\[images\]"'):
            decoded(JPEGS["4:2:0"])

    def test_no_codec_is_imported_before_an_image_is_decoded(self):
        out, _ = run(
            "import gpuload.images.decode\nprint('PIL' in sys.modules, 'nvidia' in sys.modules)"
        )

        assert out == "False False"

    @pytest.mark.parametrize("verbosity", [None, "1"])
    def test_the_environment_is_left_as_it_was(self, verbosity):
        pytest.importorskip("nvidia.nvimgcodec")
        name = decoding.VERBOSITY
        program = f"os.environ.pop({name!r}, None)\n"
        program += f"os.environ[{name!r}] = {verbosity!r}\n" if verbosity else ""

        out, _ = run(
            program
            + f"from gpuload.images.decode import codec\ncodec()\nprint(os.environ.get({name!r}))"
        )

        assert out == str(verbosity)


class TestProcess:
    def test_threads_decode_side_by_side(self, codec_name):
        expected = {name: decoded(data) for name, data in IMAGES.items()}
        wrong = []

        def decode_all(begin):
            names = list(IMAGES)
            for name in 3 * (names[begin:] + names[:begin]):
                if not np.array_equal(decoded(IMAGES[name]), expected[name]):
                    wrong.append(name)

        threads = [threading.Thread(target=decode_all, args=(number * 5,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert wrong == []

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
    def test_a_child_of_fork_decodes_too(self, codec_name):
        function = "_nvimagecodec" if codec_name == "nvimgcodec" else "_pillow"
        program = f"""
from gpuload.images import decode, head
decode._process_codec = decode.{function}

def decoded():
    arrays = [np.frombuffer(data, np.uint8) for data in files]
    return [decode.decode(data, head.read(data), "RGB") for data in arrays]

parent = decoded()
child = os.fork()
same = all(np.array_equal(*two) for two in zip(decoded(), parent))
if not child:
    sys.exit(0 if same else 1)  # the usual end of a process, with all that is cleaned up there
print(same, os.waitpid(child, 0)[1])
"""

        assert run(program, IMAGES.values())[0] == "True 0"

    def test_the_codec_writes_nothing_about_a_file_that_it_refuses(self, codec_name):
        function = "_nvimagecodec" if codec_name == "nvimgcodec" else "_pillow"
        program = f"""
from gpuload.images import decode, head
decode._process_codec = decode.{function}
(whole,) = files
for data in (whole[:-100], b""):
    try:
        decode.decode(np.frombuffer(data, np.uint8), head.read(whole), "RGB")
    except decode.ImageError:
        print("refused")
"""

        assert run(program, [JPEGS["4:2:0"]]) == ("refused\nrefused", "")
