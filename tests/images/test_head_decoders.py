"""Heads of encoded images beside the decoders: DALI and both codecs make of an accepted file what
its head says."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gpuload.images import decode
from gpuload.images import head as heads
from gpuload.images.head import HeadError
from tests import imagefiles
from tests.images import by_dali
from tests.images.test_head import FILES, animated, coded, is_fuzz, name_of

pytest.importorskip("nvidia.dali")


def check(data):
    """Check what the decoders make of a file, if its head is accepted; return whether it is."""
    try:
        head = heads.read(data)
    except HeadError:
        return False  # it may stop the process of DALI, so it is not given to it
    expected = by_dali(data)
    assert expected is None or expected.shape == (head.height, head.width, 3)
    for codec in (decode._nvimagecodec(), decode._pillow()):
        made_of_it = decoded(codec, data, head)
        if isinstance(made_of_it, str) and made_of_it == decode.SHORT_TEXT:
            continue  # both are made stricter than DALI: they refuse data that end early
        assert (expected is None) == isinstance(made_of_it, str)
        assert expected is None or made_of_it.shape == expected.shape
    return True


def decoded(codec, data, head):
    """Return the pixels that a codec makes, or what it says against the file."""
    try:
        return codec.decode(np.frombuffer(data, np.uint8), head, None, "uint8")
    except decode.ImageError as error:
        return str(error)


@pytest.mark.parametrize("path", [path for path in FILES if not is_fuzz(path)], ids=name_of)
def test_files_of_other_projects_decode_to_the_size_of_their_head(path):
    check(path.read_bytes())


def broken_in_the_pixels(data, place):
    return data[:place] + bytes(10) + data[place + 10 :]


@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"restart_marker_blocks": 2}], ids=str
)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_damaged_scans_are_refused_by_the_head_or_by_dali_or_because_they_are_short_or_by_none(
    mode, options
):
    whole = imagefiles.jpeg(48, 64, mode, **options)
    middle = len(whole) * 3 // 4
    while 0xFF in whole[middle - 1 : middle + 1]:
        middle += 1
    parts = [b"\xff\xff\xff\0", b"\x55" * 30, b"\xff\xd9", b"\xff\xc4", b"\xff\xd3"]

    accepted = [check(whole[:middle] + part + whole[middle:]) for part in parts]
    accepted += [check(whole[:middle] + b"\xff\xd9"), check(broken_in_the_pixels(whole, middle))]

    assert all(accepted[:2])


def test_damaged_headers_are_refused_by_all_decoders_or_by_the_head():
    choose = random.Random(1)
    for whole in (
        imagefiles.jpeg(48, 64),
        imagefiles.jpeg(48, 64, progressive=True),
        imagefiles.png(48, 64),
        imagefiles.png(48, 64, 3, 4),
    ):
        for _ in range(50):
            data = bytearray(whole)
            for _ in range(choose.choice([1, 2, 5])):
                data[choose.randrange(2, min(300, len(data)))] = choose.randrange(256)
            check(bytes(data))


def test_animations_that_are_accepted_are_decoded():
    choose = random.Random(3)
    whole = animated(
        pixels=coded(b"".join(bytes([y % 5]) + bytes(range(y, y + 72)) for y in range(16)), 3)
    )
    accepted = check(whole)
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(choose.choice([1, 2])):
            data[choose.randrange(33, len(data))] = choose.randrange(256)
        accepted += check(bytes(data))

    assert accepted > 50  # damage behind the first frame


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("orientation", [1, 2, 6, 8, 9])
def test_orientations_are_those_of_dali(orientation, order):
    block = imagefiles.exif(imagefiles.turned(orientation, order), order=order)

    assert check(imagefiles.inserted(imagefiles.jpeg(), imagefiles.exif_segment(block)))
    assert check(imagefiles.png(16, 24, 2, 8, imagefiles.chunk(b"eXIf", block)))


def test_random_exif_blocks_are_read_as_dali_reads_them():
    choose = random.Random(2)
    tags, values = (
        [0x112, 0x112, 0x10F, 0x11A, 0x131, 0x211, 0x8769],
        [0, 1, 3, 6, 8, 26, 60, 5000, 2**32 - 8],
    )
    accepted = 0
    for _ in range(60):
        order = choose.choice("<>")
        entries = [
            imagefiles.turned(choose.choice(values) & 0xF, order)
            if tag == 0x112
            else imagefiles.entry(tag, choose.choice(values).to_bytes(4, "little" if order == "<" else "big"),
                                  order=order, count=choose.choice([0, 1, 4, 5, 1000]))
            for tag in choose.choices(tags, k=choose.randrange(1, 5))
        ]  # fmt: skip
        block = imagefiles.exif(
            *entries, order=order, count=len(entries) + choose.choice([0, 0, 0, 1, 300])
        )
        block = block[: len(block) - choose.choice([0, 0, 3, 9])]
        accepted += check(
            imagefiles.inserted(imagefiles.jpeg(8, 40), imagefiles.exif_segment(block))
        )
        accepted += check(imagefiles.png(6, 50, 2, 8, imagefiles.chunk(b"eXIf", block)))

    assert accepted > 40
