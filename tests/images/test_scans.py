"""Damaged scans of a JPEG: what the bytes show is refused with every codec, what runs out of data
by the codecs."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

import gpuload as gl
from gpuload.errors import RecordError
from gpuload.images import decode as decoding
from gpuload.images import head as heads
from gpuload.images import scans
from gpuload.images.decode import ImageError
from gpuload.images.head import HeadError
from tests import forkserver, imagefiles
from tests.images import by_dali
from tests.images.test_decode import JPEGS, codec_name, decoded, jpeg, photograph
from tests.images.test_head import GOLDEN

__all__ = ["codec_name"]  # a fixture

END = b"\xff\xd9"
CORRUPT = GOLDEN / "tensorflow" / "corrupt.jpg"  # a byte of its scan became the marker 0xffae
PHOTOGRAPHS = {  # with enough data that a cut leaves much of the image out
    "4:2:0": jpeg(170, 190, subsampling="4:2:0"),
    "4:4:4": jpeg(170, 190, subsampling="4:4:4"),
    "optimized": jpeg(170, 190, optimize=True),
    "gray": jpeg(170, 190, "L"),
    "CMYK": jpeg(170, 190, "CMYK"),
    "restart markers": jpeg(170, 190, restart_marker_rows=1),
    "turned": imagefiles.inserted(
        jpeg(170, 190), imagefiles.exif_segment(imagefiles.exif(imagefiles.turned(6)))
    ),
}


def data_begin(data):
    """Return where the data of the first scan begin."""
    place = imagefiles.find_segment(data, (0xDA,))
    return place + 2 + int.from_bytes(data[place + 2 : place + 4], "big")


def put(data, part, *, instead=0):
    """Return a file with bytes in the middle of the data of its only scan, instead of some of
    them."""
    middle = (data_begin(data) + len(data)) // 2
    while 0xFF in data[middle - 1 : middle + 1]:
        middle += 1
    return data[:middle] + part + data[middle + instead :]


def refused(data, match):
    with pytest.raises(HeadError, match=match):
        heads.read(data)


class TestMarkers:
    whole = PHOTOGRAPHS["4:2:0"]

    def test_a_file_of_another_project_with_a_wrong_marker_in_its_scan_is_refused(self):
        refused(CORRUPT.read_bytes(), "marker 0xae at byte 569 has no place")

    @pytest.mark.parametrize(
        "marker",
        [0x01, 0x02, 0xAE, 0xBF, 0xC0, 0xC2, 0xC3, 0xC8, 0xCF, 0xD8, 0xDE, 0xDF, 0xF0, 0xFD],
    )
    def test_a_marker_that_has_no_place_in_a_scan_is_refused(self, marker):
        refused(put(self.whole, bytes([0xFF, marker])), f"marker {marker:#04x} at byte")

    @pytest.mark.parametrize("part", [b"\xff\0", b"\xff\xff\0", b"\x55" * 30])
    def test_other_bytes_are_data(self, part):
        assert heads.read(put(self.whole, part)) == heads.read(self.whole)

    @pytest.mark.parametrize("marker", [0xC4, 0xDB, 0xE5, 0xFE])
    def test_a_segment_that_does_not_end_before_another_marker_is_refused(self, marker):
        refused(put(self.whole, bytes([0xFF, marker, 0, 9])), "where a marker must begin")
        refused(
            put(self.whole, bytes([0xFF, marker, 0, 1])), f"segment {marker:#04x} behind a scan"
        )
        refused(
            put(self.whole, bytes([0xFF, marker, 255, 255])), f"segment {marker:#04x} behind a scan"
        )

    @pytest.mark.parametrize(
        "extra",
        [b"\xff" * 50, imagefiles.segment(0xFE, b"a comment"), imagefiles.segment(0xE2, END)],
    )
    def test_fill_bytes_and_segments_may_stand_in_front_of_the_end(self, extra):
        assert heads.read(self.whole[:-2] + extra + END) == heads.read(self.whole)

    def test_a_second_scan_of_a_complete_image_is_refused(self):
        scan = self.whole[imagefiles.find_segment(self.whole, (0xDA,)) :]

        refused(self.whole[:-2] + scan, "a further scan begins")

    def test_the_header_of_a_scan_that_is_none_is_refused(self):
        place = imagefiles.find_segment(self.whole, (0xDA,))

        refused(
            imagefiles.replaced(self.whole, place + 3, 13),
            "header of a scan at byte .* is 13 bytes long",
        )
        refused(imagefiles.replaced(self.whole, place + 5, 9), r"of channels \[9, 2, 3\]")

    @pytest.mark.parametrize(
        "options", [{}, {"progressive": True}, {"restart_marker_blocks": 1}], ids=str
    )
    def test_data_are_looked_at_in_parts_of_any_size(self, options, monkeypatch):
        data = imagefiles.jpeg(60, 70, **options)
        expected = heads.read(data)
        monkeypatch.setattr(scans, "FEW_BYTES", 0)

        for size in (*range(1, 12), 100):
            monkeypatch.setattr(scans, "SEARCHED_BYTES", size)
            assert heads.read(data) == expected
            assert heads.read(data).scan_end == expected.scan_end


def in_scans(channels, *scans):
    """Return a baseline file of 17 x 31 pixels, 4:2:0, an interval of 1 unit: a scan for each list
    of channels."""
    whole = imagefiles.jpeg(17, 31, subsampling="4:2:0")
    header = whole[: imagefiles.find_segment(whole, (0xDA,))] + imagefiles.segment(0xDD, b"\0\1")
    parts = []
    for chosen_channels, num_restarts in zip(channels, scans, strict=True):
        selected = b"".join(bytes([channel, 0]) for channel in chosen_channels)
        parts.append(
            imagefiles.segment(0xDA, bytes([len(chosen_channels)]) + selected + bytes([0, 63, 0]))
        )
        parts += [b"data" + bytes([0xFF, 0xD0 + number % 8]) for number in range(num_restarts)] + [
            b"data"
        ]
    return header + b"".join(parts) + END


class TestRestartMarkers:
    whole = jpeg(40, 56, subsampling="4:4:4", restart_marker_blocks=2)  # 5 x 7 units, so 18 parts

    def places(self):
        return [place for place in range(data_begin(self.whole), len(self.whole) - 2)
                if self.whole[place] == 0xFF and 0xD0 <= self.whole[place + 1] <= 0xD7]  # fmt: skip

    def test_they_are_as_many_as_the_interval_says(self):
        places = self.places()

        assert len(places) == 17
        for first, second in ((0, 1), (8, 9), (15, 16)):
            refused(
                self.whole[: places[first]] + self.whole[places[second] :],
                "16 restart markers; its header makes it 17",
            )
        refused(self.whole[: places[3]] + END, "3 restart markers; its header makes it 17")

    def test_they_are_numbered_in_turn(self):
        place = self.places()[9]

        refused(
            imagefiles.replaced(self.whole, place + 1, 0xD4),
            "restart marker at byte .* number 4, where 1 comes next",
        )

    def test_without_an_interval_there_are_none(self):
        refused(put(TestMarkers.whole, b"\xff\xd0"), "1 restart markers; its header makes it 0")

    def test_one_more_may_stand_at_the_end(self):
        assert heads.read(self.whole[:-2] + b"\xff\xd1" + END) == heads.read(self.whole)
        refused(self.whole[:-2] + b"\xff\xd2" + END, "number 2, where 1 comes next")
        refused(self.whole[:-2] + b"\xff\xd1data" + END, "18 restart markers")

    @pytest.mark.parametrize("sampling", ["4:4:4", "4:2:2", "4:2:0"])
    @pytest.mark.parametrize("size", [(1, 1), (8, 8), (9, 17), (64, 33)])
    def test_those_that_libjpeg_writes_are_right(self, sampling, size):
        for options in (
            {"restart_marker_blocks": 1},
            {"restart_marker_blocks": 5},
            {"restart_marker_rows": 1},
        ):
            for progressive in (False, True):
                assert (
                    heads.read(
                        jpeg(*size, subsampling=sampling, progressive=progressive, **options)
                    ).width
                    == size[1]
                )

    def test_a_scan_of_one_channel_has_its_own_units(self):
        # 31 x 17 pixels: 4 x 3 blocks; of the halved channels, 16 x 9 samples, 2 x 2; together 2 x
        # 2 units (T.81, A.2).
        assert heads.read(in_scans([[1], [2], [3]], 11, 3, 3)).scans == 3
        assert heads.read(in_scans([[1], [2, 3]], 11, 3)).scans == 2
        assert heads.read(in_scans([[1, 2, 3]], 3)).scans == 1
        refused(in_scans([[1], [2], [3]], 11, 11, 3), "11 restart markers; its header makes it 3")

    def test_sampling_that_does_not_exist_is_refused(self):
        place = imagefiles.find_segment(self.whole, (0xC0,))

        refused(imagefiles.replaced(self.whole, place + 11, 0x01), "each factor is 1 to 4")


class TestChannels:
    def test_each_has_a_scan(self):
        refused(in_scans([[1], [2]], 11, 3), "1 of its 3 channels have no scan")
        refused(in_scans([[1]], 11), "2 of its 3 channels have no scan")

    def test_a_progressive_image_may_leave_out_what_is_not_first(self):
        whole = jpeg(57, 83, progressive=True)
        first = imagefiles.find_segment(whole, (0xDA,))
        second = whole.index(b"\xff\xc4", first)

        assert heads.read(whole[:second] + END).scans == 1
        refused(
            imagefiles.replaced(whole[:second] + END, first + 11, 1, 5),
            "3 of its 3 channels have no scan",
        )


class TestZeros:
    whole = PHOTOGRAPHS["4:2:0"]

    @pytest.mark.parametrize("count", [256, 1000])
    def test_many_in_the_middle_are_refused(self, count):
        refused(put(self.whole, bytes(count), instead=count), "zeros stand in its scan from byte")

    @pytest.mark.parametrize("name", ["gray", "optimized", "restart markers"])
    def test_they_are_refused_in_every_sequential_file(self, name):
        refused(put(PHOTOGRAPHS[name], bytes(300)), "zeros stand in its scan")

    def test_they_are_found_wherever_the_parts_begin(self, monkeypatch):
        data = put(self.whole, bytes(256), instead=256)

        for size in range(90, 110):
            monkeypatch.setattr(scans, "SEARCHED_BYTES", size)
            refused(data, "zeros stand in its scan")

    def test_few_are_data_and_so_are_those_that_fill_up_the_end(self):
        assert heads.read(put(self.whole, b"\1" + bytes(255) + b"\1")).height == 170
        assert heads.read(self.whole[:-2] + bytes(2000) + END).height == 170

    def test_a_flat_image_of_zeros_is_sound(self, codec_name):
        file = io.BytesIO()
        image = Image.new("RGB", (800, 900))
        image.putpixel((799, 0), (255, 255, 255))
        image.save(file, "JPEG", optimize=True)
        data = file.getvalue()

        assert bytes(256) in data[: data.rindex(data[-40:].lstrip(b"\0"))]
        np.testing.assert_array_equal(decoded(data), np.asarray(Image.open(file)))


class TestShortData:
    @pytest.mark.parametrize("name", [name for name in PHOTOGRAPHS if name != "restart markers"])
    def test_an_end_marker_behind_a_cut_file_does_not_help(self, codec_name, name):
        data = PHOTOGRAPHS[name]
        begin = data_begin(data)

        for part in (0.2, 0.5, 0.8, 0.97):
            piece = data[: begin + int(part * (len(data) - begin))].rstrip(b"\xff") + END
            assert by_dali(piece).shape == decoded(data).shape  # DALI makes the rest gray
            with pytest.raises(
                ImageError, match="the data of its scan ends before the image is complete"
            ):
                decoded(piece)

    @pytest.mark.parametrize("name", [name for name in PHOTOGRAPHS if name != "restart markers"])
    def test_a_region_is_refused_if_it_reaches_what_is_missing_and_right_if_it_does_not(
        self, monkeypatch, name
    ):
        monkeypatch.setattr(decoding, "_process_codec", decoding._nvimagecodec)
        data = PHOTOGRAPHS[name]
        whole = decoded(data)
        begin = data_begin(data)
        piece = data[: (begin + len(data)) // 2].rstrip(b"\xff") + END
        height, width = whole.shape[:2]

        for region in (
            (height - 40, width - 40, 40, 40),
            (height - 40, width - 40, 20, 20),
            (0, 0, height, width),
        ):
            with pytest.raises(
                ImageError, match="the data of its scan ends before the image is complete"
            ):
                decoded(piece, region=region)
        if name != "turned":  # of a turned image all is decoded
            np.testing.assert_array_equal(decoded(piece, region=(8, 8, 40, 50)), whole[8:48, 8:58])

    @pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
    @pytest.mark.parametrize(
        "options",
        [{}, {"optimize": True}, {"progressive": True}, {"restart_marker_rows": 1}],
        ids=str,
    )
    def test_what_is_really_gray_is_decoded(self, codec_name, mode, options):
        file = io.BytesIO()
        Image.new(mode, (100, 90), {"L": 128, "RGB": (128,) * 3, "CMYK": (127,) * 4}[mode]).save(
            file, "JPEG", **options
        )
        data = file.getvalue()

        assert len(np.unique(decoded(data))) == 1
        np.testing.assert_array_equal(decoded(data), by_dali(data))

    def test_a_photograph_that_ends_gray_is_decoded(self, codec_name):
        pixels = np.array(photograph(90, 100))
        pixels[70:] = 128
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG")
        data = file.getvalue()

        assert decoded(data)[-1, -1].tolist() == [128, 128, 128]
        np.testing.assert_array_equal(decoded(data), np.asarray(Image.open(file)))

    @pytest.mark.parametrize("extra", [b"\0", b"\x12" * 100])
    def test_data_that_are_left_over_do_not_matter(self, codec_name, extra):
        data = PHOTOGRAPHS["4:2:0"]

        np.testing.assert_array_equal(decoded(data[:-2] + extra + END), decoded(data))


@pytest.mark.parametrize("executor", ["array", "dali"])
@pytest.mark.parametrize(
    "ops", [[gl.ops.Decode()], [gl.ops.Decode(), gl.ops.RandomCrop(8)]], ids=["whole", "region"]
)
def test_a_damaged_scan_is_an_error_that_names_the_file(tmp_path, executor, ops):
    pytest.importorskip("nvidia.dali")
    (tmp_path / "a.jpg").write_bytes(JPEGS["4:2:0"])
    (tmp_path / "b.jpg").write_bytes(CORRUPT.read_bytes())

    with (
        gl.images(tmp_path, labels=None) as source,
        gl.Loader(source, batch_size=1, ops=ops, executor=executor) as load,
    ):
        batches = iter(load)
        next(batches)
        with pytest.raises(RecordError, match=r"b\.jpg.*marker 0xae at byte 569"):
            next(batches)


def test_nothing_is_written_about_sound_files_nor_about_what_the_bytes_show():
    pytest.importorskip("nvidia.nvimgcodec")
    program = f"""
import numpy as np
from gpuload.images import decode, head
assert decode.codec().startswith("nvimgcodec")
for data in {[*PHOTOGRAPHS.values()]!r}:
    array = np.frombuffer(data, np.uint8)
    for region in (None, (0, 0, 170, 170), (9, 9, 30, 30)):
        decode.decode(array, head.read(array), "RGB", region)
cut = {PHOTOGRAPHS["4:2:0"][:3000] + END!r}
try:
    decode.decode(np.frombuffer(cut, np.uint8), head.read(cut), "RGB", (100, 100, 50, 50))
except decode.ImageError:
    print("refused")
"""
    process = forkserver.run(program, timeout=60)

    assert (process.stdout, process.stderr) == ("refused\n", "")
