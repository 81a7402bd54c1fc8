"""Decode("RGBA"), Decode("ANY") and orient=False in loaders; what is left out of images is told
once, with the form."""

from __future__ import annotations

import io
import logging

import numpy as np
import pytest
from PIL import Image

import gpuload as gl
from gpuload.errors import RecordError, SpecError
from gpuload.images import head as heads
from gpuload.ops import Decode, RandomCrop, RandomFlip, Resize

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (16, 24, 4), np.uint8)


def write(path, pixels, **options):
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(path, **options)


def load(folder, *ops, **words):
    words = {"batch_size": 8, "device": "cpu", "ops": list(ops)} | words
    return gl.Loader(gl.images(folder, labels=None), **words)


def first(folder, *ops, **words):
    return load(folder, *ops, **words).batch_at(0)["image"]


def turned(turn):
    exif = Image.Exif()
    exif[0x112] = turn
    return {"exif": exif}


class TestAny:
    def test_images_of_one_number_of_channels_are_resized_to_one_array(self, tmp_path):
        images = [RNG.normal(0, 100, (9 + n, 7)).astype(np.float32) for n in range(3)]
        for number, image in enumerate(images):
            write(tmp_path / f"{number}.tif", image)

        batch = first(tmp_path, Decode("ANY", dtype="float32", channels=1), Resize(5, 6))

        expected = first_of_arrays(images, Resize(5, 6))
        assert batch.shape == (3, 5, 6, 1)
        np.testing.assert_array_equal(batch, expected)

    def test_each_image_has_its_own_channels_where_none_are_named(self, tmp_path):
        write(tmp_path / "a.png", PIXELS)
        write(tmp_path / "b.png", PIXELS[..., :3])
        write(tmp_path / "c.png", PIXELS[..., 0])

        batch = first(tmp_path, Decode("ANY"))

        for image, expected in zip(batch, (PIXELS, PIXELS[..., :3], PIXELS[..., :1]), strict=True):
            np.testing.assert_array_equal(image, expected)

    def test_another_number_of_channels_is_an_error_with_the_form(self, tmp_path):
        write(tmp_path / "a.png", PIXELS)

        with pytest.raises(RecordError, match=r"a\.png: it has 4 channels") as error:
            first(tmp_path, Decode("ANY", channels=3))
        assert error.value.remedy.startswith("gl.ops.Decode('ANY', dtype='uint8', channels=4)")

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [({"channels": 3}, "RGB has 3"), ({"mode": "ANY", "channels": 0}, "channels"),
         ({"mode": "ANY", "channels": 2**16}, "at most"), ({"dtype": "float32"}, "dtype"), ({"orient": 3}, "orient"),
         ({"mode": "ANY", "dtype": "int64"}, "dtype")],
    )  # fmt: skip
    def test_wrong_arguments_are_refused(self, arguments, words):
        with pytest.raises(SpecError, match=words):
            Decode(**arguments)

    def test_dali_gets_the_pixels_of_the_host(self, tmp_path):
        pytest.importorskip("nvidia.dali")
        write(tmp_path / "a.png", PIXELS)

        batch = first(tmp_path, Decode("RGBA"), RandomFlip(p=1.0), executor="dali")

        np.testing.assert_array_equal(np.asarray(batch[0]), PIXELS[:, ::-1])


def first_of_arrays(images, *ops):
    source = gl.records(
        len(images), lambda numbers: {"image": [images[n][..., None] for n in numbers]}
    )
    return gl.Loader(source, batch_size=8, device="cpu", ops=list(ops)).batch_at(0)["image"]


