"""Decode of labels: the numbers that a PNG stores, as Pillow reads them, by each codec."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

import gpuload as gl
from gpuload import core
from gpuload.errors import RecordError
from gpuload.images import decode, head

RNG = np.random.default_rng(5)
SIZE = (19, 23)


def png(image, **options):
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return np.frombuffer(file.getvalue(), np.uint8)


def with_palette(numbers, colours, **options):
    image = Image.frombytes("P", numbers.shape[::-1], numbers.tobytes())
    image.putpalette(colours.ravel().tolist())
    return png(image, **options)


def files():
    """Return PNG files by name, each with the numbers that it stores."""
    few, many = RNG.integers(0, 4, SIZE, np.uint8), RNG.integers(0, 256, SIZE, np.uint8)
    alike = np.zeros((256, 3), np.uint8)  # a palette in which all colours are black
    colours = RNG.integers(0, 256, (256, 3), np.uint8)
    exif = Image.Exif()
    exif[0x112] = 6
    gray16 = RNG.integers(0, 60000, SIZE, np.uint16)
    return {
        "palette": (with_palette(many, colours), many),
        "palette of one colour": (with_palette(many, alike), many),
        "palette of 2 bits": (with_palette(few, colours[:4], bits=2), few),
        "palette of 4 bits": (with_palette(few, colours[:16], bits=4), few),
        "palette with transparency": (with_palette(many, colours, transparency=3), many),
        "turned": (with_palette(many, colours, exif=exif), np.rot90(many, -1)),
        "gray": (png(Image.fromarray(many)), many),
        "1 bit": (png(Image.fromarray(few > 1)), (few > 1).astype(np.uint8)),
        "16 bits": (png(Image.fromarray(gray16)), gray16),
    }


FILES = files()


@pytest.fixture(params=["core", "nvImageCodec", "Pillow"])
def codec(request, monkeypatch):
    """Have labels decoded by the core, or by a codec, which makes colours of them."""
    if request.param == "core":
        monkeypatch.setattr(decode, "_process_codec", None)  # it is not asked
        if core.native is None:
            pytest.skip(f"no core: {core.problem}")
        return
    monkeypatch.setattr(core, "native", None)
    if request.param == "Pillow":
        monkeypatch.setattr(decode, "_process_codec", decode._pillow)
    else:
        pytest.importorskip("nvidia.nvimgcodec")


def paeth(left, above, corner):
    """Return the predictor of PNG's filter 4, in the words of its specification, section 9.4."""
    estimate = left + above - corner
    distances = abs(estimate - left), abs(estimate - above), abs(estimate - corner)
    return (left, above, corner)[distances.index(min(distances))]


