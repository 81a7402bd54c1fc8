"""Decode, whole files and regions of them; what the codec makes of them, `tests/images` looks
at."""

from __future__ import annotations

import io
from dataclasses import replace
from types import ModuleType

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

import gpuload as gl
from gpuload.errors import DeviceError, RecordError, SpecError
from gpuload.graph.graph import compile_ops, image_sizes
from gpuload.images import decode, head
from gpuload.ops import Decode, Resize
from gpuload.ops.base import RowError
from gpuload.ragged import Ragged
from gpuload.spec import Field, Spec
from gpuload.testing.ops import (
    Identity,
    OpContract,
    array_form,
    assert_identical,
    dali_form,
    uniform,
)

FILES = Field("image", np.dtype(np.uint8), (None,), encoded=True)


def picture(height=37, width=45, seed=0):
    """Return waves with some noise, uint8 HWC."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width].astype(float)
    waves = np.stack([np.sin(x / (5 + c) + seed) * np.cos(y / (7 - c)) for c in range(3)], axis=2)
    return (127 + 100 * waves + rng.normal(0, 8, waves.shape)).clip(0, 255).astype(np.uint8)


def saved(image, kind="JPEG", **options):
    """Return an image as the bytes of a file, written by Pillow."""
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(
        file, kind, **options
    )
    return np.frombuffer(file.getvalue(), np.uint8)


def with_orientation(orientation, kind):
    exif = Image.Exif()
    exif[0x112] = orientation
    return saved(picture(), kind, exif=exif)


def cmyk(adobe):
    data = saved(Image.fromarray(picture()).convert("CMYK")).tobytes()
    begin = data.index(b"\xff\xee")
    return np.frombuffer(data if adobe else data[:begin] + data[begin + 16 :], np.uint8)


def palette(**options):
    return saved(Image.fromarray(picture()).quantize(17), "PNG", **options)


PIXELS16 = np.random.default_rng(3).integers(0, 65536, (19, 23, 3), dtype=np.uint16)
SMALL = Image.fromarray(picture()).convert("L")
MANY = {
    "420": saved(picture(), quality=90),
    "422": saved(picture(36, 44), quality=75, subsampling="4:2:2"),
    "444": saved(picture(1, 1), subsampling="4:4:4"),
    "progressive": saved(picture(64, 17), progressive=True),
    "gray jpeg": saved(SMALL),
    "cmyk with adobe": cmyk(True),
    "cmyk without adobe": cmyk(False),
    "rgb png": saved(picture(), "PNG"),
    "gray png": saved(SMALL, "PNG"),
    "alpha png": saved(np.dstack([picture(), picture(seed=1)[..., :1]]), "PNG"),
    "gray alpha png": saved(np.dstack([picture()[..., 0], picture()[..., 1]]), "PNG"),
    "palette png": palette(),
    "palette with transparency": palette(transparency=3),
    "1 bit png": saved(SMALL.convert("1"), "PNG"),
    "16 bit rgb": cv2.imencode(".png", PIXELS16)[1].ravel(),
    "16 bit gray": cv2.imencode(".png", PIXELS16[..., 0])[1].ravel(),
    **{f"jpeg {n}": with_orientation(n, "JPEG") for n in range(1, 9)},
    **{f"png {n}": with_orientation(n, "PNG") for n in range(1, 9)},
}


class TestDecode(OpContract):
    cases = tuple(
        (Decode(mode, dtype=dtype), FILES)
        for mode in ("RGB", "GRAY")
        for dtype in ("uint8", "uint16")
    )
    refused = (
        (Decode(), uniform(np.uint8, 8, 8, 3)),
        (Decode(), Field("image", np.dtype(np.uint8), (None,))),
    )

    def values(self, field, count):
        return Ragged.of(list(MANY.values())[:count], np.dtype(np.uint8))

    def compare_gpu(self, actual, expected):
        """The GPU's nvJPEG rounds otherwise: DALI's own tests bound the mean difference, with fancy
        upsampling at 1."""
        for image, other in zip(actual, expected, strict=True):
            levels = 1 if image.dtype == np.uint8 else 257
            assert np.abs(image.astype(np.float64) - other).mean() <= levels
            error = (image.astype(np.float64) - other) ** 2
            assert (
                10 * np.log10(float(np.iinfo(image.dtype).max) ** 2 / max(error.mean(), 1e-9)) > 35
            )


def decoded(data, mode="RGB"):
    return decode.decode(data, head.read(data), mode)


@pytest.mark.parametrize("name", MANY)
@pytest.mark.parametrize("mode", ["RGB", "GRAY"])
def test_the_codec_gives_dali_s_pixels(name, mode):
    graph = compile_ops(Spec((FILES,)), [Decode(mode)])

    expected = dali_form(graph, [MANY[name]], [{}], "cpu")

    assert_identical(array_form(graph, [MANY[name]], [{}]), expected)


@pytest.mark.parametrize(
    "name",
    [
        "420",
        "422",
        "444",
        "progressive",
        "gray jpeg",
        "rgb png",
        "gray png",
        "palette png",
        "1 bit png",
    ],
)
def test_pixels_are_pillow_s(name):
    expected = np.asarray(Image.open(io.BytesIO(MANY[name])).convert("RGB"))

    np.testing.assert_array_equal(decoded(MANY[name]), expected)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_the_orientation_is_applied_as_pillow_does(kind, orientation):
    data = MANY[f"{kind} {orientation}"]

    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))

    np.testing.assert_array_equal(decoded(data), expected)


def test_16_bits_are_divided_by_257_and_rounded():
    expected = np.rint(PIXELS16[..., ::-1] / 257)

    np.testing.assert_array_equal(decoded(MANY["16 bit rgb"]), expected)


def test_16_bits_stay_16_bits_where_they_are_asked_for():
    graph = compile_ops(Spec((FILES,)), [Decode(dtype="uint16")])

    (pixels,) = array_form(graph, [MANY["16 bit rgb"]], [{}])

    np.testing.assert_array_equal(pixels, PIXELS16[..., ::-1])


@pytest.mark.parametrize(
    "name", ["420", "cmyk with adobe", "gray png", "1 bit png", "palette png", "jpeg 6"]
)
def test_8_bits_are_multiplied_so_that_white_is_white(name):
    graph = compile_ops(Spec((FILES,)), [Decode(dtype="uint16")])

    (pixels,) = array_form(graph, [MANY[name]], [{}])

    np.testing.assert_array_equal(pixels, decoded(MANY[name]) * np.uint16(257))


def test_gray_of_16_bits_is_weighted_as_that_of_8():
    graph = compile_ops(Spec((FILES,)), [Decode("GRAY", dtype="uint16")])
    blue, green, red = (PIXELS16[..., channel].astype(np.int64) for channel in range(3))

    (pixels,) = array_form(graph, [MANY["16 bit rgb"]], [{}])

    np.testing.assert_array_equal(
        pixels[..., 0], (9798 * red + 19235 * green + 3735 * blue + (1 << 14)) >> 15
    )


@pytest.mark.parametrize("dtype", ["int16", "float32", "uint32", 8, None])
def test_another_dtype_is_refused(dtype):
    with pytest.raises(SpecError, match="dtype"):
        Decode(dtype=dtype)


def test_what_cannot_follow_16_bits_says_so():
    with pytest.raises(SpecError, match="dtype uint16") as caught:
        compile_ops(Spec((FILES,)), [Decode(dtype="uint16"), Resize(8, 8)])

    assert "gl.ops.Cast('float32'" in caught.value.remedy


def test_transparency_is_dropped():
    np.testing.assert_array_equal(decoded(MANY["alpha png"]), picture())


def test_gray_is_opencv_s_gray_of_the_rgb_pixels_whatever_the_file():
    for name in ("420", "rgb png", "cmyk with adobe", "jpeg 6"):
        expected = cv2.cvtColor(np.ascontiguousarray(decoded(MANY[name])), cv2.COLOR_RGB2GRAY)

        np.testing.assert_array_equal(decoded(MANY[name], "GRAY")[..., 0], expected)


def test_the_gray_of_a_gray_image_is_itself():
    np.testing.assert_array_equal(decoded(MANY["gray png"], "GRAY")[..., 0], np.asarray(SMALL))


def damaged_scan():
    """Return a JPEG with some bytes of its scan turned over: what libjpeg-turbo decodes with a
    warning."""
    data = MANY["420"].copy()
    data[-200:-150] ^= 0x55
    return data


def rare_sampling():
    """Return a JPEG whose red-difference channel is sampled 3 x 1, by its frame header."""
    data = saved(picture(48, 48), subsampling="4:4:4").copy()
    frame = data.tobytes().index(b"\xff\xc0")
    data[frame + 11] = 0x31
    return data


@pytest.mark.parametrize("make", [damaged_scan, rare_sampling])
def test_what_libjpeg_warns_of_is_decoded_as_dali_does(make):
    data = make()
    graph = compile_ops(Spec((FILES,)), [Decode()])

    expected = dali_form(graph, [data], [{}], "cpu")

    assert_identical([decoded(data)], expected)


def test_a_damaged_png_is_an_error():
    data = MANY["rgb png"].copy()
    data[60:80] ^= 0xFF

    with pytest.raises(RowError, match="damaged") as caught:
        Decode().array(np, data, {})

    assert caught.value.row == 0


def test_a_damaged_image_of_a_batch_is_named_by_its_row():
    files = [MANY["420"], MANY["rgb png"], MANY["422"][:40]]

    with pytest.raises(RowError) as caught:
        Decode().array_batch(np, files, {})

    assert caught.value.row == 2


@pytest.mark.parametrize("name", MANY)
@pytest.mark.parametrize("mode", ["RGB", "GRAY"])
def test_a_region_is_the_same_cut_of_the_whole_image(name, mode):
    whole = Decode(mode).array(np, MANY[name], {})
    height, width = whole.shape[:2]
    for top, left in {(0, 0), (height // 3, width // 5), (height - 1, width - 1)}:
        shape = max(1, (height - top) // 2), max(1, (width - left) // 2)
        draw = {"start": np.array([top, left], np.int32), "shape": np.array(shape, np.int32)}

        region = Decode(mode).array(np, MANY[name], draw)

        np.testing.assert_array_equal(region, whole[top : top + shape[0], left : left + shape[1]])


BEYOND = {
    "max_pixels": (saved(picture(40, 50)), 1999, 2000, "2000 pixels"),
    "max_scans": (saved(picture(64, 17), progressive=True), 9, 10, "10 scans"),
}


@pytest.mark.parametrize("name", BEYOND)
def test_a_file_beyond_a_limit_is_refused_before_it_is_decoded_and_the_option_is_named(
    name, monkeypatch
):
    data, limit, enough, has = BEYOND[name]
    monkeypatch.setattr(decode, "decode", None)

    with pytest.raises(RowError, match=f"it has {has}; at most {limit}") as caught:
        Decode(**{name: limit}).array(np, data, {})

    assert f"{name} of Decode is {limit}" in caught.value.cause
    assert f"gl.ops.Decode({name}={enough})" in caught.value.remedy


@pytest.mark.parametrize("name", BEYOND)
def test_a_file_at_a_limit_is_decoded(name):
    data, _, enough, _ = BEYOND[name]

    np.testing.assert_array_equal(Decode(**{name: enough}).array(np, data, {}), decoded(data))


@pytest.mark.parametrize("name", BEYOND)
def test_a_draw_refuses_the_first_row_beyond_a_limit_in_any_of_the_fields(name):
    data, limit, _, _ = BEYOND[name]
    small = saved(picture(40, 49)) if name == "max_pixels" else saved(picture(64, 17))
    spec = Spec((FILES, replace(FILES, name="mask")))
    graph = compile_ops(spec, [Decode(on=("image", "mask"), **{name: limit})])
    images, masks = [small] * 4, [small, small, data, data]
    sizes = {"image": image_sizes(FILES, images, 4), "mask": image_sizes(FILES, masks, 4)}

    with pytest.raises(RowError, match=f"at most {limit}") as caught:
        graph.draw(seed=0, epoch=0, records=np.arange(4), sizes=sizes)

    assert caught.value.row == 2


def test_a_limit_holds_whatever_op_comes_first():
    data, limit, _, _ = BEYOND["max_scans"]
    graph = compile_ops(Spec((FILES,)), [Identity(), Decode(max_scans=limit)])

    with pytest.raises(RowError, match="it has 10 scans"):
        graph.draw(
            seed=0, epoch=0, records=np.arange(1), sizes={"image": image_sizes(FILES, [data], 1)}
        )


def test_fields_of_one_draw_may_have_different_scans():
    spec = Spec((FILES, replace(FILES, name="mask")))
    graph = compile_ops(spec, [Decode(on=("image", "mask"))])
    files = {"image": saved(picture()), "mask": saved(picture(), progressive=True)}
    sizes = {name: image_sizes(FILES, [data], 1) for name, data in files.items()}

    assert graph.draw(seed=0, epoch=0, records=np.arange(1), sizes=sizes) == [{}]


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_pixels", 0), ("max_pixels", 2**28 + 1), ("max_pixels", 1e6), ("max_pixels", True), ("max_scans", 0),
     ("max_scans", 2**16 + 1), ("max_scans", None), ("max_scans", "10")],
)  # fmt: skip
def test_a_limit_that_cannot_be_is_refused(name, value):
    with pytest.raises(SpecError, match=f"Decode.{name}={value!r}"):
        Decode(**{name: value})


def test_limits_are_kept_as_python_s_numbers():
    op = Decode(max_pixels=np.int64(2**28), max_scans=np.uint16(7))

    assert repr(op) == "Decode(max_pixels=268435456, max_scans=7)"


def test_it_has_no_form_in_an_array_library_of_a_gpu():
    with pytest.raises(DeviceError, match="no form in cupy"):
        Decode().array(ModuleType("cupy"), MANY["420"], {})


def test_an_unknown_mode_is_refused():
    with pytest.raises(SpecError, match="mode"):
        Decode("BGR")


def test_the_remedy_for_decoded_pixels_is_named():
    with pytest.raises(SpecError) as caught:
        compile_ops(Spec((uniform(np.uint8, 8, 8, 3),)), [Decode()])

    assert "leave Decode out" in caught.value.remedy


@pytest.mark.parametrize("executor", ["array", "dali"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_images_of_one_size_come_as_one_array_where_the_size_is_named(tmp_path, executor, dtype):
    pytest.importorskip("nvidia.dali")
    for row in range(5):
        cv2.imwrite(str(tmp_path / f"{row}.png"), np.roll(PIXELS16, row, axis=1))
    ops = [Decode(dtype=dtype, size=(19, 23)), gl.ops.RandomFlip()]
    single = [Decode(dtype=dtype), gl.ops.RandomFlip()]

    def load(ops):
        return gl.Loader(
            gl.images(tmp_path, labels=None), 3, ops=ops, device="cpu", executor=executor
        )

    with load(ops) as one_size, load(single) as any_size:
        for batch, other in zip(one_size, any_size, strict=True):
            assert isinstance(batch["image"], np.ndarray)
            assert isinstance(other["image"], list)
            assert batch["image"].dtype == dtype
            assert_identical(batch["image"], other["image"])


@pytest.mark.parametrize("executor", ["array", "dali"])
def test_an_image_of_another_size_than_the_named_is_an_error_that_names_the_file(
    tmp_path, executor
):
    pytest.importorskip("nvidia.dali")
    for row, width in enumerate((45, 45, 44)):
        (tmp_path / f"{row}.jpg").write_bytes(saved(picture(width=width)).tobytes())

    source = gl.images(tmp_path, labels=None)
    load = gl.Loader(source, 3, ops=[Decode(size=(37, 45))], device="cpu", executor=executor)
    with load, pytest.raises(RecordError, match=r"2\.jpg.*37 x 44 pixels") as caught:
        list(load)
    assert "gl.ops.Resize" in caught.value.remedy


def test_behind_a_named_size_a_crop_is_what_it_is_behind_any_size():
    spec = Spec((FILES,))
    files = [saved(picture(seed=row)) for row in range(6)]
    batches = []
    for op in (Decode(), Decode(size=(37, 45))):
        graph = compile_ops(spec, [op, gl.ops.RandomResizedCrop(8), gl.ops.RandomFlip()])
        sizes = {"image": image_sizes(FILES, files, 6)}
        draws = graph.draw(seed=0, epoch=0, records=np.arange(6), sizes=sizes)
        batches.append(array_form(graph, Ragged.of(files, np.dtype(np.uint8)), draws))

    assert_identical(*batches)


@pytest.mark.parametrize("size", [3, (3,), (3, 4, 5), (0, 4), (3.5, 4), "34"])
def test_a_size_is_height_and_width(size):
    with pytest.raises(SpecError, match="size"):
        Decode(size=size)