class TestOrient:
    @pytest.mark.parametrize("kind", ["jpg", "png"])
    @pytest.mark.parametrize("turn", range(1, 9))
    @pytest.mark.parametrize("executor", ["array", "dali"])
    def test_the_pixels_are_those_that_the_file_stores(self, tmp_path, kind, turn, executor):
        pytest.importorskip("nvidia.dali" if executor == "dali" else "PIL")
        write(tmp_path / f"a.{kind}", PIXELS[..., :3], **turned(turn))
        write(tmp_path / f"b.{kind}", PIXELS[..., :3])

        stored, plain = first(tmp_path, Decode(orient=False), executor=executor)

        np.testing.assert_array_equal(np.asarray(stored), np.asarray(plain))

    @pytest.mark.parametrize("kind", ["jpg", "png", "webp"])
    def test_a_crop_is_drawn_for_the_size_that_is_stored(self, tmp_path, kind):
        for turn in range(1, 9):
            write(tmp_path / f"{turn}.{kind}", PIXELS[..., :3], **turned(turn))
        ops = Decode(orient=False), RandomCrop(16, 20)

        whole, parts = first(tmp_path, ops[0]), first(tmp_path, *ops, seed=3)

        for image, part in zip(whole, parts, strict=True):
            cuts = [image[:, left : left + 20] for left in range(5)]
            assert any(np.array_equal(part, cut) for cut in cuts)

    def test_all_ops_on_a_field_agree(self, tmp_path):
        write(tmp_path / "a.png", PIXELS[..., :3], **turned(6))
        ops = [
            gl.ops.Copy("image", to=("first", "second")),
            Decode(on="first"),
            Decode(on="second", orient=False),
        ]

        with pytest.raises(SpecError, match="upright and as they are stored"):
            load(tmp_path, *ops)


class TestTold:
    """Each loss is told once, in words that name the form which keeps it; sound everyday files get
    no word."""

    @pytest.fixture
    def lines(self, caplog):
        caplog.set_level(logging.WARNING, "gpuload")
        return lambda: [record.getMessage() for record in caplog.records]

    def files(self, tmp_path, *images, suffix="png", **options):
        for number, image in enumerate(images):
            write(tmp_path / f"{number}.{suffix}", image, **options)

    @pytest.mark.parametrize("executor", ["array", "dali"])
    @pytest.mark.parametrize("mode", ["RGB", "GRAY"])
    def test_alpha(self, tmp_path, lines, executor, mode):
        pytest.importorskip("nvidia.dali" if executor == "dali" else "PIL")
        self.files(tmp_path, PIXELS, PIXELS, PIXELS)

        for _ in load(tmp_path, Decode(mode), executor=executor, batch_size=1):
            pass

        (line,) = [line for line in lines() if "alpha" in line]
        assert line.endswith("remedy: gl.ops.Decode('RGBA')")

    def test_alpha_of_16_bits(self, tmp_path, lines):
        self.files(tmp_path, PIXELS)

        list(load(tmp_path, Decode(dtype="uint16")))

        (line,) = lines()
        assert line.endswith("remedy: gl.ops.Decode('RGBA', dtype='uint16')")

    @pytest.mark.parametrize("mode", ["RGB", "GRAY", "RGBA"])
    def test_16_bits(self, tmp_path, lines, mode):
        self.files(tmp_path, *[PIXELS[..., 0].astype(np.uint16) * 250] * 3)

        list(load(tmp_path, Decode(mode), batch_size=1))

        (line,) = lines()
        form = line.rpartition("remedy: ")[2]
        assert "16 bits" in line
        assert first(tmp_path, eval(form, {"gl": gl}))[0].dtype == np.uint16
        assert len(lines()) == 1

    def test_channels_of_another_meaning(self, tmp_path, lines):
        tifffile = pytest.importorskip("tifffile", reason="tifffile is in the extra tiff")
        bands = RNG.integers(0, 256, (16, 24, 5), np.uint8)
        tifffile.imwrite(tmp_path / "a.tif", bands, photometric="rgb", extrasamples=(0, 0))

        first(tmp_path, Decode())

        (line,) = lines()
        form = line.rpartition("remedy: ")[2]
        np.testing.assert_array_equal(first(tmp_path, eval(form, {"gl": gl}))[0], bands)

    @pytest.mark.parametrize(
        "op", [Decode(), Decode("GRAY"), Decode("ANY")], ids=lambda op: op.mode
    )
    def test_pages(self, tmp_path, lines, op):
        pages = [Image.fromarray(PIXELS[..., channel]) for channel in range(4)]
        self.files(tmp_path, pages[0], suffix="tif", save_all=True, append_images=pages[1:])

        image = first(tmp_path, op)[0]

        assert "4 pages" in lines()[0]
        assert "gl.records" in lines()[0]
        np.testing.assert_array_equal(image[..., 0], PIXELS[..., 0])

    def test_nothing_is_told_of_what_nothing_is_lost_of(self, tmp_path, lines):
        opaque = PIXELS | np.uint8([0, 0, 0, 255])
        self.files(
            tmp_path, opaque, *[PIXELS[..., :3]] * 2, Image.fromarray(PIXELS[..., :3]).quantize(20)
        )
        self.files(tmp_path, PIXELS[..., :3], suffix="jpg")
        self.files(tmp_path, opaque, suffix="tif")
        self.files(tmp_path, Image.fromarray(PIXELS[..., :3]).quantize(20), suffix="gif")

        first(tmp_path, Decode())
        first(tmp_path, Decode("RGBA"))

        assert lines() == []