def filtered(rows, pixel_bytes, filters):
    """Return rows of bytes as a PNG stores them, each with a filter."""
    height, length = rows.shape
    wide = np.zeros((height + 1, length + pixel_bytes), int)
    wide[1:, pixel_bytes:] = rows
    result = b""
    for y in range(height):
        kind = filters[y % len(filters)]
        predictions = []
        for x in range(length):
            left, above, corner = wide[y + 1, x], wide[y, x + pixel_bytes], wide[y, x]
            predictions.append(
                [0, left, above, (left + above) // 2, paeth(left, above, corner)][kind]
            )
        result += (
            bytes([kind]) + ((rows[y] - np.array(predictions)) % 256).astype(np.uint8).tobytes()
        )
    return result


def stored(rows, bits, width, data, tail=b""):
    """Return a gray PNG of rows of bytes, whose compressed data are ``data``."""

    def chunk(name, content):
        return (
            struct.pack(">I", len(content))
            + name
            + content
            + struct.pack(">I", zlib.crc32(name + content))
        )

    header = struct.pack(">IIBBBBB", width, len(rows), bits, 0, 0, 0, 0)
    parts = (
        chunk(b"IHDR", header),
        *(chunk(b"IDAT", part) for part in (data[:20], data[20:])),
        tail,
        chunk(b"IEND", b""),
    )
    return np.frombuffer(b"\x89PNG\r\n\x1a\n" + b"".join(parts), np.uint8)


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("filters", [[0], [1], [2], [3], [4], [4, 3, 2, 1, 0, 3, 1, 4, 2]])
def test_labels_of_every_filter_and_depth(bits, filters, codec):
    width = 21
    rows = RNG.integers(0, 256, (18, -(-width * bits // 8)), np.uint8)
    values = np.unpackbits(rows, axis=1).reshape(18, -1, bits)[:, :width].astype(int) @ (
        1 << np.arange(bits)[::-1]
    )
    data = stored(rows, bits, width, zlib.compress(filtered(rows, max(bits // 8, 1), filters)))

    labels = decode.decode(data, head.read(data), "LABELS", dtype="uint16")

    np.testing.assert_array_equal(labels[..., 0], values)


def damaged():
    rows = RNG.integers(0, 256, (18, 21), np.uint8)
    sound = zlib.compress(filtered(rows, 1, [0, 4]))
    yield from (
        sound[:-9],
        sound[:-4] + b"abcd",
        sound + b"more",
        zlib.compress(filtered(rows[:-1], 1, [0])),
        b"",
        b"xx",
    )
    yield zlib.compress(filtered(rows, 1, [2]) + b"more")
    yield zlib.compress(b"\5" + filtered(rows, 1, [2])[1:])
    for place in range(0, len(sound), 29):
        yield sound[:place] + bytes([sound[place] ^ 9]) + sound[place + 1 :]


def outcome(data):
    try:
        return decode.decode(data, head.read(data), "LABELS").tolist()
    except (head.HeadError, decode.ImageError) as error:
        return str(error)


def test_damaged_labels_are_what_a_codec_makes_of_them(monkeypatch):
    files = [stored(np.empty((18, 21)), 8, 21, data) for data in damaged()]
    wrong = files[0].copy()
    wrong[60] ^= 1  # the checksum of a chunk is no longer right
    files.append(wrong)
    by_core = [outcome(data) for data in files]

    monkeypatch.setattr(core, "native", None)

    assert by_core == [outcome(data) for data in files]
    assert sum(isinstance(result, str) for result in by_core) > 6


@pytest.mark.parametrize("name", FILES)
def test_labels_are_the_numbers_that_are_stored(name, codec):
    data, numbers = FILES[name]

    labels = decode.decode(data, head.read(data), "LABELS", dtype="uint16")

    assert labels.dtype == np.uint16
    np.testing.assert_array_equal(labels[..., 0], numbers)
    if name != "16 bits":
        np.testing.assert_array_equal(
            decode.decode(data, head.read(data), "LABELS")[..., 0], numbers
        )


def test_a_region_is_the_same_cut_of_all_labels(codec):
    data, numbers = FILES["palette"]

    labels = decode.decode(data, head.read(data), "LABELS", (3, 4, 9, 7))

    np.testing.assert_array_equal(labels[..., 0], numbers[3:12, 4:11])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            png(Image.fromarray(RNG.integers(0, 256, (*SIZE, 3), np.uint8))),
            "no number for each pixel",
        ),
        (FILES["16 bits"][0], "not supported: labels of 16 bits as uint8"),
    ],
)
def test_a_file_without_such_numbers_is_refused(data, words):
    with pytest.raises(head.UnsupportedError, match=words):
        decode.decode(data, head.read(data), "LABELS")


def test_a_jpeg_stores_no_labels_and_is_named(tmp_path):
    Image.fromarray(np.zeros(SIZE, np.uint8)).save(tmp_path / "mask.jpg")
    with (
        gl.Loader(
            gl.images(tmp_path, labels=None), 1, ops=[gl.ops.Decode("LABELS")], device="cpu"
        ) as loader,
        pytest.raises(RecordError, match=r"mask\.jpg.*no number for each pixel"),
    ):
        loader.batch_at(0)


@pytest.mark.parametrize("executor", ["array", "dali"])
def test_masks_with_a_palette_go_with_their_images(tmp_path, executor):
    if executor == "dali":
        pytest.importorskip("nvidia.dali")
    numbers = []
    for folder in ("photos", "masks"):
        (tmp_path / folder).mkdir()
    for n in range(4):
        mask = np.full((30, 40), 255, np.uint8)
        mask[5:20, 6:30] = n
        photo = np.where(mask == n, 200, 20).astype(np.uint8)
        Image.fromarray(np.repeat(photo[..., None], 3, axis=2)).save(
            tmp_path / "photos" / f"{n}.png"
        )
        file = with_palette(mask, RNG.integers(0, 256, (256, 3), np.uint8))
        (tmp_path / "masks" / f"{n}.png").write_bytes(file.tobytes())
        numbers.append(mask)
    source = gl.zip(
        gl.images(tmp_path / "photos", labels=None),
        gl.images(tmp_path / "masks", labels=None).rename(image="mask"),
    )
    ops = gl.recipes.segmentation(size=24, base=24, mean=0.0, std=1.0)

    with gl.Loader(source, 4, ops=ops, device="cpu", executor=executor, seed=2) as loader:
        batch = loader.batch_at(0)

    for n in range(4):
        image, mask = np.asarray(batch["image"][n]), np.asarray(batch["mask"][n])
        assert set(mask.ravel().tolist()) <= {n, 255}
        assert (image[mask[..., 0] == n] > 100).mean() > 0.85  # but for the blended edges