class TestUnsupported:
    """What is not supported is not called damaged; its remedy works as it is printed."""

    def error_of(self, tmp_path, name, data, op=None):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(RecordError) as error:
            first(tmp_path / name, op or Decode())
        assert ": not supported: " in error.value.what
        assert "damaged" not in str(error.value)
        return error.value

    @pytest.mark.parametrize(("mode", "dtype"), [("F", "float32"), ("I", "int32")])
    def test_the_form_for_measurements(self, tmp_path, mode, dtype):
        numbers = np.arange(-10, 50).reshape(6, 10).astype(dtype)
        file = io.BytesIO()
        Image.fromarray(numbers).save(file, "TIFF")

        error = self.error_of(tmp_path, "a.tif", file.getvalue())

        op = eval(error.remedy.partition(" keeps")[0], {"gl": gl})
        np.testing.assert_array_equal(first(tmp_path / "a.tif", op)[0][..., 0], numbers)

    def test_the_form_that_reads_it_by_another_library(self, tmp_path):
        imagecodecs = pytest.importorskip("imagecodecs", reason="imagecodecs is in the extra tiff")
        image = Image.fromarray(PIXELS[..., :3])
        file = io.BytesIO()
        image.save(
            file, "PNG", save_all=True, append_images=[image.rotate(180)], default_image=True
        )

        error = self.error_of(tmp_path, "a.png", file.getvalue())

        names = {"gl": gl, "imagecodecs": imagecodecs, "paths": [str(tmp_path / "a.png")]}
        np.testing.assert_array_equal(eval(error.remedy, names)[0]["image"], PIXELS[..., :3])

    @pytest.mark.parametrize(
        ("name", "data", "library"),
        [("a.jpg", b"\xff\xd8\xff\xc3\0\x0b\x08\0\x08\0\x08\x01\x01\x11\0" + bytes(50), "imagecodecs"),
         ("a.jpg", b"\xff\xd8\xff\xc0\0\x0b\x0c\0\x08\0\x08\x01\x01\x11\0" + bytes(50), "imagecodecs"),
         ("a.tif", b"II*\0" + bytes(4), ""), ("a.png", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "imagecodecs")],
    )  # fmt: skip
    def test_the_library_is_one_for_the_format(self, tmp_path, name, data, library):
        if not library:
            (tmp_path / name).write_bytes(data)
            with pytest.raises(RecordError, match="cut off"):  # what is damaged is said to be
                first(tmp_path / name, Decode())
            return

        assert f"{library}.imread(path)" in self.error_of(tmp_path, name, data).remedy

    def test_each_of_them_says_so(self):
        for kind in (
            heads.UnsupportedError("a lossless JPEG"),
            heads.UnsupportedError("x", "gl.ops.Decode()"),
        ):
            assert (
                heads.row_error(3, kind).cause
                == "the file may be sound, but gpuload does not decode this kind"
            )
        assert heads.row_error(3, heads.HeadError("its scan ends")).cause == ""


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # Pillow closes a GIF when it is dropped
@pytest.mark.parametrize("suffix", ["tif", "gif", "bmp"])
def test_the_numbers_behind_a_palette_are_read_as_the_error_says(tmp_path, suffix):
    numbers = RNG.integers(0, 4, (8, 9), np.uint8)
    image = Image.fromarray(numbers, "P")
    image.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255])
    write(tmp_path / f"a.{suffix}", image)
    paths = [str(tmp_path / f"a.{suffix}")]

    with pytest.raises(RecordError, match="not supported: labels") as error:
        first(tmp_path, Decode("LABELS"))

    assert "ANY" not in error.value.remedy  # which looks up the colours
    form = error.value.remedy[error.value.remedy.index("gl.records(") :]
    names = {"gl": gl, "np": np, "numpy": np, "PIL": __import__("PIL.Image"), "paths": paths}
    names["tifffile"] = pytest.importorskip("tifffile") if suffix == "tif" else None
    np.testing.assert_array_equal(eval(form, names)[0]["image"], numbers)
